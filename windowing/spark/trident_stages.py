"""Packets: what one sender of a Trident topology sends in one batch, as rows of the wire.

    target   kind     stream      value               data
    4        rows     id of link  how many            tuples for place 4, as Arrow bytes
    4        max      id of link  largest timestamp   -          (source: whose; for every task of a window)
    4        begin    -           -                   -          the batch has begun: what place 4 is told even without tuples
    -1       out      sink        how many            tuples of a sink
    -1       input    sink        how many            tuples of a source, kept where a batch may be skipped
    -1       failed   component   -                   why the attempt fails
    -1       reported component   how many            what users' code reported, stopping nothing (sequence: in which attempt)
    -1       done     -           place               the place has worked
    -1       metric   component   a number            -          (source: its name)

`sender` is an upstream partition, or a place (from `PLACES` on). Law: a place takes its rows in the order of (link, sender,
sequence), so what it makes of a batch does not depend on how a shuffle brought them.

One place's turn in one batch, without Spark: rows of the wire in, rows of the wire out.

    rows, max, begin --> Subtopology of the unit: execute, learn, finish, commit --> rows, out, max, metric
    stored windows   -->                                                         --> stored windows

Law: what comes out is a function of (rows, batch, stored windows, states) alone.

What Spark runs of a Trident topology: SpoutStage, StreamLevel and BatchLevel, and how rows of the wire get to them.

    a source's DataFrame --SpoutStage--> wire --label, StreamLevel--> wire     of the streaming query, windows in the state store
    wire --repartition by label, BatchLevel--> wire                            of the batch, inside foreachBatch

A row for another level, or for the driver, is given the key of some place of this level and handed on as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windowing.codec import dumps, frame, loads, unframe
from windowing.errors import CorruptStateError, FailedException, ReportedFailedException, cause_of
from windowing.errors import describe_error as describe
from windowing.execution.stages import Section
from windowing.execution.trident_stages import TridentStages, UnitPlace
from windowing.schema.types import Schema
from windowing.spark import failpoints
from windowing.spark.arguments import Shipped
from windowing.spark.control import label_of_row
from windowing.spark.exchange import NOW, PLACES, WIRE, ExchangeRow, frames_of, handed_on, record_batch, rows_of
from windowing.spark.failures import marked
from windowing.spark.operator import batch_id
from windowing.spark.output import arrow_column
from windowing.spark.settings import seldom_collected
from windowing.spark.spouts import arrow_schema
from windowing.spark.state import decode_table, encode_table
from windowing.spark.unreadable import Unreadable, any_unreadable, held, python_values
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import Exchange
from windowing.trident.processors import ProcessorContext
from windowing.trident.subtopology import ExchangeBatch, ExchangeWriter, GroupBatch, GroupOutput, Subtopology

__all__ = [
    "DEAD_LETTERS",
    "Packets",
    "TridentBatchStage",
    "TridentSpoutStage",
    "TridentStreamStage",
    "TridentTurnResult",
    "batch_level",
    "opened",
    "packed",
    "reports",
    "stream_level",
    "told",
    "turn",
    "unpacked",
]


PacketValues = tuple[Any, ...]
_PACKET_ROWS = 50_000
_TOLD = 20
"""So many reported errors of a place travel with their text."""


def packed(who: str, schema: Schema, rows: Sequence[PacketValues]) -> bytes:
    """Return tuples as Arrow bytes. Raises BoltError for a value that is not of its declared type."""
    if not schema.names:
        return b""
    fields = arrow_schema(schema)
    columns = zip(fields, zip(*rows, strict=True), strict=True)
    return encode_table(
        pa.Table.from_arrays([arrow_column(who, "default", field, column) for field, column in columns], schema=fields)
    )


def unpacked(row: ExchangeRow) -> list[PacketValues]:
    """Return the tuples of a row of the wire."""
    if not row.data:
        return [()] * row.value
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in decode_table(row.data).columns]
    return list(zip(*columns, strict=True))


def told(kind: str, stream: str, value: int = 0, text: str | None = None, source: str | None = None) -> ExchangeRow:
    """Return a row that is meant for the driver."""
    return ExchangeRow(-1, kind, stream, 0, 0, 0, source, value, None if text is None else text.encode())


def reports(stream: str, errors: Sequence[BaseException], attempt: int = 0) -> list[ExchangeRow]:
    """Return the rows that tell the driver of errors which users' code has reported: how many, and what the first ones say."""
    rows = [told("reported", stream, 1, text=describe(error)) for error in errors[:_TOLD]]
    if len(errors) > _TOLD:
        rows.append(told("reported", stream, len(errors) - _TOLD, text="more of them"))
    return [row._replace(sequence=attempt) for row in rows]


class Packets:
    """`task`: of the group that sends; `sender`: its number on the wire. Cost: one choice a tuple, and a copy of it into Arrow."""

    def __init__(self, units: TridentStages, task: int, sender: int, batch: ProcessorContext, now: int) -> None:
        self._units, self._task, self._sender, self._batch, self._now = units, task, sender, batch, now
        self._outlets: dict[int, ExchangeBatch] = {}
        self._parts: dict[tuple[int, int], list[PacketValues]] = {}
        self._out: dict[tuple[str, str], tuple[Schema, list[PacketValues]]] = {}
        self._sequence = 0

    def send(self, link: Exchange, rows: list[PacketValues]) -> None:
        """Send tuples over a link."""
        outlet = self._outlets.get(link.id)
        if outlet is None:
            outlet = self._outlets[link.id] = ExchangeWriter(self._units.plan, link, self._task).start_batch(
                self._batch
            )
        first = self._units.unit_of[link.id].first
        for task, part in outlet.route(rows).items():
            self._parts.setdefault((first + task, link.id), []).extend(part)

    def emit(self, emitted: GroupOutput) -> None:
        """Send what a unit has emitted."""
        for link, rows in emitted.exchanges.items():
            self.send(self._units.links[link], rows)
        for sink, rows in emitted.sinks.items():
            self.put("out", sink, self._units.plan.graph.nodes[self._units.plan.sinks[sink]].schema, rows)

    def put(self, kind: str, stream: str, schema: Schema, rows: Iterable[PacketValues]) -> None:
        """Send tuples past all places."""
        self._out.setdefault((kind, stream), (schema, []))[1].extend(rows)

    def drop(self) -> None:
        """Forget what was sent since the last call of `take`."""
        self._parts.clear()
        self._out.clear()

    def take(self) -> Iterator[ExchangeRow]:
        """Yield what was sent since the last call."""
        for (place, link), rows in sorted(self._parts.items()):
            yield from self._cut(place, "rows", str(link), self._units.links[link].schema, rows)
        for (kind, stream), (schema, rows) in sorted(self._out.items()):
            yield from self._cut(-1, kind, stream, schema, rows)
        self.drop()

    def finish(self) -> Iterator[ExchangeRow]:
        """Yield the last rows, and what every task of a window has to know of the timestamps."""
        yield from self.take()
        for link, outlet in sorted(self._outlets.items()):
            unit = self._units.unit_of[link]
            for place in range(unit.first, unit.first + unit.group.parallelism) if outlet.largest else ():
                for source in sorted(outlet.largest, key=lambda each: (each is not None, each or "")):
                    yield self._row(place, "max", str(link), outlet.largest[source], None, source)

    def begin(self, places: Iterable[int]) -> Iterator[ExchangeRow]:
        """Yield what tells places that the batch has begun."""
        return (self._row(place, "begin", "") for place in places)

    def _cut(
        self, target: int, kind: str, stream: str, schema: Schema, rows: list[PacketValues]
    ) -> Iterator[ExchangeRow]:
        for start in range(0, len(rows), _PACKET_ROWS):
            part = rows[start : start + _PACKET_ROWS]
            yield self._row(target, kind, stream, len(part), packed(stream, schema, part))

    def _row(
        self, target: int, kind: str, stream: str, value: int = 0, data: bytes | None = None, source: str | None = None
    ) -> ExchangeRow:
        self._sequence += 1
        return ExchangeRow(target, kind, stream, self._sender, self._sequence, self._now, source, value, data)


# -- One place's turn in one batch, without Spark --------------------------------------------------------------------------------


_MAGIC = b"WNDT"
_IN_BATCH = ("fired", "late", "skipped", "expired")


class TridentTurnResult(NamedTuple):
    """What a turn gave. windows: to be stored; None for a unit without windows."""

    rows: list[ExchangeRow]
    windows: bytes | None


def turn(
    units: TridentStages,
    place: UnitPlace,
    rows: list[ExchangeRow],
    batch: ProcessorContext,
    states: Mapping[str, Any],
    windows: bytes | None,
    reported: list[BaseException],
) -> TridentTurnResult:
    """Work on the rows of one place. Raises FailedException where the attempt fails, BoltError for other errors of users' code.

    states: the partitions that the place holds; windows: what the turn before has stored. reported: takes what users' code
    reports, in an attempt that fails too.
    """
    unit = place.unit
    subtopology = Subtopology(units.plan, unit.group.id, place.task, states, nodes=unit.nodes, out=unit.out)
    subtopology.prepare()
    try:
        what = f"windows of {unit.group.id}, task {place.task}"
        _restore(subtopology, windows, what)
        before = _counts(subtopology)
        packets = Packets(units, place.task, PLACES + place.number, batch, max(row.now for row in rows))
        for group in unit.group.batch_groups:
            found = subtopology.start_batch(group, batch)
            _feed(units, found, [row for row in rows if row.kind in ("rows", "max")])
            found.finish_batch()
            found.commit_batch()
            packets.emit(found.take())
        made = list(packets.finish())
        if not unit.keeps_window:
            return TridentTurnResult(made, None)
        after = _counts(subtopology)
        numbers = {name: after[name] - before[name] for name in _IN_BATCH} | {"pending": after["pending"]}
        made += [told("metric", unit.group.id, number, source=name) for name, number in numbers.items()]
        return TridentTurnResult(made, _snapshot(subtopology))
    except ReportedFailedException as problem:
        reported.append(problem)
        raise
    finally:
        reported[:0] = subtopology.take_reports()
        subtopology.cleanup()


@contextmanager
def opened(units: TridentStages, place: UnitPlace) -> Iterator[dict[str, Any]]:
    """Open the partitions of states that a place holds; close them all at the end."""
    with ExitStack() as stack:
        states = {}
        for id in place.unit.states:
            plan = units.plan.states[id]
            state = states[id] = plan.spec.factory.make_state(place.task, plan.partitions)
            stack.callback(state.close)
        yield states


def _feed(units: TridentStages, batch: GroupBatch, rows: list[ExchangeRow]) -> None:
    for row in sorted(rows, key=lambda row: (int(row.stream), row.sender, row.sequence)):
        link = units.links[int(row.stream)]
        if link.batch_group != batch.batch_group:
            continue
        if row.kind == "rows":
            batch.execute(link, unpacked(row))
        else:
            batch.observe(link, {row.source: row.value})


def _restore(subtopology: Subtopology, stored: bytes | None, what: str) -> None:
    if stored is None:
        return
    kept = loads(unframe(_MAGIC, stored, what), what)
    for number, window in subtopology.windows().items():
        if str(number) not in kept:
            raise CorruptStateError(f"the {what} lack those of step {number}; put the checkpoint back from a copy")
        now = kept[str(number)]
        window.restore({"txid": now["txid"], "before": now["windows"], "now": now["windows"]})


def _snapshot(subtopology: Subtopology) -> bytes:
    kept = {}
    for number, window in subtopology.windows().items():
        found = window.snapshot()
        kept[str(number)] = {"txid": found["txid"], "windows": found["now"]}
    return frame(_MAGIC, dumps(kept))


def _counts(subtopology: Subtopology) -> dict[str, int]:
    """Return what became of the tuples of all windows of the unit, added up."""
    total: dict[str, int] = {}
    for window in subtopology.windows().values():
        for name, number in window.counts().items():
            total[name] = total.get(name, 0) + number
    return total


# -- What Spark runs of a Trident topology ---------------------------------------------------------------------------------------


DEAD_LETTERS = "dead_letters"
"""What the sink of a stream's skipped batches is called, behind the name of the stream."""

_log = logging.getLogger("windowing.spark")
_COLUMNS = [part.split()[0] for part in WIRE.split(", ")]


def _say(who: str, reported: Sequence[BaseException]) -> None:
    """Log reported errors here: Spark tries this task again, so no row of it comes to the driver."""
    for error in reported:
        _log.warning("%s reports %s", who, describe(error))


class TridentSpoutStage:
    """What runs on each partition of a source: the units right behind it, then packing. keep: send the tuples to the driver too."""

    def __init__(self, units: Shipped[TridentStages], spout: int, keep: bool) -> None:
        self._units, self._spout, self._keep = units, spout, keep

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of the wire for each batch, then what the partition has to say at its end."""
        context = TaskContext.get()
        partition, txid = 0 if context is None else context.partitionId(), batch_id() + 1
        with marked():
            for rows in self.pack(batches, partition, txid):
                yield record_batch(rows)

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, txid: int) -> Iterator[list[ExchangeRow]]:
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
        self, units: TridentStages, spout: int, partition: int, txid: int, now: int, closing: ExitStack
    ) -> None:
        plan = units.plan
        group = plan.group_of(spout)
        self._schema, self._name = plan.graph.nodes[spout].schema, plan.graph.nodes[spout].title
        source = next(node.source.name for node in plan.spouts if node.number == spout)
        self._letters = f"{source}.{DEAD_LETTERS}"
        batch = ProcessorContext(TransactionAttempt(txid, 0), now, as_of=txid - 1)
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

    def left_out(self, keep: bool) -> list[ExchangeRow]:
        """Return what becomes of `unread`: dead letters, whatever becomes of the batch; else they are counted and logged."""
        odd = next(value for value in self.unread[0] if type(value) is Unreadable)
        _log.warning("%s: %d tuples are invalid: %s", self._name, len(self.unread), odd.refuse().args[0])
        if not keep:
            return [told("metric", self._name, len(self.unread), source="invalid")]
        for kind in ("out", "input"):
            self._packets.put(kind, self._letters, self._schema, self.unread)
        return list(self._packets.take())

    def kept(self, rows: list[tuple[Any, ...]]) -> list[ExchangeRow]:
        """Return tuples as dead letters, should the batch be skipped."""
        self._packets.put("input", self._letters, self._schema, rows)
        return list(self._packets.take())

    def take(self, rows: list[tuple[Any, ...]]) -> list[ExchangeRow]:
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

    def finish(self) -> list[ExchangeRow]:
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


class TridentStreamStage(StatefulProcessor):
    """What transformWithState runs for each place of a level of the stream; `labels[i]` is the grouping key of the i-th."""

    def __init__(self, units: Shipped[TridentStages], level: int, labels: Sequence[int]) -> None:
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

    def _turn(self, place: UnitPlace, rows: list[ExchangeRow]) -> list[ExchangeRow]:
        number = batch_id()
        drains = any(row.kind == "drain" for row in rows)
        now = max(row.now for row in rows)
        batch = ProcessorContext(TransactionAttempt(number + 1, 0), now, as_of=number, drain=drains)
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


class TridentBatchStage:
    """What `mapInArrow` runs for the places of a level inside foreachBatch: a place works once its partition has come whole."""

    def __init__(self, units: Shipped[TridentStages], level: int, attempt: TransactionAttempt) -> None:
        self._units, self._attempt = units, attempt
        self._places = {place.number: place for place in units.value.on_level(level)}

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what is meant for others as it comes, then what each place makes of its rows."""
        mine: dict[int, list[ExchangeRow]] = {}
        numbers = pa.array(list(self._places), pa.int64())
        with marked():
            for batch in batches:
                is_mine = pc.is_in(batch.column(0), value_set=numbers)
                yield handed_on(batch.filter(pc.invert(is_mine)))
                columns = [column.to_pylist() for column in batch.filter(is_mine).columns]
                for row in map(ExchangeRow._make, zip(*columns, strict=True)):
                    mine.setdefault(row.target, []).append(row)
            for number in sorted(mine):
                yield record_batch(self._turn(self._places[number], mine[number]))

    def _turn(self, place: UnitPlace, rows: list[ExchangeRow]) -> list[ExchangeRow]:
        txid = self._attempt.txid
        commits = bool(place.unit.states) and place.unit.section is Section.COMMIT
        done = told("done", "", place.number)
        group, reported = place.unit.group.id, list[BaseException]()
        try:
            if commits:
                failpoints.hit("before_state_commit", txid - 1)
            with opened(self._units.value, place) as states:
                batch = ProcessorContext(self._attempt, as_of=txid - 1)
                found = turn(self._units.value, place, rows, batch, states, None, reported).rows
            if commits:
                failpoints.hit("after_state_commit", txid - 1)
        except FailedException as problem:
            cause = f"{group}, task {place.task}: {cause_of(problem)}"
            found = [told("failed", group, text=cause)]
        return [done, *found, *reports(group, reported, self._attempt.attempt)]


def stream_level(rows: DataFrame, units: Shipped[TridentStages], level: int, labels: Sequence[int]) -> DataFrame:
    """Return what a level of the stream makes of the rows of the wire; `labels` are the grouping keys of its places."""
    labelled = rows.withColumn("label", label_of_row(labels, units.value.on_level(level)[0].number))
    processor = TridentStreamStage(units, level, labels)
    return labelled.groupBy("label").transformWithStateInPandas(processor, WIRE, "Append", "None")


def batch_level(
    rows: DataFrame,
    units: Shipped[TridentStages],
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
    return spread.mapInArrow(TridentBatchStage(units, level, attempt), WIRE)
