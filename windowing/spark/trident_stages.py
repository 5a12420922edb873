"""The stages of a Trident topology on Spark: those right behind a source, and one batch of a task behind an exchange.

    a source's DataFrame --TridentSpoutStage--> packets --operator, trident_turn--> packets       the query, windows stored
    packets --repartition by task, TridentBatchStage--> packets                                   in foreachBatch

    rows, max, begin --> Subtopology of the stage: execute, observe, finish, commit --> rows, out, max, metric
    stored windows   -->                                                          --> stored windows

The stream name of an exchange row is the number of its exchange. Beside the kinds of exchange.py these go to the driver:

    kind      stream      value       data
    input     sink        how many    tuples of a source, kept if a batch may be skipped
    failed    component   -           why the attempt fails
    reported  component   how many    errors reported by users' code, which stop nothing (sequence: the attempt)
    done      -           task        the task has worked

`failed` and `done` also go to every later task that writes a state. A whole attempt is one Spark job, and its shuffles deliver no
row before everything in front of them has been evaluated, so these rows state the result of all earlier tasks.

Laws: a task processes its rows in the order of (exchange, upstream, sequence), so its output does not depend on the order of the
shuffle: it is a function of (rows, batch, stored windows, states) alone. Every task works once in an attempt, also without tuples.
A task writes its states only after every earlier task has worked, and none has failed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowing.columnar.bolts import arrow_schema
from windowing.columnar.panes import folded
from windowing.columnar.rows import Keys, decode_table
from windowing.errors import FailedException, ReportedFailedException, WindowingError, describe_error
from windowing.execution.metrics import LAST_KEPT, SlowestInput, TaskMetrics
from windowing.execution.plan import Exchange, Section, StageTask
from windowing.schema.types import WHOLE_BITS, Row, Schema
from windowing.spark import failpoints
from windowing.spark.exchange import (
    FIRST_TASK,
    ExchangeRow,
    RowNumbering,
    clock_of,
    clocked,
    handed_on,
    packets_and_controls,
    record_batches,
    said_of_batch,
)
from windowing.spark.metrics import MetricsChannel
from windowing.spark.operator import ArrowStage, Stored, TaskResult
from windowing.spark.shipping import Shipped
from windowing.spark.trident_windows import TridentWindows
from windowing.spark.unreadable import Unreadable, any_unreadable, arrow_column, held, python_values, unreadable_in
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.trident.builtins import Count, Max, Min, Sum
from windowing.trident.kinds import Phase, TransactionAttempt
from windowing.trident.operations import Aggregate, AggregationStage, Operation
from windowing.trident.plan import SpoutNode, TridentPlan
from windowing.trident.processors import NOTHING, AggregateSlot, ProcessorContext, call_hook, failure_of, partition_of
from windowing.trident.subtopology import ExchangeWriter, GroupBatch, GroupOutput, Subtopology
from windowing.windows.aggregate import AggregateFunction, Largest, Smallest, Summed

_MAX_TEXT = 500


def table_of(who: str, schema: Schema, rows: Sequence[Row]) -> pa.Table:
    """Return tuples as a table. Raises BoltError for a value that is not of its declared type."""
    fields = arrow_schema(schema)
    columns = zip(fields, zip(*rows, strict=True) if rows else [()] * len(fields), strict=True)
    return pa.Table.from_arrays(
        [arrow_column(who, "default", field, column) for field, column in columns], schema=fields
    )


def to_driver(
    kind: str, stream: str, value: int = 0, text: str | None = None, source: str | None = None
) -> ExchangeRow:
    """Return a row for the driver, with the first 500 characters of the text."""
    return ExchangeRow(-1, kind, stream, 0, 0, 0, source, value, None if text is None else text[:_MAX_TEXT].encode())


def text_of(row: Any) -> str:
    """Return the text of a row made by `to_driver`."""
    return bytes(row["data"]).decode()


def writers_behind(plan: TridentPlan, depth: int) -> list[int]:
    """Return the tasks behind a depth that write states; they receive the `done` and `failed` rows of earlier tasks."""
    return [task.number for task in plan.tasks if task.stage.depth > depth and writes(task)]


def writes(task: StageTask) -> bool:
    """Return whether a task writes states."""
    return bool(task.stage.states) and task.stage.section is Section.COMMIT


def with_copies(row: ExchangeRow, tasks: Iterable[int]) -> list[ExchangeRow]:
    """Return a row for the driver, and a copy of it for each of these tasks."""
    return [row, *(row._replace(target=task) for task in tasks)]


def reports(stream: str, errors: Sequence[BaseException], attempt: int = 0) -> list[ExchangeRow]:
    """Return the rows that report errors of users' code to the driver: their number, and the texts of the first LAST_KEPT."""
    rows = [to_driver("reported", stream, 1, text=describe_error(error)) for error in errors[:LAST_KEPT]]
    if len(errors) > LAST_KEPT:
        rows.append(to_driver("reported", stream, len(errors) - LAST_KEPT, text="more of them"))
    return [row._replace(sequence=attempt) for row in rows]


def log_reports(where: str, reported: Sequence[tuple[str, str]]) -> None:
    """Log the first LAST_KEPT errors that users' code reported in a batch, by (component, text), and the number of the others."""
    for who, text in reported[:LAST_KEPT]:
        _log.warning("%s%s reports %s", where, who, text)
    if len(reported) > LAST_KEPT:
        _log.warning("%s%d more errors were reported", where, len(reported) - LAST_KEPT)


class PacketWriter:
    """The packets that one upstream sends in one batch; `task` is its number in its group.

    Cost: one routing decision for each tuple, and a copy of it into Arrow.
    """

    def __init__(self, plan: TridentPlan, task: int, upstream: int, batch: ProcessorContext, now: int) -> None:
        self._plan, self._writer = plan, ExchangeWriter(plan, task, batch)
        self._sent = RowNumbering(upstream, now)
        self._rows: dict[tuple[int, str, str], tuple[Schema, list[Row]]] = {}
        """Pending tuples by target, kind and stream of their exchange rows."""

    def emit(self, emitted: GroupOutput) -> None:
        for id, rows in emitted.exchanges.items():
            exchange = self._plan.exchanges[id]
            first = self._plan.stages[exchange.target].first
            for task, part in self._writer.route(exchange, rows).items():
                self.put("rows", str(id), exchange.schema, part, first + task)
        for sink, rows in emitted.sinks.items():
            self.put("out", sink, self._plan.graph.nodes[self._plan.sinks[sink]].schema, rows)

    def put(self, kind: str, stream: str, schema: Schema, rows: Iterable[Row], target: int = -1) -> None:
        """Send tuples to a task; with the default target, past all tasks to the driver."""
        self._rows.setdefault((target, kind, stream), (schema, []))[1].extend(rows)

    def drop(self) -> None:
        self._rows.clear()

    def take(self) -> Iterator[ExchangeRow]:
        """Yield the tuples sent since the last call, cut into packets."""
        for (target, kind, stream), (schema, rows) in sorted(self._rows.items(), key=itemgetter(0)):
            if schema.names:
                yield from self._sent.packets(target, kind, stream, table_of(stream, schema, rows))
            elif rows:
                yield self._sent.row(target, kind, stream, len(rows), b"")
        self._rows.clear()

    def finish(self, begin: Iterable[int] = ()) -> Iterator[ExchangeRow]:
        """Yield the last rows, the largest timestamps for every task with windows, and the begin of the batch for these tasks."""
        yield from self.take()
        for exchange, largest in sorted(self._writer.largest.items()):
            tasks = self._plan.stages[self._plan.exchanges[exchange].target].tasks
            yield from self._sent.largest(tasks, str(exchange), largest)
        for task in begin:
            yield self._sent.row(task, "begin")


# -- One task's part of one batch, without Spark -----------------------------------------------------------------------------------


_IN_BATCH = ("fired", "late", "skipped", "expired")


def process(
    plan: TridentPlan,
    task: StageTask,
    rows: list[ExchangeRow],
    batch: ProcessorContext,
    stored: Stored,
    reported: list[BaseException],
) -> TaskResult:
    """Process the rows of one task. Raises FailedException if the attempt fails, BoltError for other errors of users' code.

    stored: the windows after the last batch; the result has the new ones, and none for a stage without windows.
    reported: receives the errors that users' code reports, also in an attempt that fails.
    """
    with ExitStack() as closing:
        states = {}
        for id in task.stage.states:
            states[id] = partition_of(plan.states[id].factory, id, task.task, plan.states[id].partitions)
            closing.callback(call_hook, states[id], "close")
        subtopology = Subtopology(plan, task.stage.id, task.task, states)
        subtopology.prepare()
        try:
            if task.stage.keeps_window:
                return _processed_with_windows(plan, task, rows, batch, subtopology, stored)
            return TaskResult(_processed(plan, task, rows, batch, subtopology))
        except ReportedFailedException as problem:
            subtopology.report(problem)
            raise
        finally:
            reported += subtopology.take_reports()
            subtopology.cleanup()


def _processed(
    plan: TridentPlan, task: StageTask, rows: list[ExchangeRow], batch: ProcessorContext, subtopology: Subtopology
) -> list[ExchangeRow]:
    """Process and commit the task's part of the batch; return the rows it sends."""
    writer = PacketWriter(plan, task.task, FIRST_TASK + task.number, batch, clock_of(rows))
    packets, controls = packets_and_controls(rows)
    arrived = sorted(packets, key=lambda row: int(row.stream)) + [row for row in controls if row.kind == "max"]
    for group in task.stage.batch_groups:
        found = GroupBatch(subtopology, group, batch)
        for row in arrived:
            exchange = plan.exchanges[int(row.stream)]
            if exchange.batch_group != group:
                continue
            if row.kind == "max":
                found.observe(exchange, {row.source: row.value})
                continue
            columns = decode_table(row.data).columns if row.data else []  # tuples without fields are a number
            values = [column.to_pylist(maps_as_pydicts="strict") for column in columns]
            found.execute(exchange, list(zip(*values, strict=True)) if values else [()] * row.value)
        found.finish(Phase.PROCESS)
        found.finish(Phase.COMMIT)
        writer.emit(found.take())
    return list(writer.finish())


def readable_in(columns: Iterable[Any], schema: Schema, count: int) -> tuple[list[Row], list[Row]]:
    """Return the readable tuples of columns, and those with a value that Python cannot hold. count: of tuples without fields."""
    values = [python_values(column, name) for column, name in zip(columns, schema.names, strict=True)]
    rows = list(zip(*values, strict=True)) if values else [()] * count
    unread = list(filter(held, rows)) if any_unreadable(values) else []
    return [row for row in rows if not held(row)] if unread else rows, unread


def invalid_tuples(name: str, unread: Sequence[Row]) -> ExchangeRow:
    """Return the count of tuples with a value that Python cannot hold, which are left out; log why the first one is."""
    odd = next(value for value in tuple.__iter__(unread[0]) if type(value) is Unreadable)
    _log.warning("%s: %d tuples are invalid: %s", name, len(unread), odd.refuse().args[0])
    return to_driver("metric", name, len(unread), source="invalid")


def _processed_with_windows(
    plan: TridentPlan,
    task: StageTask,
    rows: list[ExchangeRow],
    batch: ProcessorContext,
    subtopology: Subtopology,
    stored: Stored,
) -> TaskResult:
    """Return the result of a task with windows: its rows, the counts of its tuples, and the windows to store."""
    component, now_ms = task.stage.component, clock_of(rows)
    kept = TridentWindows(subtopology.windows(), stored, f"windows of {component}, task {task.task}")
    before, late_before = subtopology.window_counts()
    sent = _processed(plan, task, rows, batch, subtopology)
    after, late = subtopology.window_counts()
    numbers = {name: after[name] - before[name] for name in _IN_BATCH} | {"pending": after["pending"], "now": now_ms}
    slowest_window = subtopology.slowest_window()
    assert slowest_window is not None
    watermark, slowest = slowest_window.watermark, slowest_window.slowest
    if watermark is not None:
        numbers["watermark"] = watermark
    sent += [to_driver("metric", component, number, source=name) for name, number in numbers.items()]
    late -= late_before
    windows = TaskMetrics(task.stage.id, task.task, late=dict(late), windows_fired=numbers["fired"])
    windows.expired, windows.skipped, windows.pending = (numbers[name] for name in ("expired", "skipped", "pending"))
    windows.acked = windows.expired + late.total()
    windows.watermark_ms, windows.watermark_lag_ms = watermark, None if watermark is None else now_ms - watermark
    windows.slowest = None if slowest is None else SlowestInput(*slowest)
    result = TaskResult(sent, done=[windows])
    kept.write(result)
    return result


# -- Partial aggregation in columns: combiners applied to an Arrow batch without a Python tuple per row ----------------------------
#
#     k  JFK LGA JFK   --dictionary-->  codes 0 1 0, keys (JFK,) (LGA,)
#     v   3   5   4    --added by code to the values of the slot-->  (JFK,) 7, (LGA,) 5   written back to the slot
#
# It is used for steps right behind a source that compute a count, sum, minimum or maximum of whole numbers (a sum of doubles too),
# without a key or by keys of text, whole numbers and booleans. All other steps process rows. So does a batch with a null in a key,
# with a value that Python cannot hold, or with a sum that could exceed 64 bits: `add` then returns False and changes nothing.
#
# Law: after a batch the slot holds exactly the values, in the same order, that `AggregateProcessor.execute` computes for the same
# tuples; the tests use it as the model. So consecutive batches may use either path, and a repeated attempt gives the same rows.
# (Doubles are added one after the other in arrival order, never as a sum of partial sums.)


Codes = npt.NDArray[np.int64]
_Fold = Callable[[Any, Codes, Sequence[Any]], "list[Any] | None"]
"""(column, code of each row, start value of each key) -> the new values; None if the batch must be processed by rows."""

_KEYS = ("string", "boolean", *WHOLE_BITS)
_FUNCTIONS: Mapping[type, AggregateFunction] = {Sum: Summed(), Min: Smallest(), Max: Largest()}


class ColumnFold:
    """The partial aggregation of one node. Cost of a batch: some passes of numpy over it, and in Python O(1) for each key."""

    def __init__(self, key: Sequence[int] | None, parts: Sequence[tuple[int, _Fold]]) -> None:
        self._key, self._parts = key, parts

    @classmethod
    def of(cls, operation: Operation, schema: Schema) -> ColumnFold | None:
        """Return the fold of an operation for tuples of this schema, None if the operation needs rows."""
        if not isinstance(operation, Aggregate) or operation.stage is not AggregationStage.PARTIAL:
            return None
        types = dict(zip(schema.names, schema.types, strict=True))
        parts = []
        for part in operation.specs:
            read = part.inputs[0] if part.inputs else None
            fold = _fold_of(type(part.aggregator), None if read is None else types[read])
            if fold is None:
                return None
            parts.append((0 if read is None else schema.names.index(read), fold))
        if operation.group is None:
            return cls(None, parts)
        if not all(types[name] in _KEYS for name in operation.group):
            return None
        return cls([schema.names.index(name) for name in operation.group], parts)

    def add(self, slot: AggregateSlot, batch: pa.RecordBatch) -> bool:
        """Add all tuples of a non-empty batch to the slot and return True, or none of them and return False."""
        if self._key is None:
            codes, keys = np.zeros(batch.num_rows, np.int64), [()]
            olds = [slot.value]
        else:
            found = _grouped([batch.column(position) for position in self._key])
            if found is None:
                return False
            codes, keys = found
            entries = map(slot.keys.get, keys)
            olds = [NOTHING if entry is None else entry[1] for entry in entries]
        chained = len(self._parts) > 1
        values = []
        for number, (position, fold) in enumerate(self._parts):
            starts = [old if old is NOTHING else old[number] for old in olds] if chained else olds
            folded = fold(batch.column(position), codes, starts)
            if folded is None:
                return False
            values.append(folded)
        made = map(list, zip(*values, strict=True)) if chained else iter(values[0])
        if self._key is None:
            slot.value = next(made)
        else:
            slot.keys.update((key, [key, value]) for key, value in zip(keys, made, strict=True))
        return True


def _grouped(columns: Sequence[pa.Array]) -> tuple[Codes, list[Row]] | None:
    """Return the code of each row's key, and the keys in order of first occurrence; None if a key field is null."""
    if any(column.null_count for column in columns):
        return None
    codes, keys = Keys([pa.chunked_array([column]) for column in columns]).coded()
    return codes, keys if len(columns) > 1 else [(key,) for key in keys]


def _fold_of(aggregator: type, kind: str | None) -> _Fold | None:
    if aggregator is Count:
        return _counted
    if aggregator in _FUNCTIONS and (kind in WHOLE_BITS or (aggregator is Sum and kind in ("float", "double"))):
        return partial(_folded, _FUNCTIONS[aggregator])
    return None


def _counted(column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    added = np.bincount(codes, minlength=len(starts)).tolist()
    return [more if start is NOTHING else start + more for start, more in zip(starts, added, strict=True)]


def _folded(function: AggregateFunction, column: Any, codes: Codes, starts: Sequence[Any]) -> list[Any] | None:
    if column.null_count and type(function) is Summed and pa.types.is_integer(column.type):
        column = column.fill_null(0)
    if column.null_count:  # a sum counts None as the whole number 0
        return None
    return folded(function, column, codes, starts, NOTHING)


# -- What Spark runs of a Trident topology ---------------------------------------------------------------------------------------


ATTEMPT_PROPERTY = "windowing.attempt"
"""The job property with the number of the attempt, set by the driver."""

_log = logging.getLogger("windowing.spark")


class TridentSpoutStage(ArrowStage):
    """Runs on each partition of a source: the stages right behind it, then packing.

    keep: also send the tuples to the driver, for dead letters. channel: receives the metrics.
    """

    def __init__(
        self, plan: Shipped[TridentPlan], spout: int, keep: bool, channel: MetricsChannel | None = None
    ) -> None:
        self._plan, self._spout, self._keep, self._channel = plan, spout, keep, channel
        self._windowed = [task.number for task in plan.value.tasks if task.stage.section is Section.STREAM]

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Yield packets for each batch, then the rows at the end of the partition.

        A failure is sent as a `failed` row, unless the topology has windows, which must process the whole batch: then it is raised,
        and Spark retries the task. Tuples kept for dead letters are read to the end.
        """
        plan = self._plan.value
        title = plan.graph.nodes[self._spout].title
        now, given = clocked(batches)
        if now is None:
            return
        with ExitStack() as closing:
            work = _SpoutWork(plan, self._spout, partition, number + 1, now, closing)
            for columns, tasks in given:
                by_rows = work.exchanges if self._keep or work.failed is not None else work.fold(columns)
                if not by_rows:
                    continue
                rows, unread = readable_in(columns.columns, work.schema, len(tasks))
                if unread:
                    yield from record_batches(work.left_out(unread, self._keep))
                if self._keep:
                    yield from record_batches(work.kept(rows))
                yield from record_batches(work.take(rows, by_rows))
            yield from record_batches(work.finish(self._windowed))
            errors = work.errors()
            if work.failed is not None:
                if plan.depths(Section.STREAM):  # rows of errors would be lost: Spark retries this task
                    log_reports("", [(title, describe_error(error)) for error in errors])
                    raise work.failed
                yield from record_batches(
                    with_copies(to_driver("failed", title, text=failure_of(work.failed)), writers_behind(plan, 0))
                )
            if errors:
                yield from record_batches(reports(title, errors))
            if self._channel is not None:
                self._channel.send(number, partition, now, work.done())


class _SpoutWork:
    """The work on one partition of a source in one batch. `closing`: cleans up the tasks of the stages here. `failed`: the failure
    of the attempt; after it nothing is processed or sent.
    """

    def __init__(self, plan: TridentPlan, spout: int, partition: int, txid: int, now: int, closing: ExitStack) -> None:
        group, node = plan.stage_of(spout), plan.graph.nodes[spout]
        assert isinstance(node, SpoutNode)
        self.schema, self._name = node.schema, node.title
        self._dead_letters = f"{node.source.name}.{DEAD_LETTERS}"
        batch = ProcessorContext(TransactionAttempt(txid, 0), now, as_of=txid - 1)
        task = partition % group.parallelism
        self._writer = PacketWriter(plan, task, partition, batch, now)
        self._plan = plan
        self.failed: FailedException | None = None
        self._source, self._sent = TaskMetrics(group.id, task), Counter[str]()
        self._groups: dict[str, TaskMetrics] = {}
        self.exchanges = list(plan.out_of(group.id))
        self._here: dict[str, GroupBatch] = {}
        self._made: list[Subtopology] = []
        targets = {each.target for each in self.exchanges}
        for id, stage in plan.stages.items():
            if not stage.depth and id in targets:
                made = Subtopology(plan, id, task)
                self._made.append(made)
                self._here[id] = GroupBatch(made, plan.batch_groups[spout], batch)
                self._groups[id] = TaskMetrics(id, task)
        self._folds: dict[int, list[tuple[tuple[int, int], ColumnFold, Any]]] = {each.id: [] for each in self.exchanges}
        """For each exchange the steps behind it that can fold columns, with their slots."""
        for exchange in self.exchanges:
            here = self._here.get(exchange.target)
            for target in exchange.targets if here is not None else ():
                fold = ColumnFold.of(plan.processor(target[0]).operation, self.schema)
                if fold is not None and here is not None:
                    self._folds[exchange.id].append((target, fold, here.slot(target[0])))
        self._tuples = 0
        try:
            for made in self._made:
                closing.callback(made.cleanup)
                made.prepare()
        except FailedException as problem:
            self.failed = problem

    def fold(self, columns: pa.RecordBatch) -> list[Exchange]:
        """Fold a batch in columns where the steps can; return the exchanges whose steps need its rows.

        All exchanges need rows if the batch holds a value that Python cannot hold.
        """
        if not any(self._folds.values()) or any(unreadable_in(column) is not None for column in columns.columns):
            return self.exchanges
        left = []
        for exchange in self.exchanges:
            done = {target for target, fold, slot in self._folds[exchange.id] if fold.add(slot, columns)}
            targets = tuple(target for target in exchange.targets if target not in done)
            if targets:
                left.append(replace(exchange, targets=targets))
            else:
                self._sent[exchange.target] += columns.num_rows
        self._tuples += 0 if left else columns.num_rows
        return left

    def left_out(self, unread: list[Row], keep: bool) -> list[ExchangeRow]:
        """Return the rows for tuples that cannot be read: dead letters if `keep`, otherwise a count; a warning is logged."""
        counted = invalid_tuples(self._name, unread)
        if not keep:
            return [counted]
        for kind in ("out", "input"):
            self._writer.put(kind, self._dead_letters, self.schema, unread)
        return list(self._writer.take())

    def kept(self, rows: list[Row]) -> list[ExchangeRow]:
        """Return tuples as dead letters, in case the batch is skipped."""
        self._writer.put("input", self._dead_letters, self.schema, rows)
        return list(self._writer.take())

    def take(self, rows: list[Row], exchanges: Iterable[Exchange]) -> list[ExchangeRow]:
        """Process tuples of these exchanges and return the rows to send."""
        if self.failed is not None:
            return []
        self._tuples += len(rows)
        try:
            for exchange in exchanges:
                self._sent[exchange.target] += len(rows)
                here = self._here.get(exchange.target)
                if here is None:
                    self._writer.emit(GroupOutput({exchange.id: rows}))
                else:
                    began = time.perf_counter()
                    here.execute(exchange, rows)
                    self._worked(exchange.target, began)
        except FailedException as problem:
            self._writer.drop()
            self.failed = problem
        return list(self._writer.take())

    def _worked(self, group: str, began: float) -> None:
        """Send the output of a group, and count it."""
        found, emitted = self._groups[group], self._here[group].take()
        found.execute_ms += 1000 * (time.perf_counter() - began)
        sent = [(self._plan.exchanges[exchange].target, rows) for exchange, rows in emitted.exchanges.items()]
        for where, rows in [*sent, *emitted.sinks.items()]:
            found.emitted[where] = found.emitted.get(where, 0) + len(rows)
        self._writer.emit(emitted)

    def done(self) -> list[TaskMetrics]:
        self._source.emitted = dict(self._sent)
        for id, found in self._groups.items():
            found.executed = self._sent[id]
            found.acked, found.failed = (found.executed, 0) if self.failed is None else (0, found.executed)
        return [self._source, *self._groups.values()]

    def errors(self) -> list[BaseException]:
        """Return the errors that users' code reported, with the failure of the attempt if it is to be reported."""
        errors = [error for made in self._made for error in made.take_reports()]
        return [*errors, self.failed] if isinstance(self.failed, ReportedFailedException) else errors

    def finish(self, windowed: Iterable[int]) -> list[ExchangeRow]:
        """Return the rows at the end of the partition, with the begin of the batch for the tasks with windows."""
        if self.failed is not None:
            return []
        try:
            for group, batch in self._here.items():
                began = time.perf_counter()
                batch.finish(Phase.PROCESS)
                self._worked(group, began)
            tuples = to_driver("metric", self._name, self._tuples, source="tuples")
            return [*self._writer.finish(windowed), tuples]
        except FailedException as problem:
            self.failed = problem
            return []


def group_metrics(
    plan: TridentPlan,
    task: StageTask,
    rows: Iterable[ExchangeRow],
    output: Iterable[ExchangeRow],
    execute_ms: float,
    failed: bool = False,
    windows: Iterable[TaskMetrics] = (),
) -> TaskMetrics:
    """Return the metrics of a task of a Trident group from its input and output rows; emitted rows are counted by their target
    group or sink. failed: whether its part of the batch failed. windows: the metrics of its windows, none if it has none. The name
    is that of the stage; a group that is cut in two has two stages.
    """
    found = TaskMetrics(task.stage.id, task.task, execute_ms=execute_ms)
    found.executed = sum(row.value for row in rows if row.kind == "rows")
    for row in output:
        if row.kind in ("rows", "out"):
            stream = plan.exchanges[int(row.stream)].target if row.kind == "rows" else row.stream
            found.emitted[stream] = found.emitted.get(stream, 0) + row.value
        elif row.kind == "reported":
            found.reported += row.value
    if failed:
        found.failed = found.executed
    elif not task.stage.keeps_window:
        found.acked = found.executed
    for each in windows:
        found.add(each)
    return found


def trident_turn(
    shipped: Shipped[TridentPlan], number: int, rows: Sequence[ExchangeRow], stored: Stored, batch: int
) -> TaskResult:
    """Process a batch of a task of a stage with windows, as the operator runs it; its state are the windows.

    Raises FailedException, BoltError, CorruptStateError.
    """
    if not rows:
        return TaskResult()
    plan, task, began = shipped.value, shipped.value.tasks[number], time.perf_counter()
    drains = any(row.kind == "drain" for row in rows)
    context = ProcessorContext(TransactionAttempt(batch + 1, 0), clock_of(rows), as_of=batch, drain=drains)
    group, reported = task.stage.component, list[BaseException]()
    try:
        result = process(plan, task, list(rows), context, stored, reported)
    except FailedException:
        log_reports("", [(group, describe_error(error)) for error in reported])
        raise
    result.output = [*result.output, *reports(group, reported)]
    took_ms = 1000 * (time.perf_counter() - began)
    result.done = [group_metrics(plan, task, rows, result.output, took_ms, windows=result.done)]
    return result


class TridentBatchStage(ArrowStage):
    """Runs the tasks of a stage inside foreachBatch; a task works once its partition is complete.

    before: the depths that the attempt has already processed. attempt: by default that of the job, so that a stage is sent to Spark
    once, and not for each attempt.
    """

    def __init__(
        self,
        plan: Shipped[TridentPlan],
        depth: int,
        before: Sequence[int],
        attempt: TransactionAttempt | None = None,
        channel: MetricsChannel | None = None,
    ) -> None:
        self._plan, self._attempt, self._channel = plan, attempt, channel
        self.tasks = {task.number: task for task in plan.value.tasks_at(depth)}
        self._writing = {number for number, task in self.tasks.items() if writes(task)}
        self._writers = writers_behind(plan.value, depth)
        self._before = {task.number for each in before for task in plan.value.tasks_at(each)}

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows for other tasks as they arrive, then the output of each own task."""
        attempt = self._attempt or TransactionAttempt(number + 1, int(said_of_batch("attempt", ATTEMPT_PROPERTY) or 0))
        mine: dict[int, list[ExchangeRow]] = {}
        numbers = pa.array(list(self.tasks), pa.int64())
        for batch in batches:
            is_mine = pc.is_in(batch.column(0), value_set=numbers)
            yield handed_on(batch.filter(pc.invert(is_mine)))
            columns = [column.to_pylist() for column in batch.filter(is_mine).columns]
            for row in map(ExchangeRow._make, zip(*columns, strict=True)):
                mine.setdefault(row.target, []).append(row)
        for target in sorted(mine):
            yield from record_batches(self._process(self.tasks[target], attempt, mine[target]))

    def _process(self, task: StageTask, attempt: TransactionAttempt, rows: list[ExchangeRow]) -> list[ExchangeRow]:
        txid = attempt.txid
        done = with_copies(to_driver("done", "", task.number), self._writers)
        is_writing = task.number in self._writing
        if is_writing and not self._can_write(task, attempt, rows):
            return done
        group, reported, began = task.stage.component, list[BaseException](), time.perf_counter()
        has_failed = False
        try:
            if is_writing:
                failpoints.hit("before_state_commit", txid - 1)
            batch = ProcessorContext(attempt, as_of=txid - 1)
            found = process(self._plan.value, task, rows, batch, Stored(), reported).output
            if is_writing:
                failpoints.hit("after_state_commit", txid - 1)
        except FailedException as problem:
            failed = to_driver("failed", group, text=f"{group}, task {task.task}: {failure_of(problem)}")
            found, has_failed = with_copies(failed, self._writers), True
        output = [*found, *reports(group, reported, attempt.attempt)] if reported else found
        if self._channel is not None:
            took_ms = 1000 * (time.perf_counter() - began)
            metrics = group_metrics(self._plan.value, task, rows, output, took_ms, has_failed)
            self._channel.send(txid - 1, FIRST_TASK + task.number, clock_of(rows), [metrics])
        return [*done, *output]

    def _can_write(self, task: StageTask, attempt: TransactionAttempt, rows: list[ExchangeRow]) -> bool:
        """Return whether no earlier task has failed. Raises WindowingError if an earlier task has not worked."""
        if any(row.kind == "failed" for row in rows):
            return False
        missing = self._before - {row.value for row in rows if row.kind == "done"}
        if missing:
            raise WindowingError(
                f"topology {self._plan.value.name!r}: {task.stage.component}, task {task.task}, was to write attempt "
                f"{attempt} before the tasks {sorted(missing)} had worked on it; nothing of it was written there: start "
                "again from the checkpoint, and report this"
            )
        return True
