"""Processes that are killed: a child of this one, one that kills itself at an SQL statement, a module that lives once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def in_a_child(job: Callable[[], None], after: Callable[[int], None] = lambda pid: None) -> int:
    """Run the job in a process of its own and return how that ended: 0, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    after(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at_statement(number: int) -> Callable[[sqlite3.Connection], None]:
    """Return what makes a process kill itself before its n-th SQL statement on a connection."""
    left = [number]

    def kill(_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda db: db.set_trace_callback(kill)


def lived(module: str, *arguments: str, seconds: float | None = None) -> bool:
    """Run a module once; return whether the process came to its end, False if it was killed, by itself or after `seconds`."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        _, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode in (0, -signal.SIGKILL), complaint
    return process.returncode == 0
