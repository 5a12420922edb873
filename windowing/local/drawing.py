"""to_svg(), to_png(): a topology as an image. The places of boxes and arrows are those of topology/pictures.py for both."""

from __future__ import annotations

import io
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.execution.plan import ExecutionPlan
from windowing.topology.builder import TopologyBuilder
from windowing.topology.pictures import FILLS, INK, LINE, RADII, STROKES, placed, svg_of
from windowing.topology.plan import Topology

_PIXELS = 96
"""Pixels of a drawing in an inch."""


def to_svg(topology: Topology | ExecutionPlan) -> str:
    """Return the plan as SVG text with searchable labels; the same plan gives the same SVG, byte for byte."""
    _require_plan(topology, "to_svg")
    return svg_of(topology.boxes(), topology.arrows())


def to_png(topology: Topology | ExecutionPlan, dpi: int = 150) -> bytes:
    """Return the plan as a PNG of `dpi` dots per inch. Raises ConfigError without matplotlib. Cost: tens of milliseconds."""
    _require_plan(topology, "to_png")
    require_dpi(dpi)
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch, PathPatch, Polygon
        from matplotlib.path import Path
    except ImportError:
        raise ConfigError(
            "a PNG of a topology needs matplotlib; pip install 'windowing[draw]', or take to_svg(topology)"
        ) from None
    boxes, arrows, width, height = placed(topology.boxes(), topology.arrows())
    with matplotlib.rc_context({"font.family": "monospace", "font.size": 9}):
        figure = Figure(figsize=(width / _PIXELS, height / _PIXELS))
        axes: Any = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        centered: Any = {"ha": "center", "va": "center", "parse_math": False}
        for each in arrows:
            style = ":" if each.arrow.dotted else "-"
            curve = Path(each.curve(), [Path.MOVETO, *[Path.CURVE4] * (3 * len(each.points) - 3)])
            axes.add_patch(PathPatch(curve, fill=False, edgecolor=INK, linestyle=style))
            axes.add_patch(Polygon(each.head(), color=INK, linewidth=0))
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text(*each.middle(), each.arrow.label, fontsize=7.5, color="#333", bbox=paper, **centered)
        for box, x, y, wide, tall in boxes:
            frame = FancyBboxPatch(
                (x - wide / 2, y - tall / 2), wide, tall, f"round,pad=0,rounding_size={RADII[box.shape]}", zorder=3
            )
            frame.set(facecolor=FILLS[box.shape], edgecolor=INK, linewidth=STROKES[box.shape])
            axes.add_patch(frame)
            for row, line in enumerate(box.lines):
                axes.text(x, y + (row - (len(box.lines) - 1) / 2) * LINE, line, zorder=4, **centered)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def require_dpi(dpi: Any) -> None:
    """Raise ConfigError for what is no number of dots per inch, such as the name of a file."""
    if isinstance(dpi, bool) or not isinstance(dpi, int | float) or not 0 < dpi < 10_000:
        raise ConfigError(
            f"a PNG has a number of dots per inch, got dpi={quote(dpi)}; give 150, say, and write the bytes that it returns to a "
            "file yourself: pathlib.Path('windows.png').write_bytes(...)"
        )


def _require_plan(given: Any, draw: str) -> None:
    if hasattr(given, draw[3:]):
        raise ConfigError(
            f"{draw} draws a Topology or an ExecutionPlan, got a {type(given).__name__}; write its .{draw[3:]}()"
        )
    if not isinstance(given, Topology | ExecutionPlan | TopologyBuilder):  # a builder itself says what to write
        raise ConfigError(
            f"{draw} draws a Topology or an ExecutionPlan, got {quote(given)}; write {draw}(execution_plan(...)), which takes a "
            "windowed bolt or a TridentTopology too"
        )
