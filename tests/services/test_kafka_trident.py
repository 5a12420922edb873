"""A topic of Kafka as a Trident spout: each message counts once despite failures and kills; lost messages are reported."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.dying import in_a_child, killed_at_step
from tests.services.kafka import admin, body, new_topic, options, read, send, send_in_transactions, servers, settings
from windowing import seconds
from windowing.errors import BoltError, ConfigError, FailedException, SourceError
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.queues import KafkaTridentSpoutOpaque, KafkaTridentSpoutTransactional
from windowing.queues import kafka_spouts as made
from windowing.stores import MemoryStore, SqliteStore, map_state
from windowing.stores.sqlite import SqliteRecordStore
from windowing.trident import Count, TridentTopology
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import MemoryRecordStore

FIELDS = "k string, n long"
KINDS = {"opaque": KafkaTridentSpoutOpaque, "transactional": KafkaTridentSpoutTransactional}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def spout(kind: str, topic: str, fields: str = FIELDS, **given: Any) -> Any:
    return KINDS[kind](servers(), topic, fields, **{"max_rows": 3, "bounded": True, "options": options(), **given})


def counting(
    given: Any, kind: str, store: Any, look: Callable[[Any], Any] = lambda row: True, tasks: int = 1
) -> TridentTopology:
    """Count messages by key in a state of the given kind; the sink gets all of them."""
    topology = TridentTopology("counting").configure(max_spout_pending=3)
    words = topology.new_stream("words", given).parallelism_hint(tasks).filter(look)
    words.sink("rows")
    state = map_state(store, "counts", StateType(kind))
    words.group_by("k").persistent_aggregate(state, None, Count(), "n long").parallelism_hint(2)
    return topology


def cluster(given: Any, kind: str, store: Any, records: Any, **more: Any) -> TridentCluster:
    return TridentCluster(counting(given, kind, store, **more), clock=VirtualClock(), records=records)


def counts_of(running: TridentCluster) -> dict[Any, int]:
    return {key[0]: n for key, n in running.values("state1").items()}


# -- reading -----------------------------------------------------------------------------------------------------------------


def test_each_message_counts_once_also_of_a_partition_added_between_runs(kind: str) -> None:
    topic = new_topic(partitions=3)  # the third stays empty
    send(topic, 0, *(body("a", n) for n in range(8)))
    send(topic, 1, *(body("b", n) for n in range(2)))
    store, records = MemoryStore(), MemoryRecordStore()
    with cluster(spout(kind, topic), kind, store, records, tasks=2) as running:
        assert len(running.run()["rows"]) == 10
        assert counts_of(running) == {"a": 8, "b": 2}
    client = admin()
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    send(topic, 3, *(body("c", n) for n in range(4)))
    send(topic, 1, body("b", 2))
    with cluster(spout(kind, topic, starting="latest"), kind, store, records, tasks=2) as running:
        found = running.run()
        assert sorted(found["rows"]) == [("b", 2), *(("c", n) for n in range(4))], "in batches of 3"
        assert counts_of(running) == {"a": 8, "b": 3, "c": 4}


def test_starting_latest_begins_with_new_messages(kind: str) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, body("old", 1))
    given = spout(kind, topic, starting="latest", bounded=False)
    with cluster(given, kind, MemoryStore(), MemoryRecordStore()) as running:
        running.run_for(seconds(5))
        send(topic, 0, body("new", 2))
        running.run_for(seconds(5))
        assert counts_of(running) == {"new": 1}
        begun = running.result.batches
        running.run_for(seconds(20))
        assert running.result.batches == begun, "without new messages there is no batch"


def test_messages_of_open_and_aborted_transactions_are_not_read(kind: str) -> None:
    topic = new_topic(partitions=1)
    producer = send_in_transactions(topic)
    store, records = MemoryStore(), MemoryRecordStore()
    with cluster(spout(kind, topic, max_rows=2), kind, store, records) as running:
        running.run()
        assert counts_of(running) == {"done": 3, "between": 2}
    producer.commit_transaction(20)
    with cluster(spout(kind, topic, max_rows=2), kind, store, records) as running:
        running.run()
        assert counts_of(running) == {"done": 3, "between": 2, "open": 3}


def test_a_row_has_the_metadata_of_its_message_and_the_text_of_a_malformed_one(kind: str) -> None:
    topic = new_topic(partitions=1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = Producer(settings())
    producer.produce(topic, body("a", 1), key=b"key", partition=0, timestamp=1_700_000_000_123)
    producer.produce(topic, b"no json", partition=0)
    producer.produce(topic, None, key=b"gone", partition=0)
    producer.produce(topic, body("b", 2), key=b"\xff", partition=0, timestamp=1_700_000_000_123_456)
    assert producer.flush(20) == 0
    fields = (
        "k string, kafka_key string, kafka_partition int, kafka_offset bigint, kafka_time timestamp, malformed string"
    )
    found = run_trident(counting(spout(kind, topic, fields), kind, MemoryStore()), clock=VirtualClock())["rows"]
    assert [(*row[:4], row[5]) for row in found] == [
        ("a", "key", 0, 0, None),
        (None, None, 0, 1, "no json"),
        (None, "gone", 0, 2, ""),
        ("b", "\ufffd", 0, 3, None),
    ]
    assert found[3][4] is None, "in the year 55840, by a producer that counts microseconds"
    assert found[0][4].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    with pytest.raises(SourceError) as problem:
        run_trident(counting(spout(kind, topic), kind, MemoryStore()), clock=VirtualClock())
    assert "the message at offset 1 of partition 0 of topic" in str(problem.value)
    assert "declare what its fields are, or a field 'malformed string'" in str(problem.value)


# -- failures and kills ------------------------------------------------------------------------------------------------------


def test_a_failed_batch_is_replayed_with_the_same_messages_if_transactional_and_with_new_ones_if_opaque(
    kind: str,
) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(2)))
    failed: list[tuple[str, int]] = []

    def look(row: Any) -> bool:
        if len(failed) < 2:
            failed.append((row.k, row.n))
            send(topic, 0, body("b", len(failed)))
            raise FailedException("not yet")
        return True

    written: dict[int, list[Any]] = {}
    topology = counting(spout(kind, topic, bounded=False), kind, MemoryStore(), look)
    with TridentCluster(topology, clock=VirtualClock(), sinks={"rows": written.__setitem__}) as running:
        running.run_for(seconds(60))
        assert counts_of(running) == {"a": 2, "b": 2}
    first = [("a", 0), ("a", 1)] if kind == "transactional" else [("a", 0), ("a", 1), ("b", 1)]
    assert written[1] == first


def killed_run(kind: str, topic: str, folder: Path, steps: int | None) -> None:
    """Count the messages of a topic, and kill the process at a step: at a read, within a batch, or at the write of a sink."""
    step = killed_at_step(steps)
    emit = made._Emitter._emit

    def dying(*arguments: Any) -> None:
        step()
        emit(*arguments)
        step()

    made._Emitter._emit = dying  # type: ignore[method-assign]

    def look(row: Any) -> bool:
        step()
        return True

    def write(txid: int, rows: list[Any]) -> None:
        step()
        (folder / f"{txid}.json").write_text(json.dumps(rows))
        step()

    topology = counting(spout(kind, topic, max_rows=2), kind, SqliteStore(folder / "states.db"), look)
    given = {"state_path": folder / "records.db", "sinks": {"rows": write}}
    with TridentCluster(topology, clock=VirtualClock(), **given) as running:
        running.run()
        (folder / "counts.json").write_text(json.dumps(counts_of(running)))


@pytest.mark.crash
def test_each_message_counts_once_if_the_process_is_killed_at_any_step(kind: str, tmp_path: Path) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, partition, *(body(f"k{n % 2}", 10 * partition + n) for n in range(5)))
    deaths = 0
    while True:
        folder = tmp_path / str(deaths)
        folder.mkdir()
        code = in_a_child(partial(killed_run, kind, topic, folder, deaths))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert in_a_child(partial(killed_run, kind, topic, folder, None)) == 0
        assert json.loads((folder / "counts.json").read_text()) == {"k0": 6, "k1": 4}
        rows = [tuple(row) for file in folder.glob("[0-9]*.json") for row in json.loads(file.read_text())]
        assert Counter(rows) == {(f"k{n % 2}", 10 * partition + n): 1 for partition in (0, 1) for n in range(5)}
        deaths += 1
    assert deaths > 20


@pytest.mark.parametrize("fails", [False, True])
def test_each_message_counts_once_on_spark(spark: Any, kind: str, fails: bool, tmp_path: Path) -> None:
    from windowing.spark import MemorySink, submit_trident

    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, partition, *(body(f"k{n % 2}", 10 * partition + n) for n in range(5)))
    rows: list[tuple[Any, ...]] = []

    class Sink(MemorySink):
        def write(self, found: Any, batch_id: int) -> None:
            if fails and batch_id == 1 and not (tmp_path / "died").exists():
                (tmp_path / "died").touch()
                raise KeyError("the disk is full")
            rows.extend(map(tuple, found.collect()))

    def run() -> None:
        records = SqliteRecordStore(tmp_path / "records.db")
        topology = counting(spout(kind, topic, bounded=False), kind, SqliteStore(tmp_path / "states.db"))
        options = {"sinks": {"rows": Sink()}, "records": records, "checkpoint": str(tmp_path / "checkpoint")}
        try:
            assert submit_trident(topology, spark, **options).await_end(200)
        finally:
            records.close()

    if fails:
        with pytest.raises(Exception, match="the disk is full"):
            run()
    run()
    assert Counter(rows) == {(f"k{n % 2}", 10 * partition + n): 1 for partition in (0, 1) for n in range(5)}


# -- lost messages and deleted topics ------------------------------------------------------------------------------------------


def delete_before(topic: str, offset: int) -> None:
    place = TopicPartition(topic, 0, offset)
    client = admin()
    client.delete_records([place])[TopicPartition(topic, 0)].result(20)


def test_messages_removed_by_retention_are_an_error_or_skipped_and_counted(kind: str) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(2)))
    store, records = MemoryStore(), MemoryRecordStore()
    with cluster(spout(kind, topic), kind, store, records) as running:
        running.run()
    send(topic, 0, *(body("b", n) for n in range(10)))
    delete_before(topic, 7)
    with pytest.raises(SourceError) as problem, cluster(spout(kind, topic), kind, store, records) as running:
        running.run()
    assert "has lost 5 offsets that were not read, 2 to 6: its retention" in str(problem.value)
    assert "on_gap='skip'" in str(problem.value)
    with cluster(spout(kind, topic, on_gap="skip"), kind, store, records) as running:
        found = running.run()
        assert counts_of(running) == {"a": 2, "b": 5}
        assert ["5 offsets" in str(error) for error in found.errors] == [True]


def test_a_transactional_batch_whose_messages_are_gone_cannot_be_replayed_and_is_an_error() -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(9)))
    store, records = MemoryStore(), MemoryRecordStore()

    def broken(row: Any) -> bool:
        if row.n == 1:
            raise KeyError("a bug")
        return True

    given = partial(spout, "transactional", topic, on_gap="skip")
    with pytest.raises(BoltError), cluster(given(), "transactional", store, records, look=broken) as running:
        running.run()
    delete_before(topic, 2)
    with pytest.raises(SourceError) as problem, cluster(given(), "transactional", store, records) as running:
        running.run()
    assert "was the offsets 0 to 2 of partition 0" in str(problem.value)
    assert "cannot be made again" in str(problem.value)
    assert "KafkaTridentSpoutOpaque" in str(problem.value)


def test_a_transactional_batch_in_which_messages_were_compacted_cannot_be_replayed_and_is_an_error() -> None:
    rules = {"cleanup.policy": "compact", "segment.ms": "100", "max.compaction.lag.ms": "100"}
    topic = new_topic(partitions=1, **rules)
    client = Producer(settings())

    def send_of_one_key(n: int) -> None:
        client.produce(topic, key=b"the same", value=body("a", n))
        assert client.flush(20) == 0

    for n in range(3):
        send_of_one_key(n)
    given = spout("transactional", topic)
    emitter, first = given.get_emitter(), Collected()
    metadata = emitter.emit_partition_batch_new(TransactionAttempt(1, 0), first, "0", None)
    emitter.emit_partition_batch(TransactionAttempt(1, 1), Collected(), "0", metadata)
    assert first.rows == [["a", 0], ["a", 1], ["a", 2]]
    until, n = time.monotonic() + 60, 3
    while len(read(topic)) == n:
        assert time.monotonic() < until, "nothing was compacted"
        send_of_one_key(n)
        n += 1
        time.sleep(0.3)
    with pytest.raises(SourceError) as problem:
        emitter.emit_partition_batch(TransactionAttempt(1, 2), Collected(), "0", metadata)
    emitter.close()
    assert "batch 1:2 was 3 messages at the offsets 0 to 2 of partition 0 of topic" in str(problem.value)
    assert "the same batch cannot be made again" in str(problem.value)
    assert "KafkaTridentSpoutOpaque" in str(problem.value)


class Collected(TridentCollector):
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def emit(self, values: Any) -> None:
        self.rows.append(values)

    def report_error(self, problem: BaseException) -> None:
        raise problem


def test_a_deleted_topic_and_a_recreated_one_are_errors(kind: str) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(5)))
    store, records = MemoryStore(), MemoryRecordStore()
    given = spout(kind, topic)
    with cluster(given, kind, store, records) as running:
        running.run()
    client = admin()
    client.delete_topics([topic])[topic].result(20)
    with pytest.raises(ConfigError) as gone, cluster(given, kind, store, records) as running:
        running.run()
    assert f"topic '{topic}' at" in str(gone.value)
    assert "is not there" in str(gone.value)
    topic_made(topic)
    for count in (1, 9):  # shorter, and longer, than the part that was read
        send(topic, 0, *(body("a", n) for n in range(count)))
        with pytest.raises(SourceError) as other, cluster(given, kind, store, records) as running:
            running.run()
        assert f"topic '{topic}' at" in str(other.value)
        assert "is another topic than the one that was read: it was deleted, and made anew" in str(other.value)
    emitter = given.get_emitter()
    with pytest.raises(SourceError, match="is another topic than the one that was read"):
        emitter.emit_partition_batch(TransactionAttempt(1, 1), Collected(), "0", [0, 5, "the id of the other", 5])
    emitter.close()


def test_records_without_a_topic_identity_can_be_continued_and_lost_messages_are_detected(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(5)))
    store, records = MemoryStore(), MemoryRecordStore()
    with monkeypatch.context() as before:
        before.setattr(made.SourceTopic, "identity", lambda self: None)
        with cluster(spout(kind, topic), kind, store, records) as running:
            running.run()
    send(topic, 0, *(body("a", n) for n in range(2)))
    with cluster(spout(kind, topic), kind, store, records) as running:
        running.run()
        assert counts_of(running) == {"a": 7}
    client = admin()
    with monkeypatch.context() as before:
        before.setattr(made.SourceTopic, "identity", lambda self: None)
        client.delete_topics([topic])[topic].result(20)
        topic_made(topic)
        send(topic, 0, body("a", 1))
        with pytest.raises(SourceError) as other, cluster(spout(kind, topic), kind, store, records) as running:
            running.run()
    assert "ends at offset 1, and was read up to 7: messages were lost, or it is another topic" in str(other.value)


def topic_made(topic: str) -> None:
    from confluent_kafka.admin import NewTopic

    client = admin()
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)


# -- bad input -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "error", "sentence"),
    [
        (
            lambda: KafkaTridentSpoutOpaque("127.0.0.1:1", "t", FIELDS, patience_s=1),
            SourceError,
            "did not answer for 1",
        ),
        (lambda: spout("opaque", "not-there"), ConfigError, "topic 'not-there'"),
        (
            lambda: spout("opaque", "t", options={**options(), "sasl.password": "s3cret-word"}),
            ConfigError,
            "refuses the user",
        ),
        (lambda: spout("opaque", "t", "k strng"), ConfigError, "unknown type 'strng'"),
        (lambda: spout("opaque", "t", "k string, kafka_offset string"), ConfigError, "is a bigint, got string"),
        (lambda: spout("opaque", "t", "kafka_offset bigint"), ConfigError, "name one of the message"),
        (lambda: spout("opaque", "t", starting="now"), ConfigError, "'earliest' or 'latest'"),
        (lambda: spout("opaque", "t", on_gap="fail"), ConfigError, "'raise' or 'skip', got 'fail'"),
        (lambda: spout("opaque", "t", max_rows=0), ConfigError, "at least 1, got 0"),
    ],
)
def test_invalid_arguments_of_a_spout_are_refused_at_construction(
    do: Callable[[], Any], error: Any, sentence: str
) -> None:
    with pytest.raises(error) as found:
        do()
    assert sentence in str(found.value)
    assert "s3cret" not in str(found.value)
