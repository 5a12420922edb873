"""The PostgreSQL and Redis stores pass the contract of stores (store_contract.py)."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis

from tests.services.conftest import address
from tests.stores.store_contract import *  # noqa: F403
from windowing.errors import CorruptStateError
from windowing.local import TridentResult, VirtualClock, run_trident
from windowing.stores import Store, map_state
from windowing.stores.postgres import PostgresStore
from windowing.stores.redis import RedisStore
from windowing.trident import Count, TridentTopology
from windowing.trident.spouts import FixedBatchSpout


def store_on(server: str, url: str | None = None, patience_s: float = 20) -> Store:
    return {"postgres": PostgresStore, "redis": RedisStore}[server](url or address(server), patience_s)


@pytest.fixture
def store(server: str) -> Store:
    return store_on(server)


def flush(server: str, *, partition: int | None = None) -> None:
    """Delete the state on the server, or one partition of it."""
    if server == "redis":
        with redis.Redis.from_url(address(server)) as client:
            for key in client.scan_iter("*" if partition is None else f"*/{partition}}}:*"):
                client.delete(key)
        return
    with psycopg.connect(address(server), autocommit=True) as db:
        for table in ("counts", "counts_fences"):
            if partition is None:
                db.execute(f"TRUNCATE {table}")
            else:
                db.execute(f"DELETE FROM {table} WHERE partition = %s", (partition,))


@pytest.mark.parametrize("partition", [None, 1])
def test_a_state_or_partition_lost_on_the_server_is_detected_at_the_start(
    server: str, partition: int | None, tmp_path: Path
) -> None:
    def run(rows: list[tuple[str]]) -> TridentResult:
        topology = TridentTopology("words")
        words = topology.new_stream("in", FixedBatchSpout("word string", 1, rows)).group_by("word")
        counts = words.persistent_aggregate(map_state(store_on(server), "counts"), None, Count(), "n long")
        counts.parallelism_hint(2)
        return run_trident(topology, clock=VirtualClock(), state_path=tmp_path / "records.db")

    rows = [("a",), ("b",), ("a",)]
    assert run(rows[:2]).states == {"state1": {("a",): 1, ("b",): 1}}
    assert run(rows).states == {"state1": {("a",): 2, ("b",): 1}}
    flush(server, partition=partition)
    with pytest.raises(
        CorruptStateError, match=rf"counts/{partition or 0} is at no batch, expected txid 3: .* is lost"
    ):
        run([*rows, ("c",)])
