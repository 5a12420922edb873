"""rescale of topologies: the windows of every bolt are moved to the tasks of their keys; bolts with task states are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.execution.test_topology_rescale import Tally
from windowing.cli import commands
from windowing.errors import ConfigError, DefinitionChangedError
from windowing.local import VirtualClock, run_topology
from windowing.queues import Root
from windowing.spark import MemorySink, SqliteQueue, failpoints, submit
from windowing.spark.rescaling import rescale
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.plan import Topology
from windowing.windows import aggregate as agg
from windowing.windows.measures import count, seconds

SCHEMA = "sentence string, at long"
SINKS = ["times", "times.late", "panes", "tally", "total"]
WORDS = ["cow", "moon", "over", "jump", "the", "dish", "spoon", "ran"]


@bolt(output="word string, n int, at long")
def split(tuple: Any) -> Any:
    return [(word, len(word), tuple.at) for word in tuple.sentence.split()]


@sliding(
    seconds(4), seconds(2), timestamp="at", lag=seconds(1), key=("word", "n"), late_stream="late",
    output="word string, end long, ids string, new string, expired string",
)  # fmt: skip
def times(window: Any) -> Any:
    told = ["+".join(str(row.at) for row in part) for part in (window.get(), window.get_new(), window.get_expired())]
    return window.key[0], window.end_timestamp, *told


@sliding(
    seconds(4),
    seconds(2),
    timestamp="at",
    key="word",
    aggregate={"n": agg.sum("n")},
    output="word string, end long, n long",
)
def panes(window: Any) -> Any:
    return window.key, window.end_timestamp, window.aggregate["n"]


@tumbling(count(3), output="rows long")
def total(window: Any) -> Any:
    return len(window)  # the content of a window depends on the order in which the upstream tasks fire


def topology(times_tasks: int, panes_tasks: int, tally_tasks: int = 2) -> Topology:
    builder = TopologyBuilder("words")
    builder.set_spout("sentences", InputSpout(SCHEMA))
    builder.set_bolt("split", split).shuffle_grouping("sentences")
    builder.set_bolt("times", times, times_tasks).fields_grouping("split", "word")
    builder.set_bolt("panes", panes, panes_tasks).fields_grouping("split", "word")
    builder.set_bolt("tally", Tally, tally_tasks).fields_grouping("split", "word")
    builder.set_bolt("total", total).global_grouping("times")
    return builder.build()


def batch(number: int) -> list[dict[str, Any]]:
    """Return eight sentences, with the same words in every batch, and a late sentence."""
    first = 8 * number
    rows = [
        {"sentence": f"{WORDS[at % 8]} {WORDS[(3 * at + number) % 8]}", "at": 400 * (first + at)} for at in range(8)
    ]
    return [*rows, {"sentence": "late dish", "at": 1_000 * (number - 4)}]


@pytest.fixture
def start(spark: SparkSession) -> Callable[..., dict[str, list[tuple[Any, ...]]]]:
    def run(made: Topology, source: Any, checkpoint: str, **options: Any) -> dict[str, list[tuple[Any, ...]]]:
        sinks = {name: MemorySink() for name in SINKS}
        query = submit(made, spark, sources={"sentences": source}, sinks=sinks, checkpoint=checkpoint, **options)
        assert query.await_end(300)
        return {name: [tuple(row) for row in sink.rows] for name, sink in sinks.items()}

    return run


@pytest.mark.parametrize(
    "steps",
    [
        [(2, {"times": 2, "panes": 3})],
        pytest.param([(1, {"times": 5}), (3, {"times": 1, "panes": 4})], marks=pytest.mark.crash),
    ],
)
def test_a_rescaled_topology_emits_the_same_rows_for_each_key(
    feed: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, steps: Any
) -> None:
    batches = [batch(number) for number in range(steps[-1][0] + 2)]
    plain = run_topology(topology(3, 2), {"sentences": batches}, clock=VirtualClock(), outputs=SINKS)
    source, done, place, tasks = feed(SCHEMA), 0, str(tmp_path / "0"), {"times": 3, "panes": 2}
    found: dict[str, list[Any]] = {name: [] for name in SINKS}

    def note(upto: int | None, **options: Any) -> None:
        made = topology(tasks["times"], tasks["panes"])
        for name, rows in start(made, source.add(*batches[done:upto]).read(), place, **options).items():
            found[name] += rows

    for number, (upto, changed) in enumerate(steps, 1):
        note(upto)
        done, old, place, tasks = upto, place, str(tmp_path / str(number)), {**tasks, **changed}
        given = [part for name, tasks_of in changed.items() for part in ("--tasks", f"{name}={tasks_of}")]
        called = CliRunner().invoke(commands, ["rescale", old, place, *given])
        assert called.exit_code == 0, called.output
    note(None, drain=True)
    for name in ("times", "times.late", "panes", "tally"):
        assert len(found[name]) > 2, name
        assert by_word(found[name]) == by_word(plain[name]), name
    assert sorted(found["total"]) == sorted(plain["total"])


def by_word(rows: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:])
    return found


@pytest.mark.crash
def test_a_bolt_with_a_task_state_cannot_be_rescaled_and_is_refused_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    source = feed(SCHEMA).add(batch(0))
    start(topology(3, 2), source.read(), old)
    with pytest.raises(ConfigError, match=r"bolt 'tally' keeps a state of its own \(init_state\)"):
        rescale(old, new, tasks={"tally": 3}, spark=spark)
    with pytest.raises(ConfigError, match="partitions is a number of at least 1, got 0"):
        rescale(old, new, tasks={"times": 2}, partitions=0, spark=spark)
    assert not Path(new).exists()
    rescale(old, new, tasks={"times": 2}, partitions=1, spark=spark)
    stored = json.loads((Path(new) / "windowing/definition.json").read_text())["topology"]
    assert stored["partitions"] == 1
    with pytest.raises(DefinitionChangedError, match="tasks of bolt 'times' was 2, now 3"):
        start(topology(3, 2), source.read(), new)


# -- acks ------------------------------------------------------------------------------------------------------------------------


@sliding(seconds(4), seconds(2), timestamp="at", key="word", output="word string, end long, n long")
def sizes(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


@sliding(seconds(8), seconds(4), timestamp="end", key="word", output="word string, end long, n long")
def sums(window: Any) -> Any:
    return window.key, window.end_timestamp, sum(row.n for row in window)


class Killed(BaseException):
    """A BaseException, which no code under test catches, in place of SIGKILL."""


def die_at(point: str, name: str, number: int) -> None:
    if name == point:
        raise Killed


@pytest.mark.crash
@pytest.mark.python_source
def test_pending_batches_are_acked_by_the_rescaled_query_when_done_after_kills_at_any_failpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*tasks: int) -> Topology:
        builder = TopologyBuilder("acked").configure({"topology.enable.message.timeouts": False})
        builder.set_spout("words", InputSpout("word string, at long"))
        builder.set_bolt("sizes", sizes, tasks[0]).fields_grouping("words", "word")
        builder.set_bolt("sums", sums, tasks[1]).fields_grouping("sizes", "word")
        return builder.build()

    def run(topology: Topology, queue: Any, checkpoint: str, **options: Any) -> list[tuple[Any, ...]]:
        sink = MemorySink()
        given = {"sources": {"words": queue}, "sinks": {"sums": sink}, "checkpoint": checkpoint, "partitions": 1}
        assert submit(topology, spark, **given, **options).await_end(300)
        return [tuple(row) for row in sink.rows]

    rows = [(WORDS[at % 5], 700 * at) for at in range(36)]
    told: dict[str, list[tuple[int, str]]] = {}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for name in ("plain", "dealt"):
        noted = told.setdefault(name, [])

        class Noting(SqliteQueue):
            def ack(self, root: Root, noted: Any = noted) -> None:
                noted.append((root.batch, "ack"))
                super().ack(root)

        queue = Noting(tmp_path / f"{name}.db", "word string, at long", max_rows=6)
        queue.put(rows[:24])
        place, tasks = str(tmp_path / name), (3, 2)
        found[name] = run(made(*tasks), queue, place)
        before = len(noted)
        assert before < 4, "some of the first batches wait in windows"
        if name == "dealt":
            old, place, tasks = place, str(tmp_path / "new"), (2, 3)
            for point in [*failpoints.RESCALE_NAMES, ""]:
                monkeypatch.setattr(failpoints, "hit", partial(die_at, point))
                with pytest.raises(Killed) if point else nullcontext():
                    rescale(old, place, tasks={"sizes": 2, "sums": 3}, partitions=1, spark=spark)
            monkeypatch.undo()
            assert len(noted) == before, "a rescale tells nobody anything"
        queue.put(rows[24:])
        found[name] += run(made(*tasks), queue, place)
        assert before < len(noted) < 6
        assert len(queue) == 36 - 6 * len(noted)
        found[name] += run(made(*tasks), queue, place, drain=True)
        assert len(queue) == 0
    assert told["dealt"] == told["plain"] == [(number, "ack") for number in range(6)]
    assert by_word(found["dealt"]) == by_word(found["plain"])
