"""Partial aggregation in columns compared with its model, the same stage by rows: the same exchange rows, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windowing.spark import trident_stages
from windowing.spark.exchange import TASK_AND_CLOCK, ExchangeRow
from windowing.spark.trident_stages import TridentSpoutStage
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.topology.components import InputSpout
from windowing.trident.builtins import Count, Max, Min, Sum
from windowing.trident.plan import TridentPlan
from windowing.trident.streams import TridentTopology

TYPES = {
    "k": pa.string(),
    "b": pa.bool_(),
    "i": pa.int32(),
    "n": pa.int64(),
    "x": pa.float64(),
    "at": pa.timestamp("us"),
}
DDL = "k string, b boolean, i int, n long, x double, at timestamp"
EDGE = [0, 1, -1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
VALUES = {
    "k": st.sampled_from(["", "a", "b", "JFK", "\u00e9"]),
    "b": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2),
    "n": st.sampled_from(EDGE) | st.integers(-3, 3),
    "x": st.floats() | st.sampled_from([0.0, -0.0, 0.1, 0.2, 1e16]),
    "at": st.sampled_from([0, 10**15, 2**62]),  # the last one is a year that Python does not have
}
ROWS = st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()}) | st.fixed_dictionaries(
    VALUES
)
PLAIN = st.fixed_dictionaries({**VALUES, "at": st.just(0)})
BATCHES = st.lists(st.lists(ROWS, max_size=6) | st.lists(PLAIN, max_size=9), max_size=5)
AGGREGATES = st.tuples(st.sampled_from([Count, Sum, Min, Max]), st.sampled_from(["i", "n", "x", "k"])).filter(
    lambda found: found[0] is not Sum or found[1] != "k"
)
KEYS = st.none() | st.lists(st.sampled_from(["k", "b", "i", "n", "x"]), min_size=1, max_size=3, unique=True)


def plan_of(key: list[str] | None, aggregates: list[tuple[Any, str]]) -> TridentPlan:
    topology = TridentTopology("columns")
    rows = topology.new_stream("in", InputSpout(DDL))
    if len(aggregates) == 1:
        ((kind, field),) = aggregates
        made = _out(kind, field, 0)
        stream = rows if key is None else rows.group_by(*key)
        stream.persistent_aggregate(map_state(MemoryStore(), "s"), None if kind is Count else field, kind(), made)
    else:
        chain = (rows if key is None else rows.group_by(*key)).chained_agg()
        for number, (kind, field) in enumerate(aggregates):
            chain = chain.aggregate(None if kind is Count else field, kind(), _out(kind, field, number))
        chain.chain_end().sink("out")
    return topology.build().by_section()


def _out(kind: Any, field: str, number: int) -> str:
    sums = {"i": "decimal(38,0)", "n": "decimal(38,0)", "x": "double"}
    types = {Count: {field: "long"}, Sum: sums}.get(kind, {"k": "string", "i": "int", "n": "long", "x": "double"})
    return f"out{number} {types[field]}"


def sent(plan: TridentPlan, batches: list[list[dict[str, Any]]]) -> list[ExchangeRow] | str:
    """Return the rows that the stage of the source sends, or the error that ends it."""

    def given() -> Iterator[pa.RecordBatch]:
        for rows in batches:
            arrays = [pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()]
            yield pa.RecordBatch.from_arrays(
                [*arrays, pa.array([7] * len(rows), pa.int64())],
                names=[*(f"c{n}" for n in range(len(TYPES))), TASK_AND_CLOCK],
            )

    stage = TridentSpoutStage(SimpleNamespace(value=plan), plan.spouts[0].number, keep=False)
    try:
        return [ExchangeRow(*row.values()) for batch in stage.pack(given(), 0, 0) for row in batch.to_pylist()]
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def by_rows(plan: TridentPlan, batches: list[list[dict[str, Any]]]) -> list[ExchangeRow] | str:
    """The model: the same stage, tuple by tuple."""
    with mock.patch.object(trident_stages.ColumnFold, "of", return_value=None):
        return sent(plan, batches)


ROW = {"k": "a", "b": True, "i": 1, "n": 2, "x": 0.5, "at": 0}


@settings(deadline=None, max_examples=100)
@example(["k"], [(Sum, "x")], [[ROW | {"x": -0.0}], [ROW | {"x": -0.0}]])
@example(["k", "i"], [(Sum, "n"), (Min, "n"), (Max, "i")], [[ROW, ROW | {"n": 2**63 - 1}], [ROW | {"i": 7}, ROW]])
@given(KEYS, st.lists(AGGREGATES, min_size=1, max_size=3), BATCHES)
def test_partial_aggregation_in_columns_equals_that_by_rows(
    key: list[str] | None, aggregates: list[tuple[Any, str]], batches: list[list[dict[str, Any]]]
) -> None:
    plan = plan_of(key, aggregates)
    assert sent(plan, batches) == by_rows(plan, batches)


def test_plain_values_are_aggregated_without_tuples_and_a_null_key_row_by_row() -> None:
    plan = plan_of(["k"], [(Sum, "n")])
    made: list[int] = []
    readable_in = trident_stages.readable_in

    def counted(columns: Any, schema: Any, count: int) -> Any:
        made.append(count)
        return readable_in(columns, schema, count)

    with mock.patch.object(trident_stages, "readable_in", counted):
        sent(plan, [[ROW, ROW], [ROW, ROW | {"k": None}], [ROW]])
    assert made == [2]
