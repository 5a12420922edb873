"""Task: one life of a task of a run: it drives one of the library's machines, and performs what it asks for; and the topology.

master ---> coordinator ---> s0, s1 ---> b0, b1 ---> p0, p1, p2 (states) --- at the commit ---> q
  ^ |                                      +------------- while processing ---------------------> q
  | +-- init --> acker <-- acks and fails of all
  +-- acked, failed ---+

tasks.py   master: MasterBatchCoordinator, StoredRecord, SpoutPending        acker: Acker
             coordinator: TridentSpoutCoordinator                              s: TridentSpoutExecutor and an emitter
bolts.py     b, p, q: TridentBoltExecutor; p commits to a map state, behind its fence

The tasks that lead a run: the master with its trees, the acker, the spout's coordinator, the spouts.

The tasks that take part in batches: maps, which pass rows on, states, which commit them, and a sink that reads from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from windowing.acking.acker import Acked, Acker, Anchors, Failed, Reason, anchored, xor_of
from windowing.acking.pending import Done, GivenUp, RetryPolicy, SpoutPending
from windowing.errors import FailedException, StoreUnavailableError, SupersededError
from windowing.stores.factory import map_state
from windowing.testing.simulation.checks import STATE
from windowing.testing.simulation.scenario import (
    Add,
    Fault,
    Scenario,
    SimulatedQueue,
    SimulatedSource,
    SourceRow,
    key_of,
)
from windowing.trident.batch_effects import (
    Ack,
    BatchId,
    Begin,
    Commit,
    EmitBatch,
    Execute,
    Fail,
    Finish,
    Forget,
    Report,
    Succeed,
)
from windowing.trident.bolt_executor import CoordSpec, TridentBoltExecutor
from windowing.trident.coordinator import (
    AskReady,
    CoordinatorConfig,
    CoordinatorStream,
    EmitOnStream,
    MasterBatchCoordinator,
    SaveRecord,
    Stop,
    StoredRecord,
)
from windowing.trident.fence import Owner
from windowing.trident.kinds import SpoutKind, TransactionAttempt
from windowing.trident.spout_executor import SendBatch, TridentSpoutCoordinator, TridentSpoutExecutor
from windowing.trident.spouts import (
    OpaquePartitionedTridentSpoutExecutor,
    PartitionedTridentSpoutExecutor,
    RichSpoutBatchExecutor,
    SpoutContext,
)
from windowing.trident.transactional_state import TransactionalState

if TYPE_CHECKING:
    from windowing.testing.simulation.world import Message, World

__all__ = [
    "Effects",
    "MapTask",
    "SimulatedAcker",
    "SimulatedCoordinator",
    "SimulatedMaster",
    "SimulatedSpout",
    "SimulatedTask",
    "SinkTask",
    "StateTask",
    "bolts_of",
    "maps_of",
    "names_of",
    "spec_of",
    "spouts_of",
    "states_of",
]


Effects = Iterator[Any]


def spouts_of(scenario: Scenario) -> list[str]:
    """Return the tasks of the spout."""
    return [f"s{number}" for number in range(scenario.spouts)]


def maps_of(scenario: Scenario) -> list[str]:
    """Return the tasks that pass rows on."""
    return [f"b{number}" for number in range(scenario.maps)]


def states_of(scenario: Scenario) -> list[str]:
    """Return the partitions of the state."""
    return [f"p{number}" for number in range(scenario.states)]


def bolts_of(scenario: Scenario) -> list[str]:
    """Return all tasks with a bolt executor."""
    return [*maps_of(scenario), *states_of(scenario), *(["q"] if scenario.sink else [])]


def names_of(scenario: Scenario) -> list[str]:
    """Return all tasks, the master last."""
    return ["acker", "coordinator", *spouts_of(scenario), *bolts_of(scenario), "master"]


def spec_of(scenario: Scenario, name: str) -> CoordSpec:
    """Return whom a bolt waits for and whom it tells."""
    maps, states = maps_of(scenario), states_of(scenario)
    sinks = ["q"] if scenario.sink else []
    if name == "q":
        return CoordSpec(maps, commit_reports=states)
    if name in states:
        return CoordSpec(maps, commits=True, targets=sinks)
    return CoordSpec(spouts_of(scenario), targets=(*states, *sinks))


class SimulatedTask:
    """One life of a task. `fuse`: how many steps it has left. `todo`: what it is doing, innermost last."""

    def __init__(self, world: World, name: str, life: int, fuse: int, base_ms: int) -> None:
        self.world = world
        self.scenario = world.scenario
        self.name = name
        self.life = life
        self.fuse = fuse
        self.todo: list[Effects] = []
        self.alarm_ms: int | None = None
        self.is_dead = self.is_held_up = self.is_stopped = False
        self._base_ms = base_ms

    # -- what each does in its own way ---------------------------------------------------------------------------------

    def start(self) -> Effects:
        """Begin: read what the life before has left."""
        return iter(())

    def take(self, message: Message) -> Effects:
        """Take a message."""
        raise NotImplementedError

    def tick(self) -> Effects:
        """Take note of the time."""
        return iter(())

    def perform(self, effect: Any) -> Effects | None:
        """Perform an effect; what it returns is performed before the next."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, on this life's clock."""
        return None

    def check(self) -> None:
        """Assert that the machine is sound."""

    # -- what they share -----------------------------------------------------------------------------------------------

    def clock_ms(self) -> int:
        """Return the time on this life's monotonic clock."""
        return self._base_ms + self.world.now_ms

    def now_ms(self) -> int:
        """Return a reading of the clock, which may be an old one."""
        now_ms = self.clock_ms()
        if self.world.luck(Fault.CLOCKS, 0.02):
            return max(0, now_ms - self.world.chance.choice((10, 10_000, 3_600_000)))
        return now_ms

    def unavailable(self) -> StoreUnavailableError:
        """Return the error of a store that did not answer."""
        return StoreUnavailableError(f"the store did not answer {self.name}; the batch is to be tried again")

    def child(self, message: Message) -> Anchors | None:
        """Return the anchors of a tuple that is anchored to a message; none where that was a copy, and all is over."""
        if message.anchors is None or message.anchors.settled:
            return None
        [(root, edge)] = anchored([message.anchors], self._next_edge).edges.items()
        self.world.checks.grew(root, edge)
        return Anchors({root: edge})

    def settle(self, effect: Ack | Fail) -> None:
        """Tell the acker that a message is acked or failed; not a second time, where a copy came when all was forgotten."""
        anchors: Anchors | None = effect.message.anchors
        if anchors is None or anchors.settled:
            return
        [(root, edge)] = anchors.edges.items()
        is_failed = isinstance(effect, Fail)
        if isinstance(effect, Fail):
            anchors.fail()
            self.world.send("acker", "fail", root)
        else:
            [(root, xor)] = anchors.ack()
            self.world.send("acker", "ack", root, xor)
        self.world.checks.settled(root, edge, is_failed)

    def report(self, report: Report) -> None:
        """Tell a target how many tuples were sent to it."""
        anchors = self.child(report.message)
        self.world.send(str(report.target), "report", report.attempt, self.name, report.sent, anchors=anchors)

    def attempt_to(self, act: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call users' code, which may fail before or after it did something."""
        try:
            fails = self.world.luck(Fault.FAILURES, 0.01)
            if not fails or self.world.chance.random() < 0.5:
                act()
            if fails:
                raise FailedException("by chance")
        except FailedException as problem:
            failed(str(problem))

    def _next_edge(self) -> int:
        return self.world.chance.getrandbits(64) or 1


# -- The tasks that lead a run ---------------------------------------------------------------------------------------------------


TREE_MS, PENDING_MS = 10_000, 12_000


class SimulatedMaster(SimulatedTask):
    """The coordinator of all batches, with the trees that it has sent; its record is fenced."""

    def start(self) -> Effects:
        scenario = self.scenario
        retry = RetryPolicy(scenario.attempts, first_ms=100, cap_ms=2_000)
        config = CoordinatorConfig(scenario.max_pending, 20, 50, retry, scenario.on_failure)
        self._stored = StoredRecord(TransactionalState(self.world.records, "master"))
        self._machine = MasterBatchCoordinator(config, self._stored.load())
        self._pending = SpoutPending(retry=RetryPolicy(max_attempts=1), timeout_ms=PENDING_MS)
        return self._machine.tick(self.now_ms())

    def take(self, message: Message) -> Effects:
        root = message.body[0]
        if message.kind == "acked":
            return self._pending.acked(root, self.now_ms())
        return self._pending.failed(root, self.now_ms(), Reason.FAILED)

    def tick(self) -> Effects:
        now_ms = self.now_ms()
        yield from self._pending.tick(now_ms)
        yield from self._machine.tick(now_ms)

    def perform(self, effect: Any) -> Effects | None:
        if isinstance(effect, SaveRecord):
            self._save(effect)
        elif isinstance(effect, EmitOnStream):
            self._emit(effect)
        elif isinstance(effect, AskReady):
            self.todo.insert(0, self._answer(effect.txid))
        elif isinstance(effect, Done | GivenUp):
            return self._hear(effect)
        elif isinstance(effect, Stop):
            self.is_stopped = True
        return None

    def _hear(self, news: Done | GivenUp) -> Effects:
        stream, attempt = cast("tuple[CoordinatorStream, TransactionAttempt]", news.message_id)
        if isinstance(news, Done):
            return self._machine.acked(stream, attempt, self.now_ms())
        return self._machine.failed(stream, attempt, self.now_ms(), news.reason.value)

    def _answer(self, txid: int) -> Effects:
        """Answer when all that came before is performed: the machine takes nothing earlier."""
        answer = SimulatedSource(self.world).is_ready(txid)
        yield from self._machine.answered(txid, [answer], self.now_ms())

    def _save(self, save: SaveRecord) -> None:
        self.world.checks.saving = save.record
        try:
            self._stored.save(save.record)
        finally:
            self.world.checks.saving = None

    def _emit(self, emit: EmitOnStream) -> None:
        scenario, world = self.scenario, self.world
        spouts, states = spouts_of(scenario), states_of(scenario)
        if emit.stream is CoordinatorStream.SUCCESS:
            for to in ("coordinator", *spouts, *bolts_of(scenario)):
                world.send(to, "success", emit.attempt)
            return
        if emit.stream is CoordinatorStream.BATCH:
            kind, targets, rest = "batch", ["coordinator"], [emit.after, emit.skip]
        else:
            kind, targets, rest = "commit", [*(spouts if scenario.spout is SpoutKind.OPAQUE else []), *states], []
        root, edges = world.chance.getrandbits(62), [self._next_edge() for _ in targets]
        world.checks.begun(root, edges)
        self._pending.emitted(root, (emit.stream, emit.attempt), self.now_ms())
        world.send("acker", "init", root, xor_of(edges))
        for to, edge in zip(targets, edges, strict=True):
            world.send(to, kind, emit.attempt, *rest, anchors=Anchors({root: edge}))

    def next_deadline_ms(self) -> int | None:
        deadlines = (self._machine.next_deadline_ms(), self._pending.next_deadline_ms())
        return min((each for each in deadlines if each is not None), default=None)

    def check(self) -> None:
        self._machine.check()


class SimulatedAcker(SimulatedTask):
    """The acker; it drops messages that come twice by their number, as its laws ask of a driver."""

    def start(self) -> Effects:
        self._machine = Acker(TREE_MS)
        self._seen: set[int] = set()
        return iter(())

    def take(self, message: Message) -> Effects:
        if message.number in self._seen:
            return iter(())
        self._seen.add(message.number)
        root, now_ms = message.body[0], self.now_ms()
        if message.kind == "init":
            return self._machine.init(root, message.body[1], 0, now_ms)
        if message.kind == "ack":
            return self._machine.ack(root, message.body[1], now_ms)
        return self._machine.fail(root, now_ms)

    def tick(self) -> Effects:
        return self._machine.tick(self.now_ms())

    def perform(self, effect: Acked | Failed) -> None:
        is_acked = isinstance(effect, Acked)
        self.world.checks.ended(effect.root, is_acked)
        self.world.send("master", "acked" if is_acked else "failed", effect.root)

    def next_deadline_ms(self) -> int | None:
        return self._machine.next_deadline_ms()


class SimulatedCoordinator(SimulatedTask):
    """The coordinator of the spout."""

    def start(self) -> Effects:
        state = TransactionalState(self.world.records, "coordinator")
        coordinator = _spout(self).get_coordinator(SpoutContext(state))
        self._machine = TridentSpoutCoordinator(coordinator, state)
        return iter(())

    def take(self, message: Message) -> Effects:
        if message.kind == "success":
            self._machine.success(message.body[0])
            return iter(())
        attempt, after, skip = message.body
        return self._machine.batch(attempt, after, skip, message)

    def perform(self, effect: Any) -> None:
        if isinstance(effect, SendBatch):
            for to in spouts_of(self.scenario):
                self.world.send(to, "batch", effect.batch, effect.skip, anchors=self.child(effect.message))
        else:
            self.settle(effect)


class _SimulatedCollector:
    """The collector of a spout task."""

    def __init__(self, emit: Callable[[SourceRow], None]) -> None:
        self.emit = emit


class SimulatedSpout(SimulatedTask):
    """One task of the spout; its rows go on, or to the dead letters."""

    def start(self) -> Effects:
        number = int(self.name[1:])
        context = SpoutContext(TransactionalState(self.world.records, "spout"), number, self.scenario.spouts)
        self._machine = TridentSpoutExecutor(maps_of(self.scenario))
        self._emitter: Any = _spout(self).get_emitter(context)
        return iter(())

    def take(self, message: Message) -> Effects:
        if message.kind == "batch":
            batch, skip = message.body
            return self._machine.batch(batch, skip, message)
        if message.kind == "commit":
            return self._machine.commit(message.body[0], message)
        return self._machine.success(message.body[0])

    def perform(self, effect: Any) -> None:
        if isinstance(effect, EmitBatch):
            attempt = effect.batch.attempt
            self.attempt_to(lambda: self._emit(effect), lambda cause: self._machine.failed(attempt, cause))
        elif isinstance(effect, Commit):
            attempt = effect.attempt
            self.attempt_to(lambda: self._emitter.commit(attempt), lambda cause: self._machine.failed(attempt, cause))
        elif isinstance(effect, Succeed):
            self._emitter.success(effect.attempt)
        elif isinstance(effect, Report):
            self.report(effect)
        else:
            self.settle(effect)

    def _emit(self, effect: EmitBatch) -> None:
        attempt, rows = effect.batch.attempt, list[SourceRow]()
        maps = maps_of(self.scenario)

        def emit(row: SourceRow) -> None:
            rows.append(row)
            if effect.skip is None:
                to = maps[row.place % len(maps)]
                number = self._machine.emitted(attempt, to)
                self.world.send(to, "tuples", attempt, self.name, number, [row])

        self._emitter.emit_batch(effect.batch, _SimulatedCollector(emit))
        if effect.skip is not None:
            self.world.checks.buried(attempt, self.name, rows)
        self.world.checks.emitted(attempt, self.name, rows, effect.skip is not None)

    def check(self) -> None:
        self._machine.check()


def _spout(task: SimulatedTask) -> Any:
    """Return the spout of the run as a spout of batches."""
    kind, world = task.scenario.spout, task.world
    if kind is SpoutKind.NON_TRANSACTIONAL:
        number = spouts_of(task.scenario).index(task.name) if task.name[0] == "s" else -1
        tuples: Any = SimulatedQueue(world, number)
        return RichSpoutBatchExecutor(tuples, max_batch_size=task.scenario.max_rows)
    if kind is SpoutKind.OPAQUE:
        return OpaquePartitionedTridentSpoutExecutor(SimulatedSource(world))
    return PartitionedTridentSpoutExecutor(SimulatedSource(world))


# -- The tasks that take part in batches -----------------------------------------------------------------------------------------


GROUP = "g"
BOLT_MS = 15_000


class MapTask(SimulatedTask):
    """A map; states and the sink finish in their own ways."""

    def start(self) -> Effects:
        self._machine = TridentBoltExecutor({GROUP: spec_of(self.scenario, self.name)}, BOLT_MS, in_order=False)
        self._kept: dict[int, list[SourceRow]] = {}
        return iter(())

    def take(self, message: Message) -> Effects:
        now_ms = self.now_ms()
        if message.kind == "tuples":
            attempt, sender, first, items = message.body
            return self._machine.tuples(GROUP, attempt, sender, first, items, now_ms)
        if message.kind == "report":
            attempt, sender, sent = message.body
            return self._machine.report(GROUP, attempt, sender, sent, message, now_ms)
        if message.kind == "commit":
            return self._machine.commit(GROUP, message.body[0], message, now_ms)
        return self._machine.success(GROUP, message.body[0], now_ms)

    def tick(self) -> Effects:
        return self._machine.tick(self.now_ms())

    def perform(self, effect: Any) -> Effects | None:
        if isinstance(effect, Execute):
            batch = effect.batch
            self.attempt_to(lambda: self.execute(effect), lambda cause: self._machine.failed(batch, cause))
        elif isinstance(effect, Finish):
            return self.finish(effect.batch)
        elif isinstance(effect, Begin):
            assert effect.batch.attempt.txid not in self._kept, "a batch was begun twice"
            self._kept[effect.batch.attempt.txid] = []
        elif isinstance(effect, Forget):
            del self._kept[effect.batch.attempt.txid]
        elif isinstance(effect, Report):
            self.report(effect)
        else:
            self.settle(effect)
        return None

    def execute(self, effect: Execute) -> None:
        """Pass the rows on, each to the state of its key, and to the sink."""
        scenario = self.scenario
        for row in effect.items:
            if scenario.poison and row.place % scenario.poison == scenario.poison - 1:
                raise FailedException("poison")
            self.pass_on(f"p{row.key(scenario.keys) % scenario.states}", effect.batch, row)
            if scenario.sink:
                self.pass_on("q", effect.batch, row)

    def pass_on(self, to: str, batch: BatchId, row: SourceRow) -> None:
        """Send a row of a batch."""
        self.world.send(to, "tuples", batch.attempt, self.name, self._machine.emitted(batch, to), [row])

    def finish(self, batch: BatchId) -> Effects | None:
        """Do what is done when all of a batch is here."""
        return None

    def next_deadline_ms(self) -> int | None:
        return self._machine.next_deadline_ms()

    def check(self) -> None:
        self._machine.check()


class StateTask(MapTask):
    """A partition of the state: collects rows, and commits them at the `$commit`."""

    def start(self) -> Effects:
        scenario = self.scenario
        factory = map_state(self.world.states, STATE, scenario.state, cache=scenario.cache).owned_by(Owner("simulated"))
        self._state = factory.make_state(int(self.name[1:]), scenario.states)
        return super().start()

    def execute(self, effect: Execute) -> None:
        self._kept[effect.batch.attempt.txid] += effect.items

    def finish(self, batch: BatchId) -> Effects:
        """Commit, in steps: between any two the task may be held up."""
        rows, state = self._kept[batch.attempt.txid], self._state
        try:
            state.begin_commit(batch.attempt)
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                keys = [key_of(row.key(self.scenario.keys)) for row in half]
                state.multi_update(keys, [Add(row.weight) for row in half])
                yield None
            state.commit(batch.attempt)
            yield None
        except (FailedException, SupersededError) as problem:
            state.rollback()
            self._machine.failed(batch, str(problem))
            return
        if self.scenario.sink:
            for row in rows:
                self.pass_on("q", batch, row)


class SinkTask(MapTask):
    """Reads each row twice: while it is processed, and when it was committed."""

    def execute(self, effect: Execute) -> None:
        self._kept[effect.batch.attempt.txid] += effect.items

    def finish(self, batch: BatchId) -> None:
        rows = sorted(self._kept[batch.attempt.txid])
        assert rows[::2] == rows[1::2], f"the sink has in {batch} a row not once from a map and once from a state"
