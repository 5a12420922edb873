"""TaskContext: what a task is told of itself when it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from windowing.core.checks import did_you_mean
from windowing.core.storm_names import missing
from windowing.errors import ConfigError, shown
from windowing.topology.config_keys import TopologyConfig

__all__ = ["TaskContext"]


class TaskContext(NamedTuple):
    """What `open` and `prepare` are handed: a TopologyContext. Source: the parts of Storm's that mean something here.

    component: the id in the topology, or the bolt's name where it runs alone. task_index: from 0 to tasks - 1 (Storm's
    `getThisTaskIndex`). config: the settings; what Storm passes as `topoConf`. task_ids: the ids of the tasks of each component of
    a topology; empty where there is none to send to: alone, and in Trident, a task's id is its index.

    >>> context = TaskContext("count", task_index=1, tasks=4, task_ids={"count": range(2, 6)})
    >>> context.task, context.component_tasks("count"), TaskContext("count", 1, 4).task
    (3, range(2, 6), 1)
    """

    component: str
    task_index: int = 0
    tasks: int = 1
    config: TopologyConfig = TopologyConfig()
    task_ids: Mapping[str, range] = {}

    @property
    def task(self) -> int:
        """The id of the task: what `emit` returns and `emit_direct` takes. Source: `getThisTaskId`."""
        return self.component_tasks(self.component)[self.task_index]

    def component_tasks(self, component: str) -> range:
        """Return the ids of a component's tasks. Source: `getComponentTasks`."""
        found = self.task_ids.get(component)
        if found is not None:
            return found
        if self.task_ids or component != self.component:
            known = self.task_ids or {self.component: range(self.tasks)}
            raise ConfigError(f"there is no component {shown(component)}; {did_you_mean(str(component), known)}")
        return range(self.tasks)

    def called(self, kind: str) -> str:
        """Return how errors call the task: its component, and the task where there are several.

        >>> TaskContext("count").called("bolt"), TaskContext("count", 1, 4).called("bolt")
        ("bolt 'count'", "task 1 of bolt 'count'")
        """
        return (
            f"task {self.task_index} of {kind} {self.component!r}" if self.tasks > 1 else f"{kind} {self.component!r}"
        )


_IN_STORM = {
    "getThisTaskId": "context.task",
    "getThisTaskIndex": "context.task_index",
    "getThisComponentId": "context.component",
    "getComponentId": "context.component",
    "getComponentTasks": "context.component_tasks(component)",
    "getConf": "context.config",
    "get": 'context.config.own["app.key"], or context.config by typed names',
}


def _no_such(context: TaskContext, name: str) -> Any:
    raise missing(type(context), name, _IN_STORM)


TaskContext.__getattr__ = _no_such  # type: ignore[attr-defined]  # the body of a NamedTuple would type it
