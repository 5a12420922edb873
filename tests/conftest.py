"""What all tests share: Hypothesis profiles, and one Spark session for the tests that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = 100

# A JVM of the tests lives for seconds: without the optimizing compiler it does the same in half the time on two busy cores.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No bound on time: on a busy machine a test may stand still for seconds. The same examples each time: that a run is red is the
# doing of a change, never of chance; `make fuzz` draws new ones.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("default", derandomize=True, max_examples=EXAMPLES, **TIMELESS)
settings.register_profile("long", derandomize=True, max_examples=5 * EXAMPLES, **TIMELESS)
settings.register_profile("fuzz", derandomize=False, max_examples=5 * EXAMPLES, **TIMELESS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/3`: of the tests that are selected every third, from the second on; the parts together are all of them."""
    parser.addoption("--part", default="1/1", metavar="K/N", help="run only every N-th test, from the K-th on")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest's selection by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark every test that uses the fixture `spark`, so that `-m "not spark"` never starts a JVM; then take the asked part."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    yield
    part, parts = map(int, config.getoption("part").split("/"))
    config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % parts != part - 1])
    items[:] = items[part - 1 :: parts]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: starting one takes 7 to 18 seconds."""
    from windowing.spark import session

    running = session("tests", cores=2)
    yield running
    running.stop()
