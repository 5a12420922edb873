"""run_local(), LocalRun: run one windowed bolt in one process over plain rows, for tests and at the prompt.

    feed(rows)   the rows of a micro-batch arrive, in order       (a Count slide on processing time fires here)
    turn()       one watermark turn                               (all other windows fire here)
    tick()       a turn, if one is due by the clock
    drain()      the end of the input: the last windows fire

A row that is fed as a dict reaches the bolt as a record (schema/rows.py): `row.word` and `row["word"]`, as on Spark.

Laws: a micro-batch is all its rows, then one turn, as on Spark. A step in which the bolt raises adds nothing to the
result and ends the run. One task gets all rows; a bolt with `key=` has separate windows for each key, as on Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

from windowing.codec import dumps, loads
from windowing.errors import BoltError, ConfigError, WindowingError, quote
from windowing.execution.metrics import LAST_KEPT
from windowing.execution.support import Runtime, announce_bolt
from windowing.local.clock import Clock, clock_of, whole_ms
from windowing.local.spouts import is_list, listed
from windowing.local.windowed import machines_of, view_of
from windowing.schema.checks import DEFAULT_STREAM, StormNames, did_you_mean, spelled
from windowing.schema.rows import records_of
from windowing.stores.pages import SqlitePages
from windowing.stores.states import MemoryStateProvider
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter, tuples_of
from windowing.topology.decorators import bolt_of
from windowing.topology.pictures import brief_repr, html_table
from windowing.topology.state import KeyValueState
from windowing.topology.user_code import Emission, warn_of
from windowing.topology.window_task import (
    FailTarget,
    TaskEffect,
    WindowEmitted,
    WindowFailed,
    WindowTask,
    warn_of_no_times,
)
from windowing.windows.config import OnError, refuse_drain
from windowing.windows.events import Expired, Late, LateReason, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.guard import NO_EFFECTS

_log = logging.getLogger("windowing")

LocalBatch = Sequence[Any] | Mapping[str, Sequence[Any]]
"""The rows of one micro-batch: a list, or a mapping of input streams to lists; the streams arrive in the mapping's order."""


class LateRow(NamedTuple):
    """A row of the late stream, with the reason why it is there."""

    row: Any
    reason: LateReason


@dataclass(slots=True, repr=False)
class LocalResult(StormNames):
    """The results of a run so far; `result["late"]` and `result["dead_letters"]` are the rows that Spark has on those streams.

    rows: for each declared stream, its rows as tuples in the order of its fields. late: the late stream. failed: tuples of
    windows on which a bolt with `on_error="fail"` failed, each once. dead_letters: see DeadLetter. acked: the number of tuples
    that expired or were late without having failed. failures: the number of windows on which the bolt failed. counts: the
    executor's counts (in, shown, skipped, pending, expired, late, fired). duplicates: the number of rows that were dropped because
    their message_id had come before. state: the state of a stateful bolt, else None.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "outputs sinks default": 'rows, or result["default"] for one stream',
        "toPandas": 'pandas.DataFrame(result["default"], columns=[...])',
    }

    rows: dict[str, list[tuple[Any, ...]]]
    late: list[LateRow] = field(default_factory=list)
    failed: list[Any] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    acked: int = 0
    failures: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    bolt: WindowedBolt | None = field(default=None, repr=False)
    duplicates: int = 0
    state: KeyValueState | None = None

    def __repr__(self) -> str:
        return brief_repr(self)

    def _repr_html_(self) -> str:
        rows: list[list[object]] = [[f"stream {name}", len(found)] for name, found in self.rows.items()]
        rows += [
            ["late", len(self.late)],
            ["acked", self.acked],
            ["failures", self.failures],
            ["duplicates", self.duplicates],
        ]
        rows += [["dead letters", len(self.dead_letters)], *([name, count] for name, count in self.counts.items())]
        return html_table("run", ("what", "how many"), rows)

    def __getitem__(self, stream: str) -> list[tuple[Any, ...]]:
        """Return the rows of a declared stream, of the late stream (each row with its reason), or of the dead letters."""
        if stream in self.rows:
            return self.rows[stream]
        config = None if self.bolt is None else self.bolt.config
        if config is not None and stream == config.late_stream:
            return [(*(row if isinstance(row, tuple) else (row,)), reason.value) for row, reason in self.late]
        if config is not None and stream == DEAD_LETTERS and config.on_error is OnError.DEAD_LETTER:
            return [letter.row() for letter in self.dead_letters]
        raise ConfigError(
            f"there is no stream {quote(stream)}, {did_you_mean(str(stream), self)}; late rows are in result.late, too, "
            "and failed windows in result.dead_letters"
        )

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the streams, so that `"late" in result` says whether there is one."""
        config = None if self.bolt is None else self.bolt.config
        yield from self.rows
        if config is not None and config.late_stream is not None:
            yield config.late_stream
        if config is not None and config.on_error is OnError.DEAD_LETTER:
            yield DEAD_LETTERS


class LocalRun(StormNames):
    """One task of one bolt, run step by step. A context manager: leaving it calls `close()`, which does not drain.

    `streams` are the input streams; the watermark waits for each of them. `clock`: default is the system's clock. Windows on event
    time use it only for `idle_timeout=`, `max_future=` and `tick()`. `restarts`: after each `turn()` the windows and the states of
    policies are stored and read back into a new task, with a new instance of the bolt and new policies, as Spark does after each
    micro-batch. In a long run, empty the lists of `result` after each step; its counts stay.

    Source: a bolt executor in a worker of Storm.

    >>> from windowing import count, tumbling
    >>> @tumbling(count(2), output="total long")
    ... def total(window):
    ...     return sum(row["n"] for row in window)
    >>> run = LocalRun(total)
    >>> run.feed([{"n": 1}, {"n": 2}, {"n": 3}])
    [('default', (3,))]
    >>> run.drain()
    [('default', (3,))]
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "advance": "advance(seconds(1)) of a VirtualClock that LocalRun(bolt, clock=...) is given",
        "run": "feed(rows), turn() and drain(), or run_local(bolt, batches)",
        "snapshot restore save": (
            "LocalCluster(topology, state_path=...), which continues from its file; a WindowedBoltExecutor has a snapshot(); "
            "LocalRun(bolt, restarts=True) tries a restart after each turn"
        ),
    }

    @spelled
    def __init__(
        self,
        bolt: Any,
        *,
        streams: Sequence[str] = (DEFAULT_STREAM,),
        clock: Clock | None = None,
        restarts: bool = False,
    ) -> None:
        self.bolt: WindowedBolt = bolt_of(bolt)
        announce_bolt(Runtime.LOCAL, _log.warning, self.bolt)
        self.streams = _named(streams)
        config = self.bolt.config
        self._pages: SqlitePages | None = None
        if restarts and config.max_events_in_memory is not None:
            raise ConfigError("restarts=True is for windows in memory, as on Spark; leave out max_events_in_memory=")
        self._fed: dict[int, tuple[Any, Any]] | None = {} if restarts else None
        """The rows that windows may hold, by id(), each with a copy as it was fed; None without restarts."""
        self._failed = FailedTuples() if config.on_error is OnError.FAIL else None
        self._view = view_of(config)
        self._task = self._made_task(self.bolt)
        self.executor = self._task.executor
        self.clock = clock_of(clock)
        self.result = LocalResult(
            {stream: [] for stream in self.bolt.outputs}, counts=self.executor.counts(), bolt=self.bolt
        )
        self._state = MemoryStateProvider().state(self.bolt.name, 0) if self.bolt.stateful else None
        self._txid = self._steps = self._reported = 0
        self.result.state = self._state
        self._task.open(TopologyContext(self.bolt.name), self._state)
        self._timer_runs = bool(config.event_time)  # else it starts at the first step, and not when the run is made
        self._over: str | None = None

    def __repr__(self) -> str:
        counts = self.result.counts
        state = "running" if self._over is None else self._over
        return f"LocalRun({self.bolt.name!r}, {counts['in']} tuples in, {counts['pending']} pending, {state})"

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def feed(self, rows: Iterable[Any], stream: str = DEFAULT_STREAM) -> list[Emission]:
        """Offer `rows` of an input stream to the windows, in order; return the rows that the bolt emitted in this step.

        On processing time the rows get the clock's time, and a window that is already due fires before them (in Storm's semantics
        windows fire in `turn` and `tick`). Raises ConfigError for an undeclared stream, and for a row without its key or source or
        with an unhashable key; BoltError as `on_error` says.
        """
        arrived = self._records(rows, stream)
        if self._fed is not None:
            self._fed.update((id(row), (row, copy_of_row(row))) for row in arrived)
        columns = self._task.columns(arrived, stream)
        now_ms = self._wake()
        if self._task.known is not None and columns.ids is not None:
            kept = self._task.known.new_positions(columns.ids, [stream] * len(arrived))
            arrived, columns = [arrived[at] for at in kept], columns.take(kept)
        is_due = self._task.fires_first() and self._task.is_due(now_ms)
        emitted = self._perform(partial(self._task.turn, now_ms)) if is_due else []
        emitted += self._perform(partial(self._task.add, arrived, columns, now_ms))
        if columns.problem is not None:
            warn_of(columns.problem)
        return emitted

    def turn(self) -> list[Emission]:
        """End a micro-batch: raise the watermark, fire the windows that it has passed, and return the rows that the bolt emitted.

        Without `timestamp=`: fire the windows that are due by the clock.
        """
        emitted = self._perform(partial(self._task.turn, self._wake()), hooks=True)
        if self._fed is not None:
            self._restart(self._fed)
        return emitted

    def tick(self) -> list[Emission]:
        """Do what `turn` does if the clock has reached `next_deadline_ms()`; return the rows that the bolt emitted."""
        deadline = self.next_deadline_ms()
        return [] if deadline is not None and self.clock.now_ms() < deadline else self.turn()

    def drain(self) -> list[Emission]:
        """End the input: fire the last windows, expire all tuples, clean up; return the rows that the bolt emitted.

        Rows that are fed later are late, with the reason `closed`.
        """
        self._wake()
        emitted = self._perform(self._task.drain, hooks=True)
        self._task.close()
        return emitted

    def close(self) -> None:
        """End the run without firing anything, and call the bolt's `cleanup`. Idempotent."""
        self._over = self._over or "it was closed"
        try:
            if self._pages is not None:
                self._pages.close()
        finally:
            self._task.close()

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick()` makes the next turn, None if every tick makes one.

        On event time turns are `watermark_interval` apart; on processing time the next turn is when a window is due (in Storm's
        semantics: every slide).
        """
        self._begin()
        return self._task.next_deadline_ms()

    # -- the work ------------------------------------------------------------------------------------------------------

    def _batch(self, batch: LocalBatch) -> None:
        """Feed the rows of a micro-batch, then make a turn, unless Storm's timer would not have ticked yet."""
        for stream, rows in batch_by_stream(batch, self.streams).items():
            self.feed(rows, stream)
        if self._task.must_wait(self._wake()):
            self._perform(lambda: NO_EFFECTS, hooks=True)
        else:
            self.turn()

    def _records(self, rows: Iterable[Any], stream: str) -> list[Any]:
        """Return the rows that are fed, as records. Raises ConfigError for an undeclared stream, and for rows that are none."""
        if stream not in self.streams:
            own = (
                f"feed(rows, {quote(self.streams[0])})"
                if stream == DEFAULT_STREAM
                else f"streams=({quote(stream)}, ...)"
            )
            raise ConfigError(
                f"rows came on stream {quote(stream)}, the declared ones are {', '.join(self.streams)}; write {own}"
            )
        arrived = records_of(list(listed(rows, "feed takes rows")))
        if arrived and all(type(row) is list and row and isinstance(row[0], Mapping) for row in arrived):
            raise ConfigError(
                f"feed takes the rows of one batch, got a list of batches, of which the first is {quote(arrived[0])}; call "
                "feed(rows) and turn() for each, or run_local(bolt, batches)"
            )
        if arrived and hasattr(arrived[0], "iloc"):  # row.size and row.at of a Series are not its values
            raise ConfigError(
                'feed takes rows, got a Series of pandas as a row; frame.to_dict("records") is the list of rows'
            )
        return arrived

    def _made_task(self, bolt: WindowedBolt) -> WindowTask:
        config = bolt.config
        self._pages = None if config.max_events_in_memory is None else SqlitePages()
        executor = WindowedBoltExecutor(
            config,
            self.streams,
            bolt.name,
            keep_tuples=config.on_error is OnError.FAIL,
            pages=self._pages,
            columns=machines_of(config),
        )
        return WindowTask(bolt, executor, FailTarget.RUN, call=self._called)

    def _restart(self, fed: dict[int, tuple[Any, Any]]) -> None:
        """Continue from what is stored of the windows, with a new task. A row that the bolt has changed is as it was fed again."""
        old, held = self._task, dict[int, Any]()

        def reference(value: Any) -> int | None:
            if id(value) not in fed:
                return None
            row, stored = fed[id(value)]
            held.setdefault(id(value), row if [row] == [stored] else copy_of_row(stored))
            return id(value)

        try:
            stored = dumps(old.executor.snapshot(), reference)
        except TypeError as problem:
            raise BoltError(f"bolt {self.bolt.name!r} cannot be stored: {problem}") from problem
        old.close()
        task = self._task = self._made_task(self.bolt)
        self.executor, self._fed = task.executor, {id(row): (row, fed[at][1]) for at, row in held.items()}
        task.open(TopologyContext(self.bolt.name), self._state)
        task.executor.restore(loads(stored, f"what is stored of bolt {self.bolt.name!r}", held.__getitem__))
        task.turned_ms, task.failures, task.is_unit_checked = old.turned_ms, old.failures, old.is_unit_checked
        if task.known is not None and old.known is not None:
            task.known.restore(old.known.plain(), old.known.duplicates)

    def _called(self, window: TupleWindow) -> list[Emission]:
        if self._failed is not None:
            self._failed.show(window)
        return self._task.runner.run(window if self._view is None else self._view(window))

    def _wake(self) -> int:
        """Return the clock's time for the step that begins. Raises WindowingError if the run is over."""
        if self._over is not None:
            raise WindowingError(f"the run of bolt {self.bolt.name!r} is over: {self._over}; make another LocalRun")
        self._begin()
        return whole_ms(self.clock.now_ms())

    def _begin(self) -> None:
        """Start the timer at the first step."""
        if not self._timer_runs:
            self._timer_runs = True
            self._task.turned_ms = whole_ms(self.clock.now_ms())

    def _perform(self, step: Callable[[], Iterator[TaskEffect]], hooks: bool = False) -> list[Emission]:
        """Make a step and perform its effects, then change result and state. hooks: it ends a batch, so hooks are called."""
        done = LocalResult({})
        emitted: list[Emission] = []
        try:
            for effect in step():
                self._perform_one(effect, done, emitted)
            if self._state is not None:
                if hooks:  # once per batch, as on Spark
                    self._txid += 1
                    self._task.before_commit(self._txid)
                self._steps += 1
                self._state.prepare_commit(self._steps)
                self._state.commit(self._steps)
        except BaseException as problem:
            self._over = f"it ended with {type(problem).__name__}"
            if self._state is not None:
                self._state.rollback()
            with suppress(BoltError):  # the first exception is the cause
                self._task.close()
            raise
        for stream, values in emitted:
            self.result.rows[stream].append(values)
        self.result.late += done.late
        self.result.failed += done.failed
        self.result.dead_letters += done.dead_letters
        self.result.acked += done.acked
        self.result.failures = self._task.failures
        self.result.duplicates = 0 if self._task.known is None else self._task.known.duplicates
        self.result.counts = self.executor.counts()
        return emitted

    def _perform_one(self, effect: TaskEffect, done: LocalResult, emitted: list[Emission]) -> None:
        if isinstance(effect, WindowEmitted):
            emitted += effect.emissions
        elif isinstance(effect, Expired):
            done.acked += effect.count if self._failed is None else self._failed.expire(effect.get() or (), effect.key)
        elif isinstance(effect, Late):
            done.late += [LateRow(row, effect.reason) for row in effect.payloads]
            done.acked += len(effect.payloads)
        elif isinstance(effect, WindowFailed):
            if self._failed is not None:
                done.failed += self._failed.fail(effect.window)
            if effect.action is OnError.DEAD_LETTER:
                done.dead_letters.append(self._task.dead_letter(effect.window, effect.error))
            elif effect.report:
                self._reported += 1
                if self._reported <= LAST_KEPT:
                    _log.warning("%s", effect)


def copy_of_row(row: Any) -> Any:
    """Return a copy of a row and of the lists, dicts, sets and tuples in it, in which all other objects are the same."""
    kind = type(row)
    if kind is dict:
        return {name: copy_of_row(value) for name, value in row.items()}
    if isinstance(row, tuple) and hasattr(row, "_make"):
        return row._make(map(copy_of_row, row))
    return kind(map(copy_of_row, row)) if kind in (list, set, tuple) else row


# -- FailedTuples ------------------------------------------------------------------------------------------------------------------


class FailedTuples:
    """The failed tuples of the windows of a run: each fails once, and is not acked afterwards.

        window   a  x  x        x is one object that was added twice: two tuples that differ only by position
                 .  f  f        the bolt fails on it: both fail, and so does a
        window      x  x  b     the same two, so only b fails anew

    Law: of several tuples that are one object, the first to arrive is the first to leave a window. Which of them expires first is
    unknown and does not matter: as many are not acked as have failed. `show` is called for each window before `fail`. Cost: O(its
    tuples) a window that fails, or that follows one with failed tuples; O(1) for each tuple that expires.
    """

    def __init__(self) -> None:
        self._shown: dict[Any, dict[int, list[bool]]] = {}
        """For each key whose last window has failed tuples: for each object, whether its first, second, ... occurrence failed."""
        self._failed: dict[int, list[Any]] = {}
        """The tuples that have failed and not expired yet, by id(); they are referenced, so that no other object gets the id."""

    def show(self, window: TupleWindow) -> None:
        """Record a window, with those of its tuples that the last window of its key did not hold."""
        before = self._shown.pop(window.key, None)
        if before is None:
            return
        rows = tuples_of(window) or ()
        now = _none_failed(rows)
        new = window.get_new() if rows else ()
        for row in new:
            now[id(row)].pop()
        for name, held in now.items():
            if held:
                held[:] = before[name][-len(held) :]
        for row in new:
            now[id(row)].append(False)
        if any(True in flags for flags in now.values()):
            self._shown[window.key] = now

    def fail(self, window: TupleWindow) -> list[Any]:
        """Fail the tuples of the window that was shown last for its key; return those that had not failed before."""
        failed, rows = [], tuples_of(window) or ()
        shown = self._shown.setdefault(window.key, _none_failed(rows)) if rows else {}
        for row in rows:
            flags = shown[id(row)]
            if False in flags:
                flags[flags.index(False)] = True
                failed.append(row)
                self._failed.setdefault(id(row), []).append(row)
        return failed

    def expire(self, rows: Sequence[Any], key: Any = None) -> int:
        """Return how many of the tuples of a key that have expired are acked: those that had not failed."""
        acked = 0
        for row in rows:
            same = self._failed.get(id(row))
            if same is None:
                acked += 1
                continue
            same.pop()
            if not same:
                del self._failed[id(row)]
        if key in self._shown and self._failed.keys().isdisjoint(self._shown[key]):
            del self._shown[key]
        return acked


def _none_failed(rows: Sequence[Any]) -> dict[int, list[bool]]:
    flags: dict[int, list[bool]] = {}
    for row in rows:
        flags.setdefault(id(row), []).append(False)
    return flags


# -- run_local ---------------------------------------------------------------------------------------------------------------------


@spelled
def run_local(
    bolt: Any,
    batches: Iterable[LocalBatch],
    *,
    drain: bool = True,
    streams: Sequence[str] = (DEFAULT_STREAM,),
    clock: Clock | None = None,
    restarts: bool = False,
) -> LocalResult:
    """Run a bolt over micro-batches of rows, one turn after each, and return all results. Windows over the clock with
    `semantics="storm"` make a turn only after a batch at whose end a slide has passed since the last turn, as on Spark.

    batches: lists of rows (dicts, namedtuples, objects), or mappings of input streams to such lists. drain: fire the last
    windows at the end. streams, clock, restarts: see LocalRun. Raises BoltError as the bolt's `on_error` says. Warns if no row has
    a usable timestamp. Cost: that of the windows, in memory.

    >>> from windowing import seconds, tumbling
    >>> @tumbling(seconds(10), timestamp="at", output="words long")
    ... def words(window):
    ...     return len(window)
    >>> run_local(words, [[{"at": 1_000}, {"at": 12_000}], [{"at": 3_000}]]).rows
    {'default': [(1,), (1,)]}
    """
    wanted = "run_local takes a list of batches, each a list of rows"
    with LocalRun(bolt, streams=streams, clock=clock, restarts=restarts) as run:
        run_over(run, listed(batches, wanted), drain)
    warn_of_no_times([run._task])
    return run.result


def run_over(run: LocalRun, batches: Iterable[LocalBatch], drain: bool) -> None:
    """Feed a run its micro-batches, and drain it if asked; windows that cannot be drained are refused before the first batch."""
    if drain:
        refuse_drain([run.bolt.config])
    for batch in batches:
        run._batch(batch)
    if drain:
        run.drain()


def _named(streams: Sequence[str]) -> tuple[str, ...]:
    if isinstance(streams, str):
        raise ConfigError(f"streams is a list of input streams, got the text {streams!r}; write streams=({streams!r},)")
    if not isinstance(streams, list | tuple) or not streams or not all(isinstance(each, str) for each in streams):
        raise ConfigError(f"streams is a list of input streams, got {quote(streams)}; write streams=('default',)")
    if len(set(streams)) < len(streams):
        raise ConfigError(f"streams names an input stream twice, got {quote(streams)}; name each once")
    return tuple(streams)


def batch_by_stream(batch: Any, streams: tuple[str, ...]) -> Mapping[str, Iterable[Any]]:
    """Return the rows of a micro-batch by stream. Raises ConfigError for a batch that is neither a list nor such a mapping."""
    if isinstance(batch, Mapping):
        if all(name in streams and is_list(rows) for name, rows in batch.items()):
            return batch
        raise ConfigError(
            f"run_local takes a list of batches, each a list of rows, got {quote(batch)} in place of a batch; write [[row, row]]. "
            f"By input stream a batch is {{{', '.join(f'{stream!r}: [row, row]' for stream in streams)}}}"
        )
    rows = listed(batch, "run_local takes a list of batches, each a list of rows")
    if len(streams) > 1:
        raise ConfigError(
            f"a batch without stream names came to a bolt with the input streams {', '.join(streams)}; "
            f"write {{{streams[0]!r}: rows, ...}}"
        )
    return {streams[0]: rows}
