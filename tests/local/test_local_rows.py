"""How the local driver reads timestamps, keys and sources of a row, by the same rules as on Spark."""

from __future__ import annotations

import copy
import re
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas
import pyarrow
import pytest

from windowing import (
    Activation,
    InputSpout,
    LateReason,
    TopologyBuilder,
    WindowConfig,
    WindowedBoltExecutor,
    count,
    seconds,
    sliding,
    tumbling,
)
from windowing.codec import dumps, loads
from windowing.errors import ConfigError, InvalidTimestampError, WindowingError
from windowing.local import LocalRun, VirtualClock, explain, run_local, run_topology
from windowing.schema.rows import record_of
from windowing.schema.tuples import Fields, Origin, Tuple, tuple_type
from windowing.schema.values import InvalidTimestampWarning
from windowing.topology.window_task import field_of, keys_of, source_of, timestamps_of
from windowing.windows import aggregate as agg
from windowing.windows.events import column_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        (-7, -7),
        (7.0, 7),
        (Decimal("7"), 7),
        (np.int64(7), 7),
        (datetime(1970, 1, 1, 0, 0, 0, 7_999), 7),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(2024, 2, 29, tzinfo=UTC), 1_709_164_800_000),
        (date(1970, 1, 2), 86_400_000),
        (7.5, None),
        (Decimal("NaN"), None),
        (Decimal("1E+1000000"), None),  # as a whole number it takes minutes to make
        (float("nan"), None),
        (float("inf"), None),
        ("7", None),
        (True, None),
        (None, None),
    ],
)
def test_a_timestamp_field_is_read_as_on_spark(value, expected):
    assert timestamp_ms({"at": value}, "at") == expected


def timestamp_ms(row, timestamp):
    ((found,), problem) = timestamps_of([row], timestamp, "bolt")
    assert problem is None
    return found


def test_a_timestamp_function_returns_whole_milliseconds_or_the_tuple_is_invalid():
    @tumbling(seconds(1), timestamp=lambda row: row["s"] * 1000, late_stream="late", output="n long")
    def size(window):
        return len(window)

    rows = [{"s": 1}, {"s": 0.5}, {"s": 0.0005}, {"s": None}, {"t": 1}]
    with pytest.warns(InvalidTimestampWarning, match=r"bolt 'size': .* gave 0\.5 for .*; such rows are invalid"):
        result = run_local(size, [rows])
    assert result["default"] == [(2,)]  # 0.5 s are 500.0 ms, a whole number
    assert [reason for _, reason in result.late] == [LateReason.INVALID] * 3


def test_a_warning_has_the_line_of_the_users_that_led_to_it():
    @tumbling(seconds(1), timestamp=lambda row: "soon", late_stream="late", output="n long")
    def size(window):
        return len(window)

    builder = TopologyBuilder("sizes")
    builder.set_spout("rows", InputSpout("at long"))
    builder.set_bolt("size", size).shuffle_grouping("rows")
    topology = builder.build()
    builder.configure({"topology.workers": 2})
    calls = [
        lambda: run_local(size, [[{"at": 1}]]),
        lambda: run_local(size_of, [[{"word": "a"}]]),
        lambda: run_topology(topology, {"rows": [[(1,)]]}, clock=VirtualClock()),
        builder.build,
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="such rows are invalid|without effect") as caught:
            call()
        assert caught[0].filename == __file__


@pytest.mark.parametrize("timestamp", [lambda row: row["at"], lambda row: row.at, "at"])
@pytest.mark.parametrize(
    "value", [7, 7.0, Decimal("7"), np.int64(7), datetime(1970, 1, 1, 0, 0, 0, 7_999), date(1970, 1, 1)]
)
def test_a_timestamp_function_may_return_any_value_that_a_field_may_have(timestamp, value):
    assert timestamp_ms(record_of({"at": value}), timestamp) == timestamp_ms({"at": value}, "at") is not None


def test_with_on_invalid_raise_an_unusable_timestamp_ends_the_run():
    @tumbling(seconds(1), timestamp="at", on_invalid="raise", output="n long")
    def size(window):
        return len(window)

    with pytest.raises(InvalidTimestampError, match="'size'"):
        run_local(size, [[{"at": None}]])


@tumbling(seconds(1), timestamp="at", output="n long")
def size_of(window):
    return len(window)


@pytest.mark.parametrize("row", [{"word": "a", "time": 1}, namedtuple("Other", "word time")("a", 1)])
def test_a_row_without_its_timestamp_field_is_invalid_and_the_warning_lists_its_fields(row):
    with pytest.warns(InvalidTimestampWarning, match="field 'at' is asked for, but a row has word, time: "):
        result = run_local(size_of, [[row, {"at": 1}]])
    assert result["default"] == [(1,)]
    assert result.late == [(("a", 1), LateReason.INVALID)]


@pytest.mark.parametrize("row", [("a", 1), ["a", 1], None, "a", 1])
def test_a_row_without_names_is_invalid_and_the_warning_says_what_a_row_is(row):
    with pytest.warns(
        InvalidTimestampWarning, match=r"^bolt 'size_of': field 'at' .* has no names; give dicts, \{'at': \.\.\.\}"
    ):
        assert run_local(size_of, [[row, {"at": 1}]])["default"] == [(1,)]


def test_an_invalid_timestamp_error_has_the_cause():
    @tumbling(seconds(1), timestamp=lambda row: row["att"], on_invalid="raise", output="n long")
    def size(window):
        return len(window)

    with pytest.raises(InvalidTimestampError, match=r"function .*<lambda>.* on .*KeyError: .*no field 'att'") as caught:
        run_local(size, [[{"at": 1}]])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("option", ["key", "source"])
def test_a_row_without_its_key_or_source_field_is_refused_with_its_fields(option):
    @tumbling(seconds(1), timestamp="at", output="n long", **{option: "word"})
    def size(window):
        return len(window)

    for row in ({"at": 1, "time": 1}, namedtuple("Other", "at time")(1, 1)):
        with pytest.raises(ConfigError, match="field 'word' is asked for, but a row has at, time: "):
            run_local(size, [[row]])


@pytest.mark.parametrize("options", [{}, {"aggregate": agg.count()}, {"max_events_in_memory": 5000}])
@pytest.mark.parametrize(
    ("key", "value"), [("tags", ["a"]), (("word", "tags"), ["a"]), ("tags", {"x": 1}), ("tags", (1, ["a"]))]
)
def test_an_unhashable_key_is_refused_with_bolt_and_field(key, value, options):
    @tumbling(seconds(1), timestamp="at", key=key, output="n long", **options)
    def sizes(window):
        return 1

    rows = [{"at": 1, "word": "a", "tags": "b"}, {"at": 1, "word": "a", "tags": value}]
    sentence = f"key of bolt 'sizes' names field 'tags', which is {value} in a row, a {type(value).__name__} without a hash; give"
    with LocalRun(sizes) as run:
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            run.feed(rows)
        with pytest.raises(WindowingError, match="the run of bolt 'sizes' is over: it ended with ConfigError"):
            run.turn()


def test_keys_and_sources_are_read_by_name():
    row = {"a": 1, "b": "x", "c": None}
    assert (keys_of([row], ("a",)), keys_of([row], ("a", "b"))) == ([1], [(1, "x")])
    assert (source_of(row, "a"), source_of(row, "c")) == ("1", None)
    assert field_of(row, "c") is None


class Unreadable:
    def __float__(self):
        raise RuntimeError("no number")


@pytest.mark.parametrize("odd", ["soon", None, Unreadable()])
def test_records_of_one_type_are_read_in_columns_with_the_values_of_rows_one_by_one(odd):
    rows = [{"flight no": 7, "count": float("nan"), "at": 1.0}, {"flight no": 8, "count": 2, "at": odd}]
    records = list(map(record_of, rows))
    for names in (("count",), ("flight no",), ("count", "flight no")):
        assert keys_of(records, names) == keys_of(rows, names) == keys_of([records[0], rows[1]], names)
    assert timestamps_of(records, "at", "bolt") == timestamps_of(rows, "at", "bolt")
    assert timestamps_of(records, "at", "bolt")[0] == [1, None]
    assert run_local(flights, [rows]).rows["default"] == [(15,)]


@pytest.mark.parametrize("kind", [Tuple, tuple_type(Tuple, ("select", "source_task", "at"))])
def test_tuples_are_read_as_records_are_also_a_field_with_the_name_of_a_method(kind):
    rows = [{"select": 7, "source_task": "a", "at": 1}, {"select": float("nan"), "source_task": "b", "at": "soon"}]
    origin = Origin("spout", 3, Fields(rows[0]))
    records, tuples = list(map(record_of, rows)), [kind(tuple(row.values()), origin) for row in rows]
    for names in (("select",), ("source_task",), ("source_task", "select")):
        assert keys_of(tuples, names) == keys_of([tuples[0], records[1]], names) == keys_of(records, names)
    assert timestamps_of(tuples, "at", "bolt") == timestamps_of(records, "at", "bolt") == ([1, None], None)
    assert column_of("select", tuples[:1]) == [7]
    with pytest.raises(ConfigError, match="field 'k' is asked for, but a row has select, source_task, at"):
        keys_of(tuples, ("k",))


@tumbling(count(2), output="total long", aggregate=agg.sum("flight no"))
def flights(window):
    return window.aggregate


@pytest.mark.parametrize("fields", [("k",), ("k", "at")])
def test_nan_is_one_key_after_a_restart_too(fields):
    config = WindowConfig.of(length=count(2), slide=count(2), timestamp="at", key=fields)
    first, second = WindowedBoltExecutor(config), WindowedBoltExecutor(config)
    for at in (1, 1):
        assert list(first.add("row", at, key=keys_of([{"k": float("nan"), "at": 1}], fields)[0])) == []
    first.check()
    second.restore(loads(dumps(first.snapshot()), "a test"))
    second.check()
    list(second.add("row", 1, key=keys_of([{"k": float("nan"), "at": 1}], fields)[0]))
    second.check()
    assert [len(effect.window) for effect in second.turn() if isinstance(effect, Activation)] == [2]
    assert len(second.snapshot()["manager"]["tracks"]) == 1


@pytest.mark.parametrize("value", ["2024-01-01 00:00:00", 1_700_000_000.5, 2**63])
def test_rows_without_any_usable_timestamp_are_warned_of_once_with_the_first_value(value):
    @tumbling(seconds(5), timestamp="at", output="n long")
    def sizes(window):
        return len(window)

    said = rf"bolt 'sizes': no row so far has a usable timestamp in 'at', the first one is {value!r}"
    with pytest.warns(InvalidTimestampWarning, match=said) as caught:
        assert run_local(sizes, [[{"at": None}, {"at": value}], [{"at": value}]])["default"] == []
    assert len(caught) == 1
    with LocalRun(sizes) as run:
        run.feed([{"at": None}])
        with pytest.warns(InvalidTimestampWarning, match=said):
            run.feed([{"at": value}])
        run.feed([{"at": value}])
    if isinstance(value, float):
        builder = TopologyBuilder()
        builder.set_spout("in", InputSpout("at double"))
        builder.set_bolt("sizes", sizes).global_grouping("in")
        with pytest.warns(InvalidTimestampWarning, match=said) as caught:
            assert run_topology(builder.build(), {"in": [[(value,)], [(value,)]]})["sizes"] == []
        assert len(caught) == 1


def test_a_run_in_which_every_timestamp_is_none_is_warned_of():
    @tumbling(seconds(5), timestamp="at", output="n long")
    def sizes(window):
        return len(window)

    with pytest.warns(InvalidTimestampWarning, match=r"no row has a timestamp in 'at', which is None in all of them"):
        run_local(sizes, [[{"at": None}], [{"at": None}]])
    builder = TopologyBuilder()
    builder.set_spout("in", InputSpout("at long"))
    builder.set_bolt("both", sizes, 2).shuffle_grouping("in")
    with pytest.warns(InvalidTimestampWarning, match=r"bolt 'both': no row has a timestamp in 'at'") as caught:
        run_topology(builder.build(), {"in": [[(None,), (None,), (None,)]]})
    assert len(caught) == 1
    run_topology(builder.build(), {"in": [[(None,), (1,), (None,), (None,)]]})
    run_topology(builder.build(), {"in": [[]]})


def test_a_run_whose_timestamp_function_returns_nothing_is_warned_of():
    def at(row):
        row["at"] * 1000  # without `return`

    @tumbling(seconds(5), timestamp=at, output="n long")
    def sizes(window):
        return len(window)

    with pytest.warns(InvalidTimestampWarning, match=r"no row has a timestamp because '.*at' returned None for"):
        run_local(sizes, [[{"at": 1}], [{"at": 2}]])


@pytest.mark.parametrize(("unit", "many"), [("microseconds", 10**6), ("nanoseconds", 10**9)])
@pytest.mark.parametrize("field", [True, False])
def test_other_units_given_as_timestamps_are_warned_of(unit, many, field):
    @tumbling(seconds(10), timestamp="seen" if field else lambda row: row["seen"], output="n long")
    def sizes(window):
        return len(window)

    said = rf"its first timestamp is 17{'0' * 8}{str(many)[1:]}, .* if these are {unit}, give milliseconds: "
    said += rf"timestamp=lambda row: row\[{'.seen.' if field else '...'}\] // "
    with pytest.warns(UserWarning, match=said) as caught:
        run_local(sizes, [[{"seen": None}, {"seen": 1_700_000_000 * many}], [{"seen": 1_700_000_000 * many}]])
    assert len(caught) == 1


@pytest.mark.filterwarnings("error")
def test_a_task_after_a_restart_knows_that_earlier_rows_had_usable_timestamps():
    @tumbling(seconds(5), timestamp="at", output="n long")
    def sizes(window):
        return len(window)

    result = run_local(sizes, [[{"at": 1_700_000_000_000}], [{"at": "soon"}]], restarts=True)
    assert (result["default"], len(result.late)) == ([(1,)], 1)


def test_seconds_given_as_timestamps_are_warned_of_once_in_each_task():
    @tumbling(seconds(10), timestamp="at", output="n long")
    def sizes(window):
        return len(window)

    rows = [{"at": 1_700_000_000 + at} for at in range(3)]
    said = r"bolt 'sizes': its first timestamp is 1700000000, .* if these are seconds, give milliseconds"
    with pytest.warns(UserWarning, match=said) as caught:
        assert run_local(sizes, [rows, rows])["default"] == [(1,), (3,)]
    assert len(caught) == 1
    assert caught[0].filename == __file__
    builder = TopologyBuilder()
    builder.set_spout("in", InputSpout("at long"))
    builder.set_bolt("sizes", sizes).global_grouping("in")
    with pytest.warns(UserWarning, match=said) as caught:
        assert run_topology(builder.build(), {"in": [rows]})["sizes"] == [(1,), (2,)]
    assert len(caught) == 1


@pytest.mark.parametrize("first", [0, 1_000_000, 999_999_000, 4_000_000_000, 1_700_000_000_000])
def test_milliseconds_and_small_numbers_of_examples_are_not_warned_of(first):
    @tumbling(seconds(10), timestamp=lambda row: row["at"], output="n long")
    def sizes(window):
        return len(window)

    assert run_local(sizes, [[{"at": first + 1}, {"at": first + 2}]])["default"]


def test_a_run_with_one_usable_timestamp_does_not_warn():
    @tumbling(seconds(5), timestamp="at", output="n long")
    def sizes(window):
        return len(window)

    assert run_local(sizes, [[{"at": "2024-01-01"}, {"at": 1_000}]])["default"] == [(1,)]


@pytest.mark.parametrize(
    ("table", "call"),
    [
        (pandas.DataFrame({"at": [1, 2]}), 'a DataFrame of pandas; frame.to_dict("records")'),
        (pyarrow.table({"at": [1, 2]}), "a Table of pyarrow; table.to_pylist()"),
    ],
)
def test_a_frame_in_place_of_rows_is_refused_with_the_call_that_makes_rows_with_names(table, call):
    @tumbling(count(2), timestamp="at", output="n long")
    def pairs(window):
        return len(window)

    for run in (lambda: run_local(pairs, [table]), lambda: explain(pairs, table), lambda: LocalRun(pairs).feed(table)):
        with pytest.raises(ConfigError, match=re.escape(f"got {call} is the list of its rows")):
            run()
    with pytest.raises(ConfigError, match=r"got a Series of pandas as a row; frame\.to_dict"):
        LocalRun(pairs).feed([row for _, row in pandas.DataFrame({"at": [1, 2]}).iterrows()])
    rows = table.to_dict("records") if isinstance(table, pandas.DataFrame) else table.to_pylist()
    assert run_local(pairs, [rows])["default"] == [(2,)]


@pytest.mark.parametrize("row", [{"tags": ["a"], "at": 1_000}, namedtuple("Tagged", "tags at")(["a"], 1_000)])
def test_a_row_that_a_bolt_changes_is_after_a_restart_as_it_was_fed(row):
    @sliding(seconds(4), seconds(2), timestamp="at", output="tags string")
    def marks(window):
        for each in window:
            each.tags.append("seen")
        return "".join(window[0].tags)

    batches = [[row], [{"tags": [], "at": 2_500}], [{"tags": [], "at": 5_000}]]
    assert run_local(marks, copy.deepcopy(batches))["default"][:2] == [("aseen",), ("aseenseen",)]
    assert run_local(marks, copy.deepcopy(batches), restarts=True)["default"][:2] == [("aseen",), ("aseen",)]
