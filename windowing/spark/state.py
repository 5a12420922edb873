"""The tuples of a windowed task between two batches: chunks of Arrow IPC, written once, dropped when nothing in them is needed.

    metadata   chunks: [id, nonce, sequences, live]      one entry a chunk; `live` are runs of rows still needed
    chunk      frame( Arrow IPC, lz4: the columns of the rows, their timestamps, their numbers )     in (timestamp, arrival) order

Laws
- A batch writes what arrived in it *and* outlives it, never a tuple again but when small chunks are merged (each tuple then at most
  once for each power of `_FAN` of its chunk's size).
- A chunk's key is (id, nonce of the write): two attempts of a batch never mistake each other's chunks.
- A chunk that the metadata names and the store lacks, or that is damaged, is an error; nothing is reset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.errors import CorruptStateError, DefinitionChangedError
from windowing.spark.codec import CHUNK_MAGIC, frame, unframe

__all__ = ["SEQUENCE", "TIMESTAMP", "Chunk", "ChunkStore", "decode_table", "encode_table", "with_order"]

TIMESTAMP = "\x1fts"
SEQUENCE = "\x1fseq"
"""The two columns that order the rows of a chunk; always its last two, whatever they are called where they were stored. No column
of a user's is called so (`windowed` refuses it, a topology has no such names).
"""
_FAN = 8
_KEY = struct.Struct(">Q8s")

Load = Callable[[bytes], bytes | None]


def encode_table(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream with lz4 buffers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_table(data: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        return reader.read_all()


@dataclass(slots=True)
class Chunk:
    """One stored chunk as the metadata knows it; `live` are [from, to) runs of rows, in order."""

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
    """The chunks of one task within one turn: read what lives, then say what to write and drop.

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

        `columns` is the schema of the rows now (None: the newest chunk's); a column that old chunks lack is null in their rows.
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
        """Give a table of an older schema the columns of now."""
        arrays = []
        for field in schema:
            index = table.schema.get_field_index(field.name)
            if index < 0:
                arrays.append(pa.nulls(table.num_rows, field.type))
            elif table.schema.field(index).type != field.type:
                raise DefinitionChangedError(
                    f"{name} holds column {field.name!r} as {table.schema.field(index).type}, now it is {field.type}; "
                    "start with a new checkpoint and a new output folder, or give the column its old type"
                )
            else:
                arrays.append(table.column(index))
        return pa.table(arrays, schema=schema)

    def write(self, fresh: pa.Table | None, held: np.ndarray[Any, Any], next_id: int, nonce: bytes) -> list[Chunk]:
        """Store the rows of `fresh` that outlive the batch, given the sequence numbers still `held`; return the chunks of now."""
        kept: list[tuple[Chunk, pa.Table]] = []
        for chunk in self._chunks:
            table = self._stored[chunk.id]
            runs = _runs(np.isin(_sequences(table), held))
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
    """Return rows with the two columns that order them in a chunk; every column may be null, whatever the source said."""
    arrays = [*rows.columns, timestamps, pa.array(sequences, pa.int64())]
    return pa.table(arrays, schema=_with_order(rows.schema))


def _with_order(columns: pa.Schema) -> pa.Schema:
    ordering = [pa.field(TIMESTAMP, pa.int64()), pa.field(SEQUENCE, pa.int64())]
    return pa.schema([pa.field(each.name, each.type) for each in columns] + ordering)


def _to_merge(
    kept: list[tuple[Chunk, pa.Table]], fresh: int
) -> tuple[list[tuple[Chunk, pa.Table]], list[tuple[Chunk, pa.Table]]]:
    """Choose the chunks to write again together with `fresh` new rows: the smallest, if there are `_FAN` of no larger tier.

    A tier is a power of `_FAN` of live rows; so each row is written again at most once a tier.
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


def _runs(mask: np.ndarray[Any, Any]) -> list[list[int]]:
    """Return the [from, to) runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [[int(start), int(end)] for start, end in edges.reshape(-1, 2)]
