"""LocalCluster(sources=): a PartitionedSpout and a SqliteQueue in one process. A batch is acked when all its tuples are acked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dying import in_a_child
from windowing import Spout, bolt, count, millis, seconds, spout, tumbling
from windowing.errors import CheckpointError, ConfigError, CorruptStateError, FailedException, SourceError
from windowing.local import LocalCluster, TridentCluster, VirtualClock, run_topology
from windowing.local import sources as local_sources
from windowing.local.router import ClusterResult
from windowing.queues import PartitionedSpout, Root, SqliteQueue
from windowing.queues.spout import Offsets
from windowing.schema.types import Schema
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.plan import Topology, TopologyError
from windowing.trident import TridentTopology

WORDS = "word string, at long"
NO_TIMEOUTS = {"topology.enable.message.timeouts": False}


class Noting(SqliteQueue):
    """A queue that records acks, fails and give-ups, and how many rows it had then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.told: list[tuple[Any, ...]] = []
        super().__init__(*arguments, **options)

    def ack(self, root: Root) -> None:
        self.told.append(("ack", root.batch))
        super().ack(root)

    def fail(self, root: Root, component: str) -> None:
        self.told.append(("fail", root.batch, component))
        super().fail(root, component)

    def give_up(self, root: Root, component: str) -> None:
        self.told.append(("give up", root.batch, component))
        SqliteQueue.ack(self, root)


class Numbers(PartitionedSpout):
    """Partitions of whole numbers: the row at offset n is n."""

    fields = "n long"

    def __init__(self, **ends: int) -> None:
        self.ends, self.begins = ends, dict.fromkeys(ends, 0)
        self.committed: list[Offsets] = []
        self.reads: list[tuple[str, int, int]] = []

    def initial(self) -> Offsets:
        return self.begins

    def latest(self) -> Offsets:
        return self.ends

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        self.reads.append((partition, start, end))
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start + 1, end + 1), pa.int32())})

    def commit(self, end: Offsets) -> None:
        self.committed.append(dict(end))


@tumbling(seconds(10), timestamp="at", key="word", name="count", output="word string, end long, n long")
def counted(window: Any) -> Any:
    return window.key, window.end_timestamp, len(window)


@bolt(output="n long")
def same(tuple: Any) -> Any:
    return tuple.n


def topology_of(bolt: Any, fields: str = WORDS, tasks: int = 1, **settings: Any) -> Topology:
    builder = TopologyBuilder("queued").configure({**NO_TIMEOUTS, **settings})
    builder.set_spout("words", InputSpout(fields), tasks)
    builder.set_bolt("count", bolt).global_grouping("words")
    return builder.build()


def ran(topology: Topology, source: Any, **options: Any) -> ClusterResult:
    return run_topology(topology, sources={"words": source}, clock=VirtualClock(), **options)


# -- acks ----------------------------------------------------------------------------------------------------------------


def test_a_batch_is_acked_after_its_last_window_fired_and_a_new_cluster_reads_the_rest(tmp_path: Path) -> None:
    queue = Noting(tmp_path / "queue.db", WORDS, max_rows=2)
    rows = [("cow", 1_000), ("moon", 9_000), ("cow", 25_000), ("moon", 3_000), ("cow", 45_000)]
    queue.put(rows[:4])
    found = ran(topology_of(counted), queue, drain=False)
    assert found["count"] == [], "no turn has come"
    assert queue.told == [], "windows are open: nothing was acked"
    assert queue.rows() == rows[:4]
    queue.put(rows[4:])
    found = ran(topology_of(counted), queue)
    assert sorted(found["count"]) == [
        ("cow", 10_000, 1),
        ("cow", 30_000, 1),
        ("cow", 50_000, 1),
        ("moon", 10_000, 2),
    ]
    assert sorted(queue.told) == [("ack", 0), ("ack", 1), ("ack", 2)]
    assert len(queue) == 0
    assert ran(topology_of(counted), queue)["count"] == []
    assert len(queue.told) == 3, "each batch was acked once"


def test_rows_that_are_put_during_a_run_are_read_and_acked(tmp_path: Path) -> None:
    queue = Noting(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000)])

    @bolt(output="word string")
    def more(tuple: Any) -> Any:
        if tuple.word == "cow":
            queue.put([("moon", 2_000)])
        return tuple.word

    with LocalCluster(topology_of(more), sources={"words": queue}, clock=VirtualClock()) as cluster:
        found = cluster.run_for(seconds(1))
    assert found["count"] == [("cow",), ("moon",)]
    assert queue.told == [("ack", 0), ("ack", 1)]


def test_with_states_a_batch_is_acked_by_the_checkpoint_that_holds_its_changes(tmp_path: Path) -> None:
    committed: list[int] = []
    acked: list[int] = []

    @bolt(output="word string, n long")
    class Seen:
        def init_state(self, state: Any) -> None:
            self.state = state

        def pre_commit(self, txid: int) -> None:
            committed.append(txid)

        def execute(self, tuple: Any) -> Any:
            assert acked == [], "acked before the state is committed"
            n = self.state.get(tuple.word, 0) + 1
            self.state.put(tuple.word, n)
            return tuple.word, n

    class Queue(SqliteQueue):
        def ack(self, root: Root) -> None:
            acked.append(len(committed))
            super().ack(root)

    queue = Queue(tmp_path / "queue.db", WORDS, max_rows=1)
    queue.put([("cow", 1), ("cow", 2)])
    found = ran(topology_of(Seen), queue, state_path=tmp_path / "states.db")
    assert found["count"] == [("cow", 1), ("cow", 2)]
    assert acked == [1, 1]
    assert len(queue) == 0
    queue.put([("cow", 3)])
    acked.clear()
    assert ran(topology_of(Seen), queue, state_path=tmp_path / "states.db")["count"] == [("cow", 3)]


# -- failures ------------------------------------------------------------------------------------------------------------


def test_only_the_failed_row_of_a_batch_is_emitted_again(tmp_path: Path) -> None:
    failures = [1, 1]

    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "bad" and failures:
            failures.pop()
            raise FailedException("not now")
        return tuple.word

    queue = Noting(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1), ("bad", 2), ("moon", 3)])
    assert ran(topology_of(picky), queue)["count"] == [("cow",), ("moon",), ("bad",)]
    assert queue.told == [("ack", 0)]


def test_a_batch_with_a_row_that_always_fails_is_read_again_and_then_is_dead(tmp_path: Path) -> None:
    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "bad":
            raise FailedException("never")
        return tuple.word

    queue = Noting(tmp_path / "queue.db", WORDS, max_rows=2, max_attempts=2)
    queue.put([("cow", 1), ("bad", 2), ("moon", 3)])
    ran(topology_of(picky, max_attempts=2), queue)
    assert queue.told == [("ack", 1), ("fail", 0, "count"), ("fail", 2, "count")]
    assert len(queue) == 0
    assert queue.dead == [("cow", 1), ("bad", 2)], "with its whole batch"


def test_a_batch_with_a_dead_letter_is_given_up_after_the_dead_letter_was_processed(tmp_path: Path) -> None:
    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        if tuple.word == "bad":
            raise FailedException("never")
        return tuple.word

    @tumbling(count(2), output="attempts string")
    def pairs(window: Any) -> Any:
        return " ".join(str(letter.attempts) for letter in window)

    builder = TopologyBuilder("letters").configure({**NO_TIMEOUTS, "max_attempts": 2})
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("picky", picky).shuffle_grouping("words")
    builder.set_bolt("pairs", pairs).global_grouping("picky", "dead_letters")
    queue = Noting(tmp_path / "queue.db", WORDS, max_rows=2)
    queue.put([("cow", 1), ("bad", 2), ("moon", 3), ("moon", 4), ("bad", 5), ("cow", 6)])
    found = ran(builder.build(), queue)
    assert found["pairs"] == [("2 2",)]
    assert sorted(queue.told) == [("ack", 1), ("give up", 0, "picky"), ("give up", 2, "picky")]
    assert len(queue) == 0


def test_reading_of_a_failed_batch_stops_and_it_is_not_acked(tmp_path: Path) -> None:
    executed: list[str] = []

    @bolt(output="word string")
    def picky(tuple: Any) -> Any:
        executed.append(tuple.word)
        if tuple.word == "bad":
            raise FailedException("never")
        return tuple.word

    queue = Noting(tmp_path / "queue.db", WORDS, max_attempts=1)
    queue.put([("bad", 1), *(("cow", n) for n in range(100))])
    ran(topology_of(picky, max_attempts=1, max_spout_pending=1), queue)
    assert executed == ["bad"]
    assert queue.told == [("fail", 0, "count")]
    assert len(queue.dead) == 101


class Failing(Numbers):
    """Records its calls of `fail`; it takes no acks, and delivers nothing again."""

    def __init__(self, **ends: int) -> None:
        super().__init__(**ends)
        self.failures: list[tuple[int, str]] = []

    def fail(self, root: Root, component: str) -> None:
        assert not self.committed
        self.failures.append((root.batch, component))


@pytest.mark.parametrize("settings", [{"max_attempts": 1}, {"max_attempts": 2, "max_spout_pending": 1}])
def test_a_source_without_acks_goes_on_with_the_rows_behind_one_that_failed(settings: dict[str, int]) -> None:
    @bolt(output="n long")
    def picky(tuple: Any) -> Any:
        if tuple.n in (3, 5):
            raise FailedException("never")
        return tuple.n

    source = Failing(a=400)
    result = ran(topology_of(picky, "n long", **settings), source)
    assert sorted(n for (n,) in result["count"]) == [n for n in range(1, 401) if n not in (3, 5)]
    assert len(result.dead_letters) == 2
    assert source.failures == [(0, "count")]
    assert source.committed[-1] == {"a": 400}


class Holes(Numbers):
    """Has no row at the offsets 5 to 12 of a partition."""

    max_rows = 4

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition, start, end):
            yield batch.filter(pa.array([not 4 < n <= 12 for n in batch["n"].to_pylist()]))


@tumbling(count(100), output="n long")
def size(window: Any) -> Any:
    return len(window)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_run_goes_on_behind_batches_without_rows_with_any_number_of_tasks(tasks: int) -> None:
    assert ran(topology_of(size, "n long", tasks), Holes(a=20, b=20))["count"] == [(24,)]


@pytest.mark.parametrize("partitions", [3, 5])
def test_a_run_goes_on_behind_a_batch_whose_rows_are_all_of_another_task(tmp_path: Path, partitions: int) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", "n long", partitions=partitions, max_rows=1)
    queue.put([(n,) for n in range(30)])
    assert ran(topology_of(size, "n long", 3), queue)["count"] == [(30,)]
    assert len(queue) == 0


@pytest.mark.parametrize("calls", range(1, 9))
def test_a_row_that_comes_while_tasks_are_asked_is_read_by_the_task_of_its_partition(calls: int) -> None:
    class Growing(Numbers):
        def latest(self) -> Offsets:
            self.asked = getattr(self, "asked", 0) + 1
            return {"a": 1, "b": 0, "c": 0} if self.asked >= calls else self.begins

    source = Growing(a=1, b=0, c=0)
    result = ran(topology_of(same, "n long", 3), source, drain=False)
    assert len(result["count"]) == (source.asked >= calls)


def test_other_tasks_go_on_while_batches_without_rows_are_read() -> None:
    class Hole(Numbers):
        max_rows = 4

        def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
            for batch in super().read(partition, start, end):
                yield batch.filter(pa.array([not 4 < n <= 400 for n in batch["n"].to_pylist()]))

    source, read = Hole(a=404), []

    @bolt(output="n long")
    def late(tuple: Any) -> Any:
        read.append(len(source.reads))
        return tuple.n

    assert len(ran(topology_of(late, "n long"), source)["count"]) == 8
    assert read == [2] * 4 + [101] * 4


# -- offsets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_partitions_are_split_among_tasks_and_batches_are_cut_as_on_spark(seed: int | None) -> None:
    numbers = Numbers(a=3, b=7)
    numbers.max_rows = 4
    found = ran(topology_of(same, "n long", tasks=2), numbers, seed=seed)
    assert sorted(found["count"]) == sorted((n,) for n in [*range(1, 4), *range(1, 8)])
    assert sorted(numbers.reads) == [("a", 0, 2), ("a", 2, 3), ("b", 0, 2), ("b", 2, 4), ("b", 4, 7)]
    assert numbers.committed[-1] == {"a": 3, "b": 7}
    assert numbers.committed == sorted(numbers.committed, key=lambda end: end["b"]), "without a gap"


def test_max_spout_pending_limits_the_rows_in_flight() -> None:
    held: list[int] = []

    @tumbling(count(3), output="n long")
    def three(window: Any) -> Any:
        held.append(max(row.n for row in window))
        return held[-1]

    numbers = Numbers(a=9)
    found = ran(topology_of(three, "n long", max_spout_pending=6), numbers)
    assert found["count"] == [(3,), (6,), (9,)]
    assert numbers.committed == [{"a": 9}]


def test_a_new_partition_is_read_and_offsets_that_go_back_end_the_run() -> None:
    numbers = Numbers(a=2)

    @bolt(output="n long")
    def grows(tuple: Any) -> Any:
        if tuple.n == 2:
            numbers.ends, numbers.begins = {"a": 2, "b": 12}, {"a": 0, "b": 10}
        if tuple.n == 12:
            numbers.ends = {"a": 1, "b": 12}
        return tuple.n

    with pytest.raises(
        SourceError, match=r"^\[SOURCE\] partition 'a' of spout 'words' ends at offset 1, and the query has read"
    ):
        ran(topology_of(grows, "n long"), numbers)
    assert numbers.reads == [("a", 0, 2), ("b", 10, 12)]


def test_values_have_their_declared_types_and_each_stream_has_its_own_source(tmp_path: Path) -> None:
    fields = "at timestamp, told map<string, array<double>>, whole struct<n: long>"
    row = (datetime(2026, 1, 2, tzinfo=UTC), {"half": [0.5]}, {"n": 7})
    queue = SqliteQueue(tmp_path / "queue.db", fields)
    queue.put([row])

    @bolt(output=fields)
    def through(tuple: Any) -> Any:
        return tuple.get_values()

    builder = TopologyBuilder("streams").configure(NO_TIMEOUTS)
    builder.set_spout("words", InputSpout({"default": fields, "numbers": "n long"}))
    builder.set_bolt("through", through).global_grouping("words")
    builder.set_bolt("same", same).global_grouping("words", "numbers")
    found = ran(builder.build(), {"default": queue, "numbers": Numbers(a=2)})
    assert found["through"] == [row]
    assert found["same"] == [(1,), (2,)]
    assert len(queue) == 0


def test_the_source_of_a_spout_of_ones_own_replaces_it(tmp_path: Path) -> None:
    @spout(output=WORDS)
    class Endless(Spout):
        def next_tuple(self) -> None:
            raise AssertionError("a replaced spout is never called")

    builder = TopologyBuilder("mocked").configure(NO_TIMEOUTS)
    builder.set_spout("words", Endless)
    builder.set_bolt("counted", counted).fields_grouping("words", "word")
    queue = Noting(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000), ("moon", 2_000)])
    result = run_topology(builder.build(), sources={"words": queue}, clock=VirtualClock())
    assert (len(result["counted"]) > 0, queue.told, len(queue)) == (True, [("ack", 0)], 0)


def test_batches_that_were_executed_by_the_end_of_run_for_are_acked(tmp_path: Path) -> None:
    class ByTuples:
        """A clock that goes on by 1 ms for each tuple, and each time that it is looked at."""

        ms = 0

        def now_ms(self) -> int:
            self.ms += 1
            return self.ms

    queue, clock, seen = SqliteQueue(tmp_path / "queue.db", "n long", max_rows=20), ByTuples(), list[int]()
    queue.put([(n,) for n in range(600)])

    @bolt(output="n long")
    def timed(tuple: Any) -> Any:
        clock.ms += 1
        seen.append(tuple.n)
        return tuple.n

    while len(queue):
        with LocalCluster(topology_of(timed, "n long"), sources={"words": queue}, clock=clock) as cluster:
            cluster.run_for(millis(150))
        assert len(queue) == 600 - len({*seen}) // 20 * 20


def test_a_source_without_rows_is_asked_twenty_times_a_second_and_new_rows_are_read() -> None:
    class Counting(Numbers):
        asked = 0

        def latest(self) -> Offsets:
            self.asked += 1
            return super().latest()

    source = Counting(a=2)
    topology = topology_of(bolt(output="n long")(lambda tuple: tuple.n), "n long")
    with LocalCluster(topology, sources={"words": source}, clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(5))
        assert 80 < source.asked < 120
        source.ends = {"a": 3}
        assert len(cluster.run_for(seconds(1))["count"]) == 3
    patient = topology_of(bolt(output="n long")(lambda tuple: tuple.n), "n long", sleep_spout_wait=seconds(1))
    with LocalCluster(patient, sources={"words": (source := Counting(a=2))}, clock=VirtualClock()) as cluster:
        cluster.run_for(seconds(5))
    assert source.asked < 12


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_sources_that_a_cluster_cannot_read_are_refused_with_the_reason(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", WORDS)
    topology = topology_of(counted)
    refused = [
        (
            topology,
            {"wrods": queue},
            None,
            r"sources names 'wrods', which is no spout of topology 'queued'; .*'words'",
        ),
        (
            topology,
            {"words": [("cow", 1)]},
            None,
            r"source of spout 'words' is a PartitionedSpout in one process, got \[",
        ),
        (
            topology,
            {"words": Numbers},
            None,
            r"is a PartitionedSpout in one process, got <class .*; a source is an object: write Numbers\(\.\.\.\)",
        ),
        (
            topology,
            {"words": Numbers(a=1)},
            None,
            r"declares 'word' as string, Numbers has no such field; its fields are n",
        ),
        (topology, {"words": {"default": queue, "x": queue}}, None, r"is for no stream of it"),
        (topology, {"words": {}}, None, r"has a stream 'default' without a source"),
        (topology, [queue], None, r"sources= is a mapping of InputSpouts.*; write sources=\{'words': source\}"),
        (topology, {"words": queue}, {}, r"was given both batches= and sources="),
        (
            topology_of(counted, **{"topology.acker.executors": 0}),
            {"words": queue},
            None,
            r"forgets what is acked, and topology.acker.executors is 0, .* leave that setting out",
        ),
    ]
    for declared, sources, batches, sentence in refused:
        with pytest.raises(ConfigError, match=sentence):
            LocalCluster(declared, sources=sources, batches=batches)  # type: ignore[arg-type]
    assert queue.rows() == []


def test_one_source_for_two_spouts_is_refused_if_it_forgets_what_one_of_them_has_acked(tmp_path: Path) -> None:
    builder, queue = TopologyBuilder("twice"), SqliteQueue(tmp_path / "queue.db", "n long")
    for name in ("a", "b"):
        builder.set_spout(name, InputSpout("n long"))
        builder.set_bolt(f"of_{name}", bolt(output="n long")(lambda tuple: tuple.n)).shuffle_grouping(name)
    topology = builder.build()
    for other in (queue, SqliteQueue(tmp_path / "queue.db", "n long")):
        with pytest.raises(
            ConfigError, match="spout 'b' and spout 'a' have the same source, a SqliteQueue that forgets"
        ):
            LocalCluster(topology, sources={"a": queue, "b": other})
    numbers = Numbers(a=3)
    with LocalCluster(topology, sources={"a": numbers, "b": numbers}, clock=VirtualClock()) as cluster:
        result = cluster.run()
    assert sorted(result["of_a"]) == sorted(result["of_b"]) != []


def test_a_source_in_place_of_a_spout_is_answered_with_where_it_belongs(tmp_path: Path) -> None:
    builder, topology = TopologyBuilder("misplaced"), TridentTopology("misplaced")
    builder.set_spout("words", SqliteQueue(tmp_path / "queue.db", WORDS))
    builder.set_bolt("count", counted).global_grouping("words")
    topology.new_stream("words", SqliteQueue).sink("out")
    said = r"a SqliteQueue is a source, which a run reads; write InputSpout\('{}'\) in its place, and sources=\{{'name of the spout"
    with pytest.raises(TopologyError, match=said.format("word string, at bigint")):
        builder.build()
    with pytest.raises(TopologyError, match=said.format(r"\.\.\.")):
        topology.build()


def test_a_run_after_the_drain_logs_that_it_reads_no_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000)])
    with LocalCluster(topology_of(counted), sources={"words": queue}, clock=VirtualClock()) as cluster:
        cluster.run(drain=False)
        queue.put([("moon", 2_000)])
        cluster.run()
        assert caplog.messages == []
        queue.put([("late", 3_000)])
        cluster.run()
        cluster.run_for(seconds(1))
    sentence = "topology 'queued': its windows were drained, and its sources have ended with them"
    assert [message[: len(sentence)] for message in caplog.messages] == [sentence] * 2
    assert len(queue) == 1


def test_the_sources_of_a_cluster_whose_states_are_refused_are_closed(tmp_path: Path) -> None:
    closed = []

    class Closing(Numbers):
        def close(self) -> None:
            closed.append(self)

    (tmp_path / "states.db").write_bytes(b"no database")
    with pytest.raises(ConfigError, match="keeps nothing in state_path="):
        LocalCluster(topology_of(same, "n long"), sources={"words": Closing(a=1)}, state_path=tmp_path / "states.db")
    plan = TridentTopology("queued")
    plan.new_stream("words", InputSpout("n long")).sink("rows")
    with pytest.raises(CorruptStateError, match=r"states\.db"):
        TridentCluster(plan, sources={"words": Closing(a=1)}, state_path=tmp_path / "states.db")
    assert len(closed) == 2


def test_an_error_of_the_source_ends_the_run_and_nothing_is_acked(tmp_path: Path) -> None:
    class Broken(SqliteQueue):
        def ack(self, root: Root) -> None:
            raise SourceError("the disk is full; make room, then start again")

    queue = Broken(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1_000)])
    with pytest.raises(SourceError, match=r"^\[SOURCE\] the disk is full; make room"):
        ran(topology_of(counted), queue)
    assert queue.rows() == [("cow", 1_000)]


def test_a_spark_query_is_refused_after_a_cluster_has_read_its_queue(tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "queue.db", WORDS)
    queue.put([("cow", 1), ("cow", 2)])
    queue.begin("a query on Spark", None)
    queue.ack(Root(0, {"0": 0}, {"0": 1}))
    assert ran(topology_of(counted), queue)["count"] == [("cow", 10_000, 1)]
    with pytest.raises(CheckpointError, match="another query reads the queue"):
        queue.begin("a query on Spark", {"0": 1})


# -- kills ---------------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_a_process_killed_before_any_queue_transaction_loses_no_row(tmp_path: Path) -> None:
    """The process dies before its n-th transaction of the queue, for every n, until it survives to the end."""
    rows = [(f"w{n % 3}", n * 4_000) for n in range(7)]
    deaths = 0
    while True:
        path, out = tmp_path / f"{deaths}.db", tmp_path / f"{deaths}.txt"
        SqliteQueue(path, WORDS).put(rows)
        code = in_a_child(partial(killed_run, path, out, deaths))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        left = SqliteQueue(path, WORDS).rows()
        written = set() if not out.exists() else set(out.read_text().split())
        assert {str(at) for _, at in rows} <= written | {str(at) for _, at in left}, "what is gone was shown before"
        assert in_a_child(partial(killed_run, path, out, None)) == 0
        assert set(out.read_text().split()) == {str(at) for _, at in rows}
        assert len(SqliteQueue(path, WORDS)) == 0
        deaths += 1
    assert deaths > 8


def killed_run(path: Path, out: Path, calls: int | None) -> None:
    """Run a topology that writes its windows to a file, and die before that call of the queue."""
    left = [calls]

    class Dying(SqliteQueue):
        def _opened(self) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] = None if left[0] is None else left[0] - 1
            return super()._opened()

    @tumbling(seconds(10), timestamp="at", output="end long")
    def shown(window: Any) -> Any:
        with open(out, "a") as file:
            file.writelines(f"{row.at}\n" for row in window)
            file.flush()
        return window.end_timestamp

    queue = Dying(path, WORDS, max_rows=2)
    run_topology(topology_of(shown), sources={"words": queue}, clock=VirtualClock())


def test_many_roots_that_waited_for_an_older_one_end_as_fast_as_alone(monkeypatch):
    monkeypatch.setattr(local_sources, "_rows_of", lambda *_: iter([(1,)]))  # reading takes longer than all the rest
    source = Numbers(a=40_000)
    source.max_rows = 1
    roots = local_sources.SpoutRoots(source, "numbers", "default", Schema.parse("n long"), 1)
    roots.begin()
    first, *later = [row[0] for row in iter(partial(roots.next_row, 0), None)]
    began = time.process_time()
    for message_id in later:
        roots.done(message_id)
    alone_s, began = time.process_time() - began, time.process_time()
    roots.done(first)
    assert time.process_time() - began < 4 * alone_s, "a search for the next one must not start at the first of all"
    assert source.committed == [{"a": 40_000}]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_queue_whose_file_is_deleted_while_it_is_read_ends_the_run(is_made_anew: bool, tmp_path: Path) -> None:
    queue = SqliteQueue(tmp_path / "q.db", WORDS)
    queue.put([("to", 1), ("be", 2)])

    @bolt(output=WORDS)
    def delete(row: Any) -> Any:
        (tmp_path / "q.db").unlink(missing_ok=True)
        if is_made_anew:
            SqliteQueue(tmp_path / "q.db", WORDS)
        return row["word"], row["at"]

    builder = TopologyBuilder("words")
    builder.set_spout("words", InputSpout(WORDS))
    builder.set_bolt("delete", delete).shuffle_grouping("words")
    refused = "its file was made anew since" if is_made_anew else "is gone: its file was deleted or moved"
    with (
        LocalCluster(builder.build(), clock=VirtualClock(), sources={"words": queue}) as cluster,
        pytest.raises(SourceError, match=refused),
    ):
        cluster.run()
