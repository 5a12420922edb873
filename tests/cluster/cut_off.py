"""The driver of `test_namespaces.py`, which runs in a network namespace that the test has created.

    near    10.77.0.1    master, a worker, this driver  --- veth pair ---  far    10.77.0.2    a worker

A task of batch 1 on the far worker blocks; the link goes down; the driver declares that executor lost and continues. Before batch 3
the task continues too, and writes its state, without a connection to the driver. Then the link comes up, the far worker gets a new
executor, and the executor of the near worker is killed: the far one loads the state from the checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
from pyspark.sql import SparkSession

from tests.cluster.conftest import SMALL, host_of, waited_for
from tests.crash.job import DEFINITIONS, Job, describe, start
from windowing.spark import failpoints, session
from windowing.spark.exchange import batch_id

NEAR, FAR, PORT = "10.77.0.1", "10.77.0.2", 7077
CUT_AT, GO_ON_AT = 1, 3


def describe_with_a_delay(folder: str, far: int, window: Any) -> tuple[Any, ...]:
    """Block the first task of batch `CUT_AT` in the far namespace until the file "go on" exists."""
    if batch_id() == CUT_AT and os.stat("/proc/self/ns/net").st_ino == far:
        with suppress(FileExistsError):
            os.close(os.open(f"{folder}/held", os.O_CREAT | os.O_EXCL))
            waited_for(Path(folder, "go on").exists, "the driver to be two batches further")
    return describe(window)


def executors(spark: SparkSession) -> dict[str, list[psutil.Process]]:
    """Return the running executors of the session, by the address of their worker."""
    found: dict[str, list[psutil.Process]] = {NEAR: [], FAR: []}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if str(spark.sparkContext.applicationId) in command and "--hostname" in command:
                found[host_of(process)].append(process)
    return found


def known(spark: SparkSession) -> list[str]:
    """Return the addresses of the executors registered with the driver, and its own."""
    hosts = str(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" "))
    return sorted(each.rpartition(":")[0] for each in hosts.split())


def main(far: str, job: Job, folder: Path) -> int:
    def cable(state: str) -> None:
        subprocess.run(["ip", "-n", far, "link", "set", "far0", state], check=True)

    def cut() -> None:
        waited_for((folder / "held").exists, "a task on the far worker")
        cable("down")
        (folder / "cut").touch()

    def written() -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in Path(job.folder).glob("checkpoint/state/*/*/2*.changelog")}

    def go_on(_: str) -> None:
        waited_for(lambda: FAR not in known(spark), "the driver to give the far executor up")
        (lost,), before = executors(spark)[FAR], written()
        (folder / "go on").touch()
        waited_for(lambda: written() - before, "what the late task writes")
        assert lost.is_running()
        (folder / "late").touch()
        cable("up")
        # TCP retransmits after a pause that doubled as long as the link was down.
        waited_for(lambda: FAR in known(spark) and not lost.is_running(), "another executor on the far worker", 200)
        (near,) = executors(spark)[NEAR]
        near.kill()
        (folder / "back").touch()

    settings = SMALL | {"spark.driver.host": NEAR, "spark.driver.bindAddress": NEAR}
    more = {"spark.executor.heartbeat.maxFailures": "600", "spark.master": f"spark://{NEAR}:{PORT}"}
    spark = session("cut-off", **settings, **more)
    waited_for(lambda: known(spark) == [NEAR, NEAR, FAR], "an executor on each worker")
    Thread(target=cut, daemon=True).start()
    failpoints._kill = go_on
    os.environ["WINDOWING_FAILPOINT"] = f"before_batch:{GO_ON_AT}"
    at = os.stat(f"/var/run/netns/{far}").st_ino
    definition = replace(DEFINITIONS[job.name], body=partial(describe_with_a_delay, str(folder), at))
    try:
        assert start(spark, job, definition).await_end(400), "the query does not end"
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    its = {name: tuple(value) if isinstance(value, list) else value for name, value in given["job"].items()}
    sys.exit(main(given["far"], Job(**its), Path(given["folder"])))
