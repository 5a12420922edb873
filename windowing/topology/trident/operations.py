"""Operations: what the nodes of a plan do, as data. Each says which fields come out of it, and makes its processor for a task.

    resolve(check) -> Schema      when the topology is built: every mistake is noted in `check`, None if there is one
    processor(node)               for each task, of what has been resolved

| operation | Storm's processor |
|---|---|
| Each, Filter, Map, FlatMap, Peek | EachProcessor, MapProcessor, FlatMapProcessor |
| Project, Merge | ProjectedProcessor, IdentityMultiReducer |
| Aggregate (grouping.py), Join (grouping.py) | AggregateProcessor, MultiReducerProcessor |
| Persist, Query (stateful.py) | PartitionPersistProcessor, StateQueryProcessor |
| Window, LateTuples (windowed.py) | WindowTridentProcessor |
| Sink | none: a leaf of Storm's graph is dropped |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from windowing.core.checks import checked_name
from windowing.errors import ConfigError
from windowing.topology.schema import Schema
from windowing.topology.trident import processors as made
from windowing.topology.trident.code import code_of
from windowing.topology.trident.fields import chosen, extended, picker, recorder, short_title

__all__ = [
    "NO_FIELDS",
    "Check",
    "Each",
    "Filter",
    "FlatMap",
    "Map",
    "Merge",
    "Operation",
    "Peek",
    "Place",
    "Project",
    "Sink",
]

_T = TypeVar("_T")

NO_FIELDS = Schema((), ())


class Check:
    """One node while it is resolved: the fields that come in, and where its mistakes are noted."""

    def __init__(self, where: str, inputs: tuple[Schema, ...], problems: list[str]) -> None:
        self._where, self.inputs, self._problems = where, inputs, problems

    def note(self, sentence: str) -> None:
        """Note a mistake of this node."""
        self._problems.append(f"{self._where}: {sentence}")

    def attempt(self, ask: Callable[..., _T], *arguments: Any, **options: Any) -> _T | None:
        """Return what `ask` answers, or note what it raises and return None."""
        try:
            return ask(*arguments, **options)
        except ConfigError as problem:
            self.note(problem.args[0])
            return None

    def output(self, written: Any) -> Schema | None:
        """Return the fields that a user declared, as text or as a Schema."""
        return written if isinstance(written, Schema) else self.attempt(Schema.parse, written)


class Place(Protocol):
    """What a processor needs to know of its node."""

    @property
    def called(self) -> str:
        """How errors call the node."""

    @property
    def inputs(self) -> tuple[Schema, ...]:
        """The fields of each input."""

    @property
    def schema(self) -> Schema:
        """The fields that come out."""


class Operation:
    """What a node does. committer: it works in the commit phase. stateful: it keeps something from batch to batch."""

    committer: ClassVar[bool] = False
    keeps_window: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """What a person calls it, in a sentence or a drawing."""
        return type(self).__name__.lower()

    def resolve(self, check: Check) -> Schema | None:
        """Return the fields that come out; every mistake is noted, and None returned."""
        raise NotImplementedError

    def processor(self, node: Place) -> made.TridentProcessor:
        """Return the processor of one task; the operation has been resolved."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Each(Operation):
    """A function of some fields, whose rows are appended to those that are there."""

    inputs: tuple[Any, ...]
    function: Any
    output: Any

    @property
    def title(self) -> str:
        return f"each({', '.join(map(str, self.inputs))}) with {short_title(self.function)}"

    def resolve(self, check: Check) -> Schema | None:
        read = check.attempt(chosen, check.inputs[0], self.inputs)
        code = check.attempt(code_of, self.function, "execute")
        new = check.output(self.output)
        if new is None:
            return None
        whole = check.attempt(extended, check.inputs[0], new)
        return None if read is None or code is None else whole

    def processor(self, node: Place) -> made.TridentProcessor:
        output = Schema(*(part[len(node.inputs[0]) :] for part in (node.schema.names, node.schema.types)))
        code = code_of(self.function, "execute")
        return made.EachProcessor(node.called, code, recorder(node.inputs[0], self.inputs), output, keep=True)


@dataclass(frozen=True, slots=True)
class Filter(Operation):
    """A condition on some fields, or on the whole tuple (`inputs` None); what it is true of stays."""

    inputs: tuple[Any, ...] | None
    condition: Any

    @property
    def title(self) -> str:
        return f"filter({', '.join(map(str, self.inputs or ()))}) with {short_title(self.condition)}"

    def resolve(self, check: Check) -> Schema | None:
        schema = check.inputs[0]
        read = schema if self.inputs is None else check.attempt(chosen, schema, self.inputs)
        code = check.attempt(code_of, self.condition, "keep", returns=True)
        return None if read is None or code is None else schema

    def processor(self, node: Place) -> made.TridentProcessor:
        inputs = node.schema.names if self.inputs is None else self.inputs
        code = code_of(self.condition, "keep", returns=True)
        return made.FilterProcessor(node.called, code, recorder(node.schema, inputs))


@dataclass(frozen=True, slots=True)
class Peek(Operation):
    """A function that is shown each tuple, for what it does outside; the stream stays as it is."""

    function: Any

    @property
    def title(self) -> str:
        return f"peek with {short_title(self.function)}"

    def resolve(self, check: Check) -> Schema | None:
        code = check.attempt(code_of, self.function, "accept", returns=True)
        return None if code is None else check.inputs[0]

    def processor(self, node: Place) -> made.TridentProcessor:
        code = code_of(self.function, "accept", returns=True)
        return made.PeekProcessor(node.called, code, recorder(node.schema, node.schema.names))


@dataclass(frozen=True, slots=True)
class Map(Operation):
    """A function of the whole tuple that returns the row to put in its place; without `output` the fields stay."""

    function: Any
    output: Any = None

    @property
    def title(self) -> str:
        return f"map with {short_title(self.function)}"

    def resolve(self, check: Check) -> Schema | None:
        code = check.attempt(code_of, self.function, "execute", returns=True)
        schema = check.inputs[0] if self.output is None else check.output(self.output)
        return None if code is None else schema

    def processor(self, node: Place) -> made.TridentProcessor:
        record = recorder(node.inputs[0], node.inputs[0].names)
        return made.MapProcessor(node.called, code_of(self.function, "execute", returns=True), record, node.schema)


@dataclass(frozen=True, slots=True)
class FlatMap(Operation):
    """A function of the whole tuple, whose rows, none or many, come in its place."""

    function: Any
    output: Any = None

    @property
    def title(self) -> str:
        return f"flat_map with {short_title(self.function)}"

    def resolve(self, check: Check) -> Schema | None:
        code = check.attempt(code_of, self.function, "execute")
        schema = check.inputs[0] if self.output is None else check.output(self.output)
        return None if code is None else schema

    def processor(self, node: Place) -> made.TridentProcessor:
        record = recorder(node.inputs[0], node.inputs[0].names)
        return made.EachProcessor(node.called, code_of(self.function, "execute"), record, node.schema, keep=False)


@dataclass(frozen=True, slots=True)
class Project(Operation):
    """Some fields, in the order in which they are named."""

    names: tuple[Any, ...]

    @property
    def title(self) -> str:
        return f"project({', '.join(map(str, self.names))})"

    def resolve(self, check: Check) -> Schema | None:
        if not self.names:
            check.note("it names no field; name those that are to stay")
            return None
        return check.attempt(chosen, check.inputs[0], self.names)

    def processor(self, node: Place) -> made.TridentProcessor:
        return made.PickProcessor(picker(node.inputs[0], node.schema.names))


@dataclass(frozen=True, slots=True)
class Merge(Operation):
    """Streams of the same types, by position, under the names of the first; of one stream: the stream itself."""

    names: tuple[Any, ...] | None = None

    def resolve(self, check: Check) -> Schema | None:
        first = check.inputs[0]
        for number, other in enumerate(check.inputs[1:], 2):
            if other.types != first.types:
                check.note(
                    f"stream 1 has {first.ddl}, stream {number} has {other.ddl}; merged streams have the same types in the "
                    "same order: project or map them"
                )
                return None
        if self.names is None:
            return first
        if len(self.names) != len(first):
            check.note(f"{len(self.names)} names are given to the {len(first)} fields {first.ddl}; name each of them")
            return None
        fields = ", ".join(f"{name} {kind}" for name, kind in zip(self.names, first.types, strict=True))
        return check.output(fields)

    def processor(self, node: Place) -> made.TridentProcessor:
        return made.KeepProcessor()


@dataclass(frozen=True, slots=True)
class Sink(Operation):
    """A way out: the driver gives the rows of each committed batch to what was named so when it was started."""

    name: Any

    @property
    def title(self) -> str:
        return f"sink {self.name}"

    def resolve(self, check: Check) -> Schema | None:
        named = check.attempt(checked_name, self.name, "the name of a sink")
        return None if named is None else check.inputs[0]

    def processor(self, node: Place) -> made.TridentProcessor:
        return made.KeepProcessor()
