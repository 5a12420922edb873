"""TransactionalState and RotatingTransactionalState: a value is read back from its own path, or an error names it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windowing.codec import frame
from windowing.errors import ConfigError, CorruptStateError, StateConflictError, SupersededError
from windowing.trident.coordinator import CoordinatorRecord, StoredRecord, Tries
from windowing.trident.transactional_state import (
    MemoryRecordStore,
    RotatingTransactionalState,
    TransactionalState,
    part_of,
    put_all,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.integers(0, 9), each, max_size=3) | st.tuples(each),
    max_leaves=8,
)


@pytest.fixture
def store() -> MemoryRecordStore:
    return MemoryRecordStore()


@pytest.fixture
def state(store: MemoryRecordStore) -> TransactionalState:
    return TransactionalState(store, "spout")


# -- values by path -------------------------------------------------------------------------------------------------------


@given(PLAIN)
def test_a_value_is_read_back_with_its_types(value):
    state = TransactionalState(MemoryRecordStore(), "spout")
    state.write({"a/b": value})
    found = state.read("a/b")
    assert (found, repr(found)) == (value, repr(value))


def test_an_unwritten_name_is_none_and_written_ones_are_listed(state):
    state.write({"meta/2": 0, "meta/10": 0, "other": 0})
    assert state.read("meta/3") is None
    assert (state.names(), state.names("meta"), state.names("m")) == (["meta", "other"], ["10", "2"], [])
    assert state.at("meta").read("2") == 0
    state.write({}, gone=["meta/2", "meta/3"])
    assert state.names("meta") == ["10"]


def test_two_spouts_in_one_store_have_separate_values(store, state):
    other = TransactionalState(store, "spout2")
    state.write({"x": 1})
    assert (other.read("x"), other.names()) == (None, [])


def test_one_write_is_one_transaction_of_the_store(state, store):
    calls = []
    write = store.write
    store.write = lambda changes, expected: calls.append(len(changes)) or write(changes, expected)
    state.write({"a": 1, "b": 2})
    assert calls == [2]


def test_a_value_that_is_no_plain_data_is_refused_before_anything_is_written(state, store):
    with pytest.raises(TypeError):
        state.write({"a": 1, "b": object()})
    assert store.blobs == {}


def damaged(blob: bytes) -> list[bytes]:
    flipped = [bytes([*blob[:place], blob[place] ^ 1, *blob[place + 1 :]]) for place in range(len(blob))]
    return [blob[:cut] for cut in range(len(blob))] + flipped + [b"", b"null", b"\x80\x05K\x01.", blob + b"x"]


def test_every_damaged_blob_is_an_error_that_names_its_path(state, store):
    state.write({"meta/7": {"offset": 5}})
    good = store.blobs["spout/meta/7"]
    for blob in damaged(good):
        store.blobs["spout/meta/7"] = blob
        with pytest.raises(
            CorruptStateError, match=r"the value of spout/meta/7 .*(nothing was reset|the version that wrote it)"
        ):
            state.read("meta/7")


def test_a_newer_format_is_an_error_with_both_versions(state, store):
    blob = bytearray(frame(b"WNDT", b'["spout/x",1]'))
    blob[5] = 9
    store.write({"spout/x": bytes(blob)}, {})
    with pytest.raises(CorruptStateError, match="the value of spout/x has format 9, this library reads 1"):
        state.read("x")


def test_a_blob_of_another_path_is_an_error(state, store):
    state.write({"a": 1, "b": 2})
    store.blobs["spout/a"] = store.blobs["spout/b"]
    with pytest.raises(CorruptStateError, match="the value of spout/a is that of 'spout/b'"):
        state.read("a")


@pytest.mark.parametrize("name", ["", "a//b", "../x", "/etc", "a/..", "a\0", "a b", "é"])
def test_a_name_that_is_no_path_is_refused(state, name):
    with pytest.raises(ConfigError, match="is no path of a store"):
        state.write({name: 1})


@given(st.lists(st.text(max_size=6), unique=True, max_size=8))
def test_any_text_can_be_part_of_a_path_and_different_texts_have_different_paths(texts):
    parts = [part_of(text) for text in texts]
    assert len(set(parts)) == len(texts)
    state = TransactionalState(MemoryRecordStore(), "spout")
    state.write({f"p/{part}": text for part, text in zip(parts, texts, strict=True)})
    assert {state.read(f"p/{part}") for part in parts} == set(texts)


def test_a_write_over_an_unread_value_of_another_writer_is_refused(state, store):
    other = TransactionalState(store, "spout")
    state.write({"a": 1})
    with pytest.raises(StateConflictError, match=r"\['spout/a', 'spout/b'\] was written by somebody else"):
        other.write({"a": 2, "b": 2})
    assert (state.read("a"), state.read("b")) == (1, None)
    assert other.read("a") == 1
    other.write({"a": 2, "b": 2})
    with pytest.raises(StateConflictError):
        state.write({"a": 3})
    other.write({}, gone=["a"])
    with pytest.raises(StateConflictError):
        state.write({"a": 3})
    assert state.read("a") is None
    state.write({"a": 4})
    assert other.read("a") == 4


def test_of_two_coordinators_on_one_store_the_older_one_cannot_save(store):
    old, new = (StoredRecord(TransactionalState(store, "counts")) for _ in range(2))
    old.load()
    old.save(CoordinatorRecord(1, {1: Tries(0)}))
    assert new.load() == CoordinatorRecord(1, {1: Tries(0)})
    new.save(CoordinatorRecord(1, {1: Tries(1)}))
    for _ in range(2):
        with pytest.raises(SupersededError, match="counts/coordinator was saved by another coordinator, which goes on"):
            old.save(CoordinatorRecord(2))
    new.save(CoordinatorRecord(2))
    assert old.load() == CoordinatorRecord(2)


def test_a_damaged_coordinator_record_stops_the_start(store):
    StoredRecord(TransactionalState(store, "counts")).save(CoordinatorRecord(9))
    blob = store.blobs["counts/coordinator"]
    store.blobs["counts/coordinator"] = blob[:-1]
    with pytest.raises(CorruptStateError, match="counts/coordinator is damaged"):
        StoredRecord(TransactionalState(store, "counts")).load()


# -- values by txid -------------------------------------------------------------------------------------------------------


def test_the_previous_value_of_a_txid_is_that_of_the_next_smaller_one(state):
    metas = RotatingTransactionalState(state, "meta")
    assert (metas.previous(9), metas.last(), metas.txids(), metas.is_over(1)) == (None, None, [], False)
    metas.put(9, "i")
    metas.put(10, "j")
    metas.put(12, "l")
    assert [metas.previous(txid) for txid in (9, 10, 11, 12, 13)] == [None, "i", "j", "j", "l"]
    assert (metas.last(), metas.get(12), metas.get(11), 10 in metas, 11 in metas) == ("l", "l", None, True, False)


def test_cleanup_removes_earlier_values_except_the_one_that_the_next_txid_needs(state):
    metas = RotatingTransactionalState(state, "meta")
    for txid in range(1, 6):
        metas.put(txid, str(txid))
    metas.cleanup_before(4)
    assert metas.txids() == [4, 5]
    metas.cleanup_before(9)
    assert (metas.txids(), metas.previous(9)) == ([5], "5")
    assert (metas.is_over(4), metas.is_over(5)) == (True, False)


def test_cleanup_keeps_the_last_value_up_to_a_txid_without_one_of_its_own(state):
    metas = RotatingTransactionalState(state, "meta")
    for txid in (2, 3, 6):
        metas.put(txid, str(txid))
    metas.cleanup_before(5)
    assert (metas.txids(), metas.previous(6)) == ([3, 6], "3")


def test_a_cleanup_is_part_of_the_next_write_of_its_name(state, store):
    metas = RotatingTransactionalState(state, "meta")
    writes = []
    write = store.write
    store.write = lambda changes, expected: writes.append(sorted(changes)) or write(changes, expected)
    for txid in (1, 2, 3):
        metas.put(txid, None)
        metas.cleanup_before(txid)
    assert writes == [["spout/meta/1"], ["spout/meta/2"], ["spout/meta/1", "spout/meta/3"]]
    assert RotatingTransactionalState(state, "meta").txids() == [2, 3]  # a restart before the next write
    metas.put(4, None)
    assert state.names("meta") == ["3", "4"]
    assert len(state._known["spout/meta"]) == 2  # what is deleted is forgotten


def test_a_first_value_that_is_written_when_it_was_cleaned_up_changes_nothing(state, store):  # found by the simulator
    late = RotatingTransactionalState(TransactionalState(store, "spout"), "meta")
    metas = RotatingTransactionalState(state, "meta")
    for txid in (1, 2, 3):
        metas.put(txid, txid)
        metas.cleanup_before(txid)
    late.put(1, "late")
    again = RotatingTransactionalState(TransactionalState(store, "spout"), "meta")
    assert (again.txids(), again.previous(4), again.last()) == ([1, 2, 3], 3, 3)
    again.cleanup_before(3)
    again.put(4, 4)
    assert state.names("meta") == ["3", "4"]


def test_a_failed_write_keeps_the_old_value(state, store):
    metas = RotatingTransactionalState(state, "meta")
    metas.put(1, "a")

    def broken(changes: Any, expected: Any) -> bool:
        raise OSError("no space")

    store.write = broken
    with pytest.raises(OSError, match="no space"):
        metas.put(1, "b")
    assert (metas.get(1), RotatingTransactionalState(state, "meta").get(1)) == ("a", "a")
    metas.check()


def test_the_values_of_several_names_are_written_in_one_transaction(state, store):
    names = [RotatingTransactionalState(state, f"partitions/p{number}") for number in range(3)]
    calls = []
    write = store.write
    store.write = lambda changes, expected: calls.append(len(changes)) or write(changes, expected)
    put_all({each: number for number, each in enumerate(names)}, 7)
    put_all({}, 8)
    assert calls == [3]
    assert [each.get(7) for each in names] == [0, 1, 2]


def test_a_value_that_another_life_deletes_during_the_first_read_is_absent() -> None:  # found by the simulator
    class Shared(MemoryRecordStore):
        def paths(self, prefix: str) -> list[str]:
            found = super().paths(prefix)
            self.write({"spout/meta/5": None}, {})
            return found

    store = Shared()
    metas = RotatingTransactionalState(TransactionalState(store, "spout"), "meta")
    metas.put(5, "a")
    metas.put(6, None)
    assert RotatingTransactionalState(TransactionalState(store, "spout"), "meta").txids() == [6]


def test_a_damaged_or_foreign_entry_stops_the_start_with_its_name(state, store):
    RotatingTransactionalState(state, "meta").put(4, "x")
    store.blobs["spout/meta/4"] = b"garbage"
    with pytest.raises(CorruptStateError, match="spout/meta/4"):
        RotatingTransactionalState(state, "meta")
    store.write({"spout/meta/4": None}, {})
    state.write({"meta/04": 1})
    with pytest.raises(CorruptStateError, match="holds '04', wanted txids only"):
        RotatingTransactionalState(state, "meta")


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "clean", "restart"]), st.integers(1, 9), st.none() | st.integers()),
        max_size=30,
    )
)
def test_over_any_history_it_equals_a_dict(history):
    state = TransactionalState(MemoryRecordStore(), "spout")
    metas, model = RotatingTransactionalState(state, "meta"), dict[int, Any]()
    stored = dict[int, Any]()
    for what, txid, value in history:
        if what == "put":
            metas.put(txid, value)
            model[txid] = value
            stored = dict(model)
        elif what == "clean":
            metas.cleanup_before(txid)
            least = max((each for each in model if each <= txid), default=0)
            model = {each: model[each] for each in model if each >= least}
        else:
            metas, model = RotatingTransactionalState(state, "meta"), dict(stored)
        metas.check(live=model)
        assert metas.txids() == sorted(model)
        for each in range(11):
            below = [number for number in model if number < each]
            assert metas.previous(each) == (model[max(below)] if below else None)
            assert metas.is_over(each) == (bool(model) and not below and each not in model)
