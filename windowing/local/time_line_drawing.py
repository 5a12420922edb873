"""Drawing of a TimeLine: rows of shapes from its events, and three writers: text, SVG, and PNG by matplotlib (extra `draw`).

    event              time ─────────────────────────────►         in words
    arrives            ·        o to      o be        ┊            watermark 4 s
    window                (=====o=========+====]                   (0 s, 10 s] to be
    late                        x or                  ┊            or is late: 3 s, watermark 4 s

Time runs to the right, the order of the events downwards: one row for each micro-batch of tuples and each window, so that nothing
overlaps. A gap without a tuple or a window end that is longer than ten median gaps is shortened and marked. Text from data is
escaped: unprintable characters are written as in Python.
"""

from __future__ import annotations

import io
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from windowing.errors import ConfigError, printable, represented
from windowing.local.drawing import require_dpi
from windowing.local.time_line import (
    TimeLine,
    TimeLineEvent,
    TupleArrived,
    TupleLate,
    TupleRepeated,
    TuplesExpired,
    WatermarkRose,
    WindowFired,
)

_ROWS = 240
"""Maximum number of rows drawn; the last line of the picture states the total."""

_NAMES = 12
"""Maximum number of tuples of a window or a batch that are named in words."""

_EPOCH_MS = 100_000_000_000
"""Timestamps from 1973 on are drawn relative to the first one, which is stated."""


def width_of(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def cut(text: str, width: int) -> str:
    """Return `text`, cut to a number of terminal columns, with an ellipsis if it is cut."""
    if width_of(text) <= width:
        return text
    kept = ""
    for each in text:
        if width_of(kept + each) > width - 1:
            break
        kept += each
    return kept.rstrip() + "…"


# -- rows --------------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Row:
    """One row of the picture. dots: (number of the tuple, its role: new, held, expired, late, repeated)."""

    kind: str
    dots: list[tuple[int, str]] = field(default_factory=list)
    span: tuple[int | None, int] | None = None
    words: list[tuple[str, str]] = field(default_factory=list)  # (look, text)
    gone: list[int] = field(default_factory=list)
    late: dict[str, list[int]] = field(default_factory=dict)  # by their text
    watermark: int | None = None


class _Picture:
    def __init__(self, line: TimeLine) -> None:
        self.tuples: dict[int, Any] = {}
        self._draw_times(line)
        rows: list[_Row] = []
        for event in line.events:
            self._add(rows, event)
        for row in rows:
            row.words += [("late", f"{why}: {self._with_times(numbers)}") for why, numbers in row.late.items()]
            if row.gone and sorted(row.gone) != sorted(n for n, what in row.dots if what == "expired"):
                row.words.append(("faint", f"acked: {self.names(row.gone)}"))
            if row.watermark is not None:
                row.words.append(("faint", f"watermark {self.moment(row.watermark)}"))
        self.rows, self.more = rows[:_ROWS], max(0, len(rows) - _ROWS)

    def _draw_times(self, line: TimeLine) -> None:
        at = [event.at_ms for event in line.events if isinstance(event, TupleArrived) and event.at_ms is not None]
        fired = [(event.start_ms, event.end_ms) for event in line.events if isinstance(event, WindowFired)]
        first = min([*at, *(end for _, end in fired)], default=0)
        bounds = {end for _, end in fired} | {start for start, _ in fired if start is not None and start >= first}
        self.origin = first - first % 60_000 if first >= _EPOCH_MS else 0
        self.scale = _Scale(sorted({*at, *bounds}))
        self.ticks = sorted(bounds if any(start is not None for start, _ in fired) else set(at))

    def _add(self, rows: list[_Row], event: TimeLineEvent) -> None:
        last = rows[-1] if rows else None
        if isinstance(event, TupleArrived):
            self.tuples[event.number] = event
            if last is None or last.kind != "arrives" or last.watermark is not None:
                rows.append(_Row("arrives"))
            rows[-1].dots.append((event.number, "new"))
        elif isinstance(event, TupleLate | TupleRepeated):
            row = next(row for row in reversed(rows) if row.kind == "arrives")
            what, why = ("late", self._why(event)) if isinstance(event, TupleLate) else ("repeated", "here before")
            row.dots = [(number, what if number == event.number else was) for number, was in row.dots]
            row.late.setdefault(why, []).append(event.number)
        elif isinstance(event, WatermarkRose):
            if last is None or last.kind == "drain":
                rows.append(_Row("turn"))
            rows[-1].watermark = event.at_ms
        elif isinstance(event, WindowFired):
            rows.append(self._window(event))
        elif isinstance(event, TuplesExpired):
            if last is None:
                rows.append(_Row("turn"))
            rows[-1].gone += event.numbers
        else:
            rows.append(_Row("drain", words=[("faint", "the input ends: what is left fires and expires")]))

    def _window(self, event: WindowFired) -> _Row:
        new = set(event.new)
        dots = [(number, "new" if number in new else "held") for number in event.held]
        dots += [(number, "expired") for number in event.expired]
        row = _Row("window", dots, (event.start_ms, event.end_ms))
        name = f"({self.moment(event.start_ms)}, {self.moment(event.end_ms)}]"
        title = name if event.start_ms is not None else f"at {self.moment(event.end_ms)}"
        key = (
            ""
            if event.key is None
            else f" {printable(event.key if isinstance(event.key, str) else represented(event.key))}"
        )
        row.words.append(("strong", f"{title}{key}"))
        stayed = [number for number in event.held if number not in new]
        for look, what, numbers in (
            ("new", "new", event.new),
            ("held", "before", stayed),
            ("faint", "expired", event.expired),
        ):
            if numbers:
                row.words.append((look, f"{what}: {self.names(numbers)}"))
        for stream, values in event.emitted:
            said = ", ".join(map(represented, values))
            row.words.append(
                ("faint", f"emits {printable(said)}" if stream == "default" else f"emits {printable(said)} on {stream}")
            )
        if event.failure is not None:
            row.words.append(("late", f"the bolt failed: {printable(event.failure)}"))
        return row

    def low(self, row: _Row) -> int:
        """Return where the bar of a window begins: at its first tuple if the window has no start."""
        assert row.span is not None
        start, end = row.span
        held = (self.tuples[number].at_ms for number, what in row.dots if what != "expired")
        return min(held, default=end) if start is None else start

    def _why(self, event: TupleLate) -> str:
        below = "late" if event.watermark_ms is None else f"late, watermark {self.moment(event.watermark_ms)}"
        other = {"future": "too far ahead", "invalid": "no usable time", "closed": "after the end"}
        return other.get(event.reason, below)

    def _with_times(self, numbers: Iterable[int]) -> str:
        at = {number: self.tuples[number].at_ms for number in numbers}
        return ", ".join(
            self.names([n]) if ms is None else f"{self.names([n])} {self.moment(ms)}" for n, ms in at.items()
        )

    def name(self, number: int) -> str:
        return printable(self.tuples[number].text)

    def names(self, numbers: Iterable[int]) -> str:
        """Return the texts of tuples; of many tuples the first ones, and their number."""
        known = list(numbers)
        said = " ".join(cut(self.name(number), 24) for number in known[:_NAMES])
        return said if len(known) <= _NAMES else f"{said} … ({len(known)})"

    def moment(self, at_ms: int | None) -> str:
        if at_ms is None:
            return "…"
        ms = at_ms - self.origin
        sign, ms = ("-", -ms) if ms < 0 else ("", ms)
        if ms >= 7_200_000:
            days, rest = divmod(ms // 1000, 86_400)
            clock = f"{rest // 3600}:{rest // 60 % 60:02}" + (f":{rest % 60:02}" if rest % 60 else "")
            return f"{sign}{days} d {clock}" if days else f"{sign}{clock} h"
        if 0 < ms < 1000:
            return f"{sign}{ms} ms"
        return f"{sign}{ms / 1000:.10g} s"

    def about(self, line: TimeLine) -> str:
        if not self.origin:
            return printable(line.about)
        try:
            since = datetime.fromtimestamp(self.origin / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        except (ValueError, OverflowError, OSError):
            since = f"{self.origin} ms"
        return f"{printable(line.about)}; times from {since} on"

    def summary(self, line: TimeLine) -> str:
        windows = sum(row.kind == "window" for row in self.rows)
        late = sum(what == "late" for row in self.rows for _, what in row.dots)
        return f"{printable(line.title)}, {self.about(line)}: {len(self.tuples)} tuples, {late} of them late; {windows} windows"


class _Scale:
    """Maps a time to 0..1; a long gap is shortened to ten median gaps, and `breaks` holds the positions of these gaps."""

    def __init__(self, points: Sequence[int]) -> None:
        gaps = [after - before for before, after in pairwise(points)]
        most = 10 * median(gaps) if gaps else 1
        self._points, self._places = list(points), [0.0]
        for gap in gaps:
            self._places.append(self._places[-1] + min(gap, most))
        self._whole = self._places[-1] or 1.0
        self.breaks = [
            (self._places[at] + self._places[at + 1]) / 2 / self._whole for at, gap in enumerate(gaps) if gap > most
        ]
        self.single = len(points) < 2

    def __call__(self, at_ms: int) -> float:
        points, places = self._points, self._places
        if self.single or not points:
            return 0.5
        at = bisect_right(points, at_ms) - 1
        if at < 0:
            return 0.0
        if at >= len(points) - 1:
            return 1.0
        part = (at_ms - points[at]) / (points[at + 1] - points[at])
        return (places[at] + part * (places[at + 1] - places[at])) / self._whole


# -- text --------------------------------------------------------------------------------------------------------------------------


_SIGNS = {"new": "+", "held": "o", "expired": "-", "late": "x", "repeated": "="}
_HEAD = 9


def to_text(line: TimeLine, width: int) -> str:
    """Return a time line as text, `width` columns wide."""
    rows = _Picture(line)
    out = [cut(f"{printable(line.title)}: {rows.about(line)}", width)]
    if not rows.rows:
        return "\n".join([*out, "no tuples came, no window fired"])
    plot = max(20, min(48, width // 2 - _HEAD))
    room = max(16, width - _HEAD - plot - 3)
    out += ["+ new   o in the window before, too   - expired   x late   ┊ watermark", ""]
    place = {number: round(rows.scale(number) * (plot - 1)) for number in _times(rows)}
    out.append(" " * _HEAD + _tick_line(rows, place, plot))
    watermark: int | None = None
    for row in rows.rows:
        columns = _plot(rows, row, watermark, place, plot)
        words = row.words
        if row.kind == "arrives":
            words = [("", rows.names(number for number, _ in row.dots)), *words]
        said = _wrapped([text for _, text in words], room)
        out.append(f"{row.kind:<{_HEAD}}{columns}   {said[0] if said else ''}".rstrip())
        out += [" " * (_HEAD + plot + 3) + text for text in said[1:]]
        watermark = row.watermark if row.watermark is not None else watermark
    if rows.more:
        out.append(f"... and {rows.more} more: explain fewer rows, or read .events")
    return "\n".join(out)


def _plot(rows: _Picture, row: _Row, watermark: int | None, place: Mapping[int, int], width: int) -> str:
    """Return the signs of a row: the watermark before it, the bar of its window, its tuples."""
    columns = [" "] * width
    if watermark is not None and row.kind != "drain":
        columns[place[watermark]] = "┊"
    if row.span is not None:
        start, end = row.span
        first, last = place[rows.low(row)], place[end]
        columns[first : last + 1] = ["─"] * (last + 1 - first)
        columns[last] = "]"
        if start is not None:
            columns[first] = "("
    for number, what in row.dots:
        at = rows.tuples[number].at_ms
        if at is not None:
            columns[place[at]] = _SIGNS[what]
    return "".join(columns)


def _times(rows: _Picture) -> set[int]:
    found = {event.at_ms for event in rows.tuples.values() if event.at_ms is not None} | set(rows.ticks)
    for row in rows.rows:
        found |= {at for at in (*(row.span or ()), row.watermark) if at is not None}
    return found


def _tick_line(rows: _Picture, place: dict[int, int], plot: int) -> str:
    columns = [" "] * plot
    free = 0
    for tick in rows.ticks:
        text = rows.moment(tick)
        at = max(0, min(place[tick], plot - len(text)))
        if at >= free and at + len(text) <= plot:
            columns[at : at + len(text)] = text
            free = at + len(text) + 2
    return "".join(columns).rstrip()


def _wrapped(texts: Sequence[str], room: int) -> list[str]:
    """Join texts by " · " into lines of `room` columns; a longer text is cut."""
    lines: list[str] = []
    for text in texts:
        short = cut(text, room)
        if lines and width_of(lines[-1]) + 3 + width_of(short) <= room:
            lines[-1] += f" · {short}"
        else:
            lines.append(short)
    return lines


# -- shapes ------------------------------------------------------------------------------------------------------------------------


_WIDTH, _LEFT, _RIGHT, _TEXT = 960, 84, 560, 590
_LANE, _TOP, _LANES = 20, 86, 6
_LABEL = 14
_COLUMN = 6.9  # width of a character, at 12 px


@dataclass(frozen=True, slots=True)
class _Shape:
    """One shape of the picture: text, dot, cross, rect, line. look: its colour; tip: its tooltip."""

    kind: str
    look: str
    x: float
    y: float
    w: float = 0.0
    h: float = 0.0
    text: str = ""
    anchor: str = "start"
    tip: str = ""


def _shapes(line: TimeLine, rows: _Picture) -> tuple[list[_Shape], float]:
    """Return all shapes, in the order in which they are painted, and the height of the picture."""
    shapes = [
        _Shape("text", "strong", 20, 26, text=cut(f"{printable(line.title)}", 90)),
        _Shape("text", "faint", 20, 44, text=cut(rows.about(line), 140)),
    ]
    if not rows.rows:
        shapes.append(_Shape("text", "ink", 20, 76, text="no tuples came, no window fired"))
        return shapes, 100
    shapes += _legend()
    painted: list[_Shape] = []
    watermark: list[tuple[float, float]] = []
    y = float(_TOP)
    for row in rows.rows:
        drawn, height = _row(rows, row, y)
        painted += drawn
        if row.watermark is not None:
            watermark.append((_x(rows, row.watermark), y + height))
        y += height
    end = next((shape.y for shape in painted if shape.text == "drain"), y)
    shapes += _axis(rows, y)
    for at, (x, top) in enumerate(watermark):
        bottom = watermark[at + 1][1] if at + 1 < len(watermark) else max(top, end - 4)
        shapes.append(_Shape("line", "watermark", x, top, 0, bottom - top))
        if at + 1 < len(watermark):
            shapes.append(_Shape("line", "watermark", x, bottom, watermark[at + 1][0] - x, 0))
    shapes = [shape for shape in painted if shape.look == "stripe"] + shapes
    shapes += [shape for shape in painted if shape.look != "stripe"]
    if rows.more:
        shapes.append(_Shape("text", "faint", _TEXT, y + 16, text=f"and {rows.more} more: explain fewer rows"))
        y += 24
    return shapes, y + 12


def _x(rows: _Picture, at_ms: int) -> float:
    return _LEFT + 10 + rows.scale(at_ms) * (_RIGHT - _LEFT - 20)


def _legend() -> Iterator[_Shape]:
    right, y = _WIDTH - 20 - 9 * _COLUMN, 26
    yield _Shape("text", "ink", right, y, text="watermark")
    yield _Shape("line", "watermark", right - 10, y - 10, 0, 13)
    right -= 32
    for look, text in (("late", "late"), ("expired", "expired"), ("held", "in the window before, too"), ("new", "new")):
        right -= len(text) * _COLUMN
        yield _Shape("text", "ink", right, y, text=text)
        yield _Shape("cross" if look == "late" else "dot", look, right - 10, y - 4, 5)
        right -= 32


def _axis(rows: _Picture, bottom: float) -> Iterator[_Shape]:
    y = _TOP - 10
    yield _Shape("line", "faint", _LEFT, y, _RIGHT - _LEFT, 0)
    free = 0.0
    for tick in rows.ticks:
        text = rows.moment(tick)
        x, half = _x(rows, tick), len(text) * _COLUMN / 2 + 6
        if x - half < free:
            continue
        free = x + half
        yield _Shape("line", "grid", x, y, 0, bottom - y)
        yield _Shape("text", "faint", x, y - 7, text=text, anchor="middle")
    for at in rows.scale.breaks:
        x = _LEFT + 10 + at * (_RIGHT - _LEFT - 20)
        yield _Shape("text", "ink", x, y + 4, text="//", anchor="middle", tip="a longer time without tuples")


def _row(rows: _Picture, row: _Row, y: float) -> tuple[list[_Shape], float]:
    said = _words(row, y)
    if row.kind == "window":
        drawn, height = _window(rows, row, y), 26.0
    else:
        drawn, lanes = _arrivals(rows, row, y)
        height = lanes * _LANE + 4.0
    height = max(height, said[1])
    back = [_Shape("rect", "stripe", 8, y, _WIDTH - 16, height)] if row.kind == "window" else []
    head = _Shape("text", "faint", 20, y + 17, text=row.kind)
    return [*back, *drawn, head, *said[0]], height


def _words(row: _Row, y: float) -> tuple[list[_Shape], float]:
    """Return the text at the right of a row, on as many lines as it needs, and its height."""
    x, at, shapes = float(_TEXT), y + 17, []
    room = _WIDTH - 12 - _TEXT
    for look, text in row.words:
        short = cut(text, int(room / _COLUMN))
        wide = width_of(short) * _COLUMN * (1.08 if look == "strong" else 1.0)
        if x > _TEXT and x + wide > _TEXT + room:
            x, at = float(_TEXT), at + 17
        shapes.append(_Shape("text", look, x, at, text=short, tip=text if short != text else ""))
        x += wide + 14
    return shapes, at - y + 9


def _window(rows: _Picture, row: _Row, y: float) -> list[_Shape]:
    assert row.span is not None
    start, end = row.span
    left, right = _x(rows, rows.low(row)) - (8 if start is None else 0), _x(rows, end) + (8 if start is None else 0)
    if start is not None and rows.scale(start) == 0.0:
        left = _LEFT
    shapes = [_Shape("rect", "window", left, y + 4, max(right - left, 3), 18)]
    return shapes + list(_dots(rows, row, y + 13, right - 5))


def _dots(rows: _Picture, row: _Row, y: float, right: float) -> Iterator[_Shape]:
    """Yield the tuples of a row; if they are few, those of the same time are moved apart, up to `right`."""
    known = [(rows.tuples[number].at_ms, number, what) for number, what in row.dots]
    placed = sorted(each for each in known if each[0] is not None)
    few = len(placed) <= _NAMES
    free = 0.0
    for at_ms, number, what in placed:
        exact = _x(rows, at_ms)
        x = max(exact, min(free, right)) if few and what != "expired" else exact
        free = x + 7
        yield _dot(rows, number, what, x, y, 5.0 if few else 3.0)


def _dot(rows: _Picture, number: int, what: str, x: float, y: float, radius: float = 5.0) -> _Shape:
    arrived = rows.tuples[number]
    at = "no usable time" if arrived.at_ms is None else rows.moment(arrived.at_ms)
    look = "late" if what == "repeated" else what
    return _Shape("cross" if look == "late" else "dot", look, x, y, radius, tip=f"{rows.name(number)}, {at}, {what}")


def _arrivals(rows: _Picture, row: _Row, y: float) -> tuple[list[_Shape], int]:
    """Return the tuples of a batch with their labels, in as many lanes as the labels need, and the number of lanes."""
    free: list[float] = []
    shapes: list[_Shape] = []
    known = [(rows.tuples[number].at_ms, number, what) for number, what in row.dots]
    for at_ms, number, what in sorted(known, key=lambda each: (each[0] is None, each[0] or 0, each[1])):
        x = float(_LEFT - 8) if at_ms is None else _x(rows, at_ms)
        label = cut(rows.name(number), _LABEL)
        wide = width_of(label) * _COLUMN + 12
        fits = x + wide <= _TEXT - 8
        left, right = (x - 6, x + wide) if fits else (x - wide, x + 6)
        lane = next((at for at, used in enumerate(free) if used <= left), len(free))
        labelled = lane < _LANES
        if lane == len(free):
            free.append(0.0)
        if labelled:
            free[lane] = right + 6
        middle = y + 13 + lane * _LANE
        shapes.append(_dot(rows, number, "arrived" if what == "new" else what, x, middle, 5.0 if labelled else 3.0))
        if labelled:
            look = "late" if what in ("late", "repeated") else "ink"
            place = (x + 9, "start") if fits else (x - 9, "end")
            shapes.append(_Shape("text", look, place[0], middle + 4, text=label, anchor=place[1]))
    return shapes, max(1, len(free))


# -- SVG and PNG -------------------------------------------------------------------------------------------------------------------


_LIGHT = {
    "ink": "#24292f", "faint": "#59636e", "new": "#1a7f37", "held": "#0969da", "late": "#cf222e", "expired": "#818b98",
    "window": "#c8dcf4", "stripe": "#f6f8fa", "grid": "#e6eaef", "watermark": "#8250df", "arrived": "#24292f", "paper": "#ffffff",
    "strong": "#24292f",
}  # fmt: skip
_DARK = {
    "ink": "#e6edf3", "faint": "#9198a1", "new": "#3fb950", "held": "#58a6ff", "late": "#ff7b72", "expired": "#7d8590",
    "window": "#1f3a5f", "stripe": "#161b22", "grid": "#21262d", "watermark": "#bc8cff", "arrived": "#e6edf3", "paper": "#0d1117",
    "strong": "#e6edf3",
}  # fmt: skip


def to_time_line_svg(line: TimeLine) -> str:
    """Return a time line as SVG text: title and description for screen readers, colours for light and dark paper."""
    rows = _Picture(line)
    shapes, height = _shapes(line, rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}" '
        'role="img" class="time-line">',
        f"<title>{escape(printable(line.title))}</title>",
        f"<desc>{escape(rows.summary(line))}</desc>",
        f"<style>\n{_styles(_LIGHT)}\n@media (prefers-color-scheme: dark) {{\n{_styles(_DARK)}\n}}\n</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height:g}" rx="6"/>',
        *(_element(shape) for shape in shapes),
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def _styles(colours: dict[str, str]) -> str:
    fills = [f".time-line .{look} {{ fill: {colour}; stroke: none }}" for look, colour in colours.items()]
    lines = [f".time-line line.{look} {{ stroke: {colours[look]} }}" for look in ("faint", "grid", "watermark")]
    return "\n".join([
        ".time-line text { font: 12px system-ui, sans-serif }",
        *fills,
        *lines,
        ".time-line text.strong { font-weight: 600 }",
        ".time-line line.watermark { stroke-width: 2; stroke-dasharray: 4 3 }",
        f".time-line path.late {{ stroke: {colours['late']}; stroke-width: 2.5 }}",
        f".time-line circle.expired {{ fill: none; stroke: {colours['expired']}; stroke-width: 2 }}",
    ])  # fmt: skip


def _element(shape: _Shape) -> str:
    tip = f"<title>{escape(shape.tip)}</title>" if shape.tip else ""
    x, y = f"{shape.x:.5g}", f"{shape.y:.6g}"
    if shape.kind == "text":
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        return f'<text class="{shape.look}" x="{x}" y="{y}"{anchor}>{escape(shape.text)}{tip}</text>'
    if shape.kind == "dot":
        return f'<circle class="{shape.look}" cx="{x}" cy="{y}" r="{shape.w:g}">{tip}</circle>'
    if shape.kind == "cross":
        return f'<path class="{shape.look}" d="M{shape.x - 4:.5g},{shape.y - 4:.6g} l8,8 m0,-8 l-8,8">{tip}</path>'
    if shape.kind == "rect":
        return f'<rect class="{shape.look}" x="{x}" y="{y}" width="{shape.w:.5g}" height="{shape.h:.5g}" rx="3"/>'
    return f'<line class="{shape.look}" x1="{x}" y1="{y}" x2="{shape.x + shape.w:.5g}" y2="{shape.y + shape.h:.6g}"/>'


def to_time_line_png(line: TimeLine, dpi: int = 150) -> bytes:
    """Return a time line as the bytes of a PNG on light paper, drawn by matplotlib from the same shapes."""
    require_dpi(dpi)
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ConfigError(
            "a time line as PNG needs matplotlib; pip install 'windowing[draw]', or take .svg() or .text()"
        ) from None
    shapes, height = _shapes(line, _Picture(line))
    with matplotlib.rc_context({"font.family": "sans-serif", "font.size": 8.4}):
        figure = Figure(figsize=(_WIDTH / 100, height / 100), facecolor=_LIGHT["paper"])
        axes: Any = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
        axes.axis("off")
        for shape in shapes:
            colour = _LIGHT[shape.look]
            if shape.kind == "text":
                weight = "bold" if shape.look == "strong" else "normal"
                align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
                said = axes.text(shape.x, shape.y, shape.text, color=colour, ha=align, weight=weight, parse_math=False)
                said.set_fontsize(8.4)
            elif shape.kind == "rect":
                axes.add_patch(Rectangle((shape.x, shape.y), shape.w, shape.h, color=colour, linewidth=0))
            elif shape.kind == "line":
                style = "--" if shape.look == "watermark" else "-"
                axes.plot(
                    [shape.x, shape.x + shape.w], [shape.y, shape.y + shape.h], style, color=colour, linewidth=1.2
                )
            else:
                mark = "x" if shape.kind == "cross" else "o"
                fill = "none" if shape.look == "expired" else colour
                axes.plot([shape.x], [shape.y], mark, color=colour, markerfacecolor=fill, markersize=1.2 * shape.w)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()
