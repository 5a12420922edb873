"""ColumnarBoltBatch: one task of a bolt with `columnar=` in one micro-batch: Arrow tables in, tables out, no row objects in
between.

    StreamBatch --execute_batch--> tables by stream --send--> the readers, in columns
                        |
                        +-- failed: its output is discarded; it is retried after the task's other batches

Laws: those of BoltBatch (tasks.py), with a StreamBatch in place of a tuple. All rows of a StreamBatch have the same roots, so its
output is anchored to all of them. A batch that failed for good becomes one dead letter per row, or an error. If the bolt reads a
value that Python cannot hold, it is called again without the rows that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windowing.acking.pending import RetryPolicy
from windowing.columnar.bolts import ColumnarCaller, arrow_schema
from windowing.columnar.rows import Numbers, owned
from windowing.errors import BoltError, FailedException
from windowing.schema.rows import rows_of
from windowing.schema.tuples import Origin, Tuple, tuple_type
from windowing.schema.types import Schema
from windowing.spark.edges import Roots
from windowing.spark.output import fitted_column
from windowing.spark.tasks import RetriedBatch
from windowing.spark.unreadable import any_of, arrow_column, asked_unreadable, tuples_in, unreadable_in
from windowing.topology.components import TaskContext
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.plan import Component


class StreamBatch(NamedTuple):
    """Rows of one stream, one phase and the same roots, in order of arrival. origin: that of the first row."""

    table: pa.Table
    origin: Origin
    phase: int
    roots: Roots
    failures: int = 0

    @property
    def _phase(self) -> int:  # the attribute of an Arrival
        return self.phase

    def take(self, at: Numbers) -> StreamBatch:
        """Return the rows at these positions."""
        return self._replace(table=self.table.take(pa.array(at)))

    def tuples(self) -> Iterator[Tuple]:
        """Yield the rows as Tuples."""
        kind = tuple_type(Tuple, self.origin.fields.names)
        return (kind(values, self.origin) for values in tuples_in(self.table.columns, self.table.column_names))


class ColumnarBoltBatch(RetriedBatch[StreamBatch]):
    """A task of a bolt that takes batches. send: receives the output: a stream, a batch of it, and its roots."""

    _caller: ColumnarCaller

    def __init__(
        self,
        component: Component,
        context: TaskContext,
        retry: RetryPolicy,
        send: Callable[[str, pa.RecordBatch, Roots], None],
        dead_letter: Callable[[DeadLetter, Roots], None] | None,
        order: Callable[[Iterable[Any]], Iterable[Any]] = iter,
    ) -> None:
        super().__init__(component, context, retry, dead_letter, order)
        self._send = send
        self._caller = ColumnarCaller(component)
        self._caller.open(context)

    def take(self, batches: Iterable[StreamBatch]) -> None:
        """Pass each batch to the bolt, once. Raises BoltError."""
        for batch in self._order(batches):
            self.taken += batch.table.num_rows
            self._attempt(batch)

    def close(self, txid: int = 0) -> None:
        """End the task's part of the micro-batch: retry failed batches, then call `cleanup`. Raises BoltError."""
        self._try_again()
        self._caller.close()

    def _attempt(self, batch: StreamBatch) -> None:
        try:
            emitted = self._caller.execute_batch(batch.table, batch.origin.stream, self._fit)
        except FailedException as problem:
            self._fail(batch, self._described(problem))
            return
        except BoltError as problem:
            wrong = any_of(map(unreadable_in, batch.table.columns)) if asked_unreadable(problem) else None
            if wrong is None:
                raise
            self._leave_out(batch.take(np.flatnonzero(wrong)), problem.args[0])
            if not wrong.all():
                self._attempt(batch.take(np.flatnonzero(~wrong)))
            return
        for stream, columns in emitted:
            if columns.num_rows:
                self._send(stream, columns, batch.roots)

    def _fit(self, table: pa.Table, schema: Schema, stream: str) -> pa.RecordBatch:
        """Return a table with the schema of its stream.

        A column is used as it is if all its values are of the declared type; otherwise each value is checked and converted.
        """
        declared = arrow_schema(schema)
        taken = columns_as_declared(table, declared)
        judged = [field for field in declared if field.name not in taken]
        if judged:
            names = [field.name for field in judged]
            part = schema if not taken else schema.of(names)
            rows = list(rows_of(table.select(names) if taken else table, part, stream))
            by_field = zip(*rows, strict=True) if rows else ((),) * len(judged)
            for field, values in zip(judged, by_field, strict=True):
                taken[field.name] = arrow_column(self._component.id, stream, field, values)
        return pa.RecordBatch.from_arrays([taken[field.name] for field in declared], schema=declared)

    def _fail(self, batch: StreamBatch, reason: str) -> None:
        self.failed += batch.table.num_rows
        failed = batch._replace(failures=batch.failures + 1)
        if self._retry.is_last(failed.failures):
            self._give_up(failed, failed.failures, reason)
        else:
            self._again.append(failed)

    def _failures_of(self, batch: StreamBatch) -> int:
        return batch.failures

    def _tuples_of(self, batch: StreamBatch) -> tuple[int, Iterable[Tuple], Roots]:
        return batch.table.num_rows, batch.tuples(), batch.roots


def columns_as_declared(table: pa.Table | pa.RecordBatch, declared: pa.Schema) -> dict[str, pa.Array]:
    """Return the columns of a bolt's table whose values are all of the declared type, in memory that nobody else can change.

    The copy is needed because the columns are sent later, and the bolt may reuse its memory. Empty if the table has other columns
    than the stream.
    """
    if sorted(table.column_names) != sorted(declared.names):
        return {}
    table = owned(table)
    found = {field.name: _as_declared(table.column(field.name), field.type) for field in declared}
    return {name: column for name, column in found.items() if column is not None}


def _as_declared(column: pa.ChunkedArray, declared: pa.DataType) -> pa.Array | None:
    """Return a column in its declared type, None if its values must be checked one by one."""
    kind = column.type
    if kind == declared and not _holds_maps(kind):  # maps are checked for duplicate keys
        return _one(column)
    if pa.types.is_large_string(kind) and pa.types.is_string(declared):  # the string type of pandas
        return _one(column.cast(declared))
    found = fitted_column(column, declared)
    return None if found is None else _one(found)


def _holds_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_holds_maps(kind.field(at).type) for at in range(kind.num_fields))


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)
