"""Storm's windows as in its own tests (WindowManagerTest), and its known losses (R1 to R13)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from inspect import isabstract
from typing import Any

import pytest

import windowing
from windowing.windows.config import Semantics
from windowing.windows.events import Activation, Event, Expired
from windowing.windows.eviction import (
    Action,
    CountEvictionPolicy,
    EvictionContext,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.windows.measures import Count, Duration
from windowing.windows.storm import EXPIRE_EVENTS_THRESHOLD, StormStatefulWindowManager, StormWindowManager
from windowing.windows.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from windowing.windows.watermark import WaterMarkEventGenerator

HOUR = 3_600_000


def seq(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


class Driver:
    """Feeds a manager and records windows as (tuples, new, expired, end), and the expired tuples."""

    def __init__(self, eviction: EvictionPolicy, trigger: TriggerPolicy, stateful: bool = False) -> None:
        self.manager = (StormStatefulWindowManager if stateful else StormWindowManager)(eviction, trigger)
        self.windows: list[tuple[list[Any], list[Any], list[Any], int]] = []
        self.expired: list[Any] = []

    def take(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Activation):
                window = effect.window
                self.windows.append(
                    (list(window.get()), list(window.get_new()), list(window.get_expired()), window.end_timestamp)
                )
            else:
                assert isinstance(effect, Expired)
                assert effect.count == len(effect.get())
                self.expired += effect.get()
        self.manager.check()

    def add(self, *tuples: tuple[Any, int]) -> None:
        for payload, timestamp_ms in tuples:
            self.take(self.manager.add(payload, timestamp_ms))

    def advance(self, watermark_ms: int) -> None:
        self.take(self.manager.advance(watermark_ms))

    def tick(self, now_ms: int) -> None:
        self.take(self.manager.tick(now_ms))

    def news(self) -> tuple[list[Any], list[Any]]:
        windows, self.windows = self.windows, []
        expired, self.expired = self.expired, []
        return windows, expired

    def shown(self) -> list[list[Any]]:
        return [window[0] for window in self.news()[0]]


class ByHand(TriggerPolicy):
    """Fires at each tick, with the clock itself as reference and no correction for drift."""

    def track(self, event: Event) -> None:
        return None

    def tick(self, now_ms: int) -> Iterable[EvictionContext]:
        return [EvictionContext(now_ms)]


def event_time(length: Count | Duration, slide: Count | Duration, lag_ms: int | None = None) -> Driver:
    eviction: EvictionPolicy
    if isinstance(length, Count):
        eviction = WatermarkCountEvictionPolicy(length.value)
    else:
        eviction = WatermarkTimeEvictionPolicy(length.ms, lag_ms)
    if isinstance(slide, Count):
        return Driver(eviction, WatermarkCountTriggerPolicy(slide.value))
    return Driver(eviction, WatermarkTimeTriggerPolicy(slide.ms))


# -- WindowManagerTest ------------------------------------------------------------------------------------------------


def test_count_based_window():
    driver = Driver(CountEvictionPolicy(5), CountTriggerPolicy(2))
    driver.add(*((i, i) for i in seq(1, 8)))
    assert driver.news() == (
        [
            ([1, 2], [1, 2], [], 2),
            ([1, 2, 3, 4], [3, 4], [], 4),
            ([2, 3, 4, 5, 6], [5, 6], [1], 6),
            ([4, 5, 6, 7, 8], [7, 8], [2, 3], 8),
        ],
        [1, 2, 3],
    )


def test_expire_threshold():
    driver = Driver(CountEvictionPolicy(5), TimeTriggerPolicy(HOUR))
    driver.add(*((i, 0) for i in seq(1, EXPIRE_EVENTS_THRESHOLD - 1)))
    assert driver.news() == ([], [])
    driver.add((EXPIRE_EVENTS_THRESHOLD, 0))
    assert driver.news() == ([], seq(1, EXPIRE_EVENTS_THRESHOLD - 5))


@pytest.mark.parametrize("measure", [Count(EXPIRE_EVENTS_THRESHOLD), Duration(EXPIRE_EVENTS_THRESHOLD)])
def test_expire_threshold_with_watermark_policies(measure):
    driver = event_time(measure, measure)
    driver.add(*((i, i) for i in seq(1, 100)))
    assert driver.news() == ([], []), "never evict before the first watermark"
    driver.advance(100)
    assert driver.news() == ([(seq(1, 100), seq(1, 100), [], 100)], [])
    driver.add(*((i, i) for i in seq(101, 200)))
    assert driver.news() == ([], [])
    driver.advance(201)
    assert driver.news() == ([(seq(101, 200), seq(101, 200), seq(1, 100), 200)], seq(1, 100))


def test_time_based_window():
    now = 1_700_000_000_000
    driver = Driver(TimeEvictionPolicy(1000), ByHand())
    driver.add(*((i, now - 1000) for i in seq(1, 50)), *((i, now) for i in seq(51, 100)))
    assert driver.news() == ([], seq(1, 50)), "half of them expire at the threshold"
    driver.add(*((i, now - 1000) for i in seq(101, 200)))
    driver.news()
    driver.tick(now + 100)
    windows, _ = driver.news()
    assert windows == [(seq(51, 100), seq(51, 100), seq(1, 50) + seq(101, 200), now + 100)]
    driver.add(*((i, now) for i in seq(201, 300)))
    driver.tick(now + 200)
    assert driver.news() == ([(seq(51, 100) + seq(201, 300), seq(201, 300), [], now + 200)], [])


def test_time_based_window_expiry():
    driver = Driver(TimeEvictionPolicy(100), ByHand())
    driver.add(*((i, 0) for i in seq(1, 10)))
    driver.tick(60)
    assert driver.news() == ([(seq(1, 10), seq(1, 10), [], 60)], [])
    driver.tick(120)
    assert driver.news() == ([], seq(1, 10))
    driver.tick(180)
    assert driver.news() == ([], [])


def test_tumbling_window():
    driver = Driver(CountEvictionPolicy(3), CountTriggerPolicy(3))
    driver.add(*((i, 0) for i in seq(1, 7)))
    assert driver.news() == ([([1, 2, 3], [1, 2, 3], [], 0), ([4, 5, 6], [4, 5, 6], [1, 2, 3], 0)], [1, 2, 3])


def test_event_time_based_window():
    driver = event_time(Duration(20), Duration(10))
    driver.add((1, 603), (2, 605), (3, 607))
    driver.advance(609)
    assert driver.news() == ([], [])
    driver.add((4, 618), (5, 626), (6, 636))
    driver.advance(631)
    assert driver.news() == (
        [
            ([1, 2, 3], [1, 2, 3], [], 610),
            ([1, 2, 3, 4], [4], [], 620),
            ([4, 5], [5], [1, 2, 3], 630),
        ],
        [1, 2, 3],
    )
    driver.add((7, 825), (8, 826), (9, 827))
    driver.advance(834)
    assert driver.news() == (
        [([5, 6], [6], [4], 640), ([6], [], [5], 650), ([7, 8, 9], [7, 8, 9], [], 830)],
        [4, 5, 6],
    ), "the gap is jumped over; 6 expired in it, and no window is told so (D14)"


def test_r9_count_based_window_with_event_ts_repeats_in_a_gap():
    driver = event_time(Count(3), Duration(10))
    driver.add((1, 603), (2, 605), (3, 607), (4, 618), (5, 626), (6, 636))
    driver.advance(631)
    assert driver.shown() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    driver.add((7, 665), (8, 666), (9, 667))
    driver.advance(672)
    assert [window[::3] for window in driver.news()[0]] == [
        ([4, 5, 6], 640),
        ([4, 5, 6], 650),
        ([4, 5, 6], 660),
        ([7, 8, 9], 670),
    ]


def test_count_based_trigger_with_event_ts():
    driver = event_time(Duration(20), Count(3))
    driver.add((1, 603), (2, 605), (3, 607), (4, 618), (5, 625), (6, 626), (7, 629), (8, 636))
    driver.advance(631)
    assert driver.shown() == [[1, 2, 3], [3, 4, 5, 6]]
    driver.add((9, 665), (10, 666), (11, 667), (12, 669))
    driver.advance(669)
    assert driver.shown() == [[9], [9, 10, 11, 12]]


def test_count_based_tumbling_with_same_event_ts():
    driver = event_time(Count(2), Count(2))
    driver.add(*((i, 10) for i in seq(1, 10)))
    driver.advance(20)
    assert driver.shown() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


def test_count_based_sliding_with_same_event_ts():
    driver = event_time(Count(5), Count(2))
    driver.add(*((i, 10) for i in seq(1, 10)))
    driver.advance(20)
    assert driver.shown() == [[1, 2], seq(1, 4), seq(2, 6), seq(4, 8), seq(6, 10)]


def test_event_time_lag():
    driver = event_time(Duration(20), Duration(10), lag_ms=5)
    driver.add((1, 603), (2, 605), (3, 607), (4, 618), (5, 626), (6, 632), (7, 629), (8, 636))
    driver.advance(631)
    assert driver.shown() == [[1, 2, 3], [1, 2, 3, 4], [4, 5, 7]]


def test_scan_stop():
    class Asked(WatermarkTimeEvictionPolicy):
        asked: list[int]

        def evict(self, event: Event) -> Action:
            self.asked.append(event.payload)
            return super().evict(event)

    policy = Asked(20, 5)
    policy.asked = []
    driver = Driver(policy, WatermarkTimeTriggerPolicy(10))
    driver.add((1, 603), (2, 605), (3, 607), (4, 618), (5, 626), (6, 629))
    driver.add(*((i, 636) for i in seq(7, 10)), *((i, 643) for i in seq(11, 20)))
    driver.advance(631)
    assert driver.shown() == [[1, 2, 3], [1, 2, 3, 4], [4, 5, 6]]
    assert 7 in policy.asked
    assert not set(policy.asked) & set(seq(8, 20)), "the first event beyond the lag ends each scan"


# -- Storm's losses, repetitions and wrong reports --------------------------------------------------------------------


def test_r1_a_tuple_at_the_watermark_is_accepted_and_lost():
    driver = event_time(Duration(10), Duration(10), lag_ms=0)
    generator = WaterMarkEventGenerator(["s"], semantics=Semantics.STORM)
    driver.add(("a5", 5), ("b10", 10))
    generator.track("s", 10)
    driver.advance(generator.turn())
    assert driver.news() == ([(["a5", "b10"], ["a5", "b10"], [], 10)], [])
    assert generator.track("s", 10), "on time, says Storm"
    driver.add(("LATE10", 10), ("c30", 30))
    driver.advance(30)
    assert driver.news() == ([(["c30"], ["c30"], [], 30)], ["a5", "b10", "LATE10"]), "D1, and D14: expired is empty"


def test_r2_a_fast_stream_hides_the_slow_one():
    driver = event_time(Duration(10), Duration(10), lag_ms=5)
    driver.add(("fast", 100), ("s3", 3), ("s8", 8), ("s12", 12), ("s18", 18))
    driver.advance(30)
    assert driver.news() == ([], [])
    slow = ["s3", "s8", "s12", "s18"]
    driver.advance(100)
    assert driver.news() == ([(["fast"], ["fast"], slow, 100)], slow)


def test_r3_a_jump_within_a_watermark_interval_hides_later_tuples():
    driver = event_time(Duration(10), Duration(10), lag_ms=5)
    driver.add(("e3", 3), ("e50", 50), ("e9", 9), ("e52", 52))
    driver.advance(47)
    assert driver.news() == ([(["e3"], ["e3"], [], 10)], ["e3"])
    driver.advance(50)
    assert driver.news() == ([(["e50"], ["e50"], ["e9"], 50)], ["e9"]), "e9 was never shown; D14: e3 is missing"


def test_r4_other_tuples_at_the_last_reference_are_never_counted():
    driver = event_time(Count(2), Count(2))
    driver.add(("a", 1), ("b", 2), ("c", 2))
    driver.advance(2)
    assert driver.shown() == [["a", "b"]]
    driver.add(("d", 3))
    driver.advance(3)
    assert driver.shown() == [], "c and d are two, but c is not counted"
    driver.add(("e", 4))
    driver.advance(4)
    assert driver.shown() == [["c", "d"]], "drifted by one"


def test_r5_event_time_count_windows_out_of_order_lose_one_tuple_and_repeat_another():
    driver = event_time(Count(2), Count(2))
    driver.add(("a5", 5), ("b9", 9), ("c6", 6), ("d8", 8))
    driver.advance(8)
    assert driver.shown() == [["a5", "c6"]]
    driver.advance(9)
    assert driver.news() == ([(["c6", "d8"], ["d8"], ["a5", "b9"], 9)], ["a5", "b9"]), "tumbling, yet c6 came twice"


def test_r6_a_window_before_1970_never_fires():
    driver = event_time(Duration(10), Duration(10))
    driver.add(("old", -15))
    driver.advance(-1)
    assert driver.news() == ([], [])
    driver.advance(0)
    assert driver.news() == ([], ["old"])


def test_r10_time_windows_of_one_timestamp_repeat():
    driver = event_time(Duration(20), Count(2))
    driver.add(("a", 10), ("b", 10), ("c", 10), ("d", 10))
    driver.advance(10)
    assert [window[::3] for window in driver.news()[0]] == [(["a", "b", "c", "d"], 10)] * 2


def test_r12_tuples_between_two_windows_expire_unseen():
    driver = Driver(CountEvictionPolicy(2), CountTriggerPolicy(3))
    driver.add(*((i, 0) for i in seq(1, 6)))
    assert driver.news() == ([([2, 3], [2, 3], [1], 0), ([5, 6], [5, 6], [2, 3, 4], 0)], seq(1, 4))


def test_r13_the_first_count_windows_are_partial():
    driver = Driver(CountEvictionPolicy(5), CountTriggerPolicy(3))
    driver.add(*((i, 0) for i in seq(1, 11)))
    assert [len(window) for window in driver.shown()] == [3, 5, 5]


def test_the_first_timer_takes_all_earlier_tuples_and_a_delayed_one_lengthens_its_window():
    driver = Driver(TimeEvictionPolicy(10), TimeTriggerPolicy(10))
    driver.add(("ancient", -(10**6)), ("now", 10))
    driver.tick(10)
    assert driver.shown() == [["ancient"]], "now may not be over yet"
    driver.add(("b", 12))
    driver.tick(27)
    assert driver.news() == ([(["now", "b"], ["now", "b"], ["ancient"], 26)], ["ancient"]), "7 ms late, 17 ms long"


# -- the machine ------------------------------------------------------------------------------------------------------


def test_a_custom_eviction_needs_only_evict_and_a_trigger_only_track():
    class Odd(EvictionPolicy):
        def evict(self, event: Event) -> Action:
            return Action.PROCESS if event.get() % 2 else Action.EXPIRE

    class AtTens(TriggerPolicy):
        def track(self, event: Event) -> Iterable[EvictionContext] | None:
            return (
                [EvictionContext(event.timestamp - 1), EvictionContext(event.timestamp)] if event.get() == 10 else None
            )

    driver = Driver(Odd(), AtTens())
    driver.add(*((i, i) for i in seq(1, 10)))
    assert driver.news() == ([([1, 3, 5, 7, 9], [1, 3, 5, 7, 9], [2, 4, 6, 8, 10], 9), ([1, 3, 5, 7, 9], [], [], 10)],
                             [2, 4, 6, 8, 10])  # fmt: skip
    restored = StormWindowManager(Odd(), AtTens())
    restored.restore(driver.manager.snapshot())
    assert restored.snapshot() == driver.manager.snapshot()


def built_in(kind: type[Any]) -> list[Any]:
    found = [getattr(windowing, name) for name in windowing.__all__]
    return [each for each in found if isinstance(each, type) and issubclass(each, kind) and not isabstract(each)]


@pytest.mark.parametrize("kind", [*built_in(EvictionPolicy), *built_in(TriggerPolicy)])
def test_a_built_in_policy_reports_its_length_or_slide_and_has_its_fields_in_its_state(kind: type[Any]) -> None:
    is_trigger = issubclass(kind, TriggerPolicy)
    policy = kind(2)
    assert (policy.slide() if is_trigger else policy.length()) in (Count(2), Duration(2))
    beside = WatermarkTimeTriggerPolicy(2) if "Watermark" in kind.__name__ else TimeTriggerPolicy(2)
    driver = Driver(CountEvictionPolicy(2), policy) if is_trigger else Driver(policy, beside)
    driver.add((1, 1), (2, 3), (3, 4), (4, 9), (5, 6))
    driver.advance(7)
    driver.tick(8)
    driver.tick(11)
    assert driver.windows
    restored = kind(2)
    restored.start() if is_trigger else None
    restored.restore_state(json.loads(json.dumps(policy.get_state())))
    assert vars(restored) == vars(policy)


def test_a_time_window_has_a_start_and_a_count_window_has_none():
    manager = StormWindowManager(TimeEvictionPolicy(10), CountTriggerPolicy(1))
    assert [effect.window.start_timestamp for effect in manager.add("a", 25)] == [15]
    manager = StormWindowManager(CountEvictionPolicy(10), CountTriggerPolicy(1))
    assert [effect.window.start_timestamp for effect in manager.add("a", 25)] == [None]
