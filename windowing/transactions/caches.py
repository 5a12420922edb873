"""CachedBatchReadsMap: what one batch has read and written. CachedMap: rows kept in memory from batch to batch.

    map  ->  CachedBatchReadsMap  ->  [CachedMap]  ->  the store
             one batch; one read       many batches      one partition
             for each key, one write

Laws
- A batch sees one moment of the store: readings with different fences are a conflict. A key is read once, then remembered.
- What a batch writes is seen by the batch at once, and by the store when it is flushed, all of it or nothing.
- CachedMap writes first, then remembers; a write that fails or is refused makes it forget everything. (Storm's remembers first:
  after a put that failed, the retry finds its update applied, and it never reaches the store.)
- What CachedMap remembers is as of one fence, and never outlives it: whoever decides from it decides as from the store, since the
  store refuses a claim that expects another fence.

Source: Storm's classes of these names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from windowing.errors import ConfigError, StateConflictError
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.rows import BackingMap, Claim, Fence, Place, Reading, Row

__all__ = ["CachedBatchReadsMap", "CachedMap", "RetVal"]


class RetVal(NamedTuple):
    """A row as the batch sees it; `cached`: the batch itself wrote it."""

    row: Row | None
    cached: bool


class CachedBatchReadsMap:
    """The rows of one batch over a backing map; `undo` asks for what an earlier attempt at its txid left.

    Cost: at most one round trip for each `read`, and none for keys that were read or written before.
    """

    def __init__(self, backing: BackingMap, undo: TransactionAttempt | None = None) -> None:
        self.reading: Reading | None = None
        self._backing = backing
        self._undo = undo
        self._read: dict[bytes, Row | None] = {}
        self._written: dict[bytes, Row | None] = {}

    @property
    def written(self) -> Mapping[bytes, Row | None]:
        """What the batch has written."""
        return self._written

    def read(self, keys: Iterable[bytes]) -> Reading | None:
        """Read the keys that are not known yet; return the reading, None if nothing had to be read. The first always reads."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._read]
        if self.reading is not None and not missing:
            return None
        reading = self._backing.multi_get(missing, self._undo if self.reading is None else None)
        if self.reading is None:
            self.reading = reading
        elif reading.fence != self.reading.fence:
            raise self._moved()
        self._read.update(zip(missing, reading.rows, strict=True))
        return reading

    def get(self, key: bytes) -> RetVal:
        """Return the row of a key that was read."""
        cached = key in self._written
        return RetVal(self._written[key] if cached else self._read[key], cached)

    def stored(self, key: bytes) -> Row | None:
        """Return the row of a key as it was read, whatever the batch has written since."""
        return self._read[key]

    def put(self, key: bytes, row: Row | None) -> None:
        """Write a row, for the batch to see."""
        self._written[key] = row

    def require_current(self) -> None:
        """Raise StateConflictError if what was read is only what a cache remembers: another life of the task has written since."""
        assert self.reading is not None
        if isinstance(self._backing, CachedMap):
            self._backing.forget()
            if self._backing.multi_get([]).fence != self.reading.fence:
                raise self._moved()

    def _moved(self) -> StateConflictError:
        return StateConflictError(
            f"the state {self._backing.place} was written to by somebody else while a batch read it; the batch is to be tried again"
        )

    def flush(self, rows: Mapping[bytes, Row | None], claim: Claim | None) -> Fence | None:
        """Write to the store what the batch has written, over `rows`; return what the store says."""
        return self._backing.multi_put({**rows, **self._written}, claim)


class CachedMap:
    """A backing map that remembers the `size` rows used last, least recently used first out.

    Keys without a row are remembered too. While all keys of a batch are known, it reads nothing. What a state without a fence
    (a non-transactional one) remembers is right as long as nobody else writes to its partition. Whoever does not claim what he
    read asks what is `beneath`.
    """

    def __init__(self, backing: BackingMap, size: int = 5000) -> None:
        if size < 1:
            raise ConfigError(f"a cache needs room for at least 1 row, got {size}; leave the cache out instead")
        self.size = size
        self.beneath = backing
        self._fence: Fence | None = None
        self._known = False
        self._rows: OrderedDict[bytes, Row | None] = OrderedDict()

    @property
    def place(self) -> Place:
        return self.beneath.place

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        missing = [key for key in keys if key not in self._rows]
        if self._known and not missing and not self._leaves_something(undo):
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

    def multi_put(self, rows: Mapping[bytes, Row | None], claim: Claim | None = None) -> Fence | None:
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

    def items(self) -> Iterator[tuple[bytes, Row]]:
        return self.beneath.items()

    def count(self) -> int:
        return self.beneath.count()

    def close(self) -> None:
        self.forget()
        self.beneath.close()

    def _leaves_something(self, undo: TransactionAttempt | None) -> bool:
        return undo is not None and self._fence is not None and self._fence.attempt.txid == undo.txid

    def _used(self, key: bytes) -> Row | None:
        self._rows.move_to_end(key)
        return self._rows[key]

    def _remember(self, rows: Mapping[bytes, Row | None]) -> None:
        for key, row in rows.items():
            self._rows[key] = row
            self._rows.move_to_end(key)
        while len(self._rows) > self.size:
            self._rows.popitem(last=False)

    def forget(self) -> None:
        """Read anew from now on."""
        self._rows.clear()
        self._known, self._fence = False, None

    def check(self) -> None:
        """Assert what "correct" means."""
        # Never more than was allowed.
        assert len(self._rows) <= self.size
        # Rows are remembered only beside the fence that they are as of.
        assert self._known or not self._rows
