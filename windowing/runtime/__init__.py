"""The driver in one process: clock, collectors, loops, stores.

run_local(bolt, batches)             a windowed bolt over micro-batches of plain rows, without Spark
LocalRun(bolt)                       the same, step by step
run_topology(topology, batches)      a topology over micro-batches for its spouts
LocalCluster(topology)               the same, step by step: spouts, acks, retries, checkpoints
"""

from windowing.runtime.clock import Clock, SystemClock, VirtualClock
from windowing.runtime.cluster import LocalCluster, run_topology
from windowing.runtime.hub import ClusterResult, DeadMessage, DeadWindow
from windowing.runtime.local import DeadLetter, LateRow, LocalResult, LocalRun, run_local

__all__ = [
    "Clock",
    "ClusterResult",
    "DeadLetter",
    "DeadMessage",
    "DeadWindow",
    "LateRow",
    "LocalCluster",
    "LocalResult",
    "LocalRun",
    "SystemClock",
    "VirtualClock",
    "run_local",
    "run_topology",
]
