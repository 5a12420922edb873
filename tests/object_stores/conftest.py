"""The servers of `make object-stores`; every test in this folder is marked `object_stores`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("object_stores")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of the tests here: it has what S3 needs."""
    from tests.object_stores.jobs import HOME, settings
    from windowing.spark import session

    if not (HOME / "addresses").exists():
        pytest.fail("HDFS and S3 do not run here: start them with make object-stores", pytrace=False)
    running = session("stores", cores=2, **settings())
    yield running
    running.stop()


@pytest.fixture(params=["hdfs", "s3a"])
def there(request: pytest.FixtureRequest, spark: SparkSession) -> str:
    """A folder on a store that is not there yet."""
    from tests.object_stores.jobs import folders

    return f"{folders()[request.param]}/{uuid4().hex}"
