"""Crew: the tasks of a topology, made and wired: each has its inbox, its outbox, and knows its place."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from windowing.acking.acker import Acker
from windowing.acking.pending import SpoutPending
from windowing.acking.retry import RetryPolicy
from windowing.runtime.hub import Hub, Outbox
from windowing.runtime.spouts import SpoutTask
from windowing.runtime.tasks import AckerTask, BoltTask, RichBoltTask, Task
from windowing.runtime.windowed import WindowedBoltTask
from windowing.topology.config_keys import TopologyConfig
from windowing.topology.context import TaskContext
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component, Topology

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


def crew_of(topology: Topology, hub: Hub, by_hand: bool) -> Crew:
    """Return the tasks of a topology; `by_hand`: windows over event time make no turns of their own."""
    inboxes: dict[str, list[deque[Any]]] = {
        component.id: [deque() for _ in range(component.parallelism)] for component in topology.components.values()
    }
    tasks = [
        _task(topology, hub, topology.component(name), index, inboxes, by_hand)
        for name in topology.order
        for index in range(topology.component(name).parallelism)
    ]
    spouts = [task for task in tasks if isinstance(task, SpoutTask)]
    ackers = _ackers(topology.config, hub, len(tasks), spouts)
    windowed = [task for task in tasks if isinstance(task, WindowedBoltTask)]
    return Crew([*tasks, *ackers], spouts, windowed, ackers)


def _task(
    topology: Topology,
    hub: Hub,
    component: Component,
    index: int,
    inboxes: dict[str, list[deque[Any]]],
    by_hand: bool,
) -> Task:
    context = TaskContext(component.id, index, component.parallelism, topology.config)
    id, inbox = topology.task_ids[component.id][index], inboxes[component.id][index]
    outbox = Outbox(hub, topology, component.id, index, inboxes)
    if component.is_spout:
        pending = SpoutPending(topology.setting(component.id, "max_spout_pending"), _retry(topology.config))
        return SpoutTask(hub, context, id, inbox, outbox, component, pending)
    if component.kind is ComponentKind.WINDOWED_BOLT:
        return WindowedBoltTask(hub, context, id, inbox, outbox, component, by_hand)
    kind = RichBoltTask if component.kind is ComponentKind.BOLT else BoltTask
    return kind(hub, context, id, inbox, outbox, component, topology.setting(component.id, "tick_tuple_freq_ms"))


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
