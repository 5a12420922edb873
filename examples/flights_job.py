"""What the jobs over the flights share: the command line, a quiet Spark session, queries followed on the screen, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flights_check import Difference
from flights_data import DataError
from flights_folder import Folder, FolderError
from pyspark.errors import PySparkException

from windowing import WindowingError
from windowing.spark import WindowedQuery, session

if TYPE_CHECKING:
    from flights_screen import Screen
    from pyspark.sql import SparkSession

DELAYED_MINUTES = 15
"""A flight that leaves later than this is called delayed."""


def follow(spark: SparkSession, folder: Folder, screen: Screen, started: Iterable[tuple[str, WindowedQuery]]) -> None:
    """Run queries side by side to the end of the input, and show how far they are. Raises what ended one of them."""
    spark.streams.addListener(screen.listener)
    queries: dict[str, WindowedQuery] = {}
    try:
        queries.update(started)
        screen.running(queries)
        with screen.live():
            while any(query.is_active for query in queries.values()):
                if any(query.exception for query in queries.values()):
                    break
                time.sleep(0.2)
                folder.keep_logs()
                screen.refresh()
            for query in queries.values():
                if not query.is_active:
                    query.await_end()
            screen.settle()
    finally:
        folder.keep_logs()
        for query in queries.values():
            if query.is_active:
                query.stop()
        spark.streams.removeListener(screen.listener)


@contextlib.contextmanager
def quiet_session(log: Path) -> Iterator[SparkSession]:
    """A Spark session whose own messages go to a file: the JVM inherits a redirected stderr."""
    kept = os.dup(2)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
        try:
            spark = session("flights", **{"spark.log.level": "ERROR"})
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    try:
        yield spark
    finally:
        spark.stop()


# ---------------------------------------------------------------- the command line


def parser(prog: str, description: str, points: Sequence[str], usual: str, crash: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all jobs have. `points`: where to kill, `usual` if nobody says where."""
    made = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="Exit code: 0 all figures agree, 1 they differ or the job failed, 2 it cannot begin, 130 stopped with Ctrl-C.",
    )
    made.add_argument("--month", type=number(1, 12), metavar="M", help="only the flights of this month (1 to 12)")
    made.add_argument("--days", type=number(1, 366), metavar="N", help="only the first N days (of the month)")
    made.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="where to work (default: demo-out)"
    )
    made.add_argument("--keep", action="store_true", help="keep the staged input and the checkpoints after a good run")
    made.add_argument("--resume", action="store_true", help="go on with a run in DIR that was killed")
    made.add_argument("--crash", action="store_true", help=crash)
    made.add_argument(
        "--crash-at",
        type=_crash_point(points),
        metavar="POINT[:N]",
        help=f"where to kill it: {', '.join(points[:-1])} or {points[-1]}, of batch N (default: {usual} of the middle batch); "
        "implies --crash",
    )
    made.add_argument(
        "--brief", action="store_true", help=argparse.SUPPRESS
    )  # --crash: check, but no tables, no picture
    return made


def parsed(made: argparse.ArgumentParser, given: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; exits with 2 if they do not go together."""
    options = made.parse_args(given)
    if options.crash_at:
        options.crash = True
    if options.crash and options.resume:
        made.error("--resume goes on with one run and --crash makes its own; give one of them")
    return options


def ended(work: Callable[[], None], options: argparse.Namespace, screen: Screen, log: Path) -> int:
    """Do the work; return the exit code, and say what went wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        work()
    except KeyboardInterrupt:
        screen.fail(
            "Stopped." if options.crash else "Stopped. The next run begins anew; --resume goes on with this one."
        )
        return 130
    except (FolderError, DataError) as problem:
        screen.fail(str(problem))
        return 2
    except (Difference, WindowingError) as problem:
        screen.fail(str(problem))
        return 1
    except PySparkException as problem:
        screen.fail(f"Spark failed: {str(problem).strip().splitlines()[0]}\nIts own log may say more: {log}")
        return 1
    return 0


def number(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a number from `least` to `most`."""

    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return parse


def _crash_point(points: Sequence[str]) -> Callable[[str], Any]:
    def parse(text: str) -> str:
        point, colon, batch = text.partition(":")
        if point not in points or (colon and not batch.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(points)}, with or without :N")
        return text

    return parse
