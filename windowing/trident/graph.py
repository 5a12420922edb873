r"""The graph of a Trident topology, and the merging of its nodes into groups.

    SpoutNode      a source: batches of a spout, or requests of DRPC
    ProcessorNode  an operation: each, aggregate, persist, ...
    PartitionNode  a repartition: tuples move to other tasks

    sentences --0--> each --0--> partition_by --0--> aggregate --0--> persist
                       \--0------------------------------------1--> join        the index numbers the inputs of a node

A Stream adds StepDeclarations to a GraphBuilder without checking them; a Node is a step with resolved fields. Nodes are numbered in
the order in which they are made, each after its sources, so the order of numbers is a topological order.

GraphGrouper merges nodes into groups until no two groups can be merged. A group runs as a unit in each of its tasks.

    initial      one group for each operation; operations that share a state are one group
    merge        g with h, if every edge out of g goes to h, or every edge into g comes from h
    never        across a repartition or a spout: these belong to no group, and each counts as a neighbour

    each --> each --> [partition] --> aggregate --> persist          {each, each}   {aggregate, persist}

Laws: every operation is in one group; a merged group needs no exchange inside; merging makes no cycle of groups where there was
none; the same graph gives the same groups. Source: Storm's `Node`, `SpoutNode`, `ProcessorNode`, `PartitionNode`, `IndexedEdge`,
`GraphGrouper.mergeFully`, `Group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from windowing.schema.types import Schema
from windowing.topology.groupings import Grouping
from windowing.trident.fields import BatchGlobalGrouping, IdentityGrouping, Partitioning
from windowing.trident.kinds import SpoutKind
from windowing.trident.operations import Operation
from windowing.trident.state_operations import StateSpec

__all__ = [
    "Graph",
    "GraphBuilder",
    "GraphGrouper",
    "Group",
    "IndexedEdge",
    "Node",
    "PartitionNode",
    "ProcessorNode",
    "SpoutNode",
    "StepDeclaration",
    "StreamSource",
]


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The source of a stream: a named spout, or the requests of a DRPC function. output: its fields, if declared."""

    name: Any
    spout: Any = None
    output: Any = None
    is_drpc: bool = False

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"{'drpc' if self.is_drpc else 'spout'} {self.name}"


@dataclass(eq=False, slots=True)
class StepDeclaration:
    """A declared step. `number` counts from 1 and identifies the step in messages."""

    number: int
    what: StreamSource | Operation | Partitioning
    sources: tuple[StepDeclaration, ...] = ()
    name: str | None = None
    hint: Any = None

    @property
    def called(self) -> str:
        """Its name in messages: "step 3, each(sentence) with Split"."""
        return f"step {self.number}, {self.title}"

    @property
    def title(self) -> str:
        """The title in sentences and drawings."""
        return self.what.title if isinstance(self.what, StreamSource | Operation) else f"partition by {self.what}"

    @property
    def is_partition(self) -> bool:
        """Whether it moves tuples."""
        return isinstance(self.what, Grouping | IdentityGrouping | BatchGlobalGrouping)


class GraphBuilder:
    """A topology under construction: its steps, and the mistakes noted so far."""

    def __init__(self) -> None:
        self.steps: list[StepDeclaration] = []
        self.problems: list[str] = []
        self.static_states: dict[str, StateSpec] = {}
        self._states = 0

    def add(
        self,
        what: StreamSource | Operation | Partitioning,
        sources: tuple[StepDeclaration, ...],
        name: str | None = None,
    ) -> StepDeclaration:
        """Add a step behind other steps."""
        step = StepDeclaration(len(self.steps) + 1, what, sources, name)
        self.steps.append(step)
        return step

    def note(self, problem: str) -> None:
        """Note a mistake that belongs to no single step."""
        if problem not in self.problems:
            self.problems.append(problem)

    def state_id(self) -> str:
        """Return the id for the next state."""
        self._states += 1
        return f"state{self._states}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node with resolved fields. name: the author's name of the stream. hint: the requested parallelism."""

    number: int
    title: str
    schema: Schema
    name: str | None = None
    hint: int | None = None

    @property
    def called(self) -> str:
        """Its name in messages."""
        return f"step {self.number}, {self.title}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoutNode(Node):
    """A source. kind: what its replayed batches contain, None for DRPC requests."""

    source: StreamSource
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
    """An edge from one node to input number `index` of another."""

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


# -- GraphGrouper ----------------------------------------------------------------------------------------------------------------


class Group:
    """Nodes that run together, in the order of their numbers."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = tuple(sorted(nodes))

    def __repr__(self) -> str:
        return f"Group{self.nodes}"


class GraphGrouper:
    """Merges groups.

    >>> from windowing.trident.graph import IndexedEdge, Node
    >>> from windowing.schema.types import Schema
    >>> nodes = [Node(number=n, title="step", schema=Schema((), ())) for n in range(4)]
    >>> graph = Graph.of(nodes, [IndexedEdge(0, 1, 0), IndexedEdge(1, 2, 0), IndexedEdge(2, 3, 0)])
    >>> grouper = GraphGrouper(graph, [(1,), (3,)])  # 0 is a spout, 2 a repartition
    >>> grouper.merge_fully()
    >>> grouper.groups
    [Group(1,), Group(3,)]
    """

    def __init__(self, graph: Graph, initial: Sequence[Iterable[int]]) -> None:
        self._graph = graph
        self.groups = [Group(nodes) for nodes in initial]
        self._of = {number: group for group in self.groups for number in group.nodes}

    def group_of(self, number: int) -> Group | None:
        """Return the group of a node, None for a spout or a repartition."""
        return self._of.get(number)

    def merge_fully(self) -> None:
        """Merge until nothing can be merged. Cost: O(groups * edges) at worst."""
        position = 0
        while position < len(self.groups):
            group = self.groups[position]
            other = self._only(self.outgoing(group)) or self._only(self.incoming(group))
            if other is None:
                position += 1
            else:
                self._merge(group, other)
                position = 0

    def outgoing(self, group: Group) -> set[Group | None]:
        """Return the groups that tuples of a group go to; None stands for all repartitions."""
        edges = (edge for number in group.nodes for edge in self._graph.out_edges[number])
        return {found for found in (self.group_of(edge.target) for edge in edges) if found is not group}

    def incoming(self, group: Group) -> set[Group | None]:
        """Return the groups that tuples of a group come from; None stands for all repartitions and spouts."""
        edges = (edge for number in group.nodes for edge in self._graph.in_edges[number])
        return {found for found in (self.group_of(edge.source) for edge in edges) if found is not group}

    @staticmethod
    def _only(groups: set[Group | None]) -> Group | None:
        return next(iter(groups)) if len(groups) == 1 else None

    def _merge(self, one: Group, other: Group) -> None:
        merged = Group((*one.nodes, *other.nodes))
        self.groups[self.groups.index(one)] = merged
        self.groups.remove(other)
        self._of.update(dict.fromkeys(merged.nodes, merged))
