"""Helpers for your own tests, and tests of this library that you can run yourself.

    check_restarts(bolt, batches)   a bolt emits the same if its windows are stored and read back after each batch, as on Spark
    check_attempts(make, batches)   a topology of Trident has the same results if each batch is tried again, as after a lost worker
    check_counts(counts)            no tuple of a bolt is missing: in = shown + pending + late + skipped
    check_ids(fed, shown)           the same by ids: each tuple has exactly one outcome
    Watch(cluster)                  checks every ack and fail that the spouts of a LocalCluster receive
    replay(case)                    the events of a recorded case (plain JSON) on the machines of this library

Two modules are imported by name, `from windowing.testing import strategies`: `import windowing.testing` must not import an optional
package.

    strategies                      Hypothesis strategies: the batches of a bolt; windows and whole cases (needs hypothesis)
    simulator                       Trident under seeded faults in virtual time: Scenario, simulate, run_seeds
"""

from typing import TYPE_CHECKING

from windowing.optional import getattr_of
from windowing.testing.invariants import Watch, check_attempts, check_counts, check_ids, check_restarts
from windowing.testing.replay import replay

__all__ = [
    "Watch",
    "check_attempts",
    "check_counts",
    "check_ids",
    "check_restarts",
    "replay",
]

if not TYPE_CHECKING:
    __getattr__ = getattr_of(__name__)
