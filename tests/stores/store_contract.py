"""The contract of every store, as tests: the test file of a store imports them and defines the fixture `store`."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from threading import Event
from typing import Any

import pytest

from tests.stores.state_world import Add
from windowing.errors import CorruptStateError, DefinitionChangedError, StateConflictError, SupersededError
from windowing.stores import MapStateFactory, MemoryStore, Store, map_state
from windowing.trident.fence import BackingMap, Claim, Fence, Owner, PartitionId, StateRow, counted
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.states import MapState, ReplaceUpdater

PLACE = PartitionId("counts", 0, 2)


def fence(txid: int, attempt: int = 0, place: PartitionId = PLACE) -> Fence:
    return Fence(TransactionAttempt(txid, attempt), StateType.OPAQUE, "json", place)


@pytest.fixture
def rows(store: Store) -> Any:
    opened = store.open(PLACE)
    yield opened
    opened.close()


def test_an_empty_partition_has_no_fence_and_no_rows(rows: BackingMap) -> None:
    assert rows.multi_get([b"a", b"b"]) == (None, [None, None], {})
    assert list(rows.items()) == []


def test_rows_and_fence_round_trip(store: Store, rows: BackingMap) -> None:
    written = {b"a": StateRow(1, b"5", None), b"\x00\xff": StateRow(1, b"", b""), b"b": StateRow(1, None, b"7")}
    written[b""] = StateRow(1, b"9", None)  # what a codec of its own may make of a key
    assert rows.multi_put(written, Claim(None, fence(1))) is None
    with closing(store.open(PLACE)) as other:
        for reader in (rows, other):
            assert reader.multi_get([b"b", b"a", b"\x00\xff", b"none"]) == (
                fence(1),
                [written[b"b"], written[b"a"], written[b"\x00\xff"], None],
                {},
            )
    assert dict(rows.items()) == written


def test_a_write_with_a_stale_fence_changes_nothing_and_returns_the_current_fence(rows: BackingMap) -> None:
    rows.multi_put({b"a": StateRow(1, b"5")}, Claim(None, fence(1)))
    for expected in (None, fence(0), fence(1, 1)):
        assert rows.multi_put({b"a": StateRow(2, b"6"), b"b": StateRow(2, b"6")}, Claim(expected, fence(2))) == fence(1)
    assert rows.multi_get([b"a", b"b"]) == (fence(1), [StateRow(1, b"5"), None], {})
    assert rows.multi_put({b"a": StateRow(2, b"6")}, Claim(fence(1), fence(2))) is None
    assert rows.multi_get([b"a"]) == (fence(2), [StateRow(2, b"6")], {})


def test_none_in_a_write_deletes_the_row(rows: BackingMap) -> None:
    rows.multi_put({b"a": StateRow(1, b"5"), b"b": StateRow(1, b"5")}, Claim(None, fence(1)))
    rows.multi_put({b"a": None, b"never": None, b"c": StateRow(2, b"1")}, Claim(fence(1), fence(2)))
    assert dict(rows.items()) == {b"b": StateRow(1, b"5"), b"c": StateRow(2, b"1")}


def test_a_write_without_rows_updates_the_fence(rows: BackingMap) -> None:
    assert rows.multi_put({}, Claim(None, fence(1))) is None
    assert rows.multi_put({}, Claim(fence(1), fence(1, 1))) is None
    assert rows.multi_get([]) == (fence(1, 1), [], {})


def test_a_write_without_a_claim_keeps_the_fence(rows: BackingMap) -> None:
    assert rows.multi_put({b"a": StateRow(0, b"5")}) is None
    assert rows.multi_put({b"a": StateRow(0, b"6")}) is None
    assert rows.multi_get([b"a"]) == (None, [StateRow(0, b"6")], {})


def test_only_a_read_of_a_later_attempt_returns_the_rows_that_an_earlier_attempt_wrote(rows: BackingMap) -> None:
    rows.multi_put({b"old": StateRow(1, b"1")}, Claim(None, fence(1)))
    rows.multi_put({b"new": StateRow(2, b"2"), b"both": StateRow(2, b"3", b"1")}, Claim(fence(1), fence(2, 1)))
    left = {b"new": StateRow(2, b"2"), b"both": StateRow(2, b"3", b"1")}
    assert rows.multi_get([b"old"], TransactionAttempt(2, 2)) == (fence(2, 1), [StateRow(1, b"1")], left)
    for other in (
        TransactionAttempt(2, 1),
        TransactionAttempt(2, 0),
        TransactionAttempt(3, 0),
        TransactionAttempt(1, 5),
    ):
        assert rows.multi_get([b"old"], other).left == {}
    rows.multi_put({b"new": None, b"both": StateRow(2, b"1", b"1")}, Claim(fence(2, 1), fence(2, 2)))
    assert rows.multi_get([], TransactionAttempt(2, 3)).left == {b"both": StateRow(2, b"1", b"1")}


def test_partitions_and_states_are_isolated(store: Store, rows: BackingMap) -> None:
    rows.multi_put({b"a": StateRow(1, b"5")}, Claim(None, fence(1)))
    for place in (PartitionId("counts", 1, 2), PartitionId("sums", 0, 2), PartitionId("counts", -1, 2)):
        other = store.open(place)
        assert other.multi_get([b"a"]) == (None, [None], {})
        other.close()


def test_thousands_of_rows_are_written_listed_in_key_order_and_deleted(rows: BackingMap) -> None:
    many = {b"%05d" % n: StateRow(1, b"%d" % n, b"-" if n % 2 else None) for n in range(2500)}
    shuffled = list(many)
    random.Random(1).shuffle(shuffled)
    assert rows.multi_put({key: many[key] for key in shuffled}, Claim(None, fence(1))) is None
    assert rows.multi_get(shuffled).rows == [many[key] for key in shuffled]
    assert list(rows.items()) == list(many.items())
    assert rows.multi_get([], TransactionAttempt(1, 1)).left == many
    assert rows.multi_put(dict.fromkeys(many), Claim(fence(1), fence(2))) is None
    assert list(rows.items()) == []


def test_counted_returns_the_fence_and_the_number_of_rows(store: Store, rows: BackingMap) -> None:
    assert counted(rows) == (None, 0)
    full = fence(1)._replace(owner="me/counts", rows=2)
    rows.multi_put({b"a": StateRow(1, b"5"), b"b": StateRow(1, None)}, Claim(None, full))
    assert counted(rows) == (full, 2)
    with closing(store.open(PartitionId("counts", 1, 2))) as other:
        assert counted(other) == (None, 0)
    rows.multi_put({b"a": None}, Claim(full, fence(1, 1)))
    assert counted(rows) == (fence(1, 1), 1)


def test_the_identity_of_a_state_depends_on_store_and_name_only(store: Store) -> None:
    identity = map_state(store, "counts").identity
    assert map_state(store, "counts", cache=9).identity == identity != map_state(store, "sums").identity
    assert replace(map_state(store, "counts"), store=copy(store)).identity == identity or isinstance(store, MemoryStore)


def test_another_owner_and_a_gap_in_txids_are_refused_without_a_write(store: Store) -> None:
    def state(owner: str, since: int = 1) -> Any:
        return map_state(store, "counts").owned_by(Owner(owner, since)).make_state(0, 1)

    with closing(state("me")) as mine, closing(state("you")) as other, closing(state("me", 4)) as joined:
        commit(mine, 1, 0, {"a": Add(1)})
        commit(mine, 1, 1, {"b": Add(1), "a": Add(2)})
        for attempt in (0, 1, 2):
            with pytest.raises(SupersededError, match="'you' came to the state counts/0, which 'me' writes"):
                commit(other, 2, attempt, {"a": Add(5)})
        with pytest.raises(CorruptStateError, match="the state counts/0 is at txid 1, expected txid 2"):
            commit(mine, 3, 0, {"a": Add(5)})
        commit(joined, 4, 0, {"c": Add(1)})
        assert dict(mine.items()) == {"a": 2, "b": 1, "c": 1}
        assert [(str(found.attempt), found.rows, rows) for _, found, rows in stored(store)] == [("4:0", 3, 3)]


def stored(store: Store) -> list[Any]:
    return [found for found in map_state(store, "counts").stored(1) if found[1] is not None]


def commit(state: MapState, txid: int, attempt: int, updates: dict[Any, Any]) -> list[Any]:
    at = TransactionAttempt(txid, attempt)
    state.begin_commit(at)
    try:
        results = state.multi_update(list(updates), list(updates.values()))
        state.commit(at)
    except BaseException:
        state.rollback()  # as the drivers do
        raise
    return results


VALUES: list[Any] = [
    0, -(2**70), 1.5, float("inf"), True, "", "\x00\r\n\x1b[31m\u202e\U0001f300\ud800", b"\x80\x05pickle?", [1, [2, None]],
    {"a": {"$": 1}, 3: (4,)}, (1, "a"), {1, 2}, Decimal("1.10"), date(1, 1, 1), datetime(2026, 1, 2, 3), timedelta(-1, 2, 3),
    "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("kind", StateType, ids=lambda kind: kind.value)
def test_keys_and_values_of_all_types_round_trip_in_every_kind_of_map(store: Store, kind: StateType) -> None:
    factory = map_state(store, "typed", kind)
    keys: list[Any] = ["'; DROP TABLE typed; --", ("a", 1), (1,), (1.0,), (True,), b"\x00", *map(str, VALUES)]
    values = [VALUES[n % len(VALUES)] for n in range(len(keys))]
    state = factory.make_state(0, 1)
    state.begin_commit(TransactionAttempt(1, 0))
    state.multi_update(keys, list(map(ReplaceUpdater, values)))
    state.commit(TransactionAttempt(1, 0))
    state.close()
    again = factory.make_state(0, 1)
    assert again.multi_get(keys) == values
    assert [type(value) for value in again.multi_get(keys)] == [type(value) for value in values]
    assert len(list(again.items())) == len(keys)
    again.close()


@pytest.fixture
def counts(store: Store) -> MapStateFactory:
    return map_state(store, "counts")


def test_a_superseded_attempt_is_refused_and_changes_nothing(counts: MapStateFactory) -> None:
    first, second = counts.make_state(0, 1), counts.make_state(0, 1)
    commit(first, 1, 0, {"a": Add(1)})
    late = TransactionAttempt(2, 0)
    first.begin_commit(late)
    first.multi_update(["a", "b"], [Add(10), Add(10)])
    commit(second, 2, 1, {"a": Add(100)})
    with pytest.raises(SupersededError, match="attempt 2:0 came to the state counts/0 after 2:1"):
        first.commit(late)
    commit(second, 3, 0, {"a": Add(1000)})
    with pytest.raises(SupersededError, match=r"2:1 came .* after 3:0"):
        commit(first, 2, 1, {"a": Add(100)})
    assert dict(second.items()) == {"a": 1101}
    first.close()
    second.close()


def test_an_opaque_attempt_undoes_all_updates_of_the_previous_attempt(counts: MapStateFactory) -> None:
    state = counts.make_state(0, 1)
    commit(state, 1, 0, {"a": Add(1), "b": Add(1)})
    commit(state, 2, 0, {"a": Add(10), "c": Add(10)})
    assert commit(state, 2, 1, {"b": Add(100)}) == [101]
    assert dict(state.items()) == {"a": 1, "b": 101}
    commit(state, 2, 2, {})
    commit(state, 3, 0, {"a": Add(5)})
    assert dict(state.items()) == {"a": 6, "b": 1}
    state.close()


def test_a_write_by_another_attempt_between_read_and_commit_is_a_conflict(counts: MapStateFactory) -> None:
    later, earlier = counts.make_state(0, 1), counts.make_state(0, 1)
    later.begin_commit(TransactionAttempt(1, 1))
    later.multi_update(["a"], [Add(1)])
    commit(earlier, 1, 0, {"a": Add(1)})
    with pytest.raises(StateConflictError, match=r"went from no batch to 1:0 while 1:1 was being committed"):
        later.commit(TransactionAttempt(1, 1))
    commit(later, 1, 2, {"a": Add(1)})
    assert dict(later.items()) == {"a": 1}
    later.close()
    earlier.close()


def test_another_kind_of_state_or_number_of_partitions_is_refused(store: Store, counts: MapStateFactory) -> None:
    state = counts.make_state(0, 2)
    commit(state, 1, 0, {"a": Add(1)})
    for other, what in (
        (
            map_state(store, "counts", StateType.TRANSACTIONAL).make_state(0, 2),
            "the kind of the state counts/0 is 'opaque'",
        ),
        (map_state(store, "counts", StateType.NON_TRANSACTIONAL).make_state(0, 2), "counts/0 is opaque"),
        (counts.make_state(0, 3), "the number of partitions of the state counts/0 is 2, now it is 3"),
    ):
        with pytest.raises(DefinitionChangedError, match=what):
            commit(other, 2, 0, {"a": Add(1)})
        with pytest.raises(DefinitionChangedError, match=what):
            other.multi_get(["a"])
        other.close()
    assert state.multi_get(["a"]) == [1]
    state.close()


def test_concurrent_threads_count_each_batch_once(counts: MapStateFactory) -> None:
    """Two threads per partition commit the same txids as different attempts, each over its own connection."""
    txids = 15

    def race(partition: int, attempt: int) -> None:
        with closing(counts.make_state(partition, 2)) as state:
            for txid in range(1, txids + 1):
                with suppress(SupersededError):
                    while not committed_without_conflict(state, txid, attempt):
                        continue

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(race, partition, attempt) for partition in (0, 1) for attempt in (0, 1)]:
            done.result(60)
    for partition in (0, 1):
        with closing(counts.make_state(partition, 2)) as state:
            values = dict(state.items())
            assert values.pop("all") == sum(values.values()) <= txids
            assert values["by 1"] >= 1, "nobody supersedes the last attempt at the last batch"


def committed_without_conflict(state: MapState, txid: int, attempt: int) -> bool:
    """Commit; return False if another attempt wrote between the read and the write."""
    try:
        commit(state, txid, attempt, {"all": Add(1), f"by {attempt}": Add(1)})
    except StateConflictError:
        return False
    return True


def test_a_reader_sees_all_or_nothing_of_a_batch(counts: MapStateFactory) -> None:
    keys, batches, seen = list(range(200)), 20, set()
    written, read = Event(), Event()

    def write() -> None:
        with closing(counts.make_state(0, 1)) as state:
            for txid in range(1, batches + 1):
                commit(state, txid, 0, {key: Add(1) for key in keys})
                if txid == batches // 2:  # the reader may not have had a turn yet
                    assert read.wait(60)
        written.set()

    with ThreadPoolExecutor(1) as pool, closing(counts.make_state(0, 1)) as reader:
        writing = pool.submit(write)
        while not written.is_set() and not writing.done():
            values = set(reader.multi_get(keys))
            assert len(values) == 1
            seen |= values
            read.set()
        writing.result(60)
        assert set(reader.multi_get(keys)) == {batches}
    assert seen


def test_concurrent_claims_get_different_attempts(counts: MapStateFactory) -> None:
    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(lambda _: counts.claim_attempt(7, 2), range(12)))
    assert sorted(claimed) == [TransactionAttempt(7, attempt) for attempt in range(12)]


def test_claimed_attempts_increase_and_an_older_txid_is_refused(counts: MapStateFactory) -> None:
    claimed = [counts.claim_attempt(txid, 2) for txid in (1, 2, 2, 2, 5, 5)]
    assert [str(attempt) for attempt in claimed] == ["1:0", "2:0", "2:1", "2:2", "5:0", "5:1"]
    with pytest.raises(SupersededError, match=r"batch 4 .* begin above txid 5"):
        counts.claim_attempt(4, 2)
    with pytest.raises(DefinitionChangedError, match="number of partitions"):
        counts.claim_attempt(6, 3)
