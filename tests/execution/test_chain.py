"""The stages of `submit` compared with LocalCluster: for any topology and any batches, the same rows in the same batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.execution.chains import Outputs, chained, clustered
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, sliding, tumbling
from windowing.topology.groupings import (
    AllGrouping,
    CustomGrouping,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from windowing.topology.plan import Topology
from windowing.windows.measures import count, millis

FIELDS = "n long, at long, path string"


class Named:
    def prepare(self, context: Any) -> None:
        self.name = f"{context.component}.{context.task}"


@bolt(output=FIELDS)
class Same(Named):
    def execute(self, tuple: Any) -> Any:
        return tuple.n, tuple.at, f"{tuple.path}>{self.name}"


@bolt(output=FIELDS)
class Twice(Named):
    def execute(self, tuple: Any) -> Any:
        return [
            (tuple.n, tuple.at, f"{tuple.path}>{self.name}"),
            (tuple.n + 1, tuple.at + 1, f"{tuple.path}>{self.name}'"),
        ]


@bolt(output=FIELDS)
class Counter(Named):
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        seen = self.state.get(tuple.n, 0) + 1
        self.state.put(tuple.n, seen)
        return tuple.n, tuple.at, f"{self.name}:{tuple.n} no. {seen} from {tuple.source_component}.{tuple.source_task}"


def shown(window: Any) -> Any:
    tuples = list(window)
    text = " ".join(f"{t.source_component}.{t.source_task}:{t.n}@{t.at}" for t in tuples)
    return len(tuples), window.end_timestamp, f"[{text}] -{len(window.get_expired())}"


@tumbling(count(3), timestamp="at", output=FIELDS)
def threes(window: Any) -> Any:
    return shown(window)


@sliding(millis(6), millis(3), timestamp="at", lag=millis(2), late_stream="late", output=FIELDS)
def slides(window: Any) -> Any:
    return shown(window)


@sliding(millis(10), count(2), timestamp=lambda t: t.at, key="n", output=FIELDS)
def keyed(window: Any) -> Any:
    return shown(window)


BOLTS = [Same, Twice, Counter, threes, slides, keyed]
GROUPINGS: list[Grouping] = [
    ShuffleGrouping(),
    FieldsGrouping(("n",)),
    PartialKeyGrouping(("n",)),
    AllGrouping(),
    GlobalGrouping(),
    CustomGrouping(lambda values, tasks: (values[0] or 0) % tasks),
]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    builder = TopologyBuilder("random")
    builder.configure({"topology.enable.message.timeouts": False})
    names = [f"in{number}" for number in range(draw(st.integers(1, 2)))]
    for name in names:
        builder.set_spout(name, InputSpout(FIELDS))
    for number in range(draw(st.integers(1, 5))):
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        by = [draw(st.sampled_from(GROUPINGS)) for _ in reads]
        # On Spark a round robin restarts with each batch: the tasks would differ, so there is one.
        counted = any(isinstance(grouping, ShuffleGrouping | PartialKeyGrouping) for grouping in by)
        tasks = 1 if counted else draw(st.integers(1, 3))
        declarer = builder.set_bolt(f"b{number}", draw(st.sampled_from(BOLTS)), tasks)
        for read, grouping in zip(reads, by, strict=True):
            declarer.grouping(read, grouping)
        names.append(f"b{number}")
    return builder.build()


rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.just("r")), max_size=8)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, dict[str, Any]]:
    topology = draw(topologies())
    number = draw(st.integers(1, 3))
    return topology, {spout.id: [draw(rows) for _ in range(number)] for spout in topology.spouts}


def as_sets(outputs: Outputs) -> list[dict[str, Any]]:
    return [{name: sorted(found) for name, found in batch.items()} for batch in outputs]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.integers(0, 9))
def test_any_topology_has_the_output_of_local_cluster(case: tuple[Topology, dict[str, Any]], seed: int) -> None:
    topology, batches = case
    assert as_sets(chained(topology, batches, seed=seed)) == as_sets(clustered(topology, batches))


@bolt(output={"default": "n long, taker string", "by_hand": "n long"}, direct="by_hand")
class Dealer:
    def prepare(self, context: Any) -> None:
        self.takers = context.component_tasks("by_hand")

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit((tuple.n, "dealer"))
        collector.emit_direct(self.takers[2 - tuple.n % 3], (tuple.n,), "by_hand")


@bolt(output="n long, taker string")
class Taker:
    def prepare(self, context: Any) -> None:
        self.name = f"{context.component} {context.task} of {context.tasks}"

    def execute(self, tuple: Any) -> Any:
        return tuple.n, f"{self.name} from {tuple.source_component}.{tuple.source_task}"


def test_each_grouping_chooses_the_same_tasks_as_in_local_cluster() -> None:
    made = TopologyBuilder("groupings")
    made.set_spout("numbers", InputSpout("n long"))
    made.set_bolt("deal", Dealer, 2).shuffle_grouping("numbers")
    made.set_bolt("by_shuffle", Taker, 3).shuffle_grouping("deal")
    made.set_bolt("by_none", Taker, 3).none_grouping("deal")
    made.set_bolt("by_local", Taker, 3).local_or_shuffle_grouping("deal")
    made.set_bolt("by_fields", Taker, 3).fields_grouping("deal", "n")
    made.set_bolt("by_partial", Taker, 3).partial_key_grouping("deal", "n")
    made.set_bolt("to_all", Taker, 3).all_grouping("deal")
    made.set_bolt("to_one", Taker, 3).global_grouping("deal")
    made.set_bolt("by_hand", Taker, 3).direct_grouping("deal", stream="by_hand")
    made.set_bolt("by_custom", Taker, 3).custom_grouping("deal", lambda values, tasks: [values[0] % tasks, 0])
    topology, batches = made.build(), {"numbers": [[(n,) for n in range(20)]]}
    expected = clustered(topology, batches)
    assert {name for batch in expected for name in batch} >= set(topology.components) - {"numbers"}
    assert as_sets(chained(topology, batches)) == as_sets(expected)


def test_late_tuples_of_different_inputs_have_the_fields_of_all_inputs() -> None:
    builder = TopologyBuilder("unlike")
    builder.set_spout("words", InputSpout("word string, at long"))
    builder.set_spout("prices", InputSpout("at long, price double"))

    @tumbling(millis(10), timestamp="at", late_stream="late", output="n long")
    def both(window: Any) -> int:
        return len(window)

    @bolt(output="told string")
    def told(late: Any) -> str:
        return f"{late['word']} {late['at']} {late['price']} {late['reason']}"

    builder.set_bolt("both", both).shuffle_grouping("words").shuffle_grouping("prices")
    builder.set_bolt("told", told).shuffle_grouping("both", "late")
    topology = builder.build()
    batches = {"words": [[("a", 1), ("b", 25)], [("late", 2)]], "prices": [[(25, 0.5)], [(3, 1.5)]]}
    expected = clustered(topology, batches)
    assert [batch.get("told", []) for batch in expected[:2]] == [[], [("late 2 None late",), ("None 3 1.5 late",)]]
    assert chained(topology, batches) == expected


@bolt(output="text string")
def heard(tuple: Any) -> Any:
    return f"{tuple.source_component} {tuple.n}"


def test_a_late_tuple_has_the_phase_of_the_tuple_that_it_is() -> None:
    @tumbling(count(1), timestamp="at", output=FIELDS)
    def each(window: Any) -> Any:
        (row,) = window.get()
        return row.n, row.n, row.path  # the next window's timestamp

    builder = TopologyBuilder("late")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("each", each).global_grouping("in")
    builder.set_bolt("slides", slides).global_grouping("each")
    builder.set_bolt("heard", heard).global_grouping("slides", "late").global_grouping("each")
    topology, batches = builder.build(), {"in": [[(100, 1, "r")], [(5, 2, "r"), (6, 3, "r")]]}
    found = chained(topology, batches)
    assert [text for (text,) in found[1]["heard"]] == ["each 5", "each 6", "slides 5", "slides 6"]
    assert [each["heard"] for each in found[:2]] == [each["heard"] for each in clustered(topology, batches)[:2]]


def test_the_rows_of_a_table_come_after_the_tuples_that_passed_no_window() -> None:
    @tumbling(count(1), timestamp="at", output=FIELDS)
    def table(window: Any) -> Any:
        return pa.table({"n": [row.n for row in window], "at": [0], "path": ["table"]})

    builder = TopologyBuilder("table")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("table", table).global_grouping("in")
    builder.set_bolt("same", Same).global_grouping("in")
    builder.set_bolt("heard", heard).global_grouping("table").global_grouping("same")
    topology, batches = builder.build(), {"in": [[(1, 1, "r"), (2, 2, "r")]]}
    found = chained(topology, batches)
    assert [text for (text,) in found[0]["heard"]] == ["same 1", "same 2", "table 1", "table 2"]
    assert found[0]["heard"] == clustered(topology, batches)[0]["heard"]
