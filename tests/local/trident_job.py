"""A Trident word count into one SQLite file, in a process of its own that kills itself.

`python -m tests.local.trident_job FILE SINK COUNT`: killed by SIGKILL before (COUNT odd) or after (even) its COUNT-th
write to the file, of records or of a state; 0: never.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from windowing.local import VirtualClock, run_trident
from windowing.stores.factory import map_state
from windowing.stores.sqlite import SqliteMap, SqliteRecordStore, SqliteStore
from windowing.trident import Count, Sum, TridentTopology
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.spouts import FixedBatchSpout
from windowing.windows.measures import count

SENTENCE = "to be or not to be that is the question to be"
ROWS = [(word, number) for number, word in enumerate(SENTENCE.split())]


def topology(path: str) -> TridentTopology:
    """Two persisted states and a window of one stream."""
    found = TridentTopology("killed")
    rows = found.new_stream("in", FixedBatchSpout("word string, n long", 2, ROWS))
    store = SqliteStore(path)
    counts = rows.group_by("word").persistent_aggregate(map_state(store, "counts"), None, Count(), "n long")
    counts.parallelism_hint(2).new_values_stream().sink("counts")
    rows.shuffle().persistent_aggregate(map_state(store, "total"), "n", Sum(), "n long")
    rows.tumbling_window(count(5), "n", Sum(), "total long", timestamp="n").sink("windows")
    return found


def main(path: str, sink: str, kill_at: int) -> None:
    """Run to the end, or to the kill."""
    writes = 0

    def killing(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == kill_at and kill_at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            written = method(*arguments, **options)
            if writes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return written

        return write

    SqliteRecordStore.write = killing(SqliteRecordStore.write)  # type: ignore[method-assign]
    SqliteMap.multi_put = killing(SqliteMap.multi_put)  # type: ignore[method-assign]
    with open(sink, "a", encoding="utf-8", buffering=1) as file:

        def taking(name: str) -> Callable[[int, Any], None]:
            return lambda txid, rows: print(json.dumps([name, txid, rows]), file=file)

        sinks = {name: taking(name) for name in ("counts", "windows")}
        coordination = CoordinatorConfig(3, interval_ms=0)
        run_trident(topology(path), clock=VirtualClock(), coordination=coordination, state_path=path, sinks=sinks)
