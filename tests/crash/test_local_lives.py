"""Clusters in one process are killed, terminated and given a full disk at any moment: everything counts once in the end."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.crash import trident_cluster_job
from tests.dying import (
    FULL,
    TERMINATED,
    at_every_connection,
    ended,
    killed_at_statement,
    on_a_full_disk,
    terminable,
)
from tests.local import cluster_job
from tests.local.cluster_lives import a_folder, assert_nothing_differs

pytestmark = pytest.mark.crash

Job = Callable[[], None]


def killed(job: Job, chance: random.Random) -> int:
    """End the job by SIGKILL after a time."""
    return ended(job, chance.uniform(0.02, 0.2))


def killed_in_the_store(job: Job, chance: random.Random) -> int:
    """End the job by SIGKILL before a statement of SQL."""
    number = int(10 ** chance.uniform(0, 3.5))

    def run() -> None:
        at_every_connection(killed_at_statement(number))
        job()

    return ended(run, 2.0)


def terminated(job: Job, chance: random.Random) -> int:
    """End the job by SIGTERM, whose handler raises."""
    return ended(terminable(job), chance.uniform(0.02, 0.2), signal.SIGTERM)


def without_space(job: Job, chance: random.Random) -> int:
    """Let the job run into a full disk, or end it by SIGKILL before that."""
    return ended(on_a_full_disk(job, chance.randint(0, 2)), 2.0)


ENDS: dict[str, tuple[Callable[[Job, random.Random], int], int]] = {
    "killed": (killed, -signal.SIGKILL),
    "killed in the store": (killed_in_the_store, -signal.SIGKILL),
    "terminated": (terminated, TERMINATED),
    "without space": (without_space, FULL),
}


def lives(job: Job, end: str, seed: int) -> None:
    """Run the job in up to 16 lives with this end, and then to its own end; two of them or more must come to the given end."""
    chance, (life, wanted) = random.Random(seed), ENDS[end]
    codes = Counter[int]()
    while codes.total() < 16 and not codes[0]:
        codes[life(job, chance)] += 1
    assert set(codes) <= {wanted, -signal.SIGKILL, -signal.SIGTERM, 0}, codes
    assert codes[wanted] >= 2, f"the test proves too little: {codes}"
    assert ended(job) == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("end", ENDS)
def test_a_cluster_that_ends_in_any_way_at_any_moment_has_the_same_states_in_the_end(end: str, seed: int) -> None:
    with a_folder() as folder:
        lives(partial(cluster_job.run, folder, ""), end, seed)
        assert_nothing_differs(folder)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("end", ENDS)
def test_a_trident_cluster_that_ends_in_any_way_at_any_moment_counts_each_tuple_once(end: str, seed: int) -> None:
    with a_folder() as folder, a_folder() as other:
        trident_cluster_job.queue(folder).put(trident_cluster_job.EVENTS)
        written = other / "written"
        lives(partial(trident_cluster_job.run, folder, written), end, seed)
        trident_cluster_job.assert_each_counted_once(folder, written)
