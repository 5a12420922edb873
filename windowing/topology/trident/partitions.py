"""Partitions: where the tuples of a stream go between two groups of nodes, as data; Router does it for one task.

| repartition                | grouping              | tasks of a tuple                                            |
|----------------------------|-----------------------|-------------------------------------------------------------|
| partition_by(fields)       | Fields                | that of its key                                             |
| shuffle, local_or_shuffle  | Shuffle, LocalOrShuffle | the next one, from a start that the batch gives           |
| global_                    | Global                | the first                                                   |
| batch_global               | BatchGlobal           | txid mod tasks: the same for a batch, another for the next  |
| broadcast                  | All                   | every one                                                   |
| partition(function)        | Custom                | what the function of (values, tasks) says                   |
| identity_partition, and between groups | Identity  | the one of the same number                                  |

Laws: (tuples, batch, partition) alone decide, so an attempt that is made again sends each tuple where it went before; the order
of tuples between two tasks stays. Source: Storm's `IndexHashGrouping`, `GlobalGrouping`, `IdentityGrouping`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windowing.errors import WindowingError
from windowing.topology.groupings import Chooser, Grouping
from windowing.topology.schema import Schema
from windowing.topology.trident.fields import Row

__all__ = ["BatchGlobalGrouping", "IdentityGrouping", "Partitioning", "Router"]


@dataclass(frozen=True, slots=True)
class IdentityGrouping:
    """Partition i of the source is partition i of the target; both have as many."""

    def definition(self) -> dict[str, Any]:
        """Return the grouping as plain JSON data."""
        return {"kind": str(self)}

    def __str__(self) -> str:
        return "identity"


@dataclass(frozen=True, slots=True)
class BatchGlobalGrouping:
    """All tuples of a batch go to one partition, those of different batches to different ones."""

    def definition(self) -> dict[str, Any]:
        """Return the grouping as plain JSON data."""
        return {"kind": str(self)}

    def __str__(self) -> str:
        return "batchGlobal"


Partitioning = Grouping | IdentityGrouping | BatchGlobalGrouping


class Router:
    """Sends the tuples of one task across one exchange to `tasks` others.

    >>> from windowing.topology.groupings import FieldsGrouping
    >>> schema = Schema.parse("word string")
    >>> Router(BatchGlobalGrouping(), schema, partition=0, tasks=4).route([("to",), ("be",)], txid=6)
    {2: [('to',), ('be',)]}
    >>> Router(FieldsGrouping(("word",)), schema, partition=0, tasks=2).route([("to",), ("be",), ("to",)], txid=6)
    {1: [('to',), ('be',), ('to',)]}
    """

    def __init__(self, grouping: Partitioning, schema: Schema, partition: int, tasks: int) -> None:
        self._partition, self._tasks = partition, tasks
        self._by_batch = isinstance(grouping, BatchGlobalGrouping)
        self._chooser: Chooser | None = None
        if isinstance(grouping, Grouping):
            self._chooser = grouping.targets(tasks, schema)
        elif isinstance(grouping, IdentityGrouping) and partition >= tasks:
            raise WindowingError(
                f"partition {partition} cannot stay where it is, the other side has {tasks}; an identity partition joins groups of "
                "one parallelism, which a plan gives them"
            )

    def start(self, txid: int) -> list[int]:
        """Return the state of the choices at the start of a batch, for `route` calls that share it."""
        return [] if self._chooser is None else self._chooser.start(self._partition + txid)

    def route(self, rows: list[Row], txid: int, state: list[int] | None = None) -> dict[int, list[Row]]:
        """Return the rows for each task, in their order. Cost: one choice a row; none for an identity or batchGlobal."""
        if not rows:
            return {}
        if self._chooser is None:
            return {txid % self._tasks if self._by_batch else self._partition: rows}
        choices = self.start(txid) if state is None else state
        routed: dict[int, list[Row]] = {}
        for row in rows:
            for task in self._chooser(row, choices):
                routed.setdefault(task, []).append(row)
        return routed
