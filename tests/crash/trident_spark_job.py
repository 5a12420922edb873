"""A Trident topology on Spark that the crash tests kill and restart: `python -m tests.crash.trident_spark_job '{...}'`.

    events (files) --by key--> counts (opaque, 2 partitions) --new values--> sink "counts"
           |  +----shuffle---> all (transactional, one value)
           +-------by key----> windows --> sink "windows" --> sums (opaque)
All states are in one SQLite file, or in a database.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
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
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import StateType, TransactionAttempt
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
    """Rows of a partition that record the calls of batch 1 after their worker was stopped for a while.

    The worker stops before it reads the fence (the failpoint before_claim), or between that read and the write (after_claim).
    """

    def __init__(self, store: LateStore, place: PartitionId) -> None:
        super().__init__(store.url, place, store.patience_s, store.view)
        self._notes = Path(store.folder, "late")
        self._is_late = False

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        if undo is not None and undo.txid == 2:
            self._may_stop("before_claim")
        reading = super().multi_get(keys, undo)
        self._note(f"read {reading.fence and reading.fence.attempt}")
        return reading

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        if claim is not None and claim.fence.attempt.txid == 2:
            self._may_stop("after_claim")
        refused = super().multi_put(rows, claim)
        self._note("wrote" if refused is None else f"refused by {refused.attempt}")
        return refused

    def _may_stop(self, point: str) -> None:
        before = time.monotonic()
        failpoints.hit(point, 1)
        self._is_late = self._is_late or time.monotonic() - before > 2

    def _note(self, what: str) -> None:
        if self._is_late:
            with self._notes.open("a") as out:
                out.write(f"{what}\n")


@dataclass(frozen=True, repr=False)
class LateStore(PostgresStore):
    """A database for LateMap; `folder` holds its records."""

    folder: str = ""

    def open(self, place: PartitionId) -> PostgresMap:
        return LateMap(self, place)


class LateJob(TridentJob):
    """The job on such a database; `late` has the results of a worker that was late."""

    @property
    def store(self) -> PostgresStore:
        return LateStore(self.postgres, folder=self.folder)

    @property
    def late(self) -> Path:
        return Path(self.folder, "late")


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
    """Return the content of the states, without the txids and attempts of their rows."""
    found: dict[str, Any] = {}
    for id, state in topology_of(job).build().states.items():
        for part in range(state.partitions):
            opened = state.factory.make_state(part, state.partitions)
            found[f"{id}/{part}"] = dict(opened.items()) if hasattr(opened, "items") else opened.get()
            opened.close()
    return found


def start(spark: SparkSession, job: TridentJob) -> WindowedQuery:
    """Start or continue the job."""
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
