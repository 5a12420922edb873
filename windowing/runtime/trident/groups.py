"""GroupTask: one task of a group. TridentBoltExecutor says when, the Subtopology does the work, this carries both out.

    Tuples, Reported, Commit, Success --> TridentBoltExecutor --Begin Execute Finish Forget--> GroupBatch --> rows on their way
                                                |---Report, Ack, Fail---> inboxes, acker                  --> rows of sinks, answers

A batch's tuples are worked on when all have come, in the order of the tasks that sent them: which of them was faster must not
decide which partition a tuple is shuffled to, or another attempt would give a state's partitions other tuples than before.
Windows are kept where the coordinator keeps its record, each time they move on: so a run that is started again goes on with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from windowing.acking.anchors import anchored
from windowing.errors import FailedException, ReportedFailedException, cause_of
from windowing.runtime.tasks import Task
from windowing.runtime.trident.hub import Commit, Piece, Reported, Sending, Success, TridentHub, Tuples
from windowing.topology.context import TaskContext
from windowing.topology.trident.coordination import coord_specs
from windowing.topology.trident.outlets import Outlet
from windowing.topology.trident.plan import GroupPlan, TridentPlan
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.subtopology import Emitted, GroupBatch, Subtopology
from windowing.transactions import batch_effects as effects
from windowing.transactions.bolt_executor import TridentBoltExecutor
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["GroupTask"]


class GroupTask(Task):
    """states: the partitions that it holds, by id. windows: where its windows are kept; None where nothing outlives the run.

    requests: the batch groups that are requests of DRPC, which are no transactions.
    """

    def __init__(
        self,
        hub: TridentHub,
        id: int,
        plan: TridentPlan,
        group: GroupPlan,
        task: int,
        *,
        states: Mapping[str, Any],
        windows: TransactionalState,
        requests: frozenset[str],
        timeout_ms: int,
    ) -> None:
        self.me = (group.id, task)
        inbox: deque[Any] = hub.inboxes[self.me]
        super().__init__(hub, TaskContext(group.id, task, group.parallelism, plan.config), id, inbox)
        self.trident = hub
        self.executor = TridentBoltExecutor(coord_specs(plan, group), timeout_ms)
        self.subtopology = Subtopology(plan, group.id, task, states)
        self._plan, self._windows, self._requests = plan, windows, requests
        self._outlets = [Outlet(plan, exchange, task) for exchange in plan.out_of(group.id)]
        self._live: dict[effects.Batch, tuple[GroupBatch, Sending]] = {}
        self._came: dict[effects.Batch, list[Piece]] = {}

    def open(self) -> None:
        self.subtopology.prepare()
        for node, window in self.subtopology.windows().items():
            stored = self._windows.read(str(node))
            if stored is not None:
                window.restore(stored)

    def close(self) -> None:
        self.subtopology.cleanup()

    # -- messages ------------------------------------------------------------------------------------------------------

    def handle(self, message: Tuples | Reported | Commit | Success) -> None:
        group = message.batch.group
        for effect in self._entered(message):
            self._perform(group, effect)

    def _entered(self, message: Tuples | Reported | Commit | Success) -> Iterator[Any]:
        executor, (group, attempt), now_ms = self.executor, message.batch, self.hub.now_ms
        if isinstance(message, Tuples):
            return executor.tuples(group, attempt, message.sender, message.first, message.pieces, now_ms)
        if isinstance(message, Reported):
            return executor.report(group, attempt, message.sender, message.sent, message.anchors, now_ms)
        if isinstance(message, Commit):
            return executor.commit(group, attempt, message.anchors, now_ms)
        return executor.success(group, attempt, now_ms)

    def tick(self) -> None:
        for effect in self.executor.tick(self.hub.now_ms):
            self._perform("", effect)

    def next_deadline_ms(self) -> int | None:
        return self.executor.next_deadline_ms()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, group: str, effect: Any) -> None:
        if isinstance(effect, effects.Begin):
            self._begin(effect.batch)
        elif isinstance(effect, effects.Execute):
            self._came[effect.batch].extend(effect.items)
        elif isinstance(effect, effects.Finish):
            self._finish(effect.batch)
        elif isinstance(effect, effects.Report):
            anchors = anchored([effect.message], self.hub.edge)
            batch = effects.Batch(group, effect.attempt)
            self.trident.inboxes[effect.target].append(Reported(batch, self.me, effect.sent, anchors))  # type: ignore[index]
        elif isinstance(effect, effects.Ack):
            self.hub.ack(effect.message, self.context.component)
        elif isinstance(effect, effects.Fail):
            self.trident.refuse(effect.message, self.context.component, effect.cause)
        else:
            del self._live[effect.batch], self._came[effect.batch]

    def _begin(self, batch: effects.Batch) -> None:
        is_request = batch.group in self._requests
        facts = Batch(("request", batch.attempt.txid)) if is_request else self.trident.batch(batch.attempt)
        sending = Sending(
            self.trident,
            self._plan,
            self.me,
            self._outlets,
            batch,
            facts,
            lambda target: self.executor.emitted(batch, target),
        )
        self._live[batch] = self.subtopology.start_batch(batch.group, facts), sending
        self._came[batch] = []

    def _finish(self, batch: effects.Batch) -> None:
        """Do the work and send what comes of it; a FailedException fails the attempt."""
        found, sending = self._live[batch]
        try:
            for exchange, _, rows, largest in sorted(
                self._came[batch], key=lambda piece: (piece.exchange.id, piece.task)
            ):
                if rows is None:
                    found.learn(exchange, largest or {})
                else:
                    found.execute(exchange, rows)
            self._commit(found)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self.hub.report(*self.me, problem)
            self.executor.failed(batch, f"{self.context.component}, task {self.me[1]}: {cause_of(problem)}")
            return
        finally:
            for error in self.subtopology.take_reports():
                self.hub.report(*self.me, error)
        self._deliver(batch, sending, found.take())
        sending.tell_time()

    def _commit(self, batch: GroupBatch) -> None:
        batch.finish_batch()
        batch.commit_batch()
        windows = self.subtopology.windows()
        if batch.batch_group not in self._requests and windows:
            self._windows.write({str(node): window.snapshot() for node, window in windows.items()})

    def _deliver(self, batch: effects.Batch, sending: Sending, emitted: Emitted) -> None:
        for exchange, rows in emitted.exchanges.items():
            sending.rows(exchange, rows)
        if batch.group in self._requests:
            self.trident.answers.setdefault(batch, []).extend(emitted.answers)
        elif emitted.sinks:
            self.trident.hold(batch.attempt, emitted.sinks)
