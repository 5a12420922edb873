"""Tests of the comparison itself: it finds a lost tuple, a repeated one, another order, and another last bit of a float."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import assert_nothing_lost, assert_same, exact, input_rows, write_input

ROWS = [{"id": 1}, {"id": 2}, {"id": 3}]
GOOD = exact(
    {
        "default": {0: [{"ids": [1], "total": 0.1}, {"ids": [1, 2], "total": 0.3}]},
        "late": {1: [{"id": 3, "reason": "late"}]},
    }
)


def _swap(found: Any) -> None:
    found["default"][0].reverse()


def _last_bit(found: Any) -> None:
    found["default"][0][1]["total"] = exact(math.nextafter(0.3, 1.0))


def _other_batch(found: Any) -> None:
    found["late"][2] = found["late"].pop(1)


def _twice(found: Any) -> None:
    found["late"][1] *= 2


def _lose(found: Any) -> None:
    del found["late"][1][0]


def _both(found: Any) -> None:
    found["late"][1][0]["id"] = 2


@pytest.mark.parametrize("change", [_swap, _last_bit, _other_batch, _twice, _lose, _both])
def test_every_difference_from_a_run_without_a_kill_is_found(change: Callable[[Any], None]) -> None:
    found = copy.deepcopy(GOOD)
    assert_same(found, GOOD)
    change(found)
    with pytest.raises(AssertionError):
        assert_same(found, GOOD)


@pytest.mark.parametrize("change", [_twice, _lose, _both])
def test_a_lost_or_repeated_tuple_is_found_without_a_second_run(change: Callable[[Any], None]) -> None:
    found = copy.deepcopy(GOOD)
    assert_nothing_lost(found, ROWS)
    change(found)
    with pytest.raises(AssertionError):
        assert_nothing_lost(found, ROWS)


def test_the_input_files_are_always_the_same_and_their_sums_depend_on_the_order(tmp_path: Path) -> None:
    first, second = (write_input(tmp_path / name, range(1)) for name in ("a", "b"))
    assert [path.read_bytes() for path in sorted(first.iterdir())] == [
        path.read_bytes() for path in sorted(second.iterdir())
    ]
    values = [row["value"] for row in input_rows()]
    forwards = backwards = 0.0
    for value in values:
        forwards += value
    for value in reversed(values):
        backwards += value
    assert forwards != backwards
