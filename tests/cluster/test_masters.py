"""A killed driver continues from its checkpoint on another master: the cluster, a restarted cluster, or `local[2]`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import CASES, SMALL, Cluster
from tests.crash.harness import DRAIN, finish_process, kill_process

LOCAL, CLUSTER, MADE_AGAIN = "local[2]", "the cluster", "the cluster, made again"
JOURNEYS = {  # the masters one after another, and the failpoint at which the driver is killed there; the last one ends the job
    "windows": ((CLUSTER, "in_sink:1"), (MADE_AGAIN, f"before_commit:{DRAIN}"), (LOCAL, None)),
    "acks": ((LOCAL, "after_ledger:1"), (CLUSTER, None)),
    "trident": ((LOCAL, "after_commits:1"), (CLUSTER, "before_commit:3"), (LOCAL, None)),
}


@pytest.mark.parametrize("name", JOURNEYS)
def test_results_do_not_change_if_a_killed_driver_is_restarted_on_another_master(
    cluster: Cluster, local_results: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    job = CASES[name].prepared(tmp_path)
    for master, point in JOURNEYS[name]:
        if master is MADE_AGAIN:
            before = cluster.master
            cluster.command("stop")
            cluster.command("start")
            assert cluster.master != before
        settings = {} if master is LOCAL else SMALL | {"spark.master": cluster.master}
        given = [f"--conf {shlex.quote(f'{key}={value}')}" for key, value in settings.items()]
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*given, "pyspark-shell"]))
        if point is None:
            finish_process(job)
        else:
            kill_process(job, point)
    assert CASES[name].result(job) == local_results[name]
