"""A job run by `spark-submit --master yarn`, with the Python of its containers from `--archives`, has the local results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.object_stores.conftest import prepared, result
from tests.object_stores.jobs import addresses, folders
from windowing.spark.hadoop import Folder

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parent
JOB = """
import sys
from tests.object_stores import jobs
jobs.settings = dict
sys.exit(jobs.main(sys.argv[1]))
"""
SMALL = {
    "spark.yarn.jars": f"local:{SPARK}/jars/*",
    "spark.executor.instances": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.log.level": "ERROR",
}
PYTHON = "./environment/bin/python"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed virtual environment with the library and the jobs, which uses the installed packages of this one."""
    made = tmp_path_factory.mktemp("environment") / "made"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(str(SPARK.parent))
    for name in ("windowing", "tests"):
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(made.parent / "environment"), "gztar", made))


def submit(folder: Path, environment: Path, mode: str, of: Any, **settings: str) -> subprocess.CompletedProcess[str]:
    """Submit the job from a folder that holds only the job, and wait for its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    given = SMALL | {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON, "spark.pyspark.python": PYTHON} | settings
    where = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(SPARK),
        "HADOOP_CONF_DIR": addresses()["WINDOWING_YARN_CONF"],
    }
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    if mode == "client":
        shutil.unpack_archive(environment, folder / "environment", filter="fully_trusted")
    return subprocess.run(
        [
            str(SPARK / "bin" / "spark-submit"),
            *("--master", "yarn", "--deploy-mode", mode, "--archives", f"{environment}#environment"),
            *(part for name, value in given.items() for part in ("--conf", f"{name}={value}")),
            *("job.py", of.plain()),
        ],
        cwd=folder,
        env=kept | where,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def on_hdfs(spark: SparkSession, folder: Path) -> Any:
    """Return a job with its input on HDFS too, like its checkpoint and output; the input files keep their modification times."""
    of = prepared("windows", folder, f"{folders()['hdfs']}/{uuid4().hex}")
    Path(of.folder).mkdir()
    Folder(spark, str(folder)).copy("in", there := Folder(spark, of.there))
    for file in (folder / "in").iterdir():
        there._fs.setTimes((there / "in")._file(file.name), int(1000 * file.stat().st_mtime), -1)
    return replace(of, source=f"{of.there}/in")


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_job_on_yarn_has_the_results_of_a_local_run(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], environment: Path, tmp_path: Path, mode: str
) -> None:
    of = on_hdfs(spark, tmp_path)
    done = submit(tmp_path / "submitted", environment, mode, of)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert result(spark, "windows", of) == local("windows")[0]


def test_yarn_restarts_a_killed_driver_which_continues_from_its_checkpoint(
    spark: SparkSession, local: Callable[[str], tuple[Any, ...]], environment: Path, tmp_path: Path
) -> None:
    """Executors are killed too, before and after they write their state."""
    of = on_hdfs(spark, tmp_path)
    driver = {"FAILPOINT": "in_sink:2", "FAILPOINT_ONCE": str(tmp_path / "driver")}
    worker = {
        "FAILPOINT": "before_state_write:1,after_state_write:4",
        "FAILPOINT_GROUP": "executor",
        "FAILPOINT_ONCE": str(tmp_path / "worker"),
    }
    settings = {f"spark.yarn.appMasterEnv.WINDOWING_{name}": value for name, value in driver.items()}
    settings |= {f"spark.executorEnv.WINDOWING_{name}": value for name, value in worker.items()}
    done = submit(tmp_path / "submitted", environment, "cluster", of, **settings)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    killed = {path.name for path in tmp_path.iterdir() if path.name.startswith(("driver", "worker"))}
    assert killed == {"driver", "worker-before_state_write:1", "worker-after_state_write:4"}
    assert result(spark, "windows", of) == local("windows")[0]
