"""A process with a whole topology: it is killed at named points, or anywhere, and restarted until it has finished.

    three sources, queues   --> count    a state for each key
    that delete a message   --> recent   a stateful window, refilled by message ids       --> sink, a state of
    when it is acked        --> disk     a window bigger than memory                      --> all windows

Nothing is late (the lag covers the disorder), so the windows depend on the tuples alone, not on the time of turns. Each bolt
has a source of its own: otherwise an early ack would be hidden by the other acks of its tree.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from windowing.errors import DrainedCheckpointError
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.stores.pages import SqlitePages
from windowing.stores.states import MemoryStateProvider, SqliteStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import Spout
from windowing.topology.decorators import bolt, sliding, spout
from windowing.topology.plan import Topology
from windowing.topology.state import StateProvider
from windowing.windows.measures import count, millis, seconds

EVENTS = 1_800
SOURCES = ("count", "recent", "disk")
TASKS = {"count": 2, "recent": 2, "sink": 1}
POINTS = (
    "opened",
    "preparing",
    "prepared one",
    "prepared",
    "recorded",
    "committed one",
    "committed",
    "done",
    "writing a page",
    "written a page",
    "flushing pages",
    "window",
    "acked",
)

Row = tuple[int, int, int, float]


def rows() -> list[Row]:
    """The source: (id, at, key, value), out of order by up to 200 ms, no two at one time; random doubles."""
    chance = random.Random(11)
    return [
        (n, 20 * n - 20 * chance.randint(0, 9) - n % 20, chance.randint(0, 3), chance.random()) for n in range(EVENTS)
    ]


class Failpoints:
    """Kills the process when a point is reached for the n-th time: "prepared:3"."""

    def __init__(self, wanted: str = "") -> None:
        self.point, _, hit = wanted.partition(":")
        self.left = int(hit or 1)

    def at(self, point: str) -> None:
        if point and point == self.point:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, thing: Any, method: str, before: str, after: str = "") -> None:
        """Put failpoints before and after a method of an object."""
        call = getattr(thing, method)

        def watched(*arguments: Any) -> Any:
            self.at(before)
            returned = call(*arguments)
            self.at(after)
            return returned

        setattr(thing, method, watched)


class WatchedStates(SqliteStateProvider):
    """The states of the job, with a failpoint at each step of a checkpoint."""

    def __init__(self, path: Path, failpoints: Failpoints) -> None:
        super().__init__(path, "killed")
        self.failpoints = failpoints

    def state(self, component: str, task: int, name: str = "state") -> Any:
        fresh = f"{component}/{task}/{name}" not in self._states
        state = super().state(component, task, name)
        if fresh:
            self.failpoints.around(state, "prepare_commit", "preparing", "prepared one")
            self.failpoints.around(state, "commit", "recorded", "committed one")
        return state

    def pages(self, component: str, task: int) -> SqlitePages:
        fresh = (component, task) not in self._pages
        pages = super().pages(component, task)
        if fresh:
            self.failpoints.around(pages, "write", "writing a page", "written a page")
            self.failpoints.around(pages, "flush", "flushing pages")
        return pages

    def save_record(self, name: str, data: Any) -> None:
        self.failpoints.at({"committing": "prepared", "committed": "committed"}.get(data.get("state"), ""))
        super().save_record(name, data)
        self.failpoints.at("done" if data.get("state") == "committed" else "")


def topology(sources: dict[str, type[Spout]], at: Callable[[str], None] = lambda point: None) -> Topology:
    """The topology, over sources that emit `rows()`, or what is left of them."""

    @bolt()
    class Counting:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> None:
            last, many, total = self.state.get(tuple["key"], (-1, 0, 0.0))
            if tuple["id"] > last:  # the state must be exact although tuples are replayed, so it remembers the last id
                self.state.put(tuple["key"], (tuple["id"], many + 1, total + tuple["value"]))

    line = "line string"
    event_time: dict[str, Any] = {
        "timestamp": "at",
        "lag": millis(300),
        "watermark_interval": millis(40),
        "message_id": "id",
    }

    def described(window: Any) -> str:
        at("window")
        ids = [row["id"] for row in window.get()]
        parts = (window.get(), window.get_new(), window.get_expired())
        sums = [sum(row["value"] for row in part) for part in parts]
        return f"{window.start_timestamp} {window.end_timestamp} {ids[0]} {ids[-1]} {len(ids)} {sums}"

    @sliding(count(40), count(10), output=line, **event_time)
    class Recent:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, window: Any) -> str:
            self.state.put("windows", self.state.get("windows", 0) + 1)
            return f"recent {self.state.get('windows')} {described(window)}"

    @sliding(seconds(24), seconds(4), output=line, max_events_in_memory=1_000, **event_time)
    def disk(window: Any) -> str:
        return f"disk {described(window)}"

    @bolt()
    class Sink:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, tuple: Any) -> None:
            key = f"{tuple.source_component} {tuple.source_task} {tuple['line']}"
            self.state.put(key, self.state.get(key, 0) + 1)

    builder = TopologyBuilder("killed").configure(
        state_checkpoint_interval=millis(100), message_timeout=seconds(600), max_spout_pending=250
    )
    for name, source in sources.items():
        builder.set_spout(f"to_{name}", source)
    builder.set_bolt("count", Counting, TASKS["count"]).fields_grouping("to_count", "key")
    builder.set_bolt("recent", Recent, TASKS["recent"]).fields_grouping("to_recent", "key")
    builder.set_bolt("disk", disk).global_grouping("to_disk")
    builder.set_bolt("sink", Sink).global_grouping("recent").global_grouping("disk")
    return builder.build()


def queues(done: Collection[str], acked: Callable[[str], None]) -> dict[str, type[Spout]]:
    """The sources of the messages that are not acked yet; `acked` is called with each acked one: "disk-7"."""
    return {name: queue(name, [row for row in rows() if f"{name}-{row[0]}" not in done], acked) for name in SOURCES}


def queue(name: str, left: list[Row], acked: Callable[[str], None]) -> type[Spout]:

    @spout(output="id long, at long, key int, value double")
    class Queue(Spout):
        def open(self, context: Any, collector: Any) -> None:
            super().open(context, collector)
            self.left = iter(left)

        def next_tuple(self) -> None:
            row = next(self.left, None)
            if row is not None:
                self.collector.emit(row, message_id=row[0])

        def ack(self, message_id: int) -> None:
            acked(f"{name}-{message_id}")

    return Queue


def dump(states: StateProvider) -> dict[str, dict[Any, Any]]:
    """Return the states of all bolts, the two tasks of each component together."""
    return {
        name: {(task, key): value for task in range(tasks) for key, value in states.state(name, task).items()}
        for name, tasks in TASKS.items()
    }


def undisturbed() -> dict[str, dict[Any, Any]]:
    """Return the states after a run without a kill."""
    states, acked = MemoryStateProvider(), list[str]()
    run_topology(topology(queues((), acked.append)), clock=VirtualClock(), states=states)
    assert sorted(acked) == everything()
    return dump(states)


def everything() -> list[str]:
    """Return all messages, each of which must be acked once."""
    return sorted(f"{name}-{id}" for name in SOURCES for id in range(EVENTS))


def run(folder: Path, failpoint: str) -> None:
    """Run the job once, over the messages that are not in the log of acks."""
    failpoints = Failpoints(failpoint)
    log = folder / "acked"
    done = set(log.read_text().split()) if log.exists() else set()
    acks = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def acked(message: str) -> None:
        os.write(acks, f"{message}\n".encode())
        failpoints.at("acked")

    states = WatchedStates(folder / "states", failpoints)
    failpoints.at("opened")
    plan = topology(queues(done, acked), failpoints.at)
    with LocalCluster(plan, states=states, seed=random.Random().randrange(10**6)) as cluster:
        result = cluster.run()
    # Killed after its last checkpoint, it finds its windows drained, and only repeats acks.
    wrong = [error for error in result.errors if not isinstance(error.error, DrainedCheckpointError)]
    assert (wrong, result.dead_letters, result.late) == ([], [], {})
