"""Metrics of a batch, and of tasks.

Of a batch: summed over the tasks by `df.observe`, and read by the writer when the batch is evaluated (`query.progress`), or by a
listener. Every turn adds one row of metrics to the operator's output. Spark adds them up during the evaluation and passes them to a
StreamingQueryListener. A batch is evaluated once (persist) and so counted once; a task that Spark tried twice counts once too. If
kept rows are lost with an executor, Spark before version 4.3 counts those that it makes again for a sink once more for a listener.

Of tasks: sent from the workers to the driver, and summed there for the run.

    worker   a turn, or a partition of a spout --TaskMetrics of its components--> MetricsChannel.send
    Spark    an accumulator: the numbers of a Spark task are sent with its result, if it succeeds
    driver   TaskTotals.take --> totals by component and task --> RunMetrics of the query

These numbers are sent apart from the rows, because they contain times, and rows must be a function of state and input. They cost no
job and no expression of a plan, only a small dictionary per Spark task. What the writer decides by (whether a stream has rows, how
large a task is) does not come this way: if an accumulator cannot be updated, Spark only logs it.

Laws
- The numbers of a task for a batch replace its earlier numbers for the same batch, so a batch or stage that is evaluated again
  counts once. They are keyed by (batch, upstream), and a batch is added to the totals when the next one begins.
- No error here ends a query; numbers that cannot be read are left out.

Source: Storm's executors send their statistics with heartbeats; here they go with the results of tasks.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pyspark.accumulators import Accumulator, AccumulatorParam, _accumulatorRegistry
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from windowing.errors import ConfigError, quote
from windowing.execution.metrics import RunMetrics, TaskMetrics
from windowing.schema.checks import uncallable
from windowing.spark.exchange import evaluated_part
from windowing.spark.output import SUMS
from windowing.topology.bolts import WindowedBolt
from windowing.topology.window_task import field_named, probably_another_unit
from windowing.windows.events import LateReason

_log = logging.getLogger("windowing.spark")
_LOGGED = 5
"""The number of reported errors of a batch that the driver logs."""
_OBSERVATION = "windowing"
_QUERY = "sql.streaming.queryId"
_TIMELESS = {
    LateReason.INVALID: "none of the %d tuples of bolt %r has a usable timestamp, one of them is %s; wanted whole milliseconds "
    "since 1970, or a datetime",
    LateReason.FUTURE: "the timestamps of all %d tuples of bolt %r are further ahead of the clock than max_future, one of them is "
    "%s; wanted milliseconds since 1970: if these are microseconds, give timestamp=lambda row: row[%s] // 1000, say",
}
"""What is logged of a batch whose tuples of a bolt were all put aside for this reason."""


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """One micro-batch, summed over its tasks.

    tuples_in, windows_fired, late, skipped, expired, failed, duplicates (repeated, by message_id): in this batch; failed counts
    each failed attempt at a tuple, and a window as one, also if dead letters stand for them. pending: tuples in open windows after
    it. watermark_ms: the smallest watermark of the tasks, None while one of them has none. lag_ms: its distance from the batch's
    clock. tasks: the number of tasks that made a turn. reported: errors that bolts, or steps of Trident, reported without ending
    the query, as a window that is skipped does; those of steps inside foreachBatch are only in `query.progress`, not in a
    listener.
    """

    batch_id: int
    tuples_in: int = 0
    windows_fired: int = 0
    late: int = 0
    skipped: int = 0
    pending: int = 0
    expired: int = 0
    failed: int = 0
    duplicates: int = 0
    watermark_ms: int | None = None
    lag_ms: int | None = None
    tasks: int = 0
    reported: int = 0

    @classmethod
    def of(cls, batch_id: int, values: Mapping[str, Any], reported: int = 0) -> BatchMetrics:
        """Return the metrics of a batch from the values of `metric_columns`. reported: errors that these do not have."""
        sums = {name: values[name] or 0 for name in SUMS}
        sums["reported"] += reported
        known = values["turns"] and values["watermarks"] == values["turns"]
        watermark = values["watermark"] if known else None
        return cls(
            batch_id=batch_id,
            tuples_in=sums.pop("tuples"),
            windows_fired=sums.pop("fired"),
            **sums,
            watermark_ms=watermark,
            lag_ms=None if watermark is None else values["now"] - watermark,
            tasks=values["turns"],
        )


def metric_columns(value: Callable[[str], str]) -> list[Column]:
    """Return the aggregates of a BatchMetrics. value: the expression of a metric: `exchange_metric` or `output_metric`."""
    return [
        *[F.expr(f"sum({value(name)}) AS {name}") for name in SUMS],
        F.expr(f"min({value('watermark')}) AS watermark"),
        F.expr(f"count({value('watermark')}) AS watermarks"),
        F.expr(f"max({value('now')}) AS now"),
        F.expr(f"count({value('now')}) AS turns"),
    ]


def exchange_metric(name: str) -> str:
    """Return the expression of a metric in the exchange rows of a topology, whose sum is that of its bolts."""
    # A bolt without windows has no late tuples; its unreadable tuples count as late, as those of windows do.
    names = "'late', 'invalid'" if name == "late" else f"'{name}'"
    return f"CASE WHEN kind = 'metric' AND source IN ({names}) THEN value END"


def observed(output: DataFrame, columns: list[Column]) -> DataFrame:
    """Return the operator's output with its metrics under observation. Cost: a few additions per row, no job."""
    return output.observe(_OBSERVATION, *columns)


class LastExecution:
    """Spark's data of the batch that the query of this thread evaluates in foreachBatch; one object per run of a query.

    Cost: three calls of the JVM, some more the first time.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._query, self._execution = spark, cast(Any, None), cast(Any, None)
        self._connection: Any = None

    def clock(self) -> int:
        """Return the clock of the batch that begins, which Spark has logged with its offsets; a repeated batch has the same
        clock.
        """
        if self._query is None:
            running = self._spark.streams.get(str(self._spark.sparkContext.getLocalProperty(_QUERY)))
            self._query = cast(Any, running)._jsq.streamingQuery()
            gateway: Any = self._spark.sparkContext._gateway
            self._connection = gateway.java_gateway_server.getCallbackClient().getPerThreadConnection()
        self._execution = self._query.lastExecution()
        return int(self._execution.offsetSeqMetadata().batchTimestampMs())

    def close(self) -> None:
        """Close the connection in which the ended run has called this process: Py4J keeps it, a thread and a socket at each end."""
        if self._connection is not None:
            with suppress(Exception):  # the JVM is gone; py4j has no types
                self._connection.shutdown()
            self._connection = None

    def observed(self) -> dict[str, Any]:
        """Return the observed values of that batch, which has just been evaluated.

        Spark has added them up from the results of its tasks when the job ends, so there is no waiting.
        """
        found: dict[str, Any] = json.loads(self._execution.observedMetrics().apply(_OBSERVATION).json())
        return found


class MetricsListener(StreamingQueryListener):
    """Stores the last BatchMetrics of each query in `last[query.id]`, and calls `callback(metrics)` for each.

    Register it with `spark.streams.addListener(listener)`. Spark calls it on its own thread, shortly after a batch was committed.
    Raises ConfigError for a callback that cannot be called so: Spark would only log its exception.
    """

    def __init__(self, callback: Callable[[BatchMetrics], Any] | None = None) -> None:
        if callback is not None:
            problem = uncallable(callback, ("metrics",)) if callable(callback) else "is no function"
            if problem is not None:
                raise ConfigError(
                    f"MetricsListener calls a function with (metrics), got {quote(callback)}, which {problem}"
                )
        self.last: dict[str, BatchMetrics] = {}
        self._callback = callback

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Store the metrics of a batch; a trigger without a batch has none, and neither has another kind of query."""
        row = event.progress.observedMetrics.get(_OBSERVATION)
        if row is None:
            return
        metrics = self.last[str(event.progress.id)] = BatchMetrics.of(event.progress.batchId, row.asDict())
        if self._callback is not None:
            self._callback(metrics)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


# -- Metrics of tasks -------------------------------------------------------------------------------------------------------------


_Numbers = tuple[int, tuple[TaskMetrics, ...]]
"""The clock of a batch, and the numbers of an upstream's components in it."""
_Update = dict[tuple[int, int], _Numbers]
"""By (batch, upstream)."""


class MetricsChannel:
    """The channel for the numbers of one query; made by the driver and pickled into its functions. totals: their destination, on
    the driver. bolts: the windowed ones.
    """

    def __init__(self, spark: SparkSession, name: str, bolts: Iterable[WindowedBolt] = ()) -> None:
        self.totals = TaskTotals(name, {bolt.name: bolt.config.timestamp for bolt in bolts})
        self._accumulator: Accumulator[Any] = spark.sparkContext.accumulator(self.totals, _Totalled())
        self.totals.drop = partial(_release, self._accumulator.aid)

    def __getstate__(self) -> dict[str, Any]:
        return {"_accumulator": self._accumulator}

    def send(self, batch: int, upstream: int, now_ms: int, found: Iterable[TaskMetrics]) -> None:
        """Send the numbers of an upstream task's components for a batch; called in a worker.

        Those of an evaluated batch were sent before: rows that are made again for a sink, maybe by fewer tasks, do not count.
        """
        if evaluated_part() != "all":
            self._accumulator.add({(batch, upstream): (now_ms, tuple(found))})


class _Released:
    """Stands for the accumulator of an ended query in PySpark's registry, which is never cleared; a task that is still running may
    send numbers to it, and on Spark 4.1 an unknown number of an accumulator breaks the accumulators of all queries.
    """

    def __iadd__(self, update: Any) -> _Released:
        return self


_RELEASED: Any = _Released()


def _release(number: int) -> None:
    if number in _accumulatorRegistry:
        _accumulatorRegistry[number] = _RELEASED


class _Totalled(AccumulatorParam[Any]):
    """The accumulator: workers fill a dictionary, the driver adds it to the totals."""

    def zero(self, value: Any) -> _Update:
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - Spark's name
        if isinstance(value1, TaskTotals):
            value1.take(value2)
        else:
            value1.update(value2)
        return value1


class TaskTotals:
    """The numbers of all tasks of a query since its start. Thread-safe. timestamps: the fields or functions of windowed bolts.

    >>> totals = TaskTotals("words")
    >>> totals.take({(0, 7): (1000, (TaskMetrics("count", 0, executed=2),))})
    >>> totals.take({(0, 7): (1000, (TaskMetrics("count", 0, executed=2),))})  # evaluated again
    >>> totals.take({(1, 7): (2000, (TaskMetrics("count", 0, executed=3),))})
    >>> totals.now(2000).components()["count"].executed
    5
    """

    def __init__(self, name: str, timestamps: Mapping[str, Any] | None = None) -> None:
        self.name, self._timestamps = name, timestamps or {}
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, int | None], TaskMetrics] = {}
        self._last: dict[int, _Numbers] = {}
        self._batch, self._clock_ms = -1, 0
        self._logged = 0
        self._is_unit_doubted = False
        self.drop: Callable[[], None] = lambda: None
        """Makes PySpark drop its reference to these totals, so that later numbers are ignored."""

    def release(self) -> None:
        """End the totals with their query."""
        self.drop()
        with self._lock:
            self._log_timeless()

    def take(self, update: _Update) -> None:
        """Record the numbers of workers; those of a batch that is already in the totals are ignored."""
        with self._lock:
            for (batch, upstream), numbers in sorted(update.items(), key=lambda each: each[0]):
                if batch < self._batch:
                    continue
                if batch > self._batch:
                    self._log_timeless()
                    self._add(self._totals)
                    self._clock_ms = max((now_ms for now_ms, _ in self._last.values()), default=self._clock_ms)
                    self._last, self._batch, self._logged = {}, batch, 0
                self._last[upstream] = numbers
                self._log_errors(batch, numbers[1])
                self._log_doubt(numbers[1])

    def now(self, at_ms: int, batch: int | None = None, phases: Mapping[str, float] | None = None) -> RunMetrics:
        """Return the totals with those of the last batch, its number and phases. Cost: O(tasks)."""
        with self._lock:
            found = {key: total.copy() for key, total in self._totals.items()}
            self._add(found)
        tasks = tuple(found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or 0)))
        return RunMetrics(name=self.name, at_ms=at_ms, tasks=tasks, batch=batch, phases=dict(phases or {}))

    def _add(self, totals: dict[tuple[str, int | None], TaskMetrics]) -> None:
        for now_ms, found in self._last.values():
            for each in found:
                total = totals.setdefault((each.component, each.task), TaskMetrics(each.component, each.task))
                # What was pending before the batch was held from the last one to this one; in a batch, while its turn worked.
                held_ms = (total.pending or 0) * max(0, now_ms - self._clock_ms if self._clock_ms else 0)
                total.add(each)
                total.process_ms += held_ms + each.execute_ms

    def _log_errors(self, batch: int, found: Iterable[TaskMetrics]) -> None:
        for each in found:
            for text in each.errors:
                self._logged += 1
                if self._logged <= _LOGGED:
                    who = f"component {each.component!r}, task {each.task}"
                    _log.warning("%s, batch %d: %s, reports %s", self.name, batch, who, text)

    def _log_doubt(self, found: Iterable[TaskMetrics]) -> None:
        """Log once in a run that the timestamps of a bolt are probably in another unit."""
        for each in () if self._is_unit_doubted else found:
            named = self._timestamps.get(each.component)
            doubt = probably_another_unit(each.component, "watermark", each.watermark_ms, named)
            if doubt is not None and not self._is_unit_doubted:
                self._is_unit_doubted = True
                _log.warning("%s: %s", self.name, doubt)

    def _log_timeless(self) -> None:
        """Log once in a run that no tuple of a bolt in the last batch had a usable timestamp, or all are in the future, and that no
        tuple before was accepted.
        """
        of_bolts: dict[str, list[TaskMetrics]] = {}
        for _, found in () if self._is_unit_doubted else self._last.values():
            for each in found:
                of_bolts.setdefault(each.component, []).append(each)
        for name, tasks in of_bolts.items():
            count = sum(each.executed for each in tasks)
            if not count or any(each.pending is None or each.watermark_ms is not None for each in tasks):
                continue
            for why, text in _TIMELESS.items():
                if sum(each.late.get(why.value, 0) for each in tasks) == count:
                    self._is_unit_doubted = True
                    rows = (row for each in tasks for reason, row in each.late_rows if reason == why.value)
                    field = (field_named(self._timestamps.get(name)),) if why is LateReason.FUTURE else ()
                    shown = next(rows, "not shown")
                    _log.warning(f"%s, batch %d: {text}", self.name, self._batch, count, name, shown, *field)
