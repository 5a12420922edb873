"""Effects of the executors of spouts and bolts: what their driver is to do, and what of a batch is counted on its way out.

A batch is (group, attempt): txids are counted in each group of a topology by itself. `message` is whatever carries a `$batch`, a
report or a `$commit`: it comes back once, acked or failed.
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
"""A task as the driver names it: (component, number), say."""


class BatchId(NamedTuple):
    """One attempt at a batch of one group."""

    group: str
    attempt: TransactionAttempt

    def __str__(self) -> str:
        return f"{self.attempt} of {self.group}"


class Begin(NamedTuple):
    """Make what the bolt keeps for this batch."""

    batch: BatchId


class Execute(NamedTuple):
    """Hand the tuples to the bolt, in order. If it raises FailedException, say so by `failed` before the next effect is taken, and
    leave out the rest."""

    batch: BatchId
    items: Sequence[Any]


class Finish(NamedTuple):
    """Finish the batch in the bolt: it has all of it. FailedException as in Execute."""

    batch: BatchId


class Forget(NamedTuple):
    """Throw away what the bolt keeps for this batch; each batch that was begun is forgotten, once."""

    batch: BatchId


class EmitBatch(NamedTuple):
    """Call the spout's emitter. Its tuples go into the topology, each to its targets with the number from `emitted`.

    Where `skip` is a cause they go to the dead letters under the txid and the task instead, in place of what a smaller attempt left
    there, never of a greater. FailedException: say so by `failed`.
    """

    batch: SpoutBatch
    skip: str | None


class Commit(NamedTuple):
    """Call the emitter's `commit`. FailedException: say so by `failed`."""

    attempt: TransactionAttempt


class Succeed(NamedTuple):
    """Call the emitter's `success`."""

    attempt: TransactionAttempt


class Report(NamedTuple):
    """Report to a target how many tuples of the batch were sent to it, anchored to `message`."""

    attempt: TransactionAttempt
    target: TaskKey
    sent: int
    message: Any


class Ack(NamedTuple):
    """Ack the message."""

    message: Any


class Fail(NamedTuple):
    """Fail the message: its batch fails. reported: what is to be seen by whoever looks at the run."""

    message: Any
    cause: str
    reported: BaseException | None = None


class Outgoing:
    """How many tuples of one attempt were sent to each target.

    >>> outgoing = Outgoing(("a", "b"))
    >>> outgoing.number("a"), outgoing.number("a", 3), outgoing.number("a"), outgoing.counts
    (0, 1, 4, {'a': 5, 'b': 0})
    """

    __slots__ = ("counts",)

    def __init__(self, targets: tuple[TaskKey, ...]) -> None:
        self.counts = dict.fromkeys(targets, 0)

    def number(self, target: TaskKey, tuples: int = 1) -> int:
        """Return the number, from 0, of the first of so many tuples for a target. Raises KeyError for one that is unknown."""
        number = self.counts[target]
        self.counts[target] = number + tuples
        return number
