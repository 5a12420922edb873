"""The definition stored in a checkpoint, and whether its files are complete: checked at every start, before the first batch.

    <checkpoint>/windowing/definition.json   the definition of its windows and states; execution/compatibility.py compares it
    <checkpoint>/windowing/drained.json      exists after a drain: the checkpoint is closed
    <checkpoint>/windowing/query.json        {"id": "5f0c..."}, written once: the owner of the output folders (sinks.py)
    <checkpoint>/offsets, commits, metadata  Spark's own logs; checked here because Spark's errors name no damaged file

On Spark a definition also has the settings that decide how rows are packed, because a replay of a batch must pack them in the same
way.
"""

from __future__ import annotations

import io
import json
import logging
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast
from uuid import uuid4

from pyspark.errors import SparkNoSuchElementException
from pyspark.sql import DataFrame, SparkSession

from windowing.errors import (
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    DrainedCheckpointError,
    describe_error,
    quote,
)
from windowing.execution import compatibility
from windowing.execution.compatibility import Definition, DefinitionLocation
from windowing.spark.hadoop import Folder
from windowing.spark.offsets import read_log

FORMAT = 2
FILE = "definition.json"
DRAINED_FILE = "drained.json"
RESCALED_FILE, RESCALING_FILE = "rescaled.json", "rescaling.json"
_CONTINUES_FILE = "continues.json"
_QUERY_FILE = "query.json"
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.2
_ANEW = "start with a new checkpoint and a new output folder, or restore the old definition"
_OLDER = ", or give up what its windows hold; then start with a new checkpoint and a new output folder"
_PACKING = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
)

_log = logging.getLogger("windowing.spark")


def frame(spark: SparkSession) -> Definition:
    """Return the common part of all definitions of checkpoints: the header, and the settings that decide how rows are packed."""
    try:
        library = version("windowing")
    except PackageNotFoundError:
        library = "unknown"
    return {
        "format": FORMAT,
        "library": library,
        "order_by": [],
        "packing": {name: _setting(spark, name) for name in _PACKING}
        | {"parallelism": spark.sparkContext.defaultParallelism},
    }


def columns_of(rows: DataFrame) -> list[list[Any]]:
    """Return the columns of an input as a definition has them."""
    return [[field.name, field.dataType.simpleString(), field.nullable] for field in rows.schema.fields]


def _setting(spark: SparkSession, name: str) -> str | None:
    """Return the value of a setting, or Spark's default; None if there is neither. `get` with a default would hide Spark's."""
    try:
        return spark.conf.get(name)
    except SparkNoSuchElementException:
        return None


def keep(spark: SparkSession, checkpoint: str, wanted: Definition) -> None:
    """Compare `wanted` with the stored definition of a checkpoint, then store it; a new checkpoint gets its id. Without a batch
    no state depends on a stored definition: that of a start that was refused is replaced.

    Raises DefinitionChangedError (what differs, or another format, and the way out), CheckpointError (offsets without a
    definition, a replay that would see another order) or CorruptStateError (the file is no definition). Cost: a few file
    look-ups.
    """
    found = _stored(spark, checkpoint)
    folder, offsets = Folder(spark, checkpoint) / "windowing", Folder(spark, checkpoint) / "offsets"
    begun = _batches(offsets)
    if begun and found is not None:
        place = DefinitionLocation(f"checkpoint {checkpoint}", folder.of(FILE), _ANEW, format=FORMAT)
        compatibility.compare(found, wanted, place, lambda: pending_batch(spark, checkpoint))
    elif begun:
        raise CheckpointError(
            f"checkpoint {checkpoint} has batches but no windowing/{FILE}: another kind of query wrote it, or the file was "
            "lost; give this query a checkpoint of its own, or put the file back"
        )
    if not begun:
        for name in offsets.names():
            # Of a query that was killed in its first write; Spark begins only in an empty folder.
            if name.startswith("."):
                offsets.delete(name)
        query_id(spark, checkpoint)
    if found != wanted:
        folder.write(FILE, json.dumps(wanted, indent=1, sort_keys=True).encode())


def refuse_closed(spark: SparkSession, checkpoint: str, rescaled_into: str | None = None) -> None:
    """Raise DrainedCheckpointError for a drained checkpoint, CheckpointError for one that was rescaled (except into
    `rescaled_into`), and for the unfinished result of a rescale.
    """
    home = Folder(spark, checkpoint) / "windowing"
    if home.exists(RESCALING_FILE):
        source = owner_field(home, RESCALING_FILE, "from")
        raise CheckpointError(
            f"checkpoint {checkpoint} is half made: a rescale of {source} into it did not come to its end; call rescale with "
            "both again"
        )
    if home.exists(RESCALED_FILE):
        into = owner_field(home, RESCALED_FILE, "to")
        if rescaled_into is None or Folder(spark, rescaled_into).path != into:
            raise CheckpointError(
                f"checkpoint {checkpoint} was rescaled into {into}, which goes on in its place: start with that one; to give that "
                f"one up, delete it and {home.of(RESCALED_FILE)}"
            )
    if home.exists(DRAINED_FILE):
        raise DrainedCheckpointError(
            f"checkpoint {checkpoint} was drained: its last windows have fired and it is closed; "
            "start with a new checkpoint and a new output folder"
        )


def stored(spark: SparkSession, checkpoint: str) -> Definition | None:
    """Return the stored definition of a checkpoint; None for a new one, and for a damaged one, which `keep` refuses.

    Raises DrainedCheckpointError, DefinitionChangedError for one of another format, CheckpointError for one that was rescaled.
    """
    refuse_closed(spark, checkpoint)
    try:
        return _stored(spark, checkpoint)
    except DefinitionChangedError:
        raise
    except CheckpointError:
        return None


def stored_whole(spark: SparkSession, checkpoint: str) -> Definition:
    """Return the stored definition of a checkpoint. Raises CheckpointError, or a subclass, if it is damaged or missing."""
    found = _stored(spark, checkpoint)
    if found is None:
        missing = (Folder(spark, checkpoint) / "windowing").of(FILE)
        raise CheckpointError(f"{checkpoint} is no checkpoint of this library: there is no {missing}; correct the path")
    return found


def stored_tasks(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the number of tasks of a bolt, or of shuffle partitions of a topology, that the batches of a checkpoint have fixed.
    Raises the errors of `stored`.
    """
    found = stored(spark, checkpoint)
    if found is None or last_batch(spark, checkpoint) is None:  # no batch: of a start that was refused
        return None
    return found.get("tasks") or (found.get("topology") or found.get("trident") or {}).get("partitions")


def _stored(spark: SparkSession, checkpoint: str) -> Definition | None:
    """Return the stored definition, None if there is none. Raises CheckpointError, or a subclass, for a damaged checkpoint."""
    _check_logs(Folder(spark, checkpoint))
    folder = Folder(spark, checkpoint) / "windowing"
    path = folder.of(FILE)
    place = DefinitionLocation(path, path, format=FORMAT, older=_OLDER)
    return compatibility.parsed(folder.read(FILE), place) if folder.exists(FILE) else None


def shuffle_partitions(spark: SparkSession, checkpoint: str, asked: int | None, widest: int) -> int:
    """Return the number of shuffle partitions of a topology: `asked`, else the checkpoint's; for a new checkpoint the number of
    tasks of the widest depth, but at most the number of cores. Raises ConfigError for a number below 1, and the errors of `stored`.
    """
    before = stored_tasks(spark, checkpoint) if asked is None else None
    return before or partitions_of_new(spark, asked, widest)


def partitions_of_new(spark: SparkSession, asked: int | None, widest: int) -> int:
    """Return the number of shuffle partitions of a topology on a new checkpoint. Raises ConfigError for a number below 1."""
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 1):
        raise ConfigError(f"partitions is a number of at least 1, got {quote(asked)}; leave it out for the default")
    return asked or min(widest, int(spark.sparkContext.defaultParallelism))


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the query id of a checkpoint, which owns its output; a checkpoint without batches gets one.

    Raises CorruptStateError if the file is damaged, or missing although there are batches. With another id, tables and queues that
    store the id of a batch's query would take a repeated batch for a new one.
    """
    folder = Folder(spark, checkpoint) / "windowing"
    if not folder.exists(_QUERY_FILE):
        if _batches(Folder(spark, checkpoint) / "offsets"):
            raise CorruptStateError(
                f"{folder.of(_QUERY_FILE)} is missing, which says whose the output of checkpoint {checkpoint} is; put the file "
                "back from a copy, or start with a new checkpoint and a new output folder"
            )
        folder.write(_QUERY_FILE, json.dumps({"format": 1, "id": uuid4().hex}).encode())
    return owner_field(folder, _QUERY_FILE, "id")


def continued(spark: SparkSession, checkpoint: str) -> tuple[str, int]:
    """Return the id under which the query reads its queues, and the number of batches that earlier checkpoints ran under this id:
    its own id and 0, except for a checkpoint made by `rescale`. Raises CorruptStateError.
    """
    folder = Folder(spark, checkpoint) / "windowing"
    if not folder.exists(_CONTINUES_FILE):
        return query_id(spark, checkpoint), 0
    batches = owner_field(folder, _CONTINUES_FILE, "batches")
    if not batches.isdecimal():
        raise CorruptStateError(
            f"{folder.of(_CONTINUES_FILE)} has no number of batches, but {quote(batches)}; put the file back from a copy"
        )
    return owner_field(folder, _CONTINUES_FILE, "reader"), int(batches)


def continue_from(spark: SparkSession, old: str, new: str) -> None:
    """Record in a new checkpoint the id under which its query reads queues; its batch 0 represents all batches of the old one."""
    reader, before = continued(spark, old)
    facts = {"format": 1, "reader": reader, "batches": str(before + (last_batch(spark, old) or 0))}
    (Folder(spark, new) / "windowing").write(_CONTINUES_FILE, json.dumps(facts).encode())


def owner_field(folder: Folder, file: str, name: str) -> str:
    """Return one field of a file that names an owner. Raises CorruptStateError."""
    try:
        stored: Any = json.loads(folder.read(file))
        value = stored[name]
        if stored["format"] != 1 or not isinstance(value, str):
            raise ValueError(f"format {stored['format']!r}, {name} {value!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise CorruptStateError(
            f"{folder.of(file)} does not say whose this is ({quote(str(problem))}); put the file back from a copy"
        ) from problem
    return value


def pending_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the batch that was begun and not committed, which the next start repeats; None if there is none."""
    last = last_batch(spark, checkpoint)
    return last if last is not None and last not in _batches(Folder(spark, checkpoint) / "commits") else None


def last_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the last batch that was begun, None for none."""
    return max(_batches(Folder(spark, checkpoint) / "offsets"), default=None)


def _check_logs(checkpoint: Folder) -> None:
    """Read the logs that Spark reads first, so that the error of a damaged file names it; Spark's errors do not."""
    if checkpoint.exists("metadata"):
        try:
            json.loads(checkpoint.read("metadata"))
        except (ValueError, RecursionError) as problem:
            raise CorruptStateError(
                f"{checkpoint.of('metadata')} is damaged; put the file back from a copy"
            ) from problem
    elif _batches(checkpoint / "offsets"):
        raise CorruptStateError(f"{checkpoint.of('metadata')} is missing; put the file back from a copy")
    for name in ("offsets", "commits"):
        log = checkpoint / name
        names = log.names()
        for batch in sorted(_batches(log))[-2:]:  # a batch is made again from the offsets before it to its own
            if str(batch) in names:
                read_log(log, batch)
    missing = next(_missing(checkpoint), None)
    if missing is not None:
        raise CorruptStateError(f"{checkpoint.of(missing)} is missing; put the file back from a copy")


def _missing(checkpoint: Folder) -> Iterator[str]:
    """Yield the files that are missing in the logs: batches have no gaps, and each follows the commit of the previous one."""
    planned, done = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    last = max(planned | done, default=None)
    if last is None:
        if (checkpoint / "state").names():
            yield "offsets/0"
        return
    if last not in planned:
        yield f"offsets/{last}"
    elif last > 0 and last - 1 not in planned:
        yield f"offsets/{last - 1}"
    if last > 0 and last not in done and last - 1 not in done:
        yield f"commits/{last - 1}"
    if f"{last}" not in (checkpoint / "offsets").names():
        return
    for number, offset in enumerate(read_log(checkpoint / "offsets", last)[1:]):
        file = offset.get("logOffset", -1) if isinstance(offset, dict) else -1
        if isinstance(file, int) and file >= 0 and file not in _batches(checkpoint / "sources" / str(number)):
            yield f"sources/{number}/{file}"


def _batches(folder: Folder) -> set[int]:
    """Return the batch numbers of one of Spark's logs; `12.compact` is a batch too, temporary files are not."""
    return {int(name.removesuffix(".compact")) for name in folder.names() if name.removesuffix(".compact").isdigit()}


# -- damage ----------------------------------------------------------------------------------------------------------------------


def damaged_file(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the first file of a checkpoint that is missing, or whose bytes do not match their checksum (Hadoop's, or the one that
    Spark wrote beside it); None if there is none, or if the checkpoint cannot be read.

    Tasks of the failed batch may still be writing, so a file counts as damaged only if two checks find it damaged. Cost: reads the
    whole checkpoint, twice if something is damaged; called only after Spark has failed.
    """
    before: list[str] = []
    for _ in range(_LOOKS):
        try:
            found = _damaged_files(spark, checkpoint)
        except Exception as problem:  # a file may vanish while it is listed; py4j has no types
            _log.warning(
                "checkpoint %s cannot be looked through for damaged files: %s", checkpoint, describe_error(problem)
            )
        else:
            agreed = [name for name in found if name in before]
            if agreed or not found:
                return agreed[0] if agreed else None
            before = found
        time.sleep(_BETWEEN_LOOKS_S)
    return None


def _damaged_files(spark: SparkSession, checkpoint: str) -> list[str]:
    home = Folder(spark, checkpoint)
    files = home.files()
    crc = getattr(cast(Any, spark.sparkContext._jvm), "java.util.zip.CRC32C")
    found = [name for name in _listed(home, files) if name not in files]
    found += [name for name in files if not _intact(home, name, files, crc)]
    return [home.of(name) for name in found]


def _listed(home: Folder, files: list[str]) -> Iterator[str]:
    """Yield the files that others refer to: files with a checksum, RocksDB's tables in its snapshots, the operator's metadata."""
    for name in files:
        if name.endswith(".crc"):
            yield name.removesuffix(".crc")
        if not name.startswith("state/"):
            continue
        yield "/".join([*name.split("/")[:2], "_metadata/v2/0"])
        if name.endswith(".zip"):
            try:
                with zipfile.ZipFile(io.BytesIO(home.read(name))) as snapshot:
                    tables = json.loads(snapshot.read("metadata").partition(b"\n")[2])["sstFiles"]
                yield from (f"{name.rpartition('/')[0]}/SSTs/{table['dfsSstFileName']}" for table in tables)
            except Exception:  # it is damaged itself, and found by its checksum
                continue


def _intact(home: Folder, name: str, files: list[str], crc: Any) -> bool:
    try:
        content = home.read(name)
        if f"{name}.crc" not in files:
            return True
        wanted = json.loads(home.read(f"{name}.crc"))
        found = crc()
        found.update(bytearray(content))
        return bool(wanted["algorithm"] != "CRC32C" or (found.getValue() ^ wanted["value"]) & 0xFFFFFFFF == 0)
    except Exception:  # the file cannot be read; the JVM raises many classes
        return False
