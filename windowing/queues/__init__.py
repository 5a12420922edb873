"""Partitioned sources of rows in Python, with or without acks, for LocalCluster and for Spark (package pyarrow).

PartitionedSpout    the base class for your own sources; Root: one of its batches, which is acked as a whole
SqliteQueue         a durable queue in one file
RedisStream         a stream of Redis, read in a consumer group (extra `redis`)
Spooled             writes the Messages of a MessageSource, a broker that deletes confirmed messages, to a file and reads them there
RabbitQueue         a MessageSource: a queue or a stream of RabbitMQ (extra `rabbitmq`)
KafkaSpout          a topic of Kafka, read in a consumer group (extra `kafka`)
KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional     a Kafka topic as a Trident spout (extra `kafka`)

PartitionedSpout and Root are imported with the package; the others on first use.
"""

from typing import TYPE_CHECKING

from windowing.optional import getattr_of, installed, with_extra

try:
    from windowing.queues.spout import PartitionedSpout, Root
except ModuleNotFoundError as problem:
    raise with_extra(problem, __name__) from problem

if TYPE_CHECKING:
    from windowing.queues.kafka_spouts import KafkaSpout, KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional
    from windowing.queues.rabbit import RabbitQueue
    from windowing.queues.redis_stream import RedisStream
    from windowing.queues.spooled import Message, MessageSource, Spooled
    from windowing.queues.sqlite_queue import SqliteQueue

__all__ = [
    "KafkaSpout",
    "KafkaTridentSpoutOpaque",
    "KafkaTridentSpoutTransactional",
    "Message",
    "MessageSource",
    "PartitionedSpout",
    "RabbitQueue",
    "RedisStream",
    "Root",
    "Spooled",
    "SqliteQueue",
]

if not TYPE_CHECKING:
    _KAFKA = ("KafkaSpout", "KafkaTridentSpoutOpaque", "KafkaTridentSpoutTransactional")
    __getattr__ = getattr_of(
        __name__,
        {
            **dict.fromkeys(_KAFKA, "queues.kafka_spouts"),
            **dict.fromkeys(("Message", "MessageSource", "Spooled"), "queues.spooled"),
            "RabbitQueue": "queues.rabbit",
            "RedisStream": "queues.redis_stream",
            "SqliteQueue": "queues.sqlite_queue",
        },
    )
    __all__ = installed(
        __all__, {**dict.fromkeys(_KAFKA, "confluent_kafka"), "RabbitQueue": "pika", "RedisStream": "redis"}
    )
