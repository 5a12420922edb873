"""Trident: streams of batches, whose states count every tuple exactly once.

    write a topology     TridentTopology -> Stream, GroupedStream, TridentState; JoinType, StateSpec
    try it               TridentRun, batch by batch at the prompt; `windowing.local.run_trident`; `windowing.spark.submit_trident`
    aggregators          Count, Sum, Min, Max, MinBy, MaxBy, FirstN; your own: CombinerAggregator, ReducerAggregator, Aggregator
    filters              FilterNull, Equals, Negate, Debug
    queries              MapGet, SnapshotGet, TupleCollectionGet; your own: QueryFunction
    spouts               FixedBatchSpout; your own: `windowing.Spout`, IBatchSpout, ITridentSpout,
                         ICommitterTridentSpout, IPartitionedTridentSpout, IOpaquePartitionedTridentSpout
    states               `windowing.stores.map_state`; your own: StateFactory, State, MapState, StateUpdater; updaters, TypedJson
    stores               `windowing.stores`; your own: BackingMap, with Claim, Fence, PartitionId, Reading, StateRow
    kinds                SpoutKind, StateType, Guarantee: what a spout and a state guarantee together; TransactionAttempt
    the coordinator      MasterBatchCoordinator, CoordinatorConfig, RetryPolicy, and its events and effects

Names are Storm's. The modules that run a topology (planner, processors, fence) are not public.
"""

from typing import TYPE_CHECKING

from windowing.acking.pending import RetryPolicy
from windowing.optional import getattr_of
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
from windowing.trident.coordinator import (
    CoordinatorConfig,
    CoordinatorStream,
    MasterBatchCoordinator,
    OnFailure,
    Readiness,
)
from windowing.trident.fence import BackingMap, Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import Guarantee, SpoutKind, StateType, TransactionAttempt, check_guarantee
from windowing.trident.maps import NonTransactionalMap, OpaqueMap, SnapshottableMap, TransactionalMap
from windowing.trident.operations import JoinType
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import (
    BatchCoordinator,
    CommitterEmitter,
    Emitter,
    FixedBatchSpout,
    IBatchSpout,
    ICommitterTridentSpout,
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    ITridentSpout,
    OpaquePartitionedEmitter,
    PartitionedCoordinator,
    PartitionedEmitter,
    SpoutContext,
)
from windowing.trident.state_operations import StateSpec
from windowing.trident.states import (
    Aggregator,
    CombinerAggregator,
    CombinerValueUpdater,
    MapState,
    QueryFunction,
    ReadOnlyMapState,
    ReadOnlySnapshottable,
    ReducerAggregator,
    ReducerValueUpdater,
    ReplaceUpdater,
    Snapshottable,
    State,
    StateCodec,
    StateFactory,
    StateUpdater,
    TridentCollector,
    TypedJson,
    ValueUpdater,
)
from windowing.trident.streams import (
    ChainedAggregatorDeclarer,
    GroupedStream,
    Stream,
    TridentState,
    TridentTopology,
    WindowOutput,
)
from windowing.trident.subtopology import TridentRun

__all__ = [
    "Aggregator",
    "BackingMap",
    "BatchCoordinator",
    "ChainedAggregatorDeclarer",
    "Claim",
    "CombinerAggregator",
    "CombinerValueUpdater",
    "CommitterEmitter",
    "CoordinatorConfig",
    "CoordinatorStream",
    "Count",
    "Debug",
    "Emitter",
    "Equals",
    "Fence",
    "FilterNull",
    "FirstN",
    "FixedBatchSpout",
    "GroupedStream",
    "Guarantee",
    "IBatchSpout",
    "ICommitterTridentSpout",
    "IOpaquePartitionedTridentSpout",
    "IPartitionedTridentSpout",
    "ITridentSpout",
    "JoinType",
    "MapGet",
    "MapState",
    "MasterBatchCoordinator",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "Negate",
    "NonTransactionalMap",
    "OnFailure",
    "OpaqueMap",
    "OpaquePartitionedEmitter",
    "PartitionId",
    "PartitionedCoordinator",
    "PartitionedEmitter",
    "QueryFunction",
    "ReadOnlyMapState",
    "ReadOnlySnapshottable",
    "Readiness",
    "Reading",
    "ReducerAggregator",
    "ReducerValueUpdater",
    "ReplaceUpdater",
    "RetryPolicy",
    "SnapshotGet",
    "Snapshottable",
    "SnapshottableMap",
    "SpoutContext",
    "SpoutKind",
    "State",
    "StateCodec",
    "StateFactory",
    "StateRow",
    "StateSpec",
    "StateType",
    "StateUpdater",
    "Stream",
    "Sum",
    "TransactionAttempt",
    "TransactionalMap",
    "TridentCollector",
    "TridentPlan",
    "TridentRun",
    "TridentState",
    "TridentTopology",
    "TupleCollectionGet",
    "TypedJson",
    "ValueUpdater",
    "WindowOutput",
    "check_guarantee",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept every name
    __getattr__ = getattr_of(
        __name__,
        instead={
            "LocalCluster": "from windowing.local import TridentCluster",
            "WindowConfig": "stream.sliding_window(count(9), count(3), ...) or tumbling_window(seconds(10), ...)",
        },
    )
