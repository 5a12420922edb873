"""SQLite files: what was committed is in the file itself, paths are paths, and which errors mean what.

    before a commit   the pages that change are in `<file>-journal`, on the disk: a killed process is undone from there
    after it          they are in the file, on the disk, and the journal is of no use to anybody

So a commit that returned does not hang on a second file. SQLite's write-ahead log keeps the newest commits beside the file, and
takes a log that is cut short, changed by one bit or missing for a shorter history, without a word. The price is two or three more
syncs of the disk a commit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from windowing.errors import ConfigError, WindowingError, quote

__all__ = [
    "BUSY",
    "DAMAGED",
    "OwnedConnection",
    "SqliteFile",
    "checked_path",
    "code_of",
    "make_durable",
    "make_whole",
]


DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
"""The first is an error in the SQL: ours is constant, so the tables are not what they were."""
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class OwnedConnection(sqlite3.Connection):
    """A connection that is closed with the object that has it, at the latest: a cluster that is let go of closes its files, and
    Python 3.13 warns of a connection that nobody closed.
    """

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # it is another thread's
            self.close()


def code_of(problem: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error."""
    return int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)) & 0xFF


def make_durable(db: sqlite3.Connection, patience_s: float = 0.0) -> None:
    """Let commits of this connection be in the file, and on the disk, when they return.

    A file with a write-ahead log of an earlier version is taken out of it; others who use the log are waited for, for `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while True:  # SQLite does not wait by itself for whoever has the same log open
        try:
            db.execute("PRAGMA journal_mode = PERSIST").fetchall()
            break
        except sqlite3.OperationalError as problem:
            if code_of(problem) not in BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = FULL")


def make_whole(path: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Make a new file under another name, then give it its own: whoever finds the file finds all of it.

    If another process was faster, its file stays. What a file of that name that is gone has left beside it is removed: SQLite would
    bring pages of the old file into the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(hidden, isolation_level=None)) as db:
            fill(db)
        for left in ("-journal", "-wal", "-shm") if not path.exists() else ():
            path.with_name(path.name + left).unlink(missing_ok=True)
        with suppress(FileExistsError):
            os.link(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def checked_path(path: Any, what: str) -> Path:
    """Return a path that was given for a file. Raises ConfigError for what is none: None, a number, empty text."""
    if isinstance(path, str | os.PathLike) and isinstance(text := os.fspath(path), str) and text and "\0" not in text:
        return Path(text)
    raise ConfigError(f"the path of {what} is text or a Path, got {quote(path)}; give the path of a file")


class SqliteFile:
    """A connection to a file with these tables; a new one is made, its folder too. For one thread at a time."""

    def __init__(self, path: Path, timeout_s: float, *tables: str) -> None:
        self.path = path
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, timeout=timeout_s, isolation_level=None, check_same_thread=False, factory=OwnedConnection
            )
        try:
            with self._translated():
                make_durable(self._db, timeout_s)
                for table in tables:
                    self._db.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    def _error(self, problem: Exception, is_damaged: bool) -> WindowingError:
        """Return the error that names what lies in the file."""
        raise NotImplementedError

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        with self._translated():
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the errors of this class for those of SQLite and the file system."""
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            is_damaged = isinstance(problem, sqlite3.Error) and code_of(problem) in DAMAGED
            raise self._error(problem, is_damaged) from problem
