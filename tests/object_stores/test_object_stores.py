"""Jobs with checkpoint and output on HDFS and S3 give the rows of a local run, killed and started again there too."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import harness, job, topology_job, trident_spark_job
from tests.crash.test_topology_killed import assert_nothing_acked_early, told
from tests.crash.test_trident_killed import sorted_outputs
from tests.object_stores.jobs import Acks, Trident, Windows
from windowing.spark.hadoop import Folder

for module in (harness, job, topology_job, trident_spark_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests

POINTS = {
    "windows": ("after_state_write:1", f"before_commit:{harness.DRAIN}"),
    "acks": ("after_ledger:1", "before_ack:2"),
    "trident": ("before_state_commit:0", "after_commits:2"),
}


def prepared(kind: str, folder: Path, there: str | None = None) -> Any:
    """Return a job that has its input: all in a folder of the disk, or with checkpoint and output on a store."""
    if kind == "windows":
        source = str(harness.write_input(folder / "in"))
        found: Any = job.Job("sliding", source, str(folder / "job"), order_by=("id",))
        return found if there is None else Windows(**asdict(found), there=there)
    if kind == "trident":
        found = trident_spark_job.TridentJob(str(harness.write_input(folder / "in")), str(folder / "job"))
        return found if there is None else Trident(**asdict(found), there=there)
    found = topology_job.TopologyJob(str(folder / "job"))
    found = found if there is None else Acks(found.folder, there)
    Path(found.folder).mkdir(parents=True)
    found.queue().put(topology_job.input_rows())
    return found


def result(spark: SparkSession, kind: str, of: Any) -> tuple[Any, ...]:
    """Return what a job has written, that on a store by way of the disk; and what its queue or its states hold."""
    if hasattr(of, "there"):
        Folder(spark, of.there).copy("out", Folder(spark, of.folder))
    if kind == "trident":
        return sorted_outputs(of), trident_spark_job.states(of)
    return harness.outputs(of), len(of.queue()) if kind == "acks" else 0


@pytest.fixture(scope="module")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, ...]]:
    """What each job gives on the disk, run once; of the topology also with which batch each root is done."""
    found: dict[str, tuple[Any, ...]] = {}

    def run(kind: str) -> tuple[Any, ...]:
        if kind not in found:
            of = prepared(kind, tmp_path_factory.mktemp(kind))
            START[kind](spark, of).await_end(240)
            found[kind] = result(spark, kind, of), dict(told(of)) if kind == "acks" else {}
        return found[kind]

    return run


START: Mapping[str, Any] = {"windows": job.start, "acks": topology_job.start, "trident": trident_spark_job.start}


@pytest.mark.parametrize("kind", POINTS)
def test_a_job_killed_on_a_store_and_started_again_gives_the_rows_of_a_local_run(
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
