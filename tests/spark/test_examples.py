"""The classic topologies in `examples/` run as commands, and both runtimes give the same rows."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from windowing import count, tumbling
from windowing.spark import windowed

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


# For word_count see the test above, and test_submit.py.
@pytest.mark.parametrize("classic", ["sliding_sum"], indirect=True)
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


def block_of(page: str, contains: str, folder: Path, *moved: str) -> Any:
    """Return the code of a guide that contains a text; the paths that begin with one of `moved` are below `folder`."""
    text = (EXAMPLES.parent / "docs" / "guides" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python(?: title=\"[^\"]+\")?\n(.*?)^```$", text, re.M | re.S)
    (block,) = [block for block in blocks if contains in block and ">>>" not in block]
    return compile(re.sub(rf'"((?:{"|".join(moved)})\b[^"]*)"', rf'"{folder}/\1"', block), page, "exec")


def test_the_first_program_of_the_guide_for_spark_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import windowing.spark

    tmp_path.joinpath("in").mkdir()
    rows = [{"id": n, "origin": "JFK", "at": f"2026-01-01T0{n // 2}:30:00"} for n in range(6)]
    tmp_path.joinpath("in", "rows.json").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(windowing.spark, "session", lambda name, cores: spark)
    exec(block_of("spark.md", "def flights", tmp_path, "in", "flights/"), {"__name__": "guide"})
    assert re.findall(r"JFK\|(\d+)\|\s*(\d+)", capsys.readouterr().out) == [
        (str(1_767_229_200_000 + hour * 3_600_000), "2") for hour in range(2)
    ]


def test_the_program_of_the_guide_for_trident_on_spark_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import windowing.spark

    tmp_path.joinpath("in").mkdir()
    tmp_path.joinpath("in", "lines.txt").write_text("to be or\nnot to be\n")
    monkeypatch.setattr(windowing.spark, "session", lambda name: spark)
    exec(block_of("trident_on_spark.md", "submit_trident(", tmp_path, "in", "counts.db", "out/", "checkpoint"), {})
    changed = windowing.spark.ParquetSink(f"{tmp_path}/out/changed").read(spark).collect()
    assert sorted((row.word, row.n) for row in changed) == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]


def test_the_table_of_the_guide_on_databases_has_each_window_once(spark: SparkSession, tmp_path: Path) -> None:
    @tumbling(count(2), timestamp="at", output="ends long, total long")
    def totals(window: Any) -> tuple[int, int]:
        return window.end_timestamp, sum(row.at for row in window)

    scope: dict[str, Any] = {"__name__": "guide"}
    exec(block_of("exactly_once.md", "class Table", tmp_path, "results.db"), scope)
    spark.createDataFrame([(1,), (2,), (4,), (5,)], "at long").coalesce(1).write.json(f"{tmp_path}/in")
    rows = spark.readStream.schema("at long").json(f"{tmp_path}/in")
    windowed(totals, rows, order_by="at").start(scope["sinks"], f"{tmp_path}/checkpoint").await_end()
    written = scope["sinks"]["default"]
    written.write(spark.createDataFrame([(2, 3), (5, 9)], "ends long, total long"), 0)  # the batch again
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        assert database.execute("SELECT * FROM windows ORDER BY ends").fetchall() == [(0, 2, 3), (0, 5, 9)]
