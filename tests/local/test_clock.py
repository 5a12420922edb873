"""The clocks, and windows over the clock of the machine.

The scenes freeze the clock of the whole process with freezegun, which would have to look into every module of pyspark too. So they
all run in ONE process of their own, which loads no pyspark (`python tests/local/test_clock.py` prints their outcomes), and each
is a test here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from windowing import (
    Bolt,
    Duration,
    FailedException,
    InputSpout,
    SkippedTuplesWarning,
    TopologyBuilder,
    WindowedBolt,
    bolt_of,
    count,
    days,
    hours,
    is_tick,
    millis,
    minutes,
    seconds,
    sliding,
    tumbling,
    windowed_bolt,
)
from windowing.errors import ConfigError
from windowing.local import LocalCluster, LocalRun, SystemClock, VirtualClock, run_local
from windowing.local import clock as testing_clock
from windowing.local.trident_cluster import run_trident
from windowing.topology.decorators import bolt as marked
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology
from windowing.windows.events import LateReason

SCENES: dict[str, Callable[[], None]] = {}
ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def counting(length: Duration, slide: Duration | None = None, offset: Duration | None = None) -> WindowedBolt:
    @windowed_bolt(length=length, slide=slide or length, offset=offset, output="start long, end long, ids string")
    def ids(window):
        return (window.start_timestamp, window.end_timestamp, " ".join(str(row["id"]) for row in window))

    return bolt_of(ids)


def in_zone(name: str) -> None:
    import os

    os.environ["TZ"] = name
    time.tzset()


def frozen_hours(start: str, number: int, zone: str) -> Iterator[tuple[int, object]]:
    """Yield the number of each quarter of an hour from `start` (UTC); the clock stands one minute after it."""
    import freezegun

    in_zone(zone)
    with freezegun.freeze_time(start) as frozen:
        frozen.tick(timedelta(minutes=1))
        for quarter in range(4 * number):
            yield quarter, frozen
            frozen.tick(timedelta(minutes=15))


# -- scenes, each with the clock frozen --------------------------------------------------------------------------------


@scene
def the_system_clock_is_whole_milliseconds_since_1970_in_every_zone():
    import freezegun

    for zone in ZONES:
        in_zone(zone)
        with freezegun.freeze_time("2024-02-29 12:00:00.123999"):
            assert SystemClock().now_ms() == ms("2024-02-29 12:00:00") + 123


@scene
def windows_over_the_clock_end_when_the_frozen_clock_passes_their_end():
    import freezegun

    with freezegun.freeze_time("2024-01-01 00:00:03") as frozen:
        run = LocalRun(counting(seconds(10)))
        assert run.feed([{"id": 1}, {"id": 2}]) == []
        frozen.move_to("2024-01-01 00:00:10")  # in the last millisecond of the window more tuples may come
        assert run.tick() == []
        assert run.feed([{"id": 3}]) == []
        frozen.tick(timedelta(microseconds=1_500))  # freezegun counts in floats of seconds, so not exactly at the end
        start = ms("2024-01-01 00:00:00")
        assert run.tick() == [("default", (start, start + 10_000, "1 2 3"))]


@scene
def a_tuple_after_a_windows_end_fires_the_window_without_a_tick():
    import freezegun

    with freezegun.freeze_time("2024-01-01 00:00:03") as frozen:
        run = LocalRun(counting(seconds(10)))
        run.feed([{"id": 1}])
        frozen.move_to("2024-01-01 00:00:12")
        assert [row[2] for _, row in run.feed([{"id": 2}])] == ["1"]


@scene
def a_leap_day_has_a_daily_window_like_any_other_day():
    for zone in ZONES:
        run = LocalRun(counting(days(1)))
        seen = []
        for quarter, _ in frozen_hours("2024-02-28", 72, zone):
            seen += run.feed([{"id": quarter}])
        seen += run.drain()
        ends = [row[1] for _, row in seen]
        assert ends == [ms("2024-02-29"), ms("2024-03-01"), ms("2024-03-02")], zone
        assert [len(row[2].split()) for _, row in seen] == [96, 96, 96]


@scene
def the_year_before_a_leap_year_has_no_29_february():
    run = LocalRun(counting(days(1)))
    for quarter, _ in frozen_hours("2023-02-28", 48, "Europe/Berlin"):
        run.feed([{"id": quarter}])
    run.drain()
    assert [row[1] for row in run.result["default"]] == [ms("2023-03-01"), ms("2023-03-02")]


@scene
def offsets_do_not_move_on_the_days_of_a_daylight_saving_change():
    changes = {
        "America/New_York": ("2024-03-10", "2024-11-03"),
        "Europe/Berlin": ("2024-03-31", "2024-10-27"),
        "Australia/Lord_Howe": ("2024-04-06", "2024-10-05"),  # by half an hour
    }
    for zone, dates in changes.items():
        for date in dates:
            run = LocalRun(counting(hours(1), offset=minutes(15)))
            for quarter, _ in frozen_hours(date, 24, zone):
                run.feed([{"id": quarter}])
            run.drain()
            ends = [row[1] for row in run.result["default"]]
            assert ends == [ms(date) + 15 * 60_000 + hour * HOUR_MS for hour in range(25)], (zone, date)
            sizes = [len(row[2].split()) for row in run.result["default"]]
            assert sizes == [1] + 23 * [4] + [3], (zone, date)


@scene
def a_daily_window_with_an_offset_of_six_hours_has_24_hours_on_every_day():
    run = LocalRun(counting(days(1), offset=hours(6)))
    for quarter, _ in frozen_hours("2024-03-30", 72, "Europe/Berlin"):
        run.feed([{"id": quarter}])
    run.drain()
    ends = [row[1] for row in run.result["default"]]
    assert ends == [ms("2024-03-30T06:00:00") + day * DAY_MS for day in range(4)]
    assert sum(len(row[2].split()) for row in run.result["default"]) == 72 * 4


@scene
def a_clock_that_is_set_back_neither_loses_nor_reorders_tuples():
    import freezegun

    for bolt in (counting(seconds(10)), counting(seconds(20), seconds(10))):
        with freezegun.freeze_time("2024-01-01 00:00:18") as frozen:
            run = LocalRun(bolt)
            run.feed([{"id": 1}])
            for number, second in enumerate((14, 2, 17, 19), start=2):
                frozen.move_to(f"2024-01-01 00:00:{second:02}")
                run.feed([{"id": number}])
                run.tick()
            frozen.move_to("2024-01-01 00:00:25")
            run.tick()
            first = run.result["default"][0]
            assert first[2] == "1 2 3 4 5"
            assert first[1] == ms("2024-01-01 00:00:20")
            run.drain()
            assert run.result.counts["shown"] == 5
            assert run.result.counts["late"] == 0


@scene
def a_clock_that_is_set_back_a_day_fires_no_window_twice():
    import freezegun

    with freezegun.freeze_time("2024-03-01") as frozen:
        run = LocalRun(counting(minutes(1)))
        run.feed([{"id": 1}])
        frozen.tick(timedelta(minutes=2))
        assert len(run.tick()) == 1
        frozen.move_to("2024-02-29")
        assert run.tick() == run.feed([{"id": 2}]) == []
        frozen.move_to("2024-03-01 00:03:00")
        assert [row[2] for _, row in run.tick()] == ["2"]


@scene
def a_clock_that_jumps_years_ahead_skips_the_empty_windows():
    import freezegun

    with freezegun.freeze_time("2024-03-01") as frozen:
        run = LocalRun(counting(seconds(1)))
        run.feed([{"id": 1}])
        frozen.move_to("2074-03-01")
        assert len(run.tick()) == 1
        run.feed([{"id": 2}])
        assert [row[2] for _, row in run.drain()] == ["2"]


# -- the scenes as tests -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """The outcome of each scene: None, or a traceback; and whether pyspark was loaded."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_with_the_frozen_clock_passes(name, outcomes):
    assert outcomes[name] is None, outcomes[name]


def test_no_scene_loads_pyspark(outcomes):
    assert outcomes["pyspark loaded"] is False


def test_a_failing_scene_is_reported():
    def wrong() -> None:
        raise AssertionError("two and two is five")

    assert "two and two is five" in (run_scene(wrong) or "")


def run_scene(function: Callable[[], None]) -> str | None:
    try:
        function()
    except BaseException:
        return traceback.format_exc()
    return None


# -- clocks that need no freezing --------------------------------------------------------------------------------------


def test_a_virtual_clock_moves_only_by_advance_and_set():
    clock = VirtualClock(1_000)
    assert clock.now_ms() == clock.now_ms() == 1_000
    assert clock.advance(seconds(2)) == clock.now_ms() == 3_000
    assert clock.advance(timedelta(milliseconds=5)) == 3_005
    assert clock.set(10) == clock.now_ms() == 10
    assert repr(clock) == "VirtualClock(10)"


def test_a_virtual_clock_goes_back_only_by_set():
    with pytest.raises(ConfigError, match="cannot be negative"):
        VirtualClock().advance(timedelta(seconds=-1))
    with pytest.raises(ConfigError, match=r"whole milliseconds since 1970, got 1\.5"):
        VirtualClock(1.5)
    with pytest.raises(ConfigError, match="whole milliseconds"):
        VirtualClock().set(True)


def test_the_virtual_clock_is_public_for_tests():
    assert testing_clock.VirtualClock is VirtualClock


def test_a_count_slide_over_the_clock_fires_with_its_kth_tuple():
    @sliding(seconds(10), count(2), output="end long, ids string")
    def last_ten_seconds(window):
        return (window.end_timestamp, "".join(row["id"] for row in window))

    clock = VirtualClock(100_000)
    run = LocalRun(last_ten_seconds, clock=clock)
    assert run.feed([{"id": "a"}, {"id": "b"}, {"id": "c"}]) == [("default", (100_000, "ab"))]
    clock.advance(seconds(10))
    assert run.feed([{"id": "d"}]) == [("default", (110_000, "d"))]


def test_a_run_over_the_clock_reports_its_next_deadline():
    clock = VirtualClock(4_000)
    run = LocalRun(counting(seconds(10)), clock=clock)
    assert run.next_deadline_ms() is None
    run.feed([{"id": 1}])
    assert run.next_deadline_ms() == 10_001
    clock.set(10_000)
    assert run.tick() == []
    clock.set(10_001)
    assert run.tick() == [("default", (0, 10_000, "1"))]


def test_a_run_over_event_time_ticks_at_every_watermark_interval():
    @tumbling(seconds(1), timestamp="ts", watermark_interval=seconds(5), output="n long")
    def size(window):
        return len(window)

    clock = VirtualClock()
    run = LocalRun(size, clock=clock)
    run.feed([{"ts": 500}, {"ts": 1_500}])
    assert run.tick() == [("default", (1,))]
    run.feed([{"ts": 2_500}])
    clock.advance(minutes(0))
    assert run.tick() == []
    assert run.next_deadline_ms() == 5_000
    clock.advance(seconds(5))
    assert run.tick() == [("default", (1,))]


def test_a_stream_without_tuples_holds_back_the_watermark_until_its_idle_timeout():
    @tumbling(seconds(1), timestamp="ts", idle_timeout=seconds(30), output="n long")
    def size(window):
        return len(window)

    clock = VirtualClock(1_000_000)
    run = LocalRun(size, streams=("a", "b"), clock=clock)
    run.feed([{"ts": 500}, {"ts": 1_500}], "a")
    assert run.turn() == []
    clock.advance(seconds(29))
    run.feed([{"ts": 1_700}], "a")
    assert run.turn() == []
    clock.advance(seconds(1))
    assert run.turn() == [("default", (1,))]


def test_a_tuple_too_far_ahead_of_the_clock_is_late_and_does_not_advance_the_watermark():
    @tumbling(seconds(1), timestamp="ts", max_future=hours(1), output="n long")
    def size(window):
        return len(window)

    run = LocalRun(size, clock=VirtualClock(1_000_000))
    run.feed([{"ts": 500}, {"ts": 1_000_000 + HOUR_MS + 1}])
    assert run.turn() == []
    assert run.result.late == [((1_000_000 + HOUR_MS + 1,), LateReason.FUTURE)]


def test_storms_timer_fires_once_per_slide_with_the_tuples_that_arrived_since():
    @tumbling(seconds(10), semantics="storm", output="end long, ids string")
    def ids(window):
        return (window.end_timestamp, "".join(row["id"] for row in window))

    clock = VirtualClock(1_000)
    run = LocalRun(ids, clock=clock)
    run.feed([{"id": "a"}])
    assert run.next_deadline_ms() == 11_000
    clock.set(10_999)
    assert run.tick() == []
    clock.set(11_000)
    assert run.tick() == [("default", (10_999, "a"))]
    clock.set(21_000)
    assert run.feed([{"id": "b"}]) == []  # the window was empty
    clock.set(31_000)
    assert run.tick() == [("default", (30_999, "b"))]
    with pytest.raises(ConfigError, match="cannot drain"):
        run.drain()


def test_storms_timer_fires_once_per_slide_however_many_batches_end_meanwhile():
    clock, fired = VirtualClock(1_000), []

    @tumbling(seconds(10), semantics="storm")
    def noted(window):
        fired.append((window.end_timestamp, "".join(row["id"] for row in window)))

    builder = TopologyBuilder("storm")
    builder.set_spout("in", InputSpout("id string"))
    builder.set_bolt("noted", noted).shuffle_grouping("in")
    with LocalCluster(builder.build(), clock=clock) as cluster:
        for id in "abcd":
            cluster.run_batch({"in": [(id,)]})
            clock.advance(seconds(4))
        cluster.run_batch({"in": []})
    assert fired == [(12_999, "abc")]


def test_run_local_waits_for_storms_timer_too_and_calls_the_hooks_of_a_state_after_each_batch():
    hooked = []

    @tumbling(seconds(10), semantics="storm", output="end long, ids string")
    class Ids:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            return window.end_timestamp, "".join(row["id"] for row in window)

        def pre_commit(self, txid):
            hooked.append(txid)

    def batches():
        for id in "abcd":
            yield [{"id": id}]
            clock.advance(seconds(4))

    clock = VirtualClock(1_000)
    assert run_local(Ids, batches(), drain=False, clock=clock)["default"] == [(12_999, "abc")]
    assert hooked == [1, 2, 3, 4]


def test_tuples_in_a_gap_between_windows_over_the_clock_are_skipped_and_counted():
    with pytest.warns(SkippedTuplesWarning):
        bolt = counting(seconds(2), seconds(10))
    clock = VirtualClock(1_000)
    run = LocalRun(bolt, clock=clock)
    run.feed([{"id": 1}])
    clock.set(9_000)
    run.feed([{"id": 2}])
    run.drain()
    assert run.result["default"] == [(8_000, 10_000, "2")]
    assert run.result.counts["skipped"] == 1


# -- the system's clock is set during a run ------------------------------------------------------------------------------

SET = {"back": -HOUR_MS, "forward": HOUR_MS}


@pytest.fixture
def setting(monkeypatch):
    """Sets the system's clock by some milliseconds; a long sleep fails instead."""
    real_ns, real_sleep, moved = time.time_ns, time.sleep, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + moved[0] * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: real_ns() / 1e9 + moved[0] / 1e3)

    def sleep(wait_s: float) -> None:
        assert 0 <= wait_s < 5, f"it waits {wait_s} s"
        real_sleep(wait_s)

    monkeypatch.setattr(time, "sleep", sleep)

    def set_by(by_ms: int) -> None:
        moved[0] += by_ms

    return set_by


@pytest.mark.parametrize("way", SET)
def test_the_system_clock_keeps_its_speed_when_the_time_is_set(way, setting):
    clock = SystemClock()
    before = clock.now_ms()
    setting(SET[way])
    assert 0 <= clock.now_ms() - before < 2_000
    time.sleep(0.05)
    assert 50 <= clock.now_ms() - before < 2_000


@pytest.mark.parametrize("way", SET)
def test_retries_timeouts_ticks_and_windows_of_a_cluster_are_on_time_when_the_clock_is_set(way, setting):
    seen = []

    @marked(output="n long")
    class Flaky(Bolt):
        """Fails the first tuple, loses the second, and records ticks."""

        def execute(self, tuple):
            if is_tick(tuple):
                seen.append("tick")
                self.collector.ack(tuple)
                return
            known, _ = tuple["n"] in seen, seen.append(tuple["n"])
            if len(seen) == 1:
                setting(SET[way])
            if known or tuple["n"] > 2:
                self.collector.emit((tuple["n"],), anchors=tuple)
                self.collector.ack(tuple)
            elif tuple["n"] == 1:
                self.collector.fail(tuple)

    @tumbling(millis(100), output="ns string")
    def windows(window):
        return " ".join(str(row["n"]) for row in window)

    builder = TopologyBuilder("set").configure(message_timeout=millis(300), retry_delay=millis(20))
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("flaky", Flaky).shuffle_grouping("in").configure(tick_tuple_freq=millis(100))
    builder.set_bolt("windows", windows).shuffle_grouping("flaky")
    began = time.monotonic()
    with LocalCluster(builder.build(), batches={"in": [[(1,), (2,), (3,)]]}) as cluster:
        cluster.run_batch({"in": [(1,), (2,), (3,)]})
        cluster.run_for(millis(900))
        result = cluster.result
    assert 0.9 <= time.monotonic() - began < 5
    assert (result.acked, result.failures) == (3, 2)
    assert sorted(" ".join(row[0] for row in result["windows"]).split()) == ["1", "2", "3"]
    assert 3 <= seen.count("tick") < 50


@pytest.mark.parametrize("way", SET)
def test_a_trident_batch_is_retried_on_time_when_the_clock_is_set(way, setting):
    calls = []

    def flaky(row):
        calls.append(row.n)
        if len(calls) == 1:
            setting(SET[way])
            raise FailedException("once")
        return (row.n,)

    topology = TridentTopology("set").configure(retry_delay=millis(20), batch_emit_interval=millis(20))
    stream = topology.new_stream("in", FixedBatchSpout("n long", 1, [(1,), (2,)]))
    windows = stream.each("n", flaky, "same long").tumbling_window(millis(100), None, joined, output="ns string")
    windows.sink("windows")
    began = time.monotonic()
    result = run_trident(topology)
    assert time.monotonic() - began < 5
    assert (result.failures, result.batches) == (1, 3)
    assert " ".join(row[0] for row in result["windows"]).split() == ["1", "2"]


def joined(window):
    return " ".join(str(row.same) for row in window)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    results = {name: run_scene(function) for name, function in SCENES.items()}
    print(json.dumps({**results, "pyspark loaded": "pyspark" in sys.modules}))
