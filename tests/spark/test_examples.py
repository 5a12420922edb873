"""The classic topologies in `examples/` run as commands, and both runtimes give the same rows."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
CLASSICS = {"word_count": "38 words, 27 of them different", "sliding_sum": "10 averages of three sums"}


@pytest.fixture
def classic(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(request.param)
    cloudpickle.register_pickle_by_value(module)  # like __main__: the workers do not have this sys.path
    yield module
    cloudpickle.unregister_pickle_by_value(module)


def started(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert "Received UDF from JVM" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "line"), CLASSICS.items())
def test_a_classic_topology_runs_in_one_process(name: str, line: str) -> None:
    assert started(name).startswith(f"{line} (local)\n")


@pytest.mark.crash
@pytest.mark.parametrize(("name", "line"), CLASSICS.items())
def test_a_classic_topology_prints_the_same_with_on_spark(name: str, line: str) -> None:
    here, there = started(name), started(name, "--on", "spark")
    assert there.startswith(f"{line} (spark)\n")
    assert there.splitlines()[1:] == here.splitlines()[1:]


@pytest.mark.parametrize(
    "classic", ["sliding_sum"], indirect=True
)  # word_count: see the test above, and test_submit.py
def test_a_classic_topology_emits_the_same_rows_on_both_runtimes(classic: ModuleType, spark: SparkSession) -> None:
    from classics import run, run_on_spark

    here = run(classic.topology(), classic.BATCHES, "local")
    there = run_on_spark(classic.topology(), classic.BATCHES, spark)
    assert {name: sorted(rows) for name, rows in there.items()} == {name: sorted(rows) for name, rows in here.items()}
    assert all(here.values())


def test_the_bolt_of_the_readme_emits_the_same_rows_on_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    import windowing.spark

    blocks = re.findall(r"^```python\n(.*?)^```$", (EXAMPLES.parent / "README.md").read_text(), re.M | re.S)
    (here,) = [block for block in blocks if "run_local" in block]
    (there,) = [block for block in blocks if "windowing.spark" in block]
    example = doctest.DocTestParser().get_doctest(here, {"__name__": "__main__"}, "README.md", None, 0)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    monkeypatch.setattr(windowing.spark, "session", lambda name: spark)
    exec(compile(there, "README.md", "exec"), example.globs)
    rows = {name: [tuple(row) for row in sink.rows] for name, sink in example.globs["sinks"].items()}
    assert rows == {name: example.globs["result"][name] for name in ("default", "late")}
    assert len(rows["default"]) == 5
