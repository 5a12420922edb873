"""Replay of recorded cases: a list of operations in, the list of events out, both as plain data.

    case   {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "stateful": False, "clock_start_ms": 0,
            "ops": [["add", 1], ["add", 2]]}
    events [[1, "activate", [1, 2], [1, 2], [], 0]]

Ops: ["clock", ms] sets the clock; ["add", id] adds a tuple at its time; ["tuple", stream, id, ts_ms] offers one with a
timestamp; ["watermark"] advances the watermark; ["tick"] one firing of the time trigger; ["drain"] (lossless only) ends
the stream. Events, each with the index of the op that caused it: [op, "activate", ids, new_ids, expired_ids,
reference_ms], [op, "expire", ids], [op, "late", id]. `semantics` is "storm" (default): Storm's machines, or "lossless":
WindowedBoltExecutor; `batched` feeds runs of adds through `add_batch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.windows.config import Semantics, SkippedTuplesWarning, WindowConfig
from windowing.windows.events import Activation, Effect, Expired
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Count, Duration, Measure
from windowing.windows.storm import StormStatefulWindowManager, StormWindowManager, storm_policies
from windowing.windows.watermark import WaterMarkEventGenerator

__all__ = [
    "LosslessReplay",
    "StormReplay",
    "config_of",
    "replay",
    "replay_lossless",
]


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
        return list(replay_lossless(case))
    if semantics != Semantics.STORM.value:
        raise ConfigError(f'a case has the semantics "storm" or "lossless", got {quote(semantics)}')
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


class StormReplay:
    """One run of a case in Storm's semantics; `snapshot` and `restore` stop and resume it between two ops."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.stateful: bool = case["stateful"]
        kind = StormStatefulWindowManager if self.stateful else StormWindowManager
        event_time = case["event_time"]
        config = WindowConfig(length=_measure(case["length"]), slide=_measure(case["slide"]))
        if event_time is not None:
            config = replace(config, timestamp="ts", lag_ms=event_time["lag_ms"])
        self.manager = kind(*storm_policies(config))
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
                    f"op {first} is {quote(unknown)}; an op is clock, add, tuple, watermark, tick or drain"
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
                f'op {quote(op)} needs an event time; give the case "event_time": {{"lag_ms", "streams"}}'
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


# -- lossless replay -------------------------------------------------------------------------------------------------------------


def _measure(data: Mapping[str, int]) -> Measure:
    return Count(data["count"]) if "count" in data else Duration(data["duration_ms"])


def config_of(case: Mapping[str, Any], **more: Any) -> WindowConfig:
    """Return the definition of a case; `more` are further options of WindowConfig.of."""
    options: dict[str, Any] = {"length": _measure(case["length"]), "slide": _measure(case["slide"])}
    event_time = case["event_time"]
    if event_time is not None:
        options |= {"timestamp": "ts", "lag": Duration(event_time["lag_ms"])}
    for name, option in (
        ("idle_timeout_ms", "idle_timeout"),
        ("max_future_ms", "max_future"),
        ("key_ttl_ms", "key_ttl"),
    ):
        if name in case:
            options[option] = Duration(case[name])
    for name in ("lateness", "repeat", "max_repeats"):
        if name in case:
            options[name] = case[name]
    slide_ms = case["slide"].get("duration_ms")
    if "offset_ms" in case and slide_ms is not None:
        options["offset"] = Duration(case["offset_ms"] % slide_ms)
    if case.get("source"):
        options["source"] = "source"
    if case.get("keyed"):
        options["key"] = "key"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedTuplesWarning)
        return WindowConfig.of(**options, **more)


class LosslessReplay:
    """One run of a case; `executor` may be snapshotted and exchanged between two ops.

    `value_of` turns an id into the payload, `record_window` a window into what stands in the event between "activate" and the
    reference.
    """

    def __init__(
        self,
        case: Mapping[str, Any],
        config: WindowConfig | None = None,
        record_window: Callable[[Any], list[Any]] | None = None,
    ) -> None:
        self.event_time = case["event_time"]
        self.keyed = case.get("keyed", False)
        self.sourced = case.get("source", False)
        self.config = config or config_of(case)
        streams = self.event_time["streams"] if self.event_time else ("default",)
        self.streams = tuple(streams)
        self.record_window = record_window or (lambda w: [list(w.get()), list(w.get_new()), list(w.get_expired())])
        self.executor = self.build()
        self.executor.set_clock(case["clock_start_ms"])
        if self.event_time:
            self.executor.turn()

    def build(self) -> WindowedBoltExecutor:
        """Return a new executor for the case."""
        return WindowedBoltExecutor(self.config, self.streams)

    def feed(self, first: int, ops: list[Op]) -> list[Recorded]:
        """Perform `ops`, the first of which has the index `first`; return what they caused."""
        executor = self.executor
        if ops[0][0] in ("add", "tuple"):
            return self._add(first, ops)
        match ops[0]:
            case ["clock", ms]:
                executor.set_clock(ms)
                return []
            case ["watermark"] | ["tick"]:
                return self._record(first, executor.turn())
            case ["drain"]:
                return self._record(first, executor.drain())
        raise ConfigError(f"op {first} is {quote(ops[0])}; an op is clock, add, tuple, watermark, tick or drain")

    def _add(self, first: int, ops: list[Op]) -> list[Recorded]:
        tuples = [self._tuple(op) for op in ops]
        if len(tuples) == 1:
            payload, timestamp, stream, key, source = tuples[0]
            return self._record(first, self.executor.add(payload, timestamp, stream=stream, key=key, source=source))
        payloads, timestamps, streams, keys, sources = zip(*tuples, strict=True)
        effects = self.executor.add_batch(
            payloads,
            timestamps if self.event_time else None,
            stream=streams if self.event_time else "default",
            keys=keys if self.keyed else None,
            sources=sources if self.sourced else None,
        )
        return [event for at, effect in effects for event in self._record(first + at, [effect])]

    def _tuple(self, op: Op) -> tuple[Any, Any, str, Any, Any]:
        more = op[-1] if isinstance(op[-1], dict) else {}
        stream, payload, timestamp = op[1:4] if op[0] == "tuple" else ("default", op[1], None)
        return payload, timestamp, stream, more.get("key") if self.keyed else None, more.get("source")

    def _record(self, index: int, effects: Iterable[Effect]) -> list[Recorded]:
        return [event for effect in effects for event in self._events(index, effect)]

    def _events(self, index: int, effect: Effect) -> Iterator[Recorded]:
        if isinstance(effect, Activation):
            yield [index, "activate", *self.record_window(effect.window), effect.window.end_timestamp]
        elif isinstance(effect, Expired):
            payloads = effect.get()
            runs = [[each] for each in payloads] if effect.spread and payloads else [payloads]
            for at, run in enumerate(runs):
                yield [index + at, "expire", run]
        else:
            for at, payload in enumerate(effect.payloads):
                yield [index + at, "late", payload]


def replay_lossless(case: Mapping[str, Any]) -> list[Recorded]:
    """Run a case of lossless semantics and return its events, in order of their ops."""
    run = LosslessReplay(case)
    events = [event for first, ops in runs_of(case) for event in run.feed(first, ops)]
    return sorted(events, key=lambda event: event[0])
