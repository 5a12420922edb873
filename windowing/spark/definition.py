"""What a checkpoint was written with: `<checkpoint>/windowing/definition.json`, compared at every start, before the
first batch (execution/compatibility.py says what a difference means). Here is where it lies, and what Spark adds: how rows are
packed, and Spark's own logs, read first.

Whose output a folder holds: the folder of a file sink belongs to one stream of one checkpoint, and says so itself.

    <checkpoint>/windowing/query.json    {"id": "5f0c..."}                           made once, before the first batch
    <folder>/_owner.json                 {"query": "5f0c...", "stream": "default"}   written before the first data

Laws: batches of two streams, or of two checkpoints, never lie in one folder: batch 3 of the one would replace batch 3
of the other. What is refused is refused before anything is written. Claiming again changes nothing, so a start that
died half way can be made again. A folder from before there were owners goes to a checkpoint that has made as many
batches as it holds, and to no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import permutations
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.errors import SparkNoSuchElementException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, quote
from windowing.execution import compatibility
from windowing.execution.compatibility import Definition, Place
from windowing.spark.hadoop import Folder

__all__ = [
    "BATCH",
    "FILE",
    "OWNER_FILE",
    "OutputOwner",
    "batch_of",
    "claim_folder",
    "describe",
    "frame",
    "keep",
    "last_batch",
    "owner_of",
    "pending_batch",
    "refuse_shared",
    "stored",
    "stored_partitions",
    "stored_tasks",
]


FILE = "definition.json"
_ANEW = "start with a new checkpoint and a new output folder, or restore the old definition"
_PACKING = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
)


def describe(
    spark: SparkSession,
    bolt: Mapping[str, Any],
    inputs: Mapping[str, DataFrame],
    tasks: int,
    grouping: str | tuple[str, ...],
    order_by: tuple[str, ...],
) -> Definition:
    """Return the definition of a query as plain JSON data; `bolt` is `WindowedBolt.definition()`."""
    columns = {name: _columns(rows) for name, rows in inputs.items()}
    return frame(spark) | compatibility.of_bolt(bolt, tasks, grouping, order_by, columns)


def frame(spark: SparkSession) -> Definition:
    """Return what every definition of a checkpoint has: its header, and how rows are packed, which a replay has to repeat."""
    return {
        **compatibility.header(_library()),
        "order_by": [],
        "packing": {name: _setting(spark, name) for name in _PACKING}
        | {"parallelism": spark.sparkContext.defaultParallelism},
    }


def _setting(spark: SparkSession, name: str) -> str | None:
    """Return the value that holds, set or by default; None where there is neither; `get` with a default hides Spark's own."""
    try:
        return spark.conf.get(name)
    except SparkNoSuchElementException:
        return None


def keep(spark: SparkSession, checkpoint: str, wanted: Definition) -> None:
    """Compare `wanted` with what the checkpoint was written with, then store it there.

    Raises DefinitionChangedError (what differs, and the way out), CheckpointError (offsets without a definition, a
    replay that would see another order) or CorruptStateError (the file is no definition). Cost: a few file look-ups.
    """
    _check_logs(Folder(spark, checkpoint))
    folder = Folder(spark, checkpoint) / "windowing"
    found = _stored(folder)
    if found is not None:
        place = Place(f"checkpoint {checkpoint}", folder.of(FILE), _ANEW)
        compatibility.compare(found, wanted, place, lambda: pending_batch(spark, checkpoint))
    elif _batches(Folder(spark, checkpoint) / "offsets"):
        raise CheckpointError(
            f"checkpoint {checkpoint} has batches but no windowing/{FILE}: another kind of query wrote it, or the file was "
            "lost; give this query a checkpoint of its own, or put the file back"
        )
    if found != wanted:
        folder.write(FILE, json.dumps(wanted, indent=1, sort_keys=True).encode())


def stored(spark: SparkSession, checkpoint: str) -> Definition | None:
    """Return what the checkpoint was written with; None for a new one, and for one that `keep` refuses because it is damaged."""
    try:
        _check_logs(Folder(spark, checkpoint))
    except CheckpointError:
        return None
    return _readable(spark, checkpoint)


def stored_tasks(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of tasks that the checkpoint was written with; None for a new one, and for one that `keep` refuses."""
    tasks = (_readable(spark, checkpoint) or {}).get("tasks")
    return tasks if isinstance(tasks, int) else None


def stored_partitions(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of partitions that a topology's checkpoint was written with; None as for `stored_tasks`."""
    found = _readable(spark, checkpoint) or {}
    partitions = (found.get("topology") or found.get("trident") or {}).get("partitions")
    return partitions if isinstance(partitions, int) else None


def _readable(spark: SparkSession, checkpoint: str) -> Definition | None:
    try:
        return _stored(Folder(spark, checkpoint) / "windowing")
    except CheckpointError:
        return None


def _stored(folder: Folder) -> Definition | None:
    path = folder.of(FILE)
    return compatibility.parsed(folder.read(FILE), Place(path, path)) if folder.exists(FILE) else None


def shuffle_partitions(spark: SparkSession, checkpoint: str, asked: int | None, widest: int) -> int:
    """Return how many partitions the levels of a topology have: as asked for, else the checkpoint's, and for a new one as many
    as the widest level has tasks, but no more than cores. Raises ConfigError for a number below 1.
    """
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 1):
        raise ConfigError(f"partitions is a number of at least 1, got {quote(asked)}; leave it out for the default")
    return asked or stored_partitions(spark, checkpoint) or min(widest, int(spark.sparkContext.defaultParallelism))


def pending_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the batch that was begun and not committed, which the next start makes again; None when there is none."""
    last = last_batch(spark, checkpoint)
    return last if last is not None and last not in _batches(Folder(spark, checkpoint) / "commits") else None


def last_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the last batch that was begun, None for none."""
    return max(_batches(Folder(spark, checkpoint) / "offsets"), default=None)


def _check_logs(checkpoint: Folder) -> None:
    """Read what Spark reads first, so that a damaged file is named: Spark's own errors there name none."""
    if checkpoint.exists("metadata"):
        if not _is_json(checkpoint.read("metadata")):
            raise CorruptStateError(f"{checkpoint.of('metadata')} is damaged; put the file back from a copy")
    elif _batches(checkpoint / "offsets"):
        raise CorruptStateError(f"{checkpoint.of('metadata')} is missing; put the file back from a copy")
    for name in ("offsets", "commits"):
        log = checkpoint / name
        names = log.names()
        for batch in sorted(_batches(log))[-2:]:  # a batch is made again from the offsets before it to its own
            if str(batch) in names and not _is_log(log.read(str(batch))):
                raise CorruptStateError(f"{log.of(str(batch))} is damaged; put the file back from a copy")
    missing = next(_missing(checkpoint), None)
    if missing is not None:
        raise CorruptStateError(f"{checkpoint.of(missing)} is missing; put the file back from a copy")


def _missing(checkpoint: Folder) -> Iterator[str]:
    """Yield what the logs need and do not have: batches come without gaps, each after the commit of the one before."""
    planned, done = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    last = max(planned | done, default=None)
    if last is None:
        return
    if last not in planned:
        yield f"offsets/{last}"
    elif last > 0 and last - 1 not in planned:
        yield f"offsets/{last - 1}"
    if last > 0 and last not in done and last - 1 not in done:
        yield f"commits/{last - 1}"
    if f"{last}" not in (checkpoint / "offsets").names():
        return
    for number, line in enumerate((checkpoint / "offsets").read(str(last)).split(b"\n")[2:]):
        file = json.loads(line).get("logOffset", -1) if line.startswith(b"{") else -1
        if isinstance(file, int) and file >= 0 and file not in _batches(checkpoint / "sources" / str(number)):
            yield f"sources/{number}/{file}"


def _is_log(content: bytes) -> bool:
    head, *lines = content.split(b"\n")
    version = head.startswith(b"v") and head[1:].strip().isdigit()
    return version and bool(lines) and all(line in (b"", b"-") or _is_json(line) for line in lines)


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _columns(rows: DataFrame) -> list[list[Any]]:
    return [[field.name, field.dataType.simpleString(), field.nullable] for field in rows.schema.fields]


def _batches(folder: Folder) -> set[int]:
    """Return the batch numbers of a log of Spark's; `12.compact` is a batch too, temporary files are not."""
    return {int(name.removesuffix(".compact")) for name in folder.names() if name.removesuffix(".compact").isdigit()}


def _library() -> str:
    try:
        return version("windowing")
    except PackageNotFoundError:
        return "unknown"


# -- Whose output a folder holds -------------------------------------------------------------------------------------------------


BATCH = "batch_id"
"""A batch of a file sink is the directory `batch_id=000000000012`."""
OWNER_FILE = "_owner.json"
_QUERY_FILE = "query.json"
_FORMAT = 1
_WAY_OUT = "give this one a new output folder, or remove the old output"


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
    folder = Folder(spark, checkpoint) / "windowing"
    if not folder.exists(_QUERY_FILE):
        folder.write(_QUERY_FILE, json.dumps({"format": _FORMAT, "id": uuid4().hex}).encode())
    query = _field(folder, _QUERY_FILE, "id")
    return OutputOwner(query, stream, last_batch(spark, checkpoint), schema)


def claim_folder(folder: Folder, owner: OutputOwner) -> None:
    """Write into `folder` that it is the owner's. Raises ConfigError where it is another's, or holds batches that the
    owner cannot have written. Cost: two or three look-ups.
    """
    if folder.exists(OWNER_FILE):
        found = OutputOwner(_field(folder, OWNER_FILE, "query"), _field(folder, OWNER_FILE, "stream"))
        if not found.is_same(owner):
            raise ConfigError(f"{folder.path} holds the output of {found.name}, not of {owner.name}; {_WAY_OUT}")
        return
    written = max(map(batch_of, folder.names()), default=-1)
    if written > (-1 if owner.last_batch is None else owner.last_batch):
        begun = "has begun none" if owner.last_batch is None else f"has come to batch {owner.last_batch}"
        raise ConfigError(f"{folder.path} holds batch {written}, and {owner.name} {begun}; {_WAY_OUT}")
    content = {"format": _FORMAT, "query": owner.query, "stream": owner.stream}
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


def _field(folder: Folder, file: str, name: str) -> str:
    try:
        stored: Any = json.loads(folder.read(file))
        value = stored[name]
        if stored["format"] != _FORMAT or not isinstance(value, str):
            raise ValueError(f"format {stored['format']!r}, {name} {value!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CorruptStateError(
            f"{folder.of(file)} does not say whose this is ({quote(str(problem))}); put the file back from a copy"
        ) from problem
    return value
