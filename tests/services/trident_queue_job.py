"""A Trident topology on Spark on three queues of servers at once: `python -m tests.services.trident_queue_job '{"folder": ...}'`.

    a stream of Redis -----------+
    a queue of RabbitMQ, spooled +--> merge --by key--> counts (opaque)
    a stream of RabbitMQ, spooled+      |  +--by id---> ids (transactional)
                                        +--> sink "rows"
All states are in one SQLite file. Acks are recorded as in queue_job.py, by kind of queue.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from tests.crash.topology_job import FIELDS
from tests.services.queue_job import ServerJob
from windowing.spark import FileSink, WindowedQuery, session, submit_trident
from windowing.stores import SqliteStore, map_state
from windowing.topology.components import InputSpout
from windowing.trident import Count, TridentTopology
from windowing.trident.kinds import StateType

KINDS = ("redis", "classic", "stream")


@dataclass(frozen=True)
class QueuesJob:
    """One run; `folder` holds its spools, its checkpoint, its states and its output."""

    folder: str
    module: ClassVar[str] = "tests.services.trident_queue_job"

    @property
    def queues(self) -> dict[str, ServerJob]:
        return {kind: ServerJob(self.folder, kind) for kind in KINDS}

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def out(self) -> Path:
        return Path(self.folder, "out")

    def plain(self) -> str:
        return json.dumps(asdict(self))


def topology_of(job: QueuesJob) -> TridentTopology:
    topology, store = TridentTopology("killed"), SqliteStore(Path(job.folder, "states.db"))
    streams = [
        topology.new_stream(kind, InputSpout(FIELDS)).map(
            lambda row, kind=kind: (kind, row.id, row.key), "kind string, id long, key string"
        )
        for kind in KINDS
    ]
    rows = topology.merge(*streams)
    rows.sink("rows")
    counts = rows.group_by("kind", "key").persistent_aggregate(map_state(store, "counts"), None, Count(), "n long")
    counts.parallelism_hint(2)
    once = map_state(store, "ids", StateType.TRANSACTIONAL)
    rows.group_by("kind", "id").persistent_aggregate(once, None, Count(), "n long").parallelism_hint(2)
    return topology


def states(job: QueuesJob) -> dict[str, dict[Any, int]]:
    """Return the content of the states, over all partitions."""
    found: dict[str, dict[Any, int]] = {}
    for id, state in topology_of(job).build().states.items():
        for part in range(state.partitions):
            opened = state.factory.make_state(part, state.partitions)
            found.setdefault(id, {}).update(opened.items())
            opened.close()
    return found


def start(spark: SparkSession, job: QueuesJob) -> WindowedQuery:
    """Start the job, or continue it."""
    return submit_trident(
        topology_of(job),
        spark,
        sources={kind: queue.queue() for kind, queue in job.queues.items()},
        sinks={"rows": FileSink(str(job.out / "rows"))},
        checkpoint=str(job.checkpoint),
        partitions=1,
    )


def main(argument: str) -> int:
    job = QueuesJob(**json.loads(argument))
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())  # before the JVM starts: the workers inherit it
    spark = session("crash-trident-queues", cores=2, **{"spark.log.level": "ERROR"})
    try:
        assert start(spark, job).await_end(240), "the query does not end"
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
