"""One task of a group as a machine, how its rows get to the tasks behind it, and TridentRun, which runs a plan batch by batch.

    batch = subtopology.start_batch("bg0", ProcessorContext(TransactionAttempt(5, 0)))       a GroupBatch
    batch.execute(exchange, rows)       as tuples arrive, in pieces of any size
    batch.finish_batch()                when all tuples of the processing phase are there
    batch.commit_batch()                in the commit phase, in the order of the txids, when all of that phase are there
    batch.take() -> GroupOutput         after any of them: what goes over exchanges, to sinks, and back to a caller of DRPC

    rows --ExchangeWriter--> {task: rows}             by the grouping, from a start that the batch gives
         --largest--> {source: timestamp}, for ALL tasks    of an exchange to a window: so that all have one watermark

Laws: batches lie side by side, each in its GroupBatch; to drop one that failed is to forget it. What a batch emits depends on its
tuples and on the states alone, not on how they were cut into pieces. Source: Storm's `SubtopologyBolt`, `TridentBoltExecutor`.

TridentRun is the slow, obvious driver of the same machines, with nothing between them, for the prompt and for tests: what it gives
is what any driver must give. Rows of a spout with several tasks are dealt out in turn. A batch that raises is forgotten; the same
txid may be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.execution.plan import Exchange
from windowing.schema.checks import did_you_mean
from windowing.topology.components import TaskContext
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.fields import PartitionRouter, Row
from windowing.trident.graph import SpoutNode
from windowing.trident.kinds import FIRST_TXID, TransactionAttempt
from windowing.trident.operations import SinkOperation
from windowing.trident.plan import Phase, TridentPlan
from windowing.trident.processors import ProcessorContext, RowMaker, TridentProcessor
from windowing.trident.state_operations import StatefulProcessor
from windowing.trident.windows import LateTuples, WindowClock, WindowOperation, WindowProcessor

__all__ = [
    "BatchInFlight",
    "ExchangeBatch",
    "ExchangeWriter",
    "GroupBatch",
    "GroupOutput",
    "Subtopology",
    "TridentRun",
]


class ExchangeWriter:
    """One task's end of an exchange."""

    def __init__(self, plan: TridentPlan, exchange: Exchange, task: int) -> None:
        self.exchange = exchange
        self.router = PartitionRouter(exchange.grouping, exchange.schema, task, plan.stage(exchange.target).parallelism)
        windows = [plan.processor(target) for target, _ in exchange.targets]
        self.clocks = [
            WindowClock(node.operation.config, node.inputs[0])
            for node in windows
            if isinstance(node.operation, WindowOperation)
        ]

    def start_batch(self, batch: ProcessorContext) -> ExchangeBatch:
        """Begin a batch."""
        return ExchangeBatch(self, batch)


class ExchangeBatch:
    """One batch on its way over an exchange. largest: what to send every task of the target when all rows are sent."""

    def __init__(self, writer: ExchangeWriter, batch: ProcessorContext) -> None:
        self._writer, self._batch = writer, batch
        self._state = writer.router.start(batch.txid)
        self.largest: dict[str | None, int] = {}

    def route(self, rows: list[Row]) -> dict[int, list[Row]]:
        """Return the rows for each task of the target."""
        for clock in self._writer.clocks:
            for source, timestamp in clock.largest(rows, self._batch.now_ms).items():
                self.largest[source] = max(timestamp, self.largest.get(source, timestamp))
        return self._writer.router.route(rows, self._batch.txid, self._state)


# -- Subtopology -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GroupOutput:
    """What a task gave: rows for exchanges, by id, for sinks, by name, and the answers to a request of DRPC."""

    exchanges: dict[int, list[Row]] = field(default_factory=dict)
    sinks: dict[str, list[Row]] = field(default_factory=dict)
    answers: list[Row] = field(default_factory=list)


class Subtopology:
    """Makes the processors of a stage for one task. states: the partitions that this task holds, by id of the state.

    Cost of a batch: that of its operations; no row is copied on the way from one to the next.
    """

    def __init__(
        self,
        plan: TridentPlan,
        stage: str,
        task: int = 0,
        states: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan, self.stage = plan, plan.stage(stage)
        self._context = TaskContext(self.stage.component, task, self.stage.parallelism, plan.config)
        self.processors: dict[int, TridentProcessor] = {}
        self._reports: list[BaseException] = []
        inside = set(self.stage.operators)
        for number in () if self.stage.is_spout else sorted(inside):
            node = plan.processor(number)
            processor = self.processors[number] = node.operation.processor(node)
            processor.report = self._reports.append
            if isinstance(processor, StatefulProcessor):
                processor.state = (states or {})[processor.state_id]
        self.inner: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in inside}
        for edge in plan.graph.edges:
            if edge.source in inside and edge.target in inside:
                late = isinstance(plan.processor(edge.target).operation, LateTuples)
                self.inner[edge.source].append((edge.target, edge.index, late))
        self.outer: dict[int, list[Exchange]] = {number: [] for number in inside}
        for exchange in plan.out_of(stage):
            self.outer[exchange.source].append(exchange)
        self.sinks = {
            number: str(node.operation.name)
            for number in self.processors
            for node in [plan.processor(number)]
            if isinstance(node.operation, SinkOperation)
        }
        self.answers = {drpc.answer for drpc in plan.drpc.values()} & inside

    def prepare(self) -> None:
        """Make the instances of the users' code."""
        for processor in self.processors.values():
            processor.prepare(self._context)

    def start_batch(self, batch_group: str, batch: ProcessorContext) -> GroupBatch:
        """Begin a batch, or a request, of one batch group."""
        return GroupBatch(self, batch_group, batch)

    def windows(self) -> dict[int, WindowProcessor]:
        """Return the windows of this task by node, for whoever keeps their snapshots."""
        return {number: found for number, found in self.processors.items() if isinstance(found, WindowProcessor)}

    def take_reports(self) -> list[BaseException]:
        """Return what users' code has reported since the last call, in a batch that failed too."""
        taken = self._reports[:]
        self._reports.clear()
        return taken

    def cleanup(self) -> None:
        """Call the users' `cleanup`."""
        for processor in self.processors.values():
            processor.cleanup()


class GroupBatch:
    """One attempt at one batch, in one task of a group."""

    def __init__(self, subtopology: Subtopology, batch_group: str, batch: ProcessorContext) -> None:
        plan = subtopology.plan
        self.batch_group, self.batch = batch_group, batch
        self._task = subtopology
        self._nodes = [number for number in subtopology.processors if plan.batch_groups[number] == batch_group]
        self._slots = {number: subtopology.processors[number].start_batch(batch) for number in self._nodes}
        self._emitted = GroupOutput()

    def slot(self, number: int) -> Any:
        """Return what a node keeps of the batch, for whoever folds tuples into it by another way."""
        return self._slots[number]

    def execute(self, exchange: Exchange, rows: list[Row]) -> None:
        """Take in rows that came over an exchange."""
        for target, index in exchange.targets:
            self._run([(target, index, rows)])

    def observe(self, exchange: Exchange, largest: Mapping[str | None, int]) -> None:
        """Take in the largest timestamps of what an upstream task sent to all tasks (see ExchangeWriter)."""
        for target, _ in exchange.targets:
            processor = self._task.processors[target]
            if isinstance(processor, WindowProcessor):
                processor.observe(self._slots[target], largest)

    def finish_batch(self) -> None:
        """End the processing phase: every tuple of it has been taken in."""
        self._finish(Phase.PROCESS)

    def commit_batch(self) -> None:
        """Commit: write states, move windows on. The batches before this one have been committed."""
        self._finish(Phase.COMMIT)

    def take(self) -> GroupOutput:
        """Return what was emitted since the last call."""
        taken, self._emitted = self._emitted, GroupOutput()
        return taken

    def _finish(self, phase: Phase) -> None:
        for number in self._nodes:  # in the order of the graph, so that each has all of its tuples
            if self._task.plan.phases[number] is not phase:
                continue
            processor, slot = self._task.processors[number], self._slots[number]
            self._emit(number, processor.finish_batch(slot), late=False)
            self._emit(number, processor.take_late(slot), late=True)

    def _run(self, ahead: list[tuple[int, int, list[Row]]]) -> None:
        """Take rows through the group, depth first, as each of them would go by itself."""
        while ahead:
            number, index, rows = ahead.pop()
            made = self._task.processors[number].execute(self._slots[number], rows, index)
            ahead += reversed(self._onward(number, made, late=False))

    def _emit(self, number: int, rows: list[Row], *, late: bool) -> None:
        self._run(self._onward(number, rows, late=late)[::-1])

    def _onward(self, number: int, rows: list[Row], *, late: bool) -> list[tuple[int, int, list[Row]]]:
        """Put rows of a node where they go, and return which nodes of the group are to take them in."""
        if not rows:
            return []
        for exchange in self._task.outer[number]:
            if exchange.late is late:
                self._emitted.exchanges.setdefault(exchange.id, []).extend(rows)
        if number in self._task.sinks:
            self._emitted.sinks.setdefault(self._task.sinks[number], []).extend(rows)
        if number in self._task.answers and not late:
            self._emitted.answers.extend(rows)
        return [(target, index, rows) for target, index, is_late in self._task.inner[number] if is_late is late]


# -- TridentRun ------------------------------------------------------------------------------------------------------------------


RowsByStream = Mapping[str, Iterable[Any]]


class TridentRun:
    """Runs a plan in this thread. `states[id][i]` is partition i of a state; `piece`: how many rows at most travel together.

    >>> from windowing.trident.builtins import Count
    >>> from windowing.trident.streams import TridentTopology
    >>> from windowing.topology.decorators import spout
    >>> @spout(output="word string")
    ... def words():
    ...     yield "to"
    >>> topology = TridentTopology()
    >>> stream = topology.new_stream("words", words).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    >>> sorted(TridentRun(topology.build()).batch({"words": ["to", "be", "to"]})["counts"])
    [('be', 1), ('to', 2)]
    """

    def __init__(self, plan: TridentPlan, piece: int | None = None) -> None:
        self.plan, self.piece = plan, piece
        self.next_txid = FIRST_TXID
        self.errors: list[BaseException] = []
        """What users' code has reported."""
        self._begun = False
        self.states: dict[str, list[Any]] = {
            id: [state.spec.factory.make_state(partition, state.partitions) for partition in range(state.partitions)]
            for id, state in plan.states.items()
        }
        self.tasks = {
            id: [Subtopology(plan, id, task, self._partitions(task)) for task in range(group.parallelism)]
            for id, group in plan.stages.items()
        }
        self.writers = {
            exchange.id: [
                ExchangeWriter(plan, exchange, task) for task in range(plan.stage(exchange.stage).parallelism)
            ]
            for exchange in plan.exchanges
        }
        for task in (task for tasks in self.tasks.values() for task in tasks):
            task.prepare()

    def _partitions(self, task: int) -> dict[str, Any]:
        return {id: partitions[task] for id, partitions in self.states.items() if task < len(partitions)}

    def batch(self, rows: RowsByStream, now_ms: int | None = None, drain: bool = False) -> dict[str, list[Row]]:
        """Process and commit one batch, given by name of the stream; return the rows of each sink. drain: it is the last."""
        sinks = self.begin(rows, now_ms=now_ms, drain=drain).commit()
        self.next_txid += 1
        return sinks

    def begin(
        self,
        rows: RowsByStream,
        attempt: int = 0,
        txid: int | None = None,
        now_ms: int | None = None,
        drain: bool = False,
    ) -> BatchInFlight:
        """Process a batch without committing it; to drop it is to forget it. Raises SupersededError, at the first, for states that
        hold batches of another run, whose txids would come again; a txid that is given says that they are meant."""
        if not self._begun and txid is None:
            progress = Progress.of(f"a TridentRun of topology {self.plan.name!r}", 0, None)
            owned(Life(self.plan.name), self.plan.written, progress, claims=False)
        self._begun = True
        for name in rows:
            known = [str(spout.source.name) for spout in self.plan.spouts if spout.kind is not None]
            if name not in known:
                raise ConfigError(f"there is no stream {quote(name)}; {did_you_mean(str(name), known)}")
        number = self.next_txid if txid is None else txid
        batch = ProcessorContext(TransactionAttempt(number, attempt), now_ms, as_of=number - 1, drain=drain)
        groups = {self.plan.batch_groups[spout.number] for spout in self.plan.spouts if spout.kind is not None}
        return BatchInFlight(
            self, batch, groups, {spout.number: rows.get(str(spout.source.name), ()) for spout in self.plan.spouts}
        )

    def ask(self, function: str, args: str) -> list[Row]:
        """Return what a function of DRPC answers."""
        found = self.plan.drpc.get(function)
        if found is None:
            raise ConfigError(f"there is no function {quote(function)}; {did_you_mean(str(function), self.plan.drpc)}")
        groups = {self.plan.batch_groups[found.spout]}
        flight = BatchInFlight(self, ProcessorContext(("request", function)), groups, {found.spout: [(args,)]})
        flight.commit()
        return flight.answers

    def close(self) -> None:
        """Call the users' `cleanup`, and close the states."""
        for tasks in self.tasks.values():
            for task in tasks:
                task.cleanup()
        for partitions in self.states.values():
            for state in partitions:
                state.close()


class BatchInFlight:
    """One attempt at a batch, through all groups, phase by phase."""

    def __init__(
        self, run: TridentRun, batch: ProcessorContext, batch_groups: set[str], rows: Mapping[int, Iterable[Any]]
    ) -> None:
        self._run, self._plan, self._batch = run, run.plan, batch
        self.sinks: dict[str, list[Row]] = {name: [] for name in run.plan.sinks}
        self.answers: list[Row] = []
        self._tasks: dict[tuple[str, str], list[GroupBatch]] = {
            (group.id, name): [task.start_batch(name, batch) for task in run.tasks[group.id]]
            for group in self._plan.stages.values()
            for name in group.batch_groups
            if name in batch_groups and not group.is_spout
        }
        self._writers: dict[int, list[ExchangeBatch]] = {
            id: [writer.start_batch(batch) for writer in writers] for id, writers in run.writers.items()
        }
        for spout in self._plan.spouts:
            if self._plan.batch_groups[spout.number] in batch_groups:
                self._emit_spout(spout, list(rows.get(spout.number, ())))
        self._walk(Phase.PROCESS)

    def commit(self) -> dict[str, list[Row]]:
        """Commit, and return the rows of each sink."""
        self._walk(Phase.COMMIT)
        return self.sinks

    def _emit_spout(self, spout: SpoutNode, rows: list[Any]) -> None:
        group = self._plan.stage_of(spout.number)
        checked = list(map(RowMaker(spout.schema).one, rows))
        for task in range(group.parallelism):
            part = checked[task :: group.parallelism]
            for exchange in self._plan.out_of(group.id):
                self._send(exchange, task, part)

    def _walk(self, phase: Phase) -> None:
        """Finish every group in order: those that it reads have been finished before it."""
        for (id, _), tasks in self._tasks.items():
            for exchange in self._plan.into(id):
                if self._plan.phases[exchange.source] is phase and exchange.to_window:
                    for writer in self._writers[exchange.id]:
                        for task in tasks:
                            task.observe(exchange, writer.largest)
            for number, task in enumerate(tasks):
                try:
                    if phase is Phase.PROCESS:
                        task.finish_batch()
                    else:
                        task.commit_batch()
                finally:
                    self._run.errors += self._run.tasks[id][number].take_reports()
                self._deliver(number, task.take())

    def _deliver(self, task: int, emitted: GroupOutput) -> None:
        for id, rows in emitted.exchanges.items():
            self._send(self._plan.exchanges[id], task, rows)
        for name, rows in emitted.sinks.items():
            self.sinks[name] += rows
        self.answers += emitted.answers

    def _send(self, exchange: Exchange, task: int, rows: list[Row]) -> None:
        targets = self._tasks[exchange.target, exchange.batch_group]
        size = self._run.piece or len(rows) or 1
        for start in range(0, len(rows), size):
            for target, part in self._writers[exchange.id][task].route(rows[start : start + size]).items():
                targets[target].execute(exchange, part)
