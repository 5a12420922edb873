"""GraphGrouper: nodes become groups, each to run in one place, until no two of them can be merged.

    initial      one group for each operation; operations beside one state together
    merge        g with h, if all that leaves g goes to h, or all that enters g comes from h
    never        across a repartition or a spout: these are in no group, and count as one neighbour of their own

    each --> each --> [partition] --> aggregate --> persist          {each, each}   {aggregate, persist}

Laws: every operation is in one group; a merged group needs no exchange inside; merging makes no cycle of groups where there was
none; the same graph gives the same groups. Source: Storm's `GraphGrouper.mergeFully`, `Group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windowing.topology.trident.graph import Graph

__all__ = ["GraphGrouper", "Group"]


class Group:
    """Nodes that run together, in the order of their numbers."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Iterable[int]) -> None:
        self.nodes = tuple(sorted(nodes))

    def __repr__(self) -> str:
        return f"Group{self.nodes}"


class GraphGrouper:
    """Merges groups.

    >>> from windowing.topology.trident.graph import IndexedEdge, Node
    >>> from windowing.topology.schema import Schema
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
