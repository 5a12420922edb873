"""Topologies on Spark that read Redis streams and RabbitMQ queues are killed: no row is lost, repeated or acked early."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import topology_job
from tests.crash.harness import kill_process, outputs
from tests.crash.test_topology_killed import assert_nothing_acked_early, assert_recovered, finish, told, undisturbed_run
from tests.crash.topology_job import BATCHES, DRAIN, input_rows, root_of_row
from tests.services import queue_job, trident_queue_job
from tests.services.queue_job import ServerJob
from tests.services.trident_queue_job import KINDS, QueuesJob, start, states

for module in (topology_job, queue_job, trident_queue_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests


def prepared(folder: Path, kind: str) -> ServerJob:
    job = ServerJob(str(folder), kind)
    folder.mkdir()
    job.fill()
    return job


@pytest.mark.crash(minutes=2)
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
def test_a_topology_on_a_server_queue_killed_at_any_point_loses_repeats_and_acks_early_no_row(
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


def assert_no_row_of_trident_lost_or_acked_early(job: QueuesJob) -> None:
    """Check that each root was acked after the commit of its batch, and that each acked row is in the states, once."""
    committed = max((int(path.name) for path in (job.checkpoint / "commits").glob("[0-9]*")), default=-1)
    ids = states(job)["state2"]
    for kind, queue in job.queues.items():
        for root, then in told(queue):
            assert root <= then, f"{kind}: batch {root} was acked when only batch {then} was committed"
        left = {row[0] for row in queue.queue().rows()}
        acked = {row[0] for row in input_rows()} - left
        assert all(root_of_row(id) <= committed and ids[(kind, id)] == 1 for id in acked), f"{kind}: acked too early"


@pytest.mark.crash(minutes=2.5)
def test_a_trident_topology_on_server_queues_killed_at_any_point_counts_each_row_once_and_acks_none_early(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = QueuesJob(str(tmp_path))
    for queue in job.queues.values():
        queue.fill()
    for point in ("after_state_commit:0", "after_ledger:1", "before_ack:1", "after_ack:2"):
        kill_process(job, point)
        assert_no_row_of_trident_lost_or_acked_early(job)
    query = start(spark, job)
    assert query.await_end(240)
    assert_no_row_of_trident_lost_or_acked_early(job)
    rows = [(kind, id, key) for kind in KINDS for id, key, *_ in input_rows()]
    found = states(job)
    assert found["state1"] == Counter((kind, key) for kind, _, key in rows)
    assert found["state2"] == dict.fromkeys(((kind, id) for kind, id, _ in rows), 1)
    written = [tuple(row.values()) for batch in outputs(job)["rows"].values() for row in batch]
    assert sorted(written) == sorted(rows)
    for queue in job.queues.values():
        assert len(queue.queue()) == 0
        times = Counter(root for root, _ in told(queue))
        assert set(times) == set(range(BATCHES))
        assert times[1] == 1, "that of batch 0 is noted with batch 1, that of batch 2 after all: the driver died before"
