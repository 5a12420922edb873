"""Record: one way to read a row, in one process and on Spark."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.schema.rows import Record, record_of, record_type
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.windows import aggregate as agg
from windowing.windows.partials import Aggregation

_rows = st.dictionaries(
    st.one_of(st.text(max_size=5), st.sampled_from(["class", "count", "_x", "index"])), st.integers()
)


@given(_rows)
def test_every_field_is_found_by_name_and_every_value_by_position(row: dict[str, int]) -> None:
    record = record_of(row)
    assert {name: record[name] for name in row} == row == record._asdict()
    assert [record[at] for at in range(len(row))] == list(row.values()) == list(record)
    assert record == tuple(row.values())
    assert all(getattr(record, name) == value for name, value in row.items() if name in record._fields)


def test_an_attribute_may_be_called_like_a_method_of_a_tuple() -> None:
    assert record_of({"count": 3, "index": 4}).count == 3


def test_a_slice_is_a_plain_tuple_and_a_copy_is_equal() -> None:
    record = record_of({"a": 1, "b": 2})
    assert record[:1] == (1,)
    assert copy.copy(record) == copy.deepcopy(record) == record
    assert isinstance(copy.deepcopy(record), Record)


def test_a_field_that_is_not_there_is_a_key_error_with_the_nearest() -> None:
    record = record_of({"at": 1, "word": "a"})
    with pytest.raises(KeyError, match="no field 'att'; did you mean 'at'"):
        record["att"]
    with pytest.raises(AttributeError):
        _ = record.att


def test_the_same_fields_are_the_same_class() -> None:
    assert type(record_of({"a": 1})) is type(record_of({"a": 2})) is record_type(("a",))


@pytest.mark.parametrize("row", [3, "ab", (1, 2), {1: 2}, None, [1]])
def test_what_is_no_mapping_of_names_stays_as_it_is(row: Any) -> None:
    assert record_of(row) is row


def test_an_aggregate_reads_a_field_whatever_it_is_called() -> None:
    rows = [record_of({"flight no": 3, "class": 1, "count": 5}), record_of({"flight no": 4, "class": 1, "count": 5})]
    sums = Aggregation({name: agg.sum(field) for name, field in (("a", "flight no"), ("b", "class"), ("c", "count"))})
    assert sums.fold(rows) == {"a": 7, "b": 2, "c": 10}


def test_an_aggregate_reads_a_field_of_a_tuple_that_is_called_like_a_method() -> None:
    tuples = [Tuple((3,), Origin("spout", 0, Fields("select"))), Tuple((4,), Origin("spout", 0, Fields("select")))]
    assert Aggregation(agg.sum("select")).fold(tuples) == 7
