"""Failpoints: named points where a test can kill the driver or a worker; off unless WINDOWING_FAILPOINT is set.

WINDOWING_FAILPOINT="in_sink:3" kills at that point of batch 3, with SIGKILL: the process group of WINDOWING_FAILPOINT_GROUP (the
driver, its JVM and the Python workers), or for `kill_worker` the Python worker alone. In a worker of a cluster the group "executor"
is the executor's JVM and the worker; "frozen executor" stops the same two by SIGSTOP, and SIGCONT resumes them.
WINDOWING_FAILPOINT_ONCE names a marker file: once it exists no process is killed, so a restart in the same environment succeeds.
Several points are separated by commas; each then has its own marker, with the point appended to the name.

    before_batch          foreachBatch was called, nothing is evaluated
    before_state_write    the batch of a task is computed, no state of it is written (worker)
    after_state_write     the state of one task is written, its output is not sent (worker)
    kill_worker           the same point, but only the worker dies: Spark retries the task
    in_sink               the first sink has written
    before_commit         all sinks have written, Spark has not committed the batch

If a spout takes acks (acks.py):

    before_ledger         the ledger entry of the batch is computed, nothing of it is written
    after_ledger          it is written, Spark has not committed the batch
    before_ack            the batch is committed, no spout was notified of its acks and fails
    after_ack             all spouts were notified

Trident topologies have these, and of the first list those about the batch, the sinks and the state of windows:

    before_claim          no attempt at the batch is claimed
    after_claim           an attempt is claimed, nothing is evaluated
    before_commits        all stages that may fail are evaluated, nothing is written
    before_state_commit   the first partition of a state is about to be written (worker)
    after_state_commit    it is written, the others may be or not (worker)
    after_commits         all partitions are written, no sink has written

And `rescale`, with 0 for the batch:

    before_rescale        everything is read, nothing is written
    after_moved_states    the states of a Trident topology are copied to their new stores
    after_rescaled_state  the new state is written, the logs are those of the query that wrote it
    after_rescaled_logs   the new checkpoint is complete, the old one is open
    after_rescale         the old one is closed, the new one not yet open
"""

from __future__ import annotations

import os
import signal

from windowing.errors import ConfigError, quote

NAMES = ("before_batch", "before_state_write", "after_state_write", "kill_worker", "in_sink", "before_commit")
ACK_NAMES = ("before_ledger", "after_ledger", "before_ack", "after_ack")
TRIDENT_NAMES = (
    "before_claim",
    "after_claim",
    "before_commits",
    "before_state_commit",
    "after_state_commit",
    "after_commits",
)
RESCALE_NAMES = (
    "before_rescale",
    "after_moved_states",
    "after_rescaled_state",
    "after_rescaled_logs",
    "after_rescale",
)
_VARIABLE = "WINDOWING_FAILPOINT"
_OF_EXECUTOR = {"executor": signal.SIGKILL, "frozen executor": signal.SIGSTOP}


def hit(name: str, batch: int) -> None:
    """Kill this process if the environment selects this point and batch. Cost otherwise: one dictionary look-up."""
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    for each in wanted.split(","):
        point, _, number = each.partition(":")
        names = NAMES + ACK_NAMES + TRIDENT_NAMES + RESCALE_NAMES
        if point not in names or not number.isdigit():
            raise ConfigError(f"{_VARIABLE} is {quote(wanted)}, wanted name:batch with a name of {', '.join(names)}")
        if point == name and int(number) == batch and _first_time(f"-{each}" if each != wanted else ""):
            _kill(name)


def _first_time(point: str) -> bool:
    marker = os.environ.get("WINDOWING_FAILPOINT_ONCE")
    if marker is None:
        return True
    try:
        os.close(os.open(marker + point, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _kill(name: str) -> None:
    if name == "kill_worker":
        os.kill(os.getpid(), signal.SIGKILL)
    group = os.environ.get("WINDOWING_FAILPOINT_GROUP", "")
    if group in _OF_EXECUTOR:  # the executor's JVM started the daemon that forked this worker
        with open(f"/proc/{os.getppid()}/stat") as daemon:
            os.kill(int(daemon.read().rpartition(")")[2].split()[1]), _OF_EXECUTOR[group])
        os.kill(os.getpid(), _OF_EXECUTOR[group])
        return
    if not group.isdigit() or int(group) <= 1:
        raise ConfigError(
            f"WINDOWING_FAILPOINT_GROUP is {quote(group)}, wanted the number of the process group to kill, 'executor' or "
            "'frozen executor'"
        )
    os.killpg(int(group), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # a worker is in another group, and must not run on
