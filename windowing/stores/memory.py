"""MemoryStore: states in the memory of one process, for the lifetime of the store object.

Source: Storm's `MemoryMapState`, whose maps are global and shared between topologies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import TransactionAttempt


class _Partition:
    def __init__(self) -> None:
        self.lock = Lock()
        self.fence: Fence | None = None
        self.rows: dict[bytes, StateRow] = {}


class MemoryStore:
    """Holds all partitions of all states that are opened from this object. Thread-safe.

    >>> from windowing.trident import PartitionId
    >>> MemoryStore().open(PartitionId("counts", 0, 1)).multi_get([b"key"]).rows
    [None]
    """

    in_this_process = True

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], _Partition] = {}

    def __repr__(self) -> str:
        return "MemoryStore()"

    def open(self, place: PartitionId) -> MemoryMap:
        """Return the rows of one partition."""
        return MemoryMap(place, self._partitions.setdefault((place.state, place.partition), _Partition()))

    def identity(self, state: str) -> tuple[Any, ...]:
        """Return the identity of the rows of a state: this object and the name."""
        return "memory", id(self), state


class MemoryMap:
    """One partition (BackingMap)."""

    def __init__(self, place: PartitionId, partition: _Partition) -> None:
        self.place = place
        self._partition = partition

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        with self._partition.lock:
            fence, rows = self._partition.fence, self._partition.rows
            left = {}
            if undo is not None and fence is not None and fence.attempt.txid == undo.txid and fence.attempt < undo:
                left = {key: row for key, row in rows.items() if row.txid == undo.txid}
            return Reading(fence, [rows.get(key) for key in keys], left)

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        with self._partition.lock:
            if claim is not None:
                if self._partition.fence != claim.expected:
                    return self._partition.fence
                self._partition.fence = claim.fence
            for key, row in rows.items():
                if row is None:
                    self._partition.rows.pop(key, None)
                else:
                    self._partition.rows[key] = row
            return None

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        with self._partition.lock:
            rows = sorted(self._partition.rows.items())
        yield from rows

    def count(self) -> int:
        with self._partition.lock:
            return len(self._partition.rows)

    def close(self) -> None:
        """Do nothing: the rows live as long as the store."""
