"""Operations beside a state: Persist and Query; StateSpec and the updaters of `persistent_aggregate`.

    combiner, by key     aggregate within the batch, then  stored = combine(stored, value of the batch)
    reducer, by key      partition by key, then            stored = reduce(reduce(stored, a), b)
    without key          the same, of the one value of a Snapshottable

Source: Storm's `MapCombinerAggStateUpdater`, `MapReducerAggStateUpdater`, `CombinerAggStateUpdater`, `ReducerAggStateUpdater`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windowing.errors import ConfigError, shown
from windowing.topology.schema import Schema
from windowing.topology.trident.fields import chosen, extended, recorder, short_title, stored_key
from windowing.topology.trident.operations import NO_FIELDS, Check, Operation, Place
from windowing.topology.trident.persisting import PersistProcessor, QueryProcessor
from windowing.transactions.aggregators import CombinerValueUpdater, ReducerValueUpdater
from windowing.transactions.attempt import TransactionAttempt
from windowing.transactions.kinds import Guarantee, StateType
from windowing.transactions.maps import SnapshottableMap
from windowing.transactions.rows import Owner

__all__ = ["CombinerUpdater", "Persist", "Query", "ReducerUpdater", "SnapshotFactory", "StateSpec"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A state as a topology wants it. partitions: how many it has, None for the parallelism of what writes it.

    accept: the weakest guarantee that will do; a spout and a state that give less are refused when the topology is built.
    """

    factory: Any
    partitions: int | None = None
    accept: Guarantee = Guarantee.EXACTLY_ONCE

    @property
    def kind(self) -> StateType | None:
        """What the state makes of a batch that comes again, None for what is no StateFactory."""
        kind = getattr(self.factory, "kind", None)
        return kind if isinstance(kind, StateType) and callable(getattr(self.factory, "make_state", None)) else None


@dataclass(frozen=True, slots=True)
class SnapshotFactory:
    """Makes of the map states of a factory states of one value, as `persistent_aggregate` without keys needs them."""

    factory: Any

    @property
    def kind(self) -> StateType:
        """What the state makes of a batch that comes again."""
        kind: StateType = self.factory.kind
        return kind

    def make_state(self, partition: int, partitions: int) -> Any:
        """Return one partition; what has one value already stays as it is."""
        state = self.factory.make_state(partition, partitions)
        return state if hasattr(state, "update") else SnapshottableMap(state)

    def claim_attempt(self, txid: int, partitions: int, at_least: int = 0) -> TransactionAttempt:
        """Claim the next attempt at a batch, as the factory does it."""
        attempt: TransactionAttempt = self.factory.claim_attempt(txid, partitions, at_least)
        return attempt

    def __getattr__(self, name: str) -> Any:
        """Look up what else the factory says of its state: name, identity, stored, mark."""
        if name.startswith("_") or name == "factory":
            raise AttributeError(name)
        return getattr(self.factory, name)

    def owned_by(self, owner: Owner) -> SnapshotFactory:
        """Return the same state, as this owner writes it."""
        own = getattr(self.factory, "owned_by", None)
        return self if own is None else SnapshotFactory(own(owner))


@dataclass(frozen=True, slots=True)
class CombinerUpdater:
    """Combines the values of a batch with those that are stored; `keys` is how many fields of a tuple are its key."""

    aggregator: Any
    keys: int

    def check_state(self, state: Any) -> None:
        """Raise ConfigError for a state of the other shape; asked before the first batch."""
        _check_shape(state, self.keys)

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        """Update the state once for each tuple, and emit its key with the new value."""
        updaters = [CombinerValueUpdater(self.aggregator, row[-1]) for row in tuples]
        if not self.keys:
            for updater in updaters:
                collector.emit((state.update(updater),))
            return
        keys = [stored_key(row[: self.keys]) for row in tuples]
        for key, value in zip(keys, state.multi_update(keys, updaters) if keys else (), strict=True):
            collector.emit((*key, value))


@dataclass(frozen=True, slots=True)
class ReducerUpdater:
    """Reduces the tuples of a batch into what is stored: those of each key in their order.

    fields: of the tuples that it is given, the key first; inputs: those of them that the aggregator sees.
    """

    aggregator: Any
    fields: Schema
    keys: int
    inputs: tuple[str, ...]

    def check_state(self, state: Any) -> None:
        """Raise ConfigError for a state of the other shape; asked before the first batch."""
        _check_shape(state, self.keys)

    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        """Update the state once for each key, and emit the key with its new value."""
        record = recorder(self.fields, self.inputs)
        of_key: dict[Any, list[Any]] = {}
        for row in tuples:
            of_key.setdefault(stored_key(row[: self.keys]), []).append(record(row))
        updaters = [ReducerValueUpdater(self.aggregator, rows) for rows in of_key.values()]
        if not self.keys:
            for updater in updaters:
                collector.emit((state.update(updater),))
            return
        for key, value in zip(of_key, state.multi_update(list(of_key), updaters) if of_key else (), strict=True):
            collector.emit((*key, value))


@dataclass(frozen=True, slots=True)
class Persist(Operation):
    """Writes a state in the commit phase. output: the fields of the new values, behind those of the key; None for none.

    inputs: what the updater sees, None for all; group: the fields of the key. reduces: `updater` is a ReducerAggregator, whose
    updater is made when the fields are known.
    """

    state: str
    spec: StateSpec
    inputs: tuple[Any, ...] | None
    updater: Any
    output: Any
    group: tuple[Any, ...] = ()
    reduces: bool = False

    committer = True

    @property
    def title(self) -> str:
        what = self.updater.aggregator if isinstance(self.updater, CombinerUpdater) else self.updater
        return f"persist {self.state} with {short_title(what)}"

    def resolve(self, check: Check) -> Schema | None:
        read = check.attempt(self._read, check.inputs[0])
        if not self.reduces and not callable(getattr(self.updater, "update_state", None)):
            check.note(f"{shown(self.updater)} has no update_state(state, tuples, collector); give a StateUpdater")
            return None
        new = NO_FIELDS if self.output is None else check.output(self.output)
        if read is None or new is None:
            return None
        if self.reduces and len(new) != 1:
            check.note(f"{short_title(self.updater)} makes one value, but its output is {new.ddl}; declare one field")
            return None
        return check.attempt(extended, chosen(read, self.group), new)

    def processor(self, node: Place) -> PersistProcessor:
        fields = self._read(node.inputs[0])
        updater = self.updater
        if self.reduces:
            updater = ReducerUpdater(
                updater, fields, len(self.group), fields.names if self.inputs is None else self.inputs
            )
        return PersistProcessor(node.called, self.state, recorder(node.inputs[0], fields.names), node.schema, updater)

    def _read(self, schema: Schema) -> Schema:
        """Return the fields that the updater is given: those of the key first."""
        inputs = schema.names if self.inputs is None else chosen(schema, self.inputs).names
        return chosen(schema, (*self.group, *(name for name in inputs if name not in self.group)))


@dataclass(frozen=True, slots=True)
class Query(Operation):
    """Asks a state about each tuple of a batch, and appends what it answers."""

    state: str
    inputs: tuple[Any, ...] | None
    function: Any
    output: Any

    @property
    def title(self) -> str:
        return f"query {self.state} with {short_title(self.function)}"

    def resolve(self, check: Check) -> Schema | None:
        read = check.inputs[0] if self.inputs is None else check.attempt(chosen, check.inputs[0], self.inputs)
        missing = [name for name in ("batch_retrieve", "execute") if not callable(getattr(self.function, name, None))]
        if missing:
            check.note(f"{shown(self.function)} has no {missing[0]}; give a QueryFunction")
        new = check.output(self.output)
        whole = None if new is None else check.attempt(extended, check.inputs[0], new)
        return None if read is None or missing else whole

    def processor(self, node: Place) -> QueryProcessor:
        schema = node.inputs[0]
        inputs = schema.names if self.inputs is None else self.inputs
        output = Schema(node.schema.names[len(schema) :], node.schema.types[len(schema) :])
        return QueryProcessor(node.called, self.state, recorder(schema, inputs), output, self.function)


def _check_shape(state: Any, keys: int) -> None:
    if not hasattr(state, "multi_update" if keys else "update"):
        given = type(state).__name__
        raise ConfigError(
            f"a {given} has one value, but the aggregate is kept by key; give a map state, or leave out group_by"
            if keys
            else f"a {given} is no state of one value; give a map state or a Snapshottable"
        )
