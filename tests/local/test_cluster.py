"""LocalCluster: a topology in one process: acks, fails, retries, timeouts, anchors, ticks and drains."""

from __future__ import annotations

import re
from collections import namedtuple
from typing import ClassVar

import pytest

from windowing import GroupingError, count, is_tick, millis, seconds, sliding, tumbling, windowed_bolt
from windowing.errors import BoltError, ConfigError, FailedException, ReportedFailedException, WindowingError
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.testing import Watch
from windowing.topology.bolts import ComponentKind
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, InputSpout, Spout
from windowing.topology.decorators import bolt, spout


@spout(output="n long")
def three():
    yield from (1, 2, 3)


@bolt(output="n long")
def twice(tuple):
    return tuple["n"] * 2


def topology_of(*bolts, source=three, **settings):
    """A chain: the spout "source", then each bolt, by shuffle grouping, as "bolt0", "bolt1", ..."""
    builder = TopologyBuilder("test").configure(**settings)
    builder.set_spout("source", source)
    before = "source"
    for index, declared in enumerate(bolts):
        builder.set_bolt(f"bolt{index}", declared).shuffle_grouping(before)
        before = f"bolt{index}"
    return builder.build()


def ran(*bolts, source=three, clock=None, batches=None, seed=None, **settings):
    return run_topology(
        topology_of(*bolts, source=source, **settings), batches, clock=clock or VirtualClock(), seed=seed
    )


class Holds(Bolt):
    """The base of bolts that hold tuples."""

    def prepare(self, context, collector):
        super().prepare(context, collector)
        self.held = []


class Recording(Spout):
    """A spout of some messages that records its acks and fails; a failed message is emitted again at the next `next_tuple`."""

    values = ("a", "b", "c")

    def __init__(self):
        self.heard = []
        self.waiting = list(self.values)
        self.life = []

    def open(self, context, collector):
        super().open(context, collector)
        self.life.append("open")

    def next_tuple(self):
        if self.waiting:
            value = self.waiting.pop(0)
            self.collector.emit(value, message_id=value)

    def ack(self, message_id):
        self.heard.append(("ack", message_id))

    def fail(self, message_id):
        self.heard.append(("fail", message_id))
        self.waiting.append(message_id)

    def activate(self):
        self.life.append("activate")

    def deactivate(self):
        self.life.append("deactivate")

    def close(self):
        self.life.append("close")


def recording(**attributes):
    """A spout class whose instances are kept in `made`."""

    @spout(output="v string")
    class Kept(Recording):
        made: ClassVar[list] = []

        def __init__(self):
            super().__init__()
            self.made.append(self)

    for name, value in attributes.items():
        setattr(Kept, name, value)
    return Kept


class FailsAtFirst(BasicBolt):
    """Fails each value a number of times before it lets it through."""

    times = 1

    def prepare(self, context):
        self.seen = {}

    def execute(self, tuple):
        value = tuple[0]
        self.seen[value] = self.seen.get(value, 0) + 1
        if self.seen[value] <= self.times:
            raise FailedException(f"not yet: {value}")
        return value


@bolt(output="v string")
class Once(FailsAtFirst):
    pass


@bolt(output="v string")
class Always(FailsAtFirst):
    times = 1_000_000


# -- tuples flow ---------------------------------------------------------------------------------------------------------


def test_values_that_a_function_yields_pass_the_bolts_and_each_message_is_acked():
    result = ran(twice, twice)
    assert (result["bolt1"], result.acked, result.failures) == ([(4,), (8,), (12,)], 3, 0)


@pytest.mark.parametrize("ackers", [0, 1, 3])
def test_with_any_number_of_ackers_a_spout_gets_one_ack_per_message(ackers):
    kept = recording()
    assert ran(twice_text, source=kept, acker_executors=ackers).acked == 3
    assert sorted(kept.made[0].heard) == [("ack", "a"), ("ack", "b"), ("ack", "c")]


@bolt(output="v string")
def twice_text(tuple):
    return tuple["v"] * 2


def test_without_an_acker_a_message_is_acked_when_it_is_emitted():
    kept = recording()
    result = ran(Always, source=kept, acker_executors=0)
    assert (result.acked, result.failures, len(kept.made[0].heard)) == (3, 0, 3)


def test_an_all_grouping_sends_a_tuple_to_every_task_and_acks_it_after_all_of_them():
    seen = []

    @bolt()
    class Seeing(BasicBolt):
        def prepare(self, context):
            self.task = context.task

        def execute(self, tuple):
            seen.append((self.task, tuple["n"]))

    builder = TopologyBuilder()
    builder.set_spout("source", three)
    builder.set_bolt("all", Seeing, 3).all_grouping("source")
    result = run_topology(builder.build(), clock=VirtualClock())
    assert sorted(seen) == [(task, n) for task in (1, 2, 3) for n in (1, 2, 3)]
    assert result.acked == 3


def test_emit_direct_sends_a_tuple_to_the_named_task():
    seen = []

    @bolt(output={"default": "n long", "to": "n long"}, direct="to")
    def route(tuple, collector):
        collector.emit_direct(2 + tuple["n"] % 2, tuple["n"], stream="to")

    @bolt()
    class Seeing(BasicBolt):
        def prepare(self, context):
            self.task = context.task

        def execute(self, tuple):
            seen.append((self.task, tuple["n"]))

    builder = TopologyBuilder()
    builder.set_spout("source", three)
    builder.set_bolt("route", route).shuffle_grouping("source")
    builder.set_bolt("see", Seeing, 2).direct_grouping("route", "to")
    builder.set_bolt("unnamed", Seeing).direct_grouping("route", "to")
    assert run_topology(builder.build(), clock=VirtualClock()).acked == 3
    assert sorted(seen) == [(2, 2), (3, 1), (3, 3)]


@pytest.mark.parametrize("outputs", [[], ["route.to"]])
def test_a_direct_stream_that_no_bolt_reads_needs_no_task(outputs):
    @bolt(output={"default": "n long", "to": "n long"}, direct="to")
    def route(tuple, collector):
        collector.emit_direct(7, tuple["n"], stream="to")

    builder = TopologyBuilder()
    builder.set_spout("source", three)
    builder.set_bolt("route", route).shuffle_grouping("source")
    result = run_topology(builder.build(), clock=VirtualClock(), outputs=outputs)
    assert result.acked == 3
    assert result.outputs == {name: [(1,), (2,), (3,)] for name in outputs}


@bolt(output="n long")
def collected(tuple, collector):
    collector.emit(tuple["n"])


@bolt(output="n long")
class Manual(Bolt):
    def execute(self, tuple):
        self.collector.emit(tuple["n"], anchors=tuple)
        self.collector.ack(tuple)


@tumbling(count(1), output="n long", on_error="skip")
def windowed(window):
    return window.get()[0]["n"]


@bolt(output="n long", columnar="arrow")
def columnar(batch):
    return batch


@pytest.mark.parametrize("emitter", [three, twice, collected, Manual, windowed, columnar])
def test_a_failed_exception_of_a_grouping_ends_the_run_with_its_name_whatever_emits_the_row(emitter):
    def choose(values, tasks):
        raise FailedException("no task for it")

    builder = TopologyBuilder()
    builder.set_spout("source", three)
    if emitter is not three:
        builder.set_bolt("emitter", emitter).shuffle_grouping("source")
    builder.set_bolt("reader", twice).custom_grouping("source" if emitter is three else "emitter", choose)
    of = "source" if emitter is three else "emitter"
    sentence = rf"stream 'default' of '{of}': .*choose\) failed on \(\d,\) with FailedException: .*no task for it"
    with pytest.raises(GroupingError, match=sentence):
        run_topology(builder.build(), clock=VirtualClock())


def test_rows_for_run_batch_that_name_no_spout_are_refused():
    with LocalCluster(topology_of(twice, source=InputSpout("n long")), clock=VirtualClock()) as cluster:
        with pytest.raises(
            ConfigError, match=r"takes rows by the name of their InputSpout, got \[\(1,\)\]; write \{'name'"
        ):
            cluster.run_batch([(1,)])
        with pytest.raises(ConfigError, match="'other' is no InputSpout of topology 'test'"):
            cluster.run_batch({"other": [(1,)]})
    with (
        LocalCluster(topology_of(twice), clock=VirtualClock()) as cluster,
        pytest.raises(
            ConfigError, match=r"feed one that is; to replace this spout, give .* batches=\{'source': \[\]\}"
        ),
    ):
        cluster.run_batch({"source": [(1,)]})
    with LocalCluster(topology_of(twice), batches={"source": []}, clock=VirtualClock()) as cluster:
        cluster.run_batch({"source": [(7,)]})
        assert cluster.result["bolt0"] == [(14,)]


def test_an_error_of_a_grouping_ends_the_run_with_its_sentence():
    builder = TopologyBuilder()
    builder.set_spout("source", InputSpout("n long"))
    builder.set_bolt("emitter", twice).shuffle_grouping("source")
    builder.set_bolt("reader", twice).custom_grouping("emitter", lambda values, tasks: 7)
    with pytest.raises(GroupingError, match="there is no task 7"):
        run_topology(builder.build(), {"source": [[(1,)]]}, clock=VirtualClock())


def test_a_bolt_with_manual_acks_may_hold_tuples_and_anchor_to_several():
    @bolt(output="total long")
    class Pairs(Holds):
        def execute(self, tuple):
            self.held.append(tuple)
            if len(self.held) == 2:
                total = sum(one["n"] for one in self.held)
                self.collector.emit(total, anchors=self.held)
                for one in self.held:
                    self.collector.ack(one)
                self.held = []

    @bolt(output="total long")
    class FailsFirst(FailsAtFirst):
        pass

    @spout(output="n long")
    def four():
        yield from (1, 2, 3, 4)

    result = ran(Pairs, FailsFirst, source=four)
    # The first pair fails, so both messages fail; each of the four fails once, is replayed in pairs, and is acked.
    assert (result.acked, result.failures) == (4, 4)
    assert result["bolt1"] == [(3,), (7,)]


def test_acking_a_tuple_twice_is_an_error_that_names_the_bolt():
    @bolt()
    class Twice(Bolt):
        def execute(self, tuple):
            self.collector.ack(tuple)
            self.collector.ack(tuple)

    with pytest.raises(BoltError, match=r"bolt 'bolt0' failed on .*acked or failed twice"):
        ran(Twice)


# -- failing -------------------------------------------------------------------------------------------------------------


def test_a_failed_message_is_emitted_again_after_the_retry_delay():
    clock = VirtualClock()
    kept = recording()
    result = ran(Once, source=kept, clock=clock, retry_delay=seconds(7))
    assert result["bolt0"] == [("a",), ("b",), ("c",)]
    assert kept.made[0].heard[:3] == [("fail", "a"), ("fail", "b"), ("fail", "c")]
    assert sorted(kept.made[0].heard[3:]) == [("ack", "a"), ("ack", "b"), ("ack", "c")]
    assert (result.acked, result.failures, clock.now_ms()) == (3, 3, 7000)


def test_failed_rows_of_a_function_spout_are_emitted_again_by_the_driver():
    @bolt(output="n long")
    class Odd(FailsAtFirst):
        pass

    result = ran(Odd)
    assert (result["bolt0"], result.acked, result.failures) == ([(1,), (2,), (3,)], 3, 3)


@pytest.mark.parametrize("attempts", [3, 2])
def test_a_bolt_that_changes_a_list_in_place_and_fails_changes_no_retry_and_no_dead_letter(attempts):
    fields = "tags array<string>, sizes map<string,long>, at struct<x: array<long>>"

    @spout(output=fields)
    def rows():
        yield ["a"], {"a": 1}, {"x": [1]}

    @bolt(output=fields)
    class Changes(BasicBolt):
        def prepare(self, context):
            self.calls = 0

        def execute(self, row, collector):
            self.calls += 1
            row["tags"].append("b")
            row["sizes"]["b"] = 2
            row["at"]["x"].append(2)
            if self.calls < 3:
                raise FailedException("not yet")
            collector.emit(row)

    for source, batches in ((rows, None), (InputSpout(fields), {"source": [[(["a"], {"a": 1}, {"x": [1]})]]})):
        builder = TopologyBuilder("changes").configure(max_attempts=attempts)
        builder.set_spout("source", source)
        builder.set_bolt("changes", Changes).shuffle_grouping("source")
        result = run_topology(builder.build(), batches, clock=VirtualClock())
        if attempts == 3:
            assert result["changes"] == [(["a", "b"], {"a": 1, "b": 2}, {"x": [1, 2]})]
        else:
            (letter,) = result.dead_letters
            assert letter.values == (["a"], {"a": 1}, {"x": [1]})


def test_a_message_that_fails_too_often_is_a_dead_letter_that_names_the_last_component():
    kept = recording(values=("a",))
    result = ran(twice_text, Always, source=kept, max_attempts=3)
    (letter,) = result.dead_letters
    assert (letter.message_id, letter.values, letter.attempts) == ("a", ("a",), 3)
    assert (letter.component, letter.tuples[0].source_component) == ("bolt1", "source")
    assert letter.error == "FailedException: [FAILED] not yet: aa"
    assert (result.acked, result.failures) == (0, 3)
    # A failed message is never acked: a spout that deletes on ack keeps it.
    assert kept.made[0].heard == [("fail", "a"), ("fail", "a")]


def test_a_spout_with_give_up_gets_its_dead_letters_there():
    kept = recording(values=("a",), give_up=lambda self, message_id: self.heard.append(("given up", message_id)))
    ran(Always, source=kept, max_attempts=1)
    assert kept.made[0].heard == [("given up", "a")]


def test_a_tree_without_an_ack_times_out_after_exactly_message_timeout():
    clock = VirtualClock()

    @bolt()
    class Forgetful(Bolt):
        def execute(self, tuple):
            return None

    kept = recording(values=("a",))
    result = ran(
        Forgetful, source=kept, clock=clock, message_timeout=seconds(5), max_attempts=2, retry_delay=seconds(1)
    )
    assert [letter.error for letter in result.dead_letters] == ["timeout"]
    assert clock.now_ms() == 5000 + 1000 + 5000


def test_reset_timeout_restarts_the_timeout():
    clock = VirtualClock()

    @bolt()
    class Slow(Bolt):
        def execute(self, tuple):
            if is_tick(tuple):
                for one in self.held:
                    self.collector.reset_timeout(one)
                self.ticks += 1
                if self.ticks == 4:
                    for one in self.held:
                        self.collector.ack(one)
            else:
                self.held.append(tuple)

        def prepare(self, context, collector):
            super().prepare(context, collector)
            self.held, self.ticks = [], 0

    result = ran(Slow, clock=clock, message_timeout=seconds(5), tick_tuple_freq=seconds(3))
    assert (result.acked, result.failures, clock.now_ms()) == (3, 0, 9_000), (
        "a tick as the input ends, and three by the clock"
    )


def test_a_reported_failure_is_in_the_result_and_fails_the_tuple():
    @bolt()
    def reporting(tuple):
        raise ReportedFailedException("bad day")

    result = ran(reporting, max_attempts=1)
    assert [(error.component, str(error.error)) for error in result.errors] == [("bolt0", "[REPORTED] bad day")] * 3
    assert len(result.dead_letters) == 3


def test_any_other_error_ends_the_cluster_names_the_bolt_and_calls_cleanup():
    life = []

    @bolt()
    class Breaking(BasicBolt):
        def execute(self, tuple):
            return 1 / 0

        def cleanup(self):
            life.append("cleanup")

    with LocalCluster(topology_of(Breaking), clock=VirtualClock()) as cluster:
        with pytest.raises(BoltError, match=r"bolt 'bolt0' failed on Tuple\(source:default\[0\].*ZeroDivisionError"):
            cluster.run()
        assert life == ["cleanup"]
        with pytest.raises(WindowingError, match="the cluster of topology 'test' is over: it ended with BoltError"):
            cluster.step()


def test_an_error_of_a_spout_names_the_spout():
    @spout(output="n long")
    def breaking():
        yield 1
        raise OSError("gone")

    with pytest.raises(
        BoltError, match=r"spout 'source' failed in next_tuple: OSError: gone \(.*test_cluster.py:\d+\)"
    ):
        ran(twice, source=breaking)


def test_a_spout_that_returns_rows_in_place_of_emitting_them_is_an_error():
    @spout(output="n long")
    class Returning(Spout):
        returned = ()

        def next_tuple(self):
            return self.returned

    class Iterating(Returning):
        returned = (n for n in (1,))

    @spout(output="n long")
    def giving(collector):
        return "abc"

    for declared, shown in ((Returning, r"\(\)"), (spout(output="n long")(Iterating), "<generator"), (giving, "'abc'")):
        with pytest.raises(
            BoltError, match=rf"spout 'source'.*in next_tuple.* it emitted nothing, and returned {shown}"
        ):
            ran(twice, source=declared)


def test_a_spout_may_return_what_emit_returned():
    @spout(output="n long")
    class Sending(Spout):
        def open(self, context, collector):
            self.collector, self.left = collector, [1, 2]

        def next_tuple(self):
            return self.collector.emit(self.left.pop(0)) if self.left else None

    assert ran(twice, source=Sending)["bolt0"] == [(2,), (4,)]


# -- spouts --------------------------------------------------------------------------------------------------------------


def test_ack_and_fail_get_the_values_where_the_spout_takes_them():
    heard = []

    def ack(self, message_id, values):
        heard.append(("ack", message_id, values))

    def fail(self, message_id, values):
        heard.append(("fail", message_id, values))
        self.waiting.append(message_id)

    @spout(output="v string")
    class Valued(Recording):
        values = ("a",)

    Valued.ack, Valued.fail = ack, fail
    valued = spout(output="v string")(type("Valued2", (Recording,), {"values": ("a",), "ack": ack, "fail": fail}))
    ran(Once, source=valued)
    assert heard == [("fail", "a", ("a",)), ("ack", "a", ("a",))]


def test_max_spout_pending_limits_the_tuples_in_flight():
    most = []

    @bolt()
    class Holding(Holds):
        """Acks its held tuples at each tick."""

        def execute(self, tuple):
            if not is_tick(tuple):
                self.held.append(tuple)
                most.append(len(self.held))
                return
            for one in self.held:
                self.collector.ack(one)
            self.held = []

    @spout(output="n long")
    def many():
        yield from range(20)

    result = ran(Holding, source=many, max_spout_pending=4, tick_tuple_freq=millis(10))
    assert (result.acked, max(most)) == (20, 4)


def test_a_spout_is_activated_after_it_was_opened_as_in_storm():
    @spout(output="v string")
    class Subscribes(Recording):
        values = ()

        def activate(self):
            self.waiting = ["a", "b"]

    assert ran(twice_text, source=Subscribes).acked == 2


def test_a_spout_is_opened_activated_deactivated_activated_and_closed_each_once():
    kept = recording()
    with LocalCluster(topology_of(twice_text, source=kept), clock=VirtualClock()) as cluster:
        cluster.activate()  # it is
        cluster.deactivate()
        cluster.deactivate()
        cluster.run_for(seconds(1))
        assert cluster.result.acked == 0
        cluster.activate()
        cluster.run_for(seconds(1))
        assert cluster.result.acked == 3
    assert kept.made[0].life == ["open", "activate", "deactivate", "activate", "close"]


def test_run_for_calls_a_waiting_spout_until_the_time_is_over():
    clock = VirtualClock()

    @spout(output="at long")
    def beating(collector):
        if clock.now_ms() % 250 == 0 and beats[-1:] != [clock.now_ms()]:
            beats.append(clock.now_ms())
            collector.emit(clock.now_ms(), message_id=clock.now_ms())

    beats: list[int] = []
    with LocalCluster(topology_of(source=beating), clock=clock) as cluster:
        cluster.run_for(seconds(1))
    assert (beats, clock.now_ms()) == ([0, 250, 500, 750], 1000)


def test_ticks_may_come_more_often_than_once_a_second():
    ticks = []

    @bolt()
    def ticking(tuple):
        if is_tick(tuple):
            ticks.append(tuple["secs"])

    with LocalCluster(topology_of(ticking, tick_tuple_freq=millis(200)), clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(1))
    assert ticks == [0.2] * 5


# -- windows -------------------------------------------------------------------------------------------------------------


@tumbling(count(2), output="total long")
def pair_sum(window):
    return sum(row["n"] for row in window)


def test_tuples_of_a_window_are_acked_when_they_expire_and_the_rest_at_the_drain():
    topology = topology_of(pair_sum)
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(1))
        assert (cluster.result["bolt0"], cluster.result.acked, cluster.pending) == ([(3,)], 2, 1)
        cluster.run()
        assert (cluster.result["bolt0"], cluster.result.acked, cluster.pending) == ([(3,), (3,)], 3, 0)


def test_tuples_of_a_sliding_window_are_acked_only_when_no_window_can_hold_them():
    @sliding(count(3), count(1), output="n long")
    def sizes(window):
        return len(window)

    with LocalCluster(topology_of(sizes), clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(1))
        assert (cluster.result["bolt0"], cluster.result.acked) == ([(1,), (2,), (3,)], 1)


def test_a_windows_output_is_anchored_to_all_its_tuples():
    @bolt(output="total long")
    class OnceLong(FailsAtFirst):
        pass

    result = ran(pair_sum, OnceLong, batches=None)
    # The output of window [1, 2] fails downstream: both messages fail, and are replayed into a window of their own.
    assert result.failures >= 3
    assert result.acked == 3
    assert (3,) in result["bolt1"]


def three_rows(window):
    return [row["n"] for row in window]


@pytest.mark.parametrize("rows", [1, 3])
def test_each_message_of_a_window_is_acked_after_all_rows_of_the_window(rows):
    @tumbling(count(3), output="n long", name="all")
    def some(window):
        return three_rows(window)[:rows]

    @bolt
    class OneByOne(Holds):
        """Holds the rows, and acks one of them for each tick."""

        def execute(self, tuple):
            if not is_tick(tuple):
                self.held.append(tuple)
            elif self.held:
                self.collector.ack(self.held.pop())

    clock = VirtualClock()
    with LocalCluster(topology_of(some, OneByOne, tick_tuple_freq=seconds(1)), clock=clock) as cluster:
        watch = Watch(cluster)
        cluster.run_for(millis(500))
        acked = [cluster.result.acked]
        for _ in range(rows):
            cluster.run_for(seconds(1))
            watch.check()
            acked.append(cluster.result.acked)
    assert acked == [0] * rows + [3]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_message_whose_window_was_emitted_and_timed_out_is_a_dead_letter_of_the_component_that_saw_it_last(rows):
    @bolt(output="n long")
    def same(tuple):
        return tuple["n"]

    @sliding(count(6), count(3), output="n long")
    def some(window):
        return three_rows(window)[:rows]

    @bolt
    class Never(Bolt):
        def execute(self, tuple):
            pass

    with LocalCluster(topology_of(same, some, Never, max_attempts=1), clock=VirtualClock()) as cluster:
        result = cluster.run_for(seconds(40))  # the window holds the tuples, which are neither acked nor failed
    assert [letter.component for letter in result.dead_letters] == ["bolt0"] * 3


def test_all_rows_of_a_window_share_its_trees():
    @tumbling(count(3), output="n long")
    def some(window):
        return three_rows(window)

    trees = []

    @bolt
    def last(tuple):
        trees.append(tuple._anchors.roots)

    assert ran(some, last).acked == 3
    assert len(trees) == 3
    assert all(found is trees[0] for found in trees)
    assert len(trees[0]) == 3


def test_late_tuples_are_emitted_anchored_and_acked():
    @tumbling(seconds(10), timestamp="at", late_stream="late", output="n long")
    def sizes(window):
        return len(window)

    @bolt(output="at long, reason string")
    class LateOnce(BasicBolt):
        def prepare(self, context):
            self.failed = False

        def execute(self, tuple):
            if not self.failed:
                self.failed = True
                raise FailedException("the late one")
            return tuple["at"], tuple["reason"]

    builder = TopologyBuilder()
    builder.set_spout("source", InputSpout("at long"))
    builder.set_bolt("sizes", sizes).shuffle_grouping("source")
    builder.set_bolt("late", LateOnce).shuffle_grouping("sizes", "late")
    result = run_topology(builder.build(), {"source": [[(1_000,), (25_000,)], [(2_000,)]]}, clock=VirtualClock())
    # Its tree failed in the bolt of the late stream, so its message was replayed, and was late again.
    assert (result["late"], result.failures, result.acked) == ([(2_000, "late")], 1, 3)
    assert result["sizes"] == [(1,), (1,)]
    assert result.late == {("sizes", "late"): 2}


@pytest.mark.parametrize(
    ("on_error", "acked", "dead", "windows", "errors"),
    [("fail", 2, 2, 0, 1), ("skip", 4, 0, 0, 1), ("dead_letter", 4, 1, 1, 0)],
)
def test_an_error_in_a_window_follows_on_error(on_error, acked, dead, windows, errors):
    @windowed_bolt(length=count(2), slide=count(2), on_error=on_error, output="total long")
    def fragile(window):
        total = sum(row["n"] for row in window)
        if total == 3:
            raise ValueError("three")
        return total

    @spout(output="n long")
    def four():
        yield from (1, 2, 3, 4)

    result = ran(fragile, source=four, max_attempts=1)
    assert (result["bolt0"], result.acked) == ([(7,)], acked)
    found = [letter.is_window for letter in result.dead_letters]
    assert (len(found), sum(found), len(result.errors)) == (dead, windows, errors)
    if windows:
        assert [row["n"] for row in result.dead_letters[0].tuples] == [1, 2]
        ((component, task, attempts, _, _, _, _, tuples),) = result["bolt0.dead_letters"]
        assert (component, task, attempts, tuples) == ("bolt0", 0, 1, '[{"n": 1}, {"n": 2}]')


def test_by_default_an_error_raises_with_bolt_and_window_but_a_failed_exception_fails_the_tuples():
    @tumbling(count(3), output="n long")
    def breaking(window):
        raise ValueError("no")

    @tumbling(count(3), output="n long")
    def failing(window):
        raise FailedException("later")

    with pytest.raises(BoltError, match=r"bolt 'bolt0' failed on TupleWindow\(end=.*ValueError: no"):
        ran(breaking)
    result = ran(failing, max_attempts=2)
    assert (len(result.dead_letters), result.failures, result.acked) == (3, 6, 0)


def test_the_untracked_tuples_of_a_window_that_fails_become_a_dead_letter_beside_the_failed_ones():
    @spout(output="n long")
    class Mixed(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = [1, 2, 3, 4]

        def next_tuple(self):
            if self.left:
                n = self.left.pop(0)
                self.collector.emit(n, message_id=n if n % 2 else None)

    @tumbling(count(4), output="n long")
    def failing(window):
        raise FailedException("no")

    result = ran(failing, source=Mixed, max_attempts=1)
    assert (result.failures, result.acked) == (2, 0)
    of_window, *messages = result.dead_letters
    assert ([row["n"] for row in of_window.tuples], of_window.is_window) == ([2, 4], True)
    assert [letter.values for letter in messages] == [(1,), (3,)]


def test_a_tuple_that_failed_in_one_window_stays_in_the_next_and_is_never_acked():
    seen = []

    @sliding(count(2), count(1), on_error="fail", output="n long")
    def second_fails(window):
        values = [row["n"] for row in window]
        seen.append(values)
        if values == [1, 2]:
            raise ValueError("no")
        return len(values)

    result = ran(second_fails, max_attempts=1)
    assert seen == [[1], [1, 2], [2, 3]]
    assert ([letter.values for letter in result.dead_letters], result.acked) == ([(1,), (2,)], 1)


def test_windows_over_the_clock_fire_when_they_are_due():
    clock = VirtualClock(100)

    @tumbling(seconds(1), output="n long")
    def sizes(window):
        return len(window)

    with LocalCluster(topology_of(sizes), clock=clock) as cluster:
        cluster.run_for(millis(900))
        assert cluster.result["bolt0"] == []
        cluster.run_for(millis(10))
        assert (cluster.result["bolt0"], cluster.result.acked) == ([(3,)], 3)


def test_windows_over_event_time_advance_the_watermark_at_every_watermark_interval():
    @spout(output="at long")
    def events():
        yield from (1_000, 2_000, 12_000)

    @tumbling(seconds(10), timestamp="at", watermark_interval=millis(500), output="n long")
    def sizes(window):
        return len(window)

    with LocalCluster(topology_of(sizes, source=events), clock=VirtualClock()) as cluster:
        cluster.run_for(millis(499))
        assert cluster.result["bolt0"] == []
        cluster.run_for(millis(2))
        assert (cluster.result["bolt0"], cluster.result.acked) == ([(2,)], 2)


def test_a_drain_reaches_a_second_windowed_bolt_through_the_first():
    @tumbling(seconds(10), timestamp="at", output="end long, n long")
    def first(window):
        return window.end_timestamp, len(window)

    @tumbling(seconds(30), timestamp="end", output="end long, n long")
    def second(window):
        return window.end_timestamp, sum(row["n"] for row in window)

    rows = [[(1_000,), (9_000,)], [(15_000,), (29_000,)], [(41_000,)]]
    builder = TopologyBuilder().configure(message_timeout=seconds(100))
    builder.set_spout("source", InputSpout("at long"))
    builder.set_bolt("first", first).shuffle_grouping("source")
    builder.set_bolt("second", second).shuffle_grouping("first")
    result = run_topology(builder.build(), {"source": rows}, clock=VirtualClock(), outputs=["first", "second"])
    assert result["first"] == [(10_000, 2), (20_000, 1), (30_000, 1), (50_000, 1)]
    assert (result["second"], result.acked) == ([(30_000, 4), (60_000, 1)], 5)


def test_rows_of_run_batch_alone_give_the_windows_of_the_same_rows_in_batches():
    """One watermark for all tasks, and no turn by the clock within a batch: only `run_batch` can feed such a cluster."""

    @tumbling(seconds(10), timestamp="at", late_stream="late", output="key long, n long")
    def counted(window):
        return window[0].key, len(window)

    @bolt(output="key long, at long")
    def slow(row):
        clock.advance(seconds(2))
        return tuple(row)

    builder = TopologyBuilder().configure(enable_message_timeouts=False)
    builder.set_spout("source", InputSpout("key long, at long"))
    builder.set_bolt("slow", slow).shuffle_grouping("source")
    builder.set_bolt("counted", counted, 3).fields_grouping("slow", "key")
    batches = [[(key, at) for key in range(6)] for at in (1_000, 12_000)]
    batches += [[(0, 25_000), (1, 21_000)], [(key, 15_000) for key in range(6)], [(0, 41_000), (0, 32_000)]]
    clock = VirtualClock()
    expected = run_topology(builder.build(), {"source": batches}, clock=clock)
    assert len(expected["counted.late"]) == 6
    with LocalCluster(builder.build(), clock=clock) as cluster:
        for batch in batches:
            cluster.run_batch({"source": batch})
        found = cluster.run()
    assert found["counted"] == expected["counted"]
    assert found["counted.late"] == expected["counted.late"]


def test_a_join_of_two_streams_waits_for_both_watermarks():
    @tumbling(seconds(10), timestamp="at", output="left long, right long")
    def joined(window):
        sides = [row.source_component for row in window]
        return sides.count("left"), sides.count("right")

    builder = TopologyBuilder()
    builder.set_spout("left", InputSpout("at long"))
    builder.set_spout("right", InputSpout("at long"))
    builder.set_bolt("join", joined).global_grouping("left").global_grouping("right")
    with LocalCluster(
        builder.build(), batches={"left": [[(1_000,), (15_000,)], []], "right": [[], [(2_000,), (16_000,)]]}
    ) as cluster:
        cluster.run_batch({"left": [(1_000,), (15_000,)]})
        assert cluster.result["join"] == []
        cluster.run_batch({"right": [(2_000,), (16_000,)]})
        assert cluster.result["join"] == [(1, 1)]


def test_a_window_with_an_aggregate_acks_its_tuples_on_expiry_too():
    from windowing.windows import aggregate as agg

    @tumbling(seconds(10), timestamp="at", aggregate=agg.count(), output="n long")
    def counted(window):
        return window.aggregate

    with LocalCluster(
        topology_of(counted, source=InputSpout("at long")), batches={"source": []}, clock=VirtualClock()
    ) as cluster:
        cluster.run_batch({"source": [(1_000,), (2_000,), (11_000,)]})
        assert (cluster.result["bolt0"], cluster.result.acked, cluster.pending) == ([(2,)], 2, 1)


# -- the loop ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_same_seed_gives_the_same_run_and_every_seed_acks_every_message(seed):
    @spout(output="n long")
    def many():
        yield from range(50)

    def run():
        builder = TopologyBuilder().configure(retry_delay=millis(10), acker_executors=2)
        builder.set_spout("source", many)
        builder.set_bolt("twice", twice, 3).shuffle_grouping("source")
        builder.set_bolt("pairs", pair_sum, 2).fields_grouping("twice", "n")
        return run_topology(builder.build(), clock=VirtualClock(), seed=seed)

    first, second = run(), run()
    assert first["pairs"] == second["pairs"]
    assert (first.acked, first.failures, sum(n for (n,) in first["pairs"])) == (50, 0, 2450)


def test_batches_for_a_spout_of_ones_own_replace_it():
    @spout(output={"default": "n long", "odd": "n long"})
    class Endless(Spout):
        def open(self, context, collector):
            raise AssertionError("a replaced spout is never made")

        def next_tuple(self):
            pass

    builder = TopologyBuilder("mocked")
    builder.set_spout("source", Endless, 2).configure(max_spout_pending=7)
    builder.set_bolt("twice", twice).shuffle_grouping("source")
    topology = builder.build()
    result = run_topology(topology, {"source": [[(1,), (2,)], [(3,)]]}, clock=VirtualClock())
    assert (result["twice"], result.acked) == ([(2,), (4,), (6,)], 3)
    assert topology.component("source").kind is ComponentKind.SPOUT  # the topology itself is as it was built
    with pytest.raises(BoltError, match="a replaced spout is never made"):
        run_topology(topology, clock=VirtualClock())


@pytest.mark.parametrize("output", [{"default": "n long", "odd": "n long"}, {"odd": "n long", "even": "n long"}])
def test_a_batch_of_rows_is_refused_for_a_spout_with_another_stream_that_a_bolt_reads(output):
    builder = TopologyBuilder("streams")
    builder.set_spout("source", InputSpout(output))
    builder.set_bolt("twice", twice).shuffle_grouping("source", "odd")
    streams = ", ".join(f"'{stream}': source" for stream in output)
    with pytest.raises(
        ConfigError,
        match=r"a batch of rows goes to the stream 'default' of spout 'source', whose bolts read 'odd' beside it; give "
        rf"LocalCluster sources=\{{'source': \{{{streams}\}}\}}",
    ):
        run_topology(builder.build(), {"source": [[(1,)]]}, clock=VirtualClock())


def test_a_spout_with_a_direct_stream_is_not_replaced():
    @spout(output={"default": "n long", "chosen": "n long"}, direct="chosen")
    def numbers():
        yield 1

    builder = TopologyBuilder("direct")
    builder.set_spout("source", numbers)
    builder.set_bolt("twice", twice).direct_grouping("source", "chosen")
    with pytest.raises(
        ConfigError, match=r"spout 'source' names the tasks of its direct stream 'chosen', which rows from"
    ):
        LocalCluster(builder.build(), batches={"source": [[(1,)]]})


def test_wrong_arguments_of_a_cluster_are_refused_with_the_fix():
    topology = topology_of(twice, source=InputSpout("n long"))
    with pytest.raises(ConfigError, match=r"'sources', which is no spout of topology 'test'; did you mean 'source'"):
        LocalCluster(topology, batches={"sources": []})
    with pytest.raises(
        ConfigError, match=r"batches has rows for 'topology.debug', which is no spout of topology 'test'"
    ):
        LocalCluster(topology, {"topology.debug": True})  # Storm's (topology, conf)
    with pytest.raises(ConfigError, match=r"write outputs=\['bolt0'\]"):
        LocalCluster(topology, outputs="bolt0")
    with pytest.raises(ConfigError, match="there is no stream 'bolt1' to keep; did you mean 'bolt0'"):
        LocalCluster(topology, outputs=["bolt1"])
    result = run_topology(topology, {"source": [[(1,)]]})
    assert list(result) == list(result.outputs)
    assert "source" not in result
    with pytest.raises(KeyError, match="is no output of this run"):
        result["source"]


WORDS_AND_NUMBERS = InputSpout("word string, n long")


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (
            {"source": ["abc"]},
            "'source' takes a list of batches, each a list of rows, got 'abc'; write [row, row], and [[row",
        ),
        ({"source": [b"abc"]}, "got b'abc'; write [row, row], and [[row, row]]"),
        ({"source": [{"word": "a", "n": 1}]}, "got {'word': 'a', 'n': 1}; write [row, row], and [[row, row]]"),
        (
            {"source": [namedtuple("Row", "word n")("a", 1)]},
            "got Row(word='a', n=1); write [row, row], and [[row, row]]",
        ),
        (
            {"source": [("a", 1)]},
            "got the single value 'a'; give a tuple or a dict; the batch is such a row itself: write [[row",
        ),
        ({"source": "abc"}, "InputSpout 'source' takes a list of batches, each a list of rows, got 'abc'"),
        ({"source": [7]}, "InputSpout 'source' takes a list of batches, each a list of rows, got 7"),
        ([[("a", 1)]], "a mapping by the name of each InputSpout, got [[('a', 1)]]; write {'name': [[row, row]]}"),
        (
            {"source": [[("a", 1)], [("b", 2), ("c",)]]},
            "InputSpout 'source', batch 1, row 1 (counted from 0): stream 'default'",
        ),
        ({"source": [[("c",)]]}, "got 1 value: ('c',); give a value for each of its fields, and nothing else"),
        ({"source": [[{"word": "c"}]]}, "a dict without n: {'word': 'c'}; give a value for each of its fields"),
        ({"source": [[("a", "b")]]}, "field 'n' of stream 'default' is declared bigint: got 'b'"),
        ({"source": [[("a", "b")]]}, "give such a value, or change the declaration"),
    ],
)
def test_a_batch_that_is_no_list_of_rows_or_does_not_fit_is_refused(batches, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        run_topology(topology_of(twice, source=WORDS_AND_NUMBERS), batches, clock=VirtualClock())


def test_no_row_of_a_batch_with_a_wrong_row_is_emitted():
    with LocalCluster(topology_of(twice, source=InputSpout("n long")), batches={}, clock=VirtualClock()) as cluster:
        cluster.run_batch({"source": [1]})
        with pytest.raises(
            ConfigError, match=r"InputSpout 'source', batch 1, row 1 \(counted from 0\): field 'n' .* got 'b'"
        ):
            cluster.run_batch({"source": [2, "b"]})
        with pytest.raises(ConfigError, match="InputSpout 'source' takes a list of rows as a batch, got 'ab'; write"):
            cluster.run_batch({"source": "ab"})
        cluster.run_batch({"source": [3]})
        assert cluster.result["bolt0"] == [(2,), (6,)]


def test_an_error_names_the_task_of_a_component_with_several():
    @bolt()
    def breaking(tuple):
        raise ValueError("no")

    @tumbling(count(1), output="n long")
    def windowed(window):
        raise ValueError("no")

    for declared in (breaking, windowed):
        builder = TopologyBuilder("tasks")
        builder.set_spout("source", InputSpout("n long"))
        builder.set_bolt("broken", declared, 3).fields_grouping("source", "n")
        with pytest.raises(BoltError, match=r"task [0-2] of bolt 'broken' failed on "):
            run_topology(builder.build(), {"source": [[(2,)]]}, clock=VirtualClock())

    @spout(output="n long")
    class Empty(Spout):
        def next_tuple(self):
            raise ValueError("no")

    builder = TopologyBuilder("tasks")
    builder.set_spout("source", Empty, 2)
    builder.set_bolt("end", breaking).shuffle_grouping("source")
    with pytest.raises(BoltError, match="task 0 of spout 'source' failed in next_tuple"):
        run_topology(builder.build(), clock=VirtualClock())


def test_a_run_whose_spouts_get_no_rows_is_refused():
    builder = TopologyBuilder("words")
    builder.set_spout("in", InputSpout("word string"))
    builder.set_bolt("out", bolt(output="word string")(lambda row: row.word)).shuffle_grouping("in")
    none = r"none are given; give batches=\{'in': \[\[row, row\], \[row\]\]\} or sources=, or feed a LocalCluster by run_batch"
    with pytest.raises(ConfigError, match=none):
        run_topology(builder.build())
    with LocalCluster(builder.build()) as cluster:
        with pytest.raises(ConfigError, match=none):
            cluster.run()
        cluster.run_batch({"in": [("be",)]})
        assert cluster.run()["out"] == [("be",)]
    with LocalCluster(builder.build(), {"in": [[("to",)]]}) as cluster:  # the batches come second, as in run_topology
        assert cluster.run()["out"] == [("to",)]


def test_a_run_without_rows_drains_the_windows_of_a_stored_state(tmp_path):
    @tumbling(count(5), output="n long", max_events_in_memory=1_000)
    def sized(window):
        return len(window)

    builder = TopologyBuilder("words")
    builder.set_spout("in", InputSpout("word string"))
    builder.set_bolt("sized", sized).shuffle_grouping("in")
    path = tmp_path / "words.db"
    assert run_topology(builder.build(), {"in": [[("a",), ("b",)]]}, state_path=path, drain=False)["sized"] == []
    assert run_topology(builder.build(), state_path=path)["sized"] == [(2,)]
