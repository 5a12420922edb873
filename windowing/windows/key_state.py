"""KeyState: the windows of one key (or of a whole task without keys): its queue and how far it got.

    base        horizon          shown up to  numbered up to  end
    |  expired  |  live          |            |               |  staged
    [-- last window --]          (kept while the next firing may report it as expired)

Laws: previous - expired + new == current at every firing; a tuple is counted shown or skipped once; what the last fired window
held stays in the queue until the next firing has reported it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from windowing.windows.assigners import Firing, Track
from windowing.windows.events import TupleWindow
from windowing.windows.queue import TupleBuffer

__all__ = [
    "KeyState",
    "KeyTrack",
    "PayloadFold",
    "RangeView",
    "Tally",
    "key_of",
    "positions_by_key",
]


_DETACH_OVER = 1024

PayloadFold = Callable[[Sequence[Any]], Any]
"""What makes `window.aggregate` of the tuples of a window."""


def key_of(saved: Any) -> Any:
    """Return a key of a snapshot: one of several fields is a tuple, which becomes a list where plain data is JSON.

    >>> key_of(["JFK", 3]), key_of("JFK")
    (('JFK', 3), 'JFK')
    """
    return tuple(map(key_of, saved)) if isinstance(saved, list) else saved


def positions_by_key(keys: Iterable[Any]) -> dict[Any, list[int]]:
    """Return where each key stands, by first arrival.

    >>> positions_by_key("aba")
    {'a': [0, 2], 'b': [1]}
    """
    positions: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


class Tally:
    """What became of the tuples of a task, in tuples; `fired` counts windows.

    accepted == shown + skipped + pending, at any time.
    """

    __slots__ = ("accepted", "expired", "fired", "shown", "skipped")

    def __init__(self) -> None:
        self.accepted = 0
        self.shown = 0
        self.skipped = 0
        self.expired = 0
        self.fired = 0

    @property
    def pending(self) -> int:
        """Tuples that no window has shown yet and some later one may."""
        return self.accepted - self.shown - self.skipped

    def snapshot(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def restore(self, data: dict[str, int]) -> None:
        for name in self.__slots__:
            setattr(self, name, data[name])


class RangeView:
    """The content of a window as ranges of a queue; a list is made only when asked for.

    `last_low, last_high` is the range of the last fired window, `fired_at` the sequence number at its firing: tuples inside that
    range with a later number came in afterwards (`lateness="window"`), so it did not hold them.
    """

    __slots__ = ("_buffer", "_fired_at", "_fold", "_high", "_last", "_last_high", "_last_low", "_low")

    def __init__(self, track: KeyState, firing: Firing, fold: PayloadFold | None) -> None:
        self._buffer = track.buffer
        self._low, self._high = firing.low, firing.high
        self._last_low, self._last_high = track.last_low, track.last_high
        self._last = track.last
        self._fired_at = track.fired_at if track.late_insertions else None
        self._fold = fold

    def __len__(self) -> int:
        return self._high - self._low

    def current(self) -> Sequence[Any]:
        return self._buffer.slice(self._low, self._high)

    def new(self) -> Sequence[Any]:
        if self._fired_at is None:
            return self._buffer.slice(max(self._low, self._last_high), self._high)
        return self._buffer.came_after(self._low, self._high, self._fired_at, all_from=self._last_high)

    def expired(self) -> Sequence[Any]:
        if self._last is not None:
            return self._last
        high = min(self._last_high, self._low)
        if high <= self._last_low:
            return []
        if self._fired_at is None:
            return self._buffer.slice(self._last_low, high)
        return self._buffer.came_before(self._last_low, high, self._fired_at)

    def aggregate(self) -> Any:
        if self._fold is None:
            raise TypeError("this bolt declares no aggregate=; use window.get(), or declare aggregate=agg.count()")
        return self._fold(self.current())


class KeyTrack(Track, Protocol):
    """What is kept of one key, or of a whole task without keys."""

    key: Any
    ordinal: int
    """The how-manieth key it is, by first arrival."""
    newest: int | None
    """The largest timestamp, once settled."""
    deadline: int | None
    """The watermark at which it is to be looked at, as noted among the wake-ups."""

    @property
    def empty(self) -> bool:
        """Whether every tuple has expired."""

    def settle(self, by_window: bool) -> None:
        """Bring new tuples in order."""

    def expire(self, horizon: int, tally: Tally) -> int:
        """Let all tuples before `horizon` expire; return the position of the first that did."""

    def trim(self) -> None:
        """Free what is needed no more; called at the end of a turn."""

    def snapshot(self, events: bool) -> dict[str, Any]:
        """Return the track as plain data."""

    def check(self) -> None:
        """Assert what "correct" means."""


class KeyState:
    """One queue with the state that its assigner, its firings and its expiry need. Made by the WindowManager."""

    __slots__ = (
        "born",
        "buffer",
        "deadline",
        "fired_at",
        "horizon",
        "key",
        "last",
        "last_high",
        "last_low",
        "late_insertions",
        "newest",
        "numbered_upto",
        "ordinal",
        "shown_upto",
    )

    def __init__(self, key: Any, ordinal: int, buffer: TupleBuffer, born: int = 0) -> None:
        self.key = key
        self.ordinal = ordinal
        self.born = born
        self.buffer = buffer
        self.numbered_upto = 0
        self.horizon = 0
        self.shown_upto = 0
        self.last_low = 0
        self.last_high = 0
        self.last: Sequence[Any] | None = None
        self.fired_at = born
        self.late_insertions = 0
        self.newest: int | None = None
        self.deadline: int | None = None

    def settle(self, by_window: bool) -> None:
        """Bring the queue in order. With `by_window` a tuple may land inside what was shown: positions move over it."""
        buffer = self.buffer
        if by_window and buffer.staged and buffer.end > buffer.base:
            self._make_room(sorted(buffer.staged))
        buffer.settle()
        if buffer.end > buffer.base:
            self.newest = buffer.timestamp_at(buffer.end - 1)

    def _make_room(self, staged: list[int]) -> None:
        def before(position: int) -> int:
            if position <= self.buffer.base:
                return 0
            return bisect_left(staged, self.buffer.timestamp_at(position - 1))

        self.late_insertions += before(self.last_high)
        self.shown_upto += before(self.shown_upto)
        self.last_low, self.last_high = self.last_low + before(self.last_low), self.last_high + before(self.last_high)

    def fire(
        self,
        firing: Firing,
        length_ms: int | None,
        sequence: int,
        tally: Tally,
        fold: PayloadFold | None = None,
        make: Callable[..., TupleWindow] = TupleWindow,
    ) -> TupleWindow:
        """Return the window of `firing`, made by `make`, and move on: it is now the last fired window."""
        reference, low, high = firing
        start = None if length_ms is None else reference - length_ms
        content = RangeView(self, firing, fold)
        self._count(low, high, tally)
        self.last_low, self.last_high, self.last = low, high, None
        self.fired_at, self.late_insertions = sequence, 0
        return make(content, start, reference, self.key)

    def _count(self, low: int, high: int, tally: Tally) -> None:
        shown_upto = self.shown_upto
        tally.fired += 1
        if self.late_insertions:
            tally.shown += self.buffer.count_after(low, min(high, shown_upto), self.fired_at)
        if low > shown_upto:
            tally.skipped += low - shown_upto
            shown_upto = low
        if high > shown_upto:
            tally.shown += high - shown_upto
            shown_upto = high
        self.shown_upto = shown_upto

    def expire(self, horizon: int, tally: Tally) -> int:
        """Let all tuples before `horizon` expire; return the position of the first that did."""
        first = self.horizon
        if horizon > self.shown_upto:
            tally.skipped += horizon - self.shown_upto
            self.shown_upto = horizon
        tally.expired += horizon - first
        self.horizon = horizon
        return first

    @property
    def held_from(self) -> int:
        """The position before which nothing is needed any more: neither live nor held by the last fired window."""
        if self.last is not None or self.last_high == self.last_low:
            return self.horizon
        return min(self.horizon, self.last_low)

    def trim(self) -> None:
        """Free what is neither live nor in the last window; a small last window before a long gap is set aside."""
        gap = self.horizon - self.last_high
        if gap > _DETACH_OVER and self.last is None and not self.buffer.sequenced:
            self.last = self.buffer.slice(self.last_low, self.last_high)
        self.buffer.trim(self.held_from)

    @property
    def empty(self) -> bool:
        """Whether every tuple has expired."""
        return self.horizon == self.buffer.end and not self.buffer.staged

    def snapshot(self, events: bool) -> dict[str, Any]:
        """Return the track as plain data; without `events`, for a driver that stores the tuples apart, all but those."""
        low = self.held_from
        data: dict[str, Any] = {
            "key": self.key,
            "ordinal": self.ordinal,
            "born": self.born,
            "base": low,
            "mark": self.numbered_upto,
            "horizon": self.horizon,
            "covered": self.shown_upto,
            "last_window": [self.last_low, self.last_high],
            "last": None if self.last is None else list(self.last),
            "fired_at": self.fired_at,
            "strangers": self.late_insertions,
            "newest": self.newest,
        }
        if events:
            data |= self.buffer.dump(low)
        return data

    @classmethod
    def restored(cls, data: dict[str, Any], buffer: TupleBuffer) -> KeyState:
        """Return the track of a snapshot; its queue is filled from the snapshot, or stays empty for `ListBuffer.load`."""
        track = cls(key_of(data["key"]), data["ordinal"], buffer, data["born"])
        track.numbered_upto, track.horizon, track.shown_upto = data["mark"], data["horizon"], data["covered"]
        track.last_low, track.last_high = data["last_window"]
        track.last = None if data["last"] is None else list(data["last"])
        track.fired_at, track.late_insertions, track.newest = data["fired_at"], data["strangers"], data["newest"]
        if "timestamps" in data or "pages" in data:
            buffer.fill(data)
        else:
            buffer.base = data["base"]
        return track

    def check(self) -> None:
        """Assert what "correct" means."""
        self.buffer.check()
        # Everything that is live or may be reported as expired is still held.
        assert self.buffer.base <= self.held_from <= self.horizon <= self.buffer.end
        # What was shown, or passed over, ends inside the queue; what expired was shown or passed over.
        assert self.horizon <= self.shown_upto <= self.buffer.end
        # Only settled tuples are numbered.
        assert 0 <= self.numbered_upto <= self.buffer.end
        assert self.last_low <= self.last_high <= self.buffer.end
