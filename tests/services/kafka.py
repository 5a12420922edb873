"""The broker of `make services`: its address, a new topic for each test, and readers of topics."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.services.conftest import address
from windowing.queues.kafka_topics import KafkaTopic

ROWS = [
    [(b"JFK", b"0"), (b"LGA", b"1"), (b"JFK", b"2")],
    [(b"JFK", b"3"), (b"EWR", b"4"), (None, b"5")],
]


def servers() -> str:
    return urlsplit(address("kafka")).netloc.rpartition("@")[2]


def options() -> dict[str, Any]:
    given = urlsplit(address("kafka"))
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": given.username,
        "sasl.password": given.password,
    }


def settings(**more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": servers(), **options(), **more}


def admin() -> Any:
    return AdminClient(settings())


def new_topic(partitions: int = 2, **config: str) -> str:
    """Create a topic with a unique name, and return the name."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    client = admin()  # must live until the request has completed
    client.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(20)
    return name


def opened(topic: str, patience_s: float = 20.0) -> KafkaTopic:
    return KafkaTopic(servers(), topic, options(), patience_s)


def body(key: str, n: int) -> bytes:
    return json.dumps({"k": key, "n": n}).encode()


def send(topic: str, partition: int, *values: bytes | None, at_ms: int = 0) -> None:
    producer = Producer(settings())
    for value in values:
        producer.produce(topic, value=value, partition=partition, timestamp=at_ms)
    assert producer.flush(20) == 0


def send_in_transactions(topic: str) -> Producer:
    """Send three messages in each of a committed, an aborted and an open transaction ("done", "undone", "open"), and one "between"
    two of them; return the producer of the open one.
    """
    for key, end in (("done", "commit"), ("undone", "abort"), ("open", None)):
        producer = Producer(settings(**{"transactional.id": f"{topic}-{key}"}))
        producer.init_transactions(20)
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, body(key, n), partition=0)
        producer.flush(20)
        if end is not None:
            getattr(producer, f"{end}_transaction")(20)
            send(topic, 0, body("between", 1))
    return producer


def read(topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, bytes]]:
    """Return the messages of all partitions, as a new consumer reads them."""
    own = {"group.id": uuid.uuid4().hex, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings(**own, **{"isolation.level": isolation}))
    partitions = sorted(consumer.list_topics(topic, 20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    found, ended, deadline = [], set(), time.monotonic() + 30
    while len(ended) < len(partitions) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value()))
        elif message is not None:
            ended.add(message.partition())
    consumer.close()
    assert len(ended) == len(partitions), "not read to the end"
    return found
