"""WindowedBoltTask: a windowed bolt in a cluster. Its tuples are acked when they expire from their last window.

    inbox --> WindowedBoltExecutor --Activation--> the bolt: what it emits is anchored to all tuples of the window
                                   --Late-------> the late stream, anchored to the late tuple; then that is acked
                                   --Expired----> acked, unless it failed before

Turns: over event time every `watermark_interval` of the clock, or when the loop says so (`by_hand`: after each batch); over
the clock when a window is due. Windows that outlive the process are in kept_windows.py. Source: Storm's `WindowedBoltExecutor`, its
half with emits, acks and timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from windowing.core.config import OnError
from windowing.core.events import Activation, Effect, Expired, Late
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, FailedException, ReportedFailedException
from windowing.runtime.hub import Delivery, Hub, Outbox
from windowing.runtime.rows import key_of, source_of, timestamps_of
from windowing.runtime.shown import shown_to, with_tables
from windowing.runtime.tasks import Task, unsettled
from windowing.runtime.window_timer import WindowTimer
from windowing.topology.bolts import WindowedBolt
from windowing.topology.context import TaskContext
from windowing.topology.letters import DEAD_LETTERS, DeadLetter
from windowing.topology.plan import Component
from windowing.topology.runner import BoltRunner
from windowing.topology.stamps import warn_of
from windowing.topology.tuples import late_values

__all__ = ["Columns", "WindowedBoltTask", "streams_of"]


class Columns(NamedTuple):
    """What windows want to know of some tuples, as parallel lists; None where the definition names no such field.

    One text for the stream of all.
    """

    timestamps: list[int | None] | None
    streams: str | list[str]
    keys: list[Any] | None
    sources: list[str | None] | None


def streams_of(component: Component) -> dict[tuple[str, str], str]:
    """Return what an executor calls the streams that a bolt reads, by component and stream."""
    return {(found.component, found.stream): f"{found.component}:{found.stream}" for found in component.inputs}


class WindowedBoltTask(Task):
    """One task of a windowed bolt. Cost: that of the windows; an emit costs as many edges as its window has tuples.

    `executor` are its windows, in memory and as long as the process if left out.
    """

    def __init__(
        self,
        hub: Hub,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        outbox: Outbox,
        component: Component,
        by_hand: bool = False,
        *,
        executor: WindowedBoltExecutor | None = None,
    ) -> None:
        super().__init__(hub, context, id, inbox)
        assert component.window is not None
        self.bolt: WindowedBolt = replace(component.window, name=component.id)
        self.config = self.bolt.config
        self.by_hand = by_hand and self.config.event_time
        self.runner = BoltRunner(self.bolt)
        streams = tuple(streams_of(component).values())
        self.executor = executor or with_tables(
            WindowedBoltExecutor(self.config, streams, component.id, keep_tuples=bool(hub.ackers))
        )
        self.timer = WindowTimer(self.executor)
        self._streams = streams_of(component)
        late = component.outputs.get(self.config.late_stream or "")
        self._late_fields = () if late is None else late.schema.names[:-1]  # the last is the reason
        self._outbox = outbox
        self._passed: list[Delivery] = []
        self._warned = False
        self._peers: list[WindowedBoltTask] = hub.windowed.setdefault(component.id, [])
        self._peers.append(self)
        self._counts: dict[str, int] = {}

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.runner.open(self.context)
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
        if self.gate is None:
            self.arrive(arrived)
            return True
        for message in arrived:
            self.gate.take(message)
        self.let_in()
        return True

    def handle(self, message: Delivery) -> None:
        """Take a tuple that the gate let through."""
        self._passed.append(message)

    def let_in(self) -> None:
        """Let what the gate let through arrive, all at once."""
        if self._passed:
            passed, self._passed = self._passed, []
            self.arrive(passed)

    def checkpoint(self, checkpoint: Any) -> None:
        self.let_in()
        super().checkpoint(checkpoint)

    def tick(self) -> None:
        """Make a turn if one is due, after what arrived before it."""
        if not self.by_hand and self.timer.due(self.hub.now_ms):
            self.step(None)
            self.turn()

    def turn(self) -> None:
        """Make a watermark turn (over the clock: a tick of it). By hand the bolt's tasks have one watermark, as on Spark:
        what one of them was handed holds for all.
        """
        if self.by_hand:
            for other in self._peers:
                self.executor.generator.learn(other.executor.generator)
        self.timer.turned(self.hub.now_ms)
        self.perform(self.turned())

    def drain(self) -> None:
        """End the input: fire the last windows too, let everything expire."""
        self.step(None)
        self.perform(self.drained())

    def next_deadline_ms(self) -> int | None:
        return None if self.by_hand or self.executor.closed else self.timer.next_deadline_ms()

    def close(self) -> None:
        self.runner.close()

    # -- the work ------------------------------------------------------------------------------------------------------

    def arrive(self, arrived: list[Delivery]) -> None:
        """Offer tuples to the windows, in order."""
        executor = self.executor
        executor.set_clock(self.hub.now_ms)
        if not self.config.event_time and not executor.closed and self.timer.due(self.hub.now_ms):
            self.turn()
        self.perform(self.offered(arrived, self._columns(arrived)))

    def _columns(self, arrived: list[Delivery]) -> Columns:
        config = self.config
        key, source = config.key, config.source
        return Columns(
            None if config.timestamp is None else self._timestamps(arrived, config.timestamp),
            self._stream_of(arrived),
            None if key is None else [key_of(row, key) for row in arrived],
            None if source is None else [source_of(row, source) for row in arrived],
        )

    def _timestamps(self, arrived: list[Delivery], timestamp: str | Callable[[Any], Any]) -> list[int | None]:
        timestamps, problem = timestamps_of(arrived, timestamp, self.bolt.name, self.config.on_invalid)
        if problem is not None and not self._warned:
            self._warned = True
            warn_of(problem)
        return timestamps

    def _stream_of(self, arrived: list[Delivery]) -> str | list[str]:
        if len(self._streams) == 1:
            return next(iter(self._streams.values()))
        return [self._streams[row._origin.component, row._origin.stream] for row in arrived]

    def offered(self, arrived: list[Delivery], columns: Columns) -> Iterator[Any]:
        """Offer tuples to the windows; return the effects."""
        timestamps, stream, keys, sources = columns
        effects = self.executor.add_batch(arrived, timestamps, stream=stream, keys=keys, sources=sources)
        return (effect for _, effect in effects)

    def turned(self) -> Iterator[Any]:
        """Return the effects of a turn."""
        self.executor.set_clock(self.hub.now_ms)
        return self.executor.turn()

    def drained(self) -> Iterator[Any]:
        """Return the effects of the end of the input."""
        self.executor.set_clock(self.hub.now_ms)
        return self.executor.drain()

    def perform(self, effects: Iterator[Any]) -> None:
        """Do what the windows say, each before the next is taken."""
        for effect in effects:
            self.perform_one(effect)
        counts, before = self.executor.counts(), self._counts
        total = self.hub.result.counts.setdefault(self.context.component, dict.fromkeys(counts, 0))
        for name, count in counts.items():
            total[name] += count - before.get(name, 0)
        self._counts = counts

    def perform_one(self, effect: Effect) -> None:
        """Do what one effect says."""
        if isinstance(effect, Activation):
            self._fire(effect.window)
        elif isinstance(effect, Expired):
            self.expired(effect)
        else:
            assert isinstance(effect, Late)
            self._late(effect.payloads, effect.reason.value)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _fire(self, window: TupleWindow) -> None:
        try:
            outcome = self.runner.attempt(shown_to(self.config.columnar, window))
        except BoltError as error:
            if not isinstance(error.__cause__, FailedException):
                raise
            self.fail_window(window, error)
            return
        if outcome.error is not None:
            self._deal_with(window, outcome.error)
            return
        if outcome.emissions:
            anchors = self.anchors_of(window)
            for stream, values in outcome.emissions:
                self._outbox.send(stream, values, anchors)

    def anchors_of(self, window: TupleWindow) -> Sequence[Any]:
        """Return the anchors of what a window emits."""
        return unsettled(window.get()) if self.hub.ackers else ()

    def _deal_with(self, window: TupleWindow, error: BoltError) -> None:
        """Do with a window on which the bolt failed what `on_error` says."""
        if self.config.on_error is OnError.FAIL:
            self.fail_window(window, error)
        elif self.config.on_error is OnError.DEAD_LETTER:
            self._bury(window, error)
        else:
            self.report(error)

    def _bury(self, window: TupleWindow, error: BoltError) -> None:
        """Make a dead letter of a window, and send it to whoever reads it."""
        letter = DeadLetter.of_window(self.bolt.name, self.context.task_index, error, window)
        self.hub.result.dead_letters.append(letter)
        if self._outbox.is_read(DEAD_LETTERS):
            self._outbox.send(DEAD_LETTERS, letter.row(), self.anchors_of(window))

    def fail_window(self, window: TupleWindow, error: BoltError) -> None:
        """Fail each tuple of the window, once; it stays in its other windows, and is not acked later."""
        if not isinstance(error.__cause__, FailedException) or isinstance(error.__cause__, ReportedFailedException):
            self.report(error)
        rows = window.get()
        if any(row._anchors is not None for row in rows):
            self.fail(rows)
        else:
            self._bury(window, error)  # nothing of it is sent again

    def report(self, error: BaseException) -> None:
        """Keep an error for whoever looks at the result."""
        self.hub.report(self.context.component, self.context.task_index, error)

    def _late(self, rows: Sequence[Any], reason: str) -> None:
        where = (self.context.component, reason)
        self.hub.result.late[where] = self.hub.result.late.get(where, 0) + len(rows)
        late_stream = self.config.late_stream
        if late_stream is not None:
            for row in rows:
                delivery = self.delivery(row)
                values = (*late_values(delivery, self._late_fields), reason)
                self._outbox.send(late_stream, values, unsettled((delivery,)))
        self.ack(rows)

    # -- acks ----------------------------------------------------------------------------------------------------------

    def delivery(self, row: Any) -> Delivery:
        """Return the delivery that brought a tuple which was offered just now."""
        assert isinstance(row, Delivery)
        return row

    def expired(self, effect: Expired) -> None:
        """Settle tuples that no window will hold any more."""
        self.ack(effect.get() or ())

    def ack(self, rows: Iterable[Any]) -> None:
        """Ack the tuples that were neither acked nor failed."""
        for anchors in unsettled(rows):
            self.hub.ack(anchors, self.context.component)

    def fail(self, rows: Iterable[Any]) -> None:
        """Fail the tuples that were neither acked nor failed."""
        for anchors in unsettled(rows):
            self.hub.fail(anchors, self.context.component)
