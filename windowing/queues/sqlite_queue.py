"""SqliteQueue: a durable queue in one SQLite file; an ack deletes the rows.

    put(rows)  -->  | 4 | 5 | 6 | 7 | 8 |  --read--> a batch: a root
                              ack(root)    deletes its rows
                              fail(root)   appends them again at the end; after `max_attempts` they become dead letters

Laws
- Each row gets a number once, in commit order, also after the queue was empty. So offsets only grow.
- Each call is one transaction, which is durable when the call returns. A second ack or fail of a root finds no rows.
- One queue feeds one query. A new query takes it over with the remaining rows: what the one before has read and not acked is not
  deleted by it any more. A query that would miss deleted rows is refused before its first batch.
- A file has an identity, which checkpoints store. A file that is created again at the same path is another queue.
- A file stores up to which number its rows were read before a checkpoint does. An older copy, whose new rows have numbers that were
  read, is refused.
- Each row has a checksum, and so has the table of facts about the queue.
- SQL is constant text; values are bound, and stored as typed JSON, never as pickle.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from windowing.codec import decode_value, encode_value
from windowing.columnar.bolts import table_of
from windowing.errors import ConfigError, CorruptStateError, SourceError, WindowingError, printable, quote
from windowing.queues.spout import Offsets, PartitionedSpout, Root, refuse_forgotten, taken_over, whole_number
from windowing.schema.checks import spelled
from windowing.schema.rows import RowError, row_of
from windowing.schema.types import Schema
from windowing.stores.sqlite_files import BUSY, DAMAGED, checked_path, make_durable, make_whole, transaction, translated

_WAIT_S = 30.0
_ROWS_PER_BATCH = 20_000
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS queue (
        id INTEGER PRIMARY KEY AUTOINCREMENT, attempt INTEGER NOT NULL, row BLOB NOT NULL, crc INTEGER NOT NULL DEFAULT -1
    );
    CREATE TABLE IF NOT EXISTS dead (
        id INTEGER PRIMARY KEY, component TEXT NOT NULL, row BLOB NOT NULL, crc INTEGER NOT NULL DEFAULT -1
    )
"""
_IN_RANGE = "FROM queue WHERE id > ? AND id <= ? AND id % ? = ?"


class SqliteQueue(PartitionedSpout):
    """A queue of rows of `fields` in the file `path`, on a local disk that all workers share; created if it does not exist.

    partitions: the number of tasks that read a batch. max_rows: the maximum number of rows of a batch, over all partitions.
    max_attempts: after this many failures the rows of a root become dead letters.

    Raises ConfigError for a queue with other fields or partitions. Every method raises SourceError for a file that is gone, locked
    for 30 s or not writable, and CorruptStateError for a damaged one.

    >>> import tempfile
    >>> queue = SqliteQueue(tempfile.mkdtemp() + "/words.db", "word string, n long")
    >>> queue.put([("storm", 1), {"word": "spark", "n": 2}]), len(queue), queue.rows()
    (2, 2, [('storm', 1), ('spark', 2)])
    """

    @spelled
    def __init__(
        self,
        path: str | Path,
        fields: str,
        *,
        partitions: int = 1,
        max_rows: int | None = None,
        max_attempts: int = 5,
    ) -> None:
        for name, number in (("partitions", partitions), ("max_rows", max_rows), ("max_attempts", max_attempts)):
            if number is not None:
                whole_number(name, number)
        self._schema = Schema.parse(fields)
        self.path, self.fields = os.path.abspath(checked_path(path, "a queue")), self._schema.ddl
        # A partition has every `partitions`-th number: n offsets of it are n / partitions rows.
        self.max_rows = None if max_rows is None else max_rows * partitions
        self._partitions, self._max_attempts = partitions, max_attempts
        self._read = 0
        """The result of `latest` in this run."""
        self._query: str | None = None
        """The name of the query that has called `begin`."""
        with translated(self._error_of):
            if not os.path.exists(self.path):
                make_whole(Path(self.path), self._fill)
            elif os.path.getsize(self.path) == 0:
                raise self._damaged("it is empty")
        with self._transaction() as (db, facts):
            self._adopt(db, facts)
            for name, wanted in (("fields", self.fields), ("partitions", str(partitions))):
                if facts.setdefault(name, wanted) != wanted:
                    raise ConfigError(
                        f"the queue {self.path} was made with {name} {quote(facts[name])}, now {wanted!r}; give it another path"
                    )
        self.identity = facts["identity"]

    # -- filling and inspection ----------------------------------------------------------------------------------------

    def put(self, rows: Iterable[Any]) -> int:
        """Append rows (tuples, or dicts by name) in one transaction; return their number. Any process may call it."""
        if isinstance(rows, str | bytes | Mapping):
            raise ConfigError(f"the queue {self.path} takes a list of rows, got {quote(rows)}; write put([row, row])")
        try:
            values: list[Any] = [(1, encode_value(row_of(row, self._schema, "queue"))) for row in rows]
        except (RowError, TypeError) as problem:
            raise ConfigError(f"the queue {self.path} takes rows of {self.fields}: {problem.args[0]}") from problem
        with self._transaction() as (db, facts):
            self._append(db, facts, values)
        return len(values)

    def __len__(self) -> int:
        """Return the number of rows that are not acked."""
        with self._opened() as (db, _):
            (count,) = db.execute("SELECT count(*) FROM queue").fetchone()
        return int(count)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows that are not acked, oldest first."""
        with self._opened() as (db, _):
            return [self._decoded(*row) for row in db.execute("SELECT id, attempt, row, crc FROM queue ORDER BY id")]

    @property
    def dead(self) -> list[tuple[Any, ...]]:
        """The rows of the dead letters, oldest first."""
        with self._opened() as (db, _):
            return [self._decoded(*row) for row in db.execute("SELECT id, component, row, crc FROM dead ORDER BY id")]

    # -- the spout -----------------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """Return the offset before the oldest row, for each partition."""
        with self._opened() as (db, facts):
            (first,) = db.execute("SELECT min(id) FROM queue").fetchone()
            return self._each(int(facts["last"]) if first is None else first - 1)

    def latest(self) -> Offsets:
        """Return the number assigned last, for each partition. Cost: a read; one transaction if there are new rows."""
        with self._opened() as (_, facts):
            self._refuse_older(facts, self._read)
            has_new = facts.get("read") != facts["last"]
        if has_new:
            with self._transaction() as (_, facts):
                self._refuse_older(facts, self._read)
                facts["read"] = facts["last"]
        self._read = int(facts["read"])
        return self._each(self._read)

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with numbers in (start, end] whose number modulo `partitions` is the partition's."""
        while True:
            with self._opened() as (db, facts):  # page by page, because a reader blocks writers
                self._refuse_older(facts, end)
                bounds = (start, end, self._partitions, int(partition), _ROWS_PER_BATCH)
                found = db.execute(f"SELECT id, attempt, row, crc {_IN_RANGE} ORDER BY id LIMIT ?", bounds).fetchall()
            if not found:
                return
            yield from table_of([self._decoded(*row) for row in found], self._schema).to_batches()
            start = found[-1][0]

    def begin(self, query: str, end: Offsets | None) -> None:
        """Record the query that reads. Raises CheckpointError if the checkpoint is older than the last ack, SourceError for a queue
        that is older than the checkpoint.

        Cost: reads the whole file once, to find damage before the first batch.
        """
        with self._transaction() as (db, facts):
            (sound,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise self._damaged(sound)
            known = {"query": facts.get("query"), "acked": json.loads(facts.get("acked", "{}"))}
            if refuse_forgotten(f"the queue {self.path}", known, query, end):
                facts["acked"] = "{}"  # rows acked by the previous query were never read by this one
            self._read = max((end or {}).values(), default=0)
            self._refuse_older(facts, self._read)
            facts["query"] = query
        self._query = query

    def ack(self, root: Root) -> None:
        """Delete the rows of a root. Cost: one transaction."""
        with self._transaction() as (db, facts):
            self._refuse_end(facts, root)
            acked: dict[str, int] = json.loads(facts.get("acked", "{}"))
            acked |= {name: max(end, acked.get(name, end)) for name, (_, end) in root.ranges.items()}
            facts["acked"] = json.dumps(acked, sort_keys=True)
            self._remove(db, root)

    def fail(self, root: Root, component: str) -> None:
        """Append the rows of a root again, in order, for another attempt; after their last attempt they become dead letters."""
        with self._transaction() as (db, facts):
            self._refuse_end(facts, root)
            found: list[tuple[int, int, bytes, int]] = []
            for bounds in self._bounds(root):
                found += db.execute(f"SELECT id, attempt, row, crc {_IN_RANGE}", bounds)
            for row in found:
                self._checked(*row)
            again: list[Any] = [
                (attempt + 1, row) for _, attempt, row, _ in sorted(found) if attempt < self._max_attempts
            ]
            dead = [(number, component, row) for number, attempt, row, _ in found if attempt >= self._max_attempts]
            self._append(db, facts, again)
            db.executemany("INSERT INTO dead VALUES (?, ?, ?, ?)", (_summed(*row) for row in dead))
            self._remove(db, root)

    def _append(
        self, db: sqlite3.Connection, facts: dict[str, str], rows: list[tuple[Any, bytes]], to: str = "queue"
    ) -> None:
        """Store new rows, each with its attempt, or among the `dead` with its reason, under the next numbers."""
        last = int(facts["last"])
        numbered = (_summed(last + 1 + at, *row) for at, row in enumerate(rows))
        db.executemany(f"INSERT INTO {to} VALUES (?, ?, ?, ?)", numbered)
        facts["last"] = str(last + len(rows))

    def _remove(self, db: sqlite3.Connection, root: Root) -> None:
        for bounds in self._bounds(root):
            db.execute(f"DELETE {_IN_RANGE}", bounds)

    def _refuse_end(self, facts: dict[str, str], root: Root) -> None:
        """Raise SourceError before an ack or fail in an older copy, or in a queue that another query has taken over."""
        self._refuse_older(facts, max(root.end.values(), default=0))
        if self._query not in (None, facts.get("query")):
            raise taken_over(f"the queue {self.path}")

    def _refuse_older(self, facts: dict[str, str], read: int) -> None:
        """Raise SourceError if rows up to `read` were read, and the file does not know it."""
        known = facts.get("read", facts["last"])  # an earlier version did not store it
        if read > int(known):
            raise SourceError(
                f"the queue {self.path} is an older copy: it was read up to number {known}, and its query has read up to {read}, "
                "so new rows in it have numbers that count as read; put the newest copy back, or begin with a new checkpoint and "
                "new output folders, which reads what this one has; nothing was read or deleted"
            )

    def _bounds(self, root: Root) -> list[tuple[int, int, int, int]]:
        return [(start, end, self._partitions, int(name)) for name, (start, end) in sorted(root.ranges.items())]

    def _each(self, offset: int) -> Offsets:
        return {str(number): offset for number in range(self._partitions)}

    # -- the file ------------------------------------------------------------------------------------------------------

    def _fill(self, db: sqlite3.Connection) -> None:
        for statement in _TABLES.split(";"):
            db.execute(statement)

    def _adopt(self, db: sqlite3.Connection, facts: dict[str, str]) -> None:
        """Write the facts of a new file, and add checksums to the file of an earlier version."""
        self._fill(db)
        if "identity" in facts:
            return
        (rows,) = db.execute("SELECT (SELECT count(*) FROM queue) + (SELECT count(*) FROM dead)").fetchone()
        if rows and not facts:
            raise self._damaged("it has rows, and no facts about them")
        for table, column in (("queue", "attempt"), ("dead", "component")):
            if "crc" not in [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]:
                db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER NOT NULL DEFAULT -1")
                stored = db.execute(f"SELECT id, {column}, row FROM {table}").fetchall()
                db.executemany(f"REPLACE INTO {table} VALUES (?, ?, ?, ?)", (_summed(*row) for row in stored))
        given = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'queue'").fetchone()
        facts |= {"identity": uuid4().hex, "last": "0" if given is None else str(given[0])}

    def _checked(self, number: int, with_it: Any, row: Any, crc: int) -> None:
        if not isinstance(row, bytes) or _summed(number, with_it, row)[3] != crc:
            raise self._damaged(f"row {number} does not have its checksum")

    def _decoded(self, number: int, with_it: Any, row: Any, crc: int) -> tuple[Any, ...]:
        self._checked(number, with_it, row, crc)
        return tuple(decode_value(row, f"row {number} of the queue {self.path}"))

    def _facts(self, db: sqlite3.Connection) -> dict[str, str]:
        facts = dict(db.execute("SELECT name, value FROM meta"))
        crc = facts.pop("crc", None)
        if (crc is not None or "identity" in facts) and crc != _crc_of(facts):
            raise self._damaged("the facts about it do not have their checksum")
        if self.identity not in (None, facts.get("identity")):
            raise SourceError(
                f"the queue {self.path} is not the one that was opened: its file was made anew since; put the file back from a "
                "copy, or open the new queue and begin with a new checkpoint and new output folders"
            )
        return facts

    @contextmanager
    def _opened(self) -> Iterator[tuple[sqlite3.Connection, dict[str, str]]]:
        """Open the existing file, and read the facts about the queue."""
        with translated(self._error_of):
            where = f"{Path(self.path).as_uri()}?mode=rw"
            with closing(sqlite3.connect(where, uri=True, timeout=_WAIT_S, isolation_level=None)) as db:
                db.text_factory = lambda text: text.decode(errors="surrogateescape")  # the checksums find damaged text
                make_durable(db, _WAIT_S)
                yield db, self._facts(db)

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sqlite3.Connection, dict[str, str]]]:
        """Run the body in one durable transaction; changed facts are stored."""
        with self._opened() as (db, _), transaction(db):
            facts = self._facts(db)
            before = dict(facts)
            yield db, facts
            if facts != before:
                db.executemany("REPLACE INTO meta VALUES (?, ?)", [*facts.items(), ("crc", _crc_of(facts))])

    def _error_of(self, problem: Exception, code: int | None) -> WindowingError:
        """Return the SourceError or CorruptStateError for an error of SQLite or, without a code, of the file system."""
        if code is None:
            return SourceError(
                f"the queue {self.path} cannot be opened: {printable(str(problem))}; look at the disk and the rights of the folder"
            )
        if code in DAMAGED:
            return self._damaged(str(problem))
        if code in BUSY:
            what = f"is locked by another process for more than {_WAIT_S:g} s; end what holds it"
        elif self.identity is not None and not os.path.exists(self.path):
            what = "is gone: its file was deleted or moved; put it back from a copy, or on a cluster where all workers see it"
        else:
            what = f"cannot be read or written: {printable(str(problem))}; look at the disk and the rights of the file"
        return SourceError(f"the queue {self.path} {what}, then start again; it holds what it held before")

    def _damaged(self, what: str) -> CorruptStateError:
        return CorruptStateError(
            f"the queue {self.path} is damaged, or not ours: {printable(what)}; put the file back from a copy, or give the path of "
            "a new one; nothing was reset"
        )


def _summed(number: int, with_it: Any, row: bytes) -> tuple[int, Any, bytes, int]:
    """Return a row of a table with its checksum over its number, its attempt or component, and its content."""
    return number, with_it, row, zlib.crc32(row, zlib.crc32(f"{number} {with_it} ".encode(errors="surrogateescape")))


def _crc_of(facts: dict[str, str]) -> str:
    return str(zlib.crc32(json.dumps(sorted(facts.items())).encode()))
