"""The inputs and outputs of a window machine: events, effects, and the TupleWindow that a bolt gets when a window fires.

    length 4, slide 2         queue   1  2  3  4  5  6
    previous window  (2, 4]           [--------]
    this window      (4, 6]                 [--------]
                                      expired  ·  new

Law: previous - expired + new == current, for every firing of the same queue.

A field of a tuple is `row["delay"]` of a mapping or a Record, `row.delay` of any other object; without a field name the value is
the tuple itself. A columnar batch (windowing/columnar) has methods that read all rows at once: `field_values(name)` for a field,
`bounds()` and `outside(low, high)` for timestamps, `take(positions)` for both.

The queue of a built-in window holds no Event objects, because parallel lists are three times cheaper. An `Event` is created only
for a policy that implements Storm's per-event protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from windowing.errors import ConfigError, StaleWindowError, quote, represented
from windowing.schema.checks import StormNames
from windowing.schema.rows import read_each, reader_of

if TYPE_CHECKING:  # type checkers know this module without installing it; Python 3.11 has no defaults of type variables
    from typing_extensions import TypeVar

    Held = TypeVar("Held", covariant=True, default=Any)
else:
    from typing import TypeVar

    Held = TypeVar("Held", covariant=True)
_Row = TypeVar("_Row")


def column_of(field: str | None, payloads: Sequence[Any], reader: str = "aggregate=") -> Sequence[Any]:
    """Return a field of each tuple, or the tuples themselves for None. Raises ConfigError if a tuple lacks the field; the error
    names the option `reader`.

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
            return list(read_each(kinds.pop(), field, payloads))
        readers = {kind: reader_of(kind, field) for kind in kinds}
        return [readers[type(payload)](payload) for payload in payloads]
    except (KeyError, AttributeError) as missing:
        said = quote(field) if missing.args in ((), (field,)) else missing.args[0]
        raise ConfigError(
            f"{reader} reads the field {field!r}, which a tuple does not have: {said}; name one of its fields"
        ) from missing


def values_at(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """Return the elements at these positions, of a list or of a columnar batch."""
    take = getattr(values, "take", None)
    if take is None:
        return [values[position] for position in positions]
    chosen: Sequence[Any] = take(positions)
    return chosen


# -- TupleWindow -----------------------------------------------------------------------------------------------------------------


PayloadFold = Callable[[Sequence[Any]], Any]
"""Computes `window.aggregate` from the tuples of a window."""


NO_AGGREGATE = (
    "this bolt declares no aggregate=; use window.get(), or declare for example aggregate={'n': aggregate.count()}"
)
"""The error for `window.aggregate` of a bolt that keeps its tuples."""


class WindowContent(Protocol[Held]):
    """The source of a window's tuples. Each method computes its result only when it is called."""

    def __len__(self) -> int: ...
    def current(self) -> Held: ...
    def new(self) -> Held: ...
    def expired(self) -> Held: ...
    def aggregate(self) -> Any: ...


class ListContent:
    """Window content held as lists (for Storm semantics and for a user's own policies)."""

    __slots__ = ("_current", "_expired", "_fold", "_new")

    def __init__(self, current: list[Any], new: list[Any], expired: list[Any], fold: PayloadFold | None = None) -> None:
        self._current, self._new, self._expired = current, new, expired
        self._fold = fold

    def __len__(self) -> int:
        return len(self._current)

    def current(self) -> list[Any]:
        return self._current

    def new(self) -> list[Any]:
        return self._new

    def expired(self) -> list[Any]:
        return self._expired

    def aggregate(self) -> Any:
        if self._fold is None:
            raise TypeError(NO_AGGREGATE)
        return self._fold(self._current)


class TupleWindow(StormNames, Generic[Held]):
    """The window that a bolt is called with: its tuples, in the order of (timestamp, arrival).

    It is valid until the bolt's `execute` returns; a later call raises StaleWindowError, so copy tuples that must live longer:
    `list(window.get())`. `start_timestamp` is exclusive (None for a length in tuples). `end_timestamp` is inclusive: the end of
    the window, or, for a Count slide, the timestamp of the tuple at which the window fired. Both are milliseconds since 1970.
    `key` is the key of a bolt with `key=`.

    For type checkers, the type in brackets is what `get` returns: `TupleWindow[Sequence[Order]]`, with `columnar="arrow"`
    `TupleWindow[pyarrow.Table]`. Without one it is Any.

    Cost: `get`, `get_new` and `get_expired` each make one slice when they are called. Source: Storm's `TupleWindow`.

    >>> from windowing import count, sliding
    >>> from windowing.local import run_local
    >>> @sliding(count(2), count(1), output="all array<long>, new array<long>, expired array<long>")
    ... def parts(window):
    ...     return tuple([row.n for row in rows] for rows in (window, window.get_new(), window.get_expired()))
    >>> run_local(parts, [[{"n": 1}, {"n": 2}, {"n": 3}]])["default"]
    [([1], [1], []), ([1, 2], [2], []), ([2, 3], [3], [1])]
    """

    __slots__ = ("_content", "_valid", "end_timestamp", "key", "start_timestamp")

    _elsewhere = {  # noqa: RUF012 - nobody changes it
        "getIter getIterator": "iter(window)",
        "size count": "len(window)",
        "rows tuples values": "get()",
        "toPandas to_arrow": 'columnar="arrow" in the bolt; then get() is a pyarrow.Table, with to_pandas()',
    }

    def __init__(
        self, content: WindowContent[Held], start_timestamp: int | None, end_timestamp: int, key: Any = None
    ) -> None:
        self._content = content
        self._valid = True
        self.start_timestamp = start_timestamp
        self.end_timestamp = end_timestamp
        self.key = key

    def get(self) -> Held:
        """Return all tuples of the window: a sequence; with `columnar=` a pyarrow.Table, or a dict of arrays."""
        return self._content.current() if self._valid else self._live().current()

    def get_new(self) -> Held:
        """Return the tuples that the last fired window did not hold, as `get` does."""
        return self._content.new() if self._valid else self._live().new()

    def get_expired(self) -> Held:
        """Return the tuples of the last fired window that this one does not hold, as `get` does."""
        return self._content.expired() if self._valid else self._live().expired()

    def column(self, name: str) -> Any:
        """Return one field of all tuples: a list; with `columnar=` a pyarrow.ChunkedArray or an array, without a copy."""
        content: Any = self._live()
        own = getattr(content, "column", None)
        return own(name) if own is not None else column_of(name, content.current(), "column()")

    @property
    def aggregate(self) -> Any:
        """The result of the bolt's `aggregate=` over the window: one value, or a dict of values by name."""
        return self._live().aggregate()

    def __len__(self) -> int:
        return len(self._live())

    @overload
    def __iter__(self: TupleWindow[Sequence[_Row]]) -> Iterator[_Row]: ...
    @overload
    def __iter__(self) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[Any]:
        """Return `iter(get())`: the tuples; with `columnar="arrow"` the columns, with "numpy" their names."""
        held: Any = self.get()
        return iter(held)

    @overload
    def __getitem__(self, which: str) -> Any: ...
    @overload
    def __getitem__(self: TupleWindow[Sequence[_Row]], which: int) -> _Row: ...
    @overload
    def __getitem__(self: TupleWindow[Sequence[_Row]], which: slice) -> Sequence[_Row]: ...
    @overload
    def __getitem__(self, which: int | slice) -> Any: ...
    def __getitem__(self, which: int | slice | str) -> Any:
        """Return `get()[which]`, a tuple or some of them, or by its name one field of all tuples, as `column` does. With
        `columnar=` use names only, because `get()` is a table or a dict.
        """
        if isinstance(which, str):
            return self.column(which)
        held: Any = self.get()
        if isinstance(held, dict):
            raise TypeError(
                f"a window with columnar= is columns, and {which!r} names none; write window['v'] for the column v, or leave out "
                "columnar= to have rows"
            )
        return held[which]

    def invalidate(self) -> None:
        """Make later calls raise StaleWindowError; the machine calls this when the driver requests the next effect."""
        self._valid = False

    def _live(self) -> WindowContent[Held]:
        if not self._valid:
            raise self._stale()
        return self._content

    def _stale(self) -> StaleWindowError:
        return StaleWindowError(
            f"{self!r} was asked after its execute had returned; copy what you need while it runs: list(window.get())"
        )

    def __repr__(self) -> str:
        start = "" if self.start_timestamp is None else f"start={self.start_timestamp}, "
        key = "" if self.key is None else f", key={represented(self.key)}"
        return f"TupleWindow({start}end={self.end_timestamp}{key})"


class ConvertedContent:
    """The tuples of another window, each part converted when it is read; valid as long as that window is."""

    __slots__ = ("_convert", "_window")

    def __init__(self, window: TupleWindow, convert: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._window, self._convert = window, convert

    def __len__(self) -> int:
        return len(self._window)

    def current(self) -> Sequence[Any]:
        return self._convert(self._window.get())

    def new(self) -> Sequence[Any]:
        return self._convert(self._window.get_new())

    def expired(self) -> Sequence[Any]:
        return self._convert(self._window.get_expired())

    def aggregate(self) -> Any:
        return self._window.aggregate


# -- events and effects ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Event:
    """A tuple with its timestamp, as a per-event policy receives it. Events compare by identity.

    Source: Storm's `Event` and `EventImpl`.
    """

    payload: Any
    timestamp: int

    is_watermark = False

    def get(self) -> Any:
        """Return the tuple itself."""
        return self.payload

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.payload!r}, timestamp={self.timestamp})"


class WaterMarkEvent(Event):
    """A watermark: no tuple with a smaller timestamp is expected after it. Source: Storm's `WaterMarkEvent`."""

    __slots__ = ()

    is_watermark = True

    def __init__(self, timestamp: int) -> None:
        super().__init__(None, timestamp)


class LateReason(Enum):
    """Why a tuple went to the late stream instead of a window; the value is written to the `reason` column."""

    LATE = "late"
    FUTURE = "future"
    INVALID = "invalid"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Activation:
    """A window fires: the driver passes `window` to the bolt before it requests the next effect."""

    window: TupleWindow

    def __repr__(self) -> str:
        return f"Activation({self.window!r})"


@dataclass(slots=True, eq=False)
class Expired:
    """Tuples that no later window can hold; a driver can ack them now.

    `count` is the number of tuples; `get()` lists them in queue order, or is None where an aggregating window kept only partials.
    With `spread`, tuple i of the run expired with the add at the effect's position plus i (tuples between two windows).
    """

    count: int
    _get: Callable[[], Sequence[Any]] | None
    key: Any = None
    spread: bool = False

    def get(self) -> Sequence[Any] | None:
        """Return the expired tuples, oldest first. Cost: one slice."""
        return None if self._get is None else self._get()

    def __repr__(self) -> str:
        return f"Expired(count={self.count}, key={self.key!r})"


@dataclass(slots=True, eq=False)
class Late:
    """Consecutive tuples for the late stream, all with the same reason; they are acked at once.

    `payloads[i]` arrived with `timestamps[i]`. The position that `add_batch` yields with the effect is that of the first tuple.
    """

    payloads: Sequence[Any]
    timestamps: Sequence[Any]
    reason: LateReason

    def __repr__(self) -> str:
        return f"Late({list(self.payloads)!r}, reason={self.reason.value!r})"


Effect = Activation | Expired | Late
"""An effect of a window machine: a window that fired, tuples that expired, or late tuples."""
