"""The PostgreSQL and Redis stores keep what every store promises (store_contract.py)."""

from __future__ import annotations

import pytest

from tests.services.conftest import address
from tests.store_contract import *  # noqa: F403
from windowing.runtime.stores import Store
from windowing.runtime.stores.postgres import PostgresStore
from windowing.runtime.stores.redis import RedisStore


def store_on(server: str, url: str | None = None, patience_s: float = 20) -> Store:
    return {"postgres": PostgresStore, "redis": RedisStore}[server](url or address(server), patience_s)


@pytest.fixture
def store(server: str) -> Store:
    return store_on(server)
