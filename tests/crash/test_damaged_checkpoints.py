"""A damaged checkpoint: an error of ours that names the file, or the right output; never silently another one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.harness import HALF, Outputs, assert_same, finish, outputs
from tests.crash.job import Job
from windowing.errors import CheckpointError

pytestmark = pytest.mark.crash

Halfway = Callable[..., Job]
LAST = HALF - 1
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
KINDS = ("truncated", "flipped", "garbage", "deleted")


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    if kind == "deleted":
        path.unlink()
    elif kind == "truncated":
        os.truncate(path, middle)
    elif kind == "garbage":
        path.write_bytes(random.Random(1).randbytes(len(content)))
    else:
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


def refusal_of(spark: SparkSession, job: Job) -> str | None:
    """Run the job to its end; return what this library says against it, if it does."""
    try:
        finish(spark, job)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("pending", [False, True], ids=["done", "half done"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", FILES)
def test_a_damaged_file_is_named_or_does_no_harm(
    spark: SparkSession, halfway: Halfway, undisturbed: Callable[..., Outputs], what: str, kind: str, pending: bool
) -> None:
    if pending and what not in ("the last offsets", "the last commit", "the last changes of a state"):
        pytest.skip("a half done batch makes a difference only for the newest files")
    job = halfway("sliding", pending=pending)
    (path,) = job.checkpoint.glob(FILES[what])
    content = path.read_bytes()
    damage(path, kind)
    refusal = refusal_of(spark, job)
    if refusal is not None:
        assert path.name in refusal
        assert "\n" not in refusal
        path.write_bytes(content)  # the way out: the file is put back
        finish(spark, job)
    assert_same(outputs(job), undisturbed("sliding"))
