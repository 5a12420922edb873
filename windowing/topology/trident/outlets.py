"""Outlet: how the rows of one task get over an exchange; what every driver does with what a group emitted.

rows --route--> {task: rows}                      by the grouping, from a start that the batch gives
     --largest-> {source: timestamp}, for ALL tasks    of an exchange to a window: so that all have one watermark
"""

from __future__ import annotations

from windowing.topology.trident.fields import Row
from windowing.topology.trident.partitions import Router
from windowing.topology.trident.plan import Exchange, TridentPlan
from windowing.topology.trident.processors import Batch
from windowing.topology.trident.windowed import Window
from windowing.topology.trident.windows import WindowClock

__all__ = ["Outlet", "OutletBatch"]


class Outlet:
    """One task's end of an exchange."""

    def __init__(self, plan: TridentPlan, exchange: Exchange, task: int) -> None:
        self.exchange = exchange
        self.router = Router(exchange.grouping, exchange.schema, task, plan.group(exchange.target_group).parallelism)
        windows = [plan.processor(target) for target, _ in exchange.targets]
        self.clocks = [
            WindowClock(node.operation.bolt(node.inputs[0], node.schema).config, node.inputs[0])
            for node in windows
            if isinstance(node.operation, Window)
        ]

    def start_batch(self, batch: Batch) -> OutletBatch:
        """Begin a batch."""
        return OutletBatch(self, batch)


class OutletBatch:
    """One batch on its way over an exchange. largest: what to tell every task of the target when all rows are sent."""

    def __init__(self, outlet: Outlet, batch: Batch) -> None:
        self._outlet, self._batch = outlet, batch
        self._state = outlet.router.start(batch.txid)
        self.largest: dict[str | None, int] = {}

    def route(self, rows: list[Row]) -> dict[int, list[Row]]:
        """Return the rows for each task of the target."""
        for clock in self._outlet.clocks:
            for source, timestamp in clock.largest(rows, self._batch.now_ms).items():
                self.largest[source] = max(timestamp, self.largest.get(source, timestamp))
        return self._outlet.router.route(rows, self._batch.txid, self._state)
