"""Runs the same topology in one process or on Spark, for the examples beside it.

    python examples/word_count.py                 in this process
    python examples/word_count.py --on spark      as one Structured Streaming query on local[2]

Both get the same batches: lists of rows here, a file for each batch there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from windowing import Topology
from windowing.local import VirtualClock, run_topology

Rows = list[tuple[Any, ...]]
Batches = dict[str, Sequence[Rows]]


def chosen_runtime(description: str) -> str:
    """Return "local" or "spark", as the command line says."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--on", choices=["local", "spark"], default="local", help="where to run (default: local)")
    return str(parser.parse_args().on)


def run(topology: Topology, batches: Batches, on: str) -> dict[str, Rows]:
    """Run a topology over batches for each InputSpout, and return the rows of each stream that nobody reads."""
    if on == "local":
        return run_topology(topology, batches, clock=VirtualClock()).outputs
    with _quiet_session() as spark:
        return run_on_spark(topology, batches, spark)


def run_on_spark(topology: Topology, batches: Batches, spark: Any) -> dict[str, Rows]:
    """Do the same with a Spark session, as one streaming query over files."""
    from windowing.spark import MemorySink, submit

    with tempfile.TemporaryDirectory() as folder:
        sources = {}
        for spout, rows in batches.items():
            schema = topology.component(spout).outputs["default"].schema
            where = _written(Path(folder, spout), schema.names, rows)
            # A file is a batch, and the oldest file comes first.
            sources[spout] = spark.readStream.schema(schema.ddl).option("maxFilesPerTrigger", 1).json(str(where))
        sinks = {
            component.id: MemorySink()
            for component in topology.components.values()
            if "default" in component.outputs and not topology.readers(component.id)
        }
        query = submit(
            topology, spark, sources=sources, sinks=sinks, checkpoint=str(Path(folder, "checkpoint")), drain=True
        )
        query.await_end()
        return {name: [tuple(row) for row in sink.rows] for name, sink in sinks.items()}


@contextlib.contextmanager
def _quiet_session() -> Iterator[Any]:
    """A Spark session whose own messages go nowhere: the JVM inherits a redirected stderr."""
    from windowing.spark import session

    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        # A JVM that lives for seconds has no time for the optimizing compiler.
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        spark = session("classics", cores=2, **{"spark.log.level": "ERROR", "spark.driver.extraJavaOptions": quick})
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    try:
        yield spark
    finally:
        spark.stop()


def _written(folder: Path, names: tuple[str, ...], batches: Sequence[Rows]) -> Path:
    folder.mkdir()
    for number, rows in enumerate(batches):
        file = folder / f"batch-{number:04}.json"
        file.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        os.utime(file, (1_000_000 + number, 1_000_000 + number))  # Spark takes files in the order of their times
    return folder
