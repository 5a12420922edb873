"""submit_trident(): a Trident topology as ONE Spark query, whose batch n is txid n + 1 (the query itself: assembly.py).

DataFrames of the streams --> mapInArrow: stages behind the sources, packing --> transformWithState, depth by depth: windows
--> foreachBatch: BatchWriter with TridentCommits
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from windowing.errors import ConfigError, quote
from windowing.execution.plan import Section
from windowing.execution.support import Runtime, announce
from windowing.queues.spout import PartitionedSpout, require_apart
from windowing.schema.checks import did_you_mean, spelled
from windowing.schema.types import Schema
from windowing.spark.acks import Acks
from windowing.spark.assembly import Assembly, names_of, require_mapping, require_start, takes_acks
from windowing.spark.checkpoint import Checkpoint
from windowing.spark.hadoop import require_shared
from windowing.spark.metrics import MetricsChannel
from windowing.spark.operator import has_no_fixed_order, packed
from windowing.spark.running import WindowedQuery
from windowing.spark.session import require_session
from windowing.spark.settings import take
from windowing.spark.shipping import Shipped
from windowing.spark.sinks import Sink, require_sinks, require_unread
from windowing.spark.spouts import SpoutInput, selected
from windowing.spark.trident_commits import Attempts, TridentCommits
from windowing.spark.trident_spouts import spout_rows
from windowing.spark.trident_stages import TridentSpoutStage, trident_turn
from windowing.spark.writer import BatchWriter, SinkStreams
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.trident.coordinator import OnFailure, checked_on_failure
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.kinds import StateType
from windowing.trident.plan import SpoutNode, TridentPlan
from windowing.trident.spouts import as_batches
from windowing.trident.streams import TridentTopology, planned
from windowing.trident.transactional_state import RecordStore, checked_records
from windowing.trident.windows import WindowOperation
from windowing.windows.measures import Duration

_log = logging.getLogger("windowing.spark")


@spelled
def submit_trident(
    topology: TridentTopology | TridentPlan,
    spark: SparkSession,
    *,
    checkpoint: str,
    sources: Mapping[str, SpoutInput] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    discard: Sequence[str] = (),
    trigger: Literal["available_now"] | Duration | timedelta = "available_now",
    drain: bool = False,
    on_failure: OnFailure = OnFailure.STOP,
    records: RecordStore | None = None,
    partitions: int | None = None,
    query_name: str | None = None,
) -> WindowedQuery:
    """Start a Trident topology as ONE query. Each batch commits its states exactly once, in the order of the txids.

    sources: by stream name, a streaming DataFrame or a PartitionedSpout with the stream's columns. It replaces the stream's spout
        and must replay batches as that spout's kind promises. A stream without a source is fed by its own spout: a batch spout, an
        ITridentSpout, a transactional or opaque partitioned one.
    records: the store of the metadata of such spouts' batches: a SqliteRecordStore on a disk of the driver.
    sinks: one for each `sink` of the topology, by name, or its name in `discard`. "stream.dead_letters" gets the tuples of skipped
        batches.
    on_failure: what to do with a batch that failed `windowing.max.attempts` times by FailedException: stop the query, or skip the
        batch; skipping needs all states opaque and no window.
    partitions: the number of shuffle partitions, fixed for the life of a checkpoint. Default: that of the checkpoint; for a new one
        the largest number of tasks at one depth, but at most the number of cores.
    trigger, drain, query_name: as for `windowed(...).start`.

    States must be in stores that executors can reach (SqliteStore, PostgresStore, RedisStore): task i commits partition i there.
    Raises ConfigError, TopologyError, SessionError, DefinitionChangedError, DrainedCheckpointError or CheckpointError before the
    first batch.
    """
    path = require_start(checkpoint, query_name)
    require_session(spark)
    plan = planned(topology, "submit_trident").by_section()
    _require_runnable(plan)
    Attempts(plan)  # refuses states that cannot claim attempts, before anything is read or written
    windows, functions = plan.windowed, plan.functions
    announce(Runtime.SUBMIT_TRIDENT, _log.warning, plan.name, plan.config, windows=windows, functions=functions)
    _require_skippable(plan, on_failure)
    sources, sinks = {} if sources is None else sources, {} if sinks is None else sinks
    require_mapping("sources", sources)
    require_mapping("sinks", sinks)
    inputs = _inputs(spark, plan, sources, checked_records(records))
    streams = _sink_streams(plan, sinks, names_of("discard", discard, "sinks"), on_failure)
    keep = any(name.endswith(f".{DEAD_LETTERS}") for name in streams)
    home = Checkpoint(spark, path)
    require_unread(home, inputs.values())
    width = home.shuffle_partitions(partitions, plan.widest)
    life, plan = _owned(home, plan)
    nodes = plan.graph.nodes.values()
    shipped = Shipped(spark, plan, f"topology {plan.name!r}", {node.title: node for node in nodes})
    require_shared(spark, dict(_files_of_states(plan)), same=False, instead="PostgresStore(url) or RedisStore(url)")
    taking: dict[int, tuple[str, Any]] = dict(enumerate(each for each in sources.items() if takes_acks(each[1])))
    channel = MetricsChannel(spark, plan.name)
    assembly = Assembly(
        spark=spark,
        plan=plan,
        partitions=width,
        inputs=inputs.values(),
        windows=[node.operation.config for node in nodes if isinstance(node.operation, WindowOperation)],
        sources=lambda clock: [
            packed(rows, TridentSpoutStage(shipped, spout, keep, channel), clock=clock)
            for spout, rows in inputs.items()
        ],
        turn=partial(trident_turn, shipped),
    )
    by_sink = SinkStreams(streams, tuple(plan.unread_late))
    commits = TridentCommits(
        shipped,
        labels=assembly.labels,
        partitions=width,
        is_ordered=not any(map(has_no_fixed_order, inputs.values())),
        on_failure=on_failure,
        committed=home.commits,
        streams=by_sink,
        channel=channel,
    )
    into, acks = {name: sinks[name] for name in streams}, Acks(home, taking) if taking else None
    writer = BatchWriter(plan.name, by_sink, into, True, acks, commits)
    stored = plan.stream(width, life.plain())
    return assembly.start(home, stored, writer, channel, trigger=trigger, drain=drain, query_name=query_name)


def _inputs(
    spark: SparkSession, plan: TridentPlan, sources: Mapping[str, SpoutInput], records: RecordStore | None
) -> dict[int, DataFrame]:
    """Return the rows of each spout, from its given source, or from the spout itself if it has none."""
    spouts: dict[str, SpoutNode] = {str(spout.source.name): spout for spout in plan.spouts}
    for name in sources:
        if name not in spouts:
            raise ConfigError(f"sources names {quote(name)}, which is no stream; {did_you_mean(str(name), spouts)}")
    given = {f"stream {name!r}": source for name, source in sources.items() if isinstance(source, PartitionedSpout)}
    require_apart(given)
    inputs = {}
    for name, spout in spouts.items():
        if name in sources:
            source = sources[name]
        elif as_batches(spout.source.spout) is None:
            raise ConfigError(f"stream {name!r} has no source; give sources={{{name!r}: spark.readStream...}}")
        elif records is None:
            raise ConfigError(
                f"stream {name!r} is fed by its own spout, whose batches have to be known after a restart; give "
                "records=SqliteRecordStore(path), on a disk of the driver"
            )
        else:
            source = spout_rows(spark, plan, spout, records)
        inputs[spout.number] = selected(spout.called, spout.schema, source, spark, name)
    if records is not None and spouts.keys() <= sources.keys():
        _log.warning("topology %r: records= has no effect, because no stream is fed by its own spout", plan.name)
    return inputs


def _owned(checkpoint: Checkpoint, plan: TridentPlan) -> tuple[Life, TridentPlan]:
    """Return the checkpoint's life of the topology, and the plan with this life as the owner of its states.

    Raises SupersededError for a state of another life, CorruptStateError for a state that lacks batches of the checkpoint.
    """
    done = take(checkpoint)  # no other query may write between these reads
    try:
        last, pending = checkpoint.last_batch(), checkpoint.pending_batch()
        kept = (checkpoint.stored() or {}).get("trident")
        if kept is None and last is not None:
            return Life(""), plan  # a foreign checkpoint: refused later, before any write
        new_id = f"{plan.name} {uuid4().hex}"
        life = Life(new_id) if kept is None else Life.of(kept.get("states"), new_id)
        committed = 0 if last is None else last + 1 - (pending is not None)
        progress = Progress.unnumbered(f"checkpoint {checkpoint}", committed, pending is not None)
        life, owners = owned(life, plan.written, progress, claims=True)
    finally:
        done.set()
    return life, plan.owned_by(owners)


def _require_runnable(plan: TridentPlan) -> None:
    """Refuse, by name, operations and settings that cannot run on Spark."""
    if plan.drpc:
        raise ConfigError(
            f"topology {plan.name!r} has a function of DRPC, {quote(next(iter(plan.drpc)))}, and a Spark query takes no requests: "
            "run it in a TridentCluster, or read the state from its store"
        )
    for id, state in plan.states.items():
        store = getattr(state.factory, "store", None)
        if getattr(store, "in_this_process", False):
            raise ConfigError(
                f"{id} of topology {plan.name!r} lies in a {type(store).__name__}, in the memory of this process, which Spark's "
                "workers do not see; give SqliteStore(path), PostgresStore(url) or RedisStore(url)"
            )


def _files_of_states(plan: TridentPlan) -> Iterator[tuple[str, str]]:
    """Yield the states that are in files, with the file of each: those of written states exist once these have an owner, that of
    a state which is only read may not exist yet.
    """
    for id, state in plan.states.items():
        for file in getattr(getattr(state.factory, "store", None), "files", ()):
            if Path(file).exists():
                yield f"{id} of topology {plan.name!r}, in {file},", file


def _require_skippable(plan: TridentPlan, on_failure: OnFailure) -> None:
    """Refuse OnFailure.SKIP for plans whose batches cannot be undone: with windows, or with a state that is not opaque."""
    if checked_on_failure(on_failure) is OnFailure.STOP:
        return
    if plan.depths(Section.STREAM):
        raise ConfigError(
            f"topology {plan.name!r} has windows, which have to see every batch, so none can be skipped; leave out "
            "on_failure=OnFailure.SKIP"
        )
    for id, state in plan.states.items():
        if (kind := state.factory.kind) is not StateType.OPAQUE:
            raise ConfigError(
                f"{id} of topology {plan.name!r} is {quote(kind)}, and a batch that failed may be in it in part: only "
                "an opaque state can take that back; make it opaque, or leave out on_failure=OnFailure.SKIP"
            )


def _sink_streams(
    plan: TridentPlan, sinks: Mapping[str, Sink], discard: tuple[str, ...], on_failure: OnFailure
) -> dict[str, tuple[str, str]]:
    """Return the streams with a sink: name -> (name among exchange rows, fields)."""
    dead = {f"{spout.source.name}.{DEAD_LETTERS}": spout.schema.ddl for spout in plan.spouts}
    known = {name: plan.graph.nodes[number].schema.ddl for name, number in plan.sinks.items()} | dead
    skips = on_failure is OnFailure.SKIP

    def without(name: str) -> str:
        if name in dead:
            return f"a batch may be skipped, and its tuples of {name!r} have no sink"
        return f"the sink {name!r} of topology {plan.name!r} is given nothing to write to"

    require_sinks(
        {name: Schema.parse(fields).names for name, fields in known.items()},
        known if skips else plan.sinks,
        sinks,
        discard,
        unknown=lambda name: f"topology {plan.name!r} has no sink {quote(name)}; {did_you_mean(str(name), known)}",
        without=without,
    )
    for name in () if skips else sinks.keys() & dead.keys():
        raise ConfigError(
            f"{name!r} has a sink, but no batch is skipped; give on_failure=OnFailure.SKIP, or leave it out"
        )
    return {name: (name, known[name]) for name in known if name in sinks}
