"""`windowing states` on PostgreSQL: its output, and that it creates nothing and waits for no writer."""

from __future__ import annotations

import psycopg
from click.testing import CliRunner

from tests.services.conftest import address, empty
from windowing.cli import commands
from windowing.stores import PostgresStore
from windowing.trident.fence import Claim, Fence, PartitionId, StateRow
from windowing.trident.kinds import StateType, TransactionAttempt


def tables():
    with psycopg.connect(address("postgres")) as db:
        return db.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'").fetchall()


def shown():
    return CliRunner().invoke(commands, ["states", address("postgres")])


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
    line = next(line for line in done.output.splitlines() if "txid 7, attempt 3" in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "counts",
        "0",
        "1",
        "txid 7, attempt 3",
        "opaque, json, of 2",
    ]
    assert "***" in done.output or "@" not in address("postgres")
    assert sorted(tables()) == before
