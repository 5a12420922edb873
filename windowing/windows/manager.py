"""WindowManager: tuples in, windows out, without losing one; the machine of all keys of a task.

A micro-batch is: all its tuples in arrival order, then one watermark turn.

    add 3, add 9, add 4      tumbling 5                 W = -inf: nothing fires, the queue is 3 4 9
    advance(7)               W = 7, the end 5 passed    Activation (0, 5] holds 3 4, then Expired 3 4
    drain()                  W = infinity               Activation (5, 10] holds 9, then Expired 9

    TaskMachine      how a machine is entered: advance, tick and drain, under a guard (guard.py)
    WindowMachine    with a built-in length and slide (assigners.py)
    KeyedMachine     a turn looks at keys with new tuples, and at those whose deadline W has reached; at no other
    WindowManager    which keeps the tuples of each key in a queue (key_state.py)

Laws
- The machine decides, the driver acts: every entry returns an iterator of effects, in the order in which they are to be done.
- Event time: windows are numbered and fired only in a turn that raises W, or in `drain`. A Count slide on processing time fires on
  the add of its K-th tuple.
- Firings of one turn come in (end or reference, first arrival of the key) order; expiries follow the turn's last firing.
- accepted == shown + skipped + pending; each accepted tuple expires exactly once, after the last window that shows it.
- The watermark never falls; a turn that does not raise it does nothing at all.

Source: Storm's `WindowManager`; the semantics are those of docs/concepts/windows.md, not Storm's (those are in storm.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeVar

from sortedcontainers import SortedList

from windowing.errors import ConfigError, WindowingError, quote
from windowing.windows.assigners import CountCount, DurationCount, Firing, WindowAssigner, assigner_of
from windowing.windows.config import Lateness, Semantics, WindowConfig
from windowing.windows.events import Activation, Effect, Expired, TupleWindow
from windowing.windows.guard import NO_EFFECTS, Guard, one_for_each, refuse_foreign, snapshot_header
from windowing.windows.key_state import KeyState, KeyTrack, PayloadFold, Tally
from windowing.windows.queue import ListBuffer, TupleBuffer

__all__ = [
    "KeyedMachine",
    "StatefulWindowManager",
    "TaskMachine",
    "WindowMachine",
    "WindowManager",
]


_MACHINES = {
    "semantics": "StormMachine",
    "eviction": "PolicyWindowManager",
    "trigger": "PolicyWindowManager",
    "max_events_in_memory": "PagedWindowManager",
}
"""The machine that does what an option says."""


def refuse_options(config: WindowConfig, machine: str, options: Iterable[str]) -> None:
    """Raise ConfigError for an option of these that the definition has and that `machine` would not do."""
    for option in options:
        value = getattr(config, option)
        if value is not None and value is not Semantics.LOSSLESS:
            name = value.value if isinstance(value, Semantics) else value
            raise ConfigError(
                f"a {machine} does not do {option}={quote(name)}, a {_MACHINES[option]} does; make the machine by "
                "machine_for(config) (windowing.windows.executor), which chooses it"
            )


class TaskMachine(ABC):
    """How the machines of one task are entered. Raises ConfigError for a definition with what another machine does."""

    not_done: ClassVar[tuple[str, ...]] = tuple(_MACHINES)
    """Options that are those of other machines."""
    # What a driver asks: see Machine (executor.py).
    takes_columns = False
    keeps_tuples = True
    shows_columns = False
    tick_interval_ms: int | None = None

    def __init__(self, config: WindowConfig) -> None:
        self.config = config
        self._tally = Tally()
        self.watermark: int | None = None
        self.closed = False
        self.guard = Guard()
        self.inbox: list[tuple[Any, int]] | None = None
        refuse_options(config, type(self).__name__, self.not_done)

    @abstractmethod
    def _turn(self, since: int | None, until: int) -> Iterator[Effect]:
        """Yield what a turn from the watermark `since` to `until` does."""

    @abstractmethod
    def _end(self) -> Iterator[Effect]:
        """Yield what the end of the input does."""

    def _take_in(self) -> None:  # noqa: B027 - optional
        """Take in what lies in the machine's inbox, where it has one."""

    @property
    def numbered(self) -> WindowManager | None:
        """The machine itself if it numbers its tuples, so that a driver may store them apart from its snapshot."""
        return None

    @property
    def tally(self) -> Tally:
        """What became of the tuples."""
        self._take_in()
        return self._tally

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Make a turn: raise W to `watermark` (nothing happens if that does not raise it) and fire what falls due.

        Cost: O(log n) and what is handed over for each queue that has something due; other keys cost nothing.
        """
        self._open()
        since = self.watermark
        if since is not None and watermark <= since:
            return NO_EFFECTS
        self.watermark = watermark
        return self.guard.run(self._turn(since, watermark))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time): W = clock - 1 ms, since this millisecond may bring more tuples."""
        return self.advance(now_ms - 1)

    def drain(self) -> Iterator[Effect]:
        """Close the machine: fire what is left (the short last windows too), let everything expire. Idempotent."""
        self.enter()
        if self.closed:
            return NO_EFFECTS
        self.closed = True
        return self.guard.run(self._end())

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed."""
        self.guard.enter()
        self._take_in()

    def _open(self) -> None:
        self.enter()
        if self.closed:
            raise WindowingError("the window manager was drained: its windows are closed for good; build a new one")

    def _outlived(self, newest: int | None, watermark: int) -> bool:
        """Whether a key is forgotten whose largest timestamp this is."""
        ttl = self.config.key_ttl_ms
        return ttl is not None and newest is not None and newest + ttl <= watermark


class WindowMachine(TaskMachine):
    """A machine of a built-in length and slide."""

    def __init__(self, config: WindowConfig) -> None:
        self._assigner: WindowAssigner = assigner_of(config)
        super().__init__(config)

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is."""
        return self._assigner.late_below(self.watermark)


# -- KeyedMachine ----------------------------------------------------------------------------------------------------------------


T = TypeVar("T", bound=KeyTrack)


class KeyedMachine(WindowMachine, Generic[T]):
    """The turns and the wake-ups of WindowManager and NumberPaneManager; see WindowManager for the laws."""

    kind: ClassVar[str]
    """The name of the machine in its snapshots."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config)
        self._by_window = config.lateness is Lateness.WINDOW
        self._keyed = config.key is not None
        # A Count slide on processing time fires as tuples arrive; everything else waits for a turn.
        self._stepping = (
            self._assigner if not config.event_time and isinstance(self._assigner, CountCount | DurationCount) else None
        )
        self._sequence = 0
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
            return NO_EFFECTS
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
            return NO_EFFECTS
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
            return NO_EFFECTS
        steps = [self._steps(track, positions) for track, positions in touched]
        return self.guard.run(steps[0] if len(steps) == 1 else merge(*steps, key=_position), positions=True)

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time): W = clock - 1 ms, since this millisecond may bring more tuples.

        To a Count slide, which fires as tuples come, it only tells which keys are outlived.
        """
        if self._stepping is not None and self.config.key_ttl_ms is None:
            self._open()
            return NO_EFFECTS
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
        over = {track.ordinal for track in tracks if self._outlived(track.newest, until)}
        firings = [
            chain(self._assigner.due(track, since, until), self._assigner.rest(track, until))
            if track.ordinal in over
            else self._assigner.due(track, since, until)
            for track in tracks
        ]
        yield from self._activations(tracks, firings)
        for track in tracks:
            end = track.buffer.end if track.ordinal in over else self._assigner.horizon(track, until)
            yield from self._expire(track, end)
            track.trim()
            if track.ordinal in over or (self._keyed and track.empty and not self._assigner.keeps_keys):
                self._forget(track)
            else:
                self._wake_later(track)

    def _end(self) -> Iterator[Effect]:
        tracks = list(self._tracks.values())
        for track in tracks:
            track.settle(self._by_window)
        yield from self._activations(tracks, [self._assigner.rest(track, self.watermark) for track in tracks])
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
                yield Activation(self._window(track, firing))
            return
        ordered = merge(
            *(_with_track(track, each) for track, each in zip(tracks, firings, strict=True)), key=_firing_order
        )
        for track, firing in ordered:
            yield Activation(self._window(track, firing))

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
                yield at if positions is None else positions[at], Activation(self._window(track, step.firing))
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
        deadline = self._assigner.deadline(track, self.watermark)
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
        """Return the machine as plain data; without `events`, all but the tuples (a driver stores those of `held_sequences`)."""
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
        return {
            **snapshot_header(self.kind),
            "watermark": self.watermark,
            "closed": self.closed,
            "sequence": self._sequence,
            "ordinal": self._ordinal,
            "tally": self.tally.snapshot(),
            "tracks": [track.snapshot(events) for track in self._tracks.values()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format, ConfigError for rows that make no columns where
        those are wanted; the machine is then unchanged.
        """
        refuse_foreign(data, self.kind)
        tracks = [self._restored(each) for each in data["tracks"]]
        self.watermark, self.closed = data["watermark"], data["closed"]
        self._sequence, self._ordinal = data["sequence"], data["ordinal"]
        self._tally.restore(data["tally"])
        if self.inbox is not None:
            self.inbox.clear()
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


# -- WindowManager ---------------------------------------------------------------------------------------------------------------


_OF_COLUMNS = "ColumnarWindowManager"


class WindowManager(KeyedMachine[KeyState]):
    """The windows of one task in lossless semantics, of all its keys if the definition has `key=`.

    `sequenced=True` keeps arrival numbers, for a driver that stores the tuples itself (`held_sequences`, `load`). `fold` makes
    `window.aggregate` from the list of a window's tuples.

    >>> from windowing.windows.events import Activation
    >>> from windowing.windows.measures import count
    >>> manager = WindowManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts"))
    >>> list(manager.add_batch(["a", "b", "c"], [1, 2, 3]))
    []
    >>> [effect.window.get() for effect in manager.advance(3) if isinstance(effect, Activation)]
    [['a', 'b']]

    `add_batch` yields each effect with the position of the tuple that caused it, the other entries effects alone:

    >>> by_arrival = WindowManager(WindowConfig(length=count(2), slide=count(2)))
    >>> for position, effect in by_arrival.add_batch(["a", "b", "c"], [0, 0, 0]):
    ...     print(position, effect.window.get() if isinstance(effect, Activation) else effect)
    1 ['a', 'b']
    1 Expired(count=2, key=None)
    """

    kind = "WindowManager"

    def __init__(self, config: WindowConfig, *, sequenced: bool = False, fold: PayloadFold | None = None) -> None:
        super().__init__(config)
        self._sequenced = sequenced or self._by_window
        self._fold = fold
        if self._stepping is None and not self._keyed and type(self)._buffer is WindowManager._buffer:
            self.inbox = []

    def _track(self, key: Any, ordinal: int) -> KeyState:
        return KeyState(key, ordinal, self._buffer(), self._sequence)

    def restore(self, data: dict[str, Any]) -> None:
        # Windows over columns were stored under a name of their own once; what was stored of them is the same.
        super().restore({**data, "machine": "WindowManager"} if data.get("machine") == _OF_COLUMNS else data)

    def _restored(self, data: dict[str, Any]) -> KeyState:
        return KeyState.restored(data, self._buffer())

    def _buffer(self) -> TupleBuffer:
        """Return the queue of a new track."""
        return ListBuffer(self._sequenced)

    def _window(self, track: KeyState, firing: Firing) -> TupleWindow:
        return track.fire(firing, self._assigner.length_ms, self._sequence, self._tally, self._fold)

    def _tuples(self, track: KeyState, low: int, high: int) -> Callable[[], Sequence[Any]]:
        return partial(track.buffer.slice, low, high)

    # -- for drivers that store the tuples themselves ------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The arrival number of the next tuple, from 0."""
        self._take_in()
        return self._sequence

    @property
    def numbered(self) -> WindowManager:
        """The machine itself: each tuple has an arrival number."""
        return self

    def held_sequences(self) -> Any:
        """Return the arrival numbers of what is held.

        For a driver that stores tuples apart (`sequenced=True`): any other tuple is needed no more. Between turns only.
        """
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
        held = (_listed(track.buffer).sequences_from(track.held_from) for track in self._tracks.values())
        return list(chain.from_iterable(held))

    def held(self) -> Iterator[tuple[Any, int, int, Any, bool]]:
        """Yield (key, sequence, timestamp, tuple, whether it has expired) of all that is held, key by key in queue order.

        What has expired is held while the next window may report it as expired. Between turns only.
        """
        self.enter()
        for track in self._tracks.values():
            track.settle(self._by_window)
            expired = track.horizon - track.held_from
            for number, entry in enumerate(_listed(track.buffer).held(track.held_from)):
                yield track.key, *entry, number < expired

    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Give a machine restored from a snapshot without events its tuples back: exactly those of `held_sequences`."""
        held: dict[Any, list[tuple[int, int, Any]]] = {}
        for key, *entry in zip(
            repeat(None) if keys is None else keys, timestamps, sequences, payloads, strict=keys is not None
        ):
            held.setdefault(key, []).append((entry[0], entry[1], entry[2]))
        for key, entries in held.items():
            entries.sort(key=itemgetter(0, 1))
            ordered_at, numbers, tuples = zip(*entries, strict=True)
            buffer = _listed(self._tracks[key].buffer)
            buffer.load(ordered_at, tuples, numbers, buffer.base)


def _listed(buffer: TupleBuffer) -> ListBuffer:
    assert isinstance(buffer, ListBuffer), "a driver stores the tuples of list buffers only"
    return buffer


class StatefulWindowManager(WindowManager):
    """The manager of bolts that keep state over their windows.

    Storm's walks its windows by iterator and gives no new or expired tuples; in lossless semantics every window is lazy and has
    both, so nothing is left to differ. Source: Storm's `StatefulWindowManager` (its own behaviour: `StormStatefulWindowManager`).
    """
