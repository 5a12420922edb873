"""The tasks of LocalCluster: their common base, ackers, and bolts without windows.

    Task        open -> step, step, ... (messages of the inbox) + tick (what is due by the clock) -> close
      AckerTask            the tuple trees of a part of the roots
      ComponentTask        the common base of spout and bolt tasks
        SpoutTask          spouts.py
        BoltTask           bolts that ack and fail tuples themselves; basic bolts, whose tuples are acked when execute returns, and
                           failed by a FailedException
          ColumnarBoltTask bolts with `columnar=`, which take batches of tuples
        WindowedBoltTask   windowed.py

Laws
- A failed tuple is emitted again by its spout, or becomes a dead letter at once.
- A task acts only in `open`, `step`, `tick`, `drain` and `close`, which the loop calls; none of them waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from windowing.acking.acker import Acked, AckedRoots, Acker, Anchors, Failed, Reason
from windowing.errors import FailedException, ReportedFailedException, describe_error
from windowing.local.router import ACKS, FAIL, RESET, Delivery, Outbox, Router
from windowing.schema.checks import DEFAULT_STREAM, StormNames
from windowing.schema.rows import rows_of
from windowing.schema.tuples import SYSTEM, TICK, Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.topology.bolts import ComponentKind
from windowing.topology.components import TopologyContext
from windowing.topology.config import TopologyConfig
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.plan import Component
from windowing.topology.user_code import BoltCaller, EmittedRow, not_handed

_log = logging.getLogger("windowing")
NO_TIMEOUT_MS = 1 << 50
"""The timeout of tuple trees where messages have none: a deadline that is years away is not waited for."""
_NO_ACK = object()
_TICK_ORIGIN = Origin(SYSTEM, -1, Fields("secs"), TICK)


class Task:
    """One task of one component. `id` is unique in the topology, `context.task_index` within the component."""

    def __init__(self, router: Router, context: TopologyContext, id: int, inbox: deque[Any]) -> None:
        self.router = router
        self.context = context
        self.id = id
        self.inbox = inbox

    def open(self) -> None:
        """Open the task, before its first step."""

    def step(self, limit: int | None) -> bool:
        """Handle at most `limit` messages of the inbox (None: all that are there now); return whether there was one."""
        inbox = self.inbox
        if not inbox:
            return False
        if limit is None or limit >= len(inbox):
            arrived = list(inbox)
            inbox.clear()
        else:
            arrived = [inbox.popleft() for _ in range(limit)]
        self.arrive(arrived)
        return True

    def arrive(self, arrived: list[Any]) -> None:
        for message in arrived:
            self.handle(message)

    def handle(self, message: Any) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        """Do what is due by the router's time; called when `next_deadline_ms` has come."""

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` has something to do, None if there is no such time."""
        return None

    def close(self) -> None:
        """Close the task and release what it holds."""


class AckerTask(Task):
    """Acker number `index` of the router. `spouts` are the inboxes of the spout tasks by task id."""

    def __init__(
        self, router: Router, id: int, index: int, config: TopologyConfig, spouts: Mapping[int, deque[Any]]
    ) -> None:
        inbox = router.ackers[index]
        super().__init__(router, TopologyContext("__acker", index, len(router.ackers), config), id, inbox)
        self.acker = Acker(tree_timeout_ms(config), config.acker_rotation)
        self.spouts = spouts

    def arrive(self, arrived: list[Any]) -> None:
        """Handle messages; successive acks of a component as one, because a bolt that acks by itself sends one for each tuple."""
        for sender, run in groupby(arrived, lambda message: message[2] if message[0] == ACKS else _NO_ACK):
            messages = list(run)
            if sender is not _NO_ACK and len(messages) > 1:
                messages = [(ACKS, [pair for _, pairs, _ in messages for pair in pairs], sender)]
            for message in messages:
                self.handle(message)

    def handle(self, message: Any) -> None:
        kind, acker, now_ms = message[0], self.acker, self.router.now_ms
        if kind == ACKS:
            for task, roots in acker.ack_all(message[1], now_ms, message[2]).items():
                self.spouts[task].append(AckedRoots(roots))
        elif kind == FAIL:
            failed = acker.fail(message[1], now_ms, message[2])
            self._notify(effect._replace(reason=message[3]) for effect in failed if isinstance(effect, Failed))
        elif kind == RESET:
            self._notify(acker.reset_timeout(message[1], now_ms))
        elif effects := acker.init_all(message[1], message[2], now_ms):
            self._notify(effects)

    def tick(self) -> None:
        self.step(None)  # acks that arrived in time count before timeouts do
        self._notify(self.acker.tick(self.router.now_ms))

    def _notify(self, effects: Iterable[Acked | Failed]) -> None:
        for effect in effects:
            self.spouts[effect.task].append(AckedRoots([effect.root]) if isinstance(effect, Acked) else effect)

    def next_deadline_ms(self) -> int | None:
        return self.acker.next_deadline_ms()


def tree_timeout_ms(config: TopologyConfig) -> int:
    """Return the timeout of tuple trees."""
    return config.message_timeout_ms if config.enable_message_timeouts else NO_TIMEOUT_MS


class TaskParts(NamedTuple):
    """The parts from which a task of a component is built."""

    router: Router
    context: TopologyContext
    inbox: deque[Any]
    outbox: Outbox
    component: Component


class ComponentTask(Task):
    """A task of a spout or bolt. It emits through its outbox."""

    def __init__(self, parts: TaskParts) -> None:
        super().__init__(parts.router, parts.context, parts.context.task, parts.inbox)
        self.outbox, self.component = parts.outbox, parts.component

    def report_error(self, error: BaseException) -> None:
        self.router.report(self.context.component, self.context.task_index, error)

    def send_dead_letter(self, letter: DeadLetter, anchors: Sequence[Anchors] = ()) -> None:
        """Add a dead letter to the result, and emit it on the component's dead-letter stream if a bolt reads that."""
        self.router.result.dead_letters.append(letter)
        routes = self.outbox[DEAD_LETTERS]
        if routes.is_read:
            routes.send(letter.row(), anchors)


class BoltTask(ComponentTask):
    """A bolt without windows; the driver acks its tuples unless it `acks_by_itself`. It gets ticks if its settings ask for them.

    Acks of a basic bolt are sent at the end of a step, and before a fail.
    """

    def __init__(self, parts: TaskParts, tick_ms: int | None) -> None:
        super().__init__(parts)
        self.caller = BoltCaller(parts.component.declaration)
        self.acks_by_itself = parts.component.kind is ComponentKind.BOLT
        self._tick_ms = tick_ms
        self._next_tick_ms: int | None = None
        self._lost: Delivery | None = None
        self._call: Callable[[Delivery], Any]
        self._rows_of: Callable[[Any], Iterable[Any]]
        self._send: Callable[[Any, Sequence[Anchors]], object] = self._send_emitted

    def open(self) -> None:
        self.caller.open(self.context, self.collector())
        by_return = self.caller.by_return()
        self._call, self._rows_of = by_return or (self.caller.emitted, iter)
        if by_return is not None:
            self._send = self.outbox[DEFAULT_STREAM].send
        if self._tick_ms is not None:
            self._next_tick_ms = self.router.now_ms + self._tick_ms

    def collector(self) -> BoltCollector | None:
        """Return the collector for the bolt's `prepare`; None for a bolt whose emits are collected per call."""
        return BoltCollector(self) if self.acks_by_itself else None

    def arrive(self, arrived: list[Delivery]) -> None:
        call, rows_of, send = self._call, self._rows_of, self._send
        done: list[Delivery] = []
        for message in arrived:
            anchors = message._anchors
            try:
                for row in rows_of(call(message)):
                    send(row, () if anchors is None else (anchors,))
            except FailedException as problem:
                self.ack_all(done)
                done = []
                self.failed((message,), problem)
                continue
            except BaseException as problem:
                raise self.caller.attributed(problem, message) from problem
            if not self.acks_by_itself:
                done.append(message)
        self.ack_all(done)

    def _send_emitted(self, row: EmittedRow, anchors: Sequence[Anchors]) -> None:
        self.outbox[row.stream].send(row.values, anchors, row.task)

    def failed(self, messages: Sequence[Delivery], problem: FailedException) -> None:
        """Fail the tuples of a call in which the bolt raised FailedException."""
        if isinstance(problem, ReportedFailedException):
            self.report_error(problem)
        for message in messages:
            if not self.is_settled(message):
                self.fail(message, describe_error(problem))
            self.lose(message, problem)

    def ack_all(self, done: Sequence[Delivery]) -> None:
        """Ack the tuples of a basic bolt."""
        acked = [message._anchors for message in done if message._anchors is not None]
        self.router.ack_all(acked, self.context.component)

    def ack(self, message: Delivery) -> None:
        self.router.ack(message._anchors, self.context.component)

    def fail(self, message: Delivery, reason: str = Reason.FAILED) -> None:
        self.router.fail(message._anchors, self.context.component, reason)

    def lose(self, message: Delivery, error: BaseException | str) -> None:
        """Send a failed tuple to the dead letters, once, if it is untracked and so no spout retries it."""
        if message._anchors is not None or message is self._lost:
            return
        self._lost = message
        context = self.context
        if message._origin.component == SYSTEM:
            self.report_error(error if isinstance(error, BaseException) else FailedException(f"a tick: {error}"))
            return
        self.send_dead_letter(
            DeadLetter(component=context.component, task=context.task_index, error=error, tuples=[message])
        )

    def is_settled(self, message: Delivery) -> bool:
        return message._anchors is None or message._anchors.settled

    def tick(self) -> None:
        """Put the tick that is due into the inbox; several overdue ticks become one."""
        assert self._tick_ms is not None
        assert self._next_tick_ms is not None
        self._send_tick()
        behind_ms = self.router.now_ms - self._next_tick_ms
        self._next_tick_ms += self._tick_ms * (1 + behind_ms // self._tick_ms)

    def last_tick(self) -> None:
        """Put one more tick into the inbox at the end of the input, since a bolt with ticks may hold rows until the next tick."""
        if self._next_tick_ms is not None:
            self._send_tick()

    def _send_tick(self) -> None:
        assert self._tick_ms is not None
        self.inbox.append(Delivery((self._tick_ms / 1000,), _TICK_ORIGIN, None))

    def next_deadline_ms(self) -> int | None:
        return self._next_tick_ms

    def close(self) -> None:
        before = sum(routes.waiting for routes in self.outbox.values())
        self.caller.close()
        lost = sum(routes.waiting for routes in self.outbox.values()) - before
        if lost:
            _log.warning(
                "%s emitted in cleanup, when the run was over, and no bolt gets the tuples (%d); emit them in execute: a bolt "
                "with tick_tuple_freq gets one more tick at the end of the input",
                self.context.called("bolt"),
                lost,
            )


class ColumnarBoltTask(BoltTask):
    """A task whose bolt takes batches. It gets no ticks. `schemas` are the fields of its inputs, by component and stream.

        inbox  a b c | d | e f        untracked rows of one stream: one batch        a tracked tuple: a batch of its own

    Rows that the bolt emits for a batch are anchored to all tuples of the batch. A tracked tuple has its own tree, so it is a batch
    of its own. With `acker_executors=0` no tuple is tracked, and a batch is a run of tuples of one stream. Cost: one call of the
    bolt per batch, and the conversion of each row to Arrow and back.
    """

    def __init__(self, parts: TaskParts, schemas: Mapping[tuple[str, str], Schema]) -> None:
        from windowing.columnar.bolts import ColumnarCaller, table_of  # needs Arrow

        super().__init__(parts, None)
        self._schemas, self._table_of = schemas, table_of
        self._columnar = self.caller = ColumnarCaller(parts.component.declaration)

    def arrive(self, arrived: list[Delivery]) -> None:
        for _, run in groupby(
            arrived, lambda one: (one._origin.component, one._origin.stream, one._anchors and id(one))
        ):
            self._take(list(run))

    def _take(self, batch: list[Delivery]) -> None:
        origin = batch[0]._origin
        table = self._table_of([message._values for message in batch], self._schemas[origin.component, origin.stream])
        try:
            emitted = self._columnar.execute_batch(table, origin.stream, lambda *batch: list(rows_of(*batch)))
        except FailedException as problem:
            self.failed(batch, problem)
            return
        anchors = [message._anchors for message in batch if message._anchors is not None]
        for stream, rows in emitted:
            for row in rows:
                self.outbox[stream].send(row, anchors)
        self.ack_all(batch)


class BoltCollector(StormNames):
    """The collector of a Bolt: emits, acks and fails. Source: Storm's `OutputCollector`."""

    __slots__ = ("_task",)

    def __init__(self, task: BoltTask) -> None:
        self._task = task

    def emit(
        self, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit one row anchored to these tuples; return the ids of the tasks that receive it."""
        if stray:
            raise self._task.caller.streams.refuse((values, *stray), "anchors")
        checked = self._task.caller.streams.checked(values, stream, False)
        return self._task.outbox[stream].send(checked, _anchors_of(anchors))

    def emit_direct(
        self, task: int, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one row to the task with this id, on a stream that is declared direct."""
        if stray:
            raise self._task.caller.streams.refuse((values, *stray), "anchors", "emit_direct")
        checked = self._task.caller.streams.checked(values, stream, True)
        self._task.outbox[stream].send(checked, _anchors_of(anchors), task)

    def ack(self, tuple: Tuple) -> None:
        """Ack the tuple. Raises AckError if it was acked or failed before."""
        self._task.ack(_delivered(tuple))

    def fail(self, tuple: Tuple) -> None:
        """Fail the tuple and its trees. Raises AckError if it was acked or failed before."""
        message = _delivered(tuple)
        self._task.fail(message)
        self._task.lose(message, "failed")

    def reset_timeout(self, tuple: Tuple) -> None:
        self._task.router.reset_timeout(_delivered(tuple)._anchors)

    def report_error(self, error: BaseException) -> None:
        """Add an error to the result of the run."""
        self._task.report_error(error)


def _delivered(tuple: Tuple) -> Delivery:
    if not isinstance(tuple, Delivery):
        raise not_handed(tuple)
    return tuple


def _anchors_of(tuples: Tuple | Iterable[Tuple]) -> list[Anchors]:
    if tuples is None:
        raise not_handed(tuples)
    given: Iterator[Tuple] = iter((tuples,) if isinstance(tuples, Tuple) else tuples)
    found = [anchors for tuple in given if (anchors := _delivered(tuple)._anchors) is not None]
    for anchors in found:
        anchors.require_open()
    return found


def unsettled(tuples: Iterable[Any]) -> list[Anchors]:
    """Return the anchors of the tuples that were neither acked nor failed; a new tuple can be anchored to these."""
    return [t._anchors for t in tuples if t._anchors is not None and not t._anchors.settled]
