"""TaskLife: one life of a task of the local driver, with its clock, its inbox, and a handler that can be suspended in the middle.

    Link      the inbox of a task: the driver's `append` sends a message over the world's network; `arrive` appends it
    SimulatedRouter    the driver's router, which reports acks, fails, dead letters and releases to the checks
    TaskLife  a task (MasterTask, CoordinatorTask, EmitterTask, GroupTask, AckerTask) from its creation to its death
    Strand    a thread in which a handler runs while the world waits, or is suspended while the world continues

Laws: the driver is used unchanged: tasks are created by TridentTasks, and opened, stepped and ticked as in its loop. Only one of
the strands and the world runs at a time.

The driver relies on these facts in one process, so the world never violates them: the master calls a spout's coordinator directly;
the acker and the master die together; if the begin or the end of a tree is lost, the master dies too.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from windowing.acking.acker import Anchors, Reason
from windowing.local.clock import SystemClock
from windowing.local.trident_cluster import ACKER
from windowing.local.trident_spouts import EmitterTask
from windowing.local.trident_tasks import DeadBatch, GroupTask, Piece, TridentRouter
from windowing.schema.types import Row
from windowing.testing.simulator.scenario import Fault, SourceRow
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import TaskId

if TYPE_CHECKING:
    from windowing.testing.simulator.world import World

_EPOCH_MS = 1_700_000_000_000


class Crash(BaseException):
    """The process of a task dies at this point."""


class Link(deque[Any]):
    """The inbox of a task at the end of the network."""

    def __init__(self, world: World, id: TaskId) -> None:
        super().__init__()
        self.id = id
        self._world = world

    def append(self, message: Any) -> None:
        self._world.send(self, message)

    def arrive(self, message: Any) -> None:
        """Append a delivered message for the task."""
        super().append(message)


class SimulatedRouter(TridentRouter):
    """The router of a run, shared by all lives; changes by a life that was replaced are not visible to the others."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        super().__init__(world.scenario.chance)
        self._world = world
        self.ackers = [self.inbox(ACKER)]

    def inbox(self, task: TaskId) -> deque[Any]:
        if task not in self.inboxes:
            self.inboxes[task] = Link(self._world, task)
        return self.inboxes[task]

    def ack(self, anchors: Anchors | None, component: str) -> None:
        self._world.settles(anchors, False)
        super().ack(anchors, component)

    def fail(self, anchors: Anchors | None, component: str, reason: str = Reason.FAILED) -> None:
        self._world.settles(anchors, True)
        super().fail(anchors, component, reason)

    def hold_dead(self, attempt: TransactionAttempt, dead: DeadBatch) -> None:
        self._world.buries()
        super().hold_dead(attempt, dead)

    def release(self, attempt: TransactionAttempt) -> dict[str, list[Row]]:
        self._world.checks.released(self._world.acting, attempt, self.held(attempt).dead)
        return super().release(attempt) if self._world.is_current() else self.held(attempt).rows


class _LifeClock(SystemClock):
    """The driver's clock with the readings of one life: a monotonic clock of its own, and the shared wall clock."""

    __slots__ = ("_base_ms", "_world")

    def __init__(self, world: World, base_ms: int) -> None:
        super().__init__()
        self._world, self._base_ms = world, base_ms

    def _monotonic_ns(self) -> int:
        return (self._base_ms + self._world.now_ms) * 1_000_000

    def _wall_ns(self) -> int:
        return (_EPOCH_MS + self._world.now_ms + self._world.jump_ms) * 1_000_000


class TaskLife:
    """One life of a task.

    fuse: number of steps until it dies, or is suspended if `holds`. misread: the damaged records that it has read. emitted: the
    rows that its spout emitted during the current event; holds_dead: whether they became dead letters; emits: whether they are not
    reported yet.
    """

    def __init__(self, world: World, id: TaskId, number: int, fuse: int, holds: bool, base_ms: int) -> None:
        self.id, self.number, self.fuse, self.holds = id, number, fuse, holds
        self.name = f"{id[0]}/{id[1]}"
        self.task: Any = None
        self.alarm_ms: int | None = None
        self.strand: Strand | None = None
        self.is_open = self.is_dead = self.is_doomed = self.is_held_up = False
        self.misread = set[str]()
        self.emitted: list[SourceRow] = []
        self.holds_dead, self.emits = False, True
        self._world = world
        self._clock = _LifeClock(world, base_ms)

    def clock_ms(self) -> int:
        """Return the time of this life's clock."""
        return self._clock.now_ms()

    def now_ms(self) -> int:
        """Return a reading of the clock, which may be stale under Fault.CLOCKS."""
        now_ms = self.clock_ms()
        if self._world.luck(Fault.CLOCKS, 0.02):
            return max(0, now_ms - self._world.chance.choice((10, 10_000, 3_600_000)))
        return now_ms

    def open(self) -> None:
        """Start: read the records of the previous life."""
        self.task.open()
        self.is_open = True

    def take(self, message: Any) -> None:
        """Handle a message, as the driver's loop does."""
        self.task.inbox.arrive(message)
        self.task.step(None)

    def tick(self) -> None:
        """Run the timers that are due."""
        self.task.tick()

    def check(self) -> None:
        """Assert the invariants of its machine."""
        if isinstance(self.task, GroupTask):
            self.task.executor.check()
        elif isinstance(self.task, EmitterTask) or hasattr(getattr(self.task, "machine", None), "check"):
            self.task.machine.check()


class Strand:
    """A thread for calls: a call runs while another thread waits for it in `go`, and is suspended in `hold`.

    A thread whose call has ended is reused for the next call.
    """

    _idle: ClassVar[list[Strand]] = []

    def __init__(self) -> None:
        self._call: Callable[[], None] = lambda: None
        self._turn, self._back = Semaphore(0), Semaphore(0)
        self._problem: BaseException | None = None
        self._over = False
        Thread(target=self._run, daemon=True).start()

    @classmethod
    def of(cls, call: Callable[..., None], *args: Any) -> Strand:
        """Return a strand for a call that has not started."""
        strand = cls._idle.pop() if cls._idle else cls()
        strand._call, strand._over = partial(call, *args), False
        return strand

    def go(self) -> None:
        """Run the call until it ends or is suspended. Raises the exception of the call."""
        self._turn.release()
        self._back.acquire()
        problem, self._problem = self._problem, None
        if self._over:
            self._idle.append(self)
        if problem is not None:
            raise problem

    def hold(self) -> None:
        """Suspend the call until the next `go`; called from inside the call."""
        self._back.release()
        self._turn.acquire()

    def _run(self) -> None:
        while True:
            self._turn.acquire()
            try:
                self._call()
            except BaseException as problem:  # raised by `go` in the waiting thread
                self._problem = problem
            self._over = True
            self._back.release()


os.register_at_fork(after_in_child=Strand._idle.clear)  # threads do not survive a fork


def plain(message: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the type and the content of a message, without the parts that differ between equal runs."""
    if isinstance(message, Piece):
        return "Piece", (*message[:3], message.rows)
    return type(message).__name__, tuple(part for part in message if not isinstance(part, Anchors))
