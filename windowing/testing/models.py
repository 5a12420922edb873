"""The slow and obvious model of the lossless windows, against which the fast engine is tested.

It shares no code with the engine. The rules of the specification are in `_rules.py`; here they are put in order:

    a turn: W rises; number and fire, each key for itself; show the firings in (reference, first arrival of the key)
    order, new and expired against the last window of the key; expire what no later firing can hold; forget keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from windowing.testing._rules import (
    Firing,
    Mix,
    Queue,
    Row,
    WatermarkModel,
    Window,
    fire,
    fire_rest,
    is_certain,
    is_late,
    refuse_repeats,
    show,
)

__all__ = ["LosslessModel", "Mix", "ModelResult", "WatermarkModel", "lossless_model", "run_model"]


@dataclass(frozen=True)
class ModelResult:
    """What a case leads to: `in = shown + pending + late_reasons + skipped`, each id in exactly one of the four."""

    events: list[list[Any]]
    late_reasons: dict[Any, str]
    shown: set[Any]
    skipped: set[Any]
    pending: set[Any]
    expired: list[Any]
    watermark: float


class LosslessModel:
    """The lossless windows of one task: `apply` each op of a case in order, then ask for the `result`."""

    def __init__(self, case: dict[str, Any]) -> None:
        """Declare the window of a case, in the format of `conformance/README.md`; its ops are not applied yet."""
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
        self.accepted: list[Row] = []
        self.events: list[list[Any]] = []
        self.late_reasons: dict[Any, str] = {}
        self.shown: set[Any] = set()
        self.expired: list[Any] = []

    def apply(self, index: int, op: list[Any]) -> None:
        """Apply one op; what happens is appended to `events` with the index of the op."""
        options: dict[str, Any] = op[-1] if isinstance(op[-1], dict) else {}
        match [item for item in op if item is not options]:
            case ["clock", ms]:
                self.clock_ms = max(self.clock_ms, ms)  # a clock never falls
            case ["tuple", stream, id, timestamp] if self.streams is not None:
                self.offer(index, self.streams, stream, id, timestamp, options)
            case ["watermark"] if self.streams is not None:
                self.turn(index, self.streams.turn(self.watermark, self.clock_ms))
            case ["add", id] if self.streams is None:
                self.add(index, id, options)
            case ["tick"] if self.streams is None:
                if self.window.mix in (Mix.DURATION_DURATION, Mix.COUNT_DURATION):
                    self.turn(index, self.clock_ms - 1)
            case ["drain"]:
                self.drain(index)
            case _:
                time = "processing" if self.streams is None else "event"
                raise ValueError(f"op must be one of those for {time} time, got {op!r}; see conformance/README.md")

    def offer(
        self, index: int, streams: WatermarkModel, stream: str, id: Any, ts: int, options: dict[str, Any]
    ) -> None:
        """A tuple is judged by the W of the last turn; one too far ahead of the clock never moves W."""
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
        if self.window.mix in (Mix.COUNT_COUNT, Mix.DURATION_COUNT):
            self.activate(index, [(queue, fire(self.window, queue, self.watermark, self.clock_ms))])
            self.expire(index, [queue], [])

    def side(self, index: int, id: Any, reason: str) -> None:
        """Late tuples never expire; they go to the one side stream, with a reason."""
        self.late_reasons[id] = reason
        self.events.append([index, "late", id])

    def accept(self, id: Any, timestamp: int, options: dict[str, Any]) -> Queue:
        """With `key=`, queue, numbers, ends, new and expired are each key's."""
        row = Row(timestamp, len(self.accepted), id)
        self.accepted.append(row)
        queue = self.queues.setdefault(options.get("key") if self.keyed else None, Queue(row.arrival))
        queue.rows.append(row)
        return queue

    def turn(self, index: int, now: float) -> None:
        """W changes only in a watermark turn; a turn that does not raise it does nothing at all."""
        before = self.watermark
        if now <= before:
            return
        self.watermark = now
        fired = [(queue, fire(self.window, queue, before, now)) for queue in self.queues.values()]
        gone = [queue for queue in self.queues.values() if self.is_outlived(queue)]
        fired += [(queue, fire_rest(self.window, queue, now)) for queue in gone]
        self.activate(index, fired)
        self.expire(index, list(self.queues.values()), gone)
        self.forget(gone)

    def drain(self, index: int) -> None:
        """`drain()` closes the machine (idempotent): W becomes infinite, what is left fires, then all expire."""
        if self.closed:
            return
        queues = list(self.queues.values())
        self.activate(index, [(queue, fire_rest(self.window, queue, self.watermark)) for queue in queues])
        self.expire(index, queues, queues)
        self.closed, self.watermark = True, math.inf

    def is_outlived(self, queue: Queue) -> bool:
        """Keys of windows with a Count live until `key_ttl` (event time since the key's last tuple)."""
        if self.key_ttl_ms is None or not self.keyed or self.window.mix is Mix.DURATION_DURATION:
            return False
        return self.watermark >= max(queue.rows).timestamp + self.key_ttl_ms

    def activate(self, index: int, fired: list[tuple[Queue, list[Firing]]]) -> None:
        """Firings of one turn come in (end or reference, first arrival of the key) order."""
        refuse_repeats(self.window, self.queues.values())
        firings = [(reference, queue, rows) for queue, of_queue in fired for reference, rows in of_queue]
        for reference, queue, rows in sorted(firings, key=lambda firing: (firing[0], firing[1].first_arrival)):
            new, expired = show(queue, rows)
            self.shown |= {row.id for row in rows}
            self.events.append([index, "activate", ids(rows), ids(new), ids(expired), reference])

    def expire(self, index: int, queues: list[Queue], gone: list[Queue]) -> None:
        """A tuple expires after that turn's last activation that shows it; one expire event an op."""
        expired: list[Row] = []
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
        """A key whose queue is empty keeps nothing; keys of windows with a Count live until `key_ttl=`."""
        if not self.keyed:
            return
        for key, queue in list(self.queues.items()):
            empty = len(queue.expired) == len(queue.rows)
            if queue in gone or (empty and self.window.mix is Mix.DURATION_DURATION):
                del self.queues[key]

    def result(self) -> ModelResult:
        """Everything that happened up to now."""
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


def ids(rows: list[Row]) -> list[Any]:
    """The ids of rows, in their order."""
    return [row.id for row in rows]


def window_of(case: dict[str, Any]) -> Window:
    """The window that a case declares; a slide that is left out is Count(1)."""
    letter = {"count": "C", "duration_ms": "D"}
    [(length_unit, length)] = case["length"].items()
    [(slide_unit, slide)] = (case.get("slide") or {"count": 1}).items()
    window = Window(
        mix=Mix(f"{letter[length_unit]}/{letter[slide_unit]}"),
        length=length,
        slide=slide,
        offset_ms=case.get("offset_ms") or 0,
        late_by_window=case.get("lateness", "watermark") == "window",
        repeat=bool(case.get("repeat", False)),
        max_repeats=case.get("max_repeats", 10_000),
    )
    if window.late_by_window and window.mix is not Mix.DURATION_DURATION:
        raise ValueError(f"lateness 'window' is for Duration/Duration only, got {window.mix}; use 'watermark'")
    if window.repeat and window.mix is not Mix.COUNT_DURATION:
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
    """Run a lossless case through the model; when a test needs more than the events.

    >>> case = {"length": {"count": 3}, "slide": {"count": 3}, "event_time": None, "clock_start_ms": 5}
    >>> case |= {"semantics": "lossless", "ops": [["add", 1], ["add", 2], ["add", 3], ["add", 4]]}
    >>> result = run_model(case)
    >>> result.events, result.pending
    ([[2, 'activate', [1, 2, 3], [1, 2, 3], [], 5], [2, 'expire', [1, 2, 3]]], {4})
    """
    model = LosslessModel(case)
    for index, op in enumerate(case["ops"]):
        model.apply(index, op)
    return model.result()


def lossless_model(case: dict[str, Any]) -> list[list[Any]]:
    """The events of a lossless case, in the format of `conformance/README.md`."""
    return run_model(case).events
