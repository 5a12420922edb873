"""A PartitionedSpout (queues/spout.py) as a Spark data source, and `selected`, which checks the sources of a topology's streams.

A spout is a streaming data source with admission control (pyspark.sql.datasource), which Spark 4.1 does not have; it is refused
there. An offset in Spark's log also contains the start of its batch, so that the log alone identifies the batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import signature
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from windowing.errors import ConfigError, printable, quote
from windowing.queues.spout import (
    Offsets,
    PartitionedSpout,
    Root,
    SpoutOffsets,
    fitted,
    instead_of_class,
    refuse_other_source,
)
from windowing.schema.types import Schema
from windowing.spark.failures import Seal, end_with_spark, marked
from windowing.spark.offsets import leaves_of
from windowing.spark.session import require_classic, require_spark

try:  # "as" exports a name, here to trident_spouts.py
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
except ImportError:  # on Spark 4.1: classes can be declared, and `require_spark` refuses such sources
    ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

_FORMAT = "windowing_"
"""How the names of the library's own formats begin."""
_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {"timestamp_utc": True}
)
"""The argument for the time zone of timestamps in this version of PySpark."""


def arrow_type_in_spark(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark uses for one of its types, timestamps in UTC."""
    return to_arrow_type(kind, **_UTC)


def arrow_schema_in_spark(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark uses for a schema, timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)


def in_spark(ddl: str) -> str:
    """Return the fields of a schema as Spark reads them, whose `timestamp` may have no zone, by spark.sql.timestampType.

    >>> in_spark("timestamp bigint, at timestamp, s struct<timestamp:bigint,l:array<timestamp>>")
    'timestamp bigint, at timestamp_ltz, s struct<timestamp:bigint,l:array<timestamp_ltz>>'
    """
    return re.sub(r"\btimestamp(?=[,>]|$)", "timestamp_ltz", ddl)


def struct_of(ddl: str) -> StructType:
    """Return the schema of these fields as Spark's."""
    parsed = StructType.fromDDL(in_spark(ddl))
    assert isinstance(parsed, StructType)
    return parsed


# -- a PartitionedSpout as a data source -----------------------------------------------------------------------------------------


def spout_stream(spout: PartitionedSpout, spark: SparkSession, name: str | None = None) -> DataFrame:
    """Return the rows of a spout as a streaming DataFrame; called by `PartitionedSpout.stream`."""
    require_spark("4.2", f"{type(spout).__name__}, a source in Python,", "read the rows as a streaming DataFrame")
    schema, called = Schema.parse(spout.fields), name or type(spout).__name__
    require_classic(spark)
    return registered(spark, schema, partial(SpoutReader, spout, schema, called, Seal()))


PartitionedSpout.streams = staticmethod(spout_stream)


def refuse_other(offset: Any, spout: PartitionedSpout, name: str) -> None:
    """Raise CheckpointError if an offset of Spark's log belongs to another source than `spout`."""
    known = offset.get("source") if isinstance(offset, dict) and offset.get("spout") == name else None
    way_out = "a new checkpoint and new output folders"
    refuse_other_source(spout, known, f"spout {name!r}", "this checkpoint has", way_out)


def batch_of(offset: Any, name: str) -> tuple[Offsets, Offsets] | None:
    """Return the (start, end] of a batch from an offset of Spark's log; None for an offset of another source."""
    if not isinstance(offset, dict) or offset.get("spout") != name:
        return None
    return offset["from"], offset["to"]


def registered(spark: SparkSession, fields: Schema, reader: Callable[[], DataSourceStreamReader]) -> DataFrame:
    """Return what `reader()` reads as a streaming DataFrame: Spark creates the instances of a data source itself, with text options
    only.
    """
    format_name = f"{_FORMAT}{uuid4().hex}"

    class SpoutSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            end_with_spark()  # in a worker that only asks for the schema
            return in_spark(fields.ddl)

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return reader()

    spark.dataSource.register(SpoutSource)
    return spark.readStream.format(format_name).load()


class _Range(InputPartition):
    """The range (start, end] of a partition."""

    def __init__(self, partition: str, start: int, end: int) -> None:
        self.partition, self.start, self.end = partition, start, end


class SpoutReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader that Spark calls. Offsets are {"spout": name, "source": identity, "from": batch start, "to": batch end}."""

    def __init__(self, spout: PartitionedSpout, schema: Schema, name: str, seal: Seal | None = None) -> None:
        end_with_spark()  # in the workers in which Spark plans a query
        self._spout, self._schema, self._name, self._seal = spout, schema, name, seal
        self._progress = SpoutOffsets(spout, name)
        self._target: Offsets | None = None
        self._newest: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with marked():
            at = self._progress.initial()
            return self._offset(at, at)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._spout.max_rows is None else ReadMaxRows(self._spout.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Use the current end of the source as the end of this run."""
        with marked():
            self._target = self._progress.newest({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the batch that begins at `start`; `start` itself if there are no new rows."""
        with marked():
            refuse_other(start, self._spout, self._name)
            at: Offsets = start["to"]
            newest = self._newest = self._progress.newest(at)
            if self._target is not None:
                target = {**at, **self._target}
                newest = {name: min(end, target[name]) for name, end in newest.items() if name in target}
            begins, ends = self._progress.batch(at, newest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
            return start if ends == begins else self._offset(begins, ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the end of the source at the last call of `latestOffset`, for the lag of the query."""
        return None if self._newest is None else self._offset({}, self._newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a batch, in the order of their partitions."""
        if start == end:
            return []
        with marked():
            refuse_other(end, self._spout, self._name)
        ranges = Root(-1, end["from"], end["to"]).ranges
        return [_Range(name, *ranges[name]) for name in sorted(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. Raises SourceError for columns other than the declared fields."""
        assert isinstance(partition, _Range)
        end_with_spark()
        with marked():
            for batch in self._spout.read(partition.partition, partition.start, partition.end):
                yield fitted(batch, self._schema, self._name)

    def stop(self) -> None:
        with marked():
            self._spout.close()

    def commit(self, end: dict[str, Any]) -> None:
        """Pass a commit of Spark on to the spout."""
        with marked():
            self._spout.commit(end["to"])

    def _offset(self, begins: Offsets, ends: Offsets) -> dict[str, Any]:
        known = {} if self._spout.identity is None else {"source": self._spout.identity}
        return {"spout": self._name, **known, "from": dict(sorted(begins.items())), "to": dict(sorted(ends.items()))}


# -- Sources ---------------------------------------------------------------------------------------------------------------------


SpoutInput = DataFrame | PartitionedSpout
"""A streaming DataFrame, or a source of rows in Python."""


_TIME = re.compile(r"\btime\(\d\)")
_TIME_TYPE = "spark.sql.timeType.enabled"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"


def require_evaluable(what: str, rows: DataFrame) -> None:
    """Raise ConfigError for a streaming DataFrame that Spark would refuse, or end with an error, when its query starts.

    It has an operation that cannot append rows (an aggregation without a watermark, a sort), or reads columns of the type TIME,
    which the session does not allow. Cost: a few calls of the JVM.
    """
    plan = cast(Any, rows)._jdf.queryExecution().analyzed()
    said = _refused_operation(rows.sparkSession, plan)
    if said is not None:
        raise ConfigError(
            f"{what} has an operation that Spark does not run on a stream whose rows are appended: {said}; do it in a bolt (a "
            "windowed bolt can aggregate and sort), or give an aggregation a watermark (withWatermark)"
        )
    if str(rows.sparkSession.conf.get(_TIME_TYPE, "true")).lower() == "true":
        return
    for leaf in leaves_of(rows):
        fields = leaf.schema().fields()
        found = [field.name() for field in fields if _TIME.search(field.dataType().catalogString())]
        if found:
            raise ConfigError(
                f"{what} reads column {quote(found[0])} of the type TIME, which this session does not allow; declare it as a "
                f'string in the schema that is read, or spark.conf.set("{_TIME_TYPE}", "true")'
            )


def operators_of(rows: DataFrame) -> Iterator[tuple[Any, int]]:
    """Yield the operators of the plan of a DataFrame, objects of the JVM, each before those that it reads and with their number.
    Cost: a few calls of the JVM for each.
    """
    plans = [cast(Any, rows)._jdf.queryExecution().analyzed()]
    while plans:
        plan = plans.pop()
        children = plan.children()
        count = children.size()
        yield plan, count
        plans += map(children.apply, range(count))


def folders_read(rows: DataFrame) -> list[str]:
    """Return the folders, or patterns of folders, from which a query reads files; without those of a reader that takes only some
    files (`pathGlobFilter`). Cost: some calls of the JVM.
    """
    found = []
    for leaf in leaves_of(rows):
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            name, options = str(leaf.sourceName()), str(leaf.dataSource().options().keys().mkString(" "))
            if name.startswith("FileSource[") and "pathglobfilter" not in options.lower().split():
                found.append(name[len("FileSource[") : -1])
    return found


def is_packed_by_cores(rows: DataFrame) -> bool:
    """Return whether Spark may cut the rows of a source into other partitions on another number of cores, as it does with files; it
    cuts a topic and a PartitionedSpout by their own partitions. Cost: some calls of the JVM.
    """
    for leaf in leaves_of(rows):
        if leaf.isStreaming():
            name = str(leaf.sourceName()) if leaf.getClass().getSimpleName() == "StreamingRelationV2" else ""
            if name != "kafka" and not name.startswith(_FORMAT):
                return True
    return False


def _refused_operation(spark: SparkSession, plan: Any) -> str | None:
    """Return Spark's text about a plan that cannot append its rows; None for one that can, or if Spark does not check it."""
    if str(spark.conf.get(_CHECK, "true")).lower() == "false":
        return None
    jvm: Any = spark._jvm
    try:
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        checker.checkForStreaming(plan, jvm.org.apache.spark.sql.streaming.OutputMode.Append())
    except AnalysisException as problem:
        return printable(str(problem).partition("\n")[0]).rstrip(";. ")
    except Exception:  # another Spark may call it otherwise, and refuses the plan at the start; py4j has no types
        return None
    return None


def selected(what: str, schema: Schema, source: SpoutInput, spark: SparkSession, name: str) -> DataFrame:
    """Return the declared columns of the rows of a source. what: the stream's name in errors; name: its name in Spark's log.

    Raises ConfigError for a source that is not a streaming DataFrame, and for a column that is missing or of another type.
    """
    rows = source.stream(spark, name) if isinstance(source, PartitionedSpout) else source
    if isinstance(rows, DataFrame):
        require_classic(rows.sparkSession)  # with Connect, isStreaming is a request to the server
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        way_out = instead_of_class(rows) or "read it with spark.readStream"
        raise ConfigError(
            f"the source of {what} is a streaming DataFrame or a PartitionedSpout, got {quote(rows)}; {way_out}"
        )
    if rows is source:
        require_evaluable(f"the source of {what}", rows)
    _require_distinct(f"the source of {what}", schema.names, rows)
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    for field in struct_of(schema.ddl).fields:
        kind = types.get(field.name)
        if kind != field.dataType.simpleString():
            given = "no such column" if kind is None else f"it as {kind}"
            raise ConfigError(
                f"{what} declares {field.name!r} as {field.dataType.simpleString()}, its source in sources= has {given}; "
                "change one of both: the fields of the spout, or the columns (of a DataFrame by select, withColumn or cast)"
            )
    return rows.select(*[f"`{name}`" for name in schema.names])


def _require_distinct(what: str, names: Sequence[str], rows: DataFrame) -> None:
    """Raise ConfigError for a declared field that two columns could be."""
    exact = str(rows.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    folded = str if exact else str.lower
    for name in names:
        found = [column for column in rows.columns if folded(column) == folded(name)]
        if len(found) > 1:
            raise ConfigError(
                f"{what} has {len(found)} columns for the field {name!r}: {', '.join(found)}; rename or drop the others"
            )
