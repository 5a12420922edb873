"""Subtopology: one task of a group, as a machine; GroupBatch: one batch in it.

    batch = subtopology.start_batch("bg0", Batch(TransactionAttempt(5, 0)))
    batch.execute(exchange, rows)       as tuples arrive, in pieces of any size
    batch.finish_batch()                when all tuples of the processing phase are there
    batch.commit_batch()                in the commit phase, in the order of the txids, when all of that phase are there
    batch.take() -> Emitted             after any of them: what goes over exchanges, to sinks, and back to a caller of DRPC

Laws: batches lie side by side, each in its GroupBatch; to drop one that failed is to forget it. What a batch emits depends on its
tuples and on the states alone, not on how they were cut into pieces. Source: Storm's `SubtopologyBolt`, `TridentBoltExecutor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.topology.context import TaskContext
from windowing.topology.trident.fields import Row
from windowing.topology.trident.operations import Sink
from windowing.topology.trident.persisting import StatefulProcessor
from windowing.topology.trident.plan import Exchange, Phase, TridentPlan
from windowing.topology.trident.processors import Batch, TridentProcessor
from windowing.topology.trident.windowed import LateTuples
from windowing.topology.trident.windows import WindowProcessor

__all__ = ["Emitted", "GroupBatch", "Subtopology"]


@dataclass(slots=True)
class Emitted:
    """What a task gave: rows for exchanges, by id, for sinks, by name, and the answers to a request of DRPC."""

    exchanges: dict[int, list[Row]] = field(default_factory=dict)
    sinks: dict[str, list[Row]] = field(default_factory=dict)
    answers: list[Row] = field(default_factory=list)


class Subtopology:
    """Makes the processors of a group for one task. states: the partitions that this task holds, by id of the state.

    nodes, out: the part of the group to work for, and the exchanges that lead away from it; None for all of them.
    Cost of a batch: that of its operations; no row is copied on the way from one to the next.
    """

    def __init__(
        self,
        plan: TridentPlan,
        group: str,
        task: int = 0,
        states: Mapping[str, Any] | None = None,
        *,
        nodes: Sequence[int] | None = None,
        out: Sequence[Exchange] | None = None,
    ) -> None:
        self.plan, self.group = plan, plan.group(group)
        self._context = TaskContext(group, task, self.group.parallelism, plan.config)
        self.processors: dict[int, TridentProcessor] = {}
        self._reports: list[BaseException] = []
        inside = set(self.group.nodes if nodes is None else nodes)
        for number in () if self.group.is_spout else sorted(inside):
            node = plan.processor(number)
            processor = self.processors[number] = node.operation.processor(node)
            processor.report = self._reports.append
            if isinstance(processor, StatefulProcessor):
                processor.state = (states or {})[processor.state_id]
        self.inner: dict[int, list[tuple[int, int, bool]]] = {number: [] for number in inside}
        for edge in plan.graph.edges:
            if edge.source in inside and edge.target in inside:
                late = isinstance(plan.processor(edge.target).operation, LateTuples)
                self.inner[edge.source].append((edge.target, edge.index, late))
        self.outer: dict[int, list[Exchange]] = {number: [] for number in inside}
        for exchange in plan.out_of(group) if out is None else out:
            self.outer[exchange.source].append(exchange)
        self.sinks = {
            number: str(node.operation.name)
            for number in self.processors
            for node in [plan.processor(number)]
            if isinstance(node.operation, Sink)
        }
        self.answers = {drpc.answer for drpc in plan.drpc.values()} & inside

    def prepare(self) -> None:
        """Make the instances of the users' code."""
        for processor in self.processors.values():
            processor.prepare(self._context)

    def start_batch(self, batch_group: str, batch: Batch) -> GroupBatch:
        """Begin a batch, or a request, of one batch group."""
        return GroupBatch(self, batch_group, batch)

    def windows(self) -> dict[int, WindowProcessor]:
        """Return the windows of this task by node, for whoever keeps their snapshots."""
        return {number: found for number, found in self.processors.items() if isinstance(found, WindowProcessor)}

    def take_reports(self) -> list[BaseException]:
        """Return what users' code has reported since the last call, in a batch that failed too."""
        taken = self._reports[:]
        self._reports.clear()
        return taken

    def cleanup(self) -> None:
        """Call the users' `cleanup`."""
        for processor in self.processors.values():
            processor.cleanup()


class GroupBatch:
    """One attempt at one batch, in one task of a group."""

    def __init__(self, subtopology: Subtopology, batch_group: str, batch: Batch) -> None:
        plan = subtopology.plan
        self.batch_group, self.batch = batch_group, batch
        self._task = subtopology
        self._nodes = [number for number in subtopology.processors if plan.batch_groups[number] == batch_group]
        self._slots = {number: subtopology.processors[number].start_batch(batch) for number in self._nodes}
        self._emitted = Emitted()

    def execute(self, exchange: Exchange, rows: list[Row]) -> None:
        """Take in rows that came over an exchange."""
        for target, index in exchange.targets:
            self._run([(target, index, rows)])

    def learn(self, exchange: Exchange, largest: Mapping[str | None, int]) -> None:
        """Take in what a task upstream says of the time: the largest timestamps of what it sent to all tasks (see Outlet)."""
        for target, _ in exchange.targets:
            processor = self._task.processors[target]
            if isinstance(processor, WindowProcessor):
                processor.learn(self._slots[target], largest)

    def finish_batch(self) -> None:
        """End the processing phase: every tuple of it has been taken in."""
        self._finish(Phase.PROCESS)

    def commit_batch(self) -> None:
        """Commit: write states, move windows on. The batches before this one have been committed."""
        self._finish(Phase.COMMIT)

    def take(self) -> Emitted:
        """Return what was emitted since the last call."""
        taken, self._emitted = self._emitted, Emitted()
        return taken

    def _finish(self, phase: Phase) -> None:
        for number in self._nodes:  # in the order of the graph, so that each has all of its tuples
            if self._task.plan.phases[number] is not phase:
                continue
            processor, slot = self._task.processors[number], self._slots[number]
            self._emit(number, processor.finish_batch(slot), late=False)
            self._emit(number, processor.take_late(slot), late=True)

    def _run(self, ahead: list[tuple[int, int, list[Row]]]) -> None:
        """Take rows through the group, depth first, as each of them would go by itself."""
        while ahead:
            number, index, rows = ahead.pop()
            made = self._task.processors[number].execute(self._slots[number], rows, index)
            ahead += reversed(self._onward(number, made, late=False))

    def _emit(self, number: int, rows: list[Row], *, late: bool) -> None:
        self._run(self._onward(number, rows, late=late)[::-1])

    def _onward(self, number: int, rows: list[Row], *, late: bool) -> list[tuple[int, int, list[Row]]]:
        """Put rows of a node where they go, and return which nodes of the group are to take them in."""
        if not rows:
            return []
        for exchange in self._task.outer[number]:
            if exchange.late is late:
                self._emitted.exchanges.setdefault(exchange.id, []).extend(rows)
        if number in self._task.sinks:
            self._emitted.sinks.setdefault(self._task.sinks[number], []).extend(rows)
        if number in self._task.answers and not late:
            self._emitted.answers.extend(rows)
        return [(target, index, rows) for target, index, is_late in self._task.inner[number] if is_late is late]
