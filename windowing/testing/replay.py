"""Replay of recorded cases: a list of operations in, the list of events out, both as plain data.

    case   {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "stateful": False, "clock_start_ms": 0,
            "ops": [["add", 1], ["add", 2]]}
    events [[1, "activate", [1, 2], [1, 2], [], 0]]

Ops: ["clock", ms] sets the clock; ["add", id] adds a tuple at its time; ["tuple", stream, id, ts_ms] offers one with a
timestamp; ["watermark"] is a watermark turn; ["tick"] one firing of the time trigger; ["drain"] (lossless only) ends
the stream. Events, each with the index of the op that caused it: [op, "activate", ids, new_ids, expired_ids,
reference_ms], [op, "expire", ids], [op, "late", id]. `semantics` is "storm" (default) or "lossless"; `batched` feeds
runs of adds through `add_batch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windowing.core.config import Semantics
from windowing.core.events import Activation, Effect, Expired
from windowing.core.eviction import (
    CountEvictionPolicy,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.core.storm import StormStatefulWindowManager, StormWindowManager
from windowing.core.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from windowing.core.watermark import WaterMarkEventGenerator
from windowing.errors import ConfigError, shown

__all__ = ["StormReplay", "replay"]

Op = list[Any]
Recorded = list[Any]


def replay(case: Mapping[str, Any]) -> list[Recorded]:
    """Run the operations of `case` and return the events they caused.

    >>> ops = [["add", 1], ["add", 2], ["add", 3], ["add", 4]]
    >>> pairs = {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "stateful": False}
    >>> for event in replay({**pairs, "clock_start_ms": 7, "ops": ops}):
    ...     print(event)
    [1, 'activate', [1, 2], [1, 2], [], 7]
    [3, 'expire', [1, 2]]
    [3, 'activate', [3, 4], [3, 4], [1, 2], 7]
    """
    semantics = case.get("semantics", Semantics.STORM.value)
    if semantics == Semantics.LOSSLESS.value:
        from windowing.testing._replay_lossless import replay_lossless

        return list(replay_lossless(case))
    if semantics != Semantics.STORM.value:
        raise ConfigError(f'a case has the semantics "storm" or "lossless", got {shown(semantics)}')
    run = StormReplay(case)
    return [event for first, ops in runs_of(case) for event in run.feed(first, ops)]


def runs_of(case: Mapping[str, Any]) -> Iterator[tuple[int, list[Op]]]:
    """Yield the ops with the index of the first: one by one, or in a batched case runs of consecutive adds together."""
    run: list[Op] = []
    first = 0
    for index, op in enumerate(case["ops"]):
        joins = bool(run) and op[0] == run[0][0] and op[0] in ("add", "tuple") and case.get("batched", False)
        if run and not joins:
            yield first, run
            run = []
        if not run:
            first = index
        run.append(op)
    if run:
        yield first, run


def storm_policies(case: Mapping[str, Any]) -> tuple[EvictionPolicy, TriggerPolicy]:
    """Choose the policies as Storm's executor does: length, slide, and whether there is an event time."""
    length, slide, event_time = case["length"], case["slide"], case["event_time"]
    eviction: EvictionPolicy
    trigger: TriggerPolicy
    if "count" in length:
        eviction = (WatermarkCountEvictionPolicy if event_time else CountEvictionPolicy)(length["count"])
    elif event_time:
        eviction = WatermarkTimeEvictionPolicy(length["duration_ms"], event_time["lag_ms"])
    else:
        eviction = TimeEvictionPolicy(length["duration_ms"])
    if "count" in slide:
        trigger = (WatermarkCountTriggerPolicy if event_time else CountTriggerPolicy)(slide["count"])
    else:
        trigger = (WatermarkTimeTriggerPolicy if event_time else TimeTriggerPolicy)(slide["duration_ms"])
    return eviction, trigger


class StormReplay:
    """One run of a case in Storm's semantics; `snapshot` and `restore` stop and resume it between two ops."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.stateful: bool = case["stateful"]
        kind = StormStatefulWindowManager if self.stateful else StormWindowManager
        self.manager = kind(*storm_policies(case))
        event_time = case["event_time"]
        self.generator: WaterMarkEventGenerator | None = None
        if event_time is not None:
            self.generator = WaterMarkEventGenerator(event_time["streams"], event_time["lag_ms"], Semantics.STORM)
        self.clock_ms: int = case["clock_start_ms"]

    def feed(self, first: int, ops: list[Op]) -> list[Recorded]:
        """Perform `ops`, the first of which has the index `first`: one op, or a run of adds; return what it caused."""
        if len(ops) > 1:
            return self._feed_batch(first, ops)
        match ops[0]:
            case ["clock", ms]:
                self.clock_ms = ms
            case ["add", payload]:
                return self._record(first, self.manager.add(payload, self.clock_ms))
            case ["tuple", stream, payload, ts_ms]:
                if not self._watermarks(ops[0]).track(stream, ts_ms):
                    return [[first, "late", payload]]
                return self._record(first, self.manager.add(payload, ts_ms))
            case ["watermark"]:
                risen = self._watermarks(ops[0]).turn()
                return [] if risen is None else self._record(first, self.manager.advance(risen))
            case ["tick"]:
                return self._record(first, self.manager.tick(self.clock_ms))
            case ["drain"]:
                self.manager.drain()
            case unknown:
                raise ConfigError(
                    f"op {first} is {shown(unknown)}; an op is clock, add, tuple, watermark, tick or drain"
                )
        return []

    def _feed_batch(self, first: int, ops: list[Op]) -> list[Recorded]:
        events: list[Recorded] = []
        indices, payloads, timestamps = [], [], []
        for index, op in enumerate(ops, first):
            payload, ts_ms = (op[1], self.clock_ms) if op[0] == "add" else (op[2], op[3])
            if op[0] == "tuple" and not self._watermarks(op).track(op[1], ts_ms):
                events.append([index, "late", payload])
                continue
            indices.append(index)
            payloads.append(payload)
            timestamps.append(ts_ms)
        for position, effect in self.manager.add_batch(payloads, timestamps):
            events.append(self._event(indices[position], effect))
        return sorted(events, key=lambda event: event[0])  # stable: the events of one op keep their order

    def _watermarks(self, op: Op) -> WaterMarkEventGenerator:
        if self.generator is None:
            raise ConfigError(
                f'op {shown(op)} needs an event time; give the case "event_time": {{"lag_ms", "streams"}}'
            )
        return self.generator

    def _record(self, index: int, effects: Iterable[Effect]) -> list[Recorded]:
        return [self._event(index, effect) for effect in effects]

    def _event(self, index: int, effect: Effect) -> Recorded:
        if isinstance(effect, Activation):
            window = effect.window
            new = None if self.stateful else list(window.get_new())
            expired = None if self.stateful else list(window.get_expired())
            return [index, "activate", list(window.get()), new, expired, window.end_timestamp]
        assert isinstance(effect, Expired)  # Storm's managers make no other effect
        return [index, "expire", effect.get()]

    def snapshot(self) -> dict[str, Any]:
        """Return the state of manager, generator and clock as plain data."""
        generator = None if self.generator is None else self.generator.snapshot()
        return {"manager": self.manager.snapshot(), "generator": generator, "clock_ms": self.clock_ms}

    def restore(self, data: dict[str, Any]) -> None:
        """Become the run of `snapshot`."""
        self.manager.restore(data["manager"])
        if self.generator is not None:
            self.generator.restore(data["generator"])
        self.clock_ms = data["clock_ms"]
