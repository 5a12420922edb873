"""Acks on Spark, without a JVM: a root (a batch of a spout) is acked when all of its rows are acked on LocalCluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.chains import Chain
from tests.execution.test_chain import cases
from windowing.acking.batches import BatchLedger, BatchRecord, RootOutcome
from windowing.errors import ConfigError
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.local.spouts import InputSource
from windowing.spark.acks import root_of
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.plan import Topology
from windowing.windows.aggregate import sum as total
from windowing.windows.measures import count, millis

FIELDS = "n long, at long"


class Acking:
    """A chain with its ledger; `run` returns the outcomes of the batch as (spout number, batch of the root, component that failed
    it).
    """

    def __init__(self, topology: Topology, partitions: int = 1, seed: int = 0) -> None:
        self.topology = topology
        self.chain = Chain(topology, partitions, seed, acks=True)
        self.ledger = BatchLedger()

    def run(self, rows: Any, drain: bool = False) -> list[tuple[int, int, str | None]]:
        batch = self.chain.batch
        self.out = self.chain.run(rows, drain)
        spouts = enumerate(self.topology.spouts)
        begun = {root_of(batch, number): None for number, spout in spouts if spout.id in rows}
        self.ledger.apply(BatchRecord(batch, begun, self.chain.partials, notified=batch - 1))
        self.ledger.check()
        return [outcome_of(news) for news in self.ledger.outcomes(batch)]


def outcome_of(news: RootOutcome) -> tuple[int, int, str | None]:
    return news.root & 0xFFFF, news.root >> 16, news.failed


class Oracle:
    """LocalCluster over the same batches; a row's last field is its id, "spout number:batch:position"."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.open: dict[tuple[int, int], set[str]] = {}
        self.cluster = LocalCluster(topology, batches={}, clock=VirtualClock())
        self.batch = 0

    def run(self, rows: Any, drain: bool = False) -> list[tuple[int, int, str | None]]:
        """Run a batch; return the roots whose last rows were acked in this batch."""
        for number, spout in enumerate(self.topology.spouts):
            if spout.id in rows:
                self.open[number, self.batch] = {row[-1] for row in rows[spout.id]}
        before = [root for root, ids in self.open.items() if ids or root[1] == self.batch]

        def ack(source: InputSource, message_id: Any, values: Any) -> None:
            number, batch, _ = values[-1].split(":")
            self.open[int(number), int(batch)].remove(values[-1])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InputSource, "ack", ack)
            if drain:
                self.cluster.drain()
                self.cluster.checkpoint()  # a stateful bolt acks its committed tuples
            else:
                self.cluster.run_batch(rows)
        self.batch += 1
        return sorted((*root, None) for root in before if not self.open[root])


def with_ids(topology: Topology, batches: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of each batch by spout, each row with its id as the last field."""
    return [
        {
            spout.id: [(*row[:-1], f"{number}:{batch}:{place}") for place, row in enumerate(batches[spout.id][batch])]
            for number, spout in enumerate(topology.spouts)
        }
        for batch in range(max(map(len, batches.values())))
    ]


@settings(max_examples=settings().max_examples // 2)
@given(cases(), st.integers(0, 9))
def test_a_root_is_acked_in_the_batch_that_acks_the_last_of_its_rows(
    case: tuple[Topology, dict[str, Any]], seed: int
) -> None:
    topology, batches = case
    spark, local = Acking(topology, 1, seed), Oracle(topology)
    for rows in with_ids(topology, batches):
        assert sorted(spark.run(rows)) == local.run(rows)
    assert sorted(spark.run({}, drain=True)) == local.run({}, drain=True)
    assert not spark.ledger.open, "after the drain nothing waits"
    assert len(spark.ledger) == 0


@settings(max_examples=settings().max_examples // 4)
@given(cases(), st.integers(2, 3))
def test_with_any_partitions_each_root_is_acked_once(case: tuple[Topology, dict[str, Any]], partitions: int) -> None:
    topology, batches = case
    run = Acking(topology, partitions)
    fed = with_ids(topology, batches)
    news = [each for rows in fed for each in run.run(rows)] + run.run({}, drain=True)
    assert sorted(news) == [
        (number, batch, None) for number in range(len(topology.spouts)) for batch in range(len(fed))
    ]
    assert len(run.ledger) == 0


def one_bolt(target: Any, tasks: int = 1, **settings: Any) -> Topology:
    made = TopologyBuilder("one")
    made.configure({"topology.enable.message.timeouts": False, "windowing.retry.delay.ms": 0, **settings})
    made.set_spout("in", InputSpout(FIELDS))
    made.set_bolt("bolt", target, tasks).fields_grouping("in", "n")
    return made.build()


@tumbling(millis(10), timestamp="at", late_stream="late", output="told long")
def tens(window: Any) -> Any:
    return len(window)


def test_a_root_waits_for_its_last_window_and_late_tuples_are_acked_at_once() -> None:
    run = Acking(one_bolt(tens))
    assert run.run({"in": [(1, 3), (1, 14)]}) == [], "(0, 10] has fired, 14 waits"
    assert run.run({"in": [(1, 12)]}) == [(0, 1, None)], "12 is late: done with, and nothing else is of root 1"
    assert run.run({"in": []}) == [(0, 2, None)], "a batch without rows"
    assert run.run({"in": [(1, 30)]}) == [(0, 0, None), (0, 3, None)], "the window (20, 30] ends at the watermark"


def test_the_output_of_a_window_has_the_roots_of_all_its_tuples() -> None:
    @tumbling(millis(10), timestamp="at", output=FIELDS)
    def first(window: Any) -> Any:
        return len(window), window.end_timestamp

    @tumbling(millis(100), timestamp="at", output="told string")
    def second(window: Any) -> Any:
        return " ".join(str(t.n) for t in window)

    made = TopologyBuilder("two")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("in", InputSpout(FIELDS))
    made.set_bolt("first", first).global_grouping("in")
    made.set_bolt("second", second).global_grouping("first")
    run = Acking(made.build())
    assert run.run({"in": [(1, 3)]}) == []
    assert run.run({"in": [(1, 5), (1, 10)]}) == [], "all have expired from (0, 10]; the row of that window waits"
    assert run.run({"in": [(1, 95), (1, 110)]}) == [(0, 0, None), (0, 1, None)], "that window and (0, 100] have fired"
    assert run.run({}, drain=True) == [(0, 2, None)]


def test_a_fused_bolt_passes_on_the_roots_of_its_tuples() -> None:
    @bolt(output=FIELDS)
    def positive(tuple: Any) -> Any:
        return (tuple.n, tuple.at) if tuple.n > 0 else None

    made = TopologyBuilder("fused")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("in", InputSpout(FIELDS))
    made.set_bolt("positive", positive).shuffle_grouping("in")
    made.set_bolt("again", positive).shuffle_grouping("positive")
    made.set_bolt("tens", tens).global_grouping("again")
    run = Acking(made.build())
    assert run.run({"in": [(1, 3), (-1, 4)]}) == [], "3 waits in a window"
    assert run.run({"in": [(-1, 20)]}) == [(0, 1, None)], "dropped"
    assert run.run({"in": [(1, 10)]}) == [(0, 0, None), (0, 2, None)]


def test_a_window_with_an_aggregate_acks_its_tuples_too() -> None:
    @sliding(millis(10), millis(5), timestamp="at", aggregate={"sum": total("n")}, output="sum long")
    def summed(window: Any) -> Any:
        return window.aggregate["sum"]

    run = Acking(one_bolt(summed))
    assert run.run({"in": [(1, 3), (2, 4)]}) == []
    assert run.run({"in": [(1, 20)]}) == [(0, 0, None)]
    assert run.out["bolt"] == [(3,), (3,), (1,)]


def test_a_failing_window_fails_its_roots_once_and_they_are_never_acked() -> None:
    @tumbling(millis(10), timestamp="at", on_error="fail", output="n long")
    def picky(window: Any) -> Any:
        if any(t.n == 13 for t in window):
            raise ValueError("unlucky")
        return len(window)

    run = Acking(one_bolt(picky))
    assert run.run({"in": [(1, 3), (1, 22)]}) == []
    assert run.run({"in": [(13, 25), (1, 26)]}) == []
    assert run.run({"in": [(1, 35), (1, 55)]}) == [(0, 0, "bolt"), (0, 1, "bolt")]
    assert run.run({"in": [(13, 58)]}) == []
    assert run.run({"in": [(1, 99)]}) == [(0, 2, "bolt"), (0, 3, "bolt")], (
        "a fail wins in the batch of the last ack too"
    )
    assert run.run({}, drain=True) == [(0, 4, None)]
    assert len(run.ledger) == 0


def test_on_error_fail_needs_a_spout_that_takes_acks() -> None:
    @tumbling(millis(10), timestamp="at", on_error="fail", output="n long")
    def picky(window: Any) -> Any:
        return len(window)

    with pytest.raises(ConfigError, match="none of its spouts takes acks: give submit"):
        Chain(one_bolt(picky))


@bolt(output=FIELDS)
class Pairs(Bolt):
    """Emits one row for two tuples, anchored to both; drops negative values; emits a 0 without an anchor."""

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.held = collector, []

    def execute(self, tuple: Any) -> None:
        if tuple.n == 0:
            self.collector.emit((0, tuple.at))
        if tuple.n <= 0:
            self.collector.ack(tuple)
            return
        self.held.append(tuple)
        if len(self.held) == 2:
            self.collector.emit((0, tuple.at), anchors=self.held)
            for each in self.held:
                self.collector.ack(each)
            self.held = []


def test_rows_have_the_roots_of_their_anchors_and_dropped_tuples_are_acked() -> None:
    made = TopologyBuilder("pairs")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("left", InputSpout(FIELDS))
    made.set_spout("right", InputSpout(FIELDS))
    made.set_bolt("pairs", Pairs).global_grouping("left").global_grouping("right")
    made.set_bolt("tens", tens).global_grouping("pairs")
    run = Acking(made.build())
    assert run.run({"left": [(-1, 3)], "right": [(0, 4)]}) == [(0, 0, None), (1, 0, None)], "dropped; not anchored"
    assert run.run({"left": [(1, 5)], "right": [(2, 6)]}) == [], "one row, of both roots, waits in a window"
    assert run.run({"left": [], "right": [(0, 50)]}) == [(0, 1, None), (1, 1, None), (0, 2, None), (1, 2, None)]


@bolt(output=FIELDS)
class Counter:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        self.state.put(tuple.n, self.state.get(tuple.n, 0) + 1)
        return self.state.get(tuple.n), tuple.at


def test_a_stateful_bolt_acks_its_tuples_in_their_batch() -> None:
    run = Acking(one_bolt(Counter, tasks=3))
    assert run.run({"in": [(n, n) for n in range(9)]}) == [(0, 0, None)]


def test_a_key_that_expires_by_key_ttl_acks_its_tuples() -> None:
    @sliding(count(3), count(3), timestamp="at", key="n", key_ttl=millis(50), output="n long")
    def threes(window: Any) -> Any:
        return len(window)

    run = Acking(one_bolt(threes))
    assert run.run({"in": [(1, 1)]}) == []
    assert run.run({"in": [(2, 40)]}) == []
    assert run.run({"in": [(2, 70)]}) == [(0, 0, None)], "the key 1 has gone as by a drain"


def test_a_repeated_batch_reports_the_same_partials_of_its_roots() -> None:
    topology = one_bolt(tens, tasks=2)
    batches = [[(n, 7 * n % 23) for n in range(9)], [(n, 20 + n) for n in range(9)], [(1, 90), (2, 91)]]
    one, other = Chain(topology, acks=True, seed=1), Chain(topology, acks=True, seed=2, partitions=1)
    for rows in batches:
        one.run({"in": rows})
        kept = copy.deepcopy((other.metadata, other.chunks, other.values))
        other.run({"in": rows})
        first = other.partials
        other.metadata, other.chunks, other.values = kept
        other.batch -= 1
        other.run({"in": rows})
        assert first == other.partials == one.partials
        assert first, "it proves too little"
