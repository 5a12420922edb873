"""A whole topology of batches on a network that loses, delays, repeats and reorders, with tasks that die or seem to: for tests.

    master ---> coordinator ---> s0, s1 ---> b0, b1 ---> p0, p1 (states) --- at the commit ---> q
                                                 +------------- while processing -------------> q

What the network does not do: hand one message to two lives of a task. So a repeated one is lost when its task dies.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from windowing.acking.retry import RetryPolicy
from windowing.errors import FailedException
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.batch_effects import (
    Ack,
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
from windowing.transactions.bolt_executor import TridentBoltExecutor
from windowing.transactions.coordinator import MasterBatchCoordinator
from windowing.transactions.coordinator_record import CoordinatorRecord
from windowing.transactions.coordinator_rules import (
    AskReady,
    CoordinatorConfig,
    Emit,
    OnFailure,
    Readiness,
    Save,
    Stop,
    Stream,
)
from windowing.transactions.partitioned import OpaquePartitionedTridentSpoutExecutor, PartitionedTridentSpoutExecutor
from windowing.transactions.spout_coordinator import SendBatch, TridentSpoutCoordinator
from windowing.transactions.spout_executor import TridentSpoutExecutor
from windowing.transactions.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    SpoutContext,
)
from windowing.transactions.tracked_batch import CoordSpec
from windowing.transactions.transactional_state import MemoryRecordStore, TransactionalState

SPOUTS, MIDDLE, STATES = ("s0", "s1"), ("b0", "b1"), ("p0", "p1")
SPECS = {
    **dict.fromkeys(MIDDLE, CoordSpec(SPOUTS, targets=(*STATES, "q"))),
    **dict.fromkeys(STATES, CoordSpec(MIDDLE, commits=True, targets=("q",))),
    "q": CoordSpec(MIDDLE, commit_reports=STATES),
}
TREE_MS, BOLT_MS = 1_000, 1_500
GROUP = "g"


@dataclass(eq=False)
class Tree:
    """What a `$batch` or `$commit` led to: the messages that are neither acked nor failed."""

    stream: Stream
    attempt: TransactionAttempt
    deadline_ms: int
    open: set[Token] = field(default_factory=set)


@dataclass(eq=False)
class Token:
    tree: Tree | None


@dataclass
class Faults:
    """How often something goes wrong, in a hundred."""

    lost: int = 0
    repeated: int = 0
    failed: int = 0


class Source(PartitionedCoordinator, PartitionedEmitter, IPartitionedTridentSpout, IOpaquePartitionedTridentSpout):
    """Three partitions without end: "x0", "x1", ...; how many rows a new batch holds is chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def get_coordinator(self) -> Source:
        return self

    def get_emitter(self) -> Source:
        return self

    def get_partitions_for_batch(self) -> list[str]:
        return ["x", "y", "z"]

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        metadata = [start, start + self.chance.randrange(3)]
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        for number in range(*metadata):
            collector.emit((f"{partition}{number}",))


class ToMiddle:
    """The collector of a spout task."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self.send = send

    def emit(self, values: Any) -> None:
        self.send(values[0])


class Topology:
    """All of it in one object; `step` delivers one message or lets time pass. Laws are asserted where they could break."""

    def __init__(self, seed: int, opaque: bool, max_pending: int, poison: int = 0) -> None:
        self.chance = random.Random(seed)
        self.faults = Faults()
        self.opaque = opaque
        self.poison = poison
        retry = RetryPolicy(2 if poison else None, first_ms=1, cap_ms=40)
        self.config = CoordinatorConfig(max_pending, 0, 5, retry, OnFailure.SKIP)
        self.stopped = False
        self.dead: dict[tuple[int, str], tuple[TransactionAttempt, list[str]]] = {}
        self.zombies: dict[str, Any] = {}
        self.now = 0
        self.store = MemoryRecordStore()
        self.durable: Any = None
        self.wire: list[tuple[str, list[int], tuple[Any, ...]]] = []
        self.trees: list[Tree] = []
        self.lives: Counter[str] = Counter()
        self.states: dict[str, dict[int, tuple[TransactionAttempt, list[str]]]] = {name: {} for name in STATES}
        self.first_rows: dict[tuple[int, str], list[str]] = {}
        self.succeeded: list[TransactionAttempt] = []
        self.sent: dict[int, int] = {}
        self.spouts: dict[str, tuple[TridentSpoutExecutor, Any]] = {}
        self.bolts: dict[str, tuple[TridentBoltExecutor, dict[Any, list[str]]]] = {}
        for name in ("coordinator", *SPOUTS, *SPECS, "master"):
            self.begin(name)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Begin a task, or let it die and begin again: what it had in memory is gone, or goes on without being asked."""
        self.lives[name] += 1
        if self.lives[name] > 1 and name != "master" and self.chance.randrange(2):
            self.zombies[name] = self.swap(name, None)
        context = SpoutContext(TransactionalState(self.store, "spout"), SPOUTS.index(name) if name in SPOUTS else 0, 2)
        spout = (OpaquePartitionedTridentSpoutExecutor if self.opaque else PartitionedTridentSpoutExecutor)(
            Source(self.chance)
        )
        if name == "coordinator":
            state = TransactionalState(self.store, "coordinator")
            self.coordinator = TridentSpoutCoordinator(spout.get_coordinator(context), state)
        elif name in SPOUTS:
            self.spouts[name] = TridentSpoutExecutor(MIDDLE), spout.get_emitter(context)
        elif name in SPECS:
            self.bolts[name] = TridentBoltExecutor({GROUP: SPECS[name]}, BOLT_MS, in_order=False), {}
        else:
            self.master = MasterBatchCoordinator(self.config, CoordinatorRecord.of(self.durable))
            self.coordinate(self.master.tick(self.now))

    def swap(self, name: str, other: Any) -> Any:
        """Return the memory of a task, and put another in its place if there is one."""
        mine: Any = self.coordinator if name == "coordinator" else (self.spouts if name in SPOUTS else self.bolts)[name]
        if other is not None and name == "coordinator":
            self.coordinator = other
        elif other is not None:
            (self.spouts if name in SPOUTS else self.bolts)[name] = other
        return mine

    # -- the network ---------------------------------------------------------------------------------------------------

    def send(self, to: str, *message: Any) -> None:
        copies = 1 + (self.chance.randrange(100) < self.faults.repeated)
        if self.chance.randrange(100) >= self.faults.lost:
            self.wire += [(to, [], message)] * copies

    def token(self, tree: Tree | None) -> Token:
        token = Token(tree)
        if tree is not None:
            tree.open.add(token)
        return token

    def step(self) -> None:
        """Deliver any message, or let some time pass; a topology that stopped is started again."""
        if self.stopped:
            self.stopped = False
            self.begin("master")
        elif not self.wire:
            due = [tree.deadline_ms for tree in self.trees] + [self.master.next_deadline_ms() or self.now + TREE_MS]
            self.pass_time(max(1, min(due) - self.now))
        elif self.chance.randrange(20) == 0:
            self.pass_time(self.chance.choice([1, 5, 20]))
        else:
            place = self.chance.randrange(len(self.wire))
            self.wire[place], self.wire[-1] = self.wire[-1], self.wire[place]
            to, handed, message = self.wire.pop()
            if not handed and to in self.zombies and self.chance.randrange(4) == 0:
                handed.append(0)
                living = self.swap(to, self.zombies[to])
                self.deliver(to, message)
                self.swap(to, living)
                return
            if not handed:
                handed.append(self.lives[to])
            if handed[0] == self.lives[to]:
                self.deliver(to, message)

    def deliver(self, to: str, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if to == "coordinator":
            self.at_coordinator(kind, *rest)
        elif to in SPOUTS:
            self.at_spout(to, kind, *rest)
        else:
            self.at_bolt(to, kind, *rest)

    def pass_time(self, ms: int) -> None:
        self.now += ms
        for tree in [tree for tree in self.trees if tree.deadline_ms <= self.now]:
            self.end(tree, "timeout")
        for name in SPECS:
            self.perform(name, self.bolts[name][0].tick(self.now))
        self.coordinate(self.master.tick(self.now))

    def settle(self, token: Token, cause: str | None = None) -> None:
        tree = token.tree
        if tree is None or tree not in self.trees or token not in tree.open:
            return
        tree.open.remove(token)
        if cause is not None or not tree.open:
            self.end(tree, cause)

    def end(self, tree: Tree, cause: str | None) -> None:
        self.trees.remove(tree)
        entry = self.master.acked if cause is None else self.master.failed
        self.coordinate(entry(tree.stream, tree.attempt, self.now))

    # -- the coordinators ----------------------------------------------------------------------------------------------

    def coordinate(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self.durable = effect.record.plain()
            elif isinstance(effect, AskReady):
                self.ask = effect.txid
            elif isinstance(effect, Stop):
                assert self.poison
                self.stopped = True
            else:
                self.on_emit(effect)
        self.master.check()
        if hasattr(self, "ask"):
            txid = self.ask
            del self.ask
            self.coordinate(self.master.answered(txid, [Readiness.READY], self.now))

    def on_emit(self, emit: Emit) -> None:
        attempt = emit.attempt
        if emit.stream is Stream.SUCCESS:
            self.on_success(attempt)
            for to in ("coordinator", *SPOUTS, *SPECS):
                self.send(to, "success", attempt)
            return
        tree = Tree(emit.stream, attempt, self.now + TREE_MS)
        self.trees.append(tree)
        if emit.stream is Stream.BATCH:
            assert attempt.attempt > self.sent.get(attempt.txid, -1), "attempts only grow"
            self.sent[attempt.txid] = attempt.attempt
            self.send("coordinator", "batch", emit, self.token(tree))
        else:
            for to in (*SPOUTS, *STATES) if self.opaque else STATES:
                self.send(to, "commit", attempt, self.token(tree))

    def at_coordinator(self, kind: str, *rest: Any) -> None:
        if kind == "success":
            self.coordinator.success(rest[0])
            return
        emit, token = rest
        for effect in self.coordinator.batch(emit.attempt, emit.after, emit.skip, token):
            if isinstance(effect, SendBatch):
                for to in SPOUTS:
                    self.send(to, "batch", effect.batch, effect.skip, self.token(token.tree))
            else:
                self.settle(token, effect.cause if isinstance(effect, Fail) else None)

    # -- the spouts ----------------------------------------------------------------------------------------------------

    def at_spout(self, name: str, kind: str, *rest: Any) -> None:
        machine, emitter = self.spouts[name]
        if kind == "batch":
            effects = machine.batch(*rest)
        else:
            effects = machine.commit(*rest) if kind == "commit" else machine.success(*rest)
        for effect in effects:
            if isinstance(effect, EmitBatch):
                self.try_to(machine.failed, effect.batch.attempt, partial(self.emit_batch, name, *effect))
            elif isinstance(effect, Commit):
                self.try_to(machine.failed, effect.attempt, partial(emitter.commit, effect.attempt))
            elif isinstance(effect, Succeed):
                emitter.success(effect.attempt)
            else:
                self.answer(name, effect)
        machine.check()

    def emit_batch(self, name: str, batch: Any, skip: str | None) -> None:
        """Emit rows into the topology, or all of them to the dead letters."""
        machine, emitter = self.spouts[name]
        rows: list[str] = []

        def send(row: str) -> None:
            rows.append(row)
            if skip is not None:
                return
            to = MIDDLE[int(row[1:]) % 2]
            self.send(to, "tuples", batch.attempt, name, machine.emitted(batch.attempt, to), [row])

        emitter.emit_batch(batch, ToMiddle(send))
        if skip is not None:
            key = batch.attempt.txid, name
            self.dead[key] = max(self.dead.get(key, (batch.attempt, [])), (batch.attempt, rows))
        if not self.opaque:
            assert self.first_rows.setdefault((batch.attempt.txid, name), rows) == rows, "a replay holds other rows"

    def try_to(self, failed: Any, which: Any, act: Callable[[], None]) -> None:
        try:
            fails = self.chance.randrange(100) < self.faults.failed
            if not fails or self.chance.randrange(2):
                act()
            if fails:
                raise FailedException("by chance")
        except FailedException as problem:
            failed(which, str(problem))

    def answer(self, name: str, effect: Any) -> None:
        """Perform what spouts and bolts have in common."""
        if isinstance(effect, Report):
            token = self.token(effect.message.tree)
            self.send(str(effect.target), "report", effect.attempt, name, effect.sent, token)
        elif isinstance(effect, Ack):
            self.settle(effect.message)
        elif isinstance(effect, Fail):
            self.settle(effect.message, effect.cause)

    # -- the bolts -----------------------------------------------------------------------------------------------------

    def at_bolt(self, name: str, kind: str, *rest: Any) -> None:
        machine: TridentBoltExecutor = self.bolts[name][0]
        self.perform(name, getattr(machine, kind)(GROUP, *rest, self.now))

    def perform(self, name: str, effects: Any) -> None:
        machine, kept = self.bolts[name]
        for effect in effects:
            if isinstance(effect, Begin):
                assert effect.batch not in kept
                kept[effect.batch] = []
            elif isinstance(effect, Forget):
                del kept[effect.batch]
            elif isinstance(effect, Execute):
                self.try_to(machine.failed, effect.batch, partial(self.execute, name, effect.batch, effect.items[0]))
            elif isinstance(effect, Finish):
                self.try_to(machine.failed, effect.batch, partial(self.finish, name, effect.batch))
            else:
                self.answer(name, effect)
        machine.check()

    def execute(self, name: str, batch: Any, row: str) -> None:
        machine, kept = self.bolts[name]
        if self.poison and name in MIDDLE and int(row[1:]) % self.poison == self.poison - 1:
            raise FailedException("poison")
        kept[batch].append(row)
        if name in MIDDLE:
            for to in (STATES[row[0] == "x"], "q"):
                self.send(to, "tuples", batch.attempt, name, machine.emitted(batch, to), [row])

    def finish(self, name: str, batch: Any) -> None:
        machine, kept = self.bolts[name]
        attempt, rows = batch.attempt, kept[batch]
        if name in STATES:
            self.commit(name, attempt, sorted(rows))
            for row in rows:
                self.send("q", "tuples", attempt, name, machine.emitted(batch, "q"), [row])
        elif name == "q":
            assert all(times == 2 for times in Counter(rows).values()), "q has a row not once from b and once from p"

    def commit(self, name: str, attempt: TransactionAttempt, rows: list[str]) -> None:
        """Commit to the state of a task, behind a fence."""
        state = self.states[name]
        if state and attempt <= max(each for each, _ in state.values()):
            raise FailedException("superseded")
        assert len(self.succeeded) == attempt.txid - 1, "committed before the one before was done"
        if attempt.txid in state and not self.opaque:
            assert state[attempt.txid][1] == rows, "a replay commits other rows"
        state[attempt.txid] = attempt, rows

    # -- laws ----------------------------------------------------------------------------------------------------------

    def on_success(self, attempt: TransactionAttempt) -> None:
        assert attempt.txid == len(self.succeeded) + 1, "txids are done in order, each once"
        self.succeeded.append(attempt)
        for name, state in self.states.items():
            assert state[attempt.txid][0] == attempt, f"{name} has not committed the attempt that succeeded"

    def check(self) -> None:
        """Assert what holds at any time."""
        assert len(self.master.under_way) <= self.config.max_pending
        done = len(self.succeeded)
        rows = [
            row for state in self.states.values() for txid, each in state.items() if txid <= done for row in each[1]
        ]
        rows += [row for (txid, _), dead in self.dead.items() if txid <= done for row in dead[1]]
        for partition in "xyz":
            numbers = sorted(int(row[1:]) for row in rows if row[0] == partition)
            assert numbers == list(range(len(numbers))), "a row is lost, or there twice"
        assert len(self.store.blobs) <= 4 * (self.config.max_pending + 3), "the store grows"

    def settle_down(self, batches: int) -> None:
        """Without faults: some batches more are done, and then nothing is held of what is done."""
        self.faults = Faults()
        self.zombies.clear()
        wanted = len(self.succeeded) + batches
        for _ in range(20_000):
            if len(self.succeeded) >= wanted:
                break
            self.step()
        assert len(self.succeeded) >= wanted, "it does not come to an end"
        self.check()
        bolts = [machine for machine, _ in self.bolts.values()]
        assert all(machine.held <= 3 * (self.config.max_pending + batches) for machine in bolts), "memory grows"
