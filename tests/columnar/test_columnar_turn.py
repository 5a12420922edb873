"""Columnar bolts in a turn of a Spark task and in a local run: the same output as bolts over rows, and on Spark no row objects."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tests.execution.test_idle_keys import loads_counted
from tests.execution.test_turn import OUTPUT, Task, batches_of, rows_of
from windowing import count, millis, windowed_bolt
from windowing.columnar import Keys, Timestamps
from windowing.columnar.bolts import arrow_schema
from windowing.errors import BoltError, ConfigError, StaleWindowError
from windowing.local import run_local
from windowing.local.cluster import run_topology
from windowing.schema.rows import rows_of as rows_returned
from windowing.schema.types import Schema
from windowing.spark.context import execution_context
from windowing.spark.output import METRICS, Encoder, Layout
from windowing.spark.rows import NamedRows
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt_of
from windowing.windows import aggregate as agg

SHAPES: list[dict[str, Any]] = [
    {"length": millis(20), "slide": millis(5), "timestamp": "ts"},
    {"length": millis(10), "slide": millis(10), "timestamp": "ts", "key": "key"},
    {"length": count(4), "slide": count(3), "timestamp": "ts"},
    {"length": count(3), "slide": millis(5), "timestamp": "ts", "key": "key"},
    {"length": millis(15), "slide": count(2), "timestamp": "ts"},
    {"length": millis(20), "slide": millis(5), "timestamp": "ts", "lag": millis(5), "lateness": "window", "key": "key"},
    {"length": count(3), "slide": count(2), "timestamp": "ts", "key": ("key", "v"), "key_ttl": millis(15)},
    {"length": count(4), "slide": count(2)},
]
SHAPE = pytest.mark.parametrize("shape", range(len(SHAPES)))
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 25), st.sampled_from("ab")), max_size=6), min_size=1, max_size=5)


def by_rows(window: Any) -> Any:
    views = [[row.id for row in rows] for rows in (window.get(), window.get_new(), window.get_expired())]
    return None if window.key is None else str(window.key), window.end_timestamp, *views, sum(r.v for r in window.get())


def by_arrow(window: Any) -> Any:
    views = [table.column("id").to_pylist() for table in (window.get(), window.get_new(), window.get_expired())]
    key = None if window.key is None else str(window.key)
    return key, window.end_timestamp, *views, sum(window.column("v").to_pylist())


def by_numpy(window: Any) -> Any:
    views = [found["id"].tolist() for found in (window.get(), window.get_new(), window.get_expired())]
    key = None if window.key is None else str(window.key)
    return key, window.end_timestamp, *views, sum(window.column("v").tolist())


FORMS: dict[str | None, Any] = {None: by_rows, "arrow": by_arrow, "numpy": by_numpy}


def bolt_over(form: str | None, shape: int) -> Any:
    options = {"name": "probe", "output": OUTPUT, "columnar": form, **SHAPES[shape]}
    if "timestamp" in options:
        options["late_stream"] = "late"
    return bolt_of(windowed_bolt(**options)(lambda window: FORMS[form](window)))


def refuse_rows(*_: Any) -> Any:
    raise AssertionError("a row was made")


@SHAPE
@settings(max_examples=settings().max_examples // 3)
@given(drawn=BATCHES)
def test_a_columnar_bolt_emits_the_same_rows_and_metrics_in_a_turn_as_a_row_bolt(shape, drawn):
    tasks = {form: Task(bolt_over(form, shape)) for form in FORMS}
    batches = [*batches_of(drawn), []]
    for number, batch in enumerate(batches):
        drain = number == len(batches) - 1
        results = {form: task.run(batch, drain, now_ms=number) for form, task in tasks.items()}
        assert results["arrow"].rows == results["numpy"].rows == results[None].rows
        assert results["arrow"].metrics == results[None].metrics
        assert len(tasks["arrow"].chunks) == len(tasks[None].chunks)


@pytest.mark.parametrize("form", ["arrow", "numpy"])
def test_a_turn_of_a_columnar_bolt_loads_only_the_keys_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    task = Task(bolt_over(form, 1))  # tumbling by 10 ms
    assert task.run(rows_of([(1, f"k{key}") for key in range(1000)], 0)).rows == []
    with loads_counted(monkeypatch) as loaded:
        assert task.run(rows_of([(2, "k7"), (3, "new"), (3, "k9")], 1000)).rows == []
    assert loaded == ["k7", "k9"]
    fired = task.run(rows_of([(11, "k5")], 2000)).rows
    assert [row["key"] for _, row in fired] == [*(f"k{key}" for key in range(1000)), "new"]
    assert {row["key"]: row["ids"] for _, row in fired if len(row["ids"]) > 1} == {"k7": [7, 1000], "k9": [9, 1002]}
    assert [row["key"] for _, row in task.run([], drain=True).rows] == ["k5"]


@pytest.mark.parametrize("aggregate", [None, {"n": agg.count(), "s": agg.sum("v")}])
@pytest.mark.parametrize("key", [None, "key"])
def test_a_columnar_or_aggregating_bolt_on_spark_creates_no_row_objects(monkeypatch, aggregate, key):
    form = "numpy" if aggregate is None else None

    @windowed_bolt(
        millis(10), millis(5), timestamp="ts", key=key, columnar=form, aggregate=aggregate, output="n long, s double"
    )
    def total(window):
        if aggregate is not None:
            return window.aggregate["n"], window.aggregate["s"]
        return len(window), float(window.column("v").sum())

    rows = [{"id": n, "ts": 2 * n, "key": "ab"[n % 2], "v": float(n)} for n in range(20)]
    task = Task(bolt_of(total))
    monkeypatch.setattr(NamedRows, "payloads", refuse_rows)
    if aggregate is not None:  # nor a key or a timestamp of a tuple
        monkeypatch.setattr(Keys, "__iter__", refuse_rows)
        monkeypatch.setattr(Timestamps, "__iter__", refuse_rows)
    found = []
    for start in (0, 7, 14):
        found += task.run(rows[start : start + 7]).rows
    found += task.run([], drain=True).rows
    windows = [
        [row["v"] for row in rows if end - 10 < row["ts"] <= end and row["key"] in keys]
        for end in range(0, 50, 5)
        for keys in (("a", "b") if key else ("ab",))
    ]
    expected = [(len(window), sum(window)) for window in windows if window]
    assert sorted((row["n"], row["s"]) for _, row in found) == sorted(expected)


@pytest.mark.parametrize("form", ["arrow", "numpy"])
@pytest.mark.parametrize("shape", range(len(SHAPES) - 1))  # the last one uses processing time
def test_a_columnar_bolt_emits_the_same_rows_in_a_local_run_as_a_row_bolt(form, shape):
    rows = [{"id": n, "ts": (n * 7) % 40 // 2 + n, "key": "ab"[n % 3 == 0], "v": n * 0.5} for n in range(30)]
    results = [run_local(bolt_over(each, shape), [rows[:11], rows[11:]]) for each in (None, form)]
    assert results[0].rows == results[1].rows
    assert results[0].rows


def test_a_window_kept_after_execute_is_stale_in_a_local_run():
    kept: list[Any] = []

    @windowed_bolt(count(2), count(2), columnar="arrow", output="n long")
    def keep(window):
        kept.append(window)
        return window.column("v").length()

    assert run_local(keep, [[{"v": 1}, {"v": 2}]]).rows == {"default": [(2,)]}
    with pytest.raises(Exception, match="after its execute had returned"):
        kept[0].get()


def test_reading_a_missing_column_fails_the_bolt_and_names_the_column():
    @windowed_bolt(count(1), count(1), columnar="arrow", output="n long")
    def sum_of(window):
        return window.column("delay").length()

    with pytest.raises(BoltError, match="has no column 'delay', it has 'v'"):
        run_local(sum_of, [[{"v": 1}]])


AGGREGATE = {"n": agg.count(), "total": agg.sum("v"), "mean": agg.mean("v"), "worst": agg.max("id")}
LATE = "id long, ts long, key string, v double, reason string"
RESULTS = "key string, ends long, n long, total double, mean double, worst long"


def struct(ddl: str) -> StructType:
    """A schema without a session."""
    made = StructType()
    for name, kind in map(str.split, ddl.split(",")):
        made.add(name, {"int": "integer"}.get(kind, kind))
    return made


def one_by_one(window: Any) -> Any:
    found = window.aggregate
    return window.key, window.end_timestamp, found["n"], found["total"], found["mean"], found["worst"]


def as_table(window: Any) -> Any:
    found = window.aggregate
    if isinstance(found, dict):
        found = pa.table(found)
    return found.append_column("ends", pa.repeat(window.end_timestamp, len(found)))


def of_all_keys(form: str | None, length: int, slide: int) -> Any:
    options = {"timestamp": "ts", "key": "key", "aggregate": AGGREGATE, "late_stream": "late", "output": RESULTS}
    function = one_by_one if form is None else as_table
    return bolt_of(
        windowed_bolt(millis(length), millis(slide), name="probe", columnar=form, **options)(
            lambda window: function(window)
        )
    )


@pytest.mark.parametrize("shape", [(10, 10), (20, 5), (6, 4)])
@settings(max_examples=settings().max_examples // 3)
@given(drawn=BATCHES)
def test_a_table_of_all_keys_aggregates_equals_the_aggregates_per_key(shape, drawn):
    """Compares rows, order of keys, late rows and metrics, also where a turn passes tables on (Spark), and in a local run."""
    forms = {form: of_all_keys(form, *shape) for form in (None, "arrow", "numpy")}
    tasks = {form: Task(bolt) for form, bolt in forms.items()}
    through, expected = Task(forms["arrow"]), []
    layout = Layout({"default": struct(RESULTS), "late": struct(LATE)})
    encoder = Encoder("probe", layout)
    batches = [*batches_of(drawn), []]
    for number, batch in enumerate(batches):
        drain = number == len(batches) - 1
        results = {form: task.run(batch, drain, now_ms=number) for form, task in tasks.items()}
        assert results["arrow"].rows == results["numpy"].rows == results[None].rows
        assert results["arrow"].metrics == results[None].metrics
        expected += [tuple(row.values()) for stream, row in results[None].rows if stream == "default"]
        whole = through.run(batch, drain, now_ms=number, fitted=encoder.fitted)
        assert all(type(values) is pa.Table for stream, values in whole.rows if stream == "default")
        plain = [(stream, tuple(row.values())) for stream, row in results[None].rows]
        told = [(stream, values if stream == "default" else tuple(values.values())) for stream, values in whole.rows]
        assert encoder.table(told, {}) == encoder.table(plain, {})
    for bolt in forms.values():
        assert run_local(bolt, batches)["default"] == expected


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (
            lambda t: t.rename_columns(["key", "m"]),
            "got a table of the columns 'key', 'm'; rename, add or drop columns",
        ),
        (lambda t: t.drop_columns(["n"])[:0], "(key string, n int), got a table of the columns 'key';"),
        (lambda t: t.append_column("n", pa.array([99])), "got a table of the columns 'key', 'n', 'n';"),
        (
            lambda t: pa.table({"key": t["key"], "n": ["x"] * len(t)}),
            "field 'n' of stream 'default' is declared int: got 'x'",
        ),
        (lambda t: pa.table({"key": t["key"], "n": [2**40] * len(t)}), "got 1099511627776, wanted a whole number from"),
    ],
)
def test_a_returned_table_that_does_not_match_the_output_schema_is_refused(made, problem):
    @windowed_bolt(
        millis(10), millis(10), timestamp="ts", key="key", columnar="arrow", aggregate={"n": agg.count()},
        output="key string, n int",
    )  # fmt: skip
    def wrong(window):
        return made(window.aggregate)

    rows = [{"id": 1, "ts": 1, "key": "a", "v": 0.5}]
    encoder = Encoder("wrong", Layout({"default": struct("key string, n int")}))
    for run in (
        lambda: Task(bolt_of(wrong)).run(rows, True, fitted=encoder.fitted),
        lambda: run_local(wrong, [rows]),
    ):
        with pytest.raises(BoltError, match=re.escape(problem)):
            run()


def test_rows_are_counted_by_stream_without_those_of_a_stream_that_is_not_declared():
    encoder = Encoder("b", Layout({"default": struct("n long"), "other": struct("n long")}))
    table = encoder.fitted(pa.table({"n": [1, 2]}))
    output, counts = encoder.table([("default", (3,)), ("(late)", (4, "late")), ("default", table)], {"fired": 7})
    assert counts == {"default": 3}
    streams, values, metrics = (output.column(name).to_pylist() for name in ("_stream", "_0_0", "_metric"))
    assert values[:3] == [3, 1, 2]
    assert values[3:] == [None] * len(METRICS)
    assert streams == [0] * 3 + [-1 - number for number in range(len(METRICS))]
    assert metrics == [None] * 3 + [7 if name == "fired" else None for name in METRICS]


BY_KIND = {
    "string": pa.array(["a", None, ""], pa.large_string()),
    "array<double>": pa.array([[0.5, None, float("nan")], None, []]),
    "struct<x: int, days: array<date>>": pa.array(
        [{"x": 1, "days": [date(2024, 1, 1)]}, None, {"x": None, "days": None}],
        pa.struct([("x", pa.int32()), ("days", pa.list_(pa.date32()))]),
    ),
}


def encoder_of(fields: str) -> Encoder:
    return Encoder("b", Layout({"default": from_arrow_schema(arrow_schema(Schema.parse(fields)))}))


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_returned_column_of_its_declared_type_is_not_checked_by_value_and_gives_the_same_output(kind: str) -> None:
    fields, table = f"v {kind}, n long", pa.table({"v": BY_KIND[kind], "n": [1, 2, 3]})
    encoder = encoder_of(fields)
    at_once = encoder.fitted(table)
    rows = rows_returned(table, Schema.parse(fields), "default")
    assert at_once is not None
    outputs = [
        encoder.table(emitted, {})[0] for emitted in ([("default", at_once)], [("default", row) for row in rows])
    ]
    assert outputs[0].schema == outputs[1].schema
    assert repr(outputs[0].to_pylist()) == repr(outputs[1].to_pylist())


def test_a_returned_column_with_a_date_that_python_cannot_hold_is_checked_by_value() -> None:
    days = pa.array([0, None, 6_585_227], pa.int32()).cast(pa.date32())
    assert encoder_of("v date").fitted(pa.table({"v": days})) is None
    assert encoder_of("v date").fitted(pa.table({"v": days[:2]})) is not None
    inside = pa.ListArray.from_arrays([0, 1, 2, 3], days)
    assert encoder_of("v array<date>").fitted(pa.table({"v": inside})) is None
    assert encoder_of("v array<date>").fitted(pa.table({"v": inside[:2]})) is not None


def test_a_returned_column_of_decimals_with_more_digits_than_their_type_is_checked_by_value() -> None:
    wide = pa.array([Decimal("123456789.12"), Decimal("1.25")], pa.decimal128(20, 2)).cast(
        pa.decimal128(5, 2), safe=False
    )
    assert encoder_of("v decimal(5,2)").fitted(pa.table({"v": wide})) is None
    assert encoder_of("v decimal(5,2)").fitted(pa.table({"v": wide[1:]})) is not None
    lists, structs = pa.ListArray.from_arrays([0, 1, 2], wide), pa.StructArray.from_arrays([wide], ["d"])
    for fields, column in (("v array<decimal(5,2)>", lists), ("v struct<d:decimal(5,2)>", structs)):
        assert encoder_of(fields).fitted(pa.table({"v": column})) is None
        assert encoder_of(fields).fitted(pa.table({"v": column[1:]})) is not None


def test_a_returned_table_is_copied_before_the_bolt_reuses_its_buffer():
    room = np.zeros(2)
    encoder = Encoder("reuses", Layout({"default": struct("n double")}))
    for returned in (lambda: pa.table({"n": room}), lambda: pa.record_batch({"n": room})):
        kept = []
        for number in (1.0, 2.0, 3.0):
            room[:] = number
            kept.append(encoder.fitted(returned()))
        assert [table.column("_0_0").to_pylist() for table in kept] == [[1.0] * 2, [2.0] * 2, [3.0] * 2]


def test_a_returned_table_is_cast_by_column_only_if_every_value_fits_the_declared_type():
    encoder = Encoder("b", Layout({"default": struct("n long, v double, s string")}))
    narrow = pa.table({"s": pa.nulls(2), "v": pa.array([1, 2], pa.float32()), "n": pa.array([1, 2], pa.int8())})
    assert encoder.fitted(narrow).drop_columns(["_stream"]).to_pydict() == {
        "_0_0": [1, 2], "_0_1": [1.0, 2.0], "_0_2": [None, None]
    }  # fmt: skip
    assert encoder.fitted(narrow.to_batches()[0]) == encoder.fitted(narrow)
    for name, values in (("n", [1.0, 2.0]), ("v", [1, 2]), ("s", [1, 2])):
        at = narrow.column_names.index(name)
        assert encoder.fitted(narrow.set_column(at, name, pa.array(values))) is None
    assert encoder.fitted(narrow.append_column("n", pa.array([1, 2]))) is None
    small = Encoder("b", Layout({"default": struct("n int")}))
    assert small.fitted(pa.table({"n": [5]})) is not None
    assert small.fitted(pa.table({"n": [2**31]})) is None
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    assert Encoder("b", Layout({"default": struct("s string")})).fitted(pa.table({"s": text})) is None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", [datetime(2024, 6, 1, 12, tzinfo=UTC), None]),
        ("date", [date(2024, 2, 29), None]),
        ("decimal", [Decimal(125), None]),
        ("binary", [b"\xff", None]),
    ],
)
def test_a_returned_column_of_the_declared_flat_type_is_taken_as_it_is_with_the_values_of_its_rows(kind, values):
    encoder = Encoder("b", Layout({"default": struct(f"x {kind}")}))
    as_rows, counts = encoder.table([("default", (value,)) for value in values], {})
    (column,) = (each for each in as_rows.column_names if each.startswith("_0_"))
    declared = as_rows.schema.field(column).type
    table = encoder.fitted(pa.table({"x": pa.array(values, declared)}))
    assert table is not None
    assert encoder.table([("default", table)], {}) == (as_rows, counts)
    assert encoder.fitted(pa.table({"x": pa.array([[1]])})) is None


@pytest.mark.parametrize("way", ["yields", "lists", "emits"])
def test_a_window_can_emit_several_tables_and_rows(way):
    options: dict[str, Any] = {
        "timestamp": "ts",
        "columnar": "arrow",
        "aggregate": {"n": agg.count()},
        "output": "n long",
    }

    def yields(window):
        yield window.aggregate
        yield (7,)
        yield window.aggregate.to_batches()[0]

    def emits(window, collector):
        for each in yields(window):
            collector.emit(each)

    ways = {"yields": yields, "lists": lambda window: list(yields(window)), "emits": emits}
    bolt = windowed_bolt(millis(10), millis(10), name="parts", **options)(ways[way])
    assert run_local(bolt, [[{"ts": 1}, {"ts": 2}]])["default"] == [(2,), (7,), (2,)]


def test_a_window_of_all_keys_has_aggregates_but_no_tuples_and_no_key():
    seen = []

    @windowed_bolt(
        millis(10), millis(10), timestamp="ts", key=("key", "id"), columnar="numpy", aggregate={"n": agg.count()},
        output="n long",
    )  # fmt: skip
    def look(window):
        seen.append(
            (window.key, len(window), window.start_timestamp, {k: v.tolist() for k, v in window.aggregate.items()})
        )
        with pytest.raises(TypeError, match=r"keeps no tuples: use window\.aggregate"):
            window.get()
        kept.append(window)

    kept: list[Any] = []
    rows = [{"id": at % 2, "ts": 3, "key": "ab"[at // 2 % 2]} for at in range(5)]
    assert run_local(look, [rows])["default"] == []
    assert seen == [(None, 5, 0, {"key": ["a", "a", "b", "b"], "id": [0, 1, 0, 1], "n": [2, 1, 1, 1]})]
    with pytest.raises(StaleWindowError):
        kept[0].aggregate  # noqa: B018
    with pytest.raises(StaleWindowError):
        len(kept[0])


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (lambda acc: "x" if acc > 1 else 1, "1"),
        (lambda acc: 2**64, "18446744073709551616"),
        (lambda acc: {str(acc): acc}, "{'2': 2}"),
        (lambda acc: (acc, "x"), "(2, 'x')"),
        (lambda acc: "x" if acc > 1 else b"x", "b'x'"),
    ],
)
def test_aggregate_results_that_do_not_fit_one_column_fail_the_bolt_and_name_the_column(result, shown):
    odd = agg.fold(lambda: 0, lambda acc, v: acc + 1, lambda a, b: a + b, result)

    @windowed_bolt(
        millis(10), millis(10), timestamp="ts", key="key", columnar="arrow", aggregate={"odd": odd}, output="n long"
    )
    def look(window):
        return window.aggregate

    with pytest.raises(
        BoltError, match=re.escape(f"column 'odd' of window.aggregate cannot hold {shown}, wanted numbers")
    ):
        run_local(look, [[{"ts": 1, "key": key} for key in "aab"]])


def test_aggregates_as_numpy_arrays_keep_integers_exact():
    """Also in a column with a None: a float cannot hold 2**53 + 1."""
    seen = []

    @windowed_bolt(
        millis(10),
        millis(10),
        timestamp="ts",
        key="key",
        columnar="numpy",
        aggregate={"s": agg.sum("v")},
        output="n long",
    )
    def look(window):
        seen.append({name: array.tolist() for name, array in window.aggregate.items()})

    run_local(look, [[{"ts": 1, "key": key, "v": v} for key, v in ((2**53 + 1, 2**53 + 1), (None, None), (2**53, 5))]])
    assert seen == [{"key": [2**53 + 1, None, 2**53], "s": [2**53 + 1, None, 5]}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"aggregate": agg.count()}, "makes a column of aggregate=, which needs a name"),
        ({"slide": count(3)}, "got length=Duration(ms=10), slide=Count(3)"),
        ({"length": count(3), "slide": count(3)}, "give Durations, or leave out columnar="),
        ({"key": ("k", "n")}, "two columns named 'n'"),
    ],
)
def test_aggregates_that_cannot_form_a_table_are_refused_at_declaration(options, problem):
    given = {"length": millis(10), "slide": millis(10), "timestamp": "ts", "aggregate": {"n": agg.count()}} | options
    with pytest.raises(ConfigError, match=re.escape(problem)):
        windowed_bolt(**given, columnar="arrow", output="n long")(len)


def test_a_table_of_aggregates_is_refused_where_tuples_are_acked():
    @windowed_bolt(
        millis(10), millis(10), timestamp="ts", columnar="arrow", aggregate={"n": agg.count()}, output="n long"
    )
    def counted(window):
        return window.aggregate

    def build(**settings: Any) -> Any:
        builder = TopologyBuilder().configure(**settings)
        builder.set_spout("source", InputSpout("ts long"))
        builder.set_bolt("counted", counted).global_grouping("source")
        return builder.build()

    rows = {"source": [[(at,) for at in range(1, 25)]]}
    assert run_topology(build(acker_executors=0), rows)["counted"] == [(10,), (10,), (4,)]
    with pytest.raises(
        ConfigError, match="'counted' is handed the aggregates of all keys in columns, and keeps no tuples"
    ):
        run_topology(build(acker_executors=1), rows)
    execution_context(build())
    with pytest.raises(ConfigError, match="'counted' is handed the aggregates of all keys in columns"):
        execution_context(build(), acks={("source", "default"): 0})


def test_on_error_fail_or_dead_letter_is_refused_with_columnar():
    for on_error in ("fail", "dead_letter"):
        with pytest.raises(ConfigError, match="lists the tuples of a window one by one"):
            windowed_bolt(count(1), columnar="arrow", on_error=on_error, output="n long")(len)
