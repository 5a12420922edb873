"""The long test of persistent windows: SIGKILL at every named point, with and without message ids, and at random times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.windows.persistent_job import DEFINITIONS, POINTS
from tests.windows.persistent_lives import assert_nothing_differs, live

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("ids", [False, True], ids=["", "ids"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_killed_twice_at_every_point_the_job_gives_the_same_windows(
    name: str, point: str, ids: bool, tmp_path: Path
) -> None:
    assert not live(tmp_path, name, ids, f"{point}:1")
    live(tmp_path, name, ids, f"{point}:{random.randint(2, 9)}")
    assert live(tmp_path, name, ids)
    assert_nothing_differs(tmp_path, name)


@pytest.mark.parametrize("name", list(DEFINITIONS))
@pytest.mark.parametrize("seed", range(8))
def test_killed_many_times_at_random_the_job_gives_the_same_windows(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        live(tmp_path, name, ids=True, seconds=chance.uniform(0.02, 0.5))
    while not live(tmp_path, name, ids=True, seconds=60):
        pass
    assert_nothing_differs(tmp_path, name)
