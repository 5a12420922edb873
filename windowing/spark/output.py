"""The output of the operator: rows of several streams in one set of flat columns.

    _stream   _0_0  _0_1  _1_0  ...   _metric
    0         "JFK"    3                         a row of the first stream
    1                     "LGA"                  a row of the second
    -1                                    100    the first metric of a turn
    -2                                      7    the second

The columns stay Arrow arrays, because Spark's conversion from pandas turns a NaN into null; Arrow arrays are not converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from windowing.columnar.rows import owned
from windowing.schema.checks import DEFAULT_STREAM
from windowing.spark.spouts import arrow_schema_in_spark
from windowing.spark.unreadable import arrow_column, unreadable_in
from windowing.topology.user_code import Emission

if TYPE_CHECKING:
    import pandas as pd

SUMS = ("tuples", "fired", "late", "skipped", "pending", "expired", "failed", "duplicates", "reported")
METRICS = (*SUMS, "bytes", "watermark", "now")
"""The metrics of a turn; those in SUMS are added up over the tasks. Each is a row: a column costs a worker 60 us in each turn."""
_STREAM, _METRIC = "_stream", "_metric"
_ROW_OF = {name: -1 - number for number, name in enumerate(METRICS)}

TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""The options of Spark with which a text has a whole timestamp; by default it ends with the milliseconds."""


def is_of_windows(names: Iterable[str]) -> bool:
    """Return whether an operator with these columns is that of a windowed bolt alone (`Layout`)."""
    return {_STREAM, _METRIC} <= {*names}


def evaluate(rows: DataFrame) -> None:
    """Evaluate rows in a job of which they are the last stage, and write none."""
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class Layout:
    """The output columns of an operator whose output streams have these schemas, in this order."""

    streams: Mapping[str, StructType]

    @property
    def schema(self) -> StructType:
        fields = [StructField(_STREAM, IntegerType())]
        for number, schema in enumerate(self.streams.values()):
            fields += [
                StructField(_name(number, position), field.dataType) for position, field in enumerate(schema.fields)
            ]
        return StructType([*fields, StructField(_METRIC, LongType())])

    def rows(self, output: DataFrame, stream: str) -> DataFrame:
        """Return the rows of one stream of the operator's output, with the stream's columns."""
        return output.where(self.condition(stream)).selectExpr(*self.columns(stream))

    def condition(self, stream: str) -> str:
        """Return the condition on the rows of a stream."""
        return f"{_STREAM} = {self._number(stream)}"

    def columns(self, stream: str) -> list[str]:
        """Return the expressions of the columns of a stream."""
        number = self._number(stream)
        return [f"{_name(number, i)} AS {quoted(name)}" for i, name in enumerate(self.streams[stream].names)]

    def unpacked(self, rows: DataFrame, stream: str) -> DataFrame:
        return rows

    def evaluated(self, output: DataFrame) -> None:
        """Evaluate the output; its rows are counted in another job."""
        evaluate(output)

    def schema_of(self, stream: str) -> StructType:
        return self.streams[stream]

    def count(self, stream: str) -> Column:
        return F.expr(f"count_if({self.condition(stream)})")

    def late(self) -> Column:
        return F.expr(f"sum({output_metric('late')})")

    def largest(self) -> Column:
        """Return the aggregate of the packed bytes of the largest task."""
        return F.expr(f"max({output_metric('bytes')})")

    def _number(self, stream: str) -> int:
        return list(self.streams).index(stream)


class Encoder:
    """Encodes the emitted rows of a turn as one table of the operator's output; made by the driver, used in workers."""

    def __init__(self, bolt: str, layout: Layout) -> None:
        self._bolt = bolt
        self._arrow = arrow_schema_in_spark(layout.schema)
        self._fields = {stream: arrow_schema_in_spark(schema) for stream, schema in layout.streams.items()}
        self._numbers = {stream: number for number, stream in enumerate(layout.streams)}
        # The names of the output columns, once for all turns.
        self._columns = {
            stream: [_name(number, position) for position in range(len(self._fields[stream]))]
            for stream, number in self._numbers.items()
        }

    def table(self, rows: Sequence[Emission], metrics: Mapping[str, int | None]) -> tuple[pa.Table, dict[str, int]]:
        """Return rows (of known streams; others are left out) and metrics as one table, and the number of rows by stream; the order
        inside a stream is kept.

        Raises BoltError for a value that is not of its field's type. Cost: one Arrow array per field and stream.
        """
        by_stream: dict[str, list[Any]] = {stream: [] for stream in self._numbers}
        for stream, row in rows:
            if stream in by_stream:
                by_stream[stream].append(row)
        blocks: list[pa.Table] = []
        counts: dict[str, int] = {}
        for stream, members in by_stream.items():
            for kind, run in groupby(members, key=type):
                emitted = list(run)
                if kind is pa.Table:
                    block = pa.concat_tables(emitted)
                else:
                    by_field = zip(self._fields[stream], zip(*emitted, strict=True), strict=True)
                    columns = [arrow_column(self._bolt, stream, field, values) for field, values in by_field]
                    block = self._table(stream, columns, len(emitted))
                blocks.append(block)
                counts[stream] = counts.get(stream, 0) + block.num_rows
        numbers = pa.array(map(metrics.get, METRICS), pa.int64())
        blocks.append(pa.table([pa.array(_ROW_OF.values(), pa.int32()), numbers], [_STREAM, _METRIC]))
        table = pa.concat_tables([self._arrow.empty_table(), *blocks], promote_options="default").combine_chunks()
        return table, counts

    def fitted(self, table: Any) -> pa.Table | None:
        """Return a table that a bolt returned in the types of the default stream, None if its rows must be checked one by one.

        A column of the declared type is accepted without a check of each value, unless it has a value that Python cannot hold.
        """
        fields = self._fields[DEFAULT_STREAM]
        taken = columns_as_declared(table, fields)
        if len(taken) < len(fields) or any(unreadable_in(column) is not None for column in taken.values()):
            return None
        return self._table(DEFAULT_STREAM, [taken[name] for name in fields.names], table.num_rows)

    def _table(self, stream: str, columns: Sequence[Any], count: int) -> pa.Table:
        number = pa.repeat(pa.scalar(self._numbers[stream], pa.int32()), count)
        return pa.table([number, *columns], [_STREAM, *self._columns[stream]])


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
    if kind == declared and not _holds(pa.types.is_map, kind):  # maps are checked for duplicate keys
        # A decimal that was cut to a scale may have more digits than its type.
        found = column if not _holds(pa.types.is_decimal, kind) or _is_valid(column) else None
    elif pa.types.is_large_string(kind) and pa.types.is_string(declared):  # the string type of pandas
        found = column.cast(declared)
    else:
        found = _cast(column, declared)
    return found if found is None else found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()


def _is_valid(column: Any) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _holds(is_it: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    return is_it(kind) or any(_holds(is_it, kind.field(at).type) for at in range(kind.num_fields))


def _cast(column: Any, declared: pa.DataType) -> Any:
    """Return a column cast to its declared type if that gives the values of `arrow_column`; None if this is not certain."""
    kind = column.type
    whole = pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(declared)
    floats = pa.types.is_floating(kind) and pa.types.is_floating(declared) and kind.bit_width <= declared.bit_width
    if not (whole or floats or pa.types.is_null(kind)):
        return None
    try:
        return column.cast(declared) if _is_valid(column) else None
    except pa.ArrowInvalid:  # a number that is too large
        return None


def frame_of(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """Return a table as a pandas frame whose values Spark takes as they are. Only workers load pandas (0.8 s of CPU).

    Cost: 10 us a column, without a copy.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    for field in table.schema:  # a Series of each would cost five times as much
        made = _nested_array() if pa.types.is_nested(field.type) else pd.arrays.ArrowExtensionArray
        columns[field.name] = made(table.column(field.name))
    return pd.DataFrame(columns, copy=False)


@cache
def _nested_array() -> Any:
    """Return the class of nested columns. Spark converts each value of one through Python, in `apply`: a NaN of Python would become
    a null, and a date of the year 20000 an error. The columns have Spark's types already, so `apply` leaves them as they are.
    """
    from pandas.arrays import ArrowExtensionArray

    class Nested(ArrowExtensionArray):
        def map(self, mapper: Any, na_action: Any = None) -> Nested:
            return self

        def __getitem__(self, item: Any) -> Any:
            return None if isinstance(item, int) else super().__getitem__(item)  # pandas asks for the first value only

    return Nested


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def as_json(column: Column) -> Column:
    """Return a struct, map or array as JSON, with its nulls."""
    return F.to_json(column, {"ignoreNullFields": "false", **TIMES})


def output_metric(name: str) -> str:
    """Return the expression of a metric."""
    return f"CASE WHEN {_STREAM} = {_ROW_OF[name]} THEN {_METRIC} END"


def _name(number: int, position: int) -> str:
    return f"_{number}_{position}"
