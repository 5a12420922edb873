"""A topology on Spark on a stream of Redis or a queue of RabbitMQ, killed: nothing is lost or repeated or acked early."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import topology_job
from tests.crash.harness import kill_process
from tests.crash.test_topology_killed import assert_nothing_acked_early, assert_recovered, finish, told, undisturbed_run
from tests.crash.topology_job import DRAIN
from tests.services import queue_job
from tests.services.queue_job import ServerJob

for module in (topology_job, queue_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests


def prepared(folder: Path, kind: str) -> ServerJob:
    job = ServerJob(str(folder), kind)
    folder.mkdir()
    job.fill()
    return job


@pytest.mark.crash(minutes=5)
@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("redis", ("in_sink:0", "before_ledger:1", "before_ack:2", f"after_ledger:{DRAIN}")),
        ("redis", ("before_batch:1", "before_commit:1", "after_ack:2")),
        ("classic", ("after_state_write:1", "before_commit:2", "after_ack:2", f"before_ack:{DRAIN}")),
        ("classic", ("in_sink:1", "after_ledger:2")),
        ("stream", ("in_sink:1", "before_commit:2", "before_ack:2", f"after_ack:{DRAIN}")),
    ],
)
def test_a_topology_on_a_queue_of_a_server_killed_at_any_point_loses_and_repeats_nothing_and_acks_nothing_early(
    spark: SparkSession, tmp_path: Path, kind: str, points: tuple[str, ...]
) -> None:
    wanted, done = undisturbed_run(spark, prepared(tmp_path / "undisturbed", kind))
    job = prepared(tmp_path / "job", kind)
    for point in points:
        kill_process(job, point)
        assert_nothing_acked_early(job, done)
    finish(spark, job)
    assert_recovered(job, (wanted, done))
    again = {root for root, times in Counter(root for root, _ in told(job)).items() if times > 1}
    was_told = {batch for name, batch in (point.split(":") for point in points) if name == "after_ack"}
    assert {str(done[root]) for root in again} <= was_told, "acked once, unless the driver died before it noted that"
