"""Trident: streams of batches as a plan, and the machines of its groups; both drivers run the same ones.

streams, topology, chained              what a user writes: Stream, GroupedStream, TridentTopology
operations, grouping, stateful, windowed
                                        what a step is, as data: its fields, its mistakes, its processor
facts, rules                            what was written, and what is wrong with it
graph, grouper, partitions, planner, plan
                                        nodes -> groups, exchanges, parallelism: the plan
processors, aggregating, joining, persisting, windows
                                        what a node does with the tuples of a batch
subtopology, outlets                    one task of a group, and its way out: what drivers call
coordination                            what each task waits for in a batch, and whom it tells
evaluation                              TridentRun: the slow, obvious driver
"""

from windowing.topology.trident.aggregating import Emits
from windowing.topology.trident.builtins import (
    Count,
    Debug,
    Equals,
    FilterNull,
    FirstN,
    MapGet,
    Max,
    MaxBy,
    Min,
    MinBy,
    Negate,
    SnapshotGet,
    Sum,
    TupleCollectionGet,
)
from windowing.topology.trident.chained import ChainedAggregatorDeclarer
from windowing.topology.trident.coordination import coord_specs, targets_of
from windowing.topology.trident.evaluation import BatchInFlight, TridentRun
from windowing.topology.trident.graph import Graph, IndexedEdge, Node, PartitionNode, ProcessorNode, Source, SpoutNode
from windowing.topology.trident.grouper import GraphGrouper, Group
from windowing.topology.trident.joining import JoinType
from windowing.topology.trident.outlets import Outlet, OutletBatch
from windowing.topology.trident.partitions import BatchGlobalGrouping, IdentityGrouping, Router
from windowing.topology.trident.plan import Drpc, Exchange, GroupPlan, Phase, StatePlan, TridentPlan
from windowing.topology.trident.processors import Batch, TridentProcessor
from windowing.topology.trident.stateful import StateSpec
from windowing.topology.trident.streams import GroupedStream, Stream, TridentState, WindowedStream
from windowing.topology.trident.subtopology import Emitted, GroupBatch, Subtopology
from windowing.topology.trident.topology import TridentTopology

__all__ = [
    "Batch",
    "BatchGlobalGrouping",
    "BatchInFlight",
    "ChainedAggregatorDeclarer",
    "Count",
    "Debug",
    "Drpc",
    "Emits",
    "Emitted",
    "Equals",
    "Exchange",
    "FilterNull",
    "FirstN",
    "Graph",
    "GraphGrouper",
    "Group",
    "GroupBatch",
    "GroupPlan",
    "GroupedStream",
    "IdentityGrouping",
    "IndexedEdge",
    "JoinType",
    "MapGet",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "Negate",
    "Node",
    "Outlet",
    "OutletBatch",
    "PartitionNode",
    "Phase",
    "ProcessorNode",
    "Router",
    "SnapshotGet",
    "Source",
    "SpoutNode",
    "StatePlan",
    "StateSpec",
    "Stream",
    "Subtopology",
    "Sum",
    "TridentPlan",
    "TridentProcessor",
    "TridentRun",
    "TridentState",
    "TridentTopology",
    "TupleCollectionGet",
    "WindowedStream",
    "coord_specs",
    "targets_of",
]
