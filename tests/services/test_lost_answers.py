"""PostgreSQL and Redis stores with cut connections, lost responses and stopped servers."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import redis

from tests.services.conftest import ROOT, address, empty, evicting, without_room
from tests.services.proxy import Cut, Proxy
from tests.services.test_server_stores import store_on
from tests.stores.state_world import Add
from tests.stores.store_contract import commit
from windowing.errors import ConfigError, CorruptStateError, StoreUnavailableError
from windowing.stores import map_state
from windowing.stores.postgres import PostgresStore
from windowing.stores.remote import masked
from windowing.trident.fence import PartitionId
from windowing.trident.kinds import StateType

ROUND_TRIPS_OF_A_BATCH = 2
SERVICES = ROOT / ".services"


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with Proxy(address(server)) as standing:
        yield standing


def state_through(server: str, proxy: Proxy, kind: StateType = StateType.OPAQUE, patience_s: float = 10) -> Any:
    return map_state(store_on(server, proxy.url, patience_s), "counts", kind).make_state(0, 1)


def stored(server: str) -> dict[str, int]:
    with closing(map_state(store_on(server), "counts").make_state(0, 1)) as state:
        return dict(state.items())


@pytest.mark.parametrize("keys", [0, 1, 1000])
def test_a_batch_takes_two_round_trips_at_any_size(server: str, proxy: Proxy, keys: int) -> None:
    with closing(state_through(server, proxy)) as state:
        commit(state, 1, 0, {n: Add(1) for n in range(keys)})
        for txid in range(2, 10):  # psycopg prepares a frequent statement once, in a round trip
            commit(state, txid, 0, {n: Add(1) for n in range(keys)})
        before = proxy.requests
        commit(state, 10, 0, {n: Add(1) for n in range(keys)})
        assert proxy.requests - before == ROUND_TRIPS_OF_A_BATCH


def connect_and_commit(server: str, proxy: Proxy, name: str) -> int:
    """Connect, create the tables, commit two batches; return the number of requests, without that of closing."""
    before = proxy.requests
    with closing(map_state(store_on(server, proxy.url, 10), name).make_state(0, 1)) as state:
        assert commit(state, 1, 0, {"a": Add(1), "b": Add(2)}) == [1, 2]
        assert commit(state, 2, 0, {"a": Add(10)}) == [11]
        taken = proxy.requests - before
    with closing(map_state(store_on(server), name).make_state(0, 1)) as state:
        assert dict(state.items()) == {"a": 11, "b": 2}
    return taken


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "before its answer arrives"])
def test_each_batch_counts_once_if_the_connection_is_cut_at_any_request(server: str, proxy: Proxy, after: bool) -> None:
    steps = connect_and_commit(server, proxy, "undisturbed")
    assert steps >= 2 * ROUND_TRIPS_OF_A_BATCH
    for step in range(1, steps + 1):
        time.sleep(0.05)  # closing the previous connection is a request too
        proxy.cut = Cut(proxy.requests + step, after)
        connect_and_commit(server, proxy, f"cut_{step}")
        assert proxy.cuts == step, "the connection was not cut"


@pytest.mark.parametrize("after", [False, True], ids=["before the server has it", "before its answer arrives"])
def test_the_next_attempt_finds_out_whether_a_commit_without_response_was_written(
    server: str, proxy: Proxy, after: bool
) -> None:
    """No response comes within the patience: the attempt fails; the next attempt reads what was written."""
    for kind, txid in ((StateType.OPAQUE, 2), (StateType.OPAQUE, 3)):
        with closing(state_through(server, proxy, kind, patience_s=0.5)) as state:
            if txid == 2:
                commit(state, 1, 0, {"a": Add(1)})
            state.multi_get(["a"])
            proxy.cut, proxy.refuse = Cut(proxy.requests + 2, after), 1000
            with pytest.raises(StoreUnavailableError, match=r"did not answer for 0\.5 s"):
                commit(state, txid, 0, {"a": Add(100)})
            proxy.refuse = 0
            assert commit(state, txid, 1, {"a": Add(10)}) == [1 + 10 * (txid - 1)]
    assert stored(server) == {"a": 21}


def test_a_refused_connection_is_retried(server: str, proxy: Proxy) -> None:
    proxy.refuse = 3
    with closing(state_through(server, proxy)) as state:
        assert commit(state, 1, 0, {"a": Add(1)}) == [1]
    assert proxy.refuse == 0


def test_a_non_transactional_put_is_retried(server: str, proxy: Proxy) -> None:
    with closing(state_through(server, proxy, StateType.NON_TRANSACTIONAL)) as state:
        commit(state, 1, 0, {"a": Add(1)})
        proxy.cut = Cut(proxy.requests + 2, after=True)
        assert commit(state, 2, 0, {"a": Add(1)}) == [2]
        assert proxy.cuts == 1
        assert state.multi_get(["a"]) == [2]


# -- patience ----------------------------------------------------------------------------------------------------------


PATIENCE_S = 1.0


def assert_timeout(server: str, use: Any, what: str) -> None:
    """Check that a call fails within its patience with an error that names the state and hides the password."""
    started = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=rf"the state counts/0 at .* did not answer for 1 s: .*{what}"):
        use()
    assert time.monotonic() - started < PATIENCE_S + 1.5, "two seconds is the least for a connection"


def test_waiting_for_a_lock_ends_after_the_patience() -> None:
    empty("postgres")
    with (
        closing(map_state(store_on("postgres", patience_s=PATIENCE_S), "counts").make_state(0, 1)) as state,
        psycopg.connect(address("postgres")) as other,
    ):
        commit(state, 1, 0, {"a": Add(1)})
        other.execute("SELECT * FROM counts_fences FOR UPDATE")
        assert_timeout("postgres", lambda: commit(state, 2, 0, {"a": Add(10)}), "(lock|statement) timeout")
        other.rollback()
        other.execute("LOCK TABLE counts")
        assert_timeout("postgres", lambda: state.multi_get(["a"]), "(lock|statement) timeout")
        other.rollback()
        assert commit(state, 2, 1, {"a": Add(100)}) == [101]
        other.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(b"others"),))
        given_up_at = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="timeout"):
            map_state(store_on("postgres", patience_s=PATIENCE_S), "others").make_state(0, 1).multi_get(["a"])
        assert time.monotonic() - given_up_at < PATIENCE_S + 1.5
    assert stored("postgres") == {"a": 101}


def test_timeouts_of_the_address_are_kept_if_they_are_shorter() -> None:
    url = f"{address('postgres')}?options=-c%20statement_timeout%3D200%20-c%20lock_timeout%3D90min"
    with closing(PostgresStore(url, PATIENCE_S).open(PartitionId("counts", 0, 1))) as rows:
        rows.multi_get([])
        db: Any = rows._db
        assert db.execute("SHOW statement_timeout").fetchone() == ("200ms",)
        assert db.execute("SHOW lock_timeout").fetchone() == ("1s",)
        assert db.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("1s",)


def test_a_stopped_server_is_a_timeout_after_the_patience(server: str) -> None:
    with closing(map_state(store_on(server, patience_s=PATIENCE_S), "counts").make_state(0, 1)) as state:
        commit(state, 1, 0, {"a": Add(1)})
        if server == "redis":
            pid = int((SERVICES / "redis" / "pid").read_text())
        else:
            pid = state.backing._db.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert_timeout(server, lambda: commit(state, 2, 0, {"a": Add(10)}), "")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert commit(state, 2, 1, {"a": Add(100)}) == [101], "whatever became of the other attempt"


@pytest.mark.parametrize("connected", [True, False])
def test_a_silent_network_is_a_timeout_after_the_patience(server: str, proxy: Proxy, connected: bool) -> None:
    with closing(state_through(server, proxy, patience_s=PATIENCE_S)) as state:
        if connected:
            commit(state, 1, 0, {"a": Add(1)})
        proxy.silent = True
        assert_timeout(server, lambda: commit(state, 2, 0, {"a": Add(10)}), "")
        proxy.silent = False
        assert commit(state, 2, 1, {"a": Add(100)}) == [101 if connected else 100]


# -- passwords and wrong addresses -------------------------------------------------------------------------------------


SECRET = "pa55-of-the-state"
WRONG = {
    "postgres": [
        f"postgresql://windowing:{SECRET}@127.0.0.1:1/x",
        f"host=127.0.0.1 port=1 password={SECRET}",
        f"postgresql://me:{SECRET}@127.0.0.1/x?nonsense=1",
    ],
    "redis": [
        f"redis://:{SECRET}@127.0.0.1:1/0",
        f"rediss://me:{SECRET}@127.0.0.1:1/0",
        f"http://me:{SECRET}@127.0.0.1/0",
    ],
}


@pytest.mark.parametrize("which", range(3))
def test_a_password_is_in_no_error_and_no_repr_of_a_store(server: str, which: int) -> None:
    factory = map_state(store_on(server, WRONG[server][which], 0.1), "counts")
    assert SECRET not in repr(factory)
    with pytest.raises((StoreUnavailableError, ConfigError)) as caught:
        factory.make_state(0, 1).multi_get(["a"])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_password_is_reported_at_once_and_not_shown(server: str) -> None:
    url = address(server)
    password = url.split("@")[0].rpartition(":")[2]
    started = time.monotonic()
    with pytest.raises(ConfigError, match="refuses the user") as caught:
        map_state(store_on(server, url.replace(password, SECRET)), "counts").make_state(0, 1).multi_get(["a"])
    assert time.monotonic() - started < 5
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert masked(url) in str(caught.value)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_damaged_row_on_a_server_is_named_and_nothing_is_reset(server: str) -> None:
    with closing(map_state(store_on(server), "counts").make_state(0, 1)) as state:
        commit(state, 1, 0, {"a": Add(1), "b": Add(2)})
        if server == "postgres":
            with psycopg.connect(address(server), autocommit=True) as db:
                db.execute("UPDATE counts SET value = '9' WHERE key = %s", (b'"a"',))
        else:
            with redis.Redis.from_url(address(server)) as client:
                rows = "windowing:{counts/0}:rows"
                blob: Any = client.hget(rows, '"a"')
                client.hset(rows, '"a"', blob[:-1] + b"9")
        for use in (lambda: state.multi_get(["a"]), lambda: commit(state, 2, 0, {"a": Add(1)})):
            with pytest.raises(CorruptStateError, match="the row of 'a' in the state counts/0"):
                use()
        assert state.multi_get(["b"]) == [2]


def test_rows_that_redis_evicted_are_detected() -> None:
    empty("redis")
    with closing(map_state(store_on("redis"), "counts").make_state(0, 1)) as state:
        commit(state, 1, 0, {"a": Add(1), "b": Add(2)})
        with redis.Redis.from_url(address("redis")) as client:
            client.hdel("windowing:{counts/0}:rows", '"a"')
        with pytest.raises(CorruptStateError, match="has 1 rows, its fence says 2"):
            commit(state, 2, 0, {"b": Add(1)})


def test_a_redis_server_that_evicts_keys_is_refused_before_a_state_is_read_or_written() -> None:
    empty("redis")
    factory = map_state(store_on("redis"), "counts")
    with redis.Redis.from_url(address("redis")) as client, closing(factory.make_state(0, 1)) as state, evicting(client):
        with pytest.raises(
            ConfigError, match=r"the state counts/0 at redis://:\*\*\*@\S+ .* \(maxmemory-policy allkeys-lru\)"
        ):
            commit(state, 1, 0, {"a": Add(1)})
        assert not client.dbsize()
        client.config_set("maxmemory-policy", "volatile-lru")  # states have no time to live
        commit(state, 1, 0, {"a": Add(1)})
    assert stored("redis") == {"a": 1}


def test_a_redis_server_without_room_refuses_a_commit_as_a_whole_and_takes_it_later() -> None:
    empty("redis")
    with (
        closing(map_state(store_on("redis"), "counts").make_state(0, 1)) as state,
        redis.Redis.from_url(address("redis")) as client,
    ):
        commit(state, 1, 0, {"a": Add(1)})
        with without_room(client), pytest.raises(StoreUnavailableError, match="make room there, or raise maxmemory"):
            commit(state, 2, 0, {"a": Add(1), "b": Add(1)})
        assert stored("redis") == {"a": 1}
        commit(state, 2, 1, {"a": Add(1), "b": Add(1)})
    assert stored("redis") == {"a": 2, "b": 1}


def test_foreign_keys_in_redis_and_foreign_tables_in_postgres_are_refused(server: str) -> None:
    if server == "postgres":
        with psycopg.connect(address(server), autocommit=True) as db:
            db.execute("CREATE TABLE counts (a int)")
            db.execute("CREATE TABLE counts_fences (a int)")
    else:
        with redis.Redis.from_url(address(server)) as client:
            client.set("windowing:{counts/0}:rows", "x")
    with (
        closing(map_state(store_on(server), "counts").make_state(0, 1)) as state,
        pytest.raises(CorruptStateError, match="not ours"),
    ):
        commit(state, 1, 0, {"a": Add(1)})


# -- the server itself -------------------------------------------------------------------------------------------------


def test_a_terminated_postgres_backend_is_replaced_by_a_new_connection() -> None:
    empty("postgres")
    with closing(map_state(store_on("postgres"), "counts").make_state(0, 1)) as state:
        commit(state, 1, 0, {"a": Add(1)})
        with psycopg.connect(address("postgres"), autocommit=True) as db:
            ended = db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%counts%'"
            )
            assert ended.rowcount == 1
        assert commit(state, 2, 0, {"a": Add(1)}) == [2]


def kill_redis() -> None:
    os.kill(int((SERVICES / "redis" / "pid").read_text()), signal.SIGKILL)


def start_redis() -> None:
    subprocess.run(["redis-server", str(SERVICES / "redis" / "conf")], check=True, capture_output=True)


def postgres_data() -> Path:
    with psycopg.connect(address("postgres"), autocommit=True) as db:
        found = db.execute("SHOW data_directory").fetchone()
    assert found is not None
    return Path(found[0])


def kill_postgres(data: Path) -> int:
    """Kill the server process, and wait until its child processes have ended by themselves."""
    pid = int((data / "postmaster.pid").read_text().split()[0])
    children = [child.pid for child in psutil.Process(pid).children()]
    os.kill(pid, signal.SIGKILL)
    while any(psutil.pid_exists(child) for child in children):
        time.sleep(0.01)
    return pid


def start_postgres(data: Path, pg_ctl: Path) -> None:
    as_postgres = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    command = [*as_postgres, str(pg_ctl), "start", "-w", "-D", str(data), "-l", str(data.parent / "log")]
    subprocess.run(command, check=True, capture_output=True, cwd="/")


def test_committed_batches_survive_a_kill_of_the_server(server: str) -> None:
    """Each acknowledged batch is there after the restart of the server, and counts once."""
    if server == "postgres":
        data = postgres_data()
        binary = Path(psutil.Process(int((data / "postmaster.pid").read_text().split()[0])).exe())
    killed = threading.Event()

    def kill() -> None:
        time.sleep(0.3)
        if server == "postgres":
            kill_postgres(data)
        else:
            kill_redis()
        killed.set()
        time.sleep(0.2)
        if server == "postgres":
            start_postgres(data, binary.parent / "pg_ctl")
        else:
            start_redis()

    with closing(map_state(store_on(server, patience_s=60), "counts").make_state(0, 1)) as state:
        killer = threading.Thread(target=kill)
        killer.start()
        txid = 0
        while killer.is_alive() or not killed.is_set():
            txid += 1
            assert commit(state, txid, 0, {"a": Add(1), "b": Add(txid)}) == [txid, txid * (txid + 1) // 2]
        killer.join()
        assert killed.is_set()
    assert txid > 1
    assert stored(server) == {"a": txid, "b": txid * (txid + 1) // 2}
