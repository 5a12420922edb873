"""The batches of a windowed task: a function of (state, input) only, equal to a machine that never stopped."""

from __future__ import annotations

import gc
import random
from collections import namedtuple
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.windows.test_processed_ids import SortedAnew
from windowing import Activation, TimeEvictionPolicy, count, millis
from windowing.codec import CHUNK_MAGIC, META_MAGIC, dumps, frame, loads, unframe
from windowing.columnar.rows import decode_table, encode_table
from windowing.errors import BoltError, ConfigError, CorruptStateError, InvalidTimestampError
from windowing.local import LocalRun, VirtualClock
from windowing.spark import state
from windowing.spark.dealing import TaskState, redistributed
from windowing.spark.exchange import ExchangeRow, with_max_future
from windowing.spark.operator import Stored
from windowing.spark.rows import NamedRows
from windowing.spark.window_turn import TaskStage, TurnResult
from windowing.topology.dead_letters import DEAD_LETTER_FIELDS, DEAD_LETTERS
from windowing.topology.decorators import bolt_of, windowed_bolt
from windowing.topology.user_code import Fitted
from windowing.windows import aggregate as agg
from windowing.windows import deduplicator
from windowing.windows.deduplicator import block_names
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.trigger import TriggerPolicy

COLUMNS = ("id", "ts", "key", "v")
OUTPUT = "key string, ends long, ids array<long>, fresh array<long>, gone array<long>, total double"


def window_row(window: Any) -> tuple[Any, ...]:
    key = None if window.key is None else str(window.key)
    ids, fresh, gone = ([row.id for row in rows] for rows in (window.get(), window.get_new(), window.get_expired()))
    return key, window.end_timestamp, ids, fresh, gone, sum(row.v for row in window.get())


def bolt_with(**options: Any) -> Any:
    return clock_bolt(late_stream="late", **options)


def clock_bolt(**options: Any) -> Any:
    return bolt_of(windowed_bolt(name="probe", output=OUTPUT, **options)(lambda window: window_row(window)))


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {"id": pa.int64(), "ts": pa.int64(), "key": pa.string(), "v": pa.float64()}
    data = {name: pa.array([row[name] for row in rows], kind) for name, kind in columns.items()}
    return pa.table({**data, "__ts": data["ts"]})


def packet(table: pa.Table, upstream: int = 0, now_ms: int = 0, stream: str = "default") -> ExchangeRow:
    return ExchangeRow(0, "rows", stream, upstream, 0, now_ms, None, table.num_rows, encode_table(table))


def control(kind: str, value: int = 0, now_ms: int = 0) -> ExchangeRow:
    return ExchangeRow(0, kind, "default", 0, 0, now_ms, None, value, None)


class Task:
    """One task with its store, as in the stateful operator: only bytes survive a batch."""

    def __init__(self, bolt: Any, order_by: tuple[str, ...] = ()) -> None:
        identified = bolt.config.message_id is not None
        self.stage = TaskStage(bolt, NamedRows(COLUMNS, order_by=order_by, identified=identified))
        self.metadata: bytes | None = None
        self.chunks: dict[bytes, bytes] = {}
        self.written = 0

    def run(
        self, rows: list[dict[str, Any]], drain: bool = False, now_ms: int = 0, fitted: Fitted | None = None
    ) -> TurnResult:
        sent = [packet(table_of(rows), now_ms=now_ms)] if rows else []
        stamps = [row["ts"] for row in rows if row["ts"] is not None]
        sent += [control("max", max(stamps), now_ms)] if stamps else []
        sent += [control("drain" if drain else "tick", now_ms=now_ms)]
        result = self.stage.turn(0, Stored(self.metadata, self.chunks.get), sent, fitted=fitted)
        self.metadata = result.metadata
        for key in result.drops:
            del self.chunks[key]
        self.chunks |= result.puts
        if self.metadata is not None:  # no number stands for two chunks, and those that are listed are there
            stored = state.StoredTask.of(self.metadata, "the state")
            ids = [chunk.id for chunk in stored.chunks]
            assert len(set(ids)) == len(ids)
            assert all(id < stored.next_id for id in ids)
            blocks = {state.block_key(*name) for name in block_names(stored.seen)}
            assert self.chunks.keys() == {chunk.key for chunk in stored.chunks} | blocks
        self.written += sum(map(len, result.puts.values()))
        return replace(result, rows=[(stream, self.named(stream, values)) for stream, values in result.rows])

    def named(self, stream: str, values: Any) -> Any:
        """A row by field name, as it leaves; a table as it is."""
        if isinstance(values, pa.Table):
            return values
        declared = self.stage.bolt.outputs | {DEAD_LETTERS: DEAD_LETTER_FIELDS}
        names = declared[stream].names if stream in declared else (*COLUMNS, "reason")
        return dict(zip(names, values, strict=True))


def rows_of(batch: list[tuple[int, str]], first: int) -> list[dict[str, Any]]:
    chance = random.Random(first)
    return [{"id": first + at, "ts": ts, "key": key, "v": chance.random()} for at, (ts, key) in enumerate(batch)]


def batches_of(drawn: list[list[tuple[int, str]]]) -> list[list[dict[str, Any]]]:
    batches, first = [], 0
    for index, batch in enumerate(drawn):
        batches.append(rows_of([(index * 10 + ts, key) for ts, key in batch], first))
        first += len(batch)
    return batches


DRAWN = st.lists(st.lists(st.tuples(st.integers(-8, 25), st.sampled_from("ab")), max_size=12), min_size=1, max_size=9)
DEFINITIONS = [
    {"length": millis(20), "slide": millis(5), "timestamp": "ts", "lag": millis(5)},
    {"length": millis(7), "slide": millis(7), "timestamp": "ts", "key": "key"},
    {"length": millis(20), "slide": millis(5), "timestamp": "ts", "key": "key", "lateness": "window"},
    {"length": count(6), "slide": count(3), "timestamp": "ts", "key": "key"},
    {"length": count(6), "slide": count(3), "timestamp": "ts", "lag": millis(9)},
    {"length": millis(15), "slide": count(4), "timestamp": "ts"},
    {"length": count(5), "slide": millis(10), "timestamp": "ts", "key": "key"},
]


@pytest.mark.parametrize("options", DEFINITIONS)
@given(drawn=DRAWN)
def test_turns_over_stored_bytes_equal_a_machine_that_never_stopped(options: Any, drawn: Any) -> None:
    bolt = bolt_with(**options)
    task = Task(bolt)
    live = WindowedBoltExecutor(bolt.config, component="probe")
    row_type = None
    for batch in [*batches_of(drawn), None]:
        result = task.run(batch or [], drain=batch is None)
        expected: list[Any] = []
        if batch:
            row_type = row_type or namedtuple("Row", ["id", "ts", "key", "v"])
            payloads = [row_type(**row) for row in batch]
            keys = [row["key"] for row in batch] if bolt.config.key else None
            for _, late in live.add_batch(payloads, [row["ts"] for row in batch], keys=keys):
                expected.extend(("late", row._asdict() | {"reason": late.reason.value}) for row in late.payloads)  # type: ignore[union-attr]
        for effect in live.drain() if batch is None else live.turn():
            if hasattr(effect, "window"):
                expected.append(
                    ("default", dict(zip(bolt.outputs["default"].names, window_row(effect.window), strict=True)))
                )
        assert result.rows == expected
        assert result.metrics["pending"] == live.counts()["pending"]
    assert not task.chunks, "a drained task keeps no tuples"


@given(drawn=DRAWN)
def test_a_repeated_turn_gives_the_same_rows_and_the_same_state(drawn: Any) -> None:
    task = Task(bolt_with(**DEFINITIONS[0]))
    for batch in batches_of(drawn):
        packets = [packet(table_of(batch))] if batch else []
        stored = Stored(task.metadata, task.chunks.get)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "urandom", lambda size: b"nonce123")
            first, second = (task.stage.turn(0, stored, [*packets, control("tick")]) for _ in range(2))
        assert first == second
        task.run(batch)


class LastThree(EvictionPolicy):
    """A custom policy that holds rows by their value."""

    def __init__(self) -> None:
        self.seen = 0

    def evict(self, event: Any) -> Action:
        return Action.PROCESS if event.payload.id >= self.seen - 3 else Action.EXPIRE

    def track(self, event: Any) -> None:
        if not event.is_watermark:
            self.seen = max(self.seen, event.payload.id)

    def get_state(self) -> Any:
        return self.seen

    def restore_state(self, state: Any) -> None:
        self.seen = state


def test_windows_of_a_custom_policy_are_restored_from_stored_bytes() -> None:
    bolt = bolt_with(slide=millis(10), timestamp="ts", eviction=LastThree)
    batches = batches_of([[(1, "a"), (2, "a"), (9, "a")], [(3, "a"), (4, "a")], [(5, "a")], [(9, "a"), (10, "a")]])
    stopped = Task(bolt)
    live = WindowedBoltExecutor(bolt.config)
    row_type = namedtuple("Row", ["id", "ts", "key", "v"])
    for batch in batches:
        rows = stopped.run(batch).rows
        list(live.add_batch([row_type(**row) for row in batch], [row["ts"] for row in batch]))
        shown = [[row.id for row in effect.window.get()] for effect in live.turn() if isinstance(effect, Activation)]
        assert [row["ids"] for _, row in rows] == shown
    assert stopped.chunks


class Unstorable(LastThree):
    def get_state(self) -> Any:
        return {"seen": object()}


@pytest.mark.parametrize("options", [{}, {"key": "key"}, {"columnar": "arrow"}])
def test_rows_stored_before_a_column_was_added_have_null_there_also_in_a_batch_without_rows(options: Any) -> None:
    def with_added(window: Any) -> Any:
        columns = [window.column(name) for name in ("id", "w")]
        return tuple(each if isinstance(each, list) else each.to_pylist() for each in columns)

    def bolt(execute: Any) -> Any:
        given = {"length": millis(20), "slide": millis(10), "timestamp": "ts", **options}
        return bolt_of(windowed_bolt(name="probe", output="ids array<long>, w array<long>", **given)(execute))

    task = Task(bolt(lambda window: []))
    task.run(rows_of([(1, "a"), (4, "a"), (12, "a")], 0))
    task.stage = TaskStage(bolt(with_added), NamedRows((*COLUMNS, "w")))
    assert task.run([]).rows == []
    arrived = packet(table_of(rows_of([(24, "a")], 3)).add_column(4, "w", pa.array([7], pa.int64())))
    for rows, last in (([], ([2], [None])), ([arrived], ([2, 3], [None, 7]))):
        sent = [*rows, control("max", 24), control("drain")]
        found = task.stage.turn(0, Stored(task.metadata, task.chunks.get), sent)
        assert [values for _, values in found.rows][:2] == [([0, 1, 2], [None] * 3), last]


def test_a_task_without_new_rows_has_the_columns_of_its_newest_chunk() -> None:
    chunks: list[state.Chunk] = []
    stored: dict[bytes, bytes] = {}
    for number, columns in enumerate(({"n": [1]}, {"n": [2], "w": [7]})):
        store = state.ChunkStore(chunks, stored.get)
        store.read(None)
        rows = state.with_order(pa.table(columns), pa.array([0]), pa.array([number]))
        chunks = store.write(rows, np.arange(2), number)
        stored |= store.puts
    found = state.ChunkStore(chunks, stored.get).read(None)
    assert found is not None
    assert found.select(["n", "w"]).to_pydict() == {"n": [1, 2], "w": [None, 7]}


def test_a_value_that_cannot_be_stored_is_an_error_that_names_the_bolt() -> None:
    parts = [[(1, "a")]]
    bolt = bolt_with(slide=millis(10), timestamp="ts", eviction=Unstorable)
    with pytest.raises(BoltError, match=r"bolt '\w+' cannot be stored: a value of type object .*; keep plain data in"):
        Task(bolt).run(batches_of(parts)[0])
    odd = agg.fold(object, lambda acc, value: acc, lambda a, b: a, lambda acc: 0)
    with pytest.raises(BoltError, match=r"bolt '\w+' cannot be stored: a value of type object"):
        Task(bolt_with(length=millis(10), slide=millis(10), timestamp="ts", aggregate=odd)).run(batches_of(parts)[0])


def test_rows_are_read_by_column_names_of_any_form() -> None:
    def told(window: Any) -> Any:
        row = window.get()[-1]
        assert row == window.get()[-1:][0] == ("A", 7)
        return row["class"], row["flight no"], row[1], list(row._asdict())

    output = "class string, number long, same long, names array<string>"
    marked = windowed_bolt(length=count(2), slide=count(1), output=output)(told)
    sums = windowed_bolt(
        length=millis(10),
        slide=millis(10),
        output="total long",
        name="sums",
        aggregate=agg.sum("flight no"),
    )(lambda window: window.aggregate)
    rows = pa.table({"class": ["A"], "flight no": [7], "__ts": pa.array([5], pa.int64())})
    sent = [packet(rows, now_ms=5), control("drain", now_ms=5)]
    found = [
        TaskStage(bolt_of(bolt), NamedRows(("class", "flight no"))).turn(0, Stored(), sent).rows
        for bolt in (marked, sums)
    ]
    assert found == [[("default", ("A", 7, 7, ["class", "flight no"]))], [("default", (7,))]]


@pytest.mark.parametrize("form", [lambda table: table, lambda table: table.to_batches()[0]])
def test_a_fired_window_shows_the_number_of_rows_of_a_table(form: Any) -> None:
    bolt = windowed_bolt(length=count(2), slide=count(2), output="n long", name="three")(
        lambda window: pa.table({"n": [1, 2, 3]})
    )
    sent = [packet(pa.table({"n": [1, 2], "__ts": pa.array([5, 6], pa.int64())}), now_ms=5)]
    found = TaskStage(bolt_of(bolt), NamedRows(("n",))).turn(0, Stored(), sent, fitted=form)
    assert [each.emitted for each in found.done[0].windows] == ["3 rows"]


def test_an_aggregate_stores_no_rows() -> None:
    marked = windowed_bolt(
        length=millis(60),
        slide=millis(10),
        timestamp="ts",
        name="sums",
        output="ends long, n long, total double",
        aggregate={"n": agg.count(), "total": agg.sum("v")},
    )(lambda window: (window.end_timestamp, window.aggregate["n"], window.aggregate["total"]))
    task = Task(bolt_of(marked))
    for batch in batches_of([[(t, "a") for t in range(10)]] * 6):
        assert not task.run(batch).puts
    assert sum(1 for _ in task.run([], drain=True).rows) > 0


@pytest.mark.parametrize("length", [count(2), millis(10)])
def test_a_whole_row_that_an_aggregate_keeps_over_a_batch_is_read_by_field_afterwards(length: Any) -> None:
    """As a row that waits for its number, and as an accumulator."""
    largest = agg.fold(lambda: None, larger, larger, lambda row: row.v)
    marked = windowed_bolt(
        length, length, timestamp="ts", lag=millis(5), name="probe", output="v double", aggregate=largest
    )
    task = Task(bolt_of(marked(lambda window: window.aggregate)))
    first, second = rows_of([(2, "a"), (9, "b")], 0)
    assert task.run([first]).rows == task.run([second]).rows == []
    assert task.run([], drain=True).rows == [("default", {"v": max(first["v"], second["v"])})]


def larger(one: Any, other: Any) -> Any:
    return other if one is None or (other is not None and other.v > one.v) else one


def test_a_batch_writes_only_data_that_outlives_it() -> None:
    task = Task(bolt_with(length=millis(1000), slide=millis(1000), timestamp="ts"))
    sizes = []
    for index in range(40):
        batch = rows_of([(index * 100 + at // 3, "a") for at in range(300)], index * 300)
        before = task.written
        task.run(batch)
        sizes.append(task.written - before)
    one_batch = len(encode_table(table_of(rows_of([(at // 3, "a") for at in range(300)], 0))))
    assert sum(sizes) < 3 * 40 * one_batch
    assert len(task.chunks) < 40


def test_a_chunk_whose_rows_have_mostly_expired_is_written_again_without_them() -> None:
    task = Task(bolt_with(length=millis(10), slide=millis(10), timestamp="ts", lag=millis(8_000)))
    task.run(rows_of([(1 + at % 9, "a") for at in range(500)] + [(15, "a"), (7_999, "a")], 0))
    for index in range(4):  # the windows that end at 10 and at 20 fire: 15 and 7,999 are needed
        task.run(rows_of([(8_040, "a")], 502 + index))
    stored = [decode_table(unframe(CHUNK_MAGIC, blob, "a chunk")).num_rows for blob in task.chunks.values()]
    assert sum(stored) <= 8 * 6, "each batch would read all rows of the first one, though six rows are needed"
    assert [row["ids"] for _, row in task.run([], drain=True).rows] == [[501], [502, 503, 504, 505]]
    assert not task.chunks


def test_seven_chunks_of_one_power_of_eight_rows_are_merged_with_all_smaller_ones() -> None:
    def merged(*rows: int) -> list[int]:
        chunks = [
            state.Chunk(n, b"", size, np.arange(size), pa.table({"n": range(size)})) for n, size in enumerate(rows)
        ]
        return sorted(rows[n] for n in state._to_merge(chunks))

    assert merged(*[7] * 6, 8) == merged(*[8] * 6, 64) == []
    assert merged(*[7] * 7, 8) == [7] * 7
    assert merged(*[8] * 6, 63) == [*[8] * 6, 63]
    assert merged(1, *[8] * 7, 64) == [1, *[8] * 7]


def test_stored_rows_are_cut_into_chunks_of_a_bounded_size_which_are_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("columnar.rows", "spark.state"):
        monkeypatch.setattr(f"windowing.{module}.PART_BYTES", 2_000)
    task = Task(bolt_with(length=millis(10_000), slide=millis(10_000), timestamp="ts"))
    written = []
    for index in range(10):
        before = task.written
        task.run(rows_of([(index * 10 + at // 25 + 1, "a") for at in range(225)], index * 225))
        written.append(task.written - before)
    sizes = [decode_table(unframe(CHUNK_MAGIC, blob, "a chunk")).nbytes for blob in task.chunks.values()]
    assert (len(sizes), max(sizes) <= 2_000) == (10 * 8, True)
    assert max(written[1:]) < 1.1 * written[0], "a batch writes what arrived in it"
    for index in range(10, 80):
        task.run(rows_of([(index * 10 + 1, "a")], 2_250 + index - 10))
    assert len(task.chunks) < 10 * 8 + 25, "small chunks are merged still"
    ((_, row),) = task.run([], drain=True).rows
    assert row["ids"] == list(range(2_320))
    assert not task.chunks


def test_order_by_makes_the_order_of_arrival_independent_of_the_partitions() -> None:
    rows = rows_of([(5, "a"), (5, "a"), (5, "a"), (9, "a")], 0)
    outputs = []
    for split in (1, 3):
        task = Task(bolt_with(length=count(2), slide=count(2), timestamp="ts"), order_by=("id",))
        packets = [
            packet(table_of(rows[:split]), 1),
            packet(table_of(rows[split:]), 0),
        ]
        result = task.stage.turn(0, Stored(None, task.chunks.get), [*packets, control("drain")])
        outputs.append([task.named(*row)["ids"] for row in result.rows])
    assert outputs == [[[0, 1], [2, 3]]] * 2


def test_ties_in_order_by_are_broken_by_the_other_values_of_the_rows() -> None:
    rows = rows_of([(5, "a"), (5, "b"), (5, "a"), (5, "b")], 0)
    outputs = []
    for split in ([0, 1], [0, 2], [3]):
        task = Task(bolt_with(length=count(2), slide=count(2), timestamp="ts"), order_by=("ts",))
        halves = [[row for row in rows if (row["id"] in split) == first] for first in (True, False)]
        packets = [packet(table_of(half), at) for at, half in enumerate(halves)]
        result = task.stage.turn(0, Stored(None, task.chunks.get), [*packets, control("drain")])
        outputs.append([task.named(*row)["ids"] for row in result.rows])
    assert outputs == [[[0, 1], [2, 3]]] * 3


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, "long"),
        (-1.9, "int"),
        (Decimal("1.5"), "long"),
        ([1.5], "array<long>"),
        ({"a": 1.5}, "map<string,int>"),
        (1e300, "float"),
        (datetime(2020, 2, 29, 12), "date"),
        (3, "timestamp"),
        (2**40, "int"),
        ("x", "binary"),
        (b"x", "string"),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_value_that_its_field_would_change_fails_its_window(value: Any, kind: str, policy: Any) -> None:
    def emits(window: Any) -> Any:
        return (value if window.get()[0].id == 0 else None,)

    marked = windowed_bolt(length=count(1), slide=count(1), timestamp="ts", output=f"n {kind}", on_error=policy)
    task = Task(bolt_of(marked(emits)))
    if policy == "raise":
        with pytest.raises(
            BoltError, match=r"bolt 'emits' emitted a wrong row on TupleWindow.* field 'n' of stream 'default'"
        ):
            task.run(rows_of([(1, "a"), (2, "a")], 0))
    else:
        result = task.run(rows_of([(1, "a"), (2, "a")], 0))
        assert (result.rows, result.metrics["failed"]) == ([("default", {"n": None})], 1)


def test_late_and_invalid_rows_go_to_the_late_stream_with_their_reason() -> None:
    task = Task(bolt_with(length=millis(10), slide=millis(10), timestamp="ts"))
    task.run(rows_of([(25, "a")], 0))
    late = [{"id": 7, "ts": 3, "key": "a", "v": 0.5}, {"id": 8, "ts": None, "key": "b", "v": None}]
    result = task.run(late)
    assert [(stream, row["id"], row["reason"]) for stream, row in result.rows] == [
        ("late", 7, "late"),
        ("late", 8, "invalid"),
    ]
    assert result.metrics["late"] == 2


def test_a_far_future_timestamp_is_late_and_with_on_invalid_raise_a_missing_one_fails_the_batch() -> None:
    options: dict[str, Any] = {"length": millis(10), "slide": millis(10), "timestamp": "ts"}
    row = {"id": 7, "ts": 1101, "key": "a", "v": 0.5}
    result = Task(bolt_with(**options, max_future=millis(100))).run([row, row | {"ts": 1100}], now_ms=1000)
    assert [(stream, row["ts"], row["reason"]) for stream, row in result.rows if stream == "late"] == [
        ("late", 1101, "future")
    ]
    strict = windowed_bolt(name="checked", output="n long", on_invalid="raise", **options)(lambda window: 1)
    with pytest.raises(InvalidTimestampError, match="bolt 'checked': timestamp 'ts' is missing or no time"):
        Task(bolt_of(strict)).run([row | {"ts": None}])


def test_on_spark_a_tuple_may_be_one_day_ahead_unless_the_bolt_says_how_far_or_has_storm_semantics() -> None:
    def ahead(**options: Any) -> int | None:
        return with_max_future(bolt_with(length=millis(10), timestamp="ts", **options).config).max_future_ms

    assert ahead() == 24 * 60 * 60 * 1000
    assert ahead(max_future=millis(100)) == 100
    assert ahead(semantics="storm") is None


def test_a_smaller_lag_advances_no_task_in_a_batch_without_a_usable_timestamp() -> None:
    """Such a batch reaches only the task of its rows; the next one with a timestamp reaches all of them."""
    options: dict[str, Any] = {"length": millis(10), "slide": millis(10), "timestamp": "ts"}
    before, task = Task(bolt_with(**options, lag=millis(20))), Task(bolt_with(**options))
    before.run(rows_of([(5, "a"), (25, "a")], 0))
    task.metadata, task.chunks = before.metadata, before.chunks
    unusable = [{"id": 7, "ts": None, "key": "a", "v": 0.5}]
    found = task.stage.turn(0, Stored(task.metadata, task.chunks.get), [packet(table_of(unusable))])
    assert [stream for stream, _ in found.rows] == ["late"]
    assert [row["ends"] for stream, row in task.run(rows_of([(6, "a")], 8)).rows if stream == "default"] == [10]


def test_processing_time_uses_the_clock_of_the_batch_and_empty_batches_fire_windows() -> None:
    marked = windowed_bolt(name="probe", output=OUTPUT, length=millis(10), slide=millis(10))
    task = Task(bolt_of(marked(lambda window: window_row(window))))
    assert task.run(rows_of([(0, "a"), (0, "a")], 0), now_ms=105).rows == []
    fired = task.run([], now_ms=125)
    assert [(row["ends"], row["ids"]) for _, row in fired.rows] == [(110, [0, 1])]


@pytest.mark.parametrize(
    "options",
    [
        {"length": millis(10), "slide": millis(10), "key": "key"},
        {"length": millis(20), "slide": millis(5), "key": "key"},
        {"length": millis(20), "slide": millis(5), "key": "key", "aggregate": agg.count()},
        {"length": count(3), "slide": count(2), "key": "key", "key_ttl": millis(15)},
        {"length": count(3), "slide": millis(10), "key": "key", "key_ttl": millis(15)},
        {"length": millis(20), "slide": millis(10), "eviction": lambda: TimeEvictionPolicy(20), "key": "key"},
    ],
)
@given(drawn=st.lists(st.tuples(st.integers(0, 25), st.lists(st.sampled_from("abc"), max_size=3)), max_size=9))
def test_windows_over_the_clock_that_are_due_fire_before_the_rows_of_a_batch_as_in_one_process(
    options: Any, drawn: Any
) -> None:
    def shown(window: Any) -> Any:
        if "aggregate" in options:
            return str(window.key), window.end_timestamp, [window.aggregate], [], [], 0.0
        return window_row(window)

    bolt = bolt_of(windowed_bolt(name="probe", output=OUTPUT, **options)(shown))
    clock, task, now_ms = VirtualClock(1_000), Task(bolt), 1_000
    run = LocalRun(bolt, clock=clock)
    for number, (later_ms, keys) in enumerate(drawn):
        now_ms += later_ms
        clock.set(now_ms)
        rows = rows_of([(0, key) for key in keys], 10 * number)
        expected = run.feed(rows) + run.turn()
        found = task.run(rows, now_ms=now_ms).rows
        assert [(stream, tuple(row.values())) for stream, row in found] == expected


def test_a_failing_bolt_is_named_and_nothing_is_written() -> None:
    def broken(window: Any) -> Any:
        raise ValueError("no such airport")

    options = {"length": count(1), "slide": count(1), "timestamp": "ts", "name": "flights", "output": OUTPUT}
    task = Task(bolt_of(windowed_bolt(**options)(broken)))
    with pytest.raises(BoltError, match=r"bolt 'flights' failed on TupleWindow\(.*ValueError: no such airport"):
        task.run(rows_of([(1, "a"), (2, "a")], 0))
    assert task.metadata is None
    letters = Task(bolt_of(windowed_bolt(**options, on_error="dead_letter")(lambda window: broken(window)))).run(
        rows_of([(1, "a"), (2, "a")], 0)
    )
    assert [stream for stream, _ in letters.rows] == [DEAD_LETTERS, DEAD_LETTERS]
    assert letters.metrics["failed"] == 2


def test_on_error_fail_without_an_acker_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_error='fail'"):
        Task(bolt_with(length=count(1), slide=count(1), timestamp="ts", on_error="fail"))


def test_max_events_in_memory_is_refused_on_spark() -> None:
    with pytest.raises(ConfigError, match="max_events_in_memory=5000, but on Spark a turn has all live tuples"):
        Task(bolt_with(length=count(1), slide=count(1), timestamp="ts", max_events_in_memory=5000))


def test_metadata_of_another_format_are_refused() -> None:
    head = dumps({"format": 9})
    with pytest.raises(CorruptStateError, match="the state has format 9, this library reads 1 to 3; nothing was reset"):
        state.StoredTask.of(frame(META_MAGIC, len(head).to_bytes(8, "big") + head), "the state")


def test_any_damage_to_stored_bytes_is_an_error_that_names_the_task() -> None:
    task = Task(bolt_with(length=millis(50), slide=millis(10), timestamp="ts"))
    task.run(rows_of([(at, "a") for at in range(40)], 0))
    ((key, good),) = task.chunks.items()
    assert task.metadata is not None
    for at in range(0, len(good), max(1, len(good) // 64)):
        task.chunks[key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(CorruptStateError, match="bolt 'probe', task 0"):
            task.run([])
        task.chunks[key] = good[:at]
        with pytest.raises(CorruptStateError, match="bolt 'probe', task 0"):
            task.run([])
    del task.chunks[key]
    with pytest.raises(CorruptStateError, match="missing"):
        task.run([])
    task.chunks[key], metadata = good, task.metadata
    for at in range(0, len(metadata), max(1, len(metadata) // 64)):
        task.metadata = metadata[:at] + bytes([metadata[at] ^ 1]) + metadata[at + 1 :]
        with pytest.raises(CorruptStateError):
            task.run([])


def test_a_pickle_is_never_loaded() -> None:
    task = Task(bolt_with(length=millis(50), slide=millis(10), timestamp="ts"))
    task.metadata = b"\x80\x05K\x01."
    with pytest.raises(CorruptStateError, match="not ours"):
        task.run([])


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.tuples(st.text(), st.integers()), inner)
    ),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_data_is_decoded_as_it_was_encoded(data: Any) -> None:
    back = loads(dumps(data), "test")
    assert back == data
    assert type(back) is type(data)


def test_a_dead_letter_of_an_aggregating_bolt_has_no_tuples() -> None:
    def broken(window: Any) -> Any:
        raise ValueError(f"{window.aggregate} is too much")

    marked = windowed_bolt(
        length=count(2),
        slide=count(2),
        timestamp="ts",
        name="sums",
        output="n long",
        aggregate=agg.count(),
        on_error="dead_letter",
    )
    ((stream, letter),) = Task(bolt_of(marked(broken))).run(rows_of([(1, "a"), (2, "a")], 0)).rows
    assert stream == DEAD_LETTERS
    assert letter["tuples"] is None
    assert "2 is too much" in letter["error"]


# -- replayed rows, and states -----------------------------------------------------------------------------------------


def row(id: int | None, ts: int) -> dict[str, Any]:
    return {"id": id, "ts": ts, "key": "a", "v": 1.0}


def test_a_replayed_row_is_dropped_by_its_message_id_in_the_same_and_in_later_batches():
    task = Task(bolt_with(length=millis(10), slide=millis(10), timestamp="ts", message_id="id"))
    first = task.run([row(1, 1), row(2, 2), row(1, 1)])
    second = task.run([row(2, 2), row(3, 3)])
    third = task.run([row(3, 3)])
    last = task.run([], drain=True)
    assert [values["ids"] for _, values in last.rows] == [[1, 2, 3]]
    done = [each.done[0] for each in (first, second, third, last)]
    assert (sum(each.executed for each in done), sum(each.acked for each in done)) == (3, 3)
    assert [each.metrics["duplicates"] for each in (first, second, third)] == [1, 1, 1]
    assert [each.metrics["tuples"] for each in (first, second, third)] == [2, 1, 0]


def test_message_ids_of_two_input_streams_are_separate_with_and_without_order_by():
    bolt = bolt_with(length=millis(10), slide=millis(10), timestamp="ts", message_id="id")
    for order_by in ((), ("ts",)):
        stage = TaskStage(bolt, NamedRows(COLUMNS, ("a", "b"), order_by, identified=True), ("a", "b"))
        packets = [packet(table_of([row(1, 1), row(2, 2)]), stream=name) for name in ("b", "a")]
        found = stage.turn(0, Stored(), [*packets, packets[0], control("drain")])
        assert [sorted(values[2]) for _, values in found.rows] == [[1, 1, 2, 2]], order_by
        assert found.metrics["duplicates"] == 2


def test_a_row_without_a_whole_number_as_message_id_is_refused():
    task = Task(bolt_with(length=millis(10), slide=millis(10), timestamp="ts", message_id="id"))
    with pytest.raises(ConfigError, match="bolt 'probe': the message id is None"):
        task.run([row(None, 1)])


class TasksOfIds:
    """The tasks of a bolt with `message_id=` over two streams, whose windows show each accepted row in its batch, and a slow model
    of the ids that each of them knows on a stream.
    """

    def __init__(self) -> None:
        bolt = clock_bolt(length=count(1), slide=count(1), key="key", message_id="id")
        self.stage = TaskStage(bolt, NamedRows(COLUMNS, ("x", "y"), identified=True), ("x", "y"))
        self.states = [TaskState(None, {}, {})]
        self.models: list[dict[str, SortedAnew]] = [{}]

    def task_of(self, key: str, tasks: int) -> int:
        return "ab".index(key) % tasks

    def run(self, batch: list[tuple[str, int, str]]) -> None:
        for task, before in enumerate(self.states):
            rows = [each for each in batch if self.task_of(each[2], len(self.states)) == task]
            wanted, model = [], self.models[task]
            for stream in ("x", "y"):
                ids = [id for of, id, _ in rows if of == stream]
                known = model.setdefault(stream, SortedAnew(REMEMBERED_HERE)) if ids else SortedAnew(1)
                new = sorted({id for id in ids if id not in known})
                wanted += new
                for id in new:
                    known.add(id)
            sent = [
                packet(table_of([{**row(id, 1), "key": key} for of, id, key in rows if of == stream]), stream=stream)
                for stream in {of for of, *_ in rows}
            ]
            result = self.stage.turn(
                task, Stored(before.metadata, before.chunks.get), [*sent, control("tick", now_ms=1)]
            )
            assert sorted(id for _, values in result.rows for id in values[2]) == sorted(wanted)
            assert result.metrics["duplicates"] == len(rows) - len(wanted)
            kept = {key: chunk for key, chunk in before.chunks.items() if key not in set(result.drops)}
            assert not kept.keys() & result.puts.keys(), "a stored block stays as it is"
            self.states[task] = TaskState(result.metadata, kept | dict(result.puts), {})
            listed = state.StoredTask.of(result.metadata, "it")
            blocks = {state.block_key(*name) for name in block_names(listed.seen)}
            assert blocks == {key for key in self.states[task].chunks if state.holds_ids(key)}

    def rescale(self, tasks: int) -> None:
        if all(each.metadata is None for each in self.states):
            return
        self.states = redistributed(self.states, tasks, ("key",), self.task_of, "bolt 'probe'", "keep them")
        union: dict[str, SortedAnew] = {}
        for stream, known in (each for model in self.models for each in model.items()):
            into = union.setdefault(stream, SortedAnew(REMEMBERED_HERE))
            if known.floor is not None:
                into.raise_floor(known.floor)
            for id in sorted(known.ids):
                into.add(id)
        self.models = [deepcopy(union) for _ in range(tasks)]


REMEMBERED_HERE = 40
OF_IDS = st.tuples(st.sampled_from("xy"), st.integers(0, 150), st.sampled_from("ab"))


@given(st.lists(st.one_of(st.lists(OF_IDS, max_size=30), st.sampled_from([1, 2])), max_size=12), st.integers(1, 5))
def test_ids_in_blocks_are_those_of_a_plain_set_through_batches_and_other_numbers_of_tasks(
    steps: list[Any], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicator, "BLOCK", block)
        patch.setattr(deduplicator.ProcessedIds.__init__, "__defaults__", (REMEMBERED_HERE, None))
        tasks = TasksOfIds()
        for at, step in enumerate(steps):
            if isinstance(step, int):
                tasks.rescale(step)
            else:
                tasks.run([(stream, id + 40 * at, key) for stream, id, key in step])


def of_many_ids(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(deduplicator, "BLOCK", 4)
    task = Task(clock_bolt(length=count(100), slide=count(100), message_id="id"))
    task.run([row(id, 1) for id in range(0, 100, 2)])
    assert sum(map(state.holds_ids, task.chunks)) == 11
    assert loads(unframe(META_MAGIC, task.metadata, "it")[8:], "it")["format"] == 3, "an older version refuses it"
    return task


def test_ids_that_an_older_version_stored_as_a_whole_are_known_and_are_cut_into_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = of_many_ids(monkeypatch)
    stored = state.StoredTask.of(task.metadata, "it")
    stored.seen = [["default", [None, 0, *[2] * 49]]]
    task.metadata = stored.stored()
    assert state.StoredTask.of(task.metadata, "it").seen == stored.seen
    assert int.from_bytes(task.metadata[4:6], "big") == 1
    task.chunks = {key: chunk for key, chunk in task.chunks.items() if not state.holds_ids(key)}
    assert [task.run([row(id, 1) for id in (0, 1, 50)]).metrics["duplicates"] for _ in range(2)] == [2, 3]
    assert sum(map(state.holds_ids, task.chunks)) == 11


@pytest.mark.parametrize("options", [{}, {"message_id": "ts"}])
def test_blocks_of_ids_are_deleted_with_the_ids(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = of_many_ids(monkeypatch)
    task.stage = Task(clock_bolt(length=count(100), slide=count(100), **options)).stage
    task.run([row(1, 1)])
    assert not any(map(state.holds_ids, task.chunks))


def test_a_block_of_ids_that_is_missing_or_damaged_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = of_many_ids(monkeypatch)
    first = min(filter(state.holds_ids, task.chunks))
    for blob, text in (
        (None, "is missing from the state store; restore"),
        (b"WNDI\0", "is not ours"),
        (b"WNDI" * 9, "has format"),
    ):
        chunks = {**task.chunks, first: blob}
        sent = [packet(table_of([row(0, 1)])), control("tick")]
        with pytest.raises(CorruptStateError, match=f"task 0, block 0 of the message ids of default {text}"):
            task.stage.turn(0, Stored(task.metadata, chunks.get), sent)


@example([2] * 200, 1, True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=400), st.integers(0, 3), st.booleans())
def test_live_rows_in_runs_or_in_bits_are_read_as_they_were(steps: list[int], rest: int, has_keys: bool) -> None:
    live = np.cumsum(steps) - 1
    chunks = [
        state.Chunk(1, b"a nonce.", int(live[-1]) + 1 + rest, live),
        state.Chunk(2, b"another.", 5, np.arange(1, 4)),
    ]
    blob = state.StoredTask(b"x", chunks, 3, keys=b"y" if has_keys else None).stored()
    runs = 1 + np.count_nonzero(np.diff(live) > 1)
    head = loads(unframe(META_MAGIC, blob, "it")[8 : -2 if has_keys else -1], "it")
    is_in_bits = runs > max(64, chunks[0].rows // 64)
    assert (head["format"], type(head["chunks"][0][3])) == ((3, str) if is_in_bits else (1 + has_keys, list))
    found = state.StoredTask.of(blob, "it")
    assert [(each.rows, each.live.tolist()) for each in found.chunks] == [
        (each.rows, each.live.tolist()) for each in chunks
    ]
    assert (found.executor, found.keys) == (b"x", b"y" if has_keys else None)


def test_a_batch_of_many_rows_with_ids_out_of_order_loses_none():
    task = Task(bolt_with(length=count(200_000), slide=count(200_000), timestamp="ts", message_id="id"))
    rows = [row(number, 1) for number in (*range(0, 200_000, 2), *range(1, 200_000, 2))]
    assert task.run(rows).metrics["duplicates"] == 0


def test_storms_timer_fires_once_per_slide_however_many_batches_there_are() -> None:
    bolt = windowed_bolt(name="ids", length=millis(10), slide=millis(10), semantics="storm", output="ids array<long>")
    task = Task(bolt_of(bolt(lambda window: ([row.id for row in window],))))
    fired = {}
    for now in range(0, 40, 4):  # the timer starts with the first batch; the end of a slide waits for a batch
        fired[now] = [row["ids"] for _, row in task.run([row(now, now)], now_ms=now).rows]
    assert {now: ids for now, ids in fired.items() if ids} == {12: [[0, 4, 8]], 24: [[12, 16, 20]], 36: [[24, 28, 32]]}


@pytest.mark.parametrize("semantics", ["lossless", "storm"])
def test_a_turn_shuts_down_its_triggers_after_their_state_was_taken(semantics: str) -> None:
    log: list[str] = []

    class EachTuple(TriggerPolicy):
        def track(self, event: Any) -> Any:
            return None if event.is_watermark else [EvictionContext(event.timestamp)]

        def start(self) -> None:
            log.append("start")

        def get_state(self) -> None:
            log.append("get_state")

        def shutdown(self) -> None:
            log.append("shutdown")

    task = Task(bolt_with(length=millis(10), timestamp="ts", trigger=EachTuple, semantics=semantics))
    for number in (1, 2):
        task.run(rows_of([(number, "a")], number))
        assert log == ["start", "get_state", "shutdown"] * number


def test_what_a_turn_held_is_freed_when_it_ends_without_the_cycle_collector():
    def held() -> int:
        return sum(type(each) is WindowedBoltExecutor for each in gc.get_objects())

    task = Task(bolt_with(length=count(2), slide=count(2), timestamp="ts"))
    gc.collect()
    gc.disable()
    try:
        before = held()
        assert task.run(rows_of([(1, "a"), (2, "a"), (30, "a")], 1)).rows
        assert held() == before
    finally:
        gc.enable()
