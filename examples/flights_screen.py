"""What the demo shows while it runs: one line per query, fed by the library's metrics, then tables of what came out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd
from flights_check import Report
from flights_data import wall_time
from flights_folder import Folder
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from windowing.spark import MetricsListener

_PLAIN_EVERY_S = 15.0
_SETTLE_S = 10.0


@dataclass
class Line:
    """How far one query is; sums are those of this run."""

    total: int
    batches: int = 0
    last: int = -1
    rows: int = 0
    windows: int = 0
    late: int = 0
    skipped: int = 0
    pending: int = 0
    watermark: int | None = None


COLUMNS: dict[str, Callable[[Line], str]] = {
    "flights": lambda line: f"{line.rows:,}",
    "windows": lambda line: f"{line.windows:,}",
    "late": lambda line: f"{line.late:,}",
    "pending": lambda line: f"{line.pending:,}",
    "watermark": lambda line: wall_time(line.watermark) if line.batches < line.total else "drained",
}
"""What can be shown of a query."""


class _Listener(MetricsListener):
    """Adds up the metrics of each query, by its name; called on a thread of Spark's."""

    def __init__(self, lines: dict[str, Line], times: list[tuple[float, float]], lock: threading.Lock) -> None:
        super().__init__()
        self._lines, self._times, self._lock = lines, times, lock

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        super().onQueryProgress(event)
        metrics = self.last.get(str(event.progress.id))
        line = self._lines.get(event.progress.name)
        if metrics is None or line is None or metrics.batch_id <= line.last:
            return
        began = datetime.fromisoformat(event.progress.timestamp).timestamp()
        with self._lock:
            self._times.append((began, began + event.progress.durationMs.get("triggerExecution", 0) / 1000))
            line.batches = metrics.batch_id + 1
            line.last = metrics.batch_id
            line.rows += metrics.tuples_in
            line.windows += metrics.windows_fired
            line.late += metrics.late
            line.skipped += metrics.skipped
            line.pending = metrics.pending
            line.watermark = metrics.watermark_ms


class Screen:
    """The console; on a terminal it shows a table that moves, elsewhere a plain line now and then. `columns`: those of COLUMNS."""

    def __init__(self, console: Console | None = None, columns: Sequence[str] = tuple(COLUMNS)) -> None:
        self._console = console or Console(highlight=False)
        self._columns = columns
        self._lines: dict[str, Line] = {}
        self._times: list[tuple[float, float]] = []
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._said = 0.0
        self.listener = _Listener(self._lines, self._times, self._lock)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def rule(self, text: str) -> None:
        self._console.rule(text, align="left")

    def fail(self, text: str) -> None:
        self._console.print(text, style="bold red", markup=False, soft_wrap=True)

    def headline(self, flights: pd.DataFrame, files: int, how: str) -> None:
        """Say what is about to run."""
        first, last = wall_time(flights["departure"].min()), wall_time(flights["departure"].max())
        self.say(
            f"{len(flights):,} flights out of New York that departed and landed, {first} to {last}, in {files:,} files in the "
            f"order of landing, {how}."
        )

    # -- while it runs -------------------------------------------------------------------------------------------------

    def expect(self, bolts: Iterable[str], batches: int) -> None:
        """Prepare a line for each query."""
        self._lines.update({bolt: Line(batches) for bolt in bolts})

    def running(self, bolts: Iterable[str]) -> None:
        """Forget the lines of queries that had nothing left to do."""
        with self._lock:
            for bolt in self._lines.keys() - set(bolts):
                del self._lines[bolt]

    def skipped(self) -> dict[str, int]:
        """Return how many tuples each query has skipped, by its own count."""
        return {bolt: line.skipped for bolt, line in self._lines.items()}

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Show the moving table while the body runs."""
        if not self._console.is_terminal:
            self._said = time.monotonic()
            yield
            self.say(self._plain())
            return
        with Live(self._progress(), console=self._console, refresh_per_second=5) as self._live:
            yield
            self._live.update(self._progress())
        self._live = None

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._progress())
        elif not self._console.is_terminal and time.monotonic() - self._said > _PLAIN_EVERY_S:
            self._said = time.monotonic()
            self.say(self._plain())

    def settle(self) -> None:
        """Wait a moment for Spark to report the last batches: reports come after the fact."""
        until = time.monotonic() + _SETTLE_S
        while any(line.batches < line.total for line in self._lines.values()) and time.monotonic() < until:
            time.sleep(0.1)

    def _progress(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("query")
        table.add_column("")
        for title in ("batches", *self._columns):
            table.add_column(title, justify="right")
        with self._lock:
            for bolt, line in self._lines.items():
                table.add_row(
                    bolt,
                    ProgressBar(total=line.total, completed=line.batches, width=24),
                    f"{line.batches:,}/{line.total:,}",
                    *[COLUMNS[column](line) for column in self._columns],
                )
        return table

    def _plain(self) -> str:
        with self._lock:
            if not self._times:
                return "  waiting for the first batch ..."
            return "\n".join(
                f"  {bolt}: batch {line.batches:,} of {line.total:,}; "
                + ", ".join(f"{column} {COLUMNS[column](line)}" for column in self._columns)
                for bolt, line in self._lines.items()
            )

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def speed(self, flights: int) -> None:
        """Say how fast the streaming part was: from the start of the first batch to the end of the last, without start-up."""
        if not self._times:
            self.say("Nothing was left to do.")
            return
        seconds = max(end for _, end in self._times) - min(begin for begin, _ in self._times)
        rows = sum(line.rows for line in self._lines.values())
        batches = len(self._times)
        bolts = len(self._lines)
        whole = f" ({flights:,} flights through {bolts} bolts)" if bolts > 1 else ""
        whole = whole if rows == flights * bolts else " of this run"
        self.say(
            f"{rows:,} rows{whole} in {batches:,} micro-batches took "
            f"{seconds:.1f} s without start-up: {rows / seconds:,.0f} rows/s, {seconds / batches:.2f} s per batch."
        )

    def report(self, report: Report) -> None:
        """Show what the check has found equal."""
        for fact in report.facts:
            self._console.print(f"  [green]✓[/green] {fact}", soft_wrap=True)

    def results(self, spark: SparkSession, folder: Folder) -> None:
        """Show a few of the results."""
        windows = spark.read.parquet(str(folder.output / "departures" / "windows"))
        windows.createOrReplaceTempView("departures")
        spark.read.parquet(str(folder.output / "punctuality" / "windows")).createOrReplaceTempView("punctuality")
        worst = """
            SELECT origin, until, flights, mean_delay, worst_delay FROM (
                SELECT *, row_number() OVER (PARTITION BY origin ORDER BY mean_delay DESC, until) AS n
                FROM departures WHERE flights >= 10)
            WHERE n = 1 ORDER BY origin"""
        self.table(
            "The worst hour of each airport (of hours with 10 flights or more)",
            ("airport", "hour until", "flights", "mean delay, min", "worst, min"),
            [(r[0], wall_time(r[1]), r[2], f"{r[3]:.1f}", r[4]) for r in spark.sql(worst).collect()],
        )
        carriers = """
            SELECT carrier, count(*), sum(new), min(share), avg(share), max(share) FROM punctuality
            WHERE flights = 100 GROUP BY carrier ORDER BY sum(new) DESC LIMIT 8"""
        self.table(
            "Of the last 100 flights of a carrier, so many left over 15 minutes late",
            ("carrier", "windows", "flights", "at best", "on average", "at worst"),
            [(*r[:3], *[f"{share:.0%}" for share in r[3:]]) for r in spark.sql(carriers).collect()],
        )
        late = folder.output / "departures" / "late"
        if any(late.glob("batch_id=*/*.parquet")):
            rows = spark.read.parquet(str(late)).groupBy("dest").count().orderBy("count", ascending=False).limit(8)
            self.table("Late flights by destination", ("dest", "late"), [tuple(row) for row in rows.collect()])
        else:
            self.say("\nNo flight was late.")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Show a small table; numbers stand to the right."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        shown = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row] for row in rows]
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in shown:
            table.add_row(*row)
        self._console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        self._console.print(table)
