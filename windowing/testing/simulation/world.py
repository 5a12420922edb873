"""World: virtual time, a network that errs, tasks that die or seem to; one heap, one source of chance.

    heap   (12, 7, deliver, ($batch 3:1 to s0))   (14, 8, wake, (b1,))   (30000, 2, calm, ()) ...   popped in order of (time, seq)

    task   living --fuse burnt--> dead ... another life begins
             +--fuse burnt--> held up ...(another life begins)... goes on for a while as a zombie, with what is left of its effects

Laws: nothing here reads a clock, and chance comes from the scenario's seed only: equal scenarios give equal traces. A message is
handed to one life of a task; its copies go to the same life, or are lost. The network does anything else.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from windowing.acking.acker import Anchors
from windowing.errors import CorruptStateError, FailedException, SupersededError
from windowing.testing.simulation.checks import BOUND_MS, Checks, Records, States, Violation
from windowing.testing.simulation.scenario import Fault, Scenario, SourceRow
from windowing.testing.simulation.tasks import (
    MapTask,
    SimulatedAcker,
    SimulatedCoordinator,
    SimulatedMaster,
    SimulatedSpout,
    SimulatedTask,
    SinkTask,
    StateTask,
    names_of,
)

__all__ = [
    "Message",
    "World",
]


_TASKS: dict[str, type[SimulatedTask]] = {
    "m": SimulatedMaster, "a": SimulatedAcker, "c": SimulatedCoordinator,
    "s": SimulatedSpout, "b": MapTask, "p": StateTask, "q": SinkTask,
}  # fmt: skip
"""What a task is, by the first letter of its name."""
HOUR_MS = 3_600_000
_CHECKED = 4
"""Machines assert that they are sound after one event in so many: it costs as much as the event."""
MAX_EVENTS = 40_000
"""More is a run that goes round in circles."""


class Crash(Exception):
    """The process of a task died."""


class Message:
    """What is sent: to whom, and what; `anchors` if it is part of a tree. `task` is the life it was handed to."""

    __slots__ = ("anchors", "body", "kind", "number", "task", "to")

    def __init__(self, to: str, kind: str, body: tuple[Any, ...], anchors: Anchors | None, number: int) -> None:
        self.to = to
        self.kind = kind
        self.body = body
        self.anchors = anchors
        self.number = number
        self.task: SimulatedTask | None = None


class World:
    """One run. `trace` has what happened, in plain values; `faults` how often what went wrong."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = Random(scenario.chance)
        self.now_ms = 0
        self.jump_ms = 0
        self.faulty = True
        self.trace: list[tuple[Any, ...]] = []
        self.faults = Counter[str]()
        self.records = Records(self)
        self.states = States(self)
        self.checks = Checks(scenario, self.states.beneath)
        self.queues: dict[int, list[SourceRow]] = {}
        self.rows_made = 0
        self._kinds = scenario.faults
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = self._messages = self._lives = 0
        self._acting: SimulatedTask | None = None
        self._living: dict[str, SimulatedTask] = {}
        self._zombies: dict[str, SimulatedTask] = {}
        self._loss = self.chance.choice((0.002, 0.01, 0.03))
        self._steps_of_a_life = self.chance.choice((40, 150, 600))

    # -- time ----------------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, handler: Callable[..., None], *args: Any) -> None:
        """Call the handler after so much time."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, handler, args))

    def run(self) -> None:
        """Run until nothing happens any more, or the time is over. Raises whatever is found to be wrong."""
        for name in names_of(self.scenario):
            self._begin(name)
        self.at(self.scenario.quiet_ms, self._calm)
        for fault, act in ((Fault.DAMAGE, self._damage), (Fault.CLOCKS, self._jump)):
            if fault in self._kinds:
                self.at(self.chance.randrange(1_000), act)
        end_ms = self.scenario.quiet_ms + BOUND_MS
        while self._heap and self._sequence < MAX_EVENTS:
            now_ms, _, handler, args = heapq.heappop(self._heap)
            if now_ms > end_ms:
                break
            self.now_ms = now_ms
            handler(*args)
        self.checks.finish()

    @property
    def events(self) -> int:
        """How many things were to happen."""
        return self._sequence

    def _calm(self) -> None:
        self.faulty = False
        self.trace.append((self.now_ms, "faults stop"))
        self.records.repair()

    # -- the network ---------------------------------------------------------------------------------------------------

    def send(self, to: str, kind: str, *body: Any, anchors: Anchors | None = None) -> None:
        """Send a message; it may be lost, take its time, or come twice."""
        self._messages += 1
        message = Message(to, kind, body, anchors, self._messages)
        luck, delay_ms = self.chance.random(), 1 + int(self.chance.random() * 20)
        if self.faulty:
            if Fault.LOST in self._kinds and luck < self._loss:
                self._note(Fault.LOST)
                return
            if Fault.DELAYED in self._kinds and 0.2 < luck < 0.2 + 2 * self._loss:
                self._note(Fault.DELAYED)
                delay_ms = self.chance.randrange(40_000)
            if Fault.REPEATED in self._kinds and luck > 0.95:
                self._note(Fault.REPEATED)
                self.at(delay_ms + self.chance.choice((0, 5, 500, 20_000)), self._deliver, message)
        self.at(delay_ms, self._deliver, message)

    def _deliver(self, message: Message) -> None:
        task = message.task
        if task is None:
            zombie = self._zombies.get(message.to)
            is_misled = zombie is not None and self.chance.random() < 0.3
            task = message.task = zombie if is_misled else self._living.get(message.to)
        if task is None or task.is_dead or task.is_held_up:
            return
        self.trace.append((self.now_ms, task.name, task.life, message.kind, message.body))
        self._enter(task, task.take, message)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def luck(self, fault: Fault, share: float) -> bool:
        """Whether a fault happens now."""
        happens = self.faulty and fault in self._kinds and self.chance.random() < share
        if happens:
            self._note(fault)
        return happens

    def _note(self, fault: Fault) -> None:
        self.faults[fault.name] += 1

    def _begin(self, name: str) -> None:
        """Begin a life of a task."""
        if name in self._living:
            return
        self._lives += 1
        fuse = 1 + int(self.chance.expovariate(1 / self._steps_of_a_life))
        base_ms = self.chance.randrange(HOUR_MS) if Fault.CLOCKS in self._kinds else 0
        task = self._living[name] = _TASKS[name[0]](self, name, self._lives, fuse, base_ms)
        self.trace.append((self.now_ms, name, task.life, "begins"))
        self._enter(task, task.start)

    def _enter(self, task: SimulatedTask, entry: Callable[..., Iterator[Any]], *args: Any) -> None:
        """Let a task take an event, and perform all that follows; or less, if it dies or is held up."""
        self._acting = task
        try:
            task.todo.append(entry(*args))
            self._perform(task)
        except Crash:
            self._die(task)
        except SupersededError:
            self.trace.append((self.now_ms, task.name, task.life, "is superseded"))
            self._die(task)
        except CorruptStateError as problem:
            if not self.records.taken:
                raise
            self.trace.append((self.now_ms, task.name, task.life, f"finds damage: {problem.code}"))
            self.records.repair()
            self._die(task)
        except FailedException as problem:  # a store that does not answer, where no batch can be failed for it
            self.trace.append((self.now_ms, task.name, task.life, f"gives up: {problem.code}"))
            self._die(task)
        finally:
            self._acting = None
        if self.records.taken and not task.is_dead:
            raise Violation(f"I8: {task.name} took damaged records for sound: {sorted(self.records.taken)}")

    def _perform(self, task: SimulatedTask) -> None:
        """Perform what is to be done, innermost first; stop where the task is held up."""
        todo = task.todo
        while todo:
            for effect in todo[-1]:
                inner = None if effect is None else task.perform(effect)
                if inner is not None:
                    todo.append(inner)
                if self._burns(task):
                    if self._may_be_held_up(task):
                        self._hold_up(task)
                        return
                    raise Crash
                if inner is not None:
                    break
            else:
                todo.pop()
        if self._sequence % _CHECKED == 0:
            task.check()
        if task.is_stopped:
            self._die(task)
        else:
            self._set_alarm(task)

    def _set_alarm(self, task: SimulatedTask) -> None:
        due_ms = task.next_deadline_ms()
        if due_ms is not None and (task.alarm_ms is None or due_ms < task.alarm_ms):
            task.alarm_ms = due_ms
            self.at(max(1, due_ms - task.clock_ms()), self._wake, task, due_ms)

    def _wake(self, task: SimulatedTask, alarm_ms: int) -> None:
        if task.is_dead or task.is_held_up or task.alarm_ms != alarm_ms:
            return
        task.alarm_ms = None
        self._enter(task, task.tick)

    # -- how tasks end -------------------------------------------------------------------------------------------------

    def _burns(self, task: SimulatedTask) -> bool:
        """Take one step of a life; return whether it was the last."""
        task.fuse -= 1
        return self.faulty and task.fuse == 0 and (Fault.CRASHES in self._kinds or Fault.ZOMBIES in self._kinds)

    def _may_be_held_up(self, task: SimulatedTask) -> bool:
        is_alone = self._living.get(task.name) is task
        return (
            Fault.ZOMBIES in self._kinds
            and is_alone
            and (Fault.CRASHES not in self._kinds or self.chance.random() < 0.5)
        )

    def _die(self, task: SimulatedTask) -> None:
        """A task is gone, with all it had in memory; another life begins soon."""
        if task.is_dead:
            return
        task.is_dead = True
        self.records.taken.clear()
        self._note(Fault.CRASHES)
        self.trace.append((self.now_ms, task.name, task.life, "dies"))
        if self._zombies.get(task.name) is task:
            del self._zombies[task.name]
        if self._living.get(task.name) is task:
            self._replace(task)

    def _replace(self, task: SimulatedTask) -> None:
        del self._living[task.name]
        self.at(self.chance.choice((1, 50, 500, 5_000)), self._begin, task.name)

    def _hold_up(self, task: SimulatedTask) -> None:
        task.is_held_up = True
        self._note(Fault.ZOMBIES)
        self.trace.append((self.now_ms, task.name, task.life, "is held up"))
        if task.name in self._zombies:
            self._die(self._zombies[task.name])
        self._zombies[task.name] = task
        self._replace(task)
        self.at(self.chance.choice((10, 200, 2_000, 15_000, 60_000)), self._go_on, task)

    def _go_on(self, task: SimulatedTask) -> None:
        if task.is_dead:
            return
        task.is_held_up, task.alarm_ms = False, None
        self.trace.append((self.now_ms, task.name, task.life, "goes on"))
        self.at(self.chance.choice((1, 100, 3_000, 30_000)), self._die, task)
        self._enter(task, lambda: iter(()))

    # -- stores --------------------------------------------------------------------------------------------------------

    def in_store(self, operation: Callable[[], Any], is_write: bool = True) -> Any:
        """Do a store operation of the acting task: it may die before or after, or be held up in it; or the store errs."""
        task = self._acting
        if task is None:
            return operation()
        if self.luck(Fault.STORES, 0.01):
            if is_write and self.chance.random() < 0.5:
                operation()
            raise task.unavailable()
        if self._burns(task) or (is_write and self.luck(Fault.ZOMBIES, 0.01)):
            if is_write and self._may_be_held_up(task):
                self._note(Fault.ZOMBIES)
                self.at(self.chance.choice((10, 200, 2_000, 15_000, 60_000)), self._write_late, task, operation)
            raise Crash
        result = operation()
        if self._burns(task):
            raise Crash
        return result

    def _write_late(self, task: SimulatedTask, operation: Callable[[], Any]) -> None:
        self.trace.append((self.now_ms, task.name, task.life, "writes late"))
        operation()

    # -- what happens by itself ----------------------------------------------------------------------------------------

    def _damage(self) -> None:
        if not self.faulty or self.checks.is_over:
            return
        path = self.records.damage(self.chance)
        if path is not None:
            self._note(Fault.DAMAGE)
            self.trace.append((self.now_ms, path, "is damaged"))
            for name in [name for name in self._living if name[0] not in "bpq"]:
                if self.chance.random() < 0.5:
                    self._die(self._living[name])
        self.at(self.chance.choice((500, 5_000, 20_000)), self._damage)

    def _jump(self) -> None:
        """The wall clock jumps; nobody may notice."""
        if not self.faulty or self.checks.is_over:
            return
        self._note(Fault.CLOCKS)
        self.jump_ms += self.chance.choice((-24, -1, 1, 24)) * HOUR_MS
        self.at(self.chance.choice((500, 5_000, 20_000)), self._jump)
