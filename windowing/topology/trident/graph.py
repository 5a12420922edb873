"""The graph of a Trident topology: nodes, and edges with an index; what a Stream writes, before and after it is understood.

    SpoutNode      a source: batches of a spout, or requests of DRPC
    ProcessorNode  an operation: each, aggregate, persist, ...
    PartitionNode  a repartition: where tuples change their task

    sentences --0--> each --0--> partition_by --0--> aggregate --0--> persist
                       \\--0------------------------------------1--> join        the index tells the inputs of a node apart

Draft is a node as its author wrote it, unchecked; Node is the same with its fields known. Laws: numbers count in the order in
which nodes were made, a node after its sources, so the order of numbers is an order of the graph; a graph is never changed, a
plan has a new one. Source: Storm's `Node`, `SpoutNode`, `ProcessorNode`, `PartitionNode`, `IndexedEdge`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from windowing.topology.groupings import Grouping
from windowing.topology.schema import Schema
from windowing.topology.trident.operations import Operation
from windowing.topology.trident.partitions import BatchGlobalGrouping, IdentityGrouping, Partitioning
from windowing.topology.trident.stateful import StateSpec
from windowing.transactions.kinds import SpoutKind

__all__ = ["Draft", "Graph", "IndexedEdge", "Node", "PartitionNode", "ProcessorNode", "Sketch", "Source", "SpoutNode"]


@dataclass(frozen=True, slots=True)
class Source:
    """What a stream begins with: a spout under a name, or the requests of a function of DRPC. output: its fields, if said."""

    name: Any
    spout: Any = None
    output: Any = None
    is_drpc: bool = False

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"{'drpc' if self.is_drpc else 'spout'} {self.name}"


@dataclass(eq=False, slots=True)
class Draft:
    """A node as it was written. `number` counts from 1, and is what sentences call a step."""

    number: int
    what: Source | Operation | Partitioning
    sources: tuple[Draft, ...] = ()
    name: str | None = None
    hint: Any = None

    @property
    def called(self) -> str:
        """How a sentence calls it: "step 3, each(sentence) with Split"."""
        return f"step {self.number}, {self.title}"

    @property
    def title(self) -> str:
        """What a person calls it."""
        return self.what.title if isinstance(self.what, Source | Operation) else f"partition by {self.what}"

    @property
    def is_partition(self) -> bool:
        """Whether it moves tuples."""
        return isinstance(self.what, Grouping | IdentityGrouping | BatchGlobalGrouping)


class Sketch:
    """A topology while it is written: its steps, and what was noted on the way."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.problems: list[str] = []
        self.static_states: dict[str, StateSpec] = {}
        self._states = 0

    def add(
        self, what: Source | Operation | Partitioning, sources: tuple[Draft, ...], name: str | None = None
    ) -> Draft:
        """Add a step behind others."""
        draft = Draft(len(self.drafts) + 1, what, sources, name)
        self.drafts.append(draft)
        return draft

    def note(self, problem: str) -> None:
        """Note a mistake that no step could tell."""
        if problem not in self.problems:
            self.problems.append(problem)

    def state_id(self) -> str:
        """Return the id of one more state."""
        self._states += 1
        return f"state{self._states}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node with its fields. name: what its author called the stream. hint: the parallelism that was asked for."""

    number: int
    title: str
    schema: Schema
    name: str | None = None
    hint: int | None = None

    @property
    def called(self) -> str:
        """How errors call it."""
        return f"step {self.number}, {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoutNode(Node):
    """A source. kind: what it promises about batches that come again, None for requests of DRPC."""

    source: Source
    kind: SpoutKind | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorNode(Node):
    """An operation; inputs: the fields of each of its sources."""

    operation: Operation
    inputs: tuple[Schema, ...]

    @property
    def committer(self) -> bool:
        """Whether it works in the commit phase."""
        return self.operation.committer


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode(Node):
    """A repartition."""

    grouping: Partitioning


@dataclass(frozen=True, slots=True, order=True)
class IndexedEdge:
    """Tuples go from one node to another, of which they are input number `index`."""

    source: int
    target: int
    index: int


@dataclass(frozen=True)
class Graph:
    """Nodes by number, and edges in order of (source, target, index)."""

    nodes: dict[int, Node]
    edges: tuple[IndexedEdge, ...]

    @classmethod
    def of(cls, nodes: Iterable[Node], edges: Iterable[IndexedEdge]) -> Graph:
        """Return the graph of these nodes and edges."""
        return cls({node.number: node for node in sorted(nodes, key=lambda node: node.number)}, tuple(sorted(edges)))

    @cached_property
    def out_edges(self) -> dict[int, tuple[IndexedEdge, ...]]:
        """The edges out of each node."""
        out: dict[int, list[IndexedEdge]] = {number: [] for number in self.nodes}
        for edge in self.edges:
            out[edge.source].append(edge)
        return {number: tuple(edges) for number, edges in out.items()}

    @cached_property
    def in_edges(self) -> dict[int, tuple[IndexedEdge, ...]]:
        """The edges into each node, in the order of its inputs."""
        into: dict[int, list[IndexedEdge]] = {number: [] for number in self.nodes}
        for edge in self.edges:
            into[edge.target].append(edge)
        return {number: tuple(sorted(edges, key=lambda edge: edge.index)) for number, edges in into.items()}

    def upstream(self, number: int) -> set[int]:
        """Return the nodes that tuples of a node come from, however far."""
        seen: set[int] = set()
        ahead = [edge.source for edge in self.in_edges[number]]
        while ahead:
            found = ahead.pop()
            if found not in seen:
                seen.add(found)
                ahead += [edge.source for edge in self.in_edges[found]]
        return seen

    def components(self) -> list[set[int]]:
        """Return the sets of nodes that hang together, in the order of their first nodes."""
        left, found = set(self.nodes), []
        for number in self.nodes:
            if number in left:
                ahead, seen = [number], {number}
                while ahead:
                    at = ahead.pop()
                    near = [edge.target for edge in self.out_edges[at]] + [edge.source for edge in self.in_edges[at]]
                    ahead += [other for other in near if other not in seen]
                    seen.update(near)
                left -= seen
                found.append(seen)
        return found
