"""Declarations: a topology as its author wrote it, and what can be resolved of it, right or wrong.

`facts_of` never raises for a mistake of the author: what cannot be read is left out of the facts and said in `problems`, so
that the rules (windowing/topology/rules.py) go on with the rest and all mistakes are reported together.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.types import Schema
from windowing.topology.bolts import class_of
from windowing.topology.components import _Component
from windowing.topology.config import ComponentConfig, Setting, TopologyConfig, read_settings
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DEAD_LETTERS
from windowing.topology.decorators import Declaration, declaration_of
from windowing.topology.plan import OutputStream, Subscription

__all__ = [
    "REASON",
    "ComponentDeclaration",
    "ResolvedTopology",
    "facts_of",
    "stream_called",
]


REASON = "reason"
"""The field that a late stream adds to those of the late tuples."""


@dataclass(slots=True)
class ComponentDeclaration:
    """One component as it was written; nothing in it has been checked."""

    id: Any
    target: Any
    parallelism: Any
    is_spout: bool
    inputs: list[Subscription] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)

    @property
    def called(self) -> str:
        """How a sentence calls it: "bolt 'count'"."""
        return f"{'spout' if self.is_spout else 'bolt'} {quote(self.id)}"


def stream_called(found: Subscription) -> str:
    """Return how a sentence calls a stream that somebody reads: 'split', or 'split':'late'."""
    return quote(found.component) if found.stream == "default" else f"{quote(found.component)}:{quote(found.stream)}"


@dataclass(slots=True)
class ResolvedTopology:
    """What is known of a topology; each mapping holds only what could be read.

    drafts: the first one of each id. declarations, configs: by id. outputs: by id and stream, the late stream of a bolt
    only where its inputs agree on the types of fields of one name. order: None while there is a cycle. problems: what could
    not be read.
    """

    drafts: dict[str, ComponentDeclaration]
    config: TopologyConfig
    declarations: dict[str, Declaration] = field(default_factory=dict)
    configs: dict[str, ComponentConfig] = field(default_factory=dict)
    outputs: dict[str, dict[str, OutputStream]] = field(default_factory=dict)
    cycles: list[list[str]] = field(default_factory=list)
    order: tuple[str, ...] | None = None
    problems: list[str] = field(default_factory=list)

    def bolts(self) -> Iterator[ComponentDeclaration]:
        """Yield the drafts of bolts."""
        return (draft for draft in self.drafts.values() if not draft.is_spout)

    def windowed(self) -> Iterator[tuple[ComponentDeclaration, Declaration]]:
        """Yield the windowed bolts."""
        for name, declared in self.declarations.items():
            if declared.window is not None:
                yield self.drafts[name], declared

    def stream(self, found: Subscription) -> OutputStream | None:
        """Return the stream that a subscription reads, None where it is not known."""
        return self.outputs.get(found.component, {}).get(found.stream)

    def spouts_above(self, name: str) -> list[str]:
        """Return the spouts that a component's tuples come from, in the order in which they were given."""
        seen, ahead = {name}, [name]
        while ahead:
            for found in self.drafts[ahead.pop()].inputs:
                if found.component in self.drafts and found.component not in seen:
                    seen.add(found.component)
                    ahead.append(found.component)
        return [spout for spout, draft in self.drafts.items() if draft.is_spout and spout in seen]


def facts_of(drafts: Sequence[ComponentDeclaration], settings: Iterable[Setting]) -> ResolvedTopology:
    """Read what the author wrote. Cost: O(components + subscriptions), and one instance where a class has settings."""
    values, problems = read_settings(settings, "topology")
    first: dict[str, ComponentDeclaration] = {}
    for draft in drafts:
        if isinstance(draft.id, str):
            first.setdefault(draft.id, draft)
    facts = ResolvedTopology(first, TopologyConfig(**values), problems=problems)
    for name, draft in first.items():
        _declare(facts, name, draft)
    _sort(facts)
    for name in facts.order or ():
        if name in facts.declarations:
            facts.outputs[name] = _outputs(facts, name)
    return facts


def _declare(facts: ResolvedTopology, name: str, draft: ComponentDeclaration) -> None:
    try:
        declared = declaration_of(draft.target)
        written = _own_settings(declared)
    except ConfigError as problem:
        facts.problems.append(f"{draft.called}: {problem.args[0]}")
        return
    values, problems = read_settings([*written.items(), *draft.settings], "spout" if draft.is_spout else "bolt")
    facts.declarations[name] = declared
    facts.configs[name] = ComponentConfig.of(values)
    facts.problems += [f"{draft.called}: {problem}" for problem in problems]


def _own_settings(declared: Declaration) -> Mapping[str, Any]:
    """Return what `get_component_configuration` of a class says, asked of an instance made for it."""
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


def _sort(facts: ResolvedTopology) -> None:
    """Find the order of the components, or every cycle that stands in its way."""
    edges = {
        name: [found.component for found in draft.inputs if found.component in facts.drafts]
        for name, draft in facts.drafts.items()
        if not draft.is_spout
    }
    nodes = {name: edges.get(name, []) for name in facts.drafts}
    while True:
        try:
            order = tuple(graphlib.TopologicalSorter(nodes).static_order())
        except graphlib.CycleError as found:
            cycle = _from_first(found.args[1][:-1], facts.drafts)
            facts.cycles.append(cycle)
            nodes[cycle[0]] = [name for name in nodes[cycle[0]] if name != cycle[-1]]
            continue
        facts.order = None if facts.cycles else order
        return


def _from_first(cycle: list[str], drafts: Mapping[str, ComponentDeclaration]) -> list[str]:
    """Return a cycle in the direction of the data, from its component that was given first."""
    first = min(range(len(cycle)), key=lambda position: list(drafts).index(cycle[position]))
    return cycle[first:] + cycle[:first]


def _outputs(facts: ResolvedTopology, name: str) -> dict[str, OutputStream]:
    declared = facts.declarations[name]
    outputs = {
        stream: OutputStream(schema, direct=stream in declared.direct) for stream, schema in declared.outputs.items()
    }
    late = None if declared.window is None else declared.window.config.late_stream
    if late is not None:
        read = [facts.stream(found) for found in facts.drafts[name].inputs]
        fields = _late_fields([stream.schema for stream in read if stream is not None])
        if fields is not None and read and None not in read:
            outputs[late] = OutputStream(fields, late=True)
    outputs[DEAD_LETTERS] = OutputStream(DEAD_LETTER_FIELDS, dead=True)
    return outputs


def _late_fields(inputs: Sequence[Schema]) -> Schema | None:
    """Return the fields of all inputs, each once, and the reason; None where two inputs have another type for one name."""
    fields: dict[str, tuple[str, str]] = {}
    for schema in inputs:
        for name, kind in zip(schema.names, schema.types, strict=True):
            if fields.setdefault(name.lower(), (name, kind)) != (name, kind):
                return None
    names, types = zip(*fields.values(), (REASON, "string"), strict=True)
    return Schema(names, types)
