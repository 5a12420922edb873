"""Pages of a persistent window: their encoding, their file, and the window's checkpoints over them.

    page         id -> bytes                    immutable; only added and dropped
    checkpoint   txid -> manifest, committed?   at most one committed, at most one prepared

    frame of a page    magic WNDP · version · crc32 · length · body
    body               page id u64 · length u32 · zlib( JSON of times, numbers, kind, names, cells ) · typed payloads, if any

Times and numbers are stored as differences. Rows of scalars, the common case, are one flat list of cells, so they cost no Python
call per value. `kind` is the form of the payloads: "scalars", "rows" (tuples of one width), "records" (dicts with the same keys),
"named" (namedtuples, restored as Records that are read by attribute, name or position), "tuples" (topology Tuples, with a table of
their origins), "typed" (any other value that codec.py encodes). No pickle.

PersistentWindow is the window of one task in one file, as a State that takes part in checkpoints:

    init(n)              restore the executor of checkpoint n, a new one for NEVER
    prepare_commit(n)    make pages and manifest durable; after a crash the coordinator decides: commit(n) or rollback()
    commit(n)            make the manifest current; delete the pages that it does not name
    rollback()           discard what was prepared; the previous checkpoint stays with all its pages, and init must follow

Laws: a damaged page or manifest is a CorruptStateError that names it. One process uses a file at a time. After `flush`, `prepare`
or `commit` has returned, the data survives kill -9 and loss of power. `init(n)` restores exactly what `prepare_commit(n)` stored.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain, pairwise
from pathlib import Path
from threading import get_ident
from typing import Any

from windowing.codec import META_MAGIC, dumps, frame, inflated, loads, unframe
from windowing.errors import CheckpointError, CorruptStateError, WindowingError, quote
from windowing.schema.rows import Record, field_names, record_type
from windowing.schema.tuples import NO_TASKS, Fields, Origin, Tuple
from windowing.stores.sqlite_files import BUSY, DAMAGED, OwnedConnection, checked_path, make_durable, translated
from windowing.topology.state import NEVER, recorded
from windowing.windows.config import WindowConfig
from windowing.windows.pages import CheckpointedPages, PageRows
from windowing.windows.persistent import PersistentWindowedBoltExecutor

PAGE_MAGIC = b"WNDP"
_HEAD = struct.Struct(">QI")
_SCALARS = {int, str, float, bool, type(None)}

PageColumns = dict[str, Any]


def encode_page(page_id: int, rows: PageRows) -> bytes:
    """Return the bytes of a page. Raises TypeError for a payload that is not plain data. Cost: about 1 us per row of 3 numbers."""
    columns, typed = _payload_columns(rows.payloads)
    columns |= {"times": _differences(rows.timestamps), "numbers": _differences(rows.sequences)}
    text = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 1)
    return frame(PAGE_MAGIC, _HEAD.pack(page_id, len(text)) + text + typed)


def decode_page(page_id: int, blob: bytes, what: str, task_ids: Mapping[str, range] = NO_TASKS) -> PageRows:
    """Return the rows of `encode_page`. `what` names the page in a CorruptStateError; `task_ids`: those of the current topology."""
    body = unframe(PAGE_MAGIC, blob, what)
    try:
        stored_id, size = _HEAD.unpack_from(body)
        if stored_id != page_id:
            raise CorruptStateError(f"{what} holds page {stored_id} instead; restore from a copy, nothing was reset")
        split = _HEAD.size + size
        columns = json.loads(inflated(body[_HEAD.size : split], what))
        payloads = _payloads(columns, body[split:], what, task_ids)
        return PageRows(list(accumulate(columns["times"])), payloads, list(accumulate(columns["numbers"])))
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, IndexError) as problem:
        raise CorruptStateError(f"{what} cannot be read: {problem}; nothing was reset") from problem


def _differences(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *(two - one for one, two in pairwise(numbers))]


def _payload_columns(payloads: list[Any]) -> tuple[PageColumns, bytes]:
    """Return payloads as columns, and the values that do not fit into columns as bytes."""
    kinds = set(map(type, payloads))
    if kinds <= _SCALARS:
        return {"kind": "scalars", "cells": payloads}, b""
    if kinds == {tuple} and (cells := _cells(payloads)) is not None:
        return {"kind": "rows", "width": len(payloads[0]), "cells": cells}, b""
    if kinds == {dict} and (cells := _record_cells(payloads)) is not None:
        return {"kind": "records", "names": list(payloads[0]), "cells": cells}, b""
    if all(issubclass(kind, Tuple) for kind in kinds):
        return _tuple_columns(payloads)
    if any(hasattr(kind, "_fields") for kind in kinds):
        return _named_columns(payloads)
    return {"kind": "typed"}, dumps(payloads)


def _cells(rows: list[Any]) -> list[Any] | None:
    """Return the values of all rows, row by row, if all are scalars and all rows have the same width above 0; else None."""
    if len(set(map(len, rows))) > 1 or not rows[0]:
        return None
    cells = list(chain.from_iterable(rows))
    return cells if set(map(type, cells)) <= _SCALARS else None


def _record_cells(records: list[dict[Any, Any]]) -> list[Any] | None:
    names = list(records[0])
    if set(map(type, names)) != {str} or any(list(each) != names for each in records):
        return None
    return _cells([each.values() for each in records])


def _tuple_columns(tuples: list[Tuple]) -> tuple[PageColumns, bytes]:
    """Return topology tuples as columns: the number of each origin, and the values. Anchors are not stored."""
    numbers: dict[tuple[str, int, str, tuple[str, ...]], int] = {}
    origins = [
        numbers.setdefault(
            (each.source_component, each._origin.task, each.source_stream, tuple(each.get_fields())), len(numbers)
        )
        for each in tuples
    ]
    values, typed = _payload_columns([tuple(each.get_values()) for each in tuples])
    return {"kind": "tuples", "table": list(numbers), "origins": origins, "values": values}, typed


def _named_columns(rows: list[Any]) -> tuple[PageColumns, bytes]:
    """Return namedtuples as columns: the number of each set of names, and the values."""
    numbers: dict[tuple[str, ...], int] = {}
    named = []
    for row in rows:
        names = field_names(row) if isinstance(row, Record) else getattr(row, "_fields", None)
        if names is None:
            raise TypeError(
                f"a window holds rows with names and one without: {quote(row)}; emit rows of one kind to a bolt with "
                "max_events_in_memory"
            )
        named.append(numbers.setdefault(tuple(names), len(numbers)))
    values, typed = _payload_columns(list(map(tuple, rows)))
    return {"kind": "named", "table": list(numbers), "named": named, "values": values}, typed


def _payloads(columns: PageColumns, typed: bytes, what: str, task_ids: Mapping[str, range]) -> list[Any]:
    match columns["kind"]:
        case "scalars":
            return list(columns["cells"])
        case "rows":
            return _by_width(columns["cells"], columns["width"])
        case "records":
            names = columns["names"]
            return [dict(zip(names, row, strict=True)) for row in _by_width(columns["cells"], len(names))]
        case "named":
            record_types = [record_type(tuple(names))._make for names in columns["table"]]
            values = _payloads(columns["values"], typed, what, task_ids)
            return [record_types[number](row) for row, number in zip(values, columns["named"], strict=True)]
        case "tuples":
            table = [
                Origin(component, task, Fields(fields), stream, task_ids)
                for component, task, stream, fields in columns["table"]
            ]
            values = _payloads(columns["values"], typed, what, task_ids)
            return [Tuple(row, table[number]) for row, number in zip(values, columns["origins"], strict=True)]
        case "typed":
            return list(loads(typed, what))
    raise CorruptStateError(f"{what} has payloads of kind {columns['kind']!r}; use the version that wrote it")


def _by_width(cells: list[Any], width: int) -> list[Any]:
    each = iter(cells)
    return list(zip(*[each] * width, strict=True))


# -- page stores -----------------------------------------------------------------------------------------------------------------


_SCHEMA = """
    CREATE TABLE IF NOT EXISTS page (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS checkpoint (txid INTEGER PRIMARY KEY, committed INTEGER NOT NULL, body BLOB NOT NULL);
"""
_COMMIT_EVERY = 64  # pages; the journal of an open transaction must not grow with the window


class SqlitePages:
    """A PageStore in a SQLite file, with the manifests of one task's checkpoints. Close it, or use it in a `with`.

    A missing `path` is created; without a path the pages are in a temporary file that is deleted with the object. Raises
    CheckpointError if another process has the file open or it cannot be written, CorruptStateError for damage. Cost: one row per
    page; one sync of the disk per 64 pages and per flush.

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder, SqlitePages(os.path.join(folder, "count-0.pages")) as pages:
    ...     pages.write(0, PageRows([1], [{"n": 1}], [0]))
    ...     pages.prepare(1, {"pages": [0]}); pages.commit(1)
    ...     pages.read(0).payloads, pages.committed()
    ([{'n': 1}], (1, {'pages': [0]}))
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.name = "a temporary file" if path is None else str(checked_path(path, "the pages of a window"))
        self.task_ids: Mapping[str, range] = {}
        """The task ids of the current topology, for the origins of its tuples; they are not stored."""
        self._uncommitted = 0
        self._thread = get_ident()
        with self._raising("it cannot be opened"):
            self._db = sqlite3.connect(
                "" if path is None else path,
                isolation_level=None,
                timeout=1.0,
                check_same_thread=False,
                factory=OwnedConnection,
            )
        try:
            with self._raising("it cannot be opened"):
                # One process per file: the first transaction takes the lock, which is held until the file is closed.
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                make_durable(self._db)
                self._db.executescript(_SCHEMA)
                self._db.execute("BEGIN EXCLUSIVE")  # readers would block commits
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> SqlitePages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; pages that were not flushed are lost, as after a crash."""
        if self._db.in_transaction:
            self._db.rollback()
        self._db.close()

    # -- pages -----------------------------------------------------------------------------------------------------------

    def write(self, page_id: int, rows: PageRows) -> None:
        body = encode_page(page_id, rows)
        with self._raising(f"page {page_id} cannot be written"):
            try:
                self._db.execute("INSERT INTO page VALUES (?, ?)", (page_id, body))
            except sqlite3.IntegrityError:
                raise CheckpointError(
                    f"{self._page(page_id)} is already written, and pages never change; restore the machine from its checkpoint "
                    "(None for a new one) before it gets tuples"
                ) from None
        self._uncommitted += 1
        if self._uncommitted >= _COMMIT_EVERY:
            self.flush()

    def read(self, page_id: int) -> PageRows:
        with self._raising(f"page {page_id} cannot be read"):
            row = self._db.execute("SELECT CAST(body AS BLOB) FROM page WHERE id = ?", (page_id,)).fetchone()
        if row is None:
            raise CorruptStateError(
                f"{self._page(page_id)} is missing; restore the file from a copy, nothing was reset"
            )
        return decode_page(page_id, row[0], self._page(page_id), self.task_ids)

    def drop(self, page_ids: Collection[int]) -> None:
        with self._raising("pages cannot be dropped"):
            self._db.executemany("DELETE FROM page WHERE id = ?", [(page_id,) for page_id in page_ids])

    def flush(self) -> None:
        with self._raising("it cannot be written"):
            self._db.execute("COMMIT")
            self._db.execute("BEGIN IMMEDIATE")
        self._uncommitted = 0

    def ids(self) -> list[int]:
        with self._raising("its pages cannot be listed"):
            return [page_id for (page_id,) in self._db.execute("SELECT id FROM page ORDER BY id")]

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def prepare(self, txid: int, manifest: Any) -> None:
        """Store a manifest beside the committed one, in place of any other prepared one; durable on return."""
        body = frame(META_MAGIC, dumps([txid, manifest]))
        with self._raising(f"checkpoint {txid} cannot be written"):
            self._db.execute("DELETE FROM checkpoint WHERE NOT committed")
            try:
                self._db.execute("INSERT INTO checkpoint VALUES (?, 0, ?)", (txid, body))
            except sqlite3.IntegrityError:
                raise CheckpointError(f"{self.name}: checkpoint {txid} is committed; prepare a later one") from None
        self.flush()

    def commit(self, txid: int) -> None:
        """Make the prepared manifest the committed one, and delete all others; durable on return, idempotent."""
        if not any(held == txid for held, _ in self._checkpoints()):
            raise CheckpointError(
                f"{self.name}: checkpoint {txid} was never prepared, there is {self._checkpoints()}; roll back to what is "
                "committed, or restore the file from a copy"
            )
        with self._raising(f"checkpoint {txid} cannot be committed"):
            self._db.execute("UPDATE checkpoint SET committed = 1 WHERE txid = ?", (txid,))
            self._db.execute("DELETE FROM checkpoint WHERE txid != ?", (txid,))
        self.flush()

    def rollback(self) -> None:
        """Delete the prepared manifest, if there is one; durable on return."""
        with self._raising("a checkpoint cannot be rolled back"):
            self._db.execute("DELETE FROM checkpoint WHERE NOT committed")
        self.flush()

    def committed(self) -> tuple[int, Any] | None:
        """Return (txid, manifest) of the committed checkpoint, None before the first. Raises CorruptStateError for damage."""
        with self._raising("its checkpoint cannot be read"):
            row = self._db.execute("SELECT txid, CAST(body AS BLOB) FROM checkpoint WHERE committed").fetchone()
        if row is None:
            return None
        what = f"{self.name}: checkpoint {row[0]}"
        txid, manifest = loads(unframe(META_MAGIC, row[1], what), what)
        if txid != row[0]:
            raise CorruptStateError(f"{what} holds checkpoint {txid} instead; restore from a copy, nothing was reset")
        return txid, manifest

    def _checkpoints(self) -> list[tuple[int, int]]:
        with self._raising("its checkpoints cannot be read"):
            return list(self._db.execute("SELECT txid, committed FROM checkpoint ORDER BY txid"))

    # -- errors ----------------------------------------------------------------------------------------------------------

    def _page(self, page_id: int) -> str:
        return f"{self.name}: page {page_id}"

    def _raising(self, what: str) -> AbstractContextManager[None]:
        def error_of(problem: Exception, code: int | None) -> WindowingError:
            if code in DAMAGED:
                return CorruptStateError(
                    f"{self.name}: {what}: {problem}; restore the file from a copy, nothing was reset"
                )
            in_use = "it is in use by another process: one task has one file"
            why = in_use if code in BUSY else f"{problem}; look at the disk and the rights of the file"
            return CheckpointError(f"{self.name}: {what}: {why}; nothing was reset")

        return translated(error_of, self._thread)


# -- PersistentWindow ------------------------------------------------------------------------------------------------------------


class PersistentWindow:
    """One task's window on disk. The caller opens and closes `pages`.

    Raises CheckpointError and CorruptStateError as SqlitePages does, ConfigError for a bolt without `max_events_in_memory`.
    """

    def __init__(self, config: WindowConfig, pages: CheckpointedPages, streams: Sequence[str], component: str) -> None:
        self.pages = pages
        self.executor = PersistentWindowedBoltExecutor(config, pages, streams, component)

    def init(self, txid: int) -> None:
        """Restore the executor of checkpoint `txid`. Raises CheckpointError if another txid is committed."""
        found = self.pages.committed()
        held = NEVER if found is None else found[0]
        if held != txid:
            stored = "is missing or empty" if held == NEVER else f"holds checkpoint {held}"
            raise CheckpointError(
                f"{self.pages.name} {stored}, the coordinator {recorded(txid)}; restore the files of all "
                "tasks and the checkpoint record from one copy, or, if this bolt is new in its topology, begin with new states; "
                "nothing was reset"
            )
        self.executor.restore(None if found is None else found[1])

    def prepare_commit(self, txid: int) -> None:
        """Make the current window durable under `txid`. Cost: the pages that changed, and six numbers per page."""
        self.pages.prepare(txid, self.executor.prepare())

    def commit(self, txid: int) -> None:
        """Make the window prepared under `txid` the one that a restart restores. Idempotent."""
        self.pages.commit(txid)
        self.executor.committed()

    def rollback(self) -> None:
        """Discard what was prepared; the executor accepts tuples again after `init`."""
        self.pages.rollback()
