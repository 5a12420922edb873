"""`windowing status` and `windowing states`: what lies in a checkpoint and in a store, read beside whoever writes there.

    <checkpoint>/windowing/definition.json, drained.json, query.json     this library's, written whole, by renaming
    <checkpoint>/offsets/N, commits/N                                    Spark's logs: batch N was begun, was committed
    a store in SQLite: tables <state> and <state>_fences                 rows and fences of Trident states

Nothing is written or made, and locked no longer than a read takes: files are read as they are, SQLite's are opened read-only.
What only Spark's state store knows (watermark, pending tuples, open acks) is not here, and is said not to be: a running query has
it in `query.metrics` and `query.progress`.
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
from windowing.errors import WindowingError, quote
from windowing.trident.fence import Fence, PartitionId

__all__ = [
    "read_checkpoint",
    "read_states",
]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NOT_SHOWN = "inside Spark's state store; of a running query: query.metrics and query.progress"


def read_checkpoint(folder: Path) -> list[tuple[str, str]]:
    """Return what a checkpoint of a query on Spark says of itself, as (title, text) lines. Refuses another folder."""
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
    query = _json(own / "query.json")
    lines.append(("query", str(query.get("id", "unknown")) if isinstance(query, dict) else "none yet"))
    lines.append(
        ("last batch begun", "none" if not begun else f"{max(begun)}{_time_of(folder / 'offsets' / str(max(begun)))}")
    )
    lines.append(("last batch committed", "none" if not done else str(max(done))))
    pending = max(begun) if begun and max(begun) not in done else None
    lines.append(("made again at the next start", "nothing" if pending is None else f"batch {pending}"))
    lines.append(("drained", "yes: closed for good" if (own / "drained.json").exists() else "no"))
    lines.append(("watermark, pending, acks", _NOT_SHOWN))
    return lines


def _definition(found: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(found, dict):
        yield "definition", "none yet"
        return
    yield "written by", f"windowing {found.get('library', 'unknown')}, format {found.get('format', 'unknown')}"
    for kind in ("topology", "trident"):
        if isinstance(found.get(kind), dict):
            plan = found[kind]
            yield kind, f"{plan.get('name', '')} in {plan.get('partitions', 'unknown')} partitions"
    bolt = found.get("bolt")
    if isinstance(bolt, dict):
        fixed = bolt.get("fixed", bolt)
        if isinstance(fixed, dict):
            length, slide = (json.dumps(fixed.get(name)) for name in ("length", "slide"))
            yield "bolt", f"{fixed.get('name', '')}: length {length}, slide {slide}, key {json.dumps(fixed.get('key'))}"
    if "tasks" in found:
        yield "tasks", str(found["tasks"])


def _json(file: Path) -> Any:
    """Return the JSON of a file, None where it is not there; a file that is damaged is a sentence."""
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
    """Return when a batch was planned, as Spark's log says it; empty where it does not."""
    try:
        at_ms = json.loads(file.read_text(encoding="utf-8").split("\n")[1])["batchTimestampMs"]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""
    from datetime import UTC, datetime

    try:
        return f", {datetime.fromtimestamp(int(at_ms) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, TypeError, OverflowError, OSError):
        return ""


def read_states(path: Path) -> list[tuple[str, str, str, str, str]]:
    """Return (state, partition, rows, last batch and attempt, kind) of each partition in a SQLite file of Trident states.

    Raises CommandRefused for a file that is none, or cannot be read now. Cost: a count of the rows of each partition.
    """
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
