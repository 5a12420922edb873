"""Grouping keys that spread tasks over all partitions; the plain keys 0..N-1 do not (0 and 1 share a partition of two)."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.topology.test_groupings import BY_TYPE
from windowing.errors import ConfigError
from windowing.schema.hashing import key_hash
from windowing.spark import control
from windowing.spark.control import checked_tasks, task_labels


@pytest.mark.parametrize(("tasks", "partitions"), [(1, 1), (2, 2), (5, 3), (3, 8), (16, 16)])
def test_the_label_of_a_task_hashes_to_its_partition(spark: SparkSession, tasks: int, partitions: int) -> None:
    labels = task_labels(spark, tasks, partitions)
    assert len(set(labels)) == tasks
    rows = spark.createDataFrame([(label,) for label in labels], "label long")
    hashed = rows.select("label", F.pmod(F.hash("label"), F.lit(partitions)).alias("p")).collect()
    found = {row["label"]: row["p"] for row in hashed}
    assert [found[label] for label in labels] == [task % partitions for task in range(tasks)]


@pytest.mark.parametrize(("tasks", "partitions"), [(2, 2), (5, 3), (3, 4)])
def test_the_labels_of_tasks_fill_as_many_partitions_as_possible_in_a_shuffle(
    spark: SparkSession, tasks: int, partitions: int
) -> None:
    labels = task_labels(spark, tasks, partitions)
    rows = spark.createDataFrame([(label,) for label in labels], "label long").repartition(partitions, "label")
    filled = {row[0] for row in rows.select(F.spark_partition_id()).collect()}
    assert len(filled) == min(tasks, partitions)


def test_the_plain_keys_zero_and_one_share_a_partition_of_two(spark: SparkSession) -> None:
    rows = spark.range(2).repartition(2, "id").select(F.spark_partition_id()).collect()
    assert len({row[0] for row in rows}) == 1


def test_labels_are_the_same_after_a_restart(spark: SparkSession) -> None:
    found = task_labels(spark, 4, 4)
    control._labels.clear()
    assert task_labels(spark, 4, 4) == found


def test_labels_are_computed_once_per_process(spark: SparkSession) -> None:
    found = task_labels(spark, 6, 6)
    assert task_labels(cast(Any, None), 6, 6) == found


@pytest.mark.parametrize("tasks", [0, -1, True, "2"])
def test_a_bad_number_of_tasks_is_refused(tasks: Any) -> None:
    with pytest.raises(ConfigError, match="tasks is a number of at least 1"):
        checked_tasks(tasks)


def test_key_hash_equals_spark_s_xxhash64_for_every_type_and_for_several_columns(spark: SparkSession) -> None:
    rounds = max(map(len, BY_TYPE.values()))
    rows = [tuple(values[number % len(values)] for values in BY_TYPE.values()) for number in range(rounds)]
    names = [f"c{number}" for number in range(len(BY_TYPE))]
    frame = spark.createDataFrame(rows, ", ".join(map(" ".join, zip(names, BY_TYPE, strict=True)))).coalesce(1)
    hashes = [F.xxhash64(name) for name in names]
    second = F.xxhash64("c7", F.lit(1))  # how partial key grouping makes its second candidate
    found = frame.select(*hashes, F.xxhash64(*names), second, F.pmod(F.xxhash64(*names), F.lit(7))).collect()
    types = tuple(BY_TYPE)
    expected = [
        (
            *(key_hash((kind,), (value,)) for kind, value in zip(types, row, strict=True)),
            key_hash(types, row),
            key_hash(("string", "int"), (row[7], 1)),
            key_hash(types, row) % 7,
        )
        for row in rows
    ]
    for row, theirs, ours in zip(rows, found, expected, strict=True):
        wrong = [
            (what, value, a, b)
            for what, value, a, b in zip(
                [*types, "chained", "second", "task"], [*row, row, row[7], row], theirs, ours, strict=True
            )
            if a != b
        ]
        assert not wrong, wrong
