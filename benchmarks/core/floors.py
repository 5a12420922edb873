"""The floors: the shortest hand-written loop for each shape, the lower bound of the cost in Python.

A floor has no late tuples, expiry (acks), multiple streams, user policies, snapshots or restarts; the floors of shapes 1 to 3
accept events in order only. Windows are `(end - length, end]`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter

from benchmarks.core.shapes import Found, Function, Shape
from benchmarks.events import Events
from windowing import Count, Duration

Cells = dict[int, list[float]]


def in_batches(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the floor whose input is columns of 10,000 events."""
    length, slide = _numbers(shape)
    if shape.totals:
        return lambda load: totals_in_batches(load, length // slide, slide)
    if shape.disorder_ms:
        return lambda load: times_in_batches(load, length, slide, shape.disorder_ms, function)
    return lambda load: counts_in_batches(load, length, slide, shape.changes, function)


def one_at_a_time(shape: Shape, function: Function) -> Callable[[Events], Found]:
    """Return the floor whose input is one event at a time."""
    length, slide = _numbers(shape)
    if shape.totals:
        return lambda load: totals_one_by_one(load, length // slide, slide)
    if shape.disorder_ms:
        return lambda load: times_one_by_one(load, length, slide, shape.disorder_ms, function)
    return lambda load: counts_one_by_one(load, length, slide, shape.changes, function)


def totals_one_by_one(load: Events, width: int, slide: int) -> Found:
    """Count and sum by key in the pane of a slide; at its end merge the last `width` panes."""
    found: Found = []
    panes: deque[Cells] = deque(maxlen=width)
    pane: Cells = {}
    end = -(-load.stamps[0] // slide) * slide
    for key, stamp, value in load.rows:
        if stamp > end:
            _close(panes, pane, end, found)
            pane = {}
            end += slide
        cell = pane.get(key)
        if cell is None:
            pane[key] = [1, value]
        else:
            cell[0] += 1
            cell[1] += value
    return _ended(panes, pane, end, slide, found)


def totals_in_batches(load: Events, width: int, slide: int) -> Found:
    """The same, with the values of a key's pane in a list, which is counted and summed at the end of the pane."""
    found: Found = []
    panes: deque[Cells] = deque(maxlen=width)
    pane: defaultdict[int, list[float]] = defaultdict(list)
    end = -(-load.stamps[0] // slide) * slide
    for keys, stamps, values in load.batches:
        at = 0
        while at < len(stamps):
            if stamps[at] > end:
                _close(panes, _summed(pane), end, found)
                pane = defaultdict(list)
                end += slide
            stop = bisect_right(stamps, end, at)
            for key, value in zip(keys[at:stop], values[at:stop], strict=True):
                pane[key].append(value)
            at = stop
    return _ended(panes, _summed(pane), end, slide, found)


def _summed(pane: defaultdict[int, list[float]]) -> Cells:
    return {key: [len(values), sum(values)] for key, values in pane.items()}


def _close(panes: deque[Cells], pane: Cells, end: int, found: Found) -> None:
    """Append a pane, and return the totals of the window that ends with it."""
    panes.append(pane)
    if panes.maxlen == 1:
        found.extend([(end, key, number, total) for key, (number, total) in pane.items()])
        return
    for key in set(chain.from_iterable(panes)):
        cells = [each[key] for each in panes if key in each]
        found.append((end, key, sum([cell[0] for cell in cells]), sum([cell[1] for cell in cells])))


def _ended(panes: deque[Cells], pane: Cells, end: int, slide: int, found: Found) -> Found:
    """Close the last pane, then the windows that are not empty."""
    for after in range(panes.maxlen or 1):
        _close(panes, {} if after else pane, end + after * slide, found)
    return found


def counts_one_by_one(load: Events, length: int, slide: int, changes: bool, function: Function) -> Found:
    """Keep the last `length` events in a deque; after each `slide` events copy it to a list."""
    found: Found = []
    window: deque[float] = deque(maxlen=length)
    before: list[float] = []
    for number, (_, stamp, value) in enumerate(load.rows, start=1):
        window.append(value)
        if number % slide == 0:
            current = list(window)
            if changes:
                gone = max(0, len(before) + slide - length)
                found.append((stamp, function(current, current[-slide:], before[:gone])))
                before = current
            else:
                found.append((stamp, function(current)))
    return found


def counts_in_batches(load: Events, length: int, slide: int, changes: bool, function: Function) -> Found:
    """Append the batch to the remaining events, and take the windows as slices; `slide` divides the size of the batch."""
    found: Found = []
    held: list[float] = []
    for _, stamps, values in load.batches:
        first = len(held)
        held += values
        for stop in range(first + slide, len(held) + 1, slide):
            window = held[max(0, stop - length) : stop]
            stamp = stamps[stop - first - 1]
            if changes:
                expired = held[max(0, stop - length - slide) : max(0, stop - length)]
                found.append((stamp, function(window, held[stop - slide : stop], expired)))
            else:
                found.append((stamp, function(window)))
        del held[: -(length + slide)]
    return found


def times_one_by_one(load: Events, length: int, slide: int, lag: int, function: Function) -> Found:
    """Insert each event in order of time; fire the window of each end that the newest timestamp minus `lag` has passed."""
    found: Found = []
    stamps: list[int] = []
    values: list[float] = []
    newest, end = 0, -(-load.stamps[0] // slide) * slide
    for _, stamp, value in load.rows:
        if stamp >= newest:
            newest = stamp
            stamps.append(stamp)
            values.append(value)
        else:
            at = bisect_right(stamps, stamp)
            stamps.insert(at, stamp)
            values.insert(at, value)
        while newest - lag >= end:
            _cut(stamps, values, end, length, function, found)
            end += slide
    return _rest(stamps, values, end, length, slide, function, found)


def times_in_batches(load: Events, length: int, slide: int, lag: int, function: Function) -> Found:
    """Sort each batch together with the last buffered events, then fire the windows."""
    found: Found = []
    stamps: list[int] = []
    values: list[float] = []
    newest, end = 0, -(-load.stamps[0] // slide) * slide
    for _, batch_stamps, batch_values in load.batches:
        at = bisect_left(stamps, min(batch_stamps))
        new = chain(zip(stamps[at:], values[at:], strict=True), zip(batch_stamps, batch_values, strict=True))
        _replace(stamps, values, at, sorted(new, key=itemgetter(0)))
        newest = max(newest, stamps[-1])
        while newest - lag >= end:
            _cut(stamps, values, end, length, function, found)
            end += slide
    return _rest(stamps, values, end, length, slide, function, found)


def _replace(stamps: list[int], values: list[float], at: int, pairs: Sequence[tuple[int, float]]) -> None:
    new_stamps: Iterable[int]
    new_values: Iterable[float]
    new_stamps, new_values = zip(*pairs, strict=True)
    stamps[at:] = new_stamps
    values[at:] = new_values


def _cut(stamps: list[int], values: list[float], end: int, length: int, function: Function, found: Found) -> None:
    low, high = bisect_right(stamps, end - length), bisect_right(stamps, end)
    if low < high:
        found.append((end, function(values[low:high])))
    if low > 10_000:
        del stamps[:low]
        del values[:low]


def _rest(
    stamps: list[int], values: list[float], end: int, length: int, slide: int, function: Function, found: Found
) -> Found:
    while end - length < stamps[-1]:
        _cut(stamps, values, end, length, function, found)
        end += slide
    return found


def _numbers(shape: Shape) -> tuple[int, int]:
    return _number(shape.length), _number(shape.slide)


def _number(measure: Count | Duration) -> int:
    return measure.value if isinstance(measure, Count) else measure.ms
