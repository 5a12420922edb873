"""KafkaTopic: batches of rows in a topic of Kafka, each in one transaction; what spark/kafka_rows.py writes to.
SourceTopic: a topic that is read, by partition and offset.

    begin --> the rows of batch 7, as JSON --> offset 8 of the group "windowing.<query>.<stream>" --> commit
              └──────────────── seen together or not at all by readers with isolation.level=read_committed ────────────────┘

What it promises
- A reader with `read_committed` sees each row once, whoever is killed. One with `read_uncommitted` (Kafka's default) sees rows of
  attempts that were given up, too.
- How far a query has come stands in the offsets of a group that nobody reads by: written in the transaction of the rows, looked
  up before each batch. A batch that comes again finds its number and writes nothing; so is a commit whose answer got lost.
- A driver that was held up, and whose place another one took, is fenced by the transactional id, which has the group's name.
- Kafka forgets the offsets of a group that was silent for `offsets.retention.minutes` (7 days): a batch that is made again after
  that is written again.
- Rows of a batch are in the order of the batch, in each partition of the topic. Which partition: by the hash of the key as Java's
  clients have it, without a key any.

Cost: about three round trips and a tenth of a second a batch; the rows go through the driver, one by one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from windowing.errors import ConfigError, SinkError, SourceError, WindowingError, printable, quote

__all__ = [
    "KafkaTopic",
    "SourceTopic",
]


_SECRET = re.compile(r"password|secret|token|jaas|\.key$|\.pem$", re.IGNORECASE)
_OURS = (
    "bootstrap.servers",
    "transactional.id",
    "group.id",
    "enable.idempotence",
    "enable.auto.commit",
    "isolation.level",
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_FIRST_CALL_S, _CALL_S = 0.5, 10.0
_MARK = "windowing"
"""The metadata of the offset that says which batch was written last: what another consumer commits has others."""
_TRANSACTION_MS = 60_000
"""What librdkafka takes where nothing is given."""
_POLL_EVERY = 1000
_PAGE = 1000
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_ALL_REFUSE = {KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN}
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_REJECTED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
}

_log = logging.getLogger("windowing.stores")

Rows = Callable[[], Iterable[tuple[Any, Any]]]


def checked_kafka(servers: Any, topic: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client, as librdkafka has them. Raises ConfigError for servers, a topic or options that are none."""
    if not isinstance(servers, str) or not re.fullmatch(r"[^\s,@/]+:\d+(\s*,\s*[^\s,@/]+:\d+)*", servers.strip()):
        raise ConfigError(
            "the servers of Kafka are 'host:port,host:port' (not shown, for a password may stand there); give user and password in "
            "options={'sasl.username': ..., 'sasl.password': ...}"
        )
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ConfigError(
            f"the name of a topic has letters, digits, '.', '_' and '-', at most 249, got {quote(topic)}; name one topic"
        )
    for name in options:
        if name in _OURS:
            raise ConfigError(f"the option {quote(name)} is set by the library, which counts on it; leave it out")
    return {"bootstrap.servers": servers.strip(), **options}


class KafkaTopic:
    """A topic to which one stream of one query writes. For one thread at a time.

    Raises ConfigError for what cannot work however often it is tried (servers, credentials, rights, a topic that is not there),
    SinkError for rows that Kafka does not take, and for brokers that are silent for longer than the patience.
    """

    def __init__(self, servers: str, topic: str, options: Mapping[str, Any], patience_s: float) -> None:
        self._options = checked_kafka(servers, topic, options)
        self.topic, self._patience_s = topic, patience_s
        self._deadline = 0.0
        self._heard: list[KafkaError] = []

    def __str__(self) -> str:
        return f"topic {self.topic!r} at {self._options['bootstrap.servers']}"

    def require(self) -> None:
        """See whether the topic is there, for this user."""

        def look() -> None:
            consumer = self._consumer("look", self.topic)
            try:
                self._require_topic(consumer)
            finally:
                consumer.close()

        self._patiently(look)

    def claim(self, query: str, stream: str, last_batch: int | None) -> None:
        """See whether the topic is there, and is no further than the query, whose last begun batch this is."""

        def look() -> None:
            consumer = self._consumer(query, stream)
            try:
                self._require_topic(consumer)
                written = self._written(consumer, _group(query, stream))
            finally:
                consumer.close()
            if written > (-1 if last_batch is None else last_batch):
                begun = "has begun none" if last_batch is None else f"has come to batch {last_batch}"
                raise ConfigError(
                    f"{self} holds batch {written} of query {query}, which {begun}: its checkpoint is an older copy; put back the "
                    "newest one, or start with a new checkpoint and a new topic"
                )

        self._patiently(look)

    def write(self, query: str, stream: str, batch_id: int, rows: Rows) -> bool:
        """Write the rows (key, value) of a batch, unless they are there; return whether they were written now. `rows` is asked
        again where an attempt was given up.
        """
        return bool(self._patiently(lambda: self._attempt(query, stream, batch_id, rows)))

    def _attempt(self, query: str, stream: str, batch_id: int, rows: Rows) -> bool:
        producer = Producer(
            {
                "partitioner": "murmur2_random",
                **self._options,
                **self._common,
                "transactional.id": _group(query, stream),
            }
        )
        producer.init_transactions(
            _CALL_S
        )  # gives up what an earlier attempt has left, and fences whoever still makes it
        consumer = self._consumer(query, stream)
        try:
            self._require_topic(consumer)
            written = self._written(consumer, _group(query, stream))
            if written >= batch_id:
                if written == batch_id:
                    return False
                raise SinkError(
                    f"{self} holds batch {written} of query {query}, and batch {batch_id} came: another driver went on with the "
                    "checkpoint, or it is an older copy; nothing was written"
                )
            producer.begin_transaction()
            began = time.monotonic()
            try:
                self._produce(producer, rows())
                mark = TopicPartition(self.topic, 0, batch_id + 1, _MARK)
                producer.send_offsets_to_transaction([mark], consumer.consumer_group_metadata(), _CALL_S)
                producer.commit_transaction(self._patience_s)
            except BaseException as problem:
                with suppress(KafkaException):
                    producer.abort_transaction(_CALL_S)
                self._refuse_overdue(problem, batch_id, time.monotonic() - began)
                raise
        finally:
            consumer.close()
        return True

    def _refuse_overdue(self, problem: BaseException, batch_id: int, took_s: float) -> None:
        """Raise SinkError where the broker gave a transaction up since it was open too long, and fenced who made it."""
        longest_ms = self._options.get("transaction.timeout.ms", _TRANSACTION_MS)
        fenced = isinstance(problem, KafkaException) and problem.args[0].code() in _FENCED
        if fenced and took_s * 1000 >= float(longest_ms):
            raise SinkError(
                f"{self}: the transaction of batch {batch_id} was open for {took_s:.0f} s, and brokers give one up after "
                f"transaction.timeout.ms ({longest_ms}), unless another driver of this query went on; nothing of it was written; "
                'make batches smaller, or give options={"transaction.timeout.ms": 900000}, which brokers allow where '
                "transaction.max.timeout.ms is what it was, and start again"
            ) from None

    def _produce(self, producer: Any, rows: Iterable[tuple[Any, Any]]) -> None:
        for number, (key, value) in enumerate(rows):
            while True:
                try:
                    producer.produce(self.topic, key=key, value=value)
                    break
                except BufferError:  # the queue is full: what is under way is waited for
                    self._renew()
                    producer.poll(1.0)
            if number % _POLL_EVERY == 0:
                self._renew()
                producer.poll(0)

    @property
    def _common(self) -> dict[str, Any]:
        return {"error_cb": self._heard.append, "logger": _log, "log_level": 2}

    def _consumer(self, query: str, stream: str) -> Any:
        own = {"group.id": _group(query, stream), "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**self._options, **self._common, **own})

    def _written(self, consumer: Any, group: str) -> int:
        """Return the last batch that is in the topic, -1 for none. Raises ConfigError for an offset that is not ours."""
        (found,) = consumer.committed([TopicPartition(self.topic, 0)], timeout=_CALL_S)
        if found.error is not None:
            raise KafkaException(found.error)
        if found.offset >= 0 and found.metadata != _MARK:
            raise ConfigError(
                f"{self}: somebody else has committed offset {found.offset} of the group {quote(group)}, which keeps a query's "
                "progress, so it is not known which of its batches are in the topic; nothing was written; let no consumer use this "
                "group, and start with a new checkpoint and a new topic"
            )
        return max(0, int(found.offset)) - 1

    def _require_topic(self, consumer: Any) -> None:
        """Ask for the topic, in short calls that grow: once every broker has closed the connection, and one said that it refuses
        the user, nothing else is to be expected of the rest of the time.
        """
        until, call_s = time.monotonic() + min(_CALL_S, self._patience_s), _FIRST_CALL_S
        while True:
            left_s = until - time.monotonic()
            try:
                found = consumer.list_topics(self.topic, timeout=max(_FIRST_CALL_S, min(call_s, left_s))).topics[
                    self.topic
                ]
                break
            except KafkaException:
                consumer.poll(0)  # only so the client says what it has heard
                if left_s <= call_s or {each.code() for each in self._heard} >= _ALL_REFUSE:
                    raise
            call_s *= 2
        if found.error is not None:
            raise KafkaException(found.error)

    # -- patience, and what errors mean ------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        self._deadline = time.monotonic() + self._patience_s

    def _patiently(self, do: Callable[[], Any]) -> Any:
        self._renew()
        pause = _FIRST_PAUSE_S
        while True:
            self._heard.clear()
            try:
                return do()
            except KafkaException as problem:
                error = problem.args[0]
            refused = self._refused(error)
            if refused is not None:
                raise refused
            if time.monotonic() + pause > self._deadline:
                raise self._unanswered(self._text(error))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _unanswered(self, text: str) -> WindowingError:
        return SinkError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the brokers run and can be reached; start "
            "again: the batch is written then, unless it is there"
        )

    def _refused(self, error: KafkaError) -> WindowingError | None:
        codes = {error.code(), *(each.code() for each in self._heard)}
        text = self._text(error)
        if KafkaError._AUTHENTICATION in codes or KafkaError.SASL_AUTHENTICATION_FAILED in codes:
            return ConfigError(f"{self} refuses the user: {text}; give 'sasl.username' and 'sasl.password' in options=")
        if codes & {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
            return ConfigError(
                f"{self} is not there: {text}; make it (kafka-topics --create --topic {self.topic}), or name another one"
            )
        if codes & _DENIED:
            return ConfigError(
                f"{self} is not open to the user: {text}; a sink writes to it, and uses groups and transactional ids that "
                "begin with 'windowing.'; a source reads and describes it"
            )
        if codes & _FENCED:
            return SinkError(
                f"{self}: another driver of this query went on, and has fenced this one: {text}; stop one of them"
            )
        if codes & _REJECTED:
            return SinkError(f"{self} does not take the rows: {text}; nothing of the batch was written")
        if error.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT, KafkaError.INVALID_TRANSACTION_TIMEOUT):
            return ConfigError(f"the options of {self} cannot be used: {text}; they are those of librdkafka")
        return None

    def _text(self, error: KafkaError) -> str:
        return masked_options(
            "; ".join(dict.fromkeys(each.str() for each in [error, *self._heard[-1:]])), self._options
        )


class SourceTopic(KafkaTopic):
    """A topic that is read. An offset is that of a message of a committed transaction, or of one without (`read_committed`)."""

    def __init__(self, servers: str, topic: str, options: Mapping[str, Any], patience_s: float) -> None:
        super().__init__(servers, topic, options, patience_s)
        self._reader: Any = None
        self._admin: Any = None
        self._at: tuple[int, int] | None = None

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return of each partition [the first offset that is there, the one behind the last message). Cost: a request for the
        names, two for each partition."""
        return dict(self._patiently(self._bounds))

    def identity(self) -> str | None:
        """Return what tells the topic from another one that is made under its name later; None where the brokers do not say it
        (before Kafka 2.8). Cost: a request.
        """
        return str(self._patiently(self._identity)) or None

    def read(self, partition: int, start: int, end: int) -> Iterator[Any]:
        """Yield the messages with offsets in [start, end) that there are, in order; some may be gone. Raises SourceError."""
        while start < end:
            after, page = self._patiently(lambda at=start: self._page(partition, at, end))  # type: ignore[misc]
            yield from page
            start = after

    def close(self) -> None:
        """End the connection; the next call makes another."""
        reader, self._reader, self._admin, self._at = self._reader, None, None, None
        if reader is not None:
            reader.close()

    def _identity(self) -> str:
        if self._admin is None:
            self._admin = AdminClient({**self._options, **self._common})
        wanted = TopicCollection([self.topic])
        found = self._admin.describe_topics(wanted, request_timeout=_CALL_S)[self.topic].result()
        return "" if found.topic_id.get_most_significant_bits() == 0 else str(found.topic_id)

    def _bounds(self) -> dict[int, tuple[int, int]]:
        found = self._opened.list_topics(self.topic, timeout=min(_CALL_S, self._patience_s)).topics[self.topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return {
            each: self._opened.get_watermark_offsets(TopicPartition(self.topic, each), timeout=_CALL_S, cached=False)
            for each in sorted(found.partitions)
        }

    def _page(self, partition: int, start: int, end: int) -> tuple[int, list[Any]]:
        """Return where the next page begins, and the messages of this one."""
        if self._at != (partition, start):
            self._opened.assign([TopicPartition(self.topic, partition, start)])
        self._at = None  # unless all goes well
        found: list[Any] = []
        after, at_end = start, False
        while after < end and len(found) < _PAGE:
            message = self._opened.poll(min(1.0, self._patience_s))
            if message is None:
                break
            error = message.error()
            if error is None:
                after = message.offset() + 1
                if message.offset() < end:
                    found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # behind the last there may be marks of transactions
                after = max(after, message.offset())
                at_end = True
            else:
                raise KafkaException(error)
        if after == start:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if at_end:  # or it would ask on and on
            self._opened.unassign()
        elif after <= end:
            self._at = partition, after
        return after, found

    @property
    def _opened(self) -> Any:
        if self._reader is None:
            own = {"group.id": f"windowing.read.{self.topic}", "enable.auto.commit": False}
            how = {
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,  # what is read is there; another partition waits for the request to end
            }
            self._reader = Consumer({**self._options, **self._common, **own, **how})
        return self._reader

    def _unanswered(self, text: str) -> WindowingError:
        return SourceError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the brokers run and can be reached"
        )

    def _refused(self, error: KafkaError) -> WindowingError | None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            return SourceError(f"{self} has removed messages while they were read: {self._text(error)}; start again")
        return super()._refused(error)


def masked_options(text: str, options: Mapping[str, Any]) -> str:
    """Return a text as it may stand in messages: without the secrets among the options."""
    for name, value in options.items():
        if _SECRET.search(name) and len(str(value)) > 2:
            text = text.replace(str(value), "***")
    return printable(text)


def _group(query: str, stream: str) -> str:
    return f"windowing.{query}.{stream}"
