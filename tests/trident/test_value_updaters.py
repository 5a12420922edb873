"""Updates of a stored value by a combiner, a reducer and a replacement."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windowing.trident import builtins
from windowing.trident.states import CombinerValueUpdater, ReducerValueUpdater, ReplaceUpdater


class Sum:
    """A combiner and a reducer of numbers."""

    def init(self, tuple: Any = 0) -> int:
        return int(tuple)

    def combine(self, a: int, b: int) -> int:
        return a + b

    def zero(self) -> int:
        return 0

    def reduce(self, current: int, tuple: Any) -> int:
        return current + int(tuple)


numbers = st.lists(st.integers(-5, 5))


@given(numbers, numbers)
def test_combining_partial_results_equals_reducing_tuples(stored: list[int], batch: list[int]) -> None:
    before = sum(stored) if stored else None
    partial = reduce(Sum().combine, map(Sum().init, batch), Sum().zero())
    assert CombinerValueUpdater(Sum(), partial).update(before) == sum(stored + batch)
    assert ReducerValueUpdater(Sum(), batch).update(before) == sum(stored + batch)


@given(st.lists(st.lists(st.none() | st.integers(-(10**38), 10**38), max_size=6), max_size=4), st.integers(0, 38))
def test_sums_of_decimals_are_exact_over_any_partial_results(batches: list[list[int | None]], scale: int) -> None:
    stored, total = None, builtins.Sum()
    for batch in batches:
        rows = [(None if digits is None else Decimal(digits).scaleb(-scale, Context(prec=100)),) for digits in batch]
        new = reduce(total.combine, map(total.init, rows), total.zero())
        stored = CombinerValueUpdater(total, new).update(stored)
    assert Fraction(stored or 0) == Fraction(sum(digits or 0 for batch in batches for digits in batch), 10**scale)


def test_a_combiner_without_a_stored_value_stores_its_value() -> None:
    assert CombinerValueUpdater(Sum(), 7).update(None) == 7


def test_a_reducer_without_a_stored_value_starts_with_init_even_without_tuples() -> None:
    assert ReducerValueUpdater(Sum(), []).update(None) == 0


def test_a_reducer_applies_the_tuples_in_order_and_may_be_applied_again() -> None:
    class Text:
        def init(self) -> str:
            return ""

        def reduce(self, current: str, tuple: Any) -> str:
            return current + str(tuple)

    updater = ReducerValueUpdater(Text(), iter("abc"))
    assert updater.update("-") == updater.update("-") == "-abc"


def test_a_replacement_ignores_the_stored_value() -> None:
    assert ReplaceUpdater(3).update(5) == ReplaceUpdater(3).update(None) == 3
