"""KeyState: the window state of one key (or of a whole task without keys): its queue and its progress.

    base        horizon          shown up to  numbered up to  end
    |  expired  |  live          |            |               |  staged
    [-- last window --]          (kept while the next firing may report it as expired)

Laws: previous - expired + new == current at every firing; a tuple is counted shown or skipped once; the tuples of the last fired
window stay in the queue until the next firing has reported them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Number
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from windowing.codec import NAN
from windowing.windows.assigners import Firing, QueueProgress
from windowing.windows.events import NO_AGGREGATE, Expired, PayloadFold
from windowing.windows.queue import Buffer

_DETACH_OVER = 1024

SETTLED = {
    "ordinal": "ordinal",
    "base": "held_from",
    "mark": "numbered_upto",
    "horizon": "horizon",
    "covered": "shown_upto",
    "last_low": "last_low",
    "last_high": "last_high",
    "fired_at": "fired_at",
    "strangers": "late_insertions",
    "newest": "newest",
}
"""The names of `numbers_of`, in order, with the attributes of a KeyState. In a snapshot, of which stored states are made, some
names are older than those of the code:

    tracks       of a machine: the states of its keys
    sequence     of a machine: the arrival number of its next tuple
    ordinal      of a machine: the number of its next key; of a key: its own, in order of first arrival
    base         the position of the first tuple that is stored
    mark         all tuples before this position are numbered
    horizon      all tuples before this position have expired
    covered      all tuples before this position were shown or skipped
    last_window  [low, high), the positions of the last fired window; among the numbers last_low and last_high
    last         the tuples of that window if they are no longer in the queue, else None
    fired_at     the arrival number of the next tuple when that window fired; at first, when the key came
    strangers    how many tuples have arrived since then at a position before the end of that window (lateness="window")
    newest       the largest timestamp, None before the first tuple
    born         read by version 0.2.0 only
"""
numbers_of = attrgetter(*SETTLED.values())
"""Returns a KeyState as whole numbers, without its key and tuples. Its queue has arrival numbers, so `last` is None; `newest` is
None for a key that never had a tuple.
"""


def restored_key(saved: Any) -> Any:
    """Return a key of a snapshot: a key of several fields is a tuple, which JSON stores as a list.

    >>> restored_key(["JFK", 3]), restored_key("JFK")
    (('JFK', 3), 'JFK')
    """
    return tuple(map(restored_key, saved)) if isinstance(saved, list) else saved


_NEVER_NAN = frozenset({int, str, bytes, bool, type(None)})


def one_nan(value: Any) -> Any:
    """Return the same object for every NaN, of numpy and Decimal too, so that NaN is one key, as it is in Spark; any other value
    unchanged.
    """
    if isinstance(value, float):
        return NAN if value != value else value
    if value.__class__ in _NEVER_NAN or not isinstance(value, Number):
        return value
    nan = value.is_nan() if isinstance(value, Decimal) else value != value
    return NAN if nan else value


def one_nan_in(keys: list[Any]) -> list[Any]:
    """Return `one_nan` of each of these values; the list itself where no value can be one."""
    kinds = set(map(type, keys)) - _NEVER_NAN
    return list(map(one_nan, keys)) if any(issubclass(kind, Number) for kind in kinds) else keys


def positions_by_key(keys: Iterable[Any]) -> dict[Any, list[int]]:
    """Return the positions of each key, in order of first arrival.

    >>> positions_by_key("aba")
    {'a': [0, 2], 'b': [1]}
    """
    positions: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


@dataclass(slots=True, eq=False)
class Tally:
    """Counts of a task's tuples by outcome; `fired` counts windows.

    accepted == shown + skipped + pending, at any time.
    """

    accepted: int = 0
    expired: int = 0
    fired: int = 0
    shown: int = 0
    skipped: int = 0

    @property
    def pending(self) -> int:
        """The number of tuples that no window has shown yet and a later one may show."""
        return self.accepted - self.shown - self.skipped


class RangeView:
    """The content of a window as ranges of a queue; a list is made only when a method is called.

    `last_low, last_high` is the range of the last fired window, `fired_at` the sequence number at its firing: a tuple inside that
    range with a later number arrived afterwards (`lateness="window"`), so that window did not hold it.
    """

    __slots__ = ("_fired_at", "_fold", "_high", "_last", "_last_high", "_last_low", "_low", "buffer")

    def __init__(self, state: KeyState, firing: Firing, fold: PayloadFold | None) -> None:
        self.buffer: Buffer = state.buffer
        _, self._low, self._high = firing
        self._last_low, self._last_high = state.last_low, state.last_high
        self._last = state.last
        self._fired_at = state.fired_at if state.late_insertions else None
        self._fold = fold

    def __len__(self) -> int:
        return self._high - self._low

    def current(self) -> Sequence[Any]:
        return self.buffer.slice(self._low, self._high)

    def new(self) -> Sequence[Any]:
        if self._fired_at is None:
            low, last_high = self._low, self._last_high
            return self.buffer.slice(low if low > last_high else last_high, self._high)
        return self.buffer.arrived_after(self._low, self._high, self._fired_at, all_from=self._last_high)

    def expired(self) -> Sequence[Any]:
        if self._last is not None:
            return self._last
        high, low = self._last_high, self._low
        if high > low:
            high = low
        if high <= self._last_low:
            return []
        if self._fired_at is None:
            return self.buffer.slice(self._last_low, high)
        return self.buffer.arrived_before(self._last_low, high, self._fired_at)

    def aggregate(self) -> Any:
        if self._fold is None:
            raise TypeError(NO_AGGREGATE)
        return self._fold(self.current())


class KeyProgress(QueueProgress, ABC):
    """The state of one key, or of a whole task without keys, as KeyedMachine uses it.

    ordinal: the number of the key in order of first arrival. shown_upto: all tuples before it were shown or skipped. deadline: the
    watermark of the key's entry among the wake-ups, None without one.
    """

    __slots__ = ("deadline", "key", "ordinal", "shown_upto")

    def __init__(self, key: Any, ordinal: int, buffer: Buffer) -> None:
        super().__init__(buffer)
        self.key = key
        self.ordinal = ordinal
        self.shown_upto = 0
        self.deadline: int | None = None

    def settle(self, by_window: bool) -> None:
        """Merge new tuples into the queue. With `by_window` a tuple may land inside a shown range, which moves positions."""
        buffer = self.buffer
        if by_window and buffer.staged and buffer.end > buffer.base:
            self._make_room(sorted(buffer.staged))
        buffer.settle()
        end = buffer.end
        if end > buffer.base:
            newest = buffer.timestamp_at(end - 1)
            if self.newest is None or newest > self.newest:
                self.newest = newest

    def _make_room(self, staged: list[int]) -> None:
        """Move the positions before which tuples with these timestamps are inserted."""
        raise NotImplementedError

    def count_window(self, low: int, high: int, tally: Tally) -> None:
        """Count a window of the tuples at [low, high), and those of them, or before them, that no window has shown."""
        shown_upto = self.shown_upto
        tally.fired += 1
        if low > shown_upto:
            tally.skipped += low - shown_upto
            shown_upto = low
        if high > shown_upto:
            tally.shown += high - shown_upto
            shown_upto = high
        self.shown_upto = shown_upto

    def expire(self, horizon: int, tally: Tally, spread: bool = False) -> Sequence[Expired]:
        """Expire all tuples before `horizon`; return the effect, if any of them has not expired yet. spread: see Expired."""
        first = self.horizon
        if horizon <= first:
            return ()
        if horizon > self.shown_upto:
            tally.skipped += horizon - self.shown_upto
            self.shown_upto = horizon
        tally.expired += horizon - first
        self.horizon = horizon
        return (Expired(horizon - first, self._getter(first, horizon), self.key, spread),)

    def _getter(self, low: int, high: int) -> Callable[[], Sequence[Any]] | None:
        """Return a function that lists the tuples at [low, high), which have just expired; None if tuples are not kept."""
        return partial(self.buffer.slice, low, high)

    @abstractmethod
    def trim(self) -> None:
        """Free tuples that are no longer needed; called at the end of a watermark advance."""

    @abstractmethod
    def snapshot(self, events: bool) -> dict[str, Any]:
        """Return the state as plain data; without `events` without the tuples, for a driver that stores them apart."""

    @abstractmethod
    def restore(self, data: dict[str, Any]) -> None:
        """Set a new state, of the same key, to a snapshot. Without tuples its queue is empty, and waits for `load`."""

    def check(self) -> None:
        self.buffer.check()
        # The shown or skipped tuples end inside the queue; every expired tuple was shown or skipped.
        assert self.horizon <= self.shown_upto <= self.buffer.end
        # Only settled tuples are numbered.
        assert 0 <= self.numbered_upto <= self.buffer.end


class KeyState(KeyProgress):
    """One queue with the state of its assigner, its firings and its expiry. Made by the WindowManager."""

    __slots__ = ("fired_at", "last", "last_high", "last_low", "late_insertions")

    buffer: Any
    """A Buffer, of the class that its machine makes."""

    def __init__(self, key: Any, ordinal: int, buffer: Buffer, sequence: int = 0) -> None:
        # KeyProgress.__init__ is not called: a state is made for each key and time window, and on Spark for each key of a batch.
        self.key = key
        self.ordinal = ordinal
        self.buffer = buffer
        self.numbered_upto = self.horizon = self.shown_upto = 0
        self.newest: int | None = None
        self.deadline: int | None = None
        self.last_low = 0
        self.last_high = 0
        self.last: Sequence[Any] | None = None
        self.fired_at = sequence
        self.late_insertions = 0

    def _make_room(self, staged: list[int]) -> None:
        def before(position: int) -> int:
            if position <= self.buffer.base:
                return 0
            return bisect_left(staged, self.buffer.timestamp_at(position - 1))

        self.late_insertions += before(self.last_high)
        self.shown_upto += before(self.shown_upto)
        self.last_high += before(self.last_high)  # before `last_low` there is no room: such a tuple is late

    @property
    def held_from(self) -> int:
        """The position of the first tuple that is still needed: a live one, or one of the last fired window."""
        if self.last is not None or self.last_high == self.last_low:
            return self.horizon
        return self.last_low if self.last_low < self.horizon else self.horizon

    def trim(self) -> None:
        """Free tuples that are neither live nor in the last window; a last window far behind these is copied to a list."""
        gap = self.horizon - self.last_high
        has_fired = self.last_high > self.last_low
        if has_fired and gap > _DETACH_OVER and self.last is None and not self.buffer.sequenced:
            self.last = self.buffer.slice(self.last_low, self.last_high)
        self.buffer.trim(self.held_from)

    def snapshot(self, events: bool) -> dict[str, Any]:  # by the names at `SETTLED`
        low = self.held_from
        data: dict[str, Any] = {
            "key": self.key,
            "ordinal": self.ordinal,
            "born": self.fired_at,
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

    def restore(self, data: dict[str, Any]) -> None:
        self.numbered_upto, self.horizon, self.shown_upto = data["mark"], data["horizon"], data["covered"]
        self.last_low, self.last_high = data["last_window"]
        self.last = None if data["last"] is None else list(data["last"])
        self.fired_at, self.late_insertions, self.newest = data["fired_at"], data["strangers"], data["newest"]
        if "timestamps" in data or "pages" in data:
            self.buffer.fill(data)
        else:
            self.buffer.base = data["base"]

    def check(self) -> None:
        super().check()
        # Every tuple that is live or may be reported as expired is still held.
        assert self.buffer.base <= self.held_from <= self.horizon
        assert self.last_low <= self.last_high <= self.buffer.end


# -- keys in a driver's store ------------------------------------------------------------------------------------------------------


class StoredKeys(NamedTuple):
    """Keys of a driver's store: their states as in a snapshot without tuples (of panes of time: a PaneCells for each pane), and the
    deadline of each state.
    """

    states: Sequence[Any]
    deadlines: Sequence[int | None]


StoredTuples = tuple[Sequence[Any], Sequence[int], Sequence[int], Sequence[Any]]
"""Tuples of a driver's store as `load` takes them: their keys, arrival numbers and timestamps, and the tuples themselves."""


class IdleKeys(Protocol):
    """The keys in a driver's store that the machine has not loaded. A key is returned once, and is no longer idle then."""

    def of(self, keys: Iterable[Any]) -> StoredKeys | None:
        """Return those of `keys`, which may repeat, that are idle, None if there is none."""

    def due(self, until: int | None) -> StoredKeys | None:
        """Return the idle keys whose deadline is at most `until` (None: all idle keys), None if there is none."""

    def tuples(self, keys: Sequence[Any]) -> StoredTuples | None:
        """Return all tuples of keys that are no longer idle, None if no tuples are stored. They are then the machine's."""
