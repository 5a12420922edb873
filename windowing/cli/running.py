"""`windowing run`: runs a topology in one process, with a table of its components; without a terminal, the table is printed once.

The numbers are those of `ClusterMetrics` (local/metrics.py). On a terminal the table is drawn four times per second during the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from windowing.cli.loading import safe
from windowing.execution.metrics import RunMetrics
from windowing.local.cluster import LocalCluster
from windowing.local.metrics import ClusterMetrics
from windowing.local.router import ClusterResult
from windowing.local.trident_cluster import TridentCluster
from windowing.local.trident_tasks import TridentResult
from windowing.monitoring.page import LivePage, serve_page
from windowing.topology.plan import Topology
from windowing.trident.streams import TridentTopology
from windowing.windows.measures import Duration

_HEADINGS = (
    *("component", "tasks", "emitted", "executed", "acked", "failed", "late", "pending", "latency"),
    *("watermark", "behind"),
)


def run_on_screen(
    topology: Topology | TridentTopology, batches: Any, for_seconds: float | None, console: Console, state: Path | None
) -> ClusterResult | TridentResult:
    """Run a topology with a table of its components; return the result. Raises BoltError, FailedException."""
    with _watched(topology, batches, for_seconds, state) as (metrics, work):
        if not console.is_terminal:
            result = work()
            console.print(screen(metrics))
            return result
        with Live(get_renderable=lambda: screen(metrics), console=console, refresh_per_second=4):
            return work()


def run_on_page(
    topology: Topology | TridentTopology,
    batches: Any,
    for_seconds: float | None,
    port: int,
    opened: Callable[[str], None],
    state: Path | None,
) -> tuple[ClusterResult | TridentResult, LivePage]:
    """Run a topology with a page, which stays open after it; `opened` is called with its URL. Raises as `run_on_screen`."""
    with _watched(topology, batches, for_seconds, state) as (metrics, work):
        page = serve_page(metrics.now, topology if isinstance(topology, Topology) else topology.build(), port)
        opened(page.url)
        try:
            return work(), page
        except BaseException:
            page.close()
            raise


@contextmanager
def _watched(
    topology: Topology | TridentTopology, batches: Any, for_seconds: float | None, state: Path | None
) -> Iterator[tuple[ClusterMetrics, Callable[[], ClusterResult | TridentResult]]]:
    """Make the cluster of a topology; yield its metrics, and the function that runs it to the end of its input or of this time."""
    made: type[LocalCluster | TridentCluster] = LocalCluster if isinstance(topology, Topology) else TridentCluster
    with made(topology, batches=batches, state_path=state) as cluster:  # type: ignore[arg-type]  # each is given its own kind
        span = None if for_seconds is None else Duration(max(1, round(1000 * for_seconds)))
        yield ClusterMetrics(cluster), cluster.run if span is None else partial(cluster.run_for, span)


def screen(metrics: ClusterMetrics) -> Table:
    """Return the current table of a cluster's components."""
    run = metrics.now()
    return components_table(run, f"topology {run.name}", _summary(metrics.cluster))


def components_table(run: RunMetrics, title: str, caption: str = "", by_task: bool = False) -> Table:
    """Return the table of the components of a run; with `by_task` one row per task."""
    table = Table(title=Text(safe(title)), caption=Text(safe(caption)))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "component" else "right")
    tasks = [each.component for each in run.tasks]
    shown = {f"{each.component}[{each.task}]": each for each in run.tasks} if by_task else run.components()
    for name, found in shown.items():
        latency, spout = found.execute_latency_ms, not found.executed and bool(found.emitted)
        held = found.pending, found.queued
        cells = (
            name,
            1 if by_task else tasks.count(name),
            sum(found.emitted.values()),
            "" if spout else found.executed,
            found.acked,
            found.failed,
            sum(found.late.values()) or "",
            sum(count for count in held if count is not None),
            "" if latency is None else f"{latency:.3f} ms",
            "" if found.watermark_ms is None else moment(found.watermark_ms),
            "" if found.watermark_lag_ms is None else _span(found.watermark_lag_ms),
        )
        table.add_row(*(Text(safe(str(cell))) for cell in cells))
    return table


def moment(ms: int) -> str:
    """Return a timestamp in UTC, to the second; outside the range of Python's datetime its number."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError):
        return str(ms)


def _span(ms: float) -> str:
    """Return a span of time in the largest unit of which it has two or more, as the page does.

    >>> [_span(ms) for ms in (400, 119_000, 600_000, 10_800_000, 1_795_579_436_900)]
    ['0.4 s', '119.0 s', '10.0 min', '3.0 h', '20782 d']
    """
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.{0 if unit == 'd' else 1}f} {unit}"
    return f"{ms / 1000:.1f} s"


def phases_line(run: RunMetrics) -> str:
    """Return the duration of the last batch and of its longest phases; empty for a run without batches.

    >>> phases = {"triggerExecution": 950.0, "addBatch": 800.0, "walCommit": 9.0}
    >>> phases_line(RunMetrics(name="words", at_ms=5, tasks=(), batch=7, phases=phases))
    'batch 7 took 950 ms: addBatch 800, walCommit 9'
    """
    whole = run.phases.get("triggerExecution")
    if whole is None:
        return ""
    parts = sorted((-took, name) for name, took in run.phases.items() if name != "triggerExecution" and took)
    named = ", ".join(f"{name} {-took:.0f}" for took, name in parts[:4])
    behind = [f"{name} is {sum(parts.values())} offsets behind" for name, parts in run.lag.items()]
    return "; ".join([f"batch {run.batch} took {whole:.0f} ms: {named}", *behind])


def _summary(cluster: Any) -> str:
    result = cluster.result
    if isinstance(result, TridentResult):
        parts = [f"batches committed {result.batches}", f"failed attempts {result.failures}"]
    else:
        parts = [f"messages acked {result.acked}", f"failed attempts {result.failures}", f"in flight {cluster.pending}"]
    parts += [f"dead letters {len(result.dead_letters)}"] if result.dead_letters else []
    parts += [f"errors reported {len(result.errors)}"] if result.errors else []
    return ", ".join(parts)
