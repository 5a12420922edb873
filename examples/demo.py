"""`make demo`: both jobs over a year of real flights in one Spark session, their checks, and at the end the picture.

    make demo                                the whole year
    make demo ARGS="--month 1"               a short run
    make demo ARGS="--month 1 --crash"       each job is killed in the middle and restarted: nothing shows it

    read the flights, once
        |--> flights.py           two windowed bolts, as one topology: every airport's last hour, every carrier's last 100 flights
        '--> flights_trident.py   exactly-once totals of each carrier, in SQLite

Each job stands by itself in its own file, and has more options there.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

try:
    import flights as windows
    import flights_trident as totals
    import pandas as pd
    from flights_check import STATES, check_totals, check_windows
    from flights_data import Folder, batch_of, read_flights, stage
    from flights_picture import draw
    from flights_run import CONSOLE, Phases, days_of_batch, ended, parser, quiet_session, report, say, wall_time
except ModuleNotFoundError as missing:
    sys.exit(f'{missing.name} is not installed; run `make demo`, or first: pip install "windowing[examples]"')


def run(options: argparse.Namespace) -> None:
    """Run and check both jobs, show what came of them. Raises Difference when a check finds one."""
    phases = Phases()
    home, of_totals = Folder(options.out), totals.folder_of(options)
    with phases("the flights"):
        say("Reading the flights ...")
        flights = read_flights(options.month, options.days)
        window_batches = staged(flights, home, days_of_batch(options, windows.EVERY))
        total_batches = staged(flights, of_totals, days_of_batch(options, totals.EVERY))
    first, last = wall_time(flights["departure"].min()), wall_time(flights["departure"].max())
    say(f"{len(flights):,} flights out of New York that departed and landed, {first} to {last}.")
    states = totals.states_of(options, of_totals)
    with contextlib.ExitStack() as stack:
        with phases("Spark's start"):
            spark = stack.enter_context(quiet_session(home.log))
        title("1. Two windowed bolts in one topology (examples/flights.py)")
        say(f"{window_batches} files, each a batch, and one more batch that fires the last windows:")
        with phases("windows"):
            windows.stream_all(spark, home, window_batches)
        with phases("checks"):
            say("Checking every figure against Spark SQL over the same files ...")
            report(check_windows(spark, home))
        title("2. Totals that count each flight once (examples/flights_trident.py)")
        say(f"{total_batches} files, each a batch, into three states in SQLite:")
        with phases("totals"):
            totals.stream_all(spark, of_totals, states, total_batches)
        with phases("checks"):
            say("Checking every figure against Spark SQL over the same files ...")
            report(check_totals(spark, of_totals, {name: states.values(name) for name in STATES}))
        title("3. What came of it")
        with phases("tables and picture"):
            windows.show(spark, home)
            totals.show(states)
    with phases("tables and picture"):
        draw(home)
    phases.say()
    say(f"Every figure agrees with Spark SQL. The picture: {home.picture}")
    if not options.keep:
        home.tidy()
        of_totals.tidy()


def staged(flights: pd.DataFrame, folder: Folder, days: int) -> int:
    """Write the input of a job into its folder, so many days a file; return the number of files."""
    folder.begin()
    return len(stage(flights, folder.input, batch_of(flights["landing"], days)))


def crash(options: argparse.Namespace) -> None:
    """Kill each job in the middle and restart it. Raises Difference unless all went as planned."""
    given = [f"--{name}={value}" for name in ("month", "days", "every", "out") if (value := getattr(options, name))]
    for job in (windows, totals):
        title(f"examples/{job.__name__}.py --crash")
        job.crash(job.arguments([*given, "--crash", *(["--keep"] if options.keep else [])]))


def title(text: str) -> None:
    """Begin a part of the demo."""
    CONSOLE.print()
    CONSOLE.rule(text, align="left")


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    made = parser(
        "demo.py", "A year of real flights out of New York on Spark: windows and totals, checked against Spark SQL."
    )
    made.set_defaults(store=None)
    options = made.parse_args(given)
    return ended(crash if options.crash else run, options, options.out / "spark.log")


if __name__ == "__main__":
    sys.exit(main())
