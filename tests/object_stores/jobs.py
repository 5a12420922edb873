"""The jobs of `crash/` with their checkpoint and their output on HDFS or S3: `python -m tests.object_stores.jobs '{"kind": ...}'`.

The input of a job, its queue and its states stay on the disk, in `folder`; `there` is the folder on the store. The exit code is 0,
or REFUSED after a `WindowingError`, which is written to `<folder>/error.json`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pyspark import cloudpickle

from tests.crash import harness, job, topology_job, trident_spark_job
from tests.crash.job import REFUSED
from windowing import WindowingError
from windowing.spark import FileSink, session

for module in (harness, job, topology_job, trident_spark_job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".object_stores"


def addresses() -> dict[str, str]:
    """Return the URL of each server; that of S3 contains the key, and ends with the bucket."""
    return dict(line.split("=", 1) for line in (HOME / "addresses").read_text().splitlines())


def folders() -> dict[str, str]:
    """Return the root folder of each store, as Spark addresses it."""
    found = addresses()
    s3 = {"s3a": "s3a:/" + urlsplit(found["WINDOWING_S3_URL"]).path} if "WINDOWING_S3_URL" in found else {}
    return {"hdfs": found["WINDOWING_HDFS_URL"], **s3}


def settings() -> dict[str, str]:
    """Return the settings of a session for S3, if it runs; HDFS needs none."""
    if "WINDOWING_S3_URL" not in addresses():
        return {"spark.log.level": "ERROR"}
    at = urlsplit(addresses()["WINDOWING_S3_URL"])
    s3a = {
        "endpoint": f"http://{at.hostname}:{at.port}",
        "endpoint.region": "us-east-1",
        "access.key": at.username,
        "secret.key": at.password,
        "path.style.access": "true",
        "multiobjectdelete.enable": "false",
    }
    jars = ":".join(str(jar) for jar in sorted((HOME / "jars" / "s3a").glob("*.jar")))
    return {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.log.level": "ERROR",
        **{f"spark.hadoop.fs.s3a.{name}": str(value) for name, value in s3a.items()},
    }


class _There:
    """A job of `crash/` with its checkpoint and output in the folder `there`."""

    kind: ClassVar[str]
    module: ClassVar[str] = "tests.object_stores.jobs"
    there: str

    @property
    def checkpoint(self) -> str:
        return f"{self.there}/checkpoint"

    def sinks(self) -> dict[str, Any]:
        return {name: FileSink(f"{self.there}/out/{name}") for name in super().sinks()}  # type: ignore[misc]

    def plain(self) -> str:
        return json.dumps({"kind": self.kind, **asdict(self)})  # type: ignore[call-overload]


@dataclass(frozen=True)
class Windows(_There, job.Job):  # type: ignore[misc]
    """A windowed bolt with two sinks, over files."""

    there: str = ""
    kind: ClassVar[str] = "windows"
    start: ClassVar[Any] = staticmethod(job.start)


@dataclass(frozen=True)
class Acks(_There, topology_job.TopologyJob):  # type: ignore[misc]
    """A topology on a queue."""

    there: str = ""
    kind: ClassVar[str] = "acks"
    start: ClassVar[Any] = staticmethod(topology_job.start)

    def queue(self) -> Any:
        return topology_job.SqliteQueue(Path(self.folder, "queue.db"), topology_job.FIELDS, partitions=2, max_rows=40)


@dataclass(frozen=True)
class Trident(_There, trident_spark_job.TridentJob):  # type: ignore[misc]
    """Trident with states in SQLite, or in PostgreSQL."""

    there: str = ""
    kind: ClassVar[str] = "trident"
    start: ClassVar[Any] = staticmethod(trident_spark_job.start)


def main(argument: str) -> int:
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(argument).items()}
    kinds = {each.kind: each for each in (Windows, Acks, Trident)}
    of: Any = kinds[given.pop("kind")](**given)
    os.environ["WINDOWING_FAILPOINT_GROUP"] = str(os.getpgrp())  # before the JVM starts: the workers inherit it
    spark = session(f"stores-{of.kind}", cores=2, **settings())
    try:
        assert of.start(spark, of).await_end(240), "the query does not end"
    except WindowingError as error:
        said = json.dumps({"class": type(error).__name__, "message": str(error)})
        Path(of.folder, "error.json").write_text(said)
        return REFUSED
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
