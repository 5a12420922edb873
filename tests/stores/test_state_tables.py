"""state_table: other programs read a state as typed columns. For PostgreSQL: tests/services/test_postgres_tables.py."""

from __future__ import annotations

import math
import pickle
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import date, datetime
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest

from tests.stores.store_contract import commit
from windowing import InputSpout
from windowing.errors import ConfigError, CorruptStateError, DefinitionChangedError
from windowing.local import run_trident
from windowing.schema.types import FieldType
from windowing.stores import MemoryStore, SqliteStore, map_state, state_table
from windowing.stores.state_tables import TableCodec
from windowing.topology.plan import TopologyError
from windowing.trident import ReplaceUpdater, Sum, TridentTopology

COLUMNS = "origin text, flights bigint"
EVERY = "s string, b boolean, i1 byte, i8 bigint, f double, d decimal(9, 2), day date, value double"
KEY = ("ü'\"\n", True, -128, 2**63 - 1, 0.1, Decimal("1234567.25"), date(2013, 1, 31))


def read(path: Path, what: str = "*") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT {what} FROM counts ORDER BY 1").fetchall()


def put(factory: Any, txid: int, values: Mapping[Any, Any]) -> None:
    with closing(factory.make_state(0, 1)) as state:
        commit(state, txid, 0, {key: ReplaceUpdater(value) for key, value in values.items()})


def test_a_state_is_stored_as_a_table_of_typed_columns(tmp_path: Path) -> None:
    path = tmp_path / "counts.db"
    made = state_table(SqliteStore(path), "counts", COLUMNS)
    put(made, 1, {("JFK",): 4, ("LGA",): 1, (None,): 7})
    assert read(path) == [(None, 7), ("JFK", 4), ("LGA", 1)]
    put(pickle.loads(pickle.dumps(made)), 2, {("JFK",): 14, ("LGA",): None})
    assert read(path, "origin, flights, typeof(flights)") == [(None, 7, "integer"), ("JFK", 14, "integer")]
    with closing(made.make_state(0, 1)) as state:
        assert dict(state.items()) == {("JFK",): 14, (None,): 7}
        assert state.multi_get([("JFK",)]) == [14]


def test_every_type_round_trips_and_has_a_readable_column_value(tmp_path: Path) -> None:
    path = tmp_path / "counts.db"
    made = state_table(SqliteStore(path), "counts", EVERY)
    put(made, 1, {KEY: 0.5, (None,) * 7: math.inf})
    with closing(made.make_state(0, 1)) as state:
        assert dict(state.items()) == {KEY: 0.5, (None,) * 7: math.inf}
    shown = ("ü'\"\n", 1, -128, 2**63 - 1, 0.1, "1234567.25", "2013-01-31", 0.5)
    assert read(path) == [(*(None,) * 7, "Infinity"), shown]


def test_persistent_aggregate_writes_a_state_table_and_counts_each_batch_once(tmp_path: Path) -> None:
    path = tmp_path / "totals.db"
    topology = TridentTopology("totals")
    delays = topology.new_stream("delays", InputSpout("airport string, day int, delay long"))
    counts = state_table(SqliteStore(path), "counts", "airport string, day int, total bigint", cache=10)
    delays.group_by("airport", "day").persistent_aggregate(counts, "delay", Sum(), "total long").parallelism_hint(2)
    batches = [[("JFK", 1, 4), ("LGA", 1, 1)], [("JFK", 1, 10), ("JFK", 2, 2)]]
    for _ in range(2):
        run_trident(topology, {"delays": batches}, state_path=tmp_path / "records.db")
        assert sorted(read(path)) == [("JFK", 1, 14), ("JFK", 2, 2), ("LGA", 1, 1)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("decimal(38, 10)", "1234567890123456789012345678.0123456789"),
        ("decimal(38, 38)", "0." + 38 * "9"),
        ("decimal(38, 0)", "-" + 38 * "9"),
        ("decimal(4, 2)", "-99.99"),
        ("decimal(2, 2)", "0"),
        ("decimal(2, 2)", "0E+5"),
    ],
)
def test_a_decimal_is_stored_with_all_its_digits_whatever_the_precision_of_the_context(kind: str, value: str) -> None:
    codec = TableCodec(f"k string, n long, v {kind}")
    with localcontext(Context(prec=3)):
        assert codec.decode(codec.encode(Decimal(value)), "a value") == Decimal(value)
    assert codec.encode(Decimal("-0")) == codec.encode(0)
    assert (codec.encode_key(("a", 1)), TableCodec("k long, v double").encode(2**53)) == (
        b'["a",1]',
        b"9007199254740992.0",
    )


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ("k string, v bigint", "fourteen"),
        ("k string, v bigint", 2**63),
        ("k string, v bigint", True),
        ("k string, v bigint", 1.0),
        ("k string, v boolean", 1),
        ("k string, v string", "a\0"),
        ("k string, v string", "\ud800"),
        ("k string, v string", b"a"),
        ("k string, v double", 2**53 + 1),
        ("k string, v decimal(4, 2)", Decimal("100")),
        ("k string, v decimal(4, 2)", Decimal("1.005")),
        ("k string, v decimal(4, 2)", Decimal("NaN")),
        ("k string, v decimal(4, 2)", Decimal("1E+999999999")),
        ("k string, v decimal(4, 2)", 1.5),
        ("k string, v date", "2013-01-01"),
        ("k string, v bigint", (1,)),
        ("k string, v bigint", [1]),
    ],
)
def test_a_value_that_does_not_fit_its_column_raises_type_error_and_nothing_is_stored(
    tmp_path: Path, columns: str, value: Any
) -> None:
    path = tmp_path / "counts.db"
    made = state_table(SqliteStore(path), "counts", columns)
    state = made.make_state(0, 1)
    with closing(state), pytest.raises(TypeError, match="is declared as"):
        commit(state, 1, 0, {("a",): ReplaceUpdater(None), ("b",): ReplaceUpdater(value)})
    assert read(path) == []


@pytest.mark.parametrize("key", [("a", 1), (), (1,), "a"])
def test_a_key_that_does_not_fit_its_columns_raises_type_error(key: Any) -> None:
    with pytest.raises(TypeError, match=r"columns for it|is declared as"):
        TableCodec(COLUMNS).encode_key(key)


@pytest.mark.parametrize("blob", [b"", b"[", b'"a"', b"[7]", b'{"a": 1}', b"\xff", b"1e9999", b"[]", b'["a", "a"]'])
def test_a_stored_value_that_cannot_be_decoded_is_named(blob: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the value of x"):
        TableCodec(COLUMNS).decode(blob, "the value of x")


class Added:
    def init(self) -> Any:
        return 0

    def reduce(self, current: Any, tuple: Any) -> Any:
        return current + tuple[0]


def topology_of(columns: str, key: tuple[str, ...], output: str, path: Path, aggregator: Any = None) -> TridentTopology:
    topology = TridentTopology("tables")
    fields = "d date, k string, f double, i int, p decimal(5, 0), at timestamp, n long"
    stream = topology.new_stream("in", InputSpout(fields))
    into = state_table(SqliteStore(path), "counts", columns)
    (stream.group_by(*key) if key else stream).persistent_aggregate(into, "n", aggregator or Sum(), output)
    return topology


@pytest.mark.parametrize(
    ("columns", "key", "output", "problem"),
    [
        (
            "day date, k string, t int",
            ("d", "k"),
            "t decimal(20,2)",
            "persist state1 with Sum keeps t decimal(20,2), which its table has as t int; declare columns for d date, "
            "k string, t decimal(20,2)",
        ),
        (
            "k string, t bigint",
            ("d", "k"),
            "t long",
            "persist state1 with Sum keeps values by d date, k string, for which its table has k string; declare columns "
            "for d date, k string, t bigint",
        ),
        ("k string, t bigint", ("n",), "t long", "keeps n bigint, which its table has as k string; declare"),
        ("i int, t bigint", ("f",), "t long", "keeps f double, which its table has as i int; declare"),
        ("k string, t bigint", ("at",), "t long", "keeps at timestamp, which its table has as k string; "),
        (
            "k string, t bigint",
            (),
            "t long",
            "persist state1 with Sum keeps one value, and a table has a row for each key; write group_by(...) before it, or "
            "keep the value in a snapshot_state",
        ),
    ],
)
def test_a_table_that_cannot_hold_the_aggregate_is_refused_when_the_topology_is_built(
    columns: str, key: tuple[str, ...], output: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyError) as found:
        topology_of(columns, key, output, tmp_path / "counts.db").build()
    assert len(found.value.problems) == 1
    assert problem in found.value.problems[0]


@pytest.mark.parametrize(
    ("columns", "key", "output", "aggregator"),
    [
        ("a double, b decimal(3, 0), t int", ("i", "n"), "t long", None),
        ("a bigint, b decimal(3, 1), t double", ("i", "p"), "t int", None),
        ("a date, b float, t decimal(9, 2)", ("d", "f"), "t int", None),
        ("a date, t bigint", ("d",), "t double", Added()),  # what a reducer returns is stored as it is
    ],
)
def test_a_table_that_can_hold_the_aggregate_is_accepted(
    columns: str, key: tuple[str, ...], output: str, aggregator: Any, tmp_path: Path
) -> None:
    topology = topology_of(columns, key, output, tmp_path / "counts.db", aggregator)
    row = [date(2013, 1, 31), "k", 0.5, 3, Decimal(4), datetime(2013, 1, 31), 7]
    result = run_trident(topology, {"in": [[row]]})
    assert len(read(tmp_path / "counts.db")) == result.batches == 1


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda path: state_table(MemoryStore(), "counts", COLUMNS), "lies in a SqliteStore or a PostgresStore"),
        (
            lambda path: state_table(SqliteStore(path), "counts; --", COLUMNS),
            "a table's name must be a name of ASCII letters",
        ),
        (lambda path: state_table(SqliteStore(path), "counts", "flights bigint"), "those of the key, then the value"),
        (
            lambda path: state_table(SqliteStore(path), "counts", "k string, v array<int>"),
            "column 'v' of a table is array<int>",
        ),
        (lambda path: state_table(SqliteStore(path), "counts", "k string, t timestamp"), "milliseconds in a bigint"),
        (lambda path: state_table(SqliteStore(path), "counts", "k strng, v bigint"), "unknown type 'strng'"),
    ],
)
def test_a_state_that_cannot_be_a_table_is_refused_at_declaration(
    declare: Callable[[Path], Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as found:
        declare(tmp_path / "counts.db")
    assert sentence in str(found.value)
    assert not (tmp_path / "counts.db").exists()


def test_a_table_with_other_columns_or_of_another_state_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "counts.db"
    put(state_table(SqliteStore(path), "counts", COLUMNS), 1, {("JFK",): 4})
    with pytest.raises(ConfigError, match="something else of the name counts"):
        state_table(SqliteStore(path), "counts", "airport text, flights bigint").make_state(0, 1)
    state = map_state(SqliteStore(path), "counts_state").make_state(0, 1)
    with closing(state), pytest.raises(DefinitionChangedError, match="codec"):
        state.multi_get([("JFK",)])
    with closing(map_state(SqliteStore(path), "others").make_state(0, 1)):
        pass
    with pytest.raises(ConfigError, match="something else of the name others"):
        state_table(SqliteStore(path), "others", COLUMNS).make_state(0, 1)
    assert read(path) == [("JFK", 4)]


def test_type_text_is_parsed_as_string() -> None:
    assert str(FieldType.parse("TEXT")) == "string"
