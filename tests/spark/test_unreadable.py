"""Values that Spark can hold and Python cannot, in whole queries: they do not end a query, and are written unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.execution.test_unreadable import dates, texts
from windowing import seconds, windowed_bolt
from windowing.spark import MemorySink, ParquetSink, submit, submit_trident, windowed
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt
from windowing.trident.streams import TridentTopology

FIELDS = "at long, v long, day date, word string, __seq long, __ts long, __TASK long"


def source(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir(exist_ok=True)
    ours = {name: pa.array([7, 8, 9], pa.int64()) for name in ("__seq", "__ts", "__TASK")}
    rows: dict[str, Any] = {"at": pa.array([1_000, 2_000, 3_000]), "v": pa.array([1, 2, 4])}
    rows |= {"day": dates(2_932_897, -735_648, 5), "word": texts(b"a", b"b", b"caf\xe9")}
    for number in (0, 1):  # the second batch reads the stored tuples of the first
        pq.write_table(pa.table(rows | ours), folder / f"{number}.parquet")
    return spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).parquet(str(folder))


def test_a_windowed_query_continues_with_values_that_python_cannot_hold(spark: SparkSession, tmp_path: Path) -> None:
    @windowed_bolt(
        seconds(10), seconds(10), timestamp="at", lag=seconds(5), output="n long, ours long", late_stream="late"
    )
    def asks(window: Any) -> Any:
        rows = [row for row in window if len(row["word"])]
        return sum(row["v"] for row in rows), sum(row["__ts"] for row in rows)

    out, late = MemorySink(), ParquetSink(str(tmp_path / "late"))
    stream = windowed(asks, source(spark, tmp_path / "in"), order_by=("day", "word"))
    query = stream.start({"default": out, "late": late}, str(tmp_path / "checkpoint"), drain=True)
    assert query.await_end(180)
    assert [tuple(row) for row in out.rows] == [(6, 30)]
    kept = late.read(spark).select("v", F.hex("word"), "__seq", "reason").collect()
    assert [tuple(row) for row in kept] == [(4, "636166E9", 9, "invalid")] * 2
    assert sum(metrics.late for metrics in query.progress) == 2


def test_a_nested_value_that_python_cannot_hold_does_no_harm_and_is_unchanged_on_the_late_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    @windowed_bolt(seconds(1), seconds(1), timestamp="at", output="v long", late_stream="late")
    def total(window: Any) -> Any:
        return sum(row.v for row in window)

    rows = source(spark, tmp_path / "in").select(
        "at",
        "v",
        F.map_from_arrays(F.array(F.array("v"), F.array("v", "at")), F.array("v", "at")).alias("m"),
        F.array(F.expr("date'2000-01-01' + interval '18000' year"), F.lit(None)).alias("days"),
        F.struct(F.timestamp_micros(F.lit(1 << 60)).alias("t"), F.col("word")).alias("s"),
    )
    out, late = MemorySink(), ParquetSink(str(tmp_path / "late"))
    query = windowed(total, rows).start({"default": out, "late": late}, str(tmp_path / "checkpoint"), drain=True)
    assert query.await_end(180)
    assert sorted(row.v for row in out.rows) == [1, 2, 4]
    found = late.read(spark)
    kept = found.select("v", F.map_keys("m"), F.map_values("m"), "reason").orderBy("v").collect()
    assert [tuple(row) for row in kept] == [
        (v, [[v], [v, at]], [v, at], "late") for v, at in ((1, 1_000), (2, 2_000), (4, 3_000))
    ]
    far = F.col("days").cast("array<string>"), F.unix_micros("s.t"), F.hex("s.word")
    assert [tuple(row) for row in found.orderBy("v").select(*far).collect()] == [
        (["+20000-01-01", None], 1 << 60, word) for word in ("61", "62", "636166E9")
    ]


def test_a_date_out_of_range_for_python_is_unchanged_on_the_late_stream(spark: SparkSession, tmp_path: Path) -> None:
    @windowed_bolt(seconds(10), seconds(10), timestamp="day", output="n long", late_stream="late", lag=seconds(1))
    def count(window: Any) -> Any:
        return len(window)

    kept, out = ParquetSink(str(tmp_path / "late")), MemorySink()
    builder = TopologyBuilder("days")
    builder.set_spout("in", InputSpout("day date, word string"))
    builder.set_bolt("count", count).global_grouping("in")
    builder.set_bolt(
        "words", bolt(output="day date")(lambda tuple: [(tuple["day"],)] if tuple["word"] else ())
    ).fields_grouping("in", "word")
    builder.set_bolt(
        "late", bolt(output="reason string, day date")(lambda tuple: (tuple["reason"], None))
    ).shuffle_grouping("count", "late")
    sinks = {"count": out, "count.late": kept, "words": MemorySink(), "late": MemorySink()}
    rows = source(spark, tmp_path / "in").select("day", "word")
    query = submit(
        builder.build(), spark, sources={"in": rows}, sinks=sinks, checkpoint=str(tmp_path / "c"), drain=True
    )
    assert query.await_end(180)
    assert [row.n for row in out.rows] == [2]
    found = kept.read(spark).select(F.col("day").cast("string"), "reason").distinct().collect()
    assert {row.reason for row in found} == {"invalid"}
    assert len(found) == 2
    assert sorted(row.reason for row in sinks["late"].rows) == ["invalid"] * 4
    assert sinks["words"].rows == []  # in each row the word or the day cannot be read
    memory = MemorySink()
    memory.write(kept.read(spark).select("day"), 0)
    assert sorted({repr(row.day) for row in memory.rows})[-1] == "date 10000-01-01"


def test_a_trident_topology_drops_tuples_with_values_that_python_cannot_hold_and_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    topology = TridentTopology("t")
    stream = topology.new_stream("in", InputSpout("v long, day date, word string"))
    stream.filter(lambda tuple: tuple["v"] > 0).sink("out")
    out = MemorySink()
    rows = source(spark, tmp_path / "in").select("v", "day", "word")
    query = submit_trident(topology, spark, sources={"in": rows}, sinks={"out": out}, checkpoint=str(tmp_path / "c"))
    assert query.await_end(180)
    assert out.rows == []
    assert sum(metrics.late for metrics in query.progress) == 6
