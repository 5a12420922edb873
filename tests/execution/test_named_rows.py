"""Rows with names of their own (namedtuples, Spark Rows, records, tuples of a topology) that user code returns, in every runtime.

tests/spark/test_named_rows.py has the runtimes on Spark.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
from pyspark.sql import Row

from windowing import TopologyBuilder, bolt, count, tumbling
from windowing.errors import BoltError
from windowing.local import run_local, run_topology, run_trident
from windowing.schema.rows import RowError, record_of, row_of, rows_of
from windowing.schema.tuples import Fields, Origin, Tuple, Values, tuple_type
from windowing.schema.types import Schema
from windowing.topology.components import InputSpout
from windowing.topology.plan import Topology
from windowing.trident import TridentTopology
from windowing.trident.plan import TridentPlan

FIELDS = "origin string, dest string"
STREAM = Schema.parse(FIELDS)
Back = namedtuple("Back", "dest origin")
Half = namedtuple("Half", "dest airport")
Other = namedtuple("Other", "x y")


def tuples_of(*names: str) -> list[Tuple]:
    origin = Origin("flights", 0, Fields(names))
    return [Tuple(("JFK", "LGA"), origin), tuple_type(Tuple, names)(("JFK", "LGA"), origin)]


@tumbling(count(2), output=FIELDS)
def windows(window: Any) -> Any:
    return [Back(row.dest, row.origin) for row in window]


@tumbling(count(2), output=FIELDS, name="wrong")
def wrong_windows(window: Any) -> Any:
    return [Half(row.dest, row.origin) for row in window]


def bolts(made: Any) -> Topology:
    """A bolt that returns a row made of (dest, origin), and one that emits it."""
    builder = TopologyBuilder("names")
    builder.set_spout("in", InputSpout(FIELDS))
    builder.set_bolt("returns", bolt(output=FIELDS)(lambda row: made(row.dest, row.origin))).shuffle_grouping("in")

    def emits(row: Any, collector: Any) -> None:
        collector.emit(made(row.dest, row.origin))

    builder.set_bolt("emits", bolt(output=FIELDS)(emits)).shuffle_grouping("returns")
    return builder.build()


def trident(made: Any) -> TridentPlan:
    """A map to a row made of (dest, origin)."""
    topology = TridentTopology("names")
    topology.new_stream("in", InputSpout(FIELDS)).map(lambda row: made(row.dest, row.origin)).sink("out")
    return topology.build()


INPUT = [("JFK", "LGA"), ("EWR", "BOS")]


@pytest.mark.parametrize(
    "row",
    [Back("LGA", "JFK"), Row(dest="LGA", origin="JFK"), record_of({"dest": "LGA", "origin": "JFK"})],
    ids=["namedtuple", "Spark Row", "record"],
)
def test_a_row_with_the_names_of_the_stream_in_another_order_is_taken_by_name(row: Any) -> None:
    assert row_of(row, STREAM, "default") == ("JFK", "LGA")
    assert list(rows_of(row, STREAM, "default")) == list(rows_of([row], STREAM, "default")) == [("JFK", "LGA")]


def test_a_tuple_of_a_topology_is_taken_by_name_too() -> None:
    for word in tuples_of("dest", "origin"):
        assert list(rows_of(word, STREAM, "default")) == list(rows_of([word], STREAM, "default")) == [("LGA", "JFK")]


@pytest.mark.parametrize(
    "row",
    [
        *(Other("JFK", "LGA"), Row("JFK", "LGA"), Row(x="JFK", y="LGA"), Values("JFK", "LGA"), ["JFK", "LGA"]),
        *(namedtuple("Same", "origin airport")("JFK", "LGA"), record_of({"a b": "JFK", "dest": "LGA"})),
        *tuples_of("x", "y"),
    ],
    ids=repr,
)
def test_a_row_of_other_names_is_taken_by_position(row: Any) -> None:
    assert row_of(row, STREAM, "default") == ("JFK", "LGA")


@pytest.mark.parametrize(
    "row",
    [Half("LGA", "JFK"), Row(dest="LGA", x="JFK"), record_of({"x": "LGA", "origin": "JFK"}), *tuples_of("x", "origin")],
    ids=repr,
)
def test_a_row_with_a_name_of_the_stream_at_another_place_and_one_of_no_field_is_refused(row: Any) -> None:
    with pytest.raises(RowError, match=r"one of them is that of a field at another place; give a dict by name"):
        row_of(row, STREAM, "default")


def test_a_struct_in_a_row_is_read_in_the_same_way() -> None:
    nested = Schema.parse(f"trip struct<{FIELDS}>")
    for row in (Back("LGA", "JFK"), Row(dest="LGA", origin="JFK"), ("JFK", "LGA"), Other("JFK", "LGA")):
        assert row_of((row,), nested, "default") == ({"origin": "JFK", "dest": "LGA"},)
    with pytest.raises(RowError, match="wanted a mapping or a tuple of origin, dest"):
        row_of((Half("LGA", "JFK"),), nested, "default")


def test_a_windowed_bolt_returns_namedtuples_by_name() -> None:
    rows = [{"dest": dest, "origin": origin} for origin, dest in INPUT]
    assert run_local(windows, [rows])["default"] == INPUT
    with pytest.raises(BoltError, match=r"bolt 'wrong' emitted a wrong row .*at another place"):
        run_local(wrong_windows, [rows])


@pytest.mark.parametrize(
    "made",
    [Back, lambda dest, origin: Row(dest=dest, origin=origin), lambda dest, origin: Other(origin, dest)],
    ids=["namedtuple", "Spark Row", "other names"],
)
def test_bolts_and_spouts_of_a_local_cluster_take_namedtuples_by_name(made: Any) -> None:
    result = run_topology(bolts(made), {"in": [[made(dest, origin) for origin, dest in INPUT]]})
    assert result["emits"] == INPUT
    with pytest.raises(BoltError, match=r"bolt 'returns' emitted a wrong row .*at another place"):
        run_topology(bolts(Half), {"in": [INPUT]})


def test_steps_and_spouts_of_a_trident_cluster_take_namedtuples_by_name() -> None:
    rows = [Back(dest, origin) for origin, dest in INPUT]
    assert run_trident(trident(Back), {"in": [rows]})["out"] == INPUT
    with pytest.raises(BoltError, match="at another place"):
        run_trident(trident(Half), {"in": [rows]})
