"""Trident states are copied between servers, into another number of partitions; state tables too."""

from __future__ import annotations

import psycopg
import pytest

from tests.services.conftest import address, empty
from tests.trident.test_trident_rescale import check, committed, left, perform, plan_of, whole
from windowing.stores import state_table, store_of
from windowing.topology.components import InputSpout
from windowing.trident import Sum, TridentTopology
from windowing.trident.kinds import StateType
from windowing.trident.rescale import moves
from windowing.trident.state_operations import StateSpec

BATCHES = [{(f"shop {number % 700}", float(number % 3)): number for number in range(size)} for size in (2500, 40)]


@pytest.mark.parametrize(("old", "new"), [("postgres", "redis"), ("redis", "postgres")])
@pytest.mark.parametrize("kind", list(StateType))
def test_a_state_is_moved_to_another_server_and_number_of_partitions(old: str, new: str, kind: StateType) -> None:
    for server in (old, new):
        empty(server)
    before, after = plan_of(store_of(address(old)), 3, kind), plan_of(store_of(address(new)), 2, kind)
    committed(before, "old", 1, BATCHES)
    (move,) = moves(before, after)
    perform(move, after)
    perform(move, after)  # repeated, as after a kill
    assert whole(before) == whole(after) == left(BATCHES)
    check(after, "new", 1)
    committed(after, "new", 2, [{("shop 1", 1.0): 7}])
    check(after, "new", 2)


def test_a_moved_state_table_is_readable_under_its_new_name() -> None:
    def made(name, partitions):
        topology = TridentTopology("sales")
        stream = topology.new_stream("sales", InputSpout("shop string, size double, n long"))
        state = StateSpec(
            state_table(store_of(address("postgres")), name, "shop string, size double, n bigint"), partitions
        )
        stream.group_by("shop", "size").persistent_aggregate(state, "n", Sum(), "total long")
        return topology.build().by_section()

    empty("postgres")
    before, after = made("sales", 2), made("sales_more", 5)
    committed(before, "old", 1, BATCHES)
    (move,) = moves(before, after)
    perform(move, after)
    with psycopg.connect(address("postgres")) as db:
        for name in ("sales", "sales_more"):
            rows = db.execute(f"SELECT shop, size, n FROM {name}").fetchall()
            assert {row[:2]: row[2] for row in rows} == left(BATCHES)
