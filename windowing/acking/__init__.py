"""Reliability as state machines: acks, fails and retries of tuples; pure, without clock, chance or I/O."""
