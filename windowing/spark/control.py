"""The control stream that every plan has: how a drain and ticks reach every task.

Drain: a file in `<checkpoint>/windowing/control`, read by a file source; each line becomes one row per task. Ticks
(bolts on processing time or with an idle timeout): one row per task and trigger from Spark's `rate-micro-batch`
source, which gives exactly one batch to an availableNow run, so it never hangs one, and one per interval to a
processing-time trigger, data or not.

Law: which sources a plan has depends on the bolt alone, never on the trigger: a checkpoint knows its sources by
position.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.core.config import WindowConfig
from windowing.spark.hadoop import Folder

__all__ = ["DRAIN_FILE", "control_folder", "control_rows", "drain_batch", "needs_ticks", "tick_rows", "write_drain"]

DRAIN_FILE = "drain.json"


def control_folder(spark: SparkSession, checkpoint: str) -> Folder:
    """Return the folder of control files; it has to exist before a query reads it."""
    return Folder(spark, checkpoint) / "windowing" / "control"


def needs_ticks(config: WindowConfig) -> bool:
    """Return whether time alone, without a tuple, can make a window fire."""
    return not config.event_time or config.idle_timeout_ms is not None


def control_rows(spark: SparkSession, folder: str, labels: tuple[int, ...]) -> DataFrame:
    """Return one packed row (schema PACKED of pack.py) per task for each command in the files of `folder`; others are
    ignored.
    """
    commands = spark.readStream.schema("kind string").json(folder).where(F.col("kind") == "drain")
    return _to_every_task(commands, labels)


def tick_rows(spark: SparkSession, labels: tuple[int, ...]) -> DataFrame:
    """Return one tick per task and batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return _to_every_task(source.select(F.lit("tick").alias("kind")), labels)


def write_drain(folder: Folder) -> None:
    """Ask every task of the query that reads `folder` to drain, in its next batch."""
    folder.write(DRAIN_FILE, json.dumps({"kind": "drain"}).encode() + b"\n")


def drain_batch(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the batch of the checkpoint that has taken the drain file, or is bound to take it next; None where none is.

    The file source writes the names of a batch's files into its own log before Spark logs the batch: what stands
    there can no longer be taken back, what does not stand there was never planned. Spark's log of offsets then has, for each
    batch, how far each source's log had come. Cost: reads both logs.
    """
    home = Folder(spark, checkpoint)
    needle = f"/{control_folder(spark, checkpoint).path.rsplit('/', 2)[1]}/control/{DRAIN_FILE}".encode()
    for source in (home / "sources").names():
        log = home / "sources" / source
        names = {name: name.partition(".")[0] for name in log.names()}  # some are "9.compact"
        entries = [int(entry) for name, entry in names.items() if entry.isdigit() and needle in log.read(name)]
        if entries:
            return _batch_of(home / "offsets", int(source), min(entries))
    return None


def _batch_of(offsets: Folder, source: int, entry: int) -> int:
    """Return the first batch whose offsets hold this entry of a file source's log, the next one where none does."""
    batches = sorted(int(name) for name in offsets.names() if name.isdigit())
    for batch in batches:
        lines = (
            offsets.read(str(batch)).decode().splitlines()[2:]
        )  # behind the version and the metadata: a line a source
        offset = json.loads(lines[source]) if lines[source] != "-" else None
        if offset is not None and offset["logOffset"] >= entry:
            return batch
    return batches[-1] + 1 if batches else 0


def _to_every_task(commands: DataFrame, labels: tuple[int, ...]) -> DataFrame:
    every_label = F.array(*[F.lit(label).cast("bigint") for label in labels])
    return commands.select(
        F.explode(every_label).alias("label"),
        F.col("kind"),
        F.lit("").alias("stream"),
        F.lit(0).cast("int").alias("partition"),
        F.lit(0).cast("int").alias("sequence"),
        F.unix_millis(F.current_timestamp()).alias("now"),
        F.lit(None).cast("string").alias("source"),
        F.lit(0).cast("bigint").alias("value"),
        F.lit(None).cast("binary").alias("data"),
    )
