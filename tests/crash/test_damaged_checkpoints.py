"""A damaged checkpoint gives an error of this library that names the file, or the correct output; never wrong output."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    finish,
    input_rows,
    outputs,
    progress_of,
)
from tests.crash.job import Job
from windowing.errors import CheckpointError

pytestmark = pytest.mark.crash

Halfway = Callable[..., Job]
LAST = HALF - 1
"""The newest batch; a half done one comes after it."""
NEWEST = {
    "the offsets before it": f"offsets/{LAST}",
    "the files of the half done batch": f"sources/0/{HALF}",
    "the last commit": f"commits/{LAST}",
    "the state that it starts from": f"state/0/0/{HALF}_*.changelog",
    "the state that nobody committed": f"state/0/0/{HALF + 1}_*.changelog",
}
FILES = {
    "the definition": "windowing/definition.json",
    "the query's id": "metadata",
    "the last offsets": f"offsets/{LAST}",
    "older offsets": f"offsets/{LAST - 1}",
    "the last commit": f"commits/{LAST}",
    "an older commit": f"commits/{LAST - 1}",
    "the last files read": f"sources/0/{LAST}",
    "the last changes of a state": f"state/0/0/{HALF}_*.changelog",
    "older changes of a state": f"state/0/0/{HALF - 1}_*.changelog",
    "the snapshot of a state": "state/0/0/1_*.zip",
    "a table of the snapshot": "state/0/0/SSTs/*.sst",
    "the operator's metadata": "state/0/_metadata/v2/0",
    "the schema of the state": "state/0/_stateSchema/default/0_*",
}
KINDS = ("truncated", "flipped", "deleted")


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    if kind == "deleted":
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum belongs to its file
    elif kind == "truncated":
        os.truncate(path, middle)
    else:
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


def refusal_of(spark: SparkSession, job: Job) -> str | None:
    """Run the job to its end; return the error of this library, None if there is none."""
    try:
        finish(spark, job)
    except CheckpointError as error:
        return str(error)
    return None


def put_back(job: Job, whole: dict[str, bytes], path: Path) -> None:
    for name in (path, path.with_name(f".{path.name}.crc")):
        content = whole.get(str(name.relative_to(job.folder)))
        if content is not None:
            name.write_bytes(content)


def done_of(job: Job, wanted: Outputs) -> Outputs:
    """Return the expected output of the batches that the job has committed."""
    return by_batch(wanted, range(max(map(int, progress_of(job)["commits"])) + 1))


def check_damage(spark: SparkSession, job: Job, pattern: str, kind: str, wanted: Outputs) -> None:
    job = replace(job, drain=False)
    wanted = by_batch(wanted, range(BATCHES))
    (path,) = job.checkpoint.glob(pattern)
    whole = content_of(job)
    damage(path, kind)
    refusal = refusal_of(spark, job)
    if refusal is not None:
        assert str(path.relative_to(job.checkpoint)) in refusal
        assert "\n" not in refusal
        if "put the file back" in refusal:  # before Spark has begun
            put_back(job, whole, path)
            finish(spark, job)
    assert_same(outputs(job), wanted if refusal is None or "put the file back" in refusal else done_of(job, wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", FILES)
def test_a_damaged_file_is_named_or_does_no_harm(
    spark: SparkSession, halfway: Halfway, undisturbed: Callable[..., Outputs], what: str, kind: str
) -> None:
    check_damage(spark, halfway("sliding"), FILES[what], kind, undisturbed("sliding"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", NEWEST)
def test_a_file_damaged_while_a_batch_is_half_done_is_named_or_does_no_harm(
    spark: SparkSession, halfway: Halfway, undisturbed: Callable[..., Outputs], what: str, kind: str
) -> None:
    check_damage(spark, halfway("sliding", pending=True), NEWEST[what], kind, undisturbed("sliding"))


def test_a_batch_without_logged_offsets_is_planned_again_and_loses_nothing(
    spark: SparkSession, halfway: Halfway, undisturbed: Callable[..., Outputs]
) -> None:
    job = halfway("sliding", pending=True)
    damage(job.checkpoint / "offsets" / str(HALF), "deleted")  # the file source has its own log of the batch already
    finish(spark, job)
    assert_nothing_lost(outputs(job), input_rows())
    assert_same(by_batch(outputs(job), range(HALF)), by_batch(undisturbed("sliding"), range(HALF)))
