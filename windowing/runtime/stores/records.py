"""SqliteRecordStore: what a Trident coordinator and its spouts must not forget, in one table of a SQLite file.

    windowing_records    path -> value          "word_count/coordinator", "word_count/spouts/sentences/coordinator/meta/7", ...

A write is one transaction: what is expected is compared, then all is written; what was committed is in the file, on the disk
(sqlite_files.py). The file may be that of the states (SqliteStore): other tables in it are left alone. SQL is constant text, paths
and values are bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from windowing.errors import CheckpointError, CorruptStateError
from windowing.sqlite_files import DAMAGED, checked_path, code_of, make_durable

__all__ = ["SqliteRecordStore"]

_AFTER_ALL = "\U0010ffff"


class SqliteRecordStore:
    """A RecordStore in a file; a new one is made, its folder too. Cost: one transaction, so one sync of the disk, a write.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = SqliteRecordStore(Path(folder) / "records.db")
    ...     store.write({"a/1": b"x", "a/2": b"y"}, {}), store.write({"a/1": None}, {"a/2": b"other"}), store.paths("a/")
    ...     store.close()
    (True, False, ['a/1', 'a/2'])
    """

    def __init__(self, path: str | Path, timeout_s: float = 30.0) -> None:
        self.path, self._timeout_s = checked_path(path, "records").absolute(), timeout_s
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
        try:
            with self._told():
                make_durable(self._db, timeout_s)
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS windowing_records (path TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
                )
        except BaseException:
            self._db.close()
            raise

    def read(self, path: str) -> bytes | None:
        """Return what was written under `path` last."""
        with self._told():
            found = self._db.execute("SELECT value FROM windowing_records WHERE path = ?", (path,)).fetchone()
        return None if found is None else bytes(found[0])

    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, bytes | None]) -> bool:
        """Write all of it and return True, if each path of `expected` holds exactly this; else write nothing."""
        with self._transaction():
            if any(self.read(path) != blob for path, blob in expected.items()):
                return False
            for path, blob in changes.items():
                if blob is None:
                    self._db.execute("DELETE FROM windowing_records WHERE path = ?", (path,))
                else:
                    self._db.execute("INSERT OR REPLACE INTO windowing_records VALUES (?, ?)", (path, blob))
        return True

    def paths(self, prefix: str) -> list[str]:
        """Return all paths that begin with `prefix`, in their order."""
        query = "SELECT path FROM windowing_records WHERE path >= ? AND path < ? ORDER BY path"
        with self._told():
            return [path for (path,) in self._db.execute(query, (prefix, prefix + _AFTER_ALL))]

    def __reduce__(self) -> tuple[type[SqliteRecordStore], tuple[str, float]]:
        """Travel to another process, which opens the file for itself."""
        return SqliteRecordStore, (str(self.path), self._timeout_s)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what SQLite and the file system say into a sentence."""
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            if isinstance(problem, sqlite3.Error) and code_of(problem) in DAMAGED:
                raise CorruptStateError(
                    f"the records in {self.path} are damaged, or the file is not ours ({problem}); restore it from a copy, or give "
                    "the path of a new one; nothing was reset"
                ) from problem
            raise CheckpointError(
                f"the records in {self.path} cannot be read or written: {problem}; the file holds what it held before; look at "
                "the disk, the rights of the file, and who else uses it"
            ) from problem
