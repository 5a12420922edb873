"""Partitioned sources of rows in Python, with or without acks, for LocalCluster and for Spark (package pyarrow).

PartitionedSpout    the base class for your own sources; Root: one of its batches, which is acked as a whole
SqliteQueue         a durable queue in one file
RedisStream         a stream of Redis, read in a consumer group (extra `redis`)
Spooled             writes the Messages of a MessageSource, a broker that deletes confirmed messages, to a file and reads them there
RabbitQueue         a MessageSource: a queue or a stream of RabbitMQ (extra `rabbitmq`)
KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional     a Kafka topic as a Trident spout (extra `kafka`)

PartitionedSpout and Root are imported with the package; the others on first use.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from windowing.schema.checks import with_extra

try:
    from windowing.queues.spout import PartitionedSpout, Root
except ModuleNotFoundError as problem:
    raise with_extra(problem, __name__) from problem

if TYPE_CHECKING:
    from windowing.queues.kafka_spouts import KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional
    from windowing.queues.rabbit import RabbitQueue
    from windowing.queues.redis_stream import RedisStream
    from windowing.queues.spooled import Message, MessageSource, Spooled
    from windowing.queues.sqlite_queue import SqliteQueue

__all__ = [
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


_BY_NAME = {
    **dict.fromkeys(("KafkaTridentSpoutOpaque", "KafkaTridentSpoutTransactional"), "kafka_spouts"),
    "RabbitQueue": "rabbit",
    "RedisStream": "redis_stream",
    **dict.fromkeys(("Message", "MessageSource", "Spooled"), "spooled"),
    "SqliteQueue": "sqlite_queue",
}

_NEEDED = {
    "KafkaTridentSpoutOpaque": "confluent_kafka",
    "KafkaTridentSpoutTransactional": "confluent_kafka",
    "RabbitQueue": "pika",
    "RedisStream": "redis",
}

if not TYPE_CHECKING:  # `import *` would fail for the first name whose package is not installed
    __all__ = [name for name in __all__ if name not in _NEEDED or find_spec(_NEEDED[name]) is not None]


def __getattr__(name: str) -> Any:
    if name not in _BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_BY_NAME[name]}"), name)
    except ModuleNotFoundError as problem:
        raise with_extra(problem, f"{__name__}.{name}") from problem
