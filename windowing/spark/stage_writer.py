"""StageWriter: the output of one upstream in one batch. It runs the fused bolts and packs rows for the next exchange.

    send(component, task, stream, columns) --+--> by the tasks that a grouping chooses for all rows at once: packets
    emit(component, task, row) --------------+--> row by row, where a grouping looks at each: packets
                                             +--> queue of a fused task --run--> emit ...
                                             +--> columns for a sink
    take() --> exchange rows        finish() --> the largest timestamps, for every task of each reader

The tuples of a packet have the columns of their stream first, named by their positions, so that fields may have any names; then,
if a spout takes acks, their edges and roots (acks.py); `__task` (the emitting task of the component); `__phase` and `__pos` (the
position among the upstream's rows in this batch), which give the order of arrival (rows.py); the timestamp for the reader's
windows.

Laws: fused bolts run in the order of the plan, task by task, each queue first in, first out, as in LocalCluster; so the rows that
an upstream sends, and their order, depend only on its input. A grouping's round robin begins again for each upstream and batch, at
the upstream's own number.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowing.columnar.hashing import hashed_columns, hashes_of_int, is_hashed
from windowing.columnar.rows import Numbers
from windowing.errors import GroupingError, UnreadableValueError
from windowing.execution.metrics import TaskMetrics
from windowing.schema.tuples import Tuple, tuple_type
from windowing.schema.types import Schema
from windowing.spark.acks import EDGE, NO_ROOTS, ROOTS, Partials, Roots, edge_ids, packed_roots
from windowing.spark.context import Arrival, ExecutionContext
from windowing.spark.exchange import (
    FIRST_TASK,
    PHASE,
    POSITION,
    TASK,
    ExchangeRow,
    RowNumbering,
    WindowTimestamps,
    parted,
)
from windowing.spark.state import TIMESTAMP, TaskValues
from windowing.spark.tasks import BoltBatch, ColumnarBoltBatch, RetriedBatch, StreamBatch, TupleRun
from windowing.spark.unreadable import Held, Unreadable, arrow_column, plain, python_values, tuple_at, tuples_in
from windowing.topology.bolts import ComponentKind
from windowing.topology.dead_letters import DEAD_LETTERS, DeadLetter
from windowing.topology.groupings import (
    AllGrouping,
    Chooser,
    CustomGrouping,
    FieldsGrouping,
    GlobalGrouping,
    Grouping,
    PartialKeyGrouping,
    ShuffleGrouping,
    direct_targets,
    unrouted,
)
from windowing.topology.plan import stream_name
from windowing.topology.user_code import EmittedRow

_log = logging.getLogger("windowing.spark")
_PHASE_OF = attrgetter("_phase")
_RUN_OF = attrgetter("_phase", "_roots")
_STREAM_AND_TASK = itemgetter(0, 2)


class Spread(NamedTuple):
    """`choose` returns the tasks of all rows of a table at once: `width` columns with a task for each row; it advances the state.

    Law: the result and the new state equal those of `Grouping.targets` row by row.
    """

    width: int
    choose: Callable[[Mapping[str, pa.Array], int, list[int]], list[Numbers]]


def spread_of(grouping: Grouping, tasks: int, schema: Schema) -> Spread | None:
    """Return the Spread of a grouping; None for one that must be called for each row, as must a class with `targets` of its own."""
    targets = type(grouping).targets
    if targets is AllGrouping.targets:
        return Spread(tasks, lambda columns, count, state: [np.full(count, task) for task in range(tasks)])
    if targets is GlobalGrouping.targets:
        return Spread(1, lambda columns, count, state: [np.zeros(count, dtype=np.int64)])
    if targets is ShuffleGrouping.targets:
        return Spread(1, partial(_round_robin, tasks))
    choose = {FieldsGrouping.targets: _by_key, PartialKeyGrouping.targets: _by_two_tasks}.get(targets)
    if choose is None or not isinstance(grouping, FieldsGrouping):
        return None
    kinds = [schema.types[schema.names.index(name)] for name in grouping.fields]
    return Spread(1, partial(choose, tasks, grouping.fields, kinds)) if all(map(is_hashed, kinds)) else None


def _round_robin(tasks: int, columns: Mapping[str, pa.Array], count: int, state: list[int]) -> list[Numbers]:
    first, state[0] = state[0], (state[0] + count) % tasks
    return [(first + np.arange(count)) % tasks]


def _by_key(
    tasks: int,
    names: Sequence[str],
    kinds: Sequence[str],
    columns: Mapping[str, pa.Array],
    count: int,
    state: list[int],
) -> list[Numbers]:
    return [hashed_columns([columns[name] for name in names], kinds, count) % tasks]


def _by_two_tasks(
    tasks: int,
    names: Sequence[str],
    kinds: Sequence[str],
    columns: Mapping[str, pa.Array],
    count: int,
    state: list[int],
) -> list[Numbers]:
    """Choose as PartialKeyGrouping does. Cost: the hashes in numpy, and a comparison per row in Python, each after the last."""
    hashes = hashed_columns([columns[name] for name in names], kinds, count)
    first = hashes % tasks
    step = 1 + hashes_of_int(1, hashes) % (tasks - 1) if tasks > 1 else 0
    chosen = []
    for task, other in zip(first.tolist(), ((first + step) % tasks).tolist(), strict=True):
        if state[other] < state[task]:
            task = other
        state[task] += 1
        chosen.append(task)
    return [np.array(chosen, dtype=np.int64)]


class _TaskRoute(NamedTuple):
    """One reader of a stream of a task. `first`: its first task, None if it is fused; `ids`: the ids of its tasks.

    spread: chooses the tasks of all rows at once, None if the grouping must be called for each row. rows, tasks: rows that wait to
    be sent, and the task that was chosen for each, if they are chosen row by row.
    """

    reader: str
    first: int | None
    ids: range
    choose: Chooser | None
    state: list[int]
    by_code: bool
    spread: Spread | None
    rows: _Rows
    tasks: list[int]

    def parts(self, count: int) -> Iterator[tuple[int, slice]]:
        """Yield the tasks of a shuffle for `count` rows, each with its rows: with N tasks every N-th row."""
        tasks, first = len(self.ids), self.state[0]
        self.state[0] = (first + count) % tasks
        for start in range(min(tasks, count)):
            yield (first + start) % tasks, slice(start, None, tasks)


_Targets = list[tuple[_TaskRoute, Sequence[int]]]
"""Of each route the indexes of the tasks that a row is sent to."""


class Chosen(NamedTuple):
    """The tasks of a row, by route, chosen before the row is sent."""

    targets: _Targets
    before: list[list[int]]

    def ids(self) -> list[int]:
        return [route.ids[index] for route, indexes in self.targets for index in indexes]

    def undo(self) -> None:
        """Restore the state of the groupings before this choice; the last choice must be undone first."""
        for (route, _), state in zip(self.targets, self.before, strict=True):
            route.state[:] = state


class _Rows(NamedTuple):
    """Rows to send, in the order in which they were emitted."""

    values: list[tuple[Any, ...]]
    phases: list[int]
    positions: list[int]
    roots: list[Roots]

    def clear(self) -> None:
        for each in self:
            each.clear()


class _Columns(NamedTuple):
    """Rows to send as columns of the declared types, by field name."""

    fields: dict[str, pa.Array]
    phases: Numbers
    positions: Numbers
    roots: Sequence[Roots]

    def take(self, at: Numbers | None) -> _Columns:
        """Return the rows at these positions, None for all of them."""
        if at is None:
            return self
        taken, roots = pa.array(at), self.roots
        fields = {name: column.take(taken) for name, column in self.fields.items()}
        return _Columns(fields, self.phases[at], self.positions[at], [roots[number] for number in at.tolist()])


class _Way:
    """One stream of a task, and its readers: fused tasks, and tasks behind an exchange (`placed`).

    width: the number of `placed` tasks per row, None if the tasks are chosen row by row. rows: rows that wait to be sent as
    columns. is_out: whether the stream has a sink.
    """

    def __init__(self, execution: ExecutionContext, sender: tuple[str, int, str], routes: list[_TaskRoute]) -> None:
        self.component, self.task, self.stream = sender
        self.routes, self.is_out = routes, stream_name(self.component, self.stream) in execution.sinks
        self.origin = execution.origin(*sender) if routes else None
        self.arrival = Arrival if self.origin is None else tuple_type(Arrival, self.origin.fields.names)
        self.fused = [route for route in routes if route.first is None]
        self.placed = [route for route in routes if route.first is not None]
        # `emit` of a bolt that acks by itself returns the tasks of each row.
        by_itself = execution.component(self.component).kind is ComponentKind.BOLT
        by_row = by_itself or any(route.choose is None or route.spread is None for route in routes)
        self.width = None if by_row else sum(route.spread.width for route in self.placed if route.spread is not None)
        self.rows = _Rows([], [], [], [])
        self.emitted = 0


class StageWriter:
    """The output of one upstream in the batch with this number. `partials`: its partials, if a spout takes acks.

    Rows whose tasks can be chosen over columns are collected and sent as columns; rows that arrive in columns (`send`) stay
    columns. All other rows are sent one by one. Law: both ways send the same tuples in the same order; only the number of packets
    differs.
    """

    def __init__(self, execution: ExecutionContext, upstream: int, now: int, batch: int = -1) -> None:
        self.execution, self._sent = execution, RowNumbering(upstream, now)
        self.partials = Partials()
        self._batch = execution.batches_before + batch
        self._seed = upstream if upstream < FIRST_TASK else 0
        self._stages = execution.plan.stages
        self._fused = [name for name in execution.topology.order if name not in self._stages]
        self._ways: dict[tuple[str, int, str], _Way] = {}
        self._tasks: dict[tuple[str, int], RetriedBatch[Any]] = {}
        self._queues: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._packed: list[tuple[tuple[int, str, str, int], pa.Table]] = []
        self._out: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
        self._out_columns: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        self._timestamps: dict[tuple[str, str], WindowTimestamps] = {}
        self._unreadable: Counter[str] = Counter()
        self._position = 0
        self.phase = 0

    def choose(self, component: str, task: int, row: EmittedRow) -> Chosen:
        """Choose the tasks of a row that may be sent later. Raises GroupingError."""
        routes = self._way(component, task, row.stream).routes
        before = [list(route.state) for route in routes]
        return Chosen(self._targets(component, routes, row), before)

    def send(
        self,
        component: str,
        task: int,
        stream: str,
        batch: pa.RecordBatch,
        roots: Roots = NO_ROOTS,
        tasks: Numbers | None = None,
    ) -> None:
        """Send all rows of a batch whose columns are the fields of the stream. `tasks`: the tasks of its only reader behind an
        exchange, if known. Cost: a few passes of numpy and Arrow over the columns; Python rows are made only for groupings that
        must be called for each row, and for fused tasks.
        """
        way, count = self._way(component, task, stream), batch.num_rows
        way.emitted += 0 if way.width is None else count
        schema = self.execution.schemas[stream_name(component, stream)]
        given = dict(zip(schema.names, batch.columns, strict=True))
        if way.width is None:
            for values in tuples_in(given.values(), given):
                self.emit(component, task, EmittedRow(stream, values), roots)
            return
        self._flush(way)
        fields = {field.name: _declared(component, stream, field, given[field.name]) for field in schema}
        if way.fused:
            self._hand_over_columns(way, given, fields, count, roots)
        if way.is_out:
            self._flush_out(component, stream)
            self._out_columns[component, stream].append(pa.table(fields))
        if way.width:
            positions = self._position + way.width * np.arange(count)
            self._position += way.width * count
            rows = _Columns(fields, np.full(count, self.phase), positions, [roots] * count)
            self._spread(way, rows, tasks=tasks)

    def emit(
        self, component: str, task: int, row: EmittedRow, roots: Roots = NO_ROOTS, chosen: Chosen | None = None
    ) -> None:
        """Send one row of a task, anchored to `roots`, to all its readers; `chosen`: tasks that were chosen before. Raises
        GroupingError if a grouping cannot choose.
        """
        stream, values, _ = row
        way = self._way(component, task, stream)
        as_held = plain(values) if type(values) is Held else values
        if way.is_out:
            self._out.setdefault((component, stream), []).append(as_held)
        if way.width is not None:
            if way.width:  # counted in `_flush`
                self._add(way.rows, as_held, roots, way.width)
            else:
                way.emitted += 1
            self._hand_over(way, values, roots)
            return
        way.emitted += 1
        for route, indexes in self._targets(component, way.routes, row) if chosen is None else chosen.targets:
            for target in indexes:
                if route.first is None:
                    assert way.origin is not None
                    self._queues[route.reader][target].append(way.arrival(values, way.origin, self.phase, roots))
                else:
                    route.tasks.append(target)
                    self._add(route.rows, as_held, roots, 1)

    def emit_all(
        self,
        component: str,
        task: int,
        stream: str,
        rows: Sequence[tuple[Any, ...]],
        phase: int,
        roots: Roots = NO_ROOTS,
        to: int | None = None,
    ) -> None:
        """Like `emit` for many rows of a stream that a task made, all with this phase and these roots, and for the task with the id
        `to` if the stream is direct.
        """
        way, count = self._way(component, task, stream), len(rows)
        if way.width is None:
            before, self.phase = self.phase, phase
            for values in rows:
                self.emit(component, task, EmittedRow(stream, values, to), roots)
            self.phase = before
            return
        if not rows:
            return
        if way.is_out:
            self._out.setdefault((component, stream), []).extend(rows)
        if way.width:
            last = self._position + way.width * count
            way.rows.values.extend(rows)
            way.rows.phases.extend([phase] * count)
            way.rows.positions.extend(range(self._position, last, way.width))
            way.rows.roots.extend([roots] * count)
            self._position = last
        else:
            way.emitted += count
        if way.fused:
            self._queue(way, rows, phase, roots)

    def emit_each(self, component: str, task: int, rows: Sequence[EmittedRow], phase: int, roots: Roots) -> None:
        """Like `emit_all` for rows of several streams, in their order."""
        for (stream, to), run in groupby(rows, key=_STREAM_AND_TASK):
            self.emit_all(component, task, stream, [row.values for row in run], phase, roots, to)

    def _add(self, rows: _Rows, values: tuple[Any, ...], roots: Roots, width: int) -> None:
        rows.values.append(values)
        rows.phases.append(self.phase)
        rows.positions.append(self._position)
        rows.roots.append(roots)
        self._position += width

    def _hand_over(self, way: _Way, values: tuple[Any, ...], roots: Roots) -> None:
        """Queue a row for the fused tasks; their groupings (shuffles) do not depend on values."""
        for route in way.fused:
            assert way.origin is not None
            assert route.choose is not None
            for target in route.choose(values, route.state):
                self._queues[route.reader][target].append(way.arrival(values, way.origin, self.phase, roots))

    def _queue(self, way: _Way, rows: Sequence[tuple[Any, ...]], phase: int, roots: Roots) -> None:
        """Queue rows for the fused tasks; their shuffles choose the tasks of all rows at once."""
        assert way.origin is not None
        for route in way.fused:
            for target, at in route.parts(len(rows)):
                run = TupleRun(rows[at], way.arrival, way.origin, phase, roots)
                self._queues[route.reader][target].append(run)

    def _hand_over_columns(
        self, way: _Way, given: dict[str, pa.Array], fields: dict[str, pa.Array], count: int, roots: Roots
    ) -> None:
        """Queue rows as columns for the fused tasks: in the declared types for those that take batches, as values for tuples."""
        assert way.origin is not None
        values: list[list[Any]] | None = None
        table = pa.table(fields) if any(route.reader in self.execution.columnar for route in way.fused) else None
        for route in way.fused:
            for target, at in route.parts(count):
                if table is not None and route.reader in self.execution.columnar:
                    mine = table if at.step == 1 else table.take(pa.array(np.arange(count)[at]))
                    run: Any = StreamBatch(mine, way.origin, self.phase, roots)
                else:
                    values = values or [python_values(column, name) for name, column in given.items()]
                    mine = [type(column)(column[at]) for column in values]
                    anew = partial(tuple_at, given.values(), given, range(*at.indices(count)))
                    run = TupleRun(tuples_in(mine, given), way.arrival, way.origin, self.phase, roots, anew)
                self._queues[route.reader][target].append(run)

    def dead_letter(self, component: str, task: int, failed: DeadLetter, roots: Roots) -> None:
        """Send the dead letter of a tuple with these roots, whose last attempt a task has failed."""
        self.partials.give_up(roots, component)
        self.emit(component, task, EmittedRow(DEAD_LETTERS, failed.row()), roots)

    def run(self) -> None:
        """Run the fused bolts on all queued tuples. Raises BoltError."""
        for name in self._fused:
            self._run(name)

    def in_phases(self, arrivals: Iterable[Any]) -> Iterator[Any]:
        """Yield tuples, also those of TupleRuns, or batches; rows emitted meanwhile get the phase of the last yielded one."""
        return chain.from_iterable(tuples for _, _, tuples in self.runs(arrivals))

    def runs(self, arrivals: Iterable[Any]) -> Iterator[tuple[int, Roots, Iterator[Any]]]:
        """Yield the same by phase and roots: tuples that follow each other with both alike."""
        for (self.phase, roots), run in groupby(sorted(arrivals, key=_PHASE_OF), _RUN_OF):
            yield (
                self.phase,
                roots,
                chain.from_iterable(each.tuples() if type(each) is TupleRun else (each,) for each in run),
            )

    def take(self) -> list[ExchangeRow]:
        """Return the packed rows so far as exchange rows."""
        for way in self._ways.values():
            self._flush(way)
        rows: list[ExchangeRow] = []
        for (target, component, stream, _), table in sorted(self._packed, key=lambda each: each[0]):
            rows += self._sent.packets(target, "rows", stream_name(component, stream), table)
        for component, stream in list(self._out):
            self._flush_out(component, stream)
        for (component, stream), tables in sorted(self._out_columns.items()):
            for table in tables:
                rows += self._sent.packets(-1, "out", stream_name(component, stream), table)
        self._packed.clear()
        self._out_columns.clear()
        return rows

    def finish(self) -> list[ExchangeRow]:
        """Close the fused tasks; return their last rows, and the largest timestamps for every task of each reader."""
        for name in self._fused:
            self._run(name)  # includes rows that upstream tasks emitted at their end
            for (component, _), running in sorted(self._tasks.items()):
                if component == name:
                    running.close()
        rows = self.take()
        for (reader, stream), found in sorted(self._timestamps.items()):
            first = self._stages[reader].first
            rows += self._sent.largest(
                range(first, first + self.execution.component(reader).parallelism), stream, found.largest
            )
        for (name, _), running in sorted(self._tasks.items()):
            rows += self.metrics(name, running.counts())
        for name, count in sorted(self._unreadable.items()):
            rows += self.metrics(name, {"invalid": count})
        partials = self.partials.table()
        if partials is not None:
            rows.append(self._sent.row(-1, "ack", data=partials))
        return rows

    def done(self) -> list[TaskMetrics]:
        """Return the metrics of the components that sent or ran here: emitted rows, and the work of fused bolts."""
        found = {key: running.metrics() for key, running in self._tasks.items()}
        for (component, task, stream), way in self._ways.items():
            if way.emitted:
                each = found.setdefault((component, task), TaskMetrics(component, task))
                each.emitted[stream] = way.emitted
        return [found[key] for key in sorted(found)]

    def metrics(self, component: str, values: Mapping[str, int | None]) -> list[ExchangeRow]:
        """Return metrics of a component as exchange rows."""
        known = {name: value for name, value in values.items() if value is not None and (value or name in _STATES)}
        return [self._sent.row(-1, "metric", component, value, None, name) for name, value in known.items()]

    # -- routing -------------------------------------------------------------------------------------------------------

    def _way(self, component: str, task: int, stream: str) -> _Way:
        sender = component, task, stream
        way = self._ways.get(sender)
        if way is not None:
            return way
        topology = self.execution.topology
        output = topology.components[component].outputs.get(stream)
        routes = []
        for reader, grouping in topology.readers(component, stream):
            assert output is not None
            first = self._stages[reader.id].first if reader.id in self._stages else None
            choose = None if output.direct else grouping.targets(reader.parallelism, output.schema)
            state = grouping.start(reader.parallelism, task + self._seed)
            by_code = isinstance(grouping, CustomGrouping)
            spread = spread_of(grouping, reader.parallelism, output.schema)
            ids, rows = self.execution.task_ids[reader.id], _Rows([], [], [], [])
            routes.append(_TaskRoute(reader.id, first, ids, choose, state, by_code, spread, rows, []))
        way = self._ways[sender] = _Way(self.execution, sender, routes)
        return way

    def _targets(self, component: str, routes: list[_TaskRoute], row: EmittedRow) -> _Targets:
        try:
            if routes and routes[0].choose is None:  # a direct stream has direct readers only
                reader, index = direct_targets(row.task, {route.reader: route.ids for route in routes})
                return [(route, (index,)) for route in routes if route.reader == reader]
            return [(route, self._chosen(route, route.choose, row)) for route in routes if route.choose is not None]
        except GroupingError as problem:
            raise unrouted(problem, component, row.stream) from problem.__cause__

    def _chosen(self, route: _TaskRoute, choose: Chooser, row: EmittedRow) -> Sequence[int]:
        if type(row.values) is not Held:
            return choose(row.values, route.state)
        try:
            return choose(row.values if route.by_code else plain(row.values), route.state)
        except UnreadableValueError as problem:
            if not self._unreadable[route.reader]:
                _log.warning(
                    "a tuple for bolt %r goes nowhere: its grouping asks for what cannot be read: %s",
                    route.reader,
                    problem,
                )
            self._unreadable[route.reader] += 1
            return ()

    def _run(self, name: str) -> None:
        for task, waiting in sorted(self._queues.pop(name, {}).items()):
            began = time.perf_counter()
            if (name, task) not in self._tasks:
                self._tasks[name, task] = self.bolt_batch(name, task)
            running = self._tasks[name, task]
            running.take(self._batched(waiting) if name in self.execution.columnar else waiting)
            running.done.execute_ms += 1000 * (time.perf_counter() - began)

    def _batched(self, waiting: Iterable[Any]) -> Iterator[StreamBatch]:
        """Yield the queue of a task that takes batches: batches of columns unchanged, consecutive rows as one batch."""
        for _, run in groupby(self.in_phases(waiting), key=_same_batch):
            rows = list(run)
            if isinstance(rows[0], StreamBatch):
                yield from rows
                continue
            origin = rows[0]._origin
            columns = self._columns(origin.component, origin.stream, [plain(row._values) for row in rows])
            yield StreamBatch(pa.table(columns), origin, rows[0]._phase, rows[0]._roots)

    def bolt_batch(self, name: str, task: int, values: TaskValues | None = None) -> RetriedBatch[Any]:
        """Return a task of a bolt without windows that emits through this writer. values: its state, if it is stateful."""
        if name in self.execution.columnar:
            return ColumnarBoltBatch(self, name, task)
        return BoltBatch(self, name, task, values)

    def abandon(self) -> None:
        """Call `cleanup` of the fused bolts that an error has kept from it; no effect after `finish`."""
        for running in self._tasks.values():
            running.abandon()

    def _flush(self, way: _Way) -> None:
        """Pack the collected rows, before other rows of their stream."""
        if way.rows.values:
            way.emitted += len(way.rows.values)
            self._spread(way, self._as_columns(way, way.rows), way.rows.values)
            way.rows.clear()
        for route in way.placed:
            if route.tasks:
                rows = self._as_columns(way, route.rows)
                stamps = self._stamps(route.reader, way, rows.fields, route.rows.values)
                self._pack(way, route, rows, stamps, np.array(route.tasks))
                route.rows.clear()
                route.tasks.clear()

    def _flush_out(self, component: str, stream: str) -> None:
        values = self._out.pop((component, stream), None)
        if values is not None:
            self._out_columns[component, stream].append(pa.table(self._columns(component, stream, values)))

    # -- packing -------------------------------------------------------------------------------------------------------

    def _as_columns(self, way: _Way, rows: _Rows) -> _Columns:
        fields = self._columns(way.component, way.stream, rows.values)
        return _Columns(fields, np.array(rows.phases), np.array(rows.positions), list(rows.roots))

    def _spread(
        self, way: _Way, rows: _Columns, values: Sequence[tuple[Any, ...]] | None = None, tasks: Numbers | None = None
    ) -> None:
        """Pack rows for all their tasks, which the groupings choose for all rows at once, or which `tasks` gives."""
        for route in way.placed:
            assert route.spread is not None
            stamps = self._stamps(route.reader, way, rows.fields, values)
            count = len(rows.positions)
            for chosen in route.spread.choose(rows.fields, count, route.state) if tasks is None else [tasks]:
                self._pack(way, route, rows, stamps, chosen)
                rows = rows._replace(positions=rows.positions + 1)

    def _pack(self, way: _Way, route: _TaskRoute, rows: _Columns, stamps: pa.Int64Array, tasks: Numbers) -> None:
        """Pack rows with these timestamps, each for its task of a reader."""
        assert route.first is not None
        for index, at in parted(tasks, len(route.ids)):
            target = route.first + index
            of_task = stamps if at is None else stamps.take(pa.array(at))
            packed = self._table(target, way.task, rows.take(at), of_task)
            self._packed.append(((target, way.component, way.stream, way.task), packed))

    def _table(self, target: int, task: int, rows: _Columns, stamps: pa.Int64Array) -> pa.Table:
        edges: dict[str, pa.Array] = {}
        if self.execution.acks:
            ids = edge_ids(self._batch, self._sent.upstream, target, rows.positions)
            self.partials.made(ids, rows.roots)
            edges = {EDGE: pa.array(ids), ROOTS: packed_roots(rows.roots)}
        return pa.table(
            {
                **{str(position): column for position, column in enumerate(rows.fields.values())},
                **edges,
                TASK: pa.repeat(pa.scalar(task, pa.int32()), len(rows.positions)),
                PHASE: pa.array(rows.phases, pa.int32()),
                POSITION: pa.array(rows.positions, pa.int64()),
                TIMESTAMP: stamps,
            }
        )

    def _columns(self, component: str, stream: str, values: Sequence[tuple[Any, ...]]) -> dict[str, pa.Array]:
        schema = self.execution.schemas[stream_name(component, stream)]
        by_field = zip(schema, zip(*values, strict=True), strict=True)
        return {field.name: arrow_column(component, stream, field, column) for field, column in by_field}

    def _stamps(
        self, reader: str, way: _Way, columns: Mapping[str, pa.Array], values: Sequence[tuple[Any, ...]] | None
    ) -> pa.Int64Array:
        """Return the timestamps of these tuples for the reader's windows, and record the largest for all its tasks. `values`: the
        emitted tuples, if they were not emitted as columns.
        """
        count = len(next(iter(columns.values())))
        window = self.execution.windows.get(reader)
        if window is None:
            return pa.repeat(pa.scalar(self._sent.now, pa.int64()), count)
        key = reader, stream_name(way.component, way.stream)
        if key not in self._timestamps:
            self._timestamps[key] = WindowTimestamps.of_windows(reader, window.config)

        def tuples() -> Iterator[Tuple]:
            origin = self.execution.origin(way.component, way.task, way.stream)
            rows = tuples_in(columns.values(), columns) if values is None else map(as_asked, values)
            return (Tuple(each, origin) for each in rows)

        return self._timestamps[key].of(columns.__getitem__, count, self._sent.now, tuples)


def _same_batch(waiting: Any) -> Any:
    """Return the key by which consecutive rows form one batch; a batch of columns is a group of its own."""
    if isinstance(waiting, StreamBatch):
        return id(waiting)
    origin = waiting._origin
    return origin.component, origin.stream, waiting._phase, waiting._roots


def _declared(component: str, stream: str, field: pa.Field, column: pa.Array) -> pa.Array:
    """Return a column of Spark in the declared type; names of nested fields or of the zone may differ."""
    if column.type == field.type:
        return column
    if pa.types.is_nested(field.type):
        return arrow_column(component, stream, field, python_values(column, field.name))
    return column.cast(field.type)


def as_asked(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row in the form that user code gets."""
    return Held(values) if any(type(each) is Unreadable for each in values) else values


_STATES = ("watermark", "now")
"""Metrics for which 0 is a value; of all others 0 is left out."""
