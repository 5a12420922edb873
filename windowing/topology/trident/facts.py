"""Facts: what can be read out of the steps of a topology, right or wrong.

`facts_of` never raises for a mistake of the author: a step that cannot be understood has no node, what follows it is passed over,
and the rest goes on, so that all mistakes are reported together, each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from windowing.errors import ConfigError, shown
from windowing.topology.config_keys import Setting, TopologyConfig, pointless, read_settings
from windowing.topology.drafts import _own_settings
from windowing.topology.groupings import CustomGrouping, FieldsGrouping
from windowing.topology.hashing import hashable
from windowing.topology.marking import ComponentKind, declaration_of
from windowing.topology.schema import Schema
from windowing.topology.trident.fields import chosen
from windowing.topology.trident.graph import (
    Draft,
    Graph,
    IndexedEdge,
    Node,
    PartitionNode,
    ProcessorNode,
    Sketch,
    Source,
    SpoutNode,
)
from windowing.topology.trident.operations import Check, Operation
from windowing.topology.trident.windowed import LateTuples
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.spouts import IBatchSpout

__all__ = ["Facts", "facts_of"]

_ARGS = Schema(("args",), ("string",))
_Operation = TypeVar("_Operation", bound=Operation)


class _Spout(NamedTuple):
    schema: Schema
    kind: SpoutKind | None
    one_task: bool


@dataclass(slots=True)
class Facts:
    """What is known of a topology. graph: of the steps that could be understood, whose sources could be, too.

    one_task: the sources that are not parallel. problems: what could not be read.
    """

    sketch: Sketch
    config: TopologyConfig
    graph: Graph
    one_task: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    @property
    def drafts(self) -> list[Draft]:
        """The steps as they were written."""
        return self.sketch.drafts

    @property
    def spouts(self) -> list[SpoutNode]:
        """The sources that could be understood."""
        return [node for node in self.graph.nodes.values() if isinstance(node, SpoutNode)]

    def doing(self, kind: type[_Operation]) -> Iterator[tuple[ProcessorNode, _Operation]]:
        """Yield the nodes of one kind of operation."""
        for node in self.graph.nodes.values():
            if isinstance(node, ProcessorNode) and isinstance(node.operation, kind):
                yield node, node.operation

    def spouts_above(self, number: int) -> list[SpoutNode]:
        """Return the sources that tuples of a node come from."""
        above = self.graph.upstream(number)
        return [node for node in self.spouts if node.number in above]


_NOT_HERE = {
    "acker_executors": "batches have an acker of their own",
    "acker_rotation": "the trees of batches have exact deadlines",
    "tick_tuple_freq_ms": "operations are handed tuples of batches alone; a window over the clock fires with the next batch",
    "state_checkpoint_interval_ms": "states are committed with each batch",
    "state_provider": "a state is where its factory says, such as map_state(SqliteStore(path), 'counts')",
    "sleep_spout_wait_ms": "topology.trident.batch.emit.interval.millis says how long a new batch waits",
    "debug": "tuples travel in batches and are not logged; use .peek(print)",
}
"""Settings that stand for nothing here, and why."""


def facts_of(sketch: Sketch, settings: Iterable[Setting]) -> Facts:
    """Read what the author wrote. Cost: O(steps + fields)."""
    values, problems = read_settings(settings, "topology")
    config = TopologyConfig(**values)
    problems += [f"{key} has no meaning in a Trident topology; leave it out" for key in pointless(config, _NOT_HERE)]
    facts = Facts(sketch, config, Graph.of([], []), problems=[*problems, *sketch.problems])
    nodes: dict[int, Node] = {}
    edges: list[IndexedEdge] = []
    for draft in sketch.drafts:
        node = _node(facts, draft, nodes)
        if node is not None:
            nodes[node.number] = node
            edges += [IndexedEdge(source.number, node.number, index) for index, source in enumerate(draft.sources)]
    facts.graph = Graph.of(nodes.values(), edges)
    return facts


def _node(facts: Facts, draft: Draft, nodes: dict[int, Node]) -> Node | None:
    """Return the node of a step, or None where it, or a step before it, has a mistake."""
    common: dict[str, Any] = {
        "number": draft.number,
        "title": draft.title,
        "name": draft.name if isinstance(draft.name, str) else None,
        "hint": draft.hint if type(draft.hint) is int and draft.hint > 0 else None,
    }
    if isinstance(draft.what, Source):
        try:
            found = _spout(draft.what)
        except ConfigError as problem:
            facts.problems.append(f"{draft.called}: {problem.args[0]}")
            return None
        facts.one_task |= {draft.number} if found.one_task else set()
        return SpoutNode(schema=found.schema, source=draft.what, kind=found.kind, **common)
    inputs = tuple(_carried(source, draft, nodes) for source in draft.sources)
    if not inputs or None in inputs:
        return None
    known = tuple(schema for schema in inputs if schema is not None)
    check = Check(draft.called, known, facts.problems)
    if isinstance(draft.what, Operation):
        schema = draft.what.resolve(check)
        made = {"operation": draft.what, "inputs": known, **common}
        return None if schema is None else ProcessorNode(schema=schema, **made)
    good = _good_partition(check, draft.what)
    return PartitionNode(schema=known[0], grouping=draft.what, **common) if good else None


def _carried(source: Draft, draft: Draft, nodes: dict[int, Node]) -> Schema | None:
    """Return the fields that come in from a source: of late tuples those that the window reads."""
    window = nodes.get(source.number)
    if isinstance(draft.what, LateTuples) and isinstance(window, ProcessorNode):
        return window.inputs[0]
    return None if window is None else window.schema


def _spout(source: Source) -> _Spout:
    if source.is_drpc:
        return _Spout(_ARGS, None, True)
    kind = getattr(source.spout, "kind", None)
    if isinstance(kind, SpoutKind) and not isinstance(source.spout, type):
        written = source.output if source.output is not None else getattr(source.spout, "output", "")
        if not written:
            raise ConfigError(
                f"{shown(source.spout)} does not say its fields; write new_stream(name, spout, 'word string')"
            )
        schema = written if isinstance(written, Schema) else Schema.parse(written)
        says = getattr(source.spout, "get_component_configuration", None)
        _refuse_settings((says() if callable(says) else None) or {})
        return _Spout(schema, kind, isinstance(source.spout, IBatchSpout))
    if isinstance(source.spout, type) and isinstance(kind, SpoutKind):
        raise ConfigError(f"{source.spout.__name__} is a class; give an instance")
    declared = declaration_of(source.spout)
    if not declared.is_spout or "default" not in declared.outputs:
        raise ConfigError(
            f"{declared.title!r} is no spout with a stream 'default'; give a spout, of tuples or of batches"
        )
    _refuse_settings(_own_settings(declared))
    fed = declared.kind is ComponentKind.INPUT  # its driver hands in the same batch again
    return _Spout(declared.outputs["default"], SpoutKind.TRANSACTIONAL if fed else SpoutKind.NON_TRANSACTIONAL, False)


def _refuse_settings(settings: Mapping[str, Any]) -> None:
    if settings:
        raise ConfigError(
            f"its get_component_configuration says {', '.join(map(str, settings))}, but a stream of Trident has no settings of its "
            "own; give them to TridentTopology.configure, and let it return None"
        )


def _good_partition(check: Check, grouping: Any) -> bool:
    """Note what is wrong with a repartition, and return whether nothing is."""
    if isinstance(grouping, FieldsGrouping):
        if not grouping.fields:
            check.note("it names no field; name those of the key, or use global_()")
            return False
        key = check.attempt(chosen, check.inputs[0], grouping.fields)
        if key is None:
            return False
        for name, kind in zip(key.names, key.types, strict=True):
            reason = hashable(kind)
            if reason is not None:
                check.note(f"field {name!r} of type {kind} has no hash: {reason}")
                return False
    if isinstance(grouping, CustomGrouping):
        choose = grouping.choose
        if isinstance(choose, type) or not callable(getattr(choose, "choose_tasks", choose)):
            check.note(f"{shown(choose)} chooses no partition; give a function of (values, partitions)")
            return False
    return True
