"""Redistribution of the stored state of bolts to other numbers of tasks: a pure function of the content of a checkpoint.

    definition --> StoredPlan --rescaled--> StoredPlan
                       |                        |
    TaskState of each task --------dealt--------+--> TaskState of each new task

    number of tasks    state of the tasks
    unchanged          copied as it is; only the numbers of upstream tasks in its tuples may change
    changed            keyed windows are moved, key by key, to the new task of the key (windows/rescale.py); other state is refused

Laws
- A key is moved to the task of its hash. First, the hash is checked against the tasks that hold the keys now.
- A tuple keeps its roots and its edge, so pending acks are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.codec import CHUNK_MAGIC, dumps, frame, loads, unframe
from windowing.columnar.rows import decode_table, encode_table
from windowing.errors import ConfigError, CorruptStateError, quote
from windowing.execution.compatibility import Definition
from windowing.schema.checks import did_you_mean
from windowing.schema.hashing import hashable, key_hash
from windowing.schema.rows import record_fields, record_of
from windowing.schema.types import Schema
from windowing.spark.acks import EDGE
from windowing.spark.control import checked_tasks
from windowing.spark.exchange import TASK
from windowing.spark.rows import INPUT, NamedRows
from windowing.spark.state import SEQUENCE, TIMESTAMP, ChunkStore, StoredTask, holds_ids, with_keys
from windowing.windows.deduplicator import Deduplicator
from windowing.windows.key_state import one_nan, positions_by_key, restored_key
from windowing.windows.rescale import TaskOf, require_keyed, rescaled, union_of_ids

KEEP = "keep its number of tasks, or drain it and start with a new checkpoint"


@dataclass(frozen=True)
class StoredBolt:
    """The stored definition of a bolt behind an exchange. level: its depth, from 0.

    inputs: for each stream it reads, in order: the name, the grouping fields or the kind of grouping, and the fields with their
    types. A bolt without state has none. window: the fixed part of its window definition.
    """

    name: str
    level: int
    tasks: int
    inputs: tuple[tuple[str, tuple[str, ...] | str, Mapping[str, str]], ...]
    window: Mapping[str, Any] | None
    stateful: bool
    identifies: bool

    @property
    def key(self) -> tuple[str, ...]:
        return tuple((self.window or {}).get("key") or ())

    @property
    def upstream(self) -> list[str]:
        """The component of each stream that it reads."""
        return [stream.rpartition(":")[0] for stream, *_ in self.inputs]

    def require_dealt(self) -> None:
        """Raise ConfigError if its state cannot be moved between tasks."""
        if self.stateful:
            raise ConfigError(
                f"bolt {self.name!r} keeps a state of its own (init_state), whose keys do not tell their task; {KEEP}"
            )
        if self.window is None:
            return
        policies = self.window.get("eviction"), self.window.get("trigger")
        require_keyed(self.key, policies != (None, None), f"bolt {self.name!r}", KEEP)
        for number, (stream, grouping, _) in enumerate(self.inputs):
            if isinstance(grouping, str):
                raise ConfigError(
                    f'bolt {self.name!r} has grouping="{grouping}", which does not follow its key= (stream {stream}); {KEEP}'
                )
            if not {*grouping} <= {*self.key} or self._hashed(number) != self.hashed:
                raise ConfigError(
                    f"bolt {self.name!r} groups {stream} by {', '.join(grouping)}, which is not what its key= "
                    f"({', '.join(self.key)}) tells the same of every stream; {KEEP}"
                )
        for column, kind in self.hashed:
            if _hashed_as(kind) is None:
                raise ConfigError(
                    f"bolt {self.name!r} has its tasks by the hash of column {column!r} ({kind}), which only Spark knows of that "
                    f"type; {KEEP}"
                )

    @property
    def hashed(self) -> list[tuple[str, str | None]]:
        """The fields whose hash selects the task of a tuple, with their types."""
        return self._hashed(0)

    def _hashed(self, number: int) -> list[tuple[str, str | None]]:
        _, grouping, fields = self.inputs[number]
        return [(name, fields.get(name)) for name in grouping]

    @cached_property
    def task_of(self) -> TaskOf:
        """The function that returns the task of a key, given the number of tasks."""
        types = tuple(str(_hashed_as(kind)) for _, kind in self.hashed)
        chosen = [self.key.index(column) for column, _ in self.hashed]

        def task(key: Any, tasks: int) -> int:
            values = key if len(self.key) > 1 else (key,)
            return key_hash(types, tuple(values[at] for at in chosen)) % tasks

        return task


def _hashed_as(kind: str | None) -> str | None:
    """Return the library type that hashes like this Spark type, None if there is none."""
    if kind == "timestamp_ntz":
        return "timestamp"
    try:
        (known,) = Schema.parse(f"field {kind}").types
    except ConfigError:
        return None
    return known if hashable(known) is None else None


@dataclass(frozen=True)
class StoredPlan:
    """The bolts of a checkpoint in the order of their tasks, its shuffle partitions, its definition."""

    bolts: tuple[StoredBolt, ...]
    partitions: int
    definition: Definition

    @classmethod
    def of(cls, found: Definition) -> StoredPlan:
        """Return the plan of a stored definition of `windowed` or of a topology."""
        if "topology" in found:
            return cls(tuple(_bolts_of(found["topology"])), found["topology"]["partitions"], found)
        fixed, grouping = found["bolt"]["fixed"], found["grouping"]
        by = grouping if isinstance(grouping, str) else tuple(grouping)
        inputs = [(name, by, {column: kind for column, kind, _ in rows}) for name, rows in found["inputs"].items()]
        bolt = StoredBolt(fixed["name"], 0, found["tasks"], tuple(inputs), fixed, bool(fixed.get("stateful")), False)
        return cls((bolt,), found["tasks"], found)

    @property
    def takes_acks(self) -> bool:
        return any(len(spout) > 2 for spout in self.definition.get("topology", {}).get("spouts", ()))

    def rescaled(self, tasks: int | Mapping[str, int], partitions_for: Callable[[int], int]) -> StoredPlan:
        """Return this plan with other numbers of tasks. Raises ConfigError.

        partitions_for: returns the number of shuffle partitions of a topology for the number of tasks at its widest depth.
        """
        wanted = self._wanted(tasks)
        changed = [bolt for bolt in self.bolts if wanted.get(bolt.name, bolt.tasks) != bolt.tasks]
        for bolt in changed:
            bolt.require_dealt()
        for bolt in self.bolts:
            above = next((each.name for each in changed if each.level < bolt.level), None)
            if bolt.identifies and above is not None:
                raise ConfigError(
                    f"bolt {bolt.name!r} knows tuples again by message_id=, unique in each task upstream, and {above!r} above it "
                    "would have others; keep its number of tasks, or drain the checkpoint and start with a new one"
                )
        bolts = tuple(replace(bolt, tasks=wanted.get(bolt.name, bolt.tasks)) for bolt in self.bolts)
        if "topology" not in self.definition:
            return StoredPlan(bolts, bolts[0].tasks, {**self.definition, "tasks": bolts[0].tasks})
        widest = max((sum(bolt.tasks for bolt in level) for level in by_level(bolts)), default=1)
        width = partitions_for(widest)
        of_topology = self.definition["topology"]
        numbers = {bolt.name: bolt.tasks for bolt in bolts}
        levels = [[[name, {**of, "tasks": numbers[name]}] for name, of in level] for level in of_topology["levels"]]
        topology = {**of_topology, "levels": levels, "partitions": width}
        return StoredPlan(bolts, width, {**self.definition, "topology": topology})

    def _wanted(self, tasks: int | Mapping[str, int]) -> Mapping[str, int]:
        names = [bolt.name for bolt in self.bolts]
        if not isinstance(tasks, Mapping):
            if "topology" not in self.definition:
                return {names[0]: checked_tasks(tasks)}
            raise ConfigError(
                f"tasks is {tasks}, but the checkpoint is that of a topology: say whose, tasks={{{names[0] if names else 'id'!r}: "
                f"{tasks}}}; bolts behind an exchange are {', '.join(names) or 'none'}"
            )
        for name, number in tasks.items():
            if name not in names:
                raise ConfigError(
                    f"tasks names {quote(name)}, which is no bolt behind an exchange; {did_you_mean(str(name), names)}. A spout, "
                    "or a bolt that keeps nothing and that no grouping sends to a certain task, may have any number at any start"
                )
            checked_tasks(number)
        return tasks


def _bolts_of(topology: Definition) -> Iterable[StoredBolt]:
    for level, components in enumerate(topology["levels"]):
        for name, each in components:
            inputs = [
                (
                    stream,
                    tuple(by["fields"]) if by["kind"] == "fields" else str(by["kind"]),
                    {kind[0]: kind[1] for kind in of},
                )
                for stream, by, of in each["inputs"]
            ]
            identifies = bool((topology["free"].get(name) or {}).get("message_id"))
            yield StoredBolt(name, level, each["tasks"], tuple(inputs), each["window"], each["stateful"], identifies)


def by_level(bolts: Iterable[StoredBolt]) -> list[list[StoredBolt]]:
    """Return the bolts by depth; the bolts of one depth are one stateful operator of Spark."""
    found: dict[int, list[StoredBolt]] = {}
    for bolt in bolts:
        found.setdefault(bolt.level, []).append(bolt)
    return [found[level] for level in sorted(found)]


def has_states(bolts: Iterable[StoredBolt]) -> bool:
    """Return whether one of the bolts of a depth has a state, as `ExecutionPlan.has_states_at` does for the query's own plan: then
    the operator has a variable for the values.
    """
    return any(bolt.stateful for bolt in bolts)


@dataclass(frozen=True)
class TaskState:
    """The state that Spark stores for a task: see operator.py."""

    metadata: bytes | None
    chunks: Mapping[bytes, bytes]
    values: Mapping[bytes, bytes]


class _Task(NamedTuple):
    """One task of the old checkpoint that has run: its executor, its tuples, their positions by key. what: names it in errors."""

    what: str
    state: TaskState
    stored: StoredTask
    executor: dict[str, Any]
    tuples: pa.Table | None
    positions: Mapping[Any, list[int]]

    def ids_of(self, field: str) -> list[Any]:
        """Return the message ids of a field as plain data without blocks."""
        known = Deduplicator(self.what)
        self.stored.restore_ids(known, field, self.state.chunks.get, self.what)
        return known.plain()


def _old_task(what: str, key: tuple[str, ...], state: TaskState) -> _Task | None:
    """Return a task of the old checkpoint, None for one that has not run. Raises CorruptStateError."""
    if state.metadata is None:
        return None
    stored = StoredTask.of(state.metadata, what)
    tuples = ChunkStore(stored.chunks, state.chunks.get, what).read(None)
    positions = positions_by_key(() if tuples is None else map(_hashable, _keys(tuples, key)))
    executor = loads(stored.executor or b"", what, record_of)
    manager = executor["manager"]
    if stored.keys is not None:
        with_keys(manager, stored.keys, what)
    unknown = {**positions}
    for track in manager.get("tracks", ()):
        if "panes" not in track:  # those of values are in the snapshot
            track["timestamps"] = unknown.pop(restored_key(track["key"]), ())
    if unknown:
        raise CorruptStateError(
            f"{what}: a chunk holds tuples of key {quote(next(iter(unknown)))}, of which its task knows nothing; put the "
            "checkpoint back from a copy"
        )
    return _Task(what, state, stored, executor, tuples, positions)


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list | tuple) else one_nan(key)


# -- Redistribution --------------------------------------------------------------------------------------------------------------


def dealt(old: StoredPlan, new: StoredPlan, states: Mapping[str, list[TaskState]]) -> list[TaskState]:
    """Return the states of all new tasks, by number."""
    numbers = {bolt.name: bolt.tasks for bolt in new.bolts}
    changed = {bolt.name: numbers[bolt.name] for bolt in old.bolts if bolt.tasks != numbers[bolt.name]}
    found: list[TaskState] = []
    for bolt in old.bolts:
        of_bolt = states[bolt.name]
        if bolt.name in changed:
            renumbered = partial(_from_tasks, bolt=bolt, changed=changed)
            called = f"bolt {bolt.name!r}"
            found += redistributed(of_bolt, changed[bolt.name], bolt.key, bolt.task_of, called, KEEP, renumbered)
        else:
            found += [_renumbered(bolt, task, state, changed) for task, state in enumerate(of_bolt)]
    return found


def _renumbered(bolt: StoredBolt, task: int, state: TaskState, changed: Mapping[str, int]) -> TaskState:
    """Return the unchanged state of a task, with the current numbers of upstream tasks in its tuples."""
    if state.metadata is None or changed.keys().isdisjoint(bolt.upstream):
        return state
    what = f"state of bolt {bolt.name!r}, task {task}"
    chunks = {}
    for key, data in state.chunks.items():
        if holds_ids(key):
            chunks[key] = data
            continue
        table = decode_table(unframe(CHUNK_MAGIC, data, what))
        chunks[key] = frame(CHUNK_MAGIC, encode_table(_from_tasks(table, bolt, changed)))
    return replace(state, chunks=chunks)


def _from_tasks(tuples: pa.Table, bolt: StoredBolt, changed: Mapping[str, int]) -> pa.Table:
    """Return stored tuples with valid numbers of upstream tasks; a window does not depend on which of them a tuple came from."""
    for number, component in enumerate(bolt.upstream):
        if component in changed and INPUT in tuples.column_names:
            tasks = tuples.column(TASK).to_numpy()
            mine = tuples.column(INPUT).to_numpy() == number
            place = tuples.schema.get_field_index(TASK)
            now = pa.array(np.where(mine, tasks % changed[component], tasks), tuples.schema.field(place).type)
            tuples = tuples.set_column(place, tuples.schema.field(place), now)
    return tuples


def redistributed(
    states: Sequence[TaskState],
    tasks: int,
    key: tuple[str, ...],
    task_of: TaskOf,
    called: str,
    keep: str,
    renumbered: Callable[[pa.Table], pa.Table] = lambda tuples: tuples,
) -> list[TaskState]:
    """Return the states of `tasks` tasks with the windows of the old ones. key: the fields of the key=; called, keep: see
    windows/rescale.py; renumbered: gives tuples the numbers of their upstream tasks.
    """
    old = [_old_task(f"state of {called}, task {number}", key, state) for number, state in enumerate(states)]
    found = [each for each in old if each is not None]
    if not found:
        return [TaskState(None, {}, {})] * tasks
    executors = rescaled([each and each.executor for each in old], tasks, task_of, called, keep)
    for executor in executors:
        for track in executor["manager"].get("tracks", ()):
            track.pop("timestamps", None)
    tables: list[list[pa.Table]] = [[] for _ in range(tasks)]
    first = 0  # the numbers of a task's tuples follow those of the tasks before it, as in their executors
    for each in found:
        if each.tuples is not None:
            owners = np.empty(each.tuples.num_rows, np.int64)
            for value, positions in each.positions.items():
                owners[positions] = task_of(value, tasks)
            place = each.tuples.schema.get_field_index(SEQUENCE)
            numbers = pc.add(each.tuples.column(SEQUENCE), first)
            tuples = renumbered(each.tuples.set_column(place, SEQUENCE, numbers))
            for task in np.unique(owners):
                tables[task].append(tuples.filter(pa.array(owners == task)))
        first += each.executor["manager"].get("sequence", 0)
    seen_of = next((each.stored.seen_of for each in found if each.stored.seen_of), "")
    seen = union_of_ids(each.ids_of(seen_of) for each in found)
    number = sum(each.stored.next_number for each in found)
    failed = {edge for each in found for edge in each.stored.failed}
    return [
        _stored(executor, parts, number, seen, seen_of, failed)
        for executor, parts in zip(executors, tables, strict=True)
    ]


def _keys(tuples: pa.Table, key: tuple[str, ...]) -> Iterable[Any]:
    rows = NamedRows(key)
    if INPUT not in tuples.column_names:
        return rows.keys(tuples, (), key)
    found: list[Any] = [None] * tuples.num_rows
    inputs = tuples.column(INPUT).to_numpy()
    for number in np.unique(inputs):
        at = np.flatnonzero(inputs == number)
        own = tuples.select([f"{number}.{name}" for name in key]).rename_columns(list(key)).take(pa.array(at))
        for position, value in zip(at.tolist(), rows.keys(own, (), key), strict=True):
            found[position] = value
    return found


def _stored(
    executor: dict[str, Any], tables: list[pa.Table], number: int, seen: list[Any], seen_of: str, failed: set[int]
) -> TaskState:
    """Return the state of a new task in the form in which a turn stores it."""
    tuples = pa.concat_tables(tables, promote_options="default") if tables else None
    if tuples is not None:  # a column that the first tables lack comes last
        tuples = tuples.select(sorted(tuples.column_names, key=(TIMESTAMP, SEQUENCE).__contains__))
    held = np.empty(0, np.int64) if tuples is None else tuples.column(SEQUENCE).to_numpy()
    store = ChunkStore()
    chunks = store.write(tuples, held, 0)
    own = failed.intersection(tuples.column(EDGE).to_pylist()) if failed and tuples is not None else ()
    stored = StoredTask(dumps(executor, record_fields), chunks, len(chunks), number, seen, seen_of=seen_of, failed=own)
    return TaskState(stored.stored(), store.puts, {})
