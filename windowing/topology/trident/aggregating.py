"""Aggregation inside a batch: folds of the three kinds of aggregators, over all tuples of a partition or over those of each key.

    combiner      partial, in each partition          combine(combine(init(a), init(b)), init(c))
                  ==== exchange ====
                  combined, in one place              combine(p0, p1), zero() if there is nothing
    reducer       in one place                        reduce(reduce(init(), a), b)
    aggregator    in one place                        init -> aggregate, aggregate, ... -> complete: any rows
    chained       several at once                     the cross product of what each of them emits
                  combiners with others: init, in each partition ==== exchange ==== combine, reduce, aggregate

A key that has no tuple in a batch has no row. Without keys each partition emits (`partition_aggregate`), or the one partition
to which an exchange has brought everything (`aggregate`), also if the batch is empty: the count of an empty batch is 0.
Source: Storm's `AggregateProcessor`, `GroupedAggregator`, `ChainedAggregatorImpl`, `SingleEmitAggregator`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import chain, product
from typing import Any, Protocol

from windowing.errors import shown
from windowing.topology.schema import Schema
from windowing.topology.trident.code import Report, RowMaker, TridentOutput, raised, unheard
from windowing.topology.trident.fields import Row, key_picker, picker, recorder
from windowing.topology.trident.processors import Batch, TridentProcessor

__all__ = ["AggregateProcessor", "AggregatorKind", "Emits", "Fold", "InitProcessor", "Part", "fold_of", "kind_of"]


class AggregatorKind(Enum):
    """The kinds of aggregators, known by their methods."""

    COMBINER = "combiner"
    REDUCER = "reducer"
    AGGREGATOR = "aggregator"


class Emits(Enum):
    """Which partitions emit where there are no keys."""

    EACH = "each partition"
    FIRST = "the first partition"
    OF_BATCH = "the partition of the batch"


class Fold(Protocol):
    """How the tuples of a batch, or of one of its keys, become rows."""

    def start(self, batch_id: Any, report: Report = unheard) -> Any: ...
    def add(self, value: Any, row: Row) -> Any: ...
    def rows(self, value: Any) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One aggregator with the fields that it sees and those that it makes; `combines` what partial results hold."""

    aggregator: Any
    inputs: tuple[str, ...]
    output: Schema
    combines: bool = False


def kind_of(aggregator: Any) -> AggregatorKind | None:
    """Return which kind an aggregator is, None if it is none of them."""
    methods = {
        AggregatorKind.COMBINER: ("init", "combine", "zero"),
        AggregatorKind.REDUCER: ("init", "reduce"),
        AggregatorKind.AGGREGATOR: ("init", "aggregate", "complete"),
    }
    for kind, names in methods.items():
        if not isinstance(aggregator, type) and all(callable(getattr(aggregator, name, None)) for name in names):
            return kind
    return None


def fold_of(part: Part, schema: Schema) -> Fold:
    """Return the fold of one aggregator over rows of `schema`."""
    kind = kind_of(part.aggregator)
    if kind is AggregatorKind.COMBINER:
        return _CombinerFold(part, schema)
    return _ReducerFold(part, schema) if kind is AggregatorKind.REDUCER else _AggregatorFold(part, schema)


_NOTHING: Any = object()


class _CombinerFold:
    """The first value is taken as it is, which is what combining it with zero gives."""

    def __init__(self, part: Part, schema: Schema) -> None:
        self._aggregator, self._make = part.aggregator, RowMaker(part.output).one
        record = recorder(schema, part.inputs)
        position = schema.names.index(part.inputs[0]) if part.combines else 0
        init = part.aggregator.init
        self._value: Callable[[Row], Any] = (
            (lambda row: row[position]) if part.combines else (lambda row: init(record(row)))
        )

    def start(self, batch_id: Any, report: Report = unheard) -> Any:
        return _NOTHING

    def add(self, value: Any, row: Row) -> Any:
        new = self._value(row)
        return new if value is _NOTHING else self._aggregator.combine(value, new)

    def rows(self, value: Any) -> list[Row]:
        result = self._aggregator.zero() if value is _NOTHING else value
        return [self._make((result,))]


class _ReducerFold:
    def __init__(self, part: Part, schema: Schema) -> None:
        self._aggregator, self._make = part.aggregator, RowMaker(part.output).one
        self._record = recorder(schema, part.inputs)

    def start(self, batch_id: Any, report: Report = unheard) -> Any:
        return self._aggregator.init()

    def add(self, value: Any, row: Row) -> Any:
        return self._aggregator.reduce(value, self._record(row))

    def rows(self, value: Any) -> list[Row]:
        return [self._make((value,))]


class _AggregatorFold:
    """The value is the user's, with the collector that it emits to."""

    def __init__(self, part: Part, schema: Schema) -> None:
        self._aggregator, self._output = part.aggregator, part.output
        self._record = recorder(schema, part.inputs)

    def start(self, batch_id: Any, report: Report = unheard) -> Any:
        collector = TridentOutput(self._output, report)
        return self._aggregator.init(batch_id, collector), collector

    def add(self, value: Any, row: Row) -> Any:
        self._aggregator.aggregate(value[0], self._record(row), value[1])
        return value

    def rows(self, value: Any) -> list[Row]:
        self._aggregator.complete(*value)
        taken: list[Row] = value[1].take()
        return taken


class _Chained:
    """Several folds over the same rows; a row of each is put together with each row of the others."""

    def __init__(self, folds: list[Fold]) -> None:
        self._folds = folds

    def start(self, batch_id: Any, report: Report = unheard) -> list[Any]:
        return [fold.start(batch_id, report) for fold in self._folds]

    def add(self, value: list[Any], row: Row) -> list[Any]:
        return [fold.add(each, row) for fold, each in zip(self._folds, value, strict=True)]

    def rows(self, value: list[Any]) -> list[Row]:
        made = [fold.rows(each) for fold, each in zip(self._folds, value, strict=True)]
        return [tuple(chain.from_iterable(row)) for row in product(*made)]


class _Slot:
    __slots__ = ("batch", "keys", "value")

    def __init__(self, batch: Batch, value: Any) -> None:
        self.batch = batch
        self.value = value
        self.keys: dict[Any, list[Any]] = {}


class InitProcessor(TridentProcessor):
    """Makes of each row the fields that are kept, and the first value of each combiner. Cost: O(combiners) a row."""

    def __init__(self, who: str, schema: Schema, kept: tuple[str, ...], combiners: tuple[Part, ...]) -> None:
        self._who = who
        self._pick = picker(schema, kept)
        self._inits = [
            (part.aggregator.init, recorder(schema, part.inputs), RowMaker(part.output).one) for part in combiners
        ]

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        made: list[Row] = []
        row: Row = ()
        try:
            for row in rows:
                begun = self._pick(row)
                for init, record, make in self._inits:
                    begun += make((init(record(row)),))
                made.append(begun)
        except (Exception, SystemExit) as problem:
            raise raised(self._who, problem, f"on {shown(row)}") from problem
        return made


class AggregateProcessor(TridentProcessor):
    """Folds the rows of a batch. Cost: O(1) a row, and memory for one value, or one for each key of the batch.

    group: the fields of the key, None for all tuples together. emits: which partition has a row if there is no key.
    partial: a partition without tuples says nothing, for others will combine.
    """

    def __init__(
        self,
        who: str,
        schema: Schema,
        parts: tuple[Part, ...],
        group: tuple[str, ...] | None,
        emits: Emits,
        partial: bool,
    ) -> None:
        folds = [fold_of(part, schema) for part in parts]
        self._who = who
        self._fold: Fold = folds[0] if len(folds) == 1 else _Chained(folds)
        self._group, self._emits, self._partial = group, emits, partial
        self._key = None if group is None else key_picker(schema, group)
        self._pick = picker(schema, group or ())
        self._task, self._tasks = 0, 1

    def prepare(self, context: Any) -> None:
        self._task, self._tasks = context.task, context.tasks

    def start_batch(self, batch: Batch) -> _Slot:
        return _Slot(batch, _NOTHING)

    def execute(self, slot: _Slot, rows: list[Row], source: int = 0) -> list[Row]:
        row: Row = ()
        try:
            if self._key is None:
                if rows and slot.value is _NOTHING:
                    slot.value = self._fold.start(slot.batch.id, self.report)
                for row in rows:
                    slot.value = self._fold.add(slot.value, row)
                return []
            for row in rows:
                key = self._key(row)
                found = slot.keys.get(key)
                if found is None:
                    found = slot.keys[key] = [self._pick(row), self._fold.start(slot.batch.id, self.report)]
                found[1] = self._fold.add(found[1], row)
        except BaseException as problem:
            raise raised(self._who, problem, f"on {shown(row)}") from problem
        return []

    def finish_batch(self, slot: _Slot) -> list[Row]:
        try:
            if self._key is not None:
                return [key + row for key, value in slot.keys.values() for row in self._fold.rows(value)]
            if slot.value is _NOTHING:
                if self._partial or not self._speaks(slot.batch):
                    return []
                slot.value = self._fold.start(slot.batch.id, self.report)
            return self._fold.rows(slot.value)
        except BaseException as problem:
            raise raised(self._who, problem, f"at the end of batch {shown(slot.batch.id)}") from problem

    def _speaks(self, batch: Batch) -> bool:
        """Return whether this partition emits although it was given nothing."""
        if self._emits is Emits.EACH:
            return True
        return self._task == (batch.txid % self._tasks if self._emits is Emits.OF_BATCH else 0)
