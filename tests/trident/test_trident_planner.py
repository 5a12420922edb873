"""The planner: how the graph of a Trident topology becomes groups, exchanges and parallelism."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.local.drawing import to_svg
from windowing.schema.types import Schema
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.topology.components import InputSpout
from windowing.topology.plan import TopologyError
from windowing.trident import builtins as b
from windowing.trident.kinds import Phase, SpoutKind
from windowing.trident.plan import Graph, GraphGrouper, IndexedEdge, Node, TridentPlan, coord_specs, targets_of
from windowing.trident.spouts import IBatchSpout
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import Stream, TridentState, TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.windows.measures import count


class Given(IBatchSpout):
    """A spout of one task, or of any number with `tasks`."""

    kind = SpoutKind.TRANSACTIONAL
    output = "word string, n long"

    def emit_batch(self, txid: int, collector: Any) -> None:
        raise NotImplementedError


class Parallel:
    kind = SpoutKind.OPAQUE
    output = "word string, n long"


def words(topology: TridentTopology, name: str = "words") -> Stream:
    return topology.new_stream(name, Parallel())


def counts(name: str = "counts") -> Any:
    return map_state(MemoryStore(), name)


def identity(row: Any) -> int:
    return int(row.n)


class Nothing:
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None: ...


def truth(row: Any) -> bool:
    return True


def groups(plan: TridentPlan) -> list[list[str]]:
    plan.check()
    return [[plan.graph.nodes[number].title for number in group.operators] for group in plan.stages.values()]


def exchanges(plan: TridentPlan) -> list[tuple[int, str, list[tuple[int, int]]]]:
    plan.check()
    return [(exchange.source, str(exchange.grouping), list(exchange.targets)) for exchange in plan.exchanges]


# -- groups ------------------------------------------------------------------------------------------------------------


def test_chained_combiners_directly_after_a_spout_get_a_group_before_the_exchange_as_in_storm() -> None:
    class Longest:
        def init(self) -> str:
            return ""

        def reduce(self, value: str, row: Any) -> str:
            return max(value, row.word, key=len)

    def plan(*aggregators: Any) -> list[list[str]]:
        topology = TridentTopology()
        chain = words(topology).group_by("word").chained_agg()
        for number, aggregator in enumerate(aggregators):
            chain.aggregate(("word", "n"), aggregator, f"x{number} string")
        chain.chain_end().sink("out")
        return groups(topology.build())

    mixed = plan(b.Count(), Longest())
    assert mixed == [["spout words"], ["init Count, Longest by word"], ["fold Count, Longest by word", "sink out"]]
    assert [len(found) for found in (plan(b.Count(), b.Count()), plan(Longest(), Longest()))] == [3, 2]


def test_consecutive_operations_form_one_group_and_a_spout_forms_its_own() -> None:
    topology = TridentTopology()
    words(topology).each("n", identity, "m long").project("m").sink("out")
    plan = topology.build()
    assert groups(plan) == [["spout words"], ["each(n) with identity", "project(m)", "sink out"]]
    assert exchanges(plan) == [(1, "identity", [(2, 0)])]


def test_a_repartition_ends_a_group() -> None:
    topology = TridentTopology()
    words(topology).each("n", identity, "m long").shuffle().project("m").sink("out")
    plan = topology.build()
    assert groups(plan) == [["spout words"], ["each(n) with identity"], ["project(m)", "sink out"]]
    assert exchanges(plan)[1] == (2, "shuffle", [(4, 0)])


def test_branches_of_a_group_and_their_merge_stay_in_it() -> None:
    topology = TridentTopology()
    stream = words(topology).each("n", identity, "m long")
    topology.merge(stream.project("m"), stream.project("n")).sink("out")
    assert [len(group) for group in groups(topology.build())] == [1, 5]


def test_a_merge_of_two_spouts_joins_only_the_group_that_is_no_spout() -> None:
    topology = TridentTopology()
    first, second = words(topology, "a"), words(topology, "b").each("n", identity, "m long").project("word", "n")
    topology.merge(first, second).sink("out")
    plan = topology.build()
    assert groups(plan) == [
        ["spout a"],
        ["spout b"],
        ["each(n) with identity", "project(word, n)", "merge", "sink out"],
    ]
    assert exchanges(plan) == [(1, "identity", [(5, 0)]), (2, "identity", [(3, 0)])]


def test_a_repartition_read_by_two_groups_is_two_exchanges_and_by_one_group_one() -> None:
    topology = TridentTopology()
    shuffled = words(topology).shuffle()
    shuffled.project("n").shuffle().sink("n")
    shuffled.project("word").shuffle().sink("word")
    assert len([found for found in exchanges(topology.build()) if found[0] == 1]) == 2

    topology = TridentTopology()
    shuffled = words(topology).shuffle()
    topology.merge(shuffled.project("n"), shuffled.map(identity, "m long")).sink("out")
    assert exchanges(topology.build()) == [(1, "shuffle", [(3, 0), (4, 0)])]


def test_two_consecutive_repartitions_have_a_pass_through_operation_between_them() -> None:
    topology = TridentTopology()
    words(topology).shuffle().global_().sink("out")
    plan = topology.build()
    assert groups(plan) == [["spout words"], ["merge"], ["sink out"]]
    assert [found[1] for found in exchanges(plan)] == ["shuffle", "global"]


def test_operations_on_a_state_are_in_its_group_even_from_another_stream() -> None:
    topology = TridentTopology()
    state = words(topology).group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long")
    topology.new_drpc_stream("asked").partition_by("args").state_query(state, "args", b.MapGet(), "x long")
    plan = topology.build()
    holder = plan.stages[str(plan.states["state1"].group)]
    assert [plan.graph.nodes[number].title for number in holder.operators] == [
        "combine Sum by word",
        "persist state1 with Sum",
        "query state1 with MapGet",
    ]
    assert holder.batch_groups == ("bg0", "bg1")
    assert holder.states == ("state1",)


def test_only_combiners_are_split_before_and_after_the_exchange() -> None:
    topology = TridentTopology()
    words(topology).group_by("word").aggregate("n", b.Sum(), "x long").sink("out")
    plan = topology.build()
    assert groups(plan) == [["spout words"], ["partial Sum by word"], ["combine Sum by word", "sink out"]]
    assert [exchange.schema.ddl for exchange in plan.exchanges] == ["word string, n bigint", "word string, x bigint"]


def test_a_window_begins_a_group() -> None:
    topology = TridentTopology()
    windows = words(topology).project("n").tumbling_window(count(2), "n", b.Sum(), "x long", timestamp="n")
    windows.late_stream().sink("late")
    windows.sink("out")
    plan = topology.build()
    assert groups(plan)[1:] == [
        ["project(n)"],
        ["window 2 tuples / 2 tuples with Sum", "late tuples", "sink late", "sink out"],
    ]
    assert [exchange.to_window for exchange in plan.exchanges] == [False, True]


def test_a_drawn_window_says_when_it_fires_and_a_stored_one_keeps_the_name_it_was_declared_by() -> None:
    topology = TridentTopology()
    words(topology).window(count(2), None, "n", b.Sum(), "x long").sink("out")
    plan = topology.build()
    assert "3 window 2 tuples / 1 tuple with Sum of 2 " in plan.explain()
    assert "window 2 tuples / 1 tuple with Sum" in plan.to_mermaid()
    assert [name.partition(", ")[2] for name in plan.windows()["windows"]] == [
        "step 3, window 2 tuples / None with Sum"
    ]


def test_late_tuples_that_leave_the_group_of_their_window_have_their_own_exchange() -> None:
    topology = TridentTopology()
    windows = words(topology).global_().tumbling_window(count(2), "n", b.Sum(), "x long", timestamp="n")
    windows.shuffle().sink("out")
    state = topology.new_static_state(counts())
    late = windows.late_stream().state_query(state, "word", b.MapGet(), "before long")
    words(topology, "more").state_query(state, "word", b.MapGet(), "before long").sink("more")
    late.sink("late")
    plan = topology.build()
    behind = [(exchange.late, exchange.schema.names) for exchange in plan.exchanges if exchange.source == 3]
    assert behind == [(False, ("x",)), (True, ("word", "n", "reason"))]
    run = TridentRun(plan)
    run.batch({"words": [("a", 1), ("b", 2)], "more": []})
    assert run.batch({"words": [("c", 1)]}) == {"out": [], "more": [], "late": [("c", 1, "late", None)]}


def graphs() -> st.SearchStrategy[tuple[Graph, list[int]]]:
    """Draw a graph and which of its nodes are repartitions; node 0 is a spout."""

    @st.composite
    def draw(pick: Any) -> tuple[Graph, list[int]]:
        size = pick(st.integers(2, 12))
        edges, partitions = [], []
        for number in range(1, size):
            if number > 1 and number not in partitions and pick(st.integers(0, 4)) == 0:
                partitions.append(number)
            known = list(range(number))
            sources = pick(
                st.lists(st.sampled_from(known), min_size=1, max_size=1 if number in partitions else 3, unique=True)
            )
            edges += [IndexedEdge(source, number, index) for index, source in enumerate(sources)]
        nodes = [Node(number=number, title="step", schema=Schema((), ())) for number in range(size)]
        return Graph.of(nodes, edges), partitions

    return draw()


def naive(graph: Graph, initial: list[set[int]]) -> set[frozenset[int]]:
    """The article's mergeFully, literally: examine all groups again after every merge."""
    current = [frozenset(nodes) for nodes in initial]

    def neighbours(group: frozenset[int], forward: bool) -> set[Any]:
        found = set()
        for edge in graph.edges:
            here, there = (edge.source, edge.target) if forward else (edge.target, edge.source)
            if here in group and there not in group:
                found.add(next((other for other in current if there in other), None))
        return found

    happened = True
    while happened:
        happened = False
        for group in current:
            for forward in (True, False):
                near = neighbours(group, forward)
                if len(near) == 1 and None not in near:
                    (other,) = near
                    current[current.index(group)] = group | other
                    current.remove(other)
                    happened = True
                    break
            if happened:
                break
    return set(current)


@given(graphs())
def test_groups_are_those_of_the_articles_algorithm(drawn: tuple[Graph, list[int]]) -> None:
    graph, partitions = drawn
    initial = [{number} for number in graph.nodes if number and number not in partitions]
    grouper = GraphGrouper(graph, initial)
    grouper.merge_fully()
    assert {frozenset(group) for group in grouper.groups} == naive(graph, initial)


@given(graphs())
def test_no_mergeable_groups_are_left_and_merging_makes_no_cycle(drawn: tuple[Graph, list[int]]) -> None:
    graph, partitions = drawn
    grouper = GraphGrouper(graph, [{number} for number in graph.nodes if number and number not in partitions])
    grouper.merge_fully()
    of = {number: position for position, group in enumerate(grouper.groups) for number in group}
    for group in grouper.groups:
        for near in (grouper.outgoing(group), grouper.incoming(group)):
            assert len(near) != 1 or near == {None}
    reach: dict[int, set[int]] = {position: set() for position in range(len(grouper.groups))}
    steps = {(of.get(edge.source, -edge.source - 1), of.get(edge.target, -edge.target - 1)) for edge in graph.edges}
    for start in reach:
        ahead = [start]
        while ahead:
            at = ahead.pop()
            for source, target in steps:
                if source == at and target != at and target not in reach[start]:
                    reach[start].add(target)
                    ahead.append(target)
        assert start not in reach[start]


class HashedNumber(int):
    """The number of a node, which counts how often any such number is hashed."""

    hashes = 0

    def __hash__(self) -> int:
        HashedNumber.hashes += 1
        return int.__hash__(self)


def hashes_to_merge_a_chain_of(steps: int) -> int:
    numbers = [HashedNumber(number) for number in range(steps)]
    nodes = [Node(number=number, title="step", schema=Schema((), ())) for number in numbers]
    graph = Graph.of(nodes, [IndexedEdge(one, other, 0) for one, other in pairwise(numbers)])
    grouper, HashedNumber.hashes = GraphGrouper(graph, [(number,) for number in numbers[1:]]), 0
    grouper.merge_fully()
    assert grouper.groups == [tuple(range(1, steps))]
    return HashedNumber.hashes


def test_to_merge_a_chain_takes_time_by_the_square_of_its_steps_and_not_by_the_cube() -> None:
    assert hashes_to_merge_a_chain_of(80) < 5 * hashes_to_merge_a_chain_of(40)


# -- parallelism -------------------------------------------------------------------------------------------------------


def sizes(topology: TridentTopology) -> list[int]:
    return [group.parallelism for group in topology.build().stages.values()]


def test_the_largest_hint_of_a_group_applies_back_to_the_repartition_before_it() -> None:
    topology = TridentTopology()
    head = words(topology).each("n", identity, "m long").parallelism_hint(2).project("m").parallelism_hint(3)
    head.shuffle().filter(truth, "m").parallelism_hint(5).sink("out")
    assert sizes(topology) == [3, 3, 5]


def test_without_a_hint_there_is_one_task() -> None:
    topology = TridentTopology()
    words(topology).shuffle().sink("out")
    assert sizes(topology) == [1, 1]


def test_groups_that_an_identity_exchange_joins_have_the_same_parallelism() -> None:
    topology = TridentTopology()
    words(topology).identity_partition().project("n").parallelism_hint(4).identity_partition().sink("out")
    assert sizes(topology) == [4, 4, 4]


def test_max_task_parallelism_is_an_upper_bound() -> None:
    topology = TridentTopology().configure(max_task_parallelism=2)
    words(topology).project("n").parallelism_hint(4).sink("out")
    assert sizes(topology) == [2, 2]


def test_the_number_of_partitions_of_a_state_fixes_the_parallelism_of_its_group() -> None:
    topology = TridentTopology()
    state = words(topology).group_by("word").persistent_aggregate(StateSpec(counts(), 3), "n", b.Sum(), "x long")
    state.parallelism_hint(7)
    plan = topology.build()
    assert plan.states["state1"].partitions == 3 == plan.stages[str(plan.states["state1"].group)].parallelism


def test_a_spout_of_one_task_has_one_task_up_to_the_next_repartition() -> None:
    topology = TridentTopology()
    topology.new_stream("in", Given()).project("n").shuffle().sink("out").parallelism_hint(3)
    assert sizes(topology) == [1, 1, 3]


# -- phases, batch groups, names ---------------------------------------------------------------------------------------


def test_a_committer_and_all_operations_after_it_are_in_the_commit_phase() -> None:
    topology = TridentTopology()
    stream = words(topology)
    state: TridentState = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long")
    state.new_values_stream().shuffle().filter(truth, "x").sink("new")
    stream.sink("all")
    plan = topology.build()
    titles = {node.title: plan.phases[number] for number, node in plan.graph.nodes.items()}
    assert titles["combine Sum by word"] is titles["sink all"] is Phase.PROCESS
    assert titles["persist state1 with Sum"] is titles["filter(x) with truth"] is titles["sink new"] is Phase.COMMIT
    assert plan.phases[plan.exchanges[-1].source] is Phase.COMMIT
    commits = [any(plan.phases[number] is Phase.COMMIT for number in each.operators) for each in plan.stages.values()]
    assert commits.count(True) == 2


def test_only_streams_that_meet_share_their_batches() -> None:
    topology = TridentTopology()
    first, second, third = (words(topology, name) for name in "abc")
    topology.merge(first, third).sink("out")
    second.sink("other")
    plan = topology.build()
    assert {spout.source.name: plan.batch_groups[spout.number] for spout in plan.spouts} == {
        "a": "bg0",
        "b": "bg1",
        "c": "bg0",
    }


def test_the_last_added_operation_answers_a_drpc_function() -> None:
    topology = TridentTopology()
    asked = topology.new_drpc_stream("f")
    asked.filter(truth, "args")
    asked.project("args")
    plan = topology.build()
    assert plan.graph.nodes[plan.drpc["f"].answer].title == "project(args)"


def test_groups_are_named_after_their_streams() -> None:
    topology = TridentTopology()
    stream = words(topology).name("split").each("n", identity, "m long").name("count").project("m")
    stream.shuffle().project("m").shuffle().name("end").sink("out")
    assert list(topology.build().stages) == ["spout_words", "b_0_split_count", "b_1_count", "b_2_end"]


def test_a_cycle_through_a_state_is_refused() -> None:
    topology = TridentTopology()
    stream = words(topology)
    first = stream.group_by("word").persistent_aggregate(counts("a"), "n", b.Sum(), "x long")
    second = first.new_values_stream().group_by("word").persistent_aggregate(counts("b"), "x", b.Sum(), "y long")
    stream.state_query(second, "word", b.MapGet(), "y long").shuffle().state_query(
        first, "word", b.MapGet(), "z long"
    ).sink("out")
    with pytest.raises(
        TopologyError, match=r"the operations beside a state run together, and so .* would wait for each other"
    ):
        topology.build()


# -- drawings ----------------------------------------------------------------------------------------------------------


def word_count() -> TridentPlan:
    topology = TridentTopology("word_count")
    stream = words(topology).name("split").filter(truth, "word").parallelism_hint(2)
    state = stream.name("count").group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "total long")
    state.parallelism_hint(3).new_values_stream().shuffle().name("out").sink("totals")
    return topology.build()


def test_explain_prints_groups_nodes_and_exchanges() -> None:
    assert (
        word_count().explain()
        == """\
plan word_count: 4 stages, 3 exchanges
spout_words ×2, bg0
    1 spout words -> word string, n bigint
  1 == identity ==> b_0_split_count
b_0_split_count ×2, bg0
    2 filter(word) with truth of 1 -> word string, n bigint
    3 partial Sum by word of 2 -> word string, total bigint
  3 == fields(word) ==> b_1_count
b_1_count ×3, bg0
    5 combine Sum by word of 4 -> word string, total bigint
    6 persist state1 with Sum of 5 [commit] -> word string, total bigint
  6 == shuffle ==> b_2_out
b_2_out ×1, bg0
    8 sink totals of 7 [commit] -> word string, total bigint
      out as totals
"""
    )


def test_to_mermaid_draws_the_plan() -> None:
    assert (
        word_count().to_mermaid()
        == """\
flowchart LR
    c_spout_words(["spout_words ×2<br/>spout words"])
    c_b_0_split_count["b_0_split_count ×2<br/>filter(word) with truth<br/>partial Sum by word"]
    c_b_1_count[("b_1_count ×3<br/>combine Sum by word<br/>persist state1 with Sum")]
    c_b_2_out["b_2_out<br/>sink totals"]
    c_spout_words -- "identity" --> c_b_0_split_count
    c_b_0_split_count -- "fields(word)" --> c_b_1_count
    c_b_1_count -. "shuffle" .-> c_b_2_out
"""
    )


def test_to_svg_draws_the_plan() -> None:
    pytest.importorskip("matplotlib")
    assert "persist state1 with Sum" in to_svg(word_count())


def test_a_group_waits_for_the_commit_if_it_commits_or_is_downstream_of_a_waiting_group() -> None:
    topology = TridentTopology()
    stream = words(topology)
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long")
    state.new_values_stream().shuffle().sink("new")
    stream.shuffle().sink("all")
    topology.new_drpc_stream("asked").partition_by("args").state_query(
        state, "args", b.MapGet(), "x long"
    ).shuffle().project("x")
    plan = topology.build()
    of = {sink: plan.stage_of(number).id for sink, number in plan.sinks.items()}
    holder, answer = str(plan.states["state1"].group), plan.stage_of(plan.drpc["asked"].answer).id
    waiting = plan.waiting
    assert [waiting[id, "bg0"] for id in (holder, of["new"], of["all"])] == [True, True, False]
    assert [waiting[holder, "bg1"], waiting[answer, "bg1"]] == [False, False]


def test_the_upstream_reports_and_the_targets_of_a_task_follow_from_the_plan() -> None:
    topology = TridentTopology()
    stream = words(topology).parallelism_hint(2).partition_by("word").filter(truth)
    stream.partition_persist(counts(), "n", Nothing())
    stream.shuffle().sink("all")
    plan = topology.build()
    source, holder, behind = plan.stages.values()
    assert coord_specs(plan, source) == {}
    first, second = coord_specs(plan, holder)["bg0"], coord_specs(plan, behind)["bg0"]
    assert (first.reports, first.commit_reports, first.commits) == (((source.id, 0), (source.id, 1)), (), True)
    assert first.targets == ((behind.id, 0),)
    assert (second.reports, second.commit_reports, second.commits) == ((), ((holder.id, 0),), False), "it reports once"
    assert targets_of(plan, source.id, "bg0") == ((holder.id, 0),)
    assert plan.waiting == {(source.id, "bg0"): False, (holder.id, "bg0"): True, (behind.id, "bg0"): True}


def test_the_stored_definition_of_a_window_has_all_that_stored_windows_depend_on() -> None:
    topology = TridentTopology()
    words(topology).tumbling_window(count(2), "n", b.Sum(), "x long", timestamp="n").sink("out")
    (stored,) = topology.build().windows()["windows"].values()
    window = stored["window"]
    assert json.loads(json.dumps(window)) == window
    assert (window["fixed"]["length"], window["fixed"]["timestamp"]) == ({"count": 2}, {"field": "n"})


def test_a_topology_of_1100_operations_is_planned_and_run_without_recursion() -> None:
    topology = TridentTopology()
    stream = words(topology)
    state = stream.group_by("word").persistent_aggregate(counts(), "n", b.Sum(), "x long").parallelism_hint(2)
    stream = stream.partition_by("word")
    for _ in range(1100):
        stream = stream.filter(truth, "word")
    stream.state_query(state, "word", b.MapGet(), "x long").sink("out")
    plan = topology.build()
    assert max(len(group) for group in groups(plan)) == 1104
    assert TridentRun(plan).batch({"words": [("a", 1)]})["out"] == [("a", 1, None)]


@pytest.mark.parametrize(("kept", "asked", "accepted"), [("int", "smallint", True), ("int", "long", False)])
def test_a_query_by_a_field_of_another_type_is_accepted_if_its_keys_are_the_same(
    kept: str, asked: str, accepted: bool
) -> None:
    topology = TridentTopology()
    stream = topology.new_stream("kept", InputSpout(f"id {kept}"))
    state = stream.group_by("id").persistent_aggregate(counts(), None, b.Count(), "n long").parallelism_hint(3)
    asking = topology.new_stream("asked", InputSpout(f"number {asked}"))
    asking.group_by("number").state_query(state, "number", b.MapGet(), "n long").sink("out")
    if not accepted:
        with pytest.raises(TopologyError, match="3 partitions by id int, but its tuples come there by number bigint"):
            topology.build()
        return
    run, rows = TridentRun(topology.build()), [(id,) for id in range(20)]
    run.batch({"kept": rows})
    assert sorted(run.batch({"asked": rows})["out"]) == [(id, 1) for id in range(20)]


def test_the_same_topology_gives_the_same_plan_every_time() -> None:
    def built(kept: list[Any]) -> str:
        kept.append([object() for _ in range(len(kept) * 7)])  # so that objects have other addresses than before
        topology = TridentTopology()
        stream = words(topology)
        branches = [stream.shuffle().name(f"branch{number}").project("n") for number in range(6)]
        topology.merge(*branches).shuffle().sink("out")
        return topology.build().explain()

    kept: list[Any] = []
    assert len({built(kept) for _ in range(30)}) == 1
