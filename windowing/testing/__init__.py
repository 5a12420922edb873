"""Helpers for tests of your own, and the proofs of this library that you can run yourself.

    check_counts(counts)     no tuple of a bolt is missing: in = shown + pending + late + skipped
    check_ids(fed, shown)    the same by ids: each tuple has exactly one fate
    Watch(cluster)           listens to what the spouts of a LocalCluster are told
    replay(case)             what a recorded case (plain JSON) gives on the machines of this library

Two modules are loaded by their names, `from windowing.testing import strategies`, for `import windowing.testing` is to load no
optional package, and `python -m windowing.testing.simulator` no module twice:

    strategies               Hypothesis strategies for windows and whole cases (needs hypothesis)
    simulator                Trident under seeded faults in virtual time: Scenario, simulate, run_seeds
"""

from windowing.testing.invariants import Watch, check_counts, check_ids
from windowing.testing.replay import replay

__all__ = [
    "Watch",
    "check_counts",
    "check_ids",
    "replay",
]
