"""One running query: what foreachBatch does, and the life of the query around it.

A batch: persist; ONE aggregate over all streams (the full action that Spark needs before anything may fail); then
each stream that has rows goes to its sink; unpersist. An exception escapes: swallowed, it would cost the batch. A
drain is a second run of the same query with one more batch, made of control rows; then the checkpoint is marked, and
refused from then on.

Law: the input has ended when Spark, in an availableNow run, has asked every source and found nothing more, and a drain is done when
its batch is committed. That a query runs no more says neither: anybody may have stopped it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from windowing.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    DrainedCheckpointError,
    QueryStoppedError,
    WindowingError,
    describe_error,
    quote,
)
from windowing.execution.compatibility import Definition
from windowing.spark import control, definition, failpoints
from windowing.spark.acks import Acks
from windowing.spark.failures import (
    About,
    WorkerError,
    damaged_file,
    is_of_spark,
    is_sendable,
    raised_in_worker,
    unwrapped,
)
from windowing.spark.hadoop import Folder
from windowing.spark.metrics import BatchMetrics, metrics_of
from windowing.spark.settings import ArrowBatchLimit, settings_of, take
from windowing.spark.sinks import Sink, claim
from windowing.windows.measures import Duration

__all__ = [
    "BatchWriter",
    "Plan",
    "WindowedQuery",
    "trigger_options",
]


DRAINED_FILE = "drained.json"
_ONE_FILE_ROWS = 50_000
_LOG_EVERY_S = 60.0
_SETTLE_EVERY_S = 0.5
_GO_ON = "Start it again from checkpoint {}: it goes on from there"

_log = logging.getLogger("windowing.spark")


class Streams(Protocol):
    """How the output of a batch holds the rows of several streams."""

    def schema_of(self, stream: str) -> StructType:
        """Return the schema of the rows of a stream."""

    def count(self, stream: str) -> Column:
        """Return the aggregate that counts the rows of a stream."""

    def counted(self, counts: Any, stream: str) -> int:
        """Return what the aggregate of `count` has found."""

    def late(self) -> Column:
        """Return the aggregate that counts what is late, of the bolts whose late tuples go nowhere."""

    def largest(self) -> Column:
        """Return the aggregate that tells how many packed bytes the largest task took, None where none did."""

    def rows(self, output: DataFrame, stream: str) -> DataFrame:
        """Return the rows of one stream."""


class BatchWriter:
    """What foreachBatch calls. `sinks` are those of the streams of `layout` that have one, in order; `acks` for spouts that take
    them.
    """

    def __init__(
        self, bolt: str, layout: Streams, sinks: Mapping[str, Sink], log_late: bool, acks: Acks | None = None
    ) -> None:
        self._bolt, self._layout, self.sinks, self._log_late = bolt, layout, dict(sinks), log_late
        self.acks = acks
        self._batch: int | None = None
        self._unlogged, self._logged_at = 0, -_LOG_EVERY_S
        self.failure: BaseException | None = None
        self.reported: dict[int, int] = {}
        """How many errors users' code has reported, by batch; of the stages that the writer evaluates."""
        self._handover = ArrowBatchLimit()

    def __call__(self, output: DataFrame, batch_id: int) -> None:
        """Evaluate the batch once and write its streams."""
        try:
            failpoints.hit("before_batch", batch_id)
            if self.acks is not None:
                self.acks.begin(batch_id)
            output.persist()
            try:
                self._write(output, batch_id)
            finally:
                output.unpersist()
            failpoints.hit("before_commit", batch_id)
        except BaseException as error:
            self.failure, self._batch = error, batch_id
            if is_sendable(error):
                raise
            # Py4J has no way to say anything else, and the JVM would wait for an answer for ever.
            raise WorkerError(describe_error(error)) from None

    @property
    def schemas(self) -> dict[str, StructType]:
        """The schemas of the streams that have a sink."""
        return {stream: self._layout.schema_of(stream) for stream in self.sinks}

    def about(self, checkpoint: str) -> About:
        """Return what an error may say of the query."""
        return About(self._bolt, checkpoint, self._batch)

    def _write(self, output: DataFrame, batch_id: int) -> None:
        with self._handover.of_batch(output.sparkSession):
            counts: Any = output.agg(*self._aggregates(), self._layout.largest().alias("largest")).first()
        self._handover.took(counts["largest"])
        self._deliver(output, counts, batch_id)

    def _aggregates(self) -> list[Column]:
        """Return what is asked about a batch, in the one action that evaluates all of it."""
        aggregates = [self._layout.count(stream) for stream in self.sinks]
        aggregates.append(self._layout.late().alias("late"))
        if self.acks is not None:
            aggregates.append(self.acks.column())
        return aggregates

    def _deliver(self, output: DataFrame, counts: Any, batch_id: int) -> None:
        """Write the streams; `counts` is what `_aggregates` have found."""
        for stream, sink in self.sinks.items():
            count = self._layout.counted(counts, stream)
            try:
                if count:
                    rows = self._layout.rows(output, stream)
                    sink.write(rows.coalesce(1) if count <= _ONE_FILE_ROWS else rows, batch_id)
                elif hasattr(sink, "skip"):
                    sink.skip(batch_id)
            except BaseException as problem:
                if isinstance(problem, Exception):
                    raise
                raise BoltError(
                    f"the sink of stream {stream!r} of {self._bolt!r} ended with {describe_error(problem)} on batch {batch_id}, "
                    "which is not committed; let a sink raise an Exception"
                ) from problem
            failpoints.hit("in_sink", batch_id)
        if self.acks is not None:
            self.acks.record(batch_id, counts["acks"])
        if self._log_late and counts["late"]:
            self._warn(counts["late"])

    def _warn(self, late: int) -> None:
        """Say, at most once a minute, that tuples went to the side and nothing keeps them."""
        self._unlogged += late
        if time.monotonic() - self._logged_at < _LOG_EVERY_S:
            return
        _log.warning(
            "bolt %r: %d late or unusable tuples went nowhere; give the late stream (late_stream= names it), or of a bolt without "
            "windows the dead_letters, a sink to keep them",
            self._bolt,
            self._unlogged,
        )
        self._unlogged, self._logged_at = 0, time.monotonic()


@dataclass(frozen=True)
class Plan:
    """All that is needed to start the query, and to start it once more. `output` builds the operator over a control
    folder.
    """

    spark: SparkSession
    checkpoint: str
    definition: Definition
    output: Callable[[str], DataFrame]
    writer: BatchWriter
    partitions: int
    trigger: Mapping[str, Any]
    query_name: str | None

    def run(self) -> StreamingQuery:
        """Start the query with its own settings; the session's are put back."""
        folder = control.control_folder(self.spark, self.checkpoint)
        stream: Any = self.output(folder.path).writeStream.foreachBatch(self.writer).outputMode("append")
        stream = stream.option("checkpointLocation", self.checkpoint).trigger(**self.trigger)
        if self.query_name is not None:
            stream = stream.queryName(self.query_name)
        with settings_of(self.spark, self.checkpoint, self.partitions):
            started: StreamingQuery = stream.start()
        return started


def trigger_options(trigger: str | Duration | timedelta, drain: bool) -> dict[str, Any]:
    """Return what Spark calls a trigger: the input at hand, or an interval. Raises ConfigError."""
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


class WindowedQuery:
    """A running query; made by `WindowedStream.start`. A thread of the driver watches it and makes the drain."""

    def __init__(self, plan: Plan, drain: bool, finish: bool, done: threading.Event) -> None:
        self._plan, self._drain, self._finish, self._done = plan, drain, finish, done
        self._stopping = False
        self._failure: BaseException | None = None
        self._metrics: dict[int, BatchMetrics] = {}
        self._query = plan.run()
        self._thread = threading.Thread(target=self._watch, name=f"windowing-{self._query.id}", daemon=True)

    @classmethod
    def start(cls, plan: Plan, drain: bool) -> WindowedQuery:
        """Check the checkpoint against the plan and the sinks against the checkpoint, start the query, and watch over it."""
        done = take(plan.spark, plan.checkpoint)
        try:
            return cls._started(plan, drain, done)
        except BaseException:
            done.set()
            raise

    @classmethod
    def _started(cls, plan: Plan, drain: bool, done: threading.Event) -> WindowedQuery:
        finish = _open(plan)
        claim(plan.spark, plan.checkpoint, plan.writer.sinks, plan.writer.schemas)
        if plan.writer.acks is not None:
            plan.writer.acks.open()
        try:
            query = cls(plan, drain, finish, done)
        except Exception as error:
            found = unwrapped(error, about=plan.writer.about(plan.checkpoint))
            if found is error:
                raise
            raise found from error
        query._thread.start()
        return query

    @property
    def id(self) -> str:
        """The query's id, the same after every restart from its checkpoint."""
        return str(self._query.id)

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own object; after the end of the input it is another one for the drain."""
        return self._query

    @property
    def is_active(self) -> bool:
        """Whether the query is running or draining."""
        return not self._done.is_set()

    @property
    def exception(self) -> BaseException | None:
        """What ended the query, as this library's error where it is one; None while it runs and after a good end."""
        return self._failure if self._done.is_set() else None

    @property
    def progress(self) -> list[BatchMetrics]:
        """The metrics of the batches of this run, oldest first; Spark keeps the last 100 of a query."""
        self._collect()
        return [self._metrics[batch] for batch in sorted(self._metrics)]

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended (True) or `timeout` seconds are over (False); raise what ended it.

        True of an "available_now" run: all the input that there was is read, and drained if that was asked for; or `stop` was
        called here. Raises QueryStoppedError where somebody else has stopped it before that.
        """
        if not self._done.wait(timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def stop(self) -> None:
        """Stop the query after at most one batch; nothing is drained. What it has not committed is made again at the
        next start.
        """
        self._stopping = True
        self._query.stop()
        self._done.wait()

    def _watch(self) -> None:
        try:
            if self._finish or self._has_read_all():
                self._make_drain()
        except BaseException as error:
            failure = (None if isinstance(error, QueryStoppedError) else self._plan.writer.failure) or error
            self._failure = failure  # before it is explained: whatever goes wrong there, the query has not ended well
            self._end()
            self._failure = self._explained(failure)
        finally:
            self._done.set()

    def _has_read_all(self) -> bool:
        """Wait for the query; return whether a drain is to follow. Raises QueryStoppedError for one that was stopped too early."""
        self._wait()
        if self._stopping or "availableNow" not in self._plan.trigger:
            return False
        if not _found_no_more(self._query):
            raise QueryStoppedError(
                "the query was stopped from outside before it had read all its input; nothing was drained. "
                + _GO_ON.format(self._plan.checkpoint)
            )
        return self._drain

    def _make_drain(self) -> None:
        """Have the batch of the drain made, and mark the checkpoint when it is committed. Rows that came since the end of the input
        are read behind it; windowed bolts are closed then, and they are late.
        """
        plan = self._plan
        if not self._finish:
            control.write_drain(control.control_folder(plan.spark, plan.checkpoint))
            self._query = plan.run()
        self._wait()
        if self._stopping:
            return
        batch = control.drain_batch(plan.spark, plan.checkpoint)
        if batch is None or not (Folder(plan.spark, plan.checkpoint) / "commits").exists(str(batch)):
            raise QueryStoppedError(
                f"the query on checkpoint {plan.checkpoint} was stopped from outside while it drained; start it again from the "
                'checkpoint, with trigger="available_now", drain=True, to finish that'
            )
        _mark_drained(plan)

    def _explained(self, failure: BaseException) -> BaseException:
        plan = self._plan
        about = plan.writer.about(plan.checkpoint)
        found = failure if isinstance(failure, WindowingError) else raised_in_worker(failure)
        if found is not None:
            return found
        if _session_ended(plan.spark):
            found = QueryStoppedError(f"the session ended while the query ran. {_GO_ON.format(plan.checkpoint)}")
        elif not isinstance(failure, Exception):
            found = BoltError(
                f"code that {about.name!r} runs in the driver ended with {describe_error(failure)}; let it raise an Exception"
            )
        else:
            return unwrapped(failure, self._damaged_file, about) if is_of_spark(failure) else failure
        found.__cause__ = failure
        return found

    def _end(self) -> None:
        """Stop Spark's query: what was raised need not have ended it (a spout's `ack`), and it would go on unwatched."""
        try:
            self._query.stop()
        except Exception as problem:
            _log.warning("query %s could not be stopped: %s", self._query.id, describe_error(problem))

    def _damaged_file(self) -> str | None:
        return damaged_file(self._plan.spark, self._plan.checkpoint)

    def _wait(self) -> None:
        acks = self._plan.writer.acks
        try:
            if acks is None:
                self._query.awaitTermination()
                return
            while not self._query.awaitTermination(_SETTLE_EVERY_S):  # type: ignore[arg-type]  # Spark takes fractions
                acks.settle()
            acks.settle()
        finally:
            self._collect()

    def _collect(self) -> None:
        for progress in self._query.recentProgress:
            found = metrics_of(progress)
            if found is not None:
                reported = self._plan.writer.reported.get(found.batch_id, 0)
                self._metrics[found.batch_id] = replace(found, reported=found.reported + reported)


def _open(plan: Plan) -> bool:
    """Refuse what cannot go on; return whether the checkpoint is in the middle of a drain, which this run has to
    finish.
    """
    home = Folder(plan.spark, plan.checkpoint) / "windowing"
    if home.exists(DRAINED_FILE):
        raise DrainedCheckpointError(
            f"checkpoint {plan.checkpoint} was drained: its last windows have fired and it is closed; "
            "start with a new checkpoint and a new output folder"
        )
    definition.keep(plan.spark, plan.checkpoint, plan.definition)
    folder = control.control_folder(plan.spark, plan.checkpoint)
    folder.make()
    if not folder.exists(control.DRAIN_FILE):
        return False
    if control.drain_batch(plan.spark, plan.checkpoint) is None:
        folder.delete(control.DRAIN_FILE)
        return False
    if "availableNow" not in plan.trigger:
        raise CheckpointError(
            f"checkpoint {plan.checkpoint} was being drained when its query died; start it once with "
            'trigger="available_now", drain=True to finish that'
        )
    return True


def _session_ended(spark: SparkSession) -> bool:
    """Return whether somebody has stopped the session: whatever Spark says then is only what came of that."""
    context: Any = spark.sparkContext
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # the JVM is gone; py4j has no types
        return True


def _found_no_more(query: StreamingQuery) -> bool:
    """Return whether a bounded run has ended by itself. Spark sets `noNewData` when it has asked each source for more and none had
    any, which ends such a run; a stop, at whatever time, leaves it as it was.
    """
    execution: Any = cast(Any, query)._jsq.streamingQuery()
    return bool(execution.noNewData())


def _mark_drained(plan: Plan) -> None:
    home = Folder(plan.spark, plan.checkpoint) / "windowing"
    home.write(DRAINED_FILE, json.dumps({"drained": True}).encode())
