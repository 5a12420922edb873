"""kafka(): a topic as a stream; lost messages, missing topics and refused users are errors. And Kafka to Kafka, each row once."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.services.kafka import admin, new_topic, options, read, send, servers
from windowing import seconds, tumbling
from windowing.errors import ConfigError, SourceError
from windowing.local import run_local
from windowing.spark import KafkaSink, MemorySink, WindowedQuery, kafka, windowed
from windowing.spark.failures import FailedQuery, library_error
from windowing.spark.kafka_rows import _of_spark
from windowing.spark.offsets import brokers_of
from windowing.spark.sinks import OutputOwner

FIELDS = "k string, ms bigint, v int"
NO_SPARK = cast(SparkSession, None)


@tumbling(
    seconds(10),
    timestamp="ms",
    key="k",
    source="kafka_partition",
    idle_timeout=seconds(3600),
    output="k string, ends bigint, n int",
    late_stream="late",
)
def counts(window: Any) -> tuple[Any, ...]:
    return window.key, window.end_timestamp, len(window)


def message(key: str, ms: int) -> bytes:
    return json.dumps({"k": key, "ms": ms}).encode()


def source(spark: SparkSession, topic: str, **given: Any) -> DataFrame:
    return kafka(spark, servers(), topic, FIELDS, **{"options": options(), "per_batch": 20, **given})


def run(rows: DataFrame, sinks: dict[str, Any], checkpoint: Path, drain: bool = False) -> WindowedQuery:
    stream = windowed(counts, rows, order_by=["kafka_partition", "kafka_offset"])
    query = stream.start(sinks, str(checkpoint), trigger="available_now", drain=drain)
    assert query.await_end(180)
    return query


def test_no_message_is_lost_with_idle_or_new_partitions_and_malformed_json(spark: SparkSession, tmp_path: Path) -> None:
    topic = new_topic(partitions=3)  # the third stays empty
    unreadable = [
        b"no json",
        b'{"k": "b", "ms": "soon"}',
        b'{"k": 7, "ms": 1000, "v": "x"}',
        b"",
        b"null",
        b"[" * 2_000,
    ]
    send(topic, 0, *(message("a", 1000 * n) for n in range(40)), *unreadable, None)
    send(topic, 1, message("b", 5000))
    sinks = {"default": MemorySink(), "late": MemorySink()}
    run(source(spark, topic), sinks, tmp_path / "checkpoint")
    client = admin()
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    send(topic, 3, *(message("c", 1000 * n) for n in range(30, 50)))
    send(topic, 1, message("b", 45_000))
    run(source(spark, topic), sinks, tmp_path / "checkpoint", drain=True)
    shown: Counter[str] = Counter()
    for key, _, n in sinks["default"].rows:
        shown[key] += n
    late = [
        (row["malformed"], row["reason"], row["kafka_partition"], row["kafka_offset"]) for row in sinks["late"].rows
    ]
    unread = [row for row in late if row[2:] >= (0, 40) and row[2:] < (1, 0)]
    texts = [text.decode() for text in unreadable]
    assert sorted(unread, key=str) == sorted(
        ((text, "invalid", 0, 40 + n) for n, text in enumerate([*texts, None])), key=str
    )
    assert sum(shown.values()) + len(late) == 40 + len(unreadable) + 1 + 2 + 20


def test_messages_removed_by_retention_are_an_error_or_skipped_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(message("a", n) for n in range(10)))
    sinks = {"default": MemorySink(), "late": MemorySink()}
    run(source(spark, topic), sinks, tmp_path / "checkpoint")
    send(topic, 0, *(message("a", n) for n in range(10, 20)))
    client = admin()
    client.delete_records([TopicPartition(topic, 0, 15)])[TopicPartition(topic, 0)].result(20)
    with pytest.raises(SourceError) as found:
        run(source(spark, topic), sinks, tmp_path / "checkpoint")
    text = str(found.value)
    assert "has lost messages that were not read" in text
    assert f"{topic}-0" in text
    assert "10" in text.partition("has lost")[2].replace(topic, "")
    assert str(options()["sasl.password"]) not in text
    send(topic, 0, *(message("a", n) for n in range(20, 30)))
    rows, elsewhere = (source(spark, topic, on_gap="skip") for _ in range(2))
    both = rows.union(spark.readStream.format("rate").load().select(*(F.lit(None) for _ in rows.columns)))
    assert brokers_of(both.union(elsewhere).union(rows)) == [servers(), "", servers(), None]
    query = run(source(spark, topic, per_batch=8, on_gap="skip"), sinks, tmp_path / "checkpoint", drain=True)
    assert query.metrics().skipped == {topic: {"0": 5}}
    assert query.metrics().lag == {topic: {"0": 0}}
    assert sum(n for _, _, n in sinks["default"].rows) == 10 + 15


def test_a_deleted_topic_ends_the_query_and_is_named_at_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, message("a", 1))
    sinks = {"default": MemorySink(), "late": MemorySink()}
    rows = source(spark, topic)
    run(rows, sinks, tmp_path / "checkpoint")
    client = admin()
    client.delete_topics([topic])[topic].result(20)
    with pytest.raises(SourceError, match=r"a topic that 'counts' reads"):
        run(rows, sinks, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=f"topic '{topic}' at .* is not there"):
        source(spark, topic)


def test_a_topic_recreated_with_fewer_messages_is_an_error_or_skipped_and_counted(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(message("a", n) for n in range(5)))
    sinks = {"default": MemorySink(), "late": MemorySink()}
    run(source(spark, topic), sinks, tmp_path / "checkpoint")
    client = admin()
    client.delete_topics([topic])[topic].result(20)
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    send(topic, 0, *(message("b", n) for n in range(3)))
    with pytest.raises(SourceError, match="has lost messages that were not read"):
        run(source(spark, topic), sinks, tmp_path / "checkpoint")
    query = run(source(spark, topic, on_gap="skip"), sinks, tmp_path / "checkpoint")
    assert query.metrics().skipped == {topic: {"0": 3}}
    assert "the topic was made anew, and the one before was read up to 5" in caplog.text
    send(topic, 0, *(message("b", n) for n in range(10, 14)))
    run(source(spark, topic, on_gap="skip"), sinks, tmp_path / "checkpoint", drain=True)
    assert sum(n for _, _, n in sinks["default"].rows) == 5 + 4


class Interrupted(KafkaSink):
    """Fails after the sink has committed a batch, before Spark commits it."""

    def write(self, rows: DataFrame, batch_id: int) -> None:
        super().write(rows, batch_id)
        raise KeyError("the driver dies here")


def test_a_query_from_kafka_to_kafka_writes_each_row_once_after_a_failure(spark: SparkSession, tmp_path: Path) -> None:
    start, end = new_topic(), new_topic()
    sent = [
        {"k": f"k{partition}", "ms": 1000 * n, "kafka_partition": partition} for n in range(60) for partition in (0, 1)
    ]
    for partition in (0, 1):
        send(start, partition, *(message(row["k"], row["ms"]) for row in sent if row["kafka_partition"] == partition))
    wanted = run_local(counts, [sent], drain=True)["default"]
    assert sum(n for _, _, n in wanted) == len(sent)
    for kind in (Interrupted, KafkaSink):
        sinks = {"default": kind(servers(), end, key="k", options=options()), "late": MemorySink()}
        with suppress(KeyError):
            run(source(spark, start, per_batch=60), sinks, tmp_path / "checkpoint", drain=True)
    found = [(key, json.loads(value)) for key, value in read(end)]
    assert sorted((value["k"], value["ends"], value["n"]) for _, value in found) == sorted(wanted)
    assert all(key == value["k"].encode() for key, value in found)


def test_a_binary_key_is_sent_unchanged_and_a_key_of_another_type_as_text(spark: SparkSession) -> None:
    for fields, keys, wanted in (
        ("k binary, n int", [b"\xff\x00", b"JFK", None], [b"\xff\x00", b"JFK", None]),
        ("k int, n int", [7, None], [b"7", None]),
    ):
        topic = new_topic(partitions=1)
        sink = KafkaSink(servers(), topic, key="k", options=options())
        rows = spark.createDataFrame([(key, n) for n, key in enumerate(keys)], fields)
        sink.claim(spark, OutputOwner("q", "default", None, rows.schema))
        sink.write(rows.coalesce(1), 0)
        assert [key for key, _ in read(topic)] == wanted


# -- bad input, refused before Spark is used -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "kind", "sentence"),
    [
        (lambda: kafka(NO_SPARK, "127.0.0.1:1", "t", FIELDS, patience_s=1), SourceError, "did not answer for 1 s"),
        (lambda: source(NO_SPARK, "not-there"), ConfigError, "topic 'not-there'"),
        (lambda: kafka(NO_SPARK, "h:1", "t", "k strng"), ConfigError, "unknown type 'strng'"),
        (lambda: kafka(NO_SPARK, "h:1", "t", "kafka_offset long"), ConfigError, "which kafka() adds itself"),
        (lambda: kafka(NO_SPARK, "h:1", "t", FIELDS, starting="now"), ConfigError, "'earliest' or 'latest'"),
        (lambda: kafka(NO_SPARK, "h:1", "t", FIELDS, on_gap="fail"), ConfigError, "'raise' or 'skip', got 'fail'"),
        (lambda: kafka(NO_SPARK, "h:1", "t", FIELDS, per_batch=0), ConfigError, "above 0, got 0"),
    ],
)
def test_invalid_arguments_of_a_source_are_refused_before_spark_is_used(
    do: Callable[[], Any], kind: Any, sentence: str
) -> None:
    with pytest.raises(kind) as found:
        do()
    assert sentence in str(found.value)


def test_a_wrong_password_is_reported_within_five_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match="refuses the user") as found:
        source(NO_SPARK, "t", options={**options(), "sasl.password": "s3cret-word"})
    assert "s3cret" not in str(found.value)
    assert time.monotonic() - began < 5, "it was waited for the end of a call"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Reason: Starting offset for t-0 was 10 but consumer "
            "reset to 15. SQLSTATE: 22000",
            "has lost messages that were not read: Starting offset for t-0 was 10 but consumer reset to 15; nothing was skipped",
        ),
        (
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position FetchPosition{offset=10, "
            "currentLeader=x} is out of range for partition t-0\nat org.apache.kafka",
            "not read: Fetch position FetchPosition{offset=10, currentLeader=x} is out of range for partition t-0",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: Some data may have been lost because they are not available in Kafka "
            "any more; either the\n data was aged out.\nReason: Partition t-0 offset was changed from 5 to 3.\nThis could be",
            "has lost messages that were not read: Partition t-0 offset was changed from 5 to 3; nothing was skipped",
        ),
        ("[KAFKA_DATA_LOSS.NEW_ONE] something", "has lost messages that were not read: messages are gone"),
        (
            "Query terminated\norg.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node\nat x",
            "cannot be read: TimeoutException: Timed out waiting for a node; see whether the brokers run",
        ),
    ],
)
def test_errors_of_spark_about_kafka_become_source_errors(said: str, sentence: str) -> None:
    found = library_error(cast(Exception, StreamingQueryException(said)), FailedQuery("counts", "/data/checkpoint"))
    assert isinstance(found, SourceError)
    assert sentence in str(found)
    assert "/data/checkpoint" in str(found)


def test_options_of_librdkafka_are_translated_to_those_of_the_java_client() -> None:
    given = {
        "sasl.username": 'a"b',
        "sasl.password": "c\\d",
        "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.ca.location": "/ca.pem",
    }
    assert _of_spark(given) == {
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="a\\"b" password="c\\\\d";'
        ),
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }
    assert _of_spark({"sasl.mechanisms": "PLAIN"}) == {"kafka.sasl.mechanism": "PLAIN"}, "librdkafka's other name"


PRIVATE = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
ENCRYPTED = PRIVATE.replace("PRIVATE", "ENCRYPTED PRIVATE")
PROOF = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_a_key_and_its_certificate_in_files_are_sent_to_the_java_client_as_text(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(ENCRYPTED)
    (tmp_path / "proof.pem").write_text(PROOF)
    files = {"ssl.key.location": str(tmp_path / "key.pem"), "ssl.certificate.location": str(tmp_path / "proof.pem")}
    text = {
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": "The key is a secret:\n" + ENCRYPTED,
        "kafka.ssl.keystore.certificate.chain": PROOF,
        "kafka.ssl.key.password": "s3cret",
    }
    assert _of_spark({**files, "ssl.key.password": "s3cret"}) == text
    assert _of_spark({"ssl.key.pem": ENCRYPTED, "ssl.certificate.pem": PROOF, "ssl.key.password": "s3cret"}) == text
    (tmp_path / "key.pem").write_text(PRIVATE)
    plain = _of_spark({**files, "ssl.key.password": "s3cret"})
    assert "kafka.ssl.key.password" not in plain, "Java refuses a password for a key that has none"
    assert _of_spark(
        {
            "ssl.ca.pem": PROOF,
            "ssl.keystore.location": "/own.p12",
            "ssl.keystore.password": "s3cret",
            "ssl.endpoint.identification.algorithm": "none",
            "enable.ssl.certificate.verification": 1,
            "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
            "socket.timeout.ms": 5,
        }
    ) == {
        "kafka.ssl.truststore.certificates": PROOF,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.keystore.location": "/own.p12",
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.password": "s3cret",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
        "kafka.socket.timeout.ms": "5",
    }


def test_neither_password_nor_key_is_in_the_plan_of_a_query(spark: SparkSession) -> None:
    given = {**options(), "ssl.key.pem": PRIVATE, "ssl.certificate.pem": PROOF, "ssl.key.password": "s3cret"}
    read = {**_of_spark(given), "kafka.bootstrap.servers": servers(), "subscribe": "t"}
    plan = cast(Any, spark.readStream.format("kafka").options(**read).load())._jdf.queryExecution().toString()
    assert "kafka.ssl.keystore.key=*" in plan
    assert not [secret for secret in (str(options()["sasl.password"]), "PRIVATE KEY", "s3cret") if secret in plan]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"ssl.key.pem": PRIVATE}, "give both 'ssl.key.location' and 'ssl.certificate.location'"),
        ({"ssl.certificate.pem": PROOF}, "give both 'ssl.key.location' and 'ssl.certificate.location'"),
        ({"ssl.key.location": "/none/key.pem"}, "'ssl.key.location' cannot be read: FileNotFoundError"),
        (
            {"ssl.key.pem": PRIVATE.replace("PRIVATE", "RSA PRIVATE"), "ssl.certificate.pem": PROOF},
            "is not in the form PKCS#8 (BEGIN PRIVATE KEY), the only one that Spark's client reads; convert it: openssl pkcs8",
        ),
        ({"ssl.ca.location": "/"}, "'ssl.ca.location' is '/', and Spark's client takes one PEM file"),
        ({"ssl.ca.location": "probe"}, "or leave the option out for those of Java"),
        ({"ssl.crl.location": "/crl.pem"}, "no option 'ssl.crl.location', and would ignore it; leave it out"),
        ({"enable.ssl.certificate.verification": False}, "whose client always verifies brokers"),
    ],
)
def test_options_about_tls_that_the_java_client_does_not_have_are_refused_by_name(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as found:
        _of_spark(given)
    assert sentence in str(found.value)
    assert "MIIB" not in str(found.value)
