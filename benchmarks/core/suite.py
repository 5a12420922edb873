"""The suite `core`: every shape in batches of 10,000 and one event at a time, against its floor and the peers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.core import floors, peers, shapes
from benchmarks.core.shapes import SHAPES, Shape, glance, whole
from benchmarks.frame import Contender, Plan

OURS = "windowing"
COLUMNS = "windowing, columnar"
FLOOR = "by hand"


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield two comparisons per shape."""
    for shape in SHAPES:
        yield _plan(shape, "batches of 10,000", scale, shapes.in_batches, floors.in_batches, peers.of_batches)
        yield _plan(shape, "one at a time", scale, shapes.one_at_a_time, floors.one_at_a_time, peers.of_events)


def _plan(shape: Shape, way: str, scale: float, ours, floor, others) -> Plan:  # type: ignore[no-untyped-def]
    contenders = [
        Contender(FLOOR, floor(shape, glance), check=floor(shape, whole)),
        Contender(OURS, ours(shape, glance), check=ours(shape, whole)),
    ]
    if way == "batches of 10,000":
        columns = shapes.totals_in_columns if shape.totals else shapes.in_columns
        contenders.append(Contender(COLUMNS, columns(shape, glance), check=columns(shape, whole)))
    more, missing = others(shape, glance, whole)
    return Plan(
        f"{shape.name}, {way}",
        shape.about,
        [*contenders, *more],
        shape.load,
        _rounded(shape.size * scale),
        _rounded(shape.checked * min(1.0, scale)),
        missing=missing,
        order=sorted if shape.totals else list,
    )


def _rounded(number: float) -> int:
    """Return a number of events that is a multiple of every slide of a count window."""
    return max(1000, int(number) // 1000 * 1000)
