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
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from windowing.columnar.columns import Keys, Timestamps, coded
from windowing.columnar.rows import ColumnRows
from windowing.columnar.sums import partials_of
from windowing.columnar.tables import TableWindow
from windowing.core.events import Activation, Effect
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.guard import no_effects, one_for_each
from windowing.core.partials import Partial
from windowing.core.time_panes import TimePaneManager, Windows

__all__ = ["ColumnarPaneManager", "TablePaneManager", "over_columns"]

Numbers = np.ndarray[Any, Any]
_WIDEST = 2**61  # milliseconds: with a timestamp, still in 64 bits


class ColumnarPaneManager(TimePaneManager):
    """Time windows with `aggregate=` over ColumnRows, Timestamps and Keys; rows and lists are taken too.

    >>> import pyarrow as pa
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
        groups = self._groups_of(payloads, timestamps, keys)
        held = [] if groups is None else self._held(groups)
        cells = groups and partials_of(self._aggregation, ColumnRows.of(payloads).table, groups.of_tuple, held)
        if groups is None or cells is None:
            return super().add_batch(payloads, list(timestamps), None if keys is None else list(keys))
        try:
            self._put(groups, held, cells)
        except BaseException:
            self.guard.fail()
            raise
        self._tally.accepted += len(timestamps)
        return no_effects()

    def _groups_of(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> _Groups | None:
        """Return the groups of a batch, None if it does not lie in columns, or has to be looked at tuple by tuple."""
        in_columns = isinstance(payloads, ColumnRows) and isinstance(timestamps, Timestamps)
        if not in_columns or not len(timestamps) or self._gaps or not (keys is None or isinstance(keys, Keys)):
            return None
        assert isinstance(timestamps, Timestamps)
        width, offset = self._width, self._offset
        if width > _WIDEST:
            return None
        return _grouped(offset - (offset - timestamps.array) // width * width, keys)

    def _held(self, groups: _Groups) -> list[Partial | None]:
        """Return what there is of each group so far."""
        held: list[Partial | None] = []
        for end, low, high in groups.runs():
            pane = self._panes.get(end)
            held += repeat(None, high - low) if pane is None else map(pane.cells.get, groups.keys[low:high])
        return held

    def _put(self, groups: _Groups, held: Sequence[Partial | None], cells: Sequence[Partial]) -> None:
        """Put the cells of a batch in the places of those held, where there are any."""
        for key in groups.names:
            self._meet(key)
        newest = self._newest
        for (end, low, high), count in zip(groups.runs(), groups.counts, strict=True):
            pane, keys = self._pane_of(end), groups.keys[low:high]
            pane.count += count
            if any(held[low:high]):
                for key, before, cell in zip(keys, held[low:high], cells[low:high], strict=True):
                    if before is None:
                        pane.cells[key] = cell
                    else:
                        before[:] = cell
            else:
                pane.cells.update(zip(keys, cells[low:high], strict=True))
            if end == self._ends[-1]:
                newest.update(dict.fromkeys(keys, end))
            else:
                newest.update((key, end) for key in keys if newest.get(key, end) <= end)


class _Groups(NamedTuple):
    """The tuples of a batch by pane and key: pane by pane, in each the keys by first arrival.

    of_tuple: the number of each tuple's group. ends, counts: the end of each pane, and how many tuples it gets. bounds: the groups
    of pane i are those from bounds[i] to bounds[i + 1]. keys: the key of each group. names: all keys, by first arrival.
    """

    of_tuple: Numbers
    ends: list[int]
    counts: list[int]
    bounds: list[int]
    keys: list[Any]
    names: list[Any]

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the end of each pane, and its first and last group."""
        return zip(self.ends, self.bounds, self.bounds[1:], strict=False)


def _grouped(ends: Numbers, keys: Keys | None) -> _Groups:
    """Group tuples, at least one, by the ends of their panes and by key."""
    pane_of, pane_ends = coded(ends)
    key_of, names = (0, [None]) if keys is None else keys.coded()
    groups, distinct = coded(pane_of * len(names) + key_of)
    end_of = pane_ends[distinct // len(names)]
    order = np.argsort(end_of, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    in_order = end_of[order]
    starts = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
    counts = np.add.reduceat(np.bincount(groups)[order], starts)
    of_key = [names[number] for number in (distinct % len(names))[order].tolist()]
    bounds = [*starts.tolist(), len(order)]
    return _Groups(place[groups], in_order[starts].tolist(), counts.tolist(), bounds, of_key, names)


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

    def _activations(self, windows: Windows, start: int, end: int) -> Iterator[Activation]:
        yield Activation(TableWindow(windows, self._aggregation, self.config, start, end))


def over_columns(executor: WindowedBoltExecutor) -> WindowedBoltExecutor:
    """Let an executor of time windows with `aggregate=` take columns, and hand them out where its bolt says `columnar=`."""
    if type(executor.manager) is TimePaneManager:
        kind = ColumnarPaneManager if executor.config.columnar is None else TablePaneManager
        executor.manager = kind(executor.config, executor.component)
    return executor
