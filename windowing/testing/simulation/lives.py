"""TaskLife: one life of a task of the shipped driver, its clock, its inbox, and a handler that can be held up in the middle.

    Link     the inbox of a task: what the driver appends goes over the world's network; `arrive` puts it in
    Router   the driver's router, which reports to the checks what is settled, held and released
    TaskLife     a task (MasterTask, CoordinatorTask, EmitterTask, GroupTask, AckerTask) from its making to its death
    Strand   a thread in which a handler runs while the world waits, or stands still while the world goes on

Laws: the driver is used as it is shipped: tasks are made by TridentTasks, opened, stepped and ticked as its loop does it. Of the
strands and the world one runs at a time.

What the driver relies on in one process, and the world therefore never takes from it: the master asks a spout's coordinator by a
call; the acker and the master die together; where the beginning of a tree, or its end, is lost on the way, so is the master.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, ClassVar

from windowing.acking.acker import Anchors
from windowing.local.clock import SystemClock
from windowing.local.trident_cluster import ACKER
from windowing.local.trident_spouts import EmitterTask
from windowing.local.trident_tasks import DeadBatch, GroupTask, TridentRouter, TupleParts
from windowing.testing.simulation.scenario import Fault, SourceRow
from windowing.trident.fields import Row
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import TaskId

if TYPE_CHECKING:
    from windowing.testing.simulation.world import World

__all__ = [
    "Crash",
    "Link",
    "SimulatedRouter",
    "Strand",
    "TaskLife",
    "plain",
]


_EPOCH_MS = 1_700_000_000_000


class Crash(BaseException):
    """The process of a task dies here."""


class Link(deque[Any]):
    """The inbox of a task, at the end of a network."""

    def __init__(self, world: World, id: TaskId) -> None:
        super().__init__()
        self.id = id
        self._world = world

    def append(self, message: Any) -> None:
        self._world.send(self, message)

    def arrive(self, message: Any) -> None:
        """Put a message in, for the task to take."""
        super().append(message)


class SimulatedRouter(TridentRouter):
    """The router of a run, which all lives share; what a life that was replaced does to it goes unseen by the others."""

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

    def fail(self, anchors: Anchors | None, component: str) -> None:
        self._world.settles(anchors, True)
        super().fail(anchors, component)

    def hold_dead(self, attempt: TransactionAttempt, dead: DeadBatch) -> None:
        self._world.buries()
        super().hold_dead(attempt, dead)

    def release(self, attempt: TransactionAttempt) -> dict[str, list[Row]]:
        self._world.checks.released(self._world.acting, attempt, self._dead.get(attempt, []))
        return super().release(attempt) if self._world.is_current() else self._rows.get(attempt, {})


class _LifeClock(SystemClock):
    """The driver's clock over the readings of one life: its own monotonic clock, and the wall clock of all."""

    __slots__ = ("_base_ms", "_world")

    def __init__(self, world: World, base_ms: int) -> None:
        super().__init__()
        self._world, self._base_ms = world, base_ms

    def _monotonic_ns(self) -> int:
        return (self._base_ms + self._world.now_ms) * 1_000_000

    def _wall_ns(self) -> int:
        return (_EPOCH_MS + self._world.now_ms + self._world.jump_ms) * 1_000_000


class TaskLife:
    """One life. fuse: how many steps it has left; holds: whether it is held up then, and not dead. misread: the damaged records
    that it has read.

    emitted: the rows that its spout gave in this event; buried: whether they are dead letters; emits: whether nothing was reported
    of them yet.
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
        """Return the time on this life's clock."""
        return self._clock.now_ms()

    def now_ms(self) -> int:
        """Return a reading of the clock, which may be an old one."""
        now_ms = self.clock_ms()
        if self._world.luck(Fault.CLOCKS, 0.02):
            return max(0, now_ms - self._world.chance.choice((10, 10_000, 3_600_000)))
        return now_ms

    def open(self) -> None:
        """Begin: read what the life before has left."""
        self.task.open()
        self.is_open = True

    def take(self, message: Any) -> None:
        """Take a message, as the driver's loop would."""
        self.task.inbox.arrive(message)
        self.task.step(None)

    def tick(self) -> None:
        """Take note of the time."""
        self.task.tick()

    def check(self) -> None:
        """Assert that its machine is sound."""
        if isinstance(self.task, GroupTask):
            self.task.executor.check()
        elif isinstance(self.task, EmitterTask) or hasattr(getattr(self.task, "machine", None), "check"):
            self.task.machine.check()


class Strand:
    """Calls in a thread, each of which runs while somebody waits for it in `go`, and stands still in `hold`.

    A thread whose call has ended is kept for the next one.
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
        """Return a strand with a call that has not begun."""
        strand = cls._idle.pop() if cls._idle else cls()
        strand._call, strand._over = partial(call, *args), False
        return strand

    def go(self) -> None:
        """Let it run, to its end or until it is held up. Raises what comes out of it."""
        self._turn.release()
        self._back.acquire()
        problem, self._problem = self._problem, None
        if self._over:
            self._idle.append(self)
        if problem is not None:
            raise problem

    def hold(self) -> None:
        """Stand still, from inside, until the next `go`."""
        self._back.release()
        self._turn.acquire()

    def _run(self) -> None:
        while True:
            self._turn.acquire()
            try:
                self._call()
            except BaseException as problem:  # raised where it is waited for
                self._problem = problem
            self._over = True
            self._back.release()


os.register_at_fork(after_in_child=Strand._idle.clear)  # threads do not come along


def plain(message: Any) -> tuple[str, tuple[Any, ...]]:
    """Return what a message is, and what it says, without what differs from run to run."""
    if isinstance(message, TupleParts):
        return "TupleParts", (*message[:3], [piece.rows for piece in message.pieces])
    return type(message).__name__, tuple(part for part in message if not isinstance(part, Anchors))
