"""Mistakes of windowed bolts: fields that are not there or make no key, windows that hold more than may be in flight. Part of
`RULES` (rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windowing.core.checks import did_you_mean
from windowing.core.measures import Count, Duration
from windowing.topology.drafts import Draft, Facts, stream_called
from windowing.topology.groupings import GroupingKind
from windowing.topology.plan import OutputStream
from windowing.topology.stamps import TIMELESS, holds_times

__all__ = ["WINDOW_RULES", "nested", "no_id"]

_WHOLE = ("tinyint", "smallint", "int", "bigint")


def nested(option: str, called: str, name: str, kind: str) -> str | None:
    """Return the sentence about an option of a bolt that names a field of many values, None for a plain one.

    >>> nested("key", "bolt 'count'", "tags", "array<string>")
    "key of bolt 'count' names column 'tags', which is array<string>; give a column of plain values"
    """
    if not kind.startswith(("array", "map", "struct")):
        return None
    return f"{option} of {called} names column {name!r}, which is {kind}; give a column of plain values"


def no_id(called: str, name: str, kind: str) -> str | None:
    """Return the sentence about a message_id of a type that is none, None for a good one.

    >>> no_id("bolt 'count'", "at", "double")
    "message_id of bolt 'count' names 'at', which is double; give a field of whole numbers that rise, an offset at the source, say"
    """
    if kind in _WHOLE:
        return None
    return (
        f"message_id of {called} names {name!r}, which is {kind}; give a field of whole numbers that rise, an offset at the "
        "source, say"
    )


def fields_of_windows(facts: Facts) -> Iterator[str]:
    """The fields that a window names (timestamp, source, message_id, key) are in every stream that its bolt reads."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        config = declared.window.config
        named = [
            ("timestamp", config.timestamp),
            ("source", config.source),
            ("message_id", config.message_id),
            *(("key", key) for key in config.key or ()),
        ]
        for found in draft.inputs:
            stream = facts.stream(found)
            if stream is None:
                continue
            for option, name in named:
                if isinstance(name, str) and name not in stream.schema.names:
                    hint = did_you_mean(name, stream.schema.names)
                    yield f"{draft.called} has {option}={name!r}, a field that {stream_called(found)} has not; {hint}"


def plain_keys(facts: Facts) -> Iterator[str]:
    """The fields of a window's key are no arrays, maps or structs."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        types = [dict(zip(stream.schema.names, stream.schema.types, strict=True)) for stream in _inputs(facts, draft)]
        for name in declared.window.config.key or ():
            found = (nested("key", draft.called, name, kinds[name]) for kinds in types if name in kinds)
            yield from dict.fromkeys(filter(None, found))


def whole_ids(facts: Facts) -> Iterator[str]:
    """The message_id of a window is a whole number."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        name = declared.window.config.message_id
        for stream in _inputs(facts, draft):
            kinds = dict(zip(stream.schema.names, stream.schema.types, strict=True))
            problem = None if name is None or name not in kinds else no_id(draft.called, name, kinds[name])
            if problem is not None:
                yield problem
                break


def times_of_windows(facts: Facts) -> Iterator[str]:
    """The timestamp of a window is a number, a date or a time."""
    for draft, declared in facts.windowed():
        assert declared.window is not None
        name = declared.window.config.timestamp
        for found in draft.inputs:
            stream = facts.stream(found)
            kinds = {} if stream is None else dict(zip(stream.schema.names, stream.schema.types, strict=True))
            if isinstance(name, str) and name in kinds and not holds_times(kinds[name]):
                yield f"{draft.called} has timestamp={name!r}, which {stream_called(found)} declares {kinds[name]}: {TIMELESS}"


def windows_within_timeout(facts: Facts) -> Iterator[str]:
    """Length + slide + lag + watermark interval of a time window in memory are at most the message timeout, if there is one."""
    config = facts.config
    for draft, declared in facts.windowed() if config.timeouts else ():
        assert declared.window is not None
        window = declared.window.config
        if window.max_events_in_memory is not None:
            continue  # its tuples are acked by the next checkpoint
        parts = [("length", window.length), ("slide", window.slide)]
        spans = [(what, measure.ms) for what, measure in parts if isinstance(measure, Duration)]
        if window.event_time:
            spans += [("lag", window.lag_ms), ("watermark interval", window.watermark_interval_ms)]
        if declared.stateful:
            spans += [("checkpoint interval", config.state_checkpoint_interval_ms)]
        held = sum(ms for _, ms in spans)
        if held > config.message_timeout_ms and any(isinstance(measure, Duration) for _, measure in parts):
            clock = "taking event time for the clock, as Storm does; " if window.event_time else ""
            yield (
                f"{draft.called} acks a tuple when it expires, after up to {held} ms "
                f"({' + '.join(f'{what} {ms}' for what, ms in spans)}), but it fails after {config.message_timeout_ms} ms; "
                f"{clock}set topology.message.timeout.secs to {-(-held // 1000)} or more, or "
                "topology.enable.message.timeouts to False"
            )


def windows_within_pending(facts: Facts) -> Iterator[str]:
    """Length + slide of a count window in memory, times its tasks, are at most the max spout pending of every spout above."""
    for draft, declared in facts.windowed() if facts.config.acker_executors > 0 else ():
        assert declared.window is not None
        window = declared.window.config
        if window.max_events_in_memory is not None:
            continue
        counts = [
            (what, measure.value)
            for what, measure in (("length", window.length), ("slide", window.slide))
            if isinstance(measure, Count)
        ]
        tasks = _sharing_tasks(draft)
        held = sum(value for _, value in counts) * tasks
        each = f" in each of {tasks} tasks" if tasks > 1 else ""
        for spout in facts.spouts_above(str(draft.id)):
            own = facts.configs.get(spout)
            said = own is not None and "max_spout_pending" in own.given
            pending = own.max_spout_pending if own is not None and said else facts.config.max_spout_pending
            if pending is not None and held > pending:
                yield (
                    f"{draft.called} holds up to {held} tuples without an ack "
                    f"({' + '.join(f'{what} {value}' for what, value in counts)}{each}), but spout {spout!r} stops at "
                    f"{pending} in flight, so no window might ever be full; set topology.max.spout.pending to {held} or more"
                )


def ticks_of_bolts(facts: Facts) -> Iterator[str]:
    """A windowed bolt asks for no ticks, and a topology that asks for them has a bolt of another kind."""
    windowed = {str(draft.id) for draft, _ in facts.windowed()}
    for name in windowed:
        if facts.configs[name].tick_tuple_freq_ms is not None:
            yield (
                f"{facts.drafts[name].called} asks for ticks (topology.tick.tuple.freq.secs), but it is handed windows, and a tick "
                "is a tuple; leave it out: a window over the clock fires in time by itself, or give ticks to a bolt behind it"
            )
    bolts = [draft for draft in facts.bolts() if isinstance(draft.id, str)]
    if facts.config.tick_tuple_freq_ms is not None and bolts and all(str(draft.id) in windowed for draft in bolts):
        yield (
            "topology.tick.tuple.freq.secs asks for ticks, but every bolt is a windowed one, and those are handed windows; "
            "leave it out: a window over the clock fires in time by itself"
        )


WINDOW_RULES: tuple[Callable[[Facts], Iterator[str]], ...] = (
    fields_of_windows,
    plain_keys,
    whole_ids,
    times_of_windows,
    windows_within_timeout,
    windows_within_pending,
    ticks_of_bolts,
)
"""All of them, in the order in which their sentences are reported."""


def _inputs(facts: Facts, draft: Draft) -> Iterator[OutputStream]:
    return filter(None, map(facts.stream, draft.inputs))


def _sharing_tasks(draft: Draft) -> int:
    """Return how many tasks of a bolt share its tuples: one where each of them gets all, or one of them does."""
    whole = (GroupingKind.GLOBAL, GroupingKind.ALL)
    shared = any(found.grouping.kind not in whole for found in draft.inputs)
    return draft.parallelism if shared and isinstance(draft.parallelism, int) else 1
