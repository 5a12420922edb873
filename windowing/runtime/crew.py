"""Crew: the tasks of a topology, made and wired: each has its inbox, its outbox, and knows its place."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from windowing.acking.acker import Acker
from windowing.acking.pending import SpoutPending
from windowing.acking.retry import RetryPolicy
from windowing.core.executor import WindowedBoltExecutor
from windowing.errors import ConfigError
from windowing.runtime.checkpoints import COORDINATOR, CheckpointTask, Gate, Links, links_of
from windowing.runtime.hub import Hub, Outbox
from windowing.runtime.kept_windows import PagedWindowTask, RecoveredWindowTask
from windowing.runtime.persistent import PersistentWindow
from windowing.runtime.spouts import SpoutTask
from windowing.runtime.stateful import StatefulBoltTask
from windowing.runtime.tasks import AckerTask, BoltTask, RichBoltTask, Task
from windowing.runtime.windowed import WindowedBoltTask, streams_of
from windowing.topology.config_keys import TopologyConfig
from windowing.topology.context import TaskContext
from windowing.topology.letters import DEAD_LETTERS
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component, Topology
from windowing.transactions.state import StateProvider

__all__ = ["Crew", "crew_of"]

_Place = tuple[Hub, TaskContext, int, deque[Any], Outbox, Component]
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

    states: where the states are, for a topology with checkpoints. Raises ConfigError for a bolt that cannot be kept there, and for
    a setting of a spout that its batches leave without effect.
    """
    hall = _Hall(topology, hub, by_hand, states)
    tasks = [
        hall.task(topology.component(name), index)
        for name in topology.order
        for index in range(topology.component(name).parallelism)
    ]
    hall.letters()
    spouts = [task for task in tasks if isinstance(task, SpoutTask)]
    ackers = _ackers(topology.config, hub, len(tasks), spouts)
    windowed = [task for task in tasks if isinstance(task, WindowedBoltTask)]
    coordinator = None if states is None else hall.coordinator(states)
    last: list[Task] = [*ackers] if coordinator is None else [coordinator, *ackers]
    return Crew([*tasks, *last], spouts, windowed, ackers, coordinator)


class _Hall:
    """What is there before the tasks are: their inboxes, and the one for reports of checkpoints."""

    def __init__(self, topology: Topology, hub: Hub, by_hand: bool, states: StateProvider | None) -> None:
        self._topology, self._hub, self._by_hand, self._states = topology, hub, by_hand, states
        self._inboxes: dict[str, list[deque[Any]]] = {
            component.id: [deque() for _ in range(component.parallelism)] for component in topology.components.values()
        }
        self._reports: deque[Any] = deque()

    def task(self, component: Component, index: int) -> Task:
        """Return one task of a component."""
        topology, hub = self._topology, self._hub
        config = topology.config_of(component.id)
        context = TaskContext(component.id, index, component.parallelism, config, topology.task_ids)
        id, inbox = topology.task_ids[component.id][index], self._inboxes[component.id][index]
        place = (hub, context, id, inbox, Outbox(hub, topology, component.id, index, self._inboxes), component)
        if component.is_spout:
            fed = self._by_hand and component.kind is ComponentKind.INPUT
            if fed and component.config.max_spout_pending is not None:
                raise ConfigError(
                    f"InputSpout {component.id!r} says max_spout_pending={component.config.max_spout_pending}, but its rows are "
                    "handed over in batches, and a batch comes whole; leave it out, or give rows by run_batch without batches="
                )
            # A batch comes whole: tuples that wait in windows for its turn would keep the rest of it out.
            limit = None if fed else topology.setting(component.id, "max_spout_pending")
            return SpoutTask(*place, SpoutPending(limit, _retry(topology.config)))
        tick_ms = topology.setting(component.id, "tick_tuple_freq_ms") if component.window is None else None
        if self._states is not None and component.checkpointed:
            return self._kept(component, index, place, tick_ms, self._states)
        task: Task
        if component.window is not None:
            task = WindowedBoltTask(*place, self._by_hand)
        else:
            kind = RichBoltTask if component.kind is ComponentKind.BOLT else BoltTask
            task = kind(*place, tick_ms)
        if self._states is not None:
            task.gate = Gate(task, self._links(component))
        return task

    def letters(self) -> None:
        """Let spouts send dead letters of other components: of each, where somebody reads them."""
        for name in self._topology.components:
            outbox = Outbox(self._hub, self._topology, name, 0, self._inboxes)
            if outbox.is_read(DEAD_LETTERS):
                self._hub.letters[name] = outbox

    def _kept(
        self, component: Component, index: int, place: _Place, tick_ms: int | None, states: StateProvider
    ) -> Task:
        """Return a task that outlives its process."""
        links, window = self._links(component), component.window
        state = states.state(component.id, index) if component.stateful else None
        if window is None:
            assert state is not None
            return StatefulBoltTask(*place, tick_ms, links, state)
        streams = tuple(streams_of(component).values())
        if window.config.max_events_in_memory is not None:
            pages = states.pages(component.id, index)
            pages.task_ids = self._topology.task_ids
            kept = PersistentWindow(window.config, None, streams, component.id, pages=pages)
            return PagedWindowTask(*place, self._by_hand, window=kept, links=links, state=state)
        rows = states.state(component.id, index, "windows")
        executor = WindowedBoltExecutor(window.config, streams, component.id, sequenced=True, keep_tuples=True)
        return RecoveredWindowTask(*place, self._by_hand, executor=executor, links=links, state=state, rows=rows)

    def _links(self, component: Component) -> Links:
        return links_of(self._topology, component.id, self._inboxes, self._reports)

    def coordinator(self, states: StateProvider) -> CheckpointTask:
        """Return the task that begins checkpoints."""
        topology = self._topology
        spouts = {spout.id for spout in topology.spouts}
        first = [bolt.id for bolt in topology.bolts if any(found.component in spouts for found in bolt.inputs)]
        roots = [inbox for id in first for inbox in self._inboxes[id]]
        tasks = [id for bolt in topology.bolts for id in topology.task_ids[bolt.id]]
        context = TaskContext(COORDINATOR[0], 0, 1, topology.config)
        return CheckpointTask(self._hub, context, 0, self._reports, states, roots, tasks)


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
    return RetryPolicy.of(config)
