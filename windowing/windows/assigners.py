"""Window assigners: the four mixes of length and slide, each as position ranges in an ordered queue.

    length / slide        fires                                          holds
    Duration L/Duration S at each end e passed, window not empty         timestamps in (e-L, e]
    Count N/Count K       at each number n that is a multiple of K       numbers in (n-N, n]
    Duration L/Count K    at each number n that is a multiple of K       numbers <= n, timestamps in (ref-L, ref]
    Count N/Duration S    at each end e passed that has a tuple          the last N with timestamp <= e
                          no fired end had

Ends are the multiples of the slide plus the offset; a tuple's number is its position in (timestamp, arrival) order, from 1.
An assigner holds no state: a `QueueProgress` holds that of one queue (`numbered_upto`), the watermark is an argument. Laws: an
assigner never steps through empty ends, it jumps; the positions of the firings of one queue never decrease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from typing import NamedTuple, Protocol

from windowing.errors import ConfigError, RepeatLimitError
from windowing.windows.config import Lateness, WindowConfig
from windowing.windows.measures import Count, Duration
from windowing.windows.queue import Buffer

Firing = tuple[int, int, int]
"""One window to fire, (reference, low, high): the tuples at positions [low, high), with the reference time in milliseconds. A plain
tuple, because one is made for each window, and a NamedTuple takes seven times as long.
"""


class ArrivalStep(NamedTuple):
    """One step of a Count slide on processing time as tuples arrive: fire a window (or None), then expire all before `horizon`.

    `at` is the position of the tuple whose add causes the step. With `spread` each tuple in between expires with its own add.
    """

    at: int
    firing: Firing | None
    horizon: int
    spread: bool = False


@dataclass(slots=True, eq=False)
class QueueProgress:
    """The progress of one queue: its buffer, how many tuples are numbered, `horizon`, before which all tuples have expired, and the
    largest settled timestamp.
    """

    buffer: Buffer
    numbered_upto: int = 0
    horizon: int = 0
    newest: int | None = None


class WindowAssigner(Protocol):
    """How a window manager finds the windows to fire. `since` and `until` are the watermark before and after the advance."""

    @property
    def length_ms(self) -> int | None:
        """The length in milliseconds, None if it is in tuples."""

    @property
    def keeps_keys(self) -> bool:
        """Whether a key is kept after its last tuple has expired, because its numbering continues."""

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        """Yield the windows that are due, in ascending order, and raise `numbered_upto`."""

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        """Yield the windows that a drain fires, after `due` has returned all windows up to `since`."""

    def horizon(self, state: QueueProgress, until: int) -> int:
        """Return the position before which no tuple can be in a later window."""

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        """Return the smallest watermark at which an advance has an effect on the queue, or None."""

    def late_below(self, watermark: int | None) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is late."""


def align_up(timestamp: int, slide: int, offset: int) -> int:
    """Return the first end >= `timestamp`."""
    return offset - (offset - timestamp) // slide * slide


def first_end(timestamp: int, passed: int | None, slide: int, offset: int) -> int:
    """Return the first end at which a tuple with this timestamp can be in a window, when all ends <= `passed` have passed.

    >>> first_end(7, None, slide=5, offset=0), first_end(7, 9, slide=5, offset=0), first_end(7, 10, slide=5, offset=0)
    (10, 10, 15)
    """
    return align_up(timestamp if passed is None or timestamp > passed else passed + 1, slide, offset)


@dataclass(frozen=True, slots=True)
class DurationDuration:
    """Time windows over time slides. A tuple expires when the last end that can hold it has passed."""

    length_ms: int
    slide_ms: int
    offset_ms: int = 0
    by_window: bool = False

    keeps_keys = False

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        buffer, slide, length = state.buffer, self.slide_ms, self.length_ms
        position_after, adjacent = buffer.position_after, slide == length
        low = high = state.horizon
        settled = buffer.end
        end = first_end(buffer.timestamp_at(high), since, slide, self.offset_ms)
        while end <= until:
            before, high = high, position_after(end, high)
            low = before if adjacent else position_after(end - length, low, high)
            if low < high:
                yield end, low, high
                end += slide
            elif high < settled:
                end = align_up(buffer.timestamp_at(high), slide, self.offset_ms)
            else:
                return

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        buffer = state.buffer
        if buffer.end > state.horizon:
            beyond = buffer.timestamp_at(buffer.end - 1) + self.length_ms + self.slide_ms
            yield from self.due(state, since, beyond)

    def horizon(self, state: QueueProgress, until: int) -> int:
        last_expired = align_up(until + 1, self.slide_ms, self.offset_ms) - self.length_ms
        return state.buffer.position_after(last_expired if last_expired < until else until, state.horizon)

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        buffer = state.buffer
        if state.horizon == buffer.end:
            return None
        earliest = buffer.timestamp_at(state.horizon)
        if self.slide_ms > self.length_ms:
            return earliest
        return first_end(earliest, watermark, self.slide_ms, self.offset_ms)

    def late_below(self, watermark: int | None) -> int | None:
        if watermark is None:
            return None
        open_from = align_up(watermark + 1, self.slide_ms, self.offset_ms) - self.length_ms + 1
        if self.by_window and open_from <= watermark:
            return open_from
        # Storm accepts a tuple at ts == W whose last window has just fired, and loses it; here the tuple is late.
        at_an_end = (watermark - self.offset_ms) % self.slide_ms == 0
        return watermark + 1 if open_from > watermark and at_an_end else watermark


@dataclass(frozen=True, slots=True)
class _CountSlide:
    """The common part of windows over count slides; `numbered_upto` is how many tuples are numbered."""

    slide: int

    keeps_keys = True

    def _firing(self, state: QueueProgress, reference: int, number: int, nominal: int) -> Firing:
        """Return the window that ends with tuple `number`, whose timestamp is `reference`; `nominal`, a multiple of the slide, is
        greater only in a drain.
        """
        raise NotImplementedError

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        buffer, slide, before = state.buffer, self.slide, state.numbered_upto
        state.numbered_upto = buffer.position_after(until, before)
        for number in range((before // slide + 1) * slide, state.numbered_upto + 1, slide):
            yield self._firing(state, buffer.timestamp_at(number - 1), number, number)

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        end, newest = state.buffer.end, state.newest
        if newest is None:
            return
        yield from self.due(state, since, newest)
        if end % self.slide and state.horizon < end:
            last = self._firing(state, newest, end, -(-end // self.slide) * self.slide)
            if last[1] < end:
                yield last

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        return None if state.numbered_upto == state.buffer.end else state.buffer.timestamp_at(state.numbered_upto)

    def late_below(self, watermark: int | None) -> int | None:
        return watermark


@dataclass(frozen=True, slots=True)
class CountCount(_CountSlide):
    """Count windows over count slides."""

    length: int

    length_ms = None

    def _firing(self, state: QueueProgress, reference: int, number: int, nominal: int) -> Firing:
        low, horizon = nominal - self.length, state.horizon
        return reference, low if low > horizon else horizon, number

    def horizon(self, state: QueueProgress, until: int) -> int:
        return max(self._horizon_of(state.numbered_upto), state.horizon)

    def _horizon_of(self, numbered: int) -> int:
        return min((numbered // self.slide + 1) * self.slide - self.length, numbered)

    def steps(self, state: QueueProgress) -> Iterator[ArrivalStep]:
        """Yield the steps that the adds of all settled tuples without a number cause (processing time), in order."""
        number, end, slide = state.numbered_upto, state.buffer.end, self.slide
        state.numbered_upto = end
        while number < end:
            following = (number // slide + 1) * slide
            skipped_to = min(following - self.length, end)
            if skipped_to > number:
                yield ArrivalStep(number, None, skipped_to, spread=True)
            if following <= end:
                firing = self._firing(state, state.buffer.timestamp_at(following - 1), following, following)
                yield ArrivalStep(following - 1, firing, self._horizon_of(following))
            number = following


@dataclass(frozen=True, slots=True)
class DurationCount(_CountSlide):
    """Time windows over count slides."""

    length_ms: int

    def _firing(self, state: QueueProgress, reference: int, number: int, nominal: int) -> Firing:
        return reference, state.buffer.position_after(reference - self.length_ms, state.horizon, number), number

    def horizon(self, state: QueueProgress, until: int) -> int:
        return self._horizon_of(state, state.numbered_upto)

    def _horizon_of(self, state: QueueProgress, numbered: int) -> int:
        newest = state.buffer.timestamp_at(numbered - 1)
        return state.buffer.position_after(newest - self.length_ms, state.horizon, numbered)

    def steps(self, state: QueueProgress) -> Iterator[ArrivalStep]:
        """Yield the steps that the adds of all settled tuples without a number cause (processing time), in order."""
        number, end, slide = state.numbered_upto, state.buffer.end, self.slide
        state.numbered_upto = end
        while number < end:
            now = state.buffer.timestamp_at(number)
            same_until = state.buffer.position_after(now, number)
            horizon = self._horizon_of(state, number + 1)
            if horizon > state.horizon:
                yield ArrivalStep(number, None, horizon)
            for at in range((number // slide + 1) * slide, same_until + 1, slide):
                yield ArrivalStep(at - 1, self._firing(state, now, at, at), horizon)
            number = same_until


@dataclass(frozen=True, slots=True)
class CountDuration:
    """Count windows over time slides; `numbered_upto` is how many tuples have been among the tuples of a fired end."""

    length: int
    slide_ms: int
    offset_ms: int
    repeat: bool
    max_repeats: int

    length_ms = None
    keeps_keys = True

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        repeats, silent_from = 0, since
        end = self._next(state, since)
        while end is not None and end <= until:
            high = state.buffer.position_after(end, state.numbered_upto)
            if high > state.numbered_upto:
                state.numbered_upto, silent_from = high, end
            else:
                repeats += 1
                self._limit(repeats, state, silent_from, until)
            yield end, max(high - self.length, state.horizon), high
            end = self._next(state, end)

    def _next(self, state: QueueProgress, passed: int | None) -> int | None:
        """Return the first end after `passed` that fires, None if there is no tuple to fire for."""
        buffer = state.buffer
        if self.repeat and state.numbered_upto > state.horizon and passed is not None:
            return align_up(passed + 1, self.slide_ms, self.offset_ms)
        if state.numbered_upto == buffer.end:
            return None
        return first_end(buffer.timestamp_at(state.numbered_upto), passed, self.slide_ms, self.offset_ms)

    def _limit(self, repeats: int, state: QueueProgress, silent_from: int | None, until: int) -> None:
        if repeats > self.max_repeats:
            if state.numbered_upto < state.buffer.end:
                until = min(until, state.buffer.timestamp_at(state.numbered_upto) - 1)
            raise RepeatLimitError(
                f"repeat=True would repeat windows more than max_repeats={self.max_repeats} times in one turn: no new tuple in the "
                f"gap ({silent_from}, {until}], slide {self.slide_ms} ms; raise max_repeats, or leave repeat out"
            )

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        buffer = state.buffer
        if state.numbered_upto < buffer.end:
            newest = buffer.timestamp_at(buffer.end - 1)
            yield from self.due(state, since, first_end(newest, since, self.slide_ms, self.offset_ms))

    def horizon(self, state: QueueProgress, until: int) -> int:
        return max(state.numbered_upto - self.length, state.horizon)

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        return self._next(state, watermark)

    def late_below(self, watermark: int | None) -> int | None:
        return watermark


def assigner_of(config: WindowConfig) -> WindowAssigner:
    """Return the assigner of a definition with a built-in length and slide."""
    length, slide = config.length, config.slide
    if length is None:
        raise ConfigError(
            "this machine has windows of a length, and the definition has an eviction of its own instead; make the machine "
            "with WindowedBoltExecutor(config), or give length=..."
        )
    if isinstance(length, Duration):
        if isinstance(slide, Duration):
            return DurationDuration(length.ms, slide.ms, config.offset_ms, config.lateness is Lateness.WINDOW)
        return DurationCount(slide.value, length.ms)
    if isinstance(slide, Duration):
        return CountDuration(length.value, slide.ms, config.offset_ms, config.repeat, config.max_repeats)
    assert isinstance(slide, Count)
    return CountCount(slide.value, length.value)


def by_reference(queues: Sequence[Iterator[Firing]]) -> Iterator[tuple[int, Firing]]:
    """Yield the firings of all queues by their references, each with the number of its queue; equal references in order of the
    queues.

    A queue's firings are ascending; each is computed when the one before it has been used. It is `heapq.merge`, at a third of its
    cost where many queues fire at the same times, as those of keys do.

    >>> list(by_reference([iter([(9, 0, 1)]), iter([(5, 0, 2), (9, 2, 4)])]))
    [(1, (5, 0, 2)), (0, (9, 0, 1)), (1, (9, 2, 4))]
    """
    if len(queues) == 1:
        yield from zip(repeat(0), queues[0])
        return
    waiting: defaultdict[int, list[tuple[int, Firing, Iterator[Firing]]]] = defaultdict(list)
    for number, later in enumerate(queues):
        first = next(later, None)
        if first is not None:
            waiting[first[0]].append((number, first, later))
    references = sorted(waiting)
    while references:
        reference = heappop(references)
        for number, first, later in sorted(waiting.pop(reference)):  # the numbers differ
            yield number, first
            for firing in later:
                if firing[0] != reference:
                    if firing[0] not in waiting:
                        heappush(references, firing[0])
                    waiting[firing[0]].append((number, firing, later))
                    break
                yield number, firing
