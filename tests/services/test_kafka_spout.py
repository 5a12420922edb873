"""KafkaSpout on a broker: no message is lost by kills, and a stateful window counts each once; one process, Trident and Spark."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.dying import ended, in_a_child, killed_at_step
from tests.services.kafka import admin, body, new_topic, options, send, send_in_transactions, servers, settings
from windowing import InputSpout, Topology, TopologyBuilder, bolt, count, seconds, tumbling
from windowing.errors import CheckpointError, ConfigError, SourceError
from windowing.local import LocalCluster, TridentCluster, VirtualClock, run_topology
from windowing.queues import KafkaSpout
from windowing.queues.kafka_topics import GroupTopic
from windowing.stores import MemoryStore, SqliteStore, map_state
from windowing.stores.states import SqliteStateProvider
from windowing.trident import Count, TridentTopology
from windowing.trident.transactional_state import MemoryRecordStore

FIELDS = "k string, n long, kafka_partition int, kafka_offset bigint"


def spout(topic: str, fields: str = FIELDS, **given: Any) -> KafkaSpout:
    return KafkaSpout(servers(), topic, fields, **{"group": f"of-{topic}", "options": options(), **given})


def positions(topic: str) -> dict[int, int]:
    """Return the positions of the group, as other tools see them."""
    client, group = admin(), f"of-{topic}"
    found = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    return {each.partition: each.offset for each in found.topic_partitions}


def moved(topic: str, to: dict[int, int]) -> None:
    """Move the positions of the group, as `kafka-consumer-groups --reset-offsets` does."""
    client, group = admin(), f"of-{topic}"
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, *each) for each in to.items()])
    client.alter_consumer_group_offsets([wanted])[group].result(20)


@bolt(output="k string, n long")
def passed(row: Any) -> Any:
    return row.k, row.n


def topology_of(code: Any, fields: str = FIELDS, tasks: int = 1, **settings: Any) -> Topology:
    builder = TopologyBuilder("read").configure({"topology.enable.message.timeouts": False, **settings})
    builder.set_spout("words", InputSpout(fields), tasks)
    builder.set_bolt("rows", code).global_grouping("words")
    return builder.build()


def ran(source: KafkaSpout, code: Any = passed, fields: str = FIELDS, **given: Any) -> list[Any]:
    found = run_topology(topology_of(code, fields), sources={"words": source}, clock=VirtualClock(), **given)
    return sorted(found["rows"], key=str)


# -- one process -------------------------------------------------------------------------------------------------------------


def test_a_run_begins_at_the_position_of_the_group_and_moves_it_also_in_partitions_that_are_added() -> None:
    topic = new_topic(partitions=3)  # the third stays empty
    send(topic, 0, *(body("a", n) for n in range(25)))
    send(topic, 1, body("b", 0))
    assert len(ran(spout(topic, max_rows=7))) == 26
    assert positions(topic) == {0: 25, 1: 1, 2: 0}
    client = admin()
    client.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    send(topic, 3, body("c", 0), body("c", 1))
    send(topic, 1, body("b", 1))
    assert ran(spout(topic, starting="latest")) == [("b", 1), ("c", 0), ("c", 1)]
    assert positions(topic) == {0: 25, 1: 2, 2: 0, 3: 2}


def test_a_message_is_not_behind_the_position_before_its_window_has_let_it_go() -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, *(body("a", n) for n in range(10)))

    @tumbling(count(4), output="sum long")
    def fours(window: Any) -> int:
        return sum(row.n for row in window)

    assert ran(spout(topic, max_rows=3), fours, drain=False) == [(22,), (6,)]
    assert positions(topic) == {0: 6}, "batches (0, 3] and (3, 6]; the last two of (6, 9] and (9, 10] are in a window"
    assert ran(spout(topic, max_rows=3), fours) == [(30,)]
    assert positions(topic) == {0: 10}


def test_a_spout_that_was_made_before_a_fork_is_read_in_the_child() -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, body("a", 0))
    source = spout(topic)
    assert ended(lambda: print(ran(source)), seconds=30) == 0
    assert positions(topic) == {0: 1}


def test_starting_latest_and_messages_of_a_long_run() -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, body("old", 1))
    given = spout(topic, starting="latest")
    with LocalCluster(topology_of(passed), sources={"words": given}, clock=VirtualClock()) as cluster:
        assert cluster.run_for(seconds(1))["rows"] == []
        for n in range(3):
            send(topic, 0, body("new", n))
            assert cluster.run_for(seconds(1))["rows"] == [("new", each) for each in range(n + 1)]
            assert positions(topic) == {0: 2 + n}


def test_messages_of_open_and_aborted_transactions_are_not_read() -> None:
    topic = new_topic(partitions=1)
    producer = send_in_transactions(topic)
    found = ran(spout(topic, max_rows=2))
    assert Counter(key for key, _ in found) == {"done": 3, "between": 2}
    producer.commit_transaction(20)
    assert ran(spout(topic, max_rows=2)) == [("open", n) for n in range(3)]


def test_a_row_has_the_metadata_of_its_message_and_the_text_of_a_malformed_one() -> None:
    topic = new_topic(partitions=1)
    producer = Producer(settings())
    producer.produce(topic, body("a", 1), key=b"key", partition=0, timestamp=1_700_000_000_123)
    producer.produce(topic, b"no json", partition=0)
    producer.produce(topic, None, key=b"gone", partition=0)
    assert producer.flush(20) == 0
    with pytest.raises(SourceError, match=r"the message at offset 1 of partition 0 of topic .* is no row of k string"):
        ran(spout(topic))
    fields = "k string, kafka_key string, kafka_offset bigint, kafka_time timestamp, malformed string"

    @bolt(output="k string, key string, at long, time timestamp, text string")
    def all_of(row: Any) -> Any:
        return tuple(row.get_values())

    found = sorted(ran(spout(topic, fields), all_of, fields), key=lambda row: row[2])
    assert [(*row[:3], row[4]) for row in found] == [
        ("a", "key", 0, None),
        (None, None, 1, "no json"),
        (None, "gone", 2, ""),
    ]
    assert found[0][3].isoformat() == "2023-11-14T22:13:20.123000+00:00"

    @bolt(output="key string, value string")
    def texts(row: Any) -> Any:
        return tuple(row.get_values())

    fields = "kafka_key string, kafka_value string"
    found = ran(spout(topic, fields, group=f"texts-of-{topic}"), texts, fields)
    assert found == [("gone", None), ("key", body("a", 1).decode()), (None, "no json")]


# -- kills -------------------------------------------------------------------------------------------------------------------


def killed_run(topic: str, folder: Path, state: bool, steps: int | None) -> None:
    """Read a topic into a file, and kill the process at a step: at a page, at a row, before or after a commit of the group."""
    step = killed_at_step(steps)
    page, commit = GroupTopic.page, GroupTopic.commit

    def paged(*given: Any) -> Any:
        step()
        return page(*given)

    def committed(*given: Any) -> None:
        step()
        commit(*given)
        step()

    GroupTopic.page, GroupTopic.commit = paged, committed  # type: ignore[assignment, method-assign]

    @bolt(output="k string, n long")
    def noted(row: Any) -> Any:
        with (folder / "rows").open("a") as file:
            file.write(f"{row.kafka_partition} {row.kafka_offset}\n")
        step()
        return row.k, row.n

    @tumbling(count(2), message_id="kafka_offset", output="k string, n long")
    class Counting:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, window: Any) -> Any:
            step()
            for row in window:
                self.state.put(row.k, self.state.get(row.k, 0) + 1)
            return []

        def pre_commit(self, txid: int) -> None:
            step()

    given: dict[str, Any] = {"state_path": folder / "states.db"} if state else {}
    topology = topology_of(Counting if state else noted, tasks=2, state_checkpoint_interval=seconds(1))
    with LocalCluster(topology, sources={"words": spout(topic, max_rows=4)}, clock=VirtualClock(), **given) as cluster:
        cluster.run(drain=False)


def filled() -> str:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        send(topic, partition, *(body(f"k{n % 2}", n) for n in range(4)))
    return topic


def read_rows(folder: Path) -> list[tuple[int, ...]]:
    file = folder / "rows"
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []


def assert_no_message_lost(folder: Path, steps: int | None) -> int:
    """Kill a run at a step, and run again: all messages were read, and none again that was behind the position. Return the code."""
    topic, folder = filled(), folder / str(steps)
    folder.mkdir()
    code = in_a_child(partial(killed_run, topic, folder, False, steps))
    first, position = read_rows(folder), positions(topic)
    assert {(p, o) for p, at in position.items() for o in range(at)} <= set(first)
    assert in_a_child(partial(killed_run, topic, folder, False, None)) == 0
    again = read_rows(folder)[len(first) :]
    assert sorted(again) == [(p, o) for p in (0, 1) for o in range(position.get(p, 0), 4)]
    assert positions(topic) == {0: 4, 1: 4}
    return code


def assert_each_counts_once(folder: Path, steps: int | None) -> int:
    topic, folder = filled(), folder / str(steps)
    folder.mkdir()
    code = in_a_child(partial(killed_run, topic, folder, True, steps))
    assert in_a_child(partial(killed_run, topic, folder, True, None)) == 0
    with SqliteStateProvider(folder / "states.db", "read") as states:
        assert dict(states.state("rows", 0).items()) == {"k0": 4, "k1": 4}
    assert positions(topic) == {0: 4, 1: 4}
    return code


@pytest.mark.parametrize(("check", "steps"), [(assert_no_message_lost, 9), (assert_each_counts_once, 7)])
def test_a_killed_run_loses_no_message_and_a_stateful_window_counts_each_once(
    check: Callable[..., int], steps: int, tmp_path: Path
) -> None:
    assert check(tmp_path, steps) == -signal.SIGKILL


@pytest.mark.crash(minutes=1)
@pytest.mark.parametrize("check", [assert_no_message_lost, assert_each_counts_once])
def test_the_same_if_the_process_is_killed_at_any_step(check: Callable[..., int], tmp_path: Path) -> None:
    deaths = 0
    while check(tmp_path, deaths) == -signal.SIGKILL:
        deaths += 1
    assert deaths > 10


# -- what cannot be read ------------------------------------------------------------------------------------------------------


def test_messages_removed_by_retention_are_an_error_or_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, body("a", 0), body("a", 1))
    ran(spout(topic))
    send(topic, 0, *(body("b", n) for n in range(10)))
    place, client = TopicPartition(topic, 0, 7), admin()
    client.delete_records([place])[TopicPartition(topic, 0)].result(20)
    with pytest.raises(
        SourceError, match=r"has lost 5 offsets that were not read, 2 to 6: its retention .*on_gap='skip'"
    ):
        ran(spout(topic))
    assert positions(topic) == {0: 2}
    assert ran(spout(topic, on_gap="skip")) == [("b", n) for n in range(5, 10)]
    assert [message for message in caplog.messages if "has lost 5 offsets" in message]
    assert positions(topic) == {0: 12}


def test_a_deleted_topic_and_one_made_anew_end_the_run_and_the_next_run_reads_the_new_one() -> None:
    topic, client = new_topic(partitions=1), admin()
    send(topic, 0, body("a", 0))
    given = spout(topic)
    with LocalCluster(topology_of(passed), sources={"words": given}, clock=VirtualClock()) as cluster:
        assert cluster.run_for(seconds(1))["rows"] == [("a", 0)]
        client.delete_topics([topic])[topic].result(20)
        client.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
        send(topic, 0, *(body("b", n) for n in range(3)))
        with pytest.raises(SourceError, match=f"topic '{topic}' at .* is another topic than the one that was read"):
            cluster.run_for(seconds(1))
    assert ran(spout(topic)) == [("b", n) for n in range(3)], "Kafka has deleted the position with the topic"
    client.delete_topics([topic])[topic].result(20)
    with pytest.raises(ConfigError, match=f"topic '{topic}' at .* is not there"):
        ran(given)


def test_a_group_with_members_is_an_error_that_names_it() -> None:
    topic = new_topic(partitions=1)
    send(topic, 0, body("a", 0))
    member = Consumer(
        settings(**{"group.id": f"of-{topic}", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    )
    member.subscribe([topic])
    assert member.poll(20) is not None
    with pytest.raises(SourceError, match=f"the group 'of-{topic}' has members now, .* in a group of your own"):
        ran(spout(topic))
    member.close()
    assert len(ran(spout(topic))) == 1


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"servers": "127.0.0.1:1", "patience_s": 1}, SourceError, "did not answer for 1"),
        ({"topic": "not-there"}, ConfigError, "topic 'not-there'"),
        ({"options": {"sasl.password": "s3cret-word"}}, ConfigError, "refuses the user"),
        ({"options": {"group.id": "g"}}, ConfigError, "the option 'group.id' is set by the library"),
        ({"group": ""}, ConfigError, "the group of a KafkaSpout is the name of a consumer group, got ''"),
        ({"fields": "kafka_offset bigint"}, ConfigError, "name one of the message"),
        ({"starting": "now"}, ConfigError, "'earliest' or 'latest'"),
        ({"on_gap": "fail"}, ConfigError, "'raise' or 'skip', got 'fail'"),
        ({"max_rows": 0}, ConfigError, "at least 1, got 0"),
    ],
)
def test_invalid_arguments_are_refused_at_construction(given: dict[str, Any], error: Any, sentence: str) -> None:
    usual = {"servers": servers(), "topic": "t", "fields": FIELDS, "group": "g"}
    with pytest.raises(error) as found:
        KafkaSpout(**{**usual, **given, "options": {**options(), **given.get("options", {})}})
    assert sentence in str(found.value)
    assert "s3cret" not in str(found.value)


# -- Trident and Spark -----------------------------------------------------------------------------------------------------------


def counting(store: Any) -> TridentTopology:
    topology = TridentTopology("counting")
    words = topology.new_stream("words", InputSpout(FIELDS))
    words.sink("rows")
    words.group_by("k").persistent_aggregate(map_state(store, "counts"), None, Count(), "n long")
    return topology


def test_trident_counts_each_message_once_goes_on_at_its_records_and_refuses_another_topic() -> None:
    topic, records, store, client = new_topic(partitions=2), MemoryRecordStore(), MemoryStore(), admin()

    def total(n: int) -> Any:
        for partition in (0, 1):
            send(topic, partition, *(body("a", n) for n in range(5)))
        given: dict[str, Any] = {"sources": {"words": spout(topic, max_rows=4)}, "records": records}
        with TridentCluster(counting(store), clock=VirtualClock(), **given) as running:
            assert len(running.run()["rows"]) == n
            return dict(running.values("state1"))

    assert total(10) == {("a",): 10}
    assert positions(topic) == {0: 5, 1: 5}
    moved(topic, {0: 0})
    assert total(10) == {("a",): 20}, "the records say where to go on, and not the group"
    assert positions(topic) == {0: 10, 1: 10}
    client.delete_topics([topic])[topic].result(20)
    client.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
    with pytest.raises(CheckpointError, match="stream 'words' reads another KafkaSpout than its records have read"):
        total(10)


@pytest.mark.python_source
def test_submit_reads_a_topic_without_the_connector_and_goes_on_at_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    from windowing.spark import MemorySink, submit

    topic, sinks, client = new_topic(partitions=2), {"one": MemorySink(), "two": MemorySink()}, admin()

    def run(source: KafkaSpout, checkpoint: str) -> list[Any]:
        sink = sinks[checkpoint]
        before = len(sink.rows)
        topology = topology_of(passed)
        given: dict[str, Any] = {
            "sinks": {"rows": sink},
            "checkpoint": str(tmp_path / checkpoint),
            "trigger": "available_now",
        }
        assert submit(topology, spark, sources={"words": source}, **given).await_end(120)
        return sorted(tuple(row) for row in sink.rows[before:])

    for partition in (0, 1):
        send(topic, partition, *(body(f"k{partition}", n) for n in range(30)))
    assert run(spout(topic, max_rows=25), "one") == [(f"k{p}", n) for p in (0, 1) for n in range(30)]
    told = positions(topic)
    assert all(12 <= told[p] <= 30 for p in (0, 1)), "Spark tells of a batch when the next one begins"
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    send(topic, 0, body("new", 1))
    send(topic, 2, body("new", 2))
    assert run(spout(topic, max_rows=25, starting="latest"), "one") == [("new", 1), ("new", 2)]
    moved(topic, {0: 0})
    place = TopicPartition(topic, 0, 20)
    client.delete_records([place])[TopicPartition(topic, 0)].result(20)
    with pytest.raises(SourceError, match="has lost 20 offsets that were not read, 0 to 19"):
        run(spout(topic), "two")
    client.delete_topics([topic])[topic].result(20)
    client.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
    with pytest.raises(
        CheckpointError, match="spout 'words:default' reads another KafkaSpout than this checkpoint has read"
    ):
        run(spout(topic), "one")


@pytest.mark.python_source
def test_submit_trident_counts_each_message_once(spark: Any, tmp_path: Path) -> None:
    from windowing.spark import MemorySink, submit_trident

    topic, sink = new_topic(partitions=2), MemorySink()
    store = SqliteStore(tmp_path / "states.db")
    for _ in range(2):
        for partition in (0, 1):
            send(topic, partition, *(body("a", n) for n in range(5)))
        given: dict[str, Any] = {
            "sinks": {"rows": sink},
            "checkpoint": str(tmp_path / "checkpoint"),
            "trigger": "available_now",
        }
        query = submit_trident(counting(store), spark, sources={"words": spout(topic, max_rows=4)}, **given)
        assert query.await_end(200)
    assert Counter(row["n"] for row in sink.rows) == dict.fromkeys(range(5), 4)
