"""Memory and speed of a window of 5,000,000 tuples with 50,000 of them in memory, in a process of its own."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windowing import Activation, WindowConfig, count, seconds
from windowing.core.persistent import PersistentWindowedBoltExecutor
from windowing.runtime.pages import SqlitePages

LIMIT_MB = 400
BATCH = 10_000
START_MS = 1_700_000_000_000


def run(folder: str, window: int, slides: int, in_memory: int) -> dict[str, float]:
    """Fill a window, then slide it on by a fifth `slides` times; read what is new and expired, and the last window whole."""
    slide = window // 5
    config = WindowConfig.of(
        length=count(window), slide=count(slide), timestamp="at", lag=seconds(2), max_events_in_memory=in_memory
    )
    tuples = window + slides * slide + BATCH
    started, cpu = time.perf_counter(), time.process_time()
    fired = checked = 0
    whole_s = prepare_s = 0.0
    with SqlitePages(Path(folder) / "bench.pages") as store:
        executor = PersistentWindowedBoltExecutor(config, store)
        executor.restore(None)
        for first in range(0, tuples, BATCH):
            numbers = range(first, first + BATCH)
            # Every other tuple comes one second, 1,000 tuples, late: into pages that are already there.
            stamps = [START_MS + n - (n % 2) * 1000 for n in numbers]
            for _ in executor.add_batch([(n, n * 0.5, "flight") for n in numbers], stamps):
                raise AssertionError("nothing is late here")
            if (first + BATCH) % slide == 0 or first + BATCH == tuples:
                at = time.perf_counter()
                store.prepare(first, executor.prepare())
                store.commit(first)
                executor.committed()
                prepare_s = max(prepare_s, time.perf_counter() - at)
            for effect in executor.turn():
                if isinstance(effect, Activation):
                    fired += 1
                    checked += sum(row[0] for row in effect.window.get_new())
                    checked -= sum(row[0] for row in effect.window.get_expired())
                    last = len(effect.window)
                    at = time.perf_counter()
                    if len(effect.window) == window:
                        assert sum(row[0] for row in effect.window.get()) == checked
                    whole_s = max(whole_s, time.perf_counter() - at)
        cache = executor.pages.cache
        result = {
            "tuples": tuples,
            "fired": fired,
            "last": last,
            "seconds": time.perf_counter() - started,
            "cpu_s": time.process_time() - cpu,
            "whole_s": whole_s,
            "prepare_s": prepare_s,
            "peak_tuples": cache.peak,
            "pages_written": cache.writes,
            "pages_read": cache.reads,
            "file_mb": sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6,
        }
    result["mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


def report(found: dict[str, float], window: int, in_memory: int) -> None:
    """Print what was found."""
    tuples, seconds, cpu = found["tuples"], found["seconds"], found["cpu_s"]
    lines = {
        "resident memory at most": f"{found['mb']:.0f} MB, limit {LIMIT_MB}",
        "tuples in memory at most": f"{found['peak_tuples']:,}",
        "tuples": f"{tuples:,} in {seconds:.1f} s, {cpu:.1f} s of CPU",
        "tuples a second": f"{tuples / seconds:,.0f}, {tuples / cpu:,.0f} a CPU second",
        "windows fired": f"{found['fired']}, reading a full one takes {found['whole_s']:.2f} s at most",
        "a checkpoint": f"{found['prepare_s'] * 1000:.0f} ms at most",
        "pages": f"{found['pages_written']:,} written, {found['pages_read']:,} read; file {found['file_mb']:.0f} MB",
    }
    print(f"CPython {platform.python_version()}, {window:,} tuples, slide {window // 5:,}, {in_memory:,} in memory")
    for what, figure in lines.items():
        print(f"{what:<26}{figure}")


def main(window: int = 5_000_000, slides: int = 3, in_memory: int = 50_000) -> None:
    """Measure in a child, print, and fail above the limit."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--child", folder, str(window), str(slides), str(in_memory)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    report(found, window, in_memory)
    if found["mb"] > LIMIT_MB:
        raise SystemExit(f"{found['mb']:.0f} MB resident, more than {LIMIT_MB}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(run(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        main(*map(int, sys.argv[1:]))
