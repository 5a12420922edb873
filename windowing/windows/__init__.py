"""Windows as state machines: pure, without clock, thread or I/O."""
