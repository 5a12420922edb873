"""The cycle collector looks less often while a turn runs, and as before when it is over."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from windowing.spark.settings import seldom_collected


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [(700, 50_000), (100_000, 100_000), (0, 0)])
def test_what_was_set_comes_back_whatever_happens(given: int, meanwhile: int) -> None:
    gc.set_threshold(given, 7, 8)
    with seldom_collected():
        assert gc.get_threshold() == (meanwhile, 7, 8)
    assert gc.get_threshold() == (given, 7, 8)
    with pytest.raises(ValueError, match="a bolt"), seldom_collected():
        raise ValueError("a bolt")
    assert gc.get_threshold() == (given, 7, 8)
