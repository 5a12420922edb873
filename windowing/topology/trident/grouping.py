"""Operations over many tuples of a batch: Aggregate and Join."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from windowing.core.checks import did_you_mean
from windowing.errors import shown
from windowing.topology.hashing import hashable
from windowing.topology.schema import Schema
from windowing.topology.trident.aggregating import (
    AggregateProcessor,
    AggregatorKind,
    Emits,
    InitProcessor,
    Part,
    kind_of,
)
from windowing.topology.trident.fields import chosen, extended, short_title
from windowing.topology.trident.joining import JoinProcessor, JoinType
from windowing.topology.trident.operations import NO_FIELDS, Check, Operation, Place
from windowing.topology.trident.processors import TridentProcessor

__all__ = ["AggSpec", "Aggregate", "Join", "Stage", "resolve_spec"]


class Stage(Enum):
    """Which part of an aggregation a node does: all of it, or what comes before or after the exchange.

    PARTIAL and COMBINE: of combiners only. INIT and FOLD: of combiners in a chain with other aggregators, which need every tuple:
    before the exchange each tuple is reduced to the fields that the chain reads and the combiners' first values.
    """

    WHOLE = "aggregate"
    PARTIAL = "partial"
    COMBINE = "combine"
    INIT = "init"
    FOLD = "fold"


@dataclass(frozen=True, slots=True)
class AggSpec:
    """One aggregator as it was written: the fields that it sees (None: all), and those that it makes (None: the same)."""

    inputs: tuple[Any, ...] | None
    aggregator: Any
    output: Any

    @property
    def title(self) -> str:
        """What a person calls it."""
        return short_title(self.aggregator)


def resolve_spec(check: Check, spec: AggSpec, schema: Schema) -> Part | None:
    """Return an aggregator with its fields, or note what is wrong with it."""
    read = schema if spec.inputs is None else check.attempt(chosen, schema, spec.inputs)
    if read is not None and check.attempt(chosen, read, getattr(spec.aggregator, "needs", ())) is None:
        read = None
    kind = kind_of(spec.aggregator)
    if kind is None:
        how = "an instance, not the class" if isinstance(spec.aggregator, type) else "an object"
        check.note(
            f"{shown(spec.aggregator)} is no aggregator; give {how} with init, combine, zero, or init, reduce, or init, "
            "aggregate, complete"
        )
    output = read if spec.output is None else check.output(spec.output)
    if read is None or kind is None or output is None:
        return None
    if kind is not AggregatorKind.AGGREGATOR and len(output) != 1:
        check.note(
            f"{spec.title} is a {kind.value}, which makes one value, but its output is {output.ddl}; declare one field"
        )
        return None
    return Part(spec.aggregator, read.names, output)


@dataclass(frozen=True, slots=True)
class Aggregate(Operation):
    """Aggregators over the tuples of a batch. group: the fields of the key, None for all tuples together."""

    specs: tuple[AggSpec, ...]
    group: tuple[Any, ...] | None = None
    emits: Emits = Emits.EACH
    stage: Stage = Stage.WHOLE

    @property
    def title(self) -> str:
        by = "" if self.group is None else f" by {', '.join(map(str, self.group))}"
        return f"{self.stage.value} {', '.join(spec.title for spec in self.specs)}{by}"

    @property
    def by_itself(self) -> bool:
        """Whether it may work wherever its tuples are: others bring together what it makes of them."""
        return self.stage in (Stage.PARTIAL, Stage.INIT)

    def resolve(self, check: Check) -> Schema | None:
        if not self.specs:
            check.note("the chain names no aggregator; add .aggregate(...) before .chain_end()")
            return None
        group = NO_FIELDS if self.group is None else check.attempt(_key, check.inputs[0], self.group, check)
        parts = self._parts(check)
        if parts is None or group is None:
            return None
        whole: Schema | None = group
        for part in parts:
            whole = None if whole is None else check.attempt(extended, whole, part.output)
        if whole is None or self.stage is not Stage.INIT:
            return whole
        return self._begun(check.inputs[0], group, parts)

    def processor(self, node: Place) -> TridentProcessor:
        parts = self._parts(Check(node.called, node.inputs, []))
        assert parts is not None
        if self.stage is Stage.INIT:
            combiners = tuple(part for part in parts if _combines(part.aggregator))
            kept = node.schema.names[: len(node.schema) - len(combiners)]
            return InitProcessor(node.called, node.inputs[0], kept, combiners)
        partial = self.stage is Stage.PARTIAL
        return AggregateProcessor(node.called, node.inputs[0], parts, self.group, self.emits, partial)

    def _begun(self, schema: Schema, group: Schema, parts: tuple[Part, ...]) -> Schema:
        """Return what goes over the exchange: the fields that are read there, in their order, then a value for each combiner."""
        told = zip(self.specs, parts, strict=True)
        read = {
            name for spec, part in told if not _combines(part.aggregator) or spec.output is None for name in part.inputs
        }
        kept = chosen(schema, [name for name in schema.names if name in read or name in group.names])
        taken = {name.lower() for name in kept.names}
        for number, part in enumerate(part for part in parts if _combines(part.aggregator)):
            name = f"init_{number}"
            while name in taken:
                name = f"{name}_"
            taken.add(name)
            kept = extended(kept, Schema((name,), part.output.types))
        return kept

    def _folded(self, check: Check) -> tuple[Part, ...]:
        """Return the parts of FOLD; INIT, which made its input, has found every mistake."""
        schema = check.inputs[0]
        begun = len(schema) - sum(_combines(spec.aggregator) for spec in self.specs)
        values, given = iter(schema.names[begun:]), Schema(schema.names[:begun], schema.types[:begun])
        parts = []
        for spec in self.specs:
            if _combines(spec.aggregator):
                output = chosen(given, spec.inputs or given.names) if spec.output is None else check.output(spec.output)
                part = None if output is None else Part(spec.aggregator, (next(values),), output, combines=True)
            else:
                part = resolve_spec(check, spec, given)
            assert part is not None
            parts.append(part)
        return tuple(parts)

    def _parts(self, check: Check) -> tuple[Part, ...] | None:
        if self.stage is Stage.FOLD:
            return self._folded(check)
        parts: list[Part] = []
        if (
            self.stage is Stage.COMBINE
        ):  # behind the key its partial stage, which has found every mistake, gives a field for each
            schema = check.inputs[0]
            fields = list(zip(schema.names, schema.types, strict=True))[len(self.group or ()) :]
            for spec, (name, kind) in zip(self.specs, fields, strict=True):
                parts.append(Part(spec.aggregator, (name,), Schema((name,), (kind,)), combines=True))
            return tuple(parts)
        for spec in self.specs:
            part = resolve_spec(check, spec, check.inputs[0])
            parts += [] if part is None else [part]
        return tuple(parts) if len(parts) == len(self.specs) else None


@dataclass(frozen=True, slots=True)
class Join(Operation):
    """Streams joined by key within a batch. names: of the fields that come out, None for those of the sides."""

    keys: tuple[tuple[Any, ...], ...]
    names: tuple[Any, ...] | None
    kinds: tuple[Any, ...]

    @property
    def title(self) -> str:
        return f"join by {' and '.join(', '.join(map(str, key)) for key in self.keys)}"

    def resolve(self, check: Check) -> Schema | None:
        keys = [check.attempt(_key, schema, key, check) for schema, key in zip(check.inputs, self.keys, strict=True)]
        for kind in self.kinds:
            if not isinstance(kind, JoinType):
                check.note(f"{shown(kind)} is no JoinType; give JoinType.INNER or JoinType.OUTER for each stream")
                return None
        first = keys[0]
        if first is None or None in keys:
            return None
        for number, key in enumerate(keys[1:], 2):
            assert key is not None
            if key.types != first.types:
                check.note(
                    f"the key of stream 1 is {first.ddl}, that of stream {number} is {key.ddl}, so equal keys would not meet; "
                    "give the keys the same types in the same order"
                )
                return None
        return self._joined(check, first)

    def processor(self, node: Place) -> JoinProcessor:
        return JoinProcessor(node.inputs, self.keys, self.kinds)

    def _joined(self, check: Check, key: Schema) -> Schema | None:
        """Return the fields of the key, then the others of each side, under their new names."""
        rests = [
            chosen(schema, [name for name in schema.names if name not in key])
            for schema, key in zip(check.inputs, self.keys, strict=True)
        ]
        types = (*key.types, *(kind for rest in rests for kind in rest.types))
        if self.names is None:
            whole: Schema | None = key
            for rest in rests:
                whole = None if whole is None else check.attempt(extended, whole, rest)
            return whole
        if len(self.names) != len(types):
            made = ", ".join((*key.names, *(name for rest in rests for name in rest.names)))
            check.note(
                f"{len(self.names)} names are given to the {len(types)} fields {made}; name each of them, the key first"
            )
            return None
        return check.output(", ".join(f"{name} {kind}" for name, kind in zip(self.names, types, strict=True)))


def _combines(aggregator: Any) -> bool:
    return kind_of(aggregator) is AggregatorKind.COMBINER


def _key(schema: Schema, names: tuple[Any, ...], check: Check) -> Schema | None:
    """Return the fields of a key, which has at least one, all of types that have a hash."""
    if not names:
        check.note(f"it has no key; {did_you_mean('', schema.names)}, name some of them")
        return None
    key = chosen(schema, names)
    for name, kind in zip(key.names, key.types, strict=True):
        reason = hashable(kind)
        if reason is not None:
            check.note(f"field {name!r} of type {kind} cannot be part of a key: {reason}")
            return None
    return key
