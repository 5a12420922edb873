r"""The graph of a Trident topology, and TridentPlan: the checked topology as frozen data, an ExecutionPlan whose operators are the
nodes of the graph.

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
none; the same graph gives the same groups.

    spout_sentences x1 --identity--> b_0_split x1 --fields(word)--> b_1_count x2     phases: P process, C commit
      1 sentences                      2 each (P)                     5 combine (P)
                                       3 partial (P)                  6 persist (C)

`TridentTopology.build` makes the plan after all checks have passed. Its stages are groups. A group works in the processing phase of
a batch and then in its commit phase; commits are in txid order. A node belongs to the commit phase if it commits (persist, window)
or reads, directly or not, a node that does. Drivers with one TridentBoltExecutor per task get from `coord_specs` what a task waits
for:

    group waits        (plan.waiting)  it reports in the commit phase, because it commits or reads a group that waits
    reports            the tasks of the groups that it reads and that do not wait
    commit_reports     the tasks of the groups that it reads and that wait
    targets            the tasks of the groups that read it

A task reports once per batch. So a group that waits reports to all groups behind it in the commit phase, also for nodes that were
complete before.

The driver on Spark takes each batch through the whole plan in one pass. For it `by_section` cuts each group into one stage per
section (see execution/plan.py) of its operations; between these stages tuples stay in their task:

    b_0: each, partial --fields--> b_1: combine | persist, new values --> ...
    depth 0 (with the spout)       depth 1 BATCH  depth 2 COMMIT

If `combine` is by key, and the state distinguishes attempts, then `combine` is part of the COMMIT section: b_1 is one stage, and a
tuple crosses one exchange only. It may fail an attempt there, as `combine` with the stored value may.

Operations on single tuples directly behind a spout run in the spout's stage, at depth 0. Every other stage is deeper than the
stages it reads and than all stages of earlier sections. Both plans satisfy the same laws: `check`. Source: Storm's `Node`,
`SpoutNode`, `ProcessorNode`, `PartitionNode`, `IndexedEdge`, `GraphGrouper.mergeFully`, `Group`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from windowing.errors import ConfigError, quote
from windowing.execution.plan import Exchange, ExecutionPlan, Section, Stage, numbered
from windowing.schema.checks import did_you_mean
from windowing.schema.types import Schema
from windowing.topology.bolts import WindowedBolt
from windowing.topology.config import TopologyConfig
from windowing.topology.groupings import Chooser, Grouping, IdentityGrouping, Partitioning
from windowing.trident.builtins import Count
from windowing.trident.executors import CoordSpec
from windowing.trident.fence import TYPE_OF_KEY, Owner, StatePlan
from windowing.trident.kinds import Phase, SpoutKind, StateType
from windowing.trident.operations import Aggregate, FunctionOperation, Operation
from windowing.trident.state_operations import AggregateUpdater, CombinerUpdater, Persist, Query, StateSpec
from windowing.trident.windows import WindowClock, WindowOperation

_Member = TypeVar("_Member", bound=Hashable)


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The source of a stream: a named spout, or the requests of a DRPC function. output: its fields, if declared."""

    name: Any
    spout: Any = None
    output: Any = None
    is_drpc: bool = False

    @property
    def title(self) -> str:
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
        return self.what.title if isinstance(self.what, StreamSource | Operation) else f"partition by {self.what}"

    @property
    def is_partition(self) -> bool:
        return isinstance(self.what, Partitioning)


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
        step = StepDeclaration(len(self.steps) + 1, what, sources, name)
        self.steps.append(step)
        return step

    def note(self, problem: str) -> None:
        """Note a mistake that belongs to no single step."""
        if problem not in self.problems:
            self.problems.append(problem)

    def state_id(self) -> str:
        self._states += 1
        return f"state{self._states}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node with resolved fields. name: the author's name of the stream. hint: the requested parallelism.

    operation: that of a ProcessorNode, None for other nodes.
    """

    number: int
    title: str
    schema: Schema
    name: str | None = None
    hint: int | None = None
    operation: Operation | None = None

    @property
    def called(self) -> str:
        return f"step {self.number}, {self.title}"

    @property
    def keeps_window(self) -> bool:
        """Whether it has the windows of an operation."""
        return self.operation is not None and self.operation.keeps_window

    @property
    def is_identity(self) -> bool:
        """Whether it is a repartition that leaves tuples in their partition."""
        return isinstance(self, PartitionNode) and isinstance(self.grouping, IdentityGrouping)


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
    def appended(self) -> Schema:
        """The output fields behind those of its first source."""
        first = len(self.inputs[0])
        return Schema(self.schema.names[first:], self.schema.types[first:])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionNode(Node):
    """A repartition."""

    grouping: Partitioning


@dataclass(frozen=True, slots=True, order=True)
class IndexedEdge:
    """An edge from one node to input number `index` of another. late: it carries the late tuples of a window, not its rows."""

    source: int
    target: int
    index: int
    late: bool = False


@dataclass(frozen=True)
class Graph:
    """Nodes by number, and edges in order of (source, target, index)."""

    nodes: dict[int, Node]
    edges: tuple[IndexedEdge, ...]

    @classmethod
    def of(cls, nodes: Iterable[Node], edges: Iterable[IndexedEdge]) -> Graph:
        return cls({node.number: node for node in sorted(nodes, key=lambda node: node.number)}, tuple(sorted(edges)))

    @cached_property
    def out_edges(self) -> dict[int, list[IndexedEdge]]:
        out: dict[int, list[IndexedEdge]] = {number: [] for number in self.nodes}
        for edge in self.edges:
            out[edge.source].append(edge)
        return out

    @cached_property
    def in_edges(self) -> dict[int, list[IndexedEdge]]:
        """The edges into each node, in the order of its inputs."""
        into: dict[int, list[IndexedEdge]] = {number: [] for number in self.nodes}
        for edge in sorted(self.edges, key=lambda edge: edge.index):
            into[edge.target].append(edge)
        return into

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
        single = ((number,) for number in self.nodes)
        return united([*single, *((edge.source, edge.target) for edge in self.edges)])


def united(sets: Iterable[Iterable[_Member]]) -> list[set[_Member]]:
    """Return the unions of sets that have a member in common, in the order of their first members."""
    whole: dict[_Member, set[_Member]] = {}
    for each in sets:
        met = [whole.setdefault(member, {member}) for member in each]
        own = max(met, key=len)
        for other in met:
            if other is not own:
                own |= other
                whole.update(dict.fromkeys(other, own))
    return list({id(found): found for found in whole.values()}.values())


# -- GraphGrouper ----------------------------------------------------------------------------------------------------------------


Group = tuple[int, ...]
"""The numbers of nodes that run together, ascending."""


class GraphGrouper:
    """Merges groups.

    >>> nodes = [Node(number=n, title="step", schema=Schema((), ())) for n in range(4)]
    >>> graph = Graph.of(nodes, [IndexedEdge(0, 1, 0), IndexedEdge(1, 2, 0), IndexedEdge(2, 3, 0)])
    >>> grouper = GraphGrouper(graph, [(1,), (3,)])  # 0 is a spout, 2 a repartition
    >>> grouper.merge_fully()
    >>> grouper.groups
    [(1,), (3,)]
    """

    def __init__(self, graph: Graph, initial: Sequence[Iterable[int]]) -> None:
        self._graph = graph
        self.groups: list[Group] = [tuple(sorted(nodes)) for nodes in initial]
        self._of = {number: group[0] for group in self.groups for number in group}
        """By node, the first node of its group, which stands for the group: a tuple would be hashed anew at each look."""

    def merge_fully(self) -> None:
        """Merge until nothing can be merged. Cost: O(groups * edges) at worst."""
        position = 0
        while position < len(self.groups):
            group = self.groups[position]
            for near in (self.outgoing(group), self.incoming(group)):
                other = near.pop() if len(near) == 1 else None
                if other is not None:
                    self._merge(group, other)
                    position = 0
                    break
            else:
                position += 1

    def outgoing(self, group: Group) -> set[int | None]:
        """Return the first nodes of the groups that tuples of a group go to; None stands for all repartitions."""
        edges = (edge for number in group for edge in self._graph.out_edges[number])
        return {self._of.get(edge.target) for edge in edges} - {group[0]}

    def incoming(self, group: Group) -> set[int | None]:
        """Return the first nodes of the groups that tuples of a group come from; None stands for all repartitions and spouts."""
        edges = (edge for number in group for edge in self._graph.in_edges[number])
        return {self._of.get(edge.source) for edge in edges} - {group[0]}

    def _merge(self, one: Group, first: int) -> None:
        other = next(group for group in self.groups if group[0] == first)
        merged = tuple(sorted((*one, *other)))
        self.groups[self.groups.index(one)] = merged
        self.groups.remove(other)
        self._of.update(dict.fromkeys(merged, merged[0]))


# -- crossings -------------------------------------------------------------------------------------------------------------------


class Crossing(NamedTuple):
    """An edge from a node, over a repartition if there is one, to inputs of nodes of another unit: a group, or a stage."""

    source: int
    by: int | None
    late: bool
    target: Any
    targets: tuple[tuple[int, int], ...]


def crossings(graph: Graph, unit: Mapping[int, Any]) -> list[Crossing]:
    """Return all edges between units; `unit` has that of each source and operation. Cost: O(edges)."""
    found: dict[tuple[int, int | None, bool, Any], list[tuple[int, int]]] = {}
    for edge in graph.edges:
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        if isinstance(target, PartitionNode):
            for further in graph.out_edges[edge.target]:
                key = edge.source, edge.target, False, unit[further.target]
                found.setdefault(key, []).append((further.target, further.index))
        elif not isinstance(source, PartitionNode) and unit[edge.source] != unit[edge.target]:
            found.setdefault((edge.source, None, edge.late, unit[edge.target]), []).append((edge.target, edge.index))
    return [Crossing(*key, tuple(targets)) for key, targets in found.items()]


def exchanges_of(
    graph: Graph, ordered: Iterable[Crossing], stage: Mapping[int, str], batch_groups: Mapping[int, str]
) -> tuple[Exchange, ...]:
    """Return the exchanges between stages, numbered in this order. stage: that of each source and operation."""
    exchanges = []
    for id, (source, by, late, _, targets) in enumerate(ordered):
        first, index = targets[0]
        reader, partition = graph.nodes[first], None if by is None else graph.nodes[by]
        assert isinstance(reader, ProcessorNode)
        exchange = Exchange(
            id=id,
            source=source,
            stage=stage[source],
            target=stage[first],
            grouping=partition.grouping if isinstance(partition, PartitionNode) else IdentityGrouping(),
            schema=reader.schema if late else reader.inputs[index],
            targets=targets,
            late=late,
            to_window=any(graph.nodes[number].keeps_window for number, _ in targets),
            batch_group=batch_groups[source],
        )
        exchanges.append(exchange)
    return tuple(exchanges)


# -- TridentPlan -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drpc:
    """A DRPC function: the source of its requests, and the node whose tuples are the answers."""

    function: str
    spout: int
    answer: int


@dataclass(frozen=True, kw_only=True)
class TridentPlan(ExecutionPlan):
    """The plan that all drivers run. batch_groups: the batch group of each node; connected streams share batches."""

    graph: Graph
    phases: Mapping[int, Phase]
    batch_groups: Mapping[int, str]
    states: Mapping[str, StatePlan]
    drpc: Mapping[str, Drpc]
    config: TopologyConfig

    @cached_property
    def choosers(self) -> dict[int, Chooser]:
        """By exchange what chooses the tasks of a tuple; none for identity and batchGlobal, which look at no tuple."""
        return {
            each.id: each.grouping.targets(self.stages[each.target].parallelism, each.schema)
            for each in self.exchanges
            if isinstance(each.grouping, Grouping)
        }

    @cached_property
    def clocks(self) -> dict[int, list[WindowClock]]:
        """By exchange to windows the clock of each window."""
        found = {
            each.id: [self.processor(target) for target, _ in each.targets] for each in self.exchanges if each.to_window
        }
        return {
            id: [
                WindowClock(node.operation.config, node.inputs[0])
                for node in nodes
                if isinstance(node.operation, WindowOperation)
            ]
            for id, nodes in found.items()
        }

    @cached_property
    def spouts(self) -> tuple[SpoutNode, ...]:
        """The sources, requests of DRPC included."""
        return tuple(node for node in self.graph.nodes.values() if isinstance(node, SpoutNode))

    @property
    def requests(self) -> frozenset[str]:
        """The batch groups that are requests of DRPC, which are no transactions."""
        return frozenset(self.batch_groups[found.spout] for found in self.drpc.values())

    @cached_property
    def streams(self) -> dict[str, SpoutNode]:
        """The sources by the names of their streams, without requests of DRPC."""
        return {str(spout.source.name): spout for spout in self.spouts if spout.kind is not None}

    def source_of(self, stream: Any) -> SpoutNode:
        """Return the source of a stream. Raises ConfigError, which names the nearest one."""
        known = self.streams
        if stream not in known:
            raise ConfigError(f"there is no stream {quote(stream)}; {did_you_mean(str(stream), known)}")
        return known[stream]

    def function(self, name: Any) -> Drpc:
        """Return a DRPC function. Raises ConfigError, which names the nearest one."""
        if name not in self.drpc:
            known = did_you_mean(str(name), self.drpc) if self.drpc else "there is none"
            raise ConfigError(f"there is no function {quote(name)}; {known}")
        return self.drpc[name]

    @property
    def written(self) -> tuple[StatePlan, ...]:
        """The states that a step persists, in the order of their ids."""
        return tuple(state for state in self.states.values() if state.is_written)

    def owned_by(self, owners: Mapping[str, Owner]) -> TridentPlan:
        """Return the plan with these owners as the writers of its states, by the id of the state."""
        states = dict(self.states)
        for id, owner in owners.items():
            take = getattr(states[id].factory, "owned_by", None)
            if take is not None:
                states[id] = states[id]._replace(factory=take(owner))
        return replace(self, states=states)

    @property
    def unread_late(self) -> Iterator[str]:
        """The components with windows whose late tuples have no reader."""
        for stage in self.stages.values():
            for number in () if stage.is_spout else stage.operators:
                is_read = any(edge.late for edge in self.graph.out_edges[number])
                if self.processor(number).keeps_window and not is_read:
                    yield stage.component

    def processor(self, number: int) -> ProcessorNode:
        """Return the node with this number, which is an operation."""
        node = self.graph.nodes[number]
        assert isinstance(node, ProcessorNode)
        return node

    @cached_property
    def waiting(self) -> Mapping[tuple[str, str], bool]:
        """By group and batch group: whether it is complete for a batch only in the commit phase: it commits, or reads a group
        that waits.

        For drivers whose tasks report once per batch, after finishing it. Cost: O(nodes + exchanges), once.
        """
        read: dict[str, list[Exchange]] = {}
        for exchange in self.exchanges:
            read.setdefault(exchange.target, []).append(exchange)
        waiting: dict[tuple[str, str], bool] = {}
        for id, found in self.stages.items():
            for number in found.operators:
                group = id, self.batch_groups[number]
                waiting[group] = waiting.get(group, False) or self.phases[number] is Phase.COMMIT
            for exchange in read.get(id, ()):
                group = id, exchange.batch_group
                waiting[group] = waiting.get(group, False) or waiting[exchange.stage, exchange.batch_group]
        return waiting

    def by_section(self) -> TridentPlan:
        """Return the plan with each group cut into one stage per section. Cost: O(nodes * edges).

        DRPC functions have stages too; a driver that cannot answer requests must refuse such a plan.
        """
        cut = _Cut(self)
        stages = numbered(cut.stages())
        holder = {id: stage.id for stage in stages.values() for id in stage.states}  # the last stage writes it
        states = {
            id: state if state.group is None else state._replace(group=holder[id]) for id, state in self.states.items()
        }
        return replace(self, stages=stages, exchanges=cut.exchanges, states=states)

    def title(self, operator: Any) -> str:
        """Return the title of a node in drawings; that of a window is complete only when it is resolved."""
        node = self.graph.nodes[operator]
        return node.operation.title if isinstance(node, ProcessorNode) and node.keeps_window else node.title

    def line_of(self, operator: Any) -> str:
        """Return the line of `explain` for a node."""
        node = self.graph.nodes[operator]
        phase = " [commit]" if self.phases[operator] is Phase.COMMIT else ""
        reads = ", ".join(str(edge.source) for edge in self.graph.in_edges[operator])
        of = f" of {reads}" if reads else ""
        return f"{operator} {self.title(operator)}{of}{phase} -> {node.schema.ddl or 'nothing'}"

    def is_apart(self, exchange: Exchange) -> bool:
        """Return whether an exchange is drawn dotted, because it carries tuples in the commit phase."""
        return self.phases[exchange.source] is Phase.COMMIT

    @property
    def windowed(self) -> list[WindowedBolt]:
        """The windows, each as the bolt that its tasks run."""
        steps = (node for node in self.graph.nodes.values() if isinstance(node, ProcessorNode))
        return [step.operation.bolt(step) for step in steps if isinstance(step.operation, WindowOperation)]

    @property
    def functions(self) -> Iterator[tuple[str, type[Any], str]]:
        """The objects among the functions and filters: what each is called in messages, its class, the method that gets tuples."""
        for node in self.graph.nodes.values():
            if isinstance(node, ProcessorNode) and isinstance(node.operation, FunctionOperation):
                target, method = node.operation.function.target, node.operation.function.method
                if method is not None:
                    yield node.called, target if isinstance(target, type) else type(target), method

    def windows(self) -> dict[str, Any]:
        """Return the definition of the stored windows of TridentCluster (execution/compatibility.py), by group and node."""
        windows = {}
        for group in self.stages.values():
            for node in (self.graph.nodes[number] for number in group.operators):
                if node.keeps_window:
                    window = {"tasks": group.parallelism, "window": self._window(node.number)}
                    windows[f"{group.id}, {node.called}"] = window
        return {"windows": windows}

    def stream(self, partitions: int, states: Any) -> dict[str, Any]:
        """Return the definition that a checkpoint on Spark stores for a plan by section: its sources and its stages with windows.

        states: the writers of the states.
        """

        free = {}

        def fixed(number: int) -> dict[str, Any]:
            node = self.graph.nodes[number]
            found = {"node": number, "fields": node.schema.ddl}
            if node.keeps_window:
                window = self._window(number)
                found["window"], free[window["fixed"]["name"]] = window["fixed"], window["free"]
            return found

        return {
            "trident": {
                "name": self.name,
                "partitions": partitions,
                "streams": [[str(spout.source.name), spout.schema.ddl] for spout in self.spouts],
                "stream": [
                    [stage.component, stage.parallelism, list(map(fixed, stage.operators))]
                    for stage in self.stages.values()
                    if stage.section is Section.STREAM and not stage.is_spout
                ],
                "free": free,
                "states": states,
            }
        }

    def check(self) -> None:
        """Assert the invariants of a plan."""
        super().check()
        of = {number: group.id for group in self.stages.values() for number in group.operators}
        operations = {number for number, node in self.graph.nodes.items() if not isinstance(node, PartitionNode)}
        # Every source and every operation is in one group.
        assert set(of) == operations
        assert sum(len(group.operators) for group in self.stages.values()) == len(operations)
        # Every input of an operation is filled inside its group, or by one exchange.
        inside = [
            (edge.target, edge.index) for edge in self.graph.edges if of.get(edge.source) == of.get(edge.target, "")
        ]
        brought = [target for exchange in self.exchanges for target in exchange.targets]
        wanted = [(edge.target, edge.index) for edge in self.graph.edges if edge.target in operations]
        assert sorted(inside + brought) == sorted(wanted)
        for exchange in self.exchanges:
            # An identity exchange keeps the number of tasks; a batch stays in its batch group.
            sizes = {self.stages[exchange.stage].parallelism, self.stages[exchange.target].parallelism}
            assert len(sizes) == 1 or not isinstance(exchange.grouping, IdentityGrouping)
            assert {self.batch_groups[target] for target, _ in exchange.targets} == {exchange.batch_group}
        for edge in self.graph.edges:
            # A node that reads a node of the commit phase is in the commit phase too.
            assert self.phases[edge.source] is Phase.PROCESS or self.phases[edge.target] is Phase.COMMIT
        for state in self.states.values():
            # Task i of its group holds partition i of a state.
            assert state.group is None or self.stages[state.group].parallelism == state.partitions

    def _window(self, number: int) -> dict[str, Any]:
        node = self.processor(number)
        assert isinstance(node.operation, WindowOperation)
        return node.operation.bolt(node).definition()


def meaning_of(step: Persist) -> dict[str, Any]:
    """Return what is known of the values that a step writes: the fields of the key with their types, and a built-in aggregator with
    its field.
    """
    updater = step.updater.target
    if not isinstance(updater, AggregateUpdater):
        return {}
    found = {
        "key": ", ".join(step.read.names[: updater.keys]),
        TYPE_OF_KEY: ", ".join(step.read.types[: updater.keys]),
    }
    kind = type(updater.aggregator)
    if isinstance(updater, CombinerUpdater) and kind.__module__ == Count.__module__:
        found["aggregator"] = kind.__name__
        if updater.inputs and kind is not Count:
            found["field"] = updater.inputs[0]
    return found


# -- coord_specs -----------------------------------------------------------------------------------------------------------------


TaskId = tuple[str, int]
"""The id of a group, and the number of a task in it."""


def coord_specs(plan: TridentPlan, group: Stage) -> dict[str, CoordSpec]:
    """Return the spec of a group's tasks for each of its batch groups; none for a spout, which has an executor of its own."""
    specs = {}
    for batch_group in () if group.is_spout else group.batch_groups:
        sources = [exchange.stage for exchange in _of(plan.into(group.id), batch_group)]
        mine = [number for number in group.operators if plan.batch_groups[number] == batch_group]
        specs[batch_group] = CoordSpec(
            _tasks(plan, (id for id in sources if not plan.waiting[id, batch_group])),
            commits=any(plan.processor(number).operation.committer for number in mine),
            commit_reports=_tasks(plan, (id for id in sources if plan.waiting[id, batch_group])),
            targets=targets_of(plan, group.id, batch_group),
        )
    return specs


def targets_of(plan: TridentPlan, group: str, batch_group: str) -> tuple[TaskId, ...]:
    """Return the tasks that read a group, each once."""
    return _tasks(plan, (found.target for found in _of(plan.out_of(group), batch_group)))


def _of(exchanges: Iterable[Exchange], batch_group: str) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.batch_group == batch_group]


def _tasks(plan: TridentPlan, groups: Iterable[str]) -> tuple[TaskId, ...]:
    return tuple((id, task) for id in dict.fromkeys(groups) for task in range(plan.stages[id].parallelism))


# -- by_section ------------------------------------------------------------------------------------------------------------------


class _Cut:
    """The cut of a plan by section. `section`: the section of each operation; `id`: the stage of each node."""

    def __init__(self, plan: TridentPlan) -> None:
        self.plan = plan
        self.group = {number: group for group in plan.stages.values() for number in group.operators}
        self.section = self._sections()
        self.nodes: dict[str, tuple[int, ...]] = {}
        self.id: dict[int, str] = {}
        for group in plan.stages.values():
            for id, nodes in self._parts(group):
                self.nodes[id] = nodes
                self.id.update(dict.fromkeys(nodes, id))
        # In the order of the plan's exchanges; those within a group are behind them.
        whole = {(each.source, target): each.id for each in plan.exchanges for target in each.targets}
        found = [
            (whole.get((each.source, each.targets[0]), len(whole)), each) for each in crossings(plan.graph, self.id)
        ]
        found.sort(key=lambda item: (item[0], item[1].source, self.section[item[1].targets[0][0]]))
        self.exchanges = exchanges_of(plan.graph, (each for _, each in found), self.id, plan.batch_groups)

    def _sections(self) -> dict[int, Section]:
        graph = self.plan.graph
        operations = {node.number: node.operation for node in graph.nodes.values() if node.operation is not None}
        windows = {number for number, operation in operations.items() if operation.keeps_window}
        before = {above for number in windows for above in graph.upstream(number)} | windows
        persists = {number for number, operation in operations.items() if isinstance(operation, Persist)}
        found = {}
        for number in operations:  # in the order of the graph
            written = persists & {number, *graph.upstream(number)}
            found[number] = Section.STREAM if number in before else Section.COMMIT if written else Section.BATCH
        return found | dict.fromkeys(filter(self._only_combines, found), Section.COMMIT)

    def _only_combines(self, number: int) -> bool:
        """Return whether an aggregation can run in the commit section of the only state behind it: it combines by key."""
        plan = self.plan
        operation, readers = plan.processor(number).operation, plan.graph.out_edges[number]
        if not isinstance(operation, Aggregate) or operation.group is None or len(readers) != 1:
            return False
        written = readers[0].target
        persist = plan.graph.nodes[written].operation
        if not all(part.combines for part in operation.specs) or not isinstance(persist, Persist):
            return False
        fenced = persist.spec.kind in (StateType.TRANSACTIONAL, StateType.OPAQUE)
        return fenced and self.group[number] is self.group[written]

    def _parts(self, group: Stage) -> list[tuple[str, tuple[int, ...]]]:
        """Return the stages of a group by id; a single stage keeps the group's id."""
        if group.is_spout:
            return [(group.id, group.operators)]
        of = {
            section: tuple(number for number in group.operators if self.section[number] is section)
            for section in Section
        }
        parts = [(section, nodes) for section, nodes in of.items() if nodes]
        alone = len(parts) == 1
        return [(group.id if alone else f"{group.id}.{section.name.lower()}", nodes) for section, nodes in parts]

    def stages(self) -> list[Stage]:
        """Return the stages, by depth; those of one depth stay in the order of their groups."""
        made: dict[str, Stage] = {}
        lowest = 0
        for group in (group for group in self.plan.stages.values() if group.is_spout):
            made[group.id] = replace(group, section=Section(0), depth=0)
        for section in Section:
            for id, nodes in self.nodes.items():
                if nodes[0] in self.section and self.section[nodes[0]] is section:
                    made[id] = self._stage(id, nodes, self._depth(id, made, lowest))
            lowest = max([lowest, *(stage.depth for stage in made.values())])
        return sorted(made.values(), key=lambda stage: stage.depth)

    def _stage(self, id: str, nodes: tuple[int, ...], depth: int) -> Stage:
        operations = [self.plan.processor(number).operation for number in nodes]
        asked = (operation.state for operation in operations if isinstance(operation, Persist | Query))
        return replace(
            self.group[nodes[0]],
            id=id,
            operators=nodes,
            section=self.section[nodes[0]],
            depth=depth,
            keeps_window=any(operation.keeps_window for operation in operations),
            states=tuple(dict.fromkeys(asked)),
        )

    def _depth(self, id: str, made: dict[str, Stage], lowest: int) -> int:
        into = [exchange for exchange in self.exchanges if exchange.target == id]
        if all(
            self.group[each.source].is_spout and isinstance(each.grouping, IdentityGrouping) for each in into
        ) and all(self.plan.processor(number).operation.by_itself for number in self.nodes[id]):
            return 0
        return 1 + max([lowest, *(made[exchange.stage].depth for exchange in into)])
