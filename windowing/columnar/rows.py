"""ColumnRows: rows that lie in columns, as a sequence. A row is made only when somebody asks for one.

    table    k    v        rows[1]             -> {"k": 2, "v": 0.5}
             1    0.25     rows[1:]            -> ColumnRows, the same memory
             2    0.5      rows.field_values("v")  -> [0.25, 0.5], no row

Law: `rows` equals the list of its rows, and a slice shares the table's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from windowing.errors import ConfigError, shown

__all__ = ["ColumnRows", "MakeRows"]

MakeRows = Callable[[pa.Table], Sequence[Any]]
"""What makes row objects of a table, in order."""


def _dicts(table: pa.Table) -> Sequence[Any]:
    rows: list[Any] = table.to_pylist()
    return rows


class ColumnRows(Sequence[Any]):
    """The rows of an Arrow table; `make` makes row objects of it, dicts where it is left out.

    >>> rows = ColumnRows(pa.table({"k": [1, 2, 3]}))
    >>> len(rows[1:]), rows[1:][0], rows.field_values("k")
    (2, {'k': 2}, [1, 2, 3])
    """

    __slots__ = ("make", "table")

    def __init__(self, table: pa.Table, make: MakeRows = _dicts) -> None:
        self.table, self.make = table, make

    @classmethod
    def of(cls, payloads: Sequence[Any], make: MakeRows = _dicts) -> ColumnRows:
        """Return tuples as columns: an Arrow table or batch as it is, mappings and records by their fields.

        Raises ConfigError for tuples without named fields. Cost: none for columns, a conversion for rows.
        """
        if isinstance(payloads, ColumnRows):
            return payloads
        if isinstance(payloads, pa.RecordBatch):
            return cls(pa.Table.from_batches([payloads]), make)
        return cls(payloads if isinstance(payloads, pa.Table) else pa.Table.from_pylist(_named(payloads)), make)

    def __len__(self) -> int:
        count: int = self.table.num_rows
        return count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRows: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(range(start, stop, step))
            return ColumnRows(self.table.slice(start, max(stop - start, 0)), self.make)
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"row {index} of {len(self)} rows")
        return self.make(self.table.slice(at, 1))[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make(self.table))

    def take(self, positions: Sequence[int] | np.ndarray[Any, Any]) -> ColumnRows:
        """Return the rows at these positions, in that order. Cost: their copy."""
        return ColumnRows(self.table.take(pa.array(np.asarray(positions, dtype=np.int64))), self.make)

    def field_values(self, name: str) -> list[Any]:
        """Return one column as a list. Raises ConfigError if there is none of this name."""
        values: list[Any] = column(self.table, name).to_pylist()
        return values

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to a list, so as little a key as a list

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.table.column_names)}>"


def column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column by name; ConfigError if there is none."""
    if name not in table.column_names:
        there = ", ".join(map(shown, table.column_names))
        raise ConfigError(f"the window has no column {shown(name)}, it has {there}; name one of them")
    return table.column(name)


def _named(payloads: Sequence[Any]) -> list[dict[str, Any]]:
    try:
        return [_fields(row) for row in payloads]
    except AttributeError:
        raise ConfigError(
            f"columnar= needs tuples with named fields, got {shown(payloads[0])}; send dicts or records, or leave out columnar="
        ) from None


def _fields(row: Any) -> dict[str, Any]:
    if isinstance(row, Mapping):
        return dict(row)
    named: dict[str, Any] = row.as_dict() if hasattr(row, "as_dict") else row._asdict()
    return named
