"""Rows that an executor kept for the sinks and that are lost: made again, or, without a fixed order, with the whole batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from windowing.errors import FailedException
from windowing.spark import FunctionSink, MemorySink, assembly, submit, submit_trident, windowed
from windowing.spark.exchange import evaluated_part
from windowing.spark.operator import has_no_fixed_order
from windowing.spark.trident_commits import Attempts
from windowing.spark.writer import BatchWriter
from windowing.stores.factory import map_state, snapshot_state
from windowing.stores.sqlite import SqliteStore
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, tumbling
from windowing.trident import builtins as b
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.states import StateUpdater
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import count, seconds

ROWS = "n long, ts long"


@tumbling(count(2), timestamp="ts", output="held array<long>")
def pairs(window: Any) -> tuple[list[int]]:
    return ([row.n for row in window],)


class Turning:
    """Gives the rows of a partition in order, and from the second reading on in the reverse order. `folder`: for its notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(list(batches), pa.schema([("n", pa.int64()), ("ts", pa.int64())]))
        if rows.num_rows:
            note = Path(self.folder, f"read-{min(rows.column('n').to_pylist())}")
            rows = rows.sort_by([("n", "descending" if note.exists() else "ascending")])
            with note.open("a") as out:
                out.write("x")
        yield from rows.to_batches()


def lose_shuffle_files(context: Any) -> None:
    cleaner, newest = context._jsc.sc().cleaner().get(), context._jsc.sc().newShuffleId()
    for shuffle in range(max(0, newest - 20), newest):
        cleaner.doCleanupShuffle(shuffle, True)


class Losing:
    """Loses the kept rows and the files of all shuffles before it reads the rows of a batch for the first time."""

    def __init__(self) -> None:
        self.batches: dict[int, list[list[int]]] = {}
        self.lost: set[int] = set()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if batch_id not in self.lost:
            self.lost.add(batch_id)
            context: Any = rows.sparkSession.sparkContext
            for kept in context._jsc.getPersistentRDDs().values():
                kept.unpersist(True)
            lose_shuffle_files(context)
        self.batches[batch_id] = [row[0] for row in rows.collect()]


@pytest.fixture
def after_a_loss(feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path) -> Callable[..., list[list[int]]]:
    def start(**options: Any) -> list[list[int]]:
        rows = feed(ROWS).add(*([{"n": 3 * at + each, "ts": at} for each in range(3)] for at in range(2))).read()
        sink = Losing()
        turning = rows.repartition(1).mapInArrow(Turning(tmp_path), ROWS)
        done = run(pairs, turning, sinks={"default": FunctionSink(sink)}, drain=True, **options)
        assert sink.lost == set(sink.batches)
        assert sum(each.tuples_in for each in done.query.progress) == 6, (
            "rows that are made again are not counted again"
        )
        assert done.query.metrics().components()["pairs"].executed == 6
        return [held for batch in sorted(sink.batches) for held in sink.batches[batch]]

    return start


def test_lost_rows_without_a_fixed_order_are_made_again_with_the_state_of_their_batch(
    after_a_loss: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    found = after_a_loss()
    assert sorted(n for held in found for n in held) == list(range(6)), found
    assert all(len(note.read_text()) > 1 for note in tmp_path.glob("read-*")), "each batch was read again"


def test_lost_rows_with_a_fixed_order_are_made_again_in_the_same_batch(
    after_a_loss: Callable[..., list[list[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    assert after_a_loss(order_by="n") == [[0, 1], [2, 3], [4, 5]]
    assert "run again" not in caplog.text


def test_fused_bolts_count_each_tuple_once_if_a_sinks_rows_are_made_again_by_fewer_tasks(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    rows = (
        feed(ROWS, per_batch=2).add(*([{"n": 3 * at + each, "ts": at} for each in range(3)] for at in range(2))).read()
    )
    builder = TopologyBuilder("copies")
    builder.set_spout("in", InputSpout(ROWS))
    builder.set_bolt("copy", bolt(output="n long")(lambda tuple: [(tuple["n"],)])).shuffle_grouping("in")
    sink = Losing()
    query = submit(
        builder.build(),
        spark,
        sources={"in": rows.where("n < 3").union(rows.where("n >= 3"))},
        sinks={"copy": FunctionSink(sink)},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert query.await_end(120)
    assert (sink.lost, sorted(sink.batches[0])) == ({0}, list(range(6)))
    found = query.metrics().components()
    assert (found["copy"].executed, found["copy"].emitted, found["in"].emitted) == (6, {"default": 6}, {"default": 6})


@pytest.mark.parametrize("in_topology", [False, True])
def test_the_tasks_of_windows_are_the_last_stage_of_the_job_that_evaluates_a_batch_also_if_its_counts_are_not_observed(
    in_topology: bool,
    spark: SparkSession,
    feed: Callable[..., Any],
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark ends such a job if lost shuffle files come again in another order; a stage inside it would go on with both orders."""

    def evaluated(writer: BatchWriter, output: DataFrame) -> Any:
        found = real(writer, output)
        context = output.sparkSession.sparkContext
        tracker = context.statusTracker()
        first = min(tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")))
        stages.append(len(tracker.getJobInfo(first).stageIds))
        return found

    real, stages, sink = BatchWriter._evaluated, list[int](), MemorySink()
    monkeypatch.setattr(BatchWriter, "_evaluated", evaluated)
    # as with acks, or in a session without visibility tracking
    monkeypatch.setattr(assembly, "counts_once", lambda _: False)
    rows = feed(ROWS).add([{"n": n, "ts": n} for n in range(4)]).read()
    if in_topology:
        builder = TopologyBuilder("counted")
        builder.set_spout("in", InputSpout(ROWS))
        builder.set_bolt("pairs", pairs).global_grouping("in")
        places = {"sources": {"in": rows}, "sinks": {"pairs": sink}, "checkpoint": str(tmp_path / "checkpoint")}
        assert submit(builder.build(), spark, **places).await_end(120)
    else:
        run(pairs, rows, sinks={"default": sink})
    assert [row.held for row in sink.rows] == [[0, 1], [2, 3]]
    assert stages[0] == 2, "one in front of the shuffle to the tasks, and that of the tasks"


class FailsAtFirst:
    """The function of a window: fails with number 0 as often as Spark tries a task, each time once the other task has fired."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, window: Any) -> list[tuple[int]]:
        numbers, done = [row.n for row in window], Path(self.folder, "fired")
        failed = list(Path(self.folder).glob("failed*"))
        if 0 in numbers and len(failed) < 4:
            while not done.exists():
                time.sleep(0.01)
            Path(self.folder, f"failed{len(failed)}").touch()
            raise FailedException("not at first")
        done.touch()
        return [(n,) for n in numbers]


def test_windows_of_trident_that_are_kept_from_an_attempt_are_not_mixed_with_rows_in_another_order(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round robin to two tasks: one has fired, the other has failed, and the rows for it come in the reverse order."""

    def claim(attempts: Attempts, txid: int) -> TransactionAttempt:
        claimed.append(found := real(attempts, txid))
        if len(claimed) == 2:
            lose_shuffle_files(spark.sparkContext)
        return found

    real, claimed, sink = Attempts.claim, list[TransactionAttempt](), MemorySink()
    monkeypatch.setattr(Attempts, "claim", claim)
    topology = TridentTopology("turning").configure(retry_delay=seconds(0))
    rows = topology.new_stream("in", InputSpout(ROWS)).shuffle()
    windows = rows.tumbling_window(count(3), None, FailsAtFirst(tmp_path), "n long").parallelism_hint(2)
    windows.sink("fired")
    windows.persistent_aggregate(snapshot_state(SqliteStore(tmp_path / "states.db"), "all"), "n", b.Sum(), "n long")
    source = feed(ROWS).add([{"n": n, "ts": n} for n in range(6)]).read()
    query = submit_trident(
        topology,
        spark,
        sources={"in": source.repartition(1).mapInArrow(Turning(tmp_path), ROWS)},
        sinks={"fired": sink},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert query.await_end(120)
    assert sorted(row.n for row in sink.rows) == list(range(6))
    assert [each.attempt for each in claimed if each.txid == 1] == [0, 1, 2]


class FailsOnce:
    """A function right behind the source: fails in the first attempt."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __call__(self, row: Any) -> bool:
        if self.note.exists():
            return True
        self.note.touch()
        raise FailedException("once")


class NotesWhatIsEvaluated(StateUpdater):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        state.multi_put([row.n for row in tuples], [evaluated_part()] * len(tuples))
        for row in tuples:
            collector.emit((row.n,))


def test_a_state_of_trident_that_another_one_reads_is_written_after_the_source_is_read(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    """If both were in one job, and an executor died with the files of its shuffles, Spark would read the source again, in another
    order, for the same attempt: the tasks that had written would keep what they had, and the others would write other rows.
    """
    store = SqliteStore(tmp_path / "states.db")
    numbers, total = map_state(store, "numbers"), snapshot_state(store, "total")
    topology = TridentTopology("turning").configure(retry_delay=seconds(0))
    rows = topology.new_stream("in", InputSpout(ROWS)).filter(FailsOnce(tmp_path / "failed")).shuffle()
    written = rows.partition_persist(numbers, "n", NotesWhatIsEvaluated(), "n long").parallelism_hint(2)
    written.new_values_stream().persistent_aggregate(total, "n", b.Sum(), "n long")
    source = feed(ROWS).add(*([{"n": n, "ts": n}, {"n": n + 1, "ts": n}] for n in (0, 2))).read().repartition(1)
    query = submit_trident(topology, spark, sources={"in": source}, checkpoint=str(tmp_path / "checkpoint"))
    assert query.await_end(120)
    found = dict(chain(numbers.make_state(0, 2).items(), numbers.make_state(1, 2).items()))
    assert found == dict.fromkeys(range(4), "stream")
    assert total.make_state(0, 1).get() == sum(range(4))


def test_rows_have_no_fixed_order_behind_a_shuffle(spark: SparkSession, feed: Callable[..., Any]) -> None:
    rows: DataFrame = feed(ROWS).read()
    kept = rows.selectExpr("n + 1 AS n", "ts").where("n > 1").withColumnRenamed("n", "m")
    for fixed in (rows, kept, rows.union(rows), rows.mapInArrow(Turning(Path("/")), ROWS), rows.alias("a")):
        assert not has_no_fixed_order(fixed)
    names = spark.createDataFrame([(1, "a")], "n long, name string")
    stamped = rows.withColumn("at", rows.ts.cast("timestamp")).withWatermark("at", "1 second")
    for loose in (
        rows.repartition(2),
        rows.repartition("n").where("n > 1"),
        rows.join(names, "n"),
        rows.dropDuplicates(["n"]),
        stamped.dropDuplicatesWithinWatermark(["n"]).select("n"),
        rows.union(rows.repartition(2)),
    ):
        assert has_no_fixed_order(loose)


class Starting:
    """Starts a query over rows behind a shuffle, and waits for its end, when it is given the rows of the first batch."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self.start, self.ended = start, False

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        assert rows.count()
        if batch_id == 0:
            self.ended = self.start().await_end(120)


def test_a_query_that_a_sink_starts_reads_the_rows_of_its_own_batches(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = feed(ROWS, "inner_rows").add([{"n": n, "ts": n} for n in range(4)]).read().repartition(1)
    found: list[list[int]] = []

    def start() -> Any:
        into = {"default": FunctionSink(lambda rows, _: found.extend(row.held for row in rows.collect()))}
        return windowed(pairs, inner, tasks=1).start(into, str(tmp_path / "inner"), drain=True)

    sink = Starting(start)
    run(
        pairs,
        feed(ROWS).add([{"n": 1, "ts": 1}, {"n": 2, "ts": 2}, {"n": 3, "ts": 9}]).read(),
        sinks={"default": FunctionSink(sink)},
    )
    assert (sink.ended, sorted(n for held in found for n in held)) == (True, [0, 1, 2, 3])
    assert "run again" not in caplog.text
