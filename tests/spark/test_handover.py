"""Optimizations of later batches: Spark's limit of bytes per Arrow batch is lifted after a small batch while a batch is evaluated,
unless the user has set it; no code is compiled again for a batch; and it makes few calls of the JVM.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from windowing.spark import FunctionSink, ParquetSink, submit
from windowing.spark.writer import LIMIT, SMALL_BYTES, ArrowBatchLimit, BatchWriter
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import tumbling
from windowing.windows.measures import seconds

NONE = str(2**31 - 1)
IN_ONE_JOB, OF_A_TOPOLOGY = 25, 47
"""The largest allowed numbers of calls. Five of them read how files are packed (`keep_packing` of spark/checkpoint.py)."""


class Session:
    """The part of a session that `ArrowBatchLimit` uses."""

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


def test_the_limit_is_lifted_only_after_a_small_batch() -> None:
    session: Any = Session(other="x")
    handover = ArrowBatchLimit(session)
    assert inside(handover, session) == {"other": "x"}
    for largest, lifted in ((SMALL_BYTES, True), (SMALL_BYTES + 1, False), (0, True), (None, True)):
        handover.took(largest)
        assert inside(handover, session) == ({"other": "x", LIMIT: NONE} if lifted else {"other": "x"})
        assert session.given == {"other": "x"}


def test_a_limit_set_by_the_user_is_kept() -> None:
    session: Any = Session(**{LIMIT: "1m"})
    handover = ArrowBatchLimit(session)
    handover.took(1)
    assert inside(handover, session) == session.given == {LIMIT: "1m"}


def test_a_failed_batch_restores_the_limit() -> None:
    session: Any = Session()
    handover = ArrowBatchLimit(session)
    handover.took(1)
    with pytest.raises(ZeroDivisionError), handover.of_batch(session):
        raise ZeroDivisionError
    assert session.given == {}


@tumbling(seconds(1), timestamp="ts", output="at long, told string")
def telling(window: Any) -> tuple[int, str | None]:
    context = TaskContext.get()
    return window.end_timestamp, None if context is None else context.getLocalProperty(LIMIT)


class Told:
    """A sink that records the limit in the workers and in its session, and the number of classes compiled so far."""

    def __init__(self) -> None:
        self.workers: list[str | None] = []
        self.sessions: list[str] = []
        self.compiled: list[int] = []

    def __call__(self, rows: Any, _: int) -> None:
        self.sessions.append(rows.sparkSession.conf.get(LIMIT))
        self.workers.extend(row.told for row in rows.collect())
        metrics = rows.sparkSession.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics
        self.compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())


TIMES = (500, 1500, 2500, 3500, 4500)


def test_from_the_second_batch_workers_have_no_limit_sinks_keep_it_and_no_code_is_compiled(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    told, source = Told(), feed().add(*([{"k": "a", "ts": ts, "v": 1.0}] for ts in TIMES))
    run(telling, source.read(), sinks={"default": FunctionSink(told)})
    assert told.workers == [NONE] * 4
    assert len(told.sessions) == 4
    assert NONE not in told.sessions
    assert told.compiled[-1] == told.compiled[1]


def test_the_limit_is_lifted_for_a_topology_too(spark: SparkSession, feed: Callable[..., Any], tmp_path: Path) -> None:
    made = TopologyBuilder("told")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("rows", InputSpout("ts long"))
    made.set_bolt("telling", telling).global_grouping("rows")
    told, source = Told(), feed("ts long").add(*([{"ts": ts}] for ts in TIMES))
    query = submit(
        made.build(),
        spark,
        sources={"rows": source.read()},
        sinks={"telling": FunctionSink(told)},
        checkpoint=str(tmp_path / "c"),
    )
    assert query.await_end(180)
    assert told.workers == [NONE] * 4
    assert told.compiled[-1] == told.compiled[1]


class Calls:
    """The number of calls of the JVM that each batch makes in its own thread, without those that release objects."""

    def __init__(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[int] = []
        self.now: dict[int, int] = {}
        client: Any = type(cast(Any, spark.sparkContext)._gateway._gateway_client)
        send, write = client.send_command, BatchWriter.__call__

        def counted(client: Any, command: str, *more: Any, **named: Any) -> Any:
            if (me := threading.get_ident()) in self.now and not command.startswith("m\n"):
                self.now[me] += 1
            return send(client, command, *more, **named)

        def written(writer: BatchWriter, output: Any, batch_id: int) -> None:
            self.now[threading.get_ident()] = 0
            write(writer, output, batch_id)
            self.of.append(self.now.pop(threading.get_ident()))

        monkeypatch.setattr(client, "send_command", counted)
        monkeypatch.setattr(BatchWriter, "__call__", written)


def test_a_later_batch_of_a_bolt_makes_few_calls_of_the_jvm(
    feed: Callable[..., Any],
    run: Callable[..., Any],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, source = Calls(spark, monkeypatch), feed().add(*([{"k": "a", "ts": ts, "v": 1.0}] for ts in TIMES))
    run(telling, source.read(), sinks={"default": ParquetSink(str(tmp_path / "out"))})
    assert calls.of[-1] <= IN_ONE_JOB, calls.of


def test_a_later_batch_of_a_topology_makes_few_calls_of_the_jvm(
    feed: Callable[..., Any], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TopologyBuilder("told")
    made.configure({"topology.enable.message.timeouts": False})
    made.set_spout("rows", InputSpout("ts long"))
    made.set_bolt("telling", telling).global_grouping("rows")
    calls, source = Calls(spark, monkeypatch), feed("ts long").add(*([{"ts": ts}] for ts in TIMES))
    sinks = {name: ParquetSink(str(tmp_path / name)) for name in ("rows", "telling")}
    query = submit(
        made.build(), spark, sources={"rows": source.read()}, sinks=sinks, checkpoint=str(tmp_path / "c"), partitions=8
    )
    assert query.await_end(180)
    assert calls.of[-1] <= OF_A_TOPOLOGY, calls.of
