"""Packing: the task and the timestamp of a row, and the control rows. Only the last tests need a JVM."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.columnar.rows import decode_table
from windowing.errors import ConfigError
from windowing.schema.values import InvalidTimestampWarning
from windowing.spark.exchange import (
    CLOCK_BITS,
    TASK_AND_CLOCK,
    ExchangeRow,
    WindowTimestamps,
    task_column,
    timestamps_of,
)
from windowing.spark.operator import packed
from windowing.spark.rows import NamedRows
from windowing.spark.state import SEQUENCE, TIMESTAMP, ChunkStore
from windowing.spark.window_turn import Packer

UTC = datetime.UTC
NOON = 1_000_000


def batch(rows: list[dict[str, Any]], tasks: list[int]) -> pa.RecordBatch:
    columns = {
        "ts": pa.array([row["ts"] for row in rows], pa.int64()),
        "v": pa.array([row.get("v", 0) for row in rows], pa.int64()),
        "src": pa.array([row.get("src") for row in rows], pa.string()),
        TASK_AND_CLOCK: pa.array([task << CLOCK_BITS | NOON for task in tasks], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def packer(tasks: int, timestamp: Any = None, **options: Any) -> Packer:
    return Packer("in", ("ts", "v", "src"), tasks, WindowTimestamps("count", timestamp, **options))


def pack(packer: Packer, *batches: pa.RecordBatch, partition: int = 3) -> list[dict[str, Any]]:
    return [row for out in packer.pack(iter(batches), partition, 0) for row in out.to_pylist()]


def rows_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return decode_table(row["data"]).to_pylist()


def test_each_task_gets_its_rows_in_order_in_one_packet_per_batch() -> None:
    first = batch([{"ts": 5, "v": 1}, {"ts": 4, "v": 2}, {"ts": 6, "v": 3}], [1, 0, 1])
    second = batch([{"ts": 7, "v": 4}], [0])
    out = [row for row in pack(packer(2, "ts"), first, second) if row["kind"] == "rows"]
    assert [(row["target"], row["sequence"]) for row in out] == [(0, 1), (1, 2), (0, 3)]
    assert [[r["v"] for r in rows_of(row)] for row in out] == [[2], [1, 3], [4]]
    assert {(row["stream"], row["upstream"], row["now"]) for row in out} == {("in", 3, NOON)}
    assert set(rows_of(out[0])[0]) == {"ts", "v", "src", TIMESTAMP}


def test_packets_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.columnar.rows.PART_BYTES", 1_000)
    out = pack(packer(1, "ts"), batch([{"ts": at} for at in range(100)], [0] * 100))
    packets = [row for row in out if row["kind"] == "rows"]
    assert max(decode_table(row["data"]).nbytes for row in packets) <= 1_000
    assert [each["ts"] for row in packets for each in rows_of(row)] == list(range(100))
    assert [row["sequence"] for row in packets] == list(range(1, len(packets) + 1))
    assert len(packets) > 2


def test_every_task_gets_the_largest_timestamp_of_the_partition() -> None:
    out = pack(packer(3, "ts"), batch([{"ts": 5}, {"ts": 9}], [1, 1]), batch([{"ts": 7}], [0]))
    told = [(row["target"], row["source"], row["value"]) for row in out if row["kind"] == "max"]
    assert told == [(0, None, 9), (1, None, 9), (2, None, 9)]


def test_the_largest_timestamp_is_sent_per_source() -> None:
    rows = batch([{"ts": 5, "src": "b"}, {"ts": 9, "src": "a"}, {"ts": 6, "src": "b"}, {"ts": 1}], [0] * 4)
    out = pack(packer(1, "ts", source="src"), rows)
    told = [(row["source"], row["value"]) for row in out if row["kind"] == "max"]
    assert told == [(None, 1), ("a", 9), ("b", 6)]


def test_an_invalid_timestamp_is_sent_as_null_and_does_not_advance_the_watermark() -> None:
    out = pack(packer(1, "ts"), batch([{"ts": None}], [0]))
    assert [row["kind"] for row in out] == ["rows"]
    assert rows_of(out[0])[0][TIMESTAMP] is None


def test_a_tuple_beyond_max_future_ms_does_not_advance_the_watermark() -> None:
    rows = batch([{"ts": NOON + 100}, {"ts": NOON + 101}], [0, 0])
    assert [row["value"] for row in pack(packer(1, "ts", max_future_ms=100), rows)][-1] == NOON + 100
    assert [row["value"] for row in pack(packer(1, "ts"), rows)][-1] == NOON + 101


def test_an_empty_partition_sends_no_packet() -> None:
    assert pack(packer(1, "ts"), batch([], [])) == []
    assert pack(packer(1, "ts")) == []


def test_with_processing_time_the_timestamp_is_the_batch_clock_and_no_maximum_is_sent() -> None:
    out = pack(packer(1), batch([{"ts": 5}], [0]))
    assert [row["kind"] for row in out] == ["rows"]
    assert rows_of(out[0])[0][TIMESTAMP] == NOON


def test_a_timestamp_function_gets_the_row_and_an_error_or_wrong_result_makes_it_invalid() -> None:
    def read(row: Any) -> Any:
        return {1: row.ts + 1, 2: "3", 3: True, 4: 2**62}.get(row.v) or row.missing

    rows = batch([{"ts": 5, "v": v} for v in (1, 2, 3, 4, 5)], [0] * 5)
    with pytest.warns(InvalidTimestampWarning, match=r"bolt 'count': .*read' gave '3' for Row\(ts=5, v=2"):
        out = pack(packer(1, read), rows)
    assert [row[TIMESTAMP] for row in rows_of(out[0])] == [6, None, None, None, None]
    assert out[-1]["value"] == 6


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None, -5], pa.int32(), [1, None, -5]),
        ([2**62, -(2**62), 2**62 - 1], pa.int64(), [None, None, 2**62 - 1]),
        ([1.0, 1.5, float("nan"), float("inf"), 1e30, None], pa.float64(), [1, None, None, None, None, None]),
        ([Decimal("7.00"), Decimal("7.50"), None], pa.decimal128(10, 2), [7, None, None]),
        ([Decimal("1" + "0" * 30), Decimal(3)], pa.decimal128(38, 0), [None, 3]),
        (["12", "x", None], pa.string(), [None, None, None]),
        ([True, False], pa.bool_(), [None, None]),
        ([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31), None], pa.date32(), [86_400_000, -86_400_000, None]),
        (
            [
                datetime.datetime(1970, 1, 1, 0, 0, 0, 1999, UTC),
                datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            ],
            pa.timestamp("us", "UTC"),
            [1, -1],
        ),
        ([datetime.datetime(1970, 1, 1, 0, 0, 1), None], pa.timestamp("us"), [1000, None]),
    ],
)
def test_a_column_becomes_milliseconds_or_null(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    stamps = timestamps_of(pa.array(values, kind))
    assert stamps.type == pa.int64()
    assert stamps.to_pylist() == expected


def test_packets_of_streams_whose_columns_differ_in_nullability_are_joined() -> None:
    packets = []
    for stream, nullable in (("left", False), ("right", True)):
        packer = Packer(stream, ("ts", "v"), 1, WindowTimestamps("count", "ts"))
        fields = [pa.field(name, pa.int64(), nullable) for name in ("c0", "c1", TASK_AND_CLOCK)]
        given = pa.RecordBatch.from_arrays([pa.array([5]), pa.array([7]), pa.array([NOON])], schema=pa.schema(fields))
        packets += [ExchangeRow(**row) for row in pack(packer, given) if row["kind"] == "rows"]
    arrived = NamedRows(("ts", "v"), ("left", "right")).arrived(packets)
    assert arrived.to_pylist() == [{"ts": 5, "v": 7, TIMESTAMP: 5}] * 2


OF_ONE_TYPE = [
    (pa.large_string(), pa.string(), "a"),
    (pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.list_(pa.int32()), [1]),
    (
        pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("m", pa.map_(pa.string(), pa.large_binary()))]),
        pa.struct([pa.field("x", pa.int32()), pa.field("m", pa.map_(pa.string(), pa.binary()))]),
        {"x": 1, "m": [("k", b"v")]},
    ),
]
"""Two types of Arrow with the same type of Spark, and a value: nested values may be null, or `useLargeVarTypes` is set, or not."""


@pytest.mark.parametrize(("one", "other", "value"), [*OF_ONE_TYPE, *((b, a, v) for a, b, v in OF_ONE_TYPE)])
def test_rows_arrive_and_are_restored_in_one_type_whichever_arrow_type_spark_gives_them(
    one: pa.DataType, other: pa.DataType, value: Any
) -> None:
    packets = []
    for stream, kind in (("left", one), ("right", other)):
        given = pa.record_batch({"c0": pa.array([5]), "c1": pa.array([value], kind), TASK_AND_CLOCK: pa.array([NOON])})
        packer = Packer(stream, ("ts", "v"), 1, WindowTimestamps("count", "ts"))
        packets += [ExchangeRow(**row) for row in pack(packer, given) if row["kind"] == "rows"]
    rows = NamedRows(("ts", "v"), ("left", "right")).arrived(packets)
    assert rows.column("v").to_pylist() == [value, value]

    written = ChunkStore()  # by an earlier version, which stored the type that it got
    stored = pa.table({"v": pa.array([value], one), TIMESTAMP: pa.array([5]), SEQUENCE: pa.array([0])})
    chunks = written.write(stored, np.array([0]), 0)
    assert ChunkStore(chunks, written.puts.get).read(rows.select(["v"]).schema).column("v").to_pylist() == [value]
    assert ChunkStore(chunks, written.puts.get).read(None).column("v").type == rows.column("v").type


def test_equal_keys_of_any_type_go_to_one_task(spark: SparkSession) -> None:
    rows = spark.range(1000).select(
        (F.col("id") % 10).alias("k"),
        F.when(F.col("id") % 10 > 3, F.lit("x")).alias("t"),
        (F.col("id") % 10 / 3).alias("d"),
    )
    task = task_column(rows, ("k", "t", "d"), 4)
    found = rows.select("k", F.expr(task).alias("task")).distinct().collect()
    assert len(found) == 10
    assert {row["task"] for row in found} <= {0, 1, 2, 3}
    assert len({row["task"] for row in found}) > 1


def test_shuffle_grouping_depends_on_the_content_of_a_row_and_not_on_its_partition(spark: SparkSession) -> None:
    rows = spark.range(4000).select("id", F.create_map(F.lit("a"), "id").alias("m"))
    task = task_column(rows, "shuffle", 4)
    one = {row["id"]: row["task"] for row in rows.select("id", F.expr(task).alias("task")).collect()}
    two = {row["id"]: row["task"] for row in rows.repartition(7).select("id", F.expr(task).alias("task")).collect()}
    assert one == two
    counts = [list(one.values()).count(number) for number in range(4)]
    assert min(counts) > 800


def test_shuffle_grouping_over_map_columns_only_is_refused(spark: SparkSession) -> None:
    rows = spark.range(1).select(F.create_map(F.lit("a"), "id").alias("m"))
    with pytest.raises(ConfigError, match="shuffle"):
        task_column(rows, "shuffle", 2)


def test_input_columns_may_have_the_names_of_internal_columns(spark: SparkSession) -> None:
    names = ("__TS", "__task", "__seq", "c0")
    rows = spark.range(1).select(*[F.col("id").alias(name) for name in names])
    (found,) = packed(rows, Packer("in", names, 1, WindowTimestamps("count")), "0").collect()
    assert decode_table(bytes(found.data)).column_names == [*names, TIMESTAMP]
