"""The call paths through the driver: the functions that foreachBatch calls; together with those of the workers, all (journeys.py).

`python -m pytest -s` prints every function.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.execution.journeys import ROWS, Journey, summed, trident_in_workers, windowed_in_workers, words_topology
from windowing.spark import MemorySink, ParquetSink, submit_trident, windowed
from windowing.spark.writer import BatchWriter
from windowing.stores.sqlite import SqliteStore

WINDOWED, TRIDENT = (240, 33), (204, 31)
"""The largest allowed numbers of functions and of files. `keep_packing` of spark/checkpoint.py looks in each batch at settings that
Spark reads in each batch: three functions and a file.
"""

FED = [[dict(zip(("k", "ts", "v"), row, strict=True)) for row in rows] for rows in ROWS]


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> dict[int, Journey]:
    """The functions that foreachBatch calls, by batch."""
    found: dict[int, Journey] = {}
    write = BatchWriter.__call__

    def traced(writer: BatchWriter, output: Any, batch_id: int) -> None:
        found[batch_id] = Journey()
        with found[batch_id].traced():
            write(writer, output, batch_id)

    monkeypatch.setattr(BatchWriter, "__call__", traced)
    return found


def test_a_row_of_windowed_passes_through_no_more_functions_and_files_than_before(
    feed: Callable[..., Any], driven: dict[int, Journey], tmp_path: Path
) -> None:
    late = MemorySink()
    into = {"default": ParquetSink(str(tmp_path / "out")), "late": late}
    query = windowed(summed, feed().add(*FED).read(), tasks=1).start(into, str(tmp_path / "checkpoint"))
    assert query.await_end(180)
    assert not late.rows
    whole = windowed_in_workers() | driven[1]
    print(f"\nwindowed: {whole}, of them {driven[1]} in the driver\n{driven[1].table()}")
    assert ("spark/writer.py", "BatchWriter.deliver") in driven[1].steps
    assert (len(whole.steps) <= WINDOWED[0], len(whole.files) <= WINDOWED[1]) == (True, True), whole


def test_a_trident_batch_passes_through_no_more_functions_and_files_than_before(
    spark: SparkSession, feed: Callable[..., Any], driven: dict[int, Journey], tmp_path: Path
) -> None:
    (tmp_path / "workers").mkdir()
    query = submit_trident(
        words_topology(SqliteStore(tmp_path / "states.db")),
        spark,
        sources={"words": feed().add(*FED).read()},
        sinks={"counts": ParquetSink(str(tmp_path / "out"))},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert query.await_end(180)
    whole = trident_in_workers(tmp_path / "workers") | driven[1]
    print(f"\ntrident: {whole}, of them {driven[1]} in the driver\n{driven[1].table()}")
    assert ("spark/trident_commits.py", "TridentCommits.commit") in driven[1].steps
    assert (len(whole.steps) <= TRIDENT[0], len(whole.files) <= TRIDENT[1]) == (True, True), whole
