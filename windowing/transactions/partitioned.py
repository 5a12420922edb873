"""PartitionedTridentSpoutExecutor, OpaquePartitionedTridentSpoutExecutor: spouts that read partitions, as spouts of batches.

    partition p0     |-- 5 --|-- 6 --|-- 7 --     metadata of 6 says where it begins and ends; 7 begins where 6 ends
    transactional    stored when it is first emitted: every attempt at 6 is the same rows
    opaque           in memory until the commit: 6:1 may hold other rows than 6:0, from where 5 ended on

Laws
- A batch begins where the one it rests on ended: the attempt that is under way, or what is committed. One that overtook what it
  rests on is failed. (In Storm it begins where the last but one ended, and tuples come twice.) So is one that reads a partition
  which another task has read so far, until all before it is committed, or at least stored.
- Transactional: the metadata of all partitions of a task is stored in one write, after the rows are emitted and before the batch is
  reported. A batch is new or the same again in each partition by itself, so that other tasks may read it after a restart.
- Opaque: what is stored of a txid is what was committed last under it, and what is before it stays until the success: a commit that
  has to be done again begins from there. (Storm deletes first: a crash in between loses the place.) An attempt that this task has
  not emitted, or whose rows it has since read anew, cannot be committed.
- A txid below all that are stored is never read from the beginning: it is an error in words.

Source: Storm's classes of the same names.
"""

from __future__ import annotations

from typing import Any

from windowing.errors import ConfigError, FailedException, shown
from windowing.transactions.aggregators import TridentCollector
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.rotating_state import RotatingTransactionalState, put_all
from windowing.transactions.spouts import (
    BatchCoordinator,
    CommitterEmitter,
    Emitter,
    ICommitterTridentSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    ITridentSpout,
    OpaquePartitionedEmitter,
    PartitionedCoordinator,
    PartitionedEmitter,
    SpoutBatch,
    SpoutContext,
)
from windowing.transactions.transactional_state import part_of

__all__ = ["OpaquePartitionedTridentSpoutExecutor", "PartitionedTridentSpoutExecutor"]


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
            raise ConfigError(f"the partitions of a batch are different texts, got {shown(partitions)}")
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
        """Take note of the partitions of a batch; tell the emitter if they are others."""
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
                f"batch {txid} of partition {shown(partition)} was asked for, but {stored.txids()} are stored: it comes too late, "
                "or the coordinator's record was lost; restore both from one copy"
            )
        if after is not None and after.txid not in stored:
            read = [partitions for each, partitions in self._lists.items() if each < txid]
            if after.txid not in self._lists or any(partition in partitions for partitions in read):
                raise FailedException(
                    f"batch {batch.attempt} came before {after}, on which it rests, was read in partition {shown(partition)}"
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
