"""Components as data: Declaration, WindowedBolt, the factory of each task's instance, and the meaning of a user's signature.

The factory of instances is a class, a partial of it, or an instance to be copied:

    Count                        Count()
    functools.partial(Count, 3)  Count(3)
    Count(3)                     a deep copy of it, as it was when it was declared: `copies_of`

The signature of a function, or of `execute`, decides how it is called. Nothing is called here; an unusable signature is a
ConfigError:

    (window)               it returns or yields its rows       CallStyle.ROWS
    (window, collector)    it emits them to the collector      CallStyle.COLLECTOR
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from windowing.errors import ConfigError, quote
from windowing.schema.checks import unbound
from windowing.schema.types import Schema
from windowing.topology.pictures import html_table
from windowing.windows.aggregate import policy_spec, spec_of, title_of
from windowing.windows.config import WindowConfig
from windowing.windows.measures import plain_measure

COLLECTIONS = frozenset(
    {"list", "dict", "set", "deque", "Counter", "defaultdict", "OrderedDict", "SortedDict", "SortedList", "SortedSet"}
)
CHANGES_A_COLLECTION = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert"),
        *("pop", "popitem", "popleft", "remove", "setdefault", "subtract", "update"),
    )
)

# The errors of reading the source of a method, also of a file that has changed since it was imported.
_NO_SOURCE = (OSError, TypeError, SyntaxError, ValueError, IndexError, tokenize.TokenError)

HOW_TO_MAKE = "give an instance, or functools.partial with the arguments"
"""The end of an error about a class that cannot be instantiated without arguments."""


def copies_of(instance: Any) -> Callable[[], Any]:
    """Return a factory of deep copies of `instance`, as it is now. Raises ConfigError if it cannot be copied."""
    try:
        return functools.partial(copy.deepcopy, copy.deepcopy(instance))
    except Exception as problem:
        raise ConfigError(
            f"{quote(instance)} cannot be copied for each task: {type(problem).__name__}: {problem}; "
            "open files and connections in open() or prepare(), or give a functools.partial of the class"
        ) from problem


def class_of(factory: Any) -> type[Any] | None:
    """Return the class whose instances `factory` makes, None for a function.

    >>> class_of(dict), class_of(functools.partial(dict, a=1)), class_of(copies_of({})), class_of(len)
    (<class 'dict'>, <class 'dict'>, <class 'dict'>, None)
    """
    if isinstance(factory, type):
        return factory
    if not isinstance(factory, functools.partial):
        return None
    return type(factory.args[0]) if factory.func is copy.deepcopy else class_of(factory.func)


FREE: Mapping[str, bool] = {
    "lag_ms": True,
    "watermark_interval_ms": False,
    "late_stream": False,
    "idle_timeout_ms": True,
    "max_future_ms": True,
    "max_repeats": False,
    "key_ttl_ms": True,
    "on_error": False,
    "on_invalid": False,
    "max_events_in_memory": False,
    "message_id": True,
    "recovery_timeout_ms": False,
    "columnar": False,
}
"""The options of a window that may change at every restart, in the order in which they are stored. True: the option decides which
windows a batch fires, and with which tuples, so it may not change while a batch is half done whose rows are kept. An option such as
on_error does not: a batch whose rows were written has met no error.
"""


# -- Declaration, WindowedBolt ---------------------------------------------------------------------------------------------------


class ComponentKind(Enum):
    """The kind of a component; a BOLT acks by itself, the driver acks for a BASIC_BOLT and feeds an INPUT."""

    SPOUT = "spout"
    INPUT = "input"
    BOLT = "bolt"
    BASIC_BOLT = "basic_bolt"
    WINDOWED_BOLT = "windowed_bolt"


class CallStyle(Enum):
    """How a bolt returns its rows: as the result of the call, or through a collector."""

    ROWS = "rows"
    COLLECTOR = "collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A component as a decorator declared it: its mark, without a target, then what `declaration_of` returns.

    name: that of the function or class; in a topology, the component's id. outputs: the fields of each stream, "default" first.
    target: the user's function, or the factory of instances (`is_class`: each task makes one); None for an INPUT. style: ROWS if
    the function, or a bolt's `execute`, returns its rows. direct: the streams on which the emitter names the task. values_back:
    which of a spout's "ack", "fail" and "give_up" take (message_id, values). columnar: the form of the batches of a BASIC_BOLT,
    "arrow" or "pandas"; None for tuples.
    """

    kind: ComponentKind
    name: str
    outputs: Mapping[str, Schema]
    target: Callable[..., Any] | None = None
    is_class: bool = False
    style: CallStyle = CallStyle.ROWS
    direct: frozenset[str] = frozenset()
    values_back: frozenset[str] = frozenset()
    columnar: str | None = None

    @property
    def is_spout(self) -> bool:
        return self.kind in (ComponentKind.SPOUT, ComponentKind.INPUT)

    @property
    def window(self) -> WindowedBolt | None:
        """Itself, if it is a windowed bolt."""
        return self if isinstance(self, WindowedBolt) else None

    @property
    def stateful(self) -> bool:
        """Whether it is a bolt with `init_state`, which needs a state."""
        return self.is_class and not self.is_spout and callable(getattr(class_of(self.target), "init_state", None))

    @property
    def checkpointed(self) -> bool:
        """Whether checkpoints contain a state or a window on disk of it."""
        return self.stateful or (self.window is not None and self.window.config.max_events_in_memory is not None)

    def _repr_html_(self) -> str:
        return declared_html(f"{'spout' if self.is_spout else 'bolt'} {self.name}", self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedBolt(Declaration):
    """A bolt over windows, made by `bolt_of` from the mark that `@windowed_bolt` left.

    called: its name in errors, if that is not the name of its task.
    """

    kind: ComponentKind = ComponentKind.WINDOWED_BOLT
    config: WindowConfig
    target: Callable[..., Any]
    style: CallStyle
    called: str | None = None

    def __init_subclass__(cls) -> None:
        raise ConfigError(
            f"class {cls.__name__!r} inherits from WindowedBolt, which is what a decorator makes; write a class with "
            "execute(self, window) that inherits from nothing, and @windowed_bolt(...) on it"
        )

    def _repr_html_(self) -> str:
        return declared_html(f"windowed bolt {self.name}", self.outputs, [("windows", self.config.about)])

    def definition(self) -> dict[str, Any]:
        """Return the bolt as plain JSON data in two parts, to be stored with a checkpoint.

        "fixed" may not change over the life of a checkpoint, because stored windows depend on it; only for windows of Trident
        does that include their outputs. "free" may change at every restart. A function is identified by its name, an
        aggregator or a policy by class and parameters (aggregate.py); the user keeps their code compatible. Raises BoltError
        if a policy cannot be made.
        """
        config = self.config
        fixed = {
            "name": self.name,
            "semantics": config.semantics.value,
            "length": plain_measure(config.length),
            "slide": plain_measure(config.slide),
            "timestamp": _field_or_function(config.timestamp),
            "offset_ms": config.offset_ms,
            "lateness": config.lateness.value,
            "repeat": config.repeat,
            "key": None if config.key is None else list(config.key),
            "source": config.source,
            "aggregate": None if config.aggregate is None else spec_of(config.aggregate),
            "eviction": None if config.eviction is None else policy_spec(config.eviction, "eviction", self.name),
            "trigger": None if config.trigger is None else policy_spec(config.trigger, "trigger", self.name),
            "outputs": {
                stream: [list(field) for field in schema.kinds.items()] for stream, schema in self.outputs.items()
            },
        }
        free = {name: getattr(config, name) for name in FREE}
        return {"fixed": fixed, "free": free | {"on_error": config.on_error.value}}


def declared_html(title: str, outputs: Mapping[str, Schema], rows: Sequence[tuple[str, str]] = ()) -> str:
    """Return the representation of a declaration for notebooks: `rows`, and the fields of its streams."""
    return html_table(title, ("", ""), [*rows, *((f"stream {name}", schema.ddl) for name, schema in outputs.items())])


def _field_or_function(timestamp: str | Callable[[Any], int] | None) -> dict[str, str] | None:
    if timestamp is None:
        return None
    return {"field": timestamp} if isinstance(timestamp, str) else {"function": title_of(timestamp)}


# -- signatures of user functions ------------------------------------------------------------------------------------------------


STATE_METHODS = (
    ("init_state", ("state",)),
    ("pre_prepare", ("txid",)),
    ("pre_commit", ("txid",)),
    ("pre_rollback", ()),
)
"""The methods, with their arguments, of a class with a state; only init_state is required."""


def bound(target: type[Any], method: str) -> Callable[..., Any]:
    """Return a method as it is bound to an instance, without making an instance."""
    function = getattr(target, method)
    found = inspect.getattr_static(target, method)
    return function if isinstance(found, staticmethod | classmethod) else functools.partial(function, None)


def body_of(target: Any) -> Any:
    """Return the code that a call of a function, or of an object with `__call__`, runs."""
    return target if inspect.isroutine(target) or isinstance(target, functools.partial) else type(target).__call__


def style_of_function(
    function: Callable[..., Any],
    body: Any,
    title: str,
    argument: str = "window",
    *,
    returns: bool = False,
    who: str = "a bolt",
) -> CallStyle:
    """Return the style that the signature of `function` means; `body` is the code that runs, `argument` names its argument.

    returns: it gets no collector, so its signature need not say whether it takes one (`operator.attrgetter` has none). who: what
    the error says that it is.
    """
    forms = f"{who} takes ({argument})" + ("" if returns else f" or ({argument}, collector)")
    refuse_async(body, title, argument)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        if returns:
            return CallStyle.ROWS
        raise ConfigError(f"the signature of {title!r} cannot be read, but {forms}; wrap it in a function") from None
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        raise ConfigError(f"{title}{signature} needs keyword arguments, but {forms}; give them defaults")
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is kinds.empty for p in positional)
    if not positional and any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        if returns:
            return CallStyle.ROWS
        raise ConfigError(
            f"{title}{signature} does not say how it is called, but {forms}; use functools.wraps in a decorator"
        )
    if needed > 2 or not positional:
        raise ConfigError(f"{title}{signature} cannot be called with a {argument}: {forms}")
    if needed < 2 and not (len(positional) > 1 and positional[1].name == "collector"):
        return CallStyle.ROWS
    if inspect.isgeneratorfunction(body):
        raise ConfigError(f"{title}{signature} yields rows and takes a collector too; do one of them: {forms}")
    return CallStyle.COLLECTOR


def refuse_async(body: Any, title: str, argument: str = "window") -> None:
    """Raise for a coroutine function or an async generator; `argument` names its argument in the error."""
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        raise ConfigError(
            f"{title!r} is async, but a {argument} is handed out for the time of one call; "
            "make it a plain function (to await in it: asyncio.run, in another thread if your program runs a loop)"
        )


def check_call(function: Callable[..., Any], arguments: tuple[str, ...], what: str, way_out: str) -> None:
    """Raise if `function` cannot be called with these arguments; `what` and `way_out` are parts of the error."""
    found = unbound(function, arguments)
    if found is not None:
        signature, problem = found
        raise ConfigError(f"{what}{signature} cannot be called with ({', '.join(arguments)}): {problem}; {way_out}")


def check_methods(target: type[Any], title: str, methods: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Raise for a method of `target` that cannot be called with its arguments, or whose body a call does not run."""
    for method, arguments in methods:
        if getattr(target, method, None) is not None:
            function, way_out = bound(target, method), f"write def {method}({', '.join(('self', *arguments))})"
            found = unbound(function, arguments)
            if method == "prepare" and "collector" not in arguments and found and "collector" in found[0].parameters:
                way_out += "; the collector is the second argument of execute"
            refuse_async(getattr(target, method), f"{title}.{method}", "call")
            if inspect.isgeneratorfunction(getattr(target, method)):
                raise ConfigError(
                    f"'{title}.{method}' has a yield, so a call of it runs nothing; make it a plain function"
                )
            check_call(function, arguments, f"{title}.{method}", way_out)


def refuse_abstract(target: type[Any], title: str) -> None:
    """Raise for a class without a method that its base class requires: no instance of it can be made."""
    missing = sorted(getattr(target, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"class {title!r} lacks {', '.join(missing)}; write what its base class leaves open")


def fields_set(of_class: type[Any], methods: Iterable[str] = ("execute",)) -> list[str]:
    """Return the fields of `self` that `methods`, or methods they call, set, from their source; an empty list without source.

    `self.counts.update(...)` sets a field too, if the class, `__init__` or `prepare` assigns a collection to it, also behind
    `counts = self.counts`, and so does `type(self).count += 1`. Globals are not looked at.
    """
    found: dict[str, None] = {}
    collections = _collections_of(of_class)
    ahead, visited = list(methods), {"__init__", "open", "prepare", "init_state", "cleanup"}
    while ahead:
        name = ahead.pop()
        if name in visited:
            continue
        visited.add(name)
        function, own = _parsed(of_class, name)
        names = [(each.id, _field_of(value, own)) for each, value in _assigned(function) if isinstance(each, ast.Name)]
        times = Counter(
            each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        times.update(each.arg for each in ast.walk(function) if isinstance(each, ast.arg))
        aliases = {name: field for name, field in names if field in collections and times[name] == 1}
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found |= dict.fromkeys(filter(None, [_field_of(node, own, aliases)]))
            elif isinstance(node, ast.Call):
                called = node.func
                if not isinstance(called, ast.Attribute):
                    continue
                if isinstance(called.value, ast.Name) and called.value.id == own:
                    ahead.append(called.attr)
                elif called.attr in CHANGES_A_COLLECTION:
                    field = _field_of(called.value, own, aliases)
                    found |= {field: None} if field in collections else {}
    return list(found)


def _collections_of(of_class: type[Any]) -> dict[str, None]:
    """Return the fields to which the class, `__init__`, `prepare` or `open` assign a list, dict, set, ... (COLLECTIONS)."""
    attributes = (each for base in of_class.__mro__ for each in vars(base).items())
    found: dict[str, None] = dict.fromkeys(name for name, value in attributes if type(value).__name__ in COLLECTIONS)
    for name in ("__init__", "prepare", "open"):
        function, own = _parsed(of_class, name)
        fields = (_field_of(each, own) for each, value in _assigned(function) if _is_collection(value))
        found |= dict.fromkeys(filter(None, fields))
    return found


def _assigned(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target of an assignment in a function, with its value."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value


def _is_collection(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        called = value.func.value if isinstance(value.func, ast.Subscript) else value.func
        return (called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)) in COLLECTIONS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _parsed(of_class: type[Any], method: str) -> tuple[ast.AST, str]:
    """Return the syntax tree of a method, and the name of its first argument; an empty tree if there is no such source."""
    try:
        source = inspect.getsource(inspect.unwrap(getattr(of_class, method, None)))  # type: ignore[arg-type]
        function = ast.parse(textwrap.dedent(source)).body[0]
    except _NO_SOURCE:
        return ast.Module([], []), ""
    arguments = [*function.args.posonlyargs, *function.args.args] if isinstance(function, ast.FunctionDef) else []
    return (function, arguments[0].arg) if arguments else (ast.Module([], []), "")


def _field_of(node: ast.expr | None, own: str, aliases: Mapping[str, str | None] = MappingProxyType({})) -> str | None:
    """Return the field of `own`, or of its class, that a target is, or is part of. aliases: names of what is in a field."""
    field = None
    while isinstance(node, ast.Attribute | ast.Subscript):
        if not isinstance(node, ast.Attribute) or node.attr != "__class__":
            field = node.attr if isinstance(node, ast.Attribute) else None
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type" and node.args:
        node = node.args[0]
    if not isinstance(node, ast.Name):
        return None
    return field if node.id == own else aliases.get(node.id)
