"""NumberPanes: the queue of NumberPaneManager, a buffer that holds partials in place of the tuples.

    numbers     1  2  |  3  4  |  5  ?  |        pane = 2 tuples
                 [9]      [4]     5 waits as (timestamp, value) for its number

Laws: positions are those of the tuples, as in every Buffer, so a mix asks a queue of panes as it asks one of tuples; all that
happens at the border of a window happens at the border of a pane.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import gcd
from typing import Any

from windowing.core.partials import Aggregation, Partial, plain
from windowing.core.queue import ListBuffer
from windowing.core.sliding import SlidingMerge
from windowing.core.track import Tally

__all__ = ["NumberPanes"]


class NumberPanes(ListBuffer):
    """Panes of `width` numbers; the lists of the ListBuffer hold the values of the tuples that wait for their numbers."""

    __slots__ = (
        "_aggregation",
        "_ends",
        "_length",
        "_merged",
        "_panes",
        "_slide",
        "_width",
        "covered",
        "folded",
        "last_ms",
        "newest",
    )

    def __init__(self, aggregation: Aggregation, length: int, slide: int) -> None:
        super().__init__()
        self.newest: int | None = None
        self.folded = 0
        self.covered = 0
        self.last_ms = 0  # timestamp of the tuple before the position `folded`
        self._aggregation = aggregation
        self._length, self._slide = length, slide
        self._width = gcd(length, slide)
        self._panes: dict[int, dict[None, Partial]] = {}  # by the number of the last tuple of each
        self._ends: list[int] = []
        self._merged: SlidingMerge | None = None

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
            end = (low // width + 1) * width
            high = min(end, numbered)
            if self._is_held(end):
                self._aggregation.add_many(self._pane(end), super().slice(low, high))
            low = high
        self.folded = max(numbered, self.folded)
        super().trim(self.folded)

    def _pane(self, end: int) -> Partial:
        if end not in self._panes:
            self._panes[end] = {None: self._aggregation.init()}
            self._ends.append(end)
        return self._panes[end][None]

    def _is_held(self, end: int) -> bool:
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
        gone = bisect_right(self._ends, horizon)
        for end in self._ends[:gone]:
            del self._panes[end]
        del self._ends[:gone]

    def partials(self, high: int) -> Sequence[Partial]:
        """Return what makes the window whose last tuple has the number `high`, oldest first; after `show`."""
        end = -(-high // self._slide) * self._slide
        if self._width == self._length:
            return (self._panes[end][None],)
        if self._merged is None:
            self._merged = SlidingMerge(self._ends, self._panes.__getitem__, self._aggregation.merge, self._length, 0)
        head, tail = self._merged.window(end)
        return (*(entry[0] for entry in head.values()), *tail.values())

    def trim(self, position: int) -> None:
        """Nothing more than `fold` and `drop` have done."""

    def snapshot(self) -> dict[str, Any]:
        waiting = self.folded - self.base
        return {
            "base": self.folded,
            "newest": self.newest,
            "covered": self.covered,
            "last_ms": self.last_ms,
            "panes": [[end, plain(self._panes[end][None])] for end in self._ends],
            "timestamps": self.timestamps[waiting:],
            "values": self.payloads[waiting:],
        }

    def restore(self, data: dict[str, Any]) -> None:
        self.base = self.folded = data["base"]
        self.newest, self.covered, self.last_ms = data["newest"], data["covered"], data["last_ms"]
        self._panes = {end: {None: plain(values)} for end, values in data["panes"]}
        self._ends = list(self._panes)
        self.timestamps, self.payloads = list(data["timestamps"]), list(data["values"])

    def check(self) -> None:
        super().check()
        # Whatever has its number was added to its pane; panes stand in the order of their numbers.
        assert self.base <= self.folded <= self.end
        assert self._ends == list(self._panes) == sorted(self._panes)
