"""The suite `spark_recovery`: from the kill of a query to its next committed batch, and the flights job from start to end.

A process runs a query of 40 batches and is killed together with its JVM in the middle of a batch; a second process starts on the
same checkpoint. Its time is from the start of the query (in a running session, as a supervisor would keep one) to the commit of the
batch that the first process had started; a note has the time from the start of the process. The base is the first batch of the
first process, so the difference is the cost of recovery.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.frame import Contender, Measured, Plan

ROOT = Path(__file__).parent.parent.parent
ROWS, BATCHES, KILLED_AT = 100_000, 40, 10
SECONDS = (60, 600)


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield recovery by window length, then the flights job."""
    rows = max(2_000, int(ROWS * scale))
    for seconds in SECONDS:
        lives = Lives(seconds, rows)
        contenders = [
            Contender("a new query", lives.first, compared=False),
            Contender("after a kill", lives.second, compared=False),
        ]
        yield Plan(
            f"first batch, rows, {seconds} s/1 s", f"killed in batch {KILLED_AT}, batches of {rows:,}", contenders, int,
            rows * BATCHES, unit="s", clock="wall time from the start of the query to its first commit",
        )  # fmt: skip
    yield Plan(
        "flights, a month", "examples/flights.py --month 1, check and all", [Contender("flights", flights, compared=False)],
        int, 27_004, unit="s", clock="wall time of the process",
    )  # fmt: skip


class Lives:
    """A query that is killed and restarted in each round; the contender that is measured first starts it."""

    def __init__(self, seconds: int, rows: int) -> None:
        self.seconds, self.rows = seconds, rows
        self._killed: tuple[str, dict[str, float]] | None = None

    def first(self, _: int) -> Measured:
        """Return the time of the first process to its first commit; it is killed in a later batch."""
        if self._killed is None:
            self._live()
        assert self._killed is not None
        _, found = self._killed
        return Measured(None, found["first"], {"with process and session": found["from_birth"]})

    def second(self, _: int) -> Measured:
        """Return the time of the second process to its first commit."""
        if self._killed is None:
            self._live()
        assert self._killed is not None
        (folder, _), self._killed = self._killed, None
        found = lived(folder, self.seconds, self.rows, stop_after=1)
        shutil.rmtree(folder, ignore_errors=True)
        return Measured(None, found["first"], {"with process and session": found["from_birth"]})

    def _live(self) -> None:
        folder = tempfile.mkdtemp(prefix="windowing-recovery-")
        self._killed = folder, lived(folder, self.seconds, self.rows, stop_after=KILLED_AT)


def lived(folder: str, seconds: int, rows: int, stop_after: int) -> dict[str, float]:
    """Run a process on the checkpoint, and kill it with its JVM after this number of committed batches."""
    command = [sys.executable, "-m", "benchmarks.spark.recovery", folder, str(seconds), str(rows)]
    born = time.perf_counter()
    life = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    found: dict[str, float] = {}
    try:
        assert life.stdout is not None
        for commits, line in enumerate(life.stdout, start=1):
            found.setdefault("first", json.loads(line)["s"])
            found.setdefault("from_birth", time.perf_counter() - born)
            if commits == stop_after:
                time.sleep(0.1)  # into the next batch
                break
    finally:
        os.killpg(life.pid, signal.SIGKILL)
        life.wait()
    return found


def flights(_: int) -> Measured:
    """Run one month of the flights demo in a separate process; it checks its own results."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "examples/flights.py", "--month", "1", "--brief", "--out", folder]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return Measured(None, time.perf_counter() - started)


def live(folder: str, seconds: int, rows: int) -> None:
    """Run the query, and print the seconds since its start for each batch that Spark has committed."""
    from benchmarks.spark import ours, stage
    from windowing.spark import NoopSink, windowed

    spark = stage.spark()
    load = stage.staged_in(Path(folder) / "input", rows, BATCHES)
    checkpoint = Path(folder) / "checkpoint"
    commits = checkpoint / "commits"
    before = _committed(commits)
    bolt = ours.over_rows(1000 * seconds, 1000)
    spark.range(1).count()  # the JVM has compiled a query, as it would have in a process that lives on
    started = time.perf_counter()
    query: Any = windowed(bolt, stage.stream(load)).start(NoopSink(), str(checkpoint))
    known = before
    while query.is_active:
        now = _committed(commits)
        for _ in range(known, now):
            print(json.dumps({"s": time.perf_counter() - started}), flush=True)
        known = now
        time.sleep(0.01)
    query.await_end()


def _committed(folder: Path) -> int:
    return sum(1 for name in os.listdir(folder) if name.isdigit()) if folder.exists() else 0


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
