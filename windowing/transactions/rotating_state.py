"""RotatingTransactionalState: one value per txid, of those txids that may still be asked for.

    stored     5   6   7          previous(7) is that of 6         cleanup_before(6): 5 goes, 6 stays: what comes next rests on it
               |   +-- under way
               +------ committed

Laws
- A value is durable before `put` returns, so that after a restart the same txid has the same value.
- A value is written only over what this object read or wrote itself, and while the one before, on which it rests, is the same.
- `cleanup_before(txid)` is called when `txid` is done: what is smaller is never asked for again; what is asked for all the same is
  a message that comes too late, or a coordinator that has lost its record. `is_over` says so, and nothing starts from nothing.

Source: Storm's `RotatingTransactionalState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windowing.errors import CorruptStateError, StateConflictError, shown
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["RotatingTransactionalState", "put_all"]


class RotatingTransactionalState:
    """The values of one name, by txid; all are in memory too, a few more than batches are under way. Cost: one write of the
    store for each change.

    >>> from windowing.transactions.transactional_state import MemoryRecordStore
    >>> state = TransactionalState(MemoryRecordStore(), "spout")
    >>> metas = RotatingTransactionalState(state, "meta")
    >>> metas.put(5, "a"), metas.put(6, "b"), metas.previous(6), metas.last()
    (None, None, 'a', 'b')
    >>> metas.cleanup_before(6)
    >>> RotatingTransactionalState(state, "meta").txids(), metas.is_over(5), metas.is_over(6)
    ([6], True, False)
    """

    def __init__(self, state: TransactionalState, name: str) -> None:
        self._state = state
        self._name = name
        self._values: dict[int, Any] = {}
        self.reload()

    def reload(self) -> None:
        """Read all values anew, where another task may have written them. Raises CorruptStateError."""
        values = self._state.read_all(self._name)
        for text in values:
            if not (text.isascii() and text.isdigit() and text == str(int(text))):
                raise CorruptStateError(
                    f"{self._state.root}/{self._name} holds {shown(text)}, wanted txids only; put the store back from a copy, "
                    "nothing was reset"
                )
        self._values = {int(text): value for text, value in values.items()}

    def txids(self) -> list[int]:
        """Return the txids that have a value, ascending."""
        return sorted(self._values)

    def __contains__(self, txid: object) -> bool:
        return txid in self._values

    def __len__(self) -> int:
        return len(self._values)

    def get(self, txid: int) -> Any:
        """Return the value of a txid, None if there is none."""
        return self._values.get(txid)

    def previous(self, txid: int) -> Any:
        """Return the value of the greatest txid below, None if there is none."""
        return self._values[max(below)] if (below := self._below(txid)) else None

    def last(self) -> Any:
        """Return the value of the greatest txid, None if there is none."""
        return self._values[max(self._values)] if self._values else None

    def is_over(self, txid: int) -> bool:
        """Whether a txid is smaller than all that have a value: it was cleaned up, or never was."""
        return bool(self._values) and txid < min(self._values)

    def put(self, txid: int, value: Any) -> None:
        """Make the value of a txid durable, in place of the one that it had."""
        put_all({self: value}, txid)

    def cleanup_before(self, txid: int) -> None:
        """Forget what is smaller than `txid`, except where nothing would be left: the last value is what the next rests on."""
        gone = sorted(self._below(txid))
        if len(gone) == len(self._values):
            gone = gone[:-1]
        self._state.delete(self._entry(each) for each in gone)
        for each in gone:
            del self._values[each]

    def _below(self, txid: int) -> list[int]:
        return [each for each in self._values if each < txid]

    def _entry(self, txid: int) -> str:
        return f"{self._name}/{txid}"

    def check(self, live: Iterable[int] = ()) -> None:
        """Assert what "correct" means."""
        # Memory and store agree.
        assert [str(txid) for txid in sorted(self._values, key=str)] == self._state.names(self._name)
        assert all(self._state.read(self._entry(txid)) == value for txid, value in self._values.items())
        # What may be asked for is there.
        assert set(live) <= set(self._values)


def put_all(values: Mapping[RotatingTransactionalState, Any], txid: int) -> None:
    """Make values of several names durable in one write; all are of one TransactionalState.

    Raises StateConflictError if another life of this task has written one of them, or the one before it; they are read again then.
    """
    if not values:
        return
    state = next(iter(values))._state
    try:
        changes = {rotating._entry(txid): value for rotating, value in values.items()}
        state.write(changes, [rotating._entry(max(below)) for rotating in values if (below := rotating._below(txid))])
    except StateConflictError:
        for rotating in values:
            rotating.reload()
        raise
    for rotating, value in values.items():
        rotating._values[txid] = value
