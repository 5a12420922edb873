"""Specs: a checkpoint distinguishes user-defined aggregators and policies by class and parameters."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any
from unittest.mock import ANY

import pytest

from windowing.errors import BoltError, SnapshotError
from windowing.local import run_local
from windowing.topology.decorators import bolt_of, windowed_bolt
from windowing.windows import aggregate as agg
from windowing.windows.aggregate import policy_spec, spec_of
from windowing.windows.config import WindowConfig
from windowing.windows.eviction import Action, CountEvictionPolicy, EvictionPolicy
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Count, count, seconds
from windowing.windows.partials import Aggregation
from windowing.windows.trigger import TriggerPolicy


@dataclass(frozen=True)
class Top:
    """The largest values."""

    n: int
    order: Any = None
    field: str | None = None

    def init(self) -> list[Any]:
        return []

    def add(self, acc: list[Any], value: Any) -> list[Any]:
        return self.merge(acc, [value])

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return sorted([*a, *b], key=self.order)[-self.n :]

    def result(self, acc: list[Any]) -> list[Any]:
        return acc


class LastOf(EvictionPolicy):
    def __init__(self, n: int = 5) -> None:
        self.n = n
        self._seen = 0

    def evict(self, event: Any) -> Action:
        return Action.PROCESS


class Every(TriggerPolicy):
    def __init__(self, n: int) -> None:
        self.n = n

    def track(self, event: Any) -> None:
        return None


def definition(**declared: Any) -> dict[str, Any]:
    options = {"length": seconds(4), "output": "n long", "name": "count"} | declared
    fixed: dict[str, Any] = bolt_of(windowed_bolt(**options)(lambda window: 1)).definition()["fixed"]
    assert json.loads(json.dumps(fixed)) == fixed
    return fixed


def push(acc: Any, value: Any) -> Any:
    return acc


def join(a: Any, b: Any) -> Any:
    return a


def test_folds_of_different_functions_have_different_specs() -> None:
    one, other = agg.fold(list, push, join), agg.fold(list, join, push)
    assert spec_of(one)["parameters"] == {
        "start": "list",
        "step": "push",
        "join": "join",
        "finish": "_identity",
    }
    assert spec_of(one) != spec_of(other)
    assert definition(aggregate=one) != definition(aggregate=other)


def test_the_spec_of_an_aggregator_has_its_class_and_parameters() -> None:
    assert spec_of(Top(3, len, "f")) == {"kind": "Top", "field": "f", "parameters": {"n": 3, "order": "len"}}
    assert spec_of(Top(3)) != spec_of(Top(4))
    assert spec_of(agg.max("delay")) == {"kind": "max", "field": "delay"}


class Scored:
    """An aggregator that reads something at its first add, and keeps it."""

    field = "v"

    def __init__(self, held: Any = None) -> None:
        self.factor: int | None = None
        self.held = held

    def init(self) -> int:
        return 0

    def add(self, acc: int, value: int) -> int:
        if self.factor is None:
            self.factor = 2
        return acc + self.factor * value

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


@pytest.mark.parametrize("size", [count(2), seconds(1)])
@pytest.mark.parametrize("slide", [count(2), seconds(1)])
def test_a_run_does_not_change_the_definition_of_an_aggregator_that_keeps_something(size: Any, slide: Any) -> None:
    @windowed_bolt(size, slide, timestamp="at", aggregate=Scored(), output="total long")
    def scored(window: Any) -> int:
        return int(window.aggregate)

    before = bolt_of(scored).definition()
    for _ in range(2):
        assert run_local(scored, [[{"at": 1, "v": 3}, {"at": 2, "v": 4}]]).rows == {"default": [(14,)]}
        assert bolt_of(scored).definition() == before


def test_what_an_aggregator_refers_to_is_not_copied() -> None:
    held = [Lock(), json, MappingProxyType({})]
    for aggregate in (Scored(held), MappingProxyType({"total": Scored(held)})):
        part: Any = Aggregation(aggregate).parts[0][1]
        assert part.held is held


def test_the_spec_of_a_class_with_slots_has_its_parameters_too() -> None:
    class Last(EvictionPolicy):
        __slots__ = "n"

        def __init__(self, n: int) -> None:
            self.n = n

        def evict(self, event: Any) -> Any: ...

    class Named(Last):
        __slots__ = ("_seen", "later", "name")

        def __init__(self, n: int, name: str) -> None:
            super().__init__(n)
            self.name, self._seen = name, 0

    assert policy_spec(lambda: Last(3), "eviction", "count") == {"kind": ANY, "parameters": {"n": 3}}
    assert policy_spec(lambda: Named(3, "a"), "eviction", "count") == {"kind": ANY, "parameters": {"n": 3, "name": "a"}}


def test_the_spec_of_parameters_is_the_same_in_every_process() -> None:
    """A set of strings has another order in each process, and an object without its own repr another address."""
    script = (
        "import json, types; from windowing.windows.aggregate import spec_of as spec; "
        "from windowing import count, seconds\n"
        "class Any:\n"
        "    def __init__(self, **all): vars(self).update(all)\n"
        "given = dict(what=Any(), call=[len, {1: seconds(2)}], low=float('-inf'), raw=b'x', _own=object())\n"
        "made = Any(names={'a', 'b', 'c', 'd'}, **given)\n"
        "print(json.dumps(spec(made)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in "123"
    }
    assert [json.loads(each)["parameters"] for each in found] == [
        {
            "names": ["'a'", "'b'", "'c'", "'d'"],
            "what": "Any",
            "call": ["len", {"1": {"kind": "Duration", "parameters": {"ms": 2000}}}],
            "low": "-inf",
            "raw": "b'x'",
        }
    ]


def test_the_spec_of_a_policy_is_that_of_its_factorys_instance() -> None:
    five: dict[str, Any] = {"kind": "LastOf", "parameters": {"n": 5}}
    for factory in (LastOf, lambda: LastOf(5), functools.partial(LastOf, n=5)):
        assert definition(length=None, eviction=factory)["eviction"] == five
    assert definition(trigger=lambda: Every(6))["trigger"] == {"kind": "Every", "parameters": {"n": 6}}
    assert policy_spec(lambda: CountEvictionPolicy(2), "eviction", "count") == "CountEvictionPolicy"
    with pytest.raises(BoltError, match=r"eviction= made 0\.5, which has no method evict"):
        policy_spec(lambda: 1 / 2, "eviction", "count")


def test_a_policy_factory_that_raises_is_an_error_that_names_the_bolt() -> None:
    with pytest.raises(BoltError, match=r"bolt 'count' failed in eviction=, when it was made: ZeroDivisionError"):
        definition(length=None, eviction=lambda: 1 / 0)


def test_a_snapshot_of_another_aggregator_is_refused() -> None:
    def executor(n: int) -> WindowedBoltExecutor:
        return WindowedBoltExecutor(WindowConfig.of(length=count(2), slide=Count(1), timestamp="t", aggregate=Top(n)))

    saved = executor(3).snapshot()
    executor(3).restore(saved)
    with pytest.raises(SnapshotError):
        executor(4).restore(saved)
