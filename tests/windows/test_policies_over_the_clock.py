"""Custom policies over the clock fire on time in every runtime, long before the drain."""

from __future__ import annotations

import pytest

from windowing import TimeTriggerPolicy, TriggerPolicy, count, millis, seconds, windowed_bolt
from windowing.errors import BoltError
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.local.run import LocalRun
from windowing.local.trident_cluster import run_trident
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Spout
from windowing.topology.decorators import spout
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology
from windowing.windows.config import WindowConfig
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy, TimeEvictionPolicy
from windowing.windows.policies import PolicyWindowManager

OUTPUT = "words string, until long"
FOUR_SECONDS = seconds(4)


@spout(output="word string")
class AtOnce(Spout):
    """Emits three words at the start, and nothing after them."""

    def open(self, context, collector):
        super().open(context, collector)
        self.words = ["a", "b", "c"]

    def next_tuple(self):
        if self.words:
            self.collector.emit(self.words.pop(0))


class LastFive(EvictionPolicy):
    """The tuples of the last five seconds."""

    def evict(self, event):
        age = self.get_context().reference_time - event.timestamp
        return Action.KEEP if age < 0 else Action.PROCESS if age < 5_000 else Action.EXPIRE


class EverySecond(TriggerPolicy):
    """Checks the clock at each tick; it requests no tick."""

    every_ms = 1_000

    def __init__(self):
        self.fired_ms = None

    def track(self, event):
        self.fired_ms = event.timestamp if self.fired_ms is None else self.fired_ms

    def tick(self, now_ms):
        if self.fired_ms is None or now_ms < self.fired_ms + self.every_ms:
            return None
        self.fired_ms = now_ms
        return [EvictionContext(now_ms - 1)]


class AfterTwoSeconds(EverySecond):
    """Requests a tick at its deadline."""

    every_ms = 2_000

    def next_deadline_ms(self):
        return None if self.fired_ms is None else self.fired_ms + self.every_ms


class OnB(TriggerPolicy):
    """Fires with a tuple, never by the clock."""

    def track(self, event):
        return [EvictionContext(event.timestamp)] if event.get()["word"] == "b" else None


def words(**options):
    @windowed_bolt(output=OUTPUT, name="words", **options)
    def words(window):
        return "".join(sorted(row["word"] for row in window)), window.end_timestamp

    return words


def in_a_cluster(bolt, span=FOUR_SECONDS):
    builder = TopologyBuilder("clocked")
    builder.set_spout("spout", AtOnce)
    builder.set_bolt("words", bolt).shuffle_grouping("spout")
    cluster = LocalCluster(builder.build(), clock=VirtualClock(10_000), outputs=["words"])
    with cluster:
        return cluster.run_for(span)["words"]


CASES = {
    "a trigger that looks at the clock": ({"trigger": EverySecond}, 11_000, 100),
    "a trigger that says when": ({"trigger": AfterTwoSeconds}, 12_000, 1),
    "a trigger with a slide": ({"trigger": lambda: TimeTriggerPolicy(1_500)}, 11_500, 1),
}


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
@pytest.mark.parametrize("case", CASES)
def test_a_trigger_over_the_clock_fires_on_time(case, semantics):
    options, due_ms, within_ms = CASES[case]
    fired = in_a_cluster(words(length=seconds(5), semantics=semantics, **options))
    assert fired[0][0] == "abc"
    assert due_ms - 1 <= fired[0][1] < due_ms + within_ms + 5
    again_ms = due_ms - 10_000
    assert fired[1][1] - fired[0][1] == pytest.approx(again_ms, abs=within_ms + 5)


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_time_slide_with_a_custom_eviction_fires_on_time(semantics):
    fired = in_a_cluster(words(slide=seconds(1), eviction=LastFive, semantics=semantics), seconds(2))
    assert [row[0] for row in fired][:1] == ["abc"]
    assert fired[0][1] == (10_000 if semantics == "lossless" else 10_999)


def test_storms_policies_given_as_factories_fire_like_those_of_a_definition():
    declared = in_a_cluster(words(length=seconds(5), slide=seconds(1), semantics="storm"))
    by_hand = in_a_cluster(
        words(eviction=lambda: TimeEvictionPolicy(5_000), trigger=lambda: TimeTriggerPolicy(1_000), semantics="storm")
    )
    assert by_hand == declared != []


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_trigger_without_a_deadline_gets_no_tick(semantics):
    run = LocalRun(words(length=seconds(5), trigger=OnB, semantics=semantics), clock=VirtualClock(10_000))
    run.feed([{"word": "a"}])
    assert run.next_deadline_ms() is None


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_stepwise_run_reports_the_deadline_of_its_trigger(semantics):
    clock = VirtualClock(10_000)
    run = LocalRun(words(length=seconds(5), trigger=AfterTwoSeconds, semantics=semantics), clock=clock)
    run.feed([{"word": "a"}])
    assert run.next_deadline_ms() == 12_000
    clock.set(11_999)
    assert run.tick() == []
    clock.set(12_000)
    assert run.tick() == [("default", ("a", 11_999))]


def test_a_second_tick_in_one_millisecond_fires_nothing():
    clock = VirtualClock(10_000)
    run = LocalRun(words(length=seconds(5), trigger=lambda: TimeTriggerPolicy(1_000)), clock=clock)
    run.feed([{"word": "a"}])
    clock.set(11_000)
    assert run.feed([{"word": "b"}]) == [("default", ("a", 10_999))], "it was due before b came"
    assert run.turn() == []
    clock.set(12_000)
    assert run.tick() == [("default", ("ab", 11_999))]


def test_storms_timer_fires_a_due_window_once_in_a_step_after_the_rows():
    clock = VirtualClock(10_000)
    run = LocalRun(words(length=seconds(5), slide=seconds(1), semantics="storm"), clock=clock)
    run.feed([{"word": "a"}])
    clock.set(11_000)
    assert run.feed([{"word": "b"}]) == []
    assert run.turn() == [("default", ("a", 10_999))]


def test_storms_timer_fires_a_due_window_once_though_tuples_wait_in_the_inbox():
    class Hurried:
        """A clock that moves on with each reading, so that windows become due while tuples wait for a shuffled task."""

        ms = 10_000

        def now_ms(self):
            self.ms += 300
            return self.ms

    @spout(output="word string")
    def many():
        yield from [("w",)] * 40

    builder = TopologyBuilder("hurried")
    builder.set_spout("spout", many)
    builder.set_bolt("words", words(length=seconds(5), slide=millis(500), semantics="storm")).shuffle_grouping("spout")
    for seed in range(10):
        with LocalCluster(builder.build(), clock=Hurried(), seed=seed) as cluster:
            ends = [end for _, end in cluster.run(drain=False)["words"]]
        assert len(ends) == len(set(ends)) > 1


def test_the_trigger_of_each_key_has_its_own_deadline():
    clock = VirtualClock(10_000)
    run = LocalRun(words(length=seconds(5), trigger=AfterTwoSeconds, key="word"), clock=clock)
    run.feed([{"word": "a"}])
    clock.set(11_000)
    run.feed([{"word": "b"}])
    fired = []
    while clock.now_ms() < 13_000:
        clock.set(run.next_deadline_ms())
        fired += run.tick()
    assert fired == [("default", ("a", 11_999)), ("default", ("b", 12_999))]


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
@pytest.mark.parametrize("answer", ["soon", 1.5, True])
def test_an_invalid_deadline_of_a_trigger_is_an_error_that_names_the_bolt(semantics, answer):
    class Odd(EverySecond):
        def next_deadline_ms(self):
            return answer

    with pytest.raises(BoltError, match=r"bolt 'words' failed in .*next_deadline_ms"):
        in_a_cluster(words(length=seconds(5), trigger=Odd, semantics=semantics))


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_trigger_whose_deadline_is_always_past_does_not_stop_the_clock(semantics):
    class Restless(EverySecond):
        def next_deadline_ms(self):
            return 0

    fired = in_a_cluster(words(length=seconds(5), trigger=Restless, semantics=semantics), seconds(2))
    assert [row[0] for row in fired][:1] == ["abc"]


def test_a_restored_machine_has_the_deadlines_of_its_triggers():
    config = WindowConfig.of(length=seconds(5), trigger=lambda: TimeTriggerPolicy(1_000))
    manager = PolicyWindowManager(config)
    list(manager.add("a", 10_000))
    other = PolicyWindowManager(config)
    other.restore(manager.snapshot())
    assert other.next_deadline_ms() == manager.next_deadline_ms() == 10_999
    list(manager.tick(11_000))
    other.restore(manager.snapshot())
    assert other.next_deadline_ms() == manager.next_deadline_ms() == 11_999


def test_a_key_past_its_ttl_expires_by_the_clock():
    clock = VirtualClock(10_000)
    run = LocalRun(words(length=count(3), eviction=LastFive, key="word", key_ttl=seconds(20)), clock=clock)
    run.feed([{"word": "a"}])
    assert run.next_deadline_ms() is not None
    clock.set(run.next_deadline_ms())
    run.tick()
    assert run.result.counts["expired"] == 1
    assert clock.now_ms() <= 30_002


@pytest.mark.filterwarnings("ignore:.*sets self.fired_ms:windowing.LostFieldsWarning")
def test_in_trident_a_trigger_ticks_at_the_end_of_each_batch():
    topology = TridentTopology("clocked").configure(batch_emit_interval=millis(600))
    stream = topology.new_stream("words", FixedBatchSpout("word string", 1, [(word,) for word in "abcdef"]))

    def told(window):
        return "".join(row.word for row in window), window.end_timestamp

    stream.window(seconds(5), None, None, told, output=OUTPUT, trigger=EverySecond).sink("fired")
    fired = run_trident(topology, clock=VirtualClock(10_000), drain=False)["fired"]
    assert fired == [("ab", 11_199), ("abcd", 12_399)]


# -- shutdown ------------------------------------------------------------------------------------------------------------


def logging_trigger(log, fails=False):
    """Return a class of triggers that log the calls of a life, and fire with each tuple "b"."""

    class Logging(OnB):
        def track(self, event):
            return None if event.is_watermark else super().track(event)

        def start(self):
            log.append("start")

        def shutdown(self):
            log.append("shutdown")
            if fails:
                raise ZeroDivisionError

        def get_state(self):
            log.append("get_state")

    return Logging


SEMANTICS = pytest.mark.parametrize("semantics", ["lossless", "storm"])


@SEMANTICS
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_is_closed_without_a_drain_shuts_down_its_trigger_once(semantics, fails):
    log = []

    @windowed_bolt(seconds(5), output="n long", trigger=logging_trigger(log), semantics=semantics)
    def size(window):
        return 1 // (not fails)

    run = LocalRun(size, clock=VirtualClock(10_000))
    if fails:
        with pytest.raises(BoltError):
            run.feed([{"word": "b"}])
    else:
        assert run.feed([{"word": "b"}]) == [("default", (1,))]
    assert log == ["start"] + ["shutdown"] * fails
    run.close()
    run.close()
    assert log == ["start", "shutdown"]


def test_the_triggers_of_all_keys_are_shut_down_even_if_one_raises():
    log = []
    run = LocalRun(words(length=seconds(5), key="word", trigger=logging_trigger(log, fails=True)))
    run.feed([{"word": "a"}, {"word": "b"}])
    with pytest.raises(BoltError, match=r"bolt 'words' failed in Logging\.shutdown: ZeroDivisionError"):
        run.close()
    run.close()
    assert log == ["start"] * 2 + ["shutdown"] * 2


def test_a_drain_shuts_down_a_trigger_and_the_end_of_the_run_does_not_repeat_it():
    log = []
    with LocalRun(words(length=seconds(5), trigger=logging_trigger(log))) as run:
        run.feed([{"word": "a"}])
        run.drain()
    assert log == ["start", "shutdown"]


@SEMANTICS
def test_a_cluster_shuts_down_the_triggers_of_its_tasks(semantics):
    log = []
    in_a_cluster(words(length=seconds(5), trigger=logging_trigger(log), semantics=semantics))
    assert log.count("start") == log.count("shutdown") == 1


def test_a_restore_shuts_down_the_triggers_before_new_ones_start():
    log = []
    manager = PolicyWindowManager(WindowConfig.of(length=seconds(5), timestamp="ts", trigger=logging_trigger(log)))
    list(manager.add_batch([{"word": "a"}], [1]))
    manager.restore(manager.snapshot())
    assert log == ["start", "get_state", "shutdown", "start"]


@pytest.mark.parametrize("repeat", [False, True])
def test_a_time_slide_over_the_last_tuples_says_when_its_next_window_is_due(repeat):
    config = WindowConfig.of(length=count(2), slide=seconds(1), eviction=LastFive, repeat=repeat)
    manager = PolicyWindowManager(config)
    assert manager.next_deadline_ms() is None
    list(manager.add("a", 300))
    assert manager.next_deadline_ms() == 1_000
    fired = [effect.window.end_timestamp for effect in manager.tick(1_001)]
    assert (fired, manager.next_deadline_ms()) == ([1_000], 2_000 if repeat else None)
    list(manager.add("b", 1_500))
    assert manager.next_deadline_ms() == 2_000
