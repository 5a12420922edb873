"""Wiring: what every worker knows of a topology; made on the driver, sent with the code.

It is all that a Flow needs to send a tuple on (flow.py), and a place to take its turn (place.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from windowing.acking.retry import RetryPolicy
from windowing.spark.pack import max_future_ms
from windowing.spark.turn import DEAD_LETTER_DDL, DEAD_LETTERS
from windowing.spark.wire import stream_name
from windowing.topology.bolts import WindowedBolt
from windowing.topology.plan import Component
from windowing.topology.stages import Stages
from windowing.topology.tuples import Fields, Origin

__all__ = ["Origins", "Wiring", "wired"]


@dataclass(frozen=True)
class Wiring:
    """`schemas` and `sinks` go by `stream_name`: the fields of each stream, and the streams whose rows are kept.

    `windows` are the windowed bolts by component id, with what Spark adds to their configuration.
    """

    stages: Stages
    schemas: Mapping[str, pa.Schema]
    sinks: frozenset[str]
    retry: RetryPolicy
    windows: Mapping[str, WindowedBolt]

    def component(self, name: str) -> Component:
        """Return a component by its id."""
        return self.stages.topology.components[name]

    def letters(self, component: str) -> bool:
        """Return whether a component's dead letters have a sink."""
        return stream_name(component, DEAD_LETTERS) in self.sinks


class Origins:
    """The Origin of each (component, task, stream), made once."""

    def __init__(self, wiring: Wiring) -> None:
        self._topology = wiring.stages.topology
        self._ids = self._topology.task_ids
        self._known: dict[tuple[str, int, str], Origin] = {}

    def __call__(self, component: str, task: int, stream: str) -> Origin:
        key = (component, task, stream)
        if key not in self._known:
            fields = Fields(self._topology.components[component].outputs[stream].schema.names)
            self._known[key] = Origin(component, self._ids[component][task], fields, stream)
        return self._known[key]


def wired(stages: Stages, sinks: frozenset[str], retry: RetryPolicy) -> Wiring:
    """Return the wiring of a plan. Cost: every schema is parsed once, in the JVM."""
    schemas: dict[str, pa.Schema] = {}
    windows: dict[str, WindowedBolt] = {}
    for name, component in stages.topology.components.items():
        for stream, output in component.outputs.items():
            schemas[stream_name(name, stream)] = _arrow(output.schema.ddl)
        if not component.is_spout:
            schemas[stream_name(name, DEAD_LETTERS)] = _arrow(DEAD_LETTER_DDL)
        if component.window is not None:
            config = component.window.config
            bounded = replace(config, max_future_ms=max_future_ms(config)) if config.event_time else config
            windows[name] = replace(component.window, name=name, config=bounded)
    return Wiring(stages, schemas, sinks, retry, windows)


def _arrow(ddl: str) -> pa.Schema:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return to_arrow_schema(parsed, timezone="UTC")
