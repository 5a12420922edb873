"""`windowing run`: a topology in one process, with a screen of its components; plain lines where the output is no terminal.

What is counted is counted at the doors of the tasks (`watched`): what they handle and how long that takes, what they ack and fail,
and what leaves their outboxes. The screen is drawn from the counts four times a second, beside the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from windowing.cli.loading import safe
from windowing.local.cluster import LocalCluster
from windowing.local.router import ClusterResult
from windowing.local.spouts import SpoutTask
from windowing.local.tasks import AckerTask
from windowing.topology.plan import Topology
from windowing.windows.measures import Duration

__all__ = [
    "run_on_screen",
]


@dataclass(slots=True)
class _ComponentCounts:
    """What a component has done so far."""

    executed: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    busy_s: float = 0.0
    tasks: list[Any] = field(default_factory=list)

    @property
    def latency_ms(self) -> float | None:
        """How long a tuple takes in the component, on average."""
        return None if not self.executed else 1000 * self.busy_s / self.executed

    @property
    def pending(self) -> int:
        """Messages in flight of a spout, tuples in open windows, and what waits in the inboxes."""
        found = sum(len(task.inbox) for task in self.tasks)
        for task in self.tasks:
            if isinstance(task, SpoutTask):
                found += len(task.pending)
            elif hasattr(task, "executor"):
                found += task.executor.counts().get("pending", 0)
        return found

    @property
    def watermark_ms(self) -> int | None:
        """The smallest watermark of its windows."""
        known = [task.executor.watermark for task in self.tasks if hasattr(task, "executor")]
        return None if not known or None in known else min(known)


def watched(cluster: LocalCluster) -> dict[str, _ComponentCounts]:
    """Count what the tasks of a cluster do from now on, by component."""
    found: dict[str, _ComponentCounts] = {}
    for task in cluster.tasks:
        if isinstance(task, AckerTask) or task.context.component.startswith("__"):
            continue
        counts = found.setdefault(task.context.component, _ComponentCounts())
        counts.tasks.append(task)
        if hasattr(task, "arrive"):
            _time(task, "arrive", counts, len)
        elif not isinstance(task, SpoutTask):
            _time(task, "handle", counts, lambda _: 1)
    return found


def _time(task: Any, name: str, counts: _ComponentCounts, size: Callable[[Any], int]) -> None:
    inner = getattr(task, name)

    def timed(given: Any) -> Any:
        began, tuples = time.perf_counter(), size(given)
        try:
            return inner(given)
        finally:
            counts.busy_s += time.perf_counter() - began
            counts.executed += tuples

    setattr(task, name, timed)


class _CountedRouter:
    """What a task calls its router, with acks and fails counted on the way."""

    def __init__(self, router: Any, counts: _ComponentCounts) -> None:
        self.__dict__["_inner"], self.__dict__["_counts"] = router, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    def ack(self, anchors: Any, component: str) -> None:
        self._counts.acked += 1
        self._inner.ack(anchors, component)

    def ack_all(self, acks: Any, component: str) -> None:
        self._counts.acked += len(acks)
        self._inner.ack_all(acks, component)

    def fail(self, anchors: Any, component: str) -> None:
        self._counts.failed += 1
        self._inner.fail(anchors, component)


class _CountedOutbox:
    """What a task sends through, with what leaves counted on the way."""

    def __init__(self, outbox: Any, counts: _ComponentCounts) -> None:
        self._inner, self._counts = outbox, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, *arguments: Any, **options: Any) -> Any:
        self._counts.emitted += 1
        return self._inner.send(*arguments, **options)

    def sender(self, stream: str) -> Any:
        return lambda *arguments: self.send(stream, *arguments)

    def root_sender(self, stream: str) -> Any:
        return lambda *arguments: self.send_root(stream, *arguments)

    def send_root(self, *arguments: Any, **options: Any) -> Any:
        self._counts.emitted += 1
        return self._inner.send_root(*arguments, **options)


def count_doors(counts: Mapping[str, _ComponentCounts]) -> None:
    """Put counters where the tasks send, ack and fail."""
    for component in counts.values():
        for task in component.tasks:
            for name in ("outbox", "_outbox"):
                if hasattr(task, name):
                    setattr(task, name, _CountedOutbox(getattr(task, name), component))
            if not isinstance(task, SpoutTask):
                task.router = _CountedRouter(task.router, component)


def run_on_screen(topology: Topology, batches: Any, span: Duration | None, console: Console) -> ClusterResult:
    """Run a topology and show it meanwhile; return the result. Raises BoltError."""
    with LocalCluster(topology, batches=batches) as cluster:
        counts = watched(cluster)
        count_doors(counts)

        def work() -> ClusterResult:
            return cluster.run() if span is None else cluster.run_for(span)

        if not console.is_terminal:
            result = work()
            console.print(_screen(topology, cluster, counts))
            return result
        with Live(get_renderable=lambda: _screen(topology, cluster, counts), console=console, refresh_per_second=4):
            return work()


def _screen(topology: Topology, cluster: LocalCluster, counts: Mapping[str, _ComponentCounts]) -> Table:
    result = cluster.result
    table = Table(title=Text(f"topology {safe(topology.name)}"), caption=Text(_summary(cluster, result)))
    for heading in (
        "component",
        "tasks",
        "emitted",
        "executed",
        "acked",
        "failed",
        "late",
        "pending",
        "latency",
        "watermark",
    ):
        table.add_column(heading, justify="left" if heading == "component" else "right")
    for name in topology.order:
        done = counts[name]
        spout = topology.component(name).is_spout
        late = sum(count for (component, _), count in list(result.late.items()) if component == name)
        latency = done.latency_ms
        cells = (
            name,
            len(done.tasks),
            done.emitted,
            "" if spout else done.executed,
            result.acked if spout and len(topology.spouts) == 1 else "" if spout else done.acked,
            result.failures if spout and len(topology.spouts) == 1 else "" if spout else done.failed,
            late or "",
            done.pending,
            "" if latency is None else f"{latency:.3f} ms",
            "" if done.watermark_ms is None else done.watermark_ms,
        )
        table.add_row(*(Text(safe(str(cell))) for cell in cells))
    return table


def _summary(cluster: LocalCluster, result: ClusterResult) -> str:
    parts = [f"messages acked {result.acked}", f"failed attempts {result.failures}", f"in flight {cluster.pending}"]
    parts += [f"dead letters {len(result.dead_letters)}"] if result.dead_letters else []
    parts += [f"errors reported {len(result.errors)}"] if result.errors else []
    return ", ".join(parts)
