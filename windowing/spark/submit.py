"""submit(): a topology as ONE Spark query, evaluated depth by depth (execution/plan.py; the query itself: assembly.py).

DataFrames of the spouts --> mapInArrow: fused bolts, packing --> groupBy(label) --> transformWithState: depth 1 --> ...
                                                                  one chain: what branches and joins is tagged rows

A sink names a stream by "component" (its default stream) or "component.stream".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from windowing.errors import ConfigError, quote
from windowing.execution.compatibility import of_topology
from windowing.execution.support import Runtime, announce
from windowing.queues.spout import PartitionedSpout, of_spout, require_apart
from windowing.schema.checks import did_you_mean, spelled
from windowing.schema.types import Schema
from windowing.spark.acks import Acks
from windowing.spark.assembly import Assembly, names_of, require_mapping, require_start, takes_acks
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.context import ExecutionContext, execution_context
from windowing.spark.metrics import MetricsChannel
from windowing.spark.running import WindowedQuery
from windowing.spark.session import require_session
from windowing.spark.shipping import Shipped
from windowing.spark.sinks import Sink, require_sinks, require_unread
from windowing.spark.spouts import SpoutInput, selected
from windowing.spark.stages import StageTaskTurn, spout_packets, stage_turn
from windowing.spark.writer import BatchWriter, SinkStreams
from windowing.topology.bolts import ComponentKind
from windowing.topology.plan import Component, Topology, output_name, required, stream_name
from windowing.windows.measures import Duration

_log = logging.getLogger("windowing.spark")
Sources = Mapping[str, SpoutInput | Mapping[str, SpoutInput]]


@spelled
def submit(
    topology: Topology,
    spark: SparkSession,
    *,
    sources: Sources | None = None,
    sinks: Mapping[str, Sink] | None = None,
    checkpoint: str,
    trigger: Literal["available_now"] | Duration | timedelta = "available_now",
    drain: bool = False,
    discard: Sequence[str] = (),
    partitions: int | None = None,
    query_name: str | None = None,
) -> WindowedQuery:
    """Start a topology as ONE query; every bolt is evaluated once per batch, also behind branches and joins.

    sources: a streaming DataFrame or a PartitionedSpout for each InputSpout, with the declared columns; for a spout with several
        streams, a mapping of streams to them. The source of a spout of your own replaces it. A PartitionedSpout with an `ack`
        method gets the ack of each batch after all its rows are done and committed.
    sinks: by "component" or "component.stream". A stream that no bolt reads needs a sink or must be named in `discard`; other
        streams may have a sink too. "component.dead_letters" gets the tuples whose last attempt (`windowing.max.attempts`) failed;
        without this sink such a tuple ends the query.
    partitions: the number of shuffle partitions, fixed for the life of a checkpoint. Default: that of the checkpoint; for a new one
        the largest number of tasks at one depth, but at most the number of cores.
    trigger, drain, query_name: as for `windowed(...).start`.

        query = submit(topology, spark, sources={"words": df}, sinks={"count": ParquetSink("out")}, checkpoint="checkpoint")
        query.await_end()

    Raises ConfigError, SessionError, DefinitionChangedError, DrainedCheckpointError or CheckpointError before the first
    batch.
    """
    path = require_start(checkpoint, query_name)
    topology = required(topology, "submit")
    require_session(spark)
    sources, sinks = {} if sources is None else sources, {} if sinks is None else sinks
    require_mapping("sources", sources)
    topology = topology.fed(sources)
    require_mapping("sinks", sinks)
    discarded = names_of("discard", discard, "streams")
    known = sinks_of(topology, sinks, discarded)
    names = output_streams(topology)
    given = _given(topology, sources)
    acking = {key: number for number, (key, source) in enumerate(given.items()) if takes_acks(source)}
    at_once = topology.config.acker_executors == 0
    home = Checkpoint(spark, path)
    before = home.continued()[1] if acking else 0
    context = execution_context(
        topology, frozenset(names[name][0] for name in known), {} if at_once else acking, before
    )
    _require_runnable(context)
    announce(Runtime.SUBMIT, _log.warning, topology.name, topology.config, topology.components.values())
    inputs = {key: _selected(topology.components[key[0]], key[1], source, spark) for key, source in given.items()}
    require_unread(home, inputs.values())
    width = home.shuffle_partitions(partitions, context.plan.widest)
    parts = {f"bolt {bolt.id!r}": bolt.declaration for bolt in topology.bolts}
    shipped = Shipped(spark, context, f"topology {topology.name!r}", parts)
    streams = SinkStreams({name: names[name] for name in known}, unread_late(topology, sinks, discarded))
    told = {number: (stream_name(*key), given[key]) for key, number in acking.items()}
    channel = MetricsChannel(spark, topology.name, context.windows.values())
    assembly = Assembly(
        spark=spark,
        plan=context.plan,
        partitions=width,
        inputs=inputs.values(),
        windows=[bolt.config for bolt in context.windows.values()],
        sources=lambda clock: [spout_packets(rows, shipped, *key, channel, clock) for key, rows in inputs.items()],
        turn=partial(stage_turn, shipped),
        drawn=topology,
    )
    return assembly.start(
        home,
        of_topology(topology, context.plan, context.windows, width, tuple(acking), bool(context.acks)),
        BatchWriter(topology.name, streams, known, True, Acks(home, told) if told else None),
        channel,
        trigger=trigger,
        drain=drain,
        query_name=query_name,
    )


def _require_runnable(context: ExecutionContext) -> None:
    """Refuse, by name, components and settings that cannot run on Spark."""
    topology = context.topology
    for component in topology.bolts:
        if topology.config_of(component.id).tick_tuple_freq_ms is not None:
            raise ConfigError(
                f"bolt {component.id!r} asks for tick tuples, which a Spark query does not send: a bolt is called when it has "
                "tuples. Leave tick_tuple_freq out: a Bolt sends what it holds in cleanup(self), which ends each batch; a count "
                "from tick to tick is a window over the clock, @tumbling(seconds(10)) without timestamp=. Or run it on LocalCluster"
            )
    for task in context.plan.tasks:
        StageTaskTurn(context, task)  # refuses what its windows cannot do here


def _given(topology: Topology, sources: Sources) -> dict[tuple[str, str], Any]:
    """Return the source of each stream of each spout, in the order of the plan."""
    spouts = {spout.id: spout for spout in topology.spouts}
    for name in sources:
        if name not in spouts:
            raise ConfigError(f"sources names {quote(name)}, which is no spout; {did_you_mean(str(name), spouts)}")
    found: dict[tuple[str, str], Any] = {}
    for spout in topology.spouts:
        if spout.kind is not ComponentKind.INPUT:
            raise ConfigError(
                f"spout {spout.id!r} is Python code that cannot be asked for a batch again; on Spark a source has to be "
                "replayable: give a streaming DataFrame or a PartitionedSpout for it in sources=, in place of it"
            )
        if spout.id not in sources:
            raise ConfigError(f"spout {spout.id!r} has no source; give sources={{{spout.id!r}: spark.readStream...}}")
        streams = spout.sources_of_streams(sources[spout.id], "DataFrames")
        found |= {(spout.id, stream): streams[stream] for stream in spout.declaration.outputs}
    require_apart({of_spout(*key): source for key, source in found.items() if isinstance(source, PartitionedSpout)})
    return found


def _selected(spout: Component, stream: str, source: SpoutInput, spark: SparkSession) -> DataFrame:
    what = of_spout(spout.id, stream)
    return selected(what, spout.outputs[stream].schema, source, spark, stream_name(spout.id, stream))


def output_streams(topology: Topology) -> dict[str, tuple[str, str]]:
    """Return every stream that can have a sink, dead letters of bolts included: sink name -> (name in exchange rows, fields)."""
    names = {}
    for component in topology.components.values():
        for stream, output in component.outputs.items():
            if not (component.is_spout and output.dead):  # a tuple can fail only in a bolt
                names[output_name(component.id, stream)] = (stream_name(component.id, stream), output.schema.ddl)
    return names


def sinks_of(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> dict[str, Sink]:
    """Return the sinks in the order of the plan. Raises ConfigError for an unknown name, and for a stream without reader and sink
    that is not in `discard`. Late streams need neither; they are counted and logged.
    """
    names = output_streams(topology)
    return require_sinks(
        {name: Schema.parse(fields).names for name, (_, fields) in names.items()},
        [
            output_name(component.id, stream)
            for component in topology.components.values()
            for stream, output in component.outputs.items()
            if not output.late and topology.ends(component, stream)
        ],
        sinks,
        discard,
        unknown=lambda name: (
            f"topology {topology.name!r} has no stream {quote(name)}; {did_you_mean(str(name), names)}"
        ),
        without=lambda name: f"no bolt reads stream {name!r} of topology {topology.name!r}, and it has no sink",
    )


def unread_late(topology: Topology, sinks: Mapping[str, Sink], discard: tuple[str, ...]) -> tuple[str, ...]:
    """Return the windowed bolts whose late tuples have no reader and no sink, and are not in `discard`."""
    found = []
    for component in topology.bolts:
        late = None if component.window is None else component.window.config.late_stream
        named = None if late is None else output_name(component.id, late)
        read = late is not None and bool(topology.readers(component.id, late))
        if component.window is not None and not read and named not in sinks and named not in discard:
            found.append(component.id)
    return tuple(found)
