"""The grouping keys of tasks, and the control stream of every plan, which brings drains and ticks to every task.

Labels: the grouping keys 0..N-1 do not spread (0 and 1 hash to the same partition of 2, so one core would do all the work). So the
label of task i is the smallest unused number with `pmod(hash(label), P) == i mod P`, computed with Spark's own hash. Law: labels
depend only on N and P, so a restart computes the same ones.

Drain: a file in `<checkpoint>/windowing/control`, read by a file source; each line becomes one row per task. Ticks, for bolts on
processing time or with an idle timeout: one row per task and trigger from Spark's `rate-micro-batch` source. It gives an
availableNow run exactly one batch, so the run ends, and an interval trigger one batch per interval, with or without input. Law: the
sources of a plan depend only on the bolt and the checkpoint, never on the trigger, because a checkpoint identifies its sources by
position. A checkpoint keeps its ticks when the bolt no longer needs them, and gets them when the bolt begins to need them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.errors import CheckpointError, ConfigError, quote
from windowing.execution.compatibility import MOST_TASKS, batches_in, read_log
from windowing.schema.checks import is_whole
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.exchange import BATCH_CLOCK
from windowing.windows.config import WindowConfig

_labels: dict[tuple[int, int], tuple[int, ...]] = {}
"""The computed labels, by numbers of tasks and partitions; the hash is the same in every session."""


def checked_tasks(tasks: Any) -> int:
    """Return a number of tasks, or raise ConfigError."""
    if not is_whole(tasks, 1):
        raise ConfigError(f"tasks is a number of at least 1, got {quote(tasks)}; leave it out for one task per core")
    return tasks


def task_labels(spark: SparkSession, tasks: int, partitions: int) -> tuple[int, ...]:
    """Return the grouping keys (longs) of tasks 0..tasks-1 for a shuffle into `partitions`.

    Cost: one constant expression, evaluated on the driver without a job, once per process. Raises ConfigError for a number above
    MOST_TASKS.
    """
    if max(tasks, partitions) > MOST_TASKS:
        raise ConfigError(
            f"{tasks} tasks in {partitions} partitions were asked for, but a shuffle has {MOST_TASKS} at most; give fewer"
        )
    bound = 16 * max(tasks, partitions)
    while (tasks, partitions) not in _labels:
        residues = f"transform(sequence(0L, {bound - 1}L), x -> pmod(hash(x), {partitions}))"
        row = spark.sql(f"SELECT {residues}").first()
        assert row is not None
        found = _pick(row[0], tasks, partitions)
        if found is not None:
            _labels[tasks, partitions] = found
        bound *= 4
    return _labels[tasks, partitions]


def label_of_row(labels: Sequence[int], first: int) -> Column:
    """Return the grouping key of an exchange row: that of its target task, `labels[target - first]`. A row for none of these tasks
    passes through one of them.
    """
    keys = f"array({', '.join(f'{label}L' for label in labels)})"
    anyone = f"pmod(upstream + sequence, {len(labels)})"
    return F.expr(f"coalesce(get({keys}, int(target - {first})), get({keys}, {anyone}))")


def _pick(residues: Sequence[int], tasks: int, partitions: int) -> tuple[int, ...] | None:
    of_residue: dict[int, list[int]] = {}
    for number, residue in enumerate(residues):
        of_residue.setdefault(residue, []).append(number)
    chosen = []
    for task in range(tasks):
        candidates = of_residue.get(task % partitions, [])
        if len(candidates) <= task // partitions:
            return None
        chosen.append(candidates[task // partitions])
    return tuple(chosen)


# -- The control stream that every plan has --------------------------------------------------------------------------------------


DRAIN_FILE = "drain.json"


def make_control_folder(checkpoint: Checkpoint) -> str:
    """Create the folder of control files if it is missing, and return its path; a query reads it only if it exists.

    Raises CheckpointError if it is still missing: some servers of S3's protocol drop empty folders, without which neither this
    source nor Spark's own logs can be read.
    """
    path = checkpoint.control.path
    checkpoint.control.make()
    if not checkpoint.own.exists("control"):
        raise CheckpointError(
            f"{path} is missing right after it was made: its store keeps no empty folders, and Spark needs them in a "
            "checkpoint; give a checkpoint on another store, or use another server"
        )
    return path


def needs_ticks(config: WindowConfig) -> bool:
    """Return whether a window can fire by time alone, without a tuple."""
    return not config.event_time or config.idle_timeout_ms is not None


_BEFORE_TICKS = {"offset": 0, "timestamp": 0}
"""The offset at which `rate-micro-batch` begins."""


def keep_ticks(checkpoint: Checkpoint, needed: bool) -> bool:
    """Return whether a query on this checkpoint has ticks: if its windows need them, or its earlier batches had them.

    If the earlier batches had none, the offsets from which Spark continues get a line for the ticks, the last source of every plan.
    Cost: reads one file of Spark's log.
    """
    log = checkpoint.offsets
    batches = sorted(batches_in(log))
    if not batches or _had_ticks(read_log(log, batches[-1])):
        return needed or bool(batches)
    if needed:
        for batch in batches[-2:]:  # the last one at the end: until it has its line, a killed start is repeated
            if not _had_ticks(read_log(log, batch)):
                line = json.dumps(_BEFORE_TICKS, separators=(",", ":"))
                log.write(str(batch), log.read(str(batch)) + b"\n" + line.encode())
    return needed


def _had_ticks(entries: list[Any]) -> bool:
    """Return whether the last source of a batch was that of ticks; without ticks it is that of the control files."""
    return isinstance(entries[-1], dict) and entries[-1].keys() == _BEFORE_TICKS.keys()


def control_rows(spark: SparkSession, folder: str, tasks: Sequence[int], clock: str = BATCH_CLOCK) -> DataFrame:
    """Return one exchange row per task for each command in the files of `folder`; others are ignored."""
    commands = spark.readStream.schema("kind string").json(folder).where("kind = 'drain'")
    return _to_every_task(commands, tasks, clock)


def tick_rows(spark: SparkSession, tasks: Sequence[int], clock: str = BATCH_CLOCK) -> DataFrame:
    """Return one tick per task and batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return _to_every_task(source.selectExpr("'tick' AS kind"), tasks, clock)


def write_drain(checkpoint: Checkpoint) -> None:
    """Write the command by which every task of the query drains in its next batch."""
    checkpoint.control.write(DRAIN_FILE, json.dumps({"kind": "drain"}).encode() + b"\n")


def drain_batch(checkpoint: Checkpoint) -> int | None:
    """Return the batch of the checkpoint that has read the drain file, or that will read it next; None if there is none.

    The file source writes the names of a batch's files to its own log before Spark logs the batch. A file in that log will be read;
    a file that is not in it was never planned. Spark's offset log has, for each batch, the position in each source's log. Cost:
    reads both logs.
    """
    needle = f"/windowing/control/{DRAIN_FILE}".encode()
    sources = checkpoint.home / "sources"
    for source in sources.names():
        log = sources / source
        names = {name: name.partition(".")[0] for name in log.names()}  # some are "9.compact"
        entries = [int(entry) for name, entry in names.items() if entry.isdigit() and needle in log.read(name)]
        if not entries:
            continue
        batches = sorted(batches_in(checkpoint.offsets))
        for batch in batches:
            offset = read_log(checkpoint.offsets, batch)[1:][int(source)]
            if offset is not None and offset["logOffset"] >= min(entries):
                return batch
        return batches[-1] + 1 if batches else 0
    return None


def unfinished_drain(checkpoint: Checkpoint) -> CheckpointError:
    """Return the error for a checkpoint whose drain has begun and was not marked as done."""
    return CheckpointError(
        f"checkpoint {checkpoint} was being drained when its query died; start it once with "
        'trigger="available_now", drain=True to finish that'
    )


def _to_every_task(commands: DataFrame, tasks: Sequence[int], clock: str) -> DataFrame:
    every_task = ", ".join(f"{task}L" for task in tasks)
    return control_row(commands.selectExpr(f"explode(array({every_task})) AS task", "kind"), "task", "kind", clock)


def control_row(commands: DataFrame, task: str, kind: str, clock: str) -> DataFrame:
    """Return a control row for each input row; `task`, `kind` and `clock` are expressions."""
    return commands.selectExpr(
        f"{task} AS target",
        f"{kind} AS kind",
        "'' AS stream",
        "0 AS upstream",
        "0 AS sequence",
        f"{clock} AS now",
        "string(NULL) AS source",
        "0L AS value",
        "binary(NULL) AS data",
    )
