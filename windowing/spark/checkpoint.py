"""The checkpoint of a query: what is in its folder, and whether it is complete, which every start checks before the first batch.

    windowing/definition.json   the definition of its windows and states; execution/compatibility.py compares it
    windowing/query.json        {"id": "5f0c..."}, written once: the owner of the output folders (sinks.py)
    windowing/drained.json      exists after a drain: the checkpoint is closed
    windowing/rescaled.json, rescaling.json, continues.json     of `rescale` (rescaling.py)
    windowing/metrics.json      the metrics of the last run, a few seconds old; for display only
    windowing/outputs.json      {"format": 1, "outputs": {"default": ["ParquetSink('out', 'parquet')", 12]}}: by stream, its sink
                                and the last batch that this has, a few seconds old
    windowing/control/          commands to the running query (control.py)
    windowing/acks/             the ledger of roots, if a spout takes acks (acks.py)
    offsets/, commits/, sources/, state/, metadata     of Spark; its logs are checked here, because its errors name no damaged file

On Spark a definition also has the settings that decide how rows are packed, because a replay of a batch must pack them in the same
way.
"""

from __future__ import annotations

import io
import json
import logging
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, cast
from uuid import UUID, uuid4

from pyspark.errors import SparkNoSuchElementException
from pyspark.sql import SparkSession

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
from windowing.execution.compatibility import Definition, DefinitionLocation, batches_in, read_log
from windowing.optional import library_version
from windowing.schema.checks import is_whole
from windowing.spark.hadoop import Folder, require_shared
from windowing.spark.session import is_local

FORMAT = 2
"""The format of a definition."""
FILE = "definition.json"
METRICS_FILE, OUTPUTS_FILE = "metrics.json", "outputs.json"
DRAINED_FILE = "drained.json"
RESCALED_FILE, RESCALING_FILE = "rescaled.json", "rescaling.json"
_CONTINUES_FILE = "continues.json"
_QUERY_FILE = "query.json"
_VERSION = re.compile(r"state/\d+/\d+/(?:.+/)?(\d+)_([^/]+)\.(?:changelog|zip)(?:\.crc)?")
"""A file of the state, or its checksum, with the number of its batch + 1 and the id of the attempt that wrote it."""
_SCHEMA_FILE = re.compile(r"state/\d+/_stateSchema/[^/]+/[^/]+$")
_LOG = re.compile(r"sources/\d+/\d+(?:\.compact)?|state/\d+/_metadata/v2/\d+")
"""A file of the log of a source, or of that of an operator."""
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.2
_ANEW = (
    "restore the old definition, or start with a new checkpoint and a new output folder, "
    "after the old program has fired its open windows with drain=True"
)
_OLDER = ", or give up what its windows hold; then start with a new checkpoint and a new output folder"
_BEFORE = "before"
"""The field of a stored definition with that of the last batch, and its number, while no batch was made with the new one."""
_INSTEAD_OF_CORES = "spark.sql.files.minPartitionNum"
_PACKING = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.openCostInBytes",
    _INSTEAD_OF_CORES,
)
_CORES_S = 60.0
_LOOK_EVERY_S = 0.2

_log = logging.getLogger("windowing.spark")


def common_part(checkpoint: Checkpoint, is_packed: bool) -> Definition:
    """Return the common part of all definitions of checkpoints: the header, and the settings that decide how rows are packed.
    is_packed: whether they decide it, as for files; then a start on a cluster may wait for cores.
    """
    if is_packed:
        checkpoint.await_cores()
    return {
        "format": FORMAT,
        "library": library_version(),
        "order_by": [],
        "packing": _packing(checkpoint) if is_packed else {},
    }


def _packing(checkpoint: Checkpoint) -> Definition:
    """Return the settings by which Spark packs files into partitions. One of them takes the place of the number of cores."""
    spark = checkpoint.spark
    found: Definition = {name: _setting(spark, name) for name in _PACKING}
    if found[_INSTEAD_OF_CORES] is None:
        cores = _setting(spark, compatibility.PACKED_FOR) or checkpoint.own_cores
        found["parallelism"] = int(cores or spark.sparkContext.defaultParallelism)
    return found


def _setting(spark: SparkSession, name: str) -> str | None:
    """Return the value of a setting, or Spark's default; None if there is neither. `get` with a default would hide Spark's."""
    try:
        return spark.conf.get(name)
    except SparkNoSuchElementException:
        return None


def partitions_of_new(spark: SparkSession, asked: int | None, widest: int) -> int:
    """Return the number of shuffle partitions of a topology on a new checkpoint. Raises ConfigError for a number below 1."""
    if asked is not None and not is_whole(asked, 1):
        raise ConfigError(f"partitions is a number of at least 1, got {quote(asked)}; leave it out for the default")
    return asked or min(widest, int(spark.sparkContext.defaultParallelism))


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


def write_owner(folder: Folder, file: str, fields: Mapping[str, str]) -> None:
    """Write a file that names an owner, which `owner_field` reads."""
    folder.write(file, _owner(fields))


def claim_owner(folder: Folder, file: str, fields: Mapping[str, str]) -> bool:
    """Write such a file if there is none; return False if there is one, which another process may have written just now."""
    return folder.create(file, _owner(fields))


def _owner(fields: Mapping[str, str]) -> bytes:
    return json.dumps({"format": 1, **fields}).encode()


class Checkpoint:
    """The folder of one query; its text is the path as the user gave it. Cost: some calls of the JVM."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self._given, self.home = spark, path, Folder(spark, path)
        self.offsets, self.commits, self.own = self.home / "offsets", self.home / "commits", self.home / "windowing"
        self.control, self.acks = self.own / "control", self.own / "acks"
        self._kept: Definition = {}
        self._begun = -1
        """The last batch that was begun, in this run or an earlier one; since `keep`."""

    def __str__(self) -> str:
        return self._given

    @cached_property
    def own_cores(self) -> int:
        """The number of cores of a session on one machine, which it keeps; 0 on a cluster, whose executors come and go."""
        context = self.spark.sparkContext
        return context.defaultParallelism if is_local(str(context.master)) else 0

    def await_cores(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until a cluster has the cores for which a half-done batch was packed, a minute at most: executors register one after
        the other, and lost ones come back. is_over: whether to wait no longer. Raises the errors of `stored`.
        """
        if self.own_cores or any(_setting(self.spark, name) for name in (_INSTEAD_OF_CORES, compatibility.PACKED_FOR)):
            return
        found = self._kept or self.stored() or {}
        packed = 0 if found.get("order_by") else found.get("packing", {}).get("parallelism", 0)
        context = self.spark.sparkContext
        if context.defaultParallelism >= packed or self.pending_batch() is None:
            return
        until = time.monotonic() + _CORES_S
        while context.defaultParallelism < packed and time.monotonic() < until and not is_over():
            time.sleep(_LOOK_EVERY_S)

    def require_shared(self) -> None:
        """Raise ConfigError if it is on a disk that an executor does not see, CorruptStateError if the file that is looked for is
        lost.
        """
        self.query_id()
        require_shared(self.spark, {f"checkpoint {self}": self.own.of(_QUERY_FILE)})

    def compared(self, wanted: Definition) -> Definition | None:
        """Compare `wanted` with the stored definition; return the stored one, None if no state depends on it. A new one gets
        its id; a place that cannot be written is an error of this write.

        Raises DefinitionChangedError (what differs, or another format, and the way out), CheckpointError (offsets without a
        definition, a replay that would see another order) or CorruptStateError (the file is no definition). Cost: a few file
        look-ups.
        """
        found = self.definition()
        begun = batches_in(self.offsets)
        if begun and found is not None:
            compatibility.compare(found, wanted, self._place, self.pending_batch)
        elif begun:
            raise CheckpointError(
                f"checkpoint {self} has batches but no windowing/{FILE}: another kind of query wrote it, or the file was "
                "lost; give this query a checkpoint of its own, or put the file back"
            )
        if not begun:
            self.query_id()
        return found if begun else None

    def keep(self, wanted: Definition, stored: Definition | None, holders: Iterable[str] = ()) -> None:
        """Store a definition that was compared with the `stored` one. holders: what has rows of the last batch, and keeps them if
        the batch comes again.

        Raises CheckpointError if there is any, the batch is half done, and the change would give it other rows. The definition of
        the first attempt stays then. Cost: a few file look-ups.
        """
        pending = self.pending_batch() if stored not in (None, wanted) else None
        if stored is not None and pending is not None:
            compatibility.compare_rows(stored, wanted, self._place, pending, holders)
        if stored is None:
            for name in self.offsets.names():
                # Of a query that was killed in its first write; Spark begins only in an empty folder.
                if name.startswith("."):
                    self.offsets.delete(name)
        begun, content = self.last_batch(), dict(wanted)
        if stored not in (None, wanted) and pending is None:
            # Until a batch is made with it, the start can be undone: the definition of the last batch is kept beside it.
            content[_BEFORE] = {"batch": begun, "definition": stored}
        # The file has another one than the stored one after a start that made no batch.
        if stored != wanted or json.loads(self.own.read(FILE)) != content:
            self.write(content)
        self._kept, self._begun = wanted, -1 if begun is None else begun

    def follow_move(self) -> None:
        """Let the metadata of the states name the schema files of this folder: Spark stores absolute paths there, so a checkpoint
        that was moved or copied would read files of its old place, or find none. A file that is not here stays as it is named.

        Raises CorruptStateError for damaged metadata. Cost: reads a small file for each operator; writes only after a move.
        """
        for operator in (self.home / "state").names():
            log, moved = self.home / "state" / operator / "_metadata" / "v2", list[tuple[int, str]]()
            for batch in sorted(batches_in(log), reverse=True):
                named = read_log(log, batch)[0]
                own = {**named, "stateStoreInfo": [self._with_own_files(store) for store in named["stateStoreInfo"]]}
                if own == named:
                    break  # those before it were seen to when it was written
                moved.append((batch, json.dumps(own)))
            for batch, text in reversed(moved):  # the newest last: if a start dies here, the next one begins anew
                log.write(str(batch), f"v2\n{text}".encode())

    def _with_own_files(self, store: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata of a store with the schema files of this folder in place of those of another one."""
        paths = []
        for path in store["stateSchemaFilePaths"]:
            found = _SCHEMA_FILE.search(path)
            own = self.home.of(found[0]) if found else path
            is_moved = found and own != path and self.home.exists(found[0])
            paths.append(own if is_moved else path)
        return {**store, "stateSchemaFilePaths": paths}

    def keep_packing(self, batch: int) -> None:
        """Store by which settings the files of a batch are packed, before it is evaluated: Spark reads those of the session anew in
        each batch of a running query.

        Raises CheckpointError if the batch was begun under other ones. Cost, for files without order_by: five calls of the JVM, and
        two on a cluster, whose cores come and go.
        """
        kept = self._kept
        if kept["packing"] and not kept["order_by"]:
            wanted = {**kept, "packing": _packing(self)}
            if wanted != kept:
                if batch <= self._begun:
                    compatibility.compare(kept, wanted, self._place, lambda: batch)
                self.write(wanted)
                self._kept = wanted
        self._begun = batch

    def allow_other_packing(self) -> None:
        """Let the last batch be repeated with other settings: its rows have no fixed order."""
        self._begun = -1

    def write(self, definition: Definition) -> None:
        """Store a definition, whatever is stored."""
        self.own.write(FILE, json.dumps(definition, indent=1, sort_keys=True).encode())

    @property
    def _place(self) -> DefinitionLocation:
        return DefinitionLocation(f"checkpoint {self}", self.own.of(FILE), _ANEW, format=FORMAT)

    def refuse_closed(self, rescaled_into: Checkpoint | None = None) -> None:
        """Raise DrainedCheckpointError for a drained checkpoint, CheckpointError for one that was rescaled (except into
        `rescaled_into`), and for the unfinished result of a rescale.
        """
        if self.own.exists(RESCALING_FILE):
            source = owner_field(self.own, RESCALING_FILE, "from")
            raise CheckpointError(
                f"checkpoint {self} is half made: a rescale of {source} into it did not come to its end; call rescale with "
                "both again"
            )
        if self.own.exists(RESCALED_FILE):
            into = owner_field(self.own, RESCALED_FILE, "to")
            if rescaled_into is None or rescaled_into.home.path != into:
                raise CheckpointError(
                    f"checkpoint {self} was rescaled into {into}, which goes on in its place: start with that one; to give "
                    f"that one up, delete it and {self.own.of(RESCALED_FILE)}"
                )
        if self.own.exists(DRAINED_FILE):
            raise DrainedCheckpointError(
                f"checkpoint {self} was drained: its last windows have fired and it is closed; "
                "start with a new checkpoint and a new output folder"
            )

    def definition(self) -> Definition | None:
        """Return the definition of the last batch, or of a start before the first one; None if there is none. Raises
        CheckpointError, or a subclass, for a damaged checkpoint.
        """
        self._check_logs()
        if not self.own.exists(FILE):
            return None
        path = self.own.of(FILE)
        place = DefinitionLocation(path, path, format=FORMAT, older=_OLDER)
        found = compatibility.parsed(self.own.read(FILE), place)
        if _BEFORE not in found:
            return found
        match found.pop(_BEFORE):
            case {"batch": int(batch), "definition": before}:
                return compatibility.read(before, place) if batch == self.last_batch() else found
        raise place.damaged(found, f"has a part {_BEFORE!r} that is no definition with the number of its batch")

    def stored(self) -> Definition | None:
        """Return the stored definition; None for a new checkpoint, and for a damaged one, which `keep` refuses.

        Raises DrainedCheckpointError, DefinitionChangedError for one of another format, CheckpointError for one that was rescaled.
        """
        self.refuse_closed()
        try:
            return self.definition()
        except DefinitionChangedError:
            raise
        except CheckpointError:
            return None

    def stored_tasks(self) -> int | None:
        """Return the number of tasks of a bolt, or of shuffle partitions of a topology, that the batches have fixed. Raises the
        errors of `stored`.
        """
        found = self.stored()
        if found is None or self.last_batch() is None:  # no batch: of a start that was refused
            return None
        return found.get("tasks") or (found.get("topology") or found.get("trident") or {}).get("partitions")

    def shuffle_partitions(self, asked: int | None, widest: int) -> int:
        """Return the number of shuffle partitions of a topology: `asked`, else the stored one; for a new checkpoint the number of
        tasks of the widest depth, but at most the number of cores. Raises ConfigError for a number below 1, and the errors of
        `stored`.
        """
        before = self.stored_tasks() if asked is None else None
        return before or partitions_of_new(self.spark, asked, widest)

    def query_id(self) -> str:
        """Return the query id, which owns the output; a checkpoint without batches gets one.

        Raises CorruptStateError if the file is damaged, or missing although there are batches. With another id, tables and queues
        that store the id of a batch's query would take a repeated batch for a new one.
        """
        if not self.own.exists(_QUERY_FILE):
            if batches_in(self.offsets):
                raise CorruptStateError(
                    f"{self.own.of(_QUERY_FILE)} is missing, which says whose the output of checkpoint {self} is; put the file "
                    "back from a copy, or start with a new checkpoint and a new output folder"
                )
            claim_owner(self.own, _QUERY_FILE, {"id": uuid4().hex})
        return owner_field(self.own, _QUERY_FILE, "id")

    def continued(self) -> tuple[str, int]:
        """Return the id under which the query reads its queues, and the number of batches that earlier checkpoints ran under this
        id: its own id and 0, except for a checkpoint made by `rescale`. Raises CorruptStateError.
        """
        if not self.own.exists(_CONTINUES_FILE):
            return self.query_id(), 0
        batches = owner_field(self.own, _CONTINUES_FILE, "batches")
        if not batches.isdecimal():
            raise CorruptStateError(
                f"{self.own.of(_CONTINUES_FILE)} has no number of batches, but {quote(batches)}; put the file back from a copy"
            )
        return owner_field(self.own, _CONTINUES_FILE, "reader"), int(batches)

    def continue_from(self, old: Checkpoint) -> None:
        """Record in a new checkpoint the id under which its query reads queues; its batch 0 represents all batches of the old
        one.
        """
        reader, before = old.continued()
        write_owner(self.own, _CONTINUES_FILE, {"reader": reader, "batches": str(before + (old.last_batch() or 0))})

    def written(self) -> dict[str, tuple[str, int]]:
        """Return, by stream, its last sink and the last committed batch that this has taken, as `keep_written` has stored them.
        Raises CorruptStateError.
        """
        if not self.own.exists(OUTPUTS_FILE):
            return {}
        try:
            stored = json.loads(self.own.read(OUTPUTS_FILE))
            outputs: dict[str, tuple[str, int]] = {
                stream: (sink, batch) for stream, (sink, batch) in stored["outputs"].items()
            }
            if stored["format"] != 1 or not all(is_whole(batch, 0) for _, batch in outputs.values()):
                raise ValueError(quote(stored))
        except compatibility.BROKEN as problem:
            raise CorruptStateError(
                f"{self.own.of(OUTPUTS_FILE)} is damaged; put the file back from a copy, or delete it: this start does not notice "
                "then that an output is an older copy"
            ) from problem
        return outputs

    def keep_written(self, outputs: Mapping[str, tuple[str, int]]) -> None:
        """Store what `written` returns."""
        self.own.write(OUTPUTS_FILE, json.dumps({"format": 1, "outputs": outputs}).encode())

    def pending_batch(self) -> int | None:
        """Return the batch that was begun and not committed, which the next start repeats; None if there is none."""
        last = self.last_batch()
        return last if last is not None and last not in batches_in(self.commits) else None

    def last_batch(self) -> int | None:
        """Return the last batch that was begun, None for none."""
        return max(batches_in(self.offsets), default=None)

    def _check_logs(self) -> None:
        """Read the logs that Spark reads first, so that the error of a damaged file names it; Spark's errors do not."""
        if self.home.exists("metadata"):
            try:
                UUID(json.loads(self.home.read("metadata"))["id"])
            except compatibility.BROKEN as problem:
                raise CorruptStateError(
                    f"{self.home.of('metadata')} is damaged; put the file back from a copy"
                ) from problem
        elif batches_in(self.offsets):
            raise CorruptStateError(f"{self.home.of('metadata')} is missing; put the file back from a copy")
        for log in (self.offsets, self.commits):
            names = log.names()
            for batch in sorted(batches_in(log))[-2:]:  # a batch is made again from the offsets before it to its own
                if str(batch) in names:
                    read_log(log, batch)
        missing = next(self._missing(), None)
        if missing is not None:
            raise CorruptStateError(f"{self.home.of(missing)} is missing; put the file back from a copy")

    def _missing(self) -> Iterator[str]:
        """Yield the files that are missing in Spark's logs and in those of its file sources, and the folders of its states."""
        planned, done = batches_in(self.offsets), batches_in(self.commits)
        yield from compatibility.missing_in_logs(planned, done, lambda: bool((self.home / "state").names()))
        last = max(done, default=-1)
        if f"{last}" in self.commits.names():
            commit, there = read_log(self.commits, last)[0], (self.home / "state").names()
            stored = commit.get("stateUniqueIds") if isinstance(commit, dict) else None
            yield from (f"state/{operator}" for operator in sorted(stored or ()) if operator not in there)
        last = max(planned, default=-1)
        if f"{last}" not in self.offsets.names():
            return
        for number, offset in enumerate(read_log(self.offsets, last)[1:]):
            file = offset.get("logOffset", -1) if isinstance(offset, dict) else -1
            if isinstance(file, int) and file >= 0 and file not in batches_in(self.home / "sources" / str(number)):
                yield f"sources/{number}/{file}"


# -- damage ----------------------------------------------------------------------------------------------------------------------


def damaged_file(checkpoint: Checkpoint) -> str | None:
    """Return the first file of a checkpoint that is missing, or whose bytes do not match their checksum (Hadoop's, or the one that
    Spark wrote beside it); None if there is none, or if the checkpoint cannot be read.

    Tasks of the failed batch may still be writing, so a file counts as damaged only if two checks find it damaged. Cost: reads the
    whole checkpoint, twice if something is damaged; called only after Spark has failed.
    """
    home, before = checkpoint.home, list[str]()
    for _ in range(_LOOKS):
        try:
            files, crc = home.files(), getattr(cast(Any, checkpoint.spark.sparkContext._jvm), "java.util.zip.CRC32C")
            found = [name for name in _listed(home, files) if name not in files]
            found += [name for name in files if not _intact(home, name, files, crc)]
            found = [name for name in found if not _is_left_over(home, name, files)]
        except Exception as problem:  # a file may vanish while it is listed; py4j has no types
            _log.warning(
                "checkpoint %s cannot be looked through for damaged files: %s", checkpoint, describe_error(problem)
            )
        else:
            agreed = [name for name in found if name in before]
            if agreed or not found:
                return home.of(agreed[0]) if agreed else None
            before = found
        time.sleep(_BETWEEN_LOOKS_S)
    return None


def _is_left_over(home: Folder, name: str, files: list[str]) -> bool:
    """Return whether a file was not renamed yet, or is a version of the state that no committed batch refers to. It may be half
    written: the attempt was killed, or the disk was full; its batch is repeated and writes another file.
    """
    if name.endswith(".tmp"):
        return True
    version = _VERSION.fullmatch(name)
    if version is None:
        return False
    batch = int(version[1]) - 1
    if f"commits/{batch}" in files:
        return version[2] not in home.read(f"commits/{batch}").decode()
    return batch > max((int(file[8:]) for file in files if re.fullmatch(r"commits/\d+", file)), default=-1)


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
            # Those of Spark's logs that a start does not read.
            return _LOG.fullmatch(name) is None or _is_log(content)
        wanted = json.loads(home.read(f"{name}.crc"))
        found = crc()
        found.update(bytearray(content))
        return bool(wanted["algorithm"] != "CRC32C" or (found.getValue() ^ wanted["value"]) & 0xFFFFFFFF == 0)
    except Exception:  # the file cannot be read; the JVM raises many classes
        return False


def _is_log(content: bytes) -> bool:
    """Return whether a file of Spark's logs is whole: objects of JSON, or lines of another form, behind a version. A zero byte is
    before that of Kafka, and sources of other libraries may write none.
    """
    for entry in content.split(b"\n"):
        if entry.startswith(b"{"):
            json.loads(entry)  # raises a ValueError for a damaged one
    return re.fullmatch(rb"\0?(v\d*)?", content) is None
