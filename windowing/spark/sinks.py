"""Sinks of streams. Law: a sink is idempotent by batch id: writing a batch twice has the effect of writing it once.

After a crash Spark calls a sink again with the same batch id, so each sink here stores the batch id with the rows. All queries
number their batches from 0, so the folder of a file sink belongs to one stream of one checkpoint, which is recorded in it:

    <folder>/_owner.json    {"query": "5f0c...", "stream": "default"}    written before the first data

Laws: batches of two streams, or of two checkpoints, are never in one folder. A folder is refused before anything is written.
Claiming is idempotent, so an interrupted start can be repeated. A folder without an owner is given only to a checkpoint that has
begun at least the batches in it.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC
from fnmatch import fnmatchcase
from itertools import chain, permutations
from pathlib import PurePath
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from windowing.errors import ConfigError, CorruptStateError, SinkError, SourceError, quote
from windowing.schema.checks import StormNames, spelled, uncallable
from windowing.spark.checkpoint import OUTPUTS_FILE, Checkpoint, claim_owner, owner_field
from windowing.spark.hadoop import (
    Folder,
    checked_folder,
    literal_path,
    masked_paths,
    refused_by_files,
    require_shared,
    unreachable,
)
from windowing.spark.output import TIMES, evaluate, quoted
from windowing.spark.session import require_classic
from windowing.spark.spouts import folders_read
from windowing.spark.unreadable import python_values
from windowing.spark.written_columns import SCHEMA_FILE, WrittenColumns, require_readable, written_columns

BATCH = "batch_id"
"""A batch of a file sink is the directory `batch_id=000000000012`."""
OWNER_FILE = "_owner.json"
_log = logging.getLogger("windowing.spark")
OLDER_COPY = "its checkpoint is an older copy; to try it out give it another output, else put both back from one copy"
"""Why a target has later batches than the checkpoint, and the way out; a sink that has another one adds it."""
_WAY_OUT = "give this one a new output folder, or remove the old output"
_NOT_IN_CSV = ("array", "map", "struct", "variant", "binary", "void")
"""Types that csv has no text for. Spark writes bytes as `[00 FF]`, and reads that text as other bytes."""
_NOT_IN_JSON = re.compile("map<(date|timestamp|binary|array|struct)")
_WHOLE = "_SUCCESS"
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "parquet": {},
    "json": TIMES,
    "csv": {"header": "true", "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false", **TIMES},
}
"""The formats of a file sink, with the options of Spark's writers."""
_NULL_ALONE = "\\N"
"""A null in csv of one column, in place of an empty line, which Spark does not write."""


class Sink(Protocol):
    """What a sink of your own is: an object with `write(rows, batch_id)`, which writes the rows of one stream, once per id.

    It may have two more methods. `skip(batch_id)`: called for a batch without rows. `claim(spark, owner)`: called at every start,
    before the first batch; it raises ConfigError if the target belongs to another OutputOwner. It returns the last batch in the
    target if `write` keeps the rows of a batch that is there: a start with other windows over it is refused.
    """

    @abstractmethod
    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write all rows of a batch; called on the driver, with the same id again after a crash."""


def require_sink(name: str, sink: Any, columns: Iterable[str]) -> None:
    """Raise ConfigError for an object that is not a sink, and for a file sink if `columns` has the sink's own column."""
    if not hasattr(sink, "write"):
        instead = (
            f"ParquetSink({quote(masked_paths(str(sink)))})"
            if isinstance(sink, str | PurePath)
            else "FunctionSink(f) for a function f"
        )
        raise ConfigError(
            f"the sink of {name!r} has no write(rows, batch_id), got {masked_paths(quote(sink))}; write {instead}"
        )
    if isinstance(sink, type):
        raise ConfigError(
            f"the sink of {name!r} is the class {sink.__name__}, not an object of it; write {sink.__name__}(...)"
        )
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
    """Return the sinks in the order of the streams that can have one. Raises ConfigError for an object that is not a sink, for an
    unknown stream (message by `unknown`), for a sink of a discarded stream, and for needed streams without a sink that are not
    discarded (message by `without` for the first, with the names of all).
    """
    for name in (*sinks, *discard):
        if name not in columns:
            raise ConfigError(unknown(name))
    for name, sink in sinks.items():
        require_sink(name, sink, columns[name])
        if name in discard:
            raise ConfigError(f"{name!r} has a sink and stands in discard; leave out one of them")
    lacking = [name for name in needed if name not in sinks and name not in discard]
    if lacking:
        others = f" (nor have {', '.join(map(repr, lacking[1:]))})" if lacking[1:] else ""
        given = ", ".join(f"{name!r}: ParquetSink(path)" for name in lacking)
        raise ConfigError(f"{without(lacking[0])}{others}; give sinks={{{given}}}, or say discard={tuple(lacking)!r}")
    return {name: sinks[name] for name in columns if name in sinks}


class ComparedSink:
    """A sink whose target knows its last batch, which a start compares with the one that the checkpoint knows. Its repr says where
    it writes: a query may go back to a sink that it had before, which lacks the batches in between.
    """


class FolderSink(ComparedSink):
    """A sink that writes into a folder. path: the folder, None if only a catalog knows it."""

    path: str | None
    _is_shared: ClassVar[bool] = False
    """Whether several streams may write into one folder."""
    _known_folder: tuple[Any, Folder] | None = None

    def _folder(self, spark: SparkSession) -> Folder:
        """Return the folder at `path`, looked up once for each Spark context."""
        context = spark.sparkContext
        if self._known_folder is None or self._known_folder[0] is not context:
            self._known_folder = context, Folder(spark, str(self.path), SinkError)
        return self._known_folder[1]

    def _file_in(self, folder: Folder) -> str:
        """Return a file that is in the folder once it is claimed, relative to it."""
        return OWNER_FILE


class FileSink(FolderSink, StormNames):
    """Writes each batch to a directory, `<path>/batch_id=000000000012`, which a replay replaces; `read(spark)` reads them.

    A complete directory has a file `_SUCCESS`, with every committer; `read` uses only such directories. `format` is parquet, json
    or csv. Nested columns and bytes are refused for csv, whose empty texts (`""`) other readers may take for null; in csv of
    one column a null is `\\N`. The folder belongs to one stream of one checkpoint (`_owner.json`); the schema of the rows is in
    `_schema.json`. Raises SinkError if the folder cannot be reached, written or read.
    """

    path: str
    _elsewhere: ClassVar[Mapping[str, str]] = {"rows collect": "read(spark), a DataFrame"}

    @spelled
    def __init__(self, path: str, format: Literal["parquet", "json", "csv"] = "parquet") -> None:
        if format not in _OPTIONS:
            raise ConfigError(
                f"a file sink writes {', '.join(_OPTIONS)}, got {quote(format)}; use FunctionSink for others"
            )
        self.path = checked_folder("path", path)
        self.format = format
        self._known_schema: bytes | None = None
        self._newest: int | None = None
        """The newest batch of which there may be a directory; None if no query has claimed the folder."""
        self._owner: OutputOwner | None = None
        self._owner_file: str | None = None
        """The path of the owner's file on a local disk, None elsewhere."""
        self._is_settled = False
        """Whether a batch of this query's run has shown what later ones need not look at: that its schema is kept, and that the
        committer writes `_SUCCESS`.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({masked_paths(self.path)!r}, {self.format!r})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Make the folder the owner's. Raises ConfigError if it holds the output of another stream or query, or cannot hold it.

        Logs that it is new to a query with batches, as its disk may not be mounted, and that it has batches and no owner.
        """
        folder = self._folder(spark)
        is_new = not folder.exists(OWNER_FILE)  # before it is compared: another query may claim it meanwhile
        written = require_claimable(folder, owner, self.format)
        self._newest = written if owner.last_batch is None else max(written, owner.last_batch)
        if is_new:
            if written >= 0:
                _log.warning(
                    "%s has batches up to %d and no %s, which is written anew, for %s; if they are batches of another query, stop "
                    "this one and give it another output folder",
                    *(folder, written, OWNER_FILE, owner.name),
                )
            else:
                log_new(folder, owner)
            if not claim_owner(folder, OWNER_FILE, {"query": owner.query, "stream": owner.stream}):
                require_claimable(folder, owner, self.format)
        self._owner, self._owner_file = owner, folder.on_disk(OWNER_FILE)
        self._known_schema, self._is_settled = None, False
        kept = written_columns(folder) if written >= 0 else None
        columns = WrittenColumns.of(owner.schema) if kept is None else kept._replace(started=owner.schema)
        self._keep_columns(folder, columns)

    def _claim_again(self, folder: Folder, spark: SparkSession, owner: OutputOwner) -> None:
        """Claim the folder anew because its owner's file is gone. Raises SinkError if it has no batches either."""
        if not any(batch_of(name) >= 0 for name in folder.names()):
            raise gone(folder, owner)
        self.claim(spark, owner)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the directory of the batch, in place of an older one. Raises SinkError if what the query has claimed is gone.
        Cost: one Spark job; a look-up; a few for the first batch of a run, and without a query.
        """
        folder, name = self._folder(rows.sparkSession), _name(batch_id)
        file = self._owner_file  # a function of its own would be one more for each batch
        if self._owner is not None and not (os.path.exists(file) if file else folder.exists(OWNER_FILE)):
            self._claim_again(folder, rows.sparkSession, self._owner._replace(last_batch=batch_id))
        if not self._is_settled:  # a sink around this one may have added a column
            self._keep_columns(folder, WrittenColumns.of(rows.schema, written_columns(folder)))
        if self._may_have(batch_id):
            (folder / name).delete(_WHOLE)  # the older attempt's files may stay until the committer commits
        if self._newest is not None:
            self._newest = max(self._newest, batch_id)
        path = f"{folder.path.rstrip('/')}/{name}"
        options = _OPTIONS[self.format]
        if self.format == "csv" and len(rows.columns) == 1:
            options = {**options, "nullValue": _NULL_ALONE}
        try:
            rows.write.format(self.format).options(**options).mode("overwrite").save(path)
        except Exception as problem:  # py4j has no types
            if not refused_by_files(problem):
                raise
            raise SinkError(unreachable(path, problem)) from problem
        if not self._is_settled:
            batch = folder / name
            is_marked = batch.exists(_WHOLE)
            if not is_marked:  # not every committer writes it
                batch.write(_WHOLE, b"")
            self._is_settled = is_marked and self._newest is not None

    def skip(self, batch_id: int) -> None:
        """Remove the files of an earlier attempt at a batch that has no rows."""
        if self._may_have(batch_id):
            self._folder(SparkSession.active()).delete(_name(batch_id))

    def _may_have(self, batch_id: int) -> bool:
        """Return whether the folder may have a directory of the batch, of an earlier attempt."""
        return self._newest is None or batch_id <= self._newest

    def committed(self, spark: SparkSession) -> list[int]:
        """Return the ids of complete batches, ascending. Raises CorruptStateError for an incomplete batch before a later one, since
        only the last batch can be unfinished.
        """
        require_classic(spark)
        folder = self._folder(spark)
        names = folder.names()
        batches = sorted(batch for batch in map(batch_of, names) if batch >= 0)
        complete = folder.having(names, _WHOLE)
        whole = [batch for batch in batches if _name(batch) in complete]
        doubtful = set(batches[:-1]) - set(whole)
        if doubtful:
            raise CorruptStateError(
                f"{folder / _name(min(doubtful))} has no file {_WHOLE}, though later batches are there: put an empty one into it "
                "if its rows are whole (written by a session that leaves such files out), else remove the directory"
            )
        return whole

    def read(self, spark: SparkSession, schema: StructType | None = None) -> DataFrame:
        """Return the rows of all complete batches, with their `batch_id`, in no particular order.

        Without rows the DataFrame is empty and has the stream's schema. Before the first start of a query with this folder, pass
        `schema`; without it ConfigError is raised. A batch of CSV whose header has other columns, because the stream has changed,
        is an error of Spark; with `schema` its columns are taken by position.
        """
        require_classic(spark)
        folder = self._folder(spark)
        by_position = schema is not None
        if schema is None:
            kept = written_columns(folder)
            if kept is None:
                raise ConfigError(
                    f"{folder} has no {SCHEMA_FILE}: no query was started with it, or the folder was moved away while one ran; "
                    "give read(spark, schema) the schema, or read it later"
                )
            schema = kept.started
        if not any(name.lower() == BATCH for name in schema.names):
            schema = StructType([*schema.fields]).add(BATCH, LongType())
        if self.format == "json":
            require_json_keys(schema, str(folder))
        paths = [f"{literal_path(folder.path.rstrip('/'))}/{_name(batch)}" for batch in self.committed(spark)]
        if not paths:
            return spark.createDataFrame([], schema)
        stored = cast(StructType, _with_text_keys(schema)) if self.format == "json" else schema
        reader = spark.read.format(self.format).schema(stored).option("basePath", folder.path)
        reader = reader.option("columnNameOfCorruptRecord", uuid4().hex)  # else a column `_corrupt_record` were null
        if self.format == "csv":  # a batch from before a change of the stream has other columns
            reader = reader.options(header="true", multiLine="true", enforceSchema=str(by_position).lower())
            # By default a quoted empty text is null too; a field without a text always is.
            reader = reader.option("nullValue", _NULL_ALONE if len(schema) == 2 else f"null {uuid4().hex}")
        rows = reader.load(paths)
        if stored == schema:
            return rows
        return rows.select(*(_with_keys(F.col(quoted(f.name)), f.dataType).alias(f.name) for f in schema.fields))

    def _keep_columns(self, folder: Folder, columns: WrittenColumns) -> None:
        content = columns.record()
        if content != self._known_schema:
            folder.write(SCHEMA_FILE, content)
            self._known_schema = content


class ParquetSink(FileSink):
    """A FileSink of Parquet files: `sink = ParquetSink("out")` for `start({"default": sink}, ...)`, then `sink.read(spark)`."""

    @spelled
    def __init__(self, path: str) -> None:
        super().__init__(path, "parquet")


class FunctionSink:
    """Calls a function `(rows: DataFrame, batch_id: int)`, which must be idempotent by batch id.

    The function may also have the arguments `query_id` and `stream`. Batches of different checkpoints, and of different streams,
    have the same ids; if several write to one target, use all three as the key.
    """

    def __init__(self, function: Callable[[DataFrame, int], Any] | Callable[..., Any]) -> None:
        if not callable(function):
            raise ConfigError(f"FunctionSink takes a function of (rows, batch_id), got {quote(function)}")
        self._function = function
        self._asked = [name for name in ("query_id", "stream") if name in _arguments(function)]
        problem = uncallable(function, ("rows", "batch_id"), self._asked)
        if problem is not None:
            raise ConfigError(f"FunctionSink calls a function with (rows, batch_id), and {quote(function)} {problem}")
        self._owner: OutputOwner | None = None

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Record query and stream for a function that has these arguments; then refuse a second stream or query."""
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
    """Return the names of a function's arguments; none if Python cannot tell (a builtin). A decorator that passes on all arguments
    has those of the function that it wraps.
    """
    try:
        own = inspect.signature(function, follow_wrapped=False).parameters
        passes_on = any(each.kind is each.VAR_KEYWORD for each in own.values())
        return inspect.signature(function).parameters if passes_on else own
    except (TypeError, ValueError):
        return ()


class MemorySink(StormNames):
    """Holds rows in the driver's memory, for tests and the REPL. `rows` are all of them; `batches[id]` those of a batch, in output
    order; a timestamp is a datetime in UTC, as a bolt sees it. It belongs to one stream of one checkpoint, and is empty in a new
    process.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "collect read": "rows, a list",
        "count": "len(sink.rows)",
        **{name: f"spark.createDataFrame(sink.rows, schema).{name}()" for name in ("toPandas", "show")},
    }

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self._owner: OutputOwner | None = None

    def __repr__(self) -> str:
        return f"MemorySink(rows: {sum(map(len, self.batches.values()))}, batches: {len(self.batches)})"

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of batches."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """Refuse a second stream or query, because their batches have the same ids."""
        if self._owner is not None and not self._owner.is_same(owner):
            raise ConfigError(
                f"a MemorySink of {self._owner.name} was given to {owner.name}; make another MemorySink()"
            )
        self._owner = owner

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Store the batch, in place of an older attempt."""
        try:
            self.batches[batch_id] = _collected(rows)
        except (ValueError, OverflowError):  # a date that Python cannot hold, in whose place an Unreadable is stored
            found = rows.toArrow()
            columns = [python_values(found.column(name), name) for name in rows.columns]
            self.batches[batch_id] = [Row(*rows.columns)(*values) for values in zip(*columns, strict=True)]

    def skip(self, batch_id: int) -> None:
        """Remove an older attempt at a batch that has no rows."""
        self.batches.pop(batch_id, None)


def _collected(rows: DataFrame) -> list[Row]:
    """Return rows with timestamps in UTC; PySpark gives them without a zone, in that of the machine."""
    kinds = {field.name: (field.dataType, _without_zone(field.dataType)) for field in rows.schema.fields}
    changed = {name: F.col(quoted(name)).cast(now) for name, (kind, now) in kinds.items() if now != kind}
    return [_with_zone(row, rows.schema) for row in rows.withColumns(changed).collect()] if changed else rows.collect()


def _without_zone(kind: DataType) -> DataType:
    """Return a type with timestamps without a zone in place of others; a query's session casts them in UTC."""
    return TimestampNTZType() if isinstance(kind, TimestampType) else _with_inner(kind, _without_zone)


def _with_inner(kind: DataType, changed: Callable[[DataType], DataType]) -> DataType:
    """Return a type with the types directly inside it changed."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, changed(f.dataType), f.nullable, f.metadata) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(changed(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(changed(kind.keyType), changed(kind.valueType), kind.valueContainsNull)
    return kind


def _with_zone(value: Any, kind: DataType) -> Any:
    """Return a value of a type from one of the type without zones."""
    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.replace(tzinfo=UTC)
    if isinstance(kind, StructType):
        return Row(*kind.names)(*(_with_zone(each, f.dataType) for each, f in zip(value, kind.fields, strict=True)))
    if isinstance(kind, ArrayType):
        return [_with_zone(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {_with_zone(key, kind.keyType): _with_zone(each, kind.valueType) for key, each in value.items()}
    return value


class NoopSink:
    """Evaluates every row and writes nothing; for measurements."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Evaluate the rows."""
        evaluate(rows)


def _name(batch_id: int) -> str:
    return f"{BATCH}={batch_id:012d}"


# -- whose output a folder holds -------------------------------------------------------------------------------------------------


class OutputOwner(NamedTuple):
    """A stream of a checkpoint, the argument of a sink's `claim`: `query` is the checkpoint's id, `stream` the stream's name,
    `last_batch` the last batch that the checkpoint has begun (None for none), `schema` that of the stream's rows, `written` the
    last batch that this sink has taken, as far as the checkpoint knows; -1 for none, and of a sink that is no ComparedSink.
    """

    query: str
    stream: str
    last_batch: int | None = None
    schema: StructType = StructType()
    written: int = -1

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"stream {self.stream!r} of query {self.query}"

    def is_same(self, other: OutputOwner) -> bool:
        """Return whether both are the same stream of the same checkpoint."""
        return self[:2] == other[:2]

    def require_in_step(self, target: object, written: int, way_out: str) -> None:
        """Raise ConfigError if the last batch in a target, -1 for none, is one that the checkpoint has not begun, or older than the
        last one that was written: the rows in between are missing. A target without a batch is new, or given up.
        """
        if written > (-1 if self.last_batch is None else self.last_batch):
            begun = "has begun none" if self.last_batch is None else f"has come to batch {self.last_batch}"
            raise ConfigError(f"{target} holds batch {written}, and {self.name} {begun}; {way_out}")
        if 0 <= written < self.written:
            raise ConfigError(
                f"the last batch in {target} is {written}, and {self.name} has written batch {self.written}: the rows in between "
                "are missing, so the output is an older copy; put the output and the checkpoint back from one copy. To go on "
                f"without these rows, delete windowing/{OUTPUTS_FILE} of the checkpoint"
            )


def log_new(folder: Folder, owner: OutputOwner) -> None:
    """Log that a folder is new to a query with batches, as its disk may not be mounted."""
    if owner.last_batch:  # batch 0 of a rescaled query was made by `rescale`
        _log.warning(
            "%s has nothing of %s, which has come to batch %d: rows of its earlier batches are elsewhere; if they were here, stop "
            "the query and put the folder back (mount its disk)",
            *(folder, owner.name, owner.last_batch),
        )


def gone(folder: Folder, owner: OutputOwner) -> SinkError:
    """Return the error for a folder that has lost what the query had in it when it started. owner: with the batch to be written."""
    return SinkError(
        f"{folder} has nothing of {owner.name} any more: since the query started it was deleted or moved, or its disk was "
        f"unmounted; batch {owner.last_batch} was not written. Put the folder back (mount its disk), or give up the rows that were "
        "in it, and start again: the query goes on with this batch"
    )


def required_owner(sink: Any, owner: OutputOwner | None) -> OutputOwner:
    """Return the owner of a sink. Raises ConfigError for a sink that no query was started with."""
    if owner is None:
        raise ConfigError(f"{sink!r} writes for a query that was started with it; give it in sinks=")
    return owner


def require_json_keys(schema: StructType, what: str) -> None:
    """Raise ConfigError for a map whose keys Spark does not write as text in JSON: of a date it writes the number of days, of
    bytes the address of an object. what: what has the JSON, for the message.
    """
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if _NOT_IN_JSON.search(kind):
            raise ConfigError(
                f"{what} has JSON, which has no form for the keys of {quote(field.name)} {kind}; make the keys strings"
            )


def _with_text_keys(kind: DataType) -> DataType:
    """Return a type with strings as the keys of all maps, the only keys that Spark reads from JSON."""
    if isinstance(kind, MapType) and not isinstance(kind.keyType, StringType):
        kind = MapType(StringType(), kind.valueType, kind.valueContainsNull)
    return _with_inner(kind, _with_text_keys)


def _with_keys(column: Column, kind: DataType) -> Column:
    """Return a column that was read as `_with_text_keys`, with keys of its own type. Spark casts whole maps only in ANSI mode."""
    if _with_text_keys(kind) == kind:
        return column
    if isinstance(kind, StructType):
        fields = (_with_keys(column.getField(f.name), f.dataType).alias(f.name) for f in kind.fields)
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _with_keys(each, kind.elementType))
    assert isinstance(kind, MapType)
    own_keys = F.transform_keys(column, lambda key, _: key.cast(kind.keyType))
    return F.transform_values(own_keys, lambda _, value: _with_keys(value, kind.valueType))


def different_columns(option: str, given: Any) -> tuple[str, ...]:
    """Return the columns of an option: one, several different ones, or none. Raises ConfigError."""
    names = (given,) if isinstance(given, str) else () if given is None else given
    are_names = isinstance(names, Collection) and all(isinstance(name, str) and name for name in names)
    if not are_names or len(set(names)) < len(names):
        raise ConfigError(f"{option} is a column or several different ones, got {quote(given)}")
    return tuple(names)


def require_claimable(folder: Folder, owner: OutputOwner, format: str) -> int:
    """Return the last batch in `folder`, -1 for none.

    Raises ConfigError if it belongs to another owner, holds batches that its checkpoint has not begun, of another format, or of
    which a column was renamed since, and if the format has no form for a column.
    """
    for field in owner.schema.fields if format == "csv" else ():
        if field.dataType.typeName() in _NOT_IN_CSV:
            raise ConfigError(
                f"the sink of {owner.name} writes csv, which has no form for {quote(field.name)} {field.dataType.simpleString()}; "
                "write parquet or json, or emit a string (of bytes by hex or base64)"
            )
    if format == "json":
        require_json_keys(owner.schema, f"the sink of {owner.name}")
    way_out = _WAY_OUT
    if folder.exists(OWNER_FILE):
        found = OutputOwner(owner_field(folder, OWNER_FILE, "query"), owner_field(folder, OWNER_FILE, "stream"))
        if not found.is_same(owner):
            raise ConfigError(
                f"{folder} holds the output of {found.name}, not of {owner.name}; to go on with that query, start from its "
                "checkpoint (correct the path, mount its disk); else give this one a new output folder"
            )
        way_out = f"{OLDER_COPY}, or delete the directories of the later batches"
    last = max(folder.names(), key=batch_of, default="")
    written = batch_of(last)
    owner.require_in_step(folder, written, way_out)
    if written >= 0:
        require_readable(folder, owner.name, owner.schema, _WAY_OUT)
        other = next((x for x in (folder / last).names() if x.startswith("part-") and f".{format}" not in x), None)
        if other is not None:
            raise ConfigError(
                f"{folder} holds batches of another format than {format}, such as {last}/{other}, and a reader of one format would "
                f"not read the other one; {_WAY_OUT}"
            )
    return written


def refuse_shared(paths: Mapping[str, str], sharing: Collection[str]) -> None:
    """Raise ConfigError if the folder of one stream equals, or is inside, that of another. paths: full paths by stream. sharing:
    the streams of which several may have one folder.
    """
    for (stream, path), (other, outer) in permutations(paths.items(), 2):
        is_shared = path == outer and stream in sharing and other in sharing
        if f"{path}/".startswith(f"{outer}/") and not is_shared:
            where = f"the folder {path}" if path == outer else f"{path}, inside the folder {outer}"
            raise ConfigError(
                f"the sink of stream {stream!r} writes to {masked_paths(where)} of stream {other!r}; give each stream a "
                "folder of its own"
            )


def _is_in(folder: str, pattern: str) -> bool:
    """Return whether a reader of `pattern` reads batches in a sink's folder.

    >>> [_is_in("file:/in/out", each) for each in ("file:/in", "file:/in/", "file:/i", "file:/*/*/*", "file:/in/*/x")]
    [True, True, False, True, False]
    >>> [_is_in(f"file:/in/{each}/out", "file:/in") for each in ("_day", "_day=1", ".day")]  # Spark reads none of the hidden ones
    [False, True, False]
    """
    parts, patterns = [*folder.split("/"), _name(0), "part-00000"], pattern.rstrip("/").split("/")
    hidden = any(part.startswith(".") or (part[:1] == "_" and "=" not in part) for part in parts[len(patterns) :])
    return len(parts) >= len(patterns) and all(map(fnmatchcase, parts, patterns)) and not hidden


def require_unread(checkpoint: Checkpoint, inputs: Iterable[DataFrame]) -> None:
    """Raise ConfigError, before anything is written, if a new checkpoint is in a folder that the query reads.

    Of a pattern, and with `recursiveFileLookup`, Spark would read its files as rows; beside folders `day=1` it refuses every start
    after the first.
    """
    if checkpoint.last_batch() is not None:
        return
    for path in chain.from_iterable(map(folders_read, inputs)):
        if _is_in(checkpoint.home.path, Folder(checkpoint.spark, path, SourceError).path):
            raise ConfigError(
                f"the checkpoint {checkpoint.home} is in {masked_paths(path)}, which the query reads: Spark may take its files for "
                "rows, or its folders for partitions of the input; give the checkpoint a folder beside the input"
            )


def batch_of(name: str) -> int:
    """Return the batch id of a directory name, -1 for any other name."""
    key, _, number = name.partition("=")
    return int(number) if key == BATCH and number.isdigit() else -1


def _misplaced(stream: str, folder: Folder, checkpoint: Checkpoint, read: Iterable[str]) -> str | None:
    """Return why a new folder of a sink cannot be where it is, None if it can. read: the folders that the query reads."""
    at = checkpoint.home.path
    if f"{at}/".startswith(f"{folder.path}/"):
        return (
            f"the checkpoint {checkpoint.home} is in the folder {folder}, which belongs to the sink of stream {stream!r}: "
            "whoever reads or deletes the output meets it; give the checkpoint a folder beside it"
        )
    if f"{folder.path}/".startswith(f"{at}/"):
        return (
            f"the sink of stream {stream!r} writes to {folder}, which is in the checkpoint {checkpoint.home}: who deletes the "
            "checkpoint deletes the output; give the output a folder beside it"
        )
    around = next((path for path in read if _is_in(folder.path, path)), None)
    if around is not None:
        return (
            f"the sink of stream {stream!r} writes to {folder}, and the query reads {masked_paths(around)}, so it would read its "
            "own output; give the output a folder beside the input"
        )
    return None


def claim(
    checkpoint: Checkpoint,
    sinks: Mapping[str, Sink],
    schemas: Mapping[str, StructType],
    inputs: Iterable[str],
    known: Mapping[str, int],
) -> list[str]:
    """Claim the sinks of a query, by stream, for its checkpoint; return those that have its last batch, and keep the rows if that
    comes again. schemas: those of the streams. inputs: the folders that the query reads. known: the last batch that each has, as
    `Checkpoint.written` returns it. Raises ConfigError, before any folder is claimed, if two share a folder, one holds the output
    of another query, or an older copy, a new one would hold the checkpoint, or be in it or in an input, or another sink refuses its
    claim; and ConfigError if an executor does not see a folder. Cost: a few file look-ups and a listing for each sink.
    """
    spark = checkpoint.spark
    placed = {name: sink for name, sink in sinks.items() if isinstance(sink, FolderSink)}
    written = {name: sink._folder(spark) for name, sink in placed.items() if sink.path is not None}
    refuse_shared(
        {name: folder.path for name, folder in written.items()},
        {name for name, sink in placed.items() if sink._is_shared},
    )
    folders = {name: folder for name, folder in written.items() if isinstance(sinks[name], FileSink)}
    read = [Folder(spark, path, SourceError).path for path in inputs] if folders else []
    for name, folder in folders.items():
        problem = _misplaced(name, folder, checkpoint, read)
        # A folder with an owner is of a query that an earlier version started.
        if problem is not None and not folder.exists(OWNER_FILE):
            raise ConfigError(problem)
    query, last = checkpoint.query_id(), checkpoint.last_batch()
    owners = {name: OutputOwner(query, name, last, schemas[name], known.get(name, -1)) for name in sinks}
    for name, folder in folders.items():
        require_claimable(folder, owners[name], cast(FileSink, sinks[name]).format)
    holders = []
    for name in sorted(sinks, key=folders.__contains__):  # folders last: any other sink may refuse its claim
        own: Callable[[SparkSession, OutputOwner], int | None] | None = getattr(sinks[name], "claim", None)
        if own is not None and own(spark, owners[name]) == last and last is not None:
            holders.append(f"the sink of stream {name!r}")
    require_shared(
        spark,
        {
            f"the sink of stream {name!r}, {folder}": folder.of(placed[name]._file_in(folder))
            for name, folder in written.items()
        },
    )
    return holders
