"""The memory and SQLite stores keep what every store promises (store_contract.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store_contract import *  # noqa: F403
from windowing.runtime.stores import MemoryStore, SqliteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "new" / "state.db")
