"""The control stream: ticks, which do not keep a bounded run alive, and the drain command of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from windowing.errors import CheckpointError, CorruptStateError
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.control import (
    DRAIN_FILE,
    control_rows,
    drain_batch,
    make_control_folder,
    needs_ticks,
    tick_rows,
    write_drain,
)
from windowing.spark.hadoop import Folder, literal_path
from windowing.windows.config import WindowConfig
from windowing.windows.measures import count, seconds


def collected(rows: DataFrame, checkpoint: Path) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}

    def take(batch: DataFrame, batch_id: int) -> None:
        found[batch_id] = [(row["target"], row["kind"]) for row in batch.collect()]

    started = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    assert started.trigger(availableNow=True).start().awaitTermination(60), "an availableNow run must end"
    return found


def test_a_run_over_available_input_gets_exactly_one_tick_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    assert collected(tick_rows(spark, (3, 5)), tmp_path / "ck") == {0: [(3, "tick"), (5, "tick")]}
    assert collected(tick_rows(spark, (3, 5)), tmp_path / "ck") == {1: [(3, "tick"), (5, "tick")]}


def test_a_drain_reaches_every_task_once_and_other_files_are_ignored(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "it's a [check] point"
    stored = Checkpoint(spark, str(checkpoint))
    folder = stored.control
    folder.make()
    rows = control_rows(spark, literal_path(folder.path), (3, 5))
    assert collected(rows, checkpoint) == {}
    assert drain_batch(stored) is None
    folder.write("garbage.json", b"\x80\x05 not json\n")
    folder.write("other.json", b'{"kind": "explode"}\n{"sort": "drain"}\n')
    assert collected(rows, checkpoint) == {0: []}
    write_drain(stored)
    assert drain_batch(stored) is None
    assert collected(rows, checkpoint) == {1: [(3, "drain"), (5, "drain")]}
    assert drain_batch(stored) == 1
    log = stored.offsets
    content = log.read("0")
    log.write("0", content[:-1])
    with pytest.raises(CorruptStateError, match="offsets/0 is damaged; put the file back from a copy"):
        drain_batch(stored)
    log.write("0", content)
    assert collected(rows, checkpoint) == {}
    for name in ("offsets/1", "offsets/.1.crc"):
        (checkpoint / name).unlink()
    assert drain_batch(stored) == 1, "bound to be taken next"
    assert DRAIN_FILE in folder.names()


def test_a_store_that_drops_empty_folders_is_refused_before_spark_reads_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    assert make_control_folder(checkpoint) == make_control_folder(checkpoint) == checkpoint.control.path
    monkeypatch.setattr(Folder, "make", lambda folder: None)
    make_control_folder(checkpoint)  # it is there
    with pytest.raises(
        CheckpointError, match=r"/other/windowing/control is missing .*; give a checkpoint on another store"
    ):
        make_control_folder(Checkpoint(spark, str(tmp_path / "other")))


def test_ticks_are_needed_for_processing_time_and_idle_timeouts_only() -> None:
    assert needs_ticks(WindowConfig.of(length=count(2)))
    assert not needs_ticks(WindowConfig.of(length=count(2), timestamp="ts"))
    assert needs_ticks(WindowConfig.of(length=count(2), timestamp="ts", idle_timeout=seconds(1)))
