"""SQLite files: durable commits in the file itself, checks of paths, and the meaning of SQLite's errors.

    before a commit   the old contents of changed pages are in `<file>-journal` on the disk; it undoes a killed transaction
    after it          the changes are in the file on the disk, and the journal is not needed any more

So a finished commit does not depend on a second file. SQLite's write-ahead log keeps the newest commits beside the file; a log that
is truncated, damaged or missing is silently taken for a shorter history. The price of the journal is two or three more syncs of the
disk per commit.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from threading import get_ident
from typing import Any

from windowing.errors import ConfigError, WindowingError, quote

DAMAGED = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH}
"""The errors that mean damage. SQLITE_ERROR is an error in SQL text; ours is constant, so the tables must have changed."""
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class OwnedConnection(sqlite3.Connection):
    """A connection that is closed when it is garbage collected, so that a dropped cluster closes its files."""

    def __del__(self) -> None:
        with suppress(sqlite3.Error):  # it was never opened
            self.close()


def code_of(problem: Exception) -> int | None:
    """Return SQLite's primary code of an error; None for one of the file system."""
    if not isinstance(problem, sqlite3.Error):
        return None
    return int(getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)) & 0xFF


@contextmanager
def translated(error_of: Callable[[Exception, int | None], Exception], thread: int | None = None) -> Iterator[None]:
    """Raise what `error_of` returns for an error of SQLite or the file system and its code.

    Python cannot decode a text of a damaged file, nor an error of SQLite that quotes its schema: that has the code of damage.
    thread: the only one that may use the file; in another one it raises ConfigError. Any thread may close it, so that a run that
    ends in another one leaves it unlocked.
    """
    if thread not in (None, get_ident()):
        raise ConfigError(
            "a run or a store with a SQLite file was called in another thread than the one that made it; make, call and close "
            "it in the same one, in asyncio by loop.run_in_executor on a ThreadPoolExecutor(max_workers=1); the file holds "
            "what it held before"
        )
    try:
        yield
    except (sqlite3.Error, OSError) as problem:
        raise error_of(problem, code_of(problem)) from problem
    except UnicodeDecodeError as problem:
        unreadable = sqlite3.DatabaseError("its schema or a text in it cannot be read")
        raise error_of(unreadable, sqlite3.SQLITE_CORRUPT) from problem


def _has_lost_tables(db: sqlite3.Connection) -> bool:
    """Return whether a file has pages of data and no table: its schema is damaged, and would be taken for that of a new file."""
    # The tables last: another process may make them between two of the queries, and nobody drops them.
    queries = ("PRAGMA page_count", "PRAGMA freelist_count", "SELECT count(*) FROM sqlite_master")
    pages, free, tables = (db.execute(query).fetchone()[0] for query in queries)
    return not tables and pages > 1 + free


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Run the body as one transaction of a connection that commits by hand; an exception rolls it back."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def make_durable(db: sqlite3.Connection, patience_s: float = 0.0) -> None:
    """Make commits of this connection durable in the file when they return.

    A file with a write-ahead log, written by an earlier version, is converted; other users of the log are waited for, up to
    `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while True:  # SQLite itself does not wait for other users of the log
        try:
            db.execute("PRAGMA journal_mode = PERSIST").fetchall()
            break
        except sqlite3.OperationalError as problem:
            if code_of(problem) not in BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = FULL")


def make_whole(path: Path, fill: Callable[[sqlite3.Connection], object]) -> None:
    """Create a new file under a temporary name and then rename it, so that a reader never finds an incomplete file.

    If another process was faster, its file stays. A journal that a deleted file of this name left behind is removed; SQLite would
    otherwise apply its pages to the new file.
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


def checksum_of(name: str, key: Any, value: Any) -> int:
    """Return the checksum of a row over its state, its key, and its value or the absence of one; -1 for no bytes.

    It is not a CRC. A CRC is linear, so if an even number of rows changed by the same bits, the XOR of all checksums would stay the
    same, and rows of an older commit would be taken for those of the last one.
    """
    if not isinstance(key, bytes) or not isinstance(value, bytes | None):
        return -1
    whose = f"{name} {len(key)} ".encode(errors="surrogateescape")
    row = blake2b(b"%b%b%b" % (whose, key, b"-" if value is None else b"+" + value), digest_size=7)
    return int.from_bytes(row.digest(), "big")


def digest_of(checksums: Iterable[int]) -> int:
    """Return the XOR of the checksums of all rows: with their number it shows a lost row."""
    digest = 0
    for checksum in checksums:
        digest ^= checksum
    return digest


def checked_path(path: Any, what: str) -> Path:
    """Return the path of a file. Raises ConfigError for a value that is not a path: None, a number, empty text, `:memory:`."""
    if isinstance(path, str | os.PathLike) and isinstance(text := os.fspath(path), str) and text and "\0" not in text:
        if text == ":memory:":
            raise ConfigError(
                f"the path of {what} is that of a file, got ':memory:'; give one (a MemoryStore(), or a run without state_path=, "
                "keeps its rows in memory)"
            )
        return Path(text)
    raise ConfigError(f"the path of {what} is text or a Path, got {quote(path)}; give the path of a file")


class SqliteFile:
    """A connection to a file with these tables; a missing file and its folder are created. Not thread-safe."""

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
                if _has_lost_tables(self._db):
                    raise self._error(ValueError("it has pages of data, and no table"), True)
                for table in tables:
                    self._db.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    def _error(self, problem: Exception, is_damaged: bool) -> WindowingError:
        """Return the error of this file's kind of data."""
        raise NotImplementedError

    def _translated(self) -> AbstractContextManager[None]:
        return translated(lambda problem, code: self._error(problem, code in DAMAGED))


def process_with_lock(folder: str) -> int | None:
    """Return the process that has locked a directory of this machine: the driver of a query on Spark, or the JVM that outlives it.

    None if there is none, or the system does not say it.
    """
    try:
        there = os.stat(folder)
        with open("/proc/locks") as locks:
            found = [line.split() for line in locks]
    except OSError:
        return None
    inode = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
    held = {kind: int(process) for _, kind, _, _, process, locked, *_ in found if locked == inode}
    return held.get("FLOCK", held.get("POSIX", 0)) or None
