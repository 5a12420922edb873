"""A plan as data: components, decorators, groupings."""

from windowing.schema.types import Schema, declare_streams
from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.decorators import bolt_of, sliding, tumbling, windowed_bolt
from windowing.topology.user_code import BoltRunner, Collector, Emission

__all__ = [
    "BoltRunner",
    "CallStyle",
    "Collector",
    "Emission",
    "Schema",
    "WindowedBolt",
    "bolt_of",
    "declare_streams",
    "sliding",
    "tumbling",
    "windowed_bolt",
]
