"""The stages of a topology on Spark: the stage of a spout, and one micro-batch of a task behind an exchange.

    a spout's DataFrame --SpoutStage--> packets --operator, StageTaskTurn--> packets --operator, StageTaskTurn--> packets

    state + rows --> windows: TaskStage.turn (window_turn.py) --+
                 --> any other bolt: BoltBatch (tasks.py) ------+--> StageWriter --> rows, changes of the state

A turn is a pure function of (state, rows): the same on Spark and in tests, in every repetition. Nothing is written before the whole
turn is computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from windowing.execution.plan import StageTask
from windowing.schema.checks import DEFAULT_STREAM
from windowing.spark.acks import NO_ROOTS, root_of
from windowing.spark.context import ExecutionContext
from windowing.spark.exchange import (
    BATCH_CLOCK,
    FIRST_TASK,
    ExchangeRow,
    clock_of,
    clocked,
    record_batches,
    size_of,
    task_column,
)
from windowing.spark.metrics import MetricsChannel
from windowing.spark.operator import ArrowStage, Stored, TaskResult, packed
from windowing.spark.output import columns_as_declared
from windowing.spark.rows import TupleRows
from windowing.spark.shipping import Shipped
from windowing.spark.stage_writer import StageWriter, as_asked, spread_of
from windowing.spark.window_turn import AckWatch, TaskStage
from windowing.topology.groupings import FieldsGrouping
from windowing.topology.plan import stream_name
from windowing.topology.user_code import EmittedRow
from windowing.windows.aggregate import aggregated_fields
from windowing.windows.measures import Count

# -- Behind a spout --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpoutStage(ArrowStage):
    """The stage of one stream of a spout, run on each partition; it packs rows for their readers.

    is_hashed: whether the JVM computed the tasks of the only reader behind an exchange. channel: the channel for its metrics.
    """

    execution: Shipped[ExecutionContext]
    spout: str
    stream: str
    is_hashed: bool = False
    channel: MetricsChannel | None = None

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Yield packets for each Arrow batch, then the control rows of the partition."""
        execution = self.execution.value
        task = partition % execution.component(self.spout).parallelism
        source = execution.acks.get((self.spout, self.stream))
        roots = NO_ROOTS if source is None else (root_of(execution.batches_before + number, source),)
        now, given = clocked(batches)
        if now is None:
            return
        writer = StageWriter(execution, partition, now, number)
        try:
            for rows, tasks in given:
                writer.send(self.spout, task, self.stream, rows, roots, tasks if self.is_hashed else None)
                writer.run()
                yield from record_batches(writer.take())
            yield from record_batches(writer.finish())
            if self.channel is not None:
                self.channel.send(number, partition, now, writer.done())
        finally:
            writer.abandon()


def hashed_reader(execution: ExecutionContext, spout: str, stream: str) -> tuple[tuple[str, ...], int] | None:
    """Return the grouping fields and the number of tasks of the only reader of a stream behind an exchange; None if there are
    several readers, or if the JVM cannot compute the hash.
    """
    leading = [each for each in execution.plan.out_of(spout) if (each.source, each.stream) == (spout, stream)]
    if len(leading) != 1:
        return None
    (exchange,) = leading
    grouping, tasks = exchange.grouping, execution.plan.stages[exchange.target].parallelism
    if type(grouping) is not FieldsGrouping or spread_of(grouping, tasks, exchange.schema) is None:
        return None
    return tuple(grouping.fields), tasks


def spout_packets(
    rows: DataFrame,
    execution: Shipped[ExecutionContext],
    spout: str,
    stream: str,
    channel: MetricsChannel | None = None,
    clock: str = BATCH_CLOCK,
) -> DataFrame:
    """Return the exchange rows of a stream of a spout; the columns of `rows` are its fields, in order. The JVM computes the tasks
    if there is a `hashed_reader`; otherwise the worker computes them with numpy.
    """
    reader = hashed_reader(execution.value, spout, stream)
    stage = SpoutStage(execution, spout, stream, reader is not None, channel)
    return packed(rows, stage, None if reader is None else task_column(rows, *reader), clock)


# -- Behind an exchange ----------------------------------------------------------------------------------------------------------


class StageTaskTurn:
    """The turns of a task of a bolt; it has no state between turns."""

    def __init__(self, execution: ExecutionContext, task: StageTask) -> None:
        self._execution, self._number = execution, task.number
        self._name, self._task = task.component, task.task
        self._component = execution.component(task.component)
        self._format = TupleRows(execution, task.component)
        self._context = execution.context(task.component, task.task)
        self._acked = task.component in execution.rooted
        self._window = None if self._component.window is None else self._stage()

    def run(self, rows: Sequence[ExchangeRow], stored: Stored, batch: int) -> TaskResult:
        """Process the rows for this task, in any order. Raises BoltError, CorruptStateError, GroupingError."""
        if not rows:
            return TaskResult()
        began = time.perf_counter()
        writer = StageWriter(self._execution, FIRST_TASK + self._number, clock_of(rows), batch)
        try:
            if self._window is None:
                result = self._bolt_turn(writer, [row for row in rows if row.kind == "rows"], stored, batch)
            else:
                result = self._window_turn(self._window, writer, rows, stored, batch)
            writer.run()
            result.output = [*writer.take(), *result.output, *writer.finish()]
        finally:
            writer.abandon()
        took_ms, written = 1000 * (time.perf_counter() - began), writer.done()
        fused_ms = sum(each.execute_ms for each in written if each.component != self._name)
        for own in result.done:
            own.execute_ms = max(0.0, took_ms - fused_ms)
        result.done = [*result.done, *written]
        return result

    def _stage(self) -> TaskStage:
        window = self._execution.windows[self._name]
        config = window.config
        late = self._component.outputs.get(config.late_stream or "")
        # Of panes of counts on event time the tuples that are not numbered yet are stored, and these are no plain data.
        by_count = config.event_time and type(config.length) is type(config.slide) is Count
        stores_tuples = by_count and config.aggregate is not None and None in aggregated_fields(config.aggregate)
        return TaskStage(
            bolt=window,
            format=self._format,
            streams=tuple(stream_name(found.component, found.stream) for found in self._component.inputs),
            late_fields=None if late is None else late.schema.names[:-1],  # the last is the reason
            context=self._context,
            acks=self._acked,
            keeps_tuples=stores_tuples,
        )

    def _window_turn(
        self,
        stage: TaskStage,
        writer: StageWriter,
        rows: Sequence[ExchangeRow],
        stored: Stored,
        batch: int,
    ) -> TaskResult:
        name, task, readers_of = self._name, self._task, self._execution.topology.readers
        is_read = any(readers_of(name, stream) for stream in self._component.outputs)
        watch = AckWatch(writer.partials, name, is_read) if self._acked else None
        turn = stage.turn(task, stored, rows, batch, watcher=watch, fitted=self._fitted)
        late, own = iter(turn.late), self._execution.phases[name, task]
        anchors = repeat(NO_ROOTS) if watch is None else iter(watch.roots)

        for stream, run in groupby(turn.rows, key=itemgetter(0)):
            is_output = stream in self._component.outputs
            if stream == stage.late_stream:  # sent on unchanged; its values may be unreadable
                for (_, row), payload, roots in zip(run, late, anchors, strict=False):
                    writer.phase = payload._phase
                    if is_output:
                        writer.emit(name, task, EmittedRow(stream, as_asked(row)), roots)
                continue
            writer.phase = own
            of_rows = (((type(row), roots), row) for (_, row), roots in zip(run, anchors, strict=False))
            for (kind, roots), part in groupby(of_rows, key=itemgetter(0)):
                emitted = [row for _, row in part]
                if kind is pa.RecordBatch:
                    for table in emitted:
                        writer.send(name, task, stream, table, roots)
                elif kind is EmittedRow:
                    writer.emit_each(name, task, emitted, own, roots)
                elif is_output:
                    writer.emit_all(name, task, stream, emitted, own, roots)
        turn.output = writer.metrics(name, turn.metrics)
        return turn

    def _fitted(self, table: Any) -> pa.RecordBatch | None:
        """Return a table that the bolt returned in the types of its default stream, None if its rows must be checked one by one."""
        declared = self._execution.schemas[stream_name(self._name, DEFAULT_STREAM)]
        found = columns_as_declared(table, declared)
        if len(found) != len(declared) or not table.num_rows:
            return None
        return pa.RecordBatch.from_arrays([found[field.name] for field in declared], schema=declared)

    def _bolt_turn(self, writer: StageWriter, packets: list[ExchangeRow], stored: Stored, batch: int) -> TaskResult:
        name, task = self._name, self._task
        if not packets:
            return TaskResult()
        values = stored.task_values(name, task) if self._component.stateful else None
        running = writer.bolt_batch(name, task, values)
        try:
            table = self._format.arrived(packets)
            arrived: Iterable[Any] = ()
            if self._acked:
                arrived = self._format.payloads(table)
                writer.partials.done(arrived)
            if self._name in self._execution.columnar:
                arrived = self._format.batches(table)
            elif not self._acked:
                arrived = self._format.runs(table)
            running.take(arrived)
            running.close(batch + 1)
        finally:
            running.abandon()
        numbers = {"tuples": running.done.executed, **running.counts(), "bytes": size_of(packets)}
        found = TaskResult(writer.metrics(name, numbers), done=[running.metrics()])
        if values is not None:
            found.change(values)
        return found


def stage_turn(
    shipped: Shipped[ExecutionContext], number: int, rows: Sequence[ExchangeRow], stored: Stored, batch: int
) -> TaskResult:
    """Process a batch of the task with this number, as the operator runs it in a worker."""
    execution = shipped.value
    if number not in execution.turns:
        execution.turns[number] = StageTaskTurn(execution, execution.plan.tasks[number])
    result: TaskResult = execution.turns[number].run(rows, stored, batch)
    return result
