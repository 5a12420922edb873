"""Operations: the nodes of a plan as data. Each operation resolves its fields and makes its processor for a task.

    resolve(check) -> Schema, Operation     when the topology is built: the output fields, and the operation with its user code and
                                            fields resolved; mistakes are noted in `check`, and None is returned if there is one
    processor(node)                         for each task, from the resolved operation

| operation | Storm's processor |
|---|---|
| Each, Filter, Map, FlatMap, Peek | EachProcessor, MapProcessor, FlatMapProcessor |
| Project, Merge | ProjectedProcessor, IdentityMultiReducer |
| Aggregate, Join | AggregateProcessor, MultiReducerProcessor |
| Persist, Query (state_operations.py) | PartitionPersistProcessor, StateQueryProcessor |
| WindowOperation, LateTuples (windows.py) | WindowTridentProcessor |
| SinkOperation | none: a leaf of Storm's graph is dropped |

A join combines tuples of one batch, from several streams, that have the same key:

    left   (1, a) (1, b) (2, c)          key  left  right
    right  (1, x) (3, y)                 1    a     x
                                         1    b     x
    left OUTER                           3    None  y       the left side may be missing
    right OUTER                          2    c     None    the right side may be missing

Laws of a join: a key for which every INNER side has a tuple gives the cross product of its sides, where an empty OUTER side counts
as one row of None; any other key gives nothing. Keys are emitted in the order of their first arrival. None is a key value like any
other, as in Storm. Tuples of different batches are never joined. Source: Storm's `JoinerMultiReducer`, `JoinType`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, product
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from windowing.errors import ConfigError, quote
from windowing.schema.checks import checked_name
from windowing.schema.hashing import hashable
from windowing.schema.types import Row, Schema, chosen, extended
from windowing.topology.groupings import Partitioning
from windowing.trident.builtins import OF_ONE_FIELD, FirstN, Sum
from windowing.trident.processors import (
    AggregateProcessor,
    AggregatorKind,
    AggSpec,
    EachProcessor,
    FilterProcessor,
    FlatMapProcessor,
    InitProcessor,
    MapProcessor,
    PeekProcessor,
    PickProcessor,
    ProcessorContext,
    RowProcessor,
    TridentProcessor,
    code_of,
    has_hooks,
    key_picker,
    kind_of,
    picker,
    recorder,
    wrong_aggregator,
)
from windowing.windows.aggregate import short_title
from windowing.windows.measures import Count as Number

if TYPE_CHECKING:
    from windowing.trident.plan import ProcessorNode

_T = TypeVar("_T")

NO_FIELDS = Schema((), ())


class Check:
    """A node while it is resolved: its input fields, and the list of its mistakes."""

    def __init__(self, where: str, inputs: tuple[Schema, ...], problems: list[str]) -> None:
        self._where, self.inputs, self._problems = where, inputs, problems

    def note(self, sentence: str) -> None:
        self._problems.append(f"{self._where}: {sentence}")

    def attempt(self, ask: Callable[..., _T], *arguments: Any, **options: Any) -> _T | None:
        """Return the result of `ask`; if it raises, note the message and return None."""
        try:
            return ask(*arguments, **options)
        except ConfigError as problem:
            self.note(problem.args[0])
            return None

    def output(self, written: Any) -> Schema | None:
        """Return the declared output fields, given as text or as a Schema."""
        return written if isinstance(written, Schema) else self.attempt(Schema.parse, written)

    def together(self, first: Schema, others: Iterable[Schema]) -> Schema | None:
        whole: Schema | None = first
        for other in others:
            whole = None if whole is None else self.attempt(extended, whole, other)
        return whole

    def key(self, schema: Schema, names: tuple[Any, ...], or_else: str = "") -> Schema | None:
        """Return the fields of a key; note a mistake if there are none, one is unknown, or the type of one has no hash."""
        if not names:
            self.note(f"it names no field; there are {', '.join(schema.names)}; name those of the key{or_else}")
            return None
        key = self.attempt(chosen, schema, names)
        for name, kind in () if key is None else key.kinds.items():
            reason = hashable(kind)
            if reason is not None:
                self.note(f"field {name!r} of type {kind} cannot be part of a key: {reason}")
                return None
        return key

    def renamed(self, names: Sequence[Any], types: Sequence[str], told: str) -> Schema | None:
        """Return fields of these types with new names. told: the fields, and what to do, for a wrong number of names."""
        if len(names) != len(types):
            self.note(f"names is {quote(names)}, {len(names)} for the {len(types)} fields {told}")
            return None
        return self.output(", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True)))


class Operation:
    """The base class of operations. committer: it runs in the commit phase. keeps_window: its windows last from batch to batch."""

    committer: ClassVar[bool] = False
    keeps_window: ClassVar[bool] = False

    @property
    def by_itself(self) -> bool:
        """Whether it may run in any task: it works on single tuples, or a later stage combines its results."""
        return False

    @property
    def title(self) -> str:
        return type(self).__name__.lower()

    def resolve(self, check: Check) -> Resolved | None:
        """Return the output fields and the resolved operation; if there are mistakes, note each and return None."""
        raise NotImplementedError

    def processor(self, node: ProcessorNode) -> TridentProcessor:
        """Return the processor of one task, by default one that passes all rows on; the operation must be resolved."""
        return TridentProcessor()


Resolved = tuple[Schema, Operation]


@dataclass(frozen=True, slots=True)
class FunctionOperation(Operation):
    """A function of some fields, or of the whole tuple (`inputs` is None). Without `output` the fields stay the same."""

    function: Any
    output: Any = None
    inputs: tuple[Any, ...] | None = None

    runs: ClassVar[type[RowProcessor]]
    method: ClassVar[str] = "execute"
    """The method of an object that is given instead of a function."""
    returns: ClassVar[bool] = False
    """Whether it gets no collector."""
    appends: ClassVar[bool] = False
    """Whether its output is appended to the existing fields."""
    verb: ClassVar[str]
    of_fields: ClassVar[bool] = False
    """Whether the title names the fields."""
    by_itself = True

    @property
    def title(self) -> str:
        fields = f"({', '.join(map(str, self.inputs or ()))})" if self.of_fields else ""
        return f"{self.verb}{fields} with {short_title(self.function)}"

    def resolve(self, check: Check) -> Resolved | None:
        schema = check.inputs[0]
        if isinstance(self.function, FirstN):
            check.note(f"{self.function} is made of several steps; write stream.apply_assembly(FirstN(...))")
            return None
        read = schema if self.inputs is None else check.attempt(chosen, schema, self.inputs)
        code = check.attempt(code_of, self.function, self.method, returns=self.returns)
        output = schema if self.output is None else check.output(self.output)
        if self.appends and output is not None:
            output = check.attempt(extended, schema, output)
        return None if read is None or code is None or output is None else (output, replace(self, function=code))

    def processor(self, node: ProcessorNode) -> TridentProcessor:
        schema = node.inputs[0]
        record = recorder(schema, schema.names if self.inputs is None else self.inputs)
        return self.runs(node.called, self.function, record, node.appended if self.appends else node.schema)


class Each(FunctionOperation):
    """A function of some fields; its output fields are appended to the existing ones."""

    verb, of_fields, appends, runs = "each", True, True, EachProcessor


class Filter(FunctionOperation):
    """A condition on some fields, or on the whole tuple; keeps the tuples for which it is true."""

    verb, of_fields, method, returns, runs = "filter", True, "keep", True, FilterProcessor


class Peek(FunctionOperation):
    """A function that is called with each tuple for its side effects; the stream is unchanged."""

    verb, method, returns, runs = "peek", "accept", True, PeekProcessor


class Map(FunctionOperation):
    """A function whose row replaces the tuple."""

    verb, returns, runs = "map", True, MapProcessor


class FlatMap(FunctionOperation):
    """A function whose rows, none or many, replace the tuple."""

    verb, runs = "flat_map", FlatMapProcessor


@dataclass(frozen=True, slots=True)
class Project(Operation):
    """Some fields, in the order in which they are named."""

    names: tuple[Any, ...]
    by_itself = True

    @property
    def title(self) -> str:
        return f"project({', '.join(map(str, self.names))})"

    def resolve(self, check: Check) -> Resolved | None:
        if not self.names:
            check.note("it names no field; name those that are to stay")
            return None
        output = check.attempt(chosen, check.inputs[0], self.names)
        return None if output is None else (output, self)

    def processor(self, node: ProcessorNode) -> TridentProcessor:
        return PickProcessor(picker(node.inputs[0], node.schema.names))


@dataclass(frozen=True, slots=True)
class Merge(Operation):
    """Merges streams whose fields have the same types by position; the names are those of the first. One stream is unchanged."""

    names: tuple[Any, ...] | None = None
    by_itself = True

    def resolve(self, check: Check) -> Resolved | None:
        first = check.inputs[0]
        for number, other in enumerate(check.inputs[1:], 2):
            if other.types != first.types:
                check.note(
                    f"stream 1 has {first.ddl}, stream {number} has {other.ddl}; merged streams have the same types in the "
                    "same order: project or map them"
                )
                return None
        told = f"{first.ddl}; name each of them"
        output = first if self.names is None else check.renamed(self.names, first.types, told)
        return None if output is None else (output, self)


@dataclass(frozen=True, slots=True)
class SinkOperation(Operation):
    """An output: the driver writes the rows of each committed batch to the sink with this name."""

    name: Any
    by_itself = True

    @property
    def title(self) -> str:
        return f"sink {self.name}"

    def resolve(self, check: Check) -> Resolved | None:
        named = check.attempt(checked_name, self.name, "the name of a sink")
        return None if named is None else (check.inputs[0], self)


# -- joins -----------------------------------------------------------------------------------------------------------------------


class JoinType(Enum):
    """What a side of a join does with keys that it lacks: INNER drops them, OUTER fills in None."""

    INNER = "inner"
    OUTER = "outer"


class JoinProcessor(TridentProcessor):
    """Collects the tuples of a batch by key and side, and joins them at its end. Cost: memory for the batch, then its output.

    schemas, keys: those of each side; kinds: INNER or OUTER for each side.
    """

    def __init__(
        self, schemas: tuple[Schema, ...], keys: tuple[tuple[str, ...], ...], kinds: tuple[JoinType, ...]
    ) -> None:
        sides = list(zip(schemas, keys, strict=True))
        rests = [tuple(name for name in schema.names if name not in key) for schema, key in sides]
        self._keys: list[Callable[[Row], Any]] = [key_picker(schema, key) for schema, key in sides]
        self._key_rows = [picker(schema, key) for schema, key in sides]
        self._rests = [picker(schema, rest) for (schema, _), rest in zip(sides, rests, strict=True)]
        outer = zip(rests, kinds, strict=True)
        self._missing = [[(None,) * len(rest)] if kind is JoinType.OUTER else [] for rest, kind in outer]

    def start_batch(self, batch: ProcessorContext) -> dict[Any, tuple[Row, list[list[Row]]]]:
        return {}

    def execute(self, slot: dict[Any, tuple[Row, list[list[Row]]]], rows: list[Row], source: int = 0) -> list[Row]:
        key_of, key_row, rest = self._keys[source], self._key_rows[source], self._rests[source]
        for row in rows:
            key = key_of(row)
            found = slot.get(key)
            if found is None:
                found = slot[key] = key_row(row), [[] for _ in self._keys]
            found[1][source].append(rest(row))
        return []

    def finish_batch(self, slot: dict[Any, tuple[Row, list[list[Row]]]]) -> list[Row]:
        return [
            (*key, *chain.from_iterable(match))
            for key, sides in slot.values()
            for match in product(*(rows or missing for rows, missing in zip(sides, self._missing, strict=True)))
        ]


# -- operations over the tuples of a batch ---------------------------------------------------------------------------------------


class AggregationStage(Enum):
    """The part of an aggregation that a node does: all of it, or the part before or after the exchange.

    PARTIAL and COMBINE: for combiners only. INIT and FOLD: for combiners in a chain with other aggregators, which need every tuple.
    Before the exchange each tuple is reduced to the fields that the chain reads and the combiners' first values.
    """

    WHOLE = "aggregate"
    PARTIAL = "partial"
    COMBINE = "combine"
    INIT = "init"
    FOLD = "fold"


def _adds(kind: str) -> bool:
    return not kind.startswith(("string", "binary", "date", "timestamp", "array", "map", "struct"))


def _read_by(check: Check, spec: AggSpec, schema: Schema) -> Schema | None:
    """Return the fields that an aggregator reads; note a mistake in them and return None."""
    read = schema if spec.inputs is None else check.attempt(chosen, schema, spec.inputs)
    if read is None or check.attempt(chosen, read, getattr(spec.aggregator, "needs", ())) is None:
        return None
    init = getattr(type(spec.aggregator), "init", None)
    if len(read) != 1 and init in OF_ONE_FIELD:
        name = short_title(spec.aggregator)
        check.note(
            f"{name} is of one field, got {read.ddl or 'none'}; name it, as in ('amount', {name}(), 'total long')"
        )
        return None
    if init is Sum.init and not _adds(read.types[0]):
        check.note(
            f"Sum adds the numbers of one field, got {read.ddl}; name a field of numbers, as in ('amount', Sum(), 'total long')"
        )
        return None
    return read


def resolve_spec(check: Check, spec: AggSpec, schema: Schema) -> AggSpec | None:
    """Return an aggregator with resolved fields; note its mistakes and return None if there are any."""
    read = _read_by(check, spec, schema)
    kind = kind_of(spec.aggregator)
    if kind is None:
        how = "an instance, not the class: an object" if isinstance(spec.aggregator, type) else "an object"
        of_windows = isinstance(spec.aggregator, Number) or spec.aggregator is Number
        other = " but a length of windows, and the aggregator Count() is in windowing.trident" if of_windows else ""
        check.note(
            f"{quote(spec.aggregator)} is no aggregator{other}; give {how} with init, combine, zero, or init, reduce, or init, "
            "aggregate, complete"
        )
    wrong = None if kind is None else wrong_aggregator(spec.aggregator, kind)
    if wrong is not None:
        check.note(wrong)
    output = read if spec.output is None else check.output(spec.output)
    if read is None or kind is None or wrong is not None or output is None:
        return None
    if kind is not AggregatorKind.AGGREGATOR and len(output) != 1:
        check.note(
            f"{short_title(spec.aggregator)} is a {kind.value}, which makes one value, but its output is {output.ddl}; "
            "declare one field"
        )
        return None
    return replace(spec, inputs=read.names, output=output, hooked=has_hooks(spec.aggregator, kind))


@dataclass(frozen=True, slots=True)
class Aggregate(Operation):
    """Aggregators over the tuples of a batch. group: the fields of the key, None for all tuples together.

    to: if there is no key, the exchange before it that brings all tuples to one partition; None without one.
    """

    specs: tuple[AggSpec, ...]
    group: tuple[Any, ...] | None = None
    to: Partitioning | None = None
    stage: AggregationStage = AggregationStage.WHOLE

    @property
    def title(self) -> str:
        by = "" if self.group is None else f" by {', '.join(map(str, self.group))}"
        return f"{self.stage.value} {', '.join(short_title(spec.aggregator) for spec in self.specs)}{by}"

    @property
    def by_itself(self) -> bool:
        return self.stage in (AggregationStage.PARTIAL, AggregationStage.INIT)

    def resolve(self, check: Check) -> Resolved | None:
        if not self.specs:
            check.note("the chain names no aggregator; add .aggregate(...) before .chain_end()")
            return None
        group = NO_FIELDS if self.group is None else check.key(check.inputs[0], self.group)
        parts = self._parts(check)
        if parts is None or group is None:
            return None
        output = check.together(group, [part.output for part in parts])
        if output is not None and self.stage is AggregationStage.INIT:
            output = self._begun(check.inputs[0], group, parts)
        return None if output is None else (output, replace(self, specs=parts))

    def processor(self, node: ProcessorNode) -> TridentProcessor:
        if self.stage is AggregationStage.INIT:
            combiners = tuple(part for part in self.specs if _combines(part.aggregator))
            kept = node.schema.names[: len(node.schema) - len(combiners)]
            return InitProcessor(node.called, node.inputs[0], kept, combiners)
        partial = self.stage is AggregationStage.PARTIAL
        return AggregateProcessor(node.called, node.inputs[0], self.specs, self.group, self.to, partial)

    def _begun(self, schema: Schema, group: Schema, parts: tuple[AggSpec, ...]) -> Schema:
        """Return the fields of the exchange: those read behind it, in their order, then a value for each combiner."""
        written = zip(self.specs, parts, strict=True)
        read = {
            name
            for spec, part in written
            if not _combines(part.aggregator) or spec.output is None
            for name in part.inputs
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

    def _parts(self, check: Check) -> tuple[AggSpec, ...] | None:
        """Return the parts; behind the exchange a combiner reads its value of the stage before, one of the last fields."""
        schema = check.inputs[0]
        is_behind = self.stage in (AggregationStage.COMBINE, AggregationStage.FOLD)
        begun = len(schema) - is_behind * sum(_combines(spec.aggregator) for spec in self.specs)
        values, given = iter(schema.names[begun:]), schema.of(schema.names[:begun])
        parts: list[AggSpec] = []
        for spec in self.specs:
            part: AggSpec | None
            if is_behind and _combines(spec.aggregator):  # the stage before has found all mistakes
                name = next(values)
                output: Schema | None = schema.of((name,))
                if self.stage is AggregationStage.FOLD:
                    names = spec.inputs or given.names
                    output = chosen(given, names) if spec.output is None else check.output(spec.output)
                assert output is not None
                part = AggSpec((name,), spec.aggregator, output, combines=True)
            else:
                part = resolve_spec(check, spec, given)
            parts += [] if part is None else [part]
        return tuple(parts) if len(parts) == len(self.specs) else None


@dataclass(frozen=True, slots=True)
class Join(Operation):
    """A join of streams by key within a batch. names: the names of the output fields, None for those of the sides."""

    keys: tuple[tuple[Any, ...], ...]
    names: tuple[Any, ...] | None
    kinds: tuple[Any, ...]

    @property
    def title(self) -> str:
        return f"join by {' and '.join(', '.join(map(str, key)) for key in self.keys)}"

    def resolve(self, check: Check) -> Resolved | None:
        keys = [check.key(schema, key) for schema, key in zip(check.inputs, self.keys, strict=True)]
        for kind in self.kinds:
            if not isinstance(kind, JoinType):
                check.note(f"{quote(kind)} is no JoinType; give JoinType.INNER or JoinType.OUTER for each stream")
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
        # The fields of the key, then the other fields of each side, with their new names.
        rests = [
            chosen(schema, [name for name in schema.names if name not in key])
            for schema, key in zip(check.inputs, self.keys, strict=True)
        ]
        made = [name for part in (first, *rests) for name in part.names]
        types = [kind for part in (first, *rests) for kind in part.types]
        told = f"{', '.join(made)}; name each of them, the key first, without types"
        output = check.together(first, rests) if self.names is None else check.renamed(self.names, types, told)
        return None if output is None else (output, self)

    def processor(self, node: ProcessorNode) -> JoinProcessor:
        return JoinProcessor(node.inputs, self.keys, self.kinds)


def _combines(aggregator: Any) -> bool:
    return kind_of(aggregator) is AggregatorKind.COMBINER
