"""Windows over a stream of batches: a machine of core/ in each task, which moves one batch on in each commit.

    batch 4    rows ----> kept until the commit phase ----> executor: add, one turn ----> rows of the windows that fire
    batch 5:0  rows ----> kept ... dropped, or its commit failed: the machine goes back to where batch 4 left it
    batch 5:1  rows ----> kept until the commit phase ----> executor ...

Laws: batches enter the windows in the order of their txids, each once, whatever is tried again; so a tuple is counted once (in
Storm a retried batch enters again). All tasks of a window have one watermark: what one of them is sent, the others learn of, as
on Spark. `timestamp=` makes it event time, with a late stream; Storm's Trident windows run over the clock only.
Source: Storm's `WindowTridentProcessor`, `AbstractTridentWindowManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windowing.core.config import WindowConfig
from windowing.core.events import Activation, Late
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, FailedException, WindowingError
from windowing.topology.bolts import WindowedBolt
from windowing.topology.records import record_type
from windowing.topology.runner import BoltRunner
from windowing.topology.schema import Schema
from windowing.topology.trident.aggregating import Part, fold_of
from windowing.topology.trident.code import Report, unheard
from windowing.topology.trident.fields import Row, key_picker, picker
from windowing.topology.trident.processors import Batch, TridentProcessor
from windowing.topology.values import timestamp_of

__all__ = ["WindowClock", "WindowFold", "WindowProcessor"]


class WindowFold:
    """A bolt over windows that folds their tuples with an aggregator; `key`: each row begins with the key of the window."""

    def __init__(self, part: Part, schema: Schema, key: tuple[str, ...] = ()) -> None:
        self.report: Report = unheard
        self._fold = fold_of(part, schema)
        self._key = picker(schema, key)

    def __call__(self, window: TupleWindow) -> list[Row]:
        """Return the rows that the aggregator makes of a window; `init` is given its end as the id of the batch."""
        tuples = window.get()
        value = self._fold.start(window.end_timestamp, self.report)
        for row in tuples:
            value = self._fold.add(value, row)
        key = self._key(tuples[0])
        return [key + row for row in self._fold.rows(value)]


class WindowClock:
    """What the tasks of a window tell each other: the largest timestamp of each source, of rows that may move the watermark."""

    def __init__(self, config: WindowConfig, schema: Schema) -> None:
        self._config = config
        self._record = record_type(schema.names)._make
        self._source = None if config.source is None else schema.names.index(config.source)
        self._timestamp = config.timestamp
        self._position = schema.names.index(config.timestamp) if isinstance(config.timestamp, str) else None

    def timestamp(self, row: Row) -> int | None:
        """Return a row's timestamp in milliseconds since 1970, None where it has none that can be used."""
        if self._position is not None:
            return timestamp_of(row[self._position])
        assert callable(self._timestamp)
        try:
            return timestamp_of(self._timestamp(self._record(row)))
        except Exception:  # the row has no timestamp that can be found: it is invalid, as everywhere else
            return None

    def source(self, row: Row) -> str | None:
        """Return the source of a row as text, None for none."""
        value = None if self._source is None else row[self._source]
        return None if value is None else str(value)

    def largest(self, rows: list[Row], now_ms: int | None) -> dict[str | None, int]:
        """Return the largest timestamp of each source among rows, without those that are too far in the future."""
        found: dict[str | None, int] = {}
        ahead = self._config.max_future_ms
        limit = None if ahead is None or now_ms is None else now_ms + ahead
        for row in rows if self._timestamp is not None else ():
            timestamp, source = self.timestamp(row), self.source(row)
            if timestamp is not None and (limit is None or timestamp <= limit):
                found[source] = max(found.get(source, timestamp), timestamp)
        return found


class _Records:
    """What a function sees of a window: records. The window itself keeps plain rows, which go to a store and come back as such."""

    def __init__(self, window: TupleWindow, make: Callable[[Row], Any]) -> None:
        self._window, self._make = window, make

    def __len__(self) -> int:
        return len(self._window)

    def current(self) -> list[Any]:
        return list(map(self._make, self._window.get()))

    def new(self) -> list[Any]:
        return list(map(self._make, self._window.get_new()))

    def expired(self) -> list[Any]:
        return list(map(self._make, self._window.get_expired()))

    def aggregate(self) -> Any:
        return self._window.aggregate


class _Slot:
    __slots__ = ("batch", "largest", "late", "rows")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.rows: list[Row] = []
        self.largest: list[Mapping[str | None, int]] = []
        self.late: list[Row] = []


class WindowProcessor(TridentProcessor):
    """One task of a window. Cost of a batch: that of its windows, and a copy of what lies in them, to go back to."""

    def __init__(self, bolt: WindowedBolt, schema: Schema) -> None:
        config = bolt.config
        self.bolt = bolt
        self._make = record_type(schema.names)._make
        self._key = None if config.key is None else key_picker(schema, config.key)
        self._single = config.key is not None and len(config.key) == 1
        self.clock = WindowClock(config, schema)
        self._executor = WindowedBoltExecutor(config, component=bolt.name)
        self._runner = BoltRunner(bolt)
        self._before = self._executor.snapshot()
        self._txid = 0

    def prepare(self, context: Any) -> None:
        if isinstance(self.bolt.target, WindowFold):
            self.bolt.target.report = self.report
        self._runner.open(context)

    def start_batch(self, batch: Batch) -> _Slot:
        return _Slot(batch)

    def execute(self, slot: _Slot, rows: list[Row], source: int = 0) -> list[Row]:
        slot.rows += rows
        return []

    def learn(self, slot: _Slot, largest: Mapping[str | None, int]) -> None:
        """Take in what the rows of some upstream task, whichever task they went to, say about the time."""
        slot.largest.append(largest)

    def finish_batch(self, slot: _Slot) -> list[Row]:
        self._go_to(slot.batch.txid)
        executor = self._executor
        if slot.batch.now_ms is not None:
            executor.set_clock(slot.batch.now_ms)
        timestamps = [self.clock.timestamp(row) for row in slot.rows] if executor.config.event_time else None
        keys = None if self._key is None else [self._key_of(row) for row in slot.rows]
        sources = None if executor.config.source is None else [self.clock.source(row) for row in slot.rows]
        emitted: list[Row] = []
        for _, effect in executor.add_batch(slot.rows, timestamps, keys=keys, sources=sources):
            self._perform(effect, emitted, slot.late)
        for largest in slot.largest:
            for source, timestamp in largest.items():
                executor.track("default", timestamp, source)
        for effect in executor.turn():
            self._perform(effect, emitted, slot.late)
        for effect in executor.drain() if slot.batch.drain else ():
            self._perform(effect, emitted, slot.late)
        return emitted

    def take_late(self, slot: _Slot) -> list[Row]:
        return slot.late

    def cleanup(self) -> None:
        self._runner.close()

    def counts(self) -> dict[str, int]:
        """Return what became of the tuples: in, shown, skipped, pending, expired, late, and windows fired."""
        return self._executor.counts()

    def snapshot(self) -> dict[str, Any]:
        """Return the windows as plain data: as they are, and as they were before the batch that was committed last."""
        return {"txid": self._txid, "before": self._before, "now": self._executor.snapshot()}

    def restore(self, data: dict[str, Any]) -> None:
        """Become the windows of `data`."""
        self._txid, self._before = data["txid"], data["before"]
        self._executor.restore(data["now"])

    def _go_to(self, txid: int) -> None:
        """Make the machine what it was before batch `txid`."""
        if txid < self._txid:
            raise WindowingError(
                f"window {self.bolt.name!r} was asked to commit batch {txid} after batch {self._txid}; commit in the order of "
                "the txids"
            )
        if txid == self._txid:
            self._executor.restore(self._before)
        else:
            self._before, self._txid = self._executor.snapshot(), txid

    def _perform(self, effect: Any, emitted: list[Row], late: list[Row]) -> None:
        if isinstance(effect, Activation):
            try:
                outcome = self._runner.attempt(self._seen(effect.window))
            except BoltError as error:
                if isinstance(error.__cause__, FailedException):
                    raise error.__cause__ from None
                raise
            emitted += [values for _, values in outcome.emissions]
        elif isinstance(effect, Late):
            late += [(*row, effect.reason.value) for row in effect.payloads]

    def _seen(self, window: TupleWindow) -> TupleWindow:
        """Return a window as the bolt sees it; an aggregator makes records of what it reads by itself."""
        if isinstance(self.bolt.target, WindowFold):
            return window
        return TupleWindow(_Records(window, self._make), window.start_timestamp, window.end_timestamp, window.key)

    def _key_of(self, row: Row) -> Any:
        assert self._key is not None
        key = self._key(row)
        return key[0] if self._single else key
