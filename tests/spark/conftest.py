"""Fixtures of the Spark tests: small Parquet inputs, one file per micro-batch, and a query that is run to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from windowing.spark import MemorySink, WindowedQuery, windowed
from windowing.spark.spouts import arrow_schema_in_spark

Rows = Sequence[Mapping[str, Any]]


class Feed:
    """A folder of Parquet files, each of which becomes one micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str, per_batch: int = 1) -> None:
        self.spark, self.folder, self.schema, self.per_batch = spark, folder, schema, per_batch
        self.count = 0
        self.arrow = arrow_schema_in_spark(StructType.fromDDL(schema))
        folder.mkdir(parents=True)

    def add(self, *batches: Rows) -> Feed:
        for rows in batches:
            columns = {field.name: [row[field.name] for row in rows] for field in self.arrow}
            file = self.folder / f"{self.count:05d}.parquet"
            pq.write_table(pa.table(columns, self.arrow), file)
            os.utime(file, (1_700_000_000 + self.count,) * 2)  # Spark orders files by their modification time
            self.count += 1
        return self

    def read(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", self.per_batch)
        return reader.option("pathGlobFilter", "*.parquet").parquet(str(self.folder))


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Callable[..., Feed]:
    def make(schema: str = "k string, ts long, v double", name: str = "in", per_batch: int = 1) -> Feed:
        return Feed(spark, tmp_path / name, schema, per_batch)

    return make


class Run:
    """One run of a query to its end; `sinks[name].rows` is its output."""

    def __init__(self, query: WindowedQuery, sinks: dict[str, Any]) -> None:
        self.query, self.sinks = query, sinks

    def rows(self, stream: str = "default") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.sinks[stream].rows]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    def start(bolt: Any, source: Any, checkpoint: str | None = None, sinks: Any = None, **options: Any) -> Run:
        start_options = {name: options.pop(name) for name in ("drain", "trigger", "discard") if name in options}
        stream = windowed(bolt, source, **options)
        wanted = [name for name in stream if name not in start_options.get("discard", ())]
        into = {name: MemorySink() for name in wanted} if sinks is None else sinks
        query = stream.start(into, checkpoint or str(tmp_path / "checkpoint"), **start_options)
        assert query.await_end(180)
        return Run(query, into)

    return start
