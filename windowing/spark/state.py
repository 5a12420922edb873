"""The state of a task in Spark's state store: the metadata of its windows, their tuples in chunks, the values of a stateful bolt.

    metadata   size of the head | head: format, chunks, next_id, next_number, seen, ... | snapshot of the executor      StoredTask
               (| the keys of `key=`: key in typed JSON, KeyState.numbers or the panes of counts, deadline, one row for each key;
               of panes of time one row for each cell: Arrow IPC, zstd or lz4, if the head has "executor", its size)
    chunks     id, nonce -> frame( Arrow IPC, lz4: columns, timestamps, numbers ), by (timestamp, arrival)               ChunkStore
               "ids", channel, number -> frame( block of message ids ), to which the head refers                        StoredTask
    values     key -> frame( value ), both plain data in typed JSON                                                      TaskValues

The executor is decoded only after the rows that it refers to are read. The head lists the chunks: id, nonce, number of rows, and
the runs of rows that are still needed. A turn loads only those keys that get a tuple, or whose deadline has come; their tuples,
with two Durations, only once a window is due (windows/manager.py):

                  +-- keys of the batch, keys that are due --> machine --+
    stored keys --+                                                      +--> stored keys
                  +-- all other keys: copied by Arrow -------------------+

Laws
- The rows and the state of a turn are those of a turn that loads all keys. A turn costs under half a microsecond for an idle key
  with a row; idle keys are not decoded if the turn needs few keys.
- A batch writes the tuples that arrived in it *and* outlive it. A tuple is written again only when small chunks are merged, or when
  few rows of its chunk are still needed: at most once for each power of `_FAN` by which the chunk grows or shrinks.
- The stored rows are at most `_FAN` times those that are needed, since a batch reads them all.
- A chunk's key is (id, nonce of the write), so two attempts at a batch never read each other's chunks.
- A chunk that is missing or damaged is an error; nothing is reset.
- Nothing is written before the whole turn is computed. `begin` and `undo` of TaskValues revert the writes for one failed tuple.
- Keys of a state are compared by type and value: 1, "1" and 1.0 are three keys.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from os import urandom
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.codec import (
    CHUNK_MAGIC,
    META_MAGIC,
    decode_value,
    dumps,
    encode_text,
    encode_value,
    frame,
    loads,
    unframe,
)
from windowing.columnar import Keys
from windowing.columnar.rows import PART_BYTES, cut, decode_table, encode_table, values_of
from windowing.errors import BoltError, CorruptStateError, DefinitionChangedError
from windowing.schema.rows import record_fields, record_of
from windowing.topology.state import EncodedState
from windowing.windows.deduplicator import Deduplicator, block_names
from windowing.windows.events import values_at
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.key_state import SETTLED, KeyProgress, KeyState, StoredKeys, StoredTuples, numbers_of
from windowing.windows.manager import StoringMachine
from windowing.windows.panes import PaneCells

if TYPE_CHECKING:
    from windowing.spark.rows import RowFormat

TIMESTAMP = "\x1fts"
SEQUENCE = "\x1fseq"
"""The two columns that order the rows of a chunk; always its last two columns, in stored chunks too, where their names may differ.
No user column has such a name (`windowed` refuses it; a topology cannot have it).
"""
_FAN_BITS = 3
_FAN = 1 << _FAN_BITS
_KEY = struct.Struct(">Q8s")

Load = Callable[[bytes], bytes | None]
NOTHING: dict[bytes, bytes] = {}
"""What is stored for a new task."""


@dataclass(slots=True, eq=False)
class Chunk:
    """A stored chunk as listed in the metadata; `live`: the positions of the rows that are still needed, ascending. table: all its
    rows, once they are read.
    """

    id: int
    nonce: bytes
    rows: int
    live: np.ndarray[Any, Any]
    table: pa.Table = None

    @property
    def key(self) -> bytes:
        return _KEY.pack(self.id, self.nonce)

    def live_rows(self) -> pa.Table:
        first, count = self.live[0], len(self.live)
        if self.live[-1] - first == count - 1:
            return self.table.slice(first, count)
        return self.table.take(pa.array(self.live))


@dataclass
class ChunkStore:
    """The chunks of one task in one turn: reads the live rows, then collects what to write and drop, by key.

    `what` names the task in errors. `ChunkStore()` is that of a new task.
    """

    chunks: list[Chunk] = field(default_factory=list)
    load: Load = NOTHING.get
    what: str = ""
    puts: dict[bytes, bytes] = field(default_factory=dict)
    drops: list[bytes] = field(default_factory=list)

    def read(self, columns: pa.Schema | None) -> pa.Table | None:
        """Return all live rows of all chunks with their timestamps and sequence numbers, None if there is no chunk.

        `columns`: the current schema of the rows (None: that of the newest chunk); a column that old chunks lack is null.
        """
        if not self.chunks:
            return None
        names = [f"{self.what}, chunk {chunk.id}-{chunk.nonce.hex()}" for chunk in self.chunks]
        for chunk, name in zip(self.chunks, names, strict=True):
            blob = self.load(chunk.key)
            if blob is None:
                raise CorruptStateError(
                    f"{name} is missing from the state store; restore the checkpoint, nothing was reset"
                )
            try:
                table = decode_table(unframe(CHUNK_MAGIC, blob, name))
            except pa.ArrowInvalid as problem:
                raise CorruptStateError(f"{name} is no Arrow stream: {problem}; nothing was reset") from problem
            if table.num_rows != chunk.rows:
                raise CorruptStateError(f"{name} has {table.num_rows} rows, wanted {chunk.rows}; nothing was reset")
            chunk.table = table.rename_columns([*table.column_names[:-2], TIMESTAMP, SEQUENCE])
        newest = max(self.chunks, key=attrgetter("id"))
        schema = _ordered(list(newest.table.schema)[:-2] if columns is None else columns)
        for chunk, name in zip(self.chunks, names, strict=True):
            if chunk.table.schema != schema:
                chunk.table = _fitted(chunk.table, schema, name)
        return pa.concat_tables([chunk.live_rows() for chunk in self.chunks])

    def write(
        self,
        fresh: pa.Table | None,
        held: np.ndarray[Any, Any],
        next_id: int,
        idle: np.ndarray[Any, Any] | None = None,
    ) -> list[Chunk]:
        """Store the rows of `fresh` that outlive the batch, given the sequence numbers still `held`; return the new chunks.

        idle: which rows of `read` were not loaded, and are kept whatever `held` says; None for none.
        """
        kept: list[Chunk] = []
        first = 0
        for chunk in self.chunks:
            live = chunk.live
            needed = np.zeros(len(live), dtype=bool) if idle is None else idle[first : first + len(live)].copy()
            first += len(live)
            needed[~needed] = np.isin(chunk.table.column(SEQUENCE).to_numpy()[live[~needed]], held)
            if needed.any():
                kept.append(replace(chunk, live=live[needed]))
            else:
                self.drops.append(chunk.key)
        merged = _to_merge(kept)
        self.drops.extend(chunk.key for chunk in kept if chunk.id in merged)
        chunks = [chunk for chunk in kept if chunk.id not in merged]
        tables = [chunk.live_rows() for chunk in kept if chunk.id in merged]
        if fresh is not None:
            tables.append(fresh.filter(pa.array(np.isin(fresh.column(SEQUENCE).to_numpy(), held))))
        rows, nonce = pa.concat_tables(tables) if tables else None, urandom(8)
        if rows is not None and rows.num_rows:
            ordered = rows.sort_by([(TIMESTAMP, "ascending"), (SEQUENCE, "ascending")])
            for id, part in enumerate(cut(ordered), start=next_id):
                chunk = Chunk(id, nonce, part.num_rows, np.arange(part.num_rows))
                self.puts[chunk.key] = frame(CHUNK_MAGIC, encode_table(part))
                chunks.append(chunk)
        return chunks


def _fitted(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Convert the rows of a chunk to the current columns."""
    arrays = []
    for column in schema:
        index = table.schema.get_field_index(column.name)
        if index < 0:
            arrays.append(pa.nulls(table.num_rows, column.type))
        elif plain_type(table.schema.field(index).type) != column.type:
            raise DefinitionChangedError(
                f"{name} holds column {column.name!r} as {table.schema.field(index).type}, now it is {column.type}; "
                "start with a new checkpoint and a new output folder, or give the column its old type"
            )
        else:
            arrays.append(table.column(index).cast(column.type))
    return pa.table(arrays, schema=schema)


def with_order(rows: pa.Table, timestamps: pa.Array, sequences: pa.Array) -> pa.Table:
    """Return rows with the two columns that order them in a chunk."""
    return pa.table([*rows.columns, timestamps, sequences], schema=_ordered(rows.schema))


def _ordered(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of a chunk with these columns; every column may be null, whatever the source declares."""
    ordering = pa.field(TIMESTAMP, pa.int64()), pa.field(SEQUENCE, pa.int64())
    return pa.schema([pa.field(each.name, plain_type(each.type)) for each in fields] + [*ordering])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the one Arrow type of rows for a type of Spark, which has several in Arrow: nested values may be null or not, and with
    `spark.sql.execution.arrow.useLargeVarTypes` texts and bytes are large ones. Spark's nested types are lists, maps and structs.
    """
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if not pa.types.is_nested(kind):
        return kind
    inner = [kind.field(at) for at in range(kind.num_fields)]
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    inner = [each.with_type(plain_type(each.type)).with_nullable(True) for each in inner]
    if pa.types.is_map(kind):
        return pa.map_(inner[0].with_nullable(False), inner[1])
    return pa.struct(inner) if pa.types.is_struct(kind) else pa.list_(*inner)


def _to_merge(chunks: Sequence[Chunk]) -> set[int]:
    """Choose the chunks to merge, by id: the smallest ones, if with the new one they are `_FAN` of the same or a smaller tier; and
    those of which less than a part of `_FAN` is needed.

    A tier is a power of `_FAN` live rows, so each row is written again at most once per tier. Chunks whose live rows take more than
    PART_BYTES / _FAN stay alone, because their merge would have to be cut again.
    """
    small = [each for each in chunks if each.table.nbytes * len(each.live) <= each.rows * PART_BYTES // _FAN]
    by_size = sorted(small, key=lambda chunk: len(chunk.live))
    tiers = [(len(chunk.live).bit_length() - 1) // _FAN_BITS for chunk in by_size]  # logarithms to the base _FAN
    take = 0
    for end, tier in enumerate(tiers, start=1):
        if tiers[:end].count(tier) >= _FAN - 1:
            take = end
    sparse = [chunk for chunk in chunks if len(chunk.live) * _FAN < chunk.rows]
    return {chunk.id for chunk in (*by_size[:take], *sparse)}


_FEW_RUNS = 64


def _runs(positions: np.ndarray[Any, Any], rows: int) -> list[list[int]] | str:
    """Return the ascending positions, one at least, of some rows as [from, to) runs; many short runs as the text of a bit a row."""
    ends = np.flatnonzero(np.diff(positions, append=-1) != 1)
    if len(ends) > max(_FEW_RUNS, rows // 64):
        bits = np.zeros(rows, dtype=bool)
        bits[positions] = True
        return b64encode(np.packbits(bits).tobytes()).decode()
    starts = np.concatenate(([0], ends[:-1] + 1))
    runs: list[list[int]] = np.column_stack((positions[starts], positions[ends] + 1)).tolist()
    return runs


def _in_bits(text: str, rows: int) -> np.ndarray[Any, Any]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(b64decode(text), np.uint8), count=rows))


# -- StoredTask ------------------------------------------------------------------------------------------------------------------


STATE_FORMAT = 1
_WITH_KEYS = 2
"""The format of metadata with `keys`, which older versions refuse to read."""
_COMPACT = 3
"""The format of metadata that refers to blocks of message ids, or has live rows as bits; with or without `keys`."""
_IDS_MAGIC = b"WNDI"
_IDS = b"ids"
"""What the keys of blocks of message ids begin with; those of chunks begin with a number that is never so great."""


def holds_ids(key: bytes) -> bool:
    """Return whether a key of the map of chunks is that of a block of message ids."""
    return key.startswith(_IDS)


def block_key(channel: Any, number: int) -> bytes:
    """Return the key of a block of message ids."""
    return _IDS + encode_value((channel, number))


def stored_block(ids: list[int]) -> bytes:
    """Return the stored form of a block, given the data of it that `Deduplicator.stored` returns."""
    return frame(_IDS_MAGIC, dumps(ids))


@dataclass(slots=True)
class StoredTask:
    """The metadata of a task: the executor without its tuples, and the list of chunks that hold them.

    seen: the message ids of a bolt with message_id=, as `Deduplicator.stored` has them. keys: the states of the keys, which the
    snapshot then leaves out (`stored_keys`). deadlines: the options from which the deadlines of the keys were derived. seen_of: the
    field of the message ids; empty in the state of an older version, whose definition has the field. failed: the edges (acks.py) of
    the tuples that have failed and not expired.
    """

    executor: bytes | None = None
    chunks: list[Chunk] = field(default_factory=list)
    next_id: int = 0
    next_number: int = 0
    seen: list[Any] = field(default_factory=list)
    keys: bytes | None = None
    deadlines: str = ""
    seen_of: str = ""
    failed: Collection[int] = ()

    def restore_ids(self, known: Deduplicator, field: str, load: Load, what: str) -> None:
        """Restore the message ids of a field: none if those of another field were remembered last."""

        def block(channel: Any, number: int) -> list[int]:
            named = f"{what}, block {number} of the message ids of {channel}"
            blob = load(block_key(channel, number))
            if blob is None:
                raise CorruptStateError(
                    f"{named} is missing from the state store; restore the checkpoint, nothing was reset"
                )
            ids: list[int] = loads(unframe(_IDS_MAGIC, blob, named), named)
            return ids

        known.restore(self.seen if self.seen_of in ("", field) else [], load=block)

    @classmethod
    def of(cls, metadata: bytes | None, what: str) -> StoredTask:
        """Return the metadata that `stored` made, or that of a new task. Raises CorruptStateError; `what` names the task in it."""
        if metadata is None:
            return cls()
        body = unframe(META_MAGIC, metadata, what)
        size = int.from_bytes(body[:8], "big")
        head, executor, keys = loads(body[8 : 8 + size], what), body[8 + size :], None
        if head["format"] not in (STATE_FORMAT, _WITH_KEYS, _COMPACT):
            raise CorruptStateError(
                f"{what} has format {head['format']}, this library reads {STATE_FORMAT} to {_COMPACT}; nothing was reset"
            )
        if "executor" in head:
            executor, keys = executor[: head["executor"]], executor[head["executor"] :]
        chunks = [
            Chunk(
                id,
                bytes.fromhex(nonce),
                rows,
                _in_bits(live, rows) if type(live) is str else np.concatenate([np.arange(*run) for run in live]),
            )
            for id, nonce, rows, live in head["chunks"]
        ]
        numbers = head["next_id"], head["next_number"]
        seen, seen_of = head.get("seen", []), head.get("seen_of", "")
        return cls(executor, chunks, *numbers, seen, keys, head.get("deadlines", ""), seen_of, head.get("failed", ()))

    def stored(self) -> bytes:
        executor = self.executor or b""
        with_keys = {"executor": len(executor), "deadlines": self.deadlines}
        chunks = [[each.id, each.nonce.hex(), each.rows, _runs(each.live, each.rows)] for each in self.chunks]
        is_compact = any(type(live) is str for *_, live in chunks) or (self.seen and block_names(self.seen))
        former = STATE_FORMAT if self.keys is None else _WITH_KEYS
        head = dumps(
            {
                "format": _COMPACT if is_compact else former,
                "chunks": chunks,
                "next_id": self.next_id,
                "next_number": self.next_number,
                **({"seen": self.seen, "seen_of": self.seen_of} if self.seen else {}),
                **({"failed": sorted(self.failed)} if self.failed else {}),
                **({} if self.keys is None else with_keys),
            }
        )
        return frame(META_MAGIC, len(head).to_bytes(8, "big") + head + executor + (self.keys or b""))


# -- The keys of a windowed task -------------------------------------------------------------------------------------------------


_KEY_TEXT, _DEADLINE = pa.field("key", pa.large_string()), pa.field("deadline", pa.int64())
_QUEUES = pa.schema([_KEY_TEXT, *(pa.field(name, pa.int64()) for name in SETTLED), _DEADLINE])
_PANES = pa.schema([_KEY_TEXT, pa.field("panes", pa.large_string()), _DEADLINE])
"""panes: the snapshot of a PaneKeyState without its key, in typed JSON, as a list of the values of `_IN_PANES`."""
_CELLS = pa.schema([_KEY_TEXT, pa.field("end", pa.int64()), pa.field("ordinal", pa.int64()), _DEADLINE])
"""A cell of a TimePaneManager, followed by a column for each place in its partials (`_accumulators`); all cells of a key have its
deadline.
"""
_IN_PANES = ("ordinal", "mark", "horizon"), ("base", "newest", "covered", "cells", "timestamps", "values")
_TIGHT_BYTES = 1 << 16
"""From here on keys are stored by zstd, in half the bytes of lz4; for fewer its start costs ten times as much as all of lz4."""
_NEVER = int(np.iinfo(np.int64).max)
"""The deadline of a key without one, and of one with a later deadline, which no watermark reaches."""


def stored_keys(idle: pa.Table | None, loaded: Sequence[Any]) -> bytes:
    """Return the keys to store: those that stayed idle, as they are, and those that were loaded (`StoringMachine.loaded`).

    Raises TypeError for an accumulator that is not plain data.
    """
    tables = [] if idle is None or not idle.num_rows else [idle]
    if loaded and isinstance(loaded[0], PaneCells):
        tables.append(_table_of_cells(loaded))
        tables = _alike(tables)
    elif loaded:
        states = [numbers_of(state) if isinstance(state, KeyState) else (_panes_text(state),) for state in loaded]
        deadlines = [None if state.deadline is None else min(state.deadline, _NEVER) for state in loaded]
        columns = [[encode_text(state.key) for state in loaded], *zip(*states, strict=True), deadlines]
        schema = _QUEUES if isinstance(loaded[0], KeyState) else _PANES
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        tables.append(pa.table(arrays, schema=schema))
    table = pa.concat_tables(tables).combine_chunks() if tables else _QUEUES.empty_table()
    return encode_table(table, "zstd" if table.nbytes > _TIGHT_BYTES else "lz4")


def _panes_text(state: KeyProgress) -> str:
    saved = state.snapshot(True)
    own, inner = _IN_PANES
    return encode_text([*map(saved.__getitem__, own), *map(saved["panes"].__getitem__, inner)], record_fields)


def _table_of_cells(panes: Sequence[PaneCells]) -> pa.Table:
    def joined(name: str) -> list[Any]:
        return list(chain.from_iterable(map(attrgetter(name), panes)))

    ends = np.repeat([pane.end for pane in panes], [len(pane.keys) for pane in panes])
    own = [pa.array(map(encode_text, joined("keys")), pa.large_string()), pa.array(ends), pa.array(joined("ordinals"))]
    partials = zip(*(pane.columns for pane in panes), strict=True)
    columns = [_accumulators(list(chain.from_iterable(of_panes))) for of_panes in partials]
    names = [*_CELLS.names, *map(str, range(len(columns)))]
    return pa.table([*own, pa.array(joined("deadlines"), pa.int64()), *columns], names=names)


def _accumulators(values: Sequence[Any]) -> pa.Array:
    """Return accumulators as whole numbers or floats, if all are the same kind of number, else in typed JSON; None as null."""
    kinds = {*map(type, values)} - {type(None)}
    if kinds <= {int} or kinds == {float}:
        kind = pa.float64() if float in kinds else pa.int64() if kinds else pa.null()
        with suppress(OverflowError):  # a sum beyond 64 bits
            return pa.array(values, kind)
    return _as_text(values)


def _as_text(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if each is None else encode_text(each, record_fields) for each in values], pa.large_string())


def _alike(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables with the same columns: accumulators of two kinds become texts in both, those without any value follow."""
    if len({table.schema for table in tables}) < 2:
        return list(tables)
    columns = []
    for parts in zip(*(table.columns for table in tables), strict=True):
        kinds = {part.type for part in parts} - {pa.null()}
        if len(kinds) > 1:
            texts = pa.large_string()
            kinds = {texts}
            parts = tuple(part if part.type == texts else _as_text(part.to_pylist()) for part in parts)
        columns.append([part.cast(kind) for part in parts for kind in kinds] if kinds else list(parts))
    return [pa.table(list(of_table), names=tables[0].column_names) for of_table in zip(*columns, strict=True)]


def with_keys(manager: dict[str, Any], stored: bytes, what: str) -> None:
    """Complete the snapshot of a machine with all stored keys, in order of first arrival, without their tuples."""
    table = _key_table(stored, what)
    states = _states(table, _decoded(table.column("key"), what), what)
    if "tracks" in manager:
        manager["tracks"] = sorted(states, key=itemgetter("ordinal"))
        return
    ordinals = {key: number for pane in states for key, number in zip(pane.keys, pane.ordinals, strict=True)}
    manager["keys"] = sorted(ordinals, key=ordinals.__getitem__)
    cells = {pane.end: [pane.keys, pane.columns] for pane in states}
    manager["panes"] = [[end, shown, *cells[end]] for end, shown, _ in manager["panes"]]


def _key_table(stored: bytes, what: str) -> pa.Table:
    try:
        table = decode_table(stored)
    except pa.ArrowInvalid as problem:
        raise CorruptStateError(f"{what} has keys that are no Arrow stream: {problem}; nothing was reset") from problem
    names = table.column_names
    wanted = _PANES if "panes" in names else _CELLS if "end" in names else _QUEUES
    if not {*wanted.names} <= {*names}:
        raise CorruptStateError(
            f"{what} has keys with the columns {', '.join(names)}, wanted {', '.join(wanted.names)}; nothing was reset"
        )
    return table


def _decoded(column: pa.ChunkedArray, what: str) -> list[Any]:
    texts = ",".join(column.fill_null("null").to_pylist())
    values: list[Any] = decode_value(f"[{texts}]".encode(), what, record_of)
    return values


def _states(table: pa.Table, keys: Sequence[Any], what: str) -> list[Any]:
    """Return the states of keys as a machine loads them (`StoredKeys`), a row for each or, of panes of time, for each pane."""
    if "end" in table.column_names:
        return list(_panes_of(table, keys, what))
    if "panes" in table.column_names:
        own, inner = _IN_PANES
        split = ((values[: len(own)], values[len(own) :]) for values in _decoded(table.column("panes"), what))
        return [
            {"key": key, **dict(zip(own, of_key, strict=True)), "panes": dict(zip(inner, panes, strict=True))}
            for key, (of_key, panes) in zip(keys, split, strict=True)
        ]
    states: list[dict[str, Any]] = table.select(SETTLED).to_pylist()
    for state, key in zip(states, keys, strict=True):
        state |= {"key": key, "last": None, "last_window": [state.pop("last_low"), state.pop("last_high")]}
    return states


def _panes_of(cells: pa.Table, keys: Sequence[Any], what: str) -> Iterator[PaneCells]:
    """Yield cells pane by pane, in ascending order."""
    ends = cells.column("end").to_numpy()
    if (ends[1:] < ends[:-1]).any():
        order = np.argsort(ends, kind="stable")
        cells, keys, ends = cells.take(pa.array(order)), values_at(keys, order.tolist()), ends[order]
    partials = cells.columns[len(_CELLS) :]
    columns = [
        _decoded(column, what) if pa.types.is_large_string(column.type) else values_of(column) for column in partials
    ]
    ordinals = values_of(cells.column("ordinal"))
    bounds = [*np.flatnonzero(np.diff(ends, prepend=ends[:1] - 1)).tolist(), len(ends)]
    for low, high in pairwise(bounds):
        yield PaneCells(int(ends[low]), keys[low:high], ordinals[low:high], [column[low:high] for column in columns])


class StoredIdleKeys:
    """The IdleKeys of a task. rows: the tuples of all keys (`ChunkStore.read`), None for none; columns: the keys of the rows. Their
    types are `codable`, so keys are equal exactly if they are stored as the same text.

    payloads: makes the tuples of rows. what: names the task in errors.
    """

    def __init__(
        self,
        stored: bytes,
        rows: pa.Table | None,
        columns: Keys | None,
        payloads: Callable[[pa.Table], Sequence[Any]],
        what: str,
    ) -> None:
        self._table = _key_table(stored, what)
        self._rows, self._columns, self._payloads, self._what = rows, columns, payloads, what
        self._deadlines = self._table.column("deadline").fill_null(_NEVER).to_numpy()
        self._idle = np.ones(self._table.num_rows, dtype=bool)
        self.idle_rows = np.ones(0 if rows is None else rows.num_rows, dtype=bool)
        """Which rows are of idle keys, or not loaded yet."""

    def of(self, keys: Iterable[Any]) -> StoredKeys | None:
        distinct = keys.coded()[1] if isinstance(keys, Keys) else list(dict.fromkeys(keys))
        texts = pa.array(map(encode_text, distinct), pa.large_string())
        return self._loaded(self._idle & pc.is_in(self._table.column("key"), value_set=texts).to_numpy())

    def due(self, until: int | None) -> StoredKeys | None:
        return self._loaded(self._idle if until is None else self._idle & (self._deadlines <= until))

    def left(self) -> pa.Table:
        """Return the keys that are idle still."""
        return self._table if self._idle.all() else self._table.filter(pa.array(self._idle))

    def _loaded(self, chosen: np.ndarray[Any, Any]) -> StoredKeys | None:
        """Return the chosen idle keys; they are not idle any more."""
        if not chosen.any():
            return None
        self._idle = self._idle & ~chosen
        table = self._table.filter(pa.array(chosen))
        states = _states(table, _decoded(table.column("key"), self._what), self._what)
        return StoredKeys(states, values_of(table.column("deadline")))

    def tuples(self, keys: Sequence[Any]) -> StoredTuples | None:
        if self._rows is None:
            return None
        assert self._columns is not None
        positions = self._columns.among(keys)
        self.idle_rows[positions] = False
        rows = self._rows.take(pa.array(positions))
        numbers, stamps = rows.column(SEQUENCE).to_pylist(), rows.column(TIMESTAMP).to_pylist()
        return list(self._columns.take(positions)), numbers, stamps, self._payloads(rows)


# -- The windows of a task --------------------------------------------------------------------------------------------------------


class StoredWindows:
    """The windows of one task in one turn: `restore` them, let the driver add tuples and advance, `write` them.

    executor: a new one, `sequenced`. format: the form of its rows in chunks. stored: what the last turn wrote. what: names the task
    in errors. The snapshot of an executor leaves its tuples out if the machine numbers them, else it names them by number.
    """

    def __init__(
        self, executor: WindowedBoltExecutor, format: RowFormat, stored: StoredTask, load: Load, what: str
    ) -> None:
        self._executor, self._format, self._stored, self._what = executor, format, stored, what
        self._config, manager = executor.config, executor.manager
        self.chunks = ChunkStore(stored.chunks, load, what)
        # Only the built-in windows number their tuples; the snapshots of other machines refer to their rows.
        self._numbered = manager.numbered
        self._takes_columns = manager.takes_columns
        self.payloads_of = format.in_columns if manager.takes_columns else format.payloads
        # Windows by key are stored by key, so that a turn loads only the keys that it needs.
        self._keyed = manager if self._config.key is not None and isinstance(manager, StoringMachine) else None
        # The options from which deadlines are derived: stored deadlines count only under the same options.
        config = self._config
        timed = config.length, config.slide, config.offset_ms, config.lateness.value, config.event_time
        self._deadlines = "" if self._keyed is None else repr((*timed, config.repeat, config.key_ttl_ms))
        self._idle: StoredIdleKeys | None = None
        self._row_of: dict[int, Any] = {}  # keeps the rows, whose ids are keys of the next one
        self._number_of: dict[int, int] = {}
        self._next_number = 0

    def restore(self, held: pa.Table | None, table: pa.Table | None) -> None:
        """Restore the executor. held: the rows that `chunks.read` has returned; table: those that arrive in the turn, if any do.

        Raises CorruptStateError.
        """
        format, stored, key = self._format, self._stored, self._config.key
        if stored.executor is None:
            return
        if held is not None:
            held = with_order(format.kept(held), held.column(TIMESTAMP), held.column(SEQUENCE))
        self._idle = self._idle_keys(held, table)
        numbers: list[int] = []
        payloads: Sequence[Any] = ()
        if held is not None and self._idle is None:
            numbers, payloads = held.column(SEQUENCE).to_pylist(), self.payloads_of(held)
            if self._numbered is None:
                self._row_of = dict(zip(numbers, payloads, strict=True))
                self._number_of = {id(payload): number for number, payload in self._row_of.items()}
        snapshot = loads(stored.executor, self._what, self._row)
        if stored.keys is not None and self._idle is None:
            with_keys(snapshot["manager"], stored.keys, self._what)
        self._executor.restore(snapshot)
        self._next_number = stored.next_number
        if self._keyed is not None and self._idle is not None:
            self._keyed.idle = self._idle
        elif self._numbered is not None and held is not None:
            keys = None if key is None else format.keys(held, payloads, key)
            self._numbered.load(keys, numbers, held.column(TIMESTAMP).to_pylist(), payloads)

    @property
    def is_loaded(self) -> bool:
        """Whether the executor has all keys, and all tuples."""
        return self._idle is None or not (self._idle.left().num_rows or self._idle.idle_rows.any())

    def _idle_keys(self, held: pa.Table | None, table: pa.Table | None) -> StoredIdleKeys | None:
        """Return the stored keys, of which the machine loads those that it needs; None if it has to load all."""
        stored, key = self._stored, self._config.key
        if stored.keys is None or key is None or self._keyed is None or stored.deadlines != self._deadlines:
            return None
        rows = table if held is None else held
        columns = None if rows is None else self._format.key_columns(rows, key)
        if rows is not None and columns is None:
            return None
        return StoredIdleKeys(stored.keys, held, columns, self.payloads_of, self._what)

    def _row(self, stored: int | dict[str, Any]) -> Any:
        if isinstance(stored, dict):
            return record_of(stored)
        try:
            return self._row_of[stored]
        except KeyError:
            raise CorruptStateError(
                f"{self._what} names row {stored}, which no chunk holds; nothing was reset"
            ) from None

    def write(self, table: pa.Table | None, payloads: Sequence[Any], accepted: np.ndarray[Any, Any]) -> StoredTask:
        """Return the state after the turn; `chunks` then has the changes of the chunks.

        table, payloads: the rows that were offered to the executor, with their TIMESTAMP; only a machine that does not number its
        tuples needs the payloads. accepted: the positions of those that it accepted. Raises BoltError for a policy's state or an
        accumulator that is not plain data.
        """
        executor, manager = self._executor, self._executor.manager
        named: set[int] = set()
        first = self._next_number
        if self._numbered is None:
            self._next_number += len(payloads)
            if not self._takes_columns:
                self._number_of.update((id(payload), number) for number, payload in enumerate(payloads, first))
        left = None if self._idle is None else self._idle.left()
        keyed = self._keyed
        if keyed is not None and not left:
            key = self._config.key or ()
            apart = keyed.stores_apart(lambda: table is not None and self._format.key_columns(table, key) is not None)
            keyed = keyed if apart else None
        if keyed is not None and self._stored.keys is None and self._stored.executor is not None:
            # A machine that did not number its tuples, in an earlier version, may have left a key with a copy of its last window.
            keyed = None if any(getattr(state, "last", None) is not None for state in keyed.loaded()) else keyed
        snapshot = executor.snapshot(events=self._numbered is None, keys=keyed is None)
        try:
            state = dumps(snapshot, None if self._numbered is not None else lambda value: self._named(value, named))
            by_key = None if keyed is None else stored_keys(left, keyed.loaded())
        except TypeError as problem:
            raise BoltError(f"bolt {executor.component!r} cannot be stored: {problem}") from problem
        if self._numbered is not None:
            held = np.asarray(self._numbered.held_sequences(), dtype=np.int64)
            numbers = np.arange(self._numbered.next_sequence - len(accepted), self._numbered.next_sequence)
        else:
            held = np.array(sorted(named), dtype=np.int64)
            numbers = first + accepted
        fresh = None
        if table is not None and manager.keeps_tuples:
            chosen = table if len(accepted) == table.num_rows else table.take(pa.array(accepted))
            stamps = chosen.column(TIMESTAMP)
            if not self._config.event_time:
                stamps = pa.repeat(pa.scalar(executor.now_ms, pa.int64()), len(accepted))
            fresh = with_order(self._format.kept(chosen), stamps, pa.array(numbers, pa.int64()))
        idle_rows = None if self._idle is None else self._idle.idle_rows
        chunks = self.chunks.write(fresh, held, self._stored.next_id, idle_rows)
        # Without message_id= rows pass by, so the ids would have gaps.
        next_id = self._stored.next_id + len(self.chunks.puts)
        return StoredTask(state, chunks, next_id, self._next_number, keys=by_key, deadlines=self._deadlines)

    def _named(self, value: Any, named: set[int]) -> int | dict[str, Any] | None:
        number = self._number_of.get(id(value)) if self._format.is_row(value) else None
        if number is None:
            return record_fields(value)
        named.add(number)
        return number


# -- The key-value state of one task of a stateful bolt --------------------------------------------------------------------------


_MAGIC = b"WNDV"


class TaskValues(EncodedState):
    """The State that `init_state` gets. `load` reads a value by key bytes; `scan` reads all values, in any order.

    >>> store = {}
    >>> values = TaskValues(store.get, store.items, "state of bolt 'count', task 0")
    >>> values.put("storm", 2), values.get("storm"), values.get("spark", 0)
    (None, 2, 0)
    >>> "storm" in values, list(values.items())
    (True, [('storm', 2)])
    >>> [len(values.puts), values.drops]
    [1, []]

    Values are held encoded, so each returned value is a copy of the caller's own, of plain types: a change in place (of a list, for
    example) is not written; call `put`. Cost: one round trip to the JVM for the first read of a key in a batch, and one for each
    key written; `items` reads the whole state of the task.
    """

    def __init__(
        self,
        load: Callable[[bytes], bytes | None],
        scan: Callable[[], Iterable[tuple[bytes, bytes]]],
        what: str,
    ) -> None:
        super().__init__()
        self._load, self._scan, self._what = load, scan, what
        self._stored: dict[bytes, bytes | None] = {}

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values as of the first step, in the order of the encoded keys."""
        over = dict(self._changes)
        under = dict(self._scan())
        for name in sorted({*over, *under}):
            value = over[name] if name in over else unframe(_MAGIC, under[name], self._what)
            if value is not None:
                yield decode_value(name, f"a key in the {self._what}"), decode_value(value, self._what)

    @property
    def puts(self) -> dict[bytes, bytes]:
        """The values to write, by key bytes, in the order of the keys."""
        changed = sorted(self._changes.items())
        return {name: frame(_MAGIC, value) for name, value in changed if value is not None}

    @property
    def drops(self) -> list[bytes]:
        """The keys to remove, in order."""
        return sorted(name for name, value in self._changes.items() if value is None)

    def _found(self, encoded: bytes) -> bytes | None:
        if encoded in self._changes:
            return self._changes[encoded]
        if encoded not in self._stored:
            blob = self._load(encoded)
            self._stored[encoded] = None if blob is None else unframe(_MAGIC, blob, self._what)
        return self._stored[encoded]

    def _decoded(self, blob: bytes, key: Any) -> Any:
        return decode_value(blob, self._what)
