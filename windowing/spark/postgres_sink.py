"""PostgresSink: writes a stream to a typed PostgreSQL table, each row once. Imported on first use, because it needs psycopg.

    string text · boolean boolean · byte, short smallint · int integer · long bigint · float real · double double precision
    decimal(p,s) numeric(p,s) · date date · timestamp timestamptz · timestamp_ntz timestamp · binary bytea
    array of these: an array of theirs · struct, map, arrays of them: jsonb

All rows of a batch pass through the driver into one transaction (stores/postgres_tables.py), which makes the batch atomic. It is
meant for the output of windows, which has few rows. A date that Python cannot hold (after the year 9999) raises a SinkError that
names the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DecimalType, StructType

from windowing.errors import ConfigError, SinkError, describe_error, quote
from windowing.schema.checks import spelled
from windowing.schema.values import EPOCH
from windowing.spark.output import as_json, quoted
from windowing.spark.sinks import (
    OLDER_COPY,
    ComparedSink,
    OutputOwner,
    different_columns,
    require_json_keys,
    required_owner,
)
from windowing.stores.postgres_tables import Column, PostgresTable, checked_table
from windowing.stores.remote import checked_address, masked

_INTEGERS = ("int2", "int4", "int8", "numeric")
_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "string": ("text", ()),
    "char": ("text", ()),
    "varchar": ("text", ()),
    "boolean": ("boolean", ("bool",)),
    "byte": ("smallint", _INTEGERS),
    "short": ("smallint", _INTEGERS),
    "integer": ("integer", _INTEGERS[1:]),
    "long": ("bigint", _INTEGERS[2:]),
    "float": ("real", ("float4", "float8")),
    "double": ("double precision", ("float8",)),
    "decimal": ("numeric", ("numeric",)),
    "date": ("date", ("date",)),
    "timestamp": ("timestamptz", ("timestamptz",)),
    "timestamp_ntz": ("timestamp", ("timestamp",)),
    "binary": ("bytea", ("bytea",)),
}
"""By Spark type: the type in PostgreSQL, and the names of all types that hold every value of it (empty: any type is accepted)."""
_NESTED = ("struct", "map", "array")
_JSON = ("jsonb", "json", "text", "varchar")


class _Field(NamedTuple):
    """A column of the stream: the column of the table, the expression that Spark sends, and the conversion of its values here."""

    column: Column
    sent: SparkColumn
    value: Callable[[Any], Any] | None


def _column(name: str, kind: DataType) -> Column:
    simple = _TYPES.get(kind.typeName())
    if simple is not None:
        scale = kind.scale if isinstance(kind, DecimalType) else None
        written = f"numeric({kind.precision},{kind.scale})" if isinstance(kind, DecimalType) else simple[0]
        return Column(name, written, frozenset(simple[1]), scale)
    if isinstance(kind, ArrayType) and kind.elementType.typeName() in _TYPES:
        inner = _column(name, kind.elementType)
        return Column(name, f"{inner.type}[]", frozenset(f"_{each}" for each in inner.fits), inner.scale)
    if kind.typeName() in _NESTED:
        return Column(name, "jsonb", frozenset(_JSON))
    raise ConfigError(
        f"column {quote(name)} is {kind.simpleString()}, for which a PostgresSink has no type; cast it, or leave it out"
    )


def _field(name: str, kind: DataType) -> _Field:
    column, given = _column(name, kind), F.col(quoted(name))
    if column.type == "jsonb":
        return _Field(column, as_json(given).alias(name), None)
    inner = kind.elementType if isinstance(kind, ArrayType) else kind
    if inner.typeName() not in _AS_NUMBERS:
        return _Field(column, given, None)
    number, value = _AS_NUMBERS[inner.typeName()]
    if isinstance(kind, ArrayType):
        values = F.transform(given, number).alias(name)
        return _Field(column, values, lambda found: [None if each is None else value(each) for each in found])
    return _Field(column, number(given).alias(name), value)


def _moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


_AS_NUMBERS: dict[str, tuple[Callable[[SparkColumn], SparkColumn], Callable[[int], Any]]] = {
    "date": (F.unix_date, lambda days: EPOCH.date() + timedelta(days=days)),
    "timestamp": (F.unix_micros, _moment),
    "timestamp_ntz": (
        lambda column: F.unix_micros(column.cast("timestamp")),  # the time zone of a query is UTC
        lambda micros: _moment(micros).replace(tzinfo=None),
    ),
}
"""The types with values that Python cannot hold are sent as numbers: the number of a value, and the value of a number."""


class PostgresSink(ComparedSink):
    """A PostgreSQL table (extra `postgres`) that takes the rows of one stream of one query, each batch exactly once.

    url: `postgresql://user:password@host:5432/database`; messages and the repr mask its secrets. table: `table` or `schema.table`;
    created with the types of the stream if it does not exist, otherwise checked before the first batch. key: the column or columns
    by which rows are replaced (upsert; of several rows of a key in one batch the last is stored); without it rows are appended.
    patience_s: maximum seconds of one call of the server, and of one pause between two, before SinkError.

    The table `windowing_sinks` in the same schema stores the owner of each table and its last batch; both tables are written in one
    transaction. Cost: the rows pass through the driver, by COPY.

    >>> PostgresSink("postgresql://me:secret@127.0.0.1/db", "flights", key="origin")
    PostgresSink('postgresql://me:***@127.0.0.1/db', 'flights', key=('origin',))
    """

    @spelled
    def __init__(self, url: str, table: str, key: str | Sequence[str] = (), *, patience_s: float = 60.0) -> None:
        checked_address(url, patience_s, "postgresql://user:password@host:5432/database")
        self._url, self._table, self._patience_s = url, checked_table(table), patience_s
        self.key = different_columns(f"key= of the table {quote(table)}", key)
        self._owner: OutputOwner | None = None
        self._schema = ""

    def __repr__(self) -> str:
        key = f", key={self.key}" if self.key else ""
        return f"PostgresSink({masked(self._url)!r}, {'.'.join(self._table)!r}{key})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> int:
        """Create or check the table, and record its owner; return the last batch in it, -1 for none. Raises ConfigError before
        anything is written.
        """
        require_json_keys(owner.schema, f"the sink of {owner.name}")
        with self._opened(_fields(owner.schema)) as table:
            written = table.claim(owner.query, owner.stream)
            owner.require_in_step(table, written, OLDER_COPY)
            self._owner, self._schema = owner, table.schema
        return written

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the batch, unless the table already holds it. Cost: a job for each partition of the batch. Raises SinkError."""
        owner, fields = required_owner(self, self._owner), _fields(rows.schema)
        sent = rows.select(*(field.sent for field in fields))
        with self._opened(fields) as table:
            table.write(owner.query, owner.stream, batch_id, lambda: _values(sent, fields, str(table)), self._schema)

    def _opened(self, fields: Sequence[_Field]) -> PostgresTable:
        return PostgresTable(self._url, self._table, [field.column for field in fields], self.key, self._patience_s)


def _fields(schema: StructType) -> list[_Field]:
    return [_field(field.name, field.dataType) for field in schema.fields]


def _values(sent: DataFrame, fields: Sequence[_Field], table: str) -> Iterator[Sequence[Any]]:
    for row in sent.toLocalIterator():
        values: list[Any] = list(row)
        for place, field in enumerate(fields):
            if field.value is not None and values[place] is not None:
                try:
                    values[place] = field.value(values[place])
                except OverflowError as problem:
                    raise SinkError(
                        f"column {quote(field.column.name)} of a row for {table} holds a date that Python cannot "
                        f"({describe_error(problem)}): {quote(values[place])}; filter such rows, or cast the column to string"
                    ) from problem
        yield values
