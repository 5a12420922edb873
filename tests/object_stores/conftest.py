"""The servers of `make object-stores`, and the expected results: those of the same jobs on a local disk."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from tests.crash import harness, job, topology_job, trident_spark_job
from tests.crash.test_topology_killed import told
from tests.crash.test_trident_killed import sorted_outputs
from tests.object_stores.jobs import HOME, Acks, Trident, Windows, folders, settings
from windowing.spark import session
from windowing.spark.hadoop import Folder

START: Mapping[str, Any] = {"windows": job.start, "acks": topology_job.start, "trident": trident_spark_job.start}


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("object_stores")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of the tests here, with the jars and settings for S3."""
    if not (HOME / "addresses").exists():
        pytest.fail("HDFS and S3 do not run here: start them with make object-stores", pytrace=False)
    running = session("stores", cores=2, **settings())
    yield running
    running.stop()


@pytest.fixture(params=["hdfs", "s3a"])
def there(request: pytest.FixtureRequest, spark: SparkSession) -> str:
    """The address of a new folder on a store; it does not exist yet."""
    return f"{folders()[request.param]}/{uuid4().hex}"


def prepared(kind: str, folder: Path, there: str | None = None, postgres: str = "") -> Any:
    """Return a job with its input: all on the disk, or with checkpoint and output on a store, and the states of Trident in
    PostgreSQL if an address is given.
    """
    if kind == "windows":
        source = str(harness.write_input(folder / "in"))
        found: Any = job.Job("sliding", source, str(folder / "job"), order_by=("id",))
        return found if there is None else Windows(**asdict(found), there=there)
    if kind == "trident":
        found = trident_spark_job.TridentJob(str(harness.write_input(folder / "in")), str(folder / "job"), postgres)
        return found if there is None else Trident(**asdict(found), there=there)
    found = topology_job.TopologyJob(str(folder / "job"))
    found = found if there is None else Acks(found.folder, there)
    Path(found.folder).mkdir(parents=True)
    found.queue().put(topology_job.input_rows())
    return found


def result(spark: SparkSession, kind: str, of: Any) -> tuple[Any, ...]:
    """Return the output of a job, copied from a store to the disk first; and the content of its queue or its states."""
    if hasattr(of, "there"):
        Folder(spark, of.there).copy("out", Folder(spark, of.folder))
    if kind == "trident":
        return sorted_outputs(of), trident_spark_job.states(of)
    return harness.outputs(of), len(of.queue()) if kind == "acks" else 0


def closed_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="session")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, ...]]:
    """The result of each job on the disk, run once; for the topology also the batch with which each root is acked."""
    found: dict[str, tuple[Any, ...]] = {}

    def run(kind: str) -> tuple[Any, ...]:
        if kind not in found:
            of = prepared(kind, tmp_path_factory.mktemp(kind))
            START[kind](spark, of).await_end(240)
            found[kind] = result(spark, kind, of), dict(told(of)) if kind == "acks" else {}
        return found[kind]

    return run
