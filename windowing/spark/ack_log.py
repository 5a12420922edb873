"""AckLog: what the batches of a query have said of roots, in files of the checkpoint, one a batch.

    <checkpoint>/windowing/acks/000000000041.snapshot     the ledger after batch 41
                                000000000042.batch        what batch 42 has said (a BatchRecord)
                                000000000043.batch        ... written before Spark commits batch 43
                                told                      up to which batch all was told when a run ended

Laws
- The ledger is what the snapshot and the records of *committed* batches fold to. The record of a batch that was not committed is
  not looked at: the batch is made again, and its record replaced by one that says the same.
- A snapshot is of a committed batch, and is there before what it replaces goes. So a kill at any point leaves a whole log.
- A record that is missing or damaged is an error that names the file; nothing is reset.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from windowing.acking.batches import BatchLedger, BatchRecord
from windowing.core.codec import dumps, frame, loads, unframe
from windowing.errors import AckError, CorruptStateError, SnapshotError
from windowing.spark.hadoop import Folder

__all__ = ["AckLog"]

_MAGIC = b"WNDA"
_TOLD = "told"
_EVERY = 50
_WAY_OUT = "put the checkpoint back from a copy; nothing was reset"


class AckLog:
    """The log of one checkpoint. Cost of a batch: one small file, and every 50 batches one of O(open roots)."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._folder = Folder(spark, checkpoint) / "windowing" / "acks"

    def ledger(self, committed: int) -> BatchLedger:
        """Return the ledger as it is after the last committed batch, -1 for none. Raises CorruptStateError."""
        snapshots, records = self._numbers("snapshot"), self._numbers("batch")
        usable = [batch for batch in snapshots if batch <= committed]
        begin = usable[-1] if usable else -1
        ledger = self._snapshot(begin) if usable else BatchLedger()
        for batch in range(begin + 1, committed + 1):
            if batch not in records:
                raise CorruptStateError(
                    f"{self._folder.of(_name(batch, 'batch'))} is missing: the acks of that batch; {_WAY_OUT}"
                )
            try:
                ledger.take(self._record(batch))
            except AckError as problem:
                raise CorruptStateError(
                    f"the acks of batch {batch} do not fit: {problem.args[0]}; {_WAY_OUT}"
                ) from problem
        if self._folder.exists(_TOLD):
            path = self._folder.of(_TOLD)
            ledger.told(min(int(loads(unframe(_MAGIC, self._folder.read(_TOLD), path), path)), committed))
        return ledger

    def write(self, record: BatchRecord) -> None:
        """Put the record of a batch into the log, in place of one that an earlier attempt has left."""
        self._folder.write(_name(record.batch, "batch"), frame(_MAGIC, dumps(record.plain())))

    def told(self, upto: int) -> None:
        """Take note that all news of batches up to this one was told, where no record of a batch follows that says so."""
        self._folder.write(_TOLD, frame(_MAGIC, dumps(upto)))

    def compact(self, ledger: BatchLedger) -> None:
        """Every so many batches put a snapshot in place of the records; the ledger is that after a committed batch."""
        if ledger.batch < 0 or (ledger.batch + 1) % _EVERY:
            return
        self._folder.write(_name(ledger.batch, "snapshot"), frame(_MAGIC, dumps(ledger.snapshot())))
        for kind, until in (("batch", ledger.batch), ("snapshot", ledger.batch - 1)):
            for batch in self._numbers(kind):
                if batch <= until:
                    self._folder.delete(_name(batch, kind))

    def _record(self, batch: int) -> BatchRecord:
        path = self._folder.of(_name(batch, "batch"))
        try:
            record = BatchRecord.of(loads(unframe(_MAGIC, self._folder.read(_name(batch, "batch")), path), path))
        except SnapshotError as problem:
            raise CorruptStateError(f"{path}: {problem.args[0]}; {_WAY_OUT}") from problem
        if record.batch != batch:
            raise CorruptStateError(f"{path} is of batch {record.batch}; {_WAY_OUT}")
        return record

    def _snapshot(self, batch: int) -> BatchLedger:
        path = self._folder.of(_name(batch, "snapshot"))
        try:
            return BatchLedger.restored(loads(unframe(_MAGIC, self._folder.read(_name(batch, "snapshot")), path), path))
        except SnapshotError as problem:
            raise CorruptStateError(f"{path}: {problem.args[0]}; {_WAY_OUT}") from problem

    def _numbers(self, kind: str) -> list[int]:
        stems = [name.removesuffix(f".{kind}") for name in self._folder.names() if name.endswith(f".{kind}")]
        return sorted(int(stem) for stem in stems if stem.isdigit())


def _name(batch: int, kind: str) -> str:
    return f"{batch:012d}.{kind}"
