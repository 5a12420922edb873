"""Exchanges: the rows that one stage sends to the tasks of the next, packed as Arrow bytes into few rows.

    target  kind                  stream          value                data
    7       rows                  who:stream      number of tuples     tuples for task 7: an Arrow IPC stream, lz4
    7       max                   who:stream      largest timestamp    -      (source: its source; to every task of a reader)
    7       tick, drain, begin    -               -                    -
    -1      out                   stream or sink  number of tuples     tuples of a stream for its sink
    -1      metric                component       a number             -      (source: its name)
    -1      ack                   -               -                    the partials of an upstream (acks.py)

(Trident adds reports to its driver: trident_stages.py.) `target` is a task, numbered over all stages of the plan; a row for a later
stage, or for the driver (-1), passes through the stages between unchanged. `upstream` is the sender: a partition of the first
stage, or a task (from FIRST_TASK on). `sequence` numbers the sender's rows in this batch.

Before the first exchange, rows come directly from Spark: `packed` (operator.py) adds the batch's clock and, if the JVM computed
them, the tasks.

Laws
- The task of a row depends only on the row (for round robins, on its position among the rows of its upstream), so a replay sends it
  to the same task.
- Every task of a reader gets the largest timestamp of every upstream, so a task without rows advances too.
- A timestamp that is missing, not a whole number, or too far ahead of the batch's clock moves no watermark; its row is still sent,
  and judged by the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from windowing.columnar.rows import Numbers, cut, encode_table
from windowing.errors import ConfigError, WindowingError
from windowing.schema.values import TIMESTAMP_BOUND
from windowing.spark.output import quoted
from windowing.spark.unreadable import unreadable_in
from windowing.topology.user_code import TimestampFunction
from windowing.windows.config import Semantics, WindowConfig

FIRST_TASK = 1 << 20
"""The upstream number of task 0; partitions of the first stage are below."""
TASK, POSITION, PHASE = "__task", "__pos", "__phase"
TASK_AND_CLOCK = "__task_clock"
"""The task of a row and, in the lower bits, the batch's clock in ms. One column instead of two saves Spark work per row."""
CLOCK_BITS = 46
"""Enough until the year 4199; the bits above hold MOST_TASKS and the sign."""
_SCHEMA = pa.schema(
    [
        ("target", pa.int64()),
        ("kind", pa.string()),
        ("stream", pa.string()),
        ("upstream", pa.int32()),
        ("sequence", pa.int32()),
        ("now", pa.int64()),
        ("source", pa.string()),
        ("value", pa.int64()),
        ("data", pa.binary()),
    ]
)
EXCHANGE: StructType = from_arrow_schema(_SCHEMA)
BATCH_CLOCK = "unix_millis(current_timestamp())"
"""The batch's clock, as a Spark expression; a string, because each part of a Column is calls of the JVM."""
CLOCK_APART = "0L"
"""Replaces BATCH_CLOCK in queries whose driver passes the clock as a property of the job (CLOCK_PROPERTY). Spark writes the time of
BATCH_CLOCK into generated code, which must then be compiled in each batch."""
PACKET_ROWS = 50_000
_BATCH_BYTES = 64 << 20
_BATCH_PROPERTY = "streaming.sql.batchId"
CLOCK_PROPERTY = "windowing.clock"
"""The job property with the batch's clock, set by the driver."""
_EVALUATED_PROPERTY = "windowing.evaluated"
"""The job property of `set_evaluated`."""
_MAX_FUTURE_MS = 86_400_000


# -- Rows ------------------------------------------------------------------------------------------------------------------------


class ExchangeRow(NamedTuple):
    """One row of an exchange; the module's docstring has the kinds."""

    target: int
    kind: str
    stream: str
    upstream: int
    sequence: int
    now: int
    source: str | None
    value: int
    data: bytes | None


@dataclass
class RowNumbering:
    """Makes the exchange rows of one upstream in a batch, numbered in the order of sending."""

    upstream: int
    now: int
    sent: int = 0

    def row(
        self,
        target: int,
        kind: str,
        stream: str = "",
        value: int = 0,
        data: bytes | None = None,
        source: str | None = None,
    ) -> ExchangeRow:
        self.sent += 1
        return ExchangeRow(target, kind, stream, self.upstream, self.sent, self.now, source, value, data)

    def packets(self, target: int, kind: str, stream: str, tuples: pa.Table | pa.RecordBatch) -> Iterator[ExchangeRow]:
        """Yield a table of tuples as rows, each of PACKET_ROWS at most, and PART_BYTES unless it is a single tuple."""
        for part in cut(tuples, PACKET_ROWS):
            yield self.row(target, kind, stream, part.num_rows, encode_table(part))

    def largest(self, targets: Iterable[int], stream: str, largest: Mapping[str | None, int]) -> Iterator[ExchangeRow]:
        """Yield the control rows with the largest timestamps of a stream, for every task of a reader."""
        sources = sorted(largest, key=lambda each: (each is not None, each or ""))
        for target in targets:
            for source in sources:
                yield self.row(target, "max", stream, largest[source], None, source)


def packets_and_controls(rows: Iterable[ExchangeRow]) -> tuple[list[ExchangeRow], list[ExchangeRow]]:
    """Return the rows of one task with tuples and those without, each in an order that does not depend on the shuffle."""
    ordered = sorted(
        rows,
        key=lambda row: (row.kind, row.stream, row.source is not None, row.source or "", row.upstream, row.sequence),
    )
    return [row for row in ordered if row.kind == "rows"], [row for row in ordered if row.kind != "rows"]


def size_of(rows: Iterable[ExchangeRow]) -> int:
    """Return the number of packed bytes in rows."""
    return sum(len(row.data or b"") for row in rows)


def clock_of(rows: Iterable[ExchangeRow]) -> int:
    """Return the batch's clock: the largest one in its rows."""
    return max(row.now for row in rows)


def record_batches(rows: Sequence[ExchangeRow]) -> Iterator[pa.RecordBatch]:
    """Yield rows in the form that `mapInArrow` returns, in batches of about 64 MiB at most."""
    start, size = 0, 0
    for end, row in enumerate(rows, 1):
        size += len(row.data or b"")
        if size >= _BATCH_BYTES or end == len(rows):
            columns = zip(zip(*rows[start:end], strict=True), _SCHEMA, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in columns], schema=_SCHEMA
            )
            start, size = end, 0


def handed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of an exchange in the form of `record_batches`; Spark may have changed which columns can be null."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=_SCHEMA)


def rows_of(frames: Iterable[Any]) -> list[ExchangeRow]:
    """Return the rows of the pandas frames that a stateful operator gets."""
    rows = []
    for frame in frames:
        columns = list(frame.columns)
        at = [columns.index(name) for name in _SCHEMA.names]
        for found in frame.to_numpy(object).tolist():  # a Series of each column would cost ten times as much
            *head, now, source, value, data = (found[position] for position in at)
            # pandas has several objects for a missing value, and Spark several classes for bytes.
            text = source if isinstance(source, str) else None
            packed = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else None
            rows.append(ExchangeRow._make((*head, now or said_clock(), text, value, packed)))
    return rows


# -- The batch -------------------------------------------------------------------------------------------------------------------


def batch_id() -> int:
    """Return Spark's number of the batch that this worker processes, -1 outside a batch."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
    return int(number) if number is not None else -1


def set_evaluated(spark: SparkSession, part: Literal["stream", "all"] | None) -> None:
    """Set which part of the batch is evaluated, and its rows kept, before the next jobs of this thread: the stream, before the
    attempts at a Trident batch; all of it; or none.
    """
    spark.sparkContext.setLocalProperty(_EVALUATED_PROPERTY, cast(str, part))


def evaluated_part() -> str | None:
    """Return which part of this worker's batch was evaluated before, None if no part was; its rows were kept, and are lost."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_EVALUATED_PROPERTY)


def said_clock() -> int:
    """Return the clock that the driver set for this task; 0 outside Spark. Raises WindowingError if it set none."""
    return int(said_of_batch("clock", CLOCK_PROPERTY) or 0)


def said_of_batch(what: str, name: str) -> str | None:
    """Return a property that the driver set for this task's job; None outside Spark. Raises WindowingError if it set none."""
    context = TaskContext.get()
    if context is None:
        return None
    found = context.getLocalProperty(name)
    if found is None:
        raise WindowingError(
            f"the {what} of the batch is not known here: its rows were asked for again outside of the thread that writes it; let a "
            "sink read the rows that it is handed in `write`, not in a thread of its own"
        )
    return str(found)


def clocked(batches: Iterable[pa.RecordBatch]) -> tuple[int | None, Iterator[tuple[pa.RecordBatch, Numbers]]]:
    """Return the clock of the batch whose Arrow batches come from `packed` (None if they have no row), and the columns and the task
    of each row of those with rows.
    """
    with_rows = (batch for batch in batches if batch.num_rows)
    first = next(with_rows, None)
    if first is None:
        return None, iter(())
    clock = int(first.column(TASK_AND_CLOCK)[0].as_py()) & (1 << CLOCK_BITS) - 1
    return clock or said_clock(), (
        (batch.drop_columns([TASK_AND_CLOCK]), batch.column(TASK_AND_CLOCK).to_numpy() >> CLOCK_BITS)
        for batch in chain((first,), with_rows)
    )


# -- The tasks of rows -----------------------------------------------------------------------------------------------------------


def task_column(rows: DataFrame, grouping: str | tuple[str, ...], tasks: int) -> str:
    """Return the expression of a row's task: by the values of columns, of all columns ("shuffle"), or task 0 ("global").

    It uses Spark's xxhash64 (seed 42), so a key goes to the same task on both runtimes and after every restart. "shuffle" hashes
    the whole row instead of counting rows, because counts depend on the source's partitions, which may differ in a replay.
    """
    if grouping == "global" or tasks == 1:
        return "0"
    # Spark cannot hash a type with a map at any depth.
    hashed = (field.name for field in rows.schema.fields if '"type":"map"' not in field.dataType.json())
    names = grouping if isinstance(grouping, tuple) else tuple(hashed)
    if not names:
        raise ConfigError(
            'grouping="shuffle" needs a column that is not a map, got only maps; give grouping=("column", ...)'
        )
    return f"pmod(xxhash64({', '.join(map(quoted, names))}), {tasks})"


def parted(tasks: Numbers, count: int) -> Iterator[tuple[int, Numbers | None]]:
    """Yield each of `count` tasks that has rows, with their positions in order; None for all rows.

    >>> [(task, at.tolist()) for task, at in parted(np.array([1, 0, 1]), 3)], list(parted(np.array([2, 2]), 3))
    ([(0, [1]), (1, [0, 2])], [(2, None)])
    """
    if count == 1 or bool((tasks == tasks[0]).all()):
        yield int(tasks[0]), None
        return
    order = np.argsort(tasks, kind="stable")
    ends = np.cumsum(np.bincount(tasks, minlength=count))
    start = 0
    for task, end in enumerate(ends.tolist()):
        if end > start:
            yield task, order[start:end]
        start = end


# -- Timestamps ------------------------------------------------------------------------------------------------------------------


@dataclass
class WindowTimestamps:
    """The timestamps that one reader's windows use for the rows of a stream, and the `largest` one of each source in one upstream.

    timestamp: a column, a function of the row, or None (processing time). source: the column whose values have separate watermarks.
    """

    bolt: str
    timestamp: str | Callable[[Any], Any] | None = None
    source: str | None = None
    max_future_ms: int | None = None
    on_invalid: str = "late"
    largest: dict[str | None, int] = field(default_factory=dict)

    @classmethod
    def of_windows(cls, bolt: str, config: WindowConfig) -> WindowTimestamps:
        """Return those of a bolt; `config`: with Spark's default of `max_future=`."""
        return cls(bolt, config.timestamp, config.source, config.max_future_ms, config.on_invalid)

    def of(
        self, column: Callable[[str], pa.Array], count: int, now: int, rows: Callable[[], Iterable[Any]]
    ) -> pa.Int64Array:
        """Return the timestamp of each row: its own (null if unusable), or the batch's clock. `column` returns a column by name,
        `rows` the arguments of a timestamp function.
        """
        if self.timestamp is None:
            return pa.repeat(pa.scalar(now, pa.int64()), count)
        if isinstance(self.timestamp, str):
            stamps = timestamps_of(column(self.timestamp))
        else:
            stamp = TimestampFunction(self.timestamp, self.bolt, self.on_invalid)
            stamps = pa.array(map(stamp, rows()), pa.int64())
            stamp.warn()
        sources = None if self.source is None else column(self.source)
        if sources is not None:  # a row whose source Python cannot hold is invalid
            stamps = _without(stamps, unreadable_in(sources))
        for source, value in largest_of(stamps, sources, now, self.max_future_ms).items():
            if value is not None and value > self.largest.get(source, -TIMESTAMP_BOUND):
                self.largest[source] = value
        return stamps


def timestamps_of(column: pa.Array) -> pa.Int64Array:
    """Return a column as milliseconds since 1970, null where it holds no usable timestamp.

    Whole numbers are milliseconds. Spark's timestamps and dates are converted (rounded down). Floats and decimals are usable only
    if they are whole; text and all other types are unusable. Usable timestamps are in (-2**62, 2**62); a date or a timestamp
    outside the years 1 to 9999 is unusable, because a bolt could not read it.

    >>> timestamps_of(pa.array([1.0, 1.5, None])).to_pylist()
    [1, None, None]
    """
    kind = column.type
    if pa.types.is_integer(kind):
        stamps = column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        floored = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
        stamps = pa.array(floored, pa.int64(), mask=micros.is_null().to_numpy(zero_copy_only=False))
    elif pa.types.is_date32(kind):
        stamps = pc.multiply(column.cast(pa.int32()).cast(pa.int64()), pa.scalar(86_400_000, pa.int64()))
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float64())
        # NaN and the infinities are not whole.
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), float(TIMESTAMP_BOUND)))
        stamps = pc.if_else(whole, column, pa.scalar(None, pa.float64())).cast(pa.int64())
    elif pa.types.is_decimal(kind):
        stamps = pa.array([_whole_decimal(value) for value in column.to_pylist()], pa.int64())
    else:
        return pa.nulls(len(column), pa.int64())
    bounded = pc.and_(pc.greater(stamps, -TIMESTAMP_BOUND), pc.less(stamps, TIMESTAMP_BOUND))
    return _without(pc.if_else(bounded, stamps, pa.scalar(None, pa.int64())), unreadable_in(column))


def _without(stamps: pa.Int64Array, wrong: np.ndarray[Any, Any] | None) -> pa.Int64Array:
    return stamps if wrong is None else pc.if_else(pa.array(wrong), pa.scalar(None, pa.int64()), stamps)


def largest_of(
    stamps: pa.Int64Array, sources: pa.Array | None, now: int, max_future_ms: int | None
) -> dict[str | None, int | None]:
    """Return the largest usable timestamp of each source (key None without sources); timestamps too far ahead are left out."""
    usable = stamps
    if max_future_ms is not None:
        known = pc.less_equal(stamps, pa.scalar(min(now + max_future_ms, TIMESTAMP_BOUND), pa.int64()))
        usable = pc.if_else(known, stamps, pa.scalar(None, pa.int64()))
    if sources is None:
        return {None: pc.max(usable).as_py()}
    known = usable.is_valid()
    table = pa.table({"source": _texts(sources.filter(known)), "ts": usable.filter(known)})
    found = table.group_by("source").aggregate([("ts", "max")]).to_pylist()
    return {row["source"]: row["ts_max"] for row in found}


def _texts(sources: pa.Array) -> pa.Array:
    """Return the sources as strings; bytes that are not UTF-8 become their repr, others are decoded."""
    try:
        return sources.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else _text(value) for value in sources.to_pylist()], pa.string())


def _text(source: bytes) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError:
        return repr(source)


def with_max_future(config: WindowConfig) -> WindowConfig:
    """Return the options with Spark's default of `max_future=`, how far ahead of the batch's clock a tuple may be: one day; no
    limit in Storm's semantics.
    """
    has_default = config.event_time and config.max_future_ms is None and config.semantics is Semantics.LOSSLESS
    return replace(config, max_future_ms=_MAX_FUTURE_MS) if has_default else config


def _whole_decimal(value: Decimal | None) -> int | None:
    return int(value) if value is not None and abs(value) < TIMESTAMP_BOUND and value == int(value) else None
