"""HDFS refuses writes or is down, at the start or during a query: an error of one line with the remedy; the job then continues."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.crash import job
from tests.crash.harness import run_process
from tests.crash.job import REFUSED
from tests.object_stores.conftest import prepared, result
from tests.object_stores.jobs import HOME, folders
from windowing.errors import CheckpointError, WindowingError
from windowing.spark import failpoints
from windowing.spark.hadoop import Folder

SAFE_MODE = "it takes no writes now: wait until its NameNode has left safe mode"
NO_ANSWER = "see that its server is named rightly and answers"
NO_RIGHT = "give the user of the session the right to make and write it, or choose another folder"


def on_hdfs() -> str:
    return f"{folders()['hdfs']}/{uuid4().hex}"


def assert_one_line_with(said: str, way_out: str) -> None:
    print(said)
    assert said.count("\n") == 0
    assert folders()["hdfs"] in said
    assert way_out in said


@contextmanager
def safe_mode(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Yield a function that makes HDFS read-only; at the end HDFS takes writes again."""
    hdfs: Any = Folder(spark, on_hdfs())
    actions = getattr(hdfs._jvm, "org.apache.hadoop.fs.SafeModeAction")
    try:
        yield lambda: hdfs._fs.setSafeMode(actions.ENTER)
    finally:
        hdfs._fs.setSafeMode(actions.LEAVE)


@contextmanager
def name_node_down(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Yield a function that kills the NameNode; at the end start it again, and wait until it takes writes."""
    pid = HOME / "namenode.pid"
    name_node = psutil.Process(int(pid.read_text()))
    command, environment = name_node.cmdline(), name_node.environ()

    def kill() -> None:
        name_node.kill()
        name_node.wait(30)

    try:
        yield kill
    finally:
        again = f'"$@" >>"{HOME}/namenode.log" 2>&1 </dev/null & echo $! >"{pid}"'
        subprocess.run(["setsid", "bash", "-c", again, "again", *command], env=environment, check=True)
        until = time.monotonic() + 60
        while True:
            try:
                Folder(spark, on_hdfs()).make()
                break
            except CheckpointError:
                assert time.monotonic() < until
                time.sleep(0.5)


def test_a_folder_of_another_user_is_refused_before_anything_is_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Folder(spark, there := on_hdfs()).make()
    of = prepared("windows", tmp_path, there)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    assert run_process(of) == REFUSED
    error = json.loads(Path(of.folder, "error.json").read_text())
    assert error["class"] == "CheckpointError"
    assert "user=stranger" in error["message"]
    assert_one_line_with(error["message"], NO_RIGHT)
    assert Folder(spark, there).files() == []


def test_a_read_only_store_is_refused_at_the_start_and_the_job_runs_later(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], tmp_path: Path
) -> None:
    of = prepared("windows", tmp_path, on_hdfs())
    with safe_mode(spark) as enter:
        enter()
        with pytest.raises(CheckpointError) as found:
            job.start(spark, of)
    assert_one_line_with(str(found.value), SAFE_MODE)
    assert job.start(spark, of).await_end(240), "the query does not end"
    assert result(spark, "windows", of) == local("windows")[0]


@pytest.mark.parametrize("point", ["before_batch:2", "before_commit:2"])
@pytest.mark.parametrize(("gone", "way_out"), [(safe_mode, SAFE_MODE), (name_node_down, NO_ANSWER)])
def test_a_store_that_fails_during_a_query_ends_it_and_a_restart_has_the_results_of_a_local_run(
    spark: SparkSession,
    local: Callable[[str], tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    gone: Any,
    way_out: str,
    point: str,
) -> None:
    of = prepared("windows", tmp_path, on_hdfs())
    with gone(spark) as go:
        monkeypatch.setattr(failpoints, "_kill", lambda name: go())
        monkeypatch.setenv("WINDOWING_FAILPOINT", point)
        monkeypatch.setenv("WINDOWING_FAILPOINT_ONCE", str(tmp_path / "once"))
        with pytest.raises(WindowingError) as found:
            job.start(spark, of).await_end(240)
    assert isinstance(found.value, CheckpointError)
    assert_one_line_with(str(found.value), way_out)
    assert job.start(spark, of).await_end(240), "the query does not end"
    assert result(spark, "windows", of) == local("windows")[0]
