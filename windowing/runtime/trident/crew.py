"""TridentCrew: the tasks of a plan, made and wired.

master, then a coordinator for each spout, then one task per (group, index) in the order of the plan, the acker last
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windowing.acking.acker import Acker
from windowing.runtime.tasks import AckerTask, Task
from windowing.runtime.trident.emitting import CoordinatorTask, EmitterTask, RequestTask
from windowing.runtime.trident.groups import GroupTask
from windowing.runtime.trident.hub import TridentHub
from windowing.runtime.trident.master import MasterTask
from windowing.runtime.trident.spouts import batch_spout_of
from windowing.topology.context import TaskContext
from windowing.topology.trident.graph import SpoutNode
from windowing.topology.trident.plan import GroupPlan, TridentPlan
from windowing.transactions.coordinator_rules import CoordinatorConfig
from windowing.transactions.spouts import ICommitterTridentSpout
from windowing.transactions.transactional_state import RecordStore, TransactionalState, part_of

__all__ = ["TridentCrew", "coordinator_state", "crew_of"]

_YEARS_MS = 1 << 50
Given = Mapping[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class TridentCrew:
    """All tasks in the order in which a round goes through them, and some of them by kind."""

    tasks: list[Task]
    master: MasterTask
    requests: dict[str, RequestTask]


def coordinator_state(plan: TridentPlan, store: RecordStore) -> TransactionalState:
    """Return where the records of a topology's coordinator are."""
    return _root(plan, store).at("master")


def _root(plan: TridentPlan, store: RecordStore) -> TransactionalState:
    return TransactionalState(store, part_of(plan.name))


def crew_of(
    plan: TridentPlan,
    hub: TridentHub,
    config: CoordinatorConfig,
    store: RecordStore,
    states: Mapping[str, list[Any]],
    given: Given,
) -> TridentCrew:
    """Return the tasks of a plan. states: all partitions by id. given: rows in place of spouts, by stream."""
    hall = _Hall(plan, hub, config, store, states, given)
    for group in plan.groups.values():
        hall.add(group)
    timeout_ms = hall.timeout_ms
    acker = AckerTask(hub, TaskContext("__acker", 0, 1, plan.config), hall.next_id(), hub.ackers[0], Acker(timeout_ms))
    owners: list[Task] = [hall.master, *hall.requests.values()]
    acker.spouts = {owner.id: owner.inbox for owner in owners}
    return TridentCrew([hall.master, *hall.master.spouts, *hall.tasks, acker], hall.master, hall.requests)


class _Hall:
    """What is there before the tasks are: their inboxes, their stores, and the master."""

    def __init__(
        self,
        plan: TridentPlan,
        hub: TridentHub,
        config: CoordinatorConfig,
        store: RecordStore,
        states: Mapping[str, list[Any]],
        given: Given,
    ) -> None:
        self._plan, self._hub, self._states, self._given = plan, hub, states, given
        self._state = _root(plan, store)
        self._ids = 0
        self.tasks: list[Task] = []
        self.requests: dict[str, RequestTask] = {}
        times_out = plan.config.enable_message_timeouts
        self.timeout_ms = plan.config.message_timeout_ms if times_out else _YEARS_MS
        # A task may hold a batch for as long as those before it are tried: the trees time out, never this.
        self._patience_ms = 2 * self.timeout_ms * (config.max_pending + 1)
        self._requests = frozenset(plan.batch_groups[found.spout] for found in plan.drpc.values())
        self.master = MasterTask(hub, self.next_id(), plan, config, coordinator_state(plan, store))
        for group in plan.groups.values():
            hub.inboxes |= {(group.id, task): deque() for task in range(group.parallelism)}

    def next_id(self) -> int:
        """Return the number of one more task."""
        self._ids += 1
        return self._ids

    def add(self, group: GroupPlan) -> None:
        """Make the tasks of a group."""
        if not group.is_spout:
            self._add_operations(group)
            return
        node = self._plan.graph.nodes[group.nodes[0]]
        assert isinstance(node, SpoutNode)
        if node.kind is None:
            task = self.requests[str(node.source.name)] = RequestTask(self._hub, self.next_id(), self._plan, node)
            self.tasks.append(task)
        else:
            self._add_spout(group, node)

    def _add_spout(self, group: GroupPlan, node: SpoutNode) -> None:
        plan, hub, name = self._plan, self._hub, str(node.source.name)
        state = self._state.at(f"spouts/{part_of(name)}")
        rows, batch_group = self._given.get(name), plan.batch_groups[node.number]
        spouts = [batch_spout_of(node, rows, plan.config.max_batch_size) for _ in range(group.parallelism)]
        context = TaskContext(name, 0, group.parallelism, plan.config)
        coordinator = CoordinatorTask(hub, context, self.next_id(), spouts[0][0], state)
        self.master.spouts.append(coordinator)
        self.master.readers.append((coordinator.inbox, batch_group))
        for task, (spout, single) in enumerate(spouts):
            emitter = EmitterTask(hub, self.next_id(), plan, node, task, spout=spout, state=state)
            self.tasks.append(emitter)
            coordinator.emitters.append(emitter.inbox)
            coordinator.singles += [] if single is None else [single]
            self.master.readers.append((emitter.inbox, batch_group))
            if isinstance(spout, ICommitterTridentSpout):
                self.master.committers.append((emitter.inbox, batch_group))

    def _add_operations(self, group: GroupPlan) -> None:
        for task in range(group.parallelism):
            made = GroupTask(
                self._hub,
                self.next_id(),
                self._plan,
                group,
                task,
                states={id: partitions[task] for id, partitions in self._states.items() if task < len(partitions)},
                windows=self._state.at(f"windows/{part_of(group.id)}/{task}"),
                requests=self._requests,
                timeout_ms=self._patience_ms,
            )
            self.tasks.append(made)
            for name, spec in made.executor.specs.items():
                if name not in self._requests:
                    self.master.readers.append((made.inbox, name))
                    if spec.commits:
                        self.master.committers.append((made.inbox, name))
