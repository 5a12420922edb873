"""Crew: the tasks of a topology, made and wired: each has its inbox, its outbox, and knows its place."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from windowing.acking.acker import Acker
from windowing.acking.pending import SpoutPending
from windowing.acking.retry import RetryPolicy
from windowing.runtime.checkpoints import COORDINATOR, CheckpointTask, Gate, links_of
from windowing.runtime.hub import Hub, Outbox
from windowing.runtime.spouts import SpoutTask
from windowing.runtime.stateful import StatefulBoltTask
from windowing.runtime.tasks import AckerTask, BoltTask, RichBoltTask, Task
from windowing.runtime.windowed import WindowedBoltTask
from windowing.topology.config_keys import TopologyConfig
from windowing.topology.context import TaskContext
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component, Topology
from windowing.transactions.state import StateProvider

__all__ = ["Crew", "crew_of"]

_YEARS_MS = 1 << 50
_ACKER = "__acker"


@dataclass(frozen=True, slots=True)
class Crew:
    """All tasks in the order in which a round goes through them, and some of them by kind."""

    tasks: list[Task]
    spouts: list[SpoutTask]
    windowed: list[WindowedBoltTask]
    ackers: list[AckerTask]
    coordinator: CheckpointTask | None


def crew_of(topology: Topology, hub: Hub, by_hand: bool, states: StateProvider | None = None) -> Crew:
    """Return the tasks of a topology; `by_hand`: windows over event time make no turns of their own.

    states: where the states are, for a topology with checkpoints.
    """
    inboxes: dict[str, list[deque[Any]]] = {
        component.id: [deque() for _ in range(component.parallelism)] for component in topology.components.values()
    }
    reports: deque[Any] = deque()
    tasks = [
        _task(topology, hub, topology.component(name), index, inboxes, by_hand, states, reports)
        for name in topology.order
        for index in range(topology.component(name).parallelism)
    ]
    spouts = [task for task in tasks if isinstance(task, SpoutTask)]
    ackers = _ackers(topology.config, hub, len(tasks), spouts)
    windowed = [task for task in tasks if isinstance(task, WindowedBoltTask)]
    coordinator = None if states is None else _coordinator(topology, hub, inboxes, reports, states)
    last: list[Task] = [*ackers] if coordinator is None else [coordinator, *ackers]
    return Crew([*tasks, *last], spouts, windowed, ackers, coordinator)


def _task(
    topology: Topology,
    hub: Hub,
    component: Component,
    index: int,
    inboxes: dict[str, list[deque[Any]]],
    by_hand: bool,
    states: StateProvider | None,
    reports: deque[Any],
) -> Task:
    context = TaskContext(component.id, index, component.parallelism, topology.config)
    id, inbox = topology.task_ids[component.id][index], inboxes[component.id][index]
    outbox = Outbox(hub, topology, component.id, index, inboxes)
    if component.is_spout:
        pending = SpoutPending(topology.setting(component.id, "max_spout_pending"), _retry(topology.config))
        return SpoutTask(hub, context, id, inbox, outbox, component, pending)
    tick_ms = topology.setting(component.id, "tick_tuple_freq_ms") if component.window is None else None
    if states is not None and component.stateful and component.window is None:
        links = links_of(topology, component.id, inboxes, reports)
        state = states.state(component.id, index)
        return StatefulBoltTask(hub, context, id, inbox, outbox, component, tick_ms, links, state)
    task: Task
    if component.kind is ComponentKind.WINDOWED_BOLT:
        task = WindowedBoltTask(hub, context, id, inbox, outbox, component, by_hand)
    else:
        kind = RichBoltTask if component.kind is ComponentKind.BOLT else BoltTask
        task = kind(hub, context, id, inbox, outbox, component, tick_ms)
    if states is not None:
        task.gate = Gate(task, links_of(topology, component.id, inboxes, reports))
    return task


def _coordinator(
    topology: Topology,
    hub: Hub,
    inboxes: dict[str, list[deque[Any]]],
    reports: deque[Any],
    states: StateProvider,
) -> CheckpointTask:
    spouts = {spout.id for spout in topology.spouts}
    first = [bolt.id for bolt in topology.bolts if any(found.component in spouts for found in bolt.inputs)]
    roots = [inbox for id in first for inbox in inboxes[id]]
    tasks = [id for bolt in topology.bolts for id in topology.task_ids[bolt.id]]
    context = TaskContext(COORDINATOR[0], 0, 1, topology.config)
    return CheckpointTask(hub, context, 0, reports, states, roots, tasks)


def _ackers(config: TopologyConfig, hub: Hub, tasks: int, spouts: list[SpoutTask]) -> list[AckerTask]:
    timeout_ms = config.message_timeout_ms if config.enable_message_timeouts else _YEARS_MS
    ackers = []
    for index, inbox in enumerate(hub.ackers):
        context = TaskContext(_ACKER, index, len(hub.ackers), config)
        acker = AckerTask(hub, context, tasks + 1 + index, inbox, Acker(timeout_ms, config.acker_rotation))
        acker.spouts = {spout.id: spout.inbox for spout in spouts}
        ackers.append(acker)
    return ackers


def _retry(config: TopologyConfig) -> RetryPolicy:
    return RetryPolicy(config.max_attempts, config.retry_delay_ms, cap_ms=config.retry_delay_max_ms)
