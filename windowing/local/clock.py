"""Clocks: where a driver in one process gets the time from. Machines never ask; the driver hands them what a clock says.

    SystemClock     the machine's own clock when it is read first; from then on the monotonic clock carries it on
    VirtualClock    stands still until a test, or a person at the prompt, moves it

Laws
- What a driver waits for (deadlines, delays, timeouts, ticks, ends of windows) it waits for by one of these, and sleeps by the
  monotonic clock: setting the system's clock back or forward while it runs holds nothing up and lets nothing expire.
- A clock says whole milliseconds since 1970-01-01 00:00 UTC. There is no time zone in it: a day has 86,400,000 of
  them, also the one on which the local clock is put forward, so the ends of windows never move.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Protocol

from windowing.errors import ConfigError, quote
from windowing.windows.measures import Duration, as_duration_ms

__all__ = [
    "Clock",
    "SystemClock",
    "VirtualClock",
]


class Clock(Protocol):
    """What a driver asks for the time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC. Where a clock of one's own falls, time stands still until it has caught up."""


class SystemClock:
    """The machine's clock as it stood at the first reading, plus what has passed since by the monotonic clock.

    So it never falls, and nobody who sets the machine's clock moves it. Cost: a reading of the monotonic clock.

    >>> SystemClock().now_ms() > 1_700_000_000_000
    True
    """

    __slots__ = ("_last_ns", "_offset_ns")

    def __init__(self) -> None:
        self._offset_ns: int | None = None  # the machine's clock less the monotonic one
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


class VirtualClock:
    """A clock that stands still until it is moved: for tests and for trying a window out.

    >>> clock = VirtualClock(1_000)
    >>> clock.advance(Duration(ms=500))
    1500
    >>> clock.set(900)
    900
    """

    __slots__ = ("_now_ms",)

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = _whole(start_ms)

    def __repr__(self) -> str:
        return f"VirtualClock({self._now_ms})"

    def now_ms(self) -> int:
        """Return where the clock stands."""
        return self._now_ms

    def advance(self, span: Duration | timedelta) -> int:
        """Move forward by `span` and return the new time."""
        self._now_ms += as_duration_ms(span, "span")
        return self._now_ms

    def set(self, now_ms: int) -> int:
        """Stand at `now_ms` from now on, later or earlier than before, and return it."""
        self._now_ms = _whole(now_ms)
        return self._now_ms


def _whole(now_ms: int) -> int:
    if isinstance(now_ms, bool) or not isinstance(now_ms, int):
        raise ConfigError(
            f"a clock stands at whole milliseconds since 1970, got {quote(now_ms)}; write VirtualClock(1_000)"
        )
    return now_ms
