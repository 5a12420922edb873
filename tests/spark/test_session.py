"""The session that windowed bolts need, and the refusal of one in which data could be lost."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from windowing.errors import ConfigError, SessionError
from windowing.spark import require_session, session
from windowing.spark.session import REQUIRED


def test_our_session_passes_its_own_check(spark: SparkSession) -> None:
    require_session(spark)


def test_workers_run_this_very_python(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_a_failed_task_is_tried_again(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"


def test_only_loopback_is_listened_on(spark: SparkSession) -> None:
    """The driver's ports are bound to 127.0.0.1; Spark's UI, which would listen everywhere, is off."""
    assert spark.sparkContext.uiWebUrl is None
    listening = _listeners(_descendants(os.getpid()))
    assert listening, "the JVM listens for its Python workers at least"
    assert {address for address in listening if not _loopback(address)} == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "false"),
        ("spark.sql.streaming.stateStore.checkpointFormatVersion", "1"),
        ("spark.sql.streaming.stateStore.commitValidation.enabled", "false"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "1000000"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "0"),
        ("spark.sql.session.timeZone", "Europe/Berlin"),
        (
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_the_way_out(spark: SparkSession, name: str, value: str) -> None:
    foreign = spark.newSession()
    for rule in REQUIRED:
        foreign.conf.set(rule.name, rule.wanted)
    require_session(foreign)
    foreign.conf.set(name, value)
    with pytest.raises(SessionError) as caught:
        require_session(foreign)
    assert name in str(caught.value)
    assert value in str(caught.value)
    assert "spark.conf.set" in str(caught.value)


def test_workers_of_another_python_are_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3-of-nobody")
    monkeypatch.setattr(spark.sparkContext, "getConf", _NoPython)
    with pytest.raises(SessionError, match=r"spark\.pyspark\.python is 'python3-of-nobody'"):
        require_session(spark)


@pytest.mark.parametrize("cores", [0, -1, "many", True])
def test_a_bad_number_of_cores_is_refused_before_anything_starts(cores: object) -> None:
    with pytest.raises(ConfigError, match="cores is a number"):
        session(cores=cores)  # type: ignore[arg-type]


class _NoPython:
    """A SparkConf in which nobody has named the Python of the workers."""

    def get(self, name: str, default: str | None = None) -> str | None:
        return default


def _descendants(pid: int) -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process(pid).children(recursive=True)} | {pid}


def _listeners(pids: set[int]) -> set[str]:
    """Return the local addresses of the listening TCP sockets of these processes, as /proc has them."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = link.readlink().name
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def _loopback(address: str) -> bool:
    return address in ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
