"""The results of a suite as plain records, and their conversion to JSON and back.

    Run (a suite, a machine)  >  Comparison (one workload, one base)  >  Figure (a contender's rounds)

Law: `Run.of(json.loads(json.dumps(run.plain()))) == run`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """The figures of one contender, round by round, in the comparison's unit; ratio: to the base in the same round.

    size: number of events of a round. x: the position on the axis of a growth curve.
    """

    contender: str
    rounds: tuple[float, ...]
    ratio: float | None
    size: int
    x: float | None = None
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Missing:
    """A contender that did not run, and the reason."""

    contender: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Contenders on one workload. clock: the kind of time that was measured. axis: the parameter of a growth curve, else None."""

    name: str
    about: str
    unit: str
    base: str
    clock: str
    figures: tuple[Figure, ...]
    missing: tuple[Missing, ...] = ()
    axis: str | None = None

    def figure(self, contender: str) -> Figure | None:
        """Return the figure of a contender, None if it has none."""
        return next((figure for figure in self.figures if figure.contender == contender), None)


@dataclass(frozen=True)
class Run:
    """All comparisons of a suite, with the time and the machine of the run."""

    suite: str
    started: str
    seconds: float
    machine: Mapping[str, Any]
    comparisons: tuple[Comparison, ...]

    def comparison(self, name: str) -> Comparison | None:
        """Return the comparison of that name, None if there is none."""
        return next((each for each in self.comparisons if each.name == name), None)

    def plain(self) -> dict[str, Any]:
        """Return the run as data for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Run:
        """Return the run of the data of `plain`."""
        return cls(**{**data, "comparisons": tuple(map(_comparison, data["comparisons"]))})


def _comparison(data: Mapping[str, Any]) -> Comparison:
    figures = tuple(Figure(**{**figure, "rounds": tuple(figure["rounds"])}) for figure in data["figures"])
    return Comparison(
        **{**data, "figures": figures, "missing": tuple(Missing(**each) for each in data["missing"])},
    )


def save(run: Run, folder: Path = RESULTS) -> Path:
    """Write `<folder>/<suite>.json`, replacing an older run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.suite}.json"
    path.write_text(json.dumps(run.plain(), indent=1) + "\n", encoding="utf-8")
    return path


def load(folder: Path = RESULTS) -> dict[str, Run]:
    """Return the runs in a folder, by suite."""
    runs = (Run.of(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json")))
    return {run.suite: run for run in runs}
