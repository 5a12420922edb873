"""The stateful side: one grouping key per task; a turn of the pure engine for each task and batch.

    rows of one label -> parts, controls -> TaskStage.turn -> state changes, output rows (output.py)

Spark keeps the state: "metadata" (one small value), "chunks" (a map from chunk key to bytes), and "values" (what a bolt with
`init_state` has put). Laws: the output is a
function of (state, input) alone, in order: rows reach the turn sorted, however the shuffle delivered them. Nothing is
written before all of the output is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windowing.spark import failpoints
from windowing.spark.failures import marked
from windowing.spark.garbage import seldom_collected
from windowing.spark.output import Encoder, Layout
from windowing.spark.rows import Part, size_of
from windowing.spark.shipping import Shipped
from windowing.spark.turn import Control, TaskStage, TurnResult
from windowing.spark.values import TaskValues

__all__ = ["TaskProcessor", "batch_id", "evaluated", "value_of", "write"]

_KEY_DDL, _VALUE_DDL = "id binary", "data binary"
_BATCH_PROPERTY = "streaming.sql.batchId"


class TaskProcessor(StatefulProcessor):
    """What transformWithState runs for each task; `task_of` is the task of each label. It holds no state of its own."""

    def __init__(self, stage: Shipped[TaskStage], task_of: Mapping[int, int], layout: Layout) -> None:
        bolt = stage.value.bolt  # `init` must not ask for the value: the driver's own worker cannot load a large one
        self._stage = stage
        self._bolt, self._stateful = bolt.name, bolt.stateful
        self._task_of = dict(task_of)
        self._encoder = Encoder(bolt.name, layout)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state variables; called on the driver too, once, so nothing else happens here."""
        self._metadata = handle.getValueState("metadata", _VALUE_DDL)
        self._chunks = handle.getMapState("chunks", _KEY_DDL, _VALUE_DDL)
        # No variable for those that have no state: a checkpoint's variables stay as they began.
        self._values = handle.getMapState("values", _KEY_DDL, _VALUE_DDL) if self._stateful else None

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one task. Spark may hand its rows over in several frames: all are taken first."""
        with marked(), seldom_collected():
            frames = list(rows)
            task = self._task_of[int(key[0])]
            parts, controls = _unpacked(frames)
            stored = self._metadata.get()
            metadata = None if stored is None else bytes(stored[0])
            batch, values = batch_id(), self._task_values(task)
            result = self._stage.value.turn(
                task,
                metadata,
                self._load,
                parts,
                controls,
                state=values,
                txid=batch + 1,
                fitted=self._encoder.fitted,
            )
            table = self._encoder.table(
                result.rows, {**result.metrics, "bytes": size_of(parts), "now": _clock(parts, controls)}
            )
            failpoints.hit("before_state_write", batch)
            self._write(result, values)
            failpoints.hit("after_state_write", batch)
            failpoints.hit("kill_worker", batch)
            return self._encoder.frames(table)

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _load(self, key: bytes) -> bytes | None:
        return value_of(self._chunks, key)

    def _task_values(self, task: int) -> TaskValues | None:
        state = self._values
        if state is None:
            return None
        return TaskValues(
            lambda key: value_of(state, key),
            lambda: ((bytes(key[0]), bytes(data[0])) for key, data in state.iterator()),
            f"state of bolt {self._bolt!r}, task {task}",
        )

    def _write(self, result: TurnResult, values: TaskValues | None) -> None:
        write(self._chunks, result.puts, result.drops)
        if values is not None:
            write(self._values, values.puts, values.drops)
        self._metadata.update((result.metadata,))


def value_of(state: Any, key: bytes) -> bytes | None:
    """Return what a map of the store has under a key."""
    found = state.getValue((key,))
    return None if found is None else bytes(found[0])


def write(state: Any, puts: Mapping[bytes, bytes], drops: Iterable[bytes]) -> None:
    """Write changes into a map of the store."""
    for key in drops:
        state.removeKey((key,))
    for key, data in puts.items():
        state.updateValue((key,), (data,))


def evaluated(packed: DataFrame, processor: TaskProcessor, layout: Layout) -> DataFrame:
    """Return the operator's output over packed rows."""
    return packed.groupBy("label").transformWithStateInPandas(processor, layout.schema, "Append", "None")


def _unpacked(frames: list[Any]) -> tuple[list[Part], list[Control]]:
    """Sort packed rows into parts by (stream, partition, sequence) and controls by kind, stream and source."""
    parts: list[Part] = []
    controls: list[tuple[Any, Control]] = []
    for frame in frames:
        for row in frame.itertuples(index=False):
            now = int(row.now)
            if row.kind == "rows":
                parts.append(Part(row.stream, int(row.partition), int(row.sequence), now, bytes(row.data)))
                continue
            source = row.source if isinstance(row.source, str) else None
            value = int(row.value) if row.kind == "max" else None
            order = (row.kind, row.stream, source or "", source is not None, int(row.partition))
            controls.append((order, Control(row.kind, row.stream, source, value, now)))
    parts.sort(key=lambda part: part[:3])
    controls.sort(key=lambda item: item[0])
    return parts, [control for _, control in controls]


def _clock(parts: list[Part], controls: list[Control]) -> int:
    return max([*(part.now_ms for part in parts), *(control.now_ms for control in controls)])


def batch_id() -> int:
    """Return Spark's number of the batch that this worker works on, -1 outside of one."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    return int(number) if number is not None else -1
