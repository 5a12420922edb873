"""What a combiner, a reducer and a replacement do to a stored value."""

from __future__ import annotations

from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

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
def test_a_combiner_updates_by_partial_results_as_a_reducer_by_tuples(stored: list[int], batch: list[int]) -> None:
    before = sum(stored) if stored else None
    partial = reduce(Sum().combine, map(Sum().init, batch), Sum().zero())
    assert CombinerValueUpdater(Sum(), partial).update(before) == sum(stored + batch)
    assert ReducerValueUpdater(Sum(), batch).update(before) == sum(stored + batch)


def test_a_combiner_puts_its_value_where_nothing_is_stored() -> None:
    assert CombinerValueUpdater(Sum(), 7).update(None) == 7


def test_a_reducer_begins_with_init_where_nothing_is_stored_even_without_tuples() -> None:
    assert ReducerValueUpdater(Sum(), []).update(None) == 0


def test_a_reducer_takes_the_tuples_in_order_and_keeps_them() -> None:
    class Text:
        def init(self) -> str:
            return ""

        def reduce(self, current: str, tuple: Any) -> str:
            return current + str(tuple)

    updater = ReducerValueUpdater(Text(), iter("abc"))
    assert updater.update("-") == updater.update("-") == "-abc"


def test_a_replacement_forgets_what_is_stored() -> None:
    assert ReplaceUpdater(3).update(5) == ReplaceUpdater(3).update(None) == 3
