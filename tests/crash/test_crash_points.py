"""Kill the driver, or a worker, at every named point, restart, and compare with the output of a run without a kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.harness import (
    BATCHES,
    DRAIN,
    assert_nothing_lost,
    assert_same,
    finish,
    finish_process,
    input_rows,
    kill_jvm,
    kill_process,
    outputs,
    progress_of,
    worker_environment,
)
from tests.crash.job import DEFINITIONS, Job
from windowing.spark import failpoints

Jobs = Callable[..., Job]
Undisturbed = Callable[..., dict[str, dict[int, list[dict[str, object]]]]]

DRIVER_POINTS = tuple(name for name in failpoints.NAMES if name != "kill_worker")
CRASHES = {
    # Every point once, each in its own batch; over all bolts each batch is hit, the first and the drain too.
    name: sorted(((2 * row + column) % (BATCHES + 1), point) for column, point in enumerate(DRIVER_POINTS))
    for row, name in enumerate(DEFINITIONS)
}


def assert_recovered(job: Job, undisturbed: Undisturbed) -> None:
    found = outputs(job)
    assert_same(found, undisturbed(job.name, job.order_by))
    assert_nothing_lost(found, input_rows())


@pytest.mark.crash(minutes=5)
@pytest.mark.parametrize("name", CRASHES)
def test_a_driver_killed_at_any_point_of_any_bolt_loses_and_repeats_nothing(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed, name: str
) -> None:
    job = job_of(name)
    for batch, point in CRASHES[name]:
        kill_process(job, f"{point}:{batch}")
        assert progress_of(job) == {
            "offsets": [str(each) for each in range(batch + 1)],
            "commits": [str(each) for each in range(batch)],
        }
    if name == "sliding":
        finish_process(job)
    else:
        finish(spark, job)
    assert_recovered(job, undisturbed)


@pytest.mark.crash(minutes=1.5)
def test_a_driver_killed_while_one_job_evaluates_and_writes_loses_and_repeats_nothing(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("sliding", discard=("late",))
    for batch, point in ((1, "after_state_write"), (2, "in_sink"), (3, "before_commit")):
        kill_process(job, f"{point}:{batch}")
    finish(spark, job)
    assert_same(outputs(job), {"default": undisturbed("sliding")["default"]})


@pytest.mark.crash
@pytest.mark.parametrize(("name", "batch"), [(name, number % BATCHES) for number, name in enumerate(DEFINITIONS)])
def test_a_worker_killed_during_its_turn_is_replaced_and_the_turn_repeated(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed, tmp_path: Path, name: str, batch: int
) -> None:
    job, hit = job_of(name), tmp_path / "hit"
    variables = {"WINDOWING_FAILPOINT": f"kill_worker:{batch}", "WINDOWING_FAILPOINT_ONCE": str(hit)}
    with worker_environment(spark, **variables):
        finish(spark, job)
    assert hit.exists(), "no worker was killed"
    assert_recovered(job, undisturbed)


@pytest.mark.crash
def test_a_driver_whose_jvm_is_killed_ends_and_loses_and_repeats_nothing(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("counting")
    kill_jvm(job, batch=1)
    finish(spark, job)
    assert_recovered(job, undisturbed)


@pytest.mark.crash(minutes=2.5)
def test_a_second_kill_during_the_recovery_changes_nothing(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("counting")
    kill_process(job, "before_commit:2")
    kill_process(job, "after_state_write:2")
    kill_process(job, "before_state_write:4")
    finish(spark, job)
    assert_recovered(job, undisturbed)


@pytest.mark.crash(minutes=2.5)
def test_a_drain_interrupted_by_a_kill_is_finished_by_the_next_start(
    spark: SparkSession, job_of: Jobs, undisturbed: Undisturbed
) -> None:
    job = job_of("aggregate")
    kill_process(job, f"after_state_write:{DRAIN}")
    kill_process(job, f"before_commit:{DRAIN}")
    finish_process(job)
    assert_recovered(job, undisturbed)
