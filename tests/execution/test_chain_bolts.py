"""Batches with bolts that fail, have a state or hold tuples: the stages of `submit`, without a JVM."""

from __future__ import annotations

import gc
import json
import random
from collections import namedtuple
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.chains import Chain, chained, clustered
from windowing.columnar.rows import decode_table
from windowing.errors import (
    AckError,
    BoltError,
    ConfigError,
    CorruptStateError,
    FailedException,
    ReportedFailedException,
)
from windowing.execution.plan import execution_plan
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.run import run_local
from windowing.schema.rows import rows_of
from windowing.schema.tuples import Tuple
from windowing.spark import stage_writer
from windowing.spark.rows import TupleRows
from windowing.spark.stage_writer import StageWriter
from windowing.spark.state import TaskValues
from windowing.spark.tasks import BoltBatch, RetriedBatch
from windowing.stores.states import MemoryStateProvider
from windowing.topology import user_code
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout, StatefulBolt
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.plan import Topology
from windowing.topology.user_code import EmittedRow
from windowing.windows.measures import count, millis


def one_bolt(target: Any, attempts: int = 3, tasks: int = 1, fields: str = "word string, n long") -> Topology:
    builder = TopologyBuilder("one")
    builder.configure(
        {"windowing.max.attempts": attempts, "windowing.retry.delay.ms": 0, "topology.enable.message.timeouts": False}
    )
    builder.set_spout("in", InputSpout(fields))
    builder.set_bolt("bolt", target, tasks).fields_grouping("in", "word")
    return builder.build()


@bolt(output="word string, n long")
class Counter:
    """Counts before it fails: the counts of a failed attempt must be discarded."""

    fails: ClassVar[dict[str, int]] = {}

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        seen = self.state.get(tuple.word, 0) + 1
        self.state.put(tuple.word, seen)
        if self.fails.get(tuple.word, 0) > 0:
            self.fails[tuple.word] -= 1
            raise FailedException(f"{tuple.word} is not ready")
        return tuple.word, seen


def test_a_failed_tuple_is_retried_and_its_failed_attempts_change_no_state(monkeypatch: Any) -> None:
    monkeypatch.setattr(Counter, "fails", {"cow": 2})
    rows = [("cow", 1), ("moon", 2), ("cow", 3)]
    found = chained(one_bolt(Counter), {"in": [rows, rows]})
    assert found[0]["bolt"] == [("moon", 1), ("cow", 1), ("cow", 2)], (
        "both cows have failed, and came again after the others"
    )
    assert found[1]["bolt"] == [("cow", 3), ("moon", 2), ("cow", 4)]


def test_after_the_last_attempt_the_error_names_the_bolt_the_tuple_and_the_fix(monkeypatch: Any) -> None:
    monkeypatch.setattr(Counter, "fails", {"cow": 3})
    chain = Chain(one_bolt(Counter), letters=False)
    with pytest.raises(BoltError, match=r"'bolt' failed .*'cow'.* 3 attempts: .*not ready.*'bolt.dead_letters'"):
        chain.run({"in": [("moon", 1), ("cow", 2)]})
    assert not chain.values[0], "nothing of a batch that failed is stored"


def test_a_dead_letter_names_the_component_and_the_other_tuples_are_processed(monkeypatch: Any) -> None:
    monkeypatch.setattr(Counter, "fails", {"cow": 3})
    found = chained(one_bolt(Counter), {"in": [[("moon", 1), ("cow", 2), ("moon", 3)]]})[0]
    assert found["bolt"] == [("moon", 1), ("moon", 2)]
    (letter,) = found["bolt.dead_letters"]
    assert letter[:3] == ("bolt", 0, 3)
    assert "not ready" in letter[3]
    assert json.loads(letter[7]) == [{"component": "in", "stream": "default", "values": {"word": "cow", "n": 2}}]


@bolt(output="word string, n long")
class Pairs(Bolt):
    """Holds a tuple until its partner arrives; "never" is neither acked nor failed, "no" fails a held tuple."""

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.held = collector, []

    def execute(self, tuple: Tuple) -> None:
        if tuple.word == "never":
            return
        if tuple.word == "no":
            for each in self.held:
                self.collector.fail(each)
            self.held = []
            self.collector.ack(tuple)
            return
        self.held.append(tuple)
        if len(self.held) == 2:
            self.collector.emit(("+".join(t.word for t in self.held), len(self.held)), anchors=self.held)
            for each in self.held:
                self.collector.ack(each)
            self.held = []


def test_a_bolt_with_manual_acks_may_hold_tuples_within_the_batch() -> None:
    assert chained(one_bolt(Pairs), {"in": [[("a", 1), ("b", 2)]]})[0]["bolt"] == [("a+b", 2)]


def test_a_held_tuple_that_is_failed_later_is_executed_again() -> None:
    found = chained(one_bolt(Pairs), {"in": [[("a", 1), ("no", 2), ("b", 3)]]})[0]
    assert found["bolt"] == [("b+a", 2)]
    assert "bolt.dead_letters" not in found


def test_a_tuple_that_is_neither_acked_nor_failed_in_its_batch_has_failed() -> None:
    found = chained(one_bolt(Pairs), {"in": [[("never", 1), ("a", 2), ("b", 3)]]})[0]
    assert found["bolt"] == [("a+b", 2)]
    assert "neither acked nor failed" in found["bolt.dead_letters"][0][3]
    told = r"'bolt' has neither acked nor failed .*'never'.*: call collector.ack\(tuple\) or .* a BasicBolt.*; the batch is not"
    with pytest.raises(BoltError, match=told):
        Chain(one_bolt(Pairs), letters=False).run({"in": [("never", 1)]})


@pytest.mark.parametrize("run", [chained, clustered])
@pytest.mark.parametrize(
    ("use", "cause", "said"),
    [
        (lambda tuple, collector: collector.ack(tuple), AckError, "acked or failed"),
        (lambda tuple, collector: collector.fail(tuple), AckError, "acked or failed"),
        (lambda tuple, collector: collector.ack("cow"), ConfigError, "a tuple that execute was handed, got 'cow'"),
        (lambda tuple, collector: collector.emit(("a",), anchors="cow"), ConfigError, "execute was handed, got 'c'"),
    ],
)
def test_a_second_ack_or_one_of_no_tuple_is_an_error(run: Any, use: Any, cause: type[Exception], said: str) -> None:
    @bolt(output="word string")
    class Twice(Bolt):
        def execute(self, tuple: Tuple) -> None:
            self.collector.ack(tuple)
            use(tuple, self.collector)

    with pytest.raises(BoltError, match=said) as failed:
        run(one_bolt(Twice), {"in": [[("a", 1)]]})
    assert type(failed.value.__cause__) is cause


@pytest.mark.parametrize("run", [chained, run_topology])
def test_the_dead_letter_of_a_tuple_that_a_bolt_fails_says_so(run: Any) -> None:
    @bolt()
    class Failing(Bolt):
        def execute(self, tuple: Tuple) -> None:
            self.collector.fail(tuple)

    found = run(one_bolt(Failing, attempts=1), {"in": [[("a", 1)]]})
    letter = found[0]["bolt.dead_letters"][0] if run is chained else found.dead_letters[0].row()
    assert letter[3] == "failed"


def test_a_reported_failure_is_logged_and_fails_the_tuple(caplog: Any) -> None:
    @bolt()
    def reporting(tuple: Any) -> None:
        raise ReportedFailedException("the disk is full")

    found = chained(one_bolt(reporting, attempts=2), {"in": [[("a", 1)]]})[0]
    assert len(found["bolt.dead_letters"]) == 1
    assert [record.getMessage().count("the disk is full") for record in caplog.records] == [1, 1]


def test_of_the_errors_that_a_task_reports_in_a_batch_only_the_first_are_logged(caplog: Any) -> None:
    @bolt(output="word string")
    def refusing(tuple: Tuple) -> Any:
        raise ReportedFailedException(f"not {tuple.n}")

    @bolt(output="word string")
    class Telling(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def execute(self, tuple: Tuple) -> None:
            self.collector.report_error(ValueError(f"not {tuple.n}"))
            self.collector.ack(tuple)

    for target in (refusing, Telling):
        caplog.clear()
        Chain(one_bolt(target, attempts=1)).run({"in": [("a", n) for n in range(100)]})
        assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == [*map(str, range(8))]


def test_a_fused_bolt_is_retried_in_the_same_way() -> None:
    attempts: list[int] = []

    @bolt(output="n long")
    def shaky(tuple: Any) -> Any:
        attempts.append(tuple.n)
        if tuple.n == 2 and attempts.count(2) < 2:
            raise FailedException("once")
        return tuple.n

    builder = TopologyBuilder("fused")
    builder.configure({"windowing.retry.delay.ms": 0})
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("shaky", shaky).shuffle_grouping("in")
    assert chained(builder.build(), {"in": [[(1,), (2,), (3,)]]})[0]["shaky"] == [(1,), (3,), (2,)]
    assert attempts == [1, 2, 3, 2]


def test_a_stateful_bolt_gets_its_hooks_and_may_write_in_pre_prepare() -> None:
    calls: list[Any] = []

    @bolt(output="n long")
    class Committing(StatefulBolt):
        def init_state(self, state: Any) -> None:
            self.state = state

        def prepare(self, context: Any, collector: Any) -> None:
            self.collector = collector
            self.total = self.state.get("total", 0)

        def execute(self, tuple: Tuple) -> None:
            self.total += tuple.n
            self.collector.emit((self.total,), anchors=tuple)
            self.collector.ack(tuple)

        def pre_prepare(self, txid: int) -> None:
            calls.append(("prepare", txid))
            self.state.put("total", self.total)

        def pre_commit(self, txid: int) -> None:
            calls.append(("commit", txid))

    found = chained(one_bolt(Committing), {"in": [[("a", 1), ("a", 2)], [("a", 10)]]})
    assert [batch.get("bolt") for batch in found] == [[(1,), (3,)], [(13,)], None]
    assert calls == [("prepare", 1), ("commit", 1), ("prepare", 2), ("commit", 2)]


class CountsWindows:
    def init_state(self, state: Any) -> None:
        self.state = state

    def counted(self) -> int:
        """Count a window in the state; return its number."""
        seen: int = self.state.get("windows", 0) + 1
        self.state.put("windows", seen)
        return seen


def test_a_windowed_bolt_may_have_a_state() -> None:
    @tumbling(count(2), timestamp="n", output="windows long, sum long")
    class Windows(CountsWindows):
        def execute(self, window: Any) -> Any:
            seen = self.counted()
            return seen, sum(t.n for t in window)

    found = chained(one_bolt(Windows), {"in": [[("a", n) for n in range(5)], [("a", 5), ("a", 6)]]})
    assert [batch.get("bolt") for batch in found] == [[(1, 1), (2, 5)], [(3, 9)], [(4, 6)]]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [("skip", {"message_id": "n"}), ("dead_letter", {"message_id": "n"}), ("skip", {"max_events_in_memory": 1_000})],
)
def test_a_window_that_failed_leaves_nothing_in_the_state_in_any_runtime(policy: str, kept: dict[str, Any]) -> None:
    @tumbling(count(1), timestamp="n", output="windows long", on_error=policy, **kept)
    class Windows(CountsWindows):
        def execute(self, window: Any) -> Any:
            seen = self.counted()
            if window.get()[0].n == 2:
                self.state.delete("windows")
                raise ValueError("behind the write")
            return seen

    rows, wanted = [("a", n) for n in range(1, 6)], [(1,), (2,), (3,), (4,)]
    states = MemoryStateProvider()
    with LocalCluster(one_bolt(Windows), batches={"in": [rows]}, clock=VirtualClock(), states=states) as cluster:
        assert cluster.run()["bolt"] == wanted
    assert dict(states.state("bolt", 0).items()) == {"windows": 4}
    alone = run_local(Windows, [[dict(zip(("word", "n"), row, strict=True)) for row in rows]])
    assert (alone["default"], alone.state and alone.state.get("windows")) == (wanted, 4)
    if "message_id" in kept:
        on_spark = [row for batch in chained(one_bolt(Windows), {"in": [rows]}) for row in batch.get("bolt", ())]
        assert on_spark == wanted


class OfOldStates:
    """A user's provider whose states lack what a failed call needs."""

    def __init__(self) -> None:
        self.provider = MemoryStateProvider()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    def state(self, component: str, task: int, name: str = "state") -> Any:
        found = self.provider.state(component, task, name)
        return SimpleNamespace(
            **{of: getattr(found, of) for of in dir(found) if of[0] != "_" and of not in ("begin", "undo")}
        )


@pytest.mark.parametrize("windows", [False, True])
def test_a_state_of_a_provider_that_cannot_revert_a_failed_call_is_refused(windows: bool) -> None:
    @tumbling(count(1), timestamp="n", output="windows long", message_id="n")
    class Windows(CountsWindows):
        def execute(self, window: Any) -> Any:
            return self.counted()

    states: Any = OfOldStates()
    topology = one_bolt(Windows if windows else Counter)
    with pytest.raises(ConfigError, match=r"bolt 'bolt' has the state .* which has no begin\(\) and undo\(\)"):
        LocalCluster(topology, batches={"in": [[("a", 1)]]}, clock=VirtualClock(), states=states).run()


@given(st.lists(st.tuples(st.sampled_from("gpdbui"), st.integers(0, 3), st.integers()), max_size=40))
def test_a_task_state_equals_a_dict_with_undo(steps: list[tuple[str, int, int]]) -> None:
    store: dict[bytes, bytes] = {}
    values, model, before = TaskValues(store.get, store.items, "test"), dict[Any, int](), dict[Any, int]()
    values.begin()
    for kind, key, value in steps:
        if kind == "g":
            assert values.get(key) == model.get(key)
        elif kind == "p":
            values.put(key, value)
            model[key] = value
        elif kind == "d":
            assert values.delete(key) == model.pop(key, None)
        elif kind == "i":
            assert (key in values) is (key in model)
            assert list(values.items()) == sorted(model.items())
        elif kind == "u":
            values.undo()
            model = dict(before)
        else:  # a step begins; sometimes the batch ends and another task object continues
            if value % 2:
                for name in values.drops:
                    store.pop(name, None)
                store.update(values.puts)
                values = TaskValues(store.get, store.items, "test")
            values.begin()
        if kind in "bu":
            values.begin()
            before = dict(model)
    assert [values.get(key) for key in range(4)] == [model.get(key) for key in range(4)]
    assert list(values.items()) == sorted(model.items()), "keys of one digit are in the order of their bytes"


def test_items_iterates_over_a_snapshot_without_deleted_keys() -> None:
    store: dict[bytes, bytes] = {}
    values = TaskValues(store.get, store.items, "test")
    for key in (1, 2, 3):
        values.put(key, [key])
    store.update(values.puts)
    values = TaskValues(store.get, store.items, "test")
    values.delete(2)
    values.put(4, [4])
    values.delete(4)
    steps = values.items()
    first, value = next(steps)
    value.append("a copy")
    values.put(3, "later")
    assert [(first, values.get(first)), *steps] == [(1, [1]), (3, [3])]


def test_a_value_returned_by_delete_is_a_copy_that_undo_does_not_see() -> None:
    store: dict[bytes, bytes] = {}
    before = TaskValues(store.get, store.items, "test")
    before.put("a", [1])
    store.update(before.puts)
    values = TaskValues(store.get, store.items, "test")
    for _ in range(2):  # the tuple failed after it had changed the list, and is tried again
        values.begin()
        taken = values.delete("a")
        taken.append(2)
        values.put("b", taken)
        values.undo()
    assert list(values.items()) == [("a", [1])]


def test_a_value_is_of_plain_types_as_soon_as_it_is_put() -> None:
    values = TaskValues({}.get, {}.items, "test")
    values.put("pair", namedtuple("Pair", "a b")(1, [2]))
    assert values.get("pair") == (1, [2])
    assert type(values.get("pair")) is tuple


def test_damaged_values_are_named_and_never_reset() -> None:
    store: dict[bytes, bytes] = {}
    values = TaskValues(store.get, store.items, "state of bolt 'b', task 0")
    values.put("cow", 1)
    ((key, blob),) = values.puts.items()
    for damaged in (blob[:-1], b"", blob[:-1] + b"7", b"\x80\x05" + blob):
        again = TaskValues({key: damaged}.get, {key: damaged}.items, "state of bolt 'b', task 0")
        with pytest.raises(CorruptStateError, match="bolt 'b', task 0"):
            again.get("cow")
        with pytest.raises(CorruptStateError, match="bolt 'b', task 0"):
            list(again.items())


@settings(max_examples=settings().max_examples // 4)
@given(st.integers(0, 1000))
def test_a_repeated_batch_gives_the_same_output_in_any_order_of_rows(seed: int) -> None:
    @tumbling(count(3), timestamp="n", key="word", output="word string, mean double")
    def mean(window: Any) -> Any:
        return window.key, sum(t.n for t in window) / 3

    topology = one_bolt(mean, tasks=2)
    chance = random.Random(seed)
    rows = [(chance.choice("abc"), chance.randrange(5)) for _ in range(30)]
    first, second = Chain(topology, 3, seed=1), Chain(topology, 3, seed=seed)
    assert [first.run({"in": rows[:20]}), first.run({"in": rows[20:]}), first.run({}, drain=True)] == [
        second.run({"in": rows[:20]}),
        second.run({"in": rows[20:]}),
        second.run({}, drain=True),
    ]


def test_rows_of_several_packets_keep_their_order(monkeypatch: Any) -> None:
    monkeypatch.setattr("windowing.spark.exchange.PACKET_ROWS", 7)

    @tumbling(count(50), timestamp="n", output="told string")
    def told(window: Any) -> Any:
        return " ".join(str(t.n) for t in window)

    builder = TopologyBuilder("many")
    builder.configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("told", told).global_grouping("in")
    rows = [(n,) for n in range(50)]
    found = chained(builder.build(), {"in": [rows]})[0]
    assert found == {"in": rows, "told": [(" ".join(map(str, range(50))),)]}


def test_a_spout_of_several_tasks_has_several_upstream_partitions() -> None:
    @bolt(output="n long, task long")
    def whence(tuple: Any) -> Any:
        return tuple.n, tuple.source_task

    builder = TopologyBuilder("tasks")
    builder.set_spout("in", InputSpout("n long"), 2)
    builder.set_bolt("whence", whence).shuffle_grouping("in")
    chain = Chain(builder.build(), partitions=2)
    assert sorted(chain.run({"in": [(1,), (2,), (3,)]})["whence"]) == [(1, 1), (2, 1), (3, 2)]


# -- message_id --------------------------------------------------------------------------------------------------------


@tumbling(count(3), message_id="id", output="ids array<long>, total long")
class CountOnce:
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, window: Any) -> tuple[list[int], int]:
        ids = [row.id for row in window]
        total = self.state.get("total", 0) + len(ids)
        self.state.put("total", total)
        return ids, total


def once(parallelism: int = 1) -> Any:
    builder = TopologyBuilder("once")
    builder.set_spout("ids", InputSpout("id long"), parallelism=parallelism)
    builder.set_bolt("count", CountOnce).global_grouping("ids")
    return builder.build()


def test_a_replayed_tuple_is_dropped_by_its_message_id_and_acked() -> None:
    chain = Chain(once(), acks=True)
    assert "count" not in chain.run({"ids": [(1,), (2,)]})
    assert [partial.xor for partial in chain.partials] != [0]
    assert "count" not in chain.run({"ids": [(2,)]})
    assert [(partial.xor, partial.failed) for partial in chain.partials] == [(0, None)]
    assert chain.run({"ids": [(3,), (4,), (3,)]})["count"] == [([1, 2, 3], 3)]
    assert chain.run({}, drain=True) == {"count": [([4], 4)]}


def test_a_replayed_tuple_of_two_inputs_is_dropped_also_in_a_batch_of_one_of_them() -> None:
    builder = TopologyBuilder("once").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("left", InputSpout("id long, n long"))
    builder.set_spout("right", InputSpout("m string, id long"))
    builder.set_bolt("count", CountOnce).global_grouping("left").global_grouping("right")
    chain = Chain(builder.build())
    assert "count" not in chain.run({"left": [(1, 7)], "right": [("x", 1)]})
    assert "count" not in chain.run({"left": [(1, 7)]})
    assert chain.run({"right": [("x", 1), ("y", 2)]})["count"] == [([1, 1, 2], 3)]
    assert chain.run({}, drain=True) == {}


def remembering(message_id: str | None) -> Any:
    @tumbling(count(9), message_id=message_id, output="ids array<long>")
    class Ids:
        def init_state(self, state: Any) -> None: ...

        def execute(self, window: Any) -> Any:
            return ([row.a for row in window],)

    builder = TopologyBuilder("remembering")
    builder.set_spout("in", InputSpout("a long, b long"))
    builder.set_bolt("ids", Ids).global_grouping("in")
    return builder.build()


def test_ids_are_forgotten_where_message_id_was_left_out_for_a_batch() -> None:
    chain = Chain(remembering("a"))
    for message_id, ids in (("a", [1, 2]), (None, [3]), ("a", [2, 2])):  # the option may name another field now
        chain = chain.restarted(remembering(message_id))
        chain.run({"in": [(id, 0) for id in ids]})
    assert chain.run({}, drain=True)["ids"] == [([1, 2, 3, 2],)]


def test_the_ids_of_another_field_are_not_those_of_message_id() -> None:
    """A start that compares definitions refuses the other field; a start without the option and without a batch lies between."""
    chain = Chain(remembering("a"))
    for message_id, rows in (("a", [(1, 7), (2, 8)]), ("b", []), ("b", [(3, 1), (4, 2), (4, 2)])):
        chain = chain.restarted(remembering(message_id))
        chain.run({"in": rows})
    assert chain.run({}, drain=True)["ids"] == [([1, 2, 3, 4],)]


def test_a_field_that_a_windowed_bolt_emits_later_is_null_in_the_tuples_that_were_stored_before() -> None:
    def of(fields: str) -> Topology:
        @tumbling(count(1), output=fields)
        def first(window: Any) -> Any:
            return [(row.a, 10 * row.a)[: len(fields.split(","))] for row in window]

        @sliding(count(3), count(1), output="found array<string>")
        def behind(window: Any) -> Any:
            return ([str(row.as_dict()) for row in window],)

        builder = TopologyBuilder("fields")
        builder.set_spout("in", InputSpout("a long"))
        builder.set_bolt("first", first).global_grouping("in")
        builder.set_bolt("behind", behind).global_grouping("first")
        return builder.build()

    chain = Chain(of("a long"))
    assert chain.run({"in": [(1,)]})["behind"] == [(["{'a': 1}"],)]
    chain = chain.restarted(of("a long, b long"))
    assert chain.run({"in": [(2,)]})["behind"] == [(["{'a': 1, 'b': None}", "{'a': 2, 'b': 20}"],)]


def test_message_ids_of_a_spout_with_several_tasks_are_refused_on_spark() -> None:
    with pytest.raises(ConfigError, match=r"knows tuples again by message_id='id'.*give the spout parallelism=1"):
        Chain(once(parallelism=2))


# -- tuples of a batch, handed over and retried at once, and their slow model ------------------------------------------------------


def fused(fails: dict[str, int], style: int) -> Topology:
    """Return two bolts of two tasks each that are fused with the spout, and two after exchanges; the words in
    `fails` fail that often.
    """
    left = dict(fails)

    def work(word: str, n: int) -> Any:
        if left.get(word, 0) > 0:
            left[word] -= 1
            raise (ReportedFailedException if n % 2 else FailedException)(f"{word} is not ready")
        return [None, (word, n), [(word, n), (word, n + 1)], {"n": n, "word": word}][n % 4]

    class ByCollector:
        def prepare(self, context: Any) -> None:
            self.tasks = context.component_tasks("chosen")

        def execute(self, row: Any, collector: Any) -> None:
            collector.emit((row.word, -1), "side")
            collector.emit_direct(self.tasks[row.n % 3], (row.word, -2), "by_hand")
            found = work(row["word"], row.n)
            for each in found if isinstance(found, list) else [found]:
                if each is not None:
                    collector.emit(each)
                    collector.emit(each, "side")

    fields = "word string, n long"
    outputs = {"default": fields, "side": fields, "by_hand": fields}
    by_collector = bolt(output=outputs, direct="by_hand")(ByCollector)
    first = bolt(output=fields)(lambda row: work(row["word"], row.n)) if style else by_collector
    same = bolt(output=fields)(lambda row: row.get_values())
    builder = TopologyBuilder("fused").configure({"windowing.max.attempts": 3, "windowing.retry.delay.ms": 0})
    builder.configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout(fields))
    builder.set_bolt("first", first, 2).shuffle_grouping("in")
    builder.set_bolt("second", same, 3).local_or_shuffle_grouping("in").shuffle_grouping("first")
    keyed = builder.set_bolt("keyed", same, 2).fields_grouping("second", "word")
    if not style:
        keyed.partial_key_grouping("first", "word", stream="side").fields_grouping("first", "word")
        builder.set_bolt("chosen", same, 3).direct_grouping("first", stream="by_hand")
    return builder.build()


def one_by_one(writer: StageWriter, way: Any, rows: Any, phase: int, roots: Any) -> None:
    before, writer.phase = writer.phase, phase
    for values in rows:
        writer._hand_over(way, values, roots)
    writer.phase = before


def columns_one_by_one(writer: StageWriter, way: Any, given: Any, fields: Any, count: int, roots: Any) -> None:
    for values in zip(*(column.to_pylist() for column in given.values()), strict=True):
        writer._hand_over(way, values, roots)


def emitted_one_by_one(
    writer: StageWriter, component: str, task: int, stream: str, rows: Any, phase: int, roots: Any, to: Any = None
) -> None:
    before, writer.phase = writer.phase, phase
    for values in rows:
        writer.emit(component, task, EmittedRow(stream, values, to), roots)
    writer.phase = before


def test_the_round_robin_of_a_shuffle_continues_across_batches_and_rows() -> None:
    def queued() -> Any:
        wiring = Chain(fused({}, 1)).wiring
        writer = StageWriter(wiring, 0, 0)
        for first, size in ((0, 3), (3, 1), (4, 5)):
            rows = pa.table({"word": ["a"] * size, "n": range(first, first + size)}, wiring.schemas["in:default"])
            writer.send("in", 0, "default", rows.to_batches()[0])
            writer.emit("in", 0, EmittedRow("default", ("b", first)))
        return {
            (name, task): [(each.get_values(), repr(each._origin)) for each in writer.in_phases(found)]
            for name, queues in writer._queues.items()
            for task, found in queues.items()
        }

    found = queued()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageWriter, "_queue", one_by_one)
        patch.setattr(StageWriter, "_hand_over_columns", columns_one_by_one)
        assert queued() == found
    assert sorted(found) == [("first", 0), ("first", 1), ("second", 0), ("second", 1), ("second", 2)]


def test_rows_queued_before_columns_of_their_stream_come_first_in_the_round_robin_of_a_shuffle() -> None:
    builder = TopologyBuilder("exchanged").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("word string, n long"))
    builder.set_bolt(
        "sums", tumbling(count(2), output="n long", name="sums")(lambda w: [(len(w),)]), 3
    ).shuffle_grouping("in")
    topology = builder.build()

    def tasks_of(in_columns: bool) -> dict[int, int]:
        wiring = Chain(topology).wiring
        writer = StageWriter(wiring, 0, 0)
        for first, size in ((0, 4), (10, 1), (20, 2)):
            writer.emit("in", 0, EmittedRow("default", ("row", first)))
            rows = pa.table(
                {"word": ["a"] * size, "n": range(first + 1, first + 1 + size)}, wiring.schemas["in:default"]
            )
            if in_columns:
                writer.send("in", 0, "default", rows.to_batches()[0])
                continue
            for n in rows["n"].to_pylist():
                writer.emit("in", 0, EmittedRow("default", ("a", n)))
        sent = [(row.target, decode_table(row.data)) for row in writer.take() if row.kind == "rows"]
        return {n: target for target, table in sent for n in table[1].to_pylist()}

    found = tasks_of(in_columns=True)
    assert len(found) == 10
    assert found == tasks_of(in_columns=False)


@pytest.mark.parametrize("how", ["returns", "emits"])
def test_a_fused_bolt_gets_each_tuple_when_it_is_called_and_not_all_before(how: str) -> None:
    alive: list[int] = []

    @bolt(output="n long")
    def counting(tuple: Any, collector: Any) -> None:
        if tuple.n % 500 == 0:
            alive.append(sum(type(each).__name__ == "Arrival" for each in gc.get_objects()))
        collector.emit((tuple.n,))

    @bolt(output="n long")
    def returning(tuple: Any) -> int:
        if tuple.n % 500 == 0:
            alive.append(sum(type(each).__name__ == "Arrival" for each in gc.get_objects()))
        return int(tuple.n)

    builder = TopologyBuilder("fused")
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("first", returning if how == "returns" else counting, 2).shuffle_grouping("in")
    gc.collect()  # tuples of other tests
    output = Chain(builder.build()).run({"in": [(n,) for n in range(2_000)]})
    assert sorted(output["first"]) == [(n,) for n in range(2_000)]
    assert alive[0] < 100
    assert max(alive) < 1_100  # those that have emitted are kept until their task is done


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=8), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)),
    st.integers(0, 1),
    st.booleans(),
)
def test_tuples_handed_over_at_once_equal_tuples_one_by_one(
    batches: list[Any], fails: dict[str, int], style: int, acks: bool
) -> None:
    def run() -> Any:
        chain = Chain(fused(fails, style), 2, acks=acks)
        return [(chain.run({"in": rows}), chain.partials, chain.invalid) for rows in batches]

    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoltBatch, "take", RetriedBatch.take)
        patch.setattr(TupleRows, "runs", TupleRows.payloads)
        patch.setattr(stage_writer, "spread_of", lambda *_: None)
        patch.setattr(StageWriter, "_queue", one_by_one)
        patch.setattr(StageWriter, "_hand_over_columns", columns_one_by_one)
        patch.setattr(StageWriter, "emit_all", emitted_one_by_one)
        patch.setattr(user_code, "rows_converter", lambda *of: lambda returned: list(rows_of(returned, *of)))
        assert run() == found


def joined_by_a_window() -> Topology:
    """Return bolts after exchanges whose tasks get tuples that passed a window, and such that did not, of one task."""
    fields = "word string, n long"
    same = bolt(output=fields)(lambda row: row.select(["word", "n"]))

    @tumbling(count(2), output=fields)
    def pairs(window: Any) -> Any:
        return [(row.word, row.n + 10) for row in window.get()]

    builder = TopologyBuilder("joined").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout(fields))
    builder.set_bolt("pairs", pairs, 2).fields_grouping("in", "word")
    builder.set_bolt("both", same, 2).fields_grouping("in", "word").fields_grouping("pairs", "word")
    sent = bolt(output=fields)(lambda row: (row.word, 100 * row.n + row.source_task))
    builder.set_bolt("next", sent, 2).fields_grouping("both", "n")
    builder.set_bolt("last", same).global_grouping("next")
    return builder.build()


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=9), min_size=1, max_size=3))
def test_runs_of_tuples_that_arrived_equal_the_tuples_made_all_at_once(batches: list[Any]) -> None:
    def run() -> Any:
        chain = Chain(joined_by_a_window(), 2)
        return [chain.run({"in": rows}) for rows in batches]

    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TupleRows, "runs", TupleRows.payloads)
        assert run() == found


def windows_with_three_streams() -> Topology:
    """Return windows whose late tuples and two streams go to sinks, to a fused bolt, and to bolts after exchanges."""

    def sizes(window: Any, collector: Any) -> None:
        for number in range(len(window) + 1):
            collector.emit((window.key, number), stream="odd" if number % 3 == 1 else "default")

    fields = "word string, n long"
    same = bolt(output=fields)(lambda row: row.select(["word", "n"]))
    late = bolt(output=fields)(lambda row: (row.word, row.at))
    options: dict[str, Any] = {"timestamp": "at", "key": "word", "late_stream": "late"}
    sized = tumbling(millis(4), output={"default": fields, "odd": fields}, **options)(sizes)
    builder = TopologyBuilder("streams").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("word string, at long"))
    builder.set_bolt("sizes", sized, 2).fields_grouping("in", "word")
    builder.set_bolt("fused", same, 2).local_or_shuffle_grouping("sizes")
    builder.set_bolt("keyed", same, 2).partial_key_grouping("sizes", "word", stream="odd")
    builder.set_bolt("spread", same, 2).shuffle_grouping("sizes").fields_grouping("sizes", "word", stream="odd")
    builder.set_bolt("late", late, 2).shuffle_grouping("sizes", stream="late")
    return builder.build()


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=8), min_size=1, max_size=3),
    st.booleans(),
)
def test_rows_of_windows_emitted_at_once_equal_rows_emitted_one_by_one(batches: list[Any], acks: bool) -> None:
    def run() -> Any:
        chain = Chain(windows_with_three_streams(), 2, acks=acks)
        found = [(chain.run({"in": rows}), chain.partials) for rows in batches]
        return [*found, chain.run({}, drain=True), chain.partials]

    found = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageWriter, "emit_all", emitted_one_by_one)
        assert run() == found


# -- cleanup after an error ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", [chained, clustered])
@pytest.mark.parametrize("method", ["init_state", "prepare", "execute"])
def test_cleanup_follows_an_error_of_a_bolt_in_every_runtime(runtime: Any, method: str) -> None:
    made, cleaned = [], []

    class Opens:
        def __init__(self) -> None:
            made.append(self)

        def prepare(self, context: Any) -> None:
            self._reach("prepare")

        def execute(self, row: Any) -> Any:
            self._reach("execute")
            return []

        def cleanup(self) -> None:
            cleaned.append(self)
            raise OSError("dropped")

        def _reach(self, reached: str) -> None:
            if reached == method:
                raise ValueError("no")

    class Keeps(Opens):
        def init_state(self, state: Any) -> None:
            self._reach("init_state")

    plain, stateful = bolt(output="n long")(Opens), bolt(output="n long")(Keeps)
    same = bolt(output="key string, n long")(lambda row: (row.key, row.n))
    for declared, parallelism, fused in ((plain, 1, False), (plain, 2, False), (plain, 1, True), (stateful, 2, False)):
        if declared is plain and method == "init_state":
            continue
        builder = TopologyBuilder("cleanup")
        builder.set_spout("in", InputSpout("key string, n long"))
        if fused:
            builder.set_bolt("same", same).fields_grouping("in", "key")
            builder.set_bolt("bolt", declared).local_or_shuffle_grouping("same")
            assert "bolt" not in execution_plan(builder.build()).stages
        else:
            builder.set_bolt("bolt", declared, parallelism).fields_grouping("in", "key")
        with pytest.raises(BoltError, match=r"bolt 'bolt' failed .*ValueError: no"):
            runtime(builder.build(), {"in": [[("a", 1)]]})
        assert sorted(map(id, cleaned)) == sorted(map(id, made)) != []
        made.clear()
        cleaned.clear()
