"""Many tasks, messages in any order, failures at any message: each state is the fold of exactly the tuples whose acks went out.

s0 ---> a0 ---> b         a: one task or the other, by the number of the message
s1 -+-> a1 -+             b: what comes by the two of a, and what s1 sends by itself
    +-------+
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing.codec import decode_value
from windowing.execution.checkpoints import (
    Aligned,
    AlignedBarrier,
    Checkpoint,
    CheckpointSpout,
    CheckPointState,
    CommitState,
    Delivered,
    EmitCheckpoint,
    ExecuteTuple,
    FailTuples,
    Init,
    PassOn,
    Prepare,
    Refuse,
    ReleaseAcks,
    Rollback,
    SaveCheckpoint,
    StatefulBoltExecutor,
    TxState,
)
from windowing.stores.states import MemoryStateProvider

SOURCES = ("s0", "s1")
INPUTS = {"a0": ("s0", "s1"), "a1": ("s0", "s1"), "b": ("a0", "a1", "s1")}
READERS = {name: [task for task, inputs in INPUTS.items() if name in inputs] for name in (*SOURCES, *INPUTS)}


@dataclass(eq=False)
class Root:
    """One emission of a source's message: how many deliveries are open, and whether one has failed."""

    source: str
    number: int
    open: int = 0
    failed: bool = False


@dataclass(eq=False)
class Token:
    """A tuple on its way to one task; `way` is how it comes there."""

    root: Root
    way: str


@dataclass
class Member:
    """A task: its barrier, its executor, its state, and what the model knows of it."""

    name: str
    provider: MemoryStateProvider
    released: Counter[Any] = field(default_factory=Counter)
    prepared: Counter[Any] = field(default_factory=Counter)
    open: Counter[Any] = field(default_factory=Counter)

    def start(self) -> None:
        self.barrier = AlignedBarrier(INPUTS[self.name])
        self.executor = StatefulBoltExecutor()
        self.state = self.provider.state(self.name, 0)

    def committed(self) -> Counter[Any]:
        """Return what is committed."""
        items = self.state.store.items()
        return Counter({decode_value(key, "a key"): decode_value(value, "a value") for key, value in items})


class Network(RuleBasedStateMachine):
    """See the drawing. A failure is a checkpoint that fails; a crash takes all tasks and all that is on its way."""

    @initialize()
    def begin(self) -> None:
        self.provider = MemoryStateProvider()
        self.durable: CheckPointState | None = None
        self.members = {name: Member(name, self.provider) for name in INPUTS}
        self.pending: dict[tuple[str, int], Root] = {}
        self.again: deque[tuple[str, int]] = deque()
        self.numbers = Counter[str]()
        self.doubtful = False
        self.now = 0
        self.begin_process()

    def begin_process(self) -> None:
        self.channels: dict[tuple[str, str], deque[Any]] = {
            (source, task): deque() for task, inputs in INPUTS.items() for source in inputs
        }
        for member in self.members.values():
            member.start()
            member.open.clear()
        self.passed: Counter[Checkpoint] = Counter()
        self.spout = CheckpointSpout(1000, self.durable)
        self.coordinate(self.spout.start(self.now))

    # -- rules ---------------------------------------------------------------------------------------------------------

    @rule(source=st.sampled_from(SOURCES))
    def a_source_emits(self, source: str) -> None:
        if self.again:
            self.emit(*self.again.popleft())
        else:
            self.numbers[source] += 1
            self.emit(source, self.numbers[source])

    @rule(order=st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def messages_arrive(self, order: list[int]) -> None:
        for which in order:
            if channels := [channel for channel, sent in self.channels.items() if sent]:
                self.deliver(channels[which % len(channels)])

    @rule(seed=st.integers(0, 10**6), busy=st.sampled_from([0, 1]))
    def a_while_passes(self, seed: int, busy: int) -> None:
        """Make a hundred steps by chance, most of them good ones: failures alone never get to a second commit."""
        chance = random.Random(seed)
        for _ in range(100):
            what = chance.random()
            if what < 0.15:
                self.a_source_emits(chance.choice(SOURCES))
            elif what < 0.2 + 0.1 * busy:
                self.a_checkpoint_is_due()
            elif what < 0.31 and self.spout.waits_for is not None and chance.random() < 0.3:
                self.the_checkpoint_fails()
            else:
                self.messages_arrive([chance.randrange(6)])
            self.each_state_is_the_fold_of_the_tuples_whose_acks_went_out()

    @rule()
    def a_checkpoint_is_due(self) -> None:
        self.now += 1000
        self.coordinate(self.spout.tick(self.now))

    @rule()
    @precondition(lambda self: self.spout.waits_for is not None)
    def the_checkpoint_fails(self) -> None:
        assert self.spout.waits_for is not None
        self.coordinate(self.spout.fail(self.spout.waits_for, self.now))

    @rule(now=st.integers(0, 4))
    def the_process_dies(self, now: int) -> None:
        if now:
            return
        if self.durable is not None and self.durable.state is TxState.COMMITTING:
            self.doubtful = True  # acks of tasks that had committed are out, those of the others are lost
        self.provider.close()
        self.again.extend(self.pending)
        self.pending.clear()
        self.begin_process()

    # -- what holds ----------------------------------------------------------------------------------------------------

    @invariant()
    def each_state_is_the_fold_of_the_tuples_whose_acks_went_out(self) -> None:
        for member in self.members.values() if hasattr(self, "members") else ():
            assert member.committed() == member.released
            member.barrier.check()
            member.executor.check()

    def teardown(self) -> None:
        """Let everything come to its end: each message is in each state once."""
        if not hasattr(self, "members"):
            return
        for _ in range(1000):
            if not (self.pending or self.again):
                break
            while self.again:
                self.emit(*self.again.popleft())
            while channels := [channel for channel, sent in self.channels.items() if sent]:
                self.deliver(channels[0])
            self.a_checkpoint_is_due()
        assert not self.pending, "it does not come to an end"
        assert not self.again
        for source, last in self.numbers.items():
            for number in range(1, last + 1):
                task = f"a{number % 2}"
                ways = [(task, source), ("b", task)] + ([("b", "s1")] if source == "s1" else [])
                for name, way in ways:
                    times = self.members[name].released[f"{source}-{number} by {way}"]
                    assert times >= 1 if self.doubtful else times == 1

    # -- the world -----------------------------------------------------------------------------------------------------

    def emit(self, source: str, number: int) -> None:
        root = self.pending[source, number] = Root(source, number)
        self.send(root, source, f"a{number % 2}")
        if source == "s1":
            self.send(root, source, "b")

    def send(self, root: Root, sender: str, task: str) -> None:
        root.open += 1
        self.channels[sender, task].append(Token(root, sender))

    def deliver(self, channel: tuple[str, str]) -> None:
        sender, task = channel
        member, message = self.members[task], self.channels[channel].popleft()
        if isinstance(message, Checkpoint):
            effects = member.barrier.arrived(sender, message, message)
        else:
            effects = member.barrier.offer(sender, message)
        for effect in effects:
            if isinstance(effect, Delivered):
                self.perform(member, member.executor.execute(effect.message))
            elif isinstance(effect, Aligned):
                self.perform(member, member.executor.checkpoint(effect.checkpoint))

    def perform(self, member: Member, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, ExecuteTuple):
                self.execute(member, effect.tuple)
            elif isinstance(effect, Prepare):
                member.state.prepare_commit(effect.txid)
                member.prepared = Counter(member.open)
            elif isinstance(effect, CommitState):
                if member.state.store.prepared_txid is not None:
                    member.released += member.prepared
                    member.open -= member.prepared
                    member.prepared = Counter()
                member.state.commit(effect.txid)
            elif isinstance(effect, Rollback):
                member.state.rollback()
                member.open, member.prepared = Counter(), Counter()
            elif isinstance(effect, Init):
                member.state.require(effect.txid)
            elif isinstance(effect, ReleaseAcks | FailTuples):
                for token in effect.tuples:
                    self.settle(token, isinstance(effect, FailTuples))
            elif isinstance(effect, PassOn):
                for reader in READERS[member.name]:
                    self.channels[member.name, reader].append(effect.checkpoint)
                self.passed[effect.checkpoint] += 1
                if self.passed[effect.checkpoint] == len(INPUTS):
                    self.coordinate(self.spout.ack(effect.checkpoint, self.now))
            elif isinstance(effect, Refuse):
                self.coordinate(self.spout.fail(effect.checkpoint, self.now))

    def execute(self, member: Member, token: Token) -> None:
        key = f"{token.root.source}-{token.root.number} by {token.way}"
        member.state.put(key, member.state.get(key, 0) + 1)
        member.open[key] += 1
        for reader in READERS[member.name]:
            self.send(token.root, member.name, reader)
        member.executor.acked(token)

    def settle(self, token: Token, failed: bool) -> None:
        root = token.root
        name = root.source, root.number
        if self.pending.get(name) is not root:
            return
        root.open -= 1
        if failed:
            del self.pending[name]
            self.again.append(name)
        elif root.open == 0:
            del self.pending[name]

    def coordinate(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, SaveCheckpoint):
                self.durable = effect.record
            else:
                assert isinstance(effect, EmitCheckpoint)
                for (sender, _), sent in self.channels.items():
                    if sender in SOURCES:
                        sent.append(effect.checkpoint)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(stateful_step_count=6)
