"""One turn of a place: a task of a placed bolt takes its tuples of a batch and sends on what comes of them.

    state + rows of the wire --> windows: TaskStage.turn (turn.py) --+
                             --> any other bolt: BoltBatch ----------+--> Flow --> rows of the wire, changes of the state

A pure function of (state, rows): the same on Spark and in tests, however often it runs. Nothing is written before all of it
is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from windowing.core.windows import TupleWindow
from windowing.spark.edges import NO_ROOTS, Partials, Roots, merged
from windowing.spark.flow import INVALID, Flow
from windowing.spark.rows import Part, size_of
from windowing.spark.tasks import BoltBatch
from windowing.spark.tuple_rows import TupleRows
from windowing.spark.turn import SIDE_STREAM, Control, TaskStage
from windowing.spark.values import TaskValues
from windowing.spark.wire import PLACES, Row, stream_name
from windowing.spark.wiring import Origins, Wiring
from windowing.topology.calls import Emitted
from windowing.topology.stages import Place

__all__ = ["PlaceResult", "PlaceTurn", "Stored"]

Load = Callable[[bytes], bytes | None]


@dataclass(frozen=True)
class Stored:
    """What the store has of a place: its metadata, how to read a chunk and a value by key, and how to read all values."""

    metadata: bytes | None
    chunk: Load
    value: Load
    values: Callable[[], Iterable[tuple[bytes, bytes]]]


@dataclass
class PlaceResult:
    """What a turn did: rows of the wire, new metadata (None: as it was), and the changes of chunks and values by key."""

    rows: list[Row] = field(default_factory=list)
    metadata: bytes | None = None
    puts: dict[bytes, bytes] = field(default_factory=dict)
    drops: list[bytes] = field(default_factory=list)
    value_puts: dict[bytes, bytes] = field(default_factory=dict)
    value_drops: list[bytes] = field(default_factory=list)


class PlaceTurn:
    """The turns of a place; it keeps nothing between them. `batch` is Spark's number of the batch."""

    def __init__(self, wiring: Wiring, place: Place) -> None:
        self._wiring, self._place = wiring, place
        self._component = wiring.component(place.component)
        self._format = TupleRows(wiring, place.component)
        self._what = f"state of bolt {place.component!r}, task {place.task}"
        self._context = wiring.context(place.component, place.task)
        self._acked = place.component in wiring.rooted
        self._window = None if self._component.window is None else self._stage()

    def run(self, rows: Sequence[Row], stored: Stored, batch: int, nonce: bytes | None = None) -> PlaceResult:
        """Take the rows that are meant for this place, in any order. Raises BoltError, CorruptStateError, GroupingError."""
        if not rows:
            return PlaceResult()
        now = max(row.now for row in rows)
        flow = Flow(self._wiring, PLACES + self._place.number, now, Origins(self._wiring), batch)
        parts = [
            Part(row.stream, row.sender, row.sequence, row.now, row.data or b"") for row in rows if row.kind == "rows"
        ]
        if self._window is None:
            result = self._bolt_turn(flow, parts, stored, batch)
        else:
            result = self._window_turn(self._window, flow, rows, parts, stored, batch, nonce or os.urandom(8))
        flow.run()
        result.rows[:0] = flow.take()
        result.rows += flow.finish()
        return result

    def _stage(self) -> TaskStage:
        window = self._wiring.windows[self._place.component]
        late = self._component.outputs.get(window.config.late_stream or "")
        return TaskStage(
            bolt=window,
            columns=(),
            streams=tuple(stream_name(found.component, found.stream) for found in self._component.inputs),
            tasks=self._component.parallelism,
            late_stream=window.config.late_stream or SIDE_STREAM,
            late_fields=None if late is None else late.schema.names[:-1],  # the last is the reason
            format=self._format,
            settings=self._context.config,
            task_ids=self._wiring.task_ids,
            acks=self._acked,
        )

    def _is_read(self) -> bool:
        topology = self._wiring.stages.topology
        return any(topology.readers(self._component.id, stream) for stream in self._component.outputs)

    def _values(self, stored: Stored) -> TaskValues | None:
        return TaskValues(stored.value, stored.values, self._what) if self._component.stateful else None

    def _window_turn(
        self,
        stage: TaskStage,
        flow: Flow,
        rows: Sequence[Row],
        parts: list[Part],
        stored: Stored,
        batch: int,
        nonce: bytes,
    ) -> PlaceResult:
        controls = [
            Control(row.kind, row.stream, row.source, row.value if row.kind == "max" else None, row.now)
            for row in sorted(rows, key=_told)
            if row.kind != "rows"
        ]
        values = self._values(stored)
        watch = _Watch(flow.partials, self._component.id, self._is_read()) if self._acked else None
        turn = stage.turn(
            self._place.task, stored.metadata, stored.chunk, parts, controls, nonce, values, batch + 1, watch
        )
        name, task = self._place.component, self._place.task
        late = iter(turn.late)
        anchors = [NO_ROOTS] * len(turn.rows) if watch is None else watch.roots
        for (stream, values_of_row), roots in zip(turn.rows, anchors, strict=True):
            # A late tuple is sent on as it arrives, all else by the turn.
            flow.phase = next(late).phase if stream == stage.late_stream else self._wiring.phases[name, task]
            if stream in self._component.outputs:
                flow.emit(name, task, Emitted(stream, values_of_row), roots)
        told = flow.metrics(name, {**turn.metrics, "bytes": size_of(parts), "now": flow.now})
        result = PlaceResult(told, turn.metadata, turn.puts, turn.drops)
        if values is not None:
            result.value_puts, result.value_drops = values.puts, values.drops
        return result

    def _bolt_turn(self, flow: Flow, parts: list[Part], stored: Stored, batch: int) -> PlaceResult:
        name, task = self._place.component, self._place.task
        if not parts:
            return PlaceResult()
        values = self._values(stored)
        running = BoltBatch(
            self._component,
            self._context,
            self._wiring.retry,
            lambda row, roots, chosen: flow.emit(name, task, row, roots, chosen),
            lambda row: flow.choose(name, task, row),
            (lambda letter, roots: flow.letter(name, task, letter, roots)) if self._wiring.letters(name) else None,
            values,
            flow.in_phases,
        )
        arrived = self._format.payloads(self._format.arrived(parts))
        flow.partials.done(arrived)
        running.take(arrived)
        running.close(batch + 1)
        told = {
            "tuples": running.taken,
            "failed": running.failed,
            INVALID: running.invalid,
            "reported": running.reported,
            "bytes": size_of(parts),
        }
        result = PlaceResult(flow.metrics(name, told))
        if values is not None:
            result.value_puts, result.value_drops = values.puts, values.drops
        return result


class _Watch:
    """What becomes of a windowed task's tuples in a turn, told to the partials; `roots[i]` are those of output row i, if somebody
    reads it: a row that only goes to a sink is committed with its batch.
    """

    def __init__(self, partials: Partials, component: str, is_read: bool) -> None:
        self._partials, self._component, self._is_read = partials, component, is_read
        self.roots: list[Roots] = []

    def fired(self, window: TupleWindow, rows: int) -> None:
        new = rows - len(self.roots)
        if new:
            self.roots += [_roots(window) if self._is_read else NO_ROOTS] * new

    def failed(self, window: TupleWindow) -> None:
        self._partials.fail(_roots(window), self._component)

    def late(self, payloads: Sequence[Any], rows: int) -> None:
        self.roots += [payload.roots for payload in payloads]
        self._partials.done(payloads)

    def expired(self, payloads: Sequence[Any]) -> None:
        self._partials.done(payloads)


def _roots(window: TupleWindow) -> Roots:
    return merged(payload.roots for payload in window.get())


def _told(row: Row) -> tuple[object, ...]:
    return row.kind, row.stream, row.source is not None, row.source or "", row.sender
