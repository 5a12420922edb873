"""rescale: creates a checkpoint with other numbers of tasks from the checkpoint of a stopped query.

    OLD/state    --Spark's state reader--> driver: dealing.py --rows--> one batch of the operators --> NEW/state
    OLD/offsets, OLD/sources ----------------------------------------------------------------------------> NEW/offsets, NEW/sources
    of Trident, states in stores --trident/rescale.py--> states under other names, or in other stores

A checkpoint of `windowed` has one bolt; one of a topology has all bolts behind exchanges, depth by depth; one of Trident has the
stages with windows, and the owner of the states; their stores and partitions are known only from the topologies. The state of a
bolt whose number of tasks does not change is copied unchanged. NEW belongs to a new query: its batch 0 is the work of OLD, batch 1
is its own first batch.

Laws
- Spark itself writes its state: a query with one batch, whose operators are those of the later query.
- Until NEW is complete it contains `windowing/rescaling.json`, written first and deleted last; no query starts on it. OLD is
  unchanged until NEW is complete except for that file; then `windowing/rescaled.json` closes OLD, so that no two queries continue
  from the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from windowing.errors import CheckpointError, ConfigError, CorruptStateError, WindowingError, describe_error, quote
from windowing.execution import compatibility
from windowing.execution.compatibility import Definition, DefinitionLocation, batches_in
from windowing.execution.plan import Section
from windowing.schema.checks import spelled
from windowing.spark import failpoints
from windowing.spark.acks import AckLog
from windowing.spark.checkpoint import (
    FILE,
    RESCALED_FILE,
    RESCALING_FILE,
    Checkpoint,
    owner_field,
    partitions_of_new,
    write_owner,
)
from windowing.spark.control import checked_tasks, drain_batch, task_labels, unfinished_drain
from windowing.spark.dealing import StoredBolt, StoredPlan, TaskState, by_level, dealt, has_states, redistributed
from windowing.spark.exchange import EXCHANGE, ExchangeRow, RowNumbering, record_batches
from windowing.spark.hadoop import checked_folder, literal_path
from windowing.spark.operator import Stored, TaskResult, evaluated
from windowing.spark.session import require_session
from windowing.spark.settings import settings_of, take
from windowing.spark.trident_windows import WindowRows, converted, parts_of, stored_parts
from windowing.trident.fence import Life, Owner, Progress, owned
from windowing.trident.plan import TridentPlan
from windowing.trident.rescale import KEEP, StateMove, begun, keys_of_window, moves
from windowing.trident.streams import TridentTopology, planned

_ROWS = "rescaled"
"""Folder in NEW/windowing, until NEW is complete: the initial rows of its tasks."""


@spelled
def rescale(
    old: str,
    new: str,
    *,
    tasks: int | Mapping[str, int] | None = None,
    before: TridentTopology | TridentPlan | None = None,
    after: TridentTopology | TridentPlan | None = None,
    partitions: int | None = None,
    spark: SparkSession | None = None,
) -> None:
    """Create the checkpoint `new` with other numbers of tasks from the checkpoint `old` of a stopped query, and close `old`.

    tasks: the number of tasks of the bolt of `windowed`; for a topology a mapping of bolt ids, and all other bolts keep theirs.
    before, after: for Trident, instead of tasks: the topology as it was started on `old`, and as it will be started on `new`, with
    other parallelism hints or numbers of partitions, and with another name or store for each state, into which its rows are copied.
    partitions: number of shuffle partitions of a topology; default: that of a new checkpoint in this session. spark: the session,
    by default the active one.

    Afterwards start the same bolts on the same sources with checkpoint `new`: the query continues where `old` ended, with the same
    windows and values for each key. It is a new query: give it new output folders, and let readers read both. Queues are read and
    acked as by the old query. If `rescale` is killed at any point, call it again with the same arguments; until it has ended, `old`
    is unchanged.

    Raises ConfigError for a bolt with a new number of tasks whose windows or state belong to a task (no `key=`, `init_state`, a
    grouping that does not follow the key), or a state whose keys do not determine their partition (`partition_persist`);
    DefinitionChangedError for a topology that is not that of `old`; CheckpointError for an old checkpoint whose query runs, that
    has an uncommitted batch, or that was rescaled, and for a new one that is not empty; DrainedCheckpointError. Cost: the state of
    all tasks passes through the driver's memory; states in stores are copied row by row.
    """
    if isinstance(tasks, int):
        checked_tasks(tasks)
    old, new = checked_folder("old", old), checked_folder("new", new)
    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        raise ConfigError("rescale needs a Spark session, and none is active; give spark=session()")
    require_session(session)
    source, target = Checkpoint(session, old), Checkpoint(session, new)
    if source.home.path == target.home.path:
        raise ConfigError(f"old and new are one folder, {quote(old)}; give the new checkpoint a folder of its own")
    with ExitStack() as held:
        for checkpoint in (source, target):
            held.callback(take(checkpoint, make=False).set)
        source.refuse_closed(rescaled_into=target)
        _rescale(source, target, _change_of(source, target, tasks, before, after, partitions))


def _rescale(old: Checkpoint, new: Checkpoint, change: _Change) -> None:
    last = old.last_batch()
    assert last is not None, "the change of a checkpoint without a batch is refused"
    _require_new(old, new)
    old.follow_move()
    after = change.after
    states = change.dealt(_read_states(old, change.before))
    failpoints.hit("before_rescale", 0)
    write_owner(new.own, RESCALING_FILE, {"from": old.home.path, "owner": change.owner})
    new.query_id()
    for move, owner in change.moves:
        move.perform(owner)
    failpoints.hit("after_moved_states", 0)
    _write_state(new, after, states)
    failpoints.hit("after_rescaled_state", 0)
    _write_logs(old, new)
    if change.takes_acks:
        new.continue_from(old)
        AckLog(new.acks).keep(AckLog(old.acks).ledger(last).continued_ledger())
    new.control.make()
    new.write(after.definition)
    failpoints.hit("after_rescaled_logs", 0)
    if old.last_batch() != last:
        raise CheckpointError(
            f"checkpoint {old} has a batch that it had not when rescale began: its query runs; stop that one and call rescale again"
        )
    write_owner(old.own, RESCALED_FILE, {"to": new.home.path})
    failpoints.hit("after_rescale", 0)
    new.own.delete(_ROWS)
    new.own.delete(RESCALING_FILE)


def _require_new(old: Checkpoint, new: Checkpoint) -> None:
    """Raise CheckpointError for a folder with any content but the remains of a `rescale` from `old`; delete these."""
    names = new.home.names()
    if not names:
        return
    if not new.own.exists(RESCALING_FILE):
        if old.own.exists(RESCALED_FILE):
            raise CheckpointError(f"{new} is complete: {old} was rescaled into it; start the query on it")
        begun = new.own.unfinished(RESCALING_FILE)
        if names == ["windowing"] and new.own.names() == begun:  # killed before the marker was written
            for name in begun:
                new.own.delete(name)
            return
        raise CheckpointError(
            f"{new} is not empty: it holds {', '.join(names[:5])}; give the new checkpoint a new folder"
        )
    source = owner_field(new.own, RESCALING_FILE, "from")
    if source != old.home.path:
        raise CheckpointError(
            f"{new} holds what a rescale from {source} has left; give the new checkpoint a new folder"
        )
    for name in names:
        if name != "windowing":
            new.home.delete(name)
    for name in new.own.names():
        if name != RESCALING_FILE:
            new.own.delete(name)


# -- What changes ----------------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """A rescale of a checkpoint. dealt: returns the states of all new tasks, by number, from those of the old tasks by stage.

    Of Trident also the moves of states in stores, each with its new owner, and the id of the life that owns them.
    """

    before: StoredPlan
    after: StoredPlan
    takes_acks: bool
    dealt: Callable[[Mapping[str, list[TaskState]]], list[TaskState]]
    owner: str = ""
    moves: Sequence[tuple[StateMove, Owner]] = ()


def _trident_change(
    old: Checkpoint, new: Checkpoint, found: Definition, before: Any, after: Any, partitions_for: Callable[[int], int]
) -> _Change:
    """Return the rescale of `old` to the tasks of the topology `after`; found: the stored definition.

    Raises ConfigError for a topology or state that cannot be rescaled, DefinitionChangedError if a topology is not that of the
    checkpoint, SupersededError and CorruptStateError if the states are not those of the checkpoint.
    """
    now, becomes = planned(before, "rescale").by_section(), planned(after, "rescale").by_section()
    stored = found["trident"]
    for plan, given, way_out in (
        (now, "before", "give the topology as it was started on it"),
        (becomes, "after", "rescale changes numbers of tasks, and where states lie: leave all else as it is"),
    ):
        wanted = plan.stream(stored["partitions"], stored["states"])
        wanted = {**found, **(wanted if plan is now else _with_tasks(wanted, found))}
        place = DefinitionLocation(f"checkpoint {old}, {given}=", old.own.of(FILE), way_out)
        compatibility.compare(found, wanted, place)
    found_moves = moves(now, becomes)
    committed = (old.last_batch() or 0) + 1
    progress = Progress.unnumbered(f"checkpoint {old}", committed, False)
    owned(Life.of(stored["states"], ""), now.written, progress, claims=True)
    is_begun = new.own.exists(RESCALING_FILE)
    owner = owner_field(new.own, RESCALING_FILE, "owner") if is_begun else f"{becomes.name} {uuid4().hex}"
    life, owners = begun(owner, becomes)
    width = partitions_for(becomes.widest)
    into = StoredPlan(_bolts_of(becomes), width, {**found, **becomes.stream(width, life.plain())})

    def windows_dealt(states: Mapping[str, list[TaskState]]) -> list[TaskState]:
        return [each for bolt in into.bolts for each in _windows_of(now, bolt, states[bolt.name])]

    return _Change(
        StoredPlan(_bolts_of(now), stored["partitions"], found),
        into,
        old.own.exists("acks"),
        windows_dealt,
        owner,
        [(move, owners[move.new.id]) for move in found_moves],
    )


def _windows_of(plan: TridentPlan, bolt: StoredBolt, states: Sequence[TaskState]) -> list[TaskState]:
    """Return the windows of a stage in its new tasks. Raises ConfigError if their number changes and a window has no key."""
    if bolt.tasks == len(states):
        return list(states)
    kept = [
        {} if state.metadata is None else parts_of(state.metadata, f"windows of {bolt.name}, task {task}")
        for task, state in enumerate(states)
    ]
    parts: list[dict[int, bytes]] = [{} for _ in range(bolt.tasks)]
    chunks: list[dict[bytes, bytes]] = [{} for _ in range(bolt.tasks)]
    for number in max(kept, key=len):  # a task that has run has all windows
        key, task_of = keys_of_window(plan, number)
        node, old = plan.processor(number), []
        for state, part in zip(states, (each.get(number) for each in kept), strict=True):
            own = state.chunks
            if isinstance(part, dict):
                stored, own = converted(part, WindowRows(node.inputs[0], records=False))
                part = stored.stored()
            old.append(TaskState(part, own, {}))
        for task, found in enumerate(redistributed(old, bolt.tasks, key, task_of, node.called, KEEP)):
            assert found.metadata is not None
            parts[task][number] = found.metadata
            chunks[task] |= found.chunks
    return [TaskState(stored_parts(of) if of else None, own, {}) for of, own in zip(parts, chunks, strict=True)]


def _bolts_of(plan: TridentPlan) -> tuple[StoredBolt, ...]:
    """Return the stages of the stream section behind an exchange, in the order of their tasks."""
    found = [stage for stage in plan.stages.values() if stage.depth and stage.section is Section.STREAM]
    return tuple(
        StoredBolt(stage.id, stage.depth, stage.parallelism, (), None, False, False)
        for stage in sorted(found, key=lambda stage: stage.first)
    )


def _with_tasks(stored: Definition, found: Definition) -> Definition:
    """Return `stored` with the numbers of tasks of `found`."""
    numbers = {component: tasks for component, tasks, _ in found["trident"]["stream"]}
    stream = [
        [component, numbers.get(component, tasks), nodes] for component, tasks, nodes in stored["trident"]["stream"]
    ]
    return {"trident": {**stored["trident"], "stream": stream}}


# -- The old checkpoint ----------------------------------------------------------------------------------------------------------


def _change_of(
    checkpoint: Checkpoint,
    new: Checkpoint,
    tasks: int | Mapping[str, int] | None,
    before: Any,
    after: Any,
    partitions: int | None,
) -> _Change:
    """Return the rescale of a checkpoint. Raises ConfigError if it cannot be rescaled in this way, CheckpointError."""
    found = checkpoint.definition()
    if found is None:
        missing = checkpoint.own.of(FILE)
        raise CheckpointError(f"{checkpoint} is no checkpoint of this library: there is no {missing}; correct the path")
    is_trident = "trident" in found
    _require_arguments(checkpoint, is_trident, tasks, before, after)
    _require_between_batches(checkpoint)
    partitions_for = partial(partitions_of_new, checkpoint.spark, partitions)
    if is_trident:
        return _trident_change(checkpoint, new, found, before, after, partitions_for)
    if partitions is not None and "topology" not in found:
        raise ConfigError("partitions= is for topologies: a bolt of windowed() has as many as tasks; leave it out")
    assert tasks is not None
    try:
        plan = StoredPlan.of(found)
        rescaled, takes_acks = plan.rescaled(tasks, partitions_for), plan.takes_acks
    except WindowingError:
        raise
    except compatibility.BROKEN as problem:
        path = checkpoint.own.of(FILE)
        raise DefinitionLocation(path, path).unreadable(found, problem) from problem
    return _Change(plan, rescaled, takes_acks, partial(dealt, plan, rescaled))


def _require_arguments(
    checkpoint: Checkpoint, is_trident: bool, tasks: int | Mapping[str, int] | None, before: Any, after: Any
) -> None:
    """Raise ConfigError for the arguments of another kind of query than that of the checkpoint."""
    if is_trident and (tasks is not None or before is None or after is None):
        raise ConfigError(
            f"checkpoint {checkpoint} is that of a Trident topology, whose numbers of tasks are in the topology: give before=, as "
            "it was started, and after=, with the new numbers and with another name or store for each state; leave out tasks="
        )
    if not is_trident and (tasks is None or before is not None or after is not None):
        raise ConfigError(
            f"checkpoint {checkpoint} is none of a Trident topology: give tasks=, the new numbers, and leave out before= and after="
        )


def _require_between_batches(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a batch or a drain is half done, or there was no batch."""
    pending = checkpoint.pending_batch()
    if pending is not None:
        raise CheckpointError(
            f"batch {pending} of checkpoint {checkpoint} is half done; start its query once, which makes it again, and stop it"
        )
    if drain_batch(checkpoint) is not None:  # the new query would read the command, and close its windows
        raise unfinished_drain(checkpoint)
    if checkpoint.last_batch() is None:
        raise CheckpointError(
            f"checkpoint {checkpoint} has no batch: there is nothing to deal out; start with other tasks on a new checkpoint"
        )


def _read_states(checkpoint: Checkpoint, old: StoredPlan) -> dict[str, list[TaskState]]:
    found: dict[str, list[TaskState]] = {}
    # Spark 4.1 reads states only in a process where these have been asked for, by a query or here.
    _ = checkpoint.spark.streams
    levels = by_level(old.bolts)
    if sum(map(str.isdecimal, (checkpoint.home / "state").names())) > len(levels):
        raise CheckpointError(
            f"checkpoint {checkpoint} has the state of operators of Spark in front of its bolts (dropDuplicates, a join), which "
            "rescale cannot move; drain it and start anew, or put them into a query of their own, whose output this one reads"
        )
    for level, bolts in enumerate(levels):
        operator = len(levels) - 1 - level  # Spark numbers operators from the last one
        metadata: dict[int, bytes] = {}
        for row in _state(checkpoint, operator, "metadata").toLocalIterator():
            metadata[row.key.label] = bytes(row.value.data)
        maps: list[dict[int, dict[bytes, bytes]]] = []
        for variable in ("chunks", "values"):
            entries: dict[int, dict[bytes, bytes]] = {}
            if variable == "chunks" or has_states(bolts):
                for row in _state(checkpoint, operator, variable).toLocalIterator():
                    entries.setdefault(row.key.label, {})[bytes(row.user_map_key.id)] = bytes(row.user_map_value.data)
            maps.append(entries)
        labels = iter(task_labels(checkpoint.spark, sum(bolt.tasks for bolt in bolts), old.partitions))
        for bolt in bolts:
            own = [next(labels) for _ in range(bolt.tasks)]
            found[bolt.name] = [TaskState(metadata.pop(each, None), *(of.pop(each, {}) for of in maps)) for each in own]
        if metadata or any(maps):
            raise CorruptStateError(
                f"the state of operator {operator} in checkpoint {checkpoint} has tasks that {', '.join(b.name for b in bolts)} do "
                "not have; put the checkpoint back from a copy"
            )
    return found


def _state(checkpoint: Checkpoint, operator: int, variable: str) -> DataFrame:
    reader = checkpoint.spark.read.format("statestore").option("stateVarName", variable).option("operatorId", operator)
    return reader.load(literal_path(str(checkpoint)))


# -- The new checkpoint ----------------------------------------------------------------------------------------------------------


_METADATA, _CHUNK, _VALUE = "metadata", "chunk", "value"


def _first_turn(task: int, rows: Sequence[ExchangeRow], stored: Stored, batch: int) -> TaskResult:
    """Store the redistributed state of a task, which the rows contain."""
    maps: dict[str, dict[bytes, bytes]] = {
        kind: {bytes.fromhex(row.stream): row.data or b"" for row in rows if row.kind == kind}
        for kind in (_CHUNK, _VALUE)
    }
    metadata = next((row.data for row in rows if row.kind == _METADATA), None)
    return TaskResult([], metadata, maps[_CHUNK], (), maps[_VALUE])


def _write_state(new: Checkpoint, after: StoredPlan, dealt: Sequence[TaskState]) -> None:
    """Write the state of all tasks, as batch 0 of a Spark query."""
    numbering = RowNumbering(0, 1)  # any clock: it is not read
    rows = []
    for task, state in enumerate(dealt):
        if state.metadata is not None:
            rows.append(numbering.row(task, _METADATA, data=state.metadata))
        rows += [numbering.row(task, _CHUNK, key.hex(), data=data) for key, data in state.chunks.items()]
        rows += [numbering.row(task, _VALUE, key.hex(), data=data) for key, data in state.values.items()]
    rows = rows or [numbering.row(-1, _VALUE)]  # Spark runs no batch without a row
    spark, path = new.spark, new.own.of(_ROWS)
    spark.createDataFrame(pa.Table.from_batches(record_batches(rows))).write.parquet(path)
    read = spark.readStream.schema(EXCHANGE).parquet(literal_path(path))
    first = 0
    for bolts in by_level(after.bolts):
        width = sum(bolt.tasks for bolt in bolts)
        labels = task_labels(spark, width, after.partitions)
        read = evaluated(read, _first_turn, labels, first, has_values=has_states(bolts))
        first += width
    writer = read.writeStream.format("noop").option("checkpointLocation", str(new))
    try:
        with settings_of(new, after.partitions):
            query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except WindowingError:
        raise
    except Exception as problem:  # Spark raises many classes
        raise CheckpointError(
            f"the state of {new} could not be written: {describe_error(problem)}; mend that and call rescale again, the old "
            "checkpoint is as it was"
        ) from problem


def _write_logs(old: Checkpoint, new: Checkpoint) -> None:
    """Replace the source offsets of the new checkpoint, which the state-writing query has left, by those of the old one."""
    last = str(old.last_batch())
    version, _, *places = old.offsets.read(last).split(b"\n")
    if version != b"v1":
        raise CheckpointError(
            f"{old.offsets.of(last)} has format {quote(version)}, wanted v1, which alone is known here; keep the number of tasks"
        )
    for name in map(str, batches_in(new.offsets)):
        of_spark = new.offsets.read(name).split(b"\n")[:2]
        new.offsets.write(name, b"\n".join([*of_spark, *places]))
    new.home.delete("sources")
    if old.home.exists("sources"):
        old.home.copy("sources", new.home)
