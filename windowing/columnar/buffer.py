"""ColumnBuffer: the queue behind a window as columns, an Arrow table in (timestamp, arrival) order.

    timestamps   numpy int64         3   5   5   9         8 bytes an event
    sequences    numpy int64         0   1   3   2         8 bytes, only where a driver asks for them
    table        chunk | chunk       rows of batch 1 | rows of batch 2, each as it came

Laws: those of every Buffer (core/queue.py): positions are absolute, what is staged is merged by `settle`. A batch that comes in
order is taken over without a copy, and a slice shares its memory; only a tail that tuples come into out of order is written anew.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import ColumnRows, MakeRows, Shared
from windowing.errors import StaleWindowError

__all__ = ["ColumnBuffer"]

_TRIM_AT_LEAST = 256
_MOST_CHUNKS = 64
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_NONE: _Numbers = np.empty(0, dtype=np.int64)


class ColumnBuffer:
    """The TupleBuffer of columns. `make` makes row objects, for whoever asks for them.

    >>> queue = ColumnBuffer()
    >>> queue.stage([9, 4], ColumnRows(pa.table({"v": ["i", "d"]})), 0); queue.settle()
    >>> queue.slice(0, 2).field_values("v")
    ['d', 'i']
    """

    def __init__(self, sequenced: bool = False, make: MakeRows | None = None) -> None:
        self.base = 0
        self.sequenced = sequenced
        self._make = make
        self._columns: Shared | None = None
        self._timestamps = _NONE
        self._sequences = _NONE
        self._staged_timestamps: list[int] = []
        self._staged_sequences: list[int] = []
        self._staged: list[ColumnRows] = []
        self._single: list[Any] = []  # rows that came one by one, after all of `_staged`

    def __len__(self) -> int:
        return len(self._timestamps) + len(self._staged_timestamps)

    @property
    def end(self) -> int:
        return self.base + len(self._timestamps)

    @property
    def staged(self) -> Sequence[int]:
        return self._staged_timestamps

    # -- writing -------------------------------------------------------------------------------------------------------

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        self.stage_at(timestamps, payloads, range(first_sequence, first_sequence + len(timestamps)))

    def stage_at(self, timestamps: Sequence[int], payloads: Sequence[Any], sequences: Sequence[int]) -> None:
        """Append a run whose tuples have these sequence numbers."""
        rows = self._rows(payloads)
        self._gather()
        self._staged.append(rows)
        self._staged_timestamps.extend(timestamps)
        if self.sequenced:
            self._staged_sequences.extend(sequences)

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        self._single.append(payload)
        self._staged_timestamps.append(timestamp)
        if self.sequenced:
            self._staged_sequences.append(sequence)

    @property
    def _table(self) -> pa.Table | None:
        return None if self._columns is None else self._columns.table

    @_table.setter
    def _table(self, table: pa.Table | None) -> None:
        self._columns = None if table is None else Shared(table)

    def _rows(self, payloads: Sequence[Any]) -> ColumnRows:
        return ColumnRows.of(payloads) if self._make is None else ColumnRows.of(payloads, self._make)

    def _gather(self) -> None:
        if self._single:
            self._staged.append(self._rows(self._single))
            self._single = []

    def settle(self) -> None:
        if not self._staged_timestamps:
            return
        self._gather()
        timestamps = np.array(self._staged_timestamps, dtype=np.int64)
        sequences = np.array(self._staged_sequences, dtype=np.int64)
        tables = [rows.table for rows in self._staged]
        self._staged_timestamps, self._staged_sequences, self._staged = [], [], []
        cut = int(np.searchsorted(self._timestamps, timestamps.min(), side="right"))
        if self._table is not None:
            tables = [self._table.slice(cut), *tables]
        timestamps = np.concatenate([self._timestamps[cut:], timestamps])
        sequences = np.concatenate([self._sequences[cut:], sequences])
        changed = _joined(tables)
        if bool((timestamps[1:] < timestamps[:-1]).any()):
            order = np.argsort(timestamps, kind="stable")
            timestamps, changed = timestamps[order], changed.take(pa.array(order))
            sequences = sequences[order] if self.sequenced else sequences
        self._table = changed if self._table is None else _joined([self._table.slice(0, cut), changed])
        self._timestamps = np.concatenate([self._timestamps[:cut], timestamps])
        self._sequences = np.concatenate([self._sequences[:cut], sequences])

    def trim(self, position: int) -> None:
        dead, held = position - self.base, len(self._timestamps)
        if dead <= 0 or (dead < held and (dead < _TRIM_AT_LEAST or dead * 2 < held)):
            return
        assert self._table is not None
        table = self._table.slice(dead)
        # A slice holds its whole chunk: copied when most of that is dead.
        self._table = table if table.get_total_buffer_size() <= 2 * table.nbytes + 1024 else _copied(table)
        self._timestamps, self._sequences = self._timestamps[dead:].copy(), self._sequences[dead:].copy()
        self.base = position

    # -- searching and handing out -------------------------------------------------------------------------------------

    def position_after(self, timestamp: int, low: int = 0, high: int | None = None) -> int:
        found = self.base + int(np.searchsorted(self._timestamps, timestamp, side="right"))
        return max(low, self.base, found if high is None else min(found, high))

    def timestamp_at(self, position: int) -> int:
        return int(self._timestamps[position - self.base])

    def slice(self, low: int, high: int) -> ColumnRows:
        if low < self.base:
            raise StaleWindowError(
                f"tuples from position {low} on were asked for after they had expired and been freed"
            )
        if self._columns is None:
            return self._rows(pa.table({}))
        low, count = low - self.base, max(high - low, 0)
        if self._make is None:
            return ColumnRows(self._columns, low=low, count=count)
        return ColumnRows(self._columns, self._make, low, count)

    def _held(self) -> pa.Table:
        return pa.table({}) if self._table is None else self._table

    def came_after(self, low: int, high: int, sequence: int, all_from: int) -> ColumnRows:
        numbers = self._numbers(low, high)
        return self._picked(low, (numbers >= sequence) | (np.arange(len(numbers)) + max(low, self.base) >= all_from))

    def came_before(self, low: int, high: int, sequence: int) -> ColumnRows:
        return self._picked(low, self._numbers(low, high) < sequence)

    def count_after(self, low: int, high: int, sequence: int) -> int:
        return int((self._numbers(low, high) >= sequence).sum())

    def _picked(self, low: int, chosen: np.ndarray[Any, Any]) -> ColumnRows:
        positions = np.flatnonzero(chosen) + max(low - self.base, 0)
        return self._rows(self._held().take(pa.array(positions)))

    def _numbers(self, low: int, high: int) -> _Numbers:
        assert self.sequenced
        return self._sequences[max(low - self.base, 0) : max(high - self.base, 0)]

    # -- storing -------------------------------------------------------------------------------------------------------

    def since(self, position: int, sequence: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (sequence, timestamp, tuple) of what is held from `position` on and arrived at `sequence` or later."""
        at = position - self.base
        rows = self._rows(self._held().slice(at))
        for number, timestamp, row in zip(
            self._sequences[at:].tolist(), self._timestamps[at:].tolist(), rows, strict=True
        ):
            if number >= sequence:
                yield number, timestamp, row

    def sequences_from(self, position: int) -> _Numbers:
        """Return the sequence numbers of what is held from `position` on, without a row."""
        return self._sequences[position - self.base :]

    def load(self, timestamps: Any, rows: ColumnRows, sequences: Any, base: int) -> None:
        """Fill an empty buffer: tuples in order, the first of them at position `base`."""
        self._timestamps = np.asarray(timestamps, dtype=np.int64)
        self._sequences = np.asarray(sequences if self.sequenced else (), dtype=np.int64)
        self._table, self.base = rows.table, base

    def dump(self, position: int) -> dict[str, Any]:
        at = position - self.base
        sink = pa.BufferOutputStream()
        table = self._held().slice(at).combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return {
            "timestamps": self._timestamps[at:].tolist(),
            "arrow": base64.b64encode(sink.getvalue()).decode("ascii"),
            "sequences": self._sequences[at:].tolist(),
        }

    def fill(self, data: dict[str, Any]) -> None:
        with pa.ipc.open_stream(base64.b64decode(data["arrow"])) as reader:
            table = reader.read_all()
        self.load(data["timestamps"], self._rows(table), data["sequences"], data["base"])
        if not table.num_columns:
            self._table = None

    def check(self) -> None:
        """Assert what "correct" means."""
        # Columns are parallel, in order of time, and of arrival among equal times.
        assert self._held().num_rows == len(self._timestamps)
        assert bool((self._timestamps[1:] >= self._timestamps[:-1]).all())
        assert len(self._staged_timestamps) == sum(map(len, self._staged)) + len(self._single)
        assert self.base >= 0
        if self.sequenced:
            keys = list(zip(self._timestamps.tolist(), self._sequences.tolist(), strict=True))
            assert keys == sorted(keys)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Return the tables one after the other, without a copy; many small chunks become one."""
    tables = [table for table in tables if table.num_rows] or tables[-1:]
    if len(tables) == 1:
        return tables[0]
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    joined = pa.concat_tables(tables) if same else pa.concat_tables(tables, promote_options="default")
    crowded = joined.num_columns and joined.column(0).num_chunks > _MOST_CHUNKS
    return joined.combine_chunks() if crowded else joined


def _copied(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.arange(table.num_rows)))
