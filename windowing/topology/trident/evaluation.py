"""TridentRun: a plan, run one batch after the other, at the prompt or in a test; the slow, obvious driver.

    run = TridentRun(topology.build())
    run.batch({"sentences": ["to be or not to be"]})        what came out of each sink
    run.ask("count_of", "be")                               what a function of DRPC answers

Laws: it does what a driver does with the same machines, with nothing between them: what it gives is what any driver must give.
Rows of a spout with several tasks are dealt out in turn. A batch that raises is forgotten; the same txid may be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windowing.core.checks import did_you_mean
from windowing.errors import ConfigError, shown
from windowing.topology.trident.code import RowMaker
from windowing.topology.trident.fields import Row
from windowing.topology.trident.graph import SpoutNode
from windowing.topology.trident.outlets import Outlet, OutletBatch
from windowing.topology.trident.plan import Exchange, Phase, TridentPlan
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.subtopology import Emitted, GroupBatch, Subtopology
from windowing.transactions.attempt import FIRST_TXID, TransactionAttempt
from windowing.transactions.ownership import Life, Progress, owned

__all__ = ["BatchInFlight", "TridentRun"]

Rows = Mapping[str, Iterable[Any]]


class TridentRun:
    """Runs a plan in this thread. `states[id][i]` is partition i of a state; `piece`: how many rows at most travel together.

    >>> from windowing.topology.trident.builtins import Count
    >>> from windowing.topology.trident.topology import TridentTopology
    >>> from windowing.topology.marking import spout
    >>> @spout(output="word string")
    ... def words():
    ...     yield "to"
    >>> topology = TridentTopology()
    >>> stream = topology.new_stream("words", words).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    >>> sorted(TridentRun(topology.build()).batch({"words": ["to", "be", "to"]})["counts"])
    [('be', 1), ('to', 2)]
    """

    def __init__(self, plan: TridentPlan, piece: int | None = None) -> None:
        self.plan, self.piece = plan, piece
        self.next_txid = FIRST_TXID
        self.errors: list[BaseException] = []
        """What users' code has reported."""
        self._begun = False
        self.states: dict[str, list[Any]] = {
            id: [state.spec.factory.make_state(partition, state.partitions) for partition in range(state.partitions)]
            for id, state in plan.states.items()
        }
        self.tasks = {
            id: [Subtopology(plan, id, task, self._partitions(task)) for task in range(group.parallelism)]
            for id, group in plan.groups.items()
        }
        self.outlets = {
            exchange.id: [Outlet(plan, exchange, task) for task in range(plan.group(exchange.group).parallelism)]
            for exchange in plan.exchanges
        }
        for task in (task for tasks in self.tasks.values() for task in tasks):
            task.prepare()

    def _partitions(self, task: int) -> dict[str, Any]:
        return {id: partitions[task] for id, partitions in self.states.items() if task < len(partitions)}

    def batch(self, rows: Rows, now_ms: int | None = None, drain: bool = False) -> dict[str, list[Row]]:
        """Process and commit one batch, given by name of the stream; return the rows of each sink. drain: it is the last."""
        sinks = self.begin(rows, now_ms=now_ms, drain=drain).commit()
        self.next_txid += 1
        return sinks

    def begin(
        self, rows: Rows, attempt: int = 0, txid: int | None = None, now_ms: int | None = None, drain: bool = False
    ) -> BatchInFlight:
        """Process a batch without committing it; to drop it is to forget it. Raises SupersededError, at the first, for states that
        hold batches of another run, whose txids would come again; a txid that is given says that they are meant."""
        if not self._begun and txid is None:
            progress = Progress.of(f"a TridentRun of topology {self.plan.name!r}", 0, None)
            owned(Life(self.plan.name), self.plan.written, progress, claims=False)
        self._begun = True
        for name in rows:
            known = [str(spout.source.name) for spout in self.plan.spouts if spout.kind is not None]
            if name not in known:
                raise ConfigError(f"there is no stream {shown(name)}; {did_you_mean(str(name), known)}")
        number = self.next_txid if txid is None else txid
        batch = Batch(TransactionAttempt(number, attempt), now_ms, as_of=number - 1, drain=drain)
        groups = {self.plan.batch_groups[spout.number] for spout in self.plan.spouts if spout.kind is not None}
        return BatchInFlight(
            self, batch, groups, {spout.number: rows.get(str(spout.source.name), ()) for spout in self.plan.spouts}
        )

    def ask(self, function: str, args: str) -> list[Row]:
        """Return what a function of DRPC answers."""
        found = self.plan.drpc.get(function)
        if found is None:
            raise ConfigError(f"there is no function {shown(function)}; {did_you_mean(str(function), self.plan.drpc)}")
        groups = {self.plan.batch_groups[found.spout]}
        flight = BatchInFlight(self, Batch(("request", function)), groups, {found.spout: [(args,)]})
        flight.commit()
        return flight.answers

    def close(self) -> None:
        """Call the users' `cleanup`, and close the states."""
        for tasks in self.tasks.values():
            for task in tasks:
                task.cleanup()
        for partitions in self.states.values():
            for state in partitions:
                state.close()


class BatchInFlight:
    """One attempt at a batch, through all groups, phase by phase."""

    def __init__(
        self, run: TridentRun, batch: Batch, batch_groups: set[str], rows: Mapping[int, Iterable[Any]]
    ) -> None:
        self._run, self._plan, self._batch = run, run.plan, batch
        self.sinks: dict[str, list[Row]] = {name: [] for name in run.plan.sinks}
        self.answers: list[Row] = []
        self._tasks: dict[tuple[str, str], list[GroupBatch]] = {
            (group.id, name): [task.start_batch(name, batch) for task in run.tasks[group.id]]
            for group in self._plan.groups.values()
            for name in group.batch_groups
            if name in batch_groups and not group.is_spout
        }
        self._outlets: dict[int, list[OutletBatch]] = {
            id: [outlet.start_batch(batch) for outlet in outlets] for id, outlets in run.outlets.items()
        }
        for spout in self._plan.spouts:
            if self._plan.batch_groups[spout.number] in batch_groups:
                self._emit_spout(spout, list(rows.get(spout.number, ())))
        self._walk(Phase.PROCESS)

    def commit(self) -> dict[str, list[Row]]:
        """Commit, and return the rows of each sink."""
        self._walk(Phase.COMMIT)
        return self.sinks

    def _emit_spout(self, spout: SpoutNode, rows: list[Any]) -> None:
        group = self._plan.group_of(spout.number)
        checked = list(map(RowMaker(spout.schema).one, rows))
        for task in range(group.parallelism):
            part = checked[task :: group.parallelism]
            for exchange in self._plan.out_of(group.id):
                self._send(exchange, task, part)

    def _walk(self, phase: Phase) -> None:
        """Finish every group in order: those that it reads have been finished before it."""
        for (id, _), tasks in self._tasks.items():
            for exchange in self._plan.into(id):
                if exchange.phase is phase and exchange.to_window:
                    for outlet in self._outlets[exchange.id]:
                        for task in tasks:
                            task.learn(exchange, outlet.largest)
            for number, task in enumerate(tasks):
                try:
                    if phase is Phase.PROCESS:
                        task.finish_batch()
                    else:
                        task.commit_batch()
                finally:
                    self._run.errors += self._run.tasks[id][number].take_reports()
                self._deliver(number, task.take())

    def _deliver(self, task: int, emitted: Emitted) -> None:
        for id, rows in emitted.exchanges.items():
            self._send(self._plan.exchanges[id], task, rows)
        for name, rows in emitted.sinks.items():
            self.sinks[name] += rows
        self.answers += emitted.answers

    def _send(self, exchange: Exchange, task: int, rows: list[Row]) -> None:
        targets = self._tasks[exchange.target_group, exchange.batch_group]
        size = self._run.piece or len(rows) or 1
        for start in range(0, len(rows), size):
            for target, part in self._outlets[exchange.id][task].route(rows[start : start + size]).items():
                targets[target].execute(exchange, part)
