"""One micro-batch of a windowed task: a pure function of (metadata, chunks, rows of the exchange), the same on Spark and in tests.

    metadata + chunks --> executor <-- packets (tuples), controls (largest timestamps, ticks, drain)
                             |
              one watermark advance, or the drain
                             |
    rows for the streams, new metadata, chunks to write and drop, metrics

`TaskStage.turn` is that function, for a bolt alone and for a bolt of a topology (stages.py). For a bolt alone `Packer` sends the
rows to the tasks, and `window_turn` runs it in the operator; all rows that it emits are returned as one table (output.py).

Laws
- The output is a function of (state, input): same rows, same order, same floats, in every worker and every repetition.
- All rows of a batch in the order of arrival, then one watermark advance, on event time in all tasks or in none: a batch without a
  usable timestamp and without ticks has no control rows, and reaches only the tasks of its rows.
- Windows over the clock that are due fire before the rows of a batch, as if the clock had ticked between the batches.
- Nothing is written before everything is computed: a failure leaves the state unchanged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar import ColumnarMachines, Timestamps, viewed
from windowing.errors import BoltError, ConfigError, FailedException, InvalidTimestampError, describe_error, quote
from windowing.execution.metrics import LAST_KEPT, FiredWindow, SlowestInput, TaskMetrics
from windowing.spark.acks import NO_ROOTS, Partials, Roots, merged
from windowing.spark.exchange import (
    ExchangeRow,
    RowNumbering,
    WindowTimestamps,
    clock_of,
    clocked,
    packets_and_controls,
    parted,
    record_batches,
    size_of,
)
from windowing.spark.operator import ArrowStage, Stored, TaskResult, expect
from windowing.spark.output import Encoder
from windowing.spark.rows import RowFormat, read_by_windows
from windowing.spark.shipping import Shipped
from windowing.spark.state import TIMESTAMP, StoredTask, StoredWindows, block_key, plain_type, stored_block
from windowing.spark.unreadable import Unreadable, asked_field, asked_unreadable, readable_window, records_in
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.topology.user_code import Emission, Fitted
from windowing.topology.window_task import FailTarget, WindowEmitted, WindowFailed, WindowTask
from windowing.windows.config import OnError
from windowing.windows.deduplicator import Deduplicator, block_names
from windowing.windows.events import Late, LateReason, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor

SIDE_STREAM = "(late)"
"""The stream of late tuples if the bolt names none. The name cannot be declared, so the stream has no reader."""
_log = logging.getLogger("windowing.spark")
_NO_ACKS = (
    "fails tuples back to their spout, and none of its spouts takes acks: "
    "give submit() a PartitionedSpout with an ack method, or say on_error='skip' or 'dead_letter'"
)


class AckWatch:
    """Records the fate of a windowed task's tuples in a turn, for the partials. `roots[i]`: the roots of output row i, if a bolt
    reads it; a row that only goes to a sink is committed with its batch.
    """

    def __init__(self, partials: Partials, component: str, is_read: bool) -> None:
        self._partials, self._component, self._is_read = partials, component, is_read
        self.roots: list[Roots] = []

    def fired(self, window: TupleWindow, rows: int) -> None:
        """A window was passed to the bolt: the rows since the last call are anchored to its tuples. rows: their number so far."""
        new = rows - len(self.roots)
        if new:
            self.roots += [_roots(window) if self._is_read else NO_ROOTS] * new

    def failed(self, window: TupleWindow) -> None:
        """The bolt failed on a window, and its tuples with it."""
        self._partials.fail(_roots(window), self._component)

    def late(self, payloads: Sequence[Any]) -> None:
        """Tuples went to the late stream, one row for each."""
        self.roots += [payload._roots for payload in payloads]
        self._partials.done(payloads)

    def expired(self, payloads: Sequence[Any]) -> None:
        """No later window can hold these tuples."""
        self._partials.done(payloads)


def _roots(window: TupleWindow) -> Roots:
    return merged(payload._roots for payload in window.get())


@dataclass
class TurnResult(TaskResult):
    """The result of a turn, whose output is still `rows`: (stream, values) in output order; a table that a bolt returned and that
    `fitted` accepted is one of them. late: the payload of each row on the late stream, in order. metrics: for the query (`METRICS`
    of output.py). done: one TaskMetrics for monitoring, without its time and emitted rows.
    """

    rows: list[Emission] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)
    metrics: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskStage:
    """A windowed bolt as a stage of N tasks; built once by the driver, sent to the workers.

    `format`: the form of its rows. `streams`: the declared input streams. `late_fields`: those of late tuples, if rows have others.
    `context`: the TopologyContext of one of its tasks, None for the only one of a bolt alone. `acks`: whether its tuples are acked.
    `keeps_tuples`: whether windows with `aggregate=` keep their tuples also without acks.
    """

    bolt: WindowedBolt
    format: RowFormat
    streams: tuple[str, ...] = ("default",)
    late_fields: tuple[str, ...] | None = None
    context: TopologyContext | None = None
    acks: bool = False
    keeps_tuples: bool = False

    def __post_init__(self) -> None:
        if self.bolt.config.on_error is OnError.FAIL and not self.acks:
            raise ConfigError(f"bolt {self.bolt.name!r} says on_error='fail', which {_NO_ACKS}")
        if self.bolt.config.max_events_in_memory is not None:
            raise ConfigError(
                f"bolt {self.bolt.name!r} says max_events_in_memory={self.bolt.config.max_events_in_memory}, but on Spark a turn "
                "has all live tuples of its task in memory, and Spark's state store keeps them; leave it out and use more tasks"
            )

    @property
    def late_stream(self) -> str:
        return self.bolt.config.late_stream or SIDE_STREAM

    def turn(
        self,
        task: int,
        stored: Stored,
        rows: Sequence[ExchangeRow],
        batch: int = -1,
        *,
        watcher: AckWatch | None = None,
        fitted: Fitted | None = None,
    ) -> TurnResult:
        """Process the rows of one batch for `task`, in any order. Raises BoltError, CorruptStateError, and the exceptions of custom
        policies. fitted: see BoltRunner.
        """
        work = _Turn(self, task, stored, watcher, fitted)
        try:
            return work.run(rows, batch)
        finally:
            vars(work).clear()  # its parts refer to it: the tuples would stay until the cycle collector runs


class _Turn:
    """The work of one turn, step by step."""

    def __init__(
        self, stage: TaskStage, task: int, stored: Stored, watcher: AckWatch | None, fitted: Fitted | None
    ) -> None:
        bolt = stage.bolt
        self.stage, self.task, self.watcher = stage, task, watcher
        self.config, self.format = bolt.config, stage.format
        self.what = f"state of bolt {bolt.name!r}, task {task}"
        self.stored = StoredTask.of(stored.metadata, self.what)
        self.values = stored.task_values(bolt.name, task) if bolt.stateful else None
        declared = self.format.declared
        self.executor = WindowedBoltExecutor(
            self.config,
            stage.streams,
            bolt.name,
            sequenced=True,
            keep_tuples=stage.acks or stage.keeps_tuples,
            columns=ColumnarMachines(self.format.make_rows, declared),
        )
        self.kept = StoredWindows(self.executor, self.format, self.stored, stored.chunk, self.what)
        manager = self.executor.manager
        self.takes_columns = manager.takes_columns
        self.windows = WindowTask(bolt, self.executor, FailTarget.TUPLES, call=self._called, fitted=fitted)
        self.known = self.windows.known
        run, form = self.windows.runner.run, self.config.columnar
        as_it_is = manager.shows_columns or form is None
        self.bolt = run if as_it_is else lambda window: run(viewed(window, form, declared))
        self.rows: list[Emission] = []
        self.late: list[Any] = []
        self.payloads: Sequence[Any] = ()
        self.done = TaskMetrics(bolt.name, task)  # completed by `_result`
        self.unreadable = 0  # rows that were in no window, because a window's own field of them is unreadable
        self.left_out = 0  # rows in windows that were hidden from the bolt, because it read an unreadable value of them
        self.failed = set(self.stored.failed)  # the edges of tuples of failed windows, until they expire
        self.unacked = 0  # tuples that had failed when they expired
        self.fired: deque[tuple[int | None, list[Emission]]] = deque(maxlen=LAST_KEPT)
        self.last_late: deque[tuple[str, Any]] = deque(maxlen=LAST_KEPT)

    # -- the turn ------------------------------------------------------------------------------------------------------

    def run(self, rows: Sequence[ExchangeRow], batch: int) -> TurnResult:
        packets, controls = packets_and_controls(rows)
        table = self.format.arrived(packets) if packets else None
        if table is not None and self.known is not None:
            table = self._new_rows(table, self.known)
        self.done.executed = 0 if table is None else table.num_rows
        held = self.kept.chunks.read(None if table is None else self.format.kept(table).schema)
        if not self.takes_columns:  # at most a tuple and its values for each row
            expect(2 * (self.done.executed + (0 if held is None else held.num_rows)))
        self.kept.restore(held, table)
        self.before, self.side_before = self.executor.counts(), Counter(self.executor.side)
        now = clock_of(rows)
        self.executor.set_clock(now)
        context = self.stage.context or TopologyContext(self.stage.bolt.name)
        self.windows.open(context._replace(task_index=self.task), self.values)
        try:
            if table is not None and self.windows.fires_first(timed=False):
                self._perform(self.executor.turn())
            table = None if table is None else self._readable(table)
            accepted = self._feed(table)
            for control in controls:
                if control.kind == "max" and self.config.event_time:
                    self.executor.track(control.stream, control.value, control.source)
            if any(control.kind == "drain" for control in controls):
                self._perform(self.executor.drain())
            elif bool(controls) if self.config.event_time else not self.windows.must_wait(now):
                self._perform(self.executor.turn())
            self.windows.before_commit(batch + 1)
            state = self.kept.write(table, self.payloads, accepted)
        finally:
            self.windows.close()
        if self.known is not None or self.stored.seen:
            self._store_ids(state, table is not None)
        state.failed = self.failed
        return self._result(state, now, size_of(packets))

    def _readable(self, table: pa.Table) -> pa.Table:
        """Drop rows with a value that Python cannot hold in a field that windows read; they are late, with reason `invalid`."""
        asked = read_by_windows(self.config)
        wrong = self.format.unreadable(table, asked)
        if wrong is None:
            return table
        positions = np.flatnonzero(wrong)
        payloads = self.format.payloads(table.take(pa.array(positions)))
        if self.config.on_invalid == "raise":
            fields = self.format.fields(payloads[0])
            odd = next(fields[name] for name in asked or fields if type(fields[name]) is Unreadable)
            raise InvalidTimestampError(f"bolt {self.stage.bolt.name!r}: {odd.refuse().args[0]}")
        self._perform((Late(payloads, [None] * len(payloads), LateReason.INVALID),))
        self.unreadable += len(payloads)
        return table.take(pa.array(np.flatnonzero(~wrong)))

    def _new_rows(self, table: pa.Table, known: Deduplicator) -> pa.Table:
        """Drop rows whose message_id came before; they are done, because the first copy is in the state."""
        field = str(self.config.message_id)
        self.stored.restore_ids(known, field, self.kept.chunks.load, self.what)
        ids, channels = self.format.identities(table, field)
        fresh = known.new_positions(ids, channels)
        if len(fresh) == table.num_rows:
            return table
        if self.watcher is not None:
            again = np.setdiff1d(np.arange(table.num_rows), fresh)
            self.watcher.expired(self.format.payloads(table.take(pa.array(again))))
        return table.take(pa.array(fresh, pa.int64()))

    def _store_ids(self, state: StoredTask, has_rows: bool) -> None:
        """Take the message ids over into the new state, which a batch without rows leaves as they are; drop blocks of other ids."""
        chunks, known = self.kept.chunks, self.known
        if known is not None:
            state.seen, state.seen_of = self.stored.seen, self.stored.seen_of
        if known is not None and has_rows:
            state.seen, blocks = known.stored()
            state.seen_of = str(self.config.message_id)
            chunks.puts.update({block_key(*name): stored_block(ids) for name, ids in blocks.items()})
        left = block_names(self.stored.seen) - block_names(state.seen)
        chunks.drops += sorted(block_key(*name) for name in left)

    def _feed(self, table: pa.Table | None) -> np.ndarray[Any, Any]:
        """Offer the batch's rows; return the positions of those that were accepted."""
        if table is None:
            return np.empty(0, dtype=np.int64)
        payloads = self.kept.payloads_of(table)
        if self.executor.manager.numbered is None:
            self.payloads = payloads
        stamps: Any = None
        if self.config.event_time:
            stamps = table.column(TIMESTAMP)
            as_array = self.takes_columns and not stamps.null_count
            stamps = Timestamps(stamps.to_numpy()) if as_array else stamps.to_pylist()
        key, accepted = self.config.key, np.ones(len(payloads), dtype=bool)
        keys = None if key is None else self.format.keys(table, payloads, key)

        def added() -> Iterator[Any]:
            for at, effect in self.executor.add_batch(payloads, stamps, keys=keys, trusted=True, tracked=False):
                if type(effect) is Late:
                    accepted[at : at + len(effect.payloads)] = False
                yield effect

        self._perform(added())
        return np.flatnonzero(accepted)

    def _perform(self, effects: Iterable[Any]) -> None:
        watcher, rows = self.watcher, self.rows
        for effect in self.windows.perform(effects):
            if isinstance(effect, WindowEmitted):
                self.fired.append((effect.window.end_timestamp, effect.emissions))
                rows += effect.emissions
                if watcher is not None:
                    watcher.fired(effect.window, len(rows))
            elif isinstance(effect, WindowFailed):
                self._window_failed(effect)
            elif isinstance(effect, Late):
                rows += self._side_rows(effect.payloads, effect.reason)
                if watcher is not None:
                    watcher.late(effect.payloads)
            elif watcher is not None:
                payloads = effect.get() or ()
                watcher.expired(payloads)
                if self.failed:
                    gone = self.failed.intersection(payload._edge for payload in payloads)
                    self.failed -= gone
                    self.unacked += len(gone)

    def _side_rows(self, payloads: Sequence[Any], reason: LateReason) -> list[Emission]:
        """Record late tuples; return their rows on the late stream."""
        self.late += payloads
        self.last_late.extend((reason.value, payload) for payload in payloads[-LAST_KEPT:])
        stream, names, found = self.stage.late_stream, self.stage.late_fields, []
        for payload in payloads:
            fields = self.format.fields(payload)
            values = fields.values() if names is None else map(fields.get, names)
            found.append((stream, (*values, reason.value)))
        return found

    def _called(self, window: TupleWindow) -> list[Emission]:
        """Call the bolt on a window. If it reads a value that Python cannot hold, call it again without such rows."""
        try:
            return self.bolt(window)
        except BoltError as error:
            found = self._without_unreadable(window, error)
            if found is not None:
                return found
            asked = isinstance(error.__cause__, FailedException)
            if asked and self.config.on_error is OnError.RAISE and not self.stage.acks:
                raise BoltError(f"{error.args[0]}; a FailedException {_NO_ACKS}") from error
            raise

    def _without_unreadable(self, window: TupleWindow, error: BoltError) -> list[Emission] | None:
        """Call the bolt again without the rows that hold a value that Python cannot hold in a field that it read; rows that no
        earlier window has shown become late. Return None if that was not the cause of the failure.
        """
        if self.config.on_invalid == "raise" or isinstance(error.__cause__, FailedException):
            return None
        fields: set[str] | None = set()
        again: BoltError = error
        while True:
            field = asked_field(again)
            # Drop the rows with such a value in the field that was read, or in any field if the field is unknown.
            fields = None if field is None or fields is None or field in fields else {*fields, field}
            parted = None if self.config.aggregate is not None else readable_window(window, fields)
            if parted is None or (not len(parted[0]) and not asked_unreadable(again)):
                return None
            if self.values is not None:
                self.values.undo()
            rest, invalid = parted
            try:
                emissions = self.bolt(rest) if len(rest) else []
                break
            except BoltError as problem:
                if fields is None or isinstance(problem.__cause__, FailedException):
                    return None
                again = problem
        if invalid and not self.left_out:
            _log.warning("task %d: %s; such rows are invalid", self.task, error.args[0])
        self.left_out += len(invalid)
        return self._side_rows(invalid, LateReason.INVALID) + emissions

    def _window_failed(self, failed: WindowFailed) -> None:
        if failed.action is OnError.DEAD_LETTER:
            self.done.dead_letters += 1
            self.rows.append((DEAD_LETTERS, self.windows.dead_letter(failed.window, failed.error).row()))
        elif failed.report:
            self.done.reported += 1
            if self.done.reported <= LAST_KEPT:
                self.done.errors += (describe_error(failed.error),)
                _log.warning("task %d: %s", self.task, failed)
        if self.watcher is None:
            return
        if failed.action is OnError.FAIL:
            self.watcher.failed(failed.window)
            before = len(self.failed)
            self.failed.update(payload._edge for payload in failed.window)
            self.done.failed += len(self.failed) - before
            untracked = [payload for payload in failed.window if not payload._roots]
            if untracked:  # no spout sends them again
                self.done.dead_letters += 1
                letter = replace(self.windows.dead_letter(failed.window, failed.error), tuples=untracked)
                self.rows.append((DEAD_LETTERS, letter.row()))
        self.watcher.fired(failed.window, len(self.rows))

    def _result(self, state: StoredTask, now_ms: int, packed_bytes: int) -> TurnResult:
        """Return the result of the turn: the new state, the rows, and the metrics of both kinds."""
        done, executor = self.done, self.executor
        after, watermark, slowest = executor.counts(), executor.watermark, executor.generator.slowest
        done.windows_fired, done.expired, done.skipped = (
            after[name] - self.before[name] for name in ("fired", "expired", "skipped")
        )
        late = executor.side - self.side_before
        late[LateReason.INVALID.value] += self.unreadable
        # Rows that were hidden from the bolt are in windows, and are acked when they expire.
        done.acked = done.expired + late.total() - self.unacked
        late[LateReason.INVALID.value] += self.left_out
        done.late = {reason: count for reason, count in late.items() if count}
        done.duplicates = 0 if self.known is None else self.known.duplicates
        done.pending, done.watermark_ms = after["pending"], watermark
        done.watermark_lag_ms = None if watermark is None else now_ms - watermark
        done.slowest = None if slowest is None else SlowestInput(*slowest)
        for end_ms, emissions in self.fired:
            rows = [quote(row, 60) if isinstance(row, tuple) else f"{row.num_rows} rows" for _, row in emissions[:3]]
            done.windows += (FiredWindow(end_ms, "; ".join(rows)),)
        done.late_rows = tuple((reason, quote(self.format.fields(payload))) for reason, payload in self.last_late)
        found = TurnResult(
            metadata=state.stored(),
            puts=self.kept.chunks.puts,
            drops=self.kept.chunks.drops,
            done=[done],
            rows=self.rows,
            late=self.late,
            metrics={
                "tuples": done.executed,
                "fired": done.windows_fired,
                "late": sum(done.late.values()),
                "skipped": done.skipped,
                "pending": done.pending,
                "expired": done.expired,
                "failed": self.windows.failures,
                "duplicates": done.duplicates,
                "reported": done.reported,
                "bytes": packed_bytes,
                "watermark": watermark,
                "now": now_ms,
            },
        )
        if self.values is not None:
            found.change(self.values)
        return found


# -- A bolt alone ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packer(ArrowStage):
    """The first stage of `windowed`: packs the rows of one input stream, whose tasks the JVM has computed.

    `columns`: the names of the input columns; in transit they are numbers, because `mapInArrow` does not support names with a dot
    or a backtick. stamps: those of the bolt's windows. Cost: a stable sort by task and one copy of the rows, in numpy and Arrow; a
    timestamp function costs a Python tuple and a call per row.
    """

    stream: str
    columns: tuple[str, ...]
    tasks: int
    stamps: WindowTimestamps

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int, number: int) -> Iterator[pa.RecordBatch]:
        """Yield packets for each batch, then the largest timestamps."""
        now, given = clocked(batches)
        if now is None:
            return
        stamps, sent = replace(self.stamps, largest={}), RowNumbering(partition, now)
        for columns, tasks in given:
            # Named anew, every column may be null: the reader joins packets of streams that may differ in this.
            plain = [column.cast(plain_type(column.type)) for column in columns.columns]
            rows = pa.RecordBatch.from_arrays(plain, names=list(self.columns))
            found = stamps.of(rows.column, rows.num_rows, now, partial(records_in, rows.columns, self.columns))
            rows = rows.append_column(pa.field(TIMESTAMP, pa.int64()), found)
            packets: list[ExchangeRow] = []
            for task, at in parted(tasks, self.tasks):
                part = rows if at is None else rows.take(pa.array(at))
                packets += sent.packets(task, "rows", self.stream, part)
            yield from record_batches(packets)
        yield from record_batches(list(sent.largest(range(self.tasks), self.stream, stamps.largest)))


def window_turn(
    stage: Shipped[TaskStage], encoder: Encoder, task: int, rows: Sequence[ExchangeRow], stored: Stored, batch: int
) -> TaskResult:
    """Process a batch of a task of a bolt alone, as the operator runs it in a worker; the output is one table."""
    began = time.perf_counter()
    found = stage.value.turn(task, stored, rows, batch, fitted=encoder.fitted)
    (done,) = found.done
    found.output, done.emitted = encoder.table(found.rows, found.metrics)
    done.execute_ms = 1000 * (time.perf_counter() - began)
    return found
