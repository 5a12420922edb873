"""Outlets: the streams of a topology that have a sink, on the wire and off it.

    a row "out" of the wire (stream, how many, Arrow bytes) --rows(stream)--> a DataFrame of the stream's own fields

A sink is named by "component" (its default stream) or "component.stream".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from windowing.core.checks import DEFAULT_STREAM, did_you_mean
from windowing.errors import ConfigError, shown
from windowing.spark.failures import Seal, marked
from windowing.spark.sinks import Sink, require_sink
from windowing.spark.state import decode_table
from windowing.spark.wire import stream_name
from windowing.topology.plan import Topology
from windowing.topology.schema import Schema

__all__ = ["Outlets", "outlet_names", "sinks_of", "unread_late"]


class Outlets:
    """The streams by sink name: what each is called on the wire, and its schema. `unread`: bolts whose late tuples go nowhere."""

    def __init__(self, streams: Mapping[str, tuple[str, str]], unread: tuple[str, ...]) -> None:
        self._streams, self._unread = dict(streams), unread

    def schema_of(self, stream: str) -> StructType:
        """Return the schema of the rows of a stream."""
        schema = StructType.fromDDL(self._streams[stream][1])
        assert isinstance(schema, StructType)
        return schema

    def count(self, stream: str) -> Column:
        """Return the aggregate that counts the rows of a stream."""
        return F.sum(F.when(self._is_of(stream), F.col("value"))).alias(f"_count{list(self._streams).index(stream)}")

    def counted(self, counts: Any, stream: str) -> int:
        """Return what the aggregate of `count` has found."""
        return int(counts[f"_count{list(self._streams).index(stream)}"] or 0)

    def late(self) -> Column:
        """Return the aggregate that counts the late and unreadable tuples that go nowhere."""
        late = (F.col("source") == "late") & F.col("stream").isin(*self._unread)
        nowhere = (F.col("kind") == "metric") & (late | (F.col("source") == "invalid"))
        return F.sum(F.when(nowhere, F.col("value")))

    def largest(self) -> Column:
        """Return the aggregate that tells how many packed bytes the largest task took."""
        return F.max(F.when((F.col("kind") == "metric") & (F.col("source") == "bytes"), F.col("value")))

    def rows(self, output: DataFrame, stream: str) -> DataFrame:
        """Return the rows of a stream. Cost: one Python worker that copies Arrow bytes."""
        packed = output.where(self._is_of(stream)).select("data")
        return packed.mapInArrow(_Unpacked(), self._streams[stream][1])

    def _is_of(self, stream: str) -> Column:
        return (F.col("kind") == "out") & (F.col("stream") == self._streams[stream][0])


def outlet_names(topology: Topology) -> dict[str, tuple[str, str]]:
    """Return every stream that can have a sink: sink name -> (name on the wire, fields); dead letters of bolts too."""
    names = {}
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not (component.is_spout and output.dead):  # what fails here fails in a bolt
                names[_sink_name(component.id, stream)] = (stream_name(component.id, stream), output.schema.ddl)
    return names


def sinks_of(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> dict[str, Sink]:
    """Return the sinks in the order of the plan. Raises ConfigError for an unknown name, and for a stream that nobody reads
    and that neither has a sink nor stands in `discard`; late streams may go nowhere (they are counted and logged).
    """
    names = outlet_names(topology)
    for name in (*sinks, *discard):
        if name not in names:
            raise ConfigError(
                f"topology {topology.name!r} has no stream {shown(name)}; {did_you_mean(str(name), names)}"
            )
    for name, sink in sinks.items():
        require_sink(name, sink, Schema.parse(names[name][1]).names)
        if name in discard:
            raise ConfigError(f"{name!r} has a sink and stands in discard; leave out one of them")
    for name in _needed(topology):
        if name not in sinks and name not in discard:
            raise ConfigError(
                f"nobody reads {name!r} of topology {topology.name!r}, and it has no sink; give "
                f"sinks={{{name!r}: ParquetSink(path)}}, or say discard=({name!r},)"
            )
    return {name: sinks[name] for name in names if name in sinks}


def unread_late(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> tuple[str, ...]:
    """Return the windowed bolts whose late tuples nobody reads, keeps or has said to discard."""
    found = []
    for component in topology.bolts:
        late = None if component.window is None else component.window.config.late_stream
        named = None if late is None else _sink_name(component.id, late)
        read = late is not None and bool(topology.readers(component.id, late))
        if component.window is not None and not read and named not in sinks and named not in discard:
            found.append(component.id)
    return tuple(found)


def _needed(topology: Topology) -> Iterator[str]:
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not output.late and topology.ends(component, stream):
                yield _sink_name(component.id, stream)


def _sink_name(component: str, stream: str) -> str:
    return component if stream == DEFAULT_STREAM else f"{component}.{stream}"


class _Unpacked:
    """What turns packed rows into those of a stream, in a worker."""

    def __init__(self) -> None:
        self._seal = Seal()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked():
            for batch in batches:
                for data in batch.column(0).to_pylist():
                    yield from decode_table(data).to_batches()
