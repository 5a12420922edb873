"""The driver in one process: clock, collectors, loops, stores."""
