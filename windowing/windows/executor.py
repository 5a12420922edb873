"""WindowedBoltExecutor: the windows of one task of a bolt, without user code; and which machine a definition gets (`machine_for`).

    tuple -> valid?  -> open?    -> not future? -> on time? -> the machine (WindowManager, say)
             invalid    closed      future         late        (side stream, with the reason)

A tuple is judged by the watermark of the last turn. The driver says what time it is (`set_clock`), makes the turns (`turn`) and
performs the effects; nothing here reads a clock or calls the bolt.

Laws: in == shown + skipped + pending + on the side stream, at any time (`counts`). What a driver has to know of a machine the
machine says (`Machine`); no driver asks for its class. Machines over columns need Arrow, so a driver hands them in (`columns`).

Source: Storm's `WindowedBoltExecutor`, without its emits, acks and threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from windowing.errors import ConfigError, InvalidTimestampError, quote
from windowing.schema.checks import DEFAULT_STREAM
from windowing.windows.config import Semantics, WindowConfig
from windowing.windows.events import Effect, Late, LateReason, taken, title_of_field
from windowing.windows.guard import FREE, NO_EFFECTS, Guard, one_for_each, refuse_foreign, snapshot_header
from windowing.windows.key_state import Tally
from windowing.windows.manager import WindowManager
from windowing.windows.measures import Count
from windowing.windows.paged_manager import PagedWindowManager
from windowing.windows.pages import PageStore
from windowing.windows.panes import NumberPaneManager, TimePaneManager
from windowing.windows.partials import Aggregation
from windowing.windows.policies import PolicyWindowManager
from windowing.windows.queue import InOrder, newest_of
from windowing.windows.storm import StormMachine
from windowing.windows.watermark import WaterMarkEventGenerator

__all__ = [
    "ColumnMachines",
    "Machine",
    "WindowedBoltExecutor",
    "machine_for",
    "refuse_tables",
]


class Machine(Protocol):
    """Tuples in, windows out. Every entry returns an iterator of effects; see WindowManager for the laws."""

    guard: Guard

    @property
    def takes_columns(self) -> bool:
        """Whether tuples may be handed over in columns (ColumnRows, Timestamps, Keys): no row is made of them."""

    @property
    def keeps_tuples(self) -> bool:
        """Whether it holds tuples, and not only what `aggregate=` makes of them."""

    @property
    def shows_columns(self) -> bool:
        """Whether windows are handed out as `columnar=` says; if not, a driver does it (`windowing.columnar.viewed`)."""

    @property
    def tick_interval_ms(self) -> int | None:
        """How often it has to be ticked over the clock, None where `next_deadline_ms` says when."""

    @property
    def inbox(self) -> list[tuple[Any, int]] | None:
        """Where tuples (payload, timestamp) that are not late may be put in place of an `add`, while the machine is free; they are
        taken in by the next entry, all at once. None where a tuple has a key, effects of its own, or can be refused.
        """

    @property
    def numbered(self) -> WindowManager | None:
        """The machine itself if it numbers its tuples, so that a driver may store them apart from its snapshot."""

    @property
    def tally(self) -> Tally:
        """What became of the tuples."""

    @property
    def watermark(self) -> int | None:
        """W of the last turn."""

    def add(self, payload: Any, timestamp: int, key: Any = None) -> Iterator[Effect]:
        """Accept one tuple."""

    def add_batch(
        self, payloads: Sequence[Any], timestamps: Sequence[int], keys: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Effect]]:
        """Accept tuples in arrival order; effects come with the position of their cause."""

    def advance(self, watermark: int) -> Iterator[Effect]:
        """Make a watermark turn."""

    def tick(self, now_ms: int) -> Iterator[Effect]:
        """Make a turn of the clock (processing time)."""

    def drain(self) -> Iterator[Effect]:
        """Fire what is left and close."""

    def enter(self) -> None:
        """Raise MachineSpentError unless an entry is allowed: the machine is free, and has not failed."""

    def late_below(self) -> int | None:
        """Return the bound below which a timestamp is late, None while nothing is."""

    def next_deadline_ms(self) -> int | None:
        """Return the watermark (over the clock: the time, less 1 ms) at which a turn has something to do, None for none."""

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the machine as plain data."""

    def restore(self, data: dict[str, Any]) -> None:
        """Become the machine of `data`."""

    def check(self) -> None:
        """Assert what "correct" means."""


class ColumnMachines(Protocol):
    """The machines over columns (`windowing.columnar.ColumnarMachines`), from a driver that has Arrow loaded."""

    @property
    def holds_columns(self) -> bool:
        """Whether a queue may hold columns: a tuple is then no more than its fields."""

    def windows(self, config: WindowConfig, sequenced: bool) -> Machine:
        """Return the machine of windows that are handed out as columns."""

    def panes(self, config: WindowConfig, component: str) -> Machine:
        """Return the machine of `aggregate=` over Durations, which hands out one table for all keys where `columnar=` is said."""


def refuse_tables(config: WindowConfig, component: str) -> None:
    """Raise ConfigError for a bolt with `aggregate=` and `columnar=`, where its tuples are kept for acks, or for a restart."""
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
    """Return a new machine for `config`, the first of the table that fits:

        semantics="storm"                            StormMachine           Storm's policies, by arrival, its losses
        eviction= or trigger=                        PolicyWindowManager    a scan for each window
        max_events_in_memory=                        PagedWindowManager     ranges over pages, most of them in `pages`
        aggregate=, both Durations                   TimePaneManager        partials by pane, no tuples kept
                    with `columns`                   ColumnarPaneManager    the same, batches of columns taken in without a row
                    with `columns` and columnar=     TablePaneManager       the same, one table for all keys
        aggregate=, both Counts                      NumberPaneManager      partials by key, no tuples kept
        columnar=, with `columns` that hold them     ColumnarWindowManager  ranges over a queue of columns
        else, with or without aggregate=             WindowManager          ranges over an ordered queue

    `sequenced` is for a driver that stores the tuples of a WindowManager itself, `keep_tuples` for one that has to know
    which tuples an aggregating window holds, to ack them: then no panes. `pages` is where a PagedWindowManager puts its pages.
    `component` names the bolt in errors. `columns` makes the machines over columns, for a driver whose tuples come in columns, or
    whose bolt says `columnar=`.
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


_MAX_TIMESTAMP = 2**62
_BEFORE_ALL = -_MAX_TIMESTAMP
_PROBE = 16  # how many tuples tell whether it is worth asking if a batch is in order

Judged = tuple[int, LateReason]


class WindowedBoltExecutor:
    """The windows of one bolt task: feed tuples, make turns, perform the effects that come back.

    `streams` are the declared input streams: the watermark waits for each of them. `component` names the bolt in errors.
    `sequenced` is for drivers that store tuples apart, `keep_tuples` for those that ack the tuples of aggregates.
    `pages` is where a bolt with `max_events_in_memory` puts what is not in memory. `columns` is for those whose tuples come in
    columns, or whose bolt says `columnar=` (see `machine_for`).

    >>> from windowing.windows.measures import count
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
            max_future_ms=config.max_future_ms,
            sourced=config.source is not None,
        )
        # The largest timestamp that `add` took since the generator was told; of sources it is told at once.
        self._largest = {} if config.source is not None else dict.fromkeys(streams, _BEFORE_ALL)
        self.side: Counter[str] = Counter()
        self.closed = False
        self._now: int | None = None
        self._use(machine_for(config, sequenced, keep_tuples, pages, component, columns))

    def _use(self, machine: Machine) -> None:
        self._machine = machine
        self._guard = machine.guard
        self._inbox = machine.inbox
        self._bound()

    def _bound(self) -> None:
        """Note between which timestamps a tuple is accepted without a second look."""
        self._late_below = self._machine.late_below()
        if self.closed or not self._event_time:
            self._from_ms, self._upto_ms = 1, 0
            return
        self._from_ms = -_MAX_TIMESTAMP + 1 if self._late_below is None else self._late_below
        self._upto_ms = _MAX_TIMESTAMP - 1
        if self._now is not None and self.config.max_future_ms is not None:
            self._upto_ms = min(self._upto_ms, self._now + self.config.max_future_ms)

    @property
    def manager(self) -> Machine:
        """The machine; another one may be put in its place before the first tuple."""
        return self._machine

    @manager.setter
    def manager(self, machine: Machine) -> None:
        self._use(machine)

    @property
    def generator(self) -> WaterMarkEventGenerator:
        """The watermark, which knows of all tuples so far."""
        self._tell()
        return self._generator

    def _tell(self) -> None:
        """Tell the generator what `add` took."""
        for stream, timestamp in self._largest.items():
            if timestamp is not _BEFORE_ALL:
                self._generator.track(stream, timestamp, None, self._now)
                self._largest[stream] = _BEFORE_ALL

    @property
    def watermark(self) -> int | None:
        """W: no tuple below it is on time. None while it is -infinity (and on processing time before the first tick)."""
        return self._generator.watermark if self._event_time else self._machine.watermark

    @property
    def now_ms(self) -> int | None:
        """The clock as the driver last gave it."""
        return self._now

    def set_clock(self, now_ms: int) -> None:
        """Take the driver's clock, milliseconds since 1970; on processing time it never runs backwards."""
        if self._now is None or now_ms > self._now or self._event_time:
            self._tell()
            self._now = now_ms
            self._bound()

    # -- tuples --------------------------------------------------------------------------------------------------------

    def add(
        self, payload: Any, timestamp: Any = None, *, stream: str = DEFAULT_STREAM, key: Any = None, source: Any = None
    ) -> Iterator[Effect]:
        """Offer one tuple; `timestamp` in milliseconds on event time, nothing on processing time (the clock is taken).

        Raises InvalidTimestampError for an unusable timestamp if the bolt says `on_invalid="raise"`, and ConfigError for a
        stream that was not declared; nothing has changed then. Cost: O(1).
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
                return self._machine.add(payload, timestamp, key)
            self._inbox.append((payload, timestamp))
            return NO_EFFECTS
        return self._add_with_care(payload, timestamp, stream, key, source)

    def _add_with_care(self, payload: Any, timestamp: Any, stream: str, key: Any, source: Any) -> Iterator[Effect]:
        """Do the work of `add`, for a tuple that may be late, or is to be noted with its source, or over the clock."""
        if not self.closed and not self._event_time:
            return self._machine.add(payload, self._clock(), key)
        reason = LateReason.CLOSED if self.closed else self._judge(timestamp)
        self._machine.enter()
        if reason is None or reason is LateReason.LATE:
            self._generator.track(stream, timestamp, source, self._now)
        if reason is None:
            return self._machine.add(payload, timestamp, key)
        return self._to_side([payload], [timestamp], reason)

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
        """Offer tuples in arrival order; effects come with the position of the tuple that caused them.

        Exactly what one `add` for each gives. `stream` is one name or one for each tuple. `trusted` promises that every
        timestamp is an int or None; `tracked=False` leaves the watermark to `track` (Spark's control rows). Raises ConfigError
        for a column of another length. Cost: two passes at C speed over the timestamps if all are on time.
        """
        streams = None if isinstance(stream, str) else stream
        one_for_each(payloads, timestamps=timestamps, keys=keys, sources=sources, streams=streams)
        self._machine.enter()
        if not payloads:
            return NO_EFFECTS
        if self.closed:
            nothing: Sequence[Any] = [None] * len(payloads)
            return zip((0,), self._to_side(payloads, timestamps or nothing, LateReason.CLOSED), strict=True)
        if not self._event_time:
            return self._machine.add_batch(payloads, [self._clock()] * len(payloads), keys)
        if timestamps is None:
            raise ConfigError(
                f"bolt {self.component!r} runs on event time, but got no timestamps; give one for each tuple"
            )
        on_time = self._all_on_time(timestamps, trusted)
        judged = None if on_time is not None else self._judge_all(timestamps)
        if tracked:
            self._generator.refuse_undeclared([stream] if isinstance(stream, str) else set(stream))
            self._track_batch(on_time or timestamps, stream, sources, judged)
        if not judged:
            return self._machine.add_batch(payloads, on_time or timestamps, keys)
        return self._add_judged(payloads, timestamps, keys, judged)

    def track(self, stream: str, timestamp: int, source: Any = None) -> None:
        """Learn that `stream` has shown `timestamp`, without a tuple of it: an upstream partition's largest, say."""
        self._generator.track(stream, timestamp, source, self._now)

    def observe(self, timestamp: Any, stream: str = DEFAULT_STREAM, source: Any = None) -> None:
        """Learn of a tuple that is offered later: the generator takes note of it as `add` will."""
        if self._event_time and self._judge(timestamp) in (None, LateReason.LATE):
            self.track(stream, timestamp, source)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self) -> Iterator[Effect]:
        """Make a watermark turn (on processing time a tick): raise W if possible and fire what falls due."""
        self._machine.enter()
        if self.closed:
            return NO_EFFECTS
        if not self._event_time:
            return self._machine.tick(self._clock())
        watermark = self.generator.turn(self._now)
        if watermark is None:
            return NO_EFFECTS
        effects = self._machine.advance(watermark)
        self._bound()
        return effects

    def drain(self) -> Iterator[Effect]:
        """End of the input: fire what is left, let everything expire, send later tuples to the side stream. Idempotent."""
        self._machine.enter()
        effects = self._machine.drain()
        self.closed = True
        self._bound()
        return effects

    # -- judging -------------------------------------------------------------------------------------------------------

    def _judge(self, timestamp: Any) -> LateReason | None:
        if type(timestamp) is not int or not -_MAX_TIMESTAMP < timestamp < _MAX_TIMESTAMP:
            if self.config.on_invalid == "raise":
                raise InvalidTimestampError(
                    f"bolt {self.component!r}: timestamp {title_of_field(self.config.timestamp)} is {quote(timestamp)}, wanted "
                    'whole milliseconds since 1970; repair the column, or send such rows to the side stream with on_invalid="late"'
                )
            return LateReason.INVALID
        if (
            self._now is not None
            and self.config.max_future_ms is not None
            and self._generator.is_future(timestamp, self._now)
        ):
            return LateReason.FUTURE
        return LateReason.LATE if self._late_below is not None and timestamp < self._late_below else None

    def _all_on_time(self, timestamps: Sequence[Any], trusted: bool) -> Sequence[int] | None:
        """Return the timestamps, marked if they are in order, when all tuples of a batch are on time; None if one may not be."""
        of_column = getattr(timestamps, "bounds", None)
        if of_column is not None:
            lowest, highest = of_column()
            return timestamps if self._from_ms <= lowest and highest <= self._upto_ms else None
        given = timestamps if type(timestamps) is list else list(timestamps)
        if not trusted and list(map(type, given)).count(int) != len(given):
            return None
        first = given[:_PROBE]
        try:
            ordered = InOrder(sorted(given)) if sorted(first) == first else [min(given), max(given)]
            on_time = self._from_ms <= ordered[0] and ordered[-1] <= self._upto_ms
        except TypeError:  # there is a None; a single one is compared with nothing before the bounds
            return None
        return None if not on_time else ordered if ordered == given else given

    def _judge_all(self, timestamps: Sequence[Any]) -> list[Judged]:
        of_column = getattr(timestamps, "outside", None)
        doubtful = enumerate(timestamps) if of_column is None else of_column(self._from_ms, self._upto_ms)
        judged = ((position, self._judge(timestamp)) for position, timestamp in doubtful)
        return [(position, reason) for position, reason in judged if reason is not None]

    def _track_batch(
        self,
        timestamps: Sequence[Any],
        stream: str | Sequence[str],
        sources: Sequence[Any] | None,
        judged: list[Judged] | None,
    ) -> None:
        """Tell the generator the largest timestamp of each stream and source, leaving out what must not move W."""
        unusable = {p for p, reason in judged or () if reason in (LateReason.INVALID, LateReason.FUTURE)}
        if isinstance(stream, str) and sources is None and not unusable:
            self._generator.track(stream, newest_of(timestamps), None, self._now)
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
        """Split a batch: what is on time goes to the manager, the rest to the side stream in runs of one reason."""
        out = {position for position, _ in judged}
        kept = [position for position in range(len(payloads)) if position not in out]
        chosen = None if keys is None else taken(keys, kept)
        effects = self._machine.add_batch(taken(payloads, kept), taken(timestamps, kept), chosen)
        late = [(run[0][0], each) for run in _runs(judged) for each in self._late_run(payloads, timestamps, run)]
        # Only Storm's machine has effects when a tuple is added on event time.
        return merge(late, ((kept[at], effect) for at, effect in effects), key=itemgetter(0))

    def _late_run(self, payloads: Sequence[Any], timestamps: Sequence[Any], run: list[Judged]) -> Iterator[Effect]:
        first, reason = run[0]
        part = slice(first, first + len(run))
        return self._to_side(payloads[part], timestamps[part], reason)

    def _to_side(self, payloads: Sequence[Any], timestamps: Sequence[Any], reason: LateReason) -> Iterator[Effect]:
        self.side[reason.value] += len(payloads)
        return iter((Late(payloads, timestamps, reason),))

    def _clock(self) -> int:
        if self._now is None:
            raise ConfigError(
                f"bolt {self.component!r} runs on processing time and was given no clock; call set_clock first"
            )
        return self._now

    # -- for drivers ---------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return what became of the tuples: in, shown, skipped, pending, expired, late (all reasons), and windows fired."""
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

    def snapshot(self, events: bool = True) -> dict[str, Any]:
        """Return the executor as plain data (see WindowManager.snapshot)."""
        return {
            **snapshot_header("WindowedBoltExecutor"),
            "manager": self.manager.snapshot(events),
            "generator": self.generator.snapshot(),
            "side": dict(self.side),
            "closed": self.closed,
            "now": self._now,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Become the executor of `data`. Raises SnapshotError for another format."""
        refuse_foreign(data, "WindowedBoltExecutor")
        self._machine.restore(data["manager"])
        self.generator.restore(data["generator"])
        self.side = Counter(data["side"])
        self.closed, self._now = data["closed"], data["now"]
        self._bound()

    def check(self) -> None:
        """Assert what "correct" means: the parts, and that no tuple is lost between them."""
        self.manager.check()
        self.generator.check()
        counts = self.counts()
        assert counts["in"] == counts["shown"] + counts["skipped"] + counts["pending"] + counts["late"]
        if self.closed:
            assert counts["pending"] == 0 or self.config.semantics is Semantics.STORM


def _runs(judged: list[Judged]) -> Iterator[list[Judged]]:
    """Yield the runs of neighbours with one reason."""
    numbered = enumerate(judged)
    for _, run in groupby(numbered, key=lambda item: (item[1][0] - item[0], item[1][1])):
        yield [each for _, each in run]
