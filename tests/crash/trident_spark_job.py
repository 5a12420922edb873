"""A Trident topology on Spark for the crash tests to kill and to start again: `python -m tests.crash.trident_spark_job '{...}'`.

    events (files) --by key--> counts (opaque, 2 partitions) --new values--> sink "counts"
           |  +----shuffle---> all (transactional, one value)
           +-------by key----> windows --> sink "windows" --> sums (opaque)
All states lie in one SQLite file, or in a database.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from tests.crash.job import FILES_PER_BATCH
from windowing import seconds
from windowing.spark import FileSink, Sink, WindowedQuery, failpoints, session, submit_trident
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.postgres import PostgresMap, PostgresStore
from windowing.stores.sqlite import SqliteStore
from windowing.topology.components import InputSpout
from windowing.trident import builtins as b
from windowing.trident.fence import Claim, Fence, PartitionId, StateRow
from windowing.trident.kinds import StateType
from windowing.trident.streams import TridentTopology

FIELDS = "id long, key string, at long, value double"


@dataclass(frozen=True)
class TridentJob:
    """One run; `folder` holds its checkpoint, its states and its output."""

    source: str
    folder: str
    postgres: str = ""
    module: ClassVar[str] = "tests.crash.trident_spark_job"

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def out(self) -> Path:
        return Path(self.folder, "out")

    @property
    def store(self) -> SqliteStore | PostgresStore:
        return PostgresStore(self.postgres) if self.postgres else SqliteStore(Path(self.folder, "states.db"))

    def sinks(self) -> dict[str, Sink]:
        return {name: FileSink(str(self.out / name)) for name in ("counts", "windows")}

    def plain(self) -> str:
        return json.dumps(asdict(self))


class LateMap(PostgresMap):
    """Rows of a partition whose first write of batch 1 comes to a failpoint behind what it has read."""

    def _write(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None) -> Fence | None:
        if claim is not None and claim.fence.attempt.txid == 2:
            failpoints.hit("after_state_commit", 1)
        return super()._write(rows, claim)


class LateStore(PostgresStore):
    """A database whose writes may come late."""

    def open(self, place: PartitionId) -> PostgresMap:
        return LateMap(self.url, place, self.patience_s, self.view)


class LateWriteJob(TridentJob):
    """The job on such a database."""

    @property
    def store(self) -> PostgresStore:
        return LateStore(self.postgres)


def topology_of(job: TridentJob) -> TridentTopology:
    """Return the topology over the job's store."""
    topology, store = TridentTopology("killed"), job.store
    rows = topology.new_stream("events", InputSpout(FIELDS))
    counts = rows.group_by("key").persistent_aggregate(map_state(store, "counts"), None, b.Count(), "n long")
    counts.parallelism_hint(2).new_values_stream().sink("counts")
    once = snapshot_state(store, "all", StateType.TRANSACTIONAL)
    rows.shuffle().map(lambda row: row.id, "id long").parallelism_hint(2).persistent_aggregate(
        once, "id", b.Sum(), "n long"
    )
    timed = rows.filter(lambda row: row.at is not None and row.at < 2**50).group_by("key")
    windows = timed.tumbling_window(seconds(10), None, b.Count(), "n long", timestamp="at").parallelism_hint(2)
    windows.sink("windows")
    windows.group_by("key").persistent_aggregate(map_state(store, "sums"), "n", b.Sum(), "n long")
    return topology


def states(job: TridentJob) -> dict[str, Any]:
    """Return what the states hold, without the txids and attempts of their rows."""
    found: dict[str, Any] = {}
    for id, state in topology_of(job).build().states.items():
        for part in range(state.partitions):
            opened = state.spec.factory.make_state(part, state.partitions)
            found[f"{id}/{part}"] = dict(opened.items()) if hasattr(opened, "items") else opened.get()
            opened.close()
    return found


def start(spark: SparkSession, job: TridentJob) -> WindowedQuery:
    """Start the job, or go on with it."""
    source = spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(job.source)
    return submit_trident(
        topology_of(job),
        spark,
        sources={"events": source},
        sinks=job.sinks(),
        checkpoint=str(job.checkpoint),
        drain=True,
    )


def main(argument: str) -> int:
    job = TridentJob(**json.loads(argument))
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())  # before the JVM starts: the workers inherit it
    spark = session("crash-trident", cores=2, **{"spark.log.level": "ERROR"})
    try:
        assert start(spark, job).await_end(240), "the query does not end"
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
