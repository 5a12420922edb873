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

from windowing.trident.builtins import (
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
from windowing.trident.fields import BatchGlobalGrouping, IdentityGrouping, PartitionRouter
from windowing.trident.graph import (
    Graph,
    GraphGrouper,
    Group,
    IndexedEdge,
    Node,
    PartitionNode,
    ProcessorNode,
    SpoutNode,
    StreamSource,
)
from windowing.trident.operations import JoinType
from windowing.trident.plan import Drpc, Exchange, GroupPlan, Phase, StatePlan, TridentPlan, coord_specs, targets_of
from windowing.trident.processors import Emits, ProcessorContext, TridentProcessor
from windowing.trident.state_operations import StateSpec
from windowing.trident.streams import (
    ChainedAggregatorDeclarer,
    GroupedStream,
    Stream,
    TridentState,
    TridentTopology,
    WindowOutput,
)
from windowing.trident.subtopology import (
    BatchInFlight,
    ExchangeWriter,
    GroupBatch,
    GroupOutput,
    OutletBatch,
    Subtopology,
    TridentRun,
)

__all__ = [
    "BatchGlobalGrouping",
    "BatchInFlight",
    "ChainedAggregatorDeclarer",
    "Count",
    "Debug",
    "Drpc",
    "Emits",
    "Equals",
    "Exchange",
    "ExchangeWriter",
    "FilterNull",
    "FirstN",
    "Graph",
    "GraphGrouper",
    "Group",
    "GroupBatch",
    "GroupOutput",
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
    "OutletBatch",
    "PartitionNode",
    "PartitionRouter",
    "Phase",
    "ProcessorContext",
    "ProcessorNode",
    "SnapshotGet",
    "SpoutNode",
    "StatePlan",
    "StateSpec",
    "Stream",
    "StreamSource",
    "Subtopology",
    "Sum",
    "TridentPlan",
    "TridentProcessor",
    "TridentRun",
    "TridentState",
    "TridentTopology",
    "TupleCollectionGet",
    "WindowOutput",
    "coord_specs",
    "targets_of",
]
