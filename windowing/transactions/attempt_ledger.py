"""AttemptLedger: attempt numbers for a driver that has no coordinator to hand them out (Spark's replayed micro-batches).

    batch 5, first evaluation     -> 5:0      one fence for the whole state, beside those of its partitions
    batch 5 again, after a crash  -> 5:1

Law: no two claims are the same, whoever makes them: a claim whose answer got lost is never used, the next one is taken.
"""

from __future__ import annotations

from windowing.errors import SupersededError
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.fence import check_owner, check_unbroken
from windowing.transactions.kinds import StateType
from windowing.transactions.rows import NO_TXID, BackingMap, Claim, Fence, Owner

__all__ = ["LEDGER", "AttemptLedger"]

LEDGER = -1
"""The partition number under which a state keeps its claims."""


class AttemptLedger:
    """The claims of one state, in partition LEDGER of its store. Cost: one read and one write a claim."""

    def __init__(self, backing: BackingMap, kind: StateType, codec: str, owner: Owner | None = None) -> None:
        self._backing = backing
        self._kind = kind
        self._codec = codec
        self._owner = owner

    def claim(self, txid: int, at_least: int = 0) -> TransactionAttempt:
        """Return the next attempt at a batch, of this number at least, durably claimed before it is returned.

        Raises SupersededError if a later batch was begun or the state is another owner's, CorruptStateError if claims before it
        were lost, DefinitionChangedError if the state was of another kind or has another number of partitions.
        """
        name, since = ("", None) if self._owner is None else self._owner[:2]
        while True:
            found = self._backing.multi_get([]).fence
            mine = Fence(TransactionAttempt(txid, at_least), self._kind, self._codec, self._backing.place, name)
            check_owner(found, mine)
            if since is not None and txid > since:
                check_unbroken(found, txid - 1, mine.place)
            mine = mine._replace(attempt=self._next(found, txid, at_least))
            if self._backing.multi_put({}, Claim(found, mine)) is None:
                return mine.attempt

    def mark(self) -> None:
        """Leave a fence before the first txid, unless there is one: a state whose rows have no fence was begun."""
        found = self._backing.multi_get([]).fence
        if found is None:
            mine = Fence(TransactionAttempt(NO_TXID, 0), self._kind, self._codec, self._backing.place, rows=0)
            self._backing.multi_put({}, Claim(None, mine))

    def close(self) -> None:
        """Let go of the store."""
        self._backing.close()

    def _next(self, found: Fence | None, txid: int, at_least: int) -> TransactionAttempt:
        if found is None:
            return TransactionAttempt(txid, at_least)
        if found.attempt.txid > txid:
            raise SupersededError(
                f"batch {txid} of the state {self._backing.place.state} was to begin after batch {found.attempt.txid}: another "
                f"process went on, or the checkpoint is older than the state; begin above txid {found.attempt.txid}"
            )
        after = found.attempt.attempt + 1 if found.attempt.txid == txid else 0
        return TransactionAttempt(txid, max(after, at_least))
