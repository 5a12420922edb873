"""KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional: a Kafka topic as Trident batches (confluent-kafka, extra `kafka`).

    partition "0"    |-- [0, 40) of batch 1 --|-- [40, 80) of batch 2 --|-- ...        metadata: [start, end), topic, count
    transactional    a replay reads the stored [start, end) again: the same rows, as long as the topic retains them
    opaque           a replay starts where the previous batch ended, and reads up to the current end of the partition

A batch has at most `max_rows` messages of each partition. Only committed messages are read. A partition that is added later is read
from its first message, also with starting="latest". The offsets are stored in the records of the topology; the spouts use no
consumer group.

Source: Storm's classes of these names (storm-kafka-client).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from windowing.errors import ConfigError, SourceError
from windowing.queues.kafka_topics import SourceTopic
from windowing.queues.spout import one_of, whole_number
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

_MALFORMED = "malformed"
_METADATA = {
    "kafka_key": "string",
    "kafka_partition": "int",
    "kafka_offset": "bigint",
    "kafka_time": "timestamp",
    _MALFORMED: "string",
}


class _TopicSpout:
    """The common part of both spouts: the topic, the offsets that the emitters have read, which the coordinator compares, and those
    at which it lets a bounded run end.
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
    `kafka_key string`, `kafka_partition int`, `kafka_offset bigint`, `kafka_time timestamp`. `malformed string`, if declared, holds
    the text of a message that is not a valid row, and its other fields are null; without it such a message raises an error.
    max_rows: the maximum number of messages of a partition in a batch. starting: where the first batch of a topology starts,
    "earliest" or "latest", the end when it is first read. bounded: end at the offsets that the topic has when the first run of the
    cluster begins. on_gap: messages that retention
    removed before they were read raise an error ("raise"), or are skipped and their number is reported ("skip"). options: settings
    of librdkafka (`sasl.username`, ...). patience_s: seconds to wait for an answer of the brokers.

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
        if not own:
            raise ConfigError(
                f"the fields of a topic are those of its JSON, got only {schema.ddl}; name one of the message"
            )
        self._own = Schema.parse(", ".join(own))
        self._names, self._has_malformed = schema.names, _MALFORMED in kinds

    def row(self, message: Any, topic: SourceTopic) -> list[Any]:
        """Return the row of a message. Raises SourceError for an invalid message if no `malformed` field is declared."""
        body = message.value()
        found: dict[str, Any] = {}
        try:
            if body is None:
                raise BadMessage("it is empty")
            found = dict(zip(self._own.names, row_of_json(body, self._own), strict=True))
        except BadMessage as problem:
            if not self._has_malformed:
                raise SourceError(
                    f"the message at offset {message.offset()} of partition {message.partition()} of {topic} is no row of "
                    f"{self._own.ddl}: {problem}; declare what its fields are, or a field 'malformed string', which takes its text"
                ) from None
            found[_MALFORMED] = "" if body is None else body.decode(errors="replace")
        found |= {
            "kafka_key": None if message.key() is None else message.key().decode(errors="replace"),
            "kafka_partition": message.partition(),
            "kafka_offset": message.offset(),
            "kafka_time": _time_of(message.timestamp()[1]),
        }
        return [found.get(name) for name in self._names]


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
            self._require_same(last)
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
        self._require_same(metadata)
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

    def _require_same(self, metadata: Any) -> None:
        """Raise SourceError if the topic is not the one that earlier batches read. Brokers before Kafka 2.8 give it no id."""
        if None not in (metadata[2], self._id) and metadata[2] != self._id:
            raise SourceError(
                f"{self._topic} is another topic than the one that was read: it was deleted, and made anew under the same name; "
                "begin with new records and new states, or name the topic that it was"
            )

    def _without_gap(self, start: int, first: int, newest: int, partition: str, collector: TridentCollector) -> int:
        """Return the offset to read next after `start`: a larger one if messages are gone and `on_gap` is "skip"."""
        if start > newest:
            raise SourceError(
                f"partition {partition} of {self._topic} ends at offset {newest}, and was read up to {start}: messages were lost, "
                "or it is another topic of this name; begin with new records and new states, or name the topic that it was"
            )
        if start >= first:
            return start
        gap = SourceError(
            f"partition {partition} of {self._topic} has lost {first - start} offsets that were not read, {start} to {first - 1}: "
            "its retention has removed them"
        )
        if self._spout.on_gap == "raise":
            raise SourceError(
                f"{gap.args[0]}; nothing was skipped: put them back, or go on without them with on_gap='skip', and "
                "keep messages for longer (retention.ms)"
            )
        collector.report_error(gap)
        return first
