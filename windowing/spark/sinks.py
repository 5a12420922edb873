"""Where streams go. Law: a sink is idempotent by batch id: writing a batch again leaves what writing it once leaves.

Spark calls a sink again with the same batch id after a crash, so each one here keys what it writes by that id. So what
a sink keeps is that of one stream and one checkpoint: others count their batches from 0 too (definition.py).

Outlets: the streams of a topology that have a sink, on the wire and off it.

    a row "out" of the wire (stream, how many, Arrow bytes) --rows(stream)--> a DataFrame of the stream's own fields

A sink is named by "component" (its default stream) or "component.stream".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructType

from windowing.errors import ConfigError, CorruptStateError, SinkError, quote
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean
from windowing.schema.types import Schema
from windowing.spark.definition import BATCH, OutputOwner, batch_of, claim_folder, owner_of, refuse_shared
from windowing.spark.exchange import stream_name
from windowing.spark.failures import Seal, marked
from windowing.spark.hadoop import Folder, checked_folder, literal_path, refused_by_files, unreachable
from windowing.spark.state import decode_table
from windowing.spark.unreadable import python_values
from windowing.topology.plan import Topology

__all__ = [
    "FileSink",
    "FunctionSink",
    "MemorySink",
    "NoopSink",
    "ParquetSink",
    "Sink",
    "SinkStreams",
    "claim",
    "outlet_names",
    "require_sink",
    "require_sinks",
    "sinks_of",
    "unread_late",
]


_FORMATS = ("parquet", "json", "csv")
_SCHEMA_FILE = "_schema.json"
_WHOLE = "_SUCCESS"


class Sink(Protocol):
    """What takes the rows of one stream. It may have two methods more:

    `skip(batch_id)`: called for a batch without rows. `claim(spark, owner)`: called at every start, before the first
    batch; it raises ConfigError if what is there already is not the owner's (query, stream; `owner.schema` is that of its rows).
    """

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write all rows of a batch; called on the driver, with the same id again after a crash."""


def require_sink(name: str, sink: Any, columns: Iterable[str]) -> None:
    """Raise ConfigError for what is no sink, and for a sink of files that has a column of its own among `columns`."""
    if not hasattr(sink, "write"):
        raise ConfigError(f"the sink of {name!r} has no write(rows, batch_id), got {quote(sink)}; use FunctionSink(f)")

    taken = [column for column in columns if column.lower() == BATCH] if isinstance(sink, FileSink) else []
    if taken:
        raise ConfigError(
            f"the sink of {name!r} adds a column {BATCH!r}, and the stream has one called {taken[0]!r}; rename it, or write with "
            "a FunctionSink"
        )


def require_sinks(
    columns: Mapping[str, Iterable[str]],
    sinks: Mapping[str, Sink],
    discard: Iterable[str],
    unknown: Callable[[str], str],
    both: Callable[[str], str] | None = None,
) -> dict[str, Sink]:
    """Return the sinks in the order of the streams that can have one, of these columns. Raises ConfigError for what is no sink of
    its stream, for a name that is no stream (`unknown` says so), and for a sink whose stream is discarded too (`both`).
    """
    for name in (*sinks, *discard):
        if name not in columns:
            raise ConfigError(unknown(name))
    for name, sink in sinks.items():
        require_sink(name, sink, columns[name])
        if both is not None and name in discard:
            raise ConfigError(both(name))
    return {name: sinks[name] for name in columns if name in sinks}


class FileSink:
    """Files in one directory per batch, `<path>/batch_id=000000000012`, written anew when the batch is replayed.

    A directory has a file `_SUCCESS` when it is whole, whatever committer has written it; `read` looks at no other. `format` is
    parquet, json or csv. The folder belongs to one stream of one checkpoint (`_owner.json`), whose rows have the schema in
    `_schema.json`. Raises SinkError where the folder cannot be reached, written or read.
    """

    def __init__(self, path: str, format: str = "parquet") -> None:
        if format not in _FORMATS:
            raise ConfigError(
                f"a file sink writes {', '.join(_FORMATS)}, got {quote(format)}; use FunctionSink for others"
            )
        self.path = checked_folder("path", path)
        self.format = format
        self._known_schema: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {self.format!r})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Refuse a folder that holds the output of another stream or query; else it is the owner's from now on."""
        folder = self._folder(spark)
        claim_folder(folder, owner)
        self._known_schema = None
        if owner.schema is not None:
            self._keep_schema(folder, owner.schema)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the batch's directory, in place of an older one. Cost: one Spark job, and some look-ups."""
        folder = self._folder(rows.sparkSession)
        self._keep_schema(folder, rows.schema)
        batch = folder / _name(batch_id)
        batch.delete(_WHOLE)  # a committer may leave the older attempt's files there until it commits
        options = {"header": "true"} if self.format == "csv" else {}
        try:
            rows.write.format(self.format).options(**options).mode("overwrite").save(batch.path)
        except Exception as problem:  # py4j has no types
            if not refused_by_files(problem):
                raise
            raise SinkError(unreachable(batch.path, problem)) from problem
        if not batch.exists(_WHOLE):  # a session may tell Hadoop's committers to leave it out, and others know none
            batch.write(_WHOLE, b"")

    def skip(self, batch_id: int) -> None:
        """Remove what an earlier attempt of a batch has left that turned out to have no rows."""
        spark = SparkSession.active()
        folder = self._folder(spark)
        if folder.exists(_name(batch_id)):
            folder.delete(_name(batch_id))

    def committed(self, spark: SparkSession) -> list[int]:
        """Return the ids of the batches that are wholly written, ascending. Raises CorruptStateError for one that is not, though a
        later one is there: only the last can be in the making.
        """
        folder = self._folder(spark)
        batches = sorted(batch_of(name) for name in folder.names() if batch_of(name) >= 0)
        whole = [batch for batch in batches if (folder / _name(batch)).exists(_WHOLE)]
        doubtful = set(batches[:-1]) - set(whole)
        if doubtful:
            raise CorruptStateError(
                f"{folder.of(_name(min(doubtful)))} has no file {_WHOLE}, though later batches are there: put an empty one into it "
                "if its rows are whole (written by a session that leaves such files out), else remove the directory"
            )
        return whole

    def read(self, spark: SparkSession, schema: StructType | None = None) -> DataFrame:
        """Return the rows of all wholly written batches, with their `batch_id`; order is by batch only if you sort.

        Before the first row they are none, of the stream's schema. `schema` is needed only before a query was started with this
        folder: ConfigError without it.
        """
        folder = self._folder(spark)
        if schema is None:
            schema = self._written_schema(folder)
        if not any(name.lower() == BATCH for name in schema.names):
            schema = StructType([*schema.fields]).add(BATCH, LongType())
        paths = [literal_path(folder.of(_name(batch))) for batch in self.committed(spark)]
        if not paths:
            return spark.createDataFrame([], schema)
        reader = spark.read.format(self.format).schema(schema).option("basePath", folder.path)
        return (reader.option("header", "true") if self.format == "csv" else reader).load(paths)

    def _folder(self, spark: SparkSession) -> Folder:
        return Folder(spark, self.path, SinkError)

    def _keep_schema(self, folder: Folder, schema: StructType) -> None:
        content = str(schema.json())
        if content != self._known_schema:
            folder.write(_SCHEMA_FILE, content.encode())
            self._known_schema = content

    def _written_schema(self, folder: Folder) -> StructType:
        if not folder.exists(_SCHEMA_FILE):
            raise ConfigError(
                f"{folder.path} holds no batch yet, and no query was started with it; give read(spark, schema) the schema, or read "
                "it later"
            )
        try:
            return _nullable(StructType.fromJson(json.loads(folder.read(_SCHEMA_FILE))))
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise CorruptStateError(
                f"{folder.of(_SCHEMA_FILE)} is no schema: {quote(str(problem))}; delete it"
            ) from problem


class ParquetSink(FileSink):
    """A FileSink of Parquet files: the default for what is kept."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "parquet")


class FunctionSink:
    """A function `(rows: DataFrame, batch_id: int)`; that it is idempotent by batch id is up to the function."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        if not callable(function):
            raise ConfigError(f"FunctionSink takes a function of (rows, batch_id), got {quote(function)}")
        self._function = function

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Call the function."""
        self._function(rows, batch_id)


class MemorySink:
    """Rows in the driver's memory, for tests and the REPL; `batches[id]` are those of one batch, in output order."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self._owner: OutputOwner | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of batches."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Refuse a second stream or query: their batches have the same ids."""
        if self._owner is not None and not self._owner.is_same(owner):
            raise ConfigError(
                f"a MemorySink of {self._owner.name} was given to {owner.name}; make another MemorySink()"
            )
        self._owner = owner

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Keep the batch, in place of an older attempt."""
        try:
            self.batches[batch_id] = rows.collect()
        except (ValueError, OverflowError):  # a date that Python cannot hold
            self.batches[batch_id] = _collected(rows)

    def skip(self, batch_id: int) -> None:
        """Forget an older attempt of a batch that turned out to have no rows."""
        self.batches.pop(batch_id, None)


class NoopSink:
    """Evaluates every row and keeps none: for measurements."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Evaluate the rows."""
        rows.write.format("noop").mode("overwrite").save()


def claim(
    spark: SparkSession, checkpoint: str, sinks: Mapping[str, Sink], schemas: Mapping[str, StructType] | None = None
) -> None:
    """Make the sinks of a query, by stream, those of its checkpoint; `schemas` are those of the streams. Raises ConfigError where
    two share a folder, or one holds the output of another query; nothing was written into any then. Cost: a few file look-ups
    for each.
    """
    folders = {name: Folder(spark, sink.path, SinkError) for name, sink in sinks.items() if isinstance(sink, FileSink)}
    refuse_shared({name: folder.path for name, folder in folders.items()})
    for name, sink in sinks.items():
        own: Callable[[SparkSession, OutputOwner], None] | None = getattr(sink, "claim", None)
        if own is not None:
            own(spark, owner_of(spark, checkpoint, name, (schemas or {}).get(name)))


def _collected(rows: DataFrame) -> list[Row]:
    """Return rows with an Unreadable (unreadable.py) in the place of each value that Python cannot hold."""
    found = rows.toArrow()
    columns = [python_values(found.column(name), name, "strict") for name in rows.columns]
    return [Row(*rows.columns)(*values) for values in zip(*columns, strict=True)]


def _name(batch_id: int) -> str:
    return f"{BATCH}={batch_id:012d}"


def _nullable(schema: StructType) -> StructType:
    for field in schema.fields:
        field.nullable = True
    return schema


# -- Outlets ---------------------------------------------------------------------------------------------------------------------


class SinkStreams:
    """The streams by sink name: what each is called on the wire, and its schema. `unread`: bolts whose late tuples go nowhere."""

    def __init__(self, streams: Mapping[str, tuple[str, str]], unread: tuple[str, ...]) -> None:
        self._streams, self._unread = dict(streams), unread

    def schema_of(self, stream: str) -> StructType:
        """Return the schema of the rows of a stream."""
        schema = StructType.fromDDL(self._streams[stream][1])
        assert isinstance(schema, StructType)
        return schema

    def count(self, stream: str) -> Column:
        """Return the aggregate that counts the rows of a stream."""
        return F.sum(F.when(self._is_of(stream), F.col("value"))).alias(f"_count{list(self._streams).index(stream)}")

    def counted(self, counts: Any, stream: str) -> int:
        """Return what the aggregate of `count` has found."""
        return int(counts[f"_count{list(self._streams).index(stream)}"] or 0)

    def late(self) -> Column:
        """Return the aggregate that counts the late and unreadable tuples that go nowhere."""
        late = (F.col("source") == "late") & F.col("stream").isin(*self._unread)
        nowhere = (F.col("kind") == "metric") & (late | (F.col("source") == "invalid"))
        return F.sum(F.when(nowhere, F.col("value")))

    def largest(self) -> Column:
        """Return the aggregate that tells how many packed bytes the largest task took."""
        return F.max(F.when((F.col("kind") == "metric") & (F.col("source") == "bytes"), F.col("value")))

    def rows(self, output: DataFrame, stream: str) -> DataFrame:
        """Return the rows of a stream. Cost: one Python worker that copies Arrow bytes."""
        packed = output.where(self._is_of(stream)).select("data")
        return packed.mapInArrow(_Unpacked(), self._streams[stream][1])

    def _is_of(self, stream: str) -> Column:
        return (F.col("kind") == "out") & (F.col("stream") == self._streams[stream][0])


def outlet_names(topology: Topology) -> dict[str, tuple[str, str]]:
    """Return every stream that can have a sink: sink name -> (name on the wire, fields); dead letters of bolts too."""
    names = {}
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not (component.is_spout and output.dead):  # what fails here fails in a bolt
                names[_sink_name(component.id, stream)] = (stream_name(component.id, stream), output.schema.ddl)
    return names


def sinks_of(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> dict[str, Sink]:
    """Return the sinks in the order of the plan. Raises ConfigError for an unknown name, and for a stream that nobody reads
    and that neither has a sink nor stands in `discard`; late streams may go nowhere (they are counted and logged).
    """
    names = outlet_names(topology)
    known = require_sinks(
        {name: Schema.parse(fields).names for name, (_, fields) in names.items()},
        sinks,
        discard,
        lambda name: f"topology {topology.name!r} has no stream {quote(name)}; {did_you_mean(str(name), names)}",
        lambda name: f"{name!r} has a sink and stands in discard; leave out one of them",
    )
    for name in _needed(topology):
        if name not in sinks and name not in discard:
            raise ConfigError(
                f"nobody reads {name!r} of topology {topology.name!r}, and it has no sink; give "
                f"sinks={{{name!r}: ParquetSink(path)}}, or say discard=({name!r},)"
            )
    return known


def unread_late(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> tuple[str, ...]:
    """Return the windowed bolts whose late tuples nobody reads, keeps or has said to discard."""
    found = []
    for component in topology.bolts:
        late = None if component.window is None else component.window.config.late_stream
        named = None if late is None else _sink_name(component.id, late)
        read = late is not None and bool(topology.readers(component.id, late))
        if component.window is not None and not read and named not in sinks and named not in discard:
            found.append(component.id)
    return tuple(found)


def _needed(topology: Topology) -> Iterator[str]:
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not output.late and topology.ends(component, stream):
                yield _sink_name(component.id, stream)


def _sink_name(component: str, stream: str) -> str:
    return component if stream == DEFAULT_STREAM else f"{component}.{stream}"


class _Unpacked:
    """What turns packed rows into those of a stream, in a worker."""

    def __init__(self) -> None:
        self._seal = Seal()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked():
            for batch in batches:
                for data in batch.column(0).to_pylist():
                    yield from decode_table(data).to_batches()
