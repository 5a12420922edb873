"""`windowing status` and `rescale` on checkpoints on HDFS and S3: their output, and the query that continues from the result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.crash import job
from tests.object_stores.conftest import closed_port, prepared, result
from tests.object_stores.jobs import ROOT, settings
from tests.object_stores.test_object_stores import REFUSED
from windowing.cli import commands
from windowing.cli.stored import LocalFiles, read_checkpoint
from windowing.spark.hadoop import Folder

KEYS = {"AWS_ACCESS_KEY_ID": "access.key", "AWS_SECRET_ACCESS_KEY": "secret.key"}


def called(*arguments: str) -> tuple[int, str]:
    """Run a command in this process, which has a session; return its exit code and its output."""
    done = CliRunner().invoke(commands, arguments)
    return done.exit_code, " ".join(done.output.split())


def rows(found: Any) -> list[tuple[str, str]]:
    """Return the rows of all batches of a job."""
    return sorted((stream, str(row)) for stream, batches in found.items() for each in batches.values() for row in each)


def test_a_checkpoint_on_a_store_is_shown_and_rescaled_and_its_query_continues(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], there: str, tmp_path: Path
) -> None:
    of = prepared("windows", tmp_path, there)
    assert job.start(spark, of, drain=False).await_end(240)
    Folder(spark, there).copy("checkpoint", Folder(spark, str(tmp_path)))
    copied = read_checkpoint(LocalFiles(tmp_path / "checkpoint"))
    code, shown = called("status", of.checkpoint)
    assert code == 0, shown
    for title, text in [("checkpoint", of.checkpoint), *copied[1:]]:
        assert " ".join(f"{title} {text}".split()) in shown
    assert "the last run of sliding, up to batch 4" in shown
    wider = replace(of, folder=str(tmp_path / "wider"), there=f"{there}/wider")
    assert called("rescale", of.checkpoint, wider.checkpoint, "--tasks", "3")[0] == 0
    assert f"rescaled into {wider.checkpoint}, which goes on in its place" in called("status", of.checkpoint)[1]
    definition = replace(job.DEFINITIONS["sliding"], tasks=3)
    assert job.start(spark, wider, definition).await_end(240), "the query does not end"
    found = [result(spark, "windows", each)[0] for each in (of, wider)]
    assert sorted(row for each in found for row in rows(each)) == rows(local("windows")[0][0])


def test_a_command_in_a_separate_process_reads_the_s3_keys_from_the_environment(
    spark: SparkSession, there: str, tmp_path: Path
) -> None:
    """For HDFS the path is enough."""
    of = prepared("windows", tmp_path, there)
    assert job.start(spark, of, drain=False).await_end(240)
    given = settings()
    keys = {name: given.pop(f"spark.hadoop.fs.s3a.{key}") for name, key in KEYS.items()}
    conf = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "windowing", "status", of.checkpoint, *(conf if there.startswith("s3a:") else ())],
        cwd=ROOT,
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ".join(done.stdout.split()) == called("status", of.checkpoint)[1]


@pytest.mark.parametrize("why", REFUSED)
def test_a_store_that_cannot_be_read_is_reported_in_one_sentence_with_the_remedy(spark: SparkSession, why: str) -> None:
    root, given, way_out = REFUSED[why]
    port = closed_port()
    root = root.replace("s3a://", "s3a://read-")
    for name, value in given.items():
        conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
        conf.set(f"fs.s3a.bucket.{root.partition('//')[2]}.{name}", value.format(port=port))
    uri = root.format(port=port) + "/job"
    code, said = called("status", uri)
    print(f"{why}: {said}")
    assert code == 1
    assert f"{uri} cannot be used: " in said
    assert way_out in said
    assert "hunter2" not in said
