"""@windowed_bolt, @tumbling, @sliding: they check a declaration, mark what they stand on, and return it unchanged.

Law: what is decorated stays what it was, callable and testable; `bolt_of` collects the mark into a WindowedBolt.

    @sliding(hours(1), minutes(15), timestamp="departure", output="flights long")
    def count_flights(window):
        return len(window)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from windowing.core.checks import DEFAULT_STREAM, checked_name
from windowing.core.config import OnError, WindowConfig, WindowOptions, config_of
from windowing.core.measures import Count, Duration
from windowing.errors import ConfigError, shown
from windowing.topology.bolts import CallStyle, WindowedBolt, title_of
from windowing.topology.letters import DEAD_LETTERS
from windowing.topology.makers import HOW_TO_MAKE, copies_of
from windowing.topology.schema import Schema, declare_streams
from windowing.topology.signatures import STATE_METHODS, bound, check_call, check_methods, style_of_function

__all__ = ["bolt_of", "is_windowed", "sliding", "tumbling", "windowed_bolt"]

_MARK = "__windowed_bolt__"
COMPONENT_MARK = "__topology_component__"
"""What @spout and @bolt leave on their target (windowing/topology/marking.py)."""

_Target = TypeVar("_Target", bound=Callable[..., Any])
_Length = Count | Duration | timedelta
_Output = str | Schema | Mapping[str, str | Schema]


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a decorator leaves on its target: everything of the bolt but the target itself."""

    name: str
    config: WindowConfig
    outputs: Mapping[str, Schema]
    style: CallStyle


def windowed_bolt(
    length: _Length | None = None,
    slide: _Length | None = None,
    *,
    output: _Output | None = None,
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over windows, on a function of (window) or (window, collector), or on a class with `execute`.

    A function of (window) returns or yields rows; a class may have prepare(context) and cleanup() too. `output` are
    the fields of the rows, or a mapping of streams to fields; without it the bolt emits nothing. `name` is the function's
    own where it is left out; the options are those of `WindowConfig.of`. Raises ConfigError where the declaration cannot
    work, before data arrives.

    >>> from windowing.core.measures import seconds
    >>> @windowed_bolt(length=seconds(10), slide=seconds(5), timestamp="ts", output="words long")
    ... def count_words(window):
    ...     return len(window.get())
    >>> bolt_of(count_words).name
    'count_words'
    """
    return _decorator("windowed_bolt", length, slide, output, name, options)


def tumbling(
    length: _Length,
    *,
    output: _Output | None = None,
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over adjacent windows: `windowed_bolt` with the slide equal to the length.

    >>> @tumbling(Count(3), output="total long")
    ... def total(window):
    ...     return sum(window)
    >>> bolt_of(total).config.slide
    Count(3)
    """
    stray: Mapping[str, Any] = options
    if "slide" in stray:
        raise ConfigError(
            f"a tumbling window slides by its length, got slide={shown(stray['slide'])}; "
            "leave out slide=, or use @sliding(length, slide)"
        )
    return _decorator("tumbling", length, length, output, name, options)


def sliding(
    length: _Length,
    slide: _Length,
    *,
    output: _Output | None = None,
    name: str | None = None,
    **options: Unpack[WindowOptions],
) -> Callable[[_Target], _Target]:
    """Declare a bolt over windows of `length` that begin every `slide`.

    >>> @sliding(Count(4), Count(2), output="total long")
    ... def total(window):
    ...     return sum(window)
    >>> bolt_of(total).config.length
    Count(4)
    """
    return _decorator("sliding", length, slide, output, name, options)


def bolt_of(target: Any) -> WindowedBolt:
    """Return the bolt that `target` was declared as; a WindowedBolt is returned as it is.

    A marked class makes an instance for each task. For arguments give `functools.partial` of it, or an instance, of which
    each task gets a deep copy, as it is now; a partial of a marked function fills in arguments by name. Raises ConfigError for
    what no decorator has marked, a subclass of a marked class included.

    >>> @tumbling(Count(3), output="n long")
    ... class Over:
    ...     def __init__(self, limit):
    ...         self.limit = limit
    ...     def execute(self, window):
    ...         return sum(n > self.limit for n in window)
    >>> bolt_of(Over(5)).target().limit, bolt_of(functools.partial(Over, 7)).target().limit
    (5, 7)
    """
    if isinstance(target, WindowedBolt):
        return target
    mark = _mark_of(target)
    if mark is not None:
        if isinstance(target, type):
            check_call(target, (), f"class {title_of(target)!r}", HOW_TO_MAKE)
        return _bolt(mark, target, isinstance(target, type))
    if isinstance(target, functools.partial):
        return _bolt_of_partial(target)
    mark = None if isinstance(target, type) else _mark_of(type(target))
    if mark is not None:
        return _bolt(mark, copies_of(target), True)
    parent = " (a class that it inherits from is)" if isinstance(getattr(target, _MARK, None), _Mark) else ""
    raise ConfigError(
        f"{title_of(target)!r} is not declared as a bolt{parent}; put @windowed_bolt(length=..., output=...) on it"
    )


def is_windowed(target: Any) -> bool:
    """Whether `bolt_of` knows the target: it, what it is a partial of, or the class of it is marked."""
    if isinstance(target, WindowedBolt) or _mark_of(target) is not None:
        return True
    if isinstance(target, functools.partial):
        return is_windowed(target.func)
    return not isinstance(target, type) and _mark_of(type(target)) is not None


def _bolt_of_partial(target: functools.partial[Any]) -> WindowedBolt:
    inner: Any = target.func
    mark = _mark_of(inner) if isinstance(inner, type) else None
    if mark is not None:
        check_call(target, (), f"{title_of(inner)!r} with these arguments", "fill in what is missing")
        return _bolt(mark, target, True)
    declared = bolt_of(inner)
    refuse_positions(target, declared.name)
    return replace(declared, target=target)


def refuse_positions(target: functools.partial[Any], title: str) -> None:
    """Raise for a partial of a function that fills in what the driver gives."""
    if target.args:
        raise ConfigError(
            f"functools.partial of {title!r} fills in the argument that the driver gives, got {shown(target.args)}; "
            "fill in arguments by name"
        )


def _bolt(mark: _Mark, target: Callable[..., Any], is_class: bool) -> WindowedBolt:
    return WindowedBolt(
        name=mark.name, config=mark.config, outputs=mark.outputs, target=target, style=mark.style, is_class=is_class
    )


def _decorator(
    decorator: str,
    length: Any,
    slide: Any,
    output: _Output | None,
    name: str | None,
    options: Mapping[str, Any],
) -> Callable[[_Target], _Target]:
    if callable(length):
        raise ConfigError(
            f"@{decorator} stands on {title_of(length)!r} without saying which windows; "
            f"write @{decorator}(...) with a length and an output"
        )
    config = config_of(length, slide, options, stacklevel=4)
    outputs = _outputs(output, config)

    def mark(target: _Target) -> _Target:
        title = title_of(target)
        refuse_marked(target, title)
        style = _style(target, title)
        declared = _Mark(_name(target, name), config, outputs, style)
        if style is CallStyle.ROWS and outputs and DEFAULT_STREAM not in outputs:
            raise ConfigError(
                f"{title!r} returns its rows, which go to the stream 'default', but output names only "
                f"{', '.join(outputs)}; add 'default' to output, or take (window, collector)"
            )
        try:
            setattr(target, _MARK, declared)
        except (AttributeError, TypeError):
            raise ConfigError(
                f"{title!r} cannot be marked, it is a {type(target).__name__}; wrap it in a function of your own"
            ) from None
        return target

    return mark


def refuse_marked(target: Any, title: str) -> None:
    """Raise where a decorator has marked `target` itself already."""
    if _mark_of(target) is None and COMPONENT_MARK not in getattr(target, "__dict__", ()):
        return
    what = "a spout" if getattr(getattr(target, COMPONENT_MARK, None), "is_spout", False) else "a bolt"
    raise ConfigError(f"{title!r} is already declared as {what}; keep one decorator, or wrap it in a new function")


def _mark_of(target: Any) -> _Mark | None:
    mark = vars(target).get(_MARK) if hasattr(target, "__dict__") else None
    return mark if isinstance(mark, _Mark) else None


def _outputs(output: _Output | None, config: WindowConfig) -> Mapping[str, Schema]:
    outputs = {} if output is None else declare_streams(output)
    late = config.late_stream
    if config.on_error is OnError.DEAD_LETTER:
        _refuse_dead_letters((*outputs, *(() if late is None else (late,))))
    if late is not None and late.lower() in [stream.lower() for stream in outputs]:
        raise ConfigError(
            f"late_stream={late!r} is also a stream of output, but late tuples keep their own fields; "
            "give the late stream another name, or take it out of output"
        )
    return outputs


def _refuse_dead_letters(streams: tuple[str, ...]) -> None:
    taken = [stream for stream in streams if stream.lower() == DEAD_LETTERS]
    if taken:
        raise ConfigError(
            f"on_error='dead_letter' sends the windows that fail to the stream {DEAD_LETTERS!r}, and the bolt has a stream "
            f"{taken[0]!r} of its own; give that one another name"
        )


def _name(target: Any, name: str | None) -> str:
    if name is not None:
        return checked_name(name, "a bolt's name")
    own = target
    while isinstance(own, functools.partial):
        own = own.func
    own_name = getattr(own, "__name__", None)
    if own_name is None or own_name == "<lambda>":
        kind = "a lambda" if own_name else f"a {type(own).__name__}"
        raise ConfigError(f"{kind} has no name to call the bolt by; write name='count_flights'")
    return checked_name(own_name, "a bolt's name")


def _style(target: Any, title: str) -> CallStyle:
    """Return how `target` is called, or raise a sentence for what cannot be a bolt."""
    if isinstance(target, type):
        return _style_of_class(target, title)
    if not callable(target):
        raise ConfigError(
            f"a bolt is a function or a class, got {shown(target)}; put the decorator on a function of (window)"
        )
    body = target if inspect.isroutine(target) or isinstance(target, functools.partial) else type(target).__call__
    return style_of_function(target, body, title)


def _style_of_class(target: type[Any], title: str) -> CallStyle:
    execute = getattr(target, "execute", None)
    if not callable(execute):
        raise ConfigError(
            f"class {title!r} has no execute; give it execute(self, window), or execute(self, window, collector)"
        )
    check_methods(target, title, (("prepare", ("context",)), ("cleanup", ())))
    if callable(getattr(target, "init_state", None)):
        check_methods(target, title, STATE_METHODS)
    return style_of_function(bound(target, "execute"), execute, f"{title}.execute")
