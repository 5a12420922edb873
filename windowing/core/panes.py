"""NumberPaneManager: count windows that keep no tuples, only what the bolt's `aggregate=` makes of them.

    length 6, slide 4            pane = 2 = gcd(6, 4)
    numbers    | 1  2 | 3  4 | 5  6 | 7  8 |             a partial each
    windows    [- up to 4 ---]
                      [------ up to 8 -----]

Every window begins and ends where a pane does. A pane is a run of numbers; a tuple waits as (timestamp, value) until it has its
number. (Windows of time: time_panes.py.)

Laws: firings, expiries and tally are those of WindowManager on the same tuples; what no window can hold is counted and never
added; resumed from a snapshot, results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from windowing.core.config import WindowConfig
from windowing.core.events import Effect
from windowing.core.keyed import SNAPSHOT_FORMAT, KeyedMachine
from windowing.core.measures import Count
from windowing.core.mixes import Firing
from windowing.core.pane_content import PaneWindow, refuse_foreign
from windowing.core.pane_queue import NumberPanes
from windowing.core.partials import Aggregation
from windowing.core.track import Tally, key_of
from windowing.core.windows import TupleWindow
from windowing.errors import ConfigError

__all__ = ["NumberPaneManager"]


class PaneTrack:
    """The panes of one key, and how far it got."""

    __slots__ = ("buffer", "deadline", "horizon", "key", "mark", "newest", "ordinal")

    def __init__(self, key: Any, ordinal: int, panes: NumberPanes) -> None:
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


class NumberPaneManager(KeyedMachine[PaneTrack]):
    """The windows of a bolt with `aggregate=` whose length and slide are both Counts.

    A window has a length and an `aggregate`, but no tuples; an Expired effect has a count, but no tuples. Cost: O(1) a tuple (a
    batch is grouped at C speed and each aggregator is given runs), O(1) a firing whatever the length (sliding.py).

    >>> from windowing.core import aggregate as agg
    >>> from windowing.core.events import Activation
    >>> from windowing.core.measures import count
    >>> manager = NumberPaneManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts", aggregate=agg.sum()))
    >>> list(manager.add_batch([5, 6, 7], [1, 2, 3]))
    []
    >>> [effect.window.aggregate for effect in manager.advance(3) if isinstance(effect, Activation)]
    [11]
    """

    kind = "NumberPaneManager"

    def __init__(self, config: WindowConfig, component: str = "bolt") -> None:
        super().__init__(config)
        length, slide = config.length, config.slide
        if config.aggregate is None or not isinstance(length, Count) or not isinstance(slide, Count):
            raise ConfigError(
                f"panes of numbers need aggregate= and two Counts, got length={length!r}, slide={slide!r}"
            )
        self._aggregation = Aggregation(config.aggregate, component)
        self._count, self._every = length.value, slide.value

    def _empty(self) -> NumberPanes:
        """Return the queue of a key without tuples."""
        return NumberPanes(self._aggregation, self._count, self._every)

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
        self._tally.fired += 1
        track.buffer.show(firing.low, firing.high, self._tally)
        return PaneWindow(track.buffer.partials(firing.high), self._aggregation, None, firing.reference, track.key)

    def _tuples(self, track: PaneTrack, low: int, high: int) -> None:
        return None

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data, partials included; there are no tuples to leave out."""
        return super().snapshot(events) | {"aggregate": self._aggregation.spec}

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format, or if something else was aggregated."""
        refuse_foreign(data, self.kind, SNAPSHOT_FORMAT, self._aggregation.spec)
        super().restore(data)
