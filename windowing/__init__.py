"""Storm's windowed bolts in Python, in one process or on Spark: windows that lose no tuple.

Start with `windowed_bolt`, `tumbling` or `sliding`; run a bolt on a streaming DataFrame with `windowing.spark`.
"""

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
from windowing.errors import WindowingError
from windowing.topology.bolts import WindowedBolt
from windowing.topology.decorators import bolt_of, sliding, tumbling, windowed_bolt

__all__ = [
    "Action",
    "Activation",
    "Count",
    "CountEvictionPolicy",
    "CountTriggerPolicy",
    "Duration",
    "Effect",
    "Event",
    "EvictionContext",
    "EvictionPolicy",
    "Expired",
    "Late",
    "LateReason",
    "Lateness",
    "OnError",
    "Semantics",
    "SkippedTuplesWarning",
    "StatefulWindowManager",
    "TimeEvictionPolicy",
    "TimeTriggerPolicy",
    "TriggerPolicy",
    "TupleWindow",
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
    "bolt_of",
    "count",
    "days",
    "hours",
    "millis",
    "minutes",
    "seconds",
    "sliding",
    "tumbling",
    "windowed_bolt",
]
