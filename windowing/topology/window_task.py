"""WindowTask: the processing around the windows of one task of a bolt, the same for all drivers.

    rows --columns()--> timestamps, streams, keys, sources, ids
    add, turn, drain -> WindowedBoltExecutor --Activation--> the bolt --> WindowEmitted, or WindowFailed as `on_error` says
                                             --Late, Expired--------------> unchanged

A driver (LocalRun, a task of LocalCluster or of Trident, a micro-batch on Spark) performs the effects. It performs each before it
requests the next, so a window is valid while its rows are sent and anchored to its tuples.

| the bolt raised     | on_error="raise"               | "fail"    | "skip"    | "dead_letter" |
|---------------------|--------------------------------|-----------|-----------|---------------|
| a FailedException   | as FailTarget says             | FAIL      | SKIP      | DEAD_LETTER   |
| another exception   | the BoltError leaves the task  | FAIL      | SKIP      | DEAD_LETTER   |

| windows over                         | `next_deadline_ms`: an advance is due                                      |
|--------------------------------------|----------------------------------------------------------------------------|
| event time                           | every `watermark_interval`                                                 |
| the clock                            | 1 ms after the next window is due: this one may still get more tuples      |
| the clock, Storm's, a Duration slide | every slide, whether a window is due or not                                |
| the clock, a user's own trigger      | at its `next_deadline_ms`, else every 100 ms                               |

Laws: a late tuple is acked at once, any other when it expires from its last window, unless it failed before. A tuple whose id was
processed before is in no window again; ids are stored with their tuples, or not at all. A row without its key, source or id raises
ConfigError, because its sender must be corrected; a timestamp that is missing or unusable makes only that tuple invalid.

Source: Storm's `WindowedBoltExecutor`, the half with emits and acks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from traceback import clear_frames
from typing import Any, NamedTuple

from windowing.errors import (
    BoltError,
    ConfigError,
    FailedException,
    InvalidTimestampError,
    ReportedFailedException,
    describe_error,
    quote,
    warn,
    with_causes,
)
from windowing.schema.checks import DEFAULT_STREAM
from windowing.schema.rows import Record, columns_of, field_names
from windowing.schema.tuples import Tuple
from windowing.schema.values import TIMESTAMP_BOUND, timestamp_of
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.state import require_undo
from windowing.topology.user_code import BoltRunner, Emission, Fitted, TimestampFunction, warn_of
from windowing.windows.aggregate import title_of
from windowing.windows.config import OnError, Semantics
from windowing.windows.deduplicator import Deduplicator
from windowing.windows.events import Activation, Effect, LateReason, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor, unusable_timestamp
from windowing.windows.key_state import one_nan_in
from windowing.windows.recovery import Absorbed, Missed, WindowRecovery


class FailTarget(Enum):
    """What fails if the bolt raises a FailedException and `on_error` is "raise"."""

    TUPLES = "the tuples of the window, back to their spouts"
    BATCH = "the batch: the FailedException leaves the task"
    RUN = "the run: the BoltError leaves the task, for nobody takes fails"


class WindowEmitted(NamedTuple):
    """The rows that the bolt emitted on a window, in order; they are anchored to the window's tuples."""

    window: TupleWindow
    emissions: list[Emission]


class WindowFailed(NamedTuple):
    """The bolt failed on a window: the driver performs `action` (never RAISE).

    report: whether the error is reported. A plain FailedException is not if the tuples of the window come again, which those that
    fail do, unless `message_id=` drops them as repeated.
    """

    window: TupleWindow
    error: BoltError
    action: OnError
    report: bool

    def __str__(self) -> str:
        return f"{self.error.args[0]}; {'it is skipped' if self.action is OnError.SKIP else 'its tuples fail'}"


TaskEffect = Effect | WindowEmitted | WindowFailed | Absorbed | Missed


class TupleColumns(NamedTuple):
    """The values of some tuples that windows need, as parallel lists; None where the definition names no such field.

    streams: one name for all tuples, or one for each. problem: the reason why the first unusable timestamp was refused, for a
    warning.
    """

    timestamps: Sequence[Any] | None
    streams: str | Sequence[str] = DEFAULT_STREAM
    keys: Sequence[Any] | None = None
    sources: Sequence[Any] | None = None
    ids: Sequence[Any] | None = None
    problem: str | None = None

    def take(self, kept: Sequence[int]) -> TupleColumns:
        """Return the values of the tuples at these positions."""

        def chosen(column: Any) -> Any:
            return column if column is None or isinstance(column, str) else [column[at] for at in kept]

        return TupleColumns(*map(chosen, self))


class WindowTask:
    """One task of a windowed bolt. Cost: that of the windows, and one call of the bolt for each window that fires.

    recovery: for tuples that are sent again after a restart; its executor is `executor`. view: converts a window before the bolt
    gets it. call: calls the bolt on a window, `runner.run` by default. fitted: see BoltRunner.
    """

    def __init__(
        self,
        bolt: WindowedBolt,
        executor: WindowedBoltExecutor,
        fail_target: FailTarget,
        *,
        recovery: WindowRecovery | None = None,
        view: Callable[[TupleWindow], TupleWindow] | None = None,
        call: Callable[[TupleWindow], list[Emission]] | None = None,
        fitted: Fitted | None = None,
    ) -> None:
        self.bolt, self.config = bolt, bolt.config
        self.executor, self.recovery = executor, recovery
        self.turned_ms: int | None = None
        """When an interval began, by an advance or at the start."""
        self.runner = BoltRunner(bolt, fitted)
        self.known = None if self.config.message_id is None else Deduplicator(f"bolt {bolt.name!r}")
        self.failures = 0
        self._fail_target = fail_target
        run = self.runner.run
        self._call = call or (run if view is None else lambda window: run(view(window)))
        self._task = 0
        self._state: Any = None
        self.is_unit_checked = False
        """Whether the first timestamps were looked at: seconds, or no times at all, are warned of once."""
        self._event_time = self.config.event_time

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self, context: TopologyContext, state: Any = None) -> None:
        """Make the bolt's instance, with its state. Raises ConfigError for a state that cannot undo the writes of a call."""
        if state is not None:
            require_undo(context.called("bolt"), state)
        self._task, self._state = context.task_index, state
        self.runner.open(context, state)

    def before_commit(self, txid: int) -> None:
        """Call the hooks of a stateful bolt; the driver then commits its state."""
        if self._state is not None:
            self.runner.hook("pre_prepare", txid)
            self.runner.hook("pre_commit", txid)

    def close(self) -> None:
        """Shut down the user's triggers, then call the bolt's `cleanup`, each once."""
        try:
            self.executor.manager.shutdown()
        finally:
            self.runner.close()

    # -- tuples and advances -------------------------------------------------------------------------------------------

    def columns(self, rows: Sequence[Any], streams: str | Sequence[str] = DEFAULT_STREAM) -> TupleColumns:
        """Return the values that the windows need of these rows. Raises ConfigError for a row without its key, source or id."""
        config, timestamps, problem = self.config, None, None
        key, source, id_field = config.key, config.source, config.message_id
        if config.timestamp is not None:
            timestamps, problem = timestamps_of(rows, config.timestamp, self.bolt.name, config.on_invalid)
            if timestamps and not self.is_unit_checked:
                problem = self.check_unit(rows, timestamps, problem)
        try:
            return TupleColumns(
                timestamps,
                streams,
                None if key is None else keys_of(rows, key),
                None if source is None else [source_of(row, source) for row in rows],
                None if id_field is None else [field_of(row, id_field) for row in rows],
                problem,
            )
        except ConfigError as error:
            raise ConfigError(f"bolt {self.bolt.name!r}: {error.args[0]}") from error.__cause__

    def check_unit(self, rows: Sequence[Any], timestamps: Sequence[int | None], problem: str | None) -> str | None:
        """Look at the first timestamps that are not null: warn of another unit, and return `problem`, or that none of them is a
        time.
        """
        named, usable = self.config.timestamp, (ms for ms in timestamps if ms is not None and abs(ms) < TIMESTAMP_BOUND)
        first = next(usable, None)
        if problem is None and first is None:
            values = (field_of(row, named) for row in rows) if isinstance(named, str) else ()
            value = next((found for found in values if found is not None), None)
            if value is None:
                return None
            problem = (
                f"bolt {self.bolt.name!r}: no row so far has a usable timestamp in {named!r}, the first one is {quote(value)}; "
                "wanted whole milliseconds since 1970, or a datetime"
            )
        self.is_unit_checked = True
        doubt = probably_another_unit(self.bolt.name, "first timestamp", first, named)
        if doubt is not None:
            warn(doubt)
        return problem

    def next_deadline_ms(self) -> int | None:
        """Return the clock's time at which the next advance is due, None if none is."""
        manager, config = self.executor.manager, self.config
        every_ms = config.watermark_interval_ms if self._event_time else manager.tick_interval_ms
        if every_ms is not None:
            return None if self.turned_ms is None else self.turned_ms + every_ms
        due = manager.next_deadline_ms()
        if due is None or self.turned_ms is None:
            return None if due is None else due + 1
        return max(due, self.turned_ms) + 1  # a trigger that always requests a tick gets one a millisecond

    def is_due(self, now_ms: int) -> bool:
        """Return whether an advance is due by the clock."""
        deadline_ms = self.next_deadline_ms()
        return deadline_ms is not None and now_ms >= deadline_ms

    def fires_first(self, timed: bool = True) -> bool:
        """Return whether windows over the clock that are due fire before tuples that arrive now. Storm's timer ticks after them.

        timed: whether the driver has a timer. One without makes a turn before the tuples of a batch and one after them, as if the
        clock had ticked between the batches; but a user's trigger gets one tick, after the tuples.
        """
        config, recovery = self.config, self.recovery
        if self._event_time or config.semantics is Semantics.STORM or self.executor.manager.closed:
            return False
        return (timed or config.trigger is None) and not (recovery is not None and recovery.recovering)

    def must_wait(self, now_ms: int) -> bool:
        """Return whether an advance at the end of a batch comes before Storm's timer would tick, for a driver without a timer. The
        first call starts the timer.
        """
        return not self._event_time and self.executor.manager.must_wait(now_ms)

    def add(
        self, rows: Sequence[Any], columns: TupleColumns, now_ms: int | None, channels: Sequence[Hashable] | None = None
    ) -> Iterator[TaskEffect]:
        """Add tuples to the windows, in order. channels: on which their ids are unique, for an executor that deduplicates them."""
        return self.perform(self._added(rows, columns, now_ms, channels))

    def turn(self, now_ms: int | None) -> Iterator[TaskEffect]:
        """Advance the watermark (over the clock: tick it)."""
        if now_ms is not None:
            self.turned_ms = now_ms
        if self.recovery is not None:
            assert now_ms is not None
            return self.perform(self.recovery.turn(now_ms))
        if now_ms is not None:
            self.executor.set_clock(now_ms)
        return self.perform(self.executor.turn())

    def drain(self) -> Iterator[TaskEffect]:
        return self.perform((self.recovery or self.executor).drain())

    def perform(self, effects: Iterable[Any]) -> Iterator[Any]:
        """Call the bolt on each window that fires; yield the effects that are left for the driver."""
        call = self._call
        on_disk = self.config.max_events_in_memory is not None
        for effect in effects:
            if type(effect) is Activation:
                window, failed = effect.window, None
                if self._state is not None:
                    self._state.begin()
                try:
                    emissions = call(window)
                except BoltError as error:
                    if not on_disk or self.executor.store_failure is None:
                        failed = self._failure(window, error)
                if on_disk and self.executor.store_failure is not None:
                    raise self.executor.store_failure  # not the bolt's own error, which may be skipped, or caught by the bolt
                if failed is not None:
                    yield failed
                elif emissions:
                    yield WindowEmitted(window, emissions)
            else:
                yield effect

    def dead_letter(self, window: TupleWindow, error: BoltError) -> DeadLetter:
        return DeadLetter.of_window(self.bolt.name, self._task, error, window)

    def _added(
        self, rows: Sequence[Any], columns: TupleColumns, now_ms: int | None, channels: Sequence[Hashable] | None
    ) -> Iterator[Any]:
        timestamps, streams, keys, sources, ids, _ = columns
        try:
            if self.recovery is not None:
                assert now_ms is not None
                assert channels is not None
                yield from _offered(self.recovery, rows, columns, now_ms, channels)
                return
            if now_ms is not None:
                self.executor.set_clock(now_ms)
            identities: dict[str, Any] = {} if channels is None else {"channels": channels, "message_ids": ids}
            for _, effect in self.executor.add_batch(
                rows, timestamps, stream=streams, keys=keys, sources=sources, **identities
            ):
                yield effect
        except Exception:
            _require_hash(self.bolt.name, self.config.key or (), keys or ())
            raise

    def _failure(self, window: TupleWindow, error: BoltError) -> WindowFailed:
        """Return the action of `on_error`, or raise if that is to raise."""
        cause, action = error.__cause__, self.config.on_error
        failed_by_user = isinstance(cause, FailedException)
        if action is OnError.RAISE:
            if not failed_by_user or self._fail_target is FailTarget.RUN:
                raise error
            if self._fail_target is FailTarget.BATCH:
                assert cause is not None
                raise cause from None
            action = OnError.FAIL
        self.failures += 1
        if self._state is not None:
            self._state.undo()
        # A driver may keep the error for the whole run, and its variables hold tuples of the window.
        for each in with_causes(error):
            clear_frames(each.__traceback__)
        is_lost = action is OnError.SKIP or self.config.message_id is not None
        report = is_lost or not failed_by_user or isinstance(cause, ReportedFailedException)
        return WindowFailed(window, error, action, report)


def _offered(
    recovery: WindowRecovery, rows: Sequence[Any], columns: TupleColumns, now_ms: int, channels: Sequence[Hashable]
) -> Iterator[Any]:
    """Offer tuples to a recovery, which classifies each by its id."""
    timestamps, streams, keys, sources, ids, _ = columns
    assert ids is not None
    for at, row in enumerate(rows):
        yield from recovery.offer(
            row,
            channels[at],
            ids[at],
            None if timestamps is None else timestamps[at],
            now_ms=now_ms,
            stream=streams if isinstance(streams, str) else streams[at],
            key=None if keys is None else keys[at],
            source=None if sources is None else sources[at],
        )


# -- values of a row ---------------------------------------------------------------------------------------------------------------


def field_of(row: Any, name: str) -> Any:
    """Return the value of the field `name`, or raise ConfigError if the row has none.

    >>> field_of({"origin": "JFK"}, "origin")
    'JFK'
    """
    if isinstance(row, (Record, Tuple, Mapping)):
        names = field_names(row)
        if name in names:
            return row[name]
        has = ", ".join(map(str, names))
    else:
        try:
            return getattr(row, name)
        except AttributeError:  # any other exception is raised by the user's own code
            has = ", ".join(getattr(row, "_fields", ())) or "no such attribute"
        if type(row) in (tuple, list, str, int, float, type(None)):
            raise ConfigError(
                f"field {name!r} is asked for, but a row is {quote(row)}, which has no names; give dicts, "
                f"{{{name!r}: ...}}, namedtuples or other objects with attributes"
            )
    raise ConfigError(
        f"field {name!r} is asked for, but a row has {has}: {quote(row)}; name another field, or give every row this one"
    )


def warn_of_no_times(tasks: Sequence[WindowTask]) -> None:
    """Warn at the end of a run if no row of these tasks of a bolt had a timestamp: each was null, which alone is no mistake."""
    found = [(task.executor.side[LateReason.INVALID.value], task.executor.counts()["in"]) for task in tasks]
    invalid, arrived = (sum(counts) for counts in zip(*found, strict=True))
    if not invalid or invalid < arrived or any(task.is_unit_checked for task in tasks):
        return
    bolt = tasks[0].bolt
    named = bolt.config.timestamp
    by_field = f"in {named!r}, which is None in all of them"
    why = by_field if isinstance(named, str) else f"because {title_of(named)!r} returned None for each"
    warn_of(f"bolt {bolt.name!r}: no row has a timestamp {why}")


_UNITS = (
    (10**9, "in January or February of 1970", "seconds", "* 1000"),
    (10**15, "after the year 33,000", "microseconds", "// 1000"),
    (10**18, "after the year 30,000,000", "nanoseconds", "// 1_000_000"),
)
"""The years from 2001 to 2096 in other units than milliseconds are between the first number and four times of it."""


def field_named(timestamp: Any) -> str:
    """Return the field of a bolt's timestamps for a line of code, dots for a function's."""
    return quote(timestamp) if isinstance(timestamp, str) else "..."


def probably_another_unit(bolt: str, what: str, ms: int | None, timestamp: Any = None) -> str | None:
    """Return a sentence about a time of a bolt, called `what`, that is probably no number of milliseconds; None for another one.
    timestamp: the field that it is from, or its function.
    """
    for first, then, unit, conversion in _UNITS:
        if ms is not None and first <= ms < 4 * first:
            return (
                f"bolt {bolt!r}: its {what} is {ms}, which as milliseconds since 1970 is {then}; "
                f"if these are {unit}, give milliseconds: timestamp=lambda row: row[{field_named(timestamp)}] {conversion}, say"
            )
    return None


def timestamps_of(
    rows: Sequence[Any], timestamp: str | Callable[[Any], Any], bolt: str, on_invalid: str = "late"
) -> tuple[list[int | None], str | None]:
    """Return the timestamp of each row, None if it has no usable one, and the reason for the first such row.

    It is None for a row without the field, or with a value that is no time, and for one on which the function fails; with
    `on_invalid="raise"` each raises InvalidTimestampError.

    >>> timestamps_of([{"at": 1.0}, {"at": "soon"}], "at", "count"), timestamps_of([{}], lambda row: row["at"], "count")[0]
    (([1, None], None), [None])
    """
    if not isinstance(timestamp, str):
        stamp = TimestampFunction(timestamp, bolt, on_invalid)
        return [stamp(row) for row in rows], stamp.problem
    found: list[int | None] = []
    first: str | None = None
    columns = columns_of(rows, (timestamp,))
    with suppress(Exception):  # the loop finds the row that has raised it
        column = [] if columns is None else list(columns[0])
        found = column if {int}.issuperset(map(type, column)) else list(map(timestamp_of, column))
    for row in rows[len(found) :]:
        try:
            found.append(timestamp_of(field_of(row, timestamp)))
        except Exception as problem:
            why = problem.args[0] if isinstance(problem, ConfigError) else describe_error(problem)
            text = f"bolt {bolt!r}: {why}"
            if on_invalid == "raise":
                raise InvalidTimestampError(text) from problem
            found.append(None)
            first = first or text
    if on_invalid == "raise" and None in found:
        raise unusable_timestamp(bolt, timestamp, quote(field_of(rows[found.index(None)], timestamp)))
    return found, first


def keys_of(rows: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
    """Return the key of each row: a value, or a tuple of values for a key of several fields. All NaN are one key."""
    columns = columns_of(rows, names)
    if columns is None:
        columns = list(zip(*([field_of(row, name) for name in names] for row in rows), strict=True))
    keys = [one_nan_in(list(column)) for column in columns]
    return keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))


def _require_hash(bolt: str, names: tuple[str, ...], keys: Iterable[Any]) -> None:
    """Raise ConfigError for the first key without a hash. Called only after an exception, because nearly all keys have one."""
    for key in keys:
        for name, value in zip(names, key if len(names) > 1 else (key,), strict=True):
            try:
                hash(value)
            except Exception as problem:
                why = "" if isinstance(problem, TypeError) else f" (its __hash__ raised {describe_error(problem)})"
                raise ConfigError(
                    f"key of bolt {bolt!r} names field {name!r}, which is {quote(value)} in a row, a {type(value).__name__} "
                    f"without a hash{why}; give a field of plain values, or of tuples of such"
                ) from None


def source_of(row: Any, name: str) -> str | None:
    """Return the source of a row as text, None for none."""
    value = field_of(row, name)
    try:
        return None if value is None else str(value)
    except Exception as problem:
        raise ConfigError(
            f"source= names field {name!r}, which is {quote(value)} in a row: no text, {describe_error(problem)}; "
            "give one of plain values"
        ) from problem
