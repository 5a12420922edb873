"""Windows over columns: the same model as for windows over rows, and the properties that only columns have."""

from __future__ import annotations

import gc
import json
import math
import re
import tracemalloc
import weakref
from collections import Counter, OrderedDict, namedtuple
from datetime import date, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windows.histories import FAR_MS, by_op, counts_of, moved, run_steps
from tests.windows.lossless_model import ModelMix, run_model
from windowing import tumbling
from windowing.columnar import ColumnarMachines, ColumnarWindowManager, ColumnBuffer, ColumnRows, viewed
from windowing.columnar.manager import ColumnContent
from windowing.columnar.rows import Timestamps, values_of
from windowing.errors import BoltError, ConfigError, StaleWindowError
from windowing.local import run_local
from windowing.testing.replay import LosslessReplay, config_of
from windowing.testing.strategies import cases
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Late, ListContent, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import count, millis, seconds
from windowing.windows.queue import ListBuffer

EITHER: dict[str, Any] = dict.fromkeys(
    ("event_time", "keyed", "key_ttl", "offset", "lateness", "repeat", "idle", "future", "source")
)


def ids(view: Any) -> list[Any]:
    """The ids in a view of either form."""
    if isinstance(view, pa.Table):
        return view.column("id").to_pylist() if view.num_rows else []
    return view["id"].tolist() if view else []


class Columns(LosslessReplay):
    """A run over columns, with the ids in a column; tuples come one by one as rows, or in batches as tables."""

    def __init__(self, case: dict[str, Any], form: str, sequenced: bool = False) -> None:
        self.sequenced = sequenced
        super().__init__(
            case,
            config_of(case, columnar=form),
            lambda w: [ids(w.get()), ids(w.get_new()), ids(w.get_expired())],
        )

    def build(self) -> WindowedBoltExecutor:
        return WindowedBoltExecutor(self.config, self.streams, sequenced=self.sequenced, columns=ColumnarMachines())

    def _tuple(self, op: Any) -> Any:
        payload, *more = super()._tuple(op)
        return {"id": payload}, *more

    def _events(self, index: int, effect: Any) -> Any:
        for event in super()._events(index, effect):
            if event[1] == "expire":
                event[2] = [row["id"] for row in event[2]]
            elif event[1] == "late":
                event[2] = event[2]["id"]
            yield event


@pytest.mark.parametrize("mix", list(ModelMix))
@given(
    data=st.data(),
    batched=st.booleans(),
    form=st.sampled_from(["arrow", "numpy"]),
    sequenced=st.booleans(),
    by_ms=st.sampled_from([0, 0, *FAR_MS]),
)
def test_columnar_windows_match_the_model(mix, data, batched, form, sequenced, by_ms):
    case = moved(data.draw(cases(mix=mix, **{**EITHER, "max_steps": 24})), by_ms) | {"batched": batched}
    run = Columns(case, form, sequenced)
    events = []
    for step in run_steps(case, run):
        events += step
        run.executor.check()
    expected = run_model(case)
    assert by_op(events) == by_op(expected.events)
    assert run.executor.counts() == counts_of(expected)
    assert run.executor.side == Counter(expected.late_reasons.values())
    if not run.executor.closed:
        assert (-math.inf if run.executor.watermark is None else run.executor.watermark) == expected.watermark


@given(data=st.data(), batched=st.booleans())
def test_a_columnar_executor_restored_after_any_step_continues_with_the_same_events(data, batched):
    case = data.draw(cases(mix=None, **{**EITHER, "max_steps": 24})) | {"batched": batched}
    run, events = Columns(case, "arrow"), []
    for step in run_steps(case, run):
        events += step
        saved = json.dumps(run.executor.snapshot())
        run.executor = run.build()
        run.executor.restore(json.loads(saved))
        run.executor.check()
        assert json.dumps(run.executor.snapshot()) == saved
    assert by_op(events) == by_op([event for step in run_steps(case, Columns(case, "arrow")) for event in step])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("stage"), st.lists(st.integers(0, 20), min_size=1, max_size=6)),
            st.tuples(st.just("one"), st.integers(0, 20)),
            st.tuples(st.just("trim"), st.integers(0, 10)),
        ),
        max_size=12,
    )
)
def test_a_column_buffer_answers_every_query_like_a_list_buffer(steps):
    lists, columns, sequence = ListBuffer(sequenced=True), ColumnBuffer(sequenced=True), 0
    for kind, value in steps:
        if kind == "trim":
            low = min(lists.base + value, lists.end)
            lists.trim(low)
            columns.trim(low)
            continue
        times = value if kind == "stage" else [value]
        rows = [{"n": sequence + at} for at in range(len(times))]
        if kind == "stage":
            lists.stage(times, rows, sequence)
            columns.stage(times, ColumnRows.of(rows), sequence)
        else:
            lists.stage_one(value, rows[0], sequence)
            columns.stage_one(value, rows[0], sequence)
        sequence += len(times)
        assert columns.end + len(columns.staged) == lists.end + len(lists.staged)
        lists.settle()
        columns.settle()
        columns.check()
        low, high = max(lists.base, columns.base), lists.end
        assert (columns.end, columns.staged) == (lists.end, [])
        assert list(columns.slice(low, high)) == lists.slice(low, high)
        for at in range(low, high):
            assert columns.timestamp_at(at) == lists.timestamp_at(at)
        for timestamp in range(-1, 22):
            assert columns.position_after(timestamp, low) == lists.position_after(timestamp, low)
            assert columns.position_after(timestamp, low, high) == lists.position_after(timestamp, low, high)
        assert list(columns.sequences_from(low)) == list(lists.sequences_from(low))
        for number in (0, sequence // 2, sequence):
            assert list(columns.arrived_before(low, high, number)) == lists.arrived_before(low, high, number)
            middle = (low + high) // 2
            assert list(columns.arrived_after(low, high, number, middle)) == lists.arrived_after(
                low, high, number, middle
            )


RUNS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=3)


@pytest.mark.parametrize("columns", [False, True])
@given(stored=st.lists(st.integers(0, 5), min_size=1, max_size=4), settled=RUNS, staged=RUNS)
def test_tuples_that_are_loaded_late_come_before_newer_ones_of_their_time(columns, stored, settled, staged):
    """A driver may load the tuples of a key after new ones came: the queue has settled some, others are staged."""
    stored, first = sorted(stored), len(stored)
    buffer = ColumnBuffer(sequenced=True) if columns else ListBuffer(sequenced=True)
    wanted = [(time, number) for number, time in enumerate(stored)]
    for runs in (settled, staged):
        for times in runs:
            rows = [{"n": first + at} for at in range(len(times))]
            buffer.stage(times, ColumnRows.of(rows) if columns else rows, first)
            wanted += zip(times, range(first, first + len(times)), strict=True)
            first += len(times)
        if runs is settled:
            buffer.settle()
    payloads = [{"n": number} for number in range(len(stored))]
    buffer.fill({"base": 0, "timestamps": stored, "payloads": payloads, "sequences": range(len(stored))})
    buffer.settle()
    buffer.check()
    assert [row["n"] for row in buffer.slice(0, buffer.end)] == [number for _, number in sorted(wanted)]


# -- views -------------------------------------------------------------------------------------------------------------


def table_of(first: int, number: int) -> ColumnRows:
    n = np.arange(first, first + number)
    return ColumnRows(pa.table({"k": n % 7, "v": n * 0.5}))


ENDS = st.none() | st.integers(-12, 12)
SLICES = st.builds(slice, ENDS, ENDS, st.none() | st.sampled_from([-3, -2, -1, 1, 2, 3]))


@given(st.integers(0, 9), st.lists(SLICES, max_size=3), st.integers(-12, 12))
def test_rows_in_columns_have_the_items_and_slices_of_a_list(number: int, slices: list[slice], at: int) -> None:
    rows = table_of(0, number)
    model = list(rows)
    for part in slices:
        rows, model = rows[part], model[part]
        assert (list(rows), len(rows), rows == model) == (model, len(model), True)
    if -len(model) <= at < len(model):
        assert rows[at] == model[at]
    else:
        with pytest.raises(IndexError, match=rf"row {at} of {len(model)} rows"):
            rows[at]


def executor_of(form: str | None, **options: Any) -> WindowedBoltExecutor:
    config = WindowConfig.of(**{"length": count(4), "slide": count(2), "timestamp": "ts", "columnar": form, **options})
    return WindowedBoltExecutor(config, columns=ColumnarMachines())


def test_an_arrow_window_shares_the_memory_of_its_input_batch():
    executor, rows = executor_of("arrow"), table_of(0, 6)
    address = rows.table.column("v").chunk(0).buffers()[1].address
    list(executor.add_batch(rows, list(range(6))))
    seen = []
    for effect in executor.turn():
        if isinstance(effect, Activation):
            column = effect.window.column("v")
            assert column.num_chunks == 1
            assert column.chunk(0).buffers()[1].address == address
            seen.append(column.to_pylist())
            assert effect.window.get().column("v").to_pylist() == seen[-1]
    assert seen == [[0.0, 0.5], [0.0, 0.5, 1.0, 1.5], [1.0, 1.5, 2.0, 2.5]]


def test_a_numpy_window_is_a_read_only_view_of_its_input_batch():
    executor, rows = executor_of("numpy"), table_of(0, 4)
    whole = rows.table.column("v").chunk(0).to_numpy()
    list(executor.add_batch(rows, list(range(4))))
    windows = []
    for effect in executor.turn():
        if isinstance(effect, Activation):
            found = effect.window.get()["v"]
            assert np.shares_memory(found, whole)
            assert np.shares_memory(effect.window.column("v"), whole)
            with pytest.raises(ValueError, match="read-only"):
                found[0] = 1.0
            windows.append(
                (found.tolist(), effect.window.get_new()["v"].tolist(), effect.window.get_expired()["v"].tolist())
            )
    assert windows == [([0.0, 0.5], [0.0, 0.5], []), ([0.0, 0.5, 1.0, 1.5], [1.0, 1.5], [])]


def test_a_window_over_several_batches_is_concatenated_for_numpy_and_chunked_for_arrow():
    for form in ("arrow", "numpy"):
        executor = executor_of(form, slide=count(4))
        for first in (0, 2):
            list(executor.add_batch(table_of(first, 2), [first, first + 1]))
        [window] = [
            (effect.window.column("v"), effect.window.get()["v"])
            for effect in executor.turn()
            if isinstance(effect, Activation)
        ]
        for column in window:
            assert column.tolist() == [0.0, 0.5, 1.0, 1.5] if form == "numpy" else column.num_chunks == 2


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_whole_numbers_beside_a_null_become_floats_only_if_none_is_rounded(value, kind):
    if value < 0 and pa.types.is_unsigned_integer(kind):
        value = 2**64 - 1
    assert ColumnRows.of(pa.table({"v": pa.array([value, None, 7], kind)})).array("v").tolist() == [value, None, 7]
    exact = ColumnRows.of(pa.table({"v": pa.array([2**53, None], kind)})).array("v")
    assert (exact.dtype, exact[0], np.isnan(exact[1])) == (np.float64, 2**53, True)
    assert ColumnRows.of(pa.table({"v": pa.array([None, None], kind)})).array("v").dtype == np.float64
    for nested, rows in (
        (pa.struct({"a": kind}), [{"a": value}, {"a": None}, None]),
        (pa.list_(kind), [[value, None], None, [7]]),
        (pa.list_(kind, 2), [[value, None], [7, 7]]),
        (pa.list_(kind, 2), [[value, 7], None]),
        (pa.list_(pa.struct({"a": pa.large_list(kind)})), [[{"a": [value]}, {"a": [None]}]]),
    ):
        assert ColumnRows.of(pa.table({"v": pa.array(rows, nested)})).array("v").tolist() == rows


def test_a_loop_over_a_window_gives_columns_of_arrow_and_names_of_arrays():
    found = []
    for form in ("arrow", "numpy"):
        executor = executor_of(form, slide=count(2))
        list(executor.add_batch(table_of(0, 2), [0, 1]))
        found += [list(effect.window) for effect in executor.turn() if isinstance(effect, Activation)]
    assert [[column.to_pylist() for column in found[0]], found[1]] == [[[0, 1], [0.0, 0.5]], ["k", "v"]]


def test_a_number_in_place_of_the_name_of_an_array_says_that_a_window_is_columns():
    executor = executor_of("numpy", slide=count(2))
    list(executor.add_batch(table_of(0, 2), [0, 1]))
    for effect in executor.turn():
        if isinstance(effect, Activation):
            with pytest.raises(TypeError, match=r"is columns, and 0 names none; write window\['v'\]"):
                effect.window[0]


def test_reading_a_window_after_its_activation_raises_stale_window_error():
    executor = executor_of("arrow")
    list(executor.add_batch(table_of(0, 2), [0, 1]))
    windows = [effect.window for effect in executor.turn() if isinstance(effect, Activation)]
    for ask in (lambda: windows[0].get(), lambda: windows[0].column("v")):
        with pytest.raises(StaleWindowError):
            ask()


def test_late_tuples_of_a_columnar_executor_are_rows():
    executor = executor_of("arrow", length=millis(10), slide=millis(10))
    list(executor.add_batch(table_of(0, 2), [5, 30]))
    list(executor.turn())
    [(at, late)] = list(executor.add_batch(table_of(2, 3), [31, 7, 32]))
    assert isinstance(late, Late)
    assert (at, list(late.payloads)) == (1, [{"k": 3, "v": 1.5}])
    assert (executor.counts()["shown"], executor.counts()["pending"]) == (2, 2)


def test_late_tuples_among_others_are_made_of_columns_in_one_step():
    made: list[int] = []

    def rows_of(table: pa.Table) -> list[Any]:
        made.append(table.num_rows)
        return table.to_pylist()

    config = WindowConfig.of(length=millis(10), slide=millis(10), timestamp="ts", columnar="arrow")
    executor = WindowedBoltExecutor(config, columns=ColumnarMachines())
    executor.track("default", 100)
    assert list(executor.turn()) == []
    stamps = np.array([100 + at if at % 2 else at for at in range(1_000)])
    rows = ColumnRows(pa.table({"id": np.arange(1_000)}), rows_of)
    effects = list(executor.add_batch(rows, Timestamps(stamps)))
    late = [at for at in range(0, 1_000, 2) if at <= 100]
    assert [(at, list(effect.payloads), list(effect.timestamps)) for at, effect in effects] == [
        (at, [{"id": at}], [at]) for at in late
    ]
    assert made == [len(late)]


def test_a_keyed_columnar_executor_fires_one_window_per_key():
    executor = executor_of("numpy", length=millis(10), slide=millis(10), key="k")
    rows = table_of(0, 9)
    list(executor.add_batch(rows, list(range(1, 10)), keys=rows.field_values("k")))
    found = {e.window.key: e.window.column("v").tolist() for e in executor.drain() if isinstance(e, Activation)}
    assert found == {k: [n * 0.5 for n in range(9) if n % 7 == k] for k in range(7)}


def test_column_returns_a_list_for_rows_and_a_missing_column_is_named():
    rows = TupleWindow(ListContent([{"v": 1}, {"v": 2}], [{"v": 2}], [{"v": 0}]), 0, 10)
    assert rows.column("v") == [1, 2]
    with pytest.raises(ConfigError, match=r"column\(\) reads the field 'w'"):
        rows.column("w")
    columns = viewed(rows, "numpy")
    assert columns.column("v").tolist() == [1, 2]
    parts = (columns.get(), columns.get_new(), columns.get_expired())
    assert [part["v"].tolist() for part in parts] == [[1, 2], [2], [0]]
    assert len(columns) == 2
    with pytest.raises(ConfigError, match="has no column 'w', it has 'v'"):
        columns.column("w")
    assert viewed(rows, None) is rows
    rows.invalidate()
    with pytest.raises(StaleWindowError):
        columns.get()


def test_tuples_without_fields_are_refused_by_a_columnar_executor():
    executor = executor_of("arrow")
    with pytest.raises(ConfigError, match="tuples with named fields, got 'x'"):
        executor.add_batch(["x"], [1])


@pytest.mark.parametrize("form", ["arrow", "numpy"])
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [{"v": 1}, {"v": 2, "u": 7}, {"v": 3}],
            "first row has 'v', another one 'v', 'u': {'v': 2, 'u': 7}; write None",
        ),
        ([{"v": 1, "u": 7}, {"v": 2}], "first row has 'v', 'u', another one 'v': {'v': 2}; write None"),
        ([{"v": 1}, {"u": 2}], "first row has 'v', another one 'u': {'u': 2}; write None"),
        ([{"v": 1}, {}], "first row has 'v', another one none: {}; write None"),
        ([{"v": 1}, (2,)], "needs tuples with named fields, got (2,); send dicts"),
        ([{"v": None}, {"v": "a"}, {"v": 3}], "column 'v' cannot hold 3 beside 'a', wanted"),
        ([{"u": 0, "v": 1}, {"u": 0, "v": 2.5}, {"u": 0, "v": "a"}], "column 'v' cannot hold 'a' beside 1, wanted"),
        ([{"v": 1}, {"v": 2**70}], f"column 'v' cannot hold {2**70} beside 1, wanted numbers of 64 bits"),
        ([{"v": 1j}], "column 'v' cannot hold 1j, wanted"),
        (
            [{"v": date(2020, 1, 1)}, {"v": datetime(2020, 1, 1, 9, 30)}],
            "cannot hold datetime.datetime(2020, 1, 1, 9, 30) beside",
        ),
        ([{"v": datetime(2020, 1, 1, 9, 30)}, {"v": date(2020, 1, 1)}], "cannot hold datetime.date(2020, 1, 1) beside"),
        ([{"v": "a"}, {"v": b"b"}], "column 'v' cannot hold b'b' beside 'a', wanted"),
        ([{"v": [b"a"]}, {"v": None}, {"v": ["b"]}], "column 'v' cannot hold ['b'] beside [b'a'], wanted"),
    ],
)
def test_rows_that_cannot_become_columns_fail_the_bolt_with_an_error_that_names_the_row(form, rows, sentence):
    @tumbling(count(len(rows)), columnar=form, output="n long")
    def sizes(window):
        return len(window.get())

    with pytest.raises(BoltError, match=re.escape(sentence)) as caught:
        run_local(sizes, [rows])
    assert "bolt 'sizes' failed on TupleWindow" in str(caught.value)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ColumnRows.of(rows)


def test_rows_with_equal_fields_in_any_order_or_row_class_become_columns():
    named = namedtuple("Named", "u v")(5, 6)
    rows = [{"v": 1, "u": 2}, {"u": 4, "v": None}, named, OrderedDict(u=7, v=8)]
    assert ColumnRows.of(rows).table.to_pydict() == {"v": [1, None, 6, 8], "u": [2, 4, 5, 7]}
    assert ColumnRows.of([]).table.equals(pa.table({}))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columnar": "pandas"}, "columnar is 'arrow' or 'numpy'"),
        ({"eviction": lambda: None}, "columnar='arrow' cannot go with eviction"),
        ({"semantics": "storm"}, "columnar='arrow' cannot go with semantics"),
        ({"max_events_in_memory": 5000}, "cannot go with max_events_in_memory"),
    ],
)
def test_options_that_columnar_does_not_support_are_refused_at_declaration(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        executor_of("arrow", **options) if "columnar" not in options else executor_of(options["columnar"])


def test_a_columnar_window_manager_without_columnar_is_refused():
    with pytest.raises(ConfigError, match="give columnar="):
        ColumnarWindowManager(WindowConfig.of(length=count(4), timestamp="ts"))


@pytest.mark.parametrize(
    "options",
    [{}, {"key": "k"}, {"aggregate": {"total": agg.sum("ts")}}, {"key": "k", "aggregate": {"total": agg.sum("ts")}}],
)
@pytest.mark.parametrize("form", [None, "arrow", "numpy"])
def test_a_machine_is_freed_without_the_garbage_collector_which_workers_hardly_run(form, options):
    executor = executor_of(form, length=seconds(10), slide=seconds(5), **options)
    list(executor.add_batch([{"k": "a", "ts": 1}, {"k": "b", "ts": 7_000}], [1, 7_000]))
    list(executor.turn())
    machine = weakref.ref(executor.manager)
    gc.disable()
    try:
        del executor
        assert machine() is None
    finally:
        gc.enable()


def test_a_buffered_row_of_three_numeric_columns_takes_at_most_40_bytes():
    executor = executor_of("arrow", length=seconds(3600), slide=seconds(3600))
    number, batch = 200_000, 10_000
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for first in range(0, number, batch):
        n = np.arange(first, first + batch)
        rows = ColumnRows(pa.table({"k": pa.array(n % 7), "ts": pa.array(n), "v": pa.array(n * 0.5)}).combine_chunks())
        list(executor.add_batch(rows, list(range(first + 1, first + batch + 1))))
        del rows, n
        list(executor.turn())
    python = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    held = python + pa.total_allocated_bytes() - before
    assert executor.counts()["pending"] == number
    assert held / number <= 40, f"{held / number:.1f} bytes an event"


ZONES = (None, "UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati", "+05:30", "-11:00")
HELD = {  # by type: the smallest and the largest value that Python can hold, before its zone is added
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.date32(): (-719_162, 2_932_896),
    **{
        pa.timestamp(unit, zone): (-62_135_596_800 * scale, 253_402_300_800 * scale - 1)
        for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6))
        for zone in ZONES
    },
}


def same_as_arrow(column):
    """Check that `values_of` returns the values of `to_pylist`: the same class, zone and fold, or the same error."""
    try:
        wanted = column.to_pylist()
    except (OverflowError, ValueError) as problem:
        with pytest.raises(type(problem)):
            values_of(column)
        return
    found = values_of(column)
    assert found == wanted
    in_utc = [repr(value).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc") for value in wanted]
    assert list(map(repr, found)) == in_utc


def times(kind, numbers):
    return pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)


@given(kind=st.sampled_from(list(HELD)), data=st.data())
def test_values_of_equals_to_pylist_of_arrow(kind, data):
    first, last = HELD[kind]
    some = st.none() | st.integers(first, last) | st.integers(0, min(last, 2 * 10**15)) | st.sampled_from([first, last])
    parts = [times(kind, part) for part in data.draw(st.lists(st.lists(some, max_size=5), max_size=3))]
    for each in (pa.chunked_array(parts, kind), *parts, *(part[1:] for part in parts)):
        same_as_arrow(each)


@pytest.mark.parametrize("kind", [kind for kind in HELD if kind != pa.int64()], ids=str)
def test_values_of_raises_the_error_of_arrow_for_a_time_out_of_range(kind):
    first, last = HELD[kind]
    for numbers in ([first], [last], [first - 1], [last + 1], [0, None, last + 1]):
        same_as_arrow(times(kind, numbers))


def test_a_slice_of_some_columns_has_only_these():
    rows = ColumnRows(pa.table({"k": [1, 2, 3], "v": [4, 5, 6]})).select(["v"])
    assert list(rows[1:]) == [{"v": 5}, {"v": 6}]
    assert rows[1:].names == ["v"]
    assert rows.array("v").tolist() == [4, 5, 6]


def test_an_empty_part_of_a_window_of_rows_with_declared_columns_makes_no_columns_of_the_others() -> None:
    class Rows:
        def __len__(self) -> int:
            return 2

        def current(self) -> Any:
            raise AssertionError("a conversion of all rows")

        def new(self) -> Any:
            return []

    declared = pa.schema([("v", pa.int64())])
    assert ColumnContent(cast(Any, Rows()), "arrow", declared).new().schema == declared
    assert ColumnContent(cast(Any, Rows()), "numpy", declared).new()["v"].dtype == np.int64
