"""The rules of the slow model, each a small function whose docstring is the sentence of docs/semantics.md.

    W is the watermark, -infinity at the start and +infinity after a drain.
    A window is `(end - length, end]`; an end e is passed in the turn with `before < e <= now`.

Each rule scans all tuples ever accepted: O(n^2), without cleverness, and without any code of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Firing = tuple[int, "list[Row]"]
"""The reference of a window in milliseconds, and the tuples it holds in `get()` order."""


class Mix(StrEnum):
    """What a window is counted in: its length / its slide, D for Duration and C for Count."""

    DURATION_DURATION = "D/D"
    COUNT_COUNT = "C/C"
    DURATION_COUNT = "D/C"
    COUNT_DURATION = "C/D"


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One accepted tuple; rows sort by (timestamp, arrival)."""

    timestamp: int
    arrival: int
    id: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class Window:
    """A window as declared: length and slide are tuples or milliseconds, as the mix says."""

    mix: Mix
    length: int
    slide: int
    offset_ms: int = 0
    late_by_window: bool = False
    repeat: bool = False
    max_repeats: int = 10_000


@dataclass(slots=True, eq=False)
class Queue:
    """All that is known of one key (of the task, where nothing is keyed), since its first accepted tuple."""

    first_arrival: int
    rows: list[Row] = field(default_factory=list)  # every tuple ever accepted
    numbered: list[Row] = field(default_factory=list)  # number n is numbered[n - 1]
    among: set[int] = field(default_factory=set)  # Count/Duration: arrivals of the tuples of a fired end, shown or not
    last_window: list[Row] = field(default_factory=list)  # what the last fired window held
    expired: set[int] = field(default_factory=set)  # arrivals
    repeats: int = 0  # Count/Duration with repeat: ends of this turn without a new tuple


# --- ends ------------------------------------------------------------------------------------------------------------


def first_end(window: Window, timestamp: int) -> int:
    """Time windows end at multiples of the slide, also before 1970; an `offset` shifts them: the first >= timestamp."""
    return timestamp + (window.offset_ms - timestamp) % window.slide


def ends_that_hold(window: Window, timestamp: int) -> range:
    """Window = `(end - length, end]`: the ends in `[timestamp, timestamp + length)`; maybe none, if slide > length."""
    return range(first_end(window, timestamp), timestamp + window.length, window.slide)


def first_end_to_pass(window: Window, timestamp: int, before: float) -> int:
    """Ends are passed in ascending order once <= W: the first one >= timestamp that is still to be passed."""
    return first_end(window, timestamp if before < timestamp else int(before) + 1)


# --- watermark and lateness ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class WatermarkModel:
    """The largest timestamp and the last sign of life (a clock) of each stream, or of each (stream, source) pair."""

    streams: Sequence[str]
    lag_ms: int
    clock_start_ms: int = 0
    by_source: bool = False
    idle_timeout_ms: int | None = None
    seen: dict[tuple[str, Any], tuple[int, int]] = field(default_factory=dict)

    def offer(self, stream: str, source: Any, timestamp: int, clock_ms: int) -> None:
        """The largest timestamp seen: late tuples count too, future ones must not be offered."""
        if stream not in self.streams:
            raise ValueError(f"stream must be one of {list(self.streams)}, got {stream!r}; declare it in event_time")
        pair = (stream, source if self.by_source else None)
        largest, _ = self.seen.get(pair, (timestamp, clock_ms))
        self.seen[pair] = (max(largest, timestamp), clock_ms)

    def turn(self, before: float, clock_ms: int) -> float:
        """The minimum over the input streams (or pairs) of the largest timestamp, minus the lag; it never falls.

        It is -infinity until every declared stream has shown a tuple. A silent stream stops holding it back after
        `idle_timeout_ms`; if all are silent it stays as it is.
        """
        signs: list[tuple[float, int]] = list(self.seen.values())
        signs += [(-math.inf, self.clock_start_ms) for s in self.streams if all(s != seen for seen, _ in self.seen)]
        awake = [largest for largest, at in signs if not self.is_idle(at, clock_ms)]
        return max(before, min(awake) - self.lag_ms) if awake else before

    def is_idle(self, last_seen_ms: int, clock_ms: int) -> bool:
        """Idle at clock c: the last tuple came at clock t with `c - t >= idle_timeout`."""
        return self.idle_timeout_ms is not None and clock_ms - last_seen_ms >= self.idle_timeout_ms


def is_late(window: Window, timestamp: int, watermark: float) -> bool:
    """*Late*: timestamp < W; for Duration/Duration also a tuple whose windows have all been passed.

    `lateness="window"`: late only when all ends that can hold it have passed, whatever W; a tuple no end can hold is
    late when ts < W.
    """
    if window.mix is not Mix.DURATION_DURATION:
        return timestamp < watermark
    ends = ends_that_hold(window, timestamp)
    if not ends:
        return timestamp < watermark
    all_passed = ends[-1] <= watermark
    return all_passed if window.late_by_window else all_passed or timestamp < watermark


# --- what fires, in the order of one key -----------------------------------------------------------------------------


def number(queue: Queue, now: float) -> None:
    """Tuples are numbered from 1 in order once their timestamp is <= W, after all numbered before."""
    numbered = {row.arrival for row in queue.numbered}
    queue.numbered += [row for row in sorted(queue.rows) if row.timestamp <= now and row.arrival not in numbered]


def fire_duration_duration(window: Window, queue: Queue, before: float, now: float) -> list[Firing]:
    """D/D fires at each end e passed whose window is not empty; holds timestamps in `(e-L, e]`; reference e."""
    ends = {e for row in queue.rows for e in ends_that_hold(window, row.timestamp) if before < e <= now}
    return [(e, [row for row in sorted(queue.rows) if e - window.length < row.timestamp <= e]) for e in sorted(ends)]


def fire_count_slide(window: Window, queue: Queue, before: float, now: float) -> list[Firing]:
    """C/C and D/C fire at each number n that is a multiple of K; the reference is the timestamp of n."""
    highest = len(queue.numbered)
    number(queue, now)
    fired = [n for n in range(highest + 1, len(queue.numbered) + 1) if n % window.slide == 0]
    return [firing_of_number(window, queue, n, n) for n in fired]


def firing_of_number(window: Window, queue: Queue, n: int, last: int) -> Firing:
    """C/C holds numbers in `(n-N, n]`; D/C numbers <= n with a timestamp in `(ref-L, ref]`.

    `last` is n, or less where a drain fires what would have come at n with what there is.
    """
    reference = queue.numbered[last - 1].timestamp
    if window.mix is Mix.COUNT_COUNT:
        return reference, queue.numbered[max(0, n - window.length) : last]
    return reference, [row for row in queue.numbered[:last] if reference - window.length < row.timestamp <= reference]


def fire_partial(window: Window, queue: Queue) -> list[Firing]:
    """A drained Count slide, if numbers are left after the last multiple of K, fires once more with what there is."""
    highest = len(queue.numbered)
    if highest % window.slide == 0:
        return []
    reference, rows = firing_of_number(window, queue, next_multiple(window, queue), highest)
    return [(reference, rows)] if rows else []


def fire_count_duration(window: Window, queue: Queue, before: float, now: float) -> list[Firing]:
    """C/D fires at each end e passed, if a tuple with timestamp <= e was not yet among the tuples of a fired end.

    It holds the last N with timestamp <= e; reference e. With `repeat` it fires without new tuples too.
    """
    fresh = [row for row in queue.rows if row.arrival not in queue.among]
    ends: Iterable[int] = sorted({first_end_to_pass(window, row.timestamp, before) for row in fresh})
    ends = [e for e in ends if e <= now]
    if window.repeat:
        ends = repeated_ends(window, queue, before, now, ends)
    firings = []
    for e in ends:
        held = [row for row in sorted(queue.rows) if row.timestamp <= e]
        queue.among |= {row.arrival for row in held}
        firings.append((e, held[-window.length :]))
    return firings


def repeated_ends(window: Window, queue: Queue, before: float, now: float, fresh: list[int]) -> Sequence[int]:
    """A repeated window fires at every end passed once any tuple has timestamp <= end.

    In a drain only until every accepted tuple has been among those of a fired end. The gap is measured, not walked.
    """
    first = first_end_to_pass(window, min(queue.rows).timestamp, before)
    if now == math.inf:
        last = max(fresh, default=first - 1)
    else:
        last = int(now) if now >= first else first - 1
    ends = range(first, last + 1, window.slide)
    queue.repeats += len(ends) - len(fresh)
    refuse_repeats(window, [queue])
    return ends


def refuse_repeats(window: Window, queues: Iterable[Queue]) -> None:
    """A window is repeated at most `max_repeats` times in a turn (of the task), then it is an error."""
    repeats = sum(queue.repeats for queue in queues)
    if repeats > window.max_repeats:
        raise ValueError(f"max_repeats must not be exceeded in a turn, got {repeats} > {window.max_repeats}")


FIRE = {
    Mix.DURATION_DURATION: fire_duration_duration,
    Mix.COUNT_COUNT: fire_count_slide,
    Mix.DURATION_COUNT: fire_count_slide,
    Mix.COUNT_DURATION: fire_count_duration,
}


def fire(window: Window, queue: Queue, before: float, now: float) -> list[Firing]:
    """Windows are numbered and fired only inside a turn that raises W from `before` to `now`; no tuples, no window."""
    return FIRE[window.mix](window, queue, before, now)


def fire_rest(window: Window, queue: Queue, before: float) -> list[Firing]:
    """`drain()`: W becomes infinite; D/D and C/D fire by the table, a Count slide then fires the partial window."""
    firings = fire(window, queue, before, math.inf)
    if window.mix in (Mix.COUNT_COUNT, Mix.DURATION_COUNT):
        firings += fire_partial(window, queue)
    return firings


def show(queue: Queue, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """New = tuples of this firing that the last fired window did not hold; expired = those of the last not in this."""
    new = [row for row in rows if row not in queue.last_window]
    expired = [row for row in queue.last_window if row not in rows]
    queue.last_window = rows
    return new, expired


# --- certainty of expiry ---------------------------------------------------------------------------------------------


def next_multiple(window: Window, queue: Queue) -> int:
    """The next multiple of K after the highest number."""
    return (len(queue.numbered) // window.slide + 1) * window.slide


def is_certain(window: Window, queue: Queue, row: Row, watermark: float) -> bool:
    """A tuple expires in the turn in which it becomes certain that no later firing can hold it.

    D/D, its last end has passed (a skipped one: W has reached it); C/C, its number <= next multiple of K - N; D/C,
    ts <= timestamp of the highest number - L; C/D, N newer tuples have been among those of a fired end.
    """
    if window.mix is Mix.DURATION_DURATION:
        ends = ends_that_hold(window, row.timestamp)
        return (ends[-1] if ends else row.timestamp) <= watermark
    if window.mix is Mix.COUNT_COUNT:
        return row in queue.numbered[: max(0, next_multiple(window, queue) - window.length)]
    if window.mix is Mix.DURATION_COUNT:
        return bool(queue.numbered) and row.timestamp <= queue.numbered[-1].timestamp - window.length
    newer = [other for other in queue.rows if other > row and other.arrival in queue.among]
    return len(newer) >= window.length
