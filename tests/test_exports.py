"""The exact public names of the eight public packages; docs, examples and benchmarks import only these."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, get_args, get_type_hints

import pytest

import windowing
from windowing import errors
from windowing.topology.builder import Declarer
from windowing.trident import Stream

ROOT = Path(__file__).parents[1]


def words(text: str) -> list[str]:
    return text.split()


PUBLIC = {
    "windowing": words("""
        Acked Acker Action Activation BasicBolt BasicOutputCollector Bolt BoltError CheckpointError ConfigError
        CorruptStateError Count CountEvictionPolicy CountTriggerPolicy DefinitionChangedError DrainedCheckpointError
        Duration Effect Event EvictionContext EvictionPolicy ExecutionPlan Expired Failed FailedException Fields GroupingError
        InputSpout InvalidTimestampError InvalidTimestampWarning KeyValueState Late LateReason Lateness
        LostFieldsWarning OnError OutputCollector PersistentWindowedBoltExecutor QueryStoppedError
        ReportedFailedException RotatingMap RowError Schema Semantics SessionError SinkError SkippedTuplesWarning
        SourceError Spout SpoutOutputCollector StateError StateProvider StateStore StatefulBolt StatefulWindowManager
        StatefulWindowedBolt StoreUnavailableError SupersededError TimeEvictionPolicy TimeTriggerPolicy Topology
        TopologyBuilder TopologyContext TopologyError TriggerPolicy Tuple TupleWindow Values WaterMarkEvent
        WaterMarkEventGenerator WatermarkCountEvictionPolicy WatermarkCountTriggerPolicy WatermarkTimeEvictionPolicy
        WatermarkTimeTriggerPolicy WindowConfig WindowManager WindowedBolt WindowedBoltExecutor WindowingError
        WorkerLostError aggregate bolt bolt_of count days execution_plan hours is_tick millis minutes seconds sliding spout tumbling
        windowed_bolt
    """),
    "windowing.local": words("""
        Clock ClusterResult DeadBatch DeadLetter LateRow LocalCluster LocalResult LocalRun SystemClock TimeLine TridentCluster
        TridentResult VirtualClock explain run_local run_topology run_trident to_png to_svg
    """),
    "windowing.monitoring": words("""
        ClusterMetrics LivePage Metric MetricKind PrometheusCollector RunMetrics Sample TaskMetrics export_to_opentelemetry samples
        serve_page serve_prometheus
    """),
    "windowing.queues": words("""
        KafkaSpout KafkaTridentSpoutOpaque KafkaTridentSpoutTransactional Message MessageSource PartitionedSpout RabbitQueue
        RedisStream Root Spooled SqliteQueue
    """),
    "windowing.spark": words("""
        BatchMetrics DeltaSink FileSink FunctionSink KafkaSink MemorySink MetricsListener NoopSink OutputOwner ParquetSink
        PartitionedSpout PostgresSink Root Sink SqliteQueue WindowedQuery WindowedStream check configure kafka require_session
        rescale session submit submit_trident windowed
    """),
    "windowing.stores": words("""
        MapStateFactory MemoryStore PostgresStore RedisStore SnapshotFactory SqlitePages SqliteRecordStore SqliteStore Store
        map_state snapshot_state state_table store_of
    """),
    "windowing.testing": words("""
        Watch check_attempts check_counts check_ids check_restarts replay
    """),
    "windowing.trident": words("""
        Aggregator BackingMap BatchCoordinator ChainedAggregatorDeclarer Claim CombinerAggregator CombinerValueUpdater
        CommitterEmitter CoordinatorConfig CoordinatorStream Count Debug Emitter Equals Fence FilterNull FirstN
        FixedBatchSpout GroupedStream Guarantee IBatchSpout ICommitterTridentSpout IOpaquePartitionedTridentSpout
        IPartitionedTridentSpout ITridentSpout JoinType MapGet MapState MasterBatchCoordinator Max MaxBy Min MinBy
        Negate NonTransactionalMap OnFailure OpaqueMap OpaquePartitionedEmitter PartitionId PartitionedCoordinator
        PartitionedEmitter QueryFunction ReadOnlyMapState ReadOnlySnapshottable Readiness Reading ReducerAggregator
        ReducerValueUpdater ReplaceUpdater RetryPolicy SnapshotGet Snapshottable SnapshottableMap SpoutContext SpoutKind
        State StateCodec StateFactory StateRow StateSpec StateType StateUpdater Stream Sum TransactionAttempt
        TransactionalMap TridentCollector TridentPlan TridentRun TridentState TridentTopology TupleCollectionGet
        TypedJson ValueUpdater WindowOutput check_guarantee
    """),
}
SUBMODULES = {"windowing": {"columnar"}, "windowing.testing": {"simulator", "strategies"}}
"""Public modules that have to be imported by name, because they need an optional package or are programs."""
EXTRA = {"windowing.errors"}
"""Also public: all errors, as docs/reference/errors.md says."""
OPTIONAL = {
    "windowing": "pyspark py4j hypothesis pandas pyarrow numpy psycopg redis xxhash matplotlib sqlite3 windowing.trident",
    "windowing.trident": "pyspark py4j hypothesis pandas pyarrow numpy psycopg redis xxhash matplotlib",
    "windowing.stores": "pyspark py4j hypothesis pandas pyarrow numpy psycopg redis xxhash matplotlib windowing.trident",
    "windowing.local": "pyspark py4j hypothesis pandas pyarrow numpy psycopg redis xxhash matplotlib",
    "windowing.queues": "pyspark py4j hypothesis psycopg redis pika confluent_kafka matplotlib windowing.local windowing.spark "
    "windowing.trident",
    "windowing.testing": "pyspark py4j hypothesis pandas pyarrow numpy psycopg redis xxhash matplotlib",
    "windowing.monitoring": "pyspark hypothesis pandas pyarrow numpy psycopg redis xxhash prometheus_client opentelemetry",
    "windowing.spark": "pandas hypothesis psycopg redis confluent_kafka matplotlib "
    "windowing.trident windowing.local windowing.testing",
}
"""Modules that importing a public package must not load."""
MOST_OF_WINDOWED = 103
"""How many modules of this library `windowing.spark.windowed` may load: 101 when this was written."""
ALIASES = {"Effect"}
"""A union of classes, documented at its members."""


def names_of(door: str) -> list[str]:
    """Return `__all__` of a public package without importing it: windowing.spark needs pyspark."""
    tree = ast.parse((ROOT / door.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return list(ast.literal_eval(found[0].value))


@pytest.mark.parametrize("door", PUBLIC)
def test_the_public_names_are_pinned(door):
    assert names_of(door) == PUBLIC[door] == sorted(PUBLIC[door])


@pytest.mark.parametrize("door", PUBLIC)
def test_every_public_name_can_be_imported_and_is_documented(door):
    if door == "windowing.spark":
        pytest.importorskip("pyspark")
    found = importlib.import_module(door)
    undocumented = [name for name in PUBLIC[door] if not (inspect.getdoc(getattr(found, name)) or name in ALIASES)]
    assert not undocumented


@pytest.mark.parametrize("door", PUBLIC)
def test_every_public_name_is_known_to_type_checkers(door):
    """A name that is loaded on first use is imported under TYPE_CHECKING too; neither ruff nor mypy says so."""
    tree = ast.parse((ROOT / door.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    imported = {
        each.asname or each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names
    }
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert set(PUBLIC[door]) <= imported | defined


def test_the_docstring_of_windowing_names_every_public_package_and_module():
    text = inspect.getdoc(windowing)
    assert not [name for name in [*PUBLIC, *EXTRA, *SUBMODULES["windowing"]] if name not in text]


def test_the_version_is_that_of_the_installed_package_and_is_looked_up_when_it_is_asked_for():
    assert windowing.__version__ == version("windowing")
    assert "importlib.metadata" not in loaded_by("import windowing")


def test_without_an_installed_package_the_version_is_unknown(monkeypatch: pytest.MonkeyPatch):
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    assert windowing.__version__ == "unknown"


def loaded_by(code: str) -> list[str]:
    """Return the modules that a new process has loaded after `code`."""
    code += "\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("door", PUBLIC)
def test_importing_a_public_package_loads_no_optional_module(door):
    modules = loaded_by(f"import {door}" + ("; windowing.spark.windowed" if door == "windowing.spark" else ""))
    unasked = [name for name in words(OPTIONAL[door]) if name in modules]
    assert not unasked, f"import {door} loads {', '.join(unasked)}"


def test_windowed_on_spark_loads_a_limited_part_of_the_library_and_no_trident():
    modules = loaded_by("import windowing.spark; windowing.spark.windowed")
    ours = [name for name in modules if name.split(".")[0] == "windowing"]
    assert not [name for name in ours if name.startswith("windowing.trident")]
    assert len(ours) <= MOST_OF_WINDOWED, f"{len(ours)} modules: {' '.join(ours)}"


def test_lazily_loaded_names_come_from_their_modules_and_unknown_names_raise_attribute_error():
    modules = loaded_by(
        "from windowing.spark import submit_trident; from windowing.stores import RedisStore, map_state"
    )
    assert {"windowing.spark.trident_submit", "windowing.stores.redis", "windowing.stores.factory"} <= set(modules)
    for door in ("windowing.spark", "windowing.stores"):
        with pytest.raises(AttributeError, match="has no attribute 'hub'"):
            importlib.import_module(door).hub  # noqa: B018 - the attribute is asked for


@pytest.mark.parametrize("name", [name for name in PUBLIC["windowing"] if inspect.isclass(getattr(windowing, name))])
def test_every_public_method_of_a_public_class_is_documented(name):
    """`inspect.getdoc` also finds the docstring of an overridden method."""
    kind = getattr(windowing, name)
    undocumented = [
        method
        for method, value in vars(kind).items()
        if not method.startswith("_") and inspect.isfunction(value) and not inspect.getdoc(getattr(kind, method))
    ]
    assert not undocumented


def test_the_package_has_py_typed_for_type_checkers():
    assert (ROOT / "windowing" / "py.typed").exists(), "without it mypy takes every name of the library for Any"


def test_star_import_gives_the_public_names_and_nothing_else():
    scope: dict[str, object] = {}
    exec("from windowing import *", scope)
    assert sorted(set(scope) - {"__builtins__"}) == PUBLIC["windowing"]


def test_every_public_error_has_its_own_code():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.WindowingError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_every_public_error_is_in_the_table_of_errors():
    page = (Path(__file__).parents[1] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.WindowingError)
    ]
    missing = [kind.__name__ for kind in kinds if f"| `{kind.code}` | `{kind.__name__}`" not in page]
    assert not missing, f"say in docs/reference/errors.md what these mean, and the way out: {', '.join(missing)}"


# -- imports in docs, examples and benchmarks -------------------------------------------------------------------------

BLOCK = re.compile(r"^```(?:python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'python -c "([^"]+)"')
DOTTED = re.compile(r"\bwindowing(?:\.[A-Za-z_]\w*)+")


def code_in(path: Path) -> Iterator[str]:
    """Yield the Python in a file: a whole module, or the blocks and `python -c` commands of a page, without prompts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield text
        return
    for block in BLOCK.findall(text):
        lines = block.splitlines()
        at_prompt = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        yield "\n".join(at_prompt if any(line.startswith(">>> ") for line in lines) else lines)
    yield from COMMAND.findall(text)


def is_public(name: str) -> bool:
    """Whether a dotted name is a public package, a public name in one, or no module of this library."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:length]), parts[length:]
        if module in EXTRA:
            return True
        if module in PUBLIC:
            return not rest or rest[0] in [*PUBLIC[module], *SUBMODULES.get(module, ())]
    return True


def deep_names(code: str) -> Iterator[str]:
    """Yield the names that some code imports from this library and that are not public."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.module.partition(".")[0] == "windowing" and node.module not in {*PUBLIC, *EXTRA}:
                yield from names
                continue
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "windowing" and not is_public(name))


def deep_mentions(text: str) -> Iterator[str]:
    """Yield the dotted names in prose that name a part of this library that is not public."""
    for name in DOTTED.findall(text):
        parts = name.split(".")
        path = ROOT.joinpath(*parts[:2])
        if (path.is_dir() or path.with_suffix(".py").exists()) and not is_public(name):
            yield name


READ = sorted(
    path
    for place in ("README.md", "docs", "examples", "benchmarks")
    for path in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    if path.suffix in {".py", ".md"}
)


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_docs_examples_and_benchmarks_import_public_names_only(path):
    deep = [name for code in code_in(path) for name in deep_names(code)]
    if path.suffix == ".md":
        # A line with ::: generates the API reference.
        deep += deep_mentions(re.sub(r"(?m)^::: .*", "", path.read_text(encoding="utf-8")))
    assert not deep, f"{path.relative_to(ROOT)} uses {', '.join(deep)}: take it from {', '.join(sorted(PUBLIC))}"


@pytest.mark.parametrize("package", sorted(PUBLIC))
def test_the_examples_of_public_docstrings_import_public_names_only(package):
    module = importlib.import_module(package)
    deep = []
    for name in PUBLIC[package]:
        code = "\n".join(re.findall(r"(?m)^>>> (.*import .*)$", inspect.getdoc(getattr(module, name)) or ""))
        deep += [f"{name}: {each}" for each in deep_names(code)]
    assert not deep


@pytest.mark.parametrize(
    ("code", "deep"),
    [
        ("from windowing.topology.builder import TopologyBuilder", ["windowing.topology.builder.TopologyBuilder"]),
        ("def f():\n    from windowing.spark.metrics import metrics_of", ["windowing.spark.metrics.metrics_of"]),
        ("import windowing.windows.manager", ["windowing.windows.manager"]),
        ("from windowing.trident import Graph, Count", ["windowing.trident.Graph"]),
        ("from windowing.testing.replay import replay", ["windowing.testing.replay.replay"]),
        ("from windowing.columnar import ColumnRows", ["windowing.columnar.ColumnRows"]),
        ("from windowing import columnar, count\nfrom windowing.testing import strategies, replay", []),
        ("import windowing\nimport windowing.spark\nfrom windowing.errors import SnapshotError", []),
    ],
)
def test_the_checker_reports_an_import_that_is_not_public(code, deep):
    assert list(deep_names(code)) == deep


def test_the_checker_reports_a_private_name_in_prose_and_accepts_a_setting():
    text = "`windowing.local.drawing.to_svg`, `windowing.local.to_svg`, `windowing.max.attempts`, `windowing.errors.StateError`"
    assert list(deep_mentions(text)) == ["windowing.local.drawing.to_svg"]


COLUMNAR = """
from windowing import count, tumbling
from windowing.local import run_local
@tumbling(count(1), columnar="arrow", output="n long")
def sizes(window):
    return len(window)
run_local(sizes, [[{"n": 1}]])
"""

EXTRAS = [
    ("numpy", COLUMNAR, "columnar=", "spark"),
    ("pyarrow", COLUMNAR, "columnar=", "spark"),
    ("pyarrow", "from windowing.spark import session", "windowing.spark", "spark"),
    ("pyspark", "from windowing.spark import session", "windowing.spark", "spark"),
    ("pyarrow", "from windowing.queues import SqliteQueue", "windowing.queues", "spark"),
    ("psycopg", "from windowing.stores import PostgresStore", "windowing.stores.PostgresStore", "postgres"),
    ("psycopg", "from windowing.spark import PostgresSink", "windowing.spark.PostgresSink", "postgres"),
    ("redis", "from windowing.queues import RedisStream", "windowing.queues.RedisStream", "redis"),
    ("pika", "from windowing.queues import RabbitQueue", "windowing.queues.RabbitQueue", "rabbitmq"),
    ("confluent_kafka", "from windowing.spark import KafkaSink", "windowing.spark.KafkaSink", "kafka"),
]


@pytest.mark.parametrize(("package", "code", "what", "extra"), EXTRAS)
def test_a_missing_package_is_named_with_the_extra_that_installs_it(package, code, what, extra):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stderr.strip().splitlines()[-1]
    assert told.startswith(f"ModuleNotFoundError: {what} needs the package {package}"), told
    assert told.endswith(f"; pip install 'windowing[{extra}]'")


# -- missing packages and names ----------------------------------------------------------------------------------------

WITHOUT_CLIENTS = """
import sys

class Finder:  # as if the packages of servers were not installed
    def find_spec(self, name, path=None, target=None):
        for finder in others:
            if name.partition(".")[0] not in {"psycopg", "redis", "pika", "confluent_kafka"}:
                found = finder.find_spec(name, path, target)
                if found is not None:
                    return found

others, sys.meta_path[:] = list(sys.meta_path), [Finder()]
from windowing.queues import *
from windowing.spark import *
from windowing.stores import *
print(SqliteQueue.__name__, windowed.__name__, SqliteStore.__name__)
for package, name in (("stores", "PostgresStore"), ("spark", "KafkaSink"), ("queues", "RabbitQueue")):
    try:
        exec(f"from windowing.{package} import {name}")
    except ImportError as problem:
        print(problem)
"""


def test_a_star_import_omits_names_that_need_a_missing_package():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_CLIENTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "SqliteQueue windowed SqliteStore",
        "windowing.stores.PostgresStore needs the package psycopg; pip install 'windowing[postgres]'",
        "windowing.spark.KafkaSink needs the package confluent_kafka; pip install 'windowing[kafka]'",
        "windowing.queues.RabbitQueue needs the package pika; pip install 'windowing[rabbitmq]'",
    ]


def test_importing_a_name_of_another_package_names_the_right_import():
    with pytest.raises(ImportError, match=r"no .run_local.; write from windowing\.local import run_local"):
        from windowing import run_local  # noqa: F401
    for package in PUBLIC.keys() - {"windowing"}:
        for name in set(PUBLIC[package]) - {*PUBLIC["windowing"], "State"}:
            packages = "|".join(each for each, names in PUBLIC.items() if name in names)
            with pytest.raises(ImportError, match=rf"no '{name}'; write from ({packages}) import {name}$"):
                exec(f"from windowing import {name}")
            with pytest.raises(AttributeError, match=rf"no '{name}'; write from ({packages}) import {name}$"):
                getattr(windowing, name)


@pytest.mark.parametrize("package", [name for name in PUBLIC if name not in ("windowing", "windowing.trident")])
def test_a_public_package_says_where_a_name_of_another_package_and_of_storm_is(package):
    for name, write in (
        ("sliding", "from windowing import sliding"),
        ("run_local" if package != "windowing.local" else "submit", "from windowing."),
        ("StormSubmitter", "from windowing.spark import submit"),
    ):
        with pytest.raises(ImportError, match=rf"^{package} has no '{name}'; write {write}"):
            exec(f"from {package} import {name}")
        assert not hasattr(importlib.import_module(package), name)
    assert not hasattr(importlib.import_module(package), "another")


def test_a_module_that_is_called_as_a_public_name_is_imported_as_before():
    from windowing.local import windowed
    from windowing.queues import spout

    assert (windowed.__name__, spout.__name__) == ("windowing.local.windowed", "windowing.queues.spout")


# -- protocols -------------------------------------------------------------------------------------------------------------------

MADE_HERE = {"BasicOutputCollector", "OutputCollector", "SpoutOutputCollector", "TridentCollector"}
MAY_BE_LEFT_OUT = {"State": {"rollback", "close"}}


def protocols() -> list[type]:
    public = (getattr(importlib.import_module(package), name) for package, names in PUBLIC.items() for name in names)
    found = {each for each in public if isinstance(each, type) and getattr(each, "_is_protocol", False)}
    return sorted(found, key=lambda protocol: protocol.__name__)


def methods_of(protocol: type) -> dict[str, set[str]]:
    """Return, by protocol that it is or inherits from, the names that it declares."""
    declaring = [each for each in protocol.__mro__ if getattr(each, "_is_protocol", False) and each is not Protocol]
    return {
        each.__name__: {name for name in vars(each) if not name.startswith("_") or name == "__contains__"}
        for each in declaring
    }


@pytest.mark.parametrize("protocol", [each for each in protocols() if each.__name__ not in MADE_HERE])
def test_a_class_that_leaves_a_method_of_a_protocol_unwritten_cannot_be_used(protocol):
    required = {
        name for each, names in methods_of(protocol).items() for name in names - MAY_BE_LEFT_OUT.get(each, set())
    }
    assert required, protocol
    for missing in required:  # the method of the protocol itself does nothing
        written = dict.fromkeys(required - {missing}, lambda *_: None)
        misspelled = type("Misspelled", (protocol,), {**written, f"{missing}_": lambda *_: None})
        with pytest.raises(TypeError, match=rf"abstract class Misspelled with.* abstract method '?{missing}'?"):
            misspelled()
        assert type("Written", (misspelled,), {missing: lambda *_: None})()


NAMED_BY_USERS = {
    "windowing": {"Bolt": "execute"},
    "windowing.trident": {
        "CombinerAggregator": "init combine",
        "ReducerAggregator": "reduce",
        "Aggregator": "init aggregate complete",
        "ValueUpdater": "update",
        "State": "begin_commit commit",
        "StateUpdater": "update_state",
        "QueryFunction": "batch_retrieve execute",
    },
}


@pytest.mark.parametrize(
    ("package", "name", "method"),
    [
        (package, name, method)
        for package, classes in NAMED_BY_USERS.items()
        for name, methods in classes.items()
        for method in words(methods)
    ],
)
def test_a_class_of_a_user_names_the_arguments_as_it_likes_for_every_type_checker(package, name, method):
    """Pyright refuses an override whose arguments have other names, unless they are given by position only."""
    given = inspect.signature(getattr(getattr(importlib.import_module(package), name), method)).parameters.values()
    assert all(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in given)


@pytest.mark.parametrize("name", ["StateFactory.kind", "BackingMap.place"])
def test_a_class_of_a_user_sets_an_attribute_where_the_protocol_has_one(name):
    """Pyright refuses an attribute in place of a property, and `self.place = place` has no setter."""
    kind, attribute = name.split(".")
    assert attribute not in vars(getattr(importlib.import_module("windowing.trident"), kind))


@pytest.mark.parametrize(
    ("method", "argument", "number"),
    [
        (Stream.each, "function", 1),
        (Stream.filter, "condition", 1),
        (Stream.map, "function", 1),
        (Stream.flat_map, "function", 1),
        (Stream.peek, "function", 1),
        (Stream.partition, "choose", 2),
        (Declarer.custom_grouping, "grouping", 2),
    ],
)
def test_a_type_checker_knows_the_arguments_of_a_lambda(method, argument, number):
    """With Any in their place strict pyright reports each lambda as of an unknown type."""
    function = next(arg for arg in get_args(get_type_hints(method)[argument]) if get_args(arg))
    assert len(get_args(function)[0]) == number
