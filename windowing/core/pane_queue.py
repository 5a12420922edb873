"""The queues of PaneManager: buffers that hold panes, partial results with a number of tuples, in place of the tuples.

    TimePanes     (0, 5]: 3 tuples, partial      (5, 10]: 1 tuple, partial     under the end of their time
    NumberPanes   1..2: partial   3..4: partial  5: waits as (timestamp, value) for its number

Laws: positions are those of the tuples, as in every Buffer, so a mix asks a queue of panes as it asks one of tuples; all that
happens at the border of a window happens at the border of a pane.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from operator import itemgetter
from typing import Any, NoReturn, Protocol

from windowing.core.mixes import align_up
from windowing.core.partials import Aggregation, Partial, plain
from windowing.core.queue import Buffer, ListBuffer
from windowing.core.track import Tally

__all__ = ["NO_TUPLES", "NumberPanes", "Panes", "TimePanes"]

NO_TUPLES = (
    "a window with aggregate= keeps no tuples: use window.aggregate and len(window); or leave out aggregate= to have "
    "window.get(), get_new() and get_expired()"
)


class Panes(Buffer, Protocol):
    """A buffer that has panes in place of tuples; positions are those of the tuples, as everywhere."""

    newest: int | None
    """The largest timestamp ever settled; not kept (None) by time panes, whose keys go with their last window."""

    def show(self, low: int, high: int, tally: Tally) -> None:
        """Count the tuples at [low, high) as shown, and those that were passed over as skipped."""

    def drop(self, horizon: int, tally: Tally) -> None:
        """Let go of all panes that end before or at `horizon`, counting what was never shown as skipped."""

    def partials(self, low: int, high: int) -> list[Partial]:
        """Return the partials of the panes at [low, high), oldest first."""

    def fold(self, numbered: int) -> None:
        """Add to their panes all tuples before the position `numbered`."""

    def snapshot(self) -> dict[str, Any]:
        """Return everything as plain data."""

    def restore(self, data: dict[str, Any]) -> None:
        """Become the panes of a snapshot."""

    def check(self) -> None:
        """Assert what "correct" means."""


class _Pane:
    """What is known of the tuples in one span of time; `shown` of them were in a window."""

    __slots__ = ("count", "partial", "shown")

    def __init__(self, partial: Partial | None, count: int = 0, shown: int = 0) -> None:
        self.partial = partial
        self.count = count
        self.shown = shown


class TimePanes:
    """Panes of `width` milliseconds, each under its inclusive end; tuples between two windows under their own millisecond."""

    def __init__(self, aggregation: Aggregation, length_ms: int, slide_ms: int, offset_ms: int) -> None:
        self.base = 0
        self.newest: int | None = None
        self._aggregation = aggregation
        self._length, self._slide, self._offset = length_ms, slide_ms, offset_ms
        self._width = gcd(length_ms, slide_ms)
        self._panes: dict[int, _Pane] = {}
        self._ends: list[int] = []  # sorted, settled
        self._after: list[int] = []  # the position after the last tuple of each of them
        self._fresh: list[int] = []  # ends of panes that came since `settle`
        self._changed: int | None = None  # the smallest end of a pane that changed since

    def __len__(self) -> int:
        return sum(pane.count for pane in self._panes.values())

    @property
    def end(self) -> int:
        return self._after[-1] if self._after else self.base

    @property
    def staged(self) -> Sequence[int]:
        return () if self._changed is None else (self._changed,)

    def _end_of(self, timestamp: int) -> int:
        end = align_up(timestamp, self._width, self._offset)
        return end if self._is_held(end) else timestamp

    def _is_held(self, end: int) -> bool:
        """Return whether any window holds the pane; the last pane before an end always is."""
        return self._slide <= self._length or align_up(end, self._slide, self._offset) - self._length < end

    def _pane(self, end: int) -> _Pane:
        pane = self._panes.get(end)
        if pane is None:
            held = align_up(end, self._width, self._offset) == end and self._is_held(end)
            pane = self._panes[end] = _Pane(self._aggregation.init() if held else None)
            self._fresh.append(end)
        if self._changed is None or end < self._changed:
            self._changed = end
        return pane

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        pane = self._pane(self._end_of(timestamp))
        pane.count += 1
        if pane.partial is not None:
            self._aggregation.add(pane.partial, payload)

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        width, offset = self._width, self._offset
        ends = [offset - (offset - timestamp) // width * width for timestamp in timestamps]
        if self._slide > self._length:
            held = set(filter(self._is_held, set(ends)))
            ends = [end if end in held else timestamp for end, timestamp in zip(ends, timestamps, strict=True)]
        ordered = sorted(ends)
        if ordered != ends:
            # sorted() is stable: inside a pane the order of arrival stays.
            payloads = itemgetter(*sorted(range(len(ends)), key=ends.__getitem__))(payloads)
        low = 0
        while low < len(ordered):
            high = bisect_right(ordered, ordered[low], low)
            pane = self._pane(ordered[low])
            pane.count += high - low
            if pane.partial is not None:
                self._aggregation.add_many(pane.partial, payloads[low:high])
            low = high

    def settle(self) -> None:
        """Take new panes in; positions are counted anew from the first pane that changed."""
        if self._changed is None:
            return
        if self._fresh:
            self._ends.extend(self._fresh)
            self._ends.sort()
            self._fresh = []
        at = bisect_right(self._ends, self._changed - 1)
        start = self._after[at - 1] if at else self.base
        counts = (self._panes[end].count for end in self._ends[at:])
        self._after[at:] = list(accumulate(counts, initial=start))[1:]
        self._changed = None

    def position_after(self, timestamp: int, low: int = 0, high: int | None = None) -> int:
        at = bisect_right(self._ends, timestamp)
        position = self._after[at - 1] if at else self.base
        return max(low, position if high is None else min(position, high))

    def timestamp_at(self, position: int) -> int:
        """Return the end of the pane at `position`; its tuples have the same windows."""
        return self._ends[bisect_right(self._after, position)]

    def slice(self, low: int, high: int) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def _between(self, low: int, high: int) -> list[_Pane]:
        first, last = bisect_right(self._after, low), bisect_right(self._after, high)
        return [self._panes[end] for end in self._ends[first:last]]

    def show(self, low: int, high: int, tally: Tally) -> None:
        for pane in self._between(low, high):
            tally.shown += pane.count - pane.shown
            pane.shown = pane.count

    def drop(self, horizon: int, tally: Tally) -> None:
        for pane in self._between(self.base, horizon):
            tally.skipped += pane.count - pane.shown
        self.trim(horizon)

    def partials(self, low: int, high: int) -> list[Partial]:
        return [pane.partial for pane in self._between(low, high) if pane.partial is not None]

    def fold(self, numbered: int) -> None:
        """Nothing waits here."""

    def trim(self, position: int) -> None:
        dead = bisect_right(self._after, position)
        for end in self._ends[:dead]:
            del self._panes[end]
        if dead:
            self.base = self._after[dead - 1]
            del self._ends[:dead], self._after[:dead]

    def snapshot(self) -> dict[str, Any]:
        panes = [(end, self._panes[end]) for end in self._ends]
        return {
            "base": self.base,
            "panes": [[end, p.count, p.shown, None if p.partial is None else plain(p.partial)] for end, p in panes],
        }

    def restore(self, data: dict[str, Any]) -> None:
        self.base = data["base"]
        for end, count, seen, values in data["panes"]:
            self._panes[end] = _Pane(None if values is None else plain(values), count, seen)
            self._ends.append(end)
        counts = (pane.count for pane in self._panes.values())
        self._after = list(accumulate(counts, initial=self.base))[1:]

    def check(self) -> None:
        assert sorted(self._panes) == sorted(self._ends + self._fresh)
        assert self._ends == sorted(self._ends)
        assert len(self._after) == len(self._ends)
        # No pane is empty, and none was shown more often than it has tuples.
        assert all(0 <= pane.shown <= pane.count > 0 for pane in self._panes.values())
        if self._changed is None:
            assert len(self) == self.end - self.base


class NumberPanes(ListBuffer):
    """Panes of `width` numbers; the lists of the ListBuffer hold the values of the tuples that wait for their numbers."""

    __slots__ = ("_aggregation", "_length", "_panes", "_slide", "_width", "covered", "folded", "last_ms", "newest")

    def __init__(self, aggregation: Aggregation, length: int, slide: int) -> None:
        super().__init__()
        self.newest: int | None = None
        self.folded = 0
        self.covered = 0
        self.last_ms = 0  # timestamp of the tuple before the position `folded`
        self._aggregation = aggregation
        self._length, self._slide = length, slide
        self._width = gcd(length, slide)
        self._panes: dict[int, Partial] = {}

    def settle(self) -> None:
        super().settle()
        if self.timestamps:
            self.newest = self.timestamps[-1]

    def timestamp_at(self, position: int) -> int:
        # Only a drain asks for a number that was given in an earlier turn: the last one.
        return self.last_ms if position == self.folded - 1 else super().timestamp_at(position)

    def fold(self, numbered: int) -> None:
        low, width = self.folded, self._width
        if numbered > low:
            self.last_ms = super().timestamp_at(numbered - 1)
        while low < numbered:
            pane = low // width
            high = min((pane + 1) * width, numbered)
            if self._is_held(pane):
                partial = self._panes.setdefault(pane, self._aggregation.init())
                self._aggregation.add_many(partial, super().slice(low, high))
            low = high
        self.folded = max(numbered, self.folded)
        super().trim(self.folded)

    def _is_held(self, pane: int) -> bool:
        end = (pane + 1) * self._width
        return end > -(-end // self._slide) * self._slide - self._length

    def show(self, low: int, high: int, tally: Tally) -> None:
        self.fold(high)
        self._skip(low, tally)
        if high > self.covered:
            tally.shown += high - self.covered
            self.covered = high

    def _skip(self, position: int, tally: Tally) -> None:
        if position > self.covered:
            tally.skipped += position - self.covered
            self.covered = position

    def drop(self, horizon: int, tally: Tally) -> None:
        self._skip(horizon, tally)
        while self._panes and (first := next(iter(self._panes))) < horizon // self._width:
            del self._panes[first]

    def partials(self, low: int, high: int) -> list[Partial]:
        panes = range(low // self._width, -(-high // self._width))
        return [self._panes[pane] for pane in panes if pane in self._panes]

    def trim(self, position: int) -> None:
        """Nothing more than `fold` and `drop` have done."""

    def snapshot(self) -> dict[str, Any]:
        waiting = self.folded - self.base
        return {
            "base": self.folded,
            "newest": self.newest,
            "covered": self.covered,
            "last_ms": self.last_ms,
            "panes": [[pane, plain(partial)] for pane, partial in self._panes.items()],
            "timestamps": self.timestamps[waiting:],
            "values": self.payloads[waiting:],
        }

    def restore(self, data: dict[str, Any]) -> None:
        self.base = self.folded = data["base"]
        self.newest, self.covered, self.last_ms = data["newest"], data["covered"], data["last_ms"]
        self._panes = {pane: plain(values) for pane, values in data["panes"]}
        self.timestamps, self.payloads = list(data["timestamps"]), list(data["values"])

    def check(self) -> None:
        super().check()
        # Whatever has its number was added to its pane; panes stand in the order of their numbers.
        assert self.base <= self.folded <= self.end
        assert list(self._panes) == sorted(self._panes)
