"""Exactly-once totals by carrier of a year of real flights: a Trident topology on Spark, its states in SQLite or PostgreSQL.

    make demo                                        flights.py and this job in one session
    python examples/flights_trident.py --month 1     a short run
    python examples/flights_trident.py --crash       killed between the states' commit and Spark's, restarted: nothing counts twice
    python examples/flights_trident.py --store postgresql://user:password@host/db

    flights, in the order of landing, a month a batch (of one month: 10 days)
       |--> by carrier: Count, Sum(delay)  --> states flights, minutes --new values--> sink running
       |--> over 15 minutes late, by carrier: Count --> state delayed
       '--> Count --> sink batches: which attempt at the batch it is that counts

Each batch is added to the states in transactions of the store, and Spark takes note of it afterwards. A crash in between makes the
batch come again, as the next attempt: a state that has seen the first one puts that back before it adds. At the end the job checks
itself against Spark SQL over the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import pyarrow.parquet as pq
    from flights_check import STATES, check_totals
    from flights_data import DDL, Folder, batch_of, read_flights, stage
    from flights_run import (
        CONSOLE,
        CrashError,
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
    )

    from windowing import InputSpout
    from windowing.spark import ParquetSink, WindowedQuery, submit_trident
    from windowing.stores import MapStateFactory, SqliteStore, Store, map_state, store_of
    from windowing.trident import Count, Sum, TridentTopology
except ModuleNotFoundError as missing:
    sys.exit(f'{missing.name} is not installed; run `make demo`, or first: pip install "windowing[examples]"')

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = (30, 10)
"""So many days are a batch, of the year and of a short run."""
PARTITIONS = 2
CRASH_AT = "after_commits"


# ---------------------------------------------------------------- the states, and the topology


@dataclass(frozen=True)
class States:
    """The three states in a store; `run` is part of their names where the store may hold those of other runs."""

    store: Store
    run: str = ""

    def __str__(self) -> str:
        where = str(self.store.path) if isinstance(self.store, SqliteStore) else str(self.store)
        return f"{where}, named ..._{self.run}" if self.run else where

    def state(self, name: str) -> MapStateFactory:
        """Return an opaque state: a batch that comes again, even with other rows, takes the place of what it was."""
        return map_state(self.store, f"{name}_{self.run}" if self.run else name)

    def values(self, name: str) -> dict[str, int]:
        """Return what a state holds, by carrier."""
        return {carrier: value for part in self._partitions(name) for (carrier,), value in part.items()}

    def attempts(self) -> Counter[str]:
        """Return how many partitions of all states each attempt has written last, like `{"7:0": 6}`."""
        fences = [part.backing.multi_get([]).fence for name in STATES for part in self._partitions(name)]
        return Counter("none" if fence is None else str(fence.attempt) for fence in fences)

    def _partitions(self, name: str) -> Iterator[Any]:
        for partition in range(PARTITIONS):
            with contextlib.closing(self.state(name).make_state(partition, PARTITIONS)) as part:
                yield part


class Attempt:
    """An aggregator that is told which attempt at which batch it works in."""

    def init(self, batch_id: Any, collector: Any) -> list[int]:
        return [batch_id.txid, batch_id.attempt, 0]

    def aggregate(self, value: list[int], row: Any, collector: Any) -> None:
        value[2] += row.flights

    def complete(self, value: list[int], collector: Any) -> None:
        collector.emit(value)


def topology(states: States) -> TridentTopology:
    """Return the topology; its states are opaque: exactly once, whatever the batch holds when it comes again."""
    made = TridentTopology("carriers")
    flights = made.new_stream("flights", InputSpout(DDL))
    late = flights.filter(lambda flight: flight.delay > 15)
    counts = flights.group_by("carrier").persistent_aggregate(states.state("flights"), None, Count(), "flights long")
    minutes = flights.group_by("carrier").persistent_aggregate(states.state("minutes"), "delay", Sum(), "minutes long")
    delayed = late.group_by("carrier").persistent_aggregate(states.state("delayed"), None, Count(), "delayed long")
    for state in (counts, minutes, delayed):
        state.parallelism_hint(PARTITIONS)
    counts.new_values_stream().sink("running")
    whole = flights.aggregate(None, Count(), "flights long")
    whole.partition_aggregate("flights", Attempt(), "txid long, attempt long, flights long").sink("batches")
    return made


# ---------------------------------------------------------------- the job


def stream_all(spark: SparkSession, folder: Folder, states: States, batches: int) -> None:
    """Run the topology to the end of the input: one file, one batch."""
    files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder.input))
    sinks = {name: ParquetSink(str(folder.output / "carriers" / name)) for name in ("running", "batches")}
    checkpoint = str(folder.checkpoints / "carriers")

    def start() -> WindowedQuery:
        return submit_trident(topology(states), spark, sources={"flights": files}, sinks=sinks, checkpoint=checkpoint)

    follow(spark, start, batches, lambda done: f"{sum(batch.tuples_in for batch in done):,} flights")


def run(options: argparse.Namespace) -> None:
    """Stage, stream, check, show. Raises Difference when the check finds one."""
    folder = folder_of(options)
    folder.go_on() if options.resume else folder.begin()
    say("Reading the flights ...")
    flights = read_flights(options.month, options.days)
    files = (
        folder.staged() if options.resume else stage(flights, folder.input, batch_of(flights["landing"], options.every))
    )
    states = states_of(options, folder)
    say(f"{len(flights):,} flights in {len(files)} batches; the states are in {states}.")
    with quiet_session(folder.log) as spark:
        stream_all(spark, folder, states, len(files))
        say("\nChecking every figure against Spark SQL over the same files ...")
        report(check_totals(spark, folder, {name: states.values(name) for name in STATES}))
    if not options.brief:
        show(states)
    if not options.keep:
        folder.tidy()


def show(states: States) -> None:
    """Show what the states hold."""
    flights, minutes, delayed = (states.values(name) for name in ("flights", "minutes", "delayed"))
    rows = [
        (carrier, n, minutes[carrier], f"{minutes[carrier] / n:.1f}", f"{delayed.get(carrier, 0) / n:.0%}")
        for carrier, n in sorted(flights.items(), key=lambda item: -item[1])
    ]
    columns = ("carrier", "flights", "minutes", "mean delay", "over 15 minutes late")
    table("The carriers, as the states have them", columns, rows)


def folder_of(options: argparse.Namespace) -> Folder:
    """Return the job's folder; flights.py works in the one above."""
    return Folder(options.out / "trident")


def states_of(options: argparse.Namespace, folder: Folder) -> States:
    """Return the states of the run in this folder: a SQLite file there, or in the given store under names of their own."""
    if options.store is None:
        return States(SqliteStore(folder.states / "carriers.db"))
    folder.states.mkdir(exist_ok=True)
    run = folder.states / "run"
    if not run.exists():
        run.write_text(secrets.token_hex(4))
    return States(store_of(options.store), run.read_text())


# ---------------------------------------------------------------- --crash


def crash(options: argparse.Namespace) -> None:
    """Run, kill, restart; the restarted run checks itself. Raises Difference unless all went as planned."""
    folder = folder_of(options)
    batches = batch_of(read_flights(options.month, options.days)["landing"], options.every).nunique()
    point = failpoint(options.crash_at, CRASH_AT, batches)
    txid = int(point.partition(":")[2]) + 1

    CONSOLE.rule(f"1. A run that is killed at {point}", align="left")
    expect(-signal.SIGKILL, job(options, failpoint=point), f"the run with failpoint {point}")
    states = states_of(options, folder)
    written = states.attempts()
    done = committed(folder, "carriers")
    say(
        f"\nKilled: driver and JVM got SIGKILL. Spark has committed {done} of {batches} batches; the states hold "
        f"{sum(states.values('flights').values()):,} flights, last written by attempt {' and '.join(sorted(written))}."
    )

    CONSOLE.rule("2. Restarted from its checkpoint", align="left")
    expect(0, job(options, "--resume"), "the restarted run")

    CONSOLE.rule("3. What became of the batch", align="left")
    attempts = attempts_of(folder)
    before = [attempt for attempt in written if attempt.startswith(f"{txid}:")]
    if before and attempts[txid] <= int(before[0].partition(":")[2]):
        raise CrashError(f"attempt {before[0]} was killed, and {txid}:{attempts[txid]} counts; nothing was proven")
    again = f"was written by attempt {before[0]} before the kill" if before else "was not in the states at the kill"
    say(
        f"✓ batch {txid} {again} and counts as attempt {txid}:{attempts[txid]}; the states equal Spark SQL: nothing was counted "
        "twice."
    )
    if not options.keep:
        folder.tidy()


def job(options: argparse.Namespace, *more: str, failpoint: str | None = None) -> int:
    """Run this job as a process of its own; return its exit code."""
    more += () if options.store is None else ("--store", options.store)
    return run_job(Path(__file__), options, options.out, *more, failpoint=failpoint)


def attempts_of(folder: Folder) -> dict[int, int]:
    """Return the attempt that counts of each batch, by txid."""
    files = sorted((folder.output / "carriers" / "batches").glob("batch_id=*/*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return {row["txid"]: row["attempt"] for row in rows}


# ---------------------------------------------------------------- the command line


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = job_parser(
        "flights_trident.py",
        "Exactly-once totals by carrier of a year of real flights, by a Trident topology on Spark, checked against Spark SQL.",
        EVERY,
        points=(
            *("before_batch", "before_claim", "after_claim", "before_commits", "before_state_commit"),
            *("after_state_commit", "after_commits", "in_sink", "before_commit"),
        ),
        point=CRASH_AT,
    )
    made.add_argument(
        "--store",
        metavar="URL",
        help="where the states are: postgresql://..., redis://... or the path of a SQLite file; each run makes states of its own "
        "there, which stay (default: a SQLite file in DIR)",
    )
    return parsed(made, given)


def main(given: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = arguments(given)
    return ended(crash if options.crash else run, options, folder_of(options).log)


if __name__ == "__main__":
    sys.exit(main())
