"""kafka: a topic as a streaming DataFrame, by Spark's own connector; KafkaSink: a stream into a topic, each batch once.

Both are loaded with their names, for they need confluent-kafka. What the sink promises stands in stores/kafka_topics.py.

    kafka(spark, "host:9092", "flights", value="origin string, at timestamp, delay long")

    origin, at, delay     the fields of the message, which is JSON; all null where it is none
    malformed             the text of a message that is no JSON of these fields, else null: nothing is dropped
    kafka_key             the key, as text
    kafka_partition, kafka_offset, kafka_time     where it stands, and when the broker or the producer says that it was written

`order_by=["kafka_partition", "kafka_offset"]` makes a batch that comes again the same to the row, and `source="kafka_partition"`
of a window lets each partition bring forward a watermark of its own; with `idle_timeout=` a silent one holds nothing back. A
partition that is added is read from its beginning. Messages that the retention has removed before they were read end the query with
a SourceError that says which (`failOnDataLoss`), or are logged and counted: nothing is skipped without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.errors import ConfigError, quote
from windowing.schema.types import Schema
from windowing.spark.offsets import skip_gaps_of
from windowing.spark.sinks import OutputOwner
from windowing.stores.kafka_topics import KafkaTopic, SourceTopic

__all__ = [
    "KafkaSink",
    "kafka",
]


CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest that Maven Central has; it was tried with PySpark 4.3.0, for which there is none of its own."""
_MALFORMED = "malformed"
_PLACES = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_time")
_STARTS = ("earliest", "latest")
_ON_GAP = ("raise", "skip")


def kafka(
    spark: SparkSession,
    servers: str,
    topic: str,
    value: str | Schema,
    *,
    starting: str = "earliest",
    per_batch: int | None = None,
    on_gap: str = "raise",
    options: Mapping[str, Any] | None = None,
    patience_s: float = 30.0,
) -> DataFrame:
    """Return the messages of a topic (extra `kafka`, and Spark's connector in the session), `value` being the fields of their JSON.

    starting: where a new checkpoint begins, "earliest" or "latest". per_batch: at most so many messages a micro-batch. on_gap:
    whether messages that are gone before they were read end the query ("raise"), or are left out, logged, and counted in the
    metrics as `skipped_offsets` ("skip"). options: those of librdkafka (`security.protocol`, `sasl.mechanism`, `sasl.username`,
    `sasl.password`, `ssl.ca.location`), of which Spark's are made. Messages of transactions that were given up are not read
    (`read_committed`). Raises ConfigError for a topic that is not there, credentials that are refused, or a session without the
    connector; SourceError for brokers that are silent for `patience_s`.
    """
    schema = value if isinstance(value, Schema) else Schema.parse(value)
    taken = [name for name in schema.names if name.lower() in (_MALFORMED, *_PLACES)]
    if taken:
        raise ConfigError(
            f"value= of topic {quote(topic)} has a field {taken[0]!r}, which kafka() adds itself: the fields that it adds are "
            f"{', '.join((_MALFORMED, *_PLACES))}; rename it"
        )
    if starting not in _STARTS:
        raise ConfigError(f"starting= of a topic is {' or '.join(map(repr, _STARTS))}, got {quote(starting)}")
    if per_batch is not None and (isinstance(per_batch, bool) or not isinstance(per_batch, int) or per_batch < 1):
        raise ConfigError(f"per_batch= of a topic is a number of messages above 0, got {quote(per_batch)}")
    if on_gap not in _ON_GAP:
        raise ConfigError(f"on_gap= of a topic is {' or '.join(map(repr, _ON_GAP))}, got {quote(on_gap)}")
    given = dict(options or {})
    spark_options = _of_spark(given)
    SourceTopic(servers, topic, given, patience_s).require()
    reader = spark.readStream.format("kafka").options(**spark_options).option("kafka.bootstrap.servers", servers)
    reader = (
        reader.option("subscribe", topic)
        .option("startingOffsets", starting)
        .option("failOnDataLoss", str(on_gap == "raise"))
    )
    reader = reader.option("kafka.isolation.level", "read_committed")
    if per_batch is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(per_batch))
    try:
        messages = reader.load()
    except AnalysisException as problem:
        if "kafka" not in str(problem).lower():
            raise
        raise ConfigError(
            f"the session has no connector to Kafka; make it with session(name, **{{'spark.jars.packages': '{CONNECTOR}'}}), "
            "or give spark-submit --packages the same"
        ) from problem
    if on_gap == "skip":
        skip_gaps_of(servers, topic, lambda: _bounds_of(SourceTopic(servers, topic, given, patience_s)))
    text = F.col("value").cast("string")
    read = F.from_json(text, f"{schema.ddl}, {_MALFORMED} string", {"columnNameOfCorruptRecord": _MALFORMED})
    places = (
        F.col("key").cast("string").alias("kafka_key"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        F.col("timestamp").alias("kafka_time"),
    )
    return messages.select(read.alias("read"), *places).select("read.*", *_PLACES)


def _bounds_of(topic: SourceTopic) -> dict[int, tuple[int, int]]:
    try:
        return topic.bounds()
    finally:
        topic.close()


def _of_spark(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options of librdkafka as those of Java's client, in Spark's spelling."""
    given = {name: str(value) for name, value in options.items()}
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    mechanism = given.get("sasl.mechanism", given.pop("sasl.mechanisms", ""))
    if user is not None and password is not None:
        scram = mechanism.upper().startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        given["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={_in_jaas(user)} password={_in_jaas(password)};"
        )
    authority = given.pop("ssl.ca.location", None)
    if authority is not None:
        given |= {"ssl.truststore.location": authority, "ssl.truststore.type": "PEM"}
    return {f"kafka.{name}": value for name, value in given.items()}


def _in_jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class KafkaSink:
    """A topic of Kafka (extra `kafka`) that takes the rows of a stream as JSON, each batch exactly once for readers with
    `isolation.level=read_committed`.

    servers: `host:port,host:port`. topic: one that is there. key: the column whose value, as text, is the key of the message.
    options: those of librdkafka, such as `security.protocol`, `sasl.username`; secrets among them stand in no message.
    patience_s: how many seconds the brokers may be silent before SinkError. Several queries may write to one topic.

    >>> KafkaSink("127.0.0.1:9092", "windows", key="origin", options={"sasl.password": "secret"})
    KafkaSink('127.0.0.1:9092', 'windows', key='origin')
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        key: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        if isinstance(patience_s, bool) or not isinstance(patience_s, int | float) or not 0 < patience_s < 1e6:
            raise ConfigError(
                f"the patience of a sink is a number of seconds above 0, got {quote(patience_s)}; give 60.0"
            )
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"key= of a KafkaSink is one column, got {quote(key)}")
        self._servers, self.key = servers, key
        self._topic = KafkaTopic(servers, topic, dict(options or {}), patience_s)
        self._owner: OutputOwner | None = None

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"KafkaSink({self._servers!r}, {self._topic.topic!r}{key})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> None:
        """See whether the topic can be written. Raises ConfigError, and nothing was written then."""
        names = [] if owner.schema is None else owner.schema.names
        if self.key is not None and owner.schema is not None and self.key not in names:
            raise ConfigError(
                f"key={self.key!r} of the sink of {owner.name} is no column of it: there are {', '.join(names)}"
            )
        self._topic.claim(owner.query, owner.stream, owner.last_batch)
        self._owner = owner

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the batch, unless it is in the topic. Cost: a job for each partition of the batch."""
        owner = self._owner
        if owner is None:
            raise ConfigError(f"{self!r} writes for a query that was started with it; give it in sinks=")
        key = F.lit(None).cast("string") if self.key is None else F.col(f"`{self.key}`").cast("string")
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)), {"ignoreNullFields": "false"})
        sent = rows.select(key.alias("key"), value.alias("value"))
        self._topic.write(
            owner.query, owner.stream, batch_id, lambda: ((row[0], row[1]) for row in sent.toLocalIterator())
        )
