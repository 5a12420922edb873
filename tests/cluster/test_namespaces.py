"""A worker loses its network, continues, and reconnects; uses network namespaces, where the test may create them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.cluster.conftest import ROOT, Windows, waited_for
from tests.cluster.cut_off import FAR, NEAR, PORT

SPARK = Path(pyspark.__file__).parent
DEPLOY = "org.apache.spark.deploy"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces, connected by a veth pair."""
    near, far = (f"windowing-{side}-{os.getpid()}" for side in ("near", "far"))
    try:
        for name in (near, far):
            ip("netns", "add", name)
        ip("link", "add", "near0", "netns", near, "type", "veth", "peer", "name", "far0", "netns", far)
        for name, end, address in ((near, "near0", NEAR), (far, "far0", FAR)):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", end)
            for each in ("lo", end):
                ip("-n", name, "link", "set", each, "up")
        yield near, far
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"network namespaces are not to be had here: {getattr(problem, 'stderr', None) or problem}")
    finally:
        for name in (near, far):
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def far(namespaces: tuple[str, str], tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The two namespaces with a master and a worker in one, and a worker in the other."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(space: str, host: str, what: str, *words: str) -> Path:
        log = tmp_path / f"{what}-{host}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))}
        with log.open("wb") as output:
            command = ["ip", "netns", "exec", space, str(SPARK / "bin" / "spark-class"), f"{DEPLOY}.{what}", *words]
            process = subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0"],
                env=kept | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        started.append(process)
        return log

    near, other = namespaces
    try:
        log = launch(near, NEAR, "master.Master", "--port", str(PORT))
        waited_for(lambda: "elected leader" in log.read_text(), f"the master: {log}")
        for space, host in ((near, NEAR), (other, FAR)):
            where = ("--work-dir", str(tmp_path / host), "--cores", "1", "--memory", "2g")
            log = launch(space, host, "worker.Worker", *where, f"spark://{NEAR}:{PORT}")
            waited_for(lambda log=log: "registered with master" in log.read_text(), f"a worker: {log}")
        yield near, other
    finally:
        for process in started:  # with the executors, which are in its group
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.mark.timeout(900)
def test_results_do_not_change_if_a_worker_loses_its_network_and_writes_its_state_late(
    far: tuple[str, str], local_results: Mapping[str, Any], tmp_path: Path
) -> None:
    job = Windows.prepared(tmp_path)
    given = {"far": far[1], "job": asdict(job), "folder": str(tmp_path)}
    done = subprocess.run(
        ["ip", "netns", "exec", far[0], sys.executable, "-m", "tests.cluster.cut_off", json.dumps(given)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("SPARK")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert {"held", "cut", "go on", "late", "back"} <= {path.name for path in tmp_path.iterdir()}
    assert Windows.result(job) == local_results["windows"]
