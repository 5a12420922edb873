"""The suites by name, and the run of one: its comparisons one after the other, then a file of results."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.frame import Plan, measure
from benchmarks.machine import machine
from benchmarks.records import Comparison, Run

Say = Callable[[str], None]


@dataclass(frozen=True)
class Suite:
    """A suite.

    module: has `plans(scale)`, or the function named by `entry`; or `comparisons(scale, rounds, say)` if it measures itself. asked:
    the suite runs only when it is named, because it needs more than `make setup` installs.
    """

    name: str
    module: str
    about: str
    asked: bool = False
    entry: str = "plans"

    def run(self, scale: float, rounds: int, say: Say, keep: Callable[[Run], object], match: str = "") -> Run:
        """Run every comparison whose name contains `match`.

        Each comparison is printed and stored when it ends, so an interrupted run keeps its results.
        """
        found: list[Comparison] = []
        conditions, started, clock = machine() | {"scale": scale}, datetime.now(UTC), time.monotonic()
        run = Run(self.name, started.isoformat(timespec="seconds"), 0.0, conditions, ())
        for comparison in self._comparisons(scale, rounds, say, match):
            say(line(comparison))
            found.append(comparison)
            now = conditions | {"load_after": round(os.getloadavg()[0], 2)}
            run = replace(run, seconds=round(time.monotonic() - clock, 1), machine=now, comparisons=tuple(found))
            keep(run)
        return run

    def _comparisons(self, scale: float, rounds: int, say: Say, match: str) -> Iterator[Comparison]:
        module: Any = importlib.import_module(self.module)
        if hasattr(module, "comparisons"):
            yield from module.comparisons(scale, rounds, say)
            return
        plan: Plan
        for plan in getattr(module, self.entry)(scale):
            if match in plan.name:
                yield measure(plan, rounds)


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "core", "benchmarks.core.suite", "windows in one process, against loops written by hand and other libraries"
        ),
        Suite("growth", "benchmarks.growth", "the cost of an event or a trigger as lengths, keys and disorder grow"),
        Suite("memory", "benchmarks.memory", "bytes per buffered event"),
        Suite("persistent", "benchmarks.persistent", "windows on disk, against windows in memory"),
        Suite("acker", "benchmarks.acker", "bytes per root, and messages per second"),
        Suite("cluster", "benchmarks.cluster", "a topology in one process"),
        Suite("state", "benchmarks.state", "commits to the stores of a Trident state"),
        Suite("simulator", "benchmarks.simulator", "simulated schedules per second"),
        Suite("spark", "benchmarks.spark.windows", "windows on Spark, against its own `window()`"),
        Suite(
            "spark_small",
            "benchmarks.spark.small",
            "the fixed cost of a batch, against native Spark with the same file manager",
        ),
        Suite("trident", "benchmarks.spark.trident", "Trident's states on Spark, against an upsert by hand"),
        Suite("spark_state", "benchmarks.spark.state", "bytes of state written per batch"),
        Suite("spark_recovery", "benchmarks.spark.recovery", "from a kill to the next commit; the flights job"),
        Suite(
            "yahoo",
            "benchmarks.spark.public",
            "a topology of the shape of the Yahoo streaming benchmark",
            entry="yahoo",
        ),
        Suite("storm", "benchmarks.storm.suite", "Storm's own Java classes, on count windows", asked=True),
        Suite(
            "queues", "benchmarks.spark.queues", "Kafka to Kafka, and queues with acks; needs make services", asked=True
        ),
        Suite("nexmark", "benchmarks.spark.public", "NEXMark queries 5, 7 and 8", entry="nexmark"),
    )
}


def line(comparison: Comparison) -> str:
    """Return a comparison as one line, for the screen."""
    cells = [
        f"{each.contender} {number(each.median)}" + ("" if each.ratio is None else f" ({each.ratio:.2f}x)")
        for each in comparison.figures
    ]
    cells += [f"{each.contender}: {each.reason}" for each in comparison.missing]
    return f"{comparison.name} [{comparison.unit}]  " + ", ".join(cells)


def number(value: float) -> str:
    """Return a figure with about three significant digits.

    >>> number(12345.6), number(45.67), number(0.01234)
    ('12,346', '45.7', '0.0123')
    """
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"
