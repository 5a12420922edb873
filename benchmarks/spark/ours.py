"""This library's queries: bolts with `aggregate=`, and bolts whose function reads all rows of a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.spark.stage import Input, checkpoint, figures, rows_of, stream
from windowing import Duration, windowed_bolt
from windowing import aggregate as agg
from windowing.spark import FunctionSink, NoopSink, windowed

OUTPUT = "window_end long, k long, n long, total double"


def totals(length_ms: int, slide_ms: int) -> Any:
    """Return the bolt that counts and sums per key."""

    @windowed_bolt(
        length=Duration(length_ms), slide=Duration(slide_ms), timestamp="at", key="k",
        aggregate={"n": agg.count(), "total": agg.sum("v")}, output=OUTPUT,
    )  # fmt: skip
    def by_key(window: Any) -> tuple[int, int, int, float]:
        found = window.aggregate
        return window.end_timestamp, window.key, found["n"], found["total"]

    return by_key


def tables(length_ms: int, slide_ms: int) -> Any:
    """Return the bolt that does the same for all keys of an end at once, in columns."""

    @windowed_bolt(
        length=Duration(length_ms), slide=Duration(slide_ms), timestamp="at", key="k", columnar="arrow",
        aggregate={"n": agg.count(), "total": agg.sum("v")}, output=OUTPUT,
    )  # fmt: skip
    def of_all_keys(window: Any) -> pa.Table:
        found = window.aggregate
        return found.append_column("window_end", pa.repeat(window.end_timestamp, len(found)))

    return of_all_keys


def over_rows(length_ms: int, slide_ms: int) -> Any:
    """Return the bolt whose function reads every row of a window over all keys."""

    @windowed_bolt(
        length=Duration(length_ms), slide=Duration(slide_ms), timestamp="at", output="window_end long, n long, total double"
    )  # fmt: skip
    def of_all(window: Any) -> tuple[int, int, float]:
        rows = window.get()
        return window.end_timestamp, len(rows), sum(row.v for row in rows)

    return of_all


def timed(bolt: Any) -> Callable[[Input], Any]:
    """Return the run into the `noop` sink."""
    return lambda load: figures(load, lambda: _started(bolt, load, NoopSink()))


def exact(bolt: Any) -> Callable[[Input], Any]:
    """Return the run that keeps the output of the windows."""
    return lambda load: rows_of(lambda keep: _started(bolt, load, FunctionSink(keep)), load.last_ms)


def _started(bolt: Any, load: Input, sink: Any) -> Any:
    return Ended(windowed(bolt, stream(load)).start(sink, checkpoint()))


class Ended:
    """A WindowedQuery with the interface of Spark's StreamingQuery."""

    def __init__(self, query: Any) -> None:
        self._query = query

    def awaitTermination(self) -> None:  # noqa: N802
        self._query.await_end()

    @property
    def recentProgress(self) -> Any:  # noqa: N802
        return self._query.spark_query.recentProgress

    @property
    def runId(self) -> Any:  # noqa: N802
        return self._query.spark_query.runId
