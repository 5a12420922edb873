"""map_state: a Trident state in a store, as what topologies take: a StateFactory.

    map_state(SqliteStore("counts.db"), "counts")  --make_state(0, partitions=2)-->  OpaqueMap > [CachedMap >] rows in the file

A factory is plain data (of a memory store: the store itself) and opens nothing until it makes a state, so that it can travel.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from windowing.errors import ConfigError, shown
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.attempt_ledger import LEDGER, AttemptLedger
from windowing.transactions.caches import CachedMap
from windowing.transactions.kinds import StateType
from windowing.transactions.maps import SnapshottableMap, map_of
from windowing.transactions.rows import BackingMap, Place, checked_state_name
from windowing.transactions.trident_state import MapState, Snapshottable
from windowing.transactions.values import StateCodec, TypedJson

__all__ = ["MapStateFactory", "SnapshotFactory", "Store", "map_state", "snapshot_state"]


class Store(Protocol):
    """Where states are kept; each state has a name of its own in it."""

    def open(self, place: Place) -> BackingMap:
        """Return the rows of one partition."""


@dataclass(frozen=True)
class MapStateFactory:
    """The partitions of one map state. `cache` rows of each are kept in memory from batch to batch, 0: none."""

    store: Store
    name: str
    kind: StateType
    codec: StateCodec
    cache: int = 0

    def __post_init__(self) -> None:
        checked_state_name(self.name)
        if isinstance(self.store, str | PurePath) or not callable(getattr(self.store, "open", None)):
            raise ConfigError(
                f"the store of the state {self.name} is a MemoryStore, a SqliteStore, ..., got {shown(self.store)}; give one, or "
                "store_of(address)"
            )
        if not isinstance(self.kind, StateType):
            raise ConfigError(
                f"the kind of the state {self.name} must be a StateType, got {shown(self.kind)}; give StateType.OPAQUE, for one"
            )
        if self.cache < 0:
            raise ConfigError(f"the state {self.name} was to cache {self.cache} rows; give 0 or more")

    def make_state(self, partition: int, partitions: int) -> MapState:
        """Return partition number `partition`, from 0, of `partitions`."""
        if not 0 <= partition < partitions:
            raise ConfigError(
                f"the state {self.name} has no partition {partition} of {partitions}; they are numbered from 0"
            )
        backing = self.store.open(Place(self.name, partition, partitions))
        return map_of(self.kind, CachedMap(backing, self.cache) if self.cache else backing, self.codec)

    def ledger(self, partitions: int) -> AttemptLedger:
        """Return where attempts are claimed, over a connection of its own; close it."""
        return AttemptLedger(self.store.open(Place(self.name, LEDGER, partitions)), self.kind, self.codec.name)

    def claim_attempt(self, txid: int, partitions: int, at_least: int = 0) -> TransactionAttempt:
        """Claim the next attempt at a batch, of this number at least, durably; for drivers without a coordinator, before the
        attempt begins."""
        with closing(self.ledger(partitions)) as ledger:
            return ledger.claim(txid, at_least)

    def last_attempt(self, partitions: int) -> TransactionAttempt | None:
        """Return the greatest attempt that has claimed or written the state, None for a new one. Cost: a read a partition."""
        found = []
        for partition in (LEDGER, *range(partitions)):
            with closing(self.store.open(Place(self.name, partition, partitions))) as rows:
                fence = rows.multi_get([]).fence
            found += [] if fence is None else [fence.attempt]
        return max(found, default=None)


@dataclass(frozen=True)
class SnapshotFactory:
    """The partitions of a state of one value; see MapStateFactory."""

    values: MapStateFactory

    @property
    def kind(self) -> StateType:
        """What the state makes of a batch that comes again."""
        return self.values.kind

    def make_state(self, partition: int, partitions: int) -> Snapshottable:
        """Return partition number `partition`, from 0, of `partitions`."""
        return SnapshottableMap(self.values.make_state(partition, partitions))

    def claim_attempt(self, txid: int, partitions: int, at_least: int = 0) -> TransactionAttempt:
        """Claim the next attempt at a batch; see MapStateFactory."""
        return self.values.claim_attempt(txid, partitions, at_least)

    def last_attempt(self, partitions: int) -> TransactionAttempt | None:
        """Return the greatest attempt that has claimed or written the state; see MapStateFactory."""
        return self.values.last_attempt(partitions)


def map_state(
    store: Store, name: str, kind: StateType = StateType.OPAQUE, *, codec: StateCodec | None = None, cache: int = 0
) -> MapStateFactory:
    """Return a map state. Raises ConfigError for a name that cannot be part of a table's or a key's.

    >>> from windowing.runtime.stores.memory import MemoryStore
    >>> from windowing.transactions.aggregators import ReplaceUpdater
    >>> from windowing.transactions.attempt import TransactionAttempt
    >>> counts, first = map_state(MemoryStore(), "counts").make_state(0, partitions=1), TransactionAttempt(1, 0)
    >>> counts.begin_commit(first); _ = counts.multi_update([("JFK",)], [ReplaceUpdater(3)]); counts.commit(first)
    >>> counts.multi_get([("JFK",), ("LGA",)])
    [3, None]
    """
    return MapStateFactory(store, name, kind, TypedJson() if codec is None else codec, cache)


def snapshot_state(
    store: Store, name: str, kind: StateType = StateType.OPAQUE, *, codec: StateCodec | None = None
) -> SnapshotFactory:
    """Return a state of one value; the arguments are those of `map_state`."""
    return SnapshotFactory(map_state(store, name, kind, codec=codec))
