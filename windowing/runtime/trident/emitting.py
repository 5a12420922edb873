"""The tasks of a spout of batches, and of requests: CoordinatorTask, EmitterTask, RequestTask.

    $batch --> CoordinatorTask (TridentSpoutCoordinator: metadata, durable) --> EmitterTask (TridentSpoutExecutor: rows, reports)
    ask() ---> RequestTask: one row, reports, a tree of its own; answered when that is acked

In a batch that drains no spout emits: it was made by the cluster, to tell the windows that the input is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from windowing.acking.anchors import anchored
from windowing.acking.ledger import Acked, Failed
from windowing.errors import CheckpointError, FailedException, ReportedFailedException, StateError, cause_of
from windowing.runtime.tasks import Task
from windowing.runtime.trident.hub import (
    Begun,
    Commit,
    DeadBatch,
    Emission,
    Reported,
    Sending,
    Success,
    TridentHub,
)
from windowing.runtime.trident.spouts import SingleTuples
from windowing.topology.context import TaskContext
from windowing.topology.trident.code import TridentOutput, raised
from windowing.topology.trident.coordination import targets_of
from windowing.topology.trident.fields import Row
from windowing.topology.trident.graph import SpoutNode
from windowing.topology.trident.outlets import Outlet
from windowing.topology.trident.plan import TridentPlan
from windowing.topology.trident.processors import Batch
from windowing.transactions import batch_effects as effects
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.spout_coordinator import SendBatch, TridentSpoutCoordinator
from windowing.transactions.spout_executor import TridentSpoutExecutor
from windowing.transactions.spouts import ITridentSpout, SpoutBatch, SpoutContext
from windowing.transactions.transactional_state import TransactionalState

__all__ = ["CoordinatorTask", "EmitterTask", "RequestTask", "guarded"]


def guarded(who: str, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a spout's code; what it raises is blamed on it, but for what fails the batch, and what the stores say."""
    try:
        return call(*arguments)
    except (CheckpointError, StateError):
        raise
    except BaseException as problem:
        raise raised(who, problem, where) from problem


class CoordinatorTask(Task):
    """The coordinator of one spout; `emitters` are the inboxes of the spout's tasks."""

    def __init__(
        self, hub: TridentHub, context: TaskContext, id: int, spout: ITridentSpout, state: TransactionalState
    ) -> None:
        super().__init__(hub, context, id, deque())
        self.emitters: list[deque[Any]] = []
        self.singles: list[SingleTuples] = []
        self._trident = hub
        self._who = f"spout {context.component!r}"
        self._spout, self._state = spout, state
        self._machine: TridentSpoutCoordinator | None = None
        self._rested = False

    @property
    def machine(self) -> TridentSpoutCoordinator:
        """The machine, once the task is open."""
        assert self._machine is not None
        return self._machine

    def open(self) -> None:
        context = SpoutContext(self._state.at("emitter"), 0, self.context.tasks, self.context, self._report)
        coordinator = guarded(self._who, "in get_coordinator", self._spout.get_coordinator, context)
        self._machine = TridentSpoutCoordinator(coordinator, self._state.at("coordinator"))

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()

    def is_ready(self, txid: int, until_end: bool) -> Readiness:
        """Return what the spout says of a new batch. One of single tuples has ended when it is over, and with `until_end` when it
        had nothing last; else it is left alone for once then."""
        if self.singles and all(single.over or (single.dry and until_end) for single in self.singles):
            return Readiness.ENDED
        if self.singles and all(single.over or single.dry for single in self.singles):
            self._rested = not self._rested
            if self._rested:
                return Readiness.WAIT
        answer: Readiness = guarded(self._who, "in is_ready", self.machine.is_ready, txid)
        return answer

    def handle(self, message: Begun | Success) -> None:
        attempt = message.batch.attempt if isinstance(message, Success) else message.attempt
        _, drains = self._trident.stamps.get(attempt.txid, (0, False))
        if isinstance(message, Success):
            if not drains:
                guarded(self._who, f"in success of {attempt}", self.machine.success, attempt)
        elif drains:
            self._send(SpoutBatch(attempt, None, message.after), None, message.anchors)
            self.hub.ack(message.anchors, self.context.component)
        else:
            self._begin(message)

    def _begin(self, message: Begun) -> None:
        machine_effects = self.machine.batch(message.attempt, message.after, message.skip, message.anchors)
        for effect in guarded(self._who, f"on the metadata of {message.attempt}", list, machine_effects):
            if isinstance(effect, SendBatch):
                self._send(effect.batch, effect.skip, effect.message)
            elif isinstance(effect, effects.Ack):
                self.hub.ack(effect.message, self.context.component)
            else:
                if effect.reported is not None:
                    self._report(effect.reported)
                self._trident.refuse(effect.message, self.context.component, effect.cause)

    def _report(self, error: BaseException) -> None:
        self.hub.report(self.context.component, 0, error)

    def _send(self, batch: SpoutBatch, skip: str | None, anchors: Any) -> None:
        for inbox in self.emitters:
            inbox.append(Emission(batch, skip, anchored([anchors], self.hub.edge)))


class _Source(Task):
    """What emitters and requests share: a place in the plan, and who reads what they emit."""

    def __init__(self, hub: TridentHub, id: int, plan: TridentPlan, node: SpoutNode, task: int) -> None:
        group = plan.group_of(node.number)
        self.me = (group.id, task)
        super().__init__(hub, TaskContext(group.id, task, group.parallelism, plan.config), id, hub.inboxes[self.me])
        self.trident, self.plan, self.node = hub, plan, node
        self.group = plan.batch_groups[node.number]
        self.targets = targets_of(plan, group.id, self.group)
        self._outlets = [Outlet(plan, exchange, task) for exchange in plan.out_of(group.id)]

    def sending(self, batch: effects.Batch, facts: Batch, number: Any) -> Sending:
        """Return the way out for one attempt."""
        return Sending(self.trident, self.plan, self.me, self._outlets, batch, facts, number)

    def post_report(self, batch: effects.Batch, target: Any, sent: int, anchors: Any) -> None:
        """Tell a target how many pieces it was sent."""
        self.trident.inboxes[target].append(Reported(batch, self.me, sent, anchors))


class EmitterTask(_Source):
    """One task of a spout."""

    def __init__(
        self,
        hub: TridentHub,
        id: int,
        plan: TridentPlan,
        node: SpoutNode,
        task: int,
        *,
        spout: ITridentSpout,
        state: TransactionalState,
    ) -> None:
        super().__init__(hub, id, plan, node, task)
        self.machine = TridentSpoutExecutor(self.targets)
        self._spout, self._state = spout, state
        self._who = f"spout {node.source.name!r}"
        self._emitter: Any = None

    def open(self) -> None:
        context = SpoutContext(
            self._state.at("emitter"), self.context.task, self.context.tasks, self.context, self._report
        )
        self._emitter = guarded(self._who, "when it was opened", self._spout.get_emitter, context)

    def close(self) -> None:
        if self._emitter is not None:
            guarded(self._who, "in close", self._emitter.close)

    def handle(self, message: Emission | Commit | Success) -> None:
        if isinstance(message, Emission):
            found = self.machine.batch(message.batch, message.skip, message.anchors)
        elif isinstance(message, Commit):
            found = self.machine.commit(message.batch.attempt, message.anchors)
        else:
            found = self.machine.success(message.batch.attempt)
        for effect in found:
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, effects.EmitBatch):
            self._attempted(effect.batch.attempt, "on", self._emit, effect.batch, effect.skip)
        elif isinstance(effect, effects.Commit):
            self._attempted(effect.attempt, "in commit of", self._emitter.commit, effect.attempt)
        elif isinstance(effect, effects.Succeed):
            if not self._drains(effect.attempt):
                guarded(self._who, f"in success of {effect.attempt}", self._emitter.success, effect.attempt)
        elif isinstance(effect, effects.Report):
            anchors = anchored([effect.message], self.hub.edge)
            self.post_report(effects.Batch(self.group, effect.attempt), effect.target, effect.sent, anchors)
        elif isinstance(effect, effects.Ack):
            self.hub.ack(effect.message, self.context.component)
        else:
            self.trident.refuse(effect.message, self.context.component, effect.cause)

    def _drains(self, attempt: TransactionAttempt) -> bool:
        return self.trident.stamps.get(attempt.txid, (0, False))[1]

    def _attempted(self, attempt: TransactionAttempt, where: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call the emitter, unless the batch only drains; a FailedException fails the attempt."""
        if self._drains(attempt):
            return
        try:
            guarded(self._who, f"{where} batch {attempt}", call, *arguments)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self._report(problem)
            self.machine.failed(attempt, f"{self._who}: {cause_of(problem)}")

    def _report(self, error: BaseException) -> None:
        self.hub.report(str(self.node.source.name), self.context.task, error)

    def _emit(self, batch: SpoutBatch, skip: str | None) -> None:
        output, attempt = TridentOutput(self.node.schema, self._report), batch.attempt
        self._emitter.emit_batch(batch, output)
        rows = output.take()
        if skip is not None:
            dead = DeadBatch(attempt.txid, str(self.node.source.name), self.context.task, skip, rows)
            self.trident.bury(attempt, dead)
            return
        facts = self.trident.batch(attempt)
        sending = self.sending(
            effects.Batch(self.group, attempt), facts, lambda target: self.machine.emitted(attempt, target)
        )
        sending.everywhere(rows)
        sending.tell_time()


class RequestTask(_Source):
    """The requests of one function of DRPC. `ask` begins one; `answer` returns what came, None as long as it is under way."""

    def __init__(self, hub: TridentHub, id: int, plan: TridentPlan, node: SpoutNode) -> None:
        super().__init__(hub, id, plan, node, 0)
        self._asked = 0
        self._roots: dict[int, int] = {}
        self._answered: dict[int, list[Row] | FailedException] = {}

    def ask(self, args: Any) -> int:
        """Send a request and return its number."""
        output = TridentOutput(self.node.schema)
        output.emit((args,))
        self._asked += 1
        number = self._asked
        batch, counts = effects.Batch(self.group, TransactionAttempt(number, 0)), effects.Outgoing(self.targets)
        self.sending(batch, Batch(("request", number)), counts.number).everywhere(output.take())
        posts = [self._poster(batch, target, sent) for target, sent in counts.counts.items()]
        self._roots[self.trident.plant(self.id, posts)] = number
        return number

    def answer(self, number: int) -> list[Row] | None:
        """Return the answer to a request, once. Raises FailedException if it failed."""
        answer = self._answered.pop(number, None)
        if isinstance(answer, FailedException):
            raise answer
        return answer

    def handle(self, message: Acked | Failed) -> None:
        number = self._roots.pop(message.root)
        batch = effects.Batch(self.group, TransactionAttempt(number, 0))
        rows = self.trident.answers.pop(batch, [])
        cause = self.trident.fell(message.root) or "no answer in time"
        for target in self._readers():
            self.trident.inboxes[target].append(Success(batch))
        failed = isinstance(message, Failed)
        self._answered[number] = (
            FailedException(f"request {number} of {self.node.source.name}: {cause}") if failed else rows
        )

    def _poster(self, batch: effects.Batch, target: Any, sent: int) -> Callable[[Any], None]:
        return lambda anchors: self.post_report(batch, target, sent, anchors)

    def _readers(self) -> Sequence[Any]:
        groups = [
            found for found in self.plan.groups.values() if self.group in found.batch_groups and not found.is_spout
        ]
        return [(found.id, task) for found in groups for task in range(found.parallelism)]
