"""rescale: a new checkpoint of a bolt on a DataFrame with another number of tasks, made of the one of a stopped query.

    OLD/state    --Spark's state reader--> driver: windows/rescale.py --rows--> one batch of the operator --> NEW/state
    OLD/offsets, OLD/sources ---------------------------------------------------------------------------> NEW/offsets, NEW/sources

NEW is a query of its own: batch 0 is what OLD had done, batch 1 is the first one that it makes.

Laws
- What Spark has of a state is written by Spark: a query with one batch, whose operator is that of the query to come.
- While NEW is not whole it holds `windowing/rescaling.json`, written first and deleted last: no query starts on it. OLD is as it
  was until NEW is whole but for that file; then `windowing/rescaled.json` closes it: no two queries go on from one place.
- A key goes where its hash says, and the hash is tried first on the tasks that the keys have now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from windowing.codec import CHUNK_MAGIC, META_MAGIC, dumps, frame, loads, unframe
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, WindowingError, describe_error, quote
from windowing.execution.compatibility import Definition
from windowing.schema.hashing import key_hash
from windowing.schema.types import Schema
from windowing.spark import definition, failpoints
from windowing.spark.control import checked_tasks, control_folder, task_labels
from windowing.spark.exchange import EXCHANGE, ExchangeRow, RowNumbering, record_batch
from windowing.spark.hadoop import Folder, checked_folder, literal_path
from windowing.spark.operator import Stored, TaskResult, evaluated
from windowing.spark.rows import NamedRows
from windowing.spark.session import require_session
from windowing.spark.settings import settings_of, take
from windowing.spark.state import SEQUENCE, TIMESTAMP, Chunk, ChunkStore, StoredTask, encode_table
from windowing.windows.key_state import key_of
from windowing.windows.rescale import known_by_all, require_key, rescaled

__all__ = [
    "rescale",
]


_ROWS = "rescaled"
"""In NEW/windowing, until NEW is whole: what its tasks begin with."""
_CHUNK_ROWS = 1 << 18


def rescale(old: str, new: str, *, tasks: int, spark: SparkSession | None = None) -> None:
    """Make a checkpoint `new` with this number of tasks of the checkpoint `old` of a stopped query of `windowed`, and close `old`.

    Start the same bolt on the same sources with checkpoint `new` afterwards: it goes on where `old` ended, and for each key its
    windows are those that `old` would have fired. It is a query of its own: give it output folders of its own, and let readers
    read both. spark: the session, the active one if left out. Killed at any point, `rescale` is called again with the same
    folders.

    Raises ConfigError for windows that belong to a task (a bolt without `key=`), states that a bolt has put, topologies;
    CheckpointError for an old checkpoint whose query runs, that has a batch half done, or was rescaled, and for a new one that
    is not new; DrainedCheckpointError. Cost: all that the windows hold passes through the driver's memory.
    """
    tasks = checked_tasks(tasks)
    old, new = checked_folder("old", old), checked_folder("new", new)
    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        raise ConfigError("rescale needs a Spark session, and none is active; give spark=session()")
    require_session(session)
    if Folder(session, old).path == Folder(session, new).path:
        raise ConfigError(f"old and new are one folder, {quote(old)}; give the new checkpoint a folder of its own")
    taken = []
    try:
        taken += [take(session, old, make=False), take(session, new, make=False)]
        _rescale(session, old, new, tasks)
    finally:
        for each in taken:
            each.set()


def _rescale(spark: SparkSession, old: str, new: str, tasks: int) -> None:
    definition.refuse_closed(spark, old, rescaled_into=new)
    bolt = _Bolt.of(spark, old)
    require_key(bolt.key, bolt.name)
    _require_new(spark, old, new)
    dealt = _dealt(bolt, _read_tasks(spark, old, bolt), tasks)
    failpoints.hit("before_rescale", 0)
    marker = {"format": 1, "from": Folder(spark, old).path, "tasks": tasks}
    (Folder(spark, new) / "windowing").write(definition.RESCALING_FILE, json.dumps(marker).encode())
    definition.query_id(spark, new)
    _write_state(spark, new, dealt)
    failpoints.hit("after_rescaled_state", 0)
    _write_logs(spark, old, new)
    control_folder(spark, new).make()
    home = Folder(spark, new) / "windowing"
    home.write(definition.FILE, json.dumps({**bolt.definition, "tasks": tasks}, indent=1, sort_keys=True).encode())
    failpoints.hit("after_rescaled_logs", 0)
    closing = {"format": 1, "to": Folder(spark, new).path}
    (Folder(spark, old) / "windowing").write(definition.RESCALED_FILE, json.dumps(closing).encode())
    failpoints.hit("after_rescale", 0)
    home.delete(_ROWS)
    home.delete(definition.RESCALING_FILE)


def _require_new(spark: SparkSession, old: str, new: str) -> None:
    """Refuse a folder that holds anything but what a `rescale` from `old` has left; empty it."""
    folder = Folder(spark, new)
    names = folder.names()
    if not names:
        return
    home = folder / "windowing"
    if not home.exists(definition.RESCALING_FILE):
        raise CheckpointError(
            f"{new} is not empty: it holds {', '.join(names[:5])}; give the new checkpoint a new folder"
        )
    source = definition.owner_field(home, definition.RESCALING_FILE, "from")
    if source != Folder(spark, old).path:
        raise CheckpointError(
            f"{new} holds what a rescale from {source} has left; give the new checkpoint a new folder"
        )
    for name in names:
        if name != "windowing":
            folder.delete(name)
    for name in home.names():
        if name != definition.RESCALING_FILE:
            home.delete(name)


# -- The old checkpoint ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bolt:
    """What a checkpoint says of the bolt that it is of."""

    name: str
    key: tuple[str, ...]
    grouping: tuple[str, ...]
    columns: Mapping[str, str]
    tasks: int
    definition: Definition

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str) -> _Bolt:
        found = definition.stored_whole(spark, checkpoint)
        if "bolt" not in found:
            kind = "a Trident topology" if "trident" in found else "a topology"
            raise ConfigError(
                f"checkpoint {checkpoint} is that of {kind}, whose tasks cannot be dealt out anew: only those of windowed() can; "
                "keep its number of tasks, or drain it and start with a new checkpoint"
            )
        fixed = found["bolt"]["fixed"]
        name = fixed["name"]
        if fixed.get("stateful"):
            raise ConfigError(
                f"bolt {name!r} keeps a state of its own (init_state), whose keys do not tell their task; keep its number of "
                "tasks, or drain it and start with a new checkpoint"
            )
        pending = definition.pending_batch(spark, checkpoint)
        if pending is not None:
            raise CheckpointError(
                f"batch {pending} of checkpoint {checkpoint} is half done; start its query once, which makes it again, and stop it"
            )
        if definition.last_batch(spark, checkpoint) is None:
            raise CheckpointError(
                f"checkpoint {checkpoint} has no batch: there is nothing to deal out; start with tasks= on a new checkpoint"
            )
        grouping = found["grouping"]
        key = tuple(fixed["key"] or ())
        if key and isinstance(grouping, str):
            raise ConfigError(
                f'bolt {name!r} has grouping="{grouping}": all rows go to one task; keep it, or start with a new checkpoint'
            )
        columns = {column: kind for column, kind, _ in next(iter(found["inputs"].values()))}
        return cls(name, key, tuple(grouping), columns, found["tasks"], found)

    def task_of(self, tasks: int) -> Callable[[Any], int]:
        """Return what gives the task of a key, of so many."""
        types = tuple(Schema.parse(f"field {self.columns[column]}").types[0] for column in self.grouping)
        chosen = [self.key.index(column) for column in self.grouping]

        def task(key: Any) -> int:
            values = key if len(self.key) > 1 else (key,)
            return key_hash(types, tuple(values[at] for at in chosen)) % tasks

        return task


@dataclass(frozen=True)
class _Task:
    """One task of the old checkpoint: its executor as it was stored, and its tuples."""

    number: int
    stored: StoredTask
    executor: dict[str, Any]
    tuples: pa.Table | None


def _read_tasks(spark: SparkSession, checkpoint: str, bolt: _Bolt) -> list[_Task]:
    labels = task_labels(spark, bolt.tasks, bolt.tasks)
    metadata = {row.key.label: bytes(row.value.data) for row in _state(spark, checkpoint, "metadata").toLocalIterator()}
    chunks: dict[int, dict[bytes, bytes]] = {}
    for row in _state(spark, checkpoint, "chunks").toLocalIterator():
        chunks.setdefault(row.key.label, {})[bytes(row.user_map_key.id)] = bytes(row.user_map_value.data)
    found = []
    for task, label in enumerate(labels):
        if label not in metadata:
            continue
        what = f"state of bolt {bolt.name!r}, task {task}"
        stored = StoredTask.of(unframe(META_MAGIC, metadata[label], what), what)
        tuples = ChunkStore(stored.chunks, chunks.pop(label, {}).get, what).read(None)
        found.append(_Task(task, stored, loads(stored.executor or b"", what, _no_row(what)), tuples))
    return found


def _state(spark: SparkSession, checkpoint: str, variable: str) -> DataFrame:
    return spark.read.format("statestore").option("stateVarName", variable).load(literal_path(checkpoint))


def _no_row(what: str) -> Callable[[int], Any]:
    def refuse(number: int) -> Any:
        raise CorruptStateError(f"{what} names row {number}, as only windows with policies of a user's do")

    return refuse


# -- Dealing out -----------------------------------------------------------------------------------------------------------------


def _dealt(bolt: _Bolt, old: Sequence[_Task], tasks: int) -> list[tuple[StoredTask, dict[bytes, bytes]]]:
    """Return the new tasks in order: what each stores, and its chunks by key."""
    rows = NamedRows(tuple(bolt.columns), ("default",))
    for each in old:
        _put_in(each, rows, bolt.key)
    _try_hash(bolt, old)
    executors = rescaled(bolt.key, [each.executor for each in old], tasks, bolt.task_of(tasks), bolt.name)
    tables: list[list[pa.Table]] = [[] for _ in range(tasks)]
    owners: dict[int, list[tuple[int, int, int]]] = {
        each.number: [] for each in old
    }  # (number, new task, new number) of tuples
    for task, executor in enumerate(executors):
        for track in executor["manager"].get("tracks", ()):
            for (source, number), sequence in zip(track.pop("payloads", ()), track.pop("sequences", ()), strict=True):
                owners[source].append((number, task, sequence))
            track.pop("timestamps", None)
    for each in old:
        for task, table in _parted(each.tuples, owners[each.number]):
            tables[task].append(table)
    seen = known_by_all(each.stored.seen for each in old)
    number = sum(each.stored.next_number for each in old)
    return [_stored(executor, found, seen, number) for executor, found in zip(executors, tables, strict=True)]


def _put_in(task: _Task, rows: NamedRows, key: tuple[str, ...]) -> None:
    """Put into a snapshot, which was stored without its tuples, where each of them lies: (task, arrival number)."""
    held: dict[Any, list[tuple[int, int]]] = {}
    if task.tuples is not None:
        keys = rows.keys(task.tuples, (), key)
        stamps, numbers = (task.tuples.column(name).to_pylist() for name in (TIMESTAMP, SEQUENCE))
        for each, at, sequence in zip(keys, stamps, numbers, strict=True):
            held.setdefault(key_of(each), []).append((at, sequence))
    for track in task.executor["manager"].get("tracks", ()):
        if "panes" in track:
            continue
        ordered = sorted(held.pop(key_of(track["key"]), ()))
        track["timestamps"] = [at for at, _ in ordered]
        track["sequences"] = [sequence for _, sequence in ordered]
        track["payloads"] = [(task.number, sequence) for _, sequence in ordered]
    if held:
        raise CorruptStateError(
            f"a chunk holds tuples of key {quote(next(iter(held)))}, of which its task knows nothing"
        )


def _try_hash(bolt: _Bolt, old: Sequence[_Task]) -> None:
    """Refuse keys whose hash here is not Spark's: each has to be found where it is."""
    task_of = bolt.task_of(bolt.tasks)
    for each in old:
        manager = each.executor["manager"]
        for key in manager.get("keys") or [track["key"] for track in manager.get("tracks", ())]:
            if task_of(key_of(key)) != each.number:
                raise ConfigError(
                    f"key {quote(key)} of bolt {bolt.name!r} is in task {each.number}, where its hash is not: keys of "
                    f"{', '.join(bolt.columns[column] for column in bolt.grouping)} cannot be dealt out; keep the number of tasks"
                )


def _parted(tuples: pa.Table | None, dealt: list[tuple[int, int, int]]) -> Iterable[tuple[int, pa.Table]]:
    """Yield the tuples of an old task by new task, under their new numbers."""
    if tuples is None or not dealt:
        return
    numbers, owners, sequences = np.array(sorted(dealt), dtype=np.int64).T
    at = np.searchsorted(numbers, tuples.column(SEQUENCE).to_numpy())
    place = tuples.schema.get_field_index(SEQUENCE)
    tuples = tuples.set_column(place, tuples.schema.field(place), pa.array(sequences[at]))
    for task in np.unique(owners):
        yield int(task), tuples.filter(pa.array(owners[at] == task))


def _stored(
    executor: dict[str, Any], tables: list[pa.Table], seen: list[Any], number: int
) -> tuple[StoredTask, dict[bytes, bytes]]:
    chunks: list[Chunk] = []
    blobs, nonce = {}, os.urandom(8)
    if tables:
        table = pa.concat_tables(tables, promote_options="default").sort_by(
            [(TIMESTAMP, "ascending"), (SEQUENCE, "ascending")]
        )
        for start in range(0, table.num_rows, _CHUNK_ROWS):
            part = table.slice(start, _CHUNK_ROWS).combine_chunks()
            chunk = Chunk(len(chunks), nonce, part.num_rows, [[0, part.num_rows]])
            chunks.append(chunk)
            blobs[chunk.key] = frame(CHUNK_MAGIC, encode_table(part))
    return StoredTask(dumps(executor), chunks, len(chunks), number, seen), blobs


# -- The new checkpoint ----------------------------------------------------------------------------------------------------------


_METADATA, _CHUNK = "metadata", "chunk"


class _FirstTurn:
    """The turn in which a task becomes what it was dealt."""

    def __init__(self, task: int) -> None:
        pass

    def run(self, rows: Sequence[ExchangeRow], stored: Stored, batch: int) -> TaskResult:
        """Store what the rows hold."""
        metadata = next(row.data for row in rows if row.kind == _METADATA)
        return TaskResult(
            [], metadata, {bytes.fromhex(row.stream): row.data or b"" for row in rows if row.kind == _CHUNK}
        )


def _write_state(spark: SparkSession, new: str, dealt: Sequence[tuple[StoredTask, Mapping[bytes, bytes]]]) -> None:
    """Write the state of all tasks, as batch 0 of a query of Spark's."""
    numbering = RowNumbering(0, 1)  # a clock, that none is asked for; nothing reads it
    rows = []
    for task, (stored, chunks) in enumerate(dealt):
        rows.append(numbering.row(task, _METADATA, data=frame(META_MAGIC, stored.body())))
        rows += [numbering.row(task, _CHUNK, key.hex(), data=data) for key, data in chunks.items()]
    path = (Folder(spark, new) / "windowing").of(_ROWS)
    spark.createDataFrame(pa.Table.from_batches([record_batch(rows)])).write.parquet(path)
    labels = task_labels(spark, len(dealt), len(dealt))
    read = spark.readStream.schema(EXCHANGE).parquet(literal_path(path))
    writer = evaluated(read, _FirstTurn, labels).writeStream.format("noop").option("checkpointLocation", new)
    try:
        with settings_of(spark, new, len(dealt)):
            query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except WindowingError:
        raise
    except Exception as problem:  # Spark's, of many classes
        raise CheckpointError(
            f"the state of {new} could not be written: {describe_error(problem)}; mend that and call rescale again, the old "
            "checkpoint is as it was"
        ) from problem


def _write_logs(spark: SparkSession, old: str, new: str) -> None:
    """Give the new checkpoint the sources' places of the old one, in place of those of the query that has written its state."""
    before, after = Folder(spark, old), Folder(spark, new)
    last = definition.last_batch(spark, old)
    version, _, *places = (before / "offsets").read(str(last)).split(b"\n")
    if version != b"v1":
        log = (before / "offsets").of(str(last))
        raise CheckpointError(
            f"{log} has format {quote(version)}, wanted v1, which alone is known here; keep the number of tasks"
        )
    for name in (each for each in (after / "offsets").names() if each.isdigit()):
        of_spark = (after / "offsets").read(name).split(b"\n")[:2]
        (after / "offsets").write(name, b"\n".join([*of_spark, *places]))
    after.delete("sources")
    if before.exists("sources"):
        before.copy("sources", after)
