"""PolicyWindowManager: windows by a user's own per-event policies, in lossless order.

    turn(W)   waiting  --(timestamp, arrival)-->  live     eviction.track, trigger.track, and fire what that makes due
                                                           then WaterMarkEvent(W) to both, and fire what is due
    fire      eviction.set_context(context), then for each live event, oldest first:
              EXPIRE  out of the queue for good     PROCESS  in this window
              KEEP    left for a later one          STOP     the scan is over
              (a length= is asked first; the eviction chooses among the events that it holds)

Every firing is a scan, and every turn tells every key, so this is slow: O(live events) a firing, O(keys) a turn. The built-in
lengths and slides answer in ranges (manager.py). Each key has policies of its own.

Laws: those of WindowManager, but what a window holds and when it fires is the policies' to say; an event expires at the end of
the turn in which the eviction said EXPIRE, or in the drain; more than `max_repeats` firings without a new tuple in one turn are
an error. Source: Storm's `WindowManager`, in order of time, not of arrival; decided in docs/decisions/0002-user-policies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from typing import Any

from windowing.core.config import WindowConfig
from windowing.core.entries import refuse_options
from windowing.core.events import Activation, Effect, Expired
from windowing.core.guard import Guard, no_effects, one_for_each
from windowing.core.measures import Duration
from windowing.core.mixes import mix_of
from windowing.core.policy_track import Fired, PolicyTrack
from windowing.core.track import Tally
from windowing.core.windows import ListContent, TupleWindow
from windowing.errors import SnapshotError, WindowingError, shown

__all__ = ["PolicyWindowManager"]

SNAPSHOT_FORMAT = 1

Fold = Callable[[list[Any]], Any]


class PolicyWindowManager:
    """The windows of one task whose `eviction=` or `trigger=` (or both) is the user's own; what is not is lossless.

    `fold` makes `window.aggregate` from the list of a window's tuples; `component` names the bolt
    in errors. Snapshots hold `get_state()` of the policies of each key.

    >>> from windowing.core.eviction import EvictionContext
    >>> from windowing.core.measures import seconds
    >>> from windowing.core.trigger import TriggerPolicy
    >>> class OnEnd(TriggerPolicy):
    ...     def track(self, event):
    ...         return [EvictionContext(event.timestamp)] if event.get() == "end" else None
    >>> manager = PolicyWindowManager(WindowConfig.of(length=seconds(10), timestamp="ts", trigger=OnEnd))
    >>> list(manager.add_batch(["end", "a", "b"], [7, 3, 9]))
    []
    >>> [effect.window.get() for effect in manager.advance(9) if isinstance(effect, Activation)]
    [['a', 'end']]
    """

    kind = "PolicyWindowManager"

    def __init__(self, config: WindowConfig, *, fold: Fold | None = None, component: str = "bolt") -> None:
        refuse_options(config, "PolicyWindowManager", ("semantics", "max_events_in_memory"))
        self.config = config
        self._component = component
        self.tally = Tally()
        self.watermark: int | None = None
        self.closed = False
        self._fold = fold
        self.guard = Guard()
        self._ordinal = 0
        self._tracks: dict[Any, PolicyTrack] = {}
        self._ticked_ms: int | None = None  # the last tick, or the first tuple's time
        self._deadline: tuple[int | None] | None = None  # as of the last entry; None where it has to be asked for
        in_time = isinstance(config.length, Duration) and isinstance(config.slide, Duration)
        # A key cannot have a time to live if both are Durations: it goes with its last tuple.
        self._forgets = in_time and config.key is not None
        self._declared = mix_of(config) if in_time and config.trigger is None else None
        self._length_ms = config.length.ms if isinstance(config.length, Duration) else None

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple. Cost: O(1) on event time; on processing time a scan for each window that is due with it."""
        self._open()
        if not self.config.event_time:
            return self.guard.run(self._enter(payload, timestamp, key))
        try:
            self._track(key).wait(payload, timestamp)
        except BaseException:
            self.guard.fail()
            raise
        self.tally.accepted += 1
        return no_effects()

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; exactly what one `add` for each gives."""
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        if not self.config.event_time:
            return self.guard.run(self._enter_all(payloads, timestamps, keys), positions=True)
        try:
            for at, payload in enumerate(payloads):
                self._track(None if keys is None else keys[at]).wait(payload, timestamps[at])
        except BaseException:
            self.guard.fail()
            raise
        self.tally.accepted += len(payloads)
        return no_effects()

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Make a turn: raise W to `watermark` (nothing happens if that does not raise it) and fire what falls due."""
        self._open()
        if self.watermark is not None and watermark <= self.watermark:
            return no_effects()
        self.watermark = watermark
        return self.guard.run(self._turn(watermark, lambda track: track.turn(watermark)))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time): W = clock - 1 ms, since this millisecond may bring more tuples."""
        self._open()
        self._deadline, self._ticked_ms = None, now_ms
        if self.watermark is None or now_ms > self.watermark:
            self.watermark = now_ms - 1
        return self.guard.run(self._turn(self.watermark, lambda track: track.tick(now_ms)))

    def drain(self) -> Iterator[Effect]:
        """Close the machine: number and fire what is left, let everything expire. Idempotent."""
        self.guard.enter()
        if self.closed:
            return no_effects()
        self.closed, self._deadline = True, (None,)
        return self.guard.run(self._end())

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _enter_all(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None
    ) -> Iterator[tuple[int, Effect]]:
        for at, payload in enumerate(payloads):
            for effect in self._enter(payload, timestamps[at], None if keys is None else keys[at]):
                yield at, effect

    def _enter(self, payload: Any, timestamp: int, key: Any) -> Iterator[Effect]:
        self.tally.accepted += 1
        if not self._tracks:
            self._ticked_ms = timestamp
        self._deadline = None
        track = self._track(key)
        yield from self._activations([(track, track.enter(payload, timestamp))])
        yield from self._expired(track)

    def _turn(self, until: int, what: Callable[[PolicyTrack], Iterator[Fired]]) -> Iterator[Effect]:
        tracks = list(self._tracks.values())
        over = {track.ordinal for track in tracks if self._outlived(track, until)}
        yield from self._activations(
            [
                (track, chain(what(track), track.finish(until)) if track.ordinal in over else what(track))
                for track in tracks
            ]
        )
        for track in tracks:
            yield from self._expired(track)
            if track.ordinal in over or (self._forgets and track.empty):
                del self._tracks[track.key]
                track.shutdown()

    def _end(self) -> Iterator[Effect]:
        tracks = list(self._tracks.values())
        yield from self._activations([(track, track.finish(self.watermark)) for track in tracks])
        for track in tracks:
            yield from self._expired(track)
            track.shutdown()
        self._tracks.clear()

    def _activations(self, firings: list[tuple[PolicyTrack, Iterator[Fired]]]) -> Iterator[Activation]:
        runs: Iterable[Iterator[tuple[int, int, Fired]]] = [_in_order(track, fired) for track, fired in firings]
        for reference, _, fired in merge(*runs, key=lambda item: item[:2]):
            self.tally.fired += 1
            self.tally.shown += fired.first_shown
            start = None if self._length_ms is None else reference - self._length_ms
            content = _Content(fired.current, fired.new, fired.expired, self._fold)
            yield Activation(TupleWindow(content, start, reference, fired.key))

    def _expired(self, track: PolicyTrack) -> Iterator[Expired]:
        gone, never_shown = track.take_gone()
        if gone:
            self.tally.expired += len(gone)
            self.tally.skipped += never_shown
            yield Expired(len(gone), lambda: gone, track.key)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _track(self, key: Any) -> PolicyTrack:
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = PolicyTrack(self.config, key, self._ordinal, self.watermark, self._component)
            self._ordinal += 1
        return track

    def _outlived(self, track: PolicyTrack, watermark: int) -> bool:
        ttl, newest = self.config.key_ttl_ms, track.newest
        return ttl is not None and newest is not None and newest + ttl <= watermark

    def _open(self) -> None:
        self.guard.enter()
        if self.closed:
            raise WindowingError("the window manager was drained: its windows are closed for good; build a new one")

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the W over the clock at which the next tick has something to do, None if there is nothing to wait for.

        Cost: O(keys) after an entry, else O(1).
        """
        if self._deadline is None:
            self._deadline = (min(self._deadlines(), default=None),)
        return self._deadline[0]

    def _deadlines(self) -> Iterator[int]:
        ttl = self.config.key_ttl_ms
        for track in self._tracks.values():
            wanted = track.next_deadline_ms()
            if wanted is not None:
                yield wanted
            if track.tick_interval_ms is not None and self._ticked_ms is not None:
                yield self._ticked_ms + track.tick_interval_ms - 1
            if ttl is not None and track.newest is not None:
                yield track.newest + ttl

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed."""
        self.guard.enter()

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late: W; of two Durations with a slide of ours, as built in."""
        return self.watermark if self._declared is None else self._declared.late_below(self.watermark)

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data, the tuples always with it."""
        self.guard.enter()
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": self.kind,
            "watermark": self.watermark,
            "closed": self.closed,
            "ordinal": self._ordinal,
            "tally": self.tally.snapshot(),
            "tracks": [track.snapshot() for track in self._tracks.values()],
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`. Raises SnapshotError for another format; the machine is then unchanged."""
        if data.get("format") != SNAPSHOT_FORMAT or data.get("machine") != self.kind:
            raise SnapshotError(
                f"a {self.kind} snapshot of format {SNAPSHOT_FORMAT} was wanted, got {shown(data.get('machine'))} of "
                f"format {shown(data.get('format'))}; read it with the version of the library that wrote it"
            )
        self.watermark, self.closed = data["watermark"], data["closed"]
        self._ordinal = data["ordinal"]
        self.tally.restore(data["tally"])
        tracks = [PolicyTrack.restored(self.config, each, self._component) for each in data["tracks"]]
        self._tracks = {track.key: track for track in tracks}
        self._deadline = None
        if self.watermark is not None:
            self._ticked_ms = self.watermark + 1
        else:
            self._ticked_ms = min((track.newest for track in tracks if track.newest is not None), default=None)
        self.guard.reset()

    def check(self) -> None:
        """Assert what "correct" means, for every key."""
        for key, track in self._tracks.items():
            track.check()
            assert track.key is key or track.key == key  # NaN is not equal to itself
        # A tuple that was neither shown nor passed over waits, or lives and was never shown.
        assert self.tally.pending == sum(track.never_shown for track in self._tracks.values())
        assert self.tally.shown + self.tally.skipped >= self.tally.expired


class _Content(ListContent):
    """The content of a window as lists, with the aggregate that the bolt may have declared."""

    __slots__ = ("_fold",)

    def __init__(self, current: list[Any], new: list[Any], expired: list[Any], fold: Fold | None) -> None:
        super().__init__(current, new, expired)
        self._fold = fold

    def aggregate(self) -> Any:
        return super().aggregate() if self._fold is None else self._fold(self.current())


def _in_order(track: PolicyTrack, firings: Iterator[Fired]) -> Iterator[tuple[int, int, Fired]]:
    for fired in firings:
        yield fired.reference, track.ordinal, fired
