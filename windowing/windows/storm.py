"""Storm's semantics: its window managers, losses included, and the machine of a bolt with `semantics="storm"`.

    add(x) -> queue -> eviction.track -> trigger.track -> windows due -> every 100 entries: expire from the head
              arrival                                        |
              order            a scan of the whole queue: EXPIRE / PROCESS / KEEP, up to STOP
                                                             |
                                        Expired(the tuples it removed), Activation(those of the window), in this order

    length   Count      CountEvictionPolicy     event time: WatermarkCountEvictionPolicy
             Duration   TimeEvictionPolicy                  WatermarkTimeEvictionPolicy
    slide    Count      CountTriggerPolicy                  WatermarkCountTriggerPolicy
             Duration   TimeTriggerPolicy                   WatermarkTimeTriggerPolicy

Laws, Storm's and kept: the queue is in arrival order, whatever the timestamps. A watermark is an entry but not a tuple.
An empty window does not fire, and the tuples that expired since the last window are then in no window's expired tuples
(defect D14). There are no keys and no drain. Lost tuples count as skipped, so accepted == shown + skipped + pending. Verified
by `tests/windows/test_conformance.py`; `semantics="lossless"` is the engine without the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import Any, ClassVar, NoReturn

from windowing.errors import (
    UNREADABLE,
    ConfigError,
    RepeatLimitError,
    SnapshotError,
    StaleWindowError,
    WindowingError,
    damaged,
    quote,
)
from windowing.windows.config import Semantics, WindowConfig
from windowing.windows.events import (
    Activation,
    Effect,
    Event,
    Expired,
    ListContent,
    TupleWindow,
    WaterMarkEvent,
    WindowContent,
)
from windowing.windows.eviction import (
    Action,
    CountEvictionPolicy,
    EvictionContext,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
    by_id,
    copy_of,
    scan,
)
from windowing.windows.guard import SNAPSHOT_FORMAT, Guard, fault, made, one_for_each, refuse_foreign
from windowing.windows.key_state import Tally
from windowing.windows.manager import Machine
from windowing.windows.measures import Count, Duration
from windowing.windows.trigger import (
    CountTriggerPolicy,
    QueueView,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
    next_tick_ms,
    tick_interval_ms,
)

EXPIRE_EVENTS_THRESHOLD = 100
"""After so many entries since the last scan, expired events are removed from the head of the queue."""

_VERSION = 1


class StormWindowManager(QueueView):
    """The queue behind a window, its eviction policy and its trigger policy. It starts the trigger.

    Each entry returns an iterator of effects, which must be exhausted before the next entry (see `Guard`). Cost: O(1) an
    entry, O(queue) a window, as in Storm. Source: Storm's `WindowManager`.

    >>> from windowing import CountEvictionPolicy, CountTriggerPolicy
    >>> manager = StormWindowManager(CountEvictionPolicy(3), CountTriggerPolicy(2))
    >>> for _, effect in manager.add_batch("abcd", [1, 2, 3, 4]):
    ...     print(effect.window.get() if isinstance(effect, Activation) else effect.get())
    ['a', 'b']
    ['a']
    ['b', 'c', 'd']
    """

    kind: ClassVar[str] = "storm"

    def __init__(self, eviction: EvictionPolicy, trigger: TriggerPolicy) -> None:
        self._eviction = eviction
        self._trigger = trigger
        self.guard = Guard()
        self._queue: dict[Event, None] = {}  # an ordered set: Events compare by identity
        self._previous: set[Event] = set()
        self._expired: list[Any] = []
        self._entries_since_scan = 0
        length = getattr(eviction, "length", None)
        self._length = length() if callable(length) else None
        self._started = True
        trigger.start()

    # -- entries -----------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Add a tuple; on processing time `timestamp` is the clock. Keys are ignored."""
        return self.guard.run(self._enter(Event(payload, timestamp)))

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Add tuples one after the other; yield each effect with the position of the tuple that caused it."""
        one_for_each(payloads, timestamps=timestamps)
        return self.guard.run(self._enter_all(payloads, timestamps), positions=True)

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Add a watermark, after which no tuple with a smaller timestamp is expected."""
        return self.guard.run(self._enter(WaterMarkEvent(watermark)))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Fire the windows that the trigger says are due by the clock."""
        return self.guard.run(self._tick(now_ms))

    def drain(self) -> NoReturn:
        """Raise ConfigError: Storm has no end of a stream, so its last windows never fire."""
        raise ConfigError(
            'semantics="storm" cannot drain: Storm never fires the windows that are open when a stream ends; '
            'use semantics="lossless" to have them fired'
        )

    def shutdown(self) -> None:
        """Shut down the trigger, once; no tuple may be added afterwards."""
        if self._started:
            self._started = False
            self._trigger.shutdown()

    def _until(self, reference_ms: int) -> Iterator[Event]:
        return (event for event in self._queue if event.timestamp <= reference_ms)

    # -- the machine -------------------------------------------------------------------------------------------------

    def _enter_all(self, payloads: Sequence[Any], timestamps: Sequence[int]) -> Iterator[tuple[int, Effect]]:
        for position, payload in enumerate(payloads):
            for effect in self._enter(Event(payload, timestamps[position])):
                yield position, effect

    def _enter(self, event: Event) -> Iterator[Effect]:
        if not event.is_watermark:
            self._queue[event] = None
        self._eviction.track(event)
        contexts = self._trigger.track(event)
        if contexts is not None:
            for context in contexts:
                yield from self._fire(context)
        while (due := self._trigger.due(self)) is not None:
            yield from self._fire(due)
        yield from self._compact()

    def _tick(self, now_ms: int) -> Iterator[Effect]:
        for context in self._trigger.tick(now_ms) or ():
            yield from self._fire(context)
        while (due := self._trigger.due(self)) is not None:
            yield from self._fire(due)

    def _fire(self, context: EvictionContext) -> Iterator[Effect]:
        self._eviction.set_context(context)
        was_shown = yield from self._show(self._eviction.get_context() or context)
        self._trigger.reset()
        self._trigger.fired(was_shown)

    def _show(self, context: EvictionContext) -> Generator[Effect, None, bool]:
        """Scan the whole queue; fire the window unless it is empty."""
        window, removed = scan(self._queue, self._eviction.evict)
        yield from self._expire(removed)
        expired, self._expired = self._expired, []
        previous, self._previous = self._previous, set(window)
        if not window:
            return False
        new = [event.payload for event in window if event not in previous]
        content = ListContent([event.payload for event in window], new, expired, _refuse_aggregate)
        yield self._activation(content, context.reference_time)
        return True

    def _compact(self) -> Iterator[Effect]:
        """At the hundredth entry after a scan, remove expired events from the head of the queue."""
        self._entries_since_scan += 1
        if self._entries_since_scan < EXPIRE_EVENTS_THRESHOLD:
            return
        removed: list[Event] = []
        for event in self._queue:
            if self._eviction.evict(event) is not Action.EXPIRE:
                break
            removed.append(event)
        yield from self._expire(removed)

    def _expire(self, removed: list[Event]) -> Iterator[Effect]:
        self._entries_since_scan = 0
        if not removed:
            return
        for event in removed:
            del self._queue[event]
        payloads = [event.payload for event in removed]
        self._expired.extend(payloads)
        yield Expired(len(payloads), lambda: payloads)

    def _activation(self, content: WindowContent, end_ms: int) -> Activation:
        start_ms = end_ms - self._length.ms if isinstance(self._length, Duration) else None
        return Activation(TupleWindow(content, start_ms, end_ms))

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _definition(self) -> list[str]:
        slide = getattr(self._trigger, "slide", None)
        return [
            self.kind,
            type(self._eviction).__name__,
            repr(self._length),
            type(self._trigger).__name__,
            repr(slide() if callable(slide) else None),
        ]

    def snapshot(self) -> dict[str, Any]:
        """Return all state as plain data; a machine restored from it continues exactly as this one."""
        self.guard.enter()
        payloads = [event.payload for event in self._queue]
        tuples = by_id(payloads)
        return {
            "version": _VERSION,
            "definition": self._definition(),
            "payloads": payloads,
            "timestamps": [event.timestamp for event in self._queue],
            "previous": [position for position, event in enumerate(self._queue) if event in self._previous],
            "expired": list(self._expired),
            "entries_since_scan": self._entries_since_scan,
            "eviction": copy_of(self._eviction.get_state(), tuples),
            "trigger": copy_of(self._trigger.get_state(), tuples),
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the machine's state from a snapshot, even if it is spent. Raises SnapshotError for one of another window."""
        if (
            not isinstance(data, dict)
            or data.get("version") != _VERSION
            or data.get("definition") != self._definition()
        ):
            found = [data.get("version"), data.get("definition")] if isinstance(data, dict) else data
            raise SnapshotError(
                f"the snapshot is of {quote(found)}, this window is {quote([_VERSION, self._definition()])}; "
                "restore it into a window of the same definition"
            )
        self.guard.fail()
        try:
            events = [Event(payload, ts) for payload, ts in zip(data["payloads"], data["timestamps"], strict=True)]
            self._queue = dict.fromkeys(events)
            self._previous = {events[position] for position in data["previous"]}
            self._expired = list(data["expired"])
            self._entries_since_scan = data["entries_since_scan"]
            tuples = by_id(data["payloads"])
            self._restore_policies(copy_of(data["eviction"], tuples), copy_of(data["trigger"], tuples))
        except UNREADABLE as problem:
            raise damaged(problem) from problem
        self.guard.reset()

    def _restore_policies(self, eviction: Any, trigger: Any) -> None:
        self._eviction.restore_state(eviction)
        self._trigger.restore_state(trigger)

    def check(self) -> None:
        """Assert the invariants of a machine between two entries."""
        # After a hundred entries without a scan there is one.
        assert 0 <= self._entries_since_scan < EXPIRE_EVENTS_THRESHOLD
        # The queue holds tuples only, no watermark.
        assert not any(event.is_watermark for event in self._queue)


def _refuse_aggregate(*_: Any) -> NoReturn:
    raise TypeError(
        'Storm\'s windows have no aggregate; use window.get(), or aggregate= with semantics="lossless", the default'
    )


class StormStatefulWindowManager(StormWindowManager):
    """The manager of windows too large for memory: the bolt's own iteration is the scan, and removes expired events.

    There are no Expired effects, the queue is not compacted, and a window has neither new nor expired tuples.
    Source: Storm's `StatefulWindowManager`.
    """

    kind: ClassVar[str] = "storm-stateful"

    def _compact(self) -> Iterator[Effect]:
        return iter(())

    def _show(self, context: EvictionContext) -> Generator[Effect, None, bool]:
        content = _ScannedContent(self._scan)
        if content.is_empty():
            return False
        try:
            yield self._activation(content, context.reference_time)
        finally:
            content.end()
        return True

    def _scan(self) -> Iterator[Any]:
        """Yield the tuples of the window that is due, and call the policy meanwhile; expired events leave the queue."""
        self._eviction.reset()
        for event in list(self._queue):
            if event not in self._queue:  # another scan of the same window has removed it
                continue
            action = self._eviction.evict(event)
            if action is Action.PROCESS:
                yield event.payload
            elif action is Action.EXPIRE:
                del self._queue[event]
            elif action is Action.STOP:
                return


class _ScannedContent:
    """The content of an iterator window: each `current()` is a scan; the first one continues the scan of `is_empty`."""

    __slots__ = ("_initial", "_live", "_rescan")

    def __init__(self, rescan: Callable[[], Iterator[Any]]) -> None:
        self._rescan = rescan
        self._live = True
        self._initial: Iterator[Any] | None = None

    def is_empty(self) -> bool:
        """Scan up to the first tuple of the window."""
        scan = self._rescan()
        for first in scan:
            self._initial = chain((first,), scan)
            return False
        return True

    def end(self) -> None:
        """End the window: its iterators raise from now on."""
        self._live = False

    def scan(self) -> Iterator[Any]:
        """Yield the tuples of the window while it is live."""
        scan, self._initial = self._initial or self._rescan(), None
        while True:
            if not self._live:
                raise StaleWindowError(
                    "an iterator of a window was asked after its execute had returned; copy what you need while it "
                    "runs: list(window.get())"
                )
            try:
                payload = next(scan)
            except StopIteration:
                return
            yield payload

    def __len__(self) -> int:
        return len(list(self.scan()))

    def current(self) -> Sequence[Any]:
        return _ScannedTuples(self)

    def new(self) -> NoReturn:
        raise TypeError('an iterator window of Storm does not know its new tuples; use semantics="lossless"')

    def expired(self) -> NoReturn:
        raise TypeError('an iterator window of Storm does not know its expired tuples; use semantics="lossless"')

    def aggregate(self) -> NoReturn:
        _refuse_aggregate()


class _ScannedTuples(Sequence[Any]):
    """A sequence that scans while it is iterated; its length or an item needs one scan, whose list is kept."""

    __slots__ = ("_content", "_kept")

    def __init__(self, content: _ScannedContent) -> None:
        self._content = content
        self._kept: list[Any] | None = None

    def _list(self) -> list[Any]:
        if self._kept is None:
            self._kept = list(self._content.scan())
        return self._kept

    def __iter__(self) -> Iterator[Any]:
        # A generator, because list(...) requests an iterator and then the length, which must be one scan, not two.
        yield from self._content.scan() if self._kept is None else self._kept

    def __len__(self) -> int:
        return len(self._list())

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]


# -- StormMachine ----------------------------------------------------------------------------------------------------------------


def storm_policies(config: WindowConfig, component: str = "bolt") -> tuple[EvictionPolicy, TriggerPolicy]:
    """Return the policies of a definition, as Storm's executor chooses them; the user's own where there are some."""
    length, slide, by_watermark = config.length, config.slide, config.event_time
    eviction: EvictionPolicy
    trigger: TriggerPolicy
    if config.eviction is not None:
        eviction = made(config.eviction, "eviction", component)
    elif isinstance(length, Count):
        eviction = (WatermarkCountEvictionPolicy if by_watermark else CountEvictionPolicy)(length.value)
    else:
        assert length is not None
        eviction = (
            WatermarkTimeEvictionPolicy(length.ms, config.lag_ms) if by_watermark else TimeEvictionPolicy(length.ms)
        )
    if config.trigger is not None:
        trigger = made(config.trigger, "trigger", component)
    elif isinstance(slide, Count):
        trigger = (WatermarkCountTriggerPolicy if by_watermark else CountTriggerPolicy)(slide.value)
    else:
        trigger = (WatermarkTimeTriggerPolicy if by_watermark else TimeTriggerPolicy)(slide.ms)
    return eviction, trigger


class StormMachine(StormWindowManager, Machine):
    """The StormWindowManager of a definition, with a tally.

    Over the clock a driver ticks it every `tick_interval_ms`: the slide, whether a window is due or not, or the interval of a
    user's own trigger.

    >>> from windowing import count
    >>> machine = StormMachine(WindowConfig.of(length=count(2), slide=count(2), semantics="storm"))
    >>> for at, effect in machine.add_batch("abc", [1, 1, 2]):
    ...     print(at, effect.window.get() if isinstance(effect, Activation) else effect)
    1 ['a', 'b']
    >>> machine.tally.pending
    1
    """

    def __init__(self, config: WindowConfig, component: str = "bolt") -> None:
        if config.semantics is not Semantics.STORM:
            raise ConfigError(
                "a StormMachine loses what Storm loses, and the definition says semantics='lossless'; say 'storm', or make the "
                "machine by machine_for(config) (windowing.windows.executor), which chooses it"
            )
        self._tally = Tally()
        self.watermark: int = 0  # Storm's begins at 0
        self.closed = False  # it knows no end
        self._ticked_ms: int | None = None  # the last tick; at first, the start of the timer
        self._component = component
        with self._attributed():
            super().__init__(*storm_policies(config, component))
        slide_ms = config.slide.ms if isinstance(config.slide, Duration) else None
        self._users_trigger = None if config.trigger is None else self._trigger
        self._is_storms_own = config.eviction is None and config.trigger is None
        self.tick_interval_ms = slide_ms if self._users_trigger is None else tick_interval_ms(self._users_trigger)
        # Storm fires the last N tuples again at every end of a gap, however long it is.
        repeats = config.event_time and isinstance(config.length, Count) and isinstance(config.slide, Duration)
        self._max_repeats = config.max_repeats if repeats else None
        self._shown: set[Event] = set()  # the queued events that were in a window

    def advance(self, watermark: int) -> Iterator[Effect]:
        effects = super().advance(watermark)
        self.watermark = watermark
        return effects

    def tick(self, now_ms: int) -> Iterator[Effect]:
        effects = super().tick(now_ms)
        self._ticked_ms = now_ms
        return effects

    def must_wait(self, now_ms: int) -> bool:
        if self._users_trigger is not None or self.tick_interval_ms is None:
            return False
        if self._ticked_ms is None:
            self._ticked_ms = now_ms
        return now_ms < self._ticked_ms + self.tick_interval_ms

    def _enter(self, event: Event) -> Iterator[Effect]:
        if not event.is_watermark:
            self._tally.accepted += 1
        yield from self._noted(super()._enter(event), event.timestamp)

    def _tick(self, now_ms: int) -> Iterator[Effect]:
        return self._noted(super()._tick(now_ms), now_ms)

    def _noted(self, effects: Iterator[Effect], until: int) -> Iterator[Effect]:
        """Yield the effects of an entry, but raise RepeatLimitError when the same window repeats too often."""
        repeats = 0
        with self._attributed():
            for effect in effects:
                if self._max_repeats is not None and isinstance(effect, Activation):
                    repeats = 0 if effect.window.get_new() else repeats + 1
                    if repeats > self._max_repeats:
                        raise RepeatLimitError(
                            f"Storm's semantics would show the same window more than max_repeats={self._max_repeats} times in "
                            f"one turn: no new tuple in the gap before {effect.window.end_timestamp}, W is {until}; raise "
                            'max_repeats, or use semantics="lossless", which fires only with a new tuple'
                        )
                self._note(effect)
                yield effect

    def _note(self, effect: Effect) -> None:
        """Update the tally with an effect. Cost: O(its tuples), and for an expiry O(queue), as for Storm's own scan."""
        if isinstance(effect, Activation):
            self._tally.fired += 1
            first_shown = self._previous - self._shown
            self._tally.shown += len(first_shown)
            self._shown |= first_shown
        elif isinstance(effect, Expired):
            gone = self._shown - self._queue.keys()
            self._shown -= gone
            self._tally.expired += effect.count
            self._tally.skipped += effect.count - len(gone)

    @contextmanager
    def _attributed(self) -> Iterator[None]:
        """Convert exceptions of the bolt's policies to an error that names the bolt; Storm's own policies raise none."""
        try:
            yield
        except (WindowingError, AssertionError):
            raise
        except Exception as problem:
            until = f", W being {self.watermark}" if self.watermark else ""
            raise fault(self._component, f"its eviction= or trigger={until}", problem) from problem

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        with self._attributed():
            super().shutdown()

    def next_deadline_ms(self) -> int | None:
        """Return the next tick of a user's own trigger, as the clock's time less 1 ms; None if it does not say."""
        if self._users_trigger is None:
            return None
        with self._attributed():
            wanted_ms = next_tick_ms(self._users_trigger)
        return None if wanted_ms is None else wanted_ms - 1

    def late_below(self) -> int | None:
        """Return W; a tuple with a smaller timestamp is late."""
        return self.watermark

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine's state as plain data, always with the tuples."""
        with self._attributed():
            saved = super().snapshot()
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": "StormMachine",
            **saved,
            "watermark": self.watermark,
            "tally": asdict(self._tally),
            "shown": [event in self._shown for event in self._queue],
            "ticked": self._ticked_ms,
        }

    def restore(self, data: dict[str, Any]) -> None:
        refuse_foreign(data, "StormMachine")
        super().restore(data)
        self.watermark = data["watermark"]
        self._tally = Tally(*map(data["tally"].__getitem__, Tally.__slots__))
        self._ticked_ms = data.get("ticked")
        self._shown = {event for event, was in zip(self._queue, data["shown"], strict=True) if was}

    def _restore_policies(self, eviction: Any, trigger: Any) -> None:
        if self._is_storms_own:
            super()._restore_policies(eviction, trigger)  # what they raise is damage
        else:
            with self._attributed():
                super()._restore_policies(eviction, trigger)

    def check(self) -> None:
        super().check()
        # `_shown` contains queued events only.
        assert self._shown <= self._queue.keys()
