"""The rows of a windowed task: as the bolt gets them, their order of arrival, and their form in stored chunks.

    packets of a batch --arrived--> a table in the order of arrival --payloads, in_columns--> the payloads of windows
                                       |
                                       +--> columns of the chunks (state.py)

RowFormat is the protocol that a turn uses. NamedRows are the rows of `windowed`: Records of one set of columns. (The rows of a
topology are Tuples: tuple_rows.py.)

`order_by=` gives a total order of a batch's rows, independent of their partitions: rows that are equal in these columns are ordered
by input stream, then by all their columns. Only identical rows can still change places, so the order depends on the rows and not on
how Spark packed them. Ascending, as Arrow sorts; nulls last. Cost: a sort by the columns of `order_by` and a comparison of
neighbours (0.2 us per row); with ties, a second sort by all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.columnar import ColumnRows, Keys
from windowing.columnar.rows import MakeRows, codable, decode_table, values_of
from windowing.schema.rows import record_type
from windowing.spark.exchange import ExchangeRow
from windowing.spark.state import TIMESTAMP
from windowing.spark.unreadable import any_of, plain, python_values, records_in, unreadable_in
from windowing.windows.aggregate import aggregated_fields
from windowing.windows.config import WindowConfig
from windowing.windows.key_state import one_nan


def in_order(table: pa.Table, order_by: Sequence[str], columns: Sequence[str], streams: pa.Array) -> pa.Table:
    """Return the rows of `table` in order of arrival: by `order_by`, `streams[i]` (the number of row i's input stream), then
    by all `columns`.
    """
    first = [_typed(table.column(name).combine_chunks()) for name in order_by]
    order = _sorted(first)
    if _has_ties([column.take(order) for column in first]):
        order = _sorted([*first, streams, *(_comparable(table.column(name).combine_chunks()) for name in columns)])
    return table.take(order)


def _sorted(keys: Sequence[pa.Array]) -> pa.Array:
    """Return the positions of the rows in ascending order of all keys."""
    names = [f"{number}" for number in range(len(keys))]
    return pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, "ascending") for name in names])


def _has_ties(columns: Sequence[pa.Array]) -> bool:
    """Whether two neighbours are equal in all columns."""
    equal = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in columns:
        equal &= _same(column[:-1], column[1:])
    return bool(equal.any())


def _same(one: pa.Array, other: pa.Array) -> np.ndarray[Any, Any]:
    """Compare as the sort does: all nulls are equal, and all NaN are equal."""
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return np.asarray(same)


def _typed(column: pa.Array) -> pa.Array:
    """Return a column of Spark's type void as nulls of a type that Arrow compares."""
    return pa.nulls(len(column), pa.int8()) if pa.types.is_null(column.type) else column


def _comparable(column: pa.Array) -> pa.Array:
    """Return a column that Arrow sorts and in which only the same values are equal: 0.0 and -0.0 are two."""
    column = _typed(column)
    kind = column.type
    if pa.types.is_floating(kind):
        return column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width])
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else repr(value) for value in python_values(column, "")], pa.string())
    return column


# -- Formats ---------------------------------------------------------------------------------------------------------------------


_STREAM = "\0stream"
"""The column with the number of a row's input stream; no column of a DataFrame has this name."""


class RowFormat(Protocol):
    """The form of a turn's rows; a `table` argument has at least the columns of a chunk."""

    @property
    def make_rows(self) -> MakeRows | None:
        """Makes payloads from a queue of columns; None if windows with `columnar=` hold rows."""

    @property
    def declared(self) -> pa.Schema | None:
        """The columns of windows with `columnar=`, None for all columns."""

    def arrived(self, packets: Sequence[ExchangeRow]) -> pa.Table:
        """Return the rows of a batch in order of arrival: the columns of the chunks, and TIMESTAMP."""

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the columns of a chunk; a column that old chunks lack is null."""

    def payloads(self, table: pa.Table) -> list[Any]:
        """Return the payload of each row."""

    def in_columns(self, table: pa.Table) -> Sequence[Any]:
        """Return the payloads; if possible as columns, from which a row is made only on access."""

    def keys(self, table: pa.Table, payloads: Sequence[Any], names: tuple[str, ...]) -> Sequence[Any]:
        """Return the key= of each row."""

    def key_columns(self, table: pa.Table, names: tuple[str, ...]) -> Keys | None:
        """Return the key= of each row of a chunk as columns; None if there are none, or if Arrow compares them unlike Python."""

    def identities(self, table: pa.Table, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the message id of each arrived row, and its channel, the scope in which ids are unique."""

    def is_row(self, value: Any) -> bool:
        """Return whether a value can be one of the payloads."""

    def fields(self, payload: Any) -> dict[str, Any]:
        """Return the values of a payload by field name, for the late stream."""

    def unreadable(self, table: pa.Table, names: Sequence[str] | None) -> np.ndarray[Any, Any] | None:
        """Return which rows have a value in one of these fields (None: in any) that Python cannot hold; None for no row."""


def read_by_windows(config: WindowConfig) -> tuple[str, ...] | None:
    """Return the fields that windows read before the bolt is called; None for all, if user code gets whole rows."""
    if config.trigger is not None or config.eviction is not None:
        return None
    aggregated = () if config.aggregate is None else aggregated_fields(config.aggregate)
    return None if None in aggregated else (*(config.key or ()), *filter(None, aggregated))


class NamedRows:
    """Rows as Records of these columns. `streams`: the input streams, whose order is part of the order of arrival; `order_by`:
    columns that give the order instead. `identified`: whether `identities` is used.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        streams: tuple[str, ...] = ("default",),
        order_by: tuple[str, ...] = (),
        identified: bool = False,
    ) -> None:
        self._columns, self._streams, self._order_by = columns, streams, order_by
        self._identifies_streams = identified and len(streams) > 1

    @cached_property
    def _type(self) -> Any:
        return record_type(self._columns)

    @property
    def make_rows(self) -> MakeRows:
        return self.payloads

    @property
    def declared(self) -> None:
        return None

    def arrived(self, packets: Sequence[ExchangeRow]) -> pa.Table:
        """Return the rows by (stream, upstream partition, sequence, position), or by `order_by`."""
        position = {stream: index for index, stream in enumerate(self._streams)}
        ordered = sorted(packets, key=lambda each: (position[each.stream], each.upstream, each.sequence))
        names = [*self._columns, TIMESTAMP]
        tables = [decode_table(each.data).rename_columns(names) for each in ordered]
        table = pa.concat_tables(tables)
        if self._order_by or self._identifies_streams:
            streams = pa.array(
                np.concatenate(
                    [np.full(part.num_rows, position[each.stream]) for each, part in zip(ordered, tables, strict=True)]
                )
            )
            if self._identifies_streams:
                table = table.append_column(_STREAM, streams)
            if self._order_by:
                table = in_order(table, self._order_by, self._columns, streams)
        return table.combine_chunks()

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the input columns; rows that were stored before a column was added have null there."""
        count, there = table.num_rows, table.column_names
        return pa.table({name: table.column(name) if name in there else pa.nulls(count) for name in self._columns})

    def payloads(self, table: pa.Table) -> list[Any]:
        if not self._columns:
            return [self._type() for _ in range(table.num_rows)]
        return list(records_in(map(table.column, self._columns), self._columns))

    def in_columns(self, table: pa.Table) -> ColumnRows:
        return ColumnRows(self.kept(table), self.payloads)

    def keys(self, table: pa.Table, payloads: Sequence[Any], names: tuple[str, ...]) -> Sequence[Any]:
        """Return the values of the key's columns; they stay columns if the rows do and if Arrow compares keys as Python does."""
        found = self.key_columns(table, names) if isinstance(payloads, ColumnRows) else None
        if found is not None:
            return found
        columns = [_keys_of(table.column(name)) for name in names]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def key_columns(self, table: pa.Table, names: tuple[str, ...]) -> Keys | None:
        found = [table.column(name) for name in names]
        return Keys(found) if all(codable(each.type) for each in found) else None

    def identities(self, table: pa.Table, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the message ids, each unique on its input stream."""
        numbers = table.column(_STREAM).to_pylist() if self._identifies_streams else [0] * table.num_rows
        return values_of(table.column(name)), [self._streams[number] for number in numbers]

    def is_row(self, value: Any) -> bool:
        return isinstance(value, self._type)

    def fields(self, payload: Any) -> dict[str, Any]:
        return dict(zip(self._columns, plain(payload), strict=True))

    def unreadable(self, table: pa.Table, names: Sequence[str] | None) -> np.ndarray[Any, Any] | None:
        return any_of(unreadable_in(table.column(name)) for name in (self._columns if names is None else names))


def _keys_of(column: pa.ChunkedArray) -> list[Any]:
    values = values_of(column)
    return list(map(one_nan, values)) if pa.types.is_floating(column.type) else values
