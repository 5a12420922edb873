"""Trident spouts as sources on Spark: each row counts once, also if a batch is replayed with other rows after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from windowing.errors import CheckpointError, ConfigError, FailedException
from windowing.spark import FunctionSink, MemorySink, submit_trident
from windowing.stores.factory import map_state
from windowing.stores.sqlite import SqliteRecordStore, SqliteStore
from windowing.trident import builtins as b
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.spouts import (
    FixedBatchSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import seconds

pytestmark = pytest.mark.python_source

SIZES = {"x": 9, "y": 4, "z": 0}
LAST = 5


class Source(PartitionedCoordinator, PartitionedEmitter):
    """Partitions of numbered rows; the size of a new batch depends on its attempt; the last batch has all remaining rows."""

    output = "k string, n long"

    def get_coordinator(self) -> Any:
        return self

    def get_emitter(self) -> Any:
        return self

    def get_partitions_for_batch(self) -> list[str]:
        return sorted(SIZES)

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= LAST else Readiness.ENDED

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        left = SIZES[partition] - start
        end = start + (left if attempt.txid == LAST else min(left, 1 + attempt.attempt))
        self.emit_partition_batch(attempt, collector, partition, [start, end])
        return [start, end]

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        for number in range(*metadata):
            collector.emit((f"{partition}{number}", 1))


class Transactional(Source, IPartitionedTridentSpout):
    pass


class Opaque(Source, IOpaquePartitionedTridentSpout):
    pass


def counted(tmp_path: Path, spout: Any, tasks: int = 1) -> TridentTopology:
    topology = TridentTopology("rows")
    rows = topology.new_stream("in", spout).parallelism_hint(tasks)
    state = map_state(SqliteStore(tmp_path / "states.db"), "counts")
    rows.group_by("k").persistent_aggregate(state, "n", b.Sum(), "n long").new_values_stream().sink("out")
    return topology


def values(topology: TridentTopology) -> dict[Any, Any]:
    (state,) = topology.build().states.values()
    opened = state.factory.make_state(0, state.partitions)
    try:
        return dict(opened.items())
    finally:
        opened.close()


@pytest.mark.parametrize("kind", [Transactional, Opaque])
def test_each_row_of_a_partitioned_spout_counts_once_over_a_restart(
    spark: SparkSession, tmp_path: Path, kind: type[Any]
) -> None:
    topology = counted(tmp_path, kind(), tasks=2)
    written: dict[int, list[Any]] = {}

    def full(rows: DataFrame, batch: int) -> None:
        if batch == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            raise RuntimeError("the disk is full")
        written[batch] = sorted(map(tuple, rows.collect()))

    def run() -> None:
        records = SqliteRecordStore(tmp_path / "records.db")
        options: dict[str, Any] = {"records": records, "checkpoint": str(tmp_path / "checkpoint")}
        try:
            query = submit_trident(topology, spark, sinks={"out": FunctionSink(full)}, **options)
            assert query.await_end(200)
        finally:
            records.close()

    with pytest.raises(Exception, match="the disk is full"):
        run()
    begun = values(topology)
    run()
    wanted = {(f"{partition}{number}",): 1 for partition, size in SIZES.items() for number in range(size)}
    assert set(begun) < set(wanted)
    assert values(topology) == wanted
    assert sorted(row for rows in written.values() for row in rows) == sorted((*key, 1) for key in wanted)
    third = {"x2", "y2"} if kind is Transactional else {"x2", "x3", "y2", "y3"}
    assert {key for key, _ in written[2]} == third, "an opaque batch is cut anew, a transactional one is the same"


def test_each_row_of_a_fixed_batch_spout_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5)]
    topology = counted(tmp_path, FixedBatchSpout("k string, n long", 2, rows))
    sink, records = MemorySink(), SqliteRecordStore(tmp_path / "records.db")
    query = submit_trident(
        topology, spark, sinks={"out": sink}, records=records, checkpoint=str(tmp_path / "checkpoint")
    )
    assert query.await_end(200)
    records.close()
    assert {batch: sorted(map(tuple, found)) for batch, found in sink.batches.items()} == {
        0: [("a", 1), ("b", 2)],
        1: [("a", 4), ("c", 4)],
        2: [("a", 9)],
    }
    assert values(topology) == {("a",): 9, ("b",): 2, ("c",): 4}


def test_records_of_another_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    topology = counted(tmp_path, Transactional())

    def run(name: str) -> None:
        records = SqliteRecordStore(tmp_path / name)
        try:
            options: dict[str, Any] = {"records": records, "checkpoint": str(tmp_path / "checkpoint")}
            assert submit_trident(topology, spark, discard=("out",), **options).await_end(200)
        finally:
            records.close()

    run("records.db")
    before = values(topology)
    (tmp_path / "checkpoint" / "commits" / str(LAST - 1)).unlink()  # the last batch is replayed
    with pytest.raises(CheckpointError, match=r"is asked for its batch 5, but the last one in records is none"):
        run("others.db")
    assert values(topology) == before


def test_records_beside_a_source_for_each_stream_are_named_as_without_effect(
    spark: SparkSession, tmp_path: Path, feed: Any, caplog: Any
) -> None:
    rows = feed("k string, n long").add([{"k": "a", "n": 1}]).read()
    records = SqliteRecordStore(tmp_path / "records.db")
    options: dict[str, Any] = {"sources": {"in": rows}, "records": records, "checkpoint": str(tmp_path / "checkpoint")}
    query = submit_trident(counted(tmp_path, Transactional()), spark, discard=("out",), **options)
    assert query.await_end(200)
    records.close()
    said = "topology 'rows': records= has no effect, because no stream is fed by its own spout"
    assert said in [each.getMessage() for each in caplog.records]


class Failing(Transactional):
    def emit_partition_batch_new(self, attempt: TransactionAttempt, *arguments: Any) -> Any:
        raise FailedException(f"no connection for batch {attempt.txid}")


def test_a_failed_exception_of_a_spout_is_raised_with_its_message(spark: SparkSession, tmp_path: Path) -> None:
    topology = counted(tmp_path, Failing()).configure(max_attempts=2, retry_delay=seconds(0))
    options: dict[str, Any] = {"sinks": {"out": MemorySink()}, "checkpoint": str(tmp_path / "checkpoint")}
    with pytest.raises(ConfigError, match=r"fed by its own spout.*records=SqliteRecordStore"):
        submit_trident(topology, spark, **options)
    with pytest.raises(
        ConfigError, match=r"records is a store of records, got 'r\.db'; give SqliteRecordStore\(path\)"
    ):
        submit_trident(topology, spark, records="r.db", **options)  # type: ignore[arg-type]
    records = SqliteRecordStore(tmp_path / "records.db")
    with pytest.raises(FailedException, match=r"spout 'in': batch 1 failed 2 times.*no connection for batch 1"):
        submit_trident(topology, spark, records=records, **options).await_end(200)
    records.close()
