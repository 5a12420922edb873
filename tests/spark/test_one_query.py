"""A checkpoint is used by one query at a time: a second query, of this or another process, is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from pyspark.sql import SparkSession

from windowing.errors import CheckpointError, DrainedCheckpointError
from windowing.spark import FunctionSink, MemorySink, settings, submit, windowed
from windowing.spark.checkpoint import Checkpoint
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

ROWS = [{"k": "a", "ts": ts, "v": 1.0} for ts in (500, 2500)]
EVERY = timedelta(milliseconds=200)


def bolt(length: int = 1) -> Any:
    @tumbling(seconds(length), timestamp="ts", output="n long", name="counted")
    def counted(window: Any) -> Any:
        return len(window)

    return counted


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not wait for the end of a running query."""
    monkeypatch.setattr(settings, "_ENDING_S", 0.0)
    monkeypatch.setattr(settings, "_JVM_ENDING_S", 0.0)


def test_a_second_start_is_refused_while_the_first_query_runs_and_works_right_after_its_stop(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, at_once: None
) -> None:
    source, checkpoint, sink = feed().add(ROWS), str(tmp_path / "checkpoint"), MemorySink()
    first = windowed(bolt(), source.read()).start(sink, checkpoint, trigger=EVERY)
    before = (tmp_path / "checkpoint/windowing/definition.json").read_bytes()
    for path in (checkpoint, f"{checkpoint}/", f"file://{checkpoint}"):
        with pytest.raises(CheckpointError, match=r"another query of this process writes to checkpoint .*stop\(\)"):
            windowed(bolt(length=2), source.read()).start(MemorySink(), path, trigger=EVERY)
    assert first.is_active
    assert first.spark_query.isActive, "Spark's own way is to stop it"
    assert (tmp_path / "checkpoint/windowing/definition.json").read_bytes() == before
    first.stop()
    assert first.exception is None
    run(bolt(), source.read(), sinks={"default": sink}, drain=True)
    assert sum(n for (n,) in sink.rows) == 2
    with pytest.raises(DrainedCheckpointError):
        run(bolt(), source.read())


HOLDING = (
    "import fcntl, os, sys; fcntl.{lock}(os.open(sys.argv[1], os.O_RDONLY), fcntl.{kind}); print(flush=True); input()"
)


@pytest.mark.parametrize(
    "holding",
    [HOLDING.format(lock="flock", kind="LOCK_EX"), HOLDING.format(lock="lockf", kind="LOCK_SH")],
    ids=["a process", "the JVM of a killed driver"],
)
def test_a_lock_of_another_process_refuses_every_start_before_anything_is_written_and_a_kill_releases_it(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, at_once: None, holding: str
) -> None:
    """Spark detects it only when both write one entry of a log: by then both may have written the same batch to a sink. The JVM of
    a killed driver goes on for a second or more, and may still write the batch that the next query makes again.
    """
    source, checkpoint, sink = feed().add(ROWS), tmp_path / "checkpoint", MemorySink()
    checkpoint.mkdir()
    with subprocess.Popen([sys.executable, "-c", holding, checkpoint], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for _ in range(2):
            with pytest.raises(CheckpointError, match=rf"another query of process {other.pid} writes to checkpoint"):
                run(bolt(), source.read(), sinks={"default": sink})
        assert list(checkpoint.iterdir()) == []
        other.kill()
    run(bolt(), source.read(), sinks={"default": sink}, drain=True)
    assert sum(n for (n,) in sink.rows) == 2


def test_the_jvm_of_a_running_query_has_a_lock_until_the_query_ends(feed: Callable[..., Any], tmp_path: Path) -> None:
    checkpoint = tmp_path / "a checkpoint with 100% of its name"
    query = windowed(bolt(), feed().add(ROWS).read()).start(MemorySink(), str(checkpoint), trigger=EVERY)
    opened = os.open(checkpoint, os.O_RDONLY)
    until = time.monotonic() + 60
    while len(query.progress) < 1 and time.monotonic() < until:
        time.sleep(0.1)
    process = settings._jvm_with_lock(opened)
    assert process is not None
    assert "java" in Path(f"/proc/{process}/comm").read_text()
    query.stop()
    assert settings._jvm_with_lock(opened) is None
    os.close(opened)


def test_a_file_system_that_cannot_tell_who_holds_a_lock_refuses_no_start(
    monkeypatch: pytest.MonkeyPatch, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    def not_supported(*_: Any) -> bytes:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "fcntl", not_supported)
    sink = MemorySink()
    run(bolt(), feed().add(ROWS).read(), sinks={"default": sink}, drain=True)
    assert sum(n for (n,) in sink.rows) == 2


def test_a_running_query_has_the_lock_and_its_child_processes_do_not_inherit_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "a checkpoint with 100% of its name"
    taken = settings.take(Checkpoint(spark, str(checkpoint)))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=PIPE) as child:
        assert not is_free(checkpoint)
        taken.set()
        taken.set()
        assert is_free(checkpoint)
        child.kill()


FORKED = """
import fcntl, os, sys, time
from windowing.spark import settings
lock = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
settings._taken[sys.argv[1]] = settings.Taken(lock)
if os.fork():
    time.sleep(60)
print(flush=True)
sys.stdin.read()
"""


def test_a_forked_process_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORKED, tmp_path], stdin=PIPE, stdout=PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert not is_free(tmp_path)
        parent.kill()
        parent.wait()
        assert is_free(tmp_path), "the child waits for the end of its input"


def is_free(folder: Path) -> bool:
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(opened)
    return True


def test_a_second_start_of_a_topology_is_refused(
    feed: Callable[..., Any], spark: SparkSession, tmp_path: Path, at_once: None
) -> None:
    builder = TopologyBuilder("counts")
    builder.configure({"topology.enable.message.timeouts": False})
    builder.set_spout("rows", InputSpout("k string, ts long, v double"))
    builder.set_bolt("counted", bolt()).global_grouping("rows")
    source = feed().add(ROWS)

    def start() -> Any:
        sinks, checkpoint = {"counted": MemorySink()}, str(tmp_path / "checkpoint")
        sources = {"rows": source.read()}
        return submit(builder.build(), spark, sources=sources, sinks=sinks, checkpoint=checkpoint, trigger=EVERY)

    first = start()
    with pytest.raises(CheckpointError, match="one query at a time can have it"):
        start()
    first.stop()
    start().stop()


def test_a_start_waits_for_a_query_that_is_about_to_end(spark: SparkSession, tmp_path: Path) -> None:
    first = settings.take(Checkpoint(spark, str(tmp_path)))
    threading.Timer(0.3, first.set).start()
    began = time.monotonic()
    second = settings.take(Checkpoint(spark, str(tmp_path)))
    assert 0.2 < time.monotonic() - began < settings._ENDING_S
    assert second is not first


def test_a_refused_or_interrupted_start_does_not_block_the_next_one(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, at_once: None
) -> None:
    source = feed().add(ROWS)
    begun = tmp_path / "checkpoint/offsets"
    begun.mkdir(parents=True)
    (begun / ".0.a0bf8d6e.tmp").write_text("v1\n{")  # left by a query that was stopped while it wrote its first offsets
    run(bolt(), source.read())
    with pytest.raises(CheckpointError, match="length of bolt 'counted'"):
        run(bolt(length=2), source.read())
    run(bolt(), source.read())


def test_a_concurrent_query_detected_by_spark_is_reported_with_the_checkpoint_in_one_line(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    """The other query has started batch 1 while this one processes batch 0."""
    source, checkpoint = feed().add(ROWS, ROWS), tmp_path / "checkpoint"

    def overtaken(rows: Any, batch_id: int) -> None:
        (checkpoint / "offsets/1").write_text((checkpoint / "offsets/0").read_text())

    with pytest.raises(CheckpointError) as caught:
        run(bolt(), source.read(), sinks={"default": FunctionSink(overtaken)})
    assert f"another query writes to checkpoint {checkpoint}; one query at a time can have it: stop" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)
    assert "CONCURRENT_STREAM_LOG_UPDATE" in str(caught.value.__cause__)
