"""Panes: the windows of a bolt with `aggregate=`, which keep partial results and no tuples.

A pane is as wide as the greatest common divisor of length and slide, so every window begins and ends at the edge of a pane.

NumberPaneManager: length and slide are Counts, a pane is a run of numbers of one key.

    length 6, slide 4            pane = 2
    numbers    | 1  2 | 3  4 | 5  6 | 7  ?  |            a partial each; 7 is kept as (timestamp, value) until it is numbered
    windows    [- up to 4 ---]
                      [------ up to 8 -----]

TimePaneManager: length and slide are Durations, a pane has a cell for each key. An advance jumps from end to end and visits only
keys with a tuple in the window.

    length 6, slide 4                pane = 2
    pane ends     2     4     6     8    10
    key "a"     | 3 |     |  4  |     |  5  |        a cell each: a partial, whose first item is the number of tuples
    key "b"     | 1 | 1   |     |     |     |
    windows     [------ 6 ------]                    ends at 6: "a" 7, then "b" 2
                            [------ 10 -----]        ends at 10: "a" 9

Inside a pane values are added in arrival order. A tuple that no window can hold (a slide longer than the length) is counted in a
pane of its own millisecond, and its value is not added.

Laws: firings, expiries and tally are those of WindowManager on the same tuples; after a restore, results are the same to the last
bit. Cost: O(1) a tuple, O(1) a key and window for any length (partials.py); other keys cost nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial as bind
from heapq import heappop, heappush
from itertools import chain, repeat
from math import gcd
from operator import itemgetter
from typing import Any, NamedTuple

from windowing.errors import ConfigError, SnapshotError, quote
from windowing.windows.assigners import Firing, QueueProgress, WindowAssigner, align_up, assigner_of, first_end
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Effect, Expired, TupleWindow
from windowing.windows.guard import FREE, NO_EFFECTS, one_for_each, refuse_foreign
from windowing.windows.key_state import KeyProgress, StoredKeys, Tally, restored_key
from windowing.windows.manager import KeyedMachine, StoringMachine
from windowing.windows.measures import Count, Duration
from windowing.windows.partials import Aggregation, KeyMerge, Partial, SlidingMerge, plain
from windowing.windows.queue import InOrder, ListBuffer, in_order, stable_order

NO_TUPLES = (
    "a window with aggregate= keeps no tuples: use window.aggregate and len(window); or leave out aggregate= to have "
    "window.get(), get_new() and get_expired()"
)


class PaneWindow(TupleWindow):
    """A window of partials, oldest first; its result is computed when it is read."""

    __slots__ = ("_aggregation", "_partials")

    def __init__(
        self, partials: Sequence[Partial], aggregation: Aggregation, start: int | None, end: int, key: Any
    ) -> None:
        # TupleWindow.__init__ is not called: a window is made for each key and end, and needs no content object.
        self._partials, self._aggregation, self._valid = partials, aggregation, True
        self.start_timestamp, self.end_timestamp, self.key = start, end, key

    @property
    def aggregate(self) -> Any:
        return self._aggregation.result(self._partials) if self._valid else self._live()

    def __len__(self) -> int:
        return sum(partial[0] for partial in self._partials) if self._valid else len(self._live())

    @property
    def _content(self) -> Any:  # type: ignore[override]  # it has none to set
        raise TypeError(NO_TUPLES)


def _refuse_other(data: dict[str, Any], spec: Any) -> None:
    """Raise SnapshotError for a snapshot of another aggregation."""
    if data.get("aggregate") != spec:
        raise SnapshotError(
            f"the snapshot holds partials of {quote(data.get('aggregate'))}, this bolt declares aggregate="
            f"{quote(spec)}; restore it into a bolt of the same definition"
        )


# -- PaneKeyState ----------------------------------------------------------------------------------------------------------------


class PaneKeyState(KeyProgress):
    """The panes of one key, each of `gcd(length, slide)` numbers; the buffer holds the values that are not numbered yet."""

    __slots__ = ("_aggregation", "_ends", "_folded", "_length", "_merged", "_partials", "_slide", "_width")

    buffer: ListBuffer

    def __init__(self, key: Any, ordinal: int, aggregation: Aggregation, length: int, slide: int, width: int) -> None:
        super().__init__(key, ordinal, ListBuffer())
        self._aggregation = aggregation
        self._length, self._slide, self._width = length, slide, width
        self._ends: list[int] = []  # the number of the last tuple of each pane, in order
        self._partials: list[Partial] = []  # of these panes
        self._merged: KeyMerge | None = None
        self._folded = 0  # the values before this position are in panes

    def _fold(self, numbered: int) -> None:
        """Add the values up to number `numbered` to their panes."""
        low, width, buffer = self._folded, self._width, self.buffer
        if numbered <= low:
            return
        while low < numbered:
            end = (low // width + 1) * width
            high = min(end, numbered)
            if self._is_held(end):
                self._aggregation.add_many(self._pane(end), buffer.slice(low, high))
            low = high
        self._folded = numbered
        buffer.trim(numbered)

    def _pane(self, end: int) -> Partial:
        """Return the last pane, which is this one or is before it."""
        if not self._ends or self._ends[-1] < end:
            self._ends.append(end)
            self._partials.append(self._aggregation.init())
        return self._partials[-1]

    def _is_held(self, end: int) -> bool:
        return end > -(-end // self._slide) * self._slide - self._length

    def fire(self, firing: Firing, tally: Tally) -> Sequence[Partial]:
        """Return the partials of the window of `firing`, oldest first."""
        _, low, high = firing
        self._fold(high)
        self.count_window(low, high, tally)
        if self._width == self._length:
            return (self._partials[-1],)
        if self._merged is None:
            self._merged = KeyMerge()
        end = -(-high // self._slide) * self._slide
        return self._merged.window(end, self._length, self._ends, self._partials, self._aggregation.merge)

    def expire(self, horizon: int, tally: Tally, spread: bool = False) -> Sequence[Expired]:
        gone = bisect_right(self._ends, horizon)
        del self._ends[:gone], self._partials[:gone]
        return super().expire(horizon, tally, spread)

    def _getter(self, low: int, high: int) -> None:
        return None

    def trim(self) -> None:
        self._fold(self.numbered_upto)

    def snapshot(self, events: bool) -> dict[str, Any]:
        values = self.buffer.dump(self._folded)
        panes = {
            "base": self._folded,
            "newest": self.newest,
            "covered": self.shown_upto,
            "cells": saved_cells(dict(zip(self._ends, self._partials, strict=True))),
            "timestamps": values["timestamps"],
            "values": values["payloads"],
        }
        return {
            "key": self.key,
            "ordinal": self.ordinal,
            "mark": self.numbered_upto,
            "horizon": self.horizon,
            "panes": panes,
        }

    def restore(self, data: dict[str, Any]) -> None:
        self.numbered_upto, self.horizon, panes = data["mark"], data["horizon"], data["panes"]
        self.newest, self.shown_upto = panes["newest"], panes["covered"]
        self._folded = panes["base"]
        # 0.2.0 stored them as [end, partial].
        cells = restored_cells(*panes["cells"]) if "cells" in panes else restored_cells(panes["panes"])
        self._ends, self._partials = list(cells), list(cells.values())
        self.buffer.fill({**panes, "payloads": panes["values"]})

    def check(self) -> None:
        super().check()
        # Every numbered tuple was added to its pane; panes are in the order of their numbers.
        assert self.buffer.base <= self._folded <= self.buffer.end
        assert self._ends == sorted(set(self._ends))
        assert len(self._ends) == len(self._partials)


# -- NumberPaneManager -----------------------------------------------------------------------------------------------------------


class NumberPaneManager(KeyedMachine[PaneKeyState]):
    """The windows of a bolt with `aggregate=` whose length and slide are both Counts.

    A window has a length and an `aggregate`, but no tuples; an Expired effect has a count, but no tuples. Cost: O(1) a tuple (a
    batch is grouped at C speed, and each aggregator gets runs), O(1) a firing for any length (partials.py).

    >>> from windowing.windows import aggregate as agg
    >>> from windowing import Activation, count
    >>> manager = NumberPaneManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts", aggregate=agg.sum()))
    >>> list(manager.add_batch([5, 6, 7], [1, 2, 3]))
    []
    >>> [effect.window.aggregate for effect in manager.advance(3) if isinstance(effect, Activation)]
    [11]
    """

    kind = "NumberPaneManager"
    takes_columns = True
    keeps_tuples = False

    def __init__(self, config: WindowConfig, component: str = "bolt") -> None:
        super().__init__(config)
        length, slide = config.length, config.slide
        if config.aggregate is None or not isinstance(length, Count) or not isinstance(slide, Count):
            raise ConfigError(
                f"panes of numbers need aggregate= and two Counts, got length={length!r}, slide={slide!r}"
            )
        self._aggregation = Aggregation(config.aggregate, component)
        self._count, self._every, self._width = length.value, slide.value, gcd(length.value, slide.value)

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple. Raises ConfigError, and changes nothing, if it lacks a field that an aggregator reads."""
        return super().add(self._aggregation.value(payload), timestamp, key)

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        return super().add_batch(self._aggregation.values(payloads), timestamps, keys)

    def _new_state(self, key: Any, ordinal: int) -> PaneKeyState:
        return PaneKeyState(key, ordinal, self._aggregation, self._count, self._every, self._width)

    def _window(self, state: PaneKeyState, firing: Firing) -> TupleWindow:
        partials = state.fire(firing, self._tally)
        return PaneWindow(partials, self._aggregation, None, firing[0], state.key)

    def load(self, *_: Any) -> None:
        """Do nothing: the states of the keys have their partials."""

    def snapshot(self, events: bool = True, keys: bool = True) -> dict[str, Any]:
        return super().snapshot(events, keys) | {"aggregate": self._aggregation.spec}

    def restore(self, data: dict[str, Any]) -> None:
        refuse_foreign(data, self.kind)
        _refuse_other(data, self._aggregation.spec)
        super().restore(data)


# -- TimePaneManager -------------------------------------------------------------------------------------------------------------


Windows = tuple[Collection[Any], Sequence[Sequence[Partial]]]
"""The keys that have a window at an end, and the partials of each window, oldest first."""


FEW_CELLS = 4096
"""Up to so many cells a snapshot of all costs less than a table of them, even if a driver then needs few."""


class PaneCells(NamedTuple):
    """The cells of a pane, of the keys that a driver stores or has stored: a row for each key, a column for each place in the
    partials. ordinals: the numbers of the keys by first arrival. deadlines: see `StoringMachine`; not needed to load them.
    """

    end: int
    keys: Sequence[Any]
    ordinals: Sequence[int]
    columns: Sequence[Sequence[Any]]
    deadlines: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class _Pane(dict[Any, Partial]):
    """The tuples of `(after, end]`: a cell for each key, the number of tuples, and how many of them a window has shown.

    `held` is whether a window holds them; if not, cells contain numbers of tuples only. The numbers include tuples of idle keys,
    the cells do not.
    """

    after: int
    end: int
    held: bool
    count: int = 0
    shown: int = 0


def saved_cells(cells: Mapping[Any, Partial]) -> list[Any]:
    """Return cells in the form of a snapshot: their keys, and a column for each place in their partials.

    A long window has tens of thousands of cells, written and read in each micro-batch on Spark; columns do so at C speed.

    >>> saved_cells({"a": [2, 7], "b": [1, 5]}), restored_cells(*saved_cells({"a": [2, 7], "b": [1, 5]}))
    ([['a', 'b'], [[2, 1], [7, 5]]], {'a': [2, 7], 'b': [1, 5]})
    """
    return [list(cells), [plain(column) for column in zip(*cells.values(), strict=True)]]


def restored_cells(keys: Sequence[Any], columns: Sequence[Sequence[Any]] | None = None) -> dict[Any, Partial]:
    """Return the cells of `saved_cells`, as a copy. With one argument, a list of [key, partial], it reads the former format."""
    if columns is None:
        return {restored_key(key): plain(partial) for key, partial in keys}
    return dict(zip(_keys_of(keys), map(list, zip(*map(plain, columns), strict=True)), strict=True))


def _keys_of(saved: Sequence[Any]) -> Iterable[Any]:
    """Return the keys of a snapshot (`restored_key`); in one step if each is a single field."""
    return map(restored_key, saved) if list in set(map(type, saved)) else saved


class TimePaneManager(StoringMachine):
    """The windows of a bolt with `aggregate=` whose length and slide are both Durations.

    A window has a length and an `aggregate`, but no tuples; an Expired effect has a count, but no tuples.

    >>> from windowing.windows import aggregate as agg
    >>> from windowing import millis
    >>> config = WindowConfig(length=millis(10), slide=millis(10), timestamp="ts", key=("k",), aggregate=agg.sum())
    >>> manager = TimePaneManager(config)
    >>> list(manager.add_batch([5, 6, 7], [1, 2, 13], ["a", "b", "a"]))
    []
    >>> [(e.window.key, e.window.aggregate) for e in manager.advance(10) if isinstance(e, Activation)]
    [('a', 5), ('b', 6)]
    """

    kind = "TimePaneManager"
    keeps_tuples = False
    _assigner: WindowAssigner

    def __init__(self, config: WindowConfig, component: str = "bolt") -> None:
        super().__init__(config, assigner_of(config))
        length, slide = config.length, config.slide
        if config.aggregate is None or not isinstance(length, Duration) or not isinstance(slide, Duration):
            raise ConfigError(
                f"panes of time need aggregate= and two Durations, got length={length!r}, slide={slide!r}"
            )
        self._aggregation = Aggregation(config.aggregate, component)
        self._length, self._slide, self._offset = length.ms, slide.ms, config.offset_ms
        self._width = gcd(length.ms, slide.ms)
        self._gaps = slide.ms > length.ms
        self._ordinal = 0
        self._ordinals: dict[Any, int] = {}  # the number of each key by first arrival, in that order
        self._newest: dict[Any, int] = {}  # the end of each key's last pane
        self._panes: dict[int, _Pane] = {}
        queue = ListBuffer()
        self._progress = QueueProgress(queue)  # for the assigner, to which a pane is a tuple at its end
        self._ends = queue.timestamps
        self._touched: set[int] = set()  # the ends of panes with tuples that no window has shown
        self._next_touched: list[int] = []  # a heap of those that a window will show
        self._last: _Pane | None = None  # the pane of the last tuple, touched
        self._merged = None if self._width == self._length else self._merge_anew()

    def _merge_anew(self) -> SlidingMerge:
        return SlidingMerge(self._ends, self._panes, self._aggregation.merge, self._length, self._offset)

    # -- tuples --------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        if self.closed or self.guard.state is not FREE:
            self._open()
        if self.idle is not None:
            self._load_idle(self.idle.of((key,)))
        aggregation = self._aggregation
        value = payload if aggregation.whole else aggregation.value(payload)
        try:
            pane = self._last
            if pane is None or not pane.after < timestamp <= pane.end:
                pane = self._pane_of(timestamp)
                if not self._note(pane.end, (key,)):
                    self._last = pane
            cell = pane.get(key) or self._new_cell(pane, key)
            if pane.held:
                aggregation.add(cell, value)
            else:
                cell[0] += 1
            pane.count += 1
        except BaseException:
            self.guard.fail()
            raise
        self._tally.accepted += 1
        return NO_EFFECTS

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; the result is that of one `add` for each. Cost: one pass, grouped by pane and key."""
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        if self.idle is not None and keys is not None and len(keys):
            self._load_idle(self.idle.of(keys))
        stage = self._prepared(payloads, timestamps, keys)
        try:
            stage()
        except BaseException:
            self.guard.fail()
            raise
        self._tally.accepted += len(timestamps)
        return NO_EFFECTS

    def _prepared(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> Callable[[], None]:
        """Return a function that adds the batch. If this raises, because a field is missing, nothing has changed."""
        return bind(self._stage, self._aggregation.values(payloads), timestamps, keys)

    def _pane_of(self, timestamp: int) -> _Pane:
        """Return the pane of a timestamp and mark it as touched; if no window holds it, the pane of its own millisecond."""
        after, end = self._span_of(timestamp)
        pane = self._panes.get(end)
        if pane is None:
            pane = self._panes[end] = _Pane(after, end, self._is_held(end))
            insort(self._ends, end)
        if end not in self._touched:
            self._touched.add(end)
            if pane.held:
                heappush(self._next_touched, end)
        return pane

    def _note(self, end: int, keys: Collection[Any]) -> bool:
        """Note that these keys have other cells in a pane; return whether it is merged already."""
        return self._merged is not None and self._merged.note(end, keys)

    def _span_of(self, timestamp: int) -> tuple[int, int]:
        end = align_up(timestamp, self._width, self._offset)
        return (end - self._width, end) if self._is_held(end) else (timestamp - 1, timestamp)

    def _spans_of(self, timestamps: Sequence[int]) -> list[int]:
        """Return the end of the pane of each timestamp, as `_span_of`; without gaps between windows in a quarter of the time."""
        if self._gaps:
            return [self._span_of(timestamp)[1] for timestamp in timestamps]
        width, offset = self._width, self._offset
        return [offset - (offset - timestamp) // width * width for timestamp in timestamps]

    def _is_held(self, end: int) -> bool:
        """Return whether a window holds tuples at `end`, the end of a pane or a millisecond between two windows."""
        return not self._gaps or align_up(end, self._slide, self._offset) - self._length < end

    def _new_cell(self, pane: _Pane, key: Any) -> Partial:
        end, newest = pane.end, self._newest.get(key)
        cell = pane[key] = self._aggregation.init()
        if newest is None:
            self._number_keys((key,))
        if newest is None or end > newest:
            self._newest[key] = end
        return cell

    def _number_keys(self, keys: Iterable[Any]) -> None:
        """Number keys by first arrival, except those that have a number."""
        ordinals = self._ordinals
        for key in keys:
            if key not in ordinals:
                ordinals[key] = self._ordinal
                self._ordinal += 1

    def _reach(self, end: int, keys: Iterable[Any]) -> None:
        """Record that these keys have a cell in the pane that ends at `end`."""
        newest = self._newest
        if end == self._ends[-1]:
            for key in keys:
                newest[key] = end
        else:
            newest.update((key, end) for key in keys if newest.get(key, end) <= end)

    def _stage(self, values: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None) -> None:
        """Add a batch run by run; a run is the tuples of one pane in arrival order."""
        by = timestamps if type(timestamps) is InOrder else list(timestamps)
        if in_order(by) is None:
            by = self._spans_of(by)
            if in_order(by) is None:
                # Keys are numbered before the tuples are reordered, because their order is that of arrival.
                self._number_keys(dict.fromkeys(keys or ()))
                pick = stable_order(by)
                values, keys, by = pick(values), None if keys is None else pick(keys), pick(by)
        low, count = 0, len(by)
        while low < count:
            pane = self._pane_of(by[low])
            high = bisect_right(by, pane.end, low)
            self._add_run(pane, values[low:high], None if keys is None else keys[low:high])
            low = high

    def _add_run(self, pane: _Pane, values: Sequence[Any], keys: Sequence[Any] | None) -> None:
        pane.count += len(values)
        aggregation, groups = self._aggregation, self._by_key(values, keys)
        self._note(pane.end, groups)
        if not pane.held:
            for key, of_key in groups.items():
                (pane.get(key) or self._new_cell(pane, key))[0] += len(of_key)
            return
        new: list[Any] = []
        if keys is not None and not pane:
            pane.update(zip(groups, aggregation.of_each(groups.values()), strict=True))
            new += groups
        else:
            for key, of_key in groups.items():
                cell = pane.get(key)
                if cell is None:
                    pane[key] = aggregation.of(of_key)
                    new.append(key)
                else:
                    aggregation.add_many(cell, of_key)
        self._number_keys(new)
        self._reach(pane.end, new)

    def _by_key(self, values: Sequence[Any], keys: Sequence[Any] | None) -> dict[Any, Sequence[Any]]:
        if keys is None:
            return {None: values}
        groups: defaultdict[Any, Any] = defaultdict(list)
        for key, value in zip(keys, values, strict=True):
            groups[key].append(value)
        return groups

    # -- watermark advances --------------------------------------------------------------------------------------------

    def _advance(self, since: int | None, until: int) -> Iterator[Effect]:
        if self.idle is not None:
            self._load_idle(self.idle.due(until))
        # The windows of many keys end together; no generator runs around each effect.
        return chain.from_iterable(self._runs(since, until))

    def _end(self) -> Iterator[Effect]:
        # Panes have the tuples of idle keys too, so every deadline has come when the last pane is in no window.
        return self._advance(self.watermark, self._ends[-1] + self._length + self._slide) if self._ends else NO_EFFECTS

    def _runs(self, since: int | None, until: int) -> Iterator[Iterator[Effect]]:
        """Yield the windows of every end in (since, until] whose window holds a tuple, those of an end by the first arrival of
        their keys; then the expiries.
        """
        self._last = None
        if not self._ends:
            return
        touched = self._next_touched
        if self._merged is not None:
            self._merged.settle()
        for end, _, _ in self._assigner.due(self._progress, since, until):
            start = end - self._length
            while touched and touched[0] <= end:
                if (last := heappop(touched)) > start:
                    pane = self._panes[last]
                    self._tally.shown += pane.count - pane.shown
                    pane.shown = pane.count
                    self._touched.discard(last)
            windows = self._windows(end)
            self._tally.fired += len(windows[0])
            yield self._activations(windows, start, end)
        yield self._expired(until)

    def _activations(self, windows: Windows, start: int, end: int) -> Iterator[Activation]:
        """Return the windows that end at `end`; each is made when its effect is requested."""
        keys, partials = windows
        made = map(PaneWindow, partials, repeat(self._aggregation), repeat(start), repeat(end), keys)
        return map(Activation, made)

    def _windows(self, end: int) -> Windows:
        """Return the window of each key that has a tuple in the window that ends at `end`."""
        if self._merged is None:
            pane = self._panes[end]
            keys = self._in_order(pane)
            return keys, list(zip(map(pane.__getitem__, keys)))
        head, tail = self._merged.window(end)
        # If one of them has all keys, no union is needed.
        dense = len(self._ordinals) in (len(head), len(tail))
        keys = self._in_order(self._ordinals if dense else head.keys() | tail.keys())
        return keys, [
            (tail[key],) if key not in head else (head[key][0], tail[key]) if key in tail else (head[key][0],)
            for key in keys
        ]

    def _in_order(self, keys: Collection[Any]) -> Collection[Any]:
        if len(keys) == len(self._ordinals):
            return list(self._ordinals)
        return sorted(keys, key=self._ordinals.__getitem__) if len(keys) > 1 else keys

    def _expired(self, until: int) -> Iterator[Expired]:
        """Drop the panes that no window after `until` holds; return an Expired effect for each of their keys, by first arrival."""
        panes = self._drop_panes(until)
        counts: dict[Any, int] = {}
        for pane in panes:
            for key, cell in pane.items():
                counts[key] = counts.get(key, 0) + cell[0]
        ordered = self._in_order(counts)
        self._forget_keys(ordered, panes)
        return map(Expired, map(counts.__getitem__, ordered), repeat(None), ordered)

    def _drop_panes(self, until: int) -> list[_Pane]:
        """Drop the panes that no window after `until` holds, and return them."""
        gone = self._assigner.horizon(self._progress, until)
        panes = [self._panes.pop(end) for end in self._ends[:gone]]
        del self._ends[:gone]
        for pane in panes:
            self._touched.discard(pane.end)
            self._tally.skipped += pane.count - pane.shown
            self._tally.expired += pane.count
        return panes

    def _forget_keys(self, keys: Iterable[Any], dropped: Sequence[_Pane]) -> None:
        """Forget those of the keys that have no pane after the dropped ones."""
        newest, ordinals = self._newest, self._ordinals
        for key in keys:
            if newest[key] <= dropped[-1].end:
                del newest[key], ordinals[key]

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def _load_idle(self, found: StoredKeys | None) -> None:
        """Load keys that are needed now, each with all of its cells; `found` has the panes in ascending order."""
        if found is None:
            return
        ordinals = self._ordinals
        for end, keys, numbers, columns, _ in found.states:
            self._panes[end].update(restored_cells(keys, columns))
            self._newest.update(dict.fromkeys(keys, end))
            ordinals.update(zip(keys, numbers, strict=True))
            self._note(end, keys)
        self._ordinals = dict(sorted(ordinals.items(), key=itemgetter(1)))

    def next_deadline_ms(self) -> int | None:
        """Return the watermark at which the next advance has an effect, None if there is none."""
        return self._assigner.deadline(self._progress, self.watermark)

    def snapshot(self, events: bool = True, keys: bool = True) -> dict[str, Any]:
        saved, panes = {**self._common(), "aggregate": self._aggregation.spec}, map(self._panes.__getitem__, self._ends)
        if not keys:
            return {**saved, "ordinal": self._ordinal, "panes": [[pane.end, pane.shown, pane.count] for pane in panes]}
        cells = [[pane.end, pane.shown, *saved_cells(pane)] for pane in panes]
        return {**saved, "keys": list(self._ordinals), "panes": cells}

    def stores_apart(self, exact: Callable[[], bool]) -> bool:
        # All cells of a key would become those of one of its texts.
        return sum(map(len, self._panes.values())) > FEW_CELLS and exact()

    def loaded(self) -> list[PaneCells]:
        """Return the cells of all keys that are not idle. A key is due when its first cell is in a window, or in none any more."""
        deadlines: dict[Any, int] = {}
        for end in reversed(self._ends):
            due = end if self._gaps else first_end(end, self.watermark, self._slide, self._offset)
            deadlines.update(dict.fromkeys(self._panes[end], due))
        found = []
        for end in self._ends:
            if cells := self._panes[end]:
                ordinals, dues = (list(map(of_key.__getitem__, cells)) for of_key in (self._ordinals, deadlines))
                found.append(PaneCells(end, list(cells), ordinals, list(zip(*cells.values(), strict=True)), dues))
        return found

    def restore(self, data: dict[str, Any]) -> None:
        refuse_foreign(data, self.kind)
        _refuse_other(data, self._aggregation.spec)
        self._restore_common(data)
        keys = data.get("keys")  # None: those of a driver
        self._ordinal = data["ordinal"] if keys is None else len(keys)
        self._ordinals = dict(zip(_keys_of(keys or ()), range(self._ordinal), strict=False))
        self.idle = None
        self._newest.clear()
        self._panes.clear()
        self._ends[:] = [end for end, *_ in data["panes"]]
        self._touched, self._next_touched = set(self._ends), []
        self._last = None
        for end, shown, *cells in data["panes"]:
            after, _ = self._span_of(end)
            pane = self._panes[end] = _Pane(after, end, self._is_held(end))
            if pane.held:
                self._next_touched.append(end)  # in ascending order, which is a heap
            pane.shown = shown
            if keys is None:
                (pane.count,) = cells
                continue
            pane.update(restored_cells(*cells))
            pane.count = sum(map(itemgetter(0), pane.values()))
            self._newest.update(dict.fromkeys(pane, end))
        if self._merged is not None:
            self._merged = self._merge_anew()
        self.guard.reset()

    def check(self) -> None:
        panes, tally = self._panes, self._tally
        assert tally.pending >= 0
        assert tally.shown + tally.skipped >= tally.expired
        # The ends are those of the panes, in order; no cell is empty; no pane has shown more tuples than it has.
        assert self._ends == sorted(panes)
        assert all(cell[0] > 0 for pane in panes.values() for cell in pane.values())
        assert all(0 <= pane.shown <= pane.count for pane in panes.values())
        if self.idle is None:
            assert all(pane.count == sum(cell[0] for cell in pane.values()) for pane in panes.values())
        # The panes hold the tuples that were accepted and have not expired; a pane with tuples not yet shown is touched.
        assert sum(pane.count for pane in panes.values()) == tally.accepted - tally.expired
        assert {end for end, pane in panes.items() if pane.shown < pane.count} <= self._touched <= panes.keys()
        # A window that shows a touched pane is still to come, and finds it, once.
        assert sorted(self._next_touched) == sorted(end for end in self._touched if panes[end].held)
        # A key is known exactly while it has a pane, with the end of its last one.
        newest: dict[Any, int] = {}
        for end in self._ends:
            newest.update(dict.fromkeys(panes[end], end))
        assert newest == self._newest
        assert self._ordinals.keys() == newest.keys()
        assert list(self._ordinals.values()) == sorted(self._ordinals.values())
