"""The long test of topologies with durable states and windows: SIGKILL at every named point, and at random times."""

from __future__ import annotations

import random

import pytest

from tests.local.cluster_job import POINTS
from tests.local.cluster_lives import a_folder, assert_nothing_differs, live

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("point", POINTS)
def test_killed_twice_at_every_point_the_job_ends_with_the_same_states(point: str) -> None:
    with a_folder() as folder:
        assert not live(folder, f"{point}:1")
        live(folder, f"{point}:{random.randint(2, 30)}")
        assert live(folder)
        assert_nothing_differs(folder)


@pytest.mark.parametrize("seed", range(5))
def test_killed_many_times_at_random_the_job_ends_with_the_same_states(seed: int) -> None:
    chance = random.Random(seed)
    with a_folder() as folder:
        for _ in range(8):
            live(folder, seconds=chance.uniform(0.02, 0.6))
        assert live(folder)
        assert_nothing_differs(folder)
