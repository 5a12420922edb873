"""The execution context: the data of a topology for its workers; made on the driver and sent with the code.

It has everything that a StageWriter needs to send tuples (stage_writer.py), and a task to process a batch (stages.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import pyarrow as pa

from windowing.acking.pending import RetryPolicy
from windowing.columnar.bolts import arrow_schema
from windowing.errors import ConfigError
from windowing.execution.plan import ExecutionPlan, plan_of_topology
from windowing.schema.tuples import Origin, Tuple, fields_of
from windowing.schema.values import nested_in, with_copies
from windowing.spark.acks import NO_ROOTS, Roots
from windowing.spark.exchange import with_max_future
from windowing.spark.unreadable import Held, plain
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.topology.plan import Component, Topology, stream_name
from windowing.windows.executor import refuse_tables

Copy = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Returns a copy of the values of a row, with lists and dicts of its own."""


@dataclass(frozen=True)
class ExecutionContext:
    """The data of a topology for its workers.

    `schemas`, `sinks`: by `stream_name`, the fields of each stream, and the streams with a sink. `windows`: the windowed bolts by
    component id, with Spark's defaults in their configuration. `acks`: the streams of spouts, as (component, stream), whose batches
    are roots (acks.py), with the number of each. `batches_before`: the number of batches of earlier checkpoints that this one
    continues; the numbers of roots and edges continue too. `task_ids`: the ids of the tasks of each component. `turns`: the tasks
    that have worked in this process (StageTaskTurn), by number.
    """

    topology: Topology
    plan: ExecutionPlan
    schemas: Mapping[str, pa.Schema]
    sinks: frozenset[str]
    retry: RetryPolicy
    windows: Mapping[str, WindowedBolt]
    task_ids: Mapping[str, range]
    acks: Mapping[tuple[str, str], int]
    batches_before: int
    turns: dict[int, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    _origins: dict[tuple[str, int, str], Origin] = field(default_factory=dict, init=False, compare=False, repr=False)

    def component(self, name: str) -> Component:
        return self.topology.components[name]

    def context(self, component: str, task: int) -> TopologyContext:
        """Return the TopologyContext of the task with this index."""
        config = self.topology.config_of(component)
        return TopologyContext(component, task, self.component(component).parallelism, config, self.task_ids)

    def origin(self, component: str, task: int, stream: str) -> Origin:
        """Return the origin of the tuples that a task emits on a stream; equal ones are one object."""
        key = (component, task, stream)
        if key not in self._origins:
            fields = fields_of(self.component(component).outputs[stream].schema.names)
            self._origins[key] = Origin(component, task, fields, stream, self.task_ids)
        return self._origins[key]

    @cached_property
    def copies(self) -> Mapping[str, Mapping[tuple[str, str], Copy]]:
        """What copies the rows that a component reads of a (component, stream), by component; only if they have lists or dicts."""
        found: dict[str, dict[tuple[str, str], Copy]] = {}
        for name, component in self.topology.components.items():
            for read in component.inputs:
                nested = nested_in(self.component(read.component).outputs[read.stream].schema.types)
                if nested:
                    found.setdefault(name, {})[read.component, read.stream] = partial(_copied, nested)
        return found

    @cached_property
    def columnar(self) -> frozenset[str]:
        """The bolts that take batches in columns."""
        return frozenset(
            name for name, component in self.topology.components.items() if component.declaration.columnar is not None
        )

    @cached_property
    def phases(self) -> Mapping[tuple[str, int], int]:
        """The phase of each windowed task, from 1, in the order of the plan."""
        tasks = [
            (name, task)
            for name in self.topology.order
            if name in self.windows
            for task in range(self.component(name).parallelism)
        ]
        return {task: phase for phase, task in enumerate(tasks, start=1)}

    @cached_property
    def rooted(self) -> frozenset[str]:
        """The components that may get tuples with roots, because a spout above them takes acks. Cost: one pass over the plan."""
        found: set[str] = set()
        for name in self.topology.order:
            reads = self.component(name).inputs
            if any((read.component, read.stream) in self.acks or read.component in found for read in reads):
                found.add(name)
        return frozenset(found)


def _copied(nested: Sequence[int], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row with copies of the values at these positions, which are of a declared type or unreadable."""
    values = with_copies(plain(row), nested)
    return Held(values) if type(row) is Held else values


class Arrival(Tuple):
    """A Tuple with its phase, if it arrived in this batch (exchange.py), its roots, and its edge at this task (acks.py).

    All of these are named with an underscore, because `tuple.phase` is a user's field; a StreamBatch has them too. `_size` and
    `_tuples` of both are the number of tuples, and the tuples.
    """

    __slots__ = ("_edge", "_phase", "_roots")
    _size: ClassVar[int] = 1

    def __init__(
        self, values: tuple[Any, ...], origin: Origin, phase: int = 0, roots: Roots = NO_ROOTS, edge: int = 0
    ) -> None:
        self._values, self._origin = values, origin  # as Tuple does; one is made for each row
        self._phase, self._roots, self._edge = phase, roots, edge

    def _tuples(self) -> Iterable[Tuple]:
        return (self,)

    def get_message_id(self) -> Mapping[int, int]:
        """Return the edge id for each root of the tuple; empty if no spout takes acks."""
        return dict.fromkeys(self._roots, self._edge)


def execution_context(
    topology: Topology,
    sinks: frozenset[str] = frozenset(),
    acks: Mapping[tuple[str, str], int] | None = None,
    batches_before: int = 0,
) -> ExecutionContext:
    """Return the execution context of a topology; `sinks`: the streams with a sink, `acks`: the streams with roots.

    Raises ConfigError for a bolt that keeps no tuples although their acks are awaited, and for a bolt that could not deduplicate
    tuples by their ids.
    """
    retry = RetryPolicy.of(topology.config)
    schemas: dict[str, pa.Schema] = {}
    windows: dict[str, WindowedBolt] = {}
    for name, component in topology.components.items():
        for stream, output in component.outputs.items():
            schemas[stream_name(name, stream)] = arrow_schema(output.schema)
        if component.window is not None:
            windows[name] = replace(component.window, config=with_max_future(component.window.config))
            _require_channels(topology, component)
    plan = plan_of_topology(topology)
    context = ExecutionContext(
        topology, plan, schemas, sinks, retry, windows, topology.task_ids, acks or {}, batches_before
    )
    for name in sorted(context.rooted & windows.keys()):
        refuse_tables(windows[name].config, name)
    return context


def _require_channels(topology: Topology, component: Component) -> None:
    """Refuse `message_id=` behind a spout whose tasks are Spark's partitions: a repeated row may be in another one."""
    assert component.window is not None
    name = component.window.config.message_id
    for found in component.inputs if name is not None else ():
        spout = topology.components[found.component]
        if spout.is_spout and spout.parallelism > 1:
            raise ConfigError(
                f"bolt {component.id!r} knows tuples again by message_id={name!r}, unique in each task of what it reads, and on "
                f"Spark a row of spout {spout.id!r} has the task of its partition, which may be another when it comes again; give "
                "the spout parallelism=1, which costs nothing here, and ids that are unique in all of it"
            )
