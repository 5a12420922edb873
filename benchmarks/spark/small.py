"""The suite `spark_small`: the fixed cost of a batch, and the first batch of a query in a warm session.

The base uses the checkpoint file manager of our queries (decision 19), so the difference is the cost of this library. Besides the
milliseconds of a median batch each contender has the number of Spark jobs per batch, which is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.frame import Contender, Measured, Plan
from benchmarks.spark import native, ours
from benchmarks.spark.stage import CHECKED, Input, checked_input, checkpoint, figures, spark, staged, stream
from windowing.spark import NoopSink, ParquetSink, windowed

SIZES, BATCHES = (1_000, 100_000), 25
SECOND_MS = 1_000
BATCH, FIRST = "batch ms", "first batch ms"


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield a comparison for each batch size and kind of sink, then the first batch; `scale` shortens the queries."""
    batches = max(3, int(BATCHES * scale))
    for rows in SIZES:
        for kind in ("noop", "parquet"):
            about = f"count and sum per key, tumbling 1 s, 100 keys, {batches} batches; native: files by rename"
            yield _plan(f"a batch of {rows:,}, {kind}", about, kind, BATCH, rows, batches)
    yield _plan("the first batch of a query, 1,000 rows, noop", "in a warm session", "noop", FIRST, SIZES[0], 3)


def _plan(name: str, about: str, kind: str, figure: str, rows: int, batches: int) -> Plan:
    bolt, query = ours.totals(SECOND_MS, SECOND_MS), partial(native.totals, length_ms=SECOND_MS, slide_ms=SECOND_MS)
    runs = {
        "native": (partial(_native, query, kind), native.exact(query)),
        "windowing": (partial(_ours, bolt, kind), ours.exact(bolt)),
    }
    contenders = [
        Contender(who, partial(_measured, start, figure), check=check, compared=False)
        for who, (start, check) in runs.items()
    ]
    return Plan(
        name, about, contenders, lambda size: checked_input() if size == CHECKED else staged(rows, batches), rows * batches,
        CHECKED, unit="ms", clock="wall time of whole batches", warmups=1,
    )  # fmt: skip


def _measured(start: Callable[[Input], Any], figure: str, load: Input) -> Measured:
    started: list[Any] = []

    def begun() -> Any:
        started.append(start(load))
        return started[0]

    found = figures(load, begun)
    jobs = spark().sparkContext.statusTracker().getJobIdsForGroup(str(started[0].runId))
    return replace(found, value=found.notes[figure], notes={**found.notes, "jobs a batch": len(jobs) / load.batches})


def _native(query: Callable[[Input], Any], kind: str, load: Input) -> Any:
    writer = query(load).writeStream.format(kind)
    return native.started(writer.option("path", checkpoint()) if kind == "parquet" else writer, native.RENAMED)


def _ours(bolt: Any, kind: str, load: Input) -> Any:
    sink = NoopSink() if kind == "noop" else ParquetSink(checkpoint())
    return ours.Ended(windowed(bolt, stream(load)).start(sink, checkpoint()))
