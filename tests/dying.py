"""Processes that end early: run a job in a child process, and kill it at a step, at an SQL statement, or after a time; or end it by
SIGTERM, or by a full disk.
"""

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

from windowing.errors import WindowingError


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


TERMINATED, FULL = 3, 4
"""The exit codes of `terminable` and `on_a_full_disk`."""


class Terminated(BaseException):
    """What a handler of SIGTERM raises; SystemExit and KeyboardInterrupt are the same to a job."""


def terminable(job: Callable[[], None]) -> Callable[[], None]:
    """Return a job that SIGTERM ends by an exception, at any moment: its `with` blocks are left, its files are closed."""

    def raising(*_: Any) -> None:
        raise Terminated

    def run() -> None:
        try:
            signal.signal(signal.SIGTERM, raising)
            job()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        except Terminated:
            os._exit(TERMINATED)

    return run


def on_a_full_disk(job: Callable[[], None], more: int) -> Callable[[], None]:
    """Return a job in which no SQLite file can grow by more than `more` pages after it was opened. It must end, or raise a
    WindowingError.
    """

    def limit(db: sqlite3.Connection) -> None:
        if db.execute("PRAGMA database_list").fetchone()[2]:  # none in memory
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages + more}")

    def run() -> None:
        at_every_connection(limit)
        try:
            job()
        except WindowingError:
            os._exit(FULL)

    return run


def at_every_connection(do: Callable[[sqlite3.Connection], object]) -> None:
    """Call a function with each connection to SQLite that this process opens from now on."""
    connect = sqlite3.connect

    def watched(*given: Any, **options: Any) -> sqlite3.Connection:
        opened = connect(*given, **options)
        do(opened)
        return opened

    sqlite3.connect = watched  # type: ignore[assignment]


def ended(job: Callable[[], None], seconds: float | None = None, by: signal.Signals = signal.SIGKILL) -> int:
    """Run the job in a child process, which gets the signal after `seconds`; return its exit code."""

    def wait(pid: int) -> None:
        until = time.monotonic() + (math.inf if seconds is None else seconds)
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > until:
                os.kill(pid, by)
                return
            time.sleep(0.005)

    return in_a_child(job, wait)


def lived(job: Callable[[], None], seconds: float | None = None) -> bool:
    """Run the job in a child process; return False if that was killed, by itself or after `seconds`, and True if the job ended."""
    code = ended(job, seconds)
    assert code in (0, -signal.SIGKILL), code
    return code == 0
