"""A queue as the source of a Trident topology in one process: a batch is acked when it is committed, and counts once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dying import in_a_child, killed_at_step
from tests.trident_on_queues import ROWS, assert_counted_once, counted_run, counting, dying
from windowing import InputSpout
from windowing.errors import CheckpointError, ConfigError, DefinitionChangedError, FailedException
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.queues import PartitionedSpout, SqliteQueue
from windowing.stores import MemoryStore, SqliteStore
from windowing.trident import FixedBatchSpout, TridentTopology
from windowing.trident.coordinator import Readiness
from windowing.trident.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.transactional_state import MemoryRecordStore


def filled(folder: Path, rows: list[tuple[str, int]] = ROWS, **options: Any) -> SqliteQueue:
    queue = SqliteQueue(folder / "queue.db", "k string, n long", **{"partitions": 2, "max_rows": 4, **options})
    queue.put(rows)
    return queue


def test_a_run_reads_and_acks_all_rows_and_the_next_run_reads_the_new_ones(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    found = run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    assert sorted(found["rows"]) == sorted((n, k) for k, n in ROWS)
    assert found.batches >= 3, "of at most 4 rows"
    assert (found.states["state1"], len(queue)) == ({("k0",): 5, ("k1",): 5}, 0)
    queue.put([("new", 1)])
    again = run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    assert again["rows"] == [(1, "new")]


class Numbers(PartitionedSpout):
    """One partition of three whole numbers, which is kept."""

    fields = "n long"

    def initial(self) -> Any:
        return {"0": 0}

    def latest(self) -> Any:
        return {"0": 3}

    def read(self, partition: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start, end), pa.int64())})


class Partitioned(IPartitionedTridentSpout, PartitionedCoordinator, PartitionedEmitter):
    """The same numbers, as a spout of batches."""

    output = "n long"

    def get_coordinator(self) -> Any:
        return self

    def get_emitter(self) -> Any:
        return self

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= 1 else Readiness.ENDED

    def get_partitions_for_batch(self) -> list[str]:
        return ["0"]

    def emit_partition_batch_new(self, attempt: Any, collector: Any, partition: str, last: Any) -> Any:
        self.emit_partition_batch(attempt, collector, partition, None)
        return 3

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        for number in range(3):
            collector.emit((number,))


class OpaquePartitioned(IOpaquePartitionedTridentSpout):
    """The same numbers, as a spout whose batches may change."""

    output = "n long"

    def get_coordinator(self) -> Any:
        return Partitioned()

    def get_emitter(self) -> Any:
        return Partitioned()


def numbers_of(records: Any, stream: str, spout: Any = None, source: Any = None) -> list[int]:
    topology = TridentTopology("numbers")
    topology.new_stream(stream, spout or InputSpout("n long")).sink("rows")
    sources = None if source is None else {stream: source}
    found = run_trident(topology, sources=sources, records=records, clock=VirtualClock())
    return [number for (number,) in found["rows"]]


def test_a_source_under_a_new_stream_is_read_again_with_a_warning() -> None:
    records = MemoryRecordStore()
    assert numbers_of(records, "readings", source=Numbers()) == [0, 1, 2]
    assert numbers_of(records, "readings", source=Numbers()) == []
    with pytest.warns(
        UserWarning, match=r"'measurements' is read from its beginning.*'readings'.*give it its old name"
    ):
        assert numbers_of(records, "measurements", source=Numbers()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            {"source": Numbers()},
            {"spout": Partitioned()},
            "an IPartitionedTridentSpout, .* up to txid 1, is that of a source",
        ),
        (
            {"spout": Partitioned()},
            {"source": Numbers()},
            "a source, .* up to txid 1, is that of an IPartitionedTridentSpout",
        ),
        (
            {"spout": FixedBatchSpout("n long", 3, [(0,)])},
            {"source": Numbers()},
            "a source, .* is that of another kind of spout",
        ),
        (
            {"spout": Partitioned()},
            {"spout": OpaquePartitioned()},
            "an IOpaquePartitionedTridentSpout, .* is that of an IPartitionedTridentSpout",
        ),
        (
            {"spout": OpaquePartitioned()},
            {"spout": Partitioned()},
            "an IPartitionedTridentSpout, .* is that of an IOpaquePartitionedTridentSpout",
        ),
    ],
    ids=["source, then spout", "spout, then source", "batches, then source", "opaque", "transactional"],
)
@pytest.mark.parametrize("old", [False, True], ids=["", "records of 0.2.0"])
def test_a_stream_whose_position_another_kind_of_spout_has_stored_is_refused(
    before: Any, after: Any, told: str, old: bool
) -> None:
    records = MemoryRecordStore()
    assert numbers_of(records, "numbers", **before)[0] == 0
    if old:
        records.write({path: None for path in records.paths("") if path.endswith("/kind")}, {})
        if isinstance(after.get("spout"), Partitioned) and isinstance(before.get("spout"), OpaquePartitioned):
            return  # it may be either kind
        told = told.replace("an IPartitionedTridentSpout", "(an IPartitionedTridentSpout|another kind of spout)")
    with pytest.raises(DefinitionChangedError, match=rf"stream 'numbers' is read from {told}.*give it that one again"):
        numbers_of(records, "numbers", **after)
    assert numbers_of(records, "numbers", **before) == [], "it goes on where it was"


@pytest.mark.parametrize("hook", ["partitions_of", "refresh_partitions"])
@pytest.mark.parametrize("base", [Partitioned, OpaquePartitioned])
def test_an_emitter_that_could_not_take_its_partitions_is_asked_again(hook: str, base: Any) -> None:
    calls = []

    class Failing(Partitioned):
        def get_emitter(self) -> Any:
            return self

        def _call(self, name: str, result: Any) -> Any:
            if name == hook:
                calls.append(result)
                if len(calls) < 3:
                    raise FailedException("the broker is away")
            return result

        def partitions_of(self, partitions: list[str], task: int, tasks: int) -> list[str]:
            return list(self._call("partitions_of", partitions[task::tasks]))

        def refresh_partitions(self, partitions: list[str]) -> None:
            self._call("refresh_partitions", partitions)

    class Spout(base):  # type: ignore[misc]
        def get_coordinator(self) -> Any:
            return Failing()

        def get_emitter(self) -> Any:
            return Failing()

    assert numbers_of(MemoryRecordStore(), "numbers", Spout()) == [0, 1, 2]
    assert len(calls) == 3


def test_a_failed_batch_is_retried_with_the_same_rows_and_acked_after_its_commit(tmp_path: Path) -> None:
    queue, told = filled(tmp_path, max_rows=4), list[int]()

    def look(row: Any) -> bool:
        assert len(queue) >= 6, "batches of 4 rows, two of which are committed at most when the third is looked at"
        told.append(row.n)
        if len(told) in (3, 9):
            queue.put([(f"k{len(told)}", 100 + len(told))])
            raise FailedException("not yet")
        return True

    found = run_trident(counting(MemoryStore(), look, 1), sources={"words": queue}, clock=VirtualClock())
    assert Counter(n for n, _ in found["rows"]) == dict.fromkeys((*range(10), 103, 109), 1)
    assert found.failures > 0


def opened(folder: Path, step: Callable[[], None]) -> SqliteQueue:
    queue: SqliteQueue = dying(SqliteQueue, step)(folder / "queue.db", "k string, n long", partitions=2, max_rows=4)
    return queue


def test_a_batch_whose_ack_a_kill_has_prevented_is_acked_by_the_next_run_without_another_batch(tmp_path: Path) -> None:
    queue, topology = filled(tmp_path), counting(SqliteStore(tmp_path / "states.db"))

    def run(steps: int | None) -> Any:
        sources = {"words": opened(tmp_path, killed_at_step(steps))}
        return run_trident(topology, sources=sources, clock=VirtualClock(), state_path=tmp_path / "records.db")

    assert in_a_child(lambda: run(4)) == -signal.SIGKILL, "before the ack of the third batch, which is the last one"
    assert len(queue) == 2
    found = run(None)
    assert (found.batches, found.states["state1"], len(queue)) == (0, {("k0",): 5, ("k1",): 5}, 0)


@pytest.mark.crash
def test_a_process_killed_at_any_step_counts_each_row_once_and_acks_all(tmp_path: Path) -> None:
    deaths = 0
    while True:
        folder = tmp_path / str(deaths)
        folder.mkdir()
        queue = filled(folder)
        code = in_a_child(partial(counted_run, partial(opened, folder), folder, deaths))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        queue.put([("more", deaths)])  # so that there is one more batch
        assert in_a_child(partial(counted_run, partial(opened, folder), folder, None)) == 0
        assert_counted_once(folder, ("more", deaths))
        assert len(queue) == 0
        deaths += 1
    assert deaths > 15


def test_stored_offsets_of_another_time_and_wrong_sources_are_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    topology = counting(SqliteStore(tmp_path / "states.db"))
    run_trident(topology, sources={"words": queue}, clock=VirtualClock(), state_path=tmp_path / "records.db")
    run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    with pytest.raises(CheckpointError, match="another query reads the queue"):
        run_trident(topology, sources={"words": queue}, clock=VirtualClock(), state_path=tmp_path / "records.db")
    for given, sentence in (
        (
            {"sources": [queue]},
            r"sources= is a mapping of streams to their sources, .*; write sources=\{'words': source\}",
        ),
        ({"sources": {"word": queue}}, "is no stream; did you mean 'words'"),
        ({"sources": {"words": ROWS}}, "is a PartitionedSpout in one process"),
        ({"sources": {"words": queue}, "batches": {"words": [[(1, "a")]]}}, "was given both batches= and a source"),
        ({"sources": {"words": SqliteQueue(tmp_path / "other.db", "k string")}}, "declares 'n' as bigint"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            TridentCluster(topology, clock=VirtualClock(), **given)


def test_a_queue_made_anew_is_refused_before_its_first_rows_count_as_read(tmp_path: Path) -> None:
    def run(rows: list[tuple[str, int]], names: Path) -> Any:
        queue = filled(tmp_path, rows, partitions=1)
        topology = counting(SqliteStore(tmp_path / "states.db"))
        return run_trident(topology, sources={"words": queue}, clock=VirtualClock(), state_path=names)

    def forget(queue: str) -> None:
        for each in tmp_path.glob(f"{queue}.db*"):
            each.unlink()

    records = tmp_path / "records.db"
    assert len(run(ROWS, records)["rows"]) == 10
    assert len(run([("more", 1)], records)["rows"]) == 1
    forget("queue")
    with pytest.raises(
        CheckpointError, match=r"stream 'words' reads another SqliteQueue at .* than its records have read"
    ):
        run([("new", n) for n in range(20)], records)
    with pytest.raises(CheckpointError, match="begin with new records and new states, which reads all"):
        run([], records)
    forget("states")
    assert len(run([], tmp_path / "new.db")["rows"]) == 20


def test_records_of_an_earlier_version_take_over_the_identity_of_their_source(tmp_path: Path) -> None:
    store, given = MemoryRecordStore(), {"sources": {"words": filled(tmp_path, partitions=1)}, "clock": VirtualClock()}
    topology = counting(MemoryStore())
    with TridentCluster(topology, records=store, **given) as first:
        first.run()
    (path,) = [each for each in store.paths("") if each.endswith("/source")]
    store.write({path: None}, {path: store.read(path)})
    with TridentCluster(topology, records=store, **given) as again:
        again.run()
    assert store.read(path) is not None


def test_one_queue_for_two_streams_is_refused(tmp_path: Path) -> None:
    topology = TridentTopology("twice")
    for name in ("a", "b"):
        topology.new_stream(name, InputSpout("n long, k string")).sink(f"rows_{name}")
    sources = {"a": filled(tmp_path), "b": filled(tmp_path, [])}
    with pytest.raises(
        ConfigError, match="stream 'b' and stream 'a' have the same source, a SqliteQueue that forgets what is"
    ):
        TridentCluster(topology, sources=sources, clock=VirtualClock())
