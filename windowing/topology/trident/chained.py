"""ChainedAggregatorDeclarer: several aggregators over the same tuples, in one pass.

    stream.chained_agg()                            by word:   the  2  7
        .aggregate(None, Count(), "n long")                     of   1  3
        .aggregate("len", Sum(), "letters long")
        .chain_end()

    combiners only      partial --exchange--> combine           what travels is a row for each partition (and key)
    some combiners      init --exchange--> fold                 all tuples travel: the fields that are read, and first values
    no combiner         --exchange--> aggregate                 all tuples travel
    partition_aggregate aggregate                               nothing travels

The rows of a batch (of a group) are the cross product of what each aggregator emits.
Source: Storm's `ChainedAggregatorDeclarer`, `GlobalAggregationScheme`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windowing.core.storm_names import StormNames
from windowing.topology.groupings import FieldsGrouping
from windowing.topology.trident.aggregating import AggregatorKind, Emits, kind_of
from windowing.topology.trident.fields import Names, names_of
from windowing.topology.trident.grouping import Aggregate, AggSpec, Stage
from windowing.topology.trident.partitions import BatchGlobalGrouping, Partitioning

if TYPE_CHECKING:
    from windowing.topology.schema import Schema
    from windowing.topology.trident.streams import Stream

__all__ = ["ChainedAggregatorDeclarer"]


class ChainedAggregatorDeclarer(StormNames):
    """Collects aggregators; `chain_end` makes the steps. group: the key, None for all tuples together.

    to: the exchange that brings all tuples of a batch together, where there is no key.
    """

    __slots__ = ("_emits", "_full", "_group", "_specs", "_stream", "_to")

    def __init__(
        self,
        stream: Stream,
        group: tuple[Any, ...] | None,
        to: Partitioning | None = None,
        emits: Emits = Emits.OF_BATCH,
    ) -> None:
        self._stream, self._group = stream, group
        self._to = BatchGlobalGrouping() if to is None else to
        self._emits = emits
        self._specs: list[AggSpec] = []
        self._full: list[bool] = []

    def aggregate(
        self, inputs: Names | None, aggregator: Any, output: str | Schema | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over the whole batch."""
        return self._add(inputs, aggregator, output, full=True)

    def partition_aggregate(
        self, inputs: Names | None, aggregator: Any, output: str | Schema | None = None
    ) -> ChainedAggregatorDeclarer:
        """Add an aggregator over what each partition has of the batch."""
        return self._add(inputs, aggregator, output, full=False)

    def chain_end(self) -> Stream:
        """Return the stream of the results: the fields of the key, then those of each aggregator."""
        stream, specs = self._stream, tuple(self._specs)
        if len(set(self._full)) > 1:
            stream._sketch.note(
                f"a chain behind {stream._draft.called} has aggregate and partition_aggregate; use one of them in a chain"
            )
        if not all(self._full):
            return stream._then(Aggregate(specs, self._group, Emits.EACH))
        combiners = [kind_of(spec.aggregator) is AggregatorKind.COMBINER for spec in specs]
        if any(combiners):
            before, after = (Stage.PARTIAL, Stage.COMBINE) if all(combiners) else (Stage.INIT, Stage.FOLD)
            partial = stream._then(Aggregate(specs, self._group, Emits.EACH, before))
            return self._together(partial)._then(Aggregate(specs, self._group, self._emits, after))
        return self._together(stream)._then(Aggregate(specs, self._group, self._emits))

    def _add(self, inputs: Names | None, aggregator: Any, output: Any, full: bool) -> ChainedAggregatorDeclarer:
        self._specs.append(AggSpec(None if inputs is None else names_of(inputs), aggregator, output))
        self._full.append(full)
        return self

    def _together(self, stream: Stream) -> Stream:
        return stream.repartition(self._to if self._group is None else FieldsGrouping(self._group))
