"""A plan as data: components, decorators, groupings."""

from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.decorators import bolt_of, sliding, tumbling, windowed_bolt
from windowing.topology.runner import BoltRunner, Collector, Emission, Outcome
from windowing.topology.schema import Schema, declare_streams

__all__ = [
    "BoltRunner",
    "CallStyle",
    "Collector",
    "Emission",
    "Outcome",
    "Schema",
    "WindowedBolt",
    "bolt_of",
    "declare_streams",
    "sliding",
    "tumbling",
    "windowed_bolt",
]
