"""One comparison: contenders that run alternately on the same events.

    check     A == B == C                 exact, on a part of the events, before any time is measured
    round 1   A B C                       the results of every round must be equal too
    round 2   B C A                       the first of a round is the last of the next
    figure    the median of the rounds; its ratio: the median of (own / base of the same round)

A slow contender gets a share of the events, and its result is compared with the base's result for that share.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.records import Comparison, Figure, Missing

NS = 1e9


class Disagreement(AssertionError):
    """A contender's result differs from the base's, so its time is invalid."""


@dataclass(frozen=True)
class Measured:
    """The return value of a contender that measures itself: its result, and the figure in the comparison's unit."""

    result: Any
    value: float
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One contender. `run(workload)` returns the result, or a Measured.

    share: the part of the events that it gets. check: the function for the exact comparison before the rounds, by default `run`. x:
    its position on the axis of a growth curve. compared: False if its result in the rounds is not compared.
    """

    name: str
    run: Callable[[Any], Any]
    share: float = 1.0
    check: Callable[[Any], Any] | None = None
    x: float | None = None
    compared: bool = True


@dataclass(frozen=True)
class Plan:
    """The definition of a comparison. `workload(events)` returns the same events for the same number.

    size: number of events of a round. checked: number of events of the exact check (0: none, every round is exact). warmups: rounds
    that are not counted, for code that is compiled at run time.
    """

    name: str
    about: str
    contenders: Sequence[Contender]
    workload: Callable[[int], Any]
    size: int
    checked: int = 0
    unit: str = "ns per event"
    clock: str = "CPU time of the process"
    missing: Sequence[Missing] = ()
    axis: str | None = None
    order: Callable[[Any], Any] = lambda result: result
    warmups: int = 0


def measure(plan: Plan, rounds: int) -> Comparison:
    """Check, run the contenders alternately, and return the figures; the first contender is the base."""
    if plan.checked:
        check(plan, {plan.checked: plan.workload(plan.checked)})
    sizes = {contender.name: max(1, int(plan.size * contender.share)) for contender in plan.contenders}
    loads = {size: plan.workload(size) for size in sorted(set(sizes.values()))}
    expected = {size: _expected(plan, load) for size, load in loads.items()}
    values: dict[str, list[float]] = {contender.name: [] for contender in plan.contenders}
    notes: dict[str, list[Mapping[str, float]]] = {contender.name: [] for contender in plan.contenders}
    for number in range(-plan.warmups, rounds):
        for contender in _turned(plan.contenders, number):
            size = sizes[contender.name]
            found = timed(contender.run, loads[size], size)
            if contender.compared:
                agree(plan, contender.name, found.result, expected[size])
            if number < 0:
                continue
            values[contender.name].append(found.value)
            notes[contender.name].append(found.notes)
    base = values[plan.contenders[0].name]
    figures = tuple(
        Figure(
            contender.name,
            tuple(values[contender.name]),
            ratio(values[contender.name], base),
            sizes[contender.name],
            contender.x,
            medians(notes[contender.name]),
        )
        for contender in plan.contenders
    )
    base_name = plan.contenders[0].name
    return Comparison(plan.name, plan.about, plan.unit, base_name, plan.clock, figures, tuple(plan.missing), plan.axis)


def timed(run: Callable[[Any], Any], load: Any, size: int) -> Measured:
    """Run once; return the contender's own figure, or nanoseconds of CPU time per event."""
    with quiet():
        started = time.process_time()
        found = run(load)
        taken = time.process_time() - started
    return found if isinstance(found, Measured) else Measured(found, taken / size * NS)


@contextmanager
def quiet() -> Iterator[None]:
    """Collect garbage first, and exclude the existing objects from the collector during the measurement."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def ratio(own: Sequence[float], base: Sequence[float]) -> float | None:
    """Return the median of the rounds' ratios; None if the base took no measurable time."""
    ratios = [mine / other for mine, other in zip(own, base, strict=True) if other]
    return statistics.median(ratios) if ratios else None


def medians(notes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each note."""
    return {name: statistics.median([each[name] for each in notes if name in each]) for name in notes[0]}


def agree(plan: Plan, name: str, found: Any, expected: Any) -> None:
    """Raise Disagreement unless two results are equal in the plan's order."""
    if plan.order(found) != expected:
        raise Disagreement(
            f"{plan.name}: {name} found {_short(plan.order(found))}, {plan.contenders[0].name} found {_short(expected)}"
        )


def check(plan: Plan, loads: Mapping[int, Any]) -> None:
    """Raise Disagreement unless all contenders have the same result for each workload."""
    for load in loads.values():
        expected = None
        for contender in plan.contenders:
            if not contender.compared and contender.check is None:
                continue
            found = _result((contender.check or contender.run)(load))
            if expected is None:
                expected = plan.order(found)
            agree(plan, contender.name, found, expected)


def _expected(plan: Plan, load: Any) -> Any:
    """Return the base's result for a workload, which every contender must match."""
    base = plan.contenders[0]
    return plan.order(_result(base.run(load))) if base.compared else None


def _result(found: Any) -> Any:
    return found.result if isinstance(found, Measured) else found


def _turned(contenders: Sequence[Contender], number: int) -> Sequence[Contender]:
    first = number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
