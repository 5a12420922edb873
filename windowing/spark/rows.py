"""The rows of a task: as the bolt gets them, their order of arrival, and their form in stored chunks.

    packets of a batch --arrived--> a table in the order of arrival --payloads, in_columns--> the payloads of windows
                                       |
                                       +--> columns of the chunks (state.py)

A windowed task has one of two RowFormats: NamedRows are the rows of `windowed`, Records of one set of columns; TupleRows are those
of a topology. A `table` argument has at least the columns of a chunk.

NamedRows: `order_by=` gives a total order of a batch's rows, independent of their partitions: rows that are equal in these columns
are ordered by input stream, then by all their columns. Only identical rows can still change places, so the order depends on the
rows and not on how Spark packed them. Ascending, as Arrow sorts; nulls last. Cost: a sort by the columns of `order_by` and a
comparison of neighbours (0.2 us per row); with ties, a second sort by all columns.

TupleRows: Tuples of one or several streams, each with its own fields.

    __in   __task   0.word   0.at   1.word   1.price         __in: which subscription; __task: the emitting task
    0      2        "cow"    17
    1      0                        "cow"    3.5

(and __edge, __roots if a spout takes acks: acks.py)

The stored chunks are one wide table; the columns of a subscription are null in the rows of the others.

Their order of arrival: the phase, the component in the order of the plan, its task, the upstream, the position in the upstream's
output. Phase 0 are the tuples that come from the input without passing a window; phase n those that the n-th windowed task has
caused. Law: this is a total order of a task's tuples of one batch, independent of the order of the packets, and it is the order of
LocalCluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.columnar import ColumnRows, Keys
from windowing.columnar.rows import MakeRows, codable, decode_table, values_of
from windowing.schema.rows import record_type
from windowing.schema.tuples import Origin, Tuple, tuple_type
from windowing.spark.acks import EDGE, NO_ROOTS, ROOTS, Roots, unpacked_roots
from windowing.spark.context import Arrival, ExecutionContext
from windowing.spark.exchange import PHASE, POSITION, TASK, ExchangeRow
from windowing.spark.state import TIMESTAMP
from windowing.spark.tasks import StreamBatch, TupleRun
from windowing.spark.unreadable import any_of, plain, python_values, records_in, tuple_at, tuples_in, unreadable_in
from windowing.topology.plan import Subscription, stream_name
from windowing.windows.aggregate import aggregated_fields
from windowing.windows.config import WindowConfig
from windowing.windows.key_state import one_nan


def in_order(table: pa.Table, order_by: Sequence[str], columns: Sequence[str], streams: pa.Array) -> pa.Table:
    """Return the rows of `table` in order of arrival: by `order_by`, `streams[i]` (the number of row i's input stream), then
    by all `columns`.
    """
    first = [_typed(table.column(name).combine_chunks()) for name in order_by]
    order = _sorted(first)
    if _has_ties([column.take(order) for column in first]):
        order = _sorted([*first, streams, *(_comparable(table.column(name).combine_chunks()) for name in columns)])
    return table.take(order)


def _sorted(keys: Sequence[pa.Array]) -> pa.Array:
    """Return the positions of the rows in ascending order of all keys."""
    names = [f"{number}" for number in range(len(keys))]
    return pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, "ascending") for name in names])


def _has_ties(columns: Sequence[pa.Array]) -> bool:
    """Whether two neighbours are equal in all columns."""
    equal = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in columns:  # compared as the sort does: all nulls are equal, and all NaN are equal
        one, other = column[:-1], column[1:]
        same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
        if pa.types.is_floating(one.type):
            same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
        equal &= np.asarray(same)
    return bool(equal.any())


def _typed(column: pa.Array) -> pa.Array:
    """Return a column of Spark's type void as nulls of a type that Arrow compares."""
    return pa.nulls(len(column), pa.int8()) if pa.types.is_null(column.type) else column


def _comparable(column: pa.Array) -> pa.Array:
    """Return a column that Arrow sorts and in which only the same values are equal: 0.0 and -0.0 are two."""
    column = _typed(column)
    kind = column.type
    if pa.types.is_floating(kind):
        return column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width])
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else repr(value) for value in python_values(column, "")], pa.string())
    return column


# -- Formats ---------------------------------------------------------------------------------------------------------------------


_STREAM = "\0stream"
"""The column with the number of a row's input stream; no column of a DataFrame has this name."""


def read_by_windows(config: WindowConfig) -> tuple[str, ...] | None:
    """Return the fields that windows read before the bolt is called; None for all, if user code gets whole rows."""
    if config.trigger is not None or config.eviction is not None:
        return None
    aggregated = () if config.aggregate is None else aggregated_fields(config.aggregate)
    return None if None in aggregated else (*(config.key or ()), *filter(None, aggregated))


class NamedRows:
    """Rows as Records of these columns. `streams`: the input streams, whose order is part of the order of arrival; `order_by`:
    columns that give the order instead. `identified`: whether `identities` is used.
    """

    declared: pa.Schema | None = None

    def __init__(
        self,
        columns: tuple[str, ...],
        streams: tuple[str, ...] = ("default",),
        order_by: tuple[str, ...] = (),
        identified: bool = False,
    ) -> None:
        self._columns, self._streams, self._order_by = columns, streams, order_by
        self._identifies_streams = identified and len(streams) > 1

    @cached_property
    def _type(self) -> Any:
        return record_type(self._columns)

    def arrived(self, packets: Sequence[ExchangeRow]) -> pa.Table:
        """Return the rows by (stream, upstream partition, sequence, position), or by `order_by`."""
        position = {stream: index for index, stream in enumerate(self._streams)}
        ordered = sorted(packets, key=lambda each: (position[each.stream], each.upstream, each.sequence))
        names = [*self._columns, TIMESTAMP]
        tables = [decode_table(each.data).rename_columns(names) for each in ordered]
        table = pa.concat_tables(tables)
        if self._order_by or self._identifies_streams:
            streams = pa.array(
                np.concatenate(
                    [np.full(part.num_rows, position[each.stream]) for each, part in zip(ordered, tables, strict=True)]
                )
            )
            if self._identifies_streams:
                table = table.append_column(_STREAM, streams)
            if self._order_by:
                table = in_order(table, self._order_by, self._columns, streams)
        return table.combine_chunks()

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the input columns; rows that were stored before a column was added have null there."""
        count, there = table.num_rows, {*table.column_names}
        return pa.table({name: table.column(name) if name in there else pa.nulls(count) for name in self._columns})

    def payloads(self, table: pa.Table) -> list[Any]:
        if not self._columns:
            return [self._type() for _ in range(table.num_rows)]
        return list(records_in(map(table.column, self._columns), self._columns))

    make_rows = payloads

    def in_columns(self, table: pa.Table) -> ColumnRows:
        """Return the rows as columns, from which a payload is made only on access."""
        return ColumnRows(self.kept(table), self.payloads)

    def keys(self, table: pa.Table, payloads: Sequence[Any], names: tuple[str, ...]) -> Sequence[Any]:
        """Return the values of the key's columns; they stay columns if the rows do and if Arrow compares keys as Python does."""
        found = self.key_columns(table, names) if isinstance(payloads, ColumnRows) else None
        if found is not None:
            return found
        columns = [_keys_of(table.column(name)) for name in names]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def key_columns(self, table: pa.Table, names: tuple[str, ...]) -> Keys | None:
        """Return the key= of each row as columns; None if Arrow compares them unlike Python."""
        found = [table.column(name) for name in names]
        return Keys(found) if all(codable(each.type) for each in found) else None

    def identities(self, table: pa.Table, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the message ids, each unique on its input stream."""
        numbers = table.column(_STREAM).to_pylist() if self._identifies_streams else [0] * table.num_rows
        return values_of(table.column(name)), [self._streams[number] for number in numbers]

    def is_row(self, value: Any) -> bool:
        return isinstance(value, self._type)

    def fields(self, payload: Any) -> dict[str, Any]:
        """Return the values of a payload, for the late stream."""
        return dict(zip(self._columns, plain(payload), strict=True))

    def unreadable(self, table: pa.Table, names: Sequence[str] | None) -> np.ndarray[Any, Any] | None:
        """Return which rows have a value in one of these fields (None: in any) that Python cannot hold; None for no row."""
        return any_of(unreadable_in(table.column(name)) for name in (self._columns if names is None else names))


def _keys_of(column: pa.ChunkedArray) -> list[Any]:
    values = values_of(column)
    return list(map(one_nan, values)) if pa.types.is_floating(column.type) else values


# -- Tuples of a topology ---------------------------------------------------------------------------------------------------------


INPUT = "__in"
"""The column of stored tuples with the number of their input, from 0."""
_UPSTREAM = "__upstream"
_RANK = "__rank"
_ORDER = (PHASE, _RANK, TASK, _UPSTREAM, POSITION)


class TupleRows:
    """The table format of the tuples of a bolt behind an exchange. Cost: a Tuple for each row; columns are processed by Arrow."""

    def __init__(self, execution: ExecutionContext, component: str) -> None:
        self._execution, self._component = execution, component
        self._inputs = execution.component(component).inputs
        self._window = execution.windows.get(component)

    @cached_property
    def _names(self) -> list[str]:
        return [stream_name(found.component, found.stream) for found in self._inputs]

    @property
    def _anchors(self) -> tuple[str, ...]:
        return (EDGE, ROOTS) if self._execution.acks else ()

    @cached_property
    def _schemas(self) -> list[pa.Schema]:
        return [self._execution.schemas[name] for name in self._names]

    @cached_property
    def _columns(self) -> list[list[str]]:
        """The names of the columns of each subscription in the wide table."""
        return [[f"{number}.{field.name}" for field in schema] for number, schema in enumerate(self._schemas)]

    def arrived(self, packets: Sequence[ExchangeRow]) -> pa.Table:
        """Return the rows of all packets in order of arrival.

        Cost: a sort, unless the packets do not overlap, as with packets of spouts or of one task.
        """
        tables = sorted(map(self._wide, packets), key=_first)
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        return (
            table if _is_in_order(table) else table.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()
        )

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the columns of all subscriptions, including those without a row in this table."""
        count, there = table.num_rows, {*table.column_names}
        columns = {name: table.column(name) for name in (INPUT, TASK, *self._anchors)}
        for names, schema in zip(self._columns, self._schemas, strict=True):
            for name, field in zip(names, schema, strict=True):
                columns[name] = table.column(name) if name in there else pa.nulls(count, field.type)
        return pa.table(columns)

    def payloads(self, table: pa.Table, columns_of: Sequence[Sequence[str]] | None = None) -> list[Any]:
        """Return a Tuple for each row; it has its phase if it arrived in this batch. columns_of: the columns of the fields, by
        input; by default those of the wide table.
        """
        columns_of = self._columns if columns_of is None else columns_of
        made: list[Any] = [None] * table.num_rows
        known: dict[bytes, Roots] = {}
        inputs = table.column(INPUT)
        for number, found in enumerate(self._inputs):
            positions = np.flatnonzero(pc.equal(inputs, number).to_numpy(zero_copy_only=False))
            if not len(positions):
                continue
            mine = table if len(positions) == table.num_rows else table.take(pa.array(positions))
            fields = self._schemas[number].names
            of_rows = tuples_in(map(mine.column, columns_of[number]), fields)
            phases = mine.column(PHASE).to_pylist() if PHASE in mine.schema.names else repeat(0)
            edges = mine.column(EDGE).to_pylist() if self._anchors else repeat(0)
            roots = unpacked_roots(mine.column(ROOTS), known) if self._anchors else repeat(NO_ROOTS)
            kind = tuple_type(Arrival, tuple(fields))
            arrivals = map(kind, of_rows, self._origins_of(found, mine.column(TASK)), phases, roots, edges)
            if mine is table:
                return list(arrivals)
            for position, arrival in zip(positions.tolist(), arrivals, strict=True):
                made[position] = arrival
        return made

    def batches(self, table: pa.Table) -> Iterator[StreamBatch]:
        """Yield the rows of an arrived table, in order, as batches of one stream, one phase and the same roots.

        Cost: a pass over these columns; none for each row.
        """
        known: dict[bytes, Roots] = {}
        for number, origin, mine in self._parts(table, (INPUT, PHASE, *((ROOTS,) if self._anchors else ()))):
            columns = self._columns[number]
            rows = pa.Table.from_arrays(list(map(mine.column, columns)), self._schemas[number].names)
            roots = unpacked_roots(mine.column(ROOTS).slice(0, 1), known)[0] if self._anchors else NO_ROOTS
            yield StreamBatch(rows, origin, mine.column(PHASE)[0].as_py(), roots)

    def runs(self, table: pa.Table) -> Iterator[TupleRun]:
        """Yield the rows of an arrived table, in order, as runs of one task's stream and one phase; they have no roots.

        Cost: that of their Python values, and a pass over these columns.
        """
        for number, origin, mine in self._parts(table, (INPUT, PHASE, TASK)):
            names = self._schemas[number].names
            columns = [*map(mine.column, self._columns[number])]
            kind, anew = tuple_type(Arrival, tuple(names)), partial(tuple_at, columns, names, range(mine.num_rows))
            yield TupleRun(tuples_in(columns, names), kind, origin, mine.column(PHASE)[0].as_py(), NO_ROOTS, anew)

    def _parts(self, table: pa.Table, names: Sequence[str]) -> Iterator[tuple[int, Origin, pa.Table]]:
        """Yield the rows that follow each other with the same values in these columns, one of them INPUT; before them the number of
        their input, and the origin of the first.
        """
        count = table.num_rows
        ends = np.zeros(count, dtype=bool)
        for name in names:
            values = table.column(name).combine_chunks()
            if name == ROOTS:
                values = pc.dictionary_encode(values, null_encoding="encode").indices
            numbers = values.to_numpy(zero_copy_only=False)
            ends[1:] |= numbers[1:] != numbers[:-1]
        starts = [0, *np.flatnonzero(ends).tolist()]
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            mine = table.slice(start, end - start)
            number = mine.column(INPUT)[0].as_py()
            found = self._inputs[number]
            task = mine.column(TASK)[0].as_py()
            yield number, self._execution.origin(found.component, task, found.stream), mine

    @cached_property
    def declared(self) -> pa.Schema | None:
        """The columns that windows with `columnar=` show: the fields if all inputs have the same ones; else None."""
        first, *others = self._schemas
        return first if all({*other} == {*first} for other in others) else None

    @cached_property
    def make_rows(self) -> MakeRows | None:
        """The function that creates Tuples from a queue of columns; None if windows with `columnar=` must store Tuples.

        That is the case if the tuples have roots, which a table of fields cannot hold, or if a field of several inputs is nested,
        which Arrow cannot merge.
        """
        held = None if self._component in self._execution.rooted else self.declared
        if held is None or {INPUT, TASK, PHASE} & {*held.names} or not {*held.names} <= self._alike.keys():
            return None
        return self._of_fields

    def _of_fields(self, table: pa.Table) -> Sequence[Any]:
        """Return a Tuple for each row of a table whose columns are named by the fields."""
        return self.payloads(table, [schema.names for schema in self._schemas])

    def in_columns(self, table: pa.Table) -> Sequence[Any]:
        """Return the rows as columns, whose Tuples are created on access.

        Returns Tuples if windows read fields that differ between the inputs, or pass tuples to functions.
        """
        if self._holds_columns:
            assert self.declared is not None
            kept = [name for name in (INPUT, TASK, PHASE) if name in table.column_names]
            fields = {name: self._merged(table, self._alike[name]) for name in self.declared.names}
            return ColumnRows(pa.table({**{name: table.column(name) for name in kept}, **fields}), self._of_fields)
        asked = () if self._window is None else read_by_windows(self._window.config)
        of_wide = self._alike.keys() & set(table.column_names)
        if asked is None or not {*asked} <= self._alike.keys() or of_wide:
            return self.payloads(table)
        fields = {name: self._merged(table, columns) for name, columns in self._alike.items()}
        return ColumnRows(
            pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **fields}), self.payloads
        )

    def keys(self, table: pa.Table, payloads: Sequence[Any], names: tuple[str, ...]) -> Sequence[Any]:
        """Return the key fields of each tuple; as columns if the tuples are columns."""
        if isinstance(payloads, ColumnRows):
            columns = [payloads.table.column(name) for name in names]
            if all(codable(column.type) for column in columns):
                return Keys(columns)
        if len(names) == 1:
            return [one_nan(payload[names[0]]) for payload in payloads]
        return [tuple(one_nan(payload[name]) for name in names) for payload in payloads]

    def key_columns(self, table: pa.Table, names: tuple[str, ...]) -> Keys | None:
        """Return the key's fields as columns, None where an input lacks one, or has it in another type."""
        if not self._alike.keys() >= {*names}:
            return None
        columns = [self._merged(table, self._alike[name]) for name in names]
        return Keys(columns) if all(codable(column.type) for column in columns) else None

    @cached_property
    def _holds_columns(self) -> bool:
        """Whether windows store columns only, and no Tuples."""
        if self._window is None or self.make_rows is None:
            return False
        return self._window.config.columnar is not None and self._window.config.aggregate is None

    @cached_property
    def _alike(self) -> dict[str, list[str]]:
        """The fields whose columns of all inputs can be merged into one, each with its columns in the wide table, by input.

        Those are fields of one type, which is not nested if there are several inputs: merged columns give the same Python values.
        """
        found = {}
        for field in self._schemas[0]:
            positions = [schema.get_field_index(field.name) for schema in self._schemas]
            known = zip(self._schemas, positions, strict=True)
            is_same = all(at >= 0 and schema.field(at).type == field.type for schema, at in known)
            if is_same and (len(self._schemas) == 1 or not pa.types.is_nested(field.type)):
                found[field.name] = [names[at] for names, at in zip(self._columns, positions, strict=True)]
        return found

    def _merged(self, table: pa.Table, columns: list[str]) -> pa.ChunkedArray:
        """Return a field of all inputs as one column, with the value of each row's own input."""
        there = [(number, table.column(name)) for number, name in enumerate(columns) if name in table.column_names]
        (_, merged), *others = there
        for number, column in others:
            merged = pc.if_else(pc.equal(table.column(INPUT), number), column, merged)
        return merged

    def _origins_of(self, found: Subscription, tasks: pa.ChunkedArray) -> Iterable[Origin]:
        different = tasks.unique().to_pylist()
        made = {task: self._execution.origin(found.component, task, found.stream) for task in different}
        return repeat(made[different[0]]) if len(different) == 1 else map(made.__getitem__, tasks.to_pylist())

    def identities(self, table: pa.Table, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the message ids and their channels, in which they are unique: a stream of an upstream task, as in LocalCluster."""
        numbers, tasks = table.column(INPUT).to_pylist(), table.column(TASK).to_pylist()
        ids = {number: table.column(f"{number}.{name}").to_pylist() for number in set(numbers)}  # of inputs with tuples
        channels = [
            (self._inputs[number].component, self._inputs[number].stream, task)
            for number, task in zip(numbers, tasks, strict=True)
        ]
        return [ids[number][at] for at, number in enumerate(numbers)], channels

    def is_row(self, value: Any) -> bool:
        return isinstance(value, Tuple)

    def fields(self, payload: Any) -> dict[str, Any]:
        return dict(zip(payload.get_fields(), plain(payload.get_values()), strict=True))

    def unreadable(self, table: pa.Table, names: Sequence[str] | None) -> np.ndarray[Any, Any] | None:
        there = {*table.column_names}
        wide = [name for columns in self._columns for name in columns if name in there]
        asked = [name for name in wide if names is None or name.partition(".")[2] in names]
        return any_of(unreadable_in(table.column(name)) for name in asked)

    def _wide(self, packet: ExchangeRow) -> pa.Table:
        number = self._names.index(packet.stream)
        table = decode_table(packet.data)
        rank = self._execution.topology.order.index(self._inputs[number].component)
        count = table.num_rows
        columns = {INPUT: pa.repeat(pa.scalar(number, pa.int32()), count), TASK: table.column(TASK)}
        columns |= {name: table.column(name) for name in self._anchors}
        for position, name in enumerate(self._columns[number]):
            columns[name] = table.column(position)
        columns[PHASE] = table.column(PHASE)
        columns[TIMESTAMP] = table.column(TIMESTAMP)
        columns[_RANK] = pa.repeat(pa.scalar(rank, pa.int32()), count)
        columns[_UPSTREAM] = pa.repeat(pa.scalar(packet.upstream, pa.int32()), count)
        columns[POSITION] = table.column(POSITION)
        return pa.table(columns)


RowFormat = NamedRows | TupleRows


def _first(table: pa.Table) -> tuple[int, ...]:
    """Return the position of a packet's first row in the order of arrival."""
    return tuple(table.column(name)[0].as_py() for name in _ORDER)


def _is_in_order(table: pa.Table) -> bool:
    equal = np.ones(table.num_rows - 1, dtype=bool)
    for name in _ORDER:
        column = table.column(name).to_numpy()
        if bool((equal & (column[1:] < column[:-1])).any()):
            return False
        equal &= column[1:] == column[:-1]
    return True
