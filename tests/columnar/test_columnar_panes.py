"""Panes over columns: after every batch the row manager and the columnar manager have equal snapshots, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.columnar import ColumnarPaneManager, ColumnRows, Keys, Timestamps
from windowing.columnar.panes import partials_of
from windowing.columnar.rows import coded
from windowing.errors import ConfigError
from windowing.windows import aggregate as agg
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import millis
from windowing.windows.panes import TimePaneManager
from windowing.windows.partials import Aggregation

FLOATS = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 0.1, 1e308, float("nan"), float("inf")]))
TYPES = {
    pa.int64(): st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.float64(): FLOATS,
    pa.float32(): FLOATS,
    pa.string(): st.sampled_from(["a", "b"]),
}
KEYS = {
    pa.int64(): st.integers(0, 3),
    pa.string(): st.sampled_from(["x", "y", ""]),
    pa.date32(): st.dates().map(lambda day: day.replace(year=2000, month=1, day=1 + day.day % 3)),
    pa.bool_(): st.booleans(),
}
NUMBERS = {"n": agg.count(), "f": agg.count("v"), "s": agg.sum("v"), "m": agg.mean("v")}
EXTREMES = {"least": agg.min("v"), "most": agg.max("v"), "n": agg.count()}


@st.composite
def aggregates(draw: Any, kind: pa.DataType) -> dict[str, Any]:
    """Some of the aggregators that take values of a type."""
    possible = {"n": agg.count(), "f": agg.count("v")} if kind == pa.string() else NUMBERS | EXTREMES
    names = draw(st.lists(st.sampled_from(sorted(possible)), min_size=1, unique=True))
    return {name: possible[name] for name in names}


@st.composite
def batches(draw: Any, kind: pa.DataType, keys: list[pa.DataType]) -> list[tuple[pa.Table, list[int]]]:
    """Batches of one schema, mostly in order of time, with nulls."""
    fields = {"v": (kind, TYPES[kind])} | {f"k{at}": (each, KEYS[each]) for at, each in enumerate(keys)}
    some = []
    newest = 0
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 12))
        table = pa.table(
            {
                name: pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), of)
                for name, (of, values) in fields.items()
            }
        )
        stamps = [newest + each for each in draw(st.lists(st.integers(-9, 30), min_size=count, max_size=count))]
        some.append((table, sorted(stamps) if draw(st.booleans()) else stamps))
        newest = max([newest, *stamps])
    return some


@given(
    data=st.data(),
    kind=st.sampled_from(list(TYPES)),
    keys=st.lists(st.sampled_from(list(KEYS)), max_size=3),
    length=st.sampled_from([4, 6, 10]),
    slide=st.sampled_from([2, 4, 10, 15]),
    restarts=st.booleans(),
)
def test_columnar_panes_and_row_panes_have_equal_snapshots_and_effects(data, kind, keys, length, slide, restarts):
    """Snapshots are compared after each batch and each watermark advance, for all types and orders of time."""
    names = tuple(f"k{at}" for at in range(len(keys)))
    config = WindowConfig(
        length=millis(length),
        slide=millis(slide),
        timestamp="ts",
        key=names or None,
        aggregate=data.draw(aggregates(kind)),
    )
    rows, columns = TimePaneManager(config), ColumnarPaneManager(config)
    watermark = -20
    for table, stamps in data.draw(batches(kind, keys)):
        kept = [at for at, stamp in enumerate(stamps) if stamp > watermark]
        table, stamps = table.take(pa.array(kept, pa.int64())), [stamps[at] for at in kept]
        of_row = Keys([table.column(name) for name in names]) if names else None
        list(rows.add_batch(table.to_pylist(), stamps, None if of_row is None else list(of_row)))
        list(columns.add_batch(ColumnRows(table), Timestamps(np.array(stamps, dtype=np.int64)), of_row))
        columns.check()
        assert repr(columns.snapshot()) == repr(rows.snapshot())
        if stamps:
            watermark = max(watermark, max(stamps) - 5)
            assert described(columns.advance(watermark)) == described(rows.advance(watermark))
        if restarts:
            again = ColumnarPaneManager(config)
            again.restore(rows.snapshot())
            columns = again
        assert repr(columns.snapshot()) == repr(rows.snapshot())
    assert described(columns.drain()) == described(rows.drain())


def described(effects: Any) -> str:
    """Return the effects as a driver sees them, as text, in which NaN and -0.0 are distinct."""
    return repr(
        [
            (
                each.window.key,
                each.window.start_timestamp,
                each.window.end_timestamp,
                len(each.window),
                each.window.aggregate,
            )
            if isinstance(each, Activation)
            else each
            for each in effects
        ]
    )


@pytest.mark.parametrize(
    ("values", "aggregate"),
    [
        (pa.array([1, 2, None, 4]), {"s": agg.sum("v"), "n": agg.count(), "f": agg.count("v"), "m": agg.mean("v")}),
        (pa.array([0.5, 0.25, None, -1.5]), {"s": agg.sum("v"), "low": agg.min("v"), "high": agg.max("v")}),
        (pa.array([1, 2, 3, 4], pa.int8()), {"s": agg.sum("v"), "low": agg.min("v")}),
        (pa.array([-0.0, None, -0.0, -0.0]), {"s": agg.sum("v"), "m": agg.mean("v")}),
    ],
)
def test_partial_aggregates_of_numeric_columns_equal_those_of_rows(values, aggregate):
    """`partials_of` returns a result here, not None: these columns are aggregated by NumPy, without a row."""
    groups = np.array([0, 1, 0, 0])
    found = partials_of(Aggregation(aggregate), pa.table({"v": values}), groups, [None, None])
    slow = [Aggregation(aggregate).init() for _ in range(2)]
    for group, value in zip(groups, values.to_pylist(), strict=True):
        fields = Aggregation(aggregate)
        fields.add(slow[group], fields.values([{"v": value}])[0])
    assert repr(found) == repr(slow)


@pytest.mark.parametrize(
    ("values", "aggregate"),
    [
        (pa.array([2**62, 2**62]), agg.sum("v")),
        (pa.array([-0.0, 1.0]), agg.min("v")),
        (pa.array([float("nan"), 1.0]), agg.min("v")),
        (pa.array(["a", "b"]), agg.max("v")),
        (pa.array([1, 2]), agg.fold(lambda: 0, lambda a, v: a + v, lambda a, b: a + b, field="v")),
    ],
)
def test_values_that_numpy_would_aggregate_differently_are_left_to_the_row_path(values, aggregate):
    assert partials_of(Aggregation(aggregate), pa.table({"v": values}), np.array([0, 0]), [None]) is None


@pytest.mark.parametrize(
    ("held", "value", "aggregate"),
    [
        (2**63 - 1, 1, agg.sum("v")),
        (2**70, 1, agg.sum("v")),
        (-(2**63) + 1, -2, agg.mean("v")),
        (float("nan"), 1.0, agg.min("v")),
        (-0.0, 0.0, agg.max("v")),
        (3, 0.5, agg.sum("v")),
    ],
)
def test_so_are_values_that_numpy_would_add_differently_to_what_is_held(held, value, aggregate):
    partial = Aggregation(aggregate).init()
    partial[:] = [1, [held, 1] if aggregate == agg.mean("v") else held]
    assert partials_of(Aggregation(aggregate), pa.table({"v": [value]}), np.array([0]), [partial]) is None


def test_a_missing_column_is_named_and_the_batch_is_not_accepted():
    config = WindowConfig(length=millis(4), slide=millis(4), timestamp="ts", aggregate=agg.sum("v"))
    manager = ColumnarPaneManager(config)
    with pytest.raises(ConfigError, match="'v'"):
        manager.add_batch(ColumnRows(pa.table({"w": [1]})), Timestamps(np.array([1])))
    assert manager.tally.accepted == 0
    list(manager.add_batch([{"v": 3}], [1]))


@pytest.mark.parametrize(
    ("first", "then"),
    [([1e16], [1, 1]), ([1, 1], [0.1, 0.2]), ([2**62, 2**62, 2**62], [1.5]), ([None], [3])],
)
@pytest.mark.parametrize("aggregate", [agg.sum("v"), agg.mean("v"), agg.min("v"), agg.max("v")])
def test_a_batch_with_another_column_type_continues_the_stored_aggregate(first, then, aggregate):
    config = WindowConfig(length=millis(100), slide=millis(100), timestamp="ts", aggregate=aggregate)
    rows, columns = TimePaneManager(config), ColumnarPaneManager(config)
    for values in (first, then):
        table, stamps = pa.table({"v": values}), list(range(1, 1 + len(values)))
        list(rows.add_batch(table.to_pylist(), stamps))
        list(columns.add_batch(ColumnRows(table), Timestamps(np.array(stamps, dtype=np.int32))))
        assert repr(columns.snapshot()) == repr(rows.snapshot())


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0.0, -0.0]),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array([[1], [2]]),
        pa.array([0, 3_600_000_000], pa.timestamp("us", "America/New_York")),
        pa.array([0, 1], pa.timestamp("ns")),
    ],
)
def test_key_columns_whose_equality_differs_between_arrow_and_python_are_refused(column):
    with pytest.raises(ConfigError, match=r"Keys takes columns of whole numbers, .* give a list of the keys"):
        Keys([pa.chunked_array([column])])


@given(
    stamps=st.lists(st.integers(-50, 400), min_size=1, max_size=20),
    late=st.lists(st.integers(-50, 400), max_size=20),
)
def test_late_and_future_rows_are_the_same_for_columns_and_for_lists(stamps, late):
    """Late tuples, and tuples above `max_future_ms`, go to the late stream in the same groups, at the same positions."""
    config = WindowConfig(
        length=millis(10), slide=millis(5), timestamp="ts", key=("k",), aggregate=agg.sum("v"), max_future_ms=250
    )
    seen = []
    for columns in (False, True):
        executor = WindowedBoltExecutor(config)
        executor.use(ColumnarPaneManager(config))
        executor.set_clock(100)
        effects: list[Any] = []
        for batch in (stamps, late):
            table = pa.table({"k": [stamp % 3 for stamp in batch], "v": batch}, schema=SCHEMA)
            rows: Any = ColumnRows(table) if columns else table.to_pylist()
            keys: Any = Keys([table.column("k")])
            times: Any = Timestamps(table.column("v").to_numpy()) if columns else batch
            effects += executor.add_batch(rows, times, keys=keys if columns else list(keys), trusted=True)
            effects += [described([each]) for each in executor.turn()]
            executor.check()
        seen.append((repr(effects), executor.snapshot(), executor.counts()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("aggregate", [agg.sum("v"), agg.mean("v"), {"s": agg.sum("v"), "m": agg.mean("v")}])
def test_a_pane_that_grows_over_batches_adds_floats_in_the_order_of_arrival(aggregate):
    """Floats of very different sizes: another order of addition would give another sum."""
    config = WindowConfig(length=millis(1000), slide=millis(1000), timestamp="ts", key=("k",), aggregate=aggregate)
    rows, columns = TimePaneManager(config), ColumnarPaneManager(config)
    random = np.random.default_rng(5)
    for _ in range(20):
        values = random.random(50) * 10.0 ** random.integers(-9, 9, 50)
        table, stamps = pa.table({"k": random.integers(0, 3, 50), "v": values}), random.integers(1, 1000, 50)
        keys = Keys([table.column("k")])
        list(rows.add_batch(table.to_pylist(), stamps.tolist(), list(keys)))
        list(columns.add_batch(ColumnRows(table), Timestamps(stamps), keys))
        assert repr(columns.snapshot()) == repr(rows.snapshot())


def test_an_offset_that_does_not_fit_into_64_bits_is_added_as_rows():
    config = WindowConfig.of(
        length=millis(10**20), slide=millis(10**20 - 1), offset=millis(10**19), timestamp="ts", aggregate=agg.sum("v")
    )
    rows, columns = TimePaneManager(config), ColumnarPaneManager(config)
    list(rows.add_batch([{"v": 1}, {"v": 2}], [3, 4]))
    list(columns.add_batch(ColumnRows(pa.table({"v": [1, 2]})), Timestamps(np.array([3, 4]))))
    assert columns.snapshot() == rows.snapshot()


SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@given(columns=st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3), data=st.data())
def test_keys_behave_like_a_list_of_the_key_tuples(columns, data):
    count = data.draw(st.integers(0, 10))
    arrays = [
        pa.chunked_array([pa.array(data.draw(st.lists(st.none() | KEYS[kind], min_size=count, max_size=count)), kind)])
        for kind in columns
    ]
    keys = Keys(arrays)
    whole = list(keys)
    numbers, distinct = keys.coded()
    assert len(keys) == len(whole) == count
    assert [distinct[number] for number in numbers] == whole
    assert distinct == list(dict.fromkeys(whole))
    assert list(keys.take(range(0, count, 2))) == whole[::2]
    assert [keys[at] for at in range(count)] == whole


LONGS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)


@given(
    values=st.one_of(st.lists(each) for each in (st.integers(-3, 3), st.integers(10**15, 10**15 + 9), LONGS)),
    ordered=st.booleans(),
)
def test_whole_numbers_are_numbered_by_first_arrival(values, ordered):
    values = sorted(values) if ordered else values
    numbers, distinct = coded(np.array(values, dtype=np.int64))
    assert distinct.tolist() == list(dict.fromkeys(values))
    assert [distinct[number] for number in numbers] == values
