"""WindowManager in single cases: time lines, the windows of Storm's own tests, the guard, keys, gaps and limits.

A time line is read from left to right; `|` is a watermark advance, its number the watermark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.columnar.manager import ColumnarWindowManager
from windowing.errors import MachineSpentError, RepeatLimitError, SnapshotError, StaleWindowError, WindowingError
from windowing.windows.assigners import Firing, by_reference
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Expired
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.key_state import StoredKeys, StoredTuples, numbers_of
from windowing.windows.manager import StatefulWindowManager, WindowManager
from windowing.windows.measures import count, millis, seconds

pytestmark = pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")


def manager_of(length: Any, slide: Any, **options: Any) -> WindowManager:
    """A manager on event time, unless timestamp=None says otherwise."""
    return WindowManager(WindowConfig.of(**{"length": length, "slide": slide, "timestamp": "ts", **options}))


def plain(effects: Iterable[Any]) -> list[Any]:
    """Windows as (reference, tuples, new, expired), expiries as lists."""
    return [
        (e.window.end_timestamp, list(e.window.get()), list(e.window.get_new()), list(e.window.get_expired()))
        if isinstance(e, Activation)
        else e.get()
        for e in effects
    ]


def windows(effects: Iterable[Any]) -> list[list[Any]]:
    return [list(effect.window.get()) for effect in effects if isinstance(effect, Activation)]


def feed(manager: WindowManager, times: Iterable[int]) -> WindowManager:
    """Add tuples named by their timestamps, in this order."""
    for time in times:
        assert list(manager.add(time, time)) == []
    return manager


# -- time lines --------------------------------------------------------------------------------------------------------


def test_tumbling_windows_include_their_end_and_exclude_their_start():
    #   0   1   5   6   10  |10   11 |12   drain
    #   (]  (-------]   (---]         (--------]
    manager = feed(manager_of(millis(5), millis(5)), [0, 1, 5, 6, 10])
    assert plain(manager.advance(10)) == [
        (0, [0], [0], []),
        (5, [1, 5], [1, 5], [0]),
        (10, [6, 10], [6, 10], [1, 5]),
        [0, 1, 5, 6, 10],
    ]
    feed(manager, [11])
    assert plain(manager.advance(12)) == []
    assert plain(manager.drain()) == [(15, [11], [11], [6, 10]), [11]]


def test_windows_before_1970_end_at_multiples_of_the_slide_too():
    manager = feed(manager_of(millis(10), millis(10)), [-11, -10, -9, 0, 1])
    assert [end for end, *_ in filter(lambda e: isinstance(e, tuple), plain(manager.drain()))] == [-10, 0, 10]


def test_an_offset_shifts_the_ends():
    manager = feed(manager_of(millis(10), millis(10), offset=millis(3)), [3, 4, 13, 14])
    assert plain(manager.advance(13)) == [(3, [3], [3], []), (13, [4, 13], [4, 13], [3]), [3, 4, 13]]


def test_a_sliding_window_holds_a_tuple_as_long_as_it_covers_its_timestamp():
    # length 20, slide 10      5         15        |20   25     |30       |40
    #                  (-------------]                              5 leaves after (0, 20]
    manager = feed(manager_of(millis(20), millis(10)), [5, 15])
    assert plain(manager.advance(20)) == [(10, [5], [5], []), (20, [5, 15], [15], []), [5]]
    feed(manager, [25])
    assert plain(manager.advance(30)) == [(30, [15, 25], [25], [5]), [15]]
    assert plain(manager.advance(39)) == []
    assert plain(manager.advance(40)) == [(40, [25], [], [15]), [25]]


def test_a_tuple_at_the_watermark_gets_its_number_at_the_next_advance():
    # count 2/2      1   3  |3     3'  4  |4
    manager = feed(manager_of(count(2), count(2)), [1, 3])
    assert plain(manager.advance(3)) == [(3, [1, 3], [1, 3], []), [1, 3]]
    list(manager.add("3'", 3))
    list(manager.add("4", 4))
    assert plain(manager.advance(3)) == []
    assert plain(manager.advance(4)) == [(4, ["3'", "4"], ["3'", "4"], [1, 3]), ["3'", "4"]]


def test_tuples_in_a_window_are_ordered_by_timestamp_then_arrival():
    manager = manager_of(count(6), count(6))
    list(manager.add_batch(list("abcdef"), [5, 3, 5, 1, 3, 5]))
    assert windows(manager.advance(9)) == [["d", "b", "e", "a", "c", "f"]]


def test_a_time_length_with_a_count_slide_looks_back_from_the_tuple_that_fired_it():
    # length 20 ms, every 3 tuples     1 2 3    |         15 21 30   |
    manager = feed(manager_of(millis(20), count(3)), [1, 2, 3])
    assert plain(manager.advance(3)) == [(3, [1, 2, 3], [1, 2, 3], [])]
    feed(manager, [15, 21, 30])
    assert plain(manager.advance(30)) == [(30, [15, 21, 30], [15, 21, 30], [1, 2, 3]), [1, 2, 3]]


def test_a_count_length_with_a_time_slide_fires_at_each_end_with_new_tuples():
    # last 3, every 10 ms     1 2 3 4  |10   |20   |30    34 |40
    manager = feed(manager_of(count(3), millis(10)), [1, 2, 3, 4])
    assert plain(manager.advance(10)) == [(10, [2, 3, 4], [2, 3, 4], []), [1]]
    assert plain(manager.advance(30)) == []
    feed(manager, [34])
    assert plain(manager.advance(40)) == [(40, [3, 4, 34], [34], [2]), [2]]


def test_with_repeat_the_last_n_tuples_fire_at_each_end_of_a_gap():
    manager = feed(manager_of(count(3), millis(10), repeat=True), [1])
    assert plain(manager.advance(30)) == [(10, [1], [1], []), (20, [1], [], []), (30, [1], [], [])]


def test_a_slide_longer_than_the_length_skips_and_counts_tuples():
    # (8, 10] of every 10      3    9  |10    11  |12
    manager = feed(manager_of(millis(2), millis(10)), [3, 9])
    assert plain(manager.advance(5)) == [[3]]
    assert plain(manager.advance(10)) == [(10, [9], [9], []), [9]]
    feed(manager, [11])
    assert plain(manager.advance(12)) == [[11]]
    assert (manager.tally.shown, manager.tally.skipped, manager.tally.pending) == (1, 2, 0)


def test_a_tuple_at_the_watermark_is_late_only_if_no_later_window_can_hold_it():
    # (-1, 10], then (9, 20]: length 11, slide 10     1  |10   10 arrives, which 20 holds too   |20
    found = []
    for length in (10, 11):
        executor = WindowedBoltExecutor(WindowConfig.of(length=millis(length), slide=millis(10), timestamp="ts"))
        list(executor.add("first", 10))
        list(executor.turn())
        late = list(executor.add("second", 10))
        found.append((len(late), windows(executor.drain())))
    assert found == [(1, []), (0, [["first", "second"]])]


def test_count_windows_on_processing_time_fire_with_their_last_tuple():
    manager = manager_of(count(2), count(2), timestamp=None)
    assert plain(manager.add("a", 7)) == []
    assert plain(manager.add("b", 9)) == [(9, ["a", "b"], ["a", "b"], []), ["a", "b"]]
    assert plain(manager.tick(50)) == []


def test_time_windows_on_processing_time_keep_the_current_millisecond_open():
    manager = manager_of(millis(10), millis(10), timestamp=None)
    list(manager.add("a", 10))
    assert plain(manager.tick(10)) == []
    list(manager.add("b", 10))
    assert plain(manager.tick(11)) == [(10, ["a", "b"], ["a", "b"], []), ["a", "b"]]


def test_with_lateness_window_a_tuple_inside_a_fired_range_is_new_in_the_next_window_and_expires_once():
    # length 20, slide 10     1  4  |10      3 arrives, below W, before 4      |20      |30
    manager = feed(manager_of(millis(20), millis(10), lateness="window"), [1, 4])
    assert plain(manager.advance(10)) == [(10, [1, 4], [1, 4], [])]
    feed(manager, [3, 11])
    assert plain(manager.advance(20)) == [(20, [1, 3, 4, 11], [3, 11], []), [1, 3, 4]]
    assert (manager.tally.shown, manager.tally.pending) == (4, 0)
    assert plain(manager.advance(30)) == [(30, [11], [], [1, 3, 4]), [11]]


def test_with_lateness_window_a_tuple_that_arrived_after_a_window_is_not_reported_as_expired_from_it():
    # length 10, slide 5     2 9  |10      7 arrives, and is alone at the end 15 with 9 in (5, 15]
    manager = feed(manager_of(millis(10), millis(5), lateness="window"), [2, 9])
    assert plain(manager.advance(10)) == [(5, [2], [2], []), (10, [2, 9], [9], []), [2]]
    feed(manager, [7])
    assert plain(manager.advance(15)) == [(15, [7, 9], [7], [2]), [7, 9]]


# -- drains ------------------------------------------------------------------------------------------------------------


def test_a_drain_fires_the_last_partial_window_of_a_count_slide():
    manager = feed(manager_of(count(3), count(3)), [1, 2, 3, 4])
    assert plain(manager.advance(4)) == [(3, [1, 2, 3], [1, 2, 3], []), [1, 2, 3]]
    assert plain(manager.drain()) == [(4, [4], [4], [1, 2, 3]), [4]]


def test_a_drain_of_a_sliding_count_window_fires_the_next_window_with_the_tuples_present():
    # last 5 every 2: numbers 1..9; at 10 would have come (5, 10]
    manager = feed(manager_of(count(5), count(2)), range(1, 10))
    assert windows(manager.drain()) == [[1, 2], [1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8], [6, 7, 8, 9]]


def test_a_drain_before_any_watermark_advance_fires_everything():
    manager = feed(manager_of(millis(20), millis(10)), [15, 5, 31])
    assert windows(manager.drain()) == [[5], [5, 15], [15], [31], [31]]
    assert manager.tally.pending == 0


def test_a_drained_machine_stays_closed():
    manager = feed(manager_of(count(3), count(3)), [1])
    list(manager.drain())
    assert plain(manager.drain()) == []
    for enter in (lambda: manager.add(2, 2), lambda: manager.add_batch([2], [2]), lambda: manager.advance(9)):
        with pytest.raises(WindowingError, match="was drained"):
            enter()


# -- the windows of Storm's WindowManagerTest, lossless ----------------------------------------------------------------


def test_count_windows_of_5_every_2():
    manager = manager_of(count(5), count(2), timestamp=None)
    fired = [effect for number in range(1, 9) for effect in plain(manager.add(number, number))]
    assert [each for each in fired if isinstance(each, tuple)] == [
        (2, [1, 2], [1, 2], []),
        (4, [1, 2, 3, 4], [3, 4], []),
        (6, [2, 3, 4, 5, 6], [5, 6], [1]),
        (8, [4, 5, 6, 7, 8], [7, 8], [2, 3]),
    ]
    assert [each for each in fired if isinstance(each, list)] == [[1], [2, 3], [4, 5]]


def test_tuples_of_count_windows_expire_with_their_last_window():
    manager = manager_of(count(5), count(5), timestamp=None)
    gone = [len(e.get()) for n in range(100) for e in manager.add(n, n) if isinstance(e, Expired)]
    assert gone == [5] * 20
    assert manager.tally.pending == 0


def test_nothing_expires_before_the_first_watermark():
    for length in (count(5), millis(5)):
        manager = feed(manager_of(length, count(1000)), range(300))
        assert manager.tally.expired == 0
        list(manager.advance(299))
        assert manager.tally.expired > 250 or length == count(5)
        list(manager.drain())
        assert manager.tally.expired == 300


def test_tuples_of_time_windows_expire_without_a_later_window():
    # length 10, slide 10 on processing time:   a at 5, then silence
    manager = manager_of(millis(10), millis(10), timestamp=None)
    list(manager.add("a", 5))
    assert plain(manager.tick(61)) == [(10, ["a"], ["a"], []), ["a"]]
    assert plain(manager.tick(121)) == []


def test_tumbling_count_windows():
    manager = manager_of(count(3), count(3), timestamp=None)
    assert [w for n in range(1, 8) for w in windows(manager.add(n, n))] == [[1, 2, 3], [4, 5, 6]]


def test_event_time_windows_of_20_every_10_with_a_gap():
    #  603 605 607 618 626 636 |631        831..  |834
    manager = feed(manager_of(millis(20), millis(10)), [603, 605, 607, 618, 626, 636])
    assert windows(manager.advance(631)) == [[603, 605, 607], [603, 605, 607, 618], [618, 626]]
    assert plain(manager.advance(609)) == []
    feed(manager, [825, 826, 827])
    assert windows(manager.advance(834)) == [[626, 636], [636], [825, 826, 827]]


def test_count_windows_with_a_time_slide_repeat_only_with_repeat():
    for repeat, expected in ((False, [[1, 2, 3], [4, 5, 6]]), (True, [[1, 2, 3], [4, 5, 6], [4, 5, 6], [4, 5, 6]])):
        manager = manager_of(count(3), millis(10), repeat=repeat or None)
        list(manager.add_batch([1, 2, 3, 4, 5, 6], [603, 605, 607, 618, 618, 619]))
        assert windows(manager.advance(640)) == expected


def test_a_count_trigger_on_event_time():
    # 20 ms every 3 tuples
    manager = manager_of(millis(20), count(3))
    list(manager.add_batch([1, 2, 3, 4, 5, 6], [603, 605, 607, 618, 625, 626]))
    assert windows(manager.advance(631)) == [[1, 2, 3], [3, 4, 5, 6]]
    list(manager.add_batch([7, 8, 9, 10, 11, 12], [665, 666, 668, 680, 685, 687]))
    assert windows(manager.advance(700)) == [[7, 8, 9], [9, 10, 11, 12]]


def test_tumbling_count_windows_of_tuples_with_one_timestamp():
    manager = manager_of(count(2), count(2))
    list(manager.add_batch(range(1, 11), [10] * 10))
    assert windows(manager.advance(11)) == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    assert plain(manager.advance(12)) == []


def test_sliding_count_windows_of_tuples_with_one_timestamp():
    manager = manager_of(count(5), count(2))
    list(manager.add_batch(range(1, 11), [10] * 10))
    expected = [[1, 2], [1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8], [6, 7, 8, 9, 10]]
    assert windows(manager.advance(11)) == expected


def test_an_event_far_ahead_does_not_hide_later_arrivals():
    # Storm ends its scan at a tuple beyond the lag (D2), so it would lose 4, 5 and 7.
    manager = manager_of(millis(10), millis(10), lag=millis(5))
    list(manager.add_batch(["far", 4, 5, 7], [500, 4, 5, 7]))
    assert windows(manager.advance(10)) == [[4, 5, 7]]


# -- the guard ---------------------------------------------------------------------------------------------------------


def test_a_call_before_the_effects_are_taken_is_refused_and_changes_nothing():
    manager = feed(manager_of(millis(5), millis(5)), [1, 7])
    effects = manager.advance(10)
    for enter in (
        lambda: manager.add(11, 11),
        lambda: manager.add_batch([11], [11]),
        lambda: manager.advance(20),
        manager.drain,
        manager.snapshot,
    ):
        with pytest.raises(MachineSpentError, match="were all taken"):
            enter()
    assert plain(effects) == [(5, [1], [1], []), (10, [7], [7], [1]), [1, 7]]
    assert manager.tally.accepted == 2
    assert not manager.closed


def test_an_abandoned_iterator_spends_the_machine():
    manager = feed(manager_of(millis(5), millis(5)), [1, 7])
    effects = manager.advance(10)
    next(effects)
    effects.close()
    with pytest.raises(MachineSpentError, match="restore it"):
        manager.add(11, 11)


def test_a_window_is_stale_when_the_next_effect_is_taken():
    manager = feed(manager_of(millis(5), millis(5)), [1, 7])
    effects = manager.advance(10)
    window = next(effects).window
    kept = window.get()
    assert window.get() == [1]
    next(effects)
    for ask in (window.get, window.get_new, window.get_expired, lambda: len(window), lambda: list(window)):
        with pytest.raises(StaleWindowError, match="copy what you need"):
            ask()
    assert kept == [1]


def test_a_failed_machine_continues_from_its_last_snapshot():
    manager = feed(manager_of(millis(5), millis(5)), [1, 7])
    saved = json.loads(json.dumps(manager.snapshot()))

    def driver() -> None:
        for effect in manager.advance(10):
            if isinstance(effect, Activation) and effect.window.get() == [7]:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver()
    with pytest.raises(MachineSpentError):
        manager.advance(20)
    manager.restore(saved)
    manager.check()
    assert plain(manager.advance(10)) == [(5, [1], [1], []), (10, [7], [7], [1]), [1, 7]]


def test_a_snapshot_of_another_format_is_refused_and_changes_nothing():
    manager = feed(manager_of(millis(5), millis(5)), [1])
    before = manager.snapshot()
    for foreign in ({**before, "format": 99}, {**before, "machine": "Other"}, {}):
        with pytest.raises(SnapshotError, match="a WindowManager snapshot of format 1 was wanted"):
            manager.restore(foreign)
    assert manager.snapshot() == before


def test_a_stateful_bolt_has_the_same_windows():
    manager = StatefulWindowManager(WindowConfig.of(length=count(2), slide=count(2), timestamp="ts"))
    feed(manager, [1, 2])
    assert plain(manager.advance(2)) == [(2, [1, 2], [1, 2], []), [1, 2]]


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_have_separate_windows_that_fire_in_order_of_ends_then_of_first_arrival():
    manager = manager_of(millis(10), millis(10), key="k")
    list(manager.add_batch([1, 2, 3, 4], [15, 14, 5, 4], ["b", "a", "a", "b"]))
    fired = [
        (e.window.end_timestamp, e.window.key, list(e.window.get()))
        for e in manager.advance(20)
        if isinstance(e, Activation)
    ]
    assert fired == [(10, "b", [4]), (10, "a", [3]), (20, "b", [1]), (20, "a", [2])]


@pytest.mark.parametrize("key", [None, "k"])
def test_in_a_batch_on_processing_time_a_skipped_tuple_expires_at_its_own_position(key):
    # the last 1 of every 4: of each key the first three are skipped on arrival
    manager = manager_of(count(1), count(4), timestamp=None, key=key)
    keys = ["a", "b", "a", "a", "a"] if key else None
    expired: list[Any] = []
    for at, effect in manager.add_batch(range(5), [7] * 5, keys):
        if isinstance(effect, Expired):
            expired += [(at + offset * effect.spread, payload) for offset, payload in enumerate(effect.get())]
    assert expired == [(at, at) for at in range(5)]


def test_each_key_has_its_own_count():
    manager = manager_of(count(2), count(2), key="k")
    list(manager.add_batch([1, 2, 3, 4], [1, 2, 3, 4], ["a", "b", "b", "b"]))
    assert windows(manager.advance(9)) == [[2, 3]]
    list(manager.add_batch([5], [9], ["a"]))
    assert windows(manager.advance(10)) == [[1, 5]]


def test_the_state_of_a_key_of_time_windows_is_removed_with_its_last_tuple():
    manager = manager_of(millis(10), millis(10), key="k")
    list(manager.add_batch([1, 2], [5, 25], ["a", "b"]))
    list(manager.advance(10))
    assert [track["key"] for track in manager.snapshot()["tracks"]] == ["b"]


def test_a_key_expires_when_its_last_tuple_is_key_ttl_behind_the_watermark():
    manager = manager_of(count(3), count(3), key="k", key_ttl=millis(10))
    list(manager.add_batch([1, 2], [5, 100], ["a", "b"]))
    assert plain(manager.advance(14)) == []
    assert plain(manager.advance(15)) == [(5, [1], [1], []), [1]]
    assert [track["key"] for track in manager.snapshot()["tracks"]] == ["b"]


@pytest.mark.parametrize("advances", [[20_000_000], [14, 15, 20_000_000], [20, 30, 40]])
def test_a_window_repeats_until_its_key_ends_however_far_the_watermark_goes(advances: list[int]) -> None:
    manager = manager_of(count(2), millis(5), key="k", key_ttl=millis(12), repeat=True, max_repeats=3)
    list(manager.add_batch([1], [4], ["a"]))
    fired = [found for until in advances for found in plain(manager.advance(until))]
    assert fired == [(5, [1], [1], []), (10, [1], [], []), (15, [1], [], []), [1]]
    assert manager.snapshot()["tracks"] == []


def touched_tracks(manager: WindowManager, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record, from now on, the keys with whose state the assigner is called, one entry per call."""
    asked: list[Any] = []
    mix = manager._assigner

    class Asked:
        def __getattr__(self, name: str) -> Any:
            method = getattr(mix, name)
            if name not in ("due", "rest", "horizon", "deadline"):
                return method

            def ask(track: Any, *arguments: Any) -> Any:
                asked.append(track.key)
                return method(track, *arguments)

            return ask

    monkeypatch.setattr(manager, "_assigner", Asked())
    return asked


@pytest.mark.parametrize("restored", [False, True])
def test_an_advance_that_closes_one_of_10_000_keys_does_not_touch_the_others(monkeypatch, restored):
    manager = manager_of(millis(10), millis(10), key="k")
    list(manager.add_batch(range(10_000), [5 if key == 77 else 10**6 + key for key in range(10_000)], range(10_000)))
    list(manager.advance(8))
    if restored:
        manager.restore(manager.snapshot())
    list(manager.advance(9))  # the turn after a restore examines every key, to record its deadline
    asked = touched_tracks(manager, monkeypatch)
    assert windows(manager.advance(10)) == [[77]]
    assert set(asked) == {77}
    assert len(asked) <= 3


def test_an_advance_in_which_nothing_is_due_touches_no_key(monkeypatch):
    manager = manager_of(count(5), count(5), key="k")
    list(manager.add_batch(range(100), range(100), range(100)))
    list(manager.advance(1000))
    asked = touched_tracks(manager, monkeypatch)
    list(manager.advance(2000))
    assert asked == []
    assert manager.next_deadline_ms() is None


@pytest.mark.parametrize(
    "config",
    [
        WindowConfig(length=millis(10), slide=millis(10), timestamp="ts", key=("k",)),
        WindowConfig(length=millis(10), slide=millis(10), key=("k",)),
        WindowConfig(length=count(3), slide=count(3), key=("k",)),
    ],
)
def test_a_deadline_examines_only_keys_with_tuples_since_it_was_asked_last(monkeypatch, config):
    manager = WindowManager(config)
    list(manager.add_batch(range(100), range(100), range(100)))
    deadline = manager.next_deadline_ms()
    asked = touched_tracks(manager, monkeypatch)
    assert manager.next_deadline_ms() == deadline
    assert asked == []
    list(manager.add("late", 99, 7))
    manager.next_deadline_ms()
    assert asked == [7]


# -- gaps and limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slide", [millis(1), count(1)])
@pytest.mark.parametrize("length", [millis(1), millis(7), count(3)])
def test_gaps_of_a_trillion_milliseconds_are_skipped(length, slide):
    manager = feed(manager_of(length, slide), [0, 10**12, -(10**12)])
    fired = plain(manager.advance(2 * 10**12))
    assert 3 <= len(fired) <= 30
    assert manager.tally.shown == 3


def test_more_repeats_than_the_limit_are_an_error_with_the_gap_and_the_fix():
    manager = feed(manager_of(count(3), millis(10), repeat=True, max_repeats=5), [7])
    list(manager.advance(10))
    with pytest.raises(
        RepeatLimitError,
        match=r"more than max_repeats=5 times in one turn: no new tuple in the gap \(10, 70\], slide 10 ms; raise max_repeats",
    ):
        list(manager.advance(70))
    assert windows(feed(manager_of(count(3), millis(10), repeat=True, max_repeats=5), [7]).advance(60)) == [[7]] * 6
    several = feed(manager_of(count(3), millis(10), repeat=True, max_repeats=5), [7, 37, 77, 97])
    with pytest.raises(RepeatLimitError, match=r"no new tuple in the gap \(80, 96\], slide 10 ms"):
        windows(several.advance(500))


def test_the_limit_of_repeats_applies_to_one_turn():
    manager = feed(manager_of(count(3), millis(10), repeat=True, max_repeats=5), [7])
    assert sum(len(windows(manager.advance(watermark))) for watermark in range(10, 1000, 10)) == 99


@pytest.mark.parametrize("slide", [10, 1])
def test_the_memory_of_expired_tuples_is_freed(slide):
    manager = manager_of(count(10), count(slide), timestamp=None)
    for number in range(5000):
        list(manager.add(number, number))
    [track] = manager.snapshot()["tracks"]
    assert len(track["payloads"]) <= 20
    assert len(manager._states[None].buffer.payloads) <= 40  # each key has a queue


def test_expired_tuples_that_are_read_after_they_were_freed_are_refused_with_the_fix():
    manager = manager_of(count(10), count(10), timestamp=None)
    [expired] = [
        effect for number in range(10) for effect in manager.add(number, number) if isinstance(effect, Expired)
    ]
    for number in range(10, 2000):
        list(manager.add(number, number))
    with pytest.raises(
        StaleWindowError, match=r"freed; copy what you need while the effect is at hand: list\(effect\.get"
    ):
        expired.get()


@pytest.mark.parametrize(
    ("length", "slide"), [(millis(100), count(10_000)), (count(10), count(10_000)), (millis(1), millis(100_000))]
)
@pytest.mark.parametrize("restored", [False, True])
def test_tuples_that_expire_before_the_first_window_fires_are_freed(length, slide, restored):
    manager = manager_of(length, slide)
    for watermark in range(300, 12_000, 300):
        plain(feed(manager, range(watermark - 300, watermark)).advance(watermark - 1))
        if restored:
            saved = manager.snapshot()
            manager = manager_of(length, slide)
            manager.restore(saved)
        assert len(manager.snapshot()["tracks"][0]["timestamps"]) < 2_000
        manager.check()
    tally = manager.tally
    plain(manager.drain())
    assert tally.expired == tally.shown + tally.skipped == 11_700


def test_snapshots_have_format_1():
    assert manager_of(count(1), count(1)).snapshot()["format"] == 1


def test_on_processing_time_a_tick_expires_keys_of_a_count_slide_past_their_ttl() -> None:
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(3), slide=count(3), key="k", key_ttl=seconds(1)))
    executor.set_clock(1000)
    assert list(executor.add("a", key="k")) == []
    executor.set_clock(2000)
    assert list(executor.turn()) == []
    executor.set_clock(2001)
    fired, expired = executor.turn()
    assert isinstance(fired, Activation)
    assert isinstance(expired, Expired)
    assert executor.counts()["pending"] == 0


def test_repeats_under_storm_semantics_have_a_limit_too() -> None:
    config = WindowConfig.of(length=count(2), slide=millis(1), timestamp="ts", semantics="storm", max_repeats=5)
    executor = WindowedBoltExecutor(config)
    assert list(executor.add_batch(["a", "b"], [5, 5000])) == []
    with pytest.raises(RepeatLimitError, match=r"more than max_repeats=5 times.*W is 5000"):
        list(executor.turn())
    often = WindowedBoltExecutor(config)
    assert list(often.add_batch(["a", "b", "c"], [5, 11, 17])) == []
    ends = [effect.window.end_timestamp for effect in often.turn() if isinstance(effect, Activation)]
    assert ends == list(range(5, 18))  # five repeats before each new tuple


def test_add_and_add_batch_return_the_same_effects_with_the_positions_of_their_causes() -> None:
    config = WindowConfig.of(length=count(3), slide=count(2))

    def shown(effect: Any) -> Any:
        return effect.window.get() if isinstance(effect, Activation) else repr(effect)

    one, many = WindowManager(config), WindowManager(config)
    singly = [(position, shown(effect)) for position, row in enumerate("abcde") for effect in one.add(row, 0)]
    assert [(position, shown(effect)) for position, effect in many.add_batch("abcde", [0] * 5)] == singly
    assert [position for position, effect in singly if isinstance(effect, list)] == [1, 3]


class Idle:
    """The keys and tuples of a manager as a driver's store has them."""

    def __init__(self, manager: WindowManager) -> None:
        self.states = {state["key"]: state for state in manager.snapshot(events=False)["tracks"]}
        self.deadlines = {state.key: state.deadline for state in manager.loaded()}
        columns = ("sequences", "timestamps", "payloads")
        self.rows = [
            (state["key"], *row)
            for state in manager.snapshot()["tracks"]
            for row in zip(*map(state.__getitem__, columns), strict=True)
        ]

    def of(self, keys: Iterable[Any]) -> StoredKeys | None:
        found = [key for key in dict.fromkeys(keys) if key in self.states]
        states = [self.states.pop(key) for key in found]
        return StoredKeys(states, [self.deadlines[key] for key in found]) if found else None

    def due(self, until: int | None) -> StoredKeys | None:
        return self.of([key for key in self.states if until is None or self.deadlines[key] <= until])

    def tuples(self, keys: Sequence[Any]) -> StoredTuples | None:
        found = [row for row in self.rows if row[0] in keys]
        self.rows = [row for row in self.rows if row[0] not in keys]
        whose, sequences, timestamps, payloads = zip(*found, strict=True)
        return whose, sequences, timestamps, payloads


LAZY: list[dict[str, Any]] = [
    {"length": millis(10), "slide": millis(10)},
    {"length": millis(40), "slide": millis(10)},
    {"length": millis(3), "slide": millis(10)},
    {"length": millis(20), "slide": millis(10), "lateness": "window"},
]


@pytest.mark.parametrize("columnar", [None, "numpy"])
@pytest.mark.parametrize("options", LAZY)
@given(
    drawn=st.lists(st.lists(st.tuples(st.integers(0, 45), st.sampled_from("abc")), max_size=5), max_size=7),
    stored=st.integers(0, 3),
)
def test_a_machine_whose_tuples_are_loaded_when_a_window_is_due_equals_one_that_has_them(
    options: dict[str, Any], columnar: str | None, drawn: list[list[tuple[int, str]]], stored: int
) -> None:
    config = WindowConfig.of(timestamp="ts", key="k", lag=millis(9), columnar=columnar, **options)

    def machine() -> WindowManager:
        rows = columnar is None
        return WindowManager(config, sequenced=True) if rows else ColumnarWindowManager(config, sequenced=True)

    def shown(effect: Any) -> Any:
        if not isinstance(effect, Activation):
            return repr(effect), [row["id"] for row in effect.get()]
        parts = effect.window.get(), effect.window.get_new(), effect.window.get_expired()
        return effect.window.key, effect.window.end_timestamp, *(_ids(part) for part in parts)

    whole, lazy, largest, id = machine(), machine(), 0, 0
    for number, batch in enumerate([*drawn, None]):
        if number == stored:
            lazy.restore(whole.snapshot(events=False) | {"tracks": []})
            lazy.idle = Idle(whole)
        low = whole.late_below() or 0
        rows = [{"id": id + at, "ts": low + ts, "k": key} for at, (ts, key) in enumerate(batch or [])]
        stamps, keys = [row["ts"] for row in rows], [row["k"] for row in rows]
        id, largest = id + len(rows), max([largest, *stamps])
        effects = []
        for each in (whole, lazy) if number >= stored else (whole,):
            list(each.add_batch(rows, stamps, keys))
            effects.append([shown(e) for e in (each.drain() if batch is None else each.advance(largest - 9))])
            each.check()
            if number >= stored:
                waiting = [row[1] for row in lazy.idle.rows] if each is lazy else []
                assert sorted([*each.held_sequences(), *waiting]) == sorted(whole.held_sequences())
        assert effects[0] == effects[-1]
        if number >= stored:
            numbers = {state.key: (*numbers_of(state), state.deadline) for state in lazy.loaded()}
            assert numbers.items() <= {s.key: (*numbers_of(s), s.deadline) for s in whole.loaded()}.items()


def _ids(part: Any) -> list[int]:
    return part["id"].tolist() if isinstance(part, dict) else [row["id"] for row in part]


def test_a_single_tuple_of_an_idle_key_is_added_to_the_tuples_that_are_stored() -> None:
    config = WindowConfig(length=millis(10), slide=millis(10), timestamp="ts", key=("k",))
    whole, lazy = WindowManager(config, sequenced=True), WindowManager(config, sequenced=True)
    list(whole.add_batch(["a1", "b1"], [1, 2], ["a", "b"]))
    lazy.restore(whole.snapshot(events=False) | {"tracks": []})
    lazy.idle = Idle(whole)
    for manager in (whole, lazy):
        for payload, key in (("a2", "a"), ("c1", "c"), ("a3", "a")):
            list(manager.add(payload, 3, key))
        fired = [(e.window.key, e.window.get()) for e in manager.advance(10) if isinstance(e, Activation)]
        assert fired == [("a", ["a1", "a2", "a3"]), ("b", ["b1"]), ("c", ["c1"])]


@given(st.lists(st.lists(st.integers(0, 6)).map(sorted), max_size=6))
def test_the_firings_of_all_queues_come_in_the_order_of_a_stable_merge(references: list[list[int]]) -> None:
    def queues() -> list[Iterator[Firing]]:
        return [iter([(each, at, at + 1) for at, each in enumerate(queue)]) for queue in references]

    numbered = [[(number, firing) for firing in queue] for number, queue in enumerate(queues())]
    assert list(by_reference(queues())) == list(merge(*numbered, key=lambda each: each[1][0]))


def test_a_firing_is_computed_when_the_one_before_it_of_its_queue_has_been_used() -> None:
    computed: list[tuple[str, int]] = []

    def queue(name: str) -> Iterator[Firing]:
        for reference in (1, 1, 3):
            computed.append((name, reference))
            yield reference, 0, 1

    found = by_reference([queue("a"), queue("b")])
    next(found)
    assert computed == [("a", 1), ("b", 1)]
    next(found)
    assert computed == [("a", 1), ("b", 1), ("a", 1)]
    next(found)
    assert computed == [("a", 1), ("b", 1), ("a", 1), ("a", 3)]
