"""The suite `spark_state`: the bytes of state written per batch divided by the bytes of its new events, by window length.

The files of the state store in the checkpoint (changelog and snapshots) are counted, over all batches after the first. An event is
24 bytes: a key, a timestamp, a value. Values are random doubles, which do not compress.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.events import START_MS
from benchmarks.frame import Contender, Measured, Plan
from benchmarks.spark import native, ours, stage
from benchmarks.spark.stage import Input
from windowing.spark import NoopSink, windowed

SECONDS = (1, 10, 60, 600)
A_FEW = (60, 600)
ROWS, BATCHES = 100_000, 8


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield one comparison: windows of rows and windows of totals, of four lengths."""
    rows, lengths = max(20_000, int(ROWS * scale)), SECONDS if scale >= 1 else A_FEW
    contenders = [
        Contender(f"rows, {seconds} s/1 s", partial(written, ours.over_rows(1000 * seconds, 1000)), compared=False)
        for seconds in lengths
    ]
    contenders += [
        Contender(f"aggregate, {seconds} s/1 s", partial(written, ours.totals(1000 * seconds, 1000)), compared=False)
        for seconds in lengths
    ]
    contenders.append(Contender("native window(), 60 s/1 s", natively, compared=False))
    yield Plan(
        "state written", f"batches of {rows:,} random doubles, bytes of state files over bytes of new events", contenders,
        lambda size: random_input(size // BATCHES), rows * BATCHES, unit="times the new events", clock="files of the checkpoint",
    )  # fmt: skip


@cache
def random_input(rows: int) -> Input:
    """Write batches of random doubles, a row per millisecond."""
    folder = stage.scratch() / f"random-{rows}"
    folder.mkdir()
    random = np.random.default_rng(2)
    part = rows // stage.FILES_A_BATCH
    for number in range(BATCHES * stage.FILES_A_BATCH):
        stamps = START_MS + 1 + number * part + np.arange(part)
        path = folder / f"part-{number:05d}.parquet"
        stage.write(path, random.integers(0, stage.KEYS, part), stamps, random.random(part))
    stage.in_order(folder)
    return Input(str(folder), rows, BATCHES)


def written(bolt: Any, load: Input) -> Measured:
    """Run the bolt, and count the bytes of its state."""
    checkpoint = stage.checkpoint()
    windowed(bolt, stage.stream(load)).start(NoopSink(), checkpoint).await_end()
    return _counted(checkpoint, load)


def natively(load: Input) -> Measured:
    """Run a native sliding window, and count the bytes of its state."""
    checkpoint = stage.checkpoint()
    writer = native.totals(load, 60_000, 1000).writeStream.format("noop").outputMode("append")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return _counted(checkpoint, load)


def _counted(checkpoint: str, load: Input) -> Measured:
    """Return the bytes of state per batch divided by the bytes of its events; version n of the state is that of batch n - 1."""
    total = 0
    for folder, _, names in os.walk(Path(checkpoint) / "state"):
        for name in names:
            version = name.split(".")[0].split("_")[0]
            if version.isdigit() and int(version) > 1:
                total += (Path(folder) / name).stat().st_size
    batches = load.batches - 1
    share = total / batches / (load.rows * stage.ROW_BYTES)
    return Measured(None, share, {"KB a batch": total / batches / 1e3})
