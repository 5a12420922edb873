"""An error in a user's policy or aggregator names the bolt, the part, the window and the line."""

from __future__ import annotations

from typing import Any

import pytest

from windowing import count, millis, windowed_bolt
from windowing.errors import BoltError
from windowing.local import run_local
from windowing.windows import aggregate as agg
from windowing.windows.eviction import Action, EvictionContext, EvictionPolicy
from windowing.windows.trigger import TriggerPolicy

ROWS = [[{"at": 1, "v": 1}, {"at": 2, "v": "x"}, {"at": 12, "v": 3}]]


def failure(*words: str, **options: Any) -> BoltError:
    @windowed_bolt(name="mine", timestamp="at", output="n long", **options)
    def size(window: Any) -> int:
        return len(window)

    with pytest.raises(BoltError) as caught:
        run_local(size, ROWS, drain=options.get("semantics") != "storm")
    for word in ("bolt 'mine' failed in ", *words):
        assert word in str(caught.value)
    return caught.value


class Divides(EvictionPolicy):
    def evict(self, event: Any) -> Action:
        raise ZeroDivisionError("no")


class Odd(EvictionPolicy):
    def evict(self, event: Any) -> Any:
        return "keep"


class Untrackable(EvictionPolicy):
    def track(self, event: Any) -> None:
        raise KeyError("k")

    def evict(self, event: Any) -> Action:
        return Action.PROCESS


class One(TriggerPolicy):
    def track(self, event: Any) -> Any:
        return EvictionContext(event.timestamp)


class Lazily(TriggerPolicy):
    def track(self, event: Any) -> Any:
        yield EvictionContext(event.timestamp)
        raise KeyError("k")


def unmakeable() -> Any:
    raise ValueError("no policy")


LINE = f"({__file__}:{Divides.evict.__code__.co_firstlineno + 1})"


@pytest.mark.parametrize("slide", [millis(5), millis(10)])
@pytest.mark.parametrize("columnar", [None, "arrow"])
def test_an_init_of_a_fold_that_raises_is_named_with_its_aggregate(slide: Any, columnar: Any) -> None:
    fold = agg.fold(unmakeable, lambda a, b: a, lambda a, b: a)
    both = {"n": agg.count(), "own": fold}
    failure(
        "its aggregate 'own', in init: ValueError: no policy",
        __file__,
        aggregate=both,
        length=millis(10),
        slide=slide,
        **({} if columnar is None else {"columnar": columnar}),
    )
    if columnar is None:
        failure("its aggregate, in init", __file__, aggregate=fold, length=count(4), slide=count(2))


def unmergeable(a: int, b: int) -> int:
    raise ZeroDivisionError("no merge")


@pytest.mark.parametrize(("named", "columnar"), [(False, None), (True, None), (True, "arrow")])
def test_a_merge_of_a_fold_that_raises_is_named(named: bool, columnar: Any) -> None:
    fold = agg.fold(int, lambda acc, row: acc + 1, unmergeable)
    aggregate: Any = {"n": agg.count(), "own": fold} if named else fold
    for size, slide in ((millis(12), millis(1)), *(() if columnar else ((count(2), count(1)),))):
        said = "its aggregate=, merging two partial results: ZeroDivisionError: no merge"
        options = {} if columnar is None else {"columnar": columnar}
        error = failure(said, __file__, aggregate=aggregate, length=size, slide=slide, **options)
        assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_eviction_that_raises_is_named_with_window_and_line() -> None:
    error = failure(
        "Divides.evict on the window that ends at 2: ZeroDivisionError: no", LINE, eviction=Divides, slide=count(2)
    )
    assert isinstance(error.__cause__, ZeroDivisionError)
    failure("Untrackable.track: KeyError: 'k'", __file__, eviction=Untrackable, slide=count(2))
    failure("eviction=, when it was made: ValueError: no policy", __file__, eviction=unmakeable, slide=count(2))


def test_an_eviction_that_returns_no_action_is_refused_with_the_valid_actions() -> None:
    failure("its eviction: Odd.evict returned 'keep' on the window that ends at 1", "Action.EXPIRE", eviction=Odd)


def test_a_trigger_that_returns_a_single_context_is_refused_with_the_return_type() -> None:
    failure("One.track or tick", "a list of EvictionContext, or None", "not iterable", length=count(2), trigger=One)
    failure("Lazily.track", "KeyError: 'k'", __file__, length=count(2), trigger=Lazily)


@pytest.mark.parametrize(
    ("eviction", "said"),
    [
        (Divides, "its eviction= or trigger="),
        (Untrackable, "its eviction= or trigger="),
        (unmakeable, "eviction=, when it was made: "),
    ],
)
def test_policies_under_storm_semantics_are_named_too(eviction: Any, said: str) -> None:
    failure(said, __file__, eviction=eviction, slide=count(1), semantics="storm")


@pytest.mark.parametrize("size", [millis(10), count(2)])
def test_an_aggregator_that_raises_is_named_with_its_field(size: Any) -> None:
    totals = {"n": agg.count(), "total": agg.sum("v")}
    error = failure(
        "its aggregate 'total' of field 'v', given ", "TypeError", length=size, slide=size, aggregate=totals
    )
    assert isinstance(error.__cause__, TypeError)

    def step(acc: int, value: Any) -> int:
        return acc + int(value)

    folded = agg.fold(int, step, int.__add__, field="v")
    failure("its aggregate of field 'v'", "ValueError", f"{__file__}:", length=size, slide=size, aggregate=folded)
