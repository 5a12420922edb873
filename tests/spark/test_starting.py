"""The settings with which a query starts; those of the session do not change."""

from __future__ import annotations

import datetime
import gc
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, SessionError
from windowing.spark import (
    DeltaSink,
    FileSink,
    FunctionSink,
    MemorySink,
    checkpoint,
    hadoop,
    rescale,
    running,
    settings,
    shipping,
    sinks,
    submit_trident,
    windowed,
)
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.hadoop import Folder
from windowing.spark.settings import FILE_MANAGER, settings_of
from windowing.stores.factory import map_state
from windowing.stores.sqlite import SqliteStore
from windowing.topology.components import InputSpout
from windowing.topology.decorators import tumbling
from windowing.trident import MapGet, TridentTopology
from windowing.windows.measures import seconds

BY_CONTEXT = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
PARTITIONS = "spark.sql.shuffle.partitions"
ZONE = "spark.sql.session.timeZone"


@tumbling(seconds(1), timestamp="ts", output="n long")
def counted(window: Any) -> tuple[int]:
    return (len(window),)


def settings_in(run: Callable[..., Any], source: Any, **options: Any) -> list[tuple[str, str | None]]:
    """Return the shuffle partitions and the file manager that a sink sees in each batch."""
    seen: list[tuple[str, str | None]] = []

    def keep(rows: Any, _: int) -> None:
        conf = rows.sparkSession.conf
        seen.append((conf.get(PARTITIONS), conf.get(FILE_MANAGER, None)))

    run(counted, source, sinks={"default": FunctionSink(keep)}, **options)
    return seen


@pytest.fixture
def source(feed: Callable[..., Any]) -> Any:
    return feed().add(*([{"k": "a", "ts": ts, "v": 1.0}] for ts in (500, 1500, 2500)))


def test_a_local_checkpoint_uses_the_file_system_manager_unless_another_one_was_set_and_works_with_either(
    spark: SparkSession, source: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    before = spark.conf.getAll
    spark.conf.set(FILE_MANAGER, BY_CONTEXT)
    try:
        assert settings_in(run, source.read(), grouping="k", tasks=3) == [("3", BY_CONTEXT)] * 2
        assert spark.conf.get(FILE_MANAGER) == BY_CONTEXT
    finally:
        spark.conf.unset(FILE_MANAGER)
    source.add([{"k": "a", "ts": 3500, "v": 1.0}])
    seen = settings_in(run, source.read(), grouping="k")
    assert seen == [("3", BY_CONTEXT.replace("FileContext", "FileSystem"))], "with the window that was open"
    assert spark.conf.getAll == before
    assert (tmp_path / "checkpoint/commits/.3.crc").exists(), "Hadoop's checksums are written too"


def test_the_settings_hold_until_the_logs_of_the_sources_are_made(
    source: Any, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes them after it has started the query, with what the session has then."""
    made = []

    @contextmanager
    def watched(*given: Any) -> Iterator[None]:
        with settings_of(*given):
            yield
            made.append(sorted(log.name for log in tmp_path.glob("checkpoint/sources/*")))

    monkeypatch.setattr(running, "settings_of", watched)
    run(counted, source.read(), drain=True)
    assert made == [["0", "1"]] * 2, "of the input and of the control files, in the run and in its drain"


def test_a_query_uses_the_name_utc_whatever_alias_the_session_has(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    """Arrow does not know the zone "Z", and timestamps of "Etc/UTC" and "UTC" cannot be in one table."""

    @tumbling(seconds(1), timestamp="ts", output="first timestamp, other timestamp")
    def firsts(window: Any) -> Any:
        return window.get()[0].ts, window.get()[0].other

    times = [datetime.datetime(2020, 2, 29, 12, 0, second, tzinfo=datetime.UTC) for second in (1, 2, 4)]
    source = feed("ts timestamp, other timestamp").add(*([{"ts": time, "other": time}] for time in times))
    spark.conf.set(ZONE, "Z")
    try:
        assert run(firsts, source.read()).rows() == [(time, time) for time in times]
        assert spark.conf.get(ZONE) == "Z"
        with pytest.raises(SessionError, match=r"timeZone is 'Z', a name that Arrow does not know"):
            _ = windowed(firsts, source.read()).streams
    finally:
        spark.conf.set(ZONE, "UTC")


@pytest.mark.parametrize(("path", "local"), [("/tmp/x", True), ("file:/tmp/x", True), ("hdfs://nowhere/x", False)])
def test_only_local_checkpoints_get_another_file_manager(
    spark: SparkSession, path: str, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Folder, "__init__", _given)
    with settings_of(Checkpoint(spark, path), 2):
        assert (spark.conf.get(FILE_MANAGER, None) is not None) == local
    assert spark.conf.get(FILE_MANAGER, None) is None


def _given(folder: Any, spark: SparkSession, path: str) -> None:
    """Initialize a Folder without its file system, which may not exist."""
    jvm: Any = spark.sparkContext._jvm
    folder._path_class = jvm.org.apache.hadoop.fs.Path
    found = folder._path_class(path)
    folder._path = found if found.toUri().getScheme() else folder._path_class(f"file:{path}")


def test_a_query_reuses_the_python_workers_of_an_earlier_query_in_all_stages(
    source: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    daemons = tmp_path / "daemons"
    daemons.mkdir()

    def stamp(row: Any) -> int:
        (daemons / str(os.getppid())).touch()
        return int(row.ts)

    @tumbling(seconds(1), timestamp=stamp, output="worker long, daemon long, frozen long")
    def worker(window: Any) -> tuple[int, int, int]:
        return os.getpid(), os.getppid(), gc.get_freeze_count()

    first, second = (run(worker, source.read(), checkpoint=str(tmp_path / name)).rows() for name in ("one", "two"))
    assert {row[0] for row in first} & {row[0] for row in second}, "both made windows, in different workers"
    packed_by = {int(path.name) for path in daemons.iterdir()}
    assert packed_by == {row[1] for row in first + second}, "each stage has workers of its own"
    assert min(row[2] for row in second) > 50_000, "a worker looks through what its modules hold after each task"


@tumbling(seconds(1), timestamp="ts", key="k", output="k string, n long")
def by_key(window: Any) -> tuple[str, int]:
    return window.key, len(window)


def test_a_checkpoint_that_was_moved_or_copied_reads_its_own_files_only(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark stores the absolute paths of the schemas of its states."""
    first, second, third, last = (tmp_path / name for name in ("first", "second", "third", "last"))
    source = feed().add([{"k": "a", "ts": 500, "v": 1.0}])
    run(by_key, source.read(), str(first))
    with mock.patch.object(Folder, "exists", side_effect=AssertionError("own files are not looked up")):
        Checkpoint(spark, str(first)).follow_move()
    shutil.move(first, second)
    source.add([{"k": "a", "ts": 600, "v": 1.0}])
    run(by_key, source.read(), str(second))
    source.add([{"k": "b", "ts": 700, "v": 1.0}])
    shutil.copytree(second, third)
    assert run(by_key, source.read(), str(third), drain=True).rows() == [("a", 2), ("b", 1)]
    assert not {path for path in schemas_of(third) if not path.startswith(f"file:{third}/state/0/_stateSchema/")}
    stamps = {file: file.stat().st_mtime_ns for file in metadata_of(third)}
    Checkpoint(spark, str(third)).follow_move()
    assert {file: file.stat().st_mtime_ns for file in metadata_of(third)} == stamps
    shutil.rmtree(third)
    moved = tmp_path / "moved"
    shutil.move(second, moved)
    rescale(str(moved), str(last), tasks=2, spark=spark)
    assert run(by_key, source.read(), str(last), drain=True).rows() == [("a", 2), ("b", 1)]


def metadata_of(checkpoint: Path) -> list[Path]:
    return [file for file in checkpoint.glob("state/*/_metadata/v2/*") if file.name.isdecimal()]


def schemas_of(checkpoint: Path) -> list[str]:
    """Return the files of schemas that the metadata of the states name."""
    found = [json.loads(file.read_text().partition("\n")[2]) for file in metadata_of(checkpoint)]
    return [path for each in found for store in each["stateStoreInfo"] for path in store["stateSchemaFilePaths"]]


@pytest.mark.parametrize(
    ("own", "given", "chosen"), [(False, None, "false"), (True, None, None), (False, "true", None)]
)
def test_a_session_with_artifacts_or_an_isolation_setting_keeps_separate_workers(
    own: bool, given: str | None, chosen: str | None
) -> None:
    added = SimpleNamespace(sessionArtifactAdded=lambda: SimpleNamespace(get=lambda: own))
    conf = SimpleNamespace(get=lambda name, default: default if given is None else given)
    session = SimpleNamespace(conf=conf, _jsparkSession=SimpleNamespace(artifactManager=lambda: added))
    assert settings._shared_workers(cast(Any, session)).get(settings.ISOLATED) == chosen


@pytest.fixture
def on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hadoop, checkpoint, shipping):
        monkeypatch.setattr(module, "is_local", lambda master: False)


@pytest.mark.usefixtures("on_a_cluster")
def test_a_file_that_workers_do_not_see_or_see_with_another_content_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    mine, elsewhere = tmp_path / "mine", "hdfs://nowhere:8020/file"
    mine.write_text("x")
    hadoop.require_shared(spark, {"the checkpoint": f"file:{mine}", "an output": elsewhere})
    with mine.open() as opened:
        os.dup2(opened.fileno(), 900)
    try:
        with pytest.raises(
            ConfigError, match=r"^\[CONFIG\] out is on a disk of the driver's machine, .* on \S+ does not see \(Fi"
        ):
            hadoop.require_shared(spark, {"the checkpoint": str(mine), "out": "/proc/self/fd/900"})
    finally:
        os.close(900)
    # of another process, there as here
    with pytest.raises(ConfigError, match=r"\(it has another file there\).*give a place that all machines see"):
        hadoop.require_shared(spark, {"the checkpoint": "file:/proc/self/stat"})
    hadoop.require_shared(spark, {"the checkpoint": "file:/proc/self/stat"}, same=False)


def test_no_job_looks_at_files_on_a_local_master(spark: SparkSession) -> None:
    hadoop.require_shared(spark, {"the checkpoint": "/proc/self/stat"})


@pytest.mark.usefixtures("on_a_cluster")
def test_a_start_asks_whether_workers_see_the_checkpoint_and_the_folders_of_file_sinks_before_the_first_batch(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(spark: SparkSession, files: Any, same: bool = True) -> None:
        asked.update(files)
        assert all(Path(path.removeprefix("file:")).is_file() for path in files.values()), (
            "it is there, to be looked for"
        )
        if any("sink" in each for each in files):
            raise ConfigError("not seen")

    asked: dict[str, str] = {}
    for module in (checkpoint, sinks):
        monkeypatch.setattr(module, "require_shared", unseen)
    stream, where = windowed(counted, source.read()), str(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="not seen"):
        stream.start({"default": FileSink(str(tmp_path / "out"))}, checkpoint=where)
    assert asked == {
        f"checkpoint {where}": f"file:{where}/windowing/query.json",
        f"the sink of stream 'default', file:{tmp_path}/out": f"file:{tmp_path}/out/_owner.json",
    }
    assert not (tmp_path / "checkpoint/offsets").exists()
    assert [each.name for each in (tmp_path / "out").iterdir() if not each.name.startswith((".", "_"))] == []


@pytest.mark.usefixtures("on_a_cluster")
def test_a_lost_file_of_a_checkpoint_with_a_half_done_batch_is_named_on_a_cluster_as_on_one_machine(
    source: Any, tmp_path: Path
) -> None:
    def run() -> None:
        query = windowed(counted, source.read()).start({"default": MemorySink()}, checkpoint=tmp_path / "checkpoint")
        assert query.await_end(100)

    run()
    (tmp_path / "checkpoint/commits/2").unlink()
    kinds: dict[str, tuple[type[Exception], str]] = {
        "query.json": (CorruptStateError, r"query\.json is missing, which says whose the output"),
        "definition.json": (CheckpointError, r"has batches but no windowing/definition\.json"),
    }
    for lost, (error, text) in kinds.items():
        kept = (tmp_path / "checkpoint/windowing" / lost).rename(tmp_path / lost)
        with pytest.raises(error, match=text):
            run()
        kept.rename(tmp_path / "checkpoint/windowing" / lost)


@pytest.mark.usefixtures("on_a_cluster")
def test_a_state_that_is_only_read_and_has_no_file_yet_is_empty_on_a_cluster_too(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    topology, sink = TridentTopology("reading"), MemorySink()
    rates = topology.new_static_state(map_state(SqliteStore(tmp_path / "rates.db"), "rates"))
    stream = topology.new_stream("in", InputSpout("k string"))
    stream.partition_by("k").state_query(rates, "k", MapGet(), "rate long").sink("out")
    rows = feed("k string").add([{"k": "a"}]).read()
    query = submit_trident(
        topology, spark, sources={"in": rows}, sinks={"out": sink}, checkpoint=tmp_path / "checkpoint"
    )
    assert query.await_end(200)
    assert [tuple(row) for row in sink.batches[0]] == [("a", None)]


def test_a_query_that_no_thread_can_watch_is_stopped(
    spark: SparkSession, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("windowing-"):
            raise RuntimeError("can't start new thread")
        real(thread)

    real, running = threading.Thread.start, set(map(str, (each.id for each in spark.streams.active)))
    monkeypatch.setattr(threading.Thread, "start", start)
    where = str(tmp_path / "checkpoint")
    with pytest.raises(RuntimeError, match="new thread"):
        windowed(counted, source.read()).start({"default": MemorySink()}, checkpoint=where, trigger=seconds(1))
    left = [each for each in spark.streams.active if str(each.id) not in running]
    for each in left:
        each.stop()
    assert not left, "it would go on without its lock"


def test_ctrl_c_while_spark_starts_a_query_stops_that_query_and_frees_its_checkpoint(
    spark: SparkSession, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = DataStreamWriter.start

    def interrupted(writer: DataStreamWriter) -> Any:
        query = start(writer)
        signal.raise_signal(signal.SIGINT)
        return query

    stream, where = windowed(counted, source.read()), str(tmp_path / "checkpoint")
    with monkeypatch.context() as patched:
        patched.setattr(DataStreamWriter, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.start(MemorySink(), checkpoint=where, trigger=seconds(1))
    assert spark.streams.active == []
    assert stream.start(MemorySink(), checkpoint=where).await_end(180)


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Where a shell runs the tests in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted")
def test_the_first_ctrl_c_is_held_and_only_in_the_main_thread() -> None:
    happened = []

    def twice() -> None:
        with running._interrupts_held():
            signal.raise_signal(signal.SIGINT)
            happened.append("held")
            signal.raise_signal(signal.SIGINT)

    def with_an_error() -> None:
        with running._interrupts_held():
            signal.raise_signal(signal.SIGINT)
            raise OSError("no room")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        twice()
    assert happened == ["held"]
    with pytest.raises(KeyboardInterrupt) as raised:
        with_an_error()
    assert isinstance(raised.value.__context__, OSError)
    assert signal.getsignal(signal.SIGINT) is before
    thread = threading.Thread(target=running._interrupts_held().__enter__)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("on_a_cluster")
def test_a_start_asks_whether_workers_see_the_log_of_a_delta_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(sink: DeltaSink, spark: SparkSession, owner: Any) -> int:
        (tmp_path / "out/_delta_log").mkdir(parents=True, exist_ok=True)
        (tmp_path / "out/_delta_log/00000000000000000000.json").write_text("{}")
        return -1

    asked: dict[str, str] = {}
    monkeypatch.setattr(DeltaSink, "claim", create)
    monkeypatch.setattr(sinks, "require_shared", lambda spark, files: asked.update(files))
    into: Any = {"default": DeltaSink(str(tmp_path / "out")), "other": DeltaSink(table="air.held")}
    none = StructType.fromDDL("n long")
    sinks.claim(Checkpoint(spark, str(tmp_path / "checkpoint")), into, dict.fromkeys(into, none), (), {})
    assert asked == {
        f"the sink of stream 'default', file:{tmp_path}/out": f"file:{tmp_path}/out/_delta_log/00000000000000000000.json"
    }
