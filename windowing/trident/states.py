"""The protocols of Trident's states: state, codec, aggregators, updater, query.

    begin_commit(5:0)   multi_update(keys, updaters)   commit(5:0)      per partition, in txid order, in the commit phase
    multi_get(keys)                                                     at any time, for queries

    combiner   init(a) init(b) init(c)  ->  combine, combine      before the exchange and after it, in any grouping
    reducer    init() -> reduce(., a) -> reduce(., b)             one tuple after the other, in one partition
    aggregator init -> aggregate(v, a), aggregate(v, b) -> complete     may emit any number of rows, at any time

    ("JFK", 3)  --encode-->  {"$":["tuple",["JFK",3]]}  --decode-->  ("JFK", 3)           TypedJson, the default codec

Laws
- Every attempt at every batch calls `begin_commit` and `commit` of every partition of the state, also if it has no tuples for it.
- A combiner satisfies `combine(zero(), x) == x == combine(x, zero())` and
  `combine(a, combine(b, c)) == combine(combine(a, b), c)`. Values are plain data. `combine` and `reduce` must not change their
  arguments, because a stored value may be used again.
- A codec decodes what it encoded, types included; a value that it cannot encode is a TypeError before anything is stored. Decoding
  runs no code from the bytes: only registered types become objects, by the function registered for them. The codec's name is stored
  beside the values, and a codec with another name is refused before it reads a value.

Source: Storm's interfaces of these names. Storm commits by txid, this library by attempt. The state of Storm's stateful bolts is
something else and is in topology/state.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol, TypeVar

from windowing.codec import decode_value, encode_value
from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.schema.checks import checked_name
from windowing.trident.kinds import StateType, TransactionAttempt

_DIGITS = 18
_SMALL = 10**_DIGITS


class StateCodec(Protocol):
    """The protocol of a custom codec, for example for msgpack."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the format, stored beside the bytes. Change it when the format changes."""

    @abstractmethod
    def encode(self, value: Any, /) -> bytes:
        """Return the value as bytes; equal values give equal bytes. Raises TypeError for a value that it cannot encode."""

    @abstractmethod
    def decode(self, blob: bytes, what: str, /) -> Any:
        """Return the value. Raises CorruptStateError, which names `what`, for bytes that are not an encoded value."""


class _Type(NamedTuple):
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


class TypedJson:
    """Encodes plain data as typed JSON, and objects of registered types at any depth.

    Plain data are numbers, strings, bytes, dates, Decimals, lists, tuples, sets, dicts. Cost: 2 us for a number.

    >>> from fractions import Fraction
    >>> codec = TypedJson().register("fraction", Fraction, str, Fraction)
    >>> codec.decode(codec.encode([Fraction(1, 3)]), "a value")
    [Fraction(1, 3)]
    """

    name = "json"
    """Types may be registered later, so the name of a type is stored with each of its values."""

    def __init__(self) -> None:
        self._by_type: dict[type, _Type] = {}
        self._by_name: dict[str, _Type] = {}

    def register(
        self, name: str, kind: type, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]
    ) -> TypedJson:
        """Encode objects of exactly this type as plain data, under a name that must not change; return the codec.

        Raises ConfigError for a type or a name that is already registered.
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
        if type(value) is int and -_SMALL < value < _SMALL:  # most states hold small ints: ten times faster than JSON
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
    """The collector to which operations emit."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one row: its values, in the order of the declared fields."""

    def report_error(self, error: BaseException) -> None:
        """Add an error to the result of the run; the run continues."""


class CombinerAggregator(Protocol[T]):
    """Maps each tuple to a value and combines values in pairs, so partial results are made before the exchange."""

    @abstractmethod
    def init(self, tuple: Any, /) -> T:
        """Return the value of one tuple."""

    @abstractmethod
    def combine(self, a: T, b: T, /) -> T:
        """Return the value of the tuples of `a` followed by those of `b`, without changing either."""

    @abstractmethod
    def zero(self) -> T:
        """Return the value of no tuples."""


class ReducerAggregator(Protocol[T]):
    """Adds one tuple after the other to a value."""

    @abstractmethod
    def init(self) -> T:
        """Return the value of no tuples."""

    @abstractmethod
    def reduce(self, current: T, tuple: Any, /) -> T:
        """Return the value with one more tuple, without changing `current`."""


class Aggregator(Protocol[T]):
    """The most general aggregator: a value per batch, which it may change in place, and any number of emitted rows. With
    `prepare(context)` or `cleanup()`, as functions have them, each task has its own copy.
    """

    @abstractmethod
    def init(self, batch_id: Any, collector: TridentCollector, /) -> T:
        """Return the value at the start of a batch, before any tuple."""

    @abstractmethod
    def aggregate(self, value: T, tuple: Any, collector: TridentCollector, /) -> None:
        """Add one tuple."""

    @abstractmethod
    def complete(self, value: T, collector: TridentCollector, /) -> None:
        """Emit the remaining rows after the last tuple of the batch; also called for an empty batch."""


class ValueUpdater(Protocol[T]):
    """An update of one stored value."""

    @abstractmethod
    def update(self, stored: T | None, /) -> T | None:
        """Return the new value; None is no value. Must be pure: the same input always gives the same result."""


@dataclass(slots=True)
class CombinerValueUpdater(ValueUpdater[T]):
    """Combine the stored value with the value of a batch.

    >>> class Count:
    ...     def init(self, tuple): return 1
    ...     def combine(self, a, b): return a + b
    ...     def zero(self): return 0
    >>> updater = CombinerValueUpdater(Count(), 3)
    >>> updater.update(None), updater.update(4)
    (3, 7)
    """

    aggregator: CombinerAggregator[T]
    value: T

    def update(self, stored: T | None) -> T:
        return self.value if stored is None else self.aggregator.combine(stored, self.value)


class ReducerValueUpdater(ValueUpdater[T]):
    """Reduce the tuples of a batch, in order, into the stored value."""

    def __init__(self, aggregator: ReducerAggregator[T], tuples: Iterable[Any]) -> None:
        self.aggregator = aggregator
        self.tuples = tuple(tuples)

    def update(self, stored: T | None) -> T:
        return reduce(self.aggregator.reduce, self.tuples, self.aggregator.init() if stored is None else stored)


@dataclass(slots=True)
class ReplaceUpdater(ValueUpdater[T]):
    """Replace the stored value."""

    value: T | None

    def update(self, stored: T | None) -> T | None:
        return self.value


# -- ports of a state ------------------------------------------------------------------------------------------------------------


class State(Protocol):
    """One partition of a state, as used by commits. `rollback` and `close` may be missing, as they are in Storm."""

    @abstractmethod
    def begin_commit(self, attempt: TransactionAttempt, /) -> None:
        """Begin the commit of an attempt; uncommitted updates of an earlier attempt are discarded."""

    @abstractmethod
    def commit(self, attempt: TransactionAttempt, /) -> None:
        """Make all updates since `begin_commit` durable atomically.

        Raises SupersededError if a later attempt or batch has claimed the partition (another process has taken over: stop), and a
        FailedException if the batch is to be tried again as its next attempt.
        """

    def rollback(self) -> None:
        """Discard uncommitted updates, because the attempt failed in another task."""
        return

    def close(self) -> None:
        """Release the store."""
        return


class ReadOnlyMapState(State, Protocol):
    """A map of keys to values. A key is plain data, usually the values of a group, also of one: `MapGet` on a field looks for
    `("a",)`, not for `"a"`. A list equals the tuple of its values.
    """

    @abstractmethod
    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        """Return the value of each key, None for a key without a value.

        Between begin and commit the values include the batch's own updates; otherwise they are the stored ones. With `as_of` they
        are those at the end of that txid. A row keeps only the value before the txid that wrote it last, so a key that was written
        after txid `as_of + 1` raises StateConflictError; query as of a later txid.
        """

    @abstractmethod
    def items(self, as_of: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values, in the order of the encoded keys, as `multi_get` returns them."""


class MapState(ReadOnlyMapState, Protocol):
    """A map that can be updated in commits."""

    @abstractmethod
    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        """Apply the n-th updater to the n-th key, in order, and return the value after each update.

        A repeated key is updated each time. A batch that is already committed gets the values of then, from those before it.
        """

    @abstractmethod
    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the n-th key to the n-th value; None removes the key."""

    @abstractmethod
    def multi_remove(self, keys: Sequence[Any]) -> None:
        """Remove the keys."""


class ReadOnlySnapshottable(State, Protocol):
    """A single value."""

    @abstractmethod
    def get(self, as_of: int | None = None) -> Any:
        """Return the value, None if there is none; `as_of` as in `ReadOnlyMapState.multi_get`."""


class Snapshottable(ReadOnlySnapshottable, Protocol):
    """A single value that can be updated in commits."""

    @abstractmethod
    def update(self, updater: ValueUpdater[Any]) -> Any:
        """Apply the updater and return the new value."""

    @abstractmethod
    def set(self, value: Any) -> None:
        """Set the value; None removes it."""


S_co = TypeVar("S_co", bound=State, covariant=True)
S_contra = TypeVar("S_contra", bound=State, contravariant=True)


class StateFactory(Protocol[S_co]):
    """Makes the partitions of one state. It must be plain data, because it is sent to the processes of the partitions."""

    kind: StateType
    """How the state handles a replayed batch."""

    @abstractmethod
    def make_state(self, partition: int, partitions: int) -> S_co:
        """Return partition number `partition` of `partitions`.

        Its first use raises DefinitionChangedError if the stored state has another number of partitions.
        """


class StateUpdater(Protocol[S_contra]):
    """The function of `partition_persist`: writes the tuples of a batch, between `begin_commit` and `commit`."""

    @abstractmethod
    def update_state(self, state: S_contra, tuples: Sequence[Any], collector: TridentCollector, /) -> None:
        """Update the state; emitted rows go to the stream of new values. Not called for a partition without tuples."""


class QueryFunction(Protocol[S_contra]):
    """The function of `state_query`: reads a state for each tuple."""

    @abstractmethod
    def batch_retrieve(self, state: S_contra, tuples: Sequence[Any], /) -> Sequence[Any]:
        """Return one result for each tuple, in the same order."""

    @abstractmethod
    def execute(self, tuple: Any, result: Any, collector: TridentCollector, /) -> None:
        """Emit the rows for a tuple and its result."""
