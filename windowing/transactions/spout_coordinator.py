"""TridentSpoutCoordinator: the metadata of each batch of one spout, made once, durable before it is sent, the same in each attempt.

    $batch 6:0 --> initialize_transaction(6, metadata of 5, None)            --> stored --> (6:0, metadata) to the spout's tasks
    $batch 6:1 --> initialize_transaction(6, metadata of 5, metadata of 6)   --> stored --> (6:1, metadata)
    $success 6 --> what is before 6 is forgotten

Laws
- A batch that rests on another has that one's metadata: a `$batch` that overtook what it rests on is failed. (In Storm it takes the
  metadata of the last but one, and tuples come twice.)
- A txid that was cleaned up is failed, not begun anew with the metadata of nothing: it is a message that comes too late, or the
  record of the coordinator is lost.
- An attempt smaller than one that was seen is failed; one that comes twice is sent once.

Source: Storm's `TridentSpoutCoordinator`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from windowing.core.guard import Guard
from windowing.errors import FailedException, ReportedFailedException
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.batch_effects import Ack, Fail
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.rotating_state import RotatingTransactionalState
from windowing.transactions.spouts import BatchCoordinator, SpoutBatch
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["SendBatch", "TridentSpoutCoordinator"]


class SendBatch(NamedTuple):
    """Send this to every task of the spout, anchored to `message`; `skip` goes along."""

    batch: SpoutBatch
    skip: str | None
    message: Any


class TridentSpoutCoordinator:
    """The coordinator of one spout. `state` is the spout's part of the store.

    Cost: one write of the store for a batch whose metadata is new or another, one for a success.
    """

    def __init__(self, coordinator: BatchCoordinator, state: TransactionalState) -> None:
        self._coordinator = coordinator
        self._metadata = RotatingTransactionalState(state, "meta")
        self._seen: dict[int, int] = {}
        self._done = 0
        self._guard = Guard()

    def is_ready(self, txid: int) -> Readiness:
        """Return the spout's answer to AskReady."""
        return self._coordinator.is_ready(txid)

    def batch(
        self, attempt: TransactionAttempt, after: TransactionAttempt | None, skip: str | None, message: Any
    ) -> Iterator[SendBatch | Ack | Fail]:
        """Take a `$batch`; `message` is what carries it, and comes back to be acked or failed."""
        return self._guard.run(self._batch(attempt, after, skip, message))

    def success(self, attempt: TransactionAttempt) -> None:
        """Take a `$success`."""
        self._guard.enter()
        if attempt.txid <= self._done:
            return
        self._done = attempt.txid
        self._seen = {txid: number for txid, number in self._seen.items() if txid > attempt.txid}
        self._metadata.cleanup_before(attempt.txid)
        self._coordinator.success(attempt.txid)

    def close(self) -> None:
        """End."""
        self._coordinator.close()

    def _batch(
        self, attempt: TransactionAttempt, after: TransactionAttempt | None, skip: str | None, message: Any
    ) -> Iterator[SendBatch | Ack | Fail]:
        if self._seen.get(attempt.txid) == attempt.attempt:
            return
        try:
            self._check_order(attempt, after)
            metadata = self._metadata_of(attempt.txid)
        except FailedException as problem:
            yield Fail(message, str(problem), problem if isinstance(problem, ReportedFailedException) else None)
            return
        self._seen[attempt.txid] = attempt.attempt
        yield SendBatch(SpoutBatch(attempt, metadata, after), skip, message)
        yield Ack(message)

    def _check_order(self, attempt: TransactionAttempt, after: TransactionAttempt | None) -> None:
        txid = attempt.txid
        if txid <= self._done or self._metadata.is_over(txid):
            raise FailedException(
                f"batch {attempt} was asked for after {max(self._done, *self._metadata.txids())} was: it comes too late, or the "
                "coordinator's record was lost; restore both from one copy"
            )
        if attempt.attempt < self._seen.get(txid, 0):
            raise FailedException(f"batch {attempt} comes after {txid}:{self._seen[txid]}, which supersedes it")
        if after is not None and after.txid not in self._metadata:
            raise FailedException(f"batch {attempt} came before {after}, on which it rests")

    def _metadata_of(self, txid: int) -> Any:
        known, current = txid in self._metadata, self._metadata.get(txid)
        metadata = self._coordinator.initialize_transaction(txid, self._metadata.previous(txid), current)
        if not known or metadata != current:
            self._metadata.put(txid, metadata)
        return metadata
