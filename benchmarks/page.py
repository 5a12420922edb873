"""Writes docs/benchmarks.md from the results: the targets, then every comparison as a table. No part of it is edited by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from benchmarks.charts import draw
from benchmarks.records import Comparison, Figure, Run, load
from benchmarks.suites import SUITES, number
from benchmarks.targets import judged

DOCS = Path(__file__).parent.parent / "docs"
HEAD = """# Benchmarks

This page has the measured speed and memory of the library beside its targets, Storm, Spark and other libraries.
`benchmarks/README.md` describes the method and each suite.

- Read ratios. The contenders of one table took turns in one run on a shared machine; figures of different tables were not measured
  side by side.
- In a table of one comparison, *rounds* gives the number of rounds, the smallest and the largest figure; *ratio* is the median of
  the ratios to the base in the same round; *size* is the number of events.
- `python -m benchmarks --page` writes this page from `benchmarks/results/`; do not edit it.

Machines and packages:
"""


def write(results: Path, docs: Path = DOCS) -> Path:
    """Write the page and its pictures; return the page's path."""
    runs = load(results)
    pictures = draw(runs, docs / "benchmarks")
    page = docs / "benchmarks.md"
    page.write_text(text(runs, pictures), encoding="utf-8")
    return page


def text(runs: Mapping[str, Run], pictures: Mapping[str, str]) -> str:
    """Return the text of the page."""
    parts = [HEAD, *machines(runs), "## Targets\n", table(("what", "target", "measured", "result"), judged(runs))]
    for suite in SUITES.values():
        if suite.name in runs:
            parts += section(runs[suite.name], suite.about, pictures.get(suite.name))
    absent = [f"`{name}`" for name in SUITES if name not in runs]
    if absent:
        parts.append(f"Not run: {', '.join(absent)}.\n")
    return "\n".join(parts)


def machines(runs: Mapping[str, Run]) -> list[str]:
    """Return each machine with results, with the suites that ran on it."""
    suites: dict[str, list[str]] = {}
    for run in runs.values():
        suites.setdefault(_machine(run), []).append(run.suite)
    return ["\n".join(f"- {', '.join(names)}: {machine}." for machine, names in suites.items()) + "\n"]


def _machine(run: Run) -> str:
    machine = run.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    java = f", {machine['java']}" if machine.get("java") else ""
    return f"{machine['system']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['python']}{java}; {packages}"


def section(run: Run, about: str, picture: str | None) -> Iterator[str]:
    """Yield the parts of a suite's section."""
    yield f"## {run.suite}\n"
    yield f"{about[0].upper()}{about[1:]}. {conditions(run)}\n"
    if picture:
        yield f"![{run.suite}](benchmarks/{picture})\n"
    for (axis, _), group in groupby(run.comparisons, key=_alike):
        comparisons = list(group)
        if axis:
            yield from map(curve, comparisons)
        elif len(comparisons) > 1 and not any(figure.notes for each in comparisons for figure in each.figures):
            yield beside(comparisons)
        else:
            yield from map(figures, comparisons)


def _alike(comparison: Comparison) -> tuple[bool, tuple[str, str, str]]:
    return comparison.axis is not None, (comparison.unit, comparison.base, comparison.clock)


def conditions(run: Run) -> str:
    """Return the time of a run, and the load of the machine."""
    part = "" if run.machine["scale"] == 1 else f", with {run.machine['scale']} of the events"
    commit, before, after = (run.machine[name] for name in ("commit", "load_before", "load_after"))
    return f"{run.started}, commit {commit}, {run.seconds:.0f} s{part}; load {before} before, {after} after."


def beside(comparisons: list[Comparison]) -> str:
    """Return one table for comparisons of one unit and one base: one line each, with the ratio in brackets."""
    first = comparisons[0]
    names = list(dict.fromkeys(figure.contender for each in comparisons for figure in each.figures))
    rows = []
    for each in comparisons:
        found = [(each.figure(name), name) for name in names]
        rows.append((each.name, each.about, *(_cell(figure, name == each.base) for figure, name in found)))
    return (
        f"In {first.unit} ({first.clock}), {_rounds(comparisons)}; in brackets the ratio to {first.base}.\n\n"
        + "\n".join([table(("", "", *names), rows), *_missing(comparisons)])
    )


def _rounds(comparisons: list[Comparison]) -> str:
    numbers = sorted({len(figure.rounds) for each in comparisons for figure in each.figures})
    return f"median of {'-'.join(map(str, numbers))} round{'s' * (numbers != [1])}"


def _cell(figure: Figure | None, base: bool) -> str:
    return "" if figure is None else number(figure.median) if base else f"{number(figure.median)} ({_ratio(figure)})"


def _missing(comparisons: list[Comparison]) -> list[str]:
    absent: dict[tuple[str, str], list[str]] = {}
    for comparison in comparisons:
        for each in comparison.missing:
            absent.setdefault((each.contender, each.reason), []).append(comparison.name)
    return [f"{who} {reason}: not in {'; '.join(names)}.\n" for (who, reason), names in absent.items()]


def figures(comparison: Comparison) -> str:
    """Return a table for one comparison, with notes, and with the contenders that did not run."""
    notes = list(dict.fromkeys(name for figure in comparison.figures for name in figure.notes))
    rows = [
        (
            *(figure.contender, number(figure.median), _range(figure), _ratio(figure), f"{figure.size:,}"),
            *(number(figure.notes[name]) if name in figure.notes else "" for name in notes),
        )
        for figure in comparison.figures
    ]
    rows += [(each.contender, each.reason, "", "", "", *("" for _ in notes)) for each in comparison.missing]
    head = ("", comparison.unit, "rounds", f"ratio to {comparison.base}", "size", *notes)
    return f"**{comparison.name}**: {comparison.about} ({comparison.clock}).\n\n" + table(head, rows)


def curve(comparison: Comparison) -> str:
    """Return a curve as a table with one column per point."""
    rows = [(comparison.unit, *(number(figure.median) for figure in comparison.figures))]
    rows.append(("ratio to the first", *map(_ratio, comparison.figures)))
    head = f"**{comparison.name}**: {comparison.about}, by {comparison.axis} ({comparison.clock}; {_rounds([comparison])}).\n\n"
    return head + table((comparison.axis or "", *(figure.contender for figure in comparison.figures)), rows)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table.

    >>> print(table(("what", "how long"), [("a | b", "3 s")]))
    | what | how long |
    |---|---|
    | a \\| b | 3 s |
    <BLANKLINE>
    """
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (head, *rows)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def _range(figure: Figure) -> str:
    if len(figure.rounds) == 1:
        return "1"
    return f"{len(figure.rounds)}: {number(min(figure.rounds))}-{number(max(figure.rounds))}"


def _ratio(figure: Figure) -> str:
    return "" if figure.ratio is None else f"{figure.ratio:.2f}" if figure.ratio < 100 else f"{figure.ratio:,.0f}"
