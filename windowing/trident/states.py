"""The ports of Trident's states: what a state, a codec, an aggregator, an updater and a query have to offer.

    begin_commit(5:0)   multi_update(keys, updaters)   commit(5:0)      per partition, in txid order, in the commit phase
    multi_get(keys)                                                     at any time, for queries

    combiner   init(a) init(b) init(c)  ->  combine, combine      before the exchange and after it, in any grouping
    reducer    init() -> reduce(., a) -> reduce(., b)             one tuple after the other, in one place
    aggregator init -> aggregate(v, a), aggregate(v, b) -> complete     may emit any number of rows, at any time

    ("JFK", 3)  --encode-->  {"$":["tuple",["JFK",3]]}  --decode-->  ("JFK", 3)           TypedJson, the codec where none is given

Laws
- Every attempt of every batch begins and commits at every partition of the state, also where it has no tuples.
- A combiner: `combine(zero(), x) == x == combine(x, zero())` and `combine(a, combine(b, c)) == combine(combine(a, b), c)`. Values
  are plain data, and what `combine` and `reduce` are given stays as it is: a stored value may be used again.
- A codec: what is read is what was written, types included; what cannot be written is a TypeError, before anything is stored. Bytes
  never become code: only types that were registered come back as objects, through the function given for them. Its name is stored
  beside the values: another one is refused before a value is read by it.

Source: Storm's interfaces of these names. Storm commits by txid, here by attempt. In topology/state.py is the state of Storm's
stateful bolts, which is another thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

from windowing.codec import decode_value, encode_value
from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.schema.checks import checked_name
from windowing.trident.kinds import StateType, TransactionAttempt

__all__ = [
    "Aggregator",
    "CombinerAggregator",
    "CombinerValueUpdater",
    "MapState",
    "QueryFunction",
    "ReadOnlyMapState",
    "ReadOnlySnapshottable",
    "ReducerAggregator",
    "ReducerValueUpdater",
    "ReplaceUpdater",
    "Snapshottable",
    "State",
    "StateCodec",
    "StateFactory",
    "StateUpdater",
    "TridentCollector",
    "TypedJson",
    "ValueUpdater",
]


_DIGITS = 18
_SMALL = 10**_DIGITS


class StateCodec(Protocol):
    """What a user's own codec has (for msgpack, say)."""

    @property
    def name(self) -> str:
        """What is stored beside the bytes, which are of this format; another format is another name."""

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes, equal values as equal bytes. Raises TypeError for one it cannot write."""

    def decode(self, blob: bytes, what: str) -> Any:
        """Return the value; `what` names it in the CorruptStateError for bytes that are none."""


class _Type(NamedTuple):
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


class TypedJson:
    """Plain data as typed JSON, and objects of the types that were registered, wherever in the data they are.

    Plain data are numbers, strings, bytes, dates, Decimals, lists, tuples, sets, dicts. Cost: 2 us for a number.

    >>> from fractions import Fraction
    >>> codec = TypedJson().register("fraction", Fraction, str, Fraction)
    >>> codec.decode(codec.encode([Fraction(1, 3)]), "a value")
    [Fraction(1, 3)]
    """

    def __init__(self) -> None:
        self._by_type: dict[type, _Type] = {}
        self._by_name: dict[str, _Type] = {}

    @property
    def name(self) -> str:
        """`json`: types may be added to those of a state, so their names are with the values."""
        return "json"

    def register(
        self, name: str, kind: type, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
    ) -> TypedJson:
        """Write objects of exactly this type as plain data, under a name that must stay; return the codec.

        Raises ConfigError for a type or a name that is registered already.
        """
        checked_name(name, "a type's name")
        if kind in self._by_type or name in self._by_name:
            raise ConfigError(
                f"{quote(kind.__name__)} cannot be registered as {quote(name)}: the type or the name is registered "
                "already; register each once, on one codec"
            )
        self._by_type[kind] = self._by_name[name] = _Type(name, to_plain, from_plain)
        return self

    def encode(self, value: Any) -> bytes:
        if type(value) is int and -_SMALL < value < _SMALL:  # what most states hold: ten times faster than by JSON
            return b"%d" % value
        return encode_value(value, self._named if self._by_type else None)

    def decode(self, blob: bytes, what: str) -> Any:
        if blob.isdigit() and len(blob) < _DIGITS:
            return int(blob)
        return decode_value(blob, what, lambda content: self._object(content, what))

    def _named(self, value: Any) -> Any:
        kind = self._by_type.get(type(value))
        return None if kind is None else [kind.name, kind.to_plain(value)]

    def _object(self, content: Any, what: str) -> Any:
        name, plain = content
        if name not in self._by_name:
            raise CorruptStateError(
                f"{what} is of the type {quote(name)}, which is not registered here; register it as where it was written; "
                "nothing was reset"
            )
        return self._by_name[name].from_plain(plain)


# -- aggregators -----------------------------------------------------------------------------------------------------------------


T = TypeVar("T")


class TridentCollector(Protocol):
    """Where operations leave what they emit."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one row: its values, in the order of the declared fields."""

    def report_error(self, error: BaseException) -> None:
        """Let whoever looks at the run see an error that stops nothing."""


class CombinerAggregator(Protocol[T]):
    """A value per tuple, combined two by two: partial results are made before tuples travel."""

    def init(self, tuple: Any) -> T:
        """Return the value of one tuple."""

    def combine(self, a: T, b: T) -> T:
        """Return the value of what is in `a`, then in `b`; both stay as they are."""

    def zero(self) -> T:
        """Return the value of nothing."""


class ReducerAggregator(Protocol[T]):
    """A value that takes in one tuple after the other."""

    def init(self) -> T:
        """Return the value of nothing."""

    def reduce(self, current: T, tuple: Any) -> T:
        """Return the value with one tuple more; `current` stays as it is."""


class Aggregator(Protocol[T]):
    """The most general: its value, which it may change in place, is one batch's, and it emits what it likes."""

    def init(self, batch_id: Any, collector: TridentCollector) -> T:
        """Return the value at the start of a batch, before any tuple."""

    def aggregate(self, value: T, tuple: Any, collector: TridentCollector) -> None:
        """Take in one tuple."""

    def complete(self, value: T, collector: TridentCollector) -> None:
        """Emit what is left to emit, after all tuples of the batch, also if there was none."""


class ValueUpdater(Protocol[T]):
    """What is done to one stored value."""

    def update(self, stored: T | None) -> T | None:
        """Return the new value; None is no value. Pure: asked again with the same, it answers the same."""


class CombinerValueUpdater(ValueUpdater[T]):
    """Combine what is stored with the value of a batch.

    >>> class Count:
    ...     def init(self, tuple): return 1
    ...     def combine(self, a, b): return a + b
    ...     def zero(self): return 0
    >>> updater = CombinerValueUpdater(Count(), 3)
    >>> updater.update(None), updater.update(4)
    (3, 7)
    """

    def __init__(self, aggregator: CombinerAggregator[T], value: T) -> None:
        self.aggregator = aggregator
        self.value = value

    def update(self, stored: T | None) -> T:
        return self.value if stored is None else self.aggregator.combine(stored, self.value)

    def __repr__(self) -> str:
        return f"CombinerValueUpdater({self.aggregator!r}, {self.value!r})"


class ReducerValueUpdater(ValueUpdater[T]):
    """Reduce the tuples of a batch into what is stored, in their order."""

    def __init__(self, aggregator: ReducerAggregator[T], tuples: Iterable[Any]) -> None:
        self.aggregator = aggregator
        self.tuples = tuple(tuples)

    def update(self, stored: T | None) -> T:
        return reduce(self.aggregator.reduce, self.tuples, self.aggregator.init() if stored is None else stored)

    def __repr__(self) -> str:
        return f"ReducerValueUpdater({self.aggregator!r}, {len(self.tuples)} tuples)"


class ReplaceUpdater(ValueUpdater[T]):
    """Put a value in the place of whatever is stored."""

    def __init__(self, value: T | None) -> None:
        self.value = value

    def update(self, stored: T | None) -> T | None:
        return self.value

    def __repr__(self) -> str:
        return f"ReplaceUpdater({self.value!r})"


# -- ports of a state ------------------------------------------------------------------------------------------------------------


class State(Protocol):
    """One partition of a state, as the coordinator's commits see it."""

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        """Begin to commit an attempt; what an attempt before it began and did not commit is forgotten."""

    def commit(self, attempt: TransactionAttempt) -> None:
        """Make what was updated since `begin_commit` durable, all of it or nothing.

        Raises SupersededError if a later attempt or batch has taken the partition (stop: somebody else goes on), and an error that
        is a FailedException if the batch is to be tried again, as its next attempt.
        """

    def rollback(self) -> None:
        """Forget what was begun and not committed: the attempt failed elsewhere."""

    def close(self) -> None:
        """Let go of the store."""


class ReadOnlyMapState(State, Protocol):
    """Values under keys. A key is plain data: the values of a group, mostly; a list is the tuple of the same values."""

    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        """Return the values, None where there is none.

        Between begin and commit: as the batch sees them. Else as they are stored. With `as_of`, always as of the end of that txid:
        a row keeps the value before the txid that wrote it, so a key that was written by a later one than the next is a
        StateConflictError (ask as of a later txid).
        """

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all stored keys and values, in the order of the keys' bytes."""


class MapState(ReadOnlyMapState, Protocol):
    """A map that commits change."""

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply the n-th updater to the n-th key, in order, and return the values after each.

        A key that comes several times is updated as often. Of a batch that is committed already, the committed values are returned.
        """

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Put the n-th value under the n-th key; None takes the key out."""

    def multi_remove(self, keys: Sequence[Any]) -> None:
        """Take the keys out."""


class ReadOnlySnapshottable(State, Protocol):
    """One value."""

    def get(self, as_of: int | None = None) -> Any:
        """Return the value, None if there is none; `as_of` as for a map."""


class Snapshottable(ReadOnlySnapshottable, Protocol):
    """One value that commits change."""

    def update(self, updater: ValueUpdater[Any]) -> Any:
        """Apply the updater and return the new value."""

    def set(self, value: Any) -> None:
        """Put the value; None takes it out."""


S_co = TypeVar("S_co", bound=State, covariant=True)
S_contra = TypeVar("S_contra", bound=State, contravariant=True)


class StateFactory(Protocol[S_co]):
    """Makes the partitions of one state. Plain data: it travels to wherever the partitions are."""

    @property
    def kind(self) -> StateType:
        """What the state makes of a batch that comes again."""

    def make_state(self, partition: int, partitions: int) -> S_co:
        """Return partition number `partition` of `partitions`. Raises DefinitionChangedError, later, if it had another number."""


class StateUpdater(Protocol[S_contra]):
    """What `partition_persist` does with the tuples of a batch, between `begin_commit` and `commit`."""

    def update_state(self, state: S_contra, tuples: Sequence[Any], collector: TridentCollector) -> None:
        """Update the state; what is emitted goes to the stream of new values."""


class QueryFunction(Protocol[S_contra]):
    """What `state_query` asks of a state."""

    def batch_retrieve(self, state: S_contra, tuples: Sequence[Any]) -> Sequence[Any]:
        """Return one result for each tuple, in their order."""

    def execute(self, tuple: Any, result: Any, collector: TridentCollector) -> None:
        """Emit what the result makes of the tuple."""
