"""Bolts with `columnar=`: their arguments and return values, and equal results with bolts of tuples in every runtime."""

from __future__ import annotations

import datetime
import functools
import pickle
from collections.abc import Callable
from decimal import Decimal
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.chains import Chain, chained, clustered
from tests.execution.test_exchange import row_by_row, seen
from windowing.columnar.rows import owned
from windowing.errors import BoltError, ConfigError, FailedException, ReportedFailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.schema.tuples import Fields, Origin
from windowing.spark.acks import NO_ROOTS
from windowing.spark.rows import TupleRows
from windowing.spark.stage_writer import StageWriter
from windowing.spark.stages import StageTaskTurn
from windowing.spark.tasks import ColumnarBoltBatch, StreamBatch
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, declaration_of, spout, tumbling, windowed_bolt
from windowing.topology.plan import Topology, TopologyError
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import count, millis, seconds

FIELDS = "word string, n long"
Rows = list[tuple[Any, ...]]


def one_bolt(target: Any, fields: str = FIELDS, attempts: int = 3, ackers: int = 0, **more: Any) -> Topology:
    builder = TopologyBuilder("one").configure(
        {"windowing.max.attempts": attempts, "windowing.retry.delay.ms": 0, "topology.acker.executors": ackers, **more}
    )
    builder.set_spout("in", InputSpout(fields))
    builder.set_bolt("bolt", target).shuffle_grouping("in")
    return builder.build()


def both(target: Any, rows: Rows, fields: str = FIELDS) -> dict[str, Rows]:
    """Return the output of one batch on the stages of Spark, after checking that LocalCluster has the same."""
    topology = one_bolt(target, fields)
    found = ended(Chain(topology).run({"in": rows}))
    in_cluster = ended(clustered(topology, {"in": [rows]}, drain=False)[0])
    assert repr(sorted(in_cluster.items())) == repr(sorted(found.items()))
    return found


def ended(found: dict[str, Rows]) -> dict[str, Rows]:
    """Return the rows of the streams that no bolt reads."""
    return {name: rows for name, rows in found.items() if name.startswith("bolt")}


# -- ownership of the memory of a returned batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_a_returned_batch_does_not_change_when_the_bolt_reuses_its_memory(form: str) -> None:
    @bolt(output="k long, total double", columnar=form)
    class Totals:
        def prepare(self, context: Any) -> None:
            self.totals = np.zeros(3)
            self.frame = pd.DataFrame({"k": np.arange(3), "total": np.zeros(3)})

        def execute(self, batch: Any) -> Any:
            numbers = np.asarray(batch["n"], dtype=np.int64)
            if form == "pandas":
                for number in numbers.tolist():
                    self.frame.loc[number, "total"] += 1
                return self.frame
            np.add.at(self.totals, numbers, 1.0)
            return pa.table({"k": np.arange(3), "total": self.totals})

    builder = TopologyBuilder("two").configure({"topology.acker.executors": 0})
    for name in ("a", "b"):
        builder.set_spout(name, InputSpout("n long"))
    builder.set_bolt("bolt", Totals).global_grouping("a").global_grouping("b")
    topology, fed = builder.build(), {"a": [[(0,), (1,)]], "b": [[(1,), (2,)]]}
    wanted = [(0, 1.0), (1, 1.0), (2, 0.0), (0, 1.0), (1, 2.0), (2, 1.0)]
    assert chained(topology, fed)[0]["bolt"] == wanted
    assert clustered(topology, fed, drain=False)[0]["bolt"] == wanted


def test_a_table_of_a_dataframe_is_copied_although_its_buffers_are_read_only() -> None:
    totals = np.zeros(2)
    read_only = totals.view()
    read_only.flags.writeable = False  # as in pandas 3
    table = pa.table({"total": read_only}).replace_schema_metadata({"pandas": "{}"})
    assert not table["total"].chunk(0).buffers()[1].is_mutable
    kept = owned(table)
    totals += 1
    assert table["total"].to_pylist() == [1.0, 1.0]
    assert kept["total"].to_pylist() == [0.0, 0.0]


# -- values that are not read, and values that Arrow would change -----------------------------------------------------------


# The second is in the year 10183, which Python does not have.
DAYS = pa.array([1, 3_000_000], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("fields", "column", "returned"),
    [
        ("d date, l array<long>", pa.array([[1], [2]], pa.list_(pa.field("element", pa.int64()))), None),
        ("d date, s string", pa.array(["x", "y"]), pa.array(["x", "y"]).dictionary_encode()),
        ("d date, n long", pa.array([1, 2]), pa.array([1.0, 2.0])),
        ("d date, m map<string,long>", pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())), None),
    ],
)
def test_a_value_that_python_cannot_hold_in_an_unread_column_loses_no_row(
    fields: str, column: pa.Array, returned: pa.Array | None
) -> None:
    @bolt(output=fields, columnar="arrow")
    def same(batch: pa.Table) -> pa.Table:
        return batch if returned is None else batch.set_column(1, batch.column_names[1], returned)

    writer = StageWriter(Chain(one_bolt(same, fields)).wiring, 0, 0)
    table = pa.table({"d": DAYS, fields.split(", ")[1].split()[0]: column})
    sent: list[pa.RecordBatch] = []
    writer.send = lambda *of_task: sent.append(of_task[3])
    task = ColumnarBoltBatch(writer, "bolt", 0)
    task.take([StreamBatch(table, Origin("in", 0, Fields(*table.column_names)), 0, NO_ROOTS)])
    task.close()
    (batch,) = sent
    assert (task.counts()["invalid"], batch.num_rows) == (0, 2)
    assert batch.column(0).equals(DAYS)
    assert batch.column(1).to_pylist() == column.to_pylist()


def test_a_column_of_dicts_is_refused_for_a_field_of_maps() -> None:
    @bolt(output="m map<string,long>", columnar="pandas")
    def dicts(batch: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"m": [{"a": 1}, {"b": 2}]})

    with pytest.raises(
        BoltError, match=r"has a column of dicts, which are a struct in Arrow: each would get the keys of all"
    ):
        chained(one_bolt(dicts), {"in": [[("a", 1)]]})
    with pytest.raises(BoltError, match="has a column of dicts"):
        clustered(one_bolt(dicts), {"in": [[("a", 1)]]}, drain=False)


class Frame(pd.DataFrame):
    """A user's subclass of DataFrame."""


def test_a_subclass_of_dataframe_is_accepted_and_a_partial_of_a_columnar_bolt_is_refused_in_trident() -> None:
    @bolt(output=FIELDS, columnar="pandas")
    def own(batch: pd.DataFrame, more: int = 0) -> pd.DataFrame:
        return Frame(batch)

    assert both(own, [("a", 1)])["bolt"] == [("a", 1)]
    topology = TridentTopology("refused")
    topology.new_stream("in", InputSpout(FIELDS)).map(functools.partial(own, more=1), FIELDS).sink("out")
    with pytest.raises(ConfigError, match="says columnar='pandas', and an operation of Trident is handed the tuples"):
        topology.build()


# -- the model: the same bolts over tuples ---------------------------------------------------------------------------------------


def of_tuple(work: Callable[[str, int], Rows]) -> Any:
    return bolt(output=FIELDS)(lambda tuple: work(tuple["word"], tuple["n"]))


def of_table(work: Callable[[pa.Table], pa.Table]) -> Any:
    return bolt(output=FIELDS, columnar="arrow")(work)


def of_frame(work: Callable[[pd.DataFrame], pd.DataFrame]) -> Any:
    return bolt(output=FIELDS, columnar="pandas")(work)


def twice(batch: pa.Table) -> pa.Table:
    return batch.take(pa.array(np.repeat(np.arange(batch.num_rows), 2)))


KEPT = {
    "tuples": of_tuple(lambda word, n: [(word, n)] if n % 3 else []),
    "arrow": of_table(lambda batch: batch.filter(pa.array(batch["n"].to_numpy() % 3 != 0))),
    "pandas": of_frame(lambda frame: frame[frame["n"] % 3 != 0]),
}  # fmt: skip
GROWN = {
    "tuples": of_tuple(lambda word, n: [(word, n + 1)]),
    "arrow": of_table(lambda batch: batch.set_column(1, "n", pc.add(batch["n"], 1))),
    "pandas": of_frame(lambda frame: frame.assign(n=frame["n"] + 1)),
}
TWICE = {
    "tuples": of_tuple(lambda word, n: [(word, n), (word, n)]),
    "arrow": of_table(twice),
    "pandas": of_frame(lambda frame: frame.loc[frame.index.repeat(2)]),
}
WORKS = [KEPT, GROWN, TWICE]


@tumbling(millis(20), timestamp="n", key="word", output=FIELDS)
def counted(window: Any) -> Any:
    return window.key, len(window)


class Step(NamedTuple):
    work: int
    form: str
    grouping: str
    tasks: int
    windowed: bool


steps = st.builds(
    Step,
    st.integers(0, 2),
    st.sampled_from(["tuples", "arrow", "pandas"]),
    st.sampled_from(["shuffle", "local_or_shuffle", "fields", "partial_key", "all", "global"]),
    st.integers(1, 3),
    st.booleans(),
)
batches = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 99)), max_size=12), min_size=1, max_size=3
)


def topology_of(plan: list[Step], form: str | None = None, spouts: int = 1, ackers: int = 0) -> Topology:
    """Return a chain of bolts, all of one form if it is given; every second one also reads the spouts."""
    builder = TopologyBuilder("steps").configure({"topology.acker.executors": ackers})
    names = [f"in{number}" for number in range(spouts)]
    for name in names:
        builder.set_spout(name, InputSpout(FIELDS))
    reads = list(names)
    for number, step in enumerate(plan):
        declarer = builder.set_bolt(f"bolt{number}", WORKS[step.work][form or step.form], step.tasks)
        for source in reads:
            by = getattr(declarer, f"{step.grouping}_grouping")
            _ = by(source, "word") if step.grouping in ("fields", "partial_key") else by(source)
        reads = [f"bolt{number}", *(names if number % 2 else [])]
        if step.windowed and number == len(plan) - 1:
            builder.set_bolt("window", counted, 2).fields_grouping(f"bolt{number}", "word")
            builder.set_bolt("behind", WORKS[step.work][form or step.form]).global_grouping("window")
            last = builder.set_bolt("last", GROWN[form or step.form])
            _ = last.global_grouping("behind").global_grouping("window")
    return builder.build()


@given(
    st.lists(steps, min_size=1, max_size=3),
    st.lists(batches, min_size=1, max_size=2),
    st.integers(1, 3),
    st.integers(0, 9),
)
@settings(max_examples=settings().max_examples // 2)
def test_columnar_bolts_equal_bolts_over_tuples_on_spark(
    plan: list[Step], given_rows: list[list[Rows]], partitions: int, seed: int
) -> None:
    feed = {f"in{number}": rows for number, rows in enumerate(given_rows)}
    count = max(map(len, feed.values()))
    feed = {name: [*rows, *([[]] * (count - len(rows)))] for name, rows in feed.items()}
    wanted = chained(topology_of(plan, "tuples", len(feed)), feed, partitions, seed)
    assert chained(topology_of(plan, None, len(feed)), feed, partitions, seed) == wanted
    with row_by_row():
        assert chained(topology_of(plan, None, len(feed)), feed, partitions, seed) == wanted


@given(st.lists(steps, min_size=1, max_size=3), batches, st.integers(0, 1))
@settings(max_examples=settings().max_examples // 2)
def test_columnar_bolts_equal_bolts_over_tuples_in_local_cluster(
    plan: list[Step], rows: list[Rows], ackers: int
) -> None:
    feed = {"in0": rows}
    wanted = clustered(topology_of(plan, "tuples", ackers=ackers), feed)
    assert clustered(topology_of(plan, None, ackers=ackers), feed) == wanted


@given(st.lists(steps, min_size=1, max_size=3), batches, batches, st.integers(1, 3))
@settings(max_examples=settings().max_examples // 2)
def test_columnar_bolts_have_the_acks_and_exchange_rows_of_bolts_over_tuples(
    plan: list[Step], left: list[Rows], right: list[Rows], partitions: int
) -> None:
    chains = [Chain(topology_of(plan, form, spouts=2), partitions, acks=True) for form in ("tuples", None)]
    for one, other in zip_longest(left, right, fillvalue=[]):
        found = [chain.run({"in0": one, "in1": other}) for chain in chains]
        assert found[0] == found[1]
        assert chains[0].partials == chains[1].partials
    sent = [seen(chain._emitted({"in0": left[0], "in1": right[0]})) for chain in chains]
    assert repr(sent[0]) == repr(sent[1])


def test_the_output_of_a_batch_keeps_the_position_of_its_rows_among_outputs_of_windows() -> None:
    rows = {"in0": [[(word, 5) for word in "abcdef"]]}
    found = {form: chained(topology_of([Step(1, form, "global", 1, True)], form), rows) for form in ("tuples", "arrow")}
    assert found["arrow"] == found["tuples"]
    assert [n for _, n in found["arrow"][-1]["last"]] == [2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 3, 3]


# -- the input of a bolt ---------------------------------------------------------------------------------------------------------

EVERY = (
    "a string, b boolean, c tinyint, d int, e long, f float, g double, h date, i timestamp, j binary, k decimal(9,2), "
    "l array<long>, m map<string, long>, n struct<x: long>, o smallint"
)
AT = datetime.datetime(2026, 7, 20, 12, tzinfo=datetime.UTC)
ROW = (
    "cow", True, 1, 2, 2**60 + 1, 0.5, 1.5, AT.date(), AT, b"\xff", Decimal("1.25"), [1, None], {"x": 1}, {"x": 3}, 300
)  # fmt: skip


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_values_of_every_type_pass_through_a_batch_unchanged(form: str) -> None:
    same = bolt(output=EVERY, columnar=form)(lambda batch: batch)
    rows = [ROW, (None,) * len(ROW)]
    topology = one_bolt(same, EVERY)
    for found in (Chain(topology).run({"in": rows}), clustered(topology, {"in": [rows]}, drain=False)[0]):
        first, second = found["bolt"]
        assert (*first[:12], dict(first[12]), *first[13:]) == ROW  # the test reads a map as pairs
        assert second == rows[1]
        assert isinstance(first[4], int), "2**60 + 1 beside a null has not been a float"


def test_a_batch_has_the_fields_of_its_stream_in_order_and_a_frame_has_nullable_types() -> None:
    handed: list[Any] = []
    for form in ("arrow", "pandas"):
        bolt_of_form = bolt(output=FIELDS, columnar=form)(lambda batch: handed.append(batch))
        assert ended(Chain(one_bolt(bolt_of_form)).run({"in": [("a", 1), ("b", None)]})) == {}
    assert handed[0].schema == pa.schema({"word": pa.string(), "n": pa.int64()})
    assert [str(kind) for kind in handed[1].dtypes] == ["string", "Int64"]
    assert handed[1]["n"].isna().tolist() == [False, True]


@pytest.mark.parametrize("runtime", [chained, clustered])
def test_a_batch_holds_the_rows_of_one_stream(runtime: Any) -> None:
    sizes: list[list[str]] = []

    @bolt(output="n long", columnar="arrow")
    def counts(batch: Any) -> Any:
        sizes.append(batch.column_names)
        return pa.table({"n": [batch.num_rows]})

    builder = TopologyBuilder("two").configure({"topology.acker.executors": 0})
    builder.set_spout("left", InputSpout("a long"))
    builder.set_spout("right", InputSpout("b string"))
    builder.set_bolt("count", counts).shuffle_grouping("left").global_grouping("right")
    found = runtime(builder.build(), {"left": [[(1,), (2,)]], "right": [[("x",)]]})
    assert found[0]["count"] == [(2,), (1,)]
    assert sizes == [["a"], ["b"]]


def test_in_local_cluster_each_tracked_tuple_is_its_own_batch_and_untracked_ones_share_one() -> None:
    sizes: list[int] = []
    counting = bolt(output=FIELDS, columnar="arrow")(lambda batch: sizes.append(batch.num_rows) or batch)
    for ackers in (0, 1):
        topology = one_bolt(counting, ackers=ackers)
        with LocalCluster(topology, batches={"in": [[("a", 1), ("b", 2), ("c", 3)]]}, clock=VirtualClock()) as cluster:
            assert cluster.run()["bolt"] == [("a", 1), ("b", 2), ("c", 3)]
            assert cluster.result.acked == 3
    assert sizes == [3, 1, 1, 1]


def test_each_task_has_its_own_instance_with_prepare_and_cleanup() -> None:
    closed: list[int] = []

    @bolt(output="task long, n long", columnar="arrow")
    class Tasks:
        def prepare(self, context: Any) -> None:
            self.task = context.task_index

        def execute(self, batch: Any) -> Any:
            return pa.table({"n": batch["n"], "task": pa.repeat(self.task, batch.num_rows)})

        def cleanup(self) -> None:
            closed.append(self.task)

    builder = TopologyBuilder("tasks").configure({"topology.acker.executors": 0})
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("bolt", Tasks, 2).shuffle_grouping("in")
    rows = {"in": [[("a", 1), ("b", 2), ("c", 3)]]}
    assert chained(builder.build(), rows)[0]["bolt"] == [(0, 1), (0, 3), (1, 2)]
    assert clustered(builder.build(), rows)[0]["bolt"] == [(0, 1), (0, 3), (1, 2)]
    assert sorted(closed) == [0, 0, 1, 1]


# -- the return value ------------------------------------------------------------------------------------------------------------


def test_a_mapping_emits_to_several_streams_and_none_emits_nothing() -> None:
    @bolt(output={"odd": "n long", "even": "n long", "none": "n long"}, columnar="arrow")
    def split(batch: Any) -> Any:
        odd = pc.equal(pc.bit_wise_and(batch["n"], 1), 1)
        chosen = batch.select(["n"])
        return {"odd": chosen.filter(odd), "even": chosen.filter(pc.invert(odd)).to_batches()[0], "none": None}

    assert both(split, [("a", 1), ("b", 2), ("c", 3)]) == {"bolt.odd": [(1,), (3,)], "bolt.even": [(2,)]}


@pytest.mark.parametrize(
    "returned",
    [
        pa.table({"n": pa.array([1], pa.int8()), "word": pa.array(["x"], pa.large_string())}),
        pa.table({"n": pa.array([1], pa.uint64()), "word": pa.array(["x"]).dictionary_encode()}),
        pa.record_batch({"word": ["x"], "n": [1]}),
        pd.DataFrame({"word": ["x"], "n": [1]}, index=["other"]),
        pa.table({"n": pa.chunked_array([[], [1]], pa.int64()), "word": pa.chunked_array([["x"], []], pa.string())}),
    ],
)
def test_columns_may_be_in_any_order_and_of_any_type_that_a_row_may_have(returned: Any) -> None:
    given_back = bolt(output=FIELDS, columnar="arrow")(lambda batch: returned)
    assert both(given_back, [("a", 1)]) == {"bolt": [("x", 1)]}


WRONG: list[tuple[Any, str]] = [
    (pa.table({"word": ["x"]}), r"stream 'default' has 2 fields .*, got a table of the columns 'word'; rename"),
    (pa.table({"word": ["x"], "n": ["y"]}), r"field 'n' of stream 'default' is declared bigint: .*'y'"),
    (
        pa.table({"word": ["x"], "n": pa.array([2**63], pa.uint64())}),
        r"field 'n' of stream 'default' is declared bigint",
    ),
    (pd.DataFrame({"word": ["x"], "n": [1.5]}), r"field 'n' of stream 'default' is declared bigint: .*1.5"),
    (pd.DataFrame({"word": ["x", 3], "n": [1, 2]}), r"its batch cannot be taken apart into columns"),
    (
        pd.DataFrame({"word": pd.Series(["x", b"y"], dtype=object), "n": [1, 2]}),
        r"its DataFrame has texts beside bytes in the column 'word'; give values of one type",
    ),
    (
        pd.DataFrame(
            {"word": ["x", "y"], "n": [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 9)]}, dtype=object
        ),
        r"its DataFrame has times beside dates in the column 'n'",
    ),
    ([("x", 1)], r"it returned \[\('x', 1\)\], where a batch is wanted: give a pyarrow Table"),
    ({"word": ["x"], "n": [1]}, r"stream 'word' is not declared, there are default"),
    ({"default": 3}, r"it returned 3, where a batch is wanted"),
]


@pytest.mark.parametrize(("returned", "sentence"), WRONG)
@pytest.mark.parametrize("runtime", [chained, clustered])
def test_a_batch_that_does_not_fit_is_refused_in_one_line_with_bolt_and_place(
    returned: Any, sentence: str, runtime: Any
) -> None:
    wrong = bolt(output=FIELDS, columnar="arrow")(lambda batch: returned)
    with pytest.raises(BoltError, match=sentence) as caught:
        runtime(one_bolt(wrong), {"in": [[("a", 1), ("b", 2)]]})
    text = str(caught.value)
    assert "bolt 'bolt' emitted a wrong row on a batch of 2 rows of stream 'default'" in text
    assert "test_columnar_bolts.py:" in text


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (
            pa.array([b"\xff"]).view(pa.string()),
            r"a column of string, a value that Python cannot hold \(UnicodeDecodeError",
        ),
        (
            pa.array([2**60], pa.timestamp("s")),
            r"a column of timestamp\[s\], a value that Python cannot hold \(OverflowError",
        ),
    ],
)
def test_a_value_that_python_cannot_hold_is_refused_with_its_field(column: Any, named: str) -> None:
    wrong = bolt(output=FIELDS, columnar="arrow")(lambda batch: pa.table({"word": column, "n": [1]}))
    with pytest.raises(BoltError, match=rf"emitted a wrong row .* field 'word' of stream 'default' has, in {named}"):
        clustered(one_bolt(wrong), {"in": [[("a", 1)]]})


@pytest.mark.parametrize("runtime", [chained, clustered])
def test_an_error_of_the_bolt_is_one_line_and_a_return_value_without_output_is_refused(runtime: Any) -> None:
    rows = {"in": [[("a", 1)]]}
    raising = bolt(output=FIELDS, columnar="pandas")(lambda frame: frame["none"])
    with pytest.raises(BoltError, match=r"bolt 'bolt' failed on a batch of 1 row of stream 'default': KeyError"):
        runtime(one_bolt(raising), rows)
    silent = bolt(columnar="arrow")(lambda batch: batch)
    with pytest.raises(BoltError, match="it declares no output, yet it returned"):
        runtime(one_bolt(silent), rows)
    assert "bolt" not in runtime(one_bolt(bolt(columnar="arrow")(lambda batch: None)), rows)[0]


# -- failures --------------------------------------------------------------------------------------------------------------------


def failing(times: int, kind: type[Exception] = FailedException) -> Any:
    left = [times]

    def work(batch: Any) -> Any:
        if left[0] and "bad" in batch["word"].to_pylist():
            left[0] -= 1
            raise kind("not ready")
        return batch

    return bolt(output=FIELDS, columnar="arrow")(work)


BAD = [("good", 1), ("bad", 2)]


def test_a_failed_batch_is_retried_whole() -> None:
    found = chained(one_bolt(failing(2)), {"in": [BAD]})
    assert ended(found[0]) == {"bolt": BAD}


def test_after_the_last_attempt_there_is_an_error_or_one_dead_letter_per_row() -> None:
    with pytest.raises(
        BoltError, match=r"'bolt' failed .*'good'.* in each of 3 attempts: .*not ready.*'bolt.dead_letters'"
    ):
        Chain(one_bolt(failing(3)), letters=False).run({"in": BAD})
    chain = Chain(one_bolt(failing(3, ReportedFailedException)), acks=True)
    found = chain.run({"in": BAD})
    assert [(row[0], row[2]) for row in found["bolt.dead_letters"]] == [("bolt", 3), ("bolt", 3)]
    assert '"good"' in found["bolt.dead_letters"][0][7]
    (partial,) = chain.partials
    assert (partial.xor, partial.edges, partial.given_up) == (0, 0, "bolt")


def test_in_local_cluster_a_failed_batch_is_emitted_again_or_is_one_dead_letter_per_row() -> None:
    with LocalCluster(one_bolt(failing(2), ackers=1), batches={"in": [BAD]}, clock=VirtualClock()) as cluster:
        result = cluster.run()
    assert (result["bolt"], result.acked, result.failures) == (BAD, 2, 2)
    with LocalCluster(
        one_bolt(failing(9, ReportedFailedException)), batches={"in": [BAD]}, clock=VirtualClock()
    ) as cluster:
        result = cluster.run()
    assert [letter.values for letter in result.dead_letters] == BAD
    assert len(result.errors) == 1


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_value_that_python_cannot_hold_passes_unchanged_but_reading_it_makes_its_row_invalid(
    is_asked: bool,
) -> None:
    def work(batch: Any) -> Any:
        if is_asked:
            batch["day"].to_pylist()
        return batch

    topology = one_bolt(bolt(output="day date", columnar="arrow")(work), "day date")
    days = pa.array([1, 3_000_000], pa.int32()).cast(pa.date32())
    batch = StreamBatch(pa.table({"day": days}), Origin("in", 0, Fields("day")), 0, NO_ROOTS)
    sent: list[Any] = []
    letters: list[Any] = []

    def send(name: str, task: int, stream: str, batch: Any, roots: Any) -> None:
        sent.append(batch.column("day").cast(pa.int32()).to_pylist())

    for are_kept in (False, True):
        writer = StageWriter(Chain(topology, letters=are_kept).wiring, 0, 0)
        writer.send, writer.dead_letter = send, lambda *of_task: letters.append(of_task[2].row())
        running = ColumnarBoltBatch(writer, "bolt", 0)
        running.take([batch])
        running.close()
        assert sent.pop() == ([1] if is_asked else [1, 3_000_000])
        assert running.counts()["invalid"] == int(is_asked and not are_kept)
    assert len(letters) == int(is_asked)


# -- columnar windows in a topology ----------------------------------------------------------------------------------------------

WINDOWS: list[dict[str, Any]] = [
    {"length": millis(20), "slide": millis(10)},
    {"length": count(3), "slide": count(2)},
    {"length": millis(15), "slide": count(2)},
]


def windows_of(spouts: int, kind: int, key: str | None, form: str, tasks: int) -> Topology:
    """Return columnar windows, and two bolts after them; every second window emits one row at a time."""

    @windowed_bolt(
        **WINDOWS[kind], timestamp="n", lag=millis(5), key=key, columnar=form, late_stream="late",
        output="word string, n long, size long",
    )  # fmt: skip
    def shown(window: Any) -> Any:
        words, numbers = (list(map(plain, window.column(name))) for name in ("word", "n"))
        size = 100 * len(window.get_expired()) + len(window.get_new()) if form == "arrow" else len(window)
        columns = {"word": words, "n": numbers, "size": [size] * len(words)}
        if len(words) % 2:
            return list(zip(*columns.values(), strict=True))
        return pa.table({"n": columns["n"], "size": columns["size"], "word": columns["word"]})

    builder = TopologyBuilder("windows").configure({"topology.acker.executors": 0})
    for number in range(spouts):
        builder.set_spout(f"in{number}", InputSpout(FIELDS if number % 2 == 0 else "n long, word string"))
    declarer = builder.set_bolt("window", shown, tasks)
    for number in range(spouts):
        declarer.fields_grouping(f"in{number}", "word")
    same = bolt(output="word string, n long, size long")(lambda tuple: tuple.get_values())
    builder.set_bolt("behind", same, 2).shuffle_grouping("window")
    builder.set_bolt("keyed", same, 2).fields_grouping("window", "size")
    builder.set_bolt("rounds", pairs, 2).shuffle_grouping("window")
    return builder.build()


@windowed_bolt(
    length=count(2), slide=count(2), timestamp="n", columnar="arrow", late_stream="late", output="words string"
)
def pairs(window: Any) -> Any:
    return " ".join(window.get()["word"].to_pylist())


@tumbling(count(1), timestamp="n", columnar="arrow", output=FIELDS)
def by_turns(window: Any) -> Any:
    rows = window.get().select(["word", "n"])
    return rows if rows["n"][0].as_py() % 2 else [tuple(row.values()) for row in rows.to_pylist()]


def test_rows_and_tables_that_a_bolt_returns_by_turns_reach_a_sink_in_their_order() -> None:
    rows = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert both(by_turns, rows) == {"bolt": rows}


def checked_columns(rows: TupleRows, table: pa.Table) -> Any:
    """Return the result of `in_columns`, after checking that its items equal those of `payloads`."""
    found = IN_COLUMNS(rows, table)
    both = [
        [(each.get_values(), repr(each._origin), each._phase) for each in some]
        for some in (found, rows.payloads(table))
    ]
    assert both[0] == both[1]
    return found


IN_COLUMNS = TupleRows.in_columns


def plain(value: Any) -> Any:
    return value.as_py() if hasattr(value, "as_py") else value.item() if hasattr(value, "item") else value


@given(
    batches,
    batches,
    st.integers(1, 2),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([None, "word"]),
    st.sampled_from(["arrow", "numpy"]),
    st.integers(1, 2),
)
@settings(max_examples=settings().max_examples // 2)
def test_columnar_windows_get_the_arrived_columns_equal_to_columns_made_of_tuples(
    left: list[Rows], right: list[Rows], spouts: int, kind: int, key: str | None, form: str, tasks: int
) -> None:
    feeds = {"in0": left, "in1": [[(n, word) for word, n in rows] for rows in right]}
    count = max(map(len, feeds.values()))
    feed = {name: [*rows, *([[]] * (count - len(rows)))] for name, rows in list(feeds.items())[:spouts]}
    topology = windows_of(spouts, kind, key, form, tasks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TupleRows, "in_columns", checked_columns)
        found = chained(topology, feed, 2)
        patch.setattr(TupleRows, "make_rows", None)
        patch.setattr(StageTaskTurn, "_fitted", lambda self, table: None)
        assert chained(topology, feed, 2) == found
    in_cluster = clustered(topology, feed)
    late = [sorted(batch.get("window.late", ())) for batch in found]
    assert late == [sorted(batch.get("window.late", ())) for batch in in_cluster]
    shown = [sorted(batch.get("keyed", ())) for batch in found]
    assert shown == [sorted(batch.get("keyed", ())) for batch in in_cluster]


def test_columnar_windows_make_tuples_only_of_late_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(windows_of(1, 0, None, "arrow", 1))
    made: list[int] = []
    whole = TupleRows.payloads

    def counted_rows(rows: TupleRows, table: Any, columns: Any = None) -> Any:
        made.append(table.num_rows * (rows._component == "window"))
        return whole(rows, table, columns)

    monkeypatch.setattr(TupleRows, "payloads", counted_rows)
    chain.run({"in0": [("a", 1), ("b", 30), ("c", 62)]})
    assert sum(made) == 0
    assert chain.run({"in0": [("b", 2), ("b", 70)]})["window.late"] == [("b", 2, "late")]
    assert sum(made) > 0


# -- refusals --------------------------------------------------------------------------------------------------------------------


def declared(body: Any, **options: Any) -> Callable[[], Any]:
    return lambda: bolt(**{"output": "n long", "columnar": "arrow", **options})(body)


class Acking(Bolt):
    def execute(self, tuple: Any) -> None: ...


class Keeping:
    def init_state(self, state: Any) -> None: ...
    def execute(self, batch: Any) -> None: ...


async def later(batch: Any) -> None: ...


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (declared(lambda batch: batch, columnar="numpy"), "columnar of a bolt is 'arrow' or 'pandas', got 'numpy'"),
        (declared(Acking), "'Acking' says columnar='arrow', but it acks each tuple by itself"),
        (declared(Keeping), "'Keeping' says columnar='arrow', but it has a state"),
        (declared(lambda batch, collector: None), "but it takes a collector, and a batch is returned"),
        (
            declared(lambda batch: None, direct="default"),
            "returns its rows, but on a direct stream|has a direct stream",
        ),
        (declared(lambda: None), r"a bolt takes \(batch\) or \(batch, collector\)"),
        (declared(later), "is async, but a batch is handed out"),
    ],
)
def test_a_component_that_cannot_take_batches_is_refused_when_it_is_declared(
    declare: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        declare()


def test_tick_tuples_for_columnar_bolts_only_are_refused() -> None:
    same = bolt(output=FIELDS, columnar="arrow")(lambda batch: batch)
    builder = TopologyBuilder("ticks")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("bolt", same).shuffle_grouping("in").configure(tick_tuple_freq=seconds(1))
    with pytest.raises(TopologyError, match=r"asks for ticks .* handed batches of its inputs"):
        builder.build()
    with pytest.raises(TopologyError, match="every bolt is a windowed or a columnar one"):
        one_bolt(same, **{"topology.tick.tuple.freq.secs": 1})


def test_a_declaration_has_the_columnar_form() -> None:
    assert declaration_of(KEPT["pandas"]).columnar == "pandas"
    assert declaration_of(KEPT["tuples"]).columnar is None
    assert declaration_of(spout(output="n long")(lambda: None)).columnar is None
    assert pickle.dumps(declaration_of(KEPT["arrow"]).columnar)


def test_a_columnar_bolt_is_refused_as_an_operation_of_trident() -> None:
    topology = TridentTopology()
    topology.new_stream("in", InputSpout(FIELDS)).map(KEPT["arrow"], FIELDS).sink("out")
    with pytest.raises(ConfigError, match="says columnar='arrow', and an operation of Trident is handed the tuples"):
        topology.build()
