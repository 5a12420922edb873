"""WindowedBoltTask: a windowed bolt in a cluster. Its tuples are acked when they expire from their last window.

    inbox --> WindowedBoltExecutor --Activation--> the bolt: what it emits is anchored to all tuples of the window
                                   --Late-------> the late stream, anchored to the late tuple; then that is acked
                                   --Expired----> acked, unless it failed before

Turns: over event time every `watermark_interval` of the clock, or when the loop says so (`by_hand`: after each batch); over
the clock when a window is due. Source: Storm's `WindowedBoltExecutor`, its half with emits, acks and timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from windowing.core.config import OnError
from windowing.core.events import Activation, Effect, Expired
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, FailedException, ReportedFailedException
from windowing.runtime.hub import DeadWindow, Delivery, Hub, Outbox, ReportedError
from windowing.runtime.rows import key_of, source_of, timestamp_ms
from windowing.runtime.tasks import Task, unsettled
from windowing.runtime.window_timer import WindowTimer
from windowing.topology.context import TaskContext
from windowing.topology.plan import Component
from windowing.topology.runner import BoltRunner
from windowing.topology.tuples import Origin

__all__ = ["WindowedBoltTask"]


class WindowedBoltTask(Task):
    """One task of a windowed bolt. Cost: that of the windows; an emit costs as many edges as its window has tuples."""

    def __init__(
        self,
        hub: Hub,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        outbox: Outbox,
        component: Component,
        by_hand: bool = False,
    ) -> None:
        super().__init__(hub, context, id, inbox)
        assert component.window is not None
        self.bolt = replace(component.window, name=component.id)
        self.config = self.bolt.config
        self._streams = {
            (found.component, found.stream): f"{found.component}:{found.stream}" for found in component.inputs
        }
        self.executor = WindowedBoltExecutor(
            self.config, tuple(self._streams.values()), component.id, keep_tuples=bool(hub.ackers)
        )
        self.timer = WindowTimer(self.executor)
        self._by_hand = by_hand and self.config.event_time
        self._outbox = outbox
        self._runner = BoltRunner(self.bolt)
        self._names: dict[Origin, str] = {}
        hub.windowed.setdefault(component.id, []).append(self)

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._runner.open(self.context)
        self.timer.start(self.hub.now_ms)

    def step(self, limit: int | None) -> bool:
        """Let what lies in the inbox arrive, in order."""
        inbox = self.inbox
        if not inbox:
            return False
        if limit is None or limit >= len(inbox):
            arrived = list(inbox)
            inbox.clear()
        else:
            arrived = [inbox.popleft() for _ in range(limit)]
        self._arrive(arrived)
        return True

    def tick(self) -> None:
        """Make a turn if one is due, after what arrived before it."""
        if not self._by_hand and self.timer.due(self.hub.now_ms):
            self.step(None)
            self.turn()

    def turn(self) -> None:
        """Make a watermark turn (over the clock: a tick of it). By hand the bolt's tasks have one watermark, as on Spark:
        what one of them was handed holds for all.
        """
        if self._by_hand:
            for other in self.hub.windowed[self.context.component]:
                self.executor.generator.learn(other.executor.generator)
        self.executor.set_clock(self.hub.now_ms)
        self.timer.turned(self.hub.now_ms)
        self._perform(self.executor.turn())

    def drain(self) -> None:
        """End the input: fire the last windows too, let everything expire."""
        self.step(None)
        self.executor.set_clock(self.hub.now_ms)
        self._perform(self.executor.drain())

    def next_deadline_ms(self) -> int | None:
        return None if self._by_hand or self.executor.closed else self.timer.next_deadline_ms()

    def close(self) -> None:
        self._runner.close()

    # -- the work ------------------------------------------------------------------------------------------------------

    def _arrive(self, arrived: list[Delivery]) -> None:
        config, executor = self.config, self.executor
        timestamp, key, source = config.timestamp, config.key, config.source
        timestamps = None if timestamp is None else [timestamp_ms(row, timestamp) for row in arrived]
        keys = None if key is None else [key_of(row, key) for row in arrived]
        sources = None if source is None else [source_of(row, source) for row in arrived]
        executor.set_clock(self.hub.now_ms)
        if not config.event_time and not executor.closed and self.timer.due(self.hub.now_ms):
            self.turn()
        stream = self._streams_of(arrived)
        effects = executor.add_batch(arrived, timestamps, stream=stream, keys=keys, sources=sources)
        self._perform(effect for _, effect in effects)

    def _streams_of(self, arrived: list[Delivery]) -> str | Sequence[str]:
        if len(self._streams) == 1:
            return next(iter(self._streams.values()))
        return [self._streams[row._origin.component, row._origin.stream] for row in arrived]

    def _perform(self, effects: Iterator[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Activation):
                self._fire(effect.window)
            elif isinstance(effect, Expired):
                for anchors in unsettled(effect.get() or ()):
                    self.hub.ack(anchors, self.context.component)
            else:
                self._late(effect.payloads, effect.reason.value)
        self.hub.result.counts[self.context.component] = self.executor.counts()

    def _fire(self, window: TupleWindow) -> None:
        try:
            outcome = self._runner.attempt(window)
        except BoltError as error:
            if not isinstance(error.__cause__, FailedException):
                raise
            self._fail(window, error)
            return
        if outcome.error is not None:
            self._deal_with(window, outcome.error)
            return
        if outcome.emissions:
            anchors = unsettled(window.get()) if self.hub.ackers else ()
            for stream, values in outcome.emissions:
                self._outbox.send(stream, values, anchors)

    def _deal_with(self, window: TupleWindow, error: BoltError) -> None:
        """Do with a window on which the bolt failed what `on_error` says."""
        if self.config.on_error is OnError.FAIL:
            self._fail(window, error)
        elif self.config.on_error is OnError.DEAD_LETTER:
            rows = [row.as_dict() for row in window.get()]
            dead = DeadWindow(self.bolt.name, window.start_timestamp, window.end_timestamp, window.key, error, rows)
            self.hub.result.dead_windows.append(dead)
        else:
            self._report(error)

    def _fail(self, window: TupleWindow, error: BoltError) -> None:
        """Fail each tuple of the window, once; it stays in its other windows, and is not acked later."""
        if not isinstance(error.__cause__, FailedException) or isinstance(error.__cause__, ReportedFailedException):
            self._report(error)
        for anchors in unsettled(window.get()):
            self.hub.fail(anchors, self.context.component)

    def _report(self, error: BoltError) -> None:
        self.hub.result.errors.append(ReportedError(self.context.component, self.context.task, error))

    def _late(self, rows: Sequence[Delivery], reason: str) -> None:
        where = (self.context.component, reason)
        self.hub.result.late[where] = self.hub.result.late.get(where, 0) + len(rows)
        for row in rows:
            anchors = row._anchors
            if self.config.late_stream is not None:
                values = (*row.get_values(), reason)
                self._outbox.send(self.config.late_stream, values, () if anchors is None else (anchors,))
            self.hub.ack(anchors, self.context.component)
