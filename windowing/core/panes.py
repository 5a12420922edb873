"""PaneManager: windows that keep no tuples, only what the bolt's `aggregate=` makes of them.

    length 6, slide 4            pane = 2 = gcd(6, 4)
    panes      | 3 | 1 | 4 | 1 | 5 |             a partial and a number of tuples each
    windows    [---- 8 ----]                     (0, 6]
                       [---- 10 ---]             (4, 10]

Every window begins and ends where a pane does. Duration/Duration: a tuple is added to the pane of its timestamp as it comes, out
of order or not, so inside a pane values are added in order of arrival. Count/Count: a pane is a run of numbers; a tuple waits
as (timestamp, value) until it has its number.

Laws: firings, expiries and tally are those of WindowManager on the same tuples; what no window can hold is counted and never
added; resumed from a snapshot, results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from windowing.core.config import WindowConfig
from windowing.core.events import Effect
from windowing.core.keyed import KeyedMachine
from windowing.core.measures import Count, Duration
from windowing.core.mixes import Firing
from windowing.core.pane_queue import NO_TUPLES, NumberPanes, Panes, TimePanes
from windowing.core.partials import Aggregation
from windowing.core.track import Tally, key_of
from windowing.core.windows import TupleWindow
from windowing.errors import ConfigError, SnapshotError, shown

__all__ = ["PaneManager"]


class _PaneContent:
    """The content of a window as a range of panes; the result is made when asked for."""

    __slots__ = ("_aggregation", "_high", "_low", "_panes")

    def __init__(self, panes: Panes, aggregation: Aggregation, firing: Firing) -> None:
        self._panes, self._aggregation = panes, aggregation
        self._low, self._high = firing.low, firing.high

    def __len__(self) -> int:
        return self._high - self._low

    def current(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def new(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def expired(self) -> NoReturn:
        raise TypeError(NO_TUPLES)

    def aggregate(self) -> Any:
        return self._aggregation.result(self._panes.partials(self._low, self._high))


class PaneTrack:
    """The panes of one key, and how far it got."""

    __slots__ = ("buffer", "deadline", "horizon", "key", "mark", "newest", "ordinal")

    def __init__(self, key: Any, ordinal: int, panes: Panes) -> None:
        self.key = key
        self.ordinal = ordinal
        self.buffer = panes
        self.mark = 0
        self.horizon = 0
        self.newest: int | None = None
        self.deadline: int | None = None

    @property
    def empty(self) -> bool:
        return self.horizon == self.buffer.end and not self.buffer.staged

    def settle(self, by_window: bool) -> None:
        self.buffer.settle()
        self.newest = self.buffer.newest

    def expire(self, horizon: int, tally: Tally) -> int:
        first, self.horizon = self.horizon, horizon
        tally.expired += horizon - first
        self.buffer.drop(horizon, tally)
        return first

    def trim(self) -> None:
        self.buffer.fold(self.mark)

    def snapshot(self, events: bool) -> dict[str, Any]:
        panes = self.buffer.snapshot()
        return {"key": self.key, "ordinal": self.ordinal, "mark": self.mark, "horizon": self.horizon, "panes": panes}

    def check(self) -> None:
        self.buffer.check()
        assert self.horizon <= self.buffer.end
        assert 0 <= self.mark <= self.buffer.end


class PaneManager(KeyedMachine[PaneTrack]):
    """The windows of a bolt with `aggregate=` whose length and slide are both Durations or both Counts.

    A window has a length and an `aggregate`, but no tuples; an Expired effect has a count, but no tuples. Cost: O(1) a tuple (a
    batch is grouped at C speed and each aggregator is given runs), O(panes of the window) a firing that is asked for its result.

    >>> from windowing.core import aggregate as agg
    >>> from windowing.core.events import Activation
    >>> from windowing.core.measures import count
    >>> manager = PaneManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts", aggregate=agg.sum()))
    >>> list(manager.add_batch([5, 6, 7], [1, 2, 3]))
    []
    >>> [effect.window.aggregate for effect in manager.advance(3) if isinstance(effect, Activation)]
    [11]
    """

    kind = "PaneManager"

    def __init__(self, config: WindowConfig, component: str = "bolt") -> None:
        super().__init__(config)
        assert config.aggregate is not None
        self._aggregation = Aggregation(config.aggregate, component)
        self._empty()

    def _empty(self) -> Panes:
        """Return the queue of a key without tuples."""
        length, slide = self.config.length, self.config.slide
        if isinstance(length, Duration) and isinstance(slide, Duration):
            return TimePanes(self._aggregation, length.ms, slide.ms, self.config.offset_ms)
        if isinstance(length, Count) and isinstance(slide, Count):
            return NumberPanes(self._aggregation, length.value, slide.value)
        raise ConfigError(f"panes need two Durations or two Counts, got length={length!r}, slide={slide!r}")

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple. Raises ConfigError, and changes nothing, if it lacks a field that is read."""
        return super().add(self._aggregation.values([payload])[0], timestamp, key)

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; exactly what one `add` for each gives."""
        return super().add_batch(self._aggregation.values(payloads), timestamps, keys)

    def _track(self, key: Any, ordinal: int) -> PaneTrack:
        return PaneTrack(key, ordinal, self._empty())

    def _restored(self, data: dict[str, Any]) -> PaneTrack:
        track = PaneTrack(key_of(data["key"]), data["ordinal"], self._empty())
        track.mark, track.horizon = data["mark"], data["horizon"]
        track.buffer.restore(data["panes"])
        return track

    def _stage_by_key(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any]
    ) -> list[tuple[PaneTrack, Sequence[int] | None]]:
        # Runs of a key's tuples, so that each aggregator is asked once for a run and not once for a tuple.
        positions: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            positions.setdefault(key, []).append(position)
        return [
            (self._stage(key, [payloads[p] for p in at], [timestamps[p] for p in at], 0), at)
            for key, at in positions.items()
        ]

    def _window(self, track: PaneTrack, firing: Firing) -> TupleWindow:
        self.tally.fired += 1
        track.buffer.show(firing.low, firing.high, self.tally)
        length_ms = self._mix.length_ms
        start = None if length_ms is None else firing.reference - length_ms
        return TupleWindow(_PaneContent(track.buffer, self._aggregation, firing), start, firing.reference, track.key)

    def _tuples(self, track: PaneTrack, low: int, high: int) -> None:
        return None

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data, partials included; there are no tuples to leave out."""
        return super().snapshot(events) | {"aggregate": self._aggregation.spec}

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format, or if something else was aggregated."""
        if data.get("machine") == self.kind and data.get("aggregate") != self._aggregation.spec:
            raise SnapshotError(
                f"the snapshot holds partials of {shown(data.get('aggregate'))}, this bolt declares aggregate="
                f"{shown(self._aggregation.spec)}; restore it into a bolt of the same definition"
            )
        super().restore(data)
