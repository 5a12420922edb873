"""Jobs on a standalone cluster have the same results as on `local[2]`, also when executors and workers are killed or delayed."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.cluster.conftest import CASES, Cluster, Deaths, Late, Windows, finish, waited_for
from tests.crash.harness import DRAIN, worker_environment
from tests.crash.job import DEFINITIONS, describe, start
from tests.crash.test_topology_killed import told
from tests.crash.topology_job import BATCHES as ROOTS
from tests.crash.topology_job import DRAIN as LAST_ACK
from tests.crash.topology_job import TopologyJob
from windowing.errors import SessionError
from windowing.spark import check

POINTS = {  # failpoints of the driver, and of the Python workers of executors
    "windows": (
        ("before_batch:1", "in_sink:2", f"before_commit:{DRAIN}"),
        ("before_state_write:3", "after_state_write:4"),
    ),
    "acks": (
        ("before_ledger:0", "after_ledger:1", "before_ack:2", f"after_ack:{LAST_ACK}"),
        ("before_state_write:1", "after_state_write:2"),
    ),
    "trident": (
        ("after_claim:0", "before_commits:1", f"after_commits:{DRAIN}"),
        ("before_state_commit:2", "after_state_commit:3"),
    ),
}
LATE = {"before_claim:1": r"read 3:\d+\n", "after_claim:1": r"refused by 3:\d+\n"}
"""The failpoint at which a Trident worker is stopped, and its outcome: it reads batch 2 in the state, and writes nothing."""


def assert_acked_once(job: TopologyJob) -> None:
    """Check that each root was acked exactly once, and not before its batch was committed."""
    roots = [root for root, _ in told(job)]
    assert sorted(roots) == list(range(ROOTS))
    assert all(root <= committed for root, committed in told(job))


@pytest.mark.parametrize("name", CASES)
def test_a_job_on_the_cluster_has_the_results_of_a_local_run(
    spark: SparkSession, local_results: Mapping[str, Any], tmp_path: Path, name: str
) -> None:
    assert finish(spark, CASES[name], CASES[name].prepared(tmp_path)) == local_results[name]


@pytest.mark.parametrize("name", POINTS)
def test_results_do_not_change_if_executors_are_killed_at_any_failpoint(
    spark: SparkSession,
    cluster: Cluster,
    deaths: Deaths,
    local_results: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    of_driver, in_workers = POINTS[name]
    cluster.wait_for_executors(spark, 2)
    deaths.of_driver(monkeypatch, of_driver, deaths.kill_an_executor)
    job = CASES[name].prepared(tmp_path)
    with worker_environment(spark, **deaths.in_workers(in_workers)):
        assert finish(spark, CASES[name], job) == local_results[name]
    assert set(deaths.all_killed()) == {*of_driver, *in_workers}
    if name == "acks":
        assert_acked_once(job)
    print(
        "seconds from a killed executor to the next commit:",
        deaths.seconds_to_next_commit(Path(job.folder, "checkpoint")),
    )


def test_results_do_not_change_if_a_worker_is_killed_and_restarted(
    spark: SparkSession,
    cluster: Cluster,
    deaths: Deaths,
    local_results: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    lost = cluster.worker("worker1").pid

    def kill_or_start(point: str) -> None:
        os.killpg(lost, signal.SIGKILL) if point == "in_sink:1" else cluster.command("start")

    deaths.of_driver(monkeypatch, ("in_sink:1", "before_commit:3"), kill_or_start)
    assert finish(spark, Windows, Windows.prepared(tmp_path)) == local_results["windows"]
    assert set(deaths.killed) == {"in_sink:1", "before_commit:3"}
    assert cluster.worker("worker1").pid != lost
    cluster.wait_for_executors(spark, 2)


@pytest.mark.parametrize("name", ["windows", "acks"])
def test_results_do_not_change_if_a_lost_executor_resumes_and_writes_late(
    spark: SparkSession,
    cluster: Cluster,
    deaths: Deaths,
    local_results: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    """The late task writes the state of batch 1 into the checkpoint again; then the other executor is killed, so that its
    replacement loads the state from the checkpoint.
    """
    cluster.spread_executors(spark)
    job = CASES[name].prepared(tmp_path)
    late = Event()

    def written() -> set[tuple[Path, int]]:
        found = Path(job.folder).glob("checkpoint/state/*/*/2*.changelog")
        return {(path, path.stat().st_mtime_ns) for path in found}

    def go_on(executor: psutil.Process, python: psutil.Process, others: Sequence[psutil.Process]) -> None:
        before = written()
        for process in (executor, python):
            process.send_signal(signal.SIGCONT)
        waited_for(lambda: written() - before, "what the late task writes", 60)
        late.set()
        for other in others:
            other.kill()

    with frozen(spark, cluster, deaths, monkeypatch, "before_state_write:1", go_on):
        assert finish(spark, CASES[name], job) == local_results[name]
    assert late.is_set()
    if name == "acks":
        assert_acked_once(job)


@pytest.mark.parametrize("point", LATE)
def test_a_trident_worker_delayed_beyond_the_next_batch_writes_nothing(
    spark: SparkSession,
    cluster: Cluster,
    deaths: Deaths,
    local_results: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    point: str,
) -> None:
    """Its executor stays frozen: resumed, it would stop the worker once it learns that the driver has declared it lost."""
    cluster.spread_executors(spark)
    job = Late.prepared(tmp_path)

    def go_on(_: psutil.Process, python: psutil.Process, __: Sequence[psutil.Process]) -> None:
        python.send_signal(signal.SIGCONT)
        waited_for(lambda: job.late.exists() and time.time() - job.late.stat().st_mtime > 2, "a late worker", 60)

    with frozen(spark, cluster, deaths, monkeypatch, point, go_on):
        assert finish(spark, Late, job) == local_results["trident"]
    assert re.fullmatch(LATE[point], job.late.read_text())


@contextmanager
def frozen(
    spark: SparkSession,
    cluster: Cluster,
    deaths: Deaths,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    go_on: Callable[[psutil.Process, psutil.Process, Sequence[psutil.Process]], None],
) -> Iterator[None]:
    """Freeze the executor whose Python worker first reaches a failpoint, that worker, and the worker process of the cluster that
    could kill them. In batch 3, when the driver has declared the executor lost and is frozen too, call `go_on` with the executor,
    its Python worker, and the other registered executors.
    """

    def freeze_parent() -> None:
        cluster.worker_of(cluster.frozen_executor(spark)).send_signal(signal.SIGSTOP)

    def given_up(_: str) -> None:
        executor = cluster.frozen_executor(spark)
        parent, inside = cluster.worker_of(executor), executor.children(recursive=True)
        (python,) = (each for each in inside if each.status() == psutil.STATUS_STOPPED)
        try:
            waited_for(lambda: executor not in cluster.known_executors(spark), "the driver to give it up")
            others = cluster.known_executors(spark)
            cluster.driver.send_signal(signal.SIGSTOP)
            go_on(executor, python, others)
        finally:
            for process in (cluster.driver, parent, executor):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    deaths.of_driver(monkeypatch, ("before_batch:3",), given_up)
    freezer = Thread(target=freeze_parent)
    freezer.start()
    with worker_environment(spark, **deaths.in_workers((point,), "frozen executor")):
        yield
    freezer.join()


SLOW_BATCHES = 2


def slow_at_first(folder: str, window: Any) -> tuple[Any, ...]:
    """Delay the first attempt of a task in two batches until a speculative attempt has started, and then until that has ended."""
    context: Any = TaskContext.get()
    attempts = Path(folder, f"stage-{context.stageId()}")
    if context.partitionId() == 1 and (attempts.exists() or len(list(attempts.parent.iterdir())) < SLOW_BATCHES):
        attempts.mkdir(exist_ok=True)
        (attempts / str(context.attemptNumber())).touch()
        until = time.monotonic() + 60
        while context.attemptNumber() == 0 and len(list(attempts.iterdir())) == 1 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(10 if context.attemptNumber() == 0 else 0)
    return describe(window)


def test_results_do_not_change_if_a_speculative_attempt_overtakes_the_first(
    spark: SparkSession, cluster: Cluster, local_results: Mapping[str, Any], tmp_path: Path
) -> None:
    cluster.spread_executors(spark)
    job, attempts = Windows.prepared(tmp_path), tmp_path / "attempts"
    attempts.mkdir()
    definition = replace(DEFINITIONS["sliding"], body=partial(slow_at_first, str(attempts)))
    assert start(spark, job, definition).await_end(240)
    assert Windows.result(job) == local_results["windows"]
    numbers = [sorted(path.name for path in stage.iterdir()) for stage in attempts.iterdir()]
    assert [names[-1] for names in numbers] == ["1"] * SLOW_BATCHES, "each was made a second time, by speculation"
    assert ["0", "1"] in numbers, "the second attempt may also begin, and win, before the first has come to a window"


OTHER_VERSION = """
import sys
from collections import namedtuple
sys.version_info = namedtuple("version_info", "major minor micro releaselevel serial")(3, 99, 0, "final", 0)
"""


def test_another_python_version_on_the_executors_is_refused_before_the_first_batch(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(SessionError, match=r"a Python worker does not start: \[PYTHON_VERSION_MISMATCH\].*3\.99"):
        check(spark)
    job = Windows.prepared(tmp_path)
    with pytest.raises(
        SessionError, match=r"have another environment: \[PYTHON_VERSION_MISMATCH\].*install the same Python"
    ):
        start(spark, job)
    assert not job.checkpoint.exists(), "nothing was begun"


def test_a_missing_python_on_the_executors_is_refused_before_the_first_batch(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "nowhere"))
    with pytest.raises(SessionError, match=r"a Python worker does not start: Cannot run program .*nowhere"):
        check(spark)
    job = Windows.prepared(tmp_path)
    with pytest.raises(SessionError, match=r"have another environment: Cannot run program .*nowhere"):
        start(spark, job)
    assert not job.checkpoint.exists(), "nothing was begun"
