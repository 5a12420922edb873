"""Code: what a user hands to an operation, and how a task calls it.

    a function of (tuple), or of (tuple, collector)
    an object, or a class, with the operation's method (execute, keep, ...), and perhaps prepare(context), cleanup()

Laws: each task has an instance of its own, a class made without arguments, an object copied; what is wrong with a signature is
found when the topology is built, and what the code raises becomes one BoltError that names operation, tuple and line. A
FailedException stays what it is: it fails the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from operator import call
from typing import Any

from windowing.core.checks import DEFAULT_STREAM
from windowing.core.storm_names import StormNames, emit_advice
from windowing.errors import BoltError, ConfigError, FailedException, shown
from windowing.topology.blame import blame, file_of
from windowing.topology.bolts import CallStyle, title_of
from windowing.topology.rows import RowError, row_of, rows_of
from windowing.topology.schema import Schema
from windowing.topology.signatures import bound, check_call, style_of_function
from windowing.topology.trident.fields import Row
from windowing.topology.values import Misfit, converters_of

__all__ = ["Code", "Report", "RowMaker", "TaskCode", "TridentOutput", "code_of", "raised", "unheard"]

_SCALARS = (str, int, float)
_FOLDER = __file__.removesuffix("code.py")
_OURS = tuple(
    f"{_FOLDER}{module}.py" for module in ("code", "processors", "aggregating", "joining", "persisting", "windows")
)


Report = Callable[[BaseException], None]
"""Takes an error that users' code reports without stopping."""


def unheard(error: BaseException) -> None:
    """Drop a report: nobody drives the operation."""


class RowMaker:
    """Makes rows of one stream of what users' code gives: by the rules of `row_of`, with a short way for what is most common.

    >>> maker = RowMaker(Schema.parse("word string"))
    >>> maker.rows(["to", ("be",)]), maker.one({"word": "or"})
    ([('to',), ('be',)], ('or',))
    """

    __slots__ = ("_convert", "_converters", "_fields", "_schema")

    def __init__(self, schema: Schema) -> None:
        self._schema, self._fields = schema, len(schema)
        self._converters = converters_of(schema.types)
        self._convert = self._converters[0] if self._fields == 1 else None

    def one(self, row: Any) -> Row:
        """Return one row, or raise RowError. Cost: 0.3 us for a tuple of values that are of their types."""
        try:
            if type(row) is tuple and len(row) == self._fields:
                return tuple(map(call, self._converters, row))
            if self._convert is not None and type(row) in _SCALARS:
                return (self._convert(row),)
        except Misfit:
            pass  # row_of says which field it was
        return row_of(row, self._schema, DEFAULT_STREAM)

    def rows(self, returned: Any) -> list[Row]:
        """Return the rows of what a function returned or yields."""
        if type(returned) is list:
            return list(map(self.one, returned))
        return list(rows_of(returned, self._schema, DEFAULT_STREAM))


class TridentOutput(StormNames):
    """The collector of one stream: checks what is emitted, and keeps it. Source: Storm's `TridentCollector`."""

    __slots__ = ("_maker", "_report", "rows")

    def __init__(self, schema: Schema, report: Report = unheard) -> None:
        self._maker = RowMaker(schema)
        self._report = report
        self.rows: list[Row] = []

    def emit(self, values: Any, *stray: Any) -> None:
        """Emit one row: a tuple, a list, a dict by name, or a scalar where the stream has one field."""
        if stray:
            raise RowError(emit_advice((values, *stray), ()))
        self.rows.append(self._maker.one(values))

    def report_error(self, error: BaseException) -> None:
        """Let whoever looks at the run see an error that stops nothing."""
        self._report(error)

    def take(self) -> list[Row]:
        """Return what was emitted since the last call."""
        taken, self.rows = self.rows, []
        return taken


@dataclass(frozen=True, slots=True)
class Code:
    """A user's function or object as it stands in a plan; `method` is None for a function."""

    target: Any
    method: str | None
    style: CallStyle

    @property
    def title(self) -> str:
        """The name by which a person knows it."""
        return title_of(self.target)

    def open(self, who: str, context: Any) -> TaskCode:
        """Return what one task calls; its `prepare(context)` has been called."""
        return TaskCode(self, who, context)


class TaskCode:
    """One task's instance; `call` is the function to call."""

    def __init__(self, code: Code, who: str, context: Any) -> None:
        self._who = who
        self._file = file_of(code.target, code.method)
        self._instance: Any = None
        self.call: Callable[..., Any] = code.target
        if code.method is None:
            return
        try:
            self._instance = code.target() if isinstance(code.target, type) else copy.deepcopy(code.target)
        except BaseException as problem:
            raise self.blame(problem, "when its instance was made") from problem
        self.call = getattr(self._instance, code.method)
        self._hook("prepare", context)

    def cleanup(self) -> None:
        """Call the instance's `cleanup`, if it has one."""
        self._hook("cleanup")

    def blame(self, problem: BaseException, where: str) -> BaseException:
        """Return the error to raise `from` what the code raised."""
        return raised(self._who, problem, where, self._file)

    def _hook(self, method: str, *arguments: Any) -> None:
        written = getattr(self._instance, method, None)
        if written is None:
            return
        try:
            written(*arguments)
        except BaseException as problem:
            raise self.blame(problem, f"in {method}") from problem


def raised(who: str, problem: BaseException, where: str, file: str | None = None) -> BaseException:
    """Return what to raise for `problem`: itself if it fails the batch or was blamed before, else a BoltError."""
    ours = isinstance(problem, BoltError) and not isinstance(problem, RowError)
    return problem if ours or isinstance(problem, FailedException) else blame(who, problem, where, file, _OURS)


def code_of(target: Any, method: str, handed: str = "tuple", *, returns: bool = False) -> Code:
    """Return a user's function, object or class as Code, or raise ConfigError with what is wrong with it.

    method: what an object is called by. handed: what it is called with, in a sentence. returns: no collector is offered.
    """
    title = title_of(target)
    named = method if callable(getattr(target, method, None)) else None
    if named is None and (isinstance(target, type) or not callable(target)):
        raise ConfigError(
            f"{shown(target)} is no function and has no {method}; give a function of ({handed}), or an object with "
            f"{method}(self, {handed})"
        )
    if isinstance(target, type):
        check_call(target, (), f"class {title!r}", "each task makes its own without arguments; give an instance")
    if named is not None and getattr(target, "prepare", None) is not None:
        prepare = bound(target, "prepare") if isinstance(target, type) else target.prepare
        check_call(prepare, ("context",), f"{title}.prepare", "write def prepare(self, context)")
    if named is None:
        called, body = target, target
    else:
        body = getattr(target, named)
        called = bound(target, named) if isinstance(target, type) else body
    style = style_of_function(called, body, title if named is None else f"{title}.{named}", handed)
    if returns and style is CallStyle.COLLECTOR:
        raise ConfigError(
            f"{title!r} takes a collector, but its answer is what it returns; write a function of ({handed})"
        )
    return Code(target, named, style)
