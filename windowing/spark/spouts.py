"""PartitionedSpout: a source of rows in Python, in partitions, that Spark can ask for a batch again.

    partition "0"   1 2 3 4 5 6 7 8 9        offsets: whole numbers that only grow
                    ^ initial()  ^ latest()
    a batch         (start, end] of each partition        read(partition, start, end) --> RecordBatches, the same at any time
    Spark asks no more for what is at or before `end`     commit(end)
    all that came of a batch is done and committed        ack(root), else fail(root)       (submit only)
    ... of some of its tuples there are dead letters      give_up(root)

Where it runs: `initial`, `latest` and `commit` in one Python process of the query; `read` in the executors, on copies; `ack`,
`fail` and `give_up` in the driver. So a spout holds a path or a URL, no connection. On Spark it is a data source with admission
control (pyspark.sql.datasource), which Spark 4.1 has not: it is refused there. An offset in Spark's log says where its batch begins
too, so that the log alone tells the batch.

Sources: what a stream of a topology is fed from on Spark, brought to the columns that the stream declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from windowing.columnar.bolts import arrow_schema
from windowing.errors import CheckpointError, ConfigError, SourceError, quote
from windowing.schema.types import Schema
from windowing.spark.failures import Seal, marked
from windowing.spark.session import require_spark

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # of Spark 4.1, on which `require_spark` refuses such sources
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

__all__ = [
    "Offsets",
    "PartitionedSpout",
    "Root",
    "SpoutInput",
    "arrow_schema_in_spark",
    "arrow_type_in_spark",
    "batch_of",
    "refuse_other",
    "selected",
]


_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {"timestamp_utc": True}
)
"""How this version of PySpark is told the zone of timestamps."""


def arrow_type_in_spark(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark itself takes for a type of its own, timestamps in UTC."""
    return to_arrow_type(kind, **_UTC)


def arrow_schema_in_spark(schema: StructType) -> pa.Schema:
    """Return the fields that Spark itself takes for a schema, timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)


# -- PartitionedSpout ------------------------------------------------------------------------------------------------------------


Offsets = Mapping[str, int]
"""A whole number for each partition, by name."""


@dataclass(frozen=True)
class Root:
    """A batch of a spout: the offsets (start, end] of each partition that it has taken, in batch number `batch` of the query."""

    batch: int
    start: Offsets
    end: Offsets

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The (start, end] of each partition that has given something."""
        found = {name: (self.start.get(name, end), end) for name, end in self.end.items()}
        return {name: bounds for name, bounds in found.items() if bounds[0] < bounds[1]}


class PartitionedSpout(ABC):
    """Subclass it, give it to `submit(sources={"name": MySpout(...)})`, or read it alone: `MySpout(...).stream(spark)`.

    fields: the columns, as in `output="word string, n long"`. max_rows: how many offsets a batch takes at most (None: all there
    are). identity: what tells this source from another one that is made in its place later, whose offsets begin anew; a checkpoint
    remembers it, and refuses the other one (None: there is nothing to tell). A subclass that defines `ack` takes acks: a batch is
    acked once, when every tuple that came of it has expired from its windows and what they led to is committed. After a crash it
    may be told twice, so `ack`, `fail` and `give_up` do no harm the second time.

    Errors of its methods end the query. Source: Trident's partitioned spouts; Spark's DataSourceStreamReader.
    """

    fields: str = ""
    max_rows: int | None = None
    identity: str | None = None

    @abstractmethod
    def initial(self) -> Offsets:
        """Return where a new query begins: the offsets before the first row. A partition that comes later begins here too."""

    @abstractmethod
    def latest(self) -> Offsets:
        """Return the offsets of the last rows that there are now."""

    @abstractmethod
    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition with offsets in (start, end], in order, with the columns of `fields`.

        Until they are acked or committed: whenever it is asked, the same.
        """

    def commit(self, end: Offsets) -> None:  # noqa: B027 - a spout may leave it out
        """Take note that Spark asks no more for rows up to `end`. It may come one batch late, and not for the last one."""

    def begin(self, query: str, end: Offsets | None) -> None:  # noqa: B027
        """Take note that a run begins of the query of this name, whose checkpoint has read up to `end` (None: nothing yet).

        Called in the driver, before the first batch, of a spout that takes acks. One that has forgotten what such a query will ask
        for raises CheckpointError: the checkpoint was put back from an older copy, or another query has read here since.
        """

    def ack(self, root: Root) -> None:  # noqa: B027
        """Forget a batch: all that came of it is done. Called only if a subclass defines it."""

    def fail(self, root: Root, component: str) -> None:  # noqa: B027
        """Take note that a component has failed tuples of a batch. It is not acked any more."""

    def give_up(self, root: Root, component: str) -> None:
        """Take note that a batch is done, in place of `ack`: a component made dead letters of some of its tuples, and who reads
        those is done with them. Left out, the batch is acked.
        """
        self.ack(root)

    @property
    def takes_acks(self) -> bool:
        """Whether the class defines `ack`."""
        return type(self).ack is not PartitionedSpout.ack

    def stream(self, spark: SparkSession, name: str | None = None) -> DataFrame:
        """Return the rows as a streaming DataFrame. `name` is how the spout is called in Spark's offset log.

        Raises ConfigError for fields that are none, SessionError on Spark 4.1.
        """
        require_spark("4.2", f"{type(self).__name__}, a source in Python,")
        schema, called = Schema.parse(self.fields), name or type(self).__name__
        source = _source(self, schema, called)
        spark.dataSource.register(source)
        return spark.readStream.format(source.name()).load()


def refuse_other(offset: Any, spout: PartitionedSpout, name: str) -> None:
    """Raise CheckpointError if an offset of Spark's log is that of another source than `spout` is now."""
    known = offset.get("source") if isinstance(offset, dict) and offset.get("spout") == name else None
    if known is not None and known != spout.identity:
        where = f" at {spout.path}" if hasattr(spout, "path") else ""
        raise CheckpointError(
            f"spout {name!r} reads another {type(spout).__name__}{where} than this checkpoint has read: its identity was "
            f"{quote(known)}, now {quote(spout.identity)}, so the old one was lost and made anew, or another is in its place, "
            "whose first rows would count as read; put the old one back from a copy, or begin with a new checkpoint and new output "
            "folders, which reads all that this one has; nothing was read"
        )


def batch_of(offset: Any, name: str) -> tuple[Offsets, Offsets] | None:
    """Return the (start, end] of a batch out of an offset of Spark's log; None if it is of another source."""
    if not isinstance(offset, dict) or offset.get("spout") != name:
        return None
    return offset["from"], offset["to"]


def _source(spout: PartitionedSpout, fields: Schema, called: str) -> type[DataSource]:
    """Return the data source of one spout: Spark makes instances of a registered class, and hands them only texts."""
    format_name, seal = f"windowing_{uuid4().hex}", Seal()

    class SpoutSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return fields.ddl

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return SpoutReader(spout, fields, called, seal)

    return SpoutSource


class _Range(InputPartition):
    """(start, end] of a partition."""

    def __init__(self, partition: str, start: int, end: int) -> None:
        self.partition, self.start, self.end = partition, start, end


class SpoutReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks. Offsets are {"spout": name, "source": its identity, "from": where the batch begins, "to": where it ends}."""

    def __init__(self, spout: PartitionedSpout, schema: Schema, name: str, seal: Seal | None = None) -> None:
        self._spout, self._schema, self._name, self._seal = spout, schema, name, seal
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins."""
        with marked():
            at = self._checked(self._spout.initial(), {})
            return self._offset(at, at)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch takes."""
        return ReadAllAvailable() if self._spout.max_rows is None else ReadMaxRows(self._spout.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take what is there now as the end of this run."""
        with marked():
            self._target = self._checked(self._spout.latest(), {})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the batch ends that begins at `start`; `start` itself if there is nothing new."""
        with marked():
            refuse_other(start, self._spout, self._name)
            at: Offsets = start["to"]
            newest = self._checked(self._spout.latest(), at)
            if self._target is not None:
                target = {**at, **self._target}
                newest = {name: min(end, target[name]) for name, end in newest.items() if name in target}
            begun = self._begun(at, newest)
            to = _limited(begun, newest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
            return start if to == begun else self._offset(begun, to)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a batch, in the order of their partitions."""
        if start == end:
            return []
        with marked():
            refuse_other(end, self._spout, self._name)
        ranges = Root(-1, end["from"], end["to"]).ranges
        return [_Range(name, *ranges[name]) for name in sorted(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. Raises SourceError for columns that are not of the declared fields."""
        assert isinstance(partition, _Range)
        wanted = arrow_schema(self._schema)
        with marked():
            for batch in self._spout.read(partition.partition, partition.start, partition.end):
                yield _fitted(batch, wanted, self._name)

    def commit(self, end: dict[str, Any]) -> None:
        """Pass on what Spark has done with."""
        with marked():
            self._spout.commit(end["to"])

    def _begun(self, at: Offsets, newest: Offsets) -> Offsets:
        """Return where a batch begins: new partitions at their initial offsets."""
        new = [name for name in newest if name not in at]
        if not new:
            return at
        initial = self._checked(self._spout.initial(), {})
        for name in new:
            if name not in initial:
                raise SourceError(
                    f"partition {name!r} is in latest() of spout {self._name!r}, not in initial(); say there where it begins"
                )
        return {**at, **{name: initial[name] for name in new}}

    def _offset(self, begins: Offsets, ends: Offsets) -> dict[str, Any]:
        known = {} if self._spout.identity is None else {"source": self._spout.identity}
        return {"spout": self._name, **known, "from": dict(sorted(begins.items())), "to": dict(sorted(ends.items()))}

    def _checked(self, found: Any, since: Offsets) -> Offsets:
        plain = isinstance(found, Mapping) and all(
            isinstance(name, str) and isinstance(at, int) and not isinstance(at, bool) for name, at in found.items()
        )
        if not plain:
            raise SourceError(
                f"spout {self._name!r} says its offsets are {quote(found)}; wanted a whole number for each partition, by name"
            )
        for name, at in since.items():
            if found.get(name, at) < at:
                raise SourceError(
                    f"partition {name!r} of spout {self._name!r} ends at offset {found[name]}, and the query has read up to {at}: "
                    "rows were lost, or it is another source; offsets only grow"
                )
        return {**since, **found}


def _limited(start: Offsets, newest: Offsets, rows: int | None) -> dict[str, int]:
    """Return where a batch of so many rows ends, the same number for each partition that has some."""
    if rows is None:
        return dict(newest)
    ready = [name for name, end in newest.items() if end > start.get(name, end)]
    each = max(1, rows // max(1, len(ready)))
    return {name: min(end, start[name] + each) if name in ready else end for name, end in newest.items()}


def _fitted(batch: Any, wanted: pa.Schema, name: str) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise SourceError(f"spout {name!r} gave {quote(batch)}; its read yields pyarrow RecordBatches")
    if batch.schema.names != wanted.names:
        raise SourceError(
            f"spout {name!r} gave columns {', '.join(batch.schema.names)}; its fields are {', '.join(wanted.names)}"
        )
    try:
        columns = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
    except pa.ArrowException as problem:
        raise SourceError(f"spout {name!r} gave a value that is not of its field: {quote(str(problem))}") from problem
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


# -- Sources ---------------------------------------------------------------------------------------------------------------------


SpoutInput = DataFrame | PartitionedSpout
"""A streaming DataFrame, or a source of rows in Python."""


def selected(what: str, schema: Schema, source: SpoutInput, spark: SparkSession, name: str) -> DataFrame:
    """Return the declared columns of the rows of a source. `what`: how errors call the stream; `name`: how Spark's log does.

    Raises ConfigError for what is no streaming DataFrame, and for a column that is missing or of another type.
    """
    rows = source.stream(spark, name) if isinstance(source, PartitionedSpout) else source
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        raise ConfigError(
            f"the source of {what} is a streaming DataFrame or a PartitionedSpout, got {quote(rows)}; read it with spark.readStream"
        )
    wanted = StructType.fromDDL(schema.ddl)
    assert isinstance(wanted, StructType)
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    for field in wanted.fields:
        kind = types.get(field.name)
        if kind != field.dataType.simpleString():
            given = "no such column" if kind is None else f"it as {kind}"
            raise ConfigError(
                f"the source of {what} declares {field.name!r} as {field.dataType.simpleString()}, the DataFrame has {given}; "
                "bring it there with select, withColumn or cast"
            )
    return rows.select(*[F.col(f"`{name}`") for name in schema.names])
