"""Record: the form in which user code reads a row, in one process and on Spark."""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.schema.rows import (
    Record,
    RowError,
    record_of,
    record_type,
    records_of,
    row_converter,
    row_of,
    rows_converter,
    rows_of,
)
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.windows import aggregate as agg
from windowing.windows.partials import Aggregation

_rows = st.dictionaries(
    st.one_of(st.text(max_size=5), st.sampled_from(["class", "count", "_x", "index"])), st.integers()
)


@given(_rows)
def test_every_field_is_found_by_name_and_by_position(row: dict[str, int]) -> None:
    record = record_of(row)
    assert {name: record[name] for name in row} == row == record._asdict()
    assert [record[at] for at in range(len(row))] == list(row.values()) == list(record)
    assert record == tuple(row.values())
    assert all(getattr(record, name) == value for name, value in row.items() if name in record._fields)


def test_a_field_may_have_the_name_of_a_tuple_method() -> None:
    assert record_of({"count": 3, "index": 4}).count == 3


def test_a_slice_is_a_plain_tuple_and_a_copy_is_equal() -> None:
    record = record_of({"a": 1, "b": 2})
    assert record[:1] == (1,)
    assert copy.copy(record) == copy.deepcopy(record) == record
    assert isinstance(copy.deepcopy(record), Record)


def test_a_missing_field_is_a_key_error_that_names_the_nearest_field() -> None:
    record = record_of({"at": 1, "word": "a"})
    with pytest.raises(KeyError, match="no field 'att'; did you mean 'at'"):
        record["att"]
    with pytest.raises(AttributeError):
        _ = record.att


def test_records_with_the_same_fields_share_one_class() -> None:
    assert type(record_of({"a": 1})) is type(record_of({"a": 2})) is record_type(("a",))


@pytest.mark.parametrize("row", [3, "ab", (1, 2), {1: 2}, None, [1]])
def test_a_row_that_is_no_mapping_of_names_is_returned_unchanged(row: Any) -> None:
    assert record_of(row) is row


class Word(str):
    __slots__ = ()


@given(
    st.lists(
        st.sampled_from([{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"b": 5, "a": 6}, {}, {Word("a"): 1, "b": 2}, 7]),
        max_size=4,
    )
)
def test_records_of_a_batch_are_those_of_its_rows(rows: list[Any]) -> None:
    batch, one_by_one = records_of(rows), list(map(record_of, rows))
    assert batch == one_by_one
    assert list(map(type, batch)) == list(map(type, one_by_one))


def test_an_aggregate_reads_a_field_of_any_name() -> None:
    rows = [record_of({"flight no": 3, "class": 1, "count": 5}), record_of({"flight no": 4, "class": 1, "count": 5})]
    sums = Aggregation({name: agg.sum(field) for name, field in (("a", "flight no"), ("b", "class"), ("c", "count"))})
    assert sums.fold(rows) == {"a": 7, "b": 2, "c": 10}


def test_an_aggregate_reads_a_field_with_the_name_of_a_tuple_method() -> None:
    tuples = [Tuple((3,), Origin("spout", 0, Fields("select"))), Tuple((4,), Origin("spout", 0, Fields("select")))]
    assert Aggregation(agg.sum("select")).fold(tuples) == 7


# -- converters that are made once per schema ----------------------------------------------------------------------------


_VALUES = st.one_of(st.none(), st.integers(-3, 3), st.integers(2**31, 2**64), st.text(max_size=2), st.floats(-2, 2))
_ROWS = st.one_of(
    _VALUES,
    st.lists(_VALUES, max_size=3).map(tuple),
    st.lists(_VALUES, max_size=3),
    st.dictionaries(st.sampled_from("ab"), _VALUES),
)


def _outcome(call: Any, *arguments: Any) -> Any:
    try:
        return list(call(*arguments))
    except RowError as problem:
        return str(problem)


@given(st.lists(_ROWS, max_size=4), st.sampled_from(["a int", "a string", "a long, b double", "a float, b string"]))
def test_a_prepared_converter_returns_the_rows_and_raises_the_errors_of_row_of(rows: list[Any], ddl: str) -> None:
    schema = Schema.parse(ddl)
    for row in rows:
        assert _outcome(row_converter(schema, "s"), row) == _outcome(row_of, row, schema, "s")
    tables = [pa.table({"a": [1, 2], "b": [0.5, None]}), *rows]
    for make in (list, iter, tuple, lambda given: (row for row in given)):
        for given_rows in (rows, rows[:1], tables):
            found = _outcome(rows_converter(schema, "s"), make(given_rows))
            assert found == _outcome(rows_of, make(given_rows), schema, "s")
    for row in rows:
        assert _outcome(rows_converter(schema, "s"), row) == _outcome(rows_of, row, schema, "s")
