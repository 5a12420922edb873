"""The order of arrival with order_by= depends on the content of the rows only, not on their partitions or packets."""

from __future__ import annotations

import math
import random
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.spark.rows import in_order

SCHEMA = pa.schema(
    [
        ("at", pa.int64()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("void", pa.null()),
    ]
)
FLOATS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf"), None])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.sampled_from([1, 2, None]),
            "x": FLOATS,
            "f": FLOATS,
            "t": st.sampled_from(["a", "B", "", None]),
            "b": st.sampled_from([True, False, None]),
            "l": st.sampled_from([[1.0], [-0.0], [0.0], [None], [], None]),
            "m": st.sampled_from([[("k", 1)], [("k", 2)], None]),
            "void": st.none(),
            "stream": st.integers(0, 1),
        }
    ),
    max_size=14,
)
ORDERS = [("at",), ("x",), ("t", "at"), ("void",), ("x", "b", "f")]


def arranged(rows: list[dict[str, Any]], order_by: tuple[str, ...]) -> list[tuple[str, ...]]:
    table = pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA})
    table = table.append_column("stream", pa.array([row["stream"] for row in rows], pa.int64()))
    streams = table.column("stream").combine_chunks()
    found = in_order(table, order_by, SCHEMA.names, streams).to_pylist()
    return [tuple(map(repr, row.values())) for row in found]


def rank(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (2,)
    return (1,) if isinstance(value, float) and math.isnan(value) else (0, value)


@pytest.mark.parametrize("order_by", ORDERS)
@given(rows=ROWS, seed=st.integers(0, 5))
def test_the_order_of_arrival_does_not_depend_on_the_order_of_input(
    order_by: tuple[str, ...], rows: list[dict[str, Any]], seed: int
) -> None:
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert arranged(shuffled, order_by) == arranged(rows, order_by)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("x", [0.0, -0.0, float("nan"), None]),
        ("f", [0.0, -0.0]),
        ("t", ["a", "A", None]),
        ("b", [True, False]),
        ("l", [[0.0], [-0.0], [None], [], None]),
        ("m", [[("k", 1)], [("k", 2)], []]),
        ("stream", [0, 1]),
    ],
)
def test_rows_that_differ_in_one_column_have_a_deterministic_order(column: str, values: list[Any]) -> None:
    rows = [dict.fromkeys(SCHEMA.names) | {"at": 1, "stream": 0, column: value} for value in values]
    assert len({str(arranged(list(each), ("at",))) for each in permutations(rows)}) == 1


@pytest.mark.parametrize("order_by", ORDERS)
@given(rows=ROWS)
def test_rows_arrive_by_order_by_and_then_by_input_stream(
    order_by: tuple[str, ...], rows: list[dict[str, Any]]
) -> None:
    wanted = sorted([*(rank(row[name]) for name in order_by), (row["stream"],)] for row in rows)
    by_text = {repr(value): value for row in rows for value in row.values()}
    names = [*SCHEMA.names, "stream"]
    found = []
    for texts in arranged(rows, order_by):
        row = dict(zip(names, texts, strict=True))
        found.append([*(rank(by_text[row[name]]) for name in order_by), (int(row["stream"]),)])
    assert found == wanted


def test_rows_without_ties_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windowing.spark.rows._comparable", lambda column: pytest.fail("a second sort"))
    rows = pa.table({"at": [3, 1, 2], "x": ["c", "a", "b"]})
    assert in_order(rows, ("at",), ("at", "x"), pa.array([0, 0, 0])).column("x").to_pylist() == ["a", "b", "c"]
