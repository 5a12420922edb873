"""TridentPlan: a checked Trident topology as frozen data, and what each of its tasks waits for.

TridentPlan: a Trident topology that can run: groups of nodes, exchanges between them, states; as frozen plain data.

    spout_sentences x1 --identity--> b_0_split x1 --fields(word)--> b_1_count x2     phases: P process, C commit
      1 sentences                      2 each (P)                     5 combine (P)
                                       3 partial (P)                  6 persist (C)

Laws: a plan is made by `TridentTopology.build`, which has found every mistake; groups stand in an order in which each reads only
those before it; every edge of the graph is inside a group or in one exchange. A node is of the commit phase if it commits (persist,
window) or reads, by way of others, one that does: it works in the order of the txids.

coord_specs: what each task of a plan waits for in a batch, and whom it tells; for drivers with a TridentBoltExecutor a task.

    group waits        (plan.waits)  it reports at the commit: it commits, or reads a group that waits
    reports            the tasks of groups that it reads, and that do not wait
    commit_reports     those that do
    targets            the tasks of the groups that read it

A task reports once for a batch, so a group that waits tells all groups behind it at the commit, also of what was complete before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import did_you_mean
from windowing.schema.types import Schema
from windowing.topology.config import TopologyConfig
from windowing.topology.plan import Arrow, Box, mermaid
from windowing.trident.bolt_executor import CoordSpec
from windowing.trident.fence import Owner, WrittenState
from windowing.trident.fields import IdentityGrouping, Partitioning
from windowing.trident.graph import Graph, PartitionNode, ProcessorNode, SpoutNode
from windowing.trident.operations import SinkOperation
from windowing.trident.state_operations import Persist, StateSpec
from windowing.trident.windows import WindowOperation

__all__ = [
    "Drpc",
    "Exchange",
    "GroupPlan",
    "Phase",
    "StatePlan",
    "TaskId",
    "TridentPlan",
    "coord_specs",
    "targets_of",
]


class Phase(Enum):
    """When a node works: with the tuples of a batch, in any order of batches, or when the batch is committed, in txid order."""

    PROCESS = "process"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """Nodes that run together: one spout, or operations. parallelism: its number of tasks. states: whose partitions it holds."""

    id: str
    nodes: tuple[int, ...]
    parallelism: int
    is_spout: bool
    commits: bool
    batch_groups: tuple[str, ...]
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Tuples of one node on their way to a group. targets: (node, index of its input). phase: when they are complete.

    late: they are the late tuples of a window. to_window: their timestamps are told to every task (see ExchangeWriter).
    """

    id: int
    source: int
    group: str
    target_group: str
    grouping: Partitioning
    schema: Schema
    targets: tuple[tuple[int, int], ...]
    phase: Phase
    batch_group: str
    late: bool = False
    to_window: bool = False


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A state: its factory and what is asked of it, and the group whose task i holds partition i (None: nobody asks it)."""

    id: str
    spec: StateSpec
    group: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class Drpc:
    """A function of DRPC: where its requests come in, and the node whose tuples answer them."""

    function: str
    spout: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TridentPlan:
    """What both drivers run. groups: by id, each behind those that it reads. batch_groups: of each node; streams that meet share
    one, and with it their batches. sinks: the node of each name.
    """

    name: str
    graph: Graph
    groups: Mapping[str, GroupPlan]
    exchanges: tuple[Exchange, ...]
    phases: Mapping[int, Phase]
    batch_groups: Mapping[int, str]
    states: Mapping[str, StatePlan]
    drpc: Mapping[str, Drpc]
    sinks: Mapping[str, int]
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
        """Return the same plan, whose states these owners write, by the id of the state."""
        states = dict(self.states)
        for id, owner in owners.items():
            spec = states[id].spec
            take = getattr(spec.factory, "owned_by", None)
            if take is not None:
                states[id] = replace(states[id], spec=replace(spec, factory=take(owner)))
        return replace(self, states=states)

    def group(self, id: str) -> GroupPlan:
        """Return a group by its id; ConfigError names the nearest one."""
        if id not in self.groups:
            raise ConfigError(f"there is no group {quote(id)}; {did_you_mean(id, self.groups)}")
        return self.groups[id]

    def group_of(self, node: int) -> GroupPlan:
        """Return the group that a node is in. Cost: O(groups)."""
        return next(group for group in self.groups.values() if node in group.nodes)

    def processor(self, number: int) -> ProcessorNode:
        """Return a node that is an operation."""
        node = self.graph.nodes[number]
        assert isinstance(node, ProcessorNode)
        return node

    def into(self, group: str) -> tuple[Exchange, ...]:
        """Return the exchanges that lead to a group."""
        return tuple(exchange for exchange in self.exchanges if exchange.target_group == group)

    def out_of(self, group: str) -> tuple[Exchange, ...]:
        """Return the exchanges that lead away from a group."""
        return tuple(exchange for exchange in self.exchanges if exchange.group == group)

    def waits(self, group: str, batch_group: str) -> bool:
        """Return whether a group has all of a batch at its commit only: it commits, or reads a group that waits.

        For drivers whose tasks report once for a batch, when they have finished all of it. Cost: O(groups * exchanges).
        """
        waiting: dict[str, bool] = {}
        for id, found in self.groups.items():
            mine = [number for number in found.nodes if self.batch_groups[number] == batch_group]
            commits = any(self.phases[number] is Phase.COMMIT for number in mine)
            read = (exchange for exchange in self.into(id) if exchange.batch_group == batch_group)
            waiting[id] = commits or any(waiting[exchange.group] for exchange in read)
        return waiting[group]

    def explain(self) -> str:
        """Return groups, nodes and exchanges as text, for a person."""
        lines = [f"topology {self.name}: {len(self.groups)} groups, {len(self.exchanges)} exchanges"]
        for group in self.groups.values():
            lines.append(f"{group.id} ×{group.parallelism}, {', '.join(group.batch_groups)}")
            lines += [f"    {line}" for number in group.nodes for line in self._node_lines(number)]
            for exchange in self.out_of(group.id):
                late = " in the commit phase" if exchange.phase is Phase.COMMIT else ""
                lines.append(f"  {exchange.source} == {exchange.grouping} ==> {exchange.target_group}{late}")
        return "\n".join(lines) + "\n"

    def to_mermaid(self) -> str:
        """Return a drawing of groups and exchanges as Mermaid text; the same for the same plan.

        Spouts are rounded, groups with windows have double sides, those with a state are cylinders; what goes in the commit phase
        is dotted.
        """
        return mermaid(self.boxes(), self.arrows())

    def boxes(self) -> Iterator[Box]:
        """Yield what a drawing shows of each group."""
        for group in self.groups.values():
            nodes = [self.graph.nodes[number] for number in group.nodes]
            titles = [node.title for node in nodes]
            windowed = any(isinstance(node, ProcessorNode) and node.operation.keeps_window for node in nodes)
            shape = "spout" if group.is_spout else "state" if group.states else "window" if windowed else "bolt"
            head = group.id if group.parallelism == 1 else f"{group.id} ×{group.parallelism}"
            yield Box(group.id, (head, *titles), shape)

    def arrows(self) -> Iterator[Arrow]:
        """Yield what a drawing shows of each exchange."""
        for exchange in self.exchanges:
            yield Arrow(exchange.group, exchange.target_group, str(exchange.grouping), exchange.phase is Phase.COMMIT)

    def definition(self) -> dict[str, Any]:
        """Return the plan as plain JSON data, to be kept with a checkpoint; functions are known by their names only."""
        return {
            "name": self.name,
            "config": self.config.to_storm(),
            "groups": {
                group.id: {
                    "parallelism": group.parallelism,
                    "nodes": [self._node_definition(number) for number in group.nodes],
                    "states": list(group.states),
                }
                for group in self.groups.values()
            },
            "exchanges": [
                {
                    "source": exchange.source,
                    "target": exchange.target_group,
                    "grouping": exchange.grouping.definition(),
                    "inputs": [list(target) for target in exchange.targets],
                }
                for exchange in self.exchanges
            ],
        }

    def check(self) -> None:
        """Assert what "correct" means."""
        of = {number: group.id for group in self.groups.values() for number in group.nodes}
        operations = {number for number, node in self.graph.nodes.items() if not isinstance(node, PartitionNode)}
        # Every source and every operation is in one group.
        assert set(of) == operations
        assert sum(len(group.nodes) for group in self.groups.values()) == len(operations)
        # Every input of an operation is filled inside its group, or by one exchange.
        inside = [
            (edge.target, edge.index) for edge in self.graph.edges if of.get(edge.source) == of.get(edge.target, "")
        ]
        brought = [target for exchange in self.exchanges for target in exchange.targets]
        wanted = [(edge.target, edge.index) for edge in self.graph.edges if edge.target in operations]
        assert sorted(inside + brought) == sorted(wanted)
        place = {id: position for position, id in enumerate(self.groups)}
        for exchange in self.exchanges:
            # A group stands behind those that it reads, an identity keeps the number of tasks, a batch stays in its group.
            assert place[exchange.group] < place[exchange.target_group]
            sizes = {self.groups[exchange.group].parallelism, self.groups[exchange.target_group].parallelism}
            assert len(sizes) == 1 or not isinstance(exchange.grouping, IdentityGrouping)
            assert {self.batch_groups[target] for target, _ in exchange.targets} == {exchange.batch_group}
        for edge in self.graph.edges:
            # What reads a node of the commit phase is of it too.
            assert self.phases[edge.source] is Phase.PROCESS or self.phases[edge.target] is Phase.COMMIT
        for state in self.states.values():
            # Task i of its group holds partition i of a state.
            assert state.group is None or self.groups[state.group].parallelism == state.partitions

    def _node_definition(self, number: int) -> dict[str, Any]:
        node = self.graph.nodes[number]
        definition: dict[str, Any] = {"node": number, "title": node.title, "fields": node.schema.ddl}
        if isinstance(node, ProcessorNode) and isinstance(node.operation, WindowOperation):
            definition["window"] = node.operation.bolt(node.inputs[0], node.schema).definition()
        return definition

    def _node_lines(self, number: int) -> Iterator[str]:
        node = self.graph.nodes[number]
        phase = " [commit]" if self.phases[number] is Phase.COMMIT else ""
        reads = ", ".join(str(edge.source) for edge in self.graph.in_edges[number])
        yield f"{number} {node.title}{f' of {reads}' if reads else ''}{phase} -> {node.schema.ddl or 'nothing'}"
        if isinstance(node, ProcessorNode) and isinstance(node.operation, SinkOperation):
            yield f"  out as {node.operation.name}"


# -- coord_specs -----------------------------------------------------------------------------------------------------------------


TaskId = tuple[str, int]
"""The id of a group, and the number of a task in it."""


def coord_specs(plan: TridentPlan, group: GroupPlan) -> dict[str, CoordSpec]:
    """Return the spec of a group's tasks for each batch group that it works for; none for a spout, which has its own executor."""
    return {} if group.is_spout else {name: _spec(plan, group, name) for name in group.batch_groups}


def targets_of(plan: TridentPlan, group: str, batch_group: str) -> tuple[TaskId, ...]:
    """Return the tasks that read a group, each once."""
    return _tasks(plan, (found.target_group for found in _of(plan.out_of(group), batch_group)))


def _spec(plan: TridentPlan, group: GroupPlan, batch_group: str) -> CoordSpec:
    sources = [exchange.group for exchange in _of(plan.into(group.id), batch_group)]
    waiting = {id: plan.waits(id, batch_group) for id in sources}
    mine = [number for number in group.nodes if plan.batch_groups[number] == batch_group]
    return CoordSpec(
        _tasks(plan, (id for id in sources if not waiting[id])),
        commits=any(plan.processor(number).committer for number in mine),
        commit_reports=_tasks(plan, (id for id in sources if waiting[id])),
        targets=targets_of(plan, group.id, batch_group),
    )


def _of(exchanges: Iterable[Exchange], batch_group: str) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.batch_group == batch_group]


def _tasks(plan: TridentPlan, groups: Iterable[str]) -> tuple[TaskId, ...]:
    return tuple((id, task) for id in dict.fromkeys(groups) for task in range(plan.group(id).parallelism))
