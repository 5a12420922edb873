"""WindowedQuery: one running query. Starts it, watches it, drains it, and reports why it has ended.

A drain is a second run of the same query with one more batch, made of control rows. Then the checkpoint is marked as drained and is
refused from then on. If Spark ends a query because a Python worker did not connect in time (10 s, not configurable; a short lack of
CPU is enough), or because kept rows without a fixed order were lost (operator.ReadOnce), the query runs again from its checkpoint,
up to three times in a row without a batch.

Law: the input has ended when Spark, in an availableNow run, found no more input in any source; or, if a source does not support
this trigger, when the single batch that Spark makes of all available input is committed. A drain is done when its batch is
committed. A stopped query alone proves none of this, because it may have been stopped from outside.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from windowing.errors import ConfigError, QueryStoppedError, describe_error, printable, quote
from windowing.execution.compatibility import Definition
from windowing.execution.metrics import RunMetrics, sealed, unsealed
from windowing.execution.plan import ExecutionPlan
from windowing.schema.checks import StormNames
from windowing.spark import control
from windowing.spark.checkpoint import DRAINED_FILE, METRICS_FILE, Checkpoint
from windowing.spark.failures import GO_ON, LOST_ORDER, FailedQuery, library_error, repeatable, session_ended
from windowing.spark.metrics import BatchMetrics, TaskTotals
from windowing.spark.offsets import SkippedOffsets, lag_of
from windowing.spark.settings import settings_of, take
from windowing.spark.sinks import claim
from windowing.spark.spouts import folders_read
from windowing.spark.writer import BatchWriter
from windowing.topology.pictures import html_table
from windowing.topology.plan import Topology
from windowing.windows.measures import Duration

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from windowing.monitoring.page import LivePage

_SETTLE_EVERY_S = 0.5
_RUNS = 3
"""The number of runs in a row that may end without a batch by an error after which a batch is repeated."""
_NOTE_EVERY_S = 5.0
_SOURCES_MS = 10_000
"""How long a start waits for Spark to make the sources: their logs get the settings that the session has at that moment, and not
those of the query, as the other files of its checkpoint do."""
_BATCH_PHASE = "addBatch"
"""The phase that only the progress of a batch has."""

_log = logging.getLogger("windowing.spark")


@dataclass(frozen=True)
class QuerySpec:
    """Everything needed to start the query, also repeatedly. `output` builds the operator over a control folder."""

    checkpoint: Checkpoint
    definition: Definition
    output: Callable[[str], DataFrame]
    writer: BatchWriter
    partitions: int
    trigger: Mapping[str, Any]
    query_name: str | None
    drawn: Topology | ExecutionPlan
    totals: TaskTotals
    gaps: SkippedOffsets = field(default_factory=SkippedOffsets)

    def rows(self) -> DataFrame:
        return self.output(control.make_control_folder(self.checkpoint))

    def run(self, rows: DataFrame | None = None) -> StreamingQuery:
        """Start the query with its own settings; the session's settings are restored. rows: what `rows()` has returned."""
        rows = self.rows() if rows is None else rows
        before = self._count_gaps if self.gaps.read_by(rows) else self.checkpoint.keep_packing
        self.writer.begin(rows.sparkSession, before)
        stream: Any = rows.writeStream.foreachBatch(self.writer).outputMode("append")
        stream = stream.option("checkpointLocation", str(self.checkpoint)).trigger(**self.trigger)
        if self.query_name is not None:
            stream = stream.queryName(self.query_name)
        with settings_of(self.checkpoint, self.partitions):
            started: StreamingQuery = stream.start()
            with suppress(Exception):  # the error of a source ends the query
                _execution(started).awaitInitialization(_SOURCES_MS)
        return started

    def _count_gaps(self, batch: int) -> None:
        self.checkpoint.keep_packing(batch)
        self.gaps.count(self.checkpoint.offsets, batch)

    @property
    def failed_query(self) -> FailedQuery:
        return FailedQuery(self.writer.name, str(self.checkpoint), self.writer.failed_batch, self.checkpoint)


def trigger_options(trigger: Literal["available_now"] | Duration | timedelta, drain: bool) -> dict[str, Any]:
    """Return Spark's options of a trigger: the available input, or an interval. Raises ConfigError."""
    if trigger == "available_now":
        return {"availableNow": True}
    if isinstance(trigger, timedelta):
        trigger = Duration(ms=int(trigger / timedelta(milliseconds=1)))
    if not isinstance(trigger, Duration) or trigger.ms <= 0:
        raise ConfigError(
            f'trigger is "available_now" or a positive interval, got {quote(trigger)}; for example seconds(10)'
        )
    if drain:
        raise ConfigError(
            "drain=True belongs to the end of the input; stop the query, then start it once more with "
            'trigger="available_now", drain=True'
        )
    return {"processingTime": f"{trigger.ms} milliseconds"}


class WindowedQuery(StormNames):
    """A running query; made by `WindowedStream.start`, `submit` and `submit_trident`. A driver thread watches and drains it.

    `await_end()` waits for its end and raises its error; `stop()` ends it after at most one batch; `metrics()` and `progress`
    have its numbers; `ui()` serves a page of them. A start with the same checkpoint continues it.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "awaitTermination": "await_end()",
        "processAllAvailable": 'start(..., trigger="available_now"), then await_end()',
        "drain": 'stop(), and start(..., trigger="available_now", drain=True) once more',
        "lastProgress": "progress[-1]",
        "recentProgress": "progress",
        "status": "metrics()",
        **{name: f"spark_query.{name}" for name in ("name", "runId", "explain")},
    }

    def __init__(
        self, spec: QuerySpec, query: StreamingQuery, drain: bool, finish: bool, done: threading.Event
    ) -> None:
        self._spec, self._drain, self._finish, self._done = spec, drain, finish, done
        self._stopping = False
        self._failure: BaseException | None = None
        self._ended = ""
        self._noted_s, self._noted = time.monotonic(), cast(Any, None)
        self._written: Mapping[str, tuple[str, int]] = {}
        self._batch_progress: StreamingQueryProgress | None = None
        self._query, self._id = query, str(query.id)
        self._thread = threading.Thread(target=self._watch, name=f"windowing-{self._id}", daemon=True)

    @classmethod
    def start(cls, spec: QuerySpec, drain: bool) -> WindowedQuery:
        """Check the checkpoint against the spec and the sinks against the checkpoint; start the query and watch it."""
        done = take(spec.checkpoint)
        query: WindowedQuery | None = None
        try:
            spec.checkpoint.refuse_closed()
            stored = spec.checkpoint.compared(spec.definition)
            spec.checkpoint.require_shared()
            finish = _is_in_drain(spec)
            rows = spec.rows()
            known = spec.writer.go_on(spec.checkpoint.written())
            holders = claim(spec.checkpoint, spec.writer.sinks, spec.writer.schemas, folders_read(rows), known)
            spec.checkpoint.keep(spec.definition, stored, chain(holders, spec.writer.kept_by(spec.checkpoint)))
            spec.checkpoint.follow_move()
            if spec.writer.acks is not None:
                spec.writer.acks.open()
            with _interrupts_held():
                query = cls(spec, spec.run(rows), drain, finish, done)
                query._thread.start()
        except BaseException as error:
            if query is not None:  # interrupted, or the process has no room for another thread
                query._end()
            spec.totals.release()
            done.set()
            found = (
                library_error(error, spec.failed_query._replace(files=None)) if isinstance(error, Exception) else error
            )
            if found is error:
                raise
            raise found from found.__cause__
        return query

    @property
    def id(self) -> str:
        """The query's id, the same after every restart from its checkpoint."""
        return self._id

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's object of the current run, which raises Spark's errors. A drain is another run, and so is the one after a worker
        that did not connect.
        """
        return self._query

    @property
    def is_active(self) -> bool:
        """Whether the query is running or draining."""
        return not self._done.is_set()

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the query, as an error of this library if possible; None while it runs and after a good end.

        It is a property, without the parentheses of Spark's method.
        """
        return self._failure if self._done.is_set() else None

    @property
    def progress(self) -> list[BatchMetrics]:
        """The metrics of the batches of this run, oldest first, the last 10,000 at most."""
        return [*self._spec.writer.progress]

    def metrics(self) -> RunMetrics:
        """Return the numbers of each task since the start of this query, and the phases of its last batch; docs/operate/monitor.md
        explains them. Thread-safe, also after the end, and if the JVM is gone. Cost: O(tasks), and one call of the JVM.
        """
        totals = self._spec.totals
        try:
            latest = self._query.lastProgress
            progress = None if latest is None else self._progress_of_a_batch(latest)
        except Exception:  # the JVM is gone; py4j has no types
            latest = progress = self._batch_progress
        if latest is None:
            return replace(totals.now(int(time.time() * 1000)), ended=self._ended)
        at_ms = int(datetime.fromisoformat(latest.timestamp).timestamp() * 1000)
        if progress is None:
            return replace(totals.now(at_ms), ended=self._ended)
        phases = {phase: float(ms) for phase, ms in progress.durationMs.items()}
        found, lag = totals.now(at_ms, progress.batchId, phases), lag_of(progress)
        return replace(found, lag=lag, skipped=self._spec.gaps.totals(), ended=self._ended)

    def _progress_of_a_batch(self, latest: StreamingQueryProgress) -> StreamingQueryProgress | None:
        """Return the last progress of a batch. While a query waits, Spark also reports the batch that would come next."""
        if _BATCH_PHASE in latest.durationMs:
            self._batch_progress = latest
        elif self._batch_progress is None or self._batch_progress.batchId + 1 < latest.batchId:
            run = (each for each in reversed(self._query.recentProgress) if _BATCH_PHASE in each.durationMs)
            self._batch_progress = next(run, self._batch_progress)
        return self._batch_progress

    @property
    def _phase(self) -> str:
        return "running" if self.is_active else "ended" if self._failure is None else "failed"

    def __repr__(self) -> str:
        return f"WindowedQuery({self._spec.writer.name!r}, {self._phase}, checkpoint {str(self._spec.checkpoint)!r})"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the last batches and the numbers of the components."""
        batches = [[*astuple(each)] for each in self.progress[-10:]]
        headings = [each.name for each in fields(BatchMetrics)]
        title = f"query of {self._spec.writer.name}, {self._phase}"
        return html_table(title, headings, batches) + self.metrics()._repr_html_()

    def ui(self, port: int = 0) -> LivePage:
        """Serve a read-only page of this query on this machine, for a browser. `url` is its address, `close()` ends it.

        port: 0 picks a free one. The page stays until it is closed, also after the end of the query. Raises ConfigError.
        """
        from windowing.monitoring.page import serve_page  # loads a web server

        return serve_page(self.metrics, self._spec.drawn, port)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended (True) or `timeout` seconds are over (False); raise the error that ended it.

        For an "available_now" run, True means that all available input was read, and drained with drain=True, or that `stop` of
        this object was called. Raises QueryStoppedError if the run was stopped in another way before that.
        """
        if not self._done.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self) -> None:
        """Stop the query after at most one batch, without a drain. An uncommitted batch is repeated at the next start. A query that
        has ended stays as it is, also if its JVM is gone.

        Called in a sink of the query, or in a spout's `ack`, it returns at once, and the query stops after that: Spark waits for
        the sink, and would wait for ever for one that waits for Spark.
        """
        self._stopping = True
        calling = self._spec.writer.calling
        if calling is not None and calling[0] == threading.get_ident():
            threading.Thread(target=self._stop_after, args=(calling[1],), daemon=True).start()
            return
        if not self._done.is_set():
            try:
                self._query.stop()
            except Exception:
                if not session_ended(self._spec.checkpoint.spark):  # if it has, so will the query
                    raise
        if threading.current_thread() is not self._thread:
            self._done.wait()

    def _stop_after(self, call: threading.Event) -> None:
        call.wait()
        self._end()

    def _watch(self) -> None:
        try:
            if self._finish or self._has_read_all():
                self._make_drain()
        except BaseException as error:
            failure = (None if isinstance(error, QueryStoppedError) else self._spec.writer.failure) or error
            self._failure = failure  # set before the error is explained, since that may raise too
            self._end()
            self._failure = library_error(failure, self._spec.failed_query)
        finally:
            self._ended = self._how_it_ended()
            self._spec.writer.end()
            with suppress(RuntimeError):  # the process has no room for another thread
                last = threading.Thread(target=self._note, args=(True,), daemon=True)
                last.start()
                last.join(_NOTE_EVERY_S)  # the file system may not answer, which may be the error
            self._spec.totals.release()
            self._done.set()

    def _how_it_ended(self) -> str:
        if self._failure is not None:
            notes = (
                note for note in getattr(self._failure, "__notes__", ()) if "\n" not in note
            )  # no stack of a worker
            return f"with {'. '.join([describe_error(self._failure), *map(printable, notes)])}"
        return "when it was stopped" if self._stopping else "when it had read its input"

    def _has_read_all(self) -> bool:
        """Wait for the query; return whether a drain must follow. Raises QueryStoppedError if it was stopped before its end."""
        self._wait()
        if self._stopping or "availableNow" not in self._spec.trigger:
            return False
        progress = self._query.lastProgress
        if self._ran_once() and progress is not None and "latestOffset" not in progress.durationMs:
            self._run_again()  # the one batch was begun in an earlier run, and no source was asked for more
            self._wait()
            if self._stopping:
                return False
        # Spark sets `noNewData` when no source has more input, which ends a bounded run; a stop does not change it.
        if not (_execution(self._query).noNewData() or self._ran_once()):
            raise QueryStoppedError(
                "the query was stopped from outside before it had read all its input; nothing was drained. "
                + GO_ON.format(self._spec.checkpoint)
            )
        return self._drain

    def _ran_once(self) -> bool:
        """Return whether the run was one batch, because a source does not support Trigger.AvailableNow, and it is committed. Such a
        batch has read everything that was there when it began.
        """
        progress, executor = self._query.lastProgress, _execution(self._query).triggerExecutor()
        if progress is None or executor is None or executor.getClass().getSimpleName() != "SingleBatchExecutor":
            return False
        return self._spec.checkpoint.commits.exists(str(progress.batchId))

    def _make_drain(self) -> None:
        """Run the batch of the drain, and mark the checkpoint when it is committed. Rows that arrived after the end of the input
        are read after it, and are late because the windowed bolts are closed.
        """
        self._note(at_once=True)  # the drain is a run of its own, which has no batch yet
        checkpoint = self._spec.checkpoint
        if not self._finish:
            control.write_drain(checkpoint)
            self._run()
        self._wait()
        if self._stopping:
            return
        batch = control.drain_batch(checkpoint)
        if batch is None or not checkpoint.commits.exists(str(batch)):
            raise QueryStoppedError(
                f"the query on checkpoint {checkpoint} was stopped from outside while it drained; start it again from the "
                'checkpoint, with trigger="available_now", drain=True, to finish that'
            )
        checkpoint.own.write(DRAINED_FILE, json.dumps({"drained": True}).encode())

    def _run(self) -> None:
        self._spec.writer.end()
        self._query = self._spec.run()
        if self._stopping:  # `stop` has stopped the run before
            self._query.stop()

    def _end(self) -> None:
        """Stop Spark's query; an error outside it, such as in a spout's `ack`, has not ended it."""
        try:
            self._query.stop()
        except Exception as problem:
            _log.warning("query of %r could not be stopped: %s", self._spec.writer.name, describe_error(problem))

    def _wait(self) -> None:
        """Wait for the query; run it again after an error that lets the batch be repeated, which is not committed."""
        lost = 0
        while True:
            try:
                self._wait_for_run()
                return
            except Exception as error:
                has_batch = any(_BATCH_PHASE in each.durationMs for each in self._query.recentProgress)
                lost = 1 if has_batch else lost + 1
                why = repeatable(self._spec.writer.failure or error)
                if self._stopping or lost >= _RUNS or why is None:
                    raise
                _log.warning(
                    "query of %r: %s; it is run again from checkpoint %s",
                    self._spec.writer.name,
                    why,
                    self._spec.checkpoint,
                )
            if why == LOST_ORDER:
                self._spec.checkpoint.allow_other_packing()
            else:
                self._spec.checkpoint.await_cores(lambda: self._stopping)
            self._run_again()

    def _run_again(self) -> None:
        writer = self._spec.writer
        writer.failure = writer.failed_batch = None
        if writer.acks is not None:
            writer.acks.open()
        self._run()

    def _wait_for_run(self) -> None:
        acks = self._spec.writer.acks
        every_s: Any = _NOTE_EVERY_S if acks is None else _SETTLE_EVERY_S  # Spark takes fractions
        while not self._query.awaitTermination(every_s):
            if acks is not None:
                acks.settle()
            self._note()
        if acks is not None:
            acks.settle()

    def _note(self, at_once: bool = False) -> None:
        """Keep the last batch of each sink, and the numbers for `windowing status`, every few seconds in which there are new ones.

        A run without a batch keeps the numbers of the run before, with how it ended itself.
        """
        now_s = time.monotonic()
        if now_s < self._noted_s + _NOTE_EVERY_S and not at_once:
            return
        self._noted_s = now_s
        for keep in (self._keep_numbers, self._keep_written):
            try:
                keep()
            except Exception as problem:  # no output depends on these files
                _log.info("the numbers of %r could not be kept: %s", self._spec.writer.name, describe_error(problem))

    def _keep_written(self) -> None:
        checkpoint = self._spec.checkpoint
        if (written := self._spec.writer.committed(checkpoint.commits)) != self._written:
            checkpoint.keep_written(written)
            self._written = written

    def _keep_numbers(self) -> None:
        found, own = self.metrics(), self._spec.checkpoint.own
        if (found.batch, found.ended) == self._noted:
            return
        numbers = {**found.plain(), "drawing": self._drawing}
        if found.batch is None and own.exists(METRICS_FILE):
            numbers |= {**unsealed(json.loads(own.read(METRICS_FILE))), "ended": found.ended}
        elif found.batch is None and not found.ended:
            return
        try:
            own.write(METRICS_FILE, sealed(numbers))
        except Exception as problem:
            if not self._ended or "No space left" not in str(problem):
                raise
            own.delete(METRICS_FILE)  # the full disk has room for this one then
            own.write(METRICS_FILE, sealed(numbers))
        self._noted = found.batch, found.ended

    @cached_property
    def _drawing(self) -> dict[str, Any]:
        from windowing.monitoring.page import Drawing  # with a server, for a query that runs for seconds

        return asdict(Drawing.of(self._spec.drawn))


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Deliver a first Ctrl-C (or SIGTERM, where it raises an error) that comes in the `with` block behind it: an error within a
    call of Spark would not end the query that Spark is starting.
    """
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}

    def hold(number: int, frame: Any) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in held.items():
            signal.signal(number, handler)

    for number in held:
        signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
        for each in came:
            signal.raise_signal(each)


def _is_in_drain(spec: QuerySpec) -> bool:
    """Return whether the checkpoint is in an unfinished drain, which this run must finish. Raises CheckpointError if it cannot."""
    folder = spec.checkpoint.control
    if not folder.exists(control.DRAIN_FILE):
        return False
    if control.drain_batch(spec.checkpoint) is None:
        folder.delete(control.DRAIN_FILE)
        return False
    if "availableNow" not in spec.trigger:
        raise control.unfinished_drain(spec.checkpoint)
    return True


def _execution(query: StreamingQuery) -> Any:
    """Return Spark's own object of a run, which PySpark hides."""
    return cast(Any, query)._jsq.streamingQuery()
