"""Processors: each runs one node of a group over the tuples of a batch, calls user code, and aggregates inside a batch.

    slot = start_batch(batch)
    execute(slot, rows, source) -> rows      any number of times; `source` is the number of the input
    finish_batch(slot) -> rows               once, after all rows; for a committer in the commit phase, in the order of the txids

Laws: all data of an unfinished batch is in its slot, so several batches can be under way, and a failed one is dropped with its
slot. The result does not depend on the pieces in which rows arrive, nor on the driver.

User code is a function of (tuple) or (tuple, collector), or an object or a class with the operation's method (execute, keep, ...)
and optionally prepare(context) and cleanup(), which is also called if prepare raised: it may find only a part of what prepare sets.
Each task has its own instance: a class is called without arguments, an object is copied. A wrong signature is reported when the
topology is built. An exception of user code becomes one BoltError that names operation, tuple and line; a FailedException passes
unchanged and fails the batch.

    combiner      partial, in each partition          combine(combine(init(a), init(b)), init(c))
                  ==== exchange ====
                  combined, in one partition          combine(p0, p1), zero() for no tuples
    reducer       in one partition                    reduce(reduce(init(), a), b)
    aggregator    in one partition                    init -> aggregate, aggregate, ... -> complete: any rows
    chained       several at once                     the cross product of their rows
                  combiners with others: init, in each partition ==== exchange ==== combine, reduce, aggregate

A key without a tuple in the batch has no row. Without keys, each partition emits (`partition_aggregate`), or the one partition to
which the exchange sent all tuples (`aggregate`). Both emit for an empty batch too: its count is 0.
Source: Storm's `TridentProcessor`, `ProcessorContext`, `AggregateProcessor`, `GroupedAggregator`, `ChainedAggregatorImpl`.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain, product
from operator import itemgetter
from typing import Any, NamedTuple, get_origin

from windowing.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    FailedException,
    ReportedFailedException,
    SourceError,
    StateError,
    cause_of,
    quote,
)
from windowing.schema.checks import DEFAULT_STREAM, StormNames, emit_advice, uncallable
from windowing.schema.rows import RowError, record_type, refuse_awaitable, refuse_returned, row_converter, rows_of
from windowing.schema.types import Row, Schema
from windowing.topology.bolts import CallStyle, body_of, bound, check_call, refuse_abstract, style_of_function
from windowing.topology.decorators import columnar_of
from windowing.topology.groupings import BatchGlobalGrouping, Partitioning
from windowing.topology.user_code import UserCode, user_code_error
from windowing.trident.kinds import TransactionAttempt
from windowing.windows.aggregate import title_of
from windowing.windows.key_state import one_nan

Reporter = Callable[[BaseException], None]
"""Is called with each error that user code reports without raising it."""


def drop_report(error: BaseException) -> None:
    """Drop a report; used without a driver."""


class _Closed(list[Row]):
    """Refuses rows."""

    def append(self, row: Row) -> None:
        raise ConfigError(
            f"{quote(row)} was emitted when the call was over; emit while the function or method runs, in its own thread"
        )


CLOSED = _Closed()
"""The rows of a collector between two calls."""


class TridentOutput(StormNames):
    """The collector of one stream of a task, the same for all calls: checks emitted rows, and takes none between two calls.

    Source: Storm's `TridentCollector`.
    """

    __slots__ = ("_is_flat", "_make", "_report", "rows")

    def __init__(self, schema: Schema, report: Reporter = drop_report) -> None:
        self._make = row_converter(schema, DEFAULT_STREAM)
        self._is_flat = not any(kind.startswith(("array", "map", "struct")) for kind in schema.types)
        self._report = report
        self.rows: list[Row] = CLOSED

    def emit(self, values: Any, *stray: Any) -> None:
        """Emit one row: a tuple, a list, a dict by name, or a scalar where the stream has one field."""
        if stray:
            raise RowError(emit_advice((values, *stray), ()))
        self.rows.append(self._make(values))

    def report_error(self, error: BaseException) -> None:
        self._report(error)

    def last_copy(self) -> Row:
        """Return the last emitted row, with lists and dicts of its own, which no function behind changes in place."""
        row = self.rows[-1]
        return row if self._is_flat else self._make(row)

    def rows_of(self, call: Callable[..., Any], *arguments: Any) -> list[Row]:
        """Call user code with the arguments and this collector; return the emitted rows. Raises RowError if it returns rows."""
        emitted: list[Row] = []
        self.rows = emitted
        try:
            returned = call(*arguments, self)
        finally:
            self.rows = CLOSED
        if returned is not None:
            refuse_uncollected(returned)
        return emitted


@dataclass(frozen=True, slots=True)
class Code:
    """A user's function, object or class in a plan; `method` is None for a function."""

    target: Any
    method: str | None
    style: CallStyle


class TaskCode(UserCode):
    """One task's instance of a user's object or class."""

    def open(self, context: Any) -> Callable[..., Any]:
        """Make the instance, call its `prepare(context)`, and return the function to call."""
        if self._method is None:
            return self._target
        is_class = isinstance(self._target, type)
        try:
            self.instance = self._target() if is_class else copy.deepcopy(self._target)
        except BaseException as problem:
            copied = "when it was copied for its task (open files and connections in prepare)"
            raise self.user_code_error(problem, "when its instance was made" if is_class else copied) from problem
        try:
            self.hook("prepare", context)
        except FailedException as problem:
            kind = ReportedFailedException if isinstance(problem, ReportedFailedException) else FailedException
            raise kind(f"{self._owner} failed in prepare: {cause_of(problem)}") from problem
        called: Callable[..., Any] = getattr(self.instance, self._method)
        return called

    def user_code_error(self, problem: BaseException, where: str) -> BaseException:
        """Return the error to raise `from` an exception of the code; a FailedException is returned unchanged."""
        return raised(self._owner, problem, where, self._file)


def raised(who: str, problem: BaseException, where: str, file: str | None = None) -> BaseException:
    """Return the error to raise for `problem`: itself if it is already a BoltError, or a FailedException, of which
    `failure_of` then knows `who`; else a new BoltError.
    """
    if isinstance(problem, FailedException):
        problem.__dict__[_STEP] = who
        return problem
    ours = isinstance(problem, BoltError) and not isinstance(problem, RowError)
    return problem if ours else user_code_error(who, problem, where, file)


_STEP = "_step"


def failure_of(problem: FailedException) -> str:
    """Return why an attempt failed: the step whose code raised `problem`, if there is one, and its message."""
    step = problem.__dict__.get(_STEP)
    return cause_of(problem) if step is None else f"{step}: {cause_of(problem)}"


def guarded(who: str, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call code of a spout or a state's factory, and attribute its exceptions to `who`. FailedException and errors of stores and
    sources pass unchanged.
    """
    try:
        return call(*arguments)
    except (CheckpointError, ConfigError, SourceError, StateError):
        raise
    except BaseException as problem:
        raise raised(who, problem, where) from problem


def partition_of(factory: Any, state: str, partition: int, partitions: int) -> Any:
    """Return a partition of a state, made by its factory."""
    where = f"in make_state({partition}, {partitions})"
    return guarded(f"the factory of {state}", where, factory.make_state, partition, partitions)


def refuse_unrun(returned: Any) -> None:
    """Raise RowError for a coroutine or a generator: nobody runs its body."""
    refuse_awaitable(returned)
    if isinstance(returned, Generator):
        raise RowError(f"it returned {quote(returned)}, whose body nobody runs; make the function a plain one")


def refuse_uncollected(returned: Any) -> None:
    """Raise RowError for what code with a collector returned: rows, which it emits, or a body that nobody runs."""
    refuse_unrun(returned)
    refuse_returned(returned)


def call_hook(target: Any, method: str, *arguments: Any) -> None:
    """Call an optional method of user code, if it has it."""
    hook = getattr(target, method, None)
    if hook is not None:
        hook(*arguments)


def code_of(target: Any, method: str, handed: str = "tuple", *, returns: bool = False) -> Code:
    """Return a user's function, object or class as Code. Raises ConfigError for a wrong signature.

    method: the method to call of an object. handed: its arguments, for the message. returns: it gets no collector.
    """
    target = get_origin(target) or target  # of a generic class with its types in brackets
    title = title_of(target)
    named = method if callable(getattr(target, method, None)) else None
    form = columnar_of(target)
    if form is not None:
        raise ConfigError(
            f"{title!r} says columnar={form!r}, and an operation of Trident is handed the tuples of a batch one by one; "
            "leave out columnar="
        )
    if named is None and (isinstance(target, type) or not callable(target)):
        raise ConfigError(
            f"{quote(target)} is no function and has no {method}; give a function of ({handed}), or an object with "
            f"{method}(self, {handed})"
        )
    if named is None:
        called, body = target, body_of(target)
    else:
        _require_made(target, title)
        called, body = _method(target, named), getattr(target, named)
    what = title if named is None else f"{title}.{named}"
    style = style_of_function(called, body, what, handed, returns=returns, who="a function")
    if returns and style is CallStyle.COLLECTOR:
        raise ConfigError(
            f"{title!r} takes a collector, but its answer is what it returns; write a function of ({handed})"
        )
    if returns and handed == "tuple" and inspect.isgeneratorfunction(body):
        raise ConfigError(f"{title!r} yields, but its answer is what it returns; write a plain function of (tuple)")
    return Code(target, named, style)


def never_returns(code: Code) -> bool:
    """Return whether a function, or a method, of Python without a collector has neither a `return` with a value nor a `yield`."""
    written = code.target if code.method is None else getattr(code.target, code.method)
    if code.style is CallStyle.COLLECTOR or inspect.isgeneratorfunction(written):
        return False
    compiled = getattr(written, "__code__", None)
    values, before = [], None
    for step in () if compiled is None else dis.get_instructions(compiled):
        if step.opname == "RETURN_CONST":  # Python 3.12 and 3.13
            values.append(step.argval is not None)
        elif step.opname == "RETURN_VALUE":
            none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
            values.append(step.is_jump_target or not none)  # a value may also come by a jump: a or None
        before = step
    return bool(values) and not any(values)


def object_code(target: Any, method: str, arguments: tuple[str, ...]) -> Code:
    """Return an object or class as Code, whose `method` returns nothing. Raises ConfigError if a call with these arguments is not
    possible, or does not run its body.
    """
    title = title_of(target)
    _require_made(target, title)
    problem = wrong_method(target, {method: arguments})
    if problem is not None:
        raise ConfigError(problem)
    return Code(target, method, CallStyle.ROWS)


def wrong_method(target: Any, methods: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return what is wrong with the first method that cannot be called with its arguments, or of which such a call does not run the
    body; None if there is none.
    """
    for name, arguments in methods.items():
        problem = uncallable(_method(target, name), arguments)
        if problem is not None:
            return f"{title_of(target)}.{name} {problem}"
    return None


def _require_made(target: Any, title: str) -> None:
    """Raise ConfigError for a class of which no instance can be made without arguments, and for a `prepare` without a context."""
    if isinstance(target, type):
        refuse_abstract(target, title)
        check_call(target, (), f"class {title!r}", "each task makes its own without arguments; give an instance")
    if getattr(target, "prepare", None) is not None:
        check_call(_method(target, "prepare"), ("context",), f"{title}.prepare", "write def prepare(self, context)")


def _method(target: Any, name: str) -> Callable[..., Any]:
    """Return a method as it is bound to an instance; of a class without making one."""
    written: Callable[..., Any] = bound(target, name) if isinstance(target, type) else getattr(target, name)
    return written


# -- TridentProcessor ------------------------------------------------------------------------------------------------------------


class ProcessorContext(NamedTuple):
    """The batch that a task works on; `id` is its attempt, or the driver's id of a DRPC request.

    now_ms: the driver's clock, the same in every task and every replay; None without a clock. as_of: the last committed txid, if no
    later one can be committed before this batch; queries then read the states as of this txid, in a replay too. None: the current
    states. drain: the batch is the last one, at the end of the input, and windows fire their remaining tuples.
    """

    id: TransactionAttempt | Any
    now_ms: int | None = None
    as_of: int | None = None
    drain: bool = False

    @property
    def txid(self) -> int:
        """The number of the batch; 0 for a request of DRPC, which is no transaction."""
        return self.id.txid if isinstance(self.id, TransactionAttempt) else 0


class TridentProcessor:
    """A node of one task; the base class passes all rows on, for merges and sinks. report: gets the errors that user code reports;
    set by the driver. codes: the instances of user code, which `prepare` opens.
    """

    report: Reporter = staticmethod(drop_report)
    codes: Sequence[TaskCode] = ()

    def prepare(self, context: Any) -> None:
        """Make the instances of user code, before the first batch; if it raises, `cleanup` follows. context: a TopologyContext."""

    def start_batch(self, batch: ProcessorContext) -> Any:
        """Return the slot of a batch, which holds its data until it is finished."""

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        """Process rows of one input; return the rows emitted now."""
        return rows

    def finish_batch(self, slot: Any) -> list[Row]:
        """Return the rows emitted at the end of a batch."""
        return []

    def cleanup(self) -> None:
        """Call `cleanup` of user code; of all of it, even if some of it raises."""
        with ExitStack() as closing:
            for code in self.codes:
                closing.callback(code.close)


def picker(schema: Schema, names: tuple[str, ...]) -> Callable[[Row], Row]:
    """Return a function from a row to the values of these fields."""
    if tuple(names) == schema.names:
        return tuple
    if not names:
        return lambda row: ()
    positions = [schema.names.index(name) for name in names]
    if len(positions) == 1:
        only = positions[0]
        return lambda row: (row[only],)
    return itemgetter(*positions)


def recorder(schema: Schema, names: tuple[str, ...]) -> Callable[[Row], Any]:
    """Return a function from a row to the Record of these fields. Cost: up to 0.3 us per row."""
    make: Callable[[Iterable[Any]], Any] = partial(tuple.__new__, record_type(names))  # `_make` counts the values again
    if tuple(names) == schema.names:
        return make
    if not names:
        nothing = make(())
        return lambda row: nothing
    pick = picker(schema, names)
    return lambda row: make(pick(row))


def key_picker(schema: Schema, names: tuple[str, ...], of_window: bool = False) -> Callable[[Row], Any]:
    """Return a function from a row to its key, a tuple; equal values of these fields give equal keys, all NaN too.

    of_window: as windows have their keys, the value itself if it is one field.
    """
    kinds = [schema.types[schema.names.index(name)] for name in names]
    pick = itemgetter(schema.names.index(names[0])) if of_window and len(names) == 1 else picker(schema, names)
    plain = not any(kind.startswith(("array", "float", "double")) for kind in kinds)
    return pick if plain else lambda row: _of_key(pick(row))


def _of_key(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_of_key, value))
    return one_nan(value)


class PickProcessor(TridentProcessor):
    """Keeps some of the fields of each row."""

    def __init__(self, pick: Callable[[Row], Row]) -> None:
        self._pick = pick

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        return list(map(self._pick, rows))


class UserProcessor(TridentProcessor):
    """Calls user code. `who`: its name in errors; `record`: converts a row into the argument of the code."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any]) -> None:
        self._owner, self._code, self._record = who, code, record
        self._task = TaskCode(who, code.target, code.method)
        self.codes = (self._task,)
        self._call: Callable[..., Any]

    def prepare(self, context: Any) -> None:
        self._call = self._task.open(context)


class RowProcessor(UserProcessor):
    """Calls user code on each row. output: the fields of the rows that the code makes."""

    def __init__(self, who: str, code: Code, record: Callable[[Row], Any], output: Schema) -> None:
        super().__init__(who, code, record)
        self._output, self._make = output, row_converter(output, DEFAULT_STREAM)

    def execute(self, slot: Any, rows: list[Row], source: int = 0) -> list[Row]:
        emitted: list[Row] = []
        row: Row = ()
        try:
            for row in rows:
                self._one(row, emitted)
        except BaseException as problem:
            raise self._task.user_code_error(problem, f"on {quote(self._record(row))}") from problem
        return emitted

    def _one(self, row: Row, emitted: list[Row]) -> None:
        """Call the code on one row and append the resulting rows."""
        raise NotImplementedError


class FilterProcessor(RowProcessor):
    """Keeps the rows for which the code returns true."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        keeps = self._call(self._record(row))
        if type(keeps) is not bool:
            refuse_unrun(keeps)
        if keeps:
            emitted.append(row)


class PeekProcessor(RowProcessor):
    """Calls the code with each row and passes all rows on."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        refuse_unrun(self._call(self._record(row)))
        emitted.append(row)


class MapProcessor(RowProcessor):
    """Replaces each row by the one that the code returns."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        returned = self._call(self._record(row))
        if returned is None:
            raise RowError(
                "it returned None, and map makes one row of each tuple; use filter, or flat_map with rows or none"
            )
        if type(returned) is not tuple:
            refuse_awaitable(returned)
        emitted.append(self._make(returned))


class FlatMapProcessor(RowProcessor):
    """Replaces each row by the rows that the code returns or emits."""

    def prepare(self, context: Any) -> None:
        self._collector = TridentOutput(self._output, self.report)
        super().prepare(context)

    def _one(self, row: Row, emitted: list[Row]) -> None:
        emitted += self._made(row)

    def _made(self, row: Row) -> list[Row]:
        tuple = self._record(row)
        if self._code.style is CallStyle.COLLECTOR:
            return self._collector.rows_of(self._call, tuple)
        returned = self._call(tuple)
        if type(returned) is list:
            return list(map(self._make, returned))
        return list(rows_of(returned, self._output, DEFAULT_STREAM))


class EachProcessor(FlatMapProcessor):
    """Appends to each row those that the code returns or emits."""

    def _one(self, row: Row, emitted: list[Row]) -> None:
        emitted.extend(map(row.__add__, self._made(row)))


# -- aggregation inside a batch --------------------------------------------------------------------------------------------------


class AggregatorKind(Enum):
    """The kinds of aggregators, recognised by their methods."""

    COMBINER = "combiner"
    REDUCER = "reducer"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class AggSpec:
    """An aggregator with its input fields (None: all) and its output fields (None: the same), as declared; in a plan it is
    resolved, with names and a Schema. `combines`: it combines partial results, not tuples. `hooked`: each task prepares a copy.
    """

    inputs: Any
    aggregator: Any
    output: Any
    combines: bool = False
    hooked: bool = False

    def code(self, who: str) -> TaskCode:
        """Return the copy of one task, which is not open yet."""
        return TaskCode(who, self.aggregator, "aggregate")

    def opened(self, code: TaskCode, context: Any) -> AggSpec:
        """Return it with the copy of one task, which is prepared."""
        code.open(context)
        return replace(self, aggregator=code.instance)


AGGREGATOR_METHODS: Mapping[AggregatorKind, Mapping[str, tuple[str, ...]]] = {
    AggregatorKind.COMBINER: {"init": ("tuple",), "combine": ("a", "b"), "zero": ()},
    AggregatorKind.REDUCER: {"init": (), "reduce": ("current", "tuple")},
    AggregatorKind.AGGREGATOR: {
        "init": ("batch_id", "collector"),
        "aggregate": ("value", "tuple", "collector"),
        "complete": ("value", "collector"),
    },
}
_OF_VALUES = {AggregatorKind.COMBINER: ("init", "combine"), AggregatorKind.REDUCER: ("reduce",)}
"""The methods that return the aggregate so far."""


def kind_of(aggregator: Any) -> AggregatorKind | None:
    """Return the kind of an aggregator, None for an object of no kind."""
    for kind, names in AGGREGATOR_METHODS.items():
        if not isinstance(aggregator, type) and all(callable(getattr(aggregator, name, None)) for name in names):
            return kind
    return None


def wrong_aggregator(aggregator: Any, kind: AggregatorKind) -> str | None:
    """Return what is wrong with the methods of an aggregator of this kind, None if nothing is."""
    prepares = has_hooks(aggregator, kind) and getattr(aggregator, "prepare", None) is not None
    wrong = wrong_method(aggregator, {**AGGREGATOR_METHODS[kind], **({"prepare": ("context",)} if prepares else {})})
    for name in _OF_VALUES.get(kind, ()) if wrong is None else ():
        if never_returns(Code(aggregator, name, CallStyle.ROWS)):
            return f"{title_of(aggregator)}.{name} never returns a value, so the aggregate would be None; return the aggregate"
    return wrong


def has_hooks(aggregator: Any, kind: AggregatorKind | None) -> bool:
    """Return whether an aggregator is of the general kind and has `prepare` or `cleanup`; only this kind has them in Storm."""
    hooks = (getattr(aggregator, hook, None) for hook in ("prepare", "cleanup"))
    return kind is AggregatorKind.AGGREGATOR and any(hook is not None for hook in hooks)


NOTHING: Any = object()
"""The value of a combiner before the first tuple. That tuple's value is taken unchanged, which equals combining it with zero."""


class BatchFold(NamedTuple):
    """The functions that fold the tuples of a batch, or of one of its keys, into rows.

    start: batch id -> value. add: (value, row) -> value. rows: value -> rows.
    """

    start: Callable[[Any], Any]
    add: Callable[[Any, Row], Any]
    rows: Callable[[Any], list[Row]]


def fold_of(part: AggSpec, schema: Schema, report: Reporter) -> BatchFold:
    """Return the fold of one aggregator over rows of `schema`. report: of the errors that it reports."""
    kind, aggregator, record = kind_of(part.aggregator), part.aggregator, recorder(schema, part.inputs)
    make = row_converter(part.output, DEFAULT_STREAM)
    if kind is AggregatorKind.REDUCER:
        reduce = aggregator.reduce
        return BatchFold(
            lambda batch_id: aggregator.init(),
            lambda value, row: reduce(value, record(row)),
            lambda value: [make((value,))],
        )
    if kind is AggregatorKind.COMBINER:
        init, combine = aggregator.init, aggregator.combine
        position = schema.names.index(part.inputs[0]) if part.combines else 0

        def combined(value: Any, row: Row) -> Any:
            new = row[position] if part.combines else init(record(row))
            return new if value is NOTHING else combine(value, new)

        return BatchFold(
            lambda batch_id: NOTHING,
            combined,
            lambda value: [make((aggregator.zero() if value is NOTHING else value,))],
        )

    collector = TridentOutput(part.output, report)

    def start(batch_id: Any) -> tuple[Any, list[Row]]:
        rows: list[Row] = []
        collector.rows = rows
        return aggregator.init(batch_id, collector), rows

    def add(value: tuple[Any, list[Row]], row: Row) -> tuple[Any, list[Row]]:
        collector.rows = value[1]
        returned = aggregator.aggregate(value[0], record(row), collector)
        if returned is not None and returned is not value[0]:
            raise RowError(f"its aggregate returned {quote(returned)}, which is lost; change init's value in place")
        return value

    def rows(value: tuple[Any, list[Row]]) -> list[Row]:
        collector.rows = value[1]
        refuse_returned(aggregator.complete(value[0], collector))
        collector.rows = CLOSED
        return value[1]

    return BatchFold(start, add, rows)


def chained(folds: Sequence[BatchFold]) -> BatchFold:
    """Return one fold for several over the same rows: the cross product of their rows. Its value is a list of theirs. A single one
    is returned unchanged.
    """
    if len(folds) == 1:
        return folds[0]
    starts, adds, ends = zip(*folds, strict=True)
    return BatchFold(
        lambda batch_id: [start(batch_id) for start in starts],
        lambda value, row: [add(each, row) for add, each in zip(adds, value, strict=True)],
        lambda value: [
            tuple(chain.from_iterable(row))
            for row in product(*(end(each) for end, each in zip(ends, value, strict=True)))
        ],
    )


@dataclass(slots=True)
class AggregateSlot:
    """The data of a batch in an AggregateProcessor: a value, or by key [the fields of the key, value]. With several aggregators the
    value is a list.
    """

    batch: ProcessorContext
    value: Any = NOTHING
    keys: dict[Any, list[Any]] = field(default_factory=dict)


class InitProcessor(TridentProcessor):
    """Reduces each row to the fields that are read later, and the first value of each combiner. Cost: O(combiners) per row."""

    def __init__(self, who: str, schema: Schema, kept: tuple[str, ...], combiners: tuple[AggSpec, ...]) -> None:
        self._owner = who
        self._pick = picker(schema, kept)
        self._inits = [
            (part.aggregator.init, recorder(schema, part.inputs), row_converter(part.output, DEFAULT_STREAM))
            for part in combiners
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
        except BaseException as problem:
            raise raised(self._owner, problem, f"on {quote(row)}") from problem
        return made


class AggregateProcessor(TridentProcessor):
    """Folds the rows of a batch. Cost: O(1) per row, and memory for one value, or one per key of the batch.

    group: the fields of the key, None for all tuples together. to: if there is no key, the exchange that has brought all tuples to
    one partition, which emits; None: each partition emits. partial: a partition without tuples emits nothing, because its row is
    only an input of the combining stage.
    """

    def __init__(
        self,
        who: str,
        schema: Schema,
        parts: tuple[AggSpec, ...],
        group: tuple[str, ...] | None,
        to: Partitioning | None,
        partial: bool,
    ) -> None:
        self._owner, self._schema, self._parts = who, schema, parts
        self._own = [part.code(who) if part.hooked else None for part in parts]
        self.codes = tuple(code for code in self._own if code is not None)
        self._fold: BatchFold
        self._group, self._to, self._partial = group, to, partial
        self._key = None if group is None else key_picker(schema, group)
        self._pick = picker(schema, group or ())
        self._context: Any = None

    def prepare(self, context: Any) -> None:
        self._context = context
        own = zip(self._parts, self._own, strict=True)
        parts = [part if code is None else part.opened(code, context) for part, code in own]
        self._fold = chained([fold_of(part, self._schema, self.report) for part in parts])

    def start_batch(self, batch: ProcessorContext) -> AggregateSlot:
        return AggregateSlot(batch)

    def execute(self, slot: AggregateSlot, rows: list[Row], source: int = 0) -> list[Row]:
        row: Row = ()
        try:
            if self._key is None:
                if rows and slot.value is NOTHING:
                    slot.value = self._fold.start(slot.batch.id)
                for row in rows:
                    slot.value = self._fold.add(slot.value, row)
                return []
            key_of, keys, add = self._key, slot.keys, self._fold.add
            for row in rows:
                key = key_of(row)
                found = keys.get(key)
                if found is None:
                    found = keys[key] = [self._pick(row), self._fold.start(slot.batch.id)]
                found[1] = add(found[1], row)
        except BaseException as problem:
            raise raised(self._owner, problem, f"on {quote(row)}") from problem
        return []

    def finish_batch(self, slot: AggregateSlot) -> list[Row]:
        try:
            if self._key is not None:
                return [key + row for key, value in slot.keys.values() for row in self._fold.rows(value)]
            if slot.value is NOTHING:
                task = slot.batch.txid % self._context.tasks if isinstance(self._to, BatchGlobalGrouping) else 0
                if self._partial or (self._to is not None and self._context.task_index != task):
                    return []  # another partition emits the row of no tuples
                slot.value = self._fold.start(slot.batch.id)
            return self._fold.rows(slot.value)
        except BaseException as problem:
            raise raised(self._owner, problem, f"at the end of batch {slot.batch.id}") from problem
