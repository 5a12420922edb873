"""One query at a time has a checkpoint: a second start in this process is refused before it writes anything.

Spark would stop the first query instead, whatever it is doing. A query of another process is found out by Spark alone, when
both write one entry of its logs (failures.py).
"""

from __future__ import annotations

import threading
import time

from pyspark.sql import SparkSession

from windowing.errors import CheckpointError
from windowing.spark.hadoop import Folder

__all__ = ["take"]

_ENDING_S = 5.0

_lock = threading.Lock()
_taken: dict[str, threading.Event] = {}  # by the whole path of the checkpoint; whoever has set its event has left


def take(spark: SparkSession, checkpoint: str) -> threading.Event:
    """Take a checkpoint for a query of this process; it is free again when the returned event is set.

    A query that is about to end is given some seconds. Raises CheckpointError where another one goes on. Cost: a look-up.
    """
    path = Folder(spark, checkpoint).path
    until = time.monotonic() + _ENDING_S
    while True:
        with _lock:
            holder = _taken.get(path)
            if holder is None or holder.is_set():
                _taken[path] = threading.Event()
                return _taken[path]
        if not holder.wait(until - time.monotonic()):
            raise CheckpointError(
                f"another query of this process writes to checkpoint {checkpoint}; one query at a time can have it: stop() that "
                "one first, or give this one a checkpoint of its own"
            )
