"""PartitionedSpouts (queues/spout.py) in one process. In LocalCluster batches are read row by row; each batch is a root:

    latest() --> root 3: (5, 9] --read--> rows 5.. --emit--> messages (stream, 3, 0), (stream, 3, 1), ... each acked by itself
                                                                          |
    ack(root) / give_up(root) / fail(root) <-- all messages are done; one is lost

In TridentCluster each batch is a root too, whose offsets are the metadata of its txid:

    is_ready(7)    latest() is beyond the end of batch 6
    $batch 7:0     offsets (start, end] of each partition, stored with txid 7 --> each task reads its partitions
    $success 7     ack(root 7), commit(end of 7)

Laws of LocalCluster
- One batch of a spout is read at a time. The next batch begins when all rows of the last one are emitted. `max_rows` limits a
  batch, `max_spout_pending` the rows in flight. With partitions sorted by name, task p % parallelism emits partition p.
- A task that begins a batch without a row of its own is asked again in the next round, and counts as dry only when it begins none:
  a run does not end before the batch is emitted, and other tasks step between two batches without rows.
- Each root ends with exactly one call of the spout: `ack` when all its messages are acked; `give_up` when all are done but some
  ended as dead letters that were acked; `fail`, at once, when a message failed for the last time and its dead letter was not
  acked. After `fail` the remaining rows of the root are not emitted, because the source delivers the root again. A source without
  `ack` gets `fail` only, and delivers nothing again: unless it raises, the remaining rows are emitted.
- A message is acked when its tuple tree is acked: in a topology with states, when the checkpoint that holds it is committed. The
  same holds for a root.
- `commit` gets the offsets up to which all roots have ended, without a gap.
- Each LocalCluster is a new query for its spouts: it begins with the rows that are not acked.

Laws of TridentCluster
- Transactional: every attempt at a txid reads the stored offsets; the source can be read again at them until they are acked.
- A batch is acked when it is committed. If a kill prevents the ack, the next run acks the batch when it begins.
- The run's name for the spout lasts as long as the records. Without records each run is new and begins with the rows that are not
  acked.

Source: Trident's partitioned spouts, called as the driver on Spark calls them (spark/acks.py).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from windowing.errors import ConfigError, quote
from windowing.local.spouts import TupleSource, require_inputs
from windowing.queues.spout import (
    Offsets,
    PartitionedSpout,
    Root,
    SpoutOffsets,
    fitted,
    instead_of_class,
    of_spout,
    refuse_other_source,
    require_apart,
)
from windowing.schema.checks import DEFAULT_STREAM, did_you_mean
from windowing.schema.types import Schema
from windowing.topology.dead_letters import DeadLetter
from windowing.topology.plan import Topology
from windowing.trident.coordinator import Readiness
from windowing.trident.kinds import SpoutKind
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import BatchCoordinator, Emitter, ITridentSpout, SpoutBatch, SpoutContext
from windowing.trident.states import TridentCollector
from windowing.trident.transactional_state import RotatingTransactionalState, TransactionalState


def _require_source(what: str, schema: Schema, source: Any) -> None:
    """Raise ConfigError for an object that is no source, lacks a field, or has it with another type. `what` names the stream."""
    if not isinstance(source, PartitionedSpout):
        way_out = instead_of_class(source) or "give rows by batches=, or run the topology on Spark"
        raise ConfigError(f"the source of {what} is a PartitionedSpout in one process, got {quote(source)}; {way_out}")
    given = Schema.parse(source.fields)
    types = given.kinds
    for field, kind in schema.kinds.items():
        if types.get(field) != kind:
            has = "no such field" if field not in types else f"it as {types[field]}"
            raise ConfigError(
                f"the source of {what} declares {field!r} as {kind}, {type(source).__name__} has {has}; its fields are {given.ddl}"
            )


def _ranges_of(root: Root, task: int, tasks: int) -> dict[str, tuple[int, int]]:
    """Return the (start, end] of the partitions that one of the tasks emits."""
    ranges = root.ranges
    return {name: ranges[name] for name in sorted(root.end)[task::tasks] if name in ranges}


def _rows_of(
    spout: PartitionedSpout, name: str, schema: Schema, ranges: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a range of offsets `(start, end]` for each partition, in the fields of the schema. Raises SourceError."""
    from windowing.columnar.rows import values_of  # needs Arrow

    fields = Schema.parse(spout.fields)
    for partition, (start, end) in ranges.items():
        for batch in spout.read(partition, start, end):
            yield from zip(*map(values_of, fitted(batch, fields, name).select(list(schema.names)).columns), strict=True)


# -- LocalCluster ----------------------------------------------------------------------------------------------------------------


MessageId = tuple[str, int, int]
"""The stream, the number of the root, the number of the row in the root."""


@dataclass(slots=True)
class _OpenRoot:
    """A root. in_flight: messages that are not done. emitted: whether all its rows are emitted. failed: whether its source, which
    takes no acks, was told that a message failed. ended: whether it is done, or has failed at a source that takes acks.
    """

    root: Root
    in_flight: int = 0
    emitted: bool = False
    given_up: str | None = None
    failed: bool = False
    ended: bool = False


class SpoutRoots:
    """The roots of one spout for one stream, emitted by `tasks` tasks. Cost: O(1) per row, plus the spout's own calls."""

    def __init__(self, spout: PartitionedSpout, name: str, stream: str, schema: Schema, tasks: int) -> None:
        self.stream = stream
        self._spout, self._name = spout, name
        self._schema = schema
        self._progress = SpoutOffsets(spout, name)
        self._at: Offsets = {}
        self._next = 0
        self.ended = False
        """Whether no more batches begin, because the input has ended."""
        self.more = False
        """Whether the last call of `next_row` began a batch in which its task has no row: the source may not be at its end."""
        self.close = spout.close
        self._open = OrderedDict[int, _OpenRoot]()
        """In order; those that have ended are dropped once all before them have. A dict would search its first one past all that
        were dropped.
        """
        self._current: _OpenRoot | None = None
        self._rows: list[Iterator[tuple[Any, ...]]] = [iter(())] * tasks
        self._ahead: list[tuple[Any, ...] | None] = [None] * tasks
        """Of each task the next row, if it was looked at."""
        self._count = 0

    def begin(self) -> None:
        if self._spout.takes_acks:
            self._spout.begin(f"LocalCluster {uuid4().hex}", None)
        self._at = self._progress.initial()

    def next_row(self, task: int) -> tuple[MessageId, tuple[Any, ...]] | None:
        """Return the next row for this task to emit, with its message id; None if there is none now."""
        self.more = False
        row = self._ahead[task] or next(self._rows[task], None)
        if row is None and self.settle() and not self.ended and self._cut():
            row = next(self._rows[task], None)
            self.more = row is None
        if row is None:
            return None
        current, self._ahead[task] = self._current, None
        assert current is not None
        current.in_flight += 1
        self._count += 1
        return (self.stream, current.root.batch, self._count - 1), row

    def settle(self) -> bool:
        """Look whether all rows of the current root are emitted, which ends it if they are done, and return it."""
        for task, rows in enumerate(self._rows):
            if self._ahead[task] is None:
                self._ahead[task] = next(rows, None)
        if any(row is not None for row in self._ahead):
            return False
        current = self._current
        if current is not None and not current.emitted:
            current.emitted = True
            self._end_if_done(current)
        return True

    def done(self, message_id: MessageId, given_up: str | None = None) -> None:
        """Record that a message is done. given_up: the component of its dead letter, if the message ended as one."""
        found = self._open.get(message_id[1])
        if found is not None:
            found.in_flight -= 1
            found.given_up = found.given_up or given_up
            self._end_if_done(found)

    def failed(self, message_id: MessageId, component: str) -> None:
        """Record that a message failed for the last time and that its dead letter was not acked."""
        found = self._open.get(message_id[1])
        if found is None or found.ended:
            return
        if not self._spout.takes_acks:
            if not found.failed:
                found.failed = True
                self._spout.fail(found.root, component)
            self.done(message_id)
            return
        if not found.emitted:
            self._rows, self._ahead = [iter(())] * len(self._rows), [None] * len(self._rows)
            found.emitted = True
        self._end(found, component)

    def _cut(self) -> bool:
        """Begin the next root; return False if the spout has no new rows."""
        start, end = self._progress.batch(self._at, self._progress.newest(self._at), self._spout.max_rows)
        if end == start:
            return False
        root = Root(self._next, start, end)
        self._at, self._next, self._count = end, self._next + 1, 0
        self._open[root.batch] = self._current = _OpenRoot(root)
        for task in range(len(self._rows)):
            mine = _ranges_of(root, task, len(self._rows))
            self._rows[task] = _rows_of(self._spout, self._name, self._schema, mine)
        return True

    def _end_if_done(self, found: _OpenRoot) -> None:
        if found.emitted and not found.in_flight and not found.ended:
            self._end(found)

    def _end(self, found: _OpenRoot, failed: str | None = None) -> None:
        found.ended = True
        if failed is not None:
            self._spout.fail(found.root, failed)
        elif self._spout.takes_acks:
            if found.given_up is not None:
                self._spout.give_up(found.root, found.given_up)
            else:
                self._spout.ack(found.root)
        end = None
        while self._open and (first := next(iter(self._open.values()))).ended:
            end = self._open.pop(first.root.batch).root.end
        if end is not None:
            self._spout.commit(end)


class RootSource(TupleSource):
    """The source of one spout task: the rows of its roots, the streams in turn. Of a batch only failed rows are emitted again."""

    over = False
    poll_ms = 50  # a broker is asked each time

    def __init__(self, streams: list[SpoutRoots], task: int, collector: Any) -> None:
        self._streams = {each.stream: each for each in streams}
        self._turns = deque(streams)
        self._task, self._collector = task, collector

    def next_tuple(self) -> None:
        for _ in range(len(self._turns)):
            roots = self._turns[0]
            self._turns.rotate(-1)
            found = roots.next_row(self._task)
            if found is not None:
                self._collector.emit(found[1], message_id=found[0], stream=roots.stream)
                return
            self.more = self.more or roots.more

    def ack(self, message_id: MessageId, values: tuple[Any, ...]) -> None:
        self._streams[message_id[0]].done(message_id)

    def give_up(self, letter: DeadLetter, taken: bool) -> bool:
        roots = self._streams[letter.message_id[0]]
        if taken:
            roots.done(letter.message_id, letter.component)
        else:
            roots.failed(letter.message_id, letter.component)
        return True


def roots_of(topology: Topology, sources: Mapping[str, Any], batches: Any) -> dict[str, list[SpoutRoots]]:
    """Check the argument of `LocalCluster(sources=)` and return the roots by spout. Raises ConfigError."""
    if batches is not None:
        raise ConfigError(
            f"topology {topology.name!r} was given both batches= and sources=; rows by hand come in batches, each with a turn of "
            "its windows, a source is read as it comes: leave one of the two out"
        )
    if not isinstance(sources, Mapping):
        raise ConfigError(
            f"sources= is a mapping of InputSpouts to their sources, got {quote(sources)}; write sources={{'words': source}}"
        )
    require_inputs(topology, sources, "sources names")
    found: dict[str, list[SpoutRoots]] = {}
    given_to: dict[str, PartitionedSpout] = {}
    for name, given in sources.items():
        spout = topology.component(name)
        streams = spout.sources_of_streams(given, "sources")
        found[name] = [_roots(topology, name, stream, source, spout.parallelism) for stream, source in streams.items()]
        given_to |= {of_spout(name, stream): source for stream, source in streams.items()}
    require_apart(given_to)
    return found


def _roots(topology: Topology, name: str, stream: str, source: Any, tasks: int) -> SpoutRoots:
    what = of_spout(name, stream)
    schema = topology.component(name).outputs[stream].schema
    _require_source(what, schema, source)
    if source.takes_acks and topology.config.acker_executors == 0:
        raise ConfigError(
            f"the source of {what} forgets what is acked, and topology.acker.executors is 0, with which LocalCluster acks a row "
            "when it is emitted: it would be lost with the process; leave that setting out"
        )
    return SpoutRoots(source, name if stream == DEFAULT_STREAM else f"{name}:{stream}", stream, schema, tasks)


# -- TridentCluster --------------------------------------------------------------------------------------------------------------


class SourceBatches(ITridentSpout):
    """A PartitionedSpout as a spout of batches, for one stream. `state`: the records of that stream."""

    kind = SpoutKind.TRANSACTIONAL
    ends_when_dry = True
    """`run()` counts the spout as ended when it has no rows, like a spout of single tuples."""

    def __init__(self, source: PartitionedSpout, name: str, schema: Schema, state: TransactionalState) -> None:
        self.source, self.name, self.schema = source, name, schema
        self.output, self._state = schema.ddl, state

    def get_coordinator(self, context: SpoutContext) -> BatchCoordinator:
        return _SourceCoordinator(self.source, self.name, self._state)

    def get_emitter(self, context: SpoutContext) -> Emitter:
        return _SourceEmitter(self, context.task, context.tasks)


class _SourceCoordinator(BatchCoordinator):
    """Chooses the offsets of batches. `_open`: the offsets of batches that are not acked, by txid."""

    def __init__(self, source: PartitionedSpout, name: str, state: TransactionalState) -> None:
        self._source, self._progress = source, SpoutOffsets(source, name)
        stored = RotatingTransactionalState(state.at("coordinator"), "meta")
        self._open: dict[int, dict[str, Offsets]] = {txid: stored.get(txid) for txid in stored.txids()}
        last = stored.last()
        known = state.read("source")
        refuse_other_source(source, known, f"stream {name!r}", "its records have", "new records and new states")
        if known is None and source.identity is not None:  # 0.2.0 stored none
            state.write({"source": source.identity})
        if source.takes_acks:
            query = state.read("query")
            if query is None:
                query = f"TridentCluster {uuid4().hex}"
                state.write({"query": query})
            source.begin(query, None if last is None else last["end"])
        self._at: Offsets = self._progress.initial() if last is None else last["end"]

    def is_ready(self, txid: int) -> Readiness:
        start, end = self._next_batch(self._at)
        return Readiness.WAIT if end == start else Readiness.READY

    def initialize_transaction(self, txid: int, previous: Any, current: Any) -> Any:
        if current is None:
            start, end = self._next_batch(self._at if previous is None else previous["end"])
            current = {"start": dict(start), "end": end}
        self._open[txid] = current
        self._at = {**self._at, **{name: max(at, self._at.get(name, at)) for name, at in current["end"].items()}}
        return current

    def success(self, txid: int) -> None:
        for each in sorted(number for number in self._open if number <= txid):
            found = self._open.pop(each)
            root = Root(each, found["start"], found["end"])
            if self._source.takes_acks and root.ranges:
                self._source.ack(root)
            self._source.commit(found["end"])

    def _next_batch(self, at: Offsets) -> tuple[Offsets, dict[str, int]]:
        return self._progress.batch(at, self._progress.newest(at), self._source.max_rows)

    settle = success
    """Called when a run begins, with the last committed txid: an earlier run may have been killed before it acked that batch."""


class _SourceEmitter(Emitter):
    def __init__(self, spout: SourceBatches, task: int, tasks: int) -> None:
        self._spout, self._task, self._tasks = spout, task, tasks

    def emit_batch(self, batch: SpoutBatch, collector: TridentCollector) -> None:
        root, spout = Root(batch.attempt.txid, batch.metadata["start"], batch.metadata["end"]), self._spout
        for row in _rows_of(spout.source, spout.name, spout.schema, _ranges_of(root, self._task, self._tasks)):
            collector.emit(row)


def sources_of(
    plan: TridentPlan, sources: Any, batches: Mapping[str, Any]
) -> dict[str, Callable[[TransactionalState], SourceBatches]]:
    """Check the argument of `TridentCluster(sources=)` and return the factories of spouts by stream. Raises ConfigError."""
    schemas = {name: spout.schema for name, spout in plan.streams.items()}
    if not isinstance(sources, Mapping):
        raise ConfigError(
            f"sources= is a mapping of streams to their sources, got {quote(sources)}; write sources={{'words': source}}"
        )
    for name, source in sources.items():
        if name not in schemas:
            raise ConfigError(f"sources names {quote(name)}, which is no stream; {did_you_mean(str(name), schemas)}")
        if name in batches:
            raise ConfigError(f"stream {name!r} was given both batches= and a source; leave one of the two out")
        _require_source(f"stream {name!r}", schemas[name], source)
    require_apart({f"stream {name!r}": source for name, source in sources.items()})
    return {name: partial(SourceBatches, source, name, schemas[name]) for name, source in sources.items()}
