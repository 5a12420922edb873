"""The executors of Trident's tasks as machines, and the effects that their driver performs: TridentSpoutCoordinator and
TridentSpoutExecutor for a spout of batches, TridentBoltExecutor for a bolt.

    $batch 6:0 --> initialize_transaction(6, metadata of 5, None)            --> stored --> (6:0, metadata) to the spout's tasks
    $batch 6:1 --> initialize_transaction(6, metadata of 5, metadata of 6)   --> stored --> (6:1, metadata)
    $success 6 --> metadata before 6 is deleted

    (6:0, metadata) --EmitBatch--> Report to each target, Ack        a FailedException: Fail
    $commit 6:0     --Commit-----> Ack                               of another attempt than was emitted: Fail
    $success 6      --Succeed----> 6 and earlier txids are dropped

    upstream a  0 1 2 |3|           each tuple has its number, each report the number of tuples
    upstream b  0 1 . |2|           when all reports and all tuples are here, the batch has arrived
    bolt        Begin Execute ... Execute   Finish   Report   Ack        finished at once
                                   Ack . . . $commit  Finish  Report  Ack    with commits, or upstream tasks that report then

    RECEIVING --all reports and tuples of the batch phase--> ARRIVED --commit, all of the commit phase--> FINISHED
        +-----------------------------------------------------+--- a failure, a timeout, a greater attempt ---> FAILED

A batch is (group, attempt), because each batch group numbers its own txids. `message` is the driver's object that carries a
`$batch`, a report or a `$commit`; exactly one Ack or Fail returns it. TridentSpoutCoordinator returns the batch, or raises.

Laws of spouts
- The metadata of a batch is made once and is durable before it is sent. It is made from the metadata of the batch that it builds
  on; a `$batch` that overtook that batch is failed. (In Storm it gets the metadata of the last but one, and tuples come twice.)
- A txid that was cleaned up is failed and never begun again from empty metadata: its message is too late, or the record of the
  coordinator is lost.
- A greater attempt supersedes a smaller one, which is failed if it arrives later. A second copy of a message is ignored and neither
  acked nor failed.
- Only the last attempt that this task emitted completely can be committed; so a restarted task fails the commit.
- Memory: one entry for each txid between the last success and the newest batch.

Laws of bolts
- A batch has arrived when each upstream task has reported, and as many different tuples of it arrived as it reported. A second copy
  of a tuple, report or commit is ignored and neither acked nor failed. (Storm adds up all counts, so one lost and one repeated
  tuple cancel out.)
- One message is held until then, so that the tree of the `$batch` stays open while anything is missing; the same holds for the tree
  of the `$commit`. Reports that upstream tasks send only at the commit are not waited for before it; in Storm such a batch never
  ends.
- A greater attempt supersedes a smaller one; messages of the smaller one are failed (in Storm they are neither acked nor failed).
  After a failure all messages of the attempt are failed, and no tuple is executed.
- A commit of a batch that has not arrived here is failed: this task was restarted since, or dropped the batch.
- A batch is kept for `timeout_ms` after its first message, or until its success; then its held messages are failed with a cause.
- Every batch that was begun gets exactly one Forget. Batches of different groups are independent.

Source: Storm's `TridentSpoutCoordinator`, `TridentSpoutExecutor`, `TridentBoltExecutor`, its `TrackedBatch` and
`CoordinatedOutputCollector`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from windowing.errors import FailedException, quote
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import Phase, TransactionAttempt
from windowing.trident.spouts import BatchCoordinator, SpoutBatch
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState
from windowing.windows.guard import Guard

TaskKey = Hashable
"""The driver's id of a task, for example (component, number)."""


class BatchId(NamedTuple):
    """One attempt at a batch of one group."""

    group: str
    attempt: TransactionAttempt

    def __str__(self) -> str:
        return f"{self.attempt} of {self.group}"


class Begin(NamedTuple):
    """Create the bolt's data of this batch."""

    batch: BatchId


class Execute(NamedTuple):
    """Pass the tuple to the bolt. If it raises FailedException, call `failed` before taking the next effect."""

    batch: BatchId
    item: Any


class Finish(NamedTuple):
    """Finish the batch in the bolt, after all its tuples. FailedException as in Execute."""

    batch: BatchId


class Forget(NamedTuple):
    """Discard the bolt's data of this batch; each batch that was begun gets exactly one Forget."""

    batch: BatchId


class EmitBatch(NamedTuple):
    """Call the spout's emitter. Its tuples go into the topology, each to its targets with the number from `emitted`.

    If `skip` is a cause, the tuples go to the dead letters instead, under the txid and the task; they replace those of a smaller
    attempt, never those of a greater one. On FailedException call `failed`.
    """

    batch: SpoutBatch
    skip: str | None


class Commit(NamedTuple):
    """Call the emitter's `commit`. On FailedException call `failed`."""

    attempt: TransactionAttempt


class Succeed(NamedTuple):
    """Call the emitter's `success`."""

    attempt: TransactionAttempt


class Report(NamedTuple):
    """Report to a target the number of tuples of the batch that were sent to it, anchored to `message`."""

    attempt: TransactionAttempt
    target: TaskKey
    sent: int
    message: Any


class Ack(NamedTuple):
    """Ack the message."""

    message: Any


class Fail(NamedTuple):
    """Fail the message, and with it its batch."""

    message: Any
    cause: str


def next_number(sent: dict[Any, int], target: TaskKey) -> int:
    """Count a tuple that is sent to a target, and return its number, from 0. Raises KeyError for an unknown target."""
    number = sent[target]
    sent[target] = number + 1
    return number


# -- spouts ----------------------------------------------------------------------------------------------------------------------


class TridentSpoutCoordinator:
    """The coordinator of one spout. `state`: the spout's records.

    Cost: one write of the store for a batch with new or changed metadata, and for each retry.
    """

    def __init__(self, coordinator: BatchCoordinator, state: TransactionalState) -> None:
        self._coordinator = coordinator
        self._metadata = RotatingTransactionalState(state, "meta")
        self._seen: dict[int, int] = {}
        self._done = 0

    def is_ready(self, txid: int) -> Readiness:
        """Return the spout's answer to AskReady. Raises TypeError for another value, such as the True of Storm."""
        answer = self._coordinator.is_ready(txid)
        if not isinstance(answer, Readiness):
            raise TypeError(f"is_ready returned {quote(answer)}; return Readiness.READY, WAIT (no batch now) or ENDED")
        return answer

    def batch(self, attempt: TransactionAttempt, after: TransactionAttempt | None) -> SpoutBatch | None:
        """Handle a `$batch`: return the batch to send to every task of the spout, None for a second copy of the message. Raises
        FailedException if the message, and with it the batch, fails.
        """
        txid = attempt.txid
        if self._seen.get(txid) == attempt.attempt:
            return None
        self._check_order(attempt, after)
        known, current = txid in self._metadata, self._metadata.get(txid)
        metadata = self._coordinator.initialize_transaction(txid, self._metadata.previous(txid), current)
        # The answer to a write for an earlier attempt may have been lost, and its value be stored in place of `current`.
        if not known or metadata != current or attempt.attempt > 0:
            self._metadata.put(txid, metadata)
        self._seen[txid] = attempt.attempt
        return SpoutBatch(attempt, metadata, after)

    def success(self, attempt: TransactionAttempt) -> None:
        if attempt.txid <= self._done:
            return
        self._done = attempt.txid
        self._seen = {txid: number for txid, number in self._seen.items() if txid > attempt.txid}
        self._coordinator.success(attempt.txid)  # first, because it may need the metadata after a restart
        self._metadata.cleanup_before(attempt.txid)

    def close(self) -> None:
        self._coordinator.close()

    def _check_order(self, attempt: TransactionAttempt, after: TransactionAttempt | None) -> None:
        txid = attempt.txid
        if txid <= self._done or self._metadata.is_over(txid):
            raise FailedException(
                f"batch {attempt} was asked for after {max([self._done, *self._metadata.txids()])} was: it comes too late, or the "
                "coordinator's record was lost; restore both from one copy"
            )
        if attempt.attempt < self._seen.get(txid, 0):
            raise FailedException(f"batch {attempt} comes after {txid}:{self._seen[txid]}, which supersedes it")
        if after is not None and after.txid not in self._metadata:
            raise FailedException(f"batch {attempt} came before {after}, on which it rests")


# -- TridentSpoutExecutor --------------------------------------------------------------------------------------------------------


SpoutEffect = EmitBatch | Commit | Succeed | Report | Ack | Fail


@dataclass(slots=True)
class _AttemptEmission:
    """The progress of one attempt. sent: the number of tuples by target. cause: why it failed, None if it has not."""

    attempt: TransactionAttempt
    sent: dict[TaskKey, int]
    is_emitted: bool = False
    is_committed: bool = False
    cause: str | None = None


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

    # -- messages ------------------------------------------------------------------------------------------------------

    def batch(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[SpoutEffect]:
        return self._guard.run(self._emit(batch, skip, message))

    def commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[SpoutEffect]:
        """Handle a `$commit`; only for spouts that take part in commits."""
        return self._guard.run(self._commit(attempt, message))

    def success(self, attempt: TransactionAttempt) -> Iterator[SpoutEffect]:
        return self._guard.run(self._succeed(attempt))

    # -- while an effect is performed ----------------------------------------------------------------------------------

    def emitted(self, attempt: TransactionAttempt, target: TaskKey) -> int:
        """Return the number of the next tuple for a target; call it while EmitBatch is performed."""
        return next_number(self._emissions[attempt.txid].sent, target)

    def failed(self, attempt: TransactionAttempt, cause: str) -> None:
        """Record that the emitter raised FailedException; call it while EmitBatch or Commit is performed."""
        self._emissions[attempt.txid].cause = cause

    # -- handlers ------------------------------------------------------------------------------------------------------

    def _emit(self, batch: SpoutBatch, skip: str | None, message: Any) -> Iterator[SpoutEffect]:
        attempt = batch.attempt
        known = self._emissions.get(attempt.txid)
        if known is not None and known.attempt == attempt:
            return
        if attempt.txid <= self._done or (known is not None and known.attempt > attempt):
            yield Fail(message, f"batch {attempt} comes too late")
            return
        emission = self._emissions[attempt.txid] = _AttemptEmission(attempt, dict.fromkeys(self.targets, 0))
        yield EmitBatch(batch, skip)
        if emission.cause is not None:
            yield Fail(message, emission.cause)
            return
        emission.is_emitted = True
        for target, count in emission.sent.items():
            yield Report(attempt, target, count, message)
        yield Ack(message)

    def _commit(self, attempt: TransactionAttempt, message: Any) -> Iterator[SpoutEffect]:
        emission = self._emissions.get(attempt.txid)
        if emission is None or emission.attempt != attempt or not emission.is_emitted or emission.cause is not None:
            yield Fail(message, f"the commit of {attempt} came to a task that has not emitted it")
            return
        if emission.is_committed:
            return
        yield Commit(attempt)
        emission.is_committed = emission.cause is None
        yield Ack(message) if emission.cause is None else Fail(message, emission.cause)

    def _succeed(self, attempt: TransactionAttempt) -> Iterator[SpoutEffect]:
        if attempt.txid <= self._done:
            return
        self._done = attempt.txid
        self._emissions = {txid: each for txid, each in self._emissions.items() if txid > attempt.txid}
        yield Succeed(attempt)

    def check(self) -> None:
        # No entry is of a finished txid, and each entry is under its own txid.
        assert all(txid > self._done for txid in self._emissions)
        assert all(each.attempt.txid == txid for txid, each in self._emissions.items())


# -- bolts -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordSpec:
    """What a task waits for in one batch group, and to which tasks it reports.

    reports: the upstream tasks that report in the processing phase. commits: whether the task finishes a batch at its commit.
    commit_reports: the upstream tasks that finish at the commit themselves. targets: the downstream tasks. Each upstream task is in
    one of the two, because it reports once for a batch.
    """

    reports: Collection[TaskKey] = ()
    commits: bool = False
    commit_reports: Collection[TaskKey] = ()
    targets: Collection[TaskKey] = ()

    @property
    def waits(self) -> bool:
        """Whether a batch is finished at its commit."""
        return self.commits or bool(self.commit_reports)


@dataclass(slots=True)
class Incoming:
    """The tuples of one upstream task that arrived: all below `next`, and those in `ahead`. `sent`: the number it reported.

    >>> came = Incoming()
    >>> came.take(0), came.take(2), came.take(2), came.received, came.take(1), came.next
    (True, True, False, 2, True, 3)
    """

    next: int = 0
    ahead: set[int] = field(default_factory=set)
    sent: int | None = None

    def take(self, number: int) -> bool:
        """Record a tuple; return whether it is new. Cost: O(1) if they come in order."""
        if number < self.next or number in self.ahead:
            return False
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return True

    @property
    def received(self) -> int:
        return self.next + len(self.ahead)

    @property
    def complete(self) -> bool:
        """Whether all reported tuples have arrived."""
        return self.sent == self.next and not self.ahead


class BatchStage(Enum):
    """The stage of a tracked batch, see the drawing at the top."""

    RECEIVING = "receiving"
    ARRIVED = "arrived"
    FINISHED = "finished"
    FAILED = "failed"


class TrackedBatch:
    """One attempt. It holds a message in each phase, so that the phase's tree stays open. `cause`: why it failed, or will fail."""

    __slots__ = ("batch", "cause", "committing", "deadline_ms", "held", "incoming", "sent", "spec", "stage")

    def __init__(self, batch: BatchId, spec: CoordSpec, deadline_ms: int) -> None:
        self.batch = batch
        self.spec = spec
        self.deadline_ms = deadline_ms
        self.stage = BatchStage.RECEIVING if spec.reports else BatchStage.ARRIVED
        self.incoming = {task: Incoming() for task in (*spec.reports, *spec.commit_reports)}
        self.sent = dict.fromkeys(spec.targets, 0)
        self.committing = False
        self.cause = ""
        self.held: dict[Phase, Any] = {}

    def has_arrived(self) -> bool:
        return all(self.incoming[task].complete for task in self.spec.reports)

    def is_to_finish(self) -> bool:
        """Whether an arrived batch is also complete for its commit phase."""
        if self.spec.commits and not self.committing:
            return False
        return all(self.incoming[task].complete for task in self.spec.commit_reports)

    def hold_report(self, sender: TaskKey, message: Any) -> bool:
        """Hold the message of a report until its phase is over; return False if another message is or will be held instead."""
        phase = Phase.COMMIT if sender in self.spec.commit_reports else Phase.PROCESS
        if phase in self.held or (phase is Phase.COMMIT and self.spec.commits):
            return False
        self.held[phase] = message
        return True

    def release(self, phase: Phase) -> list[Any]:
        """Return and release the message held for a phase; an empty list if there is none."""
        return [self.held.pop(phase)] if phase in self.held else []

    def missing(self) -> str:
        open_tasks = [task for task, came in self.incoming.items() if not came.complete]
        if not open_tasks:
            return "its commit did not come"
        return f"not all has come from {', '.join(sorted(map(quote, open_tasks)))}"

    def check(self) -> None:
        ended = self.stage in (BatchStage.FINISHED, BatchStage.FAILED)
        # An ended batch holds no message; a batch with a cause has ended.
        assert not (ended and self.held)
        assert (self.stage is BatchStage.FAILED) == bool(self.cause)
        # A task that waits for the commit holds no message of the processing phase once that phase is complete.
        assert self.stage is BatchStage.RECEIVING or not self.spec.waits or Phase.PROCESS not in self.held
        # A batch marked as arrived is complete, and it is not finished without its commit.
        assert self.stage not in (BatchStage.ARRIVED, BatchStage.FINISHED) or self.has_arrived()
        assert self.stage is not BatchStage.FINISHED or self.is_to_finish()
        assert not (self.stage is BatchStage.ARRIVED and self.is_to_finish())


# -- TridentBoltExecutor ---------------------------------------------------------------------------------------------------------


BoltEffect = Begin | Execute | Finish | Forget | Report | Ack | Fail


class TridentBoltExecutor:
    """One task. `specs`: for each batch group what the task waits for and to which tasks it reports.

    The tuples of a task arrive before its report, so a tuple that is missing at the report is lost, and the batch fails at once.

    Cost: O(1) for a tuple in order, O(targets) per batch.

    >>> task = TridentBoltExecutor({"g": CoordSpec(reports={"a"}, targets=("next",))}, timeout_ms=30_000)
    >>> first = BatchId("g", TransactionAttempt(1, 0))
    >>> [type(effect).__name__ for effect in task.arrive(first, "a", 0, "to be", now_ms=0)]
    ['Begin', 'Execute']
    >>> [type(effect).__name__ for effect in task.report(first, "a", 1, "m", now_ms=1)]
    ['Finish', 'Report', 'Ack', 'Forget']
    """

    def __init__(self, specs: Mapping[str, CoordSpec], timeout_ms: int = 30_000) -> None:
        self.specs = specs
        self._timeout_ms = timeout_ms
        self._tracked: dict[tuple[str, int], TrackedBatch] = {}
        self._done = dict.fromkeys(specs, 0)
        self._now_ms = 0
        self._guard = Guard()

    def next_deadline_ms(self) -> int | None:
        return next(iter(self._tracked.values())).deadline_ms if self._tracked else None

    # -- messages ------------------------------------------------------------------------------------------------------

    def arrive(self, batch: BatchId, sender: TaskKey, number: int, item: Any, now_ms: int) -> Iterator[BoltEffect]:
        """Handle a tuple of an upstream task, which numbers the tuples that it sends here in this attempt from 0."""
        return self._enter(now_ms, self._arrive(batch, sender, number, item))

    def report(self, batch: BatchId, sender: TaskKey, sent: int, message: Any, now_ms: int) -> Iterator[BoltEffect]:
        """Handle the report of an upstream task with the total number of tuples that it sent here."""
        return self._enter(now_ms, self._report(batch, sender, sent, message))

    def commit(self, batch: BatchId, message: Any, now_ms: int) -> Iterator[BoltEffect]:
        """Handle a `$commit`; only for groups whose spec has `commits`."""
        return self._enter(now_ms, self._commit(batch, message))

    def success(self, batch: BatchId, now_ms: int) -> Iterator[BoltEffect]:
        """Handle a `$success`: drop the batch and all earlier ones. Without it they are dropped by the timeout."""
        return self._enter(now_ms, self._succeed(batch))

    def tick(self, now_ms: int) -> Iterator[BoltEffect]:
        """Set the time; fail and drop batches that have timed out."""
        return self._enter(now_ms, self._expire())

    def _enter(self, now_ms: int, effects: Iterator[BoltEffect]) -> Iterator[BoltEffect]:
        self._guard.enter()
        self._now_ms = max(self._now_ms, now_ms)
        return self._guard.run(effects)

    # -- while an effect is performed ----------------------------------------------------------------------------------

    def emitted(self, batch: BatchId, target: TaskKey) -> int:
        """Return the number of the next tuple for a target; call it while Execute or Finish is performed."""
        return next_number(self._tracked[batch.group, batch.attempt.txid].sent, target)

    def failed(self, batch: BatchId, cause: str) -> None:
        """Record that the bolt raised FailedException; call it while Execute or Finish is performed."""
        self._tracked[batch.group, batch.attempt.txid].cause = cause or "its bolt failed it"

    # -- handlers ------------------------------------------------------------------------------------------------------

    def _arrive(self, batch: BatchId, sender: TaskKey, number: int, item: Any) -> Iterator[BoltEffect]:
        tracked = yield from self._track(batch)
        if tracked is None or tracked.stage in (BatchStage.FAILED, BatchStage.FINISHED):
            return
        if tracked.incoming[sender].take(number):
            yield Execute(batch, item)
            yield from self._go_on(tracked)

    def _report(self, batch: BatchId, sender: TaskKey, sent: int, message: Any) -> Iterator[BoltEffect]:
        tracked = yield from self._track(batch)
        if tracked is None:
            yield Fail(message, f"batch {batch} comes too late")
            return
        came = tracked.incoming[sender]
        if came.sent is not None:
            return
        came.sent = sent
        if tracked.stage is BatchStage.FAILED:
            yield Fail(message, tracked.cause)
            return
        if not came.complete:
            tracked.cause = f"{came.received} of {sent} tuples of batch {batch} came from {quote(sender)}"
        is_held = tracked.hold_report(sender, message)
        yield from self._go_on(tracked)
        if not is_held:
            yield Ack(message)

    def _commit(self, batch: BatchId, message: Any) -> Iterator[BoltEffect]:
        tracked = yield from self._track(batch)
        if tracked is not None and tracked.committing and tracked.stage is not BatchStage.FAILED:
            return
        if tracked is None or tracked.stage is not BatchStage.ARRIVED:
            cause = tracked.cause if tracked is not None and tracked.cause else "it has not arrived here"
            yield Fail(message, f"batch {batch} cannot be committed: {cause}")
            return
        tracked.committing, tracked.held[Phase.COMMIT] = True, message
        yield from self._go_on(tracked)

    def _succeed(self, batch: BatchId) -> Iterator[BoltEffect]:
        group, (txid, _) = batch
        self._done[group] = max(self._done[group], txid)
        for key in [key for key in self._tracked if key[0] == group and key[1] <= txid]:
            yield from self._forget(self._tracked.pop(key), f"batch {txid} of {group} is committed")

    def _expire(self) -> Iterator[BoltEffect]:
        while self._tracked:
            key, tracked = next(iter(self._tracked.items()))
            if tracked.deadline_ms > self._now_ms:
                return
            del self._tracked[key]
            yield from self._forget(
                tracked, f"batch {tracked.batch} took more than {self._timeout_ms} ms: {tracked.missing()}"
            )

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _track(self, batch: BatchId) -> Generator[BoltEffect, None, TrackedBatch | None]:
        """Return the tracked batch, a new one for a first message; None for a superseded or finished attempt."""
        group, (txid, attempt) = batch
        known = self._tracked.get((group, txid))
        if known is not None and known.batch.attempt.attempt == attempt:
            return known
        if txid <= self._done[group] or (known is not None and known.batch.attempt.attempt > attempt):
            return None
        if known is not None:
            del self._tracked[group, txid]
            yield from self._forget(known, f"batch {known.batch} is superseded by attempt {attempt}")
        tracked = self._tracked[group, txid] = TrackedBatch(batch, self.specs[group], self._now_ms + self._timeout_ms)
        yield Begin(batch)
        return tracked

    def _go_on(self, tracked: TrackedBatch) -> Iterator[BoltEffect]:
        """Make the transitions that are possible now: fail, ack held messages, finish."""
        if not tracked.cause and tracked.stage is BatchStage.RECEIVING and tracked.has_arrived():
            tracked.stage = BatchStage.ARRIVED
            if tracked.spec.waits:
                yield from map(Ack, tracked.release(Phase.PROCESS))
        if not tracked.cause and tracked.stage is BatchStage.ARRIVED and tracked.is_to_finish():
            yield Finish(tracked.batch)
            if not tracked.cause:
                yield from self._finish(tracked)
        if tracked.cause and tracked.stage is not BatchStage.FAILED:
            yield from self._forget(tracked, tracked.cause)

    def _finish(self, tracked: TrackedBatch) -> Iterator[BoltEffect]:
        tracked.stage = BatchStage.FINISHED
        [message] = tracked.release(Phase.COMMIT if tracked.spec.waits else Phase.PROCESS)
        for target, sent in tracked.sent.items():
            yield Report(tracked.batch.attempt, target, sent, message)
        yield Ack(message)
        yield Forget(tracked.batch)

    def _forget(self, tracked: TrackedBatch, cause: str) -> Iterator[BoltEffect]:
        """Fail held messages and end the batch, unless it has ended."""
        if tracked.stage in (BatchStage.FINISHED, BatchStage.FAILED):
            return
        tracked.stage, tracked.cause = BatchStage.FAILED, cause
        for message in (*tracked.release(Phase.PROCESS), *tracked.release(Phase.COMMIT)):
            yield Fail(message, cause)
        yield Forget(tracked.batch)

    def check(self) -> None:
        # At most one attempt per batch is tracked, and none of finished batches.
        assert all(key == (each.batch.group, each.batch.attempt.txid) for key, each in self._tracked.items())
        assert all(txid > self._done[group] for group, txid in self._tracked)
        # Batches are in the order of their deadlines.
        deadlines = [each.deadline_ms for each in self._tracked.values()]
        assert deadlines == sorted(deadlines)
        for tracked in self._tracked.values():
            tracked.check()
