"""A user's own eviction and trigger policies with lossless semantics, one event at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.windows.histories import by_op, run_steps
from tests.windows.lossless_model import ModelMix
from windowing.errors import BoltError, ConfigError, MachineSpentError, RepeatLimitError, SnapshotError, WindowingError
from windowing.testing.replay import LosslessReplay, config_of
from windowing.testing.strategies import cases
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Event, Expired, WaterMarkEvent
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy
from windowing.windows.executor import WindowedBoltExecutor, machine_for
from windowing.windows.manager import WindowManager
from windowing.windows.measures import Duration, count, millis
from windowing.windows.policies import PolicyWindowManager
from windowing.windows.trigger import CountTriggerPolicy, QueueView, TriggerPolicy, WatermarkCountTriggerPolicy

EVERY_MIX = pytest.mark.parametrize("mix", list(ModelMix))
OPTIONS: dict[str, Any] = {
    "event_time": None,
    "offset": None,
    "repeat": None,
    "idle": None,
    "future": None,
    "source": None,
    "max_steps": 24,
}


# -- policies as a user would write them -------------------------------------------------------------------------------


class LastMillis(EvictionPolicy):
    """The tuples of the last `ms` before the reference."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def evict(self, event: Event) -> Action:
        age = self.get_context().reference_time - event.timestamp
        if age < 0:
            return Action.STOP
        return Action.PROCESS if age < self.ms else Action.EXPIRE


class LastTuples(EvictionPolicy):
    """The last `n` tuples of those that the context counts."""

    def __init__(self, n: int) -> None:
        self.n = n

    def set_context(self, context: EvictionContext) -> None:
        super().set_context(context)
        self.too_many = context.current_count - self.n

    def evict(self, event: Event) -> Action:
        if event.timestamp > self.get_context().reference_time:
            return Action.KEEP
        self.too_many -= 1
        return Action.EXPIRE if self.too_many >= 0 else Action.PROCESS


class EveryNth(TriggerPolicy):
    """A window at every n-th tuple."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen = 0

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            return None
        self.seen += 1
        return [EvictionContext(event.timestamp)] if self.seen % self.n == 0 else None

    def get_state(self) -> int:
        return self.seen

    def restore_state(self, state: int) -> None:
        self.seen = state


class EveryMillis(TriggerPolicy):
    """A window at each multiple of `ms` that the watermark (or the clock) passes and that has a tuple to show."""

    def __init__(self, ms: int, offset: int = 0) -> None:
        self.ms, self.offset = ms, offset
        self.next_end: int | None = None
        self.until: int | None = None

    def first_end(self, timestamp: int) -> int:
        return timestamp + (self.offset - timestamp) % self.ms

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            self.until = event.timestamp
        return None

    def tick(self, now_ms: int) -> Iterable[EvictionContext] | None:
        self.until = now_ms - 1
        return None

    def due(self, queue: QueueView) -> EvictionContext | None:
        if self.until is None:
            return None
        earliest = queue.earliest_event_timestamp(-(10**15), self.until)
        if earliest is not None:
            end = self.first_end(earliest)
            self.next_end = end if self.next_end is None else max(end, self.next_end)
            if self.next_end <= self.until:
                return EvictionContext(self.next_end)
        self.next_end = max(self.next_end or self.until, self.first_end(self.until + 1))
        self.until = None
        return None

    def fired(self, shown: bool) -> None:
        self.next_end += self.ms

    def get_state(self) -> list[int | None]:
        return [self.next_end, self.until]

    def restore_state(self, state: list[int | None]) -> None:
        self.next_end, self.until = state


class All(EvictionPolicy):
    """All tuples."""

    def evict(self, event: Event) -> Action:
        return Action.PROCESS


class Even(EvictionPolicy):
    """The tuples with an even id; the others stay in the queue."""

    def evict(self, event: Event) -> Action:
        return Action.PROCESS if event.get() % 2 == 0 else Action.KEEP


def triggered(case: dict[str, Any], trigger: Any, **options: Any) -> WindowConfig:
    """Return the window of a case with a trigger in place of its slide."""
    return replace(config_of({**case, "slide": {"count": 1}, "repeat": False}), trigger=trigger, offset_ms=0, **options)


def eviction_of(case: dict[str, Any]) -> Any:
    length = case["length"]
    return lambda: LastTuples(length["count"]) if "count" in length else LastMillis(length["duration_ms"])


# -- a custom policy equals the built-in one ---------------------------------------------------------------------------


def windows(history: Any) -> dict[int, Any]:
    return {op: (activations, late) for op, (activations, _, late) in history.items() if activations or late}


def expired(history: Any) -> list[Any]:
    return sorted(each for _, gone, _ in history.values() for each in gone)


def assert_same(case: dict[str, Any], config: WindowConfig, *, same_new: bool = True) -> None:
    built_in, own = LosslessReplay(case), LosslessReplay(case, config)
    assert isinstance(own.executor.manager, PolicyWindowManager)
    expected = by_op(event for step in run_steps(case, built_in) for event in step)
    found = by_op(event for step in run_steps(case, own) for event in step)
    if not same_new:
        for history in (expected, found):
            for activations, _, _ in history.values():
                activations[:] = sorted([reference, current] for current, _, _, reference in activations)
    assert windows(found) == windows(expected)
    if own.executor.closed:
        assert expired(found) == expired(expected)
    for name in ("in", "shown", "late", "fired"):
        assert own.executor.counts()[name] == built_in.executor.counts()[name]


@EVERY_MIX
@given(data=st.data())
def test_a_custom_eviction_equals_the_built_in_one(mix, data):
    case = data.draw(cases(mix=mix, **OPTIONS))
    assert_same(case, config_of(case, eviction=eviction_of(case)))


@EVERY_MIX
@given(data=st.data(), batched=st.booleans())
def test_a_custom_eviction_equals_the_built_in_one_for_each_key(mix, data, batched):
    case = data.draw(cases(mix=mix, keyed=True, key_ttl=None, **OPTIONS)) | {"batched": batched}
    # The built-in Duration/Duration removes a key, its position in the order and its last window, earlier than a scan can know.
    assert_same(case, config_of(case, eviction=eviction_of(case)), same_new=mix is not ModelMix.DURATION_DURATION)


@EVERY_MIX
@given(data=st.data())
def test_an_eviction_that_keeps_all_tuples_leaves_the_length_unchanged(mix, data):
    case = data.draw(cases(mix=mix, **OPTIONS))
    assert_same(case, config_of(case, eviction=All))


@EVERY_MIX
@given(data=st.data())
def test_an_eviction_filters_the_tuples_of_the_length(mix, data):
    case = data.draw(cases(mix=mix, drains=False, keyed=None, **{**OPTIONS, "repeat": False}))
    built_in, own = LosslessReplay(case), LosslessReplay(case, config_of(case, eviction=Even))
    for held, chosen in zip(run_steps(case, built_in), run_steps(case, own), strict=True):
        even = [(reference, [n for n in window if n % 2 == 0]) for reference, window in shown_in(held)]
        assert shown_in(chosen) == sorted((reference, window) for reference, window in even if window)


def shown_in(events: Iterable[list[Any]]) -> list[tuple[int, list[int]]]:
    """The windows of a step, sorted: a key that a built-in window removes earlier changes its position among the keys."""
    return sorted((event[5], event[2]) for event in events if event[1] == "activate")


@pytest.mark.parametrize("mix", [ModelMix.COUNT_COUNT, ModelMix.DURATION_COUNT])
@given(data=st.data())
def test_a_custom_count_trigger_equals_the_built_in_one(mix, data):
    case = data.draw(cases(mix=mix, drains=False, keyed=None, **OPTIONS))
    assert_same(case, triggered(case, lambda: EveryNth(case["slide"]["count"])))


@given(cases(mix=ModelMix.DURATION_DURATION, drains=False, big_gaps=False, **{**OPTIONS, "offset": None}))
def test_a_custom_time_trigger_equals_the_built_in_one(case):
    slide, offset = case["slide"]["duration_ms"], case.get("offset_ms", 0)
    case = {**case, "ops": [op for op in case["ops"] if not at_an_end(op, slide, offset)]}
    assert_same(case, triggered(case, lambda: EveryMillis(slide, offset)))


@given(
    case=cases(mix=ModelMix.COUNT_DURATION, keyed=True, key_ttl=True, **{**OPTIONS, "repeat": True}),
    own=st.sampled_from(["eviction", "trigger"]),
)
def test_a_key_with_policies_that_would_go_on_firing_ends_when_a_built_in_one_does(case, own):
    """Policies that show the last N tuples at every end are repeat=True; they never run out of windows by themselves."""
    if own == "eviction":
        return assert_same(case, replace(config_of(case, eviction=eviction_of(case)), length=None, repeat=False))
    slide, offset = case["slide"]["duration_ms"], case.get("offset_ms", 0)
    case["key_ttl_ms"] += slide  # then each tuple was shown, and nothing is left for the end of its key
    case["ops"] = [op for op in case["ops"] if op[0] != "drain" and not at_an_end(op, slide, offset)]
    assert_same(case, triggered(case, lambda: EveryMillis(slide, offset), eviction=eviction_of(case)))


class Times(TriggerPolicy):
    """Keeps the watermarks that it is given; fires at none."""

    def __init__(self, given: list[int]) -> None:
        self.given = given

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            self.given.append(event.timestamp)
        return None


def test_a_key_that_ends_is_given_no_later_watermark_than_its_end_and_none_that_falls():
    given: list[int] = []

    def manager(ttl_ms: int) -> PolicyWindowManager:
        options: dict[str, Any] = {"timestamp": "ts", "key": "k", "key_ttl": millis(ttl_ms)}
        return PolicyWindowManager(WindowConfig.of(length=count(2), trigger=lambda: Times(given), **options))

    before, after = manager(50), manager(15)
    list(before.add_batch([1], [10], ["a"]))
    list(before.advance(40))
    after.restore(before.snapshot())
    list(after.add_batch([2], [50], ["b"]))
    assert plain(after.advance(1_000)) == [(10, [1], [1], []), (50, [2], [2], []), [1], [2]]
    assert given == [40, 40, 40, 65, 65], "in the advance to its end, and in the drain of the key"


def at_an_end(op: list[Any], slide: int, offset: int) -> bool:
    """With a custom trigger only W decides what is late, so leave out tuples that may arrive at W and at an end."""
    return op[0] == "tuple" and (op[3] - offset) % slide == 0


@EVERY_MIX
@given(data=st.data(), own=st.sampled_from(["eviction", "trigger", "both"]))
def test_stopped_anywhere_and_resumed_custom_policies_give_the_same_windows(mix, data, own):
    case = data.draw(cases(mix=mix, keyed=None, **{**OPTIONS, "repeat": False, "max_steps": 12}, big_gaps=False))
    slide, eviction = case["slide"], eviction_of(case)

    def trigger() -> Any:
        return EveryNth(slide["count"]) if "count" in slide else EveryMillis(slide["duration_ms"])

    if own == "eviction":
        config = config_of(case, eviction=eviction)
    else:
        config = triggered(case, trigger, eviction=eviction if own == "both" else None)
    through, stopped, events = LosslessReplay(case, config), LosslessReplay(case, config), []
    for step in run_steps(case, stopped):
        events += step
        saved = json.dumps(stopped.executor.snapshot())
        stopped.executor = stopped.build()
        stopped.executor.restore(json.loads(saved))
        stopped.executor.check()
        assert json.dumps(stopped.executor.snapshot()) == saved
    straight = []
    for step in run_steps(case, through):
        straight += step
        through.executor.mark()  # what it keeps of a key is compared with the key after each step
    assert by_op(events) == by_op(straight)


def test_a_mark_lists_the_tuples_of_the_keys_alone_that_have_changed_since_the_last_one():
    options: dict[str, Any] = {"timestamp": "ts", "key": "k", "trigger": lambda: EveryNth(3)}
    manager = PolicyWindowManager(WindowConfig.of(length=count(5), **options))
    list(manager.add_batch([1, 2, 3], [1, 2, 3], ["a", "b", "a"]))
    list(manager.advance(3))
    first = manager.mark()["tracks"]
    list(manager.add_batch([4], [4], ["b"]))
    list(manager.advance(4))
    second = manager.mark()["tracks"]
    assert [track["payloads"] for track in second] == [[1, 3], [2, 4]]
    assert [one["payloads"] is other["payloads"] for one, other in zip(first, second, strict=True)] == [True, False]
    assert [track["trigger"] for track in second] == [2, 2]


class AnyTuples(EvictionPolicy):
    """All tuples are in some windows; in the others an action is drawn for each, so tuples leave the queue in any order."""

    def __init__(self, draws: list[list[Action]]) -> None:
        self.draws = draws

    def evict(self, event: Event) -> Action:
        drawn = self.draws[self.get_context().reference_time]
        return drawn[event.get() % len(drawn)] if drawn else Action.PROCESS


class EveryAdvance(TriggerPolicy):
    """A window at each advance of the watermark."""

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        return [EvictionContext(event.timestamp)] if event.is_watermark else None


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.sampled_from(Action), max_size=3)), max_size=10))
@example([(2, []), (0, [Action.KEEP, Action.EXPIRE]), (1, [Action.KEEP, Action.EXPIRE, Action.PROCESS])])
def test_any_eviction_gives_the_same_windows_in_order_whether_stopped_or_not(rounds):
    draws = [drawn for _, drawn in rounds]
    config = WindowConfig.of(trigger=EveryAdvance, eviction=lambda: AnyTuples(draws), timestamp="ts")
    through, stopped, previous, tuples = WindowedBoltExecutor(config), WindowedBoltExecutor(config), [], 0
    for at, (added, _) in enumerate(rounds):
        for executor in (through, stopped):
            list(executor.add_batch(range(tuples, tuples + added), [at] * added))
            executor.track("default", at)
        tuples += added
        found = plain(stopped.turn())
        assert found == plain(through.turn())
        for _, current, new, expired in (each for each in found if isinstance(each, tuple)):
            assert current == sorted(current)
            assert new == [each for each in current if each not in previous]
            assert expired == [each for each in previous if each not in current]
            previous = current
        saved = json.dumps(stopped.snapshot())
        stopped = WindowedBoltExecutor(config)
        stopped.restore(json.loads(saved))
        stopped.check()
    assert stopped.counts() == through.counts()


# -- a user's trigger --------------------------------------------------------------------------------------------------


class OnEnd(TriggerPolicy):
    """A window whenever a tuple says "end"."""

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        return [EvictionContext(event.timestamp)] if event.get() == "end" else None


def plain(effects: Iterable[Any]) -> list[Any]:
    return [
        (e.window.end_timestamp, list(e.window.get()), list(e.window.get_new()), list(e.window.get_expired()))
        if isinstance(e, Activation)
        else e.get()
        for e in effects
    ]


def test_a_session_ends_with_a_tuple_that_says_so():
    #  3 a   5 b   7 end   8 c  |9 = W|   12 end  |12 = W|   13 d   drain
    manager = PolicyWindowManager(WindowConfig.of(length=millis(5), timestamp="ts", trigger=OnEnd))
    list(manager.add_batch(["end", "c", "b", "a"], [7, 8, 5, 3]))
    assert plain(manager.advance(9)) == [(7, ["a", "b", "end"], ["a", "b", "end"], [])]
    manager.check()
    manager.add("end", 12)
    assert plain(manager.advance(12)) == [
        (12, ["c", "end"], ["c", "end"], ["a", "b", "end"]),
        ["a", "b", "end"],
    ]
    manager.add("d", 13)
    assert plain(manager.drain()) == [(13, ["end", "d"], ["d"], ["c"]), ["c", "end", "d"]]


def test_a_drain_fires_the_unfired_tuples_and_expires_all():
    manager = PolicyWindowManager(WindowConfig.of(length=count(3), timestamp="ts", trigger=OnEnd))
    list(manager.add_batch(["a", "end", "b"], [1, 2, 3]))
    assert plain(manager.advance(2)) == [(2, ["a", "end"], ["a", "end"], [])]
    assert plain(manager.drain()) == [(3, ["a", "end", "b"], ["b"], []), ["a", "end", "b"]]
    assert manager.tally.pending == 0
    assert plain(manager.drain()) == []
    with pytest.raises(WindowingError, match="was drained"):
        manager.add("x", 9)


def test_a_drain_fires_the_tuples_that_storms_trigger_of_counts_left():
    trigger = partial(WatermarkCountTriggerPolicy, 2)
    manager = PolicyWindowManager(WindowConfig.of(length=count(2), timestamp="ts", trigger=trigger))
    list(manager.add_batch(["a", "b", "c"], [1, 2, 3]))
    assert plain(manager.advance(3)) == [(2, ["a", "b"], ["a", "b"], [])]
    assert plain(manager.drain()) == [(3, ["b", "c"], ["c"], ["a"]), ["a", "b", "c"]]


def test_on_processing_time_a_trigger_is_called_at_each_add_and_each_tick():
    class OnTick(OnEnd):
        def tick(self, now_ms: int) -> Iterable[EvictionContext] | None:
            return [EvictionContext(now_ms - 1)]

    manager = PolicyWindowManager(WindowConfig.of(length=millis(5), trigger=OnTick))
    assert plain(manager.add("a", 3)) == []
    assert plain(manager.add("end", 3)) == [(3, ["a", "end"], ["a", "end"], [])]
    assert plain(manager.add("b", 6)) == []
    assert plain(manager.tick(6)) == [(5, ["a", "end"], [], [])]
    assert plain(manager.tick(8)) == [(7, ["a", "end", "b"], ["b"], [])]
    assert plain(manager.tick(9)) == [(8, ["b"], [], ["a", "end"]), ["a", "end"]]


def test_a_batch_on_processing_time_gives_the_position_of_each_cause():
    manager = PolicyWindowManager(WindowConfig.of(length=count(1), trigger=OnEnd))
    effects = [(at, *plain([effect])) for at, effect in manager.add_batch(["a", "end", "b", "end"], [1, 1, 2, 2])]
    assert effects == [
        (1, (1, ["end"], ["end"], [])),
        (1, ["a"]),
        (3, (2, ["end"], ["end"], ["end"])),
        (3, ["end", "b"]),
    ]


def test_both_policies_get_every_tuple_once_and_then_the_watermark():
    heard: list[Any] = []

    class Listening(EvictionPolicy):
        def track(self, event: Event) -> None:
            heard.append(("eviction", "W" if event.is_watermark else event.get(), event.timestamp))

        def evict(self, event: Event) -> Action:
            return Action.PROCESS

    class Hearing(OnEnd):
        def track(self, event: Event) -> Iterable[EvictionContext] | None:
            heard.append(("trigger", "W" if event.is_watermark else event.get(), event.timestamp))
            return None

        def start(self) -> None:
            heard.append("start")

        def shutdown(self) -> None:
            heard.append("shutdown")

    manager = PolicyWindowManager(WindowConfig.of(eviction=Listening, timestamp="ts", trigger=Hearing))
    list(manager.add_batch(["b", "a"], [2, 1]))
    list(manager.advance(1))
    list(manager.drain())
    assert heard == [
        "start",
        *[(who, "a", 1) for who in ("eviction", "trigger")],
        *[(who, "W", 1) for who in ("eviction", "trigger")],
        *[(who, "b", 2) for who in ("eviction", "trigger")],
        *[(who, "W", 2) for who in ("eviction", "trigger")],
        "shutdown",
    ]
    assert WaterMarkEvent(3).is_watermark


def test_tuples_that_an_eviction_keeps_or_does_not_reach_stay_pending():
    class Odd(EvictionPolicy):
        def evict(self, event: Event) -> Action:
            if event.get() == "stop":
                return Action.STOP
            return Action.PROCESS if event.get() % 2 else Action.KEEP

    manager = PolicyWindowManager(WindowConfig.of(eviction=Odd, slide=count(4), timestamp="ts"))
    list(manager.add_batch([1, 2, 3, "stop", 5], [1, 2, 3, 4, 5]))
    assert plain(manager.advance(5)) == [(4, [1, 3], [1, 3], [])]
    assert manager.tally.pending == 3
    assert plain(manager.drain()) == [(5, [1, 3], [], []), [1, 2, 3, "stop", 5]]
    assert (manager.tally.shown, manager.tally.skipped) == (2, 3)


def test_policies_need_only_the_methods_of_the_protocol_and_no_base_class():
    class Bare:
        def evict(self, event: Any) -> Action:
            return Action.PROCESS

    class BareTrigger:
        def track(self, event: Any) -> Any:
            return None if event.is_watermark else [EvictionContext(event.timestamp)]

    manager = PolicyWindowManager(WindowConfig.of(eviction=Bare, timestamp="ts", trigger=BareTrigger))
    list(manager.add_batch(["a", "b"], [1, 2]))
    assert [effect[1] for effect in plain(manager.advance(2))] == [["a"], ["a", "b"]]
    saved = json.loads(json.dumps(manager.snapshot()))
    manager.restore(saved)
    assert plain(manager.drain()) == [["a", "b"]]


def test_each_key_has_its_own_policies():
    config = WindowConfig.of(length=count(9), timestamp="ts", key="k", trigger=lambda: EveryNth(2))
    manager = PolicyWindowManager(config)
    list(manager.add_batch([1, 2, 3, 4], [4, 3, 2, 1], ["a", "b", "a", "b"]))
    fired = [(effect.window.key, effect.window.end_timestamp) for effect in manager.advance(9)]
    assert fired == [("b", 3), ("a", 4)]


def test_a_time_slide_skips_a_gap_of_any_length():
    class Everything(EvictionPolicy):
        def evict(self, event: Event) -> Action:
            return Action.PROCESS if self.get_context().reference_time - event.timestamp < 10 else Action.EXPIRE

    manager = PolicyWindowManager(WindowConfig.of(eviction=Everything, slide=millis(10), timestamp="ts"))
    list(manager.add_batch(["a", "b"], [5, 10**12]))
    assert [effect[0] for effect in plain(manager.advance(10**12)) if isinstance(effect, tuple)] == [10, 10**12]


def test_more_windows_per_turn_than_max_repeats_without_a_new_tuple_are_an_error_that_names_the_trigger():
    class Endless(OnEnd):
        def due(self, queue: QueueView) -> EvictionContext | None:
            return EvictionContext(9)

    config = WindowConfig(length=Duration(5), slide=count(1), timestamp="ts", trigger=Endless, max_repeats=50)
    manager = PolicyWindowManager(config)
    manager.add("a", 7)
    with pytest.raises(RepeatLimitError, match="Endless fired more than max_repeats=50 windows"):
        list(manager.advance(9))
    with pytest.raises(MachineSpentError):
        manager.add("b", 10)


def test_a_trigger_is_reset_after_each_of_its_windows():
    config = WindowConfig.of(length=count(4), timestamp="ts", trigger=lambda: CountTriggerPolicy(2))
    manager = PolicyWindowManager(config)
    list(manager.add_batch("abcd", [1, 2, 3, 4]))
    assert [effect[0] for effect in plain(manager.advance(4)) if isinstance(effect, tuple)] == [2, 4]


def test_an_eviction_that_returns_no_action_is_an_error_that_names_the_policy():
    class Wrong(EvictionPolicy):
        def evict(self, event: Event) -> Any:
            return True

    manager = PolicyWindowManager(WindowConfig.of(eviction=Wrong, timestamp="ts"))
    manager.add("a", 1)
    with pytest.raises(
        WindowingError, match=r"Wrong.evict returned True on the window that ends at 1; return one of Action"
    ):
        list(manager.advance(1))


@pytest.mark.parametrize("method", ["track", "tick", "due"])
@pytest.mark.parametrize("returned", [1, EvictionContext("5"), EvictionContext(None), EvictionContext(5.5)])
def test_a_trigger_that_returns_no_whole_reference_time_is_an_error_that_names_the_trigger(method, returned):
    class Wrong(TriggerPolicy):
        def track(self, event: Event) -> Any:
            return [returned] if method == "track" else None

        def tick(self, now_ms: int) -> Any:
            return [returned] if method == "tick" else None

        def due(self, queue: QueueView) -> Any:
            return returned if method == "due" else None

    over_the_clock = method == "tick"
    config = WindowConfig.of(length=count(9), timestamp=None if over_the_clock else "ts", trigger=Wrong)
    executor = WindowedBoltExecutor(config, component="clicks")
    executor.set_clock(500)
    with pytest.raises(BoltError, match=r"bolt 'clicks' failed in Wrong.track.*reference_time in whole milliseconds"):
        list(chain(executor.add("a", 1), executor.turn()))


def test_an_aggregate_over_windows_of_a_custom_trigger():
    config = WindowConfig.of(length=count(9), timestamp="ts", trigger=lambda: EveryNth(2), aggregate=agg.sum())
    manager = machine_for(config)
    list(manager.add_batch([1, 10, 100], [1, 2, 3]))
    assert [effect.window.aggregate for effect in manager.advance(3)] == [11]


def test_a_window_manager_refuses_an_eviction_without_a_length():
    with pytest.raises(ConfigError, match="an eviction of its own instead"):
        WindowManager(WindowConfig.of(eviction=All))


def test_foreign_snapshots_are_refused():
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(3), timestamp="ts", trigger=OnEnd))
    with pytest.raises(SnapshotError, match="a PolicyWindowManager snapshot of format 1 was wanted"):
        executor.manager.restore({"machine": "WindowManager", "format": 1})


def test_expired_effects_have_their_key_and_their_tuples():
    config = WindowConfig.of(length=count(1), timestamp="ts", key="k", trigger=lambda: EveryNth(1))
    manager = PolicyWindowManager(config)
    list(manager.add_batch(["a", "b"], [1, 2], ["x", "x"]))
    gone = [effect for effect in manager.advance(2) if isinstance(effect, Expired)]
    assert [(effect.key, effect.count, effect.get()) for effect in gone] == [("x", 1, ["a"])]


class EveryThirdKept(TriggerPolicy):
    """A window at every third tuple; its state is its own list, not a copy."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            return None
        self.seen.append(event.timestamp)
        return None if len(self.seen) % 3 else [EvictionContext(event.timestamp)]

    def get_state(self) -> list[int]:
        return self.seen

    def restore_state(self, state: list[int]) -> None:
        self.seen = state


class EveryFifthGone(EvictionPolicy):
    """All tuples, until the fifth call, which expires its tuple; its state is its own list, not a copy."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def evict(self, event: Event) -> Action:
        self.calls.append(event.timestamp)
        return Action.PROCESS if len(self.calls) % 5 else Action.EXPIRE

    def get_state(self) -> list[int]:
        return self.calls

    def restore_state(self, state: list[int]) -> None:
        self.calls = state


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=8), st.sampled_from(["lossless", "storm"]))
def test_attempts_that_are_undone_leave_nothing_in_a_policy_whose_state_is_its_own_list(rounds, semantics):
    config = WindowConfig.of(timestamp="ts", trigger=EveryThirdKept, eviction=EveryFifthGone, semantics=semantics)
    through, undone, at = WindowedBoltExecutor(config), WindowedBoltExecutor(config), 0

    def turn(executor: WindowedBoltExecutor, tuples: range) -> list[Any]:
        list(executor.add_batch(list(tuples), list(tuples)))
        executor.track("default", tuples.stop)
        return plain(executor.turn())

    for added, attempts in rounds:
        tuples = range(at, at + added)
        at += added
        before = undone.mark()
        for _ in range(attempts):
            turn(undone, tuples)
            undone.restore(before)
        assert turn(undone, tuples) == turn(through, tuples)


@pytest.mark.parametrize("slots", [False, True])
def test_a_policy_may_be_a_frozen_dataclass(slots):
    @dataclass(frozen=True, slots=slots)
    class Recent(EvictionPolicy):
        ms: int

        def evict(self, event: Event) -> Action:
            return LastMillis.evict(self, event)

    def machine(policy):
        return WindowedBoltExecutor(WindowConfig.of(slide=millis(10), timestamp="at", eviction=partial(policy, 15)))

    def windows(of, times):
        found = []
        for at in times:
            for effect in chain(of.add(at, at), of.turn()):
                if isinstance(effect, Activation):
                    found.append(effect.window.get())
        return found

    frozen, usual = machine(Recent), machine(LastMillis)
    assert windows(frozen, [1, 12, 25]) == windows(usual, [1, 12, 25]) == [[1], [12]]
    again = machine(Recent)
    again.restore(frozen.snapshot())
    assert windows(again, [40]) == windows(usual, [40])


def test_a_policy_whose_state_cannot_be_copied_is_named():
    class WithLock(EveryNth):
        def get_state(self) -> Any:
            return threading.Lock()

    executor = WindowedBoltExecutor(WindowConfig.of(length=count(2), trigger=lambda: WithLock(2)), component="clicks")
    executor.set_clock(5)
    list(executor.add("a"))
    with pytest.raises(BoltError, match=r"bolt 'clicks' failed in WithLock.get_state, which returns plain data: "):
        executor.snapshot()


def test_a_policy_that_keeps_a_tuple_has_the_tuple_of_the_window_in_a_snapshot_too():
    class Newest(EveryNth):
        newest: Any = None

        def track(self, event: Event) -> Iterable[EvictionContext] | None:
            self.newest = self.newest if event.is_watermark else event.get()
            return super().track(event)

        def get_state(self) -> Any:
            return [self.newest]

    executor = WindowedBoltExecutor(WindowConfig.of(length=count(2), trigger=lambda: Newest(9)))
    executor.set_clock(5)
    row = {"n": 1}
    list(executor.add(row))
    executor.manager.tick(9)
    key = executor.snapshot()["manager"]["tracks"][0]
    assert key["trigger"][0] is row


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_function_that_makes_no_policy_is_named_at_the_first_tuple(semantics):
    def run(**options: Any) -> None:
        config = WindowConfig.of(**{"length": count(2), "semantics": semantics} | options)
        executor = WindowedBoltExecutor(config, component="clicks")
        executor.set_clock(5)
        list(executor.add("a"))

    made = (
        r"^\[BOLT\] bolt 'clicks': {}= made {}.*, which has no method {}\(self, event\); return a policy that has it$"
    )
    with pytest.raises(BoltError, match=made.format("eviction", "None", "evict")):
        run(eviction=lambda: None, length=None, slide=count(1))
    with pytest.raises(BoltError, match=made.format("trigger", "7", "track")):
        run(trigger=lambda: 7)
    with pytest.raises(BoltError, match=made.format("trigger", "<tests.windows.test_policies.All", "track")):
        run(trigger=lambda: All())  # an eviction inherits a track that fires nothing
    with pytest.raises(ConfigError, match=r"trigger <class .*\.All'> has no method track\(self, event\); write it"):
        run(trigger=All)
