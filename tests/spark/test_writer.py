"""One Spark job per batch: output is written once and then counted, and the output of an empty batch is removed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from windowing.errors import SinkError
from windowing.spark import ParquetSink, writer
from windowing.spark.output import SUMS, Layout
from windowing.spark.trident_commits import released
from windowing.spark.writer import BatchWriter, SinkStreams


def test_rows_are_released_at_the_end_and_an_error_before_is_the_one_that_is_told() -> None:
    calls, broken = list[str](), list[str]()

    def unpersist() -> None:
        calls.append("unpersist")
        if broken:
            raise ConnectionError("the connection is broken")

    rows = cast(Any, SimpleNamespace(unpersist=unpersist))
    with released(rows):
        assert not calls
    with pytest.raises(KeyboardInterrupt), released(rows):
        raise KeyboardInterrupt
    broken.append("by an interruption")
    with pytest.raises(ZeroDivisionError), released(rows):
        raise ZeroDivisionError
    with pytest.raises(ConnectionError), released(rows):
        pass
    assert calls == ["unpersist"] * 4


class Batches:
    """A stand-in for Spark that records the calls of a writer, in order. rows, late: the number of rows and of late tuples of each
    batch.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rows: dict[int, int], late: Sequence[int] = (), log_late: bool = False
    ) -> None:
        self.happened: list[tuple[Any, ...]] = []
        self.rows, self.late, self.problem = rows, late, dict[int, Exception]()
        self.evaluated: int | None = None
        conf = SimpleNamespace(get=lambda name, _: None, set=self._set, unset=self._unset)
        context = SimpleNamespace(setLocalProperty=lambda *_: None, setJobDescription=lambda _: None)
        self.output = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf, sparkContext=context))
        column = SimpleNamespace(alias=lambda _: None)
        streams = SimpleNamespace(
            columns=lambda stream: [],
            condition=lambda stream: "",
            count=lambda stream: column,
            late=lambda: column,
            largest=lambda: column,
        )
        monkeypatch.setattr(ParquetSink, "write", lambda _, rows, batch: self._write(batch))
        monkeypatch.setattr(ParquetSink, "skip", lambda _, batch: self.happened.append(("skip", batch)))
        self.writer = BatchWriter("bolt", cast(Any, streams), {"default": ParquetSink("out")}, log_late)
        monkeypatch.setattr(self.writer, "_rows", lambda output, stream: output)
        self.writer.begin(cast(Any, self.output.sparkSession))
        monkeypatch.setattr(self.writer, "_last", SimpleNamespace(observed=self._counted, clock=lambda: 0))
        self.writer.attach(2, True, "bolt x2")

    def make(self, batch: int) -> list[tuple[Any, ...]]:
        """Write a batch, and return the recorded calls."""
        self.happened.clear()
        self.writer(cast(Any, self.output), batch)
        return list(self.happened)

    def _write(self, batch: int) -> None:
        self.happened.append(("write", batch))
        if batch in self.problem:
            raise self.problem.pop(batch)
        self.evaluated = batch

    def _counted(self) -> dict[str, int]:
        assert self.evaluated is not None, "counted before anything was evaluated"
        self.happened.append(("count", self.evaluated))
        metrics = dict.fromkeys((*SUMS, "watermark", "watermarks", "now", "turns"), 0)
        late = self.late[self.evaluated] if self.late else 0
        return {**metrics, "fired": self.evaluated, "_count0": self.rows[self.evaluated], "_largest": 10, "_late": late}

    def _set(self, *_: str) -> None:
        self.happened.append(("no limit",))

    def _unset(self, *_: str) -> None:
        self.happened.append(("limit",))


def test_a_batch_is_written_once_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, {0: 5, 1: 3})
    assert batches.make(0) == [("write", 0), ("count", 0)]
    assert batches.make(1) == [("no limit",), ("write", 1), ("limit",), ("count", 1)]


def test_the_output_of_an_empty_batch_is_removed_after_its_rows_were_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = Batches(monkeypatch, {0: 5, 1: 0, 2: 3})
    assert ("skip", 0) not in batches.make(0)
    assert batches.make(1)[-2:] == [("count", 1), ("skip", 1)]
    assert ("skip", 2) not in batches.make(2)


def test_a_replayed_batch_is_written_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, {0: 5})
    first = batches.make(0)
    again = batches.make(0)
    assert [each for each in again if each[0] != "no limit" and each[0] != "limit"] == first


def test_the_error_that_broke_the_connection_is_told_and_not_that_of_the_release_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("the connection is broken")

    def interrupted(*_: Any) -> None:
        raise InterruptedError("stop()")

    batches = Batches(monkeypatch, {0: 5})
    batches.output.persist, batches.output.unpersist = (lambda: None), fail
    monkeypatch.setattr(batches.writer, "_is_one_job", False)
    monkeypatch.setattr(batches.writer, "_evaluated", interrupted)
    with pytest.raises(InterruptedError):
        batches.make(0)
    assert isinstance(batches.writer.failure, InterruptedError)


def test_a_failed_job_is_not_counted_and_its_batch_is_the_failed_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, {0: 5, 1: 0})
    batches.make(0)
    batches.problem[1] = SinkError("out/batch_id=000000000001 cannot be used")
    with pytest.raises(SinkError):
        batches.make(1)
    assert batches.happened == [("no limit",), ("write", 1), ("limit",)], "nothing is counted or removed"
    assert batches.writer.failed_batch == 1
    assert isinstance(batches.writer.failure, SinkError)


def test_progress_has_each_of_the_newest_batches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_KEPT_BATCHES", 3)
    batches = Batches(monkeypatch, dict.fromkeys(range(6), 1))
    for batch in (0, 1, 2, 3, 4, 4):
        batches.make(batch)
    batches.problem[5] = SinkError("out/batch_id=000000000005 cannot be used")
    with pytest.raises(SinkError):
        batches.make(5)
    assert [(each.batch_id, each.windows_fired) for each in batches.writer.progress] == [
        (2, 2),
        (3, 3),
        (4, 4),
    ]


def test_late_tuples_that_went_nowhere_are_logged_once_a_minute_and_all_others_at_the_end_of_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def writer_of_a_run(log_late: bool) -> BatchWriter:
        writer = BatchWriter("b", Layout({}), {}, log_late)
        writer._last = cast(Any, SimpleNamespace(close=lambda: None))
        return writer

    writer = writer_of_a_run(True)
    for late in (1, 5, None, 7):
        writer._say_late({"_late": late})
    assert ["1 late or unusable tuples" in each.getMessage() for each in caplog.records] == [True]
    writer.end()
    assert ["12 late or unusable tuples" in each.getMessage() for each in caplog.records] == [False, True]
    writer.end()
    unread = writer_of_a_run(False)
    unread._say_late({"_late": 3})
    unread.end()
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("log_late", "told"), [(True, ["2", "7"]), (False, [])])
def test_late_tuples_that_go_nowhere_are_logged_at_most_once_a_minute_with_their_number(
    log_late: bool, told: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(monkeypatch, dict.fromkeys(range(4), 1), (0, 2, 3, 4), log_late)
    for batch, at_s in enumerate((100.0, 101.0, 160.5, 161.0)):
        monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda at_s=at_s: at_s))
        batches.make(batch)
    assert re.findall(r"'bolt': (\d+) late or unusable tuples went nowhere", caplog.text) == told


def test_found_in_counts_rows_like_the_aggregates_of_spark(spark: SparkSession) -> None:
    kinds = list(product(("out", "metric", "done", "ack"), "abc", ("late", "invalid", "bytes", None)))
    rows = [(*each, 10**number % 7 + number, 0, bytes([number])) for number, each in enumerate(kinds * 2)]
    streams = SinkStreams({"one": ("a", "v long"), "two": ("b", "v long"), "none": ("d", "v long")}, ("a", "c"))
    columns = "kind string, stream string, source string, value long, sequence int, data binary"
    table = spark.createDataFrame(rows, columns)
    counting = [streams.count(name).alias(f"_count{number}") for number, name in enumerate(("one", "two", "none"))]
    counts = table.agg(*counting, streams.late().alias("_late"), streams.largest().alias("_largest")).first()
    found = streams.found_in(streams.for_driver(table))
    assert found.pop("acks") == [row[-1] for row in rows if row[0] == "ack"]
    assert found == {name: count or 0 for name, count in counts.asDict().items()}
    assert found["_late"] > 0
