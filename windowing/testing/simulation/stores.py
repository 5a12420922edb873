"""The stores of a run: the library's own in memory, with steps at which a task dies, writes that come late, lost answers, damage.

    task --write--> | step | the store, and what is checked of the write | step | --> task
                       |
                       +-- the task is gone, and the write is done later, as it was: that of a task which was held up

Whoever checks reads the stores beneath, past all faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from windowing.runtime.stores.memory import MemoryMap, MemoryStore
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.rows import Claim, Fence, Place, Reading, Row
from windowing.transactions.transactional_state import MemoryRecordStore

if TYPE_CHECKING:
    from windowing.testing.simulation.world import World

__all__ = ["Records", "States"]


class Records:
    """The RecordStore of coordinators and spouts. `damaged` holds what a damaged record was; `taken` what was read of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.beneath = MemoryRecordStore()
        self.damaged: dict[str, bytes] = {}
        self.taken: set[str] = set()

    def read(self, path: str) -> bytes | None:
        blob: bytes | None = self._world.in_store(partial(self.beneath.read, path), is_write=False)
        if path in self.damaged:
            self.taken.add(path)
        return blob

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        record = self._world.checks.saving
        return bool(self._world.in_store(partial(self._write, dict(changes), dict(expected), record)))

    def paths(self, prefix: str) -> list[str]:
        return sorted(self.beneath.paths(prefix))

    def _write(self, changes: dict[str, bytes | None], expected: dict[str, bytes | None], record: Any) -> bool:
        if not self.beneath.write(changes, expected):
            return False
        for path in changes:
            self.damaged.pop(path, None)
        if record is not None:
            self._world.checks.saved(record)
        return True

    def damage(self, chance: Random) -> str | None:
        """Damage a record: flip a bit, cut it, or put another's in its place. Return which, None if there is none."""
        blobs = self.beneath.blobs
        if not blobs or self.damaged:
            return None
        path = chance.choice(sorted(blobs))
        was, place = blobs[path], chance.randrange(len(blobs[path]))
        others = [blob for name, blob in sorted(blobs.items()) if name != path]
        flipped = was[:place] + bytes([was[place] ^ 1 << chance.randrange(8)]) + was[place + 1 :]
        self.damaged[path] = was
        blobs[path] = chance.choice([flipped, was[:place], *others[:1]])
        return path

    def repair(self) -> None:
        """Put back from a copy what is damaged, as the error says."""
        self.beneath.blobs.update(self.damaged)
        self.damaged.clear()
        self.taken.clear()


class States:
    """The Store of the states."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.beneath = MemoryStore()

    def open(self, place: Place) -> StateRows:
        """Return the rows of one partition."""
        return StateRows(self._world, self.beneath.open(place))


class StateRows:
    """One partition (BackingMap)."""

    def __init__(self, world: World, beneath: MemoryMap) -> None:
        self._world = world
        self._beneath = beneath
        self.place = beneath.place

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        reading: Reading = self._world.in_store(partial(self._beneath.multi_get, list(keys), undo), is_write=False)
        return reading

    def multi_put(self, rows: Mapping[bytes, Row | None], claim: Claim | None = None) -> Fence | None:
        refused: Fence | None = self._world.in_store(partial(self._put, dict(rows), claim))
        return refused

    def _put(self, rows: dict[bytes, Row | None], claim: Claim | None) -> Fence | None:
        refused = self._beneath.multi_put(rows, claim)
        if refused is None:
            self._world.checks.wrote(self.place, claim)
        return refused

    def items(self) -> Iterator[tuple[bytes, Row]]:
        return self._beneath.items()

    def count(self) -> int:
        return self._beneath.count()

    def close(self) -> None:
        self._beneath.close()
