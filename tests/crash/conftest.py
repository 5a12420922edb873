"""Common parts of the crash tests: one input, and one run of each definition without a kill."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.crash import harness, job
from tests.crash.harness import Outputs, assert_nothing_lost, finish, input_rows, outputs, write_input
from tests.crash.job import Job

for module in (harness, job):
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the workers do not see the tests


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input of all batches; it is never changed."""
    return write_input(tmp_path_factory.mktemp("input") / "all")


@pytest.fixture(scope="session")
def undisturbed(spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outputs]:
    """Return the outputs of a run without a kill; each definition runs once."""
    known: dict[tuple[str, tuple[str, ...]], Outputs] = {}

    def outputs_of(name: str, order_by: tuple[str, ...] = ()) -> Outputs:
        if (name, order_by) not in known:
            run = Job(name, str(source), str(tmp_path_factory.mktemp(name)), order_by=order_by)
            finish(spark, run)
            found = outputs(run)
            assert_nothing_lost(found, input_rows())
            reasons = {row["reason"] for rows in found["late"].values() for row in rows}
            assert reasons == {"late", "invalid", "future"}, "the input proves too little"
            assert set(found["default"]) == set(range(harness.BATCHES + 1)), "each batch should fire windows"
            known[name, order_by] = found
        return known[name, order_by]

    return outputs_of


@pytest.fixture
def job_of(source: Path, tmp_path: Path) -> Callable[..., Job]:
    """Return a job of this test, on the common input."""

    def make(name: str, **options: object) -> Job:
        return Job(name, str(source), str(tmp_path / "job"), **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def _halves(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, tuple[str, ...], bool], tuple[Job, Path]]:
    return {}


@pytest.fixture
def halfway(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    _halves: dict[tuple[str, tuple[str, ...], bool], tuple[Job, Path]],
) -> Callable[..., Job]:
    """Return a job that has done HALF of its batches, and with `pending` has begun the next; the input has more batches."""

    def make(name: str, order_by: tuple[str, ...] = (), pending: bool = False) -> Job:
        key = (name, order_by, pending)
        if key not in _halves:
            home = tmp_path_factory.mktemp("half")
            started = Job(name, str(home / "in"), str(home / "job"), order_by=order_by)
            harness.run_halfway(spark, started, pending)
            shutil.copytree(started.folder, home / "pristine")
            _halves[key] = started, home / "pristine"
        found, pristine = _halves[key]
        harness.restored(pristine, Path(found.folder))
        return found

    return make
