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
    TopologyContext,
)
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

if TYPE_CHECKING:
    __version__: str
else:  # hidden from type checkers, which would otherwise accept every name
    _absent = getattr_of(__name__, instead={"State": "KeyValueState; Trident's is in windowing.trident"})

    def __getattr__(name):
        """Return the version, which is looked up when it is asked for; raise for any other name."""
        return library_version() if name == "__version__" else _absent(name)
