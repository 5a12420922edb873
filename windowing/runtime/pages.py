"""Where the pages of a persistent window lie: one SQLite file a task, or memory for tests.

    page         id -> bytes                    never changed, only added and dropped
    checkpoint   txid -> manifest, committed?   at most one committed, at most one prepared

    prepare(7, manifest)    pages and manifest are durable; after a crash the coordinator says whether 7 is
    commit(7)               committed again, or
    rollback()              gone: then 6 still stands, with all its pages

Laws: a page and a manifest are read as they were written, or a CorruptStateError names them; a file has one process; what
`flush`, `prepare` and `commit` returned from survives kill -9 and loss of power.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windowing.core.codec import META_MAGIC, dumps, frame, loads, unframe
from windowing.core.pages import Rows
from windowing.errors import CheckpointError, CorruptStateError
from windowing.runtime.page_codec import decode_page, encode_page
from windowing.sqlite_files import checked_path, make_durable

__all__ = ["MemoryPages", "SqlitePages"]

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS checkpoint (txid INTEGER PRIMARY KEY, committed INTEGER NOT NULL, body BLOB NOT NULL);
"""
_COMMIT_EVERY = 64  # pages: the log of an open transaction cannot be reused, so it must not grow with the window


class MemoryPages:
    """A PageStore in memory, for tests: pages are bytes, as on disk.

    >>> pages = MemoryPages()
    >>> pages.write(0, Rows([1, 5], ["a", ("b", 2)], [0, 1])); pages.read(0)
    Rows(timestamps=[1, 5], payloads=['a', ('b', 2)], sequences=[0, 1])
    """

    def __init__(self) -> None:
        self._bodies: dict[int, bytes] = {}

    def write(self, page_id: int, rows: Rows) -> None:
        if page_id in self._bodies:
            raise CheckpointError(_written_twice(f"page {page_id}"))
        self._bodies[page_id] = encode_page(page_id, rows)

    def read(self, page_id: int) -> Rows:
        body = self._bodies.get(page_id)
        if body is None:
            raise CorruptStateError(f"page {page_id} is missing; nothing was reset")
        return decode_page(page_id, body, f"page {page_id}")

    def drop(self, page_ids: Collection[int]) -> None:
        for page_id in page_ids:
            self._bodies.pop(page_id, None)

    def flush(self) -> None:
        """Memory is as durable as it gets."""

    def ids(self) -> list[int]:
        return list(self._bodies)


class SqlitePages:
    """A PageStore in a SQLite file, with the manifests of one task's checkpoints. Close it, or use it in a `with`.

    `path` is made if it is not there; without one it is a temporary file, gone with the object. Raises CheckpointError if another
    process has the file or it cannot be written, CorruptStateError for damage. Cost: a page is one row; a sync of the disk every
    64 pages and at each flush.

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder, SqlitePages(os.path.join(folder, "count-0.pages")) as pages:
    ...     pages.write(0, Rows([1], [{"n": 1}], [0]))
    ...     pages.prepare(1, {"pages": [0]}); pages.commit(1)
    ...     pages.read(0).payloads, pages.committed()
    ([{'n': 1}], (1, {'pages': [0]}))
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.name = "a temporary file" if path is None else str(checked_path(path, "the pages of a window"))
        self.task_ids: Mapping[str, range] = {}
        """The ids of the tasks that tuples of a topology come from: not stored, for they are those of the topology now."""
        self._uncommitted = 0
        with self._blame("it cannot be opened"):
            self._db = sqlite3.connect("" if path is None else path, isolation_level=None, timeout=1.0)
        try:
            with self._blame("it cannot be opened"):
                # One process a file: the lock is taken by the first transaction and kept until the file is closed.
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                make_durable(self._db)
                self._db.executescript(_SCHEMA)
                self._db.execute("BEGIN EXCLUSIVE")  # who only reads would hold up a commit
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> SqlitePages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was not flushed is gone, as after a crash."""
        if self._db.in_transaction:
            self._db.rollback()
        self._db.close()

    # -- pages -----------------------------------------------------------------------------------------------------------

    def write(self, page_id: int, rows: Rows) -> None:
        body = encode_page(page_id, rows)
        with self._blame(f"page {page_id} cannot be written"):
            try:
                self._db.execute("INSERT INTO page VALUES (?, ?)", (page_id, body))
            except sqlite3.IntegrityError:
                raise CheckpointError(_written_twice(self._page(page_id))) from None
        self._uncommitted += 1
        if self._uncommitted >= _COMMIT_EVERY:
            self.flush()

    def read(self, page_id: int) -> Rows:
        with self._blame(f"page {page_id} cannot be read"):
            row = self._db.execute("SELECT CAST(body AS BLOB) FROM page WHERE id = ?", (page_id,)).fetchone()
        if row is None:
            raise CorruptStateError(
                f"{self._page(page_id)} is missing; restore the file from a copy, nothing was reset"
            )
        return decode_page(page_id, row[0], self._page(page_id), self.task_ids)

    def drop(self, page_ids: Collection[int]) -> None:
        with self._blame("pages cannot be dropped"):
            self._db.executemany("DELETE FROM page WHERE id = ?", [(page_id,) for page_id in page_ids])

    def flush(self) -> None:
        with self._blame("it cannot be written"):
            self._db.execute("COMMIT")
            self._db.execute("BEGIN IMMEDIATE")
        self._uncommitted = 0

    def ids(self) -> list[int]:
        with self._blame("its pages cannot be listed"):
            return [page_id for (page_id,) in self._db.execute("SELECT id FROM page ORDER BY id")]

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def prepare(self, txid: int, manifest: Any) -> None:
        """Keep a manifest beside the committed one, in place of any other that was prepared; durable on return."""
        body = frame(META_MAGIC, dumps([txid, manifest]))
        with self._blame(f"checkpoint {txid} cannot be written"):
            self._db.execute("DELETE FROM checkpoint WHERE NOT committed")
            try:
                self._db.execute("INSERT INTO checkpoint VALUES (?, 0, ?)", (txid, body))
            except sqlite3.IntegrityError:
                raise CheckpointError(f"{self.name}: checkpoint {txid} is committed; prepare a later one") from None
        self.flush()

    def commit(self, txid: int) -> None:
        """Make the manifest that was prepared the one that counts, and forget all others; durable on return, idempotent."""
        if not any(held == txid for held, _ in self._checkpoints()):
            raise CheckpointError(
                f"{self.name}: checkpoint {txid} was never prepared, there is {self._checkpoints()}; roll back to what is "
                "committed, or restore the file from a copy"
            )
        with self._blame(f"checkpoint {txid} cannot be committed"):
            self._db.execute("UPDATE checkpoint SET committed = 1 WHERE txid = ?", (txid,))
            self._db.execute("DELETE FROM checkpoint WHERE txid != ?", (txid,))
        self.flush()

    def rollback(self) -> None:
        """Forget the manifest that was prepared, if there is one; durable on return."""
        with self._blame("a checkpoint cannot be rolled back"):
            self._db.execute("DELETE FROM checkpoint WHERE NOT committed")
        self.flush()

    def committed(self) -> tuple[int, Any] | None:
        """Return (txid, manifest) of the committed checkpoint, None before the first. Raises CorruptStateError for damage."""
        with self._blame("its checkpoint cannot be read"):
            row = self._db.execute("SELECT txid, CAST(body AS BLOB) FROM checkpoint WHERE committed").fetchone()
        if row is None:
            return None
        what = f"{self.name}: checkpoint {row[0]}"
        txid, manifest = loads(unframe(META_MAGIC, row[1], what), what)
        if txid != row[0]:
            raise CorruptStateError(f"{what} holds checkpoint {txid} instead; restore from a copy, nothing was reset")
        return txid, manifest

    def _checkpoints(self) -> list[tuple[int, int]]:
        with self._blame("its checkpoints cannot be read"):
            return list(self._db.execute("SELECT txid, committed FROM checkpoint ORDER BY txid"))

    # -- errors ----------------------------------------------------------------------------------------------------------

    def _page(self, page_id: int) -> str:
        return f"{self.name}: page {page_id}"

    @contextmanager
    def _blame(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as problem:
            hint = (
                "it is in use by another process: one task has one file" if "locked" in str(problem) else str(problem)
            )
            raise CheckpointError(f"{self.name}: {what}: {hint}; nothing was reset") from problem
        except sqlite3.DatabaseError as problem:
            raise CorruptStateError(
                f"{self.name}: {what}: {problem}; restore the file from a copy, nothing was reset"
            ) from problem


def _written_twice(what: str) -> str:
    return (
        f"{what} is already written, and pages never change; restore the machine from its checkpoint (None for a new one) "
        "before it gets tuples"
    )
