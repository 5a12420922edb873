"""BoltCaller: the input of a bolt without windows, its emissions, and the errors of its failures."""

from __future__ import annotations

import pytest

from windowing.errors import BoltError, FailedException
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout, StatefulBolt, TopologyContext
from windowing.topology.decorators import bolt, bolt_of, tumbling
from windowing.topology.user_code import BoltCaller, BoltRunner, EmittedRow
from windowing.windows.measures import count

ROW = Tuple((1, "a"), Origin("rows", 0, Fields("n", "name")))


def caller_of(declared, opened=True) -> BoltCaller:
    builder = TopologyBuilder()
    builder.set_spout("rows", InputSpout("n long, name string"))
    builder.set_bolt("it", declared).shuffle_grouping("rows")
    caller = BoltCaller(builder.build().component("it").declaration)
    if opened:
        caller.open(TopologyContext("it"))
    return caller


def test_a_bolt_that_acks_by_itself_and_returns_rows_learns_where_they_go():
    @bolt(output="n long")
    class Returns(StatefulBolt):
        def init_state(self, state): ...

        def execute(self, tuple):
            return tuple["n"]

    caller = caller_of(Returns)
    caller.prepare(TopologyContext("it"))
    with pytest.raises(
        BoltError, match=r"it is a Bolt, which emits .* yet it returned 1; .* BasicBolt or from nothing"
    ):
        caller.execute(ROW)


def test_returned_and_yielded_rows_go_to_the_default_stream():
    @bolt(output="n long")
    def twice(tuple):
        yield tuple["n"]
        yield {"n": tuple.n + 1}

    assert caller_of(twice).execute(ROW) == [EmittedRow("default", (1,)), EmittedRow("default", (2,))]


def test_a_collector_emits_to_every_declared_stream_and_to_a_named_task():
    @bolt(output={"default": "n long", "names": "name string"}, direct="names")
    def spread(tuple, collector):
        collector.emit(tuple["n"])
        collector.emit_direct(3, tuple["name"], stream="names")

    assert caller_of(spread).execute(ROW) == [EmittedRow("default", (1,)), EmittedRow("names", ("a",), 3)]


@pytest.mark.parametrize(
    ("emit", "sentence"),
    [
        (lambda collector: collector.emit(1, stream="nowhere"), "stream 'nowhere' is not declared"),
        (lambda collector: collector.emit("a", stream="names"), "call emit_direct"),
        (lambda collector: collector.emit_direct(0, 1), "not declared direct"),
        (lambda collector: collector.emit((1, 2)), "has 1 field"),
    ],
)
def test_a_wrong_emit_is_refused_with_the_bolt_and_the_fix(emit, sentence):
    @bolt(output={"default": "n long", "names": "name string"}, direct="names")
    def wrong(tuple, collector):
        emit(collector)

    with pytest.raises(BoltError, match=f"bolt 'it' emitted a wrong row on Tuple.*{sentence}"):
        caller_of(wrong).execute(ROW)


def test_a_failed_call_emits_nothing_and_its_error_has_the_users_exception_as_cause():
    kept = []

    @bolt(output="n long")
    def half(tuple, collector):
        kept.append(collector)
        collector.emit(1)
        raise ZeroDivisionError("no")

    caller = caller_of(half)
    with pytest.raises(
        BoltError, match=r"bolt 'it' failed on .*ZeroDivisionError: no \(.*test_calls.py:\d+\)"
    ) as caught:
        caller.execute(ROW)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(BoltError, match="emitted after execute had returned"):
        kept[0].emit(2)


def test_a_failed_exception_is_passed_on_unchanged():
    @bolt()
    def failing(tuple):
        raise FailedException("not now")

    with pytest.raises(FailedException, match="not now"):
        caller_of(failing).execute(ROW)


def test_a_bolt_without_output_may_return_none_or_be_a_generator_without_rows():
    seen = []

    @bolt()
    def quiet(tuple):
        seen.append(tuple["n"])

    @bolt()
    def lazily(tuple):
        seen.append(tuple["n"])
        return
        yield

    @bolt()
    def loud(tuple):
        return tuple["n"]

    assert [caller_of(quiet).execute(ROW), caller_of(lazily).execute(ROW), seen] == [[], [], [1, 1]]
    with pytest.raises(BoltError, match="declares no output, yet it returned 1"):
        caller_of(loud).execute(ROW)


@pytest.mark.parametrize("where", ["when it was made", "in init_state", "in prepare"])
def test_a_bolt_that_cannot_be_prepared_is_named_with_the_method_and_cleaned_up(where):
    calls = []

    class Fails:
        def __init__(self):
            self.step("when it was made")

        def init_state(self, state):
            self.step("in init_state")

        def prepare(self, context, *collector):
            self.step("in prepare")

        def execute(self, given): ...

        def cleanup(self):
            calls.append("cleanup")
            raise ValueError("is dropped")

        def step(self, now):
            if now == where:
                raise ValueError("no")

    stateful = type("Fails", (Fails, Bolt), {})
    caller = caller_of(bolt()(stateful), opened=False)
    runner = BoltRunner(bolt_of(tumbling(count(1), name="it")(Fails)))
    for begin in (
        lambda: (caller.open(TopologyContext("it")), caller.prepare(None, None, {})),
        lambda: runner.open(None, {}),
    ):
        with pytest.raises(
            BoltError, match=rf"^\[BOLT\] bolt 'it' failed {where}: ValueError: no \(.*test_calls.py:\d+\)$"
        ):
            begin()
    assert calls == ([] if where == "when it was made" else ["cleanup", "cleanup"])


def test_a_bolt_with_manual_acks_is_prepared_with_the_drivers_collector():
    told = []

    @bolt(output="n long")
    class Acking(Bolt):
        def execute(self, tuple):
            told.append((self.context.component, self.collector, tuple["n"]))

        def cleanup(self):
            told.append("cleanup")

    builder = TopologyBuilder()
    builder.set_spout("rows", InputSpout("n long, name string"))
    builder.set_bolt("it", Acking).shuffle_grouping("rows")
    caller = BoltCaller(builder.build().component("it").declaration)
    caller.open(TopologyContext("it"), "collector")
    assert caller.execute(ROW) == []
    caller.close()
    assert told == [("it", "collector", 1), "cleanup"]
