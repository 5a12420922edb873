"""The tasks that lead a run: the master with its trees, the acker, the spout's coordinator, the spouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from windowing.acking.acker import Acker
from windowing.acking.anchors import Anchors, xor_of
from windowing.acking.ledger import Acked, Failed, Reason
from windowing.acking.pending import Done, GivenUp, SpoutPending
from windowing.acking.retry import RetryPolicy
from windowing.testing.simulation.source import Row, Source, Tuples
from windowing.testing.simulation.tasks import Effects, Task, bolts_of, maps_of, spouts_of, states_of
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.batch_effects import Commit, EmitBatch, Report, Succeed
from windowing.transactions.batch_spouts import RichSpoutBatchExecutor
from windowing.transactions.coordinator import MasterBatchCoordinator
from windowing.transactions.coordinator_record import StoredRecord
from windowing.transactions.coordinator_rules import AskReady, CoordinatorConfig, Emit, Save, Stop, Stream
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.partitioned import OpaquePartitionedTridentSpoutExecutor, PartitionedTridentSpoutExecutor
from windowing.transactions.spout_coordinator import SendBatch, TridentSpoutCoordinator
from windowing.transactions.spout_executor import TridentSpoutExecutor
from windowing.transactions.spouts import SpoutContext
from windowing.transactions.transactional_state import TransactionalState

if TYPE_CHECKING:
    from windowing.testing.simulation.world import Message

__all__ = ["AckerTask", "CoordinatorTask", "MasterTask", "SpoutTask"]

TREE_MS, PENDING_MS = 10_000, 12_000


class MasterTask(Task):
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
        if isinstance(effect, Save):
            self._save(effect)
        elif isinstance(effect, Emit):
            self._emit(effect)
        elif isinstance(effect, AskReady):
            self.todo.insert(0, self._answer(effect.txid))
        elif isinstance(effect, Done | GivenUp):
            return self._hear(effect)
        elif isinstance(effect, Stop):
            self.is_stopped = True
        return None

    def _hear(self, news: Done | GivenUp) -> Effects:
        stream, attempt = cast("tuple[Stream, TransactionAttempt]", news.message_id)
        if isinstance(news, Done):
            return self._machine.acked(stream, attempt, self.now_ms())
        return self._machine.failed(stream, attempt, self.now_ms(), news.reason.value)

    def _answer(self, txid: int) -> Effects:
        """Answer when all that came before is performed: the machine takes nothing earlier."""
        answer = Source(self.world).is_ready(txid)
        yield from self._machine.answered(txid, [answer], self.now_ms())

    def _save(self, save: Save) -> None:
        self.world.checks.saving = save.record
        try:
            self._stored.save(save.record)
        finally:
            self.world.checks.saving = None

    def _emit(self, emit: Emit) -> None:
        scenario, world = self.scenario, self.world
        spouts, states = spouts_of(scenario), states_of(scenario)
        if emit.stream is Stream.SUCCESS:
            for to in ("coordinator", *spouts, *bolts_of(scenario)):
                world.send(to, "success", emit.attempt)
            return
        if emit.stream is Stream.BATCH:
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


class AckerTask(Task):
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


class CoordinatorTask(Task):
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


class _Collector:
    """The collector of a spout task."""

    def __init__(self, emit: Callable[[Row], None]) -> None:
        self.emit = emit


class SpoutTask(Task):
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
        attempt, rows = effect.batch.attempt, list[Row]()
        maps = maps_of(self.scenario)

        def emit(row: Row) -> None:
            rows.append(row)
            if effect.skip is None:
                to = maps[row.place % len(maps)]
                number = self._machine.emitted(attempt, to)
                self.world.send(to, "tuples", attempt, self.name, number, [row])

        self._emitter.emit_batch(effect.batch, _Collector(emit))
        if effect.skip is not None:
            self.world.checks.buried(attempt, self.name, rows)
        self.world.checks.emitted(attempt, self.name, rows, effect.skip is not None)

    def check(self) -> None:
        self._machine.check()


def _spout(task: Task) -> Any:
    """Return the spout of the run as a spout of batches."""
    kind, world = task.scenario.spout, task.world
    if kind is SpoutKind.NON_TRANSACTIONAL:
        number = spouts_of(task.scenario).index(task.name) if task.name[0] == "s" else -1
        tuples: Any = Tuples(world, number)
        return RichSpoutBatchExecutor(tuples, max_batch_size=task.scenario.max_rows)
    if kind is SpoutKind.OPAQUE:
        return OpaquePartitionedTridentSpoutExecutor(Source(world))
    return PartitionedTridentSpoutExecutor(Source(world))
