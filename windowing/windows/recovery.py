"""WindowRecovery: the windows of a stateful bolt go on where the last checkpoint left them, with tuples that come again.

    checkpoint --> rows     the machine without its tuples; the ids of the tuples that are not acked; the tuples that are acked but
                            that the next window may still report as expired
    restart    <-- rows     RECOVERING: what comes is told apart by its id
                              gone     acked before: absorbed (acked again, shown nowhere)
                              awaited  put back in its place; fires nothing
                              new      set aside, and the turns too, in order
    all are back            RUNNING: what was set aside is done; windows fire where the undisturbed run fires them

    rows      ("machine",)       the executor without its queues    ("waits", channel, id)  [sequence, timestamp, key]
              ("track", ordinal) one queue's numbers, no tuples     ("shown", sequence)     [timestamp, key, tuple]
              ("gone", channel)  the ids that are gone (deduplicator.py)

Laws
- What is acked is in the rows, or no window will ever need it; what is not acked comes again from its source. So nothing is lost,
  and after a crash at any point the windows since the checkpoint are those of a run without the crash, for all four mixes, over
  event time and the clock, with keys or without: same tuples, same new and expired, same references.
- Ids of a channel (component, stream, task) are whole numbers that grow, each its own tuple's. What is gone is known exactly, so
  tuples may come again in any order, and more than once; one that comes for the first time may come behind 65,536 others.
- A tuple that comes again while the first is held is absorbed when that one is gone.
- The executor's generator knows, while tuples are awaited too, what a run without the crash would: other tasks may learn from it,
  and it from them.
- A source that does not send a tuple again holds recovery up until `recovery_timeout` after the last that came; then the
  tuple is given up by name (Missed), as if it had expired. (In Storm recovery then never ends.)

Cost: O(held) at a checkpoint, of which what changed is written; O(1) a tuple. Source: Storm's `StatefulWindowedBoltExecutor`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from windowing.errors import ConfigError, quote
from windowing.schema.checks import DEFAULT_STREAM
from windowing.windows.deduplicator import ProcessedIds
from windowing.windows.events import Effect
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.guard import NO_EFFECTS
from windowing.windows.key_state import key_of
from windowing.windows.watermark import WaterMarkEventGenerator

__all__ = [
    "GONE",
    "MACHINE",
    "SHOWN",
    "TRACK",
    "WAITS",
    "Absorbed",
    "Missed",
    "RecoveryChanges",
    "RowKey",
    "TuplePosition",
    "WindowRecovery",
    "without",
]


RowKey = tuple[Any, ...]

MACHINE: RowKey = ("machine",)
TRACK, WAITS, SHOWN, GONE = "track", "waits", "shown", "gone"


class TuplePosition(NamedTuple):
    """Where a tuple stands: its arrival number, its timestamp, and the key whose queue it is in."""

    sequence: int
    timestamp: int
    key: Any


def without(manager: dict[str, Any], held: Iterable[TuplePosition], lost: Iterable[TuplePosition]) -> dict[str, Any]:
    """Return a manager's snapshot as if the `lost` tuples had expired: `held` are the others that it held.

    Numbers that were given stay given, so count windows go on at the number where they were: before a lost tuple that had its
    number the others move up by one, behind one that had none they move down. What no window had shown counts as skipped.
    """
    gone = list(lost)
    tally = dict(manager["tally"])
    tracks = []
    for track in manager["tracks"]:
        key = key_of(track["key"])
        here = sorted((place.timestamp, place.sequence) for place in (*held, *gone) if place.key == key)
        out = {
            track["base"] + bisect_left(here, (place.timestamp, place.sequence)): place.sequence
            for place in gone
            if place.key == key
        }
        positions = sorted(out)
        # With lateness="window" one may have come, after the last firing, to a place that windows have passed.
        late_insertions = sum(at < track["covered"] and number >= track["fired_at"] for at, number in out.items())
        tally["skipped"] += sum(at >= track["covered"] for at in positions) + late_insertions
        tally["expired"] += len(positions)
        tracks.append(_closed_up(track, positions))
    return {**manager, "tracks": tracks, "tally": tally}


def _closed_up(track: dict[str, Any], positions: Sequence[int]) -> dict[str, Any]:
    numbered = [position for position in positions if position < track["mark"]]
    behind = positions[len(numbered) :]

    def moved(position: int) -> int:
        return position + len(numbered) - bisect_left(numbered, position) - bisect_left(behind, position)

    low, high = track["last_window"]
    return {
        **track,
        "base": track["base"] + len(numbered),
        "mark": moved(track["mark"]),
        "horizon": moved(track["horizon"]),
        "covered": moved(track["covered"]),
        "last_window": [moved(low), moved(high)],
    }


# -- WindowRecovery --------------------------------------------------------------------------------------------------------------


Channel = Hashable
"""Where tuples come from: (component, stream, task), plain data."""
Identity = tuple[Channel, int]
_ABSENT: Any = object()


class Absorbed(NamedTuple):
    """These tuples had their windows before: ack them, they are shown nowhere."""

    payloads: tuple[Any, ...]


class Missed(NamedTuple):
    """These tuples did not come again in time: no window shows them any more."""

    identities: tuple[Identity, ...]


class RecoveryChanges(NamedTuple):
    """What to do with the stored rows at a checkpoint, and what to ack with it."""

    put: dict[RowKey, Any]
    delete: list[RowKey]
    absorbed: Absorbed


class _Arrival(NamedTuple):
    """A tuple with all that the executor wants to know."""

    payload: Any
    channel: Channel
    id: int
    timestamp: Any
    now_ms: int
    options: dict[str, Any]


class _RecoveredTurn(NamedTuple):
    """A turn, and what the watermark had heard by then: of what is set aside, and by whoever told its generator (`merge`)."""

    now_ms: int
    heard: WaterMarkEventGenerator


def _same(payload: Any) -> Any:
    return payload


class WindowRecovery:
    """One task of a stateful windowed bolt: `begin` with the stored rows, then offer tuples and make turns through it.

    `encode` and `decode` turn a tuple into plain data and back. Perform the effects of an entry before the next. An executor made
    by `executor_of` is wanted: it keeps arrival numbers.

    >>> from windowing.windows.config import WindowConfig
    >>> from windowing.windows.measures import count
    >>> config = WindowConfig.of(length=count(2), slide=count(2), message_id="id")
    >>> windows = WindowRecovery.of(config)
    >>> windows.begin([], now_ms=0)
    >>> list(windows.offer("a", ("s", "default", 0), 7, now_ms=0)), len(windows.changes().put)
    ([], 3)
    """

    def __init__(
        self,
        executor: WindowedBoltExecutor,
        encode: Callable[[Any], Any] = _same,
        decode: Callable[[Any], Any] = _same,
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
        self._manager = manager
        self._blank = executor.snapshot()
        self._encode, self._decode = encode, decode
        self._timeout_ms = executor.config.recovery_timeout_ms
        self._deadline_ms = 0
        self._clear()

    @classmethod
    def of(cls, config: Any, streams: Iterable[str] = ("default",), component: str = "bolt") -> WindowRecovery:
        """Return a recovery with an executor of its own."""
        return cls(WindowedBoltExecutor(config, tuple(streams), component, sequenced=True, keep_tuples=True))

    def _clear(self) -> None:
        self.missing.clear()
        self._live: dict[Identity, int] = {}
        self._gone: dict[Channel, ProcessedIds] = {}
        self._again: list[tuple[Identity, Any]] = []
        self._written: dict[RowKey, Any] = {}
        self._back: dict[Identity, Any] = {}
        self._aside: list[_Arrival | _RecoveredTurn] = []

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def recovering(self) -> bool:
        """Whether tuples are awaited that have to come again."""
        return bool(self.missing)

    @property
    def drained(self) -> bool:
        """Whether the windows of the stored checkpoint are closed for good."""
        return MACHINE in self._written and bool(self._written[MACHINE]["closed"])

    def last(self, channel: Channel) -> tuple[int | None, int | None]:
        """Return (last expired, last evaluated) of a channel: the greatest id that is gone before all that are held, and the
        greatest that came; None for none. Cost: O(ids).
        """
        live = [id for of, id in self._live if of == channel]
        gone = [*self._gone.get(channel, ())]
        passed = [id for id in gone if not live or id < min(live)]
        return max(passed, default=None), max([*live, *gone], default=None)

    def begin(self, rows: Iterable[tuple[RowKey, Any]], now_ms: int) -> None:
        """Take what the last checkpoint has stored, at the start and after a rollback; nothing is kept of before."""
        self._clear()
        self._written = dict(rows)
        self.executor.restore(self._blank)
        if MACHINE not in self._written:
            return
        for row, value in self._written.items():
            if row[0] == WAITS:
                self._live[row[1], row[2]] = value[0]
            elif row[0] == GONE:
                self._gone[row[1]] = ProcessedIds.of(value)
        self.executor.generator.restore(self._written[MACHINE]["generator"])
        self.missing = set(self._live)
        self._deadline_ms = now_ms + self._timeout_ms
        if not self.missing:
            self._resume()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` gives up what did not come again, None while nothing is awaited."""
        return self._deadline_ms if self.recovering else None

    def tick(self, now_ms: int) -> Iterator[Effect | Absorbed | Missed]:
        """Take note of the time: recovery ends at the deadline."""
        if not self.recovering or now_ms < self._deadline_ms:
            return NO_EFFECTS
        return self._end()

    # -- tuples and turns ----------------------------------------------------------------------------------------------

    def offer(
        self, payload: Any, channel: Channel, message_id: Any, timestamp: Any = None, *, now_ms: int, **options: Any
    ) -> Iterator[Effect | Absorbed | Missed]:
        """Take one tuple; `options` are those of `WindowedBoltExecutor.add` (stream, key, source)."""
        if type(message_id) is not int:
            raise ConfigError(
                f"bolt {self.executor.component!r}: message_id {self.executor.config.message_id!r} is {quote(message_id)}, "
                "wanted a whole number that grows from tuple to tuple of a task; take the offset at the source, say"
            )
        arrival = _Arrival(payload, channel, message_id, timestamp, now_ms, options)
        return self._take_back(arrival) if self.recovering else self._take(arrival)

    def turn(self, now_ms: int) -> Iterator[Effect | Absorbed | Missed]:
        """Make a watermark turn (over the clock: a tick of it), after recovery if that is under way."""
        if self.recovering:
            self._aside.append(_RecoveredTurn(now_ms, deepcopy(self.executor.generator)))
            return NO_EFFECTS
        self.executor.set_clock(now_ms)
        return self.executor.turn()

    def drain(self, now_ms: int) -> Iterator[Effect | Absorbed | Missed]:
        """End of the input: what did not come again by now is given up."""
        if self.recovering:
            yield from self._end()
        self.executor.set_clock(now_ms)
        yield from self.executor.drain()

    def _take(self, arrival: _Arrival) -> Iterator[Effect | Absorbed | Missed]:
        identity = arrival.channel, arrival.id
        if identity in self._live:
            self._again.append((identity, arrival.payload))
            return NO_EFFECTS
        if self._is_gone(*identity):
            return iter((Absorbed((arrival.payload,)),))
        sequence = self._manager.next_sequence
        self.executor.set_clock(arrival.now_ms)
        effects = self.executor.add(arrival.payload, arrival.timestamp, **arrival.options)
        if self._manager.next_sequence > sequence:
            self._live[identity] = sequence
        else:
            self._let_go(*identity)
        return effects

    def _is_gone(self, channel: Channel, id: int) -> bool:
        return channel in self._gone and id in self._gone[channel]

    def _let_go(self, channel: Channel, id: int) -> None:
        self._live.pop((channel, id), None)
        self._gone.setdefault(channel, ProcessedIds()).add(id)

    def _take_back(self, arrival: _Arrival) -> Iterator[Effect | Absorbed | Missed]:
        identity = arrival.channel, arrival.id
        if identity in self._live:
            before = self._back.get(identity, _ABSENT)
            if before is not _ABSENT:
                self._again.append((identity, before))  # it came twice: the later one is the one that is waited for
            self._back[identity] = arrival.payload
            self.missing.discard(identity)
            self._deadline_ms = arrival.now_ms + self._timeout_ms
            return NO_EFFECTS if self.missing else self._end()
        if self._is_gone(*identity):
            return iter((Absorbed((arrival.payload,)),))
        self._aside.append(arrival)
        self.executor.set_clock(arrival.now_ms)
        self.executor.observe(
            arrival.timestamp, arrival.options.get("stream", DEFAULT_STREAM), arrival.options.get("source")
        )
        return NO_EFFECTS

    # -- the end of a recovery -----------------------------------------------------------------------------------------

    def _end(self) -> Iterator[Effect | Absorbed | Missed]:
        """Go on from the checkpoint, then do what was set aside meanwhile."""
        missed = tuple(sorted(self.missing, key=repr))
        self._resume()
        aside, self._aside = self._aside, []
        return self._caught_up(missed, aside)

    def _caught_up(
        self, missed: tuple[Identity, ...], aside: list[_Arrival | _RecoveredTurn]
    ) -> Iterator[Effect | Absorbed | Missed]:
        if missed:
            yield Missed(missed)
        for each in aside:
            if isinstance(each, _RecoveredTurn):
                self.executor.generator.merge(each.heard)
                yield from self.turn(each.now_ms)
            else:
                yield from self._take(each)

    def _resume(self) -> None:
        """Make the executor that of the checkpoint, its tuples in their places."""
        rows = self._written
        places = {identity: TuplePosition(*rows[WAITS, *identity]) for identity in self._live}
        held = [(place, self._back[identity]) for identity, place in places.items() if identity in self._back]
        held += [
            (TuplePosition(row[1], *value[:2]), self._decode(value[2]))
            for row, value in rows.items()
            if row[0] == SHOWN
        ]
        lost = [places[identity] for identity in self.missing]
        tracks = [rows[row] for row in sorted((row for row in rows if row[0] == TRACK), key=lambda row: int(row[1]))]
        machine = rows[MACHINE]
        manager = {**machine["manager"], "tracks": tracks}
        if lost:
            manager = without(manager, [place for place, _ in held], lost)
        self.executor.restore({**machine, "manager": manager})
        self._manager.load(
            [place.key for place, _ in held],
            [place.sequence for place, _ in held],
            [place.timestamp for place, _ in held],
            [payload for _, payload in held],
        )
        for identity in self.missing:
            self._let_go(*identity)
        self.missing.clear()
        self._back.clear()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def changes(self) -> RecoveryChanges:
        """Return what has to be stored with the checkpoint that is being prepared; it is taken for stored from then on.

        While tuples are awaited nothing changes: the checkpoint before is still what there is to recover.
        """
        if self.recovering:
            return RecoveryChanges({}, [], Absorbed(()))
        rows = self._rows()
        put = {row: value for row, value in rows.items() if self._written.get(row, _ABSENT) != value}
        delete = [row for row in self._written if row not in rows]
        self._written = rows
        absorbed = tuple(payload for identity, payload in self._again if identity not in self._live)
        self._again = [(identity, payload) for identity, payload in self._again if identity in self._live]
        return RecoveryChanges(put, delete, Absorbed(absorbed))

    def _rows(self) -> dict[RowKey, Any]:
        snapshot = self.executor.snapshot(events=False)
        tracks = snapshot["manager"].pop("tracks")
        rows: dict[RowKey, Any] = {MACHINE: snapshot}
        rows |= {(TRACK, track["ordinal"]): track for track in tracks}
        places = {}
        for key, sequence, timestamp, payload, expired in self._manager.held():
            if expired:
                row = SHOWN, sequence
                rows[row] = self._written.get(row) or [timestamp, key, self._encode(payload)]
            else:
                places[sequence] = [sequence, timestamp, key]
        for identity in [identity for identity, sequence in self._live.items() if sequence not in places]:
            self._let_go(*identity)
        rows |= {(WAITS, *identity): places[sequence] for identity, sequence in self._live.items()}
        return rows | {(GONE, channel): ids.plain() for channel, ids in self._gone.items()}

    def check(self) -> None:
        """Assert what "correct" means."""
        if self.recovering:
            # Each tuple that was held is back or awaited, not both.
            assert self.missing | self._back.keys() == self._live.keys()
            assert not self.missing & self._back.keys()
            return
        self.executor.check()
        # No tuple is both live and gone; an arrival number is that of one tuple.
        assert not any(self._is_gone(*identity) for identity in self._live)
        assert len(set(self._live.values())) == len(self._live)
        # Nothing is set aside, and nothing waits to be put back.
        assert not self._aside
        assert not self._back
