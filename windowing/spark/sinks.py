"""Where streams go. Law: a sink is idempotent by batch id: writing a batch again leaves what writing it once leaves.

Spark calls a sink again with the same batch id after a crash, so each one here keys what it writes by that id. Other queries count
their batches from 0 too, so the folder of a file sink belongs to one stream of one checkpoint, and says so itself:

    <folder>/_owner.json    {"query": "5f0c...", "stream": "default"}    written before the first data

Laws: batches of two streams, or of two checkpoints, never lie in one folder. What is refused is refused before anything is written.
Claiming again changes nothing, so a start that died half way can be made again. A folder without an owner goes to a checkpoint that
has made as many batches as it holds, and to no other.

A stream of a topology is named by "component" (its default stream) or "component.stream".
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple, Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StructType

from windowing.errors import ConfigError, CorruptStateError, SinkError, quote
from windowing.schema.checks import did_you_mean
from windowing.schema.types import Schema
from windowing.spark.definition import last_batch, owner_field, query_id
from windowing.spark.hadoop import Folder, checked_folder, literal_path, refused_by_files, unreachable
from windowing.spark.session import require_classic
from windowing.spark.unreadable import python_values
from windowing.topology.plan import Topology, output_name, stream_name

__all__ = [
    "FileSink",
    "FunctionSink",
    "MemorySink",
    "NoopSink",
    "OutputOwner",
    "ParquetSink",
    "Sink",
    "claim",
    "output_streams",
    "owner_of",
    "require_sink",
    "require_sinks",
    "sinks_of",
    "unread_late",
]


BATCH = "batch_id"
"""A batch of a file sink is the directory `batch_id=000000000012`."""
OWNER_FILE = "_owner.json"
_WAY_OUT = "give this one a new output folder, or remove the old output"
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
    needed: Iterable[str],
    sinks: Mapping[str, Sink],
    discard: Collection[str],
    *,
    unknown: Callable[[str], str],
    without: Callable[[str], str],
) -> dict[str, Sink]:
    """Return the sinks in the order of the streams that can have one, of these columns. Raises ConfigError for what is no sink of
    its stream, for a name that is no stream (`unknown` says so), for a sink whose stream is discarded too, and for a needed stream
    that has no sink and is not discarded (`without` says so).
    """
    for name in (*sinks, *discard):
        if name not in columns:
            raise ConfigError(unknown(name))
    for name, sink in sinks.items():
        require_sink(name, sink, columns[name])
        if name in discard:
            raise ConfigError(f"{name!r} has a sink and stands in discard; leave out one of them")
    for name in needed:
        if name not in sinks and name not in discard:
            raise ConfigError(
                f"{without(name)}; give sinks={{{name!r}: ParquetSink(path)}}, or say discard=({name!r},)"
            )
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
        self._known_folder: tuple[Any, Folder] | None = None

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
        require_classic(spark)
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
        require_classic(spark)
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
        context = spark.sparkContext
        if self._known_folder is None or self._known_folder[0] is not context:
            self._known_folder = context, Folder(spark, self.path, SinkError)
        return self._known_folder[1]

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
    """A function `(rows: DataFrame, batch_id: int)`; that it is idempotent by batch id is up to the function.

    It may have an argument `query_id` too, and `stream`: batches of two checkpoints, and of two streams of one, have the same ids,
    so that where several write to one place a batch is known by all three.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise ConfigError(f"FunctionSink takes a function of (rows, batch_id), got {quote(function)}")
        self._function = function
        self._asked = [name for name in ("query_id", "stream") if name in _arguments(function)]
        self._owner: OutputOwner | None = None

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Take note of whose rows they are, for a function that asks; refuse those of a second stream or query then."""
        if self._asked and self._owner is not None and not self._owner.is_same(owner):
            raise ConfigError(
                f"a FunctionSink of {self._owner.name}, whose function asks for its {' and '.join(self._asked)}, was given to "
                f"{owner.name}; make another FunctionSink(f)"
            )
        self._owner = owner

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Call the function."""
        if not self._asked:
            self._function(rows, batch_id)
            return
        if self._owner is None:
            raise ConfigError(
                f"a function that asks for its {' and '.join(self._asked)} is for a query; give it in sinks="
            )
        known = {"query_id": self._owner.query, "stream": self._owner.stream}
        self._function(rows, batch_id, **{name: known[name] for name in self._asked})


def _arguments(function: Callable[..., Any]) -> Collection[str]:
    """Return the names by which a function takes arguments; none where Python cannot say (a builtin)."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


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


def _collected(rows: DataFrame) -> list[Row]:
    """Return rows with an Unreadable (unreadable.py) in the place of each value that Python cannot hold."""
    found = rows.toArrow()
    columns = [python_values(found.column(name), name) for name in rows.columns]
    return [Row(*rows.columns)(*values) for values in zip(*columns, strict=True)]


def _name(batch_id: int) -> str:
    return f"{BATCH}={batch_id:012d}"


def _nullable(schema: StructType) -> StructType:
    for field in schema.fields:
        field.nullable = True
    return schema


# -- whose output a folder holds -------------------------------------------------------------------------------------------------


class OutputOwner(NamedTuple):
    """A stream of a checkpoint: `query` is the checkpoint's id, `last_batch` the last that it has begun, None for none; `schema`
    that of the stream's rows.
    """

    query: str
    stream: str
    last_batch: int | None = None
    schema: StructType | None = None

    @property
    def name(self) -> str:
        """Who it is, in a message."""
        return f"stream {self.stream!r} of query {self.query}"

    def is_same(self, other: OutputOwner) -> bool:
        """Whether both are one stream of one checkpoint."""
        return self[:2] == other[:2]


def owner_of(spark: SparkSession, checkpoint: str, stream: str, schema: StructType | None = None) -> OutputOwner:
    """Return a stream of a checkpoint as an owner; the checkpoint is given an id if it has none."""
    return OutputOwner(query_id(spark, checkpoint), stream, last_batch(spark, checkpoint), schema)


def claim_folder(folder: Folder, owner: OutputOwner) -> None:
    """Write into `folder` that it is the owner's. Raises ConfigError where it is another's, or holds batches that the
    owner cannot have written. Cost: two or three look-ups.
    """
    if folder.exists(OWNER_FILE):
        found = OutputOwner(owner_field(folder, OWNER_FILE, "query"), owner_field(folder, OWNER_FILE, "stream"))
        if not found.is_same(owner):
            raise ConfigError(f"{folder.path} holds the output of {found.name}, not of {owner.name}; {_WAY_OUT}")
        return
    written = max(map(batch_of, folder.names()), default=-1)
    if written > (-1 if owner.last_batch is None else owner.last_batch):
        begun = "has begun none" if owner.last_batch is None else f"has come to batch {owner.last_batch}"
        raise ConfigError(f"{folder.path} holds batch {written}, and {owner.name} {begun}; {_WAY_OUT}")
    content = {"format": 1, "query": owner.query, "stream": owner.stream}
    folder.write(OWNER_FILE, json.dumps(content).encode())


def refuse_shared(paths: Mapping[str, str]) -> None:
    """Raise ConfigError where the folder of one stream (by name; whole paths) is that of another, or lies inside it."""
    for (stream, path), (other, outer) in permutations(paths.items(), 2):
        if f"{path}/".startswith(f"{outer}/"):
            where = f"the folder {path}" if path == outer else f"{path}, inside the folder {outer}"
            raise ConfigError(
                f"the sink of stream {stream!r} writes to {where} of stream {other!r}; give each stream a folder of its own"
            )


def batch_of(name: str) -> int:
    """Return the batch that a directory of this name holds, -1 for any other."""
    key, _, number = name.partition("=")
    return int(number) if key == BATCH and number.isdigit() else -1


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


# -- streams of a topology -------------------------------------------------------------------------------------------------------


def output_streams(topology: Topology) -> dict[str, tuple[str, str]]:
    """Return every stream that can have a sink: sink name -> (name in exchange rows, fields); dead letters of bolts too."""
    names = {}
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not (component.is_spout and output.dead):  # what fails here fails in a bolt
                names[output_name(component.id, stream)] = (stream_name(component.id, stream), output.schema.ddl)
    return names


def sinks_of(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> dict[str, Sink]:
    """Return the sinks in the order of the plan. Raises ConfigError for an unknown name, and for a stream that nobody reads
    and that neither has a sink nor stands in `discard`; late streams may go nowhere (they are counted and logged).
    """
    names = output_streams(topology)
    return require_sinks(
        {name: Schema.parse(fields).names for name, (_, fields) in names.items()},
        _needed(topology),
        sinks,
        discard,
        unknown=lambda name: (
            f"topology {topology.name!r} has no stream {quote(name)}; {did_you_mean(str(name), names)}"
        ),
        without=lambda name: f"nobody reads {name!r} of topology {topology.name!r}, and it has no sink",
    )


def unread_late(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> tuple[str, ...]:
    """Return the windowed bolts whose late tuples nobody reads, keeps or has said to discard."""
    found = []
    for component in topology.bolts:
        late = None if component.window is None else component.window.config.late_stream
        named = None if late is None else output_name(component.id, late)
        read = late is not None and bool(topology.readers(component.id, late))
        if component.window is not None and not read and named not in sinks and named not in discard:
            found.append(component.id)
    return tuple(found)


def _needed(topology: Topology) -> Iterator[str]:
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not output.late and topology.ends(component, stream):
                yield output_name(component.id, stream)
