"""The compilers of topologies and of windowed bolts: from a declaration to an ExecutionPlan.

    spouts -> fused bolts ------------+      depth 0
    ==== exchange ====================|====
    bolts -> fused bolts              |      depth 1
    ==== exchange ====================v====
    bolts that read depths 0 and 1 -> ...    depth 2

A bolt is *keyed* if it matters which of its tasks gets a tuple: it has windows or a state, or a grouping chooses the task
(fields, partialKey, all, global, direct, custom). A keyed bolt begins a stage, after an exchange. Any other bolt is fused with its
inputs.

Laws: a stage is one deeper than the deepest stage that makes one of its inputs, so rows flow only downwards for any shape of
topology, and each component gets each tuple once. A Trident topology has its own compiler: `TridentPlan.by_section`
(trident/plan.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from windowing.execution.plan import Exchange, ExecutionPlan, Section, Stage, numbered
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.types import Schema
from windowing.topology.bolts import WindowedBolt
from windowing.topology.decorators import bolt_of
from windowing.topology.groupings import FieldsGrouping, GlobalGrouping, Grouping, ShuffleGrouping
from windowing.topology.plan import Component, Topology, output_name, required

_OUTSIDE = Schema((), ())


def execution_plan(given: Any) -> ExecutionPlan:
    """Return the plan of a Topology, a TridentTopology (or its plan) or a windowed bolt, for a driver that passes a whole batch
    through it, as Spark does; `explain()` and `to_mermaid()` show it.

    Raises ConfigError or TopologyError for any other object, or for one with a mistake.
    """
    if isinstance(given, Topology) or hasattr(given, "set_bolt"):
        return plan_of_topology(required(given, "execution_plan"))
    built = given.build() if hasattr(given, "new_stream") else given
    if hasattr(built, "by_section"):
        plan: ExecutionPlan = built.by_section()
        return plan
    return plan_of_bolt(bolt_of(given))


def plan_of_bolt(
    bolt: WindowedBolt,
    parallelism: int = 1,
    grouping: str | tuple[str, ...] | None = None,
    inputs: Iterable[str] = (DEFAULT_STREAM,),
) -> ExecutionPlan:
    """Return the plan of a windowed bolt that runs alone, with one stage. grouping: "global", "shuffle", or columns; None: its key.

    >>> from windowing import count, tumbling
    >>> @tumbling(count(2), timestamp="n", key="word", output="n long")
    ... def sums(window): ...
    >>> print(execution_plan(sums).explain(), end="")
    plan sums: 1 stage, 1 exchange
      default == fields(word) ==> sums
    sums ×1, stream, depth 1, task 0, windows
        sums
          out as default
    """
    chosen = (bolt.config.key or "global") if grouping is None else grouping
    by: Grouping = FieldsGrouping(chosen) if isinstance(chosen, tuple) else GlobalGrouping()
    by = ShuffleGrouping() if chosen == "shuffle" else by
    stage = Stage(
        id=bolt.name,
        component=bolt.name,
        operators=(bolt.name,),
        parallelism=parallelism,
        depth=1,
        keeps_window=True,
        states=(bolt.name,) if bolt.stateful else (),
    )
    exchanges = [
        Exchange(
            id=number,
            source=stream,
            stage="",
            target=bolt.name,
            grouping=by,
            schema=_OUTSIDE,
            targets=((bolt.name, number),),
            to_window=True,
        )
        for number, stream in enumerate(inputs)
    ]
    late = bolt.config.late_stream
    sinks = dict.fromkeys([*bolt.outputs, *([] if late is None else [late])], bolt.name)
    return ExecutionPlan(name=bolt.name, stages={bolt.name: stage}, exchanges=tuple(exchanges), sinks=sinks)


def plan_of_topology(topology: Topology) -> ExecutionPlan:
    """Return the plan of a topology. Cost: one pass over the subscriptions for each stage."""
    runs_in: dict[str, tuple[str, ...]] = {}
    depth: dict[str, int] = {}
    for name in topology.order:
        component = topology.components[name]
        read = list(dict.fromkeys(stage for found in component.inputs for stage in runs_in[found.component]))
        if component.is_spout or is_keyed(component):
            runs_in[name] = (name,)
            depth[name] = 1 + max((depth[stage] for stage in read), default=-1)
        else:
            runs_in[name] = tuple(read)
    stages = numbered(
        _stage(topology, name, depth[name], tuple(each for each in topology.order if name in runs_in[each]))
        for name in sorted(depth, key=depth.__getitem__)
    )
    sinks = {
        output_name(name, stream): name
        for name in topology.order
        for stream in topology.components[name].outputs
        if topology.ends(topology.components[name], stream)
    }
    exchanges = tuple(_exchanges(topology, stages))
    return ExecutionPlan(name=topology.name, stages=stages, exchanges=exchanges, sinks=sinks)


def is_keyed(component: Component) -> bool:
    """Return whether it matters which of a component's tasks gets a tuple."""
    if component.is_spout:
        return False
    chooses_task = any(not isinstance(found.grouping, ShuffleGrouping) for found in component.inputs)
    return component.window is not None or component.stateful or chooses_task


def _stage(topology: Topology, name: str, depth: int, operators: tuple[str, ...]) -> Stage:
    component = topology.components[name]
    return Stage(
        id=name,
        component=name,
        operators=operators,
        parallelism=component.parallelism,
        section=Section.STREAM,
        depth=depth,
        is_spout=component.is_spout,
        keeps_window=component.window is not None,
        states=(name,) if component.stateful else (),
    )


def _exchanges(topology: Topology, stages: dict[str, Stage]) -> Iterator[Exchange]:
    leading = [
        (stage.id, name, stream, target)
        for stage in stages.values()
        for name in stage.operators
        for stream in topology.components[name].outputs
        for target in stages
        if any((found.component, found.stream) == (name, stream) for found in topology.components[target].inputs)
    ]
    for number, (stage, name, stream, target) in enumerate(leading):
        reader, output = topology.components[target], topology.components[name].outputs[stream]
        read = [(found.component, found.stream) for found in reader.inputs].index((name, stream))
        yield Exchange(
            id=number,
            source=name,
            stage=stage,
            target=target,
            grouping=reader.inputs[read].grouping,
            schema=output.schema,
            targets=((target, read),),
            stream=stream,
            late=output.late,
            to_window=reader.window is not None,
        )
