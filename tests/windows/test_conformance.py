"""The 400 cases recorded from Apache Storm's own windowing classes: the same operations produce the same events.

The failing case is in the name of the test; the format is described in `windowing/testing/replay.py`.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from windowing.testing.replay import StormReplay, replay

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in gzip.decompress((Path(__file__).parents[1] / "data" / "windows.jsonl.gz").read_bytes()).splitlines()
]
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def assert_conforms(case: dict[str, Any], **options: Any) -> None:
    operations = {name: value for name, value in case.items() if name != "events"}
    assert replay({**operations, **options}) == case["events"]


def test_all_400_recorded_cases_are_present():
    events = [event for case in CASES for event in case["events"]]
    assert len(CASES) == 400
    assert sum(event[1] == "activate" for event in events) == 18_213
    assert sum(event[1] == "late" for event in events) == 3_075


@EVERY_CASE
def test_the_events_equal_those_recorded_from_storm(case):
    assert_conforms(case)


@EVERY_CASE
def test_fed_in_batches_the_events_equal_those_recorded_from_storm(case):
    assert_conforms(case, batched=True)


@EVERY_CASE
def test_stopped_anywhere_and_resumed_from_a_snapshot_the_events_are_the_same(case):
    chance = random.Random(case["name"])
    stops = {chance.randrange(len(case["ops"])) for _ in range(4)}
    run = StormReplay(case)
    events = []
    for index, op in enumerate(case["ops"]):
        events += run.feed(index, [op])
        run.manager.check()
        run.generator.check()
        if index in stops:
            saved, clock_ms = snapshot(run), run.clock_ms
            run = StormReplay(case)
            run.clock_ms = clock_ms
            manager, generator = json.loads(saved)
            run.manager.restore(manager)
            run.generator.restore(generator)
            assert snapshot(run) == saved
    assert events == case["events"]


def snapshot(run: StormReplay) -> str:
    """The machines of a run: plain data, so it can be stored as JSON."""
    return json.dumps([run.manager.snapshot(), run.generator.snapshot()])


def _with_activations(stateful: bool) -> dict[str, Any]:
    kinds = {"activate"} if stateful else {"activate", "expire", "late"}
    return next(
        case for case in CASES if case["stateful"] is stateful and kinds <= {event[1] for event in case["events"]}
    )


def _drop(events: list[Any], at: int) -> None:
    del events[at]


def _swap(events: list[Any], at: int) -> None:
    events[at], events[at - 1] = events[at - 1], events[at]


def _other_op(events: list[Any], at: int) -> None:
    events[at][0] += 1


def _other_tuple(events: list[Any], at: int) -> None:
    events[at][2] = events[at][2][:-1]


def _other_reference(events: list[Any], at: int) -> None:
    events[at][5] += 1


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("change", [_drop, _swap, _other_op, _other_tuple, _other_reference])
def test_a_changed_expectation_is_detected(change, stateful, batched):
    case = copy.deepcopy(_with_activations(stateful))
    assert_conforms(case, batched=batched)
    last = max(index for index, event in enumerate(case["events"]) if event[1] == "activate")
    change(case["events"], last)
    with pytest.raises(AssertionError):
        assert_conforms(case, batched=batched)
