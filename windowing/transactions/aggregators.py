"""Aggregators: how the tuples of a batch become one value, and how that value changes what is stored.

    combiner   init(a) init(b) init(c)  ->  combine, combine      before the exchange and after it, in any grouping
    reducer    init() -> reduce(., a) -> reduce(., b)             one tuple after the other, in one place
    aggregator init -> aggregate(v, a), aggregate(v, b) -> complete     may emit any number of rows, at any time

Laws of a combiner: `combine(zero(), x) == x == combine(x, zero())` and `combine(a, combine(b, c)) == combine(combine(a, b), c)`.
Values are plain data, and what `combine` and `reduce` are given stays as it is: a stored value may be used again.

Source: Storm's `CombinerAggregator`, `ReducerAggregator`, `Aggregator`, `TridentCollector`, `ValueUpdater` and its two updaters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Protocol, TypeVar

__all__ = [
    "Aggregator",
    "CombinerAggregator",
    "CombinerValueUpdater",
    "ReducerAggregator",
    "ReducerValueUpdater",
    "ReplaceUpdater",
    "TridentCollector",
    "ValueUpdater",
]

T = TypeVar("T")


class TridentCollector(Protocol):
    """Where operations leave what they emit."""

    def emit(self, values: Sequence[Any]) -> None:
        """Emit one row: its values, in the order of the declared fields."""

    def report_error(self, error: BaseException) -> None:
        """Let whoever looks at the run see an error that stops nothing."""


class CombinerAggregator(Protocol[T]):
    """A value per tuple, combined two by two: partial results are made before tuples travel."""

    def init(self, tuple: Any) -> T:
        """Return the value of one tuple."""

    def combine(self, a: T, b: T) -> T:
        """Return the value of what is in `a`, then in `b`; both stay as they are."""

    def zero(self) -> T:
        """Return the value of nothing."""


class ReducerAggregator(Protocol[T]):
    """A value that takes in one tuple after the other."""

    def init(self) -> T:
        """Return the value of nothing."""

    def reduce(self, current: T, tuple: Any) -> T:
        """Return the value with one tuple more; `current` stays as it is."""


class Aggregator(Protocol[T]):
    """The most general: its value, which it may change in place, is one batch's, and it emits what it likes."""

    def init(self, batch_id: Any, collector: TridentCollector) -> T:
        """Return the value at the start of a batch, before any tuple."""

    def aggregate(self, value: T, tuple: Any, collector: TridentCollector) -> None:
        """Take in one tuple."""

    def complete(self, value: T, collector: TridentCollector) -> None:
        """Emit what is left to emit, after all tuples of the batch, also if there was none."""


class ValueUpdater(Protocol[T]):
    """What is done to one stored value."""

    def update(self, stored: T | None) -> T | None:
        """Return the new value; None is no value. Pure: asked again with the same, it answers the same."""


class CombinerValueUpdater(ValueUpdater[T]):
    """Combine what is stored with the value of a batch.

    >>> class Count:
    ...     def init(self, tuple): return 1
    ...     def combine(self, a, b): return a + b
    ...     def zero(self): return 0
    >>> updater = CombinerValueUpdater(Count(), 3)
    >>> updater.update(None), updater.update(4)
    (3, 7)
    """

    def __init__(self, aggregator: CombinerAggregator[T], value: T) -> None:
        self.aggregator = aggregator
        self.value = value

    def update(self, stored: T | None) -> T:
        return self.value if stored is None else self.aggregator.combine(stored, self.value)

    def __repr__(self) -> str:
        return f"CombinerValueUpdater({self.aggregator!r}, {self.value!r})"


class ReducerValueUpdater(ValueUpdater[T]):
    """Reduce the tuples of a batch into what is stored, in their order."""

    def __init__(self, aggregator: ReducerAggregator[T], tuples: Iterable[Any]) -> None:
        self.aggregator = aggregator
        self.tuples = tuple(tuples)

    def update(self, stored: T | None) -> T:
        return reduce(self.aggregator.reduce, self.tuples, self.aggregator.init() if stored is None else stored)

    def __repr__(self) -> str:
        return f"ReducerValueUpdater({self.aggregator!r}, {len(self.tuples)} tuples)"


class ReplaceUpdater(ValueUpdater[T]):
    """Put a value in the place of whatever is stored."""

    def __init__(self, value: T | None) -> None:
        self.value = value

    def update(self, stored: T | None) -> T | None:
        return self.value

    def __repr__(self) -> str:
        return f"ReplaceUpdater({self.value!r})"
