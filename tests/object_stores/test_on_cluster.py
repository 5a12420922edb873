"""Killed jobs on the cluster of `make cluster`, with their checkpoint on HDFS or S3, have the results of a local run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.cluster.conftest import HOME, SMALL, Cluster
from tests.crash.harness import finish_process, kill_process
from tests.object_stores.conftest import prepared, result
from tests.services.conftest import address, empty

POINTS = {  # the failpoints at which executors are killed, and the one at which the driver is killed
    "windows": (("before_state_write:1", "after_state_write:4"), "in_sink:2"),
    "acks": (("after_state_write:1", "before_state_write:2"), "after_ledger:1"),
    "trident": (("before_state_commit:2", "after_state_commit:3"), "after_commits:1"),
}


@pytest.mark.parametrize("kind", POINTS)
def test_a_cluster_job_with_its_checkpoint_on_a_store_has_the_results_of_a_local_run_after_kills(
    local: Callable[[str], tuple[Any, ...]],
    spark: SparkSession,
    there: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    """The states of Trident are in PostgreSQL."""
    if not (HOME / "address").exists():
        pytest.fail("no cluster runs here: start it with make cluster", pytrace=False)
    postgres = ""
    if kind == "trident":
        empty("postgres")
        postgres = address("postgres")
    of, (in_workers, in_driver) = prepared(kind, tmp_path, there, postgres), POINTS[kind]
    variables = {
        "WINDOWING_FAILPOINT": ",".join(in_workers),
        "WINDOWING_FAILPOINT_GROUP": "executor",
        "WINDOWING_FAILPOINT_ONCE": str(tmp_path / "worker"),
    }
    settings = SMALL | {f"spark.executorEnv.{name}": value for name, value in variables.items()}
    given = [f"--conf {shlex.quote(f'{key}={value}')}" for key, value in settings.items()]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*given, "--master", Cluster().master, "pyspark-shell"]))
    kill_process(of, in_driver)
    finish_process(of)
    assert {path.name for path in tmp_path.glob("worker-*")} == {f"worker-{point}" for point in in_workers}
    assert result(spark, kind, of) == local(kind)[0]
