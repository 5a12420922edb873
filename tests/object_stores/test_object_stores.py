"""Jobs with checkpoint and output on HDFS and S3 have the results of a local run, also after kills and restarts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash import harness, job, topology_job
from tests.crash.test_topology_killed import assert_nothing_acked_early
from tests.object_stores.conftest import START, closed_port, prepared, result
from windowing.errors import CheckpointError, SinkError
from windowing.spark import FileSink, failpoints
from windowing.spark.hadoop import Folder

POINTS = {
    "windows": ("after_state_write:1", f"before_commit:{harness.DRAIN}"),
    "acks": ("after_ledger:1", "before_ack:2"),
    "trident": ("before_state_commit:0", "after_commits:2"),
}


@pytest.mark.parametrize("kind", POINTS)
def test_a_killed_and_restarted_job_on_a_store_has_the_results_of_a_local_run(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], there: str, tmp_path: Path, kind: str
) -> None:
    wanted, done = local(kind)
    of = prepared(kind, tmp_path, there)
    for point in POINTS[kind]:
        harness.kill_process(of, point)
        if kind == "acks":
            on_disk = topology_job.TopologyJob(of.folder)
            shutil.rmtree(on_disk.checkpoint, ignore_errors=True)
            Folder(spark, of.checkpoint).copy("commits", Folder(spark, str(on_disk.checkpoint)))
            assert_nothing_acked_early(on_disk, done)
    assert START[kind](spark, of).await_end(240), "the query does not end"
    assert result(spark, kind, of) == wanted


@pytest.mark.parametrize("point", ["before_batch:1", "in_sink:1"])
def test_a_driver_overtaken_by_another_one_fails_and_the_results_are_those_of_one_run(
    spark: SparkSession,
    local: Callable[[str], tuple[Any, ...]],
    there: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    of = prepared("windows", tmp_path, there)
    ended: list[int] = []
    monkeypatch.setattr(failpoints, "_kill", lambda name: ended.append(harness.run_process(of)))
    monkeypatch.setenv("WINDOWING_FAILPOINT", point)
    monkeypatch.setenv("WINDOWING_FAILPOINT_ONCE", str(tmp_path / "once"))
    with pytest.raises(CheckpointError, match="another query writes to checkpoint"):
        job.start(spark, of).await_end(240)
    assert ended == [0]
    assert result(spark, "windows", of) == local("windows")[0]


def test_a_failed_write_keeps_the_previous_file(spark: SparkSession, there: str) -> None:
    folder = Folder(spark, there)
    folder.write("query.json", b"before")
    with pytest.raises(CheckpointError):
        folder.write("query.json", None)  # type: ignore[arg-type]  # ends between create and close
    assert folder.read("query.json") == b"before"
    folder.write("query.json", b"after")
    assert folder.read("query.json") == b"after"


REFUSED = {
    "no bucket": ("s3a://nowhere", {}, "see that the bucket or folder above it is there"),
    "wrong key": ("s3a://foreign", {"secret.key": "hunter2hunter2"}, "give the user of the session the right"),
    "no user": ("s3a://strange", {"access.key": "stranger"}, "give the user of the session the right"),
    "S3 is down": ("s3a://down", {"endpoint": "http://127.0.0.1:{port}"}, "see that its server is named rightly"),
    "HDFS is down": ("hdfs://127.0.0.1:{port}", {}, "see that its server is named rightly and answers"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_store_that_cannot_be_used_is_reported_within_30_seconds_in_one_line_with_the_remedy(
    spark: SparkSession, tmp_path: Path, why: str
) -> None:
    root, given, way_out = REFUSED[why]
    port = closed_port()
    for name, value in given.items():
        conf: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        conf.set(f"fs.s3a.bucket.{root.partition('//')[2]}.{name}", value.format(port=port))
    of = prepared("windows", tmp_path, root.format(port=port) + "/job")
    began = time.monotonic()
    with pytest.raises(CheckpointError) as found:
        job.start(spark, of)
    took, said = time.monotonic() - began, str(found.value)
    print(f"{why}, after {took:.1f} s: {said}")
    assert took < 30
    assert said.count("\n") == 0
    assert of.checkpoint in said
    assert way_out in said
    assert "hunter2" not in said


def test_a_sink_with_a_missing_bucket_is_an_error_that_names_it(
    spark: SparkSession, there: str, tmp_path: Path
) -> None:
    of = prepared("windows", tmp_path, there)
    sinks = {**of.sinks(), "late": FileSink("s3a://nowhere/late")}
    with pytest.raises(SinkError, match=r"s3a://nowhere/late cannot be used: .*; see that the bucket"):
        job.start(spark, of, sinks=sinks).await_end(240)
