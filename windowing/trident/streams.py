"""The stream API of Trident: TridentTopology, Stream, GroupedStream, TridentState, ChainedAggregatorDeclarer.

    topology = TridentTopology("word_count")
    counts = (
        topology.new_stream("sentences", spout)                     sentence
        .each("sentence", split, "word string")                     sentence, word
        .group_by("word")
        .persistent_aggregate(factory, None, Count(), "n long")
    )
    topology.new_drpc_stream("count_of").each("args", split, "word string").group_by("word").state_query(counts, ...)
    plan = topology.build()

A chain of aggregators processes the same tuples in one pass; its rows are the cross product of the rows of its aggregators.

    combiners only      partial --exchange--> combine           the exchange carries one row per partition (and key)
    some combiners      init --exchange--> fold                 the exchange carries all tuples: the fields read, and first values
    no combiner         --exchange--> aggregate                 the exchange carries all tuples
    partition_aggregate aggregate                               no exchange

Laws: each call adds a step and returns the stream behind it; a stream never changes, so several steps may follow one stream.
A call whose arguments do not fit the method, such as those of an overload of Storm, is refused at once, with the call to write.
Everything else is checked by `build`, which reports all mistakes together, changes nothing, and may be called again.
Source: Storm's classes of these names, `GlobalAggregationScheme`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, ParamSpec, Self, TypeVar, Unpack

from windowing.errors import ConfigError, quote, warn
from windowing.schema.checks import StormNames, given_names, spelled
from windowing.schema.tuples import Names
from windowing.schema.types import Schema
from windowing.topology.config import Setting, settings_of, without_effect
from windowing.topology.groupings import (
    AllGrouping,
    BatchGlobalGrouping,
    CustomGrouping,
    FieldsGrouping,
    GlobalGrouping,
    IdentityGrouping,
    LocalOrShuffleGrouping,
    Partitioning,
    ShuffleGrouping,
)
from windowing.topology.plan import Topology
from windowing.trident.builtins import MaxBy, MinBy
from windowing.trident.maps import SnapshotFactory
from windowing.trident.operations import (
    Aggregate,
    AggregationStage,
    Each,
    Filter,
    FlatMap,
    Join,
    JoinType,
    Map,
    Merge,
    Operation,
    Peek,
    Project,
    SinkOperation,
)
from windowing.trident.plan import GraphBuilder, StepDeclaration, StreamSource, TridentPlan
from windowing.trident.planner import built, unread
from windowing.trident.processors import AggregatorKind, AggSpec, kind_of
from windowing.trident.state_operations import CombinerUpdater, Persist, Query, StateSpec
from windowing.trident.windows import LateTuples, WindowOperation
from windowing.windows.config import WindowOptions
from windowing.windows.measures import Count, Duration

_P = ParamSpec("_P")
_R = TypeVar("_R")


_SUM = "'amount', Sum(), 'total long')"
_NO_STORE = f"{_SUM}: fields or None, aggregator, output; a window needs no store"
_CALLS = {
    "new_stream": "new_stream('sentences', spout): the name under which its progress is stored, the spout, and its fields if it "
    "does not declare them",
    "new_drpc_stream": "new_drpc_stream('count_of'); TridentCluster(topology).ask('count_of', 'to be') sends a request",
    "filter": "filter(condition), or of some fields filter(condition, 'word')",
    "each": "each('sentence', split, 'word string'), or with all fields each(None, split, 'word string')",
    "aggregate": f"aggregate(None, Count(), 'n long'), or with fields aggregate({_SUM}",
    "partition_aggregate": f"partition_aggregate(None, Count(), 'n long'), or with fields partition_aggregate({_SUM}",
    "window": f"window(seconds(10), seconds(5), {_NO_STORE}",
    "tumbling_window": f"tumbling_window(count(100), {_NO_STORE}",
    "sliding_window": f"sliding_window(count(100), count(10), {_NO_STORE}",
    "partition_persist": "partition_persist(state, 'word', Updater()): state, fields or None, updater, and an output if it emits",
    "persistent_aggregate": f"persistent_aggregate(state, None, Count(), 'n long'), or with fields (state, {_SUM}",
    "state_query": "state_query(state, 'word', MapGet(), 'n long'), or without fields (state, None, SnapshotGet(), 'n long')",
    "join": "join([one, other], ['id', 'user'], ['id', 'name', 'amount']): the streams, the key of each, the fields of the rows",
}
"""What to write, by the name of the method whose arguments do not fit."""
_METHODS = ("execute", "keep", "update_state", "batch_retrieve")
"""The methods of objects that are code, and no names of fields."""


def _written(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a method refuse arguments that do not fit it, or code where names of fields belong, with the call to write."""

    signature, name = inspect.signature(method), method.__name__

    @functools.wraps(method)
    def checked(*given: _P.args, **named: _P.kwargs) -> _R:
        try:
            inputs = signature.bind(*given, **named).arguments.get("inputs")
        except TypeError as problem:
            raise ConfigError(f"{name}: {problem}; write {_CALLS[name]}") from None
        if callable(inputs) or kind_of(inputs) or any(hasattr(inputs, method) for method in _METHODS):
            raise ConfigError(
                f"{name}: its fields are {quote(inputs)}, which is no name of a field; write {_CALLS[name]}"
            )
        return method(*given, **named)

    return checked


class ChainedAggregatorDeclarer(StormNames):
    """Collects aggregators; `chain_end` makes the steps.

    group: the fields of the key, None for all tuples together. to: the exchange that brings all tuples of a batch to one partition
    when there is no key.
    """

    __slots__ = ("_full", "_group", "_specs", "_stream", "_to")

    def __init__(self, stream: Stream, group: tuple[Any, ...] | None, to: Partitioning | None = None) -> None:
        self._stream, self._group = stream, group
        self._to = BatchGlobalGrouping() if to is None else to
        self._specs: list[AggSpec] = []
        self._full: list[bool] = []

    @_written
    def aggregate(
        self, inputs: Names | None, aggregator: Any, output: str | Schema | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over the whole batch."""
        return self._add(inputs, aggregator, output, full=True)

    @_written
    def partition_aggregate(
        self, inputs: Names | None, aggregator: Any, output: str | Schema | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over each partition of the batch."""
        return self._add(inputs, aggregator, output, full=False)

    def chain_end(self) -> Stream:
        """Return the stream of the results: the fields of the key, then those of each aggregator."""
        stream, specs = self._stream, tuple(self._specs)
        if len(set(self._full)) > 1:
            stream._builder.note(
                f"a chain behind {stream._step.called} has aggregate and partition_aggregate; use one of them in a chain"
            )
        if not all(self._full):
            return stream._then(Aggregate(specs, self._group))
        combiners = [kind_of(spec.aggregator) is AggregatorKind.COMBINER for spec in specs]
        if any(combiners):
            before, after = (
                (AggregationStage.PARTIAL, AggregationStage.COMBINE)
                if all(combiners)
                else (AggregationStage.INIT, AggregationStage.FOLD)
            )
            partial = stream._then(Aggregate(specs, self._group, stage=before))
            return self._together(partial)._then(Aggregate(specs, self._group, self._to, after))
        return self._together(stream)._then(Aggregate(specs, self._group, self._to))

    def _add(self, inputs: Names | None, aggregator: Any, output: Any, full: bool) -> ChainedAggregatorDeclarer:
        self._specs.append(AggSpec(_read(inputs), aggregator, output))
        self._full.append(full)
        return self

    def _together(self, stream: Stream) -> Stream:
        return stream.repartition(self._to if self._group is None else FieldsGrouping(self._group))


# -- streams ---------------------------------------------------------------------------------------------------------------------


_Output = str | Schema
_Function = Callable[[Any], Any] | object
"""A function of a tuple, or (tuple, collector), or an object with a method; the first names the type of a lambda's argument."""
_Length = Count | Duration | Any
_Built = TypeVar("_Built")


class AggregableStream(StormNames):
    """The common base of streams and grouped streams: aggregation within a batch, and windows over batches."""

    __slots__ = ()

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same tuples; `.chain_end()` gives the stream of their results."""
        raise NotImplementedError

    @_written
    def aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate a whole batch; one partition emits, also for an empty batch. With groups: emit the fields of each group, then
        those of the aggregator. Combiners aggregate before the exchange.
        """
        return self.chained_agg().aggregate(inputs, aggregator, output).chain_end()

    @_written
    def window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowOutput:
        """Aggregate windows over batches, for each partition or group, by an aggregator over `inputs` or a function of (window).

        The options are those of `WindowConfig.of`; with `timestamp=` the windows are on event time.
        """
        spec = AggSpec(_read(inputs), aggregator, output)
        return self._window(length, slide, spec, options)

    @_written
    def tumbling_window(
        self, length: _Length, inputs: Names | None, aggregator: Any, output: _Output, **options: Unpack[WindowOptions]
    ) -> WindowOutput:
        """Aggregate adjacent windows: the slide equals the length."""
        return self.window(length, length, inputs, aggregator, output, **options)

    @_written
    def sliding_window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowOutput:
        """Aggregate windows of `length` that begin every `slide`."""
        return self.window(length, slide, inputs, aggregator, output, **options)

    def _window(self, length: Any, slide: Any, spec: AggSpec, options: Mapping[str, Any]) -> WindowOutput:
        raise NotImplementedError


_MULTI_REDUCE = "join([a, b], ...) or merge(a, b) of the topology; there is no reducer of several streams"


class Stream(AggregableStream):
    """A stream of tuples in batches. Made by `TridentTopology`; every method returns a new one."""

    __slots__ = ("_builder", "_name", "_step")

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "min": "min_by('amount'), or min_by(None, key=...) with a function of (row) in place of a Comparator",
        "max": "max_by('amount'), or max_by(None, key=...) with a function of (row) in place of a Comparator",
        "reduce": "aggregate('amount', reducer, 'total long') with an object that has init and reduce",
        "multiReduce": _MULTI_REDUCE,
        "late_stream": "windows = stream.window(...), and windows.late_stream(); other steps lead to a stream without it",
        "setCPULoad setCpuLoad setMemoryLoad addResource addSharedMemory": (
            "nothing: steps have no resources of their own; on Spark the session has them (spark.executor.memory)"
        ),
    }

    def __init__(self, builder: GraphBuilder, step: StepDeclaration, name: str | None = None) -> None:
        self._builder, self._step, self._name = builder, step, name

    # -- one tuple at a time -------------------------------------------------------------------------------------------

    @_written
    def each(self, inputs: Names | None, function: _Function, output: _Output | None = None) -> Stream:
        """Append the rows that a function of these fields (None: all) returns, yields or emits, one tuple per row; without output:
        filter.
        """
        if output is None:
            return self.filter(function, inputs)
        return self._then(Each(function, output, _read(inputs)))

    @_written
    def filter(self, condition: _Function, inputs: Names | None = None) -> Stream:
        """Keep the tuples for which a condition on these fields (default: all) is true; a function, or an object with `keep`."""
        return self._then(Filter(condition, inputs=_read(inputs)))

    def map(self, function: _Function, output: _Output | None = None) -> Stream:
        """Replace each tuple by the row that a function of it returns; without output the fields stay the same."""
        return self._then(Map(function, output))

    def flat_map(self, function: _Function, output: _Output | None = None) -> Stream:
        """Replace each tuple by the rows, none or many, that a function of it returns."""
        return self._then(FlatMap(function, output))

    def peek(self, function: _Function) -> Stream:
        """Call a function with each tuple, for its side effects; they are repeated when a batch is tried again."""
        return self._then(Peek(function))

    def project(self, *names: Names) -> Stream:
        """Keep these fields only, in this order."""
        return self._then(Project(_names(*names)))

    # -- repartitioning ------------------------------------------------------------------------------------------------

    def partition_by(self, *names: Names) -> Stream:
        """Send tuples with equal values of these fields to the same partition."""
        return self.repartition(FieldsGrouping(_names(*names)))

    def shuffle(self) -> Stream:
        """Distribute tuples evenly over all partitions."""
        return self.repartition(ShuffleGrouping())

    def local_or_shuffle(self) -> Stream:
        """Distribute tuples evenly over the partitions in their own worker, or over all if it has none."""
        return self.repartition(LocalOrShuffleGrouping())

    def global_(self) -> Stream:
        """Send all tuples of all batches to the first partition."""
        return self.repartition(GlobalGrouping())

    def batch_global(self) -> Stream:
        """Send all tuples of a batch to one partition; the next batch goes to the next partition."""
        return self.repartition(BatchGlobalGrouping())

    def broadcast(self) -> Stream:
        """Send every tuple to every partition."""
        return self.repartition(AllGrouping())

    def identity_partition(self) -> Stream:
        """Leave tuples in their partition, but begin a new group of operators."""
        return self.repartition(IdentityGrouping())

    def partition(self, choose: Callable[[Any, int], Any] | object) -> Stream:
        """Send each tuple to the partition that a function of (values, partitions) returns; values in the order of the fields."""
        return self.repartition(CustomGrouping(choose))

    def repartition(self, grouping: Partitioning) -> Stream:
        """Repartition by a grouping object."""
        # Between two repartitions stands a step that passes all tuples on, as in Storm.
        return (self._then(Merge()) if self._step.is_partition else self)._then(grouping)

    # -- many tuples of a batch ----------------------------------------------------------------------------------------

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same tuples; `.chain_end()` gives the stream of their results."""
        return ChainedAggregatorDeclarer(self, None)

    @_written
    def partition_aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate each partition of a batch, without an exchange; every partition emits.

        output: default is the fields of `inputs`.
        """
        return self.chained_agg().partition_aggregate(inputs, aggregator, output).chain_end()

    def min_by(self, field: str | None, key: Callable[[Any], Any] | None = None) -> Stream:
        """Keep the tuple with the smallest value of a field in each partition of a batch. `key` maps values for comparison; with
        the field None it maps whole tuples, as a Comparator compares them in Storm.
        """
        return self.partition_aggregate(None, MinBy(field, key))

    def max_by(self, field: str | None, key: Callable[[Any], Any] | None = None) -> Stream:
        """Keep the tuple with the largest value of a field in each partition of a batch; `field` and `key` as in `min_by`."""
        return self.partition_aggregate(None, MaxBy(field, key))

    def group_by(self, *names: Names) -> GroupedStream:
        """Group by the values of these fields; the following steps process each group of a batch."""
        return GroupedStream(self, _names(*names))

    # -- state ---------------------------------------------------------------------------------------------------------

    @_written
    def partition_persist(
        self, state: Any, inputs: Names | None, updater: Any, output: _Output | None = None
    ) -> TridentState:
        """Write each partition of a batch into a partition of a state, in the commit phase.

        state: a StateFactory, or a StateSpec of one. output: the fields of the rows that the updater emits.
        """
        return self._persist(state, inputs=inputs, updater=updater, output=output)

    @_written
    def persistent_aggregate(self, state: Any, inputs: Names | None, aggregator: Any, output: _Output) -> TridentState:
        """Keep the aggregate of all batches as the single value of a state, in one partition. Each batch emits the new value, with
        a reducer only if it has tuples.
        """
        whole = _spec(state)
        if whole.kind is not None:
            factory = whole.factory if isinstance(whole.factory, SnapshotFactory) else SnapshotFactory(whole.factory)
            whole = StateSpec(factory, whole.partitions or 1, whole.accept)
        if kind_of(aggregator) is AggregatorKind.REDUCER:
            return self.global_()._persist(whole, inputs=inputs, updater=aggregator, output=output, reduces=True)
        chain = ChainedAggregatorDeclarer(self, None, GlobalGrouping())
        one = chain.aggregate(inputs, aggregator, output).chain_end()
        return one._persist(whole, inputs=None, updater=CombinerUpdater(aggregator, 0, _read(inputs)), output=output)

    @_written
    def state_query(self, state: TridentState, inputs: Names | None, function: Any, output: _Output) -> Stream:
        """Append the result of a query of the committed state for each tuple; the state is read once per batch."""
        if not isinstance(state, TridentState) or state._builder is not self._builder:
            self._builder.note(f"state_query is given {quote(state)}; give a TridentState of this topology")
        asked = state.id if isinstance(state, TridentState) else ""
        return self._then(Query(asked, _read(inputs), function, output))

    # -- the plan ------------------------------------------------------------------------------------------------------

    def sink(self, name: str) -> Stream:
        """Make the stream an output with a name; the driver writes the rows of each committed batch."""
        return self._then(SinkOperation(name))

    def name(self, name: str) -> Self:
        """Name the following steps, in drawings and in the ids of groups."""
        return type(self)(self._builder, self._step, name)

    def parallelism_hint(self, parallelism: int) -> Self:
        """Request this many tasks for the group of the preceding step; the largest hint in a group counts."""
        self._step.hint = parallelism
        return self

    def to_stream(self) -> Stream:
        """Return this stream, which has no groups."""
        return self

    def apply_assembly(self, assembly: Callable[[Stream], _Built]) -> _Built:
        """Return the result of applying a function to this stream: several steps as one."""
        return assembly(self)

    def __repr__(self) -> str:
        return f"Stream({self._step.called!r})"

    def _then(self, what: Operation | Partitioning) -> Stream:
        return Stream(self._builder, self._builder.add(what, (self._step,), self._name), self._name)

    def _window(
        self,
        length: Any,
        slide: Any,
        spec: AggSpec,
        options: Mapping[str, Any],
        group: tuple[Any, ...] | None = None,
    ) -> WindowOutput:
        if not self._step.is_partition:  # windows begin a group of their own
            return self.identity_partition()._window(length, slide, spec, options, group)
        number = len(self._builder.steps) + 1
        name = self._name if isinstance(self._name, str) and self._name.isidentifier() else "window"
        operation = WindowOperation(f"{name}_{number}", length, slide, spec, group, dict(options))
        return WindowOutput(self._builder, self._builder.add(operation, (self._step,), self._name), self._name)

    def _persist(self, state: Any, *, inputs: Any, **rest: Any) -> TridentState:
        spec = _spec(state)
        id = self._builder.state_id()
        operation = Persist(state=id, spec=spec, inputs=_read(inputs), **rest)
        return TridentState(
            self._builder, id, spec, self._builder.add(operation, (self._step,), self._name), self._name
        )


class WindowOutput(Stream):
    """The stream of rows that windows emit."""

    __slots__ = ()

    def late_stream(self) -> Stream:
        """Return the stream of late tuples, with an added field `reason`. Needs `timestamp=`."""
        window = self._step.what
        assert isinstance(window, WindowOperation)
        return self._then(LateTuples(window.options.get("timestamp") is not None))


class GroupedStream(AggregableStream):
    """A stream whose tuples are grouped by equal values of some fields."""

    __slots__ = ("_group", "_stream")

    _elsewhere: ClassVar[Mapping[str, str]] = {
        **{name: f"to_stream().{name}, without groups" for name in vars(Stream) if not name.startswith("_")},
        "filter": "each(inputs, condition), which keeps the groups",
        "min min_by minBy": "aggregate(None, MinBy('amount'), output), of each group",
        "max max_by maxBy": "aggregate(None, MaxBy('amount'), output), of each group",
    }

    def __init__(self, stream: Stream, group: tuple[Any, ...]) -> None:
        self._stream, self._group = stream, group

    def __repr__(self) -> str:
        return f"GroupedStream({self._stream!r}, {', '.join(map(repr, self._group))})"

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same groups."""
        return ChainedAggregatorDeclarer(self._stream, self._group)

    @_written
    def partition_aggregate(
        self, inputs: Names | None, aggregator: Any, output: _Output | None = None
    ) -> GroupedStream:
        """Aggregate each group in each partition of a batch, without an exchange; the groups stay the same, as in Storm.

        output: default is the fields of `inputs`; the fields of the group come before them. `to_stream()` gives the stream of the
        results without groups, as `chained_agg()` does.
        """
        return GroupedStream(
            self.chained_agg().partition_aggregate(inputs, aggregator, output).chain_end(), self._group
        )

    @_written
    def persistent_aggregate(self, state: Any, inputs: Names | None, aggregator: Any, output: _Output) -> TridentState:
        """Keep the aggregate of all batches for each group, in a map; the new values of each batch are a stream.

        A combiner first combines within the batch; a reducer gets the tuples of each key.
        """
        if kind_of(aggregator) is AggregatorKind.REDUCER:
            there = self._stream.partition_by(self._group)
            rest = {"updater": aggregator, "output": output, "group": self._group, "reduces": True}
            return there._persist(state, inputs=inputs, **rest)
        values = self.aggregate(inputs, aggregator, output)
        updater = CombinerUpdater(aggregator, len(self._group), _read(inputs))
        return values._persist(state, inputs=None, updater=updater, output=output, group=self._group)

    @_written
    def state_query(self, state: TridentState, inputs: Names | None, function: Any, output: _Output) -> Stream:
        """Query a state that is partitioned by the same fields; the result has no groups, as in Storm."""
        return self._stream.partition_by(self._group).state_query(state, inputs, function, output)

    @_written
    def each(self, inputs: Names | None, function: _Function, output: _Output | None = None) -> GroupedStream:
        """Append the rows of a function to each tuple, or filter; the groups stay the same."""
        return GroupedStream(self._stream.each(inputs, function, output), self._group)

    def _window(self, length: Any, slide: Any, spec: AggSpec, options: Mapping[str, Any]) -> WindowOutput:
        return self._stream.partition_by(self._group)._window(length, slide, spec, options, self._group)

    def name(self, name: str) -> GroupedStream:
        """Name the following steps, in drawings and in the ids of groups."""
        return GroupedStream(self._stream.name(name), self._group)

    def to_stream(self) -> Stream:
        """Return the stream without its groups."""
        return self._stream


class TridentState(StormNames):
    """A state of a topology, for queries, and the stream of its new values."""

    __slots__ = ("_builder", "_name", "_step", "id", "spec")

    def __init__(
        self,
        builder: GraphBuilder,
        id: str,
        spec: StateSpec,
        step: StepDeclaration | None = None,
        name: str | None = None,
    ) -> None:
        self.id, self.spec = id, spec
        self._builder, self._step, self._name = builder, step, name

    def __repr__(self) -> str:
        return f"TridentState({self.id!r})"

    def new_values_stream(self) -> Stream:
        """Return the stream of values that each commit writes. Neither windows nor queries of the same state may follow."""
        step = self._step
        if step is None:
            step = self._builder.add(Merge(), (), self._name)
            self._builder.note(f"{self.id} is a static state, which no stream writes, so it has no new values")
        return Stream(self._builder, step, self._name)

    def parallelism_hint(self, parallelism: int) -> TridentState:
        """Request this many partitions."""
        if self._step is None:
            self._builder.note(
                f"{self.id} is a static state, which no stream writes, so it has no tasks; put the hint behind its state_query"
            )
        else:
            self._step.hint = parallelism
        return self


def _spec(state: Any) -> StateSpec:
    return state if isinstance(state, StateSpec) else StateSpec(state)


# -- TridentTopology -------------------------------------------------------------------------------------------------------------


class TridentTopology(StormNames):
    """Builds a Trident topology: streams from `new_stream`, operations on them, then `build()`, which every driver calls by itself.

    `name` identifies it in messages, drawings and checkpoints. `build` raises one TopologyError with all mistakes; a call whose
    arguments do not fit raises ConfigError. Source: Storm's `TridentTopology`.

    >>> from windowing import InputSpout
    >>> from windowing.local import run_trident
    >>> from windowing.stores import MemoryStore, map_state
    >>> from windowing.trident import Count
    >>> topology = TridentTopology("words")
    >>> words = topology.new_stream("words", InputSpout("word string"))
    >>> _ = words.group_by("word").persistent_aggregate(map_state(MemoryStore(), "counts"), None, Count(), "n long")
    >>> run_trident(topology, {"words": [[("to",), ("be",)], [("to",)]]}).states["state1"]
    {('be',): 1, ('to',): 2}
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {"multiReduce": _MULTI_REDUCE}

    @spelled
    def __init__(self, name: str = "trident") -> None:
        self.name = name
        self._settings: list[Setting] = []
        self._builder = GraphBuilder()

    def __repr__(self) -> str:
        return f"TridentTopology({self.name!r})"

    def configure(self, settings: Mapping[str, Any] | None = None, /, *stray: Any, **typed: Any) -> TridentTopology:
        """Set options of the whole topology, by Storm's keys or typed names; a later value replaces an earlier one."""
        self._settings += settings_of(settings, typed, stray)
        return self

    @_written
    def new_stream(self, name: str, spout: Any, output: str | Schema | None = None) -> Stream:
        """Begin a stream with a spout. The spout's progress is stored under `name`, so the name must not change.

        output: the fields, for a spout that does not declare them.
        """
        return Stream(self._builder, self._builder.add(StreamSource(name, spout, output), ()))

    @_written
    def new_drpc_stream(self, function: str) -> Stream:
        """Begin a stream with the requests of a DRPC function: one string field `args`. The rows of the last added step answer."""
        return Stream(self._builder, self._builder.add(StreamSource(function, is_drpc=True), ()))

    def new_static_state(self, state: Any) -> TridentState:
        """Return a read-only state for queries, which this topology does not write."""
        id, spec = self._builder.state_id(), _spec(state)
        self._builder.static_states[id] = spec
        return TridentState(self._builder, id, spec)

    def merge(self, *streams: Stream | Sequence[Stream], names: Names | None = None) -> Stream:
        """Merge streams with the same types into one; the field names are those of the first stream."""
        return self._of(Merge(_read(names)), _flat(streams), "merge")

    @_written
    def join(
        self,
        streams: Sequence[Stream],
        keys: str | Sequence[Names],
        names: Names | None = None,
        kinds: JoinType | Sequence[JoinType] = JoinType.INNER,
    ) -> Stream:
        """Join streams by key, within a batch.

        keys: one field name for all streams, or the key field or fields of each stream. names: of the output fields, first those of
        the key, then the others of each stream; None keeps the names. kinds: one JoinType for all streams, or one for each.
        """
        if isinstance(streams, Stream):
            raise ConfigError(f"join takes a list of streams, got {quote(streams)}; write join([one, other], 'key')")
        sides = _flat(streams)
        for_all = isinstance(keys, str) or not isinstance(keys, Iterable)
        by = [_names(keys)] * len(sides) if for_all else [_names(key) for key in keys]
        how = list(kinds) if isinstance(kinds, Iterable) and not isinstance(kinds, str) else [kinds] * len(sides)
        if len(by) != len(sides) or len(how) != len(sides):
            self._builder.note(
                f"a join of {len(sides)} streams is given {len(by)} keys and {len(how)} kinds; give one of each for each stream"
            )
            return Stream(self._builder, self._builder.add(Merge(), ()))
        brought = [
            side.repartition(FieldsGrouping(key)) if isinstance(side, Stream) else side
            for side, key in zip(sides, by, strict=True)
        ]
        return self._of(Join(tuple(by), _read(names), tuple(how)), brought, "join")

    def build(self) -> TridentPlan:
        """Return the plan, or raise TopologyError with a sentence for every mistake. Cost: O(steps)."""
        plan = built(self.name, self._builder, self._settings)
        idle = without_effect(plan.config.own)
        if idle is not None:
            warn(f"topology {self.name!r}: settings {idle}")
        dropped = unread(plan.graph)
        if dropped:
            warn(
                f"topology {self.name!r}: the rows of {'; '.join(dropped)} go to no sink and no state; write .sink('name') behind "
                "it, or .peek(function) in place of a function that is called for its effects"
            )
        return plan

    def _of(self, operation: Operation, streams: Sequence[Any], what: str) -> Stream:
        good = [stream for stream in streams if isinstance(stream, Stream)]
        for stream in streams:
            if not isinstance(stream, Stream):
                self._builder.note(f"{what} is given {quote(stream)}; give streams of this topology")
            elif stream._builder is not self._builder:
                self._builder.note(f"{what} is given {stream!r} of another topology; give streams of this one")
        if len(streams) < (2 if what == "merge" else 1):
            self._builder.note(f"{what} is given {len(streams)} streams; give two or more")
        complete = len(good) == len(streams) and all(stream._builder is self._builder for stream in good)
        return Stream(
            self._builder, self._builder.add(operation, tuple(stream._step for stream in good) if complete else ())
        )


def planned(given: Any, runner: str) -> TridentPlan:
    """Return the plan of a TridentTopology; a plan is returned unchanged. Raises ConfigError for other values."""
    if isinstance(given, TridentTopology):
        return given.build()
    if isinstance(given, TridentPlan):
        if all(stage.section is None for stage in given.stages.values()):
            return given
        raise ConfigError(
            f"{runner} was given the plan of {given.name!r} as execution_plan() shows it, cut by section; give the topology, "
            "or what its build() returns"
        )
    other = {"submit_trident": "submit", "TridentCluster": "LocalCluster"}.get(runner)
    if other is not None and (isinstance(given, Topology) or hasattr(given, "set_bolt")):
        raise ConfigError(f"{runner} runs a TridentTopology, got one of bolts; use {other}(builder.build(), ...)")
    raise ConfigError(
        f"{runner} runs a TridentTopology or its plan, its first argument, got {quote(given)}; its name and settings are "
        "TridentTopology(name).configure({...})"
    )


def _read(names: Names | None) -> tuple[str, ...] | None:
    """Return names of fields; None, for all fields or names as they are, is unchanged."""
    return None if names is None else _names(names)


def _names(*given: Any) -> tuple[str, ...]:
    """Return all names of fields, each given as one or as several, unchecked."""
    return tuple(name for each in given if each is not None for name in given_names(each))


def _flat(streams: Iterable[Any]) -> list[Any]:
    return [each for one in streams for each in (one if isinstance(one, list | tuple) else (one,))]
