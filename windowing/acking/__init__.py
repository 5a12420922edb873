"""Reliability as state machines: who was acked, who failed, who is asked again; pure, without clock, chance or I/O."""
