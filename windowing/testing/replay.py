"""Replay of recorded cases: a list of operations in, the list of events out, both as plain data.

    case   {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "stateful": False, "clock_start_ms": 0,
            "ops": [["add", 1], ["add", 2]]}
    events [[1, "activate", [1, 2], [1, 2], [], 0]]

Ops: ["clock", ms] sets the clock; ["add", id] adds a tuple with the clock as its timestamp; ["tuple", stream, id, ts_ms] offers one
with a timestamp; ["watermark"] advances the watermark; ["tick"] fires the time trigger once; ["drain"] (lossless only) ends the
stream. Events, each with the index of the op that caused it: [op, "activate", ids, new_ids, expired_ids, reference_ms],
[op, "expire", ids], [op, "late", id]. `semantics` is "storm" (default): Storm's machines, or "lossless": WindowedBoltExecutor;
`batched` passes consecutive adds to `add_batch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import is_whole
from windowing.windows.config import Semantics, SkippedTuplesWarning, WindowConfig
from windowing.windows.events import Activation, Effect, Expired
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Count, Duration, Measure
from windowing.windows.storm import StormStatefulWindowManager, StormWindowManager, storm_policies
from windowing.windows.watermark import WaterMarkEventGenerator

Op = list[Any]
Recorded = list[Any]


def replay(case: Mapping[str, Any]) -> list[Recorded]:
    """Run the operations of `case` and return the events they caused. Raises ConfigError for an invalid case.

    >>> ops = [["add", 1], ["add", 2], ["add", 3], ["add", 4]]
    >>> pairs = {"length": {"count": 2}, "slide": {"count": 2}, "event_time": None, "stateful": False}
    >>> for event in replay({**pairs, "clock_start_ms": 7, "ops": ops}):
    ...     print(event)
    [1, 'activate', [1, 2], [1, 2], [], 7]
    [3, 'expire', [1, 2]]
    [3, 'activate', [3, 4], [3, 4], [1, 2], 7]
    """
    check_case(case)
    run = LosslessReplay(case) if case.get("semantics") == Semantics.LOSSLESS.value else StormReplay(case)
    events = [event for first, ops in runs_of(case) for event in run.feed(first, ops)]
    return sorted(events, key=lambda event: event[0])  # stable: the events of one op keep their order


# -- checks of a case ------------------------------------------------------------------------------------------------------------


_FORMS: dict[str, Op] = {
    "clock": ["clock", 0],
    "add": ["add", "an id"],
    "tuple": ["tuple", "a stream", "an id", 0],
    "watermark": ["watermark"],
    "tick": ["tick"],
    "drain": ["drain"],
}


def check_case(case: Any) -> None:
    """Raise ConfigError for an invalid case, with the part that is wrong. Cost: O(ops)."""
    if not isinstance(case, Mapping):
        raise ConfigError(
            f"a case is a mapping with length, slide, event_time, clock_start_ms and ops, got {quote(case)}"
        )
    missing = [name for name in ("length", "slide", "event_time", "clock_start_ms", "ops") if name not in case]
    if missing:
        raise ConfigError(f"a case lacks {', '.join(missing)}; an event_time of None is processing time")
    semantics = case.get("semantics", Semantics.STORM.value)
    if semantics not in [each.value for each in Semantics]:
        raise ConfigError(f'a case has the semantics "storm" or "lossless", got {quote(semantics)}')
    for part in ("length", "slide"):
        _measure(case[part], part)
    if not is_whole(case["clock_start_ms"]):
        raise ConfigError(f"clock_start_ms is whole milliseconds, got {quote(case['clock_start_ms'])}")
    streams = _streams(case["event_time"])
    if not isinstance(case["ops"], list | tuple):
        raise ConfigError(f"the ops of a case are a list, got {quote(case['ops'])}")
    for index, op in enumerate(case["ops"]):
        _check_op(index, op, streams, semantics == Semantics.STORM.value)


def _streams(event_time: Any) -> Sequence[str] | None:
    """Return the input streams, None on processing time."""
    if event_time is None:
        return None
    streams: Any = event_time.get("streams") if isinstance(event_time, Mapping) else None
    named = isinstance(streams, list | tuple) and len(streams) > 0 and all(isinstance(each, str) for each in streams)
    if not named or not is_whole(event_time.get("lag_ms")) or event_time["lag_ms"] < 0:
        wanted = '{"lag_ms": 0, "streams": ["a"]} or None'
        raise ConfigError(f"the event_time of a case is {wanted}, got {quote(event_time)}")
    found: Sequence[str] = streams
    return found


def _check_op(index: int, op: Any, streams: Sequence[str] | None, storm: bool) -> None:
    kind = op[0] if isinstance(op, list | tuple) and op else None
    form = _FORMS.get(kind) if isinstance(kind, str) else None
    if form is None:
        raise ConfigError(
            f"op {index} is {quote(op)}; an op is a list that begins with clock, add, tuple, watermark, tick or drain"
        )
    given = op[:-1] if kind in ("add", "tuple") and len(op) > len(form) and isinstance(op[-1], Mapping) else op
    if len(given) != len(form) or (kind == "clock" and not is_whole(op[1])):
        raise ConfigError(f"op {index} is {quote(op)}, wanted one such as {quote(form)}")
    _check_time(index, op, streams, storm)


def _check_time(index: int, op: Any, streams: Sequence[str] | None, storm: bool) -> None:
    """Raise ConfigError for an op that is not one of event time, or of processing time, as the case is."""
    kind = op[0]
    if kind == "tuple" and streams is not None:
        if op[1] not in streams:
            raise ConfigError(f"op {index}, {quote(op)}, is of stream {quote(op[1])}, which event_time does not name")
        if storm and not is_whole(op[3]):
            raise ConfigError(f"op {index}, {quote(op)}, has the timestamp {quote(op[3])}, wanted whole milliseconds")
    if streams is None and (kind == "tuple" or (kind == "watermark" and storm)):
        raise ConfigError(f'op {quote(op)} needs an event time; give the case "event_time": {{"lag_ms", "streams"}}')
    if kind == "add" and streams is not None and not storm:
        raise ConfigError(
            f'op {quote(op)} needs a timestamp, for the case has an event_time; write ["tuple", stream, id, ts_ms]'
        )


def runs_of(case: Mapping[str, Any]) -> Iterator[tuple[int, list[Op]]]:
    """Yield (index of the first op, ops): one op at a time, or in a batched case consecutive adds together."""
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
    """One run of a case in Storm's semantics."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.stateful: bool = case.get("stateful", False)
        kind = StormStatefulWindowManager if self.stateful else StormWindowManager
        event_time = case["event_time"]
        config = WindowConfig(length=_measure(case["length"]), slide=_measure(case["slide"]))
        if event_time is not None:
            config = replace(config, timestamp="ts", lag_ms=event_time["lag_ms"])
        self.manager = kind(*storm_policies(config))
        streams = ("default",) if event_time is None else event_time["streams"]
        self.generator = WaterMarkEventGenerator(streams, config.lag_ms, Semantics.STORM)
        self.clock_ms: int = case["clock_start_ms"]

    def feed(self, first: int, ops: list[Op]) -> list[Recorded]:
        """Perform `ops`, one op or consecutive adds, and return the events. first: the index of the first op."""
        if len(ops) > 1:
            return self._feed_batch(first, ops)
        match ops[0]:
            case ["clock", ms]:
                self.clock_ms = ms
            case ["add", payload]:
                return self._record(first, self.manager.add(payload, self.clock_ms))
            case ["tuple", stream, payload, ts_ms]:
                if not self.generator.track(stream, ts_ms):
                    return [[first, "late", payload]]
                return self._record(first, self.manager.add(payload, ts_ms))
            case ["watermark"]:
                risen = self.generator.turn()
                return [] if risen is None else self._record(first, self.manager.advance(risen))
            case ["tick"]:
                return self._record(first, self.manager.tick(self.clock_ms))
            case ["drain"]:
                self.manager.drain()
        return []

    def _feed_batch(self, first: int, ops: list[Op]) -> list[Recorded]:
        events: list[Recorded] = []
        indices, payloads, timestamps = [], [], []
        for index, op in enumerate(ops, first):
            payload, ts_ms = (op[1], self.clock_ms) if op[0] == "add" else (op[2], op[3])
            if op[0] == "tuple" and not self.generator.track(op[1], ts_ms):
                events.append([index, "late", payload])
                continue
            indices.append(index)
            payloads.append(payload)
            timestamps.append(ts_ms)
        for position, effect in self.manager.add_batch(payloads, timestamps):
            events.append(self._event(indices[position], effect))
        return sorted(events, key=lambda event: event[0])

    def _record(self, index: int, effects: Iterable[Effect]) -> list[Recorded]:
        return [self._event(index, effect) for effect in effects]

    def _event(self, index: int, effect: Effect) -> Recorded:
        if isinstance(effect, Activation):
            window = effect.window
            new = None if self.stateful else list(window.get_new())
            expired = None if self.stateful else list(window.get_expired())
            return [index, "activate", list(window.get()), new, expired, window.end_timestamp]
        assert isinstance(effect, Expired)  # Storm's managers have no other effect
        return [index, "expire", effect.get()]


# -- lossless replay -------------------------------------------------------------------------------------------------------------


def _measure(data: Any, part: str = "length") -> Measure:
    keys = set(data) if isinstance(data, Mapping) else set()
    if keys not in ({"count"}, {"duration_ms"}):
        raise ConfigError(f'the {part} of a case is {{"count": n}} or {{"duration_ms": n}}, got {quote(data)}')
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
    """One run of a case in lossless semantics; `executor` may be replaced by a restored one between two ops.

    record_window: returns the items of an "activate" event between its name and its reference, for a window.
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
        return WindowedBoltExecutor(self.config, self.streams)

    def feed(self, first: int, ops: list[Op]) -> list[Recorded]:
        """Perform `ops` and return the events. first: the index of the first op."""
        executor = self.executor
        if ops[0][0] in ("add", "tuple"):
            return self._add(first, ops)
        match ops[0]:
            case ["clock", ms]:
                executor.set_clock(ms)
                return []
            case ["drain"]:
                return self._record(first, executor.drain())
        return self._record(first, executor.turn())

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
