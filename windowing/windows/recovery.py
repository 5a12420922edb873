"""WindowRecovery: restores the windows of a stateful bolt from the last checkpoint and from tuples that are sent again.

    checkpoint --> rows     the machine without its tuples; the ids of the tuples that are not acked; the tuples that are acked but
                            that the next window may still report as expired
    restart    <-- rows     RECOVERING: each arriving tuple is classified by its id
                              gone     acked before: absorbed (acked again, shown in no window)
                              awaited  put back in its place; fires no window
                              new      set aside in order, and so are the advances
    all are back            RUNNING: the entries set aside are processed; windows fire as in a run without the crash

    rows      ("machine",)       the executor without its queues    ("waits", channel, id)  [sequence, timestamp, key]
              ("track", ordinal) the state of one queue, no tuples  ("shown", sequence)     [timestamp, key, tuple]
              ("gone", channel)  the ids that are gone              ("gone", channel, number)  a block of them (deduplicator.py)

Laws
- A tuple that is acked is in the rows, or no window will need it; one that is not acked is sent again by its source. So no tuple is
  lost, and after a crash at any point the windows since the checkpoint are those of a run without the crash, for all four mixes, on
  event time and on the clock, with keys or without: same tuples, same new and expired, same references.
- Ids of a channel (component, stream, task) are growing whole numbers, one for each tuple. The ids that are gone are known exactly,
  so tuples may be repeated in any order, and more than once; a new tuple may arrive after 65,536 tuples with greater ids.
- A repetition of a tuple that is still held is absorbed when the held one is gone.
- The executor's generator has, while tuples are awaited too, the timestamps that a run without the crash would have, so that
  generators of other tasks can be merged with it in both directions.
- A source that does not send a tuple again delays recovery until `recovery_timeout` after the last repeated tuple; then the
  tuple is given up by name (Missed), as if it had expired. (In Storm recovery then never ends.)

Cost: O(1) a tuple; a checkpoint costs the tuples and keys that have changed since the last one, and a pass over the tuples of a
key of which some have expired. Source: Storm's `StatefulWindowedBoltExecutor`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.schema.checks import DEFAULT_STREAM
from windowing.windows.deduplicator import ProcessedIds, block_numbers, wrong_id
from windowing.windows.events import Effect
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.guard import NO_EFFECTS
from windowing.windows.key_state import KeyState, restored_key
from windowing.windows.watermark import WaterMarkEventGenerator

RowKey = tuple[Any, ...]

MACHINE: RowKey = ("machine",)
TRACK, WAITS, SHOWN, GONE = "track", "waits", "shown", "gone"


class TuplePosition(NamedTuple):
    """The place of a tuple: its arrival number, its timestamp, and the key of its queue."""

    sequence: int
    timestamp: int
    key: Any


def without(manager: dict[str, Any], held: Iterable[TuplePosition], lost: Iterable[TuplePosition]) -> dict[str, Any]:
    """Return a manager's snapshot as if the `lost` tuples had expired; `held` are the other tuples that it held.

    Numbers once given stay, so count windows continue at the same number: for a lost tuple with a number, the tuples before it move
    up by one; for one without, the tuples after it move down by one. A lost tuple that no window had shown counts as skipped.
    """
    places: defaultdict[Any, list[tuple[int, int]]] = defaultdict(list)
    gone: defaultdict[Any, list[tuple[int, int]]] = defaultdict(list)
    for entry in held:
        places[entry.key].append((entry.timestamp, entry.sequence))
    for entry in lost:
        gone[entry.key].append((entry.timestamp, entry.sequence))
    tally = dict(manager["tally"])
    states = []
    for state in manager["tracks"]:
        key = restored_key(state["key"])
        here = sorted([*places[key], *gone[key]])
        out = {state["base"] + bisect_left(here, place): place[1] for place in gone[key]}
        positions = sorted(out)
        # With lateness="window" a tuple may have arrived, after the last firing, at a position that windows have passed.
        late_insertions = sum(at < state["covered"] and number >= state["fired_at"] for at, number in out.items())
        tally["skipped"] += sum(at >= state["covered"] for at in positions) + late_insertions
        tally["expired"] += len(positions)
        states.append(_without_positions(state, positions))
    return {**manager, "tracks": states, "tally": tally}


def _without_positions(state: dict[str, Any], positions: Sequence[int]) -> dict[str, Any]:
    numbered = [position for position in positions if position < state["mark"]]
    behind = positions[len(numbered) :]

    def moved(position: int) -> int:
        return position + len(numbered) - bisect_left(numbered, position) - bisect_left(behind, position)

    low, high = state["last_window"]
    return {
        **state,
        "base": state["base"] + len(numbered),
        "mark": moved(state["mark"]),
        "horizon": moved(state["horizon"]),
        "covered": moved(state["covered"]),
        "last_window": [moved(low), moved(high)],
    }


# -- WindowRecovery --------------------------------------------------------------------------------------------------------------


Channel = Hashable
"""The origin of tuples: (component, stream, task), as plain data."""
Identity = tuple[Channel, int]
_ABSENT: Any = object()


class Absorbed(NamedTuple):
    """Tuples whose windows have fired before: ack them; no window shows them again."""

    payloads: tuple[Any, ...]


class Missed(NamedTuple):
    """Tuples that were not sent again in time: no window shows them any more."""

    identities: tuple[Identity, ...]


class RecoveryChanges(NamedTuple):
    """The rows to write and delete at a checkpoint, and the tuples to ack with it."""

    put: dict[RowKey, Any]
    delete: list[RowKey]
    absorbed: Absorbed


class _Arrival(NamedTuple):
    """The arguments of one `offer`."""

    payload: Any
    channel: Channel
    id: int
    timestamp: Any
    now_ms: int
    options: dict[str, Any]


class _RecoveredTurn(NamedTuple):
    """An advance that was set aside, with a copy of the generator, which has the timestamps of all tuples until then."""

    now_ms: int
    generator: WaterMarkEventGenerator


class WindowRecovery:
    """One task of a stateful windowed bolt: call `begin` with the stored rows, then add tuples and advance through it.

    `encode` and `decode` turn a tuple into plain data and back. Perform the effects of an entry before the next. The executor must
    keep arrival numbers and tuples.

    >>> from windowing import WindowConfig, count
    >>> config = WindowConfig.of(length=count(2), slide=count(2), message_id="id")
    >>> windows = WindowRecovery(WindowedBoltExecutor(config, sequenced=True, keep_tuples=True), str, str)
    >>> windows.begin([], now_ms=0)
    >>> list(windows.offer("a", ("s", "default", 0), 7, now_ms=0)), len(windows.changes().put)
    ([], 3)
    """

    def __init__(
        self,
        executor: WindowedBoltExecutor,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
    ) -> None:
        manager = executor.manager.numbered
        if executor.config.message_id is None or manager is None:
            raise ConfigError(
                f"bolt {executor.component!r} has a state beside its windows, and to fill them again after a restart their tuples "
                "need ids; name the field of a growing whole number by message_id=, or put the window on disk by "
                "max_events_in_memory="
            )
        self.executor = executor
        self.missing: set[Identity] = set()
        self.duplicates = 0
        """The number of repeated tuples, as of the checkpoint and since then; a tuple that is put back in its place is none."""
        self._manager = manager
        manager.take_changed()  # from now on it records them
        self._blank = executor.snapshot()
        self._encode, self._decode = encode, decode
        self._event_time = executor.config.event_time
        self._timeout_ms = executor.config.recovery_timeout_ms
        self._deadline_ms = 0
        self._clear()

    def _clear(self) -> None:
        self.missing.clear()
        self._live: dict[Identity, list[Any]] = {}  # the values of the rows WAITS
        self._numbers: dict[Any, dict[int, Identity]] = {}  # their identities, by key and arrival number
        self._unwritten: dict[Identity, list[Any]] = {}  # those of them that are not written yet
        self._left: list[RowKey] = []  # the rows of tuples that are to be deleted
        self._gone: dict[Channel, ProcessedIds] = {}
        self._repeated: list[tuple[Identity, Any]] = []
        self._shown: dict[Any, dict[int, Any]] = {}  # the values of the rows SHOWN, by key and arrival number
        self._written: dict[RowKey, Any] = {}  # the rows that are neither WAITS nor SHOWN
        self._returned: dict[Identity, Any] = {}
        self._deferred: list[_Arrival | _RecoveredTurn] = []

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def recovering(self) -> bool:
        """Whether tuples are awaited that must be sent again."""
        return bool(self.missing)

    @property
    def drained(self) -> bool:
        """Whether the windows of the stored checkpoint are closed for good."""
        return MACHINE in self._written and bool(self._written[MACHINE]["closed"])

    def begin(self, rows: Iterable[tuple[RowKey, Any]], now_ms: int) -> None:
        """Load the rows of the last checkpoint, at the start and after a rollback; earlier state is discarded."""
        self._clear()
        self._written = dict(rows)
        self.executor.restore(self._blank)
        self.duplicates = self._written.get(MACHINE, {}).get("duplicates", 0)  # 0.2.0 did not store it
        if MACHINE not in self._written:
            return
        for row in [row for row in self._written if row[0] in (WAITS, SHOWN)]:
            value = self._written.pop(row)
            if row[0] == WAITS:
                self._live[row[1], row[2]] = value
                self._numbers.setdefault(value[2], {})[value[0]] = row[1], row[2]
            else:
                self._shown.setdefault(value[1], {})[row[1]] = value
        for row, value in self._written.items():
            if row[0] == GONE and len(row) == 2:
                self._gone[row[1]] = ProcessedIds.of(value, partial(self._block_of, row[1]))
        self.executor.generator.restore(self._written[MACHINE]["generator"])
        self.missing = set(self._live)
        self._deadline_ms = now_ms + self._timeout_ms
        if not self.missing:
            self._resume()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` gives up the awaited tuples, None while no tuple is awaited."""
        return self._deadline_ms if self.recovering else None

    def tick(self, now_ms: int) -> Iterator[Effect | Absorbed | Missed]:
        """End recovery if the clock has reached the deadline."""
        if not self.recovering or now_ms < self._deadline_ms:
            return NO_EFFECTS
        return self._end()

    # -- tuples and advances -------------------------------------------------------------------------------------------

    def offer(
        self, payload: Any, channel: Channel, message_id: Any, timestamp: Any = None, *, now_ms: int, **options: Any
    ) -> Iterator[Effect | Absorbed | Missed]:
        """Add one tuple; `options` are those of `WindowedBoltExecutor.add` (stream, key, source)."""
        if type(message_id) is not int:
            field = self.executor.config.message_id
            raise wrong_id(f"bolt {self.executor.component!r}, message_id={field!r}", message_id)
        arrival = _Arrival(payload, channel, message_id, timestamp, now_ms, options)
        return self._recover(arrival) if self.recovering else self._add(arrival)

    def turn(self, now_ms: int) -> Iterator[Effect | Absorbed | Missed]:
        """Advance the watermark (over the clock: tick it); during recovery the advance is set aside."""
        if self.recovering:
            self._deferred.append(_RecoveredTurn(now_ms, deepcopy(self.executor.generator)))
            return NO_EFFECTS
        self.executor.set_clock(now_ms)
        return self.executor.turn()

    def drain(self) -> Iterator[Effect | Absorbed | Missed]:
        """End the input; tuples that are still awaited are given up."""
        if self.recovering:
            yield from self._end()
        yield from self.executor.drain()

    def _add(self, arrival: _Arrival) -> Iterator[Effect | Absorbed | Missed]:
        identity = arrival.channel, arrival.id
        if identity in self._live:
            self.duplicates += 1
            self._repeated.append((identity, arrival.payload))
            return NO_EFFECTS
        if self._is_gone(*identity):
            return self._absorbed(arrival)
        sequence = self._manager.next_sequence
        self.executor.set_clock(arrival.now_ms)
        effects = self.executor.add(arrival.payload, arrival.timestamp, **arrival.options)
        if self._manager.next_sequence > sequence:
            time_ms = arrival.timestamp if self._event_time else self.executor.now_ms
            key = arrival.options.get("key")
            self._live[identity] = self._unwritten[identity] = [sequence, time_ms, key]
            self._numbers.setdefault(key, {})[sequence] = identity
        else:
            self._mark_gone(*identity)
        return effects

    def _absorbed(self, arrival: _Arrival) -> Iterator[Absorbed]:
        self.duplicates += 1
        return iter((Absorbed((arrival.payload,)),))

    def _is_gone(self, channel: Channel, id: int) -> bool:
        return channel in self._gone and id in self._gone[channel]

    def _mark_gone(self, channel: Channel, id: int) -> None:
        value = self._live.pop((channel, id), None)
        if value is not None:
            number, _, key = value
            del self._numbers[key][number]
            if not self._numbers[key]:
                del self._numbers[key]
            if self._unwritten.pop((channel, id), None) is None:
                self._left.append((WAITS, channel, id))
        if channel not in self._gone:
            self._gone[channel] = ProcessedIds()
        self._gone[channel].add(id)

    def _recover(self, arrival: _Arrival) -> Iterator[Effect | Absorbed | Missed]:
        identity = arrival.channel, arrival.id
        if identity in self._live:
            before = self._returned.get(identity, _ABSENT)
            if before is not _ABSENT:
                self.duplicates += 1
                self._repeated.append((identity, before))  # it was sent twice: the later one takes its place
            self._returned[identity] = arrival.payload
            self.missing.discard(identity)
            self._deadline_ms = arrival.now_ms + self._timeout_ms
            return NO_EFFECTS if self.missing else self._end()
        if self._is_gone(*identity):
            return self._absorbed(arrival)
        self._deferred.append(arrival)
        self.executor.set_clock(arrival.now_ms)
        self.executor.observe(
            arrival.timestamp, arrival.options.get("stream", DEFAULT_STREAM), arrival.options.get("source")
        )
        return NO_EFFECTS

    # -- the end of a recovery -----------------------------------------------------------------------------------------

    def _end(self) -> Iterator[Effect | Absorbed | Missed]:
        """Restore the checkpoint's windows, then process the entries that were set aside."""
        missed = tuple(sorted(self.missing, key=repr))
        self._resume()
        deferred, self._deferred = self._deferred, []
        return self._caught_up(missed, deferred)

    def _caught_up(
        self, missed: tuple[Identity, ...], deferred: list[_Arrival | _RecoveredTurn]
    ) -> Iterator[Effect | Absorbed | Missed]:
        if missed:
            yield Missed(missed)
        for each in deferred:
            if isinstance(each, _RecoveredTurn):
                self.executor.generator.merge(each.generator)
                yield from self.turn(each.now_ms)
            else:
                yield from self._add(each)

    def _resume(self) -> None:
        """Restore the executor of the checkpoint, with its tuples in their places."""
        rows, live = self._written, {identity: TuplePosition(*value) for identity, value in self._live.items()}
        held = [(entry, self._returned[identity]) for identity, entry in live.items() if identity in self._returned]
        shown = chain.from_iterable(values.items() for values in self._shown.values())
        held += [(TuplePosition(number, *value[:2]), self._decode(value[2])) for number, value in shown]
        lost = [live[identity] for identity in self.missing]
        states = [rows[row] for row in sorted((row for row in rows if row[0] == TRACK), key=lambda row: int(row[1]))]
        machine = rows[MACHINE]
        manager = {**machine["manager"], "tracks": states}
        if lost:
            manager = without(manager, [entry for entry, _ in held], lost)
        self.executor.restore({**machine, "manager": manager})
        self._manager.load(
            [entry.key for entry, _ in held],
            [entry.sequence for entry, _ in held],
            [entry.timestamp for entry, _ in held],
            [payload for _, payload in held],
        )
        self._manager.forget_empty()
        for identity in self.missing:
            self._mark_gone(*identity)
        self.missing.clear()
        self._returned.clear()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def changes(self) -> RecoveryChanges:
        """Return the rows to write with the checkpoint in preparation; from then on they count as written.

        The written rows are then those of all keys and tuples, although only keys that have changed are looked at. While tuples are
        awaited there are no changes: the previous checkpoint still describes the state to recover.
        """
        if self.recovering:
            return RecoveryChanges({}, [], Absorbed(()))
        put = self._rows_of_keys()
        put |= {(WAITS, *identity): value for identity, value in self._unwritten.items()}
        self._unwritten.clear()
        machine = self.executor.snapshot(keys=False)
        del machine["manager"]["tracks"]
        rows: dict[RowKey, Any] = {MACHINE: {**machine, "duplicates": self.duplicates}}
        for channel, ids in self._gone.items():
            rows[GONE, channel], blocks = ids.stored()
            put.update(((GONE, channel, number), block) for number, block in blocks.items())
            left = block_numbers(self._written.get((GONE, channel))) - block_numbers(rows[GONE, channel])
            for number in sorted(left):
                self._left.append((GONE, channel, number))
                self._written.pop((GONE, channel, number), None)
        for row, value in rows.items():
            written = self._written.get(row, _ABSENT)
            if written is not value and written != value:
                put[row] = self._written[row] = value
        delete, self._left = self._left, []
        absorbed = tuple(payload for identity, payload in self._repeated if identity not in self._live)
        self._repeated = [(identity, payload) for identity, payload in self._repeated if identity in self._live]
        return RecoveryChanges(put, delete, Absorbed(absorbed))

    def _block_of(self, channel: Channel, number: int) -> Any:
        """Return a stored block of the ids that are gone."""
        if (GONE, channel, number) in self._written:
            return self._written.pop((GONE, channel, number))
        raise CorruptStateError(
            f"bolt {self.executor.component!r}: block {number} of the message ids of {quote(channel)} is missing; restore the "
            "checkpoint from a copy, nothing was reset"
        )

    def _rows_of_keys(self) -> dict[RowKey, Any]:
        """Return the new rows TRACK and SHOWN, after the keys and tuples that are gone were taken out."""
        put: dict[RowKey, Any] = {}
        current: dict[Any, KeyState] = {}
        moved: dict[Any, None] = {}  # keys with tuples that have expired, or are not held any more
        for state, is_there in self._manager.take_changed():
            row = TRACK, state.ordinal
            was = self._written.get(row)
            if is_there:
                current[state.key] = state
                now = state.snapshot(events=False)
                if now != was:
                    put[row] = self._written[row] = now
                before = (0, 0) if was is None else (was["base"], was["horizon"])
                if before != (now["base"], now["horizon"]):
                    moved[state.key] = None
            else:
                moved[state.key] = None
                if was is not None:
                    del self._written[row]
                    self._left.append(row)
        for key in moved:
            put |= self._rows_of_expired(key, current.get(key))
        return put

    def _rows_of_expired(self, key: Any, state: KeyState | None) -> dict[RowKey, Any]:
        """Return the new rows SHOWN of a key, after the tuples that are gone were taken out. state: None for a forgotten key."""
        numbers = [] if state is None else list(state.buffer.sequences_from(state.held_from))
        expired = 0 if state is None else state.horizon - state.held_from
        live = set(numbers[expired:])
        for identity in [each for number, each in self._numbers.get(key, {}).items() if number not in live]:
            self._mark_gone(*identity)
        put: dict[RowKey, Any] = {}
        before, after = self._shown.pop(key, {}), {}
        for at, number in enumerate(numbers[:expired]):
            if number not in before:
                assert state is not None
                position = state.held_from + at
                (payload,) = state.buffer.slice(position, position + 1)
                put[SHOWN, number] = [state.buffer.timestamp_at(position), key, self._encode(payload)]
            after[number] = before.pop(number, None) or put[SHOWN, number]
        self._left += [(SHOWN, number) for number in before]
        if after:
            self._shown[key] = after
        return put

    def check(self) -> None:
        if self.recovering:
            # Each held tuple is either back or awaited.
            assert self.missing | self._returned.keys() == self._live.keys()
            assert not self.missing & self._returned.keys()
            return
        self.executor.check()
        # No tuple is both live and gone; arrival numbers are unique.
        assert not any(self._is_gone(*identity) for identity in self._live)
        numbers = {number: each for of_key in self._numbers.values() for number, each in of_key.items()}
        assert numbers == {value[0]: identity for identity, value in self._live.items()}
        assert len(numbers) == len(self._live)
        assert all(self._numbers.values())
        # Each held tuple that has not expired is live.
        states = self.executor.snapshot()["manager"]["tracks"]
        assert all(numbers.keys() >= {*each["sequences"][each["horizon"] - each["base"] :]} for each in states)
        # A tuple without a row is live.
        assert self._unwritten.keys() <= self._live.keys()
        # A block of ids that is not read yet is a stored one.
        blocks = [row for row in self._written if row[0] == GONE and len(row) == 3]
        assert all(number in block_numbers(self._written[GONE, channel]) for _, channel, number in blocks)
        # No entry is set aside, and no tuple is to be put back.
        assert not self._deferred
        assert not self._returned
