"""Loop: the rounds of a cluster in one process, and the time between them. LoopedCluster: the life of such a cluster.

    round    hear the clock; each task: tick if something is due, then a step      in order, or in one drawn by chance
    wait     until the nearest deadline: a VirtualClock is set to it, with another clock the thread sleeps
    life     made --first call--> begun: every task opened --an error, close()--> over: everything closed, nothing goes on

Laws
- The same tasks, messages, seed and clock give the same rounds.
- What comes out of a task ends the cluster; then every task that was opened, and whatever else is held, is closed, once, whatever
  raises meanwhile; what came first is what is raised.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Self

from windowing.errors import WindowingError
from windowing.local.clock import Clock, SystemClock, VirtualClock
from windowing.local.router import Router
from windowing.local.tasks import Task
from windowing.schema.checks import StormNames
from windowing.windows.measures import Duration, as_duration_ms

__all__ = [
    "Loop",
    "LoopedCluster",
]


class Loop:
    """shuffled: whether the router's chance says which task steps next, and how many messages it takes."""

    def __init__(self, clock: Clock, router: Router, shuffled: bool) -> None:
        self.clock = clock
        self._router = router
        self._shuffled = shuffled
        router.now_ms = clock.now_ms()

    def round(self, tasks: Sequence[Task]) -> bool:
        """Let each task do what is due and what lies in its inbox; return whether anything moved."""
        router = self._router
        router.now_ms = max(router.now_ms, self.clock.now_ms())
        for task in tasks:
            deadline_ms = task.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= router.now_ms:
                task.tick()
        if not self._shuffled:
            return sum(task.step(None) for task in tasks) > 0
        order = router.random.sample(tasks, len(tasks))
        return sum(task.step(router.random.randint(1, 4)) for task in order) > 0

    def wait(self, tasks: Iterable[Task], *more: int | None) -> bool:
        """Let the clock go on to the nearest deadline, of tasks or of `more`; False if there is none."""
        deadlines = (*(task.next_deadline_ms() for task in tasks), *more)
        nearest_ms = min((ms for ms in deadlines if ms is not None), default=None)
        if nearest_ms is None:
            return False
        now_ms = self.clock.now_ms()
        until_ms = max(now_ms, nearest_ms)
        if isinstance(self.clock, VirtualClock):
            self.clock.set(until_ms)
        else:
            time.sleep((until_ms - now_ms) / 1000)
        return True


_RUN = "with LocalCluster(topology) as cluster: cluster.run(). Name and settings are TopologyBuilder(name).configure({...})"
_END = "close(), or leave the with block"


class LoopedCluster(StormNames, ABC):
    """A cluster on a Loop; a context manager. clock: the system's if left out. seed: None does every step in its order."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("submit_topology", "submitTopology", "submit_topology_with_opts", "submitTopologyWithOpts"), _RUN
        ),
        **dict.fromkeys(
            ("kill_topology", "killTopology", "kill_topology_with_opts", "killTopologyWithOpts", "shutdown"), _END
        ),
        "rebalance": "max_task_parallelism= of the settings, and begin again",
    }

    def __init__(self, name: str, clock: Clock | None, router: Router, seed: int | None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._name = name
        self._loop = Loop(self.clock, router, seed is not None)
        self._opened: list[Task] = []
        self._begun = False
        self._over: str | None = None

    @property
    @abstractmethod
    def tasks(self) -> Sequence[Task]:
        """All tasks, in the order in which a round goes through them."""

    @abstractmethod
    def _take_hold(self) -> None:
        """Open what is to be there before any task is."""

    @abstractmethod
    def _held(self) -> Iterable[Callable[[], object]]:
        """Return what closes all that is held beside the tasks."""

    @abstractmethod
    def _emissions(self) -> int:
        """Return how often whatever begins work has done so, which a spout without an end does in each round."""

    @abstractmethod
    def _pass_time(self, end_ms: int | None = None) -> bool:
        """Let the clock go on to the next deadline, to `end_ms` at most; False if there is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> bool:
        """Make one round; return whether anything moved."""
        self._begin()
        return bool(self._guarded(self._loop.round, self.tasks))

    def close(self) -> None:
        """Close everything, once; nothing is drained."""
        if self._over is None:
            problem = self._end("it was closed")
            if problem is not None:
                raise problem

    def _begin(self) -> None:
        """Open everything, the first time. Raises WindowingError for a cluster that is over."""
        if self._over is not None:
            kind = type(self).__name__
            raise WindowingError(f"the cluster of topology {self._name!r} is over: {self._over}; make another {kind}")
        if not self._begun:
            self._begun = True
            self._guarded(self._take_hold)
            for task in reversed(self.tasks):  # whoever reads is ready before whoever emits
                self._opened.append(task)
                self._guarded(task.open)

    def _busy(self) -> None:
        """Make rounds until nothing moves."""
        self._begin()
        while self.step():
            pass

    def _run_for(self, span: Duration | timedelta) -> None:
        """Run for this long by the clock. With a VirtualClock a round in which something is emitted takes a millisecond, or what
        always emits would hold the time.
        """
        self._begin()
        end_ms = self.clock.now_ms() + as_duration_ms(span, "span")
        while self.clock.now_ms() < end_ms:
            before = self._emissions()
            if not self.step():
                self._pass_time(end_ms)
            elif isinstance(self.clock, VirtualClock) and self._emissions() > before:
                self.clock.set(self.clock.now_ms() + 1)

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; whatever comes out of it ends the cluster."""
        try:
            return call(*arguments)
        except BaseException as problem:
            self._end(f"it ended with {type(problem).__name__}")  # what came first is what went wrong
            raise

    def _end(self, why: str) -> BaseException | None:
        """Close all that was opened, whatever raises; return what was raised first."""
        self._over = why
        problems = []
        for close in (*(task.close for task in reversed(self._opened)), *self._held()):
            try:
                close()
            except BaseException as problem:
                problems.append(problem)
        return problems[0] if problems else None
