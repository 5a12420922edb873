"""The cluster of `make cluster`, and the expected results: those of the same jobs on `local[2]`, run before in the same JVM."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import harness, job, topology_job, trident_spark_job
from tests.crash.test_topology_killed import told
from tests.crash.test_trident_killed import sorted_outputs
from tests.services.conftest import address, empty
from windowing.spark import failpoints, session

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".cluster"
SMALL = {
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    # A silent executor is declared lost after seconds, not after two minutes.
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.rpc.askTimeout": "120s",
    "spark.shuffle.io.maxRetries": "0",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "2",
    "spark.speculation.minTaskRuntime": "2s",
}
for module in (harness, job, topology_job, trident_spark_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")


# -- the jobs ----------------------------------------------------------------------------------------------------------------


class Windows:
    """A windowed bolt with two sinks, over files."""

    @staticmethod
    def prepared(folder: Path) -> job.Job:
        source = harness.write_input(folder / "in")
        return job.Job("sliding", str(source), str(folder / "job"), order_by=("id",))

    start = staticmethod(job.start)
    result = staticmethod(harness.outputs)


class Acks:
    """A topology on a queue; the result is its output, the acked roots, and the number of rows left in the queue."""

    @staticmethod
    def prepared(folder: Path) -> topology_job.TopologyJob:
        found = topology_job.TopologyJob(str(folder / "job"))
        Path(found.folder).mkdir(parents=True)
        found.queue().put(topology_job.input_rows())
        return found

    start = staticmethod(topology_job.start)

    @staticmethod
    def result(of: topology_job.TopologyJob) -> tuple[Any, ...]:
        return harness.outputs(of), sorted({root for root, _ in told(of)}), len(of.queue())  # type: ignore[arg-type]


class Trident:
    """Trident into PostgreSQL; the result is its output and the content of its tables."""

    @staticmethod
    def prepared(folder: Path) -> trident_spark_job.TridentJob:
        empty("postgres")
        source = harness.write_input(folder / "in")
        return trident_spark_job.TridentJob(str(source), str(folder / "job"), address("postgres"))

    start = staticmethod(trident_spark_job.start)

    @staticmethod
    def result(of: trident_spark_job.TridentJob) -> tuple[Any, ...]:
        return sorted_outputs(of), trident_spark_job.states(of)


class Late(Trident):
    """Trident with a state that records the outcome of a delayed worker."""

    @staticmethod
    def prepared(folder: Path) -> trident_spark_job.LateJob:
        return trident_spark_job.LateJob(**asdict(Trident.prepared(folder)))


CASES: Mapping[str, Any] = {"windows": Windows, "acks": Acks, "trident": Trident}


def finish(spark: SparkSession, case: Any, of: Any) -> Any:
    """Run a job to its end, and return its result."""
    assert case.start(spark, of).await_end(240), "the query does not end"
    return case.result(of)


@pytest.fixture(scope="session")
def local_results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The result of each job on `local[2]`."""
    running = session("local", cores=2, **{"spark.log.level": "ERROR"})
    try:
        assert running.sparkContext.master == "local[2,4]"
        return {
            name: finish(running, case, case.prepared(tmp_path_factory.mktemp(name))) for name, case in CASES.items()
        }
    finally:
        running.stop()


# -- the cluster -------------------------------------------------------------------------------------------------------------


def waited_for(find: Callable[[], Any], what: str, timeout_s: float = 90) -> Any:
    """Poll `find` until it returns a true value, and return that."""
    until = time.monotonic() + timeout_s
    while not (found := find()):
        assert time.monotonic() < until, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)
    return found


def host_of(executor: psutil.Process) -> str:
    command = executor.cmdline()
    return command[command.index("--hostname") + 1]


class Cluster:
    """The processes of `tools/cluster.sh`."""

    @property
    def master(self) -> str:
        return (HOME / "address").read_text().strip()

    @property
    def driver(self) -> psutil.Process:
        """The JVM of this process."""
        return next(each for each in psutil.Process().children() if each.name() == "java")

    @staticmethod
    def command(name: str) -> None:
        subprocess.run(["bash", ROOT / "tools" / "cluster.sh", name], check=True, timeout=180)

    @staticmethod
    def worker(name: str) -> psutil.Process:
        return psutil.Process(int((HOME / f"{name}.pid").read_text()))

    def executors(self, spark: SparkSession) -> list[psutil.Process]:
        """Return the running executors of a session."""
        found = []
        for worker in ("worker1", "worker2"):
            for child in self.worker(worker).children():
                with suppress(psutil.NoSuchProcess):
                    if str(spark.sparkContext.applicationId) in child.cmdline():
                        found.append(child)
        return found

    @staticmethod
    def worker_of(executor: psutil.Process) -> psutil.Process:
        found = executor.parent()
        assert found is not None
        return found

    def known_executors(self, spark: SparkSession) -> list[psutil.Process]:
        """Return the running executors that are registered with the driver."""
        hosts = str(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" "))
        return [each for each in self.executors(spark) if f"{host_of(each)}:" in hosts]

    def frozen_executor(self, spark: SparkSession) -> psutil.Process:
        """Wait until an executor of the session is stopped by SIGSTOP, and return it."""
        return waited_for(
            lambda: next((each for each in self.executors(spark) if each.status() == psutil.STATUS_STOPPED), None),
            "a frozen executor",
        )

    def spread_executors(self, spark: SparkSession) -> None:
        """Wait for an executor on each worker: after the loss of one, the master may have started both on the other worker."""
        self.wait_for_executors(spark, 2)
        while len({host_of(each) for each in self.executors(spark)}) < 2:
            lost, *_ = self.executors(spark)
            lost.kill()
            lost.wait(30)
            waited_for(lambda: len(self.executors(spark)) == 2, "another executor")
        self.wait_for_executors(spark, 2)

    def wait_for_executors(self, spark: SparkSession, count: int) -> None:
        status = spark.sparkContext._jsc.sc()  # the driver counts too
        waited_for(lambda: status.getExecutorMemoryStatus().size() == count + 1, f"{count} executors")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    if not (HOME / "address").exists():
        pytest.fail("no cluster runs here: start it with make cluster", pytrace=False)
    found = Cluster()
    found.command("start")  # starts a worker that a test of an earlier run killed
    return found


@pytest.fixture(scope="module")
def spark(cluster: Cluster, local_results: Mapping[str, Any]) -> Iterator[SparkSession]:
    """One session on the cluster, with an executor on each worker, and speculation."""
    running = session("cluster", **SMALL, **SPECULATION, **{"spark.master": cluster.master})
    assert running.sparkContext.master == cluster.master
    cluster.wait_for_executors(running, 2)
    yield running
    running.stop()


# -- kills -------------------------------------------------------------------------------------------------------------------


@dataclass
class Deaths:
    """Kills executors at failpoints of the driver and of the Python workers, and records the times."""

    cluster: Cluster
    spark: SparkSession
    folder: Path
    killed: dict[str, float] = field(default_factory=dict)

    def of_driver(self, monkeypatch: pytest.MonkeyPatch, points: Sequence[str], act: Callable[[str], None]) -> None:
        """Call `act` when the driver reaches a failpoint, once at each."""
        by_name = {point.partition(":")[0]: point for point in points}

        def reached(name: str) -> None:
            self.killed[by_name[name]] = time.time()
            act(by_name[name])

        monkeypatch.setattr(failpoints, "_kill", reached)
        monkeypatch.setenv("WINDOWING_FAILPOINT", ",".join(points))
        monkeypatch.setenv("WINDOWING_FAILPOINT_ONCE", str(self.folder / "driver"))

    def kill_an_executor(self, point: str) -> None:
        living = self.cluster.executors(self.spark)
        assert living, f"no executor lives at {point}"
        living[len(self.killed) % len(living)].send_signal(signal.SIGKILL)

    def in_workers(self, points: Sequence[str], group: str = "executor") -> dict[str, str]:
        """Return the environment variables that kill or freeze the executor whose Python worker reaches a failpoint."""
        return {
            # With several points, each has its own marker file.
            "WINDOWING_FAILPOINT": ",".join((*points, "kill_worker:999")),
            "WINDOWING_FAILPOINT_GROUP": group,
            "WINDOWING_FAILPOINT_ONCE": str(self.folder / "worker"),
        }

    def all_killed(self) -> dict[str, float]:
        found = {path.name.removeprefix("worker-"): path.stat().st_mtime for path in self.folder.glob("worker-*")}
        return self.killed | found

    def seconds_to_next_commit(self, checkpoint: Path) -> dict[str, float]:
        """Return, for each kill, the seconds until the next batch was committed."""
        commits = sorted(path.stat().st_mtime for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
        return {
            point: round(next(commit for commit in commits if commit > at) - at, 1)
            for point, at in self.all_killed().items()
            if at < commits[-1]
        }


@pytest.fixture
def deaths(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> Deaths:
    return Deaths(cluster, spark, tmp_path)
