"""The retries of clients of servers, without a server and without waiting: `Patient` and `Remote`.

Real servers with cut connections: tests/services/test_lost_answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import psycopg
import pytest

from windowing.errors import ConfigError, CorruptStateError, SinkError, StoreUnavailableError, WindowingError
from windowing.stores import MemoryStore, PostgresStore, postgres, remote
from windowing.stores.postgres_tables import Column, PostgresTable
from windowing.stores.remote import Remote
from windowing.trident.fence import Claim, Fence, PartitionId, Reading, StateRow
from windowing.trident.kinds import StateType, TransactionAttempt

PLACE = PartitionId("counts", 0, 1)
ROW = {b"a": StateRow(1, b"1")}


class Clock:
    """Replaces the module `time`: sleeping only adds."""

    def __init__(self) -> None:
        self.now_s, self.slept = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
        self.now_s += pause_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(remote, "time", clock)
    return clock


class Client(Remote):
    """Rows in memory behind a connection that fails as told: "connect", "request" or "answer" is lost, or an error is raised."""

    lost = (ConnectionError,)

    def __init__(self, *fails: Any, patience_s: float = 10.0) -> None:
        super().__init__("fake://me:s3cret@host/db", PLACE, patience_s)
        self.rows = MemoryStore().open(PLACE)
        self.fails: Iterator[Any] = chain(fails, repeat(None))
        self.calls: list[str] = []
        self.during: Callable[[], Any] = lambda: None
        self._fail: Any = None

    def _connect(self) -> None:
        self._fail = next(self.fails)
        self.calls.append("connect")
        if self._fail == "connect":
            raise ConnectionError("no connection")

    def close(self) -> None:
        self.calls.append("close")

    def _refused(self, problem: Exception) -> WindowingError | None:
        return ConfigError("refused") if isinstance(problem, PermissionError) else None

    def _request(self, name: str, perform: Callable[[], Any]) -> Any:
        self.calls.append(name)
        if isinstance(self._fail, Exception):
            raise self._fail
        if self._fail == "request":
            raise ConnectionError("lost before the server had it")
        answer = perform()
        self.during()
        if self._fail == "answer":
            raise ConnectionError("lost before the answer came")
        return answer

    def _read(self, keys: Sequence[bytes], undo: TransactionAttempt | None) -> Reading:
        return self._request("read", lambda: self.rows.multi_get(keys, undo))

    def _write(self, rows: Mapping[bytes, StateRow | None], claim: Claim | None) -> Fence | None:
        return self._request("write", lambda: self.rows.multi_put(rows, claim))


def fence(txid: int, attempt: int = 0) -> Fence:
    return Fence(TransactionAttempt(txid, attempt), StateType.OPAQUE, "json", PLACE)


# -- when it is tried again ----------------------------------------------------------------------------------------------


def test_a_lost_read_is_tried_over_a_new_connection_after_pauses_that_double_up_to_a_second(clock: Clock) -> None:
    client = Client("connect", *["answer"] * 6)
    assert client.multi_get([b"a"]).rows == [None]
    assert clock.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert client.calls == ["connect", "close", *["connect", "read", "close"] * 6, "connect", "read"]


def test_an_outage_is_logged_once_with_its_store_and_without_secrets_and_so_is_its_end(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(None, "connect", "answer", "answer", None, patience_s=10.0)
    client.multi_get([b"a"])
    assert not caplog.messages
    client.multi_get([b"a"])
    store = "the store of the state counts/0 at fake://me:***@host/db"
    assert caplog.messages == [
        f"{store} does not answer, and is asked again for 10 s: ConnectionError: no connection",
        f"{store} answers again, after 0.3 s",
    ]
    caplog.clear()
    client.multi_get([b"a"])
    assert not caplog.messages


def test_no_attempt_begins_later_than_the_patience(clock: Clock) -> None:
    client = Client(*["answer"] * 50, patience_s=0.75)
    with pytest.raises(StoreUnavailableError) as raised:
        client.multi_get([])
    assert clock.slept == [0.05, 0.1, 0.2, 0.4]  # at 0.75 s the last one begins, and the next would at 1.55 s
    assert "the state counts/0 at fake://me:***@host/db did not answer for 0.75 s: ConnectionError: lost" in str(
        raised.value
    )
    assert client.calls[-1] == "close"


def test_the_patience_begins_with_each_call_and_includes_what_an_attempt_takes(clock: Clock) -> None:
    client = Client("answer", None, "answer", patience_s=2.0)
    client.multi_get([])
    clock.now_s += 60
    client.during = lambda: clock.sleep(1.96)
    with pytest.raises(StoreUnavailableError, match=r"did not answer for 2 s"):
        client.multi_get([])


def test_an_attempt_that_renews_the_deadline_is_not_repeated_later_than_the_patience_after_the_first_failure(
    clock: Clock,
) -> None:
    client = Client(*["answer"] * 50, patience_s=1.0)
    client.during = lambda: (clock.sleep(0.5), client._renew())
    with pytest.raises(StoreUnavailableError):
        client.multi_get([])
    assert clock.slept == [0.5, 0.05, 0.5, 0.1, 0.5]


def test_what_is_left_of_the_patience_is_at_least_a_moment(clock: Clock) -> None:
    client = Client(patience_s=3.0)
    client._renew()
    clock.now_s += 1.0
    assert client._left_s() == 2.0
    clock.now_s += 60.0
    assert client._left_s() == 0.05


def test_errors_that_a_retry_cannot_fix_are_raised_at_once(clock: Clock) -> None:
    unknown, damaged, denied = KeyError("a"), CorruptStateError("damaged"), PermissionError("no")
    for problem, kind in ((unknown, KeyError), (damaged, CorruptStateError), (denied, ConfigError)):
        client = Client(problem)
        with pytest.raises(kind) as raised:
            client.multi_get([])
        assert raised.value.__cause__ is (denied if problem is denied else None)
        assert (client.calls, clock.slept) == (["connect", "read"], [])


# -- a write whose answer was lost -----------------------------------------------------------------------------------------


def test_a_write_whose_answer_was_lost_is_found_and_not_repeated(clock: Clock) -> None:
    client, mine = Client("answer"), fence(1)
    assert client.multi_put(ROW, Claim(None, mine)) == mine
    assert client.calls == ["connect", "write", "close", "connect", "read"]


def test_a_write_that_the_server_did_not_get_is_repeated(clock: Clock) -> None:
    client, mine = Client("request", "request"), fence(1)
    assert client.multi_put(ROW, Claim(None, mine)) is None
    assert client.multi_get([b"a"]) == Reading(mine, [ROW[b"a"]])
    assert client.calls[:8] == ["connect", "write", "close", "connect", "read", "close", "connect", "read"]


def test_a_write_after_which_another_writer_took_over_is_not_repeated(clock: Clock) -> None:
    client, other = Client("request"), fence(1, 1)
    client.rows.multi_put({}, Claim(None, other))
    assert client.multi_put(ROW, Claim(None, fence(1))) == other
    assert client.multi_get([b"a"]).rows == [None]


def test_the_fence_is_read_only_after_a_request_was_sent_and_only_with_a_claim(clock: Clock) -> None:
    client = Client("connect")
    assert client.multi_put(ROW, Claim(None, fence(1))) is None
    assert client.calls == ["connect", "close", "connect", "write"]
    client = Client("answer")
    assert client.multi_put(ROW) is None
    assert client.calls == ["connect", "write", "close", "connect", "write"]


# -- what messages show ----------------------------------------------------------------------------------------------------


def test_a_message_has_no_secret_no_place_in_a_statement_and_no_line_ends(clock: Clock) -> None:
    said = "no such user 's3cret'\nLINE 1: SELECT record FROM counts\n               ^\nHINT: look"
    client = Client(*[ConnectionError(said)] * 9, patience_s=0.1)
    with pytest.raises(StoreUnavailableError) as raised:
        client.multi_get([])
    assert "ConnectionError: no such user '***'" in str(raised.value)
    assert not any(each in str(raised.value) for each in ("s3cret", "LINE", "SELECT", "\n"))
    assert raised.value.__cause__ is None  # its text has the secret


@pytest.mark.parametrize("form", [repr, ascii])
def test_a_secret_that_a_client_writes_with_escapes_is_masked_from_its_first_to_its_last_character(form: Any) -> None:
    said = "no user with " + form("s\t3c\\ét")
    assert remote.masked(said, "postgresql://me:s%093c%5C%C3%A9t@host/db") == "no user with '***'"


def test_a_secret_of_three_characters_is_masked_in_any_text_and_a_shorter_one_only_in_addresses() -> None:
    address = "postgresql://me:{}@host/db"
    assert remote.masked("no ab1 in it", address.format("ab1")) == "no *** in it"
    assert remote.masked("no ab in it", address.format("ab")) == "no ab in it"
    assert remote.masked(address.format("ab"), address.format("ab")) == address.format("***")


def test_the_cause_of_an_error_is_shown_unless_it_or_one_of_its_own_has_a_secret(clock: Clock) -> None:
    plain, inner = ConnectionError("gone"), ConnectionError("gone")
    inner.__cause__ = OSError("s3cret")
    for problem, shown in ((plain, plain), (inner, None)):
        with pytest.raises(StoreUnavailableError) as raised:
            Client(*[problem] * 9, patience_s=0.1).multi_get([])
        assert raised.value.__cause__ is shown


def test_a_state_of_a_name_that_no_store_takes_is_refused_before_a_connection() -> None:
    with pytest.raises(ConfigError, match="a state's name"):
        Remote.__init__(Client(), "fake://host", PartitionId("no name", 0, 1), 1.0)


# -- rows of a query, before a connection ------------------------------------------------------------------------------


def test_a_batch_is_written_once_and_never_after_a_later_one() -> None:
    assert [remote.has_batch("table t", "q", batch, 6) for batch in (6, 7)] == [True, False]
    assert not remote.has_batch("table t", "q", 0, -1)
    with pytest.raises(SinkError, match="table t holds batch 6 of query q, and batch 5 came: another driver went on"):
        remote.has_batch("table t", "q", 5, 6)


@pytest.mark.parametrize(("digits", "scale", "good"), [(0, None, True), (2, 2, True), (1, 2, False), (9, 2, True)])
def test_a_numeric_column_holds_values_with_up_to_its_digits_behind_the_point(
    digits: int, scale: Any, good: bool
) -> None:
    column = Column("n", "numeric(10,2)", frozenset(["numeric"]), scale)
    assert (column.refusal("numeric", (10 << 16 | digits) + 4) is None) == good
    assert column.refusal("numeric", -1) is None  # without limits
    assert (column.refusal("numeric", (10 << 16) + 4) is None) == (not scale)
    assert column.refusal("text", -1) == "is text, and the stream has numeric(10,2)"


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "_timestamp"])
def test_a_column_of_times_keeps_microseconds(kind: str) -> None:
    column = Column("at", kind)
    assert [column.refusal(kind, digits) is None for digits in (-1, 0, 5, 6)] == [True, False, False, True]
    assert column.refusal("date", 0) is None


def test_a_column_of_a_table_has_1_to_63_bytes() -> None:
    def table(name: str) -> PostgresTable:
        return PostgresTable("postgresql://me:s3cret@host/db", ("t",), [Column(name, "text")], (), 1.0)

    table("ä" * 31 + "a")
    for name in ("ä" * 32, ""):
        with pytest.raises(ConfigError, match=r"cannot be one of table t at postgresql://me:\*\*\*@host/db") as raised:
            table(name)
        assert "1 to 63 bytes" in str(raised.value)


@pytest.mark.parametrize("error", [psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName])
def test_a_pooler_of_postgresql_that_keeps_no_sessions_is_named_and_nothing_is_called_damaged(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared(*_: Any) -> Any:
        raise error('prepared statement "_pg3_0"')

    monkeypatch.setattr(postgres, "connected", shared)
    url = "postgresql://me:s3cret@host/db"
    table = PostgresTable(url, ("t",), [Column("v", "text")], (), 1.0)
    for asks in (PostgresStore(url).open(PLACE).count, lambda: table.claim("query", "default")):
        with pytest.raises(
            ConfigError, match=r"me:\*\*\*@host/db is behind a pooler .*_pg3_0.*pool_mode=session"
        ) as found:
            asks()
        assert "or damaged" not in str(found.value)
