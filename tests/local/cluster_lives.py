"""Starts, kills and restarts of cluster_job.py; in the end windows and states equal those of a run without a kill."""

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
    """A folder in memory where there is one: files survive a killed process there too, and a busy disk cannot slow the test."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def live(folder: Path, failpoint: str = "", seconds: float | None = None) -> bool:
    """Run the job once; return whether it finished, False if it was killed."""
    return lived(lambda: cluster_job.run(folder, failpoint), seconds)


def assert_nothing_differs(folder: Path) -> None:
    """Every tuple was acked, and the states equal those of a run without a kill: each window once, the same doubles."""
    acked = (folder / "acked").read_text().split()
    assert sorted(acked) == cluster_job.everything()
    with SqliteStateProvider(folder / "states", "killed") as states:
        found = cluster_job.dump(states)
    expected = undisturbed()
    for name, values in expected.items():
        assert found[name] == values, f"the state of {name} differs"
