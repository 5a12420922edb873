"""TaskContext: what a task is told of itself when it begins."""

from __future__ import annotations

from typing import Any, NamedTuple

from windowing.core.storm_names import missing
from windowing.topology.config_keys import TopologyConfig

__all__ = ["TaskContext"]


class TaskContext(NamedTuple):
    """What `open` and `prepare` are handed: a TopologyContext. Source: the parts of Storm's that mean something here.

    component: the id in the topology, or the bolt's name where it runs alone. task: from 0 to tasks - 1. config: the
    settings; what Storm passes as `topoConf`.

    >>> TaskContext("count", task=1, tasks=4).config.message_timeout_ms
    30000
    """

    component: str
    task: int = 0
    tasks: int = 1
    config: TopologyConfig = TopologyConfig()

    def called(self, kind: str) -> str:
        """Return how errors call the task: its component, and the task where there are several.

        >>> TaskContext("count").called("bolt"), TaskContext("count", 1, 4).called("bolt")
        ("bolt 'count'", "task 1 of bolt 'count'")
        """
        return f"task {self.task} of {kind} {self.component!r}" if self.tasks > 1 else f"{kind} {self.component!r}"


_IN_STORM = {
    "getThisTaskId": "context.task, which counts from 0 within the component",
    "getThisTaskIndex": "context.task",
    "getThisComponentId": "context.component",
    "getComponentId": "context.component",
    "getComponentTasks": "range(context.tasks)",
    "getConf": "context.config",
    "get": 'context.config.own["app.key"], or context.config by typed names',
}


def _no_such(context: TaskContext, name: str) -> Any:
    raise missing(type(context), name, _IN_STORM)


TaskContext.__getattr__ = _no_such  # type: ignore[attr-defined]  # the body of a NamedTuple would type it
