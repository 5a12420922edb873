"""Spark's limit of bytes per Arrow batch: lifted after a small batch, while a batch is evaluated, unless the user has set one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from windowing.spark import FunctionSink, MemorySink, submit
from windowing.spark.settings import LIMIT, SMALL_BYTES, ArrowBatchLimit
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

NONE = str(2**31 - 1)


class Session:
    """What a Handover asks of a session."""

    def __init__(self, **given: str) -> None:
        self.given = dict(given)

    @property
    def conf(self) -> Session:
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.given.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.given[name] = value

    def unset(self, name: str) -> None:
        del self.given[name]


def inside(handover: ArrowBatchLimit, session: Any) -> dict[str, str]:
    with handover.of_batch(session):
        return dict(session.given)


def test_the_first_batch_keeps_the_limit_and_the_batch_after_a_small_one_goes_without() -> None:
    handover, session = ArrowBatchLimit(), Session(other="x")
    assert inside(handover, session) == {"other": "x"}
    for largest, lifted in ((SMALL_BYTES, True), (SMALL_BYTES + 1, False), (0, True), (None, True)):
        handover.took(largest)
        assert inside(handover, session) == ({"other": "x", LIMIT: NONE} if lifted else {"other": "x"})
        assert session.given == {"other": "x"}


def test_a_limit_of_the_users_stays() -> None:
    handover, session = ArrowBatchLimit(), Session(**{LIMIT: "1m"})
    handover.took(1)
    assert inside(handover, session) == session.given == {LIMIT: "1m"}


def test_a_batch_that_fails_leaves_the_limit_as_it_was() -> None:
    handover, session = ArrowBatchLimit(), Session()
    handover.took(1)
    with pytest.raises(ZeroDivisionError), handover.of_batch(session):  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert session.given == {}


@tumbling(seconds(1), timestamp="ts", output="at long, told string")
def telling(window: Any) -> tuple[int, str | None]:
    context = TaskContext.get()
    return window.end_timestamp, None if context is None else context.getLocalProperty(LIMIT)


def seen(feed: Callable[..., Any], run: Callable[..., Any]) -> tuple[list[str | None], list[str]]:
    """Return the limit that workers have at the second and the third batch, and the one that the sink's session has."""
    told: list[str | None] = []
    sinks: list[str] = []

    def keep(rows: Any, _: int) -> None:
        sinks.append(rows.sparkSession.conf.get(LIMIT))
        told.extend(row.told for row in rows.collect())

    source = feed().add(*([{"k": "a", "ts": ts, "v": 1.0}] for ts in (500, 1500, 2500)))
    run(telling, source.read(), sinks={"default": FunctionSink(keep)})
    return told, sinks


def test_workers_go_without_the_limit_from_the_second_batch_on_and_sinks_do_not(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    told, sinks = seen(feed, run)
    assert told == [NONE] * 2
    assert len(sinks) == 2
    assert NONE not in sinks


def test_a_topology_goes_without_the_limit_too(spark: SparkSession, feed: Callable[..., Any], tmp_path: Path) -> None:
    made = TopologyBuilder("told")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("rows", InputSpout("ts long"))
    made.set_bolt("telling", telling).global_grouping("rows")
    source, sink = feed("ts long").add(*([{"ts": ts}] for ts in (500, 1500, 2500))), MemorySink()
    query = submit(
        made.build(), spark, sources={"rows": source.read()}, sinks={"telling": sink}, checkpoint=str(tmp_path / "c")
    )
    assert query.await_end(180)
    assert [row.told for row in sink.rows] == [NONE] * 2
