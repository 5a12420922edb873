"""WindowManager: tuples in, windows out, without loss; it is the machine of all keys of a task.

A micro-batch is: all its tuples in arrival order, then one watermark advance.

    add 3, add 9, add 4      tumbling 5                 W = -inf: nothing fires, the queue is 3 4 9
    advance(7)               W = 7, the end 5 passed    Activation (0, 5] holds 3 4, then Expired 3 4
    drain()                  W = infinity               Activation (5, 10] holds 9, then Expired 9

    Machine          the entries of a machine: advance, tick and drain, under a guard (guard.py)
    StoringMachine   its keys may be idle in a driver's store (IdleKeys)
    KeyedMachine     an advance visits only keys whose deadline W has reached
    WindowManager    keeps the tuples of each key in a queue (key_state.py)

Over the clock a tuple has the time of its arrival, and a tick at t advances W to t - 1. If the clock goes back (after a restart on
another host, say), the executor keeps the largest time so far: windows stand still until the clock has caught up.

    clock        12   14   10   11   15
    add           a    b    c    d    e        timestamps 12 14 14 14 15: the order of arrival is that of the queue
    tick, W      11   13   13   13   14        at 10 and 11, c and d might belong to windows that have fired

Laws
- The machine decides, the driver acts: every entry returns an iterator of effects, in the order in which to perform them.
- Event time: windows are numbered and fired only in an advance that raises W, or in `drain`. A Count slide on processing time fires
  on the add of its K-th tuple; no later tuple may come before that one in the queue, so timestamps over the clock never fall.
- Firings of one advance come in (end or reference, first arrival of the key) order; expiries follow the last firing.
- accepted == shown + skipped + pending; each accepted tuple expires exactly once, after the last window that shows it.
- The watermark never falls; an advance that does not raise it has no effect.

Source: Storm's `WindowManager`; the semantics are those of docs/concepts/windows.md, not Storm's (those are in storm.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from heapq import merge
from itertools import chain, count, islice
from operator import attrgetter, gt, itemgetter
from typing import Any, ClassVar, Generic, TypeVar

from sortedcontainers import SortedList

from windowing.errors import ConfigError, WindowingError, quote
from windowing.windows.assigners import (
    CountCount,
    DurationCount,
    Firing,
    QueueProgress,
    WindowAssigner,
    assigner_of,
    by_reference,
)
from windowing.windows.config import Lateness, Semantics, WindowConfig
from windowing.windows.events import Activation, Effect, PayloadFold, TupleWindow
from windowing.windows.guard import FREE, NO_EFFECTS, SNAPSHOT_FORMAT, Guard, one_for_each, refuse_foreign
from windowing.windows.key_state import (
    IdleKeys,
    KeyProgress,
    KeyState,
    RangeView,
    StoredKeys,
    Tally,
    positions_by_key,
    restored_key,
)
from windowing.windows.queue import ListBuffer, stable_order

_MACHINES = {
    "semantics": "StormMachine",
    "eviction": "PolicyWindowManager",
    "trigger": "PolicyWindowManager",
    "max_events_in_memory": "PagedWindowManager",
}
"""The machine that implements each option."""


class Machine(ABC):
    """A window machine as a driver uses it: tuples in, effects out. Every entry returns an iterator of effects; laws: see above.

    assigner: that of a built-in length and slide, None where the user's policies decide which windows hold a tuple. `__init__`,
    which StormMachine replaces, raises ConfigError for an option that another machine implements.
    """

    kind: ClassVar[str]
    """The name of the machine in its snapshots; that of a StormMachine is part of its definition."""
    not_done: ClassVar[tuple[str, ...]] = tuple(_MACHINES)
    """The options that this machine does not implement."""
    takes_columns = False
    """Whether `add_batch` accepts columns (ColumnRows, Timestamps, Keys) without making rows of them."""
    keeps_tuples = True
    """Whether it holds tuples, and not only the partial results of `aggregate=`."""
    shows_columns = False
    """Whether its windows have the form that `columnar=` asks for; if not, a driver converts them (`windowing.columnar.viewed`)."""
    tick_interval_ms: int | None = None
    """How often a driver has to call `tick` over the clock, None where `next_deadline_ms` gives the time."""
    inbox: list[tuple[Any, int]] | None = None
    """A list to which a caller may append tuples (payload, timestamp) that are not late instead of calling `add`, while the machine
    is free; the next entry adds them all at once. None where a tuple has a key, effects of its own, or can be refused.
    """
    closed: bool
    """Whether it was drained."""
    guard: Guard
    watermark: int | None
    """W after the last advance."""
    _tally: Tally

    def __init__(self, config: WindowConfig, assigner: WindowAssigner | None) -> None:
        self.config = config
        self._assigner = assigner
        self._tally = Tally()
        self.watermark = None
        self.closed = False
        self.guard = Guard()
        for option in self.not_done:
            value = getattr(config, option)
            if value is not None and value is not Semantics.LOSSLESS:
                name = value.value if isinstance(value, Semantics) else value
                raise ConfigError(
                    f"a {type(self).__name__} does not do {option}={quote(name)}, a {_MACHINES[option]} does; make the machine by "
                    "machine_for(config) (windowing.windows.executor), which chooses it"
                )

    @property
    def numbered(self) -> WindowManager | None:
        """The machine itself if it numbers its tuples, so that a driver may store them apart from its snapshot; else None."""
        return None

    @property
    def tally(self) -> Tally:
        """Counts of the tuples by outcome."""
        self._add_inbox()
        return self._tally

    @abstractmethod
    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple."""

    @abstractmethod
    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; each effect comes with the position of the tuple that caused it."""

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Raise W to `watermark` and fire the windows that are due; no effect if W is already as high.

        Cost: O(log n) and the size of the result for each queue with a window that is due; other keys cost nothing.
        """
        self._open()
        since = self.watermark
        if since is not None and watermark <= since:
            return NO_EFFECTS
        self.watermark = watermark
        return self.guard.run(self._advance(since, watermark))

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Advance W to clock - 1 ms (processing time), since this millisecond may bring more tuples."""
        return self.advance(now_ms - 1)

    def must_wait(self, now_ms: int) -> bool:
        """Return whether a tick now comes too early, for a driver without a timer that asks at each batch. The first question
        starts the time of a machine that waits.
        """
        return False

    def drain(self) -> Iterator[Effect]:
        """Close the machine: fire the remaining windows (incomplete ones too) and expire all tuples. Idempotent."""
        self.enter()
        if self.closed:
            return NO_EFFECTS
        self.closed = True
        return self.guard.run(self._end())

    def _advance(self, since: int | None, until: int) -> Iterator[Effect]:
        """Yield the effects of an advance of the watermark from `since` to `until`."""
        raise NotImplementedError

    def _end(self) -> Iterator[Effect]:
        """Yield the effects of the end of the input."""
        raise NotImplementedError

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed: the machine is free and has not failed."""
        self.guard.enter()
        self._add_inbox()

    def _add_inbox(self) -> None:
        if self.inbox:
            payloads, timestamps = zip(*self.inbox, strict=True)
            self.inbox.clear()
            self.add_batch(payloads, timestamps)

    def _open(self) -> None:
        self.enter()
        if self.closed:
            raise WindowingError("the window manager was drained: its windows are closed for good; build a new one")

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while no timestamp is late."""
        return self.watermark if self._assigner is None else self._assigner.late_below(self.watermark)

    def _past_ttl(self, states: Iterable[Any], watermark: int) -> dict[int, int]:
        """Return when the keys have ended, by ordinal, for which `key_ttl` has passed since their largest timestamp. Until then a
        window repeats, however far the watermark goes.
        """
        ttl = self.config.key_ttl_ms
        if ttl is None:
            return {}
        ends = {state.ordinal: state.newest + ttl for state in states if state.newest is not None}
        return {ordinal: end for ordinal, end in ends.items() if end <= watermark}

    @abstractmethod
    def next_deadline_ms(self) -> int | None:
        """Return the watermark (over the clock: the time, less 1 ms) at which an advance has an effect, or None."""

    @abstractmethod
    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine's state as plain data."""

    @abstractmethod
    def restore(self, data: dict[str, Any]) -> None:
        """Restore the machine's state from a snapshot, or from what the last `mark` returned. Raises SnapshotError for another
        format.
        """

    def mark(self) -> dict[str, Any]:
        """Return the machine's state for `restore` and `changed`, which a KeyedMachine has for the cost of the keys that change."""
        return self.snapshot()

    def changed(self, marked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two snapshots, as of the last `mark`, which returned `marked`, and of now, with all keys that differ in them."""
        return marked, self.snapshot()

    def _common(self) -> dict[str, Any]:
        """Return the part of a snapshot that all machines but StormMachine have."""
        self.enter()
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": self.kind,
            "watermark": self.watermark,
            "closed": self.closed,
            "tally": asdict(self.tally),
        }

    def _restore_common(self, data: dict[str, Any]) -> None:
        """Restore that part. The machine is spent until the rest is restored too."""
        self.guard.fail()
        if self.inbox is not None:
            self.inbox.clear()
        self.watermark, self.closed = data["watermark"], data["closed"]
        self._tally = Tally(*map(data["tally"].__getitem__, Tally.__slots__))

    def shutdown(self) -> None:  # noqa: B027 - only machines with policies of the user have something to shut down
        """Shut down the user's own triggers, once; a driver calls it at the end of the task, after the last snapshot."""

    @abstractmethod
    def check(self) -> None:
        """Assert the machine's invariants."""


# -- StoringMachine --------------------------------------------------------------------------------------------------------------


class StoringMachine(Machine):
    """A machine whose keys a driver may store apart from its snapshot, each with its deadline, and load when they are needed."""

    idle: IdleKeys | None = None
    """The idle keys of a driver, which sets them after `restore` of a snapshot without their states.

    A key is loaded when it gets a tuple, when its deadline has come, and in a drain; its tuples, where they are not needed before,
    only when a window of it is due. All entries have the results that they would have with all keys and tuples loaded; `snapshot`,
    `held_sequences`, `next_deadline_ms` and `check` leave idle keys and tuples that are not loaded out.
    """

    @abstractmethod
    def snapshot(self, events: bool = True, keys: bool = True) -> dict[str, Any]:
        """Return the machine's state as plain data; without `events` the tuples are left out, and without `keys` all of the keys,
        for a driver that stores these itself (`held_sequences`, `loaded`).
        """

    def stores_apart(self, exact: Callable[[], bool]) -> bool:
        """Return whether a driver that has no idle keys is to store the loaded ones apart, in place of a snapshot of all. exact:
        returns whether equal keys are stored as equal texts (0.0 and -0.0 are not); called only where it matters.
        """
        return True

    @abstractmethod
    def loaded(self) -> Sequence[Any]:
        """Return what a driver stores of the keys that are not idle, with their deadlines. Call it between advances only."""


# -- KeyedMachine ----------------------------------------------------------------------------------------------------------------


T = TypeVar("T", bound=KeyProgress)


class KeyedMachine(StoringMachine, Generic[T]):
    """The advances and wake-ups of WindowManager and NumberPaneManager; for the laws see the top of this file."""

    _assigner: WindowAssigner

    def __init__(self, config: WindowConfig) -> None:
        super().__init__(config, assigner_of(config))
        self._by_window = config.lateness is Lateness.WINDOW
        self._keyed = config.key is not None
        # A Count slide on processing time fires as tuples arrive; every other window waits for an advance.
        self._stepping = (
            self._assigner if not config.event_time and isinstance(self._assigner, CountCount | DurationCount) else None
        )
        self._sequence = 0
        self._ordinal = 0
        self._states: dict[Any, T] = {}
        self._touched: dict[Any, T] = {}
        # Keys of which the driver still has the tuples, with the deadline of these. The queue of such a key has new tuples only;
        # its deadline is the earlier one of both, and new tuples move no position. Not with a Count, which numbers all tuples.
        self._waiting: dict[Any, int | None] = {}
        self._can_wait = not self._assigner.keeps_keys and not self._by_window
        # (deadline, ordinal, state); no two ordinals are equal
        self._wakeups: SortedList[tuple[int, int, T]] = SortedList()
        # Of each key that may have changed since the mark, by ordinal: its state, and its snapshot then, None for a new key.
        self._marked: dict[int, tuple[T, dict[str, Any] | None]] | None = None
        self._known: dict[int, dict[str, Any]] = {}  # snapshots of keys that have not changed since, by ordinal
        self._copies = True  # whether the keys have snapshots there; not after `take_changed`

    # -- implemented by subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def _new_state(self, key: Any, ordinal: int) -> T: ...

    @abstractmethod
    def _window(self, state: T, firing: Firing) -> TupleWindow:
        """Return the window of a firing, and make it the key's last fired window."""

    @abstractmethod
    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Fill a machine restored from a snapshot without events with its tuples, if it keeps tuples."""

    # -- entries -------------------------------------------------------------------------------------------------------

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple that is not late. Cost: O(1) on event time; on processing time also the windows that it makes fire.

        Not late means `timestamp >= late_below()`. The executor checks this; the machine does not.
        """
        if self.closed or self.inbox or self.guard.state is not FREE:
            self._open()
        try:
            state = self._states.get(key)
            if state is None:
                state = self._state_of(key)
            if self._marked is not None:
                self._keep((state,), self._marked)
            self._touched[key] = state
            state.buffer.stage_one(timestamp, payload, self._sequence)
        except BaseException:
            self.guard.fail()
            raise
        self._sequence += 1
        self._tally.accepted += 1
        if self._stepping is None:
            return NO_EFFECTS
        return self.guard.run(effect for _, effect in self._steps(state, None))

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples that are not late in arrival order; each effect comes with the position of the tuple that caused it.

        The result is exactly that of one `add` for each. Cost: list slices and one merge, no work per tuple without keys.
        """
        self._open()
        one_for_each(payloads, timestamps=timestamps, keys=keys)
        if not timestamps:
            return NO_EFFECTS
        if self.idle is not None and keys is not None:
            self._load_idle(self.idle.of(keys))
        touched: list[tuple[T, Sequence[int] | None]]
        try:
            if self._marked is not None:
                self._keep(map(self._state_of, (None,) if keys is None else dict.fromkeys(keys)), self._marked)
            if keys is None:
                state = self._touched[None] = self._state_of(None)
                state.buffer.stage(timestamps, payloads, self._sequence)
                touched = [(state, None)]
            else:
                touched = self._stage_by_key(payloads, timestamps, keys)
        except BaseException:
            self.guard.fail()
            raise
        self._sequence += len(timestamps)
        self._tally.accepted += len(timestamps)
        if self._stepping is None:
            return NO_EFFECTS
        steps = [self._steps(state, positions) for state, positions in touched]
        return self.guard.run(steps[0] if len(steps) == 1 else merge(*steps, key=itemgetter(0)), positions=True)

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Advance W to clock - 1 ms (processing time).

        With a Count slide, which fires as tuples arrive, it only forgets keys whose `key_ttl` has passed.
        """
        if self._stepping is not None and self.config.key_ttl_ms is None:
            self._open()
            return NO_EFFECTS
        return super().tick(now_ms)

    # -- watermark advances --------------------------------------------------------------------------------------------

    def _advance(self, since: int | None, until: int) -> Iterator[Effect]:
        states = self._due_states(since, until)
        over = self._past_ttl(states, until)
        firings = [
            self._assigner.due(state, since, until)
            if (end := over.get(state.ordinal)) is None
            else chain(self._assigner.due(state, since, end), self._assigner.rest(state, end))
            for state in states
        ]
        for number, firing in by_reference(firings):
            yield Activation(self._window(states[number], firing))
        keeps = not self._keyed or self._assigner.keeps_keys
        for state in states:
            ended = state.ordinal in over
            yield from state.expire(state.buffer.end if ended else self._assigner.horizon(state, until), self._tally)
            if ended or (not keeps and state.horizon == state.buffer.end):
                self._forget(state)
            else:
                state.trim()
                self._wake_later(state, until)

    def _end(self) -> Iterator[Effect]:
        if self.idle is not None:
            self._load_idle(self.idle.due(None))
        states = sorted(self._states.values(), key=attrgetter("ordinal"))
        if self._waiting:
            self._load_tuples(states)
        if self._marked is not None:
            self._keep(states, self._marked)
        for state in states:
            state.settle(self._by_window)
        for number, firing in by_reference([self._assigner.rest(state, self.watermark) for state in states]):
            yield Activation(self._window(states[number], firing))
        for state in states:
            yield from state.expire(state.buffer.end, self._tally)
        self._states.clear()
        self._touched.clear()
        self._wakeups.clear()

    def _steps(self, state: T, positions: Sequence[int] | None) -> Iterator[tuple[int, Effect]]:
        """Yield the effects of the newly staged tuples of `state` as they arrive; `positions` are their positions in the batch."""
        assert self._stepping is not None
        before = state.numbered_upto
        state.settle(self._by_window)
        for step in self._stepping.steps(state):
            at = step.at - before
            if step.firing is not None:
                yield at if positions is None else positions[at], Activation(self._window(state, step.firing))
            if step.spread and positions is not None:
                for horizon in range(state.horizon + 1, step.horizon + 1):
                    for effect in state.expire(horizon, self._tally):
                        yield positions[horizon - 1 - before], effect
                continue
            for effect in state.expire(step.horizon, self._tally, step.spread):
                yield at if positions is None else positions[at], effect
        state.trim()

    # -- states of the keys --------------------------------------------------------------------------------------------

    def _load_idle(self, found: StoredKeys | None) -> None:
        """Load keys that are needed now: the next advance looks at them."""
        if found is None:
            return
        states = list(map(self._state_from, found.states))
        keys = [state.key for state in states]
        loaded = dict(zip(keys, states, strict=True))
        self._states |= loaded
        self._touched |= loaded
        self._waiting.update(zip(keys, found.deadlines, strict=True))
        if not self._can_wait:
            self._load_tuples(states)

    def _load_tuples(self, states: Iterable[T]) -> None:
        """Load the tuples of these keys that the driver still has."""
        waiting = [state for state in states if state.key in self._waiting]
        found = None if self.idle is None or not waiting else self.idle.tuples([state.key for state in waiting])
        for state in waiting:
            del self._waiting[state.key]
        if found is not None:
            self.load(*found)
            for state in waiting:
                state.settle(self._by_window)

    def _state_of(self, key: Any) -> T:
        """Return the state of a key, loaded or made new if it is not in memory."""
        if self.idle is not None and key not in self._states:
            self._load_idle(self.idle.of((key,)))
        return self._states.get(key) or self._add_key(key)

    def _add_key(self, key: Any) -> T:
        state = self._states[key] = self._new_state(key, self._ordinal)
        if self._marked is not None:
            self._marked[self._ordinal] = state, None
        self._ordinal += 1
        return state

    def _state_from(self, data: dict[str, Any]) -> T:
        """Return the state of a key in a snapshot."""
        state = self._new_state(restored_key(data["key"]), data["ordinal"])
        state.restore(data)
        return state

    def _stage_by_key(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any]
    ) -> list[tuple[T, Sequence[int] | None]]:
        states, touched = self._states, self._touched
        for key, timestamp, payload, sequence in zip(keys, timestamps, payloads, count(self._sequence), strict=False):
            state = touched.get(key)
            if state is None:
                state = touched[key] = states.get(key) or self._add_key(key)
            state.buffer.stage_one(timestamp, payload, sequence)
        return [] if self._stepping is None else [(states[key], at) for key, at in positions_by_key(keys).items()]

    def _due_states(self, since: int | None, until: int) -> list[T]:
        """Return the states on which an advance has an effect, in order of first arrival. All new tuples are settled."""
        if self.idle is not None:
            self._load_idle(self.idle.due(until))
        due: dict[int, T] = {}
        for state in self._touched.values():
            state.settle(self._by_window)
            if not self._wake_later(state, since, until):
                due[state.ordinal] = state
        self._touched.clear()
        while self._wakeups and self._wakeups[0][0] <= until:
            _, ordinal, state = self._wakeups.pop(0)
            due[ordinal] = state
            state.deadline = None
        if self._waiting:
            self._load_tuples(due.values())
        found = [due[ordinal] for ordinal in sorted(due)]
        if self._marked is not None:
            self._keep(found, self._marked)
        return found

    def _wake_later(self, state: T, watermark: int | None, until: int | None = None) -> bool:
        """Enter a key's deadline into the wake-ups. Return False, and enter none, if an advance to `until` has an effect on it."""
        if state.key in self._waiting:
            new = QueueProgress(state.buffer, horizon=state.buffer.base)
            both = self._waiting[state.key], self._assigner.deadline(new, watermark)
            deadline = min((each for each in both if each is not None), default=None)
        else:
            deadline = self._assigner.deadline(state, watermark)
        if self.config.key_ttl_ms is not None and state.newest is not None:
            gone = state.newest + self.config.key_ttl_ms
            deadline = gone if deadline is None else min(deadline, gone)
        if until is not None and deadline is not None and deadline <= until:
            return False
        if deadline is not None and deadline != state.deadline:
            if state.deadline is not None:
                self._wakeups.remove((state.deadline, state.ordinal, state))
            self._wakeups.add((deadline, state.ordinal, state))
            state.deadline = deadline
        return True

    def _forget(self, state: T) -> None:
        """Remove a key of the running advance. It has no wake-up: the last one has come, because all its tuples have expired."""
        del self._states[state.key]

    def forget_empty(self) -> None:
        """Forget keys without live tuples, which `load` may leave, as the advance does in which a last tuple expires."""
        keeps = not self._keyed or self._assigner.keeps_keys
        for state in [] if keeps else list(self._states.values()):
            if state.horizon == state.buffer.end:
                self._forget(state)
                self._touched.pop(state.key, None)

    # -- for drivers -----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return the watermark at which the next advance has an effect, None if there is none.

        Cost: O(log n) for each key with new tuples since the last advance or the last call.
        """
        self._add_inbox()
        for state in self._touched.values():
            state.settle(self._by_window)
            self._wake_later(state, self.watermark)
        self._touched.clear()
        return self._wakeups[0][0] if self._wakeups else None

    def snapshot(self, events: bool = True, keys: bool = True) -> dict[str, Any]:
        saved = self._common()
        tracks = [state.snapshot(events) for state in self.loaded()] if keys else []
        return {**saved, "sequence": self._sequence, "ordinal": self._ordinal, "tracks": tracks}

    def loaded(self) -> list[T]:
        self.enter()
        self.next_deadline_ms()
        return list(self._states.values())

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the machine's state from a snapshot, or from what the last `mark` returned. Raises SnapshotError for another
        format, and ConfigError for rows that cannot become columns where columns are wanted; the machine is then unchanged.
        """
        refuse_foreign(data, self.kind)
        states = None if "tracks" not in data else list(map(self._state_from, data["tracks"]))
        self._restore_common(data)
        self._sequence, self._ordinal = data["sequence"], data["ordinal"]
        self._touched.clear()
        # Deadlines are derived, so they are not stored; the next advance looks at every restored key.
        if states is None:
            self._undo()
        else:
            self._states = {state.key: state for state in states}
            self._wakeups.clear()
            self._touched.update(self._states)
        self.idle = None
        self._marked = None if self._copies else {state.ordinal: (state, None) for state in self._states.values()}
        self._known.clear()
        self._waiting.clear()
        self.guard.reset()

    # -- the keys that have changed since a mark -------------------------------------------------------------------------

    def mark(self) -> dict[str, Any]:
        """Return the machine's state without its keys. From now on it keeps what a key was before its first change.

        Cost: O(log n) for each key with new tuples, and a snapshot of each key that changes.
        """
        found = self.snapshot(keys=False)
        del found["tracks"]
        self.next_deadline_ms()
        self._marked = {}
        return found

    def changed(self, marked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        assert self._marked is not None
        head = self.snapshot(keys=False)
        self.next_deadline_ms()
        kept = sorted(self._marked.items())
        now = [state.snapshot(True) for _, (state, _) in kept if self._states.get(state.key) is state]
        self._known = {each["ordinal"]: each for each in now}
        then = [each for _, (_, each) in kept if each is not None]
        return {**marked, "tracks": then}, {**head, "tracks": now}

    def take_changed(self) -> list[tuple[T, bool]]:
        """Return the keys that may have changed since the last call, after `restore` all: their states, settled, and whether each
        is still there or was forgotten.

        For a driver that makes no marks. Cost: O(log n) for each key with new tuples.
        """
        self.enter()
        self.next_deadline_ms()
        changed, self._marked, self._copies = self._marked or {}, {}, False
        return [(state, self._states.get(state.key) is state) for state, _ in changed.values()]

    def _keep(self, states: Iterable[T], marked: dict[int, tuple[T, dict[str, Any] | None]]) -> None:
        """Keep what these keys are, which are about to change, unless they have changed since the mark."""
        for state in states:
            known = self._known.pop(state.ordinal, None)
            if state.ordinal not in marked:
                marked[state.ordinal] = state, (known or state.snapshot(True)) if self._copies else None

    def _undo(self) -> None:
        """Restore the keys that have changed since the mark. Keys stay in the order of their ordinals."""
        assert self._marked is not None
        for state, then in self._marked.values():
            if state.deadline is not None:
                self._wakeups.discard((state.deadline, state.ordinal, state))
            if then is None and self._states.get(state.key) is state:
                del self._states[state.key]
        left = len(self._states)
        for _, then in self._marked.values():
            if then is not None:
                state = self._state_from(then)
                self._states[state.key] = self._touched[state.key] = state
        if len(self._states) > left:  # forgotten keys are back
            self._states = dict(sorted(self._states.items(), key=lambda each: each[1].ordinal))

    def check(self) -> None:
        tally = self.tally
        # Each tuple is shown, skipped or pending; an expired one is no longer pending.
        assert tally.pending >= 0
        assert tally.shown + tally.skipped >= tally.expired
        for key, state in self._states.items():
            if key not in self._waiting:
                state.check()
            assert state.key is key or state.key == key  # NaN is not equal to itself
        # A key without new tuples either waits for its deadline or has none.
        waiting = set(self._wakeups)
        assert waiting == {(t.deadline, t.ordinal, t) for t in self._states.values() if t.deadline is not None}
        assert len({state.ordinal for state in self._states.values()}) == len(self._states)


# -- WindowManager ---------------------------------------------------------------------------------------------------------------


class WindowManager(KeyedMachine[KeyState]):
    """The windows of one task in lossless semantics; with `key=`, of all its keys.

    `sequenced=True` keeps arrival numbers, for a driver that stores the tuples itself (`held_sequences`, `load`). `fold` computes
    `window.aggregate` from the list of a window's tuples.

    >>> from windowing import Activation, count
    >>> manager = WindowManager(WindowConfig(length=count(2), slide=count(2), timestamp="ts"))
    >>> list(manager.add_batch(["a", "b", "c"], [1, 2, 3]))
    []
    >>> [effect.window.get() for effect in manager.advance(3) if isinstance(effect, Activation)]
    [['a', 'b']]

    `add_batch` yields each effect with the position of the tuple that caused it; the other entries yield effects alone:

    >>> by_arrival = WindowManager(WindowConfig(length=count(2), slide=count(2)))
    >>> for position, effect in by_arrival.add_batch(["a", "b", "c"], [0, 0, 0]):
    ...     print(position, effect.window.get() if isinstance(effect, Activation) else effect)
    1 ['a', 'b']
    1 Expired(count=2, key=None)
    """

    kind = "WindowManager"
    _state: ClassVar[type[KeyState]] = KeyState

    def __init__(self, config: WindowConfig, *, sequenced: bool = False, fold: PayloadFold | None = None) -> None:
        super().__init__(config)
        self._sequenced = sequenced or self._by_window
        self._fold = fold
        self._buffer: Callable[[], Any] = partial(ListBuffer, self._sequenced)  # the queue of a new key
        self._made: Callable[[RangeView, int | None, int, Any], TupleWindow] = TupleWindow
        if self._stepping is None and not self._keyed:
            self.inbox = []

    def _new_state(self, key: Any, ordinal: int) -> KeyState:
        return self._state(key, ordinal, self._buffer(), self._sequence)

    def _window(self, state: KeyState, firing: Firing) -> TupleWindow:
        reference, low, high = firing
        content = RangeView(state, firing, self._fold)
        if state.late_insertions:
            self._tally.shown += state.buffer.count_after(low, min(high, state.shown_upto), state.fired_at)
        state.count_window(low, high, self._tally)
        state.last_low, state.last_high, state.last = low, high, None
        state.fired_at, state.late_insertions = self._sequence, 0
        length = self._assigner.length_ms
        return self._made(content, None if length is None else reference - length, reference, state.key)

    # -- for drivers that store the tuples themselves ------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """The arrival number of the next tuple, from 0."""
        self._add_inbox()
        return self._sequence

    @property
    def numbered(self) -> WindowManager:
        return self

    def held_sequences(self) -> Any:
        """Return the arrival numbers of the held tuples.

        For a driver that stores tuples apart (`sequenced=True`): it may delete all others. Call it between advances only.
        """
        return list(chain.from_iterable(state.buffer.sequences_from(state.held_from) for state in self.loaded()))

    def load(
        self, keys: Sequence[Any] | None, sequences: Sequence[int], timestamps: Sequence[int], payloads: Sequence[Any]
    ) -> None:
        """Fill a machine restored from a snapshot without events with its tuples: exactly those of `held_sequences`."""
        one_for_each(payloads, sequences=sequences, timestamps=timestamps, keys=keys)
        if not len(payloads):
            return
        places = list(zip(timestamps, sequences, strict=True))
        if any(map(gt, places, islice(places, 1, None))):
            pick = stable_order(places)
            timestamps, sequences, payloads = pick(timestamps), pick(sequences), pick(payloads)
            keys = None if keys is None else pick(keys)
        groups = {None: range(len(payloads))} if keys is None else positions_by_key(keys)
        if len(groups) > 1:  # then the tuples of a key are a slice
            order = list(chain.from_iterable(groups.values()))
            timestamps, sequences, payloads = (
                [column[at] for at in order] for column in (timestamps, sequences, payloads)
            )
        low = 0
        for key, places_of_key in groups.items():
            buffer, part = self._states[key].buffer, slice(low, low + len(places_of_key))
            low = part.stop
            tuples = {"timestamps": timestamps[part], "payloads": payloads[part], "sequences": sequences[part]}
            buffer.fill({"base": buffer.base, **tuples})


class StatefulWindowManager(WindowManager):
    """The manager of bolts that keep state over their windows.

    Storm's iterates over its windows and gives no new or expired tuples. In lossless semantics every window is lazy and has both,
    so this class equals WindowManager. Source: Storm's `StatefulWindowManager` (its own behaviour: `StormStatefulWindowManager`).
    """
