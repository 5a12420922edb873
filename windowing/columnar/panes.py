"""ColumnarPaneManager: TimePaneManager that takes a batch of columns without making a row, a key or a value of it; and
TablePaneManager, which hands out columns too.

    batch    ts   k    v         pane ends, keys --coded--> groups, by first arrival     (columns.py)
             1    a    3                                        |
             2    b    5         values of each group ----------+--> its partial         (sums.py)
             1    a    4                                                |
                                 cells of the panes <-------------------+   one step for each pane and key, none for a tuple

Laws: those of TimePaneManager; after a batch it holds what that one would hold, to the last bit and in the same order. What
columns cannot say exactly (sums.py), and windows with gaps between them, go the other's way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from windowing.columnar.columns import Keys, Timestamps, coded
from windowing.columnar.rows import ColumnRows
from windowing.columnar.sums import partials_of
from windowing.columnar.tables import TableWindow
from windowing.core.events import Activation, Effect
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.guard import no_effects, one_for_each
from windowing.core.partials import Partial
from windowing.core.time_panes import KeyedPartials, TimePaneManager

__all__ = ["ColumnarPaneManager", "TablePaneManager", "over_columns"]

_Cells = list[tuple[int, Any, Partial]]


class ColumnarPaneManager(TimePaneManager):
    """Time windows with `aggregate=` over ColumnRows, Timestamps and Keys; rows and lists are taken too.

    >>> from windowing.core import aggregate as agg
    >>> from windowing.core.config import WindowConfig
    >>> from windowing.core.measures import millis
    >>> config = WindowConfig(length=millis(10), slide=millis(10), timestamp="ts", aggregate=agg.sum("v"))
    >>> manager = ColumnarPaneManager(config)
    >>> list(manager.add_batch(ColumnRows(pa.table({"v": [5, 6]})), Timestamps(np.array([1, 12]))))
    []
    >>> [effect.window.aggregate for effect in manager.advance(10) if hasattr(effect, "window")]
    [5]
    """

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order. Cost: some 30 ns a tuple of one key and one value, 1 us for each pane and key."""
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        cells = self._cells_of(payloads, timestamps, keys)
        if cells is None:
            return super().add_batch(payloads, list(timestamps), None if keys is None else list(keys))
        try:
            self._put(cells)
        except BaseException:
            self.guard.fail()
            raise
        self._tally.accepted += len(timestamps)
        return no_effects()

    def _cells_of(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> _Cells | None:
        """Return the cells that a batch touches as they will be, in order of first arrival; None if columns cannot say."""
        if not (isinstance(payloads, ColumnRows) and isinstance(timestamps, Timestamps)) or self._gaps:
            return None
        if keys is not None and not isinstance(keys, Keys):
            return None
        width, offset = self._width, self._offset
        pane_of, ends = coded(offset - (offset - timestamps.array) // width * width)
        key_of, names = (0, [None]) if keys is None else keys.coded()
        groups, distinct = coded(pane_of * len(names) + key_of)
        at = zip(ends[distinct // len(names)].tolist(), (distinct % len(names)).tolist(), strict=True)
        places = [(end, names[number]) for end, number in at]
        panes = self._panes
        held = [panes[end].cells.get(key) if end in panes else None for end, key in places]
        found = partials_of(self._aggregation, payloads.table, groups, held)
        return None if found is None else [(*place, cell) for place, cell in zip(places, found, strict=True)]

    def _put(self, cells: _Cells) -> None:
        for end, key, cell in cells:
            pane = self._panes[end] if end in self._touched else self._pane_of(end)
            before = pane.cells.get(key)
            pane.count += cell[0]
            if before is None:
                self._put_cell(pane, key, cell)
            else:
                pane.count -= before[0]
                before[:] = cell


class TablePaneManager(ColumnarPaneManager):
    """Time windows of a bolt with `aggregate=` and `columnar=`: one window for all keys at an end, its aggregates a table.

    >>> from windowing.core import aggregate as agg
    >>> from windowing.core.config import WindowConfig
    >>> from windowing.core.measures import millis
    >>> options = {"timestamp": "ts", "key": "k", "aggregate": {"n": agg.count()}, "columnar": "arrow"}
    >>> manager = TablePaneManager(WindowConfig.of(length=millis(10), slide=millis(10), **options))
    >>> list(manager.add_batch([{}, {}, {}], [1, 2, 3], ["a", "b", "a"]))
    []
    >>> [effect.window.aggregate.to_pydict() for effect in manager.advance(10) if hasattr(effect, "window")]
    [{'k': ['a', 'b'], 'n': [2, 1]}]
    """

    def _activations(self, windows: Sequence[KeyedPartials], start: int, end: int) -> Iterator[Activation]:
        yield Activation(TableWindow(windows, self._aggregation, self.config, start, end))


def over_columns(executor: WindowedBoltExecutor) -> WindowedBoltExecutor:
    """Let an executor of time windows with `aggregate=` take columns, and hand them out where its bolt says `columnar=`."""
    if type(executor.manager) is TimePaneManager:
        kind = ColumnarPaneManager if executor.config.columnar is None else TablePaneManager
        executor.manager = kind(executor.config, executor.component)
    return executor
