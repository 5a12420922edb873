"""StormMachine: Storm's own window manager and policies, as the machine of an executor.

    length   Count      CountEvictionPolicy     event time: WatermarkCountEvictionPolicy
             Duration   TimeEvictionPolicy                  WatermarkTimeEvictionPolicy
    slide    Count      CountTriggerPolicy                  WatermarkCountTriggerPolicy
             Duration   TimeTriggerPolicy                   WatermarkTimeTriggerPolicy

Laws: windows, expiries and losses are Storm's; what is lost is counted as skipped, so accepted == shown + skipped + pending. There
are no keys and no drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from windowing.core.config import Semantics, WindowConfig
from windowing.core.events import Activation, Effect, Event, Expired
from windowing.core.eviction import (
    CountEvictionPolicy,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.core.faults import fault
from windowing.core.guard import Guard
from windowing.core.measures import Count, Duration
from windowing.core.storm import StormWindowManager
from windowing.core.track import Tally
from windowing.core.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
    next_tick_ms,
    tick_interval_ms,
)
from windowing.errors import ConfigError, RepeatLimitError, SnapshotError, WindowingError, shown

__all__ = ["StormMachine", "storm_policies"]

SNAPSHOT_FORMAT = 1


def storm_policies(config: WindowConfig) -> tuple[EvictionPolicy, TriggerPolicy]:
    """Return the policies of a definition, chosen as Storm's executor does; the user's own where there are some."""
    return _eviction(config), _trigger(config)


def _eviction(config: WindowConfig) -> EvictionPolicy:
    if config.eviction is not None:
        own: EvictionPolicy = config.eviction()
        return own
    if isinstance(config.length, Duration):
        if config.event_time:
            return WatermarkTimeEvictionPolicy(config.length.ms, config.lag_ms)
        return TimeEvictionPolicy(config.length.ms)
    assert config.length is not None
    return (WatermarkCountEvictionPolicy if config.event_time else CountEvictionPolicy)(config.length.value)


def _trigger(config: WindowConfig) -> TriggerPolicy:
    if config.trigger is not None:
        own: TriggerPolicy = config.trigger()
        return own
    if isinstance(config.slide, Duration):
        return (WatermarkTimeTriggerPolicy if config.event_time else TimeTriggerPolicy)(config.slide.ms)
    return (WatermarkCountTriggerPolicy if config.event_time else CountTriggerPolicy)(config.slide.value)


class StormMachine:
    """A StormWindowManager behind the Machine protocol, with a tally.

    `manager` is for the other manager, StormStatefulWindowManager, whose windows do not tell what they showed.

    >>> from windowing.core.measures import count
    >>> machine = StormMachine(WindowConfig.of(length=count(2), slide=count(2), semantics="storm"))
    >>> for at, effect in machine.add_batch("abc", [1, 1, 2]):
    ...     print(at, effect.window.get() if isinstance(effect, Activation) else effect)
    1 ['a', 'b']
    >>> machine.tally.pending
    1
    """

    def __init__(
        self,
        config: WindowConfig,
        manager: type[StormWindowManager] = StormWindowManager,
        component: str = "bolt",
    ) -> None:
        if config.semantics is not Semantics.STORM:
            raise ConfigError(
                "a StormMachine loses what Storm loses, and the definition says semantics='lossless'; say 'storm', or make the "
                "machine by machine_for(config) (windowing.core.machines), which chooses it"
            )
        self.tally = Tally()
        self._component = component
        self._watermark = 0
        with self._blamed():
            eviction, trigger = storm_policies(config)
            self._manager = manager(eviction, trigger)
        self._own_trigger = None if config.trigger is None else trigger
        self.tick_interval_ms = None if config.trigger is None else tick_interval_ms(trigger)
        """How often a driver has to make it tick, None where its trigger says when, or where the slide does."""
        self.guard = Guard()
        # Storm shows the last N tuples again at every end of a gap, however long it is.
        repeats = config.event_time and isinstance(config.length, Count) and isinstance(config.slide, Duration)
        # An iterator window does not know its new tuples, so nothing tells that it is a repeat.
        self._max_repeats = config.max_repeats if repeats and manager is StormWindowManager else None
        self._shown: set[Event] = set()  # of the queued events, those that were in a window

    @property
    def watermark(self) -> int | None:
        """W of the last turn; Storm's begins at 0."""
        return self._watermark

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple."""
        with self._blamed():
            effects = self._manager.add(payload, timestamp)
        self.tally.accepted += 1
        return self.guard.run(self._told(effects))

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; exactly what one `add` for each gives."""
        with self._blamed():
            effects = self._manager.add_batch(payloads, timestamps)
        self.tally.accepted += len(payloads)
        return self.guard.run(self._told_at(effects), positions=True)

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Tell the policies that no tuple with a smaller timestamp is expected."""
        with self._blamed():
            effects = self._manager.advance(watermark)
        self._watermark = watermark
        return self.guard.run(self._told(self._limited(effects, watermark)))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Fire what is due by the clock."""
        with self._blamed():
            effects = self._manager.tick(now_ms)
        return self.guard.run(self._told(effects))

    def drain(self) -> Iterator[Effect]:
        """Raise ConfigError: Storm has no end of a stream."""
        self._manager.drain()

    def _limited(self, effects: Iterator[Effect], watermark: int) -> Iterator[Effect]:
        """Pass the effects of a turn, but raise RepeatLimitError once the same window came too often."""
        repeats = 0
        for effect in effects:
            if self._max_repeats is not None and isinstance(effect, Activation):
                repeats = 0 if effect.window.get_new() else repeats + 1
                if repeats > self._max_repeats:
                    raise RepeatLimitError(
                        f"Storm's semantics would show the same window more than max_repeats={self._max_repeats} times in one "
                        f"turn: no new tuple in the gap before {effect.window.end_timestamp}, W is {watermark}; raise "
                        'max_repeats, or use semantics="lossless", which fires only with a new tuple'
                    )
            yield effect

    # -- the tally -----------------------------------------------------------------------------------------------------

    def _told(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        with self._blamed():
            for effect in effects:
                self._note(effect)
                yield effect

    def _told_at(self, effects: Iterable[tuple[int, Effect]]) -> Iterator[tuple[int, Effect]]:
        with self._blamed():
            for at, effect in effects:
                self._note(effect)
                yield at, effect

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Name the bolt in what its policies raise; Storm's own raise nothing."""
        try:
            yield
        except (WindowingError, AssertionError):
            raise
        except Exception as problem:
            until = f", W being {self._watermark}" if self._watermark else ""
            raise fault(self._component, f"its eviction= or trigger={until}", problem) from problem

    def _note(self, effect: Effect) -> None:
        """Count what an effect tells. Cost: O(its tuples), and for an expiry O(queue), as for Storm's own scan."""
        if isinstance(effect, Activation):
            self.tally.fired += 1
            fresh = self._manager.last_window - self._shown
            self.tally.shown += len(fresh)
            self._shown |= fresh
        elif isinstance(effect, Expired):
            gone = self._shown - self._manager.queued
            self._shown -= gone
            self.tally.expired += effect.count
            self.tally.skipped += effect.count - len(gone)

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the clock's time, less 1 ms, of the tick that a trigger of the user's own wants next; None if it does not say."""
        if self._own_trigger is None:
            return None
        with self._blamed():
            wanted_ms = next_tick_ms(self._own_trigger)
        return None if wanted_ms is None else wanted_ms - 1

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed."""
        self.guard.enter()
        self._manager.enter()

    def late_below(self) -> int | None:
        """Return W: a tuple below it is late."""
        return self._watermark

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data, the tuples always with it."""
        self.guard.enter()
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": "StormMachine",
            "watermark": self._watermark,
            "tally": self.tally.snapshot(),
            "shown": [event in self._shown for event in self._manager.queued],
            "manager": self._manager.snapshot(),
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format."""
        if data.get("format") != SNAPSHOT_FORMAT or data.get("machine") != "StormMachine":
            raise SnapshotError(
                f"a StormMachine snapshot of format {SNAPSHOT_FORMAT} was wanted, got {shown(data.get('machine'))} of "
                f"format {shown(data.get('format'))}; read it with the version of the library that wrote it"
            )
        self._manager.restore(data["manager"])
        self._watermark = data["watermark"]
        self.tally.restore(data["tally"])
        self._shown = {event for event, was in zip(self._manager.queued, data["shown"], strict=True) if was}
        self.guard.reset()

    def check(self) -> None:
        """Assert what "correct" means."""
        self._manager.check()
        # What was shown and is still queued is remembered, and nothing else.
        assert self._shown <= self._manager.queued
