"""Values that Spark can hold and Python cannot: dates outside the years 1 to 9999, text that is not UTF-8. None of them ends a
query.
"""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from tests.execution.chains import Chain
from windowing import count, millis
from windowing.columnar.rows import encode_table
from windowing.errors import BoltError, FailedException, UnreadableValueError, WindowingError
from windowing.schema.hashing import key_hash
from windowing.schema.tuples import Fields
from windowing.spark.exchange import ExchangeRow, largest_of, timestamps_of
from windowing.spark.operator import Stored
from windowing.spark.rows import NamedRows
from windowing.spark.unreadable import (
    Unreadable,
    arrow_column,
    arrow_values,
    held_record_type,
    python_values,
    tuples_in,
    unreadable_in,
)
from windowing.spark.window_turn import SIDE_STREAM, TaskStage, TurnResult
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Bolt, InputSpout
from windowing.topology.decorators import bolt, bolt_of, windowed_bolt
from windowing.windows import aggregate as agg

YEAR_10000 = 2_932_897
BEFORE_CHRIST = -735_678  # 44 BC


def dates(*days: int | None) -> pa.Array:
    return pa.array(days, pa.int32()).view(pa.date32())


def texts(*values: bytes | None) -> pa.Array:
    found = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(found), found.buffers())


def raw(column: Any) -> list[Any]:
    """Return the values of a column in a form that Python can hold."""
    kind = column.type
    return column.cast(pa.binary() if pa.types.is_string(kind) else pa.int32()).to_pylist()


DAY, WORD = dates(YEAR_10000, 5, BEFORE_CHRIST, None), texts(b"caf\xe9", b"tea", None, b"x")


def test_values_that_python_cannot_hold_are_written_back_unchanged() -> None:
    for column in (DAY, WORD, pa.chunked_array([DAY, DAY])):
        found = python_values(column, "f")
        assert raw(arrow_column("b", "default", pa.field("f", column.type), found)) == raw(column)
    assert [type(each) is Unreadable for each in python_values(DAY, "day")] == [True, False, True, False]
    instant = pa.array([253_402_300_800], pa.timestamp("s"))
    assert [repr(python_values(column, "f")[0]) for column in (DAY, instant, WORD)] == [
        "date 10000-01-01",
        "timestamp 10000-01-01 00:00:00",
        "text b'caf\\xe9'",
    ]


def test_only_rows_with_such_a_value_are_of_another_class() -> None:
    bad, good, *_ = tuples_in([DAY], ["day"])
    assert type(good) is tuple
    with pytest.raises(UnreadableValueError, match="field 'day' holds date 10000-01-01"):
        bad[0]


def test_a_row_gives_all_its_other_values() -> None:
    row = held_record_type(("n", "day"))._make([1, python_values(DAY, "day")[0]])
    assert row.n == row["n"] == row[0] == 1
    assert len(row) == 2
    for ask in (lambda: row.day, lambda: row["day"], lambda: row[1], lambda: list(row), row._asdict, lambda: row[:][1]):
        with pytest.raises(
            UnreadableValueError, match=r"field 'day' holds date 10000-01-01, which Python cannot; filter"
        ):
            ask()


def test_unreadable_values_are_found_in_columns() -> None:
    micros = pa.array([253_402_300_800_000_000, 0, -62_135_596_800_000_001], pa.int64())
    stamps = micros.view(pa.timestamp("us", "UTC"))
    for column in (DAY, WORD, stamps, pa.StructArray.from_arrays([DAY], ["d"]), pa.chunked_array([WORD])):
        wanted = [type(each) is Unreadable for each in python_values(column, "f")]
        assert list(unreadable_in(column)) == wanted
        assert any(wanted)
    for column in (DAY[1:2], WORD[1:], pa.array([1]), pa.nulls(2), pa.array([], pa.date32()), dates(None)):
        assert unreadable_in(column) is None
    assert timestamps_of(stamps).to_pylist() == [None, 0, None]
    assert timestamps_of(DAY).to_pylist() == [None, 432_000_000, None, None]


@pytest.mark.parametrize(("other", "name"), [(b"b", "b"), (b"\xff", "b'\\xff'")])
def test_a_source_of_bytes_has_one_name_also_beside_bytes_that_are_no_text(other: bytes, name: str) -> None:
    assert largest_of(pa.array([1, 5]), pa.array([b"a", other]), 0, None) == {"a": 1, name: 5}


def test_an_unreadable_key_has_the_hash_of_spark() -> None:
    day, word = python_values(dates(YEAR_10000), "d")[0], python_values(texts(b"caf\xe9"), "w")[0]
    assert key_hash(("date",), (day,)) == key_hash(("int",), (YEAR_10000,))
    assert key_hash(("string",), (word,)) == key_hash(("binary",), (b"caf\xe9",))


# -- windows of one bolt -------------------------------------------------------------------------------------------------

COLUMNS = ("ts", "k", "v", "day", "word")


class Task:
    """A task with its store; each batch is (ts, k, v, day in days since 1970, word in bytes)."""

    def __init__(self, declared: Any) -> None:
        self.stage = TaskStage(declared, NamedRows(COLUMNS))
        self.metadata: bytes | None = None
        self.chunks: dict[bytes, bytes] = {}

    def run(self, *rows: tuple[int, bytes, int, int, bytes], drain: bool = False) -> TurnResult:
        ts, k, v, day, word = zip(*rows, strict=True) if rows else ((),) * 5
        table = pa.table(
            {
                "ts": pa.array(ts, pa.int64()),
                "k": texts(*k),
                "v": pa.array(v, pa.int64()),
                "day": dates(*day),
                "word": texts(*word),
            }
        ).append_column("__ts", pa.array(ts, pa.int64()))
        sent = [ExchangeRow(0, "rows", "default", 0, 0, 0, None, len(rows), encode_table(table))] if rows else []
        sent += [ExchangeRow(0, "max", "default", 0, 1, 0, None, max(ts), None)] if rows else []
        sent += [ExchangeRow(0, "drain", "", 0, 0, 0, None, 0, None)] if drain else []
        found = self.stage.turn(0, Stored(self.metadata, self.chunks.get), sent)
        self.metadata = found.metadata
        for key in found.drops:
            del self.chunks[key]
        self.chunks.update(found.puts)
        return found


def windows(execute: Any, **options: Any) -> Task:
    given = {
        "length": millis(10),
        "slide": millis(10),
        "timestamp": "ts",
        "late_stream": "late",
        "output": "total long",
    }
    return Task(bolt_of(windowed_bolt(name="probe", **given | options)(execute)))


def sides(found: TurnResult) -> list[Any]:
    return [(values[2], values[-1]) for stream, values in found.rows if stream in ("late", SIDE_STREAM)]


def totals(found: TurnResult) -> list[Any]:
    return [values[0] for stream, values in found.rows if stream == "default"]


BAD = (2, b"a", 2, YEAR_10000, b"caf\xe9")
GOOD = (1, b"a", 1, 5, b"tea")


@pytest.mark.parametrize("columnar", [None, "arrow", "numpy"])
def test_an_unread_column_with_such_a_value_does_no_harm(columnar: str | None) -> None:
    task = windows(lambda window: sum(int(str(v)) for v in window.column("v")), columnar=columnar)
    first, last = task.run(GOOD, BAD), task.run((3, b"a", 4, 5, b""), drain=True)
    assert totals(first) + totals(last) == [7]
    assert sides(first) == sides(last) == []


@pytest.mark.parametrize(
    ("ask", "columnar"),
    [
        (lambda window: sum(row.v for row in window if row.day is not None), None),
        (lambda window: sum(row["v"] for row in window if len(row["word"])), None),
        (lambda window: sum(v for _, _, v, _, _ in window), None),
        (lambda window: sum(row._asdict()["v"] for row in window), None),
        (lambda window: sum(v for v in window.column("v") if window.column("day")), None),
        (lambda window: sum(row["v"] for row in window.get().to_pylist()), "arrow"),
        (lambda window: int(window.get()["v"].sum()), "numpy"),
    ],
)
def test_a_row_is_invalid_if_the_bolt_reads_such_a_value_of_it(ask: Any, columnar: str | None) -> None:
    task = windows(ask, columnar=columnar, length=millis(20))
    first = task.run(GOOD, BAD)
    second = task.run((15, b"b", 4, 5, b"x"), drain=True)
    assert totals(first) == []
    assert totals(second) == [1, 5, 4]
    assert sides(second) == [(2, "invalid")]  # once, although two windows contain it
    assert second.metrics["late"] == 1
    encoded = next(values for stream, values in second.rows if stream == "late")
    assert raw(arrow_column("b", "late", pa.field("day", pa.date32()), [encoded[3]])) == [YEAR_10000]


def test_such_a_row_does_no_harm_to_a_columnar_window_that_does_not_contain_it() -> None:
    asked: list[int] = []
    task = windows(lambda window: asked.append(len(window)) or int(window.get()["v"].sum()), columnar="numpy")
    late = (12, b"a", 8, 5, b"caf\xe9")
    first, second = task.run(GOOD, late, (13, b"a", 4, 5, b"x")), task.run((25, b"a", 2, 5, b"y"), drain=True)
    assert asked == [1, 2, 1, 1], "only the window with the row is shown twice"
    assert (totals(first), sides(first)) == ([1], [])
    assert (totals(second), sides(second)) == ([4, 2], [(8, "invalid")])


def test_a_row_that_is_invalid_because_the_bolt_read_it_is_acked_once() -> None:
    task = windows(lambda window: sum(row.v for row in window if row.day), length=millis(20))
    turns = task.run(GOOD, BAD), task.run((15, b"b", 4, 5, b"x")), task.run(drain=True)
    done = [each.done[0] for each in turns]
    assert sum(each.late.get("invalid", 0) for each in done) == 1
    assert (sum(each.executed for each in done), sum(each.acked for each in done)) == (3, 3)


def test_only_the_rows_whose_value_was_read_are_invalid() -> None:
    odd_date, odd_word = (2, b"a", 2, YEAR_10000, b"b"), (3, b"a", 4, 5, b"\xe9")
    found = windows(lambda window: sum(row.v for row in window if len(row.word))).run(
        GOOD, odd_date, odd_word, drain=True
    )
    assert (totals(found), sides(found)) == ([3], [(4, "invalid")])
    both = windows(lambda window: sum(row.v for row in window if len(row.word) and row.day))
    found = both.run(GOOD, odd_date, odd_word, drain=True)
    assert (totals(found), sides(found)) == ([1], [(2, "invalid"), (4, "invalid")])


def test_a_window_of_only_such_rows_does_not_fire() -> None:
    found = windows(lambda window: sum(len(row.word) for row in window)).run(BAD, drain=True)
    assert totals(found) == []
    assert sides(found) == [(2, "invalid")]


def test_any_other_error_of_the_bolt_fails_it() -> None:
    with pytest.raises(BoltError, match="ZeroDivisionError"):
        windows(lambda window: 1 // 0).run(BAD, drain=True)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "word"},
        {"key": ("k", "day")},
        {"key": ("v", "word"), "length": count(1), "slide": count(1), "timestamp": None, "late_stream": None},
        {"aggregate": {"total": agg.max("day")}},
        {"aggregate": {"total": agg.count("word")}},
        {"aggregate": {"total": agg.count("word")}, "columnar": "arrow"},
        {"key": "word", "columnar": "arrow"},
    ],
)
def test_a_row_with_such_a_value_in_a_field_that_windows_read_is_invalid_on_arrival(options: dict[str, Any]) -> None:
    found = windows(lambda window: 1, **options).run(GOOD, BAD, drain=True)
    assert sides(found) == [(2, "invalid")]
    assert totals(found) == [1]
    assert (found.metrics["tuples"], found.metrics["late"]) == (2, 1)


def test_on_invalid_raise_ends_the_run_at_such_a_key() -> None:
    with pytest.raises(WindowingError, match=r"bolt 'probe': field 'word' holds text b'caf\\xe9'"):
        windows(lambda window: 1, key="word", on_invalid="raise", late_stream=None).run(BAD)


# -- topologies ----------------------------------------------------------------------------------------------------------

FIELDS = "v long, day date, word string"
ROWS = [(1, 5, "tea"), (2, dates(YEAR_10000)[0], texts(b"caf\xe9")[0])]


@bolt(output="v long")
def untouched(tuple: Any) -> Any:
    return (tuple["v"],)


@bolt(output="v long, day date")
def touched(tuple: Any) -> Any:
    return tuple["v"], tuple.day


@bolt()
class Acking(Bolt):
    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tuple: Any) -> None:
        self.collector.ack(tuple)
        tuple.get_values()[1]


@windowed_bolt(count(1), count(1), timestamp="v", output="v long", late_stream="late", key="word")
def by_word(window: Any) -> Any:
    return [(row["v"],) for row in window]


@windowed_bolt(millis(10), millis(10), timestamp="v", output="v long", late_stream="late")
def asks(window: Any) -> Any:
    return [(row["v"],) for row in window if row["word"]]


def run(read: Any, declared: Any = untouched, letters: bool = True, tasks: int = 1) -> tuple[dict[str, Any], Chain]:
    builder = TopologyBuilder("t")
    builder.set_spout("in", InputSpout(FIELDS))
    read(builder.set_bolt("bolt", declared, tasks))
    chain = Chain(builder.build(), letters=letters)
    return chain.run({"in": ROWS}, drain=True), chain


def shuffled(bolt: Any) -> None:
    bolt.shuffle_grouping("in")


def keyed(bolt: Any) -> None:
    bolt.fields_grouping("in", Fields("word", "day"))


def by_code(bolt: Any) -> None:
    bolt.custom_grouping("in", lambda values, tasks: len(values[2]) % tasks)


def test_a_bolt_that_does_not_read_such_a_value_gets_every_tuple_under_any_grouping() -> None:
    for read, tasks in ((shuffled, 1), (shuffled, 2), (keyed, 2)):
        found, chain = run(read, tasks=tasks)
        assert sorted(found["bolt"]) == [(1,), (2,)]
        assert not chain.invalid
        assert [list(map(repr, row)) for row in found["in"]][1] == ["2", "date 10000-01-01", "text b'caf\\xe9'"]


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("declared", [touched, Acking])
def test_a_tuple_whose_unreadable_value_a_bolt_reads_is_a_dead_letter_at_once(declared: Any, tasks: int) -> None:
    found, chain = run(shuffled, declared, tasks=tasks)
    ((component, _, attempts, error, _, _, _, tuples),) = found["bolt.dead_letters"]
    assert (component, attempts) == ("bolt", 1)
    assert "date 10000-01-01, which Python cannot" in error
    assert json.loads(tuples)[0]["values"] == {"v": 2, "day": "date 10000-01-01", "word": "text b'caf\\xe9'"}
    assert found.get("bolt", [(1, date(1970, 1, 6))]) == [(1, date(1970, 1, 6))]
    assert not chain.invalid


@pytest.mark.parametrize("read", [shuffled, by_code])
def test_without_a_dead_letter_stream_such_a_tuple_is_counted(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    found, chain = run(read, touched, letters=False, tasks=2)
    assert [row[0] for row in found["bolt"]] == [1]
    assert chain.invalid == {"bolt": 1}
    assert "which Python cannot" in caplog.text


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_bolt_over_batches_sends_text_that_is_not_utf_8_on_to_bolts_that_do_not_read_it(tasks: int) -> None:
    builder = TopologyBuilder("t")
    builder.set_spout("in", InputSpout(FIELDS))
    both = bolt(output="v long, word string", columnar="arrow")(lambda table: table.select(["v", "word"]))
    builder.set_bolt("both", both, tasks).fields_grouping("in", "word")
    builder.set_bolt("unread", untouched, tasks).fields_grouping("both", "word")
    reads = bolt(output="word string", columnar="pandas")(lambda frame: frame[["word"]].map(str.upper))
    builder.set_bolt("reads", reads, tasks).shuffle_grouping("both")
    chain = Chain(builder.build())
    found = chain.run({"in": ROWS})
    assert sorted(found["unread"]) == [(1,), (2,)]
    assert sorted(repr(word) for _, word in found["both"]) == ["'tea'", "text b'caf\\xe9'"]
    assert found["reads"] == [("TEA",)]
    assert [json.loads(row[-1])[0]["values"]["v"] for row in found["reads.dead_letters"]] == [2]


def test_the_rest_of_a_batch_with_such_a_value_keeps_the_number_of_its_attempts() -> None:
    sizes: list[int] = []

    def reads(frame: Any) -> Any:
        sizes.append(len(frame))
        if len(sizes) == 2:
            frame["word"].map(str.upper)
        raise FailedException("busy")

    builder = TopologyBuilder("t").configure({"windowing.max.attempts": 2, "windowing.retry.delay.ms": 0})
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("bolt", bolt(output="v long", columnar="pandas")(reads)).shuffle_grouping("in")
    found = Chain(builder.build()).run({"in": ROWS})
    assert sizes == [2, 2, 1]
    assert sorted(
        (attempts, json.loads(rows)[0]["values"]["v"]) for _, _, attempts, *_, rows in found["bolt.dead_letters"]
    ) == [
        (1, 2),
        (2, 1),
    ]


@pytest.mark.parametrize("declared", [by_word, asks])
def test_windows_of_a_topology_send_such_tuples_to_their_late_stream(declared: Any) -> None:
    found, chain = run(shuffled, declared)
    assert found["bolt"] == [(1,)]
    assert not chain.invalid
    assert [list(map(repr, row)) for row in found["bolt.late"]] == [
        ["2", "date 10000-01-01", "text b'caf\\xe9'", "'invalid'"]
    ]


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_bolt_that_reads_such_a_value_of_a_late_stream_fails_also_in_the_stage_of_its_window(is_fused: bool) -> None:
    builder = TopologyBuilder("t")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("bolt", by_word).shuffle_grouping("in")
    reads = builder.set_bolt("reads", touched)
    reads.shuffle_grouping("bolt", "late") if is_fused else reads.all_grouping("bolt", "late")
    found = Chain(builder.build()).run({"in": ROWS}, drain=True)
    assert "reads" not in found
    (letter,) = found["reads.dead_letters"]
    assert "field 'day' holds date 10000-01-01, which Python cannot" in letter[3]


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_a_late_tuple_with_such_a_value_is_tried_again_with_the_lists_that_it_had(is_fused: bool, asks: bool) -> None:
    def changes(row: Any) -> None:
        row["tags"].append("b")
        if asks:
            row["day"]
        raise FailedException("not yet")

    builder = TopologyBuilder("t").configure({"windowing.max.attempts": 2, "windowing.retry.delay.ms": 0})
    builder.set_spout("in", InputSpout("v long, day date, word string, tags array<string>"))
    builder.set_bolt("bolt", by_word).shuffle_grouping("in")
    reads = builder.set_bolt("reads", bolt(output="v long")(changes))
    reads.shuffle_grouping("bolt", "late") if is_fused else reads.all_grouping("bolt", "late")
    found = Chain(builder.build()).run({"in": [(*row, ["a"]) for row in ROWS]}, drain=True)
    (letter,) = found["reads.dead_letters"]
    assert (letter[2], json.loads(letter[7])[0]["values"]["tags"]) == (1 if asks else 2, ["a"])


# -- maps ----------------------------------------------------------------------------------------------------------------

MAPS = pa.map_(pa.string(), pa.int64())


def of_maps(execute: Any, **options: Any) -> tuple[TaskStage, dict[str, Any]]:
    declared = bolt_of(
        windowed_bolt(
            name="probe",
            length=millis(10),
            slide=millis(10),
            timestamp="ts",
            late_stream="late",
            output="told map<string, long>",
            **options,
        )(execute)
    )
    return TaskStage(declared, NamedRows(("ts", "m", "deep"))), {}


def turn_of_maps(stage: TaskStage, state: dict[str, Any], *maps: Any, drain: bool = False) -> TurnResult:
    sent = []
    if maps:
        ts = pa.array(range(1, len(maps) + 1), pa.int64())
        told = pa.array(maps, MAPS)
        deep = pa.StructArray.from_arrays([pa.array([[each] for each in maps], pa.list_(MAPS))], ["inside"])
        table = pa.table({"ts": ts, "m": told, "deep": deep, "__ts": ts})
        sent.append(ExchangeRow(0, "rows", "default", 0, 0, 0, None, len(maps), encode_table(table)))
    if drain:
        sent.append(ExchangeRow(0, "drain", "", 0, 0, 0, None, 0, None))
    found = stage.turn(0, Stored(state.get("metadata"), state.setdefault("chunks", {}).get), sent)
    state["metadata"] = found.metadata
    state["chunks"].update(found.puts)
    return found


def test_a_map_is_a_dict_for_the_bolt_and_is_emitted_as_a_map() -> None:
    seen: list[Any] = []

    def look(window: Any) -> Any:
        seen.extend([window.column("m"), [row.deep for row in window]])
        return [(row.m,) for row in window]

    stage, state = of_maps(look)
    assert turn_of_maps(stage, state, {"a": 1}, None, {}).rows == []
    found = turn_of_maps(stage, state, drain=True)  # from the chunks of the state
    assert seen == [[{"a": 1}, None, {}], [{"inside": [{"a": 1}]}, {"inside": [None]}, {"inside": [{}]}]]
    assert [values for _, values in found.rows] == [({"a": 1},), (None,), ({},)]


def test_a_map_is_a_dict_in_a_numpy_window_too_and_one_with_a_key_twice_is_invalid() -> None:
    seen: list[Any] = []

    def look(window: Any) -> Any:
        seen.append([window.column("m").tolist(), window.get()["deep"].tolist()])

    stage, state = of_maps(look, columnar="numpy")
    turn_of_maps(stage, state, {"a": 1}, None, {})
    turn_of_maps(stage, state, drain=True)
    assert seen == [[[{"a": 1}, None, {}], [{"inside": [{"a": 1}]}, {"inside": [None]}, {"inside": [{}]}]]]

    state = {}
    turn_of_maps(stage, state, {"a": 1}, [("a", 1), ("a", 2)])
    found = turn_of_maps(stage, state, drain=True)
    assert [seen[-1][0], [payload[0] for payload in found.late]] == [[{"a": 1}], [2]]


@pytest.mark.parametrize("key", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_a_map_whose_keys_are_no_keys_of_a_dict_is_unreadable_and_is_written_unchanged(key: pa.DataType) -> None:
    kind = pa.map_(key, pa.string())
    entries = [([1], "a"), ([1], "b")] if pa.types.is_list(key) else [({"a": 1}, "a"), ({"a": None}, "b")]
    values = python_values(pa.array([entries, None], kind), "m")
    assert [type(each) for each in values] == [Unreadable, type(None)]
    assert repr(values[0]) == f"a value of {kind}"
    assert arrow_values(values, kind).to_pylist() == [entries, None]


@pytest.mark.parametrize("inner", [True, False])
def test_a_struct_with_such_a_value_is_written_unchanged_also_if_only_one_side_says_not_null(inner: bool) -> None:
    read, written = (
        pa.struct([pa.field("at", pa.timestamp("us", "UTC"), nullable=nullable)]) for nullable in (inner, not inner)
    )
    values = python_values(pa.array([{"at": 1 << 60}, {"at": 5}], read), "s")
    assert [type(each) for each in values] == [Unreadable, dict]
    found = arrow_column("b", "late", pa.field("s", written), values)
    assert (found.type, found.field("at").cast(pa.int64()).to_pylist()) == (written, [1 << 60, 5])


def test_a_map_with_a_repeated_key_makes_its_row_invalid_when_it_is_read() -> None:
    stage, state = of_maps(lambda window: [(row.m,) for row in window])
    turn_of_maps(stage, state, {"a": 1}, [("b", 1), ("b", 2)])
    found = turn_of_maps(stage, state, drain=True)
    assert [(stream, values[-1]) for stream, values in found.rows] == [("late", "invalid"), ("default", {"a": 1})]
