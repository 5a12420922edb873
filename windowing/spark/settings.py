"""What holds while a query starts: the settings of its session, which are restored after it, and the lock of its checkpoint.

- `take`: a checkpoint has one query at a time. On a local disk two locks detect a query of another process: that of the driver, and
  that of its JVM, which outlives a killed driver by a second or more and still writes. Elsewhere Spark detects it when both write
  the same entry of its logs (failures.py); by then both may have written a batch to a sink.
- `settings_of`: as many shuffle partitions as tasks; the time zone by the name UTC, because Arrow's timestamps carry the name; on a
  local disk the manager of checkpoint files that renames by a system call (Spark's default starts a process for every file access,
  a third of a second per batch); Python workers shared with other queries (by default Spark has separate workers per session, and
  a query's session is its own copy); a job in which lost rows come again in another order fails (not the default of Spark 4.1).
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

from pyspark.sql import SparkSession

from windowing.errors import CheckpointError
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.hadoop import Folder
from windowing.spark.session import ZONE, locked_by_jvm
from windowing.stores.sqlite_files import process_with_lock

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
BY_RENAME = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
ISOLATED = "spark.sql.artifact.isolation.enabled"
_PARTITIONS = "spark.sql.shuffle.partitions"
_SAME_ROWS = ("enabled", "enableFullRetryOnMismatch")
"""The settings of spark.sql.shuffle.orderIndependentChecksum by which Spark compares what two attempts at a task have sent."""

_starting = threading.Lock()


@contextmanager
def settings_of(checkpoint: Checkpoint, partitions: int) -> Iterator[None]:
    """Apply the settings of a query on this checkpoint to the session inside the `with` block; one query at a time."""
    spark = checkpoint.spark
    same_rows = {f"spark.sql.shuffle.orderIndependentChecksum.{name}": "true" for name in _SAME_ROWS}
    own = {_PARTITIONS: str(partitions), ZONE: "UTC", **same_rows}
    chosen = {**own, **_file_manager(checkpoint), **_shared_workers(spark)}
    with _starting, session_with(spark, chosen):
        yield


@contextmanager
def session_with(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Apply settings to the session inside the `with` block, and restore its own."""
    conf = spark.conf
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, given in before.items():
            conf.unset(name) if given is None else conf.set(name, given)


def _file_manager(checkpoint: Checkpoint) -> dict[str, str]:
    if checkpoint.spark.conf.get(FILE_MANAGER, None) is not None or not checkpoint.home.is_local:
        return {}
    try:
        getattr(cast(Any, checkpoint.spark.sparkContext._jvm), "java.lang.Class").forName(BY_RENAME)
    except Exception:  # another Spark may call it otherwise; py4j has no types
        return {}
    return {FILE_MANAGER: BY_RENAME}


def _shared_workers(spark: SparkSession) -> dict[str, str]:
    """Return the setting by which a query shares workers with other queries, which saves a second and a half of CPU for imports per
    worker. An empty dict if the user has set it, or if the session has its own artifacts, which shared workers would lack.
    """
    if spark.conf.get(ISOLATED, None) is not None:
        return {}
    try:
        has_own = cast(Any, spark)._jsparkSession.artifactManager().sessionArtifactAdded().get()
    except Exception:  # another Spark may not say; py4j has no types
        return {}
    return {} if has_own else {ISOLATED: "false"}


_ENDING_S = 5.0
_JVM_ENDING_S = 30.0
_LOOK_EVERY_S = 0.1

_lock = threading.Lock()
_taken: dict[str, Taken] = {}  # by the full path of the checkpoint; a set event means that it is released


class _Locked(Exception):
    """Another process has a lock. patience_s: how long a start waits for its end."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s


class Taken(threading.Event):
    """A checkpoint held by one query, until this event is set or the process ends. lock: the descriptor that holds the lock.
    channel: the JVM's channel that holds the lock of the JVM.
    """

    def __init__(self, lock: int | None, channel: Any = None) -> None:
        super().__init__()
        self._held, self._channel = lock, channel

    def set(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(Exception):  # a JVM that has ended holds no lock
                channel.close()
        self.close()
        super().set()

    def close(self) -> None:
        """Close the descriptor; the lock is free when no process has the descriptor open."""
        lock, self._held = self._held, None
        if lock is not None:
            os.close(lock)


def _leave_to_parent() -> None:
    """Close the inherited lock descriptors in a forked process, which may outlive its parent's use of a checkpoint."""
    for each in _taken.values():
        each.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def take(checkpoint: Checkpoint, make: bool = True) -> Taken:
    """Take a checkpoint for a query; it is released when the returned event is set, or when this process ends.

    A query that is about to end is waited for some seconds. Raises CheckpointError if another query uses the checkpoint. On a local
    disk the directory is created, unless `make` is False, and locked against other processes if it exists. Cost: a look-up.
    """
    folder = checkpoint.home
    began = time.monotonic()
    while True:
        until = began + _ENDING_S
        with _lock:
            for ended in [path for path, each in _taken.items() if each.is_set()]:
                del _taken[ended]
            holder = _taken.get(folder.path)
            if holder is None:
                try:
                    _taken[folder.path] = _locked(checkpoint, make)
                    return _taken[folder.path]
                except _Locked as other:
                    until = began + other.patience_s
        if time.monotonic() >= until:
            process = process_with_lock(folder.path.removeprefix("file:")) if holder is None else None
            whose = "of this process" if holder else f"of process {process}" if process else "of another process"
            raise CheckpointError(
                f"another query {whose} writes to checkpoint {checkpoint}; one query at a time can have it: stop() that "
                "one first, or give this one a checkpoint of its own"
            )
        if holder is None:
            time.sleep(_LOOK_EVERY_S)
        else:
            holder.wait(until - time.monotonic())


def _locked(checkpoint: Checkpoint, make: bool) -> Taken:
    """Lock a local directory for this process and for its JVM, as far as it can be locked.

    The operating system releases a lock when its process ends, also by a kill. Raises _Locked while another process has it.
    """
    lock = _locked_by_process(checkpoint.home, make)
    if lock is None or sys.platform != "linux":
        return Taken(lock)
    try:
        gateway: Any = cast(Any, checkpoint.spark.sparkContext)._gateway
        own = getattr(getattr(gateway, "proc", None), "pid", None)
        if _jvm_with_lock(lock) not in (None, own):
            raise _Locked(_JVM_ENDING_S)  # the driver of that JVM was killed, so it will end
        return Taken(lock, locked_by_jvm(gateway, checkpoint.home.path.removeprefix("file:")))
    except BaseException:
        os.close(lock)
        raise


def _locked_by_process(folder: Folder, make: bool) -> int | None:
    """Return the descriptor that holds the lock of this process, None if the directory cannot be locked."""
    if not folder.is_local:
        return None
    if make:
        folder.make()
    try:
        opened = os.open(folder.path.removeprefix("file:"), os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise _Locked(_ENDING_S) from None
    except OSError:  # a network's file system may have none
        os.close(opened)
        return None
    return opened


def _jvm_with_lock(directory: int) -> int | None:
    """Return the process that holds a shared lock on an open directory, None if there is none."""
    layout = "hhlli"  # struct flock: type, whence, start, length, process
    try:
        found = fcntl.fcntl(directory, fcntl.F_GETLK, struct.pack(layout, fcntl.F_WRLCK, 0, 0, 0, 0))
    except OSError:  # a file system may have no such locks
        return None
    kind, _, _, _, process = struct.unpack(layout, found)
    return None if kind == fcntl.F_UNLCK else int(process)
