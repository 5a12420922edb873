"""The watermark generator, lossless (docs/concepts/windows.md) and with Storm's semantics (its WaterMarkEventGeneratorTest)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError, SnapshotError
from windowing.windows.config import Semantics
from windowing.windows.watermark import WaterMarkEventGenerator


def storm(*streams: str, lag_ms: int = 5) -> WaterMarkEventGenerator:
    return WaterMarkEventGenerator(streams or ["a"], lag_ms, Semantics.STORM)


def tracked(generator: WaterMarkEventGenerator, *timestamps: int, stream: str = "a", **more: Any) -> list[bool]:
    return [generator.track(stream, timestamp, **more) for timestamp in timestamps]


# -- Storm ------------------------------------------------------------------------------------------------------------


def test_storm_one_stream():
    generator = storm()
    tracked(generator, 100, 110)
    assert generator.turn() == 105


def test_storm_one_stream_out_of_order():
    generator = storm()
    tracked(generator, 100, 110, 104)
    assert generator.turn() == 105


def test_storm_waits_for_both_streams():
    generator = storm("a", "b")
    tracked(generator, 100, 110)
    assert generator.turn() is None
    tracked(generator, 95, 98, stream="b")
    assert generator.turn() == 93


def test_storm_without_tuples_has_no_watermark():
    generator = storm()
    assert generator.turn() is None
    assert generator.watermark == 0


def test_storm_late_tuple():
    generator = storm()
    assert tracked(generator, 100, 110) == [True, True]
    assert generator.turn() == 105
    assert tracked(generator, 105, 104) == [True, False]
    assert generator.turn() is None
    assert tracked(generator, 115) == [True]
    assert generator.turn() == 110


def test_r6_storm_judges_every_tuple_before_1970_as_late():
    assert tracked(storm(), -1, 0) == [False, True]


def test_r11_in_storm_an_idle_stream_stops_the_watermark():
    generator = storm("a", "b", lag_ms=0)
    tracked(generator, 1)
    tracked(generator, 1, stream="b")
    assert generator.turn(now_ms=0) == 1
    tracked(generator, 1_000_000)
    assert generator.turn(now_ms=10**9) is None


def test_storm_semantics_refuse_sources_and_idle_timeouts():
    with pytest.raises(ConfigError, match="semantics"):
        WaterMarkEventGenerator(["a"], semantics=Semantics.STORM, sourced=True)
    with pytest.raises(ConfigError, match="semantics"):
        WaterMarkEventGenerator(["a"], semantics=Semantics.STORM, idle_timeout_ms=5)


# -- lossless ---------------------------------------------------------------------------------------------------------


def test_there_is_no_watermark_until_every_declared_stream_has_a_tuple():
    generator = WaterMarkEventGenerator(["a", "b"])
    assert tracked(generator, 50, -(10**12)) == [True, True]
    assert generator.turn() is None
    assert generator.watermark is None
    tracked(generator, -7, stream="b")
    assert generator.turn() == -7


def test_the_watermark_changes_only_in_a_turn():
    generator = WaterMarkEventGenerator(["a"])
    tracked(generator, 10)
    generator.turn()
    assert tracked(generator, 100, 10, 9) == [True, True, False]
    assert generator.watermark == 10
    assert generator.turn() == 100
    assert tracked(generator, 99, 100) == [False, True]


def test_the_watermark_is_the_smallest_of_the_largest_timestamps_minus_the_lag():
    generator = WaterMarkEventGenerator(["a", "b"], lag_ms=3)
    tracked(generator, 10, 30, 20)
    tracked(generator, 15, 12, stream="b")
    assert generator.turn() == 12
    assert generator.turn() is None
    tracked(generator, 16, stream="b")
    assert generator.turn() == 13


def test_an_undeclared_stream_is_refused_with_the_declared_ones():
    generator = WaterMarkEventGenerator(["a", "b"])
    with pytest.raises(ConfigError, match=r"'c'.*'a', 'b'"):
        generator.track("c", 1)
    generator.check()


def test_a_generator_without_streams_is_refused():
    with pytest.raises(ConfigError, match="at least one"):
        WaterMarkEventGenerator([])


def test_each_source_of_a_stream_is_tracked_separately():
    generator = WaterMarkEventGenerator(["a", "b"], sourced=True)
    tracked(generator, 10, source=0)
    tracked(generator, 20, source=1)
    assert generator.turn() is None, "b has shown nothing"
    tracked(generator, 90, stream="b", source="x")
    assert generator.turn() == 10
    tracked(generator, 15, source=0)
    assert generator.turn() == 15
    tracked(generator, 3, source=2)  # late, and a new pair: the watermark does not fall because of it
    assert generator.turn() is None
    assert generator.watermark == 15


def test_without_sourced_all_sources_are_one():
    generator = WaterMarkEventGenerator(["a"])
    tracked(generator, 10, source=0)
    tracked(generator, 20, source=1)
    assert generator.turn() == 20


def test_a_stream_without_tuples_holds_back_the_watermark_until_its_idle_timeout():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    tracked(generator, 10, now_ms=0)
    tracked(generator, 5, stream="b", now_ms=0)
    assert generator.turn(now_ms=0) == 5
    tracked(generator, 50, now_ms=60)
    assert generator.turn(now_ms=99) is None
    assert generator.turn(now_ms=100) == 50


def test_a_stream_that_becomes_active_again_holds_back_the_watermark_which_never_falls():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    tracked(generator, 50, now_ms=90)
    tracked(generator, 5, stream="b", now_ms=0)
    assert generator.turn(now_ms=100) == 50
    assert tracked(generator, 6, stream="b", now_ms=110) == [False]
    tracked(generator, 70, now_ms=110)
    assert generator.turn(now_ms=110) is None
    assert generator.watermark == 50
    tracked(generator, 60, stream="b", now_ms=111)
    assert generator.turn(now_ms=111) == 60


def test_if_all_streams_are_idle_the_watermark_stays():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    tracked(generator, 50, now_ms=0)
    tracked(generator, 5, stream="b", now_ms=0)
    assert generator.turn(now_ms=500) is None
    assert generator.watermark is None


def test_a_stream_without_any_tuple_is_idle_since_the_first_clock():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    assert generator.turn(now_ms=1000) is None
    tracked(generator, 7, now_ms=1090)
    assert generator.turn(now_ms=1099) is None
    assert generator.turn(now_ms=1100) == 7


def test_without_a_clock_no_stream_becomes_idle():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    tracked(generator, 7)
    assert generator.turn() is None
    assert generator.turn(now_ms=5000) is None, "5000 is the first clock"
    tracked(generator, 8, now_ms=5099)
    assert generator.turn() is None
    assert generator.turn(now_ms=5100) == 8


def test_a_clock_that_goes_back_makes_no_stream_idle():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=100)
    tracked(generator, 7, now_ms=1000)
    tracked(generator, 5, stream="b", now_ms=1000)
    tracked(generator, 9, now_ms=10)
    assert generator.turn(now_ms=10) == 5
    assert generator.turn(now_ms=1099) is None
    assert generator.turn(now_ms=1100) is None, "both are idle now, a was last seen at 1000"


def test_an_idle_source_does_not_hold_back_its_stream():
    generator = WaterMarkEventGenerator(["a"], idle_timeout_ms=100, sourced=True)
    tracked(generator, 5, source="dead", now_ms=0)
    tracked(generator, 50, source="alive", now_ms=50)
    assert generator.turn(now_ms=99) == 5
    assert generator.turn(now_ms=100) == 50


def test_idle_sources_that_the_watermark_has_passed_are_forgotten_and_may_come_again():
    generator = WaterMarkEventGenerator(["a", "b"], lag_ms=5, idle_timeout_ms=100, sourced=True)
    generator.track("b", 1_000_000, "ahead", 0)
    sizes = []
    for session in range(1_000):
        generator.track("a", 10 * session, f"session {session}", 10 * session)
        generator.turn(10 * session)
        generator.check()
        sizes.append(len(generator.snapshot()["marks"]))
    assert max(sizes) <= 13
    assert (generator.watermark, generator.turn(1_000_000)) == (9_990 - 100 + 10 - 5, None), "all are idle"
    assert {stream for stream, *_ in generator.snapshot()["marks"]} == {"a", "b"}
    generator.track("a", 9_000, "session 3", 1_000_000)
    assert (generator.turn(1_000_000), generator.track("a", 9_994, "session 3", 1_000_000)) == (None, True)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["track", "turn"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(-50, 50),
        st.sampled_from([None, 0, 1, "x"]),
        st.none() | st.integers(0, 300),
    ),
    max_size=60,
)


@given(
    moves=MOVES,
    cut=st.integers(0, 60),
    lag_ms=st.integers(0, 20),
    sourced=st.booleans(),
    idle_timeout_ms=st.none() | st.integers(1, 100),
)
def test_the_generator_equals_the_model_and_resumes_from_a_snapshot_anywhere(
    moves, cut, lag_ms, sourced, idle_timeout_ms
):
    def made() -> WaterMarkEventGenerator:
        return WaterMarkEventGenerator(["a", "b"], lag_ms, sourced=sourced, idle_timeout_ms=idle_timeout_ms)

    generator, reached = made(), None
    largest: dict[Any, int] = {}
    seen: dict[Any, int | None] = {}
    first_now = None
    for index, (kind, stream, timestamp, source, now) in enumerate(moves):
        if index == cut:
            saved = json.loads(json.dumps(generator.snapshot()))
            generator = made()
            generator.restore(saved)
        if kind == "track" and stream == "c":
            continue
        if now is not None and first_now is None:
            first_now = now
        if kind == "track":
            assert generator.track(stream, timestamp, source, now) == (reached is None or timestamp >= reached)
            pair = (stream, source if sourced else None)
            largest[pair] = max(timestamp, largest.get(pair, timestamp))
            before = seen.get(pair)
            seen[pair] = before if now is None else now if before is None else max(before, now)
        else:
            waited = dict(largest) | {s: None for s in "ab" if all(pair[0] != s for pair in largest)}
            if idle_timeout_ms is not None and now is not None:
                since = {pair: first_now if seen.get(pair) is None else seen[pair] for pair in waited}
                waited = {pair: most for pair, most in waited.items() if now - since[pair] < idle_timeout_ms}
            known = bool(waited) and None not in waited.values()
            candidate = min(waited.values()) - lag_ms if known else None
            rises = candidate is not None and (reached is None or candidate > reached)
            assert generator.turn(now) == (candidate if rises else None)
            reached = candidate if rises else reached
            for pair in [*largest] if sourced and idle_timeout_ms is not None and None not in (now, reached) else ():
                since = first_now if seen.get(pair) is None else seen[pair]
                others = sum(stream == pair[0] for stream, _ in largest) - 1
                if others and largest[pair] <= reached + lag_ms and now - since >= idle_timeout_ms:
                    del largest[pair], seen[pair]  # begins anew
        assert generator.watermark == reached
        generator.check()


@given(moves=MOVES, lag_ms=st.integers(0, 20), idle_timeout_ms=st.integers(1, 100))
def test_forgotten_sources_change_no_watermark_as_long_as_the_clock_does_not_go_back(moves, lag_ms, idle_timeout_ms):
    generator, keeps = (
        WaterMarkEventGenerator(["a", "b", "c"], lag_ms, sourced=True, idle_timeout_ms=idle_timeout_ms)
        for _ in range(2)
    )
    keeps._forget_idle = lambda passed, now: None
    clock = 0
    for kind, stream, timestamp, source, later in moves:
        clock += later or 0
        for each in ("a", "b", "c") if kind == "track" and later is None else (stream,):
            if kind == "track":
                assert generator.track(each, timestamp, source, clock) == keeps.track(each, timestamp, source, clock)
        assert kind == "track" or generator.turn(clock) == keeps.turn(clock)
        assert generator.watermark == keeps.watermark


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_snapshot_of_another_definition_is_refused():
    saved = WaterMarkEventGenerator(["a"]).snapshot()
    for other in (storm(), WaterMarkEventGenerator(["a"], sourced=True)):
        with pytest.raises(SnapshotError, match="same definition"):
            other.restore(saved)
    for damaged in (None, {}, {**saved, "version": 2}, {**saved, "marks": [["a"]]}, {**saved, "marks": None}):
        with pytest.raises(SnapshotError):
            WaterMarkEventGenerator(["a"]).restore(damaged)


def test_a_removed_stream_is_refused_by_name_and_an_added_one_is_waited_for():
    generator = WaterMarkEventGenerator(["a", "b"])
    tracked(generator, 5)
    tracked(generator, 5, stream="b")
    generator.turn()
    with pytest.raises(SnapshotError, match="'b'"):
        WaterMarkEventGenerator(["a"]).restore(generator.snapshot())
    more = WaterMarkEventGenerator(["a", "b", "c"])
    more.restore(generator.snapshot())
    tracked(more, 9)
    tracked(more, 9, stream="b")
    assert (more.turn(), more.watermark) == (None, 5)
    tracked(more, 8, stream="c")
    assert more.turn() == 8


def test_a_changed_lag_applies_without_the_watermark_falling():
    generator = WaterMarkEventGenerator(["a"])
    tracked(generator, 100)
    generator.turn()
    lagging = WaterMarkEventGenerator(["a"], lag_ms=50)
    lagging.restore(generator.snapshot())
    assert (lagging.turn(), lagging.watermark) == (None, 100)
    tracked(lagging, 160)
    assert lagging.turn() == 110


def test_the_slowest_input_is_the_one_that_holds_the_watermark_back():
    generator = WaterMarkEventGenerator(["a", "b"], idle_timeout_ms=50, sourced=True)

    def slowest(now_ms):
        generator.turn(now_ms)
        return generator.slowest

    assert slowest(0) == ("a", None, None)
    generator.track("a", 30, source=1, now_ms=0)
    generator.track("a", 20, source=2, now_ms=0)
    assert slowest(0) == ("b", None, None), "a declared stream without a tuple"
    generator.track("b", 25, source=7, now_ms=40)
    assert slowest(40) == ("a", 2, 20)
    assert slowest(60) == ("b", 7, 25), "the sources of a are idle"
    assert slowest(90) == ("a", 1, 30), "all are idle: the newest"
