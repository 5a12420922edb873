"""The effects of an attempt of a bolt: all of it or nothing; which tuples are retried, how often, and after how long. Without a
JVM.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.execution.chains import Chain
from tests.execution.test_chain_acks import Acking
from windowing.errors import BoltError, FailedException
from windowing.spark.exchange import TASK_AND_CLOCK, rows_of
from windowing.spark.stages import SpoutStage
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout, StatefulBolt
from windowing.topology.decorators import bolt, tumbling
from windowing.topology.plan import Topology
from windowing.windows.measures import millis


def one_bolt(target: Any, attempts: int = 3, delay_ms: int = 0, placed: bool = True) -> Topology:
    builder = TopologyBuilder("one")
    builder.configure(
        {
            "windowing.max.attempts": attempts,
            "windowing.retry.delay.ms": delay_ms,
            "topology.enable.message.timeouts": False,
        }
    )
    builder.set_spout("in", InputSpout("n long"))
    declarer = builder.set_bolt("bolt", target)
    declarer.global_grouping("in") if placed else declarer.shuffle_grouping("in")
    return builder.build()


def delayed_emitter(fails: dict[int, int]) -> Any:
    """Return a bolt that emits each tuple when the next one arrives, and the last in `cleanup`; `n` fails `fails[n]` times."""
    left = dict(fails)

    @bolt(output="n long")
    class Telling(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, []

        def tell(self) -> None:
            held, self.held = self.held, []
            for each in held:
                self.collector.emit((each.n,), anchors=each)
                self.collector.ack(each)

        def execute(self, tuple: Any) -> None:
            self.tell()
            if left.get(tuple.n, 0) > 0:
                left[tuple.n] -= 1
                raise FailedException("not yet")
            self.held.append(tuple)

        def cleanup(self) -> None:
            self.tell()

    return Telling


def dead_numbers(found: dict[str, Any]) -> list[int]:
    return [int(letter[7].split('"n": ')[1].rstrip("}]")) for letter in found.get("bolt.dead_letters", [])]


def test_acks_for_other_tuples_in_a_failed_call_are_undone_and_the_tuples_retried() -> None:
    run = Acking(one_bolt(delayed_emitter({2: 1})))
    assert run.run({"in": [(1,), (2,), (3,)]}) == [(0, 0, None)]
    assert sorted(run.out["bolt"]) == [(1,), (2,), (3,)], "1 was told of in the call that failed on 2"


@pytest.mark.parametrize("placed", [True, False])
@given(st.lists(st.integers(0, 6), max_size=8), st.dictionaries(st.integers(0, 6), st.integers(0, 9)))
def test_each_tuple_is_emitted_once_or_is_a_dead_letter(placed: bool, rows: list[int], fails: dict[int, int]) -> None:
    topology = one_bolt(delayed_emitter(fails), placed=placed)
    found = Chain(topology).run({"in": [(n,) for n in rows]})
    told = Counter(n for (n,) in found.get("bolt", []))
    assert told + Counter(dead_numbers(found)) == Counter(rows)
    assert all(fails.get(n, 0) >= 3 for n in dead_numbers(found)), "only what failed by itself"


def test_a_write_for_another_tuple_in_a_failed_call_is_undone_and_repeated() -> None:
    fails = [2]

    @bolt()
    class Adding(StatefulBolt):
        def init_state(self, state: Any) -> None:
            self.state = state

        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, []

        def add(self) -> None:
            held, self.held = self.held, []
            for each in held:
                self.state.put("sum", self.state.get("sum", 0) + each.n)
                self.collector.ack(each)

        def execute(self, tuple: Any) -> None:
            self.add()
            if tuple.n in fails:
                fails.remove(tuple.n)
                raise FailedException("not yet")
            self.held.append(tuple)

        def pre_prepare(self, txid: int) -> None:
            self.add()

    chain = Chain(one_bolt(Adding))
    chain.run({"in": [(1,), (2,), (4,)]})
    assert chain.values[0] != {}
    assert [blob[-1:] for blob in chain.values[0].values()] == [b"7"]


def holder(method: str) -> Any:
    """Return a stateful bolt that holds all tuples until `method` is called, which emits and acks them."""

    @bolt(output="n long")
    class Holder(StatefulBolt):
        def init_state(self, state: Any) -> None:
            self.state = state

        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, []

        def execute(self, tuple: Any) -> None:
            self.held.append(tuple)

        def tell(self, *_: int) -> None:
            for each in self.held:
                self.collector.emit((each.n,), anchors=each)
                self.collector.ack(each)

    setattr(Holder, method, Holder.tell)
    return Holder


@tumbling(millis(10), timestamp="n", output="many long")
def tens(window: Any) -> Any:
    return len(window)


@pytest.mark.parametrize("method", ["pre_prepare", "pre_commit", "cleanup"])
def test_rows_emitted_in_hooks_and_in_cleanup_have_their_anchors(method: str) -> None:
    run = Acking(one_bolt(holder(method)))
    assert run.run({"in": [(1,), (2,)]}) == [(0, 0, None)]
    assert run.out["bolt"] == [(1,), (2,)]

    builder = TopologyBuilder("below")
    builder.configure({"topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("bolt", holder(method)).global_grouping("in")
    builder.set_bolt("tens", tens).global_grouping("bolt")
    run = Acking(builder.build())
    assert run.run({"in": [(1,)]}) == [], "it waits in a window"
    assert run.run({"in": [(35,)]}) == [(0, 0, None)]


def test_rows_that_fused_bolts_emit_in_cleanup_reach_the_fused_bolts_downstream() -> None:
    builder = TopologyBuilder("fused")
    builder.set_spout("in", InputSpout("n long"))
    # The downstream bolt comes first by name and by the creation of its task.
    builder.set_bolt("z", delayed_emitter({})).shuffle_grouping("in")
    builder.set_bolt("a", delayed_emitter({})).shuffle_grouping("z").shuffle_grouping("in")
    found = Chain(builder.build()).run({"in": [(1,), (2,)]})
    assert sorted(found["a"]) == [(1,), (1,), (2,), (2,)]


def test_rows_emitted_in_prepare_survive_a_failed_call() -> None:
    fails = [1]

    @bolt(output="n long")
    class Greeting(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            collector.emit((0,))
            self.collector = collector

        def execute(self, tuple: Any) -> None:
            if fails:
                raise FailedException(str(fails.pop()))
            self.collector.ack(tuple)

    assert Chain(one_bolt(Greeting)).run({"in": [(1,)]})["bolt"] == [(0,)]


@pytest.mark.parametrize("method", ["pre_prepare", "pre_commit", "cleanup"])
def test_failing_a_tuple_in_hooks_or_cleanup_is_an_error(method: str) -> None:
    @bolt()
    class Failing(StatefulBolt):
        def init_state(self, state: Any) -> None:
            self.state = state

        def prepare(self, context: Any, collector: Any) -> None:
            self.collector = collector

        def execute(self, tuple: Any) -> None:
            self.held = tuple

        def settle(self, *_: int) -> None:
            self.collector.fail(self.held)

    setattr(Failing, method, Failing.settle)
    with pytest.raises(
        BoltError, match=rf"'bolt' failed .*'n': 7.* in {method}, when nothing .* fail it while execute runs"
    ):
        Chain(one_bolt(Failing)).run({"in": [(7,)]})


@pytest.mark.timeout(30)
def test_bolts_that_fail_each_others_tuples_terminate() -> None:
    @bolt()
    class Jealous(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, None

        def execute(self, tuple: Any) -> None:
            if self.held is not None:
                self.collector.fail(self.held)
            self.held = tuple

    found = Chain(one_bolt(Jealous, attempts=4)).run({"in": [(1,), (2,)]})
    assert sorted(dead_numbers(found)) == [1, 2]
    assert [letter[2] for letter in found["bolt.dead_letters"]] == [4, 4]


@pytest.mark.parametrize("placed", [True, False])
def test_all_failed_tuples_of_a_round_wait_one_retry_delay_together(placed: bool, monkeypatch: Any) -> None:
    waits: list[float] = []
    monkeypatch.setattr("windowing.spark.tasks.time", SimpleNamespace(sleep=waits.append))

    @bolt(output="n long")
    def picky(tuple: Any) -> Any:
        if tuple.n % 2:
            raise FailedException("odd")
        return tuple.n

    found = Chain(one_bolt(picky, attempts=5, delay_ms=1_000, placed=placed)).run({"in": [(n,) for n in range(100)]})
    assert waits == [1, 2, 4, 8]
    assert found["bolt"] == [(n,) for n in range(0, 100, 2)]
    assert dead_numbers(found) == list(range(1, 100, 2))


def test_a_retried_tuple_keeps_its_position_before_the_rows_of_windows(monkeypatch: Any) -> None:
    """A row of the input comes before a row of a window of that batch, at whichever attempt it succeeded."""
    failed = []

    @tumbling(millis(10), timestamp="n", output="n long")
    def sums(window: Any) -> Any:
        return 1000 + sum(t.n for t in window)

    @bolt(output="n long")
    def shaky(tuple: Any) -> Any:
        if tuple.n == 1 and not failed:
            failed.append(tuple.n)
            raise FailedException("once")
        return tuple.n

    @bolt(output="n long")
    def last(tuple: Any) -> Any:
        return tuple.n

    builder = TopologyBuilder("phases")
    builder.configure({"windowing.retry.delay.ms": 0, "topology.enable.message.timeouts": False})
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("sums", sums).global_grouping("in")
    builder.set_bolt("shaky", shaky).global_grouping("in").global_grouping("sums")
    builder.set_bolt("last", last).global_grouping("shaky")
    found = Chain(builder.build()).run({"in": [(1,), (2,), (15,)]})
    assert found["last"] == [(2,), (15,), (1,), (1003,)]


NESTED = "tags array<string>, sizes map<string,long>, at struct<x: array<long>>"


@bolt(output=NESTED)
def as_it_is(row: Any) -> Any:
    return row


@bolt(output=NESTED)
class ChangesAndRaises:
    def prepare(self, context: Any) -> None:
        self.calls: Counter[int] = Counter()

    def execute(self, row: Any) -> Any:
        first = row["at"]["x"][0]
        self.calls[first] += 1
        row["tags"].append("b")
        row["sizes"]["b"] = 2
        row["at"]["x"].append(2)
        if first and self.calls[first] < 3:
            raise FailedException("not yet")
        return row


@bolt(output=NESTED)
class ChangesAndFails(Bolt):
    """Fails a tuple when it gets the next one, and never settles the last."""

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector, self.calls, self.held = collector, Counter[int](), None

    def execute(self, row: Any) -> None:
        first = row["at"]["x"][0]
        self.calls[first] += 1
        row["tags"].append("b")
        row["sizes"]["b"] = 2
        row["at"]["x"].append(2)
        if self.held is not None:
            self.collector.fail(self.held)
        self.held = None
        if first and self.calls[first] < 3:
            self.held = row
        else:
            self.collector.emit(row, anchors=row)
            self.collector.ack(row)


@pytest.mark.parametrize("acks", [False, True])
@pytest.mark.parametrize("before", ["exchange", "spout", "bolt"])
@pytest.mark.parametrize("attempts", [3, 2])
@pytest.mark.parametrize("changes", [ChangesAndRaises, ChangesAndFails])
def test_a_bolt_that_changes_a_list_in_place_and_fails_changes_no_retry_and_no_dead_letter(
    changes: Any, attempts: int, before: str, acks: bool
) -> None:
    builder = TopologyBuilder("changes").configure(
        {"windowing.max.attempts": attempts, "windowing.retry.delay.ms": 0, "topology.enable.message.timeouts": False}
    )
    builder.set_spout("in", InputSpout(NESTED))
    builder.set_bolt("through", as_it_is).shuffle_grouping("in")
    declarer = builder.set_bolt("changes", changes)
    if before == "exchange":
        declarer.global_grouping("in")
    else:
        declarer.shuffle_grouping("in" if before == "spout" else "through")
    chain = Chain(builder.build(), acks=acks)
    rows = [([f"a{n}"], {"a": n}, {"x": [n]}) for n in (1, 0, 2, 0)]
    found = chain.run({"in": rows})
    changed = [(["a0", "b"], {"a": 0, "b": 2}, {"x": [0, 2]})] * 2
    if attempts == 3:
        changed += [([f"a{n}", "b"], {"a": n, "b": 2}, {"x": [n, 2]}) for n in (1, 2)]
    assert found["changes"] == changed
    letters = found.get("changes.dead_letters", [])
    assert len(letters) == (2 if attempts == 2 else 0)
    for number, letter in enumerate(letters, start=1):
        assert letter[2] == 2
        assert f'"tags": ["a{number}"]' in letter[7]
        assert f'"x": [{number}]' in letter[7]
        assert '"b"' not in letter[7]


def test_a_tuple_that_failed_and_then_was_never_settled_is_a_dead_letter_with_its_attempts_as_it_came() -> None:
    @bolt(output=NESTED)
    class ChangesAndLeaves(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.calls = 0

        def execute(self, row: Any) -> None:
            row["tags"].append("b")
            self.calls += 1
            if self.calls == 1:
                raise FailedException("not yet")

    builder = TopologyBuilder("left").configure({"windowing.retry.delay.ms": 0})
    builder.set_spout("in", InputSpout(NESTED))
    builder.set_bolt("changes", ChangesAndLeaves).global_grouping("in")
    found = Chain(builder.build()).run({"in": [(["a"], {}, None)]})
    ((_, _, attempts, error, *_, tuples),) = found["changes.dead_letters"]
    assert (attempts, error) == (2, "it was neither acked nor failed when its task had no more tuples")
    assert '"tags": ["a"]' in tuples


@pytest.mark.parametrize("changes", [ChangesAndRaises, ChangesAndFails])
def test_the_lists_of_tuples_that_cannot_fail_any_more_are_not_held_until_the_batch_ends(changes: Any) -> None:
    builder = TopologyBuilder("held").configure({"windowing.retry.delay.ms": 0})
    builder.set_spout("in", InputSpout(NESTED))
    builder.set_bolt("changes", changes).shuffle_grouping("in")
    chain, live, mark = Chain(builder.build()), [], changes.__name__

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            live.append(sum(type(each) is list and each[:1] == [mark] for each in gc.get_objects()))
            columns = [[mark]] * 100, [{}] * 100, [{"x": [at if at < 3 and not number else 0]} for at in range(100)]
            arrays = [pa.array(*each) for each in zip(columns, chain.wiring.schemas["in:default"].types, strict=True)]
            yield pa.RecordBatch.from_arrays(
                [*arrays, pa.repeat(pa.scalar(1, pa.int64()), 100)], names=["c0", "c1", "c2", TASK_AND_CLOCK]
            )

    stage = SpoutStage(SimpleNamespace(value=chain.wiring), "in", "default")  # type: ignore[arg-type]
    rows = [row for sent in stage.pack(batches(), 0, 0) for row in rows_of([sent.to_pandas()])]
    assert sum(row.value for row in rows if (row.kind, row.stream) == ("out", "changes:default")) == 500
    assert max(live) < 250
