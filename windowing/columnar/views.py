"""Views: what a bolt with `columnar=` is handed in place of lists of rows.

    columnar="arrow"     window.get()  pyarrow.Table               window.column("v")  pyarrow.ChunkedArray
    columnar="numpy"     window.get()  {"v": numpy array, ...}     window.column("v")  numpy array

An array of numbers without nulls that lies in one chunk is the memory of the queue itself: read-only, no copy. What lies in several
chunks is put together for numpy, once for all windows over it; never for Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import ColumnRows, column
from windowing.core.windows import TupleWindow, WindowContent

__all__ = ["ColumnContent", "viewed"]


def _as_table(rows: ColumnRows) -> pa.Table:
    return rows.table


def _as_arrays(rows: ColumnRows) -> dict[str, np.ndarray[Any, Any]]:
    return {name: rows.array(name) for name in rows.names}


def _as_chunks(rows: ColumnRows, name: str) -> pa.ChunkedArray:
    return column(rows.table, name)


_VIEWS: dict[str, Callable[[ColumnRows], Any]] = {"arrow": _as_table, "numpy": _as_arrays}
_COLUMNS: dict[str, Callable[[ColumnRows, str], Any]] = {"arrow": _as_chunks, "numpy": ColumnRows.array}


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
        return _COLUMNS[self._form](ColumnRows.of(self._content.current()), name)

    def _view(self, rows: Sequence[Any]) -> Any:
        if not len(rows) and not isinstance(rows, ColumnRows):
            return self._view(ColumnRows.of(self._content.current())[:0])
        return _VIEWS[self._form](ColumnRows.of(rows))


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
