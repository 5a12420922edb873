"""Specs: what the user's own parts of a definition are, as plain JSON data, by which a checkpoint tells one from another.

    agg.max("delay")               {"kind": "max", "field": "delay"}
    agg.fold(list, push, join)     {"kind": "fold", "field": None, "parameters": {"start": "list", "step": "push", ...}}
    TopN(5, field="delay")         {"kind": "TopN", "field": "delay", "parameters": {"n": 5}}
    eviction=lambda: LastOf(5)     {"kind": "LastOf", "parameters": {"n": 5}}, of the policy that it makes

Laws: the same code gives the same spec in every process (no addresses, no order of sets). Functions are known by their names,
objects by their class and their parameters: the fields of a dataclass, else the attributes that begin with no underscore.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from windowing.core.faults import fault

__all__ = ["aggregator_spec", "policy_spec", "title_of"]


def title_of(target: Any) -> str:
    """Return the name by which a person knows a function, a class, a partial of one, or an object.

    >>> title_of(functools.partial(title_of, 1)), title_of(lambda: 0), title_of(3)
    ('title_of', '<lambda>', 'int')
    """
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(inspect.unwrap(target), "__qualname__", None)
    return name if isinstance(name, str) else type(target).__qualname__


def aggregator_spec(aggregator: Any) -> dict[str, Any]:
    """Return what an aggregator is: its kind, its field, and its parameters if it has some."""
    kind = getattr(type(aggregator), "kind", None)
    parameters = _parameters(aggregator)
    field = parameters.pop("field", getattr(aggregator, "field", None))
    spec = {"kind": kind if isinstance(kind, str) else type(aggregator).__qualname__, "field": field}
    return spec | ({"parameters": parameters} if parameters else {})


def policy_spec(factory: Callable[[], Any], option: str, component: str) -> str | dict[str, Any]:
    """Return what the policies of `eviction=` or `trigger=` are: their class, and their parameters if they have some.

    One is made, to look at it; raises BoltError, which names `component` and `option`, if that fails.

    >>> policy_spec(lambda: slice(3), "eviction", "count")
    'slice'
    """
    try:
        policy = factory()
    except Exception as problem:
        raise fault(component, f"{option}=, when it was made", problem) from problem
    kind, parameters = type(policy).__qualname__, _parameters(policy)
    return {"kind": kind, "parameters": parameters} if parameters else kind


def _parameters(made: Any) -> dict[str, Any]:
    if is_dataclass(made):
        found = {field.name: getattr(made, field.name) for field in fields(made)}
    else:
        found = {name: value for name, value in getattr(made, "__dict__", {}).items() if not name.startswith("_")}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """Return a parameter as JSON has it; what JSON has not, as a text that is the same in every process."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(map(repr, value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__qualname__, "parameters": _parameters(value)}
    written = repr(value)
    return title_of(value) if callable(value) or " at 0x" in written else written
