"""The ports of Trident's state: what topologies, updaters and queries know of a state, whatever it is made of.

    begin_commit(5:0)   multi_update(keys, updaters)   commit(5:0)      per partition, in txid order, in the commit phase
    multi_get(keys)                                                     at any time, for queries

Law: every attempt of every batch begins and commits at every partition of the state, also where it has no tuples.

Source: Storm's `State`, `ReadOnlyMapState`, `MapState`, `ReadOnlySnapshottable`, `Snapshottable`, `StateFactory`, `StateUpdater`,
`QueryFunction`. Storm commits by txid; here the attempt is told too. In `state.py` is the state of Storm's stateful bolts, which is
another thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from windowing.transactions.aggregators import TridentCollector, ValueUpdater
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.kinds import StateType

__all__ = [
    "MapState",
    "QueryFunction",
    "ReadOnlyMapState",
    "ReadOnlySnapshottable",
    "Snapshottable",
    "State",
    "StateFactory",
    "StateUpdater",
]


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
