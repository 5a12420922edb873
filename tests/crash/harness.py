"""Kill a job, restart it, and compare all its output with that of a run without a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.crash.job import FILES_PER_BATCH, Job, start
from windowing.errors import QueryStoppedError
from windowing.spark import FunctionSink
from windowing.spark.exchange import batch_id
from windowing.spark.operator import TaskProcessor, TaskResult

ROOT = Path(__file__).parents[2]
BATCHES = 5
"""Batches of data; the drain is one more."""
DRAIN = BATCHES
HALF = 3
"""Batches that `run_halfway` does."""
_ROWS_PER_FILE = 45
_BASE_MS = 1_700_000_000_000
_BATCH_MS = 10_000
_SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("at", pa.int64()), ("value", pa.float64())])

Outputs = dict[str, dict[int, list[dict[str, Any]]]]
"""The rows of every stream and batch directory, in the order of the file; floats as hexadecimal text, bit for bit."""


# -- input ----------------------------------------------------------------------------------------------------------------


def write_input(folder: Path, batches: range = range(BATCHES)) -> Path:
    """Write the files of some batches: random doubles of very different sizes, tuples out of order, some really late,
    some without a usable timestamp. The same files at every call, in a fixed order of modification.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(batches.start * FILES_PER_BATCH, batches.stop * FILES_PER_BATCH):
        path = folder / f"{number:04d}.parquet"
        hidden = folder / f"_{path.name}"
        pq.write_table(pa.Table.from_pylist(_rows_of_file(number), _SCHEMA), hidden)
        os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
        hidden.rename(path)
    return folder


def input_rows(batches: range = range(BATCHES)) -> list[dict[str, Any]]:
    """Return the rows of `write_input` in order of their ids, which is the order of the files."""
    files = range(batches.start * FILES_PER_BATCH, batches.stop * FILES_PER_BATCH)
    return [row for number in files for row in _rows_of_file(number)]


def _rows_of_file(number: int) -> list[dict[str, Any]]:
    chance = random.Random(number)
    count = _ROWS_PER_FILE + chance.randrange(10)
    return [_row(number * 1000 + position, number // FILES_PER_BATCH, chance) for position in range(count)]


def _row(number: int, batch: int, chance: random.Random) -> dict[str, Any]:
    at: int | None = _BASE_MS + batch * _BATCH_MS + chance.randrange(_BATCH_MS) - chance.randrange(3000)
    kind = chance.random()
    if kind < 0.05:
        at = _BASE_MS + (batch - 3) * _BATCH_MS
    elif kind < 0.07:
        at = None
    elif kind < 0.09:
        at = 2**52  # in the year 144683: too far ahead
    value = chance.random() * 10.0 ** chance.randrange(-8, 9) / 1e8 * 100
    return {"id": number, "key": f"key-{chance.randrange(5)}", "at": at, "value": value}


# -- processes ------------------------------------------------------------------------------------------------------------


def run_process(
    job: Job,
    failpoint: str | None = None,
    timeout_s: float = 300.0,
    meanwhile: Callable[[int], None] = lambda session: None,
) -> int:
    """Run the job as a process in a session of its own until it ends; return its exit code. meanwhile: called with the session.

    All processes that it has started have ended afterwards: after a kill a JVM or a worker left behind fails the test.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDOWING_FAILPOINT")}
    if failpoint is not None:
        environment |= {"WINDOWING_FAILPOINT": failpoint, "WINDOWING_FAILPOINT_ONCE": str(marker(job, failpoint))}
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    log = Path(job.folder, "driver.log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", job.module, job.plain()],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        meanwhile(process.pid)
        code = process.wait(timeout_s)
        left = _wait_until_gone(process.pid, 20.0)
    finally:
        _kill_session(process.pid)
        process.wait()
    assert not left, f"left behind by driver {process.pid}: {left}"
    return code


def kill_process(job: Job, failpoint: str) -> None:
    """Run the job until it is killed at the failpoint; fail if it is not killed, or killed by something else."""
    code = run_process(job, failpoint)
    log = Path(job.folder, "driver.log").read_text(errors="replace")[-4000:]
    assert code == -signal.SIGKILL, f"the driver was not killed at {failpoint}, it ended with {code}: {log}"
    assert marker(job, failpoint).exists(), f"the driver was killed, but not at {failpoint}: {log}"


def kill_jvm(job: Job, batch: int) -> None:
    """Run the job, kill its JVM when it has committed the batch, and check that the driver ends with an error that says so."""

    def kill(session: int) -> None:
        deadline = time.monotonic() + 120
        while not (job.checkpoint / "commits" / str(batch)).exists():
            assert time.monotonic() < deadline, "the batch was not committed"
            time.sleep(0.01)
        for process in _of_session(session):
            if process.name() == "java":
                process.kill()

    assert run_process(job, meanwhile=kill) > 0
    assert json.loads(job.error.read_text())["class"] == QueryStoppedError.__name__


def finish_process(job: Job) -> None:
    """Run the job as a process until it ends successfully."""
    code = run_process(job)
    assert code == 0, f"{code}: {Path(job.folder, 'driver.log').read_text(errors='replace')[-4000:]}"


def marker(job: Job, failpoint: str) -> Path:
    """Return the file that exists once the failpoint was hit."""
    return Path(job.folder, f"hit-{failpoint.replace(':', '-')}")


def _wait_until_gone(session: int, timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while (left := _of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(_command(process)) for process in left]


def _of_session(session: int) -> list[psutil.Process]:
    """Return the living processes of a session: PySpark's worker daemon makes a process group of its own."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()[:8]
    except psutil.NoSuchProcess:
        return []


def _kill_session(session: int) -> None:
    for process in _of_session(session):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


# -- in the session of the tests --------------------------------------------------------------------------------------------


def finish(spark: SparkSession, job: Job, *arguments: Any, **options: Any) -> None:
    """Run the job in this process until it ends successfully: for Spark another driver, without the start of a JVM."""
    assert start(spark, job, *arguments, **options).await_end(240), "the query does not end"


def run_halfway(spark: SparkSession, job: Job, pending: bool) -> None:
    """Do HALF of the batches, with `pending` begin one more that fails in its sink, then write the rest of the input."""
    source = write_input(Path(job.source), range(HALF))
    finish(spark, job, drain=False)
    write_input(source, range(HALF, BATCHES))
    if pending:
        with pytest.raises(RuntimeError, match="the disk is full"):
            finish(spark, job, None, {stream: FunctionSink(_full) for stream in job.sinks()})


def _full(rows: DataFrame, batch: int) -> None:
    raise RuntimeError("the disk is full")


def failing_once(marker: str, batch: int) -> type[TaskProcessor]:
    """Return an operator whose first task to write the state of a batch fails right after that."""

    class FailingOnce(TaskProcessor):
        def _write(self, result: TaskResult, task: int) -> None:
            super()._write(result, task)
            if batch_id() == batch and not os.path.exists(marker):
                Path(marker).touch()
                raise RuntimeError("a task fails once, for the test")

    return FailingOnce


@contextmanager
def worker_environment(spark: SparkSession, **variables: str) -> Iterator[None]:
    """Give the Python workers of the queries that are started inside environment variables."""
    environment: dict[str, str] = spark.sparkContext.environment
    environment.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del environment[name]


def content_of(job: Job) -> dict[str, bytes]:
    """Return every file below the job's folder."""
    home = Path(job.folder)
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def restored(pristine: Path, folder: Path) -> None:
    """Restore a job's folder, at the same path, because Spark stores paths in a checkpoint."""
    shutil.rmtree(folder)
    shutil.copytree(pristine, folder)


# -- output -----------------------------------------------------------------------------------------------------------------


def outputs(job: Job) -> Outputs:
    """Return all output of the job; an incomplete batch directory is an error."""
    found: Outputs = {}
    for stream in sorted(job.out.iterdir()):
        batches = sorted(path for path in stream.iterdir() if path.name.startswith("batch_id="))
        found[stream.name] = {int(path.name.partition("=")[2]): _rows_of_directory(path) for path in batches}
    return found


def _rows_of_directory(folder: Path) -> list[dict[str, Any]]:
    assert (folder / "_SUCCESS").exists(), f"{folder} is not whole"
    files = sorted(path for path in folder.iterdir() if path.suffix == ".parquet")
    tables = [pq.ParquetFile(path).read() for path in files]
    return [exact(row) for table in tables for row in table.to_pylist()]


def exact(value: Any) -> Any:
    """Return plain data with its floats as hexadecimal text."""
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    return value.hex() if isinstance(value, float) else value


def assert_same(found: Outputs, wanted: Outputs) -> None:
    """Compare stream by stream, batch by batch, row by row, so that a failure names the first difference."""
    assert {stream: sorted(batches) for stream, batches in found.items()} == {
        stream: sorted(batches) for stream, batches in wanted.items()
    }
    for stream, batches in wanted.items():
        for batch, rows in batches.items():
            assert found[stream][batch] == rows, f"stream {stream}, batch {batch}"


def assert_nothing_lost(found: Outputs, rows: list[dict[str, Any]]) -> None:
    """Check the invariant of a drained run: each tuple is in a window or late, once; no definition here skips any."""
    shown = {number for batch in found["default"].values() for row in batch for number in row["ids"]}
    late = [row["id"] for batch in found["late"].values() for row in batch]
    assert len(late) == len(set(late)), "a late tuple came twice"
    assert not shown & set(late), "a tuple was shown and late"
    assert shown | set(late) == {row["id"] for row in rows}, "a tuple is neither in a window nor late"


def by_batch(found: Outputs, batches: range) -> Outputs:
    """Return the entries of these batches."""
    return {stream: {b: rows for b, rows in of.items() if b in batches} for stream, of in found.items()}


def progress_of(job: Job) -> Mapping[str, list[str]]:
    """Return the batches that a checkpoint has begun and committed."""
    return {
        log: sorted(path.name for path in (job.checkpoint / log).iterdir() if path.name.isdigit())
        for log in ("offsets", "commits")
    }
