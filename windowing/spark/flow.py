"""The flow behind one sender: what it emits runs through the fused bolts and is packed for where it goes.

    emit(component, task, row) --> queue of a fused task --run--> emit ...
                               --> packet for a place             (by the reader's grouping)
                               --> packet for a sink
    take() --> rows of the wire     finish() --> the largest timestamps, for every task of each reader

A sender is an upstream partition of level 0, or a place. Laws: fused bolts run in the order of the plan, task by task, each
queue first in, first out, as LocalCluster runs them; so a sender's rows and their order depend on its input alone. A
grouping's round robin begins anew with each sender and batch, at the sender's own number.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from windowing.errors import UnreadableValueError
from windowing.spark.edges import EDGE, NO_ROOTS, ROOTS, Partials, Roots, edge_ids, packed_roots
from windowing.spark.output import arrow_column
from windowing.spark.pack import known_sources, largest_of, raise_largest, timestamps_of
from windowing.spark.state import TIMESTAMP, encode_table
from windowing.spark.tasks import BoltBatch
from windowing.spark.unreadable import Held, Unreadable, plain
from windowing.spark.wire import PHASE, PLACES, POSITION, TASK, Row, field_column, stream_name
from windowing.spark.wiring import Arrival, Origins, Wiring
from windowing.topology.calls import Emitted
from windowing.topology.groupings import Chooser, GroupingKind, direct_targets
from windowing.topology.letters import DEAD_LETTERS, DeadLetter
from windowing.topology.stamps import TimestampFunction
from windowing.topology.tuples import Tuple

__all__ = ["INVALID", "Chosen", "Flow"]

INVALID = "invalid"
"""The metric of tuples that a bolt asked for a value which Python cannot hold, and that no stream took."""

_log = logging.getLogger("windowing.spark")
_PACKET_ROWS = 50_000


class _Route(NamedTuple):
    """One reader of a stream of a task: `first` is its first place, None if it is fused; `ids` are those of its tasks."""

    reader: str
    first: int | None
    ids: range
    choose: Chooser | None
    state: list[int]
    by_code: bool


class Chosen(NamedTuple):
    """The tasks that a row goes to, by route, chosen before it is sent."""

    targets: list[tuple[_Route, Sequence[int]]]
    before: list[list[int]]

    def ids(self) -> list[int]:
        """Return the ids of the tasks."""
        return [route.ids[index] for route, indexes in self.targets for index in indexes]

    def undo(self) -> None:
        """Make the groupings what they were before; undo the last choice first."""
        for (route, _), state in zip(self.targets, self.before, strict=True):
            route.state[:] = state


class _Packet(NamedTuple):
    values: list[tuple[Any, ...]]
    tasks: list[int]
    phases: list[int]
    positions: list[int]
    roots: list[Roots]

    def part(self, start: int, end: int) -> _Packet:
        cut = slice(start, end)
        return _Packet(self.values[cut], self.tasks[cut], self.phases[cut], self.positions[cut], self.roots[cut])


class Flow:
    """All that one sender sends in one batch, of this number. `partials`: what it says of roots, if some spout asks for acks."""

    def __init__(self, wiring: Wiring, sender: int, now: int, origins: Origins, batch: int = -1) -> None:
        self._wiring, self._sender, self.now, self._origins = wiring, sender, now, origins
        self.partials = Partials()
        self._batch = batch
        self._seed = sender if sender < PLACES else 0
        stages = wiring.stages
        self._fused = [name for name in stages.topology.order if not stages.placed(name)]
        self._routes: dict[tuple[str, int, str], list[_Route]] = {}
        self._tasks: dict[tuple[str, int], BoltBatch] = {}
        self._queues: dict[str, dict[int, list[Arrival]]] = defaultdict(lambda: defaultdict(list))
        self._packets: dict[tuple[int, str, str], _Packet] = {}
        self._out: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self._largest: dict[tuple[str, str], dict[str | None, int]] = defaultdict(dict)
        self._unreadable: Counter[str] = Counter()
        self._position = self._sequence = 0
        self.phase = 0

    def choose(self, component: str, task: int, row: Emitted) -> Chosen:
        """Choose the tasks of a row that is sent later, or not at all. Raises GroupingError."""
        routes = self._routes_to(component, task, row.stream)
        before = [list(route.state) for route in routes]
        return Chosen(list(self._targets(routes, row)), before)

    def emit(
        self, component: str, task: int, row: Emitted, roots: Roots = NO_ROOTS, chosen: Chosen | None = None
    ) -> None:
        """Send one row of a task, anchored to `roots`, to all who read it, which `chosen` may say. Raises GroupingError where a
        grouping cannot choose.
        """
        stream, values, _ = row
        as_held = plain(values) if type(values) is Held else values
        if stream_name(component, stream) in self._wiring.sinks:
            self._out.setdefault((component, stream), []).append(as_held)
        targets = self._targets(self._routes_to(component, task, stream), row) if chosen is None else chosen.targets
        for route, indexes in targets:
            for target in indexes:
                if route.first is None:
                    arrival = Arrival(values, self._origins(component, task, stream), self.phase, roots)
                    self._queues[route.reader][target].append(arrival)
                    continue
                key = (route.first + target, component, stream)
                packet = self._packets.get(key)
                if packet is None:
                    packet = self._packets[key] = _Packet([], [], [], [], [])
                packet.values.append(as_held)
                packet.tasks.append(task)
                packet.phases.append(self.phase)
                packet.positions.append(self._position)
                packet.roots.append(roots)
                self._position += 1

    def letter(self, component: str, task: int, letter: DeadLetter, roots: Roots) -> None:
        """Send the dead letter of a tuple of these roots, which a task has failed for good."""
        self.partials.give_up(roots, component)
        self.emit(component, task, Emitted(DEAD_LETTERS, letter.row()), roots)

    def run(self) -> None:
        """Run what is queued through the fused bolts. Raises BoltError."""
        for name in self._fused:
            self._run(name)

    def in_phases(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield tuples phase by phase; what is emitted meanwhile is of the phase of the one that was yielded last."""
        for arrival in sorted(arrivals, key=lambda each: each.phase):
            self.phase = arrival.phase
            yield arrival

    def take(self) -> list[Row]:
        """Return what is packed so far as rows of the wire."""
        rows: list[Row] = []
        for (place, component, stream), packet in sorted(self._packets.items()):
            for start in range(0, len(packet.values), _PACKET_ROWS):
                part = packet.part(start, start + _PACKET_ROWS)
                data = encode_table(self._table(place, component, stream, part))
                rows.append(self._row(place, "rows", stream_name(component, stream), data=data))
        for (component, stream), values in sorted(self._out.items()):
            for start in range(0, len(values), _PACKET_ROWS):
                part_values = values[start : start + _PACKET_ROWS]
                data = encode_table(pa.table(self._columns(component, stream, part_values)))
                rows.append(self._row(-1, "out", stream_name(component, stream), len(part_values), data))
        self._packets.clear()
        self._out.clear()
        return rows

    def finish(self) -> list[Row]:
        """Close the fused tasks; return their last rows, and what every reader has to know of the sender's timestamps."""
        for name in self._fused:
            self._run(name)  # what the tasks above have emitted at their end is among it
            for (component, _), running in sorted(self._tasks.items()):
                if component == name:
                    running.close()
        rows = self.take()
        for (reader, stream), largest in sorted(self._largest.items()):
            first = self._wiring.stages.first_place(reader)
            for place in range(first, first + self._wiring.component(reader).parallelism):
                for source in sorted(largest, key=lambda each: (each is not None, each or "")):
                    rows.append(self._row(place, "max", stream, largest[source], None, source))
        for (name, _), running in sorted(self._tasks.items()):
            rows += self.metrics(
                name, {"failed": running.failed, INVALID: running.invalid, "reported": running.reported}
            )
        for name, count in sorted(self._unreadable.items()):
            rows += self.metrics(name, {INVALID: count})
        partials = self.partials.table()
        if partials is not None:
            rows.append(self._row(-1, "ack", "", data=partials))
        return rows

    def metrics(self, component: str, values: Mapping[str, int | None]) -> list[Row]:
        """Return numbers of a component as rows of the wire."""
        told = {name: value for name, value in values.items() if value is not None and (value or name in _STATES)}
        return [self._row(-1, "metric", component, value, None, name) for name, value in told.items()]

    # -- how a row finds its way ---------------------------------------------------------------------------------------

    def _routes_to(self, component: str, task: int, stream: str) -> list[_Route]:
        routes = self._routes.get((component, task, stream))
        if routes is None:
            routes = self._routes[component, task, stream] = self._routes_of(component, task, stream)
        return routes

    def _routes_of(self, component: str, task: int, stream: str) -> list[_Route]:
        stages = self._wiring.stages
        output = stages.topology.components[component].outputs.get(stream)
        routes = []
        for reader, grouping in stages.topology.readers(component, stream):
            assert output is not None
            first = stages.first_place(reader.id) if stages.placed(reader.id) else None
            choose = None if output.direct else grouping.targets(reader.parallelism, output.schema)
            state = [] if choose is None else choose.start(task + self._seed)
            by_code = grouping.kind is GroupingKind.CUSTOM
            routes.append(_Route(reader.id, first, self._wiring.task_ids[reader.id], choose, state, by_code))
        return routes

    def _targets(self, routes: list[_Route], row: Emitted) -> Iterable[tuple[_Route, Sequence[int]]]:
        if routes and routes[0].choose is None:  # a direct stream has direct readers only
            reader, index = direct_targets(row.task, {route.reader: route.ids for route in routes}, row.stream)
            return [(route, (index,)) for route in routes if route.reader == reader]
        return [(route, self._chosen(route, route.choose, row)) for route in routes if route.choose is not None]

    def _chosen(self, route: _Route, choose: Chooser, row: Emitted) -> Sequence[int]:
        if type(row.values) is not Held:
            return choose(row.values, route.state)
        try:
            return choose(row.values if route.by_code else plain(row.values), route.state)
        except UnreadableValueError as problem:
            self._unreadable[route.reader] += 1
            _log.warning(
                "a tuple for bolt %r goes nowhere: its grouping asks for what cannot be read: %s", route.reader, problem
            )
            return ()

    def _run(self, name: str) -> None:
        queues = self._queues.pop(name, {})
        for task in sorted(queues):
            self._task(name, task).take(queues[task])

    def _task(self, name: str, task: int) -> BoltBatch:
        if (name, task) not in self._tasks:
            self._tasks[name, task] = BoltBatch(
                self._wiring.component(name),
                self._wiring.context(name, task),
                self._wiring.retry,
                lambda row, roots, chosen: self.emit(name, task, row, roots, chosen),
                lambda row: self.choose(name, task, row),
                (lambda letter, roots: self.letter(name, task, letter, roots)) if self._wiring.letters(name) else None,
                order=self.in_phases,
            )
        return self._tasks[name, task]

    # -- packing -------------------------------------------------------------------------------------------------------

    def _table(self, place: int, component: str, stream: str, packet: _Packet) -> pa.Table:
        columns = self._columns(component, stream, packet.values)
        stamps = self._stamps(place, component, stream, packet, columns)
        edges: dict[str, pa.Array] = {}
        if self._wiring.acks:
            ids = edge_ids(self._batch, self._sender, place, packet.positions)
            self.partials.made(ids, packet.roots)
            edges = {EDGE: pa.array(ids), ROOTS: packed_roots(packet.roots)}
        return pa.table(
            {
                **{field_column(position): column for position, column in enumerate(columns.values())},
                **edges,
                TASK: pa.array(packet.tasks, pa.int32()),
                PHASE: pa.array(packet.phases, pa.int32()),
                POSITION: pa.array(packet.positions, pa.int64()),
                TIMESTAMP: stamps,
            }
        )

    def _columns(self, component: str, stream: str, values: Sequence[tuple[Any, ...]]) -> dict[str, pa.Array]:
        schema = self._wiring.schemas[stream_name(component, stream)]
        by_field = zip(schema, zip(*values, strict=True), strict=True)
        return {field.name: arrow_column(component, stream, field, column) for field, column in by_field}

    def _stamps(
        self, place: int, component: str, stream: str, packet: _Packet, columns: dict[str, pa.Array]
    ) -> pa.Int64Array:
        """Return the timestamps that the reader's windows give these tuples, and keep the largest for its other tasks."""
        reader = self._wiring.stages.places[place].component
        window = self._wiring.windows.get(reader)
        count = len(packet.values)
        if window is None or not window.config.event_time:
            return pa.repeat(pa.scalar(self.now, pa.int64()), count)
        timestamp = window.config.timestamp
        if isinstance(timestamp, str):
            stamps = timestamps_of(columns[timestamp])
        else:
            assert timestamp is not None
            tuples = (
                Tuple(_as_asked(values), self._origins(component, task, stream))
                for values, task in zip(packet.values, packet.tasks, strict=True)
            )
            stamp = TimestampFunction(timestamp, reader, window.config.on_invalid)
            stamps = pa.array([stamp(each) for each in tuples], pa.int64())
            stamp.warn()
        source = None if window.config.source is None else columns[window.config.source]
        stamps = known_sources(stamps, source)
        found = largest_of(stamps, source, self.now, window.config.max_future_ms)
        raise_largest(self._largest[reader, stream_name(component, stream)], found)
        return stamps

    def _row(
        self, target: int, kind: str, stream: str, value: int = 0, data: bytes | None = None, source: str | None = None
    ) -> Row:
        self._sequence += 1
        return Row(target, kind, stream, self._sender, self._sequence, self.now, source, value, data)


def _as_asked(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row as user code gets them."""
    return Held(values) if any(type(each) is Unreadable for each in values) else values


_STATES = ("watermark", "now")
"""Numbers that mean something when they are 0; of the others 0 is left out."""
