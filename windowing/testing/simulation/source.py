"""Source: the rows that the spouts of a run read, from partitions without end, and what a topology makes of them.

    partition x   x0 x1 x2 x3 ...      a batch of it is [start, end), how long is chance; its metadata is [start, end]

Every row has a key and a weight, given by its name alone: a state is right if each of its keys has the sum of the right weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from windowing.testing.simulation.scenario import Fault
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)

if TYPE_CHECKING:
    from windowing.testing.simulation.world import World

__all__ = ["Add", "Row", "Source", "Tuples", "key_of"]


class Row(NamedTuple):
    """A row of the source: the partition's number and the place in it."""

    partition: int
    place: int

    @property
    def weight(self) -> int:
        """What it adds to its key; sums of different rows differ, most of them."""
        return (self.partition * 40_503 + self.place * 2_654_435_761) % 99_991 + 1

    def key(self, keys: int) -> int:
        """Which key it belongs to."""
        return (self.partition + self.place) % keys


def key_of(number: int) -> tuple[str]:
    """Return a key as states have it."""
    return (f"k{number}",)


class Add:
    """The updater: adds a weight."""

    def __init__(self, weight: int) -> None:
        self.weight = weight

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.weight


class Tuples:
    """The user's spout of single tuples, one task: those of a queue that outlives it, each until it is acked."""

    def __init__(self, world: World, task: int) -> None:
        self._world = world
        self._task = task
        self._queue = world.queues.setdefault(task, [])
        self._flying: set[Row] = set()
        self._collector: Any = None

    def open(self, context: Any, collector: Any) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        if self._world.chance.random() < 0.2:
            return
        row = next((row for row in self._queue if row not in self._flying), None)
        if row is None:
            row = Row(self._task, self._world.rows_made)
            self._world.rows_made += 1
            self._queue.append(row)
        self._flying.add(row)
        self._collector.emit(row, message_id=row)

    def ack(self, row: Row) -> None:
        self._world.checks.heard(row)
        if row in self._queue:
            self._queue.remove(row)

    def fail(self, row: Row) -> None:
        self._flying.discard(row)

    def close(self) -> None:
        """Nothing: the queue stays."""


class Source(PartitionedCoordinator, PartitionedEmitter, IPartitionedTridentSpout, IOpaquePartitionedTridentSpout):
    """The user's spout of one task: coordinator and emitter in one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._scenario = world.scenario
        self._names = [chr(ord("x") + number) for number in range(world.scenario.partitions)]

    def get_coordinator(self) -> Source:
        return self

    def get_emitter(self) -> Source:
        return self

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= self._scenario.batches else Readiness.ENDED

    def get_partitions_for_batch(self) -> list[str]:
        names = self._names
        if len(names) > 1 and self._world.luck(Fault.MOVES, 0.3):
            names = names[1:] + names[:1]
        return names

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        metadata = [start, start + self._world.chance.randint(0, self._scenario.max_rows)]
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        number, (start, end) = ord(partition) - ord("x"), metadata
        for place in range(start, end):
            collector.emit(Row(number, place))
