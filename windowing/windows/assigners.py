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

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from windowing.errors import ConfigError, RepeatLimitError
from windowing.windows.config import Lateness, WindowConfig
from windowing.windows.measures import Count, Duration
from windowing.windows.queue import Buffer

__all__ = [
    "ArrivalStep",
    "CountCount",
    "CountDuration",
    "DurationCount",
    "DurationDuration",
    "Firing",
    "QueueProgress",
    "WindowAssigner",
    "assigner_of",
]


class Firing(NamedTuple):
    """One window to fire: the tuples at positions [low, high), with reference time `reference` in milliseconds."""

    reference: int
    low: int
    high: int


class ArrivalStep(NamedTuple):
    """One step of a Count slide on processing time as tuples arrive: fire a window (or None), then expire all before `horizon`.

    `at` is the position of the tuple whose add causes the step. With `spread` each tuple in between expires with its own add.
    """

    at: int
    firing: Firing | None
    horizon: int
    spread: bool = False


class QueueProgress(Protocol):
    """The progress of one queue: its buffer, how many tuples are numbered, and `horizon`, before which all tuples have expired."""

    numbered_upto: int
    horizon: int

    @property
    def buffer(self) -> Buffer:
        """The queue itself."""


class WindowAssigner(Protocol):
    """How a window manager finds the windows to fire. `since` and `until` are the watermark before and after the advance."""

    length_ms: int | None
    """The length in milliseconds, None if it is in tuples."""
    keeps_keys: bool
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


def end_after(watermark: int, slide: int, offset: int) -> int:
    """Return the first end > `watermark`."""
    return offset + ((watermark - offset) // slide + 1) * slide


class DurationDuration:
    """Time windows over time slides. A tuple expires when the last end that can hold it has passed."""

    __slots__ = ("_by_window", "_offset", "_slide", "keeps_keys", "length_ms")

    def __init__(self, length_ms: int, slide_ms: int, offset_ms: int = 0, by_window: bool = False) -> None:
        self.length_ms: int | None = length_ms
        self.keeps_keys = False
        self._slide = slide_ms
        self._offset = offset_ms
        self._by_window = by_window

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        buffer, slide, length = state.buffer, self._slide, self.length_ms or 0
        low = high = state.horizon
        if high == buffer.end:
            return
        end = align_up(buffer.timestamp_at(high), slide, self._offset)
        if since is not None:
            end = max(end, end_after(since, slide, self._offset))
        while end <= until:
            high = buffer.position_after(end, high)
            low = buffer.position_after(end - length, low, high)
            if low < high:
                yield Firing(end, low, high)
                end += slide
            elif high < buffer.end:
                end = align_up(buffer.timestamp_at(high), slide, self._offset)
            else:
                return

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        buffer = state.buffer
        if buffer.end > state.horizon:
            beyond = buffer.timestamp_at(buffer.end - 1) + (self.length_ms or 0) + self._slide
            yield from self.due(state, since, beyond)

    def horizon(self, state: QueueProgress, until: int) -> int:
        last_expired = end_after(until, self._slide, self._offset) - (self.length_ms or 0)
        return state.buffer.position_after(min(last_expired, until), state.horizon)

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        buffer = state.buffer
        if state.horizon == buffer.end:
            return None
        earliest = buffer.timestamp_at(state.horizon)
        if self._slide > (self.length_ms or 0):
            return earliest
        end = align_up(earliest, self._slide, self._offset)
        return end if watermark is None else max(end, end_after(watermark, self._slide, self._offset))

    def late_below(self, watermark: int | None) -> int | None:
        if watermark is None:
            return None
        open_from = end_after(watermark, self._slide, self._offset) - (self.length_ms or 0) + 1
        if self._by_window and open_from <= watermark:
            return open_from
        # Storm accepts a tuple at ts == W whose last window has just fired, and loses it; here the tuple is late.
        at_an_end = (watermark - self._offset) % self._slide == 0
        return watermark + 1 if open_from > watermark and at_an_end else watermark


class _CountSlide:
    """The common part of windows over count slides; `numbered_upto` is how many tuples are numbered."""

    __slots__ = ("_slide", "keeps_keys", "length_ms")

    def __init__(self, length_ms: int | None, slide: int) -> None:
        self.length_ms = length_ms
        self.keeps_keys = True
        self._slide = slide

    def _firing(self, state: QueueProgress, number: int, nominal: int) -> Firing:
        """Return the window that ends with tuple `number`; `nominal`, a multiple of the slide, is greater only in a drain."""
        raise NotImplementedError

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        before, state.numbered_upto = state.numbered_upto, state.buffer.position_after(until, state.numbered_upto)
        slide = self._slide
        for number in range((before // slide + 1) * slide, state.numbered_upto + 1, slide):
            yield self._firing(state, number, number)

    def deadline(self, state: QueueProgress, watermark: int | None) -> int | None:
        return None if state.numbered_upto == state.buffer.end else state.buffer.timestamp_at(state.numbered_upto)

    def late_below(self, watermark: int | None) -> int | None:
        return watermark


class CountCount(_CountSlide):
    """Count windows over count slides."""

    __slots__ = ("_length",)

    def __init__(self, length: int, slide: int) -> None:
        super().__init__(None, slide)
        self._length = length

    def _firing(self, state: QueueProgress, number: int, nominal: int) -> Firing:
        return Firing(state.buffer.timestamp_at(number - 1), max(nominal - self._length, state.horizon), number)

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        end = state.buffer.end
        if end > state.numbered_upto:
            yield from self.due(state, since, state.buffer.timestamp_at(end - 1))
        nominal = -(-end // self._slide) * self._slide
        if nominal > end and max(nominal - self._length, state.horizon) < end:
            yield self._firing(state, end, nominal)

    def horizon(self, state: QueueProgress, until: int) -> int:
        return max(self._horizon_of(state.numbered_upto), state.horizon)

    def _horizon_of(self, numbered: int) -> int:
        return min((numbered // self._slide + 1) * self._slide - self._length, numbered)

    def steps(self, state: QueueProgress) -> Iterator[ArrivalStep]:
        """Yield the steps that the adds of all settled tuples without a number cause (processing time), in order."""
        number, end, slide = state.numbered_upto, state.buffer.end, self._slide
        state.numbered_upto = end
        while number < end:
            following = (number // slide + 1) * slide
            skipped_to = min(following - self._length, end)
            if skipped_to > number:
                yield ArrivalStep(number, None, skipped_to, spread=True)
            if following <= end:
                yield ArrivalStep(following - 1, self._firing(state, following, following), self._horizon_of(following))
            number = following


class DurationCount(_CountSlide):
    """Time windows over count slides."""

    __slots__ = ()

    def _firing(self, state: QueueProgress, number: int, nominal: int) -> Firing:
        reference = state.buffer.timestamp_at(number - 1)
        low = state.buffer.position_after(reference - (self.length_ms or 0), state.horizon, number)
        return Firing(reference, low, number)

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        end = state.buffer.end
        if end > state.numbered_upto:
            yield from self.due(state, since, state.buffer.timestamp_at(end - 1))
        if end % self._slide and state.horizon < end:
            yield self._firing(state, end, end)

    def horizon(self, state: QueueProgress, until: int) -> int:
        return self._horizon_of(state, state.numbered_upto)

    def _horizon_of(self, state: QueueProgress, numbered: int) -> int:
        if numbered <= state.horizon:
            return state.horizon
        newest = state.buffer.timestamp_at(numbered - 1)
        return state.buffer.position_after(newest - (self.length_ms or 0), state.horizon, numbered)

    def steps(self, state: QueueProgress) -> Iterator[ArrivalStep]:
        """Yield the steps that the adds of all settled tuples without a number cause (processing time), in order."""
        number, end, slide = state.numbered_upto, state.buffer.end, self._slide
        state.numbered_upto = end
        while number < end:
            same_until = state.buffer.position_after(state.buffer.timestamp_at(number), number)
            horizon = self._horizon_of(state, number + 1)
            if horizon > state.horizon:
                yield ArrivalStep(number, None, horizon)
            for at in range((number // slide + 1) * slide, same_until + 1, slide):
                yield ArrivalStep(at - 1, self._firing(state, at, at), horizon)
            number = same_until


class CountDuration:
    """Count windows over time slides; `numbered_upto` is how many tuples have been among the tuples of a fired end."""

    __slots__ = ("_length", "_max_repeats", "_offset", "_repeat", "_slide", "keeps_keys", "length_ms")

    def __init__(self, length: int, slide_ms: int, offset_ms: int, repeat: bool, max_repeats: int) -> None:
        self.length_ms: int | None = None
        self.keeps_keys = True
        self._length = length
        self._slide = slide_ms
        self._offset = offset_ms
        self._repeat = repeat
        self._max_repeats = max_repeats

    def due(self, state: QueueProgress, since: int | None, until: int) -> Iterator[Firing]:
        repeats = 0
        end = self._next(state, since)
        while end is not None and end <= until:
            high = state.buffer.position_after(end, state.numbered_upto)
            if high == state.numbered_upto:
                repeats += 1
                self._limit(repeats, end, until)
            state.numbered_upto = high
            yield Firing(end, max(high - self._length, state.horizon), high)
            end = self._next(state, end)

    def _next(self, state: QueueProgress, passed: int | None) -> int | None:
        """Return the first end after `passed` that fires, None if there is no tuple to fire for."""
        buffer = state.buffer
        if self._repeat and state.numbered_upto > state.horizon and passed is not None:
            return end_after(passed, self._slide, self._offset)
        if state.numbered_upto == buffer.end:
            return None
        end = align_up(buffer.timestamp_at(state.numbered_upto), self._slide, self._offset)
        return end if passed is None else max(end, end_after(passed, self._slide, self._offset))

    def _limit(self, repeats: int, end: int, until: int) -> None:
        if repeats > self._max_repeats:
            first = end - repeats * self._slide
            raise RepeatLimitError(
                f"repeat=True would fire the same window more than max_repeats={self._max_repeats} times in one turn: "
                f"no new tuple in the gap ({first}, {until}], slide {self._slide} ms; raise max_repeats, or leave repeat out"
            )

    def rest(self, state: QueueProgress, since: int | None) -> Iterator[Firing]:
        buffer = state.buffer
        if state.numbered_upto < buffer.end:
            last = align_up(buffer.timestamp_at(buffer.end - 1), self._slide, self._offset)
            if since is not None:
                last = max(last, end_after(since, self._slide, self._offset))
            yield from self.due(state, since, last)

    def horizon(self, state: QueueProgress, until: int) -> int:
        return max(state.numbered_upto - self._length, state.horizon)

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
        return DurationCount(length.ms, slide.value)
    if isinstance(slide, Duration):
        return CountDuration(length.value, slide.ms, config.offset_ms, config.repeat, config.max_repeats)
    assert isinstance(slide, Count)
    return CountCount(length.value, slide.value)
