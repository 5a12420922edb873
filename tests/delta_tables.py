"""Delta tables: each batch is written once, also after kills; a table that does not match or is ahead of the checkpoint is refused.

Not collected with the other tests (its name has no test_): `make test-delta` runs it, on the newest Spark that has Delta and CI.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from windowing.errors import CheckpointError, ConfigError, SinkError
from windowing.spark import DeltaSink, FunctionSink, MemorySink, ParquetSink, session, windowed
from windowing.spark.sinks import OutputOwner
from windowing.topology.decorators import sliding
from windowing.windows.measures import seconds

ROOT = Path(__file__).parents[1]
SCHEMA = "k string, ts long"
SETTINGS = {
    "spark.jars": ",".join(str(jar) for jar in sorted((ROOT / ".delta").glob("*.jar"))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


@sliding(
    seconds(4), seconds(2), timestamp="ts", key="k", late_stream="late", output="k string, ends long, held array<long>"
)
def held(window: Any) -> Any:
    return window.key, window.end_timestamp, [row.ts for row in window]


def put(folder: Path, number: int) -> None:
    """Write a file of rows into the input folder; one row is late."""
    folder.mkdir(exist_ok=True)
    rows = [{"k": "ab"[at % 2], "ts": 1000 * (4 * number + at)} for at in range(4)]
    rows += [{"k": "a", "ts": 0}] if number > 1 else []
    (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    os.utime(folder / f"{number}.json", (1_700_000_000 + number,) * 2)  # Spark reads the oldest first


def run(spark: SparkSession, folder: Path, sinks: Any, drain: bool = False, bolt: Any = held) -> None:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(folder / "in"))
    query = windowed(bolt, rows, tasks=2).start(sinks, str(folder / "checkpoint"), drain=drain)
    assert query.await_end(200)


def tables(folder: Path) -> dict[str, Any]:
    return {
        "default": DeltaSink(str(folder / "held"), partition_by="k"),
        "late": DeltaSink(str(folder / "late")),
    }


def stored(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.format("delta").load(str(path)).collect()))


@pytest.fixture(scope="session")
def delta() -> Iterator[SparkSession]:
    running = session("delta", cores=2, **SETTINGS)
    yield running
    running.stop()


@pytest.fixture
def wanted(delta: SparkSession, tmp_path: Path) -> Callable[[int], dict[str, list[tuple[Any, ...]]]]:
    """The output of a run without failures over this number of files."""

    def found(files: int) -> dict[str, list[tuple[Any, ...]]]:
        folder = tmp_path / "plain"
        folder.mkdir()
        for number in range(files):
            put(folder / "in", number)
        sinks = {"default": MemorySink(), "late": MemorySink()}
        run(delta, folder, sinks, drain=True)
        return {name: sorted(map(tuple, sink.rows)) for name, sink in sinks.items()}

    return found


@pytest.mark.parametrize("point", ["in_sink:1", "before_commit:2"])
def test_each_batch_is_in_the_table_once_after_a_kill(
    delta: SparkSession, wanted: Callable[[int], Any], tmp_path: Path, point: str
) -> None:
    for number in range(4):
        put(tmp_path / "in", number)
    for given, code in (({"WINDOWING_FAILPOINT": point}, -signal.SIGKILL), ({}, 0)):
        command = [sys.executable, "-m", "tests.delta_tables", str(tmp_path)]
        job = subprocess.run(command, env=os.environ | given, cwd=ROOT, start_new_session=True)
        assert job.returncode == code
    found = {"default": stored(delta, tmp_path / "held"), "late": stored(delta, tmp_path / "late")}
    assert found == wanted(4)
    assert found["late"]
    assert (tmp_path / "held/k=a").is_dir()


def test_two_queries_can_write_to_one_table_of_the_catalog(delta: SparkSession, tmp_path: Path) -> None:
    delta.sql("CREATE DATABASE IF NOT EXISTS air")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "in", 0)
        run(delta, tmp_path / name, {"default": DeltaSink(table="air.held"), "late": MemorySink()}, drain=True)
    rows = sorted(map(tuple, delta.table("air.held").collect()))
    assert len(rows) > 4
    assert rows[::2] == rows[1::2]
    delta.sql("DROP TABLE air.held")


def test_a_table_ahead_of_its_checkpoint_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    run(delta, tmp_path, tables(tmp_path))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for number in (1, 2):
        put(tmp_path / "in", number)
    run(delta, tmp_path, tables(tmp_path))
    before = stored(delta, tmp_path / "held")
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "copy", tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=r"holds batch \d, and stream 'default' of query .* has come to batch 0"):
        run(delta, tmp_path, tables(tmp_path))
    assert stored(delta, tmp_path / "held") == before


def test_a_table_behind_its_checkpoint_is_refused(delta: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    run(delta, tmp_path, tables(tmp_path))
    shutil.copytree(tmp_path / "held", tmp_path / "copy")
    for number in (1, 2):
        put(tmp_path / "in", number)
    run(delta, tmp_path, tables(tmp_path))
    shutil.rmtree(tmp_path / "held")
    shutil.copytree(tmp_path / "copy", tmp_path / "held")
    before = stored(delta, tmp_path / "held")
    put(tmp_path / "in", 3)
    with pytest.raises(
        ConfigError, match=r"the last batch in .* is \d, and stream 'default' of query .* has written batch 2"
    ):
        run(delta, tmp_path, tables(tmp_path))
    assert stored(delta, tmp_path / "held") == before


def test_another_lag_is_refused_while_the_table_has_a_batch_that_is_half_done(
    delta: SparkSession, wanted: Callable[[int], Any], tmp_path: Path
) -> None:
    @sliding(
        seconds(4), seconds(2), timestamp="ts", key="k", late_stream="late", output="k string, ends long, held array<long>",
        lag=seconds(9), name="held",
    )  # fmt: skip
    def slower(window: Any) -> Any: ...

    def full(rows: Any, batch_id: int) -> None:
        raise RuntimeError("the disk is full")

    for number in range(3):
        put(tmp_path / "in", number)
    with pytest.raises(RuntimeError, match="the disk is full"):
        run(delta, tmp_path, tables(tmp_path) | {"late": FunctionSink(full)})
    with pytest.raises(
        CheckpointError, match=r"batch 2 .* stream 'default' for good.* lag_ms was 0, now 9000; start once"
    ):
        run(delta, tmp_path, tables(tmp_path), bolt=slower)
    run(delta, tmp_path, tables(tmp_path), drain=True)
    assert {name: stored(delta, tmp_path / path) for name, path in (("default", "held"), ("late", "late"))} == wanted(3)


def test_a_table_that_does_not_match_the_stream_is_refused_before_the_first_batch(
    delta: SparkSession, tmp_path: Path
) -> None:
    given = delta.createDataFrame([], "k string, ends long, held array<long>").schema
    owner = OutputOwner("q", "default", None, given)
    (tmp_path / "file").write_text("no folder")
    delta.createDataFrame([("a", 1, [1])], given).write.parquet(str(tmp_path / "files"))
    ParquetSink(str(tmp_path / "owned")).claim(delta, owner)
    for name, schema in (("fewer", "k string, ends long"), ("narrow", "k string, ends int, held array<long>")):
        delta.createDataFrame([], schema).write.format("delta").save(str(tmp_path / name))
    there = sorted(map(str, tmp_path.rglob("*")))
    for name, by, error, sentence in (
        ("fewer", (), ConfigError, r"has no column 'held'; ALTER TABLE ... ADD COLUMN held array<bigint>"),
        ("narrow", (), ConfigError, r"column 'ends' of .* is int, that of the stream is bigint; declare the output so"),
        ("new", "day", ConfigError, r"partition_by= of .* names 'day'; there are ends, held, k"),
        (
            "files",
            (),
            ConfigError,
            r"files'\) is no Delta table: it holds '.*parquet' and has no _delta_log; give a new folder",
        ),
        ("owned", (), ConfigError, r"owned'\) is no Delta table: it holds '_owner.json' and has no _delta_log"),
        ("file/held", (), SinkError, r"file/held cannot be used: .*Not a directory|file/held.* cannot be used"),
    ):
        with pytest.raises(error, match=sentence):
            DeltaSink(str(tmp_path / name), partition_by=by).claim(delta, owner)
    assert sorted(map(str, tmp_path.rglob("*"))) == there
    with pytest.raises(
        SinkError, match=r"nowhere://server/held cannot be used: .*; Spark has no such file system: correct"
    ):
        DeltaSink("nowhere://server/held").claim(delta, owner)
    (tmp_path / "empty/_checkpoint").mkdir(parents=True)
    DeltaSink(str(tmp_path / "empty")).claim(delta, owner)
    assert stored(delta, tmp_path / "empty") == []


def test_other_partitions_than_those_of_the_table_are_refused_before_the_first_batch(
    delta: SparkSession, tmp_path: Path
) -> None:
    given = delta.createDataFrame([], "k string, ends long, held array<long>").schema
    owner = OutputOwner("q", "default", None, given)
    for name, by in (("plain", ()), ("by_k", ("k",)), ("by_two", ("k", "ends"))):
        delta.createDataFrame([], given).write.format("delta").partitionBy(*by).save(str(tmp_path / name))
    for name, by, is_by in (
        ("plain", "k", "has no partitions"),
        ("by_k", "ends", "is partitioned by 'k'"),
        ("by_k", ("k", "ends"), "is partitioned by 'k'"),
        ("by_two", ("ends", "k"), "is partitioned by 'k', 'ends'"),
    ):
        sink = DeltaSink(str(tmp_path / name), partition_by=by)
        with pytest.raises(ConfigError, match=f"is there and {is_by}, which appended rows cannot change; leave out"):
            sink.claim(delta, owner)
        with pytest.raises(Exception, match=r"[Pp]artition"):  # so the refusal is right: Delta takes no batch
            sink._save(delta.createDataFrame([("a", 1, [1])], given).write)
    for name, by in (("plain", ()), ("by_k", ()), ("by_k", "k"), ("by_two", ("k", "ends"))):
        sink = DeltaSink(str(tmp_path / name), partition_by=by)
        sink.claim(delta, owner._replace(query=f"q {by}"))
        sink.write(delta.createDataFrame([("a", 1, [1])], given), 0)
    assert delta.read.format("delta").load(str(tmp_path / "by_k")).count() == 2


def test_a_table_of_another_format_and_a_missing_database_are_refused_before_the_first_batch(
    delta: SparkSession, tmp_path: Path
) -> None:
    given = delta.createDataFrame([], "k string").schema
    owner = OutputOwner("q", "default", None, given)
    delta.sql("CREATE DATABASE IF NOT EXISTS air")
    delta.sql("CREATE TABLE air.other USING parquet AS SELECT 'a' AS k")
    delta.sql("CREATE VIEW air.seen AS SELECT 'a' AS k")
    delta.sql("CREATE TABLE air.strict (k string, day date NOT NULL) USING delta")
    try:
        for sink, error, sentence in (
            (DeltaSink(table="nowhere.held"), SinkError, r"table='nowhere.held'.* cannot be used: .*nowhere"),
            (DeltaSink(table="air.other"), ConfigError, r"table='air.other'.* is no Delta table"),
            (DeltaSink(table="air.seen"), ConfigError, r"table='air.seen'.* is no Delta table"),
            (
                DeltaSink(table="air.strict"),
                ConfigError,
                r"column 'day' of .* has to have a value, and the stream has no such",
            ),
        ):
            with pytest.raises(error, match=sentence):
                sink.claim(delta, owner)
        assert delta.table("air.other").count() == 1
    finally:
        for kind in ("VIEW air.seen", "TABLE air.other", "TABLE air.strict"):
            delta.sql(f"DROP {kind}")


def test_a_table_deleted_between_batches_is_created_again_only_by_another_start(
    delta: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, owner = DeltaSink(str(tmp_path / "held")), OutputOwner("q", "default", None, StructType().add("k", "string"))
    sink.claim(delta, owner)
    sink.write(delta.createDataFrame([("a",)], "k string"), 0)
    shutil.rmtree(tmp_path / "held")
    with pytest.raises(
        SinkError, match=r"held has nothing of stream 'default' of query q any more: .*; batch 1 was not"
    ):
        sink.write(delta.createDataFrame([("b",)], "k string"), 1)
    assert not (tmp_path / "held").exists()
    assert not caplog.messages
    sink.claim(delta, owner._replace(last_batch=1))
    assert "held has nothing of stream 'default' of query q, which has come to batch 1: " in caplog.messages[0]
    sink.write(delta.createDataFrame([("b",)], "k string"), 1)
    sink.write(delta.createDataFrame([("b",)], "k string"), 1)
    assert stored(delta, tmp_path / "held") == [("b",)]


def test_a_batch_that_does_not_match_the_table_is_a_sink_error(delta: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "held"))
    sink.claim(delta, OutputOwner("q", "default", None, delta.createDataFrame([], "k string").schema))
    with pytest.raises(SinkError, match=r"does not take batch 0: .*; mend the table and start again"):
        sink.write(delta.createDataFrame([(1,)], "k long"), 0)
    assert stored(delta, tmp_path / "held") == []


def test_a_row_that_violates_a_constraint_of_the_table_is_a_sink_error(delta: SparkSession, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "held"))
    sink.claim(delta, OutputOwner("q", "default", None, delta.createDataFrame([], "k string").schema))
    delta.sql(f"ALTER TABLE delta.`{tmp_path}/held` ADD CONSTRAINT short CHECK (length(k) < 3)")
    with pytest.raises(SinkError, match=r"does not take batch 0: .*short.*; mend the table and start again"):
        sink.write(delta.createDataFrame([("abcd",)], "k string"), 0)
    assert stored(delta, tmp_path / "held") == []


if __name__ == "__main__":
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())
    own = session("job", cores=2, **SETTINGS)
    run(own, Path(sys.argv[1]), tables(Path(sys.argv[1])), drain=True)
