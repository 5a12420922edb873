"""`aggregate=` over columns: a TimePaneManager that adds columnar batches without making a row, a key or a value of them.

    batch    ts   k    v         pane ends, keys --coded--> groups, by first arrival     (rows.py)
             1    a    3                                        |
             2    b    5         values of each group ----------+--> its partial         (partials_of)
             1    a    4                                                |
                                 cells of the panes <-------------------+   one step for each pane and key, none for a tuple

With `columnar=` the windows of all keys that end together are one window (TablePaneManager, TableWindow):

    window.aggregate     k    n    total          one row for each key that has a tuple in the window, by first arrival
                         a    2      7.0          (without key=: one row)
                         b    1      5.0

Laws: those of TimePaneManager; after a batch its state equals that machine's, to the last bit and in the same order: a sum of
floats begins with the value of the cell and is added from left to right (as by numpy's add.at). Where numpy would give another
result, the batch is added as rows: values that are not numbers, sums that may not fit 64 bits, -0.0 and NaN in min and max, windows
with gaps between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowing.columnar.rows import (
    UNFIT,
    ColumnRows,
    Keys,
    Numbers,
    Timestamps,
    coded,
    column_named,
    column_of,
    first_misfit,
)
from windowing.errors import quote
from windowing.windows.aggregate import AggregateFunction, Averaged, Counted, Largest, Smallest, Summed, field_of
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Expired
from windowing.windows.panes import PaneWindow, TimePaneManager, Windows
from windowing.windows.partials import Aggregation, Partial

Before = list[Any] | None
"""The accumulator of each group so far (None: none), or None if no group has one."""


class _FieldValues(NamedTuple):
    """The values of a field that are not None, the group of each, the number of values of each group; whether they are floats."""

    values: Numbers
    groups: Numbers
    counts: Numbers
    floats: bool


def partials_of(
    aggregation: Aggregation, table: pa.Table, groups: Numbers, held: Sequence[Partial | None]
) -> list[Partial] | None:
    """Return the partial of each group with the rows of `table` added; None where numpy's result may differ from a row at a time.

    groups: the group of each row. held: the partial of each group so far; it is not changed. Raises ConfigError for a missing
    field.
    """
    sizes = np.bincount(groups, minlength=len(held))
    anything = any(held)
    known: dict[str, _FieldValues | None] = {}
    found: list[list[Any]] = []
    for at, (_, part) in enumerate(aggregation.parts, start=1):
        field = field_of(part)
        if field is None:
            return None
        if field not in known:
            known[field] = _read(column_named(table, field), groups, sizes)
        before = [None if cell is None else cell[at] for cell in held] if anything else None
        after = _added(part, known[field], before)
        if after is None:
            return None
        found.append(after)
    counts = sizes.tolist()
    if anything:
        counts = [size if cell is None else cell[0] + size for cell, size in zip(held, counts, strict=True)]
    return list(map(list, zip(counts, *found, strict=True)))


def folded(
    part: AggregateFunction, values: pa.Array, groups: Numbers, before: Sequence[Any], nothing: object
) -> list[Any] | None:
    """Return the accumulator of each group, `before` so far (`nothing`: none), with these values added, each to its group; None
    where numpy's result may differ from a value at a time. No value is None, and each group has at least one.
    """
    column = _read(values, groups, np.ones(len(before), np.int64))
    return None if column is None else _accumulated(part, column, len(before), before, nothing)


def _read(values: pa.Array | pa.ChunkedArray, groups: Numbers, sizes: Numbers) -> _FieldValues | None:
    """Return a column as numpy takes it, None for other types. sizes: the number of rows of each group."""
    floats = pa.types.is_float32(values.type) or pa.types.is_float64(values.type)
    if not floats and not pa.types.is_signed_integer(values.type):
        return None
    if values.null_count:
        groups = groups[values.is_valid().to_numpy(zero_copy_only=False)]
        values, sizes = values.drop_null(), np.bincount(groups, minlength=len(sizes))
    return _FieldValues(values.to_numpy().astype(np.float64 if floats else np.int64, copy=False), groups, sizes, floats)


def _added(part: AggregateFunction, column: _FieldValues | None, before: Before) -> list[Any] | None:
    """Return the accumulator of each group after its values are added, None if numpy cannot add them."""
    if column is None or type(part) not in (Counted, Summed, Averaged, Smallest, Largest):
        return None
    added: list[int] = column.counts.tolist()
    if type(part) is Counted:
        return added if before is None else [(acc or 0) + count for acc, count in zip(before, added, strict=True)]
    averaged = type(part) is Averaged
    sums = [None if acc is None else acc[0] for acc in before] if averaged and before is not None else before
    found = _accumulated(Summed() if averaged else part, column, len(added), sums)
    if found is None:
        return None
    if averaged:
        had = repeat(0) if before is None else (0 if acc is None else acc[1] for acc in before)
        found = [[total, old + new] for total, old, new in zip(found, had, added, strict=False)]
    if np.count_nonzero(column.counts) == len(added):
        return found
    olds = repeat(None) if before is None else before
    return [new if count else old for new, count, old in zip(found, added, olds, strict=False)]


_INT64 = np.iinfo(np.int64)
_JOINS: dict[tuple[type, bool], tuple[np.ufunc, Any]] = {
    (Summed, False): (np.add, 0),
    (Summed, True): (np.add, -0.0),  # -0.0 + 0.0 is 0.0, and -0.0 + -0.0 is -0.0
    (Smallest, False): (np.minimum, _INT64.max),
    (Smallest, True): (np.minimum, np.inf),
    (Largest, False): (np.maximum, _INT64.min),
    (Largest, True): (np.maximum, -np.inf),
}
"""What joins two accumulators, and what changes no accumulator that it is joined with; by whether they are floats."""


def _accumulated(
    part: AggregateFunction, column: _FieldValues, count: int, before: Sequence[Any] | None, nothing: object = None
) -> list[Any] | None:
    """Return the sum, minimum or maximum of each group, which begins with `before` (`nothing`: none); None if numpy's may differ
    from Python's. That of a group without a value or a beginning has no meaning.
    """
    values, groups, _, floats = column
    kinds = set(map(type, before or ()))
    # After a batch of another type an accumulator may be of that type.
    if not kinds <= {float if floats else int, type(nothing)}:
        return None
    join, neutral = _JOINS[type(part), floats]
    if before is None or kinds == {type(nothing)}:
        found, begins = np.full(count, neutral, values.dtype), False
    else:
        begun = [neutral if acc is nothing else acc for acc in before] if type(nothing) in kinds else before
        try:
            found, begins = np.array(begun, values.dtype), True
        except OverflowError:  # a sum beyond 64 bits
            return None
    if floats and join is np.add:
        with np.errstate(all="ignore"):
            join.at(found, groups, values)
    elif floats and (_has_nan_or_minus_zero(values) or (begins and _has_nan_or_minus_zero(found))):
        return None
    elif join is np.add and len(values):
        if (_magnitude(found) if begins else 0) + _magnitude(values) * len(values) > _INT64.max:
            return None
        join.at(found, groups, values)
    else:
        join.at(found, groups, values)
    accumulators: list[Any] = found.tolist()
    return accumulators


def _has_nan_or_minus_zero(values: Numbers) -> bool:
    """Return whether there is a NaN or a -0.0, which numpy orders in another way than Python code does here."""
    return bool(np.any(np.isnan(values) | (np.signbit(values) & (values == 0.0))))


def _magnitude(values: Numbers) -> int:
    """Return the largest distance from 0; as an unsigned number, because -2**63 has no positive one of 64 bits."""
    return int(np.maximum.reduce(np.abs(values).view(np.uint64)))


# -- TableWindow -----------------------------------------------------------------------------------------------------------------


class TableWindow(PaneWindow):
    """A window of the partials of all keys; its result is computed when it is first read. Its `key` is None."""

    __slots__ = ("_config", "_result", "_windows")

    def __init__(self, windows: Windows, aggregation: Aggregation, config: WindowConfig, start: int, end: int) -> None:
        super().__init__((), aggregation, start, end, None)
        self._windows, self._config = windows, config
        self._result: Any = None

    @property
    def aggregate(self) -> Any:
        """The key's fields and the results of `aggregate=`, a row for each key: a pyarrow.Table, or numpy arrays by name.

        A column without any value has Arrow's type null; an array of whole numbers or booleans with a None among them is one of
        objects. Raises TypeError for results that cannot be a column. Cost: 0.2 us a key and column.
        """
        if not self._valid:
            raise self._stale()
        if self._result is None:
            columns = {name: _result_column(name, values) for name, values in self._columns().items()}
            arrays = self._config.columnar == "numpy"
            self._result = {n: _result_array(column) for n, column in columns.items()} if arrays else pa.table(columns)
        return self._result

    def __len__(self) -> int:
        if not self._valid:
            raise self._stale()
        return sum(partial[0] for partials in self._windows[1] for partial in partials)

    def _columns(self) -> dict[str, Sequence[Any]]:
        names, keys, windows = self._config.key or (), list(self._windows[0]), self._windows[1]
        fields: list[Any] = [keys] if len(names) == 1 else list(zip(*keys, strict=True)) if names else []
        return dict(zip(names, fields, strict=True)) | self._aggregation.results(windows)


def _result_column(name: str, values: Sequence[Any]) -> pa.Array:
    """Return values as a column. Dicts and tuples are refused, because Arrow would make structs with the fields of all, and
    lists.
    """
    if any(issubclass(kind, dict | tuple) for kind in set(map(type, values))):
        odd = next(value for value in values if isinstance(value, dict | tuple))
    else:
        try:
            return column_of(values)
        except UNFIT:
            odd = values[first_misfit(values)]
    raise TypeError(
        f"column {name!r} of window.aggregate cannot hold {quote(odd)}, wanted numbers of 64 bits, texts, or other plain values "
        "of one type; let aggregate= give such values (a sum of floats, say), or leave out columnar="
    )


def _result_array(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return a column as a numpy array; whole numbers and booleans with a None among them become objects."""
    whole = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    if whole and column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    found: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return found


# -- ColumnarPaneManager ---------------------------------------------------------------------------------------------------------


_WIDEST = 2**61  # milliseconds: added to a timestamp it still fits into 64 bits


class ColumnarPaneManager(TimePaneManager):
    """Time windows with `aggregate=` over ColumnRows, Timestamps and Keys; rows and lists are accepted too.

    >>> import pyarrow as pa
    >>> from windowing.windows import aggregate as agg
    >>> from windowing.windows.config import WindowConfig
    >>> from windowing.windows.measures import millis
    >>> config = WindowConfig(length=millis(10), slide=millis(10), timestamp="ts", aggregate=agg.sum("v"))
    >>> manager = ColumnarPaneManager(config)
    >>> list(manager.add_batch(ColumnRows(pa.table({"v": [5, 6]})), Timestamps(np.array([1, 12]))))
    []
    >>> [effect.window.aggregate for effect in manager.advance(10) if hasattr(effect, "window")]
    [5]
    """

    takes_columns = True

    def _prepared(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> Callable[[], None]:
        """Return a function that adds the batch. Cost: some 30 ns a tuple of one key and one value, 1 us for each pane and key."""
        groups = self._groups_of(payloads, timestamps, keys)
        held = [] if groups is None else self._cells_so_far(groups)
        cells = groups and partials_of(self._aggregation, ColumnRows.of(payloads).table, groups.of_tuple, held)
        if groups is None or cells is None:
            return super()._prepared(payloads, list(timestamps), None if keys is None else list(keys))
        return partial(self._store_cells, groups, held, cells)

    def _groups_of(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> _Groups | None:
        """Return the groups of a batch, None if it is not columnar or has to be added tuple by tuple."""
        in_columns = isinstance(payloads, ColumnRows) and isinstance(timestamps, Timestamps)
        if not in_columns or not len(timestamps) or self._gaps or not (keys is None or isinstance(keys, Keys)):
            return None
        assert isinstance(timestamps, Timestamps)
        width, offset = self._width, self._offset
        if max(width, offset) > _WIDEST:
            return None
        return _grouped(offset - (offset - timestamps.array) // width * width, keys)

    def _cells_so_far(self, groups: _Groups) -> list[Partial | None]:
        """Return the partial of each group so far."""
        held: list[Partial | None] = []
        for end, low, high in groups.runs():
            pane = self._panes.get(end)
            held += repeat(None, high - low) if pane is None else map(pane.get, groups.keys[low:high])
        return held

    def _store_cells(self, groups: _Groups, held: Sequence[Partial | None], cells: Sequence[Partial]) -> None:
        """Store the cells of a batch in the panes; they replace those of `held`."""
        self._number_keys(groups.names)
        for (end, low, high), count in zip(groups.runs(), groups.counts, strict=True):
            pane, keys = self._pane_of(end), groups.keys[low:high]
            pane.count += count
            if any(held[low:high]):
                for key, before, cell in zip(keys, held[low:high], cells[low:high], strict=True):
                    if before is None:
                        pane[key] = cell
                    else:
                        before[:] = cell
            else:
                pane.update(zip(keys, cells[low:high], strict=True))
            self._reach(end, keys)
            self._note(end, keys)


class _Groups(NamedTuple):
    """The tuples of a batch by pane and key: pane by pane, in each the keys by first arrival.

    of_tuple: the number of each tuple's group. ends, counts: the end of each pane, and the number of its tuples. bounds: the groups
    of pane i are those from bounds[i] to bounds[i + 1]. keys: the key of each group. names: all keys, by first arrival.
    """

    of_tuple: Numbers
    ends: list[int]
    counts: list[int]
    bounds: list[int]
    keys: list[Any]
    names: list[Any]

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield the end of each pane, with the bounds of its groups."""
        return zip(self.ends, self.bounds, self.bounds[1:], strict=False)


def _grouped(ends: Numbers, keys: Keys | None) -> _Groups:
    """Group at least one tuple by the ends of their panes and by key."""
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
    """Time windows of a bolt with `aggregate=` and `columnar=`: one window for all keys at an end, with a table of their
    aggregates, and one Expired effect for all tuples that expire in an advance.

    >>> from windowing.windows import aggregate as agg
    >>> from windowing.windows.config import WindowConfig
    >>> from windowing.windows.measures import millis
    >>> options = {"timestamp": "ts", "key": "k", "aggregate": {"n": agg.count()}, "columnar": "arrow"}
    >>> manager = TablePaneManager(WindowConfig.of(length=millis(10), slide=millis(10), **options))
    >>> list(manager.add_batch([{}, {}, {}], [1, 2, 3], ["a", "b", "a"]))
    []
    >>> [effect.window.aggregate.to_pydict() for effect in manager.advance(10) if hasattr(effect, "window")]
    [{'k': ['a', 'b'], 'n': [2, 1]}]
    """

    shows_columns = True

    def _activations(self, windows: Windows, start: int, end: int) -> Iterator[Activation]:
        return iter((Activation(TableWindow(windows, self._aggregation, self.config, start, end)),))

    def _expired(self, until: int) -> Iterator[Expired]:
        panes = self._drop_panes(until)
        self._forget_keys(set().union(*panes), panes)
        return iter((Expired(sum(pane.count for pane in panes), None),) if panes else ())
