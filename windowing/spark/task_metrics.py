"""Metrics of tasks: sent from the workers to the driver, and summed there for the run.

    worker   a turn, or a partition of a spout --TaskMetrics of its components--> MetricsChannel.send
    Spark    an accumulator: the numbers of a Spark task are sent with its result, if it succeeds
    driver   TaskTotals.take --> totals by component and task --> RunMetrics of the query

The numbers are sent apart from the rows, because they contain times, and rows must be a function of state and input. They cost no
job and no expression of a plan, only a small dictionary per Spark task.

Laws
- The numbers of a task for a batch replace its earlier numbers for the same batch, so a batch or stage that is evaluated again
  counts once. They are keyed by (batch, upstream), and a batch is added to the totals when the next one begins.
- No error here ends a query; numbers that cannot be read are left out.

Source: Storm's executors send their statistics with heartbeats; here they go with the results of tasks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pyspark.accumulators import Accumulator, AccumulatorParam, _accumulatorRegistry
from pyspark.sql import SparkSession

from windowing.execution.metrics import RunMetrics, TaskMetrics
from windowing.execution.plan import ExecutionPlan, StageTask
from windowing.spark.exchange import ExchangeRow

_log = logging.getLogger("windowing.spark")
_LOGGED = 5
"""The number of reported errors of a batch that the driver logs."""


class _Said(NamedTuple):
    """The numbers of one upstream for a batch. now_ms: the clock of the batch."""

    now_ms: int
    found: tuple[TaskMetrics, ...]


_Update = dict[tuple[int, int], _Said]


class MetricsChannel:
    """The channel for the numbers of one query; made by the driver and pickled into its functions. totals: their destination."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.totals: TaskTotals | None = TaskTotals(name)
        self._accumulator: Accumulator[Any] = spark.sparkContext.accumulator(self.totals, _Totalled())
        self.totals.release = partial(_release, self._accumulator.aid)

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_worker, (self._accumulator,)

    def send(self, batch: int, upstream: int, now_ms: int, found: Iterable[TaskMetrics]) -> None:
        """Send the numbers of an upstream task's components for a batch; called in a worker."""
        self._accumulator.add({(batch, upstream): _Said(now_ms, tuple(found))})


def _in_worker(accumulator: Accumulator[Any]) -> MetricsChannel:
    channel = MetricsChannel.__new__(MetricsChannel)
    channel.totals, channel._accumulator = None, accumulator
    return channel


class _Released:
    """Stands for the accumulator of an ended query in PySpark's registry, which is never cleared; a task that is still running may
    send numbers to it, and on Spark 4.1 an unknown number of an accumulator breaks the accumulators of all queries.
    """

    def __iadd__(self, update: Any) -> _Released:
        return self


_RELEASED: Any = _Released()


def _release(number: int) -> None:
    if number in _accumulatorRegistry:
        _accumulatorRegistry[number] = _RELEASED


class _Totalled(AccumulatorParam[Any]):
    """The accumulator: workers fill a dictionary, the driver adds it to the totals."""

    def zero(self, value: Any) -> _Update:
        return {}

    def addInPlace(self, value1: Any, value2: Any) -> Any:  # noqa: N802 - Spark's name
        if isinstance(value1, TaskTotals):
            value1.take(value2)
        else:
            value1.update(value2)
        return value1


class TaskTotals:
    """The numbers of all tasks of a query since its start. Thread-safe.

    >>> totals = TaskTotals("words")
    >>> totals.take({(0, 7): (1000, (TaskMetrics("count", 0, executed=2),))})
    >>> totals.take({(0, 7): (1000, (TaskMetrics("count", 0, executed=2),))})  # evaluated again
    >>> totals.take({(1, 7): (2000, (TaskMetrics("count", 0, executed=3),))})
    >>> totals.now(2000).components()["count"].executed
    5
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, int | None], TaskMetrics] = {}
        self._last: dict[int, _Said] = {}
        self._batch, self._clock_ms = -1, 0
        self._logged = 0
        self.release: Callable[[], None] = lambda: None
        """Called when the query has ended: PySpark drops its reference to these totals, and later numbers are ignored."""

    def take(self, update: Mapping[tuple[int, int], Any]) -> None:
        """Record the numbers of workers; those of a batch that is already in the totals are ignored."""
        with self._lock:
            for (batch, upstream), said in sorted(update.items(), key=lambda each: each[0]):
                if batch < self._batch:
                    continue
                if batch > self._batch:
                    self._close()
                    self._batch, self._logged = batch, 0
                self._last[upstream] = _Said(*said)
                self._log_errors(batch, _Said(*said).found)

    def now(self, at_ms: int, batch: int | None = None, phases: Mapping[str, float] | None = None) -> RunMetrics:
        """Return the totals with those of the last batch, its number and phases. Cost: O(tasks)."""
        with self._lock:
            found = {key: _copy(total) for key, total in self._totals.items()}
            self._add(found)
        tasks = tuple(found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or 0)))
        return RunMetrics(name=self.name, at_ms=at_ms, tasks=tasks, batch=batch, phases=dict(phases or {}))

    def _close(self) -> None:
        self._add(self._totals)
        if self._last:
            self._clock_ms = max(said.now_ms for said in self._last.values())
        self._last = {}

    def _add(self, totals: dict[tuple[str, int | None], TaskMetrics]) -> None:
        for said in self._last.values():
            for each in said.found:
                total = totals.setdefault((each.component, each.task), TaskMetrics(each.component, each.task))
                # What was pending before the batch was held from the last one to this one; in a batch, while its turn worked.
                held_ms = (total.pending or 0) * max(0, said.now_ms - self._clock_ms if self._clock_ms else 0)
                total.add(each)
                total.process_ms += held_ms + each.execute_ms

    def _log_errors(self, batch: int, found: Iterable[TaskMetrics]) -> None:
        for each in found:
            for text in each.errors:
                self._logged += 1
                if self._logged <= _LOGGED:
                    _log.warning(
                        "%s, batch %d: component %r, task %s, reports %s",
                        self.name,
                        batch,
                        each.component,
                        each.task,
                        text,
                    )


def _copy(found: TaskMetrics) -> TaskMetrics:
    copied = TaskMetrics(found.component, found.task)
    copied.add(found)
    return copied


def group_metrics(
    plan: ExecutionPlan,
    task: StageTask,
    rows: Iterable[ExchangeRow],
    output: Iterable[ExchangeRow],
    execute_ms: float,
    failed: bool = False,
    windows: Iterable[TaskMetrics] = (),
) -> TaskMetrics:
    """Return the metrics of a task of a Trident group from its input and output rows; emitted rows are counted by their target
    group or sink. failed: whether its part of the batch failed. windows: the metrics of its windows, none if it has none. The name
    is that of the stage; a group that is cut in two has two stages.
    """
    found = TaskMetrics(task.stage.id, task.task, execute_ms=execute_ms)
    found.executed = sum(row.value for row in rows if row.kind == "rows")
    for row in output:
        if row.kind in ("rows", "out"):
            stream = plan.exchanges[int(row.stream)].target if row.kind == "rows" else row.stream
            found.emitted[stream] = found.emitted.get(stream, 0) + row.value
        elif row.kind == "reported":
            found.reported += row.value
    if failed:
        found.failed = found.executed
    elif not task.stage.keeps_window:
        found.acked = found.executed
    for each in windows:
        found.add(each)
    return found
