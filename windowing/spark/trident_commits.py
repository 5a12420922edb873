"""The commit section of a Trident query: a batch is attempted, under a new attempt number each time, until its states are
committed.

    claim 6:0 --> stages that may fail ==> stages that commit --the job's end--> sinks
                        | FailedException          | FailedException
    claim 6:1 <---------+--------------------------+       after a delay, up to the topology's max attempts; then
                                                           stop, or skip: an attempt without tuples, dead letters

An attempt is claimed before it begins, so that a superseded process is refused. Batch 5 is txid 6: `6:1` is its second attempt, and
after a crash another process claims the next attempt. Each store of states numbers its attempts itself. The number of the last
state is used; the others are claimed first, so that it is at least theirs.

An attempt is one job. A shuffle (==>) delivers no row before everything in front of it has been evaluated. With the rows, each task
that writes a state receives which tasks have worked, and whether one has failed (trident_stages.py).

Laws: a state is written only after all earlier stages of the attempt were evaluated without a failure; each task of a stage works
once in an attempt, also without tuples; any error but FailedException ends the query.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, FailedException, SupersededError, WindowingError, cause_of, quote
from windowing.execution.plan import Section
from windowing.spark import failpoints
from windowing.spark.control import control_row, label_of_row
from windowing.spark.exchange import EXCHANGE, set_evaluated
from windowing.spark.failures import raised_in_worker
from windowing.spark.hadoop import Folder
from windowing.spark.metrics import MetricsChannel
from windowing.spark.output import evaluate
from windowing.spark.shipping import Shipped
from windowing.spark.trident_stages import ATTEMPT_PROPERTY, TridentBatchStage, log_reports, text_of
from windowing.spark.writer import BatchWriter, Columns, MapInArrow, SinkStreams
from windowing.stores.factory import MapStateFactory
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.trident.coordinator import OnFailure
from windowing.trident.fence import AttemptLedger, kept_by
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.plan import TridentPlan

_log = logging.getLogger("windowing.spark")


class Attempts:
    """The attempts of one query. If no state has a ledger (non-transactional states need none), attempts are counted in this
    process. Ledgers are open from the first claim to `close`: on a server a connection takes three times as long as a claim.

    Raises ConfigError for a transactional or opaque state whose factory has no ledger: after a restart the numbers would repeat.
    """

    def __init__(self, plan: TridentPlan) -> None:
        self._ledgers: list[tuple[Any, int]] = []
        for id, factory, partitions, *_ in sorted(plan.written):
            if callable(getattr(factory, "claim_attempt", None)):
                self._ledgers.append((factory, partitions))
            elif factory.kind is not StateType.NON_TRANSACTIONAL:
                raise ConfigError(
                    f"{id} of topology {plan.name!r} is {quote(factory.kind)}, and its factory {quote(factory)} has no "
                    "claim_attempt(txid, partitions, at_least): attempts could not be told apart after a restart; use map_state, "
                    "or add it (AttemptLedger)"
                )
        self._open: dict[int, AttemptLedger] = {}
        self._last = TransactionAttempt(0, 0)

    def claim(self, txid: int) -> TransactionAttempt:
        """Return the next attempt at a batch. Raises SupersededError if another process has claimed a later one.

        Cost: a read and a write of each store that is written to.
        """
        attempt = self._last.next() if self._last.txid == txid else TransactionAttempt(txid, 0)
        for number, (factory, partitions) in enumerate(self._ledgers):
            claim = factory.claim_attempt
            if getattr(claim, "__func__", None) is not MapStateFactory.claim_attempt:  # of a user's own factory
                attempt = claim(txid, partitions, attempt.attempt)
                continue
            if number not in self._open:
                self._open[number] = factory.ledger(partitions)
            attempt = self._open[number].claim(txid, attempt.attempt)
        self._last = attempt
        return attempt

    def close(self) -> None:
        """Close the ledgers, when a run ends; a later claim opens them again."""
        while self._open:
            with suppress(Exception):  # the store is gone
                self._open.popitem()[1].close()


@contextmanager
def released(rows: DataFrame) -> Iterator[None]:
    """Release kept rows at the end of the `with` block. An error in the block is the one that comes out: an interruption breaks the
    connection to the JVM, so that this call fails too.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):  # py4j has no types
            rows.unpersist()
        raise
    rows.unpersist()


_Stages = tuple[MapInArrow, DataFrame, Columns]
"""The stages of one depth; a `begin` row for every task, because Spark may skip a stage without rows; the grouping key of a row."""


class TridentCommits:
    """Commits the batches of a Trident query: attempts, retries, skips, and the rows for the sinks.

    labels: the grouping keys of the tasks of each depth; partitions: of a shuffle. is_ordered: whether the rows come in the same
    order when Spark reads them again. committed: Spark's log of committed batches. streams: of the sinks. channel: receives the
    metrics of the tasks.
    """

    def __init__(
        self,
        shipped: Shipped[TridentPlan],
        *,
        labels: Mapping[int, Sequence[int]],
        partitions: int,
        is_ordered: bool,
        on_failure: OnFailure,
        committed: Folder,
        streams: SinkStreams,
        channel: MetricsChannel | None = None,
    ) -> None:
        plan = shipped.value
        self._shipped, self._plan, self._name = shipped, plan, plan.name
        self._labels, self._partitions, self._channel = labels, partitions, channel
        self._has_windows = bool(plan.depths(Section.STREAM))
        self._evaluates_first = not is_ordered and (self._has_windows or len(plan.depths(Section.COMMIT)) > 1)
        self._retry, self._on_failure = RetryPolicy.of(plan.config), on_failure
        self._attempts, self._committed, self._streams = Attempts(plan), committed, streams
        self._reports_of, self._reports = -1, Counter[tuple[str, int, int, str]]()
        self._stages: dict[tuple[int, ...], list[_Stages]] = {}

    def close(self) -> None:
        """Close the connections of a run that has ended."""
        self._attempts.close()

    def kept_by(self, batch_id: int) -> Iterator[str]:
        """Yield the names of the states that keep what an earlier attempt at this batch has written."""
        return kept_by(self._plan.written, batch_id + 1)

    def commit(self, output: DataFrame, batch_id: int, writer: BatchWriter) -> None:
        """Attempt the batch until an attempt succeeds or the last one has failed. Windows process it once: their output is
        persisted.
        """
        with released(output):
            failures = 0
            while True:
                if not output.is_cached and (self._has_windows or self._evaluates_first):
                    output.persist()
                try:
                    attempt = self._claim(batch_id)
                    if self._evaluates_first:
                        self._evaluate(output)
                    self._attempt(output, attempt, writer, skip=False)
                    return
                except Exception as error:
                    problem = raised_in_worker(error)
                    if not isinstance(problem, FailedException):
                        raise
                if not self._has_windows:  # then failures of the first stages are rows, which must not be kept
                    output.unpersist()
                    set_evaluated(output.sparkSession, None)
                failures += 1
                _log.warning(
                    "topology %r: attempt %d at batch %d failed: %s", self._name, failures, batch_id, cause_of(problem)
                )
                if self._retry.is_last(failures):
                    self._give_up(output, batch_id, writer, failures, problem)
                    return
                time.sleep(self._retry.delay_ms(failures) / 1000)

    def _claim(self, batch_id: int) -> TransactionAttempt:
        failpoints.hit("before_claim", batch_id)
        attempt = self._attempts.claim(batch_id + 1)
        if self._committed.exists(str(batch_id)):
            raise SupersededError(
                f"topology {self._name!r}: batch {attempt.txid} is committed already: another process went on with the checkpoint; "
                "one query at a time can have it"
            )
        failpoints.hit("after_claim", batch_id)
        return attempt

    def _give_up(
        self, output: DataFrame, batch_id: int, writer: BatchWriter, failures: int, problem: FailedException
    ) -> None:
        if self._on_failure is OnFailure.STOP:
            raise FailedException(
                f"topology {self._name!r}: batch {batch_id + 1} failed {failures} times and is not committed; the last cause: "
                f"{cause_of(problem)}. Repair that and start again from the checkpoint; or give on_failure=OnFailure.SKIP"
            ) from problem
        self._attempt(output, self._claim(batch_id), writer, skip=True)
        _log.error("topology %r: batch %d was skipped: %s", self._name, batch_id + 1, cause_of(problem))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _evaluate(self, output: DataFrame) -> None:
        """Evaluate the query in a job of its own, of which it is the last stage (writer.py). Later jobs must not read the source
        again (operator.ReadOnce): windows that are kept would be mixed with windows of another order; and of two states of which
        the second reads the first, Spark would repeat the first stage as the same attempt, which keeps what is written.
        """
        try:
            evaluate(output)
        finally:
            set_evaluated(output.sparkSession, "stream")

    def _attempt(self, output: DataFrame, attempt: TransactionAttempt, writer: BatchWriter, skip: bool) -> None:
        """Evaluate and commit one attempt. With `skip`, every partition of a state commits it without tuples."""
        keeps_dead_letters = any(name.endswith(f".{DEAD_LETTERS}") for name in writer.sinks)
        depths = [*([] if skip else self._plan.depths(Section.BATCH)), *self._plan.depths(Section.COMMIT)]
        if skip:
            rows = output.where("kind = 'input'").withColumn("kind", F.lit("out"))
        else:
            rows = output.where("kind != 'input'") if keeps_dead_letters else output
        spark = output.sparkSession
        spark.sparkContext.setLocalProperty(ATTEMPT_PROPERTY, str(attempt.attempt))
        for stage, begun, label in self._stages_of(spark, depths):
            rows = stage.of(label.repartition(rows.union(begun), self._partitions))
        keeps = bool(writer.sinks) and not rows.is_cached
        if keeps:
            rows.persist()
        with released(rows) if keeps else nullcontext():
            failpoints.hit("before_commits", attempt.txid - 1)
            counts = self._checked(rows, depths, attempt, writer)
            writer.observe()
            failpoints.hit("after_commits", attempt.txid - 1)
            writer.deliver(rows, counts, attempt.txid - 1)

    def _stages_of(self, spark: SparkSession, depths: Sequence[int]) -> list[_Stages]:
        """Return the stages of an attempt at these depths. They are created once for each of the two cases, normal and skipped,
        because each expression costs calls of the JVM.
        """
        found = self._stages.get(tuple(depths))
        if found is None:
            found = self._stages[tuple(depths)] = []
            for position, depth in enumerate(depths):
                stage = TridentBatchStage(self._shipped, depth, depths[:position], channel=self._channel)
                first = min(stage.tasks)
                every_task = spark.range(first, first + len(stage.tasks), 1, 1)
                begun = control_row(every_task, "id", "'begin'", "0L")
                label = Columns(label_of_row(self._labels[depth], first))
                found.append((MapInArrow(stage, EXCHANGE.names, EXCHANGE), begun, label))
        return found

    def _count_reports(self, reports: Sequence[Any], batch_id: int, writer: BatchWriter) -> None:
        """Log and count the reported errors. Reports of the stream and of earlier stages are repeated in each evaluation and
        counted once.
        """
        if batch_id != self._reports_of:
            self._reports_of, self._reports, writer.reported = batch_id, Counter(), 0
        found = Counter((row["stream"], row["sequence"], row["value"], text_of(row)) for row in reports)
        new = []
        for (stream, _, number, text), times in sorted((found - self._reports).items()):
            writer.reported += number * times
            new.append((stream, f"({number * times} times) {text}"))
        log_reports(f"topology {self._name!r}, batch {batch_id + 1}: ", new)
        self._reports |= found

    def _checked(
        self, rows: DataFrame, depths: Sequence[int], attempt: TransactionAttempt, writer: BatchWriter
    ) -> Mapping[str, Any]:
        """Evaluate the rows and return the counts of the streams. Raises FailedException if a task has failed."""
        reported_rows = self._streams.for_driver(rows)
        self._count_reports([row for row in reported_rows if row["kind"] == "reported"], attempt.txid - 1, writer)
        failed = min((text_of(row) for row in reported_rows if row["kind"] == "failed"), default=None)
        if failed is not None:
            raise FailedException(failed)
        done = len({row["value"] for row in reported_rows if row["kind"] == "done"})
        tasks = sum(task.stage.depth in depths for task in self._plan.tasks)
        if done != tasks:
            raise WindowingError(
                f"topology {self._name!r}: {done} places have worked on attempt {attempt}, wanted {tasks}; "
                "nothing of the batch counts: start again from the checkpoint, and report this"
            )
        return self._streams.found_in(reported_rows)
