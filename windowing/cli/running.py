"""`windowing run`: a topology in one process, with a screen of its components; plain lines where the output is no terminal.

The numbers are those of `ClusterMetrics` (local/metrics.py); the screen is drawn from them four times a second, beside the run.
"""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = [
    "components_table",
    "run_on_page",
    "run_on_screen",
    "screen",
]


_HEADINGS = ("component", "tasks", "emitted", "executed", "acked", "failed", "late", "pending", "latency", "watermark")


def run_on_screen(
    topology: Topology | TridentTopology, batches: Any, span: Duration | None, console: Console
) -> ClusterResult | TridentResult:
    """Run a topology and show it meanwhile; return the result. Raises BoltError, FailedException."""
    made: type[LocalCluster | TridentCluster] = LocalCluster if isinstance(topology, Topology) else TridentCluster
    with made(topology, batches=batches) as cluster:  # type: ignore[arg-type]  # each is given its own kind
        metrics = ClusterMetrics(cluster)

        def work() -> ClusterResult | TridentResult:
            return cluster.run() if span is None else cluster.run_for(span)

        if not console.is_terminal:
            result = work()
            console.print(screen(metrics))
            return result
        with Live(get_renderable=lambda: screen(metrics), console=console, refresh_per_second=4):
            return work()


def run_on_page(
    topology: Topology | TridentTopology, batches: Any, span: Duration | None, port: int, opened: Callable[[str], None]
) -> tuple[ClusterResult | TridentResult, LivePage]:
    """Run a topology with a page of it, which is still there when it ends; `opened` is told where. Raises as `run_on_screen`."""
    made: type[LocalCluster | TridentCluster] = LocalCluster if isinstance(topology, Topology) else TridentCluster
    with made(topology, batches=batches) as cluster:  # type: ignore[arg-type]  # each is given its own kind
        drawn = topology if isinstance(topology, Topology) else topology.build()
        page = serve_page(ClusterMetrics(cluster).now, drawn, port)
        opened(page.url)
        try:
            return (cluster.run() if span is None else cluster.run_for(span)), page
        except BaseException:
            page.close()
            raise


def screen(metrics: ClusterMetrics) -> Table:
    """Return the table of a cluster's components as it is now."""
    run = metrics.now()
    return components_table(run, f"topology {run.name}", _summary(metrics.cluster))


def components_table(run: RunMetrics, title: str, caption: str = "") -> Table:
    """Return the table of the components of a run."""
    table = Table(title=Text(safe(title)), caption=Text(safe(caption)))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "component" else "right")
    tasks = [each.component for each in run.tasks]
    for name, found in run.components().items():
        latency, spout = found.execute_latency_ms, not found.executed and bool(found.emitted)
        held = found.pending, found.queued
        cells = (
            name,
            tasks.count(name),
            sum(found.emitted.values()),
            "" if spout else found.executed,
            found.acked,
            found.failed,
            sum(found.late.values()) or "",
            sum(count for count in held if count is not None),
            "" if latency is None else f"{latency:.3f} ms",
            "" if found.watermark_ms is None else found.watermark_ms,
        )
        table.add_row(*(Text(safe(str(cell))) for cell in cells))
    return table


def _summary(cluster: Any) -> str:
    result = cluster.result
    if isinstance(result, TridentResult):
        parts = [f"batches committed {result.batches}", f"failed attempts {result.failures}"]
    else:
        parts = [f"messages acked {result.acked}", f"failed attempts {result.failures}", f"in flight {cluster.pending}"]
    parts += [f"dead letters {len(result.dead_letters)}"] if result.dead_letters else []
    parts += [f"errors reported {len(result.errors)}"] if result.errors else []
    return ", ".join(parts)
