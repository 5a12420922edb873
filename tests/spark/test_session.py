"""The settings that windowed bolts need in a session; a session with which data could be lost is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import version as found_version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession

from windowing.cli.doctor import diagnose
from windowing.errors import ConfigError, SessionError
from windowing.schema.types import Schema
from windowing.spark import FileSink, PartitionedSpout, check, configure, require_session, session
from windowing.spark.session import (
    REQUIRED,
    STATE_SERVER,
    _lock,
    _machine,
    _remove_unlocked,
    counts_once,
    given_settings,
)
from windowing.spark.spouts import selected

VISIBILITY = "spark.rdd.cache.visibilityTracking.enabled"


def test_a_session_made_by_the_library_passes_its_own_check(spark: SparkSession) -> None:
    require_session(spark)


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_a_local_session_retries_failed_tasks(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"


def test_spark_logs_no_line_for_each_key_that_is_not_yet_in_a_state(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    server = jvm.java.lang.Class.forName(STATE_SERVER)
    assert not jvm.org.apache.logging.log4j.LogManager.getLogger(server).isWarnEnabled()


def test_only_the_user_may_enter_the_folder_of_the_sockets_to_python_workers(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda n: n + 1).collect() == [1]
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir", ""))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert any(each.is_socket() for each in folder.iterdir())


def test_the_folder_for_temporary_files_of_macos_leaves_room_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"/tmp/{os.getpid()}".ljust(len("/var/folders/9l/93vdsnx15cv7trvpgy0dl8800000gn/T"), "x"))
    started: list[Any] = []
    monkeypatch.setattr(sys.modules["windowing.spark.session"], "_started", lambda *given: started.append(given))
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    folder.mkdir()
    try:
        with pytest.raises(AttributeError):  # there is no session
            session()
    finally:
        shutil.rmtree(folder)
    sockets = started[0][0]._options["spark.python.unix.domain.socket.dir"]
    assert len(f"{sockets}/.{uuid.uuid4()}.sock") < 104  # of macOS


def test_a_session_listens_on_loopback_only(spark: SparkSession) -> None:
    """The driver's ports are bound to 127.0.0.1; Spark's UI, which would listen on all addresses, is off."""
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
def test_a_wrong_setting_is_refused_by_name_with_the_remedy(spark: SparkSession, name: str, value: str) -> None:
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


def test_defaults_of_spark_are_checked_and_all_wrong_settings_are_reported_at_once(
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
    first, *lines = str(caught.value).splitlines()
    assert first.endswith(
        "use windowing.spark.session(), or configure(builder) for a builder of your own, or change what each line names:"
    )
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
def test_a_session_with_spark_s_defaults_is_refused_with_exactly_its_wrong_settings() -> None:
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
def test_every_alias_of_utc_is_accepted_as_the_session_time_zone(spark: SparkSession, zone: str) -> None:
    foreign = spark.newSession()
    for rule in REQUIRED:
        foreign.conf.set(rule.name, rule.wanted)
    foreign.conf.set("spark.sql.session.timeZone", zone)
    require_session(foreign)


@pytest.mark.parametrize("zone", ["Europe/London", "Africa/Abidjan", "+01:00", "Etc/GMT+10", "-00:30", "UTC+0:30"])
def test_a_time_zone_that_ever_differs_from_utc_is_refused(zone: str) -> None:
    assert not next(rule for rule in REQUIRED if rule.name.endswith("timeZone")).holds(zone)


def test_an_incompatible_protobuf_package_is_refused_by_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_module(name: str) -> None:
        raise RuntimeError(f"VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading {name}")

    monkeypatch.setattr(sys.modules[require_session.__module__], "import_module", import_module)
    with pytest.raises(SessionError, match=r"incompatible Protobuf .*pip install"):
        require_session(spark)


def test_a_missing_or_old_pandas_of_the_driver_is_refused_by_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        SessionError, match=rf"{re.escape(sys.executable)}, .*Pandas >= .* it was not found.*pip install"
    ):
        require_session(spark)
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    monkeypatch.setattr(sys.modules["pandas"], "__version__", "1.5.3", raising=False)
    with pytest.raises(SessionError, match=r"Pandas >= .*1\.5\.3.*pip install"):
        require_session(spark)


def test_another_python_for_the_workers_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark.conf.get("spark.pyspark.python") == sys.executable  # as after getOrCreate() of a session that runs
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "python3-of-nobody")
    with pytest.raises(
        SessionError, match=r"spark\.pyspark\.python \(the workers' Python\) is 'python3-of-nobody', .*PYSPARK_PYTHON"
    ):
        require_session(spark)


class Numbers(PartitionedSpout):
    fields = "n long"

    def initial(self) -> Mapping[str, int]:
        return {}

    latest = initial

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        raise AssertionError("nobody reads it")


def test_a_python_source_is_refused_by_name_on_spark_4_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")
    with pytest.raises(
        SessionError,
        match=r"Numbers, a source in Python, needs PySpark 4\.2 or newer, this one is 4\.1\.1; "
        r"install 4\.2 or newer here and on the cluster, or read the rows as a streaming DataFrame$",
    ):
        Numbers().stream(None)  # type: ignore[arg-type]


class Builder:
    """A session builder that records its settings."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def config(self, name: str, value: str) -> Builder:
        self.told[name] = value
        return self


def test_configure_sets_exactly_the_required_settings_of_a_builder() -> None:
    builder = Builder()
    assert configure(builder) is builder
    assert builder.told == {rule.name: rule.wanted for rule in REQUIRED} | {VISIBILITY: "true"}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, None),
        ({"spark.speculation": "true", "spark.master": "local[2,4]"}, None),
        ({"spark.speculation": "true", "spark.master": "yarn"}, "not set"),
        ({"spark.speculation": "true", "spark.master": "yarn", VISIBILITY: "false"}, "false"),
        ({"spark.speculation": "true", "spark.master": "yarn", VISIBILITY: "true"}, None),
        ({"spark.master": "yarn", VISIBILITY: "false"}, None),
    ],
)
def test_speculation_is_refused_where_an_attempt_may_use_rows_that_another_has_not_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, given: Mapping[str, str], refused: str | None
) -> None:
    conf = SparkConf(loadDefaults=False)
    for name, value in given.items():
        conf.set(name, value)
    monkeypatch.setattr(spark.sparkContext, "_conf", conf)
    assert counts_once(spark) == (given.get(VISIBILITY) == "true")
    if refused is None:
        require_session(spark)
        return
    with pytest.raises(
        SessionError, match=rf"{VISIBILITY} is {refused}, wanted true .* or leave out spark.speculation"
    ):
        require_session(spark)


def test_a_master_given_in_spark_defaults_or_the_environment_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert given_settings() == {}
    (tmp_path / "spark-defaults.conf").write_text("# none\nspark.master   spark://a:7077\nspark.ui.enabled=true\n\n")
    assert given_settings() == {"spark.master": "spark://a:7077", "spark.ui.enabled": "true"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.ui.enabled=false --master=yarn --name x pyspark-shell")
    assert given_settings() == {"spark.master": "yarn", "spark.ui.enabled": "false"}
    (tmp_path / "job.conf").write_text("spark.master spark://b:7077\nspark.driver.memory 3g\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {tmp_path}/job.conf --name x pyspark-shell")
    assert given_settings() == {"spark.master": "spark://b:7077", "spark.driver.memory": "3g"}
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name it's pyspark-shell")
    with pytest.raises(
        SessionError, match="PYSPARK_SUBMIT_ARGS cannot be split into arguments: No closing quotation; close"
    ):
        session()


@pytest.mark.parametrize(
    ("command", "stands"),
    [
        ("SparkSubmit --master local[*] job.py", True),
        ("SparkSubmit --conf spark.master=local[*] --name a b job.py", True),
        ("SparkSubmit --properties-file {file} job.py", True),
        ("SparkSubmit --name it's job.py --master local[*]", False),
    ],
)
def test_master_local_with_all_cores_is_kept_only_if_given_to_spark_submit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, stands: bool
) -> None:
    """Spark uses the same value, local[*], as its default master."""
    (tmp_path / "spark.properties").write_text("spark.master local[*]\n")
    told = command.format(file=tmp_path / "spark.properties")
    system = SimpleNamespace(getProperty={"sun.java.command": told}.__getitem__, getenv={}.get)
    jvm = SimpleNamespace(System=system)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_jvm", jvm)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: None)
    submitted = SimpleNamespace(getAll=lambda: [("spark.master", "local[*]"), ("spark.ui.enabled", "true")])
    monkeypatch.setattr(sys.modules[session.__module__], "SparkConf", lambda: submitted)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("MASTER", "local[*]")  # spark-submit always sets it for the job
    assert given_settings() == {"spark.ui.enabled": "true"} | ({"spark.master": "local[*]"} if stands else {})


def test_an_unreachable_master_is_refused_by_name_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    master = f"spark://127.0.0.1:{port},127.0.0.1:many"
    wanted = (
        rf"no master answers at {master} \(127\.0\.0\.1:{port}: ConnectionRefusedError.*many: ValueError.*; start it,"
    )
    with pytest.raises(SessionError, match=wanted):
        session(**{"spark.master": master})


def test_a_session_that_spark_cannot_start_is_a_session_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    def refuse(builder: object) -> None:
        raise RuntimeError("HADOOP_CONF_DIR must be set")

    monkeypatch.setattr(type(SparkSession.builder), "getOrCreate", refuse)
    with pytest.raises(
        SessionError, match=r"did not start a session on yarn: RuntimeError: HADOOP_CONF_DIR .*leave the"
    ):
        session(**{"spark.master": "yarn"})


def test_a_session_in_a_worker_that_imports_a_bolts_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    with pytest.raises(
        SessionError, match=r"session\(\) was called in a Python worker .* not at the top of such a module"
    ):
        session("in a worker")


def test_the_settings_of_a_running_session_are_kept(spark: SparkSession) -> None:
    assert given_settings()["spark.master"] == spark.sparkContext.master


def test_spark_connect_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SessionError, match=r"classic Spark session, got one of Spark Connect; leave out SPARK_REMOTE"):
        session(**{"spark.remote": "sc://localhost"})
    # The second says that this process has made a session of Spark Connect.
    for found in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        with monkeypatch.context() as patched:
            patched.setenv(found, "sc://localhost")
            with pytest.raises(
                SessionError, match=r"got one of Spark Connect; .* in a process without such a session$"
            ):
                session()


@pytest.mark.parametrize(
    "door",
    [
        require_session,
        lambda connected: FileSink("/nowhere/out").read(connected),
        lambda connected: FileSink("/nowhere/out").committed(connected),
        pytest.param(lambda connected: Numbers().stream(connected), marks=pytest.mark.python_source),
    ],
    ids=["require_session", "read", "committed", "spout"],
)
def test_a_session_of_spark_connect_or_of_an_older_spark_is_refused_by_every_entry_point(
    door: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SessionError, match=r"needs a classic Spark session, got one of Spark Connect; use windowing"):
        door(connected)
    with pytest.raises(SessionError, match=r"needs a Spark session, got None; make one with"):
        door(None)
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(
        SessionError, match=r"needs PySpark 4\.[12] or newer, this one is 4\.0\.1; install 4\.[12] or newer here"
    ):
        door(connected)
    with pytest.raises(SessionError, match=r"windowing\.spark needs PySpark 4\.1 or newer.* here and on the cluster$"):
        require_session(connected)


def test_a_dataframe_of_spark_connect_is_refused_without_a_request_to_its_server() -> None:
    class Remote(DataFrame):
        def __new__(cls) -> Any:
            return object.__new__(cls)

        def __init__(self) -> None: ...

        def __repr__(self) -> str:
            return "a DataFrame"

        @property
        def sparkSession(self) -> Any:  # noqa: N802 - Spark's name
            return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

        @property
        def isStreaming(self) -> bool:  # noqa: N802
            raise AssertionError("the server was asked")

    with pytest.raises(SessionError, match=r"needs a classic Spark session, got one of Spark Connect; use windowing"):
        selected("spout 's'", Schema.parse("n long"), Remote(), None, "s")


def test_check_reports_all_problems_of_the_driver_and_the_workers_at_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(spark, len, test_a_session_made_by_the_library_passes_its_own_check.__name__)
    lock = threading.Lock()

    def locked(window: Any) -> int:
        with lock:
            return 1

    only_here = ModuleType("only_here")
    exec("def add_up(window): return 1", only_here.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    found: Any = sys.modules[check.__module__]
    monkeypatch.setattr(found, "version", lambda package: "0.1" if package == "pyarrow" else found_version(package))
    foreign = spark.newSession()
    for rule in REQUIRED:
        foreign.conf.set(rule.name, rule.wanted)
    foreign.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(SessionError) as caught:
        check(foreign, only_here.add_up, locked)
    _, zone, closure, pyarrow, bolt = str(caught.value).splitlines()
    assert "spark.sql.session.timeZone is 'Europe/Berlin', wanted UTC" in zone
    assert "locked closes over 'lock', which cannot be sent to Spark's workers: TypeError: " in closure
    assert "cannot pickle '_thread.lock' object; make it where it is used" in closure
    assert (
        pyarrow
        == f"  - package pyarrow is {pa.__version__} in the Python workers and 0.1 here; install the same one there"
    )
    assert (
        "bolt 'add_up' cannot be loaded in the Python workers: ModuleNotFoundError: No module named 'only_here'" in bolt
    )


JOB_BESIDE_ITS_BOLTS = """
import beside
from windowing.spark import MemorySink, session, windowed

spark = session("beside", cores=1, **{"spark.log.level": "OFF"})
sink = MemorySink()
rows = spark.readStream.schema("v long").json("../in")
assert windowed(beside.total, rows).start(sink, "../checkpoint", drain=True).await_end(200)
workers = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__)
print(spark._jvm.System.getenv("SPARK_HOME"), *workers.collect())
print([row.total for row in sink.rows])
"""
BESIDE = """
from windowing import count, tumbling

@tumbling(count(2), output="total long")
def total(window):
    return sum(row.v for row in window)
"""


@pytest.mark.spark
def test_modules_beside_the_job_are_found_from_any_directory_and_workers_use_the_installed_pyspark(
    tmp_path: Path,
) -> None:
    for folder in ("in", "job", "cwd"):
        (tmp_path / folder).mkdir()
    (tmp_path / "in" / "a.json").write_text('{"v": 1}\n{"v": 2}\n')
    (tmp_path / "job" / "job.py").write_text(JOB_BESIDE_ITS_BOLTS)
    (tmp_path / "job" / "beside.py").write_text(BESIDE)
    command, environment = [sys.executable, str(tmp_path / "job" / "job.py")], {**os.environ}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, env=environment, cwd=tmp_path / "cwd", capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[3]"], done.stderr[-4000:]
    home, workers = done.stdout.splitlines()[-2].split()
    assert Path(workers) == Path(pyspark.__file__), "not the zip, of which each process would compile what it imports"
    assert not Path(home).exists(), "the JVM has removed its links"
    assert (Path(pyspark.__file__).parent / "jars").is_dir()


@pytest.mark.spark
def test_a_start_removes_the_folders_that_a_killed_jvm_has_left_and_those_only(tmp_path: Path) -> None:
    in_use, foreign = tmp_path / "py-in-use", tmp_path / "py-of-somebody-else"
    for folder in (in_use, foreign):
        folder.mkdir()
    lock = _lock(in_use)
    job = "import os, signal; from windowing.spark import session; session('killed', cores=1); os.killpg(0, signal.SIGKILL)"
    started = []
    for _ in range(2):
        killed = subprocess.run(
            [sys.executable, "-c", job],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            start_new_session=True,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
        left = {each for prefix in ("py-", "spark-home-") for each in tmp_path.glob(f"{prefix}*")}
        started.append(left - {in_use, foreign})
        assert {in_use, foreign} <= left
    first, second = started
    assert len(first) == len(second) == 2
    assert not first & second, "those of the first one were removed"
    os.close(lock)


@pytest.mark.spark
def test_the_folders_of_a_jvm_are_kept_until_it_has_ended_itself_also_if_its_driver_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # a name that leaves room for a socket
    job = """
import os, signal
from pyspark import SparkContext
from windowing.spark import session

for _ in range(2):
    spark = session("twice", cores=1)
    print(spark.conf.get("spark.python.unix.domain.socket.dir"), flush=True)
    spark.stop()
print(*(os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")), flush=True)
jvm = SparkContext._gateway.proc.pid
print(jvm, flush=True)
os.kill(jvm, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with (temporary / "said").open("w+") as said:  # the JVM would hold a pipe open
        subprocess.run(
            [sys.executable, "-c", job],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=said,
            timeout=240,
            check=False,
        )
        said.seek(0)
        first, second, opened, jvm = said.read().splitlines()
    folders = {*temporary.glob("py-*"), *temporary.glob("spark-home-*")}
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def cleaned() -> set[Path]:
        _remove_unlocked("py-")
        _remove_unlocked("spark-home-")
        return {each for each in folders if each.exists()}

    try:
        assert first == second, "a session that is started again in a JVM uses its folder"
        assert len(folders) == 2
        assert not any(str(folder) in opened for folder in folders), "the driver has no file of them open"
        assert cleaned() == folders
    finally:
        os.kill(int(jvm), signal.SIGKILL)
    until = time.monotonic() + 20
    while cleaned() and time.monotonic() < until:
        time.sleep(0.1)
    assert not cleaned()
    shutil.rmtree(temporary)


def test_a_start_removes_no_folder_with_a_lock_of_another_machine_or_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    locks = {
        "py-ended": _machine(),
        "py-of-another-machine": _machine() + b"2",
        "py-of-my-own": b"",
        "kept": _machine(),
    }
    for name, content in locks.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "jvm.lock").write_bytes(content)
    (tmp_path / "py-link").symlink_to(tmp_path / "kept")
    _remove_unlocked("py-")
    assert {each.name for each in tmp_path.iterdir()} == {"py-of-another-machine", "py-of-my-own", "py-link", "kept"}
    assert (tmp_path / "kept" / "jvm.lock").exists()


@pytest.mark.parametrize("cores", [0, -1, "many", True])
def test_an_invalid_number_of_cores_is_refused_before_anything_starts(cores: object) -> None:
    with pytest.raises(ConfigError, match="cores is a number"):
        session(cores=cores)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({"master": "local[2]"}, r"got master=; write session\(\*\*\{'spark\.master': \.\.\.\}\)"),
        ({"core": "2"}, r"got core=; did you mean 'cores'\?$"),
        ({"spark_driver_memory": "2g"}, r"got spark_driver_memory=; write .*'spark\.driver\.memory'"),
        ({"spark.sql.session.timeZone": "Europe/Berlin"}, r"timeZone is 'Europe/Berlin', wanted UTC: .*; leave it out"),
    ],
)
def test_a_misspelt_setting_and_one_that_could_lose_data_are_refused_before_anything_starts(
    conf: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["windowing.spark.session"], "_started", lambda *_: pytest.fail("a session was started")
    )
    with pytest.raises((ConfigError, SessionError), match=sentence):
        session(**conf)


def _descendants(pid: int) -> set[int]:
    import psutil

    return {child.pid for child in psutil.Process(pid).children(recursive=True)} | {pid}


def _listeners(pids: set[int]) -> set[str]:
    """Return the local addresses of the listening TCP sockets of these processes, in the format of /proc."""
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


class Kept:
    """The session of the tests, which counts calls of `stop` and is not stopped."""

    def __init__(self, running: SparkSession) -> None:
        self.running, self.stopped = running, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.running, name)

    def stop(self) -> None:
        self.stopped += 1


def test_the_doctor_runs_a_small_query_and_stops_its_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(spark)
    monkeypatch.setattr("windowing.spark.session", lambda name, cores: kept)
    found = list(diagnose(True))[-1]
    assert found.good, found
    assert "4 windows, as in one process" in str(found)
    assert kept.stopped == 1
