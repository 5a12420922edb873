"""Count and Duration, the two measures for the length and the slide of a window.

Source: `BaseWindowedBolt.Count` and `.Duration` of Storm. A Duration has no upper bound here (Storm stops at 24.8 days).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from windowing.errors import ConfigError, quote
from windowing.schema.checks import is_whole

_INFINITE = float("inf")
_ROUNDING = 1e-15
"""The relative error up to which a float counts as a whole number of milliseconds: 1.001 * 1000 is 1000.9999999999999."""


class _Measure(type):
    """Names the way to write `Duration.seconds(10)` and `Count.of(100)` of Storm."""

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept every name

        def __getattr__(cls, name):
            sentence = f"{cls.__name__!r} has no {name!r}"
            advice = "" if name.startswith("_") else "; write count(100), seconds(10) or a timedelta"
            raise AttributeError(sentence + advice)

        def __call__(cls, *given, **named):
            try:
                return super().__call__(*given, **named)
            except TypeError as problem:
                said = str(problem).removeprefix(f"{cls.__name__}.__init__() ")
                raise ConfigError(f"{cls.__name__} {said}; write count(100), seconds(10) or a timedelta") from None


@dataclass(frozen=True, slots=True, order=True)
class Count(metaclass=_Measure):
    """A number of tuples, at least 1.

    >>> Count(3)
    Count(3)
    """

    value: int

    def __post_init__(self) -> None:
        if not is_whole(self.value):
            raise ConfigError(f"a Count is an int, a number of tuples, got {quote(self.value)}; write count(100)")
        if self.value <= 0:
            raise ConfigError(f"a Count must be positive, got {quote(self.value)}; the smallest window is count(1)")

    def __repr__(self) -> str:
        return f"Count({self.value})"


@dataclass(frozen=True, slots=True, order=True)
class Duration(metaclass=_Measure):
    """A span of time in whole milliseconds, zero or more (a length and a slide must be positive, a lag may be zero).

    >>> Duration(ms=1500)
    Duration(ms=1500)
    """

    ms: int

    def __post_init__(self) -> None:
        if not is_whole(self.ms):
            raise ConfigError(f"a Duration is an int of milliseconds, got {quote(self.ms)}; write seconds(1.5)")
        if self.ms < 0:
            raise ConfigError(
                f"a Duration cannot be negative, got {quote(self.ms)} ms; give the span itself, without a sign"
            )


Measure = Count | Duration
Span = Duration | timedelta
"""A span of time, as a user may write it."""


def count(tuples: int) -> Count:
    """Return a Count of `tuples`.

    >>> count(100)
    Count(100)
    """
    return Count(tuples)


def _span(amount: float, unit_ms: int, unit: str) -> Duration:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise ConfigError(f"{unit}() takes a number, got {quote(amount)}; for example {unit}(10)")
    if isinstance(amount, int):
        return Duration(amount * unit_ms)
    exact = amount * unit_ms
    nearest = None if exact != exact or exact in (_INFINITE, -_INFINITE) else round(exact)
    if nearest is None or abs(exact - nearest) > abs(exact) * _ROUNDING:
        raise ConfigError(f"{unit}({amount!r}) is no whole number of milliseconds; windows are kept in milliseconds")
    return Duration(nearest)


def millis(amount: float) -> Duration:
    """Return a Duration of `amount` milliseconds."""
    return _span(amount, 1, "millis")


def seconds(amount: float) -> Duration:
    """Return a Duration of `amount` seconds.

    >>> seconds(1.5), seconds(1.001)
    (Duration(ms=1500), Duration(ms=1001))
    """
    return _span(amount, 1000, "seconds")


def minutes(amount: float) -> Duration:
    """Return a Duration of `amount` minutes."""
    return _span(amount, 60_000, "minutes")


def hours(amount: float) -> Duration:
    """Return a Duration of `amount` hours."""
    return _span(amount, 3_600_000, "hours")


def days(amount: float) -> Duration:
    """Return a Duration of `amount` days of 24 hours."""
    return _span(amount, 86_400_000, "days")


def plain_measure(measure: Measure | None) -> dict[str, int] | None:
    """Return a measure as plain data, the form in which stored definitions hold it.

    >>> plain_measure(Count(3)), plain_measure(Duration(ms=5)), plain_measure(None)
    ({'count': 3}, {'ms': 5}, None)
    """
    if measure is None:
        return None
    return {"count": measure.value} if isinstance(measure, Count) else {"ms": measure.ms}


def describe_measure(measure: Measure | None) -> str:
    """Return a measure for drawings and titles, in the largest unit that divides it; None stands for a user's own policies.

    >>> list(map(describe_measure, [Count(1), Count(3), Duration(ms=90_000), Duration(ms=3_600_000), None]))
    ['1 tuple', '3 tuples', '90 s', '1 h', 'custom']
    """
    if measure is None:
        return "custom"
    if isinstance(measure, Count):
        return f"{measure.value} tuple{'s' if measure.value > 1 else ''}"
    for unit, name in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if measure.ms % unit == 0:
            return f"{measure.ms // unit} {name}"
    return f"{measure.ms} ms"


def as_measure(value: Count | Span, what: str) -> Measure:
    """Return `value` as a positive Count or Duration; `what` ("length", "slide") is named in the error.

    >>> as_measure(timedelta(seconds=2), "length")
    Duration(ms=2000)
    """
    if isinstance(value, Count):
        return value
    if isinstance(value, Duration | timedelta):
        ms = as_duration_ms(value, what)
        if ms == 0:
            raise ConfigError(
                f"{what} must be positive, got Duration(0); for adjacent windows use tumbling(seconds(10))"
            )
        return Duration(ms)
    raise ConfigError(
        f"{what} is given in tuples or in time, got {quote(value)}; write count(100), seconds(10) or a timedelta"
    )


def as_duration_ms(value: Span, what: str) -> int:
    """Return a Duration or timedelta in milliseconds (>= 0); `what` is named in the error."""
    if isinstance(value, timedelta):
        us = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
        if us % 1000:
            raise ConfigError(f"{what} is finer than a millisecond, got {value!r}; windows are kept in milliseconds")
        if us < 0:
            raise ConfigError(f"{what} cannot be negative, got {value!r}; give the span itself, without a sign")
        return us // 1000
    if isinstance(value, Duration):
        return value.ms
    raise ConfigError(f"{what} is a span of time, got {quote(value)}; write seconds(10), minutes(5) or a timedelta")
