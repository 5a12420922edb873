"""`windowing doctor`: checks the installed packages and Java, and runs a query of ten rows on Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from windowing.errors import WindowingError, describe_error
from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

_SPARK = ("pyspark", "pandas", "pyarrow", "protobuf", "xxhash")
_OTHER = {
    "matplotlib": "draw",
    "psycopg": "postgres",
    "redis": "redis",
    "pika": "rabbitmq",
    "confluent-kafka": "kafka",
    "prometheus_client": "prometheus",
    "opentelemetry-api": "opentelemetry",
}
_JAVA = 17
_QUERY = "ten rows on Spark"


class Finding(NamedTuple):
    """The result of one check; `good` is None if the item is optional. to_do: how to fix it."""

    what: str
    found: str
    good: bool | None
    to_do: str = ""


def diagnose(query: bool) -> Iterator[Finding]:
    """Yield the result of each check. query: at the end run ten rows on Spark, if all else is good. Cost: a JVM start."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", python, sys.version_info >= (3, 11), "install Python 3.11 or later")
    yield _package("windowing", "install the library", True)
    ready = True
    for name in _SPARK:
        finding = _package(name, "pip install 'windowing[spark]'", True)
        ready &= bool(finding.good)
        yield finding
    for name, extra in _OTHER.items():
        yield _package(name, f"pip install 'windowing[{extra}]', if you need it", False)
    java = _java()
    yield java
    ready &= bool(java.good)
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        value = os.environ.get(name)
        to_do = "" if value is None else "another Spark or Python than this one's may be used"
        yield Finding(name, value or "not set", None, to_do)
    if query and ready:
        yield _ten_rows()
    elif query:
        yield Finding(_QUERY, "not tried", False, "mend what is above, then run this again")


def _package(name: str, to_do: str, needed: bool) -> Finding:
    try:
        return Finding(name, version(name), True)
    except PackageNotFoundError:
        return Finding(name, "not installed", False if needed else None, to_do)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    to_do = f"install Java {_JAVA} or later, and let JAVA_HOME name it"
    if program is None:
        return Finding("Java", f"not found{f' in JAVA_HOME={home}' if home else ''}", False, to_do)
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Finding("Java", describe_error(problem), False, to_do)
    found = re.search(r'.*version "(\d+).*', said)  # a line about JAVA_TOOL_OPTIONS may precede it
    shown = found[0] if found else said.partition("\n")[0] or "says nothing"
    return Finding("Java", shown, found is not None and int(found[1]) >= _JAVA, to_do)


@tumbling(seconds(3), timestamp="at", output="ends long, total long")
def sums_of_three(window: Any) -> tuple[int, int]:
    """Return the end of a window of three seconds and the sum of `n` over its rows."""
    return window.end_timestamp, sum(row.n for row in window)


def _ten_rows() -> Finding:
    """Run ten rows through a windowed bolt on Spark and compare the output with a run in one process."""
    from windowing.local import run_local
    from windowing.spark import MemorySink, session, windowed

    rows = [{"n": n, "at": 1000 * n} for n in range(10)]
    wanted = sorted(run_local(sums_of_three, [rows])["default"])
    try:
        spark = session("windowing doctor", cores=2)
        try:
            with tempfile.TemporaryDirectory() as folder:
                spark.createDataFrame(rows, "n long, at long").coalesce(1).write.json(f"{folder}/in")
                read = spark.readStream.schema("n long, at long").json(f"{folder}/in")
                sink = MemorySink()
                windowed(sums_of_three, read, order_by="at").start(
                    {"default": sink}, checkpoint=f"{folder}/checkpoint", drain=True
                ).await_end()
                found = sorted(tuple(row) for row in sink.rows)
        finally:
            spark.stop()
    except WindowingError as problem:
        return Finding(_QUERY, describe_error(problem), False, "do what the sentence says")
    except Exception as problem:
        return Finding(
            _QUERY, describe_error(problem), False, "look at the log above; is Java 17 the one that is used?"
        )
    if found != wanted:
        return Finding(_QUERY, f"{found}, wanted {wanted}", False, "report this with your versions")
    return Finding(_QUERY, f"{len(found)} windows, as in one process", True)
