"""The coordinator and the tasks of one spout of batches: TridentSpoutCoordinator, TridentSpoutExecutor.

    $batch 6:0 --> initialize_transaction(6, metadata of 5, None)            --> stored --> (6:0, metadata) to the spout's tasks
    $batch 6:1 --> initialize_transaction(6, metadata of 5, metadata of 6)   --> stored --> (6:1, metadata)
    $success 6 --> metadata before 6 is deleted

    (6:0, metadata) --EmitBatch--> Report to each target, Ack        a FailedException: Fail
    $commit 6:0     --Commit-----> Ack                               of another attempt than was emitted: Fail
    $success 6      --Succeed----> 6 and earlier txids are dropped

Laws
- The metadata of a batch is made once and is durable before it is sent. It is made from the metadata of the batch that it builds
  on; a `$batch` that overtook that batch is failed. (In Storm it gets the metadata of the last but one, and tuples come twice.)
- A txid that was cleaned up is failed and never begun again from empty metadata: its message is too late, or the record of the
  coordinator is lost.
- A greater attempt supersedes a smaller one, which is failed if it arrives later. A second copy of a message is ignored and neither
  acked nor failed.
- Only the last attempt that this task emitted completely can be committed; so a restarted task fails the commit.
- Memory: one entry for each txid between the last success and the newest batch.

Source: Storm's `TridentSpoutCoordinator`, `TridentSpoutExecutor`, with what `TridentBoltExecutor` does around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import FailedException, ReportedFailedException
from windowing.trident.batch_effects import Ack, Commit, EmitBatch, Fail, Outgoing, Report, Succeed, TaskKey
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.spouts import BatchCoordinator, SpoutBatch
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState
from windowing.windows.guard import Guard

__all__ = [
    "SendBatch",
    "TridentSpoutCoordinator",
    "TridentSpoutExecutor",
]


class SendBatch(NamedTuple):
    """Send the batch to every task of the spout, anchored to `message`, together with `skip`."""

    batch: SpoutBatch
    skip: str | None
    message: Any


class TridentSpoutCoordinator:
    """The coordinator of one spout. `state`: the spout's records.

    Cost: one write of the store for a batch with new or changed metadata, one for a success.
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
        """Handle a `$batch`; `message` carries it and is acked or failed by the effects."""
        return self._guard.run(self._batch(attempt, after, skip, message))

    def success(self, attempt: TransactionAttempt) -> None:
        """Handle a `$success`."""
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


# -- TridentSpoutExecutor --------------------------------------------------------------------------------------------------------


SpoutEffect = EmitBatch | Commit | Succeed | Report | Ack | Fail


class _Stage(Enum):
    BEGUN = "begun"
    EMITTED = "emitted"
    COMMITTED = "committed"
    FAILED = "failed"


class _AttemptEmission:
    """The progress of one attempt."""

    __slots__ = ("attempt", "cause", "outgoing", "stage")

    def __init__(self, attempt: TransactionAttempt, targets: tuple[TaskKey, ...]) -> None:
        self.attempt = attempt
        self.outgoing = Outgoing(targets)
        self.stage = _Stage.BEGUN
        self.cause = ""

    def has_failed(self) -> bool:
        return self.stage is _Stage.FAILED


class TridentSpoutExecutor:
    """One task of a spout. `targets`: the tasks that wait for its report. Cost: O(targets) per batch.

    >>> first = SpoutBatch(TransactionAttempt(1, 0))
    >>> task = TridentSpoutExecutor(targets=["count"])
    >>> for effect in task.batch(first, None, "m"):
    ...     if isinstance(effect, EmitBatch):
    ...         number = task.emitted(first.attempt, "count")
    ...     else:
    ...         print(effect)
    Report(attempt=TransactionAttempt(txid=1, attempt=0), target='count', sent=1, message='m')
    Ack(message='m')
    """

    def __init__(self, targets: Sequence[TaskKey] = ()) -> None:
        self.targets = tuple(targets)
        self._emissions: dict[int, _AttemptEmission] = {}
        self._done = 0
        self._guard = Guard()

    @property
    def held(self) -> int:
        """The number of batches it holds."""
        return len(self._emissions)

    # -- messages ------------------------------------------------------------------------------------------------------

    def batch(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[SpoutEffect]:
        """Handle a batch from the spout's coordinator."""
        return self._guard.run(self._emit(batch, skip, message))

    def commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[SpoutEffect]:
        """Handle a `$commit`; only for spouts that take part in commits."""
        return self._guard.run(self._commit(attempt, message))

    def success(self, attempt: TransactionAttempt) -> Iterator[SpoutEffect]:
        """Handle a `$success`."""
        return self._guard.run(self._succeed(attempt))

    # -- while an effect is performed ----------------------------------------------------------------------------------

    def emitted(self, attempt: TransactionAttempt, target: TaskKey, tuples: int = 1) -> int:
        """Return the number of the first of `tuples` tuples for a target; call it while EmitBatch is performed."""
        return self._emissions[attempt.txid].outgoing.number(target, tuples)

    def failed(self, attempt: TransactionAttempt, cause: str) -> None:
        """Record that the emitter raised FailedException; call it while EmitBatch or Commit is performed."""
        emission = self._emissions[attempt.txid]
        emission.stage, emission.cause = _Stage.FAILED, cause

    # -- handlers ------------------------------------------------------------------------------------------------------

    def _emit(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[SpoutEffect]:
        attempt = batch.attempt
        known = self._emissions.get(attempt.txid)
        if known is not None and known.attempt == attempt:
            return
        if attempt.txid <= self._done or (known is not None and known.attempt > attempt):
            yield Fail(message, f"batch {attempt} comes too late")
            return
        emission = self._emissions[attempt.txid] = _AttemptEmission(attempt, self.targets)
        yield EmitBatch(batch, skip)
        if emission.has_failed():
            yield Fail(message, emission.cause)
            return
        emission.stage = _Stage.EMITTED
        for target, count in emission.outgoing.counts.items():
            yield Report(attempt, target, count, message)
        yield Ack(message)

    def _commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[SpoutEffect]:
        emission = self._emissions.get(attempt.txid)
        if emission is None or emission.attempt != attempt or emission.stage in (_Stage.BEGUN, _Stage.FAILED):
            yield Fail(message, f"the commit of {attempt} came to a task that has not emitted it")
            return
        if emission.stage is _Stage.COMMITTED:
            return
        yield Commit(attempt)
        if emission.has_failed():
            yield Fail(message, emission.cause)
            return
        emission.stage = _Stage.COMMITTED
        yield Ack(message)

    def _succeed(self, attempt: TransactionAttempt) -> Iterator[SpoutEffect]:
        if attempt.txid <= self._done:
            return
        self._done = attempt.txid
        self._emissions = {txid: each for txid, each in self._emissions.items() if txid > attempt.txid}
        yield Succeed(attempt)

    def check(self) -> None:
        """Assert the invariants."""
        # No entry is of a finished txid, and each entry is under its own txid.
        assert all(txid > self._done for txid in self._emissions)
        assert all(each.attempt.txid == txid for txid, each in self._emissions.items())
