"""Spouts of batches: the five kinds, and the executors that make an ITridentSpout of each.

    Spout (topology/)                 tuples one by one, with ack and fail              NON_TRANSACTIONAL
    IBatchSpout                       rows of a txid                                    as it says
    ITridentSpout                     a coordinator makes metadata, emitters read it    as it says
    ICommitterTridentSpout            the same, and the emitters take part in commits   as it says
    IPartitionedTridentSpout          per partition, from metadata to metadata          TRANSACTIONAL
    IOpaquePartitionedTridentSpout    the same; a replay may hold other rows            OPAQUE

Each becomes an ITridentSpout: by RichSpoutBatchExecutor, BatchSpoutExecutor, as it is, as it is, and by
PartitionedTridentSpoutExecutor, OpaquePartitionedTridentSpoutExecutor. `kind` is a promise that nobody can check:
kinds.py says what it is worth. Metadata is plain data. Source: Storm's interfaces and classes of the same names.

    partition p0     |-- 5 --|-- 6 --|-- 7 --     metadata of 6 says where it begins and ends; 7 begins where 6 ends
    transactional    stored when it is first emitted: every attempt at 6 is the same rows
    opaque           in memory until the commit: 6:1 may hold other rows than 6:0, from where 5 ended on

Laws of partitioned spouts
- A batch begins where the one it rests on ended: the attempt that is under way, or what is committed. One that overtook what it
  rests on is failed. (In Storm it begins where the last but one ended, and tuples come twice.) So is one that reads a partition
  which another task has read so far, until all before it is committed, or at least stored.
- Transactional: the metadata of all partitions of a task is stored in one write, after the rows are emitted and before the batch is
  reported. A batch is new or the same again in each partition by itself, so that other tasks may read it after a restart.
- Opaque: what is stored of a txid is what was committed last under it, and what is before it stays until the success: a commit that
  has to be done again begins from there. (Storm deletes first: a crash in between loses the place.) An attempt that this task has
  not emitted, or whose rows it has since read anew, cannot be committed.
- A txid below all that are stored is never read from the beginning: it is an error in words.

Laws of batches without partitions
- FixedBatchSpout is transactional, also over restarts, for it keeps nothing. (Storm's begins with the first row again.)
- Each message id of a rich spout is acked or failed once: acked after the commit, failed before the rows of the next attempt.
  Nothing is forgotten by a timeout (in Storm such ids are neither acked nor failed, and the source never sends them again).
- Acked is what was emitted in the attempt that succeeded, and in those that it rested on. What else is pending up to its txid is
  failed, and comes again: nobody here knows that it was committed, another life of the task may have emitted what was.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from windowing.errors import ConfigError, FailedException, quote
from windowing.schema.checks import StormNames, emit_advice
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import FIRST_TXID, SpoutKind, TransactionAttempt
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState, part_of, put_all

__all__ = [
    "BatchCoordinator",
    "BatchSpoutExecutor",
    "CommitterEmitter",
    "Emitter",
    "FixedBatchSpout",
    "IBatchSpout",
    "ICommitterTridentSpout",
    "IOpaquePartitionedTridentSpout",
    "IPartitionedTridentSpout",
    "ITridentSpout",
    "OpaquePartitionedEmitter",
    "OpaquePartitionedTridentSpoutExecutor",
    "PartitionedCoordinator",
    "PartitionedEmitter",
    "PartitionedTridentSpoutExecutor",
    "RichSpout",
    "RichSpoutBatchExecutor",
    "SpoutBatch",
    "SpoutContext",
    "as_batches",
]


class SpoutBatch(NamedTuple):
    """What is to be emitted. after: the attempt that it rests on and that is under way; None if all before it is committed."""

    attempt: TransactionAttempt
    metadata: Any = None
    after: TransactionAttempt | None = None


def _drop_report(error: BaseException) -> None:
    """Drop a report: nobody drives the spout."""


class SpoutContext(NamedTuple):
    """Which of a spout's tasks this is, from 0, and where the spout keeps what must outlive the process.

    topology: what a spout of tuples is opened with. report_error: lets whoever looks at the run see an error that stops nothing.
    """

    state: TransactionalState
    task: int = 0
    tasks: int = 1
    topology: Any = None
    report_error: Callable[[BaseException], None] = _drop_report


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
        """Called when the batch is committed: it is not asked for again."""


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
        """Called when the batch is committed everywhere."""


class Emitter(_Closing, ABC):
    """One for each task: reads what the metadata says."""

    @abstractmethod
    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        """Emit this task's part of the batch. Raise FailedException to fail the attempt."""

    def success(self, attempt: TransactionAttempt) -> None:
        """Called when the batch is committed everywhere."""


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
    """A spout whose emitters take part in the commit, in the order of txids."""

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
        """Called with the partitions that this task reads from now on."""


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


# -- batches without partitions --------------------------------------------------------------------------------------------------


MAX_BATCH_SIZE = 1_000
"""How many tuples of a rich spout are a batch, `topology.spout.max.batch.size`."""


class FixedBatchSpout(IBatchSpout):
    """Gives rows, `max_batch_size` at a time, and then ends; or, with `cycle`, begins again.

    >>> spout = FixedBatchSpout("word string", 2, [("a",), ("b",), ("c",)])
    >>> spout.rows_of(1), spout.rows_of(2), spout.is_ready(3).name
    ([('a',), ('b',)], [('c',)], 'ENDED')
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, output: str, max_batch_size: int, rows: Sequence[Sequence[Any]], cycle: bool = False) -> None:
        if type(max_batch_size) is not int or max_batch_size < 1:
            raise ConfigError(f"max_batch_size is a whole number from 1, got {quote(max_batch_size)}")
        if cycle and not rows:
            raise ConfigError("cycle=True wants at least one row, got none; leave it out for a spout that ends at once")
        self.output = output
        self.cycle = cycle
        self._size = max_batch_size
        self._rows = [tuple(row) for row in rows]
        self._batches = -(-len(self._rows) // max_batch_size)

    def rows_of(self, txid: int) -> list[tuple[Any, ...]]:
        """Return the rows of a batch, none after the end."""
        number = txid - FIRST_TXID
        begin = (number % self._batches if self.cycle else number) * self._size
        return self._rows[begin : begin + self._size]

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if self.cycle or txid < FIRST_TXID + self._batches else Readiness.ENDED

    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        for row in self.rows_of(txid):
            collector.emit(row)


class BatchSpoutExecutor(ITridentSpout):
    """A spout of rows by txid as a spout of batches."""

    def __init__(self, spout: IBatchSpout) -> None:
        if not isinstance(getattr(spout, "kind", None), SpoutKind):
            raise ConfigError(
                f"{type(spout).__name__} does not say what a replayed batch holds; set kind = SpoutKind.TRANSACTIONAL if the same "
                "rows, also after a restart, SpoutKind.NON_TRANSACTIONAL if not"
            )
        self.kind = spout.kind
        self.output = spout.output
        self._spout = spout

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _NoMetadata(self._spout.is_ready)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        self._spout.open(context)
        return _BatchEmitter(self._spout)


class _NoMetadata(BatchCoordinator):
    def __init__(self, ready: Callable[[int], Readiness]) -> None:
        self._ready = ready

    def is_ready(self, txid: int) -> Readiness:
        return self._ready(txid)

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        return None


class _BatchEmitter(Emitter):
    def __init__(self, spout: IBatchSpout) -> None:
        self._spout = spout

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        self._spout.emit_batch(batch.attempt.txid, collector)

    def success(self, attempt: TransactionAttempt) -> None:
        self._spout.ack(attempt.txid)

    def close(self) -> None:
        self._spout.close()


class RichSpout(Protocol):
    """A spout of single tuples, as topologies have it; `ack` and `fail` take (message_id) or (message_id, values)."""

    ack: Any
    fail: Any

    def open(self, context: Any, collector: Any) -> None:
        """Begin: emit to the collector from now on."""

    def next_tuple(self) -> None:
        """Emit some tuples, or none."""

    def close(self) -> None:
        """End."""


class RichSpoutBatchExecutor(ITridentSpout):
    """A spout of single tuples as a spout of batches. What fails comes again when the spout sends it again: at least once."""

    kind = SpoutKind.NON_TRANSACTIONAL

    def __init__(self, spout: RichSpout, output: str = "", max_batch_size: int = MAX_BATCH_SIZE) -> None:
        if type(max_batch_size) is not int or max_batch_size < 1:
            raise ConfigError(f"topology.spout.max.batch.size is a whole number from 1, got {quote(max_batch_size)}")
        self.output = output
        self._spout = spout
        self._size = max_batch_size

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _NoMetadata(lambda txid: Readiness.READY)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _RichEmitter(self._spout, self._size, context)


Pending = tuple[Any, Sequence[Any]]
"""A message id and its values."""


class _Cutter(StormNames):
    """The collector of a rich spout: passes rows on to that of the batch, and writes down message ids."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self.target: TridentCollector | None = None
        self.pending: list[Pending] = []
        self.emitted = 0

    def emit(
        self, values: Sequence[Any], *stray: Any, message_id: Any = None, stream: str = "default"
    ) -> Sequence[int]:
        if stray:
            raise ConfigError(emit_advice((values, *stray), ("default",), "message_id"))
        if self.target is None:
            raise ConfigError(f"a spout of batches emitted {quote(values)} outside of next_tuple(); emit there")
        self.target.emit(values)
        self.emitted += 1
        if message_id is not None:
            self.pending.append((message_id, values))
        return ()

    def emit_direct(self, task: int, values: Any, *, message_id: Any = None, stream: str = "default") -> None:
        raise ConfigError(
            f"a spout of batches emitted {quote(values)} to task {task}; batches have no direct streams: use emit()"
        )

    def report_error(self, error: BaseException) -> None:
        self._report(error)


class _RichEmitter(Emitter):
    def __init__(self, spout: RichSpout, size: int, context: SpoutContext) -> None:
        self._spout = spout
        self._size = size
        self._cutter = _Cutter(context.report_error)
        self._pending: dict[int, tuple[SpoutBatch, list[Pending]]] = {}
        spout.open(context.topology, self._cutter)

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        txid, cutter = batch.attempt.txid, self._cutter
        if txid in self._pending:
            self._settle(self._spout.fail, self._pending.pop(txid)[1])
        cutter.pending = []
        self._pending[txid] = batch, cutter.pending
        cutter.target, cutter.emitted = collector, 0
        try:
            emitted = -1
            while emitted < cutter.emitted < self._size:
                emitted = cutter.emitted
                self._spout.next_tuple()
        finally:
            cutter.target = None

    def success(self, attempt: TransactionAttempt) -> None:
        committed: TransactionAttempt | None = attempt
        settled: list[tuple[Any, list[Pending]]] = []
        for txid in sorted((txid for txid in self._pending if txid <= attempt.txid), reverse=True):
            batch, pending = self._pending.pop(txid)
            is_committed = batch.attempt == committed
            committed = batch.after if is_committed else None
            settled.append((self._spout.ack if is_committed else self._spout.fail, pending))
        for how, pending in reversed(settled):
            self._settle(how, pending)

    def close(self) -> None:
        self._spout.close()

    def _settle(self, how: Any, pending: list[Pending]) -> None:
        if not callable(how):
            return
        with_values = len(inspect.signature(how).parameters) > 1
        for message_id, values in pending:
            how(*(message_id, values) if with_values else (message_id,))


# -- PartitionedTridentSpoutExecutor, OpaquePartitionedTridentSpoutExecutor ------------------------------------------------------


class PartitionedTridentSpoutExecutor(ITridentSpout):
    """A transactional partitioned spout as a spout of batches."""

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, spout: IPartitionedTridentSpout) -> None:
        self._spout = spout
        self.output = spout.output

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _Partitions(self._spout.get_coordinator(), fixed=True)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _TransactionalEmitter(self._spout.get_emitter(), context)


class OpaquePartitionedTridentSpoutExecutor(ICommitterTridentSpout):
    """An opaque partitioned spout as a spout of batches that takes part in the commit."""

    kind = SpoutKind.OPAQUE

    def __init__(self, spout: IOpaquePartitionedTridentSpout) -> None:
        self._spout = spout
        self.output = spout.output

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _Partitions(self._spout.get_coordinator(), fixed=False)

    def get_emitter(self, context: SpoutContext) -> CommitterEmitter:
        return _OpaqueEmitter(self._spout.get_emitter(), context)


class _Partitions(BatchCoordinator):
    """The metadata of a batch is the list of its partitions; of a transactional one always the same."""

    def __init__(self, coordinator: PartitionedCoordinator, fixed: bool) -> None:
        self._coordinator = coordinator
        self._fixed = fixed

    def is_ready(self, txid: int) -> Readiness:
        return self._coordinator.is_ready(txid)

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        if self._fixed and current is not None:
            return current
        partitions = list(self._coordinator.get_partitions_for_batch())
        if not all(type(partition) is str for partition in partitions) or len(set(partitions)) < len(partitions):
            raise ConfigError(f"the partitions of a batch are different texts, got {quote(partitions)}")
        return partitions

    def close(self) -> None:
        self._coordinator.close()


class _Reader:
    """What both emitters share: this task's partitions, and the stored metadata of each by txid."""

    def __init__(self, emitter: OpaquePartitionedEmitter, context: SpoutContext) -> None:
        self._emitter = emitter
        self._context = context
        self._stored: dict[str, RotatingTransactionalState] = {}
        self._lists: dict[int, list[str]] = {}
        self._current: list[str] | None = None
        self.mine: list[str] = []

    def take(self, txid: int, partitions: list[str]) -> None:
        """Take note of the partitions of a batch; notify the emitter if they are others."""
        self._lists[txid] = partitions
        if partitions == self._current:
            return
        self._current = partitions
        self._stored = {}
        self.mine = self._emitter.partitions_of(partitions, self._context.task, self._context.tasks)
        self._emitter.refresh_partitions(self.mine)

    def stored(self, partition: str, txid: int) -> RotatingTransactionalState:
        """Return the metadata of a partition by txid, read anew if another task may have read on since."""
        if partition not in self._stored:
            self._stored[partition] = RotatingTransactionalState(
                self._context.state, f"partitions/{part_of(partition)}"
            )
        elif txid not in self._stored[partition] and txid - 1 not in self._stored[partition]:
            self._stored[partition].reload()
        return self._stored[partition]

    def previous(self, partition: str, batch: SpoutBatch) -> Any:
        """Return where the batch before ended in a partition, by what is stored; None at the beginning.

        Raises FailedException if the batch before is under way and may have read this partition elsewhere, and if it is gone.
        """
        txid, after = batch.attempt.txid, batch.after
        stored = self.stored(partition, txid)
        if stored.is_over(txid):
            raise FailedException(
                f"batch {txid} of partition {quote(partition)} was asked for, but {stored.txids()} are stored: it comes too late, "
                "or the coordinator's record was lost; restore both from one copy"
            )
        if after is not None and after.txid not in stored:
            read = [partitions for each, partitions in self._lists.items() if each < txid]
            if after.txid not in self._lists or any(partition in partitions for partitions in read):
                raise FailedException(
                    f"batch {batch.attempt} came before {after}, on which it rests, was read in partition {quote(partition)}"
                )
        return stored.previous(txid)

    def cleanup_before(self, txid: int) -> None:
        """Forget what is before `txid`, which is done, in all partitions that are read here."""
        self._lists = {each: partitions for each, partitions in self._lists.items() if each >= txid}
        for partition in self.mine:
            self.stored(partition, txid).cleanup_before(txid)


class _TransactionalEmitter(Emitter):
    def __init__(self, emitter: PartitionedEmitter, context: SpoutContext) -> None:
        self._emitter = emitter
        self._reader = _Reader(emitter, context)

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        attempt, reader, emitter = batch.attempt, self._reader, self._emitter
        reader.take(attempt.txid, batch.metadata)
        new: dict[RotatingTransactionalState, Any] = {}
        for partition in reader.mine:
            stored = reader.stored(partition, attempt.txid)
            if attempt.txid in stored:
                emitter.emit_partition_batch(attempt, collector, partition, stored.get(attempt.txid))
            else:
                last = reader.previous(partition, batch)
                new[stored] = emitter.emit_partition_batch_new(attempt, collector, partition, last)
        put_all(new, attempt.txid)

    def success(self, attempt: TransactionAttempt) -> None:
        self._reader.cleanup_before(attempt.txid)

    def close(self) -> None:
        self._emitter.close()


class _OpaqueEmitter(CommitterEmitter):
    """`_read`: for each batch under way the attempt, and where it began and ended in each partition. Stored are (attempt, end)."""

    def __init__(self, emitter: OpaquePartitionedEmitter, context: SpoutContext) -> None:
        self._emitter = emitter
        self._reader = _Reader(emitter, context)
        self._read: dict[int, tuple[TransactionAttempt, dict[str, tuple[Any, Any]]]] = {}

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        attempt, after = batch.attempt, batch.after
        self._read = {txid: each for txid, each in self._read.items() if txid < attempt.txid}
        before = dict[str, Any]()
        if after is not None:
            if self._read.get(after.txid, (None,))[0] != after:
                raise FailedException(
                    f"batch {attempt} came before {after}, on which it rests, or this task has died since"
                )
            for txid in sorted(self._read):
                before |= {partition: end for partition, (_, end) in self._read[txid][1].items()}
        self._reader.take(attempt.txid, batch.metadata)
        read = {}
        for partition in self._reader.mine:
            last = before[partition] if partition in before else _end_of(self._reader.previous(partition, batch))
            read[partition] = last, self._emitter.emit_partition_batch_new(attempt, collector, partition, last)
        self._read[attempt.txid] = attempt, read

    def commit(self, attempt: TransactionAttempt) -> None:
        known = self._read.get(attempt.txid)
        if known is None or known[0] != attempt:
            raise FailedException(
                f"batch {attempt} cannot be committed: this task has not emitted it, or has died since"
            )
        ends: dict[RotatingTransactionalState, Any] = {}
        for partition, (last, end) in known[1].items():
            stored = self._reader.stored(partition, attempt.txid)
            later = attempt.txid in stored and stored.get(attempt.txid)[0] > attempt.attempt
            if later or _end_of(stored.previous(attempt.txid)) != last:
                raise FailedException(
                    f"batch {attempt} cannot be committed: another life of this task went on meanwhile"
                )
            ends[stored] = attempt.attempt, end
        put_all(ends, attempt.txid)

    def success(self, attempt: TransactionAttempt) -> None:
        self._read = {txid: each for txid, each in self._read.items() if txid > attempt.txid}
        self._reader.cleanup_before(attempt.txid)

    def close(self) -> None:
        self._emitter.close()


def _end_of(stored: Any) -> Any:
    """Return where a committed batch ended; None at the beginning."""
    return None if stored is None else stored[1]


def as_batches(spout: Any) -> ITridentSpout | None:
    """Return a spout as one of batches; None for one of single tuples, and for what is fed from outside."""
    if isinstance(spout, IBatchSpout):
        return BatchSpoutExecutor(spout)
    if isinstance(spout, IPartitionedTridentSpout):
        return PartitionedTridentSpoutExecutor(spout)
    if isinstance(spout, IOpaquePartitionedTridentSpout):
        return OpaquePartitionedTridentSpoutExecutor(spout)
    return spout if isinstance(spout, ITridentSpout) else None
