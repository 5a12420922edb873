"""TableWindow: the windows of all keys that end together, their aggregates side by side in columns.

window.aggregate     k    n    total          one row for each key that has a tuple in the window, by first arrival
                     a    2      7.0          (without key=: one row)
                     b    1      5.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import UNFIT, odd_among
from windowing.core.config import WindowConfig
from windowing.core.pane_content import PaneWindow
from windowing.core.partials import Aggregation
from windowing.core.time_panes import Windows
from windowing.errors import shown

__all__ = ["TableWindow"]


class TableWindow(PaneWindow):
    """A window of the partials of all keys; what is asked for is made when it is asked for, once. Its `key` is None."""

    __slots__ = ("_config", "_made", "_windows")

    def __init__(self, windows: Windows, aggregation: Aggregation, config: WindowConfig, start: int, end: int) -> None:
        super().__init__((), aggregation, start, end, None)
        self._windows, self._config = windows, config
        self._made: Any = None

    @property
    def aggregate(self) -> Any:
        """The key's fields and the results of `aggregate=`, a row for each key: a pyarrow.Table, or numpy arrays by name.

        A column in which no key has a value is of Arrow's type null; an array of whole numbers or booleans with a None among them
        is one of objects. Raises TypeError for results that make no column. Cost: 0.2 us a key and column.
        """
        self._refuse_if_stale()
        if self._made is None:
            columns = {name: _column(name, values) for name, values in self._columns().items()}
            arrays = self._config.columnar == "numpy"
            self._made = {n: _array(column) for n, column in columns.items()} if arrays else pa.table(columns)
        return self._made

    def __len__(self) -> int:
        self._refuse_if_stale()
        return sum(partial[0] for partials in self._windows[1] for partial in partials)

    def _columns(self) -> dict[str, Sequence[Any]]:
        names, keys, windows = self._config.key or (), list(self._windows[0]), self._windows[1]
        fields: list[Any] = [keys] if len(names) == 1 else list(zip(*keys, strict=True)) if names else []
        return dict(zip(names, fields, strict=True)) | self._aggregation.results(windows)


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return values as a column. Not dicts and tuples: Arrow would make structs of all keys' fields of them, and lists."""
    if any(issubclass(kind, dict | tuple) for kind in set(map(type, values))):
        odd = next(value for value in values if isinstance(value, dict | tuple))
    else:
        try:
            return pa.array(values)
        except UNFIT:
            odd = values[odd_among(values)]
    raise TypeError(
        f"column {name!r} of window.aggregate cannot hold {shown(odd)}, wanted numbers of 64 bits, texts, or other plain values "
        "of one type; let aggregate= give such values (a sum of floats, say), or leave out columnar="
    )


def _array(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return a column as numpy has it; whole numbers and booleans with a None stay what they are, as objects."""
    whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if whole and column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    found: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return found
