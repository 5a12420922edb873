"""Whose output a folder holds: the folder of a file sink belongs to one stream of one checkpoint, and says so itself.

    <checkpoint>/windowing/query.json    {"id": "5f0c..."}                           made once, before the first batch
    <folder>/_owner.json                 {"query": "5f0c...", "stream": "default"}   written before the first data

Laws: batches of two streams, or of two checkpoints, never lie in one folder: batch 3 of the one would replace batch 3
of the other. What is refused is refused before anything is written. Claiming again changes nothing, so a start that
died half way can be made again. A folder from before there were owners goes to a checkpoint that has made as many
batches as it holds, and to no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from windowing.errors import ConfigError, CorruptStateError, shown
from windowing.spark import definition
from windowing.spark.hadoop import Folder

__all__ = ["BATCH", "FILE", "Owner", "batch_of", "claim_folder", "owner_of", "refuse_shared"]

BATCH = "batch_id"
"""A batch of a file sink is the directory `batch_id=000000000012`."""
FILE = "_owner.json"
_QUERY_FILE = "query.json"
_FORMAT = 1
_WAY_OUT = "give this one a new output folder, or remove the old output"


class Owner(NamedTuple):
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

    def is_same(self, other: Owner) -> bool:
        """Whether both are one stream of one checkpoint."""
        return self[:2] == other[:2]


def owner_of(spark: SparkSession, checkpoint: str, stream: str, schema: StructType | None = None) -> Owner:
    """Return a stream of a checkpoint as an owner; the checkpoint is given an id if it has none."""
    folder = Folder(spark, checkpoint) / "windowing"
    if not folder.exists(_QUERY_FILE):
        folder.write(_QUERY_FILE, json.dumps({"format": _FORMAT, "id": uuid4().hex}).encode())
    query = _field(folder, _QUERY_FILE, "id")
    return Owner(query, stream, definition.last_batch(spark, checkpoint), schema)


def claim_folder(folder: Folder, owner: Owner) -> None:
    """Write into `folder` that it is the owner's. Raises ConfigError where it is another's, or holds batches that the
    owner cannot have written. Cost: two or three look-ups.
    """
    if folder.exists(FILE):
        found = Owner(_field(folder, FILE, "query"), _field(folder, FILE, "stream"))
        if not found.is_same(owner):
            raise ConfigError(f"{folder.path} holds the output of {found.name}, not of {owner.name}; {_WAY_OUT}")
        return
    written = max(map(batch_of, folder.names()), default=-1)
    if written > (-1 if owner.last_batch is None else owner.last_batch):
        begun = "has begun none" if owner.last_batch is None else f"has come to batch {owner.last_batch}"
        raise ConfigError(f"{folder.path} holds batch {written}, and {owner.name} {begun}; {_WAY_OUT}")
    content = {"format": _FORMAT, "query": owner.query, "stream": owner.stream}
    folder.write(FILE, json.dumps(content).encode())


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
            f"{folder.of(file)} does not say whose this is ({shown(str(problem))}); put the file back from a copy"
        ) from problem
    return value
