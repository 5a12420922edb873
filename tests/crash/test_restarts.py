"""Restarts on a checkpoint: after a drain, a stop, a failed task, with other cores, over an incomplete batch directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.crash import harness
from tests.crash.harness import (
    BATCHES,
    DRAIN,
    Outputs,
    assert_nothing_lost,
    assert_same,
    by_batch,
    finish,
    finish_process,
    input_rows,
    kill_process,
    outputs,
    progress_of,
    run_process,
    write_input,
)
from tests.crash.job import DEFINITIONS, REFUSED, Job, start
from windowing import millis
from windowing.errors import CheckpointError, DrainedCheckpointError
from windowing.spark import FileSink, operator
from windowing.spark.checkpoint import DRAINED_FILE
from windowing.spark.control import DRAIN_FILE

pytestmark = pytest.mark.crash

Jobs = Callable[..., Job]
Undisturbed = Callable[..., Outputs]


# -- drained checkpoints ----------------------------------------------------------------------------------------------------


JVM_ENDED = """
import os, signal, sys
from windowing.errors import QueryStoppedError
from windowing.spark import MemorySink, session, windowed
from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

@tumbling(seconds(1), output="n long")
def counted(window):
    return len(window)

spark = session("killed", cores=1, **{"spark.log.level": "OFF"})
query = windowed(counted, spark.readStream.format("rate").load()).start(MemorySink(), sys.argv[1], trigger=seconds(1))
jvm = spark._jvm
try:
    if sys.argv[2] == "killed":
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    else:
        jvm.java.lang.Runtime.getRuntime().halt(52)  # as Spark does
except Exception:
    pass  # it does not answer any more
try:
    query.await_end(60)
except QueryStoppedError as error:
    print(error)
os._exit(0)  # without a JVM Spark cannot be stopped
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "its JVM ended with exit code -9, see the log above. Start it again from checkpoint"),
        (
            "memory",
            "its JVM ran out of memory; give it more, session(**{'spark.driver.memory': '4g'}), or give a batch fewer rows",
        ),
    ],
)
def test_the_driver_of_an_ended_jvm_says_that_the_session_ended_and_why(tmp_path: Path, how: str, said: str) -> None:
    command = [sys.executable, "-c", JVM_ENDED, str(tmp_path / "checkpoint"), how]
    told = subprocess.run(command, cwd=harness.ROOT, timeout=200, check=False, capture_output=True, text=True)
    assert f"the session ended while the query ran: {said}" in told.stdout, told.stderr[-2000:]


def test_a_missing_drain_mark_is_written_by_the_next_start(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("sliding")
    finish(spark, job)
    (job.checkpoint / "windowing" / DRAINED_FILE).unlink()
    finish(spark, job)
    assert_same(outputs(job), undisturbed("sliding"))
    with pytest.raises(DrainedCheckpointError):
        start(spark, job)


def test_a_requested_drain_that_never_began_is_not_continued_by_the_next_start(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    source = write_input(tmp_path / "in", range(2))
    job = Job("sliding", str(source), str(tmp_path / "job"), drain=False)
    finish(spark, job)
    control = job.checkpoint / "windowing" / "control"
    (control / DRAIN_FILE).write_text(json.dumps({"kind": "drain"}) + "\n")
    write_input(source, range(2, BATCHES))
    finish(spark, job)
    assert_same(outputs(job), by_batch(undisturbed("sliding"), range(BATCHES)))
    finish(spark, replace(job, drain=True))
    assert_same(outputs(job), undisturbed("sliding"))


@pytest.mark.crash(minutes=1.3)
def test_tuples_that_arrive_while_a_killed_drain_is_finished_are_late_as_closed(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    source = write_input(tmp_path / "in", range(BATCHES))
    job = Job("sliding", str(source), str(tmp_path / "job"))
    kill_process(job, f"in_sink:{DRAIN}")
    write_input(source, range(BATCHES, BATCHES + 1))
    finish(spark, job)
    found = outputs(job)
    assert_same(by_batch(found, range(BATCHES + 1)), undisturbed("sliding"))
    closed = [row for row in found["late"][DRAIN + 1] if row["reason"] == "closed"]
    assert sorted(row["id"] for row in closed) == [row["id"] for row in input_rows(range(BATCHES, BATCHES + 1))]
    assert_nothing_lost(found, input_rows(range(BATCHES + 1)))


# -- a repeated turn ----------------------------------------------------------------------------------------------------------


def test_a_task_that_failed_after_its_state_was_written_is_repeated_without_a_trace(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = tmp_path / "failed"
    monkeypatch.setattr(operator, "TaskProcessor", harness.failing_once(str(failed), batch=2))
    for name in DEFINITIONS:
        job = replace(job_of(name), folder=str(tmp_path / name))
        finish(spark, job)
        assert failed.exists(), "no task has failed"
        failed.unlink()
        assert_same(outputs(job), undisturbed(name))


class _ForgetfulSink(FileSink):
    """Drops persisted data before it writes, like a cluster on which an executor dies."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        rows.sparkSession.catalog.clearCache()
        super().write(rows, batch_id)


def test_a_batch_whose_persisted_rows_were_lost_is_evaluated_again_to_the_same_rows(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("sliding")
    sinks = {stream: _ForgetfulSink(str(job.out / stream)) for stream in ("default", "late")}
    finish(spark, job, None, sinks)
    assert_same(outputs(job), undisturbed("sliding"))


# -- cores --------------------------------------------------------------------------------------------------------------------


def test_with_order_by_a_restart_on_other_cores_writes_the_same(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("counting", order_by=("id",))
    kill_process(job, "before_commit:2")
    finish_process(replace(job, cores=1))
    assert_same(outputs(job), undisturbed("counting", ("id",)))


@pytest.mark.crash(minutes=2.2)
def test_without_order_by_a_half_done_batch_is_refused_on_other_cores(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("counting")
    kill_process(job, "in_sink:2")
    before = progress_of(job)
    assert run_process(replace(job, cores=1)) == REFUSED
    error = json.loads(job.error.read_text())
    assert error["class"] == CheckpointError.__name__
    assert "batch 2 was left half done" in error["message"]
    assert "parallelism was 2, now 1" in error["message"]
    assert "\n" not in error["message"]
    assert progress_of(job) == before
    finish(spark, job)
    assert_same(outputs(job), undisturbed("counting"))


def test_without_order_by_a_restart_between_batches_on_other_cores_loses_nothing(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    source = write_input(tmp_path / "in", range(2))
    job = Job("counting", str(source), str(tmp_path / "job"))
    finish(spark, replace(job, drain=False))
    write_input(source, range(2, BATCHES))
    finish_process(replace(job, cores=1))
    found = outputs(job)
    assert_nothing_lost(found, input_rows())
    assert_same(by_batch(found, range(2)), by_batch(undisturbed("counting"), range(2)))


# -- sinks and stops ----------------------------------------------------------------------------------------------------------


@pytest.mark.crash(minutes=1.1)
def test_a_partly_written_directory_of_the_replayed_batch_is_replaced(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("sliding")
    kill_process(job, "in_sink:3")
    folder = job.out / "default" / "batch_id=000000000003"
    (part,) = folder.glob("part-*.parquet")
    (folder / "_SUCCESS").unlink()
    os.truncate(part, part.stat().st_size // 2)
    (folder / "part-00001-stray.parquet").write_bytes(b"PAR1")
    (folder / "_temporary").mkdir()
    never = job.out / "late" / "batch_id=000000000003"
    never.mkdir(parents=True)
    (never / "part-00000-half.parquet").write_bytes(b"")
    assert FileSink(str(job.out / "default")).committed(spark) == [0, 1, 2]
    finish(spark, job)
    assert_same(outputs(job), undisturbed("sliding"))


@pytest.mark.parametrize("name", ["counting", "policy"])
def test_a_stopped_query_continues_with_the_output_of_one_that_never_stopped(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed, name: str
) -> None:
    """It is stopped while no more input is there: Spark's file source logs the files that it has found before the offsets of
    the batch, and a stop between the two puts the files of two batches into one.
    """
    job = Job(name, str(tmp_path / "in"), str(tmp_path / "job"))
    for first, end in ((0, 2), (2, 4)):
        write_input(Path(job.source), range(first, end))
        query = start(spark, job, drain=False, trigger=millis(100))
        _wait_for_commit(job, end - 1, query)
        query.stop()
        assert not query.is_active
        assert query.exception is None
    write_input(Path(job.source), range(4, BATCHES))
    finish(spark, job)
    assert_same(outputs(job), undisturbed(name))


@pytest.mark.parametrize("commits", [1, 3])
def test_a_query_stopped_during_its_work_loses_nothing(spark: SparkSession, job_of: Jobs, commits: int) -> None:
    job = job_of("policy")
    query = start(spark, job, drain=False, trigger=millis(100))
    _wait_for_commit(job, commits, query)
    query.stop()
    assert query.exception is None
    finish(spark, job)
    assert_nothing_lost(outputs(job), input_rows())


def _wait_for_commit(job: Job, batch: int, query: Any) -> None:
    deadline = time.monotonic() + 120
    while not (job.checkpoint / "commits" / str(batch)).exists():
        assert query.is_active, query.exception
        assert time.monotonic() < deadline, "no batch was committed"
        time.sleep(0.05)
