"""Lives of the process of cluster_job.py: start, kill, start again; then windows and states are those of an undisturbed run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.dying import lived
from tests.local import cluster_job
from windowing.stores.states import SqliteStateProvider

undisturbed = cache(cluster_job.undisturbed)


@contextmanager
def a_folder() -> Iterator[Path]:
    """A folder in memory where there is one: what a killed process wrote is there too, and a busy disk cannot slow the test."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def live(folder: Path, failpoint: str = "", seconds: float | None = None) -> bool:
    """Live once; return whether the process came to its end, False if it was killed."""
    return lived(lambda: cluster_job.run(folder, failpoint), seconds)


def assert_nothing_differs(folder: Path) -> None:
    """Every tuple was acked, and what the states hold is what an undisturbed run has: each window once, the same doubles."""
    acked = (folder / "acked").read_text().split()
    assert sorted(acked) == cluster_job.everything()
    with SqliteStateProvider(folder / "states", "killed") as states:
        found = cluster_job.dump(states)
    expected = undisturbed()
    for name, values in expected.items():
        assert found[name] == values, f"the state of {name} differs"
