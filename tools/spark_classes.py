"""Archives the classes that a query loads, for the JVMs of `make test`: with the archive, a session starts with half the CPU time.

    .venv/bin/python tools/spark_classes.py .venv/spark-home/classes.jsa

Java takes an archive only with the class path that it was made with, and session() makes a new one for each session. So the folder
of the archive becomes a SPARK_HOME of links, as session() makes them: without `python`, so that workers import what is installed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pyspark

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conftest import INTERPRETED
from windowing import count, tumbling
from windowing.spark import MemorySink, session, windowed


@tumbling(count(2), output="total long")
def total(window: Any) -> int:
    return sum(row.v for row in window)


def link(home: Path) -> None:
    """Make a SPARK_HOME of links to the installed pyspark."""
    home.mkdir(exist_ok=True)
    for entry in Path(pyspark.__path__[0]).iterdir():
        if entry.name != "python":
            (home / entry.name).unlink(missing_ok=True)
            (home / entry.name).symlink_to(entry)


def run_query(folder: Path) -> None:
    """Run one query to its end, then the JVM to its end, which writes the archive."""
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text("".join(json.dumps({"v": v}) + "\n" for v in (1, 2)))
    spark, sink = session("classes", cores=2, **INTERPRETED), MemorySink()
    rows = spark.readStream.schema("v long").json(str(folder / "in"))
    assert windowed(total, rows).start(sink, folder / "checkpoint", drain=True).await_end(300)
    assert [row.total for row in sink.rows] == [3]
    gateway: Any = cast(Any, spark.sparkContext)._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


archive = Path(sys.argv[1]).absolute()
part = archive.with_suffix(".part")
part.unlink(missing_ok=True)
link(archive.parent)
os.environ |= {"SPARK_HOME": str(archive.parent), "SPARK_SUBMIT_OPTS": f"'-XX:ArchiveClassesAtExit={part}'"}
with tempfile.TemporaryDirectory() as folder:
    run_query(Path(folder))
part.replace(archive)
