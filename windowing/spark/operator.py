"""What Spark runs in a worker: stages without a state, for each partition; tasks, of which one has a grouping key, in turns.

    rows of a partition --ArrowStage.pack--> exchange rows

    rows of a key --+--> for this task --> TaskTurn -----> changes of the state, rows or a table
                    +--> for later stages, for the driver ------------------> passed on unchanged

    a bolt alone   window_turn.py      a task of a topology   stages.py      a group of Trident   trident_stages.py

Spark stores the state of a task: "metadata" (one value), "chunks" and "values" (maps of bytes to bytes: the tuples of windows, and
the state of a bolt with `init_state`). Laws: the result of a turn is a function of (state, rows), independent of the order in which
a shuffle delivers rows. Nothing is written before everything is computed.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructType

from windowing.columnar.rows import cut
from windowing.errors import CheckpointError, WorkerLostError
from windowing.execution.metrics import TaskMetrics
from windowing.spark import failpoints
from windowing.spark.control import label_of_row
from windowing.spark.exchange import (
    BATCH_CLOCK,
    CLOCK_APART,
    CLOCK_BITS,
    EXCHANGE,
    FIRST_TASK,
    TASK_AND_CLOCK,
    ExchangeRow,
    batch_id,
    clock_of,
    evaluated_part,
    record_batches,
    rows_of,
)
from windowing.spark.failures import Seal, end_with_spark, marked
from windowing.spark.metrics import MetricsChannel
from windowing.spark.output import frame_of, quoted
from windowing.spark.shipping import serializer
from windowing.spark.spouts import operators_of
from windowing.spark.state import NOTHING, Load, TaskValues

# -- A worker ---------------------------------------------------------------------------------------------------------------------

_modules = 0
"""The number of imported modules when their objects were frozen."""
_OBJECTS = 50_000
"""Costs next to nothing, and still bounds the memory that cycles of a bolt's own objects can hold."""


@contextmanager
def prepared_worker() -> Iterator[None]:
    """Run a task of this library in this process inside the `with` block.

    All existing objects are excluded from further garbage collections. PySpark collects after each task: traversing the objects of
    850 modules (pandas, PyArrow, PySpark) took three quarters of the CPU of a worker with small tasks. Objects are frozen only if
    modules have been imported since the last time. A frozen cycle that becomes garbage is never freed, at most once for each
    import. Reference counting is not affected.

    Inside the block the cycle collector runs less often; one that is off stays off. A task makes at least one object per row, key
    or window, hardly any of them in a cycle; with Python's default of a run every 700 objects it took a fifth of the time of a turn
    of 500,000 rows, and a ninth of that of bolts fused to a spout.

    >>> with prepared_worker():
    ...     gc.get_threshold()[0] >= 50_000
    True
    """
    global _modules
    if len(sys.modules) != _modules:
        end_with_spark()
        _modules = len(sys.modules)
        gc.freeze()
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def expect(objects: int) -> None:
    """Let the cycle collector of a prepared worker run only after as many more objects: those that a turn makes of its rows are in
    no cycle, and to traverse them again and again takes a tenth of the time of a turn of 100,000 tuples.
    """
    young, *older = gc.get_threshold()
    if young >= _OBJECTS:
        gc.set_threshold(min(young + objects, 2**31 - 1), *older)


# -- Stages without a state: mapInArrow -------------------------------------------------------------------------------------------


class ArrowStage:
    """The function that `mapInArrow` runs on each partition of a stage without state."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_seal": Seal()}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        with prepared_worker(), marked():
            yield from self.pack(batches, 0 if context is None else context.partitionId(), batch_id())

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the exchange rows of the partition, in the batch of this `number`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReadOnce(ArrowStage):
    """The stage of a source whose rows may come in another order when Spark reads them again.

    It refuses to read them once the batch is evaluated: the state is that of the first order, so a window of counts would lose or
    repeat tuples. Raises WorkerLostError. Within the job that evaluates a batch, Spark itself compares the packets of two attempts,
    and fails the job if they differ (settings.py). After both, the query repeats the batch (running.py).
    """

    stage: ArrowStage

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        if evaluated_part() is not None:
            raise WorkerLostError(
                f"rows of batch {number} were lost with an executor after the batch was evaluated, and their source is behind a "
                "shuffle, which may give them in another order: nothing more of the batch is written, and it is evaluated anew; "
                "look for what ends executors. A fixed order, order_by= of windowed(), makes such rows the same again"
            )
        yield from self.stage.pack(batches, partition, number)


def packed(
    rows: DataFrame, stage: ArrowStage, task: str | None = None, clock: str = BATCH_CLOCK, is_ordered: bool = False
) -> DataFrame:
    """Return the exchange rows that a stage makes from a DataFrame. task: the expression of each row's task, if the JVM computes
    it. clock: BATCH_CLOCK, or CLOCK_APART for rows that a BatchWriter writes. is_ordered: whether the readers sort the rows.
    """
    columns = [f"{quoted(name)} AS c{number}" for number, name in enumerate(rows.columns)]
    both = clock if task is None else f"shiftleft(bigint({task}), {CLOCK_BITS}) | {clock}"
    if clock == CLOCK_APART and not is_ordered and has_no_fixed_order(rows):
        stage = ReadOnce(stage)
    return rows.selectExpr(*columns, f"{both} AS {TASK_AND_CLOCK}").mapInArrow(stage, EXCHANGE)


_NARROW = re.compile(
    "Project|Filter|SubqueryAlias|View|Union|Generate|Expand|EventTimeWatermark|MapInArrow|MapInPandas|MapPartitions|MapElements|"
    "AppendColumns|TypedFilter|SerializeFromObject|DeserializeToObject|CollectMetrics|UnresolvedHint|ResolvedHint"
)
"""The operators of Spark that keep the order of rows inside a partition; of all others some need a shuffle."""


def has_no_fixed_order(rows: DataFrame) -> bool:
    """Return whether Spark may give rows in another order when it reads them again, because they come through a shuffle.

    Cost: a few calls of the JVM for each operator of the plan.
    """
    return any(read and _NARROW.fullmatch(operator.nodeName()) is None for operator, read in operators_of(rows))


# -- Tasks: transformWithState ----------------------------------------------------------------------------------------------------


_FRAME_ROWS = 20_000
"""So many rows of a table are a frame; a frame has about 16 MiB, unless it is a single row."""
_KEY, _VALUE = StructType().add("id", BinaryType()), StructType().add("data", BinaryType())
"""Not as DDL, which Spark's JVM would parse ten times for each task and batch."""
_VARIABLES = (
    ("getValueState", "metadata", _VALUE),
    ("getMapState", "chunks", _KEY, _VALUE),
    ("getMapState", "values", _KEY, _VALUE),
)
"""Each takes the JVM some ms for each task and batch, in which it makes the code that encodes keys and values; so "values" is only
where a bolt has a state."""


@dataclass(frozen=True)
class Stored:
    """The stored state of a task: its metadata, and functions that read a chunk or a value by key, and all values. That of a new
    task is `Stored()`.
    """

    metadata: bytes | None = None
    chunk: Load = NOTHING.get
    value: Load = NOTHING.get
    values: Callable[[], Iterable[tuple[bytes, bytes]]] = NOTHING.items

    def task_values(self, bolt: str, task: int) -> TaskValues:
        return TaskValues(self.value, self.values, f"state of bolt {bolt!r}, task {task}")


@dataclass
class TaskResult:
    """The result of a turn: its rows, new metadata (None: unchanged), and the changes of chunks and values by key."""

    output: list[ExchangeRow] | pa.Table = field(default_factory=list)
    metadata: bytes | None = None
    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    drops: Sequence[bytes] = ()
    value_puts: Mapping[bytes, bytes] = field(default_factory=dict)
    value_drops: Sequence[bytes] = ()
    done: Sequence[TaskMetrics] = ()

    def change(self, values: TaskValues) -> None:
        """Take over the changes of a bolt's state."""
        self.value_puts, self.value_drops = values.puts, values.drops


TaskTurn = Callable[[int, Sequence[ExchangeRow], Stored, int], TaskResult]
"""Processes a batch of a task: the number of the task, its rows in any order (there may be none), its stored state, the number of
the batch. Between turns the only state of a task is in the store."""


class TaskProcessor:
    """The work of the operator that transformWithState runs for each task of a stage: task `first + i` has the grouping key
    `labels[i]`.

    turn: called only in workers. channel: the channel for a worker's metrics.
    """

    def __init__(
        self,
        turn: TaskTurn,
        labels: Sequence[int],
        first: int = 0,
        channel: MetricsChannel | None = None,
    ) -> None:
        self._turn, self._channel = turn, channel
        self._tasks = {label: number for number, label in enumerate(labels, first)}

    def take(self, variables: Sequence[Any]) -> None:
        """Take the state variables, in the order of `_VARIABLES`; without a state of a bolt the last one is missing."""
        self._metadata, self._chunks, self._values, *_ = *variables, None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one task. Spark may deliver its rows in several frames, so all are read first."""
        with prepared_worker(), marked():
            task, batch = self._tasks[int(key[0])], batch_id()
            taken = rows_of(rows)
            metadata = self._metadata.get()
            stored = Stored(
                None if metadata is None else bytes(metadata[0]),
                partial(_value_of, self._chunks),
                partial(_value_of, self._values),
                lambda: ((bytes(key[0]), bytes(data[0])) for key, data in self._values.iterator()),
            )
            result = self._turn(task, [row for row in taken if row.target == task], stored, batch)
            failpoints.hit("before_state_write", batch)
            self._write(result, task)
            if self._channel is not None and result.done:
                self._channel.send(batch, FIRST_TASK + task, clock_of(taken), result.done)
            failpoints.hit("after_state_write", batch)
            failpoints.hit("kill_worker", batch)
            if isinstance(result.output, pa.Table):
                return map(frame_of, cut(result.output, _FRAME_ROWS))
            passed_on = (row for row in taken if row.target != task)
            return map(frame_of, record_batches([*passed_on, *result.output]))

    def _write(self, result: TaskResult, task: int) -> None:
        try:
            _change(self._chunks, result.puts, result.drops)
            _change(self._values, result.value_puts, result.value_drops)
            if result.metadata is not None:
                self._metadata.update((result.metadata,))
        except (EOFError, OSError) as problem:  # Spark closes the socket if its store has failed
            raise CheckpointError(
                f"the state of task {task} could not be written: Spark has ended the connection to its state store; the log of the "
                "executor says why, a full disk perhaps. Nothing of the batch was committed: mend that and start again from the "
                "checkpoint"
            ) from problem


def as_sent(processor: TaskProcessor, has_values: bool = True) -> StatefulProcessor:
    """Return the operator, with its work as bytes that a worker loads with the first rows.

    For each run of a query Spark starts a process on the driver only to read the names of the state variables. The class is defined
    in a function, and so pickled by value; that process then imports neither this library nor pandas, which saves over a second of
    CPU. The process also prints four lines per query with all output columns; this is switched off.
    """
    variables = _VARIABLES if has_values else _VARIABLES[:-1]  # a local: a global would be looked up in this module

    class AsSent(StatefulProcessor):
        def __init__(self, processor: TaskProcessor) -> None:
            self._processor: TaskProcessor | None = processor
            self._data = b""

        def __getstate__(self) -> dict[str, Any]:
            return {"_processor": None, "_data": serializer.dumps(self._processor)}

        def __setstate__(self, state: dict[str, Any]) -> None:
            vars(self).update(state)
            main = sys.modules["__main__"]
            if getattr(main.__spec__, "name", "") == "pyspark.sql.streaming.transform_with_state_driver_worker":
                vars(main)["print"] = lambda *_, **__: None

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._variables = [getattr(handle, kind)(*named) for kind, *named in variables]

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            if self._processor is None:
                self._processor = serializer.loads(self._data)
                self._processor.take(self._variables)
            return self._processor.handleInputRows(key, rows, timerValues)

        def close(self) -> None:
            """Do nothing: the operator holds no resources."""

    return AsSent(processor)


def _value_of(state: Any, key: bytes) -> bytes | None:
    found = state.getValue((key,))
    return None if found is None else bytes(found[0])


def _change(state: Any, puts: Mapping[bytes, bytes], drops: Iterable[bytes]) -> None:
    for key in drops:
        state.removeKey((key,))
    for key, data in puts.items():
        state.updateValue((key,), (data,))


def evaluated(
    rows: DataFrame,
    turn: TaskTurn,
    labels: Sequence[int],
    first: int = 0,
    schema: StructType = EXCHANGE,
    channel: MetricsChannel | None = None,
    *,
    has_values: bool,
) -> DataFrame:
    """Return the rows that a stage makes from exchange rows; `labels`: the grouping keys of its tasks, from task `first` on.
    has_values: whether a bolt of the stage has a state.
    """
    labelled = rows.withColumn("label", label_of_row(labels, first))
    processor = as_sent(TaskProcessor(turn, labels, first, channel), has_values)
    return labelled.groupBy("label").transformWithStateInPandas(processor, schema, "Append", "None")
