"""Components: the classes of spouts and bolts, and what `open` and `prepare` are handed.

| class                | is called                                       | who acks                                       |
|----------------------|-------------------------------------------------|------------------------------------------------|
| Spout                | open, next_tuple, ack, fail, ...                | its tuples are tracked if emitted with an id   |
| Bolt                 | prepare(context, collector), execute(tuple)     | the bolt: collector.ack(tuple) or .fail(tuple) |
| BasicBolt            | prepare(context), execute(tuple[, collector])   | the driver, when execute has returned          |
| StatefulBolt         | init_state(state), then as a Bolt               | the bolt; held until the checkpoint commits    |
| StatefulWindowedBolt | init_state(state), execute(window[, collector]) | the driver, when the tuple expires             |

A class of one's own need not inherit: only Bolt (who acks) has to be said by inheritance. Storm's `declareOutputFields` is the
`output=` of the decorator; its `topoConf` argument is `context.config`. Every task makes an instance of its own.
Source: `ISpout`, `IBolt`, `IBasicBolt`, `IStatefulBolt`, `IStatefulWindowedBolt`, `IComponent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from windowing.errors import ConfigError, quote
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean, missing
from windowing.schema.tuples import Tuple
from windowing.schema.types import Schema, declare_streams
from windowing.topology.config import TopologyConfig

__all__ = [
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "InputSpout",
    "OutputCollector",
    "Spout",
    "SpoutOutputCollector",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "TaskContext",
    "TopologyContext",
]


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
            raise ConfigError(f"there is no component {quote(component)}; {did_you_mean(str(component), known)}")
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


# -- classes of spouts and bolts, and their collectors ---------------------------------------------------------------------------


class TopologyContext(Protocol):
    """What a task knows of itself. `task` is its id, by which `emit` and `emit_direct` know it, `task_index` counts from 0 within
    the component, `component_tasks` gives the ids of a component's tasks.
    """

    @property
    def component(self) -> str: ...
    @property
    def task(self) -> int: ...
    @property
    def task_index(self) -> int: ...
    @property
    def tasks(self) -> int: ...
    @property
    def config(self) -> TopologyConfig: ...
    def component_tasks(self, component: str) -> range:
        """Return the ids of a component's tasks."""


class BasicOutputCollector(Protocol):
    """What a BasicBolt or a function emits to: every tuple is anchored to the one that is being executed.

    A row leaves when `execute` has returned, so `emit` returns no tasks. `emit_direct` takes the id of a task.
    """

    def emit(self, values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row, or an object with the stream's fields, to all that read the stream."""

    def emit_direct(self, task: int, values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row to one task of each component that reads the stream by a direct grouping."""


class OutputCollector(Protocol):
    """What a Bolt emits to; `anchors` are the tuples that the new one comes from (none: it is not tracked).

    `emit` returns the ids of the tasks that the row goes to, `emit_direct` takes one of such.
    """

    def emit(
        self, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit a row to all that read the stream, and return the ids of the tasks that it goes to."""

    def emit_direct(
        self, task: int, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a row to one task, by a direct grouping."""

    def ack(self, tuple: Tuple) -> None:
        """Say that a tuple is done; what was anchored to it is not waited for by the bolt."""

    def fail(self, tuple: Tuple) -> None:
        """Say that a tuple failed: its spout is notified, and may emit it again."""

    def reset_timeout(self, tuple: Tuple) -> None:
        """Begin the timeout of a tuple's trees anew."""

    def report_error(self, error: BaseException) -> None:
        """Report an error without ending anything."""


class SpoutOutputCollector(Protocol):
    """What a spout emits to; a tuple with a `message_id` is tracked, and comes back by `ack` or `fail` with it."""

    def emit(self, values: Any, *, message_id: Any = None, stream: str = DEFAULT_STREAM) -> Sequence[int]:
        """Emit a row to all that read the stream, and return the ids of the tasks that it goes to."""

    def emit_direct(self, task: int, values: Any, *, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row to one task, by a direct grouping."""

    def report_error(self, error: BaseException) -> None:
        """Report an error without ending anything."""


class _Component:
    def get_component_configuration(self) -> Mapping[str, Any] | None:
        """Return settings of this component alone, by Storm's keys; read once, when the topology is built."""
        return None


class Spout(_Component, ABC):
    """A source of tuples. `ack`, `fail` and `give_up` may take (message_id, values): then they are handed the values too.

    `fail` asks for a message again, after its back-off; `give_up` says that it failed for the last time and is a dead letter.

    The driver calls `next_tuple` again and again, one call at a time, on the thread of `ack` and `fail`; emitting nothing
    says that there is nothing now. Source: `ISpout`, JStorm's `IAckValueSpout` and `IFailValueSpout`.
    """

    def open(self, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Begin: called once, before anything else."""
        self.context, self.collector = context, collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit some tuples to the collector, or none; never wait."""

    # These are given more than one argument by some spouts, so their types are left open here.
    ack: Any = None
    fail: Any = None
    give_up: Any = None

    def activate(self) -> None:
        """Go on after `deactivate`."""

    def deactivate(self) -> None:
        """Pause: `next_tuple` is not called until `activate`."""

    def close(self) -> None:
        """End; not called where the process is killed."""


class Bolt(_Component, ABC):
    """A bolt that anchors and acks by itself. Every tuple has to be acked or failed in the end. Source: `IRichBolt`."""

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Begin: called once, before the first tuple."""
        self.context, self.collector = context, collector

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Take one tuple; ack or fail it now or later."""

    def cleanup(self) -> None:
        """End; not called where the process is killed."""


class BasicBolt(_Component, ABC):
    """A bolt whose tuples are acked when `execute` returns; what it emits is anchored to the tuple. Source: `IBasicBolt`.

    `execute` takes (tuple) and returns or yields rows, or (tuple, collector) and emits them.
    """

    # One or two parameters, as the class needs; @bolt checks which.
    execute: Any

    def prepare(self, context: TopologyContext) -> None:
        """Begin: called once, before the first tuple."""

    def cleanup(self) -> None:
        """End; not called where the process is killed."""


class _Stateful:
    @abstractmethod
    def init_state(self, state: Any) -> None:
        """Take the state, before the first tuple and again after each rollback."""

    def pre_prepare(self, txid: int) -> None:
        """Put what is in memory into the state: checkpoint `txid` is about to be prepared."""

    def pre_commit(self, txid: int) -> None:
        """Checkpoint `txid` is about to be committed."""

    def pre_rollback(self) -> None:
        """Forget what is in memory: `init_state` comes next."""


class StatefulBolt(_Stateful, Bolt):
    """A Bolt with a state that outlives it; `ack` takes effect when the checkpoint commits. Source: `IStatefulBolt`."""


class StatefulWindowedBolt(_Stateful, ABC):
    """A windowed bolt with a state; mark it with @windowed_bolt. Source: `IStatefulWindowedBolt`."""

    execute: Any

    def prepare(self, context: TopologyContext) -> None:
        """Begin: called once, before the first window."""

    def cleanup(self) -> None:
        """End; not called where the process is killed."""


@dataclass(frozen=True, slots=True, init=False)
class InputSpout:
    """A source that the driver is handed when it starts: batches of rows in one process, a streaming DataFrame on Spark.

    >>> InputSpout("word string").outputs["default"].names
    ('word',)
    """

    outputs: Mapping[str, Schema]

    def __init__(self, output: str | Schema | Mapping[str, str | Schema]) -> None:
        object.__setattr__(self, "outputs", declare_streams(output))
