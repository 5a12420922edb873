"""PostgresTable and PostgresSink write each batch once to a typed table, also after kills; tables that do not fit are refused."""

from __future__ import annotations

import datetime as dt
import math
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.dying import in_a_child
from tests.services.conftest import address, empty
from tests.services.proxy import Cut, Proxy
from tests.stores.store_contract import commit
from windowing import seconds, tumbling
from windowing.errors import ConfigError, SinkError, WindowingError
from windowing.spark import MemorySink, PostgresSink, windowed
from windowing.spark.postgres_sink import _fields, _values
from windowing.spark.sinks import OutputOwner
from windowing.stores import MapStateFactory, PostgresStore, state_table
from windowing.stores.postgres import Bounded
from windowing.stores.postgres_tables import Column, PostgresTable, checked_table
from windowing.trident import ReplaceUpdater

COLUMNS = [Column("origin", "text"), Column("flights", "bigint", frozenset({"int8", "numeric"}))]
FIRST = [("JFK", 4), ("LGA", 1)]
SECOND = [("JFK", 10), ("EWR", 2), ("JFK", 11)]
Rows = Sequence[tuple[Any, ...]]


@pytest.fixture
def url() -> str:
    """The address of PostgreSQL, which has no tables."""
    empty("postgres")
    return address("postgres")


def table(
    url: str, key: tuple[str, ...] = (), columns: Sequence[Column] = COLUMNS, patience_s: float = 5
) -> PostgresTable:
    return PostgresTable(url, ("counts",), columns, key, patience_s)


def claim(url: str, key: tuple[str, ...] = (), query: str = "q", stream: str = "default") -> str:
    with table(url, key) as opened:
        opened.claim(query, stream)
        return opened.schema


def write(url: str, batch: int, rows: Rows, key: tuple[str, ...] = (), query: str = "q", patience_s: float = 5) -> bool:
    with table(url, key, patience_s=patience_s) as opened:
        return opened.write(query, "default", batch, lambda: iter(rows), "public")


def stored(url: str, columns: str = "*", name: str = "counts") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return sorted(db.execute(f"SELECT {columns} FROM {name}").fetchall())  # type: ignore[arg-type]


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for statement in statements:
            db.execute(statement)  # type: ignore[arg-type]


def with_part(url: str, **parts: str) -> str:
    return urlunsplit(urlsplit(url)._replace(**parts))


def refusal(kind: type[WindowingError], do: Callable[[], Any], url: str = "") -> str:
    with pytest.raises(kind) as found:
        do()
    shown = "".join(traceback.format_exception(found.value))
    secret = urlsplit(url or address("postgres")).password
    assert secret is not None
    assert secret not in shown, "the password is masked in the error and in what it came of"
    return str(found.value)


# -- each batch once -------------------------------------------------------------------------------------------------------------

APPENDED = sorted([*FIRST, *SECOND])
REPLACED = [("EWR", 2), ("JFK", 11), ("LGA", 1)]


@pytest.mark.parametrize(("key", "wanted"), [((), APPENDED), (("origin",), REPLACED)], ids=["append", "upsert"])
def test_a_replayed_batch_is_not_written_twice(url: str, key: tuple[str, ...], wanted: Rows) -> None:
    assert claim(url, key) == "public"
    assert [write(url, batch, rows, key) for batch, rows in ((0, FIRST), (0, FIRST), (3, SECOND))] == [
        True,
        False,
        True,
    ]
    with table(url, key) as opened:
        assert opened.claim("q", "default") == 3, "so that a start with other windows over batch 3 is refused"
    assert not write(url, 3, [("JFK", 99)], key)
    assert stored(url) == list(wanted)


@pytest.mark.parametrize(("key", "wanted"), [((), APPENDED), (("origin",), REPLACED)], ids=["append", "upsert"])
def test_a_batch_is_atomic_if_the_writer_is_killed_at_any_step(
    url: str, key: tuple[str, ...], wanted: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Bounded.wait

    def life(killed_at: int) -> Callable[[], None]:
        left = [killed_at]

        def wait(self: Any, *arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *arguments, **named)

        def job() -> None:
            monkeypatch.setattr(Bounded, "wait", wait)
            write(url, 1, SECOND, key)

        return job

    for killed_at in range(1, 100):
        empty("postgres")
        claim(url, key)
        write(url, 0, FIRST, key)
        before = stored(url)
        ended = in_a_child(life(killed_at))
        assert stored(url) in (before, list(wanted)), "a batch is seen whole or not at all"
        claim(url, key)
        write(url, 1, SECOND, key)
        assert stored(url) == list(wanted), f"killed before step {killed_at}"
        if ended == 0:
            assert killed_at > 8, "a kill between the first statement and the last"
            return
        assert ended == -signal.SIGKILL
    pytest.fail("no life came to its end")


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "before its answer arrives"])
def test_a_batch_is_written_once_if_the_connection_is_cut_at_any_request(url: str, after: bool) -> None:
    with Proxy(url) as proxy:
        claim(url, ("origin",))
        write(proxy.url, 0, FIRST, ("origin",))
        steps = proxy.requests
    for step in range(1, steps + 1):
        empty("postgres")
        claim(url)
        with Proxy(url) as proxy:
            proxy.cut = Cut(step, after)
            write(proxy.url, 0, FIRST)
        assert stored(url) == FIRST, f"cut at request {step}"


def test_a_server_that_fails_every_attempt_is_a_sink_error_after_the_patience(url: str) -> None:
    claim(url)
    run_sql(
        url,
        """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$""",
        "CREATE TRIGGER full_disk BEFORE INSERT ON counts FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
    )
    attempts = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal attempts
        attempts += 1
        assert attempts < 20, "the attempts have no end"
        yield from FIRST

    with table(url, patience_s=2) as opened:
        message = refusal(SinkError, lambda: opened.write("q", "default", 0, rows, "public"))
    assert "did not answer for 2 s: DiskFull: could not extend file: No space left on device" in message
    run_sql(url, "DROP TRIGGER full_disk ON counts")
    assert write(url, 0, FIRST)
    assert stored(url) == FIRST


def test_rows_that_come_too_slowly_for_the_open_transaction_are_a_sink_error(url: str) -> None:
    def rows() -> Iterator[tuple[Any, ...]]:
        yield from (("JFK", n) for n in range(5_000))  # a chunk
        time.sleep(1.5)
        yield "LGA", 0

    claim(url)
    with table(url, patience_s=1) as opened:
        message = refusal(SinkError, lambda: opened.write("q", "default", 0, rows, "public"))
    assert "table counts at " in message
    assert "terminating connection due to idle-in-transaction timeout; " in message
    assert "patience_s= (1 s)" in message
    assert not stored(url)
    assert write(url, 0, FIRST)
    assert stored(url) == FIRST


def test_a_standby_that_becomes_the_primary_is_waited_for(url: str) -> None:
    claim(url)
    run_sql(url, "ALTER ROLE windowing SET default_transaction_read_only = on")
    writes = "SET default_transaction_read_only = off", "ALTER ROLE windowing RESET default_transaction_read_only"
    promotion = threading.Timer(1, run_sql, (url, *writes))
    promotion.start()
    try:
        message = refusal(SinkError, lambda: write(url, 0, FIRST, patience_s=0.5))
        assert "did not answer for 0.5 s: ReadOnlySqlTransaction: cannot execute" in message
        assert "see whether the server runs and takes writes" in message
        assert write(url, 0, FIRST)
    finally:
        promotion.join()
    assert stored(url) == FIRST


def test_of_two_concurrent_writers_of_a_batch_one_writes(url: str) -> None:
    claim(url)

    def twin() -> Iterator[tuple[Any, ...]]:  # in the middle of the first one's transaction
        yield FIRST[0]
        message = refusal(SinkError, lambda: write(url, 0, FIRST, patience_s=1))
        assert "did not answer for 1 s" in message
        assert 'in relation "windowing_sinks"' in message
        yield FIRST[1]

    with table(url) as opened:
        assert opened.write("q", "default", 0, twin, "public")
    assert not write(url, 0, FIRST)
    assert stored(url) == FIRST


def test_a_batch_larger_than_one_chunk_is_written_completely(url: str) -> None:
    claim(url, ("origin",))
    many = [(f"o{n % 7000}", n) for n in range(12_000)]
    write(url, 0, many, ("origin",))
    assert stored(url) == sorted(dict(many).items())


# -- ownership -------------------------------------------------------------------------------------------------------------------


def test_a_table_belongs_to_one_stream_of_one_query(url: str) -> None:
    claim(url, query="mine")
    write(url, 4, FIRST, query="mine")
    assert "query mine, and this is stream 'default' of query q" in refusal(ConfigError, lambda: claim(url))
    message = refusal(ConfigError, lambda: claim(url, query="mine", stream="late"))
    assert "holds the rows of stream 'default' of query mine" in message
    assert "DELETE FROM public.windowing_sinks WHERE target = 'counts'" in message
    assert "is no longer that of stream 'default' of query q" in refusal(SinkError, lambda: write(url, 5, SECOND))
    assert stored(url) == FIRST


def test_a_checkpoint_older_than_the_table_is_refused(url: str, spark: SparkSession) -> None:
    claim(url)
    write(url, 4, FIRST)
    older = OutputOwner("q", "default", 3, StructType.fromDDL("origin string, flights long"))
    message = refusal(ConfigError, lambda: PostgresSink(url, "counts").claim(spark, older))
    assert "holds batch 4, and stream 'default' of query q has come to batch 3" in message
    assert message.endswith("else put both back from one copy"), "without its row the query would write batch 4 twice"
    none = older._replace(last_batch=None)
    assert "has begun none" in refusal(ConfigError, lambda: PostgresSink(url, "counts").claim(spark, none))
    assert PostgresSink(url, "counts").claim(spark, older._replace(last_batch=4, written=4)) == 4
    older_copy = older._replace(last_batch=7, written=6)
    message = refusal(ConfigError, lambda: PostgresSink(url, "counts").claim(spark, older_copy))
    assert "the last batch in " in message
    assert "is 4, and stream 'default' of query q has written batch 6" in message
    assert "holds batch 4 of query q, and batch 3 came" in refusal(SinkError, lambda: write(url, 3, SECOND))
    assert stored(url) == FIRST


def test_a_dropped_table_is_an_error_and_is_not_recreated(url: str) -> None:
    claim(url)
    write(url, 0, FIRST)
    run_sql(url, "DROP TABLE counts")
    assert "was changed while a query writes to it" in refusal(SinkError, lambda: write(url, 1, SECOND))
    assert "is gone, and held the batches of query q up to 0" in refusal(ConfigError, lambda: claim(url))


def test_a_database_or_windowing_sinks_table_that_disappears_between_batches_is_named(url: str) -> None:
    run_sql(url, "DROP DATABASE IF EXISTS brief WITH (FORCE)", "CREATE DATABASE brief")
    brief = with_part(url, path="/brief")
    claim(brief)
    with table(brief) as opened:
        assert opened.write("q", "default", 0, lambda: iter(FIRST), "public")
        run_sql(brief, "ALTER TABLE windowing_sinks RENAME TO elsewhere")
        message = refusal(SinkError, lambda: opened.write("q", "default", 1, lambda: iter(SECOND), "public"))
        assert "was changed while a query writes to it" in message
        assert "windowing_sinks" in message
        run_sql(brief, "ALTER TABLE elsewhere RENAME TO windowing_sinks")
        assert opened.write("q", "default", 1, lambda: iter(SECOND), "public")
        run_sql(url, "DROP DATABASE brief WITH (FORCE)")
        message = refusal(ConfigError, lambda: opened.write("q", "default", 2, lambda: iter(SECOND), "public"))
        assert "is in a database that is not there" in message


# -- bad input -------------------------------------------------------------------------------------------------------------------


def test_a_wrong_password_a_missing_database_and_a_missing_schema_are_reported(url: str) -> None:
    given = urlsplit(url)
    wrong = with_part(url, netloc=f"windowing:not-the-password@127.0.0.1:{given.port}")
    assert "refuses the user" in refusal(ConfigError, lambda: claim(wrong), wrong)
    assert "is in a database that is not there" in refusal(ConfigError, lambda: claim(with_part(url, path="/nowhere")))
    with PostgresTable(url, ("nowhere", "counts"), COLUMNS, (), 5) as opened:
        assert "'nowhere' is not there; CREATE SCHEMA" in refusal(ConfigError, lambda: opened.claim("q", "s"))


def test_an_unreachable_server_is_a_sink_error_after_the_patience() -> None:
    nobody = "postgresql://me:s3cret-word@127.0.0.1:1/db"
    with table(nobody, patience_s=0.5) as opened:
        message = refusal(SinkError, lambda: opened.claim("q", "s"), nobody)
    assert "did not answer for 0.5 s" in message
    assert "me:***@127.0.0.1:1" in message
    assert "s3cret" not in repr(PostgresSink(nobody, "counts"))
    unreadable = nobody.replace("postgresql://", "host=h pass word=")
    assert "not shown" in refusal(ConfigError, lambda: table(unreadable), nobody)


def test_a_user_without_the_right_to_write_is_refused(url: str) -> None:
    run_sql(url, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN PASSWORD 'reader-secret'")
    reader = with_part(url, netloc=f"reader:reader-secret@127.0.0.1:{urlsplit(url).port}")
    try:
        assert "none of the search path can be used" in refusal(ConfigError, lambda: claim(reader), reader)
        run_sql(url, "GRANT USAGE ON SCHEMA public TO reader")
        assert "give a user who may write it" in refusal(ConfigError, lambda: claim(reader), reader)
    finally:
        run_sql(url, "DROP OWNED BY reader", "DROP ROLE reader")


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ("CREATE TABLE counts (origin text)", "it has no column 'flights' (ALTER TABLE ... ADD COLUMN ... bigint)"),
        (
            "CREATE TABLE counts (origin text PRIMARY KEY, flights int)",
            "column 'flights' is int4, and the stream has bigint",
        ),
        ("CREATE TABLE counts (origin text, flights bigint, day date NOT NULL)", "'day' has to have a value"),
        (
            "CREATE TABLE counts (origin text, flights bigint GENERATED ALWAYS AS (1) STORED)",
            "is generated by the table",
        ),
        ("CREATE TABLE counts (origin text, flights bigint)", 'no primary key or unique index on ("origin")'),
        (
            "CREATE TABLE counts (origin text, flights bigint, UNIQUE (origin, flights))",
            "ALTER TABLE ... ADD PRIMARY KEY",
        ),
        ("CREATE VIEW counts AS SELECT 'JFK' AS origin, 1::bigint AS flights", "is there and is no table"),
    ],
)
def test_a_table_that_does_not_match_the_stream_is_refused_before_anything_is_written(
    url: str, made: str, sentence: str
) -> None:
    run_sql(url, made)
    assert sentence in refusal(ConfigError, lambda: claim(url, ("origin",)))
    with psycopg.connect(url) as db:
        assert db.execute("SELECT to_regclass('windowing_sinks')").fetchone() == (None,), (
            "the refused claim left nothing"
        )


def test_a_table_with_additional_columns_and_a_unique_index_is_accepted(url: str) -> None:
    run_sql(
        url,
        "CREATE TABLE counts (id bigint GENERATED ALWAYS AS IDENTITY, origin varchar(9), flights numeric, seen int DEFAULT 1)",
        "CREATE UNIQUE INDEX ON counts (origin)",
    )
    claim(url, ("origin",))
    write(url, 0, FIRST, ("origin",))
    write(url, 1, SECOND, ("origin",))
    assert stored(url, "origin, flights, seen") == [(*row, 1) for row in REPLACED]


def test_a_value_that_does_not_fit_fails_the_whole_batch_and_names_the_column(url: str) -> None:
    run_sql(url, "CREATE TABLE counts (origin varchar(3), flights bigint CHECK (flights < 100))")
    claim(url)
    write(url, 0, FIRST)
    for row, part in (
        (("too long", 1), "line 6, column origin"),
        (("JFK", 100), "violates check"),
        (("a\0", 1), r"column 'origin' of ('a\x00', 1) has a text with a NUL (0x00)"),
    ):
        message = refusal(SinkError, lambda row=row: write(url, 1, [*SECOND, *FIRST, row]))
        assert "does not take the rows" in message
        assert part in message
    assert stored(url) == FIRST
    assert write(url, 1, SECOND)


@pytest.mark.parametrize("key", [(), ("origin",)])
def test_a_nul_in_a_text_or_in_one_of_an_array_is_refused_with_the_column_and_the_row(
    url: str, key: tuple[str, ...]
) -> None:
    columns = [Column("origin", "text"), Column("tags", "text[]")]
    with PostgresTable(url, ("counts",), columns, key, 5) as table:
        table.claim("q", "default")
        message = refusal(
            SinkError, lambda: table.write("q", "default", 0, lambda: [("JFK", ["a", "b\0"])], table.schema)
        )
    assert r"column 'tags' of ('JFK', ['a', 'b\x00']) has a text with a NUL" in message
    assert stored(url, "origin") == []


def test_a_row_with_a_null_in_its_key_is_refused(url: str) -> None:
    claim(url, ("origin",))
    message = refusal(SinkError, lambda: write(url, 0, [*FIRST, (None, 3)], ("origin",)))
    assert "has no value in 'origin', a column of its key: (None, 3)" in message
    assert stored(url) == []


@pytest.mark.parametrize("name", ["a; DROP TABLE counts", "", 'a"b', "a.b.c", "1a", "ä" * 9, 7, None, "x" * 64])
def test_an_invalid_table_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        checked_table(name)


def test_values_and_column_names_that_look_like_sql_are_treated_as_data(url: str) -> None:
    odd = [Column('a"; DROP TABLE other; --', "text"), Column("select", "text")]
    rows = [("'; DROP TABLE other; --", "\\.\n\t\\N"), ("€\u202e\U0001f600", "{}")]
    run_sql(url, "CREATE TABLE other (n int)")
    with table(url, ("select",), odd) as opened:
        opened.claim("q'--", "s")
        assert opened.write("q'--", "s", 0, lambda: rows, "public")
    assert stored(url) == sorted(rows)
    assert stored(url, name="other") == []


# -- a state as a table ----------------------------------------------------------------------------------------------------------

EVERY = "s string, b boolean, i2 smallint, i8 bigint, f double, d decimal(9, 2), day date, v double"
KEY = ("ü'\"\n", True, -128, 2**63 - 1, 0.1, Decimal("1234567.25"), dt.date(2013, 1, 31))


def put(factory: MapStateFactory, txid: int, values: dict[Any, Any], partition: int = 0) -> None:
    with closing(factory.make_state(partition, 2)) as state:
        commit(state, txid, 0, {key: ReplaceUpdater(value) for key, value in values.items()})


def test_a_state_is_readable_as_a_view_with_typed_columns(url: str) -> None:
    made = state_table(PostgresStore(url), "counts", "origin text, flights bigint")
    put(made, 1, {("JFK",): 4, ("LGA",): 1})
    put(made, 1, {("EWR",): 2}, partition=1)
    put(pickle.loads(pickle.dumps(made)), 2, {("JFK",): 14, ("LGA",): None})
    assert stored(url) == [("EWR", 2), ("JFK", 14)]
    run_sql(url, "DROP VIEW counts")
    put(made, 2, {}, partition=1)
    assert stored(url, "origin, flights, pg_typeof(flights)::text") == [("EWR", 2, "bigint"), ("JFK", 14, "bigint")]


def test_every_type_has_its_column_type_in_the_view_of_a_state(url: str) -> None:
    made = state_table(PostgresStore(url), "counts", EVERY)
    put(made, 1, {KEY: 0.5})
    put(made, 2, {(None,) * 7: -math.inf})
    assert stored(url, "*", "counts WHERE s IS NOT NULL") == [(*KEY, 0.5)]
    assert stored(url, "*", "counts WHERE s IS NULL") == [(*(None,) * 7, -math.inf)]
    with closing(made.make_state(0, 2)) as state:
        assert dict(state.items()) == {KEY: 0.5, (None,) * 7: -math.inf}


def test_a_foreign_table_with_the_name_of_the_view_is_refused_and_not_changed(url: str) -> None:
    run_sql(url, "CREATE TABLE counts (n int)")
    made = state_table(PostgresStore(url, 5), "counts", "origin text, flights bigint")
    assert "has something else of the name counts" in refusal(ConfigError, lambda: put(made, 1, {("JFK",): 4}))
    assert stored(url) == []


# -- on Spark --------------------------------------------------------------------------------------------------------------------

TYPES = """s string, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f4 float, f8 double, d decimal(12, 3), day date,
    t timestamp, n timestamp_ntz, raw binary, l array<bigint>, ts array<timestamp>, st struct<x: int, y: timestamp>,
    m map<string, int>, nothing string"""
ZONE = dt.timezone(dt.timedelta(hours=2))
MOMENT = dt.datetime(2013, 3, 31, 3, 30, 0, 123456, ZONE)
VALUES = (
    "ü", True, 1, -2, 3, 2**62, 0.5, 1.1, Decimal("123456789.125"), dt.date(2013, 1, 2), MOMENT,
    dt.datetime(2013, 3, 31, 2, 30), bytearray(b"\0\xff"), [1, None], [MOMENT, None], (1, MOMENT), {"a": 1}, None,
)  # fmt: skip


def sink(url: str, key: Any = (), **options: Any) -> PostgresSink:
    return PostgresSink(url, "counts", key, patience_s=5, **options)


def test_every_type_of_spark_is_written_to_its_column_type(url: str, spark: SparkSession) -> None:
    rows = spark.createDataFrame([VALUES], TYPES)
    to = sink(url)
    to.claim(spark, OutputOwner("q", "default", None, rows.schema))
    to.write(rows, 0)
    with psycopg.connect(url) as db:
        cursor = db.execute("SELECT * FROM counts")
        (found,) = cursor.fetchall()
        types = db.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'counts'::regclass AND attnum > 0"
        ).fetchall()
    wanted = [
        *VALUES[:12],
        b"\0\xff",
        [1, None],
        [MOMENT, None],
        {"x": 1, "y": "2013-03-31T01:30:00.123456Z"},
        {"a": 1},
        None,
    ]
    assert list(found) == wanted
    assert [kind for (kind,) in types] == [
        "text", "boolean", "smallint", "smallint", "integer", "bigint", "real", "double precision", "numeric(12,3)", "date",
        "timestamp with time zone", "timestamp without time zone", "bytea", "bigint[]", "timestamp with time zone[]",
        "jsonb", "jsonb", "text",
    ]  # fmt: skip


def test_an_unsupported_type_a_date_out_of_range_and_a_loss_of_digits_are_refused(
    url: str, spark: SparkSession
) -> None:
    odd = spark.sql("SELECT INTERVAL 1 DAY AS gap")
    message = refusal(ConfigError, lambda: sink(url).claim(spark, OutputOwner("q", "s", None, odd.schema)))
    assert "column 'gap' is interval day, for which a PostgresSink has no type; cast it" in message
    rows = spark.sql("SELECT date_add(DATE'9999-12-31', 1) AS day")
    to = sink(url)
    to.claim(spark, OutputOwner("q", "s", None, rows.schema))
    assert "column 'day' of a row" in refusal(SinkError, lambda: to.write(rows, 0))
    run_sql(url, "ALTER TABLE counts ALTER day TYPE date", "CREATE TABLE money (d numeric(9, 2))")
    cents = spark.sql("SELECT CAST(1.234 AS decimal(9, 3)) AS d")
    narrow = PostgresSink(url, "money", patience_s=5)
    message = refusal(ConfigError, lambda: narrow.claim(spark, OutputOwner("q", "s", None, cents.schema)))
    assert "keeps 2 digits behind the point, and the stream has numeric(9,3)" in message


def test_dates_and_timestamps_that_python_cannot_hold_are_refused_with_their_column(spark: SparkSession) -> None:
    def values(expression: str) -> list[Any]:
        rows = spark.sql(f"SELECT {expression} AS day")
        fields = _fields(rows.schema)
        return list(_values(rows.select(*(field.sent for field in fields)), fields, "counts"))

    assert values("TIMESTAMP_NTZ'2013-03-31 02:30:00.000001'") == [[dt.datetime(2013, 3, 31, 2, 30, 0, 1)]]
    for kind in ("date", "timestamp", "timestamp_ntz"):
        with pytest.raises(SinkError, match="column 'day' of a row for counts holds a date that Python cannot"):
            values(f"CAST(timestamp_micros(253402300800000000) AS {kind})")


@tumbling(seconds(10), timestamp="ts", key="k", output="k string, ends timestamp, total double", late_stream="late")
def totals(window: Any) -> tuple[Any, ...]:
    ends = dt.datetime.fromtimestamp(window.end_timestamp / 1000, dt.UTC).replace(tzinfo=None)
    return window.key, ends, sum(row.v for row in window)


class Interrupted(PostgresSink):
    """Fails after the sink has committed batch 1, before Spark commits it."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        super().write(rows, batch_id)
        if batch_id == 1:
            raise KeyError("the driver dies here")


@pytest.mark.parametrize("key", [(), ("k",)], ids=["append", "upsert"])
def test_each_row_is_written_once_if_the_query_fails_between_the_commits_of_sink_and_spark(
    url: str, spark: SparkSession, tmp_path: Path, key: tuple[str, ...]
) -> None:
    folder = tmp_path / "in"
    schema = "k string, ts long, v double"
    for number in range(3):
        made = [(f"k{n % 2}", 1000 * (20 * number + n), float(n)) for n in range(20)]
        spark.createDataFrame(made, schema).coalesce(1).write.parquet(str(folder / f"{number}"))

    def run(to: Any, checkpoint: str) -> None:
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/*")
        stream = windowed(totals, rows, order_by=["ts"])
        stream.start({"default": to}, str(tmp_path / checkpoint), discard=("late",), drain=True).await_end(180)

    kept = MemorySink()
    run(kept, "wanted")
    wanted = [tuple(row) for row in kept.rows]
    assert len(wanted) == 13
    with suppress(KeyError):
        run(Interrupted(url, "counts", key, patience_s=5), "checkpoint")
    assert stored(url, "batch", "windowing_sinks") == [(1,)]
    run(sink(url, key), "checkpoint")
    found = [(k, ends.astimezone(dt.UTC), total) for k, ends, total in stored(url)]
    local = [(k, ends.astimezone(dt.UTC), total) for k, ends, total in wanted]
    assert found == sorted(dict(zip((k for k, *_ in local), local, strict=True)).values() if key else local)
    message = refusal(ConfigError, lambda: run(sink(url, key), "another"))
    assert "is stream 'default' of query" in message
