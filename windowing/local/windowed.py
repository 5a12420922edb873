"""FailedTuples: which tuples have failed, where a bolt says `on_error="fail"`: each once, and none of them is acked.

    window   a  x  x        x is one object that was fed twice: two tuples that only their places tell apart
             .  f  f        the bolt fails on it: both have failed, and a
    window      x  x  b     the same two, so only b fails anew

Law: of tuples that are one object those leave a window first that came first. Which of them expires first cannot be told and does
not matter: as many are not acked as have failed.

What the local driver reads out of a row: its timestamp, its key, its source. The same rules as on Spark.

A row is a record or another mapping, a namedtuple, or any object with attributes. A key or a source that a row lacks is a
mistake of whoever feeds it (ConfigError); a timestamp that is missing, or cannot be used, makes that one tuple invalid.

What a bolt is shown of a window: rows as they are, or with `columnar=` columns.

The runtimes keep rows, which they ack one by one; Arrow is loaded only for a bolt that asks for columns.

WindowTimer: when the windows of one executor want a turn, by the clock that drives them.

| windows over                        | a turn is due                                                              |
|-------------------------------------|----------------------------------------------------------------------------|
| event time                          | every `watermark_interval`                                                 |
| the clock                           | when the next window is, plus 1 ms: this millisecond may bring more tuples |
| the clock, Storm's, a Duration slide | every slide, whether a window is due or not                               |
| the clock, a trigger of one's own   | when it says so (`next_deadline_ms`), else every 100 ms                    |

WindowedBoltTask: a windowed bolt in a cluster. Its tuples are acked when they expire from their last window.

    inbox --> WindowedBoltExecutor --Activation--> the bolt: what it emits is anchored to all tuples of the window
                                   --Late-------> the late stream, anchored to the late tuple; then that is acked
                                   --Expired----> acked, unless it failed before

Turns: over event time every `watermark_interval` of the clock, or when the loop says so (`by_hand`: after each batch); over
the clock when a window is due. Windows that outlive the process are in checkpoints.py. Source: Storm's `WindowedBoltExecutor`, its
half with emits, acks and timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from windowing.codec import NAN
from windowing.errors import (
    BoltError,
    ConfigError,
    FailedException,
    InvalidTimestampError,
    ReportedFailedException,
    describe_error,
    quote,
)
from windowing.local.router import Delivery, Outbox, Router
from windowing.local.tasks import Task, unsettled
from windowing.schema.rows import Record
from windowing.schema.tuples import late_values
from windowing.schema.values import timestamp_of
from windowing.topology.bolts import WindowedBolt
from windowing.topology.components import TaskContext
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.plan import Component
from windowing.topology.user_code import BoltRunner, TimestampFunction, warn_of
from windowing.windows.config import OnError, Semantics
from windowing.windows.events import Activation, Effect, Expired, Late, TupleWindow
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.measures import Duration
from windowing.windows.storm import StormMachine

__all__ = [
    "FailedTuples",
    "TupleColumns",
    "WindowTimer",
    "WindowedBoltTask",
    "field_of",
    "key_of",
    "require_hash",
    "shown_to",
    "source_of",
    "streams_of",
    "timestamps_of",
    "with_tables",
]


class FailedTuples:
    """The windows of a run, each shown before it may fail. Cost: O(its tuples) a window, O(1) for each one that expires.

    >>> tuples = FailedTuples()
    >>> tuples.show(None, ["a", 2, 2], new=["a", 2, 2])
    >>> tuples.fail(None, ["a", 2, 2])
    ['a', 2, 2]
    >>> tuples.show(None, [2, 2, "b"], new=["b"])
    >>> tuples.fail(None, [2, 2, "b"]), tuples.expire(["a", 2, "c"])
    (['b'], 2)
    """

    def __init__(self) -> None:
        self._shown: dict[Any, dict[int, list[bool]]] = {}
        """For each key the tuples of its last window: for each object, whether the first, the second, ... of them has failed."""
        self._failed: dict[int, list[Any]] = {}
        """The tuples that have failed and not expired yet, by object; they are kept, so that an id stays their own."""

    def show(self, key: Any, rows: Sequence[Any], new: Sequence[Any]) -> None:
        """Take note of a window and of those of its tuples that the last one of this key did not hold."""
        before = self._shown.get(key, {})
        now = self._shown[key] = {id(row): [] for row in rows}
        for row in rows:
            now[id(row)].append(False)
        for row in new:
            now[id(row)].pop()
        for name, held in now.items():
            if held:
                held[:] = before[name][-len(held) :]
        for row in new:
            now[id(row)].append(False)

    def fail(self, key: Any, rows: Sequence[Any]) -> list[Any]:
        """Fail the tuples of the window that was shown last for this key; return those that had not failed before."""
        failed = []
        for row in rows:
            flags = self._shown[key][id(row)]
            if False in flags:
                flags[flags.index(False)] = True
                failed.append(row)
                self._failed.setdefault(id(row), []).append(row)
        return failed

    def expire(self, rows: Sequence[Any]) -> int:
        """Let tuples go; return how many of them had failed."""
        failed = 0
        for row in rows:
            same = self._failed.get(id(row))
            if same:
                same.pop()
                failed += 1
                if not same:
                    del self._failed[id(row)]
        return failed


# -- What the local driver reads out of a row ------------------------------------------------------------------------------------


def field_of(row: Any, name: str) -> Any:
    """Return the value of the field `name`, or raise ConfigError if the row has none.

    >>> field_of({"origin": "JFK"}, "origin")
    'JFK'
    """
    if isinstance(row, Mapping | Record):
        values = row._asdict() if isinstance(row, Record) else row
        if name in values:
            return values[name]
        has = ", ".join(map(str, values))
    else:
        try:
            return getattr(row, name)
        except AttributeError:  # any other error is the user's own code's
            has = ", ".join(getattr(row, "_fields", ())) or "no such attribute"
    raise ConfigError(
        f"field {name!r} is asked for, but a row has {has}: {quote(row)}; name another field, or give every row this one"
    )


def timestamps_of(
    rows: Iterable[Any], timestamp: str | Callable[[Any], Any], bolt: str, on_invalid: str = "late"
) -> tuple[list[int | None], str | None]:
    """Return the timestamp of each row, None where it has no usable one, and what was wrong the first time.

    A row without the field has none, and neither has one on which the function fails: with `on_invalid="raise"` that is an
    InvalidTimestampError. What a field holds is judged by the windows.

    >>> timestamps_of([{"at": 1.0}, {"at": "soon"}], "at", "count"), timestamps_of([{}], lambda row: row["at"], "count")[0]
    (([1, None], None), [None])
    """
    if not isinstance(timestamp, str):
        stamp = TimestampFunction(timestamp, bolt, on_invalid)
        return [stamp(row) for row in rows], stamp.problem
    found: list[int | None] = []
    first: str | None = None
    for row in rows:
        try:
            found.append(timestamp_of(field_of(row, timestamp)))
        except Exception as problem:
            text = f"bolt {bolt!r}: {describe_error(problem)}"
            if on_invalid == "raise":
                raise InvalidTimestampError(text) from problem
            found.append(None)
            first = first or text
    return found, first


def key_of(row: Any, names: tuple[str, ...]) -> Any:
    """Return the key of a row: a value, or a tuple of them where several fields make it. All NaN are one key."""
    values = tuple(_one_nan(field_of(row, name)) for name in names)
    return values[0] if len(values) == 1 else values


def require_hash(bolt: str, names: tuple[str, ...], keys: Iterable[Any]) -> None:
    """Raise ConfigError for the first of these keys that has no hash. To be asked when one has failed: most have."""
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


def _one_nan(value: Any) -> Any:
    return NAN if isinstance(value, float) and value != value else value


# -- What a bolt is shown of a window --------------------------------------------------------------------------------------------


def shown_to(form: str | None, window: TupleWindow) -> TupleWindow:
    """Return the window as a bolt with `columnar=form` is to see it."""
    if form is None:
        return window
    from windowing.columnar import viewed

    return viewed(window, form)


def with_tables(executor: WindowedBoltExecutor) -> WindowedBoltExecutor:
    """Give an executor whose bolt has both `aggregate=` and `columnar=` the machine that hands out one table for all keys."""
    config = executor.config
    if config.columnar is not None and config.aggregate is not None:
        from windowing.columnar import over_columns

        return over_columns(executor)
    return executor


# -- WindowTimer -----------------------------------------------------------------------------------------------------------------


@runtime_checkable
class _Waking(Protocol):
    """A machine that knows when it has something to do."""

    def next_deadline_ms(self) -> int | None: ...


class WindowTimer:
    """Says when to call `turn` of an executor; whoever turns says so by `turned`."""

    __slots__ = ("_every_ms", "_executor", "_turned_ms")

    def __init__(self, executor: WindowedBoltExecutor) -> None:
        config = executor.config
        self._executor = executor
        self._turned_ms: int | None = None
        self._every_ms: int | None = None
        if config.event_time:
            self._every_ms = config.watermark_interval_ms
        elif config.semantics is Semantics.STORM and isinstance(config.slide, Duration):
            self._every_ms = config.slide.ms
        elif isinstance(executor.manager, StormMachine):
            self._every_ms = executor.manager.tick_interval_ms

    def start(self, now_ms: int) -> None:
        """Begin: the first interval is counted from now."""
        self._turned_ms = now_ms

    turned = start

    def next_deadline_ms(self) -> int | None:
        """Return the clock's time from which on a turn is due, None while there is nothing to wait for."""
        if self._every_ms is not None:
            return None if self._turned_ms is None else self._turned_ms + self._every_ms
        manager = self._executor.manager
        due = manager.next_deadline_ms() if isinstance(manager, _Waking) else None
        if due is None or self._turned_ms is None:
            return None if due is None else due + 1
        return max(due, self._turned_ms) + 1  # a trigger that always wants a tick gets one a millisecond

    def due(self, now_ms: int) -> bool:
        """Whether a turn is due."""
        deadline_ms = self.next_deadline_ms()
        return deadline_ms is not None and now_ms >= deadline_ms


# -- WindowedBoltTask ------------------------------------------------------------------------------------------------------------


class TupleColumns(NamedTuple):
    """What windows want to know of some tuples, as parallel lists; None where the definition names no such field.

    One text for the stream of all.
    """

    timestamps: list[int | None] | None
    streams: str | list[str]
    keys: list[Any] | None
    sources: list[str | None] | None


def streams_of(component: Component) -> dict[tuple[str, str], str]:
    """Return what an executor calls the streams that a bolt reads, by component and stream."""
    return {(found.component, found.stream): f"{found.component}:{found.stream}" for found in component.inputs}


class WindowedBoltTask(Task):
    """One task of a windowed bolt. Cost: that of the windows; an emit costs as many edges as its window has tuples.

    `executor` are its windows, in memory and as long as the process if left out.
    """

    def __init__(
        self,
        hub: Router,
        context: TaskContext,
        id: int,
        inbox: deque[Any],
        outbox: Outbox,
        component: Component,
        by_hand: bool = False,
        *,
        executor: WindowedBoltExecutor | None = None,
    ) -> None:
        super().__init__(hub, context, id, inbox)
        assert component.window is not None
        self.bolt: WindowedBolt = replace(component.window, name=component.id)
        self.config = self.bolt.config
        self.by_hand = by_hand and self.config.event_time
        self.runner = BoltRunner(self.bolt)
        streams = tuple(streams_of(component).values())
        self.executor = executor or with_tables(
            WindowedBoltExecutor(self.config, streams, component.id, keep_tuples=bool(hub.ackers))
        )
        self.timer = WindowTimer(self.executor)
        self._streams = streams_of(component)
        late = component.outputs.get(self.config.late_stream or "")
        self._late_fields = () if late is None else late.schema.names[:-1]  # the last is the reason
        self._outbox = outbox
        self._passed: list[Delivery] = []
        self._warned = False
        self._peers: list[WindowedBoltTask] = hub.windowed.setdefault(component.id, [])
        self._peers.append(self)
        self._counts: dict[str, int] = {}

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.runner.open(self.context)
        self.timer.start(self.hub.now_ms)

    def step(self, limit: int | None) -> bool:
        """Let what lies in the inbox arrive, in order."""
        inbox = self.inbox
        if not inbox:
            return False
        if limit is None or limit >= len(inbox):
            arrived = list(inbox)
            inbox.clear()
        else:
            arrived = [inbox.popleft() for _ in range(limit)]
        if self.gate is None:
            self.arrive(arrived)
            return True
        for message in arrived:
            self.gate.take(message)
        self.let_in()
        return True

    def handle(self, message: Delivery) -> None:
        """Take a tuple that the gate let through."""
        self._passed.append(message)

    def let_in(self) -> None:
        """Let what the gate let through arrive, all at once."""
        if self._passed:
            passed, self._passed = self._passed, []
            self.arrive(passed)

    def checkpoint(self, checkpoint: Any) -> None:
        self.let_in()
        super().checkpoint(checkpoint)

    def tick(self) -> None:
        """Make a turn if one is due, after what arrived before it."""
        if not self.by_hand and self.timer.due(self.hub.now_ms):
            self.step(None)
            self.turn()

    def turn(self) -> None:
        """Make a watermark turn (over the clock: a tick of it). By hand the bolt's tasks have one watermark, as on Spark:
        what one of them was handed holds for all.
        """
        if self.by_hand:
            for other in self._peers:
                self.executor.generator.learn(other.executor.generator)
        self.timer.turned(self.hub.now_ms)
        self.perform(self.turned())

    def drain(self) -> None:
        """End the input: fire the last windows too, let everything expire."""
        self.step(None)
        self.perform(self.drained())

    def next_deadline_ms(self) -> int | None:
        return None if self.by_hand or self.executor.closed else self.timer.next_deadline_ms()

    def close(self) -> None:
        self.runner.close()

    # -- the work ------------------------------------------------------------------------------------------------------

    def arrive(self, arrived: list[Delivery]) -> None:
        """Offer tuples to the windows, in order."""
        executor = self.executor
        executor.set_clock(self.hub.now_ms)
        if not self.config.event_time and not executor.closed and self.timer.due(self.hub.now_ms):
            self.turn()
        self.perform(self.offered(arrived, self._columns(arrived)))

    def _columns(self, arrived: list[Delivery]) -> TupleColumns:
        config = self.config
        key, source = config.key, config.source
        return TupleColumns(
            None if config.timestamp is None else self._timestamps(arrived, config.timestamp),
            self._stream_of(arrived),
            None if key is None else [key_of(row, key) for row in arrived],
            None if source is None else [source_of(row, source) for row in arrived],
        )

    def _timestamps(self, arrived: list[Delivery], timestamp: str | Callable[[Any], Any]) -> list[int | None]:
        timestamps, problem = timestamps_of(arrived, timestamp, self.bolt.name, self.config.on_invalid)
        if problem is not None and not self._warned:
            self._warned = True
            warn_of(problem)
        return timestamps

    def _stream_of(self, arrived: list[Delivery]) -> str | list[str]:
        if len(self._streams) == 1:
            return next(iter(self._streams.values()))
        return [self._streams[row._origin.component, row._origin.stream] for row in arrived]

    def offered(self, arrived: list[Delivery], columns: TupleColumns) -> Iterator[Any]:
        """Offer tuples to the windows; return the effects."""
        timestamps, stream, keys, sources = columns
        effects = self.executor.add_batch(arrived, timestamps, stream=stream, keys=keys, sources=sources)
        return (effect for _, effect in effects)

    def turned(self) -> Iterator[Any]:
        """Return the effects of a turn."""
        self.executor.set_clock(self.hub.now_ms)
        return self.executor.turn()

    def drained(self) -> Iterator[Any]:
        """Return the effects of the end of the input."""
        self.executor.set_clock(self.hub.now_ms)
        return self.executor.drain()

    def perform(self, effects: Iterator[Any]) -> None:
        """Do what the windows say, each before the next is taken."""
        for effect in effects:
            self.perform_one(effect)
        counts, before = self.executor.counts(), self._counts
        total = self.hub.result.counts.setdefault(self.context.component, dict.fromkeys(counts, 0))
        for name, count in counts.items():
            total[name] += count - before.get(name, 0)
        self._counts = counts

    def perform_one(self, effect: Effect) -> None:
        """Do what one effect says."""
        if isinstance(effect, Activation):
            self._fire(effect.window)
        elif isinstance(effect, Expired):
            self.expired(effect)
        else:
            assert isinstance(effect, Late)
            self._late(effect.payloads, effect.reason.value)

    # -- windows -------------------------------------------------------------------------------------------------------

    def _fire(self, window: TupleWindow) -> None:
        try:
            outcome = self.runner.attempt(shown_to(self.config.columnar, window))
        except BoltError as error:
            if not isinstance(error.__cause__, FailedException):
                raise
            self.fail_window(window, error)
            return
        if outcome.error is not None:
            self._deal_with(window, outcome.error)
            return
        if outcome.emissions:
            anchors = self.anchors_of(window)
            for stream, values in outcome.emissions:
                self._outbox.send(stream, values, anchors)

    def anchors_of(self, window: TupleWindow) -> Sequence[Any]:
        """Return the anchors of what a window emits."""
        return unsettled(window.get()) if self.hub.ackers else ()

    def _deal_with(self, window: TupleWindow, error: BoltError) -> None:
        """Do with a window on which the bolt failed what `on_error` says."""
        if self.config.on_error is OnError.FAIL:
            self.fail_window(window, error)
        elif self.config.on_error is OnError.DEAD_LETTER:
            self._bury(window, error)
        else:
            self.report(error)

    def _bury(self, window: TupleWindow, error: BoltError) -> None:
        """Make a dead letter of a window, and send it to whoever reads it."""
        letter = DeadLetter.of_window(self.bolt.name, self.context.task_index, error, window)
        self.hub.result.dead_letters.append(letter)
        if self._outbox.is_read(DEAD_LETTERS):
            self._outbox.send(DEAD_LETTERS, letter.row(), self.anchors_of(window))

    def fail_window(self, window: TupleWindow, error: BoltError) -> None:
        """Fail each tuple of the window, once; it stays in its other windows, and is not acked later."""
        if not isinstance(error.__cause__, FailedException) or isinstance(error.__cause__, ReportedFailedException):
            self.report(error)
        rows = window.get()
        if any(row._anchors is not None for row in rows):
            self.fail(rows)
        else:
            self._bury(window, error)  # nothing of it is sent again

    def report(self, error: BaseException) -> None:
        """Keep an error for whoever looks at the result."""
        self.hub.report(self.context.component, self.context.task_index, error)

    def _late(self, rows: Sequence[Any], reason: str) -> None:
        where = (self.context.component, reason)
        self.hub.result.late[where] = self.hub.result.late.get(where, 0) + len(rows)
        late_stream = self.config.late_stream
        if late_stream is not None:
            for row in rows:
                delivery = self.delivery(row)
                values = (*late_values(delivery, self._late_fields), reason)
                self._outbox.send(late_stream, values, unsettled((delivery,)))
        self.ack(rows)

    # -- acks ----------------------------------------------------------------------------------------------------------

    def delivery(self, row: Any) -> Delivery:
        """Return the delivery that brought a tuple which was offered just now."""
        assert isinstance(row, Delivery)
        return row

    def expired(self, effect: Expired) -> None:
        """Settle tuples that no window will hold any more."""
        self.ack(effect.get() or ())

    def ack(self, rows: Iterable[Any]) -> None:
        """Ack the tuples that were neither acked nor failed."""
        for anchors in unsettled(rows):
            self.hub.ack(anchors, self.context.component)

    def fail(self, rows: Iterable[Any]) -> None:
        """Fail the tuples that were neither acked nor failed."""
        for anchors in unsettled(rows):
            self.hub.fail(anchors, self.context.component)
