"""The windows of a task of Trident between its batches, in the form of all windows on Spark: `StoredWindows` for each step.

    metadata   frame( size of the head | head: the bytes of each step | part of step 3 | part of step 7 )
    part       few tuples:    the snapshot of the executor, with them
               more than FEW: a StoredTask, whose tuples are in chunks
    chunks     id, nonce -> tuples, of all steps

Few tuples cost 2 to 3 ms less in the snapshot, and no calls of the JVM. An earlier version stored the snapshots of all steps, which
are read, and written in this form.

Laws: the rows, their order and the counts are those of windows that are never stored. An earlier version refuses the metadata by
the version of their frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.codec import META_MAGIC, VERSION, dumps, frame, loads, unframe
from windowing.columnar.bolts import table_of
from windowing.columnar.rows import values_of
from windowing.errors import BoltError, CorruptStateError
from windowing.schema.rows import record_fields, record_of
from windowing.schema.types import Row, Schema
from windowing.spark.operator import Stored, TaskResult, expect
from windowing.spark.rows import NamedRows
from windowing.spark.state import TIMESTAMP, ChunkStore, Load, StoredTask, StoredWindows, with_order
from windowing.trident.processors import key_picker
from windowing.trident.windows import WindowProcessor

_MAGIC = b"WNDT"
_VERSION = VERSION + 1

_COLUMNS = "payloads", "timestamps", "sequences"

Part = bytes | dict[str, Any]
"""The stored windows of a step: a StoredTask as bytes, or the snapshot of the executor with its tuples."""
FEW = 500
"""So many tuples and keys of a step stay in its snapshot; half as many, if they were more, return to it."""


class WindowRows(NamedRows):
    """The tuples of a window: plain ones, or records if policies of a user read them."""

    def __init__(self, schema: Schema, records: bool) -> None:
        super().__init__(schema.names)
        self._schema, self._records = schema, records

    def payloads(self, table: pa.Table) -> list[Any]:
        if self._records:
            return super().payloads(table)
        return list(zip(*(values_of(table.column(name)) for name in self._columns), strict=True))

    def keys(self, table: pa.Table, payloads: Sequence[Row], names: tuple[str, ...]) -> list[Any]:
        return list(map(key_picker(self._schema, names, of_window=True), payloads))

    def table(self, rows: Sequence[Row], stamps: Sequence[int | None] | None) -> pa.Table:
        """Return tuples and their timestamps, if they have any, as `StoredWindows` takes them."""
        found = pa.nulls(len(rows), pa.int64()) if stamps is None else pa.array(stamps, pa.int64())
        return pa.table([*table_of(rows, self._schema).columns, found], names=[*self._columns, TIMESTAMP])


class StepWindows:
    """The windows of one step in one batch: restored at the begin, `write` returns what to store.

    part: what the last batch has stored, None for a new task. load: reads a chunk. what: names the windows in errors.
    """

    def __init__(self, window: WindowProcessor, part: Part | None, load: Load, what: str) -> None:
        self._window, self._rows = window, WindowRows(window.schema, window.by_policies)
        self._executor = window.store_apart()
        self._chunked: StoredWindows | None = None
        if part is None or isinstance(part, bytes):
            self._chunked = StoredWindows(self._executor, self._rows, StoredTask.of(part, what), load, what)
            nothing = self._rows.table((), ())
            held = self._chunked.chunks.read(self._rows.kept(nothing).schema)
            expect(0 if held is None else 2 * held.num_rows)
            self._chunked.restore(held, nothing)
        else:
            self._executor.restore(window.with_rows(numbered(part)))

    def write(self, result: TaskResult) -> bytes:
        """Return the part to store; add the changes of the chunks to the result of a turn."""
        chunked, tally = self._chunked, self._executor.manager.tally
        gone = [] if chunked is None else [chunk.key for chunk in chunked.chunks.chunks]
        most = FEW // 2 if gone else FEW
        if chunked is None or (chunked.is_loaded and tally.accepted - tally.expired <= most):
            snapshot = self._executor.snapshot()
            if size_of(snapshot) <= most:
                result.drops = [*result.drops, *gone]
                return self._dumped(snapshot)
            if chunked is None and self._window.by_policies:  # its tuples stay in the snapshot until they expire
                return StoredTask(self._dumped(snapshot)).stored()
            if chunked is None:
                task, puts = converted(snapshot, self._rows)
                result.puts = {**result.puts, **puts}
                return task.stored()
        rows, stamps, late = self._window.arrived
        table = self._rows.table(rows, stamps) if rows else None
        task = chunked.write(table, rows, np.delete(np.arange(len(rows)), late))
        result.puts = {**result.puts, **chunked.chunks.puts}
        result.drops = [*result.drops, *chunked.chunks.drops]
        return task.stored()

    def _dumped(self, snapshot: dict[str, Any]) -> bytes:
        try:
            return dumps(snapshot, record_fields if self._window.by_policies else None)
        except TypeError as problem:
            raise BoltError(f"bolt {self._executor.component!r} cannot be stored: {problem}") from problem


class TridentWindows:
    """The windows of all steps of one task in one batch. windows: by the number of their step."""

    def __init__(self, windows: Mapping[int, WindowProcessor], stored: Stored, what: str) -> None:
        kept = {} if stored.metadata is None else parts_of(stored.metadata, what)
        if stored.metadata is not None and (lost := windows.keys() - kept.keys()):
            raise CorruptStateError(f"the {what} lack those of step {min(lost)}; put the checkpoint back from a copy")
        self._steps = {
            number: StepWindows(window, kept.get(number), stored.chunk, f"{what}, step {number}")
            for number, window in windows.items()
        }

    def write(self, result: TaskResult) -> None:
        """Add the new metadata and the changes of the chunks to the result of a turn."""
        result.metadata = stored_parts({number: step.write(result) for number, step in self._steps.items()})


# -- Stored bytes ------------------------------------------------------------------------------------------------------------------


def stored_parts(parts: Mapping[int, bytes]) -> bytes:
    """Return the metadata of a task from those of its windows, by the number of their step."""
    head = dumps([[number, len(part)] for number, part in parts.items()])
    return frame(_MAGIC, b"".join([len(head).to_bytes(8, "big"), head, *parts.values()]), _VERSION)


def parts_of(metadata: bytes, what: str) -> dict[int, Part]:
    """Return the stored windows of a task by the number of their step. Raises CorruptStateError."""
    if metadata[:6] == frame(_MAGIC, b"")[:6]:
        whole = loads(unframe(_MAGIC, metadata, what), what)
        return {int(number): each["windows"] for number, each in whole.items()}
    body = unframe(_MAGIC, metadata, what, _VERSION)
    at = 8 + int.from_bytes(body[:8], "big")
    parts = _cut(body, at, loads(body[8:at], what))
    return {number: part if part.startswith(META_MAGIC) else loads(part, what, record_of) for number, part in parts}


def _cut(body: bytes, at: int, sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    for number, size in sizes:
        yield number, body[at : at + size]
        at += size


def size_of(snapshot: Mapping[str, Any]) -> int:
    """Return the number of keys and tuples in the snapshot of an executor."""
    tracks = snapshot["manager"]["tracks"]
    return sum(1 + len(track["payloads"]) + len(track.get("waiting", ())) for track in tracks)


def numbered(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot whose tuples have numbers; those of an earlier version had none if only their order in a key counts."""
    manager = snapshot["manager"]
    at = manager.get("sequence", 0) - sum(len(track["payloads"]) for track in manager["tracks"])
    for track in manager["tracks"] if "sequence" in manager else ():
        count = len(track["payloads"])
        if track["sequences"] is None:
            track["sequences"] = list(range(at, at + count))
        at += count
    return snapshot


def converted(snapshot: dict[str, Any], rows: WindowRows) -> tuple[StoredTask, dict[bytes, bytes]]:
    """Return the windows of a snapshot, which are none of a user's policies, with their tuples in chunks, and these chunks."""
    manager, store = numbered(snapshot)["manager"], ChunkStore()
    payloads, stamps, numbers = (
        [*chain.from_iterable(track.pop(name) for track in manager["tracks"])] for name in _COLUMNS
    )
    table = rows.table(payloads, stamps)
    fresh = with_order(rows.kept(table), table.column(TIMESTAMP), pa.array(numbers, pa.int64()))
    chunks = store.write(fresh, np.array(numbers, dtype=np.int64), 0)
    return StoredTask(dumps(snapshot), chunks, len(chunks)), store.puts
