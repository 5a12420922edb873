"""WindowTask in every runtime: the same input and options give the same rows, late rows, dead letters, acks and fails.

rows, options --> LocalRun                         the oracle of the others
             |--> LocalCluster                     a message for each row; one attempt, so what failed is a dead letter
             |--> Spark, windowed alone            takes no acks: no on_error="fail"
             |--> Spark, behind a spout with acks  a root is a batch
             +--> Trident                          a batch fails whole: on_error="skip" only
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.execution.test_chain_acks import Acking
from tests.execution.test_turn import Task
from tests.stores.memory_pages import MemoryPages
from windowing import Count, bolt_of, millis, windowed_bolt
from windowing.errors import BoltError, ConfigError, CorruptStateError, FailedException, ReportedFailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.local.run import LocalRun
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, TopologyContext
from windowing.topology.plan import Topology
from windowing.topology.window_task import FailTarget, TupleColumns, WindowFailed, WindowTask
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.windows import aggregate as agg
from windowing.windows.config import OnError
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.pages import PageRows

NAMES = ("id", "ts", "key", "v")
FIELDS = "id long, ts long, key string, v double"
OUTPUT = "end long, key string, ids string"
Row = tuple[int, int | None, str, float]
"""A row; a window with a `v` below zero fails."""
LENGTHS = {
    "tumbling": (millis(10), millis(10)),
    "sliding": (millis(20), millis(5)),
    "counts": (Count(4), Count(2)),
    "count over time": (Count(3), millis(10)),
    "time over count": (millis(20), Count(2)),
}


@dataclass
class Seen:
    """The results of a run: the rows, late rows and dead letters of each batch; the failed ids, and the number of acked tuples."""

    rows: list[list[tuple[Any, ...]]] = field(default_factory=list)
    late: list[list[tuple[Any, ...]]] = field(default_factory=list)
    letters: list[tuple[Any, ...]] = field(default_factory=list)
    failed: list[list[int]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)


def lines(window: Any) -> tuple[int, str | None, str]:
    rows = list(window)
    if any(row.v < 0 for row in rows):
        raise ValueError("unlucky")
    news = {row.id for row in window.get_new()}
    ids = " ".join(f"{row.id}{'+' if row.id in news else ''}" for row in rows)
    return window.end_timestamp, window.key, f"{ids} -{len(window.get_expired())}"


class Stateful:
    """Puts the end of each window into its state, and emits the number of ends."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, window: Any) -> tuple[int, str | None, str]:
        end, key, ids = lines(window)
        self.state.put("windows", self.state.get("windows", 0) + 1)
        return end, key, f"{ids} {self.state.get('windows')}"


def declared(options: dict[str, Any], target: Any = lines) -> Any:
    length, slide = LENGTHS[options["windows"]]
    rest = {name: value for name, value in options.items() if name != "windows"}
    # Declaring one twice is refused.
    fresh: Any = type("Fresh", (target,), {}) if isinstance(target, type) else lambda window: target(window)
    return windowed_bolt(
        length=length, slide=slide, timestamp="ts", late_stream="late", name="probe", output=OUTPUT, **rest
    )(fresh)


def topology(bolt: Any, **more: Any) -> Topology:
    builder = TopologyBuilder("probe").configure(
        {"topology.enable.message.timeouts": False, "windowing.max.attempts": 1, "windowing.retry.delay.ms": 0, **more}
    )
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("probe", bolt).global_grouping("rows")
    return builder.build()


def locally(bolt: Any, batches: list[list[Row]]) -> tuple[Seen, LocalRun]:
    seen = Seen()
    run = LocalRun(bolt, clock=VirtualClock())
    for number in range(len(batches) + 1):
        late, failed = len(run.result.late), len(run.result.failed)
        if number < len(batches):
            emitted = run.feed([dict(zip(NAMES, row, strict=True)) for row in batches[number]]) + run.turn()
        else:
            emitted = run.drain()
        seen.rows.append([values for _, values in emitted])
        seen.late.append([(*row, reason.value) for row, reason in run.result.late[late:]])
        seen.failed.append(sorted(row.id for row in run.result.failed[failed:]))
        seen.acked.append(run.result.acked)
    seen.letters = [letter.row() for letter in run.result.dead_letters]
    return seen, run


def in_cluster(bolt: Any, batches: list[list[Row]]) -> tuple[Seen, Any]:
    seen = Seen()
    with LocalCluster(
        topology(bolt), batches={"rows": batches}, clock=VirtualClock(), outputs=["probe", "probe.late"]
    ) as cluster:
        result = cluster.result
        for number in range(len(batches) + 1):
            rows, late, dead = len(result["probe"]), len(result["probe.late"]), len(result.dead_letters)
            if number < len(batches):
                cluster.run_batch({"rows": batches[number]})
            else:
                cluster.drain()
                cluster.checkpoint()
            new = result.dead_letters[dead:]
            seen.rows.append(result["probe"][rows:])
            seen.late.append(result["probe.late"][late:])
            seen.failed.append(sorted(letter.values[0] for letter in new if letter.is_message))
            seen.letters += [letter.row() for letter in new if not letter.is_message]
            seen.acked.append(result.acked)
    return seen, result


def on_spark(bolt: Any, batches: list[list[Row]]) -> Seen:
    task, seen = Task(bolt_of(bolt)), Seen()
    for number in range(len(batches) + 1):
        rows = batches[number] if number < len(batches) else []
        result = task.run([dict(zip(NAMES, row, strict=True)) for row in rows], drain=number == len(batches))
        seen.rows.append([tuple(values.values()) for stream, values in result.rows if stream == "default"])
        seen.late.append([tuple(values.values()) for stream, values in result.rows if stream == "late"])
        seen.letters += [tuple(values.values()) for stream, values in result.rows if stream == "dead_letters"]
    return seen


def submitted(bolt: Any, batches: list[list[Row]]) -> tuple[Seen, list[list[tuple[int, str | None]]]]:
    """Return the results, and for each batch the roots (batches) that it acks or fails."""
    run, seen, news = Acking(topology(bolt)), Seen(), []
    for number in range(len(batches) + 1):
        told = run.run({"rows": batches[number]}) if number < len(batches) else run.run({}, drain=True)
        seen.rows.append(run.out.get("probe", []))
        seen.late.append(run.out.get("probe.late", []))
        seen.letters += run.out.get("probe.dead_letters", [])
        news.append([(batch, failed) for _, batch, failed in told])
    assert len(run.ledger) == 0, "after the drain nothing waits"
    return seen, news


def in_trident(options: dict[str, Any], batches: list[list[Row]]) -> Seen:
    length, slide = LENGTHS[options["windows"]]
    rest = {name: value for name, value in options.items() if name != "windows"}
    built = TridentTopology()
    stream = built.new_stream("rows", InputSpout(FIELDS)).global_()
    windows = stream.window(length, slide, None, lambda window: lines(window), OUTPUT, timestamp="ts", **rest)
    windows.sink("out")
    windows.late_stream().sink("late")
    run, seen = TridentRun(built.build()), Seen()
    for number in range(len(batches) + 1):
        rows = batches[number] if number < len(batches) else []
        out = run.batch({"rows": rows}, now_ms=0, drain=number == len(batches))
        seen.rows.append(out.get("out", []))
        seen.late.append(out.get("late", []))
    return seen


@st.composite
def inputs(draw: Any, ids: bool = False) -> list[list[Row]]:
    """Return batches of rows around a rising time; with `ids` some rows are repeated, in one batch or later."""
    batches: list[list[Row]] = []
    next_id = 1
    for number in range(draw(st.integers(1, 7))):
        batch: list[Row] = []
        for _ in range(draw(st.integers(1, 4))):
            given_before = [row for rows in (*batches, batch) for row in rows]
            if ids and given_before and draw(st.integers(0, 3)) == 0:
                batch.append(draw(st.sampled_from(given_before)))
                continue
            ts = None if draw(st.integers(0, 15)) == 0 else 8 * number + draw(st.integers(-15, 25))
            batch.append((next_id, ts, draw(st.sampled_from("ab")), -1.0 if draw(st.integers(0, 4)) == 0 else 1.0))
            next_id += 1
        batches.append(batch)
    return batches


OPTIONS = st.fixed_dictionaries(
    {
        "windows": st.sampled_from(list(LENGTHS)),
        "on_error": st.sampled_from(["fail", "skip", "dead_letter"]),
    },
    optional={
        "lag": st.just(millis(5)),
        "lateness": st.just("window"),
        "key": st.just("key"),
        "repeat": st.just(True),
    },
)


def allowed(options: dict[str, Any], batches: list[list[Row]]) -> bool:
    try:
        bolt_of(declared(options))
    except ConfigError:
        return False
    return True


slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=25)


def by_end(seen: list[list[Any]]) -> list[list[Any]]:
    return [sorted(rows, key=str) for rows in seen]


@slow
@given(OPTIONS, inputs())
@example({"windows": "sliding", "on_error": "fail"}, [[(1, 3, "a", -1.0), (2, 22, "a", 1.0)], [(3, 9, "b", 1.0)]])
def test_the_same_input_gives_the_same_rows_acks_and_fails_in_every_runtime(
    options: dict[str, Any], batches: list[list[Row]]
) -> None:
    if not allowed(options, batches):
        return
    bolt = declared(options)
    wanted, _ = locally(bolt, batches)
    cluster, _ = in_cluster(bolt, batches)
    assert cluster == wanted, "LocalCluster"
    if options["on_error"] != "fail":
        alone = on_spark(bolt, batches)
        assert (alone.rows, alone.late, alone.letters) == (wanted.rows, wanted.late, wanted.letters), "windowed"
    spark, news = submitted(bolt, batches)
    assert (spark.rows, by_end(spark.late), spark.letters) == (wanted.rows, by_end(wanted.late), wanted.letters)
    check_roots(batches, wanted, news)
    if options["on_error"] == "skip":
        trident = in_trident(options, batches)
        assert (trident.rows, trident.late) == (wanted.rows, wanted.late), "Trident"


def check_roots(batches: list[list[Row]], wanted: Seen, news: list[list[tuple[int, str | None]]]) -> None:
    """A root fails once when one of its tuples does; all others are acked. Roots of a single tuple do so in the same batch."""
    told = [root for roots in news for root in roots]
    failed = {id for ids in wanted.failed for id in ids}
    wrong = {number for number, batch in enumerate(batches) if failed & {row[0] for row in batch}}
    assert sorted(told) == [(number, "probe" if number in wrong else None) for number in range(len(batches))]
    if wanted.acked and all(len(batch) == 1 for batch in batches):
        acked = [sum(failed_by is None for _, failed_by in roots) for roots in news]
        assert acked == [now - before for before, now in pairwise([0, *wanted.acked])]


@slow
@given(OPTIONS, st.lists(inputs().map(lambda batches: batches[0][:1]), min_size=1, max_size=9))
def test_a_tuple_is_acked_by_the_batch_in_which_it_expires(options: dict[str, Any], batches: list[list[Row]]) -> None:
    if not allowed(options, batches):
        return
    spaced = [
        [(number + 1, None if ts is None else 7 * number + ts, key, v) for _, ts, key, v in batch]
        for number, batch in enumerate(batches)
    ]
    wanted, _ = locally(declared(options), spaced)
    _, news = submitted(declared(options), spaced)
    check_roots(spaced, wanted, news)


@slow
@given(OPTIONS.filter(lambda options: options["on_error"] != "fail"), inputs(ids=True))
def test_a_replayed_tuple_with_the_same_id_is_in_no_window_again(
    options: dict[str, Any], batches: list[list[Row]]
) -> None:
    if not allowed(options, batches):
        return
    bolt = declared({**options, "message_id": "id"}, Stateful)
    wanted, run = locally(bolt, batches)
    again = sum(map(len, batches)) - len({row[0] for batch in batches for row in batch})
    assert run.result.duplicates == again
    known: set[int] = set()
    once: list[list[Row]] = []
    for batch in batches:
        once.append([])
        for row in batch:
            once[-1] += [] if row[0] in known else [row]
            known.add(row[0])
    assert locally(declared(options, Stateful), once)[0] == wanted, "as if it had not come again"
    cluster, result = in_cluster(bolt, batches)
    assert (cluster.rows, cluster.late, cluster.letters) == (wanted.rows, wanted.late, wanted.letters), "LocalCluster"
    assert result.acked == wanted.acked[-1] + again == sum(map(len, batches))
    spark, news = submitted(bolt, batches)
    assert (spark.rows, by_end(spark.late), spark.letters) == (wanted.rows, by_end(wanted.late), wanted.letters)
    check_roots([batch[:2] for batch in batches], Seen(), news)


def test_an_id_is_remembered_only_with_its_tuple() -> None:
    bolt = declared({"windows": "tumbling", "message_id": "id"})
    run = LocalRun(bolt)
    row = dict(zip(NAMES, (1, 3, "a", 1.0), strict=True))
    with pytest.raises(ConfigError, match="the message id is 'two', wanted a whole number"):
        run.feed([row, {**row, "id": "two"}])
    with pytest.raises(ConfigError, match="field 'v2' is asked for"):
        LocalRun(declared({"windows": "tumbling", "message_id": "v2"})).feed([row])
    run.feed([row])
    assert (run.drain(), run.result.duplicates) == ([("default", (10, None, "1+ -0"))], 0)


@pytest.mark.parametrize("error", [FailedException, ValueError])
def test_a_failed_exception_fails_tuples_in_runtimes_with_acks_and_ends_the_run_in_others(
    error: type[Exception],
) -> None:
    def picky(window: Any) -> Any:
        if any(row.v < 0 for row in window):
            raise error("unlucky")
        return lines(window)

    batches: list[list[Row]] = [[(1, 3, "a", -1.0)], [(2, 15, "a", 1.0)], [(3, 40, "a", 1.0)]]
    options = {"windows": "tumbling"}
    with pytest.raises(BoltError, match=r"'probe' failed.*unlucky"):
        locally(declared(options, picky), batches)
    with pytest.raises(BoltError, match=r"'probe' failed.*unlucky"):
        on_spark(declared(options, picky), batches)
    if error is ValueError:
        with pytest.raises(BoltError, match=r"'probe' failed.*unlucky"):
            in_cluster(declared(options, picky), batches)
        with pytest.raises(BoltError, match=r"'probe' failed.*unlucky"):
            submitted(declared(options, picky), batches)
        return
    wanted, _ = locally(declared({**options, "on_error": "fail"}, picky), batches)
    assert wanted.failed == [[], [1], [], []]
    assert in_cluster(declared(options, picky), batches)[0] == wanted
    spark, news = submitted(declared(options, picky), batches)
    assert spark.rows == wanted.rows
    check_roots(batches, wanted, news)


@slow
@given(st.sampled_from(["tumbling", "sliding", "counts"]), inputs())
def test_tuples_of_aggregates_are_acked_and_failed_like_those_of_rows(windows: str, batches: list[list[Row]]) -> None:
    def lucky(window: Any) -> Any:
        if window.aggregate["low"] < 0:
            raise ValueError("unlucky")
        return window.end_timestamp, None, str(window.aggregate["low"])

    def of_rows(window: Any) -> Any:
        low = min(row.v for row in window)
        if low < 0:
            raise ValueError("unlucky")
        return window.end_timestamp, None, str(low)

    options = {"windows": windows, "on_error": "fail"}
    wanted, _ = locally(declared(options, of_rows), batches)
    folded = declared({**options, "aggregate": {"low": agg.min("v")}}, lucky)
    assert in_cluster(folded, batches)[0] == wanted
    spark, news = submitted(folded, batches)
    assert spark.rows == wanted.rows
    check_roots(batches, wanted, news)


@pytest.mark.parametrize("target", list(FailTarget))
@pytest.mark.parametrize("error", [ValueError, FailedException, ReportedFailedException])
@pytest.mark.parametrize("on_error", list(OnError))
def test_the_outcome_of_a_failed_window_follows_the_table_of_on_error(
    on_error: OnError, error: type[Exception], target: FailTarget
) -> None:
    def fails(window: Any) -> Any:
        raise error("no")

    bolt = bolt_of(declared({"windows": "tumbling", "on_error": on_error.value}, fails))
    executor = WindowedBoltExecutor(bolt.config, component="probe")
    task = WindowTask(bolt, executor, target)
    task.open(TopologyContext("probe", 3))
    asked = issubclass(error, FailedException)
    assert list(task.add(["a", "b"], TupleColumns([1, 11]), now_ms=0)) == []
    executor.track("default", 30)
    if on_error is OnError.RAISE and not (asked and target is FailTarget.TUPLES):
        wanted = error if asked and target is FailTarget.BATCH else BoltError
        with pytest.raises(wanted, match="no"):
            list(task.turn(0))
        return
    failures = []
    for effect in task.turn(0):
        if isinstance(effect, WindowFailed):
            failures.append((effect, task.dead_letter(effect.window, effect.error)))
    action = OnError.FAIL if on_error is OnError.RAISE else on_error
    assert [effect.action for effect, _ in failures] == [action, action]
    assert task.failures == 2
    assert {effect.report for effect, _ in failures} == {error is not FailedException or on_error is OnError.SKIP}
    assert [(letter.component, letter.task, letter.tuples) for _, letter in failures] == [
        ("probe", 3, ["a"]),
        ("probe", 3, ["b"]),
    ]


# -- windows on disk ------------------------------------------------------------------------------------------------------------


class LosingPages(MemoryPages):
    """Has lost one of its pages."""

    def read(self, page_id: int) -> PageRows:
        if page_id == 3:
            raise CorruptStateError("page 3 is damaged")
        return super().read(page_id)


@pytest.mark.parametrize("catches", [False, True], ids=["", "caught"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_damaged_page_is_not_an_error_of_the_bolt_that_reads_it(on_error: str, catches: bool) -> None:
    def counted(window: Any) -> int:
        with suppress(Exception) if catches else nullcontext():
            return len(list(window))
        return -1

    window: dict[str, Any] = {
        "length": millis(3_000),
        "slide": millis(3_000),
        "timestamp": "ts",
        "max_events_in_memory": 1_000,
    }
    bolt = bolt_of(windowed_bolt(name="probe", output="n long", on_error=on_error, **window)(counted))
    executor = WindowedBoltExecutor(bolt.config, component="probe", pages=LosingPages())
    task = WindowTask(bolt, executor, FailTarget.RUN)
    task.runner.open()
    rows, nothing = [{"ts": ts} for ts in range(3_100)], executor.snapshot()
    list(task.add(rows, task.columns(rows), None))
    with pytest.raises(CorruptStateError, match="page 3 is damaged"):
        list(task.drain())
    executor.restore(nothing)
    assert executor.store_failure is None
