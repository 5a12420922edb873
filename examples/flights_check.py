"""The demo's own check: the same figures once more, computed by Spark SQL from the same files, without the library.

What the reference knows about the run is only which file each batch took (from the source's log in the checkpoint). From
that it computes the watermark before each batch, which flights were late, every window, and every total of a carrier:

    watermark of batch b    = newest departure in the batches before b, minus 6 hours
    late                    = departure < watermark of its batch
    an airport's hour       = (until - 1 hour, until], until = every quarter of an hour with a flight
    a carrier's last 100    = numbers (n - 100, n] in the order (departure, arrival), n = every 20th and the end
    a carrier's totals      = flights, minutes of delay, and flights over 15 minutes late
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from flights_data import DDL, Folder
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

STATES = {
    "flights": "SELECT carrier, count(*) AS n FROM arrived GROUP BY carrier",
    "minutes": "SELECT carrier, sum(delay) AS n FROM arrived GROUP BY carrier",
    "delayed": "SELECT carrier, count(*) AS n FROM arrived WHERE delay > 15 GROUP BY carrier",
}

RUNNING = """
    SELECT batch, carrier, sum(count(*)) OVER (PARTITION BY carrier ORDER BY batch) AS flights
    FROM arrived GROUP BY batch, carrier"""

BATCHES = "SELECT batch, batch + 1 AS txid, count(*) AS flights FROM arrived GROUP BY batch"


class Difference(Exception):
    """A job's output is not what Spark SQL computes."""


def check_windows(spark: SparkSession, folder: Folder, bolts: Iterable[str] = tuple(WINDOWS)) -> list[str]:
    """Compare the outputs of flights.py with the reference; return what was found equal, a line each.

    Raises Difference, with the first rows that differ.
    """
    with contextlib.ExitStack() as kept:
        found = [_arrived(spark, folder, "flights", kept)]
        cached(spark.sql(JUDGED), kept).createOrReplaceTempView("judged")
        for bolt in bolts:
            found += _check_bolt(spark, folder, bolt, kept)
        return found


def check_totals(spark: SparkSession, folder: Folder, states: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Compare the states (values by carrier) and both sinks of flights_trident.py with the reference, in the same way."""
    with contextlib.ExitStack() as kept:
        found = [_arrived(spark, folder, "carriers", kept)]
        for name, values in states.items():
            held = spark.createDataFrame([*values.items()], "carrier string, n long")
            same(f"state {name}: values", held, spark.sql(STATES[name]), ("carrier",))
            found.append(f"state {name} equals Spark SQL: {len(values)} carriers, {sum(values.values()):,} in all")
        for name, query, key in (("running", RUNNING, "carrier"), ("batches", BATCHES, "txid")):
            reference = spark.sql(query)
            written = output_of(spark, folder, f"carriers/{name}", reference).withColumnRenamed("batch_id", "batch")
            same(f"sink {name}: rows", written.select(reference.columns), reference, ("batch", key))
            found.append(f"sink {name} equals Spark SQL: {reference.count():,} rows, each in its batch")
        found.append(f"{_staged(spark):,} flights went in, and {sum(states['flights'].values()):,} were counted")
        return found


def _check_bolt(spark: SparkSession, folder: Folder, bolt: str, kept: contextlib.ExitStack) -> list[str]:
    late = spark.sql(LATE)
    written = output_of(spark, folder, f"{bolt}/late", late).withColumnRenamed("batch_id", "batch")
    same(f"{bolt}: late flights", written.select(late.columns), late, ("batch", "row"))

    reference = cached(spark.sql(WINDOWS[bolt]), kept)
    output = output_of(spark, folder, f"{bolt}/windows", reference).select(reference.columns)
    same(f"{bolt}: windows", output, reference, ("until", reference.columns[0]))
    short = _number(spark.sql(SHORT)) if bolt == "punctuality" else 0
    shorter = f", {short} of them the short last window of a carrier" if short else ""

    rows, shown, lost = _staged(spark), _number(output.selectExpr("coalesce(sum(new), 0)")), late.count()
    sums = f"{shown:,} in at least one window + {lost:,} late"
    if shown + lost != rows:
        raise Difference(f"{bolt}: {rows:,} flights went in, but what came of them is {sums}")
    return [
        f"{bolt}: {lost:,} late flights, each of them older than the watermark of its batch, and no other one",
        f"{bolt}: {reference.count():,} windows with the same figures{shorter}",
        f"{bolt}: {rows:,} flights = {sums}",
    ]


def _arrived(spark: SparkSession, folder: Folder, query: str, kept: contextlib.ExitStack) -> str:
    """Make the views `staged`: every flight with its file; and `arrived`: with its batch. Each file was taken once, in order."""
    rows = spark.read.schema(DDL).parquet(str(folder.input)).selectExpr("*", "_metadata.file_name AS file")
    cached(rows, kept).createOrReplaceTempView("staged")
    taken = dict(files_of_batches(folder, query))
    staged = [path.name for path in folder.staged()]
    by_batch = sorted(taken, key=lambda file: (taken[file], file))
    if by_batch != staged:
        wrong = next((a, b) for a, b in zip([*by_batch, "nothing"], [*staged, "nothing"], strict=False) if a != b)
        raise Difference(f"{query}: the batches took the files in another order: {wrong[0]} where {wrong[1]} was next")
    spark.createDataFrame([*taken.items()], "file string, batch long").createOrReplaceTempView("taken")
    spark.sql(ARRIVED).createOrReplaceTempView("arrived")
    return f"{query}: {len(staged):,} files in {len(set(taken.values())):,} batches, in the order of landing"


def files_of_batches(folder: Folder, query: str) -> Iterator[tuple[str, int]]:
    """Yield (file name, batch): Spark's offset log N says how far batch N read, its source's log which files that was."""
    checkpoint = folder.checkpoints / query
    source, entries = _source_log(checkpoint, folder.input)
    upto = {}
    for log in (checkpoint / "offsets").glob("[0-9]*"):
        offset = log.read_text().splitlines()[2 + source]
        upto[int(log.name)] = -1 if offset == "-" else int(json.loads(offset)["logOffset"])
    missing = set(range(max(upto))) - upto.keys()
    if missing:
        raise Difference(f"{query}: nothing says what batch {min(missing)} read; {checkpoint} lacks its offset log")
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


def output_of(spark: SparkSession, folder: Folder, stream: str, like: DataFrame) -> DataFrame:
    """Return what a sink wrote, with its batch_id; no row where it wrote nothing."""
    path = folder.output / stream
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


def _staged(spark: SparkSession) -> int:
    return spark.table("staged").count()


def _number(rows: DataFrame) -> int:
    first = rows.first()
    assert first is not None
    return int(first[0])
