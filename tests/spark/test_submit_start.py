"""submit(): refusals before the first batch, restarts from a checkpoint, and errors of user code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tests.test_every_type import SAMPLES
from windowing.columnar.bolts import arrow_schema
from windowing.errors import BoltError, ConfigError, DefinitionChangedError, DrainedCheckpointError, FailedException
from windowing.schema.types import Schema
from windowing.spark import MemorySink, ParquetSink, submit, submit_trident, windowed
from windowing.spark.settings import session_with
from windowing.spark.spouts import arrow_schema_in_spark
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, Spout
from windowing.topology.decorators import bolt, spout, tumbling
from windowing.topology.plan import Topology
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import count, seconds

WORDS = "word string, at long"


def counting(length: int = 10, on_error: str = "raise") -> Any:
    @tumbling(
        seconds(length), timestamp="at", key="word", on_error=on_error, name="count", output="word string, n long"
    )
    def count(window: Any) -> Any:
        if window.key == "bad":
            raise ValueError("no such word")
        return window.key, len(window)

    return count


def counts(count: Any = None, tasks: int = 2) -> Topology:
    builder = TopologyBuilder("counts")
    builder.configure({"topology.enable.message.timeouts": False, "windowing.retry.delay.ms": 0})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("count", count or counting(), tasks).fields_grouping("words", "word")
    return builder.build()


def words(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"word": word, "at": at} for word, at in pairs]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    def run(topology: Topology, rows: Any, sinks: Any = None, **options: Any) -> dict[str, Any]:
        into = {"count": MemorySink()} if sinks is None else sinks
        given = options.pop("sources", {"words": rows})
        checkpoint = str(tmp_path / "checkpoint")
        query = submit(topology, spark, sources=given, sinks=into, checkpoint=checkpoint, **options)
        query.await_end(300)
        return {name: [tuple(row) for row in sink.rows] for name, sink in into.items()}

    return run


def test_a_second_start_continues_and_a_drained_checkpoint_is_refused(
    start: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    source = feed(WORDS).add(words(("cow", 1_000), ("cow", 2_000), ("moon", 3_000)))
    assert start(counts(), source.read()) == {"count": []}
    for changed, sentence in (
        (counts(counting(length=20)), "length of bolt 'count' was"),
        (counts(tasks=3), "tasks of bolt 'count' was 2, now 3"),
    ):
        with pytest.raises(DefinitionChangedError, match=sentence):
            start(changed, source.read())
    source.add(words(("cow", 4_000), ("cow", 12_000)))
    gone_on = start(counts(), source.read(), drain=True)
    assert sorted(gone_on["count"]) == [("cow", 1), ("cow", 3), ("moon", 1)]
    with pytest.raises(DrainedCheckpointError):
        start(counts(), source.read())


def test_bolts_with_closures_of_megabytes_run_in_all_stages_and_after_a_restart(
    start: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    table, weights = os.urandom(2 << 20), os.urandom(3 << 20)

    @bolt(output="word string, at long")
    def known(tuple: Any) -> Any:
        return (f"{tuple['word']}{len(table)}", tuple["at"])

    @tumbling(count(1), timestamp="at", output="word string, n long", name="count")
    def counted(window: Any) -> Any:
        return window.get()[0]["word"], len(weights)

    builder = TopologyBuilder("large").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("known", known).shuffle_grouping("words")
    builder.set_bolt("count", counted).global_grouping("known")
    topology, source = builder.build(), feed(WORDS).add(words(("cow", 1_000)))
    assert start(topology, source.read()) == {"count": [(f"cow{2 << 20}", 3 << 20)]}
    source.add(words(("moon", 2_000)))
    assert start(topology, source.read()) == {"count": [(f"moon{2 << 20}", 3 << 20)]}


def test_the_source_of_a_spout_of_ones_own_replaces_it_and_without_one_the_spout_is_refused(
    start: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    @spout(output=WORDS)
    class Endless(Spout):
        def next_tuple(self) -> None:
            raise AssertionError("a replaced spout is never called")

    builder = TopologyBuilder("own").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("words", Endless)
    builder.set_bolt("count", counting()).fields_grouping("words", "word")
    source = feed(WORDS).add(words(("cow", 1_000), ("moon", 2_000)))
    assert sorted(start(builder.build(), source.read(), drain=True)["count"]) == [("cow", 1), ("moon", 1)]
    with pytest.raises(ConfigError, match=r"cannot be asked for a batch again; .* for it in sources=, in place of it"):
        start(builder.build(), None, sources={})


def test_an_error_of_a_bolt_is_raised_as_a_bolt_error(start: Callable[..., Any], feed: Callable[..., Any]) -> None:
    source = feed(WORDS).add(words(("bad", 1_000), ("cow", 2_000)), words(("cow", 60_000)))
    with pytest.raises(BoltError, match=r"bolt 'count' failed on .*ValueError: no such word"):
        start(counts(), source.read())


def test_dead_letters_of_windows_and_tuples_can_be_read_by_bolts_and_sinks(
    start: Callable[..., Any], feed: Callable[..., Any]
) -> None:
    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "bad":
            raise FailedException("not this one")
        return tuple.word

    @bolt(output="line string")
    def report(letter: Any) -> Any:
        return f"{letter.source_component} {letter.attempts} {letter.window_end}"

    builder = TopologyBuilder("counts")
    builder.configure(
        {"topology.enable.message.timeouts": False, "windowing.max.attempts": 2, "windowing.retry.delay.ms": 0}
    )
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("count", counting(on_error="dead_letter"), 2).fields_grouping("words", "word")
    builder.set_bolt("picky", picky).shuffle_grouping("words")
    builder.set_bolt("report", report, 2).fields_grouping("picky", "component", "dead_letters")
    builder.set_bolt("windows", report).shuffle_grouping("count", "dead_letters")
    names = ("count", "count.dead_letters", "picky", "picky.dead_letters", "report", "windows")
    source = feed(WORDS).add(words(("bad", 1_000), ("cow", 2_000)), words(("cow", 60_000)))
    found = start(builder.build(), source.read(), {name: MemorySink() for name in names})
    assert found["count"] == [("cow", 1), ("cow", 1)], "a window that ends at the watermark has fired"
    assert found["picky"] == [("cow",), ("cow",)]
    ((who, _, _, error, _, end, key, _),) = found["count.dead_letters"]
    assert (who, end, key) == ("count", 10_000, "bad")
    assert "no such word" in error
    ((who, _, attempts, _, _, end, _, tuples),) = found["picky.dead_letters"]
    assert (who, attempts, end) == ("picky", 2, None)
    assert (found["report"], found["windows"]) == ([("picky 2 None",)], [("count 1 10000",)])
    assert '"word": "bad"' in tuples


def test_a_topology_that_cannot_run_on_spark_is_refused_before_the_first_batch(
    spark: SparkSession, start: Callable[..., Any], feed: Callable[..., Any], tmp_path: Path
) -> None:
    @spout(output=WORDS)
    def python_words() -> Any:
        yield "cow", 1

    rows = feed(WORDS).add(words(("cow", 1))).read()
    other = feed("word string, at int", name="other").add(words(("cow", 1))).read()
    static = spark.createDataFrame([("cow", 1)], WORDS)
    sink = {"count": MemorySink()}
    builder = TopologyBuilder("python")
    builder.configure({"topology.enable.message.timeouts": False})
    builder.set_spout("words", python_words)
    builder.set_bolt("count", counting()).fields_grouping("words", "word")
    ticking = TopologyBuilder("ticking").configure({"topology.tick.tuple.freq.secs": 1})
    ticking.configure({"topology.enable.message.timeouts": False})
    ticking.set_spout("words", InputSpout(WORDS))
    ticking.set_bolt("count", bolt(output="n long")(lambda tuple: 1)).fields_grouping("words", "word")
    for refused, sentence in (
        (lambda: start(counts(), rows, {}), "no bolt reads stream 'count' .* discard="),
        (lambda: start(counts(), rows, {**sink, "cuont": MemorySink()}), "no stream 'cuont'; did you mean"),
        (lambda: start(counts(), rows, {"count": object()}), "no write"),
        (lambda: start(counts(), rows, sink, discard=("count",)), "stands in discard"),
        (lambda: start(counts(), rows, sink, sources={}), "spout 'words' has no source"),
        (
            lambda: submit(counts(), spark, sinks=sink, checkpoint=str(tmp_path / "checkpoint")),
            r"spout 'words' has no source; give sources=\{'words': ",
        ),
        (
            lambda: submit(counts(), spark, sources={"words": rows}, checkpoint=str(tmp_path / "checkpoint")),
            r"no bolt reads stream 'count' .* give sinks=\{'count': ParquetSink\(path\)\}",
        ),
        (lambda: start(counts(), rows, sink, sources={"words": rows, "wrds": rows}), "which is no spout; did you mean"),
        (lambda: start(counts(), rows, sink, sources={"words": {"other": rows}}), "stream 'default' without a source"),
        (
            lambda: start(counts(), other, sink),
            "spout '.*' declares 'at' as bigint, its source in sources= has it as int",
        ),
        (lambda: start(counts(), static, sink), "is a streaming DataFrame"),
        (lambda: start(counts(), rows, sink, partitions=0), "partitions is a number of at least 1"),
        (lambda: start(counts(), rows, sink, trigger="soon"), "trigger is"),
        (lambda: start(builder.build(), rows, sink, sources={}), "has to be replayable"),
        (lambda: start(counts(counting(on_error="fail")), rows, sink), "on_error='fail'"),
        (lambda: start(ticking.build(), rows, sink), "tick tuples, which a Spark query does not send"),
        (lambda: start(counts(counting(on_error="dead_letter")), rows, sink), "'count.dead_letters'"),
        (
            lambda: start(
                counts(), rows, {"count": ParquetSink(str(tmp_path / "a")), "words": ParquetSink(str(tmp_path / "a"))}
            ),
            "writes to the folder .*give each stream a folder of its own",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            refused()
    assert not (tmp_path / "checkpoint" / "offsets").exists(), "no batch was begun"


def test_arrow_types_of_a_schema_equal_those_of_spark(spark: SparkSession) -> None:
    fields = [*SAMPLES, "map<string, array<double>>", "struct<a: int, b: array<string>>"]
    schema = Schema.parse(", ".join(f"f{number} {kind}" for number, kind in enumerate(fields)))
    parsed = StructType.fromDDL(schema.ddl)
    assert isinstance(parsed, StructType)
    assert arrow_schema(schema).types == arrow_schema_in_spark(parsed).types


def entry_points(spark: SparkSession, folder: Path) -> dict[str, Callable[[DataFrame], Any]]:
    """Return a function for each entry point that starts a query over a DataFrame of words."""
    trident = TridentTopology("words")
    trident.new_stream("words", InputSpout(WORDS)).sink("out")
    checkpoint = str(folder / "checkpoint")
    return {
        "windowed": lambda rows: windowed(counting(), rows).start(MemorySink(), checkpoint),
        "submit": lambda rows: submit(
            counts(), spark, sources={"words": rows}, sinks={"count": MemorySink()}, checkpoint=checkpoint
        ),
        "submit_trident": lambda rows: submit_trident(
            trident, spark, sources={"words": rows}, sinks={"out": MemorySink()}, checkpoint=checkpoint
        ),
    }


REFUSED_PLANS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "aggregation": (
        lambda rows: rows.groupBy("word").agg(F.max("at").alias("at")),
        r"does not run on a stream whose rows are appended: .*aggregations without watermark.*withWatermark",
    ),
    "sort": (lambda rows: rows.orderBy("at"), r"whose rows are appended: Sorting is not supported.*do it in a bolt"),
    "window": (
        lambda rows: rows.withColumn("at", F.expr("sum(at) over (partition by word)")),
        r"whose rows are appended: .*Window function is not supported",
    ),
    "two columns of one name": (lambda rows: rows.select("*", F.col("at").alias("AT")), r"at, AT; rename"),
    "batch": (lambda rows: rows.sparkSession.createDataFrame([("cow", 1)], WORDS), r"read it with spark\.readStream"),
    "nothing": (lambda rows: None, r"is a streaming DataFrame.*got None"),  # type: ignore[return-value, dict-item]
}


@pytest.mark.parametrize("plan", REFUSED_PLANS)
@pytest.mark.parametrize("door", ["windowed", "submit", "submit_trident"])
def test_a_source_that_spark_cannot_run_is_refused_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path, door: str, plan: str
) -> None:
    made, said = REFUSED_PLANS[plan]
    source = made(feed(WORDS).add(words(("cow", 1))).read())
    with pytest.raises(ConfigError, match=said):
        entry_points(spark, tmp_path)[door](source)
    assert not (tmp_path / "checkpoint").exists()


def test_a_source_is_not_checked_if_the_session_switches_spark_s_check_off(
    spark: SparkSession, feed: Callable[..., Any], start: Callable[..., Any]
) -> None:
    rows = feed(WORDS).add(words(("cow", 1), ("moon", 2), ("cow", 3), ("sky", 10_001))).read()
    with session_with(spark, {"spark.sql.streaming.unsupportedOperationCheck": "false"}):
        assert sorted(start(counts(), rows.orderBy("at"))["count"]) == [("cow", 2), ("moon", 1)]


@pytest.mark.parametrize("door", ["windowed", "submit", "submit_trident"])
def test_a_column_of_type_time_is_refused_if_the_session_disables_it_even_if_it_is_not_used(
    spark: SparkSession, tmp_path: Path, door: str
) -> None:
    with session_with(spark, {"spark.sql.timeType.enabled": "false"}):
        (tmp_path / "in").mkdir()
        read = spark.readStream.format("json").schema(f"{WORDS}, clock array<time>").load(str(tmp_path / "in"))
        with pytest.raises(ConfigError, match=r"reads column 'clock' of the type TIME.*declare it as a string"):
            entry_points(spark, tmp_path)[door](read.drop("clock"))
    assert not (tmp_path / "checkpoint").exists()
