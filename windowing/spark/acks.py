"""The driver's side of acks: the partials of executors (edges.py) go into a ledger, which decides; then spouts are notified.

    batch 7     evaluated, sinks written --> record 7 into the log --> Spark commits 7
                                                                         |
    spouts <-- ack(root), fail(root) <-- outcomes of batches up to 7 <---+   at the next batch, at the end of the run,
                                                                             at the next start, or while the query waits

    <checkpoint>/windowing/acks/000000000041.snapshot     the ledger after batch 41
                                000000000042.batch        the outcome of batch 42 (a BatchRecord)
                                000000000043.batch        ... written before Spark commits batch 43
                                told                      the batch up to which spouts were notified when a run ended

Laws
- A root is acked or failed only after the batch that settled it is committed. An uncommitted batch may run again and needs the
  source's rows. So a kill at any point acks nothing early.
- The ledger is the snapshot plus the records of *committed* batches. The record of an uncommitted batch is ignored: the batch runs
  again and replaces its record by an equal one.
- How far spouts were notified is written with the next batch, or at once if no batch follows. So after a kill the notifications of
  the last batches may be repeated.
- A snapshot is of a committed batch and is written before the records that it replaces are deleted. So a kill at any point leaves a
  complete log.
- A missing or damaged record is an error that names the file; nothing is reset.

Cost: the driver's work is per root and batch; the partials come with the aggregate that evaluates the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.acking.batches import BatchLedger, BatchRecord, RootOutcome
from windowing.codec import dumps, frame, loads, unframe
from windowing.errors import AckError, CorruptStateError, SnapshotError, SourceError, describe_error
from windowing.queues.spout import PartitionedSpout, Root
from windowing.spark import definition, failpoints
from windowing.spark.edges import SOURCE_BITS, partials_of, root_of
from windowing.spark.hadoop import Folder
from windowing.spark.offsets import read_log
from windowing.spark.spouts import batch_of, refuse_other

T = TypeVar("T")

_MAGIC = b"WNDA"
_TOLD = "told"
_EVERY = 50
_WAY_OUT = "put the checkpoint back from a copy; nothing was reset"


class AckLog:
    """The log of one checkpoint. Cost of a batch: one small file, and every 50 batches one of O(open roots)."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = Folder(spark, checkpoint) / "windowing" / "acks"

    @classmethod
    def in_folder(cls, folder: Any) -> AckLog:
        """Return a log for reading without a Spark session, in a folder with the methods of Folder."""
        log = cls.__new__(cls)
        log._folder = folder
        return log

    def ledger(self, committed: int) -> BatchLedger:
        """Return the ledger after the last committed batch, -1 for none. Raises CorruptStateError."""
        snapshots, records = self._numbers("snapshot"), self._numbers("batch")
        usable = [batch for batch in snapshots if batch <= committed]
        begin = usable[-1] if usable else -1
        ledger = self._read(_name(begin, "snapshot"), BatchLedger.restored)[0] if usable else BatchLedger()
        for batch in range(begin + 1, committed + 1):
            if batch not in records:
                raise CorruptStateError(
                    f"{self._folder.of(_name(batch, 'batch'))} is missing: the acks of that batch; {_WAY_OUT}"
                )
            try:
                ledger.apply(self._record(batch))
            except AckError as problem:
                raise CorruptStateError(
                    f"the acks of batch {batch} do not fit: {problem.args[0]}; {_WAY_OUT}"
                ) from problem
        if self._folder.exists(_TOLD):
            path = self._folder.of(_TOLD)
            ledger.notified(min(int(loads(unframe(_MAGIC, self._folder.read(_TOLD), path), path)), committed))
        return ledger

    def write(self, record: BatchRecord) -> None:
        """Write the record of a batch, in place of one of an earlier attempt."""
        self._folder.write(_name(record.batch, "batch"), frame(_MAGIC, dumps(record.plain())))

    def told(self, upto: int) -> None:
        """Store that the spouts were notified of all batches up to this one; used if no record of a later batch stores it."""
        self._folder.write(_TOLD, frame(_MAGIC, dumps(upto)))

    def keep(self, ledger: BatchLedger) -> None:
        """Write a snapshot of a ledger."""
        self._folder.write(_name(ledger.batch, "snapshot"), frame(_MAGIC, dumps(ledger.snapshot())))

    def compact(self, ledger: BatchLedger) -> None:
        """Replace the records by a snapshot every `_EVERY` batches; the ledger must be that after a committed batch."""
        if ledger.batch < 0 or (ledger.batch + 1) % _EVERY:
            return
        self.keep(ledger)
        for kind, until in (("batch", ledger.batch), ("snapshot", ledger.batch - 1)):
            for batch in self._numbers(kind):
                if batch <= until:
                    self._folder.delete(_name(batch, kind))

    def _record(self, batch: int) -> BatchRecord:
        record, path = self._read(_name(batch, "batch"), BatchRecord.of)
        if record.batch != batch:
            raise CorruptStateError(f"{path} is of batch {record.batch}; {_WAY_OUT}")
        return record

    def _read(self, name: str, of: Callable[[Any], T]) -> tuple[T, str]:
        """Return what `of` makes of the data of a file, and its path."""
        path = self._folder.of(name)
        try:
            return of(loads(unframe(_MAGIC, self._folder.read(name), path), path)), path
        except SnapshotError as problem:
            raise CorruptStateError(f"{path}: {problem.args[0]}; {_WAY_OUT}") from problem

    def _numbers(self, kind: str) -> list[int]:
        stems = [name.removesuffix(f".{kind}") for name in self._folder.names() if name.endswith(f".{kind}")]
        return sorted(int(stem) for stem in stems if stem.isdigit())


def _name(batch: int, kind: str) -> str:
    return f"{batch:012d}.{kind}"


# -- Acks ------------------------------------------------------------------------------------------------------------------------


_log = logging.getLogger("windowing.spark")


class Acks:
    """The acks of one query. `spouts`: those that take acks, by the number of their stream: name in the offset log, spout.

    Its methods may be called from the thread of foreachBatch and from the thread that waits for the query.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: str, spouts: Mapping[int, tuple[str, PartitionedSpout]]
    ) -> None:
        self._spark, self._checkpoint, self._spouts = spark, checkpoint, dict(spouts)
        self._log = AckLog(spark, checkpoint)
        self._home = Folder(spark, checkpoint)
        self._ledger = BatchLedger()
        self._lock = threading.RLock()
        self._before = 0

    def open(self) -> None:
        """Read the ledger of the checkpoint, and notify the spouts of outcomes that an earlier run has left.

        Raises CheckpointError if a spout has deleted rows that the checkpoint has not read.
        """
        with self._lock:
            last = definition.last_batch(self._spark, self._checkpoint)
            pending = definition.pending_batch(self._spark, self._checkpoint)
            committed = -1 if last is None else last if pending is None else pending - 1
            self._ledger = self._log.ledger(committed)
            reader, self._before = definition.continued(self._spark, self._checkpoint)
            read = {} if last is None else self._offsets(last)
            for source, (_, spout) in self._spouts.items():
                spout.begin(reader, read[source][1] if source in read else None)
            self._notify_now(committed)

    def column(self) -> Column:
        """Return the aggregate that collects the partials of all upstreams of a batch."""
        return F.collect_list(F.when(F.col("kind") == "ack", F.col("data"))).alias("acks")

    def begin(self, batch: int) -> None:
        """Record that Spark begins a batch, which means that all earlier ones are committed."""
        with self._lock:
            self._notify(batch - 1)

    def record(self, batch: int, tables: Iterable[Any]) -> None:
        """Make the partials of an evaluated batch durable; called before Spark commits the batch."""
        with self._lock:
            record = BatchRecord(
                batch, self._begun(batch), partials_of(bytes(each) for each in tables), self._ledger.notified_upto
            )
            failpoints.hit("before_ledger", batch)
            self._log.compact(self._ledger)
            self._ledger.apply(record)
            self._log.write(record)
            failpoints.hit("after_ledger", batch)

    def settle(self) -> None:
        """Notify the spouts of all committed outcomes. Cost: nothing without outcomes, else a look-up in Spark's log of commits."""
        with self._lock:
            waiting = self._ledger.next_outcome
            if waiting is not None and (self._home / "commits").exists(str(waiting)):
                self._notify_now(waiting)

    # -- a batch in Spark's offset log -----------------------------------------------------------------------------------

    def _begun(self, batch: int) -> dict[int, Any]:
        """Return the roots that a batch begins: one for each source with new rows, with its offsets."""
        now, before = self._offsets(batch), self._offsets(batch - 1) if batch > 0 else {}
        found = {}
        for source, offset in now.items():
            if offset != before.get(source) and offset[0] != offset[1]:
                found[root_of(self._before + batch, source)] = [dict(offset[0]), dict(offset[1])]
        return found

    def _offsets(self, batch: int) -> dict[int, tuple[Any, Any]]:
        name = f"offsets/{batch}"
        folder = self._home / "offsets"
        if not folder.exists(str(batch)):
            raise CorruptStateError(f"{self._home.of(name)} is missing, whose offsets say what batch {batch} has read")
        offsets = read_log(folder, batch)[1:]
        found = {}
        for source, (spout, read) in self._spouts.items():
            for offset in offsets:
                refuse_other(offset, read, spout)
                bounds = batch_of(offset, spout)
                if bounds is not None:
                    found[source] = bounds
        return found

    # -- notifications ---------------------------------------------------------------------------------------------------

    def _notify_now(self, upto: int) -> None:
        """Notify the spouts, and store that in a file of its own, because the next batch may come much later."""
        if self._ledger.outcomes(upto):
            self._notify(upto)
            self._log.told(upto)

    def _notify(self, upto: int) -> None:
        """Notify the spouts of all outcomes of batches up to a committed one, oldest first."""
        news = self._ledger.outcomes(upto)
        for batch in sorted({each.batch for each in news}):
            failpoints.hit("before_ack", batch)
            for each in news:
                if each.batch == batch:
                    self._notify_one(each)
            failpoints.hit("after_ack", batch)
        self._ledger.notified(upto)

    def _notify_one(self, news: RootOutcome) -> None:
        name, spout = self._spouts[news.root & ((1 << SOURCE_BITS) - 1)]
        root = Root(news.root >> SOURCE_BITS, *news.payload)
        try:
            if news.failed is not None:
                _log.warning("bolt %r has failed batch %d of spout %r", news.failed, root.batch, name)
                spout.fail(root, news.failed)
            elif news.given_up is not None:
                _log.warning("bolt %r has given up tuples of batch %d of spout %r", news.given_up, root.batch, name)
                spout.give_up(root, news.given_up)
            else:
                spout.ack(root)
        except Exception as problem:
            what = "fail" if news.failed is not None else "give_up" if news.given_up is not None else "ack"
            raise SourceError(
                f"spout {name!r} raised in {what} of batch {root.batch}: {describe_error(problem)}; repair it and start again: "
                "it is told again then"
            ) from problem
