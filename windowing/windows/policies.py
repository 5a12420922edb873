"""PolicyWindowManager: windows with a user's own per-event policies, in lossless order.

    turn(W)   waiting  --(timestamp, arrival)-->  live     eviction.track, trigger.track, and fire the windows that are due
                                                           then WaterMarkEvent(W) to both, and fire the windows that are due
    fire      eviction.set_context(context), then for each live event, oldest first:
              EXPIRE  out of the queue for good     PROCESS  in this window
              KEEP    left for a later one          STOP     the scan ends
              (a length= is applied first; the eviction chooses among the events that it holds)

    of a key  waiting --numbered--> live --EXPIRE--> gone --end of the advance--> expired      (PolicyKeyState)

Every firing is a scan, and every advance visits every key, so this is slow: O(live events) a firing, O(keys) an advance. Built-in
lengths and slides use ranges instead (manager.py). Each key has its own policies.

Laws: those of WindowManager, except that the policies decide what a window holds and when it fires. Live events are in order of
(timestamp, arrival); each event is tracked once by both policies, before any scan includes it; it expires at the end of the advance
in which the eviction returned EXPIRE, or in the drain. More than `max_repeats` firings without a new tuple in one advance are an
error. Source: Storm's `WindowManager`, in order of time, not of arrival; decided in docs/decisions/0002-user-policies.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge
from itertools import chain, takewhile
from numbers import Integral
from operator import attrgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedKeyList

from windowing.errors import BoltError, RepeatLimitError, WindowingError, quote
from windowing.schema.values import TIMESTAMP_BOUND
from windowing.windows.assigners import align_up, assigner_of, first_end
from windowing.windows.config import WindowConfig
from windowing.windows.events import (
    Activation,
    Effect,
    Event,
    Expired,
    ListContent,
    PayloadFold,
    TupleWindow,
    WaterMarkEvent,
)
from windowing.windows.eviction import Action, EvictionContext, by_id, copy_of, scan
from windowing.windows.guard import NO_EFFECTS, fault, made, one_for_each, refuse_foreign
from windowing.windows.key_state import restored_key
from windowing.windows.manager import Machine
from windowing.windows.measures import Count, Duration, Measure
from windowing.windows.trigger import QueueView, TriggerPolicy, next_tick_ms, tick_interval_ms


class Fired(NamedTuple):
    """A window that has fired; `first_shown` of its tuples were in no window before."""

    reference: int
    current: list[Any]
    new: list[Any]
    expired: list[Any]
    first_shown: int
    key: Any


# -- Built-in slides, where the user's own policy replaces only the length --------------------------------------------------------

# The triggers of trigger.py reproduce Storm, its losses included, so they cannot be used here.


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
            return align_up(passed + 1, self._slide, self._offset)
        return self._first_end(self._unfired[0], passed) if self._unfired else None

    def _next_held(self, queue: QueueView, until: int) -> int | None:
        if self._last is not None and self._shown:
            return self._last + self._slide
        since = -TIMESTAMP_BOUND if self._last is None else self._last
        earliest = queue.earliest_event_timestamp(since, until)
        return None if earliest is None else self._first_end(earliest, self.passed)

    def _first_end(self, timestamp: int, passed: int | None) -> int:
        return first_end(timestamp, passed, self._slide, self._offset)

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


# -- PolicyKeyState --------------------------------------------------------------------------------------------------------------


class PolicyKeyState(QueueView):
    """The events of one key and its two policies. Made by PolicyWindowManager, at the key's first tuple.

    Policies are called by method name, so a policy that implements Storm's protocol without our base classes works too.
    """

    def __init__(
        self, config: WindowConfig, key: Any, ordinal: int, watermark: int | None, component: str = "bolt"
    ) -> None:
        self.key = key
        self.ordinal = ordinal
        self.waiting: SortedKeyList[Event, int] = SortedKeyList(key=attrgetter("timestamp"))
        self.newest_numbered: int | None = None
        self._live: dict[Event, bool] = {}  # in order; the value: whether a window has shown it
        self._last: dict[Event, None] = {}
        self._gone: dict[Event, bool] = {}
        self._dumped: tuple[dict[str, Any], dict[int, Any]] | None = (
            None  # what `_dump` returned, since the events changed
        )
        self._repeats = 0
        self._max_repeats = config.max_repeats
        self._component = component
        self._reference: int | None = None
        self._length = config.length
        self._eviction = None if config.eviction is None else made(config.eviction, "eviction", component)
        self._own_trigger = config.trigger is not None
        if config.trigger is not None:
            self._trigger = made(config.trigger, "trigger", component)
        elif isinstance(config.slide, Duration):
            self._trigger = TimeSlide(config.slide.ms, config.offset_ms, config.length, config.repeat)
        else:
            self._trigger = CountSlide(config.slide.value)
        self.tick_interval_ms = tick_interval_ms(self._trigger) if self._own_trigger else None
        if isinstance(self._trigger, TimeSlide):
            self._trigger.passed = watermark
        self._started = True
        self._call(self._trigger, "start")

    @property
    def newest(self) -> int | None:
        """The largest timestamp of the key's tuples."""
        return self.waiting[-1].timestamp if self.waiting else self.newest_numbered

    @property
    def empty(self) -> bool:
        """Whether the key has neither waiting nor live events."""
        return not self._live and not self.waiting

    @property
    def never_shown(self) -> int:
        """The number of events that no window has shown yet."""
        return len(self.waiting) + sum(not was_shown for was_shown in self._live.values())

    # -- queries of a trigger, over the live events ------------------------------------------------------------------

    def earliest_event_timestamp(self, start_ms: int, end_ms: int) -> int | None:
        # The events are in order, so the first one has the smallest timestamp.
        return next((event.timestamp for event in self._until(end_ms) if event.timestamp > start_ms), None)

    def _until(self, reference_ms: int) -> Iterator[Event]:
        return takewhile(lambda event: event.timestamp <= reference_ms, self._live)

    # -- watermark advances ------------------------------------------------------------------------------------------

    def wait(self, payload: Any, timestamp: int) -> None:
        """Add a tuple on event time; it waits for its number. Equal timestamps keep their arrival order."""
        self._dumped = None
        self.waiting.add(Event(payload, timestamp))

    def enter(self, payload: Any, timestamp: int) -> Iterator[Fired]:
        """Add a tuple on processing time, which is numbered at once, and yield the windows that fire."""
        yield from self._number(Event(payload, timestamp))
        yield from self._due()

    def turn(self, watermark: int) -> Iterator[Fired]:
        """Yield the windows that a watermark advance fires."""
        self._repeats = 0
        yield from self._number_all(watermark)
        yield from self._reach(watermark, watermark)

    def tick(self, now_ms: int) -> Iterator[Fired]:
        """Yield the windows that a tick of the clock fires."""
        self._repeats = 0
        yield from self._fire_each(self._call(self._trigger, "tick", now_ms))
        yield from self._due()

    def next_deadline_ms(self) -> int | None:
        """Return the W over the clock at which a tick has an effect; None if there is none, or the trigger does not say."""
        if isinstance(self._trigger, TimeSlide):
            return self._trigger.next_end(next(iter(self._live)).timestamp if self._live else None)
        if not self._own_trigger:
            return None
        try:
            wanted_ms = next_tick_ms(self._trigger)
        except Exception as problem:
            raise self._fault(self._trigger, "next_deadline_ms", problem) from problem
        return None if wanted_ms is None else wanted_ms - 1  # W is the clock less 1 ms

    def finish(self, watermark: int | None) -> Iterator[Fired]:
        """Yield the windows that a drain fires; afterwards all events are gone."""
        self._repeats = 0
        newest = self.newest
        if newest is not None:
            yield from self._number_all(newest)
            reached = newest if watermark is None else max(newest, watermark)
            until = self._trigger.last_end(newest) if isinstance(self._trigger, TimeSlide) else reached
            yield from self._reach(reached, until)
            yield from self._fire_rest(newest)
        self._dumped = None
        self._gone.update(self._live)
        self._live.clear()

    def _number_all(self, until: int) -> Iterator[Fired]:
        while self.waiting and self.waiting[0].timestamp <= until:
            yield from self._number(self.waiting.pop(0))

    def _number(self, event: Event) -> Iterator[Fired]:
        self._dumped, self.newest_numbered = None, event.timestamp
        self._live[event] = False
        self._repeats = 0
        self._call(self._eviction, "track", event)
        yield from self._fire_each(self._call(self._trigger, "track", event), self._live)

    def _reach(self, watermark: int, until: int | None) -> Iterator[Fired]:
        """Give `watermark` to the eviction and `until` (unless None) to the trigger; fire the windows that are due."""
        self._call(self._eviction, "track", WaterMarkEvent(watermark))
        if until is not None:
            yield from self._fire_each(self._call(self._trigger, "track", WaterMarkEvent(until)))
            yield from self._due()

    def _due(self) -> Iterator[Fired]:
        while (context := self._call(self._trigger, "due", self)) is not None:
            yield from self._fire_each([context])

    def _fire_each(
        self, contexts: Iterable[EvictionContext] | None, offered: Iterable[Event] | None = None
    ) -> Iterator[Fired]:
        for context in self._contexts_of(contexts):
            yield from self._fire(context, self._until(context.reference_time) if offered is None else offered)

    def _fire_rest(self, newest: int) -> Iterator[Fired]:
        if all(self._live.values()):
            return
        context = EvictionContext(newest)
        if isinstance(self._trigger, CountSlide):
            # The window of the next multiple of the slide, with the tuples that there are.
            count = len(self._live) + self._trigger.missing()
            context = EvictionContext(newest, current_count=count, sliding_count=self._trigger.count)
        yield from self._fire(context, self._live)

    # -- a firing ----------------------------------------------------------------------------------------------------

    def _fire(self, context: EvictionContext, offered: Iterable[Event]) -> Iterator[Fired]:
        self._reference = context.reference_time
        window = self._scan(context, list(offered))
        first_shown = sum(not self._live[event] for event in window)
        self._limit(first_shown, context.reference_time)
        if window:
            self._dumped = None
            held, last = dict.fromkeys(window), self._last
            self._live.update(dict.fromkeys(window, True))
            self._last = held
            yield Fired(
                context.reference_time,
                [event.payload for event in window],
                [event.payload for event in window if event not in last],
                [event.payload for event in last if event not in held],
                first_shown,
                self.key,
            )
        self._call(self._trigger, "reset")
        self._call(self._trigger, "fired", bool(window))
        self._reference = None

    def _scan(self, context: EvictionContext, offered: list[Event]) -> list[Event]:
        if context.current_count is None:
            context = replace(context, current_count=self.event_count(context.reference_time))
        if self._length is not None:
            context, offered = self._bounded(self._length, context, offered)
        self._call(self._eviction, "set_context", context)
        window, expired = scan(offered, self._action)
        self._remove(expired)
        return window

    def _bounded(
        self, length: Measure, context: EvictionContext, offered: list[Event]
    ) -> tuple[EvictionContext, list[Event]]:
        """Expire the events that the length cannot hold any more; return those it holds, and a context that counts only these."""
        reached = [event for event in offered if event.timestamp <= context.reference_time]
        count = context.current_count or 0
        if isinstance(length, Duration):
            gone = bisect_right(reached, context.reference_time - length.ms, key=attrgetter("timestamp"))
        else:
            gone = max(0, count - length.value)
        expired, held = reached[:gone], reached[gone:]
        self._remove(expired)
        return replace(context, current_count=count - len(expired)), held

    def _action(self, event: Event) -> Action:
        if self._eviction is None:
            return Action.PROCESS
        try:
            action = self._eviction.evict(event)
        except Exception as problem:
            raise self._fault(self._eviction, "evict", problem) from problem
        if isinstance(action, Action):
            return action
        raise BoltError(
            f"bolt {self._component!r} failed in its eviction: {type(self._eviction).__name__}.evict returned {quote(action)} on "
            f"the window that ends at {self._reference}; return one of Action.EXPIRE, PROCESS, KEEP, STOP"
        )

    def _remove(self, expired: list[Event]) -> None:
        if expired:
            self._dumped = None
            self._gone.update((event, self._live.pop(event)) for event in expired)

    def _limit(self, first_shown: int, reference: int) -> None:
        self._repeats = 0 if first_shown else self._repeats + 1
        if self._repeats > self._max_repeats:
            raise RepeatLimitError(
                f"{type(self._trigger).__name__} fired more than max_repeats={self._max_repeats} windows without a new "
                f"tuple in one turn, the last at {reference}; let the trigger return None, or let the eviction expire tuples"
            )

    def take_expired(self) -> tuple[list[Any], int]:
        """Return the tuples that are gone since the last call, and how many of them were never shown."""
        gone, self._gone = self._gone, {}
        return [event.payload for event in gone], sum(not was_shown for was_shown in gone.values())

    def shutdown(self) -> None:
        """Shut down the trigger, once; no event may be added afterwards."""
        if self._started:
            self._started = False
            self._call(self._trigger, "shutdown")

    # -- policies ----------------------------------------------------------------------------------------------------

    def _call(self, policy: Any, method: str, *arguments: Any) -> Any:
        """Call an optional method of a policy and return its result, None if it has no such method."""
        optional = getattr(policy, method, None)
        try:
            return None if optional is None else optional(*arguments)
        except Exception as problem:
            raise self._fault(policy, method, problem) from problem

    def _contexts_of(self, contexts: Iterable[EvictionContext] | None) -> Iterator[EvictionContext]:
        """Yield the contexts that a trigger returned; they may be a generator that raises."""
        try:
            for context in contexts or ():
                if not isinstance(getattr(context, "reference_time", None), Integral):
                    raise TypeError(
                        f"{quote(context)} is no EvictionContext with a reference_time in whole milliseconds"
                    )
                yield context
        except Exception as problem:
            what = "track or tick, which return a list of EvictionContext, or None (due: one)"
            raise self._fault(self._trigger, what, problem) from problem

    def _fault(self, policy: Any, method: str, problem: Exception) -> WindowingError:
        if isinstance(problem, WindowingError):
            return problem
        window = "" if self._reference is None else f" on the window that ends at {self._reference}"
        return fault(self._component, f"{type(policy).__name__}.{method}{window}", problem)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self, keep: bool = False) -> dict[str, Any]:
        """Return the state as plain data; first the events that are only in the last window, then the live ones. keep: the events
        are kept in this form until they change.
        """
        held, tuples = self._dumped or self._dump()
        if keep:
            self._dumped = held, tuples
        states = {"eviction": self._state_of(self._eviction, tuples), "trigger": self._state_of(self._trigger, tuples)}
        return {**held, **states}

    def _dump(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """Return the events as plain data, and their tuples for `copy_of`."""
        past = [event for event in self._last if event not in self._live]
        events = [*past, *self._live]
        positions = dict(zip(events, range(len(events)), strict=True))
        tuples = [event.payload for event in (*events, *self.waiting)]
        held = {
            "key": self.key,
            "ordinal": self.ordinal,
            "newest": self.newest_numbered,
            "payloads": tuples[: len(events)],
            "timestamps": [event.timestamp for event in events],
            "shown": list(self._live.values()),
            "last": [positions[event] for event in self._last],
            "waiting": [[event.payload, event.timestamp] for event in self.waiting],
        }
        return held, by_id(tuples)

    def _state_of(self, policy: Any, tuples: Mapping[int, Any]) -> Any:
        state = self._call(policy, "get_state")
        try:
            return copy_of(state, tuples)
        except Exception as problem:
            raise self._fault(policy, "get_state, which returns plain data", problem) from problem

    @classmethod
    def restored(cls, config: WindowConfig, data: dict[str, Any], component: str = "bolt") -> PolicyKeyState:
        state = cls(config, restored_key(data["key"]), data["ordinal"], None, component)
        state.newest_numbered = data["newest"]
        events = list(map(Event, data["payloads"], data["timestamps"]))
        live = events[len(events) - len(data["shown"]) :]
        state._live = dict(zip(live, data["shown"], strict=True))
        state._last = dict.fromkeys(events[at] for at in data["last"])
        state.waiting.update(Event(payload, timestamp) for payload, timestamp in data["waiting"])
        tuples = by_id(event.payload for event in (*events, *state.waiting))
        state._call(state._eviction, "restore_state", copy_of(data["eviction"], tuples))
        state._call(state._trigger, "restore_state", copy_of(data["trigger"], tuples))
        return state

    def check(self) -> None:
        times = [event.timestamp for event in self._live]
        assert times == sorted(times)
        assert not any(event.is_watermark for event in self._live)
        assert self._dumped in (None, self._dump())
        # Between two advances no event is gone without having expired.
        assert not self._gone


# -- PolicyWindowManager ---------------------------------------------------------------------------------------------------------


class PolicyWindowManager(Machine):
    """The windows of one task with the user's own `eviction=` or `trigger=` (or both); the other parts are lossless.

    `fold` computes `window.aggregate` from the list of a window's tuples; `component` names the bolt
    in errors. Snapshots hold `get_state()` of the policies of each key.

    >>> from windowing import EvictionContext, TriggerPolicy, seconds
    >>> class OnEnd(TriggerPolicy):
    ...     def track(self, event):
    ...         return [EvictionContext(event.timestamp)] if event.get() == "end" else None
    >>> manager = PolicyWindowManager(WindowConfig.of(length=seconds(10), timestamp="ts", trigger=OnEnd))
    >>> list(manager.add_batch(["end", "a", "b"], [7, 3, 9]))
    []
    >>> [effect.window.get() for effect in manager.advance(9) if isinstance(effect, Activation)]
    [['a', 'end']]
    """

    kind = "PolicyWindowManager"
    not_done = ("semantics", "max_events_in_memory")

    def __init__(self, config: WindowConfig, *, fold: PayloadFold | None = None, component: str = "bolt") -> None:
        in_time = isinstance(config.length, Duration) and isinstance(config.slide, Duration)
        super().__init__(config, assigner_of(config) if in_time and config.trigger is None else None)
        self._component = component
        self._fold = fold
        self._ordinal = 0
        self._states: dict[Any, PolicyKeyState] = {}
        self._ticked_ms: int | None = None  # the time of the last tick, or of the first tuple
        self._deadline: tuple[int | None] | None = None  # as of the last entry; None where it has to be computed
        # With two Durations a key cannot have a time to live: it is forgotten with its last tuple.
        self._forgets = in_time and config.key is not None
        self._length_ms = config.length.ms if isinstance(config.length, Duration) else None

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple. Cost: O(1) on event time; on processing time a scan for each window that it makes fire."""
        self._open()
        if not self.config.event_time:
            return self.guard.run(self._enter(payload, timestamp, key))
        self.add_batch([payload], [timestamp], [key])
        return NO_EFFECTS

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        if not self.config.event_time:
            return self.guard.run(self._enter_all(payloads, timestamps, keys), positions=True)
        try:
            for at, payload in enumerate(payloads):
                self._state_of(None if keys is None else keys[at]).wait(payload, timestamps[at])
        except BaseException:
            self.guard.fail()
            raise
        self._tally.accepted += len(payloads)
        return NO_EFFECTS

    def tick(self, now_ms: int) -> Iterator[Effect]:
        self._open()
        if self.watermark is not None and now_ms <= self.watermark + 1:
            return NO_EFFECTS  # a second tick in one millisecond
        since, self.watermark = self.watermark, now_ms - 1
        self._deadline, self._ticked_ms = None, now_ms
        return self.guard.run(self._fire_all(since, now_ms - 1, lambda state, until: state.tick(until + 1)))

    # -- watermark advances --------------------------------------------------------------------------------------------

    def _enter_all(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> Iterator[tuple[int, Effect]]:
        for at, payload in enumerate(payloads):
            for effect in self._enter(payload, timestamps[at], None if keys is None else keys[at]):
                yield at, effect

    def _enter(self, payload: Any, timestamp: int, key: Any) -> Iterator[Effect]:
        self._tally.accepted += 1
        if not self._states:
            self._ticked_ms = timestamp
        self._deadline = None
        state = self._state_of(key)
        yield from self._activations([(state, state.enter(payload, timestamp))])
        yield from self._expired(state)

    def _advance(self, since: int | None, until: int) -> Iterator[Effect]:
        return self._fire_all(since, until, PolicyKeyState.turn)

    def _fire_all(
        self, since: int | None, until: int, what: Callable[[PolicyKeyState, int], Iterator[Fired]]
    ) -> Iterator[Effect]:
        states = list(self._states.values())
        over = self._past_ttl(states, until)
        firings = []
        for state in states:
            end = over.get(state.ordinal)
            if end is None:
                firings.append((state, what(state, until)))
            else:
                if since is not None and end < since:  # the key_ttl is less than before a restart
                    end = since
                firings.append((state, chain(what(state, end), state.finish(end))))
        yield from self._activations(firings)
        for state in states:
            yield from self._expired(state)
            if state.ordinal in over or (self._forgets and state.empty):
                del self._states[state.key]
                state.shutdown()

    def _end(self) -> Iterator[Effect]:
        self._deadline = (None,)
        states = list(self._states.values())
        yield from self._activations([(state, state.finish(self.watermark)) for state in states])
        for state in states:
            yield from self._expired(state)
            state.shutdown()
        self._states.clear()

    def _activations(self, firings: list[tuple[PolicyKeyState, Iterator[Fired]]]) -> Iterator[Activation]:
        runs: Iterable[Iterator[tuple[int, int, Fired]]] = [_in_order(state, fired) for state, fired in firings]
        for reference, _, fired in merge(*runs, key=lambda item: item[:2]):
            self._tally.fired += 1
            self._tally.shown += fired.first_shown
            start = None if self._length_ms is None else reference - self._length_ms
            content = ListContent(fired.current, fired.new, fired.expired, self._fold)
            yield Activation(TupleWindow(content, start, reference, fired.key))

    def _expired(self, state: PolicyKeyState) -> Iterator[Expired]:
        gone, never_shown = state.take_expired()
        if gone:
            self._tally.expired += len(gone)
            self._tally.skipped += never_shown
            yield Expired(len(gone), lambda: gone, state.key)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _state_of(self, key: Any) -> PolicyKeyState:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = PolicyKeyState(self.config, key, self._ordinal, self.watermark, self._component)
            self._ordinal += 1
        return state

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the W over the clock at which the next tick has an effect, None if there is none.

        Cost: O(keys) after an entry, else O(1).
        """
        if self._deadline is None:
            self._deadline = (min(self._deadlines(), default=None),)
        return self._deadline[0]

    def _deadlines(self) -> Iterator[int]:
        ttl = self.config.key_ttl_ms
        for state in self._states.values():
            wanted = state.next_deadline_ms()
            if wanted is not None:
                yield wanted
            if state.tick_interval_ms is not None and self._ticked_ms is not None:
                yield self._ticked_ms + state.tick_interval_ms - 1
            if ttl is not None and state.newest is not None:
                yield state.newest + ttl

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine's state as plain data, always with the tuples."""
        return self._snapshot(keep=False)

    def _snapshot(self, keep: bool) -> dict[str, Any]:
        tracks = [state.snapshot(keep) for state in self._states.values()]
        return {**self._common(), "ordinal": self._ordinal, "tracks": tracks}

    def mark(self) -> dict[str, Any]:
        """Return `snapshot()`. Cost: a copy of the policies' states, since each advance calls all of them; for a key whose events
        have changed since the last mark, a list of these too, which is kept: 135 bytes an event at rest.
        """
        return self._snapshot(keep=True)

    def changed(self, marked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return marked, self.mark()

    def restore(self, data: dict[str, Any]) -> None:
        refuse_foreign(data, self.kind)
        self._restore_common(data)
        self.shutdown()
        self._ordinal = data["ordinal"]
        states = [PolicyKeyState.restored(self.config, each, self._component) for each in data["tracks"]]
        self._states = {state.key: state for state in states}
        self._deadline = None
        if self.watermark is not None:
            self._ticked_ms = self.watermark + 1
        else:
            self._ticked_ms = min((state.newest for state in states if state.newest is not None), default=None)
        self.guard.reset()

    def shutdown(self) -> None:
        with ExitStack() as remaining:  # all of them, also where one raises
            for state in reversed(self._states.values()):
                remaining.callback(state.shutdown)

    def check(self) -> None:
        for key, state in self._states.items():
            state.check()
            assert state.key is key or state.key == key  # NaN is not equal to itself
        # A pending tuple is waiting, or it is live and was never shown.
        assert self._tally.pending == sum(state.never_shown for state in self._states.values())
        assert self._tally.shown + self._tally.skipped >= self._tally.expired


def _in_order(state: PolicyKeyState, firings: Iterator[Fired]) -> Iterator[tuple[int, int, Fired]]:
    for fired in firings:
        yield fired.reference, state.ordinal, fired
