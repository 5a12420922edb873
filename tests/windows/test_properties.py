"""The lossless engine equals the slow model, and keeps the invariants of docs/concepts/windows.md, on generated cases."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windows.histories import FAR_MS, by_op, counts_of, moved, run_steps
from tests.windows.lossless_model import LosslessModel, ModelMix, run_model
from windowing.testing.replay import LosslessReplay, config_of, runs_of
from windowing.testing.strategies import cases
from windowing.windows import aggregate as agg

EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)
EVERY_MIX = pytest.mark.parametrize("mix", list(ModelMix))


def any_case(mix: ModelMix | None = None, **options: Any) -> st.SearchStrategy[dict[str, Any]]:
    return cases(mix=mix, **{**EITHER, "max_steps": 24, **options})


def events_of(case: dict[str, Any]) -> list[Any]:
    return [event for step in run_steps(case) for event in step]


# -- the model ---------------------------------------------------------------------------------------------------------


def equal_to_the_model(case: dict[str, Any]) -> tuple[LosslessReplay, Any]:
    """Run a case; its events and counts must be those of the model. Return the run and the model's result."""
    run = LosslessReplay(case)
    events = [event for step in run_steps(case, run) for event in step]
    expected = run_model(case)
    assert by_op(events) == by_op(expected.events)
    assert run.executor.counts() == counts_of(expected)
    return run, expected


@EVERY_MIX
@given(data=st.data())
def test_the_engine_equals_the_model(mix, data):
    case = data.draw(any_case(mix))
    run, expected = equal_to_the_model(case)
    assert run.executor.side == Counter(expected.late_reasons.values())
    if not run.executor.closed:
        assert (-math.inf if run.executor.watermark is None else run.executor.watermark) == expected.watermark


@given(any_case(ModelMix.DURATION_DURATION, event_time=True, lateness="window"))
def test_with_lateness_window_a_tuple_may_be_inserted_into_a_fired_range(case):
    equal_to_the_model(case)


@EVERY_MIX
@given(data=st.data())
def test_tuples_in_batches_equal_tuples_one_by_one(mix, data):
    case = data.draw(any_case(mix))
    batched = {**case, "batched": True}
    one, many = LosslessReplay(case), LosslessReplay(batched)
    events = [event for step in run_steps(case, one) for event in step]
    assert by_op(event for step in run_steps(batched, many) for event in step) == by_op(events)
    assert many.executor.counts() == one.executor.counts()


@EVERY_MIX
@pytest.mark.parametrize("by_ms", FAR_MS)
@given(data=st.data())
def test_near_the_largest_and_the_smallest_timestamp_the_engine_equals_the_model(mix, by_ms, data):
    equal_to_the_model(moved(data.draw(any_case(mix)), by_ms) | {"batched": data.draw(st.booleans())})


@EVERY_MIX
@given(data=st.data())
def test_an_advance_that_was_dropped_half_way_is_repeated_after_a_restore(mix, data):
    case = data.draw(any_case(mix))
    run, events = LosslessReplay(case), []
    for index, op in enumerate(case["ops"]):
        if op[0] in ("watermark", "tick", "drain") and data.draw(st.booleans()):
            saved = json.dumps(run.executor.snapshot())
            effects = run.executor.drain() if op[0] == "drain" else run.executor.turn()
            for _ in range(data.draw(st.integers(0, 3))):
                next(effects, None)
            if data.draw(st.booleans()):
                run.executor = run.build()
            run.executor.restore(json.loads(saved))
            run.executor.check()
        events += run.feed(index, [op])
    assert by_op(events) == by_op(events_of(case))


@EVERY_MIX
@given(data=st.data())
def test_stopped_anywhere_and_resumed_from_json_the_events_are_the_same(mix, data):
    case = data.draw(any_case(mix))
    stops = data.draw(st.sets(st.integers(0, max(len(case["ops"]) - 1, 0)), max_size=4))
    run, events = LosslessReplay(case), []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        if index in stops:
            saved = json.dumps(run.executor.snapshot())
            run.executor = run.build()
            run.executor.restore(json.loads(saved))
            run.executor.check()
            assert json.dumps(run.executor.snapshot()) == saved
    assert by_op(events) == by_op(events_of(case))


@EVERY_MIX
@given(data=st.data())
def test_the_next_deadline_may_be_asked_at_any_time_after_a_restore_too(mix, data):
    case = data.draw(any_case(mix))
    asked = data.draw(st.sets(st.integers(0, max(len(case["ops"]) - 1, 0))))
    run, events = LosslessReplay(case), []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        if index in asked:
            if index % 3 == 0:
                saved = run.executor.snapshot()
                run.executor = run.build()
                run.executor.restore(saved)
            run.executor.manager.next_deadline_ms()
            run.executor.check()
    assert by_op(events) == by_op(events_of(case))


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[Any]:
    """Return of two snapshots what differs: the keys, in their order, and the parts of the task, which are returned in any case."""
    old, new = ({each["ordinal"]: each for each in one["manager"].pop("tracks")} for one in (before, now))
    pairs = [(old.get(ordinal), new.get(ordinal)) for ordinal in dict.fromkeys([*old, *new])]
    return [before, now, [pair for pair in pairs if pair[0] != pair[1]]]


@pytest.mark.parametrize("mix", [*ModelMix, "panes"])
@given(data=st.data())
def test_a_machine_goes_back_to_its_mark_and_knows_the_keys_that_have_changed_since(mix, data):
    """The slow model: snapshots of all keys."""
    case = data.draw(any_case(ModelMix.COUNT_COUNT if mix == "panes" else mix)) | {"batched": data.draw(st.booleans())}
    given = {"aggregate": agg.sum()} if mix == "panes" else {}

    def new_run() -> LosslessReplay:
        shows = (lambda window: [window.aggregate, len(window)]) if given else None
        return LosslessReplay(case, replace(config_of(case), **given), shows)

    run, runs, events, size = new_run(), list(runs_of(case)), [], data.draw(st.integers(1, 8))
    begin = run.executor.snapshot()
    for start in range(0, len(runs), size):
        batch = runs[start : start + size]
        before, marked = run.executor.snapshot(), run.executor.mark()
        for fed in data.draw(st.lists(st.integers(0, size), max_size=2)):
            for first, ops in batch[:fed]:
                run.feed(first, ops)
            effects = data.draw(st.sampled_from([run.executor.turn, run.executor.drain]))()
            for _ in range(data.draw(st.integers(0, 2))):
                next(effects, None)
            run.executor.restore(marked)
            run.executor.check()
            assert run.executor.snapshot() == before
            marked = run.executor.mark()
        for first, ops in batch:
            events += run.feed(first, ops)
        if data.draw(st.booleans()):
            then, changed = run.executor.changed(marked)
            assert len(changed["manager"]["tracks"]) <= len(run.executor.snapshot()["manager"]["tracks"])
            assert differing(then, changed) == differing(before, run.executor.snapshot())
    assert events == [event for step in run_steps(case, new_run()) for event in step]
    run.executor.restore(begin)
    marked = run.executor.mark()
    for first, ops in runs[:size]:
        run.feed(first, ops)
    assert differing(*run.executor.changed(marked)) == differing(begin, run.executor.snapshot())


@given(any_case(None, keyed=True))
def test_a_composite_key_survives_json(case):
    def tupled(op: list[Any]) -> list[Any]:
        return [*op[:-1], {**op[-1], "key": (op[-1]["key"], 1)}] if isinstance(op[-1], dict) else op

    case = {**case, "ops": [tupled(op) for op in case["ops"]]}
    run, events = LosslessReplay(case), []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        saved = json.dumps(run.executor.snapshot())
        run.executor = run.build()
        run.executor.restore(json.loads(saved))
    assert by_op(events) == by_op(events_of(case))


# -- the invariants ----------------------------------------------------------------------------------------------------


@given(any_case())
def test_in_equals_shown_plus_pending_plus_late_plus_skipped_after_every_op(case):
    run, model, offered, last = LosslessReplay(case), LosslessModel(case), 0, None
    for index, op in enumerate(case["ops"]):
        offered += op[0] in ("add", "tuple")
        run.feed(index, [op])
        run.executor.check()
        model.apply(index, op)
        counts = run.executor.counts()
        assert counts["in"] == offered == counts["shown"] + counts["pending"] + counts["late"] + counts["skipped"]
        assert counts == counts_of(model.result())
        # W never falls.
        assert last is None or (run.executor.watermark is not None and run.executor.watermark >= last)
        last = run.executor.watermark


@given(any_case(keyed=False))
def test_previous_minus_expired_plus_new_equals_current(case):
    previous: list[Any] = []
    for _, kind, current, *rest in events_of(case):
        if kind != "activate":
            continue
        new, expired, _ = rest
        assert set(new) <= set(current)
        assert set(expired) <= set(previous)
        assert not set(new) & set(previous)
        assert sorted([*(set(previous) - set(expired)), *new]) == sorted(current)
        # And in the order of the window, which is (timestamp, arrival).
        assert new == [each for each in current if each in new]
        assert expired == [each for each in previous if each in expired]
        previous = current


@given(any_case(drains=True))
def test_every_accepted_tuple_expires_once_and_after_its_last_window(case):
    """Expiry is not early; the comparison with the model proves that it is not late."""
    events = events_of(case)
    accepted = {op[1 if op[0] == "add" else 2] for op in case["ops"] if op[0] in ("add", "tuple")}
    accepted -= {event[2] for event in events if event[1] == "late"}
    shown_at = {each: at for at, event in enumerate(events) if event[1] == "activate" for each in event[2]}
    expired_at: dict[Any, int] = {}
    for at, event in enumerate(events):
        if event[1] == "expire":
            for each in event[2]:
                assert each not in expired_at, "expired twice"
                expired_at[each] = at
    assert expired_at.keys() == accepted
    assert all(expired_at[each] > at for each, at in shown_at.items())


@given(any_case(drains=True))
def test_after_a_drain_nothing_is_pending_and_later_tuples_are_late(case):
    run = LosslessReplay(case)
    for _ in run_steps(case, run):
        pass
    assert run.executor.counts()["pending"] == 0
    assert run.executor.counts()["expired"] + run.executor.counts()["late"] == run.executor.counts()["in"]
    assert list(run.executor.drain()) == []
    [late] = run.executor.add("x", 10**13)
    assert late.reason.value == "closed"


@given(any_case(drains=False), st.integers(1, 10**13))
def test_a_turn_that_does_not_advance_the_watermark_does_nothing(case, back):
    run = LosslessReplay(case)
    for _ in run_steps(case, run):
        pass
    saved = json.dumps(run.executor.snapshot())
    manager = run.executor.manager
    if manager.watermark is not None:
        assert list(manager.advance(manager.watermark)) == []
        assert list(manager.advance(manager.watermark - back)) == []
    assert json.dumps(run.executor.snapshot()) == saved


@given(any_case(event_time=True, drains=False))
def test_a_turn_before_the_next_deadline_has_no_effect(case):
    run = LosslessReplay(case)
    manager = run.executor.manager
    for index, op in enumerate(case["ops"]):
        if op[0] != "watermark":
            run.feed(index, [op])
            continue
        before, deadline = manager.watermark, manager.next_deadline_ms()
        events = run.feed(index, [op])
        reached = manager.watermark
        if reached != before and (deadline is None or reached < deadline):
            assert events == []
