"""kafka: a topic as a streaming DataFrame, through Spark's connector; KafkaSink: writes a stream to a topic, each batch once.

Both are imported on first use, because they need confluent-kafka. The guarantees of the sink are in queues/kafka_topics.py.

    kafka(spark, "host:9092", "flights", value="origin string, at timestamp, delay long")

    origin, at, delay     the fields of the JSON message; all null if it is not such JSON
    malformed             the text of a message that is not JSON of these fields, else null: no message is dropped
    kafka_key             the key, as text
    kafka_partition, kafka_offset, kafka_time     its position, and its timestamp, set by the broker or the producer

`order_by=["kafka_partition", "kafka_offset"]` makes a replayed batch equal row by row. `source="kafka_partition"` of a window gives
each partition its own watermark; with `idle_timeout=` a silent partition does not hold the watermark back. A partition that is
added is read from its beginning. Messages that retention removed before they were read end the query with a SourceError that names
their offsets (`failOnDataLoss`), or are logged and counted; they are never skipped silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType

from windowing.errors import ConfigError, describe_error, quote
from windowing.queues.kafka_topics import KafkaTopic, SourceTopic
from windowing.schema.checks import is_whole, spelled
from windowing.schema.types import Schema
from windowing.spark.offsets import skip_gaps_of
from windowing.spark.output import as_json, quoted
from windowing.spark.sinks import OLDER_COPY, ComparedSink, OutputOwner, require_json_keys, required_owner
from windowing.spark.spouts import in_spark

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The newest version on Maven Central. It was tested with PySpark 4.3.0, for which there is no version of its own."""
_MALFORMED = "malformed"
_METADATA = ("kafka_key", "kafka_partition", "kafka_offset", "kafka_time")
_STARTS = ("earliest", "latest")
_ON_GAP = ("raise", "skip")


@spelled
def kafka(
    spark: SparkSession,
    servers: str,
    topic: str,
    value: str | Schema,
    *,
    starting: Literal["earliest", "latest"] = "earliest",
    per_batch: int | None = None,
    on_gap: Literal["raise", "skip"] = "raise",
    options: Mapping[str, Any] | None = None,
    patience_s: float = 30.0,
) -> DataFrame:
    """Return the messages of a topic as a streaming DataFrame. value: the fields of their JSON, as text or Schema.

    Needs the extra `kafka`, and Spark's connector in the session. starting: where a new checkpoint begins, "earliest" or "latest".
    per_batch: maximum number of messages of a micro-batch. on_gap: messages removed before they were read end the query ("raise"),
    or are skipped with a warning and counted in the metrics as `skipped_offsets` ("skip"). options: settings of librdkafka
    (`security.protocol`, `sasl.mechanism`, `sasl.username`, `sasl.password`, `ssl.ca.location`, `ssl.key.location`), which are
    converted to those of Spark's connector; one about TLS that it lacks is refused. Messages of aborted transactions are not read
    (`read_committed`). patience_s: seconds to wait for an answer of the brokers.

    Raises ConfigError for a topic that does not exist, refused credentials, or a session without the connector; SourceError for
    brokers that do not answer for `patience_s`.
    """
    schema = value if isinstance(value, Schema) else Schema.parse(value)
    taken = [name for name in schema.names if name.lower() in (_MALFORMED, *_METADATA)]
    if taken:
        raise ConfigError(
            f"value= of topic {quote(topic)} has a field {taken[0]!r}, which kafka() adds itself: the fields that it adds are "
            f"{', '.join((_MALFORMED, *_METADATA))}; rename it"
        )
    for option, chosen, known in (("starting", starting, _STARTS), ("on_gap", on_gap, _ON_GAP)):
        if chosen not in known:
            raise ConfigError(f"{option}= of a topic is {' or '.join(map(repr, known))}, got {quote(chosen)}")
    if per_batch is not None and not is_whole(per_batch, 1):
        raise ConfigError(f"per_batch= of a topic is a number of messages above 0, got {quote(per_batch)}")
    given = dict(options or {})
    read = {
        **_of_spark(given),
        "kafka.bootstrap.servers": servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": topic,
        "startingOffsets": starting,
        "failOnDataLoss": str(on_gap == "raise"),
        **({} if per_batch is None else {"maxOffsetsPerTrigger": str(per_batch)}),
    }
    SourceTopic(servers, topic, given, patience_s).require()
    try:
        messages = spark.readStream.format("kafka").options(**read).load()
    except AnalysisException as problem:
        if "kafka" not in str(problem).lower():
            raise
        raise ConfigError(
            f"the session has no connector to Kafka; make it with session(name, **{{'spark.jars.packages': '{CONNECTOR}'}}), "
            "or give spark-submit --packages the same"
        ) from problem
    if on_gap == "skip":
        skip_gaps_of(servers, topic, lambda: _bounds_of(SourceTopic(servers, topic, given, patience_s)))
    return _parsed(messages, schema)


def _parsed(messages: DataFrame, schema: Schema) -> DataFrame:
    """Return messages of Kafka as rows: the fields of their JSON, the text of one that cannot be read, and the metadata."""
    text = F.col("value").cast("string")
    parsed = F.from_json(
        text, f"{in_spark(schema.ddl)}, {_MALFORMED} string", {"columnNameOfCorruptRecord": _MALFORMED}
    )
    metadata = (
        F.col("key").cast("string").alias("kafka_key"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
        F.col("timestamp").alias("kafka_time"),
    )
    rows = messages.select(parsed.alias("read"), text.alias("text"), *metadata)
    # For "" and "null" Spark has no corrupt record.
    unread = F.when(F.col("read").isNull(), F.col("text")).otherwise(F.col(f"read.{_MALFORMED}"))
    # Of such JSON Spark reads the fields that fit: with a timestamp among them the row would be counted.
    fields = [F.when(unread.isNull(), F.col(f"read.`{name}`")).alias(name) for name in schema.names]
    return rows.select(*fields, unread.alias(_MALFORMED), *_METADATA)


def _bounds_of(topic: SourceTopic) -> dict[int, tuple[int, int]]:
    with closing(topic):
        return topic.bounds()


def _of_spark(options: Mapping[str, Any]) -> dict[str, str]:
    """Convert options of librdkafka to options of Java's client, with Spark's prefix."""
    given = {name: str(value) for name, value in options.items()}
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    if "sasl.mechanisms" in given:  # another name of it
        given["sasl.mechanism"] = given.pop("sasl.mechanisms")
    if user is not None and password is not None:
        scram = given.get("sasl.mechanism", "").upper().startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        given["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={_in_jaas(user)} password={_in_jaas(password)};"
        )
    return {f"kafka.{name}": value for name, value in _ssl_of_java(given).items()}


_SSL_OF_JAVA = {
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.password",
}
"""The options about TLS that have the same name and meaning in both clients; of suites, those of TLS 1.3 have the same names."""
_VERIFY = "enable.ssl.certificate.verification"
_HIDDEN = "The key is a secret:\n"
"""Text before a key is allowed in PEM. Spark shows no option in plans and logs whose text has the word secret."""
_PKCS8 = re.compile(r"-----BEGIN (?P<encrypted>ENCRYPTED )?PRIVATE KEY-----")


def _ssl_of_java(given: dict[str, str]) -> dict[str, str]:
    """Return the options with those about TLS in the form of Java's client. Raises ConfigError for one that it does not have.

    Paths of authorities and PKCS#12 files stay paths, which must exist on every machine of the cluster. A key and its certificate,
    which are two files of librdkafka and one of Java, are read here and sent as text; Kafka's client hides the key in its log.
    """
    ssl = {name: value for name, value in given.items() if name.startswith("ssl")}
    others = {name: value for name, value in given.items() if name not in ssl}
    if others.pop(_VERIFY, "true").lower() not in ("true", "t", "1"):
        raise ConfigError(
            f"the option {_VERIFY}=False cannot be met on Spark, whose client always verifies brokers; leave it out, and give "
            "their authority by 'ssl.ca.location'"
        )
    java: dict[str, str] = {}
    if (authority := ssl.pop("ssl.ca.location", None)) is not None:
        if authority == "probe" or os.path.isdir(authority):
            raise ConfigError(
                f"'ssl.ca.location' is {quote(authority)}, and Spark's client takes one PEM file with all authorities; put them "
                "into a file, or leave the option out for those of Java"
            )
        java |= {"ssl.truststore.location": authority, "ssl.truststore.type": "PEM"}
    if (authorities := ssl.pop("ssl.ca.pem", None)) is not None:
        java |= {"ssl.truststore.certificates": authorities, "ssl.truststore.type": "PEM"}
    if (bundle := ssl.pop("ssl.keystore.location", None)) is not None:
        java |= {"ssl.keystore.location": bundle, "ssl.keystore.type": "PKCS12"}
    key, certificate = _pem_of(ssl, "ssl.key"), _pem_of(ssl, "ssl.certificate")
    if key is not None and certificate is not None:
        java |= {
            "ssl.keystore.key": _HIDDEN + _checked_key(key, ssl),
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.type": "PEM",
        }
    elif key is not None or certificate is not None:
        raise ConfigError(
            "a client that proves who it is has a key and a certificate: give both 'ssl.key.location' and "
            "'ssl.certificate.location', or both 'ssl.key.pem' and 'ssl.certificate.pem'"
        )
    if ssl.get("ssl.endpoint.identification.algorithm") == "none":
        ssl["ssl.endpoint.identification.algorithm"] = ""
    unknown = sorted(set(ssl) - _SSL_OF_JAVA)
    if unknown:
        raise ConfigError(
            f"Spark's client of Kafka has no option {unknown[0]!r}, and would ignore it; leave it out. What it has are "
            "ssl.ca.location, ssl.key.location and ssl.certificate.location (and .pem for a text), ssl.keystore.location, "
            f"{', '.join(sorted(_SSL_OF_JAVA))}"
        )
    return others | java | ssl


def _pem_of(ssl: dict[str, str], name: str) -> str | None:
    """Take `<name>.pem`, or the content of the file `<name>.location`, from the options; None if neither is there."""
    text, path = ssl.pop(f"{name}.pem", None), ssl.pop(f"{name}.location", None)
    if text is not None or path is None:
        return text
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"'{name}.location' cannot be read: {describe_error(problem)}; give the path of a PEM file on this machine"
        ) from None


def _checked_key(key: str, ssl: dict[str, str]) -> str:
    """Return a private key that Java can read. Its password is taken from the options if the key has none: Java would refuse it."""
    found = _PKCS8.search(key)
    if found is None:
        raise ConfigError(
            "the private key of the options is not in the form PKCS#8 (BEGIN PRIVATE KEY), the only one that Spark's client reads; "
            "convert it: openssl pkcs8 -topk8 -nocrypt -in key.pem -out key8.pem"
        )
    if found["encrypted"] is None:
        ssl.pop("ssl.key.password", None)
    return key


def _key(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _in_jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class KafkaSink(ComparedSink):
    """A Kafka topic that takes the rows of a stream as JSON, each batch exactly once for readers with
    `isolation.level=read_committed`.

    Needs the extra `kafka`. servers: `host:port,host:port`. topic: an existing topic. key: the column whose value, as text (of a
    binary column its bytes), is the key of the message. options: settings of librdkafka, such as `security.protocol`,
    `sasl.username`; secrets among them are never shown in error messages. patience_s: seconds to wait for an answer of the brokers
    before SinkError. Several queries may write to one topic.

    >>> KafkaSink("127.0.0.1:9092", "windows", key="origin", options={"sasl.password": "secret"})
    KafkaSink('127.0.0.1:9092', 'windows', key='origin')
    """

    @spelled
    def __init__(
        self,
        servers: str,
        topic: str,
        key: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"key= of a KafkaSink is one column, got {quote(key)}")
        self._servers, self.key = servers, key
        self._topic = KafkaTopic(servers, topic, dict(options or {}), patience_s)
        self._owner: OutputOwner | None = None

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"KafkaSink({self._servers!r}, {self._topic.topic!r}{key})"

    def claim(self, spark: SparkSession, owner: OutputOwner) -> int:
        """Check that the topic can be written; return the last batch in it, -1 for none. Raises ConfigError before anything is
        written.
        """
        names = owner.schema.names
        if self.key is not None and self.key not in names:
            raise ConfigError(
                f"key={self.key!r} of the sink of {owner.name} is no column of it: there are {', '.join(names)}"
            )
        require_json_keys(owner.schema, f"the sink of {owner.name}")
        written = self._topic.claim(owner.query, owner.stream)
        owner.require_in_step(self._topic, written, f"{OLDER_COPY}, or start with a new checkpoint and a new topic")
        self._owner = owner
        return written

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Write the batch, unless the topic already holds it. Cost: a job for each partition of the batch."""
        owner = required_owner(self, self._owner)
        key = F.lit(None) if self.key is None else F.col(quoted(self.key))
        if self.key is None or not isinstance(rows.schema[self.key].dataType, BinaryType):  # bytes may be no text
            key = key.cast("string")
        value = as_json(F.struct(*map(F.col, map(quoted, rows.columns))))
        sent = rows.select(key.alias("key"), value.alias("value"))
        self._topic.write(
            owner.query, owner.stream, batch_id, lambda: ((_key(row[0]), row[1]) for row in sent.toLocalIterator())
        )
