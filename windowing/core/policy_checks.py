"""The questions of checks.py about what a window is made of: eviction=, trigger=, aggregate=, columnar=.

length=   holds tuples            eviction=   chooses among them, or among all where there is no length
slide=    says when windows fire  trigger=    says so instead
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from windowing.core.aggregate import is_aggregator
from windowing.core.checks import checked_name, key
from windowing.core.measures import Duration, Measure
from windowing.errors import ConfigError, shown

__all__ = ["aggregators", "columnar", "policies"]


def policies(given: Mapping[str, Any], slide: Any, by_window: bool) -> None:
    """Raise for an eviction or a trigger that is not a maker of policies, and for what such a policy leaves no sense."""
    for option in ("eviction", "trigger"):
        if option in given:
            _maker(given, option)
            if by_window:
                raise ConfigError(
                    f"lateness='window' asks which windows can still hold a tuple, which a policy of your own cannot say, got "
                    f"{option}={shown(given[option])}; leave out lateness="
                )
    if "trigger" in given and slide is not None:
        raise ConfigError(
            f"a trigger of your own says when windows fire, so a slide would say nothing, got slide={shown(slide)} too; leave "
            "out one (write @windowed_bolt(length, trigger=...), whose slide may be left out)"
        )


def _maker(given: Mapping[str, Any], option: str) -> None:
    factory = given[option]
    if not callable(factory):
        raise ConfigError(
            f"{option} is what makes the policy, a class or a function without arguments, got {shown(factory)}; "
            f"each task needs a policy of its own: write {option}=lambda: {type(factory).__name__}(...)"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as problem:
        raise ConfigError(
            f"{option} must be callable without arguments, but {shown(factory)} says: {problem}; "
            f"write {option}=functools.partial(...) or a lambda that fills them in"
        ) from None
    except ValueError:
        pass  # a callable written in C without a signature: it shows when it is called


def aggregators(given: Mapping[str, Any]) -> None:
    """Raise for an aggregate= that holds something else than aggregators, or that meets an eviction of one's own."""
    aggregate = given.get("aggregate")
    if aggregate is None:
        return
    if "eviction" in given:
        raise ConfigError(
            "aggregate keeps no tuples, so there is nothing that a custom eviction could look at; "
            "leave out eviction=, or aggregate inside the bolt over window.get()"
        )
    if isinstance(aggregate, Mapping):
        parts = {checked_name(name, "a name in aggregate"): part for name, part in aggregate.items()}
        if not parts:
            raise ConfigError("aggregate names nothing to compute, got {}; write aggregate={'flights': agg.count()}")
    else:
        parts = {"aggregate": aggregate}
    for name, part in parts.items():
        if not is_aggregator(part):
            raise ConfigError(
                f"{name} must be an aggregator (init, add, merge, result), got {shown(part)}; "
                "write agg.count(), agg.mean('delay') or agg.fold(...)"
            )


_NOT_IN_COLUMNS = {
    "eviction": "looks at tuples one by one",
    "trigger": "is asked about every tuple, one by one",
    "semantics": "scans its tuples one by one, as Storm does",
    "max_events_in_memory": "keeps its tuples in pages of rows",
    "message_id": "knows its tuples again one by one",
    "on_error": "lists the tuples of a window one by one",
}


def columnar(given: Mapping[str, Any], storm: bool, on_error: str, measures: Sequence[Measure | None]) -> str | None:
    """Return the form in which windows are handed out, "arrow" or "numpy", None for rows; some options are in its way.

    measures: the length and the slide.
    """
    form: str | None = given.get("columnar")
    if form is None:
        return None
    if form not in ("arrow", "numpy"):
        raise ConfigError(
            f"columnar is 'arrow' or 'numpy', got {shown(form)}; window.get() is then a pyarrow.Table, or numpy arrays by name"
        )
    asked = {**given, "semantics": "storm" if storm else None, "on_error": {"fail", "dead_letter"} & {on_error}}
    for option, why in _NOT_IN_COLUMNS.items():
        if asked.get(option):
            raise ConfigError(
                f"columnar={form!r} cannot go with {option}={shown(given[option])}, which {why}; leave out one"
            )
    if given.get("aggregate") is not None:
        _one_table(given, form, measures)
    return form


def _one_table(given: Mapping[str, Any], form: str, measures: Sequence[Measure | None]) -> None:
    """Raise where the results of all keys at an end make no table: a column for each of the key's fields and each result."""
    aggregate = given["aggregate"]
    if not isinstance(aggregate, Mapping):
        raise ConfigError(
            f"columnar={form!r} makes a column of aggregate=, which needs a name; write aggregate={{'total': ...}}"
        )
    if not all(isinstance(measure, Duration) for measure in measures):
        raise ConfigError(
            f"columnar={form!r} with aggregate= hands over all keys whose windows end together, got length={measures[0]!r}, "
            f"slide={measures[1]!r}; give Durations, or leave out columnar="
        )
    twice = next((name for name in key(given) or () if name in aggregate), None)
    if twice is not None:
        raise ConfigError(
            f"columnar={form!r} would make two columns named {twice!r}, one of key= and one of aggregate=; rename the aggregate"
        )
