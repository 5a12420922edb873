"""Windows over columns: the queue, the columnar view of a window for a bolt, and the manager of both.

    add_batch(table, timestamps) --> ColumnBuffer --> window.get(): a slice of the table, no row in between

    timestamps   numpy int64         3   5   5   9         8 bytes an event
    sequences    numpy int64         0   1   3   2         8 bytes, only if a driver needs them
    table        chunk | chunk       rows of batch 1 | rows of batch 2, each as it arrived

    columnar="arrow"     window.get()  pyarrow.Table               window.column("v")  pyarrow.ChunkedArray
    columnar="numpy"     window.get()  {"v": numpy array, ...}     window.column("v")  numpy array

Laws: those of WindowManager and of every Buffer (windows/queue.py), checked by the same property tests. A batch in order is stored
without a copy, and a slice shares its memory; only a tail that gets tuples out of order is rewritten. A numpy array of numbers
without nulls in one chunk is the memory of the queue itself: read-only, no copy. Several chunks are joined for numpy, once for all
windows over them; they are never joined for Arrow.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar.panes import ColumnarPaneManager, TablePaneManager
from windowing.columnar.rows import UNFIT, ColumnRows, MakeRows, Shared, column_named, dicts_of, numbers_of
from windowing.errors import ConfigError, StaleWindowError
from windowing.windows.config import WindowConfig
from windowing.windows.events import ConvertedContent, TupleWindow, WindowContent
from windowing.windows.key_state import KeyState, positions_by_key
from windowing.windows.manager import WindowManager

_TRIM_AT_LEAST = 64  # expired tuples, of each key; it takes some 20 us
_MOST_CHUNKS = 64
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_NONE: _Numbers = np.empty(0, dtype=np.int64)


class ColumnBuffer:
    """The Buffer of columns. `make` makes row objects where they are needed.

    >>> queue = ColumnBuffer()
    >>> queue.stage([9, 4], ColumnRows(pa.table({"v": ["i", "d"]})), 0); queue.settle()
    >>> queue.slice(0, 2).field_values("v")
    ['d', 'i']
    """

    def __init__(self, sequenced: bool = False, make: MakeRows = dicts_of) -> None:
        self.base = 0
        self.sequenced = sequenced
        self._make = make
        self._columns = Shared(pa.table({}))
        self._timestamps = _NONE
        self._sequences = _NONE
        self._staged: list[tuple[_Numbers, ColumnRows, _Numbers]] = []
        self._single: list[tuple[int, Any, int]] = []  # tuples that were added one by one, after all of `_staged`

    @property
    def end(self) -> int:
        return self.base + len(self._timestamps)

    @property
    def staged(self) -> Sequence[int]:
        self._gather()
        return list(chain.from_iterable(timestamps.tolist() for timestamps, _, _ in self._staged))

    # -- writing -------------------------------------------------------------------------------------------------------

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        self.stage_at(timestamps, payloads, np.arange(first_sequence, first_sequence + len(timestamps)))

    def stage_at(self, timestamps: Sequence[int] | _Numbers, payloads: Sequence[Any], sequences: _Numbers) -> None:
        """Append a run of tuples with these sequence numbers."""
        rows = self._rows(payloads)
        self._gather()
        self._staged.append((numbers_of(timestamps), rows, sequences if self.sequenced else _NONE))

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        self._single.append((timestamp, payload, sequence))

    def _rows(self, payloads: Sequence[Any]) -> ColumnRows:
        return ColumnRows.of(payloads, self._make)

    def _gather(self) -> None:
        if self._single:
            (timestamps, payloads, sequences), self._single = zip(*self._single, strict=True), []
            self.stage_at(timestamps, payloads, numbers_of(sequences))

    def settle(self) -> None:
        self._gather()
        if not self._staged:
            return
        staged, rows, numbers = zip(*self._staged, strict=True)
        timestamps = np.concatenate(staged)
        cut = int(np.searchsorted(self._timestamps, timestamps.min(), side="right"))
        held = self._columns.table
        changed = _concatenated([held.slice(cut), *(each.table for each in rows)])
        self._staged = []
        timestamps = np.concatenate([self._timestamps[cut:], timestamps])
        sequences = np.concatenate([self._sequences[cut:], *numbers])
        if bool((timestamps[1:] < timestamps[:-1]).any()):
            order = np.argsort(timestamps, kind="stable")
            timestamps, changed = timestamps[order], changed.take(pa.array(order))
            sequences = sequences[order] if self.sequenced else sequences
        self._columns = Shared(_concatenated([held.slice(0, cut), changed]))
        self._timestamps = np.concatenate([self._timestamps[:cut], timestamps])
        self._sequences = np.concatenate([self._sequences[:cut], sequences])

    def trim(self, position: int) -> None:
        dead, held = position - self.base, len(self._timestamps)
        if dead <= 0 or (dead < held and (dead < _TRIM_AT_LEAST or dead * 2 < held)):
            return
        table = self._columns.table.slice(dead)
        # A slice keeps its whole chunk in memory, so it is copied when most of that is no longer needed.
        scattered = table.get_total_buffer_size() > 2 * table.nbytes + 1024
        self._columns = Shared(table.take(pa.array(np.arange(table.num_rows))) if scattered else table)
        self._timestamps, self._sequences = self._timestamps[dead:].copy(), self._sequences[dead:].copy()
        self.base = position

    # -- searching and reading -----------------------------------------------------------------------------------------

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
        return ColumnRows(self._columns, self._make, low - self.base, max(high - low, 0))

    def arrived_after(self, low: int, high: int, sequence: int, all_from: int) -> ColumnRows:
        numbers = self._numbers(low, high)
        return self._picked(low, (numbers >= sequence) | (np.arange(len(numbers)) + low >= all_from))

    def arrived_before(self, low: int, high: int, sequence: int) -> ColumnRows:
        return self._picked(low, self._numbers(low, high) < sequence)

    def count_after(self, low: int, high: int, sequence: int) -> int:
        return int((self._numbers(low, high) >= sequence).sum())

    def _picked(self, low: int, chosen: np.ndarray[Any, Any]) -> ColumnRows:
        positions = np.flatnonzero(chosen) + low - self.base
        return self._rows(self._columns.table.take(pa.array(positions)))

    def _numbers(self, low: int, high: int) -> _Numbers:
        assert self.sequenced
        return self._sequences[low - self.base : high - self.base]

    # -- storing -------------------------------------------------------------------------------------------------------

    def sequences_from(self, position: int) -> _Numbers:
        """Return the sequence numbers from `position` on, without making a row."""
        return self._sequences[position - self.base :]

    def dump(self, position: int) -> dict[str, Any]:
        """Return the data that a ListBuffer of the same rows would return, and the types of the columns."""
        held = self.slice(position, self.end)
        return {
            "timestamps": self._timestamps[position - self.base :].tolist(),
            "payloads": list(held),
            "sequences": self._sequences[position - self.base :].tolist() if self.sequenced else None,
            "types": base64.b64encode(held.table.schema.serialize()).decode("ascii"),
        }

    def fill(self, data: dict[str, Any]) -> None:
        kept = data.get("types")
        types = None if kept is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept)))
        rows = ColumnRows.of(data["payloads"], self._make, types)
        if len(self._timestamps):
            self._staged.insert(0, (self._timestamps, self.slice(self.base, self.end), self._sequences))
        self._timestamps = np.asarray(data["timestamps"], dtype=np.int64)
        numbered = self.sequenced and data["sequences"] is not None
        self._sequences = np.asarray(data["sequences"] if numbered else (), dtype=np.int64)
        self._columns, self.base = Shared(rows.table), data["base"]

    def check(self) -> None:
        # The columns are parallel, in (timestamp, arrival) order.
        assert self._columns.table.num_rows == len(self._timestamps)
        assert bool((self._timestamps[1:] >= self._timestamps[:-1]).all())
        assert all(len(timestamps) == len(rows) > 0 for timestamps, rows, _ in self._staged)
        assert self.base >= 0
        if self.sequenced:
            keys = list(zip(self._timestamps.tolist(), self._sequences.tolist(), strict=True))
            assert keys == sorted(keys)


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables without a copy; if there are many small chunks they are combined."""
    tables = [table for table in tables if table.num_rows] or tables[-1:]
    if len(tables) == 1:
        return tables[0]
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    joined = pa.concat_tables(tables) if same else _widened(tables)
    crowded = joined.num_columns and joined.column(0).num_chunks > _MOST_CHUNKS
    return joined.combine_chunks() if crowded else joined


def _widened(tables: list[pa.Table]) -> pa.Table:
    """Join tables whose columns differ in type; columns made of rows have the types of their values: whole numbers are int64."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except UNFIT:
        return ColumnRows.of([row for table in tables for row in table.to_pylist()]).table


# -- views -----------------------------------------------------------------------------------------------------------------------


class ColumnContent:
    """A window's content as views in `form`, over content that is rows or columns. `declared`: the columns of the views; by default
    all columns, and for rows the types of their values.
    """

    __slots__ = ("_content", "_declared", "_form")

    def __init__(self, content: WindowContent, form: str, declared: pa.Schema | None = None) -> None:
        self._content, self._form, self._declared = content, form, declared

    def over(self, content: WindowContent) -> ColumnContent:
        """Return the same views of another content."""
        return ColumnContent(content, self._form, self._declared)

    def __len__(self) -> int:
        return len(self._content)

    def current(self) -> Any:
        return self._view(self._content.current())

    def new(self) -> Any:
        return self._view(self._content.new())

    def expired(self) -> Any:
        return self._view(self._content.expired())

    def aggregate(self) -> Any:
        return self._content.aggregate()

    def column(self, name: str) -> Any:
        """Return one column of the window."""
        rows = self._columns(self._content.current())
        return rows.array(name) if self._form == "numpy" else column_named(rows.table, name)

    def _view(self, rows: Sequence[Any]) -> Any:
        if not len(rows) and not isinstance(rows, ColumnRows):
            known = self._declared
            rows = ColumnRows.of(self._content.current())[:0] if known is None else known.empty_table()
        found = self._columns(rows)
        return {name: found.array(name) for name in found.names} if self._form == "numpy" else found.table

    def _columns(self, rows: Sequence[Any]) -> ColumnRows:
        found = ColumnRows.of(rows, types=self._declared)
        return found if self._declared is None else found.select(self._declared.names)


def viewed(window: TupleWindow, form: str | None, declared: pa.Schema | None = None) -> TupleWindow:
    """Return a window of rows as columns for a bolt with `columnar=form` (None: unchanged); valid as long as the window is.

    For a driver that needs its tuples as objects, because it acks them. declared: the columns, if the rows are of streams
    with declared fields. Cost: a conversion of the parts that are read.
    """
    if form is None:
        return window
    content = ColumnContent(ConvertedContent(window, lambda rows: rows), form, declared)
    return TupleWindow(content, window.start_timestamp, window.end_timestamp, window.key)


# -- ColumnarWindowManager -------------------------------------------------------------------------------------------------------


class ColumnarWindowManager(WindowManager):
    """The windows of one task over columns. Tuples are ColumnRows, or rows with named fields, which are converted.

    `make` makes row objects of a table where they are needed (late tuples), dicts by default. `declared` are the columns of the
    windows, all columns by default. Its snapshots have the form of a WindowManager over the same rows: each of the two machines
    restores snapshots of the other.

    >>> import pyarrow as pa
    >>> from windowing.windows.events import Activation
    >>> from windowing.windows.measures import count
    >>> manager = ColumnarWindowManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts", columnar="numpy"))
    >>> list(manager.add_batch(ColumnRows(pa.table({"v": [5, 6, 7]})), [1, 2, 3]))
    []
    >>> [int(e.window.column("v").sum()) for e in manager.advance(3) if isinstance(e, Activation)]
    [11]
    """

    takes_columns = True
    shows_columns = True

    def __init__(
        self,
        config: WindowConfig,
        *,
        sequenced: bool = False,
        make: MakeRows = dicts_of,
        declared: pa.Schema | None = None,
    ) -> None:
        super().__init__(config, sequenced=sequenced)
        if config.columnar is None:
            raise ConfigError(
                "a machine of columns needs to know what windows hand out; give columnar='arrow' or 'numpy'"
            )
        form, self._make = config.columnar, make
        self._buffer = partial(ColumnBuffer, self._sequenced, make)
        self._made = lambda content, *place: TupleWindow(ColumnContent(content, form, declared), *place)
        self.inbox = None

    def _stage_by_key(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any]
    ) -> list[tuple[KeyState, Sequence[int] | None]]:
        rows, times = ColumnRows.of(payloads, self._make), numbers_of(timestamps)
        staged: list[tuple[KeyState, Sequence[int] | None]] = []
        for key, at in positions_by_key(keys).items():
            state = self._touched[key] = self._states.get(key) or self._add_key(key)
            positions = np.array(at)
            state.buffer.stage_at(times[positions], rows.take(positions), positions + self._sequence)
            staged.append((state, at))
        return staged

    # -- for drivers that store the tuples themselves ------------------------------------------------------------------

    def held_sequences(self) -> np.ndarray[Any, Any]:
        return np.concatenate([_NONE, *(state.buffer.sequences_from(state.held_from) for state in self.loaded())])

    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Fill a machine restored from a snapshot without events with its tuples. The tuples of a key are a slice of one table."""
        rows = ColumnRows.of(payloads, self._make)
        numbers, times = np.asarray(sequences, dtype=np.int64), np.asarray(timestamps, dtype=np.int64)
        order = np.lexsort((numbers, times))
        groups = positions_by_key(repeat(None, len(rows)) if keys is None else map(list(keys).__getitem__, order))
        by_key = order[np.fromiter(chain.from_iterable(groups.values()), np.int64, len(rows))]
        numbers, times = numbers[by_key], times[by_key]
        if bool((by_key[1:] < by_key[:-1]).any()):
            rows = rows.take(by_key)
        low = 0
        for key, places in groups.items():
            high = low + len(places)
            buffer = self._states[key].buffer
            part = slice(low, high)
            tuples = {"timestamps": times[part], "payloads": rows[part], "sequences": numbers[part]}
            buffer.fill({"base": buffer.base, **tuples})
            low = high


@dataclass(frozen=True, slots=True)
class ColumnarMachines:
    """The factory that `machine_for` uses for machines over columns (its `columns`). Their executor accepts ColumnRows.

    make: makes row objects of a table where they are needed (late tuples), dicts by default; None if a tuple is more than its
    fields, so that queues hold rows. It has no meaning with `aggregate=`, which keeps no tuples. declared: the columns of the
    windows, all columns by default.
    """

    make: MakeRows | None = dicts_of
    declared: pa.Schema | None = None

    @property
    def holds_columns(self) -> bool:
        return self.make is not None

    def windows(self, config: WindowConfig, sequenced: bool) -> ColumnarWindowManager:
        assert self.make is not None
        return ColumnarWindowManager(config, sequenced=sequenced, make=self.make, declared=self.declared)

    def panes(self, config: WindowConfig, component: str) -> ColumnarPaneManager:
        return (ColumnarPaneManager if config.columnar is None else TablePaneManager)(config, component)
