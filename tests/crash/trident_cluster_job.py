"""A Trident topology in one process with all that is durable, which the crash tests end at any moment and start again.

    words (fixed batches) --by word--> counts (opaque), kept (opaque; partition_persist, which reads and writes)
              +------------by n------> once (transactional)
              +--shuffle--> windows --> sink "windows" --> totals (opaque)
    events (a queue, acked with its batch) --by key--> queued (opaque);  --> sink "events"
States, records and queue are in three SQLite files; each call of a sink is a line of a file.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windowing import InputSpout
from windowing.local import TridentCluster
from windowing.queues import SqliteQueue
from windowing.stores import SqliteStore, map_state
from windowing.trident import Count, Sum, TridentTopology
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.kinds import StateType
from windowing.trident.spouts import FixedBatchSpout
from windowing.windows.measures import count

_chance = random.Random(5)
WORDS = [(f"w{_chance.randrange(9)}", n) for n in range(360)]
EVENTS = [(f"k{_chance.randrange(4)}", n) for n in range(240)]


class Keeping:
    """Adds the numbers of each word to what the state has."""

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        added = Counter[str]()
        for each in tuples:
            added[each.word] += each.n
        keys = [(word,) for word in sorted(added)]
        before = state.multi_get(keys)
        state.multi_put(keys, [(old or 0) + added[word] for (word,), old in zip(keys, before, strict=True)])


def topology(folder: Path) -> TridentTopology:
    found, store = TridentTopology("lives"), SqliteStore(folder / "states.db")
    words = found.new_stream("words", FixedBatchSpout("word string, n long", 6, WORDS))
    words.group_by("word").persistent_aggregate(map_state(store, "counts"), None, Count(), "n long").parallelism_hint(2)
    once = map_state(store, "once", StateType.TRANSACTIONAL)
    words.group_by("n").persistent_aggregate(once, None, Count(), "times long").parallelism_hint(2)
    kept = words.partition_by("word").partition_persist(map_state(store, "kept"), ["word", "n"], Keeping())
    kept.parallelism_hint(2)
    windows = words.tumbling_window(count(25), "n", Sum(), "total long", timestamp="n")
    windows.sink("windows")
    windows.shuffle().persistent_aggregate(map_state(store, "totals"), "total", Sum(), "total long")
    events = found.new_stream("events", InputSpout("k string, n long")).parallelism_hint(2)
    events.sink("events")
    events.group_by("k").persistent_aggregate(map_state(store, "queued"), None, Count(), "n long")
    return found


def queue(folder: Path) -> SqliteQueue:
    return SqliteQueue(folder / "queue.db", "k string, n long", partitions=2, max_rows=4)


def run(folder: Path, written: Path) -> None:
    """Run to the end; the calls of the sinks are appended to the file `written`."""
    with written.open("a", encoding="utf-8", buffering=1) as file:

        def into(name: str) -> Callable[[int, Any], None]:
            return lambda txid, rows: print(json.dumps([name, txid, sorted(rows)]), file=file)

        sinks = {name: into(name) for name in ("windows", "events")}
        given: dict[str, Any] = {"sources": {"events": queue(folder)}, "state_path": folder / "records.db"}
        coordination = CoordinatorConfig(3, interval_ms=0)
        with TridentCluster(topology(folder), sinks=sinks, coordination=coordination, **given) as cluster:
            cluster.run()


def assert_each_counted_once(folder: Path, written: Path) -> None:
    """Check states, sinks and queue against the input. A sink may be called twice with a txid, with the same rows."""
    with TridentCluster(topology(folder), sources={"events": queue(folder)}) as cluster:
        counts, once, kept, totals, queued = (cluster.values(id) for id in cluster.states)
    assert counts == {(word,): times for word, times in Counter(word for word, _ in WORDS).items()}
    assert once == {(n,): 1 for _, n in WORDS}
    assert kept == {(word,): sum(n for other, n in WORDS if other == word) for word, _ in WORDS}
    assert queued == {(k,): times for k, times in Counter(k for k, _ in EVENTS).items()}
    rows: dict[tuple[str, int], Any] = {}
    for line in written.read_text(encoding="utf-8").splitlines():
        name, txid, given = json.loads(line)
        assert rows.setdefault((name, txid), given) == given, f"sink {name} got other rows for txid {txid}"
    of_sink = {sink: [tuple(row) for (name, _), of in rows.items() if name == sink for row in of] for sink, _ in rows}
    assert Counter(of_sink["events"]) == Counter(EVENTS)
    windows = [total for (total,) in of_sink["windows"]]
    assert (len(windows), sum(windows)) == (-(-len(WORDS) // 25), sum(n for _, n in WORDS))
    assert totals == sum(windows)
    assert len(queue(folder)) == 0
