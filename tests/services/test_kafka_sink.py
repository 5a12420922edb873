"""KafkaSink: a read_committed consumer reads each row once, also after kills; bad input raises an error that names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from tests.services.conftest import ROOT, address
from tests.services.kafka import ROWS, admin, new_topic, opened, options, read, servers, settings
from tests.services.kafka_job import PLACES
from windowing.errors import ConfigError, SinkError, WindowingError
from windowing.queues.kafka_topics import KafkaTopic
from windowing.spark import KafkaSink
from windowing.spark.sinks import OutputOwner


def ordered(*batches: int) -> list[tuple[Any, bytes]]:
    return sorted((row for batch in batches for row in ROWS[batch]), key=lambda row: row[1])


def found(topic: str) -> list[tuple[Any, bytes]]:
    return sorted(read(topic), key=lambda row: row[1])


def write(topic: str, batch: int, query: str = "q", patience_s: float = 20) -> bool:
    return opened(topic, patience_s).write(query, "default", batch, lambda: iter(ROWS[batch]))


def refusal(kind: type[WindowingError], do: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        do()
    shown = "".join(traceback.format_exception(caught.value))
    assert options()["sasl.password"] not in shown
    assert "s3cret-word" not in shown
    return str(caught.value)


def test_a_replayed_batch_is_not_written_twice() -> None:
    topic = new_topic()
    assert opened(topic).claim("q", "default") == -1
    assert [write(topic, batch) for batch in (0, 0, 1, 1)] == [True, False, True, False]
    assert opened(topic).claim("q", "default") == 1, "so that a start with other windows over batch 1 is refused"
    assert found(topic) == ordered(0, 1)
    assert [value for key, value in read(topic) if key == b"JFK"] == [b"0", b"2", b"3"]


@pytest.mark.parametrize("place", PLACES)
def test_a_batch_is_atomic_if_the_writer_is_killed_after_any_call(place: str) -> None:
    topic = new_topic()
    write(topic, 0)
    job = subprocess.run([sys.executable, "-m", "tests.services.kafka_job", topic, "1", place], cwd=ROOT, timeout=60)
    assert job.returncode == (0 if place == "none" else -signal.SIGKILL)
    is_there = place in ("commit_transaction", "none")
    if is_there:
        assert found(topic) == ordered(0, 1)
    assert write(topic, 1) is not is_there
    assert found(topic) == ordered(0, 1)
    if place == "produce":
        assert len(read(topic, "read_uncommitted")) == 3 + 2 + 3, "rows of the attempt that died had reached the broker"


def test_a_broker_that_fails_every_attempt_is_a_sink_error_after_the_patience() -> None:
    topic = new_topic()
    attempts = 0

    def rows() -> Iterator[tuple[Any, bytes]]:
        nonlocal attempts
        attempts += 1
        assert attempts < 20, "the attempts have no end"
        yield ROWS[0][0]
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    message = refusal(SinkError, lambda: opened(topic, 2).write("q", "default", 0, rows))
    assert "did not answer for 2 s" in message
    assert write(topic, 0)
    assert found(topic) == ordered(0)


def test_a_driver_that_was_replaced_by_another_is_fenced() -> None:
    topic = new_topic()
    begun, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def rows() -> Iterator[tuple[Any, bytes]]:
        yield ROWS[0][0]
        begun.set()
        assert go_on.wait(30)
        yield from ROWS[0][1:]

    def delayed_writer() -> None:
        try:
            opened(topic).write("q", "default", 0, rows)
        except WindowingError as error:
            errors.append(error)

    thread = threading.Thread(target=delayed_writer)
    thread.start()
    assert begun.wait(30)
    assert write(topic, 0)
    assert write(topic, 1)
    go_on.set()
    thread.join(60)
    assert isinstance(errors[0], SinkError)
    assert "another driver" in str(errors[0])
    assert found(topic) == ordered(0, 1)


def test_a_transaction_timeout_is_reported_as_such_and_not_as_another_driver() -> None:
    topic = new_topic()

    def rows() -> Iterator[tuple[Any, bytes]]:
        yield ROWS[0][0]
        time.sleep(13)  # brokers abort expired transactions every 10 s
        yield from ROWS[0][1:]

    slow = KafkaTopic(servers(), topic, {**options(), "transaction.timeout.ms": 1_000}, 20)
    message = refusal(SinkError, lambda: slow.write("q", "default", 0, rows))
    assert (
        "the transaction of batch 0 was open for 13 s, and brokers give one up after transaction.timeout.ms (1000)"
        in message
    )
    assert "options={" in message
    assert read(topic) == []
    assert write(topic, 0), "the batch is written by the next attempt"
    assert found(topic) == ordered(0)


def test_offsets_that_another_program_committed_to_the_query_s_group_are_refused() -> None:
    topic = new_topic()
    write(topic, 0)
    foreign = Consumer(settings(**{"group.id": "windowing.q.default"}))
    foreign.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)  # as if batch 1 were written
    foreign.close()
    sentence = "somebody else has committed offset 2 of the group 'windowing.q.default'"
    assert sentence in refusal(ConfigError, lambda: opened(topic).claim("q", "default"))
    assert sentence in refusal(ConfigError, lambda: write(topic, 1))
    assert found(topic) == ordered(0)


def test_an_error_while_rows_are_read_aborts_the_batch_and_is_raised_unchanged() -> None:
    topic = new_topic()

    def rows() -> Iterator[tuple[Any, bytes]]:
        yield from ROWS[0]
        raise KeyError("of Spark")

    with pytest.raises(KeyError, match="of Spark"):
        opened(topic).write("q", "default", 0, rows)
    assert read(topic) == []
    assert write(topic, 0)


def test_batches_of_several_queries_and_streams_in_one_topic_are_tracked_separately() -> None:
    topic = new_topic()
    assert write(topic, 0, query="a")
    assert write(topic, 0, query="b")
    assert opened(topic).write("a", "late", 0, lambda: iter(ROWS[1]))
    assert found(topic) == sorted([*ordered(0), *ordered(0, 1)], key=lambda row: row[1])


def test_a_checkpoint_older_than_the_topic_is_refused(spark: SparkSession) -> None:
    topic = new_topic()
    write(topic, 1)
    sink = KafkaSink(servers(), topic, options=options())
    message = refusal(ConfigError, lambda: sink.claim(spark, OutputOwner("q", "default", 0)))
    assert "holds batch 1, and stream 'default' of query q has come to batch 0" in message
    assert sink.claim(spark, OutputOwner("q", "default", 1)) == 1
    message = refusal(ConfigError, lambda: sink.claim(spark, OutputOwner("q", "default", 3, written=2)))
    assert "is 1, and stream 'default' of query q has written batch 2" in message
    assert "holds batch 1 of query q, and batch 0 came" in refusal(SinkError, lambda: write(topic, 0))
    assert found(topic) == ordered(1)


def test_an_unreachable_broker_a_wrong_password_and_a_missing_topic_are_reported() -> None:
    nobody = KafkaTopic("127.0.0.1:1", "t", {"sasl.password": "s3cret-word"}, 2)
    started = time.monotonic()
    assert "topic 't' at 127.0.0.1:1 did not answer for 2 s" in refusal(SinkError, lambda: nobody.claim("q", "s"))
    assert time.monotonic() - started < 20
    wrong = KafkaTopic(servers(), "t", {**options(), "sasl.password": "s3cret-word"}, 20)
    assert "refuses the user" in refusal(ConfigError, lambda: wrong.claim("q", "s"))
    assert "topic 'not-there'" in refusal(ConfigError, lambda: opened("not-there").claim("q", "s"))
    assert "is not there" in refusal(ConfigError, lambda: opened("not-there").write("q", "s", 0, lambda: ROWS[0]))


def test_a_topic_deleted_between_batches_is_reported() -> None:
    topic = new_topic()
    write(topic, 0)
    client = admin()
    client.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while topic in client.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "is not there" in refusal(ConfigError, lambda: write(topic, 1))


def test_a_topic_made_anew_between_batches_is_refused_and_a_new_start_goes_on_in_it() -> None:
    topic = new_topic()
    running = opened(topic)
    assert running.claim("q", "default") == -1
    assert [running.write("q", "default", batch, lambda: iter(ROWS[0])) for batch in (0, 1)] == [True, True]
    client = admin()
    client.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            client.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
            break
        except KafkaException:  # it is still being deleted
            time.sleep(0.1)
    message = refusal(SinkError, lambda: running.write("q", "default", 2, lambda: iter(ROWS[1])))
    assert f"topic '{topic}'" in message
    assert "was deleted and made anew since batch 1 was written to it" in message
    assert read(topic) == []
    again = opened(topic)
    assert again.claim("q", "default") == -1
    assert again.write("q", "default", 2, lambda: iter(ROWS[1]))


def test_a_topic_whose_messages_and_mark_kafka_has_removed_takes_the_next_batch() -> None:
    topic = new_topic(partitions=1)
    running = opened(topic)
    running.claim("q", "default")
    running.write("q", "default", 0, lambda: iter(ROWS[0]))
    client, all_of_it = admin(), TopicPartition(topic, 0, -1)
    client.delete_records([all_of_it])[all_of_it].result(20)
    assert running.write("q", "default", 1, lambda: iter(ROWS[1]))
    client.delete_consumer_groups(["windowing.q.default"])["windowing.q.default"].result(20)
    assert running.write("q", "default", 2, lambda: iter(ROWS[0]))
    assert found(topic) == sorted([*ROWS[0], *ROWS[1]], key=lambda row: row[1])


@pytest.mark.parametrize("rows", [10, 300_000], ids=["before the commit", "with a full queue"])
def test_a_broker_that_stops_within_a_transaction_is_a_sink_error_after_the_patience(rows: int) -> None:
    topic = new_topic()
    pid, stopped_at = int((ROOT / ".services/kafka/pid").read_text()), 0.0

    def stopping() -> Iterator[tuple[Any, bytes]]:
        nonlocal stopped_at
        for number in range(rows):
            if number == rows // 2:
                stopped_at = time.monotonic()
                os.kill(pid, signal.SIGSTOP)
            yield None, b"x" * 100

    running = opened(topic, patience_s=2)
    running.claim("q", "default")
    try:
        message = refusal(SinkError, lambda: running.write("q", "default", 0, stopping))
        assert time.monotonic() - stopped_at < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "did not answer for 2 s" in message
    assert write(topic, 0)
    assert found(topic) == ordered(0)


def test_a_message_that_is_too_large_fails_the_batch_and_nothing_is_written() -> None:
    topic = new_topic()
    large = opened(topic)
    message = refusal(SinkError, lambda: large.write("q", "s", 0, lambda: [(None, b"x" * 2_000_000)]))
    assert "does not take the rows" in message
    assert read(topic) == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"servers": "kafka://u:s3cret-word@h:1"}, "not shown"),
        ({"servers": "host"}, "'host:port,host:port'"),
        ({"topic": "a b"}, "the name of a topic"),
        ({"topic": ".."}, "the name of a topic"),
        ({"key": ["a"]}, "is one column"),
        ({"patience_s": 0}, "a number of seconds above 0"),
        ({"options": {"transactional.id": "mine"}}, "is set by the library"),
    ],
)
def test_invalid_arguments_of_a_sink_are_refused_at_construction(given: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(ConfigError, lambda: KafkaSink(**{"servers": "h:1", "topic": "t", **given}))


def test_an_invalid_librdkafka_option_is_named_and_secrets_are_not_shown() -> None:
    odd = KafkaTopic(servers(), "t", {"sasl.pasword": "x", "sasl.password": "s3cret-word"}, 5)
    message = refusal(ConfigError, lambda: odd.claim("q", "s"))
    assert "sasl.pasword" in message
    longer = KafkaTopic(servers(), new_topic(), {**options(), "transaction.timeout.ms": 10_000_000}, 5)
    message = refusal(ConfigError, lambda: longer.write("q", "s", 0, lambda: ROWS[0]))
    assert "Transaction timeout is larger than the maximum" in message
    sink = KafkaSink(servers(), "t", options={"sasl.password": "s3cret-word"})
    assert "s3cret" not in repr(sink)
    assert address("kafka") not in repr(sink)


def test_a_column_with_a_backtick_in_its_name_and_whole_timestamps_are_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(KafkaTopic, "claim", lambda *_: -1)
    monkeypatch.setattr(KafkaTopic, "write", lambda _, query, stream, batch, rows: sent.extend(rows()))
    sink = KafkaSink("h:1", "t", key="a`b")
    at = datetime(2026, 1, 1, microsecond=123456)
    rows = spark.createDataFrame(
        [("x", 1, at, [at])], "`a``b` string, n long, at timestamp, local array<timestamp_ntz>"
    )
    sink.claim(spark, OutputOwner("q", "s", None, rows.schema))
    sink.write(rows, 0)
    times = '"at":"2026-01-01T00:00:00.123456Z","local":["2026-01-01T00:00:00.123456"]'
    assert sent == [("x", f'{{"a`b":"x","n":1,{times}}}')]
