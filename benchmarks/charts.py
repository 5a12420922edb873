"""The pictures of docs/benchmarks.md, as SVG: bars of ratios, lines of growth. The same results give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.records import Comparison, Figure, Run

INK, GRID = "#24292f", "#d0d7de"
COLOURS = ("#0969da", "#cf222e", "#bf8700", "#1a7f37", "#8250df", "#57606a")


def draw(runs: Mapping[str, Run], folder: Path) -> dict[str, str]:
    """Draw a picture of each suite that has results; return the file name of each suite's picture."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    for suite, make in PICTURES.items():
        if suite not in runs:
            continue
        canvas = make(runs[suite])
        if canvas is not None:
            drawn[suite] = f"{suite}.svg"
            _save(canvas, folder / drawn[suite])
    return drawn


def core(run: Run) -> Canvas:
    """Return bars: the time of each contender relative to the floor."""
    return _bars(run.comparisons, "time; the floor, a loop by hand, = 1 (log)", lambda figure: figure.ratio)


def spark(run: Run) -> Canvas | None:
    """Return bars: the rows per second of each contender relative to native."""
    rates = [comparison for comparison in run.comparisons if comparison.unit == "rows/s"]
    return (
        _bars(rates, "rows/s; Spark's window() with RocksDB = 1 (log)", lambda figure: figure.ratio) if rates else None
    )


def growth(run: Run) -> Canvas:
    """Return a small chart for each curve."""
    curves = [comparison for comparison in run.comparisons if comparison.axis]
    columns = 3
    rows = -(-len(curves) // columns)
    canvas = Canvas(figsize=(11, 2.6 * rows), layout="constrained")
    for place, curve in enumerate(curves, start=1):
        axes = canvas.add_subplot(rows, columns, place)
        points = [(figure.x or 0, figure.median) for figure in curve.figures]
        axes.plot([max(x, 1) for x, _ in points], [y for _, y in points], marker="o", color=COLOURS[0])
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = min(y for _, y in points), max(y for _, y in points)
        axes.set_ylim(min(low / 2, 10), max(high * 2, 1000))
        axes.set_title(curve.name, fontsize=9, color=INK)
        axes.set_xlabel(curve.axis or "", fontsize=8)
        axes.set_ylabel(curve.unit, fontsize=8)
        _plain(axes)
    return canvas


PICTURES: dict[str, Callable[[Run], Canvas | None]] = {"core": core, "growth": growth, "spark": spark}


def _bars(comparisons: Any, label: str, value: Callable[[Figure], float | None]) -> Canvas:
    comparisons = [each for each in comparisons if len(each.figures) > 1]
    names = list(dict.fromkeys(f.contender for each in comparisons for f in each.figures[1:]))
    canvas = Canvas(figsize=(9, 0.8 + 0.4 * len(comparisons)), layout="constrained")
    axes = canvas.add_subplot()
    thick = 0.85 / max(3, *(len(each.figures) - 1 for each in comparisons))
    for index, name in enumerate(names):
        at, ratios = _places(comparisons, name, value, thick)
        bars = axes.barh(at, [ratio - 1 for ratio in ratios], thick, left=1, color=COLOURS[index], label=name)
        axes.bar_label(bars, [_short(ratio) for ratio in ratios], fontsize=7, padding=2)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(comparisons)), [each.name for each in comparisons], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label, fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    _plain(axes)
    return canvas


def _places(
    comparisons: list[Comparison], name: str, value: Callable[[Figure], float | None], thick: float
) -> tuple[list[float], list[float]]:
    """Return the positions of a contender's bars, grouped by comparison, and the values at which they end."""
    at, widths = [], []
    for y, comparison in enumerate(comparisons):
        others = comparison.figures[1:]
        for place, figure in enumerate(others):
            width = value(figure)
            if figure.contender == name and width is not None:
                at.append(y + (place - (len(others) - 1) / 2) * thick)
                widths.append(width)
    return at, widths


def _short(width: float) -> str:
    return f"{width:.2g}" if width < 100 else f"{width:,.0f}"


def _plain(axes: Any) -> None:
    axes.minorticks_off()
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(visible=True, which="major", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(canvas: Canvas, path: Path) -> None:
    with mpl.rc_context({"svg.hashsalt": "windowing", "svg.fonttype": "none"}):
        canvas.savefig(path, format="svg", metadata={"Date": None})
    text = path.read_text(encoding="utf-8")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", encoding="utf-8")
