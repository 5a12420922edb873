"""submit(): a topology as ONE Spark query, evaluated level by level (windowing/execution/stages.py).

DataFrames of the spouts --> mapInArrow: fused bolts, packing --+
control files, ticks -------------------------------------------+--> groupBy(place) --> transformWithState: level 1
                                                                ...  groupBy(place) --> transformWithState: level 2
                                                                      |
     persist, one aggregate, then each stream to its sink <-----------+  one chain: what branches and joins is tagged rows
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from windowing.errors import ConfigError, quote
from windowing.execution.compatibility import of_topology
from windowing.execution.stages import stages_of
from windowing.execution.support import Runtime, announce
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean
from windowing.spark import control, definition, metrics
from windowing.spark.acks import Acks
from windowing.spark.arguments import Shipped, names_of, require_mapping, require_start
from windowing.spark.context import ExecutionContext, wired
from windowing.spark.control import task_labels
from windowing.spark.exchange import stream_name
from windowing.spark.hadoop import literal_path
from windowing.spark.running import Plan, WindowedQuery, trigger_options
from windowing.spark.session import require_session
from windowing.spark.sinks import Sink, output_streams, sinks_of, unread_late
from windowing.spark.spouts import PartitionedSpout, SpoutInput, selected, told
from windowing.spark.stages import SpoutStage, StageTaskTurn, emitted, processed
from windowing.spark.writer import BatchWriter, SinkStreams
from windowing.topology.decorators import ComponentKind
from windowing.topology.plan import Component, Topology, required
from windowing.windows.measures import Duration

__all__ = [
    "Sources",
    "submit",
]


_log = logging.getLogger("windowing.spark")
Sources = Mapping[str, SpoutInput | Mapping[str, SpoutInput]]


def submit(
    topology: Topology,
    spark: SparkSession,
    *,
    sources: Sources,
    sinks: Mapping[str, Sink],
    checkpoint: str,
    trigger: str | Duration | timedelta = "available_now",
    drain: bool = False,
    discard: Sequence[str] = (),
    partitions: int | None = None,
    query_name: str | None = None,
) -> WindowedQuery:
    """Start a topology as ONE query; every bolt is evaluated once per batch, whatever branches and joins.

    sources: a streaming DataFrame or a PartitionedSpout for each InputSpout, with the columns that it declares; for one with
        several streams a mapping of streams to them. A PartitionedSpout with an `ack` method is told of each batch that all that
        came of it is done and committed.
    sinks: by "component" or "component.stream". A stream that nobody reads needs a sink or stands in `discard`; one that is
        read may have a sink too. "component.dead_letters" takes the tuples that a bolt has failed as often as the topology's
        `windowing.max.attempts` says: without it they end the query.
    partitions: how many shuffle partitions the levels have; fixed for the life of a checkpoint. Left out: what the checkpoint
        has, and for a new one as many as the largest level has tasks, but no more than cores.
    trigger, drain, query_name: as for `windowed(...).start`.

    Raises ConfigError, SessionError, DefinitionChangedError, DrainedCheckpointError or CheckpointError before the first
    batch.
    """
    require_start(checkpoint, query_name)
    required(topology, "submit")
    require_session(spark)
    require_mapping("sources", sources)
    require_mapping("sinks", sinks)
    discarded = names_of("discard", discard, "streams")
    known = sinks_of(topology, sinks, discarded)
    names = output_streams(topology)
    stages = stages_of(topology)
    given = _given(topology, sources)
    acking = {key: number for number, (key, source) in enumerate(given.items()) if _takes_acks(source)}
    at_once = topology.config.acker_executors == 0
    wiring = wired(stages, frozenset(names[name][0] for name in known), {} if at_once else acking)
    _require_runnable(wiring)
    announce(Runtime.SUBMIT, _log.warning, topology.name, topology.config, topology.components.values())
    inputs = {key: _selected(topology.components[key[0]], key[1], source, spark) for key, source in given.items()}
    widest = max((len(stages.on_level(level)) for level in range(1, stages.last + 1)), default=1)
    width = definition.shuffle_partitions(spark, str(checkpoint), partitions, widest)
    unread = unread_late(topology, sinks, discarded)
    parts = {f"bolt {bolt.id!r}": bolt.declaration for bolt in topology.bolts}
    shipped = Shipped(spark, wiring, f"topology {topology.name!r}", parts)
    outlets = SinkStreams({name: names[name] for name in known}, unread)
    plan = Plan(
        spark=spark,
        checkpoint=str(checkpoint),
        definition=definition.frame(spark)
        | of_topology(stages, wiring.windows, width, tuple(acking), bool(wiring.acks)),
        output=lambda folder: metrics.observed(
            _chain(spark, shipped, inputs, width, folder), metrics.wire_metric_columns()
        ),
        writer=BatchWriter(topology.name, outlets, known, True, _acks(spark, str(checkpoint), acking, given)),
        partitions=width,
        trigger=trigger_options(trigger, drain),
        query_name=query_name,
    )
    return WindowedQuery.start(plan, drain)


def _chain(
    spark: SparkSession,
    shipped: Shipped[ExecutionContext],
    inputs: Mapping[tuple[str, str], DataFrame],
    partitions: int,
    folder: str,
) -> DataFrame:
    """Return the wire behind the last level; each call makes a plan of its own."""
    wiring = shipped.value
    parts = [emitted(rows, SpoutStage(shipped, spout, stream)) for (spout, stream), rows in inputs.items()]
    places = tuple(place.number for place in wiring.stages.places) or (-1,)
    parts.append(told(control.control_rows(spark, literal_path(folder), places)))
    if any(control.needs_ticks(bolt.config) for bolt in wiring.windows.values()):
        parts.append(told(control.tick_rows(spark, places)))
    rows = reduce(DataFrame.unionByName, parts)
    for level in range(1, wiring.stages.last + 1):
        labels = task_labels(spark, len(wiring.stages.on_level(level)), partitions)
        rows = processed(rows, shipped, level, labels)
    return rows


def _require_runnable(wiring: ExecutionContext) -> None:
    """Refuse what has no meaning on Spark, by name."""
    topology = wiring.stages.topology
    for component in topology.bolts:
        if topology.setting(component.id, "tick_tuple_freq_ms") is not None:
            raise ConfigError(
                f"bolt {component.id!r} asks for tick tuples, which a Spark query does not send: a bolt is called when it has "
                "tuples. Use windows over the clock, or run it on LocalCluster"
            )
    for place in wiring.stages.places:
        StageTaskTurn(wiring, place)  # refuses what its windows cannot do here


def _takes_acks(source: Any) -> bool:
    return isinstance(source, PartitionedSpout) and source.takes_acks


def _acks(
    spark: SparkSession,
    checkpoint: str,
    acking: Mapping[tuple[str, str], int],
    given: Mapping[tuple[str, str], Any],
) -> Acks | None:
    spouts = {number: (stream_name(*key), given[key]) for key, number in acking.items()}
    return Acks(spark, checkpoint, spouts) if spouts else None


def _given(topology: Topology, sources: Sources) -> dict[tuple[str, str], Any]:
    """Return what was given for each stream of each spout, in the order of the plan."""
    spouts = {spout.id: spout for spout in topology.spouts}
    for name in sources:
        if name not in spouts:
            raise ConfigError(f"sources names {quote(name)}, which is no spout; {did_you_mean(str(name), spouts)}")
    found: dict[tuple[str, str], Any] = {}
    for spout in topology.spouts:
        if spout.kind is not ComponentKind.INPUT:
            raise ConfigError(
                f"spout {spout.id!r} is Python code that cannot be asked for a batch again; on Spark a source has to be "
                "replayable: declare an InputSpout and give a streaming DataFrame or a PartitionedSpout in sources="
            )
        if spout.id not in sources:
            raise ConfigError(f"spout {spout.id!r} has no source; give sources={{{spout.id!r}: spark.readStream...}}")
        given = sources[spout.id]
        streams: Mapping[str, Any] = given if isinstance(given, Mapping) else {DEFAULT_STREAM: given}
        for stream in spout.own_outputs:
            if stream not in streams:
                raise ConfigError(
                    f"spout {spout.id!r} has a stream {stream!r} without a source; give a mapping of its streams to DataFrames"
                )
        for stream in streams:
            if stream not in spout.own_outputs:
                raise ConfigError(
                    f"the source of spout {spout.id!r} is for no stream of it; {did_you_mean(stream, spout.own_outputs)}"
                )
        found |= {(spout.id, stream): streams[stream] for stream in spout.own_outputs}
    return found


def _selected(spout: Component, stream: str, source: SpoutInput, spark: SparkSession) -> DataFrame:
    what = f"spout {spout.id!r}" + ("" if stream == DEFAULT_STREAM else f", stream {stream!r},")
    return selected(what, spout.outputs[stream].schema, source, spark, stream_name(spout.id, stream))
