"""One task of a bolt without windows in one micro-batch: tuples in, rows out (BoltBatch), or for a bolt with `columnar=` Arrow
tables in, tables out (ColumnarBoltBatch); what failed is retried in rounds.

    take     tuple --> execute --> succeeded: the rows, acks and state changes of the call count
                          ^
                          |        failed: none of them count; the tuple waits, and so do tuples that the call acked
                          |                                                   |
    close                 +------- after one wait for all of them ------------+   `max_attempts` times per tuple, then an
             hooks, cleanup, with the rows they emit                              error, or a dead letter

Laws: a batch is atomic: all rows of its tuples leave with the batch. A call is atomic: a failed call leaves nothing except side
effects of the user's code. A call fails if it raises FailedException, or fails the tuple that it was passed. Acks are not awaited
beyond the batch: if a Bolt has neither acked nor failed a tuple when its task has no more tuples and `cleanup` has returned, the
tuple fails.

In columns a StreamBatch stands in place of a tuple. All its rows have the same roots, so its output is anchored to all of them. A
batch that failed for good becomes one dead letter per row, or an error. If the bolt reads a value that Python cannot hold, it is
called again without the rows that have one.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from windowing.acking.acker import Reason
from windowing.columnar.bolts import ColumnarCaller, arrow_schema
from windowing.columnar.rows import Numbers
from windowing.errors import AckError, BoltError, FailedException, ReportedFailedException, describe_error, quote
from windowing.execution.metrics import LAST_KEPT, TaskMetrics
from windowing.schema.checks import DEFAULT_STREAM, StormNames
from windowing.schema.rows import rows_of
from windowing.schema.tuples import Origin, Tuple, tuple_type
from windowing.schema.types import Schema
from windowing.spark.acks import NO_ROOTS, Roots, merged
from windowing.spark.context import Arrival, Copy
from windowing.spark.output import columns_as_declared
from windowing.spark.state import TaskValues
from windowing.spark.unreadable import any_of, arrow_column, asked_unreadable, held, tuples_in, unreadable_in
from windowing.topology.bolts import ComponentKind
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.plan import stream_name
from windowing.topology.user_code import BoltCaller, EmittedRow, not_handed

if TYPE_CHECKING:  # which runs the bolts of this module
    from windowing.spark.stage_writer import Chosen, StageWriter

T = TypeVar("T", bound="Arrival | StreamBatch")

_log = logging.getLogger("windowing.spark")
_UNSETTLED = "it was neither acked nor failed when its task had no more tuples"


class RetriedBatch(ABC, Generic[T]):
    """A task of a bolt without windows in one batch: the retries, counts and dead letters of what it is passed.

    writer: takes its output. A tuple whose last attempt failed becomes a dead letter if these have a reader or a sink; else it is
    an error. Cost: a call of user code for each attempt, and one wait, the longest that is due, for each round of retries.
    """

    _caller: BoltCaller

    def __init__(self, writer: StageWriter, name: str, task: int) -> None:
        execution = writer.execution
        self._writer, self._name, self._task = writer, name, task
        self._component, self._context = execution.component(name), execution.context(name, task)
        self._retry = execution.retry
        is_read = bool(execution.topology.readers(name, DEAD_LETTERS))
        self._gives_up = is_read or stream_name(name, DEAD_LETTERS) in execution.sinks
        self._copies: Mapping[tuple[str, str], Copy] = {}
        self._again: list[T] = []
        self._failures: dict[int, tuple[T, int]] = {}  # by id, which is its own as long as what failed is here
        self.done = TaskMetrics(name, task)  # completed by `metrics`
        self.invalid = 0

    def take(self, given: Iterable[T | TupleRun], /) -> None:
        """Pass each to the bolt once. Raises BoltError."""
        for each in self._writer.in_phases(map(self._remember, given) if self._copies else given):
            self.done.executed += each._size
            self._attempt(each)

    def close(self, txid: int = 0) -> None:
        """End the task's part of the batch: retry what failed, then call `cleanup`. Raises BoltError."""
        self._try_again()
        self._caller.close()

    def abandon(self) -> None:
        """Call the bolt's `cleanup` if an error has kept `close` from it."""
        self._caller.abandon()

    @abstractmethod
    def _attempt(self, given: T) -> None:
        """Call the bolt once."""

    def _remember(self, given: T | TupleRun) -> T | TupleRun:
        """Keep the values of tuples with lists or dicts in a form that the bolt cannot change, if there is none yet."""
        return given

    def _as_it_came(self, given: T) -> T:
        """Return what the bolt was passed as it was before the bolt was called, which may change a list or dict of it in place."""
        return given

    def counts(self) -> dict[str, int]:
        """Return the numbers of failed tuples, of tuples left out because the bolt read a value that Python cannot hold and no
        stream takes them ("invalid"), and of errors that the bolt reported.
        """
        return {"failed": self.done.failed, "invalid": self.invalid, "reported": self.done.reported}

    def metrics(self) -> TaskMetrics:
        """Return the metrics of the batch. Failed tuples are retried within it, so at its end all are done or dead letters."""
        done, invalid = self.done, self.invalid
        done.acked = max(0, done.executed - done.dead_letters - invalid)
        done.late = {"invalid": invalid} if invalid else {}
        return done

    def _try_again(self) -> None:
        """Retry what failed, in rounds. Raises BoltError."""
        while self._again:
            again, self._again = self._again, []
            # What did not fail itself is retried without a delay.
            delays = [self._retry.delay_ms(count) for count in map(self._failures_of, again) if count]
            if any(delays):
                time.sleep(max(delays) / 1000)
            for given in self._writer.in_phases(again):
                self._attempt(given)

    def _described(self, problem: FailedException) -> str:
        """Return the reason of a failure; log and count errors that the bolt wants reported."""
        if isinstance(problem, ReportedFailedException):
            self._report(problem, f"bolt {self._name!r}, task {self._task}")
        return describe_error(problem)

    def _report(self, error: BaseException, who: str) -> None:
        """Count a reported error; log it and keep its text for the driver, up to a limit per batch and task."""
        self.done.reported += 1
        if self.done.reported <= LAST_KEPT:
            text = describe_error(error)
            self.done.errors += (text,)
            _log.warning("%s reports %s", who, text)

    def _failures_of(self, given: T) -> int:
        return self._failures.get(id(given), (given, 0))[1]

    def _fail(self, given: T, reason: str) -> None:
        self.done.failed += given._size
        given = self._as_it_came(given)
        count = self._failures_of(given) + 1
        self._failures[id(given)] = (given, count)
        if self._retry.is_last(count):
            self._give_up(given, count, reason)
        else:
            self._again.append(given)

    def _leave_out(self, given: T, reason: str) -> None:
        """Leave out tuples of which the bolt read a value that Python cannot hold; another attempt would fail in the same way."""
        if self._gives_up:
            self.done.failed += given._size
            self._give_up(self._as_it_came(given), 1, reason)
            return
        if not self.invalid:
            _log.warning("%s; such tuples go nowhere: a sink of the bolt's dead_letters keeps them", reason)
        self.invalid += given._size

    def _give_up(self, given: T, attempts: int, reason: str) -> None:
        who, task = self._name, self._task
        for tuple in given._tuples():
            if not self._gives_up:
                each = f"each of {attempts} attempts" if attempts > 1 else "its only attempt"
                what = f"bolt {who!r} failed {quote(tuple)} in {each}: {reason}"
                if reason == _UNSETTLED:
                    what = (
                        f"bolt {who!r} has neither acked nor failed {quote(tuple)}: call collector.ack(tuple) or "
                        "collector.fail(tuple) for each tuple, at the latest in pre_commit or cleanup (an ack of another thread "
                        "comes too late), or use a BasicBolt, which does so by itself"
                    )
                raise BoltError(
                    f"{what}; the batch is not committed. To go on without such tuples give them a sink: "
                    f"sinks={{'{who}.dead_letters': ...}}, or a bolt that reads that stream"
                )
            self.done.dead_letters += 1
            failed = DeadLetter(component=who, task=task, attempts=attempts, error=reason, tuples=[tuple])
            self._writer.dead_letter(who, task, failed, given._roots)


class BoltBatch(RetriedBatch[Arrival]):
    """A task of a BASIC_BOLT or a BOLT. values: the task's state, if the bolt is stateful."""

    def __init__(self, writer: StageWriter, name: str, task: int, values: TaskValues | None) -> None:
        super().__init__(writer, name, task)
        self._values = values
        self._caller = BoltCaller(self._component.declaration)
        self._copies = writer.execution.copies.get(name, self._copies)
        self._runs: list[TupleRun] = []
        self._came: dict[int, tuple[Any, Callable[[], Any]]] = {}
        self._by_itself = self._component.kind is ComponentKind.BOLT
        self._is_basic = not self._by_itself and values is None
        choose = partial(writer.choose, name, task)
        self._collector = _BoltCollector(self._caller, name, choose, self._report)
        self._caller.open(self._context, self._collector)
        if values is not None:
            self._caller.prepare(self._context, self._collector, values)
        self._flush("prepare")

    def take(self, given: Iterable[Arrival | TupleRun]) -> None:
        """Pass each tuple to the bolt once; like `_attempt` for each, but in one loop if its rows are the only result of a call."""
        if self._copies:
            self._forget()
        if not self._is_basic:
            super().take(given)
            return
        by_return, me = self._caller.by_return(), (self._name, self._task)
        call, rows_in = by_return or (self._caller.emitted, iter)
        of_stream = partial(self._writer.emit_all, *me, DEFAULT_STREAM)
        emit: Callable[[list[Any], int, Roots], None] = of_stream if by_return else partial(self._writer.emit_each, *me)
        taken = 0
        for phase, roots, tuples in self._writer.runs(map(self._remember, given) if self._copies else given):
            rows: list[Any] = []
            for tuple in tuples:
                taken += 1
                try:
                    found = rows_in(call(tuple))
                except BaseException as problem:
                    emit(rows, phase, roots)  # before a dead letter
                    rows = []
                    self._refused(tuple, problem)
                    continue
                rows += found
            emit(rows, phase, roots)
        self.done.executed += taken

    def _remember(self, given: Arrival | TupleRun) -> Arrival | TupleRun:
        copied = self._copies.get((given._origin.component, given._origin.stream))
        if copied is None:
            return given
        if isinstance(given, TupleRun):
            rows = given.rows = list(given.rows)
            if given.anew is None:
                kept = [*map(copied, rows)]
                given.anew = lambda at: copied(kept[at])
            self._runs.append(given)
        else:
            self._came[id(given._values)] = given._values, partial(copied, copied(given._values))
        return given

    def _forget(self) -> None:
        """Let go of what tuples of earlier calls came with that cannot fail any more."""
        if self._collector.is_settled():
            again = {id(given._values) for given in self._again}
            self._came = {key: kept for key, kept in self._came.items() if key in again}
            self._runs.clear()

    def _as_it_came(self, given: Arrival) -> Arrival:
        for run in self._runs:
            assert run.anew is not None
            self._came |= {id(row): (row, partial(run.anew, at)) for at, row in enumerate(run.rows)}
        self._runs.clear()
        _, anew = self._came.get(id(given._values), (None, None))
        if anew is None:
            return given
        values = anew()
        self._came[id(values)] = values, anew
        made = type(given)(values, given._origin, given._phase, given._roots, given._edge)
        _, failures = self._failures.pop(id(given), (given, 0))
        self._failures[id(made)] = made, failures
        return made

    def _refused(self, tuple: Arrival, problem: BaseException) -> None:
        """Handle an exception of user code for a tuple. Raises errors that are not caused by the tuple."""
        if isinstance(problem, FailedException):
            self._fail(tuple, self._described(problem))
            return
        told = self._caller.attributed(problem, tuple)
        if not (isinstance(told, BoltError) and held(tuple) and asked_unreadable(problem)):
            raise told from problem
        self._leave_out(tuple, told.args[0])

    def close(self, txid: int = 0) -> None:
        """End the task's part of the batch: retry failed tuples, call the hooks of a stateful bolt, then `cleanup`.

        Tuples that are not settled then have failed for good. txid: passed to the hooks. Raises BoltError. Source of the hooks:
        Storm's `IStatefulComponent`.
        """
        self._try_again()
        if self._values is not None:
            for hook in ("pre_prepare", "pre_commit"):
                self._caller.hook(hook, txid)
                self._flush(hook)
        self._caller.close()
        self._flush("cleanup")
        for tuple in map(self._as_it_came, self._collector.unsettled()):
            self._give_up(tuple, self._failures_of(tuple) + 1, _UNSETTLED)

    def _attempt(self, tuple: Arrival) -> None:
        """Call the bolt once; the results of the call count only if it succeeds."""
        if self._values is not None:
            self._values.begin()
        self._collector.begin(tuple if self._by_itself else None)
        rows: list[EmittedRow] = []
        reason: str | None = None
        unreadable: str | None = None
        try:
            rows = self._caller.execute(tuple)
        except FailedException as problem:
            reason = self._described(problem)
        except BoltError as problem:
            if not (held(tuple) and asked_unreadable(problem)):
                raise
            unreadable = problem.args[0]
        call = self._collector.end()
        if unreadable is not None:
            self._undo(call, tuple)
            self._leave_out(tuple, unreadable)
            return
        if reason is None and any(each is tuple for each in call.failed):
            reason = Reason.FAILED
        if reason is None:
            for row in rows:
                self._writer.emit(self._name, self._task, row, tuple._roots)
            for sent in call.rows:
                self._writer.emit(self._name, self._task, *sent)
        else:
            self._undo(call, tuple)
        for each in call.failed:
            if each is not tuple:
                self._fail(each, Reason.FAILED)
        if reason is not None:
            self._fail(tuple, reason)

    def _undo(self, call: _Call, tuple: Arrival) -> None:
        """Undo a failed call. Tuples that the call acked are retried too, because the bolt considers them done."""
        if self._values is not None:
            self._values.undo()
        for _, _, chosen in reversed(call.rows):
            chosen.undo()
        self._collector.forget(tuple)
        self._again += [self._as_it_came(each) for each in call.acked if each is not tuple]

    def _flush(self, method: str) -> None:
        """Emit the rows of a method that is called once per batch. Raises BoltError for a tuple that it failed there."""
        call = self._collector.end()
        if call.failed:
            raise BoltError(
                f"bolt {self._name!r} failed {quote(call.failed[0])} in {method}, when nothing of the batch is tried "
                "again; fail it while execute runs, or leave it: what is never settled ends as a dead letter"
            )
        for sent in call.rows:
            self._writer.emit(self._name, self._task, *sent)


def _roots_of(tuple: Any) -> Roots:
    if not isinstance(tuple, Tuple):
        raise not_handed(tuple)
    return tuple._roots if isinstance(tuple, Arrival) else NO_ROOTS


class _Call(NamedTuple):
    """The results of one call of a Bolt: emitted rows, each with its roots and tasks, and the tuples that it settled."""

    rows: list[tuple[EmittedRow, Roots, Chosen]]
    acked: list[Arrival]
    failed: list[Arrival]


class _BoltCollector(StormNames):
    """The collector of a Bolt that acks by itself. Of anchors only the roots are kept, because the batch as a whole is the tree."""

    def __init__(
        self,
        caller: BoltCaller,
        component: str,
        choose: Callable[[EmittedRow], Chosen],
        report: Callable[[BaseException, str], None],
    ) -> None:
        self._caller, self._owner, self._choose, self._report = caller, component, choose, report
        self._open: dict[int, Arrival] = {}
        self._call = _Call([], [], [])

    def emit(
        self, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit a row; return the ids of its tasks. The row is sent only if the current call succeeds."""
        if stray:
            raise self._caller.streams.refuse((values, *stray), "anchors")
        return self._add(EmittedRow(stream, self._caller.streams.checked(values, stream, False)), anchors).ids()

    def emit_direct(
        self, task: int, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a row to the task with this id."""
        if stray:
            raise self._caller.streams.refuse((values, *stray), "anchors", "emit_direct")
        self._add(EmittedRow(stream, self._caller.streams.checked(values, stream, True), task), anchors)

    def _add(self, row: EmittedRow, anchors: Tuple | Iterable[Tuple]) -> Chosen:
        chosen = self._choose(row)
        one = anchors is None or isinstance(anchors, Tuple)  # None is refused by name
        roots = _roots_of(anchors) if one else merged(map(_roots_of, anchors))
        self._call.rows.append((row, roots, chosen))
        return chosen

    def ack(self, tuple: Tuple) -> None:
        """Ack a tuple, if the current call succeeds."""
        self._call.acked.append(self._settled(tuple, "acked"))

    def fail(self, tuple: Tuple) -> None:
        """Fail a tuple; it is retried after all tuples of its task."""
        self._call.failed.append(self._settled(tuple, "failed"))

    def reset_timeout(self, tuple: Tuple) -> None:
        """Do nothing: a batch has no timeout."""

    def report_error(self, error: BaseException) -> None:
        """Log the error; the query continues."""
        self._report(error, f"bolt {self._owner!r}")

    def begin(self, tuple: Arrival | None) -> None:
        if tuple is not None:
            self._open[id(tuple)] = tuple

    def end(self) -> _Call:
        call, self._call = self._call, _Call([], [], [])
        return call

    def forget(self, tuple: Arrival) -> None:
        self._open.pop(id(tuple), None)

    def is_settled(self) -> bool:
        return not self._open

    def unsettled(self) -> list[Arrival]:
        left = list(self._open.values())
        self._open.clear()
        return left

    def _settled(self, tuple: Tuple, how: str) -> Arrival:
        found = self._open.pop(id(tuple), None)
        if found is None:
            if not isinstance(tuple, Tuple):
                raise not_handed(tuple)
            raise AckError(
                f"bolt {self._owner!r} {how} {quote(tuple)}, which is not open: it was acked or failed before, or is no tuple of "
                "this batch; settle each tuple once"
            )
        return found


@dataclass(slots=True, eq=False)
class TupleRun:
    """Rows of one stream, one phase and the same roots, in order of arrival, that become tuples one after the other: so few are in
    memory at once that they stay in the processor's cache. rows: their values, which are read once. anew: makes the values of the
    tuple at a position again, as they came. The origin, the phase and the roots are called as those of an Arrival.
    """

    rows: Iterable[tuple[Any, ...]]
    kind: type[Arrival]
    _origin: Origin
    _phase: int
    _roots: Roots
    anew: Callable[[int], tuple[Any, ...]] | None = None

    def tuples(self) -> Iterator[Arrival]:
        """Return the tuples, each made on access."""
        return map(self.kind, self.rows, repeat(self._origin), repeat(self._phase), repeat(self._roots))


# -- Batches in columns -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class StreamBatch:
    """Rows of one stream, one phase and the same roots, in order of arrival. origin: that of the first row."""

    table: pa.Table
    origin: Origin
    _phase: int
    _roots: Roots

    def take(self, at: Numbers) -> StreamBatch:
        return replace(self, table=self.table.take(pa.array(at)))

    @property
    def _size(self) -> int:
        return int(self.table.num_rows)

    def _tuples(self) -> Iterator[Tuple]:
        kind = tuple_type(Tuple, self.origin.fields.names)
        return (kind(values, self.origin) for values in tuples_in(self.table.columns, self.table.column_names))


class ColumnarBoltBatch(RetriedBatch[StreamBatch]):
    """A task of a bolt that takes batches."""

    _caller: ColumnarCaller

    def __init__(self, writer: StageWriter, name: str, task: int) -> None:
        super().__init__(writer, name, task)
        self._caller = ColumnarCaller(self._component.declaration)
        self._caller.open(self._context)

    def _attempt(self, batch: StreamBatch) -> None:
        try:
            emitted = self._caller.execute_batch(batch.table, batch.origin.stream, self._fit)
        except FailedException as problem:
            self._fail(batch, self._described(problem))
            return
        except BoltError as problem:
            wrong = any_of(map(unreadable_in, batch.table.columns)) if asked_unreadable(problem) else None
            if wrong is None:
                raise
            self._leave_out(batch.take(np.flatnonzero(wrong)), problem.args[0])
            if not wrong.all():
                rest = batch.take(np.flatnonzero(~wrong))
                self._failures[id(rest)] = (rest, self._failures_of(batch))
                self._attempt(rest)
            return
        for stream, columns in emitted:
            if columns.num_rows:
                self._writer.send(self._name, self._task, stream, columns, batch._roots)

    def _fit(self, table: pa.Table, schema: Schema, stream: str) -> pa.RecordBatch:
        """Return a table with the schema of its stream.

        A column is used as it is if all its values are of the declared type; otherwise each value is checked and converted.
        """
        declared = arrow_schema(schema)
        taken = columns_as_declared(table, declared)
        judged = [field for field in declared if field.name not in taken]
        if judged:
            names = [field.name for field in judged]
            part = schema if not taken else schema.of(names)
            rows = list(rows_of(table.select(names) if taken else table, part, stream))
            by_field = zip(*rows, strict=True) if rows else ((),) * len(judged)
            for field, values in zip(judged, by_field, strict=True):
                taken[field.name] = arrow_column(self._name, stream, field, values)
        return pa.RecordBatch.from_arrays([taken[field.name] for field in declared], schema=declared)
