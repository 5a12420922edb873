"""Attempts: the number under which a batch is evaluated, claimed before it begins, so that whoever comes too late is known.

    batch 5 (txid 6)   6:0 fails   6:1 fails   6:2 commits          a crash, another process: 6:3

Each store of states hands out its own numbers. The last state's counts; the others are asked first, so that it is above theirs.

TridentWriter: what foreachBatch does with a Trident batch: claim an attempt, evaluate, commit, write sinks; or try again.

    claim 6:0 --> units that may fail --one action--> units that commit --one action--> sinks
                        | FailedException                   | FailedException
    claim 6:1 <---------+-----------------------------------+       after a delay, as often as the topology says; then
                                                                     stop, or skip: nothing but an empty attempt, dead letters

Laws: a state is written only when all of the attempt before it was evaluated and is good; each place of a level works once in an
attempt, one without tuples too; whatever is no FailedException ends the query.

submit_trident(): a Trident topology as ONE Spark query, whose batch n is txid n + 1 (windowing/execution/stages.py).

DataFrames of the streams --> mapInArrow: units behind the sources, packing --+
control files, ticks (with windows only) -------------------------------------+--> transformWithState, level by level: windows
                                                                                     |
    foreachBatch: TridentWriter   <--------------------------------------------------+
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from windowing.acking.pending import RetryPolicy
from windowing.errors import ConfigError, FailedException, SupersededError, WindowingError, cause_of, quote
from windowing.execution.compatibility import of_trident
from windowing.execution.stages import Section
from windowing.execution.support import Runtime, announce
from windowing.execution.trident_stages import TridentStages
from windowing.schema.checks import did_you_mean
from windowing.schema.types import Schema
from windowing.spark import control, definition, failpoints, metrics
from windowing.spark.acks import Acks
from windowing.spark.arguments import Shipped, names_of, require_mapping, require_start
from windowing.spark.control import task_labels
from windowing.spark.failures import unwrapped
from windowing.spark.hadoop import Folder, literal_path
from windowing.spark.running import BatchWriter, Plan, WindowedQuery, trigger_options
from windowing.spark.session import require_session
from windowing.spark.settings import take
from windowing.spark.sinks import Sink, SinkStreams, require_sink
from windowing.spark.spouts import PartitionedSpout, SpoutInput, selected, told
from windowing.spark.stages import emitted
from windowing.spark.trident_spouts import spout_rows
from windowing.spark.trident_stages import DEAD_LETTERS, TridentSpoutStage, batch_level, stream_level
from windowing.trident.coordinator import OnFailure
from windowing.trident.fence import Life, Progress, owned
from windowing.trident.graph import SpoutNode
from windowing.trident.kinds import StateType, TransactionAttempt
from windowing.trident.maps import SnapshotFactory
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import as_batches
from windowing.trident.streams import TridentTopology, planned
from windowing.trident.transactional_state import RecordStore
from windowing.trident.windows import LateTuples, WindowOperation
from windowing.windows.measures import Duration

__all__ = [
    "Attempts",
    "TridentWriter",
    "submit_trident",
]


class Attempts:
    """The attempts of one query. Without a state that keeps a ledger (non-transactional ones need none) they are counted here.

    Raises ConfigError for a transactional or opaque state whose factory keeps none: after a restart numbers would come again.
    """

    def __init__(self, plan: TridentPlan) -> None:
        self._ledgers: list[tuple[str, Any, int]] = []
        for id, factory, partitions in sorted(plan.written):
            own = factory.factory if isinstance(factory, SnapshotFactory) else factory
            if callable(getattr(own, "claim_attempt", None)):
                self._ledgers.append((id, factory, partitions))
            elif factory.kind is not StateType.NON_TRANSACTIONAL:
                raise ConfigError(
                    f"{id} of topology {plan.name!r} is {quote(factory.kind)}, and its factory {quote(own)} has no "
                    "claim_attempt(txid, partitions, at_least): attempts could not be told apart after a restart; use map_state, "
                    "or add it (AttemptLedger)"
                )
        self._last = TransactionAttempt(0, 0)

    def claim(self, txid: int) -> TransactionAttempt:
        """Return the next attempt at a batch. Raises SupersededError if another process has begun a later one.

        Cost: a read and a write of each store that is written to.
        """
        attempt = self._last.next() if self._last.txid == txid else TransactionAttempt(txid, 0)
        for _, factory, partitions in self._ledgers:
            attempt = factory.claim_attempt(txid, partitions, attempt.attempt)
        self._last = attempt
        return attempt


# -- TridentWriter ---------------------------------------------------------------------------------------------------------------


_MAX_CAUSE = 500

_log = logging.getLogger("windowing.spark")


class TridentWriter(BatchWriter):
    """`labels[level]` are the grouping keys of a level's places, `partitions` how many a shuffle has. commits: Spark's log of
    committed batches. acks: for sources that take them; a batch of one is done when it is committed."""

    def __init__(
        self,
        shipped: Shipped[TridentStages],
        outlets: SinkStreams,
        sinks: Mapping[str, Sink],
        log_late: bool,
        *,
        labels: Mapping[int, Sequence[int]],
        partitions: int,
        retry: RetryPolicy,
        on_failure: OnFailure,
        attempts: Attempts,
        commits: Folder,
        acks: Acks | None,
    ) -> None:
        self._shipped, self._units = shipped, shipped.value
        super().__init__(self._units.plan.name, outlets, sinks, log_late, acks)
        self._labels, self._partitions = labels, partitions
        self._retry, self._on_failure = retry, on_failure
        self._attempts, self._commits = attempts, commits
        self._hearing, self._heard = -1, Counter[tuple[str, int, int, str]]()
        self._letters = any(name.endswith(f".{DEAD_LETTERS}") for name in sinks)

    def _write(self, output: DataFrame, batch_id: int) -> None:
        failures = 0
        while True:
            try:
                self._evaluate(output, self._claim(batch_id), skip=False)
                return
            except Exception as error:
                problem = unwrapped(error)
                if not isinstance(problem, FailedException):
                    raise
            failures += 1
            _log.warning(
                "topology %r: attempt %d at batch %d failed: %s", self._bolt, failures, batch_id, cause_of(problem)
            )
            if self._retry.is_last(failures):
                self._give_up(output, batch_id, failures, problem)
                return
            if not self._units.levels(Section.STREAM):  # it may hold the failure of a unit behind a source
                output.unpersist(blocking=True)
                output.persist()
            time.sleep(self._retry.delay_ms(failures) / 1000)

    def _claim(self, batch_id: int) -> TransactionAttempt:
        failpoints.hit("before_claim", batch_id)
        attempt = self._attempts.claim(batch_id + 1)
        if self._commits.exists(str(batch_id)):
            raise SupersededError(
                f"topology {self._bolt!r}: batch {attempt.txid} is committed already: another process went on with the checkpoint; "
                "one query at a time can have it"
            )
        failpoints.hit("after_claim", batch_id)
        return attempt

    def _give_up(self, output: DataFrame, batch_id: int, failures: int, problem: FailedException) -> None:
        """Stop, or skip the batch."""
        if self._on_failure is OnFailure.STOP:
            raise FailedException(
                f"topology {self._bolt!r}: batch {batch_id + 1} failed {failures} times and is not committed; the last cause: "
                f"{cause_of(problem)}. Repair that and start again from the checkpoint; or give on_failure=OnFailure.SKIP"
            ) from problem
        self._evaluate(output, self._claim(batch_id), skip=True)
        _log.error("topology %r: batch %d was skipped: %s", self._bolt, batch_id + 1, cause_of(problem))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _evaluate(self, output: DataFrame, attempt: TransactionAttempt, skip: bool) -> None:
        """Evaluate and commit one attempt. Skipped, every partition of a state commits it without a tuple."""
        kept: list[DataFrame] = []
        try:
            if skip:
                rows = output.where(F.col("kind") == "input").withColumn("kind", F.lit("out"))
            else:
                rows = output.where(F.col("kind") != "input") if self._letters else output
                rows = self._levels(rows, self._units.levels(Section.BATCH), attempt)
            worked = [] if skip else self._units.levels(Section.BATCH)
            for levels in _between_commits(self._units):
                # A state takes part in an attempt only when all that the attempt is so far was evaluated and is good.
                kept += [] if rows is output else [rows.persist()]
                self._check(rows, worked, attempt)
                failpoints.hit("before_commits", attempt.txid - 1)
                rows = self._levels(rows, levels, attempt)
                worked += levels
            kept += [] if rows is output else [rows.persist()]
            counts = self._check(rows, worked, attempt)
            failpoints.hit("after_commits", attempt.txid - 1)
            self._deliver(rows, counts, attempt.txid - 1)
        finally:
            for each in kept:
                each.unpersist()

    def _levels(self, rows: DataFrame, levels: Sequence[int], attempt: TransactionAttempt) -> DataFrame:
        for level in levels:
            rows = batch_level(rows, self._shipped, level, self._labels[level], self._partitions, attempt)
        return rows

    def _hear(self, reports: Sequence[Any], batch_id: int) -> None:
        """Log and count the errors that were reported; those of the stream, and of levels before, come in each evaluation."""
        if batch_id != self._hearing:
            self._hearing, self._heard = batch_id, Counter()
        found = Counter((row["stream"], row["sequence"], row["value"], row["text"]) for row in reports)
        for (stream, _, number, text), times in sorted((found - self._heard).items()):
            self.reported[batch_id] = self.reported.get(batch_id, 0) + number * times
            _log.warning(
                "topology %r, batch %d: %s reports (%d times) %s",
                self._bolt,
                batch_id + 1,
                stream,
                number * times,
                text,
            )
        self._heard |= found

    def _check(self, rows: DataFrame, levels: Sequence[int], attempt: TransactionAttempt) -> Any:
        """Evaluate the rows and return what the aggregates have found. Raises FailedException if a place says so."""
        counts = rows.agg(*self._aggregates(), *_verdict()).first()
        assert counts is not None
        self._hear(counts["_reported"], attempt.txid - 1)
        if counts["_failed"] is not None:
            raise FailedException(str(counts["_failed"]))
        places = sum(place.unit.level in levels for place in self._units.places)
        if counts["_done"] != places:
            raise WindowingError(
                f"topology {self._bolt!r}: {quote(counts['_done'])} places have worked on attempt {attempt}, wanted {places}; "
                "nothing of the batch counts: start again from the checkpoint, and report this"
            )
        return counts


def _between_commits(units: TridentStages) -> list[list[int]]:
    """Return the levels of the commit section, cut before each that writes a state."""
    cut: list[list[int]] = []
    for level in units.levels(Section.COMMIT):
        if not cut or any(place.unit.states for place in units.on_level(level)):
            cut.append([])
        cut[-1].append(level)
    return cut


def _verdict() -> list[Column]:
    cause = F.when(F.col("kind") == "failed", F.substring(F.decode(F.col("data"), "UTF-8"), 1, _MAX_CAUSE))
    done = F.when(F.col("kind") == "done", F.col("value"))
    text = F.substring(F.decode(F.col("data"), "UTF-8"), 1, _MAX_CAUSE).alias("text")
    reported = F.when(F.col("kind") == "reported", F.struct("stream", "sequence", "value", text))
    return [
        F.min(cause).alias("_failed"),
        F.count_distinct(done).alias("_done"),
        F.collect_list(reported).alias("_reported"),
    ]


# -- submit_trident() ------------------------------------------------------------------------------------------------------------


def submit_trident(
    topology: TridentTopology | TridentPlan,
    spark: SparkSession,
    *,
    checkpoint: str,
    sources: Mapping[str, SpoutInput] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    discard: Sequence[str] = (),
    trigger: str | Duration | timedelta = "available_now",
    drain: bool = False,
    on_failure: OnFailure = OnFailure.STOP,
    records: RecordStore | None = None,
    partitions: int | None = None,
    query_name: str | None = None,
) -> WindowedQuery:
    """Start a topology as ONE query. Each batch commits its states once, whatever fails or dies, and in the order of the txids.

    sources: for a stream, by name, a streaming DataFrame or a PartitionedSpout with its columns; it takes the place of the
        stream's spout, and has to give a batch again as that one promises. A stream without one is fed by its own spout: a batch
        spout, an ITridentSpout, a transactional or opaque partitioned one.
    records: where such spouts keep what their batches were: a SqliteRecordStore on a disk of the driver.
    sinks: for each `sink` of the topology, by name; one that is not wanted stands in `discard`. "stream.dead_letters" takes the
        tuples of batches that were skipped.
    on_failure: what to do with a batch that a FailedException has failed `windowing.max.attempts` times: stop the query, or skip
        the batch, where all states are opaque and there is no window.
    partitions: how many shuffle partitions there are; fixed for the life of a checkpoint. Left out: what the checkpoint has, and
        for a new one as many as the widest level has tasks, but no more than cores.
    trigger, drain, query_name: as for `windowed(...).start`.

    States live in stores that executors can reach (SqliteStore, PostgresStore, RedisStore): task i commits partition i there.
    Raises ConfigError, TopologyError, SessionError, DefinitionChangedError, DrainedCheckpointError or CheckpointError before the
    first batch.
    """
    require_start(checkpoint, query_name)
    require_session(spark)
    plan = planned(topology, "submit_trident")
    units = TridentStages(plan)
    _require_runnable(plan)
    Attempts(plan)  # refuses states that cannot claim attempts, before anything is read or written
    announce(Runtime.SUBMIT_TRIDENT, _log.warning, plan.name, plan.config)
    if on_failure is OnFailure.SKIP:
        _require_skippable(units)
    for option, each in (("sources", sources), ("sinks", sinks)):
        require_mapping(option, {} if each is None else each)
    given = _given(plan, sources or {}, records)
    outlets = _outlets(plan, sinks or {}, names_of("discard", discard, "sinks"), on_failure)
    keep = any(name.endswith(f".{DEAD_LETTERS}") for name in outlets)
    inputs = _inputs(spark, plan, given, records)
    places = Counter(place.unit.level for place in units.places)
    width = definition.shuffle_partitions(spark, str(checkpoint), partitions, max(places.values(), default=1))
    labels = {level: task_labels(spark, places[level], width) for level in sorted(places)}
    unread = tuple(_unread_late(units))
    life, plan = _owned(spark, str(checkpoint), plan)
    units = TridentStages(plan)
    windowed = [unit for unit in units.units if unit.section is Section.STREAM]
    parts = {node.title: node for node in plan.graph.nodes.values()}
    shipped = Shipped(spark, units, f"topology {plan.name!r}", parts)
    writer = TridentWriter(
        shipped,
        SinkStreams(outlets, unread),
        {name: (sinks or {})[name] for name in outlets},
        True,
        labels=labels,
        partitions=width,
        retry=RetryPolicy.of(plan.config),
        on_failure=on_failure,
        attempts=Attempts(plan),
        commits=Folder(spark, str(checkpoint)) / "commits",
        acks=_acks(spark, str(checkpoint), sources or {}),
    )
    return WindowedQuery.start(
        Plan(
            spark=spark,
            checkpoint=str(checkpoint),
            definition=definition.frame(spark) | of_trident(plan, windowed, width, life.plain()),
            output=lambda folder: metrics.observed(
                _stream(spark, shipped, inputs, labels, folder, keep), metrics.wire_metric_columns()
            ),
            writer=writer,
            partitions=width,
            trigger=trigger_options(trigger, drain),
            query_name=query_name,
        ),
        drain,
    )


def _inputs(
    spark: SparkSession, plan: TridentPlan, given: Mapping[int, SpoutInput], records: RecordStore | None
) -> dict[int, DataFrame]:
    """Return the rows of each spout: those of the source that was given for it, or its own."""
    inputs = {}
    for spout in plan.spouts:
        source = given.get(spout.number)
        if source is None:
            assert records is not None
            source = spout_rows(spark, plan, spout, records)
        inputs[spout.number] = selected(spout.called, spout.schema, source, spark, str(spout.source.name))
    return inputs


def _owned(spark: SparkSession, checkpoint: str, plan: TridentPlan) -> tuple[Life, TridentPlan]:
    """Return the life of the topology that the checkpoint is, and the plan with its states as this life writes them.

    Raises SupersededError for a state that another one writes, CorruptStateError for one that lacks what the checkpoint knows.
    """
    done = take(spark, checkpoint)  # a query that goes on would write between the readings
    try:
        last, pending = definition.last_batch(spark, checkpoint), definition.pending_batch(spark, checkpoint)
        kept = (definition.stored(spark, checkpoint) or {}).get("trident")
        if kept is None and last is not None:
            return Life(""), plan  # no checkpoint of ours: refused, with the reason, before anything is written
        new_id = f"{plan.name} {uuid4().hex}"
        life = Life(new_id) if kept is None else Life.of(kept.get("states"), new_id)
        committed = 0 if last is None else last + 1 - (pending is not None)
        progress = Progress.unnumbered(f"checkpoint {checkpoint}", committed, pending is not None)
        life, owners = owned(life, plan.written, progress, claims=True)
    finally:
        done.set()
    return life, plan.owned_by(owners)


def _stream(
    spark: SparkSession,
    shipped: Shipped[TridentStages],
    inputs: Mapping[int, DataFrame],
    labels: Mapping[int, Sequence[int]],
    folder: str,
    keep: bool,
) -> DataFrame:
    """Return the wire behind the last window; each call makes a plan of its own."""
    units = shipped.value
    parts = [emitted(rows, TridentSpoutStage(shipped, spout, keep)) for spout, rows in inputs.items()]
    windowed = tuple(place.number for place in units.places if place.unit.section is Section.STREAM)
    parts.append(told(control.control_rows(spark, literal_path(folder), windowed or (-1,))))
    if any(control.needs_ticks(window.config) for window in _windows(units.plan)):
        parts.append(told(control.tick_rows(spark, windowed)))
    rows = reduce(DataFrame.unionByName, parts)
    for level in units.levels(Section.STREAM):
        rows = stream_level(rows, shipped, level, labels[level])
    return rows


def _windows(plan: TridentPlan) -> Iterator[Any]:
    for node in plan.graph.nodes.values():
        operation = getattr(node, "operation", None)
        if isinstance(operation, WindowOperation):
            yield operation.bolt(plan.processor(node.number).inputs[0], node.schema)


def _unread_late(units: TridentStages) -> Iterator[str]:
    """Yield the groups of windows whose late tuples nobody reads."""
    plan = units.plan
    for unit in units.units:
        for number in unit.nodes:
            readers = [plan.graph.nodes[edge.target] for edge in plan.graph.out_edges[number]]
            read = any(isinstance(getattr(reader, "operation", None), LateTuples) for reader in readers)
            if plan.processor(number).operation.keeps_window and not read:
                yield unit.group.id


def _require_runnable(plan: TridentPlan) -> None:
    """Refuse what has no meaning on Spark, by name."""
    if plan.drpc:
        raise ConfigError(
            f"topology {plan.name!r} has a function of DRPC, {quote(next(iter(plan.drpc)))}, and a Spark query takes no requests: "
            "run it in a TridentCluster, or read the state from its store"
        )
    for id, state in plan.states.items():
        if getattr(_store_of(state.spec.factory), "in_this_process", False):
            raise ConfigError(
                f"{id} of topology {plan.name!r} lies in a MemoryStore, in the memory of this process, which Spark's workers "
                "do not see; give SqliteStore(path), PostgresStore(url) or RedisStore(url)"
            )


def _require_skippable(units: TridentStages) -> None:
    """Refuse to skip what cannot be taken back: a window has to see a batch, a state that is not opaque may hold part of it."""
    plan = units.plan
    if units.levels(Section.STREAM):
        raise ConfigError(
            f"topology {plan.name!r} has windows, which have to see every batch, so none can be skipped; leave out "
            "on_failure=OnFailure.SKIP"
        )
    for id, state in plan.states.items():
        if state.spec.kind is not StateType.OPAQUE:
            raise ConfigError(
                f"{id} of topology {plan.name!r} is {quote(state.spec.kind)}, and a batch that failed may be in it in part: only "
                "an opaque state can take that back; make it opaque, or leave out on_failure=OnFailure.SKIP"
            )


def _store_of(factory: Any) -> Any:
    """Return the store of a factory of this library, whatever wraps it; None for another one."""
    for _ in range(3):
        if hasattr(factory, "store"):
            return factory.store
        factory = getattr(factory, "factory", None) or getattr(factory, "values", None)
    return None


def _acks(spark: SparkSession, checkpoint: str, sources: Mapping[str, SpoutInput]) -> Acks | None:
    """Return who tells sources that take acks: a batch is acked when it is committed."""
    taking = [
        (name, found) for name, found in sources.items() if isinstance(found, PartitionedSpout) and found.takes_acks
    ]
    return Acks(spark, checkpoint, dict(enumerate(taking))) if taking else None


def _given(plan: TridentPlan, sources: Mapping[str, SpoutInput], records: RecordStore | None) -> dict[int, SpoutInput]:
    """Return the sources that were given, by spout; the other spouts are sources themselves."""
    spouts: dict[str, SpoutNode] = {str(spout.source.name): spout for spout in plan.spouts}
    for name in sources:
        if name not in spouts:
            raise ConfigError(f"sources names {quote(name)}, which is no stream; {did_you_mean(str(name), spouts)}")
    for name, spout in spouts.items():
        if name in sources:
            continue
        if as_batches(spout.source.spout) is None:
            raise ConfigError(f"stream {name!r} has no source; give sources={{{name!r}: spark.readStream...}}")
        if records is None:
            raise ConfigError(
                f"stream {name!r} is fed by its own spout, whose batches have to be known after a restart; give "
                "records=SqliteRecordStore(path), on a disk of the driver"
            )
    return {spout.number: sources[name] for name, spout in spouts.items() if name in sources}


def _outlets(
    plan: TridentPlan, sinks: Mapping[str, Sink], discard: tuple[str, ...], on_failure: OnFailure
) -> dict[str, tuple[str, str]]:
    """Return what has a sink: its name -> (name on the wire, fields)."""
    dead = {f"{spout.source.name}.{DEAD_LETTERS}": spout.schema.ddl for spout in plan.spouts}
    known = {name: plan.graph.nodes[number].schema.ddl for name, number in plan.sinks.items()} | dead
    for name in (*sinks, *discard):
        if name not in known:
            raise ConfigError(f"topology {plan.name!r} has no sink {quote(name)}; {did_you_mean(str(name), known)}")
    for name, sink in sinks.items():
        require_sink(name, sink, Schema.parse(known[name]).names)
        if name in dead and on_failure is not OnFailure.SKIP:
            raise ConfigError(
                f"{name!r} has a sink, but no batch is skipped; give on_failure=OnFailure.SKIP, or leave it out"
            )
    for name in plan.sinks:
        if name not in sinks and name not in discard:
            raise ConfigError(
                f"the sink {name!r} of topology {plan.name!r} is given nothing to write to; give "
                f"sinks={{{name!r}: ParquetSink(path)}}, or say discard=({name!r},)"
            )
    for name in dead:
        if on_failure is OnFailure.SKIP and name not in sinks and name not in discard:
            raise ConfigError(
                f"a batch may be skipped, and its tuples of {name!r} have no sink; give sinks={{{name!r}: ParquetSink(path)}}, "
                f"or say discard=({name!r},)"
            )
    return {name: (name, known[name]) for name in known if name in sinks}
