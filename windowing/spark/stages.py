"""One turn of a place: a task of a placed bolt takes its tuples of a batch and sends on what comes of them.

    state + rows of the wire --> windows: TaskStage.turn (turn.py) --+
                             --> any other bolt: BoltBatch ----------+--> StageWriter --> rows of the wire, changes of the state

A pure function of (state, rows): the same on Spark and in tests, however often it runs. Nothing is written before all of it
is computed.

The levels of a topology on Spark: what `mapInArrow` and `transformWithState` run, and how rows get from one to the next.

    a spout's DataFrame --SpoutStage--> rows of the wire --label, StageProcessor--> rows --label, StageProcessor--> rows
                                                              one grouping key per place

A row for another level, or for a sink, is given the key of some place of this level and handed on as it came.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windowing.execution.plan import StageTask
from windowing.spark import failpoints
from windowing.spark.arguments import Shipped
from windowing.spark.context import ExecutionContext, Origins
from windowing.spark.control import label_of_row
from windowing.spark.edges import NO_ROOTS, Partials, Roots, merged, root_of
from windowing.spark.exchange import NOW, PLACES, WIRE, ExchangeRow, frames_of, record_batch, rows_of, stream_name
from windowing.spark.failures import marked
from windowing.spark.operator import SIDE_STREAM, Control, TaskStage, batch_id, value_of, write
from windowing.spark.rows import Part, size_of
from windowing.spark.settings import seldom_collected
from windowing.spark.stage_writer import INVALID, StageWriter
from windowing.spark.state import Load, TaskValues
from windowing.spark.tasks import BoltBatch
from windowing.spark.tuple_rows import TupleRows
from windowing.topology.user_code import EmittedRow
from windowing.windows.events import TupleWindow

__all__ = [
    "SpoutStage",
    "StageProcessor",
    "StageTaskResult",
    "StageTaskTurn",
    "Stored",
    "emitted",
    "processed",
]


@dataclass(frozen=True)
class Stored:
    """What the store has of a place: its metadata, how to read a chunk and a value by key, and how to read all values."""

    metadata: bytes | None
    chunk: Load
    value: Load
    values: Callable[[], Iterable[tuple[bytes, bytes]]]


@dataclass
class StageTaskResult:
    """What a turn did: rows of the wire, new metadata (None: as it was), and the changes of chunks and values by key."""

    rows: list[ExchangeRow] = field(default_factory=list)
    metadata: bytes | None = None
    puts: dict[bytes, bytes] = field(default_factory=dict)
    drops: list[bytes] = field(default_factory=list)
    value_puts: dict[bytes, bytes] = field(default_factory=dict)
    value_drops: list[bytes] = field(default_factory=list)


class StageTaskTurn:
    """The turns of a place; it keeps nothing between them. `batch` is Spark's number of the batch."""

    def __init__(self, wiring: ExecutionContext, place: StageTask) -> None:
        self._wiring, self._place = wiring, place
        self._component = wiring.component(place.component)
        self._format = TupleRows(wiring, place.component)
        self._what = f"state of bolt {place.component!r}, task {place.task}"
        self._context = wiring.context(place.component, place.task)
        self._acked = place.component in wiring.rooted
        self._window = None if self._component.window is None else self._stage()

    def run(
        self, rows: Sequence[ExchangeRow], stored: Stored, batch: int, nonce: bytes | None = None
    ) -> StageTaskResult:
        """Take the rows that are meant for this place, in any order. Raises BoltError, CorruptStateError, GroupingError."""
        if not rows:
            return StageTaskResult()
        now = max(row.now for row in rows)
        flow = StageWriter(self._wiring, PLACES + self._place.number, now, Origins(self._wiring), batch)
        parts = [
            Part(row.stream, row.sender, row.sequence, row.now, row.data or b"") for row in rows if row.kind == "rows"
        ]
        if self._window is None:
            result = self._bolt_turn(flow, parts, stored, batch)
        else:
            result = self._window_turn(self._window, flow, rows, parts, stored, batch, nonce or os.urandom(8))
        flow.run()
        result.rows[:0] = flow.take()
        result.rows += flow.finish()
        return result

    def _stage(self) -> TaskStage:
        window = self._wiring.windows[self._place.component]
        late = self._component.outputs.get(window.config.late_stream or "")
        return TaskStage(
            bolt=window,
            columns=(),
            streams=tuple(stream_name(found.component, found.stream) for found in self._component.inputs),
            tasks=self._component.parallelism,
            late_stream=window.config.late_stream or SIDE_STREAM,
            late_fields=None if late is None else late.schema.names[:-1],  # the last is the reason
            format=self._format,
            settings=self._context.config,
            task_ids=self._wiring.task_ids,
            acks=self._acked,
        )

    def _is_read(self) -> bool:
        topology = self._wiring.topology
        return any(topology.readers(self._component.id, stream) for stream in self._component.outputs)

    def _values(self, stored: Stored) -> TaskValues | None:
        return TaskValues(stored.value, stored.values, self._what) if self._component.stateful else None

    def _window_turn(
        self,
        stage: TaskStage,
        flow: StageWriter,
        rows: Sequence[ExchangeRow],
        parts: list[Part],
        stored: Stored,
        batch: int,
        nonce: bytes,
    ) -> StageTaskResult:
        controls = [
            Control(row.kind, row.stream, row.source, row.value if row.kind == "max" else None, row.now)
            for row in sorted(rows, key=_told)
            if row.kind != "rows"
        ]
        values = self._values(stored)
        watch = _Watch(flow.partials, self._component.id, self._is_read()) if self._acked else None
        turn = stage.turn(
            self._place.task, stored.metadata, stored.chunk, parts, controls, nonce, values, batch + 1, watch
        )
        name, task = self._place.component, self._place.task
        late = iter(turn.late)
        anchors = [NO_ROOTS] * len(turn.rows) if watch is None else watch.roots
        for (stream, values_of_row), roots in zip(turn.rows, anchors, strict=True):
            # A late tuple is sent on as it arrives, all else by the turn.
            flow.phase = next(late).phase if stream == stage.late_stream else self._wiring.phases[name, task]
            if stream in self._component.outputs:
                flow.emit(name, task, EmittedRow(stream, values_of_row), roots)
        told = flow.metrics(name, {**turn.metrics, "bytes": size_of(parts), "now": flow.now})
        result = StageTaskResult(told, turn.metadata, turn.puts, turn.drops)
        if values is not None:
            result.value_puts, result.value_drops = values.puts, values.drops
        return result

    def _bolt_turn(self, flow: StageWriter, parts: list[Part], stored: Stored, batch: int) -> StageTaskResult:
        name, task = self._place.component, self._place.task
        if not parts:
            return StageTaskResult()
        values = self._values(stored)
        running = BoltBatch(
            self._component,
            self._context,
            self._wiring.retry,
            lambda row, roots, chosen: flow.emit(name, task, row, roots, chosen),
            lambda row: flow.choose(name, task, row),
            (lambda letter, roots: flow.letter(name, task, letter, roots)) if self._wiring.letters(name) else None,
            values,
            flow.in_phases,
        )
        arrived = self._format.payloads(self._format.arrived(parts))
        flow.partials.done(arrived)
        running.take(arrived)
        running.close(batch + 1)
        told = {
            "tuples": running.taken,
            "failed": running.failed,
            INVALID: running.invalid,
            "reported": running.reported,
            "bytes": size_of(parts),
        }
        result = StageTaskResult(flow.metrics(name, told))
        if values is not None:
            result.value_puts, result.value_drops = values.puts, values.drops
        return result


class _Watch:
    """What becomes of a windowed task's tuples in a turn, told to the partials; `roots[i]` are those of output row i, if somebody
    reads it: a row that only goes to a sink is committed with its batch.
    """

    def __init__(self, partials: Partials, component: str, is_read: bool) -> None:
        self._partials, self._component, self._is_read = partials, component, is_read
        self.roots: list[Roots] = []

    def fired(self, window: TupleWindow, rows: int) -> None:
        new = rows - len(self.roots)
        if new:
            self.roots += [_roots(window) if self._is_read else NO_ROOTS] * new

    def failed(self, window: TupleWindow) -> None:
        self._partials.fail(_roots(window), self._component)

    def late(self, payloads: Sequence[Any], rows: int) -> None:
        self.roots += [payload.roots for payload in payloads]
        self._partials.done(payloads)

    def expired(self, payloads: Sequence[Any]) -> None:
        self._partials.done(payloads)


def _roots(window: TupleWindow) -> Roots:
    return merged(payload.roots for payload in window.get())


def _told(row: ExchangeRow) -> tuple[object, ...]:
    return row.kind, row.stream, row.source is not None, row.source or "", row.sender


# -- The levels of a topology on Spark -------------------------------------------------------------------------------------------


_KEY_DDL, _VALUE_DDL = "id binary", "data binary"


class SpoutStage:
    """What runs on each partition of the rows of one stream of a spout; its rows leave packed for where they go."""

    def __init__(self, wiring: Shipped[ExecutionContext], spout: str, stream: str) -> None:
        self._wiring, self._spout, self._stream = wiring, spout, stream

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the wire for each batch, then what the partition has to say at its end."""
        context = TaskContext.get()
        with marked():
            yield from self.pack(batches, 0 if context is None else context.partitionId(), batch_id())

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Do the work of `__call__` for the upstream partition of this number, in the batch of that `number`."""
        wiring = self._wiring.value
        task = partition % wiring.component(self._spout).parallelism
        source = wiring.acks.get((self._spout, self._stream))
        roots = NO_ROOTS if source is None else (root_of(number, source),)
        flow: StageWriter | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if flow is None:
                flow = StageWriter(wiring, partition, batch.column(NOW)[0].as_py(), Origins(wiring), number)
            flow.send(self._spout, task, self._stream, batch.drop_columns([NOW]), roots)
            flow.run()
            yield record_batch(flow.take())
        if flow is not None:
            yield record_batch(flow.finish())


class StageProcessor(StatefulProcessor):
    """What transformWithState runs for each place of a level; `labels[i]` is the grouping key of the i-th."""

    def __init__(self, wiring: Shipped[ExecutionContext], level: int, labels: Sequence[int]) -> None:
        self._wiring = wiring
        self._places: dict[int, StageTask] = dict(zip(labels, wiring.value.plan.tasks_at(level), strict=True))
        self._turns: dict[int, StageTaskTurn] = {}

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state variables; called on the driver too, once, so nothing else happens here."""
        self._metadata = handle.getValueState("metadata", _VALUE_DDL)
        self._chunks = handle.getMapState("chunks", _KEY_DDL, _VALUE_DDL)
        self._values = handle.getMapState("values", _KEY_DDL, _VALUE_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one place, and hand on what is meant for others."""
        with marked(), seldom_collected():
            place = self._places[int(key[0])]
            taken = rows_of(rows)
            own = [row for row in taken if row.target == place.number]
            others = [row for row in taken if row.target != place.number]
            batch = batch_id()
            result = self._turn(place).run(own, self._stored(), batch)
            failpoints.hit("before_state_write", batch)
            self._write(result)
            failpoints.hit("after_state_write", batch)
            failpoints.hit("kill_worker", batch)
            return frames_of([*others, *result.rows])

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _turn(self, place: StageTask) -> StageTaskTurn:
        if place.number not in self._turns:
            self._turns[place.number] = StageTaskTurn(self._wiring.value, place)
        return self._turns[place.number]

    def _stored(self) -> Stored:
        metadata = self._metadata.get()
        return Stored(
            None if metadata is None else bytes(metadata[0]),
            lambda key: value_of(self._chunks, key),
            lambda key: value_of(self._values, key),
            lambda: ((bytes(key[0]), bytes(data[0])) for key, data in self._values.iterator()),
        )

    def _write(self, result: StageTaskResult) -> None:
        write(self._chunks, result.puts, result.drops)
        write(self._values, result.value_puts, result.value_drops)
        if result.metadata is not None:
            self._metadata.update((result.metadata,))


def emitted(rows: DataFrame, stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """Return the packed rows of a spout's DataFrame, whose columns are those of the stream, in order."""
    columns = [F.col(f"`{name}`").alias(f"c{number}") for number, name in enumerate(rows.columns)]
    now = F.unix_millis(F.current_timestamp()).alias(NOW)
    return rows.select(*columns, now).mapInArrow(stage, WIRE)


def processed(rows: DataFrame, wiring: Shipped[ExecutionContext], level: int, labels: Sequence[int]) -> DataFrame:
    """Return what a level makes of the rows of the wire; `labels` are the grouping keys of its places."""
    processor = StageProcessor(wiring, level, labels)
    labelled = rows.withColumn("label", label_of_row(labels, wiring.value.plan.tasks_at(level)[0].number))
    return labelled.groupBy("label").transformWithStateInPandas(processor, WIRE, "Append", "None")
