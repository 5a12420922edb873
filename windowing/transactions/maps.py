"""The map states: NonTransactionalMap, TransactionalMap, OpaqueMap, and SnapshottableMap, a map of one value.

                      batch 5 comes for the first time     it comes again, as another attempt
    non-transactional adds to what is there                 adds again
    transactional     adds, writes the fence 5:0            keeps what is there, writes the fence 5:1
    opaque            adds, writes the fence 5:0            undoes 5:0 wherever it wrote, adds, writes the fence 5:1

Laws
- The last two are exactly-once, whoever crashes, comes late or comes twice: `fence.py` decides, and says why.
- Reads of one `multi_update` are one round trip; the writes of a commit are one, with the fence.
- Until `commit` nothing of a transactional or opaque batch is in the store. (A non-transactional map writes at once, as Storm's.)
- All updates of a key are applied, in order, however often it comes. (Storm's last one wins.)

Source: Storm's classes of these names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from windowing.errors import (
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    StateConflictError,
    StateError,
    shown,
)
from windowing.transactions.aggregators import ReplaceUpdater, ValueUpdater
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.caches import CachedBatchReadsMap, CachedMap
from windowing.transactions.fence import Rule, base, check_reading, check_repeated, judged, undone, written
from windowing.transactions.kinds import StateType
from windowing.transactions.rows import NO_TXID, BackingMap, Claim, Fence, Owner, Reading, Row
from windowing.transactions.trident_state import MapState
from windowing.transactions.values import StateCodec, TypedJson

__all__ = ["NonTransactionalMap", "OpaqueMap", "SnapshottableMap", "TransactionalMap"]


class _Map:
    """What the three maps share: keys and values as bytes, and puts as updates."""

    def __init__(self, backing: BackingMap, codec: StateCodec | None = None) -> None:
        self.backing = backing
        self.codec: StateCodec = TypedJson() if codec is None else codec
        # A cache may be behind another process: a commit finds that out, a query would not.
        self._queried = backing.beneath if isinstance(backing, CachedMap) else backing

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        raise NotImplementedError

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self.multi_update(keys, [ReplaceUpdater(value) for value in values])

    def multi_remove(self, keys: Sequence[Any]) -> None:
        self.multi_put(keys, [None] * len(keys))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all stored keys and values, in the order of the keys' bytes."""
        what = f"a key of the state {self.backing.place}"
        for key, row in self.backing.items():
            if row.value is not None:
                yield self.codec.decode(key, what), self._decoded(row.value, key)

    def close(self) -> None:
        self.backing.close()

    def _updated(
        self, values: dict[bytes, bytes | None], keys: list[bytes], updaters: Sequence[ValueUpdater[Any]]
    ) -> list[Any]:
        """Apply the updaters to the values, in order; return the value after each."""
        results = []
        for key, updater in zip(keys, updaters, strict=True):
            result = updater.update(self._decoded(values[key], key))
            values[key] = self._value(result)
            results.append(result)
        return results

    def _encoded(self, keys: Sequence[Any]) -> list[bytes]:
        return [self.codec.encode(tuple(key) if isinstance(key, list) else key) for key in keys]

    def _value(self, value: Any) -> bytes | None:
        return None if value is None else self.codec.encode(value)

    def _decoded(self, blob: bytes | None, key: bytes) -> Any:
        return (
            None if blob is None else self.codec.decode(blob, f"the value of {key!r} in the state {self.backing.place}")
        )

    def _paired(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[bytes]:
        if len(keys) != len(updaters):
            raise StateError(
                f"{len(keys)} keys and {len(updaters)} updates were given to the state {self.backing.place}; give one for each key"
            )
        return self._encoded(keys)


class NonTransactionalMap(_Map):
    """Every update is applied when it comes, and again when it comes again; it keeps no earlier values, so `as_of` is ignored."""

    kind: ClassVar[StateType] = StateType.NON_TRANSACTIONAL

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        """Nothing: updates are written when they come."""

    def commit(self, attempt: TransactionAttempt) -> None:
        """Nothing: updates are written when they come."""

    def rollback(self) -> None:
        """Nothing: what is written stays."""

    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        encoded = self._encoded(keys)
        rows = self._read(self._queried, encoded)
        return [self._decoded(rows[key], key) for key in encoded]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        encoded = self._paired(keys, updaters)
        values = self._read(self.backing, encoded)
        results = self._updated(values, encoded, updaters)
        self.backing.multi_put({k: None if v is None else Row(NO_TXID, v) for k, v in values.items()})
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


class _Batch:
    """One attempt at one partition. What it may do follows from its first reading, always anew: who is refused stays refused."""

    def __init__(self, mine: Fence, backing: BackingMap, owner: Owner | None) -> None:
        self.mine = mine
        self._since = None if owner is None else owner.since
        self._counts = owner is not None and owner.counts
        self.txid = mine.attempt.txid
        self.rows = CachedBatchReadsMap(backing, mine.attempt if mine.kind is StateType.OPAQUE else None)
        self.again: set[bytes] = set()

    def read(self, keys: Sequence[bytes]) -> Rule:
        """Read what is not known yet; return what the attempt may do."""
        reading = self.rows.read(keys)
        if reading is not None:
            check_reading(reading, self.mine.place)
        assert self.rows.reading is not None
        try:
            return judged(self.rows.reading.fence, self.mine, self._since)
        except CorruptStateError:
            self.rows.require_current()
            raise

    def value(self, key: bytes, rule: Rule) -> bytes | None:
        """Return the value of a key that was read, as the batch sees it; of one that is in the store already, what it saw then."""
        row, cached = self.rows.get(key)
        if not rule.apply and row is not None and row.txid == self.txid and key not in self.again:
            return row.previous
        if cached:
            return None if row is None else row.value
        return base(row, self.txid, rule)

    def put(self, key: bytes, value: bytes | None, rule: Rule) -> None:
        """Give a key that was read its new value."""
        self.rows.put(key, written(self.rows.stored(key), self.txid, value, rule))

    def commit(self) -> None:
        """Write everything and the fence, unless it is written already. Raises as `State.commit` says."""
        rule = self.read(())
        reading = self.rows.reading
        assert reading is not None
        if not rule.claim:
            return
        back = undone(reading.left) if rule.undo else {}
        mine = self.mine._replace(rows=self._counted(reading, {**back, **self.rows.written}))
        found = self.rows.flush(back, Claim(reading.fence, mine))
        if found is not None and judged(found, self.mine, self._since).claim:
            raise StateConflictError(
                f"the state {self.mine.place} went from {_attempt(reading.fence)} to {found.attempt} while {self.mine.attempt} "
                "was being committed; nothing was written, the batch is to be tried again"
            )

    def _counted(self, reading: Reading, changes: Mapping[bytes, Row | None]) -> int | None:
        """Return how many rows there are after the changes, None if nobody has counted those before."""
        before = reading.fence.rows if reading.fence is not None else 0 if self._counts else None
        if before is None:
            return None
        was = sum(key in reading.left or self.rows.stored(key) is not None for key in changes)
        return before - was + sum(row is not None for row in changes.values())


class _FencedMap(_Map):
    """A map whose commits are fenced; the two kinds differ in what a batch that comes again does."""

    kind: ClassVar[StateType]

    def __init__(self, backing: BackingMap, codec: StateCodec | None = None, owner: Owner | None = None) -> None:
        super().__init__(backing, codec)
        self._owner = owner
        self._batch: _Batch | None = None

    def own(self, owner: Owner) -> None:
        """Commit as this owner from now on."""
        self._owner = owner

    def begin_commit(self, attempt: TransactionAttempt) -> None:
        if not _is_attempt(attempt):
            raise StateError(
                f"the state {self.backing.place} was to commit {shown(attempt)}, wanted a TransactionAttempt: txids begin at 1, "
                "attempts at 0; updates that belong to no batch (of DRPC requests, say) need a non-transactional state"
            )
        name = "" if self._owner is None else self._owner.id
        mine = Fence(TransactionAttempt(*attempt), self.kind, self.codec.name, self.backing.place, name)
        self._batch = _Batch(mine, self.backing, self._owner)

    def commit(self, attempt: TransactionAttempt) -> None:
        batch = self._begun()
        if attempt != batch.mine.attempt:
            raise StateError(
                f"the state {self.backing.place} began to commit {batch.mine.attempt}, then was told to commit "
                f"{shown(attempt)}; begin and commit the same attempt"
            )
        self._batch = None
        batch.commit()

    def rollback(self) -> None:
        self._batch = None

    def multi_get(self, keys: Sequence[Any], as_of: int | None = None) -> list[Any]:
        encoded = self._encoded(keys)
        if self._batch is None or as_of is not None:
            return self._stored(encoded, as_of)
        rule = self._batch.read(encoded)
        return [self._decoded(self._batch.value(key, rule), key) for key in encoded]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[ValueUpdater[Any]]) -> list[Any]:
        batch, encoded = self._begun(), self._paired(keys, updaters)
        rule = batch.read(encoded)
        if not rule.apply:
            return self._committed(batch, encoded, rule)
        values = {key: batch.value(key, rule) for key in encoded}
        results = self._updated(values, encoded, updaters)
        for key, value in values.items():  # after all of them: an updater that raises leaves nothing of this call
            batch.put(key, value, rule)
        return results

    def _committed(self, batch: _Batch, keys: list[bytes], rule: Rule) -> list[Any]:
        """Return the values of a batch whose rows are in the store already."""
        for key in keys:
            if self.kind is StateType.TRANSACTIONAL:
                check_repeated(batch.rows.stored(key), batch.txid, key, self.backing.place)
        batch.again.update(keys)
        return [self._decoded(batch.value(key, rule), key) for key in keys]

    def _stored(self, keys: list[bytes], as_of: int | None) -> list[Any]:
        reading = self._queried.multi_get(list(dict.fromkeys(keys)))
        if reading.fence is not None:
            reading.fence.require(self.kind, self.codec.name, self.backing.place)
        check_reading(reading, self.backing.place)
        rows = dict(zip(dict.fromkeys(keys), reading.rows, strict=True))
        return [self._decoded(self._as_of(rows[key], as_of), key) for key in keys]

    def _as_of(self, row: Row | None, as_of: int | None) -> bytes | None:
        if row is None or as_of is None or row.txid <= as_of:
            return None if row is None else row.value
        if row.txid > as_of + 1:
            raise StateConflictError(
                f"the state {self.backing.place} was asked for a value as of txid {as_of}, but it was written by {row.txid}; ask "
                f"as of {row.txid - 1} or later"
            )
        return row.previous

    def _begun(self) -> _Batch:
        if self._batch is None:
            raise StateError(
                f"the state {self.backing.place} was updated or committed outside of a commit; call begin_commit first"
            )
        return self._batch


class TransactionalMap(_FencedMap):
    """Exactly-once for batches that come again as they were. Refuses, without a write, one that has other keys."""

    kind = StateType.TRANSACTIONAL


class OpaqueMap(_FencedMap):
    """Exactly-once whatever comes again, as long as each tuple is in one committed batch."""

    kind = StateType.OPAQUE


class SnapshottableMap:
    """A map with one key, as one value."""

    KEY = ("$",)

    def __init__(self, values: MapState) -> None:
        self.values = values

    def own(self, owner: Owner) -> None:
        """Commit as this owner from now on."""
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


MAPS: dict[StateType, type[NonTransactionalMap | TransactionalMap | OpaqueMap]] = {
    StateType.NON_TRANSACTIONAL: NonTransactionalMap,
    StateType.TRANSACTIONAL: TransactionalMap,
    StateType.OPAQUE: OpaqueMap,
}
"""The map of each kind."""


def map_of(
    kind: StateType, backing: BackingMap, codec: StateCodec | None = None, owner: Owner | None = None
) -> MapState:
    """Return the map of this kind over a backing map; a non-transactional one has no fence, so nobody owns it."""
    if kind not in MAPS:
        raise ConfigError(f"a state's kind is a StateType, got {shown(kind)}; give StateType.OPAQUE, for one")
    made = MAPS[kind]
    return made(backing, codec, owner) if issubclass(made, _FencedMap) else made(backing, codec)


def _is_attempt(attempt: Any) -> bool:
    """Return whether it is a txid from 1 and an attempt from 0; a plain tuple of them will do."""
    if not isinstance(attempt, tuple) or [type(number) for number in attempt] != [int, int]:
        return False
    return bool(attempt[0] > NO_TXID and attempt[1] >= 0)


def _attempt(fence: Fence | None) -> str:
    return "no batch" if fence is None else str(fence.attempt)
