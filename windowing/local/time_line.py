"""explain(), TimeLine: the windows of a bolt for some rows, as a list of events of a real run, for people to read.

    rows ──► LocalRun (the bolt, its windows, its watermark) ──► events ──► text, SVG, PNG (time_line_drawing.py)

The run is that of `run_local`, with two changes that do not affect the windows: all tuples are kept, while `aggregate=` alone would
keep partial results, and no tuple is stored in pages on disk. Each row of a flat list is a micro-batch of its own, so its lateness
is decided by the watermark of all rows before it; rows in lists are micro-batches as given.

Laws
- The events are in the order in which they happened, and are plain data; a tuple is identified by its number in order of arrival.
- An event records an effect of the window machine; no window is computed here. If several tuples are the same object, earlier
  windows and expiries get the earlier tuples.
- Each arrived tuple is late, repeated, or accepted; an accepted one expires at most once, and exactly once if the input has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from windowing.errors import ConfigError, represented
from windowing.local.clock import VirtualClock
from windowing.local.run import LocalBatch, LocalRun, run_over
from windowing.local.spouts import is_list, listed
from windowing.schema.checks import DEFAULT_STREAM, StormNames, is_whole, spelled
from windowing.schema.rows import Record
from windowing.topology.bolts import WindowedBolt
from windowing.topology.decorators import bolt_of
from windowing.topology.window_task import FailTarget, TaskEffect, TupleColumns, WindowEmitted, WindowFailed, WindowTask
from windowing.windows.config import WindowConfig
from windowing.windows.events import Activation, Expired, Late
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Duration, as_duration_ms, seconds


@dataclass(frozen=True, slots=True)
class TupleArrived:
    """A tuple arrived. at_ms: its timestamp (over the clock: its arrival time), None without a usable one."""

    number: int
    text: str
    at_ms: int | None
    stream: str = DEFAULT_STREAM
    key: Any = None


@dataclass(frozen=True, slots=True)
class TupleLate:
    """A tuple went to the late stream: the reason, and the watermark at that time."""

    number: int
    reason: str
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class TupleRepeated:
    """A tuple with a `message_id` that arrived before; it was dropped."""

    number: int


@dataclass(frozen=True, slots=True)
class WatermarkRose:
    """A watermark advance (over the clock: a tick) raised the watermark to `at_ms`."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class WindowFired:
    """The window `(start_ms, end_ms]` was passed to the bolt.

    held, new, expired: the tuple numbers of `get`, `get_new` and `get_expired`. emitted: (stream, values) of each row. failure: the
    error text if the bolt failed.
    """

    start_ms: int | None
    end_ms: int
    key: Any
    held: tuple[int, ...]
    new: tuple[int, ...]
    expired: tuple[int, ...]
    emitted: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TuplesExpired:
    """No later window can hold these tuples: they are acked."""

    numbers: tuple[int, ...]
    key: Any = None


@dataclass(frozen=True, slots=True)
class InputEnded:
    """The drain: the events after it are caused by the drain."""


TimeLineEvent = (
    TupleArrived | TupleLate | TupleRepeated | WatermarkRose | WindowFired | TuplesExpired | InputEnded
)  # fmt: skip
"""An event of a run."""


@dataclass(frozen=True, slots=True)
class TimeLine(StormNames):
    """The events of a run in order. title: the name of the bolt; about: its windows. A notebook displays it as a picture."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "show plot display": "print(line), or line as the last line of a cell of a notebook",
        "save savefig write": "pathlib.Path('windows.svg').write_text(line.svg()), or its png()",
    }

    title: str
    about: str
    events: tuple[TimeLineEvent, ...]

    def text(self, width: int = 110) -> str:
        """Return the time line as text, `width` columns wide: a line for each batch of tuples and each window. Cost: O(events)."""
        from windowing.local.time_line_drawing import to_text  # imports this module

        return to_text(self, width)

    def svg(self) -> str:
        """Return the time line as an SVG for light and dark paper, with the texts of all tuples. Cost: O(events)."""
        from windowing.local.time_line_drawing import to_time_line_svg

        return to_time_line_svg(self)

    def png(self, dpi: int = 150) -> bytes:
        """Return the time line as a PNG. Raises ConfigError if matplotlib (extra `draw`) is not installed."""
        from windowing.local.time_line_drawing import to_time_line_png

        return to_time_line_png(self, dpi)

    def __str__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str:
        return self.svg()


@spelled
def explain(
    bolt: Any,
    rows: Iterable[Any],
    *,
    drain: bool = True,
    streams: Sequence[str] = (DEFAULT_STREAM,),
    every: Duration = seconds(1),
) -> TimeLine:
    """Run a windowed bolt over some rows and return the events: fired windows, late tuples, expired tuples.

    rows: rows, each a micro-batch of its own; or lists of rows (or mappings of streams to lists), each a micro-batch. drain: fire
    the last windows at the end. every: the clock advances by this span before each micro-batch, and at no other time. Raises as
    `run_local` does. Cost: that of the run, with all its windows in memory, so use few rows.

    >>> from windowing import count, sliding
    >>> @sliding(count(3), count(2), timestamp="at", output="words long")
    ... def words(window):
    ...     return len(window)
    >>> print(explain(words, [{"word": word, "at": at} for at, word in enumerate(["to", "be", "or", "not"])]).text(72))
    words: 3 tuples every 2 tuples, by at
    ...
    """
    found = bolt_of(bolt)
    if found.config.columnar is not None and found.config.aggregate is not None:
        raise ConfigError(
            f"explain shows tuples, and bolt {found.name!r} keeps none: it is handed the aggregates of all keys in columns; "
            "explain it without columnar=, with which its windows are the same"
        )
    as_duration_ms(every, "every")  # the clock would call it a span
    clock = VirtualClock(0)
    run = _WatchedRun(found, streams=streams, clock=clock)

    def timed() -> Iterator[LocalBatch]:
        for batch in _batches(rows, run.streams):
            clock.advance(every)
            yield batch
            run.watch.rise()
        if drain:
            clock.advance(every)
            run.watch.events.append(InputEnded())

    with run:
        run_over(run, timed(), drain)
    return TimeLine(found.name, found.config.about, tuple(run.watch.events))


def _batches(rows: Iterable[Any], streams: tuple[str, ...]) -> Iterator[LocalBatch]:
    """Yield micro-batches: a list, or a mapping of streams to lists, as it is; a single row as a batch of its own."""
    given = list(listed(rows, "explain takes rows, or lists of rows"))
    batches = [
        is_list(row)
        or (isinstance(row, dict) and bool(row) and row.keys() <= set(streams) and all(map(is_list, row.values())))
        for row in given
    ]
    if any(batches) and not all(batches):
        raise ConfigError("explain takes rows, or lists of rows, got some of both; write [[row, row], [row]]")
    yield from given if any(batches) else ([row] for row in given)


class _WatchedRun(LocalRun):
    """A run whose task records its events."""

    watch: _WatchedTask

    def _made_task(self, bolt: WindowedBolt) -> WindowTask:
        config = replace(bolt.config, max_events_in_memory=None)
        executor = WindowedBoltExecutor(config, self.streams, bolt.name, keep_tuples=True)
        self.watch = _WatchedTask(bolt, executor, FailTarget.RUN, call=self._called)
        return self.watch


class _WatchedTask(WindowTask):
    """A window task that records its input and each effect; if several tuples are the same object, the earliest ones are taken
    first.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.events: list[TimeLineEvent] = []
        self._rows: list[Any] = []  # all rows, so that no id() is reused
        self._arrived: list[TupleArrived] = []  # not offered to the windows yet
        self._open: dict[int, list[int]] = {}  # by object: the numbers of its tuples that have not expired
        self._held: dict[Any, tuple[int, ...]] = {}  # by key: the last window
        self._watermark: int | None = None

    def columns(self, rows: Sequence[Any], streams: str | Sequence[str] = DEFAULT_STREAM) -> TupleColumns:
        columns = super().columns(rows, streams)
        for at, row in enumerate(rows):
            number = len(self._rows)
            self._rows.append(row)
            stamp = None if columns.timestamps is None else columns.timestamps[at]
            key = None if columns.keys is None else columns.keys[at]
            stream = streams if isinstance(streams, str) else streams[at]
            text = _text_of(row, self.config, number)
            self._arrived.append(TupleArrived(number, text, stamp if is_whole(stamp) else None, stream, key))
        return columns

    def add(
        self, rows: Sequence[Any], columns: TupleColumns, now_ms: int | None, channels: Sequence[Hashable] | None = None
    ) -> Iterator[TaskEffect]:
        """Record the arrived tuples; those that are not in `rows` are repeated."""
        offered = Counter(map(id, rows))
        for event in self._arrived:
            self.events.append(event if self.config.event_time else replace(event, at_ms=now_ms))
            same = id(self._rows[event.number])
            if offered[same]:
                offered[same] -= 1
                self._open.setdefault(same, []).append(event.number)
            else:
                self.events.append(TupleRepeated(event.number))
        self._arrived = []
        return super().add(rows, columns, now_ms, channels)

    def turn(self, now_ms: int | None) -> Iterator[TaskEffect]:
        yield from super().turn(now_ms)
        self.rise()

    def perform(self, effects: Iterable[Any]) -> Iterator[Any]:
        for effect in super().perform(map(self._noted, effects)):
            if isinstance(effect, WindowEmitted | WindowFailed):
                self._answered(effect)
            yield effect

    def _noted(self, effect: Any) -> Any:
        if isinstance(effect, Activation):
            window = effect.window
            self.rise()
            before = self._held.get(window.key, ())
            expired = self._taken(window.get_expired(), before)
            stayed = [number for number in before if number not in expired]
            unshown = sorted(n for numbers in self._open.values() for n in numbers if n not in before)
            new = self._taken(window.get_new(), unshown)
            held = self._taken(window.get(), sorted([*stayed, *new]))
            self._held[window.key] = held
            fired = WindowFired(window.start_timestamp, window.end_timestamp, window.key, held, new, expired)
            self.events.append(fired)
        elif isinstance(effect, Expired):
            self.rise()
            rows = effect.get() or ()
            self.events.append(TuplesExpired(self._gone(rows), effect.key))
        elif isinstance(effect, Late):
            reason = effect.reason.value
            for number in self._gone(effect.payloads, newest=True):
                self.events.append(TupleLate(number, reason, self._watermark))
        return effect

    def _answered(self, effect: WindowEmitted | WindowFailed) -> None:
        fired = self.events[-1]
        assert isinstance(fired, WindowFired)
        if isinstance(effect, WindowEmitted):
            self.events[-1] = replace(fired, emitted=tuple(effect.emissions))
        else:
            self.events[-1] = replace(fired, failure=str(effect.error))

    def rise(self) -> None:
        """Record a risen watermark. After the end of the input it is infinite, and not recorded."""
        watermark = self.executor.watermark
        if self.executor.closed or watermark is None or watermark == self._watermark:
            return
        self._watermark = watermark
        self.events.append(WatermarkRose(watermark))

    def _taken(self, rows: Sequence[Any], among: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of `rows` in their order, each one from `among`."""
        by_row: dict[int, list[int]] = {}
        for number in reversed(among):
            by_row.setdefault(id(self._rows[number]), []).append(number)
        return tuple(by_row[id(row)].pop() for row in rows)

    def _gone(self, rows: Sequence[Any], newest: bool = False) -> tuple[int, ...]:
        return tuple(self._open[id(row)].pop(-1 if newest else 0) for row in rows)


def _text_of(row: Any, config: WindowConfig, number: int) -> str:
    """Return the text of a tuple: its fields without time, key, source and id; its number if there are no others."""
    known = {config.timestamp, config.source, config.message_id, *(config.key or ())}
    values = row._asdict() if isinstance(row, Record) or hasattr(row, "_asdict") else None
    if values is None:
        return row if isinstance(row, str) else represented(row)
    named = [
        value if isinstance(value, str) else represented(value) for name, value in values.items() if name not in known
    ]
    return " ".join(named) or f"#{number + 1}"
