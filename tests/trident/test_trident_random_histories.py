"""Exactly once after crashes, delays and repeated batches: random histories compared with the state of an undisturbed run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stores.state_world import StateWorld
from windowing.stores import MemoryStore, SqliteStore, Store
from windowing.trident.kinds import StateType

pytestmark = pytest.mark.hypothesis  # for the long profile


class InMemory(StateWorld):
    def make_store(self) -> Store:
        return MemoryStore()


class InSqlite(StateWorld):
    def make_store(self) -> Store:
        self.folder = Path(tempfile.mkdtemp())
        return SqliteStore(self.folder / "state.db")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


def some(share: int) -> settings:
    """Return settings with a share of the profile's examples: each is a history of 40 steps."""
    return settings(max_examples=settings().max_examples // share, stateful_step_count=40)


KINDS = [StateType.TRANSACTIONAL, StateType.OPAQUE]


@pytest.mark.parametrize("cache", [0, 2])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_random_histories_in_memory_count_each_batch_once(kind: StateType, cache: int) -> None:
    world = type("World", (InMemory,), {"kind": kind, "cache": cache})
    run_state_machine_as_test(world, settings=some(3))


@pytest.mark.parametrize(("kind", "cache"), [(KINDS[0], 2), (KINDS[1], 0)], ids=lambda each: str(each))
def test_random_histories_in_sqlite_count_each_batch_once(kind: StateType, cache: int) -> None:
    world = type("World", (InSqlite,), {"kind": kind, "cache": cache})
    run_state_machine_as_test(world, settings=some(10))
