"""BoltBatch: one task of a bolt without windows, within one batch: tuples in, rows out; what fails is tried again in rounds.

    take     tuple --> execute --> succeeded: what the call emitted, acked and wrote to the state counts
                          ^
                          |        failed: nothing of that counts; the tuple waits, and so do those that the call acked
                          |                                                   |
    close                 +------- after one wait for all of them ------------+   `max_attempts` times a tuple, then an
             hooks, cleanup, with what they emit                                  error, or a dead letter

Laws: a batch is done or it is not: what a tuple has led to leaves with the batch. A call is done or it is not: a failed one
leaves nothing but what the user's code did outside. A call fails if it raises FailedException, or fails the tuple that it was
handed. Nobody waits for an ack beyond the batch: a Bolt that has neither acked nor failed a tuple when its task has no more
of them, and `cleanup` has returned, has failed it.

The flow behind one sender: what it emits runs through the fused bolts and is packed for where it goes.

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
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from windowing.acking.pending import RetryPolicy
from windowing.errors import (
    BoltError,
    FailedException,
    ReportedFailedException,
    UnreadableValueError,
    describe_error,
    quote,
)
from windowing.schema.checks import DEFAULT_STREAM, StormNames
from windowing.schema.tuples import Tuple
from windowing.spark.context import Arrival, ExecutionContext, Origins
from windowing.spark.edges import EDGE, NO_ROOTS, ROOTS, Partials, Roots, edge_ids, merged, packed_roots
from windowing.spark.exchange import (
    PHASE,
    PLACES,
    POSITION,
    TASK,
    ExchangeRow,
    field_column,
    known_sources,
    largest_of,
    raise_largest,
    stream_name,
    timestamps_of,
)
from windowing.spark.output import arrow_column
from windowing.spark.state import TIMESTAMP, TaskValues, encode_table
from windowing.spark.unreadable import Held, Unreadable, asked_unreadable, held, plain
from windowing.topology.components import TaskContext
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.decorators import ComponentKind
from windowing.topology.groupings import Chooser, GroupingKind, direct_targets
from windowing.topology.plan import Component
from windowing.topology.user_code import BoltCaller, EmittedRow, TimestampFunction

__all__ = [
    "INVALID",
    "BoltBatch",
    "Chosen",
    "StageWriter",
]


class Targets(Protocol):
    """The tasks that were chosen for a row."""

    def ids(self) -> list[int]:
        """Return their ids."""

    def undo(self) -> None:
        """Take the choice back, the last one first."""


Order = Callable[[Iterable[Any]], Iterable[Any]]

_log = logging.getLogger("windowing.spark")
_FAILED = "the bolt failed it"
_UNSETTLED = "it was neither acked nor failed when its task had no more tuples"


class BoltBatch:
    """A task of a BASIC_BOLT or a BOLT; `emit` takes its rows, each with the roots of what it is anchored to and the tasks that
    `choose` has chosen for it (None: not yet), `letter` the dead letters of tuples that failed for good, each with the roots of
    its tuple.

    letter None: such a tuple is an error. values: the task's state, if the bolt is stateful. order: what tuples pass through on
    their way to the bolt, each time (`Flow.in_phases`). Cost: a call of the user's code for each attempt, and one wait of `retry`,
    the longest that is due, for each round.
    """

    def __init__(
        self,
        component: Component,
        context: TaskContext,
        retry: RetryPolicy,
        emit: Callable[[EmittedRow, Roots, Any], None],
        choose: Callable[[EmittedRow], Targets],
        letter: Callable[[DeadLetter, Roots], None] | None,
        values: TaskValues | None = None,
        order: Order = iter,
    ) -> None:
        self._component, self._context, self._retry = component, context, retry
        self._emit, self._letter, self._values, self._order = emit, letter, values, order
        self._caller = BoltCaller(component)
        self._by_itself = component.kind is ComponentKind.BOLT
        self._collector = _BoltCollector(self._caller, component.id, choose)
        self._again: list[Tuple] = []
        self._failures: dict[int, tuple[Tuple, int]] = {}  # by id, which is its own as long as the tuple is here
        self.taken = self.failed = self.invalid = self._reported = 0
        self._caller.open(context, self._collector)
        if values is not None:
            self._caller.hook("init_state", values)
            self._caller.prepare(context, self._collector)
        self._flush("prepare")

    @property
    def reported(self) -> int:
        """How many errors the bolt has reported."""
        return self._reported + self._collector.reported

    def take(self, tuples: Iterable[Tuple]) -> None:
        """Hand each tuple to the bolt, once. Raises BoltError."""
        for tuple in self._order(tuples):
            self.taken += 1
            self._attempt(tuple)

    def close(self, txid: int = 0) -> None:
        """End the task's part of the batch: try again what failed, call the hooks of a stateful bolt, then `cleanup`.

        Whatever is not settled then has failed for good. txid: what the hooks are told. Raises BoltError. Source of the hooks:
        Storm's `IStatefulComponent`.
        """
        self._try_again()
        if self._values is not None:
            for hook in ("pre_prepare", "pre_commit"):
                self._caller.hook(hook, txid)
                self._flush(hook)
        self._caller.close()
        self._flush("cleanup")
        for tuple in self._collector.unsettled():
            self._give_up(tuple, self._failures_of(tuple) + 1, _UNSETTLED)

    def _try_again(self) -> None:
        while self._again:
            again, self._again = self._again, []
            # What only has to be done over waits for nothing of its own.
            delays = [self._retry.delay_ms(count) for count in map(self._failures_of, again) if count]
            if any(delays):
                time.sleep(max(delays) / 1000)
            for tuple in self._order(again):
                self._attempt(tuple)

    def _attempt(self, tuple: Tuple) -> None:
        """Call the bolt once; let what the call did count if it succeeded."""
        if self._values is not None:
            self._values.begin()
        self._collector.begin(tuple if self._by_itself else None)
        rows: list[EmittedRow] = []
        reason: str | None = None
        unreadable: str | None = None
        try:
            rows = self._caller.execute(tuple)
        except FailedException as problem:
            if isinstance(problem, ReportedFailedException):
                _log.warning("bolt %r, task %d: %s", self._component.id, self._context.task_index, problem)
                self._reported += 1
            reason = describe_error(problem)
        except BoltError as problem:
            if not (held(tuple) and asked_unreadable(problem)):
                raise
            unreadable = problem.args[0]
        call = self._collector.end()
        if unreadable is not None:
            self._undo(call, tuple)
            self._leave_out(tuple, unreadable)
            return
        if reason is None and any(each is tuple for each in call.failed):
            reason = _FAILED
        if reason is None:
            self._send(rows, tuple, call)
        else:
            self._undo(call, tuple)
        for each in call.failed:
            if each is not tuple:
                self._fail(each, _FAILED)
        if reason is not None:
            self._fail(tuple, reason)

    def _send(self, rows: Iterable[EmittedRow], tuple: Tuple, call: _Call) -> None:
        for row in rows:
            self._emit(row, _roots_of(tuple), None)
        for sent in call.rows:
            self._emit(*sent)

    def _undo(self, call: _Call, tuple: Tuple) -> None:
        """Take back what a failed call did. The bolt thinks that what it acked is done with, so it needs those tuples again."""
        if self._values is not None:
            self._values.undo()
        for _, _, chosen in reversed(call.rows):
            chosen.undo()
        self._collector.forget(tuple)
        self._again += [each for each in call.acked if each is not tuple]

    def _fail(self, tuple: Tuple, reason: str) -> None:
        self.failed += 1
        count = self._failures_of(tuple) + 1
        self._failures[id(tuple)] = (tuple, count)
        if self._retry.is_last(count):
            self._give_up(tuple, count, reason)
        else:
            self._again.append(tuple)

    def _failures_of(self, tuple: Tuple) -> int:
        return self._failures.get(id(tuple), (tuple, 0))[1]

    def _flush(self, method: str) -> None:
        """Let out what the bolt emitted in a method that is called once. Raises BoltError for a tuple that it failed there."""
        call = self._collector.end()
        if call.failed:
            raise BoltError(
                f"bolt {self._component.id!r} failed {quote(call.failed[0])} in {method}, when nothing of the batch is tried "
                "again; fail it while execute runs, or leave it: what is never settled ends as a dead letter"
            )
        for sent in call.rows:
            self._emit(*sent)

    def _leave_out(self, tuple: Tuple, reason: str) -> None:
        """Do without a tuple of which the bolt asked for a value that Python cannot hold: another attempt would end the same."""
        if self._letter is not None:
            self.failed += 1
            self._give_up(tuple, 1, reason)
            return
        if not self.invalid:
            _log.warning("%s; such tuples go nowhere: a sink of the bolt's dead_letters keeps them", reason)
        self.invalid += 1

    def _give_up(self, tuple: Tuple, attempts: int, reason: str) -> None:
        if self._letter is None:
            raise BoltError(
                f"bolt {self._component.id!r} failed {quote(tuple)} in each of {attempts} attempts: {reason}; the batch is "
                f"not committed. To go on without such tuples give them a sink: "
                f"sinks={{'{self._component.id}.dead_letters': ...}}, or a bolt that reads that stream"
            )
        who, task = self._component.id, self._context.task_index
        letter = DeadLetter(component=who, task=task, attempts=attempts, error=reason, tuples=[tuple])
        self._letter(letter, _roots_of(tuple))


def _roots_of(tuple: Tuple) -> Roots:
    return tuple.roots if isinstance(tuple, Arrival) else NO_ROOTS


def _anchored_to(anchors: Tuple | Iterable[Tuple]) -> Roots:
    if isinstance(anchors, Tuple):
        return _roots_of(anchors)
    return merged(map(_roots_of, anchors))


class _Call(NamedTuple):
    """What one call of a Bolt did: the rows that it emitted, each with its roots and tasks, and the tuples that it settled."""

    rows: list[tuple[EmittedRow, Roots, Targets]]
    acked: list[Tuple]
    failed: list[Tuple]

    @classmethod
    def empty(cls) -> _Call:
        return cls([], [], [])


class _BoltCollector(StormNames):
    """What a Bolt that acks by itself emits to. Of the anchors only the roots are kept: within the batch the batch is the tree."""

    def __init__(self, caller: BoltCaller, component: str, choose: Callable[[EmittedRow], Targets]) -> None:
        self._caller, self._who, self._choose = caller, component, choose
        self.reported = 0
        self._open: dict[int, Tuple] = {}
        self._call = _Call.empty()

    def emit(
        self, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit a row; returns the ids of the tasks that it goes to, if the call that runs succeeds."""
        if stray:
            raise self._caller.outlet.refuse((values, *stray), "anchors")
        return self._add(EmittedRow(stream, self._caller.outlet.checked(values, stream, False)), anchors).ids()

    def emit_direct(
        self, task: int, values: Any, *stray: Any, anchors: Tuple | Iterable[Tuple] = (), stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a row to the task of this id."""
        if stray:
            raise self._caller.outlet.refuse((values, *stray), "anchors", "emit_direct")
        self._add(EmittedRow(stream, self._caller.outlet.checked(values, stream, True), task), anchors)

    def _add(self, row: EmittedRow, anchors: Tuple | Iterable[Tuple]) -> Targets:
        roots, chosen = _anchored_to(anchors), self._choose(row)
        self._call.rows.append((row, roots, chosen))
        return chosen

    def ack(self, tuple: Tuple) -> None:
        """Settle a tuple as done, if the call that runs succeeds."""
        self._settle(tuple, "acked")
        self._call.acked.append(tuple)

    def fail(self, tuple: Tuple) -> None:
        """Settle a tuple as failed: it is tried again when its task has had them all."""
        self._settle(tuple, "failed")
        self._call.failed.append(tuple)

    def reset_timeout(self, tuple: Tuple) -> None:
        """Do nothing: a batch has no timeout."""

    def report_error(self, error: BaseException) -> None:
        """Log the error; nothing stops."""
        self.reported += 1
        _log.warning("bolt %r reports %s", self._who, describe_error(error))

    def begin(self, tuple: Tuple | None) -> None:
        if tuple is not None:
            self._open[id(tuple)] = tuple

    def end(self) -> _Call:
        call, self._call = self._call, _Call.empty()
        return call

    def forget(self, tuple: Tuple) -> None:
        self._open.pop(id(tuple), None)

    def unsettled(self) -> list[Tuple]:
        left = list(self._open.values())
        self._open.clear()
        return left

    def _settle(self, tuple: Tuple, how: str) -> None:
        if self._open.pop(id(tuple), None) is None:
            raise BoltError(
                f"bolt {self._who!r} {how} {quote(tuple)}, which is not open: it was settled before, or is no tuple of this "
                "batch; settle each tuple once"
            )


# -- The flow behind one sender --------------------------------------------------------------------------------------------------


INVALID = "invalid"
"""The metric of tuples that a bolt asked for a value which Python cannot hold, and that no stream took."""

_PACKET_ROWS = 50_000


class _TaskRoute(NamedTuple):
    """One reader of a stream of a task: `first` is its first place, None if it is fused; `ids` are those of its tasks."""

    reader: str
    first: int | None
    ids: range
    choose: Chooser | None
    state: list[int]
    by_code: bool


class Chosen(NamedTuple):
    """The tasks that a row goes to, by route, chosen before it is sent."""

    targets: list[tuple[_TaskRoute, Sequence[int]]]
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


class StageWriter:
    """All that one sender sends in one batch, of this number. `partials`: what it says of roots, if some spout asks for acks."""

    def __init__(self, wiring: ExecutionContext, sender: int, now: int, origins: Origins, batch: int = -1) -> None:
        self._wiring, self._sender, self.now, self._origins = wiring, sender, now, origins
        self.partials = Partials()
        self._batch = batch
        self._seed = sender if sender < PLACES else 0
        stages = wiring.stages
        self._fused = [name for name in stages.topology.order if not stages.placed(name)]
        self._routes: dict[tuple[str, int, str], list[_TaskRoute]] = {}
        self._tasks: dict[tuple[str, int], BoltBatch] = {}
        self._queues: dict[str, dict[int, list[Arrival]]] = defaultdict(lambda: defaultdict(list))
        self._packets: dict[tuple[int, str, str], _Packet] = {}
        self._out: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self._largest: dict[tuple[str, str], dict[str | None, int]] = defaultdict(dict)
        self._unreadable: Counter[str] = Counter()
        self._position = self._sequence = 0
        self.phase = 0

    def choose(self, component: str, task: int, row: EmittedRow) -> Chosen:
        """Choose the tasks of a row that is sent later, or not at all. Raises GroupingError."""
        routes = self._routes_to(component, task, row.stream)
        before = [list(route.state) for route in routes]
        return Chosen(list(self._targets(routes, row)), before)

    def emit(
        self, component: str, task: int, row: EmittedRow, roots: Roots = NO_ROOTS, chosen: Chosen | None = None
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
        self.emit(component, task, EmittedRow(DEAD_LETTERS, letter.row()), roots)

    def run(self) -> None:
        """Run what is queued through the fused bolts. Raises BoltError."""
        for name in self._fused:
            self._run(name)

    def in_phases(self, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        """Yield tuples phase by phase; what is emitted meanwhile is of the phase of the one that was yielded last."""
        for arrival in sorted(arrivals, key=lambda each: each.phase):
            self.phase = arrival.phase
            yield arrival

    def take(self) -> list[ExchangeRow]:
        """Return what is packed so far as rows of the wire."""
        rows: list[ExchangeRow] = []
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

    def finish(self) -> list[ExchangeRow]:
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

    def metrics(self, component: str, values: Mapping[str, int | None]) -> list[ExchangeRow]:
        """Return numbers of a component as rows of the wire."""
        told = {name: value for name, value in values.items() if value is not None and (value or name in _STATES)}
        return [self._row(-1, "metric", component, value, None, name) for name, value in told.items()]

    # -- how a row finds its way ---------------------------------------------------------------------------------------

    def _routes_to(self, component: str, task: int, stream: str) -> list[_TaskRoute]:
        routes = self._routes.get((component, task, stream))
        if routes is None:
            routes = self._routes[component, task, stream] = self._routes_of(component, task, stream)
        return routes

    def _routes_of(self, component: str, task: int, stream: str) -> list[_TaskRoute]:
        stages = self._wiring.stages
        output = stages.topology.components[component].outputs.get(stream)
        routes = []
        for reader, grouping in stages.topology.readers(component, stream):
            assert output is not None
            first = stages.first_place(reader.id) if stages.placed(reader.id) else None
            choose = None if output.direct else grouping.targets(reader.parallelism, output.schema)
            state = [] if choose is None else choose.start(task + self._seed)
            by_code = grouping.kind is GroupingKind.CUSTOM
            routes.append(_TaskRoute(reader.id, first, self._wiring.task_ids[reader.id], choose, state, by_code))
        return routes

    def _targets(self, routes: list[_TaskRoute], row: EmittedRow) -> Iterable[tuple[_TaskRoute, Sequence[int]]]:
        if routes and routes[0].choose is None:  # a direct stream has direct readers only
            reader, index = direct_targets(row.task, {route.reader: route.ids for route in routes}, row.stream)
            return [(route, (index,)) for route in routes if route.reader == reader]
        return [(route, self._chosen(route, route.choose, row)) for route in routes if route.choose is not None]

    def _chosen(self, route: _TaskRoute, choose: Chooser, row: EmittedRow) -> Sequence[int]:
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
    ) -> ExchangeRow:
        self._sequence += 1
        return ExchangeRow(target, kind, stream, self._sender, self._sequence, self.now, source, value, data)


def _as_asked(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row as user code gets them."""
    return Held(values) if any(type(each) is Unreadable for each in values) else values


_STATES = ("watermark", "now")
"""Numbers that mean something when they are 0; of the others 0 is left out."""
