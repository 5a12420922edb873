"""What a checkpoint was written with: `<checkpoint>/windowing/definition.json`, compared at every start, before the
first batch.

    differs                                           then
    bolt, window, outputs, tasks, grouping, sources   refused: stored windows depend on it
    a column left out, of another type, not nullable  refused
    lag, late stream, on_error, ... ("free" parts)    taken over
    a new nullable column, a new library version      taken over
    order_by, with a batch left half done             refused: the replay would see another order
    parallelism, with a batch left half done          refused without order_by
    columns, with a batch left half done              refused with order_by (they decide ties) and with "shuffle"

Law: what is refused is refused before anything is written; a file that is no definition is an error and never replaced.

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

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError, quote
from windowing.spark import topology_definition, trident_definition
from windowing.spark.control import MOST_TASKS
from windowing.spark.hadoop import Folder

__all__ = [
    "BATCH",
    "FILE",
    "OWNER_FILE",
    "Definition",
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
FORMAT = 1
_DEEPEST = 40
_ANEW = "start with a new checkpoint and a new output folder, or restore the old definition"
_PACKING = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
)

Definition = dict[str, Any]


def describe(
    spark: SparkSession,
    bolt: Mapping[str, Any],
    inputs: Mapping[str, DataFrame],
    tasks: int,
    grouping: str | tuple[str, ...],
    order_by: tuple[str, ...],
) -> Definition:
    """Return the definition of a query as plain JSON data; `bolt` is `WindowedBolt.definition()`."""
    return {
        **frame(spark),
        "bolt": dict(bolt),
        "tasks": tasks,
        "grouping": grouping if isinstance(grouping, str) else list(grouping),
        "order_by": list(order_by),
        "ties": "columns",  # how rows of equal order_by columns arrive: rows.py
        "inputs": {name: _columns(rows) for name, rows in sorted(inputs.items())},
    }


def frame(spark: SparkSession) -> Definition:
    """Return what every definition has: its format, and how rows are packed, which a replay has to repeat."""
    return {
        "format": FORMAT,
        "library": _library(),
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
        difference = _difference(found, wanted, folder.of(FILE))
        if difference is not None:
            raise DefinitionChangedError(f"checkpoint {checkpoint}: {difference}; {_ANEW}")
        _refuse_other_order(spark, checkpoint, found, wanted)
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
    return _parsed(folder.read(FILE), folder.of(FILE)) if folder.exists(FILE) else None


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


def _difference(stored: Definition, wanted: Definition, path: str) -> str | None:
    try:
        return next(_differences(stored, wanted), None)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:  # a part of another shape
        raise CorruptStateError(
            f"{path} is no definition of a windowing query ({quote(str(problem))}); put back a copy"
        ) from problem


def _differences(stored: Definition, wanted: Definition) -> Iterator[str]:
    if _writer(stored) != _writer(wanted):
        yield f"it was written by {_writer(stored)}, not by {_writer(wanted)}"
    elif "topology" in stored:
        yield from topology_definition.differences(stored["topology"], wanted["topology"])
    elif "trident" in stored:
        yield from trident_definition.differences(stored["trident"], wanted["trident"])
    else:
        yield from _bolt_differences(stored, wanted)


def _writer(found: Definition) -> str:
    kinds = {"topology": "a topology", "trident": "a Trident topology"}
    return next((name for part, name in kinds.items() if part in found), "a windowed bolt")


def _bolt_differences(stored: Definition, wanted: Definition) -> Iterator[str]:
    old, new = stored["bolt"]["fixed"], wanted["bolt"]["fixed"]
    for name in [*old, *(name for name in new if name not in old)]:
        if _plain(old.get(name)) != _plain(new.get(name)):
            yield f"{name} of bolt {quote(old.get('name'))} was {_as_json(old.get(name))}, now {_as_json(new.get(name))}"
    for name in ("tasks", "grouping"):
        if _plain(stored[name]) != _plain(wanted[name]):
            yield f"{name} was {_as_json(stored[name])}, now {_as_json(wanted[name])}"
    if list(stored["inputs"]) != list(wanted["inputs"]):
        yield f"the input streams were {', '.join(stored['inputs'])}, now {', '.join(wanted['inputs'])}"
    for stream, columns in stored["inputs"].items():
        yield from _column_differences(stream, columns, wanted["inputs"][stream])


def _column_differences(stream: str, stored: list[list[Any]], wanted: list[list[Any]]) -> Iterator[str]:
    old = {name: kind for name, kind, _ in stored}
    new = {name: (kind, nullable) for name, kind, nullable in wanted}
    for name, kind in old.items():
        if name not in new:
            yield f"column {name!r} ({kind}) of input stream {stream!r} is gone"
        elif new[name][0] != kind:
            yield f"column {name!r} of input stream {stream!r} was {kind}, now {new[name][0]}"
    for name, (kind, nullable) in new.items():
        if name not in old and not nullable:
            what = f"column {name!r} ({kind}) of input stream {stream!r}"
            yield f"{what} is new and not nullable, and stored tuples have no value for it"


def _refuse_other_order(spark: SparkSession, checkpoint: str, stored: Definition, wanted: Definition) -> None:
    what = next(_other_order(stored, wanted), None)
    batch = None if what is None else pending_batch(spark, checkpoint)
    if batch is not None:
        raise CheckpointError(
            f"checkpoint {checkpoint}: batch {batch} was left half done and has to be made again exactly, but {what}; "
            "start once as before to finish it"
        )


def _other_order(stored: Definition, wanted: Definition) -> Iterator[str]:
    """Yield what would bring the rows of one batch in another order, or to other tasks."""
    order = wanted["order_by"]
    if order != stored["order_by"]:
        yield f"order_by was {_as_json(stored['order_by'])}, now {_as_json(order)}"
    elif order and stored.get("ties") != wanted["ties"]:
        yield (
            f"version {quote(stored.get('library'))} of the library began it, which left rows of equal order_by columns in the "
            "order of their partitions"
        )
    for name in [] if order else wanted["packing"]:
        if wanted["packing"][name] != stored["packing"].get(name):
            was, now = stored["packing"].get(name), wanted["packing"][name]
            yield f"{name} was {was}, now {now}, and without order_by rows would arrive in another order"
    if order or wanted.get("grouping") == "shuffle":
        for stream, columns in wanted.get("inputs", {}).items():
            was, now = ([name for name, *_ in each] for each in (stored["inputs"][stream], columns))
            if was != now:
                yield f"the columns of input stream {stream!r} were {_as_json(was)}, now {_as_json(now)}"


def _parsed(content: bytes, path: str) -> Definition:
    try:
        stored = json.loads(content)
        known = stored["format"] == FORMAT
        if _depth(stored) > _DEEPEST:
            raise ValueError(f"lists in lists, more than {_DEEPEST} deep")
        complete = not known or (_is_whole(stored) and all(name in stored for name in ("order_by", "packing")))
    except (AttributeError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CorruptStateError(
            f"{path} is no definition of a windowing query ({quote(str(problem))}); put back a copy"
        ) from problem
    if not known:
        raise DefinitionChangedError(
            f"{path} has format {quote(stored['format'])}, this version reads {FORMAT}; use the version "
            f"{quote(stored.get('library'))} that wrote it"
        )
    if not complete:
        raise CorruptStateError(f"{path} is an incomplete definition of a windowing query; put back a copy")
    for part in (stored, stored.get("topology") or {}, stored.get("trident") or {}):
        for name in ("tasks", "partitions"):
            number = part.get(name, 1)
            if type(number) is not int or not 1 <= number <= MOST_TASKS:
                raise CorruptStateError(
                    f"{path} says that {name} is {quote(number)}, wanted a whole number from 1 to {MOST_TASKS}; put back a copy"
                )
    return dict(stored)


def _depth(data: Any) -> int:
    """Return how deep lists and objects lie in each other."""
    depth, level = 0, [data]
    while level := [
        inner
        for each in level
        if isinstance(each, (list, dict))
        for inner in (each if isinstance(each, list) else each.values())
    ]:
        depth += 1
    return depth


def _is_whole(stored: Definition) -> bool:
    if "topology" in stored:
        return topology_definition.is_whole(stored["topology"])
    if "trident" in stored:
        return trident_definition.is_whole(stored["trident"])
    shape = isinstance(stored["bolt"]["fixed"], dict) and isinstance(stored["inputs"], dict)
    return shape and all(name in stored for name in ("tasks", "grouping"))


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


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _as_json(value: Any) -> str:
    return json.dumps(value)


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
