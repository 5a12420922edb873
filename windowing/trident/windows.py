"""Windows over a stream of batches: each task has a machine of windows/, which each commit advances by one batch.

    batch 4    rows ----> held until the commit phase ----> executor: add, one turn ----> rows of the windows that fire
    batch 5:0  rows ----> held ... dropped, or its commit failed: the machine is restored to its state after batch 4
    batch 5:1  rows ----> held until the commit phase ----> executor ...

Laws: batches enter the windows in the order of their txids, each once despite retries, so a tuple is counted once (in Storm a
retried batch enters again). Windows over the clock that are due fire before the tuples of a batch, as in every runtime. All tasks
of a window have the same watermark: the largest timestamps that are sent to one task go to all of them, as on Spark. With
`timestamp=` the windows are on event time and have a late stream; Storm's Trident windows are on processing time only.
WindowOperation is the operation of a window, LateTuples that of its late stream.
Source: Storm's `WindowTridentProcessor`, `AbstractTridentWindowManager`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from windowing.errors import ConfigError, CorruptStateError, FailedException, WindowingError, quote
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean
from windowing.schema.hashing import hashable
from windowing.schema.rows import record_type
from windowing.schema.types import Row, Schema, chosen, extended
from windowing.schema.values import timestamp_of
from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.rules import REASON, fields_named
from windowing.topology.user_code import TIMELESS, TimestampFunction, holds_times, warn_of
from windowing.topology.window_task import FailTarget, TaskEffect, WindowEmitted, WindowFailed, WindowTask
from windowing.trident.operations import Check, Operation, Resolved, resolve_spec
from windowing.trident.processors import (
    AggSpec,
    BatchFold,
    ProcessorContext,
    Reporter,
    TridentProcessor,
    code_of,
    fold_of,
    key_picker,
    kind_of,
    picker,
)
from windowing.trident.transactional_state import TransactionalState
from windowing.windows.aggregate import short_title
from windowing.windows.config import WINDOWS_OUTSIDE_TRIDENT, OnError, WindowConfig
from windowing.windows.events import ConvertedContent, Effect, Late, TupleWindow, values_at
from windowing.windows.executor import WindowedBoltExecutor, machine_for
from windowing.windows.measures import Count, Duration, describe_measure
from windowing.windows.watermark import SourceKey

if TYPE_CHECKING:
    from windowing.trident.plan import ProcessorNode


class WindowFold:
    """A windowed bolt that folds the tuples of a window with an aggregator. `key`: each row begins with the window's key."""

    def __init__(self, who: str, part: AggSpec, schema: Schema, key: tuple[str, ...]) -> None:
        self._part, self._schema = part, schema
        self.code = part.code(who) if part.hooked else None
        self._key = picker(schema, key)
        self._fold: BatchFold

    def open(self, context: Any, report: Reporter) -> None:
        part = self._part if self.code is None else self._part.opened(self.code, context)
        self._fold = fold_of(part, self._schema, report)

    def __call__(self, window: TupleWindow) -> list[Row]:
        """Return the rows of the aggregator for a window; `init` gets the end of the window as batch id."""
        tuples = window.get()
        value = self._fold.start(window.end_timestamp)
        for row in tuples:
            value = self._fold.add(value, row)
        key = self._key(tuples[0])
        return [key + row for row in self._fold.rows(value)]


class WindowClock:
    """Computes the largest timestamp of each source, over rows that may move the watermark; it is sent to all tasks of a window."""

    def __init__(self, config: WindowConfig, schema: Schema) -> None:
        self._config = config
        self._record = record_type(schema.names)._make
        self._source = None if config.source is None else schema.names.index(config.source)
        self._timestamp = config.timestamp
        self._position = schema.names.index(config.timestamp) if isinstance(config.timestamp, str) else None

    def timestamp(self, row: Row) -> int | None:
        """Return a row's timestamp in milliseconds since 1970, None if it has no usable one."""
        if self._position is not None:
            return timestamp_of(row[self._position])
        assert callable(self._timestamp)
        try:
            return timestamp_of(self._timestamp(self._record(row)))
        except FailedException:
            raise
        except Exception:  # the window of the row warns of it, or raises
            return None

    def source(self, row: Row) -> str | None:
        value = None if self._source is None else row[self._source]
        return None if value is None else str(value)

    def largest(self, rows: list[Row], now_ms: int | None) -> dict[str | None, int]:
        """Return the largest timestamp of each source, without timestamps that are too far in the future."""
        found: dict[str | None, int] = {}
        ahead = self._config.max_future_ms
        limit = None if ahead is None or now_ms is None else now_ms + ahead
        for row in rows if self._timestamp is not None else ():
            timestamp, source = self.timestamp(row), self.source(row)
            if timestamp is not None and (limit is None or timestamp <= limit):
                found[source] = max(found.get(source, timestamp), timestamp)
        return found


@dataclass(slots=True)
class _WindowSlot:
    batch: ProcessorContext
    rows: list[Row] = field(default_factory=list)
    largest: list[Mapping[str | None, int]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)


class WindowProcessor(TridentProcessor):
    """One task of a window. Cost of a batch: that of its windows, and a copy of the tuples of the keys that change, to restore; and
    of the policies of all keys, where they are a user's.

    by_policies: whether policies of a user read its tuples, which are records then. arrived, after `store_apart`: the tuples of the
    last batch, their timestamps (None over the clock), and the positions of those that were late.
    """

    def __init__(self, bolt: WindowedBolt, schema: Schema) -> None:
        self.bolt, self.schema, config = bolt, schema, bolt.config
        self.arrived: tuple[list[Row], Sequence[int | None] | None, list[int]] = [], None, []
        if isinstance(bolt.target, WindowFold) and bolt.target.code is not None:
            self.codes = (bolt.target.code,)
        self._make = record_type(schema.names)._make
        self._key = None if config.key is None else key_picker(schema, config.key, of_window=True)
        self.clock = WindowClock(config, schema)
        self._stamp = None
        if callable(config.timestamp):
            self._stamp = TimestampFunction(config.timestamp, bolt.name, config.on_invalid, passed=FailedException)
        self.by_policies = config.eviction is not None or config.trigger is not None
        self._executor = WindowedBoltExecutor(config, component=bolt.name)
        view = None if isinstance(bolt.target, WindowFold) else partial(_with_records, self._make)
        self.task = WindowTask(bolt, self._executor, FailTarget.BATCH, view=view)
        self._before = self._executor.mark()
        """The state before the last batch: a mark of the executor; after a restart a snapshot, until a batch begins."""
        self.txid = 0
        self._is_apart = False

    def store_apart(self) -> WindowedBoltExecutor:
        """Return the executor, for a driver that restores it before each batch, and stores its tuples, which have numbers, itself;
        no copy is kept for a retry.
        """
        self._is_apart = True
        self._executor.use(machine_for(self.bolt.config, sequenced=True, component=self.bolt.name))
        return self._executor

    def prepare(self, context: Any) -> None:
        if isinstance(self.bolt.target, WindowFold):
            self.bolt.target.open(context, self.report)
        self.task.open(context)

    def start_batch(self, batch: ProcessorContext) -> _WindowSlot:
        return _WindowSlot(batch)

    def execute(self, slot: _WindowSlot, rows: list[Row], source: int = 0) -> list[Row]:
        slot.rows += rows
        return []

    def observe(self, slot: _WindowSlot, largest: Mapping[str | None, int]) -> None:
        """Record the largest timestamps of an upstream task's rows, whichever task the rows went to."""
        slot.largest.append(largest)

    def finish_batch(self, slot: _WindowSlot) -> list[Row]:
        if not self._is_apart:
            self._go_to(slot.batch.txid)
        task, now_ms = self.task, slot.batch.now_ms
        rows = list(map(self._make, slot.rows)) if self.by_policies else slot.rows
        emitted = self._performed(task.turn(now_ms), slot) if rows and task.fires_first(timed=False) else []
        emitted += self._performed(task.perform(self._added(rows, now_ms)), slot)
        for largest in slot.largest:
            for source, timestamp in largest.items():
                self._executor.track(DEFAULT_STREAM, timestamp, source)
        emitted += self._performed(task.turn(now_ms), slot)
        return emitted + self._performed(task.drain(), slot) if slot.batch.drain else emitted

    def cleanup(self) -> None:
        try:
            self.task.close()
        finally:
            super().cleanup()

    def counts(self) -> dict[str, int]:
        """Return the counts of tuples (in, shown, skipped, pending, expired, late) and of fired windows."""
        return self._executor.counts()

    @property
    def late(self) -> Counter[str]:
        """The number of late tuples so far, by reason."""
        return Counter(self._executor.side)

    @property
    def watermark(self) -> int | None:
        """The watermark, as `WindowedBoltExecutor` has it."""
        return self._executor.watermark

    @property
    def slowest(self) -> tuple[str, SourceKey, int | None] | None:
        """The input that holds the watermark back, as `WaterMarkEventGenerator` has it; None for windows over the clock."""
        return self._executor.generator.slowest

    def changed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return snapshots of the windows before and after the last batch, with all keys that it has changed."""
        return self._executor.changed(self._before)

    def snapshot(self) -> dict[str, Any]:
        """Return the windows as plain data: their current state, and their state before the last committed batch."""
        before, now = self._before, self._executor.snapshot()
        if "tracks" not in before["manager"]:
            before, after = self.changed()
            new = {each["ordinal"] for each in after["manager"]["tracks"]}
            new.difference_update(each["ordinal"] for each in before["manager"]["tracks"])
            before = changed_windows(now, {**before, "gone": new})
        return {"txid": self.txid, "before": before, "now": now}

    def restore(self, data: dict[str, Any]) -> None:
        self.txid, self._before = data["txid"], self.with_rows(data["before"])
        self._executor.restore(self.with_rows(data["now"]))

    def with_rows(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return a snapshot of plain data whose tuples are records again, if policies of a user read them."""
        if not self.by_policies:
            return stored
        make, manager = self._make, stored["manager"]
        keys = [
            {
                **key,
                "payloads": list(map(make, key["payloads"])),
                "waiting": [[make(row), timestamp] for row, timestamp in key["waiting"]],
            }
            for key in manager["tracks"]
        ]
        return {**stored, "manager": {**manager, "tracks": keys}}

    def _go_to(self, txid: int) -> None:
        """Restore the machine to its state before batch `txid`."""
        if txid < self.txid:
            raise WindowingError(
                f"window {self.bolt.name!r} was asked to commit batch {txid} after batch {self.txid}; commit in the order of "
                "the txids"
            )
        if txid == self.txid:
            self._executor.restore(self._before)
        self._before, self.txid = self._executor.mark(), txid

    def _added(self, rows: list[Row], now_ms: int | None) -> Iterator[Effect]:
        """Add tuples to the windows, in order; record them in `arrived`."""
        config, key, late = self.bolt.config, self._key, list[int]()
        timestamps = self._timestamps(rows) if config.event_time else None
        if self._is_apart:
            self.arrived = rows, timestamps, late
        if now_ms is not None:
            self._executor.set_clock(now_ms)
        keys = None if key is None else list(map(key, rows))
        sources = None if config.source is None else [self.clock.source(row) for row in rows]
        for at, effect in self._executor.add_batch(rows, timestamps, keys=keys, sources=sources):
            if isinstance(effect, Late):
                late.extend(range(at, at + len(effect.payloads)))
            yield effect

    def _timestamps(self, rows: list[Row]) -> list[int | None]:
        """Return the timestamp of each row; warn if the user's function fails, or raise as `on_invalid` says."""
        found: list[int | None]
        if self._stamp is None:
            found = list(map(self.clock.timestamp, rows))
        else:
            found = [self._stamp(self._make(row)) for row in rows]
            self._stamp.warn()
        if not (self._is_apart or self.task.is_unit_checked):  # on Spark the driver warns, for all tasks
            problem = self.task.check_unit(list(map(self._make, rows)), found, None)
            if problem is not None:
                warn_of(problem)
        return found

    def _performed(self, effects: Iterator[TaskEffect], slot: _WindowSlot) -> list[Row]:
        """Add late tuples to the slot and return the rows that the bolt emitted; the error of a skipped window is reported."""
        emitted: list[Row] = []
        for effect in effects:
            if isinstance(effect, WindowEmitted):
                emitted += [values for _, values in effect.emissions]
            elif isinstance(effect, WindowFailed):
                self.report(effect.error)
            elif isinstance(effect, Late):
                slot.late += [(*row, effect.reason.value) for row in effect.payloads]
        return emitted


def _with_records(make: Callable[[Row], Any], window: TupleWindow) -> TupleWindow:
    """Return a window with records, for a function; the window itself has plain rows, which are stored, and an aggregator makes its
    own records.
    """
    content = ConvertedContent(window, lambda rows: list(map(make, rows)))
    return TupleWindow(content, window.start_timestamp, window.end_timestamp, window.key)


# -- Records of windows ----------------------------------------------------------------------------------------------------------


_COLUMNS = ("timestamps", "payloads", "sequences")
"""The parts of a stored queue that have an element for each tuple."""
_WHOLE_AFTER = 1_000
"""The records of so many batches, or of so many tuples if the windows hold fewer, are kept before the windows are written whole."""


class WindowRecords:
    """The windows of one task in a store: whole before a batch, and what this batch and each later one has changed.

        3      {format, first: 12, before: the windows before batch 12}
        3/12   changes of batch 12                                            so the windows before and after batch 13 are there
        3/13   changes of batch 13

    Cost of a batch: its tuples and changed keys; for as many tuples as the windows hold, they are written whole once. An earlier
    version wrote {txid, before, now} for each batch, which `load` reads.
    """

    def __init__(self, state: TransactionalState, name: str) -> None:
        self._state, self.name = state, name
        self._whole = 0
        """The number of tuples that were written with the windows as a whole."""
        self._written: dict[int, tuple[int, int]] = {}
        """Of each batch since then: how many tuples were written, and by how many the windows have grown."""

    def load(self) -> Any:
        """Return the stored `snapshot` of a window, None if there is none. Raises CorruptStateError."""
        head = self._state.read(self.name)
        if head is None or "now" in head:
            return head
        if head["format"] != 2:
            raise CorruptStateError(
                f"the windows of {self._state.root}/{self.name} have format {quote(head['format'])}, and this version reads 2; use "
                "the version that wrote them; nothing was reset"
            )
        first, now = head["first"], head["before"]
        txids = sorted(txid for txid in map(int, self._state.names(self.name)) if txid >= first)
        if txids != list(range(first, first + max(1, len(txids)))):
            raise CorruptStateError(
                f"the windows of {self._state.root}/{self.name} begin with batch {first}, and there are changes of the batches "
                f"{quote(txids)}; put the store back from a copy, nothing was reset"
            )
        for txid in txids:
            before, now = now, changed_windows(now, self._state.read(f"{self.name}/{txid}"))
        return {"txid": txids[-1], "before": before, "now": now}

    def values(self, window: WindowProcessor) -> dict[str, Any]:
        """Return the values to write after a batch of the window, by name."""
        (before, now), txid = window.changed(), window.txid
        written, head = self._written, {}
        written.pop(txid, None)
        tuples, growth = map(sum, zip(*written.values(), strict=True)) if written else (0, 0)
        if not written or len(written) >= _WHOLE_AFTER or tuples >= max(_WHOLE_AFTER, self._whole + growth):
            written.clear()
            whole = window.snapshot()["before"]
            self._whole = _tuples(whole)
            head[self.name] = {"format": 2, "first": txid, "before": whole}
        changes = window_changes(before, now)
        written[txid] = _tuples(changes), _tuples(now) - _tuples(before)
        return head | {f"{self.name}/{txid}": changes}

    def neighbours(self) -> list[str]:
        """Return the names of the records around that of the last batch, which another instance of this task would have changed."""
        last = max(self._written)
        return [f"{self.name}/{txid}" for txid in (last - 1, last + 1) if txid in self._written or txid > last]

    def obsolete(self) -> list[str]:
        """Return the names of the records before the windows that were written whole last."""
        first = min(self._written)
        return [f"{self.name}/{txid}" for txid in self._state.names(self.name) if int(txid) < first]


def store_windows(state: TransactionalState, stored: Mapping[WindowRecords, WindowProcessor]) -> None:
    """Store windows of a task after a batch, in one write. Raises StateConflictError if another instance of the task has stored."""
    values = {name: value for each, window in stored.items() for name, value in each.values(window).items()}
    gone = [name for each in stored if each.name in values for name in each.obsolete()]
    state.write(values, [name for each in stored for name in each.neighbours()], gone)


def window_changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the snapshot `now` of an executor, with only those keys that have another state than in `before`, and of their tuples
    only those that have arrived since; a key with policies of a user is written whole. Both may lack keys that have not changed.

    gone: the ordinals of the keys that `now` has not. kept: how many tuples of a key, its last ones, are still there.
    """
    old, tracks = {track["ordinal"]: track for track in before["manager"]["tracks"]}, []
    for track in now["manager"]["tracks"]:
        was = old.pop(track["ordinal"], None)
        if was == track:
            continue
        if was is not None and "sequences" in track:
            arrived = _arrived(was, track, before["manager"]["sequence"])
            columns = {name: values_at(track[name], arrived) for name in _COLUMNS if track[name] is not None}
            changed = {**track, **columns, "kept": len(track["payloads"]) - len(arrived)}
            # Tuples of one time that came and went in the batch may be merged in another order: such a key is stored whole.
            if track["base"] == was["base"] or _merged(was, changed) == track:
                track = changed
        tracks.append(track)
    return {**now, "manager": {**now["manager"], "tracks": tracks}, "gone": list(old)}


def _arrived(was: dict[str, Any], track: dict[str, Any], since: int) -> Sequence[int]:
    """Return the positions of the tuples in a queue that have arrived since it was as in `was`."""
    if track["sequences"] is not None:
        return [at for at, number in enumerate(track["sequences"]) if number >= since]
    first = track["base"] - was["base"]
    stamps, payloads = was["timestamps"][first:], was["payloads"][first:]
    kept = len(stamps)
    if track["timestamps"][:kept] == stamps and track["payloads"][:kept] == payloads:
        return range(kept, len(track["payloads"]))
    held = list(zip(stamps, payloads, strict=True))
    arrived: list[int] = []
    for at, each in enumerate(zip(track["timestamps"], track["payloads"], strict=True)):
        if at - len(arrived) == kept or each != held[at - len(arrived)]:
            arrived.append(at)
    return arrived


def changed_windows(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the snapshot for which `window_changes(before, ...)` has returned the changes."""
    tracks = {track["ordinal"]: track for track in before["manager"]["tracks"]}
    for track in changes["manager"]["tracks"]:
        was = tracks.get(track["ordinal"])
        tracks[track["ordinal"]] = track if was is None or "kept" not in track else _merged(was, track)
    kept = [tracks[ordinal] for ordinal in sorted(tracks.keys() - set(changes["gone"]))]
    found = {**changes, "manager": {**changes["manager"], "tracks": kept}}
    del found["gone"]
    return found


def _merged(was: dict[str, Any], track: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a key with the tuples that it has kept of those in `was`. Cost: a copy, and a sort of what moves."""
    stamps, arrived = was["timestamps"], track["timestamps"]
    first = len(stamps) - track["kept"]
    cut = max(first, bisect_right(stamps, arrived[0])) if arrived else len(stamps)
    moved = stamps[cut:] + arrived
    order = sorted(range(len(moved)), key=moved.__getitem__)  # stable: of equal timestamps the kept tuples come first
    merged = {name: value for name, value in track.items() if name != "kept"}
    for name in _COLUMNS:
        if merged[name] is not None:
            merged[name] = was[name][first:cut] + values_at(was[name][cut:] + merged[name], order)
    return merged


def _tuples(snapshot: dict[str, Any]) -> int:
    return sum(len(track["payloads"]) for track in snapshot["manager"]["tracks"])


# -- Operations of windows -------------------------------------------------------------------------------------------------------


_FOR_BOLTS = (OnError.FAIL.value, OnError.DEAD_LETTER.value)
"""The values of on_error that need single tuples to fail, or a stream of dead letters."""


@dataclass(frozen=True, slots=True)
class WindowOperation(Operation):
    """An aggregator, or a function of (window), over windows of a length and a slide. group: the fields of the key, if any.

    The output of a function is declared in full; the rows of an aggregator follow the fields of the key. config: the WindowConfig,
    after `resolve`.
    """

    name: str
    length: Any
    slide: Any
    spec: AggSpec
    group: tuple[Any, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Any = None

    committer = True
    keeps_window = True

    @property
    def title(self) -> str:
        """Its name for people; before `resolve`, and so in stored definitions, with the length and slide as given."""
        given = (
            describe_measure(each) if isinstance(each, Count | Duration) else str(each)
            for each in (self.length, self.slide)
        )
        measures = " / ".join(given) if self.config is None else self.config.measures
        return f"window {measures} with {short_title(self.spec.aggregator)}"

    def resolve(self, check: Check) -> Resolved | None:
        config = check.attempt(self._checked_config)
        named = config is not None and self._named_fields(check, config)
        key, spec = check.attempt(chosen, check.inputs[0], self.group or ()), None
        if kind_of(self.spec.aggregator) is None:
            code = check.attempt(code_of, self.spec.aggregator, "execute", "window", returns=True)
            if code is not None and code.method is not None:
                check.note(f"{quote(self.spec.aggregator)} is a bolt; give an aggregator, or a function of (window)")
                return None
            spec, output = None if code is None else self.spec, check.output(self.spec.output)
        else:
            spec = resolve_spec(check, self.spec, check.inputs[0])
            output = None if spec is None or key is None else check.attempt(extended, key, spec.output)
        if not named or key is None or spec is None or output is None:
            return None
        return output, replace(self, config=config, spec=spec)

    def bolt(self, node: ProcessorNode) -> WindowedBolt:
        schema, target = node.inputs[0], self.spec.aggregator
        return WindowedBolt(
            name=self.name,
            config=self.config,
            outputs={"default": node.schema},
            target=target if kind_of(target) is None else WindowFold(node.called, self.spec, schema, self.group or ()),
            style=CallStyle.ROWS,
            called=node.called,
        )

    def processor(self, node: ProcessorNode) -> WindowProcessor:
        return WindowProcessor(self.bolt(node), node.inputs[0])

    def _checked_config(self) -> WindowConfig:
        for option, why in WINDOWS_OUTSIDE_TRIDENT.items():
            given = self.options.get(option)
            given = given.value if isinstance(given, Enum) else given
            if given is not None and (option != "on_error" or given in _FOR_BOLTS):
                raise ConfigError(f"{option}={quote(given)} is for bolts: {why}; leave it out")
        if self.group is not None and self.options.get("key") is not None:
            raise ConfigError("key= is what group_by says already; leave it out")
        if self.options.get("key") is not None and kind_of(self.spec.aggregator) is not None:
            raise ConfigError(
                "key= is for a function of (window); an aggregator has windows for each key by group_by(...)"
            )
        key = self.options.get("key") if self.group is None else self.group
        return WindowConfig.of(length=self.length, slide=self.slide, **{**self.options, "key": key})

    def _named_fields(self, check: Check, config: WindowConfig) -> bool:
        """Note each field that the window names and the stream lacks, or that cannot be a key or a timestamp."""
        kinds, good = check.inputs[0].kinds, True
        for option, name in fields_named(config):
            problem = None
            if name not in kinds:
                problem = f"{option} is {quote(name)}, a field that is not there; {did_you_mean(name, kinds)}"
            elif option == "timestamp" and not holds_times(kinds[name]):
                problem = f"timestamp is {quote(name)}, a field of type {kinds[name]}: {TIMELESS}"
            elif option == "key" and (reason := hashable(kinds[name])) is not None:
                problem = f"key is {quote(name)}, a field that has no hash: {reason}"
            if problem is not None:
                check.note(problem)
                good = False
        return good


@dataclass(frozen=True, slots=True)
class LateTuples(Operation):
    """The late tuples of a window, each with its reason. Its source is the window; in `resolve` its input is the window's input."""

    event_time: bool

    @property
    def title(self) -> str:
        return "late tuples"

    def resolve(self, check: Check) -> Resolved | None:
        if not self.event_time:
            check.note("no tuple is late without a timestamp; give the window timestamp=")
            return None
        output = check.attempt(extended, check.inputs[0], Schema((REASON,), ("string",)))
        return None if output is None else (output, self)
