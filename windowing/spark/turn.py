"""One turn of a windowed task: a pure function of (metadata, chunks, parts, controls), the same on Spark and in tests.

    metadata + chunks --> executor <-- parts (rows), controls (largest timestamps, ticks, drain)
                             |
                      one turn or the drain
                             |
    rows for the streams, new metadata, chunks to write and drop, metrics

Laws
- The output is a function of (state, input) alone: same rows, same order, same floats, whichever worker runs it and how often.
- All rows of a batch in arrival order, then one turn.
- Nothing is written before everything was computed: a failure leaves the state as it was.
"""

from __future__ import annotations

import json
import os
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowing.core.config import OnError
from windowing.core.events import Activation, Effect, Late
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.manager import WindowManager
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, ConfigError, CorruptStateError
from windowing.spark.codec import META_MAGIC, NAN, dumps, frame, loads, unframe
from windowing.spark.state import SEQUENCE, TIMESTAMP, Chunk, ChunkStore, decode_table, with_order
from windowing.topology.bolts import WindowedBolt
from windowing.topology.context import TaskContext
from windowing.topology.runner import BoltRunner

__all__ = ["DEAD_LETTERS", "DEAD_LETTER_DDL", "Control", "Part", "TaskStage", "TurnResult"]

DEAD_LETTERS = "dead_letters"
"""The stream of windows on which the bolt failed, where it says `on_error="dead_letter"`."""
DEAD_LETTER_DDL = (
    "bolt string, task int, window_start long, window_end long, window_key string, error string, tuples string"
)
SIDE_STREAM = "late"
_STATE_FORMAT = 1


class Part(NamedTuple):
    """Rows of one upstream Arrow batch for this task: an Arrow IPC stream of the input columns and `__ts`."""

    stream: str
    partition: int
    sequence: int
    now_ms: int
    data: bytes


class Control(NamedTuple):
    """News without rows: "max" (a partition's largest valid timestamp of a stream and source), "tick" or "drain"."""

    kind: str
    stream: str
    source: Any
    value: int | None
    now_ms: int


class TurnResult(NamedTuple):
    """What a turn did; `rows` are (stream, columns) in output order, `puts` and `drops` the changes of chunks by key."""

    metadata: bytes
    rows: list[tuple[str, dict[str, Any]]]
    puts: dict[bytes, bytes]
    drops: list[bytes]
    metrics: dict[str, int | None]


@dataclass(frozen=True)
class TaskStage:
    """A windowed bolt as a stage of N tasks; built once by the driver, sent to the workers.

    `columns`: the input columns in order. `streams`: the declared input streams; their order is part of the order of arrival.
    `order_by`: columns that give the order of arrival instead. `late_stream`: where side rows go (`late` if the bolt names none).
    """

    bolt: WindowedBolt
    columns: tuple[str, ...]
    streams: tuple[str, ...] = ("default",)
    order_by: tuple[str, ...] = ()
    tasks: int = 1
    late_stream: str = field(default=SIDE_STREAM)

    def __post_init__(self) -> None:
        if self.bolt.config.on_error is OnError.FAIL:
            raise ConfigError(
                f"bolt {self.bolt.name!r} says on_error='fail', which fails tuples back to an acker; a Spark query has none: "
                "use 'raise', 'skip' or 'dead_letter'"
            )

    def turn(
        self,
        task: int,
        metadata: bytes | None,
        load: Callable[[bytes], bytes | None],
        parts: Sequence[Part],
        controls: Sequence[Control],
        nonce: bytes | None = None,
    ) -> TurnResult:
        """Run the turn of `task` for one batch. Raises BoltError, CorruptStateError, and what the user's policies raise."""
        return _Turn(self, task, metadata, load).run(parts, controls, nonce or os.urandom(8))


class _Turn:
    """The work of one turn, step by step."""

    def __init__(
        self, stage: TaskStage, task: int, metadata: bytes | None, load: Callable[[bytes], bytes | None]
    ) -> None:
        self.stage = stage
        self.task = task
        self.load = load
        self.config = stage.bolt.config
        self.what = f"state of bolt {stage.bolt.name!r}, task {task}"
        self.executor = WindowedBoltExecutor(self.config, stage.streams, stage.bolt.name, sequenced=True)
        self.manager = self.executor.manager
        # Only the built-in windows number their tuples; other machines' snapshots name the rows they hold.
        self.numbered = self.manager if isinstance(self.manager, WindowManager) else None
        self.row_type: Any = namedtuple("Row", stage.columns, rename=True)  # type: ignore[misc]
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.row_of: dict[int, Any] = {}
        self.number_of: dict[int, int] = {}
        self.next_number = 0
        self.failed = 0
        self.stored = (
            _Stored.empty() if metadata is None else _Stored.of(unframe(META_MAGIC, metadata, self.what), self.what)
        )

    # -- the turn ------------------------------------------------------------------------------------------------------

    def run(self, parts: Sequence[Part], controls: Sequence[Control], nonce: bytes) -> TurnResult:
        table = self._table(parts)
        chunks = ChunkStore(self.stored.chunks, self.load, self.what)
        self._restore(chunks.read(None if table is None else _columns(table, self.stage).schema))
        before = self.executor.counts()
        self.executor.set_clock(max([part.now_ms for part in parts] + [control.now_ms for control in controls]))
        runner = BoltRunner(self.stage.bolt)
        runner.open(TaskContext(self.stage.bolt.name, self.task, self.stage.tasks))
        try:
            accepted = self._feed(table, runner)
            self._learn(controls)
            draining = any(control.kind == "drain" for control in controls)
            self._perform(self.executor.drain() if draining else self.executor.turn(), runner)
        finally:
            runner.close()
        return self._result(chunks, table, accepted, before, nonce)

    def _table(self, parts: Sequence[Part]) -> pa.Table | None:
        """Return the rows of the batch in order of arrival."""
        if not parts:
            return None
        position = {stream: index for index, stream in enumerate(self.stage.streams)}
        ordered = sorted(parts, key=lambda part: (position[part.stream], part.partition, part.sequence))
        tables = [decode_table(part.data) for part in ordered]
        streams = [pa.repeat(part.stream, table.num_rows) for part, table in zip(ordered, tables, strict=True)]
        table = pa.concat_tables(tables).append_column("__stream", pa.chunked_array(streams, pa.string()))
        if self.stage.order_by:
            table = table.sort_by([(name, "ascending") for name in self.stage.order_by])
        return table.combine_chunks()

    def _restore(self, held: pa.Table | None) -> None:
        if self.stored.executor is None:
            return
        if held is not None:
            numbers = held.column(SEQUENCE).to_pylist()
            payloads = self._payloads(held)
            self.row_of = dict(zip(numbers, payloads, strict=True))
            if self.numbered is None:
                self.number_of = {id(payload): number for number, payload in self.row_of.items()}
        self.executor.restore(loads(self.stored.executor, self.what, self._row))
        self.next_number = self.stored.next_number
        if self.numbered is not None and held is not None:
            keys = self._keys(held)
            self.numbered.load(keys, numbers, held.column(TIMESTAMP).to_pylist(), payloads)

    def _row(self, number: int) -> Any:
        try:
            return self.row_of[number]
        except KeyError:
            raise CorruptStateError(
                f"{self.what} names row {number}, which no chunk holds; nothing was reset"
            ) from None

    def _feed(self, table: pa.Table | None, runner: BoltRunner) -> np.ndarray[Any, Any]:
        """Offer the batch's rows; return the positions of those that were accepted."""
        if table is None:
            return np.empty(0, dtype=np.int64)
        payloads = self._payloads(table)
        if self.numbered is None:
            self.row_of.update(enumerate(payloads, self.next_number))
            self.number_of.update((id(payload), number) for number, payload in enumerate(payloads, self.next_number))
            self.next_number += len(payloads)
        effects = self.executor.add_batch(
            payloads,
            table.column(TIMESTAMP).to_pylist() if self.config.event_time else None,
            keys=self._keys(table),
            trusted=True,
            tracked=False,
        )
        refused = np.zeros(len(payloads), dtype=bool)
        for at, effect in effects:
            if isinstance(effect, Late):
                refused[at : at + len(effect.payloads)] = True
            self._perform_one(effect, runner)
        return np.flatnonzero(~refused)

    def _learn(self, controls: Sequence[Control]) -> None:
        for control in controls:
            if control.kind == "max" and control.value is not None and self.config.event_time:
                self.executor.track(control.stream, control.value, control.source)

    def _perform(self, effects: Iterator[Effect], runner: BoltRunner) -> None:
        for effect in effects:
            self._perform_one(effect, runner)

    def _perform_one(self, effect: Effect, runner: BoltRunner) -> None:
        if isinstance(effect, Activation):
            outcome = runner.attempt(effect.window)
            if outcome.error is not None:
                self._failed(effect.window, outcome.error)
            for stream, values in outcome.emissions:
                self.rows.append((stream, dict(zip(self.stage.bolt.outputs[stream].names, values, strict=True))))
        elif isinstance(effect, Late):
            for payload in effect.payloads:
                row = dict(zip(self.stage.columns, payload, strict=True))
                self.rows.append((self.stage.late_stream, row | {"reason": effect.reason.value}))

    def _failed(self, window: TupleWindow, error: BoltError) -> None:
        self.failed += 1
        if self.config.on_error is OnError.DEAD_LETTER:
            # A window of partials has no tuples to tell of.
            rows = None if self.config.aggregate is not None else [row._asdict() for row in window.get()]
            letter = {
                "bolt": self.stage.bolt.name,
                "task": self.task,
                "window_start": window.start_timestamp,
                "window_end": window.end_timestamp,
                "window_key": None if window.key is None else str(window.key),
                "error": str(error),
                "tuples": None if rows is None else json.dumps(rows, default=str),
            }
            self.rows.append((DEAD_LETTERS, letter))

    # -- what is kept --------------------------------------------------------------------------------------------------

    def _result(
        self,
        chunks: ChunkStore,
        table: pa.Table | None,
        accepted: np.ndarray[Any, Any],
        before: dict[str, int],
        nonce: bytes,
    ) -> TurnResult:
        if self.numbered is not None:
            held = np.fromiter((number for number, _, _ in self.numbered.held_since(0)), dtype=np.int64)
            numbers = np.arange(self.numbered.next_sequence - len(accepted), self.numbered.next_sequence)
            state = dumps(self.executor.snapshot(events=False))
        else:
            named: set[int] = set()
            state = dumps(self.executor.snapshot(), lambda value: self._named(value, named))
            held = np.array(sorted(named), dtype=np.int64)
            numbers = self.next_number - (0 if table is None else table.num_rows) + accepted
        written = chunks.write(self._fresh(table, accepted, numbers), held, self.stored.next_id, nonce)
        stored = _Stored(state, written, self.stored.next_id + 1, self.next_number)
        return TurnResult(
            frame(META_MAGIC, stored.body()), self.rows, chunks.puts, chunks.drops, self._metrics(table, before)
        )

    def _fresh(self, table: pa.Table | None, accepted: np.ndarray[Any, Any], numbers: Any) -> pa.Table | None:
        """Return the accepted rows as chunks hold them; on processing time their timestamp is the clock."""
        if table is None:
            return None
        chosen = table.take(pa.array(accepted))
        clock = (
            None if self.config.event_time else pa.repeat(pa.scalar(self.executor.now_ms, pa.int64()), len(accepted))
        )
        return with_order(_columns(chosen, self.stage), clock or chosen.column(TIMESTAMP), numbers)

    def _named(self, value: Any, named: set[int]) -> int | None:
        number = self.number_of.get(id(value)) if isinstance(value, self.row_type) else None
        if number is not None:
            named.add(number)
        return number

    def _metrics(self, table: pa.Table | None, before: dict[str, int]) -> dict[str, int | None]:
        after = self.executor.counts()
        metrics: dict[str, int | None] = {
            "tuples": 0 if table is None else table.num_rows,
            "pending": after["pending"],
            "failed": self.failed,
            "watermark": self.executor.watermark,
        }
        for name in ("fired", "late", "skipped", "expired"):
            metrics[name] = after[name] - before[name]
        return metrics

    def _payloads(self, table: pa.Table) -> list[Any]:
        columns = [table.column(name).to_pylist() for name in self.stage.columns]
        if not columns:
            return [self.row_type() for _ in range(table.num_rows)]
        return list(map(self.row_type._make, zip(*columns, strict=True)))

    def _keys(self, table: pa.Table) -> list[Any] | None:
        if self.config.key is None:
            return None
        columns = [map(_one_nan, table.column(name).to_pylist()) for name in self.config.key]
        return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


@dataclass(slots=True)
class _Stored:
    """The metadata of a task: the executor without its tuples, and the list of chunks that hold them."""

    executor: bytes | None
    chunks: list[Chunk]
    next_id: int
    next_number: int

    @classmethod
    def empty(cls) -> _Stored:
        return cls(None, [], 0, 0)

    @classmethod
    def of(cls, body: bytes, what: str) -> _Stored:
        size = int.from_bytes(body[:8], "big")
        head = loads(body[8 : 8 + size], what)
        if head["format"] != _STATE_FORMAT:
            raise CorruptStateError(
                f"{what} has format {head['format']}, this library reads {_STATE_FORMAT}; nothing was reset"
            )
        return cls(body[8 + size :], [Chunk.of(each) for each in head["chunks"]], head["next_id"], head["next_number"])

    def body(self) -> bytes:
        head = dumps(
            {
                "format": _STATE_FORMAT,
                "chunks": [chunk.plain() for chunk in self.chunks],
                "next_id": self.next_id,
                "next_number": self.next_number,
            }
        )
        return len(head).to_bytes(8, "big") + head + (self.executor or b"")


def _one_nan(value: Any) -> Any:
    """Make every NaN the same object, so that NaN keys are one key, as they are in Spark."""
    return NAN if value != value else value


def _columns(table: pa.Table, stage: TaskStage) -> pa.Table:
    return table.select(list(stage.columns))
