"""Trigger policies: they decide when a window is due. A trigger returns contexts; the manager fires the windows.

    manager                               trigger
    an event arrives -- track(event) -->  contexts of the windows due with it, or None
    a timer expires  -- tick(now_ms) -->  the same
    then, until None -- due(queue) ---->  the next window due, given the queue
    next timer       -- next_deadline_ms() -> the clock's time of the next tick that it needs, or None
    after a firing   -- reset() ------->  Storm's notification that a window has fired
                     -- fired(shown) -->  whether the window held a tuple (an empty one does not reach the bolt)

Laws: a trigger has no reference to manager, handler or eviction policy; the manager passes the context it returns to the
eviction policy. Windows fire in the order in which they are returned. No window is pending between two entries of the
manager, so `get_state` need not hold any. The built-in triggers follow Storm exactly; the lossless engine only uses
their `slide()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, Generic, TypeVar

from windowing.errors import quote
from windowing.schema.checks import is_whole
from windowing.windows.assigners import align_up
from windowing.windows.events import Event
from windowing.windows.eviction import EvictionContext
from windowing.windows.measures import Count, Duration

TICK_INTERVAL_MS = 100
"""The tick interval, over the clock, of a user's own trigger that does not implement next_deadline_ms."""


class QueueView(ABC):
    """A trigger's view of the queue behind a window. Cost: O(queue). Source: three methods of Storm's `WindowManager`."""

    __slots__ = ()

    @abstractmethod
    def _until(self, reference_ms: int) -> Iterator[Event]:
        """Yield the events with a timestamp <= reference_ms, in the order of the queue."""

    def event_count(self, reference_ms: int) -> int:
        """Return how many events have a timestamp <= reference_ms."""
        return sum(1 for _ in self._until(reference_ms))

    def earliest_event_timestamp(self, start_ms: int, end_ms: int) -> int | None:
        """Return the smallest timestamp in `(start_ms, end_ms]`, None if there is none."""
        return min((event.timestamp for event in self._until(end_ms) if event.timestamp > start_ms), default=None)

    def sliding_count_timestamps(self, start_ms: int, end_ms: int, count: int) -> list[int]:
        """Return, at each `count`-th event in `(start_ms, end_ms]`, the largest timestamp so far."""
        inside = [event.timestamp for event in self._until(end_ms) if event.timestamp > start_ms]
        return list(accumulate(inside, max))[count - 1 :: count]


class TriggerPolicy(ABC):
    """The protocol of a trigger. A user's own needs only `track`; one with state also implements get_state and restore_state.

    >>> class OnEnd(TriggerPolicy):
    ...     def track(self, event: Event) -> Iterable[EvictionContext] | None:
    ...         return [EvictionContext(event.timestamp)] if event.get() == "end" else None
    >>> OnEnd().track(Event("end", 7))
    [EvictionContext(reference_time=7, current_count=None, sliding_count=None, sliding_interval=None)]
    """

    @abstractmethod
    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        """Return the contexts of the windows due with `event`, a tuple or a WaterMarkEvent, in order; or None."""

    def tick(self, now_ms: int) -> Iterable[EvictionContext] | None:
        """Return the contexts of the windows that are due by the clock, when the driver's timer expires; or None.

        In one process a tick comes at `next_deadline_ms`, or every 100 ms for a trigger without it; on Spark and in Trident at the
        end of each micro-batch.
        """
        return None

    def next_deadline_ms(self) -> int | None:
        """Return the clock's time of the next tick that the trigger needs, None if it needs none.

        Called over the clock only, after each entry; for a time in the past it is called again 1 ms after the tick.
        """
        return None

    def due(self, queue: QueueView) -> EvictionContext | None:
        """Return the next window that is due given the queue; called after `track` and `tick`, until it returns None."""
        return None

    def fired(self, shown: bool) -> None:  # noqa: B027 - optional
        """Learn the outcome of a window: `shown` is False if it was empty. Called after `reset`."""

    def reset(self) -> None:  # noqa: B027 - optional
        """Called after a window has fired."""

    def start(self) -> None:  # noqa: B027 - optional
        """Allow firings; the manager calls this when it is made."""

    def shutdown(self) -> None:  # noqa: B027 - optional
        """Release what `start` acquired. Called once: when a key is forgotten, in a drain, at the end of the task (on Spark that of
        each micro-batch), and before a restore of the windows.
        """

    def get_state(self) -> Any:
        """Return the trigger's state, as plain data (None, numbers, strings, lists, dicts)."""
        return None

    def restore_state(self, state: Any) -> None:  # noqa: B027 - optional
        """Restore the state that `get_state` returned."""


M = TypeVar("M", Count, Duration)


class _BuiltIn(TriggerPolicy, Generic[M]):
    """A trigger with a slide, which fires no window before `start`."""

    def __init__(self, slide: M) -> None:
        self._slide: M = slide
        self._started = False

    def slide(self) -> M:
        """Return the slide."""
        return self._slide

    def start(self) -> None:
        self._started = True


class CountTriggerPolicy(_BuiltIn[Count]):
    """Fires with each `count`-th tuple; the reference is the clock: in processing time, the tuple's timestamp.

    Source: Storm's `CountTriggerPolicy`.
    """

    def __init__(self, count: int) -> None:
        super().__init__(Count(count))
        self._current_count = 0

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        """Count the tuples."""
        if not self._started or event.is_watermark:
            return None
        self._current_count += 1
        return (EvictionContext(event.timestamp),) if self._current_count >= self._slide.value else None

    def reset(self) -> None:
        """Count from zero."""
        self._current_count = 0

    def get_state(self) -> int:
        return self._current_count

    def restore_state(self, state: Any) -> None:
        self._current_count = state


class TimeTriggerPolicy(_BuiltIn[Duration]):
    """Fires at each tick, started or not, which the driver makes every `slide_ms`; the reference is the clock minus 1 ms.

    Source: Storm's `TimeTriggerPolicy`, without its thread.
    """

    def __init__(self, slide_ms: int) -> None:
        super().__init__(Duration(slide_ms))

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        """Return None: a tuple does not make a time window due."""
        return None

    def tick(self, now_ms: int) -> Iterable[EvictionContext] | None:
        """Return the one window that ends now. It holds no tuple of this millisecond, because more of them may arrive."""
        return (EvictionContext(now_ms - 1, sliding_interval=self._slide.ms),)


class WatermarkCountTriggerPolicy(_BuiltIn[Count]):
    """Fires, when a watermark arrives, at each `count`-th event by arrival that is newer than the last reference.

    Events with the timestamp of the last reference that missed the multiple are never counted again (defect D4, kept).
    Source: Storm's `WatermarkCountTriggerPolicy`.
    """

    def __init__(self, count: int) -> None:
        super().__init__(Count(count))
        self._last_processed_ms = 0
        self._watermark_ms: int | None = None
        self._pending: deque[int] = deque()

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        """Store a watermark; `due` returns its windows."""
        if self._started and event.is_watermark:
            self._watermark_ms = event.timestamp
        return None

    def due(self, queue: QueueView) -> EvictionContext | None:
        """Return the next window that a watermark made due; the first call collects all of them from the queue."""
        count = self._slide.value
        if self._watermark_ms is not None:
            until, self._watermark_ms = self._watermark_ms, None
            self._pending.extend(queue.sliding_count_timestamps(self._last_processed_ms, until, count))
        return EvictionContext(self._pending[0], sliding_count=count) if self._pending else None

    def fired(self, shown: bool) -> None:
        """Continue after the window that has fired; that of a drain was not due."""
        if self._pending:
            self._last_processed_ms = self._pending.popleft()

    def get_state(self) -> int:
        return self._last_processed_ms

    def restore_state(self, state: Any) -> None:
        self._last_processed_ms = state
        self._watermark_ms = None
        self._pending.clear()


class WatermarkTimeTriggerPolicy(_BuiltIn[Duration]):
    """Fires, when a watermark arrives, at each multiple of the slide up to it, first at 0; it jumps over a gap.

    Source: Storm's `WatermarkTimeTriggerPolicy`.
    """

    def __init__(self, slide_ms: int) -> None:
        super().__init__(Duration(slide_ms))
        self._next_end_ms = 0
        self._watermark_ms: int | None = None
        self._was_empty = False

    def track(self, event: Event) -> Iterable[EvictionContext] | None:
        """Store a watermark; `due` returns its windows."""
        if self._started and event.is_watermark:
            self._watermark_ms = event.timestamp
        return None

    def due(self, queue: QueueView) -> EvictionContext | None:
        """Return the next window by its end; after an empty one, the first that can hold a later event."""
        if self._watermark_ms is None:
            return None
        if self._was_empty:
            self._was_empty = False
            earliest = queue.earliest_event_timestamp(self._next_end_ms, self._watermark_ms)
            if earliest is None:  # Storm stays at the empty end, and tests it again at the next watermark
                self._watermark_ms = None
                return None
            self._next_end_ms = align_up(earliest, self._slide.ms, 0)
        if self._next_end_ms <= self._watermark_ms:
            return EvictionContext(self._next_end_ms, current_count=queue.event_count(self._next_end_ms))
        self._watermark_ms = None
        return None

    def fired(self, shown: bool) -> None:
        """Step to the next end; after an empty window `due` jumps instead."""
        if shown:
            self._next_end_ms += self._slide.ms
        else:
            self._was_empty = True

    def get_state(self) -> int:
        return self._next_end_ms

    def restore_state(self, state: Any) -> None:
        self._next_end_ms = state
        self._watermark_ms = None
        self._was_empty = False


def tick_interval_ms(trigger: Any) -> int | None:
    """Return the tick interval of a user's own trigger over the clock, None if it gives the next time itself, or has no `tick`.

    >>> tick_interval_ms(TimeTriggerPolicy(5_000)), tick_interval_ms(CountTriggerPolicy(3))
    (5000, None)
    """
    if _overrides(trigger, "next_deadline_ms") or not _overrides(trigger, "tick"):
        return None
    return trigger.slide().ms if isinstance(trigger, TimeTriggerPolicy) else TICK_INTERVAL_MS


def next_tick_ms(trigger: Any) -> int | None:
    """Return when a user's own trigger needs its next tick. Raises TypeError if its answer is no time in milliseconds."""
    if not _overrides(trigger, "next_deadline_ms"):
        return None
    wanted = trigger.next_deadline_ms()
    if wanted is not None and not is_whole(wanted):
        raise TypeError(f"next_deadline_ms returned {quote(wanted)}; return milliseconds since 1970, or None")
    return wanted


def _overrides(trigger: Any, method: str) -> bool:
    """Return whether a trigger overrides an optional method of the base class."""
    found = getattr(trigger, method, None)
    return found is not None and getattr(found, "__func__", found) is not getattr(TriggerPolicy, method)
