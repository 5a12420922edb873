"""Spouts of batches: the five kinds, and the executors that adapt each to ITridentSpout.

    Spout (topology/)                 tuples one by one, with ack and fail              NON_TRANSACTIONAL
    IBatchSpout                       rows of a txid                                    its `kind`
    ITridentSpout                     a coordinator makes metadata, emitters read it    its `kind`
    ICommitterTridentSpout            the same, and the emitters take part in commits   its `kind`
    IPartitionedTridentSpout          per partition, from metadata to metadata          TRANSACTIONAL
    IOpaquePartitionedTridentSpout    the same; a replay may hold other rows            OPAQUE

The first two kinds are adapted by RichSpoutBatchExecutor and BatchSpoutExecutor, the next two are used directly, and the last two
are adapted by PartitionedTridentSpoutExecutor and OpaquePartitionedTridentSpoutExecutor. `kind` is the author's promise and cannot
be checked; kinds.py lists what follows from it. Metadata is plain data. Source: Storm's interfaces and classes of the same names.

    partition p0     |-- 5 --|-- 6 --|-- 7 --     metadata of 6: where it begins and ends; 7 begins where 6 ends
    transactional    stored when first emitted: every attempt at 6 has the same rows
    opaque           in memory until the commit: 6:1 may have other rows than 6:0, beginning where 5 ended

Laws of partitioned spouts
- A batch begins where the one it builds on ended: an attempt under way, or the last committed batch. A batch that overtook the one
  it builds on is failed. (In Storm it begins where the last but one ended, and tuples come twice.) A batch that reads a partition
  which another task read before is failed until all earlier batches are committed, or at least stored.
- Transactional: the metadata of all partitions of a task is stored in one write, after the rows are emitted and before the batch is
  reported. For each partition separately a batch is new or a repetition, so other tasks may read it after a restart.
- Opaque: the stored value of a txid is its last commit, and earlier txids stay until the success, so that a repeated commit begins
  from there. (Storm deletes them first, and a crash in between loses the position.) An attempt that this task has not emitted, or
  whose rows it has read again since, cannot be committed. A partition that a later attempt lacks is back where the batch began; a
  commit of an earlier attempt that is still on its way then, in another life of the task, is refused by the list of the later one.
- A txid below all stored ones is never read from the beginning; it is an error.

Laws of batches without partitions
- FixedBatchSpout is transactional, also over restarts, because it has no state. (Storm's begins with the first row again.)
- Each message id of a rich spout is acked or failed exactly once: acked after the commit, failed before the rows of the next
  attempt. No message id is dropped by a timeout (in Storm such ids are neither acked nor failed, and the source never emits them
  again).
- The messages of the successful attempt, and of the attempts it built on, are acked. All other pending messages up to its txid are
  failed and emitted again: this task cannot know whether they were committed, since another instance of it may have emitted them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, ClassVar, NamedTuple, Protocol

from windowing.errors import ConfigError, FailedException, quote
from windowing.schema.checks import DEFAULT_STREAM, StormNames, emit_advice, spelled
from windowing.schema.rows import refuse_unsent
from windowing.schema.types import Row
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import FIRST_TXID, SpoutKind, TransactionAttempt
from windowing.trident.processors import Reporter, TridentOutput, drop_report, refuse_uncollected, refuse_unrun
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState, part_of, put_all
from windowing.windows.measures import Duration, as_duration_ms


class SpoutBatch(NamedTuple):
    """The batch to emit. after: the attempt under way that it builds on; None if all earlier batches are committed."""

    attempt: TransactionAttempt
    metadata: Any = None
    after: TransactionAttempt | None = None


class SpoutContext(NamedTuple):
    """The index of the spout's task, from 0, and the records of data that must outlive the process.

    topology: the context with which a spout of tuples is opened. report_error: adds an error to the result; the run continues.
    """

    state: TransactionalState
    task: int = 0
    tasks: int = 1
    topology: Any = None
    report_error: Reporter = drop_report


class _Closing:
    def close(self) -> None:
        """Release resources; not called when the process is killed."""


class IBatchSpout(_Closing, ABC):
    """Emits the rows of a txid. Has one task."""

    kind: SpoutKind
    output: str = ""
    """The fields and types of its rows: "word string, n long"."""

    def open(self, context: SpoutContext) -> None:
        """Called once, before all other methods."""

    def is_ready(self, txid: int) -> Readiness:
        """Return whether there is a new batch. Called in the order of txids, possibly on another copy than the one that emits."""
        return Readiness.READY

    @abstractmethod
    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        """Emit the rows of a batch; called again for each attempt. Raise FailedException to fail the attempt."""

    def ack(self, txid: int) -> None:
        """Called when the batch is committed; it is not emitted again."""


class BatchCoordinator(_Closing, ABC):
    """Decides what a batch contains. There is one for each spout."""

    def is_ready(self, txid: int) -> Readiness:
        """Return whether there is a new batch. Called in the order of txids."""
        return Readiness.READY

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        """Return the metadata of a batch. `previous`: that of the previous batch (None for the first). `current`: the metadata
        returned for this txid before (None if none); a transactional spout returns it again."""

    def success(self, txid: int) -> None:
        """Called when the batch is committed everywhere."""


class Emitter(_Closing, ABC):
    """Emits the rows that the metadata describes. There is one for each task."""

    @abstractmethod
    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        """Emit this task's part of the batch. Raise FailedException to fail the attempt."""

    def success(self, attempt: TransactionAttempt) -> None:
        """Called when the batch is committed everywhere."""


class CommitterEmitter(Emitter):
    """An emitter that takes part in the commit."""

    @abstractmethod
    def commit(self, attempt: TransactionAttempt) -> None:
        """Make durable that this attempt is the content of the batch. May be called again for a later attempt at the same txid."""


class ITridentSpout(ABC):
    """A spout with a coordinator that makes metadata, and emitters that emit the described rows."""

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
    """Lists the partitions. The names of partitions are strings."""

    def is_ready(self, txid: int) -> Readiness:
        """Return whether there is a new batch. Called in the order of txids."""
        return Readiness.READY

    @abstractmethod
    def get_partitions_for_batch(self) -> Sequence[str]:
        """Return the partitions of the next batch, each once; new partitions may be added over time."""


class OpaquePartitionedEmitter(_Closing, ABC):
    """Reads partitions forward only."""

    def partitions_of(self, partitions: Sequence[str], task: int, tasks: int) -> list[str]:
        """Return the partitions that a task reads; every partition is read by one task."""
        return list(partitions[task::tasks])

    @abstractmethod
    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, last: Any
    ) -> Any:
        """Emit the rows after `last` (None: the beginning); return metadata that describes them and where they end."""

    def refresh_partitions(self, partitions: Sequence[str]) -> None:
        """Called with the partitions that this task reads from now on."""


class PartitionedEmitter(OpaquePartitionedEmitter):
    """Reads partitions forward, and can repeat a batch."""

    @abstractmethod
    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, metadata: Any
    ) -> None:
        """Emit exactly the rows that `emit_partition_batch_new` emitted when it returned `metadata`."""


class IPartitionedTridentSpout(ABC):
    """A spout whose partitions can be read again: a replay has the same rows."""

    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    output: str = ""

    @abstractmethod
    def get_coordinator(self) -> PartitionedCoordinator:
        """Return the coordinator, at the start of its task."""

    @abstractmethod
    def get_emitter(self) -> PartitionedEmitter:
        """Return the emitter of one task, at its start."""


class IOpaquePartitionedTridentSpout(ABC):
    """A spout whose rows may be gone at a replay: a replay has the rows that are there then."""

    kind: SpoutKind = SpoutKind.OPAQUE
    output: str = ""

    @abstractmethod
    def get_coordinator(self) -> PartitionedCoordinator:
        """Return the coordinator, at the start of its task."""

    @abstractmethod
    def get_emitter(self) -> OpaquePartitionedEmitter:
        """Return the emitter of one task, at its start."""


# -- batches without partitions --------------------------------------------------------------------------------------------------


def _is_row(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)


class FixedBatchSpout(StormNames, IBatchSpout):
    """Emits given rows, `max_batch_size` per batch, and then ends; with `cycle` it begins again.

    >>> spout = FixedBatchSpout("word string", 2, [("a",), ("b",), ("c",)])
    >>> spout.rows_of(1), spout.rows_of(2), spout.is_ready(3).name
    ([('a',), ('b',)], [('c',)], 'ENDED')
    """

    kind = SpoutKind.TRANSACTIONAL
    _elsewhere: ClassVar[Mapping[str, str]] = {"setCycle": "cycle=True"}

    @spelled
    def __init__(self, output: str, max_batch_size: int, rows: Iterable[Iterable[Any]], cycle: bool = False) -> None:
        if type(max_batch_size) is not int or max_batch_size < 1:
            raise ConfigError(f"max_batch_size is a whole number from 1, got {quote(max_batch_size)}")
        listed = list(rows) if isinstance(rows, Iterable) else None
        if type(cycle) is not bool or listed is None or not all(map(_is_row, listed)):
            given = rows if type(cycle) is bool else cycle
            raise ConfigError(
                f"FixedBatchSpout takes one list of rows, each a tuple, and cycle=True or False, got {quote(given)}; "
                "write FixedBatchSpout('word string', 2, [('a',), ('b',)])"
            )
        if cycle and not listed:
            raise ConfigError("cycle=True wants at least one row, got none; leave it out for a spout that ends at once")
        self.output = output
        self.cycle = cycle
        self._size = max_batch_size
        self._rows = [tuple(row) for row in listed]
        self._batches = -(-len(self._rows) // max_batch_size)

    def rows_of(self, txid: int) -> list[tuple[Any, ...]]:
        """Return the rows of a batch; an empty list after the end."""
        number = txid - FIRST_TXID
        begin = (number % self._batches if self.cycle else number) * self._size
        return self._rows[begin : begin + self._size]

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if self.cycle or txid < FIRST_TXID + self._batches else Readiness.ENDED

    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        for row in self.rows_of(txid):
            collector.emit(row)


class BatchSpoutExecutor(ITridentSpout, Emitter):
    """Adapts an IBatchSpout to ITridentSpout, and is the emitter of its one task."""

    def __init__(self, spout: IBatchSpout) -> None:
        self._spout = spout

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _NoMetadata(self._spout.is_ready)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        self._spout.open(context)
        return self

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        refuse_uncollected(self._spout.emit_batch(batch.attempt.txid, collector))

    def success(self, attempt: TransactionAttempt) -> None:
        self._spout.ack(attempt.txid)

    def close(self) -> None:
        self._spout.close()


class _NoMetadata(BatchCoordinator):
    def __init__(self, ready: Callable[[int], Readiness]) -> None:
        self._ready = ready

    def is_ready(self, txid: int) -> Readiness:
        return self._ready(txid)

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        return None


class RichSpout(Protocol):
    """The protocol of a spout of single tuples, as in topologies; `ack` and `fail` take (message_id) or (message_id, values)."""

    @property
    def ack(self) -> Any:
        """Called for each message of a committed batch."""

    @property
    def fail(self) -> Any:
        """Called for each message of a failed attempt."""

    @abstractmethod
    def open(self, context: Any, collector: Any) -> None:
        """Called once, before all other methods; emit to the collector from now on."""

    @abstractmethod
    def next_tuple(self) -> Any:
        """Emit some tuples, or none, and return None."""

    def close(self) -> None:
        """End."""


class RichSpoutBatchExecutor(ITridentSpout):
    """Adapts a spout of single tuples to ITridentSpout. Failed tuples come again when the spout emits them again: at least once."""

    def __init__(self, spout: RichSpout, max_batch_size: int) -> None:
        self._spout = spout
        self._size = max_batch_size

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _NoMetadata(lambda txid: Readiness.READY)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _RichEmitter(self._spout, self._size, context)


Pending = tuple[Any, Row]
"""A message id and its values, as they were sent: a spout may use its own list again for the next ones."""


class _Cutter(StormNames):
    """The collector of a rich spout: passes rows on to the collector of the batch and records message ids."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self.target: TridentOutput | None = None
        self.pending: list[Pending] = []
        self.emitted = 0
        self.slept = False

    def emit(
        self, values: Sequence[Any], *stray: Any, message_id: Any = None, stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        if stray:
            raise ConfigError(emit_advice((values, *stray), (DEFAULT_STREAM,), "message_id"))
        if self.target is None:
            raise ConfigError(f"a spout of batches emitted {quote(values)} outside of next_tuple(); emit there")
        if stream != DEFAULT_STREAM:
            raise ConfigError(
                f"a spout of batches emitted {quote(values)} to the stream {quote(stream)}; a batch has the stream "
                f"{DEFAULT_STREAM!r} only: emit there, or use the spout in a topology of bolts"
            )
        self.target.emit(values)
        self.emitted += 1
        if message_id is not None:
            self.pending.append((message_id, self.target.last_copy()))
        return ()

    def emit_direct(self, task: int, values: Any, *, message_id: Any = None, stream: str = "default") -> None:
        raise ConfigError(
            f"a spout of batches emitted {quote(values)} to task {task}; batches have no direct streams: use emit()"
        )

    def sleep(self, span: Duration | timedelta) -> None:
        """End the batch. The setting batch_emit_interval, and not `span`, decides when the next batch begins."""
        as_duration_ms(span, "the span of sleep()")
        self.slept = True

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
        assert isinstance(collector, TridentOutput)
        cutter.target, cutter.emitted, cutter.slept = collector, 0, False
        try:
            emitted = -1
            while emitted < cutter.emitted < self._size and not cutter.slept:
                emitted = cutter.emitted
                returned = self._spout.next_tuple()
                if cutter.emitted == emitted:
                    refuse_unsent(returned)
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
    """Adapts a transactional partitioned spout to ITridentSpout."""

    def __init__(self, spout: IPartitionedTridentSpout) -> None:
        self._spout = spout

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _Partitions(self._spout.get_coordinator(), fixed=True)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _TransactionalEmitter(self._spout.get_emitter(), context)


class OpaquePartitionedTridentSpoutExecutor(ICommitterTridentSpout):
    """Adapts an opaque partitioned spout to ICommitterTridentSpout."""

    def __init__(self, spout: IOpaquePartitionedTridentSpout) -> None:
        self._spout = spout

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _Partitions(self._spout.get_coordinator(), fixed=False)

    def get_emitter(self, context: SpoutContext) -> CommitterEmitter:
        return _OpaqueEmitter(self._spout.get_emitter(), context)


class _Partitions(BatchCoordinator):
    """The coordinator of partitioned spouts. The metadata of a batch is its partitions; a transactional spout repeats it."""

    def __init__(self, coordinator: PartitionedCoordinator, fixed: bool) -> None:
        self._coordinator = coordinator
        self._fixed = fixed

    def is_ready(self, txid: int) -> Readiness:
        return self._coordinator.is_ready(txid)

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        if self._fixed and current is not None:
            return current
        given = self._coordinator.get_partitions_for_batch()
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        partitions = list(given) if is_list else []
        if not is_list or any(type(each) is not str for each in partitions) or len(set(partitions)) < len(partitions):
            raise ConfigError(
                f"the partitions of a batch are different texts, got {quote(partitions if is_list else given)}; return a list of "
                f"them from {type(self._coordinator).__name__}.get_partitions_for_batch"
            )
        return partitions

    def close(self) -> None:
        self._coordinator.close()


class _Reader(Emitter):
    """The common base of both emitters: this task's partitions, and the stored metadata of each by txid."""

    def __init__(self, emitter: Any, context: SpoutContext) -> None:
        self._emitter = emitter
        self._context = context
        self._partitions: TransactionalState
        self._stored: dict[str, RotatingTransactionalState] = {}
        self._lists: dict[int, list[str]] = {}
        self._current: list[str] | None = None
        self._done = 0
        self.mine: list[str] = []

    def take(self, txid: int, partitions: list[str]) -> None:
        """Set the partitions of a batch; notify the emitter if they changed."""
        self._lists[txid] = partitions
        if partitions == self._current:
            return
        self._current = None  # if the code below fails, the next attempt calls it again
        # What is known of partitions that are gone is forgotten; one that comes back is read again.
        self._partitions, self._stored = self._context.state.at("partitions"), {}
        tasks = range(self._context.tasks)
        dealt = [list(self._emitter.partitions_of(partitions, task, len(tasks))) for task in tasks]
        if sorted(chain.from_iterable(dealt)) != sorted(partitions):
            raise ConfigError(
                f"{type(self._emitter).__name__}.partitions_of deals {quote(partitions)} to {len(tasks)} tasks as {quote(dealt)}; "
                "give each partition to one task"
            )
        self.mine = dealt[self._context.task]
        self._emitter.refresh_partitions(self.mine)
        self._current = partitions

    def stored(self, partition: str, txid: int) -> RotatingTransactionalState:
        """Return the metadata of a partition by txid, read again from the store if another task may have written it since."""
        if partition not in self._stored:
            self._stored[partition] = RotatingTransactionalState(self._partitions, part_of(partition))
        elif txid not in self._stored[partition] and txid - 1 not in self._stored[partition]:
            self._stored[partition].reload()
        self._stored[partition].cleanup_before(self._done)
        return self._stored[partition]

    def previous(self, stored: RotatingTransactionalState, partition: str, batch: SpoutBatch) -> Any:
        """Return the position at which the previous batch ended in a partition, by its stored metadata; None at the beginning.

        Raises FailedException if the previous batch is under way and another task may have read this partition for it, and if its
        metadata is gone.
        """
        txid, after = batch.attempt.txid, batch.after
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

    def success(self, attempt: TransactionAttempt) -> None:
        """Drop the metadata before a batch that is done, of all partitions of this task."""
        txid = self._done = attempt.txid
        self._lists = {each: partitions for each, partitions in self._lists.items() if each >= txid}
        for partition in self.mine:
            self.stored(partition, txid)

    def close(self) -> None:
        self._emitter.close()


class _TransactionalEmitter(_Reader):
    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        attempt, emitter = batch.attempt, self._emitter
        self.take(attempt.txid, batch.metadata)
        new: dict[RotatingTransactionalState, Any] = {}
        for partition in self.mine:
            stored = self.stored(partition, attempt.txid)
            if attempt.txid in stored:
                refuse_unrun(emitter.emit_partition_batch(attempt, collector, partition, stored.get(attempt.txid)))
            else:
                last = self.previous(stored, partition, batch)
                new[stored] = emitter.emit_partition_batch_new(attempt, collector, partition, last)
        put_all(new, attempt.txid)


class _OpaqueEmitter(_Reader, CommitterEmitter):
    """The emitter of opaque spouts. `_read`: for each batch under way its attempt, and where it began and ended in each partition.

    Stored values are (attempt, end).
    """

    def __init__(self, emitter: OpaquePartitionedEmitter, context: SpoutContext) -> None:
        super().__init__(emitter, context)
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
        self.take(attempt.txid, batch.metadata)
        if attempt.attempt:
            self._delete_unlisted(attempt.txid)
        read = {}
        for partition in self.mine:
            if partition in before:
                last = before[partition]
            else:
                last = _end_of(self.previous(self.stored(partition, attempt.txid), partition, batch))
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
            stored = self.stored(partition, attempt.txid)
            later = attempt.txid in stored and stored.get(attempt.txid)[0] > attempt.attempt
            if later or _end_of(stored.previous(attempt.txid)) != last:
                raise FailedException(
                    f"batch {attempt} cannot be committed: another life of this task went on meanwhile"
                )
            ends[stored] = attempt.attempt, end
        put_all(ends, attempt.txid, [self._listed(attempt.txid)])

    def _delete_unlisted(self, txid: int) -> None:
        """Delete what earlier attempts at a batch stored for partitions that it no longer has: their rows are not in it."""
        listed = {f"{part_of(partition)}/{txid}" for partition in self._lists[txid]}
        gone = [name for name in self._partitions.names_with(str(txid)) if name not in listed]
        if gone:
            self._partitions.write({}, gone=gone, holding=[self._listed(txid)])

    def _listed(self, txid: int) -> tuple[str, bytes]:
        """Return the partitions of a batch as its coordinator has stored them for the attempt that was emitted here."""
        return self._context.state.beside("coordinator").entry(f"meta/{txid}", self._lists[txid])

    def success(self, attempt: TransactionAttempt) -> None:
        self._read = {txid: each for txid, each in self._read.items() if txid > attempt.txid}
        super().success(attempt)


def _end_of(stored: Any) -> Any:
    """Return the position at which a committed batch ended; None at the beginning."""
    return None if stored is None else stored[1]


def as_batches(spout: Any) -> ITridentSpout | None:
    """Return a spout as ITridentSpout; None for a spout of single tuples, and for an input that is fed by the driver."""
    if isinstance(spout, IBatchSpout):
        return BatchSpoutExecutor(spout)
    if isinstance(spout, IPartitionedTridentSpout):
        return PartitionedTridentSpoutExecutor(spout)
    if isinstance(spout, IOpaquePartitionedTridentSpout):
        return OpaquePartitionedTridentSpoutExecutor(spout)
    return spout if isinstance(spout, ITridentSpout) else None
