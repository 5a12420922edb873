"""Loop: the rounds of a cluster in one process, and the time between them.

    round    hear the clock; each task: tick if something is due, then a step      in order, or in one drawn by chance
    wait     until the nearest deadline: a VirtualClock is set to it, with another clock the thread sleeps

Law: the same tasks, messages, seed and clock give the same rounds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from windowing.runtime.clock import Clock, VirtualClock
from windowing.runtime.hub import Hub
from windowing.runtime.tasks import Task

__all__ = ["Loop"]


class Loop:
    """shuffled: whether the hub's chance says which task steps next, and how many messages it takes."""

    def __init__(self, clock: Clock, hub: Hub, shuffled: bool) -> None:
        self.clock = clock
        self._hub = hub
        self._shuffled = shuffled
        hub.now_ms = clock.now_ms()

    def round(self, tasks: Sequence[Task]) -> bool:
        """Let each task do what is due and what lies in its inbox; return whether anything moved."""
        hub = self._hub
        hub.now_ms = max(hub.now_ms, self.clock.now_ms())
        for task in tasks:
            deadline_ms = task.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= hub.now_ms:
                task.tick()
        if not self._shuffled:
            return sum(task.step(None) for task in tasks) > 0
        order = hub.random.sample(tasks, len(tasks))
        return sum(task.step(hub.random.randint(1, 4)) for task in order) > 0

    def wait(self, deadlines: Iterable[int]) -> bool:
        """Let the clock go on to the nearest deadline; False if there is none."""
        nearest_ms = min(deadlines, default=None)
        if nearest_ms is None:
            return False
        now_ms = self.clock.now_ms()
        until_ms = max(now_ms, nearest_ms)
        if isinstance(self.clock, VirtualClock):
            self.clock.set(until_ms)
        else:
            time.sleep((until_ms - now_ms) / 1000)
        return True
