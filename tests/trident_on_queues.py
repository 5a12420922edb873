"""A local Trident topology that counts the rows of a queue, and is killed by tests in tests/local and tests/services."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.dying import killed_at_step
from windowing import InputSpout
from windowing.local import TridentCluster, VirtualClock
from windowing.queues import Root
from windowing.stores import SqliteStore, map_state
from windowing.trident import Count, TridentTopology
from windowing.trident.kinds import StateType

ROWS = [(f"k{n % 2}", n) for n in range(10)]


def counting(store: Any, look: Callable[[Any], Any] = lambda row: True, tasks: int = 2) -> TridentTopology:
    topology = TridentTopology("counting").configure(max_spout_pending=3)
    words = topology.new_stream("words", InputSpout("n long, k string")).parallelism_hint(tasks).filter(look)
    words.sink("rows")
    state = map_state(store, "counts", StateType.TRANSACTIONAL)
    words.group_by("k").persistent_aggregate(state, None, Count(), "count long")
    return topology


def dying(base: Any, step: Callable[[], None]) -> Any:
    """Return a class of queues that calls `step` before and after each ack."""

    class Dying(base):  # type: ignore[misc]
        def ack(self, root: Root) -> None:
            step()
            super().ack(root)
            step()

    return Dying


def counted_run(opened: Callable[[Callable[[], None]], Any], folder: Path, steps: int | None) -> None:
    """Count the rows of a queue, and kill the process at a step: at an ack, within a batch, or at the write of a sink. `opened`
    makes the queue, with the function to call at each step.
    """
    step = killed_at_step(steps)

    def look(row: Any) -> bool:
        step()
        return True

    def write(txid: int, rows: list[Any]) -> None:
        (folder / f"{txid}.json").write_text(json.dumps(rows))
        step()

    given = {"state_path": folder / "records.db", "sinks": {"rows": write}, "sources": {"words": opened(step)}}
    with TridentCluster(counting(SqliteStore(folder / "states.db"), look), clock=VirtualClock(), **given) as running:
        running.run()
        counts = {key[0]: n for key, n in running.values("state1").items()}
        (folder / "counts.json").write_text(json.dumps(counts))


def assert_counted_once(folder: Path, *more: tuple[str, int]) -> None:
    """Check that the runs in a folder have counted ROWS and `more`, and written them to their sink, each once."""
    rows = [*ROWS, *more]
    assert json.loads((folder / "counts.json").read_text()) == Counter(k for k, _ in rows)
    found = [tuple(row) for file in folder.glob("[0-9]*.json") for row in json.loads(file.read_text())]
    assert Counter(found) == {(n, k): 1 for k, n in rows}
