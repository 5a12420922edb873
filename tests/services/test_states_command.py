"""`windowing states` on PostgreSQL and Redis: its output, and that it creates nothing and waits for no writer."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
import redis
from click.testing import CliRunner

from tests.services.conftest import address, empty
from windowing.cli import commands
from windowing.stores import PostgresStore, RedisStore, postgres
from windowing.trident.fence import LEDGER, Claim, Fence, PartitionId, StateRow
from windowing.trident.kinds import StateType, TransactionAttempt


def tables():
    with psycopg.connect(address("postgres")) as db:
        return db.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'").fetchall()


def shown(server="postgres"):
    return CliRunner().invoke(commands, ["states", address(server)])


def cells_of(output):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]


def test_states_in_postgresql_are_shown_beside_a_writer_and_nothing_is_created():
    empty("postgres")
    assert "has no Trident states" in shown().output
    assert tables() == []
    place = PartitionId("counts", 0, 2)
    backing = PostgresStore(address("postgres")).open(place)
    fence = Fence(TransactionAttempt(7, 3), StateType.OPAQUE, "json", place, "", 1)
    assert backing.multi_put({b"k": StateRow(7, b"1", None)}, Claim(None, fence)) is None
    before = sorted(tables())
    with psycopg.connect(address("postgres")) as writer:
        writer.execute("UPDATE counts SET value = value")
        done = shown()
        writer.rollback()
    backing.close()
    assert done.exit_code == 0, done.output
    assert cells_of(done.output) == [["counts", "0", "1", "txid 7, attempt 3", "opaque, json, of 2"]]
    assert "***" in done.output or "@" not in address("postgres")
    assert sorted(tables()) == before


def test_a_table_of_a_state_that_another_program_has_locked_is_an_error_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(postgres, "_WAIT_S", 1)
    empty("postgres")
    with closing(PostgresStore(address("postgres")).open(PartitionId("counts", 0, 2))) as backing:
        backing.multi_put({b"k": StateRow(7, b"1", None)})
    with psycopg.connect(address("postgres")) as writer:
        writer.execute("LOCK TABLE counts IN ACCESS EXCLUSIVE MODE")
        writer.execute("SET idle_in_transaction_session_timeout = '10s'")  # ends this test in any case
        done = shown()
        writer.rollback()
    assert done.exit_code == 1, done.output
    said = " ".join(done.output.split())
    assert "cannot be read: LockNotAvailable: " in said
    assert "another program has locked a table of a state for more than 1 s" in said


def test_states_in_redis_are_shown_and_keys_of_others_are_left_out():
    empty("redis")
    assert "has no Trident states" in shown("redis").output
    store = RedisStore(address("redis"))
    for state, partition, claims in (("counts", 1, True), ("counts", LEDGER, False), ("words", 0, True)):
        place = PartitionId(state, partition, 2)
        fence = Fence(TransactionAttempt(7, 3), StateType.OPAQUE, "json", place, "", 1)
        with closing(store.open(place)) as backing:
            assert backing.multi_put({b"k": StateRow(7, b"1", None)}, Claim(None, fence) if claims else None) is None
    with closing(redis.Redis.from_url(address("redis"))) as client:
        client.set("windowing:{orders}:windowing:dead", "of a RedisStream")
        client.hset("windowing:{counts/1}:other", "of", "somebody")
        before = sorted(client.keys())
        assert b"windowing:{counts/-1}:rows" in before, "a stored name"
        done = shown("redis")
        assert sorted(client.keys()) == before
    assert done.exit_code == 0, done.output
    written = ["txid 7, attempt 3", "opaque, json, of 2"]
    assert cells_of(done.output) == [
        ["counts", "ledger", "1", "no fence", ""],
        ["counts", "1", "1", *written],
        ["words", "0", "1", *written],
    ]
    assert "***" in done.output or "@" not in address("redis")
