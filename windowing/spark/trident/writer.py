"""TridentWriter: what foreachBatch does with a Trident batch: claim an attempt, evaluate, commit, write sinks; or try again.

    claim 6:0 --> units that may fail --one action--> units that commit --one action--> sinks
                        | FailedException                   | FailedException
    claim 6:1 <---------+-----------------------------------+       after a delay, as often as the topology says; then
                                                                     stop, or skip: nothing but an empty attempt, dead letters

Laws: a state is written only when all of the attempt before it was evaluated and is good; each place of a level works once in an
attempt, one without tuples too; whatever is no FailedException ends the query.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from windowing.acking.retry import RetryPolicy
from windowing.errors import FailedException, SupersededError, WindowingError, cause_of, shown
from windowing.spark import failpoints
from windowing.spark.acks import Acks
from windowing.spark.failures import unwrapped
from windowing.spark.hadoop import Folder
from windowing.spark.outlets import Outlets
from windowing.spark.running import BatchWriter
from windowing.spark.shipping import Shipped
from windowing.spark.sinks import Sink
from windowing.spark.trident.attempts import Attempts
from windowing.spark.trident.levels import DEAD_LETTERS, batch_level
from windowing.topology.trident.units import Section, TridentUnits
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import OnFailure

__all__ = ["TridentWriter"]

_MAX_CAUSE = 500

_log = logging.getLogger("windowing.spark")


class TridentWriter(BatchWriter):
    """`labels[level]` are the grouping keys of a level's places, `partitions` how many a shuffle has. commits: Spark's log of
    committed batches. acks: for sources that take them; a batch of one is done when it is committed."""

    def __init__(
        self,
        shipped: Shipped[TridentUnits],
        outlets: Outlets,
        sinks: Mapping[str, Sink],
        log_late: bool,
        *,
        labels: Mapping[int, Sequence[int]],
        partitions: int,
        retry: RetryPolicy,
        on_failure: OnFailure,
        attempts: Attempts,
        commits: Folder,
        acks: Acks | None,
    ) -> None:
        self._shipped, self._units = shipped, shipped.value
        super().__init__(self._units.plan.name, outlets, sinks, log_late, acks)
        self._labels, self._partitions = labels, partitions
        self._retry, self._on_failure = retry, on_failure
        self._attempts, self._commits = attempts, commits
        self._hearing, self._heard = -1, Counter[tuple[str, int, int, str]]()
        self._letters = any(name.endswith(f".{DEAD_LETTERS}") for name in sinks)

    def _write(self, output: DataFrame, batch_id: int) -> None:
        failures = 0
        while True:
            try:
                self._evaluate(output, self._claim(batch_id), skip=False)
                return
            except Exception as error:
                problem = unwrapped(error)
                if not isinstance(problem, FailedException):
                    raise
            failures += 1
            _log.warning(
                "topology %r: attempt %d at batch %d failed: %s", self._bolt, failures, batch_id, cause_of(problem)
            )
            if self._retry.is_last(failures):
                self._give_up(output, batch_id, failures, problem)
                return
            if not self._units.levels(Section.STREAM):  # it may hold the failure of a unit behind a source
                output.unpersist(blocking=True)
                output.persist()
            time.sleep(self._retry.delay_ms(failures) / 1000)

    def _claim(self, batch_id: int) -> TransactionAttempt:
        failpoints.hit("before_claim", batch_id)
        attempt = self._attempts.claim(batch_id + 1)
        if self._commits.exists(str(batch_id)):
            raise SupersededError(
                f"topology {self._bolt!r}: batch {attempt.txid} is committed already: another process went on with the checkpoint; "
                "one query at a time can have it"
            )
        failpoints.hit("after_claim", batch_id)
        return attempt

    def _give_up(self, output: DataFrame, batch_id: int, failures: int, problem: FailedException) -> None:
        """Stop, or skip the batch."""
        if self._on_failure is OnFailure.STOP:
            raise FailedException(
                f"topology {self._bolt!r}: batch {batch_id + 1} failed {failures} times and is not committed; the last cause: "
                f"{cause_of(problem)}. Repair that and start again from the checkpoint; or give on_failure=OnFailure.SKIP"
            ) from problem
        self._evaluate(output, self._claim(batch_id), skip=True)
        _log.error("topology %r: batch %d was skipped: %s", self._bolt, batch_id + 1, cause_of(problem))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _evaluate(self, output: DataFrame, attempt: TransactionAttempt, skip: bool) -> None:
        """Evaluate and commit one attempt. Skipped, every partition of a state commits it without a tuple."""
        kept: list[DataFrame] = []
        try:
            if skip:
                rows = output.where(F.col("kind") == "input").withColumn("kind", F.lit("out"))
            else:
                rows = output.where(F.col("kind") != "input") if self._letters else output
                rows = self._levels(rows, self._units.levels(Section.BATCH), attempt)
            worked = [] if skip else self._units.levels(Section.BATCH)
            for levels in _between_commits(self._units):
                # A state takes part in an attempt only when all that the attempt is so far was evaluated and is good.
                kept += [] if rows is output else [rows.persist()]
                self._check(rows, worked, attempt)
                failpoints.hit("before_commits", attempt.txid - 1)
                rows = self._levels(rows, levels, attempt)
                worked += levels
            kept += [] if rows is output else [rows.persist()]
            counts = self._check(rows, worked, attempt)
            failpoints.hit("after_commits", attempt.txid - 1)
            self._deliver(rows, counts, attempt.txid - 1)
        finally:
            for each in kept:
                each.unpersist()

    def _levels(self, rows: DataFrame, levels: Sequence[int], attempt: TransactionAttempt) -> DataFrame:
        for level in levels:
            rows = batch_level(rows, self._shipped, level, self._labels[level], self._partitions, attempt)
        return rows

    def _hear(self, reports: Sequence[Any], batch_id: int) -> None:
        """Log and count the errors that were reported; those of the stream, and of levels before, come in each evaluation."""
        if batch_id != self._hearing:
            self._hearing, self._heard = batch_id, Counter()
        found = Counter((row["stream"], row["sequence"], row["value"], row["text"]) for row in reports)
        for (stream, _, number, text), times in sorted((found - self._heard).items()):
            self.reported[batch_id] = self.reported.get(batch_id, 0) + number * times
            _log.warning(
                "topology %r, batch %d: %s reports (%d times) %s",
                self._bolt,
                batch_id + 1,
                stream,
                number * times,
                text,
            )
        self._heard |= found

    def _check(self, rows: DataFrame, levels: Sequence[int], attempt: TransactionAttempt) -> Any:
        """Evaluate the rows and return what the aggregates have found. Raises FailedException if a place says so."""
        counts = rows.agg(*self._aggregates(), *_verdict()).first()
        assert counts is not None
        self._hear(counts["_reported"], attempt.txid - 1)
        if counts["_failed"] is not None:
            raise FailedException(str(counts["_failed"]))
        places = sum(place.unit.level in levels for place in self._units.places)
        if counts["_done"] != places:
            raise WindowingError(
                f"topology {self._bolt!r}: {shown(counts['_done'])} places have worked on attempt {attempt}, wanted {places}; "
                "nothing of the batch counts: start again from the checkpoint, and report this"
            )
        return counts


def _between_commits(units: TridentUnits) -> list[list[int]]:
    """Return the levels of the commit section, cut before each that writes a state."""
    cut: list[list[int]] = []
    for level in units.levels(Section.COMMIT):
        if not cut or any(place.unit.states for place in units.on_level(level)):
            cut.append([])
        cut[-1].append(level)
    return cut


def _verdict() -> list[Column]:
    cause = F.when(F.col("kind") == "failed", F.substring(F.decode(F.col("data"), "UTF-8"), 1, _MAX_CAUSE))
    done = F.when(F.col("kind") == "done", F.col("value"))
    text = F.substring(F.decode(F.col("data"), "UTF-8"), 1, _MAX_CAUSE).alias("text")
    reported = F.when(F.col("kind") == "reported", F.struct("stream", "sequence", "value", text))
    return [
        F.min(cause).alias("_failed"),
        F.count_distinct(done).alias("_done"),
        F.collect_list(reported).alias("_reported"),
    ]
