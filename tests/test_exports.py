"""The public names: what `windowing/__init__.py` and its drivers name, no more and no less."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import windowing
from windowing import errors, local


def words(text: str) -> list[str]:
    return text.split()


PUBLIC = words("""
    Acker Action Activation BasicBolt Bolt Count CountEvictionPolicy CountTriggerPolicy Duration Effect Event
    EvictionContext EvictionPolicy Expired FailedException Fields InputSpout Late LateReason Lateness OnError
    ReportedFailedException RotatingMap Semantics SkippedTuplesWarning Spout StatefulBolt StatefulWindowManager
    StatefulWindowedBolt TimeEvictionPolicy TimeTriggerPolicy Topology TopologyBuilder TopologyError TriggerPolicy
    Tuple TupleWindow Values WaterMarkEvent WaterMarkEventGenerator WatermarkCountEvictionPolicy
    WatermarkCountTriggerPolicy WatermarkTimeEvictionPolicy WatermarkTimeTriggerPolicy WindowConfig WindowManager
    WindowedBolt WindowedBoltExecutor WindowingError aggregate bolt bolt_of count days hours is_tick millis minutes seconds
    sliding spout tumbling windowed_bolt
""")
RUNTIME = words("""
    Clock ClusterResult DeadBatch DeadLetter LateRow LocalCluster LocalResult LocalRun SystemClock
    TridentCluster TridentResult VirtualClock run_local run_topology run_trident
""")
SPARK = words("""
    BatchMetrics FileSink FunctionSink MemorySink MetricsListener NoopSink ParquetSink PartitionedSpout Root Sink SqliteQueue
    WindowedQuery WindowedStream require_session session submit submit_trident windowed
""")
ALIASES = {"Effect"}
"""A union of classes: it is documented where its members are."""


def literal_all(path: str) -> list[str]:
    """Return `__all__` of a file without importing it."""
    tree = ast.parse((Path(windowing.__file__).parent / path).read_text(encoding="utf-8"))
    assigned = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return list(ast.literal_eval(assigned[0].value))


def test_the_public_names_are_these():
    assert windowing.__all__ == PUBLIC == sorted(PUBLIC)
    assert local.__all__ == RUNTIME == sorted(RUNTIME)


def test_the_public_names_of_the_spark_driver_are_these():
    assert literal_all("spark/__init__.py") == SPARK == sorted(SPARK)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_is_documented(name):
    found = getattr(windowing, name)
    assert name in ALIASES or inspect.getdoc(found)


@pytest.mark.parametrize("name", RUNTIME)
def test_every_public_name_of_the_local_runtime_is_documented(name):
    assert inspect.getdoc(getattr(local, name))


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isclass(getattr(windowing, name))])
def test_every_public_method_of_a_public_class_is_documented(name):
    """`inspect.getdoc` also finds the docstring of the method that a subclass answers."""
    kind = getattr(windowing, name)
    undocumented = [
        method
        for method, value in vars(kind).items()
        if not method.startswith("_") and inspect.isfunction(value) and not inspect.getdoc(getattr(kind, method))
    ]
    assert not undocumented


def test_star_import_gives_the_public_names_and_nothing_else():
    scope: dict[str, object] = {}
    exec("from windowing import *", scope)
    assert sorted(set(scope) - {"__builtins__"}) == PUBLIC


@pytest.mark.parametrize("module", ["local", "local.clock", "local.run", "topology", "errors"])
def test_every_name_in_all_exists(module):
    found = importlib.import_module(f"windowing.{module}")
    assert all(hasattr(found, name) for name in found.__all__)


def test_every_error_has_a_code_of_its_own():
    kinds = [getattr(errors, name) for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_every_error_is_in_the_page_of_errors():
    page = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
    kinds = [getattr(errors, name) for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
    missing = [kind.__name__ for kind in kinds if f"| `{kind.code}` | `{kind.__name__}`" not in page]
    assert not missing, f"say in docs/errors.md what these mean, and the way out: {', '.join(missing)}"
