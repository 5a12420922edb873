"""An error during a call spends the machine: no tuple is half counted, and no later call is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from windowing import count, millis, seconds, windowed_bolt
from windowing.errors import BoltError, ConfigError, MachineSpentError, WindowingError
from windowing.local import LocalRun
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.eviction import Action, EvictionPolicy
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.manager import WindowManager
from windowing.windows.trigger import TriggerPolicy

BOTH = {"s": agg.sum("v"), "c": agg.count()}
GOOD, BAD = {"v": 1}, {"v": "x"}


class Divides(EvictionPolicy):
    def evict(self, event: Any) -> Action:
        raise ZeroDivisionError


def broken() -> EvictionPolicy:
    raise ZeroDivisionError


def executor_of(**options: Any) -> WindowedBoltExecutor:
    return WindowedBoltExecutor(WindowConfig.of(**{"length": count(3), "slide": count(3), **options}))


FAILING: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
    "an aggregator, over time": (
        {"length": millis(10), "slide": millis(10), "aggregate": BOTH, "timestamp": "t"},
        GOOD,
        BAD,
        None,
    ),
    "a key without a hash": ({"key": "k", "timestamp": "t"}, GOOD, GOOD, [2]),
    "a policy that cannot be made": ({"eviction": broken, "length": None, "timestamp": "t", "key": "k"}, None, GOOD, 1),
    "a key without a hash, over the clock": ({"key": "k"}, GOOD, GOOD, [2]),
}


@pytest.mark.parametrize("case", sorted(FAILING))
@pytest.mark.parametrize("batched", [False, True])
def test_a_machine_that_raised_in_a_call_is_spent(case: str, batched: bool) -> None:
    options, first, second, key = FAILING[case]
    executor = executor_of(**options)
    executor.set_clock(1)
    timed = [1] if "timestamp" in options else None
    if first is not None:
        assert list(executor.add_batch([first], timed, keys=[1])) == []
    with pytest.raises((TypeError, ZeroDivisionError, BoltError)):
        list(
            executor.add_batch([second], timed, keys=[key])
            if batched
            else executor.add(second, timed and timed[0], key=key)
        )
    for entry in (
        lambda: executor.add(GOOD, 1, key=1),
        lambda: executor.add(GOOD, None, key=1) if timed else executor.add(GOOD, key=1),
        lambda: executor.add_batch([GOOD], timed, keys=[1]),
        lambda: executor.add_batch([]),
        executor.turn,
        executor.drain,
        executor.snapshot,
    ):
        with pytest.raises(MachineSpentError):
            entry()


def test_a_failed_turn_is_not_repeated_as_an_empty_one() -> None:
    executor = executor_of(eviction=Divides, length=None, slide=count(1), timestamp="t")
    assert list(executor.add_batch(["a"], [1])) == []
    with pytest.raises((ZeroDivisionError, BoltError)):
        executor.turn()
    for _ in range(2):
        with pytest.raises(MachineSpentError):
            executor.turn()


def test_a_failed_step_ends_the_local_run_and_calls_cleanup() -> None:
    gone: list[str] = []

    @windowed_bolt(slide=count(1), timestamp="at", eviction=Divides, output="n long")
    class Cleaned:
        def execute(self, window: Any) -> int:
            return len(window)

        def cleanup(self) -> None:
            gone.append("cleanup")

    run = LocalRun(Cleaned)
    run.feed([{"at": 1}])
    with pytest.raises((ZeroDivisionError, BoltError)):
        run.turn()
    assert gone == ["cleanup"]
    assert run.result.rows == {"default": []}
    for step in (run.turn, run.drain, lambda: run.feed([])):
        with pytest.raises(WindowingError, match="is over"):
            step()


@pytest.mark.parametrize(
    "columns",
    [
        {"timestamps": [1, 2]},
        {"timestamps": [1, 2, 3], "keys": [1]},
        {"timestamps": [1, 2, 3], "sources": [1, 2]},
        {"timestamps": [1, 2, 3], "stream": ["default"]},
        {"timestamps": None},
    ],
)
def test_a_batch_needs_one_value_per_tuple_in_every_column(columns: dict[str, Any]) -> None:
    executor = executor_of(timestamp="t")
    with pytest.raises(ConfigError, match="give one for each"):
        executor.add_batch(["a", "b", "c"], **columns)
    assert executor.counts()["in"] == 0
    assert list(executor.add_batch(["a"], [1])) == []


def test_a_batch_with_an_undeclared_stream_changes_nothing() -> None:
    executor = executor_of(timestamp="t")
    with pytest.raises(ConfigError, match="not declared"):
        executor.add_batch(["a", "b"], [9, 5], stream=["default", "other"])
    list(executor.turn())
    assert executor.watermark is None


def test_a_manager_needs_one_timestamp_per_tuple() -> None:
    manager = WindowManager(WindowConfig.of(length=seconds(1), slide=seconds(1), timestamp="t"))
    for columns in (([1],), ([1, 2], [1])):
        with pytest.raises(ConfigError, match="give one for each"):
            manager.add_batch(["a", "b"], *columns)


def test_a_key_may_be_nan() -> None:
    nan = float("nan")
    for options in ({}, {"eviction": lambda: Divides(), "length": None}):
        executor = executor_of(key="k", timestamp="t", **options)
        assert list(executor.add_batch(["a", "b"], [1, 2], keys=[nan, nan])) == []
        executor.check()


class Forgetful(TriggerPolicy):
    """A trigger whose state cannot be restored."""

    def track(self, event: Any) -> None:
        return None

    def restore_state(self, state: Any) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "options",
    [
        {"timestamp": "t", "key": "k"},
        {"timestamp": "t", "key": "k", "aggregate": agg.count()},
        {"timestamp": "t", "key": "k", "aggregate": agg.count(), "length": millis(5), "slide": millis(5)},
        {"timestamp": "t", "key": "k", "trigger": Forgetful, "slide": None},
    ],
)
def test_a_machine_whose_restore_failed_half_way_is_spent(options: dict[str, Any]) -> None:
    executor = executor_of(**options)
    executor.add(GOOD, 1, key=1)
    saved = executor.snapshot()
    if "trigger" not in options:
        del saved["manager"]["tally"]["fired"]
    with pytest.raises((KeyError, BoltError)):
        executor.restore(saved)
    with pytest.raises(MachineSpentError):
        executor.add(GOOD, 2, key=1)
    with pytest.raises(MachineSpentError):
        executor.turn()
    executor.restore(executor_of(**options).snapshot())
    assert list(executor.add(GOOD, 2, key=1)) == []
    assert executor.counts()["in"] == 1
