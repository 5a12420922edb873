"""Source: the rows that the spouts of a run read, from partitions without end, and what a topology makes of them.

    partition x   x0 x1 x2 x3 ...      a batch of it is [start, end), how long is chance; its metadata is [start, end]

Every row has a key and a weight, given by its name alone: a state is right if each of its keys has the sum of the right weights.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from windowing.testing.simulation.scenario import Fault, Scenario
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)

__all__ = ["Add", "Row", "Source", "key_of"]


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


class Source(PartitionedCoordinator, PartitionedEmitter, IPartitionedTridentSpout, IOpaquePartitionedTridentSpout):
    """The user's spout of one task: coordinator and emitter in one. `read` is what it emitted last, by partition."""

    def __init__(self, scenario: Scenario, chance: Random) -> None:
        self._scenario = scenario
        self._chance = chance
        self._names = [chr(ord("x") + number) for number in range(scenario.partitions)]
        self.read: dict[int, tuple[int, int]] = {}
        self.faulty = True

    def get_coordinator(self) -> Source:
        return self

    def get_emitter(self) -> Source:
        return self

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= self._scenario.batches else Readiness.ENDED

    def get_partitions_for_batch(self) -> list[str]:
        names = self._names
        if Fault.MOVES in self._scenario.faults and self._chance.random() < 0.3:
            names = names[1:] + names[:1]
        return names

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        metadata = [start, start + self._chance.randint(0, self._scenario.max_rows)]
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        number, (start, end) = ord(partition) - ord("x"), metadata
        self.read[number] = start, end
        for place in range(start, end):
            collector.emit(Row(number, place))
