"""Sinks are idempotent by batch id, and a batch becomes visible atomically."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, DataFrameWriter, Row, SparkSession
from pyspark.sql.types import StructType

from tests.spark.test_stored_elsewhere import mounted
from windowing.errors import BoltError, CheckpointError, ConfigError, CorruptStateError, SinkError
from windowing.spark import (
    DeltaSink,
    FileSink,
    FunctionSink,
    KafkaSink,
    MemorySink,
    NoopSink,
    ParquetSink,
    PostgresSink,
    failpoints,
    hadoop,
    windowed,
)
from windowing.spark import (
    sinks as sinks_module,
)
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.hadoop import Folder, failed_in_task
from windowing.spark.sinks import (
    OutputOwner,
    Sink,
    different_columns,
    refuse_shared,
    require_claimable,
    require_sink,
    require_sinks,
)
from windowing.spark.sinks import claim as claim_all
from windowing.spark.spouts import folders_read
from windowing.spark.written_columns import nullable
from windowing.topology.decorators import tumbling, windowed_bolt
from windowing.windows.measures import count, seconds


def frame(spark: SparkSession, *values: int, text: str | None = "x") -> DataFrame:
    return spark.createDataFrame([(value, text) for value in values], "n long, t string").coalesce(1)


def claim(spark: SparkSession, checkpoint: str, sinks: dict[str, Sink]) -> None:
    claim_all(Checkpoint(spark, checkpoint), sinks, dict.fromkeys(sinks, frame(spark).schema), (), {})


def found(sink: FileSink, spark: SparkSession) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in sink.read(spark).collect())


def test_a_class_in_place_of_a_sink_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is the class MemorySink, not an object of it; write MemorySink\(\.\.\.\)"):
        require_sink("default", MemorySink, ())


def test_all_streams_without_a_sink_are_named_at_once_with_what_to_give() -> None:
    sentence = re.escape(
        "'a' has no sink (nor have 'c', 'd'); give sinks={'a': ParquetSink(path), 'c': ParquetSink(path), 'd': ParquetSink(path)}, "
        "or say discard=('a', 'c', 'd')"
    )
    columns: dict[str, tuple[str, ...]] = dict.fromkeys("abcd", ())
    with pytest.raises(ConfigError, match=sentence):
        require_sinks(
            columns, columns, {"b": NoopSink()}, (), unknown=str, without=lambda name: f"{name!r} has no sink"
        )


def test_a_password_in_the_address_of_a_folder_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "ftp://me:s3cret@127.0.0.1:1/out"
    assert [repr(sink) for sink in (FileSink(secret, "json"), ParquetSink(secret), DeltaSink(secret))] == [
        "FileSink('ftp://me:***@127.0.0.1:1/out', 'json')",
        "ParquetSink('ftp://me:***@127.0.0.1:1/out', 'parquet')",
        "DeltaSink('ftp://me:***@127.0.0.1:1/out')",
    ]
    with pytest.raises(ConfigError, match=r"got 'ftp://me:\*\*\*@.*ParquetSink\('ftp://me:\*\*\*@127"):
        require_sink("default", secret, ())
    with pytest.raises(ConfigError, match=r"to ftp://me:\*\*\*@h/a/b, inside the folder ftp://me:\*\*\*@h/a of"):
        refuse_shared({"one": "ftp://me:s3cret@h/a", "other": "ftp://me:s3cret@h/a/b"}, {"one", "other"})
    folder = object.__new__(Folder)
    monkeypatch.setattr(Folder, "path", secret)
    monkeypatch.setattr(Folder, "exists", lambda self, name: True)
    monkeypatch.setattr(Folder, "read", lambda self, name: b'{"format": 1, "query": "q", "stream": "one"}')
    with pytest.raises(ConfigError, match=r"ftp://me:\*\*\*@127.0.0.1:1/out holds the output of stream 'one'"):
        require_claimable(folder, OutputOwner("q", "other"), "parquet")


def test_a_delta_sink_in_a_session_without_delta_names_the_needed_package(spark: SparkSession, tmp_path: Path) -> None:
    owner = OutputOwner("q", "default", None, frame(spark).schema)
    with pytest.raises(ConfigError, match=r"the session has no Delta; start it with spark\.jars\.packages=io\.delta"):
        DeltaSink(str(tmp_path / "held")).claim(spark, owner)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_writing_a_batch_again_replaces_it(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sink = FileSink(str(tmp_path / "it's [a] {sink} *"), format)
    sink.write(frame(spark, 1, 2), 0)
    sink.write(frame(spark, 3), 12)
    sink.write(frame(spark, 4, 5), 12)
    assert sink.committed(spark) == [0, 12]
    assert found(sink, spark) == [(1, "x", 0), (2, "x", 0), (4, "x", 12), (5, "x", 12)]
    assert sink.read(spark).columns == ["n", "t", "batch_id"]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_a_column_that_spark_keeps_for_malformed_records_is_read_as_any_other(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink, rows = FileSink(str(tmp_path / "out"), format), spark.sql("SELECT 1L AS n, 'x' AS _corrupt_record")
    sink.write(rows, 0)
    assert [tuple(row) for row in sink.read(spark).collect()] == [(1, "x", 0)]


def test_an_empty_batch_removes_the_output_of_an_earlier_attempt(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    sink.write(frame(spark, 1), 0)
    sink.write(frame(spark, 2), 1)
    sink.skip(1)
    sink.skip(7)
    assert found(sink, spark) == [(1, "x", 0)]


def test_an_incomplete_batch_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    sink.write(frame(spark, 1), 0)
    sink.write(frame(spark, 2), 1)
    (tmp_path / "out/batch_id=000000000001/_SUCCESS").unlink()
    assert found(sink, spark) == [(1, "x", 0)]


def test_a_sink_without_a_batch_reads_as_an_empty_dataframe_of_the_given_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"out has no _schema\.json: no query was started with it, or"):
        sink.read(spark)
    assert sink.read(spark, frame(spark).schema).columns == ["n", "t", "batch_id"]
    sink.write(frame(spark, 1), 0)
    sink.skip(0)
    assert found(ParquetSink(str(tmp_path / "out")), spark) == []


MARKS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


@pytest.mark.parametrize(
    ("name", "value", "format"),
    [
        (MARKS, "false", "parquet"),
        (MARKS, "false", "json"),
        ("mapreduce.fileoutputcommitter.algorithm.version", "2", "parquet"),
        ("spark.sql.sources.commitProtocolClass", "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol", "csv"),
        ("spark.sql.sources.partitionOverwriteMode", "dynamic", "parquet"),
    ],
)
@pytest.mark.parametrize("of_a_query", [False, True])
def test_a_written_batch_is_complete_with_any_output_committer(
    spark: SparkSession, tmp_path: Path, name: str, value: str, format: str, of_a_query: bool
) -> None:
    other = spark.newSession()
    other.conf.set(name, value)
    sink = FileSink(str(tmp_path / "out"), format)
    if of_a_query:
        sink.claim(spark, OutputOwner("q", "default", 0, frame(other).schema))
    for batch, number in ((0, 1), (1, 2), (1, 3)):
        sink.write(frame(other, number), batch)
    assert found(FileSink(sink.path, format), spark) == [(1, "x", 0), (3, "x", 1)]


def test_a_missing_success_file_before_later_batches_is_an_error_that_names_the_remedy(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    for batch in range(3):
        sink.write(frame(spark, batch), batch)
    mark = tmp_path / "out/batch_id=000000000001/_SUCCESS"
    mark.unlink()
    with pytest.raises(
        CorruptStateError, match=r"batch_id=000000000001 has no file _SUCCESS.*put an empty one into it"
    ):
        sink.read(spark)
    mark.touch()
    assert found(sink, spark) == [(n, "x", n) for n in range(3)]


def test_a_damaged_schema_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    sink.write(frame(spark, 1), 0)
    Folder(spark, str(tmp_path / "out")).write("_schema.json", b"{]")
    with pytest.raises(CorruptStateError, match=r"out/_schema\.json"):
        sink.read(spark)


def test_a_stream_without_rows_reads_as_an_empty_dataframe_of_its_declared_schema(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    @tumbling(count(2), timestamp="ts", late_stream="late", output="n long, at timestamp")
    def pairs(window: Any) -> Any:
        return len(window), None

    paths = {"default": str(tmp_path / "out/pairs"), "late": str(tmp_path / "out/late")}
    sinks = {"default": ParquetSink(paths["default"]), "late": FileSink(paths["late"], "csv")}
    run(pairs, feed().add([{"k": "a", "ts": 1, "v": 0.0}]).read(), sinks=sinks)
    for empty, late in (
        (sinks["default"], sinks["late"]),
        (ParquetSink(paths["default"]), FileSink(paths["late"], "csv")),
    ):
        assert (empty.read(spark).dtypes, empty.read(spark).collect()) == (
            [("n", "bigint"), ("at", "timestamp"), ("batch_id", "bigint")],
            [],
        )
        assert late.read(spark).dtypes == [
            *(("k", "string"), ("ts", "bigint"), ("v", "double")),
            *(("reason", "string"), ("batch_id", "bigint")),
        ]
        assert late.read(spark).collect() == []


def test_an_unknown_file_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="parquet, json, csv"):
        FileSink("out", "avro")


def test_a_memory_sink_keeps_batches_in_order_and_replaces_a_replayed_one(spark: SparkSession) -> None:
    sink = MemorySink()
    sink.write(frame(spark, 9), 1)
    sink.write(frame(spark, 1, 2), 0)
    sink.write(frame(spark, 3), 1)
    assert [row["n"] for row in sink.rows] == [1, 2, 3]
    sink.skip(1)
    sink.skip(5)
    assert [row["n"] for row in sink.rows] == [1, 2]


def test_the_rows_of_a_memory_sink_are_the_same_in_every_zone_of_the_machine(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.sql(
        "SELECT timestamp'2024-01-01 12:00:00' AS `a.b`, array(named_struct('at', timestamp'2024-07-01 12:00:00')) AS held, "
        "map(timestamp'2024-07-01 12:00:00', 1) AS by, timestamp_ntz'2024-07-01 12:00:00' AS plain"
    )
    sink, plain = MemorySink(), datetime(2024, 7, 1, 12)
    winter, summer = datetime(2024, 1, 1, 12, tzinfo=UTC), plain.replace(tzinfo=UTC)
    try:
        for number, zone in enumerate(("UTC", "Europe/Berlin")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            sink.write(rows, number)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert sink.rows == [Row(winter, [Row(at=summer)], {summer: 1}, plain)] * 2
    assert (sink.rows[0]["a.b"], sink.rows[0].held[0].at) == (winter, summer)


def test_a_function_sink_gets_the_query_id_and_stream_if_it_has_these_parameters(spark: SparkSession) -> None:
    calls: list[Any] = []

    def keep(rows: DataFrame, batch_id: int, *, query_id: str, stream: str) -> None:
        calls.append((query_id, stream, batch_id, rows.count()))

    sink = FunctionSink(keep)
    with pytest.raises(ConfigError, match="asks for its query_id and stream"):
        sink.write(frame(spark, 1), 0)
    for _ in range(2):  # a start, and the next one
        sink.claim(spark, OutputOwner("5f0c", "late"))
    sink.write(frame(spark, 1, 2), 4)
    assert calls == [("5f0c", "late", 4, 2)]
    with pytest.raises(ConfigError, match="make another FunctionSink"):
        sink.claim(spark, OutputOwner("5f0c", "default"))
    shared = FunctionSink(lambda rows, batch_id: None)
    for stream in ("a", "b"):
        shared.claim(spark, OutputOwner("q", stream))


class Late:
    def later(self, rows: Any, batch_id: int) -> None: ...


async def waiting(rows: Any, batch_id: int) -> None: ...


def generating(rows: Any, batch_id: int) -> Any:
    yield rows


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: None, r"takes \(\): too many positional arguments"),
        (lambda rows: None, r"takes \(rows\): too many positional arguments"),
        (
            lambda rows, batch_id, table: None,
            r"missing a required argument: 'table'; write a function of \(rows, batch_id\)",
        ),
        (lambda query_id, batch_id: None, r"multiple values for argument 'query_id'"),
        (Late.later, r"missing a required argument: 'batch_id'"),
        (waiting, r"is a coroutine \(async def\), whose body such a call does not run"),
        (generating, r"is a generator \(it has a yield\), whose body such a call does not run"),
    ],
)
def test_a_function_that_cannot_be_called_with_rows_and_batch_id_is_refused(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FunctionSink(function)


def test_a_function_with_defaults_or_bound_arguments_is_accepted() -> None:
    for function in (print, Late().later, lambda *all: None, partial(lambda table, rows, batch_id: None, "t")):
        FunctionSink(function)
    FunctionSink(lambda rows, batch_id, stream, limit=3: None)


def test_a_decorated_function_is_called_with_the_arguments_of_its_decorator(spark: SparkSession) -> None:
    calls: list[tuple[Any, ...]] = []

    def record(table: str, rows: Any, batch_id: int, stream: str) -> None:
        calls.append((table, batch_id, stream))

    @wraps(record)
    def bound(rows: Any, batch_id: int) -> None:
        record("t", rows, batch_id, "bound")

    @wraps(record)
    def passes_on(*given: Any, **named: Any) -> None:
        record("t", *given, **named)

    for function in (bound, passes_on):
        sink = FunctionSink(function)
        sink.claim(spark, OutputOwner("q", "late"))
        sink.write(frame(spark, 1), 4)
    assert calls == [("t", 4, "bound"), ("t", 4, "late")]


def test_a_function_sink_calls_its_function_and_a_noop_sink_evaluates_all_rows(spark: SparkSession) -> None:
    calls: list[tuple[int, int]] = []
    FunctionSink(lambda rows, batch_id: calls.append((rows.count(), batch_id))).write(frame(spark, 1, 2), 4)
    assert calls == [(2, 4)]
    with pytest.raises(ConfigError, match="takes a function"):
        FunctionSink(3)  # type: ignore[arg-type]
    seen = spark.sparkContext.accumulator(0)
    rows = frame(spark, 1, 2, 3).rdd.map(lambda row: (seen.add(1), row["n"])[1:]).toDF("n long")
    NoopSink().write(rows, 0)
    assert seen.value == 3


def test_a_parquet_sink_has_the_rows_of_each_batch_of_a_query(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    @tumbling(count(2), timestamp="ts", output="n long")
    def pairs(window: Any) -> Any:
        return len(window)

    sink = ParquetSink(str(tmp_path / "out"))
    fed = [[{"k": "a", "ts": ts, "v": 0.0}] for ts in (1, 2, 3)]
    run(pairs, feed().add(*fed).read(), sinks={"default": sink}, drain=True)
    assert found(sink, spark) == [(1, 3), (2, 1)]


def test_one_file_stream_takes_one_spark_job_per_batch_and_no_folder_for_an_empty_batch(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    trace = tmp_path / "calls"

    @tumbling(seconds(1), timestamp="ts", output="end long, n long", late_stream="late")
    def traced(window: Any) -> Any:
        with trace.open("a") as out:
            out.write(f"{window.end_timestamp}\n")
        return window.end_timestamp, len(window)

    sink = ParquetSink(str(tmp_path / "out"))
    fed = [[{"k": "a", "ts": ts, "v": 0.0}] for ts in (500, 600, 2500, 100, 3500)]
    done = run(traced, feed().add(*fed).read(), sinks={"default": sink}, discard=("late",))
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(str(done.query.spark_query.runId))
    assert len(jobs) == 5, "one for each batch"
    assert found(sink, spark) == [(1000, 2, 2), (3000, 1, 4)]
    assert sink.committed(spark) == [2, 4]
    assert not (tmp_path / "out" / "batch_id=000000000000").exists()
    assert trace.read_text().split() == ["1000", "3000"]
    assert [batch.late for batch in done.query.progress] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", [ParquetSink, lambda path: FunctionSink(lambda rows, batch_id: rows.collect())])
def test_an_error_of_a_bolt_in_the_job_of_a_sink_is_a_bolt_error_and_commits_no_output(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path, kind: Callable[..., Any]
) -> None:
    @tumbling(seconds(1), timestamp="ts", output="n long")
    def wrong(window: Any) -> Any:
        raise FileNotFoundError("of the bolt's own")

    sink = kind(str(tmp_path / "out"))
    fed = [[{"k": "a", "ts": ts, "v": 0.0}] for ts in (500, 2500)]
    with pytest.raises(
        BoltError,
        match=r"bolt 'wrong' failed on TupleWindow\(start=0, end=1000\): FileNotFoundError: of the bolt's own",
    ):
        run(wrong, feed().add(*fed).read(), sinks={"default": sink})
    assert not isinstance(sink, FileSink) or sink.committed(spark) == []


@pytest.mark.parametrize(
    ("said", "evaluated"),
    [
        (
            [
                "org.apache.spark.SparkException: Job aborted due to stage failure",
                "java.nio.file.AccessDeniedException: out/b/1: Writing Object on out/b/1: S3Exception: Access Denied",
                "software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Service: S3, Status Code: 403)",
            ],
            False,
        ),
        (["org.apache.spark.SparkException: Job aborted due to stage failure", "java.io.IOException: /in/1"], True),
        (["org.apache.spark.SparkException: Job aborted due to stage failure", "java.io.IOException: /out/b/1"], False),
        (["org.apache.spark.SparkException: refused", "java.io.IOException: Mkdirs failed"], False),
        (
            [
                "org.apache.spark.SparkException: [CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files",
                "java.io.IOException: No space left on device",
            ],
            True,
        ),
        (
            [
                "org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error occurred",
                "java.io.FileNotFoundException: File file:/c/state/0/0/3_1fd2.changelog does not exist",
            ],
            True,
        ),
    ],
)
def test_only_a_failed_write_in_the_output_folder_is_attributed_to_the_sink(said: list[str], evaluated: bool) -> None:
    class Thrown:
        def __init__(self, texts: list[str]) -> None:
            self.texts = texts

        def toString(self) -> str:  # noqa: N802 - Java's name
            return self.texts[0]

        def getCause(self) -> Any:  # noqa: N802
            return Thrown(self.texts[1:]) if self.texts[1:] else None

    problem = RuntimeError()
    problem.java_exception = Thrown(said)  # type: ignore[attr-defined]
    assert failed_in_task(problem, f"{'s3a://bucket' if 'S3' in said[-1] else 'file:'}/out/b/") is evaluated


def test_a_file_is_replaced_atomically_and_without_leftover_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "a b"))
    folder.write("f.json", b"one")
    folder.write("f.json", b"two\xff")
    assert folder.read("f.json") == b"two\xff"
    assert folder.names() == ["f.json"]
    assert [file.name for file in (tmp_path / "a b").iterdir() if not file.name.startswith(".")] == ["f.json"]
    assert folder.exists("f.json")
    assert (folder / "none").names() == []
    folder.delete("f.json")
    folder.delete("f.json")
    assert not folder.exists("f.json")


def test_the_names_in_a_folder_and_the_whole_batches_cost_as_many_calls_of_the_jvm_for_two_as_for_twenty(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = spark.sparkContext._gateway._gateway_client
    sent, send = [], client.send_command
    monkeypatch.setattr(client, "send_command", lambda *given, **more: sent.append(given[0]) or send(*given, **more))
    costs = []
    for number in (2, 20):
        at = tmp_path / f"it's [{number}] {{of}}, \\* é?"
        for batch in range(number):
            (at / f"batch_id={batch:012d}").mkdir(parents=True)
            (at / f"batch_id={batch:012d}" / "_SUCCESS").touch()
        odd = [f"a, [{number}] {{b}} \\", "batch_id=x"]
        for name in odd:
            (at / name).touch()
        (at / f"batch_id={number:012d}").mkdir()
        sink = ParquetSink(str(at))
        sink.committed(spark)
        sent.clear()
        assert Folder(spark, str(at)).names() == sorted(
            [*odd, *(f"batch_id={batch:012d}" for batch in range(number + 1))]
        )
        assert sink.committed(spark) == list(range(number))
        costs.append(sum(not command.startswith("m\nd") for command in sent))  # of objects that were collected
    assert costs[0] == costs[1] < 60


@pytest.mark.parametrize("at", ["run_12:30/out", "out"])
def test_whole_batches_are_found_in_a_path_with_a_colon_and_beside_a_folder_with_one(
    spark: SparkSession, tmp_path: Path, at: str
) -> None:
    for name in ("batch_id=000000000000", "batch_id=000000000004", "copy_12:30"):
        (tmp_path / at / name).mkdir(parents=True)
        (tmp_path / at / name / "_SUCCESS").touch()
    (tmp_path / at / "batch_id=000000000007").mkdir()
    assert ParquetSink(str(tmp_path / at)).committed(spark) == [0, 4]


def test_a_new_file_is_made_once_and_an_older_one_stays(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "a b"))
    assert folder.create("f.json", b"one")
    assert not folder.create("f.json", b"two")
    assert folder.read("f.json") == b"one"
    assert sorted(file.name for file in (tmp_path / "a b").iterdir()) == [".f.json.crc", "f.json"]
    (tmp_path / "a b" / "f.json").unlink()  # whose checksum stays
    assert folder.create("f.json", b"three")
    assert folder.read("f.json") == b"three"


def test_a_new_file_is_made_on_a_disk_without_links_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    folder = Folder(spark, str(tmp_path))
    assert [folder.create("f.json", content) for content in (b"one", b"two")] == [True, False]
    assert folder.read("f.json") == b"one"
    assert sorted(file.name for file in tmp_path.iterdir()) == [".f.json.crc", "f.json"]


@pytest.mark.parametrize("at", ["require_claimable", "claim_owner"])
def test_of_two_queries_that_claim_a_new_folder_at_the_same_moment_one_is_refused(
    at: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, path = getattr(sinks_module, at), str(tmp_path / "out")

    def after_another(*given: Any) -> Any:
        monkeypatch.setattr(sinks_module, at, step)
        ParquetSink(path).claim(spark, OutputOwner("b", "default", None, frame(spark).schema))
        return step(*given)

    monkeypatch.setattr(sinks_module, at, after_another)
    with pytest.raises(ConfigError, match="holds the output of stream 'default' of query b, not of"):
        ParquetSink(path).claim(spark, OutputOwner("a", "default", None, frame(spark).schema))


def test_a_file_that_cannot_be_written_leaves_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    folder = Folder(spark, str(tmp_path))
    monkeypatch.setattr(hadoop, "_replace", full)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no space left"):
            folder.write("f.json", b"one")
    assert list(tmp_path.iterdir()) == []


def test_a_local_file_is_replaced_with_its_checksum_without_the_processes_that_hadoops_file_context_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hadoop, "_CONTEXT", "no.such.Context")
    at = tmp_path / "a %41 b"
    folder = Folder(spark, str(at))
    for content in (b"zero", b"one"):
        folder.write("f.json", content)
        assert folder.read("f.json") == content
        assert sorted(file.name for file in at.iterdir()) == [".f.json.crc", "f.json"]
    (at / "f.json").write_bytes(b"two")
    with pytest.raises(CorruptStateError, match="do not fit its checksum"):
        folder.read("f.json")


def test_a_file_is_readable_after_its_replacement_was_killed_before_the_checksum_was_renamed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(spark, str(tmp_path))
    folder.write("f.json", b"one")
    replace, allowed = os.replace, [0]

    def killed(*given: Any) -> None:
        if not allowed[0]:
            raise OSError("killed")
        allowed[0] -= 1
        replace(*given)

    monkeypatch.setattr(os, "replace", killed)
    for allowed[0], content in ((0, b"one"), (1, b"two")):
        with pytest.raises(CheckpointError, match="killed"):
            folder.write("f.json", b"two")
        assert folder.read("f.json") == content


def test_an_output_folder_that_is_gone_is_logged_at_the_next_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    for last_batch, said in ((None, 0), (0, 0), (3, 0)):
        sink.claim(spark, OutputOwner("a", "default", last_batch, frame(spark).schema))
        assert len(caplog.messages) == said
    shutil.rmtree(tmp_path / "out")
    sink.claim(spark, OutputOwner("a", "default", 3, frame(spark).schema))
    (message,) = caplog.messages
    assert message.startswith(
        f"file:{tmp_path}/out has nothing of stream 'default' of query a, which has come to batch 3: "
    )
    assert message.endswith("(mount its disk)")


def test_an_output_folder_that_is_gone_ends_the_query_before_a_batch_is_written_into_another_one(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    out, away = tmp_path / "out", tmp_path / "away"

    @tumbling(seconds(1), timestamp="ts", output="end long", late_stream="late")
    def ends(window: Any) -> Any:
        return window.end_timestamp

    class Unmounted(ParquetSink):
        def write(self, rows: DataFrame, batch_id: int) -> None:
            super().write(rows, batch_id)
            if batch_id == 1:
                out.rename(away)
                out.mkdir()  # the place of the disk

    source = feed().add(*[[{"k": "a", "ts": 1000 * batch + 500, "v": 0.0}] for batch in range(4)])
    with pytest.raises(SinkError) as gone:
        run(ends, source.read(), sinks={"default": Unmounted(str(out))}, discard=("late",))
    assert str(gone.value).startswith(f"[SINK] file:{out} has nothing of stream 'default' of query ")
    assert "; batch 2 was not written. Put the folder back (mount its disk)" in str(gone.value)
    assert not list(out.iterdir())
    out.rmdir()
    away.rename(out)
    sink = ParquetSink(str(out))
    run(ends, source.read(), sinks={"default": sink}, discard=("late",))
    assert found(sink, spark) == [(1000, 1), (2000, 2), (3000, 3)]


@tumbling(count(1), output="n long")
def odd(window: Any) -> Any:
    """Emit the odd numbers: a batch of even ones has no rows."""
    return [row.n for row in window if row.n % 2]


def test_an_output_that_is_an_older_copy_is_refused_and_nothing_is_written(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    out, copy, checkpoint = tmp_path / "out", tmp_path / "copy", tmp_path / "ck"
    source, sink = feed("n long"), ParquetSink(str(out))
    begin = partial(run, odd, source.read(), sinks={"default": sink}, checkpoint=str(checkpoint))
    source.add([{"n": 1}])
    begin()
    shutil.copytree(out, copy)
    source.add([{"n": 3}], [{"n": 5}], [{"n": 6}])
    begin()
    kept = found(sink, spark)
    assert Checkpoint(spark, str(checkpoint)).written()["default"][1] == 2  # batch 3 has no rows
    newer = out.rename(tmp_path / "newer")
    copy.rename(out)
    source.add([{"n": 7}])
    files = sorted(out.rglob("*")), sorted(checkpoint.rglob("*"))
    with pytest.raises(ConfigError) as older:
        begin()
    assert re.fullmatch(
        r".*the last batch in file:.*/out is 0, and stream 'default' of query \w+ has written batch 2: the rows in between are "
        r"missing, so the output is an older copy; put the output and the checkpoint back from one copy\. To go on without these "
        r"rows, delete windowing/outputs\.json of the checkpoint",
        str(older.value),
    )
    assert (sorted(out.rglob("*")), sorted(checkpoint.rglob("*"))) == files
    shutil.rmtree(out)
    newer.rename(out)
    begin()
    assert found(sink, spark) == [*kept, (7, 4)]
    shutil.rmtree(out / "batch_id=000000000004")
    source.add([{"n": 9}])
    with pytest.raises(ConfigError, match=r"is 2, and .* has written batch 4"):
        begin()
    (checkpoint / "windowing/outputs.json").unlink()
    begin()
    assert found(sink, spark) == [*kept, (9, 5)]
    shutil.rmtree(out)  # given up, or its disk is not mounted: this is logged
    source.add([{"n": 11}])
    begin()
    assert found(sink, spark) == [(11, 6)]


def test_a_query_may_go_back_to_a_sink_that_lacks_the_batches_of_another_one(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    source, first, second = feed("n long"), ParquetSink(str(tmp_path / "first")), ParquetSink(str(tmp_path / "second"))
    for number, sink in enumerate((first, second, NoopSink(), first)):
        source.add([{"n": 2 * number + 1}])
        run(odd, source.read(), sinks={"default": sink}, checkpoint=str(tmp_path / "ck"))
    assert found(first, spark) == [(1, 0), (7, 3)]
    assert found(second, spark) == [(3, 1)]


@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_batch_that_is_repeated_without_rows_is_not_missing_in_its_output(
    feed: Callable[..., Any],
    run: Callable[..., Any],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_same_process: bool,
) -> None:
    checkpoint, empty = Checkpoint(spark, str(tmp_path / "ck")), tmp_path / "empty"
    source, sink = feed("n long"), ParquetSink(str(tmp_path / "out"))

    @tumbling(count(1), output="n long")
    def numbers(window: Any) -> Any:
        return None if empty.exists() else [row.n for row in window]

    def end(name: str, batch: int) -> None:
        if (name, batch) == ("before_commit", 1) and not empty.exists():
            assert sink.committed(spark) == [0, 1]
            empty.touch()
            raise PySparkRuntimeError("Python worker failed to connect back") if is_same_process else RuntimeError

    monkeypatch.setattr(failpoints, "hit", end)
    begin = partial(run, numbers, source.read(), sinks={"default": sink}, checkpoint=str(checkpoint))
    source.add([{"n": 1}])
    begin()
    source.add([{"n": 2}])
    if not is_same_process:
        with pytest.raises(RuntimeError):
            begin()
        assert checkpoint.written()["default"][1] == 0
    begin()
    assert sink.committed(spark) == [0]
    assert checkpoint.written()["default"][1] == 0
    begin()


def test_a_record_of_outputs_that_is_damaged_is_named(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    assert checkpoint.written() == {}
    checkpoint.keep_written({"default": ("one", 3), "late": ("other", 0)})
    assert checkpoint.written() == {"default": ("one", 3), "late": ("other", 0)}
    for content in (
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 2, "outputs": {}}',
        '{"format": 1, "outputs": {"default": 3}}',
        '{"format": 1, "outputs": {"default": ["one", -1]}}',
    ):
        (tmp_path / "windowing/outputs.json").write_text(content)
        (tmp_path / "windowing/.outputs.json.crc").unlink(missing_ok=True)
        with pytest.raises(CorruptStateError, match=r"windowing/outputs\.json is damaged; .*, or delete it"):
            checkpoint.written()


def test_an_output_folder_that_is_gone_from_another_file_system_than_a_disk_is_not_made_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(f"{mounted(spark, tmp_path)}/out")
    sink.claim(spark, OutputOwner("a", "default", None, frame(spark).schema))
    sink.write(frame(spark, 1), 0)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SinkError, match=r"/checkpoint/out has nothing of .*; batch 1 was not written"):
        sink.write(frame(spark, 2), 1)
    assert not list(tmp_path.iterdir())


def test_an_output_folder_whose_owner_file_alone_is_gone_gets_another_one_and_the_batch(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    sink.claim(spark, OutputOwner("a", "default", None, frame(spark).schema))
    sink.write(frame(spark, 1), 0)
    for batch in (1, 2):
        (tmp_path / "out/_owner.json").unlink()
        sink.write(frame(spark, batch + 1), batch)
    assert found(sink, spark) == [(1, "x", 0), (2, "x", 1), (3, "x", 2)]
    assert [message.partition(", which")[0] for message in caplog.messages] == [
        f"file:{tmp_path}/out has batches up to {batch} and no _owner.json" for batch in (0, 1)
    ]


def test_an_output_folder_with_batches_and_without_owner_is_logged_as_such(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    sink, owner = ParquetSink(str(out)), OutputOwner("a", "default", 3, frame(spark).schema)
    sink.claim(spark, owner)
    sink.write(frame(spark, 1), 2)
    caplog.clear()
    (out / "_owner.json").unlink()
    for _ in range(2):
        sink.claim(spark, owner)
        (message,) = caplog.messages
    assert message.startswith(f"file:{out} has batches up to 2 and no _owner.json, which is written anew, for stream ")


def test_a_folder_belongs_to_one_stream_of_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    mine, other = str(tmp_path / "mine"), str(tmp_path / "other")
    out = tmp_path / "out"
    claim(spark, mine, {"default": ParquetSink(str(out))})
    written = (out / "_owner.json").read_bytes()
    claim(spark, mine, {"default": ParquetSink(f"{out}/")})
    with pytest.raises(
        ConfigError,
        match=r"holds the output of stream 'default' of query .*mount its disk\); else give this one a new output folder$",
    ):
        claim(spark, other, {"default": ParquetSink(str(out))})
    with pytest.raises(ConfigError, match="not of stream 'late'"):
        claim(spark, mine, {"late": ParquetSink(str(out))})
    assert (out / "_owner.json").read_bytes() == written
    ParquetSink(str(out)).write(frame(spark, 1), 0)
    assert found(ParquetSink(str(out)), spark) == [(1, "x", 0)]


def test_an_output_folder_without_an_owner_is_accepted_only_with_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    out, old = tmp_path / "out", tmp_path / "old"
    sink = ParquetSink(str(out))
    sink.write(frame(spark, 1), 0)
    sink.write(frame(spark, 2), 3)
    with pytest.raises(ConfigError, match=r"out holds batch 3, and stream 'default' of query \w+ has begun none"):
        claim(spark, str(tmp_path / "new"), {"default": sink})
    Checkpoint(spark, str(old)).query_id()
    (old / "offsets").mkdir()
    (old / "offsets/2").write_text("v1\n{}")
    with pytest.raises(ConfigError, match="has come to batch 2"):
        claim(spark, str(old), {"default": sink})
    assert not (out / "_owner.json").exists()
    (old / "offsets/3").write_text("v1\n{}")
    claim(spark, str(old), {"default": sink})
    assert (out / "_owner.json").exists()
    claim(spark, str(old), {"default": sink})  # batch 3 is written, and may be half done
    (old / "offsets/3").unlink()
    with pytest.raises(
        ConfigError,
        match="has come to batch 2; its checkpoint is an older copy; to try it out give it another output, else put both back",
    ):
        claim(spark, str(old), {"default": sink})


def test_a_start_that_is_refused_for_one_sink_claims_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    first, held, other = ParquetSink(str(tmp_path / "first")), ParquetSink(str(tmp_path / "held")), MemorySink()
    claim(spark, str(tmp_path / "other"), {"default": held, "late": other})
    for refused in (held, other):
        with pytest.raises(ConfigError, match="of query"):
            claim(spark, str(tmp_path / "checkpoint"), {"default": first, "late": refused})
        assert not (tmp_path / "first").exists()
    claim(spark, str(tmp_path / "checkpoint"), {"default": first, "late": MemorySink()})
    assert (tmp_path / "first/_owner.json").exists()


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ("out", "out/", "writes to the folder"),
        ("out", "./x/../out", "writes to the folder"),
        ("out", "out/late", "inside the folder"),
        ("out/a/b", "out", "inside the folder"),
    ],
)
def test_two_streams_cannot_share_or_nest_output_folders(
    spark: SparkSession, tmp_path: Path, one: str, two: str, said: str
) -> None:
    sinks = {"default": ParquetSink(f"{tmp_path}/{one}"), "late": FileSink(f"file:{tmp_path}/{two}", "json")}
    with pytest.raises(ConfigError, match=said):
        claim(spark, str(tmp_path / "checkpoint"), sinks)
    assert list(tmp_path.iterdir()) == []
    claim(spark, str(tmp_path / "checkpoint"), {"a": ParquetSink(f"{tmp_path}/ab"), "b": ParquetSink(f"{tmp_path}/a")})


def test_a_delta_table_shares_its_folder_only_with_other_streams_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    for files, said in (("out", "writes to the folder"), ("out/late", "inside the folder")):
        sinks = {"default": DeltaSink(f"{tmp_path}/out"), "late": ParquetSink(f"{tmp_path}/{files}")}
        with pytest.raises(ConfigError, match=said):
            claim(spark, str(tmp_path / "checkpoint"), sinks)
    with pytest.raises(ConfigError, match="the session has no Delta"):
        claim(spark, str(tmp_path / "checkpoint"), dict.fromkeys(("default", "late"), DeltaSink(f"{tmp_path}/out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("inside", ["", "/checkpoint", "/a/../b/checkpoint"])
def test_a_checkpoint_cannot_be_in_the_output_folder_of_a_new_query(
    spark: SparkSession, tmp_path: Path, inside: str
) -> None:
    sinks = {"default": ParquetSink(f"file:{tmp_path}/out")}
    with pytest.raises(ConfigError, match=r"checkpoint .*/out.* is in the folder .*/out, which belongs .* 'default'"):
        claim(spark, f"{tmp_path}/out{inside}", sinks)
    assert list(tmp_path.iterdir()) == []
    claim(spark, f"{tmp_path}/out-checkpoint", sinks)


def test_the_output_of_a_new_query_cannot_be_in_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"writes to .*/c/o, which is in the checkpoint .*/c: .* folder beside it"):
        claim(spark, f"{tmp_path}/c", {"default": ParquetSink(f"{tmp_path}/c/o")})
    claim(spark, f"{tmp_path}/c", {"default": ParquetSink(f"{tmp_path}/c-o")})


def test_rows_are_read_with_a_column_that_a_sink_around_a_file_sink_has_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, rows = ParquetSink(str(tmp_path / "out")), frame(spark)
    sink.claim(spark, OutputOwner("q", "default", None, rows.schema))
    for batch in range(2):
        sink.write(rows.selectExpr("*", f"{batch} AS attempt"), batch)
    assert sink.read(spark).columns == [*rows.columns, "attempt", "batch_id"]


@pytest.mark.parametrize("is_again", [False, True])
def test_an_older_attempt_at_a_batch_is_not_complete_while_the_batch_is_written_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_again: bool
) -> None:
    sink = ParquetSink(str(tmp_path / "out"))
    owner = OutputOwner("q", "default", 1, frame(spark).schema)
    sink.claim(spark, owner)
    for batch in range(2):
        sink.write(frame(spark, batch), batch)
    if is_again:  # else the same run repeats it
        sink = ParquetSink(str(tmp_path / "out"))
        sink.claim(spark, owner)
    whole = []

    def fail(*_: Any) -> None:
        whole.extend(sink.committed(spark))
        raise OSError("no room")

    monkeypatch.setattr(DataFrameWriter, "save", fail)
    with pytest.raises(OSError, match="no room"):
        sink.write(frame(spark, 7), 1)
    assert whole == [0]


def test_a_new_checkpoint_cannot_be_where_the_query_reads(spark: SparkSession, tmp_path: Path) -> None:
    @windowed_bolt(count(2), count(2), output="n long")
    def size(window: Any) -> int:
        return len(window)

    (tmp_path / "in" / "day=1").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    for read, at in (("i*", "in/checkpoint"), ("in/day=[0-9]", "in/day=1/c"), ("in/", "in/a/checkpoint"), ("in", "in")):
        rows = windowed(size, spark.readStream.schema("k long").json(f"{tmp_path}/{read}"))
        with pytest.raises(ConfigError, match=r"the checkpoint .* is in .*/i.*, which the query reads: Spark may"):
            rows.start(MemorySink(), f"{tmp_path}/{at}")
        assert sorted(tmp_path.rglob("*")) == before
    assert rows.start(MemorySink(), f"{tmp_path}/in/_checkpoint").await_end(180), "Spark reads no hidden folder"


@pytest.mark.parametrize(
    ("read", "out"),
    [("in", "in"), ("in/", "in/a/out"), ("i*", "in/out"), ("in/day=[0-9]", "in/day=1"), ("i*/*/*", "in/day=1")],
)
def test_a_query_cannot_write_into_a_folder_that_it_reads(
    spark: SparkSession, tmp_path: Path, read: str, out: str
) -> None:
    @windowed_bolt(count(2), count(2), output="n long")
    def size(window: Any) -> int:
        return len(window)

    (tmp_path / "in" / "day=1" / "more").mkdir(parents=True)
    rows = spark.readStream.schema("k long").json(f"{tmp_path}/{read}")
    sinks = {"default": ParquetSink(f"{tmp_path}/{out}")}
    with pytest.raises(
        ConfigError, match=r"the sink of stream 'default' writes to .*, and the query reads .*/i.*, so it"
    ):
        windowed(size, rows).start(sinks, checkpoint=f"{tmp_path}/checkpoint")
    assert not [*tmp_path.rglob("_*.json")], "the folder was not claimed"


def test_csv_batches_of_a_changed_stream_are_not_read_under_the_names_of_the_new_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = FileSink(str(tmp_path / "out"), "csv")
    sink.write(spark.createDataFrame([(1, "late")], "n long, reason string"), 0)
    assert [tuple(row) for row in sink.read(spark).collect()] == [(1, "late", 0)]
    assert sink.read(spark).select("reason").collect() == [("late",)]
    sink.write(spark.createDataFrame([(2, "a", "late")], "n long, note string, reason string"), 1)
    with pytest.raises(Exception, match="Number of column in CSV header is not equal"):
        sink.read(spark).collect()
    found = sink.read(spark, StructType.fromDDL("n long, first string")).where("batch_id = 0").collect()
    assert [tuple(row) for row in found] == [(1, "late", 0)]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_times_and_texts_are_read_as_they_were_written(spark: SparkSession, tmp_path: Path, format: str) -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 123456)
    texts = ["a\nb", "a\r\nb", " a ", "\t", 'a"b,c', "\\", "null", "x" * 100_000, "", None]
    rows = [(number, text, at, at) for number, text in enumerate(texts)]
    sink = FileSink(str(tmp_path / "out"), format)
    sink.write(spark.createDataFrame(rows, "n long, text string, at timestamp, local timestamp_ntz"), 0)
    assert sorted(tuple(row)[:4] for row in sink.read(spark).collect()) == rows


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_a_null_in_a_stream_of_one_column_is_a_row(spark: SparkSession, tmp_path: Path, format: str) -> None:
    for kind, values in (
        ("string", ["", "x", "\\", '"N"', "null", None]),
        ("long", [3, None]),
        ("double", [0.5, None]),
    ):
        sink = FileSink(str(tmp_path / kind), format)
        sink.write(spark.createDataFrame([(value,) for value in values], f"only {kind}").coalesce(1), 0)
        assert [row.only for row in sink.read(spark).collect()] == values


@pytest.mark.parametrize("kind", ["array<long>", "map<string, long>", "struct<a: long>", "binary", "void"])
def test_a_column_that_csv_cannot_hold_is_refused_at_the_start(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    schema = StructType.fromDDL(f"n long, some {kind}")
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    sinks: dict[str, Sink] = {"default": FileSink(str(tmp_path / "out"), "csv")}
    with pytest.raises(
        ConfigError, match=r"stream 'default' .* writes csv, which has no form for 'some' .*; write parquet"
    ):
        claim_all(checkpoint, sinks, {"default": schema}, (), {})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["map<date, int>", "array<map<binary, int>>", "struct<a: map<timestamp, string>>"])
def test_a_map_whose_keys_json_cannot_hold_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    owner = OutputOwner("q", "default", 0, StructType.fromDDL(f"n long, some {kind}"))
    sinks: list[Any] = [
        FileSink(str(tmp_path / "out"), "json"),
        KafkaSink("127.0.0.1:1", "none", patience_s=0.1),
        PostgresSink("postgresql://127.0.0.1:1/none", "none", patience_s=0.1),
    ]
    for sink in sinks:
        with pytest.raises(
            ConfigError, match=r"stream 'default' .* JSON, which has no form for the keys of 'some' .*map<"
        ):
            sink.claim(spark, owner)
    FileSink(str(tmp_path / "out")).claim(spark, owner)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_maps_in_json_are_read_with_the_keys_that_were_written(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    schema = StructType.fromDDL(
        "n int, by_id map<long, string>, by_text map<string, int>, odd map<boolean, array<map<decimal(5,2), int>>>, "
        "deep array<struct<`a.b`: map<double, struct<x: map<int, date>>>>>"
    )
    day = datetime(2026, 1, 1).date()
    rows = [
        (1, {7: "a", -3: None}, {"x": 1}, {True: [{Decimal("1.50"): 1}, None]}, [({1.5: ({2: day},)},), None]),
        (2, {}, None, {False: None}, []),
        (3, None, {}, None, [(None,)]),
    ]
    sink = FileSink(str(tmp_path / "out"), "json")
    sink.claim(spark, OutputOwner("q", "default", 0, schema))
    assert sink.read(spark).schema.names == [*schema.names, "batch_id"]
    sink.write(spark.createDataFrame(rows, schema), 0)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = sink.read(spark)
        assert found.schema == nullable(StructType([*schema.fields]).add("batch_id", "long"))
        assert sorted(tuple(row) for row in found.collect()) == [(*row, 0) for row in rows]
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    texts = sink.read(spark, StructType.fromDDL("n int, by_id map<string, string>")).where("n = 1").first()
    assert texts == (1, {"7": "a", "-3": None}, 0)
    with pytest.raises(ConfigError, match=r"out has JSON, which has no form for the keys of 'by_id' map<date,string>"):
        sink.read(spark, StructType.fromDDL("by_id map<date, string>"))


def test_columns_of_an_option_are_one_or_several_different_names() -> None:
    assert [different_columns("key", given) for given in (None, "a", ["a", "b"])] == [(), ("a",), ("a", "b")]
    for wrong in (7, "", [""], [7], ["a", "a"]):
        with pytest.raises(ConfigError, match="key is a column or several different ones, got"):
            different_columns("key", wrong)


def test_only_streams_of_tables_share_a_folder() -> None:
    same = {"one": "file:/out", "other": "file:/out"}
    refuse_shared(same, {"one", "other"})
    for sharing in ((), {"other"}):
        with pytest.raises(ConfigError, match="writes to the folder file:/out of stream"):
            refuse_shared(same, sharing)
    with pytest.raises(ConfigError, match="file:/out/in, inside the folder file:/out of stream 'one'"):
        refuse_shared({"one": "file:/out", "other": "file:/out/in"}, {"one", "other"})


def starts(spark: SparkSession, folder: str, format: str) -> Callable[[str], FileSink]:
    """Return a function that claims the folder for a query with these fields, as its start does, and returns the sink."""

    def start(fields: str) -> FileSink:
        sink = FileSink(folder, format)
        sink.claim(spark, OutputOwner("q", "default", 2, StructType.fromDDL(fields)))
        return sink

    return start


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_batches_of_which_a_column_has_another_name_or_type_since_are_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    start = starts(spark, str(tmp_path / "out"), format)
    start("n long, old string")
    sink = start("n long, reason string")  # there is no batch yet
    sink.write(spark.createDataFrame([(1, "late")], "n long, reason string"), 0)
    said = "out holds batches with reason string, and stream 'default' of query q has cause string in its place, .*; give this one"
    with pytest.raises(ConfigError, match=said):
        start("n long, cause string")
    with pytest.raises(ConfigError, match=r"with reason string, and .* has reason bigint in its place"):
        start("n long, reason long")
    assert start("n long, reason string").read(spark).collect() == [(1, "late", 0)]
    added = start("n long, reason string, note string")
    if format != "csv":
        assert added.read(spark).collect() == [(1, "late", None, 0)]
    start("n long")


def test_a_start_that_makes_no_batch_is_compared_with_nothing(spark: SparkSession, tmp_path: Path) -> None:
    start = starts(spark, str(tmp_path / "out"), "parquet")
    start("n int").write(spark.createDataFrame([(1,)], "n int"), 0)
    start("n long, note string")
    assert start("n int, reason string").read(spark).collect() == [(1, None, 0)]
    assert start("n int").read(spark).collect() == [(1, 0)]
    with pytest.raises(ConfigError, match=r"holds batches with n int, and .* has n string in its place"):
        start("n string")


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_column_that_comes_back_after_batches_without_it_has_its_old_type_or_a_wider_one(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    start = starts(spark, str(tmp_path / "out"), format)
    versions = "n int, x int, s struct<a: int, b: int>", "n int, s struct<a: int>", "n int, y int, s struct<a: int>"
    for batch, (fields, row) in enumerate(zip(versions, [(0, 7, (1, 2)), (1, (3,)), (2, 8, (4,))], strict=True)):
        start(fields).write(spark.createDataFrame([row], fields), batch)
    with pytest.raises(ConfigError, match=r"holds batches with x int, and .* has x string in its place"):
        start("n int, y int, x string, s struct<a: int>")
    with pytest.raises(
        ConfigError, match=r"with s struct<a:int,b:int>, and .* has s struct<a:int,b:string> in its place"
    ):
        start("n int, y int, s struct<a: int, b: string>")
    rows = start("n int, y int, x long, s struct<a: int, b: long>").read(spark).orderBy("n").collect()
    assert rows == [(0, None, 7, (1, 2), 0), (1, None, None, (3, None), 1), (2, 8, None, (4, None), 2)]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_batches_of_another_format_are_refused_at_the_start(spark: SparkSession, tmp_path: Path, format: str) -> None:
    rows = spark.createDataFrame([(1,)], "n long")
    starts(spark, str(tmp_path / "out"), format)("n long").write(rows, 0)
    for other in {"parquet", "json", "csv"} - {format}:
        said = rf"out holds batches of another format than {other}, such as batch_id=0+/part-.*\.{format}, .*; give this one a new"
        with pytest.raises(ConfigError, match=said):
            starts(spark, str(tmp_path / "out"), other)("n long")
    starts(spark, str(tmp_path / "out"), format)("n long").write(rows, 1)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_batches_of_which_a_column_is_wider_since_or_has_more_nested_fields_are_read(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    start = starts(spark, str(tmp_path / "out"), format)
    old = "n int, x float, s array<struct<a: int>>"
    start(old).write(spark.createDataFrame([(1, 0.5, [(2,)])], old), 0)
    wider = start("n long, x double, s array<struct<a: long, b: string>>")
    assert wider.read(spark).collect() == [(1, 0.5, [(2, None)], 0)]
    with pytest.raises(ConfigError, match="has s array<struct<b:int>> in its place"):
        start("n long, x double, s array<struct<b: int>>")


def test_the_folders_that_a_query_reads(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    reader = spark.readStream.schema("k long")
    one = spark.readStream.schema("k long").format("json").option("Path", f"{tmp_path}/one").load()
    two = reader.option("pathglobfilter", "*.csv").csv(f"{tmp_path}/two")
    other = spark.readStream.format("rate").load().selectExpr("value as k")
    assert folders_read(one.union(two).union(other).where("k > 1")) == [f"{tmp_path}/one"]
    assert folders_read(other) == []


def test_a_query_of_an_earlier_version_whose_checkpoint_is_in_its_output_folder_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, checkpoint = ParquetSink(f"{tmp_path}/out"), f"{tmp_path}/out/checkpoint"
    sink.claim(spark, OutputOwner(Checkpoint(spark, checkpoint).query_id(), "default"))
    claim(spark, checkpoint, {"default": sink})


def test_a_memory_sink_belongs_to_one_stream_of_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    sink = MemorySink()
    with pytest.raises(ConfigError, match=r"of stream 'default' of query .* given to stream 'late'"):
        claim(spark, str(tmp_path / "one"), {"default": sink, "late": sink})
    claim(spark, str(tmp_path / "one"), {"default": sink})
    with pytest.raises(ConfigError, match="make another"):
        claim(spark, str(tmp_path / "two"), {"default": sink})


@pytest.mark.parametrize(
    "content", [b"", b"{]", b"[]", b'{"format": 2, "query": "a", "stream": "b"}', b'{"format": 1}']
)
def test_a_damaged_owner_file_is_named_and_never_replaced(spark: SparkSession, tmp_path: Path, content: bytes) -> None:
    out = Folder(spark, str(tmp_path / "out"))
    out.write("_owner.json", content)
    with pytest.raises(CorruptStateError, match=r"out/_owner\.json"):
        ParquetSink(out.path).claim(spark, OutputOwner("a", "b"))
    assert out.read("_owner.json") == content
    Folder(spark, str(tmp_path / "ck/windowing")).write("query.json", content)
    with pytest.raises(CorruptStateError, match=r"windowing/query\.json"):
        Checkpoint(spark, str(tmp_path / "ck")).query_id()


def test_the_command_of_the_manual_gives_a_checkpoint_of_an_earlier_version_its_query_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    for folder in ("offsets", "windowing"):
        (tmp_path / "ck" / folder).mkdir(parents=True)
    (tmp_path / "ck/offsets/0").touch()
    with pytest.raises(CorruptStateError, match=r"windowing/query\.json is missing"):
        Checkpoint(spark, str(tmp_path / "ck")).query_id()
    page = (Path(__file__).parents[2] / "docs/operate/upgrade.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ *(echo .*query\.json)$", page, re.MULTILINE)
    subprocess.run(["bash", "-c", command.replace("CHECKPOINT", str(tmp_path / "ck"))], check=True)
    assert len(Checkpoint(spark, str(tmp_path / "ck")).query_id()) == 36


def test_a_second_run_on_an_old_output_folder_is_refused_before_anything_is_written(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    @tumbling(count(2), timestamp="ts", late_stream="late", output="n long")
    def pairs(window: Any) -> Any:
        return len(window)

    source = feed().add([{"k": "a", "ts": ts, "v": 0.0} for ts in (1, 2, 3)])
    sinks = {"default": ParquetSink(str(tmp_path / "out/pairs")), "late": ParquetSink(str(tmp_path / "out/late"))}
    run(pairs, source.read(), sinks=sinks)
    source.add([{"k": "a", "ts": 4, "v": 0.0}])
    run(pairs, source.read(), sinks=sinks)
    kept = found(sinks["default"], spark)
    with pytest.raises(ConfigError, match="give this one a new output folder"):
        run(pairs, source.read(), checkpoint=str(tmp_path / "fresh"), sinks=sinks)
    assert not (tmp_path / "fresh/offsets").exists()
    assert found(sinks["default"], spark) == kept == [(2, 0), (2, 1)]
    with pytest.raises(ConfigError, match="inside the folder"):
        run(pairs, source.read(), sinks={**sinks, "late": ParquetSink(str(tmp_path / "out/pairs/late"))})
