"""Exactly once on real servers: the state machine tests of test_trident_random_histories.py, with fewer examples."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.services.test_server_stores import store_on
from tests.stores.state_world import StateWorld
from windowing.stores import Store
from windowing.trident.fence import BackingMap, PartitionId
from windowing.trident.kinds import StateType


class Renamed:
    """A store in which the state of each example has a unique name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.name = f"counts_{uuid.uuid4().hex[:12]}"

    def open(self, place: PartitionId) -> BackingMap:
        return self.store.open(place._replace(state=self.name))


class OnServer(StateWorld):
    server: str

    def make_store(self) -> Store:
        return Renamed(store_on(self.server))


@pytest.mark.parametrize(("kind", "cache"), [(StateType.TRANSACTIONAL, 2), (StateType.OPAQUE, 0)], ids=str)
def test_a_map_state_on_a_server_matches_the_model_under_random_faults(
    server: str, kind: StateType, cache: int
) -> None:
    world = type("World", (OnServer,), {"server": server, "kind": kind, "cache": cache})
    few = settings(
        max_examples=10,
        stateful_step_count=25,
        # Shrinking on a server takes minutes; the seed is printed.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(world, settings=few)
