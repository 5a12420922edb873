"""The lossless half of `replay`: a case through the WindowedBoltExecutor, one op at a time or in batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from windowing.core.config import SkippedTuplesWarning, WindowConfig
from windowing.core.events import Activation, Effect, Expired
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.measures import Count, Duration, Measure
from windowing.errors import ConfigError, shown

__all__ = ["LosslessReplay", "config_of", "replay_lossless"]

Op = list[Any]
Recorded = list[Any]


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
        raise ConfigError(f"op {first} is {shown(ops[0])}; an op is clock, add, tuple, watermark, tick or drain")

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
    from windowing.testing.replay import runs_of

    run = LosslessReplay(case)
    events = [event for first, ops in runs_of(case) for event in run.feed(first, ops)]
    return sorted(events, key=lambda event: event[0])
