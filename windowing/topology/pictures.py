"""Pictures as text: plans as Mermaid and SVG, numbers as HTML tables. Pure functions of strings; no library is loaded.

A plan is drawn as boxes and arrows. In SVG, and in the PNG of local/drawing.py:

    columns   a box is right of all its inputs: data flows to the right
    rows      within a column a box is near its inputs
    arrows    an arrow that passes a column has a position of its own there; arrows between the same two boxes are side by side

Laws: every text is escaped, whatever data it contains; the same plan gives the same text.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import pairwise
from reprlib import Repr
from typing import Any, NamedTuple

_SHAPES = {"spout": ("([", "])"), "bolt": ("[", "]"), "window": ("[[", "]]"), "state": ("[(", ")]")}


@dataclass(frozen=True, slots=True)
class Box:
    """A component in a drawing; `shape` is "spout", "bolt", "window" or "state"."""

    name: str
    lines: tuple[str, ...]
    shape: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A subscription in a drawing."""

    source: str
    target: str
    label: str
    dotted: bool = False


def mermaid(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a flowchart from left to right; names get the prefix `c_`, because `end` and others are keywords of Mermaid.

    >>> print(mermaid([Box("end", ("end ×2",), "bolt")], [Arrow("end", "end", "shuffle")]), end="")
    flowchart LR
        c_end["end ×2"]
        c_end -- "shuffle" --> c_end
    """
    lines = ["flowchart LR"]
    for box in boxes:
        opening, closing = _SHAPES[box.shape]
        lines.append(f'    {_id(box.name)}{opening}"{"<br/>".join(map(_escaped, box.lines))}"{closing}')
    for arrow in arrows:
        head, tail = ("-.", ".->") if arrow.dotted else ("--", "-->")
        lines.append(f'    {_id(arrow.source)} {head} "{_escaped(arrow.label)}" {tail} {_id(arrow.target)}')
    return "\n".join(lines) + "\n"


def _id(name: str) -> str:
    """Return the id of a box; `-` and `.` in a name are replaced by their codes, because a dash may be part of an arrow."""
    return f"c_{name}".replace("-", "_2d_").replace(".", "_2e_")


def _escaped(text: str) -> str:
    """Return `text` escaped for use in quotes; the name of a custom grouping's function may contain `<lambda>`."""
    return (
        text.replace("#", "#35;").replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    )


# -- SVG -------------------------------------------------------------------------------------------------------------------------


_CHARACTER, LINE = 7.2, 16  # pixels, of the monospace font of 12
_APART = 14  # pixels between arrows of the same two boxes
INK = "#444444"
FILLS = {"spout": "#dcecf8", "bolt": "#f4f4f2", "window": "#fdf0d5", "state": "#e3f1df"}
RADII = {"spout": 18, "bolt": 4, "window": 4, "state": 4}
STROKES = {"spout": 1, "bolt": 1, "window": 2, "state": 2}

Point = tuple[float, float]
_Stop = str | tuple[int, int]
"""Where an arrow leads through a column: a box, by its name, or an empty place, by the numbers of the arrow and of the column."""


class PlacedBox(NamedTuple):
    """A box with its center and its size, in pixels."""

    box: Box
    x: float
    y: float
    width: float
    height: float


class PlacedArrow(NamedTuple):
    """An arrow with its points: the right edge of its source, two where it passes a column, the left edge of its target."""

    arrow: Arrow
    points: list[Point]

    def curve(self) -> list[Point]:
        """Return the curve through the points: the first one, then for each other one two control points and itself."""
        found = self.points[:1]
        for (x1, y1), (x2, y2) in pairwise(self.points):
            found += [((x1 + x2) / 2, y1), ((x1 + x2) / 2, y2), (x2, y2)]
        return found

    def head(self) -> list[Point]:
        x, y = self.points[-1]
        return [(x - 8, y - 4), (x, y), (x - 8, y + 4)]

    def middle(self) -> Point:
        """Return the place of the label."""
        middle = len(self.points) // 2
        (x1, y1), (x2, y2) = self.points[middle - 1 : middle + 1]
        return (x1 + x2) / 2, (y1 + y2) / 2


def placed(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> tuple[list[PlacedBox], list[PlacedArrow], float, float]:
    """Return boxes, in topological order, and arrows with their places, and the width and height of the drawing, in pixels. Cost:
    O(boxes + columns that arrows pass).
    """
    drawn, given = {box.name: box for box in boxes}, list(arrows)
    column = _column_of_each(drawn, given)
    columns: list[list[_Stop]] = [[] for _ in range(max(column.values(), default=0) + 1)]
    for name, at in column.items():
        columns[at].append(name)
    routes: list[list[_Stop]] = []
    before: dict[_Stop, list[_Stop]] = defaultdict(list)
    for number, arrow in enumerate(given):
        passed = range(column[arrow.source] + 1, column[arrow.target])
        for at in passed:
            columns[at].append((number, at))
        routes.append([arrow.source, *((number, at) for at in passed), arrow.target])
        for last, stop in pairwise(routes[-1]):
            before[stop].append(last)
    tall = max((len(box.lines) for box in drawn.values()), default=0) * LINE + 44
    height = max(map(len, columns)) * tall
    gap = max((len(arrow.label) for arrow in given), default=0) * 6 + 40
    places: dict[_Stop, PlacedBox] = {}
    left = 10.0
    for stops in columns:
        width = max((_width(drawn[each]) for each in stops if isinstance(each, str)), default=0.0)
        for row, stop in enumerate(_near_their_inputs(stops, before, places)):
            box = drawn[stop] if isinstance(stop, str) else Box("", (), "")
            y = height / 2 + (row - (len(stops) - 1) / 2) * tall
            places[stop] = PlacedBox(box, left + width / 2, y, _width(box) or width, len(box.lines) * LINE + 20)
        left += width + gap
    routed = list(
        map(PlacedArrow, given, _side_by_side([_points([places[each] for each in route]) for route in routes]))
    )
    return [places[name] for name in drawn], routed, left - gap + 10, height


def _column_of_each(names: Iterable[str], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Return the column of each box, in topological order: the one after those of all its inputs."""
    column: dict[str, int] = {}
    inputs: dict[str, list[str]] = defaultdict(list)
    for arrow in arrows:
        inputs[arrow.target].append(arrow.source)
    for name in names:
        column[name] = 1 + max((column[each] for each in inputs[name] if each in column), default=-1)
    return column


def _near_their_inputs(
    stops: Sequence[_Stop], before: Mapping[_Stop, Sequence[_Stop]], places: Mapping[_Stop, PlacedBox]
) -> list[_Stop]:
    """Return the stops of a column from top to bottom, each near those before it on its routes."""

    def height(stop: _Stop) -> float:
        inputs = before.get(stop, ())
        return sum(places[each].y for each in inputs if each in places) / (len(inputs) or 1)  # else it is in a loop

    return sorted(stops, key=height)


def _width(box: Box) -> float:
    """Return the width of a box; 0 for one without lines, which an arrow passes."""
    return max(map(len, box.lines)) * _CHARACTER + 24 if box.lines else 0.0


def _points(route: list[PlacedBox]) -> list[Point]:
    """Return the points of an arrow: it leaves a box at the right and enters the next one at the left."""
    return [(each.x + side * each.width / 2, each.y) for each in route for side in (-1, 1)][1:-1]


def _side_by_side(routes: list[list[Point]]) -> Iterator[list[Point]]:
    """Yield the points of each arrow, shifted up or down if other arrows have the same points."""
    alike = Counter(map(tuple, routes))
    drawn: Counter[tuple[Point, ...]] = Counter()
    for route in routes:
        points = tuple(route)
        shift = (drawn[points] - (alike[points] - 1) / 2) * _APART
        drawn[points] += 1
        yield [(x, y + shift) for x, y in points]


def svg_of(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a drawing as SVG with searchable labels; the same for the same plan. Cost: that of `placed`.

    >>> picture = svg_of([Box("a", ("<a>",), "spout"), Box("b", ("b",), "bolt")], [Arrow("a", "b", "shuffle")])
    >>> picture.startswith("<svg "), "&lt;a&gt;" in picture, picture.count("<rect")
    (True, True, 2)
    """
    drawn, routed, width, height = placed(boxes, arrows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        'font-family="monospace" font-size="12" text-anchor="middle">'
    )
    return "".join([head, *map(_arrow_svg, routed), *map(_box_svg, drawn), "</svg>"])


def _box_svg(each: PlacedBox) -> str:
    box, x, y, width, height = each
    frame = (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="{RADII[box.shape]}" '
        f'fill="{FILLS[box.shape]}" stroke="{INK}" stroke-width="{STROKES[box.shape]}"/>'
    )
    first = y - (len(box.lines) - 1) * LINE / 2 + 4
    lines = [f'<text x="{x:g}" y="{first + LINE * row:g}">{escape(line)}</text>' for row, line in enumerate(box.lines)]
    return f"<g><title>{escape(', '.join(box.lines))}</title>{frame}{''.join(lines)}</g>"


def _arrow_svg(each: PlacedArrow) -> str:
    label, (x, y) = escape(each.arrow.label), each.middle()
    start, *rest = (f"{x:g},{y:g}" for x, y in each.curve())
    dashes = ' stroke-dasharray="4 3"' if each.arrow.dotted else ""
    curve = f'<path d="M{start}C{" ".join(rest)}" fill="none" stroke="{INK}"{dashes}/>'
    head = f'<polygon points="{" ".join(f"{x:g},{y:g}" for x, y in each.head())}" fill="{INK}"/>'
    around = 'font-size="10" stroke="#fff" stroke-width="4" paint-order="stroke"'
    return f'<g><title>{label}</title>{curve}{head}<text x="{x:g}" y="{y + 3:g}" {around}>{label}</text></g>'


# -- HTML ------------------------------------------------------------------------------------------------------------------------


_CELL = "text-align: right; padding: 0 8px"


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; the first cell of a row is its name. None is an empty cell.

    >>> html_table("<t>", ["bolt", "n"], [["a & b", None]])[:31]
    '<table><caption>&lt;t&gt;</capt'
    """
    head = _cells("th", headings)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_BRIEF = Repr()
_BRIEF.maxdict, _BRIEF.maxstring, _BRIEF.maxother = 20, 100, 200


def brief_repr(result: Any) -> str:
    """Return the repr of a dataclass in which long lists are cut: the result of a run may have all its rows."""
    shown = (f"{each.name}={_BRIEF.repr(getattr(result, each.name))}" for each in fields(result) if each.repr)
    return f"{type(result).__name__}({', '.join(shown)})"


def _cells(tag: str, cells: Iterable[object]) -> str:
    texts = ("" if cell is None else escape(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in cells)
    return "".join(f'<{tag} style="{_CELL}">{text}</{tag}>' for text in texts)
