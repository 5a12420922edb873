"""A start, a drain or a rescale that is killed at any operation on a file of its checkpoint can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import harness, job, topology_job
from tests.crash.harness import Outputs, assert_same, outputs
from tests.crash.job import Job
from tests.crash.test_topology_killed import assert_recovered, prepared, undisturbed_run
from windowing.errors import BoltError, CheckpointError, DrainedCheckpointError
from windowing.spark import WindowedQuery, rescale
from windowing.spark.checkpoint import DRAINED_FILE
from windowing.spark.hadoop import Folder

for module in (job, topology_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests


class Killed(BaseException):
    """A BaseException, which no code under test catches, in place of SIGKILL."""


@contextmanager
def killed_at(number: int, is_here: Callable[[], bool]) -> Iterator[None]:
    """Raise Killed at the n-th step of the operations on files for which `is_here` returns True. A write has four steps: nothing is
    done, the folder exists, the temporary file is written, the file is written.
    """
    left = [number]
    make, write, copy, delete = Folder.make, Folder.write, Folder.copy, Folder.delete

    def step() -> None:
        if is_here():
            left[0] -= 1
            if left[0] == 0:
                raise Killed

    def writing(folder: Folder, name: str, content: bytes) -> None:
        step()
        make(folder)
        step()
        hidden = f"_{name}.0.tmp"
        write(folder, hidden, content[: len(content) // 2])
        step()
        delete(folder, hidden)
        write(folder, name, content)
        step()

    def stepping(operation: Callable[..., None]) -> Callable[..., None]:
        def stepped(*given: Any) -> None:
            operation(*given)
            step()

        return stepped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "make", stepping(make))
        patch.setattr(Folder, "write", writing)
        patch.setattr(Folder, "copy", stepping(copy))
        patch.setattr(Folder, "delete", stepping(delete))
        yield


def in_this_thread() -> Callable[[], bool]:
    here = threading.get_ident()
    return lambda: threading.get_ident() == here


def in_the_watching_thread() -> bool:
    """Whether this is the thread that waits for a query, drains it and marks its checkpoint as drained."""
    return threading.current_thread().name.startswith("windowing-")


def killed_starts(
    folder: Path, start: Callable[[Path], WindowedQuery], compare: Callable[[Path], None], step: int, compared: int
) -> None:
    """Start a job in a new folder, kill the start at its n-th operation on a file, and start the job again; for every `step`-th n,
    until a start has fewer operations. Every `compared`-th of these jobs runs to its end and is compared, the others are stopped.
    """
    for number in count(1, step):
        job, query = folder / str(number), None
        with killed_at(number, in_this_thread()), suppress(Killed):
            query = start(job)
        if query is not None:
            query.stop()
            break
        query = start(job)
        if number // step % compared == 0:
            assert query.await_end(240)
            compare(job)
        query.stop()
    assert number > 12


@pytest.mark.crash(minutes=2)
def test_a_start_killed_at_any_file_operation_can_be_repeated(
    spark: SparkSession, source: Path, tmp_path: Path, undisturbed: Callable[..., Outputs]
) -> None:
    def job_in(folder: Path) -> Job:
        return Job("tumbling", str(source), str(folder))

    def compare(folder: Path) -> None:
        assert_same(outputs(job_in(folder)), undisturbed("tumbling"))

    killed_starts(tmp_path, lambda folder: job.start(spark, job_in(folder)), compare, step=1, compared=6)


@pytest.mark.crash(minutes=1.5)
def test_a_start_of_a_topology_on_a_queue_killed_at_any_file_operation_can_be_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    wanted = undisturbed_run(spark, prepared(tmp_path / "undisturbed"))

    def start(folder: Path) -> WindowedQuery:
        begun = topology_job.TopologyJob(str(folder))
        return topology_job.start(spark, begun if folder.exists() else prepared(folder))

    def compare(folder: Path) -> None:
        assert_recovered(topology_job.TopologyJob(str(folder)), wanted)

    killed_starts(tmp_path, start, compare, step=2, compared=4)  # a start takes seconds


@pytest.mark.crash(minutes=1)
def test_a_drain_killed_at_any_file_operation_is_finished_by_the_next_start(
    spark: SparkSession, source: Path, tmp_path: Path, undisturbed: Callable[..., Outputs]
) -> None:
    drained = Job("tumbling", str(source), str(tmp_path / "job"))
    closed = drained.checkpoint / "windowing" / DRAINED_FILE
    for steps in range(1, 40):
        with killed_at(steps, in_the_watching_thread), suppress(BoltError):
            job.start(spark, drained).await_end(240)
        if closed.exists():
            break
    assert steps > 4
    closed.unlink()  # as after a kill before the mark
    steps = 0
    while not closed.exists():
        steps += 1
        with killed_at(steps, in_the_watching_thread), pytest.raises(BoltError, match="driver ended with Killed"):
            job.start(spark, drained).await_end(240)
    assert steps >= 4
    with pytest.raises(DrainedCheckpointError):
        job.start(spark, drained)
    assert_same(outputs(drained), undisturbed("tumbling"))


@pytest.mark.crash(minutes=2)
def test_a_rescale_killed_at_any_file_operation_can_be_called_again(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    old = Job("sliding", str(harness.write_input(tmp_path / "in", range(2))), str(tmp_path / "old"), drain=False)
    harness.finish(spark, old)
    new = str(tmp_path / "new" / "checkpoint")
    killed = 0
    while not is_complete(Path(new, "windowing")):
        killed += 1
        # The last call has fewer steps, because some are done already.
        with killed_at(killed, in_this_thread()), suppress(Killed):
            rescale(str(old.checkpoint), new, tasks=3, spark=spark)
    assert killed > 20
    with pytest.raises(CheckpointError, match=f"{new} is complete"):
        rescale(str(old.checkpoint), new, tasks=3, spark=spark)


def is_complete(home: Path) -> bool:
    """Whether a rescale has come to its end: nothing of its own is left."""
    left = {path.name for path in home.iterdir()} if home.exists() else set()
    return {name for name in left if not name.startswith(".")} == {"control", "definition.json", "query.json"}
