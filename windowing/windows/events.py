"""What goes into a machine and what comes out of it: events, effects, and the TupleWindow that a bolt sees when its window fires.

    length 4, slide 2         queue   1  2  3  4  5  6
    previous window  (2, 4]           [--------]
    this window      (4, 6]                 [--------]
                                      expired  ·  new

Law: previous - expired + new == current, for every firing of the same queue.

A field of a tuple is `row["delay"]` of a mapping or a Record, `row.delay` of anything else; without a name it is the tuple itself.
What lies in columns (windowing/columnar) is asked for all of them at once: rows for `field_values(name)`, timestamps for `bounds()`
and `outside(low, high)`, all of it for `take(positions)`.

Inside the queue of a built-in window there are no Event objects (parallel lists are three times cheaper); an `Event` is made
only where a policy of Storm's per-event protocol asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from windowing.errors import ConfigError, StaleWindowError, quote, represented
from windowing.schema.checks import StormNames

__all__ = [
    "Activation",
    "Effect",
    "Event",
    "Expired",
    "Late",
    "LateReason",
    "ListContent",
    "TupleWindow",
    "WaterMarkEvent",
    "WindowContent",
    "column_of",
    "taken",
    "title_of_field",
]


def column_of(field: str | None, payloads: Sequence[Any], asks: str = "aggregate=") -> Sequence[Any]:
    """Return a field of each tuple, or the tuples themselves. Raises ConfigError, which names who `asks`, for a tuple without it.

    Cost: C speed where all tuples are of one type.

    >>> column_of("delay", [{"delay": 3}, {"delay": 5}])
    [3, 5]
    """
    if field is None:
        return list(payloads)
    in_columns = getattr(payloads, "field_values", None)
    if in_columns is not None:
        found: Sequence[Any] = in_columns(field)
        return found
    kinds = set(map(type, payloads))
    try:
        if len(kinds) == 1:
            return list(map(_reader(kinds.pop(), field), payloads))
        readers = {kind: _reader(kind, field) for kind in kinds}
        return [readers[type(payload)](payload) for payload in payloads]
    except (KeyError, AttributeError) as missing:
        raise ConfigError(
            f"{asks} reads the field {field!r}, which a tuple does not have: {quote(missing.args)}; name one of its fields"
        ) from missing


def taken(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """Return the tuples, or what belongs to each, at these positions."""
    take = getattr(values, "take", None)
    if take is None:
        return [values[position] for position in positions]
    chosen: Sequence[Any] = take(positions)
    return chosen


def title_of_field(field: Any) -> str:
    """Return how an error calls a field (its name in quotes) or a function of the tuple."""
    return repr(field) if isinstance(field, str) else f"{getattr(field, '__qualname__', 'function')}()"


def _reader(kind: type, field: str) -> Callable[[Any], Any]:
    by_name = issubclass(kind, Mapping) or getattr(kind, "_by_name", False)
    return itemgetter(field) if by_name else attrgetter(field)


# -- TupleWindow -----------------------------------------------------------------------------------------------------------------


class WindowContent(Protocol):
    """Where a window gets its tuples from when, and only when, it is asked for them."""

    def __len__(self) -> int: ...
    def current(self) -> Sequence[Any]: ...
    def new(self) -> Sequence[Any]: ...
    def expired(self) -> Sequence[Any]: ...
    def aggregate(self) -> Any: ...


class ListContent:
    """Content that is already at hand as lists (Storm semantics, a user's own policies)."""

    __slots__ = ("_current", "_expired", "_new")

    def __init__(self, current: list[Any], new: list[Any], expired: list[Any]) -> None:
        self._current, self._new, self._expired = current, new, expired

    def __len__(self) -> int:
        return len(self._current)

    def current(self) -> list[Any]:
        return self._current

    def new(self) -> list[Any]:
        return self._new

    def expired(self) -> list[Any]:
        return self._expired

    def aggregate(self) -> Any:
        raise TypeError("this window keeps tuples, not an aggregate; declare the bolt with aggregate=...")


class TupleWindow(StormNames):
    """The tuples of one firing, in (timestamp, arrival) order, with the new and the expired ones at hand.

    Valid until the bolt's `execute` returns; asked later it raises StaleWindowError, so copy what must live longer:
    `list(window.get())`. `start_timestamp` is exclusive (None for a length in tuples), `end_timestamp` inclusive: the end of the
    window, or the timestamp of the tuple that made a Count slide fire. `key` is the key of a keyed window.

    Cost: each of `get`, `get_new`, `get_expired` is one slice, made when asked and not before. Source: Storm's `TupleWindow`.
    """

    __slots__ = ("_content", "_valid", "end_timestamp", "key", "start_timestamp")

    _elsewhere = {"getIter": "iter(window)"}  # noqa: RUF012 - nobody changes it

    def __init__(
        self, content: WindowContent, start_timestamp: int | None, end_timestamp: int, key: Any = None
    ) -> None:
        self._content = content
        self._valid = True
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.key = key

    def get(self) -> Sequence[Any]:
        """Return all tuples of the window."""
        return self._live().current()

    def get_new(self) -> Sequence[Any]:
        """Return the tuples that the last fired window did not hold."""
        return self._live().new()

    def get_expired(self) -> Sequence[Any]:
        """Return the tuples of the last fired window that this one does not hold."""
        return self._live().expired()

    def column(self, name: str) -> Sequence[Any]:
        """Return one field of all tuples of the window: a list, or of a bolt with `columnar=` a view without a copy."""
        content = self._live()
        own = getattr(content, "column", None)
        found: Sequence[Any] = own(name) if own is not None else column_of(name, content.current(), "column()")
        return found

    @property
    def aggregate(self) -> Any:
        """The result of the bolt's `aggregate=` over the window: a value, or a dict of them by name."""
        return self._live().aggregate()

    def __len__(self) -> int:
        return len(self._live())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def invalidate(self) -> None:
        """End the window's life; the machine calls this when the driver takes the next effect."""
        self._valid = False

    def _live(self) -> WindowContent:
        self._refuse_if_stale()
        return self._content

    def _refuse_if_stale(self) -> None:
        if not self._valid:
            raise StaleWindowError(
                f"{self!r} was asked after its execute had returned; copy what you need while it runs: list(window.get())"
            )

    def __repr__(self) -> str:
        start = "" if self.start_timestamp is None else f"start={self.start_timestamp}, "
        key = "" if self.key is None else f", key={represented(self.key)}"
        return f"TupleWindow({start}end={self.end_timestamp}{key})"


# -- events and effects ----------------------------------------------------------------------------------------------------------


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
"""What a window machine returns: a window that fired, tuples that expired, or late ones."""
