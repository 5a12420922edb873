"""TridentBoltExecutor: when one task of a bolt has all of a batch, what it tells the next tasks, and when it acks.

    upstream a  0 1 2 |3|           each tuple has its number, each report says how many there were
    upstream b  0 1 . |2|           all reports in and all tuples here: the batch has arrived
    bolt        Begin Execute ... Execute   Finish   Report   Ack        finished at once
                                   Ack . . . $commit  Finish  Report  Ack    with commits, or upstream tasks that report then

Laws
- A batch has arrived when each upstream task has reported, and as many different tuples came of each as it says. A tuple, report
  or commit that comes twice is taken once, and the second is not settled. (Storm adds up all counts: one tuple lost and one
  repeated are not seen.)
- One message is held until then, so that the tree of the `$batch` is open while anything is missing; the tree of the `$commit`
  likewise. What upstream tasks report at the commit only is not waited for before it: in Storm such a batch never ends.
- A greater attempt supersedes a smaller; what comes of the smaller is failed (in Storm it is left without an answer). After a
  failure everything that comes of the attempt is failed, and no tuple is executed.
- A commit of what has not arrived here is failed: this task died since, or forgot it.
- A batch is kept for `timeout_ms` after its first message, or until its success; what it holds is then failed, in words.
- Every batch that was begun is forgotten, once. Batches of two groups have nothing to do with each other.

Source: Storm's `TridentBoltExecutor`, its `TrackedBatch` and `CoordinatedOutputCollector`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from windowing.core.guard import Guard
from windowing.errors import ConfigError, shown
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.batch_effects import Ack, Batch, Begin, Execute, Fail, Finish, Forget, Report, Task
from windowing.transactions.tracked_batch import CoordSpec, Phase, Stage, TrackedBatch

__all__ = ["TridentBoltExecutor"]

Effect = Begin | Execute | Finish | Forget | Report | Ack | Fail


class TridentBoltExecutor:
    """One task. `specs` says for each group what it waits for and whom it tells.

    in_order: whether the tuples of a task always come before its report, so that one that is missing then is lost, and the batch
    fails at once; False: it may still come, and only the timeout ends the waiting.

    Cost: O(1) for a run of tuples that comes in order, O(targets) a batch.

    >>> task = TridentBoltExecutor({"g": CoordSpec(reports={"a"}, targets=("next",))}, timeout_ms=30_000)
    >>> first = TransactionAttempt(1, 0)
    >>> [type(effect).__name__ for effect in task.tuples("g", first, "a", 0, ["to be"], now_ms=0)]
    ['Begin', 'Execute']
    >>> [type(effect).__name__ for effect in task.report("g", first, "a", 1, "m", now_ms=1)]
    ['Finish', 'Report', 'Ack', 'Forget']
    """

    def __init__(self, specs: Mapping[str, CoordSpec], timeout_ms: int = 30_000, in_order: bool = True) -> None:
        if type(timeout_ms) is not int or timeout_ms <= 0:
            raise ConfigError(f"timeout_ms is a positive whole number of milliseconds, got {shown(timeout_ms)}")
        self.specs = dict(specs)
        self.stale = 0
        self._timeout_ms = timeout_ms
        self._in_order = in_order
        self._tracked: dict[tuple[str, int], TrackedBatch] = {}
        self._done = dict.fromkeys(self.specs, 0)
        self._now_ms = 0
        self._guard = Guard()

    @property
    def held(self) -> int:
        """How many batches it remembers."""
        return len(self._tracked)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do."""
        return next(iter(self._tracked.values())).deadline_ms if self._tracked else None

    # -- messages ------------------------------------------------------------------------------------------------------

    def tuples(
        self, group: str, attempt: TransactionAttempt, sender: Task, first: int, items: Sequence[Any], now_ms: int
    ) -> Iterator[Effect]:
        """Take a run of tuples of an upstream task, whose numbers are `first`, `first` + 1, ...: it counts, from 0, those that it
        sends here in this attempt."""
        return self._enter(now_ms, self._tuples(Batch(group, attempt), sender, first, items))

    def report(
        self, group: str, attempt: TransactionAttempt, sender: Task, sent: int, message: Any, now_ms: int
    ) -> Iterator[Effect]:
        """Take what an upstream task says: it has sent this many tuples here, and that was all."""
        return self._enter(now_ms, self._report(Batch(group, attempt), sender, sent, message))

    def commit(self, group: str, attempt: TransactionAttempt, message: Any, now_ms: int) -> Iterator[Effect]:
        """Take a `$commit`; only for groups whose spec says `commits`."""
        return self._enter(now_ms, self._commit(Batch(group, attempt), message))

    def success(self, group: str, attempt: TransactionAttempt, now_ms: int) -> Iterator[Effect]:
        """Take a `$success`: the batch and all before it are forgotten. Without it the timeout does that."""
        return self._enter(now_ms, self._succeed(group, attempt.txid))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Take note of the time: fail and forget what is too old."""
        return self._enter(now_ms, self._expire())

    def _enter(self, now_ms: int, effects: Iterator[Effect]) -> Iterator[Effect]:
        self._guard.enter()
        self._now_ms = max(self._now_ms, now_ms)
        return self._guard.run(effects)

    # -- while an effect is performed ----------------------------------------------------------------------------------

    def emitted(self, batch: Batch, target: Task, tuples: int = 1) -> int:
        """Return the number of the first of so many tuples that go to a target; while Execute or Finish is performed."""
        return self._tracked[batch.group, batch.attempt.txid].outgoing.number(target, tuples)

    def failed(self, batch: Batch, cause: str) -> None:
        """Take note that the bolt raised FailedException; while Execute or Finish is performed."""
        self._tracked[batch.group, batch.attempt.txid].cause = cause or "its bolt failed it"

    # -- what they do --------------------------------------------------------------------------------------------------

    def _tuples(self, batch: Batch, sender: Task, first: int, items: Sequence[Any]) -> Iterator[Effect]:
        tracked = yield from self._track(batch)
        if tracked is None or tracked.stage in (Stage.FAILED, Stage.FINISHED):
            return
        new = tracked.input_of(sender).take(first, items)
        self.stale += len(items) - len(new)
        if new:
            yield Execute(batch, new)
            yield from self._go_on(tracked)

    def _report(self, batch: Batch, sender: Task, sent: int, message: Any) -> Iterator[Effect]:
        tracked = yield from self._track(batch)
        if tracked is None:
            yield Fail(message, f"batch {batch} comes too late")
            return
        came = tracked.input_of(sender)
        if came.sent is not None:
            self.stale += 1
            return
        came.sent = sent
        if tracked.stage is Stage.FAILED:
            yield Fail(message, tracked.cause)
            return
        if self._in_order and not came.complete:
            tracked.cause = f"{came.received} of {sent} tuples of batch {batch} came from {shown(sender)}"
        is_held = tracked.hold_report(sender, message)
        yield from self._go_on(tracked)
        if not is_held:
            yield Ack(message)

    def _commit(self, batch: Batch, message: Any) -> Iterator[Effect]:
        tracked = yield from self._track(batch)
        if tracked is not None and tracked.committing and tracked.stage is not Stage.FAILED:
            self.stale += 1
            return
        if tracked is None or tracked.stage is not Stage.ARRIVED:
            cause = tracked.cause if tracked is not None and tracked.cause else "it has not arrived here"
            yield Fail(message, f"batch {batch} cannot be committed: {cause}")
            return
        tracked.hold_commit(message)
        yield from self._go_on(tracked)

    def _succeed(self, group: str, txid: int) -> Iterator[Effect]:
        self._done[group] = max(self._done[group], txid)
        for key in [key for key in self._tracked if key[0] == group and key[1] <= txid]:
            yield from self._forget(self._tracked.pop(key), f"batch {txid} of {group} is committed")

    def _expire(self) -> Iterator[Effect]:
        while self._tracked:
            key, tracked = next(iter(self._tracked.items()))
            if tracked.deadline_ms > self._now_ms:
                return
            del self._tracked[key]
            yield from self._forget(
                tracked, f"batch {tracked.batch} took more than {self._timeout_ms} ms: {tracked.missing()}"
            )

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _track(self, batch: Batch) -> Generator[Effect, None, TrackedBatch | None]:
        """Return the tracked batch, a new one for a first message; None for what was superseded or is done."""
        group, (txid, attempt) = batch
        spec = self.specs.get(group)
        if spec is None:
            raise ConfigError(
                f"a message of the group {shown(group)} came to a task of {', '.join(map(shown, self.specs))}"
            )
        known = self._tracked.get((group, txid))
        if known is not None and known.batch.attempt.attempt == attempt:
            return known
        if txid <= self._done[group] or (known is not None and known.batch.attempt.attempt > attempt):
            self.stale += 1
            return None
        if known is not None:
            del self._tracked[group, txid]
            yield from self._forget(known, f"batch {known.batch} is superseded by attempt {attempt}")
        tracked = self._tracked[group, txid] = TrackedBatch(batch, spec, self._now_ms + self._timeout_ms)
        yield Begin(batch)
        return tracked

    def _go_on(self, tracked: TrackedBatch) -> Iterator[Effect]:
        """Do what follows from what has come by now: fail, ack what was held, finish."""
        if not tracked.cause and tracked.stage is Stage.RECEIVING and tracked.has_arrived():
            tracked.stage = Stage.ARRIVED
            if tracked.spec.waits:
                yield from map(Ack, tracked.release(Phase.BATCH))
        if not tracked.cause and tracked.stage is Stage.ARRIVED and tracked.is_to_finish():
            yield Finish(tracked.batch)
            if not tracked.cause:
                yield from self._finish(tracked)
        if tracked.cause and tracked.stage is not Stage.FAILED:
            yield from self._forget(tracked, tracked.cause)

    def _finish(self, tracked: TrackedBatch) -> Iterator[Effect]:
        tracked.stage = Stage.FINISHED
        [message] = tracked.release(Phase.COMMIT if tracked.spec.waits else Phase.BATCH)
        for target, sent in tracked.outgoing.counts.items():
            yield Report(tracked.batch.attempt, target, sent, message)
        yield Ack(message)
        yield Forget(tracked.batch)

    def _forget(self, tracked: TrackedBatch, cause: str) -> Iterator[Effect]:
        """Fail what is held and end the batch, unless it has ended."""
        if tracked.stage in (Stage.FINISHED, Stage.FAILED):
            return
        tracked.stage, tracked.cause = Stage.FAILED, cause
        for message in (*tracked.release(Phase.BATCH), *tracked.release(Phase.COMMIT)):
            yield Fail(message, cause)
        yield Forget(tracked.batch)

    def check(self) -> None:
        """Assert what "correct" means."""
        # One attempt of a batch is tracked, and none of what is done.
        assert all(key == (each.batch.group, each.batch.attempt.txid) for key, each in self._tracked.items())
        assert all(txid > self._done[group] for group, txid in self._tracked)
        # The order is that of the deadlines.
        deadlines = [each.deadline_ms for each in self._tracked.values()]
        assert deadlines == sorted(deadlines)
        for tracked in self._tracked.values():
            tracked.check()
