"""The levels of a topology on Spark: what `mapInArrow` and `transformWithState` run, and how rows get from one to the next.

    a spout's DataFrame --SpoutStage--> rows of the wire --label, LevelProcessor--> rows --label, LevelProcessor--> rows
                                                              one grouping key per place

A row for another level, or for a sink, is given the key of some place of this level and handed on as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windowing.spark import failpoints
from windowing.spark.edges import NO_ROOTS, root_of
from windowing.spark.failures import marked
from windowing.spark.flow import Flow
from windowing.spark.garbage import seldom_collected
from windowing.spark.labels import label_of_row
from windowing.spark.operator import batch_id, value_of, write
from windowing.spark.place import PlaceResult, PlaceTurn, Stored
from windowing.spark.shipping import Shipped
from windowing.spark.unreadable import Held, any_unreadable, held_rows, python_values
from windowing.spark.wire import NOW, WIRE, frames_of, record_batch, rows_of
from windowing.spark.wiring import Origins, Wiring
from windowing.topology.calls import Emitted
from windowing.topology.stages import Place

__all__ = ["LevelProcessor", "SpoutStage", "emitted", "processed"]

_KEY_DDL, _VALUE_DDL = "id binary", "data binary"


class SpoutStage:
    """What runs on each partition of the rows of one stream of a spout; its rows leave packed for where they go."""

    def __init__(self, wiring: Shipped[Wiring], spout: str, stream: str) -> None:
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
        names = wiring.component(self._spout).outputs[self._stream].schema.names
        flow: Flow | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if flow is None:
                flow = Flow(wiring, partition, batch.column(NOW)[0].as_py(), Origins(wiring), number)
            fields = zip(batch.drop_columns([NOW]).columns, names, strict=True)
            columns = [python_values(column, name, "strict") for column, name in fields]
            rows = held_rows(columns, tuple, Held) if any_unreadable(columns) else zip(*columns, strict=True)
            for values in rows:
                flow.emit(self._spout, task, Emitted(self._stream, values), roots)
            flow.run()
            yield record_batch(flow.take())
        if flow is not None:
            yield record_batch(flow.finish())


class LevelProcessor(StatefulProcessor):
    """What transformWithState runs for each place of a level; `labels[i]` is the grouping key of the i-th."""

    def __init__(self, wiring: Shipped[Wiring], level: int, labels: Sequence[int]) -> None:
        self._wiring = wiring
        self._places: dict[int, Place] = dict(zip(labels, wiring.value.stages.on_level(level), strict=True))
        self._turns: dict[int, PlaceTurn] = {}

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

    def _turn(self, place: Place) -> PlaceTurn:
        if place.number not in self._turns:
            self._turns[place.number] = PlaceTurn(self._wiring.value, place)
        return self._turns[place.number]

    def _stored(self) -> Stored:
        metadata = self._metadata.get()
        return Stored(
            None if metadata is None else bytes(metadata[0]),
            lambda key: value_of(self._chunks, key),
            lambda key: value_of(self._values, key),
            lambda: ((bytes(key[0]), bytes(data[0])) for key, data in self._values.iterator()),
        )

    def _write(self, result: PlaceResult) -> None:
        write(self._chunks, result.puts, result.drops)
        write(self._values, result.value_puts, result.value_drops)
        if result.metadata is not None:
            self._metadata.update((result.metadata,))


def emitted(rows: DataFrame, stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """Return the packed rows of a spout's DataFrame, whose columns are those of the stream, in order."""
    columns = [F.col(f"`{name}`").alias(f"c{number}") for number, name in enumerate(rows.columns)]
    now = F.unix_millis(F.current_timestamp()).alias(NOW)
    return rows.select(*columns, now).mapInArrow(stage, WIRE)


def processed(rows: DataFrame, wiring: Shipped[Wiring], level: int, labels: Sequence[int]) -> DataFrame:
    """Return what a level makes of the rows of the wire; `labels` are the grouping keys of its places."""
    processor = LevelProcessor(wiring, level, labels)
    labelled = rows.withColumn("label", label_of_row(labels, wiring.value.stages.on_level(level)[0].number))
    return labelled.groupBy("label").transformWithStateInPandas(processor, WIRE, "Append", "None")
