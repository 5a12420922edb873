"""What a spout of batches is: five kinds, from a function of the txid to partitions with offsets.

    Spout (topology/)                 tuples one by one, with ack and fail              NON_TRANSACTIONAL
    IBatchSpout                       rows of a txid                                    as it says
    ITridentSpout                     a coordinator makes metadata, emitters read it    as it says
    ICommitterTridentSpout            the same, and the emitters hear of the commit     as it says
    IPartitionedTridentSpout          per partition, from metadata to metadata          TRANSACTIONAL
    IOpaquePartitionedTridentSpout    the same; a replay may hold other rows            OPAQUE

Each becomes an ITridentSpout: by RichSpoutBatchExecutor, BatchSpoutExecutor (batch_spouts.py), as it is, as it is, and by
PartitionedTridentSpoutExecutor, OpaquePartitionedTridentSpoutExecutor (partitioned.py). `kind` is a promise that nobody can check:
kinds.py says what it is worth. Metadata is plain data. Source: Storm's interfaces of the same names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from windowing.transactions.aggregators import TridentCollector
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.transactional_state import TransactionalState

__all__ = [
    "BatchCoordinator",
    "CommitterEmitter",
    "Emitter",
    "IBatchSpout",
    "ICommitterTridentSpout",
    "IOpaquePartitionedTridentSpout",
    "IPartitionedTridentSpout",
    "ITridentSpout",
    "OpaquePartitionedEmitter",
    "PartitionedCoordinator",
    "PartitionedEmitter",
    "SpoutBatch",
    "SpoutContext",
]


class SpoutBatch(NamedTuple):
    """What is to be emitted. after: the attempt that it rests on and that is under way; None if all before it is committed."""

    attempt: TransactionAttempt
    metadata: Any = None
    after: TransactionAttempt | None = None


def _unheard(error: BaseException) -> None:
    """Drop a report: nobody drives the spout."""


class SpoutContext(NamedTuple):
    """Which of a spout's tasks this is, from 0, and where the spout keeps what must outlive the process.

    topology: what a spout of tuples is opened with. report_error: lets whoever looks at the run see an error that stops nothing.
    """

    state: TransactionalState
    task: int = 0
    tasks: int = 1
    topology: Any = None
    report_error: Callable[[BaseException], None] = _unheard


class _Closing:
    def close(self) -> None:
        """End; not called where the process is killed."""


class IBatchSpout(_Closing, ABC):
    """Gives the rows of a txid. One task."""

    kind: SpoutKind
    output: str = ""
    """The fields of its rows and their types: "word string, n long"."""

    def open(self, context: SpoutContext) -> None:
        """Begin: called once, before anything else."""

    def is_ready(self, txid: int) -> Readiness:
        """Whether there is a batch that was never emitted, asked in the order of txids, perhaps of another copy than emits."""
        return Readiness.READY

    @abstractmethod
    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        """Emit the rows of a batch, again and again if asked. Raise FailedException to fail the attempt."""

    def ack(self, txid: int) -> None:
        """Hear that the batch is committed: it is not asked for again."""


class BatchCoordinator(_Closing, ABC):
    """One for each spout: says what a batch is."""

    def is_ready(self, txid: int) -> Readiness:
        """Whether there is a batch that was never emitted, asked in the order of txids."""
        return Readiness.READY

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        """Return the metadata of a batch. `previous` is that of the batch before (None for the first), `current` what was
        returned for this txid before (None if never), which a transactional spout returns again."""

    def success(self, txid: int) -> None:
        """Hear that the batch is committed everywhere."""


class Emitter(_Closing, ABC):
    """One for each task: reads what the metadata says."""

    @abstractmethod
    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        """Emit this task's part of the batch. Raise FailedException to fail the attempt."""

    def success(self, attempt: TransactionAttempt) -> None:
        """Hear that the batch is committed everywhere."""


class CommitterEmitter(Emitter):
    """An emitter that takes part in the commit."""

    @abstractmethod
    def commit(self, attempt: TransactionAttempt) -> None:
        """Make durable that this attempt is what the batch was. It may come for a later attempt of the same txid again."""


class ITridentSpout(ABC):
    """A coordinator that makes metadata, and emitters that read what it says."""

    kind: SpoutKind
    output: str = ""

    @abstractmethod
    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        """Return the coordinator, at the start of its task."""

    @abstractmethod
    def get_emitter(self, context: SpoutContext) -> Emitter:
        """Return the emitter of one task, at its start."""


class ICommitterTridentSpout(ITridentSpout):
    """A spout whose emitters hear of the commit, in the order of txids."""

    @abstractmethod
    def get_emitter(self, context: SpoutContext) -> CommitterEmitter:
        """Return the emitter of one task, at its start."""


class PartitionedCoordinator(_Closing, ABC):
    """Says which partitions there are. Names of partitions are text."""

    def is_ready(self, txid: int) -> Readiness:
        """Whether there is a batch that was never emitted, asked in the order of txids."""
        return Readiness.READY

    @abstractmethod
    def get_partitions_for_batch(self) -> Sequence[str]:
        """Return the partitions of the next batch, each once; there may be more of them than before."""


class OpaquePartitionedEmitter(_Closing, ABC):
    """Reads partitions forward."""

    def partitions_of(self, partitions: Sequence[str], task: int, tasks: int) -> list[str]:
        """Return those that a task reads; every partition is read by one task."""
        return list(partitions[task::tasks])

    @abstractmethod
    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, last: Any
    ) -> Any:
        """Emit what follows `last` (None: the beginning), and return the metadata that says what it was and where it ends."""

    def refresh_partitions(self, partitions: Sequence[str]) -> None:
        """Hear which partitions this task reads from now on."""


class PartitionedEmitter(OpaquePartitionedEmitter):
    """Reads partitions forward, and the same again."""

    @abstractmethod
    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, metadata: Any
    ) -> None:
        """Emit exactly what `emit_partition_batch_new` emitted when it returned `metadata`."""


class IPartitionedTridentSpout(ABC):
    """Partitions that can be read again: a replay holds the same rows."""

    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    output: str = ""

    @abstractmethod
    def get_coordinator(self) -> PartitionedCoordinator:
        """Return the coordinator, at the start of its task."""

    @abstractmethod
    def get_emitter(self) -> PartitionedEmitter:
        """Return the emitter of one task, at its start."""


class IOpaquePartitionedTridentSpout(ABC):
    """Partitions that may be gone when they are asked for again: a replay holds what there is."""

    kind: SpoutKind = SpoutKind.OPAQUE
    output: str = ""

    @abstractmethod
    def get_coordinator(self) -> PartitionedCoordinator:
        """Return the coordinator, at the start of its task."""

    @abstractmethod
    def get_emitter(self) -> OpaquePartitionedEmitter:
        """Return the emitter of one task, at its start."""
