"""Windows in Trident against the model of windows, batch by batch, with timestamps that are no times among the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windows.lossless_model import run_model
from windowing import InputSpout, millis
from windowing.testing.replay import config_of
from windowing.testing.strategies import cases
from windowing.trident import TridentRun, TridentTopology
from windowing.windows.config import SkippedTuplesWarning, WindowConfig

Batch = tuple[int, list[list[Any]]]
"""The clock, and the ops that add tuples."""
NO_TIMES = [None, 2**62, -(2**62), 2**63 - 1]


def batches_of(case: dict[str, Any]) -> Iterator[Batch]:
    """Yield the tuples of a case up to each of its turns."""
    now, tuples = case["clock_start_ms"], []
    for op in [*case["ops"], ["tick"]]:
        if op[0] == "clock":
            now = max(now, op[1])
        elif op[0] in ("add", "tuple"):
            tuples.append(["tuple", "in", *op[2:]] if op[0] == "tuple" else op)
        else:
            yield now, tuples
            tuples = []


def ops_of(case: dict[str, Any], batches: list[Batch]) -> tuple[list[list[Any]], list[int]]:
    """Return the ops of the model, and the batch of each; over the clock windows that are due fire before a batch's tuples."""
    turn = ["tick"] if case["event_time"] is None else ["watermark"]
    ops, numbers = [], []
    for number, (now, tuples) in enumerate(batches):
        first = [turn] if tuples and case["event_time"] is None else []
        more = [["clock", now], *first, *tuples, turn]
        ops += more
        numbers += [number] * len(more)
    return ops, numbers


def topology_of(config: WindowConfig, passes: Callable[[Any], bool] = lambda row: True) -> TridentTopology:
    def shown(window: Any) -> Any:
        parts = (window.get(), window.get_new(), window.get_expired())
        return *([row.id for row in part] for part in parts), window.end_timestamp

    topology = TridentTopology("model")
    rows: Any = topology.new_stream("in", InputSpout("id long, ts long, key string, source long"))
    options = {
        name: None if ms is None else millis(ms)
        for name, ms in (
            ("idle_timeout", config.idle_timeout_ms),
            ("max_future", config.max_future_ms),
            ("key_ttl", config.key_ttl_ms),
        )
    }
    if config.event_time:
        options |= {
            "timestamp": "ts",
            "lag": millis(config.lag_ms),
            "lateness": config.lateness,
            "source": config.source,
        }
    if config.offset_ms:
        options["offset"] = millis(config.offset_ms)
    windows = (rows.group_by("key") if config.key else rows).window(
        config.length,
        config.slide,
        None,
        shown,
        "ids array<long>, new array<long>, old array<long>, until long",
        **{name: value for name, value in options.items() if value is not None},
    )
    windows.filter(passes).sink("out")
    if config.event_time:
        windows.late_stream().sink("late")
    return topology


def row_of(op: list[Any]) -> tuple[Any, ...]:
    more = op[-1] if isinstance(op[-1], dict) else {}
    id, stamp = (op[2], op[3]) if op[0] == "tuple" else (op[1], 0)
    return id, stamp, more.get("key"), more.get("source")


EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "idle", "future", "source")
)


@pytest.mark.filterwarnings("ignore::windowing.schema.values.InvalidTimestampWarning")
@given(cases(drains=False, max_steps=24, **EITHER), st.lists(st.sampled_from(NO_TIMES), max_size=3), st.integers(0, 9))
def test_each_batch_of_a_window_in_trident_has_the_windows_and_late_tuples_of_the_model(case, no_times, at):
    if case["event_time"] is not None:
        case = {**case, "event_time": {**case["event_time"], "streams": ["in"]}}
    batches = list(batches_of(case))
    ops, batch_of = ops_of(case, batches)
    expected = run_model({**case, "ops": ops})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedTuplesWarning)
        run = TridentRun(topology_of(config_of(case)).build())
    for number, (now, tuples) in enumerate(batches):
        rows = list(map(row_of, tuples))
        invalid = no_times if number == at % len(batches) and case["event_time"] is not None else []
        found = run.batch({"in": [*rows, *((-1, stamp, None, None) for stamp in invalid)]}, now_ms=now)
        events = [event for event in expected.events if batch_of[event[0]] == number]
        assert [list(row[-4:]) for row in found["out"]] == [event[2:] for event in events if event[1] == "activate"]
        late = [(event[2], expected.late_reasons[event[2]]) for event in events if event[1] == "late"]
        late += [(-1, "invalid")] * len(invalid)
        assert sorted((row[0], row[-1]) for row in found.get("late", ())) == sorted(late)
