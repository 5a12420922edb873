"""Batches without partitions: rows by txid, fixed rows for tests and examples, and a spout of single tuples cut into batches.

    FixedBatchSpout(size 3)       a b c | d e f | g |  and then the end      batch n is rows [(n - 1) * 3, n * 3), in every attempt
    RichSpoutBatchExecutor        next_tuple until it is dry or full         batch n: message ids, acked by its success, failed by
                                                                             its next attempt

Laws
- FixedBatchSpout is transactional, also over restarts, for it keeps nothing. (Storm's begins with the first row again.)
- A rich spout hears of each message id once: ack after the commit, fail before the rows of the next attempt. Nothing is forgotten
  by a timeout (in Storm such ids are neither acked nor failed, and the source never sends them again).
- Acked is what was emitted in the attempt that succeeded, and in those that it rested on. What else is pending up to its txid is
  failed, and comes again: nobody here knows that it was committed, another life of the task may have emitted what was.

Source: Storm's `BatchSpoutExecutor`, `FixedBatchSpout`, `RichSpoutBatchExecutor`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from windowing.core.storm_names import StormNames, emit_advice
from windowing.errors import ConfigError, shown
from windowing.transactions.aggregators import TridentCollector
from windowing.transactions.attempt import FIRST_TXID, TransactionAttempt
from windowing.transactions.coordinator_rules import Readiness
from windowing.transactions.kinds import SpoutKind
from windowing.transactions.spouts import (
    BatchCoordinator,
    Emitter,
    IBatchSpout,
    ITridentSpout,
    SpoutBatch,
    SpoutContext,
)

__all__ = ["BatchSpoutExecutor", "FixedBatchSpout", "RichSpout", "RichSpoutBatchExecutor"]

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
            raise ConfigError(f"max_batch_size is a whole number from 1, got {shown(max_batch_size)}")
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
            raise ConfigError(f"topology.spout.max.batch.size is a whole number from 1, got {shown(max_batch_size)}")
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
            raise ConfigError(f"a spout of batches emitted {shown(values)} outside of next_tuple(); emit there")
        self.target.emit(values)
        self.emitted += 1
        if message_id is not None:
            self.pending.append((message_id, values))
        return ()

    def emit_direct(self, task: int, values: Any, *, message_id: Any = None, stream: str = "default") -> None:
        raise ConfigError(
            f"a spout of batches emitted {shown(values)} to task {task}; batches have no direct streams: use emit()"
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
            self._tell(self._spout.fail, self._pending.pop(txid)[1])
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
        news: list[tuple[Any, list[Pending]]] = []
        for txid in sorted((txid for txid in self._pending if txid <= attempt.txid), reverse=True):
            batch, pending = self._pending.pop(txid)
            is_committed = batch.attempt == committed
            committed = batch.after if is_committed else None
            news.append((self._spout.ack if is_committed else self._spout.fail, pending))
        for hear, pending in reversed(news):
            self._tell(hear, pending)

    def close(self) -> None:
        self._spout.close()

    def _tell(self, hear: Any, pending: list[Pending]) -> None:
        if not callable(hear):
            return
        with_values = len(inspect.signature(hear).parameters) > 1
        for message_id, values in pending:
            hear(*(message_id, values) if with_values else (message_id,))
