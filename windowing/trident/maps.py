"""The map states: NonTransactionalMap, TransactionalMap, OpaqueMap, their caches, and SnapshottableMap, a map of one value.

                      first attempt at batch 5              another attempt at batch 5
    non-transactional adds to the stored value              adds again
    transactional     adds, writes the fence 5:0            adds in memory only, writes the fence 5:1
    opaque            adds, writes the fence 5:0            undoes 5:0 in all its rows, adds, writes the fence 5:1

    map  ->  CachedBatchReadsMap  ->  [CachedMap]  ->  the store
             one batch; one read       many batches      one partition
             for each key, one write

Laws
- The last two kinds are exactly-once under crashes, delayed attempts and duplicates; the rules are in `fence.py`.
- A batch reads one version of the store: readings with different fences are a conflict. Each key is read once and then kept. The
  reads of one `multi_update` are one round trip; the writes of a commit, with the fence, are one.
- Before `commit` nothing of a transactional or opaque batch is in the store. (A non-transactional map writes at once, as in Storm.)
- All updates of a repeated key are applied in order. (In Storm only the last one counts.)
- CachedMap writes to the store first and to its cache second; a write that fails or is refused clears the cache. (Storm's cache is
  written first: after a failed put the retry finds its update in the cache, and the update never reaches the store.) All cached
  rows belong to one fence. A decision from the cache equals one from the store, because the store refuses a claim that expects
  another fence.

Source: Storm's classes of these names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from windowing.errors import (
    BatchChangedError,
    CorruptStateError,
    DefinitionChangedError,
    StateConflictError,
    StateError,
    quote,
)
from windowing.schema.checks import StormNames
from windowing.trident.fence import (
    NO_TXID,
    BackingMap,
    Claim,
    Fence,
    Owner,
    Reading,
    Rule,
    StateRow,
    base,
    check_reading,
    judged,
    undone,
)
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.states import MapState, ReplaceUpdater, Snapshottable, StateCodec, TypedJson, ValueUpdater


class CachedBatchReadsMap:
    """One attempt at one partition: its rows over a backing map. Its rule follows from its first reading; an attempt that is
    refused stays refused.

    mine: the fence that the attempt writes. owner: the owner of the topology's states. Cost: at most one round trip per `read`,
    none for keys that were read before.
    """

    def __init__(self, mine: Fence, backing: BackingMap, owner: Owner | None = None) -> None:
        self.mine, self.txid = mine, mine.attempt.txid
        self.written: dict[bytes, StateRow] = {}
        self._backing = backing
        self._since = None if owner is None else owner.since
        self._counts = owner is not None and owner.counts
        self._reading: Reading | None = None
        self._rule: Rule | None = None
        self._read: dict[bytes, StateRow | None] = {}

    def read(self, keys: Iterable[bytes]) -> Rule:
        """Read the keys that were not read yet; return the rule of the attempt. The first call always reads, and, for an opaque
        map, also reads the rows that an earlier attempt at its txid left.
        """
        first = self._reading
        missing = [key for key in dict.fromkeys(keys) if key not in self._read]
        if first is None or missing:
            undo = self.mine.attempt if first is None and self.mine.kind is StateType.OPAQUE else None
            reading = self._backing.multi_get(missing, undo)
            if first is None:
                first = self._reading = reading
            elif reading.fence != first.fence:
                raise self._moved()
            self._read.update(zip(missing, reading.rows, strict=True))
            check_reading(reading, self.mine.place)
        if self._rule is None:
            try:
                self._rule = judged(first.fence, self.mine, self._since)
            except CorruptStateError:
                self._require_current(first)
                raise
        return self._rule

    def stored(self, key: bytes) -> StateRow | None:
        """Return the row of a key that was read as it is in the store, without the batch's own writes."""
        return self._read[key]

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key within the batch; for a batch that is already stored, its value at that time."""
        row = self.written.get(key)
        return base(self._read[key], self.txid) if row is None else row.value

    def put(self, values: Mapping[bytes, bytes | None]) -> None:
        """Set the new values of keys that were read; only this batch reads them until `commit`. A row without a value is kept,
        because it records the txid.
        """
        for key, value in values.items():
            self.written[key] = StateRow(self.txid, value, base(self._read[key], self.txid))

    def commit(self) -> None:
        """Write all rows and the fence; of a batch that is already stored, no rows. Raises the errors of `State.commit`."""
        rule = self.read(())
        reading = self._reading
        assert reading is not None
        if not rule.claim:
            return
        changes: Mapping[bytes, StateRow | None] = self.written if rule.apply else {}
        if reading.left:
            changes = {**undone(reading.left), **changes}
        mine = self.mine._replace(rows=self._counted(reading, changes))
        found = self._backing.multi_put(changes, Claim(reading.fence, mine))
        if found is not None and judged(found, self.mine, self._since).claim:
            before = "no batch" if reading.fence is None else reading.fence.attempt
            raise StateConflictError(
                f"the state {self.mine.place} went from {before} to {found.attempt} while {self.mine.attempt} "
                "was being committed; nothing was written, the batch is to be tried again"
            )

    def _counted(self, reading: Reading, changes: Mapping[bytes, StateRow | None]) -> int | None:
        """Return the number of rows after the changes, None if the number before is unknown."""
        before = reading.fence.rows if reading.fence is not None else 0 if self._counts else None
        if before is None:
            return None
        was = sum(key in reading.left or self._read[key] is not None for key in changes)
        return before - was + sum(row is not None for row in changes.values())

    def _require_current(self, reading: Reading) -> None:
        """Raise StateConflictError if a cached reading is outdated, because another instance of the task has written since."""
        if isinstance(self._backing, CachedMap):
            self._backing.forget()
            if self._backing.multi_get([]).fence != reading.fence:
                raise self._moved()

    def _moved(self) -> StateConflictError:
        return StateConflictError(
            f"the state {self._backing.place} was written to by somebody else while a batch read it; the batch is to be tried again"
        )


class CachedMap:
    """A backing map with an LRU cache of `size` rows.

    Keys without a row are cached too. While all keys of a batch are cached, the store is not read. For a state without a fence (a
    non-transactional one) the cache is correct only while no other process writes to its partition. A reader that makes no claim
    must read the map `beneath`.
    """

    def __init__(self, backing: BackingMap, size: int) -> None:
        self.size = size
        self.beneath = backing
        self.place = backing.place
        self._fence: Fence | None = None
        self._known = False
        self._rows: OrderedDict[bytes, StateRow | None] = OrderedDict()

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        missing = [key for key in keys if key not in self._rows]
        leaves = undo is not None and self._fence is not None and self._fence.attempt.txid == undo.txid
        if self._known and not missing and not leaves:
            return Reading(self._fence, [self._used(key) for key in keys])
        reading = self.beneath.multi_get(missing, undo)
        if not self._known or reading.fence != self._fence:
            self.forget()
            if len(missing) < len(keys):
                missing = list(keys)
                reading = self.beneath.multi_get(keys, undo)
        found = dict(zip(missing, reading.rows, strict=True))
        rows = [found[key] if key in found else self._used(key) for key in keys]
        self._known, self._fence = True, reading.fence
        self._remember(found)
        return Reading(reading.fence, rows, reading.left)

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        known = self._known and (claim is None or claim.expected == self._fence)
        try:
            refused = self.beneath.multi_put(rows, claim)
        except BaseException:
            self.forget()
            raise
        if refused is not None or not known:
            self.forget()
        else:
            self._fence = self._fence if claim is None else claim.fence
            self._remember(rows)
        return refused

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        return self.beneath.items()

    def count(self) -> int:
        return self.beneath.count()

    def close(self) -> None:
        self.forget()
        self.beneath.close()

    def _used(self, key: bytes) -> StateRow | None:
        self._rows.move_to_end(key)
        return self._rows[key]

    def _remember(self, rows: Mapping[bytes, StateRow | None]) -> None:
        for key, row in rows.items():
            self._rows[key] = row
            self._rows.move_to_end(key)
        while len(self._rows) > self.size:
            self._rows.popitem(last=False)

    def forget(self) -> None:
        self._rows.clear()
        self._known, self._fence = False, None

    def check(self) -> None:
        # The cache has at most `size` rows.
        assert len(self._rows) <= self.size
        # Rows are cached only together with their fence.
        assert self._known or not self._rows


# -- map states ------------------------------------------------------------------------------------------------------------------


class _Map(StormNames):
    """The common base of the three maps: keys and values as bytes, and puts as updates. owner: of the commits; a non-transactional
    map has no fence, and so ignores it.
    """

    def __init__(self, backing: BackingMap, codec: StateCodec | None = None, owner: Owner | None = None) -> None:
        self.backing, self._owner = backing, owner
        self.codec: StateCodec = TypedJson() if codec is None else codec
        # The codec of a table has keys of several columns, and values of one.
        self._encode_key: Callable[[Any], bytes] = getattr(self.codec, "encode_key", self.codec.encode)
        self._where = f"in the state {backing.place}"
        # A cache may be outdated by another process: a commit detects that, a query would not.
        self._queried = backing.beneath if isinstance(backing, CachedMap) else backing

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        raise NotImplementedError

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self.multi_update(keys, [ReplaceUpdater(value) for value in values])

    def multi_remove(self, keys: Sequence[Any]) -> None:
        self.multi_put(keys, [None] * len(keys))

    def items(self, as_of: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield all stored keys and values, in the order of the encoded keys."""
        what = f"a key of the state {self.backing.place}"
        for key, row in self.backing.items():
            value = self._as_of(row, as_of)
            if value is not None:
                yield self.codec.decode(key, what), self._decoded(value, key)

    def close(self) -> None:
        self.backing.close()

    def _updated(
        self, values: dict[bytes, bytes | None], keys: list[bytes], updaters: Sequence[ValueUpdater[Any]]
    ) -> list[Any]:
        """Apply the updaters to the values, in order; return the value after each."""
        results = []
        for key, updater in zip(keys, updaters, strict=True):
            result = updater.update(self._decoded(values[key], key))
            values[key] = None if result is None else self.codec.encode(result)
            results.append(result)
        return results

    def _encoded(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]] | None = None) -> list[bytes]:
        """Return the keys as bytes. Raises StateError if there is not one updater for each."""
        if updaters is not None and len(keys) != len(updaters):
            raise StateError(
                f"{len(keys)} keys and {len(updaters)} updates were given to the state {self.backing.place}; give one for each key"
            )
        return [self._encode_key(tuple(key) if isinstance(key, list) else key) for key in keys]

    def _as_of(self, row: StateRow, as_of: int | None) -> bytes | None:
        return row.value

    def _decoded(self, blob: bytes | None, key: bytes) -> Any:
        return None if blob is None else self.codec.decode(blob, f"the value of {key!r} {self._where}")


class NonTransactionalMap(_Map):
    """Applies every update at once, and again in a replay. It stores no earlier values, so `as_of` is ignored."""

    kind: ClassVar[StateType] = StateType.NON_TRANSACTIONAL

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        """Do nothing: updates are written at once."""

    def commit(self, attempt: TransactionAttempt) -> None:
        """Nothing: updates are written when they come."""

    def rollback(self) -> None:
        """Do nothing: written updates stay."""

    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        encoded = self._encoded(keys)
        rows = self._read(self._queried, encoded)
        return [self._decoded(rows[key], key) for key in encoded]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        encoded = self._encoded(keys, updaters)
        values = self._read(self.backing, encoded)
        results = self._updated(values, encoded, updaters)
        self.backing.multi_put({k: None if v is None else StateRow(NO_TXID, v) for k, v in values.items()})
        return results

    def _read(self, backing: BackingMap, keys: list[bytes]) -> dict[bytes, bytes | None]:
        unique = list(dict.fromkeys(keys))
        reading = backing.multi_get(unique)
        if reading.fence is not None:
            raise DefinitionChangedError(
                f"the state {self.backing.place} is {reading.fence.kind.value}: its batches are counted once, which a "
                "non-transactional map would spoil; open it as what it is, or give this state another name"
            )
        return {key: None if row is None else row.value for key, row in zip(unique, reading.rows, strict=True)}


class _FencedMap(_Map):
    """A map whose commits are fenced; its two subclasses differ in how they handle a replayed batch."""

    kind: ClassVar[StateType]
    _batch: CachedBatchReadsMap | None = None

    def own(self, owner: Owner) -> None:
        """Set the owner of the following commits."""
        self._owner = owner

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        is_attempt = isinstance(attempt, tuple) and [type(number) for number in attempt] == [int, int]
        if not is_attempt or attempt[0] <= NO_TXID or attempt[1] < 0:  # a plain tuple is accepted
            raise StateError(
                f"the state {self.backing.place} was to commit {quote(attempt)}, wanted a TransactionAttempt: txids begin at 1, "
                "attempts at 0; updates that belong to no batch (of DRPC requests, say) need a non-transactional state"
            )
        name = "" if self._owner is None else self._owner.id
        mine = Fence(TransactionAttempt(*attempt), self.kind, self.codec.name, self.backing.place, name)
        self._batch = CachedBatchReadsMap(mine, self.backing, self._owner)

    def commit(self, attempt: TransactionAttempt) -> None:
        batch = self._begun()
        if attempt != batch.mine.attempt:
            raise StateError(
                f"the state {self.backing.place} began to commit {batch.mine.attempt}, then was told to commit "
                f"{quote(attempt)}; begin and commit the same attempt"
            )
        self._batch = None
        batch.commit()

    def rollback(self) -> None:
        self._batch = None

    def items(self, as_of: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values, in the order of the encoded keys; between begin and commit as `multi_get` returns them."""
        batch = self._batch
        if batch is None or as_of is not None:
            yield from super().items(as_of)
            return
        stored = [key for key, _ in self.backing.items()]
        batch.read(stored)
        values = {key: batch.value(key) for key in sorted({*stored, *batch.written})}
        for key, value in values.items():
            if value is not None:
                yield self.codec.decode(key, f"a key of the state {self.backing.place}"), self._decoded(value, key)

    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        encoded = self._encoded(keys)
        if self._batch is None or as_of is not None:
            return self._stored(encoded, as_of)
        self._batch.read(encoded)
        return [self._decoded(self._batch.value(key), key) for key in encoded]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        batch, encoded = self._begun(), self._encoded(keys, updaters)
        if not batch.read(encoded).apply and self.kind is StateType.TRANSACTIONAL:
            self._require_stored(batch, encoded)
        values = {key: batch.value(key) for key in encoded}
        results = self._updated(values, encoded, updaters)
        batch.put(values)  # only after all updaters: one that raises leaves no part of this call
        return results

    def _require_stored(self, batch: CachedBatchReadsMap, keys: list[bytes]) -> None:
        """Raise BatchChangedError for a key that the batch did not update in the attempt whose rows are in the store."""
        for key in keys:
            row = batch.stored(key)
            if row is None or row.txid != batch.txid:
                found = self.codec.decode(key, f"a key in the state {self.backing.place}")
                raise BatchChangedError(
                    f"batch {batch.txid} updates {quote(found)} in the state {self.backing.place}, which it did not when it was "
                    "committed there: a transactional state needs the same batch again; use an opaque state, or a spout that "
                    "repeats its batches"
                )

    def _stored(self, keys: list[bytes], as_of: int | None) -> list[Any]:
        reading = self._queried.multi_get(list(dict.fromkeys(keys)))
        if reading.fence is not None:
            reading.fence.require(self.kind, self.codec.name, self.backing.place)
        check_reading(reading, self.backing.place)
        rows = dict(zip(dict.fromkeys(keys), reading.rows, strict=True))
        values = {key: None if row is None else self._as_of(row, as_of) for key, row in rows.items()}
        return [self._decoded(values[key], key) for key in keys]

    def _as_of(self, row: StateRow, as_of: int | None) -> bytes | None:
        if as_of is None or row.txid <= as_of:
            return row.value
        if row.txid > as_of + 1:
            raise StateConflictError(
                f"the state {self.backing.place} was asked for a value as of txid {as_of}, but it was written by {row.txid}; ask "
                f"as of {row.txid - 1} or later"
            )
        return row.previous

    def _begun(self) -> CachedBatchReadsMap:
        if self._batch is None:
            raise StateError(
                f"the state {self.backing.place} was updated or committed outside of a commit; call begin_commit first"
            )
        return self._batch


class TransactionalMap(_FencedMap):
    """Exactly-once if a replayed batch has the same tuples. A replay with other keys is refused before anything is written."""

    kind = StateType.TRANSACTIONAL


class OpaqueMap(_FencedMap):
    """Exactly-once for any replay, as long as each tuple is in one committed batch."""

    kind = StateType.OPAQUE


class SnapshottableMap:
    """A single value, stored as a map with one key."""

    KEY = ("$",)

    def __init__(self, values: MapState) -> None:
        self.values = values

    def own(self, owner: Owner) -> None:
        """Set the owner of the following commits."""
        own = getattr(self.values, "own", None)
        if own is not None:
            own(owner)

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        self.values.begin_commit(attempt)

    def commit(self, attempt: TransactionAttempt) -> None:
        self.values.commit(attempt)

    def rollback(self) -> None:
        self.values.rollback()

    def get(self, as_of: int | None = None) -> Any:
        return self.values.multi_get([self.KEY], as_of)[0]

    def update(self, updater: ValueUpdater[Any]) -> Any:
        return self.values.multi_update([self.KEY], [updater])[0]

    def set(self, value: Any) -> None:
        self.values.multi_put([self.KEY], [value])

    def close(self) -> None:
        self.values.close()


@dataclass(frozen=True, slots=True)
class SnapshotFactory:
    """Makes states of a single value from the map states of a factory, for `persistent_aggregate` without keys."""

    factory: Any

    @property
    def kind(self) -> StateType:
        """How the state handles a replayed batch."""
        kind: StateType = self.factory.kind
        return kind

    def make_state(self, partition: int, partitions: int) -> Snapshottable:
        """Return one partition; a state that already has a single value is returned unchanged."""
        state = self.factory.make_state(partition, partitions)
        return state if hasattr(state, "update") else SnapshottableMap(state)

    def __getattr__(self, name: str) -> Any:
        """Return the factory's other attributes: name, identity, stored, mark, claim_attempt."""
        if name.startswith("_") or name == "factory":
            raise AttributeError(name)
        return getattr(self.factory, name)

    def owned_by(self, owner: Owner) -> SnapshotFactory:
        """Return the factory with this owner as writer."""
        own = getattr(self.factory, "owned_by", None)
        return self if own is None else SnapshotFactory(own(owner))


MAPS: dict[StateType, type[NonTransactionalMap | TransactionalMap | OpaqueMap]] = {
    StateType.NON_TRANSACTIONAL: NonTransactionalMap,
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.OPAQUE: OpaqueMap,
}
"""The map class of each kind."""
