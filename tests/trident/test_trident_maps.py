"""The map states batch by batch: the three kinds, their caches, refusals, and the cost of a batch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.state_world import Add, Faulty
from tests.stores.store_contract import PLACE, commit, fence
from windowing.codec import decode_value, encode_value
from windowing.errors import (
    BatchChangedError,
    BoltError,
    ConfigError,
    CorruptStateError,
    DefinitionChangedError,
    StateConflictError,
    StateError,
)
from windowing.schema.types import Schema
from windowing.stores import MemoryStore, map_state, snapshot_state
from windowing.topology.bolts import CallStyle
from windowing.trident.fence import (
    LEDGER,
    RULES,
    BackingMap,
    Claim,
    Fence,
    PartitionId,
    Reading,
    StateRow,
    Verdict,
    judge,
)
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.maps import MAPS, CachedBatchReadsMap, CachedMap, OpaqueMap
from windowing.trident.processors import Code, ProcessorContext
from windowing.trident.state_operations import PersistProcessor
from windowing.trident.states import CombinerValueUpdater, ReducerValueUpdater, ReplaceUpdater, TypedJson

TRANSACTIONAL, OPAQUE, PLAIN = StateType.TRANSACTIONAL, StateType.OPAQUE, StateType.NON_TRANSACTIONAL
FENCED = [TRANSACTIONAL, OPAQUE]
each_fenced = pytest.mark.parametrize("kind", FENCED, ids=lambda kind: kind.value)
each_kind = pytest.mark.parametrize("kind", [PLAIN, *FENCED], ids=lambda kind: kind.value)


def state_of(kind: StateType = OPAQUE, backing: BackingMap | None = None) -> Any:
    return MAPS[kind](backing or MemoryStore().open(PLACE))


# -- the rows ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**62), st.binary(max_size=9), st.none() | st.binary(), st.none() | st.binary())
def test_the_checksum_of_a_row_is_the_crc_over_its_place_its_key_and_its_values(
    txid: int, key: bytes, value: bytes | None, previous: bytes | None
) -> None:
    text = f"{PLACE} {txid} {len(key)} ".encode() + key
    for part in (value, previous):
        text += b"-" if part is None else b"+" + str(len(part)).encode() + b" " + part
    assert StateRow(txid, value, previous).checksum(PLACE, key) == zlib.crc32(text)


def test_errors_call_the_ledger_of_a_state_so_and_its_stored_name_has_the_number_that_it_always_had() -> None:
    ledger = PLACE._replace(partition=LEDGER)
    assert [str(each) for each in (PLACE, ledger)] == ["counts/0", "counts/ledger"]
    assert [each.stored_name() for each in (PLACE, ledger)] == ["counts/0", "counts/-1"]
    assert StateRow(7, b"1").checksum(ledger, b"k") == zlib.crc32(b"counts/-1 7 1 k+1 1-")


# -- the three kinds ---------------------------------------------------------------------------------------------------


def test_a_non_transactional_map_counts_a_batch_with_every_attempt() -> None:
    state = state_of(PLAIN)
    assert [commit(state, 1, attempt, {"a": Add(5)}) for attempt in (0, 0, 1)] == [[5], [10], [15]]


def test_a_transactional_map_counts_a_batch_once_and_returns_the_same_values_to_a_retry() -> None:
    state = state_of(TRANSACTIONAL)
    commit(state, 1, 0, {"a": Add(5)})
    assert [commit(state, 2, attempt, {"a": Add(1), "b": Add(2)}) for attempt in (0, 0, 1, 7)] == [[6, 2]] * 4
    assert commit(state, 3, 0, {"a": Add(1)}) == [7]


def test_an_opaque_map_counts_only_the_last_attempt() -> None:
    state = state_of(OPAQUE)
    commit(state, 1, 0, {"a": Add(5)})
    assert commit(state, 2, 0, {"a": Add(1), "b": Add(2)}) == [6, 2]
    assert commit(state, 2, 1, {"a": Add(10)}) == [15]
    assert commit(state, 2, 1, {"a": Add(10)}) == [15], "a twin of the attempt changes nothing"
    assert dict(state.items()) == {"a": 15}


@each_kind
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)))))
def test_items_within_a_commit_are_what_multi_get_returns(kind: StateType, batches: list[Any]) -> None:
    state, attempt = state_of(kind), TransactionAttempt(1, 0)

    def check() -> None:
        found = {key: value for key in "abc" if (value := state.multi_get([key])[0]) is not None}
        assert list(state.items()) == sorted(found.items())

    for again, commits, values in batches:
        attempt = (
            TransactionAttempt(attempt.txid, attempt.attempt + 1) if again else TransactionAttempt(attempt.txid + 1, 0)
        )
        state.begin_commit(attempt)
        check()
        if again and kind is TRANSACTIONAL:
            values = {}  # which must have the same keys
        state.multi_update(list(values), [ReplaceUpdater(value or None) for value in values.values()])
        check()
        state.commit(attempt) if commits else state.rollback()
        check()


def test_the_opaque_example_of_the_article() -> None:
    """Value 4, previous value 1, txid 2: txid 3 adds 2 to 4; or a replay of txid 2 adds 2 to 1."""
    for txid, attempt, wanted in ((3, 0, StateRow(3, b"6", b"4")), (2, 1, StateRow(2, b"3", b"1"))):
        backing = MemoryStore().open(PLACE)
        backing.multi_put({b'"k"': StateRow(2, b"4", b"1")}, Claim(None, fence(2)))
        commit(OpaqueMap(backing), txid, attempt, {"k": Add(2)})
        assert dict(backing.items()) == {b'"k"': wanted}


@each_kind
def test_all_updates_of_a_key_in_one_call_are_applied(kind: StateType) -> None:
    """Storm loses one: two updates of +5 give 5."""
    state = state_of(kind)
    state.begin_commit(TransactionAttempt(1, 0))
    assert state.multi_update([("a",), ["a"], ("b",), ("a",)], [Add(5), Add(5), Add(1), Add(1)]) == [5, 10, 1, 11]
    state.commit(TransactionAttempt(1, 0))
    assert state.multi_get([["a"], ("b",), ("c",)]) == [11, 1, None]


@each_kind
def test_all_updates_of_a_key_in_one_commit_are_applied(kind: StateType) -> None:
    state = state_of(kind)
    state.begin_commit(TransactionAttempt(1, 0))
    state.multi_update(["a"], [Add(5)])
    assert state.multi_get(["a"]) == [5], "a batch sees what it did"
    state.multi_update(["a"], [Add(5)])
    state.commit(TransactionAttempt(1, 0))
    assert state.multi_get(["a"]) == [10]


@each_kind
def test_put_replaces_a_value_and_remove_deletes_it(kind: StateType) -> None:
    state = state_of(kind)
    for txid, (method, arguments) in enumerate(
        [("multi_put", (["a", "b"], [1, 2])), ("multi_put", (["a"], [7])), ("multi_remove", (["b", "never"],))], start=1
    ):
        state.begin_commit(TransactionAttempt(txid, 0))
        getattr(state, method)(*arguments)
        state.commit(TransactionAttempt(txid, 0))
    assert dict(state.items()) == {"a": 7}
    assert state.multi_get(["b"]) == [None]


def test_a_removed_value_is_restored_by_the_next_attempt() -> None:
    state = state_of()
    commit(state, 1, 0, {"a": Add(5)})
    commit(state, 2, 0, {"a": ReplaceUpdater(None)})
    assert dict(state.items()) == {}
    commit(state, 2, 1, {})
    assert dict(state.items()) == {"a": 5}


@each_fenced
def test_an_update_is_stored_only_at_the_commit(kind: StateType) -> None:
    backing = MemoryStore().open(PLACE)
    state = state_of(kind, backing)
    state.begin_commit(TransactionAttempt(1, 0))
    state.multi_update(["a"], [Add(5)])
    assert list(backing.items()) == []
    state.begin_commit(TransactionAttempt(1, 1))
    state.commit(TransactionAttempt(1, 1))
    assert list(backing.items()) == [], "what was begun and not committed is forgotten"


@each_kind
def test_a_call_in_which_one_updater_fails_changes_nothing(kind: StateType) -> None:
    class Fails:
        def update(self, stored: Any) -> Any:
            raise ValueError("no")

    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(1)})
    state.begin_commit(TransactionAttempt(2, 0))
    with pytest.raises(ValueError, match="no"):
        state.multi_update(["a", "b", "c"], [Add(1), Fails(), Add(1)])
    state.multi_update(["d"], [Add(1)])
    state.commit(TransactionAttempt(2, 0))
    assert dict(state.items()) == {"a": 1, "d": 1}


def test_equal_numbers_of_different_types_are_different_keys() -> None:
    state = state_of()
    state.begin_commit(TransactionAttempt(1, 0))
    state.multi_update([1, 1.0, True, (1,)], [Add(1), Add(2), Add(3), Add(4)])
    state.commit(TransactionAttempt(1, 0))
    assert state.multi_get([1, 1.0, True, [1]]) == [1, 2, 3, 4]


@each_kind
def test_combiner_and_reducer_updates_apply_to_one_state(kind: StateType) -> None:
    class Count:
        def init(self, tuple: Any = None) -> int:
            return 0 if tuple is None else 1

        def combine(self, a: int, b: int) -> int:
            return a + b

        def zero(self) -> int:
            return 0

        def reduce(self, current: int, tuple: Any) -> int:
            return current + 1

    state = state_of(kind)
    commit(state, 1, 0, {"a": CombinerValueUpdater(Count(), 3), "b": ReducerValueUpdater(Count(), "xy")})
    assert commit(state, 2, 0, {"a": ReducerValueUpdater(Count(), "xy"), "b": CombinerValueUpdater(Count(), 3)}) == [
        5,
        5,
    ]


@each_kind
def test_a_snapshot_state_holds_one_value(kind: StateType) -> None:
    state = snapshot_state(MemoryStore(), "total", kind).make_state(0, 1)
    assert state.get() is None
    for txid in (1, 2):
        state.begin_commit(TransactionAttempt(txid, 0))
        assert state.update(Add(5)) == 5 * txid
        state.commit(TransactionAttempt(txid, 0))
    assert state.get() == 10
    if kind is not PLAIN:
        assert (state.get(as_of=2), state.get(as_of=1)) == (10, 5)
    state.begin_commit(TransactionAttempt(3, 0))
    state.set(1)
    state.commit(TransactionAttempt(3, 0))
    assert state.get() == 1
    state.close()


# -- reads as of a txid ------------------------------------------------------------------------------------------------


@each_fenced
def test_a_query_reads_the_last_committed_txid_during_the_next_commit(kind: StateType) -> None:
    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(1)})
    commit(state, 2, 0, {"a": Add(10), "b": Add(10)})
    assert state.multi_get(["a", "b"], as_of=2) == state.multi_get(["a", "b"]) == [11, 10]
    assert state.multi_get(["a", "b"], as_of=1) == [1, None]
    assert list(state.items(as_of=2)) == list(state.items()) == [("a", 11), ("b", 10)]
    assert list(state.items(as_of=1)) == [("a", 1)]


@each_fenced
def test_a_read_as_of_a_txid_that_is_no_longer_stored_is_refused(kind: StateType) -> None:
    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(1)})
    commit(state, 3, 0, {"a": Add(10)})
    with pytest.raises(StateConflictError, match="as of txid 1, but it was written by 3; ask as of 2 or later"):
        state.multi_get(["a"], as_of=1)
    with pytest.raises(StateConflictError, match="as of txid 1, but it was written by 3; ask as of 2 or later"):
        list(state.items(as_of=1))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_transactional_retry_with_another_key_is_refused() -> None:
    state = state_of(TRANSACTIONAL)
    commit(state, 1, 0, {"old": Add(1)})
    commit(state, 2, 0, {"a": Add(1), "none": ReplaceUpdater(None)})
    assert commit(state, 2, 1, {"a": Add(1), "none": ReplaceUpdater(None)}) == [1, None]
    for key in ("old", "new"):
        with pytest.raises(
            BatchChangedError,
            match=rf"batch 2 updates '{key}' in the state .* which it did not when it was committed there",
        ):
            commit(state, 2, 2, {"a": Add(1), key: Add(1)})
    assert dict(state.items()) == {"old": 1, "a": 1}


@each_fenced
def test_an_outdated_attempt_stays_refused(kind: StateType) -> None:
    state, late = (state_of(kind, backing) for backing in [MemoryStore().open(PLACE)] for _ in range(2))
    commit(state, 2, 0, {"a": Add(1)})
    late.begin_commit(TransactionAttempt(1, 0))
    for entry in (lambda: late.multi_update(["a"], [Add(1)]), lambda: late.multi_get(["b"])):
        with pytest.raises(StateError, match="came to the state counts/0 after 2:0"):
            entry()
    with pytest.raises(StateError, match="begin above txid 2"):
        late.commit(TransactionAttempt(1, 0))


@each_fenced
def test_a_state_is_usable_only_between_begin_and_commit_of_one_attempt(kind: StateType) -> None:
    state = state_of(kind)
    with pytest.raises(StateError, match="outside of a commit; call begin_commit first"):
        state.multi_update(["a"], [Add(1)])
    with pytest.raises(StateError, match="outside of a commit"):
        state.commit(TransactionAttempt(1, 0))
    state.begin_commit(TransactionAttempt(1, 0))
    with pytest.raises(StateError, match=r"began to commit 1:0, then was told to commit .*attempt=1"):
        state.commit(TransactionAttempt(1, 1))
    with pytest.raises(StateError, match="2 keys and 1 updates"):
        state.multi_update(["a", "b"], [Add(1)])
    for attempt in ((0, 0), (1, -1), (1,), ("request", "f"), (1.0, 0), None, 1):
        with pytest.raises(StateError, match="txids begin at 1, attempts at 0"):
            state.begin_commit(attempt)


@each_fenced
def test_a_query_does_not_see_a_batch_that_failed_before_its_commit(kind: StateType) -> None:
    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(1)})
    state.begin_commit(TransactionAttempt(2, 0))
    state.multi_update(["a"], [Add(10)])
    assert (state.multi_get(["a"]), state.multi_get(["a"], as_of=1)) == ([11], [1])
    state.rollback()
    assert state.multi_get(["a"]) == [1]
    assert commit(state, 2, 1, {"a": Add(10)}) == [11]


def test_a_failed_updater_leaves_no_change_for_queries() -> None:
    class Fails:
        def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
            state.multi_update(["a"], [Add(10)])
            raise ValueError("in the updater")

    state = state_of(OPAQUE)
    commit(state, 1, 0, {"a": Add(1)})
    persist = PersistProcessor(
        "persist", Code(Fails(), "update_state", CallStyle.ROWS), tuple, "counts", Schema((), ())
    )
    persist.prepare(None)
    persist.state = state
    slot = persist.start_batch(ProcessorContext(TransactionAttempt(2, 0), None))
    persist.execute(slot, ("a",))
    with pytest.raises(BoltError, match="in the updater"):
        persist.finish_batch(slot)
    assert state.multi_get(["a"]) == [1]


def test_a_value_that_is_no_plain_data_is_refused_before_anything_is_stored() -> None:
    backing = MemoryStore().open(PLACE)
    state = state_of(OPAQUE, backing)
    with pytest.raises(TypeError, match="a value of type function cannot be stored"):
        commit(state, 1, 0, {"a": Add(1), "b": ReplaceUpdater(lambda: 0)})
    assert list(backing.items()) == []


def test_rows_newer_than_their_fence_are_reported_as_damage() -> None:
    backing = MemoryStore().open(PLACE)
    backing.multi_put({b'"a"': StateRow(7, b"1")})
    for use in (
        lambda: state_of(OPAQUE, backing).multi_get(["a"]),
        lambda: commit(state_of(OPAQUE, backing), 9, 0, {"a": Add(1)}),
    ):
        with pytest.raises(CorruptStateError, match="is of txid 7, but its fence is at 0"):
            use()


def test_names_partitions_and_cache_sizes_are_checked_when_a_state_is_declared() -> None:
    for name in ("", "a b", "a;b", "a_fences", "x" * 51, "../x", 'a"b', "1a", None):
        with pytest.raises(ConfigError, match="a state's name must"):
            map_state(MemoryStore(), name)  # type: ignore[arg-type]
    for partition, partitions in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ConfigError, match="has no partition"):
            map_state(MemoryStore(), "a").make_state(partition, partitions)
    with pytest.raises(ConfigError, match="must be a StateType, got 'opaque'"):
        map_state(MemoryStore(), "a", "opaque")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="to cache -1 rows"):
        map_state(MemoryStore(), "a", cache=-1)


# -- codecs ------------------------------------------------------------------------------------------------------------


def test_registered_types_are_stored_anywhere_in_a_value() -> None:
    codec = TypedJson().register(
        "fraction", Fraction, lambda f: (f.numerator, f.denominator), lambda two: Fraction(*two)
    )
    store = MemoryStore()
    state: Any = map_state(store, "shares", codec=codec).make_state(0, 1)
    value = {"a": [Fraction(1, 3)], "b": (Fraction(2, 3), 1)}
    commit(state, 1, 0, {(Fraction(1, 2),): ReplaceUpdater(value)})
    assert dict(state.items()) == {(Fraction(1, 2),): value}
    with pytest.raises(CorruptStateError, match="is of the type 'fraction', which is not registered here"):
        dict(map_state(store, "shares").make_state(0, 1).items())


def test_registering_a_type_or_name_twice_is_refused() -> None:
    codec = TypedJson().register("fraction", Fraction, str, Fraction)
    for name, kind in (("fraction", complex), ("other", Fraction)):
        with pytest.raises(ConfigError, match="is registered already"):
            codec.register(name, kind, str, kind)


def test_a_changed_codec_is_refused_by_its_name() -> None:
    class Text:
        name = "text"

        def encode(self, value: Any) -> bytes:
            return str(value).encode()

        def decode(self, blob: bytes, what: str) -> Any:
            return blob.decode()

    store = MemoryStore()
    state: Any = map_state(store, "words", codec=Text()).make_state(0, 1)
    commit(state, 1, 0, {"a": ReplaceUpdater("b")})
    assert dict(state.items()) == {"a": "b"}
    with pytest.raises(DefinitionChangedError, match="the codec of the state words/0 is 'text', now it is 'json'"):
        map_state(store, "words").make_state(0, 1).multi_get(["a"])


# -- the fence ---------------------------------------------------------------------------------------------------------


def test_every_verdict_but_superseded_has_a_rule_for_both_kinds() -> None:
    assert set(RULES) == {
        (verdict, kind) for verdict in Verdict if verdict is not Verdict.SUPERSEDED for kind in FENCED
    }


def test_every_pair_of_attempts_has_exactly_one_verdict() -> None:
    attempts = [TransactionAttempt(txid, attempt) for txid in (1, 2, 3) for attempt in (0, 1)]
    for mine in attempts:
        assert judge(None, mine) is Verdict.NEW
        for found in attempts:
            wanted = Verdict.DONE if found == mine else Verdict.SUPERSEDED if found > mine else Verdict.RETRY
            assert judge(found, mine) is (Verdict.NEW if found.txid < mine.txid else wanted)


@pytest.mark.parametrize("cut", [0, 3, 4, 17, 18, -1])
def test_a_truncated_fence_is_damage_and_names_the_state(cut: int) -> None:
    with pytest.raises(CorruptStateError, match="the fence of the state counts/0"):
        Fence.of(fence(1).record()[:cut], PLACE)


def test_every_flipped_bit_of_a_fence_is_detected() -> None:
    record = fence(12, 3).record()
    assert Fence.of(record, PLACE) == fence(12, 3)
    for position in range(len(record)):
        for bit in range(8):
            flipped = bytearray(record)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptStateError, match="the fence of the state counts/0"):
                Fence.of(bytes(flipped), PLACE)


def test_a_fence_of_a_newer_format_is_refused_with_both_versions() -> None:
    record = bytearray(fence(1).record())
    record[5] = 2
    with pytest.raises(
        CorruptStateError, match=r"counts/0 has format 2, this library reads 1; use the version that wrote it"
    ):
        Fence.of(bytes(record), PLACE)


def test_a_fence_of_another_partition_is_damage() -> None:
    with pytest.raises(CorruptStateError, match="is that of counts/1: rows or files were mixed up"):
        Fence.of(fence(1, place=PartitionId("counts", 1, 2)).record(), PLACE)


# -- caches and the cost of a batch ------------------------------------------------------------------------------------


@each_fenced
@pytest.mark.parametrize("keys", [0, 1, 100])
def test_a_batch_of_any_size_is_one_read_and_one_write(kind: StateType, keys: int) -> None:
    backing = Faulty(MemoryStore().open(PLACE))
    state = state_of(kind, backing)
    for txid in (1, 2):
        commit(state, txid, 0, {n: Add(1) for n in range(keys)})
        assert (backing.gets, backing.puts) == (txid, txid)


def test_a_batch_reads_a_key_once() -> None:
    backing = Faulty(MemoryStore().open(PLACE))
    rows = CachedBatchReadsMap(fence(1), backing)
    for _ in range(2):
        rows.read([b"a", b"b", b"a"])
        rows.read([b"b"])
    assert backing.gets == 1


def test_a_batch_between_whose_reads_another_writer_committed_must_be_retried() -> None:
    backing = MemoryStore().open(PLACE)
    rows = CachedBatchReadsMap(fence(1), backing)
    rows.read([b"a"])
    backing.multi_put({}, Claim(None, fence(1)))
    with pytest.raises(StateConflictError, match="was written to by somebody else while a batch read it"):
        rows.read([b"b"])


def test_a_cache_reads_a_row_once_and_evicts_the_least_recently_used() -> None:
    backing = Faulty(MemoryStore().open(PLACE))
    cache = CachedMap(backing, size=2)
    for keys, gets in (([b"a", b"b"], 1), ([b"b", b"a"], 1), ([b"c"], 2), ([b"a"], 2), ([b"b"], 3)):
        cache.multi_get(keys)
        cache.check()
        assert backing.gets == gets


def test_a_cached_batch_is_one_write() -> None:
    backing = Faulty(MemoryStore().open(PLACE))
    state = state_of(OPAQUE, CachedMap(backing, 5000))
    for txid in (1, 2, 3):
        commit(state, txid, 0, {"a": Add(1)})
    assert (backing.gets, backing.puts) == (1, 3)


class PutFails:
    """A backing map whose next put fails."""

    def __init__(self, backing: BackingMap) -> None:
        self.backing, self.place, self.fails = backing, backing.place, False
        self.multi_get, self.items, self.close = backing.multi_get, backing.items, backing.close

    def multi_put(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None = None) -> Fence | None:
        if self.fails:
            self.fails = False
            raise OSError("disk full")
        return self.backing.multi_put(rows, claim)


@each_kind
def test_an_update_whose_put_failed_does_not_stay_in_the_cache(kind: StateType) -> None:
    """Storm caches before it writes: its retry finds the update applied, and never writes it to the store."""
    backing = PutFails(MemoryStore().open(PLACE))
    state = state_of(kind, CachedMap(backing, 5000))
    commit(state, 1, 0, {"a": Add(1)})
    backing.fails = True
    with pytest.raises(OSError, match="disk full"):
        commit(state, 2, 0, {"a": Add(10)})
    assert commit(state, 2, 0, {"a": Add(10)}) == [11]
    assert dict(state_of(kind, backing).items()) == {"a": 11}


def test_an_outdated_cache_is_detected_when_it_claims_the_fence() -> None:
    store = MemoryStore()
    cached, other = state_of(OPAQUE, CachedMap(store.open(PLACE), 5000)), state_of(OPAQUE, store.open(PLACE))
    commit(cached, 1, 0, {"a": Add(1)})
    commit(other, 2, 0, {"a": Add(10)})
    with pytest.raises(StateConflictError, match="went from 1:0 to 2:0 while 3:0 was being committed"):
        commit(cached, 3, 0, {"a": Add(100)})
    assert commit(cached, 3, 1, {"a": Add(100)}) == [111]


@each_kind
def test_a_query_through_a_cache_sees_writes_of_another_process(kind: StateType) -> None:
    store = MemoryStore()
    cached, other = state_of(kind, CachedMap(store.open(PLACE), 5000)), state_of(kind, store.open(PLACE))
    commit(cached, 1, 0, {"a": Add(1)})
    commit(other, 2, 0, {"a": Add(10)})
    assert cached.multi_get(["a"]) == cached.multi_get(["a"], as_of=2) == [11]


def test_a_read_through_a_cache_keeps_the_order_of_the_keys() -> None:
    backing = MemoryStore().open(PLACE)
    rows: dict[bytes, StateRow | None] = {bytes([n]): StateRow(1, bytes([n])) for n in range(10)}
    backing.multi_put(rows, Claim(None, fence(1)))
    cache = CachedMap(backing, 4)
    orders: list[Sequence[int]] = [(1, 2), (2, 5, 1, 7), (9, 1, 8, 2, 7), tuple(range(10))]
    for order in orders:
        keys = [bytes([n]) for n in order]
        assert cache.multi_get(keys) == Reading(fence(1), [rows[key] for key in keys])


@pytest.mark.parametrize(
    "value", [0, 7, -7, 10**18 - 1, 10**18, -(10**18), 10**17, 2**64, True, "7", 7.0, b"7"], ids=repr
)
def test_the_short_encoding_of_numbers_equals_the_long_one(value: Any) -> None:
    blob = TypedJson().encode(value)
    assert blob == encode_value(value)
    for read in (TypedJson().decode(blob, "a value"), decode_value(blob, "a value")):
        assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("blob", [b"\xb2", b"", b"7x"], ids=repr)
def test_malformed_numbers_are_refused(blob: bytes) -> None:
    with pytest.raises(CorruptStateError, match="a value cannot be read"):
        TypedJson().decode(blob, "a value")


@pytest.mark.parametrize(
    ("kind", "again"),
    [(StateType.OPAQUE, (2, 0)), (StateType.TRANSACTIONAL, (2, 0)), (StateType.TRANSACTIONAL, (2, 1))],
    ids=str,
)
def test_a_repeated_commit_reads_and_returns_the_same_values(kind: StateType, again: tuple[int, int]) -> None:
    def add(state: Any, attempt: TransactionAttempt) -> list[Any]:
        """Read, add ten, put; return the values read before and after."""
        state.begin_commit(attempt)
        (before,) = state.multi_get(["key"])
        state.multi_put(["key"], [(before or 0) + 10])
        (after,) = state.multi_get(["key"])
        state.commit(attempt)
        return [before, after]

    state = map_state(MemoryStore(), "sums", kind).make_state(0, 1)
    assert add(state, TransactionAttempt(1, 0)) == [None, 10]
    assert add(state, TransactionAttempt(2, 0)) == [10, 20]
    assert add(state, TransactionAttempt(*again)) == [10, 20]
    assert state.multi_get(["key"]) == [20]


# -- differences from Storm's maps: docs/concepts/trident_state.md has the table --------------------------------------------------


def twice(kind: StateType, one: Any, two: Any) -> tuple[Any, Any, Any]:
    """Commit `a` = 5, then a batch that calls `one`, and the batch again that calls `two`; return both results, and the value."""
    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(5)})
    found = []
    for attempt, call in enumerate((one, two)):
        state.begin_commit(TransactionAttempt(2, attempt))
        found.append(call(state))
        state.commit(TransactionAttempt(2, attempt))
    return found[0], found[1], state.multi_get(["a"])[0]


@each_kind
def test_only_a_non_transactional_state_can_commit_without_a_txid(kind: StateType) -> None:
    state = state_of(kind)
    if kind is PLAIN:
        state.begin_commit(None)
        assert state.multi_update(["a"], [Add(5)]) == [5]
        return
    with pytest.raises(StateError, match=r"wanted a TransactionAttempt.* need a non-transactional state"):
        state.begin_commit(None)


def test_a_read_in_a_replay_returns_the_value_before_the_batch_and_as_of_its_txid_the_one_after() -> None:
    def add(state: Any) -> Any:
        return state.multi_get(["a"]), state.multi_update(["a"], [Add(1)]), state.multi_get(["a"])

    assert twice(TRANSACTIONAL, add, add) == (([5], [6], [6]), ([5], [6], [6]), 6)
    assert twice(TRANSACTIONAL, add, lambda state: state.multi_get(["a"], as_of=2)) == (([5], [6], [6]), [6], 6)


@pytest.mark.parametrize(("kind", "stored"), [(TRANSACTIONAL, 7), (OPAQUE, 99), (PLAIN, 99)], ids=str)
def test_another_put_in_a_replay_is_not_stored_by_a_transactional_state(kind: StateType, stored: int) -> None:
    def put(number: int) -> Any:
        return lambda state: (state.multi_put(["a"], [number]), state.multi_get(["a"]))[1]

    assert twice(kind, put(7), put(99)) == ([7], [99], stored)


KEYS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)


@each_fenced
@given(
    st.lists(st.tuples(st.sampled_from(["add", "put", "get", "read and put", "remove", "items"]), KEYS), max_size=8),
    st.booleans(),
)
def test_a_batch_that_comes_again_reads_and_returns_what_it_did_the_first_time(
    kind: StateType, calls: list[tuple[str, list[str]]], as_next: bool
) -> None:
    def batch(state: Any, attempt: int) -> list[Any]:
        found: list[Any] = []
        state.begin_commit(TransactionAttempt(2, attempt))
        for number, (what, keys) in enumerate(calls):
            match what:
                case "add":
                    found.append(state.multi_update(keys, [Add(number + at) for at in range(len(keys))]))
                case "put":
                    state.multi_put(keys, [number] * len(keys))
                case "get":
                    found.append(state.multi_get(keys))
                case "read and put":
                    state.multi_put(keys, [(value or 0) + 10 for value in state.multi_get(keys)])
                case "remove":
                    state.multi_remove(keys)
                case "items":
                    found.append(dict(state.items()))
        state.commit(TransactionAttempt(2, attempt))
        return [*found, dict(state.items())]

    state = state_of(kind)
    commit(state, 1, 0, {"a": Add(5)})
    assert batch(state, 0) == batch(state, int(as_next))


@each_fenced
def test_a_commit_interrupted_between_two_updates_stored_nothing_and_the_retry_applies_all(
    kind: StateType,
) -> None:
    state = state_of(kind)
    state.begin_commit(TransactionAttempt(1, 0))
    assert state.multi_update(["a"], [Add(1)]) == [1]
    state.begin_commit(TransactionAttempt(1, 1))  # the task died here, and the batch is replayed
    assert state.multi_update(["a"], [Add(1)]) == [1]
    assert state.multi_update(["a"], [Add(2)]) == [3]
    state.commit(TransactionAttempt(1, 1))
    assert state.multi_get(["a"]) == [3]
