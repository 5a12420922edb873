"""LosslessModel: a slow, obviously correct model of the lossless windows, against which the engine is tested.

    W is the watermark, -infinity at the start and +infinity after a drain.
    A window is `(end - length, end]`; an end e is passed in the watermark advance with `before < e <= now`.

Each rule is a small function whose docstring is the sentence of docs/concepts/windows.md. It scans all tuples ever accepted, in
O(n^2), and uses no code of the engine. LosslessModel applies the rules in order:

    W rises; number and fire each key; emit the firings in (reference, first arrival of the key) order, with new and
    expired relative to the key's last window; expire tuples that no later firing can hold; forget keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.testing.strategies import ModelMix, WatermarkModel

ModelFiring = tuple[int, "list[ModelRow]"]
"""The reference of a window in milliseconds, and the tuples it holds in `get()` order."""


@dataclass(frozen=True, slots=True, order=True)
class ModelRow:
    """One accepted tuple; rows sort by (timestamp, arrival)."""

    timestamp: int
    arrival: int
    id: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """A declared window: length and slide are in tuples or milliseconds, depending on the mix."""

    mix: ModelMix
    length: int
    slide: int
    offset_ms: int = 0
    late_by_window: bool = False
    repeat: bool = False
    max_repeats: int = 10_000


@dataclass(slots=True, eq=False)
class Queue:
    """All data of one key (of the task, without keys), since its first accepted tuple."""

    first_arrival: int
    rows: list[ModelRow] = field(default_factory=list)  # every tuple ever accepted
    numbered: list[ModelRow] = field(default_factory=list)  # number n is numbered[n - 1]
    among: set[int] = field(default_factory=set)  # Count/Duration: arrivals of the tuples of a fired end, shown or not
    last_window: list[ModelRow] = field(default_factory=list)  # tuples of the last fired window
    expired: set[int] = field(default_factory=set)  # arrivals
    repeats: int = 0  # Count/Duration with repeat: ends of this advance without a new tuple


# --- ends ------------------------------------------------------------------------------------------------------------


def first_end(window: ModelWindow, timestamp: int) -> int:
    """The first window end >= timestamp: ends are multiples of the slide, also before 1970, shifted by `offset`."""
    return timestamp + (window.offset_ms - timestamp) % window.slide


def ends_that_hold(window: ModelWindow, timestamp: int) -> range:
    """The ends of the windows `(end - length, end]` that hold the timestamp: those in `[timestamp, timestamp + length)`; none is
    possible if slide > length.
    """
    return range(first_end(window, timestamp), timestamp + window.length, window.slide)


def first_end_to_pass(window: ModelWindow, timestamp: int, before: float) -> int:
    """Ends are passed in ascending order once <= W: the first end >= timestamp that is not yet passed."""
    return first_end(window, timestamp if before < timestamp else int(before) + 1)


# --- lateness --------------------------------------------------------------------------------------------------------


def is_late(window: ModelWindow, timestamp: int, watermark: float) -> bool:
    """*Late*: timestamp < W; for Duration/Duration also a tuple whose windows have all been passed.

    `lateness="window"`: late only when all ends that can hold it have passed, whatever W is; a tuple that no window
    can hold is late when ts < W.
    """
    if window.mix is not ModelMix.DURATION_DURATION:
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


def fire_duration_duration(window: ModelWindow, queue: Queue, before: float, now: float) -> list[ModelFiring]:
    """D/D fires at each end e passed whose window is not empty; holds timestamps in `(e-L, e]`; reference e."""
    ends = {e for row in queue.rows for e in ends_that_hold(window, row.timestamp) if before < e <= now}
    return [(e, [row for row in sorted(queue.rows) if e - window.length < row.timestamp <= e]) for e in sorted(ends)]


def fire_count_slide(window: ModelWindow, queue: Queue, before: float, now: float) -> list[ModelFiring]:
    """C/C and D/C fire at each number n that is a multiple of K; the reference is the timestamp of n."""
    highest = len(queue.numbered)
    number(queue, now)
    fired = [n for n in range(highest + 1, len(queue.numbered) + 1) if n % window.slide == 0]
    return [firing_of_number(window, queue, n, n) for n in fired]


def firing_of_number(window: ModelWindow, queue: Queue, n: int, last: int) -> ModelFiring:
    """C/C holds numbers in `(n-N, n]`; D/C numbers <= n with a timestamp in `(ref-L, ref]`.

    `last` is n, or the highest number if a drain fires the window of n before tuple n has arrived.
    """
    reference = queue.numbered[last - 1].timestamp
    if window.mix is ModelMix.COUNT_COUNT:
        return reference, queue.numbered[max(0, n - window.length) : last]
    return reference, [row for row in queue.numbered[:last] if reference - window.length < row.timestamp <= reference]


def fire_partial(window: ModelWindow, queue: Queue) -> list[ModelFiring]:
    """A drained Count slide with numbers after the last multiple of K fires once more, with those tuples."""
    highest = len(queue.numbered)
    if highest % window.slide == 0:
        return []
    reference, rows = firing_of_number(window, queue, next_multiple(window, queue), highest)
    return [(reference, rows)] if rows else []


def fire_count_duration(window: ModelWindow, queue: Queue, before: float, now: float) -> list[ModelFiring]:
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


def repeated_ends(window: ModelWindow, queue: Queue, before: float, now: float, fresh: list[int]) -> Sequence[int]:
    """A repeated window fires at every end passed once any tuple has timestamp <= end.

    In a drain only until every accepted tuple was in a fired window. The number of ends is computed, not counted.
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


def refuse_repeats(window: ModelWindow, queues: Iterable[Queue]) -> None:
    """A window (of a key, with keys) is repeated at most `max_repeats` times in one advance; more raises ValueError."""
    repeats = max((queue.repeats for queue in queues), default=0)
    if repeats > window.max_repeats:
        raise ValueError(f"max_repeats must not be exceeded in a turn, got {repeats} > {window.max_repeats}")


FIRE = {
    ModelMix.DURATION_DURATION: fire_duration_duration,
    ModelMix.COUNT_COUNT: fire_count_slide,
    ModelMix.DURATION_COUNT: fire_count_slide,
    ModelMix.COUNT_DURATION: fire_count_duration,
}


def fire(window: ModelWindow, queue: Queue, before: float, now: float) -> list[ModelFiring]:
    """Windows are numbered and fired only in an advance that raises W from `before` to `now`; an empty window does not fire."""
    return FIRE[window.mix](window, queue, before, now)


def fire_rest(window: ModelWindow, queue: Queue, before: float) -> list[ModelFiring]:
    """`drain()`: W becomes infinite; D/D and C/D fire the due windows, a Count slide then fires the partial window."""
    firings = fire(window, queue, before, math.inf)
    if window.mix in (ModelMix.COUNT_COUNT, ModelMix.DURATION_COUNT):
        firings += fire_partial(window, queue)
    return firings


def show(queue: Queue, rows: list[ModelRow]) -> tuple[list[ModelRow], list[ModelRow]]:
    """New = tuples of this firing that the last fired window did not hold; expired = tuples of the last window that are not in this
    one.
    """
    new = [row for row in rows if row not in queue.last_window]
    expired = [row for row in queue.last_window if row not in rows]
    queue.last_window = rows
    return new, expired


# --- certainty of expiry ---------------------------------------------------------------------------------------------


def next_multiple(window: ModelWindow, queue: Queue) -> int:
    """The next multiple of K after the highest number."""
    return (len(queue.numbered) // window.slide + 1) * window.slide


def is_certain(window: ModelWindow, queue: Queue, row: ModelRow, watermark: float) -> bool:
    """A tuple expires in the advance in which it becomes certain that no later firing can hold it.

    D/D, its last end has passed (a skipped tuple: W has reached its timestamp); C/C, its number <= next multiple of K - N; D/C, ts
    <= timestamp of the highest number - L; C/D, N newer tuples have been in fired windows.
    """
    if window.mix is ModelMix.DURATION_DURATION:
        ends = ends_that_hold(window, row.timestamp)
        return (ends[-1] if ends else row.timestamp) <= watermark
    if window.mix is ModelMix.COUNT_COUNT:
        return row in queue.numbered[: max(0, next_multiple(window, queue) - window.length)]
    if window.mix is ModelMix.DURATION_COUNT:
        return bool(queue.numbered) and row.timestamp <= queue.numbered[-1].timestamp - window.length
    newer = [other for other in queue.rows if other > row and other.arrival in queue.among]
    return len(newer) >= window.length


# -- LosslessModel ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelResult:
    """The result of a case: `in = shown + pending + late_reasons + skipped`, each id in exactly one of the four."""

    events: list[list[Any]]
    late_reasons: dict[Any, str]
    shown: set[Any]
    skipped: set[Any]
    pending: set[Any]
    expired: list[Any]
    watermark: float


class LosslessModel:
    """The lossless windows of one task: `apply` each op of a case in order, then read `result`."""

    def __init__(self, case: dict[str, Any]) -> None:
        """Declare the window of a case, in the format of `windowing.testing.replay`; its ops are not applied yet."""
        if case.get("semantics") != "lossless":
            raise ValueError(f"semantics must be 'lossless' for this model, got {case.get('semantics')!r}")
        self.window = window_of(case)
        self.keyed = bool(case.get("keyed", False))
        self.key_ttl_ms: int | None = case.get("key_ttl_ms")
        self.max_future_ms: int | None = case.get("max_future_ms")
        self.clock_ms: int = case["clock_start_ms"]
        self.watermark: float = -math.inf
        self.streams = watermark_of(case)
        self.closed = False
        self.queues: dict[Any, Queue] = {}  # in order of the first arrival of the key
        self.accepted: list[ModelRow] = []
        self.events: list[list[Any]] = []
        self.late_reasons: dict[Any, str] = {}
        self.shown: set[Any] = set()
        self.expired: list[Any] = []

    def apply(self, index: int, op: list[Any]) -> None:
        """Apply one op; its events are appended to `events` with the index of the op."""
        options: dict[str, Any] = op[-1] if isinstance(op[-1], dict) else {}
        match [item for item in op if item is not options]:
            case ["clock", ms]:
                self.clock_ms = max(self.clock_ms, ms)  # the clock never goes back
            case ["tuple", stream, id, timestamp] if self.streams is not None:
                self.offer(index, self.streams, stream, id, timestamp, options)
            case ["watermark"] if self.streams is not None:
                self.turn(index, self.streams.turn(self.watermark, self.clock_ms))
            case ["add", id] if self.streams is None:
                self.add(index, id, options)
            case ["tick"] if self.streams is None:
                if self.window.mix.endswith("D") or self.key_ttl_ms is not None:
                    self.turn(index, self.clock_ms - 1)
            case ["drain"]:
                self.drain(index)
            case _:
                time = "processing" if self.streams is None else "event"
                raise ValueError(f"op must be one of those for {time} time, got {op!r}; see windowing.testing.replay")

    def offer(
        self, index: int, streams: WatermarkModel, stream: str, id: Any, ts: int, options: dict[str, Any]
    ) -> None:
        """A tuple is late by the W of the last advance; one too far ahead of the clock never moves W."""
        future = self.max_future_ms is not None and ts > self.clock_ms + self.max_future_ms
        if not future:
            streams.offer(stream, options.get("source"), ts, self.clock_ms)
        if self.closed:
            self.side(index, id, "closed")
        elif future:
            self.side(index, id, "future")
        elif is_late(self.window, ts, self.watermark):
            self.side(index, id, "late")
        else:
            self.accept(id, ts, options)

    def add(self, index: int, id: Any, options: dict[str, Any]) -> None:
        """Processing time: the clock at arrival is the timestamp; a Count slide fires on the add of its K-th tuple."""
        if self.closed:
            self.side(index, id, "closed")
            return
        queue = self.accept(id, self.clock_ms, options)
        if self.window.mix in (ModelMix.COUNT_COUNT, ModelMix.DURATION_COUNT):
            self.activate(index, [(queue, fire(self.window, queue, self.watermark, self.clock_ms))])
            self.expire(index, [queue], [])

    def side(self, index: int, id: Any, reason: str) -> None:
        """Late tuples never expire; they go to the late stream, with a reason."""
        self.late_reasons[id] = reason
        self.events.append([index, "late", id])

    def accept(self, id: Any, timestamp: int, options: dict[str, Any]) -> Queue:
        """With `key=`, each key has its own queue, numbers, ends, new and expired tuples."""
        row = ModelRow(timestamp, len(self.accepted), id)
        self.accepted.append(row)
        queue = self.queues.setdefault(options.get("key") if self.keyed else None, Queue(row.arrival))
        queue.rows.append(row)
        return queue

    def turn(self, index: int, now: float) -> None:
        """W changes only in a watermark advance; an advance that does not raise it has no effect."""
        before = self.watermark
        if now <= before:
            return
        self.watermark = now
        gone = [queue for queue in self.queues.values() if self.is_outlived(queue)]
        fired = [
            (queue, fire(self.window, queue, before, self.end_of(queue) if queue in gone else now))
            for queue in self.queues.values()
        ]
        fired += [(queue, fire_rest(self.window, queue, self.end_of(queue))) for queue in gone]
        self.activate(index, fired)
        self.expire(index, list(self.queues.values()), gone)
        self.forget(gone)

    def drain(self, index: int) -> None:
        """`drain()` closes the machine (idempotent): W becomes infinite, the remaining windows fire, then all tuples expire."""
        if self.closed:
            return
        queues = list(self.queues.values())
        self.activate(index, [(queue, fire_rest(self.window, queue, self.watermark)) for queue in queues])
        self.expire(index, queues, queues)
        self.closed, self.watermark = True, math.inf

    def is_outlived(self, queue: Queue) -> bool:
        """Keys of windows with a Count live until `key_ttl` (event time since the key's last tuple)."""
        if self.key_ttl_ms is None or not self.keyed or self.window.mix is ModelMix.DURATION_DURATION:
            return False
        return self.watermark >= self.end_of(queue)

    def end_of(self, queue: Queue) -> int:
        """The time at which a key ends: a window that repeats does so until then, however far W goes."""
        assert self.key_ttl_ms is not None
        return max(queue.rows).timestamp + self.key_ttl_ms

    def activate(self, index: int, fired: list[tuple[Queue, list[ModelFiring]]]) -> None:
        """Firings of one advance come in (end or reference, first arrival of the key) order."""
        refuse_repeats(self.window, self.queues.values())
        firings = [(reference, queue, rows) for queue, of_queue in fired for reference, rows in of_queue]
        for reference, queue, rows in sorted(firings, key=lambda firing: (firing[0], firing[1].first_arrival)):
            new, expired = show(queue, rows)
            self.shown |= {row.id for row in rows}
            self.events.append([index, "activate", ids(rows), ids(new), ids(expired), reference])

    def expire(self, index: int, queues: list[Queue], gone: list[Queue]) -> None:
        """A tuple expires after the last activation of the advance that shows it; one expire event per op."""
        expired: list[ModelRow] = []
        for queue in queues:
            live = [row for row in sorted(queue.rows) if row.arrival not in queue.expired]
            certain = [row for row in live if queue in gone or is_certain(self.window, queue, row, self.watermark)]
            queue.expired |= {row.arrival for row in certain}
            expired += certain
        if expired:
            self.expired += ids(expired)
            self.events.append([index, "expire", ids(expired)])
        for queue in queues:
            queue.repeats = 0

    def forget(self, gone: list[Queue]) -> None:
        """A key with an empty queue is forgotten; a key of a window with a Count lives until `key_ttl=`."""
        if not self.keyed:
            return
        for key, queue in list(self.queues.items()):
            empty = len(queue.expired) == len(queue.rows)
            if queue in gone or (empty and self.window.mix is ModelMix.DURATION_DURATION):
                del self.queues[key]

    def result(self) -> ModelResult:
        """The result of all ops so far."""
        accepted, expired = {row.id for row in self.accepted}, set(self.expired)
        return ModelResult(
            events=list(self.events),
            late_reasons=dict(self.late_reasons),
            shown=set(self.shown),
            skipped=expired - self.shown,
            pending=accepted - expired - self.shown,
            expired=list(self.expired),
            watermark=self.watermark,
        )


def ids(rows: list[ModelRow]) -> list[Any]:
    """The ids of rows, in their order."""
    return [row.id for row in rows]


def window_of(case: dict[str, Any]) -> ModelWindow:
    """The window that a case declares; the default slide is Count(1)."""
    symbol = {"count": "C", "duration_ms": "D"}
    [(length_unit, length)] = case["length"].items()
    [(slide_unit, slide)] = (case.get("slide") or {"count": 1}).items()
    window = ModelWindow(
        mix=ModelMix(f"{symbol[length_unit]}/{symbol[slide_unit]}"),
        length=length,
        slide=slide,
        offset_ms=case.get("offset_ms") or 0,
        late_by_window=case.get("lateness", "watermark") == "window",
        repeat=bool(case.get("repeat", False)),
        max_repeats=case.get("max_repeats", 10_000),
    )
    if window.late_by_window and window.mix is not ModelMix.DURATION_DURATION:
        raise ValueError(f"lateness 'window' is for Duration/Duration only, got {window.mix}; use 'watermark'")
    if window.repeat and window.mix is not ModelMix.COUNT_DURATION:
        raise ValueError(f"repeat is for Count/Duration only, got {window.mix}; leave it out")
    return window


def watermark_of(case: dict[str, Any]) -> WatermarkModel | None:
    """The watermark that a case declares, None on processing time."""
    event_time = case["event_time"]
    if event_time is None:
        return None
    return WatermarkModel(
        streams=event_time["streams"],
        lag_ms=event_time["lag_ms"],
        clock_start_ms=case["clock_start_ms"],
        by_source=bool(case.get("source", False)),
        idle_timeout_ms=case.get("idle_timeout_ms"),
    )


def run_model(case: dict[str, Any]) -> ModelResult:
    """Run a lossless case through the model, for tests that need more than the events."""
    model = LosslessModel(case)
    for index, op in enumerate(case["ops"]):
        model.apply(index, op)
    return model.result()
