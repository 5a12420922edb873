"""Spouts in a cluster: which of the five kinds a stream begins with, and the tasks that coordinate and emit.

    Spout (rows one by one)           SingleTuples > RichSpoutBatchExecutor     non-transactional
    IBatchSpout, rows by hand         BatchSpoutExecutor
    ITridentSpout, committer spouts   as it is
    IPartitionedTridentSpout          PartitionedTridentSpoutExecutor
    IOpaquePartitionedTridentSpout    OpaquePartitionedTridentSpoutExecutor

Law: an object of a kind that makes coordinators and emitters (the last three) is used as it is given; of the others each task has
a copy of its own, which is opened before it is asked for anything. Source: the choice of Storm's `TridentTopology.newStream`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from windowing.core.checks import DEFAULT_STREAM
from windowing.errors import ConfigError, shown
from windowing.runtime.spouts import FunctionSource, ObjectSource, RowsSource, Source
from windowing.topology.bolts import CallStyle
from windowing.topology.makers import copies_of
from windowing.topology.marking import ComponentKind, declaration_of
from windowing.topology.rows import rows_of
from windowing.topology.trident.graph import SpoutNode
from windowing.transactions.aggregators import TridentCollector
from windowing.transactions.attempt import FIRST_TXID
from windowing.transactions.batch_spouts import BatchSpoutExecutor, RichSpoutBatchExecutor
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.partitioned import OpaquePartitionedTridentSpoutExecutor, PartitionedTridentSpoutExecutor
from windowing.transactions.spouts import (
    IBatchSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    ITridentSpout,
    SpoutContext,
)

__all__ = ["GivenBatches", "SingleTuples", "batch_spout_of"]


class GivenBatches(IBatchSpout):
    """Batches that are handed to the cluster: batch n is always the n-th of them, in every attempt and every run. Several tasks
    deal its rows out in turn."""

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, batches: Sequence[Sequence[Any]]) -> None:
        self._batches = batches
        self._mine = slice(None)

    def open(self, context: SpoutContext) -> None:
        self._mine = slice(context.task, None, context.tasks)

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid < FIRST_TXID + len(self._batches) else Readiness.ENDED

    def emit_batch(self, txid: int, collector: TridentCollector) -> None:
        number = txid - FIRST_TXID
        for row in self._batches[number][self._mine] if number < len(self._batches) else ():
            collector.emit(row)


class SingleTuples:
    """A spout of topologies as RichSpoutBatchExecutor wants it (RichSpout); rows that failed come again before new ones.

    over: it will never emit again. dry: it had nothing when it was asked last.
    """

    def __init__(self, spout: Any) -> None:
        self._declaration = declaration_of(spout)
        self._source: Source
        self._instance: Any = None
        self._again: deque[tuple[Any, Any]] = deque()
        self._collector: _Counting
        self.dry = False
        self.ack: Any = self._ack
        self.fail: Any = self._fail

    @property
    def over(self) -> bool:
        """Whether nothing will come any more, except what fails."""
        return self._source.over and not self._again

    def open(self, context: Any, collector: Any) -> None:
        """Make the source of this task."""
        declared, self._collector = self._declaration, _Counting(collector)
        assert declared.target is not None
        if declared.is_class:
            self._instance = declared.target()
            if getattr(self._instance, "open", None) is not None:
                self._instance.open(context, self._collector)
            self._source = ObjectSource(self._instance, declared.values_back)
        elif declared.style is CallStyle.ROWS:
            rows = rows_of(declared.target(), declared.outputs[DEFAULT_STREAM], DEFAULT_STREAM)
            self._source = RowsSource(rows, self._collector)  # type: ignore[arg-type]
        else:
            self._source = FunctionSource(declared.target, self._collector)  # type: ignore[arg-type]

    def next_tuple(self) -> None:
        """Emit some tuples, or none."""
        before = self._collector.emitted
        if self._again:
            message_id, values = self._again.popleft()
            self._collector.emit(values, message_id=message_id)
        elif not self._source.over:
            self._source.next_tuple()
        self.dry = self._collector.emitted == before

    def _ack(self, message_id: Any, values: Any) -> None:
        """Pass on that a message is committed."""
        self._source.ack(message_id, values)

    def _fail(self, message_id: Any, values: Any) -> None:
        """Pass on that a message failed; emit it again if the source leaves that to the driver."""
        if not self._source.fail(message_id, values):
            self._again.append((message_id, values))

    def close(self) -> None:
        """End the source of this task."""
        close = getattr(self._instance, "close", None)
        if close is not None:
            close()


class _Counting:
    """The collector of a batch, which counts."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.emitted = 0

    def emit(self, *values: Any, **how: Any) -> Any:
        self.emitted += 1
        return self._collector.emit(*values, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)


def batch_spout_of(
    node: SpoutNode, batches: Sequence[Sequence[Any]] | None, max_batch_size: int
) -> tuple[ITridentSpout, SingleTuples | None]:
    """Return the spout of one task as a spout of batches; and the source, if it is one of single tuples.

    batches: its rows, where they are handed in. max_batch_size: how many tuples of a spout of single tuples are a batch.
    Raises ConfigError for an object that is none of the five kinds.
    """
    spout = node.source.spout
    if batches is not None:
        return BatchSpoutExecutor(GivenBatches(batches)), None
    if isinstance(spout, IBatchSpout):
        return BatchSpoutExecutor(copies_of(spout)()), None
    if isinstance(spout, ITridentSpout):
        return spout, None
    if isinstance(spout, IPartitionedTridentSpout):
        return PartitionedTridentSpoutExecutor(spout), None
    if isinstance(spout, IOpaquePartitionedTridentSpout):
        return OpaquePartitionedTridentSpoutExecutor(spout), None
    if isinstance(getattr(spout, "kind", None), SpoutKind):
        raise ConfigError(
            f"{node.called} begins with {shown(spout)}, which says its kind and emits nothing; give an IBatchSpout, an "
            "ITridentSpout or a partitioned spout, or its rows in batches="
        )
    if declaration_of(spout).kind is ComponentKind.INPUT:
        raise ConfigError(f"{node.called} begins with an InputSpout, which is fed by hand; give its rows in batches=")
    single = SingleTuples(spout)
    return RichSpoutBatchExecutor(single, node.schema.ddl, max_batch_size), single
