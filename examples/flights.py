"""The main job: a year of real flights out of New York through two windowed bolts, on Spark Structured Streaming.

    make demo                                the whole year
    make demo ARGS="--month 1"               a short run
    make demo ARGS="--month 1 --crash"       kill it in the middle, restart it, compare with a run that nothing disturbed

    flights, in the order of landing          one Parquet file = one micro-batch
        |--> departures    sliding window, 1 hour every 15 minutes, for each airport      --> windows, late flights
        '--> punctuality   count window, the last 100 flights of a carrier every 20       --> windows, late flights

Windows run over the time of departure, but a flight is known only when it has landed: long flights report late, and those to
Honolulu later than the lag of 6 hours allows. At the end the job checks itself against Spark SQL over the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from flights_check import Difference, check
    from flights_crash import check_point, crash
    from flights_data import CUTS, DDL, DataError, batch_of, late_flights, read_flights, stage
    from flights_folder import Folder, FolderError
    from flights_picture import draw
    from flights_screen import Screen
    from pyspark.errors import PySparkException

    from windowing import TupleWindow, WindowingError, count, hours, minutes, sliding, windowed_bolt
    from windowing.errors import DrainedCheckpointError
    from windowing.spark import ParquetSink, WindowedQuery, session, windowed
except ModuleNotFoundError as missing:
    sys.exit(f'{missing.name} is not installed; run `make demo`, or first: pip install "windowing[examples]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2
DELAYED_MINUTES = 15


# ---------------------------------------------------------------- the two bolts


@sliding(
    length=hours(1),
    slide=minutes(15),
    timestamp="departure",
    lag=hours(6),
    key="origin",
    late_stream="late",
    output="origin string, until long, flights long, new long, mean_delay double, worst_delay long",
)
def departures(window: TupleWindow) -> dict[str, Any]:
    """What one airport's hour looked like; `new` flights were not in the window before."""
    delays = [flight.delay for flight in window]
    return {
        "origin": window.key,
        "until": window.end_timestamp,
        "flights": len(delays),
        "new": len(window.get_new()),
        "mean_delay": sum(delays) / len(delays),
        "worst_delay": max(delays),
    }


@windowed_bolt(
    length=count(100),
    slide=count(20),
    timestamp="departure",
    lag=hours(6),
    key="carrier",
    late_stream="late",
    output="carrier string, until long, first_row long, last_row long, flights long, new long, delayed long, share double",
)
class Punctuality:
    """How many of a carrier's last 100 flights left more than 15 minutes late: the same as a class, with a collector."""

    def execute(self, window: TupleWindow, collector: Any) -> None:
        flights = window.get()
        delayed = sum(flight.delay > DELAYED_MINUTES for flight in flights)
        row = (flights[0].row, flights[-1].row, len(flights), len(window.get_new()), delayed, delayed / len(flights))
        collector.emit((window.key, window.end_timestamp, *row))


BOLTS = {"departures": departures, "punctuality": Punctuality}


# ---------------------------------------------------------------- the job


def start(spark: SparkSession, folder: Folder) -> Iterator[tuple[str, WindowedQuery]]:
    """Start one query per bolt over the staged files; each has its own checkpoint and its own sinks."""
    for name, bolt in BOLTS.items():
        files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder.input))
        stream = windowed(bolt, files, tasks=TASKS, order_by=["landing", "row"])
        output = folder.output / name
        sinks = {"default": ParquetSink(str(output / "windows")), "late": ParquetSink(str(output / "late"))}
        with contextlib.suppress(DrainedCheckpointError):  # a run that was killed may have ended one of them before
            yield name, stream.start(sinks, str(folder.checkpoints / name), drain=True, query_name=name)


def stream_all(spark: SparkSession, folder: Folder, screen: Screen, files: int) -> None:
    """Run both queries side by side to the end of the input, and show how far they are. Raises what ended one of them."""
    screen.expect(BOLTS, batches=files + 1)  # one more for the drain
    spark.streams.addListener(screen.listener)
    queries: dict[str, WindowedQuery] = {}
    try:
        queries.update(start(spark, folder))
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


def run(options: argparse.Namespace, screen: Screen) -> None:
    """Stage, stream, check, draw. Raises Difference when the check finds one."""
    folder = Folder(options.out)
    folder.go_on() if options.resume else folder.begin()
    screen.say("Reading the flights ...")
    flights = read_flights(options.month, options.days)
    if options.resume:
        files = sorted(folder.input.glob("*.parquet"))
    else:
        files = stage(flights, folder.input, options.cuts)
    screen.headline(flights, len(files), options)
    screen.say(f"Starting Spark (its own log: {folder.log}) ...")
    with quiet_session(folder.log) as spark:
        stream_all(spark, folder, screen, len(files))
        screen.speed(len(flights))
        screen.say("\nChecking every figure against Spark SQL over the same files ...")
        screen.report(check(spark, folder, BOLTS, screen.skipped()))
        if not options.brief:
            screen.results(spark, folder)
            draw(folder)
            screen.say(f"\nPicture: {folder.picture}")
    if not options.keep:
        folder.tidy()


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


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="flights.py",
        description="A year of real flights out of New York through two windowed bolts on Spark, checked against Spark SQL.",
        epilog="Exit code: 0 all figures agree, 1 they differ or the job failed, 2 it cannot begin, 130 stopped with Ctrl-C.",
    )
    parser.add_argument("--month", type=_number(1, 12), metavar="M", help="only the flights of this month (1 to 12)")
    parser.add_argument("--days", type=_number(1, 366), metavar="N", help="only the first N days (of the month)")
    parser.add_argument(
        "--cuts",
        type=_hours,
        default=CUTS,
        metavar="H,H",
        help="the hours of the day at which one micro-batch ends and the next begins (default: 19,23); which flights are late "
        "depends on it",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="where to work (default: demo-out)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the staged input and the checkpoints after a good run"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a run in DIR that was killed")
    parser.add_argument(
        "--crash",
        action="store_true",
        help="run it twice, kill -9 the second in the middle and restart it; then compare both outputs, row by row",
    )
    parser.add_argument(
        "--crash-at",
        type=_crash_point,
        metavar="POINT[:N]",
        help="where to kill it: before_batch, before_state_write, after_state_write, in_sink or before_commit, of batch N "
        "(default: in_sink of the middle batch); implies --crash",
    )
    parser.add_argument(
        "--survey", action="store_true", help="only show how many flights each cut makes late; no Spark"
    )
    parser.add_argument(
        "--brief", action="store_true", help=argparse.SUPPRESS
    )  # --crash: check, but no tables, no picture
    options = parser.parse_args(given)
    if options.crash_at:
        options.crash = True
    if options.crash and options.resume:
        parser.error("--resume goes on with one run and --crash makes its own; give one of them")
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = arguments(given)
    screen = Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if options.survey:
            survey(options, screen)
        elif options.crash:
            crash(options, screen)
        else:
            run(options, screen)
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
        screen.fail(
            f"Spark failed: {str(problem).strip().splitlines()[0]}\nIts own log may say more: {options.out / 'spark.log'}"
        )
        return 1
    return 0


def survey(options: argparse.Namespace, screen: Screen) -> None:
    """Show how the cut into micro-batches decides which flights are late."""
    flights = read_flights(options.month, options.days)
    rows = []
    for cuts in ((19, 23), (19,), (0,), (0, 12), (0, 6, 12, 18), tuple(range(0, 24, 3)), tuple(range(24))):
        batches = batch_of(flights["landing"], cuts)
        late = late_flights(flights, batches)
        rows.append((",".join(map(str, cuts)), batches.nunique(), int(late.sum())))
    screen.table(
        "Late flights, by the hours at which a micro-batch ends (lag: 6 hours)", ("cuts", "batches", "late"), rows
    )


def _number(least: int, most: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return parse


def _crash_point(text: str) -> str:
    try:
        return check_point(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _hours(text: str) -> tuple[int, ...]:
    parse = _number(0, 23)
    return tuple(sorted({parse(part) for part in text.split(",")}))


if __name__ == "__main__":
    sys.exit(main())
