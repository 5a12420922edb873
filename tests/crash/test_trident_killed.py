"""Kill a Trident topology on Spark at every named point: in the end each tuple counts once in each state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import trident_spark_job
from tests.crash.harness import DRAIN, Outputs, assert_same, input_rows, kill_process, outputs, worker_environment
from tests.crash.trident_spark_job import TridentJob, start, states
from windowing.errors import SupersededError
from windowing.spark.failpoints import TRIDENT_NAMES

cloudpickle.register_pickle_by_value(trident_spark_job)  # type: ignore[no-untyped-call]  # the workers do not see the tests

POINTS = [
    (
        "before_claim:0",
        "after_claim:0",
        "before_commits:1",
        "after_state_commit:1",
        "after_commits:1",
        "before_commit:3",
    ),
    ("before_state_commit:0", "after_state_commit:2", "in_sink:2", "after_state_write:3", f"after_commits:{DRAIN}"),
]


def finish(spark: SparkSession, job: TridentJob) -> None:
    assert start(spark, job).await_end(240), "the query does not end"


def sorted_outputs(job: TridentJob) -> Outputs:
    """Return the output, sorted, because partitions of a state are written in any order."""
    return {
        name: {batch: sorted(rows, key=str) for batch, rows in batches.items()}
        for name, batches in outputs(job).items()
    }


@pytest.fixture(scope="module")
def undisturbed(
    spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outputs, dict[str, Any]]:
    """Return the outputs and the states of a run without a kill."""
    job = TridentJob(str(source), str(tmp_path_factory.mktemp("undisturbed") / "job"))
    finish(spark, job)
    found = states(job)
    ids = [row["id"] for row in input_rows()]
    counted = [n for part in ("state1/0", "state1/1") for n in found[part].values()]
    assert sum(counted) == len(ids)
    assert all(found[part] for part in ("state1/0", "state1/1")), "both partitions have keys"
    assert found["state2/0"] == sum(ids)
    assert sum(found["state3/0"].values()) > len(ids) * 0.8
    return sorted_outputs(job), found


def test_every_named_point_is_tested() -> None:
    assert {point.partition(":")[0] for points in POINTS for point in points} >= set(TRIDENT_NAMES)


@pytest.mark.crash(minutes=5)
@pytest.mark.parametrize("points", POINTS, ids=["commits", "states"])
def test_a_topology_killed_at_any_point_counts_each_tuple_once(
    spark: SparkSession,
    source: Path,
    tmp_path: Path,
    undisturbed: tuple[Outputs, dict[str, Any]],
    points: tuple[str, ...],
) -> None:
    job = TridentJob(str(source), str(tmp_path / "job"))
    for point in points:
        kill_process(job, point)
    finish(spark, job)
    assert_same(sorted_outputs(job), undisturbed[0])
    assert states(job) == undisturbed[1]


@pytest.mark.crash
@pytest.mark.parametrize("point", ["kill_worker:2"])
def test_a_worker_that_is_killed_repeats_its_turn(
    spark: SparkSession, source: Path, tmp_path: Path, undisturbed: tuple[Outputs, dict[str, Any]], point: str
) -> None:
    job, hit = TridentJob(str(source), str(tmp_path / "job")), tmp_path / "hit"
    with worker_environment(spark, WINDOWING_FAILPOINT=point, WINDOWING_FAILPOINT_ONCE=str(hit)):
        finish(spark, job)
    assert hit.exists(), "no worker was killed"
    assert_same(sorted_outputs(job), undisturbed[0])
    assert states(job) == undisturbed[1]
    assert_same(sorted_outputs(job), undisturbed[0])
    assert states(job) == undisturbed[1]


@pytest.mark.crash
def test_a_missing_checkpoint_of_written_states_is_refused(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    job = TridentJob(str(source), str(tmp_path / "job"))
    finish(spark, job)
    before = states(job)
    (Path(job.folder) / "checkpoint").rename(tmp_path / "lost")
    (Path(job.folder) / "out").rename(tmp_path / "out")
    with pytest.raises(
        SupersededError, match=r"is new, but state1 .* holds batches already: partition .* was written by attempt"
    ):
        finish(spark, job)
    assert states(job) == before
