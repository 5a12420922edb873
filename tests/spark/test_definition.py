"""A changed bolt, schema or number of tasks on an old checkpoint is accepted, or refused in one line before the first batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    DrainedCheckpointError,
)
from windowing.execution.compatibility import Definition, of_bolt
from windowing.spark import MemorySink, SqliteQueue
from windowing.spark.checkpoint import DRAINED_FILE, Checkpoint, common_part
from windowing.spark.hadoop import Folder
from windowing.spark.settings import session_with
from windowing.spark.sinks import OutputOwner
from windowing.spark.spouts import is_packed_by_cores
from windowing.topology.decorators import bolt_of, sliding, tumbling
from windowing.windows.measures import count, seconds

SCHEMA = "k string not null, ts long, v double"


def bolt(length: Any = None, slide: Any = None, output: str = "n long", **options: Any) -> Any:
    options = {"timestamp": "ts", "key": "k"} | options

    @sliding(length or seconds(4), slide or seconds(2), output=output, name="sums", **options)
    def sums(window: Any) -> Any:
        return len(window)

    return bolt_of(sums)


@pytest.fixture
def define(spark: SparkSession, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def make(declared: Any = None, schema: str = SCHEMA, **options: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {"tasks": 2, "grouping": ("k",), "order_by": (), "is_packed": True} | options
        common = common_part(Checkpoint(spark, str(tmp_path / "any")), settings.pop("is_packed"))
        fields = spark.createDataFrame([], schema).schema.fields
        columns = [[field.name, field.dataType.simpleString(), field.nullable] for field in fields]
        inputs = dict.fromkeys(settings.pop("streams", ["default"]), columns)
        return common | of_bolt((declared or bolt()).definition(), inputs=inputs, **settings)

    return make


Define = Callable[..., dict[str, Any]]


def keep(checkpoint: Checkpoint, wanted: Definition, holders: tuple[str, ...] = ()) -> None:
    """Do what a start does with the definition."""
    checkpoint.keep(wanted, checkpoint.compared(wanted), holders)


def test_an_unchanged_definition_is_accepted_and_not_rewritten(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    written = (tmp_path / "windowing/definition.json").read_bytes()
    keep(Checkpoint(spark, str(tmp_path)), define())
    assert (tmp_path / "windowing/definition.json").read_bytes() == written
    assert json.loads(written)["format"] == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"declared": bolt(length=seconds(6))}, 'length of bolt \'sums\' was {"ms": 4000}, now {"ms": 6000}'),
        ({"declared": bolt(slide=count(2))}, "slide of bolt 'sums' was"),
        ({"declared": bolt(offset=seconds(1))}, "offset_ms of bolt 'sums' was 0, now 1000"),
        ({"declared": bolt(key=("k", "v"))}, "key of bolt 'sums' was"),
        ({"tasks": 3}, "tasks was 2, now 3"),
        ({"grouping": "global"}, 'grouping was ["k"], now "global"'),
        ({"streams": ["a", "b"]}, "the input streams were default, now a, b"),
        ({"schema": "k string not null, ts long"}, "column 'v' (double) of input stream 'default' is gone"),
        ({"schema": "k string not null, ts long, v int"}, "column 'v' of input stream 'default' was double, now int"),
        (
            {"schema": SCHEMA + ", w int not null"},
            "column 'w' (int) of input stream 'default' is new, and must be nullable",
        ),
    ],
)
def test_a_change_that_stored_windows_depend_on_is_refused_and_named(
    spark: SparkSession, tmp_path: Path, define: Define, changed: dict[str, Any], said: str
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    log(tmp_path, "offsets", 0)
    before = (tmp_path / "windowing/definition.json").read_bytes()
    with pytest.raises(DefinitionChangedError) as caught:
        keep(Checkpoint(spark, str(tmp_path)), define(**changed))
    assert said in str(caught.value)
    assert "start with a new checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "windowing/definition.json").read_bytes() == before


def test_a_start_that_was_refused_before_its_first_batch_fixes_nothing(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    class Table(MemorySink):
        def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
            if owner.schema is None or owner.schema.names != ["n", "k"]:
                raise ConfigError("the table has other columns")
            super().claim(spark, owner)

    source = feed().add([{"k": "a", "ts": 500, "v": 1.0}, {"k": "a", "ts": 4500, "v": 1.0}]).read()
    with pytest.raises(ConfigError, match="the table has other columns"):
        run(bolt(), source, sinks={"default": Table()}, tasks=2)

    @sliding(seconds(8), seconds(8), timestamp="ts", output="n long, k string", name="sums")
    def sums(window: Any) -> Any:
        return len(window), window.get()[0].k

    assert run(sums, source, sinks={"default": Table()}, tasks=1, drain=True).rows() == [(2, "a")]


def test_only_a_batch_fixes_the_number_of_tasks(spark: SparkSession, tmp_path: Path, define: Define) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define(tasks=3))
    assert Checkpoint(spark, str(tmp_path)).stored_tasks() is None, "the corrected start chooses anew"
    log(tmp_path, "offsets", 0)
    assert Checkpoint(spark, str(tmp_path)).stored_tasks() == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"declared": bolt(lag=seconds(9))},
        {"declared": bolt(late_stream="late")},
        {"declared": bolt(on_error="skip")},
        {"declared": bolt(output="n int")},
        {"schema": SCHEMA + ", w int"},
        {"schema": "v double, ts long, k string not null"},
        {"order_by": ("ts",)},
    ],
)
def test_a_compatible_change_is_accepted_and_stored(
    spark: SparkSession, tmp_path: Path, define: Define, changed: dict[str, Any]
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    keep(Checkpoint(spark, str(tmp_path)), define(**changed))
    stored = json.loads((tmp_path / "windowing/definition.json").read_bytes())
    assert stored == json.loads(json.dumps(define(**changed)))


def test_the_definition_of_a_start_that_made_no_batch_binds_nothing(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    old, new = define(), define(schema=SCHEMA + ", w int")
    keep(Checkpoint(spark, str(tmp_path)), old)
    log(tmp_path, "offsets", 0)
    log(tmp_path, "commits", 0)
    keep(Checkpoint(spark, str(tmp_path)), new)
    assert Checkpoint(spark, str(tmp_path)).definition() == json.loads(json.dumps(old))
    keep(Checkpoint(spark, str(tmp_path)), new)
    keep(Checkpoint(spark, str(tmp_path)), old)
    assert json.loads((tmp_path / "windowing/definition.json").read_bytes()) == json.loads(json.dumps(old))

    keep(Checkpoint(spark, str(tmp_path)), new)
    (tmp_path / "offsets/1").write_text("v1\n{}\n-")
    assert Checkpoint(spark, str(tmp_path)).definition() == json.loads(json.dumps(new))
    gone = r"'w' \(int\) .* is gone \(\.withColumn\('w', F\.lit\(None\)\.cast\('int'\)\) gives it as null\)"
    with pytest.raises(DefinitionChangedError, match=gone):
        keep(Checkpoint(spark, str(tmp_path)), old)


def test_a_query_whose_files_have_a_wider_column_goes_on_with_the_cast_that_the_error_gives(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    @tumbling(seconds(10), timestamp="ts", output="held array<int>", late_stream="late")
    def values(window: Any) -> Any:
        return ([row.v for row in window],)

    source = feed("ts long, v int").add([{"ts": 1_000, "v": 1}])
    assert not run(values, source.read()).rows()
    source.schema, source.arrow = "ts long, v long", source.arrow.set(1, pa.field("v", pa.int64()))
    source.add([{"ts": 2_000, "v": 2}, {"ts": 21_000, "v": 3}])
    given = r"'v' of input stream 'default' was int, now bigint \(\.withColumn\('v', F\.col\('v'\)\.cast\('int'\)\) gives it as "
    with pytest.raises(DefinitionChangedError, match=given):
        run(values, source.read())
    assert run(values, source.read().withColumn("v", F.col("v").cast("int"))).rows() == [([1, 2],)]


def test_a_definition_with_which_a_half_done_batch_is_repeated_binds(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    log(tmp_path, "offsets", 0)
    keep(Checkpoint(spark, str(tmp_path)), define(schema=SCHEMA + ", w int"))
    with pytest.raises(DefinitionChangedError, match="is gone"):
        keep(Checkpoint(spark, str(tmp_path)), define())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 2}', b"\x80\x05K", b'{"format": 2, "bolt": 3}']
)
def test_a_damaged_definition_is_named_and_never_replaced(
    spark: SparkSession, tmp_path: Path, define: Define, content: bytes
) -> None:
    path = tmp_path / "windowing/definition.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match=r"windowing/definition\.json"):
        keep(Checkpoint(spark, str(tmp_path)), define())
    assert path.read_bytes() == content


def test_a_newer_format_is_refused(spark: SparkSession, tmp_path: Path, define: Define) -> None:
    newer = copy.deepcopy(define()) | {"format": 3, "library": "9.9"}
    (tmp_path / "windowing").mkdir()
    (tmp_path / "windowing/definition.json").write_text(json.dumps(newer))
    with pytest.raises(DefinitionChangedError, match=r"format 3, this version reads 2; use the version '9\.9'"):
        keep(Checkpoint(spark, str(tmp_path)), define())


def test_a_checkpoint_of_format_1_is_refused_by_name_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    old = json.loads((Path(__file__).parents[1] / "data" / "definitions.json").read_bytes())["bolt"]
    path = tmp_path / "checkpoint/windowing/definition.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(old))
    with pytest.raises(
        DefinitionChangedError,
        match=rf"{path} has format 1, this version reads 2; drain it with the version '1\.0' that wrote it, or give up .*; then "
        "start with a new checkpoint and a new output folder$",
    ):
        run(bolt(), feed().add([{"k": "a", "ts": 500, "v": 1.0}]).read())
    assert json.loads(path.read_bytes()) == old
    assert [
        str(each.relative_to(tmp_path / "checkpoint")) for each in path.parents[1].rglob("*") if each.is_file()
    ] == ["windowing/definition.json"]
    with pytest.raises(DefinitionChangedError, match="has format 1"):
        Checkpoint(spark, str(tmp_path / "checkpoint")).stored()
    (path.parent / DRAINED_FILE).touch()
    with pytest.raises(DrainedCheckpointError, match="start with a new checkpoint"):
        Checkpoint(spark, str(tmp_path / "checkpoint")).stored()


def log(folder: Path, name: str, *batches: int, content: str = "v1\n{}\n-") -> None:
    (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id": "5f0c4a34-9a1c-4a7e-8f0f-000000000001"}')
    for batch in batches:
        (folder / name / str(batch)).write_text(content)


def test_offsets_without_a_definition_are_refused(spark: SparkSession, tmp_path: Path, define: Define) -> None:
    log(tmp_path, "offsets", 0)
    with pytest.raises(CheckpointError, match="another kind of query wrote it"):
        keep(Checkpoint(spark, str(tmp_path)), define())


def test_the_query_id_is_stored_before_the_first_batch_and_never_generated_again(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    owner = Checkpoint(spark, str(tmp_path)).query_id()
    log(tmp_path, "offsets", 0)
    keep(Checkpoint(spark, str(tmp_path)), define())
    assert Checkpoint(spark, str(tmp_path)).query_id() == owner
    (tmp_path / "windowing/query.json").unlink()
    with pytest.raises(CorruptStateError, match=r"windowing/query\.json is missing.* put the file back from a copy"):
        Checkpoint(spark, str(tmp_path)).query_id()
    assert not (tmp_path / "windowing/query.json").exists()


def test_a_batch_with_offsets_but_without_a_commit_is_pending(spark: SparkSession, tmp_path: Path) -> None:
    assert Checkpoint(spark, str(tmp_path)).pending_batch() is None
    log(tmp_path, "offsets", 8, 9, 10)
    log(tmp_path, "commits", 8, 9)
    (tmp_path / "commits/.10.tmp").write_text("")
    assert Checkpoint(spark, str(tmp_path)).pending_batch() == 10
    (tmp_path / "commits/10").write_text("v2\n{}")
    assert Checkpoint(spark, str(tmp_path)).pending_batch() is None


def test_a_replay_needs_the_same_parallelism_unless_order_by_is_given(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    for name, order in (("plain", ()), ("ordered", ("ts",))):
        stored = define(order_by=order)
        stored["packing"]["parallelism"] = 16
        keep(Checkpoint(spark, str(tmp_path / name)), stored)
        log(tmp_path / name, "offsets", 0)
    with pytest.raises(CheckpointError, match=r"batch 0 .*parallelism was 16, now 2.*start once as before"):
        keep(Checkpoint(spark, str(tmp_path / "plain")), define())
    keep(Checkpoint(spark, str(tmp_path / "ordered")), define(order_by=("ts",)))
    log(tmp_path / "plain", "commits", 0)
    keep(Checkpoint(spark, str(tmp_path / "plain")), define())


def test_a_setting_takes_the_place_of_the_number_of_cores_for_which_files_are_packed(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    leaves = "spark.sql.leafNodeDefaultParallelism"
    with session_with(spark, {leaves: "5"}):
        keep(Checkpoint(spark, str(tmp_path)), define())
    log(tmp_path, "offsets", 0)
    with pytest.raises(
        CheckpointError,
        match=r"batch 0 .*parallelism was 5, now 2.*\(spark\S+Parallelism=5 packs.*start once as before",
    ):
        keep(Checkpoint(spark, str(tmp_path)), define())
    with session_with(spark, {leaves: "5"}):  # the way out, with any number of cores
        keep(Checkpoint(spark, str(tmp_path)), define())


@pytest.mark.python_source
def test_the_number_of_cores_does_not_matter_to_a_source_that_has_its_own_partitions(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path, define: Define
) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", "n long").stream(spark)
    files, rate = feed().add([{"k": "a", "ts": 1, "v": 1.0}]).read(), spark.readStream.format("rate").load()
    both = queue.unionByName(files.selectExpr("ts AS n"))
    assert list(map(is_packed_by_cores, (files, rate, both, queue, queue.where("n > 0")))) == [
        True,
        True,
        True,
        False,
        False,
    ]
    older = define()
    older["packing"]["parallelism"] = 16
    for name, stored in (("new", define(is_packed=False)), ("older", older)):
        keep(Checkpoint(spark, str(tmp_path / name)), stored)
        log(tmp_path / name, "offsets", 0)
        with session_with(spark, {"spark.sql.files.maxPartitionBytes": "1000"}):
            keep(Checkpoint(spark, str(tmp_path / name)), define(is_packed=False))


@pytest.mark.parametrize(
    "name",
    ["spark.sql.files.openCostInBytes", "spark.sql.files.maxPartitionNum", "spark.sql.leafNodeDefaultParallelism"],
)
def test_a_begun_batch_is_not_repeated_with_a_packing_that_was_changed_since_the_start(
    name: str, spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    log(tmp_path, "offsets", 4)
    checkpoint.keep(define(), None)
    with (
        session_with(spark, {name: "77"}),
        pytest.raises(CheckpointError, match=r"batch 4 was left .* was \w+, now 77"),
    ):
        checkpoint.keep_packing(4)
    checkpoint.keep_packing(4)
    with session_with(spark, {name: "77"}):
        checkpoint.keep_packing(5)
        checkpoint.keep_packing(5)
        assert 77 in map(int, filter(str.isdigit, map(str, _packing(tmp_path).values())))
    with pytest.raises(CheckpointError, match=r"batch 5 was left .* was 77, now \w+"):
        checkpoint.keep_packing(5)
    checkpoint.keep_packing(6)
    assert _packing(tmp_path) == define()["packing"]


def test_a_changed_packing_does_not_matter_with_order_by(spark: SparkSession, tmp_path: Path, define: Define) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path))
    log(tmp_path, "offsets", 4)
    checkpoint.keep(define(order_by=("ts",)), None)
    with session_with(spark, {"spark.sql.files.openCostInBytes": "77"}):
        checkpoint.keep_packing(4)


def _packing(checkpoint: Path) -> dict[str, Any]:
    packing: dict[str, Any] = json.loads((checkpoint / "windowing/definition.json").read_bytes())["packing"]
    return packing


class Growing:
    """A context of a cluster whose executors register one after the other."""

    master = "spark://127.0.0.1:7077"

    def __init__(self, *cores: int) -> None:
        self._cores = [*cores]

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        return self._cores.pop(0) if len(self._cores) > 1 else self._cores[0]


def on_cluster(spark: SparkSession, checkpoint: Path, *cores: int) -> Checkpoint:
    """Return the checkpoint in a session on a cluster that has these numbers of cores, one after the other."""
    found = Checkpoint(spark, str(checkpoint))
    found.spark = cast(Any, SimpleNamespace(sparkContext=Growing(*cores), conf=spark.conf))
    return found


@pytest.mark.parametrize(("is_pending", "order", "found"), [(True, (), 8), (False, (), 2), (True, ("ts",), 2)])
def test_a_start_on_a_cluster_waits_for_the_cores_with_which_a_half_done_batch_was_packed(
    is_pending: bool, order: tuple[str, ...], found: int, spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    stored = define(order_by=order)
    stored["packing"]["parallelism"] = 8
    keep(Checkpoint(spark, str(tmp_path)), stored)
    log(tmp_path, "offsets", 0)
    if not is_pending:
        log(tmp_path, "commits", 0)
    again = on_cluster(spark, tmp_path, 2, 2, 5, 8)
    found_there = common_part(again, is_packed=True)["packing"]["parallelism"]
    assert found_there == found


def test_on_a_cluster_a_batch_is_packed_for_the_cores_that_are_registered_when_it_is_made(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    checkpoint = on_cluster(spark, tmp_path, 2)
    log(tmp_path, "offsets", 4)
    checkpoint.keep(define(), None)
    for batch, cores in ((5, 8), (6, 7)):
        checkpoint.spark = on_cluster(spark, tmp_path, cores).spark
        checkpoint.keep_packing(batch)
        assert _packing(tmp_path)["parallelism"] == cores
    checkpoint.spark = on_cluster(spark, tmp_path, 8).spark
    with pytest.raises(CheckpointError, match=r"batch 6 was left .* parallelism was 7, now 8"):
        checkpoint.keep_packing(6)
    checkpoint.allow_other_packing()
    checkpoint.keep_packing(6)
    assert _packing(tmp_path)["parallelism"] == 8


def test_a_run_that_repeats_its_batch_waits_for_the_cores_with_which_it_was_packed(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    checkpoint = on_cluster(spark, tmp_path, 8)
    checkpoint.keep(define(), None)
    checkpoint.keep_packing(0)
    log(tmp_path, "offsets", 0)
    cluster = Growing(2, 2, 5, 8)
    checkpoint.spark = cast(Any, SimpleNamespace(sparkContext=cluster, conf=spark.conf))
    with session_with(spark, {"spark.sql.leafNodeDefaultParallelism": "8"}):
        checkpoint.await_cores()  # does not look
    checkpoint.await_cores(lambda: True)
    assert cluster.defaultParallelism == 5  # the query was stopped
    checkpoint.await_cores()
    checkpoint.keep_packing(0)


def test_with_a_smallest_number_of_partitions_the_number_of_cores_does_not_matter(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    with session_with(spark, {"spark.sql.files.minPartitionNum": "5"}):
        for cores in (2, 8):
            checkpoint = on_cluster(spark, tmp_path, cores)
            keep(checkpoint, define() | {"packing": common_part(checkpoint, is_packed=True)["packing"]})
            if not checkpoint.offsets.names():
                log(tmp_path, "offsets", 0)
    with pytest.raises(CheckpointError, match="minPartitionNum was 5, now None"):
        keep(Checkpoint(spark, str(tmp_path)), define())


@pytest.mark.parametrize("options", [{"order_by": ("ts",)}, {"grouping": "shuffle"}])
def test_a_replay_needs_the_same_columns_with_order_by_or_shuffle_grouping(
    spark: SparkSession, tmp_path: Path, define: Define, options: dict[str, Any]
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define(**options))
    log(tmp_path, "offsets", 0)
    for schema in (SCHEMA + ", w int", "v double, ts long, k string not null"):
        with pytest.raises(CheckpointError, match=r"batch 0 .*columns of input stream 'default' were"):
            keep(Checkpoint(spark, str(tmp_path)), define(schema=schema, **options))
    keep(Checkpoint(spark, str(tmp_path)), define(**options))
    log(tmp_path, "commits", 0)
    keep(Checkpoint(spark, str(tmp_path)), define(schema=SCHEMA + ", w int", **options))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata", "xx"),
        ("metadata", '{"id": "4mcc"}'),
        ("offsets/3", "v1"),
        ("offsets/3", "garbage"),
        ("offsets/3", "v1\n{\n-"),
        ("commits/3", "garb"),
    ],
)
def test_a_damaged_log_file_of_spark_is_named(
    spark: SparkSession, tmp_path: Path, define: Define, name: str, content: str
) -> None:
    keep(Checkpoint(spark, str(tmp_path)), define())
    log(tmp_path, "offsets", 2, 3)
    log(tmp_path, "commits", 2, 3)
    (tmp_path / name).write_text(content)
    with pytest.raises(CorruptStateError, match=name):
        keep(Checkpoint(spark, str(tmp_path)), define())


def test_a_state_without_its_offset_log_is_reported_as_damage(
    spark: SparkSession, tmp_path: Path, define: Define
) -> None:
    (tmp_path / "state/0").mkdir(parents=True)
    with pytest.raises(CorruptStateError, match="offsets/0 is missing"):
        keep(Checkpoint(spark, str(tmp_path)), define())


class ObjectStore:
    """A file system like s3a: a file appears when its stream is closed, and a rename is a copy."""

    def __init__(self, full: bool) -> None:
        self.full = full
        self.done: list[str] = []

    def hasPathCapability(self, path: Any, capability: str) -> bool:  # noqa: N802
        return capability == "fs.capability.outputstream.abortable"

    def mkdirs(self, path: Any) -> None: ...

    def create(self, path: Any, overwrite: bool) -> ObjectStore:
        self.done.append(f"create {path} {overwrite}")
        return self

    def write(self, content: bytearray) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.done.append(f"write {bytes(content).decode()}")

    def abort(self) -> None:
        self.done.append("abort")

    def close(self) -> None:
        self.done.append("close")


@pytest.mark.parametrize("full", [False, True])
def test_a_file_in_an_object_store_is_written_atomically(full: bool) -> None:
    store = ObjectStore(full)
    folder = Folder.__new__(Folder)
    vars(folder).update(
        _fs=store, _path=Named("s3a://b/c"), _error=CheckpointError, _path_class=lambda path, name: f"{path}/{name}"
    )
    if full:
        with pytest.raises(CheckpointError, match="make room there"):
            folder.write("x.json", b"{}")
    else:
        folder.write("x.json", b"{}")
    created = "create s3a://b/c/x.json True"
    assert store.done == ([created, "abort"] if full else [created, "write {}", "close"])


class Named(str):
    def toString(self) -> str:  # noqa: N802
        return str(self)
