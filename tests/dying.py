"""Processes that are killed: a child of this one, one that kills itself at a step or an SQL statement, one that lives once."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable
from typing import Any


def in_a_child(job: Callable[[], None], after: Callable[[int], None] = lambda pid: None) -> int:
    """Run the job in a process of its own and return how that ended: 0, or minus the signal."""
    pid = os.fork()
    if pid == 0:
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
    """Return what makes a process kill itself when it is called, for the n-th time from 0; None: never."""
    left = [number]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    return step


def killed_at_statement(number: int) -> Callable[[sqlite3.Connection], None]:
    """Return what makes a process kill itself before its n-th SQL statement on a connection."""
    left = [number]

    def kill(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda db: db.set_trace_callback(kill)


def lived(job: Callable[[], None], seconds: float | None = None) -> bool:
    """Return whether the job came to its end in a process of its own, False if that was killed, by itself or after `seconds`."""

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
