"""Single topologies on the stages of `submit`, without a JVM: they have the output of LocalCluster for the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.execution.chains import chained, clustered
from windowing.errors import FailedException
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.plan import Topology
from windowing.windows import aggregate as agg
from windowing.windows.measures import count, millis, seconds

WORDS = "word string, at long"
SENTENCES = [
    [("the cow jumped over the moon", 1_000), ("the moon", 12_000)],
    [("a late cow", 500), ("a cow", 25_000), ("the cow", 24_000)],
    [("over and over", 61_000)],
]


@bolt(output=WORDS)
def split(tuple: Any) -> Any:
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@tumbling(seconds(10), timestamp="at", key="word", late_stream="late", output="word string, end long, n long")
def count_words(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


def builder(**inputs: str) -> TopologyBuilder:
    made = TopologyBuilder("test")
    made.configure({"topology.enable.message.timeouts": False, "windowing.retry.delay.ms": 0})
    for name, fields in inputs.items():
        made.set_spout(name, InputSpout(fields))
    return made


Both = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def same() -> Both:
    def check(topology: Topology, drain: bool = True, **batches: Sequence[Any]) -> list[dict[str, Any]]:
        expected = clustered(topology, batches, drain=drain)
        found = chained(topology, batches)[: len(expected)]
        # A failed row is emitted again by a spout on LocalCluster; on Spark it waits at the bolt.
        for batch in (*expected, *found):
            for spout in topology.spouts:
                batch.pop(spout.id, None)
        assert any(expected), "the topology has to give something"
        assert [sets(batch) for batch in found] == [sets(batch) for batch in expected]
        return found

    return check


def sets(batch: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(rows, key=repr) for name, rows in batch.items()}


def test_two_windows_in_a_row(same: Both) -> None:
    @tumbling(seconds(20), timestamp="end", output="end long, words long, most string")
    def total(window: Any) -> Any:
        return window.end_timestamp, sum(t.n for t in window), max(window, key=lambda t: (t.n, t.word)).word

    made = builder(sentences="sentence string, at long")
    made.set_bolt("split", split).shuffle_grouping("sentences")
    made.set_bolt("count", count_words, 2).fields_grouping("split", "word")
    made.set_bolt("total", total).global_grouping("count")
    same(made.build(), sentences=SENTENCES)


def test_several_spouts_hold_back_one_watermark(same: Both) -> None:
    @sliding(millis(20), millis(10), timestamp="at", lag=millis(5), output="end long, told string")
    def told(window: Any) -> Any:
        return window.end_timestamp, " ".join(f"{t.source_component}:{t.n}" for t in window)

    made = builder(fast="n long, at long", slow="n long, at long")
    made.set_bolt("told", told).global_grouping("fast").global_grouping("slow")
    fast = [[(1, 10), (2, 40)], [(3, 90)], [(4, 100)]]
    slow = [[(5, 3), (6, 10)], [(7, 10), (8, 31)], [(9, 99)]]
    same(made.build(), drain=False, fast=fast, slow=slow)


@tumbling(count(4), timestamp="at", output="told string")
def fours(window: Any) -> Any:
    return " ".join(t.word for t in window)


@sliding(count(5), count(2), timestamp="at", key="word", output="word string, told string")
def fives(window: Any) -> Any:
    return window.key, " ".join(str(t.at) for t in window) + f" -{len(window.get_expired())}"


@sliding(seconds(8), seconds(4), timestamp=lambda t: t.at, output="word string, end long, n long")
def eights(window: Any) -> Any:
    return max(t.word for t in window), window.end_timestamp, len(window)


WORD_BATCHES = [
    [("cow", 1_000), ("moon", 1_000), ("cow", 3_000), ("cow", 500), ("sun", 2_000)],
    [("moon", 4_000), ("moon", 9_000), ("cow", 5_000), ("sun", 9_000), ("cow", 2_500)],
]


def test_windows_by_count_and_time_tumbling_and_sliding_on_one_stream(same: Both) -> None:
    made = builder(words=WORDS)
    made.set_bolt("fours", fours, 2).fields_grouping("words", "word")
    made.set_bolt("fives", fives, 2).fields_grouping("words", "word")
    made.set_bolt("eights", eights).global_grouping("words")
    same(made.build(), words=WORD_BATCHES)


def test_an_aggregate_of_whole_tuples_over_counted_windows_on_event_time(same: Both) -> None:
    @sliding(
        count(4), count(2), timestamp="at", key="word", output="word string, told string",
        aggregate=agg.fold(str, lambda told, row: f"{told}{row.at} ", lambda one, other: one + other),
    )  # fmt: skip
    def told(window: Any) -> Any:
        return window.key, window.aggregate

    made = builder(words=WORDS)
    made.set_bolt("told", told, 2).fields_grouping("words", "word")
    # The newest tuples of a batch have no number yet and are stored.
    same(made.build(), words=[[("cow", 1), ("moon", 9), ("cow", 7)], [("cow", 9), ("moon", 12)], [("cow", 12)]])


def test_a_late_stream_is_read_by_a_bolt(same: Both) -> None:
    @bolt(output="word string, why string")
    def regret(tuple: Any) -> Any:
        return tuple.word, f"{tuple.reason} on {tuple.source_stream}"

    made = builder(words=WORDS)
    made.set_bolt("count", count_words, 2).fields_grouping("words", "word")
    made.set_bolt("regret", regret, 2).shuffle_grouping("count", stream="late")
    batches = [[("cow", 30_000), ("moon", 31_000)], [("cow", 5_000), ("moon", 2_000)], [("cow", 40_000)]]
    same(made.build(), drain=False, words=batches)


def test_a_join_of_two_streams_with_fields_of_their_own(same: Both) -> None:
    @tumbling(seconds(10), timestamp="at", key="id", output="id long, end long, paid double")
    def joined(window: Any) -> Any:
        orders = [t for t in window if t.source_component == "orders"]
        payments = [t for t in window if t.source_component == "payments"]
        return [(o.id, window.end_timestamp, p.amount) for o in orders for p in payments]

    made = builder(orders="id long, item string, at long", payments="at long, amount double, id long")
    made.set_bolt("joined", joined, 3).fields_grouping("orders", "id").fields_grouping("payments", "id")
    orders = [[(1, "hay", 1_000), (2, "oats", 2_000)], [(3, "salt", 12_000), (1, "hay", 13_000)]]
    payments = [[(3_000, 9.5, 2), (4_000, 0.25, 1)], [(15_000, 1.0, 3), (14_000, 2.0, 3)]]
    same(made.build(), orders=orders, payments=payments)


def test_a_stateful_counter_continues_from_batch_to_batch(same: Both) -> None:
    @bolt(output="word string, n long")
    class Counter:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> Any:
            seen = self.state.get(tuple.word, 0) + 1
            self.state.put(tuple.word, seen)
            return tuple.word, seen

    made = builder(words=WORDS)
    made.set_bolt("counter", Counter, 3).fields_grouping("words", "word")
    found = same(made.build(), drain=False, words=WORD_BATCHES)
    assert sorted(found[0]["counter"]) == [("cow", 1), ("cow", 2), ("cow", 3), ("moon", 1), ("sun", 1)]
    assert sorted(found[1]["counter"]) == [("cow", 4), ("cow", 5), ("moon", 2), ("moon", 3), ("sun", 2)]


# Its attempts are those of one batch.
@pytest.mark.filterwarnings("ignore::windowing.execution.support.LostFieldsWarning")
def test_failing_bolts_are_retried_and_their_attempts_leave_no_trace(same: Both) -> None:
    @bolt(output="word string, attempt long")
    class Shaky:
        def prepare(self, context: Any) -> None:
            self.seen: dict[Any, int] = {}

        def execute(self, tuple: Any, collector: Any) -> None:
            attempt = self.seen[tuple.word, tuple.at] = self.seen.get((tuple.word, tuple.at), 0) + 1
            collector.emit((tuple.word, attempt))
            if tuple.word == "cow" and attempt < 3:
                raise FailedException("not yet")

    @bolt(output="word string")
    class Careful(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.failed = collector, set()

        def execute(self, tuple: Any) -> None:
            if tuple.at not in self.failed and tuple.word == "moon":
                self.failed.add(tuple.at)
                self.collector.fail(tuple)
                return
            self.collector.emit((tuple.word,), anchors=tuple)
            self.collector.ack(tuple)

    made = builder(shaky_words=WORDS, careful_words=WORDS)
    made.set_bolt("shaky", Shaky).fields_grouping("shaky_words", "word")
    made.set_bolt("careful", Careful).shuffle_grouping("careful_words")
    same(made.build(), drain=False, shaky_words=WORD_BATCHES, careful_words=WORD_BATCHES)
