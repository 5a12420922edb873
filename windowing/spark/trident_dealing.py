"""TridentDealing: rescales a Trident checkpoint to other numbers of tasks: the windows of its tasks, and the states they write.

    checkpoint, `before` --> do the states belong to the checkpoint? --> rows into the stores of `after` (trident/rescale.py)
    TaskState of each task with windows --> TaskState of each new one

The checkpoint stores who owns the states; their stores and partitions are known only from the topologies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from windowing.execution import compatibility
from windowing.execution.compatibility import Definition, DefinitionLocation
from windowing.execution.plan import Section, Stage
from windowing.spark import definition
from windowing.spark.dealing import StoredBolt, StoredPlan, TaskState
from windowing.spark.hadoop import Folder
from windowing.spark.trident_stages import kept_windows, stored_windows
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.plan import TridentPlan
from windowing.trident.rescale import begun, moves, windows_of_tasks
from windowing.trident.streams import planned

__all__ = [
    "TridentDealing",
]


class TridentDealing:
    """A rescale of the checkpoint of `topology` to the tasks of `becomes`; found: the stored definition.

    Raises ConfigError for a topology or state that cannot be rescaled, DefinitionChangedError if a topology is not that of the
    checkpoint, SupersededError and CorruptStateError if the states are not those of the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        found: Definition,
        topology: Any,
        becomes: Any,
        partitions_for: Callable[[int], int],
    ) -> None:
        self._now, self._becomes = planned(topology, "rescale").by_section(), planned(becomes, "rescale").by_section()
        self._found = found
        path = (Folder(spark, checkpoint) / "windowing").of(definition.FILE)
        for plan, given, way_out in (
            (self._now, "before", "give the topology as it was started on it"),
            (self._becomes, "after", "rescale changes numbers of tasks, and where states lie: leave all else as it is"),
        ):
            stored = plan.stream(found["trident"]["partitions"], found["trident"]["states"])
            wanted = {**found, **(stored if plan is self._now else _renumbered(stored, found))}
            compatibility.compare(
                found, wanted, DefinitionLocation(f"checkpoint {checkpoint}, {given}=", path, way_out)
            )
        self._moves = moves(self._now, self._becomes)
        self.before = StoredPlan(_stages(self._now), found["trident"]["partitions"], found)
        self._partitions = partitions_for(self._becomes.widest)
        self.takes_acks = (Folder(spark, checkpoint) / "windowing").exists("acks")
        committed = (definition.last_batch(spark, checkpoint) or 0) + 1
        life = Life.of(found["trident"]["states"], "")
        owned(life, self._now.written, Progress.unnumbered(f"checkpoint {checkpoint}", committed, False), claims=True)
        self.owner = f"{self._becomes.name} {uuid4().hex}"

    @property
    def after(self) -> StoredPlan:
        """The plan of the new checkpoint."""
        life, _ = begun(self.owner, self._becomes)
        stored = self._becomes.stream(self._partitions, life.plain())
        return StoredPlan(_stages(self._becomes), self._partitions, {**self._found, **stored})

    def dealt(self, states: Mapping[str, list[TaskState]]) -> list[TaskState]:
        """Return the windows of all new tasks, by number."""
        found = []
        for stage, becomes in zip(_with_windows(self._now), _with_windows(self._becomes), strict=True):
            kept = [
                None
                if state.metadata is None
                else kept_windows(state.metadata, f"windows of {stage.component}, task {task}")
                for task, state in enumerate(states[stage.id])
            ]
            for each in windows_of_tasks(self._now, kept, becomes.parallelism):
                found.append(TaskState(None if each is None else stored_windows(each), {}, {}))
        return found

    def move_states(self) -> None:
        """Copy the states into the stores of the new topology, with `owner` as their owner."""
        _, owners = begun(self.owner, self._becomes)
        for move in self._moves:
            move.perform(owners[move.new.id])


def _with_windows(plan: TridentPlan) -> list[Stage]:
    """Return the stages of the stream section behind an exchange, in the order of their tasks."""
    found = [stage for stage in plan.stages.values() if stage.depth and stage.section is Section.STREAM]
    return sorted(found, key=lambda stage: stage.first)


def _stages(plan: TridentPlan) -> tuple[StoredBolt, ...]:
    return tuple(
        StoredBolt(stage.id, stage.depth, stage.parallelism, (), None, False, False) for stage in _with_windows(plan)
    )


def _renumbered(stored: Definition, found: Definition) -> Definition:
    """Return `stored` with the numbers of tasks of `found`."""
    numbers = {component: tasks for component, tasks, _ in found["trident"]["stream"]}
    stream = [
        [component, numbers.get(component, tasks), nodes] for component, tasks, nodes in stored["trident"]["stream"]
    ]
    return {"trident": {**stored["trident"], "stream": stream}}
