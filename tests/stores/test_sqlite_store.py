"""The SQLite store under faults: damage, foreign files, locks, concurrent processes, kill -9 inside a commit."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.dying import in_a_child, killed_at_statement
from tests.stores.state_world import Add
from tests.stores.store_contract import commit, committed_without_conflict
from windowing.errors import ConfigError, CorruptStateError, StoreUnavailableError, SupersededError
from windowing.stores import MapStateFactory, SqliteStore, map_state
from windowing.stores.sqlite_files import _has_lost_tables
from windowing.trident.fence import LEDGER, PartitionId
from windowing.trident.kinds import StateType

KEYS = 20


def factory(path: Path, kind: StateType = StateType.OPAQUE, timeout_s: float = 30) -> MapStateFactory:
    return map_state(SqliteStore(path, timeout_s), "counts", kind)


def filled(path: Path) -> Path:
    with closing(factory(path).make_state(0, 1)) as state:
        commit(state, 1, 0, {f"key-{n}": Add(n) for n in range(KEYS)})
    return path


def change(path: Path, statement: str, *bound: Any) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, bound).rowcount != 0


def test_a_name_that_sqlite_reserves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"SQLite keeps names that begin with sqlite_ for itself, got the state 'SQLite_x'; give"
    ):
        map_state(SqliteStore(tmp_path / "s.db"), "SQLite_x").make_state(0, 1)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("value", b"99"),
        ("value", None),
        ("value", "7"),
        ("previous", b"1"),
        ("txid", 0),
        ("txid", "x"),
        ("crc", 5),
        ("partition", 1),
    ],
    ids=str,
)
def test_a_changed_row_is_detected_and_its_key_is_named(tmp_path: Path, column: str, value: Any) -> None:
    path = filled(tmp_path / "state.db")
    change(path, f'UPDATE counts SET "{column}" = ? WHERE key = ?', value, b'"key-7"')
    partition = 1 if column == "partition" else 0
    with closing(factory(path).make_state(partition, 2 if partition else 1)) as state:
        for use in (
            lambda: state.multi_get(["key-7"]),
            lambda: dict(state.items()),
            lambda: commit(state, 2, 0, {"key-7": Add(1)}),
        ):
            with pytest.raises(
                CorruptStateError, match=rf"the row of 'key-7' in the state counts/{partition} .*nothing was reset"
            ):
                use()
        if not partition:
            assert commit(state, 2, 1, {"key-8": Add(1)}) == [9], "other rows can be read and written"


def test_a_row_stored_under_the_key_of_another_is_detected(tmp_path: Path) -> None:
    path = filled(tmp_path / "state.db")
    change(path, "UPDATE counts SET key = x'00' WHERE key = ?", b'"key-1"')
    change(path, "UPDATE counts SET key = ? WHERE key = ?", b'"key-1"', b'"key-2"')
    with closing(factory(path).make_state(0, 1)) as state, pytest.raises(CorruptStateError, match="'key-1'"):
        state.multi_get(["key-1"])


@pytest.mark.parametrize("record", [b"", b"garbage", b"\x80\x05pickle", None, "text"], ids=repr)
def test_a_damaged_fence_is_detected_and_not_replaced(tmp_path: Path, record: Any) -> None:
    path = filled(tmp_path / "state.db")
    change(path, "UPDATE counts_fences SET record = ?", b"" if record is None else record)
    with closing(factory(path).make_state(0, 1)) as state:
        for use in (lambda: state.multi_get(["key-7"]), lambda: commit(state, 1, 0, {"key-7": Add(1)})):
            with pytest.raises(CorruptStateError, match="the fence of the state counts/0"):
                use()


def test_a_missing_fence_is_detected(tmp_path: Path) -> None:
    path = filled(tmp_path / "state.db")
    change(path, "DELETE FROM counts_fences")
    with (
        closing(factory(path).make_state(0, 1)) as state,
        pytest.raises(CorruptStateError, match="but its fence is at 0"),
    ):
        commit(state, 1, 0, {"key-7": Add(1)})


@pytest.mark.parametrize(
    "content", [b"this is no database, but a text of more than 16 bytes", b"SQLite format 3\x00" + b"?" * 4096]
)
def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    with pytest.raises((CorruptStateError, StoreUnavailableError), match=r"state\.db"):
        factory(path).make_state(0, 1)
    assert path.read_bytes() == content


def test_a_foreign_table_of_the_same_name_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE counts (a, b)")
        db.execute("INSERT INTO counts VALUES (1, 2)")
    with (
        closing(factory(path).make_state(0, 1)) as state,
        pytest.raises(CorruptStateError, match="damaged, or not ours"),
    ):
        state.multi_get(["a"])
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM counts").fetchall() == [(1, 2)]


def test_other_tables_of_the_file_are_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE flights (a)")
        db.execute("INSERT INTO flights VALUES (1)")
    filled(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM flights").fetchall() == [(1,)]
        assert db.execute("SELECT count(*), max(txid) FROM counts").fetchall() == [(KEYS, 1)]


# -- locks and concurrent processes ------------------------------------------------------------------------------------


def test_a_lock_timeout_fails_the_attempt_and_the_next_attempt_succeeds(tmp_path: Path) -> None:
    path = filled(tmp_path / "state.db")
    with closing(factory(path, timeout_s=0.05).make_state(0, 1)) as state, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match=r"state\.db cannot be reached or written: .*locked"):
            commit(state, 2, 0, {"key-1": Add(1)})
        other.rollback()
        assert commit(state, 2, 1, {"key-1": Add(1)}) == [2]


def test_a_folder_that_cannot_be_created_is_reported_as_store_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match=r"state\.db cannot be reached or written"):
        factory(tmp_path / "file" / "state.db").make_state(0, 1)


def compete(path: Path, partition: int, attempt: int, txids: int) -> None:
    """Commit one batch after the other with this attempt number; after a `SupersededError` continue with the next batch."""
    with closing(factory(path).make_state(partition, 2)) as state:
        for txid in range(1, txids + 1):
            with suppress(SupersededError):
                while not committed_without_conflict(state, txid, attempt):
                    continue


def test_concurrent_processes_on_one_file_count_each_batch_once(tmp_path: Path) -> None:
    """Two processes per partition commit the same txids as different attempts."""
    path, txids, children = tmp_path / "state.db", 20, []
    for partition in (0, 1):
        for attempt in (0, 1):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    compete(path, partition, attempt, txids)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    for partition in (0, 1):
        with closing(factory(path).make_state(partition, 2)) as state:
            values: dict[str, int] = dict(state.items())
            assert values.pop("all") == sum(values.values()) <= txids
            assert values["by 1"] >= 1


# -- kill -9 -----------------------------------------------------------------------------------------------------------


def batch(txid: int) -> dict[str, Add]:
    return {f"key-{n}": Add(txid) for n in range(KEYS) if (n + txid) % 3}


def expected(txid: int) -> dict[str, int]:
    """Return the state of a run without failures after a txid."""
    sums: dict[str, int] = {}
    for each in range(1, txid + 1):
        for key, add in batch(each).items():
            sums[key] = add.update(sums.get(key))
    return sums


def claimed_txid(states: MapStateFactory) -> int:
    """Return the txid of the last claim, 0 if there is none; it serves as the coordinator's record."""
    with closing(states.store.open(PartitionId(states.name, LEDGER, 1))) as ledger:
        fence = ledger.multi_get([]).fence
    return 0 if fence is None else fence.attempt.txid


def work(
    path: Path, kind: StateType, batches: int, watch: Callable[[sqlite3.Connection], object] = lambda db: None
) -> None:
    """Continue from the file as a coordinator does: the txid that may be incomplete is replayed as the next attempt."""
    states = factory(path, kind)
    first = max(1, claimed_txid(states))
    with closing(states.make_state(0, 1)) as state:
        watch(state.backing._db)
        for txid in range(first, first + batches):
            commit(state, txid, states.claim_attempt(txid, 1).attempt, batch(txid))


def check(path: Path, kind: StateType) -> int:
    """Check that the file holds exactly the state after the last claimed txid, or after the one before."""
    states = factory(path, kind)
    claimed = claimed_txid(states)
    with closing(states.make_state(0, 1)) as state:
        found: dict[str, int] = dict(state.items())
    assert found in (expected(claimed), expected(max(0, claimed - 1)))
    return claimed


def kill_at_random_times(path: Path, kind: StateType, kills: int, seed: int) -> int:
    chance, txid = random.Random(seed), 0
    for _ in range(kills):
        opened, told = os.pipe()

        def soon(pid: int, opened: int = opened) -> None:
            os.read(opened, 1)
            time.sleep(chance.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)

        def job(told: int = told) -> None:
            work(path, kind, 10_000, lambda state: os.write(told, b"."))

        assert in_a_child(job, soon) == -signal.SIGKILL
        os.close(opened)
        os.close(told)
        found = check(path, kind)
        assert found >= txid, "what was committed is gone"
        txid = found
    work(path, kind, 1)
    assert check(path, kind) == max(1, txid)
    return txid


def test_a_new_file_in_which_another_process_makes_its_tables_meanwhile_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    class Meanwhile:
        def execute(self, query: str) -> Any:
            found = db.execute(query).fetchone()
            filled(path)
            return SimpleNamespace(fetchone=lambda: found)

    with closing(sqlite3.connect(path)) as db:
        assert not _has_lost_tables(cast(Any, Meanwhile()))


KINDS = [StateType.OPAQUE, StateType.TRANSACTIONAL]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_commit_is_atomic_if_the_process_is_killed_at_any_statement(tmp_path: Path, kind: StateType) -> None:
    path = tmp_path / "state.db"
    work(path, kind, 1)
    for number in range(1, 1000, 4):
        code = in_a_child(lambda n=number: work(path, kind, 2, killed_at_statement(n)))  # type: ignore[misc]
        check(path, kind)
        if code == 0:
            assert number > 20
            return
        assert code == -signal.SIGKILL
    raise AssertionError("the job does not end")


def test_a_commit_is_atomic_if_the_process_is_killed_at_any_time(tmp_path: Path) -> None:
    assert kill_at_random_times(tmp_path / "state.db", StateType.OPAQUE, kills=10, seed=1) > 0


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("seed", range(5))
def test_commits_are_atomic_over_five_hundred_kills(tmp_path: Path, kind: StateType, seed: int) -> None:
    assert kill_at_random_times(tmp_path / "state.db", kind, kills=50, seed=seed) > 0
