"""submit(): with the same input batches a topology emits the same rows in the same batches on LocalCluster and on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.execution.chains import clustered
from tests.test_times import ALL, AT, FORMS, Sees, makes, windows
from windowing.spark import MemorySink, ParquetSink, assembly, submit
from windowing.spark.submit import output_streams
from windowing.spark.writer import BatchWriter
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, tumbling
from windowing.topology.plan import Topology
from windowing.windows.measures import millis, seconds

WORDS = "word string, at long"
SENTENCES = [
    [("the cow jumped over the moon", 1_000), ("the moon", 12_000)],
    [("a late cow", 500), ("a cow", 25_000), ("the cow", 24_000)],
    [("over and over", 61_000)],
]


@bolt(output=WORDS)
def split(tuple: Any) -> Any:
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@tumbling(seconds(10), timestamp="at", key="word", late_stream="late", output="word string, end long, n long")
def count_words(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


def builder(**inputs: str) -> TopologyBuilder:
    made = TopologyBuilder("test")
    made.configure({"topology.enable.message.timeouts": False, "windowing.retry.delay.ms": 0})
    for name, fields in inputs.items():
        made.set_spout(name, InputSpout(fields))
    return made


Both = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def on_spark(spark: SparkSession, feed: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a topology over these batches; return the output of each batch, by sink name."""

    def run(topology: Topology, batches: dict[str, Sequence[Any]], drain: bool = True, **options: Any) -> Any:
        sources = {}
        for spout in topology.spouts:
            schema = spout.outputs["default"].schema
            fed = [[dict(zip(schema.names, row, strict=True)) for row in rows] for rows in batches[spout.id]]
            sources[spout.id] = feed(schema.ddl, name=f"in/{spout.id}").add(*fed).read()
        spouts = [spout.id for spout in topology.spouts]
        names = [name for name in output_streams(topology) if not name.endswith(".dead_letters") and name not in spouts]
        sinks = {name: MemorySink() for name in (*names, *options.pop("letters", ()))}
        checkpoint = str(tmp_path / "checkpoint")
        query = submit(topology, spark, sources=sources, sinks=sinks, checkpoint=checkpoint, drain=drain, **options)
        assert query.await_end(300)
        count = max(map(len, batches.values())) + drain
        found: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, sink in sinks.items():
            for batch, rows in sink.batches.items():
                found[batch][name] = [tuple(row) for row in rows]
        return found

    return run


@pytest.fixture
def same(on_spark: Callable[..., Any]) -> Both:
    def check(topology: Topology, drain: bool = True, **batches: Sequence[Any]) -> list[dict[str, Any]]:
        expected = clustered(topology, batches, drain=drain)
        for batch in expected:
            # A failed row is emitted again by the spout on LocalCluster; on Spark it waits at the bolt.
            for spout in topology.spouts:
                batch.pop(spout.id, None)
        assert any(expected), "the topology has to give something"
        found = on_spark(topology, batches, drain)
        assert [sets(batch) for batch in found] == [sets(batch) for batch in expected]
        return found

    return check


def sets(batch: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(rows, key=repr) for name, rows in batch.items()}


def test_word_count_with_late_words_and_a_drain_is_the_same_on_both_runtimes(same: Both) -> None:
    made = builder(sentences="sentence string, at long")
    made.set_bolt("split", split, 2).shuffle_grouping("sentences")
    made.set_bolt("count", count_words, 3).fields_grouping("split", "word")
    same(made.build(), sentences=SENTENCES)


@bolt(output="timestamp timestamp, at array<timestamp>")
def times(row: Any) -> Any:
    return row["timestamp"], [row["timestamp"]]


def test_a_declared_timestamp_has_a_zone_also_in_a_session_whose_timestamps_have_none(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        at = datetime(2026, 1, 31, 12, tzinfo=UTC)
        source = feed("timestamp timestamp_ltz").add([{"timestamp": at}]).read()
        made = builder(rows="timestamp timestamp")
        made.set_bolt("times", times).shuffle_grouping("rows")
        sink, checkpoint = ParquetSink(str(tmp_path / "out")), str(tmp_path / "checkpoint")
        query = submit(
            made.build(), spark, sources={"rows": source}, sinks={"times": sink}, checkpoint=checkpoint, drain=True
        )
        assert query.await_end(180)
        found = sink.read(spark)
        assert found.schema.simpleString() == "struct<timestamp:timestamp,at:array<timestamp>,batch_id:bigint>"
        memory = MemorySink()
        memory.write(found.drop("batch_id"), 0)
        assert [tuple(row) for row in memory.rows] == [(at, [at])]
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_times_in_any_form_are_the_same_for_bolts_windows_states_and_sinks_of_both_runtimes(
    on_spark: Callable[..., Any],
) -> None:
    made = builder(forms="form string")
    made.set_bolt("makes", makes, 2).shuffle_grouping("forms")
    made.set_bolt("sees", Sees, 2).fields_grouping("makes", "form")
    made.set_bolt("windows", windows).shuffle_grouping("makes")
    topology, forms = made.build(), {"forms": [[(form,) for form in FORMS]] * 2}
    for found, wanted in zip(on_spark(topology, forms)[:2], clustered(topology, forms)[:2], strict=True):
        for name in ("sees", "windows"):
            assert sorted(found[name]) == sorted(wanted[name])
            assert {(at.isoformat(), seen) for _, at, seen, _ in found[name]} == {(AT.isoformat(), ALL)}


def test_a_bolt_before_branches_and_a_diamond_runs_once_per_tuple(same: Both, tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    trace.touch()

    @bolt(output="n long, at long")
    def traced(tuple: Any) -> Any:
        with trace.open("a") as out:
            out.write(f"{tuple.n}\n")
        return tuple.n, tuple.at

    @bolt(output="n long, at long")
    def more(tuple: Any) -> Any:
        return tuple.n + 100, tuple.at

    @tumbling(millis(10), timestamp="at", output="n long, at long")
    def summed(window: Any) -> Any:
        return sum(t.n for t in window), window.end_timestamp

    made = builder(numbers="n long, at long")
    made.set_bolt("traced", traced).shuffle_grouping("numbers")
    made.set_bolt("left", more).shuffle_grouping("traced")
    made.set_bolt("right", summed).global_grouping("traced")
    made.set_bolt("joined", summed).global_grouping("left").global_grouping("right")
    made.set_bolt("again", more).shuffle_grouping("joined").shuffle_grouping("left")
    numbers = [[(n, 3 * n) for n in range(6)], [(n, 3 * n) for n in range(6, 12)]]
    topology = made.build()
    same(topology, numbers=numbers)
    calls = trace.read_text().split()
    assert sorted(calls) == sorted([str(n) for n in range(12)] * 2), "once on each runtime"


def test_all_items_of_a_state_larger_than_one_page_can_be_listed(same: Both, spark: SparkSession) -> None:
    @bolt(output="word string, known boolean, keys long, sum long")
    class Remembering:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> Any:
            known = tuple.word in self.state
            self.state.put(tuple.word, tuple.at)
            if tuple.word == "gone":
                self.state.delete("w3")
            found = list(self.state.items())
            assert found == sorted(found)
            return tuple.word, known, len(found), sum(at for _, at in found)

    made = builder(words=WORDS)
    made.set_bolt("remembering", Remembering).global_grouping("words")
    words = [[(f"w{n}", n) for n in range(14)], [("w2", 100), ("new", 5), ("gone", 0)], [("w3", 1)]]
    page = "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch"
    spark.conf.set(page, 7)  # the first batch leaves two pages, the second three
    try:
        found = same(made.build(), drain=False, words=words)
    finally:
        spark.conf.unset(page)
    assert [row[1:3] for row in found[1]["remembering"]] == [(True, 14), (False, 15), (False, 15)]
    assert found[2]["remembering"] == [("w3", False, 16, sum(range(14)) - 2 - 3 + 100 + 5 + 1)]


def test_columnar_bolts_emit_the_same_rows_on_spark_as_in_local_cluster(same: Both) -> None:
    @bolt(output=WORDS, columnar="arrow")
    def words(batch: Any) -> Any:
        each = pc.split_pattern(batch["sentence"], " ")
        return pa.table({"word": pc.list_flatten(each), "at": batch["at"].take(pc.list_parent_indices(each))})

    @bolt(output={"long": WORDS, "default": WORDS}, columnar="pandas")
    def sized(frame: Any) -> Any:
        is_long = frame["word"].str.len() > 3
        return {"long": frame[is_long], "default": frame[~is_long]}

    plan = builder(sentences="sentence string, at long")
    plan.set_bolt("words", words, 2).shuffle_grouping("sentences")
    plan.set_bolt("sized", sized, 2).fields_grouping("words", "word")
    plan.set_bolt("count", count_words, 2).fields_grouping("sized", "word")
    found = same(plan.build(), sentences=SENTENCES)
    assert ("jumped", 1_000) in found[0]["sized.long"]


def lost_at_first(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, which are kept in memory then, and let its first attempt fail."""
    yield from rows
    context: Any = TaskContext.get()
    if context.attemptNumber() == 0:
        raise RuntimeError("the result of this attempt is lost")


@pytest.mark.parametrize(("has_windows", "by_job"), [(False, False), (True, False), (True, True)])
def test_rows_that_a_lost_attempt_has_kept_in_memory_are_counted_and_written(
    same: Both, monkeypatch: pytest.MonkeyPatch, has_windows: bool, by_job: bool
) -> None:
    """As with speculation, when the second attempt at a task finds the rows of the first and ends before it."""

    @bolt(output={"long": WORDS, "default": WORDS})
    def sized(tuple: Any, collector: Any) -> None:
        collector.emit((tuple.word, tuple.at), stream="long" if len(tuple.word) > 3 else "default")

    def evaluated(writer: BatchWriter, output: DataFrame) -> Any:
        assert writer._is_observed != by_job
        return real(writer, output.mapInArrow(lost_at_first, output.schema))

    real = BatchWriter._evaluated
    monkeypatch.setattr(BatchWriter, "_evaluated", evaluated)
    if by_job:  # as in a session where Spark could leave a task out of the observed counts
        monkeypatch.setattr(assembly, "counts_once", lambda _: False)
    plan = builder(words=WORDS)
    plan.set_bolt("sized", sized, 2).shuffle_grouping("words")
    if has_windows:
        plan.set_bolt("count", count_words, 2).fields_grouping("sized", "word")
    found = same(plan.build(), drain=False, words=[[("over", 1_000), ("a", 2_000)], [("moon", 30_000)]])
    assert found[0]["sized.long"] == [("over", 1_000)]
