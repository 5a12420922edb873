"""The id that emit returns and emit_direct takes is the task id of contexts and tuples, in both runtimes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.execution.chains import Chain
from windowing import GroupingError
from windowing.errors import BoltError, ConfigError, FailedException
from windowing.execution.support import Runtime, announce_bolt
from windowing.local import run_local
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout, TopologyContext
from windowing.topology.decorators import bolt, bolt_of, tumbling
from windowing.topology.plan import Topology
from windowing.windows.measures import Count


@bolt(output={"default": "n long, went string", "by_hand": "n long, went string"}, direct="by_hand")
class Dealer(Bolt):
    """Emits each number normally, then by emit_direct to the task that the last emit returned."""

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.takers = context.component_tasks("by_hand")

    def execute(self, tuple: Any) -> None:
        ids = self.collector.emit((tuple.n, "dealt"), anchors=tuple)
        self.collector.emit_direct(self.takers[tuple.n % 2], (tuple.n, str(list(ids))), anchors=tuple, stream="by_hand")
        self.collector.ack(tuple)


@bolt(output="n long, went string, task long, task_index long, source long")
class Taker:
    def prepare(self, context: Any) -> None:
        self.context = context

    def execute(self, tuple: Any) -> Any:
        context = self.context
        return tuple.n, tuple.went, context.task, context.task_index, tuple.source_task


def dealt(dealer: Any = Dealer) -> Topology:
    builder = TopologyBuilder("dealt")
    builder.configure({"windowing.retry.delay.ms": 0})
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("deal", dealer).global_grouping("numbers")
    builder.set_bolt("shuffled", Taker, 3).shuffle_grouping("deal")
    builder.set_bolt("all", Taker, 2).all_grouping("deal")
    builder.set_bolt("by_hand", Taker, 2).direct_grouping("deal", stream="by_hand")
    return builder.build()


ROWS = [(n,) for n in range(5)]


def in_cluster(topology: Topology) -> dict[str, list[tuple[Any, ...]]]:
    names = ["shuffled", "all", "by_hand"]
    with LocalCluster(topology, batches={"numbers": [ROWS]}, clock=VirtualClock(), outputs=names) as cluster:
        cluster.run_batch({"numbers": ROWS})
        return {name: cluster.result.outputs[name] for name in names}


def on_spark(topology: Topology) -> dict[str, list[tuple[Any, ...]]]:
    return Chain(topology).run({"numbers": ROWS})


BOTH = pytest.mark.parametrize("run", [in_cluster, on_spark])


def test_task_ids_are_numbered_from_1_in_the_order_of_component_names() -> None:
    ids = {"all": range(1, 3), "by_hand": range(3, 5), "deal": range(5, 6), "numbers": range(6, 7)}
    assert dealt().task_ids == {**ids, "shuffled": range(7, 10)}


@BOTH
def test_emit_returns_the_ids_of_the_tasks_that_receive_the_tuple(run: Any) -> None:
    found = run(dealt())
    went = {n: set() for n in range(5)}
    for n, _, task, _, source in [*found["shuffled"], *found["all"]]:
        went[n].add(task)
        assert source == 5
    told = {n: set(eval(text)) for n, text, *_ in found["by_hand"]}
    assert told == went
    assert {task for tasks in went.values() for task in tasks} == {1, 2, 7, 8, 9}


@BOTH
def test_emit_direct_takes_a_task_id_and_a_context_has_id_and_index(run: Any) -> None:
    assert sorted((n, task, index) for n, _, task, index, _ in run(dealt())["by_hand"]) == [
        (0, 3, 0),
        (1, 4, 1),
        (2, 3, 0),
        (3, 4, 1),
        (4, 3, 0),
    ]


@BOTH
@pytest.mark.parametrize("task", [0, 1, 5, True, "3", None])
def test_emit_direct_to_a_task_that_does_not_read_the_stream_is_refused_with_those_that_do(run: Any, task: Any) -> None:
    @bolt(output={"default": "n long, went string", "by_hand": "n long, went string"}, direct="by_hand")
    def deal(tuple: Any, collector: Any) -> None:
        collector.emit_direct(task, (tuple.n, ""), stream="by_hand")

    with pytest.raises(
        GroupingError, match=r"'by_hand' of 'deal': there is no task .* that reads it: 'by_hand' has 3 to 4"
    ):
        run(dealt(deal))


def cooked(style: str, direct: Any = "by_hand") -> Any:
    """A windowed bolt of three tuples that emits a row for each, `went` by `emit` and by `emit_direct` in turns."""

    def execute(window: Any, collector: Any, takers: Any = range(3, 5)) -> None:
        for row in window:
            collector.emit_direct(takers[row.n % 2], (row.n, "a"), "by_hand")
            collector.emit({"went": "", "n": row.n})
            collector.emit_direct(takers[-1], {"went": "b", "n": row.n}, stream="by_hand")

    class Dealer:
        def prepare(self, context: Any) -> None:
            self.takers = context.component_tasks("by_hand")

        def execute(self, window: Any, collector: Any) -> None:
            execute(window, collector, self.takers)

    outputs = {"default": "n long, went string", "by_hand": "n long, went string"}
    if style == "columns":
        return tumbling(Count(3), output=outputs, direct=direct, name="deal", columnar="arrow")(
            lambda window, collector: execute([Row(n) for n in window["n"].to_pylist()], collector)
        )
    return tumbling(Count(3), output=outputs, direct=direct, name="deal")(Dealer if style == "class" else execute)


class Row(NamedTuple):
    n: int


@BOTH
@pytest.mark.parametrize("style", ["class", "function", "columns"])
def test_a_windowed_bolt_emits_to_the_tasks_that_it_names(run: Any, style: str) -> None:
    found = run(dealt(cooked(style)))
    to_first = [(n, "a", 3, 0, 5) for n in (0, 2)]
    to_second = [(0, "b", 4, 1, 5), (1, "a", 4, 1, 5), (1, "b", 4, 1, 5), (2, "b", 4, 1, 5)]
    assert sorted(found["by_hand"]) == sorted([*to_first, *to_second])
    assert [row[:2] for row in found["by_hand"] if row[2] == 4] == [row[:2] for row in to_second]
    assert sorted(row[0] for row in found["shuffled"]) == [0, 1, 2]


@BOTH
@pytest.mark.parametrize("task", [0, 5, None])
def test_a_windowed_bolt_that_names_a_task_that_does_not_read_its_stream_is_refused(run: Any, task: Any) -> None:
    @tumbling(Count(3), output={"default": "n long, went string", "by_hand": "n long, went string"}, direct="by_hand")
    def deal(window: Any, collector: Any) -> None:
        collector.emit_direct(task, (1, ""), stream="by_hand")

    sentence = r"'by_hand' of 'deal': there is no task .* that reads it: 'by_hand' has 3 to 4"
    with pytest.raises(GroupingError, match=sentence):
        run(dealt(deal))


def test_the_rows_that_a_windowed_bolt_sends_to_named_tasks_are_anchored_to_its_window() -> None:
    failed: list[int] = []

    @bolt(output="n long, went string, task long, task_index long, source long")
    def fails_once(tuple: Any) -> Any:
        if not failed:
            failed.append(tuple.n)
            raise FailedException("once")
        return tuple.n, tuple.went, 0, 0, 0

    builder = TopologyBuilder("anchored")
    builder.configure({"windowing.retry.delay.ms": 0})
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("deal", cooked("class")).global_grouping("numbers")
    builder.set_bolt("by_hand", fails_once, 2).direct_grouping("deal", stream="by_hand")
    result = run_topology(builder.build(), {"numbers": [ROWS[:3]]}, clock=VirtualClock())
    assert (result.acked, result.failures, len(result["by_hand"])) == (3, 3, 5 + 6)


@pytest.mark.parametrize(
    ("emit", "problem"),
    [
        (
            lambda out: out.emit((1, ""), "by_hand"),
            "stream 'by_hand' is declared direct, .*; call emit_direct",
        ),
        (
            lambda out: out.emit_direct(3, (1, "")),
            "stream 'default' is not declared direct; call emit, or name it in direct=",
        ),
        (lambda out: out.emit_direct(3, (1, ""), "other"), "'other'"),
        (lambda out: out.emit_direct(3, "by_hand", (1, "")), r"write emit_direct\(task, \(1, ''\), stream='by_hand'\)"),
        (lambda out: out.emit_direct(3, 1, "by_hand"), "'by_hand'"),
    ],
)
def test_a_wrong_direct_emit_of_a_windowed_bolt_is_an_error_with_the_way_out(emit: Any, problem: str) -> None:
    @tumbling(Count(3), output={"default": "n long, went string", "by_hand": "n long, went string"}, direct="by_hand")
    def deal(window: Any, collector: Any) -> None:
        emit(collector)

    with pytest.raises(BoltError, match=problem):
        in_cluster(dealt(deal))


def test_direct_of_a_windowed_bolt_must_name_streams_of_output_and_needs_a_collector_and_a_topology() -> None:
    with pytest.raises(ConfigError, match="direct names stream 'other', which output does not"):
        cooked("function", direct="other")
    with pytest.raises(
        ConfigError, match="on a direct stream each row needs a task; take a collector and call emit_direct"
    ):
        tumbling(Count(3), output="n long", direct="default", name="deal")(lambda window: 1)
    sentence = (
        r"bolt 'deal' names the tasks of its stream 'by_hand' \(direct=\), and here it runs alone.*run it in a topology"
    )
    with pytest.raises(ConfigError, match=sentence):
        run_local(cooked("function"), [[{"n": 1}]])
    with pytest.raises(ConfigError, match=sentence):
        announce_bolt(Runtime.WINDOWED, print, bolt_of(cooked("class")))


@BOTH
def test_a_direct_tuple_goes_only_to_the_subscriber_with_that_task(run: Any) -> None:
    @bolt(output={"by_hand": "n long, went string"}, direct="by_hand")
    def deal(tuple: Any, collector: Any) -> None:
        collector.emit_direct(1 + tuple.n % 4, (tuple.n, ""), stream="by_hand")

    builder = TopologyBuilder("two")
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("deal", deal).global_grouping("numbers")
    for name, tasks in (("all", 2), ("by_hand", 2), ("shuffled", 1)):
        builder.set_bolt(name, Taker, tasks).direct_grouping("deal", stream="by_hand")
    found = run(builder.build())
    assert {
        name: sorted(row[0] for row in rows)
        for name, rows in found.items()
        if rows and name in builder.build().components and name != "numbers"
    } == {
        "all": [0, 1, 4],
        "by_hand": [2, 3],
    }


def test_on_spark_a_failed_call_does_not_advance_the_round_robin_of_a_shuffle() -> None:
    @bolt(output={"default": "n long, went string", "by_hand": "n long, went string"}, direct="by_hand")
    class Fails(Bolt):
        failed = False

        def execute(self, tuple: Any) -> None:
            self.collector.emit((tuple.n, ""), anchors=tuple)
            if tuple.n == 1 and not Fails.failed:
                Fails.failed = True
                raise FailedException("once")
            self.collector.ack(tuple)

    found = Chain(dealt(Fails)).run({"numbers": ROWS})
    in_order = [task for n in (0, 2, 3, 4, 1) for m, _, task, *_ in found["shuffled"] if m == n]
    assert in_order == [(in_order[0] - 7 + step) % 3 + 7 for step in range(5)]


def test_the_source_task_of_tuples_in_windows_in_memory_and_on_disk_is_a_task_id(tmp_path: Any) -> None:
    @bolt(output="n long")
    def same(tuple: Any) -> int:
        return int(tuple.n)

    def sources(window: Any) -> tuple[list[int]]:
        return ([row.source_task for row in window],)

    for options in ({}, {"max_events_in_memory": 1_000}):
        builder = TopologyBuilder("sources")
        builder.configure({"topology.enable.message.timeouts": False})
        builder.set_spout("numbers", InputSpout("n long"))
        builder.set_bolt("same", same, 2).fields_grouping("numbers", "n")
        told = tumbling(Count(3_000), name="told", output="sources array<long>", **options)(partial(sources))
        builder.set_bolt("told", told).global_grouping("same")
        rows = [(n,) for n in range(3_000)]
        with LocalCluster(builder.build(), batches={"numbers": [rows]}, clock=VirtualClock()) as cluster:
            cluster.run_batch({"numbers": rows})
            cluster.drain()
            ((found,),) = cluster.result["told"]
        assert set(found) == {2, 3}, options


def test_outside_of_a_topology_the_task_id_is_the_index_and_other_components_are_an_error() -> None:
    context = TopologyContext("count", 1, 4)
    assert (context.task, context.task_index, context.component_tasks("count")) == (1, 1, range(4))
    with pytest.raises(ConfigError, match="there is no component 'split'"):
        context.component_tasks("split")
