"""SlidingMerge: the partials of window after window over the same panes, two or three merges a key and window.

    panes       |  a  |  b  |  c  |  d  |  e  |  f  |       length: 4 panes; blocks of 4, the first ends with d
    head         abcd   bcd   cd    d                        what a block comes to from each of its panes on, right to left
    tail                                e     ef             what its next block comes to so far, left to right
    window b-e         [      bcd    ][ e ]                  one entry of the head, then the tail

Laws: which panes are merged with which depends on where blocks end (multiples of the length, plus the offset), not on when it was
asked, so a machine resumed from a snapshot gives the same to the last bit. A pane that changes after it was merged makes the
merge begin anew (`forget`).

Source: van Herk's and Gil and Werman's sliding minimum, for any associative merge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windowing.core.partials import Partial

__all__ = ["Cells", "SlidingMerge"]

Cells = Mapping[Any, Partial]
"""The partials of one pane by key."""

_Entry = tuple[Partial, Any]
"""A key's partial from one pane of a block to the block's end, and its entry for the next pane that has the key, or None."""


class SlidingMerge:
    """The windows `(end - length, end]` over panes, asked for in ascending order of `end`.

    `ends` is the sorted list of the panes' inclusive ends, `cells_of` gives a pane's cells; both are only read. Blocks end at the
    multiples of `length` plus `offset`. Cost: amortised three merges for each key and window, whatever the length.
    """

    def __init__(
        self,
        ends: Sequence[int],
        cells_of: Callable[[int], Cells],
        merge: Callable[[Partial, Partial], Partial],
        length: int,
        offset: int,
    ) -> None:
        self._ends, self._cells_of, self._merge = ends, cells_of, merge
        self._length, self._offset = length, offset
        self._block_end: int | None = None
        self._reached = 0
        self._head: dict[Any, _Entry] = {}
        self._leaving: deque[tuple[int, Cells]] = deque()  # the panes of the head, oldest first
        self._tail: dict[Any, Partial] = {}

    def forget(self, changed: int) -> None:
        """Take the news that the pane that ends at `changed` has changed."""
        if self._block_end is not None and changed <= self._reached:
            self._block_end = None

    def window(self, end: int) -> tuple[Mapping[Any, _Entry], Mapping[Any, Partial]]:
        """Return the head (the partial is the first item of an entry) and the tail of the window; good until the next call."""
        block_end = self._offset - (self._offset - end) // self._length * self._length
        if block_end != self._block_end:
            self._begin(block_end, end - self._length)
        self._leave(end - self._length)
        self._reach(end)
        return self._head, self._tail

    def _begin(self, block_end: int, after: int) -> None:
        """Make the head, of the panes in (after, block_end - length], and an empty tail."""
        self._block_end, self._reached = block_end, block_end - self._length
        self._tail, self._head = {}, {}
        self._leaving.clear()
        head, merge = self._head, self._merge
        for pane in reversed(self._between(after, self._reached)):
            cells = self._cells_of(pane)
            for key, partial in cells.items():
                later = head.get(key)
                head[key] = (partial if later is None else merge(partial, later[0]), later)
            self._leaving.appendleft((pane, cells))

    def _leave(self, until: int) -> None:
        """Let go of the panes of the head that end at `until` or before."""
        head, leaving = self._head, self._leaving
        while leaving and leaving[0][0] <= until:
            for key in leaving.popleft()[1]:
                later = head[key][1]
                if later is None:
                    del head[key]
                else:
                    head[key] = later

    def _reach(self, end: int) -> None:
        """Merge the panes in (reached, end] into the tail."""
        tail, merge = self._tail, self._merge
        for pane in self._between(self._reached, end):
            for key, partial in self._cells_of(pane).items():
                so_far = tail.get(key)
                tail[key] = partial if so_far is None else merge(so_far, partial)
        self._reached = end

    def _between(self, after: int, until: int) -> Sequence[int]:
        return self._ends[bisect_right(self._ends, after) : bisect_right(self._ends, until)]
