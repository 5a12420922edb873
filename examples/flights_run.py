"""What the demo and its two jobs share: the command line, a quiet Spark session, progress on the screen, exit codes, --crash."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flights_check import Difference
from flights_data import DataError, Folder, FolderError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from windowing import WindowingError
from windowing.spark import BatchMetrics, MetricsListener, WindowedQuery, session

CONSOLE = Console(highlight=False)
_PLAIN_EVERY_S = 15.0


# ---------------------------------------------------------------- Spark


@contextlib.contextmanager
def quiet_session(log: Path) -> Iterator[SparkSession]:
    """A Spark session whose messages, and the library's, go to a file: the JVM inherits a redirected stderr."""
    say(f"Starting Spark (its own log: {log}) ...")
    logging.basicConfig(filename=log)
    kept = os.dup(2)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
        try:
            # The check reads from the checkpoint which file each batch took, and Spark keeps that of 100 batches.
            spark = session("flights", **{"spark.log.level": "ERROR", "spark.sql.streaming.minBatchesToRetain": "1000"})
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    try:
        yield spark
    finally:
        spark.stop()


def follow(
    spark: SparkSession,
    start: Callable[[], WindowedQuery],
    batches: int,
    shown: Callable[[Sequence[BatchMetrics]], str],
) -> None:
    """Start a query and wait for its end; a bar says how many of its batches are done, and what `shown` makes of them."""
    done: list[BatchMetrics] = []
    listener = MetricsListener(done.append)
    spark.streams.addListener(listener)
    columns = BarColumn(24), MofNCompleteColumn(), TextColumn("batches; {task.description}")
    bar = Progress(*columns, console=CONSOLE, disable=not CONSOLE.is_terminal)
    task = bar.add_task("waiting for the first one", total=batches)
    query, began, said = start(), time.monotonic(), time.monotonic()
    try:
        with bar:
            while not query.await_end(timeout=0.5):
                if done:
                    bar.update(task, completed=done[-1].batch_id + 1, description=shown(done))
                if bar.disable and done and time.monotonic() - said > _PLAIN_EVERY_S:
                    said = time.monotonic()
                    say(f"  batch {done[-1].batch_id + 1} of {batches}; {shown(done)}")
            bar.update(task, completed=batches)
    finally:
        if query.is_active:
            query.stop()
        spark.streams.removeListener(listener)
    whole = sorted(
        {metrics.batch_id: metrics for metrics in (*done, *query.progress)}.values(), key=lambda m: m.batch_id
    )
    seconds = time.monotonic() - began
    say(f"{len(whole)} batches in {seconds:.1f} s; {shown(whole)}" if whole else "Nothing was left to do.")


# ---------------------------------------------------------------- the screen


class Phases:
    """Where the time of a run goes: `with phases("Spark's start"): ...`, and at the end `phases.say()`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Add what happens inside to a phase."""
        began = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def say(self) -> None:
        """Show all phases; they add up."""
        whole = time.monotonic() - self._began
        phases = {**self._seconds, "the rest": whole - sum(self._seconds.values())}
        found = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in phases.items())
        say(f"\n{whole:.0f} s in all: {found}.")


def say(text: str) -> None:
    CONSOLE.print(text, markup=False, soft_wrap=True)


def report(lines: Iterable[str]) -> None:
    """Show what a check has found equal."""
    for line in lines:
        CONSOLE.print(f"  [green]✓[/green] {line}", soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Show a small table; numbers stand to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        made.add_row(*[f"{value:,}" if isinstance(value, int) else str(value) for value in row])
    CONSOLE.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
    CONSOLE.print(made)


def wall_time(ms: int) -> str:
    """Return milliseconds as a person reads them.

    >>> wall_time(1_357_020_000_000)
    '2013-01-01 06:00'
    """
    return str(np.datetime64(int(ms), "ms").astype("datetime64[m]")).replace("T", " ")


# ---------------------------------------------------------------- the command line


def parser(prog: str, description: str, every: tuple[int, int] | None = None) -> argparse.ArgumentParser:
    """Return a parser of the options that the demo and both jobs have. every: how many days make a batch, of the year and of a
    short run; None where each job knows that.
    """
    made = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="Exit code: 0 all figures agree, 1 they differ or the job failed, 2 it cannot begin, 130 stopped with Ctrl-C.",
    )
    made.add_argument("--month", type=_number(1, 12), metavar="M", help="only the flights of this month (1 to 12)")
    made.add_argument("--days", type=_number(1, 366), metavar="N", help="only the first N days (of the month)")
    usual = "what each job has" if every is None else f"{every[0]}, of a short run {every[1]}"
    made.add_argument(
        "--every", type=_number(1, 366), metavar="N", help=f"how many days make a batch (default: {usual})"
    )
    made.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="where to work (default: demo-out)"
    )
    made.add_argument("--keep", action="store_true", help="keep the staged input and the checkpoints after a good run")
    made.add_argument(
        "--crash", action="store_true", help="kill -9 a run in the middle, restart it, and see that nothing shows it"
    )
    made.set_defaults(usual_days=every)
    return made


def job_parser(
    prog: str, description: str, every: tuple[int, int], points: Sequence[str], point: str
) -> argparse.ArgumentParser:
    """Return the parser of one job, which is killed at one of these points: at `point` if nobody says where."""
    made = parser(prog, description, every)
    made.add_argument("--resume", action="store_true", help="go on with a run in DIR that was killed")
    made.add_argument(
        "--crash-at",
        type=_crash_point(points),
        metavar="POINT[:N]",
        help=f"where to kill it: {', '.join(points[:-1])} or {points[-1]}, of batch N (default: {point} of the middle batch); "
        "implies --crash",
    )
    made.add_argument("--brief", action="store_true", help="run and check, but show no tables and draw no picture")
    return made


def parsed(made: argparse.ArgumentParser, given: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; exits with 2 if they do not go together."""
    options = made.parse_args(given)
    options.crash = options.crash or options.crash_at is not None
    options.every = days_of_batch(options, options.usual_days)
    if options.crash and options.resume:
        made.error("--resume goes on with one run and --crash makes its own; give one of them")
    return options


def days_of_batch(options: argparse.Namespace, usual: tuple[int, int]) -> int:
    """Return how many days make a batch: what was asked for, or what is usual of the year and of a short run."""
    is_short = options.month is not None or options.days is not None
    return options.every or usual[is_short]


def ended(work: Callable[[argparse.Namespace], None], options: argparse.Namespace, log: Path) -> int:
    """Do the work; return the exit code, and say what went wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        work(options)
    except KeyboardInterrupt:
        more = "" if options.crash else " The next run begins anew; --resume goes on with this one."
        return _failed(f"Stopped.{more}", 130)
    except (FolderError, DataError) as problem:
        return _failed(str(problem), 2)
    except (Difference, WindowingError) as problem:
        return _failed(str(problem), 1)
    except PySparkException as problem:
        return _failed(f"Spark failed: {str(problem).strip().splitlines()[0]}\nIts own log may say more: {log}", 1)
    return 0


def _failed(text: str, code: int) -> int:
    CONSOLE.print(text, style="bold red", markup=False, soft_wrap=True)
    return code


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return parse


def _crash_point(points: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        point, colon, batch = text.partition(":")
        if point not in points or (colon and not batch.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(points)}, with or without :N")
        return text

    return parse


# ---------------------------------------------------------------- --crash


class CrashError(Difference):
    """The crash did not go as planned, so nothing was proven."""


def run_job(script: Path, options: argparse.Namespace, out: Path, *more: str, failpoint: str | None = None) -> int:
    """Run a job in `out` as a process group of its own; return its exit code (minus the signal that killed it).

    Driver and JVM of a job that is killed die at once, without a chance to tidy up. The failpoint says where:
    windowing/spark/failpoints.py.
    """
    command = [sys.executable, str(script), "--keep", "--out", str(out), *more]
    for name in ("month", "days", "every"):
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


def committed(folder: Folder, query: str) -> int:
    """Return how many batches of a query Spark has committed."""
    return sum(path.name.isdigit() for path in (folder.checkpoints / query / "commits").iterdir())


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
