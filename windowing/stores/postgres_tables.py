"""PostgresTable: writes batches of rows to a typed PostgreSQL table, each batch once; used by spark/postgres_sink.py.

    table <table>            the rows, in typed columns; yours, or created at the first start
    table windowing_sinks    target, query, stream, batch      one row for each table: its owner, and the last batch in it

    write of batch 7, one transaction    lock the row of the table -> batch 6 or less: COPY the rows, write batch 7 into the row
                                                                     batch 7: the rows are stored, nothing is written
                                                                     batch 8 or more: another driver went on, refused
    with a key                           COPY into a temporary table -> INSERT ... ON CONFLICT (key) DO UPDATE -> batch 7

Laws
- Rows and the number of their batch are committed together or not at all. So a repeated batch finds its number, wherever the
  previous attempt died, and so does a commit whose answer was lost.
- A table belongs to one stream of one query, because batches of two streams have the same numbers. A table that holds more batches
  than the query has begun, or that was dropped, is refused, so that no batch is taken for written without being stored.
- Of several rows of one key in a batch the last is stored.
- Names are quoted identifiers, all values are bound or copied. Secrets of the address are never shown in messages.

Cost: a connection and five round trips for each batch, and COPY; the rows are never in memory all at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from windowing.errors import ConfigError, SinkError, WindowingError, quote
from windowing.schema.checks import checked_name
from windowing.stores.postgres import Bounded, PostgresClient, checked_database, refused_connection
from windowing.stores.remote import has_batch, masked

_SINKS = "windowing_sinks"
_STAGING = sql.Identifier("pg_temp", "windowing_staging")
_POSITION = sql.Identifier("windowing_position")
_CHUNK = 5000
_MAX_NAME = 63
_CREATE_SINKS = """
    CREATE TABLE {sinks} (target text PRIMARY KEY, query text NOT NULL, stream text NOT NULL, batch bigint)
"""
_OWNER = "SELECT query, stream, coalesce(batch, -1) FROM {sinks} WHERE target = %(target)s FOR UPDATE"
_COLUMNS = """
    SELECT a.attname, t.typname, a.atttypmod, a.attgenerated <> '',
        a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
    SELECT (SELECT array_agg(a.attname::text) FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey))
    FROM pg_index i WHERE i.indrelid = %(table)s::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = i.indnatts
"""
_TIMES = {"timestamp", "timestamptz"}
_MICROSECONDS = 6


class Column(NamedTuple):
    """A column of the rows.

    type: its type in PostgreSQL. fits: the names of all types that hold each of its values; if empty, any type is accepted, and a
    value that does not fit raises when it is written. scale: digits after the decimal point, of a numeric.
    """

    name: str
    type: str
    fits: frozenset[str] = frozenset()
    scale: int | None = None

    def refusal(self, found: str, modifier: int) -> str | None:
        """Return why a table column of this type does not hold all values of this column; None if it does."""
        if self.fits and found not in self.fits:
            return f"is {found}, and the stream has {self.type}"
        if found == "numeric" and modifier >= 0 and (modifier - 4) & 0x7FF < (self.scale or 0):
            return f"keeps {(modifier - 4) & 0x7FF} digits behind the point, and the stream has {self.type}"
        if found.lstrip("_") in _TIMES and 0 <= modifier < _MICROSECONDS:
            return f"keeps times to {modifier} digits of a second, and the stream has microseconds"
        return None


def checked_table(table: Any) -> tuple[str, ...]:
    """Return the parts of a table name, `table` or `schema.table`. Raises ConfigError for an invalid name."""
    parts = table.split(".") if isinstance(table, str) else [table]
    if len(parts) > 2:
        raise ConfigError(
            f"a table is 'table' or 'schema.table', got {quote(table)}; the database stands in the address"
        )
    return tuple(checked_name(part, "the name of a table, and of its schema,") for part in parts)


class PostgresTable(PostgresClient):
    """A table, over a connection of its own; a context manager that closes the connection. key: the columns by which rows are
    replaced.

    Raises ConfigError for errors that a retry cannot fix (address, user, database, table, key), SinkError for rows that do not fit
    and for a server that does not answer within the patience.
    """

    def __init__(
        self, url: str, table: tuple[str, ...], columns: Sequence[Column], key: tuple[str, ...], patience_s: float
    ) -> None:
        super().__init__(url, patience_s)
        self.table, self._columns, self._key = table, columns, key
        self.schema = ""
        """The schema of the table, set by `claim`."""
        # The message does not show the address: in an invalid address, the password cannot be found and masked.
        checked_database(url, f"the table {quote('.'.join(table))}")
        names = [column.name for column in columns]
        for name in names:
            if not name or len(name.encode()) > _MAX_NAME:
                raise ConfigError(
                    f"column {quote(name)} cannot be one of {self}: a name has 1 to {_MAX_NAME} bytes there; rename it"
                )
        for name in key:
            if name not in names:
                raise ConfigError(
                    f"the key of {self} has {quote(name)}, which the stream has not: there are {', '.join(names)}; give key= "
                    "columns of the stream"
                )

    def __str__(self) -> str:
        return f"table {'.'.join(self.table)} at {masked(self._url)}"

    def __enter__(self) -> PostgresTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renewed(self) -> Bounded:
        """Return the connection, with a deadline of the whole patience from now on."""
        self._renew()
        self._connect()
        assert self._db is not None
        return self._db

    def _do(self, statement: str, **bound: Any) -> list[tuple[Any, ...]]:
        found = self._renewed().execute(sql.SQL(statement).format(**self._names), bound or None)  # a name may have a %
        return [] if found.description is None else found.fetchall()

    # -- ownership ---------------------------------------------------------------------------------------------------------------

    def claim(self, query: str, stream: str) -> int:
        """Create the table if it does not exist, and record the stream as its owner; return the last batch in it, -1 for none.

        Raises ConfigError if the table belongs to another stream, was dropped, or does not fit.
        """

        def claim() -> int:
            # One process at a time, because concurrent CREATE TABLE statements collide.
            with self._renewed().transaction():
                self._renewed().execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(_SINKS.encode()),))
                exists = self._locate()
                if not self._is_there(_SINKS):
                    self._do(_CREATE_SINKS)
                written = self._own(query, stream, exists)
                if exists:
                    self._check_fit()
                else:
                    self._create()
            return written

        return self._patiently(claim)

    def _locate(self) -> bool:
        """Find the schema of the table, or the one in which to create it; return whether the table exists."""
        name = sql.Identifier(*self.table).as_string(self._db)
        query = """SELECT n.nspname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = to_regclass(%(name)s)"""
        found = self._renewed().execute(query, {"name": name}).fetchone()
        if found is None:
            schema = self.table[0] if len(self.table) == 2 else None
            query = "SELECT nspname FROM pg_namespace WHERE nspname = coalesce(%(schema)s, current_schema())"
            there = self._renewed().execute(query, {"schema": schema}).fetchone()
            if there is None:
                what = "none of the search path can be used" if schema is None else f"{quote(schema)} is not there"
                raise ConfigError(
                    f"{self} has no schema to be in: {what}; CREATE SCHEMA, GRANT USAGE, or name another one"
                )
            self.schema = str(there[0])
            return False
        self.schema, kind = found
        if kind not in "rp":
            raise ConfigError(f"{self} is there and is no table (a view, say); give the name of a table")
        return True

    def _is_there(self, table: str) -> bool:
        name = sql.Identifier(self.schema, table).as_string(self._db)
        return self._renewed().execute("SELECT to_regclass(%s)", (name,)).fetchone() != (None,)

    @property
    def _names(self) -> dict[str, sql.Composable]:
        return {
            "table": sql.Identifier(self.schema, self.table[-1]),
            "sinks": sql.Identifier(self.schema, _SINKS),
            "staging": _STAGING,
            "position": _POSITION,
            "columns": sql.SQL(", ").join(sql.Identifier(column.name) for column in self._columns),
            "key": sql.SQL(", ").join(map(sql.Identifier, self._key)),
        }

    @property
    def way_out(self) -> str:
        """What to do with the table of another stream, after `claim` has found it."""
        return (
            f"give the query a table of its own; or, if it is to go on in this one, DELETE FROM {self.schema}.{_SINKS} WHERE "
            f"target = '{self.table[-1]}'"
        )

    def _own(self, query: str, stream: str, exists: bool) -> int:
        found = self._do(_OWNER, target=self.table[-1])
        if not found:
            bound = {"target": self.table[-1], "query": query, "stream": stream}
            self._do("INSERT INTO {sinks} VALUES (%(target)s, %(query)s, %(stream)s, NULL)", **bound)
            return -1
        ((owner, of, batch),) = found
        if (owner, of) != (query, stream):
            raise ConfigError(
                f"{self} holds the rows of stream {quote(of)} of query {owner}, and this is stream {quote(stream)} of query "
                f"{query}; {self.way_out}"
            )
        if batch >= 0 and not exists:
            raise ConfigError(
                f"{self} is gone, and held the batches of query {query} up to {batch}; put it back from a copy, or start with a "
                f"new checkpoint; {self.way_out}"
            )
        return int(batch)

    # -- checks of the columns ---------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        # The types are those of our own table of types.
        typed = [sql.Identifier(column.name) + sql.SQL(" " + column.type) for column in self._columns]
        if self._key:
            typed.append(sql.SQL("PRIMARY KEY ({key})").format(**self._names))
        query = sql.SQL("CREATE TABLE {table} ({typed})").format(**self._names, typed=sql.SQL(", ").join(typed))
        self._renewed().execute(query)

    def _check_fit(self) -> None:
        bound = self._names["table"].as_string(self._db)
        there = {name: rest for name, *rest in self._do(_COLUMNS, table=bound)}
        wrong = []
        for column in self._columns:
            if column.name not in there:
                wrong.append(f"it has no column {quote(column.name)} (ALTER TABLE ... ADD COLUMN ... {column.type})")
                continue
            kind, modifier, is_generated, _ = there[column.name]
            refusal = "is generated by the table" if is_generated else column.refusal(kind, modifier)
            if refusal is not None:
                wrong.append(f"its column {quote(column.name)} {refusal}")
        ours = {column.name for column in self._columns}
        wrong += [
            f"its column {quote(name)} has to have a value, and the stream has no such column"
            for name, (*_, is_needed) in there.items()
            if is_needed and name not in ours
        ]
        if wrong:
            raise ConfigError(
                f"{self} does not fit the stream: {'; '.join(wrong)}; change the table, select and cast what is emitted, or let "
                "the sink make a table of another name"
            )
        if self._key and not any(set(columns) == set(self._key) for (columns,) in self._do(_UNIQUE, table=bound)):
            named = ", ".join(f'"{name}"' for name in self._key)
            raise ConfigError(
                f"{self} has no primary key or unique index on ({named}), by which rows are replaced; ALTER TABLE ... ADD PRIMARY "
                f"KEY ({named}), or give key= the columns of one"
            )

    # -- writing -----------------------------------------------------------------------------------------------------------------

    def write(
        self, query: str, stream: str, batch_id: int, rows: Callable[[], Iterable[Sequence[Any]]], schema: str
    ) -> bool:
        """Write the rows of a batch, unless the table holds them; return whether they were written now.

        rows: called again after a lost connection. schema: the schema of the table after `claim` (`self.schema`). Raises SinkError,
        ConfigError.
        """
        self.schema = schema

        def write() -> bool:
            with self._renewed().transaction():
                if self._has_batch(query, stream, batch_id):
                    return False
                self._put(rows())
                mark = "UPDATE {sinks} SET batch = %(batch)s WHERE target = %(target)s"
                self._do(mark, target=self.table[-1], batch=batch_id)
                return True

        return self._patiently(write)

    def _has_batch(self, query: str, stream: str, batch_id: int) -> bool:
        """Return whether the batch is in the table, and lock the row of the table until the transaction ends."""
        found = self._do(_OWNER, target=self.table[-1])
        if not found or found[0][:2] != (query, stream):
            raise SinkError(
                f"{self} is no longer that of stream {quote(stream)} of query {query}: somebody changed {_SINKS}; nothing of batch "
                f"{batch_id} was written; put the row back, or start again with another table"
            )
        return has_batch(self, query, batch_id, found[0][2])

    def _put(self, rows: Iterable[Sequence[Any]]) -> None:
        if not self._key:
            self._copy("COPY {table} ({columns}) FROM STDIN", rows)
            return
        self._do(
            "CREATE TEMPORARY TABLE {staging} ON COMMIT DROP AS SELECT 0::bigint AS {position}, {columns} FROM {table} WITH NO DATA"
        )
        numbered = ((position, *row) for position, row in zip(count(), self._keyed(rows)))
        self._copy("COPY {staging} ({position}, {columns}) FROM STDIN", numbered)
        others = [sql.Identifier(column.name) for column in self._columns if column.name not in self._key]
        change: sql.Composable = sql.SQL("DO NOTHING")
        if others:
            pairs = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
            change = sql.SQL("DO UPDATE SET ") + pairs
        upsert = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {staging} ORDER BY {key}, {position} DESC "
            "ON CONFLICT ({key}) {change}"
        )
        self._renewed().execute(upsert.format(**self._names, change=change))

    def _keyed(self, rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        names = [column.name for column in self._columns]
        places = [names.index(name) for name in self._key]
        for row in rows:
            for place in places:
                if row[place] is None:
                    raise SinkError(
                        f"a row for {self} has no value in {quote(names[place])}, a column of its key: {quote(tuple(row))}; filter "
                        "such rows, or leave key= out"
                    )
            yield row

    def _copy(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        composed = sql.SQL(query).format(**self._names)
        left = iter(rows)
        # Rows are read before the call, so that Spark's time does not count as the server's.
        while chunk := list(islice(left, _CHUNK)):
            with self._renewed().cursor() as cursor, cursor.copy(composed) as copy:
                for row in chunk:
                    try:
                        copy.write_row(row)
                    except psycopg.DataError as problem:  # of psycopg; the server names line and column itself
                        raise self._with_nul(row) or problem from problem

    # -- errors ------------------------------------------------------------------------------------------------------------------

    def _with_nul(self, row: Sequence[Any]) -> WindowingError | None:
        """Return the error for a row of COPY that has a NUL in a text, or in one of an array; None for another row."""
        values = row[-len(self._columns) :]  # behind the position, if there is one
        for column, value in zip(self._columns, values, strict=True):
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and "\0" in text for text in texts):
                return SinkError(
                    f"{self} does not take the rows: column {quote(column.name)} of {quote(tuple(values))} has a text with a NUL "
                    "(0x00), which PostgreSQL cannot store; take it out in the bolt or before it; nothing of the batch was written"
                )
        return None

    def _unanswered(self, text: str) -> WindowingError:
        return SinkError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the server runs and takes writes, and who "
            "holds locks; start again: the batch is written then, unless it is there"
        )

    def _refused(self, problem: Exception) -> WindowingError | None:
        text = self._text(problem)
        if (refused := refused_connection(problem, text, str(self), masked(self._url))) is not None:
            return refused
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            rights = "SELECT, INSERT, UPDATE, and TEMPORARY on the database" if self._key else "INSERT"
            return ConfigError(
                f"{self} cannot be written: {text}; give a user who may write it ({rights}) and {_SINKS} in its schema (SELECT, "
                "INSERT, UPDATE), and may create there what is not there"
            )
        if isinstance(problem, psycopg.errors.IdleInTransactionSessionTimeout):
            return SinkError(
                f"{self} has ended the connection: {text}; the rows of a batch came more slowly than its open transaction may wait "
                f"for them: give a larger patience_s= ({self._patience_s:g} s) or make batches smaller; nothing of the batch was "
                "written"
            )
        if isinstance(problem, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
            return SinkError(f"{self} was changed while a query writes to it: {text}; put it back, then start again")
        if isinstance(
            problem, psycopg.DataError | psycopg.IntegrityError | psycopg.ProgrammingError | psycopg.NotSupportedError
        ):
            return SinkError(f"{self} does not take the rows: {text}; nothing of the batch was written")
        return None
