"""What makes the instance of a component's class for each task: the class, a partial of it, or an instance to be copied.

    Count                        Count()
    functools.partial(Count, 3)  Count(3)
    Count(3)                     a deep copy of it, as it was when it was given

`copies_of` makes a maker of the last; `class_of` is the way back from any maker to the class, to look at its methods.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from windowing.errors import ConfigError, shown

__all__ = ["HOW_TO_MAKE", "class_of", "copies_of"]

HOW_TO_MAKE = "give an instance, or functools.partial with the arguments"
"""The way out where a class cannot be made without arguments."""


def copies_of(instance: Any) -> Callable[[], Any]:
    """Return what makes deep copies of `instance`, as it is now; ConfigError where it cannot be copied."""
    try:
        return functools.partial(copy.deepcopy, copy.deepcopy(instance))
    except Exception as problem:
        raise ConfigError(
            f"{shown(instance)} cannot be copied for each task: {type(problem).__name__}: {problem}; "
            "open files and connections in open() or prepare(), or give a functools.partial of the class"
        ) from problem


def class_of(maker: Any) -> type[Any] | None:
    """Return the class whose instances `maker` makes, None for a function.

    >>> class_of(dict), class_of(functools.partial(dict, a=1)), class_of(copies_of({})), class_of(len)
    (<class 'dict'>, <class 'dict'>, <class 'dict'>, None)
    """
    if isinstance(maker, type):
        return maker
    if not isinstance(maker, functools.partial):
        return None
    return type(maker.args[0]) if maker.func is copy.deepcopy else class_of(maker.func)
