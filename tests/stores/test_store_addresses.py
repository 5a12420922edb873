"""Addresses of stores: an invalid one is refused, and the secret in an address is never shown."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from windowing import TopologyBuilder, bolt
from windowing.errors import ConfigError, SourceError, StoreUnavailableError
from windowing.local import LocalCluster
from windowing.local.trident_cluster import TridentCluster
from windowing.queues import KafkaTridentSpoutOpaque, RabbitQueue, RedisStream
from windowing.queues.kafka_topics import masked_options
from windowing.spark.hadoop import masked_paths
from windowing.spark.query import WindowedStream
from windowing.spark.sinks import FileSink, ParquetSink
from windowing.spark.submit import submit
from windowing.spark.trident_submit import submit_trident
from windowing.stores import MemoryStore, SqliteStore, map_state, postgres, redis, store_of
from windowing.stores.pages import SqlitePages
from windowing.stores.postgres import PostgresStore
from windowing.stores.redis import RedisStore
from windowing.stores.remote import masked
from windowing.stores.sqlite import SqliteRecordStore
from windowing.stores.states import SqliteStateProvider
from windowing.topology.components import InputSpout
from windowing.trident import TridentTopology
from windowing.trident.fence import PartitionId
from windowing.trident.spouts import FixedBatchSpout

SECRET = "s3cr3t"
ADDRESSES = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:a{SECRET}\n{SECRET}b@127.0.0.1:1/db",
    f"postgresql://me@corp:{SECRET}@127.0.0.1:1/db",
    f"postgresql://me:{SECRET}%20x%2F@127.0.0.1:1/db?sslpassword={SECRET}%0A{SECRET}&sslmode=disable",
    f"postgresql://127.0.0.1:1/db?user=me&password={SECRET}\n{SECRET}",
    f"host=127.0.0.1 port=1 password={SECRET}\\ {SECRET}\\'{SECRET}",
    f"host=127.0.0.1 port=1 password = '{SECRET} {SECRET}\\' {SECRET}'",
    f"host=127.0.0.1 port=1 password='{SECRET}\n{SECRET}' sslpassword={SECRET}",
    f"host=127.0.0.1 port=1 sslpassword={SECRET} PassWord='{SECRET} not closed",
    f"host=127.0.0.1 port=1 scram_client_key={SECRET}",
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"redis://me:{SECRET}\n{SECRET}@127.0.0.1:1/0",
    f"redis://127.0.0.1:1/0?password={SECRET}\n{SECRET}",
    f"rediss://me:{SECRET}@127.0.0.1:1/0?ssl_password={SECRET}",
    f"redis://me:{SECRET}@127.0.0.1:not-a-port/0",
    f"unix://me:{SECRET}@/no/such/socket?db=0",
]


def shown(error: BaseException | None) -> str:
    """Return all texts of an error, of its causes and contexts, whether or not a traceback prints them."""
    text = "" if error is None else "".join(traceback.format_exception(error))
    while error is not None:
        text += f"{error!r} {error} {getattr(error, '__notes__', '')}"
        error = error.__cause__ or error.__context__
    return text


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_secret_of_an_address_is_in_no_repr_and_no_error(address: str) -> None:
    kind: Any = RedisStore if address.startswith(("redis", "unix")) else PostgresStore
    store = kind(address, 0.05)
    assert SECRET not in repr(store) + repr(map_state(store, "counts")) + str(vars(map_state(store, "counts")))
    with pytest.raises((StoreUnavailableError, ConfigError)) as caught:
        store.open(PartitionId("counts", 0, 1)).multi_get([b"a"])
    assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_secret_is_masked_in_driver_errors_in_whatever_form_they_quote_it(address: str) -> None:
    store = PostgresStore("host=127.0.0.1 port=1", 0.05).open(PartitionId("counts", 0, 1))
    store._url = address
    for told in (
        f"cannot use {address!r}",
        f"cannot use {address}",
        f"FATAL: {SECRET} {SECRET}",
        f"'{SECRET}' refused",
    ):
        problem = OSError(told)
        problem.__context__ = ValueError(told)
        if SECRET in masked(told, address):
            assert told.startswith(("FATAL", "'")), "a part of a longer secret, alone, is not known for one"
            continue
        assert SECRET not in store._text(problem)
        assert store._cause(problem) is None


USES: list[tuple[str, Callable[..., Any]]] = [
    ("postgresql", lambda url, wait=0.05: PostgresStore(url, wait).open(PartitionId("counts", 0, 1)).count()),
    ("redis", lambda url, wait=0.05: RedisStore(url, wait).open(PartitionId("counts", 0, 1)).count()),
    ("redis", lambda url, wait=0.05: RedisStream(url, "words", "word string", patience_s=wait)),
    ("amqp", lambda url, wait=0.05: RabbitQueue(url, "words", "word string", patience_s=wait)),
]


@pytest.mark.parametrize("sign", "/#?@")
@pytest.mark.parametrize(("scheme", "use"), USES)
def test_no_part_of_a_password_with_an_unescaped_sign_is_shown(
    scheme: str, use: Callable[[str], Any], sign: str
) -> None:
    with pytest.raises((StoreUnavailableError, SourceError, ConfigError)) as caught:
        use(f"{scheme}://me:{SECRET}1{sign}{SECRET}2@127.0.0.1:1/0")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("scheme", "use"), USES)
def test_an_address_without_a_scheme_is_refused_and_not_shown(scheme: str, use: Callable[[str], Any]) -> None:
    with pytest.raises(
        ConfigError, match=rf"the address of a .* has no scheme \(not shown, .*\); write {scheme}://"
    ) as e:
        use(f"me:{SECRET}=@127.0.0.1/0")
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(("scheme", "use"), USES[1:3])
def test_an_unknown_option_in_the_address_of_a_redis_server_is_refused(scheme: str, use: Callable[[str], Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"the address of the (store|stream) .* is none of a Redis server \(not shown"
    ):
        use(f"{scheme}://127.0.0.1:1/0?no_such_option=1")


@pytest.mark.parametrize(
    ("read", "address"),
    [
        (redis.stored_states, f"redis://me:{SECRET}#1@127.0.0.1:1/0"),
        (postgres.stored_states, f"postgresql://me:{SECRET}@127.0.0.1:1/db?no_such_option=1"),
    ],
)
def test_the_command_that_shows_states_refuses_an_invalid_address(read: Callable[[str], Any], address: str) -> None:
    with pytest.raises(ConfigError, match=r"^\[CONFIG\] the address of the states is none of a") as caught:
        read(address)
    assert SECRET not in str(caught.value)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives the same answer to everything; the address of its database 0 in Redis."""

    def serve() -> None:
        with suppress(OSError):  # the test has ended
            for connection, _ in iter(server.accept, None):
                with connection, suppress(OSError):  # the client is gone
                    while connection.recv(100_000):
                        connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=serve, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize(("scheme", "use"), USES[1:3])
def test_a_server_that_does_not_speak_the_protocol_of_redis_is_named(scheme: str, use: Callable[..., Any]) -> None:
    with (
        answering(b"HTTP/1.1 400 Bad Request\r\n") as url,
        pytest.raises((StoreUnavailableError, SourceError), match=r"Protocol Error: b'HTTP/1.1 400 Bad Request'"),
    ):
        use(url, 1)


@pytest.mark.parametrize(
    "said",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "NOREPLICAS Not enough good replicas to write.",
        "CLUSTERDOWN Hash slot not served",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ERR unknown command 'EVALSHA'",
        "READONLY You can't write against a read only replica.",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "-{said}\r\n",
        "-{said} script: 7e1749b0, on @user_script:15.\r\n",
        "-ERR Error running script (call to f_7e1749b0): @user_script:15: @user_script: 15: -{said}\r\n",
    ],
    ids=["command", "script", "script in Redis 6"],
)
def test_a_server_of_redis_that_cannot_write_now_is_unavailable_and_its_data_not_called_damaged(
    form: str, said: str
) -> None:
    """Redis 6 puts the error of a command in a script into the text of one of its own."""
    with answering(form.format(said=said).encode()) as url, pytest.raises(StoreUnavailableError):
        RedisStore(url, 0.05).open(PartitionId("counts", 0, 1)).count()


@pytest.mark.parametrize(
    "said",
    [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'eval' command",
        "ERR Error running script (call to f_7e1749b0): @user_script:15: @user_script: 15: The user executing the script can't run "
        "this command or subcommand",
        "ERR ACL failure in script: User me has no permissions to run the 'hmget' command script: on @user_script:3.",
    ],
    ids=["no user", "wrong password", "command", "script in Redis 6", "script in Valkey"],
)
@pytest.mark.parametrize(("scheme", "use"), USES[1:3])
def test_a_server_of_redis_that_refuses_the_user_is_named_for_it(
    scheme: str, use: Callable[..., Any], said: str
) -> None:
    with (
        answering(f"-{said}\r\n".encode()) as url,
        pytest.raises((ConfigError, SourceError), match=r"refuses (the user|who asks)"),
    ):
        use(url, 0.05)


def test_the_parts_of_an_address_that_are_not_secret_are_shown() -> None:
    told = 'connection to server at "127.0.0.1", port 1 failed: Connection refused'
    assert masked(told, ADDRESSES[0]) == told
    assert masked("postgresql://me:x@h/db?sslmode=require&user=u") == "postgresql://me:***@h/db?sslmode=require&user=u"


@pytest.mark.parametrize("part", ["://a:", "://", "password", "&password", "password='\\", "password=' "])
@pytest.mark.parametrize("mask", [masked, masked_paths])
def test_a_long_text_is_masked_at_once(mask: Callable[[str], str], part: str) -> None:
    started = time.process_time()
    mask(part * (200_000 // len(part)))
    mask("@" + part * (200_000 // len(part)))
    assert time.process_time() - started < 2


def test_a_password_among_the_options_of_a_rabbit_queue_is_not_shown() -> None:
    options = f"ssl_options=%7B%27certfile%27%3A+%27me.pem%27%2C+%27password%27%3A+%27{SECRET}%27%7D"
    for scheme in ("amqp", "amqps"):
        with pytest.raises(
            ConfigError, match=r"queue 'words' of amqps?://me:[*]{3}@127.0.0.1:1/0 is none of AMQP"
        ) as caught:
            RabbitQueue(f"{scheme}://me:x@127.0.0.1:1/0?{options}", "words", "word string", patience_s=0.05)
        assert SECRET not in shown(caught.value)


def test_a_spool_of_an_earlier_version_which_names_options_is_one_of_the_same_queue() -> None:
    source = RabbitQueue.__new__(RabbitQueue)
    source.name = "queue 'words' of amqp://me:***@127.0.0.1:1/0"
    assert source.is_named("queue 'words' of amqp://you:***@127.0.0.1:1/0?ssl_options={'password': 'x'}&heartbeat=3")
    assert not source.is_named("queue 'words' of amqp://127.0.0.1:1/1?heartbeat=3")


def test_every_secret_among_the_options_of_kafka_is_masked() -> None:
    names = ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret", "sasl.jaas.config"]
    names += ["sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase"]
    for name in names:
        assert masked_options(f"Invalid value {SECRET} of {name}", {name: SECRET}) == f"Invalid value *** of {name}"


STORES: list[Callable[[Any], Any]] = [
    SqliteStore,
    PostgresStore,
    RedisStore,
    store_of,
    SqliteRecordStore,
    lambda path: map_state(path, "counts"),
    lambda path: SqliteStateProvider(path, "words"),
]


@pytest.mark.parametrize("make", STORES)
@pytest.mark.parametrize("address", [None, 7, b"x.db", 1.5, ["x.db"], object()], ids=lambda value: type(value).__name__)
def test_an_address_of_another_type_is_refused_at_construction(make: Callable[[Any], Any], address: Any) -> None:
    with pytest.raises(ConfigError, match=r"got (None|7|b'x\.db'|1\.5|\['x\.db'\]|<object).*; (give|write) "):
        make(address)


@pytest.mark.parametrize("address", ["", "  "])
@pytest.mark.parametrize("make", [PostgresStore, RedisStore])
def test_an_empty_address_is_refused_at_construction(make: Callable[[Any], Any], address: str) -> None:
    with pytest.raises(ConfigError, match=r"the address of a store is text, got '\s*'; write (postgresql|redis)://"):
        make(address)


@pytest.mark.parametrize("address", ["", "a\0b"])
@pytest.mark.parametrize(
    "make", [SqliteStore, SqliteRecordStore, SqlitePages, lambda path: SqliteStateProvider(path, "words")]
)
def test_an_empty_path_or_one_with_a_null_character_is_refused(make: Callable[[Any], Any], address: str) -> None:
    with pytest.raises(ConfigError, match=r"the path of .* is text or a Path, got"):
        make(address)
    with pytest.raises(ConfigError, match=r"the path of .* is that of a file, got ':memory:'; .*MemoryStore\(\)"):
        make(":memory:")


@pytest.mark.parametrize("path", [None, 7, "", b"x"], ids=repr)
def test_an_invalid_folder_is_refused_on_spark_before_the_session_is_used(path: Any) -> None:
    nothing: Any = None
    for use in (
        lambda: ParquetSink(path),
        lambda: FileSink(path, "json"),
        lambda: submit(nothing, nothing, sources={}, sinks={}, checkpoint=path),
        lambda: submit_trident(nothing, nothing, checkpoint=path),
        lambda: WindowedStream.start(nothing, nothing, path),
    ):
        with pytest.raises(ConfigError, match=r"is a folder: text or a Path, got (None|7|''|b'x')"):
            use()


@pytest.mark.parametrize("path", [7, "", b"x"], ids=repr)
def test_an_invalid_state_path_is_refused(path: Any) -> None:
    @bolt(output="n long")
    class Counts:
        def init_state(self, state: Any) -> None: ...
        def execute(self, tuple: Any) -> Any: ...

    builder = TopologyBuilder("words")
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("counts", Counts).global_grouping("in")
    with pytest.raises(ConfigError, match="the path of the states of topology 'words' is text or a Path, got"):
        LocalCluster(builder.build(), state_path=path)
    trident = TridentTopology("sums")
    trident.new_stream("in", FixedBatchSpout("n long", 1, [(1,)])).sink("out")
    with pytest.raises(ConfigError, match="the path of records is text or a Path, got"):
        TridentCluster(trident.build(), state_path=path)


@pytest.mark.parametrize("address", ["counts.db", Path("counts.db")])
def test_an_address_in_place_of_a_store_is_refused_and_store_of_is_suggested(address: Any) -> None:
    with pytest.raises(ConfigError, match=r"the store of the state counts is .*give one, or store_of\(address\)"):
        map_state(address, "counts")


@pytest.mark.parametrize("patience_s", [None, -1, 0, "2", True, float("nan"), float("inf"), 1_000_001], ids=repr)
@pytest.mark.parametrize(
    "made",
    [
        lambda patience_s: PostgresStore("postgresql://127.0.0.1/0", patience_s),
        lambda patience_s: RedisStore("redis://127.0.0.1/0", patience_s),
        lambda patience_s: RedisStream("redis://127.0.0.1:1/0", "words", "word string", patience_s=patience_s),
        lambda patience_s: RabbitQueue("amqp://127.0.0.1:1/", "words", "word string", patience_s=patience_s),
        lambda patience_s: KafkaTridentSpoutOpaque("127.0.0.1:1", "words", "word string", patience_s=patience_s),
    ],
)
def test_a_patience_that_is_not_a_positive_number_is_refused(made: Any, patience_s: Any) -> None:
    whose = "a (store|RedisStream|RabbitQueue|topic)"
    with pytest.raises(
        ConfigError, match=f"the patience of {whose} is a number of seconds above 0 and at most 1,000,000, got"
    ):
        made(patience_s)


@pytest.mark.parametrize("name", ["", 7, None, "b{c", "b}c"], ids=repr)
@pytest.mark.parametrize("which", ["stream", "group", "consumer"])
def test_the_names_of_a_reader_of_a_redis_stream_have_no_braces(which: str, name: Any) -> None:
    """Braces choose the node of a cluster of Redis."""
    names: Any = {"stream": "words", which: name}
    with pytest.raises(ConfigError, match=f"the {which} of a RedisStream is a text without braces, got"):
        RedisStream("redis://127.0.0.1:1/0", fields="word string", **names)


@pytest.mark.parametrize("address", [None, 7, ""], ids=repr)
def test_the_address_of_a_stream_is_text(address: Any) -> None:
    for make, example in ((RedisStream, "redis://"), (RabbitQueue, "amqp://")):
        with pytest.raises(ConfigError, match=f"the address of a {make.__name__} is text, got .*; write {example}"):
            make(address, "words", "word string")


def test_rows_without_their_partition_are_refused_with_the_name_of_the_state() -> None:
    class Rows:
        pass

    class Careless(MemoryStore):
        def open(self, place: Any) -> Any:
            return Rows()

    with pytest.raises(
        ConfigError,
        match=r"the state counts has opened have no place, got .*Rows.*self\.place = place",
    ):
        map_state(Careless(), "counts").make_state(0, 1)
