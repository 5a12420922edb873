"""--crash: the same job three times over: undisturbed, killed with SIGKILL in the middle, and restarted; then compared.

The job runs in child processes. The one to be killed is the head of a process group of its own, so that driver and JVM die at once,
without a chance to tidy up; the failpoint (windowing/spark/failpoints.py) says where.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from flights_check import SHOWN, Difference
from flights_folder import Folder

if TYPE_CHECKING:
    from flights_screen import Screen

JOB = Path(__file__).with_name("flights.py")
CRASH_AT = "in_sink"


class CrashError(Difference):
    """The crash did not go as planned, so nothing was proven."""


def crash(options: argparse.Namespace, screen: Screen) -> None:
    """Run, kill, restart, compare. Raises Difference when the outputs are not the same."""
    home = Folder(options.out)
    home.begin()
    whole, killed = Folder(home.path / "undisturbed"), Folder(home.path / "killed")

    screen.rule("1. A run that nothing disturbs")
    expect(0, _job(options, whole), "the undisturbed run")

    point = failpoint(options.crash_at, CRASH_AT, len(list(whole.input.glob("*.parquet"))))
    screen.rule(f"2. The same once more, killed at {point}")
    expect(-signal.SIGKILL, _job(options, killed, "--brief", failpoint=point), f"the run with failpoint {point}")
    done = {path.parent.name: committed(path) for path in sorted(killed.checkpoints.glob("*/commits"))}
    progress = " and ".join(f"{count} batches of {bolt}" for bolt, count in done.items())
    screen.say(f"\nKilled: driver and JVM got SIGKILL. Committed until then: {progress}.")

    screen.rule("3. Restarted from its checkpoints")
    expect(0, _job(options, killed, "--brief", "--resume"), "the restarted run")

    screen.rule("4. Both outputs, row by row")
    rows, batches = compare(whole, killed)
    screen.say(f"✓ the same {rows:,} rows in the same order in each of {batches:,} batches: the crash left no trace.")
    if not options.keep:
        for folder in (whole, killed):
            folder.tidy()
    shutil.copy(whole.picture, home.picture)


def compare(whole: Folder, other: Folder) -> tuple[int, int]:
    """Return how many rows in how many batches are the same; raise Difference where they are not."""
    rows = batches = 0
    streams = sorted({path.relative_to(home.output) for home in (whole, other) for path in home.output.glob("*/*")})
    for stream in streams:
        one, two = dict(_batches(whole.output / stream)), dict(_batches(other.output / stream))
        if one.keys() != two.keys():
            odd = sorted(one.keys() ^ two.keys())
            raise Difference(f"{stream}: only one of the runs has a batch {', '.join(odd[:SHOWN])}")
        for batch, table in one.items():
            if not table.equals(two[batch]):
                raise Difference(f"{stream}, {batch}: the outputs differ after the crash\n" + _shown(table, two[batch]))
            rows += table.num_rows
        batches += len(one)
    return rows, batches


def _batches(stream: Path) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each batch directory that is wholly written, in the order in which they stand in its files."""
    for folder in sorted(stream.glob("batch_id=*")):
        if (folder / "_SUCCESS").exists():
            yield folder.name, pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))


def _shown(one: pa.Table, two: pa.Table) -> str:
    pairs: list[tuple[Any, Any]] = list(zip(one.to_pylist(), two.to_pylist(), strict=False))
    differing = [f"    undisturbed: {a}\n    restarted:   {b}" for a, b in pairs if a != b][:SHOWN]
    return "\n".join(differing) or f"    undisturbed: {one.num_rows} rows, restarted: {two.num_rows} rows"


def _job(options: argparse.Namespace, folder: Folder, *more: str, failpoint: str | None = None) -> int:
    return run_job(JOB, options, folder.path, "--cuts", ",".join(map(str, options.cuts)), *more, failpoint=failpoint)


# ---------------------------------------------------------------- what --crash of every job needs


def run_job(script: Path, options: argparse.Namespace, out: Path, *more: str, failpoint: str | None = None) -> int:
    """Run a job in `out` as a process group of its own; return its exit code (minus the signal that killed it)."""
    command = [sys.executable, str(script), "--keep", "--out", str(out), *more]
    for name in ("month", "days"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WINDOWING_FAILPOINT")}
    if failpoint is not None:
        environment["WINDOWING_FAILPOINT"] = failpoint
    # A shell stands in for the child until it knows its own number: the failpoint has to know which group to kill.
    begin = ["/bin/sh", "-c", 'WINDOWING_FAILPOINT_GROUP=$$ exec "$0" "$@"']
    child = subprocess.Popen([*begin, *command], env=environment, start_new_session=True)
    try:
        return child.wait()
    finally:
        if child.poll() is None:  # stopped from outside: the child is in a group of its own and has not heard of it
            _end(child)


def failpoint(wanted: str | None, usual: str, batches: int) -> str:
    """Return "point:batch"; the batch left out is the middle one."""
    point, _, batch = (wanted or usual).partition(":")
    return f"{point}:{batch or batches // 2}"


def committed(commits: Path) -> int:
    """Return how many batches Spark has committed, by its folder of commits."""
    return sum(path.name.isdigit() for path in commits.iterdir())


def expect(wanted: int, got: int, what: str) -> None:
    """Raise CrashError unless a job has ended as it should."""
    if got == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if wanted != got:
        meant = "SIGKILL" if wanted < 0 else f"exit code {wanted}"
        raise CrashError(f"{what} ended with {got} where {meant} was expected; nothing was proven")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask the child's group to stop as with Ctrl-C; kill it if it does not."""
    os.killpg(child.pid, signal.SIGINT)
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
