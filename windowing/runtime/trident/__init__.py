"""Trident topologies in one process: the whole protocol of batches on LocalCluster's loop.

run_trident(topology)        until the spouts have ended; the rows of its sinks and what its states hold
TridentCluster(topology)     the same, step by step; requests of DRPC; pausing; states to look at
"""

from windowing.runtime.trident.cluster import TridentCluster, run_trident
from windowing.runtime.trident.hub import DeadBatch, TridentResult

__all__ = ["DeadBatch", "TridentCluster", "TridentResult", "run_trident"]
