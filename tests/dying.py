"""Processes that are killed: run a job in a child process, and kill it at a step, at an SQL statement, or after a time."""

from __future__ import annotations

import gc
import math
import os
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable
from typing import Any


def in_a_child(job: Callable[[], None], after: Callable[[int], None] = lambda pid: None) -> int:
    """Run the job in a child process and return its exit code: 0, or minus the signal.

    The child collects no garbage of the parent: to free a Kafka consumer there ends the process, because a fork copies no threads.
    """
    pid = os.fork()
    if pid == 0:
        gc.freeze()
        code = 1
        try:
            job()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    after(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at_step(number: int | None) -> Callable[[], None]:
    """Return a function that kills the process at its n-th call, counted from 0; None: never."""
    left = [number]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    return step


def killed_at_statement(number: int) -> Callable[[sqlite3.Connection], None]:
    """Return a function that makes a connection kill the process before its n-th SQL statement."""
    left = [number]

    def kill(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda db: db.set_trace_callback(kill)


def lived(job: Callable[[], None], seconds: float | None = None) -> bool:
    """Run the job in a child process; return False if that was killed, by itself or after `seconds`, and True if the job ended."""

    def wait(pid: int) -> None:
        until = time.monotonic() + (math.inf if seconds is None else seconds)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.005)

    code = in_a_child(job, wait)
    assert code in (0, -signal.SIGKILL), code
    return code == 0
