"""Optional packages: names of the public packages that are imported on first use, and the extra that installs what they need."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_EXTRAS = {
    **dict.fromkeys(("pyspark", "pandas", "pyarrow", "numpy", "google"), "spark"),
    "psycopg": "postgres",
    "redis": "redis",
    "pika": "rabbitmq",
    "confluent_kafka": "kafka",
    "prometheus_client": "prometheus",
    "opentelemetry": "opentelemetry",
}
"""The extra of this library that installs a package."""


def with_extra(problem: ModuleNotFoundError, what: str) -> ModuleNotFoundError:
    """Return the error for `what`, which needs a package that is not installed: it names the extra that installs it.

    >>> str(with_extra(ModuleNotFoundError("No module named 'pika'", name="pika"), "windowing.queues.RabbitQueue"))
    "windowing.queues.RabbitQueue needs the package pika; pip install 'windowing[rabbitmq]'"
    """
    extra = _EXTRAS.get((problem.name or "").partition(".")[0])
    if extra is None:
        return problem
    return ModuleNotFoundError(
        f"{what} needs the package {problem.name}; pip install 'windowing[{extra}]'", name=problem.name
    )


def getattr_of(
    package: str, modules: Mapping[str, str] | None = None, instead: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. It imports the names in `modules` from their modules when they are first used. For
    other names of this library and of Storm its error says what to write; `instead` has what differs here.
    """
    own, answers = modules or {}, instead or {}

    def load(name: str) -> Any:
        if name not in own:
            whole = import_module("windowing")
            there = "windowing" if name in whole.__all__ else _package_of_names().get(name)
            here = whole._ELSEWHERE.get(name) if there is None else f"from {there} import {name}"
            write = answers.get(name, here)
            if write is None or find_spec(f"{package}.{name}"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            said = f"{package} has no {name!r}; write {write}"
            raise ImportError(said) if _is_imported() else AttributeError(said, name=name)
        try:
            return getattr(import_module(f"windowing.{own[name]}"), name)
        except ModuleNotFoundError as problem:
            raise with_extra(problem, f"{package}.{name}") from problem

    return load


def _is_imported() -> bool:
    """Return whether `from package import name` calls the `__getattr__`: it replaces the text of an AttributeError by its own."""
    caller = sys._getframe(2)
    while caller.f_code.co_name == "__getattr__" and caller.f_back is not None:  # one that calls `load`
        caller = caller.f_back
    return caller.f_code.co_name == "_handle_fromlist"  # of importlib


@cache
def _package_of_names() -> Mapping[str, str]:
    """Return the public package of each name, from their sources: to import them might need optional packages. Cost: 1 ms, once."""
    found = {}
    for package in ("local", "spark", "queues", "stores", "monitoring", "testing", "trident"):
        spec = find_spec(f"windowing.{package}")
        source = getattr(spec and spec.loader, "get_source", lambda module: None)(f"windowing.{package}") or ""
        names = source.partition("\n__all__ = [")[2].partition("]")[0]
        found.update(dict.fromkeys(re.findall(r'"(\w+)"', names), f"windowing.{package}"))
    return found


def library_version() -> str:
    """Return the version of this library as it is installed; "unknown" where it is not, as in a source tree or by --py-files."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than this module

    try:
        return version("windowing")
    except PackageNotFoundError:
        return "unknown"


def installed(names: Iterable[str], needed: Mapping[str, str]) -> list[str]:
    """Return the names whose package, by name in `needed`, is installed; `import *` would fail for another one."""
    return [name for name in names if name not in needed or find_spec(needed[name]) is not None]
