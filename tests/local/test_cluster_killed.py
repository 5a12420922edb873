"""A topology with states, recovered windows and windows on disk is killed with SIGKILL and restarted without a trace."""

from __future__ import annotations

import random

from tests.local.cluster_job import dump, everything, queues, rows, topology
from tests.local.cluster_lives import a_folder, assert_nothing_differs, live, undisturbed
from windowing.local.clock import VirtualClock
from windowing.local.cluster import run_topology
from windowing.stores.states import MemoryStateProvider


def test_the_job_covers_all_keys_and_enough_windows() -> None:
    found = undisturbed()
    counted = {key: (last, many) for (_, key), (last, many, _) in found["count"].items()}
    assert counted == {
        key: (max(ids), len(ids)) for key in range(4) if (ids := [id for id, _, of, _ in rows() if of == key])
    }
    assert set(found["sink"].values()) == {1}
    names = [key.split()[0] for _, key in found["sink"]]
    assert min(names.count("recent"), names.count("disk")) > 12


def test_the_states_do_not_depend_on_the_order_of_steps() -> None:
    states, acked = MemoryStateProvider(), list[str]()
    run_topology(topology(queues((), acked.append)), clock=VirtualClock(), states=states, seed=5)
    assert sorted(acked) == everything()
    assert dump(states) == undisturbed()


def test_after_kills_between_prepare_and_commit_and_at_random_the_states_are_the_same() -> None:
    with a_folder() as folder:
        assert not live(folder, "prepared:2")
        live(folder, seconds=random.Random().uniform(0.02, 0.6))
        assert live(folder)
        assert_nothing_differs(folder)
