"""BoltCaller: makes a bolt that is no windowed one, calls it on a tuple, and returns what it emitted, as plain data.

    open(context) -> execute(tuple) -> execute(tuple) -> ... -> close()

`Outlet` is how every emit of a component is checked, whoever collects it: stream, number of values, direct or not.

Laws: a BasicBolt's rows are taken before `execute` returns, so nothing that a failed call emitted gets out (in Storm it
does). What fails becomes one BoltError with the user's error as its cause; a FailedException stays what it is: the tuple
fails, and nothing stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from windowing.core.checks import DEFAULT_STREAM
from windowing.core.storm_names import StormNames, emit_advice, stream_or_value
from windowing.errors import BoltError, FailedException, shown
from windowing.topology.blame import blame, file_of
from windowing.topology.bolts import CallStyle
from windowing.topology.marking import ComponentKind
from windowing.topology.plan import Component, OutputStream
from windowing.topology.rows import RowError, refuse_awaitable, refuse_rows, row_of, rows_of
from windowing.topology.tuples import Tuple

__all__ = ["BoltCaller", "CollectedRows", "Emitted", "Outlet"]


class Emitted(NamedTuple):
    """One row that a component emitted: its stream, its values in the stream's order, and the id of the task of a direct emit."""

    stream: str
    values: tuple[Any, ...]
    task: int | None = None


class Outlet:
    """The declared streams of a component; `checked` returns the values of a row that may go out, or raises RowError."""

    __slots__ = ("_others", "_streams")

    def __init__(self, streams: Mapping[str, OutputStream]) -> None:
        self._streams = {name: (stream.schema, stream.direct) for name, stream in streams.items() if stream.own}
        self._others = {name: "late tuples" if stream.late else "dead letters" for name, stream in streams.items()}

    def checked(self, values: Any, stream: str, direct: bool) -> tuple[Any, ...]:
        """Return `values` (a tuple, a list, a dict by name, a scalar for one field) in the order of the stream's fields."""
        found = self._streams.get(stream)
        if found is None:
            raise RowError(self._unknown(stream) + stream_or_value(values, stream, self._streams))
        schema, is_direct = found
        if direct is not is_direct:
            raise RowError(
                f"stream {stream!r} is declared direct, so each row needs its task; call emit_direct(task, values)"
                if is_direct
                else f"stream {stream!r} is not declared direct; call emit, or name it in direct=({stream!r},)"
            )
        return row_of(values, schema, stream)

    def refuse(self, given: tuple[Any, ...], tracked: str = "", method: str = "emit") -> RowError:
        """Return the error of an emit whose arguments have no names."""
        return RowError(emit_advice(given, self._streams, tracked, method))

    def _unknown(self, stream: Any) -> str:
        if stream in self._others:
            return f"stream {stream!r} takes {self._others[stream]} only; emit on another one"
        declared = ", ".join(self._streams) or "none"
        return f"stream {shown(stream)} is not declared, there are {declared}; add it to output={{...}}"


class CollectedRows(StormNames):
    """What a bolt of (tuple, collector) emits to, valid until its call returns. Source: `BasicOutputCollector`."""

    __slots__ = ("_open", "_outlet", "rows")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._open = True
        self.rows: list[Emitted] = []

    def emit(self, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row, anchored to the tuple that is being executed."""
        self._check_open(values)
        if stray or type(stream) is not str:
            raise self._outlet.refuse((values, stream, *stray))
        self.rows.append(Emitted(stream, self._outlet.checked(values, stream, False)))

    def emit_direct(self, task: int, values: Any, stream: str = DEFAULT_STREAM, *stray: Any) -> None:
        """Emit one row to the task of this id, on a stream that is declared direct."""
        self._check_open(values)
        if stray or type(stream) is not str:
            raise self._outlet.refuse((values, stream, *stray), method="emit_direct")
        self.rows.append(Emitted(stream, self._outlet.checked(values, stream, True), task))

    def take(self) -> list[Emitted]:
        """Close the collector and return what was emitted, in order."""
        self._open = False
        return self.rows

    def _check_open(self, values: Any) -> None:
        if not self._open:
            raise BoltError(f"{shown(values)} was emitted after execute had returned; emit while it runs")


class BoltCaller:
    """One task's instance of a BASIC_BOLT or a BOLT. Cost: one call of the user's code a tuple, plus O(rows) checks.

    A BOLT is prepared with the driver's collector, emits to that, and returns nothing from `execute`.

    >>> from windowing.topology.builder import TopologyBuilder
    >>> from windowing.topology.context import TaskContext
    >>> from windowing.topology.marking import bolt, spout
    >>> from windowing.topology.tuples import Fields, Origin
    >>> @spout(output="sentence string")
    ... def sentences():
    ...     yield "the cow"
    >>> @bolt(output="word string")
    ... def split(tuple):
    ...     return tuple["sentence"].split()
    >>> builder = TopologyBuilder()
    >>> _ = builder.set_spout("sentences", sentences), builder.set_bolt("split", split).shuffle_grouping("sentences")
    >>> caller = BoltCaller(builder.build().component("split"))
    >>> caller.open(TaskContext("split"))
    >>> [row.values for row in caller.execute(Tuple(("the cow",), Origin("sentences", 0, Fields("sentence"))))]
    [('the',), ('cow',)]
    """

    __slots__ = ("_call", "_component", "_file", "_who", "instance", "outlet")

    def __init__(self, component: Component) -> None:
        self._component = component
        declaration = component.declaration
        self._who = f"bolt {component.id!r}"
        assert declaration.target is not None
        self._file = file_of(declaration.target, "execute" if declaration.is_class else None)
        self._call: Any = None
        self.instance: Any = None
        self.outlet = Outlet(component.outputs)

    def open(self, context: Any, collector: Any = None) -> None:
        """Make the instance; a stateful bolt is prepared by `prepare` after its `init_state`, any other one here."""
        declaration = self._component.declaration
        assert declaration.target is not None
        self._who = context.called("bolt")
        if not declaration.is_class:
            self._call = declaration.target
            return
        try:
            self.instance = declaration.target()
        except BaseException as problem:
            raise self.blame(problem, "when it was made") from problem
        self._call = self.instance.execute
        if not declaration.stateful:
            self.prepare(context, collector)

    def prepare(self, context: Any, collector: Any = None) -> None:
        """Call the instance's `prepare`."""
        arguments = (context, collector) if self._component.kind is ComponentKind.BOLT else (context,)
        self.hook("prepare", *arguments)

    def execute(self, tuple: Tuple) -> list[Emitted]:
        """Call the bolt and return what it emitted; raises BoltError, or the user's FailedException."""
        style = self._component.declaration.style
        try:
            if style is CallStyle.ROWS:
                return self._rows(self._call(tuple))
            if self._component.kind is ComponentKind.BOLT:
                self._nothing(self._call(tuple))
                return []
            collector = CollectedRows(self.outlet)
            try:
                self._nothing(self._call(tuple, collector))
            finally:
                emitted = collector.take()
            return emitted
        except FailedException:
            raise
        except BaseException as problem:
            raise self.blame(problem, f"on {shown(tuple)}") from problem

    def hook(self, method: str, *arguments: Any) -> None:
        """Call a method of the instance that it may have, such as `pre_commit`; a function has none."""
        written = getattr(self.instance, method, None)
        if written is None:
            return
        try:
            written(*arguments)
        except BaseException as problem:
            raise self.blame(problem, f"in {method}") from problem

    def close(self) -> None:
        """Call the instance's `cleanup`, once."""
        try:
            self.hook("cleanup")
        finally:
            self.instance = None

    def blame(self, problem: BaseException, where: str) -> BoltError:
        """Return the BoltError that names this bolt."""
        return blame(self._who, problem, where, self._file, (__file__,))

    def _rows(self, returned: Any) -> list[Emitted]:
        if returned is None:
            return []
        default = self._component.outputs.get(DEFAULT_STREAM)
        if default is None:
            refuse_rows(returned)
            return []
        return [Emitted(DEFAULT_STREAM, row) for row in rows_of(returned, default.schema, DEFAULT_STREAM)]

    def _nothing(self, returned: Any) -> None:
        refuse_awaitable(returned)
        if returned is not None:
            raise RowError(f"it takes a collector, yet it returned {shown(returned)}; emit rows and return nothing")
