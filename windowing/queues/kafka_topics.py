"""KafkaTopic: writes batches of rows to a Kafka topic, each in one transaction; used by spark/kafka_rows.py.
SourceTopic: reads a topic by partition and offset; GroupTopic: with the positions of a consumer group.

    begin --> the rows of batch 7, as JSON --> offset 8 of the group "windowing.<query>.<stream>" --> commit
              └──────────────── visible together or not at all to readers with isolation.level=read_committed ───────────┘

Guarantees
- A reader with `read_committed` reads each row once, whichever process is killed. A reader with `read_uncommitted` (Kafka's
  default) also reads rows of aborted attempts.
- The progress of a query is stored as the offset of a consumer group without consumers. It is written in the transaction of the
  rows, and read before each batch. A repeated batch finds its number and writes nothing; the same holds after a commit whose answer
  was lost.
- A driver that stalled and was replaced is fenced by the transactional id, which has the name of the group.
- Kafka deletes the offsets of a group without activity for `offsets.retention.minutes` (7 days). A batch that is repeated after
  that is written again.
- Each partition of the topic has the rows of a batch in the order of the batch. The partition follows from the hash of the key as
  in Java's clients; without a key it is random.

Cost: about three round trips and a tenth of a second for each batch; the rows pass through the driver one by one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, ClassVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from windowing.errors import ConfigError, SinkError, SourceError, WindowingError, printable, quote
from windowing.schema.checks import checked_wait
from windowing.stores.remote import Patient, has_batch

_SECRET = re.compile(r"password|passphrase|secret|token|jaas|\.key$|\.pem$", re.IGNORECASE)
_OURS = (
    *("bootstrap.servers", "transactional.id", "group.id", "enable.idempotence", "enable.auto.commit"),
    "isolation.level",
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FIRST_CALL_S, _CALL_S = 0.5, 10.0
_MARK = "windowing"
"""Metadata of the offset that stores the last batch; offsets committed by other consumers have other metadata."""
_TRANSACTION_MS = 60_000
"""The default of librdkafka."""
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

_log = logging.getLogger("windowing.queues")

Rows = Callable[[], Iterable[tuple[Any, Any]]]


def checked_kafka(servers: Any, topic: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client for librdkafka. Raises ConfigError for invalid servers, topic or options."""
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


class KafkaTopic(Patient):
    """A topic to which one stream of one query writes. Not thread-safe.

    Raises ConfigError for errors that a retry cannot fix (servers, credentials, rights, a topic that does not exist), SinkError for
    rows that Kafka refuses, and for brokers that do not answer within the patience.
    """

    lost: ClassVar[tuple[type[Exception], ...]] = (KafkaException,)
    _denied = _DENIED
    _rights = (
        "allow it Read and Write on the topic, Read on groups and Write on transactional ids that begin with 'windowing.' "
        "(kafka-acls --add)"
    )

    def __init__(self, servers: str, topic: str, options: Mapping[str, Any], patience_s: float) -> None:
        self._options = checked_kafka(servers, topic, options)
        checked_wait(patience_s, "the patience of a topic")
        super().__init__(self._options["bootstrap.servers"], patience_s)
        self.topic = topic
        self._call_s = min(_CALL_S, patience_s)
        self._last_batch, self._topic_id = -1, ""
        """The last batch in the topic, -1 for none, and the id of that topic."""
        self._errors: list[KafkaError] = []

    def __str__(self) -> str:
        return f"topic {self.topic!r} at {self._url}"

    def require(self) -> None:
        """Raise ConfigError if the topic does not exist for this user."""

        def look() -> None:
            with closing(self._consumer("look", self.topic)) as consumer:
                self._require_topic(consumer)

        self._patiently(look)

    def claim(self, query: str, stream: str) -> int:
        """Return the last batch in the topic, -1 for none. Raises ConfigError without a topic."""

        def look() -> int:
            with closing(self._consumer(query, stream)) as consumer:
                self._require_topic(consumer)
                self._last_batch = self._written(consumer, _group(query, stream))
            self._topic_id = self._identity()
            return self._last_batch

        return self._patiently(look)

    def write(self, query: str, stream: str, batch_id: int, rows: Rows) -> bool:
        """Write the rows (key, value) of a batch, unless the topic holds them; return whether they were written now.

        rows: called again for each attempt. Raises SinkError, ConfigError.
        """
        return self._patiently(lambda: self._attempt(query, stream, batch_id, rows))

    def _attempt(self, query: str, stream: str, batch_id: int, rows: Rows) -> bool:
        socket_ms = min(1000 * self._patience_s, self._transaction_ms)
        producer = Producer(
            {
                "partitioner": "murmur2_random",
                "socket.timeout.ms": max(10, int(socket_ms)),
                **self._options,
                **self._common,
                "transactional.id": _group(query, stream),
            }
        )
        # Aborts the transaction of an earlier attempt, and fences its producer.
        producer.init_transactions(self._call_s)
        consumer = self._consumer(query, stream)
        try:
            self._require_topic(consumer)
            written = self._written(consumer, _group(query, stream))
            if has_batch(self, query, batch_id, written):
                return False
            if written < 0:
                self._require_same(batch_id)
            producer.begin_transaction()
            began = time.monotonic()
            try:
                self._produce(producer, rows())
                mark = TopicPartition(self.topic, 0, batch_id + 1, _MARK)
                producer.send_offsets_to_transaction([mark], consumer.consumer_group_metadata(), self._call_s)
                producer.commit_transaction(self._patience_s)
            except BaseException as problem:
                with suppress(KafkaException):
                    producer.abort_transaction(self._call_s)
                self._refuse_overdue(problem, batch_id, time.monotonic() - began)
                raise
        finally:
            consumer.close()
        self._last_batch = batch_id
        return True

    def _require_same(self, batch_id: int) -> None:
        """Raise SinkError if a topic without a mark is another one: Kafka deletes the mark of a group without activity too."""
        found = self._identity()
        if self._last_batch >= 0 and found != self._topic_id:
            raise SinkError(
                f"{self} was deleted and made anew since batch {self._last_batch} was written to it, and has none of the batches "
                f"up to that one; nothing of batch {batch_id} was written; start with a new checkpoint to have all rows in the "
                "new topic, or start again, and it has the rows from this batch on"
            )
        self._topic_id = found

    @property
    def _transaction_ms(self) -> float:
        return float(self._options.get("transaction.timeout.ms", _TRANSACTION_MS))

    def _refuse_overdue(self, problem: BaseException, batch_id: int, took_s: float) -> None:
        """Raise SinkError if the broker aborted a transaction because it was open too long, and fenced its producer."""
        fenced = isinstance(problem, KafkaException) and problem.args[0].code() in _FENCED
        if fenced and took_s * 1000 >= self._transaction_ms:
            raise SinkError(
                f"{self}: the transaction of batch {batch_id} was open for {took_s:.0f} s, and brokers give one up after "
                f"transaction.timeout.ms ({self._transaction_ms:.0f}), unless another driver of this query went on; nothing of it "
                "was written; "
                'make batches smaller, or give options={"transaction.timeout.ms": 900000}, which brokers allow where '
                "transaction.max.timeout.ms is what it was, and start again"
            ) from None

    def _produce(self, producer: Any, rows: Iterable[tuple[Any, Any]]) -> None:
        for number, (key, value) in enumerate(rows):
            while True:
                try:
                    producer.produce(self.topic, key=key, value=value)
                    break
                except BufferError:  # the queue is full: wait until messages are sent
                    if producer.poll(1.0):
                        self._renew()
                    elif time.monotonic() > self._deadline:
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            if number % _POLL_EVERY == 0:
                self._renew()
                producer.poll(0)

    @property
    def _common(self) -> dict[str, Any]:
        return {"error_cb": self._errors.append, "logger": _log, "log_level": 2}

    def _consumer(self, query: str, stream: str) -> Any:
        own = {"group.id": _group(query, stream), "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**self._options, **self._common, **own})

    def _written(self, consumer: Any, group: str) -> int:
        """Return the last batch in the topic, -1 for none. Raises ConfigError for an offset of another program."""
        mark = [TopicPartition(self.topic, 0)]
        (found,) = self._answer(consumer, lambda call_s: consumer.committed(mark, timeout=call_s))
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
        found = self._answer(consumer, lambda call_s: consumer.list_topics(self.topic, timeout=call_s))
        if found.topics[self.topic].error is not None:
            raise KafkaException(found.topics[self.topic].error)

    def _identity(self, admin: Any = None) -> str:
        """Return the id of the topic, "" if the brokers have none."""
        found = self._described(AdminClient({**self._options, **self._common}) if admin is None else admin)
        return "" if found.topic_id.get_most_significant_bits() == 0 else str(found.topic_id)

    def _described(self, admin: Any) -> Any:
        wanted = TopicCollection([self.topic])
        return admin.describe_topics(wanted, request_timeout=self._call_s)[self.topic].result()

    def _answer(self, consumer: Any, ask: Callable[[float], Any]) -> Any:
        """Return the answer to a request, which is repeated with timeouts that double up to the patience.

        It stops early once every broker has closed the connection and one has refused the user, or once the user lacks a right:
        waiting longer would not help.
        """
        until, call_s = time.monotonic() + self._call_s, _FIRST_CALL_S
        while True:
            left_s = until - time.monotonic()
            try:
                return ask(max(_FIRST_CALL_S, min(call_s, left_s)))
            except KafkaException:
                while (told := consumer.poll(0)) is not None:  # calls `error_cb`; errors of the group come as messages
                    self._errors.append(told.error())
                codes = {each.code() for each in self._errors}
                if left_s <= call_s or codes >= _ALL_REFUSE or codes & self._denied:
                    raise
            call_s *= 2

    # -- retries and errors ------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Forget the errors of the attempt before; the clients connect by themselves."""
        self._errors.clear()

    def close(self) -> None:
        """Do nothing: each attempt closes its clients."""

    def _lose(self) -> None:
        """Keep the clients, which connect again by themselves."""

    def _unanswered(self, text: str) -> WindowingError:
        return SinkError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the brokers run and can be reached; start "
            "again: the batch is written then, unless it is there"
        )

    def _refused(self, problem: Exception) -> WindowingError | None:
        if not isinstance(problem, KafkaException):
            return None
        error, text = problem.args[0], self._text(problem)
        codes = {error.code(), *(each.code() for each in self._errors)}
        if KafkaError._AUTHENTICATION in codes or KafkaError.SASL_AUTHENTICATION_FAILED in codes:
            return ConfigError(f"{self} refuses the user: {text}; give 'sasl.username' and 'sasl.password' in options=")
        if codes & {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
            return ConfigError(
                f"{self} is not there: {text}; make it (kafka-topics --create --topic {self.topic}), or name another one"
            )
        if codes & self._denied:
            return ConfigError(f"{self} is not open to the user: {text}; {self._rights}")
        if codes & _FENCED:
            return SinkError(
                f"{self}: another driver of this query went on, and has fenced this one: {text}; stop one of them"
            )
        if codes & _REJECTED:
            return SinkError(f"{self} does not take the rows: {text}; nothing of the batch was written")
        if error.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT, KafkaError.INVALID_TRANSACTION_TIMEOUT):
            return ConfigError(f"the options of {self} cannot be used: {text}; they are those of librdkafka")
        return None

    def _text(self, problem: Exception) -> str:
        return self._masked("; ".join(dict.fromkeys(each.str() for each in [problem.args[0], *self._errors[-1:]])))

    def _masked(self, text: str) -> str:
        return masked_options(text, self._options)


class SourceTopic(KafkaTopic):
    """A topic that is read; messages of open or aborted transactions are not visible (`read_committed`)."""

    _denied = _DENIED - {KafkaError.GROUP_AUTHORIZATION_FAILED}  # no group is used; the client asks for it anyway
    _rights = "allow it Read on the topic (kafka-acls --add)"

    def __init__(self, servers: str, topic: str, options: Mapping[str, Any], patience_s: float) -> None:
        super().__init__(servers, topic, options, patience_s)
        self._group = f"windowing.read.{topic}"
        self._reader: Any = None
        self._admin: Any = None
        self._at: tuple[int, int] | None = None

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return [first offset, offset after the last message) by partition. Cost: two requests, one after the other."""
        return self._patiently(self._bounds)

    def identity(self) -> str | None:
        """Return the id of the topic, another one once it is created again; None before Kafka 2.8. Cost: one request."""
        return self._patiently(lambda: self._identity(self._asked)) or None

    def read(self, partition: int, start: int, end: int) -> Iterator[Any]:
        """Yield the existing messages with offsets in [start, end), in order; some may be removed. Raises SourceError."""
        while start < end:
            start, page = self.page(partition, start, end)
            yield from page

    def page(self, partition: int, start: int, end: int) -> tuple[int, list[Any]]:
        """Return the first messages of `read`, and the offset after them. Raises SourceError; `is_removed` knows its cause if the
        message at `start` was removed.
        """
        return self._patiently(lambda: self._page(partition, start, end))

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        reader, self._reader, self._admin, self._at = self._reader, None, None, None
        if reader is not None:
            reader.close()

    @property
    def _asked(self) -> Any:
        if self._admin is None:
            self._admin = AdminClient({**self._options, **self._common})
        return self._admin

    def _bounds(self) -> dict[int, tuple[int, int]]:
        each = [TopicPartition(self.topic, found.id) for found in self._described(self._asked).partitions]
        how = {"isolation_level": IsolationLevel.READ_COMMITTED, "request_timeout": self._call_s}
        first, newest = (
            self._asked.list_offsets(dict.fromkeys(each, at), **how)
            for at in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        found = {one.partition: (first[one].result().offset, newest[one].result().offset) for one in each}
        return dict(sorted(found.items()))

    def _page(self, partition: int, start: int, end: int) -> tuple[int, list[Any]]:
        """Return the start of the next page, and the messages of this one."""
        if self._at != (partition, start):
            self._opened.assign([TopicPartition(self.topic, partition, start)])
        self._at = None  # set again below if the page is complete
        found: list[Any] = []
        after, at_end = start, False
        until = time.monotonic() + self._call_s  # the first message may be a large one, over a slow link
        while after < end and len(found) < _PAGE:
            message = self._opened.poll(min(1.0, self._patience_s))
            if message is None:
                if found or at_end or self._is_refused() or time.monotonic() >= until:
                    break
                continue
            error = message.error()
            if error is None:
                after = message.offset() + 1
                if message.offset() < end:
                    found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Control records of transactions may follow the last message.
                after = max(after, message.offset())
                at_end = True
            # No group is used, but the client requests it anyway.
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise KafkaException(error)
        if after == start:
            if not (at_end or self._is_refused()):
                self._at = partition, start  # an assignment anew would end the fetch that is under way
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if at_end:  # stops the fetch requests of the client
            self._opened.unassign()
        elif after <= end:
            self._at = partition, after
        return after, found

    def _is_refused(self) -> bool:
        """Return whether the client has met an error that waiting does not end; that one of several brokers is down is none."""
        return not {each.code() for each in self._errors}.isdisjoint(_ALL_REFUSE | self._denied)

    @property
    def _opened(self) -> Any:
        if self._reader is None:
            own = {"group.id": self._group, "enable.auto.commit": False}
            how = {
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,  # the messages exist already, and another partition waits for the end of the request
            }
            self._reader = Consumer({**self._options, **self._common, **own, **how})
        return self._reader

    def _unanswered(self, text: str) -> WindowingError:
        return SourceError(
            f"{self} did not answer for {self._patience_s:g} s: {text}; see whether the brokers run and can be reached"
        )

    def _refused(self, problem: Exception) -> WindowingError | None:
        if is_removed(problem):
            return SourceError(f"{self} has removed messages while they were read: {self._text(problem)}; start again")
        return super()._refused(problem)


def is_removed(problem: BaseException | None) -> bool:
    """Whether a client has raised this error because the message to read is not there any more."""
    return isinstance(problem, KafkaException) and problem.args[0].code() == KafkaError._AUTO_OFFSET_RESET


class GroupTopic(SourceTopic):
    """A topic with the positions of a consumer group, which has no members: Kafka assigns it no partitions."""

    _denied = _DENIED
    _rights = "allow it Read on the topic and Read on the group (kafka-acls --add)"

    def __init__(self, servers: str, topic: str, options: Mapping[str, Any], patience_s: float, group: str) -> None:
        super().__init__(servers, topic, options, patience_s)
        self._group = group

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the next message for the group, by partition that has one. Cost: one request."""
        wanted = [TopicPartition(self.topic, each) for each in partitions]
        found = self._of_group(self._asked.list_consumer_group_offsets, wanted)
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def commit(self, positions: Mapping[int, int]) -> None:
        """Store the offsets of the next messages for the group. Cost: one request."""
        wanted = [TopicPartition(self.topic, each, at) for each, at in positions.items()]
        self._of_group(self._asked.alter_consumer_group_offsets, wanted)

    def _of_group(self, method: Callable[..., Any], wanted: list[Any]) -> list[Any]:
        def ask() -> list[Any]:
            asked = method([ConsumerGroupTopicPartitions(self._group, wanted)], request_timeout=self._call_s)
            found: list[Any] = asked[self._group].result().topic_partitions
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return found

        return self._patiently(ask)

    def _refused(self, problem: Exception) -> WindowingError | None:
        if isinstance(problem, KafkaException) and problem.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID:
            return SourceError(
                f"the group {quote(self._group)} has members now, to which Kafka assigns the partitions of {self} or of another "
                "topic, so it takes no position from a reader that is none; end those consumers, or read in a group of your own"
            )
        return super()._refused(problem)


def masked_options(text: str, options: Mapping[str, Any]) -> str:
    """Return a text for messages, with the secrets of the options masked."""
    for name, value in options.items():
        if _SECRET.search(name) and len(str(value)) > 2:
            text = text.replace(str(value), "***")
    return printable(text)


def _group(query: str, stream: str) -> str:
    return f"windowing.{query}.{stream}"
