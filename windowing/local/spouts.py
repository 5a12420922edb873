"""Spouts of LocalCluster: a task takes tuples from its source, tracks those in flight and emits failed ones again.

    TupleSource           next_tuple                        ack / fail of a message id
      RowsSource          the next row of a function        the task emits a failed row again
      UserSource          calls a function of (collector)   the same
                          calls next_tuple of an object     calls its ack and fail, with the values if the methods take them
      InputSource         the next row that was fed         the task emits a failed row again
      RootSource          the next row of a PartitionedSpout (sources.py)     the same; the spout gets acks of whole batches

The rows of an InputSource come in batches: run_local [[row, row], [row]], run_topology {"spout": [[row, row], [row]]}, run_trident
the same by stream. An argument that is not a list of rows, or has a row that does not fit the schema, is refused before any row
arrives.

Laws
- A failed message is emitted again after its back-off, up to `max_attempts` times in all. Then it becomes a dead letter of the
  component in which its tree was last seen.
- A dead letter that a bolt reads is itself a message with the same number of attempts. When it is acked, the original message is
  done: the source's `give_up` is called, or `ack` if the source has no `give_up`. If no bolt reads the dead letter, only `give_up`
  is called: a message that failed and reached no reader is never acked.
- Without ackers a message is acked when it is emitted.
- A spout that sleeps (`collector.sleep`) is not called before it is awake. If its last call emitted tuples, it has not ended.

Source: Storm's `SpoutExecutor`; the limit of attempts and dead letters are ours.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from windowing.acking.acker import AckedRoots, Failed, Reason
from windowing.acking.pending import Done, GivenUp, Retry, SpoutPending
from windowing.errors import BoltError, ConfigError, WindowingError, quote
from windowing.local.clock import VirtualClock
from windowing.local.router import INITS
from windowing.local.tasks import ComponentTask, TaskParts
from windowing.schema.checks import DEFAULT_STREAM, StormNames, did_you_mean
from windowing.schema.rows import RowError, how_to_list, no_rows, refuse_unsent, row_converter, row_of, rows_of
from windowing.schema.tuples import Fields, Origin, Tuple
from windowing.schema.types import Schema
from windowing.schema.values import nested_in, with_copies
from windowing.topology.bolts import CallStyle, ComponentKind, Declaration
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.plan import Topology
from windowing.topology.user_code import OutputStreams, file_of, user_code_error
from windowing.windows.config import WindowConfig
from windowing.windows.measures import Count, Duration, as_duration_ms

_log = logging.getLogger("windowing")

Batches = Mapping[str, Sequence[Iterable[Any]]]
"""The rows that each spout emits, batch by batch, by the spout's name."""


def is_list(rows: Any) -> bool:
    """Whether `rows` is a list of rows, and not a single row (a string, a mapping, a namedtuple) or a value without rows."""
    if type(rows) is list:
        return True
    several = isinstance(rows, Iterable) and not isinstance(
        rows, str | bytes | bytearray | memoryview | Mapping | Tuple
    )
    return several and not hasattr(rows, "_fields") and no_rows(rows) is None


def listed(rows: Any, wanted: str) -> Iterable[Any]:
    """Return `rows` unchanged. Raises ConfigError if it is not a list of rows."""
    if type(rows) is not list and not is_list(rows):
        instead = f"{quote(rows)}; write [row, row]"
        if "batches" in wanted:
            instead += ", and [[row, row]] for a list of batches"
        given = how_to_list(rows) or no_rows(rows) or instead
        raise ConfigError(f"{wanted}, got {given}")
    found: Iterable[Any] = rows
    return found


def batches_by_name(batches: Any, whose: str, require: Callable[[str], object]) -> dict[str, list[Iterable[Any]]]:
    """Check the argument `batches=` of a run and return the batches by the name of their spout or stream.

    require: raises ConfigError for a name of no spout or stream.
    """
    if not isinstance(batches, Mapping | None):
        raise ConfigError(
            f"batches= is a mapping by the name of each {whose}, got {quote(batches)}; write {{'name': [[row, row]]}}"
        )
    found = {}
    for name, some in (batches or {}).items():
        require(name)
        wanted = f"{whose} {quote(name)} takes a list of batches, each a list of rows"
        found[name] = [listed(batch, wanted) for batch in listed(some, wanted)]
    return found


def require_inputs(topology: Topology, names: Iterable[Any], what: str) -> None:
    """Raise ConfigError if a name is not that of a spout. what: the argument with the names, at the begin of the sentence."""
    spouts = [spout.id for spout in topology.spouts]
    for name in names:
        if name not in spouts:
            raise ConfigError(
                f"{what} {quote(name)}, which is no spout of topology {topology.name!r}; {did_you_mean(str(name), spouts)}"
            )


def rows_in(batch: Sequence[Any], schema: Schema, where: str) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples of the schema. Raises ConfigError for the first row that does not fit.

    >>> rows_in([("a", 1), {"n": 2, "word": "b"}], Schema.parse("word string, n int"), "InputSpout 'words', batch 0")
    [('a', 1), ('b', 2)]
    """
    rows: list[tuple[Any, ...]] = []
    converted = row_converter(schema, DEFAULT_STREAM)
    try:
        for row in batch:
            rows.append(converted(row))
    except RowError as problem:
        flat = "; the batch is such a row itself: write [[row, row]]" if _is_row(batch, schema) else ""
        raise ConfigError(f"{where}, row {len(rows)} (counted from 0): {problem.args[0]}{flat}") from None
    return rows


def _is_row(batch: Sequence[Any], schema: Schema) -> bool:
    try:
        row_of(tuple(batch), schema, DEFAULT_STREAM)
    except RowError:
        return False
    return len(schema) > 1


# -- SpoutTask -------------------------------------------------------------------------------------------------------------------


_BURST = 100
_LONGEST_BURST_S = 0.05
"""After this time a burst ends, so that a spout that blocks in `next_tuple` leaves the loop to the other tasks."""
_BLOCKED_S = 5.0
"""A burst under a VirtualClock that takes longer is reported once."""
_ASKED, _ACKED = "in next_tuple", "in ack"
_Message = tuple[tuple[Any, ...], str, int | None] | DeadLetter
"""A message as it is emitted again after a failure: (values, stream, task of a direct emit), or a dead letter."""
_DEAD = object()
"""Marks the message id of a dead letter, so that its attempts are counted apart from those of the original message."""


class TupleSource:
    """Where a spout task gets its tuples from. This base emits nothing and ignores acks and failures; it is the source of a spout
    that is not open yet.

    over: whether the source has ended; only failed messages can still be emitted. poll_ms: after how long, at least, it is called
    again when it had no tuple. more: whether it is called again in the next round although it had no tuple, and is not dry.
    """

    over = True
    more = False
    poll_ms = 1

    def next_tuple(self) -> Any:
        """Emit some tuples to the collector, or none. What the user's code returned is returned, to be checked."""

    def ack(self, message_id: Any, values: tuple[Any, ...]) -> None:
        """Called when a message is acked."""

    def fail(self, message_id: Any, values: tuple[Any, ...]) -> bool:
        """Called when a message failed and has attempts left; return False to let the driver emit it again."""
        return False

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        """Called when a message failed for the last time and became a dead letter; return False if the source has no such
        method. taken: whether a bolt read the dead letter and acked it."""
        return False


class RowsSource(TupleSource):
    """The rows that a function returns or yields, one per `next_tuple`; their numbers are the message ids."""

    over = False

    def __init__(self, rows: Iterator[tuple[Any, ...]], collector: SpoutCollector) -> None:
        self._rows = rows
        self._collector = collector
        self._number = 0

    def next_tuple(self) -> None:
        row = next(self._rows, None)
        if row is None:
            self.over = True
            return
        self._collector.emit(row, message_id=self._number)
        self._number += 1


class InputSource(TupleSource):
    """Rows that are fed to the cluster, which were checked then (`rows_in`). `over` is True while none are left."""

    def __init__(self, emit: Callable[..., object]) -> None:
        self._rows: deque[tuple[Any, ...]] = deque()
        self._emit = emit
        self._number = 0

    def feed(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows.extend(rows)
        self.over = not self._rows

    def next_tuple(self) -> None:
        row = self._rows.popleft()
        self.over = not self._rows
        self._emit(row, DEFAULT_STREAM, self._number, None, is_checked=True)
        self._number += 1


class UserSource(TupleSource):
    """The code of a spout, and its instance if it is a class. `values_back` names those of "ack", "fail" and "give_up" that also
    take the values.
    """

    over = False

    def __init__(
        self, next_tuple: Callable[[], Any], instance: Any = None, values_back: frozenset[str] = frozenset()
    ) -> None:
        self.next_tuple = next_tuple  # type: ignore[method-assign]  # without a frame for each tuple
        self._instance = instance
        self._values_back = values_back
        self._ack = getattr(instance, "ack", None)
        self._ack_takes_values = "ack" in values_back

    def ack(self, message_id: Any, values: tuple[Any, ...]) -> None:
        if self._ack is not None:
            self._ack(message_id, values) if self._ack_takes_values else self._ack(message_id)

    def fail(self, message_id: Any, values: tuple[Any, ...]) -> bool:
        return self._call("fail", message_id, values)

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        return self._call("give_up", letter.message_id, letter.values)

    def _call(self, method: str, message_id: Any, values: tuple[Any, ...]) -> bool:
        call = getattr(self._instance, method, None)
        if call is None:
            return False
        call(message_id, values) if method in self._values_back else call(message_id)
        return True


def source_of(declaration: Declaration, instance: Any, collector: Any) -> TupleSource:
    """Return the source of a user's spout. instance: that of a class, which is open; a function that returns its rows is called."""
    if declaration.is_class:
        return UserSource(instance.next_tuple, instance, declaration.values_back)
    assert declaration.target is not None
    if declaration.style is CallStyle.ROWS:
        rows = rows_of(declaration.target(), declaration.outputs[DEFAULT_STREAM], DEFAULT_STREAM)
        return RowsSource(rows, collector)
    return UserSource(partial(declaration.target, collector))


# -- messages that do not end ----------------------------------------------------------------------------------------------------


class UnackedReasons:
    """Why messages of a topology may be neither acked nor failed, in sentences for warnings."""

    def __init__(self, topology: Topology) -> None:
        self._above: dict[str, set[str]] = {}  # for each component, those whose tuples reach it
        for name in topology.order:
            read = {found.component for found in topology.component(name).inputs}
            self._above[name] = read.union(*(self._above[each] for each in read))
        self._by_hand: dict[str, list[str]] = {}  # for each component, the bolts that read it and ack by themselves
        for bolt in topology.bolts:
            for source in {found.component for found in bolt.inputs} if bolt.kind is ComponentKind.BOLT else ():
                self._by_hand.setdefault(source, []).append(bolt.id)
        windows = {bolt.id: bolt.window.config for bolt in topology.bolts if bolt.window is not None}
        self._in_memory = {bolt: each for bolt, each in windows.items() if each.max_events_in_memory is None}

    def of_spout(self, spout: str, seen: str | None, in_flight: int | None, timeouts: bool) -> str:
        """Return why a message of a spout may not end; empty if the topology is not the cause. seen: the component that was seen
        last. in_flight: the number of messages of a spout that is full. timeouts: whether messages time out.
        """
        last = seen or spout
        waiting = "" if in_flight is None else self._windows_that_wait(spout)
        why = ""
        if waiting:
            why = f"with {in_flight} in flight it emits no other one, and {waiting}"
        elif timeouts:
            why = self._windows_that_repeat(spout)
        if not why:
            return self.forgotten_acks(last)
        return f"{self.forgotten_acks(last)}; or {why}" if self._by_hand.get(last) else why

    def forgotten_acks(self, seen: str | None = None) -> str:
        """Return a sentence about the bolts that may have forgotten an ack; empty if every bolt is acked by the driver.

        seen: the component whose readers are named, if one of them acks by itself; else all bolts that do.
        """
        bolts = self._by_hand.get(seen or "")
        bolts = bolts or sorted({bolt for readers in self._by_hand.values() for bolt in readers})
        if not bolts:
            return ""
        return (
            f"these bolts ack by themselves, and one may have neither acked nor failed it: {', '.join(map(repr, bolts))}; call "
            "collector.ack(tuple) or collector.fail(tuple) for each tuple, or use a BasicBolt, which does so by itself"
        )

    def _kept_in_memory(self, spout: str) -> dict[str, WindowConfig]:
        """Return the windows in memory that the tuples of a spout reach, by bolt."""
        return {bolt: each for bolt, each in self._in_memory.items() if spout in self._above[bolt]}

    def _windows_that_wait(self, spout: str) -> str:
        """Return a sentence about windows in memory over event time, of counts by key, or of counts before or behind other windows,
        behind a spout that is full; empty without one. `build` compares each other window of counts with the max spout pending.
        """
        kept = self._kept_in_memory(spout)
        over_time = [bolt for bolt, each in kept.items() if each.event_time]
        counts = [bolt for bolt, each in kept.items() if not each.event_time and _counts(each)]
        by_key = [bolt for bolt in counts if kept[bolt].key]
        read = {above for bolt in kept for above in self._above[bolt]}
        in_a_row = [bolt for bolt in counts if bolt not in by_key and (bolt in read or kept.keys() & self._above[bolt])]
        found = {"over event time": over_time, "of counts by key": by_key, "of counts in a row": in_a_row}
        windows, many = _windows(found)
        if not windows:
            return ""
        return (
            f"{windows} {'ack' if many else 'acks'} a tuple only after later ones came; set topology.max.spout.pending to more "
            f"than {'their' if many else 'its'} windows hold, or leave it out"
        )

    def _windows_that_repeat(self, spout: str) -> str:
        """Return a sentence about windows in memory that a repeated tuple of a spout enters again; empty without one.

        They are those whose tuples expire by later tuples. `build` compares the others, over the clock, with the timeout.
        """
        kept = {bolt: each for bolt, each in self._kept_in_memory(spout).items() if each.message_id is None}
        counts = {bolt: each for bolt, each in kept.items() if _counts(each)}
        over_time = [bolt for bolt, each in kept.items() if each.event_time and bolt not in counts]
        windows, many = _windows({"of counts": counts, "over event time": over_time})
        if not windows:
            return ""
        of_key = " of its key" if any(each.key for each in counts.values()) else ""
        return (
            f"{windows} {'ack' if many else 'acks'} a tuple only after later ones{of_key} came, and a message that is sent again "
            f"enters {'them' if many else 'it'} a second time; set topology.enable.message.timeouts to False, or "
            "topology.message.timeout.secs to more than that takes"
        )


def _windows(found: Mapping[str, Collection[str]]) -> tuple[str, bool]:
    """Return kinds of windows with their bolts, the subject of a sentence, empty if none has a bolt; and whether they are many."""
    named = [
        f"{'a window' if len(bolts) == 1 else 'windows'} {what} (bolt{'' if len(bolts) == 1 else 's'} "
        f"{', '.join(map(repr, sorted(bolts)))})"
        for what, bolts in found.items()
        if bolts
    ]
    return " and ".join(named), sum(map(len, found.values())) > 1


def _counts(window: WindowConfig) -> bool:
    """Return whether tuples of this window expire by later tuples, however long these take to come."""
    return isinstance(window.length, Count) or isinstance(window.slide, Count)


# -- SpoutTask -------------------------------------------------------------------------------------------------------------------


class SpoutTask(ComponentTask):
    """One task of a spout. `pending` limits the messages in flight and decides on retries; `acking` is False without ackers.

    read: makes the source of an InputSpout that was given one by `sources=`.
    """

    def __init__(
        self,
        parts: TaskParts,
        pending: SpoutPending,
        unacked: UnackedReasons,
        read: Callable[[SpoutCollector], TupleSource] | None = None,
    ) -> None:
        super().__init__(parts)
        component = parts.component
        self.pending, self._unacked = pending, unacked
        self._read = read
        self.active = True
        self.dry = False
        self.source = TupleSource()
        self._acking = bool(self.router.ackers)
        self._streams = OutputStreams(component.declaration)
        self._converters = self._streams.converters()
        self._nested = {stream: nested_in(found.schema.types) for stream, found in component.outputs.items()}
        """The fields of each stream that hold lists and dicts, which are copied, so that a bolt that changes one in place does not
        change what is emitted again."""
        self._instance: Any = None
        self._senders: dict[str, Callable[..., list[int]]] = {}
        self.emissions = 0
        self._at_once: list[tuple[Any, tuple[Any, ...]]] = []
        """Without ackers: the messages emitted by the current `next_tuple` (message id, values). They are acked when it returns."""
        self._tracked: list[tuple[int, Any, _Message]] = []
        """Emitted messages that are not yet registered with `pending` and the ackers: root, message id, message."""
        self._inits: list[tuple[int, int]] = []
        self._awake_ms: int | None = None
        """When the spout is called again, after its collector's `sleep`."""
        self._reported_blocking = self._reported_timeout = self._reported_given_up = False
        self._full_since_ms: int | None = None
        self._restarts, self._is_restarting = 0, False
        target = component.declaration.target
        self._file = (
            None if target is None else file_of(target, "next_tuple" if component.declaration.is_class else None)
        )

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        declaration, collector = self.component.declaration, SpoutCollector(self)
        self._senders = {name: routes.send for name, routes in self.outbox.items()}
        if self._read is not None:
            self.source = self._read(collector)
        elif declaration.kind is ComponentKind.INPUT:
            self.source = InputSource(self.emit)
        else:
            if declaration.is_class:
                assert declaration.target is not None
                self._instance = self._guarded("when it was made", declaration.target)
                self._hook("open", self.context, collector)
                self._hook("activate")
            self.source = self._guarded("when it was called", source_of, declaration, self._instance, collector)
        self._track()

    def switch(self, active: bool) -> None:
        """Take tuples from the source again, or no more; messages in flight continue. No effect if it is so already."""
        if active is not self.active:
            self.active = active
            self._hook("activate" if active else "deactivate")
            self._track()

    def close(self) -> None:
        self._hook("close")
        self._instance = None

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, limit: int | None) -> bool:
        """Handle the messages of the ackers, then take tuples from the source while it has some and `pending` has room.

        After a rollback it takes none before those that the rollback failed are emitted again, which would be late behind others.
        """
        if self._restarts != self.router.restarts:
            self._restarts, self._is_restarting = self.router.restarts, True
            self.pending.restart()
        moved = super().step(limit)
        self._track()
        if self._is_restarting:
            retry_ms = self.pending.next_retry_ms()
            if self.inbox or any(self.router.ackers) or (retry_ms is not None and retry_ms <= self.router.now_ms):
                return True
            self._is_restarting = False
            self.pending.restarted()
        if self.active and self._awake_ms is not None:
            return moved
        before = self.emissions
        self.dry = True
        if self.active:
            self._ask(_BURST if limit is None else limit)
            self._track()
        return moved or self.emissions > before or (self.active and self.source.more)

    def _ask(self, times: int) -> None:
        """Call `next_tuple` of the source at most `times` times, until it sleeps; set `dry` if it had no tuple.

        The time of a burst is bounded, except with a VirtualClock, where the same run has the same rounds.
        """
        began_s, is_virtual = time.monotonic(), isinstance(self.router.clock, VirtualClock)
        source, room, tracked, where = self.source, self.pending.room, self._tracked, _ASKED
        next_tuple, at_once = source.next_tuple, self._at_once
        self.dry = source.more = False
        if room > 0:
            self._full_since_ms = None
        else:
            self._report_full()
        try:
            for _ in range(times):
                if len(tracked) >= room:
                    return
                before = self.emissions
                returned = None if source.over else next_tuple()
                if at_once:
                    where = _ACKED
                    self._ack_at_once()
                    where = _ASKED
                if self.emissions == before:
                    if returned is not None:
                        refuse_unsent(returned)
                    self.dry = not source.more
                    return
                if self._awake_ms is not None:
                    return
                if not is_virtual and time.monotonic() - began_s >= _LONGEST_BURST_S:
                    return
        except BaseException as problem:
            raise self._attributed(problem, where) from _cause(problem)
        finally:
            if is_virtual and not self._reported_blocking and time.monotonic() - began_s >= _BLOCKED_S:
                self._report_blocking()

    def _report_blocking(self) -> None:
        self._reported_blocking = True
        _log.warning(
            "%s has blocked in next_tuple, and every task of the cluster waited for it. A VirtualClock does not move meanwhile: to "
            "wait, write collector.sleep(millis(100)) in place of time.sleep(0.1)",
            self.context.called("spout"),
        )

    def _track(self) -> None:
        """Register the emitted messages with `pending`, and begin their tuple trees with one message per acker."""
        if self._tracked:
            self.pending.emitted_all(self._tracked, self.router.now_ms)
            self.router.tell_all(INITS, self._inits, self.id)
            self._tracked, self._inits = [], []

    def handle(self, message: AckedRoots | Failed) -> None:
        now_ms = self.router.now_ms
        if isinstance(message, AckedRoots):
            self._perform(self.pending.acked_all(message.roots, now_ms))
        else:
            self.router.result.failures += 1
            if message.reason is Reason.TIMEOUT and not self._reported_timeout:
                self._report_timeout(message.seen)
            self._perform(self.pending.failed(message.root, now_ms, message.reason, message.seen))

    def _report_timeout(self, seen: str | None) -> None:
        """Log the first timeout if the topology may be its cause. seen: the component that was seen last."""
        why = self._why_unacked(seen)
        if why:
            self._reported_timeout = True
            timeout_s = f"{self.context.config.message_timeout_ms / 1000:g}"
            said = "a tuple of %s was not acked within topology.message.timeout.secs, %s s; %s"
            _log.warning(said, self.context.called("spout"), timeout_s, why)

    def _report_full(self) -> None:
        """Without timeouts, log once that so many messages have been in flight for so long that the run may never end."""
        config = self.context.config
        if self._full_since_ms is None:
            self._full_since_ms = self.router.now_ms
        waited_ms = self.full_ms
        if config.enable_message_timeouts or self._reported_timeout or waited_ms < config.message_timeout_ms:
            return
        why = self._why_unacked(None)
        if why:
            self._reported_timeout = True
            said = "%s has waited %g s for an ack, without timeouts; %s"
            _log.warning(said, self.context.called("spout"), waited_ms / 1000, why)

    @property
    def full_ms(self) -> int:
        """For how long the spout has been asked for no tuple because so many messages are in flight."""
        return 0 if self._full_since_ms is None else self.router.now_ms - self._full_since_ms

    def _why_unacked(self, seen: str | None) -> str:
        in_flight = len(self.pending) if self.pending.room <= 0 else None
        return self._unacked.of_spout(self.context.component, seen, in_flight, self.context.config.timeouts)

    def tick(self) -> None:
        if self._awake_ms is not None and self._awake_ms <= self.router.now_ms:
            self._awake_ms = None
        self._perform(self.pending.tick(self.router.now_ms))
        self._track()

    @property
    def is_polled(self) -> bool:
        """Whether the source may have a tuple at any time: it has not ended, is not paused and does not sleep."""
        return self.active and self._awake_ms is None and not self.source.over

    def next_deadline_ms(self) -> int | None:
        pending_ms, awake_ms = self.pending.next_deadline_ms(), self._awake_ms
        if pending_ms is None or awake_ms is None:
            return awake_ms if pending_ms is None else pending_ms
        return min(pending_ms, awake_ms)

    def sleep(self, span: Duration | timedelta) -> None:
        """Take no tuples from the source before `span` of the clock's time has passed."""
        self._awake_ms = self.router.now_ms + as_duration_ms(span, "the span of sleep()")

    def emit(
        self, values: Any, stream: str, message_id: Any, task: int | None, is_checked: bool = False
    ) -> Sequence[int]:
        """Check a row, send it, and track it if it has a message id; return the ids of the tasks that receive it."""
        checked = values
        if not is_checked:
            converted = self._converters.get(stream) if task is None else None
            checked = (
                self._streams.checked(values, stream, task is not None) if converted is None else converted(values)
            )
        try:
            hash(message_id)
        except TypeError:
            raise ConfigError(
                f"a message id is hashable, got {quote(message_id)}; use a number, a text, or a tuple of such"
            ) from None
        self.emissions += 1
        if message_id is not None and self._acking:
            return self._send(checked, stream, message_id, task)
        if message_id is not None:
            self._at_once.append((message_id, checked))
        return self._senders[stream](checked, (), task)

    def refuse(self, given: tuple[Any, ...], method: str) -> Exception:
        """Return the error for an emit with positional arguments that must be named."""
        return self._streams.refuse(given, "message_id", method)

    # -- what becomes of messages ----------------------------------------------------------------------------------------

    def _send(self, values: tuple[Any, ...], stream: str, message_id: Any, task: int | None) -> Sequence[int]:
        root = self.router.edge()
        tree = [root, 0]
        nested = self._nested[stream]
        kept = with_copies(values, nested) if nested else values
        ids = self._senders[stream](values, (), task, tree)
        self._tracked.append((root, message_id, (kept, stream, task)))
        self._inits.append((root, tree[1]))
        return ids

    def _ack_at_once(self) -> None:
        """Ack the messages emitted so far; messages that the source emits inside `ack` are acked after the next tuple."""
        result, ack, emitted = self.router.result, self.source.ack, self._at_once.copy()
        self._at_once.clear()
        for message_id, values in emitted:
            result.acked += 1
            ack(message_id, values)

    def _perform(self, effects: Iterable[Done | Retry | GivenUp]) -> None:
        result, ack = self.router.result, self.source.ack
        for effect in effects:
            payload = effect.payload
            if type(payload) is DeadLetter:
                self._dead_letter_ended(effect, payload)
                continue
            values, stream, task = payload
            if type(effect) is Done:
                result.acked += 1
                try:
                    ack(effect.message_id, values)
                except BaseException as problem:
                    raise self._attributed(problem, _ACKED) from _cause(problem)
            elif isinstance(effect, Retry):
                if not self._guarded("in fail", self.source.fail, effect.message_id, values):
                    self._send(values, stream, effect.message_id, task)
            elif isinstance(effect, GivenUp):
                self._give_up(effect, values, stream)

    def _give_up(self, effect: GivenUp, values: tuple[Any, ...], stream: str) -> None:
        """Turn a message into a dead letter and send it to the bolts that read dead letters."""
        component = self.context.component
        context, fields = self.context, Fields(self.component.outputs[stream].schema.names)
        origin = Origin(component, context.task_index, fields, stream, context.task_ids)
        letter = DeadLetter(
            component=effect.seen or component,
            task=None,
            attempts=effect.attempts,
            error=str(effect.reason),
            tuples=[Tuple(values, origin)],
            message_id=effect.message_id,
        )
        self.router.result.dead_letters.append(letter)
        if letter.component in self.router.dead_letters:
            self._send_dead_letter(letter)
        elif not self._guarded("in give_up", self.source.give_up, letter, False):
            self._report_given_up(letter)

    def _report_given_up(self, letter: DeadLetter) -> None:
        """Log once that a spout with a `fail` of its own hears no more of a message."""
        if self._reported_given_up or getattr(self._instance, "fail", None) is None:
            return
        self._reported_given_up = True
        _log.warning(
            "%s: message %s failed %d times (windowing.max.attempts) and is given up, as others may be later; no bolt reads the "
            "dead letters of %r, and the spout has no give_up(message_id) to hear of it; the result has it in dead_letters",
            self.context.called("spout"),
            quote(letter.message_id),
            letter.attempts,
            letter.component,
        )

    def _send_dead_letter(self, letter: DeadLetter) -> None:
        router, root = self.router, self.router.edge()
        tree = [root, 0]
        ids = router.dead_letters[letter.component].send(letter.row(), tree=tree)
        if not ids:  # an output of the run acks nothing
            self._guarded("in give_up", self.source.give_up, letter, False)
            return
        self._tracked.append((root, (_DEAD, letter.message_id), letter))
        self._inits.append((root, tree[1]))

    def _dead_letter_ended(self, effect: Done | Retry | GivenUp, letter: DeadLetter) -> None:
        """Retry a dead letter that its readers failed. When it is acked or given up, call `give_up` of the source."""
        if isinstance(effect, Retry):
            self._send_dead_letter(letter)
            return
        taken = isinstance(effect, Done)
        heard = self._guarded("in give_up", self.source.give_up, letter, taken)
        if not heard and taken:
            self._guarded("in ack", self.source.ack, letter.message_id, letter.values)

    def _hook(self, method: str, *arguments: Any) -> None:
        written = getattr(self._instance, method, None)
        if written is not None:
            self._guarded(f"in {method}", written, *arguments)

    def _guarded(self, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as problem:
            raise self._attributed(problem, where) from _cause(problem)

    def _attributed(self, problem: BaseException, where: str) -> WindowingError:
        if self._read is not None and isinstance(problem, WindowingError) and not isinstance(problem, BoltError):
            return problem  # an error that the source itself raised
        return user_code_error(self.context.called("spout"), problem, where, self._file)


class SpoutCollector(StormNames):
    """The collector of a spout. Source: Storm's `SpoutOutputCollector`."""

    __slots__ = ("_emit", "_task")

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "getPendingCount": "a count of your own in next_tuple, ack and fail; topology.max.spout.pending bounds what is pending",
    }

    def __init__(self, task: SpoutTask) -> None:
        self._task, self._emit = task, task.emit

    def emit(self, values: Any, *stray: Any, message_id: Any = None, stream: str = DEFAULT_STREAM) -> Sequence[int]:
        """Emit one row; a row with a message id is tracked. Returns the ids of the tasks that receive it."""
        if stray:
            raise self._task.refuse((values, *stray), "emit")
        return self._emit(values, stream, message_id, None)

    def emit_direct(
        self, task: int, values: Any, *stray: Any, message_id: Any = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one row to the task with this id, on a stream that is declared direct."""
        if stray:
            raise self._task.refuse((values, *stray), "emit_direct")
        self._task.emit(values, stream, message_id, task)

    def sleep(self, span: Duration | timedelta) -> None:
        """Return at once; `next_tuple` is not called again before `span` has passed by the clock of the cluster."""
        self._task.sleep(span)

    def report_error(self, error: BaseException) -> None:
        """Add an error to the result of the run."""
        self._task.report_error(error)


def _cause(problem: BaseException) -> BaseException | None:
    """Return the cause of an error that is attributed to the spout: for an error of this library, the error behind it."""
    return problem.__cause__ if isinstance(problem, WindowingError) else problem
