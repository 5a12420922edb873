"""Persists and queries: the operations and processors that write and read states.

    partition_persist   rows --held--> commit phase: begin_commit, update_state(state, rows), commit --> new values
    state_query         rows --held--> end of the batch: batch_retrieve(state, rows), one call --> rows with their results

    persistent_aggregate
      combiner, by key  aggregate within the batch, then  stored = combine(stored, value of the batch)
      reducer, by key   partition by key, then            stored = reduce(reduce(stored, a), b)
      without key       the same, for the single value of a Snapshottable

Laws: a state is written only in the commit phase, so in the order of the txids. Every partition claims every batch, also without
tuples, because an earlier attempt may have written there. A query reads what earlier batches committed.
Source: Storm's `PartitionPersistProcessor`, `StateQueryProcessor`, `MapCombinerAggStateUpdater`, `MapReducerAggStateUpdater`,
`CombinerAggStateUpdater`, `ReducerAggStateUpdater`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from windowing.errors import BoltError, CheckpointError, ConfigError, StateError, quote
from windowing.schema.types import Row, Schema, chosen, extended
from windowing.schema.values import stored_key
from windowing.trident.kinds import Guarantee, StateType
from windowing.trident.operations import NO_FIELDS, Check, Operation, Resolved
from windowing.trident.processors import (
    AggregatorKind,
    Code,
    ProcessorContext,
    TridentOutput,
    UserProcessor,
    call_hook,
    key_picker,
    kind_of,
    object_code,
    raised,
    recorder,
    wrong_aggregator,
)
from windowing.trident.states import CombinerValueUpdater, ReducerValueUpdater
from windowing.windows.aggregate import short_title

if TYPE_CHECKING:
    from windowing.trident.plan import ProcessorNode


class StatefulProcessor(UserProcessor):
    """A node with a state. code: the StateUpdater or QueryFunction. The driver sets `state`, its partition, before `prepare`."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any], state: str, output: Schema) -> None:
        super().__init__(who, code, record)
        self.state_id, self._output = state, output
        self.state: Any = None

    def start_batch(self, batch: ProcessorContext) -> tuple[ProcessorContext, list[Row]]:
        return batch, []

    def execute(self, slot: tuple[ProcessorContext, list[Row]], rows: list[Row], source: int = 0) -> list[Row]:
        slot[1].extend(rows)
        return []

    def finish_batch(self, slot: tuple[ProcessorContext, list[Row]]) -> list[Row]:
        batch, rows = slot
        try:
            return self._work(batch, rows)
        except (StateError, CheckpointError):
            raise  # the driver handles these errors by their type
        except BaseException as problem:
            raise raised(
                self._owner, problem, f"on the {len(rows)} tuple{'s' * (len(rows) != 1)} of batch {batch.id}"
            ) from problem

    def _work(self, batch: ProcessorContext, rows: list[Row]) -> list[Row]:
        raise NotImplementedError


class PersistProcessor(StatefulProcessor):
    """Writes the batch into the state and returns the rows of the updater: the new values."""

    def prepare(self, context: Any) -> None:
        self._collector = TridentOutput(self._output, self.report)
        if isinstance(self._code.target, AggregateUpdater):
            self._code.target.check_state(self.state)
        super().prepare(context)

    def _work(self, batch: ProcessorContext, rows: list[Row]) -> list[Row]:
        self.state.begin_commit(batch.id)
        try:
            tuples = list(map(self._record, rows))
            emitted = self._collector.rows_of(self._call, self.state, tuples) if tuples else []
            self.state.commit(batch.id)
        except BaseException:
            call_hook(self.state, "rollback")  # otherwise queries would read uncommitted values
            raise
        return emitted


class QueryProcessor(StatefulProcessor):
    """Queries the state once for all tuples of the batch, and appends to each the rows of the function for its result."""

    is_static = False
    """Whether the topology does not write the state: what another one has written has no place in the order of its txids."""

    def prepare(self, context: Any) -> None:
        self._collector = TridentOutput(self._output, self.report)
        super().prepare(context)

    def _work(self, batch: ProcessorContext, rows: list[Row]) -> list[Row]:
        if not rows:
            return []
        tuples = list(map(self._record, rows))
        state = self.state if batch.as_of is None or self.is_static else _AsOf(self.state, batch.as_of)
        function = self._task.instance
        answers = list(function.batch_retrieve(state, tuples))
        if len(answers) != len(tuples):
            raise BoltError(
                f"{self._owner} was asked for {len(tuples)} tuples and gave {len(answers)} answers; batch_retrieve returns a list "
                "with one answer for each tuple, in their order"
            )
        collector, emitted = self._collector, list[Row]()
        for row, tuple, answer in zip(rows, tuples, answers, strict=True):
            emitted += map(row.__add__, collector.rows_of(function.execute, tuple, answer))
        return emitted


class _AsOf:
    """A state as of a txid. Reads without `as_of`, as Storm's are, return its current values."""

    def __init__(self, state: Any, txid: int) -> None:
        self._state, self._txid = state, txid

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        return partial(self._read, found) if name in ("multi_get", "get", "items") else found

    def _read(self, read: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        signature = inspect.signature(read)
        given = signature.bind(*arguments, **named)
        if "as_of" in signature.parameters:
            given.arguments.setdefault("as_of", self._txid)
        return read(*given.args, **given.kwargs)


# -- operations beside a state ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A StateFactory with options. partitions: the number of partitions, default is the parallelism of the step that writes it.

    accept: the weakest accepted guarantee; a spout and a state with a weaker one are refused when the topology is built.
    """

    factory: Any
    partitions: int | None = None
    accept: Guarantee = Guarantee.EXACTLY_ONCE

    @property
    def kind(self) -> StateType | None:
        """How the state handles a replayed batch, None for an object that is not a StateFactory."""
        kind = getattr(self.factory, "kind", None)
        return kind if isinstance(kind, StateType) and callable(getattr(self.factory, "make_state", None)) else None


@dataclass(frozen=True, slots=True)
class AggregateUpdater:
    """Updates the stored values of an aggregator. `keys`: the number of fields of the key, which come first; 0 without a key."""

    aggregator: Any
    keys: int

    def check_state(self, state: Any) -> None:
        """Raise ConfigError for a state of the other shape; called before the first batch."""
        if not hasattr(state, "multi_update" if self.keys else "update"):
            given = type(state).__name__
            raise ConfigError(
                f"a {given} has one value, but the aggregate is kept by key; give a map state, or leave out group_by"
                if self.keys
                else f"a {given} is no state of one value; give a map state or a Snapshottable"
            )

    def update(self, state: Any, keys: Sequence[Any], updaters: Sequence[Any], collector: Any) -> None:
        """Apply an updater to the value of each key, and emit the key with its new value."""
        if not self.keys:
            for updater in updaters:
                collector.emit((state.update(updater),))
            return
        for key, value in zip(keys, state.multi_update(keys, updaters) if keys else (), strict=True):
            collector.emit((*key, value))


@dataclass(frozen=True, slots=True)
class CombinerUpdater(AggregateUpdater):
    """Combines the values of a batch with the stored ones. inputs: the fields that the aggregator got, None for all."""

    inputs: tuple[str, ...] | None = None

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        """Update the state once for each tuple, and emit its key with the new value."""
        keys, updaters = [], []
        for *key, value in tuples:
            keys.append(stored_key(key))
            updaters.append(CombinerValueUpdater(self.aggregator, value))
        self.update(state, keys, updaters, collector)


@dataclass(frozen=True, slots=True)
class ReducerUpdater(AggregateUpdater):
    """Reduces the tuples of each key of a batch, in order, into the stored value.

    fields: the fields of its tuples, the key first; inputs: the fields that the aggregator gets.
    """

    fields: Schema
    inputs: tuple[str, ...]

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        """Update the state once for each key, and emit the key with its new value."""
        record, key_of = recorder(self.fields, self.inputs), key_picker(self.fields, self.fields.names[: self.keys])
        of_key: dict[Any, list[Any]] = {}
        for row in tuples:
            of_key.setdefault(key_of(row), []).append(row)
        keys = [stored_key(rows[0][: self.keys]) for rows in of_key.values()]
        updaters = [ReducerValueUpdater(self.aggregator, map(record, rows)) for rows in of_key.values()]
        self.update(state, keys, updaters, collector)


@dataclass(frozen=True, slots=True)
class Persist(Operation):
    """Writes a state in the commit phase. output: the fields of the new values, after those of the key; None for none.

    inputs: the fields that the updater gets, None for all; group: the fields of the key. reduces: `updater` is a ReducerAggregator.
    After `resolve`, `updater` is Code, and `read` are the fields of its tuples, those of the key first.
    """

    state: str
    spec: StateSpec
    inputs: tuple[Any, ...] | None
    updater: Any
    output: Any
    group: tuple[Any, ...] = ()
    reduces: bool = False
    read: Schema = NO_FIELDS

    committer = True

    @property
    def title(self) -> str:
        what = self.updater.aggregator if isinstance(self.updater, CombinerUpdater) else self.updater
        return f"persist {self.state} with {short_title(what)}"

    def resolve(self, check: Check) -> Resolved | None:
        read, updater = check.attempt(self._read, check.inputs[0]), self.updater
        if self.reduces:
            wrong = wrong_aggregator(updater, AggregatorKind.REDUCER)
            if wrong is not None:
                check.note(wrong)
                return None
        elif not callable(getattr(updater, "update_state", None)):
            check.note(f"{quote(updater)} has no update_state(state, tuples, collector); give a StateUpdater")
            return None
        elif check.attempt(_updater_code, updater) is None:
            return None
        if isinstance(updater, CombinerUpdater) and kind_of(updater.aggregator) is not AggregatorKind.COMBINER:
            check.note(
                f"{short_title(updater.aggregator)} emits rows, and has no value to add to the stored one; give an aggregator "
                "with init, combine, zero, or init, reduce, or keep its rows by partition_persist"
            )
            return None
        new = NO_FIELDS if self.output is None else check.output(self.output)
        if read is None or new is None:
            return None
        if self.reduces and len(new) != 1:
            check.note(f"{short_title(updater)} makes one value, but its output is {new.ddl}; declare one field")
            return None
        output = check.attempt(extended, chosen(read, self.group), new)
        if self.reduces:
            updater = ReducerUpdater(updater, len(self.group), read, read.names if self.inputs is None else self.inputs)
        return None if output is None else (output, replace(self, read=read, updater=_updater_code(updater)))

    def processor(self, node: ProcessorNode) -> PersistProcessor:
        record = recorder(node.inputs[0], self.read.names)
        return PersistProcessor(node.called, self.updater, record, self.state, node.schema)

    def _read(self, schema: Schema) -> Schema:
        inputs = schema.names if self.inputs is None else chosen(schema, self.inputs).names
        return chosen(schema, (*self.group, *(name for name in inputs if name not in self.group)))


@dataclass(frozen=True, slots=True)
class Query(Operation):
    """Queries a state for each tuple of a batch, and appends the results."""

    state: str
    inputs: tuple[Any, ...] | None
    function: Any
    output: Any

    @property
    def title(self) -> str:
        return f"query {self.state} with {short_title(self.function)}"

    def resolve(self, check: Check) -> Resolved | None:
        read = check.inputs[0] if self.inputs is None else check.attempt(chosen, check.inputs[0], self.inputs)
        missing = [name for name in ("batch_retrieve", "execute") if not callable(getattr(self.function, name, None))]
        if missing:
            check.note(f"{quote(self.function)} has no {missing[0]}; give a QueryFunction")
        arguments = ("tuple", "result", "collector")
        code = None if missing else check.attempt(object_code, self.function, "execute", arguments)
        new = check.output(self.output)
        whole = None if new is None else check.attempt(extended, check.inputs[0], new)
        return None if read is None or code is None or whole is None else (whole, replace(self, function=code))

    def processor(self, node: ProcessorNode) -> QueryProcessor:
        schema = node.inputs[0]
        inputs = schema.names if self.inputs is None else self.inputs
        return QueryProcessor(node.called, self.function, recorder(schema, inputs), self.state, node.appended)


def _updater_code(updater: Any) -> Code:
    return object_code(updater, "update_state", ("state", "tuples", "collector"))
