"""The suite `queues`: rows per second from one Kafka topic to another, and from a queue through windows to its acks, on Spark.

Kafka      kafka() --> counts by key in tumbling windows --> KafkaSink       base: Spark's own reader, window() and writer
queues     source --> counts in a topology with acks --> memory; timed until the queue is empty       base: a SqliteQueue
RabbitMQ: a classic queue, whose messages have ids, with a spool on the local disk; Redis: a stream.

The wall-clock time of whole queries from start to end, in a session that has run each query once before; the servers run on the
same cores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pika
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.frame import Contender, Measured, Plan
from benchmarks.spark.stage import ROOT, SETTINGS, scratch, spark
from windowing import InputSpout, Topology, TopologyBuilder, seconds, tumbling
from windowing import aggregate as agg
from windowing.queues import PartitionedSpout, RabbitQueue, RedisStream, Spooled, SqliteQueue
from windowing.spark import KafkaSink, MemorySink, kafka, submit, windowed

ROWS, BATCHES, KEYS = 100_000, 4, 100
FIELDS = "k string, ms long"
START_MS = 1_700_000_000_000


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield Kafka to Kafka, and queues with acks."""
    connector = (ROOT / ".services" / "kafka" / "connector").glob("*.jar")
    SETTINGS["spark.jars"] = ",".join(str(jar) for jar in sorted(connector))
    yield Plan(
        "Kafka to Kafka", f"counts by key in windows of 10 s, {BATCHES} batches, exactly once against at least once",
        [Contender("native, by hand", native), Contender("kafka(), KafkaSink", ours)],
        filled_topic, int(ROWS * scale), unit="rows/s", clock="the clock, whole query", warmups=1,
    )  # fmt: skip
    yield Plan(
        "queues with acks", f"counts by key in windows of 10 s, {BATCHES} batches, timed until all is acked",
        [
            Contender("SqliteQueue", partial(acked, sqlite)),
            Contender("Spooled(RabbitQueue)", partial(acked, rabbit)),
            Contender("RedisStream", partial(acked, redis_stream)),
        ],
        int, int(ROWS * scale) // 5, unit="rows/s", clock="the clock, whole query", warmups=1,
    )  # fmt: skip


@tumbling(
    seconds(10),
    timestamp="ms",
    key="k",
    aggregate={"n": agg.count()},
    output="ends long, k string, n long",
    name="counts",
)
def counts(window):  # type: ignore[no-untyped-def]
    """Return the count of a window."""
    return window.end_timestamp, window.key, window.aggregate["n"]


def rows_of(rows: int) -> Iterator[dict[str, Any]]:
    """Yield the rows, one per millisecond of event time."""
    for n in range(rows):
        yield {"k": f"key-{n * 7919 % KEYS}", "ms": START_MS + n}


def address(server: str) -> str:
    """Return the URL of a server of `make services`."""
    lines = dict(line.split("=", 1) for line in (ROOT / ".services" / "addresses").read_text().splitlines())
    return lines[f"WINDOWING_{server.upper()}_URL"]


# -- Kafka to Kafka -----------------------------------------------------------------------------------------------------------


def login() -> tuple[str, dict[str, Any]]:
    """Return the addresses of the brokers, and the options of a client."""
    url = urlsplit(address("kafka"))
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return url.netloc.rpartition("@")[2], {**given, "sasl.username": url.username, "sasl.password": url.password}


def new_topic() -> str:
    """Create a topic of two partitions."""
    servers, options = login()
    name = f"bench-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": servers, **options})
    client.create_topics([NewTopic(name, 2, 1)])[name].result(20)
    return name


def filled_topic(rows: int) -> tuple[str, int]:
    """Return a topic with the rows, and one more in each partition that closes the windows; and the number of rows."""
    servers, options = login()
    name = new_topic()
    producer = Producer({"bootstrap.servers": servers, **options, "linger.ms": 50})
    late = [{"k": "end", "ms": START_MS + 10 * rows + 10**6}] * 2
    for n, row in enumerate([*rows_of(rows), *late]):
        producer.produce(name, json.dumps(row).encode(), partition=n % 2)
        producer.poll(0)
    producer.flush(60)
    return name, rows


def counted(topic: str) -> int:
    """Return the sum of the counts in a topic of two partitions."""
    servers, options = login()
    how = {"group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True}
    reader = Consumer({"bootstrap.servers": servers, **options, **how})
    reader.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    ended = found = 0
    while ended < 2:
        message = reader.poll(30.0)
        if message is None:
            raise TimeoutError(f"{topic} is not read")
        if message.error() is not None:
            ended += 1
            continue
        row = json.loads(message.value())
        found += 0 if row["k"] == "end" else row["n"]
    reader.close()
    return found


def ours(load: tuple[str, int]) -> Measured:
    """kafka(), a windowed bolt, KafkaSink."""
    servers, options = login()
    topic, rows = load
    to = new_topic()

    def run(checkpoint: str) -> None:
        source = kafka(spark(), servers, topic, FIELDS, per_batch=rows // BATCHES, options=options)
        stream = windowed(counts, source, order_by=["kafka_partition", "kafka_offset"])
        assert stream.start(KafkaSink(servers, to, options=options), checkpoint, trigger="available_now").await_end(300)

    return rate(run, rows, lambda: counted(to))


def native(load: tuple[str, int]) -> Measured:
    """Spark's reader, window() and writer."""
    servers, options = login()
    topic, rows = load
    to = new_topic()
    client = {**{f"kafka.{name}": value for name, value in _java(options).items()}, "kafka.bootstrap.servers": servers}

    def run(checkpoint: str) -> None:
        reader = spark().readStream.format("kafka").options(**client).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows // BATCHES)
        read = reader.load().select(F.from_json(F.col("value").cast("string"), FIELDS).alias("row")).select("row.*")
        timed = read.withColumn("at", F.timestamp_millis("ms")).withWatermark("at", "0 seconds")
        found = timed.groupBy("k", F.window("at", "10 seconds")).agg(F.count(F.lit(1)).alias("n"))
        value = F.to_json(F.struct(F.col("window.end").alias("ends"), "k", "n")).alias("value")
        writer = found.select(value).writeStream.format("kafka").options(**client).option("topic", to)
        query = writer.option("checkpointLocation", checkpoint).outputMode("append").trigger(availableNow=True).start()
        assert query.awaitTermination(300)

    return rate(run, rows, lambda: counted(to))


def _java(options: dict[str, Any]) -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    said = f'{module} required username="{options["sasl.username"]}" password="{options["sasl.password"]}";'
    return {
        "security.protocol": options["security.protocol"],
        "sasl.mechanism": options["sasl.mechanism"],
        "sasl.jaas.config": said,
    }


# -- queues with acks ---------------------------------------------------------------------------------------------------------


def topology() -> Topology:
    """Return the topology whose source is a queue."""
    builder = TopologyBuilder("queues").configure(enable_message_timeouts=False)
    builder.set_spout("rows", InputSpout(FIELDS))
    builder.set_bolt("counts", counts, 2).fields_grouping("rows", "k")
    return builder.build()


def acked(filled: Callable[[int], PartitionedSpout], rows: int) -> Measured:
    """Run the topology until all rows of a new queue are acked."""
    source, sink = filled(rows), MemorySink()

    def run(checkpoint: str) -> None:
        given = {"sources": {"rows": source}, "sinks": {"counts": sink}, "checkpoint": checkpoint}
        assert submit(topology(), spark(), **given, drain=True).await_end(300)  # type: ignore[arg-type]

    found = rate(run, rows, lambda: sum(row["n"] for row in sink.rows))
    assert len(source) == 0, "not all is acked"  # type: ignore[arg-type]
    return found


def sqlite(rows: int) -> PartitionedSpout:
    """Return a new queue in a file."""
    queue = SqliteQueue(scratch() / f"{uuid4().hex}.db", FIELDS, max_rows=rows // BATCHES)
    queue.put([(row["k"], row["ms"]) for row in rows_of(rows)])
    return queue


def redis_stream(rows: int) -> PartitionedSpout:
    """Return a new stream of Redis."""
    name = f"bench-{uuid4().hex}"
    with redis.Redis.from_url(address("redis")) as db, db.pipeline(transaction=False) as pipe:
        for row in rows_of(rows):
            pipe.xadd(name, row)  # type: ignore[arg-type]
        pipe.execute()
    return RedisStream(address("redis"), name, FIELDS, max_rows=rows // BATCHES)


def rabbit(rows: int) -> PartitionedSpout:
    """Return the spool of a new RabbitMQ queue; its messages have not been read yet."""
    name = f"bench-{uuid4().hex}"
    connection = pika.BlockingConnection(pika.URLParameters(address("rabbitmq")))
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments={"x-expires": 600_000})
    for n, row in enumerate(rows_of(rows)):
        properties = pika.BasicProperties(message_id=str(n), delivery_mode=2)
        channel.basic_publish("", name, json.dumps(row).encode(), properties)
    while channel.queue_declare(name, passive=True).method.message_count < rows:
        time.sleep(0.1)
    connection.close()
    return Spooled(
        RabbitQueue(address("rabbitmq"), name, FIELDS), log=scratch() / f"{name}.db", max_rows=rows // BATCHES
    )


def rate(run: Callable[[str], None], rows: int, found: Callable[[], int]) -> Measured:
    """Return the rows per second of a whole query, and the number of rows that it counted."""
    started = time.monotonic()
    run(str(scratch() / uuid4().hex))
    took_s = time.monotonic() - started
    return Measured(found(), rows / took_s, {"seconds": took_s})
