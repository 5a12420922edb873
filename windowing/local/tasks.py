"""The tasks of a cluster that acknowledge: what is common to all, ackers, and bolts that are no windowed ones.

    Task        open -> step, step, ... (what lies in the inbox) + tick (what time has brought) -> close
      AckerTask            the ledger of a part of the roots
      ComponentTask        what those of spouts and bolts have in common
        SpoutTask          spouts.py
        BoltTask           basic bolts: acked when execute returns, failed by a FailedException
          BasicBoltTask    the same for a batch, in one loop
          RichBoltTask     bolts that ack by themselves
        WindowedBoltTask   windowed.py

Laws
- A tuple that fails is sent again by its spout, or is a dead letter at once.
- A task does something only in `open`, `step`, `tick`, `drain`, `close`, all called by the loop; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from windowing.acking.acker import Acked, AckedRoots, Acker, Anchors, Failed
from windowing.errors import ConfigError, FailedException, ReportedFailedException, quote
from windowing.local.router import ACK, ACKS, FAIL, INIT, INITS, Delivery, Outbox, Router
from windowing.schema.checks import DEFAULT_STREAM, StormNames
from windowing.schema.tuples import SYSTEM, TICK, Fields, Origin, Tuple
from windowing.topology.components import TaskContext
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.plan import Component
from windowing.topology.user_code import BoltCaller

__all__ = [
    "AckerTask",
    "BasicBoltTask",
    "BoltCollector",
    "BoltTask",
    "ComponentTask",
    "RichBoltTask",
    "Task",
    "TaskParts",
    "unsettled",
]


_TICK_ORIGIN = Origin(SYSTEM, -1, Fields("secs"), TICK)


class Task:
    """One task of one component. `id` is unique in the topology, `context.task_index` counts within the component."""

    def __init__(self, router: Router, context: TaskContext, id: int, inbox: deque[Any]) -> None:
        self.router = router
        self.context = context
        self.id = id
        self.inbox = inbox

    def open(self) -> None:
        """Begin, before the first step."""

    def step(self, limit: int | None) -> bool:
        """Handle at most `limit` messages of the inbox (None: all that are there now); return whether there were any."""
        inbox = self.inbox
        count = len(inbox) if limit is None else min(limit, len(inbox))
        for _ in range(count):
            self.handle(inbox.popleft())
        return count > 0

    def handle(self, message: Any) -> None:
        """Handle one message."""
        raise NotImplementedError

    def tick(self) -> None:
        """Do what is due by the router's time."""

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, None if nothing is waited for."""
        return None

    def close(self) -> None:
        """End."""


class AckerTask(Task):
    """One acker; `spouts` are the inboxes of the spout tasks by their ids."""

    def __init__(self, router: Router, context: TaskContext, id: int, inbox: deque[Any], acker: Acker) -> None:
        super().__init__(router, context, id, inbox)
        self.acker = acker
        self.spouts: dict[int, deque[Any]] = {}

    def handle(self, message: Any) -> None:
        kind, acker, now_ms = message[0], self.acker, self.router.now_ms
        effects: Iterable[Acked | Failed]
        if kind == ACKS:
            for task, roots in acker.ack_all(message[1], now_ms, message[2]).items():
                self.spouts[task].append(AckedRoots(roots))
            return
        if kind == INITS:
            effects = acker.init_all(message[1], message[2], now_ms)
        elif kind == ACK:
            effects = acker.ack(message[1], message[2], now_ms, message[3])
        elif kind == INIT:
            effects = acker.init(message[1], message[2], message[3], now_ms)
        elif kind == FAIL:
            effects = acker.fail(message[1], now_ms, message[2])
        else:
            effects = acker.reset_timeout(message[1], now_ms)
        self._tell(effects)

    def tick(self) -> None:
        self.step(None)  # what was acked in time is not failed because the loop was slow
        self._tell(self.acker.tick(self.router.now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.acker.next_deadline_ms()

    def _tell(self, effects: Iterable[Acked | Failed]) -> None:
        for effect in effects:
            self.spouts[effect.task].append(effect)


class TaskParts(NamedTuple):
    """What a task of a component is made of."""

    router: Router
    context: TaskContext
    id: int
    inbox: deque[Any]
    outbox: Outbox
    component: Component


class ComponentTask(Task):
    """A task of a component of a topology: what lies in its inbox arrives as a batch, what it emits goes into its outbox."""

    def __init__(self, parts: TaskParts) -> None:
        super().__init__(parts.router, parts.context, parts.id, parts.inbox)
        self.outbox, self.component = parts.outbox, parts.component

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
        self.arrive(arrived)
        return True

    def arrive(self, arrived: list[Any]) -> None:
        """Handle messages, in order."""
        for message in arrived:
            self.handle(message)

    def report_error(self, error: BaseException) -> None:
        """Keep an error for whoever looks at the result."""
        self.router.report(self.context.component, self.context.task_index, error)

    def send_dead_letter(self, letter: DeadLetter, anchors: Sequence[Anchors] = ()) -> None:
        """Keep a dead letter, and send it to whoever reads those of the component."""
        self.router.result.dead_letters.append(letter)
        if self.outbox.is_read(DEAD_LETTERS):
            self.outbox.send(DEAD_LETTERS, letter.row(), anchors)


class BoltTask(ComponentTask):
    """A bolt whose tuples are acked by the driver; it gets ticks where it asks for them."""

    def __init__(self, parts: TaskParts, tick_ms: int | None) -> None:
        super().__init__(parts)
        self.caller = BoltCaller(parts.component)
        self._tick_ms = tick_ms
        self._next_tick_ms: int | None = None
        self._lost: Delivery | None = None

    def open(self) -> None:
        self.caller.open(self.context, self.collector())
        if self._tick_ms is not None:
            self._next_tick_ms = self.router.now_ms + self._tick_ms

    def collector(self) -> Any:
        """Return what the bolt is prepared with; nothing, for its emits are collected at each call."""
        return None

    def handle(self, message: Delivery) -> None:
        emitted = self.attempt(message)
        if emitted is None:
            return
        anchors = () if message._anchors is None else (message._anchors,)
        for row in emitted:
            self.outbox.send(row.stream, row.values, anchors, row.task)
        self.ack(message)

    def attempt(self, message: Delivery) -> Any:
        """Call the bolt; return what it emitted, None if it failed the tuple."""
        try:
            return self.caller.execute(message)
        except FailedException as problem:
            self.failed(message, problem)
            return None

    def failed(self, message: Delivery, problem: FailedException) -> None:
        """Fail a tuple that the bolt refused."""
        if isinstance(problem, ReportedFailedException):
            self.report_error(problem)
        if not self.is_settled(message):
            self.fail(message)
        self.lose(message, problem)

    def ack(self, message: Delivery) -> None:
        """Settle a tuple: done."""
        self.router.ack(message._anchors, self.context.component)

    def fail(self, message: Delivery) -> None:
        """Settle a tuple: failed."""
        self.router.fail(message._anchors, self.context.component)

    def lose(self, message: Delivery, error: BaseException | str) -> None:
        """Make a dead letter of a tuple that failed and that no spout sends again, for nothing of it is anchored; once."""
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
        """Whether the tuple was acked or failed."""
        return message._anchors is None or message._anchors.settled

    def tick(self) -> None:
        """Put a tick into the inbox if one is due; several that are overdue are one."""
        if self._next_tick_ms is not None and self.router.now_ms >= self._next_tick_ms:
            assert self._tick_ms is not None
            self._send_tick()
            behind_ms = self.router.now_ms - self._next_tick_ms
            self._next_tick_ms += self._tick_ms * (1 + behind_ms // self._tick_ms)

    def last_tick(self) -> None:
        """Put a tick into the inbox at the end of the input, where the bolt has ticks: it may hold rows until one comes."""
        if self._next_tick_ms is not None:
            self._send_tick()

    def _send_tick(self) -> None:
        assert self._tick_ms is not None
        self.inbox.append(Delivery((self._tick_ms / 1000,), _TICK_ORIGIN, None))

    def next_deadline_ms(self) -> int | None:
        return self._next_tick_ms

    def close(self) -> None:
        self.caller.close()


class BasicBoltTask(BoltTask):
    """A bolt without a state that returns its rows: a batch of tuples goes through it in one loop, which acks it in one message.

    What it does is `handle` for each tuple, as a bolt that emits to a collector has it.
    """

    def open(self) -> None:
        super().open()
        self._by_return = self.caller.by_return()
        self._send = self.outbox.sender(DEFAULT_STREAM) if self._by_return is not None else None

    def arrive(self, arrived: list[Delivery]) -> None:
        if self._by_return is None or self._send is None:
            super().arrive(arrived)
            return
        (call, rows_of), send = self._by_return, self._send
        acks: list[tuple[int, int]] = []
        for message in arrived:
            try:
                rows = rows_of(call(message))
            except FailedException as problem:
                acks = self._told(acks)
                self.failed(message, problem)
                continue
            except BaseException as problem:
                raise self.caller.attributed(problem, message) from problem
            anchors = message._anchors
            if anchors is None:
                for row in rows:
                    send(row)
            else:
                for row in rows:
                    send(row, (anchors,))
                acks += anchors.ack()
        self._told(acks)

    def _told(self, acks: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Tell the ackers what is acked so far; return a new list for what follows."""
        self.router.ack_all(acks, self.context.component)
        return []


class RichBoltTask(BoltTask):
    """A bolt that anchors, acks and fails by itself."""

    def collector(self) -> BoltCollector:
        return BoltCollector(self)

    def handle(self, message: Delivery) -> None:
        self.attempt(message)


class BoltCollector(StormNames):
    """What a Bolt emits to and acks by. Source: Storm's `OutputCollector`."""

    __slots__ = ("_task",)

    def __init__(self, task: BoltTask) -> None:
        self._task = task

    def emit(
        self, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit one row anchored to these tuples; returns the ids of the tasks that it goes to."""
        if stray:
            raise self._task.caller.streams.refuse((values, *stray), "anchors")
        checked = self._task.caller.streams.checked(values, stream, False)
        return self._task.outbox.send(stream, checked, _anchors_of(anchors))

    def emit_direct(
        self, task: int, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one row to the task of this id, on a stream that is declared direct."""
        if stray:
            raise self._task.caller.streams.refuse((values, *stray), "anchors", "emit_direct")
        checked = self._task.caller.streams.checked(values, stream, True)
        self._task.outbox.send(stream, checked, _anchors_of(anchors), task)

    def ack(self, tuple: Tuple) -> None:
        """Say that the tuple is done with; AckError if it was acked or failed before."""
        self._task.ack(_delivered(tuple))

    def fail(self, tuple: Tuple) -> None:
        """Let the trees of the tuple fail; AckError if it was acked or failed before."""
        message = _delivered(tuple)
        self._task.fail(message)
        self._task.lose(message, "failed")

    def reset_timeout(self, tuple: Tuple) -> None:
        """Give the trees of the tuple a whole timeout from now on."""
        self._task.router.reset_timeout(_delivered(tuple)._anchors)

    def report_error(self, error: BaseException) -> None:
        """Keep an error for whoever looks at the result."""
        self._task.report_error(error)


def _delivered(tuple: Tuple) -> Delivery:
    if not isinstance(tuple, Delivery):
        raise ConfigError(
            f"what is acked, failed or anchored to is a tuple that execute was handed, got {quote(tuple)}"
        )
    return tuple


def _anchors_of(tuples: Tuple | Iterable[Tuple]) -> list[Anchors]:
    given: Iterator[Tuple] = iter((tuples,) if isinstance(tuples, Tuple) else tuples)
    found = [anchors for tuple in given if (anchors := _delivered(tuple)._anchors) is not None]
    for anchors in found:
        anchors.require_open()
    return found


def unsettled(tuples: Iterable[Any]) -> list[Anchors]:
    """Return the anchors of those tuples that were neither acked nor failed; a new tuple can be anchored to them."""
    return [t._anchors for t in tuples if t._anchors is not None and not t._anchors.settled]
