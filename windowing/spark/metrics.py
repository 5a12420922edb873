"""Metrics of a batch: summed over the tasks by `df.observe`, and read from the query's progress or by a listener.

Every turn adds one row of metrics to the operator's output. Spark adds them up during the evaluation and passes them to a
StreamingQueryListener. A batch is evaluated once (persist) and so counted once; a task that Spark tried twice counts once too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from windowing.errors import ConfigError, quote
from windowing.schema.checks import uncallable
from windowing.spark.output import metric_column

_OBSERVATION = "windowing"
_QUERY = "sql.streaming.queryId"
_SUMS = ("tuples", "fired", "late", "skipped", "pending", "expired", "failed", "duplicates")


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """One micro-batch, summed over its tasks.

    tuples_in, windows_fired, late, skipped, expired, failed, duplicates (repeated, by message_id): in this batch. pending: tuples
    in open windows after it. watermark_ms: the smallest watermark of the tasks, None while one of them has none. lag_ms: its
    distance from the batch's clock. tasks: the number of tasks that made a turn. reported: errors that bolts, or steps of Trident,
    reported without raising; those of steps inside foreachBatch are only in `query.progress`, not in a listener.
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
    def of(cls, batch_id: int, values: Mapping[str, Any]) -> BatchMetrics:
        """Return the metrics of a batch from the values of `metric_columns`."""
        sums = {name: values[name] or 0 for name in _SUMS}
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
            reported=values.get("reported") or 0,
        )


def metric_columns(value: Callable[[str], str] = metric_column) -> list[Column]:
    """Return the aggregates of a BatchMetrics. `value`: the expression of a metric; default, its column in `windowed`'s output."""
    return [
        *[F.expr(f"sum({value(name)}) AS {name}") for name in _SUMS],
        F.expr(f"min({value('watermark')}) AS watermark"),
        F.expr(f"count({value('watermark')}) AS watermarks"),
        F.expr(f"max({value('now')}) AS now"),
        F.expr(f"count({value('now')}) AS turns"),
    ]


def exchange_metric_columns() -> list[Column]:
    """Return the aggregates of a BatchMetrics over the exchange rows of a topology, summed over its bolts."""

    def value(name: str) -> str:
        # A bolt without windows has no late tuples; its unreadable tuples count as late, as those of windows do.
        names = "'late', 'invalid'" if name == "late" else f"'{name}'"
        return f"CASE WHEN kind = 'metric' AND source IN ({names}) THEN value END"

    return [*metric_columns(value), F.expr(f"sum({value('reported')}) AS reported")]


def observed(output: DataFrame, columns: list[Column]) -> DataFrame:
    """Return the operator's output with its metrics under observation. Cost: a few additions per row, no job."""
    return output.observe(_OBSERVATION, *columns)


class LastExecution:
    """Spark's data of the batch that the query of this thread evaluates in foreachBatch; one object per run of a query.

    Cost: three calls of the JVM, some more the first time.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._query = spark, cast(Any, None)

    def clock(self) -> int:
        """Return the clock of the batch, which Spark has logged with its offsets; a repeated batch has the same clock."""
        return int(self._execution().offsetSeqMetadata().batchTimestampMs())

    def observed(self) -> dict[str, Any]:
        """Return the observed values of the batch that has just been evaluated.

        Spark has added them up from the results of its tasks when the job ends, so there is no waiting.
        """
        found: dict[str, Any] = json.loads(self._execution().observedMetrics().apply(_OBSERVATION).json())
        return found

    def _execution(self) -> Any:
        if self._query is None:
            running = self._spark.streams.get(str(self._spark.sparkContext.getLocalProperty(_QUERY)))
            self._query = cast(Any, running)._jsq.streamingQuery()
        return self._query.lastExecution()


def metrics_of(progress: StreamingQueryProgress) -> BatchMetrics | None:
    """Return the metrics in a progress report of Spark; None for a trigger without a batch, or for another kind of query."""
    row = progress.observedMetrics.get(_OBSERVATION)
    return None if row is None else BatchMetrics.of(progress.batchId, row.asDict())


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
        """Store the metrics of a batch; queries without a windowed bolt have none."""
        metrics = metrics_of(event.progress)
        if metrics is None:
            return
        self.last[str(event.progress.id)] = metrics
        if self._callback is not None:
            self._callback(metrics)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
