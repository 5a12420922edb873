"""TrackedBatch: what has come of one attempt at one batch, and what is still missing; CoordSpec: what there is to wait for.

RECEIVING --all reports and tuples of the batch phase--> ARRIVED --commit, all of the commit phase--> FINISHED
    +-----------------------------------------------------+--- a failure, a timeout, a greater attempt ---> FAILED
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from windowing.errors import ConfigError, shown
from windowing.transactions.batch_effects import Batch, Outgoing, Task

__all__ = ["CoordSpec", "Incoming", "Phase", "Stage", "TrackedBatch"]


class CoordSpec:
    """What a task waits for in one group of batches, and whom it tells.

    reports: the upstream tasks that report while the batch is processed. commits: whether it is finished at the commit.
    commit_reports: upstream tasks that finish at the commit themselves. targets: the downstream tasks.
    """

    __slots__ = ("commit_reports", "commits", "reports", "targets")

    def __init__(
        self,
        reports: Iterable[Task] = (),
        *,
        commits: bool = False,
        commit_reports: Iterable[Task] = (),
        targets: Iterable[Task] = (),
    ) -> None:
        self.reports = frozenset(reports)
        self.commit_reports = frozenset(commit_reports)
        self.commits = commits
        self.targets = tuple(targets)
        if not self.reports and not self.commit_reports:
            raise ConfigError(
                "a bolt of batches needs an upstream task that reports, got none; a spout has an executor of its own"
            )
        if both := self.reports & self.commit_reports:
            raise ConfigError(f"{shown(sorted(map(str, both)))} report in both phases; a task reports once for a batch")

    @property
    def waits(self) -> bool:
        """Whether a batch is finished at its commit and not before."""
        return self.commits or bool(self.commit_reports)


class Incoming:
    """The tuples of one upstream task: those below `next` came, and those in `ahead`. `sent` is what it reported.

    >>> came = Incoming()
    >>> came.take(0, "ab"), came.take(3, "d"), came.take(1, "bcd"), came.received
    ('ab', ['d'], ['c'], 4)
    """

    __slots__ = ("ahead", "next", "sent")

    def __init__(self) -> None:
        self.next = 0
        self.ahead: set[int] = set()
        self.sent: int | None = None

    def take(self, first: int, items: Sequence[Any]) -> Sequence[Any]:
        """Take note of the tuples `first`, `first` + 1, ...; return those that came for the first time. Cost: O(1) in order."""
        if first == self.next and not self.ahead:
            self.next += len(items)
            return items
        return [item for number, item in enumerate(items, first) if self._take(number)]

    def _take(self, number: int) -> bool:
        if number < self.next or number in self.ahead:
            return False
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return True

    @property
    def received(self) -> int:
        return self.next + len(self.ahead)

    @property
    def complete(self) -> bool:
        """Whether all tuples that were reported have come."""
        return self.sent == self.next and not self.ahead


class Stage(Enum):
    """See the drawing."""

    RECEIVING = "receiving"
    ARRIVED = "arrived"
    FINISHED = "finished"
    FAILED = "failed"


class Phase(Enum):
    """While a batch is processed, and at its commit. One message is held in each, so that its tree stays open."""

    BATCH = "batch"
    COMMIT = "commit"


class TrackedBatch:
    """One attempt. `cause` is why it failed, or is about to."""

    __slots__ = ("_held", "batch", "cause", "committing", "deadline_ms", "incoming", "outgoing", "spec", "stage")

    def __init__(self, batch: Batch, spec: CoordSpec, deadline_ms: int) -> None:
        self.batch = batch
        self.spec = spec
        self.deadline_ms = deadline_ms
        self.stage = Stage.RECEIVING if spec.reports else Stage.ARRIVED
        self.incoming = {task: Incoming() for task in (*spec.reports, *spec.commit_reports)}
        self.outgoing = Outgoing(spec.targets)
        self.committing = False
        self.cause = ""
        self._held: dict[Phase, Any] = {}

    def input_of(self, sender: Task) -> Incoming:
        """Return what came of an upstream task. Raises ConfigError for one that was not declared."""
        if sender not in self.incoming:
            known = ", ".join(sorted(map(shown, self.incoming)))
            raise ConfigError(
                f"{shown(sender)} sent a part of batch {self.batch}, the upstream tasks are {known}; declare it"
            )
        return self.incoming[sender]

    def has_arrived(self) -> bool:
        """Whether all of the batch phase is here."""
        return all(self.incoming[task].complete for task in self.spec.reports)

    def is_to_finish(self) -> bool:
        """Whether an arrived batch has all that its commit phase needs too."""
        if self.spec.commits and not self.committing:
            return False
        return all(self.incoming[task].complete for task in self.spec.commit_reports)

    def hold_report(self, sender: Task, message: Any) -> bool:
        """Hold the message of a report until its phase is over; return False if another is held, or will be: a commit."""
        phase = Phase.COMMIT if sender in self.spec.commit_reports else Phase.BATCH
        if phase in self._held or (phase is Phase.COMMIT and self.spec.commits):
            return False
        self._held[phase] = message
        return True

    def hold_commit(self, message: Any) -> None:
        """Hold the message of a commit until it is done."""
        self.committing = True
        self._held[Phase.COMMIT] = message

    def release(self, phase: Phase) -> list[Any]:
        """Return the message that is held for a phase, and hold it no more; nothing if there is none."""
        return [self._held.pop(phase)] if phase in self._held else []

    def missing(self) -> str:
        """Say what has not come."""
        open_tasks = [task for task, came in self.incoming.items() if not came.complete]
        if not open_tasks:
            return "its commit did not come"
        return f"not all has come from {', '.join(sorted(map(shown, open_tasks)))}"

    def check(self) -> None:
        """Assert what "correct" means."""
        ended = self.stage in (Stage.FINISHED, Stage.FAILED)
        # What has ended holds nothing, and a cause ends it.
        assert not (ended and self._held)
        assert (self.stage is Stage.FAILED) == bool(self.cause)
        # A bolt that waits for the commit holds no message of the batch phase once all of it is here.
        assert self.stage is Stage.RECEIVING or not self.spec.waits or Phase.BATCH not in self._held
        # What has arrived has arrived, and has not finished without its commit.
        assert self.stage not in (Stage.ARRIVED, Stage.FINISHED) or self.has_arrived()
        assert self.stage is not Stage.FINISHED or self.is_to_finish()
        assert not (self.stage is Stage.ARRIVED and self.is_to_finish())
