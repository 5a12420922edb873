"""User code: the calls of bolts and timestamp functions, and the errors that attribute their failures.

    BoltRunner           a windowed bolt on one window           open(context) -> run(window) -> ... -> close()
    BoltCaller           any other bolt on one tuple             open(context) -> execute(tuple) -> ... -> close()
                         on a batch: columnar/bolts.py           open(context) -> execute_batch(table) -> ... -> close()
    TimestampFunction    a function of a row                     1_000, 1000.0, a datetime, ... -> milliseconds
                                                                 None -> None: the row has no timestamp (invalid)
                                                                 "soon", KeyError -> None, and a warning with the first such case

An exception of user code becomes a one-line BoltError that names component, place and line of code, with the exception as its cause
(`user_code_error`). A FailedException is passed on: the tuple fails, and the run continues. Only KeyboardInterrupt and
GeneratorExit are not converted.

Laws: all rows of a call are collected before it returns, those of a generator too, so a window is valid while the user's code runs,
and no row of a failed call is sent (in Storm it is). `OutputStreams` checks every emit of a component, for all collectors: stream,
number of values, direct or not. Nothing is retried here. With `on_invalid="raise"` the second and third kind of timestamp raise an
InvalidTimestampError, whose cause is the function's error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from windowing.errors import (
    LIBRARY,
    BoltError,
    ConfigError,
    FailedException,
    GroupingError,
    InvalidTimestampError,
    describe_error,
    printable,
    quote,
    warn,
)
from windowing.schema.checks import DEFAULT_STREAM, StormNames, emit_advice, stream_or_value, undeclared
from windowing.schema.rows import (
    RowError,
    is_table,
    refuse_returned,
    refuse_rows,
    row_converter,
    row_of,
    rows_converter,
    rows_of,
)
from windowing.schema.tuples import Tuple
from windowing.schema.types import Schema
from windowing.schema.values import InvalidTimestampWarning, timestamp_of
from windowing.topology.bolts import CallStyle, ComponentKind, Declaration, WindowedBolt, class_of
from windowing.topology.components import TopologyContext
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.windows.aggregate import title_of
from windowing.windows.events import TupleWindow

_ENDED = "raised in user code: "


def user_code_error(
    owner: str,
    problem: BaseException,
    where: str,
    file: str | None,
    home: str | None = None,
) -> BoltError | GroupingError:
    """Return the error for a component that raised `problem`; use `raise ... from problem`. A GroupingError names it already.

    owner: kind and name, such as "bolt 'count'". where: "in prepare", "on <the window>". file: the file of the user's code, from
    `file_of`. home: the location to name if no line of the user's code was running (a row that was returned), from `home_of`.
    KeyboardInterrupt, GeneratorExit and the like are raised again unchanged, with a note that names the component (`ended_in`),
    because they may be meant for other code.
    """
    line = _user_line(problem.__traceback__, file) or home
    at = f" ({line})" if line else ""
    if not isinstance(problem, Exception | SystemExit):
        problem.add_note(f"{_ENDED}{owner} failed {where}: {describe_error(problem)}{at}")
        raise problem
    if isinstance(problem, GroupingError):
        return GroupingError(f"{problem.args[0]}{at}")
    if isinstance(problem, RowError):
        return BoltError(f"{owner} emitted a wrong row {where}: {problem.args[0]}{at}")
    return BoltError(f"{owner} failed {where}: {describe_error(problem)}{_way_out(problem)}{at}")


_WRONG_KEYWORD = re.compile(r"(\w*Collect\w+)\.emit\w*\(\) got an unexpected keyword argument '(\w+)'")
_CHANGED = re.compile(
    r"'(Delivery|Arrival|Tuple)' object (does not support item (assignment|deletion)|has no (setter|deleter))"
)


def _way_out(problem: BaseException) -> str:
    """Return what to write in place of a wrong keyword of `emit`, or of a change of a tuple; empty for other errors of Python."""
    text = str(problem) if type(problem) in (TypeError, AttributeError) else ""
    if _CHANGED.search(text):
        return "; a tuple cannot be changed: emit a new row"
    found = _WRONG_KEYWORD.search(text)
    if found is None:
        return ""
    collector, word = found[1], found[2].lower()
    tracked = "message_id" if "Spout" in collector else "anchors" if "Bolt" in collector else ""
    if "stream" in word:
        return "; write stream='slow'"
    if "anchor" in word:
        return (
            "; write anchors=tuple" if tracked == "anchors" else "; leave it out: the rows are anchored by themselves"
        )
    known = ", ".join(f"{each}=..." for each in (tracked, "stream") if each)
    return f"; emit takes one row, and {known}"


def ended_in(problem: BaseException) -> BoltError | None:
    """Return the error of the component whose code was running when `problem`, no Exception, was raised; None if none was."""
    for note in getattr(problem, "__notes__", ()):
        if note.startswith(_ENDED):
            return BoltError(note.removeprefix(_ENDED))
    return None


def file_of(target: Callable[..., Any], method: str | None = None) -> str | None:
    """Return the file of the user's code, as its frames name it, None for code of the library; `method` is the method of a class
    that is called.
    """
    code = _code_of(target, method)
    return None if code is None else str(code.co_filename)


def home_of(target: Callable[..., Any], method: str | None = None) -> str | None:
    """Return file:line of the first line of the user's function or method, None for code of the library."""
    code = _code_of(target, method)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _code_of(target: Callable[..., Any], method: str | None) -> CodeType | None:
    """Return the user's code that is called, None for code of the library."""
    written: Any = target
    if method is not None:
        made = class_of(target) or target
        written = getattr(made, method, made)
    while isinstance(written, functools.partial):
        written = written.func
    if not inspect.isroutine(written):
        written = type(written).__call__ if callable(written) else None
    code = getattr(inspect.unwrap(written), "__code__", None) if written is not None else None
    return code if isinstance(code, CodeType) and not code.co_filename.startswith(LIBRARY) else None


def _user_line(trace: TracebackType | None, file: str | None) -> str | None:
    """Return file:line of the innermost frame in the user's file, else of the first frame outside the library."""
    innermost, first = None, None
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == file:
            innermost = f"{name}:{trace.tb_lineno}"
        elif first is None and not name.startswith(LIBRARY):
            first = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return innermost or first


# -- UserCode ----------------------------------------------------------------------------------------------------------------------


class UserCode:
    """One task's instance of a user's class, None for a function; exceptions of its code are attributed to `owner`."""

    __slots__ = ("_method", "_owner", "_target", "instance")

    def __init__(self, owner: str, target: Callable[..., Any], method: str | None) -> None:
        self._owner, self._target, self._method = owner, target, method
        self.instance: Any = None

    @property
    def _file(self) -> str | None:
        return file_of(self._target, self._method)

    def make(self) -> None:
        try:
            self.instance = self._target()
        except BaseException as problem:
            raise self.user_code_error(problem, "when it was made") from problem

    def prepare_instance(self, state: Any, *arguments: Any) -> None:
        """Call the instance's `init_state` if a state is given, then its `prepare`. If one of them raises, `cleanup` follows."""
        try:
            if state is not None:
                self.hook("init_state", state)
            self.hook("prepare", *arguments)
        except BaseException:
            self.abandon()
            raise

    def hook(self, method: str, *arguments: Any) -> None:
        """Call an optional method of the instance, such as `pre_commit`; a function has none."""
        written = getattr(self.instance, method, None)
        if written is None:
            return
        try:
            written(*arguments)
        except BaseException as problem:
            raise self.user_code_error(problem, f"in {method}") from problem

    def close(self) -> None:
        """Call the instance's `cleanup`, once."""
        try:
            self.hook("cleanup")
        finally:
            self.instance = None

    def abandon(self) -> None:
        """Call the instance's `cleanup` after an error of its code, if it was not called; an error in it is dropped."""
        with contextlib.suppress(BoltError):
            self.close()

    def user_code_error(self, problem: BaseException, where: str) -> BaseException:
        """Return the error to raise `from` an exception of the code."""
        return user_code_error(self._owner, problem, where, self._file)


# -- timestamp functions ---------------------------------------------------------------------------------------------------------


TIMELESS = "no value of it is a timestamp; declare it long (milliseconds) or timestamp, or give a function of the tuple"
"""The end of an error about a timestamp field for whose type `holds_times` returns False."""
_TIMELESS = ("string", "binary", "boolean", "array<", "map<", "struct<")


class TimestampFunction:
    """Returns the timestamp of a row in milliseconds since 1970, or None. `problem` is the first failure so far. An exception of
    the type `passed` is raised unchanged.

    >>> stamp = TimestampFunction(lambda row: row["at"], "count")
    >>> stamp({"at": 3.0}), stamp({"at": "soon"}), stamp.problem.partition(";")[0]
    (3, None, "bolt 'count': the timestamp function '<lambda>' gave 'soon' for {'at': 'soon'}")
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        bolt: str,
        on_invalid: str = "late",
        passed: type[Exception] | tuple[()] = (),
    ) -> None:
        self._function, self._raises, self._passed = function, on_invalid == "raise", passed
        self._bolt, self._name, self._file = bolt, title_of(function), file_of(function)
        self.problem: str | None = None

    def __call__(self, row: Any) -> int | None:
        """Return the timestamp of a row. Raises InvalidTimestampError with `on_invalid="raise"`. Cost: that of the call."""
        try:
            value = self._function(row)
            stamp = timestamp_of(value)
        except self._passed:
            raise
        except Exception as problem:
            where = f"in the timestamp function {self._name!r} on {quote(row)}"
            text = user_code_error(f"bolt {self._bolt!r}", problem, where, self._file).args[0]
            self._unusable(text, problem)
            return None
        if stamp is not None:
            return stamp
        if value is None and not self._raises:
            return None
        gave = f"gave {quote(value)} for {quote(row)}"
        self._unusable(f"bolt {self._bolt!r}: the timestamp function {self._name!r} {gave}", None)
        return None

    def warn(self) -> None:
        """Warn of the first failure since the last call, if there was one."""
        problem, self.problem = self.problem, None
        if problem is not None:
            warn_of(problem)

    def _unusable(self, text: str, problem: Exception | None) -> None:
        text += "; wanted whole milliseconds since 1970, or a datetime"
        if self._raises:
            raise InvalidTimestampError(
                f'{text}; repair the function, or send such tuples to the late stream with on_invalid="late"'
            ) from problem
        self.problem = self.problem or text


def holds_times(kind: str) -> bool:
    """Return whether a value of this type, written as in a schema, can be a timestamp: a number, a date or a timestamp.

    >>> holds_times("bigint"), holds_times("decimal(18,0)"), holds_times("date"), holds_times("string")
    (True, True, True, False)
    """
    return not kind.startswith(_TIMELESS)


def warn_of(problem: str) -> None:
    """Warn that rows have no usable timestamp."""
    warn(f"{problem}; such rows are invalid", InvalidTimestampWarning)


# -- BoltCaller ------------------------------------------------------------------------------------------------------------------


class EmittedRow(NamedTuple):
    """One emitted row: its stream, its values in the stream's order, and, for a direct emit, the id of the task."""

    stream: str
    values: tuple[Any, ...]
    task: int | None = None


class OutputStreams:
    """The declared streams of a component; `checked` returns the values of a valid row, or raises RowError."""

    __slots__ = ("_streams",)

    def __init__(self, declared: Declaration) -> None:
        self._streams = {
            name: (schema, name in declared.direct, row_converter(schema, name))
            for name, schema in declared.outputs.items()
        }

    def checked(self, values: Any, stream: str, direct: bool) -> tuple[Any, ...]:
        """Return `values` (a tuple, a list, a dict by name, a scalar for one field) in the order of the stream's fields."""
        found = self._streams.get(stream)
        if found is None:
            raise RowError(self._unknown(stream) + stream_or_value(values, stream, self._streams))
        _, is_direct, converted = found
        if direct is not is_direct:
            raise _other_emit(stream, is_direct)
        return converted(values)

    def converters(self) -> dict[str, Callable[[Any], tuple[Any, ...]]]:
        """Return `checked` for each stream that is not direct, for a caller that has looked up the stream."""
        return {name: converted for name, (_, direct, converted) in self._streams.items() if not direct}

    def schema(self, stream: Any) -> Schema:
        """Return the fields of a stream to which the component's code emits, or raise RowError."""
        found = self._streams.get(stream)
        if found is None:
            raise RowError(self._unknown(stream))
        return found[0]

    def refuse(self, given: tuple[Any, ...], tracked: str = "", method: str = "emit") -> RowError:
        """Return the error for an emit with positional arguments that must be named."""
        return RowError(emit_advice(given, self._streams, tracked, method))

    def _unknown(self, stream: Any) -> str:
        if stream == DEAD_LETTERS:
            return f"stream {stream!r} takes dead letters only; emit on another one"
        return undeclared(stream, self._streams)


def _other_emit(stream: str, is_direct: bool) -> RowError:
    return RowError(
        f"stream {stream!r} is declared direct, so each row needs its task; call emit_direct(task, values)"
        if is_direct
        else f"stream {stream!r} is not declared direct; call emit, or name it in direct=({stream!r},)"
    )


def not_handed(given: Any) -> ConfigError:
    """Return the error for an object that a bolt acks, fails or anchors to, and that is no tuple."""
    return ConfigError(f"what is acked, failed or anchored to is a tuple that execute was handed, got {quote(given)}")


_BY_ITSELF = {
    "ack": "nothing: the tuple is acked when execute returns; a subclass of Bolt acks by itself",
    "fail": "raise FailedException(...)",
    "reportError": "raise ReportedFailedException(...)",
}
"""What a bolt whose tuples are acked by the driver writes in place of methods of Storm's `OutputCollector`."""


class CollectedRows(StormNames):
    """The collector of a bolt of (tuple, collector), valid until the call returns. Source: `BasicOutputCollector`."""

    __slots__ = ("_open", "_streams", "rows")

    _elsewhere = _BY_ITSELF

    def __init__(self, streams: OutputStreams) -> None:
        self._streams = streams
        self._open = True
        self.rows: list[EmittedRow] = []

    def emit(self, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row, anchored to the tuple that is being executed."""
        self._check_open(values)
        if stray or type(stream) is not str:
            raise self._streams.refuse((values, stream, *stray))
        self.rows.append(EmittedRow(stream, self._streams.checked(values, stream, False)))

    def emit_direct(self, task: int, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row to the task with this id, on a stream that is declared direct."""
        self._check_open(values)
        if stray or type(stream) is not str:
            raise self._streams.refuse((values, stream, *stray), method="emit_direct")
        self.rows.append(EmittedRow(stream, self._streams.checked(values, stream, True), task))

    def take(self) -> list[EmittedRow]:
        """Close the collector and return the emitted rows, in order."""
        self._open = False
        return self.rows

    def _check_open(self, values: Any) -> None:
        if not self._open:
            raise BoltError(f"{quote(values)} was emitted after execute had returned; emit while it runs")


_OF_A_BOLT = (
    "is a Bolt, which emits to the collector of its prepare and acks",
    ", or inherit from BasicBolt or from nothing",
)
"""The parts of the error about a Bolt that returned rows."""


class BoltCaller(UserCode):
    """One task's instance of a BASIC_BOLT or a BOLT. Cost: one call of the user's code a tuple, plus O(rows) checks.

    A BOLT is prepared with the driver's collector, emits to it, and returns nothing from `execute`.
    """

    __slots__ = ("_call", "_converted", "_declared", "streams")

    def __init__(self, declared: Declaration) -> None:
        assert declared.target is not None
        super().__init__(f"bolt {declared.name!r}", declared.target, "execute" if declared.is_class else None)
        self._declared = declared
        schema = declared.outputs.get(DEFAULT_STREAM)
        self._converted = None if schema is None else rows_converter(schema, DEFAULT_STREAM)
        self._call: Any = None
        self.streams = OutputStreams(declared)

    def open(self, context: Any, collector: Any = None) -> None:
        """Make the instance and prepare it; a stateful bolt is prepared by `prepare`, after its `init_state`."""
        self._owner = context.called("bolt")
        if not self._declared.is_class:
            self._call = self._target
            return
        self.make()
        self._call = self.instance.execute
        if not self._declared.stateful:
            self.prepare(context, collector)

    def prepare(self, context: Any, collector: Any = None, state: Any = None) -> None:
        """Prepare the instance, a BOLT with the driver's collector."""
        acks = self._declared.kind is ComponentKind.BOLT
        self.prepare_instance(state, context, *((collector,) if acks else ()))

    def execute(self, tuple: Tuple) -> list[EmittedRow]:
        """Call the bolt and return its emitted rows. Raises BoltError, or the user's FailedException."""
        try:
            return self.emitted(tuple)
        except FailedException:
            raise
        except BaseException as problem:
            raise self.attributed(problem, tuple) from problem

    def emitted(self, tuple: Tuple) -> list[EmittedRow]:
        """Like `execute`, but the caller attributes exceptions (`attributed`)."""
        if self._declared.style is CallStyle.ROWS:
            returned = self._call(tuple)
            if self._converted is not None:
                return [EmittedRow(DEFAULT_STREAM, row) for row in self._converted(returned)]
            refuse_rows(returned)
            return []
        if self._declared.kind is ComponentKind.BOLT:
            refuse_returned(self._call(tuple), *_OF_A_BOLT)
            return []
        collector = CollectedRows(self.streams)
        try:
            refuse_returned(self._call(tuple, collector))
        finally:
            emitted = collector.take()
        return emitted

    def by_return(self) -> tuple[Callable[[Tuple], Any], Callable[[Any], Sequence[tuple[Any, ...]]]] | None:
        """Return two functions for a loop over a batch, once the bolt is open: one calls the bolt, the other converts its result to
        rows of the default stream. None for a bolt with a collector. The caller attributes their exceptions (`attributed`).
        """
        if self._declared.style is not CallStyle.ROWS or self._converted is None:
            return None
        return self._call, self._converted

    def attributed(self, problem: BaseException, tuple: Tuple) -> BaseException:
        """Return the error to raise `from` an exception of the code on a tuple."""
        return self.user_code_error(problem, f"on {quote(tuple)}")


# -- BoltRunner ------------------------------------------------------------------------------------------------------------------


Emission = tuple[str, Any]
"""A stream and the values of one row for it, a tuple in the order of the stream's fields; an EmittedRow for a direct emit; or a
table (see BoltRunner)."""
Fitted = Callable[[Any], Any]
"""Converts a table that a bolt returned for a driver, or returns None (see BoltRunner)."""


class Collector(StormNames):
    """The collector of a bolt of (window, collector), valid until the call returns. Source: Storm's `OutputCollector`."""

    __slots__ = ("_bolt", "_emissions", "_open")

    _elsewhere = _BY_ITSELF | {"ack": "nothing: a tuple is acked when it has expired from its last window"}

    def __init__(self, bolt: WindowedBolt) -> None:
        self._bolt = bolt
        self._emissions: list[Emission] = []
        self._open = True

    def emit(self, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row: a tuple, a list, a dict by field name, or a scalar where the stream has one field; or a table of rows.

        Raises BoltError for a call after `execute` has returned, RowError for an undeclared stream or a row that does not fit it.
        """
        if stray or type(stream) is not str:
            raise RowError(emit_advice((values, stream, *stray), self._bolt.outputs))
        schema = self._schema(values, stream, False)
        if is_table(values):
            self._emissions += [(stream, row) for row in rows_of(values, schema, stream)]
        else:
            self._emissions.append((stream, row_of(values, schema, stream)))

    def emit_direct(self, task: int, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row to the task with this id, on a stream that is declared direct."""
        if stray or type(stream) is not str:
            raise RowError(emit_advice((values, stream, *stray), self._bolt.outputs, method="emit_direct"))
        values = row_of(values, self._schema(values, stream, True), stream)
        self._emissions.append((stream, EmittedRow(stream, values, task)))

    def take(self) -> list[Emission]:
        """Close the collector and return its emissions, in order; the runner calls it."""
        self._open = False
        return self._emissions

    def _schema(self, values: Any, stream: str, direct: bool) -> Schema:
        if not self._open:
            raise BoltError(
                f"bolt {self._bolt.name!r} emitted {quote(values)} after its execute had returned; emit while it runs"
            )
        schema = self._bolt.outputs.get(stream)
        if schema is None:
            raise RowError(_unknown_stream(self._bolt, stream) + stream_or_value(values, stream, self._bolt.outputs))
        if (stream in self._bolt.direct) is not direct:
            raise _other_emit(stream, not direct)
        return schema


class BoltRunner(UserCode):
    """Runs one bolt for one task; each runner makes its own instance of a class, in `open`.

    fitted: for a driver that accepts tables, each as one emission. It gets a table that the bolt returned, and returns it in the
    driver's form, or None if the rows have to be checked one by one for an error.

    Cost: one call of the user's code per window, plus 0.5 us a row to check its shape and the types of its values.
    """

    __slots__ = ("_bolt", "_call", "_converted", "_fitted")

    def __init__(self, bolt: WindowedBolt, fitted: Fitted | None = None) -> None:
        super().__init__(f"bolt {bolt.name!r}", bolt.target, "execute" if bolt.is_class else None)
        self._bolt = bolt
        self._fitted = fitted
        schema = bolt.outputs.get(DEFAULT_STREAM)
        self._converted = None if schema is None else rows_converter(schema, DEFAULT_STREAM)
        self._call: Any = None

    def open(self, context: Any = None, state: Any = None) -> None:
        if self._call is not None:
            raise BoltError(f"bolt {self._bolt.name!r} is already open; close() it first, or make a second runner")
        if isinstance(context, TopologyContext):
            self._owner = self._bolt.called or context.called("bolt")
        if not self._bolt.is_class:
            self._call = self._target
            return
        if state is None and self._bolt.stateful:
            raise BoltError(
                f"bolt {self._bolt.name!r} has init_state, and nobody has handed it a state; give open() one"
            )
        self.make()
        self.prepare_instance(state, context)
        self._call = self.instance.execute

    def run(self, window: TupleWindow) -> list[Emission]:
        """Call the bolt on `window` and return its rows in the order in which it made them. Raises BoltError."""
        if self._call is None:
            raise BoltError(f"bolt {self._bolt.name!r} is not open; call open() before it gets a window")
        try:
            if self._bolt.style is CallStyle.COLLECTOR:
                collector = Collector(self._bolt)
                try:
                    refuse_returned(self._call(window, collector))
                finally:
                    emissions = collector.take()
                return emissions
            returned = self._call(window)
            if self._converted is None:
                refuse_rows(returned)
                return []
            if type(returned) is not tuple and self._fitted is not None and is_table(returned):
                table = self._fitted(returned)
                if table is not None:
                    return [(DEFAULT_STREAM, table)]
            return [(DEFAULT_STREAM, row) for row in self._converted(returned)]
        except BaseException as problem:
            raise self.user_code_error(problem, f"on {_line(window)}") from problem

    def close(self) -> None:
        """Call the instance's `cleanup`, once; no effect on a runner that is not open."""
        self._call = None
        super().close()

    def user_code_error(self, problem: BaseException, where: str) -> BoltError | GroupingError:
        """Return the BoltError that names this bolt; for a wrong row it names the first line of the bolt's code."""
        home = home_of(self._target, self._method) if isinstance(problem, RowError) else None
        return user_code_error(self._owner, problem, where, self._file, home)


def _unknown_stream(bolt: WindowedBolt, stream: Any) -> str:
    if stream == bolt.config.late_stream:
        own = ", ".join(bolt.outputs) or "none"
        return f"stream {stream!r} is the late stream, which takes late tuples only; the bolt's own streams are {own}"
    return undeclared(stream, bolt.outputs)


def _line(window: TupleWindow) -> str:
    return printable(repr(window), 200)
