"""What Spark runs of a Trident topology: SpoutStage, StreamLevel and BatchLevel, and how rows of the wire get to them.

    a source's DataFrame --SpoutStage--> wire --label, StreamLevel--> wire     of the streaming query, windows in the state store
    wire --repartition by label, BatchLevel--> wire                            of the batch, inside foreachBatch

A row for another level, or for the driver, is given the key of some place of this level and handed on as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windowing.errors import FailedException, ReportedFailedException, cause_of
from windowing.errors import told as describe
from windowing.spark import failpoints
from windowing.spark.failures import marked
from windowing.spark.garbage import seldom_collected
from windowing.spark.labels import label_of_row
from windowing.spark.operator import batch_id
from windowing.spark.shipping import Shipped
from windowing.spark.trident.packets import Packets, reports, told
from windowing.spark.trident.turn import opened, turn
from windowing.spark.unreadable import Unreadable, any_unreadable, held, python_values
from windowing.spark.wire import NOW, PLACES, WIRE, Row, frames_of, handed_on, record_batch, rows_of
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.subtopology import GroupBatch, Subtopology
from windowing.topology.trident.units import Section, TridentUnits, UnitPlace
from windowing.transactions.attempt import TransactionAttempt

__all__ = ["DEAD_LETTERS", "BatchLevel", "SpoutStage", "StreamLevel", "batch_level", "stream_level"]

DEAD_LETTERS = "dead_letters"
"""What the sink of a stream's skipped batches is called, behind the name of the stream."""

_log = logging.getLogger("windowing.spark")
_COLUMNS = [part.split()[0] for part in WIRE.split(", ")]


def _say(who: str, reported: Sequence[BaseException]) -> None:
    """Log reported errors here: Spark tries this task again, so no row of it comes to the driver."""
    for error in reported:
        _log.warning("%s reports %s", who, describe(error))


class SpoutStage:
    """What runs on each partition of a source: the units right behind it, then packing. keep: send the tuples to the driver too."""

    def __init__(self, units: Shipped[TridentUnits], spout: int, keep: bool) -> None:
        self._units, self._spout, self._keep = units, spout, keep

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the wire for each batch, then what the partition has to say at its end."""
        context = TaskContext.get()
        partition, txid = 0 if context is None else context.partitionId(), batch_id() + 1
        with marked():
            for rows in self.pack(batches, partition, txid):
                yield record_batch(rows)

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, txid: int) -> Iterator[list[Row]]:
        """Do the work of `__call__` for the upstream partition of this number.

        An attempt that fails here says so, where no window has to see all of the batch first: Spark would try the task again. The
        tuples that are kept for a batch that may be skipped are read to the end.
        """
        with ExitStack() as closing:
            work: _SpoutWork | None = None
            failed: FailedException | None = None
            for found in batches:
                if not found.num_rows:
                    continue
                if work is None:
                    work = _SpoutWork(
                        self._units.value, self._spout, partition, txid, found.column(NOW)[0].as_py(), closing
                    )
                rows = work.readable(found.drop_columns([NOW]), found.num_rows)
                if work.unread:
                    yield work.left_out(self._keep)
                if self._keep:
                    yield work.kept(rows)
                if failed is None:
                    try:
                        yield work.take(rows)
                    except FailedException as problem:
                        failed = problem
            if work is not None and failed is None:
                try:
                    yield work.finish()
                except FailedException as problem:
                    failed = problem
            if failed is not None:
                if self._units.value.levels(Section.STREAM):
                    _say(self._units.value.plan.graph.nodes[self._spout].title, work.errors(failed) if work else [])
                    raise failed
                yield [told("failed", self._units.value.plan.graph.nodes[self._spout].title, text=cause_of(failed))]
            if work is not None:
                yield reports(self._units.value.plan.graph.nodes[self._spout].title, work.errors(failed))


class _SpoutWork:
    """One partition of a source in one batch."""

    def __init__(
        self, units: TridentUnits, spout: int, partition: int, txid: int, now: int, closing: ExitStack
    ) -> None:
        plan = units.plan
        group = plan.group_of(spout)
        self._schema, self._name = plan.graph.nodes[spout].schema, plan.graph.nodes[spout].title
        source = next(node.source.name for node in plan.spouts if node.number == spout)
        self._letters = f"{source}.{DEAD_LETTERS}"
        batch = Batch(TransactionAttempt(txid, 0), now, as_of=txid - 1)
        task = partition % group.parallelism
        self._packets = Packets(units, task, partition, batch, now)
        self._units = units
        self._links = units.out_of(spout)
        self._here: dict[int, GroupBatch] = {}
        self._made: list[Subtopology] = []
        for unit in units.units:
            if unit.level == 0 and any(units.unit_of[link.id] is unit for link in self._links):
                made = Subtopology(plan, unit.group.id, task, nodes=unit.nodes, out=unit.out)
                made.prepare()
                self._made.append(made)
                closing.callback(made.cleanup)
                self._here[id(unit)] = made.start_batch(plan.batch_groups[spout], batch)
        self._tuples = 0
        self.unread: list[tuple[Any, ...]] = []

    def readable(self, found: pa.RecordBatch, count: int) -> list[tuple[Any, ...]]:
        """Return the tuples of a batch; `unread` are then those with a value that Python cannot hold."""
        fields = zip(found.columns, self._schema.names, strict=True)
        columns = [python_values(column, name, "strict") for column, name in fields]
        rows = list(zip(*columns, strict=True)) if columns else [()] * count
        self.unread = list(filter(held, rows)) if any_unreadable(columns) else []
        return [row for row in rows if not held(row)] if self.unread else rows

    def left_out(self, keep: bool) -> list[Row]:
        """Return what becomes of `unread`: dead letters, whatever becomes of the batch; else they are counted and logged."""
        odd = next(value for value in self.unread[0] if type(value) is Unreadable)
        _log.warning("%s: %d tuples are invalid: %s", self._name, len(self.unread), odd.refuse().args[0])
        if not keep:
            return [told("metric", self._name, len(self.unread), source="invalid")]
        for kind in ("out", "input"):
            self._packets.put(kind, self._letters, self._schema, self.unread)
        return list(self._packets.take())

    def kept(self, rows: list[tuple[Any, ...]]) -> list[Row]:
        """Return tuples as dead letters, should the batch be skipped."""
        self._packets.put("input", self._letters, self._schema, rows)
        return list(self._packets.take())

    def take(self, rows: list[tuple[Any, ...]]) -> list[Row]:
        """Return what comes of tuples at once. Nothing of a failed attempt is handed on any more."""
        self._tuples += len(rows)
        for link in self._links:
            here = self._here.get(id(self._units.unit_of[link.id]))
            if here is None:
                self._packets.send(link, rows)
            else:
                try:
                    here.execute(link, rows)
                except FailedException:
                    self._packets.drop()
                    raise
                self._packets.emit(here.take())
        return list(self._packets.take())

    def errors(self, failed: FailedException | None) -> list[BaseException]:
        """Return what users' code has reported, and how the attempt failed, if that is to be reported."""
        errors = [error for made in self._made for error in made.take_reports()]
        return [*errors, failed] if isinstance(failed, ReportedFailedException) else errors

    def finish(self) -> list[Row]:
        """Return what comes at the end of the partition."""
        for batch in self._here.values():
            batch.finish_batch()
            self._packets.emit(batch.take())
        windowed = {place.number for place in self._units.places if place.unit.section is Section.STREAM}
        return [
            *self._packets.finish(),
            *self._packets.begin(sorted(windowed)),
            told("metric", self._name, self._tuples, source="tuples"),
        ]


class StreamLevel(StatefulProcessor):
    """What transformWithState runs for each place of a level of the stream; `labels[i]` is the grouping key of the i-th."""

    def __init__(self, units: Shipped[TridentUnits], level: int, labels: Sequence[int]) -> None:
        self._units = units
        self._places: dict[int, UnitPlace] = dict(zip(labels, units.value.on_level(level), strict=True))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state variable; called on the driver too, once, so nothing else happens here."""
        self._windows = handle.getValueState("windows", "data binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Make the turn of one place, and hand on what is meant for others."""
        with marked(), seldom_collected():
            place = self._places[int(key[0])]
            taken = rows_of(rows)
            own = [row for row in taken if row.target == place.number]
            others = [row for row in taken if row.target != place.number]
            return frames_of([*others, *(self._turn(place, own) if own else ())])

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _turn(self, place: UnitPlace, rows: list[Row]) -> list[Row]:
        number = batch_id()
        drains = any(row.kind == "drain" for row in rows)
        now = max(row.now for row in rows)
        batch = Batch(TransactionAttempt(number + 1, 0), now, as_of=number, drain=drains)
        stored = self._windows.get()
        reported: list[BaseException] = []
        try:
            with opened(self._units.value, place) as states:
                kept = None if stored is None else bytes(stored[0])
                result = turn(self._units.value, place, rows, batch, states, kept, reported)
        except FailedException:
            _say(place.unit.group.id, reported)
            raise
        failpoints.hit("before_state_write", number)
        if result.windows is not None:
            self._windows.update((result.windows,))
        failpoints.hit("after_state_write", number)
        failpoints.hit("kill_worker", number)
        return [*result.rows, *reports(place.unit.group.id, reported)]


class BatchLevel:
    """What `mapInArrow` runs for the places of a level inside foreachBatch: a place works once its partition has come whole."""

    def __init__(self, units: Shipped[TridentUnits], level: int, attempt: TransactionAttempt) -> None:
        self._units, self._attempt = units, attempt
        self._places = {place.number: place for place in units.value.on_level(level)}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is meant for others as it comes, then what each place makes of its rows."""
        mine: dict[int, list[Row]] = {}
        numbers = pa.array(list(self._places), pa.int64())
        with marked():
            for batch in batches:
                is_mine = pc.is_in(batch.column(0), value_set=numbers)
                yield handed_on(batch.filter(pc.invert(is_mine)))
                columns = [column.to_pylist() for column in batch.filter(is_mine).columns]
                for row in map(Row._make, zip(*columns, strict=True)):
                    mine.setdefault(row.target, []).append(row)
            for number in sorted(mine):
                yield record_batch(self._turn(self._places[number], mine[number]))

    def _turn(self, place: UnitPlace, rows: list[Row]) -> list[Row]:
        txid = self._attempt.txid
        commits = bool(place.unit.states) and place.unit.section is Section.COMMIT
        done = told("done", "", place.number)
        group, reported = place.unit.group.id, list[BaseException]()
        try:
            if commits:
                failpoints.hit("before_state_commit", txid - 1)
            with opened(self._units.value, place) as states:
                batch = Batch(self._attempt, as_of=txid - 1)
                found = turn(self._units.value, place, rows, batch, states, None, reported).rows
            if commits:
                failpoints.hit("after_state_commit", txid - 1)
        except FailedException as problem:
            cause = f"{group}, task {place.task}: {cause_of(problem)}"
            found = [told("failed", group, text=cause)]
        return [done, *found, *reports(group, reported, self._attempt.attempt)]


def stream_level(rows: DataFrame, units: Shipped[TridentUnits], level: int, labels: Sequence[int]) -> DataFrame:
    """Return what a level of the stream makes of the rows of the wire; `labels` are the grouping keys of its places."""
    labelled = rows.withColumn("label", label_of_row(labels, units.value.on_level(level)[0].number))
    processor = StreamLevel(units, level, labels)
    return labelled.groupBy("label").transformWithStateInPandas(processor, WIRE, "Append", "None")


def batch_level(
    rows: DataFrame,
    units: Shipped[TridentUnits],
    level: int,
    labels: Sequence[int],
    partitions: int,
    attempt: TransactionAttempt,
) -> DataFrame:
    """Return what a level makes of the rows of the wire in one attempt. Every place is told that the batch has begun: Spark may
    leave out a stage that has no row."""
    places = units.value.on_level(level)
    first = places[0].number
    begun = rows.sparkSession.range(first, first + len(places), 1, 1).select(
        F.col("id").alias("target"),
        F.lit("begin").alias("kind"),
        F.lit("").alias("stream"),
        F.lit(PLACES).cast("int").alias("sender"),
        F.lit(0).cast("int").alias("sequence"),
        F.lit(0).cast("bigint").alias("now"),
        F.lit(None).cast("string").alias("source"),
        F.lit(0).cast("bigint").alias("value"),
        F.lit(None).cast("binary").alias("data"),
    )
    spread = rows.select(*_COLUMNS).unionByName(begun).repartition(partitions, label_of_row(labels, places[0].number))
    return spread.mapInArrow(BatchLevel(units, level, attempt), WIRE)
