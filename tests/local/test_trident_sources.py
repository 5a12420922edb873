"""A queue as the source of a Trident topology in one process: a batch is acked when it is committed, and counts once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dying import in_a_child
from windowing import InputSpout
from windowing.errors import CheckpointError, ConfigError, FailedException
from windowing.local import TridentCluster, VirtualClock, run_trident
from windowing.queues import Root, SqliteQueue
from windowing.stores import MemoryStore, SqliteStore, map_state
from windowing.trident import Count, TridentTopology
from windowing.trident.kinds import StateType

ROWS = [(f"k{n % 2}", n) for n in range(10)]


def filled(folder: Path, rows: list[tuple[str, int]] = ROWS, **options: Any) -> SqliteQueue:
    queue = SqliteQueue(folder / "queue.db", "k string, n long", **{"partitions": 2, "max_rows": 4, **options})
    queue.put(rows)
    return queue


def counting(store: Any, look: Callable[[Any], Any] = lambda row: True, tasks: int = 2) -> TridentTopology:
    topology = TridentTopology("counting").configure(max_spout_pending=3)
    words = topology.new_stream("words", InputSpout("n long, k string")).parallelism_hint(tasks).filter(look)
    words.sink("rows")
    state = map_state(store, "counts", StateType.TRANSACTIONAL)
    words.group_by("k").persistent_aggregate(state, None, Count(), "count long")
    return topology


def test_a_run_reads_what_there_is_acks_it_and_another_one_reads_the_rest(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    found = run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    assert sorted(found["rows"]) == sorted((n, k) for k, n in ROWS)
    assert found.batches >= 3, "of at most 4 rows"
    assert (found.states["state1"], len(queue)) == ({("k0",): 5, ("k1",): 5}, 0)
    queue.put([("new", 1)])
    again = run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    assert again["rows"] == [(1, "new")]


def test_a_batch_that_fails_is_the_same_again_and_is_not_acked_before_its_commit(tmp_path: Path) -> None:
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


def killed_run(folder: Path, steps: int | None) -> None:
    """Count a queue, and die at that step: around an ack, within a batch, around the write of a sink."""
    left = [steps]

    def step() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] = None if left[0] is None else left[0] - 1

    class Dying(SqliteQueue):
        def ack(self, root: Root) -> None:
            step()
            super().ack(root)
            step()

    def look(row: Any) -> bool:
        step()
        return True

    def write(txid: int, rows: list[Any]) -> None:
        (folder / f"{txid}.json").write_text(json.dumps(rows))
        step()

    queue = Dying(folder / "queue.db", "k string, n long", partitions=2, max_rows=4)
    given = {"state_path": folder / "records.db", "sinks": {"rows": write}, "sources": {"words": queue}}
    with TridentCluster(counting(SqliteStore(folder / "states.db"), look), clock=VirtualClock(), **given) as running:
        running.run()
        counts = {key[0]: n for key, n in running.values("state1").items()}
        (folder / "counts.json").write_text(json.dumps(counts))


@pytest.mark.crash
def test_a_process_that_is_killed_at_any_step_counts_each_row_once_and_leaves_none(tmp_path: Path) -> None:
    deaths = 0
    while True:
        folder = tmp_path / str(deaths)
        folder.mkdir()
        queue = filled(folder)
        code = in_a_child(partial(killed_run, folder, deaths))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        queue.put([("more", deaths)])  # so that there is a batch more
        assert in_a_child(partial(killed_run, folder, None)) == 0
        assert json.loads((folder / "counts.json").read_text()) == {"k0": 5, "k1": 5, "more": 1}
        rows = [tuple(row) for file in folder.glob("[0-9]*.json") for row in json.loads(file.read_text())]
        assert Counter(rows) == {(n, k): 1 for k, n in [*ROWS, ("more", deaths)]}
        assert len(queue) == 0
        deaths += 1
    assert deaths > 15


def test_records_of_another_time_and_what_is_no_source_are_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    topology = counting(MemoryStore())
    run_trident(topology, sources={"words": queue}, clock=VirtualClock(), state_path=tmp_path / "records.db")
    run_trident(counting(MemoryStore()), sources={"words": queue}, clock=VirtualClock())
    with pytest.raises(CheckpointError, match="another query reads the queue"):
        run_trident(topology, sources={"words": queue}, clock=VirtualClock(), state_path=tmp_path / "records.db")
    for given, sentence in (
        ({"sources": [queue]}, "sources= is a mapping"),
        ({"sources": {"word": queue}}, "is no stream; did you mean 'words'"),
        ({"sources": {"words": ROWS}}, "is a PartitionedSpout in one process"),
        ({"sources": {"words": queue}, "batches": {"words": [[(1, "a")]]}}, "was given both batches= and a source"),
        ({"sources": {"words": SqliteQueue(tmp_path / "other.db", "k string")}}, "declares 'n' as bigint"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            TridentCluster(topology, clock=VirtualClock(), **given)
