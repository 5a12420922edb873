"""TridentStages: a plan cut for a driver whose batches come one after the other and which works stage by stage (Spark's).

    b_0: each, partial --fields--> b_1: combine | persist, new values --> ...
    level 0 (with the spout)       level 1 BATCH  level 2 COMMIT

A unit is what of a group belongs to one section, and works at once:

| section | nodes | why |
|---|---|---|
| STREAM | windows, and all that leads to one | they keep something from batch to batch: the engine's own state |
| BATCH | the others that read no new values | they may fail and be tried again before anything is written |
| COMMIT | persists, and what reads their new values | all else of the batch is done by then |

Laws: a section reads only those before it, so does a level; every edge of the graph lies within a unit or in one link; a unit that
does something with each tuple by itself, right behind a spout, works where the spout does (level 0); all others have a place for
each task, numbered level by level.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from windowing.execution.stages import Section
from windowing.trident.fields import IdentityGrouping
from windowing.trident.graph import IndexedEdge, ProcessorNode
from windowing.trident.operations import Aggregate, Each, Filter, FlatMap, Map, Merge, Peek, Project, SinkOperation
from windowing.trident.plan import Exchange, GroupPlan, Phase, TridentPlan
from windowing.trident.state_operations import Persist, Query
from windowing.trident.windows import LateTuples

__all__ = [
    "TridentStage",
    "TridentStages",
    "UnitPlace",
]


_BY_ITSELF = (Each, Filter, FlatMap, Map, Merge, Peek, Project, SinkOperation)


@dataclass(frozen=True, slots=True, kw_only=True)
class TridentStage:
    """Nodes of one group and section. level: 0 with the spout; first: the number of its first place; out: the links that lead away.

    states: whose partition i its task i holds.
    """

    group: GroupPlan
    section: Section
    nodes: tuple[int, ...]
    level: int
    first: int
    out: tuple[Exchange, ...]
    states: tuple[str, ...]
    keeps_window: bool


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """Where one task of a unit works."""

    number: int
    unit: TridentStage
    task: int


class TridentStages:
    """The units of a plan, in an order in which each reads only those before it; `links` are what leads from one to another.

    Cost: O(nodes * edges), once. A plan with functions of DRPC has units for them too; who cannot answer them refuses such a plan.
    """

    def __init__(self, plan: TridentPlan) -> None:
        self.plan = plan
        self._section = self._sections()
        self._group = {number: group for group in plan.groups.values() for number in group.nodes}
        self.links: tuple[Exchange, ...] = tuple(self._all_links())
        self.units: tuple[TridentStage, ...] = tuple(self._made())

    @cached_property
    def places(self) -> tuple[UnitPlace, ...]:
        """All places, by number."""
        return tuple(
            UnitPlace(unit.first + task, unit, task)
            for unit in self.units
            if unit.level
            for task in range(unit.group.parallelism)
        )

    @cached_property
    def unit_of(self) -> dict[int, TridentStage]:
        """The unit that each link leads to, by the link's id."""
        of = {number: unit for unit in self.units for number in unit.nodes}
        return {link.id: of[link.targets[0][0]] for link in self.links}

    def levels(self, section: Section) -> list[int]:
        """Return the levels of a section, ascending."""
        return sorted({unit.level for unit in self.units if unit.section is section and unit.level})

    def on_level(self, level: int) -> list[UnitPlace]:
        """Return the places of a level, in order."""
        return [place for place in self.places if place.unit.level == level]

    def out_of(self, node: int) -> tuple[Exchange, ...]:
        """Return the links that lead away from a node."""
        return tuple(link for link in self.links if link.source == node)

    def check(self) -> None:
        """Assert what "correct" means."""
        operations = [node.number for node in self.plan.graph.nodes.values() if isinstance(node, ProcessorNode)]
        # Every operation is in one unit.
        assert sorted(number for unit in self.units for number in unit.nodes) == operations
        of = {number: unit for unit in self.units for number in unit.nodes}
        for link in self.links:
            # A link leads to one unit, on a level above that of its source.
            target = of[link.targets[0][0]]
            assert {id(of[number]) for number, _ in link.targets} == {id(target)}
            source = of.get(link.source)
            above = -1 if source is None else source.level
            assert target.level > above or (source is None and target.level == 0)
            assert source is None or source.section <= target.section
        # Sections do not share a level, and places are numbered without a gap.
        by_level = {unit.level: unit.section for unit in self.units if unit.level}
        assert all(unit.section is by_level[unit.level] for unit in self.units if unit.level)
        assert [place.number for place in self.places] == list(range(len(self.places)))
        # A window or a state is at a place.
        assert all(unit.level for unit in self.units if unit.keeps_window or unit.states)

    # -- sections ------------------------------------------------------------------------------------------------------

    def _sections(self) -> dict[int, Section]:
        graph = self.plan.graph
        operations = {node.number: node for node in graph.nodes.values() if isinstance(node, ProcessorNode)}
        windows = {number for number, node in operations.items() if node.operation.keeps_window}
        before = {above for number in windows for above in graph.upstream(number)} | windows
        found = {}
        for number in operations:  # in the order of the graph
            written = any(
                source in operations and (isinstance(operations[source].operation, Persist))
                for source in {number, *graph.upstream(number)}
            )
            found[number] = Section.STREAM if number in before else Section.COMMIT if written else Section.BATCH
        return found

    # -- links ---------------------------------------------------------------------------------------------------------

    def _all_links(self) -> Iterator[Exchange]:
        found = [*self._between_groups(), *self._within_groups()]
        return (replace(link, id=number) for number, link in enumerate(found))

    def _between_groups(self) -> Iterator[Exchange]:
        for exchange in self.plan.exchanges:
            for section in Section:
                targets = tuple(target for target in exchange.targets if self._section[target[0]] is section)
                if targets:
                    to_window = any(self._keeps_window(number) for number, _ in targets)
                    yield replace(exchange, targets=targets, to_window=exchange.to_window and to_window)

    def _within_groups(self) -> Iterator[Exchange]:
        """Yield what leads from one section of a group to another: each task hands on to the same task."""
        found: dict[tuple[int, Section, bool], list[IndexedEdge]] = {}
        for edge in self.plan.graph.edges:
            if edge.source not in self._section or edge.target not in self._section:
                continue
            section = self._section[edge.target]
            if self._group[edge.source] is self._group[edge.target] and self._section[edge.source] is not section:
                late = isinstance(self.plan.processor(edge.target).operation, LateTuples)
                found.setdefault((edge.source, section, late), []).append(edge)
        for (source, _, late), edges in found.items():
            group, targets = self._group[source].id, tuple((edge.target, edge.index) for edge in edges)
            node = self.plan.processor(source)
            yield Exchange(
                id=0,
                source=source,
                group=group,
                target_group=group,
                grouping=IdentityGrouping(),
                schema=self.plan.processor(edges[0].target).schema if late else node.schema,
                targets=targets,
                phase=Phase.COMMIT,
                batch_group=self.plan.batch_groups[source],
                late=late,
                to_window=any(self._keeps_window(number) for number, _ in targets),
            )

    # -- units ---------------------------------------------------------------------------------------------------------

    def _made(self) -> Iterator[TridentStage]:
        keys = {
            (group.id, section): tuple(number for number in group.nodes if self._section[number] is section)
            for section in Section
            for group in self.plan.groups.values()
            if not group.is_spout
        }
        levels: dict[tuple[str, Section], int] = {}
        lowest = 0
        for section in Section:
            for key in (key for key, nodes in keys.items() if key[1] is section and nodes):
                levels[key] = self._level(key, keys[key], levels, lowest)
            lowest = max([lowest, *levels.values()])
        first = 0
        for key in sorted(levels, key=lambda key: levels[key]):  # stable: groups of a level stay in their order
            group, nodes = self.plan.group(key[0]), keys[key]
            yield TridentStage(
                group=group,
                section=key[1],
                nodes=nodes,
                level=levels[key],
                first=first,
                out=tuple(link for link in self.links if link.source in nodes),
                states=tuple(dict.fromkeys(self._states_of(nodes))),
                keeps_window=any(map(self._keeps_window, nodes)),
            )
            first += group.parallelism if levels[key] else 0

    def _level(
        self,
        key: tuple[str, Section],
        nodes: tuple[int, ...],
        levels: dict[tuple[str, Section], int],
        lowest: int,
    ) -> int:
        """Return a unit's level: above all that it reads, and above those of the sections before it."""
        into = [link for link in self.links if {number for number, _ in link.targets} & set(nodes)]
        if all(self._at_spout(link) for link in into) and all(map(self._by_itself, nodes)):
            return 0
        sources = [self._key_of(link.source) for link in into]
        return 1 + max([lowest, *(levels[source] for source in sources if source is not None)])

    def _at_spout(self, link: Exchange) -> bool:
        return self.plan.group(link.group).is_spout and isinstance(link.grouping, IdentityGrouping)

    def _key_of(self, node: int) -> tuple[str, Section] | None:
        return (self._group[node].id, self._section[node]) if node in self._section else None

    def _by_itself(self, number: int) -> bool:
        operation = self.plan.processor(number).operation
        partial = isinstance(operation, Aggregate) and operation.by_itself
        return partial or isinstance(operation, _BY_ITSELF)

    def _keeps_window(self, number: int) -> bool:
        return self.plan.processor(number).operation.keeps_window

    def _states_of(self, nodes: Iterable[int]) -> Iterator[str]:
        for number in nodes:
            operation = self.plan.processor(number).operation
            if isinstance(operation, Persist | Query):
                yield operation.state
