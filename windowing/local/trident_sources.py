"""PartitionedSpouts (queues/spout.py) in TridentCluster: each batch is a root, whose offsets are the metadata of its txid.

    is_ready(7)    latest() is beyond the end of batch 6
    $batch 7:0     offsets (start, end] of each partition, stored with txid 7 --> each task reads its partitions
    $success 7     ack(root 7), commit(end of 7)

Laws
- Transactional: every attempt at a txid reads the stored offsets; the source can be read again at them until they are acked.
- A batch is acked when it is committed. If a kill prevents the ack, the next run acks the batch when it begins.
- The run's name for the spout lasts as long as the records. Without records each run is new and begins with the rows that are not
  acked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from windowing.errors import ConfigError, quote
from windowing.local.roots import require_fields, rows_read
from windowing.queues.spout import Offsets, PartitionedSpout, Root, SpoutOffsets, limited
from windowing.schema.checks import did_you_mean
from windowing.schema.types import Schema
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import SpoutKind, TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import BatchCoordinator, Emitter, ITridentSpout, SpoutBatch, SpoutContext
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState


class SourceBatches(ITridentSpout):
    """A PartitionedSpout as a spout of batches, for one stream. `state`: the records of that stream."""

    kind = SpoutKind.TRANSACTIONAL
    ends_when_dry = True
    """`run()` counts the spout as ended when it has no rows, like a spout of single tuples."""

    def __init__(self, source: PartitionedSpout, name: str, schema: Schema, state: TransactionalState) -> None:
        self.source, self.name, self.schema = source, name, schema
        self.output, self._state = schema.ddl, state

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _SourceCoordinator(self.source, self.name, self._state)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _SourceEmitter(self, context.task, context.tasks)


class _SourceCoordinator(BatchCoordinator):
    """Chooses the offsets of batches. `_open`: the offsets of batches that are not acked, by txid."""

    def __init__(self, source: PartitionedSpout, name: str, state: TransactionalState) -> None:
        self._source, self._progress = source, SpoutOffsets(source, name)
        stored = RotatingTransactionalState(state.at("coordinator"), "meta")
        self._open: dict[int, dict[str, Offsets]] = {txid: stored.get(txid) for txid in stored.txids()}
        last = stored.last()
        if source.takes_acks:
            query = state.read("query")
            if query is None:
                query = f"TridentCluster {uuid4().hex}"
                state.write({"query": query})
            source.begin(query, None if last is None else last["end"])
        self._at: Offsets = self._progress.initial() if last is None else last["end"]

    def is_ready(self, txid: int) -> Readiness:
        newest = self._progress.newest(self._at)
        return Readiness.WAIT if newest == self._progress.begun(self._at, newest) else Readiness.READY

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        if current is None:
            begins = self._at if previous is None else previous["end"]
            newest = self._progress.newest(begins)
            start = self._progress.begun(begins, newest)
            current = {"start": dict(start), "end": limited(start, newest, self._source.max_rows)}
        self._open[txid] = current
        self._at = {**self._at, **{name: max(at, self._at.get(name, at)) for name, at in current["end"].items()}}
        return current

    def success(self, txid: int) -> None:
        for each in sorted(number for number in self._open if number <= txid):
            found = self._open.pop(each)
            root = Root(each, found["start"], found["end"])
            if self._source.takes_acks and root.ranges:
                self._source.ack(root)
            self._source.commit(found["end"])

    settle = success
    """Called when a run begins, with the last committed txid: an earlier run may have been killed before it acked that batch."""


class _SourceEmitter(Emitter):
    def __init__(self, spout: SourceBatches, task: int, tasks: int) -> None:
        self._spout, self._mine = spout, slice(task, None, tasks)
        self._fields = Schema.parse(spout.source.fields)

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        root = Root(batch.attempt.txid, batch.metadata["start"], batch.metadata["end"])
        ranges = root.ranges
        mine = {name: ranges[name] for name in sorted(root.end)[self._mine] if name in ranges}
        spout = self._spout
        for row in rows_read(spout.source, self._fields, spout.name, list(spout.schema.names), mine):
            collector.emit(row)

    def success(self, attempt: TransactionAttempt) -> None:
        """Do nothing, because the coordinator sends the ack."""


def sources_of(
    plan: TridentPlan, sources: Any, batches: Mapping[str, Any]
) -> dict[str, Callable[[TransactionalState], SourceBatches]]:
    """Check the argument of `TridentCluster(sources=)` and return the factories of spouts by stream. Raises ConfigError."""
    schemas = {name: spout.schema for name, spout in plan.streams.items()}
    if not isinstance(sources, Mapping):
        raise ConfigError(f"sources= is a mapping of streams to their sources, got {quote(sources)}")
    for name, source in sources.items():
        if name not in schemas:
            raise ConfigError(f"sources names {quote(name)}, which is no stream; {did_you_mean(str(name), schemas)}")
        if not isinstance(source, PartitionedSpout):
            raise ConfigError(
                f"the source of stream {name!r} is a PartitionedSpout in one process, got {quote(source)}; give rows by batches=, "
                "or run the topology on Spark"
            )
        if name in batches:
            raise ConfigError(f"stream {name!r} was given both batches= and a source; leave one of the two out")
        require_fields(f"stream {name!r}", schemas[name], source)
    return {name: partial(SourceBatches, source, name, schemas[name]) for name, source in sources.items()}
