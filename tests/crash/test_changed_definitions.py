"""Starts with a changed definition: refused with one sentence before the first batch, or continued with correct output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash.harness import (
    BATCHES,
    HALF,
    Outputs,
    assert_nothing_lost,
    assert_same,
    by_batch,
    content_of,
    exact,
    finish,
    input_rows,
    outputs,
)
from tests.crash.job import COLUMNS, DEFINITIONS, Definition, Job, describe, start
from windowing import WindowedBoltExecutor, bolt_of, count, seconds
from windowing.errors import CheckpointError, ConfigError, DefinitionChangedError
from windowing.spark import FileSink
from windowing.windows import aggregate as agg

pytestmark = pytest.mark.crash

Undisturbed = Callable[..., Outputs]
Halfway = Callable[..., Job]
SLIDING = DEFINITIONS["sliding"]


def changed(definition: Definition = SLIDING, **options: Any) -> Definition:
    return replace(definition, options={**definition.options, **options})


REFUSED = {
    "another length": (changed(length=seconds(15)), 'length of bolt \'sliding\' was {"ms": 10000}, now {"ms": 15000}'),
    "a length in tuples": (changed(length=count(9)), "length of bolt 'sliding'"),
    "another slide": (changed(slide=seconds(10)), 'slide of bolt \'sliding\' was {"ms": 5000}, now {"ms": 10000}'),
    "another key": (changed(key=("key", "id")), 'key of bolt \'sliding\' was ["key"], now ["key", "id"]'),
    "no key": (
        Definition({name: value for name, value in SLIDING.options.items() if name != "key"}, tasks=1),
        "key of bolt 'sliding' was [\"key\"], now null",
    ),
    "another lateness": (changed(lateness="window"), "lateness of bolt 'sliding'"),
    "an offset": (changed(offset=seconds(1)), "offset_ms of bolt 'sliding'"),
    "an aggregate": (changed(aggregate={"n": agg.count()}), "aggregate of bolt 'sliding'"),
    "another timestamp": (
        replace(SLIDING, common={"timestamp": "id", "late_stream": "late"}),
        'timestamp of bolt \'sliding\' was {"field": "at"}, now {"field": "id"}',
    ),
    "more tasks": (replace(SLIDING, tasks=3), "tasks was 2, now 3"),
    "another name": (replace(SLIDING, renamed="gliding"), 'name of bolt \'sliding\' was "sliding", now "gliding"'),
    "a column less": (
        replace(SLIDING, columns="id long, key string, at long"),
        "column 'value' (double) of input stream 'default' is gone",
    ),
    "a column of another type": (
        replace(SLIDING, columns=COLUMNS.replace("value double", "value float")),
        "column 'value' of input stream 'default' was double, now float",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_change_that_stored_windows_depend_on_is_refused_before_the_first_batch(
    spark: SparkSession, halfway: Halfway, what: str
) -> None:
    definition, sentence = REFUSED[what]
    job = halfway("sliding")
    before = content_of(job)
    with pytest.raises(DefinitionChangedError) as caught:
        start(spark, job, definition)
    message = str(caught.value)
    assert sentence in message
    assert (
        "restore the old definition, or start with a new checkpoint and a new output folder, after the old" in message
    )
    assert "\n" not in message
    assert content_of(job) == before


def test_a_changed_order_of_arrival_is_refused_while_a_batch_is_half_done(
    spark: SparkSession, halfway: Halfway
) -> None:
    job = halfway("sliding", pending=True)
    before = content_of(job)
    with pytest.raises(
        CheckpointError, match=f'batch {HALF} was left half done.*order_by was .*, now .*"id"'
    ) as caught:
        start(spark, replace(job, order_by=("id",)))
    assert "\n" not in str(caught.value)
    assert content_of(job) == before


def test_a_refused_query_continues_with_its_old_definition(
    spark: SparkSession, halfway: Halfway, undisturbed: Undisturbed
) -> None:
    job = halfway("sliding")
    with pytest.raises(DefinitionChangedError):
        start(spark, job, changed(length=seconds(15)))
    finish(spark, job)
    assert_same(outputs(job), undisturbed("sliding"))


@pytest.mark.parametrize("pending", [False, True])
def test_a_changed_on_error_applies_and_changes_nothing_else(
    spark: SparkSession, halfway: Halfway, undisturbed: Undisturbed, pending: bool
) -> None:
    job = halfway("sliding", pending=pending)
    finish(spark, job, changed(on_error="skip", max_future=seconds(3600)))
    assert_same(outputs(job), undisturbed("sliding"))


@pytest.mark.parametrize("name", ["sliding", "policy", "aggregate"])
def test_a_new_nullable_column_is_null_in_stored_tuples_and_changes_nothing_else(
    spark: SparkSession, halfway: Halfway, undisturbed: Undisturbed, name: str
) -> None:
    job = halfway(name)
    finish(spark, job, replace(DEFINITIONS[name], columns=COLUMNS + ", note string"))
    found = outputs(job)
    for batch, rows in found["late"].items():
        assert all(("note" in row) == (batch >= HALF) and row.pop("note", None) is None for row in rows)
    assert_same(found, undisturbed(name))


@pytest.mark.parametrize("pending", [False, True])
def test_a_new_field_of_the_output_is_null_in_the_rows_before_and_changes_nothing_else(
    spark: SparkSession, halfway: Halfway, undisturbed: Undisturbed, pending: bool
) -> None:
    job = halfway("sliding", pending=pending)
    new = replace(SLIDING, output=SLIDING.output + ", size long", body=lambda w: (*describe(w), len(w.get())))
    finish(spark, job, new)
    rows = FileSink(str(job.out / "default")).read(spark).collect()
    assert [row["size"] for row in rows] == [len(row["ids"]) if row["batch_id"] >= HALF else None for row in rows]
    found = outputs(job)
    for each in found["default"].values():
        for row in each:
            row.pop("size", None)
    assert_same(found, undisturbed("sliding"))


def test_a_field_of_the_output_of_another_type_is_refused_while_its_folder_has_rows(
    spark: SparkSession, halfway: Halfway
) -> None:
    job = halfway("sliding")
    before = content_of(job)
    with pytest.raises(
        ConfigError, match=r"default holds batches with total double, and .* has total float in its place"
    ):
        start(spark, job, replace(SLIDING, output=SLIDING.output.replace("total double", "total float")))
    assert content_of(job) == before


@pytest.mark.parametrize("lag_s", [0, 9])
def test_a_changed_lag_applies_from_the_next_batch_on_as_in_a_machine_without_spark(
    spark: SparkSession, halfway: Halfway, undisturbed: Undisturbed, lag_s: int
) -> None:
    job = halfway("tumbling", order_by=("id",))
    new = changed(DEFINITIONS["tumbling"], lag=seconds(lag_s))
    finish(spark, job, new)
    found = outputs(job)
    assert_nothing_lost(found, input_rows())
    assert_same(by_batch(found, range(HALF)), by_batch(undisturbed("tumbling", ("id",)), range(HALF)))
    assert _windows(found) == _windows_of_the_core(DEFINITIONS["tumbling"], new)


def _windows(found: Outputs) -> list[tuple[Any, ...]]:
    return [(row["ends"], row["ids"], row["total"]) for rows in found["default"].values() for row in rows]


def _windows_of_the_core(old: Definition, new: Definition) -> list[tuple[Any, ...]]:
    """Run the bare machine over the same batches; its snapshot is restored under the new definition."""
    executor = WindowedBoltExecutor(bolt_of(old.bolt("tumbling")).config)
    found: list[tuple[Any, ...]] = []
    for batch in range(BATCHES + 1):
        if batch == HALF:
            saved = executor.snapshot()
            executor = WindowedBoltExecutor(bolt_of(new.bolt("tumbling")).config)
            executor.restore(saved)
        if batch < BATCHES:
            rows = [row for row in input_rows(range(batch, batch + 1)) if row["at"] is not None and row["at"] < 2**50]
            list(executor.add_batch([_Row(row) for row in rows], [row["at"] for row in rows]))
        for effect in executor.turn() if batch < BATCHES else executor.drain():
            if hasattr(effect, "window"):
                _, ends, ids, _, _, total, _ = describe(effect.window)
                found.append((ends, ids, exact(total)))
    return found


class _Row:
    def __init__(self, columns: dict[str, Any]) -> None:
        self.id, self.value = columns["id"], columns["value"]


def test_a_path_with_glob_characters_can_be_restarted_too(
    spark: SparkSession, tmp_path: Path, source: Path, undisturbed: Undisturbed
) -> None:
    job = Job("sliding", str(source), str(tmp_path / "a [new] job {1}"))
    query = start(spark, job, drain=False)
    assert query.await_end(240)
    finish(spark, job)
    assert_same(outputs(job), undisturbed("sliding"))
