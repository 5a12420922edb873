"""The targets, each with the result of the last runs.

A target selects numbers by label ("shape 1": 1.4) and compares each with a limit. Without a run the number is None, and the target
is "not measured", never "met".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.frame import ratio
from benchmarks.records import Comparison, Run
from benchmarks.suites import number

COLUMNAR = ", columnar"
"""Suffix of a label whose bolt receives columns."""

LARGER = " (ours: 1M)"
"""Suffix of a label with our batches of 1,000,000 rows, and native's of 100,000."""

Runs = Mapping[str, Run]
Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Target:
    """A target: `numbers(runs)` compared with `limits`, one limit or one for each label, as a maximum or a minimum."""

    what: str
    wanted: str
    numbers: Callable[[Runs], Numbers]
    limits: float | Mapping[str, float]
    at_most: bool = True

    def judge(self, runs: Runs) -> tuple[str, str]:
        """Return the measured values, and "met", "missed: ..." or "not measured: ..."."""
        found = self.numbers(runs)
        measured = ", ".join(f"{label}: {number(value)}" for label, value in found.items() if value is not None)
        missed = [f"{label} {self._by(label, value)}" for label, value in found.items() if value is not None]
        missed = [each for each in missed if not each.endswith(" met")]
        absent = [label for label, value in found.items() if value is None]
        verdict = [f"missed: {', '.join(missed)}"] if missed else []
        verdict += [f"not measured: {', '.join(absent)}"] if absent else []
        return measured or "-", "; ".join(verdict) or "met"

    def _by(self, label: str, value: float) -> str:
        limit = (
            self.limits
            if isinstance(self.limits, int | float)
            else self.limits[label.removesuffix(COLUMNAR).removesuffix(LARGER)]
        )
        if value <= limit if self.at_most else value >= limit:
            return "met"
        return f"by a factor of {number(value / limit if self.at_most else limit / value)}"


def judged(runs: Runs) -> list[tuple[str, str, str, str]]:
    """Return (what, wanted, measured, verdict) of every target."""
    return [(target.what, target.wanted, *target.judge(runs)) for target in TARGETS]


# -- numbers of the targets -------------------------------------------------------------------------------------------


def _comparison(runs: Runs, suite: str, name: str) -> Comparison | None:
    return runs[suite].comparison(name) if suite in runs else None


def between(runs: Runs, suite: str, name: str, above: str, below: str) -> float | None:
    """Return the median of above / below, round by round; None if one of them did not run."""
    comparison = _comparison(runs, suite, name)
    one, other = (comparison and comparison.figure(each) for each in (above, below))
    return ratio(one.rounds, other.rounds) if one and other else None


def spread(runs: Runs, suite: str, name: str) -> float | None:
    """Return the cost of the most expensive point of a curve relative to the first point."""
    comparison = _comparison(runs, suite, name)
    ratios = [figure.ratio for figure in comparison.figures if figure.ratio] if comparison else []
    return max(ratios, default=None)


def value(runs: Runs, suite: str, name: str, contender: str) -> float | None:
    """Return the median of a figure."""
    comparison = _comparison(runs, suite, name)
    figure = comparison and comparison.figure(contender)
    return figure.median if figure else None


def _in_batches(runs: Runs) -> Numbers:
    """Return the ratios to the floor: lists of rows, and, if a bolt receives the aggregates of all keys, columns."""
    rows = _core("batches of 10,000", "windowing", "by hand", "1 2 3 4")(runs)
    columns = _core("batches of 10,000", "windowing, columnar", "by hand", "1 2")(runs)
    return rows | {label + COLUMNAR: value for label, value in columns.items() if value is not None}


def _core(way: str, above: str, below: str, shapes: str) -> Callable[[Runs], Numbers]:
    return lambda runs: {f"shape {s}": between(runs, "core", f"{s}, {way}", above, below) for s in shapes.split()}


def _storm(shapes: str) -> Callable[[Runs], Numbers]:
    return lambda runs: {s: between(runs, "storm", s, "Storm", "windowing") for s in shapes.split()}


def _curves(*names: str) -> Callable[[Runs], Numbers]:
    return lambda runs: {name: spread(runs, "growth", name) for name in names}


def _in_spark(*names: str) -> Callable[[Runs], Numbers]:
    """Return the ratios to native: a bolt called for each key, and, if measured, one that receives a table for all keys."""

    def numbers(runs: Runs) -> Numbers:
        found = {name: between(runs, "spark", name, "windowing", "native") for name in names}
        columnar = {name: between(runs, "spark", name, "windowing, columnar", "native") for name in names}
        larger = {name: between(runs, "spark", name, "windowing, 1M", "native") for name in names}
        return (
            found
            | {name + COLUMNAR: value for name, value in columnar.items() if value is not None}
            | {name + LARGER: value for name, value in larger.items() if value is not None}
        )

    return numbers


def _state(runs: Runs) -> Numbers:
    comparison = _comparison(runs, "spark_state", "state written")
    if comparison is None:
        return {"state written": None}
    return {figure.contender: figure.median for figure in comparison.figures}


def _resident(runs: Runs) -> Numbers:
    comparison = _comparison(runs, "persistent", "window of 5,000,000")
    return {"resident MB": comparison.figures[0].notes["resident MB"] if comparison else None}


def _memory(contender: str) -> Callable[[Runs], Numbers]:
    return lambda runs: {contender: value(runs, "memory", "buffered", contender)}


TARGETS = (
    Target(
        "core, batches of 10,000, shapes 1 to 4: time against the floor, the loop written by hand for batches", "at most 1.5 times",
        _in_batches, 1.5,
    ),
    Target(
        "core, one event at a time: time against the floor, the loop written by hand for single events", "at most 4 times",
        _core("one at a time", "windowing", "by hand", "1 2 3 4"), 4,
    ),
    Target(
        "core: rate against bytewax, shapes 1, 2, 4", "at least 10 times",
        _core("batches of 10,000", "bytewax", "windowing", "1 2 4"), 10, at_most=False,
    ),
    Target(
        "core, batches: rate against Storm's Java WindowManager", "at least equal on every shape",
        _storm("1,000 1,000/100 10,000/100 1,000/1"), 1, at_most=False,
    ),
    Target(
        "the same, on 10,000/100 and 1,000/1", "at least 10 times", _storm("10,000/100 1,000/1"), 10, at_most=False,
    ),
    Target(
        "bolts with aggregate=: cost per event for window lengths from 10^2 to 10^6, against the shortest", "at most 1.3 times",
        _curves("length, aggregate", "length, Count aggregate"), 1.3,
    ),
    Target(
        "a trigger with up to 10^6 buffered events outside the window: cost against the fewest", "at most 1.3 times",
        _curves("trigger, buffered events"), 1.3,
    ),
    Target(
        "up to 10^6 keys, a watermark that closes 100 of them: cost against the fewest keys", "at most 1.3 times",
        _curves("trigger, keys, rows", "trigger, keys, aggregate"), 1.3,
    ),
    Target(
        "Spark, tumbling 1 s per key, noop sinks: rows/s against native window()",
        "at least 1.3 times with 1,000,000 rows a batch, 0.9 times with 100,000",
        _in_spark("tumbling 1 s, 1M", "tumbling 1 s, 100k"),
        {"tumbling 1 s, 1M": 1.3, "tumbling 1 s, 100k": 0.9}, at_most=False,
    ),
    Target(
        "Spark, sliding 10 s/1 s, 60 s/1 s, 600 s/1 s per key: rows/s against native window()", "at least 1.5, 3.5, 100 times",
        _in_spark("sliding 10 s/1 s, 1M", "sliding 60 s/1 s, 1M", "sliding 600 s/1 s, 100k"),
        {"sliding 10 s/1 s, 1M": 1.5, "sliding 60 s/1 s, 1M": 3.5, "sliding 600 s/1 s, 100k": 100},
        at_most=False,
    ),
    Target(
        "Spark, a Python function over all rows of a window: rows/s against native collect_list and a Python UDF",
        "at least 5 times",
        _in_spark("function over rows, 10 s/1 s, 100k"), 5, at_most=False,
    ),
    Target(
        "Spark, state written per batch with at least 10,000 rows a task: bytes against those of the new events",
        "at most 1.5 times",
        _state, 1.5,
    ),
    Target("memory per buffered event, a tuple of 3: bytes beside the tuple", "at most 150", _memory("Duration window"), 150),
    Target("memory per buffered event, columnar: bytes in all", "at most 40", _memory("columnar, in all"), 40),
    Target(
        "the acker: bytes of a root in flight", "at most 250",
        lambda runs: {"traced": value(runs, "acker", "bytes a root", "exact, 50 roots a ms")}, 250,
    ),
    Target("a window of 5,000,000 tuples with 50,000 in memory: MB of resident memory", "at most 400", _resident, 400),
)  # fmt: skip
