"""World: virtual time, a faulty network, tasks that die or are suspended; one event heap and one random generator.

    heap   (12, 7, deliver, ($batch 3:1))   (14, 8, wake, (b_1/0,))   (30000, 2, stop_faults, ()) ...   popped by (time, sequence)

    task   running --fuse used up--> dead ... the next life begins
             +--fuse used up--> suspended in the middle of a call ...(the next life begins)... resumes for a while as a zombie

Laws: no code here reads a real clock, and every random choice comes from the scenario's seed: equal scenarios give equal traces. A
message is delivered to one life of a task; its copies go to the same life, or are lost. Messages from one life to one task arrive
in order unless a fault delays them. All other faults of a network are possible.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from windowing.acking.acker import AckedRoots, Anchors, Failed
from windowing.acking.pending import RetryPolicy
from windowing.errors import CorruptStateError, FailedException, StoreUnavailableError, SupersededError, with_causes
from windowing.local.router import INITS
from windowing.local.trident_cluster import ACKER, MASTER, TridentTasks
from windowing.local.trident_records import coordinator_state, owners_of
from windowing.local.trident_tasks import Reported
from windowing.testing.simulator.checks import BOUND_MS, Checks, Records, States, Violation
from windowing.testing.simulator.lives import Crash, Link, SimulatedRouter, Strand, TaskLife, plain
from windowing.testing.simulator.scenario import SINK, Fault, Scenario, SourceRow, topology_of
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.fence import Life
from windowing.trident.kinds import SpoutKind
from windowing.trident.plan import TaskId

HOUR_MS = 3_600_000
_CHECKED = 4
"""The machines' own checks run after one event in this many, because a check costs as much as an event."""
MAX_EVENTS = 40_000
"""A run with more events does not terminate."""
_STRAND_STEPS = 12
"""A life with at most this many steps left runs its handlers in a strand, because it may be suspended."""
_DELAYS_MS = (60, 1_000, 1_000, 40_000)
"""Maximum delays of a message: short enough to be overtaken only, or longer than an attempt."""
_HOLDS_MS = (10, 200, 2_000, 15_000, 60_000)


class _Message:
    """A sent message. life: the life that it was delivered to, or the only one that may receive it."""

    __slots__ = ("body", "life", "link")

    def __init__(self, link: Link, body: Any, life: TaskLife | None) -> None:
        self.link, self.body, self.life = link, body, life


class World:
    """One run. trace: the events as plain values; faults: the number of faults by kind."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.chance = Random(scenario.chance)
        self.now_ms = 0
        self.jump_ms = 0
        self.faulty = True
        self.trace: list[tuple[Any, ...]] = []
        self.faults = Counter[str]()
        self.queues: dict[int, list[SourceRow]] = {}
        self.rows_made = 0
        self.writer = 0
        self._kinds = scenario.faults
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = self._lives = 0
        self._acting: TaskLife | None = None
        self._living: dict[TaskId, TaskLife] = {}
        self._zombies: dict[TaskId, TaskLife] = {}
        self._began: dict[int, TaskLife] = {}
        self._opened = set[TaskId]()
        self._arrivals: dict[tuple[int, TaskId], int] = {}
        self.records = Records(self)
        self.states = States(self)
        self.plan = topology_of(self, self.states)
        self.checks = Checks(scenario, self.plan, self.states.beneath)
        self._router = SimulatedRouter(self)
        self._spouts = {group.id for group in self.plan.stages.values() if group.is_spout}
        self._tasks = self._made()
        self._coordinators = {
            id for id in self._tasks.ids if id not in (MASTER, ACKER) and id[0] not in self.plan.stages
        }
        self._loss = self.chance.choice((0.002, 0.01, 0.03))
        self._steps_of_a_life = self.chance.choice((40, 150, 600))

    def _made(self) -> TridentTasks:
        """Create the tasks and the states of the topology, as a cluster does."""
        scenario, master = self.scenario, coordinator_state(self.plan, self.records)
        master.write({"life": Life("simulated").plain()})
        self._owners = owners_of(self.plan, master)
        [(self._state, found)] = self.plan.states.items()
        self._partitions = {self._state: [self._partition(part) for part in range(found.partitions)]}
        retry = RetryPolicy(scenario.attempts, first_ms=100, cap_ms=2_000)
        config = CoordinatorConfig(scenario.max_pending, 20, 50, retry, scenario.on_failure)
        return TridentTasks(self.plan, self._router, config, self.records, self._partitions, {})

    def _partition(self, part: int) -> Any:
        found = self.plan.states[self._state]
        state = found.factory.make_state(part, found.partitions)
        if hasattr(state, "own"):
            state.own(self._owners[self._state])
        return state

    # -- time ----------------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, handler: Callable[..., None], *args: Any) -> None:
        """Call the handler after `delay_ms` of virtual time."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, handler, args))

    def run(self) -> None:
        """Run until no event is left, or the time is over. Raises the first problem found."""
        try:
            self._run()
        finally:
            for life in [life for life in (*self._living.values(), *self._zombies.values()) if life.is_held_up]:
                self._unwind(life)

    def _run(self) -> None:
        for id in reversed(self._tasks.ids):
            self._begin(id)
        self.at(self.scenario.quiet_ms, self._stop_faults)
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
        """The number of scheduled events."""
        return self._sequence

    def _stop_faults(self) -> None:
        self.faulty = False
        self.trace.append((self.now_ms, "faults stop"))
        self.records.repair()

    # -- the network ---------------------------------------------------------------------------------------------------

    def send(self, link: Link, body: Any) -> None:
        """Send a message; a fault may lose, delay or repeat it. If the driver cannot recover from the loss, it ends a life."""
        life = self._acting
        if life is None or life.is_doomed:
            return
        message = _Message(link, body, self._observed(link, body, life))
        luck, delay_ms = self.chance.random(), 1 + int(self.chance.random() * 20)
        is_init = link.id == ACKER and body[0] == INITS
        if self.faulty and Fault.LOST in self._kinds and luck < self._loss:
            self._note(Fault.LOST)
            if is_init or message.life is not None:
                self.at(1, self._die, message.life or life)
        elif self.faulty and Fault.DELAYED in self._kinds and 0.2 < luck < 0.2 + 2 * self._loss:
            self._note(Fault.DELAYED)
            self.at(self.chance.randrange(self.chance.choice(_DELAYS_MS)), self._deliver, message)
        else:
            if self.faulty and Fault.REPEATED in self._kinds and luck > 0.95 and link.id != ACKER:
                self._note(Fault.REPEATED)
                self.at(delay_ms + self.chance.choice((0, 5, 500, 20_000)), self._deliver, message)
            arrival_ms = max(self.now_ms + delay_ms, self._arrivals.get((life.number, link.id), 0))
            self._arrivals[life.number, link.id] = arrival_ms
            self.at(arrival_ms - self.now_ms, self._deliver, message)
        self.step()

    def _observed(self, link: Link, body: Any, life: TaskLife) -> TaskLife | None:
        """Report a message to the checks; return the only life that may receive it, None if any may."""
        if link.id == ACKER:
            if body[0] == INITS:
                self._began |= {root: life for root, _ in body[1]}
            return None
        if isinstance(body, AckedRoots | Failed):
            # The acker is handed one message at a time.
            [root] = [body.root] if isinstance(body, Failed) else body.roots
            self.checks.ended(root, isinstance(body, AckedRoots))
            return self._began[root]
        anchors = getattr(body, "anchors", None)
        for root, edge in () if anchors is None else anchors.edges.items():
            self.checks.grew(root, edge)
        if isinstance(body, Reported) and life.id[0] in self._spouts and life.emits:
            life.emits = False
            self.checks.emitted(body.batch.attempt, life.name, life.emitted, life.holds_dead)
        return None

    def _deliver(self, message: _Message) -> None:
        link, life, body = message.link, message.life, message.body
        if life is None:
            zombie = self._zombies.get(link.id)
            is_misled = zombie is not None and self.chance.random() < 0.3
            life = message.life = zombie if is_misled else self._living.get(link.id)
        if life is None or life.is_dead or life.is_held_up or not life.is_open:
            return
        anchors = getattr(body, "anchors", None)
        if anchors is not None and anchors.settled:
            body = body._replace(anchors=Anchors({}))  # a copy: its trees were reported with the first delivery
        self.trace.append((self.now_ms, life.name, life.number, *plain(body)))
        self._enter(life, life.take, body)

    # -- for users' code and the router --------------------------------------------------------------------------------

    def luck(self, fault: Fault, share: float) -> bool:
        """Return whether a fault occurs now, with probability `share`."""
        happens = self.faulty and fault in self._kinds and self.chance.random() < share
        if happens:
            self._note(fault)
        return happens

    def fail_by_chance(self) -> None:
        """Raise FailedException at random, as users' code may."""
        if self.luck(Fault.FAILURES, 0.005):
            raise FailedException("by chance")

    def emits(self, row: SourceRow) -> None:
        """Record that a spout emits a row."""
        if self._acting is not None:
            self._acting.emitted.append(row)
        self.step()

    def buries(self) -> None:
        """Record that a spout's rows become dead letters."""
        if self._acting is not None:
            self._acting.holds_dead = True

    def settles(self, anchors: Anchors | None, is_failed: bool) -> None:
        """Record that a task acks or fails a message."""
        life = self._acting
        if anchors is not None and life is not None and not life.is_doomed:
            for root, edge in anchors.edges.items():
                self.checks.settled(root, edge, is_failed)

    def is_current(self) -> bool:
        """Return whether the acting life was not replaced."""
        return self._acting is not None and self._living.get(self._acting.id) is self._acting

    def misreads(self, path: str) -> None:
        """Record that a damaged record was read."""
        if self._acting is not None:
            self._acting.misread.add(path)

    @property
    def acting(self) -> int:
        """The number of the acting life, 0 without one."""
        return 0 if self._acting is None else self._acting.number

    def _note(self, fault: Fault) -> None:
        self.faults[fault.name] += 1

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _begin(self, id: TaskId) -> None:
        """Start the next life of a task."""
        if id in self._living:
            return
        if id == MASTER and not self._can_start_master():
            self.at(50, self._begin, id)
            return
        self._lives += 1
        fuse = 1 + int(self.chance.expovariate(1 / self._steps_of_a_life))
        base_ms = self.chance.randrange(HOUR_MS) if Fault.CLOCKS in self._kinds else 0
        holds = (
            Fault.ZOMBIES in self._kinds
            and id != ACKER
            and (Fault.CRASHES not in self._kinds or self.chance.random() < 0.5)
        )
        life = self._living[id] = TaskLife(self, id, self._lives, fuse, holds, base_ms)
        self.trace.append((self.now_ms, life.name, life.number, "begins"))
        if id[0] == self.plan.states[self._state].group:
            self._partitions[self._state][id[1]] = self._partition(id[1])
        life.task = self._tasks.make(id)
        if id == MASTER and self.scenario.sink:
            life.task.writers = {SINK: lambda txid, rows: self.checks.handed(life.number, txid, rows)}
        self._enter(life, self._open, life)

    def _can_start_master(self) -> bool:
        """Return whether an acker and all coordinators are open, without which a master cannot start."""
        return ACKER in self._living and self._living[ACKER].is_open and self._coordinators <= self._opened

    def _open(self, life: TaskLife) -> None:
        life.open()
        self._tasks.attach(life.id, life.task)
        self._opened.add(life.id)

    def _enter(self, life: TaskLife, call: Callable[..., None], *args: Any) -> None:
        """Run a handler of a life; it may end early if the life dies or is suspended."""
        life.emitted, life.holds_dead, life.emits = [], False, True
        if self.faulty and 0 < life.fuse <= _STRAND_STEPS and self._may_be_held_up(life):
            life.strand = Strand.of(call, *args)
            self._run_call(life, life.strand.go)
        else:
            self._run_call(life, call, *args)

    def _run_call(self, life: TaskLife, call: Callable[..., None], *args: Any) -> None:
        self._acting, self.writer, self._router.now_ms = life, life.number, life.now_ms()
        try:
            call(*args)
        except BaseException as problem:
            self._end_of(life, problem)
        finally:
            self._acting = None
        if life.is_dead or life.is_held_up:
            return
        life.strand = None
        if life.misread:
            raise Violation(f"I8: {life.name} took damaged records for sound: {sorted(life.misread)}")
        if self._sequence % _CHECKED == 0:
            life.check()
        if life.id == MASTER and self.scenario.spout is SpoutKind.NON_TRANSACTIONAL and self.checks.is_over:
            life.task.machine.active = False  # a spout of single tuples never ends by itself
        self._set_alarm(life)

    def _end_of(self, life: TaskLife, problem: BaseException) -> None:
        """End a life whose handler raised, if the driver ends there too; otherwise raise the error, which is a finding."""
        for cause in with_causes(problem):
            if isinstance(cause, Violation):
                raise cause
        if life.is_doomed:
            pass
        elif isinstance(problem, SupersededError):
            self.trace.append((self.now_ms, life.name, life.number, "is superseded"))
        elif isinstance(problem, CorruptStateError) and life.misread:
            self.trace.append((self.now_ms, life.name, life.number, f"finds damage: {problem.code}"))
            self.records.repair()
        # A store did not answer, and there is no batch to fail; or the scenario stops at this failure.
        elif isinstance(problem, FailedException):
            self.trace.append((self.now_ms, life.name, life.number, f"gives up: {problem.code}"))
        else:
            raise problem
        self._die(life)

    def _set_alarm(self, life: TaskLife) -> None:
        due_ms = life.task.next_deadline_ms()
        if due_ms is not None and (life.alarm_ms is None or due_ms < life.alarm_ms):
            life.alarm_ms = due_ms
            self.at(max(1, due_ms - life.clock_ms()), self._wake, life, due_ms)

    def _wake(self, life: TaskLife, alarm_ms: int) -> None:
        if life.is_dead or life.is_held_up or life.alarm_ms != alarm_ms:
            return
        life.alarm_ms = None
        self._enter(life, life.tick)

    # -- ends of tasks -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Count one step of the acting life; at its last step it dies or is suspended."""
        life = self._acting
        if life is not None and self._uses_last_step(life):
            self._halt(life)

    def _uses_last_step(self, life: TaskLife) -> bool:
        """Count one step of a life; return whether it was the last."""
        life.fuse -= 1
        return self.faulty and life.fuse == 0 and (Fault.CRASHES in self._kinds or Fault.ZOMBIES in self._kinds)

    def _may_be_held_up(self, life: TaskLife) -> bool:
        return life.holds and self._living.get(life.id) is life

    def _halt(self, life: TaskLife) -> None:
        """Stop a life in the middle of a call. Raises Crash if it does not resume."""
        if life.strand is not None and self._may_be_held_up(life):
            self._hold_up(life)
            life.strand.hold()
        else:
            life.is_doomed = True
        if life.is_doomed:
            raise Crash

    def _die(self, life: TaskLife) -> None:
        """End a task with its memory; the next life begins soon."""
        if life.is_dead:
            return
        life.is_dead = True
        self._note(Fault.CRASHES)
        self.trace.append((self.now_ms, life.name, life.number, "dies"))
        if life.is_held_up:
            self._unwind(life)
        if self._zombies.get(life.id) is life:
            del self._zombies[life.id]
        if self._living.get(life.id) is life:
            self._replace(life)
        if life.id == ACKER and MASTER in self._living:
            self._die(self._living[MASTER])

    def _unwind(self, life: TaskLife) -> None:
        """End the suspended call of a life."""
        assert life.strand is not None
        before, life.is_doomed, life.is_held_up = self._acting, True, False
        self._acting = life
        with suppress(BaseException):  # the Crash, or an error of users' code
            life.strand.go()
        self._acting = before

    def _replace(self, life: TaskLife) -> None:
        del self._living[life.id]
        self.at(self.chance.choice((1, 50, 500, 5_000)), self._begin, life.id)

    def _hold_up(self, life: TaskLife) -> None:
        life.is_held_up = True
        self._note(Fault.ZOMBIES)
        self.trace.append((self.now_ms, life.name, life.number, "is held up"))
        if life.id in self._zombies:
            self._die(self._zombies[life.id])
        self._zombies[life.id] = life
        self._replace(life)
        self.at(self.chance.choice(_HOLDS_MS), self._go_on, life)

    def _go_on(self, life: TaskLife) -> None:
        if life.is_dead:
            return
        assert life.strand is not None
        life.is_held_up, life.alarm_ms = False, None
        self.trace.append((self.now_ms, life.name, life.number, "goes on"))
        self.at(self.chance.choice((1, 100, 3_000, 30_000)), self._die, life)
        self._run_call(life, life.strand.go)

    # -- stores --------------------------------------------------------------------------------------------------------

    def in_store(self, operation: Callable[[], Any], is_write: bool = True) -> Any:
        """Perform a store operation of the acting life. It may die before or after it, or be suspended in it; the
        store may raise.
        """
        life = self._acting
        if life is None:
            return operation()
        if life.is_doomed:
            raise Crash
        if self.luck(Fault.STORES, 0.01):
            if is_write and self.chance.random() < 0.5:
                operation()
            raise StoreUnavailableError(f"the store did not answer {life.name}; the batch is to be tried again")
        if self._uses_last_step(life) or (is_write and self.luck(Fault.ZOMBIES, 0.01)):
            if is_write and life.strand is None and self._may_be_held_up(life):
                self._note(Fault.ZOMBIES)
                self.at(self.chance.choice(_HOLDS_MS), self._write_late, life, operation)
            self._halt(life)
        result = operation()
        self.step()
        return result

    def _write_late(self, life: TaskLife, operation: Callable[[], Any]) -> None:
        self.trace.append((self.now_ms, life.name, life.number, "writes late"))
        self.writer = life.number
        operation()

    # -- spontaneous faults --------------------------------------------------------------------------------------------

    def _damage(self) -> None:
        if not self.faulty or self.checks.is_over:
            return
        path = self.records.damage(self.chance)
        if path is not None:
            self._note(Fault.DAMAGE)
            self.trace.append((self.now_ms, path, "is damaged"))
            operations = {group.id for group in self.plan.stages.values() if not group.is_spout}
            for life in [life for id, life in self._living.items() if id[0] not in operations]:
                if self.chance.random() < 0.5:
                    self._die(life)
        self.at(self.chance.choice((500, 5_000, 20_000)), self._damage)

    def _jump(self) -> None:
        """The wall clock jumps, which must have no effect."""
        if not self.faulty or self.checks.is_over:
            return
        self._note(Fault.CLOCKS)
        self.jump_ms += self.chance.choice((-24, -1, 1, 24)) * HOUR_MS
        self.at(self.chance.choice((500, 5_000, 20_000)), self._jump)
