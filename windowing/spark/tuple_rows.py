"""The rows of a windowed task in a topology: Tuples of one or several streams, each with its own fields.

    __in   __task   0.word   0.at   1.word   1.price         __in: which subscription; __task: the emitting task
    0      2        "cow"    17
    1      0                        "cow"    3.5

(and __edge, __roots where some spout asks for acks: edges.py)

One wide table for the stored chunks; a subscription's columns are null in the rows of the others. Order of arrival: the
phase, the component in the order of the plan, its task, the sender, the position in what that has emitted (exchange.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.schema.tuples import Tuple
from windowing.spark.context import Arrival, ExecutionContext, Origins
from windowing.spark.edges import EDGE, NO_ROOTS, ROOTS, Roots, unpacked_roots
from windowing.spark.exchange import PHASE, POSITION, TASK, field_column, stream_name
from windowing.spark.rows import Part, one_nan
from windowing.spark.state import TIMESTAMP, decode_table
from windowing.spark.unreadable import Held, any_of, any_unreadable, held_rows, plain, python_values, unreadable_in

__all__ = [
    "TupleRows",
]


_INPUT = "__in"
_SENDER = "__sender"
_RANK = "__rank"
_ORDER = (PHASE, _RANK, TASK, _SENDER, POSITION)


class TupleRows:
    """What a placed bolt's tuples look like. Cost: a Tuple for each row, columns at the speed of Arrow."""

    def __init__(self, wiring: ExecutionContext, component: str) -> None:
        self._wiring = wiring
        self._inputs = wiring.component(component).inputs

    @cached_property
    def _names(self) -> list[str]:
        return [stream_name(found.component, found.stream) for found in self._inputs]

    @cached_property
    def _origins(self) -> Origins:
        return Origins(self._wiring)

    @property
    def _anchors(self) -> tuple[str, ...]:
        return (EDGE, ROOTS) if self._wiring.acks else ()

    @cached_property
    def _columns(self) -> list[list[str]]:
        """The names of the columns of each subscription in the wide table."""
        schemas = [self._wiring.schemas[name] for name in self._names]
        return [[f"{number}.{field.name}" for field in schema] for number, schema in enumerate(schemas)]

    def arrived(self, parts: Sequence[Part]) -> pa.Table:
        """Return the rows of all parts in order of arrival."""
        tables = [self._wide(part) for part in parts]
        table = pa.concat_tables(tables, promote_options="default")
        return table.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the columns of all subscriptions, those without a row of this table too."""
        count = table.num_rows
        columns = {name: table.column(name) for name in (_INPUT, TASK, *self._anchors)}
        for names, stream in zip(self._columns, self._names, strict=True):
            for name, field in zip(names, self._wiring.schemas[stream], strict=True):
                there = name in table.schema.names
                columns[name] = table.column(name) if there else pa.nulls(count, field.type)
        return pa.table(columns)

    def payloads(self, table: pa.Table) -> list[Any]:
        """Return a Tuple for each row, which knows its phase if it arrived in this batch."""
        made: list[Any] = [None] * table.num_rows
        known: dict[bytes, Roots] = {}
        inputs = table.column(_INPUT)
        for number, found in enumerate(self._inputs):
            places = np.flatnonzero(pc.equal(inputs, number).to_numpy(zero_copy_only=False))
            if not len(places):
                continue
            mine = table if len(places) == table.num_rows else table.take(pa.array(places))
            tasks = mine.column(TASK).to_pylist()
            columns = [
                python_values(mine.column(name), name.partition(".")[2], "strict") for name in self._columns[number]
            ]
            phases = mine.column(PHASE).to_pylist() if PHASE in mine.schema.names else [0] * len(places)
            edges = mine.column(EDGE).to_pylist() if self._anchors else [0] * len(places)
            roots = unpacked_roots(mine.column(ROOTS), known) if self._anchors else [NO_ROOTS] * len(places)
            of_rows = held_rows(columns, tuple, Held) if any_unreadable(columns) else zip(*columns, strict=True)
            rows = zip(places.tolist(), tasks, phases, roots, edges, of_rows, strict=True)
            for place, task, phase, of, edge, values in rows:
                made[place] = Arrival(values, self._origins(found.component, task, found.stream), phase, of, edge)
        return made

    def in_columns(self, table: pa.Table) -> list[Any]:
        """Return the Tuples: they know where they came from, which is more than their fields."""
        return self.payloads(table)

    def keys(self, table: pa.Table, payloads: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
        """Return the key's fields of each tuple."""
        if len(names) == 1:
            return [one_nan(payload[names[0]]) for payload in payloads]
        return [tuple(one_nan(payload[name]) for name in names) for payload in payloads]

    def identities(self, table: pa.Table, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the message ids, each unique on its channel: a stream of an upstream task, as in LocalCluster."""
        columns = [table.column(f"{number}.{name}") for number in range(len(self._inputs))]
        ids = [column.to_pylist() for column in columns]
        numbers, tasks = table.column(_INPUT).to_pylist(), table.column(TASK).to_pylist()
        channels = [
            (self._inputs[number].component, self._inputs[number].stream, task)
            for number, task in zip(numbers, tasks, strict=True)
        ]
        return [ids[number][at] for at, number in enumerate(numbers)], channels

    def is_row(self, value: Any) -> bool:
        """Return whether a value is a Tuple."""
        return isinstance(value, Tuple)

    def fields(self, payload: Any) -> dict[str, Any]:
        """Return a tuple's values by name."""
        return dict(zip(payload.get_fields(), plain(payload.get_values()), strict=True))

    def unreadable(self, table: pa.Table, names: Sequence[str] | None) -> np.ndarray[Any, Any] | None:
        """Return which rows have a value in one of these fields that Python cannot hold."""
        wide = [name for columns in self._columns for name in columns if name in table.schema.names]
        asked = [name for name in wide if names is None or name.partition(".")[2] in names]
        return any_of(unreadable_in(table.column(name)) for name in asked)

    def _wide(self, part: Part) -> pa.Table:
        number = self._names.index(part.stream)
        table = decode_table(part.data)
        rank = self._wiring.stages.topology.order.index(self._inputs[number].component)
        count = table.num_rows
        columns = {_INPUT: pa.repeat(pa.scalar(number, pa.int32()), count), TASK: table.column(TASK)}
        columns |= {name: table.column(name) for name in self._anchors}
        for position, name in enumerate(self._columns[number]):
            columns[name] = table.column(field_column(position))
        columns[PHASE] = table.column(PHASE)
        columns[TIMESTAMP] = table.column(TIMESTAMP)
        columns[_RANK] = pa.repeat(pa.scalar(rank, pa.int32()), count)
        columns[_SENDER] = pa.repeat(pa.scalar(part.partition, pa.int32()), count)
        columns[POSITION] = table.column(POSITION)
        return pa.table(columns)
