"""The settings of a query: Spark copies the session's when a query starts, so they are set for that moment and put back.

Shuffle partitions: as many as tasks. The time zone: by the name UTC, whatever else the session calls it (`Etc/UTC`, `Z`): Arrow's
timestamps carry the name. The manager of checkpoint files, where the checkpoint lies on a local disk: Spark's default
renames a file through Hadoop's FileContext, which starts a process (`readlink`) for every look at a file, 30 and more a batch, a
third of a second; the manager that Spark takes for all file systems without a FileContext renames by a system call. On a local disk
both replace a file in one step. Elsewhere, and where the user has chosen one, the choice stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pyspark.sql import SparkSession

from windowing.spark.hadoop import Folder

__all__ = ["BY_RENAME", "FILE_MANAGER", "session_with", "settings_of"]

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_RENAME = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PARTITIONS = "spark.sql.shuffle.partitions"
_ZONE = "spark.sql.session.timeZone"

_starting = threading.Lock()


@contextmanager
def settings_of(spark: SparkSession, checkpoint: str, partitions: int) -> Iterator[None]:
    """Give the session, inside, the settings that a query on this checkpoint is to have; one query at a time."""
    with (
        _starting,
        session_with(spark, {_PARTITIONS: str(partitions), _ZONE: "UTC", **_file_manager(spark, checkpoint)}),
    ):
        yield


@contextmanager
def session_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give the session these settings inside, and its own back."""
    conf = spark.conf
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, given in before.items():
            conf.unset(name) if given is None else conf.set(name, given)


def _file_manager(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    if spark.conf.get(FILE_MANAGER, None) is not None or not Folder(spark, checkpoint).is_local:
        return {}
    try:
        cast(Any, spark.sparkContext._jvm).java.lang.Class.forName(BY_RENAME)
    except Exception:  # another Spark may call it otherwise; py4j has no types
        return {}
    return {FILE_MANAGER: BY_RENAME}
