"""Hypothesis strategies that draw the micro-batches of a bolt, and windows and whole cases in the format of `replay`.

`batches` is for tests of your own bolts and policies, `cases` for tests of windows without a bolt.

Cases contain the inputs that windows often get wrong: many equal timestamps, timestamps on the watermark and on window ends,
disorder, gaps of 10**12 ms, times before 1970, drains without a watermark advance before them, and tuples after a drain. A case is
built from a list of small independent steps, so a failing one shrinks to few ops with small numbers.

    >>> from hypothesis import given
    >>> from windowing.testing import replay
    >>> @given(cases(mix="C/D", drains=True))
    ... def test_each_tuple_is_late_or_expires(case):
    ...     events = replay(case)
    ...     ended = [event[2] for event in events if event[1] == "late"]
    ...     ended += [id for event in events if event[1] == "expire" for id in event[2]]
    ...     fed = [op for op in case["ops"] if op[0] in ("tuple", "add")]
    ...     assert len(ended) == len(set(ended)) == len(fed)
    >>> test_each_tuple_is_late_or_expires()

This is the only module of the library that imports hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from hypothesis import strategies as st

BIG_GAP_MS = 10**12
DELTAS_MS = (0, 1, -1, 2, 3, 5, -2, 4, 10, -5, 20, -12)
KEYS = ("a", "b", "c")
_STEPS = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 5, 10, 30, 1_000)
_STEPS_BACK = (-1, -2, -5, -12)
"""By how many units a timestamp of `batches` differs from the largest one so far; one that is listed twice is twice as likely."""
CaseStep = tuple[Any, ...]


@st.composite
def batches(
    draw: st.DrawFn,
    fields: Mapping[str, st.SearchStrategy[Any]] | None = None,
    *,
    timestamp: str = "at",
    number: str | None = None,
    unit_ms: int = 1_000,
    ordered: bool = False,
    max_rows: int = 30,
) -> list[list[dict[str, Any]]]:
    """Micro-batches for `run_local`, `LocalRun` and `check_restarts`: lists of rows, which are dicts.

    fields: a strategy for each field but the timestamp. timestamp: the field with the time of a row, in milliseconds. number: a
    field that numbers the rows 1, 2, 3, ... in order of arrival. unit_ms: the step of lengths and slides of the windows;
    timestamps are often equal, on a multiple of it or 1 ms beside it, some far ahead; in one example of three none is, so that what
    a gap ends may last: ten gaps and more if unit_ms is a third of one, and max_rows 100. ordered: no timestamp is smaller than one
    before it; otherwise one in five rows is up to 12 units out of order. Some batches are empty. A failing example shrinks to few
    rows with small times in one batch.

    >>> from hypothesis import given
    >>> @given(batches({"user": st.sampled_from("ab")}, number="id"))
    ... def test_rows(batches):
    ...     assert [row["id"] for batch in batches for row in batch] == [*range(1, sum(map(len, batches)) + 1)]
    >>> test_rows()
    """
    furthest = draw(st.sampled_from((1_000, 1_000, 1)))
    steps = sorted((each for each in (*_STEPS, *(() if ordered else _STEPS_BACK)) if each <= furthest), key=abs)
    row = st.tuples(
        st.sampled_from(steps),
        st.sampled_from((0, 0, 0, 1, unit_ms // 2) if ordered else (0, 0, 0, 1, -1)),
        st.sampled_from((0, 0, 0, 1, 1, 2)),
        st.fixed_dictionaries(dict(fields or {})),
    )
    front_ms = draw(st.sampled_from((0, 0, unit_ms, -3 * unit_ms, 1_700_000_000_000)))
    found: list[list[dict[str, Any]]] = [[]]
    at_least = draw(st.sampled_from((0, max_rows // 2, max_rows // 4)))
    for at, (step, beside_ms, ends, values) in enumerate(draw(st.lists(row, min_size=at_least, max_size=max_rows)), 1):
        at_ms = front_ms + step * unit_ms + beside_ms
        front_ms = max(front_ms, at_ms) if ordered else max(front_ms, front_ms + step * unit_ms)
        found[-1].append(values | ({} if number is None else {number: at}) | {timestamp: at_ms})
        found += [[] for _ in range(ends)]
    return found


class ModelMix(StrEnum):
    """The units of a window, length / slide: D for Duration, C for Count."""

    DURATION_DURATION = "D/D"
    COUNT_COUNT = "C/C"
    DURATION_COUNT = "D/C"
    COUNT_DURATION = "C/D"


def counts(min_value: int = 1, max_value: int = 10) -> st.SearchStrategy[dict[str, int]]:
    """Lengths and slides in tuples, in the format of a case: `counts()` draws `{"count": 3}`."""
    return st.integers(min_value, max_value).map(lambda n: {"count": n})


def durations(min_ms: int = 1, max_ms: int = 30) -> st.SearchStrategy[dict[str, int]]:
    """Lengths and slides in milliseconds, in the format of a case: `durations()` draws `{"duration_ms": 20}`."""
    return st.integers(min_ms, max_ms).map(lambda ms: {"duration_ms": ms})


@st.composite
def windows(draw: st.DrawFn, mix: ModelMix | str | None = None) -> dict[str, Any]:
    """Pairs of length and slide, often tumbling: `windows("D/D")` draws `{"length": ..., "slide": ...}`."""
    mix = ModelMix(mix) if mix is not None else draw(st.sampled_from(ModelMix))
    length = draw(counts() if mix.startswith("C") else durations())
    slide = draw(counts() if mix.endswith("C") else durations(max_ms=10))
    if length.keys() == slide.keys() and draw(st.integers(0, 3)) == 3:
        slide = dict(length)
    return {"length": length, "slide": slide}


@st.composite
def cases(
    draw: st.DrawFn,
    mix: ModelMix | str | None = None,
    event_time: bool | None = None,
    semantics: Literal["lossless", "storm"] = "lossless",
    *,
    keyed: bool | None = False,
    key_ttl: bool | None = False,
    drains: bool | None = None,
    offset: bool | None = False,
    lateness: Literal["watermark", "window"] | None = "watermark",
    repeat: bool | None = False,
    idle: bool | None = False,
    future: bool | None = False,
    source: bool | None = False,
    big_gaps: bool = True,
    max_steps: int = 40,
) -> dict[str, Any]:
    """Whole cases without their events: `cases(mix="D/D", event_time=True, keyed=True, drains=None)`.

    mix: one of "D/D", "C/C", "D/C", "C/D" (length / slide), None for any of them.
    event_time: True for event time, False for processing time, None for either.
    keyed, key_ttl, drains, offset, repeat, idle, future, source: True to include it, False to exclude it, None for
    either. A field that the drawn mix or time does not support is left out (`repeat` except for C/D, `key_ttl` for D/D, ...).
    lateness: "watermark", "window" (if the mix is D/D), None for either.
    big_gaps: False keeps gaps below 100 ms, for code that steps through them; so does `repeat`.
    max_steps: the maximum number of steps; a step is one or a few ops.
    """
    case: dict[str, Any] = {**draw(windows(mix)), "stateful": False, "semantics": semantics}
    kind = window_mix(case)
    counted = kind is not ModelMix.DURATION_DURATION
    of_event_time = chosen(draw, event_time)
    case["event_time"] = None
    if of_event_time:
        streams = ["a", "b", "c"][: draw(st.sampled_from([1, 1, 2, 3]))]
        case["event_time"] = {"lag_ms": draw(st.sampled_from([0, 0, 1, 2, 3, 5, 10])), "streams": streams}
    if kind.endswith("D") and chosen(draw, offset):
        case["offset_ms"] = draw(st.integers(-15, 15))
    if not counted and of_event_time and (lateness or draw(st.sampled_from(["watermark", "window"]))) == "window":
        case["lateness"] = "window"
    if kind is ModelMix.COUNT_DURATION and chosen(draw, repeat):
        case["repeat"] = True
    if chosen(draw, keyed):
        case["keyed"] = True
        if counted and chosen(draw, key_ttl):
            case["key_ttl_ms"] = draw(st.integers(1, 20))
    if of_event_time and chosen(draw, idle):
        case["idle_timeout_ms"] = draw(st.integers(1, 15))
    if of_event_time and chosen(draw, future):
        case["max_future_ms"] = draw(st.integers(0, 15))
    if of_event_time and chosen(draw, source):
        case["source"] = True

    case["clock_start_ms"] = draw(st.sampled_from([0, -25, 1, 1_700_000_000_000]))
    step = event_time_steps(case, big_gaps) if of_event_time else processing_time_steps(case, big_gaps)
    at_least = draw(st.sampled_from([0, max_steps // 2, max_steps // 4, max_steps * 3 // 4]))
    before, ending = draw(st.lists(step, min_size=at_least, max_size=max_steps)), []
    if chosen(draw, drains if drains is not None or semantics == "lossless" else False):
        before += draw(st.sampled_from([[], [("turn",)]]))
        ending = [("drain",), *draw(st.lists(step, max_size=3)), *draw(st.sampled_from([[], [("drain",)]]))]
    case["ops"] = Script(case).write(before + ending)
    return case


def chosen(draw: st.DrawFn, wanted: bool | None) -> bool:
    """The wanted value, or a drawn one if `wanted` is None."""
    return draw(st.booleans()) if wanted is None else wanted


def window_mix(case: dict[str, Any]) -> ModelMix:
    """The mix of a case's length and slide."""
    return ModelMix("/".join("C" if "count" in case[part] else "D" for part in ("length", "slide")))


def gaps(case: dict[str, Any], big_gaps: bool) -> st.SearchStrategy[int]:
    """Gaps of time; short ones if every slide end fires, or if the code under test steps through them."""
    return st.sampled_from([30, 75] if case.get("repeat") or not big_gaps else [30, 75, BIG_GAP_MS])


def event_time_steps(case: dict[str, Any], big_gaps: bool) -> st.SearchStrategy[CaseStep]:
    """The steps of a case on event time, most of them tuples."""
    which = (
        st.integers(0, len(case["event_time"]["streams"]) - 1),
        st.integers(0, 2 if case.get("keyed") else 0),
        st.integers(0, 1 if case.get("source") else 0),
    )
    delta = st.sampled_from(DELTAS_MS)
    rising = st.tuples(st.just("tuple"), st.just("front"), delta, *which)
    on_watermark = st.tuples(st.just("tuple"), st.just("watermark"), st.sampled_from([0, 0, 1, -1]), *which)
    on_end = st.tuples(st.just("tuple"), st.just("end"), st.sampled_from([0, 0, 1]), *which)
    each = st.tuples(st.just("each"), st.sampled_from([0, 1, 5, 12]))
    gap = st.tuples(st.just("gap"), gaps(case, big_gaps))
    turn: st.SearchStrategy[CaseStep] = st.just(("turn",))
    steps: list[st.SearchStrategy[CaseStep]] = [rising, rising, rising, turn, turn, each, on_watermark, on_end, gap]
    if "idle_timeout_ms" in case or "max_future_ms" in case:
        steps.append(st.tuples(st.just("clock"), st.sampled_from([0, 1, 3, 8, 20])))
        steps.append(st.just(("clock to front",)))
    return one_of_weighted(steps)


def processing_time_steps(case: dict[str, Any], big_gaps: bool) -> st.SearchStrategy[CaseStep]:
    """The steps of a case on processing time; the clock often stands still and never goes back."""
    add = st.tuples(st.just("add"), st.integers(0, 2 if case.get("keyed") else 0))
    small = st.tuples(st.just("clock"), st.sampled_from([1, 0, 2, 3, 5, 10]))
    gap = st.tuples(st.just("clock"), gaps(case, big_gaps))
    turn: st.SearchStrategy[CaseStep] = st.just(("turn",))
    steps: list[st.SearchStrategy[CaseStep]] = [add, add, add, add, small, small, turn, turn, gap]
    return one_of_weighted(steps)


@st.composite
def one_of_weighted(draw: st.DrawFn, strategies: list[st.SearchStrategy[CaseStep]]) -> CaseStep:
    """Draw from one of the strategies; one that is listed twice is twice as likely, unlike in `one_of`."""
    return draw(strategies[draw(st.integers(0, len(strategies) - 1))])


@dataclass(slots=True)
class WatermarkModel:
    """The largest timestamp and the clock of the last tuple of each stream, or of each (stream, source) pair."""

    streams: Sequence[str]
    lag_ms: int
    clock_start_ms: int = 0
    by_source: bool = False
    idle_timeout_ms: int | None = None
    seen: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)

    def offer(self, stream: str, source: Any, timestamp: int, clock_ms: int) -> None:
        """Update the largest timestamp: late tuples count too, tuples too far in the future must not be offered."""
        if stream not in self.streams:
            raise ValueError(f"stream must be one of {list(self.streams)}, got {stream!r}; declare it in event_time")
        pair = (stream, source if self.by_source else None)
        largest, _ = self.seen.get(pair, (timestamp, clock_ms))
        self.seen[pair] = (max(largest, timestamp), clock_ms)

    def turn(self, before: float, clock_ms: int) -> float:
        """The minimum over the input streams (or pairs) of the largest timestamp, minus the lag; it never falls.

        It is -infinity until every declared stream has had a tuple. A silent stream is ignored after `idle_timeout_ms`; if all are
        silent the watermark does not change.
        """
        signs: list[tuple[float, int]] = list(self.seen.values())
        signs += [(-math.inf, self.clock_start_ms) for s in self.streams if all(s != seen for seen, _ in self.seen)]
        limit_ms = math.inf if self.idle_timeout_ms is None else self.idle_timeout_ms
        awake = [largest for largest, at in signs if clock_ms - at < limit_ms]
        return max(before, min(awake) - self.lag_ms) if awake else before


@dataclass(slots=True)
class Script:
    """Turns steps into ops; it tracks the clock and the watermark, so that tuples can be placed on them."""

    case: dict[str, Any]
    ops: list[list[Any]] = field(default_factory=list)
    next_id: int = 1
    clock_ms: int = 0
    front_ms: int = 0
    watermark: float = -math.inf
    generator: WatermarkModel | None = None

    def write(self, steps: list[CaseStep]) -> list[list[Any]]:
        self.clock_ms = self.front_ms = self.case["clock_start_ms"]
        if event_time := self.case["event_time"]:
            self.generator = WatermarkModel(
                event_time["streams"],
                event_time["lag_ms"],
                self.clock_ms,
                self.case.get("source", False),
                self.case.get("idle_timeout_ms"),
            )
        for step in steps:
            self.write_step(step)
        return self.ops

    def write_step(self, step: CaseStep) -> None:
        match step:
            case ("tuple", aim, delta, stream, key, source):
                self.write_tuple(stream, self.aimed(aim) + delta, key, source)
            case ("each", delta):
                for stream in range(len(self.case["event_time"]["streams"])):
                    self.write_tuple(stream, self.front_ms + delta, 0, 0)
            case ("gap", delta):
                self.front_ms += delta
            case ("clock", delta):
                self.set_clock(self.clock_ms + delta)
            case ("clock to front",):
                self.set_clock(max(self.clock_ms, self.front_ms))
            case ("add", key):
                self.ops.append(["add", self.next_id, *self.options(key, 0)])
                self.next_id += 1
            case ("turn",) if self.generator is not None:
                self.watermark = self.generator.turn(self.watermark, self.clock_ms)
                self.ops.append(["watermark"])
            case ("turn",):
                self.ops.append(["tick"])
            case _:
                self.ops.append(list(step))

    def aimed(self, aim: str) -> int:
        """Return the base time of a tuple: the front, the watermark, or the next window end."""
        if aim == "watermark" and self.watermark > -math.inf:
            return int(self.watermark)
        if aim == "end" and "duration_ms" in self.case["slide"]:
            slide_ms: int = self.case["slide"]["duration_ms"]
            offset_ms: int = self.case.get("offset_ms", 0)
            return self.front_ms + (offset_ms - self.front_ms) % slide_ms
        return self.front_ms

    def write_tuple(self, stream: int, timestamp: int, key: int, source: int) -> None:
        """Append one tuple; the front follows it, and so does the watermark unless the tuple is too far in the future."""
        assert self.generator is not None, "tuples with a timestamp are for event time"
        name = self.case["event_time"]["streams"][stream]
        self.ops.append(["tuple", name, self.next_id, timestamp, *self.options(key, source)])
        self.next_id += 1
        self.front_ms = max(self.front_ms, timestamp)
        if timestamp <= self.clock_ms + self.case.get("max_future_ms", math.inf):
            self.generator.offer(name, source, timestamp, self.clock_ms)

    def options(self, key: int, source: int) -> list[dict[str, Any]]:
        options: dict[str, Any] = {}
        if self.case.get("keyed"):
            options["key"] = KEYS[key]
        if self.case.get("source"):
            options["source"] = source
        return [options] if options else []

    def set_clock(self, clock_ms: int) -> None:
        """Append a clock op; the clock never goes back, but may stand still."""
        self.clock_ms = clock_ms
        self.ops.append(["clock", clock_ms])
