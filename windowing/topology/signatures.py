"""What the signature of a user's function says about how it is called, and whether it can be called at all.

    (window)               it returns or yields its rows       CallStyle.ROWS
    (window, collector)    it hands them to the collector      CallStyle.COLLECTOR

Nothing is called here: a signature is read, and what cannot work is a ConfigError.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from windowing.errors import ConfigError
from windowing.topology.bolts import CallStyle

__all__ = ["STATE_METHODS", "bound", "check_call", "check_methods", "fields_set", "refuse_async", "style_of_function"]

STATE_METHODS = (
    ("init_state", ("state",)),
    ("pre_prepare", ("txid",)),
    ("pre_commit", ("txid",)),
    ("pre_rollback", ()),
)
"""What a class with a state has, or may have."""


def bound(target: type[Any], method: str) -> Callable[..., Any]:
    """Return a method as an instance would have it, without making an instance."""
    function = getattr(target, method)
    found = inspect.getattr_static(target, method)
    return function if isinstance(found, staticmethod | classmethod) else functools.partial(function, None)


def style_of_function(function: Callable[..., Any], body: Any, title: str, handed: str = "window") -> CallStyle:
    """Return the style that the signature of `function` asks for; `body` is what runs, `handed` what it is called with."""
    forms = f"a bolt takes ({handed}) or ({handed}, collector)"
    refuse_async(body, title, handed)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError(f"the signature of {title!r} cannot be read, but {forms}; wrap it in a function") from None
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values())
    if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
        raise ConfigError(f"{title}{signature} needs keyword arguments, but {forms}; give them defaults")
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is kinds.empty for p in positional)
    if not positional and any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise ConfigError(
            f"{title}{signature} does not say how it is called, but {forms}; use functools.wraps in a decorator"
        )
    if needed > 2 or not positional:
        raise ConfigError(f"{title}{signature} cannot be called with a {handed}: {forms}")
    if needed < 2 and not (len(positional) > 1 and positional[1].name == "collector"):
        return CallStyle.ROWS
    if inspect.isgeneratorfunction(body):
        raise ConfigError(f"{title}{signature} yields rows and takes a collector too; do one of them: {forms}")
    return CallStyle.COLLECTOR


def refuse_async(body: Any, title: str, handed: str = "window") -> None:
    """Raise for a coroutine function or an async generator; `handed` is what it would be given."""
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body):
        raise ConfigError(
            f"{title!r} is async, but a {handed} is handed out for the time of one call; "
            "make it a plain function (asyncio.run inside it, if it must await)"
        )


def check_call(function: Callable[..., Any], arguments: tuple[str, ...], what: str, way_out: str) -> None:
    """Raise where `function` cannot be called with so many arguments; `what` and `way_out` are of the sentence."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C, without a signature: it shows when it is called
    try:
        signature.bind(*arguments)
    except TypeError as problem:
        raise ConfigError(
            f"{what}{signature} cannot be called with ({', '.join(arguments)}): {problem}; {way_out}"
        ) from None


def check_methods(target: type[Any], title: str, methods: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Raise for a method that `target` has and that cannot be called with its arguments, or is async."""
    for method, arguments in methods:
        if getattr(target, method, None) is not None:
            written = ", ".join(("self", *arguments))
            refuse_async(getattr(target, method), f"{title}.{method}", "call")
            check_call(bound(target, method), arguments, f"{title}.{method}", f"write def {method}({written})")


def fields_set(of_class: type[Any], method: str = "execute") -> list[str]:
    """Return the fields of `self` that a method sets, itself or in methods that it calls, by its source; none where there is none.

    >>> class Counts:
    ...     def __init__(self): self.n = 0
    ...     def execute(self, tuple): self.n += 1
    >>> isinstance(fields_set(Counts), list)
    True
    """
    found: dict[str, None] = {}
    ahead, seen = [method], {"__init__", "open", "prepare", "init_state", "cleanup"}
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        function = _parsed(getattr(of_class, name, None))
        if function is None or not (*function.args.posonlyargs, *function.args.args):
            continue
        own = (*function.args.posonlyargs, *function.args.args)[0].arg
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
                found |= dict.fromkeys(filter(None, [_field_of(node, own)]))
            elif isinstance(node, ast.Call):
                called = node.func
                if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == own:
                    ahead.append(called.attr)
    return list(found)


def _parsed(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return tree.body[0] if tree.body and isinstance(tree.body[0], ast.FunctionDef) else None


def _field_of(node: ast.expr, own: str) -> str | None:
    """Return the field of `own` that a target is, or is a part of."""
    field = None
    while isinstance(node, ast.Attribute | ast.Subscript):
        field = node.attr if isinstance(node, ast.Attribute) else None
        node = node.value
    return field if isinstance(node, ast.Name) and node.id == own else None
