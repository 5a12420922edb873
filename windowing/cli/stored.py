"""`windowing status` and `windowing states`: read a checkpoint or a store, also while a query writes to it.

    <checkpoint>/windowing/definition.json, query.json                   of this library, replaced atomically by a rename
    <checkpoint>/windowing/drained.json, rescaled.json, rescaling.json   how it was closed, or that a rescale has not ended
    <checkpoint>/windowing/metrics.json                                  metrics of the last run, some seconds old
    <checkpoint>/windowing/acks/                                         the ledger of roots (spark/acks.py)
    <checkpoint>/metadata, offsets/N, commits/N                          of Spark: the query; batch N was begun, was committed
    a store in SQLite: tables <state> and <state>_fences                 rows and fences of Trident states

Nothing is written or created, and no lock is held longer than a read: SQLite files are opened read-only, PostgreSQL is read in a
read-only transaction, and the keys of Redis are scanned in small steps. The states of bolts are in Spark's state store, which only
Spark can read; a checkpoint given as a store of states is refused.

A checkpoint on this machine is read without Spark. One on another file system (`hdfs://`, `s3a://`) is read by the same functions,
through the file systems of a Spark session that runs in this process (spark/hadoop.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from windowing.cli.loading import CommandFailed, CommandRefused
from windowing.cli.running import moment
from windowing.errors import CheckpointError, CorruptStateError, WindowingError, quote
from windowing.execution.compatibility import batches_in, missing_in_logs, read_log
from windowing.execution.metrics import RunMetrics, unsealed
from windowing.monitoring.page import Drawing, LivePage, serve_page
from windowing.stores.remote import masked
from windowing.stores.sqlite import stored_states
from windowing.stores.sqlite_files import process_with_lock, translated
from windowing.trident.fence import Fence, PartitionId
from windowing.windows.measures import Count, Duration, describe_measure

if TYPE_CHECKING:
    from windowing.spark.hadoop import Folder

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_RESCALED = (
    ("rescaled.json", "to", "rescaled", "into {}, which goes on in its place"),
    ("rescaling.json", "from", "half made", "a rescale of {} into it has not ended; call it again"),
)
"""Files of `rescale` (spark/rescaling.py): file, field with the other checkpoint, title and text of the line that is printed."""
DAMAGED = "damaged"
"""The title of the lines about files that are damaged or missing."""
_ONLY_READS = {
    "spark.master": "local[1]",
    "spark.submit.deployMode": "client",
    "spark.eventLog.enabled": "false",
}
"""Settings of a session that only reads files: it starts no application on a cluster and writes no log, whatever
spark-defaults.conf says."""
_COPY = (
    "copy what is small of the checkpoint (windowing, offsets, commits, metadata) into a folder on a file system of this machine, "
    "for example with hadoop fs -get, and give that folder"
)


class LocalFiles:
    """A folder of a checkpoint on a file system of this machine, without a JVM: what is used here of `Folder` (spark/hadoop.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def __truediv__(self, name: str) -> LocalFiles:
        return LocalFiles(self._folder / name)

    def names(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def of(self, name: str) -> str:
        return str(self._folder / name)

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


CheckpointFiles: TypeAlias = "LocalFiles | Folder"
"""A folder of a checkpoint. Reading a missing file raises FileNotFoundError, or CheckpointError on another file system."""


def is_elsewhere(given: str) -> bool:
    """Return whether a path is a URI of another file system than this machine's.

    >>> [is_elsewhere(given) for given in ("/data/ck", "file:/data/ck", "jobs.py:topology", "hdfs:///ck", "s3a://bucket/ck")]
    [False, False, False, True, True]
    """
    found = _URI.match(given)
    return found is not None and found["scheme"].lower() != "file"


def checkpoint_files(given: str, settings: Mapping[str, str]) -> CheckpointFiles:
    """Return the folder of a checkpoint, given as a path or a URI. For a URI of another file system, start Spark with `settings`.

    Raises CommandRefused if settings are given for a checkpoint of this machine, or if Spark is not installed; CheckpointError if
    the file system cannot be reached. Cost: on this machine nothing, elsewhere the start of a session (6 to 18 seconds).
    """
    if not is_elsewhere(given):
        if settings:
            raise CommandRefused(f"{given} is on this machine, and is read without Spark; leave out --conf")
        return LocalFiles(local_path(given, _COPY))
    way_out = f"{masked(given)} is on another file system, which is read through Spark; without it, {_COPY}"
    spark = spark_session("windowing status", {**_ONLY_READS, **settings}, way_out)
    from windowing.spark.hadoop import Folder

    try:
        return Folder(spark, given)
    except CheckpointError as problem:
        raise CheckpointError(
            f"{problem.args[0]}. What Spark needs to reach it comes from HADOOP_CONF_DIR, spark-defaults.conf or --conf KEY=VALUE"
        ) from problem


def spark_session(name: str, settings: Mapping[str, str], why: str = "") -> Any:
    """Start a Spark session for a command. Raises CommandRefused if Spark is not installed. why: appended to that message."""
    try:
        from windowing.spark import session
    except ModuleNotFoundError as missing:
        refused = f"{(missing.name or '').partition('.')[0]} is not installed; pip install 'windowing[spark]'"
        raise CommandRefused(f"{refused}. {why}" if why else refused) from None
    return session(name, **settings)


def local_path(given: str, way_out: str) -> Path:
    """Return the path of a checkpoint or store, given as such or as a `file:` URI (not decoded); refuse any other URI."""
    if is_elsewhere(given):
        raise CommandRefused(f"{masked(given)} is on another file system or server; {way_out}")
    found = _URI.match(given)
    return Path(given) if found is None else Path(re.sub("^//+", "/", given[found.end() - 1 :]))


def read_checkpoint(files: CheckpointFiles) -> list[tuple[str, str]]:
    """Return the content of a query's checkpoint as (title, text) lines; what is damaged or missing is the last ones. Raises
    CommandRefused for another folder.
    """
    place, there = str(files), files.names()
    if not there:
        hint = "" if _URI.match(place) else ". A path without a scheme is on this machine; one on HDFS is hdfs:///..."
        raise CommandRefused(f"there is no folder {place}, or it is empty; give the checkpoint= of a query{hint}")
    if "windowing" not in there and "offsets" not in there:
        raise CommandRefused(
            f"{place} is no checkpoint: it has neither windowing/ nor offsets/; give the checkpoint= of a query"
        )
    own, damaged = files / "windowing", list[str]()

    def content(folder: CheckpointFiles, name: str) -> Any:
        try:
            return _json(folder, name)
        except CommandFailed as problem:
            damaged.append(problem.message)
            return None

    begun, done = batches_in(files / "offsets"), batches_in(files / "commits")
    # A running query may log a batch between two listings, so a missing file is looked for twice.
    first = set() if own.exists("rescaling.json") else {*_missing(files)}
    missing = first and first & {*_missing(files)}
    lines = [("checkpoint", place)]
    definition = content(own, "definition.json")
    lines += () if damaged or "windowing/definition.json" in missing else _definition(definition)
    metadata = content(files, "metadata")
    query = content(own, "query.json") or metadata
    lines.append(("query", str(query.get("id", "unknown")) if isinstance(query, dict) else "none yet"))
    lines.append(
        ("last batch begun", "none" if not begun else f"{max(begun)}{_time_of(files / 'offsets', max(begun))}")
    )
    lines.append(("last batch committed", "none" if not done else str(max(done))))
    pending = max(begun) if begun and max(begun) not in done else None
    lines.append(("made again at the next start", "nothing" if pending is None else f"batch {pending}"))
    lines.append(("drained", "yes: closed for good" if own.exists("drained.json") else "no"))
    for file, other, title, says in _RESCALED:
        found = content(own, file)
        if found is not None:
            lines.append((title, says.format(found.get(other, "unknown") if isinstance(found, dict) else "unknown")))
    lines += _user(files)
    lines += _acks(own, max(done, default=-1))
    damaged += _cut(files)
    damaged += [f"{files.of(name)} is missing; put the file back from a copy" for name in sorted(missing)]
    return lines + [(DAMAGED, text) for text in damaged]


def _missing(files: CheckpointFiles) -> Iterator[str]:
    """Yield the files without which a start refuses a checkpoint that has batches; copies without sources or state are complete."""
    done, begun = batches_in(files / "commits"), batches_in(files / "offsets")
    yield from missing_in_logs(begun, done, lambda: bool((files / "state").names()))
    for name in ("metadata", "windowing/definition.json", "windowing/query.json") if begun else ():
        if not files.exists(name):
            yield name


def _cut(files: CheckpointFiles) -> Iterator[str]:
    """Yield which of the files of Spark's logs that a start reads are damaged."""
    for log in (files / "offsets", files / "commits"):
        names = log.names()
        for batch in sorted(batches_in(log))[-2:]:
            try:
                if str(batch) in names:
                    read_log(log, batch)
            except CorruptStateError:
                yield f"{log.of(str(batch))} is damaged; put the file back from a copy"
            except (FileNotFoundError, CheckpointError):  # a running query has removed it
                continue


def metrics_in(files: CheckpointFiles) -> RunMetrics | None:
    """Return the metrics that the last run stored in a checkpoint, None without any. Raises CommandFailed for a damaged file, and
    for one of another version.
    """
    found = _stored_metrics(files)
    return None if found is None else found[0]


def page_of(files: CheckpointFiles, port: int) -> LivePage:
    """Serve the page of a query that another process runs, or has run, from the metrics in its checkpoint.

    Raises CommandRefused for a folder that is not a checkpoint or has no metrics. port: 0 for a free one. Cost: a read of one file
    per second.
    """
    read_checkpoint(files)
    found = _stored_metrics(files)
    if found is None:
        raise CommandRefused(
            f"{files} has no numbers yet: a query writes them some seconds after its first batch; try again then"
        )

    def now() -> RunMetrics:
        last = _stored_metrics(files)
        if last is None:
            raise CommandRefused(f"{files} has no numbers any more: somebody has removed windowing/metrics.json")
        return last[0]

    return serve_page(now, found[1], port)


def _stored_metrics(files: CheckpointFiles) -> tuple[RunMetrics, Drawing] | None:
    own = files / "windowing"
    way_out = "no output depends on it, and the next batch writes it anew"
    found = _json(own, "metrics.json", way_out)
    if found is None:
        return None
    try:
        numbers = unsealed(found)
    except ValueError as problem:
        raise CommandFailed(f"{own.of('metrics.json')} cannot be read: {problem}; {way_out}") from problem
    return RunMetrics.of(numbers), Drawing(**numbers["drawing"])


def _user(files: CheckpointFiles) -> Iterator[tuple[str, str]]:
    """Yield which process of this machine runs the query, where the system says it."""
    if not isinstance(files, LocalFiles) or not Path("/proc/locks").exists():
        return
    process = process_with_lock(str(files))
    yield "in use", "by no process of this machine" if process is None else f"by process {process} of this machine"


def _acks(own: CheckpointFiles, committed: int) -> Iterator[tuple[str, str]]:
    """Yield the number of roots that wait for their acks, if the query has spouts with acks."""
    if not own.exists("acks"):
        return
    try:
        from windowing.spark.acks import AckLog
    except ImportError as problem:
        yield "acks outstanding", f"unknown here: {problem}; pip install 'windowing[spark]'"
        return
    try:
        ledger = AckLog(own / "acks").ledger(committed)
    except (WindowingError, OSError) as problem:
        # A running query may replace records by a snapshot between two reads.
        yield "acks outstanding", f"cannot be read now: {problem}"
        return
    yield "acks outstanding", f"{len(ledger.open)} roots, after batch {committed}"


def _definition(found: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(found, dict):
        yield "definition", "none yet"
        return
    yield "written by", f"windowing {found.get('library', 'unknown')}, format {found.get('format', 'unknown')}"
    for kind in ("topology", "trident"):
        if isinstance(found.get(kind), dict):
            plan = found[kind]
            yield kind, f"{plan.get('name', '')} in {plan.get('partitions', 'unknown')} partitions"
            yield from _parts(plan)
    bolt = found.get("bolt")
    if isinstance(bolt, dict):
        yield "bolt", _windows_of(bolt.get("fixed", bolt))
        yield "grouping", json.dumps(found.get("grouping"))
    if "tasks" in found:
        yield "tasks", str(found["tasks"])


def _parts(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the spouts, bolts and states of a stored topology; parts in an unknown format are left out."""
    for name, *_ in _lists(plan.get("spouts")) + _lists(plan.get("streams")):
        yield "spout", str(name)
    for depth, level in enumerate(_lists(plan.get("levels")), start=1):
        for name, bolt in (each for each in level if isinstance(each, list) and len(each) == 2):
            if not isinstance(bolt, dict):
                continue
            read = ", ".join(str(found[0]) for found in _lists(bolt.get("inputs"))) or "fused"
            kept = [_windows_of(bolt["window"])] if isinstance(bolt.get("window"), dict) else []
            kept += ["stateful"] if bolt.get("stateful") else []
            yield "bolt", "; ".join([f"{name} x{bolt.get('tasks', 1)}, depth {depth}, reads {read}", *kept])
    for stage in _lists(plan.get("stream")):
        yield "windows in", f"{stage[0]} x{stage[1] if len(stage) > 1 else 1}"
    states = plan.get("states")
    if isinstance(states, dict) and isinstance(states.get("since"), dict):
        meanings = states.get("meanings")
        for state in states["since"]:
            meaning = meanings.get(state) if isinstance(meanings, dict) else None
            said = ", ".join(f"{name} {value}" for name, value in meaning.items()) if isinstance(meaning, dict) else ""
            yield "state", f"{state}: {said}" if said else str(state)
    elif states:
        yield "states", json.dumps(states)


def _lists(found: Any) -> list[list[Any]]:
    return [each for each in found if isinstance(each, list) and each] if isinstance(found, list) else []


def _windows_of(fixed: Any) -> str:
    if not isinstance(fixed, dict):
        return "unknown"
    options = ["length", "slide" if fixed.get("trigger") is None else "trigger", "eviction", "key"]
    declared = [f"{name} {_measure(fixed[name])}" for name in options if fixed.get(name) is not None]
    return f"{fixed.get('name', '')}: {', '.join(declared)}"


def _measure(stored: Any) -> str:
    """Return a stored length or slide as people write it, anything else as JSON."""
    match stored:
        case {"count": int(value)} if value > 0:
            return describe_measure(Count(value))
        case {"ms": int(value)} if value > 0:
            return describe_measure(Duration(ms=value))
    return json.dumps(stored)


def _json(files: CheckpointFiles, name: str, way_out: str = "put the file back from a copy") -> Any:
    """Return the JSON of a file, None if it does not exist. Raises CommandFailed for a damaged file."""
    try:
        return json.loads(files.read(name))
    except CorruptStateError as problem:
        raise CommandFailed(str(problem)) from problem
    except (FileNotFoundError, CheckpointError):
        if files.exists(name):
            raise
        return None
    except (ValueError, RecursionError) as problem:
        raise CommandFailed(f"{files.of(name)} is damaged: {problem}; {way_out}") from problem


def _time_of(offsets: CheckpointFiles, batch: int) -> str:
    """Return the time when a batch was planned, from Spark's offset log; empty if it has none."""
    try:
        at_ms = int(read_log(offsets, batch)[0]["batchTimestampMs"])
    except (OSError, CheckpointError, CorruptStateError, ValueError, KeyError, TypeError, OverflowError):
        return ""
    return f", {moment(at_ms)} UTC"


def read_server_states(url: str, module: str) -> list[tuple[str, str, str, str, str]]:
    """Return the lines of `read_states` for a server: "postgres", or "redis", the names of its module and of its extra.

    Raises CommandRefused if the extra is not installed, StoreUnavailableError for errors of the server. Cost: a count of the rows
    of each partition; on Redis also a scan of all keys of the database.
    """
    try:
        server = import_module(f"windowing.stores.{module}")
    except ImportError as problem:
        raise CommandRefused(
            f"{masked(url)} cannot be asked: {problem}; pip install 'windowing[{module}]'"
        ) from problem
    return [line for stored in server.stored_states(url) for line in _lines(*stored)]


def read_states(path: Path) -> list[tuple[str, str, str, str, str]]:
    """Return (state, partition, rows, last batch and attempt, kind) of each partition in a SQLite file of Trident states.

    Raises CommandRefused for a path that is not a file, CommandFailed for a file that cannot be read. Cost: a count of the rows of
    each partition.
    """
    if path.is_dir() and ((path / "windowing").is_dir() or (path / "offsets").is_dir()):
        raise CommandRefused(
            f"{quote(str(path))} is the checkpoint of a query: its states lie inside Spark's state store, which only Spark reads "
            f"(spark.read.format('statestore')); what the query says of itself: windowing status {path}"
        )
    if path.is_dir():
        raise CommandRefused(f"{quote(str(path))} is a folder; give the path of a SqliteStore, which is a file")
    if not path.is_file():
        raise CommandRefused(f"there is no file {quote(str(path))}; give the path of a SqliteStore")

    path.open("rb").close()  # a missing right is a PermissionError, which SQLite does not tell from damage

    def error_of(problem: Exception, code: int | None) -> CommandFailed:
        return CommandFailed(
            f"{path} cannot be read: {problem}; give the path of a SqliteStore. If its program was killed, start "
            "that again, which repairs the file, and then look again"
        )

    with translated(error_of):
        return [line for stored in stored_states(path) for line in _lines(*stored)]


def _lines(state: str, rows: dict[int, int], fences: dict[int, bytes]) -> Iterator[tuple[str, str, str, str, str]]:
    partitions = rows.keys() | fences.keys()
    if not all(isinstance(partition, int) for partition in partitions):
        raise CommandFailed(f"the state {state} is damaged: a partition has no number; restore its store from a copy")
    for partition in sorted(partitions):
        name = "ledger" if partition < 0 else str(partition)
        if partition not in fences:
            yield state, name, str(rows.get(partition, 0)), "no fence", ""
            continue
        try:
            fence = Fence.of(fences[partition], PartitionId(state, partition, 0))
        except WindowingError as problem:
            yield state, name, str(rows.get(partition, 0)), f"damaged: {problem}", ""
            continue
        attempt = f"txid {fence.attempt.txid}, attempt {fence.attempt.attempt}"
        yield (
            state,
            name,
            str(rows.get(partition, 0)),
            attempt,
            f"{fence.kind.value}, {fence.codec}, of {fence.place.partitions}",
        )
