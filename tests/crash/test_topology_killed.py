"""Kill a topology on a queue at every named point: no row is lost, none is acked early, and in the end the queue is empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import topology_job
from tests.crash.harness import Outputs, assert_same, kill_process, outputs, worker_environment
from tests.crash.topology_job import BATCHES, DRAIN, TopologyJob, input_rows, is_dead, root_of_row, start

cloudpickle.register_pickle_by_value(topology_job)  # type: ignore[no-untyped-call]  # the workers do not see the tests


def prepared(folder: Path) -> TopologyJob:
    job = TopologyJob(str(folder))
    Path(job.folder).mkdir(parents=True)
    job.queue().put(input_rows())
    return job


def finish(spark: SparkSession, job: TopologyJob) -> None:
    assert start(spark, job).await_end(240), "the query does not end"


def told(job: TopologyJob) -> list[tuple[int, int]]:
    """Return the calls that the queue received: (root, the last batch that was committed then)."""
    lines = job.told.read_text().splitlines() if job.told.exists() else []
    return [(found["root"], found["committed"]) for found in map(json.loads, lines)]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outputs, dict[int, int]]:
    """Return the outputs of a run without a kill, and the batch with which each root is done."""
    return undisturbed_run(spark, prepared(tmp_path_factory.mktemp("undisturbed") / "job"))


def undisturbed_run(spark: SparkSession, job: TopologyJob) -> tuple[Outputs, dict[int, int]]:
    """Run the job, and check that its output covers all cases."""
    finish(spark, job)
    done = dict(told(job))
    assert sorted(done) == list(range(BATCHES)), "each root was told, once"
    assert any(1 <= done[root] - root < DRAIN for root in done), "the windows prove too little"
    assert len(job.queue()) == 0
    found, ids = outputs(job), [row[0] for row in input_rows()]
    shown = {number for rows in found["count"].values() for row in rows for number in row["ids"]}
    late = {row["id"] for rows in found["count.late"].values() for row in rows}
    assert not shown & late
    dead = [row["tuples"] for rows in found["tried.dead_letters"].values() for row in rows]
    assert sorted(json.loads(letter)[0]["values"]["id"] for letter in dead) == list(filter(is_dead, ids))
    assert shown | late == {number for number in ids if not is_dead(number)}
    assert late, "the input proves too little"
    return found, done


def assert_nothing_acked_early(job: TopologyJob, done: dict[int, int]) -> None:
    committed = max((int(path.name) for path in (job.checkpoint / "commits").glob("[0-9]*")), default=-1)
    left = {row[0] for row in job.queue().rows()}
    for root, batch in done.items():
        rows = {row[0] for row in input_rows() if root_of_row(row[0]) == root}
        assert rows <= left or (not rows & left and batch <= committed), f"root {root} after batch {committed}"
    for root, then in told(job):
        assert then >= done[root], f"root {root} was acked when only batch {then} was committed"


def assert_recovered(job: TopologyJob, undisturbed: tuple[Outputs, dict[int, int]]) -> None:
    wanted, done = undisturbed
    assert_nothing_acked_early(job, done)
    assert {root for root, _ in told(job)} == set(done)
    assert len(job.queue()) == 0
    assert_same(outputs(job), wanted)


@pytest.mark.crash(minutes=6)
@pytest.mark.parametrize(
    "points",
    [
        ("before_batch:0", "after_state_write:1", "before_ledger:2", "before_commit:2", f"before_ack:{DRAIN}"),
        ("in_sink:0", "after_ledger:1", "before_ack:2", "after_ack:2", f"after_ledger:{DRAIN}"),
    ],
)
def test_a_topology_killed_at_any_point_loses_and_repeats_nothing_and_acks_nothing_early(
    spark: SparkSession, tmp_path: Path, undisturbed: tuple[Outputs, dict[int, int]], points: tuple[str, ...]
) -> None:
    job = prepared(tmp_path / "job")
    for point in points:
        kill_process(job, point)
        assert_nothing_acked_early(job, undisturbed[1])
    finish(spark, job)
    assert_recovered(job, undisturbed)


@pytest.mark.crash
def test_a_worker_killed_in_a_stage_repeats_its_turn_and_counts_no_edge_twice(
    spark: SparkSession, tmp_path: Path, undisturbed: tuple[Outputs, dict[int, int]]
) -> None:
    job, hit = prepared(tmp_path / "job"), tmp_path / "hit"
    variables = {"WINDOWING_FAILPOINT": "kill_worker:2", "WINDOWING_FAILPOINT_ONCE": str(hit)}
    with worker_environment(spark, **variables):
        finish(spark, job)
    assert hit.exists(), "no worker was killed"
    assert_recovered(job, undisturbed)
