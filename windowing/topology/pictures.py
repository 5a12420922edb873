"""Pictures as text: plans as Mermaid and SVG, numbers as HTML tables. Pure functions of strings; no library is loaded.

A plan is drawn as boxes and arrows. In SVG:

    columns   a box is right of all its inputs; in a cycle, which no plan has, the loop would end after as many rounds as boxes
    rows      the boxes of a column are in the order in which they were given

`windowing.local.to_svg` draws larger plans with fewer crossings, with matplotlib (local/drawing.py).

Laws: every text is escaped, whatever data it contains; the same plan gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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


# -- SVG and HTML ------------------------------------------------------------------------------------------------------------------


_WIDTH, _HEIGHT, _RIGHT, _BELOW, _MARGIN = 180, 50, 120, 24, 10
_LONGEST, _LABEL = 26, 18
_STROKES = {"spout": "#16794c", "bolt": "#2463b0", "window": "#6d3fb4", "state": "#b45309"}
_CELL = "text-align: right; padding: 0 8px"


def svg_of(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a drawing as SVG; the same for the same plan. Cost: O(boxes * arrows).

    >>> picture = svg_of([Box("a", ("<a>",), "spout"), Box("b", ("b",), "bolt")], [Arrow("a", "b", "shuffle")])
    >>> picture.startswith("<svg "), "&lt;a&gt;" in picture, picture.count("<rect")
    (True, True, 2)
    """
    drawn, arrows_drawn = list(boxes), list(arrows)
    column = {box.name: 0 for box in drawn}
    for _ in drawn:
        for arrow in arrows_drawn:
            if arrow.source in column and arrow.target in column:
                column[arrow.target] = min(len(drawn), max(column[arrow.target], column[arrow.source] + 1))
    filled: dict[int, int] = {}
    positions: dict[str, tuple[int, int]] = {}
    for box in drawn:
        at = column[box.name]
        row = filled[at] = filled.get(at, 0) + 1
        positions[box.name] = (_MARGIN + at * (_WIDTH + _RIGHT), _MARGIN + (row - 1) * (_HEIGHT + _BELOW))
    width = 2 * _MARGIN + (max(column.values(), default=0) + 1) * (_WIDTH + _RIGHT) - _RIGHT
    height = 2 * _MARGIN + max(filled.values(), default=1) * (_HEIGHT + _BELOW) - _BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
    ]
    parts += [
        _arrow_svg(arrow, positions)
        for arrow in arrows_drawn
        if arrow.source in positions and arrow.target in positions
    ]
    parts += [_box_svg(box, *positions[box.name]) for box in drawn]
    return "".join([*parts, "</svg>"])


def _box_svg(box: Box, x: int, y: int) -> str:
    radius = 20 if box.shape == "spout" else 4
    stroke = _STROKES.get(box.shape, "#5b6878")
    lines = [
        f'<text x="{x + 10}" y="{y + 20 + 16 * row}" fill="{"#1d2733" if not row else "#5b6878"}">{_cut(line, _LONGEST)}</text>'
        for row, line in enumerate(box.lines[:2])
    ]
    frame = (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius}" fill="#f4f6f8" stroke="{stroke}"/>'
    )
    return f"<g><title>{escape(', '.join(box.lines))}</title>{frame}{''.join(lines)}</g>"


def _arrow_svg(arrow: Arrow, positions: dict[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = positions[arrow.source], positions[arrow.target]
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    half, dashes = (x1 + x2) // 2, ' stroke-dasharray="4 3"' if arrow.dotted else ""
    line = f'<path d="M{x1} {y1}C{half} {y1} {half} {y2} {x2 - 7} {y2}" fill="none" stroke="#5b6878"{dashes}/>'
    head = f'<path d="M{x2 - 8} {y2 - 4}L{x2} {y2}L{x2 - 8} {y2 + 4}z" fill="#5b6878"/>'
    at = (y1 + y2) // 2 - 6
    label = f'<text x="{half}" y="{at}" text-anchor="middle" font-size="11" fill="#5b6878">{_cut(arrow.label, _LABEL)}</text>'
    return f"<g><title>{escape(arrow.label)}</title>{line}{head}{label}</g>"


def _cut(text: str, length: int) -> str:
    return escape(text if len(text) <= length else f"{text[: length - 1]}…")


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; the first cell of a row is its name. None is an empty cell.

    >>> html_table("<t>", ["bolt", "n"], [["a & b", None]])[:31]
    '<table><caption>&lt;t&gt;</capt'
    """
    head = "".join(f'<th style="{_CELL}">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td style={chr(34)}{_CELL}{chr(34)}>{_cell_text(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell_text(cell: object) -> str:
    return "" if cell is None else escape(f"{cell:,}" if isinstance(cell, int) else str(cell))
