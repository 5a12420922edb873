"""TridentSpoutExecutor: one task of a spout: which batch is emitted, which is committed, and what comes too late.

    (6:0, metadata) --EmitBatch--> Report to each target, Ack        a FailedException: Fail
    $commit 6:0     --Commit-----> Ack                               of another attempt than was emitted: Fail
    $success 6      --Succeed----> 6 and what is before is forgotten

Laws
- A committed attempt is the last one that this task emitted, wholly; so a task that has died since then fails the commit.
- A greater attempt supersedes a smaller; a smaller one that comes later is failed. A message that comes twice is taken once, and
  the second is not settled.
- What is held: one entry for each txid between the last success and the newest batch.

Source: Storm's `TridentSpoutExecutor`, with what `TridentBoltExecutor` does around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from windowing.core.guard import Guard
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.batch_effects import Ack, Commit, EmitBatch, Fail, Outgoing, Report, Succeed, Task
from windowing.transactions.spouts import SpoutBatch

__all__ = ["TridentSpoutExecutor"]

Effect = EmitBatch | Commit | Succeed | Report | Ack | Fail


class _Stage(Enum):
    BEGUN = "begun"
    EMITTED = "emitted"
    COMMITTED = "committed"
    FAILED = "failed"


class _Emission:
    """What became of one attempt."""

    __slots__ = ("attempt", "cause", "outgoing", "stage")

    def __init__(self, attempt: TransactionAttempt, targets: tuple[Task, ...]) -> None:
        self.attempt = attempt
        self.outgoing = Outgoing(targets)
        self.stage = _Stage.BEGUN
        self.cause = ""

    def has_failed(self) -> bool:
        return self.stage is _Stage.FAILED


class TridentSpoutExecutor:
    """One task. `targets` are the tasks that wait for its report. Cost: O(targets) a batch.

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

    def __init__(self, targets: Sequence[Task] = ()) -> None:
        self.targets = tuple(targets)
        self._emissions: dict[int, _Emission] = {}
        self._done = 0
        self._guard = Guard()

    @property
    def held(self) -> int:
        """How many batches it remembers."""
        return len(self._emissions)

    # -- messages ------------------------------------------------------------------------------------------------------

    def batch(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[Effect]:
        """Take a batch of the spout's coordinator."""
        return self._guard.run(self._emit(batch, skip, message))

    def commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[Effect]:
        """Take a `$commit`; only for spouts that take part in it."""
        return self._guard.run(self._commit(attempt, message))

    def success(self, attempt: TransactionAttempt) -> Iterator[Effect]:
        """Take a `$success`."""
        return self._guard.run(self._succeed(attempt))

    # -- while an effect is performed ----------------------------------------------------------------------------------

    def emitted(self, attempt: TransactionAttempt, target: Task, tuples: int = 1) -> int:
        """Return the number of the first of so many tuples that are being sent to a target; while EmitBatch is performed."""
        return self._emissions[attempt.txid].outgoing.number(target, tuples)

    def failed(self, attempt: TransactionAttempt, cause: str) -> None:
        """Take note that the emitter raised FailedException; while EmitBatch or Commit is performed."""
        emission = self._emissions[attempt.txid]
        emission.stage, emission.cause = _Stage.FAILED, cause

    # -- what they do --------------------------------------------------------------------------------------------------

    def _emit(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[Effect]:
        attempt = batch.attempt
        known = self._emissions.get(attempt.txid)
        if known is not None and known.attempt == attempt:
            return
        if attempt.txid <= self._done or (known is not None and known.attempt > attempt):
            yield Fail(message, f"batch {attempt} comes too late")
            return
        emission = self._emissions[attempt.txid] = _Emission(attempt, self.targets)
        yield EmitBatch(batch, skip)
        if emission.has_failed():
            yield Fail(message, emission.cause)
            return
        emission.stage = _Stage.EMITTED
        for target, count in emission.outgoing.counts.items():
            yield Report(attempt, target, count, message)
        yield Ack(message)

    def _commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[Effect]:
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

    def _succeed(self, attempt: TransactionAttempt) -> Iterator[Effect]:
        if attempt.txid <= self._done:
            return
        self._done = attempt.txid
        self._emissions = {txid: each for txid, each in self._emissions.items() if txid > attempt.txid}
        yield Succeed(attempt)

    def check(self) -> None:
        """Assert what "correct" means."""
        # Nothing is held of what is done, and each entry stands under its own txid.
        assert all(txid > self._done for txid in self._emissions)
        assert all(each.attempt.txid == txid for txid, each in self._emissions.items())
