"""Common parts of all suites on Spark: one session, seeded input as files, a query that is run to its end, and its figures.

A batch is two files, so that both cores read. The figure is rows per second over the batches after the first, with Spark's logs and
commits; notes have the time of the whole query, the median batch, and the CPU time of the process tree.
"""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import START_MS
from benchmarks.frame import Measured
from windowing.spark import session

ROOT = Path(__file__).parent.parent.parent
CORES = 2
KEYS = 100
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.python.authenticate.socketTimeout": "120s",  # a worker starts slowly while others use the machine
}
DDL = "k long, at timestamp, v double"
FILES_A_BATCH = 2
ROW_BYTES = 24
CHECKED = 4_000
"""Rows of the exact check, in two batches; a row with a much later timestamp closes their windows."""


@dataclass(frozen=True)
class Input:
    """Rows as files, `batches` of `rows` each; the last batch of a check is one late row."""

    folder: str
    rows: int
    batches: int

    @property
    def last_ms(self) -> int:
        """The timestamp of the last row, except the one that closes the windows of a check."""
        return START_MS + self.rows * self.batches


@cache
def spark() -> Any:
    """Return the session of all suites; its workers can import the bolts of this folder."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    started = session("benchmarks", cores=CORES, **SETTINGS)
    atexit.register(started.stop)
    return started


@cache
def scratch() -> Path:
    """Return a folder that is removed at the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix="windowing-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def staged(rows: int, batches: int) -> Input:
    """Return the seeded rows, one per millisecond of event time, with integer values."""
    return staged_in(scratch() / f"input-{rows}-{batches}", rows, batches)


def staged_in(folder: Path, rows: int, batches: int) -> Input:
    """Write the seeded rows into a folder, unless it has them already."""
    if folder.exists():
        return Input(str(folder), rows, batches)
    folder.mkdir()
    random = np.random.default_rng(1)
    part = rows // FILES_A_BATCH
    for number in range(batches * FILES_A_BATCH):
        write(
            folder / f"part-{number:05d}.parquet",
            random.integers(0, KEYS, part),
            START_MS + 1 + number * part + np.arange(part),
            random.integers(0, 1000, part).astype(float),
        )
    in_order(folder)
    return Input(str(folder), rows, batches)


def in_order(folder: Path) -> None:
    """Make Spark read the files of a folder in the order of their names: it orders them by modification time."""
    for number, file in enumerate(sorted(folder.glob("*.parquet"))):
        os.utime(file, (10**9 + number, 10**9 + number))


@cache
def checked_input() -> Input:
    """Write the rows of the exact check, and the row that closes their windows."""
    load = staged(CHECKED // 2, 2)
    closing = np.array([load.last_ms + 10**8])
    for number in range(FILES_A_BATCH):
        write(Path(load.folder) / f"part-9999{number}.parquet", np.array([0]), closing + number, np.array([0.0]))
    in_order(Path(load.folder))
    return load


def write(path: Path, keys: Any, stamps: Any, values: Any) -> None:
    at = pa.array(stamps * 1000, pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"k": pa.array(keys, pa.int64()), "at": at, "v": pa.array(values, pa.float64())}), path)


def stream(load: Input) -> Any:
    """Return the rows as a streaming DataFrame, with one batch per trigger."""
    return spark().readStream.schema(DDL).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(load.folder)


def checkpoint() -> str:
    """Return a new folder for a checkpoint."""
    return tempfile.mkdtemp(prefix="ck-", dir=scratch())


def figures(load: Input, start: Callable[[], Any]) -> Measured:
    """Run a query to its end; return rows per second over the batches after the first."""
    cpu, began = tree_cpu(), time.perf_counter()
    query = start()
    query.awaitTermination()
    taken, cpu = time.perf_counter() - began, tree_cpu() - cpu
    batches = {each.batchId: each.durationMs["triggerExecution"] for each in query.recentProgress}
    warm = [batches[number] for number in range(1, load.batches)]
    assert warm, f"{load.batches} batch is none after the first"
    notes = {
        "batch ms": statistics.median(warm),
        "first batch ms": float(batches[0]),
        "whole query rows/s": load.rows * load.batches / taken,
        "CPU us per row": 1e6 * cpu / (load.rows * load.batches),
    }
    return Measured(None, load.rows * len(warm) / (sum(warm) / 1000), notes)


def tree_cpu() -> float:
    """Return the CPU seconds of this process, the JVM and all workers, including child processes that have ended."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and those of children that ended
        except psutil.NoSuchProcess:
            continue
    return total


def rows_of(start: Callable[[Callable[[Any, int], None]], Any], last_ms: int) -> list[tuple[Any, ...]]:
    """Return the rows (end, ...) that a query writes by foreachBatch, of windows that end in time, sorted."""
    found: list[tuple[Any, ...]] = []

    def keep(rows: Any, _batch: int) -> None:
        found.extend(tuple(row) for row in rows.collect())

    start(keep).awaitTermination()
    return sorted(row for row in found if row[0] <= last_ms + 10**7)
