"""A driver program that the crash tests kill and restart: `python -m tests.crash.job '{"name": "sliding", ...}'`.

It reads a file stream, two small files per batch, runs one of `DEFINITIONS` over it with a FileSink per stream, and ends with the
input, drained if requested. It exits with 0, or with REFUSED after it wrote the error as JSON into `<folder>/error.json`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from windowing import Action, EvictionPolicy, WindowingError, count, seconds, windowed_bolt
from windowing.spark import FileSink, Sink, WindowedQuery, WindowedStream, session, windowed
from windowing.windows import aggregate as agg

COLUMNS = "id long, key string, at long, value double"
FILES_PER_BATCH = 2
REFUSED = 3
_QUICK_START = {  # half the processor time of a JVM that lives for seconds
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
}


@dataclass(frozen=True)
class Job:
    """One run; `name` is that of a definition, `folder` holds its checkpoint and its output."""

    name: str
    source: str
    folder: str
    cores: int = 2
    drain: bool = True
    order_by: tuple[str, ...] = ()
    discard: tuple[str, ...] = ()
    module: ClassVar[str] = "tests.crash.job"

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def out(self) -> Path:
        return Path(self.folder, "out")

    @property
    def error(self) -> Path:
        return Path(self.folder, "error.json")

    def sinks(self) -> dict[str, Sink]:
        return {
            stream: FileSink(str(self.out / stream)) for stream in ("default", "late") if stream not in self.discard
        }

    def plain(self) -> str:
        return json.dumps(asdict(self))


# -- the bolts: each names every tuple that it saw, and adds up floats of very different sizes, in order -----------------


def describe(window: Any) -> tuple[Any, ...]:
    total = 0.0
    for row in window.get():
        total += row.value
    ids, fresh, gone = ([row.id for row in rows] for rows in (window.get(), window.get_new(), window.get_expired()))
    return window.key, window.end_timestamp, ids, fresh, gone, total, total / len(ids)


def describe_aggregate(window: Any) -> tuple[Any, ...]:
    found = window.aggregate
    return window.key, window.end_timestamp, found["ids"], [], [], found["total"], found["mean"]


class Numbered:
    """Over columns, with a state: the mean of a window is the number of the windows that its task has seen so far."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, window: Any) -> tuple[Any, ...]:
        self.state.put("windows", self.state.get("windows", 0) + 1)
        ids, fresh, gone = (of["id"].tolist() for of in (window.get(), window.get_new(), window.get_expired()))
        total = sum(window.column("value").tolist())
        return window.key, window.end_timestamp, ids, fresh, gone, total, float(self.state.get("windows"))


class Stretching(EvictionPolicy):
    """A custom policy with state: the larger the values so far, the longer the window; never shorter than 5 s."""

    def __init__(self) -> None:
        self.largest = 0.0

    def evict(self, event: Any) -> Action:
        context = self.get_context()
        if context is None or event.timestamp > context.reference_time:
            return Action.KEEP
        length_ms = 5000 + int(50 * self.largest)
        return Action.PROCESS if event.timestamp > context.reference_time - length_ms else Action.EXPIRE

    def track(self, event: Any) -> None:
        if not event.is_watermark:
            self.largest = max(self.largest, event.get().value)

    def get_state(self) -> Any:
        return {"largest": self.largest, "context": super().get_state()}

    def restore_state(self, state: Any) -> None:
        self.largest = state["largest"]
        super().restore_state(state["context"])


AGGREGATE = {
    "ids": agg.fold(list, lambda acc, value: [*acc, value], lambda a, b: a + b, field="id"),
    "total": agg.sum("value"),
    "mean": agg.mean("value"),
}


@dataclass(frozen=True)
class Definition:
    """A bolt's options, its function of a window or its class, and the number of tasks."""

    options: Mapping[str, Any]
    tasks: int = 2
    grouping: tuple[str, ...] | None = None
    body: Any = describe
    columns: str = COLUMNS
    renamed: str | None = None
    output: str = (
        "key string, ends long, ids array<long>, fresh array<long>, gone array<long>, total double, mean double"
    )
    common: Mapping[str, Any] = field(default_factory=lambda: {"timestamp": "at", "late_stream": "late"})

    def bolt(self, name: str) -> Any:
        declared = windowed_bolt(name=self.renamed or name, output=self.output, **self.common, **self.options)
        body = type(name, (self.body,), {}) if isinstance(self.body, type) else partial(self.body)
        return declared(body)  # a class or a function is declared once


_LAG = {"lag": seconds(2)}
DEFINITIONS = {
    "sliding": Definition({"length": seconds(10), "slide": seconds(5), "key": "key", **_LAG}),
    "counting": Definition(
        {"length": count(7), "slide": count(3), "key": "key", "columnar": "numpy", **_LAG}, body=Numbered
    ),
    "tumbling": Definition({"length": seconds(4), "slide": seconds(4), "lateness": "window", **_LAG}, tasks=1),
    "aggregate": Definition(
        {"length": seconds(10), "slide": seconds(5), "key": "key", "aggregate": AGGREGATE, **_LAG},
        body=describe_aggregate,
    ),
    "policy": Definition({"slide": seconds(5), "eviction": Stretching, **_LAG}, grouping=("key",)),
}


# -- the driver ---------------------------------------------------------------------------------------------------------


def stream_of(spark: SparkSession, job: Job, definition: Definition | None = None) -> WindowedStream:
    chosen = definition or DEFINITIONS[job.name]
    reader = spark.readStream.schema(chosen.columns).option("maxFilesPerTrigger", FILES_PER_BATCH)
    rows = reader.parquet(job.source)
    return windowed(
        chosen.bolt(job.name),
        rows,
        tasks=chosen.tasks,
        grouping=chosen.grouping,
        order_by=job.order_by or None,
    )


def start(
    spark: SparkSession,
    job: Job,
    definition: Definition | None = None,
    sinks: Mapping[str, Sink] | None = None,
    **options: Any,
) -> WindowedQuery:
    """Start the job's query in a session; the options are passed to `WindowedStream.start`."""
    stream = stream_of(spark, job, definition)
    settings = {"drain": job.drain, "discard": job.discard, **options}
    return stream.start(sinks or job.sinks(), str(job.checkpoint), **settings)


def main(argument: str) -> int:
    given = json.loads(argument)
    job = Job(**{**given, "order_by": tuple(given["order_by"]), "discard": tuple(given["discard"])})
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())  # before the JVM starts: the workers inherit it
    spark = session(f"crash-{job.name}", cores=job.cores, **_QUICK_START)
    try:
        assert start(spark, job).await_end(240), "the query does not end"
    except WindowingError as error:
        job.error.write_text(json.dumps({"class": type(error).__name__, "message": str(error)}))
        return REFUSED
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
