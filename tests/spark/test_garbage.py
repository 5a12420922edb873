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

from tests.execution.chains import Chain
from windowing import InputSpout, Topology, TopologyBuilder, millis, tumbling
from windowing import aggregate as agg
from windowing.spark import failures, operator, window_turn
from windowing.spark.operator import ArrowStage, expect, prepared_worker


@tumbling(millis(10), timestamp="at", output="n long")
def read(window: Any) -> int:
    return len(window)


@tumbling(millis(10), timestamp="at", aggregate={"n": agg.count()}, output="n long")
def added(window: Any) -> int:
    return int(window.aggregate["n"])


def topology_of(declared: Any) -> Topology:
    builder = TopologyBuilder("turns")
    builder.set_spout("source", InputSpout("k string, at long"))
    builder.set_bolt("windows", declared).global_grouping("source")
    return builder.build()


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


@pytest.mark.parametrize(("given", "meanwhile"), [(700, 50_300), (100_000, 100_300), (2**31 - 1, 2**31 - 1), (0, 0)])
def test_objects_that_a_turn_makes_of_its_rows_do_not_start_the_collector(given: int, meanwhile: int) -> None:
    gc.set_threshold(given, 7, 8)
    with prepared_worker():
        expect(100)
        expect(200)
        assert gc.get_threshold() == (meanwhile, 7, 8)
    assert gc.get_threshold() == (given, 7, 8)


def test_the_gc_threshold_of_a_process_that_is_no_worker_stays() -> None:
    gc.set_threshold(700, 7, 8)
    expect(1_000_000)
    assert gc.get_threshold() == (700, 7, 8)


def test_a_turn_expects_a_tuple_and_its_values_for_each_row_and_none_if_rows_stay_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def expected(declared: Any) -> list[int]:
        counted: list[int] = []
        monkeypatch.setattr(window_turn, "expect", counted.append)
        chain = Chain(topology_of(declared))
        chain.run({"source": [("a", 1), ("b", 4)]})
        chain.run({"source": [("a", 7)]})
        return counted

    assert expected(read) == [4, 2 + 4], "with the rows that were held"
    assert expected(added) == []


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
    monkeypatch.setattr(operator, "_modules", 0)
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
