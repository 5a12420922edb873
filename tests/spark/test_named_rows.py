"""Rows with names of their own that user code returns on Spark, as in tests/execution/test_named_rows.py in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tests.execution.test_named_rows import FIELDS, INPUT, Back, Half, bolts, trident, windows
from windowing.errors import BoltError
from windowing.spark import MemorySink, submit, submit_trident, windowed


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Any:
    spark.createDataFrame(INPUT, FIELDS).coalesce(1).write.parquet(str(tmp_path / "in"))
    return spark.readStream.schema(FIELDS).parquet(str(tmp_path / "in"))


def test_a_windowed_bolt_returns_namedtuples_by_name_on_spark(rows: Any, tmp_path: Path) -> None:
    out = MemorySink()
    assert windowed(windows, rows, tasks=1).start(out, str(tmp_path / "c")).await_end(180)
    assert [tuple(row) for row in out.rows] == INPUT


def test_bolts_take_spark_rows_by_name_on_spark(spark: SparkSession, rows: Any, tmp_path: Path) -> None:
    out = MemorySink()
    topology = bolts(lambda dest, origin: Row(dest=dest, origin=origin))
    query = submit(topology, spark, sources={"in": rows}, sinks={"emits": out}, checkpoint=str(tmp_path / "c"))
    assert query.await_end(180)
    assert [tuple(row) for row in out.rows] == INPUT


def test_steps_of_trident_take_namedtuples_by_name_on_spark(spark: SparkSession, rows: Any, tmp_path: Path) -> None:
    out = MemorySink()
    given: Any = {"sources": {"in": rows}}
    query = submit_trident(trident(Back), spark, **given, sinks={"out": out}, checkpoint=str(tmp_path / "c"))
    assert query.await_end(180)
    assert [tuple(row) for row in out.rows] == INPUT
    query = submit_trident(trident(Half), spark, **given, sinks={"out": MemorySink()}, checkpoint=str(tmp_path / "no"))
    with pytest.raises(BoltError, match="at another place"):
        query.await_end(180)
