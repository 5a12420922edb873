"""`windowing status` and `windowing states`: read a checkpoint or a store, also while a query writes to it.

    <checkpoint>/windowing/definition.json, query.json                   of this library, replaced atomically by a rename
    <checkpoint>/windowing/drained.json, rescaled.json, rescaling.json   how it was closed, or that a rescale has not ended
    <checkpoint>/windowing/metrics.json                                  metrics of the last run, some seconds old
    <checkpoint>/windowing/acks/                                         the ledger of roots (spark/acks.py)
    <checkpoint>/metadata, offsets/N, commits/N                          of Spark: the query; batch N was begun, was committed
    a store in SQLite: tables <state> and <state>_fences                 rows and fences of Trident states

Nothing is written or created, and no lock is held longer than a read: SQLite files are opened read-only, and PostgreSQL is read in
a read-only transaction. The states of bolts are in Spark's state store, which only Spark can read; a checkpoint given as a store of
states is refused.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from windowing.cli.loading import CommandFailed, CommandRefused
from windowing.errors import StoreUnavailableError, WindowingError, quote
from windowing.execution.metrics import RunMetrics
from windowing.monitoring.page import Drawing, LivePage, serve_page
from windowing.stores.remote import masked
from windowing.trident.fence import Fence, PartitionId

__all__ = [
    "local_path",
    "metrics_in",
    "page_of",
    "read_checkpoint",
    "read_states",
]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/")
_RESCALED = (
    ("rescaled.json", "to", "rescaled", "into {}, which goes on in its place"),
    ("rescaling.json", "from", "half made", "a rescale of {} into it has not ended; call it again"),
)
"""Files of `rescale` (spark/rescaling.py): file, field with the other checkpoint, title and text of the line that is printed."""


def local_path(given: str, way_out: str) -> Path:
    """Return the path of a checkpoint or a store, given as a path or as a `file:` URI. Refuses any other URI by name, with the way
    out. As in `checkpoint=`, a URI is not decoded.
    """
    found = _URI.match(given)
    if found is None:
        return Path(given)
    if found["scheme"].lower() != "file":
        raise CommandRefused(f"{masked(given)} is on another file system or server; {way_out}")
    return Path(re.sub("^//+", "/", given[found.end() - 1 :]))


def read_checkpoint(folder: Path) -> list[tuple[str, str]]:
    """Return the content of a query's checkpoint as (title, text) lines. Raises CommandRefused for another folder."""
    if not folder.is_dir():
        raise CommandRefused(
            f"there is no folder {folder}; give the checkpoint= of a query, on a file system of this machine"
        )
    own = folder / "windowing"
    if not own.is_dir() and not (folder / "offsets").is_dir():
        raise CommandRefused(
            f"{folder} is no checkpoint: it has neither windowing/ nor offsets/; give the checkpoint= of a query"
        )
    begun, done = _batches(folder / "offsets"), _batches(folder / "commits")
    lines = [("checkpoint", str(folder))]
    lines += _definition(_json(own / "definition.json"))
    query = _json(own / "query.json") or _json(folder / "metadata")
    lines.append(("query", str(query.get("id", "unknown")) if isinstance(query, dict) else "none yet"))
    lines.append(
        ("last batch begun", "none" if not begun else f"{max(begun)}{_time_of(folder / 'offsets' / str(max(begun)))}")
    )
    lines.append(("last batch committed", "none" if not done else str(max(done))))
    pending = max(begun) if begun and max(begun) not in done else None
    lines.append(("made again at the next start", "nothing" if pending is None else f"batch {pending}"))
    lines.append(("drained", "yes: closed for good" if (own / "drained.json").exists() else "no"))
    for file, place, title, says in _RESCALED:
        found = _json(own / file)
        if found is not None:
            lines.append((title, says.format(found.get(place, "unknown") if isinstance(found, dict) else "unknown")))
    lines += _acks(own / "acks", max(done, default=-1))
    return lines


def metrics_in(folder: Path) -> RunMetrics | None:
    """Return the metrics that the last run stored in a checkpoint, None without any. Raises CommandFailed for a damaged file."""
    found = _stored_metrics(folder)
    return None if found is None else found[0]


def page_of(folder: Path, port: int) -> LivePage:
    """Serve the page of a query that another process runs, or has run, from the metrics in its checkpoint.

    Raises CommandRefused for a folder that is not a checkpoint or has no metrics. port: 0 for a free one.
    """
    read_checkpoint(folder)
    found = _stored_metrics(folder)
    if found is None:
        raise CommandRefused(
            f"{folder} has no numbers yet: a query writes them some seconds after its first batch; try again then"
        )

    def now() -> RunMetrics:
        last = _stored_metrics(folder)
        if last is None:
            raise CommandRefused(f"{folder} has no numbers any more: somebody has removed windowing/metrics.json")
        return last[0]

    return serve_page(now, found[1], port)


def _stored_metrics(folder: Path) -> tuple[RunMetrics, Drawing] | None:
    file = folder / "windowing" / "metrics.json"
    found = _json(file)
    if found is None:
        return None
    try:
        return RunMetrics.of(found), Drawing(**found.get("drawing", {}))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise CommandFailed(f"{file} is damaged: {problem}; delete it, the next run writes it anew") from problem


class _AckFiles:
    """The folder of the ledger, with the interface that `AckLog` reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()]

    def of(self, name: str) -> str:
        return str(self._folder / name)

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


def _acks(folder: Path, committed: int) -> Iterator[tuple[str, str]]:
    """Yield the number of roots that wait for their acks, if the query has spouts with acks."""
    if not folder.is_dir():
        return
    try:
        from windowing.spark.acks import AckLog
    except ImportError as problem:
        yield "acks outstanding", f"unknown here: {problem}; pip install 'windowing[spark]'"
        return
    try:
        ledger = AckLog.in_folder(_AckFiles(folder)).ledger(committed)
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
    if states:
        yield "states", json.dumps(states)


def _lists(found: Any) -> list[list[Any]]:
    return [each for each in found if isinstance(each, list) and each] if isinstance(found, list) else []


def _windows_of(fixed: Any) -> str:
    if not isinstance(fixed, dict):
        return "unknown"
    length, slide = (json.dumps(fixed.get(name)) for name in ("length", "slide"))
    return f"{fixed.get('name', '')}: length {length}, slide {slide}, key {json.dumps(fixed.get('key'))}"


def _json(file: Path) -> Any:
    """Return the JSON of a file, None if it does not exist. Raises CommandFailed for a damaged file."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as problem:
        raise CommandFailed(f"{file} is damaged: {problem}; put the file back from a copy") from problem


def _batches(folder: Path) -> set[int]:
    try:
        names = [path.name.removesuffix(".compact") for path in folder.iterdir()]
    except FileNotFoundError:
        return set()
    return {int(name) for name in names if name.isdecimal()}


def _time_of(file: Path) -> str:
    """Return the time when a batch was planned, from Spark's offset log; empty if it has none."""
    try:
        at_ms = json.loads(file.read_text(encoding="utf-8").split("\n")[1])["batchTimestampMs"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    from datetime import UTC, datetime

    try:
        return f", {datetime.fromtimestamp(int(at_ms) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, TypeError, OverflowError, OSError):
        return ""


def read_postgres_states(url: str) -> list[tuple[str, str, str, str, str]]:
    """Return the lines of `read_states` for a PostgreSQL database, read in one read-only transaction.

    Raises CommandRefused if the extra is not installed, CommandFailed for errors of the server. Cost: a count of each partition.
    """
    try:
        from windowing.stores.postgres import stored_states
    except ImportError as problem:
        raise CommandRefused(f"PostgreSQL cannot be asked: {problem}; pip install 'windowing[postgres]'") from problem
    try:
        found = stored_states(url)
    except StoreUnavailableError as problem:
        raise CommandFailed(str(problem)) from problem
    return [line for state, rows, fences in found for line in _lines(state, rows, fences)]


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
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
            names = [
                name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            ]
            states = [name for name in names if _NAME.match(name) and f"{name}_fences" in names]
            return [line for state in states for line in _partitions(db, state)]
    except sqlite3.Error as problem:
        raise CommandFailed(
            f"{path} cannot be read: {problem}; is it a SQLite file of states? After a crash its owner mends it at its next start"
        ) from problem


def _partitions(db: sqlite3.Connection, state: str) -> Iterator[tuple[str, str, str, str, str]]:
    rows = dict(db.execute(f'SELECT partition, count(*) FROM "{state}" GROUP BY partition').fetchall())
    fences = dict(db.execute(f'SELECT partition, record FROM "{state}_fences"').fetchall())
    yield from _lines(state, rows, fences)


def _lines(state: str, rows: dict[int, int], fences: dict[int, bytes]) -> Iterator[tuple[str, str, str, str, str]]:
    for partition in sorted(rows.keys() | fences.keys()):
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
