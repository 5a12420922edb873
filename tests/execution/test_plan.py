"""ExecutionPlan: the exchanges of a declared topology, and the invariants for running batches depth by depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.errors import ConfigError
from windowing.execution.plan import ExecutionPlan, Section, execution_plan, is_keyed, plan_of_bolt
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, bolt_of, tumbling
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
    """A topology of one input "in" and the bolts of these edges: (bolt, its input, its declaration, grouping)."""
    builder = TopologyBuilder("chain")
    builder.set_spout("in", InputSpout("n long"))
    given: dict[str, Any] = {}
    for name, read, target, grouping in edges:
        if name not in given:
            given[name] = builder.set_bolt(name, target, parallelism)
        given[name].grouping(read, grouping)
    return builder.build()


def operators(plan: ExecutionPlan) -> dict[str, tuple[str, ...]]:
    return {id: stage.operators for id, stage in plan.stages.items()}


def test_a_shuffle_into_a_stateless_bolt_needs_no_exchange() -> None:
    plan = execution_plan(
        chain(("a", "in", plain, ShuffleGrouping()), ("b", "a", plain, NoneGrouping()), parallelism=3)
    )
    assert operators(plan) == {"in": ("in", "a", "b")}
    assert (plan.exchanges, plan.tasks, plan.widest, plan.depths(Section.STREAM)) == ((), (), 1, [])


def test_windows_states_and_key_groupings_start_a_stage_after_an_exchange() -> None:
    for target, grouping in (
        (windowed, ShuffleGrouping()),
        (Stateful, ShuffleGrouping()),
        (plain, FieldsGrouping(("n",))),
        (plain, PartialKeyGrouping(("n",))),
        (plain, AllGrouping()),
        (plain, GlobalGrouping()),
    ):
        plan = execution_plan(chain(("a", "in", target, grouping), parallelism=2))
        assert operators(plan) == {"in": ("in",), "a": ("a",)}
        assert [(task.number, task.component, task.task) for task in plan.tasks_at(1)] == [(0, "a", 0), (1, "a", 1)]
        assert [(found.source, found.target, found.grouping) for found in plan.exchanges] == [("in", "a", grouping)]
        assert plan.exchanges[0].to_window is (target is windowed)


def test_a_bolt_after_a_branch_and_its_diamond_is_deeper_than_both() -> None:
    plan = execution_plan(
        chain(
            ("first", "in", windowed, ShuffleGrouping()),
            ("same", "in", plain, ShuffleGrouping()),
            ("same", "first", plain, ShuffleGrouping()),
            ("second", "same", windowed, GlobalGrouping()),
        )
    )
    assert operators(plan) == {"in": ("in", "same"), "first": ("first", "same"), "second": ("second",)}
    assert [stage.depth for stage in plan.stages.values()] == [0, 1, 2]
    assert [(found.stage, found.source, found.target) for found in plan.exchanges] == [
        ("in", "in", "first"),
        ("in", "same", "second"),
        ("first", "same", "second"),
    ], "a fused bolt sends from wherever its tuples are made"
    assert plan.stages["second"].tasks == range(1, 2)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
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


def exchanges_above(topology: Topology, name: str) -> int:
    """The most exchanges on any path from a spout to a component, counted path by path."""
    component = topology.components[name]
    most = max((exchanges_above(topology, found.component) for found in component.inputs), default=0)
    return most + is_keyed(component)


@given(topologies())
def test_every_component_is_in_the_plan_and_every_exchange_leads_to_a_greater_depth(topology: Topology) -> None:
    plan = execution_plan(topology)
    plan.check()
    assert plan == execution_plan(topology)
    for name, component in topology.components.items():
        runs_in = [stage.id for stage in plan.stages.values() if name in stage.operators]
        if component.is_spout or is_keyed(component):
            assert runs_in == [name]
            stage = plan.stages[name]
            assert stage.parallelism == component.parallelism
            assert stage.depth == exchanges_above(topology, name)
            assert (stage.keeps_window, stage.states) == (
                component.window is not None,
                (name,) if component.stateful else (),
            )
        else:
            made = {stage for found in component.inputs for stage in runs_in_of(plan, found.component)}
            assert set(runs_in) == made, "a fused bolt runs wherever its tuples are made, and nowhere else"
    assert [stage.depth for stage in plan.stages.values()] == sorted(stage.depth for stage in plan.stages.values())
    assert len(plan.tasks) == sum(c.parallelism for c in topology.components.values() if is_keyed(c))
    depths = plan.depths(Section.STREAM)
    assert depths == list(range(1, len(depths) + 1)), "no depth is empty"
    assert plan.widest == max([1, *(len(plan.tasks_at(depth)) for depth in depths)])


def runs_in_of(plan: ExecutionPlan, name: str) -> list[str]:
    return [stage.id for stage in plan.stages.values() if name in stage.operators]


@given(topologies())
def test_every_subscription_of_a_stage_is_one_exchange_from_each_stage_that_emits_its_tuples(
    topology: Topology,
) -> None:
    plan = execution_plan(topology)
    wanted = sorted(
        (stage, found.component, found.stream, name)
        for name, component in topology.components.items()
        if is_keyed(component)
        for found in component.inputs
        for stage in runs_in_of(plan, found.component)
    )
    assert sorted((each.stage, each.source, each.stream, each.target) for each in plan.exchanges) == wanted
    for each in plan.exchanges:
        (reader, position) = each.targets[0]
        assert topology.components[reader].inputs[position].grouping == each.grouping
        assert each.schema == topology.components[each.source].outputs[each.stream].schema


def broken(plan: ExecutionPlan, **changes: Any) -> None:
    """Assert that check rejects the plan with another "second" stage."""
    stages = dict(plan.stages)
    stages["second"] = replace(stages["second"], **changes)
    with pytest.raises(AssertionError):
        replace(plan, stages=stages).check()


def test_check_finds_every_kind_of_broken_plan() -> None:
    plan = execution_plan(
        chain(("first", "in", windowed, GlobalGrouping()), ("second", "first", windowed, GlobalGrouping()))
    )
    plan.check()
    broken(plan, depth=1)  # it reads a stage of the same depth
    broken(plan, depth=0)  # a window without a task
    broken(plan, first=2)  # a gap
    broken(plan, operators=())  # an exchange that leads nowhere
    broken(plan, id="third")
    stages = dict(plan.stages)
    stages["first"] = replace(stages["first"], section=Section.COMMIT)
    with pytest.raises(AssertionError):  # back to an earlier section
        replace(plan, stages=stages).check()
    stages["second"] = replace(stages["second"], section=Section.BATCH, depth=1)
    with pytest.raises(AssertionError):  # two sections at one depth
        replace(plan, stages=stages, exchanges=()).check()


def test_a_windowed_bolt_is_a_plan_of_one_stage() -> None:
    plan = plan_of_bolt(bolt_of(windowed), parallelism=3, grouping=("n",), inputs=("left", "right"))
    plan.check()
    assert operators(plan) == {"windowed": ("windowed",)}
    assert [(each.source, each.stage, each.target, str(each.grouping)) for each in plan.exchanges] == [
        ("left", "", "windowed", "fields(n)"),
        ("right", "", "windowed", "fields(n)"),
    ]
    assert [
        str(plan_of_bolt(bolt_of(windowed), grouping=by).exchanges[0].grouping) for by in ("global", "shuffle")
    ] == [
        "global",
        "shuffle",
    ]


def test_a_plan_is_explained_and_drawn() -> None:
    plan = execution_plan(
        chain(
            ("split", "in", plain, ShuffleGrouping()),
            ("sums", "split", windowed, FieldsGrouping(("n",))),
            ("last", "sums", Stateful, GlobalGrouping()),
            parallelism=2,
        )
    )
    assert (
        plan.explain()
        == """\
plan chain: 3 stages, 2 exchanges
in ×1, stream
    in
    split
  split == fields(n) ==> sums
sums ×2, stream, depth 1, tasks 0 to 1, windows
    sums
  sums == global ==> last
last ×2, stream, depth 2, tasks 2 to 3, last
    last
      out as last
"""
    )
    assert (
        plan.to_mermaid()
        == """\
flowchart LR
    c_in(["in<br/>split"])
    c_sums[["sums ×2"]]
    c_last[("last ×2")]
    c_in -- "fields(n)" --> c_sums
    c_sums -- "global" --> c_last
"""
    )


def test_execution_plan_refuses_other_objects() -> None:
    with pytest.raises(ConfigError):
        execution_plan(5)
