"""KafkaSpout, KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional: a Kafka topic as a spout (confluent-kafka, extra `kafka`).

Only committed messages are read. A partition that is added later is read from its first message, also with starting="latest".

KafkaSpout is a PartitionedSpout. An offset of it is a position of Kafka, which is the offset of the next message:

    offsets of messages       0   1   2   3   4   5   6
    positions               0   1   2   3   4   5   6   7      the batch (2, 5] has the messages 2, 3, 4; then the group gets 5

    | what happens                              | what the spout does                                                    |
    |-------------------------------------------|------------------------------------------------------------------------|
    | a run begins without checkpoint, records  | begins at the position of the group; without one at `starting`, which  |
    |                                           | becomes the group's position before the first message is read          |
    | ... with a checkpoint, with records       | begins at the offsets there; the group is told, and not asked          |
    | all of a batch and of those before it is  | the end of the batch becomes the group's position: LocalCluster calls  |
    | acked, or its dead letters are            | `commit` so, Trident and Spark when the batch is committed             |
    | a process is killed                       | what is after the group's position comes again, some of it twice       |
    | LocalCluster: a message fails for good,   | `fail` ends the run: Kafka delivers nothing again with other offsets.  |
    | and no bolt takes its dead letter         | The group stays before that batch, which the next run reads            |
    | messages were removed before they were    | SourceError, or with on_gap="skip" a warning, and the first message    |
    | read                                      | that is there                                                          |
    | the topic was deleted and created again   | SourceError while it runs; a checkpoint and records know `identity`.   |
    |                                           | Kafka deletes the positions of groups with a topic                     |

It has no `ack`: what an ack would need, the position of a prefix, is what `commit` gets, in any order of acks.

The Trident spouts use no consumer group; the records of the topology store their offsets:

    partition "0"    |-- [0, 40) of batch 1 --|-- [40, 80) of batch 2 --|-- ...        metadata: [start, end), topic, count
    transactional    a replay reads the stored [start, end) again: the same rows, as long as the topic retains them
    opaque           a replay starts where the previous batch ended, and reads up to the current end of the partition

Their batch has at most `max_rows` messages of each partition.

Source: Storm's classes of these names (storm-kafka-client).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from windowing.columnar.bolts import table_of
from windowing.errors import ConfigError, SourceError, quote
from windowing.queues.kafka_topics import GroupTopic, SourceTopic, is_removed
from windowing.queues.spout import Offsets, PartitionedSpout, Root, one_of, whole_number
from windowing.schema.checks import spelled
from windowing.schema.messages import BadMessage, row_of_json
from windowing.schema.types import Schema
from windowing.schema.values import EPOCH
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import FIRST_TXID, TransactionAttempt
from windowing.trident.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.states import TridentCollector

_log = logging.getLogger("windowing.queues")

_MALFORMED = "malformed"
_METADATA = {
    "kafka_key": "string",
    "kafka_partition": "int",
    "kafka_offset": "bigint",
    "kafka_time": "timestamp",
    "kafka_value": "string",
    _MALFORMED: "string",
}


class KafkaSpout(PartitionedSpout):
    """The JSON messages of a topic, read from the position of a consumer group. Pass it to `sources=`.

    servers: `host:port,host:port`. fields: the fields of the JSON object. These fields, if declared, hold metadata of the message:
    `kafka_key string`, `kafka_partition int`, `kafka_offset bigint`, `kafka_time timestamp`, and `kafka_value string` its text: if
    all fields are among these, messages need not be JSON. `malformed string`, if declared, holds the text of a message that is not
    a valid row, and its other fields are null; without it such a message raises an error.
    group: the consumer group whose position a LocalCluster, and a query without a checkpoint, begins at, and which gets the
    positions of what is done; it joins no group, and all runs of a group that run at the same time read all partitions. max_rows:
    the maximum number of messages in a batch, over all partitions. starting: where a group without a position begins, "earliest" or
    "latest". on_gap: messages that retention removed before they were read raise an error ("raise"), or are skipped with a warning
    ("skip"). options: settings of librdkafka (`sasl.username`, ...). patience_s: seconds to wait for an answer of the brokers.

    Raises ConfigError for a topic that does not exist, refused credentials and invalid fields. Every method raises SourceError if
    the brokers do not answer for `patience_s` seconds, for removed messages, and for messages that are not valid rows.
    """

    @spelled
    def __init__(
        self,
        servers: str,
        topic: str,
        fields: str,
        *,
        group: str,
        max_rows: int = 10_000,
        starting: Literal["earliest", "latest"] = "earliest",
        on_gap: Literal["raise", "skip"] = "raise",
        options: Mapping[str, Any] | None = None,
        patience_s: float = 30.0,
    ) -> None:
        if not isinstance(group, str) or not group:
            raise ConfigError(f"the group of a KafkaSpout is the name of a consumer group, got {quote(group)}")
        self._schema = Schema.parse(fields)
        self._rows, self.fields = _MessageRows(self._schema), self._schema.ddl
        self.max_rows = whole_number("max_rows", max_rows)
        self._starting = one_of("starting", "topic", starting, ("earliest", "latest"))
        self._on_gap = one_of("on_gap", "topic", on_gap, ("raise", "skip"))
        self._given = servers, topic, dict(options or {}), patience_s, group
        self._opened: GroupTopic | None = None
        try:
            self._topic.require()
            self.identity = self._topic.identity()
        finally:
            self.close()  # a fork would copy the clients without their threads

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __repr__(self) -> str:
        return f"KafkaSpout({self._given[0]!r}, {self._given[1]!r}, group={self._given[4]!r})"

    @property
    def _topic(self) -> GroupTopic:
        if self._opened is None:
            self._opened = GroupTopic(*self._given)
        return self._opened

    @property
    def _progress_key(self) -> Any:
        return self._given[0], self._given[1], self._given[4]

    def initial(self) -> Offsets:
        """Return the positions of the group. Partitions that it has none for get one: a later start begins there too."""
        bounds = self._topic.bounds()
        known = self._topic.positions(bounds)
        at_end = self._starting == "latest" and not known
        new = {each: newest if at_end else first for each, (first, newest) in bounds.items() if each not in known}
        if new:
            self._topic.commit(new)
        return {str(each): at for each, at in {**known, **new}.items()}

    def latest(self) -> Offsets:
        """Return the ends of the partitions. Raises SourceError for another topic of this name. Cost: four requests."""
        _require_same(self._topic, self.identity, self._topic.identity())
        return {str(each): newest for each, (_, newest) in self._topic.bounds().items()}

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the existing messages from position `start` to position `end`. Cost: a request for each page of 1,000."""
        topic, number = self._topic, int(partition)
        while start < end:
            try:
                start, page = topic.page(number, start, end)
            except SourceError as problem:
                first, newest = topic.bounds()[number] if is_removed(problem.__cause__) else (start, start)
                if not start < first <= newest:
                    raise
                start = _after_gap(topic, number, start, first, self._on_gap, _log.warning)
            else:
                if page:
                    yield from table_of(
                        [tuple(self._rows.row(each, topic)) for each in page], self._schema
                    ).to_batches()

    def commit(self, end: Offsets) -> None:
        """Store the positions of the group. Cost: one request."""
        self._topic.commit({int(partition): at for partition, at in end.items()})

    def fail(self, root: Root, component: str) -> None:
        """Raise SourceError: Kafka delivers no message a second time to a reader that goes on."""
        ranges = "; ".join(f"{start} to {end - 1} of partition {each}" for each, (start, end) in root.ranges.items())
        raise SourceError(
            f"{component!r} has failed a message of {self._topic} as often as windowing.max.attempts allows, and no bolt takes the "
            f"dead letter: one of the offsets {ranges}; group {self._given[4]!r} stays before them, so the next run reads them "
            f"again: repair {component!r}, or let a bolt read its dead letters (shuffle_grouping({component!r}, 'dead_letters')), "
            "or set windowing.max.attempts to None, with which a message is tried for ever"
        )

    def close(self) -> None:
        """Close the connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def _require_same(topic: SourceTopic, known: Any, found: str | None) -> None:
    """Raise SourceError if the topic is not the one that was read before. Brokers before Kafka 2.8 give it no id."""
    if None not in (known, found) and known != found:
        raise SourceError(
            f"{topic} is another topic than the one that was read: it was deleted, and made anew under the same name; "
            "begin with new records and new states, or name the topic that it was"
        )


def _after_gap(
    topic: SourceTopic, partition: Any, start: int, first: int, on_gap: str, report: Callable[[SourceError], object]
) -> int:
    """Return `first`, the offset to read next where those from `start` on are gone; report it, or raise SourceError."""
    gap = SourceError(
        f"partition {partition} of {topic} has lost {first - start} offsets that were not read, {start} to {first - 1}: "
        "its retention has removed them"
    )
    if on_gap == "raise":
        raise SourceError(
            f"{gap.args[0]}; nothing was skipped: put them back, or go on without them with on_gap='skip', and "
            "keep messages for longer (retention.ms)"
        )
    report(gap)
    return first


class _TopicSpout:
    """The common part of both Trident spouts: the topic, the offsets that the emitters have read, which the coordinator compares,
    and those at which it lets a bounded run end.
    """

    @spelled
    def __init__(
        self,
        servers: str,
        topic: str,
        fields: str,
        *,
        max_rows: int = 1_000,
        starting: Literal["earliest", "latest"] = "earliest",
        bounded: bool = False,
        on_gap: Literal["raise", "skip"] = "raise",
        options: Mapping[str, Any] | None = None,
        patience_s: float = 30.0,
    ) -> None:
        self.output = Schema.parse(fields).ddl
        self.starting = one_of("starting", "topic", starting, ("earliest", "latest"))
        self.on_gap = one_of("on_gap", "topic", on_gap, ("raise", "skip"))
        self.max_rows = whole_number("max_rows", max_rows)
        self.bounded = bounded
        self.rows = _MessageRows(Schema.parse(fields))
        self._topic = servers, topic, dict(options or {}), patience_s
        self.read: dict[str, int] = {}
        self.ends: dict[str, int] | None = None
        self.opened().require()

    def opened(self) -> SourceTopic:
        return SourceTopic(*self._topic)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._topic[0]!r}, {self._topic[1]!r})"

    def get_coordinator(self) -> PartitionedCoordinator:
        return _Coordinator(self)

    def get_emitter(self) -> PartitionedEmitter:
        return _Emitter(self)


class KafkaTridentSpoutOpaque(_TopicSpout, IOpaquePartitionedTridentSpout):
    """The JSON messages of a topic; a failed batch is replayed with the messages that exist then. Pass it to `new_stream`.

    servers: `host:port,host:port`. fields: the fields of the JSON object. These fields, if declared, hold metadata of the message:
    `kafka_key string`, `kafka_partition int`, `kafka_offset bigint`, `kafka_time timestamp`, and `kafka_value string` its text: if
    all fields are among these, messages need not be JSON. `malformed string`, if declared, holds the text of a message that is not
    a valid row, and its other fields are null; without it such a message raises an error.
    max_rows: the maximum number of messages of a partition in a batch. starting: where the first batch of a topology starts,
    "earliest" or "latest", the end when it is first read. bounded: end at the offsets that the topic has when the first run of the
    cluster begins. on_gap: messages that retention removed before they were read raise an error ("raise"), or are skipped and their
    number is reported ("skip"). options: settings of librdkafka (`sasl.username`, ...). patience_s: seconds to wait for an answer
    of the brokers.

    Raises ConfigError for a topic that does not exist, refused credentials and invalid fields; SourceError if the brokers do not
    answer for `patience_s` seconds, for removed messages, and for messages that are not valid rows.
    """


class KafkaTridentSpoutTransactional(_TopicSpout, IPartitionedTridentSpout):
    """The JSON messages of a topic; a failed batch is replayed with the same messages. Arguments as of KafkaTridentSpoutOpaque.

    Set the retention of the topic (`retention.ms`) longer than a run may be down. A replay of a batch whose messages were removed,
    by compaction too, raises SourceError, also with `on_gap="skip"`.
    """


class _MessageRows:
    def __init__(self, schema: Schema) -> None:
        kinds = dict(zip(schema.names, schema.types, strict=True))
        for name, wanted in _METADATA.items():
            if name in kinds and Schema.parse(f"{name} {wanted}").types[0] != kinds[name]:
                raise ConfigError(
                    f"the field {name!r} of a topic is a {wanted}, got {kinds[name]}: it is what Kafka says of a message; declare "
                    "it so, or rename it"
                )
        own = [f"{name} {kind}" for name, kind in kinds.items() if name not in _METADATA]
        if not own and "kafka_value" not in kinds:
            raise ConfigError(
                f"the fields of a topic are those of its JSON, got only {schema.ddl}; name one of the message, or 'kafka_value "
                "string', which is its text"
            )
        self._own = Schema.parse(", ".join(own)) if own else None
        self._names, self._has_malformed = schema.names, _MALFORMED in kinds

    def row(self, message: Any, topic: SourceTopic) -> list[Any]:
        """Return the row of a message. Raises SourceError for an invalid message if no `malformed` field is declared."""
        body, own = message.value(), self._own
        found: dict[str, Any] = {}
        if own is not None:
            try:
                if body is None:
                    raise BadMessage("it is empty")
                found = dict(zip(own.names, row_of_json(body, own), strict=True))
            except BadMessage as problem:
                if not self._has_malformed:
                    raise SourceError(
                        f"the message at offset {message.offset()} of partition {message.partition()} of {topic} is no row of "
                        f"{own.ddl}: {problem}; declare what its fields are, or a field 'malformed string', which takes its text; "
                        "if messages are no JSON, declare 'kafka_value string' in place of such fields"
                    ) from None
                found[_MALFORMED] = _text(body) or ""
        found |= {
            "kafka_key": _text(message.key()),
            "kafka_value": _text(body),
            "kafka_partition": message.partition(),
            "kafka_offset": message.offset(),
            "kafka_time": _time_of(message.timestamp()[1]),
        }
        return [found.get(name) for name in self._names]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _time_of(at_ms: int) -> datetime | None:
    """Return when a message was written; None for one that has no time, or one that is no date (a producer's microseconds, say)."""
    try:
        return None if at_ms < 0 else EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return None


class _Coordinator(PartitionedCoordinator):
    """READY while a partition has a message that no emitter has read. A partition not read since the start counts as unread."""

    def __init__(self, spout: _TopicSpout) -> None:
        self._spout, self._topic = spout, spout.opened()
        spout.read.clear()
        spout.ends = None

    def is_ready(self, txid: int) -> Readiness:
        now = {str(each): end for each, (_, end) in self._topic.bounds().items()}
        if self._spout.bounded and self._spout.ends is None:
            self._spout.ends = now
        ends = now if self._spout.ends is None else self._spout.ends
        if any(self._spout.read.get(name, -1) < end for name, end in ends.items()):
            return Readiness.READY
        return Readiness.ENDED if self._spout.bounded else Readiness.WAIT

    def get_partitions_for_batch(self) -> Sequence[str]:
        return [str(each) for each in self._topic.bounds()]

    def close(self) -> None:
        self._topic.close()


class _Emitter(PartitionedEmitter):
    """Reads one range of offsets of each partition per batch. `_bounds` and `_id` are queried once for each attempt."""

    def __init__(self, spout: _TopicSpout) -> None:
        self._spout, self._topic = spout, spout.opened()
        self._bounds: tuple[TransactionAttempt | None, dict[int, tuple[int, int]]] = None, {}
        self._begins: dict[str, int] = {}
        """Where partitions ended when they were first read: there every attempt at the first batch starts with "latest"."""
        self._id: str | None = None

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, last: Any
    ) -> Any:
        first, newest = self._bounds_of(attempt, partition)
        if last is not None:
            _require_same(self._topic, last[2], self._id)
            start = int(last[1])
        elif self._spout.starting == "latest" and attempt.txid == FIRST_TXID:
            start = self._begins.setdefault(partition, newest)
        else:
            start = first
        start = self._without_gap(start, first, newest, partition, collector)
        ends = self._spout.ends
        end = min(newest, start + self._spout.max_rows)
        end = end if ends is None else max(start, min(end, ends.get(partition, start)))
        return [start, end, self._id, self._emit(collector, partition, start, end)]

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: TridentCollector, partition: str, metadata: Any
    ) -> None:
        start, end, _, count = metadata
        first, newest = self._bounds_of(attempt, partition)
        _require_same(self._topic, metadata[2], self._id)
        what = f"the offsets {start} to {end - 1} of partition {partition} of {self._topic}, which has"
        if start < end and not first <= start <= end <= newest:
            raise self._gone(attempt, f"{what} {first} to {newest - 1}")
        found = self._emit(collector, partition, start, end)
        if found != count:
            raise self._gone(attempt, f"{count} messages at {what} {found} of them: it is compacted, say")

    def _gone(self, attempt: TransactionAttempt, what: str) -> SourceError:
        return SourceError(
            f"batch {attempt} was {what}: the same batch cannot be made again; begin with new records and new states, and keep "
            "messages for longer (retention.ms), or take KafkaTridentSpoutOpaque"
        )

    def close(self) -> None:
        self._topic.close()

    def _emit(self, collector: TridentCollector, partition: str, start: int, end: int) -> int:
        """Emit the messages with offsets in [start, end), and return their number."""
        count = 0
        for count, message in enumerate(self._topic.read(int(partition), start, end), 1):  # noqa: B007
            collector.emit(self._spout.rows.row(message, self._topic))
        self._spout.read[partition] = end
        return count

    def _bounds_of(self, attempt: TransactionAttempt, partition: str) -> tuple[int, int]:
        if self._bounds[0] != attempt:
            self._bounds, self._id = (attempt, self._topic.bounds()), self._topic.identity()
        found = self._bounds[1].get(int(partition))
        if found is None:
            raise SourceError(
                f"partition {partition} of {self._topic} is gone: it was deleted, and made again with fewer; begin with new records"
            )
        return found

    def _without_gap(self, start: int, first: int, newest: int, partition: str, collector: TridentCollector) -> int:
        """Return the offset to read next after `start`: a larger one if messages are gone and `on_gap` is "skip"."""
        if start > newest:
            raise SourceError(
                f"partition {partition} of {self._topic} ends at offset {newest}, and was read up to {start}: messages were lost, "
                "or it is another topic of this name; begin with new records and new states, or name the topic that it was"
            )
        if start >= first:
            return start
        return _after_gap(self._topic, partition, start, first, self._spout.on_gap, collector.report_error)
