"""The suite `persistent`: a window with 50,000 tuples in memory and the rest in pages on disk, against a window in memory.

The window is filled, every other tuple out of order, then advanced by a fifth three times. At every slide the new and expired
tuples are read, each full window is read whole, and a checkpoint is written. Each run is a process of its own, and its maximum
resident set is measured (`ru_maxrss`).
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frame import Contender, Measured, Plan, measure
from benchmarks.records import Comparison
from windowing import Activation, PersistentWindowedBoltExecutor, WindowConfig, WindowedBoltExecutor, count, seconds
from windowing.stores import SqlitePages

BATCH = 10_000
START_MS = 1_700_000_000_000
SLIDES = 3
IN_MEMORY = 50_000


def comparisons(scale: float, rounds: int, say: Callable[[str], None]) -> Iterator[Comparison]:
    """Yield a window of 1,000,000 against memory, alternately; then one of 5,000,000, once, because it takes a minute."""
    contenders = [Contender("all in memory", partial(apart, False)), Contender("on disk", partial(apart, True))]
    plan = Plan(
        "window of 1,000,000",
        "filled, slid on, read whole",
        contenders,
        int,
        _tuples(1_000_000 * scale),
        unit="us per tuple",
    )
    yield measure(plan, rounds)
    once = [Contender("on disk", partial(apart, True), compared=False)]
    yield measure(
        Plan("window of 5,000,000", "the same, once", once, int, _tuples(5_000_000 * scale), unit="us per tuple"), 1
    )


def _tuples(number: float) -> int:
    """Return the nearest window length that is a multiple of five batches."""
    return max(1, round(number / (5 * BATCH))) * 5 * BATCH


def apart(on_disk: bool, window: int) -> Measured:
    """Measure in a separate process: microseconds of CPU per tuple."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.persistent", folder, str(window), str(int(on_disk))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    return Measured(found.pop("checked"), found.pop("us"), found)


def run(folder: str, window: int, on_disk: bool) -> dict[str, Any]:
    """Fill a window, then advance it by a fifth, `SLIDES` times."""
    slide = window // 5
    options = {"max_events_in_memory": IN_MEMORY} if on_disk else {}
    config = WindowConfig.of(length=count(window), slide=count(slide), timestamp="at", lag=seconds(2), **options)
    tuples = window + SLIDES * slide + BATCH
    checked: list[float] = []
    found: dict[str, float] = {}
    cpu = time.process_time()
    with SqlitePages(Path(folder) / "bench.pages") as store:
        executor: Any = PersistentWindowedBoltExecutor(config, store) if on_disk else WindowedBoltExecutor(config)
        if on_disk:
            executor.restore(None)
        for first in range(0, tuples, BATCH):
            _feed(executor, first)
            if on_disk and ((first + BATCH) % slide == 0 or first + BATCH == tuples):
                at = time.perf_counter()
                store.prepare(first, executor.prepare())
                store.commit(first)
                executor.committed()
                found["checkpoint ms"] = max(found.get("checkpoint ms", 0.0), 1e3 * (time.perf_counter() - at))
            _read(executor, window, checked)
    taken = time.process_time() - cpu
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    files = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
    return {"checked": checked, "us": 1e6 * taken / tuples, **found, "resident MB": largest, "file MB": files}


def _feed(executor: Any, first: int) -> None:
    numbers = range(first, first + BATCH)
    # Every other tuple is one second, 1,000 tuples, out of order, and goes into an existing page.
    stamps = [START_MS + n - (n % 2) * 1000 for n in numbers]
    for _ in executor.add_batch([(n, n * 0.5, "flight") for n in numbers], stamps):
        raise AssertionError("nothing is late here")


def _read(executor: Any, window: int, checked: list[float]) -> None:
    for effect in executor.turn():
        if isinstance(effect, Activation):
            total = checked[-1] if checked else 0
            total += sum(row[0] for row in effect.window.get_new())
            total -= sum(row[0] for row in effect.window.get_expired())
            checked.append(total)
            if len(effect.window) == window:
                assert sum(row[0] for row in effect.window.get()) == total


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1")))
