"""The driver in one process: clock, collectors, loops, stores.

run_local(bolt, batches)             a windowed bolt over micro-batches of plain rows, without Spark
LocalRun(bolt)                       the same, step by step
run_topology(topology, batches)      a topology over micro-batches for its spouts
LocalCluster(topology)               the same, step by step: spouts, acks, retries, checkpoints
run_trident(topology)                a Trident topology until its spouts have ended
TridentCluster(topology)             the same, step by step: batches, commits, requests of DRPC
"""

from windowing.local.clock import Clock, SystemClock, VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.router import ClusterResult
from windowing.local.run import LateRow, LocalResult, LocalRun, run_local
from windowing.local.trident_cluster import TridentCluster, run_trident
from windowing.local.trident_tasks import DeadBatch, TridentResult
from windowing.topology.dead_letters import DeadLetter

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
