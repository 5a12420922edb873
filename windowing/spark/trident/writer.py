"""TridentWriter: what foreachBatch does with a Trident batch: claim an attempt, evaluate, commit, write sinks; or try again.

    claim 6:0 --> units that may fail --one action--> units that commit --one action--> sinks
                        | FailedException                   | FailedException
    claim 6:1 <---------+-----------------------------------+       after a delay, as often as the topology says; then
                                                                     stop, or skip: nothing but an empty attempt, dead letters

Laws: nothing is written before all that may fail was evaluated; each place of a level works once in an attempt, one without tuples
too; whatever is no FailedException ends the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from windowing.acking.retry import RetryPolicy
from windowing.errors import FailedException, WindowingError, shown
from windowing.spark import failpoints
from windowing.spark.failures import unwrapped
from windowing.spark.outlets import Outlets
from windowing.spark.running import BatchWriter
from windowing.spark.sinks import Sink
from windowing.spark.trident.attempts import Attempts, cause_of
from windowing.spark.trident.levels import batch_level
from windowing.topology.trident.units import Section, TridentUnits
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.coordinator_rules import OnFailure
from windowing.transactions.kinds import StateType

__all__ = ["TridentWriter"]

_MAX_CAUSE = 500

_log = logging.getLogger("windowing.spark")


class TridentWriter(BatchWriter):
    """`labels[level]` are the grouping keys of a level's places, `partitions` how many a shuffle has."""

    def __init__(
        self,
        units: TridentUnits,
        outlets: Outlets,
        sinks: Mapping[str, Sink],
        log_late: bool,
        *,
        labels: Mapping[int, Sequence[int]],
        partitions: int,
        retry: RetryPolicy,
        on_failure: OnFailure,
    ) -> None:
        super().__init__(units.plan.name, outlets, sinks, log_late)
        self._units, self._labels, self._partitions = units, labels, partitions
        self._retry, self._on_failure = retry, on_failure
        self._attempts = Attempts(units.plan)
        self._can_undo = all(state.spec.kind is StateType.OPAQUE for state in units.plan.states.values())
        self._begun = 0

    def _write(self, output: DataFrame, batch_id: int) -> None:
        failures = 0
        while True:
            failpoints.hit("before_claim", batch_id)
            attempt = self._attempts.claim(batch_id + 1)
            failpoints.hit("after_claim", batch_id)
            try:
                self._evaluate(output, attempt, skip=False)
                return
            except Exception as error:
                problem = unwrapped(error)
                if not isinstance(problem, FailedException):
                    raise
            failures += 1
            _log.warning("topology %r: attempt %s failed: %s", self._bolt, attempt, cause_of(problem))
            if self._retry.is_last(failures):
                self._give_up(output, attempt, failures, problem)
                return
            if not self._units.levels(Section.STREAM):  # it may hold the failure of a unit behind a source
                output.unpersist(blocking=True)
                output.persist()
            time.sleep(self._retry.delay_ms(failures) / 1000)

    def _give_up(self, output: DataFrame, attempt: TransactionAttempt, failures: int, problem: FailedException) -> None:
        """Stop, or skip the batch: one that windows have to see cannot be skipped, nor one that a state may hold part of."""
        stopped = (
            f"topology {self._bolt!r}: batch {attempt.txid} failed {failures} times and is not committed; the last cause: "
            f"{cause_of(problem)}. Repair that and start again from the checkpoint"
        )
        if self._on_failure is OnFailure.STOP:
            raise FailedException(f"{stopped}; or give on_failure=OnFailure.SKIP") from problem
        if self._units.levels(Section.STREAM):
            raise FailedException(f"{stopped}: a batch that windows have to see cannot be skipped") from problem
        elsewhere = attempt.attempt >= failures  # by a process before this one, which may have begun to commit
        if (self._begun == attempt.txid or elsewhere) and not self._can_undo:
            raise FailedException(
                f"{stopped}: a state that is not opaque may hold part of the batch, so it cannot be skipped"
            ) from problem
        self._evaluate(output, self._attempts.claim(attempt.txid), skip=True)
        _log.error("topology %r: batch %d was skipped: %s", self._bolt, attempt.txid, cause_of(problem))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _evaluate(self, output: DataFrame, attempt: TransactionAttempt, skip: bool) -> None:
        """Evaluate and commit one attempt. Skipped, every partition of a state commits it without a tuple."""
        kept: list[DataFrame] = []
        rows = output
        if skip:
            rows = output.where(F.col("kind") == "input").withColumn("kind", F.lit("out"))
        try:
            if not skip:
                rows = self._levels(rows, Section.BATCH, attempt)
            commits = self._units.levels(Section.COMMIT)
            if commits:
                if rows is not output:
                    kept.append(rows.persist())
                self._check(rows, () if skip else (Section.BATCH,), attempt)
                failpoints.hit("before_commits", attempt.txid - 1)
                self._begun = attempt.txid
                rows = self._levels(rows, Section.COMMIT, attempt)
            if rows is not output:
                kept.append(rows.persist())
            done = (Section.COMMIT,) if skip else (Section.BATCH, Section.COMMIT)
            counts = self._check(rows, done, attempt)
            failpoints.hit("after_commits", attempt.txid - 1)
            self._deliver(rows, counts, attempt.txid - 1)
        finally:
            for each in kept:
                each.unpersist()

    def _levels(self, rows: DataFrame, section: Section, attempt: TransactionAttempt) -> DataFrame:
        for level in self._units.levels(section):
            rows = batch_level(rows, self._units, level, self._labels[level], self._partitions, attempt)
        return rows

    def _check(self, rows: DataFrame, sections: Sequence[Section], attempt: TransactionAttempt) -> Any:
        """Evaluate the rows and return what the aggregates have found. Raises FailedException if a place says so."""
        counts = rows.agg(*self._aggregates(), *_verdict()).first()
        assert counts is not None
        if counts["_failed"] is not None:
            raise FailedException(str(counts["_failed"]))
        places = sum(place.unit.section in sections for place in self._units.places)
        if counts["_done"] != places:
            raise WindowingError(
                f"topology {self._bolt!r}: {shown(counts['_done'])} places have worked on attempt {attempt}, wanted {places}; "
                "nothing of the batch counts: start again from the checkpoint, and report this"
            )
        return counts


def _verdict() -> list[Column]:
    cause = F.when(F.col("kind") == "failed", F.substring(F.decode(F.col("data"), "UTF-8"), 1, _MAX_CAUSE))
    done = F.when(F.col("kind") == "done", F.col("value"))
    return [F.min(cause).alias("_failed"), F.count_distinct(done).alias("_done")]
