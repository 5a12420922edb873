"""The wire: how tuples of a topology travel between levels, as few rows of Arrow bytes.

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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

__all__ = [
    "NOW",
    "PHASE",
    "PLACES",
    "POSITION",
    "TASK",
    "WIRE",
    "Row",
    "field_column",
    "frames_of",
    "handed_on",
    "in_order",
    "record_batch",
    "rows_of",
    "stream_name",
]

WIRE = (
    "target bigint, kind string, stream string, sender int, sequence int, now bigint, "
    "source string, value bigint, data binary"
)
PLACES = 1 << 20
"""The sender number of place 0; upstream partitions are below."""
TASK, POSITION, PHASE = "__task", "__pos", "__phase"
NOW = "__now"
"""The batch's clock in ms, beside the columns of a spout's DataFrame."""
_SCHEMA = pa.schema(
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


class Row(NamedTuple):
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


def record_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as `mapInArrow` hands them on."""
    columns = list(zip(*rows, strict=True)) or [()] * len(_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def handed_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that came over the wire as `record_batch` makes them: Spark may have narrowed which columns can be null."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=_SCHEMA)


def frames_of(rows: Sequence[Row]) -> Iterator[pd.DataFrame]:
    """Yield rows as the pandas frames that a stateful operator hands on, each of about 64 MiB at most."""
    start, size = 0, 0
    for number, row in enumerate(rows):
        size += len(row.data or b"")
        if size >= _FRAME_BYTES:
            yield _frame(rows[start : number + 1])
            start, size = number + 1, 0
    yield _frame(rows[start:])


def rows_of(frames: Iterable[Any]) -> list[Row]:
    """Return the rows of the pandas frames that a stateful operator is handed, in order."""
    return in_order(_row(found) for frame in frames for found in frame.itertuples(index=False))


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows in the one order that does not depend on how a shuffle has delivered them."""
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[Any, ...]:
    return row.target, row.kind, row.stream, row.sender, row.sequence, row.source is not None, row.source or ""


def _row(found: Any) -> Row:
    source = found.source if isinstance(found.source, str) else None
    data = bytes(found.data) if isinstance(found.data, bytes | bytearray | memoryview) else None
    return Row(
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


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    batch = record_batch(rows)
    return pd.DataFrame(
        {name: pd.Series(pd.arrays.ArrowExtensionArray(batch.column(name))) for name in batch.schema.names}
    )
