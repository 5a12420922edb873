"""The stateless side: rows of a streaming DataFrame become few rows of Arrow bytes, before the shuffle.

    rows of an upstream partition --Arrow batch by Arrow batch--> one row per (batch, task): kind "rows", data = Arrow
    IPC, lz4
                                  --at the end-----------------> one row per (task, source): kind "max", value =
                                  largest timestamp

Every task hears every partition's largest timestamp, so a task without rows advances too. Laws: a row's task is a
function of the row alone (a replay sends it to the same one); rows of one partition keep their order by `sequence`; a
timestamp that is missing, not a whole number, or too far ahead of the batch's clock moves no watermark, and its row
travels on for the turn to route.

The wire: how tuples of a topology travel between levels, as few rows of Arrow bytes.

    target   kind    stream          value                   data
    7        rows    split:default   -                       tuples for place 7, of this component's stream
    7        max     split:default   largest timestamp       -            (for each source= value of the reader)
    7        tick, drain             -                       -
    -1       out     count:late      how many                rows of a stream for its sink
    -1       metric  count           a number                -            (source: its name)

`sender` is who sent the row: an upstream partition of level 0, or a place (from `PLACES` on). Tuples on their way to a place
have the columns of their stream by number, `__phase`, `__task` (which task of the component emitted it), `__pos` (their position
in what the sender has emitted in this batch) and the timestamp by which the reader's windows know them. A row that is meant
for a later level goes through the levels between as it is.

Order of arrival at a place: `__phase`, then component in the order of the plan, its task, sender, position. Phase 0 is what comes
of the input without a window; phase n what the turn of the n-th windowed task has led to. Law: this is a total order of a
place's tuples of one batch, the same however the rows come, and the order in which LocalCluster has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody spells it
from pyspark.sql.types import DataType, MapType

from windowing.columnar.hashing import hashed_columns, is_hashed
from windowing.columnar.rows import Numbers
from windowing.errors import ConfigError
from windowing.schema.rows import record_type
from windowing.schema.types import Schema
from windowing.spark.failures import Seal, marked
from windowing.spark.state import TIMESTAMP
from windowing.spark.unreadable import any_unreadable, held_record_type, held_rows, python_values, unreadable_in
from windowing.topology.groupings import FieldsGrouping, Grouping, GroupingKind
from windowing.topology.user_code import BOUND, TimestampFunction
from windowing.windows.config import Semantics, WindowConfig

__all__ = [
    "CLOCK_BITS",
    "NOW",
    "PACKED",
    "PHASE",
    "PLACES",
    "POSITION",
    "TASK",
    "TIMESTAMP",
    "WIRE",
    "ExchangeRow",
    "Numbers",
    "Packer",
    "Spread",
    "field_column",
    "frames_of",
    "handed_on",
    "in_order",
    "known_sources",
    "largest_of",
    "max_future_ms",
    "packed",
    "parted",
    "quoted",
    "raise_largest",
    "record_batch",
    "rows_of",
    "spread_of",
    "stream_name",
    "task_column",
    "timestamps_of",
]


TASK = "__task"
CLOCK_BITS = 48
"""`__task` is the row's task and, in its lower bits, the batch's clock in ms: one column less for Spark to write row by row."""
PACKED = (
    "label bigint, kind string, stream string, partition int, sequence int, now bigint, "
    "source string, value bigint, data binary"
)
_MAX_FUTURE_MS = 86_400_000
_SCHEMA = pa.schema(
    [
        ("label", pa.int64()),
        ("kind", pa.string()),
        ("stream", pa.string()),
        ("partition", pa.int32()),
        ("sequence", pa.int32()),
        ("now", pa.int64()),
        ("source", pa.string()),
        ("value", pa.int64()),
        ("data", pa.binary()),
    ]
)
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True)
class Packer:
    """What `mapInArrow` runs on each upstream partition of one input stream; sent to the workers by Spark's
    cloudpickle.

    `columns` are the names of the input columns: on the way they have numbers, since `mapInArrow` cannot carry a
    name with a dot or a backtick. `labels[i]` is the grouping key of task i. `timestamp` is a column, a function of
    the row (what the bolt sees), or None (processing time). `source` is the column whose values have watermarks of
    their own. Cost: a stable sort by task and one copy of the rows, in numpy and Arrow; a timestamp function costs
    a Python tuple and a call per row.
    """

    stream: str
    columns: tuple[str, ...]
    labels: tuple[int, ...]
    bolt: str
    timestamp: str | Callable[[Any], Any] | None = None
    source: str | None = None
    max_future_ms: int | None = None
    on_invalid: str = "late"
    seal: Seal = field(default_factory=Seal, compare=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield packed rows for each batch, then the control rows of the partition."""
        context = TaskContext.get()
        with marked():
            yield from self.pack(batches, 0 if context is None else context.partitionId())

    def pack(self, batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
        """Do the work of `__call__` for the upstream partition of this number."""
        largest: dict[str | None, int] = {}
        now = 0
        for sequence, batch in enumerate(batches):
            if batch.num_rows == 0:
                continue
            placed = batch.column(TASK).to_numpy()
            tasks, now = placed >> CLOCK_BITS, int(placed[0]) & (1 << CLOCK_BITS) - 1
            rows = batch.drop_columns([TASK]).rename_columns(list(self.columns))
            stamps = self._stamps(rows, now)
            if self.timestamp is not None:
                stamps = known_sources(stamps, None if self.source is None else rows.column(self.source))
                self._raise_largest(largest, stamps, rows, now)
            rows = rows.append_column(pa.field(TIMESTAMP, pa.int64()), stamps)
            parts = [
                (self.labels[task], _ipc(rows if at is None else rows.take(pa.array(at))))
                for task, at in parted(tasks, len(self.labels))
            ]
            yield self._rows(parts, partition, sequence, now)
        if largest:
            yield self._maxima(largest, partition, now)

    def _stamps(self, rows: pa.RecordBatch, now: int) -> pa.Int64Array:
        """Return the timestamp of each row: its own (null where unusable), or the batch's clock on processing time."""
        if self.timestamp is None:
            return pa.repeat(pa.scalar(now, pa.int64()), rows.num_rows)
        if isinstance(self.timestamp, str):
            return timestamps_of(rows.column(self.timestamp))
        names = tuple(rows.schema.names)
        columns = [python_values(column, name) for column, name in zip(rows.columns, names, strict=True)]
        make = record_type(names)._make
        made = (
            held_rows(columns, make, held_record_type(names)._make)
            if any_unreadable(columns)
            else map(make, zip(*columns, strict=True))
        )
        stamp = TimestampFunction(self.timestamp, self.bolt, self.on_invalid)
        stamps = pa.array(map(stamp, made), pa.int64())
        stamp.warn()
        return stamps

    def _raise_largest(
        self, largest: dict[str | None, int], stamps: pa.Int64Array, rows: pa.RecordBatch, now: int
    ) -> None:
        sources = None if self.source is None else rows.column(self.source)
        raise_largest(largest, largest_of(stamps, sources, now, self.max_future_ms))

    def _rows(self, parts: list[tuple[int, bytes]], partition: int, sequence: int, now: int) -> pa.RecordBatch:
        count = len(parts)
        columns = {
            "label": [label for label, _ in parts],
            "kind": ["rows"] * count,
            "stream": [self.stream] * count,
            "partition": [partition] * count,
            "sequence": [sequence] * count,
            "now": [now] * count,
            "source": [None] * count,
            "value": [0] * count,
            "data": [data for _, data in parts],
        }
        return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)

    def _maxima(self, largest: dict[str | None, int], partition: int, now: int) -> pa.RecordBatch:
        told = [
            (label, source, largest[source]) for label in self.labels for source in sorted(largest, key=_none_first)
        ]
        count = len(told)
        columns = {
            "label": [label for label, _, _ in told],
            "kind": ["max"] * count,
            "stream": [self.stream] * count,
            "partition": [partition] * count,
            "sequence": [0] * count,
            "now": [now] * count,
            "source": [source for _, source, _ in told],
            "value": [value for _, _, value in told],
            "data": [None] * count,
        }
        return pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def packed(rows: DataFrame, packer: Packer, task: Any) -> DataFrame:
    """Return the packed rows (schema PACKED) of one input stream; `task` is the column expression of each row's
    task.
    """
    columns = [F.col(quoted(name)).alias(f"c{number}") for number, name in enumerate(rows.columns)]
    placed = F.shiftleft(task.cast("bigint"), CLOCK_BITS).bitwiseOR(F.unix_millis(F.current_timestamp()))
    return rows.select(*columns, placed.alias(TASK)).mapInArrow(packer, PACKED)


def task_column(rows: DataFrame, grouping: str | tuple[str, ...], tasks: int) -> Any:
    """Return the expression of a row's task: by the values of columns, of all columns ("shuffle"), or task 0
    ("global").

    Spark's xxhash64 (seed 42), so the same key goes to the same task on both runtimes and after every restart.
    "shuffle" hashes the whole row instead of counting rows: counting would depend on how the source packed its
    partitions, which a replay may change.
    """
    if grouping == "global" or tasks == 1:
        return F.lit(0)
    names = (
        grouping if isinstance(grouping, tuple) else tuple(f.name for f in rows.schema.fields if _hashable(f.dataType))
    )
    if not names:
        raise ConfigError(
            'grouping="shuffle" needs a column that is not a map, got only maps; give grouping=("column", ...)'
        )
    return F.pmod(F.xxhash64(*[F.col(quoted(name)) for name in names]), F.lit(tasks)).cast("int")


class Spread(NamedTuple):
    """What chooses the tasks of all rows of columns at once; every row goes to `width` of them.

    Law: as `Grouping.targets` does row by row, `state` included.
    """

    width: int
    choose: Callable[[Mapping[str, pa.Array], int, list[int]], list[Numbers]]

    def __call__(self, columns: Mapping[str, pa.Array], count: int, state: list[int]) -> list[Numbers]:
        """Return the task of each row, for each of the `width`, and move `state` on."""
        return self.choose(columns, count, state)


def spread_of(grouping: Grouping, tasks: int, schema: Schema) -> Spread | None:
    """Return what a grouping does with columns, None for one that has to look at each row."""
    kind = grouping.kind
    if kind is GroupingKind.ALL:
        return Spread(tasks, lambda columns, count, state: [np.full(count, task) for task in range(tasks)])
    if kind is GroupingKind.GLOBAL:
        return Spread(1, lambda columns, count, state: [np.zeros(count, dtype=np.int64)])
    if kind in (GroupingKind.SHUFFLE, GroupingKind.NONE, GroupingKind.LOCAL_OR_SHUFFLE):
        return Spread(1, partial(_round_robin, tasks))
    if kind is not GroupingKind.FIELDS:
        return None
    assert isinstance(grouping, FieldsGrouping)
    kinds = [schema.types[schema.names.index(name)] for name in grouping.fields]
    return Spread(1, partial(_by_key, tasks, grouping.fields, kinds)) if all(map(is_hashed, kinds)) else None


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


def timestamps_of(column: pa.Array) -> pa.Int64Array:
    """Return a column as milliseconds since 1970, null where it holds no usable timestamp.

    Whole numbers are milliseconds; Spark's timestamps and dates are converted (floor); floats and decimals count only
    where they are whole; text and everything else is unusable. Usable is what lies in (-2**62, 2**62); a date or a timestamp
    outside the years 1 to 9999, which a bolt could not read, is not.

    >>> timestamps_of(pa.array([1.0, 1.5, None])).to_pylist()
    [1, None, None]
    """
    kind = column.type
    if pa.types.is_integer(kind):
        stamps = column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        stamps = _floor_ms(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
    elif pa.types.is_date32(kind):
        stamps = pc.multiply(column.cast(pa.int32()).cast(pa.int64()), pa.scalar(86_400_000, pa.int64()))
    elif pa.types.is_floating(kind):
        stamps = _whole(column.cast(pa.float64()))
    elif pa.types.is_decimal(kind):
        stamps = pa.array([_whole_decimal(value) for value in column.to_pylist()], pa.int64())
    else:
        return pa.nulls(len(column), pa.int64())
    bounded = pc.and_(pc.greater(stamps, -BOUND), pc.less(stamps, BOUND))
    return _without(pc.if_else(bounded, stamps, pa.scalar(None, pa.int64())), unreadable_in(column))


def known_sources(stamps: pa.Int64Array, sources: pa.Array | None) -> pa.Int64Array:
    """Return the timestamps without those of rows whose source is a value that Python cannot hold: such rows are invalid."""
    return stamps if sources is None else _without(stamps, unreadable_in(sources))


def _without(stamps: pa.Int64Array, wrong: np.ndarray[Any, Any] | None) -> pa.Int64Array:
    return stamps if wrong is None else pc.if_else(pa.array(wrong), pa.scalar(None, pa.int64()), stamps)


def largest_of(
    stamps: pa.Int64Array, sources: pa.Array | None, now: int, max_future_ms: int | None
) -> dict[str | None, int | None]:
    """Return the largest usable timestamp of each source (of None, without sources): one too far ahead is not usable."""
    usable = stamps
    if max_future_ms is not None:
        known = pc.less_equal(stamps, pa.scalar(min(now + max_future_ms, BOUND), pa.int64()))
        usable = pc.if_else(known, stamps, pa.scalar(None, pa.int64()))
    if sources is None:
        return {None: pc.max(usable).as_py()}
    known = usable.is_valid()
    table = pa.table({"source": _texts(sources.filter(known)), "ts": usable.filter(known)})
    found = table.group_by("source").aggregate([("ts", "max")]).to_pylist()
    return {row["source"]: row["ts_max"] for row in found}


def _texts(sources: pa.Array) -> pa.Array:
    """Return the sources as texts: bytes that are no UTF-8 as their repr."""
    try:
        return sources.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else repr(value) for value in sources.to_pylist()], pa.string())


def raise_largest(largest: dict[str | None, int], found: dict[str | None, int | None]) -> None:
    """Take over what is larger."""
    for source, value in found.items():
        if value is not None and value > largest.get(source, -BOUND):
            largest[source] = value


def max_future_ms(config: WindowConfig) -> int | None:
    """Return how far ahead of the batch's clock a tuple may be: one day where the bolt says nothing, no bound in
    Storm's semantics.
    """
    if config.max_future_ms is None and config.semantics is Semantics.LOSSLESS:
        return _MAX_FUTURE_MS
    return config.max_future_ms


def _floor_ms(micros: pa.Int64Array) -> pa.Int64Array:
    floored = np.floor_divide(micros.fill_null(0).to_numpy(zero_copy_only=False), 1000)
    return pa.array(floored, pa.int64(), mask=micros.is_null().to_numpy(zero_copy_only=False))


def _whole(column: pa.DoubleArray) -> pa.Int64Array:
    """Keep the whole numbers within bounds; NaN and infinities compare as unusable."""
    usable = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), float(BOUND)))
    return pc.if_else(usable, column, pa.scalar(None, pa.float64())).cast(pa.int64())


def _whole_decimal(value: Decimal | None) -> int | None:
    return int(value) if value is not None and abs(value) < BOUND and value == int(value) else None


def _ipc(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_LZ4) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def _hashable(kind: DataType) -> bool:
    """Spark's hashes refuse maps, wherever they stand in a type."""
    if isinstance(kind, MapType):
        return False
    fields = getattr(kind, "fields", None)
    if fields is not None:
        return all(_hashable(field.dataType) for field in fields)
    element = getattr(kind, "elementType", None)
    return element is None or _hashable(element)


def quoted(name: str) -> str:
    """Return a column's name as Spark's `col` takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _none_first(source: str | None) -> tuple[bool, str]:
    return (source is not None, source or "")


# -- The wire --------------------------------------------------------------------------------------------------------------------


WIRE = (
    "target bigint, kind string, stream string, sender int, sequence int, now bigint, "
    "source string, value bigint, data binary"
)
PLACES = 1 << 20
"""The sender number of place 0; upstream partitions are below."""
TASK, POSITION, PHASE = "__task", "__pos", "__phase"
NOW = "__now"
"""The batch's clock in ms, beside the columns of a spout's DataFrame."""
_EXCHANGE_SCHEMA = pa.schema(
    [
        ("target", pa.int64()),
        ("kind", pa.string()),
        ("stream", pa.string()),
        ("sender", pa.int32()),
        ("sequence", pa.int32()),
        ("now", pa.int64()),
        ("source", pa.string()),
        ("value", pa.int64()),
        ("data", pa.binary()),
    ]
)
_FRAME_BYTES = 64 << 20


class ExchangeRow(NamedTuple):
    """One row of the wire; the module's docstring has the kinds."""

    target: int
    kind: str
    stream: str
    sender: int
    sequence: int
    now: int
    source: str | None
    value: int
    data: bytes | None


def stream_name(component: str, stream: str) -> str:
    """Return how a stream of a component is called on the wire, and by the watermark of who reads it."""
    return f"{component}:{stream}"


def field_column(position: int) -> str:
    """Return what a field of a stream is called between two levels: by its position, so that fields may have any names.

    >>> field_column(0)
    '0'
    """
    return str(position)


def record_batch(rows: Iterable[ExchangeRow]) -> pa.RecordBatch:
    """Return rows as `mapInArrow` hands them on."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_EXCHANGE_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _EXCHANGE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_EXCHANGE_SCHEMA)


def handed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that came over the wire as `record_batch` makes them: Spark may have narrowed which columns can be null."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=_EXCHANGE_SCHEMA)


def frames_of(rows: Sequence[ExchangeRow]) -> Iterator[pd.DataFrame]:
    """Yield rows as the pandas frames that a stateful operator hands on, each of about 64 MiB at most."""
    start, size = 0, 0
    for number, row in enumerate(rows):
        size += len(row.data or b"")
        if size >= _FRAME_BYTES:
            yield _frame(rows[start : number + 1])
            start, size = number + 1, 0
    yield _frame(rows[start:])


def rows_of(frames: Iterable[Any]) -> list[ExchangeRow]:
    """Return the rows of the pandas frames that a stateful operator is handed, in order."""
    return in_order(_row(found) for frame in frames for found in frame.itertuples(index=False))


def in_order(rows: Iterable[ExchangeRow]) -> list[ExchangeRow]:
    """Return rows in the one order that does not depend on how a shuffle has delivered them."""
    return sorted(rows, key=_place)


def _place(row: ExchangeRow) -> tuple[Any, ...]:
    return row.target, row.kind, row.stream, row.sender, row.sequence, row.source is not None, row.source or ""


def _row(found: Any) -> ExchangeRow:
    source = found.source if isinstance(found.source, str) else None
    data = bytes(found.data) if isinstance(found.data, bytes | bytearray | memoryview) else None
    return ExchangeRow(
        int(found.target),
        str(found.kind),
        str(found.stream),
        int(found.sender),
        int(found.sequence),
        int(found.now),
        source,
        int(found.value),
        data,
    )


def _frame(rows: Sequence[ExchangeRow]) -> pd.DataFrame:
    batch = record_batch(rows)
    return pd.DataFrame(
        {name: pd.Series(pd.arrays.ArrowExtensionArray(batch.column(name))) for name in batch.schema.names}
    )
