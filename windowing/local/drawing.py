"""to_svg(), to_png(): a topology as an image, drawn by matplotlib (extra `draw`; no other program is needed).

The boxes and arrows are those of `Topology.to_mermaid`. Layout: one column for each distance from the spouts, data flows to the
right. Within a column a component is near its inputs, an arrow that passes a column has a position of its own there, and arrows
between the same two boxes are drawn side by side. The same plan gives the same SVG, byte for byte.
"""

from __future__ import annotations

import io
from typing import Any

from windowing.errors import ConfigError
from windowing.execution.plan import ExecutionPlan
from windowing.topology.pictures import Arrow, Box
from windowing.topology.plan import Topology

_Place = tuple[float, float]

_CHARACTER, _LINE = 0.084, 0.2  # inches, at 10 points
_APART = 0.18  # inches between arrows of the same two boxes
_FILLS = {"spout": "#dcecf8", "bolt": "#f4f4f2", "window": "#fdf0d5", "state": "#e3f1df"}
_SETTINGS: Any = {"svg.hashsalt": "windowing", "svg.fonttype": "none", "font.family": "monospace", "font.size": 10}


def to_svg(topology: Topology | ExecutionPlan) -> str:
    """Return the plan as SVG text with searchable labels.

    Raises ConfigError if matplotlib is not installed. Cost: tens of milliseconds for a plan of ten components.
    """
    return _drawn(topology, "svg", {"dpi": 72, "metadata": {"Date": None}}).decode()


def to_png(topology: Topology | ExecutionPlan, dpi: int = 150) -> bytes:
    """Return the plan as the bytes of a PNG. dpi: dots per inch. Raises ConfigError if matplotlib is not installed."""
    return _drawn(topology, "png", {"dpi": dpi, "metadata": {"Software": None}})


def _drawn(topology: Topology | ExecutionPlan, kind: str, options: dict[str, Any]) -> bytes:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "an image of a topology needs matplotlib; pip install 'windowing[draw]', or take topology.to_mermaid()"
        ) from None
    boxes, arrows = list(topology.boxes()), list(topology.arrows())
    places, routes, width, height = _layout(boxes, arrows)
    with matplotlib.rc_context(_SETTINGS):
        # The resolution must be that of the image, because an arrow ends at the box as it is drawn at that moment.
        figure = Figure(figsize=(width, height), dpi=options["dpi"])
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.axis("off")
        drawn = {box.name: _box(axes, box, places[box.name]) for box in boxes}
        figure.draw_without_rendering()  # computes the sizes of the boxes
        for arrow, route in zip(arrows, routes, strict=True):
            _arrow(axes, arrow, drawn, route)
        out = io.BytesIO()
        figure.savefig(out, format=kind, **options)
    return out.getvalue()


def _box(axes: Any, box: Box, place: tuple[float, float]) -> Any:
    style = "round,pad=0.6,rounding_size=1.1" if box.shape == "spout" else "round,pad=0.6,rounding_size=0.2"
    double = box.shape in ("window", "state")
    look = {"boxstyle": style, "facecolor": _FILLS[box.shape], "edgecolor": "#444", "linewidth": 2 if double else 1}
    return axes.text(*place, "\n".join(box.lines), ha="center", va="center", bbox=look, zorder=3)


def _arrow(axes: Any, arrow: Arrow, drawn: dict[str, Any], route: list[_Place]) -> None:
    look = {"color": "#444", "linestyle": ":" if arrow.dotted else "-", "shrinkA": 0, "shrinkB": 0}
    ends = [drawn[arrow.source].get_bbox_patch(), *[None] * (len(route) - 2), drawn[arrow.target].get_bbox_patch()]
    for step in range(len(route) - 1):
        style = "-|>" if step == len(route) - 2 else "-"
        patches = {"patchA": ends[step], "patchB": ends[step + 1]}
        axes.annotate("", route[step + 1], route[step], arrowprops={"arrowstyle": style, **look, **patches}, zorder=1)
    start, end = route[(len(route) - 1) // 2], route[len(route) // 2]
    across = (start[0] + end[0]) / 2
    if len(route) == 2:  # between the boxes, one of which may be much wider
        edges = [box.get_window_extent().transformed(axes.transData.inverted()) for box in (ends[0], ends[-1])]
        across = (edges[0].x1 + edges[1].x0) / 2
    middle = (across, start[1] + (end[1] - start[1]) * ((across - start[0]) / ((end[0] - start[0]) or 1)))
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.text(*middle, arrow.label, ha="center", va="center", fontsize=8, color="#333", bbox=paper, zorder=2)


def _layout(boxes: list[Box], arrows: list[Arrow]) -> tuple[dict[str, _Place], list[list[_Place]], float, float]:
    """Return the center of each box, the points of each arrow, and the width and height of the image, in inches.

    boxes: in topological order. `columns` holds names of boxes, and (arrow, column) for an arrow that passes a column.
    """
    column: dict[Any, int] = {}
    for box in boxes:
        column[box.name] = max((column[arrow.source] + 1 for arrow in arrows if arrow.target == box.name), default=0)
    columns: list[list[Any]] = [[] for _ in range(max(column.values()) + 1)]
    for box in boxes:
        columns[column[box.name]].append(box.name)
    read: dict[Any, list[Any]] = {box.name: [] for box in boxes}
    routes: list[list[Any]] = []
    for number, arrow in enumerate(arrows):
        passed = [(number, between) for between in range(column[arrow.source] + 1, column[arrow.target])]
        for point in passed:
            columns[point[1]].append(point)
        route = [arrow.source, *passed, arrow.target]
        read.update({point: [before] for before, point in zip(route, passed, strict=False)})
        read[arrow.target].append(route[-2])
        routes.append(route)
    tall = max(len(box.lines) for box in boxes) * _LINE + 0.6
    height = max(map(len, columns)) * tall + 0.3
    label = max((len(arrow.label) for arrow in arrows), default=0) * _CHARACTER * 0.8 + 0.6
    wide = {box.name: max(map(len, box.lines)) * _CHARACTER + 0.3 for box in boxes}
    places: dict[Any, _Place] = {}
    left = 0.2
    for names in columns:
        width = max(wide.get(name, 0.0) for name in names)
        near = {name: sum(places[other][1] for other in read[name]) / max(len(read[name]), 1) for name in names}
        for position, name in enumerate(sorted(names, key=near.__getitem__)):
            places[name] = (left + width / 2, height / 2 + (position - (len(names) - 1) / 2) * tall)
        left += width + label
    points = [[places[point] for point in route] for route in routes]
    return places, [_beside(points, number) for number in range(len(points))], left - label + 0.2, height


def _beside(routes: list[list[_Place]], number: int) -> list[_Place]:
    """Return a route, shifted up or down if other arrows have the same points."""
    same = [other for other, route in enumerate(routes) if route == routes[number]]
    shift = (same.index(number) - (len(same) - 1) / 2) * _APART
    return [(across, up + shift) for across, up in routes[number]]
