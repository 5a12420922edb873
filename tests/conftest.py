"""What all tests share: Hypothesis profiles, and one Spark session for the tests that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES, LONG_EXAMPLES = 40, 500  # in `make test`; in `make crash` and `make fuzz`
UNDECLARED_MINUTES = 0.35  # a long proof on Spark that is none of the longest, on a slow machine

SPARK_FOLDERS = (
    "spark",
    "services",
    "cluster",
    "object_stores",
)  # what is in the others, and each long proof, has a command that looks everywhere

# A JVM of the tests lives for seconds: without the optimizing compiler it does the same in half the time on two busy cores.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No bound on time: on a busy machine a test may stand still for seconds. The same examples each time: that a run is red is the
# doing of a change, never of chance; `make fuzz` draws new ones.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", derandomize=True, max_examples=EXAMPLES, **TIMELESS)
settings.register_profile("long", derandomize=True, max_examples=LONG_EXAMPLES, **TIMELESS)
settings.register_profile("fuzz", derandomize=False, max_examples=LONG_EXAMPLES, **TIMELESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")


# Small batches: to compile what Spark generates for them takes longer than to interpret them. Jobs that tests start as processes
# of their own, those that are killed too, run what Spark generates.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/3`: the second of three parts of the selected tests, about as long as the others; together they are all of them."""
    parser.addoption(
        "--part", default="1/1", metavar="K/N", help="run only the K-th of N parts, which take equally long"
    )


def minutes(item: pytest.Item) -> float:
    """Return how long a test takes: what its mark declares, `crash(minutes=5)`, or what most take."""
    mark = item.get_closest_marker("crash")
    return float(mark.kwargs.get("minutes", UNDECLARED_MINUTES)) if mark else UNDECLARED_MINUTES


def parts_of(items: list[pytest.Item], parts: int) -> list[int]:
    """Return the part of each test: the longest first, each to the part that is shortest so far."""
    part, so_far = [0] * len(items), [0.0] * parts
    for number in sorted(range(len(items)), key=lambda number: -minutes(items[number])):
        part[number] = min(range(parts), key=so_far.__getitem__)
        so_far[part[number]] += minutes(items[number])
    return part


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's selection by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark every test that uses the fixture `spark`, so that `-m "not spark"` never starts a JVM; then take the asked part."""
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
