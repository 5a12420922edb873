"""TridentPlan: a checked Trident topology as frozen data: an ExecutionPlan, whose operators are the nodes of a graph.

    spout_sentences x1 --identity--> b_0_split x1 --fields(word)--> b_1_count x2     phases: P process, C commit
      1 sentences                      2 each (P)                     5 combine (P)
                                       3 partial (P)                  6 persist (C)

`TridentTopology.build` makes it after all checks have passed. Its stages are groups. A group works in the processing phase of a
batch and then in its commit phase; commits are in txid order. A node belongs to the commit phase if it commits (persist, window) or
reads, directly or not, a node that does. Drivers with one TridentBoltExecutor per task get from `coord_specs` what a task waits
for:

    group waits        (plan.waits)  it reports in the commit phase, because it commits or reads a group that waits
    reports            the tasks of the groups that it reads and that do not wait
    commit_reports     the tasks of the groups that it reads and that wait
    targets            the tasks of the groups that read it

A task reports once per batch. So a group that waits reports to all groups behind it in the commit phase, also for nodes that were
complete before.

The driver on Spark takes each batch through the whole plan in one pass. For it `by_section` cuts each group into one stage per
section (see execution/plan.py) of its operations; between these stages tuples stay in their task:

    b_0: each, partial --fields--> b_1: combine | persist, new values --> ...
    depth 0 (with the spout)       depth 1 BATCH  depth 2 COMMIT

If `combine` is by key, its combiners are built-in ones, which fail no attempt, and the state distinguishes attempts, then `combine`
is part of the COMMIT section: b_1 is one stage, and a tuple crosses one exchange only.

Operations on single tuples directly behind a spout run in the spout's stage, at depth 0. Every other stage is deeper than the
stages it reads and than all stages of earlier sections. Both plans satisfy the same laws: `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from windowing.execution.plan import Exchange, ExecutionPlan, Section, Stage, numbered
from windowing.topology.config import TopologyConfig
from windowing.trident.bolt_executor import CoordSpec
from windowing.trident.builtins import Count, Max, Min, Sum
from windowing.trident.fence import Owner, WrittenState
from windowing.trident.fields import IdentityGrouping
from windowing.trident.graph import Graph, IndexedEdge, PartitionNode, ProcessorNode, SpoutNode
from windowing.trident.kinds import StateType
from windowing.trident.operations import Aggregate, Each, Filter, FlatMap, Map, Merge, Peek, Project, SinkOperation
from windowing.trident.state_operations import Persist, Query, StateSpec
from windowing.trident.windows import LateTuples, WindowOperation

__all__ = [
    "Drpc",
    "Phase",
    "StatePlan",
    "TaskId",
    "TridentPlan",
    "coord_specs",
    "targets_of",
]


_OURS = (Count, Sum, Min, Max)
_BY_ITSELF = (Each, Filter, FlatMap, Map, Merge, Peek, Project, SinkOperation)


class Phase(Enum):
    """When a node works: when a batch's tuples arrive, in any order of batches, or when the batch is committed, in txid order."""

    PROCESS = "process"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A state: its factory and options, and the group whose task i holds partition i (None: no node uses the state)."""

    id: str
    spec: StateSpec
    group: str | None
    partitions: int


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

    @property
    def spouts(self) -> tuple[SpoutNode, ...]:
        """The sources, requests of DRPC included."""
        return tuple(node for node in self.graph.nodes.values() if isinstance(node, SpoutNode))

    @property
    def written(self) -> tuple[WrittenState, ...]:
        """The states that a step persists, in the order of their ids."""
        steps = (getattr(node, "operation", None) for node in self.graph.nodes.values())
        ids = {step.state for step in steps if isinstance(step, Persist)}
        return tuple(
            WrittenState(id, state.spec.factory, state.partitions) for id, state in self.states.items() if id in ids
        )

    def owned_by(self, owners: Mapping[str, Owner]) -> TridentPlan:
        """Return the plan with these owners as the writers of its states, by the id of the state."""
        states = dict(self.states)
        for id, owner in owners.items():
            spec = states[id].spec
            take = getattr(spec.factory, "owned_by", None)
            if take is not None:
                states[id] = replace(states[id], spec=replace(spec, factory=take(owner)))
        return replace(self, states=states)

    def processor(self, number: int) -> ProcessorNode:
        """Return the node with this number, which is an operation."""
        node = self.graph.nodes[number]
        assert isinstance(node, ProcessorNode)
        return node

    def waits(self, group: str, batch_group: str) -> bool:
        """Return whether a group is complete for a batch only in the commit phase: it commits, or reads a group that waits.

        For drivers whose tasks report once per batch, after finishing it. Cost: O(groups * exchanges).
        """
        waiting: dict[str, bool] = {}
        for id, found in self.stages.items():
            mine = [number for number in found.operators if self.batch_groups[number] == batch_group]
            commits = any(self.phases[number] is Phase.COMMIT for number in mine)
            read = (exchange for exchange in self.into(id) if exchange.batch_group == batch_group)
            waiting[id] = commits or any(waiting[exchange.stage] for exchange in read)
        return waiting[group]

    def by_section(self) -> TridentPlan:
        """Return the plan with each group cut into one stage per section. Cost: O(nodes * edges).

        DRPC functions have stages too; a driver that cannot answer requests must refuse such a plan.
        """
        cut = _Cut(self)
        stages = numbered(cut.stages())
        holder = {id: stage.id for stage in stages.values() for id in stage.states}  # the last stage writes it
        states = {
            id: state if state.group is None else replace(state, group=holder[id]) for id, state in self.states.items()
        }
        return replace(self, stages=stages, exchanges=cut.exchanges, states=states)

    def title(self, operator: Any) -> str:
        """Return the title of a node in drawings."""
        return self.graph.nodes[operator].title

    def line_of(self, operator: Any) -> str:
        """Return the line of `explain` for a node."""
        node = self.graph.nodes[operator]
        phase = " [commit]" if self.phases[operator] is Phase.COMMIT else ""
        reads = ", ".join(str(edge.source) for edge in self.graph.in_edges[operator])
        return f"{operator} {node.title}{f' of {reads}' if reads else ''}{phase} -> {node.schema.ddl or 'nothing'}"

    def is_apart(self, exchange: Exchange) -> bool:
        """Return whether an exchange is drawn dotted, because it carries tuples in the commit phase."""
        return self.phases[exchange.source] is Phase.COMMIT

    def windows(self) -> dict[str, Any]:
        """Return the definition of the stored windows of TridentCluster (execution/compatibility.py), by group and node."""
        return {
            "windows": {
                f"{group.id}, {self.graph.nodes[number].called}": {
                    "tasks": group.parallelism,
                    "window": found["window"],
                }
                for group in self.stages.values()
                for number in group.operators
                for found in [self._node_definition(number)]
                if "window" in found
            }
        }

    def stream(self, partitions: int, states: Any) -> dict[str, Any]:
        """Return the definition that a checkpoint on Spark stores for a plan by section: its sources and its stages with windows.

        states: the writers of the states.
        """

        def fixed(number: int) -> dict[str, Any]:
            node = self._node_definition(number)
            window = {"window": node["window"]["fixed"]} if "window" in node else {}
            return {"node": node["node"], "fields": node["fields"], **window}

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

    def _node_definition(self, number: int) -> dict[str, Any]:
        node = self.graph.nodes[number]
        definition: dict[str, Any] = {"node": number, "title": node.title, "fields": node.schema.ddl}
        if isinstance(node, ProcessorNode) and isinstance(node.operation, WindowOperation):
            definition["window"] = node.operation.bolt(node.inputs[0], node.schema).definition()
        return definition


# -- coord_specs -----------------------------------------------------------------------------------------------------------------


TaskId = tuple[str, int]
"""The id of a group, and the number of a task in it."""


def coord_specs(plan: TridentPlan, group: Stage) -> dict[str, CoordSpec]:
    """Return the spec of a group's tasks for each of its batch groups; none for a spout, which has an executor of its own."""
    return {} if group.is_spout else {name: _spec(plan, group, name) for name in group.batch_groups}


def targets_of(plan: TridentPlan, group: str, batch_group: str) -> tuple[TaskId, ...]:
    """Return the tasks that read a group, each once."""
    return _tasks(plan, (found.target for found in _of(plan.out_of(group), batch_group)))


def _spec(plan: TridentPlan, group: Stage, batch_group: str) -> CoordSpec:
    sources = [exchange.stage for exchange in _of(plan.into(group.id), batch_group)]
    waiting = {id: plan.waits(id, batch_group) for id in sources}
    mine = [number for number in group.operators if plan.batch_groups[number] == batch_group]
    return CoordSpec(
        _tasks(plan, (id for id in sources if not waiting[id])),
        commits=any(plan.processor(number).committer for number in mine),
        commit_reports=_tasks(plan, (id for id in sources if waiting[id])),
        targets=targets_of(plan, group.id, batch_group),
    )


def _of(exchanges: Iterable[Exchange], batch_group: str) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.batch_group == batch_group]


def _tasks(plan: TridentPlan, groups: Iterable[str]) -> tuple[TaskId, ...]:
    return tuple((id, task) for id in dict.fromkeys(groups) for task in range(plan.stage(id).parallelism))


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
        found = [*self._between_groups(), *self._within_groups()]
        self.exchanges = tuple(replace(exchange, id=number) for number, exchange in enumerate(found))

    def _sections(self) -> dict[int, Section]:
        graph = self.plan.graph
        operations = {node.number: node.operation for node in graph.nodes.values() if isinstance(node, ProcessorNode)}
        windows = {number for number, operation in operations.items() if operation.keeps_window}
        before = {above for number in windows for above in graph.upstream(number)} | windows
        persists = {number for number, operation in operations.items() if isinstance(operation, Persist)}
        found = {}
        for number in operations:  # in the order of the graph
            written = persists & {number, *graph.upstream(number)}
            found[number] = Section.STREAM if number in before else Section.COMMIT if written else Section.BATCH
        return found | dict.fromkeys(filter(self._only_combines, found), Section.COMMIT)

    def _only_combines(self, number: int) -> bool:
        """Return whether an aggregation can run in the commit section of the only state behind it: it combines by key, with
        built-in combiners, which fail no attempt.
        """
        plan = self.plan
        operation, readers = plan.processor(number).operation, plan.graph.out_edges[number]
        if not isinstance(operation, Aggregate) or operation.group is None or len(readers) != 1:
            return False
        ours = all(part.combines and type(part.aggregator) in _OURS for part in operation.parts)
        written = plan.graph.nodes[readers[0].target]
        if not ours or not isinstance(written, ProcessorNode) or not isinstance(written.operation, Persist):
            return False
        fenced = written.operation.spec.kind in (StateType.TRANSACTIONAL, StateType.OPAQUE)
        return fenced and self.group[number] is self.group[written.number]

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

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def _between_groups(self) -> Iterator[Exchange]:
        for exchange in self.plan.exchanges:
            for section in Section:
                targets = tuple(target for target in exchange.targets if self.section[target[0]] is section)
                if targets:
                    yield self._leading(exchange, targets)

    def _within_groups(self) -> Iterator[Exchange]:
        """Yield the exchanges from one section of a group to another; each task sends to the task of the same number."""
        found: dict[tuple[int, Section, bool], list[IndexedEdge]] = {}
        for edge in self.plan.graph.edges:
            if edge.source not in self.section or edge.target not in self.section:
                continue
            if self.group[edge.source] is self.group[edge.target] and self.id[edge.source] != self.id[edge.target]:
                late = isinstance(self.plan.processor(edge.target).operation, LateTuples)
                found.setdefault((edge.source, self.section[edge.target], late), []).append(edge)
        for (source, _, late), edges in found.items():
            reader = self.plan.processor(edges[0].target)
            exchange = Exchange(
                id=0,
                source=source,
                stage="",
                target="",
                grouping=IdentityGrouping(),
                schema=reader.schema if late else self.plan.processor(source).schema,
                targets=(),
                late=late,
                batch_group=self.plan.batch_groups[source],
            )
            yield self._leading(exchange, tuple((edge.target, edge.index) for edge in edges))

    def _leading(self, exchange: Exchange, targets: tuple[tuple[int, int], ...]) -> Exchange:
        """Return an exchange between the stages of its source and of these targets."""
        return replace(
            exchange,
            stage=self.id[exchange.source],
            target=self.id[targets[0][0]],
            targets=targets,
            to_window=any(self.plan.processor(number).operation.keeps_window for number, _ in targets),
        )

    # -- stages --------------------------------------------------------------------------------------------------------

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
        if all(map(self._at_spout, into)) and all(map(self._by_itself, self.nodes[id])):
            return 0
        return 1 + max([lowest, *(made[exchange.stage].depth for exchange in into)])

    def _at_spout(self, exchange: Exchange) -> bool:
        return self.group[exchange.source].is_spout and isinstance(exchange.grouping, IdentityGrouping)

    def _by_itself(self, number: int) -> bool:
        operation = self.plan.processor(number).operation
        partial = isinstance(operation, Aggregate) and operation.by_itself
        return partial or isinstance(operation, _BY_ITSELF)
