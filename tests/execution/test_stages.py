"""Stages: where exchanges cut a plan, against the laws that a batch run level by level needs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windowing.execution.stages import is_placed, stages_of
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, tumbling
from windowing.topology.groupings import (
    AllGrouping,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    NoneGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from windowing.topology.plan import Topology
from windowing.windows.measures import count


@bolt(output="n long")
def plain(tuple: Any) -> Any: ...


@bolt(output="n long")
class Stateful:
    def init_state(self, state: Any) -> None: ...
    def execute(self, tuple: Any) -> Any: ...


@tumbling(count(2), timestamp="n", output="n long")
def windowed(window: Any) -> Any: ...


def chain(*edges: tuple[str, str, Any, Grouping], parallelism: int = 1) -> Topology:
    """A topology of one input "in" and the bolts of these edges: (bolt, what it reads, what it is, grouping)."""
    builder = TopologyBuilder("chain")
    builder.set_spout("in", InputSpout("n long"))
    given: dict[str, Any] = {}
    for name, read, target, grouping in edges:
        if name not in given:
            given[name] = builder.set_bolt(name, target, parallelism)
        given[name].grouping(read, grouping)
    return builder.build()


def test_a_shuffle_into_a_bolt_without_memory_needs_no_exchange() -> None:
    stages = stages_of(chain(("a", "in", plain, ShuffleGrouping()), ("b", "a", plain, NoneGrouping()), parallelism=3))
    assert stages.levels == ((),)
    assert stages.runs_on == {"in": (0,), "a": (0,), "b": (0,)}
    assert stages.places == ()


def test_windows_states_and_groupings_that_say_the_task_are_places_behind_an_exchange() -> None:
    for target, grouping in (
        (windowed, ShuffleGrouping()),
        (Stateful, ShuffleGrouping()),
        (plain, FieldsGrouping(("n",))),
        (plain, PartialKeyGrouping(("n",))),
        (plain, AllGrouping()),
        (plain, GlobalGrouping()),
    ):
        stages = stages_of(chain(("a", "in", target, grouping), parallelism=2))
        assert stages.levels == ((), ("a",))
        assert [(place.number, place.task) for place in stages.on_level(1)] == [(0, 0), (1, 1)]


def test_a_bolt_behind_a_branch_and_its_diamond_stands_above_both() -> None:
    stages = stages_of(
        chain(
            ("first", "in", windowed, ShuffleGrouping()),
            ("same", "in", plain, ShuffleGrouping()),
            ("same", "first", plain, ShuffleGrouping()),
            ("second", "same", windowed, GlobalGrouping()),
        )
    )
    assert stages.levels == ((), ("first",), ("second",))
    assert stages.runs_on["same"] == (0, 1), "a fused bolt runs wherever its tuples are made"
    assert stages.placed("second")
    assert not stages.placed("same")
    assert stages.first_place("second") == 1


@st.composite
def plans(draw: st.DrawFn) -> Topology:
    builder = TopologyBuilder("random")
    names = ["in"]
    builder.set_spout("in", InputSpout("n long"))
    for number in range(draw(st.integers(1, 7))):
        target = draw(st.sampled_from([plain, plain, windowed, Stateful]))
        declarer = builder.set_bolt(f"b{number}", target, draw(st.integers(1, 3)))
        for read in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            declarer.grouping(read, draw(st.sampled_from([ShuffleGrouping(), GlobalGrouping(), AllGrouping()])))
        names.append(f"b{number}")
    return builder.build()


def exchanges(topology: Topology, name: str) -> int:
    """The most exchanges on any path from a spout to a component, counted path by path."""
    component = topology.components[name]
    most = max((exchanges(topology, found.component) for found in component.inputs), default=0)
    return most + is_placed(component)


@given(plans())
def test_rows_only_go_down_and_every_component_is_there(topology: Topology) -> None:
    stages = stages_of(topology)
    for name, component in topology.components.items():
        if is_placed(component):
            assert stages.runs_on[name] == (exchanges(topology, name),)
            for found in component.inputs:
                assert max(stages.runs_on[found.component]) < stages.runs_on[name][0]
        elif not component.is_spout:
            made = {level for found in component.inputs for level in stages.runs_on[found.component]}
            assert set(stages.runs_on[name]) == made
    assert sorted(name for level in stages.levels for name in level) == sorted(
        name for name, component in topology.components.items() if is_placed(component)
    )
    assert [place.number for place in stages.places] == list(range(len(stages.places)))
    assert [place.level for place in stages.places] == sorted(place.level for place in stages.places)
    assert len(stages.places) == sum(c.parallelism for c in topology.components.values() if is_placed(c))
    for level in range(1, stages.last + 1):
        assert stages.on_level(level), "no level is empty"
