"""Spouts of TridentCluster: the executor for each kind of spout, and the tasks that coordinate and emit its batches.

    Spout (rows one by one)           SingleTuples > RichSpoutBatchExecutor     non-transactional
    IBatchSpout, batches= of a run    BatchSpoutExecutor
    ITridentSpout, committer spouts   used directly
    IPartitionedTridentSpout          PartitionedTridentSpoutExecutor
    IOpaquePartitionedTridentSpout    OpaquePartitionedTridentSpoutExecutor

A spout of the last three kinds makes coordinators and emitters, so the object itself is used. Of the other kinds each task has its
own copy, which is opened before its first use. Source: the choice in Storm's `TridentTopology.newStream`.

    $batch --> CoordinatorTask (TridentSpoutCoordinator: metadata, durable) --> EmitterTask (TridentSpoutExecutor: rows, reports)
    ask() ---> RequestTask: one row, reports, its own tree; the request is answered when the tree is acked

In a draining batch no spout emits: the cluster adds this batch to close the windows at the end of the input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from windowing.acking.acker import Acked, Failed, anchored
from windowing.errors import (
    CheckpointError,
    ConfigError,
    FailedException,
    ReportedFailedException,
    SourceError,
    StateError,
    cause_of,
    quote,
)
from windowing.local.spouts import FunctionSource, ObjectSource, RowsSource, TupleSource
from windowing.local.tasks import Task
from windowing.local.trident_tasks import (
    Begun,
    CommitMessage,
    DeadBatch,
    SpoutEmission,
    StagedTask,
    Success,
    TridentRouter,
)
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.rows import rows_of
from windowing.topology.bolts import CallStyle, copies_of
from windowing.topology.components import TaskContext
from windowing.topology.decorators import ComponentKind, declaration_of
from windowing.trident import batch_effects as effects
from windowing.trident.coordinator import Readiness
from windowing.trident.fields import Row
from windowing.trident.graph import SpoutNode
from windowing.trident.kinds import FIRST_TXID, SpoutKind, TransactionAttempt
from windowing.trident.plan import TridentPlan, targets_of
from windowing.trident.processors import ProcessorContext, TridentOutput, raised
from windowing.trident.spout_executor import SendBatch, TridentSpoutCoordinator, TridentSpoutExecutor
from windowing.trident.spouts import (
    BatchSpoutExecutor,
    IBatchSpout,
    ITridentSpout,
    RichSpoutBatchExecutor,
    SpoutBatch,
    SpoutContext,
    as_batches,
)
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import TransactionalState

__all__ = [
    "CoordinatorTask",
    "EmitterTask",
    "GivenBatches",
    "RequestTask",
    "SingleTuples",
    "batch_spout_of",
    "guarded",
]


class GivenBatches(IBatchSpout):
    """Batches that are passed to the cluster: txid n is always the n-th batch, in every attempt and every run. With several tasks
    the rows of a batch are distributed in turn."""

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, batches: Sequence[Sequence[Any]]) -> None:
        self._batches = batches
        self._mine = slice(None)

    def open(self, context: SpoutContext) -> None:
        self._mine = slice(context.task, None, context.tasks)

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid < FIRST_TXID + len(self._batches) else Readiness.ENDED

    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        number = txid - FIRST_TXID
        for row in self._batches[number][self._mine] if number < len(self._batches) else ():
            collector.emit(row)


class SingleTuples:
    """Adapts a spout of single tuples to RichSpoutBatchExecutor (RichSpout); failed rows are emitted again before new ones.

    over: the source has ended. dry: the last `next_tuple` emitted nothing.
    """

    def __init__(self, spout: Any) -> None:
        self._declaration = declaration_of(spout)
        self._source: TupleSource
        self._instance: Any = None
        self._again: deque[tuple[Any, Any]] = deque()
        self._collector: _Counting
        self.dry = False
        self.ack: Any = self._ack
        self.fail: Any = self._fail

    @property
    def over(self) -> bool:
        """Whether the source has ended; only failed messages can still be emitted."""
        return self._source.over and not self._again

    def open(self, context: Any, collector: Any) -> None:
        """Open the source of this task."""
        declared, self._collector = self._declaration, _Counting(collector)
        assert declared.target is not None
        if declared.is_class:
            self._instance = declared.target()
            if getattr(self._instance, "open", None) is not None:
                self._instance.open(context, self._collector)
            self._source = ObjectSource(self._instance, declared.values_back)
        elif declared.style is CallStyle.ROWS:
            rows = rows_of(declared.target(), declared.outputs[DEFAULT_STREAM], DEFAULT_STREAM)
            self._source = RowsSource(rows, self._collector)  # type: ignore[arg-type]
        else:
            self._source = FunctionSource(declared.target, self._collector)  # type: ignore[arg-type]

    def next_tuple(self) -> None:
        """Emit some tuples, or none."""
        before = self._collector.emitted
        if self._again:
            message_id, values = self._again.popleft()
            self._collector.emit(values, message_id=message_id)
        elif not self._source.over:
            self._source.next_tuple()
        self.dry = self._collector.emitted == before

    def _ack(self, message_id: Any, values: Any) -> None:
        """Forward the ack of a committed message to the source."""
        self._source.ack(message_id, values)

    def _fail(self, message_id: Any, values: Any) -> None:
        """Forward a failure to the source; schedule the message to be emitted again if the source leaves that to the driver."""
        if not self._source.fail(message_id, values):
            self._again.append((message_id, values))

    def close(self) -> None:
        """Close the source of this task."""
        close = getattr(self._instance, "close", None)
        if close is not None:
            close()


class _Counting:
    """The collector of a batch; it counts the emitted rows."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.emitted = 0

    def emit(self, *values: Any, **how: Any) -> Any:
        self.emitted += 1
        return self._collector.emit(*values, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)


def batch_spout_of(
    node: SpoutNode, batches: Sequence[Sequence[Any]] | None, max_batch_size: int
) -> tuple[ITridentSpout, SingleTuples | None]:
    """Return the spout of one task as a spout of batches, and its source if it is a spout of single tuples.

    batches: the rows in place of a spout. max_batch_size: the number of tuples in a batch of a spout of single tuples.
    Raises ConfigError for an object of none of the five kinds.
    """
    spout = node.source.spout
    if batches is not None:
        return BatchSpoutExecutor(GivenBatches(batches)), None
    made = as_batches(copies_of(spout)() if isinstance(spout, IBatchSpout) else spout)
    if made is not None:
        return made, None
    if isinstance(getattr(spout, "kind", None), SpoutKind):
        raise ConfigError(
            f"{node.called} begins with {quote(spout)}, which says its kind and emits nothing; give an IBatchSpout, an "
            "ITridentSpout or a partitioned spout, or its rows in batches="
        )
    if declaration_of(spout).kind is ComponentKind.INPUT:
        raise ConfigError(
            f"{node.called} begins with an InputSpout, which is fed from outside; give rows in batches= (--rows "
            "FILE of the command line), or a source in sources="
        )
    single = SingleTuples(spout)
    return RichSpoutBatchExecutor(single, node.schema.ddl, max_batch_size), single


# -- tasks of spouts and requests ------------------------------------------------------------------------------------------------


def guarded(who: str, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a spout's code and attribute its exceptions to it. FailedException and errors of stores and sources pass unchanged."""
    try:
        return call(*arguments)
    except (CheckpointError, ConfigError, SourceError, StateError):
        raise
    except BaseException as problem:
        raise raised(who, problem, where) from problem


class CoordinatorTask(Task):
    """The coordinator of one spout. spouts, emitters: the spout object and the inbox of each task of the spout."""

    def __init__(
        self,
        router: TridentRouter,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        spouts: Sequence[tuple[ITridentSpout, SingleTuples | None]],
        emitters: Sequence[deque[Any]],
        state: TransactionalState,
    ) -> None:
        super().__init__(router, context, id, inbox)
        self.emitters = emitters
        self._trident = router
        self._who = f"spout {context.component!r}"
        self._spouts, self._state = spouts, state
        self._machine: TridentSpoutCoordinator | None = None
        self._settle: Callable[[int], None] | None = None
        self._rested = False

    @property
    def machine(self) -> TridentSpoutCoordinator:
        """The machine, once the task is open."""
        assert self._machine is not None
        return self._machine

    def open(self) -> None:
        context = SpoutContext(self._state.at("emitter"), 0, self.context.tasks, self.context, self._report)
        coordinator = guarded(self._who, "in get_coordinator", self._spouts[0][0].get_coordinator, context)
        self._machine = TridentSpoutCoordinator(coordinator, self._state.at("coordinator"))
        self._settle = getattr(coordinator, "settle", None)

    def settle(self, committed: int) -> None:
        """Let a source ack the batches up to the last committed one that an earlier run has not acked."""
        if self._settle is not None:
            guarded(self._who, f"in the acks up to {committed}", self._settle, committed)

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()

    def is_ready(self, txid: int, until_end: bool) -> Readiness:
        """Return whether the spout has a new batch, has none now, or has ended.

        A spout of single tuples has ended when it is over, or, with `until_end`, when its last `next_tuple` emitted nothing;
        without `until_end` it then has no batch this time. A source has ended, with `until_end`, when it has no rows.
        """
        singles = [single for _, single in self._spouts if single is not None]
        if singles and all(single.over or (single.dry and until_end) for single in singles):
            return Readiness.ENDED
        if singles and all(single.over or single.dry for single in singles):
            self._rested = not self._rested
            if self._rested:
                return Readiness.WAIT
        answer: Readiness = guarded(self._who, "in is_ready", self.machine.is_ready, txid)
        if until_end and answer is Readiness.WAIT and getattr(self._spouts[0][0], "ends_when_dry", False):
            return Readiness.ENDED
        return answer

    def handle(self, message: Begun | Success) -> None:
        attempt = message.batch.attempt if isinstance(message, Success) else message.attempt
        _, drains = self._trident.stamps.get(attempt.txid, (0, False))
        if isinstance(message, Success):
            if not drains:
                guarded(self._who, f"in success of {attempt}", self.machine.success, attempt)
        elif drains:
            self._send(SpoutBatch(attempt, None, message.after), None, message.anchors)
            self.router.ack(message.anchors, self.context.component)
        else:
            self._begin(message)

    def _begin(self, message: Begun) -> None:
        machine_effects = self.machine.batch(message.attempt, message.after, message.skip, message.anchors)
        for effect in guarded(self._who, f"on the metadata of {message.attempt}", list, machine_effects):
            if isinstance(effect, SendBatch):
                self._send(effect.batch, effect.skip, effect.message)
            elif isinstance(effect, effects.Ack):
                self.router.ack(effect.message, self.context.component)
            else:
                if effect.reported is not None:
                    self._report(effect.reported)
                self._trident.refuse(effect.message, self.context.component, effect.cause)

    def _report(self, error: BaseException) -> None:
        self.router.report(self.context.component, 0, error)

    def _send(self, batch: SpoutBatch, skip: str | None, anchors: Any) -> None:
        for inbox in self.emitters:
            inbox.append(SpoutEmission(batch, skip, anchored([anchors], self.router.edge)))


class _Source(StagedTask):
    """The common base of emitters and requests: the source of a batch group of the plan."""

    def __init__(self, router: TridentRouter, id: int, plan: TridentPlan, node: SpoutNode, task: int) -> None:
        stage = plan.stage_of(node.number)
        super().__init__(router, id, plan, stage, task)
        self.node, self.group = node, plan.batch_groups[node.number]
        self.targets = targets_of(plan, stage.id, self.group)


class EmitterTask(_Source):
    """One task of a spout."""

    def __init__(
        self,
        router: TridentRouter,
        id: int,
        plan: TridentPlan,
        node: SpoutNode,
        task: int,
        *,
        spout: ITridentSpout,
        state: TransactionalState,
    ) -> None:
        super().__init__(router, id, plan, node, task)
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

    def handle(self, message: SpoutEmission | CommitMessage | Success) -> None:
        if isinstance(message, SpoutEmission):
            found = self.machine.batch(message.batch, message.skip, message.anchors)
        elif isinstance(message, CommitMessage):
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
            anchors = anchored([effect.message], self.router.edge)
            self.post_report(effects.BatchId(self.group, effect.attempt), effect.target, effect.sent, anchors)
        elif isinstance(effect, effects.Ack):
            self.router.ack(effect.message, self.context.component)
        else:
            self.trident.refuse(effect.message, self.context.component, effect.cause)

    def _drains(self, attempt: TransactionAttempt) -> bool:
        return self.trident.stamps.get(attempt.txid, (0, False))[1]

    def _attempted(self, attempt: TransactionAttempt, where: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call the emitter, unless the batch drains; a FailedException fails the attempt."""
        if self._drains(attempt):
            return
        try:
            guarded(self._who, f"{where} batch {attempt}", call, *arguments)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self._report(problem)
            self.machine.failed(attempt, f"{self._who}: {cause_of(problem)}")

    def _report(self, error: BaseException) -> None:
        self.router.report(str(self.node.source.name), self.context.task, error)

    def _emit(self, batch: SpoutBatch, skip: str | None) -> None:
        output, attempt = TridentOutput(self.node.schema, self._report), batch.attempt
        self._emitter.emit_batch(batch, output)
        rows = output.take()
        if skip is not None:
            dead = DeadBatch(attempt.txid, str(self.node.source.name), self.context.task, skip, rows)
            self.trident.hold_dead(attempt, dead)
            return
        context = self.trident.batch(attempt)
        sending = self.sending(
            effects.BatchId(self.group, attempt), context, lambda target: self.machine.emitted(attempt, target)
        )
        sending.everywhere(rows)
        sending.send_time()


class RequestTask(_Source):
    """The requests of one DRPC function. `ask` begins a request; `answer` returns its rows, or None while it is under way."""

    def __init__(self, router: TridentRouter, id: int, plan: TridentPlan, node: SpoutNode) -> None:
        super().__init__(router, id, plan, node, 0)
        self._asked = 0
        self._roots: dict[int, int] = {}
        self._answered: dict[int, list[Row] | FailedException] = {}

    def ask(self, args: Any) -> int:
        """Send a request and return its number."""
        output = TridentOutput(self.node.schema)
        output.emit((args,))
        self._asked += 1
        number = self._asked
        batch, counts = effects.BatchId(self.group, TransactionAttempt(number, 0)), effects.Outgoing(self.targets)
        self.sending(batch, ProcessorContext(("request", number)), counts.number).everywhere(output.take())
        posts = [self._poster(batch, target, sent) for target, sent in counts.counts.items()]
        self._roots[self.trident.begin_tree(self.id, posts)] = number
        return number

    def answer(self, number: int) -> list[Row] | None:
        """Return the answer to a request, once. Raises FailedException if it failed."""
        answer = self._answered.pop(number, None)
        if isinstance(answer, FailedException):
            raise answer
        return answer

    def handle(self, message: Acked | Failed) -> None:
        number = self._roots.pop(message.root)
        batch = effects.BatchId(self.group, TransactionAttempt(number, 0))
        rows = self.trident.answers.pop(batch, [])
        cause = self.trident.end_tree(message.root) or "no answer in time"
        for target in self._readers():
            self.trident.inboxes[target].append(Success(batch))
        failed = isinstance(message, Failed)
        self._answered[number] = (
            FailedException(f"request {number} of {self.node.source.name}: {cause}") if failed else rows
        )

    def _poster(self, batch: effects.BatchId, target: Any, sent: int) -> Callable[[Any], None]:
        return lambda anchors: self.post_report(batch, target, sent, anchors)

    def _readers(self) -> Sequence[Any]:
        groups = [
            found for found in self.plan.stages.values() if self.group in found.batch_groups and not found.is_spout
        ]
        return [(found.id, task) for found in groups for task in range(found.parallelism)]
