"""Stream, GroupedStream, TridentState: the fluent part of a Trident topology. Each call adds a step and returns what follows it.

    topology.new_stream("sentences", spout)                 sentence
        .each("sentence", split, "word string")             sentence, word
        .group_by("word")
        .persistent_aggregate(factory, None, Count(), "n long")

Laws: nothing here raises or looks at fields; a stream never changes, so one stream may have many steps behind it; all mistakes are
found by `TridentTopology.build`. Source: Storm's classes of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

from windowing.core.config import WindowOptions
from windowing.core.measures import Count, Duration
from windowing.core.storm_names import StormNames
from windowing.errors import shown
from windowing.topology.groupings import (
    AllGrouping,
    CustomGrouping,
    FieldsGrouping,
    GlobalGrouping,
    LocalOrShuffleGrouping,
    ShuffleGrouping,
)
from windowing.topology.schema import Schema
from windowing.topology.trident.aggregating import AggregatorKind, Emits, kind_of
from windowing.topology.trident.builtins import MaxBy, MinBy
from windowing.topology.trident.chained import ChainedAggregatorDeclarer
from windowing.topology.trident.fields import Names, names_of
from windowing.topology.trident.graph import Draft, Sketch
from windowing.topology.trident.grouping import AggSpec
from windowing.topology.trident.operations import Each, Filter, FlatMap, Map, Merge, Operation, Peek, Project, Sink
from windowing.topology.trident.partitions import BatchGlobalGrouping, IdentityGrouping, Partitioning
from windowing.topology.trident.stateful import CombinerUpdater, Persist, Query, SnapshotFactory, StateSpec
from windowing.topology.trident.windowed import LateTuples, Window

__all__ = ["GroupedStream", "Stream", "TridentState", "WindowedStream"]

_Output = str | Schema
_Length = Count | Duration | Any
_Built = TypeVar("_Built")


class Stream(StormNames):
    """A stream of tuples in batches. Made by `TridentTopology`; every method returns a new one."""

    __slots__ = ("_draft", "_name", "_sketch")

    def __init__(self, sketch: Sketch, draft: Draft, name: str | None = None) -> None:
        self._sketch, self._draft, self._name = sketch, draft, name

    # -- one tuple at a time -------------------------------------------------------------------------------------------

    def each(self, inputs: Names, function: Any, output: _Output | None = None) -> Stream:
        """Append what a function of these fields returns, yields or emits, a tuple for each row; without output: filter."""
        if output is None:
            return self.filter(function, inputs)
        return self._then(Each(names_of(inputs), function, output))

    def filter(self, condition: Any, inputs: Names | None = None) -> Stream:
        """Keep the tuples of which a condition on these fields, or on all, is true: a function, or an object with `keep`."""
        return self._then(Filter(None if inputs is None else names_of(inputs), condition))

    def map(self, function: Any, output: _Output | None = None) -> Stream:
        """Put the row that a function of the tuple returns in its place; without output the fields stay as they are."""
        return self._then(Map(function, output))

    def flat_map(self, function: Any, output: _Output | None = None) -> Stream:
        """Put the rows that a function of the tuple returns, none or many, in its place."""
        return self._then(FlatMap(function, output))

    def peek(self, function: Any) -> Stream:
        """Show each tuple to a function, for what it does outside; a batch that is tried again is shown again."""
        return self._then(Peek(function))

    def project(self, *names: Names) -> Stream:
        """Keep these fields only, in this order."""
        return self._then(Project(tuple(name for each in names for name in names_of(each))))

    # -- where tuples are ----------------------------------------------------------------------------------------------

    def partition_by(self, *names: Names) -> Stream:
        """Bring tuples with equal values of these fields into one partition."""
        return self.repartition(FieldsGrouping(tuple(name for each in names for name in names_of(each))))

    def shuffle(self) -> Stream:
        """Spread tuples evenly."""
        return self.repartition(ShuffleGrouping())

    def local_or_shuffle(self) -> Stream:
        """Spread tuples evenly over the partitions in their own worker if there are any."""
        return self.repartition(LocalOrShuffleGrouping())

    def global_(self) -> Stream:
        """Bring all tuples of all batches into the first partition."""
        return self.repartition(GlobalGrouping())

    def batch_global(self) -> Stream:
        """Bring all tuples of a batch into one partition, those of the next into another."""
        return self.repartition(BatchGlobalGrouping())

    def broadcast(self) -> Stream:
        """Bring every tuple into every partition."""
        return self.repartition(AllGrouping())

    def identity_partition(self) -> Stream:
        """Leave tuples in their partition; what follows is another group all the same."""
        return self.repartition(IdentityGrouping())

    def partition(self, choose: Any) -> Stream:
        """Bring each tuple where a function of (values, partitions) says, of values in the order of the fields."""
        return self.repartition(CustomGrouping(choose))

    def repartition(self, grouping: Partitioning) -> Stream:
        """Move tuples as a grouping says that is given as data."""
        return self._repartitioned(grouping)

    # -- many tuples of a batch ----------------------------------------------------------------------------------------

    def partition_aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate what one partition has of a batch; each partition emits. Without output: the fields of `inputs`."""
        return self.chained_agg().partition_aggregate(inputs, aggregator, output).chain_end()

    def aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate a batch; one partition emits, for an empty batch too. Combiners work before tuples travel."""
        return self.chained_agg().aggregate(inputs, aggregator, output).chain_end()

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same tuples; `.chain_end()` gives the stream of their results."""
        return ChainedAggregatorDeclarer(self, None)

    def min_by(self, field: str, key: Callable[[Any], Any] | None = None) -> Stream:
        """Keep, of each partition of a batch, the tuple with the smallest value of a field; `key` says what is compared."""
        return self.partition_aggregate(None, MinBy(field, key))

    def max_by(self, field: str, key: Callable[[Any], Any] | None = None) -> Stream:
        """Keep, of each partition of a batch, the tuple with the largest value of a field; `key` says what is compared."""
        return self.partition_aggregate(None, MaxBy(field, key))

    def group_by(self, *names: Names) -> GroupedStream:
        """Group by the values of these fields; what follows works on each group of a batch."""
        return GroupedStream(self, tuple(name for each in names for name in names_of(each)))

    # -- windows -------------------------------------------------------------------------------------------------------

    def window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowedStream:
        """Aggregate windows of each partition, over batches: an aggregator over `inputs`, or a function of (window).

        The options are those of `WindowConfig.of`; with `timestamp=` the windows are of event time.
        """
        return self._window(
            length, slide, AggSpec(None if inputs is None else names_of(inputs), aggregator, output), options
        )

    def tumbling_window(
        self, length: _Length, inputs: Names | None, aggregator: Any, output: _Output, **options: Unpack[WindowOptions]
    ) -> WindowedStream:
        """Aggregate adjacent windows, each as long as the slide."""
        return self.window(length, length, inputs, aggregator, output, **options)

    def sliding_window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowedStream:
        """Aggregate windows of `length` that begin every `slide`."""
        return self.window(length, slide, inputs, aggregator, output, **options)

    # -- state ---------------------------------------------------------------------------------------------------------

    def partition_persist(
        self, state: Any, inputs: Names | None, updater: Any, output: _Output | None = None
    ) -> TridentState:
        """Write each partition of a batch into a partition of a state, in the commit phase; `output`: what the updater emits.

        state: a StateFactory, or a StateSpec of one.
        """
        return self._persist(state, inputs=inputs, updater=updater, output=output)

    def persistent_aggregate(self, state: Any, inputs: Names | None, aggregator: Any, output: _Output) -> TridentState:
        """Keep the aggregate of all batches as the one value of a state, in one partition; new values come in each batch."""
        whole = _spec(state)
        if whole.kind is not None:
            whole = StateSpec(SnapshotFactory(whole.factory), whole.partitions or 1, whole.accept)
        if kind_of(aggregator) is AggregatorKind.REDUCER:
            return self.global_()._persist(whole, inputs=inputs, updater=aggregator, output=output, reduces=True)
        chain = ChainedAggregatorDeclarer(self, None, GlobalGrouping(), Emits.FIRST)
        one = chain.aggregate(inputs, aggregator, output).chain_end()
        return one._persist(whole, inputs=None, updater=CombinerUpdater(aggregator, 0), output=output)

    def state_query(self, state: TridentState, inputs: Names | None, function: Any, output: _Output) -> Stream:
        """Append what a state answers about each tuple; asked once for a batch, of what is committed."""
        if not isinstance(state, TridentState) or state._sketch is not self._sketch:
            self._sketch.note(f"state_query is given {shown(state)}; give a TridentState of this topology")
        asked = state.id if isinstance(state, TridentState) else ""
        return self._then(Query(asked, None if inputs is None else names_of(inputs), function, output))

    # -- the plan ------------------------------------------------------------------------------------------------------

    def sink(self, name: str) -> Stream:
        """Lead the stream out under a name; the driver writes the rows of each committed batch."""
        return self._then(Sink(name))

    def name(self, name: str) -> Stream:
        """Call the steps that follow so, in drawings and in the ids of groups."""
        return Stream(self._sketch, self._draft, name)

    def parallelism_hint(self, parallelism: int) -> Stream:
        """Ask for so many tasks, for the group of the step before; the largest hint of a group holds."""
        self._draft.hint = parallelism
        return self

    def apply_assembly(self, assembly: Callable[[Stream], _Built]) -> _Built:
        """Return what a function makes of this stream: some steps under one name."""
        return assembly(self)

    def __repr__(self) -> str:
        return f"Stream({self._draft.called!r})"

    def _then(self, what: Operation | Partitioning) -> Stream:
        return Stream(self._sketch, self._sketch.add(what, (self._draft,), self._name), self._name)

    def _repartitioned(self, grouping: Partitioning) -> Stream:
        """Add a repartition; between two of them stands a step that lets everything pass, as in Storm."""
        return (self._then(Merge()) if self._draft.is_partition else self)._then(grouping)

    def _window(
        self,
        length: Any,
        slide: Any,
        spec: AggSpec,
        options: Mapping[str, Any],
        group: tuple[Any, ...] | None = None,
    ) -> WindowedStream:
        if not self._draft.is_partition:  # windows begin a group of their own
            return self.identity_partition()._window(length, slide, spec, options, group)
        number = len(self._sketch.drafts) + 1
        name = self._name if isinstance(self._name, str) and self._name.isidentifier() else "window"
        operation = Window(f"{name}_{number}", length, slide, spec, group, dict(options))
        return WindowedStream(self._sketch, self._sketch.add(operation, (self._draft,), self._name), self._name)

    def _persist(self, state: Any, *, inputs: Any, **rest: Any) -> TridentState:
        spec = _spec(state)
        id = self._sketch.state_id()
        read = None if inputs is None else names_of(inputs)
        operation = Persist(state=id, spec=spec, inputs=read, **rest)
        return TridentState(self._sketch, id, spec, self._sketch.add(operation, (self._draft,), self._name), self._name)


class WindowedStream(Stream):
    """What windows emit."""

    __slots__ = ()

    def late_stream(self) -> Stream:
        """Return the tuples that came too late for their windows, with a field `reason` more. Needs `timestamp=`."""
        window = self._draft.what
        assert isinstance(window, Window)
        return self._then(LateTuples(window.options.get("timestamp") is not None))


class GroupedStream(StormNames):
    """A stream in groups of equal values of some fields."""

    __slots__ = ("_group", "_stream")

    def __init__(self, stream: Stream, group: tuple[Any, ...]) -> None:
        self._stream, self._group = stream, group

    def aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate each group of a batch: the fields of the group, then those of the aggregator."""
        return self.chained_agg().aggregate(inputs, aggregator, output).chain_end()

    def partition_aggregate(self, inputs: Names | None, aggregator: Any, output: _Output | None = None) -> Stream:
        """Aggregate what one partition has of each group of a batch; nothing travels."""
        return self.chained_agg().partition_aggregate(inputs, aggregator, output).chain_end()

    def chained_agg(self) -> ChainedAggregatorDeclarer:
        """Begin a chain of aggregators over the same groups."""
        return ChainedAggregatorDeclarer(self._stream, self._group)

    def persistent_aggregate(self, state: Any, inputs: Names | None, aggregator: Any, output: _Output) -> TridentState:
        """Keep the aggregate of all batches for each group, in a map; the new values of a batch are a stream.

        A combiner works within the batch first, a reducer is handed the tuples of each key.
        """
        if kind_of(aggregator) is AggregatorKind.REDUCER:
            there = self._stream.partition_by(self._group)
            rest = {"updater": aggregator, "output": output, "group": self._group, "reduces": True}
            return there._persist(state, inputs=inputs, **rest)
        values = self.aggregate(inputs, aggregator, output)
        updater = CombinerUpdater(aggregator, len(self._group))
        return values._persist(state, inputs=None, updater=updater, output=output, group=self._group)

    def state_query(self, state: TridentState, inputs: Names | None, function: Any, output: _Output) -> GroupedStream:
        """Ask a state that is partitioned by the same fields."""
        there = self._stream.partition_by(self._group)
        return GroupedStream(there.state_query(state, inputs, function, output), self._group)

    def each(self, inputs: Names, function: Any, output: _Output | None = None) -> GroupedStream:
        """Append to each tuple what a function makes of it, or filter; the groups stay."""
        return GroupedStream(self._stream.each(inputs, function, output), self._group)

    def window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowedStream:
        """Aggregate windows of each group, over batches: the fields of the group, then those of the aggregator."""
        spec = AggSpec(None if inputs is None else names_of(inputs), aggregator, output)
        return self._stream.partition_by(self._group)._window(length, slide, spec, options, self._group)

    def tumbling_window(
        self, length: _Length, inputs: Names | None, aggregator: Any, output: _Output, **options: Unpack[WindowOptions]
    ) -> WindowedStream:
        """Aggregate adjacent windows of each group."""
        return self.window(length, length, inputs, aggregator, output, **options)

    def sliding_window(
        self,
        length: _Length,
        slide: _Length,
        inputs: Names | None,
        aggregator: Any,
        output: _Output,
        **options: Unpack[WindowOptions],
    ) -> WindowedStream:
        """Aggregate windows of each group, of `length` and every `slide`."""
        return self.window(length, slide, inputs, aggregator, output, **options)

    def to_stream(self) -> Stream:
        """Return the stream without its groups."""
        return self._stream


class TridentState(StormNames):
    """A state of a topology, for queries, and the stream of its new values."""

    __slots__ = ("_draft", "_name", "_sketch", "id", "spec")

    def __init__(
        self, sketch: Sketch, id: str, spec: StateSpec, draft: Draft | None = None, name: str | None = None
    ) -> None:
        self.id, self.spec = id, spec
        self._sketch, self._draft, self._name = sketch, draft, name

    def new_values_stream(self) -> Stream:
        """Return what each commit put into the state. Only operators within a batch, persists and sinks may follow."""
        draft = self._draft
        if draft is None:
            draft = self._sketch.add(Merge(), (), self._name)
            self._sketch.note(f"{self.id} is a static state, which no stream writes, so it has no new values")
        return Stream(self._sketch, draft, self._name)

    def parallelism_hint(self, parallelism: int) -> TridentState:
        """Ask for so many partitions."""
        if self._draft is not None:
            self._draft.hint = parallelism
        return self


def _spec(state: Any) -> StateSpec:
    return state if isinstance(state, StateSpec) else StateSpec(state)
