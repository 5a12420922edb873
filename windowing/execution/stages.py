"""Stages: where exchanges cut a plan, so that a batch can run through it once, level by level (on Spark).

    level 0      spouts  -> fused bolts ------------+
    ==== exchange ==================================|====
    level 1      placed bolts -> fused bolts        |
    ==== exchange ==================================v====
    level 2      placed bolts that read levels 0 and 1 -> ...

A bolt is *placed* where it matters which of its tasks gets a tuple: it has windows or a state, or some grouping says the
task (fields, partialKey, all, global, direct, custom). Each of its tasks is one *place*, behind an exchange. Any other bolt
is *fused*: it runs where its tuples are made, on one level or on several.

Laws: a placed bolt stands on the level above the highest on which something that it reads is made; so rows only go down,
whatever branches and joins, and each component sees each tuple once. Places of a level are numbered one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from windowing.topology.groupings import GroupingKind
from windowing.topology.plan import Component, Topology

__all__ = [
    "Section",
    "StageTask",
    "Stages",
    "is_placed",
    "stages_of",
]


_ANY_TASK = frozenset((GroupingKind.SHUFFLE, GroupingKind.NONE, GroupingKind.LOCAL_OR_SHUFFLE))


class Section(IntEnum):
    """When a node works; execution/trident_stages.py says which."""

    STREAM = 0
    BATCH = 1
    COMMIT = 2


class StageTask(NamedTuple):
    """One task of a placed bolt; `number` counts through all places of the plan, level by level."""

    number: int
    level: int
    component: str
    task: int


@dataclass(frozen=True, slots=True)
class Stages:
    """A plan, cut. `levels[k]` are the placed bolts of level k (none on level 0), `runs_on` the levels of each component."""

    topology: Topology
    levels: tuple[tuple[str, ...], ...]
    runs_on: Mapping[str, tuple[int, ...]]
    places: tuple[StageTask, ...]

    @property
    def last(self) -> int:
        """The highest level."""
        return len(self.levels) - 1

    def on_level(self, level: int) -> tuple[StageTask, ...]:
        """Return the places of a level, in order of their numbers."""
        return tuple(place for place in self.places if place.level == level)

    def first_place(self, component: str) -> int:
        """Return the number of a placed bolt's task 0; task i has that number + i."""
        return next(place.number for place in self.places if place.component == component)

    def placed(self, component: str) -> bool:
        """Return whether an exchange leads to a component."""
        return any(component in level for level in self.levels)


def is_placed(component: Component) -> bool:
    """Return whether it matters which of a component's tasks gets a tuple."""
    if component.is_spout:
        return False
    says_task = any(found.grouping.kind not in _ANY_TASK for found in component.inputs)
    return component.window is not None or component.stateful or says_task


def stages_of(topology: Topology) -> Stages:
    """Return the plan cut into levels. Cost: one pass over the subscriptions."""
    runs_on: dict[str, tuple[int, ...]] = {}
    for name in topology.order:
        component = topology.components[name]
        read = sorted({level for found in component.inputs for level in runs_on[found.component]})
        if component.is_spout:
            runs_on[name] = (0,)
        else:
            runs_on[name] = (read[-1] + 1,) if is_placed(component) else tuple(read)
    height = max(level for levels in runs_on.values() for level in levels) + 1
    placed = [name for name in topology.order if is_placed(topology.components[name])]
    levels = tuple(tuple(name for name in placed if runs_on[name] == (level,)) for level in range(height))
    tasks = [
        (level, name, task)
        for level, names in enumerate(levels)
        for name in names
        for task in range(topology.components[name].parallelism)
    ]
    places = tuple(StageTask(number, level, name, task) for number, (level, name, task) in enumerate(tasks))
    return Stages(topology, levels, runs_on, places)
