"""Clocks: the time source of a driver in one process. Machines never read a clock; the driver passes the time in.

    SystemClock     the system's clock at the first reading, continued by the monotonic clock
    VirtualClock    changes only when a test, or a user at the prompt, sets it

Laws
- A driver measures deadlines, delays, timeouts, ticks and ends of windows with one of these clocks, and sleeps by the monotonic
  clock. Setting the system's clock back or forward while the driver runs neither delays nor expires anything.
- A clock returns whole milliseconds since 1970-01-01 00:00 UTC, without a time zone. A day has 86,400,000 ms, also one on which
  local time is put forward, so the ends of windows never shift.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from operator import index
from typing import Any, ClassVar, Protocol

from windowing.errors import ConfigError, quote
from windowing.schema.checks import StormNames, spelled
from windowing.windows.measures import Duration, as_duration_ms


class Clock(Protocol):
    """The time source that a driver needs."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC. If a custom clock goes back, the driver's time stands still until it catches up."""


class SystemClock:
    """The system's clock at the first reading, plus the time since then by the monotonic clock.

    It never goes back, and setting the system's clock does not change it. Cost: one reading of the monotonic clock.

    >>> SystemClock().now_ms() > 1_700_000_000_000
    True
    """

    __slots__ = ("_last_ns", "_offset_ns")

    def __init__(self) -> None:
        self._offset_ns: int | None = None  # the system's clock minus the monotonic one
        self._last_ns = -(1 << 63)

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, rounded down."""
        monotonic_ns = self._monotonic_ns()
        if self._offset_ns is None:
            self._offset_ns = self._wall_ns() - monotonic_ns
        self._last_ns = max(self._last_ns, monotonic_ns + self._offset_ns)
        return self._last_ns // 1_000_000

    def _monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def _wall_ns(self) -> int:
        return time.time_ns()


class VirtualClock(StormNames):
    """A clock that changes only when it is set: for tests and for trying a window out.

    `run` and `run_for` of a cluster set it to the next deadline when no task has a message; `step` does not. So in
    `LocalCluster.run` it stands still while a spout emits, and windows hold all tuples meanwhile, unless
    `topology.max.spout.pending` stops the spout.

    >>> clock = VirtualClock(1_000)
    >>> clock.advance(Duration(ms=500))
    1500
    >>> clock.set(900)
    900
    """

    __slots__ = ("_now_ms",)

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "advanceTime advanceTimeSecs advanceClusterTime sleep tick": "advance(seconds(1))"
    }

    @spelled
    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = whole_ms(start_ms)

    def __repr__(self) -> str:
        return f"VirtualClock({self._now_ms})"

    def now_ms(self) -> int:
        """Return the time to which the clock is set."""
        return self._now_ms

    def advance(self, span: Duration | timedelta) -> int:
        """Move forward by `span` and return the new time."""
        self._now_ms += as_duration_ms(span, "span")
        return self._now_ms

    def set(self, now_ms: int) -> int:
        """Set the clock to `now_ms`, later or earlier than before, and return it."""
        self._now_ms = whole_ms(now_ms)
        return self._now_ms


def clock_of(clock: Any) -> Clock:
    """Return the clock of a driver, the system's for None. Raises ConfigError for an object without `now_ms`, or without whole
    milliseconds there.
    """
    if clock is None:
        return SystemClock()
    if isinstance(clock, type) or not callable(getattr(clock, "now_ms", None)):
        raise ConfigError(
            f"clock is an object with now_ms(), got {quote(clock)}; write clock=VirtualClock(1_000), or leave it out"
        )
    given: Clock = clock
    whole_ms(given.now_ms())
    return given


def whole_ms(now_ms: Any) -> int:
    """Return the time of a clock as an int, also one of NumPy's. Raises ConfigError for anything but whole milliseconds."""
    if isinstance(now_ms, bool) or not hasattr(now_ms, "__index__"):
        raise ConfigError(
            f"a clock stands at whole milliseconds since 1970, got {quote(now_ms)}; write VirtualClock(1_000)"
        )
    return index(now_ms)
