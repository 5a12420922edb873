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
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

try:
    from flights_check import check
    from flights_crash import CRASH_AT, crash
    from flights_data import CUTS, DDL, batch_of, late_flights, read_flights, stage
    from flights_folder import Folder
    from flights_job import DELAYED_MINUTES, ended, follow, number, parsed, parser, quiet_session
    from flights_picture import draw
    from flights_screen import Screen

    from windowing import DrainedCheckpointError, TupleWindow, count, hours, minutes, sliding, windowed_bolt
    from windowing.spark import ParquetSink, WindowedQuery, windowed
except ModuleNotFoundError as missing:
    sys.exit(f'{missing.name} is not installed; run `make demo`, or first: pip install "windowing[examples]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2


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
    """Run both queries side by side to the end of the input."""
    screen.expect(BOLTS, batches=files + 1)  # one more for the drain
    follow(spark, folder, screen, start(spark, folder))


def run(options: argparse.Namespace, screen: Screen) -> None:
    """Stage, stream, check, draw. Raises Difference when the check finds one."""
    folder = Folder(options.out)
    folder.go_on() if options.resume else folder.begin()
    screen.say("Reading the flights ...")
    flights = read_flights(options.month, options.days)
    if options.resume:
        files = sorted(folder.input.glob("*.parquet"))
    else:
        files = stage(flights, folder.input, batch_of(flights["landing"], options.cuts))
    cuts = " and ".join(f"{hour}:00" for hour in options.cuts)
    screen.headline(flights, len(files), f"cut at {cuts}; windows run over the departure, with a lag of 6 hours")
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


# ---------------------------------------------------------------- the command line


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(
        "flights.py",
        "A year of real flights out of New York through two windowed bolts on Spark, checked against Spark SQL.",
        points=("before_batch", "before_state_write", "after_state_write", "in_sink", "before_commit"),
        usual=CRASH_AT,
        crash="run it twice, kill -9 the second in the middle and restart it; then compare both outputs, row by row",
    )
    made.add_argument(
        "--cuts",
        type=_hours,
        default=CUTS,
        metavar="H,H",
        help="the hours of the day at which one micro-batch ends and the next begins (default: 19,23); which flights are late "
        "depends on it",
    )
    made.add_argument("--survey", action="store_true", help="only show how many flights each cut makes late; no Spark")
    return parsed(made, given)


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = arguments(given)
    screen = Screen()
    work = survey if options.survey else crash if options.crash else run
    return ended(lambda: work(options, screen), options, screen, options.out / "spark.log")


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


def _hours(text: str) -> tuple[int, ...]:
    parse = number(0, 23)
    return tuple(sorted({parse(part) for part in text.split(",")}))


if __name__ == "__main__":
    sys.exit(main())
