"""Views: what a bolt with `columnar=` is handed in place of lists of rows.

    columnar="arrow"     window.get()  pyarrow.Table               window.column("v")  pyarrow.ChunkedArray
    columnar="numpy"     window.get()  {"v": numpy array, ...}     window.column("v")  numpy array

An array of numbers without nulls that lies in one chunk is the memory of the queue itself: read-only, no copy. What lies in several
chunks is put together for numpy, never for Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import ColumnRows, column
from windowing.core.windows import TupleWindow, WindowContent

__all__ = ["ColumnContent", "viewed"]


def _as_numpy(values: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    one = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    found: np.ndarray[Any, Any] = one.to_numpy(zero_copy_only=False)
    found.flags.writeable = False
    return found


def _as_arrays(table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    return {name: _as_numpy(table.column(name)) for name in table.column_names}


_TABLES: dict[str, Callable[[pa.Table], Any]] = {"arrow": lambda table: table, "numpy": _as_arrays}
_COLUMNS: dict[str, Callable[[pa.ChunkedArray], Any]] = {"arrow": lambda values: values, "numpy": _as_numpy}


class ColumnContent:
    """A window's content as views of the form `form`, over content that is rows or columns."""

    __slots__ = ("_content", "_form")

    def __init__(self, content: WindowContent, form: str) -> None:
        self._content, self._form = content, form

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
        return _COLUMNS[self._form](column(ColumnRows.of(self._content.current()).table, name))

    def _view(self, rows: Sequence[Any]) -> Any:
        if not len(rows) and not isinstance(rows, ColumnRows):
            return self._view(ColumnRows.of(self._content.current())[:0])
        return _TABLES[self._form](ColumnRows.of(rows).table)


class _WindowOfRows:
    """The content of a window of rows that somebody else keeps valid."""

    __slots__ = ("_window",)

    def __init__(self, window: TupleWindow) -> None:
        self._window = window

    def __len__(self) -> int:
        return len(self._window)

    def current(self) -> Sequence[Any]:
        return self._window.get()

    def new(self) -> Sequence[Any]:
        return self._window.get_new()

    def expired(self) -> Sequence[Any]:
        return self._window.get_expired()

    def aggregate(self) -> Any:
        return self._window.aggregate


def viewed(window: TupleWindow, form: str | None) -> TupleWindow:
    """Return a window of rows as a bolt with `columnar=form` sees it (None: as it is); valid as long as the window is.

    For a driver whose tuples are more than their fields, because it acks them. Cost: a conversion of what is asked for.
    """
    if form is None:
        return window
    content = ColumnContent(_WindowOfRows(window), form)
    return TupleWindow(content, window.start_timestamp, window.end_timestamp, window.key)
