"""The queries that a user would write without this library: `window()`, `collect_list` with a UDF, and `applyInPandasWithState`.

Native windows are [start, end), ours (end - length, end]: the timestamps of native queries are a millisecond earlier.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupStateTimeout

from benchmarks.spark.stage import Input, checkpoint, figures, rows_of, spark, stream

DEFAULT: Mapping[str, str] = {}
IN_MEMORY = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",  # it knows no other
}
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
RENAMED = {_FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"}
"""The setting that this library uses for its own queries on a local disk."""


def totals(load: Input, length_ms: int, slide_ms: int) -> Any:
    """Count and sum per key by `window()`."""
    rows = _earlier(load)
    windows = F.window("at", f"{length_ms} milliseconds", f"{slide_ms} milliseconds")
    found = rows.groupBy(windows, "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    return found.select(_end(), "k", "n", "total")


def over_rows(load: Input, length_ms: int, slide_ms: int) -> Any:
    """Collect the rows of each window into a list, and pass that to a Python function."""
    rows = _earlier(load)
    windows = F.window("at", f"{length_ms} milliseconds", f"{slide_ms} milliseconds")
    found = rows.groupBy(windows).agg(F.collect_list(F.struct("k", "at", "v")).alias("rows"))
    total = F.udf(lambda rows: float(sum(row.v for row in rows)), "double")
    return found.select(_end(), F.size("rows").cast("long").alias("n"), total("rows").alias("total"))


def by_hand(load: Input, length_ms: int, slide_ms: int) -> Any:
    """Keep each key's panes in the state of `applyInPandasWithState`, and fire the windows that Spark's watermark has passed.

    The state is JSON text: arrays in the state fail in PySpark 4.3, whose workers cannot read their schema.
    """

    def fire(key: tuple[int], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        ends, numbers, sums, fired = json.loads(state.get[0]) if state.exists else ([], [], [], 0)
        counts, totals = Counter(dict(zip(ends, numbers, strict=True))), Counter(dict(zip(ends, sums, strict=True)))
        if not state.hasTimedOut:
            for frame in frames:
                stamps = frame["at"].astype("int64") // 1_000_000  # of pandas' nanoseconds
                grouped = frame["v"].groupby((stamps // slide_ms + 1) * slide_ms)
                counts.update(grouped.count().to_dict())
                totals.update(grouped.sum().to_dict())
        watermark = state.getCurrentWatermarkMs()
        rows = []
        first = max(fired + slide_ms, min(counts, default=0))
        for end in range(
            first, min(watermark, max(counts, default=0) + length_ms) // slide_ms * slide_ms + 1, slide_ms
        ):
            panes = [pane for pane in range(end - length_ms + slide_ms, end + 1, slide_ms) if pane in counts]
            if panes:
                rows.append((end, key[0], sum(counts[p] for p in panes), sum(totals[p] for p in panes)))
            fired = end
        kept = sorted(pane for pane in counts if pane > fired + slide_ms - length_ms)
        if kept:
            state.update((json.dumps([kept, [counts[p] for p in kept], [totals[p] for p in kept], fired]),))
            state.setTimeoutTimestamp(max(fired + slide_ms, kept[0], watermark + 1))
        elif state.exists:
            state.remove()
        yield pd.DataFrame(rows, columns=["window_end", "k", "n", "total"])

    return (
        _earlier(load)
        .groupBy("k")
        .applyInPandasWithState(
            fire,
            "window_end long, k long, n long, total double",
            "panes string",
            "append",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def timed(make: Callable[[Input], Any], settings: Mapping[str, str] = DEFAULT) -> Callable[[Input], Any]:
    """Return the run into the `noop` sink."""
    return lambda load: figures(load, lambda: started(make(load).writeStream.format("noop"), settings))


def exact(make: Callable[[Input], Any]) -> Callable[[Input], Any]:
    """Return the run that keeps the output of the windows."""
    return lambda load: rows_of(lambda keep: started(make(load).writeStream.foreachBatch(keep), DEFAULT), load.last_ms)


def started(writer: Any, settings: Mapping[str, str]) -> Any:
    """Start a query in a session with these settings."""
    conf = spark().conf
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:  # a query takes a copy of them
        return writer.outputMode("append").option("checkpointLocation", checkpoint()).trigger(availableNow=True).start()
    finally:
        for name, given in before.items():
            conf.unset(name) if given is None else conf.set(name, given)


def _earlier(load: Input) -> Any:
    rows = stream(load).withColumn("at", F.col("at") - F.expr("INTERVAL 1 MILLISECOND"))
    return rows.withWatermark("at", "0 seconds")


def _end() -> Any:
    return F.unix_millis("window.end").alias("window_end")
