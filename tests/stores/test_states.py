"""States keep committed values and drop rolled-back ones, in memory and in a file; a damaged file is an error, never reset."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing.codec import encode_value
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, DefinitionChangedError
from windowing.stores.states import (
    MemoryStateProvider,
    MemoryStateStore,
    SqliteStateProvider,
    StateFile,
    state_provider,
)
from windowing.topology.state import NEVER, BufferedState

Provider = MemoryStateProvider | SqliteStateProvider


@pytest.fixture(params=["memory", "sqlite"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Provider]:
    found = state_provider(request.param, "words", None if request.param == "memory" else tmp_path / "state.db")
    yield found  # type: ignore[misc]
    found.close()


@pytest.fixture
def state(provider: Provider) -> BufferedState:
    return provider.state("count", 0)


def checkpoint(state: BufferedState, txid: int) -> None:
    state.prepare_commit(txid)
    state.commit(txid)


def content(state: BufferedState) -> dict[Any, Any]:
    return dict(state.items())


# -- operations of a state (Storm's RedisKeyValueStateTest, and more) ----------------------------------------------------


def test_get_returns_the_value_that_was_put(state: BufferedState) -> None:
    state.put("a", 1)
    state.put(("b", 2), [1.5, None])
    assert (state.get("a"), state.get(("b", 2)), state.get("c"), state.get("c", 0)) == (1, [1.5, None], None, 0)
    assert "a" in state
    assert "c" not in state


def test_delete_removes_the_value_and_returns_it(state: BufferedState) -> None:
    state.put("a", 1)
    checkpoint(state, 0)
    assert (state.delete("a"), state.delete("a"), state.get("a", "none")) == (1, None, "none")
    assert content(state) == {}
    checkpoint(state, 1)
    assert content(state) == {}


def test_a_rollback_restores_the_committed_value_each_time(state: BufferedState) -> None:  # C2 of Storm's
    state.put("a", 1)
    checkpoint(state, 0)
    for attempt in range(3):
        state.put("a", 99 + attempt)
        state.prepare_commit(1)
        state.put("a", 200)
        state.rollback()
        assert state.get("a") == 1


def test_a_commit_takes_the_prepared_values_and_not_later_puts(state: BufferedState) -> None:
    state.put("a", 1)
    state.prepare_commit(0)
    state.put("a", 2)
    state.put("b", 3)
    state.commit(0)
    assert content(state) == {"a": 2, "b": 3}
    state.rollback()
    assert content(state) == {"a": 1}


def test_a_repeated_commit_has_no_effect(state: BufferedState) -> None:
    state.put("a", 1)
    checkpoint(state, 0)
    state.put("a", 2)
    state.commit(0)
    state.rollback()
    assert content(state) == {"a": 1}


@pytest.mark.parametrize(("value", "change"), [([1], lambda v: v.append(2)), ({"n": 1}, lambda v: v.update(n=2))])
def test_mutating_a_value_in_place_does_not_change_the_state(
    state: BufferedState, value: Any, change: Callable[[Any], None]
) -> None:
    state.put("a", value)
    before = state.get("a")
    change(value)
    change(state.get("a"))
    assert state.get("a") == before
    checkpoint(state, 0)
    change(state.get("a"))
    assert state.get("a") == before


def test_put_refuses_a_value_that_is_not_plain_data(state: BufferedState) -> None:
    state.put("a", 1)
    with pytest.raises(TypeError, match="keep plain data"):
        state.put("a", object())
    assert state.get("a") == 1


def test_a_txid_out_of_order_is_refused_and_changes_nothing(state: BufferedState) -> None:
    state.put("a", 1)
    with pytest.raises(CheckpointError, match="told to commit txid 0, but prepared is none and committed none; "):
        state.commit(0)
    checkpoint(state, 5)
    state.put("a", 2)
    with pytest.raises(CheckpointError, match="5 is committed"):
        state.prepare_commit(5)
    state.prepare_commit(6)
    with pytest.raises(CheckpointError, match="while 6 is prepared"):
        state.prepare_commit(7)
    with pytest.raises(CheckpointError, match="told to commit txid 7"):
        state.commit(7)
    state.commit(6)
    assert (state.get("a"), state.store.committed_txid) == (2, 6)


def test_a_state_of_another_txid_than_that_of_the_topology_is_refused(state: BufferedState) -> None:
    state.require(7)  # never committed: the state of a new task
    checkpoint(state, 5)
    state.require(5)
    with pytest.raises(CorruptStateError, match="that of txid 5, but the topology goes on from 7"):
        state.require(7)
    with pytest.raises(
        CorruptStateError, match="that of txid 5, but the topology has no checkpoint: its record is missing"
    ):
        state.require(NEVER)


def test_states_of_different_tasks_and_names_are_isolated(provider: Provider) -> None:
    states = [provider.state("count", 0), provider.state("count", 1), provider.state("count", 0, "windows")]
    for number, state in enumerate(states):
        state.put("a", number)
        checkpoint(state, 0)
    assert [content(state) for state in states] == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert provider.state("count", 0) is states[0]


def test_save_record_replaces_the_record_without_a_commit(provider: Provider) -> None:
    assert provider.record("checkpoint") is None
    provider.save_record("checkpoint", {"txid": 1})
    provider.save_record("checkpoint", {"txid": 2})
    assert provider.record("checkpoint") == {"txid": 2}


def test_the_order_of_items_depends_only_on_the_content(provider: Provider) -> None:
    keys = [f"k{number}" for number in range(2500)]  # more than a page of them
    for task in range(2):
        random.Random(task).shuffle(keys)
        state = provider.state("count", task)
        for key in keys[:2000]:
            state.put(key, 1)
        checkpoint(state, 0)
        for key in keys[2000:]:
            state.put(key, 1)
    assert list(provider.state("count", 0).items()) == list(provider.state("count", 1).items())
    assert len(list(provider.state("count", 0).items())) == 2500


def test_an_unknown_state_provider_and_a_file_without_a_path_are_refused() -> None:
    with pytest.raises(ConfigError, match="'memory' or 'sqlite'"):
        state_provider("redis", "words")
    with pytest.raises(ConfigError, match="give its path"):
        state_provider("sqlite", "words")


class StatesBesideModel(RuleBasedStateMachine):
    """The same state in a file and in memory, compared with dicts, with restarts at any time."""

    KEYS = st.sampled_from(["a", "b", 1, True, ("t", 1), None])
    VALUES = st.integers(0, 5) | st.text(max_size=3) | st.lists(st.integers(0, 2), max_size=2) | st.just("x" * 5000)

    @initialize()
    def declare(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "state.db"
        self.memory = MemoryStateProvider()
        self.sqlite = SqliteStateProvider(self.path, "words")
        self.committed: dict[bytes, Any] = {}
        self.prepared: dict[bytes, Any] | None = None
        self.now: dict[bytes, Any] = {}
        self.txid = NEVER

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.sqlite.close()
            self.folder.cleanup()

    @property
    def states(self) -> list[BufferedState]:
        return [provider.state("count", 0) for provider in (self.memory, self.sqlite)]

    @rule(key=KEYS, value=VALUES)
    def put(self, key: Any, value: Any) -> None:
        for state in self.states:
            state.put(key, value)
        self.now[encode_value(key)] = value

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        wanted = self.now.pop(encode_value(key), None)
        assert [state.delete(key) for state in self.states] == [wanted] * 2

    @rule()
    @precondition(lambda self: self.prepared is None)
    def prepare(self) -> None:
        for state in self.states:
            state.prepare_commit(self.txid + 1)
        self.prepared = dict(self.now)

    @rule()
    @precondition(lambda self: self.prepared is not None)
    def commit(self) -> None:
        for state in self.states:
            state.commit(self.txid + 1)
        assert self.prepared is not None
        self.txid, self.committed, self.prepared = self.txid + 1, self.prepared, None

    @rule()
    def rollback(self) -> None:
        for state in self.states:
            state.rollback()
        self.prepared, self.now = None, dict(self.committed)

    @rule()
    def restart(self) -> None:
        self.memory.close()
        self.sqlite.close()
        self.sqlite = SqliteStateProvider(self.path, "words")
        self.now = dict(self.committed if self.prepared is None else self.prepared)

    @invariant()
    def states_match_the_model(self) -> None:
        if hasattr(self, "now"):
            for state in self.states:
                assert [(encode_value(key), value) for key, value in state.items()] == sorted(self.now.items())
                assert state.store.committed_txid == self.txid


TestStatesBesideModel = StatesBesideModel.TestCase
TestStatesBesideModel.settings = settings(stateful_step_count=25, max_examples=settings().max_examples // 2)


# -- the file -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A closed file with 40 committed values of two tasks, two prepared ones and a record."""
    path = tmp_path / "state.db"
    with SqliteStateProvider(path, "words") as provider:
        for task in range(2):
            state = provider.state("count", task)
            for number in range(20):
                state.put(f"key-{number}", f"value-{task}-{number}")
            checkpoint(state, 0)
            state.put("key-0", "prepared")
            state.delete("key-1")
            state.prepare_commit(1)
        provider.save_record("checkpoint", {"txid": 1})
    return path


def everything(path: Path) -> Any:
    with SqliteStateProvider(path, "words") as provider:
        states = [provider.state("count", task) for task in range(2)]
        found = [(content(state), state.store.committed_txid, state.store.prepared_txid) for state in states]
        return found, provider.record("checkpoint")


def test_a_reopened_file_has_the_committed_and_prepared_values(filled: Path) -> None:
    (first, second), record = everything(filled)
    assert first[0] == {"key-0": "prepared"} | {f"key-{n}": f"value-0-{n}" for n in range(2, 20)}
    assert (first[1:], second[1:], record) == ((0, 1), (0, 1), {"txid": 1})


def test_prepared_values_can_be_committed_or_rolled_back_after_a_reopen(filled: Path) -> None:
    with SqliteStateProvider(filled, "words") as provider:
        provider.state("count", 0).commit(1)
        provider.state("count", 1).rollback()
    (first, second), _ = everything(filled)
    assert (first[0]["key-0"], "key-1" in first[0], first[1:]) == ("prepared", False, (1, None))
    assert (second[0]["key-0"], second[0]["key-1"], second[1:]) == ("value-1-0", "value-1-1", (0, None))


def test_a_checkpoint_writes_only_the_changed_values(tmp_path: Path) -> None:
    with SqliteStateProvider(tmp_path / "state.db", "words") as provider:
        state, db = provider.state("count", 0), provider.file._db
        for number in range(1000):
            state.put(number, number)
        checkpoint(state, 0)
        before = db.total_changes
        state.put(1, "new")
        state.put(1, "newer")
        state.delete(2)
        checkpoint(state, 1)
        # Two rows prepared, one replaced, one deleted, two taken out of prepared, twice the row of the state.
        assert db.total_changes - before <= 9


def test_a_file_of_another_topology_or_of_a_newer_format_is_refused(filled: Path) -> None:
    with pytest.raises(DefinitionChangedError, match="belongs to the topology 'words', this one is 'sums'"):
        StateFile(filled, "sums")
    with closing(sqlite3.connect(filled, isolation_level=None)) as db:
        for version, which in ((3, ""), (1, ", which is 0.1, or begin with a new file")):
            db.execute(f"PRAGMA user_version = {version}")
            refused = rf"format {version}, this version reads 2; use the version of the library that wrote it{which}$"
            with pytest.raises(DefinitionChangedError, match=refused):
                StateFile(filled, "words")


def test_a_file_in_use_is_refused(filled: Path) -> None:
    with (
        SqliteStateProvider(filled, "words"),
        pytest.raises(CheckpointError, match="in use by another process"),
    ):
        StateFile(filled, "words")


def test_a_reader_of_a_file_in_use_does_not_block_a_commit(filled: Path) -> None:
    with SqliteStateProvider(filled, "words") as provider, closing(sqlite3.connect(filled, timeout=0)) as other:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("SELECT * FROM committed")
        provider.state("count", 0).commit(1)


@pytest.mark.parametrize("found", [b"", b"gASVCAAAAAAAAACMBG1haW6ULg==", b"SQLite format 3\0" + b"\0" * 100])
def test_a_file_that_is_not_a_state_file_is_refused_and_not_changed(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(found)
    with pytest.raises(CorruptStateError, match="nothing was reset"):
        StateFile(path, "words")
    assert path.read_bytes() == found


def test_a_state_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        StateFile(tmp_path / "file" / "state.db", "words")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE committed SET value = CAST('\"other\"' AS BLOB) WHERE key = CAST('\"key-3\"' AS BLOB)",
        "UPDATE committed SET key = CAST('\"key-x\"' AS BLOB) WHERE key = CAST('\"key-3\"' AS BLOB)",
        "UPDATE committed SET state = 3 WHERE key = CAST('\"key-3\"' AS BLOB) AND state = 1",
        "UPDATE committed SET value = 'text' WHERE key = CAST('\"key-3\"' AS BLOB)",
        "DELETE FROM committed WHERE key = CAST('\"key-3\"' AS BLOB)",
        "DELETE FROM committed",
        "UPDATE prepared SET value = NULL",
        "DELETE FROM prepared WHERE value IS NULL",
        "UPDATE states SET committed = 7 WHERE id = 1",
        "UPDATE states SET prepared = NULL",
        "DELETE FROM states WHERE id = 2",
        "UPDATE states SET id = 3 - id + 10",
        "UPDATE committed SET value = CAST('{\"txid\":0}' AS BLOB) WHERE state = 3",
        "DELETE FROM committed WHERE state = 3",
        "CREATE TABLE more (id)",
        "DROP TABLE prepared",
    ],
)
def test_a_changed_moved_or_missing_row_is_detected_and_the_file_is_not_changed(filled: Path, change: str) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as db:
        db.execute(change)
    before = filled.read_bytes()
    with pytest.raises(CorruptStateError, match="is damaged"):
        StateFile(filled, "words")
    assert filled.read_bytes() == before


def test_reading_a_damaged_value_names_its_key(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as db:
        db.execute("UPDATE committed SET value = x'31' WHERE key = CAST('\"key-3\"' AS BLOB) AND state = 1")
    monkeypatch.setattr(StateFile, "verify", lambda self: None)  # as if it was damaged after the start
    with SqliteStateProvider(filled, "words") as provider:
        state = provider.state("count", 0)
        assert state.get("key-4") == "value-0-4"
        with pytest.raises(CorruptStateError, match="the value of 'key-3' in the state count/0/state"):
            state.get("key-3")


def test_a_value_that_is_no_json_is_named_with_its_key() -> None:
    store = MemoryStateStore("count/0/state")
    store.prepare(0, {encode_value("broken"): b"{", encode_value("whole"): b"3"})
    store.commit(0)
    state = BufferedState(store)
    assert state.get("whole") == 3
    for read in (state.get, state.delete):
        with pytest.raises(CorruptStateError, match="the value of 'broken' in the state count/0/state cannot be read"):
            read("broken")


def test_a_flipped_bit_is_detected_or_has_no_effect(filled: Path) -> None:
    whole, wanted = filled.read_bytes(), everything(filled)
    whole = filled.read_bytes()
    used = [at for at, byte in enumerate(whole) if byte]  # most bytes of a small file are free space
    chance, refused = random.Random(1), 0
    for at in chance.sample(used, 300):
        filled.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        try:
            assert everything(filled) == wanted, f"byte {at}"
        except (CorruptStateError, DefinitionChangedError):
            refused += 1
        filled.with_name("state.db-wal").unlink(missing_ok=True)
    assert refused > 100, "the flips should hit something"


def test_a_truncated_file_is_refused(filled: Path) -> None:
    whole = filled.read_bytes()
    for cut in range(0, len(whole), len(whole) // 64):
        filled.write_bytes(whole[:cut])
        with pytest.raises(CorruptStateError):
            everything(filled)


def test_a_full_disk_fails_prepare_and_no_value_is_lost(tmp_path: Path) -> None:
    with SqliteStateProvider(tmp_path / "state.db", "words") as provider:
        state, db = provider.state("count", 0), provider.file._db
        state.put("a", 1)
        checkpoint(state, 0)
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        state.put("a", "".join(map(str, range(20_000))))
        with pytest.raises(CheckpointError, match=r"cannot be written: database or disk is full"):
            state.prepare_commit(1)
        assert state.store.prepared_txid is None
        db.execute("PRAGMA max_page_count = 100000")
        checkpoint(state, 1)  # no value that was put is lost
        assert len(state.get("a")) > 5_000


def test_all_writes_of_a_transaction_are_durable_together_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    def prepare(provider: SqliteStateProvider, txid: int) -> None:
        for task in range(3):
            provider.state("count", task).put("txid", txid)
            provider.state("count", task).prepare_commit(txid)
        provider.save_record("checkpoint", txid)
        provider.save_record("checkpoint", txid)

    def found(provider: SqliteStateProvider) -> list[Any]:
        states = [provider.state("count", task) for task in range(3)]
        return [
            provider.record("checkpoint"),
            *((state.store.prepared_txid, state.store.committed_txid, content(state)) for state in states),
        ]

    with SqliteStateProvider(path, "words") as provider:
        for txid in range(2):
            before = found(provider)
            with suppress(ZeroDivisionError), provider.transaction():
                prepare(provider, txid)
                raise ZeroDivisionError
            provider.forget()
            assert found(provider) == before
            with provider.transaction():
                prepare(provider, txid)
            with provider.transaction():
                for task in range(3):
                    provider.state("count", task).commit(txid)
            assert found(provider) == [txid, *[(None, txid, {"txid": txid})] * 3]
    with SqliteStateProvider(path, "words") as provider:
        assert found(provider) == [1, *[(None, 1, {"txid": 1})] * 3]


def test_names_and_keys_are_bound_as_data_and_never_run_as_sql(tmp_path: Path) -> None:
    name = "x'; DROP TABLE committed; --"
    with SqliteStateProvider(tmp_path / "state.db", name) as provider:
        state = provider.state(name, 0)
        state.put(name, name)
        state.put("\0\n\x1b[31m\ud800", "…")
        checkpoint(state, 0)
    with SqliteStateProvider(tmp_path / "state.db", name) as provider:
        assert content(provider.state(name, 0)) == {name: name, "\0\n\x1b[31m\ud800": "…"}


def test_rows_of_the_previous_commit_are_detected_even_if_all_differ_by_the_same_bits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "states.db"
    older: list[Any] = []
    for txid in range(2):
        with SqliteStateProvider(path, "words") as provider:
            state = provider.state("count", 0)
            for key in range(40):
                state.put(f"key-{key}", f"{txid} " * 20)
            state.prepare_commit(txid)
            state.commit(txid)
        with closing(sqlite3.connect(path)) as db, db:
            older, rows = db.execute("SELECT * FROM committed").fetchall(), older
            db.executemany("REPLACE INTO committed VALUES (?, ?, ?, ?)", rows)
    with pytest.raises(
        CorruptStateError, match="of the 40 committed values of the state count/0/state 40 were found, or others"
    ):
        SqliteStateProvider(path, "words")
