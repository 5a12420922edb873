"""User code and the library are shipped to a cluster whose Python has neither: a standalone master on loopback.

Not collected with the other tests: `make test-wheel` runs it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[1]
SPARK = Path(pyspark.__file__).parent
BOLTS = """
from windowing import count, tumbling

@tumbling(count(2), key="k", output="k string, total long")
def add_up(window):
    rows = list(window)
    return (rows[0].k, sum(row.v for row in rows))
"""
JOB = """
import sys
sys.path.append(%r)  # where the driver has the bolts
import bolts
from pyspark import cloudpickle
from windowing import WindowingError
from windowing.spark import MemorySink, check, session, windowed

how, home = sys.argv[1:]
if how == "value":
    cloudpickle.register_pickle_by_value(bolts)
try:
    spark = session("shipped", **{"spark.log.level": "OFF", "spark.cores.max": "1", "spark.sql.shuffle.partitions": "1"})
except WindowingError as problem:
    sys.exit(print("session", problem))
print("master", spark.sparkContext.master)
try:
    check(spark, bolts.add_up)
    print("checked")
except WindowingError as problem:
    print("check", problem)
rows = spark.readStream.schema("k string, v long").json(home + "/in")
sink = MemorySink()
try:
    query = windowed(bolts.add_up, rows, tasks=1).start(sink, home + "/checkpoint", drain=True)
    query.await_end(300)
    print("rows", sorted(map(tuple, sink.rows)))
except WindowingError as problem:
    print("start", type(problem).__name__, problem)
spark.stop()
"""


class Cluster(NamedTuple):
    """A master, and the Python of its executors, which has the dependencies of the library, but not the library."""

    master: str
    python: Path


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK)} | more


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def made_python(home: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # This adds the packages there, but not the folders that their .pth files add.
    (packages / "needed.pth").write_text(str(SPARK.parent))
    python = home / "bin" / "python"
    assert subprocess.run([python, "-c", "import pyspark, pandas, xxhash"], cwd=home, check=False).returncode == 0
    assert subprocess.run([python, "-c", "import windowing"], cwd=home, stderr=-3, check=False).returncode == 1
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home, port = tmp_path_factory.mktemp("cluster"), free_port()
    url, command = f"spark://127.0.0.1:{port}", [str(SPARK / "bin" / "spark-class")]
    deploy, log = "org.apache.spark.deploy", (home / "log").open("wb")
    master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = [
        f"{deploy}.worker.Worker",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "-c",
        "1",
        "-m",
        "2g",
        "-d",
        str(home),
        url,
    ]
    started = [
        subprocess.Popen(command + part, env=environment(), stdout=log, stderr=log, cwd=home)
        for part in (master, worker)
    ]
    try:
        until = time.monotonic() + 120
        while "Successfully registered with master" not in (home / "log").read_text():
            assert time.monotonic() < until, (home / "log").read_text()[-4000:]
            assert [each.poll() for each in started] == [None, None], (home / "log").read_text()[-4000:]
            time.sleep(0.2)
        yield Cluster(url, made_python(home / "python"))
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait(30)
        log.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as a wheel: a zip file with the name of a wheel."""
    file = tmp_path_factory.mktemp("library") / "windowing-0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for source in sorted((ROOT / "windowing").rglob("*.py")):
            wheel.write(source, source.relative_to(ROOT))
    return file


def submitted(cluster: Cluster, home: Path, how: str, *options: str, python: str | None = None) -> str:
    """Run the job by spark-submit in client mode, in a folder without modules; return its output."""
    for folder in ("in", "modules", "cwd"):
        (home / folder).mkdir(exist_ok=True)
    (home / "in" / "a.json").write_text('{"k":"a","v":1}\n{"k":"a","v":2}\n{"k":"b","v":3}\n')
    (home / "modules" / "bolts.py").write_text(BOLTS)
    (home / "job.py").write_text(JOB % str(home / "modules"))
    submit = [SPARK / "bin" / "spark-submit", "--master", cluster.master, *options, home / "job.py", how, home]
    pythons = {"PYSPARK_PYTHON": python or str(cluster.python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        list(map(str, submit)),
        env=environment(**pythons),
        cwd=home / "cwd",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert re.match(rf"master {cluster.master}\n|session ", done.stdout), done.stderr[-6000:]
    return done.stdout


def assert_ran(said: str) -> None:
    assert "checked\nrows [('a', 3), ('b', 3)]" in said, said


def test_py_files_ships_the_library_as_a_wheel_and_the_bolts_as_a_module(
    cluster: Cluster, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "bolts.py").write_text(BOLTS)
    said = submitted(cluster, tmp_path, "files", "--py-files", f"{library},{tmp_path}/modules/bolts.py")
    assert_ran(said)


def test_bolts_registered_by_value_are_shipped_with_the_library_as_a_zip(
    cluster: Cluster, library: Path, tmp_path: Path
) -> None:
    shutil.copy(library, tmp_path / "windowing.zip")
    said = submitted(cluster, tmp_path, "value", "--py-files", f"{tmp_path}/windowing.zip")
    assert_ran(said)


def test_archives_ships_a_packed_environment_which_the_driver_needs_too(
    cluster: Cluster, library: Path, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    made_python(made)
    (packages,) = made.glob("lib/python*/site-packages")
    with zipfile.ZipFile(library) as wheel:
        wheel.extractall(packages)
    packed = shutil.make_archive(str(tmp_path / "environment"), "gztar", made)
    options = ("--archives", f"{packed}#environment")
    said = submitted(cluster, tmp_path, "value", *options, python="./environment/bin/python")
    assert re.search(r"session .*unpack the environment of --archives there too", said, re.DOTALL), said
    assert "\nrows" not in said
    shutil.unpack_archive(packed, tmp_path / "cwd" / "environment", filter="fully_trusted")
    said = submitted(cluster, tmp_path, "value", *options, python="./environment/bin/python")
    assert_ran(said)


def test_a_module_missing_on_an_executor_is_a_session_error_before_the_first_batch(
    cluster: Cluster, library: Path, tmp_path: Path
) -> None:
    said = submitted(cluster, tmp_path, "files")
    assert re.findall(r"package (\w+) is missing", said) == ["windowing"], said
    assert re.search(r"start SessionError \[SESSION\] the Python workers of .* no module 'windowing'", said), said
    assert not (tmp_path / "checkpoint").exists(), "nothing was begun"
    said = submitted(cluster, tmp_path, "files", "--py-files", str(library))
    assert re.search(
        r"check .*bolt 'add_up' cannot be loaded .*No module named 'bolts'.*register_pickle_by_value", said, re.DOTALL
    ), said
    assert re.search(r"start SessionError .*no module 'bolts'", said), said
    assert not (tmp_path / "checkpoint").exists(), "nothing was begun"
