"""The driver in one process: windowed bolts, topologies and Trident, without Spark.

run_local(bolt, batches)             a windowed bolt over micro-batches of plain rows -> LocalResult
LocalRun(bolt)                       the same, step by step
run_topology(topology, batches)      a topology over micro-batches for its spouts -> ClusterResult
LocalCluster(topology)               the same, step by step: spouts, acks, retries, checkpoints
run_trident(topology)                a Trident topology until its spouts have ended -> TridentResult
TridentCluster(topology)             the same, step by step: batches, commits, requests of DRPC
explain(bolt, rows)                  the windows of some rows -> TimeLine: text, SVG, PNG
SystemClock, VirtualClock            the clock of the machine, and one that a test advances
to_svg(topology), to_png(topology)   a drawing of a topology (PNG: extra `draw`)
LateRow, DeadLetter, DeadBatch       late and failed rows in the results
"""

from typing import TYPE_CHECKING

from windowing.local.clock import Clock, SystemClock, VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.local.drawing import to_png, to_svg
from windowing.local.router import ClusterResult
from windowing.local.run import LateRow, LocalResult, LocalRun, run_local
from windowing.local.time_line import TimeLine, explain
from windowing.local.trident_cluster import TridentCluster, run_trident
from windowing.local.trident_tasks import DeadBatch, TridentResult
from windowing.optional import getattr_of
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
    "TimeLine",
    "TridentCluster",
    "TridentResult",
    "VirtualClock",
    "explain",
    "run_local",
    "run_topology",
    "run_trident",
    "to_png",
    "to_svg",
]

if not TYPE_CHECKING:
    __getattr__ = getattr_of(__name__)
