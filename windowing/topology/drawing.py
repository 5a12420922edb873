"""Mermaid text of a plan: boxes and arrows in, one text out, the same for the same plan.

windowing/runtime/drawing.py makes images of the same boxes and arrows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Arrow", "Box", "mermaid"]

_SHAPES = {"spout": ("([", "])"), "bolt": ("[", "]"), "window": ("[[", "]]"), "state": ("[(", ")]")}


@dataclass(frozen=True, slots=True)
class Box:
    """A component as it is drawn; `shape` is "spout", "bolt", "window" or "state"."""

    name: str
    lines: tuple[str, ...]
    shape: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A subscription as it is drawn."""

    source: str
    target: str
    label: str
    dotted: bool = False


def mermaid(boxes: Iterable[Box], arrows: Iterable[Arrow]) -> str:
    """Return a flowchart from left to right; names get a `c_` in front, for `end` and others are words of Mermaid.

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
    """Return the id of a box: `-` and `.` of a name are written by their codes, for a dash may be part of an arrow."""
    return f"c_{name}".replace("-", "_2d_").replace(".", "_2e_")


def _escaped(text: str) -> str:
    """Return `text` as it may stand between quotes: the name of a custom grouping's function may hold a `<lambda>`."""
    return (
        text.replace("#", "#35;").replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    )
