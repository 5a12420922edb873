"""The driver in one process: clock, collectors, loops, stores.

run_local(bolt, batches)     a windowed bolt over micro-batches of plain rows, without Spark
LocalRun(bolt)               the same, step by step
"""

from windowing.runtime.clock import Clock, SystemClock, VirtualClock
from windowing.runtime.local import DeadLetter, LateRow, LocalResult, LocalRun, run_local

__all__ = [
    "Clock",
    "DeadLetter",
    "LateRow",
    "LocalResult",
    "LocalRun",
    "SystemClock",
    "VirtualClock",
    "run_local",
]
