"""WindowedBoltExecutor: refused tuples and their reasons, watermarks over streams, the clock, and Storm's machine inside it."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError, InvalidTimestampError, MachineSpentError, SnapshotError
from windowing.testing.replay import LosslessReplay, config_of, runs_of
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Late, LateReason
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import count, millis
from windowing.windows.storm import StormMachine, StormStatefulWindowManager


def executor_of(**options: Any) -> WindowedBoltExecutor:
    given_ = {"length": millis(10), "slide": millis(10), "timestamp": "ts", **options}
    streams = given_.pop("streams", ("default",))
    return WindowedBoltExecutor(WindowConfig.of(**given_), streams, component="delays")


def late(effects: Any) -> list[Any]:
    return [(list(e.payloads), e.reason.value) for e in effects if isinstance(e, Late)]


def late_at(effects: Any) -> list[Any]:
    return [(at, list(e.payloads), list(e.timestamps), e.reason.value) for at, e in effects if isinstance(e, Late)]


def reached(executor: WindowedBoltExecutor, watermark: int) -> WindowedBoltExecutor:
    list(executor.add("front", watermark))
    list(executor.turn())
    return executor


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_a_tuple_below_the_watermark_is_late_and_one_at_it_is_not():
    executor = reached(executor_of(), 15)
    assert late(executor.add("below", 14)) == [(["below"], "late")]
    assert late(executor.add("at", 15)) == []
    assert executor.counts()["late"] == 1


def test_a_tuple_at_the_watermark_whose_last_window_has_fired_is_late():
    executor = reached(executor_of(), 20)
    assert late(executor.add("lost in Storm", 20)) == [(["lost in Storm"], "late")]
    assert late(executor.add("next", 21)) == []


def test_a_tuple_too_far_ahead_of_the_clock_is_refused_and_does_not_advance_the_watermark():
    executor = executor_of(max_future=millis(100))
    executor.set_clock(1000)
    assert late(executor.add("typo", 1101)) == [(["typo"], "future")]
    assert late(executor.add("ahead", 1100)) == []
    list(executor.turn())
    assert executor.watermark == 1100


@pytest.mark.parametrize(
    "timestamp",
    [None, "5", "x", 5.0, math.nan, math.inf, True, False, b"5", [5], {"ts": 5}, 2**62, -(2**62), 10**400],
    ids=lambda value: type(value).__name__ + str(value)[:8],
)
def test_a_timestamp_that_is_no_whole_number_of_milliseconds_is_invalid(timestamp):
    executor = executor_of()
    assert late(executor.add("bad", timestamp)) == [(["bad"], "invalid")]
    batched = executor_of()
    found = late_at(batched.add_batch(["good", "bad", "good"], [1, timestamp, 2]))
    assert [(at, payloads, reason) for at, payloads, _, reason in found] == [(1, ["bad"], "invalid")]
    list(batched.turn())
    assert batched.watermark == 2
    assert batched.counts()["in"] == 3


@pytest.mark.parametrize("timestamp", [2**62 - 1, -(2**62) + 1, 0, -1])
def test_the_largest_and_smallest_timestamps_are_accepted(timestamp):
    executor = executor_of()
    assert late(executor.add("ok", timestamp)) == []
    [window] = [effect.window for effect in executor.drain() if isinstance(effect, Activation)][:1]
    assert window.end_timestamp >= timestamp


def test_a_watermark_below_all_timestamps_does_not_make_an_invalid_one_valid():
    for one_by_one in (True, False):
        executor = executor_of(lag=millis(10))
        list(executor.add("first", -(2**62) + 1))
        list(executor.turn())
        found = (
            executor.add("bad", -(2**62))
            if one_by_one
            else [effect for _, effect in executor.add_batch("b", [-(2**62)])]
        )
        assert [reason for _, reason in late(found)] == ["invalid"]


def test_after_a_drain_every_tuple_is_late_as_closed():
    executor = executor_of()
    list(executor.add("a", 1))
    list(executor.drain())
    assert late(executor.add("b", 2)) == [(["b"], "closed")]
    assert late_at(executor.add_batch(["c", "d"], [3, None])) == [(0, ["c", "d"], [3, None], "closed")]
    assert list(executor.turn()) == []
    assert executor.counts() == {"in": 4, "shown": 1, "skipped": 0, "pending": 0, "expired": 1, "late": 3, "fired": 1}
    executor.check()


def test_with_on_invalid_raise_an_invalid_timestamp_is_an_error_with_bolt_field_and_fix():
    executor = executor_of(on_invalid="raise", timestamp="departure")
    expected = r"bolt 'delays': timestamp 'departure' is 'soon', wanted whole milliseconds .* on_invalid=\"late\""
    with pytest.raises(InvalidTimestampError, match=expected):
        executor.add("a", "soon")
    with pytest.raises(InvalidTimestampError, match=expected):
        executor.add_batch(["a", "b"], [1, "soon"])
    assert executor.counts()["in"] == 0


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_run_of_late_tuples_has_the_position_of_its_first():
    executor = reached(executor_of(max_future=millis(50)), 15)
    executor.set_clock(100)
    timestamps = [1, 2, 16, None, "x", 3, 999, 998, 17, 4]
    assert late_at(executor.add_batch(list("abcdefghij"), timestamps)) == [
        (0, ["a", "b"], [1, 2], "late"),
        (3, ["d", "e"], [None, "x"], "invalid"),
        (5, ["f"], [3], "late"),
        (6, ["g", "h"], [999, 998], "future"),
        (9, ["j"], [4], "late"),
    ]
    assert executor.side == {"late": 4, "invalid": 2, "future": 2}
    executor.check()


TIMES = st.one_of(st.integers(-5, 40), st.sampled_from([None, "x", 1.5, True, 2**63, 500]))


@given(st.lists(st.tuples(TIMES, st.sampled_from("ab"), st.sampled_from(["k", "l"])), max_size=30), st.booleans())
def test_a_batch_is_judged_like_its_tuples_one_by_one(tuples, one_stream):
    options = {"streams": ("a", "b"), "key": "k", "max_future": millis(100)}
    one, many = executor_of(**options), executor_of(**options)
    for executor in (one, many):
        executor.set_clock(50)
        for stream in "ab":
            list(executor.add(-1, 15, stream=stream, key="k"))
        list(executor.turn())
    streams = ["a" if one_stream else stream for _, stream, _ in tuples]
    expected = []
    for position, (timestamp, _, key) in enumerate(tuples):
        effects = one.add(position, timestamp, stream=streams[position], key=key)
        expected += [(position, payload, effect.reason) for effect in effects for payload in effect.payloads]
    effects = many.add_batch(
        list(range(len(tuples))),
        [timestamp for timestamp, _, _ in tuples],
        stream="a" if one_stream else streams,
        keys=[key for _, _, key in tuples],
    )
    found = [
        (at + offset, payload, effect.reason)
        for at, effect in effects
        for offset, payload in enumerate(effect.payloads)
    ]
    assert found == expected
    assert plain(one.turn()) == plain(many.turn())
    assert one.watermark == many.watermark
    assert plain(one.drain()) == plain(many.drain())
    assert one.counts() == many.counts()


def plain(effects: Any) -> list[Any]:
    return [list(e.window.get()) if isinstance(e, Activation) else sorted(e.get()) for e in effects]


def test_trusted_timestamps_are_not_validated_but_none_is_still_invalid():
    executor = reached(executor_of(), 15)
    assert late_at(executor.add_batch(["a", "b"], [16, 17], trusted=True)) == []
    assert late_at(executor.add_batch(["a", "b"], [16, None], trusted=True)) == [(1, ["b"], [None], "invalid")]
    assert late_at(executor.add_batch(["a", "b"], [16, 3], trusted=True)) == [(1, ["b"], [3], "late")]
    for tuples in (1, 2):  # a single one is compared with no other
        found = late_at(executor.add_batch(["a"] * tuples, [None] * tuples, trusted=True))
        assert [reason for *_, reason in found] == ["invalid"] * len(found)
        assert sum(len(payloads) for _, payloads, *_ in found) == tuples


def test_an_untracked_batch_leaves_the_watermark_to_track():
    executor = executor_of()
    list(executor.add_batch(["a"], [50], tracked=False))
    assert plain(executor.turn()) == []
    executor.track("default", 12)
    list(executor.turn())
    assert executor.watermark == 12
    executor.track("default", 60)
    assert plain(executor.turn()) == [["a"], ["a"]]


def test_an_empty_batch_does_nothing():
    assert list(executor_of().add_batch([], [])) == []


# -- streams and sources -----------------------------------------------------------------------------------------------


def test_the_watermark_waits_for_every_stream_and_is_the_smallest():
    executor = executor_of(streams=("a", "b"))
    list(executor.add("x", 50, stream="a"))
    list(executor.turn())
    assert executor.watermark is None
    list(executor.add("y", 30, stream="b"))
    list(executor.turn())
    assert executor.watermark == 30


def test_a_late_tuple_counts_for_the_watermark_which_never_falls():
    executor = executor_of(streams=("a", "b"), source="s")
    list(executor.add("x", 50, stream="a", source=1))
    list(executor.add("y", 30, stream="b", source=1))
    list(executor.turn())
    assert late(executor.add("z", 29, stream="a", source=2)) == [(["z"], "late")]
    list(executor.add("y", 60, stream="b", source=1))
    list(executor.turn())
    assert executor.watermark == 30
    list(executor.add("z", 45, stream="a", source=2))
    list(executor.turn())
    assert executor.watermark == 45


def test_an_undeclared_stream_is_refused_by_name():
    with pytest.raises(ConfigError, match="'elsewhere'"):
        executor_of().add("a", 1, stream="elsewhere")


# -- processing time ---------------------------------------------------------------------------------------------------


def test_on_processing_time_the_clock_never_falls():
    executor = WindowedBoltExecutor(WindowConfig.of(length=millis(10), slide=millis(10)))
    executor.set_clock(25)
    list(executor.add("a"))
    executor.set_clock(3)
    assert executor.now_ms == 25
    list(executor.add("b"))
    executor.set_clock(31)
    assert plain(executor.turn()) == [["a", "b"], ["a", "b"]]
    assert executor.watermark == 30


def test_on_event_time_the_clock_of_the_driver_may_go_back():
    executor = executor_of()
    executor.set_clock(25)
    executor.set_clock(3)
    assert executor.now_ms == 3


def test_processing_time_without_a_clock_is_an_error_that_says_which_method_to_call():
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(2)), component="delays")
    for enter in (lambda: executor.add("a"), lambda: executor.add_batch(["a"]), executor.turn):
        with pytest.raises(ConfigError, match=r"bolt 'delays' .* call set_clock first"):
            enter()


# -- snapshots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "machine"), [(2, "WindowedBoltExecutor"), (1, "WindowManager"), (1, ["damaged"])])
def test_a_foreign_snapshot_is_refused(format, machine):
    with pytest.raises(SnapshotError, match="a WindowedBoltExecutor snapshot of format 1 was wanted"):
        executor_of().restore({"format": format, "machine": machine})


def test_a_restore_forgets_the_tuples_and_timestamps_that_were_added_since_the_last_entry():
    executor = executor_of()
    saved = executor.snapshot()
    list(executor.add("lost", 9))
    executor.restore(saved)
    assert executor.counts()["in"] == 0
    assert (list(executor.turn()), executor.watermark) == ([], None)


def test_the_counts_of_a_machine_whose_restore_failed_half_way_can_be_read():
    executor = executor_of()
    saved = executor.snapshot()
    del saved["manager"]["sequence"]
    list(executor.add("lost", 9))
    with pytest.raises(KeyError):
        executor.restore(saved)
    assert executor.counts()["in"] == 0
    with pytest.raises(MachineSpentError):
        executor.turn()


def test_a_snapshot_keeps_late_counts_clock_and_the_drained_state():
    executor = reached(executor_of(), 15)
    executor.set_clock(77)
    list(executor.add("late", 3))
    list(executor.drain())
    other = executor_of()
    other.restore(json.loads(json.dumps(executor.snapshot())))
    assert (other.now_ms, other.closed, other.side, other.counts()) == (77, True, {"late": 1}, executor.counts())
    assert late(other.add("a", 99)) == [(["a"], "closed")]


# -- Storm's machine ---------------------------------------------------------------------------------------------------

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in gzip.decompress((Path(__file__).parents[1] / "data" / "windows.jsonl.gz").read_bytes()).splitlines()
]


class StatefulStormMachine(StormStatefulWindowManager, StormMachine):
    """Storm's windows that are iterators; they do not know their new tuples, so a repeat cannot be recognised."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self._max_repeats = None


class StormRun(LosslessReplay):
    """A recorded case of Storm run through the executor."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.machine = StatefulStormMachine if case["stateful"] else StormMachine
        super().__init__(
            case,
            config_of(case, semantics="storm"),
            (lambda w: [list(w.get()), None, None]) if case["stateful"] else None,
        )

    def build(self) -> WindowedBoltExecutor:
        executor = super().build()
        assert isinstance(executor.manager, StormMachine)
        executor.use(self.machine(self.config))
        return executor


@pytest.mark.parametrize("batched", [False, True])
def test_the_executor_reproduces_all_recorded_cases_of_storm(batched):
    assert len(CASES) == 400
    for case in CASES:
        run, events = StormRun(case), []
        for first, ops in runs_of({**case, "batched": batched}):
            events += run.feed(first, ops)
            run.executor.check()
        expected = [event for event in case["events"] if not (case["stateful"] and event[1] == "expire")]
        assert sorted(events, key=lambda event: event[0]) == expected, case["name"]
        assert run.executor.counts() == counts_of_storm(case, run), case["name"]


def counts_of_storm(case: dict[str, Any], run: StormRun) -> dict[str, int]:
    """The counts by the recorded events; an iterator window does not report to the machine which tuples it shows."""
    offered = {op[1 if op[0] == "add" else 2] for op in case["ops"] if op[0] in ("add", "tuple")}
    of = {kind: [event for event in case["events"] if event[1] == kind] for kind in ("activate", "expire", "late")}
    late_ids = {event[2] for event in of["late"]}
    shown = set() if case["stateful"] else {each for event in of["activate"] for each in event[2]}
    expired = {each for event in of["expire"] for each in event[2]}
    return {
        "in": len(offered),
        "shown": len(shown),
        "skipped": len(expired - shown),
        "pending": len(offered - late_ids - shown - expired),
        "expired": len(expired),
        "late": len(late_ids),
        "fired": len(of["activate"]),
    }


@pytest.mark.parametrize("case", CASES[::20], ids=[case["name"] for case in CASES[::20]])
def test_storms_machine_resumed_from_a_snapshot_gives_the_same_events(case):
    run, events = StormRun(case), []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        if index % 7 == 0:
            saved, counts = json.dumps(run.executor.snapshot()), run.executor.counts()
            run.executor = run.build()
            run.executor.restore(json.loads(saved))
            run.executor.check()
            assert run.executor.counts() == counts
    assert events == case["events"]


def test_storms_machine_refuses_to_drain_and_stays_open():
    executor = executor_of(semantics="storm")
    list(executor.add("a", 1))
    with pytest.raises(ConfigError, match="cannot drain"):
        executor.drain()
    assert not executor.closed
    assert late(executor.add("b", 2)) == []


def test_storms_machine_is_guarded_and_checks_its_snapshots():
    machine = StormMachine(WindowConfig.of(length=count(2), slide=count(1), semantics="storm"))
    effects = machine.add("a", 1)
    with pytest.raises(MachineSpentError):
        machine.add("b", 1)
    assert machine.tally.accepted == 1
    list(effects)
    with pytest.raises(SnapshotError, match="a StormMachine snapshot"):
        machine.restore({"machine": "WindowManager", "format": 1})


def test_the_late_reasons_are_late_future_invalid_and_closed():
    assert {reason.value for reason in LateReason} == {"late", "future", "invalid", "closed"}
