"""The stateful side: one grouping key per task; a turn of the pure engine for each task and batch.

    rows of one label -> parts, controls -> TaskStage.turn(task, metadata, load, parts, controls) -> state changes,
    output rows

Spark keeps the state: "metadata" (one small value) and "chunks" (a map from chunk key to bytes). Output: one struct
column per stream, `_s0`, `_s1`, ... in the order of `streams`, and `_metrics`; each row has a value in exactly one of
them. Law: the output is a function of (state, input) alone, in order; rows reach the turn sorted, however the shuffle
delivered them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructField, StructType

from windowing.errors import BoltError, shown
from windowing.spark import failpoints
from windowing.spark.failures import marked
from windowing.spark.metrics import METRICS, METRICS_SCHEMA
from windowing.spark.turn import Control, Part, TaskStage, TurnResult

__all__ = ["TaskProcessor", "evaluated", "stream_column"]

_KEY_DDL, _VALUE_DDL = "id binary", "data binary"
_SLICE = 20_000
_BATCH_PROPERTY = "streaming.sql.batchId"


class TaskProcessor(StatefulProcessor):
    """What transformWithState runs for each task; `task_of` is the task of each label. It holds no state of its own."""

    def __init__(self, stage: TaskStage, task_of: Mapping[int, int], streams: Mapping[str, StructType]) -> None:
        self._stage = stage
        self._task_of = dict(task_of)
        self._columns = {stream: position for position, stream in enumerate(streams)}
        self._fields = {stream: to_arrow_schema(schema, timezone="UTC") for stream, schema in streams.items()}

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state variables; called on the driver too, once, so nothing else happens here."""
        self._metadata = handle.getValueState("metadata", _VALUE_DDL)
        self._chunks = handle.getMapState("chunks", _KEY_DDL, _VALUE_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one task. Spark may hand its rows over in several frames: all are taken first."""
        with marked():
            frames = list(rows)
            task = self._task_of[int(key[0])]
            parts, controls = _unpacked(frames)
            stored = self._metadata.get()
            metadata = None if stored is None else bytes(stored[0])
            result = self._stage.turn(task, metadata, self._load, parts, controls)
            emitted = [item for item in result.rows if item[0] in self._columns]
            self._check_types(emitted)
            batch = _batch_id()
            failpoints.hit("before_state_write", batch)
            self._write(result)
            failpoints.hit("after_state_write", batch)
            failpoints.hit("kill_worker", batch)
            return self._frames(emitted, {**result.metrics, "now": _clock(parts, controls)})

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _load(self, key: bytes) -> bytes | None:
        stored = self._chunks.getValue((key,))
        return None if stored is None else bytes(stored[0])

    def _write(self, result: TurnResult) -> None:
        for key in result.drops:
            self._chunks.removeKey((key,))
        for key, chunk in result.puts.items():
            self._chunks.updateValue((key,), (chunk,))
        self._metadata.update((result.metadata,))

    def _check_types(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        """Refuse a value that is not of its field's type, before anything is written: Spark's own error names no
        bolt."""
        by_stream: dict[str, list[dict[str, Any]]] = {}
        for stream, row in rows:
            by_stream.setdefault(stream, []).append(row)
        for stream, members in by_stream.items():
            for field in self._fields[stream]:
                values = [row[field.name] for row in members]
                if not _fits(values, field.type):
                    wrong = next(value for value in values if not _fits([value], field.type))
                    raise BoltError(
                        f"bolt {self._stage.bolt.name!r} emitted {shown(wrong)} as field {field.name!r} of stream {stream!r}, "
                        f"which is declared {field.type}; emit that type, or change the declaration"
                    )

    def _frames(self, rows: list[tuple[str, dict[str, Any]]], metrics: dict[str, Any]) -> Iterator[Any]:
        for start in range(0, len(rows), _SLICE):
            yield self._frame(rows[start : start + _SLICE], None)
        yield self._frame([], metrics)

    def _frame(self, rows: list[tuple[str, dict[str, Any]]], metrics: dict[str, Any] | None) -> Any:
        count = len(rows) + (metrics is not None)
        columns: list[list[Any]] = [[None] * count for _ in self._columns]
        for position, (stream, row) in enumerate(rows):
            columns[self._columns[stream]][position] = row
        last: list[Any] = [None] * (count - 1) + [metrics]
        data = {f"_s{number}": pd.Series(column, dtype=object) for number, column in enumerate(columns)}
        return pd.DataFrame(data | {METRICS: pd.Series(last, dtype=object)})


def evaluated(packed: DataFrame, processor: TaskProcessor, streams: Mapping[str, StructType]) -> DataFrame:
    """Return the operator's output over packed rows; `streams` are the schemas of the output streams, in order."""
    schema = StructType([StructField(stream_column(streams, name), fields) for name, fields in streams.items()])
    schema.add(METRICS, METRICS_SCHEMA)
    return packed.groupBy("label").transformWithStateInPandas(processor, schema, "Append", "None")


def stream_column(streams: Iterable[str], stream: str) -> str:
    """Return the name of a stream's struct column in the operator's output; a stream's own name may be no column
    name."""
    return f"_s{list(streams).index(stream)}"


def _unpacked(frames: list[Any]) -> tuple[list[Part], list[Control]]:
    """Sort packed rows into parts by (stream, partition, sequence) and controls by (kind, stream, source,
    partition)."""
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


def _fits(values: list[Any], kind: pa.DataType) -> bool:
    """Return whether Arrow takes all values as they are; a number is no moment, whatever Arrow says."""
    if pa.types.is_temporal(kind) and any(isinstance(value, int | float) for value in values):
        return False
    try:
        pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _clock(parts: list[Part], controls: list[Control]) -> int:
    return max([*(part.now_ms for part in parts), *(control.now_ms for control in controls)])


def _batch_id() -> int:
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    return int(number) if number is not None else -1
