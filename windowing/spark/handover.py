"""How many bytes Spark hands to Python at once: a limit whose price is paid for each row.

Spark asks after every row how large the Arrow batch is by now, field by field; of a million rows of five columns that is more than
a third of the time that it takes to hand them over. Without the limit it does not ask, and only the number of rows
(`spark.sql.execution.arrow.maxRecordsPerBatch`) bounds a batch.

    batch 0 of a run            with the limit: nobody knows yet how much a task takes
    batch n, n-1 was small      without
    batch n, n-1 was large      with: all that a task takes may be one Arrow batch, which ends at 2 GiB

Law: the limit decides how rows are cut into Arrow batches, never what comes out. A batch that is many times the one before, and
breaks for want of the limit, ends the query; the next start makes it again with the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["LIMIT", "SMALL_BYTES", "Handover"]

LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"
SMALL_BYTES = 128 << 20
"""What the largest task of a batch may have taken, packed, for the next batch to go without the limit."""
_NO_LIMIT = str(2**31 - 1)


class Handover:
    """What is known of the sizes of a query's batches; one for each run."""

    def __init__(self) -> None:
        self._largest: int | None = None
        self._users: bool | None = None

    def took(self, largest: int | None) -> None:
        """Take note of how many packed bytes the largest task of a batch took; None where no task took any."""
        self._largest = largest or 0

    @contextmanager
    def of_batch(self, spark: SparkSession) -> Iterator[None]:
        """Lift the limit for what is evaluated inside, unless the batch may be large or the user has set the limit."""
        if self._largest is None or self._largest > SMALL_BYTES or self._is_users(spark):
            yield
            return
        spark.conf.set(LIMIT, _NO_LIMIT)
        try:
            yield
        finally:
            spark.conf.unset(LIMIT)

    def _is_users(self, spark: SparkSession) -> bool:
        if self._users is None:
            self._users = LIMIT in spark.conf.getAll
        return self._users
