"""Metrics: the counters and gauges of a running query, by component and task; the same names in one process and on Spark.

    TaskMetrics --add--> the same task, later        counters are added, gauges take the last value
    TaskMetrics --merged--> its component            pending is added, the watermark is the smallest
    RunMetrics --samples--> exporters, page, tables  a Sample for each number and its labels

`METRICS` is the table from which the exporters, the page, the dashboard and docs/operate/monitor.md take their names. A number that
Storm's UI shows has Storm's name.

Laws
- A counter never falls during a run. An unknown number is None and gives no sample; 0 was counted.
- acked counts as Storm's acker does: a tuple of a basic bolt when `execute` has returned, one of a window when it expires from its
  last window, a late one at once. So executed - acked - failed is what a task still holds.
- The mean process latency is computed by Little's law: the integral of the number of held tuples over time, divided by the acked
  ones. Tuples carry no times.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from windowing.errors import quote
from windowing.topology.pictures import html_table

LAST_KEPT = 8
"""So many of the last windows, late tuples and reported errors of a task are kept as text."""
METRICS_FORMAT = 1
"""The format of `RunMetrics.plain`. It rises with any change of its fields: another one is not read."""
_LOG_EVERY_S = 60.0
PREFIX = "windowing_"
"""The prefix of every exported name."""


class LateLog:
    """Logs that late tuples go nowhere: the first ones, then at most once a minute, and at the end of a run, with their number.

    whose: the topology or bolt. where: what has them by component; keep: how to keep them. The driver passes the time.
    """

    def __init__(self, log: Callable[..., object], whose: str, where: str, keep: str) -> None:
        self._log, self._parts = log, (whose, where, keep)
        self.unlogged, self._logged_s = 0, -_LOG_EVERY_S

    def add(self, count: int, now_s: float) -> None:
        self.unlogged += count
        if self.unlogged and now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            self.end()

    def end(self) -> None:
        """Log those that are not logged yet."""
        whose, where, keep = self._parts
        if self.unlogged:
            said = "%r: %d late or unusable tuples went nowhere (%s has them by component); %s"
            self._log(said, whose, self.unlogged, where, keep)
        self.unlogged = 0


class MetricKind(StrEnum):
    """How a metric changes: a counter only rises, a gauge is a current value."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """A row of the table. storm: its name in Storm's UI, empty if there is none. together: of a gauge of tasks, how the values of a
    component's tasks become one.
    """

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    storm: str = ""
    together: Callable[[list[Any]], Any] = sum


_TASK = ("topology", "component", "task")
_PLACE = ("topology", "source", "partition")
_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE

METRICS: tuple[Metric, ...] = (
    Metric("emitted", _COUNTER, "tuples", (*_TASK, "stream"), "emitted on a stream", "emitted"),
    Metric("executed", _COUNTER, "tuples", _TASK, "handed to the task, late ones included", "executed"),
    Metric("acked", _COUNTER, "tuples", _TASK, "done; spout: messages whose whole tree was acked", "acked"),
    Metric("failed", _COUNTER, "tuples", _TASK, "failed; spout: failed attempts at messages", "failed"),
    Metric(
        "late",
        _COUNTER,
        "tuples",
        (*_TASK, "reason"),
        "sent to the late stream, by reason: late, future, invalid, closed",
    ),
    Metric("windows_fired", _COUNTER, "windows", _TASK, "handed to the bolt"),
    Metric("expired", _COUNTER, "tuples", _TASK, "expired: no later window can hold them"),
    Metric("skipped", _COUNTER, "tuples", _TASK, "skipped: by their definition the windows hold no such tuple"),
    Metric("duplicates", _COUNTER, "tuples", _TASK, "repeated, recognized by `message_id=`"),
    Metric("reported", _COUNTER, "errors", _TASK, "reported by user code, which went on", "error"),
    Metric("dead_letters", _COUNTER, "dead letters", _TASK, "tuples or windows that failed for good"),
    Metric(
        "execute_seconds",
        _COUNTER,
        "seconds",
        _TASK,
        "spent at work; divided by executed: the execute latency",
        "execute latency",
    ),
    Metric(
        "process_seconds",
        _COUNTER,
        "seconds",
        _TASK,
        "for which tuples were held; divided by acked: the process latency",
        "process latency",
    ),
    Metric("pending", _GAUGE, "tuples", _TASK, "in open windows; spout: messages in flight"),
    Metric("queued", _GAUGE, "tuples", _TASK, "waiting in the task's inbox; in one process only"),
    Metric("watermark_seconds", _GAUGE, "seconds since 1970", _TASK, "the watermark of the task", together=min),
    Metric("watermark_lag_seconds", _GAUGE, "seconds", _TASK, "clock minus watermark", together=max),
    Metric(
        "slowest_input_lag_seconds",
        _GAUGE,
        "seconds",
        (*_TASK, "stream", "source"),
        "clock minus newest timestamp of the input that holds the watermark back; before its first tuple: the clock",
    ),
    Metric("active", _GAUGE, "number", ("topology",), "1 while the query runs, 0 after its end; on Spark only"),
    Metric("batch", _GAUGE, "number", ("topology",), "the last committed batch"),
    Metric(
        "batch_phase_seconds",
        _GAUGE,
        "seconds",
        ("topology", "phase"),
        "duration of each phase of that batch, under Spark's name",
    ),
    Metric("lag_offsets", _GAUGE, "offsets", _PLACE, "offsets that the source had and that batch did not read"),
    Metric("skipped_offsets", _COUNTER, "offsets", _PLACE, 'lost before they were read, with `on_gap="skip"`'),
)


class SlowestInput(NamedTuple):
    """The input stream, or the source in it, that holds the watermark back. newest_ms: its newest timestamp, None before a tuple.

    >>> str(SlowestInput("default", 3, 1_000)), str(SlowestInput("orders", None, None))
    ('stream default, source 3', 'stream orders, which had no tuple yet')
    """

    stream: str
    source: str | int | None
    newest_ms: int | None

    def __str__(self) -> str:
        source = "" if self.source is None else f", source {self.source}"
        return f"stream {self.stream}{source}{', which had no tuple yet' if self.newest_ms is None else ''}"


class FiredWindow(NamedTuple):
    """A window that fired: its end (or reference), and the bolt's rows for it, as text."""

    end_ms: int | None
    emitted: str


@dataclass(slots=True)
class TaskMetrics:
    """The metrics of one task since its start, or in one batch; task None: of all tasks of the component.

    emitted: by stream. late: by reason. execute_ms: the time at work. process_ms: the sum of the times for which tuples were held,
    so far. slowest: the input that holds the watermark back. errors, windows, late_rows (each with its reason): the last ones, as
    text, for display. The others: see METRICS.
    """

    component: str
    task: int | None
    emitted: dict[str, int] = field(default_factory=dict)
    executed: int = 0
    acked: int = 0
    failed: int = 0
    late: dict[str, int] = field(default_factory=dict)
    windows_fired: int = 0
    expired: int = 0
    skipped: int = 0
    duplicates: int = 0
    reported: int = 0
    dead_letters: int = 0
    execute_ms: float = 0.0
    process_ms: float = 0.0
    pending: int | None = None
    queued: int | None = None
    watermark_ms: int | None = None
    watermark_lag_ms: int | None = None
    slowest: SlowestInput | None = None
    errors: tuple[str, ...] = ()
    windows: tuple[FiredWindow, ...] = field(default=(), repr=False)
    late_rows: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def execute_latency_ms(self) -> float | None:
        """The mean time at work for a tuple; None before the first."""
        return self.execute_ms / self.executed if self.executed else None

    @property
    def process_latency_ms(self) -> float | None:
        """The mean time for which a tuple was held until its ack; None before the first ack."""
        return self.process_ms / self.acked if self.acked else None

    def copy(self) -> TaskMetrics:
        """Return a copy that does not change with these metrics. Cost: O(streams + reasons)."""
        return replace(self, emitted=dict(self.emitted), late=dict(self.late))

    def add(self, later: TaskMetrics) -> None:
        """Add later metrics of the same task. Cost: O(streams + reasons).

        >>> words = TaskMetrics("words", 0, {"default": 2}, executed=1, pending=5)
        >>> words.add(TaskMetrics("words", 0, {"default": 1}, executed=1, pending=3))
        >>> words.emitted, words.executed, words.pending
        ({'default': 3}, 2, 3)
        """
        self._count(later)
        for name in (*_GAUGES, "slowest"):
            value = getattr(later, name)
            if value is not None:
                setattr(self, name, value)

    def _count(self, other: TaskMetrics) -> None:
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, others in ((self.emitted, other.emitted), (self.late, other.late)):
            for key, count in others.items():
                mine[key] = mine.get(key, 0) + count
        self.errors = (*self.errors, *other.errors)[-LAST_KEPT:]
        self.windows = (*self.windows, *other.windows)[-LAST_KEPT:]
        self.late_rows = (*self.late_rows, *other.late_rows)[-LAST_KEPT:]


def _attribute(metric: Metric) -> str:
    """Return the field of TaskMetrics, in which times are milliseconds."""
    return f"{metric.name.removesuffix('seconds')}ms" if metric.name.endswith("seconds") else metric.name


_BY_NAME = {metric.name: metric for metric in METRICS}
_OF_TASKS = [metric for metric in METRICS if metric.labels == _TASK]
_COUNTERS = tuple(_attribute(metric) for metric in _OF_TASKS if metric.kind is MetricKind.COUNTER)
_GAUGES = {_attribute(metric): metric.together for metric in _OF_TASKS if metric.kind is MetricKind.GAUGE}


Offsets = Mapping[str, Mapping[str, int]]
"""Numbers of offsets by source and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """The metrics of a topology, or of a bolt that runs alone, at one time. at_ms: of the clock that its windows use.

    tasks: by component and task. batch, phases: for a run in micro-batches, the last committed batch, and the duration of each of
    its phases in milliseconds. lag: by how many offsets that batch is behind the end of its sources; skipped: how many were lost
    before they were read; both by source and partition, for sources with offsets. ended: of a query on Spark, how it ended; empty
    while it runs.
    """

    name: str
    at_ms: int
    tasks: tuple[TaskMetrics, ...]
    batch: int | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    lag: Offsets = field(default_factory=dict)
    skipped: Offsets = field(default_factory=dict)
    ended: str | None = None

    def _repr_html_(self) -> str:
        """Return a table of the components for notebooks."""
        title = self.name if self.batch is None else f"{self.name}, batch {self.batch}"
        return html_table(title, _HEADINGS, [_cells(each) for each in self.components().values()])

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON data, for `of`."""
        return {"format": METRICS_FORMAT, **asdict(self)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RunMetrics:
        """Restore it from the data of `plain`.

        >>> run = RunMetrics(name="words", at_ms=5, tasks=(TaskMetrics("count", 0, executed=2),), batch=1)
        >>> RunMetrics.of(run.plain()) == run
        True
        """
        tasks = [TaskMetrics(**each) for each in data["tasks"]]
        for each in tasks:
            each.errors = tuple(each.errors)
            each.late_rows = tuple((why, row) for why, row in each.late_rows)
            each.windows = tuple(FiredWindow(*window) for window in each.windows)
            each.slowest = None if each.slowest is None else SlowestInput(*each.slowest)
        return cls(**{each.name: data[each.name] for each in fields(cls)} | {"tasks": tuple(tasks)})

    def components(self) -> dict[str, TaskMetrics]:
        """Return the metrics of each component, of all its tasks together."""
        found: dict[str, list[TaskMetrics]] = {}
        for each in self.tasks:
            found.setdefault(each.component, []).append(each)
        return {name: merged(tasks) for name, tasks in found.items()}


def sealed(numbers: Mapping[str, Any]) -> bytes:
    """Return the content of a file with the data of `RunMetrics.plain` and more, and their checksum."""
    return json.dumps({"crc": _summed(numbers), **numbers}).encode()


def unsealed(content: Any) -> dict[str, Any]:
    """Return the data that `sealed` was given, from its JSON. Raises ValueError for another format or checksum.

    >>> unsealed(json.loads(sealed({"format": METRICS_FORMAT, "batch": 7})))["batch"]
    7
    """
    numbers = {**content} if isinstance(content, dict) else {}
    if (written := numbers.get("format")) != METRICS_FORMAT:
        raise ValueError(f"it has format {quote(written)}, and this version of windowing reads {METRICS_FORMAT}")
    if numbers.pop("crc", None) != _summed(numbers):
        raise ValueError("its checksum is not that of its content")
    return numbers


def _summed(numbers: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(numbers).encode())


_HEADINGS = (
    *("component", "emitted", "executed", "acked", "failed", "late", "fired", "pending", "queued"),
    *("execute ms", "process ms", "watermark ms", "lag ms"),
)


def _cells(found: TaskMetrics) -> list[object]:
    latencies = found.execute_latency_ms, found.process_latency_ms
    return [
        found.component,
        sum(found.emitted.values()),
        found.executed,
        found.acked,
        found.failed,
        sum(found.late.values()),
        found.windows_fired,
        found.pending,
        found.queued,
        *(None if ms is None else f"{ms:.3f}" for ms in latencies),
        found.watermark_ms,
        found.watermark_lag_ms,
    ]


def merged(tasks: Iterable[TaskMetrics]) -> TaskMetrics:
    """Return the metrics of several tasks of one component together; the watermark is None unless each task has one.

    >>> found = merged([TaskMetrics("sum", 0, pending=2, watermark_ms=7), TaskMetrics("sum", 1, pending=1, watermark_ms=5)])
    >>> found.pending, found.watermark_ms
    (3, 5)
    """
    given = list(tasks)
    found = TaskMetrics(given[0].component, None)
    for each in given:
        found._count(each)
    for name, together in _GAUGES.items():
        values = [value for each in given if (value := getattr(each, name)) is not None]
        if values and (len(values) == len(given) or together is sum):
            setattr(found, name, together(values))
    slowest = [each.slowest for each in given if each.slowest is not None]
    found.slowest = min(slowest, key=lambda each: (each.newest_ms is not None, each.newest_ms), default=None)
    return found


class Sample(NamedTuple):
    """One number with its labels, in the units of METRICS."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def samples(run: RunMetrics) -> Iterator[Sample]:
    """Yield the samples of a run for exporters. Cost: O(tasks)."""
    for task in run.tasks:
        labels = (run.name, task.component, "" if task.task is None else str(task.task))
        yield from _samples_of_task(task, labels, run.at_ms)
    if run.ended is not None:
        yield Sample(_BY_NAME["active"], (run.name,), int(not run.ended))
    if run.batch is not None:
        yield Sample(_BY_NAME["batch"], (run.name,), run.batch)
    for phase, ms in run.phases.items():
        yield Sample(_BY_NAME["batch_phase_seconds"], (run.name, phase), ms / 1000)
    for name, found in (("lag_offsets", run.lag), ("skipped_offsets", run.skipped)):
        for source, partitions in sorted(found.items()):
            for partition, offsets in sorted(partitions.items()):
                yield Sample(_BY_NAME[name], (run.name, source, partition), offsets)


def _samples_of_task(task: TaskMetrics, labels: tuple[str, ...], at_ms: int) -> Iterator[Sample]:
    for metric in _OF_TASKS:
        value = getattr(task, _attribute(metric))
        if value is not None:
            yield Sample(metric, labels, value / 1000 if metric.name.endswith("seconds") else value)
    for stream, count in sorted(task.emitted.items()):
        yield Sample(_BY_NAME["emitted"], (*labels, stream), count)
    for reason, count in sorted(task.late.items()):
        yield Sample(_BY_NAME["late"], (*labels, reason), count)
    if task.slowest is not None:
        stream, source, newest_ms = task.slowest
        where = (*labels, stream, "" if source is None else str(source))
        yield Sample(_BY_NAME["slowest_input_lag_seconds"], where, (at_ms - (newest_ms or 0)) / 1000)
