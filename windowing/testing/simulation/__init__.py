"""The parts of the simulator: scenarios, the world, its tasks, its stores, the checks. The entry points are in `..simulator`."""
