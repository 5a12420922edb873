"""Storm's windowed bolts and topologies in Python, in one process or on Spark: windows that lose no tuple.

The public API is this package and the packages below; nothing deeper is public.

    windowing            windows, bolts, topologies, the acker, errors (this package)
    windowing.local      the driver in one process: run_local, LocalCluster, TridentCluster
    windowing.spark      the driver on Spark: windowed, submit, submit_trident (extra `spark`)
    windowing.trident    Trident: TridentTopology, its operations, spouts, states
    windowing.queues     partitioned sources and queues, for both drivers: PartitionedSpout, SqliteQueue
    windowing.stores     stores of Trident's states: memory, SQLite, PostgreSQL, Redis
    windowing.monitoring metrics for Prometheus and OpenTelemetry
    windowing.testing    helpers for your own tests: check_counts, replay; strategies, simulator

In this package:

    declare windows      windowed_bolt, tumbling, sliding; count, seconds, minutes ...; aggregate (a module: `aggregate.sum("n")`)
    declare components   bolt, spout; Bolt, BasicBolt, StatefulBolt, Spout, InputSpout; the collectors; TopologyBuilder -> Topology
    show the plan        execution_plan(topology or bolt) -> ExecutionPlan: stages and exchanges, as text or drawn
    states of bolts      KeyValueState; its stores: StateProvider, StateStore
    rows                 Schema, Tuple, Fields, Values, is_tick
    errors               WindowingError and the errors that a program may want to catch; all errors are in `windowing.errors`
    windows by hand      WindowConfig, WindowManager, WindowedBoltExecutor; their effects: Activation, Expired, Late
    Storm's policies     EvictionPolicy, TriggerPolicy and their kinds; WaterMarkEventGenerator
    the acker            Acker -> Acked, Failed; RotatingMap
    the version          __version__, as installed
    columnar             a module that is loaded on demand (pyarrow, numpy): `from windowing import columnar`
"""

from typing import TYPE_CHECKING

from windowing.acking.acker import Acked, Acker, Failed
from windowing.acking.timeouts import RotatingMap
from windowing.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    DrainedCheckpointError,
    FailedException,
    GroupingError,
    InvalidTimestampError,
    QueryStoppedError,
    ReportedFailedException,
    SessionError,
    SinkError,
    SourceError,
    StateError,
    StoreUnavailableError,
    SupersededError,
    WindowingError,
    WorkerLostError,
)
from windowing.execution.plan import ExecutionPlan, execution_plan
from windowing.execution.support import LostFieldsWarning
from windowing.optional import getattr_of, library_version
from windowing.schema.rows import RowError
from windowing.schema.tuples import Fields, Tuple, Values, is_tick
from windowing.schema.types import Schema
from windowing.schema.values import InvalidTimestampWarning
from windowing.topology.bolts import WindowedBolt
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    InputSpout,
    OutputCollector,
    Spout,
    SpoutOutputCollector,
    StatefulBolt,
    StatefulWindowedBolt,
)
from windowing.topology.components import TaskContext as TopologyContext
from windowing.topology.decorators import bolt, bolt_of, sliding, spout, tumbling, windowed_bolt
from windowing.topology.plan import Topology, TopologyError
from windowing.topology.state import KeyValueState, StateProvider, StateStore
from windowing.windows import aggregate
from windowing.windows.config import Lateness, OnError, Semantics, SkippedTuplesWarning, WindowConfig
from windowing.windows.events import Activation, Effect, Event, Expired, Late, LateReason, TupleWindow, WaterMarkEvent
from windowing.windows.eviction import (
    Action,
    CountEvictionPolicy,
    EvictionContext,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.windows.executor import WindowedBoltExecutor
from windowing.windows.manager import StatefulWindowManager, WindowManager
from windowing.windows.measures import Count, Duration, count, days, hours, millis, minutes, seconds
from windowing.windows.persistent import PersistentWindowedBoltExecutor
from windowing.windows.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from windowing.windows.watermark import WaterMarkEventGenerator

__all__ = [
    "Acked",
    "Acker",
    "Action",
    "Activation",
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "BoltError",
    "CheckpointError",
    "ConfigError",
    "CorruptStateError",
    "Count",
    "CountEvictionPolicy",
    "CountTriggerPolicy",
    "DefinitionChangedError",
    "DrainedCheckpointError",
    "Duration",
    "Effect",
    "Event",
    "EvictionContext",
    "EvictionPolicy",
    "ExecutionPlan",
    "Expired",
    "Failed",
    "FailedException",
    "Fields",
    "GroupingError",
    "InputSpout",
    "InvalidTimestampError",
    "InvalidTimestampWarning",
    "KeyValueState",
    "Late",
    "LateReason",
    "Lateness",
    "LostFieldsWarning",
    "OnError",
    "OutputCollector",
    "PersistentWindowedBoltExecutor",
    "QueryStoppedError",
    "ReportedFailedException",
    "RotatingMap",
    "RowError",
    "Schema",
    "Semantics",
    "SessionError",
    "SinkError",
    "SkippedTuplesWarning",
    "SourceError",
    "Spout",
    "SpoutOutputCollector",
    "StateError",
    "StateProvider",
    "StateStore",
    "StatefulBolt",
    "StatefulWindowManager",
    "StatefulWindowedBolt",
    "StoreUnavailableError",
    "SupersededError",
    "TimeEvictionPolicy",
    "TimeTriggerPolicy",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "TriggerPolicy",
    "Tuple",
    "TupleWindow",
    "Values",
    "WaterMarkEvent",
    "WaterMarkEventGenerator",
    "WatermarkCountEvictionPolicy",
    "WatermarkCountTriggerPolicy",
    "WatermarkTimeEvictionPolicy",
    "WatermarkTimeTriggerPolicy",
    "WindowConfig",
    "WindowManager",
    "WindowedBolt",
    "WindowedBoltExecutor",
    "WindowingError",
    "WorkerLostError",
    "aggregate",
    "bolt",
    "bolt_of",
    "count",
    "days",
    "execution_plan",
    "hours",
    "is_tick",
    "millis",
    "minutes",
    "seconds",
    "sliding",
    "spout",
    "tumbling",
    "windowed_bolt",
]

_IN_STORM = {
    **dict.fromkeys(("BaseWindowedBolt", "IWindowedBolt"), "@windowed_bolt, @tumbling or @sliding"),
    **dict.fromkeys(
        ("BaseStatefulWindowedBolt", "IStatefulWindowedBolt"), "StatefulWindowedBolt, with @sliding or @tumbling"
    ),
    **dict.fromkeys(("BaseRichSpout", "IRichSpout", "ISpout"), "Spout, with @spout"),
    **dict.fromkeys(("BaseRichBolt", "IRichBolt", "IBolt"), "Bolt, with @bolt"),
    **dict.fromkeys(("BaseBasicBolt", "IBasicBolt"), "BasicBolt, with @bolt"),
    **dict.fromkeys(("BaseStatefulBolt", "IStatefulBolt"), "StatefulBolt, with @bolt"),
    "InMemoryKeyValueState": "KeyValueState, which init_state gets",
    **dict.fromkeys(
        ("InMemoryKeyValueStateProvider", "RedisKeyValueStateProvider"),
        "LocalCluster(topology, state_path=...), or a StateProvider of your own in states=; on Spark the checkpoint has the states",
    ),
    **dict.fromkeys(
        ("CheckpointSpout", "CheckpointTupleForwarder"),
        "nothing: a cluster takes its checkpoints itself, every topology.state.checkpoint.interval.ms",
    ),
    **dict.fromkeys(("WorkerTopologyContext", "GeneralTopologyContext"), "TopologyContext, which prepare and open get"),
    **dict.fromkeys(("ITuple", "TupleImpl", "MessageId"), "Tuple, and tuple.get_message_id()"),
    **dict.fromkeys(("Window", "TupleWindowImpl"), "TupleWindow"),
    "WindowedOutputCollector": "collector as the second argument of execute",
    **dict.fromkeys(
        ("BoltDeclarer", "SpoutDeclarer", "InputDeclarer"), "what set_bolt and set_spout of a TopologyBuilder return"
    ),
    "ILocalCluster": "from windowing.local import LocalCluster",
    "StormSubmitter": "from windowing.spark import submit",
    "Config": "TopologyBuilder(name).configure({...})",
    "StormTopology": "Topology",
    **dict.fromkeys(("InvalidTopologyException", "WrongTopologyException"), "TopologyError"),
    "BaseTickTupleAwareRichBolt": "Bolt, with @bolt, and is_tick(tuple)",
    **dict.fromkeys(
        ("Flux", "FluxBuilder", "FluxShellBolt"),
        "a Python function that returns TopologyBuilder(name).configure({...}).build()",
    ),
    "GlobalStreamId": "tuple.source_component and tuple.source_stream",
    "TupleUtils": "is_tick",
    "TimeUnit": "seconds(10), minutes(5) or millis(100)",
    "Utils": "collector.sleep(millis(100)) in a spout, in place of Utils.sleep(100)",
    "OutputFieldsDeclarer": 'output="word string, n long" of the decorator',
    **dict.fromkeys(
        ("TimestampExtractor", "TupleFieldTimestampExtractor"), "timestamp= of the bolt: a field or a function"
    ),
    **dict.fromkeys(
        ("ShellBolt", "ShellSpout"), "@bolt or @spout: components are Python, and call subprocess for another program"
    ),
    "JoinBolt": "@tumbling(..., timestamp=...) that reads both streams, and join the rows of its window by row.source_component",
    "DefaultEvictionContext": "EvictionContext",
    "TriggerHandler": "TriggerPolicy: it returns which windows are due, as a list of EvictionContext",
    "CustomStreamGrouping": "custom_grouping(component, function) with a function of (values, tasks)",
    **dict.fromkeys(
        ("BaseTaskHook", "ITaskHook"), "code of your own in prepare and execute; there are no hooks of tasks"
    ),
    **dict.fromkeys(
        ("IMetric", "CountMetric", "MultiCountMetric", "ReducedMetric", "IMetricsConsumer", "LoggingMetricsConsumer"),
        "a counter of the client of your exporter, in prepare; what tasks count is in windowing.monitoring, as RunMetrics",
    ),
    **dict.fromkeys(("KafkaSpout", "KafkaSpoutConfig"), "from windowing.spark import kafka"),
    **dict.fromkeys(
        ("JmsSpout", "KinesisSpout", "EventHubSpout", "PulsarSpout", "MqttSpout"),
        "a subclass of MessageSource, in Spooled(...), or of PartitionedSpout; all are in windowing.queues",
    ),
    **dict.fromkeys(
        ("RedisLookupBolt", "JdbcLookupBolt", "AbstractRedisBolt", "AbstractJdbcBolt"),
        "a BasicBolt of your own that connects in prepare",
    ),
    **dict.fromkeys(
        ("LocalDRPC", "DRPCClient"), "TridentCluster(topology).ask('count_of', 'to be') of windowing.local"
    ),
    **dict.fromkeys(
        ("LinearDRPCTopologyBuilder", "DRPCSpout", "ReturnResults", "CoordinatedBolt", "BaseBatchBolt", "IBatchBolt"),
        "new_drpc_stream(function) of a windowing.trident.TridentTopology, which a TridentCluster answers in one process",
    ),
    **dict.fromkeys(
        ("TransactionalTopologyBuilder", "BaseTransactionalBolt", "ICommitter"),
        "TridentTopology of windowing.trident, whose states count each tuple once",
    ),
    **dict.fromkeys(
        ("Testing", "MockedSources", "CompleteTopologyParam"),
        "run_topology(topology, {'words': [[row, row]]}) of windowing.local: the rows replace the spout",
    ),
    "StreamBuilder": "TopologyBuilder, or TridentTopology of windowing.trident, whose streams have map, filter, join and window",
    "ConfigurableTopology": "a function that returns TopologyBuilder(name).configure({...}), and call build()",
    "TimeCacheMap": "RotatingMap, and call rotate() at each tick: it returns what has expired",
    "Constants": "is_tick(tuple) for ticks",
    **dict.fromkeys(
        ("TestWordSpout", "FeederSpout", "FixedTupleSpout", "FeederBatchSpout", "FeederCommitterBatchSpout"),
        "InputSpout('word string'), and give its rows to run_topology or run_trident of windowing.local",
    ),
    **dict.fromkeys(
        (
            *("MemoryMapState", "LRUMemoryMapState", "RedisMapState", "RedisState", "JdbcState", "JdbcMapState"),
            *("HBaseMapState", "CassandraMapState", "MemcachedState"),
        ),
        "map_state(store, 'counts') of windowing.stores, with a MemoryStore, SqliteStore, PostgresStore or RedisStore",
    ),
    **dict.fromkeys(
        (
            *("SlidingCountWindow", "TumblingCountWindow", "SlidingDurationWindow", "TumblingDurationWindow"),
            "BaseWindowConfig",
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
    **dict.fromkeys(("MultiReducer", "GroupedMultiReducer"), "topology.join([a, b], ...) or topology.merge(a, b)"),
    "JoinOutFieldsMode": "nothing: a joined row has the key once, then the other fields of each stream (COMPACT)",
    "Assembly": "stream.apply_assembly(function) with a function of (stream)",
    "TridentOperationContext": "def prepare(self, context): context.task_index and context.tasks",
    "FirstNSorted": "FirstN(3, 'delay', reverse=True) of windowing.trident",
    **dict.fromkeys(
        ("TridentKafkaState", "TridentKafkaStateFactory", "HdfsState", "HdfsStateFactory"),
        "stream.sink('out'), and a sink of windowing.spark in sinks=, such as KafkaSink or ParquetSink",
    ),
    **{
        name: f"from windowing.trident import {here}"
        for name, here in {
            "BaseAggregator": "Aggregator",
            "BaseQueryFunction": "QueryFunction",
            "BaseStateUpdater": "StateUpdater",
            "IBackingMap": "BackingMap",
            "ReadOnlyState": "State",
        }.items()
    },
    "TridentTuple": "row[0] or row['word'] of the row that a function gets",
    **dict.fromkeys(("OpaqueValue", "TransactionalValue"), "StateRow, with the txid, the value and the one before it"),
    **dict.fromkeys(
        ("OpaqueTridentKafkaSpout", "TransactionalTridentKafkaSpout"),
        "KafkaTridentSpoutOpaque or KafkaTridentSpoutTransactional of windowing.queues",
    ),
    **dict.fromkeys(
        (
            *("JdbcInsertBolt", "HdfsBolt", "KafkaBolt", "RedisStoreBolt", "HBaseBolt", "CassandraWriterBolt"),
            *("MongoInsertBolt", "EsIndexBolt", "SolrUpdateBolt"),
        ),
        "a sink of windowing.spark in sinks=, such as PostgresSink, ParquetSink or KafkaSink; in one process a bolt of your own",
    ),
    **dict.fromkeys(
        ("PartialKeyGrouping", "ShuffleGrouping", "FieldsGrouper", "LoadAwareShuffleGrouping"),
        "set_bolt(id, bolt).partial_key_grouping(component, fields), or shuffle_grouping(component)",
    ),
}

_ELSEWHERE = _IN_STORM | {
    "session_window": "@windowed_bolt(trigger=..., eviction=...); the manual has sessions in 'Custom policies'",
    "window": "@tumbling(hours(1), timestamp='at') or @sliding",
    "TaskContext": "TopologyContext",
}
"""What to write in place of a name that no package has."""


if TYPE_CHECKING:
    __version__: str
else:  # hidden from type checkers, which would otherwise accept every name
    _absent = getattr_of(__name__, instead={"State": "KeyValueState; Trident's is in windowing.trident"})

    def __getattr__(name):
        """Return the version, which is looked up when it is asked for; raise for any other name."""
        return library_version() if name == "__version__" else _absent(name)
