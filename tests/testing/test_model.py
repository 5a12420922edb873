"""The slow model checked by hand-computed examples of docs/concepts/windows.md, sentence by sentence, and by its invariants."""

import math
from typing import Any

import pytest
from hypothesis import given, settings

from tests.windows.lossless_model import ModelResult, run_model
from windowing.testing.strategies import cases

TURN, TICK, DRAIN = ["watermark"], ["tick"], ["drain"]


def count(n: int) -> dict[str, int]:
    return {"count": n}


def ms(n: int) -> dict[str, int]:
    return {"duration_ms": n}


def at(timestamp: int, id: int, stream: str = "s", **options: Any) -> list[Any]:
    return ["tuple", stream, id, timestamp, *([options] if options else [])]


def adds(*ids: int) -> list[list[Any]]:
    return [["add", id] for id in ids]


def result_of(
    length: dict[str, int], slide: dict[str, int], ops: list[Any], lag: int | None = 0, streams: str = "s", **extra: Any
) -> ModelResult:
    """A case on event time, or with lag=None on processing time."""
    event_time = None if lag is None else {"lag_ms": lag, "streams": list(streams)}
    case = {"length": length, "slide": slide, "event_time": event_time, "clock_start_ms": 0, "semantics": "lossless"}
    return run_model({**case, "ops": ops, **extra})


def events_of(*args: Any, **options: Any) -> list[list[Any]]:
    return result_of(*args, **options).events


def windows_of(*args: Any, **options: Any) -> list[tuple[int, list[int]]]:
    """(reference, ids) of each firing."""
    return [(event[5], event[2]) for event in events_of(*args, **options) if event[1] == "activate"]


def test_a_window_excludes_its_start_and_includes_its_end():
    ops = [at(0, 1), at(1, 2), at(10, 3), at(11, 4), TURN]
    assert windows_of(ms(10), ms(10), ops) == [(0, [1]), (10, [2, 3])]


def test_ends_are_multiples_of_the_slide_before_1970_too():
    assert windows_of(ms(10), ms(10), [at(-10, 1), at(-7, 2), at(0, 3), TURN]) == [(-10, [1]), (0, [2, 3])]


def test_an_offset_shifts_the_ends():
    ops = [at(-7, 1), at(-6, 2), at(3, 3), at(4, 4), at(13, 5), TURN]
    assert windows_of(ms(10), ms(10), ops, offset_ms=3) == [(-7, [1]), (3, [2, 3]), (13, [4, 5])]


def test_an_empty_window_never_fires_and_a_gap_is_skipped():
    ops = [at(1, 1), TURN, at(10**12, 2), TURN]
    assert events_of(ms(20), ms(10), ops) == [
        [3, "activate", [1], [1], [], 10],
        [3, "activate", [1], [], [], 20],
        [3, "activate", [2], [2], [1], 10**12],
        [3, "expire", [1]],
    ]


def test_tuples_in_a_window_are_ordered_by_timestamp_then_arrival():
    ops = [at(5, 1), at(3, 2), at(5, 3), at(3, 4), at(10, 5), TURN]
    assert windows_of(ms(10), ms(10), ops) == [(10, [2, 4, 1, 3, 5])]


def test_there_is_no_watermark_until_every_declared_stream_has_a_tuple():
    ops = [at(10, 1, "a"), TURN, at(12, 2, "b"), TURN]
    assert result_of(ms(10), ms(10), ops[:2], streams="ab").watermark == -math.inf
    assert events_of(ms(10), ms(10), ops, streams="ab") == [[3, "activate", [1], [1], [], 10], [3, "expire", [1]]]


def test_the_watermark_is_the_minimum_over_streams_of_the_largest_timestamp_minus_the_lag():
    assert result_of(ms(10), ms(10), [at(30, 1, "a"), at(20, 2, "b"), at(19, 3, "b"), TURN], 5, "ab").watermark == 15


def test_a_tuple_is_judged_by_the_watermark_of_the_last_turn():
    ops = [at(20, 1), at(9, 2), TURN, at(14, 3), at(15, 4)]
    assert result_of(ms(10), ms(10), ops, 5).late_reasons == {3: "late"}


def test_the_watermark_never_falls_and_a_turn_that_does_not_advance_it_does_nothing():
    ops = [at(10, 1, source=1), TURN, at(10, 2, source=1), at(5, 3, source=2), TURN]
    result = result_of(count(1), count(1), ops, source=True)
    assert result.watermark == 10
    assert result.events == [[1, "activate", [1], [1], [], 10], [1, "expire", [1]], [3, "late", 3]]


def test_with_source_the_watermark_is_the_minimum_over_the_pairs_of_stream_and_source():
    ops = [at(10, 1, "a", source=1), at(8, 2, "a", source=2), TURN, at(9, 3, "b", source=1), TURN]
    assert result_of(ms(10), ms(10), ops[:3], streams="ab", source=True).watermark == -math.inf
    assert result_of(ms(10), ms(10), ops, streams="ab", source=True).watermark == 8
    assert result_of(ms(10), ms(10), ops, streams="ab").watermark == 9


def test_an_idle_stream_stops_holding_back_the_watermark_and_if_all_are_idle_it_stays():
    ops = [at(3, 1, "a"), ["clock", 4], at(30, 2, "b"), ["clock", 9], TURN]
    assert result_of(ms(10), ms(10), ops, streams="ab", idle_timeout_ms=10).watermark == 3
    assert result_of(ms(10), ms(10), ops, streams="ab", idle_timeout_ms=9).watermark == 30
    assert result_of(ms(10), ms(10), [at(3, 1), TURN, at(9, 2), ["clock", 50], TURN], idle_timeout_ms=10).watermark == 3


def test_a_stream_without_any_tuple_is_idle_since_the_clock_started():
    ops = [["clock", 9], at(30, 1, "a"), TURN]
    assert result_of(ms(10), ms(10), ops, streams="ab", idle_timeout_ms=10).watermark == -math.inf
    assert result_of(ms(10), ms(10), ops, streams="ab", idle_timeout_ms=9).watermark == 30


def test_a_tuple_too_far_ahead_of_the_clock_never_advances_the_watermark():
    result = result_of(ms(10), ms(10), [at(5, 1), at(6, 2), TURN], max_future_ms=5)
    assert (result.watermark, result.late_reasons) == (5, {2: "future"})


def test_a_future_tuple_does_not_keep_its_stream_from_becoming_idle():
    ops = [at(1, 1, "a"), ["clock", 10], at(99, 2, "a"), at(8, 3, "b"), TURN]
    assert result_of(ms(10), ms(10), ops, streams="ab", idle_timeout_ms=10, max_future_ms=5).watermark == 8


def test_at_the_watermark_a_tuple_whose_tumbling_window_has_fired_is_late():
    assert events_of(ms(10), ms(10), [at(10, 1), TURN, at(10, 2)])[-1] == [2, "late", 2]


def test_at_the_watermark_a_tuple_of_a_sliding_window_is_accepted_for_later_windows():
    assert events_of(ms(10), ms(5), [at(10, 1), TURN, at(10, 2), at(15, 3), TURN]) == [
        [1, "activate", [1], [1], [], 10],
        [4, "activate", [1, 2, 3], [2, 3], [], 15],
        [4, "expire", [1, 2]],
    ]


def test_with_lateness_window_a_tuple_is_late_once_all_windows_that_can_hold_it_have_fired():
    ops = [at(17, 1), TURN, at(10, 2), at(11, 3), at(20, 4), TURN]
    assert result_of(ms(10), ms(10), ops, lateness="watermark").late_reasons == {2: "late", 3: "late"}
    assert result_of(ms(10), ms(10), ops, lateness="window").late_reasons == {2: "late"}
    assert windows_of(ms(10), ms(10), ops, lateness="window") == [(20, [3, 1, 4])]


def test_with_lateness_window_a_tuple_that_no_window_can_hold_is_late_below_the_watermark():
    ops = [at(5, 1), TURN, at(4, 2), at(5, 3)]
    assert result_of(ms(3), ms(10), ops, lateness="window").late_reasons == {2: "late"}


def test_the_reason_closed_precedes_future_and_future_precedes_late():
    ops = [at(5, 1), TURN, at(99, 2), at(4, 3), DRAIN, at(99, 4), at(4, 5)]
    late_reasons = result_of(ms(10), ms(10), ops, max_future_ms=9).late_reasons
    assert late_reasons == {2: "future", 3: "late", 4: "closed", 5: "closed"}


def test_count_windows_number_tuples_in_timestamp_order():
    assert windows_of(count(2), count(2), [at(7, 1), at(3, 2), at(9, 3), TURN]) == [(7, [2, 1])]


def test_a_tuple_at_the_watermark_gets_its_number_at_the_next_advance():
    ops = [at(5, 1), TURN, at(5, 2), TURN, at(6, 3), TURN]
    assert events_of(count(2), count(2), ops) == [[5, "activate", [1, 2], [1, 2], [], 5], [5, "expire", [1, 2]]]


def test_count_windows_with_a_count_slide_expire_tuples_that_the_next_window_cannot_hold():
    assert events_of(count(3), count(2), adds(1, 2, 3, 4), lag=None) == [
        [1, "activate", [1, 2], [1, 2], [], 0],
        [1, "expire", [1]],
        [3, "activate", [2, 3, 4], [3, 4], [1], 0],
        [3, "expire", [2, 3]],
    ]


def test_count_windows_with_a_longer_count_slide_skip_tuples_of_the_gap():
    result = result_of(count(1), count(3), adds(1, 2, 3), lag=None)
    happened = [event[:3] for event in result.events]
    assert happened == [[0, "expire", [1]], [1, "expire", [2]], [2, "activate", [3]], [2, "expire", [3]]]
    assert result.skipped == {1, 2}


def test_duration_windows_with_a_count_slide_hold_the_last_duration_before_their_nth_tuple():
    ops = [at(1, 1), at(2, 2), at(8, 3), at(9, 4), at(9, 5), TURN]
    assert events_of(ms(5), count(2), ops) == [
        [5, "activate", [1, 2], [1, 2], [], 2],
        [5, "activate", [3, 4], [3, 4], [1, 2], 9],
        [5, "expire", [1, 2]],
    ]


def test_count_windows_with_a_duration_slide_fire_only_with_new_tuples():
    ops = [at(1, 1), at(2, 2), at(10, 3), TURN, at(35, 4), TURN, at(40, 5), TURN]
    result = result_of(count(2), ms(10), ops)
    assert result.events == [
        [3, "activate", [2, 3], [2, 3], [], 10],
        [3, "expire", [1]],
        [7, "activate", [4, 5], [4, 5], [2, 3], 40],
        [7, "expire", [2, 3]],
    ]
    assert result.skipped == {1}


def test_count_windows_with_a_duration_slide_fire_for_a_tuple_at_a_passed_end():
    ops = [at(10, 1), TURN, at(10, 2), at(20, 3), TURN]
    assert windows_of(count(2), ms(10), [*ops[:3], at(25, 4), TURN]) == [(10, [1]), (20, [1, 2])]
    assert windows_of(count(2), ms(10), ops) == [(10, [1]), (20, [2, 3])]


def test_with_repeat_a_window_fires_at_every_end_of_a_gap():
    ops = [at(1, 1), at(2, 2), at(10, 3), TURN, at(35, 4), TURN, DRAIN]
    assert events_of(count(2), ms(10), ops, repeat=True) == [
        [3, "activate", [2, 3], [2, 3], [], 10],
        [3, "expire", [1]],
        [5, "activate", [2, 3], [], [], 20],
        [5, "activate", [2, 3], [], [], 30],
        [6, "activate", [3, 4], [4], [2], 40],
        [6, "expire", [2, 3, 4]],
    ]


def test_a_drain_repeats_only_until_a_fired_window_had_every_tuple_in_range():
    ops = [at(1, 1), at(21, 2), DRAIN]
    assert windows_of(count(2), ms(10), ops, repeat=True) == [(10, [1]), (20, [1]), (30, [1, 2])]
    assert windows_of(count(2), ms(10), [at(10, 1), TURN, DRAIN], repeat=True) == [(10, [1])]


def test_more_repeats_than_max_repeats_are_an_error():
    ops = [at(1, 1), at(40, 2), TURN]
    assert len(windows_of(count(2), ms(10), ops, repeat=True, max_repeats=2)) == 4
    with pytest.raises(ValueError, match="max_repeats"):
        events_of(count(2), ms(10), ops, repeat=True, max_repeats=1)
    with pytest.raises(ValueError, match="max_repeats"):
        events_of(count(2), ms(10), [at(1, 1), at(10**15, 2), TURN], repeat=True)


def test_the_repeats_of_each_key_are_limited_separately_as_in_the_engine():
    ops = [*[at(n, n, key=key) for n, key in enumerate("abc", 1)], at(40, 4, key="a"), TURN]
    fired = windows_of(count(2), ms(10), ops, repeat=True, max_repeats=3, keyed=True)
    assert fired == [(10 * end, [n]) for end in (1, 2, 3) for n in (1, 2, 3)] + [(40, [1, 4]), (40, [2]), (40, [3])]
    with pytest.raises(ValueError, match="max_repeats"):
        events_of(count(2), ms(10), ops, repeat=True, max_repeats=2, keyed=True)


def test_expired_includes_tuples_that_expired_while_a_window_was_empty():  # D14
    assert events_of(ms(10), ms(10), [at(5, 1), at(25, 2), TURN, at(30, 3), TURN]) == [
        [2, "activate", [1], [1], [], 10],
        [2, "expire", [1]],
        [4, "activate", [2, 3], [2, 3], [1], 30],
        [4, "expire", [2, 3]],
    ]


def test_a_tuple_that_no_window_can_hold_is_skipped_and_expires_at_the_watermark():
    result = result_of(ms(3), ms(10), [at(5, 1), at(7, 2), at(8, 3), TURN])
    assert result.events == [[3, "expire", [1, 2]]]
    assert (result.skipped, result.pending) == ({1, 2}, {3})


def test_a_drain_of_a_count_slide_fires_the_last_partial_window():
    assert events_of(count(3), count(3), [*adds(1, 2, 3, 4), DRAIN], lag=None) == [
        [2, "activate", [1, 2, 3], [1, 2, 3], [], 0],
        [2, "expire", [1, 2, 3]],
        [4, "activate", [4], [4], [1, 2, 3], 0],
        [4, "expire", [4]],
    ]


def test_a_drain_fires_the_regular_windows_first():
    assert windows_of(count(3), count(2), [at(5, 1), at(4, 2), at(6, 3), DRAIN]) == [(5, [2, 1]), (6, [1, 3])]
    assert windows_of(ms(2), count(2), [at(4, 1), at(5, 2), at(6, 3), DRAIN]) == [(5, [1, 2]), (6, [2, 3])]


def test_a_drain_does_not_fire_an_empty_partial_window():
    assert events_of(count(1), count(3), [*adds(1), DRAIN], lag=None) == [[0, "expire", [1]]]


def test_a_drain_fires_every_window_that_is_not_empty():
    assert events_of(ms(20), ms(10), [at(5, 1), at(10**12, 2), DRAIN, DRAIN]) == [
        [2, "activate", [1], [1], [], 10],
        [2, "activate", [1], [], [], 20],
        [2, "activate", [2], [2], [1], 10**12],
        [2, "activate", [2], [], [], 10**12 + 10],
        [2, "expire", [1, 2]],
    ]


def test_on_processing_time_a_tick_sets_the_watermark_to_the_clock_minus_1_ms():
    ops = [["clock", 10], ["add", 1], TICK, ["clock", 11], ["add", 2], TICK]
    assert events_of(ms(10), ms(10), ops, lag=None) == [[5, "activate", [1], [1], [], 10], [5, "expire", [1]]]


def test_on_processing_time_the_clock_never_falls_and_nothing_is_late():
    ops = [["clock", 10], TICK, ["clock", 3], ["add", 1], ["clock", 11], TICK]
    assert windows_of(ms(10), ms(10), ops, lag=None) == [(10, [1])]


def test_windows_of_one_turn_fire_in_order_of_end_then_first_arrival_of_the_key():
    ops = [at(9, 1, key="b"), at(5, 2, key="a"), at(15, 3, key="a"), at(12, 4, key="b"), at(20, 5, key="b"), TURN]
    assert events_of(ms(10), ms(10), ops, keyed=True) == [
        [5, "activate", [1], [1], [], 10],
        [5, "activate", [2], [2], [], 10],
        [5, "activate", [4, 5], [4, 5], [1], 20],
        [5, "activate", [3], [3], [2], 20],
        [5, "expire", [1, 4, 5, 2, 3]],
    ]


def test_the_state_of_a_key_without_tuples_is_removed():
    ops = [at(10, 1, key="a"), at(11, 2, key="b"), TURN, at(12, 3, key="a"), at(20, 4, key="b"), TURN]
    assert events_of(ms(10), ms(10), ops, keyed=True)[2:] == [
        [5, "activate", [2, 4], [2, 4], [], 20],
        [5, "activate", [3], [3], [], 20],
        [5, "expire", [2, 4, 3]],
    ]


def test_a_key_of_count_windows_keeps_its_numbers_and_its_last_window():
    ops = [["add", id, {"key": key}] for id, key in enumerate("abaabba", start=1)]
    shown = [event[2:5] for event in events_of(count(2), count(2), ops, None, keyed=True) if event[1] == "activate"]
    assert shown == [[[1, 3], [1, 3], []], [[2, 5], [2, 5], []], [[4, 7], [4, 7], [1, 3]]]


def test_a_key_past_its_ttl_is_drained_and_starts_again_from_zero():
    ops = [at(1, 1, key="a"), at(5, 2, key="b"), TURN, at(11, 3, key="b"), TURN]
    ops += [at(12, 4, key="a"), at(13, 5, key="a"), TURN]
    assert events_of(count(2), count(2), ops, keyed=True, key_ttl_ms=10) == [
        [4, "activate", [1], [1], [], 1],
        [4, "activate", [2, 3], [2, 3], [], 11],
        [4, "expire", [1, 2, 3]],
        [7, "activate", [4, 5], [4, 5], [], 13],
        [7, "expire", [4, 5]],
    ]


def test_the_drain_of_a_key_past_its_ttl_fires_a_window_that_ends_after_the_watermark():
    ops = [at(10, 1, key="a"), at(20, 2, key="b"), TURN]
    assert events_of(count(2), ms(100), ops, keyed=True, key_ttl_ms=5) == [
        [2, "activate", [1], [1], [], 100],
        [2, "expire", [1]],
    ]


def offered(case: dict[str, Any]) -> dict[int, Any]:
    """The key of each tuple of a case."""
    tuples = [op[{"add": 1, "tuple": 2}[op[0]] :] for op in case["ops"] if op[0] in ("add", "tuple")]
    return {op[0]: op[-1].get("key") if isinstance(op[-1], dict) else None for op in tuples}


def invariant(test: Any) -> Any:
    """A property of all lossless cases, with any optional fields."""
    fields = ("keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
    return settings(deadline=None)(given(cases(**dict.fromkeys(fields)))(test))


@invariant
def test_every_tuple_is_shown_pending_late_or_skipped(case):
    result = run_model(case)
    parts = [result.shown, result.pending, set(result.late_reasons), result.skipped]
    assert set().union(*parts) == set(offered(case))
    assert sum(map(len, parts)) == len(offered(case))
    assert not (DRAIN in case["ops"] and result.pending)


@invariant
def test_previous_minus_expired_plus_new_equals_current(case):
    keys, previous, gone = offered(case), {}, set()
    for _, kind, ids, *rest in run_model(case).events:
        if kind == "activate":
            (key,), (new, expired, _) = {keys[id] for id in ids}, rest
            last = previous.get(key, [])
            if case.get("keyed") and not expired and new == ids and set(last) <= gone:
                last = []  # the key was removed and starts again
            assert expired == [id for id in last if id not in ids]
            assert new == [id for id in ids if id not in last]
            previous[key] = ids
        elif kind == "expire":
            gone |= set(ids)


@invariant
def test_each_accepted_tuple_expires_once_after_its_last_window(case):
    result, expired = run_model(case), []
    for _, kind, ids, *_ in result.events:
        if kind == "activate":
            assert not set(expired) & set(ids)
        elif kind == "expire":
            expired += ids
    assert len(expired) == len(set(expired))
    accepted = set(offered(case)) - set(result.late_reasons)
    assert set(expired) == accepted if DRAIN in case["ops"] else set(expired) <= accepted


@invariant
def test_a_tuple_is_skipped_only_by_the_definition_of_the_window(case):
    skipped = run_model(case).skipped
    match case["length"], case["slide"]:
        case {"duration_ms": length}, {"duration_ms": slide}:
            of_id = {op[2]: op[3] - case.get("offset_ms", 0) for op in case["ops"] if op[0] == "tuple"}
            assert not skipped or slide > length
            assert all((of_id[id] + ahead) % slide for id in skipped & set(of_id) for ahead in range(length))
        case {"count": length}, {"count": slide}:
            assert not skipped or slide > length
        case _, {"count": slide}:
            assert not skipped or slide > 1
