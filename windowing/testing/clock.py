"""VirtualClock, for tests of bolts on processing time; it is the one of `windowing.runtime.clock`."""

from windowing.runtime.clock import VirtualClock

__all__ = ["VirtualClock"]
