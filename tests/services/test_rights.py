"""Users of servers without one of the rights: a quick error without secrets; once the right is granted, no data is lost."""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import psycopg
import pytest
import redis
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession

from tests.services.conftest import address, empty
from tests.services.kafka import ROWS, admin, new_topic, options, read, send, servers
from tests.services.test_server_stores import store_on
from tests.stores.state_world import Add
from tests.stores.store_contract import commit
from windowing import bolt
from windowing.errors import ConfigError, SourceError, WindowingError
from windowing.local import VirtualClock, run_topology, run_trident
from windowing.queues import KafkaSpout, KafkaTridentSpoutOpaque, RabbitQueue, Spooled
from windowing.queues.kafka_topics import KafkaTopic, SourceTopic
from windowing.spark import KafkaSink, kafka, submit
from windowing.stores import MemoryStore, map_state, state_table
from windowing.stores.postgres_tables import Column, PostgresTable
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.trident import Count, TridentTopology


def refusal(kind: type[WindowingError], do: Callable[[], Any], within_s: float = 5.0) -> str:
    """Return the error of a call; check that it was raised in time and contains no secret."""
    begun = time.monotonic()
    with pytest.raises(kind) as caught:
        do()
    assert time.monotonic() - begun < within_s
    shown = "".join(traceback.format_exception(caught.value))
    assert not [each for each in ("kafka", "rabbitmq", "redis", "postgres") if secret(each) in shown]
    return str(caught.value)


def secret(server: str) -> str:
    return str(urlsplit(address(server)).password)


def as_user(server: str, user: str) -> str:
    """Return the URL of a server for another user with the same password."""
    given = urlsplit(address(server))
    return given._replace(netloc=f"{user}:{given.password}@{given.hostname}:{given.port}").geturl()


# -- Kafka -------------------------------------------------------------------------------------------------------------------

Rights = Callable[..., None]
RIGHTS = {
    "describe": (ResourceType.TOPIC, AclOperation.DESCRIBE),
    "read": (ResourceType.TOPIC, AclOperation.READ),
    "write": (ResourceType.TOPIC, AclOperation.WRITE),
    "group": (ResourceType.GROUP, AclOperation.READ),
    "transactions": (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
}


@pytest.fixture
def allow() -> Iterator[Rights]:
    """Give the user "limited" rights on a topic, and on groups and transactional ids that begin with `windowing.`."""

    def given(topic: str, *names: str) -> None:
        bindings = []
        for name in names:
            kind, operation = RIGHTS[name]
            is_topic = kind is ResourceType.TOPIC
            named = (topic, ResourcePatternType.LITERAL) if is_topic else ("windowing.", ResourcePatternType.PREFIXED)
            bindings.append(AclBinding(kind, *named, "User:limited", "*", operation, AclPermissionType.ALLOW))
        client = admin()
        for future in client.create_acls(bindings).values() if bindings else ():
            future.result(20)

    yield given
    withdraw()


def withdraw() -> None:
    """Take all rights from the user "limited"."""
    any_of = (ResourceType.ANY, None, ResourcePatternType.ANY, "User:limited", None)
    client = admin()
    for future in client.delete_acls([AclBindingFilter(*any_of, AclOperation.ANY, AclPermissionType.ANY)]).values():
        future.result(20)


def limited() -> dict[str, Any]:
    return {**options(), "sasl.username": "limited"}


@pytest.mark.parametrize("lacks", ["describe", "read", "write", "group", "transactions"])
def test_a_kafka_sink_without_a_right_names_the_needed_rights_and_writes_once_they_are_granted(
    allow: Rights, lacks: str
) -> None:
    topic = new_topic(1)
    others = [] if lacks == "describe" else ["read", "write", "group", "transactions"]
    allow(topic, *(name for name in others if name != lacks))

    def written() -> bool:
        sink = KafkaTopic(servers(), topic, limited(), 20)
        sink.claim(topic, "default")
        return sink.write(topic, "default", 0, lambda: iter(ROWS[0]))

    said = refusal(ConfigError, written)
    assert f"topic '{topic}' at {servers()} is not open to the user: " in said
    assert "uthorization failed" in said
    assert "allow it Read and Write on the topic, Read on groups and Write on transactional ids" in said
    assert read(topic) == []
    allow(topic, "read", "write", "group", "transactions")
    assert written()
    assert read(topic) == ROWS[0]


def test_a_kafka_spout_needs_only_the_right_to_read_its_topic(allow: Rights) -> None:
    topic = new_topic(1)
    send(topic, 0, b'{"k": "a"}', b'{"k": "b"}', b'{"k": "a"}')

    def counted() -> Any:
        spout = KafkaTridentSpoutOpaque(servers(), topic, "k string", bounded=True, options=limited(), patience_s=20)
        topology = TridentTopology("counting")
        words = topology.new_stream("words", spout).group_by("k")
        words.persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
        return run_trident(topology, clock=VirtualClock()).states["state1"]

    for given in ((), ("describe",)):  # with Describe alone, a user gets the end offsets
        allow(topic, *given)
        said = refusal(ConfigError, counted)
        assert f"topic '{topic}' at {servers()} is not open to the user: " in said
        assert "Topic authorization failed; allow it Read on the topic" in said
    allow(topic, "read")
    assert counted() == {("a",): 2, ("b",): 1}


def test_the_source_of_a_group_needs_the_rights_to_read_its_topic_and_its_group(allow: Rights) -> None:
    topic = new_topic(1)
    send(topic, 0, b'{"k": "a", "n": 1}', b'{"k": "b", "n": 1}')
    builder = TopologyBuilder("read")
    builder.set_spout("words", InputSpout("k string, n long"))
    builder.set_bolt("rows", passed).shuffle_grouping("words")

    def rows() -> Any:
        spout = KafkaSpout(
            servers(), topic, "k string, n long", group="windowing.words", options=limited(), patience_s=20
        )
        return run_topology(builder.build(), sources={"words": spout}, clock=VirtualClock())["rows"]

    for given, lacks in (((), "Topic"), (("describe", "group"), "Topic"), (("read",), "Group")):
        allow(topic, *given)
        said = refusal(ConfigError, rows)
        assert f"topic '{topic}' at {servers()} is not open to the user: " in said
        assert f"{lacks} authorization failed; allow it Read on the topic and Read on the group" in said
        if "group" in given:
            withdraw()
    allow(topic, "read", "group")
    assert rows() == [("a", 1), ("b", 1)]


def test_a_group_authorization_error_fails_a_kafka_sink_and_is_ignored_by_a_source() -> None:
    late, denied = KafkaException(KafkaError(KafkaError._TIMED_OUT)), KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    sink, source = (kind(servers(), "t", limited(), 1) for kind in (KafkaTopic, SourceTopic))
    for topic in (sink, source):
        topic._errors.append(denied)
    assert isinstance(sink._refused(late), ConfigError)
    assert source._refused(late) is None


@bolt(output="k string, n long")
def passed(row: Any) -> Any:
    return row.k, row.n


def test_a_spark_query_without_kafka_rights_fails_and_continues_once_they_are_granted(
    allow: Rights, spark: SparkSession, tmp_path: Path
) -> None:
    start, end = new_topic(1), new_topic(1)
    send(start, 0, *(json.dumps({"k": "a", "n": n}).encode() for n in range(10)))

    def run() -> None:
        builder = TopologyBuilder("copies")
        builder.set_spout("words", InputSpout("k string, n long"))
        builder.set_bolt("copy", passed).shuffle_grouping("words")
        rows = kafka(spark, servers(), start, "k string, n long", options=limited())
        sinks = {"copy": KafkaSink(servers(), end, options=limited())}
        given = {"sources": {"words": rows}, "sinks": sinks, "checkpoint": str(tmp_path / "checkpoint")}
        assert submit(builder.build(), spark, **given).await_end(120)

    allow(start, "describe")
    allow(end, "read", "write", "group")
    said = refusal(SourceError, run, within_s=60)
    assert "a topic that 'copies' reads cannot be read: TopicAuthorizationException" in said
    allow(start, "read")
    assert "Transactional Id authorization failed" in refusal(ConfigError, run, within_s=60)
    assert read(end) == []
    allow(end, "transactions")
    run()
    assert Counter(json.loads(value)["n"] for _, value in read(end)) == dict.fromkeys(range(10), 1)


# -- RabbitMQ ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_rabbitmq_queue_needs_only_the_right_to_read(kind: str, tmp_path: Path) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(address("rabbitmq")))
    with closing(connection):
        channel = connection.channel()
        channel.queue_delete("rights")
        channel.queue_declare("rights", durable=True, arguments={"x-queue-type": kind})
        channel.confirm_delivery()
        for n in range(3):
            kept = pika.BasicProperties(message_id=str(n), delivery_mode=2)
            channel.basic_publish("", "rights", json.dumps({"n": n}).encode(), kept)

        def queue(user: str, log: str) -> Spooled:
            source = RabbitQueue(as_user("rabbitmq", user), "rights", "n long", stream=kind == "stream")
            return Spooled(source, log=tmp_path / log)

        said = refusal(SourceError, lambda: queue("no-read", "none.db"))
        assert f"queue 'rights' of {as_user('rabbitmq', 'no-read').replace(secret('rabbitmq'), '***')}: " in said
        assert "the server refuses who asks: " in said
        assert said.endswith("give a user with the right to read it")
        found = queue("no-write", "one.db")
        assert found.latest() == {"0": 3}
        found.close()
        assert found.rows() == [(0,), (1,), (2,)]
        if kind == "classic":
            assert channel.queue_declare("rights", passive=True).method.message_count == 0
            channel.basic_publish("", "rights", b'{"n": 3}', pika.BasicProperties(delivery_mode=2))
        other = queue("no-configure", "two.db")
        assert other.latest() == {"0": 1 if kind == "classic" else 3}
        other.close()
        channel.queue_delete("rights")


RULES = "~windowing:* +@read +@write +@scripting +@connection +time"
"""The rights of a state in Redis, as docs/operate/deploy.md lists them."""


# -- states ------------------------------------------------------------------------------------------------------------------


def counted(store: Any, txid: int) -> dict[Any, Any]:
    with closing(map_state(store, "counts").make_state(0, 1)) as state:
        commit(state, txid, 0, {"a": Add(1), f"k{txid}": Add(1)})
        return dict(state.items())


@pytest.mark.parametrize(
    "rules",
    [
        "~other* +@all",
        "%R~windowing* +@all",
        "~windowing* +@all -evalsha",
        *(f"~windowing* +@all -{command}" for command in ("hmget", "hset", "hdel", "del", "sadd")),
    ],
)
def test_a_redis_state_without_a_right_is_not_changed_and_continues_once_it_is_granted(rules: str) -> None:
    empty("redis")
    counted(store_on("redis"), 1)
    with redis.Redis.from_url(address("redis")) as db:
        before = {key: db.dump(key) for key in db.scan_iter()}
        set_user: Any = db.execute_command
        set_user("ACL", "SETUSER", "limited", "reset", "on", f">{secret('redis')}", *rules.split())
        try:
            url = as_user("redis", "limited")
            said = refusal(ConfigError, lambda: counted(store_on("redis", url), 2))
            assert f"Redis at {url.replace(secret('redis'), '***')} refuses the user: " in said
            assert "with the rights to run scripts and all that they do on the keys windowing:*" in said
            assert {key: db.dump(key) for key in db.scan_iter()} == before
            set_user("ACL", "SETUSER", "limited", "reset", "on", f">{secret('redis')}", *RULES.split())
            assert counted(store_on("redis", url), 2) == {"a": 2, "k1": 1, "k2": 1}
        finally:
            set_user("ACL", "DELUSER", "limited")


@pytest.fixture
def database() -> Iterator[psycopg.Connection[Any]]:
    """An empty database with a role "limited" without rights."""
    empty("postgres")
    with psycopg.connect(address("postgres"), autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS limited")
        db.execute(f"CREATE ROLE limited LOGIN PASSWORD '{secret('postgres')}'".encode())
        yield db
        db.execute("DROP OWNED BY limited")
        db.execute("DROP ROLE limited")


FENCES = "partition integer PRIMARY KEY, txid bigint NOT NULL, attempt bigint NOT NULL, record bytea NOT NULL"
USAGE = "GRANT USAGE ON SCHEMA public TO limited"


@pytest.mark.parametrize(
    ("given", "sentence", "way_out"),
    [
        ([], "has no schema to be in: InvalidSchemaName: no schema has been selected", "GRANT USAGE and CREATE on it"),
        ([USAGE], "cannot be written at", "permission denied for schema public; give a user who may create and write"),
        ([USAGE, "tables"], "cannot be written at", "permission denied for table counts_state"),
        ([USAGE, "tables", "SELECT"], "cannot be written at", "permission denied for table counts_state"),
    ],
    ids=["no schema", "no tables", "tables", "to read"],
)
def test_a_postgres_state_without_a_right_is_refused_and_continues_once_it_is_granted(
    database: psycopg.Connection[Any], given: list[str], sentence: str, way_out: str
) -> None:
    for each in given:
        if each == "tables":
            with closing(state_table(store_on("postgres"), "counts", "k string, n bigint").make_state(0, 1)) as state:
                commit(state, 1, 0, {("a",): Add(1)})
        elif each == "SELECT":
            database.execute("GRANT SELECT ON counts_state, counts_state_fences, counts TO limited")
        else:
            database.execute(each.encode())

    def written(txid: int) -> dict[Any, Any]:
        store = store_on("postgres", as_user("postgres", "limited"))
        with closing(state_table(store, "counts", "k string, n bigint").make_state(0, 1)) as state:
            commit(state, txid, 0, {("a",): Add(1)})
            return dict(state.items())

    said = refusal(ConfigError, lambda: written(2))
    assert sentence in said
    assert way_out in said
    assert "LINE" not in said, "the statements are the library's"
    database.execute("GRANT ALL ON SCHEMA public TO limited")
    database.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited")
    assert written(2) == {("a",): 2 if "tables" in given else 1}


@pytest.mark.parametrize(
    ("refuse", "allow", "said"),
    [
        ("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC", "GRANT CONNECT ON DATABASE postgres TO PUBLIC", "CONNECT"),
        ("ALTER ROLE limited NOLOGIN", "ALTER ROLE limited LOGIN", "is not permitted to log in"),
    ],
    ids=["connect", "login"],
)
def test_a_postgres_role_that_may_not_connect_is_refused_at_once(
    database: psycopg.Connection[Any], refuse: str, allow: str, said: str
) -> None:
    url = as_user("postgres", "limited")

    def claimed() -> None:
        with PostgresTable(url, ("t",), [Column("k", "text")], (), 20) as table:
            table.claim("q", "default")

    database.execute(refuse.encode())
    try:
        for do in (claimed, lambda: counted(store_on("postgres", url), 1)):
            found = refusal(ConfigError, do)
            assert "refuses the user: " in found
            assert said in found
            assert "give a user who may log in from here (LOGIN, pg_hba.conf) and connect" in found
    finally:
        database.execute(allow.encode())
    nowhere = f"{url.rpartition('/')[0]}/nowhere"
    said = refusal(ConfigError, lambda: counted(store_on("postgres", nowhere), 1))
    assert "the state counts/0 at " in said
    assert "is in a database that is not there" in said


def test_a_connection_that_postgres_closed_as_idle_is_opened_again(database: psycopg.Connection[Any]) -> None:
    database.execute("GRANT ALL ON SCHEMA public TO limited")
    database.execute("ALTER ROLE limited SET idle_session_timeout = '200ms'")
    with closing(map_state(store_on("postgres", as_user("postgres", "limited")), "counts").make_state(0, 1)) as state:
        for txid in (1, 2, 3):
            assert commit(state, txid, 0, {"a": Add(1)}) == [txid]
            time.sleep(0.5)


TABLE = "CREATE TABLE t (k text PRIMARY KEY, n bigint)"
SINKS = (
    "CREATE TABLE windowing_sinks (target text PRIMARY KEY, query text NOT NULL, stream text NOT NULL, batch bigint)"
)
ON_SINKS = "GRANT SELECT, INSERT, UPDATE ON windowing_sinks TO limited"
NO_TEMPORARY = "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC"


@pytest.mark.parametrize(
    ("given", "key", "sentence"),
    [
        ([USAGE], "", "permission denied for schema public"),
        ([USAGE, TABLE, SINKS], "", "permission denied for table windowing_sinks"),
        ([USAGE, TABLE, SINKS, ON_SINKS], "", "permission denied for table t"),
        ([USAGE, TABLE, SINKS, ON_SINKS, "GRANT INSERT ON t TO limited"], "k", "permission denied for table t"),
        ([USAGE, TABLE, SINKS, ON_SINKS, "GRANT ALL ON t TO limited", NO_TEMPORARY], "k", "create temporary tables in"),
    ],
)
def test_a_postgres_table_without_a_right_names_the_needed_rights_and_is_written_once_they_are_granted(
    database: psycopg.Connection[Any], given: list[str], key: str, sentence: str
) -> None:
    for each in given:
        database.execute(each.encode())
    columns = [Column("k", "text"), Column("n", "bigint")]

    def written() -> bool:
        with PostgresTable(as_user("postgres", "limited"), ("t",), columns, (key,) if key else (), 5) as table:
            table.claim("q", "default")
            return table.write("q", "default", 0, lambda: [("a", 1), ("b", 2)], table.schema)

    try:
        said = refusal(ConfigError, written)
    finally:
        database.execute("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
    assert sentence in said
    rights = "SELECT, INSERT, UPDATE, and TEMPORARY on the database" if key else "INSERT"
    assert f"give a user who may write it ({rights}) and windowing_sinks in its schema (SELECT, INSERT, UPDATE)" in said
    if TABLE in given:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (0,)
    elsewhere = (
        "GRANT CREATE ON SCHEMA public TO limited" if TABLE not in given else f"GRANT {rights[:22]} ON t TO limited"
    )
    database.execute(elsewhere.encode())
    if SINKS in given:
        database.execute(ON_SINKS)
    assert written()
    assert database.execute("SELECT k, n FROM t ORDER BY k").fetchall() == [("a", 1), ("b", 2)]
