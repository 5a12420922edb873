"""PostgresStore: states in PostgreSQL, through psycopg 3 (extra `postgres`).

    table <state>           partition, key, txid, value, previous, crc      one row for each key
    table <state>_fences    partition, txid, attempt, record                one row for each partition

A read is one statement, so it reads one snapshot. A commit is one statement too: it compares and writes the fence first, and writes
the rows only if the fence was the expected one. It is its own transaction, durable when the server answers (`synchronous_commit` is
switched on if it is off). Table names are checked identifiers, all values are bound.

No call waits longer than the patience: lock, statement and idle timeouts are set in the server. If a server is stopped or the
network is silent, the client stops waiting for the answer at the same limit.

Cost: one round trip for a read, one for a commit, whatever the number of keys. Undoing an attempt scans the partition, in retries
only.
"""

from __future__ import annotations

import math
import re
import selectors
import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from windowing.errors import ConfigError, CorruptStateError, StoreUnavailableError, WindowingError, printable
from windowing.schema.checks import spelled_init
from windowing.stores.remote import Patient, Remote, checked_address, masked
from windowing.stores.state_tables import View
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import TransactionAttempt

_PAGE = 1000
_FENCE, _ROW, _LEFT = range(3)

_Selector = getattr(selectors, "PollSelector", selectors.DefaultSelector)  # the cheapest to create
_GRACE_S = 0.25
"""Extra wait of the client, so that the server's own timeouts come first: their errors name the cause."""
_WAIT_S = 5
"""How long `windowing states` waits for the server, and for a locked table."""
_SET = """
    SELECT set_config(name, CASE WHEN name = 'synchronous_commit' THEN 'on' ELSE %(patience_ms)s::text END, false) FROM pg_settings
    WHERE name = 'synchronous_commit' AND setting = 'off'
    OR name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')
    AND (setting = '0' OR setting::bigint > %(patience_ms)s::bigint)
"""
_NO_PASSWORD = ("authentication failed", "no password supplied")
_NO_LOGIN = ("is not permitted to log in", "permission denied for database", "no pg_hba.conf entry")
_NO_DATABASE = re.compile(r"FATAL: +database .* does not exist")
_CREATE = """
    CREATE TABLE IF NOT EXISTS {fences} (
        partition integer PRIMARY KEY, txid bigint NOT NULL, attempt bigint NOT NULL, record bytea NOT NULL
    );
    CREATE TABLE IF NOT EXISTS {rows} (
        partition integer NOT NULL, key bytea NOT NULL, txid bigint NOT NULL, value bytea, previous bytea, crc bigint NOT NULL,
        PRIMARY KEY (partition, key)
    )
"""
_STATES = """
    SELECT fences.table_schema, fences.table_name FROM information_schema.columns AS fences
    JOIN information_schema.tables AS states ON states.table_schema = fences.table_schema
        AND states.table_name || '_fences' = fences.table_name
    WHERE fences.column_name IN ('partition', 'txid', 'attempt', 'record')
    GROUP BY fences.table_schema, fences.table_name HAVING count(*) = 4 ORDER BY 1, 2
"""
_READ = """
    SELECT 0 AS what, record AS key, txid, NULL::bytea AS value, NULL::bytea AS previous, 0::bigint AS crc
    FROM {fences} WHERE partition = %(partition)s
    UNION ALL
    SELECT 1, key, txid, value, previous, crc FROM {rows} WHERE partition = %(partition)s AND key = ANY(%(keys)b::bytea[])
"""
_LEFT_BY = """
    UNION ALL
    SELECT 2, key, txid, value, previous, crc FROM {rows} WHERE partition = %(partition)s AND txid = %(txid)s AND EXISTS (
        SELECT FROM {fences} WHERE partition = %(partition)s AND txid = %(txid)s AND attempt < %(attempt)s)
"""
_CLAIMED_FIRST = """
    INSERT INTO {fences} VALUES (%(partition)s, %(txid)s, %(attempt)s, %(record)s) ON CONFLICT DO NOTHING RETURNING 1
"""
_CLAIMED = """
    UPDATE {fences} SET txid = %(txid)s, attempt = %(attempt)s, record = %(record)s
    WHERE partition = %(partition)s AND record = %(expected)s RETURNING 1
"""
_UNCLAIMED = "SELECT 1"
_WRITE = """
    WITH claimed AS ({claimed}), gone AS (
        DELETE FROM {rows} WHERE partition = %(partition)s AND key = ANY(%(gone)b::bytea[]) AND EXISTS (SELECT FROM claimed)
    ), put AS (
        INSERT INTO {rows} (partition, key, txid, value, previous, crc)
        SELECT %(partition)s, * FROM unnest(
            %(keys)b::bytea[], %(txids)b::bigint[], %(values)b::bytea[], %(previous)b::bytea[], %(crcs)b::bigint[]
        ) WHERE EXISTS (SELECT FROM claimed)
        ON CONFLICT (partition, key) DO UPDATE
        SET txid = EXCLUDED.txid, value = EXCLUDED.value, previous = EXCLUDED.previous, crc = EXCLUDED.crc
    )
    SELECT count(*) FROM claimed
"""
_COUNT = "SELECT count(*) FROM {rows} WHERE partition = %(partition)s"
_PAGE_OF = """
    SELECT key, txid, value, previous, crc FROM {rows} WHERE partition = %(partition)s AND key {than} %(after)s
    ORDER BY key LIMIT %(limit)s
"""


@spelled_init
@dataclass(frozen=True, repr=False)
class PostgresStore:
    """Trident's states in a PostgreSQL database (extra `postgres`): `PostgresStore("postgresql://me@host/db")`.

    url: a URL or connection string. The tables of a state are created in the first schema of the search path.
    patience_s: seconds to wait for an answer. Its repr and error messages mask the password. Raises ConfigError for an invalid
    address.
    """

    url: str
    patience_s: float = 30.0
    view: View | None = field(default=None, compare=False)
    """The view of a state for other programs; `state_table` sets it."""

    def __post_init__(self) -> None:
        checked_address(self.url, self.patience_s, "postgresql://user:password@host:5432/database")

    def open(self, place: PartitionId) -> PostgresMap:
        """Return the rows of one partition, over a connection of its own."""
        return PostgresMap(self.url, place, self.patience_s, self.view)

    def identity(self, state: str) -> tuple[Any, ...]:
        """Return the identity of the rows of a state: server, database, schema and table, whatever the user.

        Two names of one server have different identities; only the fence detects them as the same.
        """
        try:
            found = psycopg.conninfo.conninfo_to_dict(self.url)
        except psycopg.ProgrammingError:
            return "postgres", self.url, state
        host = str(found.get("hostaddr") or found.get("host") or "").lower()
        where = ("127.0.0.1" if host == "localhost" else host, str(found.get("port") or 5432))
        return "postgres", *where, found.get("dbname") or found.get("user"), found.get("options"), state

    def __repr__(self) -> str:
        return f"PostgresStore({masked(self.url)!r})"


class Bounded(psycopg.Connection[Any]):
    """A connection that waits for answers until `deadline` (monotonic clock, seconds); psycopg's own connection has no limit."""

    deadline = math.inf

    def wait(self, gen: Generator[Any, Any, Any], *_: Any, **__: Any) -> Any:
        """Run a generator of psycopg: it yields the event it waits for. Raises OperationalError at the deadline."""
        try:
            wanted = next(gen)
            with _Selector() as selector:
                selector.register(self.pgconn.socket, wanted)  # the numbers for reading and writing are the same
                while True:
                    left_s = None if self.deadline == math.inf else max(0.0, self.deadline - time.monotonic())
                    ready = selector.select(left_s)
                    if not ready:
                        raise psycopg.OperationalError("no answer came from the server")
                    if (next_wanted := gen.send(ready[0][1])) != wanted:
                        wanted = next_wanted
                        selector.modify(self.pgconn.socket, wanted)
        except StopIteration as end:
            return end.value


def checked_database(url: str, whose: str) -> None:
    """Raise ConfigError for an address that psycopg cannot read."""
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError(
            f"the address of {whose} is none of a PostgreSQL database (not shown, for it may hold a password); "
            "write postgresql://user:password@host:5432/database"
        ) from None  # the cause would show the password


def connected(url: str, patience_s: float, left_s: float) -> Bounded:
    """Return an autocommit connection whose calls and pauses take at most `patience_s` seconds. left_s: how long to wait for it, at
    least 2 s.
    """
    given = psycopg.conninfo.conninfo_to_dict(url)
    wait_s = max(2, math.ceil(left_s))
    asked_s = str(given.pop("connect_timeout", ""))
    wanted: dict[str, Any] = {  # without these, a dead connection is detected only after hours
        "connect_timeout": min(wait_s, int(asked_s)) if asked_s.isdigit() and int(asked_s) else wait_s,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 1000 * wait_s,
        **given,
    }
    db = Bounded.connect(psycopg.conninfo.make_conninfo(**wanted), autocommit=True)
    try:
        db.deadline = time.monotonic() + left_s + _GRACE_S
        db.execute(_SET, {"patience_ms": max(1, int(1000 * patience_s))})
    except BaseException:
        db.close()
        raise
    return db


def refused_connection(problem: Exception, text: str, what: str, where: str) -> ConfigError | None:
    """Return the error for a connection that the server refuses however often it is tried, or a pooler shares; None for others."""
    if isinstance(problem, psycopg.errors.DuplicatePreparedStatement | psycopg.errors.InvalidSqlStatementName):
        return ConfigError(
            f"PostgreSQL at {where} is behind a pooler that gives each transaction another session: {text}; the settings of a "
            "session, such as synchronous_commit, get lost there; give the address of the database itself, or let the pooler keep "
            "sessions (pool_mode=session); nothing is damaged"
        )
    if not isinstance(problem, psycopg.OperationalError):
        return None
    if any(each in text for each in _NO_PASSWORD):
        return ConfigError(
            f"PostgreSQL at {where} refuses the user: {text}; give the user and password of the database"
        )
    if any(each in text for each in _NO_LOGIN):
        return ConfigError(
            f"PostgreSQL at {where} refuses the user: {text}; give a user who may log in from here (LOGIN, pg_hba.conf) and "
            "connect to the database (GRANT CONNECT)"
        )
    if _NO_DATABASE.search(text) is not None:
        return ConfigError(f"{what} is in a database that is not there: {text}; CREATE DATABASE, or name another one")
    return None


class PostgresClient(Patient):
    """A client of PostgreSQL, whose connection waits for answers until the deadline of the current call."""

    lost: ClassVar[tuple[type[Exception], ...]] = (
        psycopg.OperationalError,
        psycopg.InterfaceError,
        psycopg.errors.ReadOnlySqlTransaction,  # a standby, which is the primary soon, or is found no more
    )
    _db: Bounded | None = None

    def _connect(self) -> None:
        if self._db is None:
            db = connected(self._url, self._patience_s, self._left_s())
            try:
                self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        self._db.deadline = self._deadline + _GRACE_S

    def _prepare(self, db: psycopg.Connection[Any]) -> None:
        """Called with each new connection."""

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


class PostgresMap(PostgresClient, Remote):
    """The rows of one partition (BackingMap)."""

    def __init__(self, url: str, place: PartitionId, patience_s: float, view: View | None = None) -> None:
        super().__init__(url, place, patience_s)
        self._view = view
        self._names = {"rows": sql.Identifier(place.state), "fences": sql.Identifier(f"{place.state}_fences")}
        checked_database(url, f"the store of {place}")

    def _prepare(self, db: psycopg.Connection[Any]) -> None:
        name = sql.SQL("SELECT to_regclass({})").format(self._names["fences"].as_string(db))
        is_there = db.execute(name).fetchone() != (None,)
        if is_there and (self._view is None or self._is_shown(db, self._view)):
            return
        with db.transaction():  # one process at a time, because concurrent CREATE TABLE statements collide
            db.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(self.place.state.encode()),))
            db.execute(sql.SQL(_CREATE).format(**self._names))
            if self._view is not None and not self._is_shown(db, self._view):
                made = self._view.in_postgres()
                db.execute(made.encode())
                comment = sql.SQL("COMMENT ON VIEW {} IS {}")
                db.execute(comment.format(sql.Identifier(self._view.name), sql.Literal(made)))

    def _is_shown(self, db: psycopg.Connection[Any], view: View) -> bool:
        """Return whether the view exists. Raises ConfigError if another object has its name."""
        query = "SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class WHERE oid = to_regclass(%s)"
        found = db.execute(query, (sql.Identifier(view.name).as_string(db),)).fetchone()
        if found is not None:
            view.require(found[0], view.in_postgres(), masked(self._url))
        return found is not None

    def _read(self, keys: Sequence[bytes], undo: TransactionAttempt | None) -> Reading:
        query = sql.SQL(_READ if undo is None else _READ + _LEFT_BY)
        txid, attempt = undo or (0, 0)
        fence, rows = None, ({}, {})  # type: tuple[None | Fence, tuple[dict[bytes, StateRow], dict[bytes, StateRow]]]
        for what, key, *row in self._all(query, keys=list(keys), txid=txid, attempt=attempt):
            if what == _FENCE:
                fence = Fence.of(key, self.place)
            else:
                rows[what == _LEFT][key] = StateRow.sound(self.place, key, *row)
        return Reading(fence, [rows[0].get(key) for key in keys], rows[1])

    def _write(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None) -> Fence | None:
        put = sorted((key, row) for key, row in rows.items() if row is not None)
        bound: dict[str, Any] = {
            "keys": [key for key, _ in put],
            "txids": [row.txid for _, row in put],
            "values": [row.value for _, row in put],
            "previous": [row.previous for _, row in put],
            "crcs": [row.checksum(self.place, key) for key, row in put],
            "gone": [key for key, row in rows.items() if row is None],
        }
        claimed = _UNCLAIMED
        if claim is not None:
            txid, attempt = claim.fence.attempt
            bound |= {"txid": txid, "attempt": attempt, "record": claim.fence.record()}
            claimed = _CLAIMED_FIRST
            if claim.expected is not None:
                claimed, bound["expected"] = _CLAIMED, claim.expected.record()
        query = sql.SQL(_WRITE.replace("{claimed}", claimed))
        ((written,),) = self._all(query, **bound)
        return None if written else self._read([], None).fence

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        after, than = b"", ">="  # a codec may give a key no bytes
        while page := self._patiently(
            partial(self._all, sql.SQL(_PAGE_OF.replace("{than}", than)), after=after, limit=_PAGE)
        ):
            yield from ((row[0], StateRow.sound(self.place, *row)) for row in page)
            after, than = page[-1][0], ">"

    def count(self) -> int:
        ((rows,),) = self._patiently(partial(self._all, sql.SQL(_COUNT)))
        return int(rows)

    def _all(self, query: sql.SQL, **bound: Any) -> list[tuple[Any, ...]]:
        assert self._db is not None
        found = self._db.execute(query.format(**self._names), {"partition": self.place.partition, **bound}, binary=True)
        return found.fetchall()

    def _refused(self, problem: Exception) -> WindowingError | None:
        text, where = self._text(problem), masked(self._url)
        if (refused := refused_connection(problem, text, f"the state {self.place} at {where}", where)) is not None:
            return refused
        if isinstance(problem, psycopg.errors.IdleInTransactionSessionTimeout):
            return StoreUnavailableError(
                f"PostgreSQL at {where} ended the connection of the state {self.place}: {text}"
            )
        if isinstance(problem, psycopg.errors.InvalidSchemaName):
            return ConfigError(
                f"the state {self.place} at {where} has no schema to be in: {text}; CREATE SCHEMA, GRANT USAGE and CREATE on it to "
                "the user, or name another one (options=-csearch_path=...)"
            )
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            return ConfigError(
                f"the state {self.place.state} cannot be written at {where}: {text}; give a user who may create and write its "
                "tables"
            )
        if isinstance(problem, self.lost):
            return None
        if isinstance(
            problem, psycopg.ProgrammingError | psycopg.DataError | psycopg.IntegrityError | psycopg.InternalError
        ):
            return CorruptStateError(
                f"the tables of the state {self.place.state} at {where} are not ours, or damaged: {text}; restore them from a "
                "copy, or give the state another name; nothing was reset"
            )
        return None


def stored_states(url: str) -> list[tuple[str, dict[int, int], dict[int, bytes]]]:
    """Return for each state in a database its name, the row counts and the fence records of its partitions, for `windowing states`.

    Runs one read-only transaction, which creates nothing, takes no lock that a writer waits for, and waits seconds for locks of
    others. Raises ConfigError for an invalid address, StoreUnavailableError with the message of the server. Cost: a count of the
    rows of each state.
    """
    checked_database(url, "the states")
    found: list[tuple[str, dict[int, int], dict[int, bytes]]] = []
    try:
        options = f"-c default_transaction_read_only=on -c lock_timeout={_WAIT_S}s"
        with psycopg.connect(url, connect_timeout=_WAIT_S, options=options) as db:
            for schema, fences in db.execute(_STATES).fetchall():
                state = str(fences).removesuffix("_fences")
                rows, records = sql.Identifier(schema, state), sql.Identifier(schema, str(fences))
                counts = db.execute(sql.SQL("SELECT partition, count(*) FROM {} GROUP BY partition").format(rows))
                kept = db.execute(sql.SQL("SELECT partition, record FROM {}").format(records))
                found.append((state, dict(counts.fetchall()), dict(kept.fetchall())))
    except psycopg.Error as problem:
        text = printable(masked(" ".join(f"{type(problem).__name__}: {problem}".split()), url))
        if isinstance(problem, psycopg.errors.LockNotAvailable):
            text += (
                f"; another program has locked a table of a state for more than {_WAIT_S} s: see pg_stat_activity, and ask again "
                "when it has ended"
            )
        raise StoreUnavailableError(f"PostgreSQL at {masked(url)} cannot be read: {text}") from None
    return found
