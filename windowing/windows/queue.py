"""The ordered queue behind a window: the Buffer protocol, and its implementation with parallel lists.

Positions are absolute: the n-th tuple ever queued keeps position n - 1 (its number minus one), however many before it were
trimmed. A buffer is written in two steps, because it is read only in a watermark advance: `stage` appends runs as they arrive,
`settle` merges them into (timestamp, arrival) order once.

    staged           9 4 7
    settled  1 3 5            settle()  ->  1 3 4 5 7 9
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Protocol

from windowing.errors import StaleWindowError

_TRIM_AT_LEAST = 16  # expired tuples, of each key
_FEW = 32  # so many staged tuples are inserted one by one; more are sorted with all that follow the first of them, or
_SPLICE = 10  # spliced into these, which are copied and not compared, if they are so many times as many
_PROBE = 16  # so many numbers are examined first; only if they are in order, all are sorted


class InOrder(list[int]):
    """Timestamps that are known to be in ascending order, so that they need not be checked again."""

    __slots__ = ()


def in_order(values: list[int]) -> InOrder | None:
    """Return whole numbers as InOrder if they are in ascending order, else None. Cost: O(1) if the first few are not in order.

    >>> in_order([3, 5, 5]), in_order([3, 5, 4])
    ([3, 5, 5], None)
    """
    if type(values) is InOrder:
        return values
    first = values[:_PROBE]
    if sorted(first) != first:
        return None
    ordered = InOrder(values)
    ordered.sort()
    return ordered if ordered == values else None


def stable_order(keys: Sequence[Any]) -> itemgetter[Any]:
    """Return what puts a column, parallel to two keys or more, in the order of these; those of equal keys stay in order of arrival.

    >>> stable_order([9, 4, 9])("abc")
    ('b', 'a', 'c')
    """
    return itemgetter(*sorted(range(len(keys)), key=keys.__getitem__))


class Buffer(Protocol):
    """The queue of a window manager: a list, pages or columns."""

    base: int
    """Position of the first tuple that is still held."""

    @property
    def sequenced(self) -> bool:
        """Whether it stores the arrival number of each tuple."""

    @property
    def end(self) -> int:
        """Position after the last settled tuple: the number of tuples ever settled."""

    @property
    def staged(self) -> Sequence[int]:
        """The timestamps of the staged tuples, in arrival order."""

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        """Append a run in arrival order; its tuples get sequence numbers from `first_sequence` on.

        A run that is InOrder, and later than all others, may be settled at once, because no tuple before it moves.
        """

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        """Append one tuple; one that is later than all others may be settled at once."""

    def settle(self) -> None:
        """Merge the staged tuples into (timestamp, arrival) order. Cost: a merge sort over the tail that changes; where the staged
        ones are few, a copy of it, or an insertion each.
        """

    def position_after(self, timestamp: int, low: int = 0, high: int | None = None) -> int:
        """Return the position after the last tuple with a timestamp <= `timestamp`, searching [low, high). Cost: O(log n)."""

    def timestamp_at(self, position: int) -> int:
        """Return the timestamp of the tuple at `position`."""

    def slice(self, low: int, high: int) -> Sequence[Any]:
        """Return the tuples at positions [low, high). Cost: the copy, or nothing where the sequence is lazy."""

    def trim(self, position: int) -> None:
        """Free all tuples before `position`; memory follows within a constant factor. Cost: amortised O(1) a tuple."""

    def arrived_after(self, low: int, high: int, sequence: int, all_from: int) -> Sequence[Any]:
        """Return the tuples at [low, high) that arrived at `sequence` or later, and all at position `all_from` or above."""

    def arrived_before(self, low: int, high: int, sequence: int) -> Sequence[Any]:
        """Return the tuples at [low, high) that arrived before `sequence`."""

    def count_after(self, low: int, high: int, sequence: int) -> int:
        """Return how many of the tuples at [low, high) arrived at `sequence` or later; half the cost of a list of them."""

    def dump(self, position: int) -> dict[str, Any]:
        """Return the tuples from `position` on as plain data; no tuple may be staged."""

    def fill(self, data: dict[str, Any]) -> None:
        """Add the data of `dump` to a buffer without settled tuples; `data["base"]` is the position of the first one. In memory the
        buffer may have tuples, which have arrived later; the next `settle` merges them.
        """

    def check(self) -> None:
        """Assert the invariants."""


class ListBuffer:
    """The Buffer of the core: parallel lists of timestamps and tuples, and, if a driver needs them, of sequence numbers.

    Invariants: see `check`. Sequence numbers (`sequenced=True`) are the arrival numbers in the whole task; a driver that stores
    tuples apart identifies new tuples by them.

    >>> queue = ListBuffer()
    >>> queue.stage([9, 4], ["i", "d"], 0); queue.settle(); queue.slice(0, 2)
    ['d', 'i']
    """

    __slots__ = ("_staged", "base", "payloads", "sequences", "timestamps")

    def __init__(self, sequenced: bool = False) -> None:
        self.base = 0
        self.timestamps: list[int] = []
        self.payloads: list[Any] = []
        self.sequences: list[int] | None = [] if sequenced else None
        self._staged: tuple[list[int], list[Any], list[int]] | None = None  # timestamps, payloads, sequence numbers

    @property
    def sequenced(self) -> bool:
        return self.sequences is not None

    @property
    def end(self) -> int:
        return self.base + len(self.timestamps)

    @property
    def staged(self) -> Sequence[int]:
        return () if self._staged is None else self._staged[0]

    def stage(self, timestamps: Sequence[int], payloads: Sequence[Any], first_sequence: int) -> None:
        held, into = self.timestamps, self._staged
        if into is None:
            if type(timestamps) is InOrder and (not held or held[-1] <= timestamps[0]):
                into = held, self.payloads, [] if self.sequences is None else self.sequences
            else:
                into = self._staged = [], [], []
        into[0].extend(timestamps)
        into[1].extend(payloads)
        if self.sequences is not None:
            into[2].extend(range(first_sequence, first_sequence + len(timestamps)))

    def stage_one(self, timestamp: int, payload: Any, sequence: int) -> None:
        held, staged = self.timestamps, self._staged
        if staged is None:
            if not held or held[-1] <= timestamp:
                held.append(timestamp)
                self.payloads.append(payload)
                if self.sequences is not None:
                    self.sequences.append(sequence)
                return
            staged = self._staged = [], [], []
        staged[0].append(timestamp)
        staged[1].append(payload)
        if self.sequences is not None:
            staged[2].append(sequence)

    def sequences_from(self, position: int) -> Sequence[int]:
        """Return the sequence numbers of the tuples from `position` on."""
        return (self.sequences or [])[position - self.base :]

    def settle(self) -> None:
        if self._staged is None:
            return
        (staged, payloads, sequences), self._staged = self._staged, None
        held, ordered = self.timestamps, in_order(staged)
        first = min(staged) if ordered is None else ordered[0]
        if held and first < held[-1]:
            ordered = None
            cut = bisect_right(held, first)
            if len(staged) <= _FEW:
                self._insert(staged, payloads, sequences)
                return
            if len(staged) * _SPLICE <= len(held) - cut:
                self._splice(cut, staged, payloads, sequences)
                return
            staged = held[cut:] + staged
            payloads = self.payloads[cut:] + payloads
            del held[cut:], self.payloads[cut:]
            if self.sequences is not None:
                sequences = self.sequences[cut:] + sequences
                del self.sequences[cut:]
        if ordered is None:
            pick = stable_order(staged)
            staged, payloads = pick(staged), pick(payloads)
            if self.sequences is not None:
                sequences = pick(sequences)
        held.extend(staged)
        self.payloads.extend(payloads)
        if self.sequences is not None:
            self.sequences.extend(sequences)

    def _insert(self, timestamps: list[int], payloads: list[Any], sequences: list[int]) -> None:
        for timestamp, payload, sequence in zip(timestamps, payloads, sequences or timestamps, strict=True):
            at = bisect_right(self.timestamps, timestamp)
            self.timestamps.insert(at, timestamp)
            self.payloads.insert(at, payload)
            if self.sequences is not None:
                self.sequences.insert(at, sequence)

    def _splice(self, cut: int, timestamps: list[int], payloads: list[Any], sequences: list[int]) -> None:
        """Put tuples between those from index `cut` on, of which there are many more: these are copied, not compared."""
        order = sorted(range(len(timestamps)), key=timestamps.__getitem__)
        places = [(at, bisect_right(self.timestamps, timestamps[at], cut)) for at in order]
        columns: list[tuple[list[Any], list[Any]]] = [(self.timestamps, timestamps), (self.payloads, payloads)]
        if self.sequences is not None:
            columns.append((self.sequences, sequences))
        for column, new in columns:
            spliced, low = [], cut
            for at, place in places:
                spliced += column[low:place]
                spliced.append(new[at])
                low = place
            spliced += column[low:]
            column[cut:] = spliced

    def position_after(self, timestamp: int, low: int = 0, high: int | None = None) -> int:
        base = self.base
        held = self.timestamps
        start = low - base if low > base else 0
        stop = len(held) if high is None else high - base
        return base + bisect_right(held, timestamp, start, stop)

    def timestamp_at(self, position: int) -> int:
        return self.timestamps[position - self.base]

    def slice(self, low: int, high: int) -> list[Any]:
        base = self.base
        if low < base:
            raise StaleWindowError(
                f"tuples from position {low} on were asked for after they had expired and been freed; copy what you need while the "
                "effect is at hand: list(effect.get())"
            )
        return self.payloads[low - base : high - base]

    def arrived_after(self, low: int, high: int, sequence: int, all_from: int) -> list[Any]:
        border = max(min(all_from, high), low)
        return self._picked(low, border, sequence, True) + self.slice(border, high)

    def arrived_before(self, low: int, high: int, sequence: int) -> list[Any]:
        return self._picked(low, high, sequence, False)

    def count_after(self, low: int, high: int, sequence: int) -> int:
        return sum(1 for number in self._numbers(low, high) if number >= sequence)

    def _picked(self, low: int, high: int, sequence: int, after: bool) -> list[Any]:
        numbered = zip(self.slice(low, high), self._numbers(low, high), strict=True)
        return [payload for payload, number in numbered if (number >= sequence) is after]

    def _numbers(self, low: int, high: int) -> list[int]:
        assert self.sequences is not None
        return self.sequences[low - self.base : high - self.base]

    def dump(self, position: int) -> dict[str, Any]:
        at = position - self.base
        return {
            "timestamps": self.timestamps[at:],
            "payloads": self.payloads[at:],
            "sequences": None if self.sequences is None else self.sequences[at:],
        }

    def fill(self, data: dict[str, Any]) -> None:
        if self.timestamps:
            new, staged = (self.timestamps, self.payloads, self.sequences or []), self._staged or ([], [], [])
            self._staged = new[0] + staged[0], new[1] + staged[1], new[2] + staged[2]
        self.timestamps, self.payloads = list(data["timestamps"]), list(data["payloads"])
        if self.sequences is not None:
            self.sequences = list(data["sequences"] or ())
        self.base = data["base"]

    def trim(self, position: int) -> None:
        dead = position - self.base
        held = len(self.timestamps)
        if dead <= 0 or (dead < held and (dead < _TRIM_AT_LEAST or dead * 2 < held)):
            return
        del self.timestamps[:dead], self.payloads[:dead]
        if self.sequences is not None:
            del self.sequences[:dead]
        self.base = position

    def check(self) -> None:
        # The lists are parallel; the settled part is in (timestamp, arrival) order.
        assert len(self.timestamps) == len(self.payloads)
        assert all(a <= b for a, b in zip(self.timestamps, self.timestamps[1:], strict=False))
        assert self._staged is None or len(self._staged[0]) == len(self._staged[1]) > 0
        assert self.base >= 0
        if self.sequences is not None:
            assert len(self.sequences) == len(self.timestamps)
            keys = list(zip(self.timestamps, self.sequences, strict=True))
            assert keys == sorted(keys)
