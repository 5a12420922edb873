"""submit(): the same topology on LocalCluster and on Spark, fed the same batches, gives the same rows in the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.execution.chains import clustered
from windowing.errors import FailedException
from windowing.spark import MemorySink, submit
from windowing.spark.sinks import output_streams
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.plan import Topology
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
def on_spark(spark: SparkSession, feed: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Run a topology over these batches; return what each batch gives, by sink name."""

    def run(topology: Topology, batches: dict[str, Sequence[Any]], drain: bool = True, **options: Any) -> Any:
        sources = {}
        for spout in topology.spouts:
            schema = spout.outputs["default"].schema
            fed = [[dict(zip(schema.names, row, strict=True)) for row in rows] for rows in batches[spout.id]]
            sources[spout.id] = feed(schema.ddl, name=f"in/{spout.id}").add(*fed).read()
        spouts = [spout.id for spout in topology.spouts]
        names = [name for name in output_streams(topology) if not name.endswith(".dead_letters") and name not in spouts]
        sinks = {name: MemorySink() for name in (*names, *options.pop("letters", ()))}
        checkpoint = str(tmp_path / "checkpoint")
        query = submit(topology, spark, sources=sources, sinks=sinks, checkpoint=checkpoint, drain=drain, **options)
        assert query.await_end(300)
        count = max(map(len, batches.values())) + drain
        found: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, sink in sinks.items():
            for batch, rows in sink.batches.items():
                found[batch][name] = [tuple(row) for row in rows]
        return found

    return run


@pytest.fixture
def same(on_spark: Callable[..., Any]) -> Both:
    def check(topology: Topology, drain: bool = True, **batches: Sequence[Any]) -> list[dict[str, Any]]:
        expected = clustered(topology, batches, drain=drain)
        for batch in expected:
            # A row that failed comes once more from a spout on LocalCluster, on Spark it waits at the bolt.
            for spout in topology.spouts:
                batch.pop(spout.id, None)
        assert any(expected), "the topology has to give something"
        found = on_spark(topology, batches, drain)
        assert [sets(batch) for batch in found] == [sets(batch) for batch in expected]
        return found

    return check


def sets(batch: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(rows, key=repr) for name, rows in batch.items()}


def test_word_count_with_late_words_and_a_drain(same: Both) -> None:
    made = builder(sentences="sentence string, at long")
    made.set_bolt("split", split, 2).shuffle_grouping("sentences")
    made.set_bolt("count", count_words, 3).fields_grouping("split", "word")
    same(made.build(), sentences=SENTENCES)


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


@bolt(output={"default": "n long, taker string", "by_hand": "n long"}, direct="by_hand")
class Dealer:
    def prepare(self, context: Any) -> None:
        self.takers = context.component_tasks("by_hand")

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit((tuple.n, "dealer"))
        collector.emit_direct(self.takers[2 - tuple.n % 3], (tuple.n,), "by_hand")


@bolt(output="n long, taker string")
class Taker:
    def prepare(self, context: Any) -> None:
        self.name = f"{context.component} {context.task} of {context.tasks}"

    def execute(self, tuple: Any) -> Any:
        return tuple.n, f"{self.name} from {tuple.source_component}.{tuple.source_task}"


def test_each_grouping_chooses_the_same_tasks(same: Both) -> None:
    made = builder(numbers="n long")
    made.set_bolt("deal", Dealer, 2).shuffle_grouping("numbers")
    made.set_bolt("by_shuffle", Taker, 3).shuffle_grouping("deal")
    made.set_bolt("by_none", Taker, 3).none_grouping("deal")
    made.set_bolt("by_local", Taker, 3).local_or_shuffle_grouping("deal")
    made.set_bolt("by_fields", Taker, 3).fields_grouping("deal", "n")
    made.set_bolt("by_partial", Taker, 3).partial_key_grouping("deal", "n")
    made.set_bolt("to_all", Taker, 3).all_grouping("deal")
    made.set_bolt("to_one", Taker, 3).global_grouping("deal")
    made.set_bolt("by_hand", Taker, 3).direct_grouping("deal", stream="by_hand")
    made.set_bolt("by_custom", Taker, 3).custom_grouping("deal", lambda values, tasks: [values[0] % tasks, 0])
    same(made.build(), drain=False, numbers=[[(n,) for n in range(20)]])


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


def test_branches_and_a_diamond_are_evaluated_once(same: Both, tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    trace.touch()

    @bolt(output="n long, at long")
    def traced(tuple: Any) -> Any:
        with trace.open("a") as out:
            out.write(f"{tuple.n}\n")
        return tuple.n, tuple.at

    @bolt(output="n long, at long")
    def more(tuple: Any) -> Any:
        return tuple.n + 100, tuple.at

    @tumbling(millis(10), timestamp="at", output="n long, at long")
    def summed(window: Any) -> Any:
        return sum(t.n for t in window), window.end_timestamp

    made = builder(numbers="n long, at long")
    made.set_bolt("traced", traced).shuffle_grouping("numbers")
    made.set_bolt("left", more).shuffle_grouping("traced")
    made.set_bolt("right", summed).global_grouping("traced")
    made.set_bolt("joined", summed).global_grouping("left").global_grouping("right")
    made.set_bolt("again", more).shuffle_grouping("joined").shuffle_grouping("left")
    numbers = [[(n, 3 * n) for n in range(6)], [(n, 3 * n) for n in range(6, 12)]]
    topology = made.build()
    same(topology, numbers=numbers)
    calls = trace.read_text().split()
    assert sorted(calls) == sorted([str(n) for n in range(12)] * 2), "once on each runtime"


def test_a_stateful_counter_goes_on_from_batch_to_batch(same: Both) -> None:
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


def test_a_state_can_be_asked_for_all_it_holds(same: Both, spark: SparkSession) -> None:
    @bolt(output="word string, known boolean, keys long, sum long")
    class Remembering:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> Any:
            known = tuple.word in self.state
            self.state.put(tuple.word, tuple.at)
            if tuple.word == "gone":
                self.state.delete("w3")
            found = list(self.state.items())
            assert found == sorted(found)
            return tuple.word, known, len(found), sum(at for _, at in found)

    made = builder(words=WORDS)
    made.set_bolt("remembering", Remembering).global_grouping("words")
    words = [[(f"w{n}", n) for n in range(14)], [("w2", 100), ("new", 5), ("gone", 0)], [("w3", 1)]]
    page = "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch"
    spark.conf.set(page, 7)  # the first batch leaves two pages, the second three
    try:
        found = same(made.build(), drain=False, words=words)
    finally:
        spark.conf.unset(page)
    assert [row[1:3] for row in found[1]["remembering"]] == [(True, 14), (False, 15), (False, 15)]
    assert found[2]["remembering"] == [("w3", False, 16, sum(range(14)) - 2 - 3 + 100 + 5 + 1)]


@pytest.mark.filterwarnings(
    "ignore::windowing.execution.support.LostFieldsWarning"
)  # its attempts are those of one batch
def test_failing_bolts_are_tried_again_and_leave_no_trace(same: Both) -> None:
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
