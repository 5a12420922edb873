"""The demo's own check: the same figures once more, computed by Spark SQL from the same files, without the library.

What the reference knows about the run is only which file each batch took (from the source's log in the checkpoint). From
that it computes the watermark before each batch, which flights were late, and every window:

    watermark of batch b    = newest departure in the batches before b, minus 6 hours
    late                    = departure < watermark of its batch
    an airport's hour       = (until - 1 hour, until], until = every quarter of an hour with a flight
    a carrier's last 100    = numbers (n - 100, n] in the order (departure, arrival), n = every 20th and the end
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

from flights_data import DDL
from flights_folder import Folder
from pyspark.sql import DataFrame, SparkSession

SHOWN = 5

ARRIVED = """
    SELECT f.*, t.batch FROM staged f JOIN taken t ON f.file = t.file"""

JUDGED = """
    WITH newest AS (SELECT batch, max(departure) AS newest FROM arrived GROUP BY batch),
         marks AS (
            SELECT own.batch, max(earlier.newest) - 6 * 3600 * 1000 AS watermark
            FROM newest own LEFT JOIN newest earlier ON earlier.batch < own.batch GROUP BY own.batch)
    SELECT arrived.*, watermark, coalesce(departure < watermark, false) AS late FROM arrived JOIN marks USING (batch)"""

LATE = """
    SELECT batch, row, carrier, flight, origin, dest, departure, landing, delay, 'late' AS reason
    FROM judged WHERE late"""

DEPARTURES = """
    WITH fitting AS (
            SELECT *, departure + pmod(-departure, 15 * 60 * 1000) AS first_end FROM judged WHERE NOT late),
         held AS (
            SELECT *, explode(sequence(first_end, first_end + 45 * 60 * 1000, 15 * 60 * 1000)) AS until FROM fitting)
    SELECT origin, until, count(*) AS flights, count_if(until = first_end) AS new,
           sum(delay) / count(*) AS mean_delay, max(delay) AS worst_delay
    FROM held GROUP BY origin, until"""

PUNCTUALITY = """
    WITH numbered AS (
            SELECT *, row_number() OVER (PARTITION BY carrier ORDER BY departure, batch, landing, row) AS n,
                   count(*) OVER (PARTITION BY carrier) AS total
            FROM judged WHERE NOT late),
         fitting AS (SELECT *, (n + 19) div 20 * 20 AS first_end, (total + 19) div 20 * 20 AS last_end FROM numbered),
         held AS (
            SELECT *, explode(sequence(first_end, least(first_end + 80, last_end), 20)) AS window_end FROM fitting)
    SELECT carrier, max_by(departure, n) AS until, min_by(row, n) AS first_row, max_by(row, n) AS last_row,
           count(*) AS flights, count_if(window_end = first_end) AS new, count_if(delay > 15) AS delayed,
           count_if(delay > 15) / count(*) AS share
    FROM held GROUP BY carrier, window_end"""

SHORT = """
    SELECT count(*) FROM (SELECT carrier FROM judged WHERE NOT late GROUP BY carrier HAVING count(*) % 20 > 0)"""

WINDOWS = {"departures": DEPARTURES, "punctuality": PUNCTUALITY}


class Difference(Exception):
    """The job's output is not what Spark SQL computes."""


@dataclass
class Report:
    """What was compared; every line of `facts` is true."""

    facts: list[str] = field(default_factory=list)
    late: int = 0

    def add(self, fact: str) -> None:
        self.facts.append(fact)


def check(
    spark: SparkSession, folder: Folder, bolts: Iterable[str], skipped: Mapping[str, int] | None = None
) -> Report:
    """Compare all outputs with the reference. Raises Difference, with the first rows that differ.

    `skipped`: how many tuples each bolt has counted as skipped; by their definition these two skip none.
    """
    report = Report()
    with contextlib.ExitStack() as kept:
        rows = read_staged(spark, folder, kept)
        for bolt in bolts:
            _check_bolt(spark, folder, bolt, rows, (skipped or {}).get(bolt, 0), report)
    return report


def read_staged(spark: SparkSession, folder: Folder, kept: contextlib.ExitStack) -> int:
    """Make the view `staged`: every flight with the file that it lies in. Return how many there are."""
    staged = spark.read.schema(DDL).parquet(str(folder.input)).selectExpr("*", "_metadata.file_name AS file")
    cached(staged, kept).createOrReplaceTempView("staged")
    return staged.count()


def _check_bolt(spark: SparkSession, folder: Folder, bolt: str, rows: int, skipped: int, report: Report) -> None:
    with contextlib.ExitStack() as kept:
        _judge(spark, folder, bolt, report, kept)
        late = spark.sql(LATE)
        written = (
            output_of(spark, folder, bolt, "late", late).withColumnRenamed("batch_id", "batch").select(late.columns)
        )
        same(f"{bolt}: late flights", written, late, ("batch", "row"))
        report.late = late.count()
        report.add(
            f"{bolt}: {report.late:,} late flights, each of them older than the watermark of its batch, and no other one"
        )

        reference = cached(spark.sql(WINDOWS[bolt]), kept)
        output = output_of(spark, folder, bolt, "windows", reference).select(reference.columns)
        same(f"{bolt}: windows", output, reference, ("until", reference.columns[0]))
        short = _number(spark.sql(SHORT)) if bolt == "punctuality" else 0
        shorter = f", {short} of them the short last window of a carrier" if short else ""
        report.add(f"{bolt}: {reference.count():,} windows with the same figures{shorter}")

    shown = _number(output.selectExpr("coalesce(sum(new), 0)"))
    sums = f"{shown:,} in at least one window + {report.late:,} late + {skipped:,} skipped"
    if shown + report.late + skipped != rows:
        raise Difference(f"{bolt}: {rows:,} flights went in, but what came of them is {sums}")
    report.add(f"{bolt}: {rows:,} flights = {sums}")


def _judge(spark: SparkSession, folder: Folder, bolt: str, report: Report, kept: contextlib.ExitStack) -> None:
    """Make the view `judged`: every flight with its batch, the watermark before that batch, and whether it was late."""
    read_arrived(spark, folder, bolt, report)
    cached(spark.sql(JUDGED), kept).createOrReplaceTempView("judged")


def read_arrived(spark: SparkSession, folder: Folder, query: str, report: Report) -> None:
    """Make the view `arrived`: every flight with its batch of a query. Raises Difference if the order of files was another."""
    taken = dict(files_of_batches(folder, query))
    _check_order(query, folder, taken, report)
    spark.createDataFrame([*taken.items()], "file string, batch long").createOrReplaceTempView("taken")
    spark.sql(ARRIVED).createOrReplaceTempView("arrived")


def _check_order(bolt: str, folder: Folder, taken: dict[str, int], report: Report) -> None:
    """Every staged file was taken once, in the order in which it was staged."""
    staged = sorted(path.name for path in folder.input.glob("*.parquet"))
    by_batch = sorted(taken, key=lambda file: (taken[file], file))
    if by_batch != staged:
        wrong = next((a, b) for a, b in zip([*by_batch, "nothing"], [*staged, "nothing"], strict=False) if a != b)
        raise Difference(f"{bolt}: the batches took the files in another order: {wrong[0]} where {wrong[1]} was next")
    report.add(f"{bolt}: {len(staged):,} files in {len(set(taken.values())):,} batches, in the order of landing")


def files_of_batches(folder: Folder, bolt: str) -> Iterator[tuple[str, int]]:
    """Yield (file name, batch): Spark's offset log N says how far batch N read, its source's log which files that was."""
    source, entries = _source_log(folder.checkpoints / bolt, folder.input)
    upto = {}
    for log in (folder.logs / bolt).glob("[0-9]*"):
        offset = log.read_text().splitlines()[2 + source]
        upto[int(log.name)] = -1 if offset == "-" else int(json.loads(offset)["logOffset"])
    missing = set(range(max(upto))) - upto.keys()
    if missing:
        raise Difference(
            f"{bolt}: nothing says what batch {min(missing)} read; {folder.logs / bolt} lacks its offset log"
        )
    for file, position in sorted(entries.items()):
        yield file, min(batch for batch, offset in upto.items() if position <= offset)


def _source_log(checkpoint: Path, folder: Path) -> tuple[int, dict[str, int]]:
    """Return the number of the source that reads `folder`, and for each of its files the position in that source's log."""
    for source in sorted((checkpoint / "sources").iterdir()):
        entries = {}
        for log in source.iterdir():
            if log.name.split(".")[0].isdigit():
                for line in log.read_text().splitlines()[1:]:
                    entry = json.loads(line)
                    path = Path(unquote(urlparse(entry["path"]).path))
                    if path.parent == folder:
                        entries[path.name] = int(entry["batchId"])
        if entries:
            return int(source.name), entries
    raise Difference(f"{checkpoint} has no log of files from {folder}: nothing was read")


def output_of(spark: SparkSession, folder: Folder, bolt: str, stream: str, like: DataFrame) -> DataFrame:
    """Return what a sink wrote, with its batch_id; no row where it wrote nothing."""
    path = folder.output / bolt / stream
    if not any(path.glob("batch_id=*/*.parquet")):
        return spark.createDataFrame([], like.schema)
    return spark.read.parquet(str(path))


def same(what: str, job: DataFrame, reference: DataFrame, order: tuple[str, ...]) -> None:
    """Raise Difference unless both hold the same rows, equally often; numbers must be equal to the last bit."""
    columns = reference.columns
    job = job.select([job[f.name].cast(f.dataType) for f in reference.schema.fields])
    both = job.selectExpr("*", "1 AS surplus").union(reference.selectExpr("*", "-1 AS surplus"))
    differing = both.groupBy(columns).agg({"surplus": "sum"}).withColumnRenamed("sum(surplus)", "surplus")
    found = differing.where("surplus <> 0").collect()
    if not found:
        return
    extra, lacking = [row for row in found if row.surplus > 0], [row for row in found if row.surplus < 0]
    counts = sum(row.surplus for row in extra), -sum(row.surplus for row in lacking)
    lines = [f"{what} differ from Spark SQL: {counts[0]:,} only in the job's output, {counts[1]:,} only in Spark SQL's"]
    for name, rows in (("job", extra), ("SQL", lacking)):
        first = sorted(rows, key=lambda row: [row[column] for column in order])[:SHOWN]
        lines += [f"    {name}: " + ", ".join(f"{column}={row[column]}" for column in columns) for row in first]
    raise Difference("\n".join(lines))


def cached(rows: DataFrame, kept: contextlib.ExitStack) -> DataFrame:
    """Keep rows in memory until the check is over, however it ends: a later check must not see them."""
    kept.callback(rows.cache().unpersist)
    return rows


def _number(rows: DataFrame) -> int:
    first = rows.first()
    assert first is not None
    return int(first[0])
