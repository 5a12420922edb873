"""Columnar exchanges compared with exchanges row by row: the same exchange rows, windows and acks."""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import _create_converter_from_pandas, from_arrow_type

from tests.execution.chains import Chain
from tests.execution.test_chain import FIELDS, GROUPINGS, cases
from windowing.columnar.bolts import arrow_type
from windowing.columnar.hashing import hashed_columns, is_hashed
from windowing.columnar.rows import cut, decode_table
from windowing.errors import WindowingError
from windowing.execution.compatibility import MOST_TASKS
from windowing.schema.hashing import key_hash
from windowing.schema.types import FieldType, Schema
from windowing.spark import stage_writer
from windowing.spark.acks import partials_of
from windowing.spark.exchange import (
    CLOCK_BITS,
    CLOCK_PROPERTY,
    POSITION,
    TASK_AND_CLOCK,
    ExchangeRow,
    RowNumbering,
    clocked,
    record_batches,
    rows_of,
)
from windowing.spark.operator import _FRAME_ROWS
from windowing.spark.output import frame_of
from windowing.spark.rows import TupleRows
from windowing.spark.stage_writer import spread_of
from windowing.spark.stages import SpoutStage, hashed_reader
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import sliding, tumbling
from windowing.topology.groupings import (
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    NoneGrouping,
    PartialKeyGrouping,
    ShuffleGrouping,
)
from windowing.topology.plan import Topology
from windowing.windows import aggregate as agg
from windowing.windows.measures import count, millis

slow = settings(max_examples=settings().max_examples // 2)  # each example is a topology that runs twice

# -- hashes ----------------------------------------------------------------------------------------------------------------------

UTC = datetime.UTC
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), float("inf")]) | st.floats(width=32),
    "double": st.sampled_from([0.0, -0.0, float("nan"), -float("nan"), float("inf")]) | st.floats(),
    "string": st.text(max_size=40),
    "binary": st.binary(max_size=40),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "decimal(9,2)": st.decimals(-1_000_000, 1_000_000, places=2),
    "decimal(38,3)": st.decimals(Decimal(10) ** 30, Decimal(10) ** 31, places=3),
}


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | VALUES[kind] for kind in kinds))
    return kinds, draw(st.lists(row, max_size=8))


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_every_key_type_with_a_fixed_byte_order_is_hashed_in_columns(kind: str) -> None:
    assert is_hashed(kind)
    assert not is_hashed(f"array<{kind}>")


@slow
@given(keyed_rows())
def test_the_hash_of_key_columns_equals_the_hash_of_their_values(case: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    columns = [pa.array([row[at] for row in rows], arrow_type(FieldType.parse(kind))) for at, kind in enumerate(kinds)]
    assert hashed_columns(columns, kinds, len(rows)).tolist() == [key_hash(tuple(kinds), row) for row in rows]


def test_a_slice_of_a_column_is_hashed_by_its_own_rows() -> None:
    whole = pa.array([None, 5, None, 7, 9], pa.int64())
    assert hashed_columns([whole.slice(2)], ["bigint"], 3).tolist() == [
        42,
        *(key_hash(("bigint",), (n,)) for n in (7, 9)),
    ]


def test_values_that_python_cannot_hold_have_the_hash_of_spark() -> None:
    days = hashed_columns([pa.array([3_000_000], pa.int32()).cast(pa.date32())], ["date"], 1)
    assert days.tolist() == [key_hash(("int",), (3_000_000,))]
    micros = hashed_columns([pa.array([2**61], pa.int64()).cast(pa.timestamp("us", "UTC"))], ["timestamp"], 1)
    assert micros.tolist() == [key_hash(("bigint",), (2**61,))]
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    assert hashed_columns([text], ["string"], 1).tolist() == [key_hash(("binary",), (b"\xff\xfe",))]


# -- the exchange format ---------------------------------------------------------------------------------------------------------


@contextmanager
def row_by_row() -> Iterator[None]:
    """Route every row by itself, and convert it to a Tuple on arrival: the slow model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_writer, "spread_of", lambda *_: None)
        patch.setattr(TupleRows, "in_columns", TupleRows.payloads)
        yield


def seen(rows: list[ExchangeRow]) -> dict[tuple[Any, ...], list[Any]]:
    """Return exchange rows without their packet boundaries: tuples by target, stream and position; all others in order."""
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in rows:
        if row.kind == "ack":
            found["ack",] += partials_of([row.data or b""])
        elif row.kind in ("rows", "out"):
            found[row.kind, row.target, row.stream, row.upstream, row.now] += decode_table(row.data or b"").to_pylist()
        else:
            found[row.kind, row.target, row.stream, row.upstream, row.now].append((row.source, row.value))
    for key, tuples in found.items():
        if key[0] == "rows":
            tuples.sort(key=lambda each: each[POSITION])
    return dict(found)


def emitted(topology: Topology, batch: dict[str, Any], acks: bool) -> dict[tuple[Any, ...], list[Any]]:
    return seen(Chain(topology, partitions=2, acks=acks)._emitted(batch))


@slow
@given(cases(), st.booleans())
def test_a_spout_sends_the_same_exchange_rows_in_columns_and_row_by_row(
    case: tuple[Topology, dict[str, Any]], acks: bool
) -> None:
    topology, batches = case
    batch = {name: given_rows[0] for name, given_rows in batches.items()}
    fast = emitted(topology, batch, acks)
    with row_by_row():
        assert repr(fast) == repr(emitted(topology, batch, acks))


@slow
@given(cases(), st.integers(0, 9), st.booleans())
def test_any_topology_has_the_same_output_in_columns_and_row_by_row(
    case: tuple[Topology, dict[str, Any]], seed: int, acks: bool
) -> None:
    topology, batches = case
    fast = outputs_and_acks(topology, batches, seed, acks)
    with row_by_row():
        assert fast == outputs_and_acks(topology, batches, seed, acks)


def outputs_and_acks(topology: Topology, batches: dict[str, Any], seed: int = 0, acks: bool = False) -> list[Any]:
    """Return the output of each batch, in order, and its acks."""
    chain = Chain(topology, 2, seed, acks=acks)
    found: list[Any] = []
    for number in range(max(map(len, batches.values()))):
        rows = chain.run({name: batch[number] for name, batch in batches.items()})
        found.append((rows, chain.partials, chain.invalid))
    return [*found, chain.run({}, drain=True)]


# -- tasks hashed by the JVM -----------------------------------------------------------------------------------------------------


def read_by(*groupings: Grouping) -> Topology:
    builder = TopologyBuilder("hashed")
    builder.set_spout("in0", InputSpout("k string, at long, tags array<int>"))
    for number, grouping in enumerate(groupings):
        window = tumbling(millis(10), timestamp="at", aggregate=agg.sum("at"), output="n long")(totals())
        builder.set_bolt(f"sums{number}", window, 3).grouping("in0", grouping)
    return builder.build()


def test_the_jvm_computes_the_tasks_of_a_stream_with_one_fields_grouping() -> None:
    def found(*groupings: Grouping) -> Any:
        return hashed_reader(Chain(read_by(*groupings)).wiring, "in0", "default")

    by_key = FieldsGrouping(("k", "at"))
    assert found(by_key) == (("k", "at"), 3)
    for others in ([by_key, by_key], [ShuffleGrouping()], [GlobalGrouping()], [FieldsGrouping(("tags",))]):
        assert found(*others) is None


@pytest.mark.parametrize("acks", [False, True])
def test_a_spout_with_tasks_hashed_by_the_jvm_sends_the_same_exchange_rows(acks: bool) -> None:
    wiring = Chain(read_by(FieldsGrouping(("k",))), acks=acks).wiring
    keys, stamps = ["storm", None, "spark", "", "storm", "flink"], [5, 3, None, 9, 2**40, 1]
    fields = [
        pa.array(keys),
        pa.array(stamps, pa.int64()),
        pa.array([[number] for number in range(6)], pa.list_(pa.int32())),
    ]
    now = 2**40 - 1
    hashed = [key_hash(("string",), (key,)) % 3 for key in keys]
    assert len(set(hashed)) > 1

    def sent(tasks: list[int], is_hashed: bool) -> Any:
        clocks = pa.array([task << CLOCK_BITS | now for task in tasks], pa.int64())
        batch = pa.RecordBatch.from_arrays([*fields, clocks], names=["c0", "c1", "c2", TASK_AND_CLOCK])
        stage = SpoutStage(SimpleNamespace(value=wiring), "in0", "default", is_hashed)
        return [row for found in stage.pack(iter([batch, batch]), 4, 7) for row in found.to_pylist()]

    assert sent(hashed, True) == sent([0] * 6, False)


# -- keys of every type, columnar windows ----------------------------------------------------------------------------------------

KINDS = ["boolean", "int", "bigint", "double", "string", "date", "timestamp", "decimal(9,2)"]
SUMS = {"n": agg.count(), "total": agg.sum("v"), "least": agg.min("v"), "most": agg.max("v"), "mean": agg.mean("v")}
OUTPUT = "key string, at long, n long, total double, least double, most double, mean double"


def results() -> Any:
    def result(window: Any) -> Any:
        found = window.aggregate
        return repr(window.key), window.end_timestamp, *(found[name] for name in SUMS)

    return result


def totals() -> Any:
    def total(window: Any) -> Any:
        return window.aggregate

    return total


@st.composite
def aggregating(draw: st.DrawFn) -> tuple[Topology, dict[str, Any]]:
    kind, both = draw(st.sampled_from(KINDS)), draw(st.booleans())
    shape = draw(st.sampled_from(["tumbling", "sliding", "count"]))
    options: dict[str, Any] = {
        "timestamp": "at",
        "key": "k",
        "aggregate": SUMS,
        "late_stream": "late",
        "output": OUTPUT,
    }
    make = {"tumbling": tumbling(millis(10), **options), "sliding": sliding(millis(10), millis(4), **options)}
    bolt = make.get(shape) or tumbling(count(2), **options)
    fields = [f"k {kind}, v double, at long", f"other string, at long, v double, k {kind}"]
    builder = TopologyBuilder("keys")
    for number, ddl in enumerate(fields[: 1 + both]):
        builder.set_spout(f"in{number}", InputSpout(ddl))
    declarer = builder.set_bolt("sums", bolt(results()), 3)
    for number in range(1 + both):
        declarer.grouping(f"in{number}", FieldsGrouping(("k",)))
    declared = builder.set_bolt(
        "again", tumbling(millis(10), timestamp="at", aggregate=agg.sum("n"), output="n long")(totals())
    )
    declared.grouping("sums", GlobalGrouping())
    key, value = st.none() | VALUES[kind], st.none() | st.floats(-5, 5)
    first = st.tuples(key, value, st.integers(0, 40))
    second = st.tuples(st.text(max_size=2), st.integers(0, 40), value, key)
    given_rows = {"in0": draw(st.lists(st.lists(first, max_size=12), min_size=2, max_size=3))}
    if both:
        given_rows["in1"] = [draw(st.lists(second, max_size=12)) for _ in given_rows["in0"]]
    return builder.build(), given_rows


@slow
@given(aggregating(), st.integers(0, 9))
def test_windows_over_columns_of_any_input_equal_windows_over_tuples(
    case: tuple[Topology, dict[str, Any]], seed: int
) -> None:
    topology, batches = case
    fast = outputs_and_acks(topology, batches, seed)
    with row_by_row():
        assert repr(fast) == repr(outputs_and_acks(topology, batches, seed))


def test_windows_over_columns_read_each_stream_by_its_own_columns() -> None:
    topology, _ = two_inputs()
    found = outputs_and_acks(topology, {"in0": [[(1, 2.0, 5), (2, 3.0, 6)]], "in1": [[("x", 7, 10.0, 1)]]})[-1]
    assert sorted(found["sums"]) == [("1", 10, 2, 12.0, 2.0, 10.0, 6.0), ("2", 10, 1, 3.0, 3.0, 3.0, 3.0)]


def two_inputs() -> tuple[Topology, TupleRows]:
    builder = TopologyBuilder("two")
    builder.set_spout("in0", InputSpout("k long, v double, at long"))
    builder.set_spout("in1", InputSpout("other string, at long, v double, k long"))
    bolt = tumbling(millis(10), timestamp="at", key="k", aggregate=SUMS, output=OUTPUT)(results())
    builder.set_bolt("sums", bolt).grouping("in0", FieldsGrouping(("k",))).grouping("in1", FieldsGrouping(("k",)))
    topology = builder.build()
    return topology, TupleRows(Chain(topology).wiring, "sums")


def test_aggregating_windows_over_columns_make_no_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a tuple was made")

    topology, _ = two_inputs()
    monkeypatch.setattr(TupleRows, "payloads", refuse)
    monkeypatch.setattr(stage_writer.StageWriter, "emit", none_of("in0", "in1"))
    found = outputs_and_acks(topology, {"in0": [[(1, 2.0, 5)]], "in1": [[("x", 7, 10.0, 1)]]})[-1]
    assert found["sums"] == [("1", 10, 2, 12.0, 2.0, 10.0, 6.0)]


def none_of(*spouts: str) -> Any:
    emit = stage_writer.StageWriter.emit

    def checked(self: Any, component: str, *rest: Any) -> None:
        assert component not in spouts, "a row was sent by itself"
        emit(self, component, *rest)

    return checked


def test_only_custom_groupings_route_row_by_row() -> None:
    by_row = [str(each) for each in GROUPINGS if spread_of(each, 3, Schema.parse(FIELDS)) is None]
    assert [name.partition("(")[0] for name in by_row] == ["custom"]


def test_a_grouping_that_inherits_the_fields_and_not_the_choice_routes_row_by_row() -> None:
    class ByLength(FieldsGrouping):
        def targets(self, tasks: int, schema: Schema) -> Any:
            return lambda values, state: (len(values[0]) % tasks,)

    class Fair(ShuffleGrouping):
        def targets(self, tasks: int, schema: Schema) -> Any:
            return lambda values, state: (0,)

    assert [spread_of(each, 3, Schema.parse(FIELDS)) for each in (ByLength(("word",)), Fair())] == [None, None]
    assert spread_of(NoneGrouping(), 3, Schema.parse(FIELDS)) is not None


_KEYED = st.tuples(st.sampled_from(["a", "b", "storm", None]), st.one_of(st.none(), st.integers(-2, 2)))
_KEYS = (("word",), ("n", "word"))
_CHOSEN = [ShuffleGrouping(), *(kind(names) for kind in (FieldsGrouping, PartialKeyGrouping) for names in _KEYS)]


@given(
    st.sampled_from(_CHOSEN),
    st.integers(1, 5),
    st.lists(st.lists(_KEYED, max_size=12), max_size=3),
    st.integers(0, 4),
)
def test_a_grouping_over_columns_chooses_the_tasks_that_it_chooses_row_by_row(
    grouping: Any, tasks: int, batches: list[Any], seed: int
) -> None:
    schema = Schema.parse("word string, n long")
    choose, state = grouping.targets(tasks, schema), grouping.start(tasks, seed)
    spread, together = spread_of(grouping, tasks, schema), grouping.start(tasks, seed)
    for rows in batches:
        columns = {
            "word": pa.array([row[0] for row in rows], pa.string()),
            "n": pa.array([row[1] for row in rows], pa.int64()),
        }
        (found,) = spread.choose(columns, len(rows), together)
        assert found.tolist() == [task for row in rows for task in choose(row, state)]
        assert together == state


@given(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=5), st.integers(0, 3))
def test_a_shuffle_among_fused_tasks_hands_out_rows_at_once_as_it_does_one_by_one(
    tasks: int, counts: list[int], seed: int
) -> None:
    grouping = ShuffleGrouping()
    choose, state = grouping.targets(tasks, Schema.parse("n long")), grouping.start(tasks, seed)
    rows = stage_writer._Rows([], [], [], [])
    route = stage_writer._TaskRoute("b", None, range(5, 5 + tasks), choose, [*state], False, None, rows, [])
    for many in counts:
        one_by_one: dict[int, list[int]] = {}
        for row in range(many):
            one_by_one.setdefault(choose((row,), state)[0], []).append(row)
        assert {task: list(range(many))[at] for task, at in route.parts(many)} == one_by_one
        assert route.state == state


def test_the_column_of_task_and_clock_holds_the_largest_task_and_a_far_future_clock() -> None:
    clock = 70_000_000_000_000  # in the year 4188
    tasks = pa.array([task << CLOCK_BITS | clock for task in (0, 32_768, MOST_TASKS)], pa.int64())
    now, ((columns, found),) = clocked([pa.record_batch({"c0": [1, 2, 3], TASK_AND_CLOCK: tasks})])
    assert (columns.schema.names, found.tolist(), now) == (["c0"], [0, 32_768, MOST_TASKS], clock)


def test_rows_without_a_clock_have_the_clock_of_the_driver_and_are_refused_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {CLOCK_PROPERTY: "1700000000000"}
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(getLocalProperty=said.get))
    column = pa.record_batch({"c0": [1, 2], TASK_AND_CLOCK: pa.array([task << CLOCK_BITS for task in (3, 5)])})
    rows = [ExchangeRow(7, "tick", "", 0, 0, now, None, 0, None) for now in (0, 9)]
    now, ((_, tasks),) = clocked([column[:0], column])
    assert (tasks.tolist(), now) == ([3, 5], 1_700_000_000_000)
    assert [row.now for row in rows_of(map(frame_of, record_batches(rows)))] == [1_700_000_000_000, 9]
    said.clear()
    with pytest.raises(WindowingError, match="clock of the batch is not known"):
        clocked([column])
    assert clocked([column[:0]])[0] is None
    with pytest.raises(WindowingError, match="clock of the batch is not known"):
        rows_of(map(frame_of, record_batches(rows)))
    assert [row.now for row in rows_of(map(frame_of, record_batches(rows[1:])))] == [9], (
        "a DataFrame of one's own carries its clock"
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.float64()), [NAN, None, -0.0, math.inf]),
        (pa.map_(pa.string(), pa.float32()), [("a", NAN), ("b", None), ("c", 1.5)]),
        (pa.map_(pa.float64(), pa.int64()), [(NAN, 1)]),
        (pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float32()))]), {"x": NAN, "y": [NAN, None]}),
        (
            pa.list_(pa.struct([("x", pa.float64()), ("n", pa.int64())])),
            [{"x": NAN, "n": 1}, None, {"x": None, "n": None}],
        ),
        (pa.map_(pa.string(), pa.list_(pa.float64())), [("a", [NAN, None]), ("b", None)]),
        (pa.map_(pa.list_(pa.int64()), pa.string()), [([1], "a"), ([1], "b")]),
        (pa.list_(pa.date32()), [6_585_000, None]),
        (pa.struct([("t", pa.timestamp("us", "UTC"))]), {"t": 1 << 60}),
    ],
)
def test_a_nested_column_is_unchanged_on_sparks_way_from_pandas(kind: pa.DataType, value: Any) -> None:
    column = pa.array([value, None], kind)
    convert = _create_converter_from_pandas(
        from_arrow_type(kind), timezone="UTC", error_on_duplicated_field_names=False
    )
    for table in (pa.table({"n": column}), pa.table({"n": column}).slice(1), pa.table({"n": column}).slice(2)):
        series = convert(frame_of(table)["n"])
        assert hasattr(series.array, "__arrow_array__"), "Spark makes no mask then"
        sent = pa.Array.from_pandas(series, mask=None, type=column.type)
        assert f"{sent}" == f"{table.column('n').combine_chunks()}"


# -- sizes -----------------------------------------------------------------------------------------------------------------------


def test_what_spark_gets_as_one_piece_is_bounded_in_rows_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.columnar.rows.PART_BYTES", 100_000)
    texts = ["x" * 3_000] * 100 + ["y" * 250_000] + ["z"] * 60_000 + [None]
    table = pa.table({"text": texts, "lists": [[text] for text in texts], "number": range(len(texts))})
    frames = list(map(frame_of, cut(table, _FRAME_ROWS)))
    packets = list(RowNumbering(0, 1).packets(7, "rows", "in", table))
    parts = list(cut(table))
    assert max(map(len, frames)) <= 20_000
    assert max(packet.value for packet in packets) <= 50_000
    for tables in (parts, [decode_table(packet.data) for packet in packets]):
        assert pa.concat_tables(tables).equals(table)
        assert [part.num_rows for part in tables if part.nbytes > 100_000] == [1]
    assert [each for frame in frames for each in frame["text"].tolist()] == [*texts[:-1], frames[-1]["text"].iloc[-1]]
    assert list(cut(table.slice(0, 0))) == []
