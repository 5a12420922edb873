"""The spouts of a Kafka topic over a topic in memory; tests/services has the same with a broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from windowing import Bolt, InputSpout, Topology, TopologyBuilder, bolt, seconds
from windowing.errors import ConfigError, FailedException, SourceError
from windowing.local import LocalCluster, TridentCluster, VirtualClock, run_topology
from windowing.queues import KafkaSpout, KafkaTridentSpoutOpaque, kafka_spouts
from windowing.queues.kafka_topics import SourceTopic
from windowing.queues.spout import SpoutOffsets
from windowing.trident import TransactionAttempt, TridentTopology
from windowing.trident.coordinator import Readiness


def message(partition: int, offset: int) -> Any:
    return SimpleNamespace(
        value=lambda: b'{"n": %d}' % offset,
        key=lambda: None,
        partition=lambda: partition,
        offset=lambda: offset,
        timestamp=lambda: (0, 0),
    )


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
        return [message(0, n) for n in range(start, end)]


class Collected(list[Any]):
    def emit(self, row: Any) -> None:
        self.append(row[0])


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(kafka_spouts, "SourceTopic", lambda *_: made)
    return made


class Slow:
    """A reader of librdkafka of a link that is slow: a fetch needs `polls` calls of `poll`, and begins again with `assign`."""

    def __init__(self, polls: int) -> None:
        self.needs = self.left = polls
        self.at = 0

    def assign(self, at: list[Any]) -> None:
        self.at, self.left = at[0].offset, self.needs

    def poll(self, _timeout_s: float) -> Any:
        self.left -= 1
        if self.left > 0:
            return None
        self.left, self.at = self.needs, self.at + 1
        return SimpleNamespace(error=lambda: None, offset=lambda at=self.at - 1: at)

    def unassign(self) -> None:
        pass


@pytest.mark.parametrize("call_s", [10.0, 0.0])  # of one attempt: within it, and over several
def test_a_message_that_takes_longer_than_a_poll_is_read_by_the_fetch_that_is_under_way(
    call_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(3)
    monkeypatch.setattr(SourceTopic, "_opened", slow)
    topic = SourceTopic("broker:9092", "words", {}, 30.0)
    monkeypatch.setattr(topic, "_call_s", call_s)
    monkeypatch.setattr(topic, "_errors", [KafkaError(KafkaError._TRANSPORT)])  # of another broker
    monkeypatch.setattr(topic, "_connect", lambda: None)
    assert [each.offset() for each in topic.read(0, 7, 10)] == [7, 8, 9]
    assert bool(caplog.records) is (call_s == 0.0)  # an outage is logged


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


# -- KafkaSpout ----------------------------------------------------------------------------------------------------------------


class Group:
    """A topic with the positions of a group. messages: the offsets of those that exist, by partition; others were never seen."""

    def __init__(self, **ends: int) -> None:
        self.id: str | None = "one topic"
        self.begins = {int(name[1:]): 0 for name in ends}
        self.ends = {int(name[1:]): end for name, end in ends.items()}
        self.messages = {each: set(range(end)) for each, end in self.ends.items()}
        self.committed: dict[int, int] = {}
        self.commits: list[dict[int, int]] = []
        self.per_page = 3

    def send(self, partition: int, count: int) -> None:
        begin = self.ends.setdefault(partition, self.begins.setdefault(partition, 0))
        self.ends[partition] = begin + count
        self.messages.setdefault(partition, set()).update(range(begin, begin + count))

    def remove(self, partition: int, before: int) -> None:
        self.begins[partition] = before
        self.messages[partition] = {each for each in self.messages[partition] if each >= before}

    def require(self) -> None:
        pass

    def close(self) -> None:
        pass

    def identity(self) -> str | None:
        return self.id

    def bounds(self) -> dict[int, tuple[int, int]]:
        return {each: (self.begins[each], end) for each, end in self.ends.items()}

    def page(self, partition: int, start: int, end: int) -> tuple[int, list[Any]]:
        assert start < end
        if not self.begins[partition] <= start <= self.ends[partition]:
            raise SourceError("out of range") from KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET))
        there = [each for each in sorted(self.messages[partition]) if start <= each < end][: self.per_page]
        after = there[-1] + 1 if len(there) == self.per_page else end
        return after, [message(partition, each) for each in there]

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        return {each: self.committed[each] for each in partitions if each in self.committed}

    def commit(self, positions: Mapping[int, int]) -> None:
        self.commits.append(dict(positions))
        self.committed |= positions

    def __str__(self) -> str:
        return "topic 't'"


FIELDS = "n long, kafka_partition int, kafka_offset bigint"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group(p0=7, p1=4)
    monkeypatch.setattr(kafka_spouts, "GroupTopic", lambda *_: made)
    return made


def spout(**given: Any) -> KafkaSpout:
    return KafkaSpout("h:1", "t", FIELDS, **{"group": "g", **given})


def topology_of(code: Any, **settings: Any) -> Topology:
    builder = TopologyBuilder("read").configure({"topology.enable.message.timeouts": False, **settings})
    builder.set_spout("words", InputSpout(FIELDS))
    builder.set_bolt("seen", code).global_grouping("words")
    return builder.build()


@bolt(output="partition int, at long")
def seen(row: Any) -> Any:
    return row.kafka_partition, row.kafka_offset


def read(source: KafkaSpout, partition: str, start: int, end: int) -> list[int]:
    return [row["kafka_offset"] for batch in source.read(partition, start, end) for row in batch.to_pylist()]


def ran(source: KafkaSpout, code: Any = seen, **settings: Any) -> list[Any]:
    result = run_topology(topology_of(code, **settings), sources={"words": source}, clock=VirtualClock())
    return sorted(result["seen"])


@given(
    partitions=st.dictionaries(
        st.integers(0, 3), st.tuples(st.integers(0, 5), st.sets(st.integers(0, 30))), min_size=1, max_size=3
    ),
    steps=st.lists(st.tuples(st.sampled_from(["batch", "commit", "restart", "send"]), st.integers(1, 9)), max_size=40),
    per_page=st.integers(1, 4),
)
def test_a_batch_has_the_messages_between_its_positions_and_a_restart_goes_on_at_the_committed_one(
    partitions: dict[int, tuple[int, set[int]]], steps: list[tuple[str, int]], per_page: int
) -> None:
    """The model: by partition, the offsets of messages that exist, with gaps as of transactions and compaction."""
    topic = Group()
    topic.per_page = per_page
    for each, (begin, there) in partitions.items():
        topic.begins[each], topic.ends[each] = begin, max(there | {begin})
        topic.messages[each] = {at for at in there if begin <= at < topic.ends[each]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_spouts, "GroupTopic", lambda *_: topic)
        source, runs = spout(), 0
        offsets = SpoutOffsets(source, "words")
        at = done = offsets.initial()
        assert at == {str(each): begin for each, begin in topic.begins.items()}
        for kind, n in steps:
            if kind == "send":
                topic.send(n % 4, n)
            elif kind == "commit":
                source.commit(at)
                done = at
            elif kind == "restart":
                source, runs = spout(starting="latest"), runs + 1
                offsets = SpoutOffsets(source, "words")
                at = offsets.initial()
                assert {name: at[name] for name in done} == done, "where it was committed"
                assert all(at[name] == 0 for name in at.keys() - done.keys()), "new partitions from their first message"
                done = at
            else:
                start, end = offsets.batch(at, offsets.newest(at), n)
                for name, last in end.items():
                    found = read(source, name, start[name], last)
                    assert found == [o for o in sorted(topic.messages[int(name)]) if start[name] <= o < last]
                at = end
        start, end = offsets.batch(at, offsets.newest(at), None)
        rest = {name: read(source, name, start[name], last) for name, last in end.items()}
        for name, found in rest.items():
            assert found == [o for o in sorted(topic.messages[int(name)]) if o >= start[name]], "to the end"


@given(order=st.permutations(range(11)), max_rows=st.integers(1, 6), acked=st.integers(0, 11))
def test_whatever_the_order_of_acks_no_position_passes_a_message_that_is_not_acked(
    order: list[int], max_rows: int, acked: int
) -> None:
    """All messages are in flight; some are acked, in any order, before the process ends."""
    topic = Group(p0=7, p1=4)

    @bolt(output="n long")
    class Holding(Bolt):
        def prepare(self, context: Any, collector: Any) -> None:
            self.collector, self.held = collector, list[Any]()

        def execute(self, row: Any) -> None:
            self.held.append(row)
            if len(self.held) < 11:
                return
            for at in order[:acked]:
                self.collector.ack(self.held[at])
                done.add((self.held[at].kafka_partition, self.held[at].kafka_offset))

    done: set[tuple[int, int]] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_spouts, "GroupTopic", lambda *_: topic)
        with LocalCluster(
            topology_of(Holding), sources={"words": spout(max_rows=max_rows)}, clock=VirtualClock()
        ) as cluster:
            cluster.run_for(seconds(1))
            for before, after in zip(topic.commits, topic.commits[1:], strict=False):
                assert all(after[each] >= at for each, at in before.items()), "never backward"
            behind = {(p, o) for p, at in topic.committed.items() for o in range(at)}
            assert behind <= done
            if acked == 11:
                assert topic.committed == {0: 7, 1: 4}
        rest = {(p, o) for p, end in topic.ends.items() for o in range(end)} - behind
        assert set(ran(spout())) == rest, "comes again, and nothing else"
    assert rest | done == {(p, o) for p, end in topic.ends.items() for o in range(end)}


def test_a_group_without_a_position_begins_where_starting_says_and_keeps_it_before_it_reads(group: Group) -> None:
    assert spout(starting="latest").initial() == {"0": 7, "1": 4}
    assert group.committed == {0: 7, 1: 4}, "kept, should the process be killed before its first batch"
    group.send(0, 2)
    group.send(2, 3)
    assert ran(spout(starting="latest")) == [(0, 7), (0, 8), (2, 0), (2, 1), (2, 2)]
    assert ran(spout(starting="earliest")) == []
    group.committed.clear()
    assert len(ran(spout(starting="earliest"))) == 7 + 4 + 2 + 3


def test_a_partition_that_is_added_during_a_run_is_read_from_its_first_message(group: Group) -> None:
    @bolt(output="partition int, at long")
    def adding(row: Any) -> Any:
        if row.kafka_partition == 0 and row.kafka_offset == 8:
            group.send(2, 2)
        return row.kafka_partition, row.kafka_offset

    source = spout(starting="latest")
    source.initial()
    group.send(0, 2)
    assert ran(source, adding) == [(0, 7), (0, 8), (2, 0), (2, 1)]
    assert group.committed == {0: 9, 1: 4, 2: 2}


@bolt(output="partition int, at long")
def picky(row: Any) -> Any:
    if row.n == 3:
        raise FailedException("never")
    return row.kafka_partition, row.kafka_offset


def test_a_message_that_fails_for_good_ends_the_run_and_comes_again_in_the_next_one(group: Group) -> None:
    for _ in range(2):
        with pytest.raises(SourceError) as found:
            ran(spout(max_rows=4), picky, max_attempts=2)
        assert str(found.value) == (
            "[SOURCE] 'seen' has failed a message of topic 't' as often as windowing.max.attempts allows, and no bolt takes the "
            "dead letter: one of the offsets 2 to 3 of partition 0; 2 to 3 of partition 1; group 'g' stays before them, so the "
            "next run reads them again: repair 'seen', or let a bolt read its dead letters (shuffle_grouping('seen', "
            "'dead_letters')), or set windowing.max.attempts to None, with which a message is tried for ever"
        )
        assert group.committed == {0: 2, 1: 2}


def test_a_bolt_that_reads_the_dead_letters_lets_the_group_go_on(group: Group) -> None:
    @bolt(output="error string")
    def letters(row: Any) -> Any:
        return row.component

    builder = TopologyBuilder("letters").configure({"windowing.max.attempts": 2})
    builder.set_spout("words", InputSpout(FIELDS))
    builder.set_bolt("seen", picky).global_grouping("words")
    builder.set_bolt("letters", letters).shuffle_grouping("seen", "dead_letters")
    result = run_topology(builder.build(), sources={"words": spout(max_rows=4)}, clock=VirtualClock())
    assert result["letters"] == [("seen",), ("seen",)]
    assert group.committed == {0: 7, 1: 4}


def test_without_ackers_the_group_goes_on_when_a_batch_is_emitted(group: Group) -> None:
    assert len(ran(spout(max_rows=4), picky, **{"topology.acker.executors": 0})) == 7 + 4 - 2
    assert group.committed == {0: 7, 1: 4}


def test_removed_messages_are_an_error_or_are_skipped_with_a_warning(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    source = spout()
    source.initial()
    group.remove(0, before=5)
    with pytest.raises(
        SourceError, match=r"has lost 5 offsets that were not read, 0 to 4: its retention .*on_gap='skip'"
    ):
        ran(source)
    assert group.committed == {0: 0, 1: 0}
    assert caplog.messages == []
    assert ran(spout(on_gap="skip")) == [(0, 5), (0, 6), (1, 0), (1, 1), (1, 2), (1, 3)]
    (warning,) = caplog.messages
    assert "partition 0 of topic 't' has lost 5 offsets that were not read, 0 to 4" in warning
    assert read(spout(on_gap="skip"), "0", 1, 4) == [], "all of a batch"


def test_a_topic_made_anew_ends_the_run_and_one_that_is_shorter_too(group: Group) -> None:
    source = spout()
    assert source.identity == "one topic"
    group.id = "another"
    with pytest.raises(SourceError, match="topic 't' is another topic than the one that was read: it was deleted"):
        ran(source)
    group.id = None
    source, group.ends = spout(), {0: 2, 1: 4}
    group.committed = {0: 5, 1: 0}
    with pytest.raises(
        SourceError, match="partition '0' of spout 'words' ends at offset 2, and the query has read up to 5"
    ):
        ran(source)


def test_two_streams_cannot_share_one_position(group: Group) -> None:
    builder = TopologyBuilder("twice")
    for name in ("a", "b"):
        builder.set_spout(name, InputSpout(FIELDS))
        builder.set_bolt(f"of_{name}", seen).shuffle_grouping(name)
    said = (
        "spout 'b' and spout 'a' have the same source, a KafkaSpout that has one position for both, so each would lose"
    )
    with pytest.raises(ConfigError, match=said):
        LocalCluster(builder.build(), sources={"a": spout(), "b": spout()})
    trident = TridentTopology("twice")
    trident.merge(*(trident.new_stream(name, InputSpout(FIELDS)) for name in ("a", "b"))).sink("rows")
    with pytest.raises(ConfigError, match="that has one position for both"):
        TridentCluster(trident, sources={"a": spout(), "b": spout()})
    LocalCluster(builder.build(), sources={"a": spout(), "b": spout(group="other")})


def test_a_copy_that_is_sent_to_an_executor_has_no_connection(group: Group) -> None:
    copy = pickle.loads(pickle.dumps(spout(max_rows=5)))
    assert copy._opened is None
    assert (copy.max_rows, copy.identity, copy.fields, repr(copy)) == (
        5,
        "one topic",
        "n bigint, kafka_partition int, kafka_offset bigint",
        "KafkaSpout('h:1', 't', group='g')",
    )
    assert read(copy, "1", 1, 3) == [1, 2]
