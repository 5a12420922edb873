"""Storm's windowed bolts and topologies in Python, in one process or on Spark: windows that lose no tuple.

Start with `windowed_bolt`, `tumbling` or `sliding`, and with `TopologyBuilder` for several bolts. `windowing.local` runs
them in this process, `windowing.spark` on streaming DataFrames.
"""

from windowing.acking.acker import Acker
from windowing.acking.timeouts import RotatingMap
from windowing.errors import FailedException, ReportedFailedException, WindowingError
from windowing.schema.tuples import Fields, Tuple, Values, is_tick
from windowing.topology.bolts import WindowedBolt
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, InputSpout, Spout, StatefulBolt, StatefulWindowedBolt
from windowing.topology.decorators import bolt, bolt_of, sliding, spout, tumbling, windowed_bolt
from windowing.topology.plan import Topology, TopologyError
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
from windowing.windows.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from windowing.windows.watermark import WaterMarkEventGenerator

__all__ = [
    "Acker",
    "Action",
    "Activation",
    "BasicBolt",
    "Bolt",
    "Count",
    "CountEvictionPolicy",
    "CountTriggerPolicy",
    "Duration",
    "Effect",
    "Event",
    "EvictionContext",
    "EvictionPolicy",
    "Expired",
    "FailedException",
    "Fields",
    "InputSpout",
    "Late",
    "LateReason",
    "Lateness",
    "OnError",
    "ReportedFailedException",
    "RotatingMap",
    "Semantics",
    "SkippedTuplesWarning",
    "Spout",
    "StatefulBolt",
    "StatefulWindowManager",
    "StatefulWindowedBolt",
    "TimeEvictionPolicy",
    "TimeTriggerPolicy",
    "Topology",
    "TopologyBuilder",
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
    "aggregate",
    "bolt",
    "bolt_of",
    "count",
    "days",
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
