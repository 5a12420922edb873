"""Checks of declarations: names, options, choices, and the names that a Storm user writes by habit.

Each check returns a value or raises a ConfigError that says what to write instead. So do wrong attributes in camelCase, and emits
with arguments in Storm's order:

    window.getNew()                  'TupleWindow' has no 'getNew'; write get_new()
    tuple.getStringByField("word")   a tuple of split:default[0] has no field 'getStringByField'; write tuple["word"]
    collector.emit("moon", 3)        emit takes one row, got 2 values without a name: ...; give one tuple: emit(('moon', 3))

Law: this code runs at a declaration or after an error, so it neither slows down nor changes calls that succeed.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeGuard, TypeVar

from windowing.errors import ConfigError, by_name, quote

DEFAULT_STREAM = "default"
"""The stream of a bolt's rows that name no stream."""


_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown `word`: the nearest known one, or all of them.

    >>> did_you_mean("lenght", ["length", "slide"])
    "did you mean 'length'?"
    >>> did_you_mean("late", ["lateness", "late_stream"])
    "did you mean 'late_stream'?"
    >>> did_you_mean("x", ["length", "slide"])
    'there are length, slide'
    >>> did_you_mean("x", [])
    'there are none'
    """
    names = sorted(known)
    longer = [name for name in names if name.startswith(f"{word.lower()}_")]
    near = longer or difflib.get_close_matches(word.lower(), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"


def checked_name(name: Any, what: str, longest: int = 63) -> str:
    """Return `name` if it is an identifier of at most so many characters; only such names are used in files, SQL and state."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > longest:
        raise ConfigError(
            f"{what} must be a name of ASCII letters, digits and underscores that begins with no digit, at most {longest} long, "
            f"got {quote(name)}; a name such as late_flights will do"
        )
    return name


def given_names(names: Any) -> tuple[str, ...]:
    """Return one name or several as they were given; another object is quoted, and is then reported as an unknown name.

    >>> given_names("word"), given_names(["word", 3]), given_names(None)
    (('word',), ('word', '3'), ('None',))
    """
    several = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else names
    return tuple(name if isinstance(name, str) else quote(name) for name in several)


def is_whole(value: Any, least: int | None = None) -> TypeGuard[int]:
    """Return whether a value is a whole number, of at least `least`; True and False are none.

    >>> is_whole(3), is_whole(3, 4), is_whole(3.0), is_whole(True)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def checked_wait(seconds: Any, what: str, *, zero: bool = False) -> None:
    """Raise ConfigError for a time to wait that is not a number of seconds up to 10^6; clients take milliseconds of 31 bits.

    zero: whether 0 is one, which means not to wait.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= 1_000_000 or (seconds == 0 and not zero):
        least = ", 0 or more" if zero else " above 0"
        raise ConfigError(
            f"{what} is a number of seconds{least} and at most 1,000,000, got {quote(seconds)}; give 30.0, say"
        )


# -- names of Storm's API --------------------------------------------------------------------------------------------------------


_GETTERS = ("Value", "String", "Integer", "Long", "Boolean", "Short", "Byte", "Double", "Float", "Binary")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_VALUES = (tuple, list, Mapping)


def getters(tuple: str) -> dict[str, str]:
    """Return what to write instead of each typed getter of Storm's `ITuple`, in Java's spelling and in Python's.

    >>> getters("row")["getInteger"], getters("row")["getStringByField"], getters("row")["get_integer"]
    ('row[0]', 'row["word"]', 'row[0]')
    """
    found = {f"get{kind}": f"{tuple}[0]" for kind in _GETTERS}
    found |= {f"get{kind}ByField": f'{tuple}["word"]' for kind in _GETTERS}
    return found | {_snake(name): written for name, written in found.items()} | {"size": f"len({tuple})"}


def _snake(name: str) -> str:
    return _HUMP.sub("_", name).lower()


@lru_cache(maxsize=1024)
def camel(name: str) -> str:
    """Return a name in Java's spelling: nextTuple for next_tuple."""
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def missing(
    owner: type[Any],
    name: str,
    elsewhere: Mapping[str, str] | None = None,
    sentence: str = "",
    fields: tuple[str, ...] | None = None,
) -> AttributeError:
    """Return the AttributeError for a missing attribute; it says what to write: the entry of `elsewhere`, or the nearest name.

    `sentence` replaces the beginning of the message. `fields`: the names to choose from, instead of the attributes of `owner`.
    Cost: O(names) for the first request of a name.
    """
    sentence = sentence or f"{owner.__name__!r} has no {name!r}"
    # A field of a record that is no name of an attribute, such as _id or class.
    if name in getattr(owner, "_positions", ()):
        sentence += f"; write row[{quote(name)}]"
    elif not name.startswith("_"):
        # getConf is also asked for as get_conf
        write = (elsewhere.get(name) or elsewhere.get(camel(name))) if elsewhere else None
        sentence += f"; write {write}" if write else _nearest(owner, name, fields)  # type: ignore[arg-type]  # a class has a hash
    return AttributeError(sentence, name=name)  # with a name and no obj Python adds no suggestion of its own


@lru_cache(maxsize=1024)
def _nearest(owner: Any, name: str, fields: tuple[str, ...] | None) -> str:
    """Return the end of the sentence; cached, because some code calls `hasattr` for every row."""
    # The fields of a record, without the methods that every tuple of Python has.
    fields = tuple(getattr(owner, "_positions", ())) or None if fields is None else fields
    known = [each for each in dir(owner) if not each.startswith("_")] if fields is None else fields
    snake = _snake(name)
    for same in (snake, f"{snake}_", re.sub("^(get|is)_", "", snake)):
        if same in known:
            return f"; write {same}{'()' if fields is None and callable(getattr(owner, same)) else ''}"
    return f"; {did_you_mean(snake, known)}" if known else ""


def is_written(target: Any, name: str) -> bool:
    """Return whether a class has a method of the user's own, not only one that it inherits from this library."""
    return not str(getattr(getattr(target, name, None), "__module__", "windowing.")).startswith("windowing.")


def unbound(
    function: Callable[..., Any], values: Collection[object] = (), named: Iterable[str] = (), *, wrapped: bool = True
) -> tuple[inspect.Signature, TypeError] | None:
    """Return the signature of a function that does not take these arguments, and the reason; None if it takes them, or if Python
    does not know its signature (it is written in C, and an error shows when it is called).

    wrapped: use the signature of the function that a decorator has wrapped.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=wrapped)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*values, **dict.fromkeys(named))
    except TypeError as problem:
        return signature, problem
    return None


def uncallable(function: Callable[..., Any], values: Collection[str], named: Iterable[str] = ()) -> str | None:
    """Return why a function cannot be called with so many positional values and these named ones, or why such a call does not run
    its body, with the way out; None if it can, or if Python does not know its arguments.

    >>> uncallable(lambda rows, batch_id: None, ("rows", "batch_id"))
    >>> uncallable(lambda rows: None, ("rows", "batch_id"))
    'takes (rows): too many positional arguments; write a function of (rows, batch_id), or bind others with functools.partial'
    """
    for is_one, kind in (
        (inspect.iscoroutinefunction, "a coroutine (async def)"),
        (inspect.isgeneratorfunction, "a generator (it has a yield)"),
        (inspect.isasyncgenfunction, "a generator (async def with a yield)"),
    ):
        if is_one(function):
            return f"is {kind}, whose body such a call does not run; give a plain function"
    found = unbound(function, values, named, wrapped=False)  # a decorator may bind arguments of what it wraps
    if found is None:
        return None
    wanted = f"write a function of ({', '.join(values)}), or bind others with functools.partial"
    return f"takes {found[0]}: {found[1]}; {wanted}"


def spelled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function answer an argument in another spelling, or a missing one, by a ConfigError, in place of Python's TypeError.

    >>> spelled(lambda *, query_name: None)(queryName="delays")
    Traceback (most recent call last):
    windowing.errors.ConfigError: [CONFIG] <lambda> has no argument 'queryName'; did you mean 'query_name'?
    """
    parameters = inspect.signature(function).parameters.values()
    known = {  # as a call has them: `checkpoint=` is given by its name only
        each.name: f"{each.name}=" if each.kind is each.KEYWORD_ONLY else each.name
        for each in parameters
        if each.name != "self" and each.kind not in (each.POSITIONAL_ONLY, each.VAR_KEYWORD)
    }
    options = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)

    @functools.wraps(function)
    def checked(*given: _P.args, **named: _P.kwargs) -> _R:
        called = type(given[0]).__name__ if function.__name__ == "__init__" else function.__qualname__
        unfit = unbound(function, given, named)
        if unfit is None:
            return function(*given, **named)
        for name in named:
            end = "" if name in known else did_you_mean(name, known)
            if end.startswith("did you mean") or (end and options is None):
                raise ConfigError(f"{called} has no argument {quote(name)}; {end}")
        others = "" if options is None else f", and {options}"
        raise ConfigError(f"{called}: {unfit[1]}; its arguments are {', '.join(known.values())}{others}")

    return checked


def spelled_init(made: type[_T]) -> type[_T]:
    """Make the constructor of a dataclass answer as `spelled` does."""
    made.__init__ = spelled(made.__init__)  # type: ignore[method-assign]
    return made


class StormNames:
    """Raises AttributeError with the right name for a wrong one; `_elsewhere` lists those that differ by more than spelling, as
    `by_name` reads them.
    """

    __slots__ = ()

    _elsewhere: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if isinstance(vars(cls).get("_elsewhere"), Mapping):  # a user's subclass may call something else so
            cls._elsewhere = by_name(cls._elsewhere)

    if not TYPE_CHECKING:  # a type checker must still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            raise missing(type(self), name, self._elsewhere)


def emit_advice(given: tuple[Any, ...], streams: Collection[str], tracked: str = "", method: str = "emit") -> str:
    """Return the sentence about an emit with positional arguments, in Storm's order or value by value.

    `streams`: those that the component declares. `tracked`: the collector's tracking argument: "anchors", "message_id" or "".

    >>> emit_advice(("moon", 3), ["default"]).partition("; ")[2]
    "give one tuple: emit(('moon', 3))"
    >>> emit_advice((("moon",), 7), ["default"], "message_id").partition("; ")[2]
    "write emit(('moon',), message_id=7)"
    >>> emit_advice(("slow", ["moon"]), ["default", "slow"]).partition("; ")[2]
    "write emit(['moon'], stream='slow')"
    """
    sentence = f"{method} takes one row, got {len(given)} values without a name: {quote(given)}"
    rest, named, missing = list(given), "", ""
    known = isinstance(rest[0], str) and rest[0] in streams
    # Behind an undeclared stream a list may be an array, a value of the row, so a tuple or an anchor must follow.
    follows = _VALUES if known else tuple
    if isinstance(rest[0], str) and streams and (isinstance(rest[1], follows) or _is_anchor(rest[1])):
        stream = rest.pop(0)
        named = "" if stream == "default" else f", stream={quote(stream)}"
        if not known:
            missing = f"; {undeclared(stream, streams)}"
            if len(rest) == 1 and not _is_tuple(rest[0]):
                missing += f"; if it is a value of the row, write {method}({quote(given)})"
    if len(rest) > 1 and _is_anchor(rest[0]):
        rest.pop(0)
        named = f", anchors=tuple{named}" if tracked == "anchors" else named
    elif len(rest) == 2 and isinstance(rest[0], _VALUES) and not isinstance(rest[1], _VALUES):
        second = rest.pop()
        if tracked == "message_id":
            named = f", message_id={quote(second)}{named}"
        elif tracked == "anchors" and _is_tuple(second):
            named = f", anchors=tuple{named}"
        else:
            return f"{sentence}; name what is no value of the row: {method}({quote(rest[0])}, stream=...)"
    task = "task, " if method == "emit_direct" else ""
    if len(rest) == 1 and len(given) > 1:
        anchored = "" if tracked or not any(map(_is_anchor, given)) else " (it is anchored by itself)"
        return f"{sentence}; write {method}({task}{quote(rest[0])}{named}){anchored}{missing}"
    return f"{sentence}; give one tuple: {method}({task}{quote(tuple(rest))}{named})"


def undeclared(stream: Any, declared: Iterable[str]) -> str:
    """Return the sentence about a stream that a component emits to and does not declare."""
    names = ", ".join(declared)
    way_out = "add it to output={...}" if names else "add output=... to the declaration"
    return f"stream {quote(stream)} is not declared, there are {names or 'none'}; {way_out}"


def stream_or_value(values: Any, stream: Any, streams: Collection[str]) -> str:
    """Return the addition to the sentence about an undeclared stream, if it may be a value of the row instead."""
    if isinstance(values, _VALUES):
        return ""
    row = f"emit({quote(stream)}, stream={quote(values)})" if values in streams else f"emit({quote((values, stream))})"
    return f"; if it is a value of the row, write {row}"


def _is_tuple(value: Any) -> bool:
    """Return whether it is a Tuple of a topology, or a Row of one process; the classes cannot be imported here."""
    return hasattr(type(value), "source_component") or hasattr(type(value), "_positions")


def _is_anchor(value: Any) -> bool:
    return _is_tuple(value) or (isinstance(value, list | tuple) and bool(value) and all(map(_is_tuple, value)))
