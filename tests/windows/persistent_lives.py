"""Starts, kills and restarts of persistent_job.py; in the end its windows equal those of a run without a kill."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.dying import lived
from tests.windows import persistent_job
from tests.windows.persistent_job import Failpoints, Job
from windowing.stores.pages import SqlitePages

undisturbed = cache(persistent_job.undisturbed)


def live(folder: Path, name: str, ids: bool, failpoint: str = "", seconds: float | None = None) -> bool:
    """Run the job once; return whether it finished, False if it was killed."""
    return lived(lambda: Job(folder, name, ids, Failpoints(failpoint)).run(), seconds)


def assert_nothing_differs(folder: Path, name: str) -> None:
    """The windows equal those of a run without a kill, and every stored page can be read."""
    found = (folder / "windows.jsonl").read_text().splitlines()
    expected = undisturbed(name)
    assert len(found) == len(expected)
    assert found == expected
    with SqlitePages(folder / "bolt-0.pages") as pages:
        committed = pages.committed()
        assert committed is not None
        for page_id in pages.ids():
            pages.read(page_id)
