"""MasterTask: carries out what MasterBatchCoordinator says, and tells it what the acker says of the trees.

    Save      the record, durable                     AskReady  the coordinators of all spouts, answered at once
    $batch    to the coordinator of every spout       $commit   to committer emitters and to groups that commit
    $success  to all                                  Stop      a FailedException ends the run

Laws: the rows of a batch reach its sinks after its last commit was acked and before the record says so. The time of a batch, and
that it is the one that drains the windows, are durable before it is sent (where there are windows): an attempt after a restart
moves the windows as the one before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from windowing.acking.ledger import Acked, Failed, Reason
from windowing.errors import DrainedCheckpointError, FailedException
from windowing.runtime.tasks import Task
from windowing.runtime.trident.emitting import CoordinatorTask
from windowing.runtime.trident.hub import Begun, Commit, Success, TridentHub
from windowing.runtime.trident.kept import keep_definition, windows_of
from windowing.topology.context import TaskContext
from windowing.topology.trident.fields import Row
from windowing.topology.trident.plan import TridentPlan
from windowing.transactions import batch_effects as effects
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator import MasterBatchCoordinator
from windowing.transactions.coordinator_record import CoordinatorRecord, StoredRecord
from windowing.transactions.coordinator_rules import (
    AskReady,
    CoordinatorConfig,
    Emit,
    Readiness,
    Save,
    Status,
    Stop,
    Stream,
)
from windowing.transactions.rotating_state import RotatingTransactionalState
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["MasterTask", "SinkWriter"]

SinkWriter = Callable[[int, list[Row]], Any]
"""A function of (txid, rows) that takes the rows of a committed batch. After a crash it may be called again with a txid."""


class MasterTask(Task):
    """until_end: whether a spout of single tuples that has nothing has ended. drains: whether the end closes the windows.

    committers, readers: the inboxes of those that take part in the commit, and of all, with their batch groups.
    """

    def __init__(
        self, hub: TridentHub, id: int, plan: TridentPlan, config: CoordinatorConfig, state: TransactionalState
    ) -> None:
        super().__init__(hub, TaskContext(plan.name, 0, 1, plan.config), id, deque())
        self.trident = hub
        self.spouts: list[CoordinatorTask] = []
        self.committers: list[tuple[deque[Any], str]] = []
        self.readers: list[tuple[deque[Any], str]] = []
        self.writers: Mapping[str, SinkWriter] = {}
        self.until_end = self.drains = False
        self.begun = 0
        self._plan, self._config, self._state = plan, config, state
        self._stored = StoredRecord(state)
        self._windowed = bool(windows_of(plan))
        self._roots: dict[int, tuple[Stream, TransactionAttempt]] = {}
        self._machine: MasterBatchCoordinator | None = None
        self._stamps: RotatingTransactionalState

    @property
    def machine(self) -> MasterBatchCoordinator:
        """The machine, once the task is open."""
        assert self._machine is not None
        return self._machine

    # -- the loop ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        record = self._stored.load()
        keep_definition(self._plan, self._state, begun=record != CoordinatorRecord())
        self._machine = MasterBatchCoordinator(self._config, record)
        self._stamps = RotatingTransactionalState(self._state, "stamps")

    def tick(self) -> None:
        self._coordinate(self.machine.tick(self.hub.now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.machine.next_deadline_ms()

    def activate(self) -> None:
        """Begin batches again."""
        self._coordinate(self.machine.activate(self.hub.now_ms))

    def deactivate(self) -> None:
        """Begin no more batches; those that are processed are committed."""
        self._coordinate(self.machine.deactivate(self.hub.now_ms))

    def handle(self, message: Acked | Failed) -> None:
        stream, attempt = self._roots.pop(message.root)
        machine, now_ms = self.machine, self.hub.now_ms
        cause = self.trident.fell(message.root)
        if isinstance(message, Failed):
            if message.reason is Reason.TIMEOUT:
                cause = f"its {stream.value} took too long; it was last seen in {message.seen}"
            stale = machine.stale
            found = machine.failed(stream, attempt, now_ms, cause)
            self.trident.trident.failures += machine.stale == stale
            self._coordinate(found)
            return
        if stream is Stream.COMMIT and (attempt, Status.COMMITTING) in machine.under_way:
            self._hand_out(attempt)
        self._coordinate(machine.acked(stream, attempt, now_ms))

    # -- effects -------------------------------------------------------------------------------------------------------

    def _coordinate(self, found: Iterator[Any]) -> None:
        asked = self._perform(found)
        while asked is not None:
            asked = self._perform(self.machine.answered(asked, self._answers(asked), self.hub.now_ms))

    def _perform(self, found: Iterator[Any]) -> int | None:
        """Carry out effects; return the txid whose readiness is asked for, if any is."""
        asked = None
        for effect in found:
            if isinstance(effect, Save):
                self._stored.save(effect.record)
            elif isinstance(effect, AskReady):
                asked = effect.txid
            elif isinstance(effect, Stop):
                raise FailedException(str(effect))
            elif effect.stream is Stream.BATCH:
                self._begin(effect)
            elif effect.stream is Stream.COMMIT:
                posts = [
                    _poster(inbox, Commit, effects.Batch(group, effect.attempt)) for inbox, group in self.committers
                ]
                self._plant(effect, posts)
            else:
                self._succeed(effect.attempt)
        return asked

    def _begin(self, effect: Emit) -> None:
        attempt = effect.attempt
        self.begun += 1
        self.trident.stamps[attempt.txid] = self._stamp(attempt.txid)
        posts = [_poster(spout.inbox, Begun, attempt, effect.after, effect.skip) for spout in self.spouts]
        self._plant(effect, posts)

    def _plant(self, effect: Emit, posts: Sequence[Callable[[Any], None]]) -> None:
        self._roots[self.trident.plant(self.id, posts)] = effect.stream, effect.attempt

    def _hand_out(self, attempt: TransactionAttempt) -> None:
        """Give the rows of a committed batch to its sinks."""
        result, rows = self.trident.trident, self.trident.release(attempt)
        result.batches += 1
        for name, kept in result.sinks.items():
            kept += rows.get(name, [])
        for name, write in self.writers.items():
            write(attempt.txid, rows.get(name, []))

    def _succeed(self, attempt: TransactionAttempt) -> None:
        for inbox, group in self.readers:
            inbox.append(Success(effects.Batch(group, attempt)))
        stamps = self.trident.stamps
        self.trident.stamps = {txid: stamp for txid, stamp in stamps.items() if txid >= attempt.txid}
        if self._windowed:
            self._stamps.cleanup_before(attempt.txid)

    # -- time, and the end of the input --------------------------------------------------------------------------------

    def _stamp(self, txid: int) -> tuple[int, bool]:
        """Return the time of a batch, and whether it drains; what was said once is said again."""
        if not self._windowed:
            return self.hub.now_ms, False
        if txid not in self._stamps:
            self._stamps.put(txid, [self.hub.now_ms, False])
        now_ms, drains = self._stamps.get(txid)
        return now_ms, drains

    def _answers(self, txid: int) -> list[Readiness]:
        """Return what the spouts say; at the end there is one batch more, in which windows fire what is left."""
        answers = [spout.is_ready(txid, self.until_end) for spout in self.spouts]
        if not self._windowed:
            return answers
        ended = all(answer is Readiness.ENDED for answer in answers)
        drained = self._drained()
        if drained is not None and drained < txid:
            if Readiness.READY in answers:
                raise DrainedCheckpointError(
                    f"the windows of topology {self.context.component!r} were drained by batch {drained} at the end of the input, "
                    "and a spout has more; begin with new records and new states, or run(drain=False) where more may come"
                )
            return [Readiness.ENDED]
        if ended and (self.drains or drained is not None):
            self._stamps.put(txid, [self.hub.now_ms, True])
            return [Readiness.READY]
        if drained is not None and Readiness.READY in answers:  # it was to be the last, but nothing of it was sent
            self._stamps.put(txid, [self.hub.now_ms, False])
        return answers

    def _drained(self) -> int | None:
        """Return the txid of the batch that drains, None if there is none yet."""
        last = self._stamps.last()
        return max(self._stamps.txids()) if last is not None and last[1] else None


def _poster(inbox: deque[Any], kind: Callable[..., Any], *what: Any) -> Callable[[Any], None]:
    return lambda anchors: inbox.append(kind(*what, anchors))
