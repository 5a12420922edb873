"""Coordinator, spouts and bolts on a bad network, with tasks that die: each row is in the states once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.trident_network import SPECS, SPOUTS, Faults, Topology

TASKS = ("master", "coordinator", *SPOUTS, *SPECS)


class Network(RuleBasedStateMachine):
    """See the drawing in trident_network.py."""

    @initialize(
        seed=st.integers(0, 10**6),
        opaque=st.booleans(),
        max_pending=st.integers(1, 4),
        poison=st.sampled_from([0, 0, 7]),
    )
    def begin(self, seed: int, opaque: bool, max_pending: int, poison: int) -> None:
        self.topology = Topology(seed, opaque, max_pending, poison)

    @rule(
        steps=st.integers(1, 200),
        lost=st.sampled_from([0, 0, 1, 5]),
        repeated=st.sampled_from([0, 10]),
        failed=st.sampled_from([0, 0, 3]),
    )
    def a_while_passes(self, steps: int, lost: int, repeated: int, failed: int) -> None:
        self.topology.faults = Faults(lost, repeated, failed)
        for _ in range(steps):
            self.topology.step()

    @rule(name=st.sampled_from(TASKS))
    def a_task_dies(self, name: str) -> None:
        self.topology.begin(name)

    @invariant()
    def each_row_is_in_the_states_once(self) -> None:
        if hasattr(self, "topology"):
            self.topology.check()

    def teardown(self) -> None:
        if hasattr(self, "topology"):
            self.topology.settle_down(2)


TestNetwork = Network.TestCase
TestNetwork.settings = settings(stateful_step_count=12)


@pytest.mark.parametrize("opaque", [False, True])
def test_without_faults_no_batch_is_tried_twice_for_long(opaque):
    topology = Topology(1, opaque, 3)
    topology.settle_down(50)
    assert len(topology.succeeded) >= 50


@pytest.mark.parametrize("opaque", [False, True])
def test_batches_that_always_fail_end_on_the_dead_letters_and_all_others_in_the_states(opaque):
    topology = Topology(2, opaque, 2, poison=7)
    topology.settle_down(60)
    poisoned = {
        row for state in topology.states.values() for _, rows in state.values() for row in rows if int(row[1:]) % 7 == 6
    }
    assert poisoned == set()
    dead = [row for _, rows in topology.dead.values() for row in rows]
    assert len([row for row in dead if int(row[1:]) % 7 == 6]) >= 5
    assert sum(len(rows) for state in topology.states.values() for _, rows in state.values()) > 20
