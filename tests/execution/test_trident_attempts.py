"""Attempts at batches as on Spark, without a JVM: one pass over the stages, whose tasks write only after all earlier tasks
succeeded.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident import test_trident_sections as sections
from tests.trident.test_trident_operations import BATCHES, PARTED, Row, assume_few, pipelines
from tests.trident.test_trident_stream_protocol import COMMITTING
from windowing.columnar.rows import PART_BYTES, decode_table
from windowing.errors import BoltError, FailedException, WindowingError
from windowing.execution.metrics import LAST_KEPT, TaskMetrics
from windowing.execution.plan import Section
from windowing.spark import trident_spouts, trident_stages
from windowing.spark.exchange import TASK_AND_CLOCK, ExchangeRow, record_batches
from windowing.spark.failures import WorkerError
from windowing.spark.metrics import TaskTotals
from windowing.spark.operator import Stored
from windowing.spark.shipping import Shipped
from windowing.spark.spouts import ReadAllAvailable
from windowing.spark.trident_commits import Attempts
from windowing.spark.trident_spouts import TridentSpoutReader
from windowing.spark.trident_stages import TridentBatchStage, TridentSpoutStage, trident_turn
from windowing.stores import MapStateFactory, SqliteStore, map_state, snapshot_state
from windowing.stores.sqlite import SqliteMap
from windowing.topology.components import InputSpout
from windowing.trident.builtins import Count
from windowing.trident.fence import PartitionId
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.plan import SpoutNode, TridentPlan
from windowing.trident.spouts import (
    FixedBatchSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    SpoutContext,
)
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.trident.transactional_state import MemoryRecordStore
from windowing.windows.measures import count

WORDS = st.lists(st.sampled_from(["to", "be", "or", "not"]), max_size=8)
PARTITIONS, TASKS = 2, 2


class Failing:
    """Fails at one word or count while it is set; everything runs in one process."""

    place: str | None = None

    def __init__(self, place: str) -> None:
        self._place = place

    def keep(self, row: Any) -> bool:
        if Failing.place == self._place and row[0] in ("not", 1):
            raise FailedException(f"told to fail {self._place}")
        return True


class Tally(Count):
    """A user's combiner, which may fail an attempt while it combines."""

    def combine(self, a: int, b: int) -> int:
        if Failing.place == "combine":
            raise FailedException("told to fail combine")
        return a + b


def plan_of(
    path: Path,
    aggregator: Any,
    behind: bool = False,
    shuffled: bool = False,
    kind: StateType = StateType.OPAQUE,
) -> tuple[TridentPlan, dict[str, MapStateFactory]]:
    """Words are counted, with `shuffled` behind another exchange, and with `behind` also how often each count occurred."""
    states = {name: map_state(SqliteStore(path), name, kind) for name in ("words", "counts")}
    topology = TridentTopology("attempts")
    words = topology.new_stream("in", InputSpout("k string")).filter(Failing("source"))
    if shuffled:
        words = words.shuffle().filter(Failing("shuffled")).parallelism_hint(TASKS)
    counted = words.group_by("k").persistent_aggregate(states["words"], None, aggregator, "n long")
    new = counted.parallelism_hint(TASKS).new_values_stream().filter(Failing("new values"))
    if behind:
        seen = new.group_by("n").persistent_aggregate(states["counts"], None, Count(), "times long")
        seen.parallelism_hint(TASKS)
    return topology.build().by_section(), states


class Opening(SqliteStore):
    """Notes which partitions are opened and closed."""

    def open(self, place: PartitionId) -> SqliteMap:
        opened = super().open(place)
        NOTED.append(f"open {place}")
        close = opened.close

        def noted() -> None:
            NOTED.append(f"close {place}")
            close()

        opened.close = noted  # type: ignore[method-assign]
        return opened


NOTED: list[str] = []


class OwnClaims:
    """A factory of a user's own, with a way of its own to claim."""

    kind, name = StateType.OPAQUE, "own"

    def claim_attempt(self, txid: int, partitions: int, at_least: int = 0) -> TransactionAttempt:
        return TransactionAttempt(txid, at_least + 3)

    def make_state(self, partition: int, partitions: int) -> Any:
        raise AssertionError("nothing runs")


def test_the_connection_in_which_a_state_claims_its_attempts_stays_open_until_the_run_ends(tmp_path: Path) -> None:
    NOTED.clear()
    topology = TridentTopology("attempts")
    words = topology.new_stream("in", InputSpout("k string"))
    words.group_by("k").persistent_aggregate(map_state(Opening(tmp_path / "s.db"), "words"), None, Count(), "n long")
    words.persistent_aggregate(snapshot_state(Opening(tmp_path / "s.db"), "all"), None, Count(), "n long")
    words.partition_persist(OwnClaims(), None, Persisted())
    attempts = Attempts(topology.build().by_section())
    assert NOTED == [], "a check opens nothing"
    assert [attempts.claim(txid).txid for txid in (1, 1, 2, 3)] == [1, 1, 2, 3]
    assert sorted(NOTED) == ["open all/ledger", "open words/ledger"]
    attempts.close()
    attempts.close()
    assert sorted(NOTED[2:]) == ["close all/ledger", "close words/ledger"]
    assert attempts.claim(3).attempt > 0, "a later run claims above it"
    attempts.close()


class Persisted:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        raise AssertionError("nothing runs")


class Channel:
    """Receives the metrics of tasks, as the driver does."""

    def __init__(self) -> None:
        self.totals = TaskTotals("attempts")

    def send(self, batch: int, upstream: int, now_ms: int, found: Any) -> None:
        self.totals.take({(batch, upstream): (now_ms, tuple(found))})


def attempt_at(
    plan: TridentPlan, words: list[str], attempt: TransactionAttempt, seed: int, channel: Any = None
) -> list[ExchangeRow]:
    """Run one attempt; return the rows for the driver. A shuffle delivers rows in any order."""
    shipped, chance = SimpleNamespace(value=plan), random.Random(seed)
    rows: list[ExchangeRow] = []
    for partition in range(PARTITIONS):
        part = words[partition::PARTITIONS]
        given = pa.RecordBatch.from_pydict(
            {"c0": pa.array(part, pa.string()), TASK_AND_CLOCK: pa.array([7] * len(part), pa.int64())}
        )
        stage = TridentSpoutStage(shipped, plan.spouts[0].number, False, channel)
        rows += _rows(stage.pack(iter([given]), partition, attempt.txid - 1))
    rows = behind_stream(shipped, rows, attempt, chance, channel)
    assert {row.target for row in rows} == {-1}
    return rows


def behind_stream(
    shipped: Shipped[TridentPlan],
    rows: list[ExchangeRow],
    attempt: TransactionAttempt,
    chance: random.Random,
    channel: Any = None,
    stages: int | None = None,
) -> list[ExchangeRow]:
    """Run the stages of the driver's part of a batch, or the first ones; return the rows that they send."""
    plan = shipped.value
    depths = [*plan.depths(Section.BATCH), *plan.depths(Section.COMMIT)]
    for position, depth in enumerate(depths[:stages]):
        begun = [ExchangeRow(task.number, "begin", "", 0, 0, 0, None, 0, None) for task in plan.tasks_at(depth)]
        rows = chance.sample([*rows, *begun], len(rows) + len(begun))
        stage = TridentBatchStage(shipped, depth, depths[:position], attempt, channel)
        rows = _rows(stage.pack(record_batches(rows), 0, 0))
    return rows


def _rows(batches: Any) -> list[ExchangeRow]:
    return [ExchangeRow(*row.values()) for batch in batches for row in batch.to_pylist()]


def held(state: MapStateFactory) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for partition in range(TASKS):
        with closing(state.make_state(partition, TASKS)) as part:
            found |= {key: value for (key,), value in part.items()}
    return found


def each_stage_executed_the_tuples_emitted_to_it(plan: TridentPlan, found: dict[str, TaskMetrics]) -> None:
    emitted = Counter[str]()
    for each in found.values():
        emitted.update(each.emitted)
    handed = {id: found[id].executed if id in found else 0 for id, stage in plan.stages.items() if not stage.is_spout}
    assert handed == {id: emitted[id] for id in handed}


def counted_once(plan: TridentPlan, found: dict[str, TaskMetrics], words: int) -> None:
    """Assert that each batch is counted once, after any number of attempts."""
    each_stage_executed_the_tuples_emitted_to_it(plan, found)
    assert all(each.acked == each.executed for each in found.values())
    source = found.get(plan.stage_of(plan.spouts[0].number).id)
    assert words == (0 if source is None else sum(source.emitted.values()))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("aggregator", "kind", "shuffled"),
    [
        (Count(), StateType.OPAQUE, False),
        (Tally(), StateType.OPAQUE, True),
        (Tally(), StateType.TRANSACTIONAL, False),
    ],
)
def test_an_attempt_that_failed_anywhere_leaves_each_batch_counted_once(
    tmp_path_factory: pytest.TempPathFactory, aggregator: Any, kind: StateType, shuffled: bool, behind: bool
) -> None:
    places = st.sampled_from(["source", "shuffled", "combine", "new values"])

    @settings(deadline=None, max_examples=25)
    @given(st.lists(st.tuples(WORDS, st.lists(places, max_size=2)), min_size=1, max_size=4), st.integers(0, 9))
    def counted(batches: list[tuple[list[str], list[str]]], seed: int) -> None:
        plan, states = plan_of(tmp_path_factory.mktemp("states") / "states.db", aggregator, behind, shuffled, kind)
        model, seen, channel = Counter[str](), Counter[int](), Channel()
        for txid, (words, failures) in enumerate(batches, 1):
            for number, Failing.place in enumerate([*failures, None]):
                rows = attempt_at(plan, words, TransactionAttempt(txid, number), seed, channel)
                before = held(states["words"])
                if "not" in words and (Failing.place == "source" or (shuffled and Failing.place == "shuffled")):
                    assert any(row.kind == "failed" for row in rows)
                    if number == 0:
                        assert before == model, "a task wrote though one before it had failed"
            model += Counter(words)
            seen += Counter(model[word] for word in set(words))
            assert held(states["words"]) == model
            assert not behind or held(states["counts"]) == seen
        counted_once(plan, channel.totals.now(0).components(), model.total())

    try:
        counted()
    finally:
        Failing.place = None


def test_no_task_writes_before_all_earlier_tasks_have_succeeded(tmp_path: Path) -> None:
    plan, states = plan_of(tmp_path / "states.db", Tally(), shuffled=True)
    batch, commit = plan.depths(Section.BATCH)[0], plan.depths(Section.COMMIT)[0]
    shipped, attempt = SimpleNamespace(value=plan), TransactionAttempt(1, 0)
    first, second = (task.number for task in plan.tasks_at(batch))
    (begun,) = record_batches([ExchangeRow(first, "begin", "", 0, 0, 0, None, 0, None)])  # the second one is missing
    rows = _rows(TridentBatchStage(shipped, batch, [], attempt).pack(iter([begun]), 0, 0))
    with pytest.raises(
        WindowingError, match=rf"was to write attempt 1:0 before the tasks \[{second}\] had worked on it"
    ):
        list(TridentBatchStage(shipped, commit, [batch], attempt).pack(record_batches(rows), 0, 0))
    assert held(states["words"]) == {}


def test_rows_of_an_attempt_that_are_asked_for_outside_of_its_thread_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = plan_of(tmp_path / "states.db", Tally())
    stage = TridentBatchStage(SimpleNamespace(value=plan), plan.depths(Section.COMMIT)[0], [])
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(getLocalProperty={}.get))
    with pytest.raises(
        WindowingError, match=r"the attempt of the batch is not known here: .* not in a thread of its own"
    ):
        next(stage.pack(iter([]), 0, 0))


def test_a_task_that_writes_gets_a_report_from_every_earlier_task(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path / "states.db", Count(), behind=True)
    writers = [task.number for task in plan.tasks if trident_stages.writes(task)]
    assert len(writers) == 2 * TASKS
    assert trident_stages.writers_behind(plan, 0) == writers
    assert trident_stages.writers_behind(plan, plan.depths(Section.COMMIT)[0]) == writers[TASKS:]


def reporting(row: Any, collector: Any) -> None:
    collector.report_error(ValueError(f"bad {row.k}"))
    if row.k == "last":
        raise FailedException("told to fail")
    collector.emit((row.k,))


def rows_behind_source(words: list[str], windowed: bool, function: Any = reporting) -> list[ExchangeRow]:
    """Return the rows of the stage behind a source in which each word reports an error, and "last" fails the batch."""
    topology = TridentTopology("reporting")
    stream = topology.new_stream("in", InputSpout("k string")).flat_map(function, "k string")
    (stream.tumbling_window(count(2), None, Count(), "n long") if windowed else stream).sink("out")
    plan = topology.build().by_section()
    columns = {"c0": pa.array(words, pa.string()), TASK_AND_CLOCK: pa.array([7] * len(words), pa.int64())}
    stage = TridentSpoutStage(SimpleNamespace(value=plan), plan.spouts[0].number, False)
    return _rows(stage.pack(iter([pa.RecordBatch.from_pydict(columns)]), 0, 0))


@pytest.mark.parametrize("words", [LAST_KEPT, LAST_KEPT + 4])
def test_all_errors_that_a_task_reports_are_counted_and_the_first_ones_are_sent_with_their_text(words: int) -> None:
    reported = [row for row in rows_behind_source(["to"] * words, windowed=False) if row.kind == "reported"]
    assert sum(row.value for row in reported) == words
    texts = [b"ValueError: bad to"] * LAST_KEPT
    assert [row.data for row in reported] == texts + ([b"more of them"] if words > LAST_KEPT else [])


def test_a_task_that_spark_retries_logs_the_first_errors_and_how_many_more_there_are(caplog: Any) -> None:
    with pytest.raises(FailedException, match="told to fail"):
        rows_behind_source(["to"] * (LAST_KEPT + 3) + ["last"], windowed=True)
    lines = [each.getMessage() for each in caplog.records]
    assert lines == ["spout in reports ValueError: bad to"] * LAST_KEPT + ["4 more errors were reported"]


class Closed:
    """A function whose connection fails, unless `is_open`."""

    is_open = False

    def prepare(self, context: Any) -> None:
        if not Closed.is_open:
            raise FailedException("no connection")

    def execute(self, row: Any, collector: Any) -> None:
        collector.emit(row)


def test_a_failed_exception_in_a_prepare_behind_a_source_fails_the_attempt_and_names_its_step() -> None:
    rows = rows_behind_source(["to", "be"], windowed=False, function=Closed())
    text = b"step 2, flat_map with Closed failed in prepare: no connection"
    assert [(row.kind, row.data) for row in rows] == [("failed", text)]
    with pytest.raises(FailedException, match=text.decode()):
        rows_behind_source(["to"], windowed=True, function=Closed())


def test_a_time_that_utc_has_not_is_refused_where_a_step_returns_it() -> None:
    """Behind an exchange no step could read it."""

    def last(row: Any) -> Any:
        return row.k, datetime.max.replace(tzinfo=timezone(timedelta(hours=-5 if row.k == "never" else 0)))

    topology = TridentTopology("times")
    stream = topology.new_stream("in", InputSpout("k string")).map(last, "k string, at timestamp")
    stream.shuffle().filter(lambda row: row.at.year == 9999).sink("out")
    plan = topology.build().by_section()
    rows = attempt_at(plan, ["be", "to"], TransactionAttempt(1, 0), 3)
    out = [row for each in rows if each.kind == "out" for row in decode_table(each.data).column("k").to_pylist()]
    assert sorted(out) == ["be", "to"]
    refused = (
        r"step 2, map with last emitted a wrong row on .*never.*, wanted a datetime .*, in UTC in the years 1 to 9999"
    )
    with pytest.raises(BoltError, match=refused):
        attempt_at(plan, ["be", "never", "to"], TransactionAttempt(2, 0), 3)


def test_an_error_of_a_spout_of_batches_names_the_spout_and_its_line(monkeypatch: Any) -> None:
    class Failing(FixedBatchSpout):
        fails = ""

        def open(self, context: SpoutContext) -> None:
            self._fail("open")

        def is_ready(self, txid: int) -> Any:
            self._fail("is_ready")
            return super().is_ready(txid)

        def emit_batch(self, txid: int, collector: Any) -> None:
            self._fail("emit_batch")
            super().emit_batch(txid, collector)

        def ack(self, txid: int) -> None:
            self._fail("ack")

        def _fail(self, method: str) -> None:
            if Failing.fails == method:
                raise OSError("no host")

    def batch_of(reader: TridentSpoutReader) -> None:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.partitions(start, end)
        reader.commit(end)

    class Unlisted(IPartitionedTridentSpout):
        output = "k string"

        def get_coordinator(self) -> Any:
            class Coordinator(PartitionedCoordinator):
                def get_partitions_for_batch(self) -> Any:
                    raise OSError("no host")

            return Coordinator()

        def get_emitter(self) -> Any:
            return PartitionedEmitter

    def plan_with(spout: Any) -> TridentPlan:
        topology = TridentTopology("failing")
        topology.new_stream("in", spout).sink("out")
        return topology.build()

    fixed = Failing("k string", 1, [("to",)])
    for fails, where in (
        ("metadata", "on the metadata of 1:0"),
        ("open", "when it was opened"),
        ("is_ready", "in is_ready"),
        ("emit_batch", "on batch 1:0"),
        ("ack", "in success of 1:0"),
    ):
        Failing.fails = fails
        plan = plan_with(Unlisted() if fails == "metadata" else fixed)
        with pytest.raises(WorkerError) as found:
            batch_of(TridentSpoutReader(plan, plan.spouts[0], MemoryRecordStore()))
        cause = str(found.value.__cause__)
        assert re.search(rf"spout 'in' failed {where}: OSError: no host \(.*test_trident_attempts\.py:\d+\)$", cause)


def test_large_tuples_are_sent_in_packets_of_limited_size() -> None:
    words = [f"{number:07d}" for number in range(40)]
    sent = rows_behind_source(words, windowed=False, function=lambda row: row.k * (1 << 17))  # 0.9 MB each
    packets = [decode_table(row.data) for row in sent if row.kind == "out"]
    assert len(packets) > 2
    assert max(packet.nbytes for packet in packets) <= PART_BYTES
    assert [value[:7] for packet in packets for value in packet.column("k").to_pylist()] == words


def test_a_spout_of_batches_logs_the_first_errors_that_it_reports_in_ten_seconds(caplog: Any, monkeypatch: Any) -> None:
    class Reporting(FixedBatchSpout):
        def open(self, context: SpoutContext) -> None:
            for number in range(LAST_KEPT + 3):
                context.report_error(ValueError(f"bad {number}"))

    topology = TridentTopology("reporting")
    topology.new_stream("in", Reporting("k string", 1, [("to",)])).sink("out")
    plan = topology.build()
    (node,) = (each for each in plan.graph.nodes.values() if isinstance(each, SpoutNode))
    reader, at_s = TridentSpoutReader(plan, node, MemoryRecordStore()), [100.0]
    monkeypatch.setattr(trident_spouts.time, "monotonic", lambda: at_s[0])
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    lines = [each.getMessage() for each in caplog.records]
    assert lines[0] == "spout 'in' reports ValueError: bad 0"
    assert lines[LAST_KEPT - 1 :] == [
        f"spout 'in' reports ValueError: bad {LAST_KEPT - 1}; more of it are not logged for a while"
    ]
    at_s[0] += 10
    reader._spout.report(ValueError("later"))
    assert caplog.records[-1].getMessage() == "spout 'in' reports ValueError: later"


def test_what_a_task_sends_is_cut_into_batches_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("columnar.rows.PART_BYTES", "spark.exchange._BATCH_BYTES"):
        monkeypatch.setattr(f"windowing.{limit}", 100_000)
    topology = TridentTopology("texts")
    stream = topology.new_stream("in", InputSpout("k string")).batch_global()
    stream.flat_map(lambda row: [random.Random(row.k).randbytes(20_000).hex()] * 9, "k string").sink("out")
    plan = topology.build().by_section()
    shipped, attempt = SimpleNamespace(value=plan), TransactionAttempt(1, 0)
    columns = {"c0": pa.array(map(str, range(20)), pa.string()), TASK_AND_CLOCK: pa.array([7] * 20, pa.int64())}
    sent = TridentSpoutStage(shipped, plan.spouts[0].number, False).pack(
        iter([pa.RecordBatch.from_pydict(columns)]), 0, 0
    )
    (depth,) = plan.depths(Section.BATCH)
    batches = list(TridentBatchStage(shipped, depth, [], attempt).pack(sent, 0, 0))
    assert len(batches) > 20
    assert max(batch.nbytes for batch in batches) < 300_000
    texts = [text for row in _rows(batches) if row.kind == "out" for text in decode_table(row.data)["k"].to_pylist()]
    assert len(texts) == 180


class StagesRun:
    """A plan batch by batch on the stages of Spark, with the windows that Spark stores; a shuffle delivers rows in any order."""

    def __init__(self, plan: TridentPlan, chance: random.Random) -> None:
        self.plan, self.chance, self.shipped = plan, chance, SimpleNamespace(value=plan)
        self.windows: dict[int, bytes | None] = {}
        self.last: list[ExchangeRow] = []

    def batch(self, txid: int, rows: list[Row]) -> list[Row]:
        """Commit a batch after an attempt at other tuples that was killed behind any stage; return the rows of the sink."""
        (spout,) = self.plan.spouts
        tasks = self.plan.stage_of(spout.number).parallelism
        sent: list[ExchangeRow] = []
        for task in range(tasks):
            names, numbers = list(zip(*rows[task::tasks], strict=True)) or ((), ())
            columns = {"c0": pa.array(names, pa.string()), "c1": pa.array(numbers, pa.int64())}
            columns[TASK_AND_CLOCK] = pa.array([7] * len(names), pa.int64())
            stage = TridentSpoutStage(self.shipped, spout.number, keep=False)
            sent += _rows(stage.pack(iter([pa.RecordBatch.from_pydict(columns)]), task, txid - 1))
        for depth in self.plan.depths(Section.STREAM):
            for task in (each.number for each in self.plan.tasks_at(depth)):
                mine = [row for row in sent if row.target == task]
                self.chance.shuffle(mine)
                result = trident_turn(self.shipped, task, mine, Stored(self.windows.get(task)), txid - 1)
                self.windows[task] = result.metadata
                sent = [*(row for row in sent if row.target != task), *cast(list[ExchangeRow], result.output)]
        other, self.last = self.last, sent
        behind_stream(self.shipped, other, TransactionAttempt(txid, 0), self.chance, stages=self.chance.randrange(5))
        found = behind_stream(self.shipped, sent, TransactionAttempt(txid, 1), self.chance)
        packets = [each for each in found if each.kind == "out"]
        tables = [decode_table(each.data).to_pylist() if each.data else [{}] * each.value for each in packets]
        return [tuple(row.values()) for rows in tables for row in rows]


@settings(deadline=None)
@given(COMMITTING | pipelines(PARTED), BATCHES, st.integers(1, 3), st.randoms(use_true_random=False))
def test_random_topologies_on_the_stages_of_spark_equal_one_run(
    steps: list[Any], batches: list[list[Row]], tasks: int, chance: random.Random
) -> None:
    assume_few(steps, batches, tasks)
    alone = TridentRun(sections.plan_of(steps, tasks))
    stages = StagesRun(sections.plan_of(steps, tasks).by_section(), chance)
    for txid, rows in enumerate(filter(None, batches), 1):
        assert sorted(stages.batch(txid, rows)) == sorted(alone.batch({"in": rows})["out"])
