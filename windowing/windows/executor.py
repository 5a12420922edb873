"""WindowedBoltExecutor: the windows of one task of a bolt, without user code; `machine_for` chooses the machine for a definition.

    tuple -> valid?  -> open?    -> not future? -> on time? -> the machine (WindowManager, say)
             invalid    closed      future         late        (late stream, with the reason)

A tuple is judged by the watermark of the last advance. The driver sets the clock (`set_clock`), advances the watermark (`turn`) and
performs the effects; this module neither reads a clock nor calls the bolt.

Laws: in == shown + skipped + pending + on the late stream, at any time (`counts`). A driver uses a machine only as a
`Machine` (manager.py) and never tests its class. Machines over columns need Arrow, so the driver passes their factory (`columns`).

Source: Storm's `WindowedBoltExecutor`, without its emits, acks and threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from windowing.errors import ConfigError, InvalidTimestampError, WindowingError, quote
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.values import TIMESTAMP_BOUND
from windowing.windows.config import Semantics, WindowConfig
from windowing.windows.events import Effect, Late, LateReason, values_at
from windowing.windows.guard import FREE, NO_EFFECTS, SNAPSHOT_FORMAT, one_for_each, refuse_foreign
from windowing.windows.manager import Machine, StoringMachine, WindowManager
from windowing.windows.measures import Count
from windowing.windows.paged_manager import PagedWindowManager
from windowing.windows.pages import PageStore
from windowing.windows.panes import NumberPaneManager, TimePaneManager
from windowing.windows.partials import Aggregation
from windowing.windows.policies import PolicyWindowManager
from windowing.windows.queue import in_order
from windowing.windows.storm import StormMachine
from windowing.windows.watermark import WaterMarkEventGenerator


class ColumnMachines(Protocol):
    """The factory of the machines over columns (`windowing.columnar.ColumnarMachines`), passed by a driver that has Arrow."""

    @property
    def holds_columns(self) -> bool:
        """Whether a queue may hold columns; a tuple then consists of its fields only."""

    def windows(self, config: WindowConfig, sequenced: bool) -> Machine:
        """Return the machine for windows that are passed to the bolt as columns."""

    def panes(self, config: WindowConfig, component: str) -> Machine:
        """Return the machine for `aggregate=` over Durations; with `columnar=` its result is one table for all keys."""


def refuse_tables(config: WindowConfig, component: str) -> None:
    """Raise ConfigError for a bolt with `aggregate=` and `columnar=` whose tuples must be kept, for acks or for a restart."""
    if config.columnar is not None and config.aggregate is not None:
        raise ConfigError(
            f"bolt {component!r} is handed the aggregates of all keys in columns, and keeps no tuples, neither for acks nor for a "
            "restart; leave out columnar=, or run it where nothing asks for them: on LocalCluster with acker_executors=0 and "
            "without a state, on Spark behind spouts that take no acks"
        )


def machine_for(
    config: WindowConfig,
    sequenced: bool = False,
    keep_tuples: bool = False,
    pages: PageStore | None = None,
    component: str = "bolt",
    columns: ColumnMachines | None = None,
) -> Machine:
    """Return a new machine for `config`: that of the first row of this table that fits.

        semantics="storm"                            StormMachine           Storm's policies, by arrival, its losses
        eviction= or trigger=                        PolicyWindowManager    a scan for each window
        max_events_in_memory=                        PagedWindowManager     ranges over pages, most of them in `pages`
        aggregate=, both Durations                   TimePaneManager        partials by pane, no tuples kept
                    with `columns`                   ColumnarPaneManager    the same, accepts columns without making rows
                    with `columns` and columnar=     TablePaneManager       the same, one table for all keys
        aggregate=, both Counts                      NumberPaneManager      partials by key, no tuples kept
        columnar=, `columns` with `holds_columns`    ColumnarWindowManager  ranges over a queue of columns
        else, with or without aggregate=             WindowManager          ranges over an ordered queue

    `sequenced` is for a driver that stores the tuples of a WindowManager itself. `keep_tuples` is for one that acks the tuples of
    an aggregating window, and excludes panes. `pages` is the store for the pages of a PagedWindowManager. `component` names the
    bolt in errors. `columns` makes the machines over columns, for a driver whose tuples arrive in columns, or a bolt with
    `columnar=`.
    """
    if config.semantics is Semantics.STORM:
        return StormMachine(config, component=component)
    if keep_tuples:
        refuse_tables(config, component)
    fold = None if config.aggregate is None else Aggregation(config.aggregate, component).fold
    if config.eviction is not None or config.trigger is not None:
        return PolicyWindowManager(config, fold=fold, component=component)
    if config.max_events_in_memory is not None:
        if pages is None:
            raise ConfigError(
                f"max_events_in_memory={config.max_events_in_memory} needs a place for the pages that are not in memory; give "
                "pages= a PageStore (windowing.stores.pages.SqlitePages), or leave max_events_in_memory= out"
            )
        return PagedWindowManager(config, pages)
    if fold is not None and type(config.length) is type(config.slide) and not keep_tuples:
        if isinstance(config.length, Count):
            return NumberPaneManager(config, component)
        if columns is not None:
            return columns.panes(config, component)
        if config.columnar is not None:
            raise ConfigError(
                f"bolt {component!r} is handed the aggregates of all keys in columns, which need Arrow; give "
                "columns=ColumnarMachines() (windowing.columnar)"
            )
        return TimePaneManager(config, component)
    if config.columnar is not None and fold is None and columns is not None and columns.holds_columns:
        return columns.windows(config, sequenced)
    return WindowManager(config, sequenced=sequenced, fold=fold)


# -- WindowedBoltExecutor --------------------------------------------------------------------------------------------------------


_BEFORE_ALL = -TIMESTAMP_BOUND

Judged = tuple[int, LateReason]


def unusable_timestamp(bolt: str, field: Any, given: str) -> InvalidTimestampError:
    """Return the error for a tuple whose timestamp is no time, for `on_invalid="raise"`."""
    title = repr(field) if isinstance(field, str) else f"{getattr(field, '__qualname__', 'function')}()"
    return InvalidTimestampError(
        f"bolt {bolt!r}: timestamp {title} is {given}, wanted whole milliseconds since 1970; repair the column, or "
        'send such rows to the late stream with on_invalid="late"'
    )


class WindowedBoltExecutor:
    """The windows of one bolt task: add tuples, advance the watermark, perform the effects that are returned.

    `streams` are the declared input streams: the watermark waits for each of them. `component` names the bolt in errors.
    `sequenced` is for drivers that store tuples apart, `keep_tuples` for those that ack the tuples of aggregates. `pages` stores
    the tuples that a bolt with `max_events_in_memory` does not keep in memory. `columns` is for drivers whose tuples arrive in
    columns, and for bolts with `columnar=` (see `machine_for`).

    >>> from windowing import count
    >>> executor = WindowedBoltExecutor(WindowConfig.of(length=count(2), slide=count(2), timestamp="ts"))
    >>> list(executor.add_batch(["t1", "t2", "t3"], [1, 2, 3]))
    []
    >>> for effect in executor.turn():
    ...     print(effect.window.get() if hasattr(effect, "window") else effect)
    ['t1', 't2']
    Expired(count=2, key=None)
    >>> for position, effect in executor.add_batch(["t4", "t5"], [9, 2]):  # t5 is late
    ...     print(position, effect.payloads)
    1 ['t5']
    """

    def __init__(
        self,
        config: WindowConfig,
        streams: Sequence[str] = (DEFAULT_STREAM,),
        component: str = "bolt",
        sequenced: bool = False,
        keep_tuples: bool = False,
        pages: PageStore | None = None,
        columns: ColumnMachines | None = None,
    ) -> None:
        self.config = config
        self._event_time = config.event_time
        self.component = component
        self._generator = WaterMarkEventGenerator(
            streams,
            config.lag_ms,
            config.semantics,
            idle_timeout_ms=config.idle_timeout_ms,
            sourced=config.source is not None,
        )
        # The largest timestamps that `add` accepted and the generator has not got yet; with sources it gets each one at once.
        self._largest = {} if config.source is not None else dict.fromkeys(streams, _BEFORE_ALL)
        self.side: Counter[str] = Counter()
        self._now: int | None = None
        self.use(machine_for(config, sequenced, keep_tuples, pages, component, columns))

    def use(self, machine: Machine) -> None:
        """Set the machine; before the first tuple."""
        self.manager = machine
        self._guard = machine.guard
        self._inbox = machine.inbox
        self._update_bounds()

    def _update_bounds(self) -> None:
        """Compute the range of timestamps that `add` accepts without further checks."""
        if self.manager.closed or not self._event_time:
            self._from_ms, self._upto_ms = 1, 0
            return
        late_below = self.manager.late_below()
        self._from_ms = _BEFORE_ALL + 1 if late_below is None else max(late_below, _BEFORE_ALL + 1)
        self._upto_ms = TIMESTAMP_BOUND - 1
        if self._now is not None and self.config.max_future_ms is not None:
            self._upto_ms = min(self._upto_ms, self._now + self.config.max_future_ms)

    @property
    def store_failure(self) -> WindowingError | None:
        """The last error of the store of the pages, None if there was none or the windows are in memory."""
        return self.manager.cache.failure if isinstance(self.manager, PagedWindowManager) else None

    @property
    def generator(self) -> WaterMarkEventGenerator:
        """The watermark generator, with the timestamps of all tuples so far."""
        self._report_timestamps()
        return self._generator

    def _report_timestamps(self) -> None:
        """Report the largest timestamps that `add` accepted to the generator."""
        for stream, timestamp in self._largest.items():
            if timestamp is not _BEFORE_ALL:
                self._generator.track(stream, timestamp, None, self._now)
                self._largest[stream] = _BEFORE_ALL

    @property
    def watermark(self) -> int | None:
        """W: a tuple with a smaller timestamp is late. None while it is -infinity (on processing time: before the first tick)."""
        return self._generator.watermark if self._event_time else self.manager.watermark

    @property
    def closed(self) -> bool:
        """Whether the input has ended: a drain has fired the last windows."""
        return self.manager.closed

    @property
    def now_ms(self) -> int | None:
        """The clock that the driver set last, in milliseconds."""
        return self._now

    def set_clock(self, now_ms: int) -> None:
        """Set the driver's clock, milliseconds since 1970; on processing time it never runs backwards."""
        if self._now is None or now_ms > self._now or self._event_time:
            self._report_timestamps()
            self._now = now_ms
            self._update_bounds()

    # -- tuples --------------------------------------------------------------------------------------------------------

    def add(
        self, payload: Any, timestamp: Any = None, *, stream: str = DEFAULT_STREAM, key: Any = None, source: Any = None
    ) -> Iterator[Effect]:
        """Add one tuple; `timestamp` is in milliseconds on event time, None on processing time (the clock is used).

        Raises InvalidTimestampError for an unusable timestamp if the bolt has `on_invalid="raise"`, and ConfigError for a
        stream that was not declared; the state is then unchanged. Cost: O(1).
        """
        if (
            type(timestamp) is int
            and self._from_ms <= timestamp <= self._upto_ms
            and self._guard.state is FREE
            and (largest := self._largest.get(stream)) is not None
        ):
            if timestamp > largest:
                self._largest[stream] = timestamp
            if self._inbox is None:
                return self.manager.add(payload, timestamp, key)
            self._inbox.append((payload, timestamp))
            return NO_EFFECTS
        return self._add_checked(payload, timestamp, stream, key, source)

    def _add_checked(self, payload: Any, timestamp: Any, stream: str, key: Any, source: Any) -> Iterator[Effect]:
        """Add a tuple that may be late or has a source, or any tuple on processing time."""
        closed = self.manager.closed
        if not closed and not self._event_time:
            return self.manager.add(payload, self._clock(), key)
        reason = LateReason.CLOSED if closed else self._judge(timestamp)
        self.manager.enter()
        if reason is None or reason is LateReason.LATE:
            self._generator.track(stream, timestamp, source, self._now)
        if reason is None:
            return self.manager.add(payload, timestamp, key)
        return iter((self._late([payload], [timestamp], reason),))

    def add_batch(
        self,
        payloads: Sequence[Any],
        timestamps: Sequence[Any] | None = None,
        *,
        stream: str | Sequence[str] = DEFAULT_STREAM,
        keys: Sequence[Any] | None = None,
        sources: Sequence[Any] | None = None,
        trusted: bool = False,
        tracked: bool = True,
    ) -> Iterator[tuple[int, Effect]]:
        """Add tuples in arrival order; each effect comes with the position of the tuple that caused it.

        The result is exactly that of one `add` for each. `stream` is one name or one for each tuple. `trusted` promises that every
        timestamp is an int or None. `tracked=False` does not report timestamps to the watermark; a driver then calls `track`
        (Spark's control rows). Raises ConfigError for a column of another length. Cost: two passes at C speed if all tuples are on
        time.
        """
        streams = None if isinstance(stream, str) else stream
        one_for_each(payloads, timestamps=timestamps, keys=keys, sources=sources, streams=streams)
        self.manager.enter()
        if not payloads:
            return NO_EFFECTS
        if self.manager.closed:
            nothing: Sequence[Any] = [None] * len(payloads)
            return iter(((0, self._late(payloads, timestamps or nothing, LateReason.CLOSED)),))
        if not self._event_time:
            return self.manager.add_batch(payloads, [self._clock()] * len(payloads), keys)
        if timestamps is None:
            raise ConfigError(
                f"bolt {self.component!r} runs on event time, but got no timestamps; give one for each tuple"
            )
        on_time = self._all_on_time(timestamps, trusted)
        judged = self._judge_all(timestamps) if on_time is None else []
        timestamps, newest = on_time or (timestamps, None)
        if tracked:
            self._generator.refuse_undeclared([stream] if isinstance(stream, str) else set(stream))
            self._track_batch(timestamps, newest, stream, sources, judged)
        if not judged:
            return self.manager.add_batch(payloads, timestamps, keys)
        return self._add_judged(payloads, timestamps, keys, judged)

    def track(self, stream: str, timestamp: int, source: Any = None) -> None:
        """Report `timestamp` of `stream` to the watermark without a tuple, such as the largest of an upstream partition."""
        self._generator.track(stream, timestamp, source, self._now)

    def observe(self, timestamp: Any, stream: str = DEFAULT_STREAM, source: Any = None) -> None:
        """Report the timestamp of a tuple that is added later, exactly as `add` would."""
        if self._event_time and self._judge(timestamp) in (None, LateReason.LATE):
            self.track(stream, timestamp, source)

    # -- watermark advances --------------------------------------------------------------------------------------------

    def turn(self) -> Iterator[Effect]:
        """Advance the watermark (on processing time: tick): raise W if possible and fire the windows that are due."""
        self.manager.enter()
        if self.manager.closed:
            return NO_EFFECTS
        if not self._event_time:
            return self.manager.tick(self._clock())
        watermark = self.generator.turn(self._now)
        if watermark is None:
            return NO_EFFECTS
        effects = self.manager.advance(watermark)
        self._update_bounds()
        return effects

    def drain(self) -> Iterator[Effect]:
        """End the input: fire the remaining windows, expire all tuples, send later ones to the late stream. Idempotent."""
        effects = self.manager.drain()
        self._update_bounds()
        return effects

    # -- judging -------------------------------------------------------------------------------------------------------

    def _judge(self, timestamp: Any) -> LateReason | None:
        if type(timestamp) is not int or not -TIMESTAMP_BOUND < timestamp < TIMESTAMP_BOUND:
            if self.config.on_invalid == "raise":
                given = "missing or no time" if timestamp is None else quote(timestamp)
                raise unusable_timestamp(self.component, self.config.timestamp, given)
            return LateReason.INVALID
        if timestamp > self._upto_ms:
            return LateReason.FUTURE
        return LateReason.LATE if timestamp < self._from_ms else None

    def _all_on_time(self, timestamps: Sequence[Any], trusted: bool) -> tuple[Sequence[int], int] | None:
        """Return the timestamps, as InOrder if they are sorted, and the largest; None if one of them may not be on time."""
        of_column = getattr(timestamps, "bounds", None)
        if of_column is not None:
            lowest, highest = of_column()
            return (timestamps, highest) if self._from_ms <= lowest and highest <= self._upto_ms else None
        given = timestamps if isinstance(timestamps, list) else list(timestamps)
        if not trusted and list(map(type, given)).count(int) != len(given):
            return None
        try:
            ordered = in_order(given)
            lowest, highest = (min(given), max(given)) if ordered is None else (ordered[0], ordered[-1])
            return (ordered or given, highest) if self._from_ms <= lowest and highest <= self._upto_ms else None
        except TypeError:  # there is a None; with a single one only the comparison with the bounds raises
            return None

    def _judge_all(self, timestamps: Sequence[Any]) -> list[Judged]:
        of_column = getattr(timestamps, "outside", None)
        doubtful = enumerate(timestamps) if of_column is None else of_column(self._from_ms, self._upto_ms)
        judged = ((position, self._judge(timestamp)) for position, timestamp in doubtful)
        return [(position, reason) for position, reason in judged if reason is not None]

    def _track_batch(
        self,
        timestamps: Sequence[Any],
        newest: int | None,
        stream: str | Sequence[str],
        sources: Sequence[Any] | None,
        judged: list[Judged],
    ) -> None:
        """Report the largest timestamp of each stream and source to the generator, except invalid and future ones. newest: the
        largest of all, if it is known.
        """
        unusable = {p for p, reason in judged if reason in (LateReason.INVALID, LateReason.FUTURE)}
        if isinstance(stream, str) and sources is None and not unusable:
            if newest is None:
                of_column = getattr(timestamps, "bounds", None)
                newest = max(timestamps) if of_column is None else of_column()[1]
            self._generator.track(stream, newest, None, self._now)
            return
        largest: dict[tuple[str, Any], int] = {}
        for position, timestamp in enumerate(timestamps):
            if position in unusable:
                continue
            origin = (stream if isinstance(stream, str) else stream[position], sources[position] if sources else None)
            if origin not in largest or timestamp > largest[origin]:
                largest[origin] = timestamp
        for (name, source), timestamp in largest.items():
            self._generator.track(name, timestamp, source, self._now)

    def _add_judged(
        self, payloads: Sequence[Any], timestamps: Sequence[Any], keys: Sequence[Any] | None, judged: list[Judged]
    ) -> Iterator[tuple[int, Effect]]:
        """Split a batch: tuples that are on time go to the machine, the others to the late stream in runs of one reason."""
        judged_at = [position for position, _ in judged]
        out = set(judged_at)
        kept = [position for position in range(len(payloads)) if position not in out]
        chosen = None if keys is None else values_at(keys, kept)
        effects = self.manager.add_batch(values_at(payloads, kept), values_at(timestamps, kept), chosen)
        late: list[tuple[int, Effect]] = []
        rows, stamps = values_at(payloads, judged_at), values_at(timestamps, judged_at)
        if isinstance(rows, Sequence):  # a columnar batch makes all its late tuples at once: a run may be a single one
            rows = list(rows)
        # The difference between a position and its number is the same in a run of consecutive positions.
        runs = groupby(enumerate(judged), key=lambda item: (item[1][0] - item[0], item[1][1]))
        for (before, reason), run in runs:
            numbers = [number for number, _ in run]
            part = slice(numbers[0], numbers[-1] + 1)
            late.append((before + numbers[0], self._late(rows[part], stamps[part], reason)))
        # On event time only Storm's machine has effects when a tuple is added.
        return merge(late, ((kept[at], effect) for at, effect in effects), key=itemgetter(0))

    def _late(self, payloads: Sequence[Any], timestamps: Sequence[Any], reason: LateReason) -> Late:
        self.side[reason.value] += len(payloads)
        return Late(payloads, timestamps, reason)

    def _clock(self) -> int:
        if self._now is None:
            raise ConfigError(
                f"bolt {self.component!r} runs on processing time and was given no clock; call set_clock first, or "
                "give batch(..., now_ms=...) of a TridentRun"
            )
        return self._now

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return counts of tuples: in, shown, skipped, pending, expired, late (all reasons); and of windows: fired."""
        tally, side = self.manager.tally, sum(self.side.values())
        return {
            "in": tally.accepted + side,
            "shown": tally.shown,
            "skipped": tally.skipped,
            "pending": tally.pending,
            "expired": tally.expired,
            "late": side,
            "fired": tally.fired,
        }

    def snapshot(self, events: bool = True, keys: bool = True, manager: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the executor's state as plain data (see WindowManager.snapshot).

        keys: False leaves out the states of the keys of a StoringMachine, for a driver that stores them apart. manager: that part,
        if the machine has returned it.
        """
        if manager is None:
            apart = self.manager if not keys and isinstance(self.manager, StoringMachine) else None
            manager = self.manager.snapshot(events) if apart is None else apart.snapshot(events, keys=False)
        return {
            "format": SNAPSHOT_FORMAT,
            "machine": "WindowedBoltExecutor",
            "manager": manager,
            "generator": self.generator.snapshot(),
            "side": dict(self.side),
            "closed": self.manager.closed,
            "now": self._now,
        }

    def mark(self) -> dict[str, Any]:
        """Return the executor's state for `restore` and `changed`, as `mark` of its machine."""
        return self.snapshot(manager=self.manager.mark())

    def changed(self, marked: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two snapshots, as of the last `mark`, which returned `marked`, and of now, as `changed` of its machine."""
        then, now = self.manager.changed(marked["manager"])
        return {**marked, "manager": then}, self.snapshot(manager=now)

    def restore(self, data: dict[str, Any]) -> None:
        """Restore the executor's state from a snapshot. Raises SnapshotError for another format."""
        refuse_foreign(data, "WindowedBoltExecutor")
        self.manager.restore(data["manager"])
        self.generator.restore(data["generator"])
        self.side = Counter(data["side"])
        self._now = data["now"]
        self._update_bounds()

    def check(self) -> None:
        """Assert the invariants of the parts, and that no tuple is lost between them."""
        self.manager.check()
        self.generator.check()
        # W is computed by the generator, and the machine's is the one of the last advance.
        assert not self._event_time or self.generator.watermark == self.manager.watermark
        counts = self.counts()
        assert counts["in"] == counts["shown"] + counts["skipped"] + counts["pending"] + counts["late"]
        assert not self.manager.closed or counts["pending"] == 0
