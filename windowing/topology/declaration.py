"""Declarations: a topology as its author wrote it, and the parts of it that can be resolved.

`resolve_topology` never raises for a mistake of the author: a part that cannot be resolved is left out and reported in `problems`,
so that the rules (windowing/topology/rules.py) check the rest and all mistakes are reported together.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.types import Schema
from windowing.topology.bolts import WindowedBolt, class_of
from windowing.topology.components import _Component
from windowing.topology.config import ComponentConfig, Setting, TopologyConfig, read_settings
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DEAD_LETTERS
from windowing.topology.decorators import Declaration, declaration_of
from windowing.topology.plan import OutputStream, Subscription

REASON = "reason"
"""The field that a late stream adds to the fields of the late tuples."""


@dataclass(slots=True)
class ComponentDeclaration:
    """One component as it was written; none of it has been checked."""

    id: Any
    target: Any
    parallelism: Any
    is_spout: bool
    inputs: list[Subscription] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)

    @property
    def called(self) -> str:
        """The component's name in a sentence: "bolt 'count'"."""
        return f"{'spout' if self.is_spout else 'bolt'} {quote(self.id)}"


def stream_called(found: Subscription) -> str:
    """Return the name of a subscribed stream in a sentence: 'split', or 'split':'late'."""
    return quote(found.component) if found.stream == "default" else f"{quote(found.component)}:{quote(found.stream)}"


@dataclass(slots=True)
class ResolvedTopology:
    """The resolved parts of a topology; each mapping contains only entries that could be resolved.

    components: the first one of each id. declarations, configs: by id. outputs: by id and stream; the late stream of a bolt only if
    its inputs agree on the types of fields with the same name. order: None if there is a cycle. problems: a sentence for each part
    that could not be resolved.
    """

    components: dict[str, ComponentDeclaration]
    config: TopologyConfig
    declarations: dict[str, Declaration] = field(default_factory=dict)
    configs: dict[str, ComponentConfig] = field(default_factory=dict)
    outputs: dict[str, dict[str, OutputStream]] = field(default_factory=dict)
    cycles: list[list[str]] = field(default_factory=list)
    order: tuple[str, ...] | None = None
    problems: list[str] = field(default_factory=list)

    def bolts(self) -> Iterator[ComponentDeclaration]:
        """Yield the components of bolts."""
        return (component for component in self.components.values() if not component.is_spout)

    def windowed(self) -> Iterator[tuple[ComponentDeclaration, WindowedBolt]]:
        """Yield the windowed bolts."""
        for name, declared in self.declarations.items():
            if declared.window is not None:
                yield self.components[name], declared.window

    def tasks(self, component: ComponentDeclaration) -> int:
        """Return the number of a component's tasks: its parallelism, at most `topology.max.task.parallelism`."""
        given, limit = component.parallelism, self.config.max_task_parallelism
        tasks = given if isinstance(given, int) else 1
        return tasks if limit is None else min(limit, tasks)

    def stream(self, found: Subscription) -> OutputStream | None:
        """Return the stream that a subscription reads, None if it is unknown."""
        return self.outputs.get(found.component, {}).get(found.stream)

    def above(self, component: ComponentDeclaration) -> Iterator[tuple[ComponentDeclaration, Subscription]]:
        """Yield every subscription between the spouts and a component, with the subscriber."""
        visited, ahead = {component.id}, [component]
        while ahead:
            reader = ahead.pop()
            for found in reader.inputs:
                yield reader, found
                if found.component in self.components and found.component not in visited:
                    visited.add(found.component)
                    ahead.append(self.components[found.component])


def resolve_topology(components: Sequence[ComponentDeclaration], settings: Iterable[Setting]) -> ResolvedTopology:
    """Resolve the author's declarations. Cost: O(components + subscriptions), and one instance of a class with settings."""
    values, problems = read_settings(settings, "topology")
    first: dict[str, ComponentDeclaration] = {}
    for component in components:
        if isinstance(component.id, str):
            first.setdefault(component.id, component)
    resolved = ResolvedTopology(first, TopologyConfig(**values), problems=problems)
    for name, component in first.items():
        _declare(resolved, name, component)
    _sort(resolved)
    for name in resolved.order or ():
        if name in resolved.declarations:
            resolved.outputs[name] = _outputs(resolved, name)
    return resolved


def _declare(resolved: ResolvedTopology, name: str, component: ComponentDeclaration) -> None:
    try:
        declared = declaration_of(component.target)
        written = own_settings(declared)
    except ConfigError as problem:
        resolved.problems.append(f"{component.called}: {problem.args[0]}")
        return
    values, problems = read_settings([*written.items(), *component.settings], "spout" if component.is_spout else "bolt")
    resolved.declarations[name] = declared
    resolved.configs[name] = ComponentConfig.of(values)
    resolved.problems += [f"{component.called}: {problem}" for problem in problems]


def own_settings(declared: Declaration | WindowedBolt) -> Mapping[str, Any]:
    """Return the settings of a class by `get_component_configuration`; an instance is made to call it."""
    of_class = class_of(declared.target) if declared.is_class else None
    method = getattr(of_class, "get_component_configuration", None)
    if method is None or method is _Component.get_component_configuration or declared.target is None:
        return {}
    try:
        settings = declared.target().get_component_configuration()
    except Exception as problem:
        raise ConfigError(
            f"its get_component_configuration failed with {type(problem).__name__}: {problem}; "
            "it is called when the topology is built, before open() or prepare()"
        ) from problem
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"get_component_configuration returns a mapping, got {quote(settings)}; return {{key: value}}"
        )
    return settings


def _sort(resolved: ResolvedTopology) -> None:
    """Find the order of the components, or every cycle that prevents one."""
    edges = {
        name: [found.component for found in component.inputs if found.component in resolved.components]
        for name, component in resolved.components.items()
        if not component.is_spout
    }
    nodes = {name: edges.get(name, []) for name in resolved.components}
    while True:
        try:
            order = tuple(graphlib.TopologicalSorter(nodes).static_order())
        except graphlib.CycleError as found:
            cycle = _from_first(found.args[1][:-1], resolved.components)
            resolved.cycles.append(cycle)
            nodes[cycle[0]] = [name for name in nodes[cycle[0]] if name != cycle[-1]]
            continue
        resolved.order = None if resolved.cycles else order
        return


def _from_first(cycle: list[str], components: Mapping[str, ComponentDeclaration]) -> list[str]:
    """Return a cycle in the direction of the data, starting with its first declared component."""
    first = min(range(len(cycle)), key=lambda position: list(components).index(cycle[position]))
    return cycle[first:] + cycle[:first]


def _outputs(resolved: ResolvedTopology, name: str) -> dict[str, OutputStream]:
    declared = resolved.declarations[name]
    outputs = {
        stream: OutputStream(schema, direct=stream in declared.direct) for stream, schema in declared.outputs.items()
    }
    late = None if declared.window is None else declared.window.config.late_stream
    if late is not None:
        read = [resolved.stream(found) for found in resolved.components[name].inputs]
        fields = _late_fields([stream.schema for stream in read if stream is not None])
        if fields is not None and read and None not in read:
            outputs[late] = OutputStream(fields, late=True)
    outputs[DEAD_LETTERS] = OutputStream(DEAD_LETTER_FIELDS, dead=True)
    return outputs


def _late_fields(inputs: Sequence[Schema]) -> Schema | None:
    """Return the fields of all inputs, each once, and the reason; None if two inputs have different types for one name."""
    fields: dict[str, tuple[str, str]] = {}
    for schema in inputs:
        for name, kind in schema.kinds.items():
            if fields.setdefault(name.lower(), (name, kind)) != (name, kind):
                return None
    names, types = zip(*fields.values(), (REASON, "string"), strict=True)
    return Schema(names, types)
