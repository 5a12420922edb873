"""The session that windowed bolts need, and the refusal of one in which data could be lost."""

from __future__ import annotations

import os
import subprocess
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


def test_what_spark_takes_for_a_setting_that_nobody_has_set_counts_and_all_that_is_wrong_is_said_at_once(
    spark: SparkSession,
) -> None:
    foreign = spark.newSession()
    for rule in REQUIRED:
        foreign.conf.set(rule.name, rule.wanted)
    foreign.conf.unset("spark.sql.streaming.stateStore.commitValidation.enabled")
    foreign.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    require_session(foreign)
    foreign.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "1")
    foreign.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    foreign.conf.set("spark.sql.session.timeZone", "Etc/GMT-1")
    with pytest.raises(SessionError, match="has 3 settings with which data could be lost") as caught:
        require_session(foreign)
    _, *lines = str(caught.value).splitlines()
    assert [line.split()[1] for line in lines] == [
        "spark.sql.streaming.stateStore.checkpointFormatVersion",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.session.timeZone",
    ]
    assert 'spark.conf.set("spark.sql.session.timeZone", "UTC")' in lines[2]


DEFAULTS = """
from pyspark.sql import SparkSession
from windowing.spark import require_session
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
try:
    require_session(spark)
except Exception as problem:
    print(problem)
spark.stop()
try:
    require_session(spark)
except Exception as problem:
    print(problem)
"""


@pytest.mark.spark
def test_a_session_of_spark_s_defaults_is_told_all_that_it_lacks_and_nothing_else() -> None:
    environment = os.environ | {"PYSPARK_PYTHON": "python3-of-nobody"}
    command = [sys.executable, "-c", DEFAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    head, *lines, stopped = done.stdout.splitlines()
    assert "has 5 settings" in head
    assert [line.split()[1].rpartition(".")[2] for line in lines] == [
        *("providerClass", "enabled", "checkpointFormatVersion", "timeZone", "python"),
    ]
    assert "changelogCheckpointing.enabled is not set, wanted true" in lines[1]
    assert "[SESSION] the Spark session was stopped" in stopped


@pytest.mark.parametrize(
    "zone", ["Etc/UTC", "GMT", "Z", "+00:00", "UTC+0", "Zulu", "-00:00", "Etc/GMT-0", "GMT0", "UT"]
)
def test_utc_by_another_name_is_utc(spark: SparkSession, zone: str) -> None:
    foreign = spark.newSession()
    for rule in REQUIRED:
        foreign.conf.set(rule.name, rule.wanted)
    foreign.conf.set("spark.sql.session.timeZone", zone)
    require_session(foreign)


@pytest.mark.parametrize("zone", ["Europe/London", "Africa/Abidjan", "+01:00", "Etc/GMT+10", "-00:30", "UTC+0:30"])
def test_a_zone_that_is_ever_off_utc_is_refused(zone: str) -> None:
    assert not next(rule for rule in REQUIRED if rule.name.endswith("timeZone")).holds(zone)


def test_packages_that_are_too_old_for_the_state_protocol_are_refused_by_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> None:
        raise RuntimeError(f"VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading {name}")

    monkeypatch.setattr(sys.modules[require_session.__module__], "import_module", import_module)
    with pytest.raises(SessionError, match=r"incompatible Protobuf .*pip install --upgrade"):
        require_session(spark)


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
