"""A process with a window on disk is killed with SIGKILL and restarted: it gives the windows of a run without a kill."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.windows.persistent_lives import assert_nothing_differs, live, undisturbed


@pytest.mark.parametrize("name", ["time", "count", "window", "mixed"])
def test_the_job_has_enough_windows_and_late_tuples(name: str, tmp_path: Path) -> None:
    lines = undisturbed(name)
    assert sum('"late"' in line for line in lines) > 3
    assert sum('"late"' not in line for line in lines) > 8
    assert live(tmp_path, name, ids=False)
    assert_nothing_differs(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "ids", "failpoints"),
    [
        ("time", False, ["evicted:40", "prepared:3", "recorded:2", "dropping:4"]),
        ("count", True, ["pages:4", "committed:2", "window:3", "flushing:9"]),
        ("window", True, ["recorded:3", "evicting:30", "restored"]),
        ("mixed", False, ["collected:5", "flushed:7", "prepared:2"]),
    ],
)
def test_killed_at_named_points_it_gives_the_same_windows(
    name: str, ids: bool, failpoints: list[str], tmp_path: Path
) -> None:
    for failpoint in failpoints:
        assert not live(tmp_path, name, ids, failpoint), f"{failpoint} was never reached"
    assert live(tmp_path, name, ids)
    assert_nothing_differs(tmp_path, name)


def test_killed_at_random_it_gives_the_same_windows(tmp_path: Path) -> None:
    chance = random.Random()
    for _ in range(4):
        live(tmp_path, "time", ids=True, seconds=chance.uniform(0.02, 0.5))
    while not live(tmp_path, "time", ids=True, seconds=60):
        pass
    assert_nothing_differs(tmp_path, "time")
