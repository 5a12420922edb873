"""Trident in a SQLite file: SqliteStore for states, SqliteRecordStore for the records of coordinators and spouts.

    table <state>           partition, key, txid, value, previous, crc      one row a key
    table <state>_fences    partition, record                              one row a partition
    windowing_records       path -> value          "word_count/coordinator", "word_count/spouts/sentences/coordinator/meta/7", ...
    windowing_records_sum   rows, digest                                   the number of all records, the XOR of their checksums

A write is one transaction: it compares the fence, or the expected records, and then writes everything. Committed data is in the
file on the disk (sqlite_files.py); a kill at any point leaves the state before or after the transaction.

Processes on one machine may share a file; writers wait for each other up to `timeout_s`. States and records may share a file too,
and other tables in it are not touched. Table names are quoted; everything else is bound. Cost of undoing an attempt: a
scan of the partition, only in retries.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    StoreUnavailableError,
    WindowingError,
    quote,
)
from windowing.schema.checks import checked_wait, spelled, spelled_init
from windowing.stores.sqlite_files import SqliteFile, checked_path, checksum_of, digest_of, transaction
from windowing.stores.state_tables import View
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import TransactionAttempt

_CHUNK = 500
_PAGE = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_COLUMNS = "key, txid, value, previous, crc"


@spelled_init
@dataclass(frozen=True)
class SqliteStore:
    """Trident's states in a SQLite file: `map_state(SqliteStore("counts.db"), "counts")`.

    A missing file and its folder are created; other tables in the file are not touched. timeout_s: seconds to wait for a lock. A
    relative path is relative to the working folder at the declaration of the store, not to that of the process that opens it.
    """

    path: str | Path
    timeout_s: float = 30.0
    view: View | None = field(default=None, repr=False, compare=False)
    """The view of a state for other programs; `state_table` sets it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path, "a store in SQLite").absolute())
        checked_wait(self.timeout_s, "the timeout of a store in SQLite", zero=True)

    def open(self, place: PartitionId) -> SqliteMap:
        """Return the rows of one partition, over a connection of its own. Raises ConfigError for a name that SQLite reserves."""
        if place.state.lower().startswith("sqlite_"):
            raise ConfigError(
                f"SQLite keeps names that begin with sqlite_ for itself, got the state {quote(place.state)}; give it another name"
            )
        return SqliteMap(Path(self.path), place, self.timeout_s, self.view)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that every process must see: the one of the store."""
        return (str(self.path),)

    def identity(self, state: str) -> tuple[Any, ...]:
        """Return the identity of the rows of a state: the file, with links resolved, and the table, ignoring case like SQLite."""
        return "sqlite", str(Path(self.path).resolve()), state.lower()


class SqliteMap(SqliteFile):
    """One partition (BackingMap)."""

    def __init__(self, path: Path, place: PartitionId, timeout_s: float, view: View | None = None) -> None:
        self.place = place
        name = place.state.replace('"', '""')
        self._rows, self._fences = f'"{name}"', f'"{name}_fences"'
        super().__init__(
            path,
            timeout_s,
            f"{self._fences} (partition INTEGER PRIMARY KEY, record BLOB NOT NULL)",
            f"{self._rows} (partition INTEGER NOT NULL, key BLOB NOT NULL, txid INTEGER NOT NULL, "
            "value BLOB, previous BLOB, crc INTEGER NOT NULL, PRIMARY KEY (partition, key))",
        )
        if view is not None:
            try:
                self._show(view)
            except BaseException:
                self.close()
                raise

    def _show(self, view: View) -> None:
        wanted = view.in_sqlite()
        with self._translated(), transaction(self._db):
            found = self._db.execute(
                "SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE", (view.name,)
            ).fetchone()
            if found is None:
                self._db.execute(wanted)
            else:
                view.require(found[0], wanted, str(self.path))

    def multi_get(self, keys: Sequence[bytes], undo: TransactionAttempt | None = None) -> Reading:
        with self._translated(), transaction(self._db, "BEGIN"):
            fence, rows, left = self._fence(), dict[bytes, StateRow](), dict[bytes, StateRow]()
            for start in range(0, len(keys), _CHUNK):
                chunk = keys[start : start + _CHUNK]
                rows |= self._checked(f"AND key IN ({', '.join('?' * len(chunk))})", *chunk)
            if undo is not None and fence is not None and fence.attempt.txid == undo.txid and fence.attempt < undo:
                left = self._checked("AND txid = ?", undo.txid)
        return Reading(fence, [rows.get(key) for key in keys], left)

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        with self._translated(), transaction(self._db):
            if claim is not None:
                found = self._fence()
                if found != claim.expected:
                    return found
                fence = (self.place.partition, claim.fence.record())
                self._db.execute(f"REPLACE INTO {self._fences} VALUES (?, ?)", fence)
            self._db.executemany(
                f"REPLACE INTO {self._rows} VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (self.place.partition, key, *row, row.checksum(self.place, key))
                    for key, row in rows.items()
                    if row is not None
                ),
            )
            self._db.executemany(
                f"DELETE FROM {self._rows} WHERE partition = ? AND key = ?",
                ((self.place.partition, key) for key, row in rows.items() if row is None),
            )
        return None

    def items(self) -> Iterator[tuple[bytes, StateRow]]:
        last: bytes | int = -1  # SQLite orders numbers before bytes, and a codec may give a key no bytes
        while True:
            with self._translated():
                page = self._checked("AND key > ? ORDER BY key LIMIT ?", last, _PAGE)
            yield from page.items()
            if len(page) < _PAGE:
                return
            last = next(reversed(page))

    def count(self) -> int:
        with self._translated():
            query = f"SELECT count(*) FROM {self._rows} WHERE partition = ?"
            return int(self._db.execute(query, (self.place.partition,)).fetchone()[0])

    def _fence(self) -> Fence | None:
        query = f"SELECT record FROM {self._fences} WHERE partition = ?"
        found = self._db.execute(query, (self.place.partition,)).fetchone()
        return None if found is None else Fence.of(found[0], self.place)

    def _checked(self, condition: str, *bound: Any) -> dict[bytes, StateRow]:
        query = f"SELECT {_COLUMNS} FROM {self._rows} WHERE partition = ? {condition}"
        rows = self._db.execute(query, (self.place.partition, *bound))
        return {row[0]: StateRow.sound(self.place, *row) for row in rows}

    def _error(self, problem: Exception, is_damaged: bool) -> WindowingError:
        if is_damaged:
            return CorruptStateError(
                f"the tables of the state {self.place.state} in {self.path} are damaged, or not ours ({problem}); restore the file "
                "from a copy, or give the path of a new one; nothing was reset"
            )
        return StoreUnavailableError(
            f"the state {self.place} in {self.path} cannot be reached or written: {problem}; it holds what it held "
            "before; look at the disk, the rights of the file, and who else uses it"
        )


def stored_states(path: Path) -> list[tuple[str, dict[int, int], dict[int, bytes]]]:
    """Return for each state in a file its name, the row counts and the fence records of its partitions, for `windowing states`.

    The file is opened for reading only. Raises errors of SQLite. Cost: a count of the rows of each state.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        found = []
        for state in names:
            if _NAME.match(state) and f"{state}_fences" in names:
                counts = db.execute(f'SELECT partition, count(*) FROM "{state}" GROUP BY partition')
                records = db.execute(f'SELECT partition, record FROM "{state}_fences"')
                found.append((state, dict(counts.fetchall()), dict(records.fetchall())))
    return found


# -- SqliteRecordStore -----------------------------------------------------------------------------------------------------------


_AFTER_ALL = "\U0010ffff"


class SqliteRecordStore(SqliteFile):
    """A RecordStore in a file. Cost of a write: one transaction, and so one sync of the disk; of opening: a read of all records.

    A record that is missing means a new topology to its reader. So the file also has the number of all records and the XOR of their
    checksums, written in the same transaction and compared when it is opened: a record that damage has removed or renamed is found.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = SqliteRecordStore(Path(folder) / "records.db")
    ...     store.write({"a/1": b"x", "a/2": b"y"}, {}), store.write({"a/1": None}, {"a/2": b"other"}), store.paths("a/")
    ...     store.close()
    (True, False, ['a/1', 'a/2'])
    """

    @spelled
    def __init__(self, path: str | Path, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        checked_wait(timeout_s, "the timeout of records", zero=True)
        super().__init__(
            checked_path(path, "records").absolute(),
            timeout_s,
            "windowing_records (path TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "windowing_records_sum (id INTEGER PRIMARY KEY, rows INTEGER NOT NULL, digest INTEGER NOT NULL)",
        )
        try:
            self._verify()
        except BaseException:
            self.close()
            raise

    def read(self, path: str) -> bytes | None:
        """Return the value last written under `path`."""
        with self._translated():
            found = self._db.execute("SELECT value FROM windowing_records WHERE path = ?", (path,)).fetchone()
        if found is not None and not isinstance(found[0], bytes):
            raise self._error(TypeError(f"the record {path} is {quote(found[0])}"), True)
        return None if found is None else found[0]

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Write all changes and return True if each path of `expected` has the expected value; else write nothing, return False."""
        with self._translated(), transaction(self._db):
            if any(self.read(path) != blob for path, blob in expected.items()):
                return False
            known = self._db.execute("SELECT rows, digest FROM windowing_records_sum").fetchone()
            if known is None:
                raise self._error(ValueError("the number of its records is gone"), True)
            rows, digest = known
            for path, blob in changes.items():
                if (old := self.read(path)) is not None:
                    rows, digest = rows - 1, digest ^ _checksum(path, old)
                if blob is None:
                    self._db.execute("DELETE FROM windowing_records WHERE path = ?", (path,))
                else:
                    rows, digest = rows + 1, digest ^ _checksum(path, blob)
                    self._db.execute("INSERT OR REPLACE INTO windowing_records VALUES (?, ?)", (path, blob))
            self._db.execute("UPDATE windowing_records_sum SET rows = ?, digest = ?", (rows, digest))
        return True

    def _verify(self) -> None:
        """Compare all records with their number and digest, which a file of an earlier version gets now."""
        with self._translated(), transaction(self._db):
            ((sound,),) = self._db.execute("PRAGMA quick_check(windowing_records)").fetchmany(1)
            kept = self._db.execute("SELECT rows, digest FROM windowing_records_sum").fetchall()
            records = self._db.execute("SELECT path, value FROM windowing_records").fetchall()
            found = len(records), digest_of(_checksum(path, value) for path, value in records)
            if not kept:
                self._db.execute("INSERT INTO windowing_records_sum VALUES (1, ?, ?)", found)
        if sound != "ok" or kept not in ([], [found]):
            raise self._error(ValueError(f"{found[0]} records were found, and others than were written"), True)

    def paths(self, prefix: str) -> list[str]:
        """Return all paths that begin with `prefix`, sorted."""
        query = "SELECT path FROM windowing_records WHERE path >= ? AND path < ? ORDER BY path"
        with self._translated():
            return [path for (path,) in self._db.execute(query, (prefix, prefix + _AFTER_ALL))]

    def __reduce__(self) -> tuple[type[SqliteRecordStore], tuple[str, float]]:
        """Pickle the path only; the other process opens the file itself."""
        return SqliteRecordStore, (str(self.path), self._timeout_s)

    def _error(self, problem: Exception, is_damaged: bool) -> WindowingError:
        if is_damaged:
            return CorruptStateError(
                f"the records in {self.path} are damaged, or the file is not ours ({problem}); restore it from a copy, or give "
                "the path of a new one; nothing was reset"
            )
        return CheckpointError(
            f"the records in {self.path} cannot be read or written: {problem}; the file holds what it held before; look at "
            "the disk, the rights of the file, and who else uses it"
        )


def _checksum(path: Any, value: Any) -> int:
    return checksum_of("", path.encode(errors="surrogateescape") if isinstance(path, str) else path, value)
