"""Fixtures of all tests: Hypothesis profiles, `--part`, and one Spark session for the tests that use it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import windowing  # noqa: F401 - pytest would make a second module of a file with doctests that the package then imports by itself

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES, LONG_EXAMPLES = 40, 500  # in `make test`; in `make crash` and `make fuzz`
UNDECLARED_MINUTES = 0.35  # a typical long test on Spark, on a slow machine

# The commands for the tests without Spark and for the long tests search all folders.
SPARK_FOLDERS = ("spark", "services", "cluster", "object_stores")

# A JVM of the tests runs for seconds: without the optimizing compiler it needs half the time on two busy cores. With the 48 MB for
# compiled code that Java would give that compiler alone, 6 % of the time went into looking for code to throw away. On a local disk
# Hadoop starts `chmod` for each file and folder, 40 times for a query; without the process that Java puts between by default, each
# takes 3.0 ms of CPU in place of 3.8 ms.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Djdk.lang.Process.launchMechanism=VFORK",
)

# No deadline: on a busy machine a test may stall for seconds. Every run uses the same examples, so that only a change can make it
# fail; `make fuzz` draws new ones.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", derandomize=True, max_examples=EXAMPLES, **TIMELESS)
settings.register_profile("long", derandomize=True, max_examples=LONG_EXAMPLES, **TIMELESS)
settings.register_profile("fuzz", derandomize=False, max_examples=LONG_EXAMPLES, **TIMELESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")


# For small batches, compiling Spark's generated code takes longer than interpreting the plan. Jobs that tests start as separate
# processes use generated code.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/3`: run the second of three parts of the selected tests, which take about equally long."""
    parser.addoption(
        "--part", default="1/1", metavar="K/N", help="run only the K-th of N parts, which take equally long"
    )


def minutes(item: pytest.Item) -> float:
    """Return the minutes of a test: those of its mark, `crash(minutes=5)`, or the default."""
    mark = item.get_closest_marker("crash")
    return float(mark.kwargs.get("minutes", UNDECLARED_MINUTES)) if mark else UNDECLARED_MINUTES


def parts_of(items: list[pytest.Item], parts: int) -> list[int]:
    """Return the part of each test: the longest tests first, each to the shortest part so far."""
    part, so_far = [0] * len(items), [0.0] * parts
    for number in sorted(range(len(items)), key=lambda number: -minutes(items[number])):
        part[number] = min(range(parts), key=so_far.__getitem__)
        so_far[part[number]] += minutes(items[number])
    return part


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Collect without looking for garbage, which takes half of the time: modules and tests stay. No later search looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's selection by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark every test with the fixture `spark`, so that `-m "not spark"` never starts a JVM; then select the part of `--part`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        apart = item.get_closest_marker("crash") or not item.path.name.startswith("test_")
        if item.get_closest_marker("spark") and not apart and item.path.parent.name not in SPARK_FOLDERS:
            raise pytest.UsageError(f"{item.nodeid} needs Spark: tests/spark is where `make test` looks for it")
    yield
    part, parts = map(int, config.getoption("part").split("/"))
    chosen = parts_of(items, parts)
    config.hook.pytest_deselected(items=[item for item, its in zip(items, chosen, strict=True) if its != part - 1])
    items[:] = [item for item, its in zip(items, chosen, strict=True) if its == part - 1]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: starting one takes 7 to 18 seconds."""
    from windowing.spark import session

    running = session("tests", cores=2, **INTERPRETED)
    yield running
    running.stop()
