"""Acks, in topologies with a spout that takes acks: in the workers the edges of tuples, summed by root; in the driver the ledger of
the roots, which decides, and from which spouts are notified.

    root    a batch of one source                   root_of(batch 7, source 0) = 7 << 16 | 0
    edge    one tuple sent to one task              a 64-bit number, computed from (batch, upstream, position, task)
    origin  a tuple's roots                         rows of a window have the roots of all its tuples

    StageWriter: made(edges, roots) --+
                                      +--> sums by root --rows()--> one exchange row "ack" per upstream and batch
    task: done(tuples) ---------------+

Laws of edges: their ids are computed, not random, so a repeated batch has the same ids. Every tuple with roots that is sent to a
task is counted exactly twice in the life of a query: by its upstream, and by the task when the tuple is done. It is done when it
has expired, when it is late, or, for a bolt without windows, at the end of the batch. Equal sets of roots are the same object
within a batch.

    batch 7     evaluated, sinks written --> record 7 into the log --> Spark commits 7
                                                                         |
    spouts <-- ack(root), fail(root) <-- outcomes of batches up to 7 <---+   at the next batch, at the end of the run,
                                                                             at the next start, or while the query waits

    <checkpoint>/windowing/acks/000000000041.snapshot     the ledger after batch 41
                                000000000042.batch        the outcome of batch 42 (a BatchRecord)
                                000000000043.batch        ... written before Spark commits batch 43
                                told                      the batch up to which spouts were notified when a run ended

Laws of the ledger
- A root is acked or failed only after the batch that settled it is committed. An uncommitted batch may run again and needs the
  source's rows. So a kill at any point acks nothing early.
- The ledger is the snapshot plus the records of *committed* batches. The record of an uncommitted batch is ignored: the batch runs
  again and replaces its record by an equal one.
- How far spouts were notified is written with the next batch, or at once if no batch follows. So after a kill the notifications of
  the last batches may be repeated.
- A snapshot is of a committed batch and is written before the records that it replaces are deleted. So a kill at any point leaves a
  complete log.
- A missing or damaged record is an error that names the file; nothing is reset.

Cost: the driver's work is per root and batch; the partials come with the job that evaluates the batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from windowing.acking.batches import BatchLedger, BatchRecord, RootOutcome, RootPartial
from windowing.codec import dumps, frame, loads, unframe
from windowing.columnar.rows import decode_table, encode_table
from windowing.errors import AckError, CorruptStateError, SnapshotError, SourceError, describe_error
from windowing.execution.compatibility import read_log
from windowing.queues.spout import PartitionedSpout, Root
from windowing.spark import failpoints
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.spouts import batch_of, refuse_other

_log = logging.getLogger("windowing.spark")
EDGE, ROOTS = "__edge", "__roots"
SOURCE_BITS = 16
NO_ROOTS: tuple[int, ...] = ()
_SCHEMA = pa.schema(
    {"root": pa.int64(), "xor": pa.uint64(), "edges": pa.int64(), "failed": pa.string(), "given_up": pa.string()}
)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Roots = tuple[int, ...]


def root_of(batch: int, source: int) -> int:
    """Return the root number of a batch of a source; `source` numbers the streams of spouts from 0."""
    return batch << SOURCE_BITS | source


def merged(roots: Iterable[Roots]) -> Roots:
    """Return the roots of a row that is anchored to tuples with these roots: each once, ascending.

    >>> merged([(1,), (1, 4), (3,)])
    (1, 3, 4)
    """
    different = set(roots)
    if len(different) == 1:
        return different.pop()
    return tuple(sorted({root for each in different for root in each}))


def edge_ids(batch: int, upstream: int, task: int, positions: Any) -> Any:
    """Return the edge ids (uint64, never 0) of the tuples that an upstream sent to a task: one for each position."""
    seed = 0
    for part in (batch, upstream, task):
        seed = _mixed((seed + _GOLDEN) ^ part)
    mixed = np.asarray(positions, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = mixed * np.uint64(_GOLDEN) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.where(mixed == 0, np.uint64(1), mixed)


def _mixed(number: int) -> int:
    """SplitMix64's finalizer. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    number &= _MASK
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


class Partials:
    """The partials of one upstream in one batch, by root. Cost: a dict access and an XOR per tuple."""

    def __init__(self) -> None:
        self._sums: dict[Roots, list[int]] = {}
        self._failed: dict[int, str] = {}
        self._given_up: dict[int, str] = {}

    def made(self, edges: Any, roots: Sequence[Roots]) -> None:
        """Record tuples that are sent to a task. Vectorised if all have the same roots, as those of a spout have."""
        if len(roots) and all(each is roots[0] for each in roots):
            self._add([(int(np.bitwise_xor.reduce(edges)), roots[0])], len(roots))
        else:
            self._add(zip(edges.tolist(), roots, strict=True), 1)

    def done(self, tuples: Iterable[Any]) -> None:
        """Record tuples (Arrivals) that are done in this task."""
        self._add(((tuple._edge, tuple._roots) for tuple in tuples), -1)

    def fail(self, roots: Roots, component: str) -> None:
        """Record that a component failed a tuple with these roots."""
        for root in roots:
            self._failed.setdefault(root, component)

    def give_up(self, roots: Roots, component: str) -> None:
        """Record that a component sent a tuple with these roots to the dead letters."""
        for root in roots:
            self._given_up.setdefault(root, component)

    def table(self) -> bytes | None:
        """Return all partials as Arrow bytes, by root; None if there are none."""
        found: dict[int, list[Any]] = {}
        for roots, (xor, edges) in self._sums.items():
            for root in roots:
                partial = found.setdefault(root, [0, 0])
                partial[0] ^= xor
                partial[1] += edges
        for root in (*self._failed, *self._given_up):
            found.setdefault(root, [0, 0])
        if not found:
            return None
        rows = [(root, *found[root], self._failed.get(root), self._given_up.get(root)) for root in sorted(found)]
        columns = zip(_SCHEMA, zip(*rows, strict=True), strict=True)
        return encode_table(pa.table([pa.array(values, field.type) for field, values in columns], schema=_SCHEMA))

    def _add(self, tuples: Iterable[tuple[int, Roots]], count: int) -> None:
        sums = self._sums
        for edge, roots in tuples:
            if roots:
                found = sums.get(roots)
                if found is None:
                    found = sums[roots] = [0, 0]
                found[0] ^= edge
                found[1] += count


def partials_of(tables: Iterable[bytes]) -> tuple[RootPartial, ...]:
    """Merge the partials of all upstreams of a batch; return one per root, by root."""
    found: dict[int, RootPartial] = {}
    for data in tables:
        columns = [column.to_pylist() for column in decode_table(data).columns]
        for partial in map(RootPartial._make, zip(*columns, strict=True)):
            before = found.get(partial.root, RootPartial(partial.root, 0, 0))
            # The named component must not depend on the order of the upstreams.
            failed = min((name for name in (before.failed, partial.failed) if name is not None), default=None)
            given_up = min((name for name in (before.given_up, partial.given_up) if name is not None), default=None)
            sums = before.xor ^ partial.xor, before.edges + partial.edges
            found[partial.root] = RootPartial(partial.root, *sums, failed, given_up)
    return tuple(found[root] for root in sorted(found))


def packed_roots(roots: Sequence[Roots]) -> Any:
    """Return roots as a column of bytes, eight per root."""
    known: dict[Roots, bytes] = {}
    for each in roots:
        if each not in known:
            known[each] = b"".join(root.to_bytes(8, "big") for root in each)
    return pa.array([known[each] for each in roots], pa.binary())


def unpacked_roots(column: Any, known: dict[bytes, Roots]) -> list[Roots]:
    """Return the roots of a column of `packed_roots`; `known` makes equal ones the same object."""
    known.setdefault(b"", NO_ROOTS)
    found = []
    for data in column.to_pylist():
        roots = known.get(data or b"")
        if roots is None:
            roots = tuple(int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8))
            known[data] = roots
        found.append(roots)
    return found


# -- The log of the driver --------------------------------------------------------------------------------------------------------


T = TypeVar("T")

_MAGIC = b"WNDA"
_TOLD = "told"
_EVERY = 50
_WAY_OUT = "put the checkpoint back from a copy; nothing was reset"


class AckLog:
    """The log of one checkpoint, in a Folder, or for reading without a Spark session in one with its methods. Cost of a batch: one
    small file, and every 50 batches one of O(open roots).
    """

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def ledger(self, committed: int) -> BatchLedger:
        """Return the ledger after the last committed batch, -1 for none. Raises CorruptStateError."""
        snapshots, records = self._numbers("snapshot"), self._numbers("batch")
        usable = [batch for batch in snapshots if batch <= committed]
        begin = usable[-1] if usable else -1
        ledger = self._read(_name(begin, "snapshot"), BatchLedger.restored) if usable else BatchLedger()
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
            ledger.notified(min(self._read(_TOLD, int), committed))
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
        name = _name(batch, "batch")
        record = self._read(name, BatchRecord.of)
        if record.batch != batch:
            raise CorruptStateError(f"{self._folder.of(name)} is of batch {record.batch}; {_WAY_OUT}")
        return record

    def _read(self, name: str, of: Callable[[Any], T]) -> T:
        """Return what `of` makes of the data of a file."""
        path = self._folder.of(name)
        try:
            return of(loads(unframe(_MAGIC, self._folder.read(name), path), path))
        except SnapshotError as problem:
            raise CorruptStateError(f"{path}: {problem.args[0]}; {_WAY_OUT}") from problem

    def _numbers(self, kind: str) -> list[int]:
        stems = [name.removesuffix(f".{kind}") for name in self._folder.names() if name.endswith(f".{kind}")]
        return sorted(int(stem) for stem in stems if stem.isdigit())


def _name(batch: int, kind: str) -> str:
    return f"{batch:012d}.{kind}"


# -- Acks ------------------------------------------------------------------------------------------------------------------------


class Acks:
    """The acks of one query. `spouts`: those that take acks, by the number of their stream: name in the offset log, spout.

    Its methods may be called from the thread of foreachBatch and from the thread that waits for the query.
    """

    def __init__(self, checkpoint: Checkpoint, spouts: Mapping[int, tuple[str, PartitionedSpout]]) -> None:
        self._checkpoint, self._spouts = checkpoint, dict(spouts)
        self._log = AckLog(checkpoint.acks)
        self._ledger = BatchLedger()
        self._lock = threading.RLock()
        self._before = 0
        self._read: tuple[int, dict[int, tuple[Any, Any]]] = -1, {}
        """The last recorded batch, and its offsets, which the next one begins at."""

    def open(self) -> None:
        """Read the ledger of the checkpoint, and notify the spouts of outcomes that an earlier run has left.

        Raises CheckpointError if a spout has deleted rows that the checkpoint has not read.
        """
        with self._lock:
            last, pending = self._checkpoint.last_batch(), self._checkpoint.pending_batch()
            committed = -1 if last is None else last if pending is None else pending - 1
            self._ledger = self._log.ledger(committed)
            reader, self._before = self._checkpoint.continued()
            read = {} if last is None else self._offsets(last)
            for source, (_, spout) in self._spouts.items():
                spout.begin(reader, read[source][1] if source in read else None)
            self._notify_now(committed)

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
            if waiting is not None and self._checkpoint.commits.exists(str(waiting)):
                self._notify_now(waiting)

    # -- a batch in Spark's offset log -----------------------------------------------------------------------------------

    def _begun(self, batch: int) -> dict[int, Any]:
        """Return the roots that a batch begins: one for each source with new rows, with its offsets."""
        known, before = self._read
        if known != batch - 1:
            before = self._offsets(batch - 1)
        now = self._offsets(batch)
        self._read = batch, now
        found = {}
        for source, offset in now.items():
            if offset != before.get(source) and offset[0] != offset[1]:
                found[root_of(self._before + batch, source)] = [dict(offset[0]), dict(offset[1])]
        return found

    def _offsets(self, batch: int) -> dict[int, tuple[Any, Any]]:
        folder = self._checkpoint.offsets
        if not folder.exists(str(batch)):
            raise CorruptStateError(
                f"{folder.of(str(batch))} is missing, whose offsets say what batch {batch} has read"
            )
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
