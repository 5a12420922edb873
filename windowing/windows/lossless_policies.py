"""Built-in policies with lossless rules, for the part of a window (length or slide) that the user's own policy does not replace.

    slide=   in tuples or time    CountSlide, TimeSlide         where there is no trigger=
    length=  in tuples or time    CountLength, TimeLength       an eviction= chooses among the tuples that it holds

The policies of eviction.py and trigger.py reproduce Storm, its losses included, so they cannot be used here. Laws: a tuple that one
of these policies expires can be in no later window; a time slide jumps over gaps, and begins at minus infinity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from windowing.windows.assigners import align_up, end_after
from windowing.windows.config import WindowConfig
from windowing.windows.events import Event
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy
from windowing.windows.measures import Count, Duration
from windowing.windows.trigger import QueueView, TriggerPolicy

__all__ = [
    "CountLength",
    "CountSlide",
    "TimeLength",
    "TimeSlide",
    "length_of",
    "slide_of",
]


_BEFORE_ALL = -(2**62)


class TimeLength(EvictionPolicy):
    """Holds timestamps in `(reference - length_ms, reference]`."""

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms

    def evict(self, event: Event) -> Action:
        assert self._context is not None, "the manager names the window before it asks"
        age = self._context.reference_time - event.timestamp
        if age < 0:
            return Action.KEEP
        return Action.PROCESS if age < self._length_ms else Action.EXPIRE


class CountLength(EvictionPolicy):
    """Holds the last `count` events with a timestamp <= reference."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._excess = 0

    def set_context(self, context: EvictionContext) -> None:
        self._context = context
        self._excess = (context.current_count or 0) - self._count

    def evict(self, event: Event) -> Action:
        assert self._context is not None, "the manager names the window before it asks"
        if event.timestamp > self._context.reference_time:
            return Action.KEEP
        if self._excess <= 0:
            return Action.PROCESS
        self._excess -= 1
        return Action.EXPIRE


class CountSlide(TriggerPolicy):
    """Fires at each number that is a multiple of `count`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._numbered = 0

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            return None
        self._numbered += 1
        return None if self._numbered % self.count else [EvictionContext(event.timestamp, sliding_count=self.count)]

    def missing(self) -> int:
        """Return how many tuples are missing to the next window, 0 if none arrived since the last one."""
        return -self._numbered % self.count

    def get_state(self) -> int:
        return self._numbered

    def restore_state(self, state: Any) -> None:
        self._numbered = state


class TimeSlide(TriggerPolicy):
    """Fires at the ends `k * slide_ms + offset_ms` that are passed.

    With a length in time, or none, it fires at each end until the window is empty, then at the next end that can hold an event.
    With a length in tuples it fires only where an event was not yet among those of a fired end (with `repeat`, at every end).
    """

    def __init__(self, slide_ms: int, offset_ms: int, length: Count | Duration | None, repeat: bool) -> None:
        self.passed: int | None = None
        """All ends up to here are done."""
        self._slide, self._offset = slide_ms, offset_ms
        self._length = length
        self._repeat = repeat
        self._counts = isinstance(length, Count)
        self._unfired: deque[int] = deque()  # timestamps of the events that were not among those of a fired end
        self._repeats = False  # whether an end has fired that can be repeated
        self._until: int | None = None
        self._last: int | None = None  # the last end of this advance
        self._shown = False

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        if event.is_watermark:
            self._reach(event.timestamp)
        else:
            self._unfired.append(event.timestamp)
        return None

    def tick(self, now_ms: int) -> Iterable[EvictionContext] | None:
        self._reach(now_ms - 1)
        return None

    def _reach(self, until: int) -> None:
        if self.passed is None or until > self.passed:
            self._until = until

    def due(self, queue: QueueView) -> EvictionContext | None:
        if self._until is None:
            return None
        end = self._next_new() if self._counts else self._next_held(queue, self._until)
        if end is None or end > self._until:
            self.passed, self._until, self._last = self._until, None, None
            return None
        while self._unfired and self._unfired[0] <= end:
            self._unfired.popleft()
        self._last, self._repeats = end, self._repeat
        return EvictionContext(end)

    def fired(self, shown: bool) -> None:
        self._shown = shown

    def _next_new(self) -> int | None:
        passed = self.passed if self._last is None else self._last
        if self._repeats and passed is not None:
            return end_after(passed, self._slide, self._offset)
        return self._first_end(self._unfired[0], passed) if self._unfired else None

    def _next_held(self, queue: QueueView, until: int) -> int | None:
        if self._last is not None and self._shown:
            return self._last + self._slide
        since = _BEFORE_ALL if self._last is None else self._last
        earliest = queue.earliest_event_timestamp(since, until)
        return None if earliest is None else self._first_end(earliest, self.passed)

    def _first_end(self, timestamp: int, passed: int | None) -> int:
        end = align_up(timestamp, self._slide, self._offset)
        return end if passed is None else max(end, end_after(passed, self._slide, self._offset))

    def next_end(self, earliest: int | None) -> int | None:
        """Return the end at which an advance has an effect, or None; `earliest` is the smallest timestamp of the live events."""
        if self._counts:
            return self._next_new()
        return None if earliest is None else self._first_end(earliest, self.passed)

    def last_end(self, newest: int) -> int | None:
        """Return the last end of a drain: when all windows are empty, or each event was among those of a fired end."""
        if isinstance(self._length, Duration):
            return newest + self._length.ms + self._slide
        return self._first_end(newest, self.passed) if self._unfired else None

    def get_state(self) -> dict[str, Any]:
        return {"passed": self.passed, "fresh": list(self._unfired), "repeats": self._repeats}

    def restore_state(self, state: Any) -> None:
        self.passed, self._repeats = state["passed"], state["repeats"]
        self._unfired = deque(state["fresh"])


def length_of(length: Count | Duration) -> TimeLength | CountLength:
    """Return the eviction policy of a declared length."""
    return TimeLength(length.ms) if isinstance(length, Duration) else CountLength(length.value)


def slide_of(config: WindowConfig) -> CountSlide | TimeSlide:
    """Return the trigger policy of the declared slide."""
    if isinstance(config.slide, Duration):
        return TimeSlide(config.slide.ms, config.offset_ms, config.length, config.repeat)
    return CountSlide(config.slide.value)
