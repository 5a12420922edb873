"""A topology on a queue that the crash tests kill and restart: `python -m tests.crash.topology_job '{"folder": ...}'`.

    events (a queue, 40 rows a batch) -> clean (over columns) -> tried -> count (sliding, by key) -> top (tumbling, one task)
                                                  dead letters --+   |      +-- late
                                                                     +--> seen (stateful, by key)
Every ack that the queue receives is a line of `<folder>/told.jsonl`, with the last batch that was committed then.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from windowing import FailedException, millis, seconds, sliding, tumbling
from windowing.spark import FileSink, Root, Sink, SqliteQueue, WindowedQuery, session, submit
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt
from windowing.topology.plan import Topology

FIELDS = "id long, key string, at long, value double"
BATCHES = 3
DRAIN = BATCHES
SINKS = ("count", "count.late", "seen", "top", "tried.dead_letters")
_PER_BATCH = 40
_QUIET = {"spark.log.level": "ERROR"}


@dataclass(frozen=True)
class TopologyJob:
    """One run; `folder` holds its queue, its checkpoint and its output."""

    folder: str
    module: ClassVar[str] = "tests.crash.topology_job"

    @property
    def checkpoint(self) -> Path:
        return Path(self.folder, "checkpoint")

    @property
    def out(self) -> Path:
        return Path(self.folder, "out")

    @property
    def told(self) -> Path:
        return Path(self.folder, "told.jsonl")

    def queue(self) -> Any:
        return ToldQueue(self)

    def sinks(self) -> dict[str, Sink]:
        return {name: FileSink(str(self.out / name)) for name in SINKS}

    def plain(self) -> str:
        return json.dumps(asdict(self))


class ToldQueue(SqliteQueue):
    """A queue that writes each call to a file before it performs it."""

    def __init__(self, job: TopologyJob) -> None:
        super().__init__(Path(job.folder, "queue.db"), FIELDS, partitions=2, max_rows=_PER_BATCH)
        self.commits, self.told = str(job.checkpoint / "commits"), str(job.told)

    def ack(self, root: Root) -> None:
        note(self, root)
        super().ack(root)


def note(queue: Any, root: Root) -> None:
    """Write a call of the queue for a root to a file; `commits` is Spark's log."""
    committed = max((int(name) for name in os.listdir(queue.commits) if name.isdigit()), default=-1)
    with open(queue.told, "a") as out:
        out.write(json.dumps({"root": root.batch, "committed": committed}) + "\n")
        out.flush()
        os.fsync(out.fileno())


def input_rows() -> list[tuple[Any, ...]]:
    """Return rows whose ids count from 1, out of order, some late; random doubles of very different sizes."""
    chance = random.Random(7)
    rows = []
    for number in range(1, BATCHES * _PER_BATCH + 1):
        batch = (number - 1) // _PER_BATCH
        at = 100_000 + batch * 10_000 + chance.randrange(10_000) - chance.randrange(3_000)
        if chance.random() < 0.05:
            at -= 40_000
        rows.append((number, f"key-{chance.randrange(4)}", at, chance.random() * 10.0 ** chance.randrange(-8, 9)))
    return rows


def root_of_row(number: int) -> int:
    """Return the batch that takes the row of this id."""
    return (number - 1) // _PER_BATCH


def is_dead(number: int) -> bool:
    """Return whether the row of this id becomes a dead letter."""
    return number % 29 == 0


@bolt(output=FIELDS, columnar="arrow")
def clean(rows: Any) -> Any:
    return rows


@bolt(output=FIELDS)
def tried(tuple: Any) -> Any:
    if is_dead(tuple.id):
        raise FailedException("it is given up")
    return tuple.get_values()


@sliding(
    seconds(10),
    seconds(5),
    timestamp="at",
    lag=seconds(2),
    key="key",
    late_stream="late",
    output="key string, ends long, ids array<long>, total double",
)
def count(window: Any) -> Any:
    total = 0.0
    for row in window:
        total += row.value
    return window.key, window.end_timestamp, [row.id for row in window], total


@tumbling(seconds(15), timestamp="ends", output="ends long, keys array<string>, ids array<long>, total double")
def top(window: Any) -> Any:
    rows = sorted(window, key=lambda row: (row.ends, row.key))
    total = 0.0
    for row in rows:
        total += row.total
    return window.end_timestamp, [row.key for row in rows], sorted({i for row in rows for i in row.ids}), total


@bolt(output="key string, n long, id long")
class Seen:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        n = self.state.get(tuple.key, 0) + 1
        self.state.put(tuple.key, n)
        return tuple.key, n, tuple.id


def topology() -> Topology:
    builder = TopologyBuilder("crash")
    builder.configure(enable_message_timeouts=False, max_attempts=2, retry_delay=millis(1))
    builder.set_spout("events", InputSpout(FIELDS))
    builder.set_bolt("clean", clean).shuffle_grouping("events")
    builder.set_bolt("tried", tried).local_or_shuffle_grouping("clean")
    builder.set_bolt("count", count, 2).fields_grouping("tried", "key")
    builder.set_bolt("seen", Seen, 2).fields_grouping("tried", "key")
    builder.set_bolt("top", top).global_grouping("count")
    return builder.build()


def start(spark: SparkSession, job: TopologyJob) -> WindowedQuery:
    """Start the job's query in a session."""
    given = {"sources": {"events": job.queue()}, "sinks": job.sinks(), "checkpoint": str(job.checkpoint)}
    return submit(topology(), spark, **given, drain=True, partitions=1)


def run(job: TopologyJob) -> int:
    """Run the job to its end, in a process of its own."""
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())  # before the JVM starts: the workers inherit it
    spark = session("crash-topology", cores=2, **_QUIET)
    try:
        assert start(spark, job).await_end(240), "the query does not end"
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run(TopologyJob(**json.loads(sys.argv[1]))))
