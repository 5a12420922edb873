"""The effects of the executors of spouts and bolts, which their driver performs; and the counts of sent tuples.

A batch is (group, attempt), because each batch group numbers its own txids. `message` is the driver's object that carries a
`$batch`, a report or a `$commit`; exactly one Ack or Fail returns it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from windowing.trident.kinds import TransactionAttempt
from windowing.trident.spouts import SpoutBatch

__all__ = [
    "Ack",
    "BatchId",
    "Begin",
    "Commit",
    "EmitBatch",
    "Execute",
    "Fail",
    "Finish",
    "Forget",
    "Outgoing",
    "Report",
    "Succeed",
    "TaskKey",
]


TaskKey = Hashable
"""The driver's id of a task, for example (component, number)."""


class BatchId(NamedTuple):
    """One attempt at a batch of one group."""

    group: str
    attempt: TransactionAttempt

    def __str__(self) -> str:
        return f"{self.attempt} of {self.group}"


class Begin(NamedTuple):
    """Create the bolt's data of this batch."""

    batch: BatchId


class Execute(NamedTuple):
    """Pass the tuples to the bolt, in order. If it raises FailedException, skip the rest and call `failed` before taking the next
    effect."""

    batch: BatchId
    items: Sequence[Any]


class Finish(NamedTuple):
    """Finish the batch in the bolt, after all its tuples. FailedException as in Execute."""

    batch: BatchId


class Forget(NamedTuple):
    """Discard the bolt's data of this batch; each batch that was begun gets exactly one Forget."""

    batch: BatchId


class EmitBatch(NamedTuple):
    """Call the spout's emitter. Its tuples go into the topology, each to its targets with the number from `emitted`.

    If `skip` is a cause, the tuples go to the dead letters instead, under the txid and the task; they replace those of a smaller
    attempt, never those of a greater one. On FailedException call `failed`.
    """

    batch: SpoutBatch
    skip: str | None


class Commit(NamedTuple):
    """Call the emitter's `commit`. On FailedException call `failed`."""

    attempt: TransactionAttempt


class Succeed(NamedTuple):
    """Call the emitter's `success`."""

    attempt: TransactionAttempt


class Report(NamedTuple):
    """Report to a target the number of tuples of the batch that were sent to it, anchored to `message`."""

    attempt: TransactionAttempt
    target: TaskKey
    sent: int
    message: Any


class Ack(NamedTuple):
    """Ack the message."""

    message: Any


class Fail(NamedTuple):
    """Fail the message, and with it its batch. reported: an error to add to the result of the run."""

    message: Any
    cause: str
    reported: BaseException | None = None


class Outgoing:
    """The number of tuples of one attempt that were sent to each target.

    >>> outgoing = Outgoing(("a", "b"))
    >>> outgoing.number("a"), outgoing.number("a", 3), outgoing.number("a"), outgoing.counts
    (0, 1, 4, {'a': 5, 'b': 0})
    """

    __slots__ = ("counts",)

    def __init__(self, targets: tuple[TaskKey, ...]) -> None:
        self.counts = dict.fromkeys(targets, 0)

    def number(self, target: TaskKey, tuples: int = 1) -> int:
        """Return the number, from 0, of the first of `tuples` tuples for a target. Raises KeyError for an unknown target."""
        number = self.counts[target]
        self.counts[target] = number + tuples
        return number
