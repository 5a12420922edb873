"""Trident: streams of batches, whose states count every tuple exactly once.

    write a topology     TridentTopology -> Stream, GroupedStream, TridentState; JoinType, StateSpec
    try it               TridentRun, batch by batch at the prompt; `windowing.local.run_trident`; `windowing.spark.submit_trident`
    aggregators          Count, Sum, Min, Max, MinBy, MaxBy, FirstN; your own: CombinerAggregator, ReducerAggregator, Aggregator
    filters              FilterNull, Equals, Negate, Debug
    queries              MapGet, SnapshotGet, TupleCollectionGet; your own: QueryFunction
    spouts               FixedBatchSpout, RichSpout; your own: IBatchSpout, ITridentSpout, ICommitterTridentSpout,
                         IPartitionedTridentSpout, IOpaquePartitionedTridentSpout
    states               `windowing.stores.map_state`; your own: StateFactory, State, MapState, StateUpdater; updaters, TypedJson
    stores               `windowing.stores`; your own: BackingMap, with Claim, Fence, PartitionId, Reading, StateRow
    kinds                SpoutKind, StateType, Guarantee: what a spout and a state guarantee together; TransactionAttempt
    the coordinator      MasterBatchCoordinator, CoordinatorConfig, and its events and effects

Names are Storm's. The modules that run a topology (planner, processors, fence) are not public.
"""

from typing import TYPE_CHECKING

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
    RichSpout,
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
    "RichSpout",
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

_IN_STORM = {
    **dict.fromkeys(("MemoryMapState", "LRUMemoryMapState"), "map_state(MemoryStore(), 'counts') of windowing.stores"),
    "RedisMapState": "map_state(RedisStore('redis://host/0'), 'counts') of windowing.stores",
    "JdbcState": "map_state(PostgresStore('postgresql://host/db'), 'counts') of windowing.stores",
    **dict.fromkeys(
        ("LocalDRPC", "DRPCClient"), "TridentCluster(topology).ask('count_of', 'to be') of windowing.local"
    ),
    **dict.fromkeys(
        (
            "SlidingCountWindow",
            "TumblingCountWindow",
            "SlidingDurationWindow",
            "TumblingDurationWindow",
            "WindowConfig",
        ),
        "stream.sliding_window(count(9), count(3), ...) or tumbling_window(seconds(10), ...)",
    ),
    **dict.fromkeys(
        ("WindowsStoreFactory", "InMemoryWindowsStoreFactory", "HBaseWindowsStoreFactory"),
        "nothing: windows need no store of their own",
    ),
    **dict.fromkeys(("Function", "BaseFunction"), "a function of (row), or a class with execute(row, collector)"),
    **dict.fromkeys(("Filter", "BaseFilter"), "a function of (row), or a class with keep(row)"),
    **dict.fromkeys(("MapFunction", "FlatMapFunction", "Consumer", "Predicate"), "a function of (row)"),
    "BaseAggregator": "Aggregator",
    "IBackingMap": "BackingMap",
    "FirstNSorted": "FirstN(3, 'delay', reverse=True)",
    **dict.fromkeys(
        ("TridentKafkaState", "TridentKafkaStateFactory", "HdfsState", "HdfsStateFactory"),
        "stream.sink('out'), and a sink of windowing.spark in sinks=, such as KafkaSink or ParquetSink",
    ),
    "ReadOnlyState": "State",
    **dict.fromkeys(
        ("FeederBatchSpout", "FeederCommitterBatchSpout"),
        "InputSpout('word string') of windowing, and run_trident(topology, {'words': [[...], [...]]}) of windowing.local",
    ),
    **dict.fromkeys(
        ("HBaseMapState", "CassandraMapState", "MemcachedState", "RedisState", "JdbcMapState"),
        "map_state(store, 'counts') of windowing.stores, with a SqliteStore, PostgresStore, RedisStore or a BackingMap",
    ),
    "BaseQueryFunction": "QueryFunction",
    "BaseStateUpdater": "StateUpdater",
    "TridentTuple": "row[0] or row['word'] of the row that a function gets",
    **dict.fromkeys(("OpaqueValue", "TransactionalValue"), "StateRow, with the txid, the value and the one before it"),
    **{name: f"from windowing import {name}" for name in ("Fields", "InputSpout", "Values", "count", "seconds")},
    **{
        name: f"from windowing.stores import {name}" for name in ("MemoryStore", "map_state", "state_table", "store_of")
    },
    **{name: f"from windowing.local import {name}" for name in ("VirtualClock", "run_trident")},
    "submit_trident": "from windowing.spark import submit_trident",
    **dict.fromkeys(
        (
            "OpaqueTridentKafkaSpout",
            "TransactionalTridentKafkaSpout",
            "KafkaTridentSpoutOpaque",
            "KafkaTridentSpoutTransactional",
        ),
        "KafkaTridentSpoutOpaque or KafkaTridentSpoutTransactional of windowing.queues",
    ),
    **dict.fromkeys(("TridentCluster", "LocalCluster"), "from windowing.local import TridentCluster"),
}


if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept every name

    def __getattr__(name):
        if name in _IN_STORM:  # an AttributeError would lose its message in `from windowing.trident import name`
            raise ImportError(f"windowing.trident has no {name!r}; write {_IN_STORM[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
