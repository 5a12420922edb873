"""The planner: from the graph of a Trident topology to groups, exchanges and parallelism.

    1 groups        operations beside one state together, then GraphGrouper.merge_fully; each spout by itself
    2 exchanges     every edge between groups: by the repartition on it, or identity where there is none
    3 parallelism   groups that identity exchanges join have one: the largest hint of their nodes, at most
                    topology.max.task.parallelism; a state with a number of partitions fixes it
    4 batch groups  nodes that hang together have their batches in common
    5 phases        what commits, and all behind it, works in the commit phase

Source: Storm's `TridentTopology.build`, `completeDRPC`, `getGroupParallelisms`.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

from windowing.errors import shown
from windowing.topology.config_keys import Setting
from windowing.topology.groupings import AllGrouping, CustomGrouping, FieldsGrouping
from windowing.topology.plan import TopologyError
from windowing.topology.rules import name_problem
from windowing.topology.schema import Schema
from windowing.topology.trident.facts import Facts, facts_of
from windowing.topology.trident.fields import chosen
from windowing.topology.trident.graph import Graph, PartitionNode, ProcessorNode, Sketch, SpoutNode
from windowing.topology.trident.grouper import GraphGrouper, Group
from windowing.topology.trident.operations import Sink
from windowing.topology.trident.partitions import IdentityGrouping
from windowing.topology.trident.plan import Drpc, Exchange, GroupPlan, Phase, StatePlan, TridentPlan
from windowing.topology.trident.rules import TRIDENT_RULES
from windowing.topology.trident.stateful import Persist, Query, StateSpec
from windowing.topology.trident.windowed import LateTuples

__all__ = ["built", "plan_of"]

_Member = TypeVar("_Member", bound=Hashable)


def built(name: str, sketch: Sketch, settings: Iterable[Setting]) -> TridentPlan:
    """Return the plan of what was written, or raise TopologyError with a sentence for every mistake."""
    facts = facts_of(sketch, settings)
    problem = name_problem(name, "the name of a topology")
    problems = [*([] if problem is None else [problem]), *facts.problems]
    for rule in TRIDENT_RULES:
        problems += rule(facts)
    if not problems:
        plan = plan_of(name, facts, problems)
    if problems:
        raise TopologyError(name if isinstance(name, str) else shown(name), tuple(problems))
    return plan


def plan_of(name: str, facts: Facts, problems: list[str], merge: bool = True) -> TridentPlan:
    """Return the plan of a graph without mistakes; those that only groups show are noted.

    `merge=False` leaves every operation in a group of its own, which gives the same results at a higher cost.
    """
    planner = _Planner(facts, merge)
    order = planner.order(problems)
    sizes = planner.parallelism(problems)
    problems += planner.stray_queries(sizes)
    return planner.plan(name, order, sizes)


class _Hop(NamedTuple):
    """What goes from a node, over a repartition if there is one, to inputs of a group."""

    source: int
    by: int | None
    late: bool
    group: Group
    targets: tuple[tuple[int, int], ...]


class _Planner:
    """What is found out step by step; a group is known by the smallest of its nodes."""

    def __init__(self, facts: Facts, merge: bool) -> None:
        self.facts = facts
        self.graph: Graph = facts.graph
        self.phases = _phases(self.graph)
        self.states = _states(facts)
        beside = list(self.states.values())
        together = {number for numbers in beside for number in numbers}
        single = [node.number for node in self.graph.nodes.values() if isinstance(node, ProcessorNode)]
        initial = [*beside, *((number,) for number in single if number not in together)]
        grouper = GraphGrouper(self.graph, sorted(_united(initial), key=min))
        if merge:
            grouper.merge_fully()
        spouts = [Group([spout.number]) for spout in facts.spouts]
        self.groups = sorted([*spouts, *grouper.groups], key=lambda group: group.nodes)
        self.of = {number: group for group in self.groups for number in group.nodes}
        self.hops = list(self._hops())

    def _hops(self) -> Iterable[_Hop]:
        """Yield all that goes from one group to another."""
        found: dict[tuple[int, int | None, bool, Group], list[tuple[int, int]]] = {}
        for edge in self.graph.edges:
            source, target = self.graph.nodes[edge.source], self.graph.nodes[edge.target]
            if isinstance(target, PartitionNode):
                for further in self.graph.out_edges[edge.target]:
                    key = edge.source, edge.target, False, self.of[further.target]
                    found.setdefault(key, []).append((further.target, further.index))
            elif not isinstance(source, PartitionNode) and self.of[edge.source] is not self.of[edge.target]:
                late = isinstance(target, ProcessorNode) and isinstance(target.operation, LateTuples)
                found.setdefault((edge.source, None, late, self.of[edge.target]), []).append((edge.target, edge.index))
        return (_Hop(*key, tuple(targets)) for key, targets in found.items())

    def order(self, problems: list[str]) -> list[Group]:
        """Return the groups, each behind those that it reads; a cycle, which only states can make, is noted."""
        known = {min(group.nodes): group for group in self.groups}
        reads: dict[int, list[int]] = {first: [] for first in known}
        for hop in self.hops:
            reads[min(hop.group.nodes)].append(min(self.of[hop.source].nodes))
        try:
            return [known[first] for first in graphlib.TopologicalSorter(reads).static_order()]
        except graphlib.CycleError as found:
            steps = [self.graph.nodes[number] for first in found.args[1][1:] for number in known[first].nodes]
            asked = ", ".join(
                node.called for node in steps if isinstance(node, ProcessorNode) and self._beside_state(node)
            )
            problems.append(
                f"the operations beside a state run together, and so {asked} would wait for each other; ask the state in another "
                "stream, or use its new values"
            )
            return self.groups

    @staticmethod
    def _beside_state(node: ProcessorNode) -> bool:
        return isinstance(node.operation, Persist | Query)

    def parallelism(self, problems: list[str]) -> dict[Group, int]:
        """Return the number of tasks of each group; what asks for two numbers is noted."""
        joined = [
            (self.of[hop.source], hop.group) for hop in self.hops if hop.by is None or _is_identity(self.graph, hop.by)
        ]
        sizes: dict[Group, int] = {}
        for members in _united([*joined, *((group,) for group in self.groups)]):
            size = self._size(members, problems)
            sizes.update(dict.fromkeys(members, size))
        return sizes

    def _size(self, members: set[Group], problems: list[str]) -> int:
        numbers = sorted(number for group in members for number in group.nodes)
        nodes = [self.graph.nodes[number] for number in numbers]
        limit = self.facts.config.max_task_parallelism
        hints = [node for node in nodes if node.hint is not None]
        size = max([node.hint or 1 for node in hints], default=1)
        size = size if limit is None else min(size, limit)
        fixed = {wanted: id for id, wanted in self._wanted(numbers)}
        if len(fixed) > 1:
            states = ", ".join(f"{id} wants {wanted} partitions" for wanted, id in fixed.items())
            problems.append(
                f"{states}, but nothing between them moves tuples; put a repartition between, or give them one number"
            )
        size = next(iter(fixed), size)
        single = [number for number in numbers if number in self.facts.one_task]
        if single and size > 1:
            why = next((node.called for node in hints if node.hint == size), ", ".join(fixed.values()) or "a hint")
            problems.append(
                f"{why} asks for {size} tasks, but {self.graph.nodes[single[0]].title} has one and nothing between them moves "
                "tuples; put .shuffle(), or .partition_by(key), between"
            )
        return size

    def _wanted(self, numbers: list[int]) -> Iterable[tuple[str, int]]:
        for id, beside in self.states.items():
            wanted = _spec_of(self.facts, id).partitions
            if wanted is not None and beside & set(numbers):
                yield id, wanted

    def stray_queries(self, sizes: dict[Group, int]) -> Iterable[str]:
        """Yield a sentence for each query whose tuples come to another partition than the one that has their key."""
        for node, query in self.facts.doing(Query):
            for writer, persist in self.facts.doing(Persist):
                partitions = sizes[self.of[node.number]]
                if query.state != persist.state or not persist.group or partitions == 1:
                    continue
                key = chosen(writer.schema, persist.group)
                for stray in filter(None, (_strays(by, key) for by in self._brought_by(node.number))):
                    yield (
                        f"{node.called} asks {query.state}, which has {partitions} partitions by {key.ddl}, but its tuples come "
                        f"there by {stray}; put .partition_by(...) of such fields, or .broadcast(), before it"
                    )

    def _brought_by(self, number: int) -> Iterable[PartitionNode]:
        """Yield the repartitions that are the last ones before a node."""
        ahead, seen = [number], {number}
        while ahead:
            for edge in self.graph.in_edges[ahead.pop()]:
                source = self.graph.nodes[edge.source]
                if isinstance(source, PartitionNode) and not _is_identity(self.graph, edge.source):
                    yield source
                elif edge.source not in seen:
                    seen.add(edge.source)
                    ahead.append(edge.source)

    def plan(self, name: str, order: list[Group], sizes: dict[Group, int]) -> TridentPlan:
        """Put everything together."""
        batch_groups = {
            number: f"bg{position}"
            for position, inside in enumerate(self.graph.components())
            for number in sorted(inside)
        }
        ids = self._ids(order)
        states = {
            id: StatePlan(id, _spec_of(self.facts, id), ids[group], sizes[group])
            for id, beside in self.states.items()
            for group in [self.of[min(beside)]]
        }
        for id, spec in self.facts.sketch.static_states.items():
            states.setdefault(id, StatePlan(id, spec, None, spec.partitions or 1))
        groups = {
            ids[group]: GroupPlan(
                id=ids[group],
                nodes=group.nodes,
                parallelism=sizes[group],
                is_spout=isinstance(self.graph.nodes[group.nodes[0]], SpoutNode),
                commits=any(self.phases[number] is Phase.COMMIT for number in group.nodes),
                batch_groups=tuple(sorted({batch_groups[number] for number in group.nodes})),
                states=tuple(id for id, state in states.items() if state.group == ids[group]),
            )
            for group in order
        }
        return TridentPlan(
            name=name,
            graph=self.graph,
            groups=groups,
            exchanges=tuple(self._exchanges(ids, order, batch_groups)),
            phases=self.phases,
            batch_groups=batch_groups,
            states=states,
            drpc={drpc.function: drpc for drpc in self._drpc()},
            sinks={str(sink.name): node.number for node, sink in self.facts.doing(Sink)},
            config=self.facts.config,
        )

    def _exchanges(self, ids: dict[Group, str], order: list[Group], batch_groups: dict[int, str]) -> Iterable[Exchange]:
        place = {group: position for position, group in enumerate(order)}
        ordered = sorted(
            self.hops, key=lambda hop: (place[self.of[hop.source]], place[hop.group], hop.source, hop.by or 0)
        )
        for id, hop in enumerate(ordered):
            first, index = hop.targets[0]
            reader = self.graph.nodes[first]
            assert isinstance(reader, ProcessorNode)
            partition = None if hop.by is None else self.graph.nodes[hop.by]
            yield Exchange(
                id=id,
                source=hop.source,
                group=ids[self.of[hop.source]],
                target_group=ids[hop.group],
                grouping=partition.grouping if isinstance(partition, PartitionNode) else IdentityGrouping(),
                schema=reader.schema if hop.late else reader.inputs[index],
                targets=hop.targets,
                phase=self.phases[hop.source],
                batch_group=batch_groups[hop.source],
                late=hop.late,
                to_window=any(_keeps_window(self.graph, target) for target, _ in hop.targets),
            )

    def _drpc(self) -> Iterable[Drpc]:
        for component in self.graph.components():
            for spout in self.facts.spouts:
                if spout.kind is None and spout.number in component:
                    last = max(number for number in component if isinstance(self.graph.nodes[number], ProcessorNode))
                    yield Drpc(str(spout.source.name), spout.number, last)

    def _ids(self, order: list[Group]) -> dict[Group, str]:
        """Return the ids of groups: of a spout its name, of others a number and what their author called them."""
        ids: dict[Group, str] = {}
        bolts = 0
        for group in order:
            first = self.graph.nodes[group.nodes[0]]
            if isinstance(first, SpoutNode):
                name = f"{'drpc' if first.kind is None else 'spout'}_{first.source.name}"
                ids[group] = name if len(name) <= 63 else f"{name[:50]}_{first.number}"
                continue
            names = dict.fromkeys(self.graph.nodes[number].name for number in group.nodes)
            ids[group] = "_".join(["b", str(bolts), *(re.sub(r"\W", "_", name) for name in names if name)])[:63]
            bolts += 1
        return ids


def _phases(graph: Graph) -> dict[int, Phase]:
    phases: dict[int, Phase] = {}
    for number, node in graph.nodes.items():  # in the order of the graph: a node stands behind its sources
        late = any(phases[edge.source] is Phase.COMMIT for edge in graph.in_edges[number])
        commits = isinstance(node, ProcessorNode) and node.committer
        phases[number] = Phase.COMMIT if late or commits else Phase.PROCESS
    return phases


def _states(facts: Facts) -> dict[str, set[int]]:
    """Return the nodes beside each state that some node writes or asks."""
    beside: dict[str, set[int]] = {}
    for node, persist in facts.doing(Persist):
        beside.setdefault(persist.state, set()).add(node.number)
    for node, query in facts.doing(Query):
        beside.setdefault(query.state, set()).add(node.number)
    return dict(sorted(beside.items(), key=lambda item: int(item[0].removeprefix("state"))))


def _spec_of(facts: Facts, id: str) -> StateSpec:
    written = {persist.state: persist.spec for _, persist in facts.doing(Persist)}
    return written[id] if id in written else facts.sketch.static_states[id]


def _united(sets: Iterable[Iterable[_Member]]) -> list[set[_Member]]:
    """Return the unions of sets that have a member in common."""
    united: list[set[_Member]] = []
    for each in sets:
        whole = set(each)
        apart: list[set[_Member]] = []
        for other in united:
            if whole & other:
                whole |= other
            else:
                apart.append(other)
        united = [*apart, whole]
    return united


def _strays(by: PartitionNode, key: Schema) -> str | None:
    """Return how a repartition brings tuples elsewhere than where a key of these types is kept, None if it does not."""
    if isinstance(by.grouping, AllGrouping | CustomGrouping):
        return None
    if not isinstance(by.grouping, FieldsGrouping):
        return str(by.grouping)
    fields = chosen(by.schema, by.grouping.fields)
    return None if fields.types == key.types else fields.ddl


def _is_identity(graph: Graph, number: int) -> bool:
    node = graph.nodes[number]
    return isinstance(node, PartitionNode) and isinstance(node.grouping, IdentityGrouping)


def _keeps_window(graph: Graph, number: int) -> bool:
    node = graph.nodes[number]
    return isinstance(node, ProcessorNode) and node.operation.keeps_window
