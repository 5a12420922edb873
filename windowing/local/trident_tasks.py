"""Tasks of TridentCluster: the router and the messages between tasks, the task of a group, the result of a run.

    master --$batch--> coordinator --metadata--> emitter --tuples, reports--> group task --> group task
      |    --$commit-> committer emitters, group tasks that commit                    |
      |    --$success> all                                                            +-- rows of sinks: held here until the
      +<------------- acker: the tree of each $batch and $commit was acked, or failed      commit of their attempt is acked

In a GroupTask, TridentBoltExecutor decides when, the Subtopology does the work, and the task performs the effects of both:

    tuples, Reported,       --> TridentBoltExecutor --Begin Execute Finish Forget--> GroupBatch --> rows on their way
    CommitMessage, SuccessMessage |---Report, Ack, Fail---> inboxes, acker                      --> rows of sinks, answers

Laws
- All messages between tasks go through inboxes, first in, first out. A row of a sink is delivered once, with its batch.
- The tuples of a batch are processed when all have arrived, in the order of their upstream tasks. So the partition to which a tuple
  is shuffled does not depend on timing, and each attempt gives a state's partitions the same tuples.
- What a batch changes in windows is stored beside the coordinator's record with its commit, so a restarted run continues with them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

from windowing.acking.acker import Anchors, anchored
from windowing.errors import BoltError, FailedException, ReportedFailedException, quote
from windowing.execution.plan import Exchange, Stage
from windowing.local.router import INITS, ReportedError, Router
from windowing.local.tasks import Task
from windowing.schema.checks import StormNames
from windowing.schema.types import Row
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.topology.pictures import brief_repr, html_table
from windowing.trident.executors import Ack, BatchId, Begin, Execute, Fail, Finish, Forget, Report, TridentBoltExecutor
from windowing.trident.kinds import Phase, TransactionAttempt
from windowing.trident.plan import TaskId, TridentPlan, coord_specs
from windowing.trident.processors import ProcessorContext, failure_of
from windowing.trident.spouts import SpoutBatch
from windowing.trident.subtopology import ExchangeWriter, GroupBatch, GroupOutput, Subtopology
from windowing.trident.transactional_state import TransactionalState
from windowing.trident.windows import WindowRecords, store_windows


class Piece(NamedTuple):
    """What an upstream task sends over an exchange: rows, or (rows is None) the largest timestamps for a window's tasks. number:
    among the pieces for the same task.
    """

    batch: BatchId
    sender: TaskId
    number: int
    exchange: Exchange
    rows: list[Row] | None
    largest: dict[str | None, int] | None


class BatchMessage(NamedTuple):
    """A `$batch` message to the coordinator of a spout."""

    attempt: TransactionAttempt
    after: TransactionAttempt | None
    skip: str | None
    anchors: Anchors


class SpoutEmission(NamedTuple):
    """The order to a spout's tasks to emit a batch."""

    batch: SpoutBatch
    skip: str | None
    anchors: Anchors


class Reported(NamedTuple):
    """The report of an upstream task that it has sent all its pieces, and how many."""

    batch: BatchId
    sender: TaskId
    sent: int
    anchors: Anchors


class CommitMessage(NamedTuple):
    """A `$commit` message."""

    batch: BatchId
    anchors: Anchors


class SuccessMessage(NamedTuple):
    """A `$success` message."""

    batch: BatchId


class DeadBatch(NamedTuple):
    """One task's rows of a batch that failed for the last time."""

    txid: int
    stream: str
    task: int
    cause: str
    rows: list[Row]


class StateContents(dict[str, Any]):
    """The contents of states by id; another id is a KeyError that names those there are."""

    def __missing__(self, id: str) -> Any:
        raise KeyError(f"{quote(id)} is no id of a state with contents, there are {', '.join(self) or 'none'}")


@dataclass(slots=True, repr=False)
class TridentResult(StormNames):
    """The results of a run so far.

    sinks: the rows of each sink without a function, from committed batches only, in the order of their txids. batches: the number
    of committed batches. failures: the number of failed attempts, without those dropped because an earlier txid failed.
    dead_letters: skipped batches. errors: the errors that spouts and operations reported, by `report_error` or a
    ReportedFailedException, also in failed attempts. late: late tuples of windows in committed batches, by (component, reason),
    whether or not a stream reads them. states: the contents of the states at the end of `run_trident`, by id: the items of a map,
    or the value.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "outputs rows": 'sinks, or result["counts"] for one sink',
        "acked": "batches",
    }

    sinks: dict[str, list[Row]] = field(default_factory=dict)
    batches: int = 0
    failures: int = 0
    dead_letters: list[DeadBatch] = field(default_factory=list)
    errors: list[ReportedError] = field(default_factory=list)
    late: dict[tuple[str, str], int] = field(default_factory=dict)
    states: StateContents = field(default_factory=StateContents)

    def __repr__(self) -> str:
        return brief_repr(self)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the counts of the run, not its rows."""
        rows: list[list[object]] = [["batches", self.batches], ["failures", self.failures]]
        rows += [[f"sink {name}", len(found)] for name, found in self.sinks.items()]
        rows += [[f"late of {component}: {reason}", count] for (component, reason), count in self.late.items()]
        rows += [["dead letters", len(self.dead_letters)], ["errors", len(self.errors)]]
        return html_table("run", ("what", "how many"), rows)

    def __getitem__(self, sink: str) -> list[Row]:
        """Return the rows of a sink."""
        if sink not in self.sinks:
            kept = ", ".join(self.sinks) or "none; add .sink(name) to a stream"
            raise KeyError(f"{quote(sink)} is no sink whose rows are kept, those are {kept}")
        return self.sinks[sink]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the sinks whose rows are kept."""
        return iter(self.sinks)


@dataclass(slots=True)
class _AttemptOutput:
    """The output of an attempt until its commit: rows by sink, the tuples of a skipped batch, the numbers of late tuples by
    (component, reason).
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    dead: list[DeadBatch] = field(default_factory=list)
    late: Counter[tuple[str, str]] = field(default_factory=Counter)


class TridentRouter(Router):
    """A Router that also holds the batches that are under way.

    stamps: for each txid its time and whether it drains. answers: the rows of requests that are under way, or the exception that
    one has failed with. as_of: the txid as of which they read states, None if no state holds a part of a later one.
    """

    __slots__ = ("_held", "answers", "as_of", "inboxes", "stamps", "trident", "unread_late")

    def __init__(self, seed: int) -> None:
        super().__init__(seed, ackers=1)
        self.inboxes: dict[TaskId, deque[Any]] = {}
        self.stamps: dict[int, tuple[int, bool]] = {}
        self.answers: dict[BatchId, list[Row] | Exception] = {}
        self.as_of: int | None = None
        self.trident = TridentResult()
        self.errors = self.trident.errors
        self.unread_late: frozenset[str] = frozenset()
        """The components with windows whose late tuples have no reader."""
        self._held: dict[TransactionAttempt, _AttemptOutput] = {}

    def inbox(self, task: TaskId) -> deque[Any]:
        """Return the inbox of a task. It exists before the task, and a task that is made again keeps it."""
        return self.inboxes.setdefault(task, deque())

    def batch(self, attempt: TransactionAttempt) -> ProcessorContext:
        """Return the context of a batch. A finished batch has no stamp, and its results are ignored."""
        now_ms, drains = self.stamps.get(attempt.txid, (self.now_ms, False))
        return ProcessorContext(attempt, now_ms, as_of=attempt.txid - 1, drain=drains)

    def request(self, number: int) -> ProcessorContext:
        """Return the context of a request."""
        return ProcessorContext(("request", number), as_of=self.as_of)

    def refuse(self, batch: BatchId, problem: Exception) -> None:
        """Let the exception of user code be the answer of a request, unless it has ended or has one."""
        if isinstance(self.answers.get(batch), list):
            self.answers[batch] = problem

    def drains(self, attempt: TransactionAttempt) -> bool:
        """Whether the batch closes the windows at the end of the input, in which no spout emits."""
        return self.stamps.get(attempt.txid, (0, False))[1]

    # -- trees ---------------------------------------------------------------------------------------------------------

    def begin_tree(self, owner: int, posts: Iterable[tuple[deque[Any], Callable[[Anchors], Any]]]) -> int:
        """Begin a tuple tree with one message for each of `posts`, given by its inbox and a function of its anchors; the end of the
        tree is reported to the task `owner`. Return the root.
        """
        root, xor = self.edge(), 0
        for inbox, message_of in posts:
            edge = self.edge()
            xor ^= edge
            inbox.append(message_of(Anchors({root: edge})))
        self.tell_all(INITS, [(root, xor)], owner)
        return root

    # -- what batches gave ---------------------------------------------------------------------------------------------

    def held(self, attempt: TransactionAttempt) -> _AttemptOutput:
        """Return what an attempt gave so far. No earlier attempt at its batch can be committed any more: they are discarded."""
        if attempt not in self._held:
            self._held = {
                each: held for each, held in self._held.items() if each.txid != attempt.txid or each > attempt
            }
        return self._held.setdefault(attempt, _AttemptOutput())

    def hold(self, attempt: TransactionAttempt, component: str, emitted: GroupOutput, late: Mapping[str, int]) -> None:
        """Hold rows of sinks, and the numbers of late tuples by reason, until their attempt is committed."""
        held = self.held(attempt)
        for name, rows in emitted.sinks.items():
            held.rows.setdefault(name, []).extend(rows)
        held.late.update({(component, reason): count for reason, count in late.items()})

    def hold_dead(self, attempt: TransactionAttempt, dead: DeadBatch) -> None:
        self.held(attempt).dead.append(dead)

    def release(self, attempt: TransactionAttempt) -> dict[str, list[Row]]:
        """Return the rows of a committed attempt by sink, and discard those of the other attempts at its txid."""
        found, result = self.held(attempt), self.trident
        result.dead_letters += found.dead
        for dead in found.dead:
            found.rows.setdefault(f"{dead.stream}.{DEAD_LETTERS}", []).extend(dead.rows)
        for where, count in found.late.items():
            result.late[where] = result.late.get(where, 0) + count
            if where[0] in self.unread_late:
                self.late_log.add(count, time.monotonic())
        self._held = {each: held for each, held in self._held.items() if each.txid > attempt.txid}
        return found.rows


class PieceWriter:
    """The outgoing side of one task in one attempt: rows over its exchanges, and at the end the largest timestamps for windows.

    number: returns the number of the next piece for a target.
    """

    def __init__(
        self, task: StagedTask, batch: BatchId, context: ProcessorContext, number: Callable[[TaskId], int]
    ) -> None:
        self._router, self._plan, self._me = task.router, task.plan, task.me
        self._batch, self._number = batch, number
        self._writer = ExchangeWriter(task.plan, task.me[1], context)

    def rows(self, exchange: Exchange, rows: list[Row]) -> None:
        for task, part in self._writer.route(exchange, rows).items():
            self._post(exchange, task, part, None)

    def everywhere(self, rows: list[Row]) -> None:
        """Send rows over all exchanges of their stage; spouts do this."""
        for exchange in self._plan.out_of(self._me[0]):
            self.rows(exchange, rows)

    def finish(self) -> None:
        """Send every task of each window the largest timestamps that were sent to any of its tasks."""
        for id, largest in sorted(self._writer.largest.items()):
            exchange = self._plan.exchanges[id]
            for task in range(self._plan.stages[exchange.target].parallelism):
                self._post(exchange, task, None, largest)

    def _post(
        self, exchange: Exchange, task: int, rows: list[Row] | None, largest: dict[str | None, int] | None
    ) -> None:
        target = exchange.target, task
        self._router.inboxes[target].append(Piece(self._batch, self._me, self._number(target), exchange, rows, largest))


# -- GroupTask -------------------------------------------------------------------------------------------------------------------


class StagedTask(Task):
    """A task of a stage of the plan: it sends over the exchanges of its stage, and reports to the tasks behind them."""

    router: TridentRouter

    def __init__(self, router: TridentRouter, id: int, plan: TridentPlan, stage: Stage, task: int) -> None:
        self.me = (stage.id, task)
        super().__init__(
            router, TopologyContext(stage.id, task, stage.parallelism, plan.config), id, router.inbox(self.me)
        )
        self.plan = plan

    def respond(self, group: str, effect: Report | Ack | Fail) -> None:
        """Report to a target task the number of pieces that were sent to it, or ack or fail a message."""
        if isinstance(effect, Ack):
            self.router.ack(effect.message, self.context.component)
        elif isinstance(effect, Fail):
            self.router.fail(effect.message, self.context.component, effect.cause)
        else:
            anchors = anchored([effect.message], self.router.edge)
            reported = Reported(BatchId(group, effect.attempt), self.me, effect.sent, anchors)
            self.router.inboxes[cast(TaskId, effect.target)].append(reported)


class GroupTask(StagedTask):
    """A task of a group.

    states: its state partitions by id. windows: the store of its windows.
    """

    def __init__(
        self,
        router: TridentRouter,
        id: int,
        plan: TridentPlan,
        group: Stage,
        task: int,
        *,
        states: Mapping[str, Any],
        windows: TransactionalState,
        timeout_ms: int,
    ) -> None:
        super().__init__(router, id, plan, group, task)
        self.executor = TridentBoltExecutor(coord_specs(plan, group), timeout_ms)
        self.subtopology = Subtopology(plan, group.id, task, states)
        self._windows, self._requests = windows, plan.requests
        self._records: dict[int, WindowRecords] = {}
        self._live: dict[BatchId, tuple[GroupBatch, PieceWriter, list[Piece]]] = {}

    def open(self) -> None:
        self.subtopology.prepare()
        for node, window in self.subtopology.windows().items():
            records = self._records[node] = WindowRecords(self._windows, str(node))
            stored = records.load()
            if stored is not None:
                window.restore(stored)

    def close(self) -> None:
        self.subtopology.cleanup()

    # -- messages ------------------------------------------------------------------------------------------------------

    def handle(self, message: Piece | Reported | CommitMessage | SuccessMessage) -> None:
        executor, batch, now_ms = self.executor, message.batch, self.router.now_ms
        if isinstance(message, Piece):
            found = executor.arrive(batch, message.sender, message.number, message, now_ms)
        elif isinstance(message, Reported):
            found = executor.report(batch, message.sender, message.sent, message.anchors, now_ms)
        elif isinstance(message, CommitMessage):
            found = executor.commit(batch, message.anchors, now_ms)
        else:
            found = executor.success(batch, now_ms)
        for effect in found:
            self._perform(batch.group, effect)

    def tick(self) -> None:
        for effect in self.executor.tick(self.router.now_ms):
            self._perform("", effect)

    def next_deadline_ms(self) -> int | None:
        return self.executor.next_deadline_ms()

    # -- effects -------------------------------------------------------------------------------------------------------

    def _perform(self, group: str, effect: Any) -> None:
        if isinstance(effect, Begin):
            self._begin(effect.batch)
        elif isinstance(effect, Execute):
            _, _, came = self._live[effect.batch]
            came.append(effect.item)
        elif isinstance(effect, Finish):
            self._finish(effect.batch)
        elif isinstance(effect, Forget):
            del self._live[effect.batch]
        else:
            self.respond(group, effect)

    def _begin(self, batch: BatchId) -> None:
        is_request = batch.group in self._requests
        context = self.router.request(batch.attempt.txid) if is_request else self.router.batch(batch.attempt)
        writer = PieceWriter(self, batch, context, partial(self.executor.emitted, batch))
        self._live[batch] = GroupBatch(self.subtopology, batch.group, context), writer, []

    def _finish(self, batch: BatchId) -> None:
        """Run the operations of the batch and send their rows; a FailedException fails the attempt, and any exception a request."""
        found, writer, came = self._live[batch]
        try:
            for piece in sorted(came, key=lambda piece: (piece.exchange.id, piece.sender)):
                if piece.rows is None:
                    found.observe(piece.exchange, piece.largest or {})
                else:
                    found.execute(piece.exchange, piece.rows)
            self._commit(found)
            self._deliver(batch, writer, found.take(), found.late())
            writer.finish()
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                self.subtopology.report(problem)
            self.executor.failed(batch, f"{self.context.component}, task {self.me[1]}: {failure_of(problem)}")
        except Exception as problem:
            is_request = batch.group in self._requests
            if is_request or isinstance(problem, BoltError):
                what = "a request" if is_request else f"batch {batch.attempt}, which is not committed"
                problem.add_note(f"In {self.context.called('group')}, on {what}.")
            if not is_request:
                raise
            self.router.refuse(batch, problem)
            self.executor.failed(batch, str(problem))
        finally:
            for error in self.subtopology.take_reports():
                self.router.report(*self.me, error)

    def _commit(self, batch: GroupBatch) -> None:
        batch.finish(Phase.PROCESS)
        batch.finish(Phase.COMMIT)
        windows, groups = self.subtopology.windows(), self.plan.batch_groups
        stored = {self._records[node]: each for node, each in windows.items() if groups[node] == batch.batch_group}
        if stored:
            store_windows(self._windows, stored)

    def _deliver(self, batch: BatchId, writer: PieceWriter, emitted: GroupOutput, late: dict[str, int]) -> None:
        for exchange, rows in emitted.exchanges.items():
            writer.rows(self.plan.exchanges[exchange], rows)
        if batch.group in self._requests:
            answer = self.router.answers.get(batch)  # a request that has ended has none
            if isinstance(answer, list):
                answer += emitted.answers
            return
        self.router.hold(batch.attempt, self.context.component, emitted, late)
