"""Partial results: the state of a pane (Aggregation), and the merge of the panes of a sliding window (SlidingMerge).

    payloads   {"delay": 3, "carrier": "UA"}   {"delay": 5, "carrier": "AA"}
    values     3                               5                              if one field is read: the value itself
               (3, "UA")                       (5, "AA")                      if several are read: a row of values
    partial    [2, 8, "AA"]                                                   the number of tuples, then an accumulator for each
                                                                              aggregator except count(), which is that number

    panes       |  a  |  b  |  c  |  d  |  e  |  f  |       length: 4 panes; blocks of 4, the first ends with d
    head         abcd   bcd   cd    d                        the merge from each pane to the end of the block, right to left
    tail                                e     ef             the merge of the next block so far, left to right
    window b-e         [      bcd    ][ e ]                  one entry of the head, then the tail

Laws
- The fields of a payload are read once, on arrival, and the payload is not kept; a partial is plain data; adding values in one run
  or in several gives the same, to the last bit.
- Which panes are merged depends on where blocks end (multiples of the length, plus the offset), not on when a window is requested,
  so a machine restored from a snapshot gives the same to the last bit. Where a merged pane changes, the cells of the changed keys
  are merged again in the same order (`change`). A window costs two or three merges a key.

Source: van Herk's and Gil and Werman's sliding minimum, for any associative merge.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy, deepcopy
from functools import partial as bind
from functools import reduce
from operator import itemgetter
from typing import Any

from windowing.errors import BoltError, quote
from windowing.schema.rows import reader_of
from windowing.windows.aggregate import (
    AggregateFunction,
    Averaged,
    Counted,
    Largest,
    Smallest,
    Summed,
    field_of,
    spec_of,
)
from windowing.windows.events import column_of
from windowing.windows.guard import fault

Partial = list[Any]
"""The number of tuples, and one accumulator for each aggregator that is not count()."""

_SCALARS = (int, float, str, bool, type(None))
_FLAT = frozenset(_SCALARS)
_RESULT_IS_ACCUMULATOR = (Counted, Summed, Smallest, Largest)
_OWN = (*_RESULT_IS_ACCUMULATOR, Averaged)


class Aggregation:
    """The compiled form of `aggregate=`. A field is an item of a mapping or a record, else an attribute; without a field the value
    is the payload itself. Made once for each task.

    >>> from windowing.windows import aggregate as agg
    >>> both = Aggregation({"flights": agg.count(), "worst": agg.max("delay")})
    >>> both.fold([{"delay": 3}, {"delay": 5}])
    {'flights': 2, 'worst': 5}
    """

    def __init__(self, aggregate: Mapping[str, AggregateFunction] | AggregateFunction, component: str = "bolt") -> None:
        self.component = component
        self.spec = spec_of(aggregate)
        # One of a user's may set an attribute of itself: it sets that of a copy, and the declared one keeps its definition.
        parts = aggregate if isinstance(aggregate, Mapping) else {"": aggregate}
        named = {name: copy(part) for name, part in parts.items()}
        self._names = list(named) if isinstance(aggregate, Mapping) else None
        counting = {name for name, part in named.items() if type(part) is Counted and part.field is None}
        kept = [name for name in named if name not in counting]
        self.parts: list[tuple[str, AggregateFunction]] = [(name, named[name]) for name in kept]
        self._fields = list(dict.fromkeys(field_of(part) for _, part in self.parts))
        self.whole = self._fields == [None]
        """Whether the value of a payload is the payload itself."""
        self._named = bool(self._fields) and None not in self._fields
        # The place of an accumulator, its function, and the column of its value where several fields are read.
        self._adders: list[tuple[int, Callable[[Any, Any], Any], int | None]] = []
        self._runs: list[tuple[int, Callable[[Any, Sequence[Any]], Any], int | None]] = []
        for at, (_, part) in enumerate(self.parts, start=1):
            column = self._fields.index(field_of(part)) if len(self._fields) > 1 else None
            self._adders.append((at, part.add, column))
            self._runs.append((at, getattr(part, "add_many", None) or bind(_add_each, part.add), column))
        self._merges = [operator.add, *(part.merge for _, part in self.parts)]
        # (add, add_many, merge) of the only part besides count(), the most common case; without a loop it takes half the time.
        self._only = (self._adders[0][1], self._runs[0][1], self._merges[1]) if len(self.parts) == 1 else None
        self._places = [(name, 0 if name in counting else 1 + kept.index(name)) for name in named]
        own = all(type(part) in _OWN for _, part in self.parts)
        self._empty: Partial | None = [0, *(part.init() for _, part in self.parts)] if own else None
        plainly = all(type(part) in _RESULT_IS_ACCUMULATOR for _, part in self.parts)
        self._finish = None if plainly else [lambda count: count, *(_finisher(part) for _, part in self.parts)]

    def values(self, payloads: Sequence[Any]) -> Sequence[Any]:
        """Return the values that the aggregators read of each payload. Raises ConfigError for a missing field. Cost: C speed."""
        columns = [column_of(field, payloads, f"aggregate= of bolt {self.component!r}") for field in self._fields]
        if len(columns) == 1:
            return columns[0]
        return list(zip(*columns, strict=True)) if columns else [None] * len(payloads)

    def value(self, payload: Any) -> Any:
        """Return what `values` returns for one payload, in a third of the time where all aggregators read fields."""
        if self._named:
            try:
                return reader_of(payload.__class__, *self._fields)(payload)
            except (KeyError, AttributeError):
                pass  # `values` raises the error that names the field
        return self.values((payload,))[0]

    def init(self) -> Partial:
        """Return an empty partial as a new list; our own accumulators are never changed in place, so they are shared."""
        if self._empty is not None:
            return self._empty.copy()
        partial: Partial = [0]
        try:
            for _, part in self.parts:
                partial.append(part.init())
        except Exception as problem:
            raise self._fault(len(partial), "in init", problem) from problem
        return partial

    def add(self, partial: Partial, value: Any) -> None:
        """Add one value to a partial, in place."""
        at = 1
        try:
            if self._only is not None:
                partial[1] = self._only[0](partial[1], value)
            else:
                for at, add, column in self._adders:
                    partial[at] = add(partial[at], value if column is None else value[column])
        except Exception as problem:
            raise self._fault(at, f"given {quote(value)}", problem) from problem
        partial[0] += 1

    def add_many(self, partial: Partial, values: Sequence[Any]) -> None:
        """Add values in order to a partial, in place; the result is that of one `add` for each."""
        at = 1
        columns = list(zip(*values, strict=True)) if len(self._fields) > 1 else ()
        try:
            if self._only is not None:
                partial[1] = self._only[1](partial[1], values)
            else:
                for at, add_run, column in self._runs:
                    partial[at] = add_run(partial[at], values if column is None else columns[column])
        except Exception as problem:
            raise self._fault(at, f"given {len(values)} values", problem) from problem
        partial[0] += len(values)

    def of(self, values: Sequence[Any]) -> Partial:
        """Return the partial of these values, as a new list."""
        if self._only is not None and self._empty is not None:
            try:
                return [len(values), self._only[1](self._empty[1], values)]
            except Exception as problem:
                raise self._fault(1, f"given {len(values)} values", problem) from problem
        partial = self.init()
        self.add_many(partial, values)
        return partial

    def of_each(self, runs: Collection[Sequence[Any]]) -> list[Partial]:
        """Return the partial of each run of values, as `of`, for a sum at half its cost."""
        part = self.parts[0][1] if len(self.parts) == 1 else None
        if type(part) is Summed:
            with suppress(Exception):  # a value is None or no number; `of` adds or explains it
                return [[len(run), total] for run, total in zip(runs, part.of_each(runs), strict=True)]
        return list(map(self.of, runs))

    def merge(self, older: Partial, newer: Partial) -> Partial:
        """Return the merge of both partials, as a new list."""
        try:
            if self._only is not None:
                return [older[0] + newer[0], self._only[2](older[1], newer[1])]
            return list(map(operator.call, self._merges, older, newer))
        except Exception as problem:
            raise self._merge_fault(problem) from problem

    def _fault(self, at: int, doing: str, problem: Exception) -> BoltError:
        named, part = self.parts[at - 1]
        name = "" if self._names is None else f" {named!r}"
        field = field_of(part)
        of = "" if field is None else f" of field {field!r}"
        return fault(self.component, f"its aggregate{name}{of}, {doing}", problem)

    def _merge_fault(self, problem: Exception) -> BoltError:
        return fault(self.component, "its aggregate=, merging two partial results", problem)

    def result(self, partials: Sequence[Partial]) -> Any:
        """Return the bolt's result for one partial, or for two, the older first: one value, or a dict of values by name."""
        merged = partials[0] if len(partials) == 1 else self.merge(partials[0], partials[1])
        if self._finish is not None:
            merged = [finish(acc) for finish, acc in zip(self._finish, merged, strict=True)]
        if self._names is None:
            return merged[self._places[0][1]]
        found = {}
        for name, at in self._places:  # in Python 3.11 a comprehension is a call, which takes longer than all this
            found[name] = merged[at]
        return found

    def results(self, windows: Sequence[Sequence[Partial]]) -> dict[str, list[Any]]:
        """Return `result` for each of many windows, as a column for each name. Cost: 0.1 to 0.3 us a window and name."""
        columns = {}
        for name, at in self._places:
            merge = self._merges[at]
            try:
                column = [one[0][at] if len(one) == 1 else merge(one[0][at], one[1][at]) for one in windows]
            except Exception as problem:
                raise self._merge_fault(problem) from problem
            columns[name] = column if self._finish is None else list(map(self._finish[at], column))
        return columns

    def fold(self, payloads: Sequence[Any]) -> Any:
        """Return the bolt's result for these payloads."""
        return self.result([self.of(self.values(payloads))])


def _add_each(add: Callable[[Any, Any], Any], acc: Any, values: Sequence[Any]) -> Any:
    return reduce(add, values, acc)


def _finisher(part: AggregateFunction) -> Callable[[Any], Any]:
    """Return a function from an accumulator to the result."""
    if type(part) in _OWN:
        return part.result
    # The accumulator is first merged with an empty one, so that a bolt never gets the accumulator itself, which it might change.
    return lambda acc: part.result(part.merge(part.init(), acc))


def plain(partial: Sequence[Any]) -> list[Any]:
    """Return a deep copy of a partial, or of a column of accumulators, for a snapshot."""
    if _FLAT.issuperset(map(type, partial)):
        return list(partial)
    return [acc if isinstance(acc, _SCALARS) else deepcopy(acc) for acc in partial]


# -- SlidingMerge ----------------------------------------------------------------------------------------------------------------


Cells = Mapping[Any, Partial]
"""The partials of one pane by key."""

_Entry = tuple[Partial, Any]
"""A key's partial from one pane of a block to the block's end, and its entry for the next pane that has the key, or None."""


class SlidingMerge:
    """The windows `(end - length, end]` over panes, requested in ascending order of `end`.

    `ends` is the sorted list of the panes' inclusive ends, `panes` has the cells of each; both are only read. Blocks end at the
    multiples of `length` plus `offset`: a window is the head, the rest of a block, and the tail, the begin of the next one. Cost:
    amortised three merges for each key and window, for any length.
    """

    def __init__(
        self,
        ends: Sequence[int],
        panes: Mapping[int, Cells],
        merge: Callable[[Partial, Partial], Partial],
        length: int,
        offset: int,
    ) -> None:
        self._ends, self._panes, self._merge = ends, panes, merge
        self._length, self._offset = length, offset
        # The end of the head's block, after which the tail begins; None before the first window.
        self._edge: int | None = None
        self._reached = 0  # the panes up to here are merged
        self._head: dict[Any, _Entry] = {}
        self._leaving: deque[tuple[int, Cells]] = deque()  # the panes of the head, oldest first
        self._tail: dict[Any, Partial] = {}
        self._newest: int | None = None  # the newest pane that was merged into a tail
        self._before: dict[Any, Partial | None] = {}  # the tail without that pane, of each key that it has
        self._changed: defaultdict[int, set[Any]] = defaultdict(set)  # what was noted, by pane

    def window(self, end: int) -> tuple[Mapping[Any, _Entry], Mapping[Any, Partial]]:
        """Return the head (an entry's first item is the partial) and the tail of the window; valid until the next call."""
        edge = self._offset - (self._offset - end) // self._length * self._length - self._length
        start = end - self._length
        if edge != self._edge:
            self._edge = self._reached = edge
            self._head, self._tail = {}, {}
            self._leaving = deque((each, self._panes[each]) for each in self._between(start, edge))
            self._merge_head()
        self._leave(start)
        self._merge_tail(self._reached, end)
        self._reached = end
        return self._head, self._tail

    def note(self, end: int, keys: Iterable[Any]) -> bool:
        """Note that the cells of these keys in a pane change or are new; return whether the pane is merged already."""
        if self._edge is None or end > self._reached:
            return False
        self._changed[end].update(keys)
        return True

    def settle(self) -> None:
        """Merge again what was noted, before the next window and before a pane is dropped.

        Cost: a merge for each key of the newest pane; for a key of other panes all its cells in the head or the tail.
        """
        if self._edge is None or not self._changed:
            return
        in_head, in_tail = set[Any](), set[Any]()
        for end, keys in self._changed.items():
            if end <= self._edge:
                in_head.update(keys)
                at = bisect_left(self._leaving, end, key=itemgetter(0))
                if at == len(self._leaving) or self._leaving[at][0] != end:
                    self._leaving.insert(at, (end, self._panes[end]))
            elif end != self._newest:
                in_tail.update(keys)
            else:
                cells, tail, before = self._panes[end], self._tail, self._before
                for key in keys:
                    so_far = before.setdefault(key, tail.get(key))
                    tail[key] = cells[key] if so_far is None else self._merge(so_far, cells[key])
        if in_head:
            for key in in_head:
                self._head.pop(key, None)
            self._merge_head(in_head)
        if in_tail:
            for key in in_tail:
                self._tail.pop(key, None)
            self._merge_tail(self._edge, self._reached, in_tail)
        self._changed.clear()

    def _merge_head(self, keys: Set[Any] | None = None) -> None:
        """Merge the panes of the head, or the cells of these keys, which it does not have."""
        head, merge = self._head, self._merge
        for _, cells in reversed(self._leaving):
            for key, partial in _cells_of(cells, keys):
                later = head.get(key)
                head[key] = (partial if later is None else merge(partial, later[0]), later)

    def _leave(self, until: int) -> None:
        """Remove the panes that end at or before `until` from the head."""
        head, leaving = self._head, self._leaving
        while leaving and leaving[0][0] <= until:
            for key in leaving.popleft()[1]:
                later = head[key][1]
                if later is None:
                    del head[key]
                else:
                    head[key] = later

    def _merge_tail(self, after: int, until: int, keys: Set[Any] | None = None) -> None:
        """Merge the panes in (after, until] into the tail, or the cells of these keys."""
        tail, merge, ends = self._tail, self._merge, self._between(after, until)
        for end in ends:
            cells = _cells_of(self._panes[end], keys)
            if end == ends[-1]:
                if end != self._newest:
                    self._newest, self._before = end, {}
                self._before.update([(key, tail.get(key)) for key, _ in cells])
            for key, partial in cells:
                so_far = tail.get(key)
                tail[key] = partial if so_far is None else merge(so_far, partial)

    def _between(self, after: int, until: int) -> Sequence[int]:
        return self._ends[bisect_right(self._ends, after) : bisect_right(self._ends, until)]


def _cells_of(cells: Cells, keys: Set[Any] | None) -> Collection[tuple[Any, Partial]]:
    """Return the cells of a pane; of these keys only, if any are given."""
    return cells.items() if keys is None else [(key, cells[key]) for key in cells.keys() & keys]


class KeyMerge:
    """The same merges for one key, whose numbered panes do not change once they are merged: an own SlidingMerge for each of many
    keys would take 2 KB a key more.

    >>> ends, partials, merge = [2, 4, 6, 8], [["a"], ["b"], ["c"], ["d"]], KeyMerge()
    >>> [merge.window(end, 4, ends, partials, lambda a, b: [a[0] + b[0]]) for end in (4, 6, 8)]
    [(['ab'],), (['b'], ['c']), (['cd'],)]
    """

    __slots__ = ("_edge", "_head", "_reached", "_tail")

    def __init__(self) -> None:
        self._edge = self._reached = -1  # before the first window
        # The panes of the head, newest first: the end of each, and the merge from it to the end of the block.
        self._head: list[tuple[int, Partial]] = []
        self._tail: Partial | None = None

    def window(
        self,
        end: int,
        length: int,
        ends: Sequence[int],
        partials: Sequence[Partial],
        merge: Callable[[Partial, Partial], Partial],
    ) -> Sequence[Partial]:
        """Return the head and the tail of the window, those of both that it has; `ends` and `partials` are those of the panes."""
        edge = (end - 1) // length * length
        start, head = end - length, self._head
        if edge != self._edge:
            self._edge = self._reached = edge
            head.clear()
            self._tail = None
            for at in reversed(range(bisect_right(ends, start), bisect_right(ends, edge))):
                head.append((ends[at], merge(partials[at], head[-1][1]) if head else partials[at]))
        while head and head[-1][0] <= start:
            head.pop()
        tail = self._tail
        for at in range(bisect_right(ends, self._reached), bisect_right(ends, end)):
            tail = partials[at] if tail is None else merge(tail, partials[at])
        self._tail, self._reached = tail, end
        if not head:
            return () if tail is None else (tail,)
        return (head[-1][1],) if tail is None else (head[-1][1], tail)
