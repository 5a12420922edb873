"""The Trident spouts of a Kafka topic over a topic in memory; tests/services/test_kafka_trident.py has those with a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from windowing.errors import SourceError
from windowing.queues import KafkaTridentSpoutOpaque, kafka_spouts
from windowing.trident import TransactionAttempt
from windowing.trident.coordinator import Readiness


class Topic:
    """Messages with the offsets [begin, end) in partition 0."""

    begin, end = 0, 100

    def require(self) -> None:
        pass

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {0: (self.begin, self.end)}

    def identity(self) -> str:
        return "one topic"

    def read(self, partition: int, start: int, end: int) -> list[Any]:
        return [
            SimpleNamespace(
                value=lambda n=n: b'{"n": %d}' % n,
                key=lambda: None,
                partition=lambda: 0,
                offset=lambda n=n: n,
                timestamp=lambda: (0, 0),
            )
            for n in range(start, end)
        ]


class Collected(list[Any]):
    def emit(self, row: Any) -> None:
        self.append(row[0])


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(kafka_spouts, "SourceTopic", lambda *_: made)
    return made


def test_each_attempt_at_the_first_batch_begins_where_the_topic_ended_when_it_was_first_read(topic: Topic) -> None:
    emitter = KafkaTridentSpoutOpaque("h:1", "t", "n long", starting="latest").get_emitter()

    def emit(txid: int, attempt: int, last: Any) -> Any:
        return emitter.emit_partition_batch_new(TransactionAttempt(txid, attempt), Collected(), "0", last)

    first = emit(1, 0, None)
    topic.end = 150
    assert [first[:2], emit(2, 0, first)[:2]] == [[100, 100], [100, 150]]
    topic.end = 160
    assert emit(1, 1, None)[:2] == [100, 160], "what the failed batch 2 has emitted comes again"
    topic.end = 90
    with pytest.raises(SourceError, match="ends at offset 90, and was read up to 100"):
        emit(1, 2, None)


def test_a_bounded_run_ends_where_the_topic_ended_when_it_began_whenever_a_batch_is_made(topic: Topic) -> None:
    spout = KafkaTridentSpoutOpaque("h:1", "t", "n long", bounded=True, max_rows=80)
    coordinator, emitter, rows = spout.get_coordinator(), spout.get_emitter(), Collected()
    last: Any = None
    for txid in (1, 2):
        assert coordinator.is_ready(txid) is Readiness.READY
        topic.end = 130
        last = emitter.emit_partition_batch_new(TransactionAttempt(txid, 0), rows, "0", last)
    assert coordinator.is_ready(3) is Readiness.ENDED
    assert rows == list(range(100))
    topic.begin = 110
    again = emitter.emit_partition_batch_new(TransactionAttempt(1, 0), rows, "0", None)
    assert again[:2] == [110, 110], "nothing that the run has not"
