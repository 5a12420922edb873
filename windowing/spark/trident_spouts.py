"""Trident spouts written in Python as Spark sources: batch spouts, ITridentSpout, transactional and opaque partitioned spouts.

    latestOffset   is_ready(7)? then the offset is 7                one process of the query, beside the driver
    partitions     coordinator: metadata of 7 --> each task's emitter: rows of 7 --> ends of the partitions, stored
    read           the rows of one task, as Arrow                    executors
    commit         success(7): earlier metadata is deleted

The offset in Spark's log is the number of the batch. The metadata of the batch is stored under that number in `records`, because an
opaque spout knows the content of a batch only after emitting it. A spout numbers its own batches from 1; with several sources these
are not the txids.

Laws: within a run a batch is emitted once, however often Spark plans it; rows and stored metadata come from the same emission;
after a restart a batch that was not committed is emitted again, as the next attempt.

All rows of such a spout pass through that one process. For large inputs use a DataFrame or a PartitionedSpout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from windowing.acking.pending import RetryPolicy
from windowing.columnar.bolts import arrow_schema
from windowing.columnar.rows import decode_table, encode_table
from windowing.errors import CheckpointError, FailedException, ReportedFailedException, cause_of, describe_error
from windowing.execution.metrics import LAST_KEPT
from windowing.spark.failures import Seal, marked
from windowing.spark.session import require_spark
from windowing.spark.spouts import ReadLimit, SupportsTriggerAvailableNow, registered
from windowing.spark.trident_stages import table_of
from windowing.topology.components import TopologyContext
from windowing.trident.coordinator import Readiness
from windowing.trident.executors import TridentSpoutCoordinator
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import SpoutNode, TridentPlan
from windowing.trident.processors import TridentOutput, guarded
from windowing.trident.spouts import CommitterEmitter, SpoutContext, as_batches
from windowing.trident.transactional_state import RecordStore, TransactionalState, part_of

_log = logging.getLogger("windowing.spark")
_EVERY_S = 10


def spout_rows(spark: SparkSession, plan: TridentPlan, node: SpoutNode, records: RecordStore) -> DataFrame:
    """Return the batches of a spout as a streaming DataFrame. `records` is pickled to the process that emits. Raises SessionError
    on Spark 4.1.
    """
    require_spark("4.2", f"{node.called}, a spout in Python,", "read the rows as a streaming DataFrame")
    return registered(spark, node.schema, partial(TridentSpoutReader, plan, node, records, Seal()))


class _SpoutRows(InputPartition):
    """The rows that one task of the spout has emitted."""

    def __init__(self, data: bytes, count: int) -> None:
        self.data, self.count = data, count


class _Opened:
    """An open spout: its coordinator, an emitter for each task, and their stored state."""

    def __init__(self, plan: TridentPlan, node: SpoutNode, records: RecordStore) -> None:
        spout, name = as_batches(node.source.spout), str(node.source.name)
        who = f"spout {name!r}"
        assert spout is not None
        tasks = plan.stage_of(node.number).parallelism
        self.retry = RetryPolicy.of(plan.config)
        self.state = TransactionalState(records, part_of(plan.name)).at(f"spouts/{part_of(name)}")
        self._who, self._since_s, self._reported = who, 0.0, 0
        contexts = [
            SpoutContext(
                self.state.at("emitter"), task, tasks, TopologyContext(name, task, tasks, plan.config), self.report
            )
            for task in range(tasks)
        ]
        coordinator = guarded(who, "in get_coordinator", spout.get_coordinator, contexts[0])
        self.coordinator = TridentSpoutCoordinator(coordinator, self.state.at("coordinator"))
        self.emitters = [guarded(who, "when it was opened", spout.get_emitter, context) for context in contexts]

    def report(self, error: BaseException) -> None:
        """Log an error that the spout reports, at most LAST_KEPT in 10 s; its process has no other channel to the driver."""
        now_s = time.monotonic()
        if self._reported == 0 or now_s >= self._since_s + _EVERY_S:
            self._since_s, self._reported = now_s, 0
        self._reported += 1
        if self._reported <= LAST_KEPT:
            rest = "; more of it are not logged for a while" if self._reported == LAST_KEPT else ""
            _log.warning("%s reports %s%s", self._who, describe_error(error), rest)

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self.coordinator.close)
            for emitter in self.emitters:
                closing.callback(emitter.close)


class TridentSpoutReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader that Spark calls. Offsets are {"spout": name, "batch": number}.

    Copies of it go to every task that reads; these use only its plain fields. The spout is opened in the process that emits, at its
    first use.
    """

    def __init__(self, plan: TridentPlan, node: SpoutNode, records: RecordStore, seal: Seal | None = None) -> None:
        self._schema, self._name, self._seal = node.schema, str(node.source.name), seal
        self._who = f"spout {self._name!r}"
        self._given: tuple[TridentPlan, SpoutNode, RecordStore] | None = (plan, node, records)
        self._opened: _Opened | None = None
        self._made: tuple[TransactionAttempt, list[_SpoutRows]] | None = None
        self._succeeded = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_given": None, "_opened": None, "_made": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the spout reports when it has no further batch."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset of the next batch if it is ready, else `start`."""
        with marked():
            number = start["batch"] + 1
            answer = guarded(self._who, "in is_ready", self._spout.coordinator.is_ready, number)
            return self._offset(number) if answer is Readiness.READY else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        number = end["batch"]
        if start["batch"] == number:
            return []
        if self._made is None or self._made[0].txid != number:
            with marked():
                self._made = self._emitted_with_retries(number)
        return list(self._made[1])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _SpoutRows)
        if partition.count:
            yield from decode_table(partition.data).cast(arrow_schema(self._schema)).to_batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Report the success of a batch to the spout. Spark calls this when it begins the next batch, and may repeat it."""
        number = end["batch"]
        if self._made is None or self._made[0].txid != number or number <= self._succeeded:
            return  # a batch of an earlier process: the success of the next batch covers it
        self._succeeded = number
        with marked():
            for each in (*self._spout.emitters, self._spout.coordinator):
                guarded(self._who, f"in success of {self._made[0]}", each.success, self._made[0])

    def stop(self) -> None:
        if self._opened is not None:
            with marked():
                guarded(self._who, "in close", self._opened.close)

    @property
    def _spout(self) -> _Opened:
        if self._opened is None:
            assert self._given is not None
            self._opened = _Opened(*self._given)
        return self._opened

    def _emitted_with_retries(self, number: int) -> tuple[TransactionAttempt, list[_SpoutRows]]:
        """Emit a batch, with retries here because Spark plans a batch before foreachBatch could retry it. Raises
        FailedException.
        """
        failures = 0
        while True:
            attempt = self._attempt(number)
            try:
                return attempt, self._emitted(attempt)
            except FailedException as problem:
                if isinstance(problem, ReportedFailedException):
                    self._spout.report(problem)
                failures += 1
                if self._spout.retry.is_last(failures):
                    raise FailedException(
                        f"{self._who}: batch {number} failed {failures} times; the last cause: {cause_of(problem)}. Repair that "
                        "and start again from the checkpoint"
                    ) from problem
            time.sleep(self._spout.retry.delay_ms(failures) / 1000)

    def _attempt(self, number: int) -> TransactionAttempt:
        """Return the next attempt at a batch, and store that it has begun.

        Raises CheckpointError if the records are not those of the checkpoint, because the spout would not continue where it ended.
        """
        state = self._spout.state
        last, tries = state.read("begun") or [0, 0]
        if number not in (last, last + 1):
            raise CheckpointError(
                f"{self._who} is asked for its batch {number}, but the last one in records is {last or 'none'}: they belong to "
                "another checkpoint, or one of the two was lost or is an older copy; put back both from one copy, or begin with "
                "a new checkpoint, new records and new states"
            )
        attempt = TransactionAttempt(number, tries + 1 if last == number else 0)
        state.write({"begun": [attempt.txid, attempt.attempt]})
        return attempt

    def _emitted(self, attempt: TransactionAttempt) -> list[_SpoutRows]:
        batch = guarded(self._who, f"on the metadata of {attempt}", self._spout.coordinator.batch, attempt, None)
        where, made = f"on batch {attempt}", []
        for emitter in self._spout.emitters:
            output = TridentOutput(self._schema, self._spout.report)
            rows = guarded(self._who, where, output.rows_of, emitter.emit_batch, batch)
            data = encode_table(table_of(self._who, self._schema, rows)) if rows else b""
            made.append(_SpoutRows(data, len(rows)))
        for emitter in self._spout.emitters:
            # This emission defines the batch, also if the run fails later.
            if isinstance(emitter, CommitterEmitter):
                guarded(self._who, f"in commit of batch {attempt}", emitter.commit, attempt)
        return made

    def _offset(self, number: int) -> dict[str, Any]:
        return {"spout": self._name, "batch": number}
