"""The stateful operator: one grouping key for each task of a stage; for each task and micro-batch one turn.

    rows of a key --+--> for this task --> TaskTurn.run --> changes of the state, rows or a table
                    +--> for later stages, for the driver ------------------> passed on unchanged

    a bolt alone   window_turn.py      a task of a topology   stages.py      a group of Trident   trident_stages.py

Spark stores the state of a task: "metadata" (one value), "chunks" and "values" (maps of bytes to bytes: the tuples of windows, and
the state of a bolt with `init_state`). Laws: the result of a turn is a function of (state, rows), independent of the order in which
a shuffle delivers rows. Nothing is written before everything is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from windowing.errors import CheckpointError
from windowing.execution.metrics import TaskMetrics
from windowing.spark import failpoints
from windowing.spark.control import label_of_row
from windowing.spark.exchange import EXCHANGE, FIRST_TASK, ExchangeRow, batch_id, clock_of, frames_of, rows_of
from windowing.spark.failures import marked
from windowing.spark.output import table_frames
from windowing.spark.settings import freeze_modules, seldom_collected
from windowing.spark.state import Load, TaskValues
from windowing.spark.task_metrics import MetricsChannel

_KEY_DDL, _VALUE_DDL = "id binary", "data binary"
_VARIABLES = (
    ("getValueState", "metadata", _VALUE_DDL),
    ("getMapState", "chunks", _KEY_DDL, _VALUE_DDL),
    ("getMapState", "values", _KEY_DDL, _VALUE_DDL),
)


@dataclass(frozen=True)
class Stored:
    """The stored state of a task: its metadata, and functions that read a chunk or a value by key, and all values."""

    metadata: bytes | None
    chunk: Load
    value: Load
    values: Callable[[], Iterable[tuple[bytes, bytes]]]

    def task_values(self, bolt: str, task: int) -> TaskValues:
        """Return the state of a task of a stateful bolt."""
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

    @classmethod
    def of(
        cls,
        output: list[ExchangeRow] | pa.Table,
        metadata: bytes | None,
        puts: Mapping[bytes, bytes],
        drops: Sequence[bytes],
        values: TaskValues | None,
        done: Sequence[TaskMetrics],
    ) -> TaskResult:
        """Return a result with the changes of a bolt's state."""
        if values is None:
            return cls(output, metadata, puts, drops, done=done)
        return cls(output, metadata, puts, drops, values.puts, values.drops, done)


class TaskTurn(Protocol):
    """One task. Between turns its only state is in the store."""

    def run(self, rows: Sequence[ExchangeRow], stored: Stored, batch: int) -> TaskResult:
        """Process the task's rows of a batch, in any order; there may be none. `batch`: its number."""


class TaskProcessor:
    """The work of the operator that transformWithState runs for each task of a stage: task `first + i` has the grouping key
    `labels[i]`.

    turn_of: makes the turn of a task; called only in workers. channel: the channel for a worker's metrics.
    """

    def __init__(
        self,
        turn_of: Callable[[int], TaskTurn],
        labels: Sequence[int],
        first: int = 0,
        channel: MetricsChannel | None = None,
    ) -> None:
        self._turn_of, self._channel = turn_of, channel
        self._tasks = {label: number for number, label in enumerate(labels, first)}
        self._turns: dict[int, TaskTurn] = {}

    def take(self, variables: Sequence[Any]) -> None:
        """Take the state variables, in the order of `_VARIABLES`."""
        self._metadata, self._chunks, self._values = variables

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one task. Spark may deliver its rows in several frames, so all are read first."""
        freeze_modules()
        with marked(), seldom_collected():
            task, batch = self._tasks[int(key[0])], batch_id()
            taken = rows_of(rows)
            if task not in self._turns:
                self._turns[task] = self._turn_of(task)
            result = self._turns[task].run([row for row in taken if row.target == task], self._stored(), batch)
            failpoints.hit("before_state_write", batch)
            self._write(result, task)
            if self._channel is not None and result.done:
                self._channel.send(batch, FIRST_TASK + task, clock_of(taken), result.done)
            failpoints.hit("after_state_write", batch)
            failpoints.hit("kill_worker", batch)
            if isinstance(result.output, pa.Table):
                return table_frames(result.output)
            return frames_of([*(row for row in taken if row.target != task), *result.output])

    def _stored(self) -> Stored:
        metadata = self._metadata.get()
        return Stored(
            None if metadata is None else bytes(metadata[0]),
            lambda key: _value_of(self._chunks, key),
            lambda key: _value_of(self._values, key),
            lambda: ((bytes(key[0]), bytes(data[0])) for key, data in self._values.iterator()),
        )

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


_spark_s: Any = cast(Any, CloudPickleSerializer)()  # the serializer with which Spark sends functions


def as_sent(processor: TaskProcessor) -> StatefulProcessor:
    """Return the operator, with its work as bytes that a worker loads with the first rows.

    For each run of a query Spark starts a process on the driver only to read the names of the state variables. The class is defined
    in a function, and so pickled by value; that process then imports neither this library nor pandas, which saves over a second of
    CPU. The process also prints four lines per query with all output columns; this is switched off.
    """
    variables = _VARIABLES  # a local: a global would be looked up in this module

    class AsSent(StatefulProcessor):
        def __init__(self, processor: TaskProcessor) -> None:
            self._processor: TaskProcessor | None = processor
            self._data = b""

        def __getstate__(self) -> dict[str, Any]:
            return {"_processor": None, "_data": _spark_s.dumps(self._processor)}

        def __setstate__(self, state: dict[str, Any]) -> None:
            vars(self).update(state)
            main = sys.modules["__main__"]
            if getattr(main.__spec__, "name", "") == "pyspark.sql.streaming.transform_with_state_driver_worker":
                vars(main)["print"] = lambda *_, **__: None

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._variables = [getattr(handle, kind)(*named) for kind, *named in variables]

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            if self._processor is None:
                self._processor = _spark_s.loads(self._data)
                self._processor.take(self._variables)
            return self._processor.handleInputRows(key, rows, timerValues)

        def close(self) -> None:
            """Do nothing: the operator holds no resources."""

    return AsSent(processor)


def _value_of(state: Any, key: bytes) -> bytes | None:
    """Return the value of a key in a map of the store."""
    found = state.getValue((key,))
    return None if found is None else bytes(found[0])


def _change(state: Any, puts: Mapping[bytes, bytes], drops: Iterable[bytes]) -> None:
    for key in drops:
        state.removeKey((key,))
    for key, data in puts.items():
        state.updateValue((key,), (data,))


def evaluated(
    rows: DataFrame,
    turn_of: Callable[[int], TaskTurn],
    labels: Sequence[int],
    first: int = 0,
    schema: StructType = EXCHANGE,
    channel: MetricsChannel | None = None,
) -> DataFrame:
    """Return the rows that a stage makes from exchange rows; `labels`: the grouping keys of its tasks, from task `first` on."""
    labelled = rows.withColumn("label", label_of_row(labels, first))
    processor = as_sent(TaskProcessor(turn_of, labels, first, channel))
    return labelled.groupBy("label").transformWithStateInPandas(processor, schema, "Append", "None")
