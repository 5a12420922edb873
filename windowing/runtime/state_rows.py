"""FileStore: one state in a StateFile, as rows of three tables, and the checksums by which damage is seen.

    prepare(n)    rows go to `prepared`, in place of what is there
    commit(n)     they replace rows of `committed`; a NULL deletes one
    rollback      they go

Each is one transaction; what the object knows of itself changes after it. Cost: O(what changed).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from typing import Any, Protocol

from windowing.core.codec import decode_value
from windowing.errors import CorruptStateError, shown
from windowing.transactions.state import NEVER, Changes

__all__ = ["STATE_COLUMNS", "FileStore", "Head"]

STATE_COLUMNS = "id, name, committed, prepared, rows, digest, prepared_rows, prepared_digest, crc"
_PAGE_ROWS = 1000


class _File(Protocol):
    """What a store needs of its file."""

    def rows(self, query: str, *bound: Any) -> list[Any]: ...
    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...
    def damaged(self, what: str) -> CorruptStateError: ...


@dataclass(frozen=True, slots=True)
class Head:
    """A row of `states` without its id, name and checksum."""

    committed: int = NEVER
    prepared: int | None = None
    rows: int = 0
    digest: int = 0
    prepared_rows: int = 0
    prepared_digest: int = 0

    def changed(self, changes: Iterable[tuple[Any, Any, int | None]]) -> Head:
        """Return the row after changes of committed values: (whether deleted, new checksum, old one or None)."""
        rows, digest = self.rows, self.digest
        for deleted, crc, old in changes:
            if old is not None:
                rows, digest = rows - 1, digest ^ old
            if not deleted:
                rows, digest = rows + 1, digest ^ crc
        return replace(self, rows=rows, digest=digest)

    def crc(self, name: Any) -> int:
        """Return the checksum of the row."""
        return zlib.crc32(repr((name, astuple(self))).encode(errors="surrogateescape"))


class FileStore:
    """One state in the file (StateStore). What it knows of itself changes when a transaction has committed."""

    def __init__(self, file: _File, name: str, number: int | None, head: Head) -> None:
        self.name = name
        self._file = file
        self._number = number
        self.head = head

    @property
    def committed_txid(self) -> int:
        return self.head.committed

    @property
    def prepared_txid(self) -> int | None:
        return self.head.prepared

    def read(self, key: bytes) -> bytes | None:
        query = "SELECT value, crc FROM committed WHERE state = ? AND key = ?"
        for value, crc in self._file.rows(query, self._number, key):
            return self._sound(key, value, crc)
        return None

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        query = "SELECT key, value, crc FROM committed WHERE state = ? AND key > ? ORDER BY key LIMIT ?"
        last = b""  # no key is empty
        while page := self._file.rows(query, self._number, last, _PAGE_ROWS):
            for key, value, crc in page:
                yield key, self._sound(key, value, crc)
            last = page[-1][0]

    def prepared(self) -> Changes:
        rows = self._file.rows("SELECT key, value, crc FROM prepared WHERE state = ?", self._number)
        for key, value, crc in rows:
            if not isinstance(key, bytes) or crc_of(self.name, key, value) != crc:
                raise self._damaged(key)
        self._whole("prepared", [crc for _, _, crc in rows], self.head.prepared_rows, self.head.prepared_digest)
        return {key: value for key, value, _ in rows}

    def prepare(self, txid: int, changes: Changes) -> None:
        rows = [(key, value, crc_of(self.name, key, value)) for key, value in changes.items()]
        digest = _xor(crc for _, _, crc in rows)
        head = replace(self.head, prepared=txid, prepared_rows=len(rows), prepared_digest=digest)
        with self._file.transaction() as db:
            number = self._number or self._enter(db)
            db.execute("DELETE FROM prepared WHERE state = ?", (number,))
            db.executemany(
                "INSERT INTO prepared VALUES (?, ?, ?, ?)", ((number, key, value, crc) for key, value, crc in rows)
            )
            self._write(db, number, head)
        self._number, self.head = number, head

    def put_now(self, key: bytes, value: bytes) -> None:
        """Make one value durable at once, outside of any txid."""
        crc = crc_of(self.name, key, value)
        with self._file.transaction() as db:
            number = self._number or self._enter(db)
            old = db.execute("SELECT crc FROM committed WHERE state = ? AND key = ?", (number, key)).fetchone()
            head = self.head.changed([(False, crc, None if old is None else old[0])])
            db.execute("REPLACE INTO committed VALUES (?, ?, ?, ?)", (number, key, value, crc))
            self._write(db, number, head)
        self._number, self.head = number, head

    def commit(self, txid: int) -> None:
        with self._file.transaction() as db:
            head = self._after_commit(db, txid)
            db.execute(
                "REPLACE INTO committed SELECT state, key, value, crc FROM prepared WHERE state = ? AND value IS NOT NULL",
                (self._number,),
            )
            db.execute(
                "DELETE FROM committed WHERE state = ?1 AND key IN (SELECT key FROM prepared WHERE state = ?1 AND value IS NULL)",
                (self._number,),
            )
            db.execute("DELETE FROM prepared WHERE state = ?", (self._number,))
            self._write(db, self._number, head)
        self.head = head

    def _after_commit(self, db: sqlite3.Connection, txid: int) -> Head:
        """Return the row of this state once what is prepared replaces what is committed."""
        changed = db.execute(
            "SELECT p.value IS NULL, p.crc, c.crc FROM prepared p LEFT JOIN committed c ON c.state = p.state AND c.key = p.key "
            "WHERE p.state = ?",
            (self._number,),
        ).fetchall()
        self._whole("prepared", [crc for _, crc, _ in changed], self.head.prepared_rows, self.head.prepared_digest)
        return replace(self.head.changed(changed), committed=txid, prepared=None, prepared_rows=0, prepared_digest=0)

    def rollback(self) -> None:
        if self.head.prepared is None:
            return
        head = replace(self.head, prepared=None, prepared_rows=0, prepared_digest=0)
        with self._file.transaction() as db:
            db.execute("DELETE FROM prepared WHERE state = ?", (self._number,))
            self._write(db, self._number, head)
        self.head = head

    def _enter(self, db: sqlite3.Connection) -> int | None:
        return db.execute("INSERT INTO states VALUES (NULL, ?, 0, NULL, 0, 0, 0, 0, 0)", (self.name,)).lastrowid

    def _write(self, db: sqlite3.Connection, number: int | None, head: Head) -> None:
        db.execute(
            "UPDATE states SET committed = ?, prepared = ?, rows = ?, digest = ?, prepared_rows = ?, prepared_digest = ?, "
            "crc = ? WHERE id = ?",
            (*astuple(head), head.crc(self.name), number),
        )

    def verify(self) -> None:
        """Read all rows of the state."""
        crcs = []
        for key, value in self.items():
            crcs.append(crc_of(self.name, key, value))
        self._whole("committed", crcs, self.head.rows, self.head.digest)
        self.prepared()

    def _whole(self, table: str, crcs: list[int], rows: int, digest: int) -> None:
        if (len(crcs), _xor(crcs)) != (rows, digest):
            raise self._file.damaged(
                f"of the {rows} {table} values of the state {self.name} {len(crcs)} were found, or others"
            )

    def _sound(self, key: bytes, value: Any, crc: int) -> bytes:
        if not isinstance(key, bytes) or not isinstance(value, bytes) or crc_of(self.name, key, value) != crc:
            raise self._damaged(key)
        return value

    def _damaged(self, key: Any) -> CorruptStateError:
        try:
            name = shown(decode_value(key, "a key"))
        except (CorruptStateError, TypeError):
            name = shown(key)
        return self._file.damaged(f"the value of {name} in the state {self.name} does not have its checksum")


def crc_of(name: str, key: Any, value: Any) -> int:
    """Return the checksum of a row: over whose it is, its key, and its value or that it has none; -1 for no bytes."""
    if not isinstance(key, bytes) or not isinstance(value, bytes | None):
        return -1
    whose = zlib.crc32(key, zlib.crc32(f"{name} {len(key)} ".encode(errors="surrogateescape")))
    return zlib.crc32(b"-" if value is None else b"+" + value, whose)


def _xor(crcs: Iterable[int]) -> int:
    digest = 0
    for crc in crcs:
        digest ^= crc
    return digest
