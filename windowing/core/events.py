"""What goes into a machine and what comes out of it.

Inside the queue of a built-in window there are no Event objects (parallel lists are three times cheaper); an `Event` is made
only where a policy of Storm's per-event protocol asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from windowing.core.windows import TupleWindow

__all__ = ["Activation", "Effect", "Event", "Expired", "Late", "LateReason", "WaterMarkEvent"]


class Event:
    """A tuple with its timestamp, as a per-event policy sees it. Two events are equal only if they are the same one.

    Source: Storm's `Event` and `EventImpl`.
    """

    __slots__ = ("payload", "timestamp")

    is_watermark = False

    def __init__(self, payload: Any, timestamp: int) -> None:
        self.payload = payload
        self.timestamp = timestamp

    def get(self) -> Any:
        """Return the tuple itself."""
        return self.payload

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.payload!r}, timestamp={self.timestamp})"


class WaterMarkEvent(Event):
    """The news that no tuple with a smaller timestamp is expected any more. Source: Storm's `WaterMarkEvent`."""

    __slots__ = ()

    is_watermark = True

    def __init__(self, timestamp: int) -> None:
        super().__init__(None, timestamp)


class LateReason(Enum):
    """Why a tuple went to the side stream instead of a window; the value stands in its `reason` column."""

    LATE = "late"
    FUTURE = "future"
    INVALID = "invalid"
    CLOSED = "closed"


class Activation:
    """A window fires: the driver hands `window` to the bolt before it takes the next effect."""

    __slots__ = ("window",)

    def __init__(self, window: TupleWindow) -> None:
        self.window = window

    def __repr__(self) -> str:
        return f"Activation({self.window!r})"


class Expired:
    """Tuples that no later window can hold: the moment to ack them.

    `count` tuples in queue order; `get()` makes the list of them (None where an aggregating window kept only partials). With
    `spread` the i-th of them expired with the add at the effect's position plus i: tuples between two windows, in one run.
    """

    __slots__ = ("_get", "count", "key", "spread")

    def __init__(
        self, count: int, get: Callable[[], Sequence[Any]] | None, key: Any = None, spread: bool = False
    ) -> None:
        self.count = count
        self._get = get
        self.key = key
        self.spread = spread

    def get(self) -> Sequence[Any] | None:
        """Return the expired tuples, oldest first. Cost: one slice."""
        return None if self._get is None else self._get()

    def __repr__(self) -> str:
        return f"Expired(count={self.count}, key={self.key!r})"


class Late:
    """A run of consecutive tuples for the side stream, all for the same reason; they are acked at once.

    `payloads[i]` came with `timestamps[i]`; from `add_batch` the effect's position is that of the first of them.
    """

    __slots__ = ("payloads", "reason", "timestamps")

    def __init__(self, payloads: Sequence[Any], timestamps: Sequence[Any], reason: LateReason) -> None:
        self.payloads = payloads
        self.timestamps = timestamps
        self.reason = reason

    def __repr__(self) -> str:
        return f"Late({list(self.payloads)!r}, reason={self.reason.value!r})"


Effect = Activation | Expired | Late
