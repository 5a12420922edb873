"""Eviction policies: they decide which events a window holds, one event at a time, as in Storm.

    a scan at reference time r      EXPIRE  PROCESS  PROCESS  KEEP      STOP
    the queue, in arrival order     oldest ------------------ ts > r    not looked at

EXPIRE removes an event from the queue for good, PROCESS puts it into this window, KEEP leaves it for a later one, STOP
ends the scan. The built-in policies decide exactly as Storm's, losses included; the lossless engine uses only their
`length()` and works with ranges. A user's own policy has no `length`, so its queue is scanned. No policy here reads a
clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from windowing.windows.events import Event
from windowing.windows.measures import Count, Duration

_JAVA_INT_MAX = 2**31 - 1


class Action(Enum):
    """What `evict` of a policy returns for a tuple.

    PROCESS: it is in this window. KEEP: it may be in a later one. EXPIRE: it is in no window any more. STOP: it and all newer ones
    are kept, and `evict` is not called for those.
    """

    EXPIRE = "expire"
    PROCESS = "process"
    KEEP = "keep"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class EvictionContext:
    """What a trigger passes to the eviction policy about the window that is due.

    reference_time: end of the window, milliseconds. current_count: events in the queue with a timestamp <=
    reference_time. sliding_count: the slide, in events. sliding_interval: the slide, in milliseconds. Source: Storm's
    `DefaultEvictionContext`.
    """

    reference_time: int
    current_count: int | None = None
    sliding_count: int | None = None
    sliding_interval: int | None = None


def _saved(context: EvictionContext | None) -> dict[str, Any] | None:
    return None if context is None else asdict(context)


def _loaded(state: dict[str, Any] | None) -> EvictionContext | None:
    return None if state is None else EvictionContext(**state)


def scan(events: Iterable[Event], evict: Callable[[Event], Action]) -> tuple[list[Event], list[Event]]:
    """Call `evict` for one event after the other; return the events that the window holds, and those that leave the queue."""
    window: list[Event] = []
    expired: list[Event] = []
    for event in events:
        action = evict(event)
        if action is Action.PROCESS:
            window.append(event)
        elif action is Action.EXPIRE:
            expired.append(event)
        elif action is Action.STOP:
            break
    return window, expired


_ATOMS = frozenset({type(None), bool, int, float, str})


def by_id(tuples: Iterable[Any]) -> dict[int, Any]:
    """Return tuples in the form in which `copy_of` takes them."""
    return {id(each): each for each in tuples}


def copy_of(state: Any, tuples: Mapping[int, Any]) -> Any:
    """Return a copy of a policy's state, for a snapshot or from one: the policy goes on to change what `get_state` returned.

    tuples: those of the windows, `by_id`, which a state that refers to them shares with its copy.
    """
    return state if type(state) in _ATOMS else deepcopy(state, dict(tuples))


class EvictionPolicy(ABC):
    """The per-event protocol. A user's own policy needs only `evict`; one with state also implements get_state and restore_state.

    >>> class OnlyOdd(EvictionPolicy):
    ...     def evict(self, event: Event) -> Action:
    ...         return Action.PROCESS if event.get() % 2 else Action.EXPIRE
    >>> OnlyOdd().evict(Event(4, 0))
    <Action.EXPIRE: 'expire'>
    """

    _context: EvictionContext | None = None

    @abstractmethod
    def evict(self, event: Event) -> Action:
        """Return the action of the running scan for `event`; called in arrival order."""

    def track(self, event: Event) -> None:  # noqa: B027 - optional
        """Observe `event`, a tuple or a WaterMarkEvent; called once, before the first scan that includes it."""

    def get_context(self) -> EvictionContext | None:
        """Return the context of the last window that was due, None before the first."""
        return self._context

    def set_context(self, context: EvictionContext) -> None:
        """Set the context of the window that is due; called before its scan."""
        object.__setattr__(self, "_context", context)  # of a frozen dataclass too

    def reset(self) -> None:  # noqa: B027 - optional
        """Prepare for another scan of the same window; called before each scan of an iterator window."""

    def get_state(self) -> Any:
        """Return the policy's state as plain data (None, numbers, strings, lists, dicts)."""
        return _saved(self._context)

    def restore_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned."""
        object.__setattr__(self, "_context", _loaded(state))


class CountEvictionPolicy(EvictionPolicy):
    """Keeps the last `count` events by arrival.

    Source: Storm's `CountEvictionPolicy`.
    """

    def __init__(self, count: int) -> None:
        self._length = Count(count)
        self._current_count = 0

    def length(self) -> Count:
        """Return the window length."""
        return self._length

    def evict(self, event: Event) -> Action:
        """EXPIRE while more than `count` events are held, else PROCESS."""
        if self._current_count > self._length.value:
            self._current_count -= 1
            return Action.EXPIRE
        return Action.PROCESS

    def track(self, event: Event) -> None:
        """Count every tuple."""
        if not event.is_watermark:
            self._current_count += 1

    def get_state(self) -> dict[str, Any]:
        return {"current_count": self._current_count, "context": _saved(self._context)}

    def restore_state(self, state: Any) -> None:
        self._current_count = state["current_count"]
        self._context = _loaded(state["context"])


class TimeEvictionPolicy(EvictionPolicy):
    """Holds events with a timestamp in `(reference - length_ms - delta_ms, reference]`.

    delta_ms is Storm's correction for a timer that fires early or late: the time since the last firing, minus the
    slide. The first firing holds every event (delta 2**31 - 1). Before the first firing the reference is the newest
    timestamp tracked, where Storm reads the clock. Source: Storm's `TimeEvictionPolicy`.
    """

    def __init__(self, length_ms: int) -> None:
        self._length = Duration(length_ms)
        self._delta_ms = 0
        self._newest_ms: int | None = None

    def length(self) -> Duration:
        """Return the window length."""
        return self._length

    def evict(self, event: Event) -> Action:
        """EXPIRE an event older than the length, KEEP one newer than the reference, else PROCESS."""
        if self._context is not None:
            reference = self._context.reference_time
        else:
            reference = event.timestamp if self._newest_ms is None else self._newest_ms
        age = reference - event.timestamp
        if age >= self._length.ms + self._delta_ms:
            return Action.EXPIRE
        return Action.KEEP if age < 0 else Action.PROCESS

    def track(self, event: Event) -> None:
        """Update the newest timestamp; it stands in for the clock, which a policy does not read."""
        if self._newest_ms is None or event.timestamp > self._newest_ms:
            self._newest_ms = event.timestamp

    def set_context(self, context: EvictionContext) -> None:
        """Set the context; one with a sliding interval comes from a timer, and its drift is corrected."""
        previous, self._context = self._context, context
        if context.sliding_interval is None:
            return
        if previous is None:
            self._delta_ms = _JAVA_INT_MAX
        else:
            self._delta_ms = context.reference_time - previous.reference_time - context.sliding_interval

    def get_state(self) -> dict[str, Any]:
        """Return context, correction and newest timestamp (Storm saves only the context, and loses the correction)."""
        return {"context": _saved(self._context), "delta_ms": self._delta_ms, "newest_ms": self._newest_ms}

    def restore_state(self, state: Any) -> None:
        self._context = _loaded(state["context"])
        self._delta_ms = state["delta_ms"]
        self._newest_ms = state["newest_ms"]


class WatermarkCountEvictionPolicy(CountEvictionPolicy):
    """Keeps the last `count` of the events with a timestamp <= reference.

    It uses the count that the trigger gives it, and expires events from the head of the queue, whichever they are; with
    tuples out of order these are the wrong ones (defect D5, kept). Nothing expires before the first watermark. Source:
    Storm's `WatermarkCountEvictionPolicy`.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._processed = 0

    def evict(self, event: Event) -> Action:
        """STOP before the first context; KEEP events after the reference or beyond the count; else as CountEvictionPolicy."""
        if self._context is None:
            return Action.STOP
        if event.timestamp > self._context.reference_time or self._processed >= self._current_count:
            return Action.KEEP
        action = super().evict(event)
        if action is Action.PROCESS:
            self._processed += 1
        return action

    def track(self, event: Event) -> None:
        """Count nothing: the trigger says how many events there are."""

    def set_context(self, context: EvictionContext) -> None:
        """Set the context. A time slide gives the number of events; for a count slide it is that of the last one plus a slide."""
        self._context = context
        if context.current_count is not None:
            self._current_count = context.current_count
        else:
            self._current_count = self._processed + (context.sliding_count or 0)
        self._processed = 0

    def reset(self) -> None:
        """Reset the number of events shown in the running window."""
        self._processed = 0

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "processed": self._processed}

    def restore_state(self, state: Any) -> None:
        super().restore_state(state)
        self._processed = state["processed"]


class WatermarkTimeEvictionPolicy(TimeEvictionPolicy):
    """Holds events with a timestamp in `(reference - length_ms, reference]`.

    An event more than `lag_ms` ahead of the reference ends the scan and hides all events that arrived after it (defects D2
    and D3, kept). Nothing expires before the first watermark. Source: Storm's `WatermarkTimeEvictionPolicy`.
    """

    def __init__(self, length_ms: int, lag_ms: int | None = None) -> None:
        super().__init__(length_ms)
        self._lag_ms = _JAVA_INT_MAX if lag_ms is None else lag_ms

    def evict(self, event: Event) -> Action:
        """STOP before the first context and at an event beyond the lag, else as TimeEvictionPolicy."""
        if self._context is None or event.timestamp - self._context.reference_time > self._lag_ms:
            return Action.STOP
        return super().evict(event)
