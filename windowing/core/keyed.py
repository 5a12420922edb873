"""KeyedMachine: what every machine with a built-in length and slide has in common, whatever it keeps of its tuples.

    touched    keys with new tuples       --+
                                            +-->  turn(W):  fire what is due, expire, note the key's next deadline
    wake-ups   (deadline, key), sorted    --+     only keys that were touched, or whose deadline W has reached

Laws: those of WindowManager (manager.py); and the cost of a turn follows the keys that have something to do, not all keys.
What is kept of a key is a track; a subclass makes the tracks, and the windows of their firings.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from sortedcontainers import SortedList

from windowing.core.config import Lateness, WindowConfig
from windowing.core.entries import Entries
from windowing.core.events import Activation, Effect, Expired
from windowing.core.guard import no_effects, one_for_each
from windowing.core.mixes import CountCount, DurationCount, Firing
from windowing.core.track import KeyTrack
from windowing.core.windows import TupleWindow
from windowing.errors import SnapshotError

__all__ = ["KeyedMachine"]

SNAPSHOT_FORMAT = 1

T = TypeVar("T", bound=KeyTrack)


class KeyedMachine(Entries, Generic[T]):
    """The turns and the wake-ups of WindowManager and NumberPaneManager; see WindowManager for the laws."""

    kind: ClassVar[str]
    """The name of the machine in its snapshots."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self._by_window = config.lateness is Lateness.WINDOW
        self._keyed = config.key is not None
        # A Count slide on processing time fires as tuples arrive; everything else waits for a turn.
        self._stepping = (
            self._mix if not config.event_time and isinstance(self._mix, CountCount | DurationCount) else None
        )
        self._sequence = 0
        self.inbox: list[tuple[Any, int]] | None = None
        """Where tuples (payload, timestamp) that are not late may be put in place of an `add`, while the machine is free; they are
        taken in by the next entry, all at once. None where a tuple has a key, effects of its own, or can be refused."""
        self._ordinal = 0
        self._tracks: dict[Any, T] = {}
        self._touched: dict[Any, T] = {}
        self._by_ordinal: dict[int, T] = {}
        self._wakeups: SortedList[tuple[int, int]] = SortedList()

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def _track(self, key: Any, ordinal: int) -> T:
        """Return the track of a new key."""

    @abstractmethod
    def _restored(self, data: dict[str, Any]) -> T:
        """Return the track of a snapshot."""

    @abstractmethod
    def _window(self, track: T, firing: Firing) -> TupleWindow:
        """Return the window of a firing, and move the track on: it is now the last fired one."""

    @abstractmethod
    def _tuples(self, track: T, low: int, high: int) -> Callable[[], Sequence[Any]] | None:
        """Return what makes the sequence of the tuples at [low, high), which have just expired; None if they are not kept."""

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple that is not late. Cost: O(1) on event time; on processing time what falls due with it.

        Not late means `timestamp >= late_below()`; it is the executor that asks, no machine does.
        """
        self._open()
        try:
            track = self._tracks.get(key)
            if track is None:
                track = self._new_track(key)
            self._touched[key] = track
            track.buffer.stage_one(timestamp, payload, self._sequence)
        except BaseException:
            self.guard.fail()
            raise
        self._sequence += 1
        self._tally.accepted += 1
        if self._stepping is None:
            return no_effects()
        return self.guard.run(effect for _, effect in self._steps(track, None))

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples that are not late in arrival order; effects come with the position of the tuple that caused them.

        Exactly what one `add` for each gives. Cost: list slices and one merge, no work per tuple without keys.
        """
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        if not timestamps:
            return no_effects()
        touched: list[tuple[T, Sequence[int] | None]]
        try:
            if keys is None:
                touched = [(self._stage(None, payloads, timestamps, self._sequence), None)]
            else:
                touched = self._stage_by_key(payloads, timestamps, keys)
        except BaseException:
            self.guard.fail()
            raise
        self._sequence += len(timestamps)
        self._tally.accepted += len(timestamps)
        if self._stepping is None:
            return no_effects()
        steps = [self._steps(track, positions) for track, positions in touched]
        return self.guard.run(steps[0] if len(steps) == 1 else merge(*steps, key=_position), positions=True)

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time): W = clock - 1 ms, since this millisecond may bring more tuples.

        To a Count slide, which fires as tuples come, it only tells which keys are outlived.
        """
        if self._stepping is not None and self.config.key_ttl_ms is None:
            self._open()
            return no_effects()
        return super().tick(now_ms)

    def _take_in(self) -> None:
        if self.inbox:
            payloads, timestamps = zip(*self.inbox, strict=True)
            self.inbox.clear()
            self._stage(None, payloads, timestamps, self._sequence)
            self._sequence += len(timestamps)
            self._tally.accepted += len(timestamps)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _turn(self, since: int | None, until: int) -> Iterator[Effect]:
        tracks = self._due_tracks(until)
        over = {track.ordinal for track in tracks if self._outlived(track, until)}
        firings = [
            chain(self._mix.due(track, since, until), self._mix.rest(track, until))
            if track.ordinal in over
            else self._mix.due(track, since, until)
            for track in tracks
        ]
        yield from self._activations(tracks, firings)
        for track in tracks:
            end = track.buffer.end if track.ordinal in over else self._mix.horizon(track, until)
            yield from self._expire(track, end)
            track.trim()
            if track.ordinal in over or (self._keyed and track.empty and not self._mix.keeps_keys):
                self._forget(track)
            else:
                self._wake_later(track)

    def _end(self) -> Iterator[Effect]:
        tracks = list(self._tracks.values())
        for track in tracks:
            track.settle(self._by_window)
        yield from self._activations(tracks, [self._mix.rest(track, self.watermark) for track in tracks])
        for track in tracks:
            yield from self._expire(track, track.buffer.end)
        self._tracks.clear()
        self._by_ordinal.clear()
        self._touched.clear()
        self._wakeups.clear()

    def _activations(self, tracks: list[T], firings: list[Iterator[Firing]]) -> Iterator[Effect]:
        if len(tracks) == 1:
            track = tracks[0]
            for firing in firings[0]:
                yield self._activation(track, firing)
            return
        ordered = merge(
            *(_with_track(track, each) for track, each in zip(tracks, firings, strict=True)), key=_firing_order
        )
        for track, firing in ordered:
            yield self._activation(track, firing)

    def _activation(self, track: T, firing: Firing) -> Activation:
        return Activation(self._window(track, firing))

    def _expire(self, track: T, horizon: int, spread: bool = False) -> Iterator[Expired]:
        if horizon > track.horizon:
            first = track.expire(horizon, self._tally)
            yield Expired(horizon - first, self._tuples(track, first, horizon), track.key, spread)

    def _steps(self, track: T, positions: Sequence[int] | None) -> Iterator[tuple[int, Effect]]:
        """Yield what the newly staged tuples of `track` do as they arrive; `positions` are theirs in the batch."""
        assert self._stepping is not None
        before = track.buffer.end
        track.settle(self._by_window)
        for step in self._stepping.steps(track):
            at = step.at - before
            if step.firing is not None:
                yield at if positions is None else positions[at], self._activation(track, step.firing)
            if step.spread and positions is not None:
                for horizon in range(track.horizon + 1, step.horizon + 1):
                    for effect in self._expire(track, horizon):
                        yield positions[horizon - 1 - before], effect
                continue
            for effect in self._expire(track, step.horizon, step.spread):
                yield at if positions is None else positions[at], effect
        track.trim()

    # -- tracks --------------------------------------------------------------------------------------------------------

    def _new_track(self, key: Any) -> T:
        track = self._tracks[key] = self._track(key, self._ordinal)
        self._by_ordinal[self._ordinal] = track
        self._ordinal += 1
        return track

    def _stage(self, key: Any, payloads: Sequence[Any], timestamps: Sequence[int], sequence: int) -> T:
        track = self._tracks.get(key) or self._new_track(key)
        self._touched[key] = track
        track.buffer.stage(timestamps, payloads, sequence)
        return track

    def _stage_by_key(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any]
    ) -> list[tuple[T, Sequence[int] | None]]:
        tracks, touched, sequence = self._tracks, self._touched, self._sequence
        positions: dict[Any, list[int]] = {}
        for position, key in enumerate(keys):
            track = tracks.get(key)
            if track is None:
                track = self._new_track(key)
            touched[key] = track
            track.buffer.stage_one(timestamps[position], payloads[position], sequence + position)
            if self._stepping is not None:
                positions.setdefault(key, []).append(position)
        return [(tracks[key], at) for key, at in positions.items()]

    def _due_tracks(self, until: int) -> list[T]:
        """Return the tracks that a turn has to look at, in order of first arrival, each settled."""
        due = {track.ordinal: track for track in self._touched.values()}
        self._touched.clear()
        while self._wakeups and self._wakeups[0][0] <= until:
            _, ordinal = self._wakeups.pop(0)
            due[ordinal] = self._by_ordinal[ordinal]
            due[ordinal].deadline = None
        tracks = [due[ordinal] for ordinal in sorted(due)]
        for track in tracks:
            track.settle(self._by_window)
        return tracks

    def _wake_later(self, track: T) -> None:
        deadline = self._mix.deadline(track, self.watermark)
        if self.config.key_ttl_ms is not None and track.newest is not None:
            gone = track.newest + self.config.key_ttl_ms
            deadline = gone if deadline is None else min(deadline, gone)
        if deadline == track.deadline:
            return
        if track.deadline is not None:
            self._wakeups.remove((track.deadline, track.ordinal))
        if deadline is not None:
            self._wakeups.add((deadline, track.ordinal))
        track.deadline = deadline

    def _forget(self, track: T) -> None:
        if track.deadline is not None:
            self._wakeups.remove((track.deadline, track.ordinal))
        del self._tracks[track.key], self._by_ordinal[track.ordinal]

    def _outlived(self, track: T, watermark: int) -> bool:
        ttl = self.config.key_ttl_ms
        return ttl is not None and track.newest is not None and track.newest + ttl <= watermark

    # -- for drivers -----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the watermark at which the next turn has something to do, None if there is nothing to wait for.

        Cost: O(log n) for each key that was added to since the last turn.
        """
        self._take_in()
        for track in self._touched.values():
            track.settle(self._by_window)
            self._wake_later(track)
        return self._wakeups[0][0] if self._wakeups else None

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data; without `events`, all but the tuples (a driver stores those by `held_since`)."""
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": self.kind,
            "watermark": self.watermark,
            "closed": self.closed,
            "sequence": self._sequence,
            "ordinal": self._ordinal,
            "tally": self.tally.snapshot(),
            "tracks": [track.snapshot(events) for track in self._tracks.values()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format; the machine is then unchanged."""
        if data.get("format") != SNAPSHOT_FORMAT or data.get("machine") != self.kind:
            raise SnapshotError(
                f"a {self.kind} snapshot of format {SNAPSHOT_FORMAT} was wanted, got {data.get('machine')!r} of format "
                f"{data.get('format')!r}; read it with the version of the library that wrote it"
            )
        self.watermark, self.closed = data["watermark"], data["closed"]
        self._sequence, self._ordinal = data["sequence"], data["ordinal"]
        self._tally.restore(data["tally"])
        if self.inbox is not None:
            self.inbox.clear()
        tracks = [self._restored(each) for each in data["tracks"]]
        self._tracks = {track.key: track for track in tracks}
        self._by_ordinal = {track.ordinal: track for track in tracks}
        self._touched.clear()
        self._wakeups.clear()
        # Every track is looked at in the next turn: deadlines are derived, so they are not stored.
        self._touched.update(self._tracks)
        self.guard.reset()

    def check(self) -> None:
        """Assert what "correct" means, for every key."""
        tally = self.tally
        # Each tuple is shown, skipped or pending; an expired one is no longer pending.
        assert tally.pending >= 0
        assert tally.shown + tally.skipped >= tally.expired
        for key, track in self._tracks.items():
            track.check()
            assert track.key is key or track.key == key  # NaN is not equal to itself
        # A queue that is not looked at in the next turn either waits for its deadline or has nothing to wait for.
        waiting = set(self._wakeups)
        assert waiting == {(t.deadline, t.ordinal) for t in self._tracks.values() if t.deadline is not None}
        assert set(self._by_ordinal) == {track.ordinal for track in self._tracks.values()}


def _with_track(track: T, firings: Iterator[Firing]) -> Iterator[tuple[T, Firing]]:
    for firing in firings:
        yield track, firing


def _firing_order(item: tuple[T, Firing]) -> tuple[int, int]:
    track, firing = item
    return firing.reference, track.ordinal


def _position(item: tuple[int, Effect]) -> int:
    return item[0]
