"""The decorators @windowed_bolt, @tumbling, @sliding, @spout and @bolt, and the functions that read their marks.

    @sliding(hours(1), minutes(15), timestamp="departure", output="flights long")
    def count_flights(window):                  a function of (window) or (window, collector), or a class with execute
    @spout(output="sentence string")
    def sentences(): ...                        a function of () or (collector), or a class with next_tuple
    @bolt(output="word string")
    def split(tuple): ...                       a function of (tuple) or (tuple, collector), or a class with execute
    @bolt(output="word string", columnar="arrow")
    def words(batch): ...                       a function of a columnar batch that returns one, or a class with execute

Law: a decorator checks a declaration, marks its target, and returns it unchanged, callable and testable. `declaration_of` makes
a Declaration of any component from the mark, for a topology; `bolt_of` a WindowedBolt, which is a Declaration too.

A topology accepts: a marked function; a marked class (each task makes an instance); `functools.partial` of one, for arguments;
an instance of a marked class (each task gets a deep copy of it, as it is now); an InputSpout; a WindowedBolt.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Unpack, get_origin, overload

from windowing.errors import ConfigError, by_name, quote
from windowing.schema.checks import DEFAULT_STREAM, camel, checked_name, did_you_mean, is_written, spelled, unbound
from windowing.schema.types import Schema, declare_streams
from windowing.topology.bolts import (
    HOW_TO_MAKE,
    STATE_METHODS,
    CallStyle,
    ComponentKind,
    Declaration,
    WindowedBolt,
    body_of,
    bound,
    check_call,
    check_methods,
    copies_of,
    refuse_abstract,
    refuse_async,
    style_of_function,
)
from windowing.topology.components import Bolt, InputSpout, Spout, StatefulWindowedBolt
from windowing.topology.dead_letters import DEAD_LETTERS
from windowing.windows.aggregate import title_of
from windowing.windows.config import OnError, WindowConfig, WindowOptions
from windowing.windows.measures import Count, Duration

_MARK = "__windowing_component__"
"""The attribute in which a decorator leaves the declaration of its target."""

_NOTEBOOK_METHOD = "_repr_html_"
"""The method by which Jupyter gets the representation of an object, also of a function."""

_Target = TypeVar("_Target", bound=Callable[..., Any])


@spelled
def windowed_bolt(
    length: Count | Duration | timedelta | None = None,
    slide: Count | Duration | timedelta | None = None,
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over windows, on a function of (window) or (window, collector), or on a class with `execute`.

    A function of (window) returns or yields rows; a class may also have prepare(context) and cleanup(). `output` declares the
    fields of the rows, or maps streams to fields; without it the bolt emits nothing. `direct` names the streams on which a bolt of
    (window, collector) names the task. `name` defaults to the function's name. An unusable declaration raises ConfigError here,
    before data arrives. A span is a Duration or a timedelta: `lag=seconds(5)`.

    What a window holds, and when it fires:

    - length, slide: how much it holds, how often it fires; a Duration or a Count. Default of slide: every tuple.
    - timestamp: the time of a tuple, as a field name or a function that returns milliseconds since 1970. Default: the clock.
    - lag: how far the watermark stays behind the newest tuple, so how late a tuple may come. Default: 0.
    - key: field names; each key has windows of its own. key_ttl: how long after its newest tuple a key is forgotten.
    - aggregate: a function of `from windowing import aggregate`, such as aggregate.sum("delay"), or several by name.
    - columnar: "arrow" or "numpy" passes columns in place of rows; with aggregate= the results of all keys together.
    - offset: shifts the ends of windows of time. lateness="window": a tuple is late only when all its windows have fired.
    - repeat: True: a Count/Duration window fires again at each end without new tuples. max_repeats: a limit, 10,000 by default.
    - eviction, trigger: make your own EvictionPolicy, which chooses the tuples, and TriggerPolicy, which replaces the slide.

    What happens to tuples that come late, or that a bolt cannot process:

    - late_stream: the name of the stream of late tuples. Default: they are counted.
    - source: a field; each of its values has its own watermark. idle_timeout: what is silent for so long no longer holds it back.
    - max_future: how far ahead of the clock a timestamp may be. Default: one day on Spark, no limit in one process.
    - on_error: "raise", "skip", "dead_letter" or "fail" (see OnError). on_invalid: "late" or "raise" for unusable timestamps.
    - message_id: the field by which repeated tuples are recognised; recovery_timeout: the wait for them after a restart.
    - max_events_in_memory: in one process, how many tuples of a task are in memory; the others are in pages on disk.
    - watermark_interval: in one process, how often windows advance. Default: each second. semantics="storm": Storm's results.

    >>> from windowing import seconds
    >>> @windowed_bolt(length=seconds(10), slide=seconds(5), timestamp="ts", output="words long")
    ... def count_words(window):
    ...     return len(window.get())
    >>> bolt_of(count_words).name
    'count_words'
    """
    return _decorator("windowed_bolt", length, slide, output, direct, name, options)


@spelled
def tumbling(
    length: Count | Duration | timedelta,
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over adjacent windows: `windowed_bolt`, which lists the options, with the slide equal to the length.

    >>> from windowing import seconds
    >>> from windowing.local import run_local
    >>> @tumbling(seconds(10), timestamp="at", output="ends long, words long")
    ... def words(window):
    ...     return window.end_timestamp, len(window)
    >>> run_local(words, [[{"at": 1_000}, {"at": 10_000}, {"at": 12_000}]])["default"]
    [(10000, 2), (20000, 1)]
    """
    stray: Mapping[str, Any] = options
    if "slide" in stray:
        raise ConfigError(
            f"a tumbling window slides by its length, got slide={quote(stray['slide'])}; "
            "leave out slide=, or use @sliding(length, slide)"
        )
    return _decorator("tumbling", length, length, output, direct, name, options)


@spelled
def sliding(
    length: Count | Duration | timedelta,
    slide: Count | Duration | timedelta,
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over windows of `length` that fire every `slide`: `windowed_bolt` with both. Each is a Duration or a Count.

    >>> from windowing.local import run_local
    >>> @sliding(Count(3), Count(2), output="total long")
    ... def total(window):
    ...     return sum(row["n"] for row in window)
    >>> run_local(total, [[{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]])["default"]
    [(3,), (9,)]
    """
    return _decorator("sliding", length, slide, output, direct, name, options)


def bolt_of(target: Any) -> WindowedBolt:
    """Return the bolt that `target` declares; a WindowedBolt is returned unchanged.

    A marked class makes an instance for each task. For arguments pass `functools.partial` of it, or an instance, of which
    each task gets a deep copy, as it is now; a partial of a marked function fills in arguments by name. Raises ConfigError for
    a target without a mark, also for a subclass of a marked class.

    >>> @tumbling(Count(3), output="n long")
    ... class Over:
    ...     def __init__(self, limit):
    ...         self.limit = limit
    ...     def execute(self, window):
    ...         return sum(n > self.limit for n in window)
    >>> bolt_of(Over(5)).target().limit, bolt_of(functools.partial(Over, 7)).target().limit
    (5, 7)
    """
    found = target if isinstance(target, WindowedBolt) else _marked(target)
    if isinstance(found, WindowedBolt):
        return found
    marked = _innermost(target)
    _refuse_decorator(marked)
    if found is not None:
        raise ConfigError(
            f"{title_of(marked)!r} is declared as a spout, or a bolt without windows; put @windowed_bolt(length=..., "
            "output=...) on it instead, or run it in a topology"
        )
    if not callable(marked) and not hasattr(type(marked), "execute"):
        raise ConfigError(
            f"a bolt is a function or a class with @windowed_bolt(length=..., output=...), got {quote(marked)}; the bolt comes "
            "first: windowed(bolt, df), run_local(bolt, batches). A topology runs in LocalCluster, or on Spark by submit"
        )
    parent = " (a class that it inherits from is)" if isinstance(getattr(marked, _MARK, None), WindowedBolt) else ""
    raise ConfigError(
        f"{title_of(marked)!r} is not declared as a bolt{parent}; put @windowed_bolt(length=..., output=...) on it"
    )


def _decorator(
    decorator: str,
    length: Any,
    slide: Any,
    output: str | Schema | Mapping[str, str | Schema] | None,
    direct: str | tuple[str, ...] | list[str],
    name: str | None,
    options: Mapping[str, Any],
) -> Callable[[_Target], _Target]:
    if callable(length):
        raise ConfigError(
            f"@{decorator} stands on {title_of(length)!r} without saying which windows; "
            f"write @{decorator}(...) with a length and an output"
        )
    config = WindowConfig.of(length=length, slide=slide, **options)
    outputs = _outputs(output, config)
    marked = _direct(direct, outputs)

    def declare(target: Any, title: str) -> WindowedBolt:
        is_class = isinstance(target, type)
        if is_class and issubclass(target, Bolt):
            raise ConfigError(
                f"class {title!r} inherits from Bolt, which acks tuple by tuple; a bolt over windows inherits from nothing, or "
                "from StatefulWindowedBolt"
            )
        style = _style(target, title, "window")
        if is_class:
            _check_hooks(target, title, ("context",))
        return WindowedBolt(
            name=_name(target, name),
            config=config,
            outputs=outputs,
            target=target,
            style=style,
            is_class=is_class,
            direct=marked,
        )

    return _marker(declare)


def _outputs(output: str | Schema | Mapping[str, str | Schema] | None, config: WindowConfig) -> Mapping[str, Schema]:
    outputs = {} if output is None else declare_streams(output)
    late = config.late_stream
    conflicting = [stream for stream in (*outputs, late or "") if stream.lower() == DEAD_LETTERS]
    if conflicting and config.on_error is OnError.DEAD_LETTER:
        raise ConfigError(
            f"on_error='dead_letter' sends the windows that fail to the stream {DEAD_LETTERS!r}, and the bolt has a stream "
            f"{conflicting[0]!r} of its own; give that one another name"
        )
    if late is not None and late.lower() in [stream.lower() for stream in outputs]:
        raise ConfigError(
            f"late_stream={late!r} is also a stream of output, but late tuples keep their own fields; "
            "give the late stream another name, or take it out of output"
        )
    return outputs


def _name(target: Any, name: str | None) -> str:
    if name is not None:
        return checked_name(name, "a bolt's name")
    own = _innermost(target)
    own_name = getattr(own, "__name__", None)
    if own_name is None or own_name == "<lambda>":
        kind = "a lambda" if own_name else f"a {type(own).__name__}"
        raise ConfigError(f"{kind} has no name to call the bolt by; write name='count_flights'")
    return checked_name(own_name, "a bolt's name")


def _style(target: Any, title: str, argument: str) -> CallStyle:
    """Return how a bolt is called with its argument, a window, a tuple or a batch, or raise for a target that cannot be a bolt."""
    if not isinstance(target, type):
        if not callable(target):
            raise ConfigError(
                f"a bolt is a function or a class, got {quote(target)}; put the decorator on a function of ({argument})"
            )
        return style_of_function(target, body_of(target), title, argument)
    execute = getattr(target, "execute", None)
    if issubclass(target, Spout):
        raise ConfigError(f"class {title!r} is a Spout, which is no bolt; mark it with @spout")
    if not callable(execute):
        way_out = "mark it with @spout" if callable(getattr(target, "next_tuple", None)) else "give it one"
        raise ConfigError(
            f"class {title!r} has no execute(self, {argument}) or execute(self, {argument}, collector); {way_out}"
        )
    return style_of_function(bound(target, "execute"), execute, f"{title}.execute", argument)


def _check_hooks(target: type[Any], title: str, prepare: tuple[str, ...]) -> bool:
    """Raise for a method beside `execute` that cannot be called or was not written; return whether the class has a state."""
    stateful = callable(getattr(target, "init_state", None))
    check_methods(target, title, (("prepare", prepare), ("cleanup", ()), *(STATE_METHODS if stateful else ())))
    refuse_abstract(target, title)
    return stateful


# -- @spout, @bolt ---------------------------------------------------------------------------------------------------------------


_SPOUT_FORMS = "a spout takes () and returns or yields rows, or (collector)"
_BATCHES = ("arrow", "pandas")
_SPOUT_METHODS = (("open", ("context", "collector")), ("activate", ()), ("deactivate", ()), ("close", ()))


@spelled
def spout(
    bare: Any = None,
    /,
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
) -> Callable[[_Target], _Target]:
    """Declare a spout, on a class with `next_tuple`, or on a function of () or (collector).

    `output` declares the fields of the rows, or maps streams to fields; `direct` names the streams on which the emitter names the
    task. A function of () returns or yields rows, one for each `next_tuple`; one of (collector) is `next_tuple`. Raises
    ConfigError.

    >>> @spout(output="n long")
    ... def numbers():
    ...     yield from range(3)
    >>> list(numbers()), declaration_of(numbers).kind.value
    ([0, 1, 2], 'spout')
    """
    if bare is not None or output is None:
        on = "" if bare is None else f" on {title_of(bare)!r}" if callable(bare) else f" of {quote(bare)}"
        raise ConfigError(f"@spout{on} does not name the fields of its rows; write @spout(output='sentence string')")
    outputs = declare_streams(output)
    marked = _direct(direct, outputs)
    return _marker(lambda target, title: _spout_of(target, title, outputs, marked))


@overload
def bolt(bare: _Target, /) -> _Target: ...
@overload
def bolt(
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
    columnar: Literal["arrow", "pandas"] | None = None,
) -> Callable[[_Target], _Target]: ...
@spelled
def bolt(
    bare: Any = None,
    /,
    *,
    output: str | Schema | Mapping[str, str | Schema] | None = None,
    direct: str | tuple[str, ...] | list[str] = (),
    columnar: Literal["arrow", "pandas"] | None = None,
) -> Any:
    """Declare a bolt, on a class with `execute`, or on a function of (tuple) or (tuple, collector).

    Without `output`, and as a bare `@bolt`, it emits nothing. A subclass of Bolt acks by itself; for every other bolt a tuple is
    acked when the call returns. A class with `init_state` is stateful. An unusable declaration raises ConfigError.

    columnar: "arrow" or "pandas" for a bolt of (batch): it gets rows of one input stream as a pyarrow.Table or a DataFrame, and
    returns a batch for its stream "default", or a mapping of streams to batches; None for no rows. See docs/guides/columns.md.

    >>> @bolt(output="word string")
    ... def split(tuple):
    ...     return tuple["sentence"].split()
    >>> split({"sentence": "the cow jumped"})
    ['the', 'cow', 'jumped']
    """
    outputs = {} if output is None else declare_streams(output)
    marked = _direct(direct, outputs)
    if columnar is not None and columnar not in _BATCHES:
        raise ConfigError(
            f"columnar of a bolt is 'arrow' or 'pandas', got {quote(columnar)}; it is then handed a pyarrow.Table, or a DataFrame"
        )
    mark: Callable[[Any], Any] = _marker(lambda target, title: _bolt_of(target, title, outputs, marked, columnar))
    if bare is None:
        return mark
    if isinstance(bare, str | Schema | Mapping) or output is not None:
        raise ConfigError(f"@bolt got {quote(bare)} without a name; write @bolt(output='word string')")
    return mark(bare)


def declaration_of(target: Any) -> Declaration:
    """Return the declaration of `target`. Raises ConfigError for an object that cannot be part of a topology."""
    if isinstance(target, InputSpout):
        return Declaration(kind=ComponentKind.INPUT, name="an InputSpout", outputs=target.outputs)
    found = target if isinstance(target, WindowedBolt) else _marked(target)
    if found is None:
        inner = _innermost(target)
        _refuse_decorator(inner)
        if hasattr(inner, "takes_acks"):  # a PartitionedSpout, which needs pyarrow
            raise ConfigError(
                f"a {title_of(inner)} is a source, which a run reads; write InputSpout({quote(inner.fields or '...')}) in its "
                "place, and sources={'name of the spout': source} of the run"
            )
        why = " (a class that it inherits from is)" if getattr(inner, _MARK, None) is not None else ""
        raise ConfigError(
            f"{title_of(inner)!r} is not declared as a component{why}; put @spout, @bolt or @windowed_bolt with output=... on it"
        )
    window = found.window
    if window is not None and window.config.message_id is not None and not window.checkpointed:
        raise ConfigError(
            f"message_id={window.config.message_id!r} is for bolts with a state, and {window.name!r} has no "
            "init_state(self, state); write one, keep its window on disk (max_events_in_memory=), or leave out message_id="
        )
    return found


def columnar_of(target: Any) -> str | None:
    """Return the form of a bolt's batches, "arrow" or "pandas"; None for a bolt of tuples, and for any other object."""
    inner = _innermost(target)
    found = _mark_of(inner) or _mark_of(type(inner))
    return None if found is None else found.columnar


def _direct(direct: Any, outputs: Mapping[str, Schema]) -> frozenset[str]:
    if not isinstance(direct, Iterable):
        raise ConfigError(f"direct names streams of output, got {quote(direct)}; write direct='default', say")
    names = (direct,) if isinstance(direct, str) else tuple(direct)
    for name in names:
        if not isinstance(name, str) or name not in outputs:
            raise ConfigError(
                f"direct names stream {quote(name)}, which output does not; {did_you_mean(str(name), outputs)}"
                if outputs
                else f"direct={quote(direct)} names a stream, but there is no output; declare the stream in output"
            )
    return frozenset(names)


def _spout_of(target: Any, title: str, outputs: Mapping[str, Schema], direct: frozenset[str]) -> Declaration:
    if not isinstance(target, type):
        style = _style_of_spout(target, title)
        return Declaration(kind=ComponentKind.SPOUT, name=title, outputs=outputs, direct=direct, style=style)
    if not callable(getattr(target, "next_tuple", None)):
        raise ConfigError(f"class {title!r} has no next_tuple; give it next_tuple(self), or mark it with @bolt")
    check_methods(target, title, (("next_tuple", ()), *_SPOUT_METHODS))
    refuse_abstract(target, title)
    values_back = set()
    for method in ("ack", "fail", "give_up"):
        if getattr(target, method, None) is not None:
            arguments: tuple[str, ...] = ("message_id",)
            if _takes_values(bound(target, method)):
                values_back.add(method)
                arguments = ("message_id", "values")
            check_methods(target, title, ((method, arguments),))
    return Declaration(
        kind=ComponentKind.SPOUT,
        name=title,
        outputs=outputs,
        direct=direct,
        is_class=True,
        style=CallStyle.COLLECTOR,
        values_back=frozenset(values_back),
    )


def _takes_values(method: Callable[..., Any]) -> bool:
    """Return whether a method takes the values beside the message id; not one in C without a signature, like `set.add`."""
    try:
        inspect.signature(method).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _style_of_spout(target: Any, title: str) -> CallStyle:
    if not callable(target):
        raise ConfigError(f"a spout is a function or a class, got {quote(target)}; put the decorator on one")
    refuse_async(body_of(target), title, "turn")
    if unbound(target) is None:
        return CallStyle.ROWS
    if unbound(target, ("collector",)) is not None:
        raise ConfigError(f"{title!r} cannot be called as a spout: {_SPOUT_FORMS}; give its other arguments defaults")
    if inspect.isgeneratorfunction(body_of(target)):
        raise ConfigError(f"{title!r} yields rows and takes a collector too; do one of them: {_SPOUT_FORMS}")
    return CallStyle.COLLECTOR


def _bolt_of(
    target: Any, title: str, outputs: Mapping[str, Schema], direct: frozenset[str], columnar: str | None
) -> Declaration:
    is_class = isinstance(target, type)
    if is_class and issubclass(target, StatefulWindowedBolt):
        raise ConfigError(
            f"class {title!r} is a bolt over windows; mark it with @windowed_bolt(length=..., output=...)"
        )
    kind, style = ComponentKind.BASIC_BOLT, CallStyle.COLLECTOR
    prepare: tuple[str, ...] = ("context",)
    if is_class and issubclass(target, Bolt):
        kind, prepare = ComponentKind.BOLT, ("context", "collector")
        check_methods(target, title, (("execute", ("tuple",)),))
    else:
        style = _style(target, title, "tuple" if columnar is None else "batch")
    stateful = is_class and _check_hooks(target, title, prepare)
    if columnar is not None:
        _refuse_columnar(title, columnar, kind, stateful, style, direct)
    return Declaration(
        kind=kind,
        name=title,
        outputs=outputs,
        direct=direct,
        is_class=is_class,
        style=style,
        columnar=columnar,
    )


def _refuse_columnar(
    title: str, columnar: str, kind: ComponentKind, stateful: bool, style: CallStyle, direct: frozenset[str]
) -> None:
    """Raise for a columnar bolt that needs single tuples."""
    why = None
    if kind is ComponentKind.BOLT:
        why = "acks each tuple by itself, and a batch has none to ack; inherit from BasicBolt, or from nothing"
    elif stateful:
        why = "has a state, which is undone tuple by tuple; leave out init_state"
    elif style is CallStyle.COLLECTOR:
        why = "takes a collector, and a batch is returned; take (batch), and return a batch or a mapping of streams to batches"
    elif direct:
        why = f"has a direct stream, {min(direct)!r}, of which each row needs a task; leave out direct="
    if why is not None:
        raise ConfigError(f"{title!r} says columnar={columnar!r}, but it {why}; or leave out columnar=")


_OF_STORM = ("next_tuple", *(method for method, _ in STATE_METHODS), "get_component_configuration")
_HOOKS = ("cleanup", "give_up", *_OF_STORM)
"""Methods whose misspelled name would be ignored; words that a helper may well be close to (prepare, open) are not among them."""
_IN_STORM = {camel(hook): hook for hook in _OF_STORM} | dict.fromkeys(
    ("declareOutputFields", "declare_output_fields"), 'output="word string, n long" of the decorator'
)
_OF_STORMS_WINDOWS = by_name(
    {
        "getTimestampExtractor get_timestamp_extractor withTimestampExtractor withTimestampField": (
            'timestamp="field", or a function of the tuple, as an argument of the decorator; without it the windows are over the '
            "clock"
        ),
        "isPersistent maxEventsInMemory withPersistence withMaxEventsInMemory": (
            "max_events_in_memory=100_000 as an argument of the decorator"
        ),
        "withWindow withTumblingWindow": (
            "the window as arguments of the decorator: @sliding(length, slide), @tumbling(length), or @windowed_bolt(length=...), "
            "which slides by each tuple"
        ),
        "withLag withWatermarkInterval withLateTupleStream withMessageIdField": (
            "lag=, watermark_interval=, late_stream= or message_id= as an argument of the decorator"
        ),
    }
)
"""Methods by which a bolt of Storm says how its windows are; other names in a class of Python are the user's own."""


def _refuse_uncalled_methods(target: Any, title: str) -> None:
    """Raise for a method with a name of Storm's, or with one that is nearly that of a hook which the class lacks."""
    names = [name for name in dir(target) if name[0] != "_"] if isinstance(target, type) else []
    lacking = {name.replace("_", ""): name for name in _HOOKS if not is_written(target, name)}
    for name in names:
        near = get_close_matches(name.replace("_", ""), lacking, 1, 0.9) if name not in _HOOKS else []
        here = _IN_STORM.get(name) or (near and f"{lacking[near[0]]}, or begin its name with _")
        if here and callable(getattr(target, name)):
            raise ConfigError(f"class {title!r} has {name}, which nothing calls; write {here}")


# -- marks -----------------------------------------------------------------------------------------------------------------------


def _marker(declare: Callable[[Any, str], Declaration]) -> Callable[[_Target], _Target]:
    """Return a decorator that leaves the result of `declare(target, title)` on its target."""

    def mark(target: _Target) -> _Target:
        title, before = title_of(target), _mark_of(target)
        if isinstance(target, staticmethod | classmethod):
            raise ConfigError(
                f"{title!r} is a {type(target).__name__} below its decorator; write @{type(target).__name__} above the decorator"
            )
        if before is not None:
            what = "a spout" if before.is_spout else "a bolt"
            raise ConfigError(
                f"{title!r} is already declared as {what}; keep one decorator, or wrap it in a new function"
            )
        _refuse_uncalled_methods(target, title)
        declared = declare(target, title)
        for name, here in _OF_STORMS_WINDOWS.items() if declared.window is not None else ():
            if callable(getattr(target, name, None)):
                raise ConfigError(f"class {title!r} has {name}, which nothing calls; write {here}")
        if declared.style is CallStyle.ROWS and declared.outputs:
            _refuse_rows_without_stream(declared, title)
        try:
            setattr(target, _MARK, declared)
        except (AttributeError, TypeError):
            raise ConfigError(
                f"{title!r} cannot be marked, it is a {type(target).__name__}; wrap it in a function of your own"
            ) from None
        own: Any = getattr(target, _NOTEBOOK_METHOD, None)
        # A target with its own view keeps it.
        if own is None or isinstance(getattr(own, "__self__", None), Declaration):
            setattr(target, _NOTEBOOK_METHOD, declared._repr_html_)
        return target

    return mark


def _refuse_decorator(target: Any) -> None:
    """Raise for what a decorator returns before it is called with a function or a class."""
    if getattr(target, "__qualname__", None) == "_marker.<locals>.mark":
        raise ConfigError(
            "a decorator was given that stands on no function or class yet; write @tumbling(...), say, in the line above one, and "
            "give that one by its name"
        )


def _refuse_rows_without_stream(declared: Declaration, title: str) -> None:
    """Raise for a target that returns its rows where the default stream cannot take them."""
    # The result of a bolt over batches may be a mapping of streams.
    if DEFAULT_STREAM not in declared.outputs and declared.columnar is None:
        other = "(window, collector)" if declared.window is not None else "a collector"
        raise ConfigError(
            f"{title!r} returns its rows, which go to the stream 'default', but output names only "
            f"{', '.join(declared.outputs)}; add 'default' to output, or take {other}"
        )
    if DEFAULT_STREAM in declared.direct:
        raise ConfigError(
            f"{title!r} returns its rows, but on a direct stream each row needs a task; "
            "take a collector and call emit_direct"
        )


def _mark_of(target: Any) -> Declaration | None:
    """Return the mark that a decorator has left on `target` itself, not on a base class."""
    mark = vars(target).get(_MARK) if hasattr(target, "__dict__") else None
    return mark if isinstance(mark, Declaration) else None


def _marked(target: Any) -> Declaration | None:
    """Return the declaration of a marked function or class, of a partial of one, or of an instance, with the code to call; None
    without a mark.
    """
    target = get_origin(target) or target  # of a generic class with its types in brackets
    mark = _mark_of(target)
    if mark is not None:
        if inspect.ismethod(target):
            raise ConfigError(
                f"{title_of(target)!r} was read from an object, so it gets the object first, and then what the driver gives; hold "
                "it in the class as staticmethod(...), or read it where it is declared"
            )
        if isinstance(target, type):
            check_call(target, (), f"class {title_of(target)!r}", HOW_TO_MAKE)
        return replace(mark, target=target)
    if isinstance(target, functools.partial):
        return _marked_partial(target)
    mark = None if isinstance(target, type) else _mark_of(type(target))
    return None if mark is None else replace(mark, target=copies_of(target))


def _marked_partial(target: functools.partial[Any]) -> Declaration | None:
    inner: Any = target.func
    if isinstance(inner, type) and _mark_of(inner) is not None:
        check_call(target, (), f"{title_of(inner)!r} with these arguments", "fill in what is missing")
        found = _mark_of(inner)
    else:
        found = _marked(inner)
        if found is not None and target.args:
            raise ConfigError(
                f"functools.partial of {title_of(inner)!r} fills in the argument that the driver gives, got "
                f"{quote(target.args)}; fill in arguments by name"
            )
    return None if found is None else replace(found, target=target)


def _innermost(target: Any) -> Any:
    """Return the function or class inside a partial."""
    while isinstance(target, functools.partial):
        target = target.func
    return target
