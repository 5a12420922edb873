"""The parts of the simulator: scenarios, the world, its tasks, its stores, what is checked. The front is `..simulator`."""
