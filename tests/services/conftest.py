"""The servers of `make services`; every test in this folder is marked `services`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
SERVERS = ["postgres", "redis"]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("services")


def address(server: str) -> str:
    """Return the URL of a server, with its password."""
    file = ROOT / ".services" / "addresses"
    if not file.exists():
        pytest.fail("the servers do not run here: start them with make services", pytrace=False)
    lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
    return lines[f"WINDOWING_{server.upper()}_URL"]


def empty(server: str) -> None:
    """Remove everything that earlier tests have stored."""
    if server == "redis":
        with redis.Redis.from_url(address("redis")) as client:
            client.flushdb()
        return
    with psycopg.connect(address("postgres"), autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")


@contextmanager
def evicting(db: redis.Redis) -> Iterator[None]:
    """Let the server evict keys when its memory is full."""
    db.config_set("maxmemory", "8gb")
    db.config_set("maxmemory-policy", "allkeys-lru")
    try:
        yield
    finally:
        db.config_set("maxmemory", "0")
        db.config_set("maxmemory-policy", "noeviction")


@contextmanager
def without_room(db: redis.Redis) -> Iterator[None]:
    """Let the server refuse what needs memory."""
    db.config_set("maxmemory", "1")
    try:
        yield
    finally:
        db.config_set("maxmemory", "0")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of the tests here: it has Spark's connector to Kafka."""
    from windowing.spark import session

    jars = ",".join(str(jar) for jar in sorted((ROOT / ".services/kafka/connector").glob("*.jar")))
    running = session("services", cores=2, **{"spark.jars": jars})
    yield running
    running.stop()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    """The name of a server that has nothing stored."""
    empty(request.param)
    return str(request.param)
