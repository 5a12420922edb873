"""WindowTimer: when the windows of one executor want a turn, by the clock that drives them.

| windows over                        | a turn is due                                                              |
|-------------------------------------|----------------------------------------------------------------------------|
| event time                          | every `watermark_interval`                                                 |
| the clock                           | when the next window is, plus 1 ms: this millisecond may bring more tuples |
| the clock, Storm's, a Duration slide | every slide, whether a window is due or not                               |
| the clock, a trigger of one's own   | when it says so (`next_deadline_ms`), else every 100 ms                    |
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from windowing.core.config import Semantics
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.measures import Duration
from windowing.core.storm_machine import StormMachine

__all__ = ["WindowTimer"]


@runtime_checkable
class _Waking(Protocol):
    """A machine that knows when it has something to do."""

    def next_deadline_ms(self) -> int | None: ...


class WindowTimer:
    """Says when to call `turn` of an executor; whoever turns says so by `turned`."""

    __slots__ = ("_every_ms", "_executor", "_turned_ms")

    def __init__(self, executor: WindowedBoltExecutor) -> None:
        config = executor.config
        self._executor = executor
        self._turned_ms: int | None = None
        self._every_ms: int | None = None
        if config.event_time:
            self._every_ms = config.watermark_interval_ms
        elif config.semantics is Semantics.STORM and isinstance(config.slide, Duration):
            self._every_ms = config.slide.ms
        elif isinstance(executor.manager, StormMachine):
            self._every_ms = executor.manager.tick_interval_ms

    def start(self, now_ms: int) -> None:
        """Begin: the first interval is counted from now."""
        self._turned_ms = now_ms

    turned = start

    def next_deadline_ms(self) -> int | None:
        """Return the clock's time from which on a turn is due, None while there is nothing to wait for."""
        if self._every_ms is not None:
            return None if self._turned_ms is None else self._turned_ms + self._every_ms
        manager = self._executor.manager
        due = manager.next_deadline_ms() if isinstance(manager, _Waking) else None
        if due is None or self._turned_ms is None:
            return None if due is None else due + 1
        return max(due, self._turned_ms) + 1  # a trigger that always wants a tick gets one a millisecond

    def due(self, now_ms: int) -> bool:
        """Whether a turn is due."""
        deadline_ms = self.next_deadline_ms()
        return deadline_ms is not None and now_ms >= deadline_ms
