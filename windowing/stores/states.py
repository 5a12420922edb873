"""Stores of a topology's states: in memory, for one process, or in one SQLite file with checksums.

    provider     states live as long as     a checkpoint writes                         windows bigger than memory
    memory       the provider               two dicts                                   temporary files
    sqlite       the file                   two transactions for all states             a file for each task, beside it

    meta         the topology's name
    states       one row per state: its txids; for both tables the number of its rows and the XOR of their checksums
    committed    (state, key) -> value, checksum
    prepared     (state, key) -> value or NULL (deleted), checksum

prepare(n) replaces the rows of `prepared`; commit(n) moves them to `committed`, where a NULL deletes a row; a rollback deletes
them. An object's view of its state is that of before if its transaction is not committed. Cost: O(changed values).

Laws
- Every prepare, commit, rollback and record is one transaction, durable when it returns (sqlite_files.py), or a part of the one
  in whose `transaction()` it is made. A kill at any point leaves the states before or after the transaction.
- The checksum of a row covers state, key and value; the counts in `states` also reveal lost rows. Damage is an error that names
  what is damaged. Nothing is ever reset: an empty file is damage, because a new file is created completely before it gets its name.
- One process at a time: a second process that opens the file is refused.
- SQL is constant text; names, keys and values are bound.

Source: Storm's `InMemoryKeyValueStateProvider`; its Redis and HBase providers are a file here.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from threading import get_ident
from typing import Any

from windowing.codec import decode_value, encode_value, key_shown
from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    WindowingError,
    quote,
)
from windowing.stores.pages import SqlitePages
from windowing.stores.sqlite_files import (
    BUSY,
    DAMAGED,
    OwnedConnection,
    checked_path,
    checksum_of,
    digest_of,
    make_durable,
    make_whole,
    transaction,
    translated,
)
from windowing.topology.state import NEVER, BufferedState, Changes, StateProvider, StateStore

STATE_COLUMNS = "id, name, committed, prepared, rows, digest, prepared_rows, prepared_digest, crc"
_PAGE_ROWS = 1000


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
        for deleted, new, old in changes:
            if old is not None:
                rows, digest = rows - 1, digest ^ old
            if not deleted:
                rows, digest = rows + 1, digest ^ new
        return replace(self, rows=rows, digest=digest)

    def crc(self, name: Any) -> int:
        return zlib.crc32(repr((name, astuple(self))).encode(errors="surrogateescape"))


class FileStore:
    """One state in the file (StateStore)."""

    def __init__(self, file: StateFile, name: str, number: int | None, head: Head) -> None:
        self.name = name
        self._file = file
        self.number = number
        self.head = head

    @property
    def committed_txid(self) -> int:
        return self.head.committed

    @property
    def prepared_txid(self) -> int | None:
        return self.head.prepared

    def read(self, key: bytes) -> bytes | None:
        query = "SELECT value, checksum FROM committed WHERE state = ? AND key = ?"
        for value, checksum in self._file.rows(query, self.number, key):
            return self._sound(key, value, checksum)
        return None

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        query = "SELECT key, value, checksum FROM committed WHERE state = ? AND key > ? ORDER BY key LIMIT ?"
        last = b""  # no key is empty
        while page := self._file.rows(query, self.number, last, _PAGE_ROWS):
            for key, value, checksum in page:
                yield key, self._sound(key, value, checksum)
            last = page[-1][0]

    def prepared(self) -> Changes:
        rows = self._file.rows("SELECT key, value, checksum FROM prepared WHERE state = ?", self.number)
        for key, value, checksum in rows:
            if not isinstance(key, bytes) or checksum_of(self.name, key, value) != checksum:
                raise self._damaged(key)
        self._whole(
            "prepared", [checksum for _, _, checksum in rows], self.head.prepared_rows, self.head.prepared_digest
        )
        return {key: value for key, value, _ in rows}

    def prepare(self, txid: int, changes: Changes) -> None:
        rows = [(key, value, checksum_of(self.name, key, value)) for key, value in changes.items()]
        digest = digest_of(checksum for _, _, checksum in rows)
        head = replace(self.head, prepared=txid, prepared_rows=len(rows), prepared_digest=digest)
        with self._file.transaction() as db:
            number = self.number or self._enter(db)
            db.execute("DELETE FROM prepared WHERE state = ?", (number,))
            db.executemany(
                "INSERT INTO prepared VALUES (?, ?, ?, ?)",
                ((number, key, value, checksum) for key, value, checksum in rows),
            )
            self._write(db, number, head)
        self.number, self.head = number, head

    def put_now(self, key: bytes, value: bytes) -> None:
        """Make one value durable at once, outside any txid."""
        checksum = checksum_of(self.name, key, value)
        with self._file.transaction() as db:
            number = self.number or self._enter(db)
            old = db.execute("SELECT checksum FROM committed WHERE state = ? AND key = ?", (number, key)).fetchone()
            head = self.head.changed([(False, checksum, None if old is None else old[0])])
            db.execute("REPLACE INTO committed VALUES (?, ?, ?, ?)", (number, key, value, checksum))
            self._write(db, number, head)
        self.number, self.head = number, head

    def commit(self, txid: int) -> None:
        with self._file.transaction() as db:
            changed = db.execute(
                "SELECT p.value IS NULL, p.checksum, c.checksum FROM prepared p "
                "LEFT JOIN committed c ON c.state = p.state AND c.key = p.key WHERE p.state = ?",
                (self.number,),
            ).fetchall()
            new = [checksum for _, checksum, _ in changed]
            self._whole("prepared", new, self.head.prepared_rows, self.head.prepared_digest)
            head = self.head.changed(changed)
            head = replace(head, committed=txid, prepared=None, prepared_rows=0, prepared_digest=0)
            db.execute(
                "REPLACE INTO committed SELECT state, key, value, checksum FROM prepared WHERE state = ? AND value IS NOT NULL",
                (self.number,),
            )
            db.execute(
                "DELETE FROM committed WHERE state = ? AND key IN (SELECT key FROM prepared WHERE state = ? AND value IS NULL)",
                (self.number, self.number),
            )
            db.execute("DELETE FROM prepared WHERE state = ?", (self.number,))
            self._write(db, self.number, head)
        self.head = head

    def rollback(self) -> None:
        if self.head.prepared is None:
            return
        head = replace(self.head, prepared=None, prepared_rows=0, prepared_digest=0)
        with self._file.transaction() as db:
            db.execute("DELETE FROM prepared WHERE state = ?", (self.number,))
            self._write(db, self.number, head)
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
        checksums = [checksum_of(self.name, key, value) for key, value in self.items()]
        self._whole("committed", checksums, self.head.rows, self.head.digest)
        self.prepared()

    def _whole(self, table: str, checksums: list[int], rows: int, digest: int) -> None:
        if (len(checksums), digest_of(checksums)) != (rows, digest):
            raise self._file.damaged(
                f"of the {rows} {table} values of the state {self.name} {len(checksums)} were found, or others"
            )

    def _sound(self, key: bytes, value: Any, checksum: int) -> bytes:
        if not isinstance(key, bytes) or not isinstance(value, bytes) or checksum_of(self.name, key, value) != checksum:
            raise self._damaged(key)
        return value

    def _damaged(self, key: Any) -> CorruptStateError:
        return self._file.damaged(f"the value of {key_shown(key)} in the state {self.name} does not have its checksum")


# -- StateFile -------------------------------------------------------------------------------------------------------------------


FORMAT = 2
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
        state INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (state, key)
    ) WITHOUT ROWID;
    CREATE TABLE prepared (
        state INTEGER NOT NULL, key BLOB NOT NULL, value BLOB, checksum INTEGER NOT NULL, PRIMARY KEY (state, key)
    ) WITHOUT ROWID;
"""


class StateFile:
    """The file, open in this process only.

    Raises DefinitionChangedError for a file of another topology or a newer format, CorruptStateError for a damaged or foreign file,
    CheckpointError if it is in use or cannot be written. Cost of opening: O(all values), which are read.
    """

    def __init__(self, path: str | Path, topology: str) -> None:
        self.path = checked_path(path, f"the states of topology {quote(topology)}")
        self.topology = topology
        self._thread = get_ident()
        with self._explained("opened"):
            if not self.path.exists():
                make_whole(self.path, self._fill)
            self._db = sqlite3.connect(
                self.path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False, factory=OwnedConnection
            )
            # A damaged name is found by its checksum.
            self._db.text_factory = lambda text: text.decode(errors="surrogateescape")
        try:
            with self._explained("opened"):
                self._check_header()
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                make_durable(self._db)
                self._db.execute("BEGIN EXCLUSIVE")  # readers would block commits
                self._db.execute("COMMIT")  # the lock is kept
            self._check_content()
            self._stores = self._found()
            self.verify()
        except BaseException:
            self._db.close()
            raise

    # -- opening -------------------------------------------------------------------------------------------------------

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
                f"the state file {self.path} has format {version}, this version reads {FORMAT}; use the version of the library "
                f"that wrote it{', which is 0.1, or begin with a new file' if version == 1 else ''}"
            )

    def _check_content(self) -> None:
        with closing(sqlite3.connect(":memory:")) as fresh:
            fresh.executescript(_SCHEMA)
            wanted = fresh.execute(_TABLES).fetchall()
        if self.rows(_TABLES) != wanted:
            raise self.damaged("its tables are not those of this format")
        found = self.rows("SELECT value FROM meta WHERE name = 'topology'")
        if [(self.topology,)] != found:
            owner = quote(found[0][0]) if found else "nobody"
            raise DefinitionChangedError(
                f"the state file {self.path} belongs to the topology {owner}, this one is {quote(self.topology)}; "
                "give each topology a file of its own, or keep its name"
            )

    # -- for states and providers --------------------------------------------------------------------------------------

    def store(self, name: str) -> FileStore:
        """Return the state with this name; a new one is stored with its first values."""
        if name not in self._stores:
            self._stores[name] = FileStore(self, name, None, Head())
        return self._stores[name]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the body as one durable transaction, or as a part of the one that runs; after an error all is as before."""
        if self._db.in_transaction:
            yield self._db
            return
        before = {name: (store.number, store.head) for name, store in self._stores.items()}
        try:
            with self._explained("written"), transaction(self._db):
                yield self._db
        except BaseException:
            for name, store in self._stores.items():
                store.number, store.head = before.get(name, (None, Head()))
            raise

    def rows(self, query: str, *bound: Any) -> list[Any]:
        with self._explained("read"):
            return self._db.execute(query, bound).fetchall()

    def _explained(self, done: str) -> AbstractContextManager[None]:
        def error_of(problem: Exception, code: int | None) -> WindowingError:
            if code in DAMAGED:
                return CorruptStateError(
                    f"the state file {self.path} is damaged ({problem}); restore it from a copy; nothing was reset"
                )
            if code in BUSY:
                return CheckpointError(
                    f"the state file {self.path} is in use by another process, or by another cluster of this one; stop that "
                    "one, or give this topology a file of its own"
                )
            return CheckpointError(
                f"the state file {self.path} cannot be {done}: {problem}; it holds what it held before; look at the disk and "
                "the rights of the file, then start again"
            )

        return translated(error_of, self._thread)

    # -- damage --------------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Read all values; raise CorruptStateError for the first one that is damaged or lost. Cost: 1 us per value."""
        # This reads the list of free pages too: one that is in use would be written over.
        found = self.rows("PRAGMA quick_check(1)")
        if found != [("ok",)]:
            raise self.damaged(quote(found[0][0]))
        for store in self._stores.values():
            store.verify()
        heads = [store.head for store in self._stores.values()]
        counted = self.rows("SELECT (SELECT count(*) FROM committed), (SELECT count(*) FROM prepared)")[0]
        wanted = (sum(head.rows for head in heads), sum(head.prepared_rows for head in heads))
        if counted != wanted:
            raise self.damaged(f"{counted} committed and prepared values were found, its states have {wanted}")

    def damaged(self, what: str) -> CorruptStateError:
        return CorruptStateError(
            f"the state file {self.path} is damaged: {what}; restore it from a copy; nothing was reset"
        )

    def _found(self) -> dict[str, FileStore]:
        # Read without an index: a damaged index could hide a state.
        found: dict[str, FileStore] = {}
        for number, name, *fields, crc in self.rows(f"SELECT {STATE_COLUMNS} FROM states ORDER BY id"):
            head = Head(*fields)
            if name in found or head.crc(name) != crc:
                raise self.damaged(f"the row of the state {quote(name)} does not have its checksum, or is there twice")
            found[name] = FileStore(self, name, number, head)
        return found


# -- StateProviders --------------------------------------------------------------------------------------------------------------


class MemoryStateStore:
    """One task's committed values in a dict. A commit adds new values; a rollback does not change it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed_txid = NEVER
        self.prepared_txid: int | None = None
        self._committed: dict[bytes, bytes] = {}
        self._prepared: Changes = {}

    def read(self, key: bytes) -> bytes | None:
        return self._committed.get(key)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return sorted(self._committed.items())

    def prepared(self) -> Changes:
        return dict(self._prepared)

    def prepare(self, txid: int, changes: Changes) -> None:
        self._prepared, self.prepared_txid = dict(changes), txid

    def commit(self, txid: int) -> None:
        for key, value in self._prepared.items():
            if value is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = value
        self._prepared, self.prepared_txid, self.committed_txid = {}, None, txid

    def rollback(self) -> None:
        self._prepared, self.prepared_txid = {}, None


class _Provider:
    """The common base of providers: one state object per task and name, and one file of pages per window on disk.

    store: opens the values of a state, by its full name. page_file: the path of the pages of a task, None for a temporary file.
    """

    def __init__(self, store: Callable[[str], StateStore], page_file: Callable[[str, int], Path | None]) -> None:
        self._store, self._page_file = store, page_file
        self._states: dict[str, BufferedState] = {}
        self._pages: dict[tuple[str, int], SqlitePages] = {}

    def state(self, component: str, task: int, name: str = "state") -> BufferedState:
        full = f"{component}/{task}/{name}"
        if full not in self._states:
            self._states[full] = BufferedState(self._store(full))
        return self._states[full]

    def pages(self, component: str, task: int) -> SqlitePages:
        if (component, task) not in self._pages:
            self._pages[component, task] = SqlitePages(self._page_file(component, task))
        return self._pages[component, task]

    def forget(self) -> None:
        """Discard changes that are not prepared; pages without a manifest are deleted when their window is opened again."""
        for state in self._states.values():
            state.forget()


class MemoryStateProvider(_Provider):
    """States in memory. A topology that is started again with the same provider continues; the states end with the process.

    >>> state = MemoryStateProvider().state("count", 0)
    >>> state.put("storm", 1); state.prepare_commit(0); state.commit(0); state.put("storm", 2); state.rollback()
    >>> state.get("storm")
    1
    """

    def __init__(self) -> None:
        super().__init__(MemoryStateStore, lambda component, task: None)
        self._records: dict[str, bytes] = {}

    def record(self, name: str) -> Any:
        """Return the record saved under `name`, None if there is none."""
        blob = self._records.get(name)
        return None if blob is None else decode_value(blob, f"the record {name}")

    def save_record(self, name: str, data: Any) -> None:
        """Save plain data under `name`."""
        self._records[name] = encode_value(data)

    def close(self) -> None:
        """Discard changes that are neither committed nor prepared; the others stay for the next start."""
        self.forget()


class SqliteStateProvider(_Provider):
    """States in one SQLite file of one topology; see StateFile for its guarantees and refusals.

    Windows that do not fit into memory are in files beside it, `<path>.<bolt>-<task>.pages`; copy and delete all of them together.
    A context manager that closes the files.
    """

    def __init__(self, path: str | Path, topology: str) -> None:
        self.file = file = StateFile(path, topology)
        super().__init__(file.store, lambda name, task: file.path.with_name(f"{file.path.name}.{name}-{task}.pages"))
        self._records = self.file.store("records")

    def __enter__(self) -> SqliteStateProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, name: str) -> Any:
        """Return the record saved under `name`, None if there is none. Raises CorruptStateError if it is damaged."""
        blob = self._records.read(encode_value(name))
        return None if blob is None else decode_value(blob, f"the record {name} in {self.file.path}")

    def save_record(self, name: str, data: Any) -> None:
        """Save plain data under `name`, durably, in its own transaction."""
        self._records.put_now(encode_value(name), encode_value(data))

    def transaction(self) -> AbstractContextManager[Any]:
        """Make all writes of a `with` block durable together, at its end."""
        return self.file.transaction()

    def close(self) -> None:
        """Close all files, even if closing one raises; changes that are not prepared are lost."""
        with ExitStack() as files:
            files.callback(self.file.close)
            for pages in self._pages.values():
                files.callback(pages.close)


def state_provider(kind: str | None, topology: str, path: str | Path | None = None) -> StateProvider:
    """Return the provider that `topology.state.provider` names: "memory" or "sqlite". None: SQLite if there is a path."""
    if kind not in (None, "memory", "sqlite"):
        raise ConfigError(f"topology.state.provider is 'memory' or 'sqlite', got {quote(kind)}; give one of them")
    if kind == "memory" and path is not None:
        raise ConfigError(
            f"states of {topology!r} are in memory by topology.state.provider, yet state_path is {quote(str(path))}; leave one of "
            "the two out: with a path alone they are in SQLite"
        )
    if kind != "sqlite" and path is None:
        return MemoryStateProvider()
    if path is None:
        raise ConfigError(
            f"states of {topology!r} in SQLite need a file that outlives the process, got none; give its path: "
            "state_path='words.db', or --state words.db of the command line"
        )
    return SqliteStateProvider(path, topology)
