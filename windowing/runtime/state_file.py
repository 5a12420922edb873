"""StateFile: the states of one topology in one SQLite file.

    meta      the topology's name               committed   (state, key) -> value, checksum
    states    one row each: its txids           prepared    (state, key) -> value or NULL (deleted), checksum
              and, for both tables, the number of its rows and the XOR of their checksums

Laws
- Every prepare, commit, rollback and record is one transaction, on the disk when it returns (sqlite_files.py): a process that
  is killed in it leaves what was before or what comes after, never a mixture.
- A row's CRC32 is over state, key and value; with the numbers in `states` a lost row is seen too. Damage is an error that names
  what is damaged. Nothing is ever reset: an empty file is damage, for a new one is made whole before it gets its name.
- One process at a time: a second one that opens the file is refused.
- SQL is constant text; names, keys and values are bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from windowing.errors import CheckpointError, CorruptStateError, DefinitionChangedError, shown
from windowing.runtime.state_rows import STATE_COLUMNS, FileStore, Head
from windowing.sqlite_files import BUSY, DAMAGED, checked_path, code_of, make_durable, make_whole

__all__ = ["FORMAT", "StateFile"]

FORMAT = 1
_APPLICATION_ID = 0x574E4453  # "WNDS"
_LOCK_WAIT_S = 1.0

_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
_SCHEMA = f"""
    PRAGMA application_id = {_APPLICATION_ID};
    PRAGMA user_version = {FORMAT};
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE states (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, committed INTEGER NOT NULL, prepared INTEGER,
        rows INTEGER NOT NULL, digest INTEGER NOT NULL,
        prepared_rows INTEGER NOT NULL, prepared_digest INTEGER NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE committed (
        state INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (state, key)
    ) WITHOUT ROWID;
    CREATE TABLE prepared (
        state INTEGER NOT NULL, key BLOB NOT NULL, value BLOB, crc INTEGER NOT NULL, PRIMARY KEY (state, key)
    ) WITHOUT ROWID;
"""


class StateFile:
    """The file, open in this process alone.

    Raises DefinitionChangedError for a file of another topology or a newer format, CorruptStateError for a damaged one or one that
    is not ours, CheckpointError if it is in use or cannot be written. Cost of opening: O(all values) with `verify`, else O(1).
    """

    def __init__(self, path: str | Path, topology: str, *, verify: bool = True) -> None:
        self.path = checked_path(path, f"the states of topology {shown(topology)}")
        self.topology = topology
        with self._told("opened"):
            if not self.path.exists():
                make_whole(self.path, self._fill)
            self._db = self._connect(self.path)
        try:
            with self._told("opened"):
                self._check_header()
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                make_durable(self._db)
                self._db.execute("BEGIN EXCLUSIVE")  # who only reads would hold up a commit
                self._db.execute("COMMIT")  # the lock stays
            self._check_tables()
            self._check_topology()
            self._stores = self._found()
            if verify:
                self.verify()
        except BaseException:
            self._db.close()
            raise

    # -- opening -------------------------------------------------------------------------------------------------------

    def _connect(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None)
        db.text_factory = lambda text: text.decode(errors="surrogateescape")  # a damaged name is seen by its checksum
        return db

    def _fill(self, db: sqlite3.Connection) -> None:
        db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        db.execute("INSERT INTO meta VALUES ('topology', ?)", (self.topology,))

    def _check_header(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise CorruptStateError(
                f"the state file {self.path} is not ours: its application id is {application:#x}, wanted "
                f"{_APPLICATION_ID:#x}; give the path of a new file, or restore ours from a copy; nothing was reset"
            )
        if version != FORMAT:
            raise DefinitionChangedError(
                f"the state file {self.path} has format {version}, this version reads {FORMAT}; use the version of the "
                "library that wrote it"
            )

    def _check_tables(self) -> None:
        with closing(sqlite3.connect(":memory:")) as fresh:
            fresh.executescript(_SCHEMA)
            wanted = fresh.execute(_TABLES).fetchall()
        if self.rows(_TABLES) != wanted:
            raise self.damaged("its tables are not those of this format")

    def _check_topology(self) -> None:
        with self._told("read"):
            found = self._db.execute("SELECT value FROM meta WHERE name = 'topology'").fetchall()
        if [(self.topology,)] != found:
            owner = shown(found[0][0]) if found else "nobody"
            raise DefinitionChangedError(
                f"the state file {self.path} belongs to the topology {owner}, this one is {shown(self.topology)}; "
                "give each topology a file of its own, or keep its name"
            )

    # -- what the states and the provider use --------------------------------------------------------------------------

    def store(self, name: str) -> FileStore:
        """Return the state of this name; a new one is written down with its first values."""
        if name not in self._stores:
            self._stores[name] = FileStore(self, name, None, Head())
        return self._stores[name]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Do what is inside wholly, and on the disk, or not at all."""
        with self._told("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def rows(self, query: str, *bound: Any) -> list[Any]:
        """Return the rows of a constant query."""
        with self._told("read"):
            return self._db.execute(query, bound).fetchall()

    @contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """Turn what SQLite and the file system say into a sentence."""
        try:
            yield
        except sqlite3.Error as problem:
            code = code_of(problem)
            if code in DAMAGED:
                raise CorruptStateError(
                    f"the state file {self.path} is damaged ({problem}); restore it from a copy; nothing was reset"
                ) from problem
            if code in BUSY:
                raise CheckpointError(
                    f"the state file {self.path} is in use by another process, or by another cluster of this one; stop that "
                    "one, or give this topology a file of its own"
                ) from problem
            raise CheckpointError(self._unable(done, problem)) from problem
        except UnicodeDecodeError as problem:  # in the text of SQLite's own error, which quotes the damaged schema
            raise self.damaged("its schema cannot be read") from problem
        except OSError as problem:
            raise CheckpointError(self._unable(done, problem)) from problem

    def _unable(self, done: str, problem: Exception) -> str:
        return (
            f"the state file {self.path} cannot be {done}: {problem}; it holds what it held before; look at the disk and "
            "the rights of the file, then start again"
        )

    # -- damage --------------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Read everything once; raise CorruptStateError for the first thing that is damaged or lost. Cost: 1 us a value."""
        found = self.rows(
            "PRAGMA quick_check(1)"
        )  # the list of free pages too: one that is in use would be written over
        if found != [("ok",)]:
            raise self.damaged(shown(found[0][0]))
        for store in self._stores.values():
            store.verify()
        heads = [store.head for store in self._stores.values()]
        counted = self.rows("SELECT (SELECT count(*) FROM committed), (SELECT count(*) FROM prepared)")[0]
        wanted = (sum(head.rows for head in heads), sum(head.prepared_rows for head in heads))
        if counted != wanted:
            raise self.damaged(f"{counted} committed and prepared values were found, its states have {wanted}")

    def damaged(self, what: str) -> CorruptStateError:
        """Return the error for damage."""
        return CorruptStateError(
            f"the state file {self.path} is damaged: {what}; restore it from a copy; nothing was reset"
        )

    def _found(self) -> dict[str, FileStore]:
        # No index is asked: a damaged one would hide a state that is there.
        found: dict[str, FileStore] = {}
        for number, name, *fields, crc in self.rows(f"SELECT {STATE_COLUMNS} FROM states ORDER BY id"):
            head = Head(*fields)
            if name in found or head.crc(name) != crc:
                raise self.damaged(f"the row of the state {shown(name)} does not have its checksum, or is there twice")
            found[name] = FileStore(self, name, number, head)
        return found
