"""The rules of MasterBatchCoordinator as data: what can become of a batch, what is sent when, what a driver is asked to do.

    waiting --due / $batch--> processing --acked--> processed --its turn / $commit--> committing --acked / $success--> done
       ^                          |                     |                                 |
       +------- failed, or an earlier one failed -------+------------- failed ------------+

Laws: `TRANSITIONS` is all that can happen; `ANSWERS` is what a status waits for, and an answer to anything else is stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from windowing.acking.retry import RetryPolicy
from windowing.errors import ConfigError, shown
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_record import CoordinatorRecord

__all__ = [
    "ANSWERS",
    "TRANSITIONS",
    "AskReady",
    "Cause",
    "CoordinatorConfig",
    "Effect",
    "Emit",
    "OnFailure",
    "Readiness",
    "ReadyWhen",
    "Row",
    "Save",
    "Status",
    "Stop",
    "Stream",
    "mermaid",
    "readiness_of",
]


class Stream(Enum):
    """What the coordinator sends on. The trees of the first two are acked or failed, the last is told only."""

    BATCH = "$batch"
    COMMIT = "$commit"
    SUCCESS = "$success"


class Status(Enum):
    """Where a batch is."""

    WAITING = "waiting"
    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    DONE = "done"


class Cause(Enum):
    """What happens to a batch; ACKED and FAILED are those of what its status waits for."""

    DUE = "due"
    ACKED = "acked"
    TURN = "its turn"
    FAILED = "failed"
    EARLIER_FAILED = "an earlier one failed"


class Row(NamedTuple):
    """What follows: the next status, and what is sent then."""

    then: Status
    sends: Stream | None = None


_WAITING, _PROCESSING, _PROCESSED = Status.WAITING, Status.PROCESSING, Status.PROCESSED
_COMMITTING, _DONE = Status.COMMITTING, Status.DONE

TRANSITIONS: dict[tuple[Status, Cause], Row] = {
    (_WAITING, Cause.DUE): Row(_PROCESSING, Stream.BATCH),
    (_PROCESSING, Cause.ACKED): Row(_PROCESSED),
    (_PROCESSING, Cause.FAILED): Row(_WAITING),
    (_PROCESSING, Cause.EARLIER_FAILED): Row(_WAITING),
    (_PROCESSED, Cause.TURN): Row(_COMMITTING, Stream.COMMIT),
    (_PROCESSED, Cause.EARLIER_FAILED): Row(_WAITING),
    (_COMMITTING, Cause.ACKED): Row(_DONE, Stream.SUCCESS),
    (_COMMITTING, Cause.FAILED): Row(_WAITING),
}

ANSWERS = {_PROCESSING: Stream.BATCH, _COMMITTING: Stream.COMMIT}
"""Whose ack or fail a status waits for. Storm does not tell the two apart, so that a second ack of a batch completes its commit."""


class Readiness(Enum):
    """What a spout's coordinator says when it is asked for a new batch."""

    READY = "ready"
    WAIT = "wait"
    ENDED = "ended"
    """There will never be another one."""


class ReadyWhen(Enum):
    """Whether one spout that is ready is enough for a batch, as in Storm, or all have to be."""

    ANY = "any"
    ALL = "all"


def readiness_of(answers: Iterable[Readiness], when: ReadyWhen) -> Readiness:
    """Return what several spouts say together. Those that have ended hold back nobody.

    >>> readiness_of([Readiness.READY, Readiness.WAIT], ReadyWhen.ALL).name
    'WAIT'
    """
    going = [answer for answer in answers if answer is not Readiness.ENDED]
    if not going:
        return Readiness.ENDED
    enough = any if when is ReadyWhen.ANY else all
    return Readiness.READY if enough(answer is Readiness.READY for answer in going) else Readiness.WAIT


class OnFailure(Enum):
    """What to do with a batch that has failed as often as it may."""

    STOP = "stop"
    SKIP = "skip"
    """Send it once more, with its tuples to the dead letters instead of into the topology."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Frozen. Times are in milliseconds of the driver's clock.

    max_pending: how many batches may be under way. interval_ms: from one `$batch` to the next at least. poll_ms: how long a
    spout that is not ready is left alone. retry: how often and how fast a failed batch is sent again.
    """

    max_pending: int = 1
    interval_ms: int = 500
    poll_ms: int = 50
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    on_failure: OnFailure = OnFailure.STOP
    ready_when: ReadyWhen = ReadyWhen.ANY

    def __post_init__(self) -> None:
        for name, least, way in (
            ("max_pending", 1, "topology.max.spout.pending counts the batches under way"),
            ("interval_ms", 0, "topology.trident.batch.emit.interval.millis is 0 for no throttle"),
            ("poll_ms", 1, "a spout that has nothing to give must not be asked without a pause"),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} is a whole number from {least}, got {shown(value)}; {way}")


class Save(NamedTuple):
    """Make the record durable before the next effect is performed."""

    record: CoordinatorRecord


class AskReady(NamedTuple):
    """Ask the coordinators of all spouts whether there is a batch `txid`, and enter `answered` with what they say."""

    txid: int


class Emit(NamedTuple):
    """Send this; the tree of a `$batch` or `$commit` is acked or failed by its stream and attempt.

    after: what a `$batch` rests on, which is under way; None if all before it is committed. skip: why its tuples shall go to the
    dead letters instead of into the topology, None if they shall not.
    """

    stream: Stream
    attempt: TransactionAttempt
    after: TransactionAttempt | None = None
    skip: str | None = None


class Stop(NamedTuple):
    """A batch has failed too often: end the topology with an error. A new start tries it once more.

    committing: whether a commit of it was begun, so that it is not skipped: some state may hold part of it.
    """

    attempt: TransactionAttempt
    failures: int
    committing: bool
    cause: str

    def __str__(self) -> str:
        where = (
            "a commit of it was begun, so that it cannot be skipped"
            if self.committing
            else "nothing of it is committed"
        )
        return (
            f"batch {self.attempt} failed {self.failures} times, at last because of {self.cause or 'an unknown cause'}; {where}; "
            "repair the cause and start again, or allow more attempts"
        )


Effect = Save | AskReady | Emit | Stop


def mermaid() -> str:
    """Return the table as a mermaid state diagram, for the docs.

    >>> print(mermaid().splitlines()[2].strip())
    waiting --> processing: due / $batch
    """
    lines = ["stateDiagram-v2", f"    [*] --> {_WAITING.value}"]
    for (status, cause), row in TRANSITIONS.items():
        sends = f" / {row.sends.value}" if row.sends else ""
        lines.append(f"    {status.value} --> {row.then.value}: {cause.value}{sends}")
    return "\n".join([*lines, f"    {_DONE.value} --> [*]"])
