"""Spouts of TridentCluster: the executor for each kind of spout, and the tasks that coordinate and emit its batches.

A spout of single tuples is read by SingleTuples for a RichSpoutBatchExecutor, the other kinds as in trident/spouts.py. A spout that
makes coordinators and emitters is used itself; of a spout of tuples or an IBatchSpout each task has its own copy, which is opened
before its first use. Source: the choice in Storm's `TridentTopology.newStream`.

    $batch --> CoordinatorTask (TridentSpoutCoordinator: metadata, durable) --> EmitterTask (TridentSpoutExecutor: rows, reports)
    ask() ---> RequestTask: one row, reports, its own tree; the request is answered when the tree is acked

In a draining batch no spout emits: the cluster adds this batch to close the windows at the end of the input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from windowing.acking.acker import AckedRoots, Failed, Reason, anchored
from windowing.errors import ConfigError, FailedException, ReportedFailedException, cause_of, quote
from windowing.local.spouts import TupleSource, source_of
from windowing.local.tasks import Task
from windowing.local.trident_tasks import (
    BatchMessage,
    CommitMessage,
    DeadBatch,
    PieceWriter,
    Reported,
    SpoutEmission,
    StagedTask,
    SuccessMessage,
    TridentRouter,
)
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.rows import row_converter
from windowing.schema.types import Row
from windowing.topology.bolts import ComponentKind, copies_of
from windowing.topology.components import TopologyContext
from windowing.topology.decorators import declaration_of
from windowing.trident.coordinator import Readiness
from windowing.trident.executors import (
    BatchId,
    Commit,
    EmitBatch,
    Succeed,
    TridentSpoutCoordinator,
    TridentSpoutExecutor,
    next_number,
)
from windowing.trident.kinds import FIRST_TXID, SpoutKind, TransactionAttempt
from windowing.trident.plan import SpoutNode, TridentPlan, targets_of
from windowing.trident.processors import TridentOutput, guarded
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
        self._collector: Any
        self.dry = False

    @property
    def over(self) -> bool:
        return self._source.over and not self._again

    def open(self, context: Any, collector: Any) -> None:
        """Open the source of this task. `collector` counts the rows that it `emitted`."""
        declared, self._collector = self._declaration, collector
        if declared.is_class:
            assert declared.target is not None
            self._instance = declared.target()
            if getattr(self._instance, "open", None) is not None:
                self._instance.open(context, collector)
        self._source = source_of(declared, self._instance, collector)

    def next_tuple(self) -> Any:
        """Emit some tuples, or none. What the user's code returned is returned, to be checked."""
        before, returned = self._collector.emitted, None
        if self._again:
            message_id, values = self._again.popleft()
            self._collector.emit(values, message_id=message_id)
        elif not self._source.over:
            returned = self._source.next_tuple()
        self.dry = self._collector.emitted == before
        return returned

    def ack(self, message_id: Any, values: Any) -> None:
        self._source.ack(message_id, values)

    def fail(self, message_id: Any, values: Any) -> None:
        """Forward a failure to the source; schedule the message to be emitted again if the source leaves that to the driver."""
        if not self._source.fail(message_id, values):
            self._again.append((message_id, values))

    def close(self) -> None:
        close = getattr(self._instance, "close", None)
        if close is not None:
            close()


Given = Sequence[Sequence[Any]] | Callable[[TransactionalState], ITridentSpout]
"""The input of a stream in place of its spout: a function that makes a spout over the stream's records, or the rows of each batch.
The n-th batch is txid n in every attempt and every run."""


class StreamSpout:
    """The spout of one stream. emitters: the inboxes of its tasks. state: the records of the stream. given: what takes the place of
    the spout.

    spouts: for each task its spout of batches, and the source of the spout if that emits single tuples; the coordinator uses the
    first. Raises ConfigError for an object of none of the five kinds.
    """

    def __init__(
        self,
        plan: TridentPlan,
        node: SpoutNode,
        state: TransactionalState,
        given: Given | None,
        emitters: Sequence[deque[Any]],
    ) -> None:
        self.plan, self.node, self.state, self.emitters = plan, node, state, emitters
        self.name = str(node.source.name)
        self._given = given(state) if callable(given) else given
        self._taken: set[int] = set()
        self.spouts = [self._spout() for _ in emitters]

    def spout_of(self, task: int) -> ITridentSpout:
        """Return the spout for a new emitter task; a new spout if the task is made again."""
        if task in self._taken:
            self.spouts[task] = self._spout()
        self._taken.add(task)
        return self.spouts[task][0]

    def _spout(self) -> tuple[ITridentSpout, SingleTuples | None]:
        spout, node = self.node.source.spout, self.node
        if isinstance(self._given, ITridentSpout):
            return self._given, None
        if self._given is not None:
            return BatchSpoutExecutor(GivenBatches(self._given)), None
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
        return RichSpoutBatchExecutor(single, self.plan.config.max_batch_size), single


# -- tasks of spouts and requests ------------------------------------------------------------------------------------------------


class CoordinatorTask(Task):
    """The coordinator of one spout."""

    router: TridentRouter

    def __init__(self, router: TridentRouter, id: int, inbox: deque[Any], stream: StreamSpout) -> None:
        super().__init__(router, TopologyContext(stream.name, 0, len(stream.emitters), stream.plan.config), id, inbox)
        self._who = f"spout {stream.name!r}"
        self._stream = stream
        self.machine: TridentSpoutCoordinator
        self._settle: Callable[[int], None] | None = None
        self._rested = False

    def open(self) -> None:
        state, spout = self._stream.state, self._stream.spouts[0][0]
        context = SpoutContext(state.at("emitter"), 0, self.context.tasks, self.context, self._report)
        coordinator = guarded(self._who, "in get_coordinator", spout.get_coordinator, context)
        self.machine = TridentSpoutCoordinator(coordinator, state.at("coordinator"))
        self._settle = getattr(coordinator, "settle", None)

    def settle(self, committed: int) -> None:
        """Let a source ack the batches up to the last committed one that an earlier run has not acked."""
        if self._settle is not None:
            guarded(self._who, f"in the acks up to {committed}", self._settle, committed)

    def close(self) -> None:
        if hasattr(self, "machine"):  # else it was not opened
            guarded(self._who, "in close", self.machine.close)

    def poll_again(self) -> None:
        """Let spouts of single tuples that emitted nothing be asked once more before they count as ended."""
        for _, single in self._stream.spouts:
            if single is not None:
                single.dry = False

    def is_ready(self, txid: int, until_end: bool) -> Readiness:
        """Return whether the spout has a new batch, has none now, or has ended.

        A spout of single tuples has ended when it is over, or, with `until_end`, when its last `next_tuple` emitted nothing;
        without `until_end` it then has no batch this time. A source has ended, with `until_end`, when it has no rows.
        """
        singles = [single for _, single in self._stream.spouts if single is not None]
        if singles and all(single.over or (single.dry and until_end) for single in singles):
            return Readiness.ENDED
        if singles and all(single.over or single.dry for single in singles):
            self._rested = not self._rested
            if self._rested:
                return Readiness.WAIT
        answer: Readiness = guarded(self._who, "in is_ready", self.machine.is_ready, txid)
        if until_end and answer is Readiness.WAIT and getattr(self._stream.spouts[0][0], "ends_when_dry", False):
            return Readiness.ENDED
        return answer

    def handle(self, message: BatchMessage | SuccessMessage) -> None:
        if isinstance(message, SuccessMessage):
            attempt = message.batch.attempt
            if not self.router.drains(attempt):
                guarded(self._who, f"in success of {attempt}", self.machine.success, attempt)
            return
        attempt, anchors = message.attempt, message.anchors
        batch: SpoutBatch | None = SpoutBatch(attempt, None, message.after)
        try:
            if not self.router.drains(attempt):
                where = f"on the metadata of {attempt}"
                batch = guarded(self._who, where, self.machine.batch, attempt, message.after)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self._report(problem)
            self.router.fail(anchors, self.context.component, str(problem))
            return
        if batch is not None:
            self._send(batch, message.skip, anchors)
            self.router.ack(anchors, self.context.component)

    def _report(self, error: BaseException) -> None:
        self.router.report(self.context.component, 0, error)

    def _send(self, batch: SpoutBatch, skip: str | None, anchors: Any) -> None:
        for inbox in self._stream.emitters:
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

    def __init__(self, router: TridentRouter, id: int, stream: StreamSpout, task: int) -> None:
        super().__init__(router, id, stream.plan, stream.node, task)
        self.machine = TridentSpoutExecutor(self.targets)
        self._spout, self._state = stream.spout_of(task), stream.state
        self._who = f"spout {stream.name!r}"
        self._emitter: Any = None
        self._output = TridentOutput(self.node.schema, self._report)

    def open(self) -> None:
        context = SpoutContext(
            self._state.at("emitter"), self.context.task, self.context.tasks, self.context, self._report
        )
        self._emitter = guarded(self._who, "when it was opened", self._spout.get_emitter, context)

    def close(self) -> None:
        if self._emitter is not None:
            guarded(self._who, "in close", self._emitter.close)

    def handle(self, message: SpoutEmission | CommitMessage | SuccessMessage) -> None:
        if isinstance(message, SpoutEmission):
            found = self.machine.batch(message.batch, message.skip, message.anchors)
        elif isinstance(message, CommitMessage):
            found = self.machine.commit(message.batch.attempt, message.anchors)
        else:
            found = self.machine.success(message.batch.attempt)
        for effect in found:
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        if isinstance(effect, EmitBatch):
            self._attempted(effect.batch.attempt, "on", self._emit, effect.batch, effect.skip)
        elif isinstance(effect, Commit):
            self._attempted(effect.attempt, "in commit of", self._emitter.commit, effect.attempt)
        elif isinstance(effect, Succeed):
            if not self.router.drains(effect.attempt):
                guarded(self._who, f"in success of {effect.attempt}", self._emitter.success, effect.attempt)
        else:
            self.respond(self.group, effect)

    def _attempted(self, attempt: TransactionAttempt, where: str, call: Callable[..., Any], *arguments: Any) -> None:
        """Call the emitter, unless the batch drains; a FailedException fails the attempt."""
        if self.router.drains(attempt):
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
        attempt, rows = batch.attempt, self._output.rows_of(self._emitter.emit_batch, batch)
        if skip is not None:
            dead = DeadBatch(attempt.txid, str(self.node.source.name), self.context.task, skip, rows)
            self.router.hold_dead(attempt, dead)
            return
        self._deliver(attempt, rows)

    def _deliver(self, attempt: TransactionAttempt, rows: list[Row]) -> None:
        number = partial(self.machine.emitted, attempt)
        writer = PieceWriter(self, BatchId(self.group, attempt), self.router.batch(attempt), number)
        writer.everywhere(rows)
        writer.finish()


class RequestTask(_Source):
    """The requests of one DRPC function. `ask` begins a request; `answer` returns its rows, or None while it is under way."""

    def __init__(self, router: TridentRouter, id: int, plan: TridentPlan, node: SpoutNode) -> None:
        super().__init__(router, id, plan, node, 0)
        self._asked = 0
        self._roots: dict[int, int] = {}
        self._answered: dict[int, list[Row] | Exception] = {}

    def ask(self, args: Any) -> int:
        request = row_converter(self.node.schema, DEFAULT_STREAM)((args,))
        self._asked += 1
        number = self._asked
        batch, counts = self._batch(number), dict.fromkeys(self.targets, 0)
        self.router.answers[batch] = []
        writer = PieceWriter(self, batch, self.router.request(number), partial(next_number, counts))
        try:
            writer.everywhere([request])
        except BaseException:
            self._forget(batch)
            raise
        posts = [
            (self.router.inboxes[target], partial(Reported, batch, self.me, counts[target])) for target in self.targets
        ]
        self._roots[self.router.begin_tree(self.id, posts)] = number
        return number

    def answer(self, number: int) -> list[Row] | None:
        answer = self._answered.pop(number, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def handle(self, message: AckedRoots | Failed) -> None:
        for root in (message.root,) if isinstance(message, Failed) else message.roots:
            self._end(root, message)

    def _end(self, root: int, message: AckedRoots | Failed) -> None:
        number = self._roots.pop(root)
        answer = self._forget(self._batch(number))
        if isinstance(message, Failed) and isinstance(answer, list):
            cause = "no answer in time" if message.reason is Reason.TIMEOUT else message.reason
            answer = FailedException(f"request {number} of {self.node.source.name}: {cause}")
        self._answered[number] = answer

    def _batch(self, number: int) -> BatchId:
        return BatchId(self.group, TransactionAttempt(number, 0))

    def _forget(self, batch: BatchId) -> list[Row] | Exception:
        """Let all tasks drop a request; return its answer."""
        for stage in self.plan.stages.values():
            if self.group in stage.batch_groups and not stage.is_spout:
                for task in range(stage.parallelism):
                    self.router.inboxes[stage.id, task].append(SuccessMessage(batch))
        return self.router.answers.pop(batch)
