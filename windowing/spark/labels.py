"""Grouping keys that spread: one label per task, chosen so that N tasks fill min(N, P) shuffle partitions.

The keys 0..N-1 do not spread: 0 and 1 hash to one partition of 2, and one core does all the work while the other
idles. So the label of task i is the smallest unused number with `pmod(hash(label), P) == i mod P`, found with Spark's
own hash. Law: labels depend on N and P alone, so a restart finds the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.errors import ConfigError, shown

__all__ = ["MOST_TASKS", "label_of_row", "task_labels"]

MOST_TASKS = 100_000
"""How many tasks or partitions a shuffle may have; their keys are looked for on the driver, some 16 for each."""


def task_labels(spark: SparkSession, tasks: int, partitions: int) -> tuple[int, ...]:
    """Return the grouping keys (longs) of tasks 0..tasks-1 for a shuffle into `partitions`.

    Cost: one constant expression, evaluated on the driver without a job. Raises ConfigError for a count below 1, or above
    MOST_TASKS.
    """
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 1:
        raise ConfigError(f"tasks is a number of at least 1, got {shown(tasks)}; leave it out for one task per core")
    if partitions < 1:
        raise ConfigError(f"a shuffle has at least 1 partition, got {partitions}; set spark.sql.shuffle.partitions")
    if max(tasks, partitions) > MOST_TASKS:
        raise ConfigError(
            f"{tasks} tasks in {partitions} partitions were asked for, but a shuffle has {MOST_TASKS} at most; give fewer"
        )
    bound = 16 * max(tasks, partitions)
    while True:
        found = _pick(_residues(spark, bound, partitions), tasks, partitions)
        if found is not None:
            return found
        bound *= 4


def label_of_row(labels: Sequence[int], first: int) -> Column:
    """Return the grouping key of a row of the wire: that of the place that its `target` names, `labels[target - first]`; a row
    that is meant for none of these places passes through any of them.
    """
    keys = F.array(*[F.lit(label).cast("bigint") for label in labels])
    anyone = F.pmod(F.col("sender") + F.col("sequence"), F.lit(len(labels)))
    return F.coalesce(F.get(keys, (F.col("target") - first).cast("int")), F.get(keys, anyone.cast("int")))


def _residues(spark: SparkSession, bound: int, partitions: int) -> list[int]:
    query = f"SELECT transform(sequence(0L, {bound - 1}L), x -> pmod(hash(x), {partitions})) AS residues"
    row = spark.sql(query).first()
    assert row is not None
    return list(row[0])


def _pick(residues: list[int], tasks: int, partitions: int) -> tuple[int, ...] | None:
    of_residue: dict[int, list[int]] = {}
    for number, residue in enumerate(residues):
        of_residue.setdefault(residue, []).append(number)
    chosen = []
    for task in range(tasks):
        candidates = of_residue.get(task % partitions, [])
        if len(candidates) <= task // partitions:
            return None
        chosen.append(candidates[task // partitions])
    return tuple(chosen)
