"""A process is killed in a prepare or a commit: the file holds the state before or after it, never a mixture."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dying import in_a_child, killed_at_statement
from windowing.stores.states import SqliteStateProvider

TASKS = 2
KEYS = 10


def expected(txid: int) -> dict[str, str]:
    """Return the content of a state as of a txid: each txid changes every value and deletes one key."""
    return {f"key-{n}": f"value-{txid}-{n}" for n in range(KEYS) if n != txid % KEYS} if txid >= 0 else {}


def last_txid(provider: SqliteStateProvider) -> int:
    record = provider.record("checkpoint")
    return -1 if record is None else int(record)


def work(path: Path, checkpoints: int, watch: Callable[[sqlite3.Connection], object] = lambda db: None) -> None:
    """Continue from the content of the file, for this number of checkpoints."""
    provider = SqliteStateProvider(path, "words")
    watch(provider.file._db)
    states = [provider.state("count", task) for task in range(TASKS)]
    first = 1 + last_txid(provider)
    for txid in range(first, first + checkpoints):
        for state in states:
            for key, value in expected(txid).items():
                state.put(key, value)
            state.delete(f"key-{txid % KEYS}")
            state.prepare_commit(txid)
        provider.save_record("checkpoint", txid)
        for state in states:
            state.commit(txid)
    provider.close()


def recover(path: Path) -> int:
    """Check that the file holds one complete txid, and perhaps a prepared one; commit or roll that back; return the txid."""
    with SqliteStateProvider(path, "words") as provider:
        record = last_txid(provider)
        for task in range(TASKS):
            state = provider.state("count", task)
            committed, prepared = state.store.committed_txid, state.store.prepared_txid
            assert (committed, prepared) in {(record, None), (record, record + 1), (record - 1, record)}
            assert dict(state.items()) == expected(committed if prepared is None else prepared)
            if prepared == record:
                state.commit(record)
            else:
                state.rollback()
            assert dict(state.items()) == expected(record)
        return record


def kill_at_every_statement(path: Path, every: int) -> int:
    for kills, number in enumerate(range(1, 10_000, every)):
        code = in_a_child(lambda n=number: work(path, 2, killed_at_statement(n)))  # type: ignore[misc]
        recover(path)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
    raise AssertionError("the job does not end")


def kill_at_random_times(path: Path, kills: int, seed: int) -> int:
    """Kill the process this number of times; return the last txid that the child processes reached."""
    chance, txid = random.Random(seed), -1
    for _ in range(kills):
        opened, told = os.pipe()

        def soon(pid: int, opened: int = opened) -> None:
            os.read(opened, 1)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)

        def job(told: int = told) -> None:
            work(path, 10_000, lambda provider: os.write(told, b"."))

        assert in_a_child(job, soon) == -signal.SIGKILL
        os.close(opened)
        os.close(told)
        found = recover(path)
        assert found >= txid, "what was committed is gone"
        txid = found
    return txid


def test_a_kill_at_every_ninth_statement_leaves_one_state_or_the_next(tmp_path: Path) -> None:
    assert kill_at_every_statement(tmp_path / "state.db", every=9) > 10


def test_a_kill_at_any_time_leaves_one_state_or_the_next(tmp_path: Path) -> None:
    assert kill_at_random_times(tmp_path / "state.db", kills=20, seed=1) > 0


def test_a_kill_while_the_file_is_created_leaves_no_file_or_a_complete_one(tmp_path: Path) -> None:
    for number, delay_ms in enumerate([0, 1, 2, 3, 5, 8]):
        path = tmp_path / str(number) / "state.db"

        def soon(pid: int, delay_ms: int = delay_ms) -> None:
            time.sleep(delay_ms / 1000)
            os.kill(pid, signal.SIGKILL)

        in_a_child(lambda path=path: work(path, 1), soon)  # type: ignore[misc]
        recover(path)


@pytest.mark.crash
def test_a_kill_at_every_statement_leaves_one_state_or_the_next(tmp_path: Path) -> None:
    assert kill_at_every_statement(tmp_path / "state.db", every=1) > 100


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_kills_at_any_time_leave_one_state_or_the_next(tmp_path: Path, seed: int) -> None:
    assert kill_at_random_times(tmp_path / "state.db", kills=200, seed=seed) > 50
