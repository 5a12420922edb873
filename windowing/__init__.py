"""Storm's windowed bolts and topologies in Python, in one process or on Spark: windows that lose no tuple.

Start with `windowed_bolt`, `tumbling` or `sliding`, and with `TopologyBuilder` for several bolts. `windowing.runtime` runs
them in this process, `windowing.spark` on streaming DataFrames.
"""

from windowing.acking.acker import Acker
from windowing.acking.rotating_map import RotatingMap
from windowing.core import aggregate
from windowing.core.config import Lateness, OnError, Semantics, SkippedTuplesWarning, WindowConfig
from windowing.core.events import Activation, Effect, Event, Expired, Late, LateReason, WaterMarkEvent
from windowing.core.eviction import (
    Action,
    CountEvictionPolicy,
    EvictionContext,
    EvictionPolicy,
    TimeEvictionPolicy,
    WatermarkCountEvictionPolicy,
    WatermarkTimeEvictionPolicy,
)
from windowing.core.executor import WindowedBoltExecutor
from windowing.core.manager import StatefulWindowManager, WindowManager
from windowing.core.measures import Count, Duration, count, days, hours, millis, minutes, seconds
from windowing.core.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from windowing.core.watermark import WaterMarkEventGenerator
from windowing.core.windows import TupleWindow
from windowing.errors import FailedException, ReportedFailedException, WindowingError
from windowing.topology.bolts import WindowedBolt
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, InputSpout, Spout, StatefulBolt, StatefulWindowedBolt
from windowing.topology.decorators import bolt_of, sliding, tumbling, windowed_bolt
from windowing.topology.marking import bolt, spout
from windowing.topology.plan import Topology, TopologyError
from windowing.topology.tuples import Fields, Tuple, Values, is_tick

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
