"""SqliteQueue: a durable queue in one SQLite file; its rows vanish when they are acked.

    put(rows)  -->  | 4 | 5 | 6 | 7 | 8 |  --read--> a batch: a root
                              ack(root)    removes its rows
                              fail(root)   puts them at the end again; after `max_attempts` among the dead

Laws: a number is given once, in the order of commits, also when the queue is empty in between; so offsets only grow. Each call
is one transaction, on the disk when it returns. A second ack or fail of a root finds no rows. One queue feeds one query: a new one
takes it over, with what is left; whoever would miss rows that are gone is refused before its first batch. SQL is constant text;
values are bound, and kept as typed JSON, never pickle.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from windowing.core.codec import decode_value, encode_value
from windowing.errors import CheckpointError, ConfigError, SourceError, shown
from windowing.spark.arrow_types import arrow_schema
from windowing.spark.spouts import Offsets, PartitionedSpout, Root
from windowing.topology.rows import RowError, row_of
from windowing.topology.schema import Schema

__all__ = ["SqliteQueue"]

_WAIT_S = 30.0
_ROWS_PER_BATCH = 20_000
_WAY_OUT = (
    "put the queue back from the same copy, or begin with a new checkpoint and new output folders, which reads what the queue "
    "still has; nothing was read"
)
_TABLES = """
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY AUTOINCREMENT, attempt INTEGER NOT NULL, row BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS dead (id INTEGER PRIMARY KEY, component TEXT NOT NULL, row BLOB NOT NULL);
"""


class SqliteQueue(PartitionedSpout):
    """A queue of rows of `fields` at `path` (local: all workers open it); made when it is not there.

    partitions: how many tasks read a batch. max_rows: rows of a batch, over all partitions. max_attempts: how often a root may
    be failed before its rows are `dead`. Raises ConfigError for a queue of other fields or partitions.

    >>> import tempfile
    >>> queue = SqliteQueue(tempfile.mkdtemp() + "/words.db", "word string, n long")
    >>> queue.put([("storm", 1), {"word": "spark", "n": 2}]), len(queue), queue.rows()
    (2, 2, [('storm', 1), ('spark', 2)])
    """

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
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ConfigError(f"{name} of a queue is a whole number of at least 1, got {shown(number)}")
        self._schema = Schema.parse(fields)
        self.path, self.fields = os.path.abspath(path), self._schema.ddl
        # A partition has one of so many numbers: of n offsets it has n / partitions rows.
        self.max_rows = None if max_rows is None else max_rows * partitions
        self._partitions, self._max_attempts = partitions, max_attempts
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with self._transaction() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            for name, wanted in (("fields", self.fields), ("partitions", str(partitions))):
                db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, wanted))
                (stored,) = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
                if stored != wanted:
                    raise ConfigError(
                        f"the queue {self.path} was made with {name} {stored!r}, now {wanted!r}; give it another path"
                    )

    # -- for those who fill it and look into it -------------------------------------------------------------------------

    def put(self, rows: Iterable[Any]) -> int:
        """Append rows (tuples, or dicts by name), all or none; return how many. Any process may call it."""
        try:
            values = [(1, encode_value(row_of(row, self._schema, "queue"))) for row in rows]
        except (RowError, TypeError) as problem:
            raise ConfigError(f"the queue {self.path} takes rows of {self.fields}: {problem}") from problem
        with self._transaction() as db:
            db.executemany("INSERT INTO queue (attempt, row) VALUES (?, ?)", values)
        return len(values)

    def __len__(self) -> int:
        """Return how many rows are not acked."""
        with closing(self._connect()) as db:
            (count,) = db.execute("SELECT count(*) FROM queue").fetchone()
        return int(count)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows that are not acked, oldest first."""
        with closing(self._connect()) as db:
            return [self._decoded(row) for (row,) in db.execute("SELECT row FROM queue ORDER BY id")]

    @property
    def dead(self) -> list[tuple[Any, ...]]:
        """The rows that were given up, oldest first."""
        with closing(self._connect()) as db:
            return [self._decoded(row) for (row,) in db.execute("SELECT row FROM dead ORDER BY id")]

    # -- the spout -----------------------------------------------------------------------------------------------------

    def initial(self) -> Offsets:
        """Return the offset before the oldest row, for each partition."""
        with closing(self._connect()) as db:
            (first,) = db.execute("SELECT min(id) FROM queue").fetchone()
            return self._each(self._last(db) if first is None else first - 1)

    def latest(self) -> Offsets:
        """Return the number that was given last, for each partition."""
        with closing(self._connect()) as db:
            return self._each(self._last(db))

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of (start, end] whose number, divided by `partitions`, leaves the partition's."""
        query = "SELECT row FROM queue WHERE id > ? AND id <= ? AND id % ? = ? ORDER BY id"
        wanted = arrow_schema(self._schema)
        with closing(self._connect()) as db:
            found = db.execute(query, (start, end, self._partitions, int(partition)))
            while blobs := found.fetchmany(_ROWS_PER_BATCH):
                columns = zip(*(self._decoded(row) for (row,) in blobs), strict=True)
                arrays = [pa.array(values, field.type) for values, field in zip(columns, wanted, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def begin(self, query: str, end: Offsets | None) -> None:
        """Take note who reads. Raises CheckpointError for a query whose checkpoint is older than what was acked since."""
        with self._transaction() as db:
            known = dict(db.execute("SELECT name, value FROM meta"))
            acked = known.get("acked", "{}")
            if known.get("query") in (None, query):
                self._refuse_older(json.loads(acked), end or {})
            elif end is None:
                acked = "{}"  # what another query has acked is not missing: this one has never asked for it
            else:
                raise CheckpointError(
                    f"another query reads the queue {self.path} since, and rows that this checkpoint has not read may be gone; "
                    f"{_WAY_OUT}"
                )
            self._note(db, query=query, acked=acked)

    def _refuse_older(self, acked: dict[str, int], read: Offsets) -> None:
        for partition, offset in acked.items():
            if offset > read.get(partition, 0):
                raise CheckpointError(
                    f"the queue {self.path} was acked up to offset {offset} of partition {partition}, and this checkpoint has read "
                    f"up to {read.get(partition, 0)}: it is an older copy, and the rows between are gone; {_WAY_OUT}"
                )

    def ack(self, root: Root) -> None:
        """Remove the rows of a root. Cost: one transaction."""
        with self._transaction() as db:
            found = db.execute("SELECT value FROM meta WHERE name = 'acked'").fetchone()
            acked: dict[str, int] = json.loads(found[0]) if found else {}
            acked |= {name: max(end, acked.get(name, end)) for name, (_, end) in root.ranges.items()}
            self._note(db, acked=json.dumps(acked, sort_keys=True))
            self._remove(db, root)

    def fail(self, root: Root, component: str) -> None:
        """Put the rows of a root at the end, in their order, for another attempt; after their last they are among the dead."""
        with self._transaction() as db:
            found: list[tuple[int, int, bytes]] = []
            for bounds in self._bounds(root):
                found += db.execute(
                    "SELECT id, attempt, row FROM queue WHERE id > ? AND id <= ? AND id % ? = ?", bounds
                )
            again = [(attempt + 1, row) for _, attempt, row in sorted(found) if attempt < self._max_attempts]
            dead = [(number, component, row) for number, attempt, row in found if attempt >= self._max_attempts]
            db.executemany("INSERT INTO queue (attempt, row) VALUES (?, ?)", again)
            db.executemany("INSERT INTO dead (id, component, row) VALUES (?, ?, ?)", dead)
            self._remove(db, root)

    def _note(self, db: sqlite3.Connection, **facts: str) -> None:
        db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())

    def _remove(self, db: sqlite3.Connection, root: Root) -> None:
        for bounds in self._bounds(root):
            db.execute("DELETE FROM queue WHERE id > ? AND id <= ? AND id % ? = ?", bounds)

    def _bounds(self, root: Root) -> list[tuple[int, int, int, int]]:
        return [(start, end, self._partitions, int(name)) for name, (start, end) in sorted(root.ranges.items())]

    def _each(self, offset: int) -> Offsets:
        return {str(number): offset for number in range(self._partitions)}

    # -- the file ------------------------------------------------------------------------------------------------------

    def _last(self, db: sqlite3.Connection) -> int:
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'queue'").fetchone()
        return 0 if found is None else int(found[0])

    def _decoded(self, row: bytes) -> tuple[Any, ...]:
        return tuple(decode_value(row, f"a row of the queue {self.path}"))

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as problem:
            raise SourceError(f"the queue {self.path} cannot be opened: {shown(str(problem))}") from problem
        return db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")
