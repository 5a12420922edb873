"""The state of a task in Spark's state store: the metadata of its windows, their tuples in chunks, the values of a stateful bolt.

    metadata   size of the head | head: format, chunks, next_id, next_number, seen, ... | snapshot of the executor      StoredTask
               (| the keys with `key=`: Arrow IPC, idle_keys.py, if the head has "executor", the size of the snapshot)
    chunks     id, nonce -> frame( Arrow IPC, lz4: columns, timestamps, numbers ), by (timestamp, arrival)               ChunkStore
    values     key -> frame( value ), both plain data in typed JSON                                                      TaskValues

The executor is decoded only after the rows that it refers to are read. The head lists the chunks: id, nonce, number of rows, and
the runs of rows that are still needed.

Laws
- A batch writes the tuples that arrived in it *and* outlive it. A tuple is written again only when small chunks are merged, at most
  once for each power of `_FAN` of its chunk's size.
- A chunk's key is (id, nonce of the write), so two attempts at a batch never read each other's chunks.
- A chunk that is missing or damaged is an error; nothing is reset.
- Nothing is written before the whole turn is computed. `begin` and `undo` of TaskValues revert the writes for one failed tuple.
- Keys of a state are compared by type and value: 1, "1" and 1.0 are three keys.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.codec import CHUNK_MAGIC, decode_value, dumps, encode_value, frame, loads, unframe
from windowing.errors import CorruptStateError, DefinitionChangedError

__all__ = [
    "SEQUENCE",
    "TIMESTAMP",
    "Chunk",
    "ChunkStore",
    "StoredTask",
    "TaskValues",
    "decode_table",
    "encode_table",
    "with_order",
]


TIMESTAMP = "\x1fts"
SEQUENCE = "\x1fseq"
"""The two columns that order the rows of a chunk; always its last two columns, in stored chunks too, where their names may differ.
No user column has such a name (`windowed` refuses it; a topology cannot have it).
"""
_FAN = 8
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
_KEY = struct.Struct(">Q8s")

Load = Callable[[bytes], bytes | None]


def encode_table(table: pa.Table | pa.RecordBatch) -> bytes:
    """Return a table as an Arrow IPC stream with lz4 buffers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_LZ4) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def decode_table(data: bytes | None) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.BufferReader(data or b"")) as reader:
        return reader.read_all()


@dataclass(slots=True)
class Chunk:
    """A stored chunk as listed in the metadata; `live`: the [from, to) runs of rows that are still needed, in order."""

    id: int
    nonce: bytes
    rows: int
    live: list[list[int]]

    @property
    def key(self) -> bytes:
        """The chunk's key in the store."""
        return _KEY.pack(self.id, self.nonce)

    def plain(self) -> list[Any]:
        return [self.id, self.nonce.hex(), self.rows, self.live]

    @classmethod
    def of(cls, data: Sequence[Any]) -> Chunk:
        return cls(data[0], bytes.fromhex(data[1]), data[2], [list(run) for run in data[3]])


class ChunkStore:
    """The chunks of one task in one turn: reads the live rows, then collects what to write and drop.

    `what` names the task in errors.
    """

    def __init__(self, chunks: list[Chunk], load: Load, what: str) -> None:
        self._chunks = chunks
        self._load = load
        self._what = what
        self._stored: dict[int, pa.Table] = {}
        self.puts: dict[bytes, bytes] = {}
        self.drops: list[bytes] = []

    def read(self, columns: pa.Schema | None) -> pa.Table | None:
        """Return all live rows of all chunks with their timestamps and sequence numbers, None if there is no chunk.

        `columns`: the current schema of the rows (None: that of the newest chunk); a column that old chunks lack is null.
        """
        tables = {chunk.id: self._table(chunk) for chunk in self._chunks}
        if not tables:
            return None
        schema = tables[max(tables)].schema if columns is None else _with_order(columns)
        for chunk in self._chunks:
            self._stored[chunk.id] = self._fitted(tables[chunk.id], schema, self._name(chunk))
        return pa.concat_tables([_rows(self._stored[chunk.id], chunk.live) for chunk in self._chunks])

    def _table(self, chunk: Chunk) -> pa.Table:
        name = self._name(chunk)
        blob = self._load(chunk.key)
        if blob is None:
            raise CorruptStateError(
                f"{name} is missing from the state store; restore the checkpoint, nothing was reset"
            )
        try:
            table = decode_table(unframe(CHUNK_MAGIC, blob, name))
        except pa.ArrowInvalid as problem:
            raise CorruptStateError(f"{name} is no Arrow stream: {problem}; nothing was reset") from problem
        table = table.rename_columns([*table.column_names[:-2], TIMESTAMP, SEQUENCE])
        if table.num_rows != chunk.rows:
            raise CorruptStateError(f"{name} has {table.num_rows} rows, wanted {chunk.rows}; nothing was reset")
        return table

    def _name(self, chunk: Chunk) -> str:
        return f"{self._what}, chunk {chunk.id}-{chunk.nonce.hex()}"

    def _fitted(self, table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
        """Convert a table of an older schema to the current columns."""
        arrays = []
        for column in schema:
            index = table.schema.get_field_index(column.name)
            if index < 0:
                arrays.append(pa.nulls(table.num_rows, column.type))
            elif table.schema.field(index).type != column.type:
                raise DefinitionChangedError(
                    f"{name} holds column {column.name!r} as {table.schema.field(index).type}, now it is {column.type}; "
                    "start with a new checkpoint and a new output folder, or give the column its old type"
                )
            else:
                arrays.append(table.column(index))
        return pa.table(arrays, schema=schema)

    def write(
        self,
        fresh: pa.Table | None,
        held: np.ndarray[Any, Any],
        next_id: int,
        nonce: bytes,
        idle: np.ndarray[Any, Any] | None = None,
    ) -> list[Chunk]:
        """Store the rows of `fresh` that outlive the batch, given the sequence numbers still `held`; return the new chunks.

        idle: which rows of `read` were not loaded, and are kept whatever `held` says; None for none.
        """
        kept: list[tuple[Chunk, pa.Table]] = []
        first = 0
        for chunk in self._chunks:
            table = self._stored[chunk.id]
            runs = _runs(_still_needed(chunk, table, held, None if idle is None else idle[first:]))
            first += _live(chunk)
            if runs:
                kept.append((Chunk(chunk.id, chunk.nonce, chunk.rows, runs), table))
            else:
                self.drops.append(chunk.key)
        outliving = [] if fresh is None else [fresh.filter(pa.array(np.isin(_sequences(fresh), held)))]
        merged, alone = _to_merge(kept, sum(table.num_rows for table in outliving))
        self.drops.extend(chunk.key for chunk, _ in merged)
        chunks = [chunk for chunk, _ in alone]
        tables = [*(_rows(table, chunk.live) for chunk, table in merged), *outliving]
        rows = pa.concat_tables(tables) if tables else None
        if rows is not None and rows.num_rows:
            ordered = rows.sort_by([(TIMESTAMP, "ascending"), (SEQUENCE, "ascending")])
            chunk = Chunk(next_id, nonce, ordered.num_rows, [[0, ordered.num_rows]])
            self.puts[chunk.key] = frame(CHUNK_MAGIC, encode_table(ordered))
            chunks.append(chunk)
        return chunks


def with_order(rows: pa.Table, timestamps: pa.Array, sequences: Any) -> pa.Table:
    """Return rows with the two columns that order them in a chunk; every column may be null, whatever the source declares."""
    arrays = [*rows.columns, timestamps, pa.array(sequences, pa.int64())]
    return pa.table(arrays, schema=_with_order(rows.schema))


def _with_order(columns: pa.Schema) -> pa.Schema:
    ordering = [pa.field(TIMESTAMP, pa.int64()), pa.field(SEQUENCE, pa.int64())]
    return pa.schema([pa.field(each.name, each.type) for each in columns] + ordering)


def _to_merge(
    kept: list[tuple[Chunk, pa.Table]], fresh: int
) -> tuple[list[tuple[Chunk, pa.Table]], list[tuple[Chunk, pa.Table]]]:
    """Choose the chunks to merge with `fresh` new rows: the smallest ones, if there are `_FAN` of the same or a smaller tier.

    A tier is a power of `_FAN` live rows, so each row is written again at most once per tier.
    """
    by_size = sorted(kept, key=lambda item: _live(item[0]))
    take = 0
    size = fresh
    for count, (chunk, _) in enumerate(by_size, start=1):
        size += _live(chunk)
        peers = sum(1 for other, _ in by_size[:count] if _tier(_live(other)) == _tier(_live(chunk)))
        if peers >= _FAN - 1:
            take = count
    chosen = {chunk.id for chunk, _ in by_size[:take]}
    return [item for item in kept if item[0].id in chosen], [item for item in kept if item[0].id not in chosen]


def _tier(rows: int) -> int:
    tier = 0
    while rows >= _FAN:
        rows //= _FAN
        tier += 1
    return tier


def _live(chunk: Chunk) -> int:
    return sum(end - start for start, end in chunk.live)


def _sequences(table: pa.Table) -> np.ndarray[Any, Any]:
    numbers: np.ndarray[Any, Any] = table.column(SEQUENCE).to_numpy()
    return numbers


def _rows(table: pa.Table, runs: list[list[int]]) -> pa.Table:
    if len(runs) == 1:
        return table.slice(runs[0][0], runs[0][1] - runs[0][0])
    if not runs:
        return table.slice(0, 0)
    return pc.take(table, pa.array(np.concatenate([np.arange(start, end) for start, end in runs])))


def _still_needed(
    chunk: Chunk, table: pa.Table, held: np.ndarray[Any, Any], idle: np.ndarray[Any, Any] | None
) -> np.ndarray[Any, Any]:
    """Return which rows of a chunk are needed; `idle` begins with those of its live rows that are, whatever `held` says."""
    if idle is None:
        return np.isin(_sequences(table), held)
    live = np.concatenate([np.empty(0, np.int64), *(np.arange(start, end) for start, end in chunk.live)])
    needed = idle[: len(live)].copy()
    loaded = live[~needed]
    needed[~needed] = np.isin(_sequences(table)[loaded], held)
    found = np.zeros(table.num_rows, dtype=bool)
    found[live[needed]] = True
    return found


def _runs(mask: np.ndarray[Any, Any]) -> list[list[int]]:
    """Return the [from, to) runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [[int(start), int(end)] for start, end in edges.reshape(-1, 2)]


# -- StoredTask ------------------------------------------------------------------------------------------------------------------


STATE_FORMAT = 1
_WITH_KEYS = 2
"""The format of metadata with `keys`, which older versions refuse to read."""


@dataclass(slots=True)
class StoredTask:
    """The metadata of a task: the executor without its tuples, and the list of chunks that hold them.

    seen: the message ids of a bolt with message_id=, as `Deduplicator.plain` has them. keys: the states of the keys, which the
    snapshot then leaves out (idle_keys.py). deadlines: the options from which the deadlines of the keys were derived.
    """

    executor: bytes | None
    chunks: list[Chunk]
    next_id: int
    next_number: int
    seen: list[Any] = field(default_factory=list)
    keys: bytes | None = None
    deadlines: str = ""

    @classmethod
    def empty(cls) -> StoredTask:
        return cls(None, [], 0, 0)

    @classmethod
    def of(cls, body: bytes, what: str) -> StoredTask:
        size = int.from_bytes(body[:8], "big")
        head = loads(body[8 : 8 + size], what)
        if head["format"] not in (STATE_FORMAT, _WITH_KEYS):
            raise CorruptStateError(
                f"{what} has format {head['format']}, this library reads {STATE_FORMAT} and {_WITH_KEYS}; nothing was reset"
            )
        chunks = [Chunk.of(each) for each in head["chunks"]]
        found = cls(body[8 + size :], chunks, head["next_id"], head["next_number"], head.get("seen", []))
        if head["format"] == _WITH_KEYS:
            end = 8 + size + head["executor"]
            found.executor, found.keys, found.deadlines = body[8 + size : end], body[end:], head["deadlines"]
        return found

    def body(self) -> bytes:
        executor = self.executor or b""
        with_keys = {"executor": len(executor), "deadlines": self.deadlines}
        head = dumps(
            {
                "format": STATE_FORMAT if self.keys is None else _WITH_KEYS,
                "chunks": [chunk.plain() for chunk in self.chunks],
                "next_id": self.next_id,
                "next_number": self.next_number,
                **({"seen": self.seen} if self.seen else {}),
                **({} if self.keys is None else with_keys),
            }
        )
        return len(head).to_bytes(8, "big") + head + executor + (self.keys or b"")


# -- The key-value state of one task of a stateful bolt --------------------------------------------------------------------------


_MAGIC = b"WNDV"
_ABSENT: Any = object()


class TaskValues:
    """The State that `init_state` gets. `load` reads a value by key bytes; `scan` reads all values, in any order.

    >>> store = {}
    >>> values = TaskValues(store.get, store.items, "state of bolt 'count', task 0")
    >>> values.put("storm", 2), values.get("storm"), values.get("spark", 0)
    (None, 2, 0)
    >>> "storm" in values, list(values.items())
    (True, [('storm', 2)])
    >>> [len(values.puts), values.drops]
    [1, []]

    A returned value that is changed in place (a list, for example) is not written; call `put`. Cost: one round trip to the JVM for
    the first read of a key in a batch, and one for each key written; `items` reads the whole state of the task.
    """

    def __init__(
        self,
        load: Callable[[bytes], bytes | None],
        scan: Callable[[], Iterable[tuple[bytes, bytes]]],
        what: str,
    ) -> None:
        self._load, self._scan, self._what = load, scan, what
        self._stored: dict[bytes, Any] = {}
        self._changed: dict[bytes, Any] = {}
        self._journal: list[tuple[bytes, Any]] = []

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a copy of the value of a key, `default` if there is none."""
        found = self._found(encode_value(key))
        return default if found is _ABSENT else copy.deepcopy(found)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key. Raises TypeError for a value that is not plain data."""
        encode_value(value)
        self._set(encode_value(key), copy.deepcopy(value))

    def delete(self, key: Any) -> Any:
        """Remove a key; return the value that it had, or None."""
        name = encode_value(key)
        found = self._found(name)
        if found is _ABSENT:
            return None
        self._set(name, _ABSENT)
        return found

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield copies of all keys and values as of the first step, in the order of the encoded keys."""
        over = dict(self._changed)
        under = dict(self._scan())
        for name in sorted({*over, *under}):
            value = over[name] if name in over else self._decoded(under[name])
            if value is not _ABSENT:
                yield decode_value(name, f"a key in the {self._what}"), copy.deepcopy(value)

    def __contains__(self, key: object) -> bool:
        return self._found(encode_value(key)) is not _ABSENT

    def begin(self) -> None:
        """Begin a step that can be undone."""
        self._journal.clear()

    def undo(self) -> None:
        """Revert all writes since `begin`."""
        while self._journal:
            name, before = self._journal.pop()
            if before is None:
                del self._changed[name]
            else:
                (self._changed[name],) = before

    @property
    def puts(self) -> dict[bytes, bytes]:
        """The values to write, by key bytes, in the order of the keys."""
        changed = self._changed
        kept = sorted(name for name, value in changed.items() if value is not _ABSENT)
        return {name: frame(_MAGIC, encode_value(changed[name])) for name in kept}

    @property
    def drops(self) -> list[bytes]:
        """The keys to remove, in order."""
        return sorted(name for name, value in self._changed.items() if value is _ABSENT)

    def _found(self, name: bytes) -> Any:
        if name in self._changed:
            return self._changed[name]
        if name not in self._stored:
            blob = self._load(name)
            self._stored[name] = _ABSENT if blob is None else self._decoded(blob)
        return self._stored[name]

    def _decoded(self, blob: bytes) -> Any:
        return decode_value(unframe(_MAGIC, blob, self._what), self._what)

    def _set(self, name: bytes, value: Any) -> None:
        self._journal.append((name, (self._changed[name],) if name in self._changed else None))
        self._changed[name] = value
