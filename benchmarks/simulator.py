"""The suite `simulator`: whole Trident topologies under seeded faults in virtual time, in schedules per CPU-second."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.frame import Contender, Measured, Plan
from windowing.testing import simulator

SEEDS = 200


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield one comparison: the same seeds, with every check on."""
    yield Plan(
        "schedules", "the first seeds, every check on", [Contender("simulator", simulated)], int,
        max(1, int(SEEDS * scale)), unit="schedules per CPU-second",
    )  # fmt: skip


def simulated(seeds: int) -> Measured:
    """Run the seeds; none may fail."""
    started = time.process_time()
    tally = simulator.run_seeds(range(seeds))
    taken = time.process_time() - started
    assert not tally.failed, f"seeds {tally.failed} have found something"
    return Measured((tally.seeds, tally.events), seeds / taken, {"events per CPU-second": tally.events / taken})
