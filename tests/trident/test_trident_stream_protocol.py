"""Plans under the protocol of batches: TridentBoltExecutors drive the groups, batches overlap, and messages arrive in any order
that keeps the order of each sender. The result equals that of TridentRun with sequential batches.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident.test_trident_operations import PARTED, PERSIST, SIMPLE, WINDOW, Row, assume_few, pipelines, run_of
from windowing.execution.plan import Exchange
from windowing.trident import executors as effects
from windowing.trident.executors import TridentBoltExecutor
from windowing.trident.kinds import Phase, TransactionAttempt
from windowing.trident.plan import TaskId, TridentPlan, coord_specs, targets_of
from windowing.trident.processors import ProcessorContext
from windowing.trident.subtopology import ExchangeWriter, GroupBatch, GroupOutput, TridentRun


class Network:
    """Tasks of a plan and the messages between them; `chance` picks the next message."""

    def __init__(self, run: TridentRun, chance: Any) -> None:
        self.run, self.plan, self.chance = run, run.plan, chance
        plan: TridentPlan = run.plan
        self.tasks = {(id, task): sub for id, subs in run.tasks.items() for task, sub in enumerate(subs)}
        self.executors = {
            (id, task): TridentBoltExecutor(coord_specs(plan, group))
            for id, group in plan.stages.items()
            for task in range(group.parallelism)
            if not group.is_spout
        }
        self.channels: dict[tuple[TaskId, TaskId], deque[tuple[str, Any]]] = {}
        self.live: dict[tuple[TaskId, effects.BatchId], GroupBatch] = {}
        self.came: dict[tuple[TaskId, effects.BatchId], list[Any]] = {}
        self.outlets: dict[tuple[TaskId, effects.BatchId], ExchangeWriter] = {}
        self.sinks: dict[int, list[Row]] = {}
        self.open: dict[int, int] = {}
        self.failed: list[str] = []

    # -- the coordinator and the spouts, as simple as possible ---------------------------------------------------------

    def emit(self, txid: int, rows: list[Row]) -> None:
        """Let every spout task emit its part of a batch, and report."""
        self.sinks[txid] = []
        for spout in self.plan.spouts:
            group = self.plan.stage_of(spout.number)
            batch = effects.BatchId(self.plan.batch_groups[spout.number], TransactionAttempt(txid, 0))
            for task in range(group.parallelism):
                me = (group.id, task)
                counts = dict.fromkeys(targets_of(self.plan, group.id, batch.group), 0)
                number = partial(effects.next_number, counts)
                self.begin(me, batch)
                for exchange in self.plan.out_of(group.id):
                    self.route(me, batch, exchange, rows[task :: group.parallelism], number)
                self.send_time(me, batch, number)
                for target, sent in counts.items():
                    self.post(me, target, "report", (batch, sent))

    def commit(self, txid: int) -> None:
        """Send the commit of a batch to every task that commits."""
        for me, executor in self.executors.items():
            for name, spec in executor.specs.items():
                if spec.commits:
                    self.post(("$commit", 0), me, "commit", effects.BatchId(name, TransactionAttempt(txid, 0)))

    def deliver_all(self) -> None:
        """Deliver messages, of a channel that `chance` picks, until none is left."""
        while waiting := sorted(channel for channel, messages in self.channels.items() if messages):
            sender, target = channel = self.chance.choice(waiting)
            kind, what = self.channels[channel].popleft()
            executor = self.executors[target]
            if kind == "tuple":
                batch, number, item = what
                found = executor.arrive(batch, sender, number, item, now_ms=0)
            elif kind == "report":
                batch, sent = what
                found = executor.report(batch, sender, sent, self.message(batch), now_ms=0)
            else:
                found = executor.commit(what, self.message(what), now_ms=0)
            for effect in found:
                self.perform(target, effect)
            executor.check()

    def message(self, batch: effects.BatchId) -> int:
        """Open a message in the tree of a batch."""
        self.open[batch.attempt.txid] = self.open.get(batch.attempt.txid, 0) + 1
        return batch.attempt.txid

    # -- one task ------------------------------------------------------------------------------------------------------

    def perform(self, me: TaskId, effect: Any) -> None:
        if isinstance(effect, effects.Begin):
            self.begin(me, effect.batch)
            self.live[me, effect.batch] = GroupBatch(
                self.tasks[me], effect.batch.group, ProcessorContext(effect.batch.attempt)
            )
            self.came[me, effect.batch] = []
        elif isinstance(effect, effects.Execute):
            self.came[me, effect.batch].append(effect.item)
        elif isinstance(effect, effects.Finish):
            batch = self.live[me, effect.batch]
            for exchange, _, rows, largest in sorted(self.came[me, effect.batch], key=lambda p: (p[0].id, p[1])):
                if rows:
                    batch.execute(exchange, rows)
                else:
                    batch.observe(exchange, largest)
            batch.finish(Phase.PROCESS)
            batch.finish(Phase.COMMIT)
            self.send(me, effect.batch, batch.take())
            self.send_time(me, effect.batch, lambda target: self.executors[me].emitted(effect.batch, target))
        elif isinstance(effect, effects.Report):
            name = next(name for (who, (name, attempt)) in self.live if who == me and attempt == effect.attempt)
            self.post(me, effect.target, "report", (effects.BatchId(name, effect.attempt), effect.sent))
        elif isinstance(effect, effects.Forget):
            del self.live[me, effect.batch]
        elif isinstance(effect, effects.Ack):
            self.open[effect.message] -= 1
        else:
            self.failed.append(effect.cause)

    def begin(self, me: TaskId, batch: effects.BatchId) -> None:
        self.outlets[me, batch] = ExchangeWriter(self.plan, me[1], ProcessorContext(batch.attempt))

    def send(self, me: TaskId, batch: effects.BatchId, emitted: GroupOutput) -> None:
        for id, rows in emitted.exchanges.items():
            exchange = self.plan.exchanges[id]
            self.route(me, batch, exchange, rows, lambda target: self.executors[me].emitted(batch, target))
        for rows in emitted.sinks.values():
            self.sinks[batch.attempt.txid] += rows

    def route(self, me: TaskId, batch: effects.BatchId, exchange: Exchange, rows: list[Row], number: Any) -> None:
        for task, part in self.outlets[me, batch].route(exchange, rows).items():
            target = (exchange.target, task)
            self.post(me, target, "tuple", (batch, number(target), (exchange, me[1], part, None)))

    def send_time(self, me: TaskId, batch: effects.BatchId, number: Any) -> None:
        """Send the event time of this task's part to all tasks of each window."""
        for exchange in self.plan.out_of(me[0]):
            largest = self.outlets[me, batch].largest.get(exchange.id)
            for task in range(self.plan.stages[exchange.target].parallelism if largest else 0):
                target = (exchange.target, task)
                self.post(me, target, "tuple", (batch, number(target), (exchange, me[1], None, largest)))

    def post(self, sender: TaskId, target: TaskId, kind: str, what: Any) -> None:
        self.channels.setdefault((sender, target), deque()).append((kind, what))


MANY = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), min_size=4, max_size=8), min_size=2, max_size=3
)
COMMITTING = st.tuples(st.lists(SIMPLE, max_size=1), WINDOW | PERSIST, st.lists(PERSIST, max_size=1)).map(
    lambda parts: [*parts[0], parts[1], *parts[2]]
)


@settings(deadline=None)
@given(COMMITTING | pipelines(PARTED), MANY, st.integers(1, 3), st.randoms(use_true_random=False))
def test_overlapping_batches_equal_sequential_ones(
    steps: list[Any], batches: list[list[Row]], tasks: int, chance: Any
) -> None:
    assume_few(steps, batches, tasks)
    alone = run_of(steps, lambda: tasks)
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    network = Network(run_of(steps, lambda: tasks), chance)
    for txid, rows in enumerate(batches, 1):
        network.emit(txid, rows)
    network.deliver_all()
    assert not any(network.open.values()), (
        "every message of the processing phase is acked, or held by what waits for a commit"
    )
    for txid in expected:
        network.commit(txid)
        network.deliver_all()
    assert network.failed == []
    assert not any(network.open.values())
    assert not network.live
    assert {txid: sorted(rows) for txid, rows in network.sinks.items()} == expected
