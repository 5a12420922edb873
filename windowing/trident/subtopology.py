"""Subtopology: one task of a group as a machine, with its exchanges; TridentRun: runs a plan batch by batch.

    batch = GroupBatch(subtopology, "bg0", ProcessorContext(TransactionAttempt(5, 0)))
    batch.execute(exchange, rows)       as tuples arrive, in pieces of any size
    batch.finish(Phase.PROCESS)         when all tuples of the processing phase have arrived
    batch.finish(Phase.COMMIT)          in the commit phase, in the order of the txids, when all tuples of that phase have arrived
    batch.take() -> GroupOutput         after any of them: rows for exchanges, for sinks, and for a DRPC caller

    rows --ExchangeWriter--> {task: rows}             by the grouping, from a start that depends on the batch
         --largest--> {source: timestamp}, for ALL tasks    over an exchange to a window: all tasks have the same watermark

Laws: the data of each batch is in its GroupBatch, so several can be under way; a failed batch is dropped by dropping its object.
The rows that a batch emits depend only on its tuples and the states, not on the pieces in which tuples arrive; but the tuples of
merged streams follow each other as they arrive. Source: Storm's `SubtopologyBolt`, `TridentBoltExecutor`.

TridentRun is the simple driver of the same machines, for the prompt and for tests: it defines the result that every driver must
give. The rows of a spout with several tasks are distributed in turn. A batch that raises is dropped; its txid may be tried again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from windowing.errors import ConfigError, GroupingError, quote
from windowing.execution.plan import Exchange
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.rows import row_converter
from windowing.schema.types import Row
from windowing.topology.components import TopologyContext
from windowing.topology.groupings import Grouping, IdentityGrouping
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.kinds import FIRST_TXID, Phase, TransactionAttempt
from windowing.trident.operations import SinkOperation
from windowing.trident.plan import TridentPlan
from windowing.trident.processors import ProcessorContext, TridentProcessor, call_hook, partition_of
from windowing.trident.state_operations import QueryProcessor, StatefulProcessor
from windowing.trident.windows import WindowProcessor


class ExchangeWriter:
    """One task's side of its exchanges in one batch. largest: by exchange the timestamps to send to every target task, after all
    rows; there are none over an exchange to no window on event time.

    Law: the tasks of a tuple depend only on (tuples, batch, task), so each attempt sends it to the same ones.
    """

    def __init__(self, plan: TridentPlan, task: int, batch: ProcessorContext) -> None:
        self._plan, self._task, self._batch = plan, task, batch
        self._chosen: dict[int, list[int]] = {}
        self.largest: dict[int, dict[str | None, int]] = {}

    def route(self, exchange: Exchange, rows: list[Row]) -> dict[int, list[Row]]:
        """Return the rows for each task of the target, in their order. Cost: at most one choice per row."""
        if not rows:
            return {}
        id, tasks, txid = exchange.id, self._plan.stages[exchange.target].parallelism, self._batch.txid
        for clock in self._plan.clocks[id] if exchange.to_window else ():
            for source, timestamp in clock.largest(rows, self._batch.now_ms).items():
                largest = self.largest.setdefault(id, {})
                largest[source] = max(timestamp, largest.get(source, timestamp))
        grouping = exchange.grouping
        if not isinstance(grouping, Grouping):
            return {self._task if isinstance(grouping, IdentityGrouping) else txid % tasks: rows}
        if id not in self._chosen:
            self._chosen[id] = grouping.start(tasks, self._task + txid)
        choose, chosen = self._plan.choosers[id], self._chosen[id]
        routed: dict[int, list[Row]] = {}
        try:
            for row in rows:
                for task in choose(row, chosen):
                    routed.setdefault(task, []).append(row)
        except GroupingError as problem:
            raise GroupingError(
                f"behind {self._plan.graph.nodes[exchange.source].called}: {problem.args[0]}"
            ) from problem
        return routed


# -- Subtopology -----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GroupOutput:
    """The rows that a task emitted: for exchanges by id, for sinks by name, and the answers of a DRPC request."""

    exchanges: dict[int, list[Row]] = field(default_factory=dict)
    sinks: dict[str, list[Row]] = field(default_factory=dict)
    answers: list[Row] = field(default_factory=list)


class Subtopology:
    """One task of a stage, with a processor for each operation. states: the partitions of this task, by id of the state.

    Cost of a batch: that of its operations; rows are not copied between operations.
    """

    def __init__(
        self,
        plan: TridentPlan,
        stage: str,
        task: int = 0,
        states: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan, self.stage = plan, plan.stages[stage]
        self._context = TopologyContext(self.stage.component, task, self.stage.parallelism, plan.config)
        self.processors: dict[int, TridentProcessor] = {}
        self._reports: list[BaseException] = []
        self.report = self._reports.append
        """Report an error of user code."""
        inside = set(self.stage.operators)
        for number in () if self.stage.is_spout else sorted(inside):
            node = plan.processor(number)
            processor = self.processors[number] = node.operation.processor(node)
            processor.report = self.report
            if isinstance(processor, StatefulProcessor):
                processor.state = (states or {})[processor.state_id]
            if isinstance(processor, QueryProcessor):
                processor.is_static = not plan.states[processor.state_id].is_written
        self.inner: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in inside}
        for edge in plan.graph.edges:
            if edge.source in inside and edge.target in inside:
                self.inner[edge.source].append((edge.target, edge.index, edge.late))
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
        """Make the instances of user code. If one of them raises, all are cleaned up, and their errors in `cleanup` are dropped."""
        try:
            for processor in self.processors.values():
                processor.prepare(self._context)
        except BaseException:
            with suppress(Exception):
                self.cleanup()
            raise

    def windows(self) -> dict[int, WindowProcessor]:
        """Return the windows of this task by node, for drivers that store their snapshots."""
        return {number: found for number, found in self.processors.items() if isinstance(found, WindowProcessor)}

    def window_counts(self) -> tuple[Counter[str], Counter[str]]:
        """Return the counts of the tuples of all windows of this task, added up, and of the late ones by reason."""
        counts, late = Counter[str](), Counter[str]()
        for window in self.windows().values():
            counts.update(window.counts())
            late.update(window.late)
        return counts, late

    def slowest_window(self) -> WindowProcessor | None:
        """Return the window of this task with the smallest watermark, or with none yet; None for a task without windows."""
        found = self.windows().values()
        return min(found, key=lambda each: (each.watermark is not None, each.watermark or 0), default=None)

    def take_reports(self) -> list[BaseException]:
        """Return the errors that user code reported since the last call, also in failed batches."""
        taken = self._reports[:]
        self._reports.clear()
        return taken

    def cleanup(self) -> None:
        """Call `cleanup` of user code, once; of all of it, even if some of it raises."""
        with ExitStack() as closing:
            for processor in reversed(self.processors.values()):
                closing.callback(processor.cleanup)


class GroupBatch:
    """One attempt at one batch, or a DRPC request, in one task of a group."""

    def __init__(self, subtopology: Subtopology, batch_group: str, batch: ProcessorContext) -> None:
        plan = subtopology.plan
        self.batch_group = batch_group
        self._task = subtopology
        self._nodes = [number for number in subtopology.processors if plan.batch_groups[number] == batch_group]
        self._slots = {number: subtopology.processors[number].start_batch(batch) for number in self._nodes}
        self._emitted = GroupOutput()

    def slot(self, number: int) -> Any:
        """Return a node's slot of the batch, for drivers that fold tuples into it themselves."""
        return self._slots[number]

    def execute(self, exchange: Exchange, rows: list[Row]) -> None:
        for target, index in exchange.targets:
            self._run([(target, index, rows)])

    def observe(self, exchange: Exchange, largest: Mapping[str | None, int]) -> None:
        """Record the largest timestamps that an upstream task sent to all tasks (see ExchangeWriter)."""
        for target, _ in exchange.targets:
            processor = self._task.processors[target]
            if isinstance(processor, WindowProcessor):
                processor.observe(self._slots[target], largest)

    def finish(self, phase: Phase) -> None:
        """End a phase, after all its tuples. The commit phase writes states and advances windows, after all earlier batches."""
        for number in self._nodes:  # in the order of the graph, so that each has all of its tuples
            if self._task.plan.phases[number] is not phase:
                continue
            processor, slot = self._task.processors[number], self._slots[number]
            self._run(self._onward(number, processor.finish_batch(slot), late=False)[::-1])
            if isinstance(processor, WindowProcessor):
                self._run(self._onward(number, slot.late, late=True)[::-1])

    def take(self) -> GroupOutput:
        taken, self._emitted = self._emitted, GroupOutput()
        return taken

    def late(self) -> dict[str, int]:
        """Return how many tuples of the batch were late in windows of this task, by reason, whether or not a stream reads them."""
        windows = (number for number in self._nodes if isinstance(self._task.processors[number], WindowProcessor))
        return Counter(row[-1] for number in windows for row in self._slots[number].late)

    def _run(self, ahead: list[tuple[int, int, list[Row]]]) -> None:
        """Take rows through the group depth first, in the order in which single rows would go."""
        while ahead:
            number, index, rows = ahead.pop()
            made = self._task.processors[number].execute(self._slots[number], rows, index)
            ahead += reversed(self._onward(number, made, late=False))

    def _onward(self, number: int, rows: list[Row], *, late: bool) -> list[tuple[int, int, list[Row]]]:
        """Route the rows of a node to exchanges and sinks, and return the nodes of the group that process them next."""
        if not rows:
            return []
        for exchange in self._task.outer[number]:
            if exchange.late is late:
                self._emitted.exchanges.setdefault(exchange.id, []).extend(rows)
        if number in self._task.sinks:
            self._emitted.sinks.setdefault(self._task.sinks[number], []).extend(rows)
        if number in self._task.answers:
            self._emitted.answers.extend(rows)
        return [(target, index, rows) for target, index, is_late in self._task.inner[number] if is_late is late]


# -- TridentRun ------------------------------------------------------------------------------------------------------------------


RowsByStream = Mapping[str, Iterable[Any]]


class TridentRun:
    """Runs a plan in this thread. `states[id][i]` is partition i of a state; `piece`: the largest number of rows in a piece.

    >>> from windowing import spout
    >>> from windowing.trident import Count, TridentTopology
    >>> @spout(output="word string")
    ... def words():
    ...     yield "to"
    >>> topology = TridentTopology()
    >>> stream = topology.new_stream("words", words).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    >>> sorted(TridentRun(topology.build()).batch({"words": ["to", "be", "to"]})["counts"])
    [('be', 1), ('to', 2)]
    """

    def __init__(self, plan: TridentPlan, piece: int | None = None) -> None:
        if not isinstance(plan, TridentPlan):
            raise ConfigError(f"TridentRun takes a TridentPlan, got {quote(plan)}; give topology.build()")
        self.plan, self.piece = plan, piece
        self.next_txid = FIRST_TXID
        self.errors: list[BaseException] = []
        """The errors that user code has reported."""
        self._begun = False
        self.states: dict[str, list[Any]] = {
            id: [partition_of(state.factory, id, part, state.partitions) for part in range(state.partitions)]
            for id, state in plan.states.items()
        }
        self.tasks = {
            id: [
                Subtopology(plan, id, task, {name: all[task] for name, all in self.states.items() if task < len(all)})
                for task in range(group.parallelism)
            ]
            for id, group in plan.stages.items()
        }
        try:
            for task in (task for tasks in self.tasks.values() for task in tasks):
                task.prepare()
        except BaseException:
            with suppress(Exception):
                self.close()
            raise

    def batch(self, rows: RowsByStream, now_ms: int | None = None, drain: bool = False) -> dict[str, list[Row]]:
        """Process and commit one batch, given by the names of the streams; return the rows of each sink.

        now_ms: the clock, for windows on processing time. drain: it is the last.
        """
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
        """Process a batch without committing it; drop the returned object to drop the batch.

        The first batch raises SupersededError for states with batches of another run, because its txids would repeat theirs; pass
        `txid` to continue such states.
        """
        if not self._begun and txid is None:
            progress = Progress.of(f"a TridentRun of topology {self.plan.name!r}", 0, None)
            owned(Life(self.plan.name), self.plan.written, progress, claims=False)
        self._begun = True
        given = {self.plan.source_of(name).number: found for name, found in rows.items()}
        number = self.next_txid if txid is None else txid
        batch = ProcessorContext(TransactionAttempt(number, attempt), now_ms, as_of=number - 1, drain=drain)
        groups = {self.plan.batch_groups[spout.number] for spout in self.plan.streams.values()}
        return BatchInFlight(self, batch, groups, given)

    def ask(self, function: str, args: str) -> list[Row]:
        """Return the answer of a DRPC function."""
        found = self.plan.function(function)
        groups = {self.plan.batch_groups[found.spout]}
        flight = BatchInFlight(self, ProcessorContext(("request", function)), groups, {found.spout: [(args,)]})
        flight.commit()
        return flight.answers

    def close(self) -> None:
        """Call `cleanup` of user code, and close the states."""
        with ExitStack() as closing:
            for state in (state for partitions in self.states.values() for state in partitions):
                closing.callback(call_hook, state, "close")
            for task in (task for tasks in self.tasks.values() for task in tasks):
                closing.callback(task.cleanup)


class BatchInFlight:
    """One attempt at a batch, through all groups, phase by phase."""

    def __init__(
        self, run: TridentRun, batch: ProcessorContext, batch_groups: set[str], rows: Mapping[int, Iterable[Any]]
    ) -> None:
        self._run, self._plan, self._batch = run, run.plan, batch
        self.sinks: dict[str, list[Row]] = {name: [] for name in run.plan.sinks}
        self.answers: list[Row] = []
        self._tasks: dict[tuple[str, str], list[GroupBatch]] = {
            (group.id, name): [GroupBatch(task, name, batch) for task in run.tasks[group.id]]
            for group in self._plan.stages.values()
            for name in group.batch_groups
            if name in batch_groups and not group.is_spout
        }
        self._writers = {
            stage.id: [ExchangeWriter(run.plan, task, batch) for task in range(stage.parallelism)]
            for stage in run.plan.stages.values()
        }
        for spout in self._plan.spouts:
            if self._plan.batch_groups[spout.number] in batch_groups:
                checked = list(map(row_converter(spout.schema, DEFAULT_STREAM), rows.get(spout.number, ())))
                group = self._plan.stage_of(spout.number)
                for task in range(group.parallelism):
                    for exchange in self._plan.out_of(group.id):
                        self._send(exchange, task, checked[task :: group.parallelism])
        self._walk(Phase.PROCESS)

    def commit(self) -> dict[str, list[Row]]:
        self._walk(Phase.COMMIT)
        return self.sinks

    def late(self) -> dict[tuple[str, str], int]:
        """Return how many tuples were late in windows, by group and reason."""
        found = Counter[tuple[str, str]]()
        for (group, _), tasks in self._tasks.items():
            for task in tasks:
                found.update({(group, reason): count for reason, count in task.late().items()})
        return found

    def _walk(self, phase: Phase) -> None:
        """Finish every group in order, each after the groups that it reads."""
        for (id, batch_group), tasks in self._tasks.items():
            for exchange in self._plan.into(id):
                if (
                    exchange.batch_group == batch_group
                    and exchange.to_window
                    and self._plan.phases[exchange.source] is phase
                ):
                    for writer in self._writers[exchange.stage]:
                        for task in tasks:
                            task.observe(exchange, writer.largest.get(exchange.id, {}))
            for number, task in enumerate(tasks):
                try:
                    task.finish(phase)
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
        targets, writer = self._tasks[exchange.target, exchange.batch_group], self._writers[exchange.stage][task]
        size = self._run.piece or len(rows) or 1
        for start in range(0, len(rows), size):
            for target, part in writer.route(exchange, rows[start : start + size]).items():
                targets[target].execute(exchange, part)
