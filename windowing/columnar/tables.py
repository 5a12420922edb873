"""TableWindow: the windows of all keys that end together, their aggregates side by side in columns.

window.aggregate     k    n    total          one row for each key that has a tuple in the window, by first arrival
                     a    2      7.0          (without key=: one row)
                     b    1      5.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from windowing.columnar.rows import ColumnRows
from windowing.columnar.views import as_view
from windowing.core.config import WindowConfig
from windowing.core.faults import fault
from windowing.core.pane_content import PaneWindow
from windowing.core.partials import Aggregation
from windowing.core.time_panes import Windows

__all__ = ["TableWindow"]


class TableWindow(PaneWindow):
    """A window of the partials of all keys; the table is made when it is asked for, once. Its `key` is None."""

    __slots__ = ("_config", "_table", "_windows")

    def __init__(self, windows: Windows, aggregation: Aggregation, config: WindowConfig, start: int, end: int) -> None:
        super().__init__((), aggregation, start, end, None)
        self._windows, self._config = windows, config
        self._table: pa.Table | None = None

    @property
    def aggregate(self) -> Any:
        """The key's fields and the results of `aggregate=`, a row for each key: a pyarrow.Table, or numpy arrays by name.

        A column in which no key has a value is of Arrow's type null. Raises BoltError for results that make no column. Cost: 0.2 us
        a key and column.
        """
        self._refuse_if_stale()
        if self._table is None:
            self._table = self._made()
        assert self._config.columnar is not None
        return as_view(ColumnRows(self._table), self._config.columnar)

    def __len__(self) -> int:
        self._refuse_if_stale()
        return sum(partial[0] for partials in self._windows[1] for partial in partials)

    def _made(self) -> pa.Table:
        names, keys, windows = self._config.key or (), list(self._windows[0]), self._windows[1]
        fields: list[Any] = [keys] if len(names) == 1 else list(zip(*keys, strict=True)) if names else []
        columns = dict(zip(names, fields, strict=True))
        columns |= self._aggregation.results(windows)
        return pa.table({name: self._column(name, values) for name, values in columns.items()})

    def _column(self, name: str, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            raise fault(self._aggregation.component, f"making a column of {name!r}", problem) from problem
