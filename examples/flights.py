"""The main job: a year of real flights out of New York through two windowed bolts, as one topology on Spark Structured Streaming.

    make demo                                       this job and flights_trident.py in one session
    python examples/flights.py --month 1            this one alone, a short run
    python examples/flights.py --month 1 --crash    kill it in the middle, restart it, compare with a run that nothing disturbed

    flights, in the order of landing          one Parquet file of a week = one micro-batch
        |--> departures    sliding window, 1 hour every 15 minutes, for each airport      --> windows, late flights
        '--> punctuality   count window, the last 100 flights of a carrier every 20       --> windows, late flights

Windows run over the time of departure, but a flight is known only when it has landed: long flights report late, and those to
Honolulu later than the lag of 6 hours allows. At the end the job checks itself against Spark SQL over the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from flights_check import SHOWN, Difference, check_windows
    from flights_data import DDL, Folder, batch_of, read_flights, stage
    from flights_picture import draw
    from flights_run import (
        CONSOLE,
        committed,
        ended,
        expect,
        failpoint,
        follow,
        job_parser,
        parsed,
        quiet_session,
        report,
        run_job,
        say,
        table,
        wall_time,
    )

    from windowing import (
        DrainedCheckpointError,
        InputSpout,
        Topology,
        TopologyBuilder,
        TupleWindow,
        count,
        hours,
        minutes,
        sliding,
        windowed_bolt,
    )
    from windowing.spark import BatchMetrics, ParquetSink, WindowedQuery, submit
except ModuleNotFoundError as missing:
    sys.exit(f'{missing.name} is not installed; run `make demo`, or first: pip install "windowing[examples]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = (7, 7)
"""So many days are a batch, of the year and of a short run."""
TASKS = 2
CRASH_AT = "in_sink"


# ---------------------------------------------------------------- the two bolts, and the topology


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
        delayed = sum(flight.delay > 15 for flight in flights)
        row = (flights[0].row, flights[-1].row, len(flights), len(window.get_new()), delayed, delayed / len(flights))
        collector.emit((window.key, window.end_timestamp, *row))


def topology() -> Topology:
    builder = TopologyBuilder("flights")
    builder.configure(enable_message_timeouts=False)  # a flight stays in its window for longer than 30 seconds
    builder.set_spout("flights", InputSpout(DDL))
    builder.set_bolt("departures", departures, TASKS).fields_grouping("flights", "origin")
    builder.set_bolt("punctuality", Punctuality, TASKS).fields_grouping("flights", "carrier")
    return builder.build()


# ---------------------------------------------------------------- the job


def stream_all(spark: SparkSession, folder: Folder, files: int) -> None:
    """Run the topology to the end of the input, and its last windows too: one file, one batch, and one more for the drain."""
    rows = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder.input))
    sinks = {
        f"{bolt}{stream}": ParquetSink(str(folder.output / bolt / name))
        for bolt in ("departures", "punctuality")
        for stream, name in (("", "windows"), (".late", "late"))
    }
    checkpoint = str(folder.checkpoints / "flights")

    def start() -> WindowedQuery:
        return submit(topology(), spark, sources={"flights": rows}, sinks=sinks, checkpoint=checkpoint, drain=True)

    with contextlib.suppress(DrainedCheckpointError):  # --resume of a run that was stopped in its check
        follow(spark, start, files + 1, _shown)


def _shown(done: Sequence[BatchMetrics]) -> str:
    """Return what both bolts together have made of the flights; each gets every flight, and both call the same ones late."""
    tuples, windows, late = (
        sum(getattr(batch, name) for batch in done) for name in ("tuples_in", "windows_fired", "late")
    )
    return f"{tuples // 2:,} flights, {windows:,} windows, {late // 2:,} late"


def run(options: argparse.Namespace) -> None:
    """Stage, stream, check, draw. Raises Difference when the check finds one."""
    folder = Folder(options.out)
    folder.go_on() if options.resume else folder.begin()
    say("Reading the flights ...")
    flights = read_flights(options.month, options.days)
    if options.resume:
        files = folder.staged()
    else:
        files = stage(flights, folder.input, batch_of(flights["landing"], options.every))
    first, last = wall_time(flights["departure"].min()), wall_time(flights["departure"].max())
    say(
        f"{len(flights):,} flights out of New York that departed and landed, {first} to {last}, in {len(files)} batches."
    )
    with quiet_session(folder.log) as spark:
        stream_all(spark, folder, len(files))
        say("\nChecking every figure against Spark SQL over the same files ...")
        report(check_windows(spark, folder))
        if not options.brief:
            show(spark, folder)
    if not options.brief:
        draw(folder)
        say(f"\nPicture: {folder.picture}")
    if not options.keep:
        folder.tidy()


def show(spark: SparkSession, folder: Folder) -> None:
    """Show a few of the results."""
    for bolt in ("departures", "punctuality"):
        spark.read.parquet(str(folder.output / bolt / "windows")).createOrReplaceTempView(bolt)
    worst = """
        SELECT origin, until, flights, mean_delay, worst_delay FROM (
            SELECT *, row_number() OVER (PARTITION BY origin ORDER BY mean_delay DESC, until) AS n
            FROM departures WHERE flights >= 10)
        WHERE n = 1 ORDER BY origin"""
    table(
        "The worst hour of each airport (of hours with 10 flights or more)",
        ("airport", "hour until", "flights", "mean delay, min", "worst, min"),
        [(r[0], wall_time(r[1]), r[2], f"{r[3]:.1f}", r[4]) for r in spark.sql(worst).collect()],
    )
    carriers = """
        SELECT carrier, count(*), sum(new), min(share), avg(share), max(share) FROM punctuality
        WHERE flights = 100 GROUP BY carrier ORDER BY sum(new) DESC LIMIT 8"""
    table(
        "Of the last 100 flights of a carrier, so many left over 15 minutes late",
        ("carrier", "windows", "flights", "at best", "on average", "at worst"),
        [(*r[:3], *[f"{share:.0%}" for share in r[3:]]) for r in spark.sql(carriers).collect()],
    )
    rows = ParquetSink(str(folder.output / "departures" / "late")).read(spark)
    late = rows.groupBy("dest").count().orderBy("count", ascending=False).limit(8).collect()
    table("Late flights by destination", ("dest", "late"), [tuple(row) for row in late])


# ---------------------------------------------------------------- --crash


def crash(options: argparse.Namespace) -> None:
    """Run, kill, restart, compare. Raises Difference when the outputs are not the same."""
    home = Folder(options.out)
    home.begin()
    whole, killed = Folder(home.path / "undisturbed"), Folder(home.path / "killed")
    script = Path(__file__)

    CONSOLE.rule("1. A run that nothing disturbs", align="left")
    expect(0, run_job(script, options, whole.path), "the undisturbed run")

    files = len(whole.staged())
    point = failpoint(options.crash_at, CRASH_AT, files)
    CONSOLE.rule(f"2. The same once more, killed at {point}", align="left")
    code = run_job(script, options, killed.path, "--brief", failpoint=point)
    expect(-signal.SIGKILL, code, f"the run with failpoint {point}")
    done = committed(killed, "flights")
    say(f"\nKilled: driver and JVM got SIGKILL. Spark has committed {done} of {files + 1} batches.")

    CONSOLE.rule("3. Restarted from its checkpoint", align="left")
    expect(0, run_job(script, options, killed.path, "--brief", "--resume"), "the restarted run")

    CONSOLE.rule("4. Both outputs, row by row", align="left")
    rows, batches = compare(whole, killed)
    say(f"✓ the same {rows:,} rows in the same order in each of {batches:,} batches: the crash left no trace.")
    shutil.copy(whole.picture, home.picture)
    if not options.keep:
        for folder in (whole, killed):
            folder.tidy()


def compare(whole: Folder, other: Folder) -> tuple[int, int]:
    """Return how many rows in how many batches are the same; raise Difference where they are not."""
    rows = batches = 0
    streams = sorted({path.relative_to(home.output) for home in (whole, other) for path in home.output.glob("*/*")})
    for stream in streams:
        one, two = dict(_batches(whole.output / stream)), dict(_batches(other.output / stream))
        if one.keys() != two.keys():
            odd = sorted(one.keys() ^ two.keys())
            raise Difference(f"{stream}: only one of the runs has a batch {', '.join(odd[:SHOWN])}")
        for batch, rows_of_one in one.items():
            if not rows_of_one.equals(two[batch]):
                pairs = zip(rows_of_one.to_pylist(), two[batch].to_pylist(), strict=False)
                lines = [f"    undisturbed: {a}\n    restarted:   {b}" for a, b in pairs if a != b]
                counts = f"    {rows_of_one.num_rows:,} rows undisturbed, {two[batch].num_rows:,} restarted"
                found = "\n".join(lines[:SHOWN] or [counts])
                raise Difference(f"{stream}, {batch}: the outputs differ after the crash\n{found}")
            rows += rows_of_one.num_rows
        batches += len(one)
    return rows, batches


def _batches(stream: Path) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each batch directory that is wholly written, in the order in which they stand in its files."""
    for folder in sorted(stream.glob("batch_id=*")):
        if (folder / "_SUCCESS").exists():
            yield folder.name, pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))


# ---------------------------------------------------------------- the command line


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = job_parser(
        "flights.py",
        "A year of real flights out of New York through two windowed bolts on Spark, checked against Spark SQL.",
        EVERY,
        points=("before_batch", "before_state_write", "after_state_write", "in_sink", "before_commit"),
        point=CRASH_AT,
    )
    return parsed(made, given)


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = arguments(given)
    return ended(crash if options.crash else run, options, options.out / "spark.log")


if __name__ == "__main__":
    sys.exit(main())
