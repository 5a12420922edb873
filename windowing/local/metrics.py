"""ClusterMetrics: counts what the tasks of a cluster in one process do, for the screen, the page and the exporters.

    with LocalCluster(topology) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        metrics.now()                 RunMetrics (execution/metrics.py), also from another thread while it runs

Counting begins when a ClusterMetrics is made: it wraps methods of the tasks with counters. A cluster without one counts nothing of
this. Most counters run once per step, for all messages of an inbox; acks by a bolt itself and emits are counted one by one.

Law: a watched cluster runs as an unwatched one: the counters change no argument, no result and no order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from windowing.acking.acker import AckedRoots
from windowing.errors import ConfigError, describe_error, quote
from windowing.execution.metrics import LAST_KEPT, FiredWindow, RunMetrics, SlowestInput, TaskMetrics
from windowing.local.clock import whole_ms
from windowing.local.loop import LoopedCluster
from windowing.local.router import Delivery
from windowing.local.spouts import SpoutTask
from windowing.local.tasks import BoltTask, ComponentTask, Task
from windowing.local.trident_spouts import EmitterTask
from windowing.local.trident_tasks import GroupTask, Piece
from windowing.local.windowed import WindowedBoltTask
from windowing.topology.window_task import WindowEmitted
from windowing.trident.subtopology import GroupOutput


class ClusterMetrics:
    """Counts the work of a LocalCluster or a TridentCluster from now on. Cost: a few calls per step of a task, one per emit."""

    def __init__(self, cluster: LoopedCluster) -> None:
        if not isinstance(cluster, LoopedCluster):
            raise ConfigError(
                f"ClusterMetrics takes a LocalCluster or a TridentCluster, got {quote(cluster)}; make one"
            )
        self.cluster = cluster
        self.name = cluster._name
        # Other tasks handle no user tuples: ackers, checkpoints, Trident's master and coordinators.
        handling = (task for task in cluster.tasks if isinstance(task, ComponentTask | GroupTask | EmitterTask))
        watches = (_watch_of(task) for task in handling)
        self._watches = {(watch.found.component, watch.found.task): watch for watch in watches}
        self._lock = threading.Lock()
        self._errors, self._dead_letters = _Additions(), _Additions()

    def _repr_html_(self) -> str:
        return self.now()._repr_html_()

    def now(self) -> RunMetrics:
        """Return the numbers so far. Thread-safe. Cost: O(tasks), and the errors and dead letters since the last call."""
        result: Any = self.cluster.result  # type: ignore[attr-defined]  # both clusters have one
        with self._lock:
            for error in self._errors.of(result.errors):
                watch = self._watches.get((error.component, error.task))
                if watch is not None:
                    watch.found.reported += 1
                    watch.found.errors = (*watch.found.errors, describe_error(error.error))[-LAST_KEPT:]
            for letter in self._dead_letters.of(result.dead_letters):
                component = str(getattr(letter, "component", None) or getattr(letter, "stream", ""))
                watch = self._watches.get((component, letter.task or 0))
                if watch is not None:
                    watch.found.dead_letters += 1
            tasks = tuple(watch.metrics() for watch in self._watches.values())
        batch = getattr(result, "batches", None)
        return RunMetrics(name=self.name, at_ms=whole_ms(self.cluster.clock.now_ms()), tasks=tasks, batch=batch or None)


_KNOWN = 1_000
"""So many items may be removed from the end of a list before those before them would count again."""


class _Additions:
    """What was added to a list since the last call: all behind the items that were last then. The user may remove items."""

    def __init__(self) -> None:
        self._last: list[Any] = []

    def of(self, items: Sequence[Any]) -> Sequence[Any]:
        known = set(map(id, self._last))
        added = list(takewhile(lambda item: id(item) not in known, reversed(items)))[::-1]
        self._last = [*self._last, *added][-_KNOWN:]
        return added


def _watch_of(task: Task) -> _TaskWatch:
    kinds: tuple[tuple[type[Task], type[_TaskWatch]], ...] = (
        (SpoutTask, _SpoutWatch),
        (WindowedBoltTask, _WindowWatch),
        (GroupTask, _GroupWatch),
        (EmitterTask, _EmitterWatch),
        (Task, _BoltWatch),
    )
    return next(watch for kind, watch in kinds if isinstance(task, kind))(task)


class _TaskWatch:
    """The counters around one task. `found`: its numbers so far. `held`: the number of its tuples that wait for their acks."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.found = TaskMetrics(task.context.component, task.context.task_index)
        self._depth, self._since_ms, self._held_ms = 0, task.router.now_ms, 0
        if isinstance(task, ComponentTask):
            for stream, routes in task.outbox.items():
                routes.send = self._counted_send(stream, routes.send)

    @property
    def held(self) -> int:
        return 0

    def metrics(self) -> TaskMetrics:
        """Return a copy of the task's numbers. Thread-safe."""
        found = self.found.copy()
        found.queued = len(self.task.inbox)
        found.process_ms = self._held_ms + found.execute_ms
        if found.watermark_ms is not None and found.slowest is not None:  # windows over the clock have no slowest input
            # By the clock, because the lag grows even while the loop does nothing.
            found.watermark_lag_ms = whole_ms(self.task.router.clock.now_ms()) - found.watermark_ms
        return found

    def timed(self, name: str, before: Callable[..., None] | None = None) -> None:
        """Measure the time that a method takes; the time of a nested measured method counts for the outer one."""
        inner, found = getattr(self.task, name), self.found

        def call(*arguments: Any) -> Any:
            self._hold()
            if before is not None:
                before(*arguments)
            if self._depth:
                return inner(*arguments)
            self._depth, began = 1, time.perf_counter()
            try:
                return inner(*arguments)
            finally:
                self._depth = 0
                found.execute_ms += 1000 * (time.perf_counter() - began)
                self._after()

        setattr(self.task, name, call)

    def _counted_send(self, stream: str, send: Callable[..., list[int]]) -> Callable[..., list[int]]:
        emitted = self.found.emitted

        def counted(*arguments: Any, **options: Any) -> list[int]:
            emitted[stream] = emitted.get(stream, 0) + 1
            return send(*arguments, **options)

        return counted

    def counted(self, name: str, count: Callable[..., None]) -> None:
        inner = getattr(self.task, name)

        def call(*arguments: Any) -> Any:
            count(*arguments)
            return inner(*arguments)

        setattr(self.task, name, call)

    def _after(self) -> None:
        """Read the task's numbers after it has worked, on its own thread."""

    def _hold(self) -> None:
        """Add the time for which tuples were held to the integral over time."""
        now_ms = self.task.router.now_ms
        self._held_ms += max(0, self.held) * (now_ms - self._since_ms)
        self._since_ms = now_ms

    def _take_windows(self, before: Mapping[str, int], now: Mapping[str, int]) -> None:
        """Take over the counts of windows since `before`. What fails is undone and repeated: a counter does not fall in between."""
        found = self.found
        found.windows_fired = max(found.windows_fired, now["fired"] - before["fired"])
        found.expired = max(found.expired, now["expired"] - before["expired"])
        found.skipped = max(found.skipped, now["skipped"] - before["skipped"])
        found.pending = now["pending"]

    def _take_watermark(self, watermark_ms: int | None, slowest: tuple[Any, ...] | None) -> None:
        self.found.watermark_ms = watermark_ms
        self.found.slowest = None if slowest is None else SlowestInput(*slowest)

    def _arrived(self, limit: int | None) -> None:
        count = len(self.task.inbox)
        self.found.executed += count if limit is None else min(count, limit)


class _BoltWatch(_TaskWatch):
    """The counters of a bolt without windows; a basic bolt has acked every tuple that it has not failed."""

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self._acks_by_itself = isinstance(task, BoltTask) and task.acks_by_itself
        self.timed("step", self._arrived)
        self.counted("fail", self._failed)
        self.counted("lose", self._lost)
        if self._acks_by_itself:
            self.counted("ack", self._acked)

    @property
    def held(self) -> int:
        return self.found.executed - self.found.acked - self.found.failed if self._acks_by_itself else 0

    def _after(self) -> None:
        if not self._acks_by_itself:
            self.found.acked = max(self.found.acked, self.found.executed - self.found.failed)

    def _acked(self, _: Any) -> None:
        self.found.acked += 1

    def _failed(self, message: Delivery, _reason: str = "") -> None:
        self.found.failed += message._anchors is not None

    def _lost(self, message: Delivery, _error: Any) -> None:
        self.found.failed += message._anchors is None and message is not self.task._lost


class _WindowWatch(_TaskWatch):
    """The counters of a windowed bolt: those of its executor, read after each step and turn."""

    def __init__(self, task: WindowedBoltTask) -> None:
        super().__init__(task)
        self._before, self._duplicates_before = dict(task.executor.counts()), task.duplicates
        self._late_before = dict(task.executor.side)
        self.timed("step", self._arrived)
        self.timed("turn")
        self.timed("drain")
        self.counted("perform_one", self._seen)
        self.counted("_late", self._late)
        self.counted("fail", self._failed)

    @property
    def held(self) -> int:
        return self.found.pending or 0

    def _after(self) -> None:
        found, side = self.found, self.task.executor.side
        late = {reason: count - self._late_before.get(reason, 0) for reason, count in side.items()}
        for reason, count in late.items():
            name = str(getattr(reason, "value", reason))
            if count > found.late.get(name, 0):
                found.late[name] = count
        self._take_windows(self._before, self.task.executor.counts())
        found.duplicates = max(found.duplicates, self.task.duplicates - self._duplicates_before)
        # Tuples of a failed window are failed at once, and expire later.
        found.acked = max(found.acked, found.expired + sum(late.values()) - found.failed)
        self._take_watermark(self.task.executor.watermark, self.task.executor.generator.slowest)

    def _seen(self, effect: Any) -> None:
        if isinstance(effect, WindowEmitted):
            emitted = "; ".join(quote(row, 60) for _, row in effect.emissions[:3])
            fired = FiredWindow(effect.window.end_timestamp, emitted)
            self.found.windows = (*self.found.windows, fired)[-LAST_KEPT:]

    def _late(self, rows: Sequence[Any], reason: str) -> None:
        shown = ((reason, quote(tuple(row))) for row in rows[-LAST_KEPT:])
        self.found.late_rows = (*self.found.late_rows, *shown)[-LAST_KEPT:]

    def _failed(self, rows: Sequence[Any], _reason: str) -> None:
        self.found.failed += sum(row._anchors is not None and not row._anchors.settled for row in rows)


class _SpoutWatch(_TaskWatch):
    """The counters of a spout: acked and failed messages; process latency is the time from an emit to the end of the tree."""

    def __init__(self, task: SpoutTask) -> None:
        super().__init__(task)
        self.timed("step")
        self.counted("handle", self._ended)
        self.counted("_ack_at_once", self._at_once)

    @property
    def held(self) -> int:
        return len(self.task.pending)

    def metrics(self) -> TaskMetrics:
        found = super().metrics()
        found.pending = len(self.task.pending)
        found.process_ms = self._held_ms
        return found

    def _ended(self, message: Any) -> None:
        if isinstance(message, AckedRoots):
            self.found.acked += len(message.roots)
        else:
            self.found.failed += 1

    def _at_once(self) -> None:
        self.found.acked += len(self.task._at_once)


class _GroupWatch(_TaskWatch):
    """The counters of a group of a Trident topology: rows over its exchanges, acked with their attempt, and its windows."""

    def __init__(self, task: GroupTask) -> None:
        super().__init__(task)
        self._before, _ = task.subtopology.window_counts()
        self.timed("handle", self._came)
        self.counted("_deliver", self._delivered)
        self._finish, self.task._finish = task._finish, self._finished
        self._is_delivered = False

    def _delivered(self, batch: Any, sending: Any, emitted: GroupOutput, late: dict[str, int]) -> None:
        self._is_delivered = True
        exchanges = ((self.task.plan.exchanges[exchange].target, rows) for exchange, rows in emitted.exchanges.items())
        for where, rows in (*exchanges, *emitted.sinks.items()):
            self.found.emitted[where] = self.found.emitted.get(where, 0) + len(rows)
        for reason, count in late.items():
            self.found.late[reason] = self.found.late.get(reason, 0) + count

    def _came(self, message: Any) -> None:
        if isinstance(message, Piece):
            self.found.executed += len(message.rows or ())

    def _finished(self, batch: Any) -> None:
        """Count the rows of a batch as acked if it is delivered, and as failed if its attempt fails here."""
        rows = sum(len(piece.rows or ()) for piece in self.task._live[batch][2])
        self._is_delivered = False
        self._finish(batch)
        if self._is_delivered:
            self.found.acked += rows
        else:
            self.found.failed += rows

    def _after(self) -> None:
        slowest = self.task.subtopology.slowest_window()
        if slowest is not None:
            counts, _ = self.task.subtopology.window_counts()
            self._take_windows(self._before, counts)
            self._take_watermark(slowest.watermark, slowest.slowest)


class _EmitterWatch(_TaskWatch):
    """The counters of a Trident spout: the rows that it emits, including those of failed attempts."""

    def __init__(self, task: EmitterTask) -> None:
        super().__init__(task)
        self.timed("handle")
        self.counted("_deliver", self._delivered)

    def _delivered(self, attempt: Any, rows: Sequence[Any]) -> None:
        self.found.emitted["default"] = self.found.emitted.get("default", 0) + len(rows)
