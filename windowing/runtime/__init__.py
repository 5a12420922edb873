"""The driver in one process: clock, collectors, loops, stores.

run_local(bolt, batches)             a windowed bolt over micro-batches of plain rows, without Spark
LocalRun(bolt)                       the same, step by step
run_topology(topology, batches)      a topology over micro-batches for its spouts
LocalCluster(topology)               the same, step by step: spouts, acks, retries, checkpoints
run_trident(topology)                a Trident topology until its spouts have ended
TridentCluster(topology)             the same, step by step: batches, commits, requests of DRPC
"""

from windowing.runtime.clock import Clock, SystemClock, VirtualClock
from windowing.runtime.cluster import LocalCluster, run_topology
from windowing.runtime.hub import ClusterResult
from windowing.runtime.local import LateRow, LocalResult, LocalRun, run_local
from windowing.runtime.trident import DeadBatch, TridentCluster, TridentResult, run_trident
from windowing.topology.letters import DeadLetter

__all__ = [
    "Clock",
    "ClusterResult",
    "DeadBatch",
    "DeadLetter",
    "LateRow",
    "LocalCluster",
    "LocalResult",
    "LocalRun",
    "SystemClock",
    "TridentCluster",
    "TridentResult",
    "VirtualClock",
    "run_local",
    "run_topology",
    "run_trident",
]
