"""A worker's process: its garbage collector runs less often during a turn, the objects of modules are frozen; and its end."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from windowing.spark import exchange, failures
from windowing.spark.exchange import ArrowStage, prepared_worker


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("given", "meanwhile"), [(700, 50_000), (100_000, 100_000), (0, 0)])
def test_the_gc_threshold_is_raised_during_a_task_and_restored_also_after_an_error(given: int, meanwhile: int) -> None:
    gc.set_threshold(given, 7, 8)
    with prepared_worker():
        assert gc.get_threshold() == (meanwhile, 7, 8)
    assert gc.get_threshold() == (given, 7, 8)
    with pytest.raises(ValueError, match="a bolt"), prepared_worker():
        raise ValueError("a bolt")
    assert gc.get_threshold() == (given, 7, 8)


def test_the_gc_threshold_is_raised_while_a_stage_without_state_runs() -> None:
    class Stage(ArrowStage):
        def pack(self, batches: Iterator[Any], partition: int, number: int) -> Iterator[Any]:
            yield gc.get_threshold()[0]

    gc.set_threshold(700, 7, 8)
    assert list(Stage()(iter(()))) == [50_000]
    assert gc.get_threshold() == (700, 7, 8)


def test_objects_are_frozen_only_if_modules_were_imported_since_the_last_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    with prepared_worker():
        pass
    frozen.clear()
    with prepared_worker():
        pass
    assert frozen == [], "what a task has left would be kept for ever"
    monkeypatch.setitem(sys.modules, "another_module", ModuleType("another_module"))
    with prepared_worker():
        pass
    with prepared_worker():
        pass
    assert frozen == [len(sys.modules)]


@pytest.mark.parametrize(("started_by", "ended"), [("pyspark.daemon", [1]), ("pytest", [])])
def test_a_worker_ends_without_a_word_when_spark_has_closed_its_socket(
    started_by: str, ended: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a Unix domain socket its last words cannot be written, and PySpark would print a traceback for each worker."""

    def serve(socket: Any, authenticated: bool) -> int:
        if socket is None:
            raise BrokenPipeError
        return 7

    exits: list[int] = []
    daemon: Any = ModuleType("__main__")
    daemon.__spec__, daemon.worker = ModuleSpec(started_by, None), serve
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    monkeypatch.setattr(exchange, "_modules", 0)
    monkeypatch.setattr(failures, "os", SimpleNamespace(_exit=exits.append))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with prepared_worker():
        pass
    served = daemon.worker
    failures.end_with_spark()
    assert daemon.worker is served
    assert daemon.worker("a socket", False) == 7
    with suppress(BrokenPipeError):
        daemon.worker(None, False)
    assert exits == ended
