"""An attempt is paused in its own process while the next attempt commits: when it resumes, it changes nothing."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.dying import in_a_child
from tests.stores.state_world import Add
from tests.stores.store_contract import commit
from windowing.errors import SupersededError
from windowing.stores import MapStateFactory, SqliteStore, map_state
from windowing.trident.kinds import StateType

REFUSED = 7
ADDED = {f"key-{n}": Add(1) for n in range(5)}


def pause_and_commit(states: MapStateFactory, txid: int, within: bool) -> None:
    """Claim an attempt, begin to commit it, stop the process; after it is resumed, commit."""
    attempt = states.claim_attempt(txid, 1)
    with closing(states.make_state(0, 1)) as state:
        state.begin_commit(attempt)
        if within:
            state.multi_update(list(ADDED), list(ADDED.values()))
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            if not within:
                state.multi_update(list(ADDED), list(ADDED.values()))
            state.commit(attempt)
        except SupersededError:
            os._exit(REFUSED)


@pytest.mark.parametrize("kind", [StateType.OPAQUE, StateType.TRANSACTIONAL], ids=lambda kind: kind.value)
@pytest.mark.parametrize("within", [False, True], ids=["before it reads", "after it has read"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["the same batch", "the next batch too"])
def test_an_attempt_that_resumes_after_a_later_one_committed_is_refused(
    tmp_path: Path, kind: StateType, within: bool, ahead: int
) -> None:
    states = map_state(SqliteStore(tmp_path / "states.db"), "counts", kind)
    with closing(states.make_state(0, 1)) as state:
        commit(state, 1, 0, ADDED)

    def overtake(pid: int) -> None:
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        for txid in range(2, 3 + ahead):
            attempt = states.claim_attempt(txid, 1)
            assert attempt.attempt == (1 if txid == 2 else 0)
            with closing(states.make_state(0, 1)) as state:
                commit(state, *attempt, ADDED)
        os.kill(pid, signal.SIGCONT)

    assert in_a_child(lambda: pause_and_commit(states, 2, within), overtake) == REFUSED
    with closing(states.make_state(0, 1)) as state:
        assert dict(state.items()) == dict.fromkeys(ADDED, 2 + ahead)
