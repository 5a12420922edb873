"""Components: the base classes of spouts and bolts, and the arguments of `open` and `prepare`.

| class                | its methods                                     | acked by                                       |
|----------------------|-------------------------------------------------|------------------------------------------------|
| Spout                | open, next_tuple, ack, fail, ...                | its tuples are tracked if emitted with an id   |
| Bolt                 | prepare(context, collector), execute(tuple)     | the bolt: collector.ack(tuple) or .fail(tuple) |
| BasicBolt            | prepare(context), execute(tuple[, collector])   | the driver, after execute has returned         |
| StatefulBolt         | init_state(state), then as a Bolt               | the bolt; held until the checkpoint commits    |
| StatefulWindowedBolt | init_state(state), execute(window[, collector]) | the driver, when the tuple expires             |

A user's class need not inherit, except from Bolt, which declares that it acks by itself. The `output=` of the decorator replaces
Storm's `declareOutputFields`; `context.config` replaces its `topoConf` argument. Every task makes its own instance.
Source: `ISpout`, `IBolt`, `IBasicBolt`, `IStatefulBolt`, `IStatefulWindowedBolt`, `IComponent`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from windowing.errors import ConfigError, by_name, quote
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean, missing
from windowing.schema.tuples import Tuple
from windowing.schema.types import Schema, declare_streams
from windowing.topology.config import TopologyConfig
from windowing.windows.measures import Duration


class TopologyContext(NamedTuple):
    """What `open` and `prepare` get: the identity of a task within its topology. Of Storm's class it has the parts that have a
    meaning here.

    component: the id in the topology, or the bolt's name where it runs alone. task_index: from 0 to tasks - 1 (Storm's
    `getThisTaskIndex`). config: the settings; Storm's `topoConf`. task_ids: the ids of the tasks of each component of a topology.
    It is empty for a bolt that runs alone and in Trident, where there is no other task to send to; a task's id is then its index.

    >>> context = TopologyContext("count", task_index=1, tasks=4, task_ids={"count": range(2, 6)})
    >>> context.task, context.component_tasks("count"), TopologyContext("count", 1, 4).task
    (3, range(2, 6), 1)
    """

    component: str
    task_index: int = 0
    tasks: int = 1
    config: TopologyConfig = TopologyConfig()
    task_ids: Mapping[str, range] = {}

    @property
    def task(self) -> int:
        """The id of the task, as `emit` returns it and `emit_direct` takes it. Source: `getThisTaskId`."""
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
        """Return the name of the task in errors: its component, with the task's index where there are several.

        >>> TopologyContext("count").called("bolt"), TopologyContext("count", 1, 4).called("bolt")
        ("bolt 'count'", "task 1 of bolt 'count'")
        """
        return (
            f"task {self.task_index} of {kind} {self.component!r}" if self.tasks > 1 else f"{kind} {self.component!r}"
        )


_IN_STORM = {
    "getThisTaskId thisTaskId task_id": "context.task",
    "getThisTaskIndex getPartitionIndex": "context.task_index",
    "numPartitions": "context.tasks",
    "getThisComponentId": "context.component",
    "getComponentId": "context.component for the own component, tuple.source_component for that of a tuple",
    "getStormId": "the name of the topology in the constructor of the component; there is no id beside it",
    (
        "getThisSources getSources getThisTargets getTargets getThisStreams getThisOutputFields "
        "getThisOutputFieldsForStreams getThisInputFields getComponentCommon getComponentOutputFields "
        "getComponentStreams getComponentIds getTaskToComponent getRawTopology"
    ): (
        "what the component has to know of its topology in its constructor: functools.partial(Join, ('id', 'age')); "
        "tuple.source_component and tuple.get_fields() are those of a tuple"
    ),
    (
        "setTaskData getTaskData setExecutorData getExecutorData getResource getSharedExecutor getCodeDir getPIDDir"
    ): "an attribute of your own in prepare or open: self.cache = {}",
    "getThisWorkerPort getThisWorkerTasks getWorkerTasks getNodeToHost": "context.task; there are no workers of Storm",
    "getComponentTasks": "context.component_tasks(component)",
    "getConf": "context.config",
    (
        "registerMetric registerMetricSet getRegisteredMetricByName registerCounter registerGauge registerMeter "
        "registerTimer registerHistogram"
    ): "a metric of your own as the client of your exporter says; those of tasks are counted already (windowing.monitoring)",
    "addTaskHook getHooks": "code of your own in prepare and execute; there are no hooks of tasks",
    "get": 'context.config.own["app.key"], or context.config by typed names',
}
_OF_CONTEXT = ("component", "component_tasks", "config", "task", "task_ids", "task_index", "tasks")
"""What a component reads of its context: not what errors call the task, and not the methods that every tuple of Python has."""


def _no_such(context: TopologyContext, name: str) -> Any:
    raise missing(type(context), name, by_name(_IN_STORM), fields=_OF_CONTEXT)


TopologyContext.__getattr__ = _no_such  # type: ignore[attr-defined]  # the body of a NamedTuple would type it


# -- classes of spouts and bolts, and their collectors ---------------------------------------------------------------------------


class BasicOutputCollector(Protocol):
    """The collector of a BasicBolt or a function: every emitted tuple is anchored to the tuple that is being executed.

    Rows are sent after `execute` has returned, so `emit` returns no tasks. `emit_direct` takes the id of a task.
    """

    def emit(self, values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row to all subscribers of the stream."""

    def emit_direct(self, task: int, values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row to one task of each component that subscribes to the stream by a direct grouping."""


class OutputCollector(Protocol):
    """The collector of a Bolt; `anchors` are the tuples from which the new one is derived (none: it is not tracked).

    `emit` returns the ids of the tasks that get the row; `emit_direct` takes one such id.
    """

    def emit(
        self, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit a row to all subscribers of the stream, and return the ids of the tasks that get it."""

    def emit_direct(
        self, task: int, values: Any, *, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a row to one task, by a direct grouping."""

    def ack(self, tuple: Tuple) -> None:
        """Ack a tuple: this bolt is done with it; its anchored descendants are acked by the bolts that get them."""

    def fail(self, tuple: Tuple) -> None:
        """Fail a tuple: its spout is notified, and may emit it again."""

    def reset_timeout(self, tuple: Tuple) -> None:
        """Restart the timeout of a tuple's trees."""

    def report_error(self, error: BaseException) -> None:
        """Report an error; processing continues."""


class SpoutOutputCollector(Protocol):
    """The collector of a spout; a tuple with a `message_id` is tracked, and the spout's `ack` or `fail` is called with the id."""

    def emit(self, values: Any, *, message_id: Any = None, stream: str = DEFAULT_STREAM) -> Sequence[int]:
        """Emit a row to all subscribers of the stream, and return the ids of the tasks that get it."""

    def emit_direct(self, task: int, values: Any, *, message_id: Any = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit a row to one task, by a direct grouping."""

    def sleep(self, span: Duration | timedelta) -> None:
        """Wait with the next call of `next_tuple` until `span` has passed. It returns at once: the other tasks go on."""

    def report_error(self, error: BaseException) -> None:
        """Report an error; processing continues."""


class _Component:
    def get_component_configuration(self) -> Mapping[str, Any] | None:
        """Return settings of this component only, by Storm's keys; called once, when the topology is built."""
        return None


class Spout(_Component, ABC):
    """A source of tuples. The driver calls `open`, then `next_tuple` again and again, `ack` or `fail` of what was emitted,
    `close`.

    `next_tuple` emits to `self.collector`, with `message_id=` if the tuple is to be acked. `ack`, `fail` and `give_up` may take
    (message_id, values); then they get the values too. The driver calls `fail` after the back-off of a failed message, so that the
    spout emits it again, and `give_up` when the message has failed for the last time and is a dead letter.

    All calls come one at a time, on one thread. A `next_tuple` that emits nothing means that there is no data now. Source:
    `ISpout`, JStorm's `IAckValueSpout` and `IFailValueSpout`.
    """

    def open(self, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Open the spout: called once, before every other method."""
        self.context, self.collector = context, collector

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit some tuples to the collector, or none; do not block: to wait, call `collector.sleep(millis(100))`."""

    # Some spouts take more than one argument here, so the types are left open.
    ack: Any = None
    fail: Any = None
    give_up: Any = None

    def activate(self) -> None:
        """Begin after `open`, or resume after `deactivate`. In Trident, as in Storm, it is not called."""

    def deactivate(self) -> None:
        """Pause: `next_tuple` is not called until `activate`."""

    def close(self) -> None:
        """Close the spout; not called when the process is killed."""


class Bolt(_Component, ABC):
    """A bolt that anchors and acks by itself: `collector.emit(values, anchors=tuple)`, `collector.ack(tuple)`, `.fail(tuple)`.

    It must ack or fail every tuple eventually: what it forgets times out, and on Spark fails at the end of the batch. A
    FailedException that `execute` raises fails its tuple. Source: `IRichBolt`.

    >>> from windowing import Bolt, bolt
    >>> @bolt(output="word string")
    ... class Split(Bolt):
    ...     def execute(self, tuple):
    ...         for word in tuple["sentence"].split():
    ...             self.collector.emit((word,), anchors=tuple)
    ...         self.collector.ack(tuple)
    """

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the bolt: called once, before the first tuple."""
        self.context, self.collector = context, collector

    @abstractmethod
    def execute(self, tuple: Tuple, /) -> None:
        """Process one tuple; ack or fail it now or later."""

    def cleanup(self) -> None:
        """Release resources; not called when the process is killed."""


class BasicBolt(_Component, ABC):
    """A bolt whose tuples the driver acks when `execute` returns; its rows are anchored to the tuple. Source: `IBasicBolt`.

    `execute` takes (tuple) and returns or yields rows, or (tuple, collector) and emits them.
    """

    # It has one or two parameters, as the class needs; @bolt checks them.
    execute: Any

    def prepare(self, context: TopologyContext) -> None:
        """Prepare the bolt: called once, before the first tuple."""

    def cleanup(self) -> None:
        """Release resources; not called when the process is killed."""


class _Stateful(ABC):
    @abstractmethod
    def init_state(self, state: Any) -> None:
        """Keep the state; called before the first tuple and again after each rollback."""

    def pre_prepare(self, txid: int) -> None:  # noqa: B027 - optional
        """Write values held in memory to the state: checkpoint `txid` is about to be prepared."""

    def pre_commit(self, txid: int) -> None:  # noqa: B027 - optional
        """Commit something outside: the state of checkpoint `txid` is prepared. What is put into it now is of the next one."""

    def pre_rollback(self) -> None:  # noqa: B027 - optional
        """Discard values held in memory: `init_state` is called next."""


class StatefulBolt(_Stateful, Bolt):
    """A Bolt with a state that survives its task; `ack` takes effect when the checkpoint commits. Source: `IStatefulBolt`.

    `init_state(state)` gets a KeyValueState: `state.get(key, default)`, `state.put(key, value)`.
    """


class StatefulWindowedBolt(_Stateful):
    """A windowed bolt with a state; mark it with @windowed_bolt. Source: `IStatefulWindowedBolt`."""

    execute: Any

    def prepare(self, context: TopologyContext) -> None:
        """Prepare the bolt: called once, before the first window."""

    def cleanup(self) -> None:
        """Release resources; not called when the process is killed."""


@dataclass(frozen=True, slots=True, init=False)
class InputSpout:
    """A source whose rows are passed to the driver at its start: batches of rows in one process, a streaming DataFrame on Spark.

    >>> InputSpout("word string").outputs["default"].names
    ('word',)
    """

    outputs: Mapping[str, Schema]

    def __init__(self, output: str | Schema | Mapping[str, str | Schema]) -> None:
        object.__setattr__(self, "outputs", declare_streams(output))
