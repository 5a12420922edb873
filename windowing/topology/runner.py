"""BoltRunner: calls the user's function on one window and returns what it emitted, as plain data.

    open(context) -> run(window) -> run(window) -> ... -> close()

Laws: all rows are taken before `run` returns, so the window is valid while the user's code runs, generators included.
What fails inside becomes one BoltError that names bolt, window and line, with the user's error as its cause; nothing
that a failed call emitted gets out. Only KeyboardInterrupt and GeneratorExit pass, see `blame`. Nothing is retried here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windowing.core.checks import DEFAULT_STREAM
from windowing.core.config import OnError
from windowing.core.storm_names import StormNames, emit_advice, stream_or_value
from windowing.core.windows import TupleWindow
from windowing.errors import BoltError, printable, shown
from windowing.topology.blame import blame, file_of, home_of
from windowing.topology.bolts import CallStyle, WindowedBolt
from windowing.topology.context import TaskContext
from windowing.topology.rows import RowError, is_table, refuse_awaitable, refuse_rows, row_of, rows_of

__all__ = ["BoltRunner", "Collector", "Emission", "Fitted", "Outcome"]

Emission = tuple[str, Any]
"""A stream and the values of one row for it, a tuple in the order of the stream's fields; or a table, see BoltRunner."""
Fitted = Callable[[Any], Any]
"""Returns a table that a bolt returned as a driver takes it, or None; see BoltRunner."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one window: its emissions, or, with none of them, the error that the driver has to deal with."""

    emissions: list[Emission]
    error: BoltError | None = None


class Collector(StormNames):
    """What a bolt of (window, collector) emits to, valid until its call returns. Source: Storm's `OutputCollector`."""

    __slots__ = ("_bolt", "_emissions", "_open")

    def __init__(self, bolt: WindowedBolt) -> None:
        self._bolt = bolt
        self._emissions: list[Emission] = []
        self._open = True

    def emit(self, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row: a tuple, a list, a dict by field name, or a scalar where the stream has one field; or a table of rows.

        Raises BoltError for a stream that is not declared, a row that does not fit it, or a call that came too late.
        """
        if not self._open:
            raise BoltError(
                f"bolt {self._bolt.name!r} emitted {shown(values)} after its execute had returned; emit while it runs"
            )
        if stray or type(stream) is not str:
            raise RowError(emit_advice((values, stream, *stray), self._bolt.outputs))
        schema = self._bolt.outputs.get(stream)
        if schema is None:
            raise RowError(_unknown_stream(self._bolt, stream) + stream_or_value(values, stream, self._bolt.outputs))
        if is_table(values):
            self._emissions += [(stream, row) for row in rows_of(values, schema, stream)]
        else:
            self._emissions.append((stream, row_of(values, schema, stream)))

    def take(self) -> list[Emission]:
        """Close the collector and return what was emitted, in order; the runner calls it."""
        self._open = False
        return self._emissions


class BoltRunner:
    """Runs one bolt for one task; a class gets one instance per runner, made by `open`.

    fitted: for a driver that takes tables, which then come as one emission each; given a table that the bolt returned, it returns
    what the driver takes, or None where a row at a time has to tell what is wrong with it.

    Cost: one call of the user's code per window, plus 0.5 us a row to check its shape and the types of its values.
    """

    __slots__ = ("_bolt", "_call", "_file", "_fitted", "_home", "_instance", "_schema", "_who")

    def __init__(self, bolt: WindowedBolt, fitted: Fitted | None = None) -> None:
        self._bolt = bolt
        self._fitted = fitted
        self._who = f"bolt {bolt.name!r}"
        self._schema = bolt.outputs.get(DEFAULT_STREAM)
        self._call: Any = None
        self._instance: Any = None
        method = "execute" if bolt.is_class else None
        self._file, self._home = file_of(bolt.target, method), home_of(bolt.target, method)

    def open(self, context: Any = None, state: Any = None) -> None:
        """Make the instance, call its `init_state(state)` if there is one to hand over, then its `prepare(context)`."""
        if self._call is not None:
            raise BoltError(f"bolt {self._bolt.name!r} is already open; close() it first, or make a second runner")
        if isinstance(context, TaskContext):
            self._who = context.called("bolt")
        if not self._bolt.is_class:
            self._call = self._bolt.target
            return
        try:
            instance = self._bolt.target()
            if state is not None:
                instance.init_state(state)
            elif self._bolt.stateful:
                raise BoltError(
                    f"bolt {self._bolt.name!r} has init_state, and nobody has handed it a state; give open() one"
                )
            if getattr(instance, "prepare", None) is not None:
                instance.prepare(context)
        except BoltError:
            raise
        except BaseException as problem:
            raise self._failure(problem, "in prepare") from problem
        self._instance, self._call = instance, instance.execute

    def run(self, window: TupleWindow) -> list[Emission]:
        """Call the bolt on `window` and return its rows in the order in which it made them, or raise BoltError."""
        if self._call is None:
            self._check_open()
        if self._bolt.style is CallStyle.COLLECTOR:
            return self._collect(window)
        schema = self._schema
        try:
            returned = self._call(window)
            if schema is None:
                refuse_rows(returned)
                return []
            if type(returned) is tuple:  # most are
                return [(DEFAULT_STREAM, row_of(returned, schema, DEFAULT_STREAM))]
            if self._fitted is not None and is_table(returned) and (table := self._fitted(returned)) is not None:
                return [(DEFAULT_STREAM, table)]
            return [(DEFAULT_STREAM, row) for row in rows_of(returned, schema, DEFAULT_STREAM)]
        except BaseException as problem:
            raise self._failure(problem, f"on {_line(window)}") from problem

    def attempt(self, window: TupleWindow) -> Outcome:
        """Run the bolt and apply `on_error`: "raise" lets the BoltError out, the others return it for the driver."""
        self._check_open()
        try:
            return Outcome(self.run(window))
        except BoltError as error:
            if self._bolt.config.on_error is OnError.RAISE:
                raise
            return Outcome([], error)

    def hook(self, method: str, *arguments: Any) -> None:
        """Call a method of the instance that it may have, such as `pre_commit`; a function has none."""
        self._call_if_there(self._instance, method, *arguments)

    def close(self) -> None:
        """Call the instance's `cleanup`, once; a runner that is not open stays as it is."""
        instance, self._instance, self._call = self._instance, None, None
        self._call_if_there(instance, "cleanup")

    def _call_if_there(self, instance: Any, method: str, *arguments: Any) -> None:
        written = getattr(instance, method, None)
        if written is None:
            return
        try:
            written(*arguments)
        except BaseException as problem:
            raise self._failure(problem, f"in {method}") from problem

    def _check_open(self) -> None:
        if self._call is None:
            raise BoltError(f"bolt {self._bolt.name!r} is not open; call open() before it gets a window")

    def _collect(self, window: TupleWindow) -> list[Emission]:
        collector = Collector(self._bolt)
        try:
            returned = self._call(window, collector)
            refuse_awaitable(returned)
            if returned is not None:
                raise RowError(f"it takes a collector, yet it returned {shown(returned)}; emit rows and return nothing")
        except BaseException as problem:
            raise self._failure(problem, f"on {_line(window)}") from problem
        finally:
            emissions = collector.take()
        return emissions

    def _failure(self, problem: BaseException, where: str) -> BoltError:
        home = self._home if isinstance(problem, RowError) else None
        return blame(self._who, problem, where, self._file, (__file__,), home)


def _unknown_stream(bolt: WindowedBolt, stream: Any) -> str:
    declared = ", ".join(bolt.outputs) or "none"
    if stream == bolt.config.late_stream:
        return (
            f"stream {stream!r} is the late stream, which takes late tuples only; the bolt's own streams are {declared}"
        )
    return f"stream {shown(stream)} is not declared, there are {declared}; add it to output={{...}}"


def _line(window: TupleWindow) -> str:
    return printable(repr(window), 200)
