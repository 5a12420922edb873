"""Python's garbage collector runs less often during a turn, and as before after it; the objects of modules are frozen."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from windowing.spark.exchange import prepare_worker
from windowing.spark.operator import seldom_collected


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [(700, 50_000), (100_000, 100_000), (0, 0)])
def test_the_gc_threshold_is_raised_during_a_turn_and_restored_also_after_an_error(given: int, meanwhile: int) -> None:
    gc.set_threshold(given, 7, 8)
    with seldom_collected():
        assert gc.get_threshold() == (meanwhile, 7, 8)
    assert gc.get_threshold() == (given, 7, 8)
    with pytest.raises(ValueError, match="a bolt"), seldom_collected():
        raise ValueError("a bolt")
    assert gc.get_threshold() == (given, 7, 8)


def test_objects_are_frozen_only_if_modules_were_imported_since_the_last_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    prepare_worker()
    frozen.clear()
    prepare_worker()
    assert frozen == [], "what a task has left would be kept for ever"
    monkeypatch.setitem(sys.modules, "another_module", ModuleType("another_module"))
    prepare_worker()
    prepare_worker()
    assert frozen == [len(sys.modules)]
