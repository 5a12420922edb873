"""Limits of LocalCluster: tuples in flight, virtual time, the end of the input, errors in spouts."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from tests.work import lines_of
from windowing import (
    BasicBolt,
    Bolt,
    FailedException,
    InputSpout,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    TopologyError,
    bolt,
    count,
    hours,
    is_tick,
    millis,
    seconds,
    spout,
    tumbling,
    windowed_bolt,
)
from windowing.errors import BoltError, ConfigError
from windowing.local import LocalCluster, VirtualClock, run_topology

ROWS = [("a", at) for at in range(0, 80_000, 10_000)]


@tumbling(seconds(10), timestamp="at", output="n long")
def size(window):
    return len(window)


@tumbling(count(10), output="n long")
def ten(window):
    return len(window)


@spout(output="n long")
class Endless(Spout):
    def open(self, context, collector):
        super().open(context, collector)
        self.n = 0

    def next_tuple(self):
        self.n += 1
        self.collector.emit(self.n, message_id=self.n)


@bolt(output="n long")
def same(tuple):
    return tuple["n"]


def chain(source, *bolts, **settings):
    builder = TopologyBuilder("edges").configure(**settings)
    builder.set_spout("source", source)
    before = "source"
    for index, declared in enumerate(bolts):
        builder.set_bolt(f"bolt{index}", declared).shuffle_grouping(before)
        before = f"bolt{index}"
    return builder


def test_a_second_run_does_not_emit_the_batches_again():
    batches = {"source": [[(1,)], [(2,)]]}
    with LocalCluster(chain(InputSpout("n long"), same).build(), batches, clock=VirtualClock()) as cluster:
        cluster.run(drain=False)
        assert cluster.run()["bolt0"] == [(1,), (2,)]
        cluster.run_batch({"source": [(3,)]})
        assert (cluster.run()["bolt0"], cluster.result.acked) == ([(1,), (2,), (3,)], 3)


@pytest.mark.parametrize("wrong", [{"other": [("x",)]}, {"third": [(1,)]}])
def test_a_batch_with_a_wrong_part_is_refused_before_any_row_arrives(wrong):
    builder = chain(InputSpout("n long"), same)
    builder.set_spout("other", InputSpout("n long"))
    with LocalCluster(builder.build(), {}, clock=VirtualClock()) as cluster:
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))!r}"):
            cluster.run_batch({"source": [(1,)], **wrong})
        cluster.run_batch({"source": [(2,)]})
        assert cluster.result["bolt0"] == [(2,)]


def test_a_timed_run_logs_that_it_emits_no_batches(caplog):
    with LocalCluster(chain(InputSpout("n long"), same).build(), {"source": [[(1,)]]}, clock=VirtualClock()) as cluster:
        cluster.run_for(millis(5))
        (told,) = [record.getMessage() for record in caplog.records]
        assert told == "topology 'edges': run_for emits no rows of batches=; call run()"
        assert cluster.run()["bolt0"] == [(1,)]


def test_a_clock_of_ones_own_may_have_whole_numbers_of_numpy():
    class Numbered:
        def now_ms(self):
            return np.int64(1_700_000_000_000)

    result = run_topology(chain(InputSpout("n long"), same).build(), {"source": [[(1,)], [(2,)]]}, clock=Numbered())
    assert (result["bolt0"], result.acked) == ([(1,), (2,)], 2)


def test_a_batch_is_emitted_whole_even_above_max_spout_pending():
    topology = chain(InputSpout("word string, at long"), size, max_spout_pending=2).build()
    result = run_topology(topology, {"source": [ROWS[:4], ROWS[4:]]}, clock=VirtualClock())
    assert result["bolt0"] == [(1,)] * 8
    assert (result.acked, result.failures) == (8, 0)


def test_a_count_window_must_fit_into_max_spout_pending_in_every_task():
    def built(grouping, tasks):
        builder = TopologyBuilder("edges").configure(max_spout_pending=20)
        builder.set_spout("source", Endless)
        getattr(builder.set_bolt("ten", ten, tasks), grouping)("source")
        return builder.build()

    built("shuffle_grouping", 1)
    built("all_grouping", 4)
    built("global_grouping", 4)
    with pytest.raises(TopologyError, match=r"holds up to 80 tuples .* in each of 4 tasks.* stops at 20 in flight"):
        built("shuffle_grouping", 4)


def test_virtual_time_advances_although_a_spout_always_emits():
    clock = VirtualClock()
    with LocalCluster(chain(Endless, same).build(), clock=clock) as cluster:
        result = cluster.run_for(seconds(0.05))
    assert clock.now_ms() == 50
    assert result.acked >= 49


def test_an_hour_of_retries_of_a_spout_with_its_own_retry_costs_few_rounds():
    asked = []

    @spout(output="n long")
    class Once(Spout):
        def next_tuple(self):
            asked.append(None)
            if len(asked) == 1:
                self.collector.emit(1, message_id=1)

    @bolt(output="n long")
    def never(tuple):
        raise FailedException("not this one")

    clock = VirtualClock()
    settings = {"max_attempts": 60, "retry_delay": seconds(60), "retry_delay_max": seconds(60)}
    result = run_topology(chain(Once, never, **settings).build(), clock=clock)
    assert result.failures == 60
    assert clock.now_ms() >= 59 * 60_000
    assert len(asked) < 10_000


def test_the_rounds_of_a_batch_do_not_grow_with_the_tasks_nor_those_of_the_end_with_tasks_without_ticks(monkeypatch):
    """A round visits every task: a round for each of them would cost the square of their number."""
    rounds = []
    step = LocalCluster.step
    monkeypatch.setattr(LocalCluster, "step", lambda cluster: rounds.append(cluster) or step(cluster))

    def rounds_with(windowed, plain):
        builder = TopologyBuilder("edges")
        builder.set_spout("source", InputSpout("word string, at long"))
        builder.set_bolt("size", size, windowed).fields_grouping("source", "at")
        builder.set_bolt("same", same, plain).shuffle_grouping("size")
        rounds.clear()
        with LocalCluster(builder.build(), clock=VirtualClock()) as cluster:
            cluster.run_batch({"source": ROWS})
            of_the_batch = len(rounds)
            cluster.drain()
        return of_the_batch, len(rounds) - of_the_batch

    few = rounds_with(2, 2)
    assert rounds_with(60, 2)[0] == few[0]
    assert rounds_with(2, 60) == few


def test_counts_of_a_windowed_bolt_are_summed_over_its_tasks():
    builder = TopologyBuilder("edges")
    builder.set_spout("source", InputSpout("word string, at long"))
    builder.set_bolt("size", size, 3).fields_grouping("source", "at")
    result = run_topology(builder.build(), {"source": [ROWS]}, clock=VirtualClock())
    assert (result.counts["size"]["in"], result.counts["size"]["shown"], result.counts["size"]["pending"]) == (8, 8, 0)


def test_a_bolt_with_ticks_gets_a_last_tick_at_the_end_of_the_input():
    @bolt(output="n long")
    class Gathers(BasicBolt):
        def prepare(self, context):
            self.sum = 0

        def execute(self, tuple, collector):
            if is_tick(tuple):
                collector.emit(self.sum)
                self.sum = 0
            else:
                self.sum += tuple["n"]

    @spout(output="n long")
    def three():
        yield from (1, 2, 3)

    builder = chain(three)
    builder.set_bolt("sums", Gathers).shuffle_grouping("source").configure(tick_tuple_freq=seconds(60))
    builder.set_bolt("same", same).shuffle_grouping("sums")
    assert run_topology(builder.build(), clock=VirtualClock())["same"] == [(6,)]


def test_a_bolt_with_manual_acks_gets_its_last_tick_after_the_output_of_upstream_last_ticks():
    """As RollingTopWords of storm-starter: each bolt counts until a tick, emits the sum, and holds no tuple meanwhile."""

    @bolt(output="n long")
    class Adds(Bolt):
        def prepare(self, context, collector):
            self.sum, self.collector = 0, collector

        def execute(self, tuple):
            if is_tick(tuple):
                self.collector.emit(self.sum)
            else:
                self.sum += tuple["n"]
                self.collector.ack(tuple)

    @spout(output="n long")
    class Untracked(Spout):
        def open(self, context, collector):
            self.left, self.collector = [1, 2, 3], collector

        def next_tuple(self):
            if self.left:
                self.collector.emit(self.left.pop())

    for order in (("a", "b"), ("b", "a")):
        builder = TopologyBuilder("rolling").configure(tick_tuple_freq=seconds(60))
        builder.set_spout("source", Untracked)
        builder.set_bolt(order[0], Adds).shuffle_grouping("source")
        builder.set_bolt(order[1], Adds).shuffle_grouping(order[0])
        assert run_topology(builder.build(), clock=VirtualClock())[order[1]] == [(6,)]


def test_anchoring_to_an_acked_tuple_is_an_error_even_without_a_subscriber():
    @bolt(output="n long")
    class Late(Bolt):
        def execute(self, tuple):
            self.collector.ack(tuple)
            self.collector.emit(1, anchors=tuple)

    with pytest.raises(BoltError, match=r"anchored to one that was acked or failed before .* emit first, then ack"):
        run_topology(chain(InputSpout("n long"), Late).build(), {"source": [[(1,)]]}, clock=VirtualClock())


@pytest.mark.parametrize("id", [[1], (1, [2])])
def test_an_unhashable_message_id_is_refused(id):
    @spout(output="n long")
    class Listed(Spout):
        def next_tuple(self):
            self.collector.emit(1, message_id=id)

    with pytest.raises(BoltError, match=f"a message id is hashable, got {re.escape(repr(id))}"):
        run_topology(chain(Listed, same).build(), clock=VirtualClock())


def test_give_up_gets_the_values_where_the_spout_takes_them():
    given_up = []

    @spout(output="n long")
    class Keeps(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = [7]

        def next_tuple(self):
            if self.left:
                self.collector.emit(self.left.pop(), message_id="seven")

        def give_up(self, message_id, values):
            given_up.append((message_id, values))

    @bolt(output="n long")
    def never(tuple):
        raise FailedException("not this one")

    run_topology(chain(Keeps, never, max_attempts=2).build(), clock=VirtualClock())
    assert given_up == [("seven", (7,))]


# -- spouts that wait --------------------------------------------------------------------------------------------------------------


def built(*parts):
    return chain(*parts).build()


def slow(wait, rows=5):
    @spout(output="n long")
    class Slow(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.n = 0

        def next_tuple(self):
            if self.n < rows:
                self.n += 1
                self.collector.emit(self.n)
            wait(self.collector)

    return Slow


def test_a_sleeping_spout_is_not_called_before_its_time_on_a_virtual_clock():
    clock = VirtualClock(1_000)
    with LocalCluster(built(slow(lambda collector: collector.sleep(millis(100))), same), clock=clock) as cluster:
        assert cluster.run_for(millis(250))["bolt0"] == [(1,), (2,), (3,)]  # at 1000, 1100, 1200
        assert cluster.run_for(millis(40))["bolt0"] == [(1,), (2,), (3,)]
        assert cluster.run_for(millis(20))["bolt0"] == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("pause", [False, True])
def test_a_spout_that_sleeps_or_is_paused_costs_no_rounds(pause):
    rounds = []

    class Counted(LocalCluster):
        def step(self):
            rounds.append(self.clock.now_ms())
            return super().step()

    clock = VirtualClock(0)
    with Counted(built(slow(lambda collector: collector.sleep(seconds(20)), 1_000), same), clock=clock) as cluster:
        if pause:
            cluster.deactivate()
        assert len(cluster.run_for(hours(1))["bolt0"]) == (0 if pause else 180)
        assert clock.now_ms() == 3_600_000
    assert len(rounds) < 1_000


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_run_waits_for_a_sleeping_spout_after_a_tuple_and_ends_when_it_emits_none(seed):
    clock = VirtualClock(0)
    topology = built(slow(lambda collector: collector.sleep(seconds(10))), same)
    with LocalCluster(topology, clock=clock, seed=seed) as cluster:
        assert len(cluster.run()["bolt0"]) == 5
    assert 50_000 <= clock.now_ms() < 60_000


def test_a_spout_that_emits_over_time_has_late_tuples_with_a_virtual_clock_too():
    @spout(output="at long")
    class OutOfOrder(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = [1_000, 21_000, 22_000, 3_000]

        def next_tuple(self):
            if self.left:
                self.collector.emit(self.left.pop(0))
                self.collector.sleep(seconds(2))

    result = run_topology(built(OutOfOrder, size), clock=VirtualClock())
    assert result["bolt0"] == [(1,), (2,)]
    assert result.late == {("bolt0", "late"): 1}


@pytest.mark.parametrize(("emitting", "told"), [([], 1), ([True], 0)])
def test_run_logs_a_spout_that_has_emitted_nothing_because_it_may_only_wait(emitting, told, caplog):
    @spout(output="n long")
    def waits(collector):
        if emitting:
            collector.emit(1) if emitting.pop() else None
        else:
            collector.sleep(millis(50))

    with LocalCluster(built(waits, same), clock=VirtualClock()) as cluster:
        assert cluster.run()["bolt0"] == [(1,)] * (1 - told)
    assert ["spout 'source' emitted nothing" in each.getMessage() for each in caplog.records] == [True] * told


def test_a_deactivated_spout_that_slept_is_called_after_activate():
    clock = VirtualClock(0)
    with LocalCluster(built(slow(lambda collector: collector.sleep(millis(10))), same), clock=clock) as cluster:
        cluster.run_for(millis(5))
        cluster.deactivate()
        assert cluster.run_for(millis(500))["bolt0"] == [(1,)]
        assert clock.now_ms() == 505
        cluster.activate()
        assert cluster.run_for(millis(5))["bolt0"] == [(1,), (2,)]


@pytest.mark.parametrize("span", [100, 0.1, "1 s", None])
def test_sleep_takes_only_a_duration(span):
    with (
        LocalCluster(built(slow(lambda collector: collector.sleep(span))), clock=VirtualClock()) as cluster,
        pytest.raises(BoltError, match=r"spout 'source' failed in next_tuple.*the span of sleep"),
    ):
        cluster.run()


class Wall:
    """A monotonic clock that advances when a spout blocks."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def block(self, _):
        self.now_s += 0.1


def test_a_blocking_spout_is_called_once_per_round_so_that_a_timed_run_ends_on_time(monkeypatch):
    wall = Wall()
    monkeypatch.setattr("windowing.local.spouts.time", wall)
    with LocalCluster(built(slow(wall.block, rows=1_000), same)) as cluster:
        cluster.step()
        assert cluster.result["bolt0"] == [(1,)]
        cluster.step()
        assert cluster.result["bolt0"] == [(1,), (2,)]


def test_a_spout_that_blocks_under_a_virtual_clock_is_logged_once_with_the_fix(monkeypatch, caplog):
    wall = Wall()
    monkeypatch.setattr("windowing.local.spouts.time", wall)
    with LocalCluster(built(slow(wall.block, rows=1_000), same), clock=VirtualClock()) as cluster:
        cluster.run_for(millis(3))
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("spout 'source' has blocked in next_tuple")
    assert "collector.sleep(millis(100))" in told


def test_a_virtual_clock_that_stands_still_while_a_spout_emits_without_end_is_reported(monkeypatch, caplog):
    monkeypatch.setattr("windowing.local.loop._STILL_S", 0.01)

    @spout(output="n long")
    class Endless(Spout):
        def next_tuple(self):
            if not caplog.records:
                self.collector.emit(1)

    with LocalCluster(built(Endless, same), clock=VirtualClock()) as cluster:
        cluster.run()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "the VirtualClock stands still meanwhile" in told
    assert "call run_for(seconds(10))" in told


def test_a_run_with_a_spout_that_sleeps_and_emits_without_end_is_reported_under_a_virtual_clock(monkeypatch, caplog):
    monkeypatch.setattr("windowing.local.loop._STILL_S", 0.5)

    @spout(output="n long")
    class Endless(Spout):
        def next_tuple(self):
            if not caplog.records:
                self.collector.sleep(millis(100))
                self.collector.emit(1)

    with LocalCluster(built(Endless, same), clock=VirtualClock()) as cluster:
        cluster.run()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("topology 'edges': run() has taken 0.5 s and ")
    assert "its spouts still emit; with a spout that does not end, call run_for(seconds(10)), which ends" in told


@bolt(output="n long")
class Acks(Bolt):
    def execute(self, tuple):
        self.collector.emit(tuple["n"], anchors=tuple)
        self.collector.ack(tuple)


@bolt(output="n long")
class Forgets(Bolt):
    def execute(self, tuple):
        self.collector.emit(tuple["n"], anchors=tuple)


@pytest.mark.parametrize(
    ("bolts", "named"),
    [
        ((Forgets, same), "'bolt0'"),
        ((same, Acks, Forgets), "'bolt2'"),
        ((Acks, Forgets, Acks), "'bolt0', 'bolt1', 'bolt2'"),
    ],
)
def test_the_first_timeout_is_logged_with_the_bolt_that_may_have_forgotten_an_ack(bolts, named, caplog):
    topology = chain(InputSpout("n long"), *bolts).build()
    result = run_topology(topology, {"source": [[(1,), (2,)]]}, clock=VirtualClock())
    assert [letter.error for letter in result.dead_letters] == ["timeout", "timeout"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("a tuple of spout 'source' was not acked within topology.message.timeout.secs, 30 s; ")
    assert f"may have neither acked nor failed it: {named}; call collector.ack(tuple)" in told


def test_a_timeout_that_no_bolt_can_have_forgotten_and_that_doubles_nothing_is_not_logged(caplog):
    @tumbling(millis(100), timestamp="n", message_id="n", output="n long")
    class Sized:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            return len(window)

    @tumbling(count(3), output="n long")
    def counted(window):
        return len(window)

    builder = chain(InputSpout("n long"), same, Sized)
    builder.set_spout("beside", InputSpout("n long"))
    builder.set_bolt("counted", counted).shuffle_grouping("beside")  # a window that the tuple does not reach
    with LocalCluster(builder.build(), clock=VirtualClock()) as cluster:
        cluster.run_batch({"source": [(1,)]})
        cluster.run_for(seconds(40))
        assert cluster.result.failures == 1
    assert caplog.records == []


def test_tuples_that_a_bolt_emits_in_cleanup_are_logged_because_no_bolt_gets_them(caplog):
    @bolt(output="n long")
    class Flushes(Acks):
        def cleanup(self):
            self.collector.emit(9)

    assert run_topology(chain(InputSpout("n long"), Flushes).build(), {"source": [[(1,)]]})["bolt0"] == [(1,), (9,)]
    assert caplog.records == []
    assert run_topology(chain(InputSpout("n long"), Flushes, same).build(), {"source": [[(1,)]]})["bolt1"] == [(1,)]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("bolt 'bolt0' emitted in cleanup, when the run was over, and no bolt gets the tuples (1)")


@pytest.mark.parametrize("waits", [True, False])
def test_failed_messages_that_a_spout_took_back_and_did_not_emit_again_are_logged_at_the_end_of_a_run(waits, caplog):
    @spout(output="n long")
    class TakesBack(Spout):
        def open(self, context, collector):
            self.collector, self.left = collector, [1, 2, 3]

        def next_tuple(self):
            if self.left:
                n = self.left.pop(0)
                self.collector.emit((n,), message_id=n)

        def fail(self, message_id):
            self.left += [] if waits else [message_id]

    @bolt(output="n long")
    class FailsOnce(BasicBolt):
        def prepare(self, context):
            self.failed = set()

        def execute(self, row, collector):
            if row["n"] > 1 and row["n"] not in self.failed:
                self.failed.add(row["n"])
                raise FailedException("not yet")
            collector.emit((row["n"],))

    result = run_topology(chain(TakesBack, FailsOnce).build(), clock=VirtualClock())
    assert (result.failures, len(result["bolt0"])) == ((2, 1) if waits else (2, 3))
    told = [record.getMessage() for record in caplog.records]
    begins = "topology 'edges': run() ends with 2 failed messages that spout 'source' took back by fail(message_id) and did not"
    assert [text[: len(begins)] for text in told] == ([begins] if waits else [])


@pytest.mark.parametrize("hears", [True, False])
def test_a_message_that_is_given_up_with_no_one_to_hear_of_it_is_logged_once(hears, caplog):
    @spout(output="n long")
    class Commits(Spout):
        def open(self, context, collector):
            self.collector, self.left = collector, [1, 2, 3]

        def next_tuple(self):
            if self.left:
                n = self.left.pop(0)
                self.collector.emit((n,), message_id=n)

        def fail(self, message_id):
            self.left.append(message_id)

    if hears:
        Commits.give_up = lambda self, message_id: None

    @bolt(output="n long")
    def fails(row):
        raise FailedException("never")

    result = run_topology(chain(Commits, fails, max_attempts=2).build(), clock=VirtualClock())
    assert len(result.dead_letters) == 3
    told = [record.getMessage() for record in caplog.records]
    assert told == (
        []
        if hears
        else [
            "spout 'source': message 1 failed 2 times (windowing.max.attempts) and is given up, as others may be later; no bolt "
            "reads the dead letters of 'bolt0', and the spout has no give_up(message_id) to hear of it; the result has it in "
            "dead_letters"
        ]
    )


@pytest.mark.parametrize("timeouts", [True, False])
def test_a_spout_that_is_full_with_the_tuples_of_an_event_time_window_is_logged(timeouts, caplog):
    @spout(output="n long")
    def numbers():
        yield from range(6)

    @tumbling(millis(100), timestamp="n", output="n long")
    def sized(window):
        return len(window)

    topology = chain(numbers, sized, max_spout_pending=2, enable_message_timeouts=timeouts, max_attempts=1).build()
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(40))
    (told,) = [record.getMessage() for record in caplog.records]
    begins = (
        "a tuple of spout 'source' was not acked within" if timeouts else "spout 'source' has waited 30 s for an ack"
    )
    assert told.startswith(begins)
    assert (
        "with 2 in flight it emits no other one, and a window over event time (bolt 'bolt0') acks a tuple only" in told
    )


@pytest.mark.parametrize(("key", "what"), [("n", "later ones of its key"), (None, "later ones")])
def test_a_timeout_of_a_tuple_in_a_window_of_counts_is_logged_with_what_it_does_to_the_window(key, what, caplog):
    @spout(output="n long")
    def numbers():
        yield 7

    @windowed_bolt(length=count(3), slide=count(1), key=key, output="n long")
    def sized(window):
        return len(window)

    topology = chain(numbers, sized).build()
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        assert cluster.run_for(seconds(40))["bolt0"] == [(1,), (2,)]  # the tuple came again after 30 s
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "a tuple of spout 'source' was not acked within topology.message.timeout.secs, 30 s; a window of counts (bolt 'bolt0') "
        f"acks a tuple only after {what} came, and a message that is sent again enters it a second time; set "
        "topology.enable.message.timeouts to False, or topology.message.timeout.secs to more than that takes"
    )
    caplog.clear()
    topology = chain(numbers, sized, enable_message_timeouts=False).build()
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        assert cluster.run_for(seconds(400))["bolt0"] == [(1,)]
    assert caplog.records == []


def test_a_timeout_of_a_tuple_in_a_window_over_event_time_is_logged_with_what_it_does_to_the_window(caplog):
    """The spout pauses for longer than the message timeout, so that no watermark passes its last tuple."""

    @spout(output="n long, at long")
    class Pauses(Spout):
        def open(self, context, collector):
            self.collector, self.left, self.pause = collector, [(2, 15_000), (1, 1_000)], seconds(31)

        def next_tuple(self):
            if self.left:
                row = self.left.pop()
                self.collector.emit(row, message_id=row)
                self.collector.sleep(self.pause)
                self.pause = seconds(1)

        def fail(self, row):
            self.left.append(row)

    @tumbling(seconds(10), timestamp="at", output="n array<long>")
    def numbers(window):
        return ([row["n"] for row in window],)

    def run(**settings):
        with LocalCluster(chain(Pauses, numbers, **settings).build(), clock=VirtualClock()) as cluster:
            return cluster.run_for(seconds(50))["bolt0"]

    assert run(enable_message_timeouts=False) == [([1],)]
    assert caplog.records == []
    assert run() == [([1, 1],)]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "a tuple of spout 'source' was not acked within topology.message.timeout.secs, 30 s; a window over event time (bolt "
        "'bolt0') acks a tuple only after later ones came, and a message that is sent again enters it a second time; set "
        "topology.enable.message.timeouts to False, or topology.message.timeout.secs to more than that takes"
    )


def test_windows_of_several_bolts_are_named_in_the_plural(caplog):
    @spout(output="n long, at long")
    def numbers():
        yield (1, 1_000)

    @windowed_bolt(length=count(3), slide=count(3), output="n long")
    def sized(window):
        return len(window)

    @tumbling(seconds(10), timestamp="at", output="n long")
    def timed(window):
        return len(window)

    def told(bolts, **settings):
        caplog.clear()
        builder = TopologyBuilder("several").configure(**settings)
        builder.set_spout("source", numbers)
        for name, windowed in bolts.items():
            builder.set_bolt(name, windowed).global_grouping("source")
        with LocalCluster(builder.build(), clock=VirtualClock()) as cluster:
            cluster.run_for(seconds(40))
        return [record.getMessage().split("; ")[1] for record in caplog.records]

    assert told({"a": sized, "b": timed}) == [
        "a window of counts (bolt 'a') and a window over event time (bolt 'b') ack a tuple only after later ones came, and a "
        "message that is sent again enters them a second time"
    ]
    assert told({"a": sized, "b": sized}) == [
        "windows of counts (bolts 'a', 'b') ack a tuple only after later ones came, and a message that is sent again enters them "
        "a second time"
    ]
    assert told({"a": timed, "b": timed}, max_spout_pending=1, enable_message_timeouts=False) == [
        "with 1 in flight it emits no other one, and windows over event time (bolts 'a', 'b') ack a tuple only after later ones "
        "came"
    ]


def test_a_spout_that_is_full_with_the_tuples_of_windows_of_counts_by_key_is_logged(caplog):
    @spout(output="n long")
    def numbers():
        yield from range(20)

    @windowed_bolt(length=count(3), slide=count(3), key="n", output="n long")
    def sized(window):
        return len(window)

    topology = chain(numbers, sized, max_spout_pending=6, enable_message_timeouts=False).build()
    with LocalCluster(topology, clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(40))
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "spout 'source' has waited 30 s for an ack, without timeouts; with 6 in flight it emits no other one, and a window of "
        "counts by key (bolt 'bolt0') acks a tuple only after later ones came; set topology.max.spout.pending to more than its "
        "windows hold, or leave it out"
    )


def test_a_forgotten_ack_is_logged_beside_a_window_over_event_time_elsewhere(caplog):
    @spout(output="n long")
    class Numbers(Spout):
        def next_tuple(self):
            self.collector.emit(1, message_id=1)

    @tumbling(millis(100), timestamp="n", output="n long")
    def sized(window):
        return len(window)

    builder = chain(Numbers, Forgets, max_spout_pending=1, max_attempts=1)
    builder.set_spout("other", InputSpout("n long"))
    builder.set_bolt("sized", sized).shuffle_grouping("other")
    with LocalCluster(builder.build(), clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(40))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "neither acked nor failed it: 'bolt0'" in told


@spout(output="n long")
class Two(Spout):
    def open(self, context, collector):
        super().open(context, collector)
        self.left = [1, 2]

    def next_tuple(self):
        if self.left:
            self.collector.emit(self.left[0], message_id=self.left.pop(0))


@spout(output="n long")
class TwoThenSleeps(Two):
    def next_tuple(self):
        if self.left:
            super().next_tuple()
        else:
            self.collector.sleep(millis(10))


@bolt(output="n long")
class Remembers(StatefulBolt):
    """Acks no 1."""

    def init_state(self, state):
        pass

    def execute(self, tuple):
        self.collector.emit(tuple["n"], anchors=tuple)
        if tuple["n"] != 1:
            self.collector.ack(tuple)


@windowed_bolt(length=count(6), slide=count(2), output="n long")
def slides(window):
    return len(window)


@tumbling(count(3), output="n long")
def triples(window):
    return len(window)


@tumbling(millis(100), timestamp="n", output="n long")
def over_time(window):
    return len(window)


@tumbling(millis(100), timestamp="n", idle_timeout=seconds(100), output="n long")
def over_time_with_idle(window):
    return len(window)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("bolts", "pending", "rows", "why"),
    [
        ((Forgets,), 1, [(0,)], "these bolts ack by themselves"),
        (
            (slides, triples),
            8,
            [(3,), (2,)],
            "windows of counts in a row (bolts 'bolt0', 'bolt1') ack a tuple only after",
        ),
        ((over_time_with_idle,), 4, [(1,), (4,)], "a window over event time (bolt 'bolt0') acks a tuple only after"),
        ((over_time,), 4, [(1,), (4,)], "a window over event time (bolt 'bolt0') acks a tuple only after"),
        ((Remembers, slides, triples), 8, [(3,), (2,)], "windows of counts in a row (bolts 'bolt1', 'bolt2')"),
    ],
)
def test_run_ends_when_a_full_spout_waits_for_acks_that_nothing_can_bring(bolts, pending, rows, why, seed, caplog):
    @spout(output="n long")
    def numbers():
        yield from range(20)

    topology = chain(numbers, *bolts, max_spout_pending=pending, enable_message_timeouts=False).build()
    with LocalCluster(topology, clock=VirtualClock(), seed=seed) as cluster:
        result = cluster.run()
    assert result[f"bolt{len(bolts) - 1}"] == rows
    waited, stopped, *_ = (record.getMessage() for record in caplog.records)
    assert waited.startswith("spout 'source' has waited 30")
    assert why in waited
    assert stopped == (
        "topology 'edges': run() stops spout 'source' before its end: the messages in flight are as many as max.spout.pending "
        "allows, and nothing is due that could ack one of them"
    )


def test_a_full_spout_whose_acks_are_due_runs_to_its_end(caplog):
    """Windows over the clock, a bolt that acks at its ticks and commits bring acks after longer than the message timeout."""

    @spout(output="n long")
    def numbers():
        yield from range(2, 5)

    @tumbling(seconds(100), output="n long")
    def timed(window):
        return len(window)

    @bolt(output="n long")
    class AcksAtTicks(Bolt):
        def get_component_configuration(self):
            return {"topology.tick.tuple.freq.secs": 100}

        def prepare(self, context, collector):
            super().prepare(context, collector)
            self.held = []

        def execute(self, tuple):
            if is_tick(tuple):
                for each in self.held:
                    self.collector.ack(each)
                self.held = []
            else:
                self.held.append(tuple)

    settings = {"max_spout_pending": 1, "enable_message_timeouts": False}
    for last in (timed, AcksAtTicks):
        assert run_topology(chain(numbers, last, **settings).build(), clock=VirtualClock()).acked == 3
    slow = chain(numbers, Remembers, **settings, state_checkpoint_interval=seconds(100)).build()
    assert run_topology(slow, clock=VirtualClock()).acked == 3
    assert not any("before its end" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("clock", [None, VirtualClock()])
@pytest.mark.parametrize(("source", "forgetful", "acked"), [(Two, Forgets, 0), (TwoThenSleeps, Remembers, 1)])
def test_without_timeouts_a_run_ends_although_its_spout_may_be_asked_for_more(source, forgetful, acked, clock, caplog):
    topology = chain(source, same, forgetful, enable_message_timeouts=False).build()
    result = run_topology(topology, clock=clock)
    assert (result["bolt1"], result.acked, result.failures, result.dead_letters) == ([(1,), (2,)], acked, 0, [])
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"topology 'edges' has ended with {2 - acked} messages that are neither acked nor failed")


def test_without_timeouts_a_run_does_not_wait_until_the_failures_of_a_message_are_forgotten(caplog):
    @bolt
    class AcksNone(Bolt):
        def execute(self, tuple):
            if tuple["n"] == 1:
                self.collector.fail(tuple)

    @spout(output="n long")
    class EmitsNoneAgain(Two):
        def fail(self, message_id):
            pass

    clock = VirtualClock()
    run_topology(chain(EmitsNoneAgain, AcksNone, enable_message_timeouts=False).build(), clock=clock)
    assert clock.now_ms() < 120_000
    told, lost = [record.getMessage() for record in caplog.records]
    assert told.startswith("topology 'edges' has ended with 1 messages that are neither acked nor failed")
    assert lost.startswith("topology 'edges': run() ends with 1 failed messages that spout 'source' took back")


def test_without_timeouts_a_run_whose_bolt_may_ack_at_a_tick_waits_for_it_and_logs_that_it_does(caplog):
    @bolt(output="n long")
    class Late(Bolt):
        def prepare(self, context, collector):
            super().prepare(context, collector)
            self.held, self.ticks = [], 0

        def execute(self, tuple):
            if not is_tick(tuple):
                self.held.append(tuple)
                return
            self.ticks += 1
            if self.ticks == 60:
                for each in self.held:
                    self.collector.ack(each)

    topology = chain(Two, Late, enable_message_timeouts=False, tick_tuple_freq=seconds(1)).build()
    assert run_topology(topology, clock=VirtualClock()).acked == 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("topology 'edges' still waits, at the end of its input, for 2 messages that are neither")


@pytest.mark.parametrize("clock", [None, VirtualClock()])
def test_without_timeouts_a_run_ends_although_a_bolt_has_forgotten_its_acks(clock, caplog):
    topology = chain(InputSpout("n long"), same, Forgets, enable_message_timeouts=False).build()
    result = run_topology(topology, {"source": [[(1,), (2,)]]}, clock=clock)
    assert (result["bolt1"], result.acked, result.failures, result.dead_letters) == ([(1,), (2,)], 0, 0, [])
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("topology 'edges' has ended with 2 messages that are neither acked nor failed, and without")
    assert "neither acked nor failed it: 'bolt1'" in told


def lines_to_make_a_cluster_of(bolts):
    """Return how many lines of Python run while a LocalCluster of so many bolts is made."""
    builder = TopologyBuilder("wide")
    builder.set_spout("source", InputSpout("n long"))
    for number in range(bolts):
        builder.set_bolt(f"same{number}", same).shuffle_grouping("source")
    cluster, lines = lines_of(partial(LocalCluster, builder.build()))
    cluster.close()
    return lines


def test_the_work_to_make_a_cluster_grows_as_its_components_do():
    lines_to_make_a_cluster_of(1)  # imports
    assert lines_to_make_a_cluster_of(400) < 5 * lines_to_make_a_cluster_of(100)


def test_the_tasks_of_a_cluster_share_the_table_of_task_ids():
    found = []

    @bolt(output="n long")
    class Asked(BasicBolt):
        def prepare(self, context):
            found.append(context.task_ids)

        def execute(self, tuple):
            return tuple["n"]

    builder = TopologyBuilder("wide")
    builder.set_spout("source", InputSpout("n long"))
    builder.set_bolt("asked", Asked, 3).shuffle_grouping("source")
    run_topology(builder.build(), {"source": [[(1,)]]}, clock=VirtualClock())
    assert found[0] == {"source": range(4, 5), "asked": range(1, 4)}
    assert found[0] is found[1] is found[2]
