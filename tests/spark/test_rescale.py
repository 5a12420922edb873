"""rescale: a checkpoint with another number of tasks continues with the same results; an interrupted rescale is detected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from windowing.cli import commands
from windowing.errors import CheckpointError, ConfigError, DrainedCheckpointError
from windowing.local import run_local
from windowing.spark import failpoints, settings
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.rescaling import rescale
from windowing.topology.decorators import sliding, tumbling
from windowing.windows import aggregate as agg
from windowing.windows.measures import count, seconds

SCHEMA = "id long, k string, n int, ts long, v double"
KEYS = [("a", 1), ("b", 1), ("b", 2), (None, 3), ("d", None), ("e", -5)]


@sliding(
    seconds(4), seconds(2), timestamp="ts", lag=seconds(1), key=("k", "n"), message_id="id", late_stream="late",
    output="k string, n int, ends long, held string, new string, expired string", name="times",
)  # fmt: skip
def times(window: Any) -> Any:
    told = ["+".join(str(row.id) for row in part) for part in (window.get(), window.get_new(), window.get_expired())]
    return *window.key, window.end_timestamp, *told


@tumbling(
    count(3),
    key=("k", "n"),
    aggregate={"n": agg.count(), "v": agg.sum("v")},
    output="k string, n int, rows long, v double",
    name="counts",
)
def counts(window: Any) -> Any:
    return *window.key, window.aggregate["n"], window.aggregate["v"]


def newer(one: Any, other: Any) -> Any:
    """Return the newer of two whole rows; None is none."""
    return other if one is None or (other is not None and other.ts > one.ts) else one


@sliding(
    seconds(4), seconds(2), timestamp="ts", key="k", lateness="window", name="panes",
    aggregate={"v": agg.max("v"), "newest": agg.fold(lambda: None, newer, newer, lambda row: row.id)},
    output="k string, ends long, v double, newest long",
)  # fmt: skip
def panes(window: Any) -> Any:
    return window.key, window.end_timestamp, window.aggregate["v"], window.aggregate["newest"]


def batch(number: int) -> list[dict[str, Any]]:
    """Return twelve rows, two of each key, then a late row and a repeated row."""
    first = 12 * number
    rows = [
        dict(
            zip(
                ("id", "k", "n", "ts", "v"),
                (first + at, *KEYS[at % 6], 1_000 * (first + at) // 6, float(at)),
                strict=True,
            )
        )
        for at in range(12)
    ]
    late = {**rows[0], "id": 10_000 + number, "ts": 1_000 * (number - 4)}
    again = {**rows[1], "id": first - 5} if number else rows[4]  # of the same key, as a repeated tuple is
    return [*rows, late, again]


def by_key(rows: list[tuple[Any, ...]], width: int) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[row[:width]].append(row[width:])
    return dict(found)


@pytest.mark.parametrize(
    ("bolt", "steps"),
    [
        (times, [(2, 3)]),
        pytest.param(times, [(2, 5), (3, 1)], marks=pytest.mark.crash),
        pytest.param(counts, [(3, 3)], marks=pytest.mark.crash),
        pytest.param(panes, [(2, 4)], marks=pytest.mark.crash),
    ],
)
def test_a_rescaled_query_fires_the_same_windows_for_each_key(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, bolt: Any, steps: Any
) -> None:
    batches = [batch(number) for number in range(steps[-1][0] + 3)]
    plain = run_local(bolt, batches)
    source, done, place = feed(SCHEMA), 0, str(tmp_path / "0")
    found: dict[str, list[Any]] = {"default": [], "late": []} if bolt is times else {"default": []}
    for number, (upto, tasks) in enumerate(steps, 1):
        part = run(bolt, source.add(*batches[done:upto]).read(), place, **({} if done else {"tasks": 2}))
        for name, rows in found.items():
            rows += part.rows(name)
        done, old, place = upto, place, str(tmp_path / str(number))
        if number == 1:
            operator = Path(old, "state/1")  # as dropDuplicates in the source has one
            operator.mkdir()
            with pytest.raises(CheckpointError, match=r"has the state of operators of Spark in front of its bolts"):
                rescale(old, place, tasks=tasks, spark=spark)
            operator.rmdir()
            assert not Path(place).exists()
        command = [sys.executable, "-m", "windowing", "rescale", old, place, "--tasks", str(tasks)]
        called = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)  # has run no query
        assert called.returncode == 0, called.stderr[-4000:]
        assert f"{old} is closed" in called.stdout
        assert json.loads((Path(place) / "windowing/definition.json").read_text())["tasks"] == tasks
    last, width = run(bolt, source.add(*batches[done:]).read(), place, drain=True), 1 if bolt is panes else 2
    for name, rows in found.items():
        rows += last.rows(name)
        assert by_key(rows, width) == by_key(plain[name], width)
    assert len(found["default"]) > 6
    assert bolt is not times or found["late"]
    if bolt is times:
        with pytest.raises(CheckpointError, match=f"was rescaled into file:{place}, which goes on in its place"):
            run(bolt, source.read(), old)
        with pytest.raises(DrainedCheckpointError):
            rescale(place, str(tmp_path / "more"), tasks=2, spark=spark)


@pytest.mark.crash
def test_ids_in_blocks_are_known_after_a_restart_and_a_rescale(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(count(1), key=("k", "n"), message_id="id", output="ids array<long>")
    def each(window: Any) -> Any:
        return ([row.id for row in window],)

    def rows(ids: Any) -> list[dict[str, Any]]:
        return [{"id": id, "k": KEYS[id % 6][0], "n": KEYS[id % 6][1], "ts": 0, "v": 0.0} for id in ids]

    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    many = range(0, 50_000, 5)
    source = feed(SCHEMA).add(rows(many), rows([0, 20_000, 20_001, 49_995, 49_996, 49_996]))
    assert len(run(each, source.read(), old, tasks=2).rows()) == len(many) + 2
    assert run(each, source.add(rows([20_001, 20_002, 49_995])).read(), old).rows() == [([20_002],)]
    rescale(old, new, tasks=3, spark=spark)
    again = run(each, source.add(rows(many), rows([20_002, 20_003, 60_000])).read(), new)
    assert sorted(again.rows()) == [([20_003],), ([60_000],)]
    assert run(each, source.add(rows([20_003, 20_004])).read(), new).rows() == [([20_004],)]


@pytest.mark.crash
def test_tasks_that_no_tick_has_reached_are_refused_until_a_start_without_input_brings_one(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(seconds(600), key="k", output="rows long")
    def sizes(window: Any) -> Any:
        return len(window)

    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    source = feed(SCHEMA).add(batch(0), batch(1)[:1])
    found = run(sizes, source.read(), old, tasks=3).rows()
    with pytest.raises(CheckpointError, match="tasks of bolt 'sizes' are not those of one batch"):
        rescale(old, new, tasks=2, spark=spark)
    found += run(sizes, source.read(), old).rows()
    rescale(old, new, tasks=2, spark=spark)
    found += run(sizes, source.read(), new, drain=True).rows()
    assert sum(rows for (rows,) in found) == len(batch(0)) + 1


# -- kills and refusals ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """A BaseException, which no code under test catches, in place of SIGKILL."""


@pytest.mark.crash
def test_a_rescale_killed_at_any_failpoint_is_detected_and_can_be_repeated(
    spark: SparkSession,
    feed: Callable[..., Any],
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    source = feed(SCHEMA).add(batch(0), batch(1))
    first = run(panes, source.read(), old, tasks=2)
    before = {path: path.read_bytes() for path in Path(old).rglob("*") if path.is_file()}

    for point in failpoints.RESCALE_NAMES:

        def die(name: str, number: int, point: str = point) -> None:
            if name == point:
                raise Killed

        monkeypatch.setattr(failpoints, "hit", die)
        with pytest.raises(Killed):
            rescale(old, new, tasks=3, spark=spark)
        monkeypatch.undo()
        if point == "before_rescale":
            assert not Path(new).exists()
            continue
        with pytest.raises(CheckpointError, match=f"{new} is half made: a rescale of file:{old} into it"):
            run(panes, source.read(), new)
        now = {path: path.read_bytes() for path in Path(old).rglob("*") if path.is_file()}
        assert {path for path in now if path not in before and not path.name.startswith(".")} == (
            {Path(old) / "windowing/rescaled.json"} if point == "after_rescale" else set()
        )
        assert {path: now[path] for path in before} == before
    with pytest.raises(CheckpointError, match=f"was rescaled into file:{new}"):
        rescale(old, str(tmp_path / "other"), tasks=3, spark=spark)
    (Path(old) / "windowing/rescaled.json").unlink()

    def go_on(name: str, number: int) -> None:  # like a query in another process, on a file system without locks
        if name == "after_rescaled_state":
            (Path(old) / "offsets/2").write_bytes((Path(old) / "offsets/1").read_bytes())

    monkeypatch.setattr(failpoints, "hit", go_on)
    with pytest.raises(CheckpointError, match="has a batch that it had not when rescale began: its query runs"):
        rescale(old, new, tasks=3, spark=spark)
    monkeypatch.undo()
    assert not (Path(old) / "windowing/rescaled.json").exists()
    (Path(old) / "offsets/2").unlink()
    rescale(old, new, tasks=3, spark=spark)
    left = {path.name for path in (Path(new) / "windowing").iterdir() if not path.name.startswith(".")}
    assert left == {"control", "definition.json", "query.json"}
    with pytest.raises(CheckpointError, match=f"{new} is complete: {old} was rescaled into it; start the query on it"):
        rescale(old, new, tasks=3, spark=spark)
    rest = run(panes, source.add(batch(2)).read(), new, drain=True)
    whole = run(panes, source.read(), str(tmp_path / "plain"), tasks=2, drain=True)
    assert by_key(first.rows() + rest.rows(), 1) == by_key(whole.rows(), 1)


def test_a_rescale_into_a_checkpoint_in_use_is_refused_and_leaves_the_old_one_free(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_ENDING_S", 0.1)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    held = settings.take(Checkpoint(spark, new))
    with pytest.raises(CheckpointError, match=f"another query of this process writes to checkpoint {new}"):
        rescale(old, new, tasks=2, spark=spark)
    settings.take(Checkpoint(spark, old)).set()
    held.set()


def test_a_checkpoint_that_cannot_be_rescaled_is_refused_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(seconds(2), timestamp="ts", output="n long", name="alone")
    def alone(window: Any) -> Any:
        return len(window)

    new = str(tmp_path / "new")
    run(alone, feed(SCHEMA).add(batch(0)).read(), tasks=1)
    old = str(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=r"bolt 'alone' has no key=.* keep its number of tasks"):
        rescale(old, new, tasks=2, spark=spark)
    # A drain died after Spark had planned its batch, and before it was logged.
    planned = tmp_path / "checkpoint/sources/1/0"
    planned.parent.mkdir(parents=True, exist_ok=True)
    planned.write_text(f'v1\n{{"path":"file://{old}/windowing/control/drain.json","timestamp":1,"batchId":0}}')
    with pytest.raises(CheckpointError, match=r"was being drained when its query died; start it once .*, drain=True"):
        rescale(old, new, tasks=2, spark=spark)
    planned.unlink()
    commits = tmp_path / "checkpoint/commits"
    (commits / "0").rename(tmp_path / "commit")
    with pytest.raises(CheckpointError, match=r"batch 0 of checkpoint .* is half done; start its query once"):
        rescale(old, new, tasks=2, spark=spark)
    with pytest.raises(CheckpointError, match=r"is no checkpoint of this library: there is no .*definition\.json"):
        rescale(str(tmp_path / "none"), new, tasks=2, spark=spark)
    with pytest.raises(ConfigError, match="old and new are one folder"):
        rescale(old, f"{old}/", tasks=2, spark=spark)
    with pytest.raises(ConfigError, match="tasks is a number of at least 1, got 0"):
        rescale(old, new, tasks=0, spark=spark)
    refused = CliRunner().invoke(commands, ["rescale", old, new, "--tasks", "2"])
    assert (refused.exit_code, "is half done" in refused.output, "Traceback" in refused.output) == (1, True, False)
    assert not Path(new).exists()
