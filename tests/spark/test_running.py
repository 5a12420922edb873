"""The life cycle of a query: what its watching thread does when Spark's query ends, fails or is stopped."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from windowing import millis, tumbling
from windowing.errors import CheckpointError, QueryStoppedError, SourceError, WorkerLostError
from windowing.execution.metrics import FiredWindow, RunMetrics, TaskMetrics, sealed
from windowing.spark import MemorySink, running, windowed
from windowing.spark.checkpoint import DRAINED_FILE, METRICS_FILE
from windowing.spark.failures import FailedQuery
from windowing.spark.metrics import TaskTotals
from windowing.spark.offsets import SkippedOffsets
from windowing.spark.output import SUMS
from windowing.spark.running import WindowedQuery
from windowing.spark.writer import BatchWriter


class Query:
    """Spark's query, which runs until it is stopped."""

    id = "the query"
    recentProgress = ()  # noqa: N815
    lastProgress: Any = None  # noqa: N815
    executor = "MultiBatchExecutor"

    def __init__(self) -> None:
        self.stopped = 0
        self.found_no_more = False

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        return self.stopped > 0

    @property
    def _jsq(self) -> Any:
        executor = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: self.executor))
        execution = SimpleNamespace(noNewData=lambda: self.found_no_more, triggerExecutor=lambda: executor)
        return SimpleNamespace(streamingQuery=lambda: execution)

    def stop(self) -> None:
        self.stopped += 1


class WithoutJvm(Query):
    """One whose JVM ends."""

    @property
    def lastProgress(self) -> Any:  # type: ignore[override]  # noqa: N802
        if self.stopped:
            raise ConnectionRefusedError("the JVM has gone")
        return None

    def stop(self) -> None:
        super().stop()
        raise ConnectionRefusedError("the JVM has gone")


SESSION: Any = SimpleNamespace(
    sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
)


class Stored(SimpleNamespace):
    """A checkpoint whose folders are all `own`; `packings` records by which packing a batch may be repeated."""

    spark = SESSION

    def __init__(self, own: Any = None) -> None:
        super().__init__(own=own, commits=own, control=own, packings=[])

    def await_cores(self, is_over: Callable[[], bool]) -> None:
        self.packings.append("any" if is_over() else "the same, unless it is stopped")

    def allow_other_packing(self) -> None:
        self.packings.append("any")

    def __str__(self) -> str:
        return "the checkpoint"


class Raising:
    def settle(self) -> None:
        problem = SourceError("spout 'in' raised in ack of batch 3")
        problem.add_note("In the sink of stream 'late'")
        problem.add_note("In a Python worker:\nits stack")
        raise problem


def writer_of(acks: Any) -> Any:
    """Return a writer that never writes."""
    numbers: dict[str, int] = {}
    return SimpleNamespace(
        name="sums",
        acks=acks,
        failure=None,
        calling=None,
        committed=lambda _: numbers,
        end=lambda: None,
    )


def watched(
    query: Query,
    acks: Any,
    totals: TaskTotals | None = None,
    checkpoint: Any = Stored(),  # noqa: B008
) -> WindowedQuery:
    """Return a query that runs until it is stopped."""
    writer = writer_of(acks=acks)
    plan: Any = SimpleNamespace(
        run=lambda: query,
        writer=writer,
        failed_query=FailedQuery("sums", "", None, checkpoint),
        checkpoint=checkpoint,
        totals=totals or TaskTotals("sums"),
        drawn=None,
        gaps=SkippedOffsets(),
        trigger={"processingTime": "1 milliseconds"},
    )
    found = WindowedQuery(plan, plan.run(), drain=False, finish=False, done=threading.Event())
    found._thread.start()
    return found


@pytest.mark.parametrize("kind", [Query, WithoutJvm])
def test_an_exception_in_ack_of_a_spout_stops_the_query(kind: type[Query]) -> None:
    query = kind()
    found = watched(query, Raising())
    with pytest.raises(SourceError, match="raised in ack of batch 3"):
        found.await_end(10)
    assert not found.is_active
    assert query.stopped == 1, "nobody watches it any more"
    found.stop()
    assert query.stopped == 1, "its JVM may be gone, and the error of that would hide its own"
    ended = found.metrics().ended
    assert ended is not None
    assert ended.endswith("raised in ack of batch 3. In the sink of stream 'late'"), "where it happened, and no stack"


def test_a_sink_can_stop_its_query_without_a_deadlock_and_it_stops_after_that_batch() -> None:
    written = threading.Event()

    class WaitsForTheSink(Query):
        def stop(self) -> None:
            assert written.wait(5), "Spark's stop waits for the sink, which waits for Spark's stop"
            super().stop()

    query = WaitsForTheSink()
    found = watched(query, None)
    found._spec.writer.calling = threading.get_ident(), written
    found.stop()
    assert query.stopped == 0
    written.set()
    assert found.await_end(10)
    assert query.stopped == 1


def test_a_stop_from_another_thread_does_not_wait_for_the_sink_but_for_the_end() -> None:
    query = Query()
    found = watched(query, None)
    found._spec.writer.calling = -1, threading.Event()
    found.stop()
    assert (query.stopped, found.is_active) == (1, False)


def test_a_spout_can_stop_its_query_in_ack_without_a_deadlock() -> None:
    made = threading.Event()

    class Stopping:
        def settle(self) -> None:
            assert made.wait(5)
            if not query.stopped:
                found.stop()

    query = Query()
    found = watched(query, Stopping())
    made.set()
    assert found.await_end(10)
    assert query.stopped == 1


def test_the_writer_exposes_the_thread_and_the_end_of_its_current_call() -> None:
    seen: list[Any] = []

    class Commits:
        def commit(self, output: Any, batch_id: int, writer: BatchWriter) -> None:
            assert writer.calling is not None
            seen.append(writer.calling)
            assert not writer.calling[1].is_set()
            writer._observed = dict.fromkeys((*SUMS, "turns"), 0)
            if batch_id:
                raise OSError("the disk is full")

    output: Any = mock.MagicMock()
    writer = BatchWriter("sums", output, {}, False, commits=Commits())
    writer.begin(output)
    writer(output, 0)
    with pytest.raises(OSError, match="full"):
        writer(output, 1)
    assert writer.calling is None
    assert [(thread, ended.is_set()) for thread, ended in seen] == [(threading.get_ident(), True)] * 2


def test_stop_is_not_called_on_a_query_that_ended_by_itself() -> None:
    query = Query()
    query.awaitTermination = lambda timeout=None: True  # type: ignore[method-assign]
    found = watched(query, None)
    assert found.await_end(10)
    assert query.stopped == 0


class Ended(Query):
    """A run of Spark that has ended; `found_no_more`: by itself, not by a stop."""

    def __init__(self, found_no_more: bool) -> None:
        super().__init__()
        self.stopped, self.found_no_more = 1, found_no_more


class Bounded:
    """The spec of an availableNow query: its runs, one after the other; `told` records the drain and the drained mark."""

    trigger: Any = {"availableNow": True}  # noqa: RUF012

    def __init__(self, *runs: Ended, commits: bool = True) -> None:
        self._runs, self.told = list(runs), list[str]()
        self.writer: Any = writer_of(acks=None)
        self.totals = TaskTotals("sums")
        self.checkpoint: Any = Stored(
            SimpleNamespace(
                exists=lambda name: commits,
                write=lambda name, content: self.told.append("marked") if name == DRAINED_FILE else None,
            )
        )

    @property
    def failed_query(self) -> FailedQuery:
        return FailedQuery("sums", str(self.checkpoint), None, self.checkpoint)

    def run(self) -> Any:
        return self._runs.pop(0)

    def ended(self, monkeypatch: pytest.MonkeyPatch, drain: bool, finish: bool = False) -> WindowedQuery:
        monkeypatch.setattr(running.control, "write_drain", lambda checkpoint: self.told.append("drain"))
        monkeypatch.setattr(running.control, "drain_batch", lambda checkpoint: 7)
        plan: Any = self
        query = WindowedQuery(plan, plan.run(), drain=drain, finish=finish, done=threading.Event())
        query._thread.start()
        return query


@pytest.mark.parametrize("drain", [False, True])
def test_a_query_stopped_from_outside_is_not_drained_and_await_end_raises(
    monkeypatch: pytest.MonkeyPatch, drain: bool
) -> None:
    plan = Bounded(Ended(found_no_more=False))
    with pytest.raises(QueryStoppedError, match=r"from outside before it .* again from checkpoint the checkpoint"):
        plan.ended(monkeypatch, drain).await_end(10)
    assert plan.told == []


def test_await_end_returns_after_the_end_of_the_input_and_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Bounded(Ended(found_no_more=True), Ended(found_no_more=False))
    assert plan.ended(monkeypatch, drain=True).await_end(10)
    assert plan.told == ["drain", "marked"], "the batch of the drain is committed, whoever ended the run after that"
    endless, stopped = Ended(found_no_more=False), threading.Event()
    endless.awaitTermination = lambda timeout=None: stopped.wait(10)  # type: ignore[method-assign]
    endless.stop = stopped.set  # type: ignore[method-assign]
    running_on = Bounded(endless)
    query = running_on.ended(monkeypatch, drain=True)
    query.stop()
    assert query.await_end(10)
    assert running_on.told == []


def test_stop_while_the_run_of_the_drain_is_starting_stops_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    drains, made = Ended(found_no_more=False), threading.Event()
    drains.stopped = 0

    class Starting(Bounded):
        def run(self) -> Any:
            if len(self._runs) == 1:
                assert made.wait(5)
                threading.Thread(target=query.stop).start()
                while not query._stopping:
                    time.sleep(0.01)
            return super().run()

    plan = Starting(Ended(found_no_more=True), drains)
    query = plan.ended(monkeypatch, drain=True)
    made.set()
    assert query.await_end(10)
    assert (drains.stopped, plan.told) == (1, ["drain"])


@pytest.mark.parametrize("finish", [False, True])
def test_a_checkpoint_is_not_marked_as_drained_if_the_query_was_stopped_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, finish: bool
) -> None:
    runs = [Ended(found_no_more=False)] if finish else [Ended(found_no_more=True), Ended(found_no_more=False)]
    plan = Bounded(*runs, commits=False)
    with pytest.raises(QueryStoppedError, match="while it drained; start it again"):
        plan.ended(monkeypatch, drain=True, finish=finish).await_end(10)
    assert "marked" not in plan.told


class Single(Ended):
    """A run that Spark executed as a single batch; `begun_before`: one that an earlier run had started."""

    executor = "SingleBatchExecutor"

    def __init__(self, begun_before: bool = False) -> None:
        super().__init__(found_no_more=False)
        phases = {"addBatch": 3} if begun_before else {"addBatch": 3, "latestOffset": 1}
        self.lastProgress = SimpleNamespace(batchId=4, durationMs=phases, timestamp="2026-01-01T00:00:00.000Z")


def test_a_committed_single_batch_is_the_end_of_a_source_without_available_now_support(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Bounded(Single(), Single())
    assert plan.ended(monkeypatch, drain=True).await_end(10)
    assert plan.told == ["drain", "marked"]
    stopped = Bounded(Single(), commits=False)
    with pytest.raises(QueryStoppedError, match="from outside before it had read all its input"):
        stopped.ended(monkeypatch, drain=True).await_end(10)
    assert stopped.told == []
    before_any = Single()
    before_any.lastProgress = None
    with pytest.raises(QueryStoppedError, match="from outside before it had read all its input"):
        Bounded(before_any).ended(monkeypatch, drain=False).await_end(10)


def test_a_committed_batch_of_several_is_not_the_end_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Single()
    first.executor = "MultiBatchExecutor"
    plan = Bounded(first)
    with pytest.raises(QueryStoppedError, match="from outside before it had read all its input"):
        plan.ended(monkeypatch, drain=True).await_end(10)
    assert plan.told == []


def test_a_single_batch_started_by_an_earlier_run_is_followed_by_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Bounded(Single(begun_before=True), Single())
    assert plan.ended(monkeypatch, drain=False).await_end(10)
    assert not plan._runs, "both runs were waited for"
    plan = Bounded(Single(begun_before=True), Ended(found_no_more=True))
    assert plan.ended(monkeypatch, drain=False).await_end(10), "and nothing may be there now"


class Unreached(Ended):
    """A run that Spark ends because a Python worker did not connect; `batches`: whether it has completed one before. While it
    waits for input, Spark reports progress too.
    """

    why = "Python worker failed to connect back."

    def __init__(self, batches: bool = False) -> None:
        super().__init__(found_no_more=False)
        phases = [{"addBatch": 3}, {"latestOffset": 1}] if batches else [{"latestOffset": 1}]
        self.recentProgress: Any = [SimpleNamespace(batchId=3, durationMs=each) for each in phases]

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        raise PySparkRuntimeError(f"terminated with exception: {self.why}")


class InAnotherOrder(Unreached):
    """A run that Spark ends because the rows of a lost shuffle file came in another order, when tasks had read the first one."""

    why = (
        "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and retried. However, Spark "
        "cannot rollback the ResultStage 3 to re-process the input data, and has to fail this job."
    )


def test_a_query_whose_worker_did_not_connect_is_restarted_also_while_it_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Bounded(Unreached(), Unreached(), Ended(found_no_more=True), Unreached(), Ended(found_no_more=False))
    assert plan.ended(monkeypatch, drain=True).await_end(10)
    assert plan.told == ["drain", "marked"]
    assert not plan._runs, "each run was waited for"
    assert plan.checkpoint.packings == ["the same, unless it is stopped"] * 3


def test_a_query_whose_rows_came_in_another_order_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Bounded(InAnotherOrder(), Ended(found_no_more=True))
    assert plan.ended(monkeypatch, drain=False).await_end(10)
    assert not plan._runs, "both runs were waited for"
    assert plan.checkpoint.packings == ["any"]


def test_a_query_is_restarted_at_most_twice_in_a_row_without_a_completed_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for runs, left in (
        ([Unreached()] * 3, 1),
        ([Unreached(), Unreached(), Unreached(batches=True), Unreached(), Unreached()], 1),
    ):
        plan = Bounded(*runs, Ended(found_no_more=True))
        with pytest.raises(WorkerLostError, match="did not connect in time"):
            plan.ended(monkeypatch, drain=False).await_end(10)
        assert len(plan._runs) == left


def test_a_failure_of_the_writer_is_raised_and_not_handled_as_a_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Bounded(Unreached(), Ended(found_no_more=True))
    plan.writer.failure = SourceError("the sink has no room")
    with pytest.raises(SourceError, match="no room"):
        plan.ended(monkeypatch, drain=False).await_end(10)
    assert len(plan._runs) == 1


def test_acks_are_opened_again_before_a_query_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Bounded(Unreached(), Ended(found_no_more=True))
    plan.writer.acks = SimpleNamespace(open=lambda: plan.told.append("opened"), settle=lambda: None)
    assert plan.ended(monkeypatch, drain=False).await_end(10)
    assert plan.told == ["opened"]


def test_an_error_after_the_session_was_stopped_is_raised_as_query_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Ended(found_no_more=False)
    query.awaitTermination = lambda timeout=None: 1 / 0  # type: ignore[method-assign,assignment]
    plan = Bounded(query)
    plan.checkpoint.spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(QueryStoppedError, match="the session ended while the query ran") as caught:
        plan.ended(monkeypatch, drain=True).await_end(10)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert plan.told == []


@pytest.mark.parametrize("broken", [False, True])
def test_metrics_are_stored_in_the_checkpoint_at_the_end_and_a_write_error_is_ignored(broken: bool) -> None:
    written: dict[str, bytes] = {}

    def write(name: str, content: bytes) -> None:
        if broken:
            raise OSError("the disk is full")
        written[name] = content

    totals = TaskTotals("words")
    totals.take({(4, 0): (1_000, (TaskMetrics("count", 0, executed=2, windows=(FiredWindow(5, "x"),)),))})
    query = Query()
    progress = {"durationMs": {"addBatch": 7}, "timestamp": "2026-01-01T00:00:01.500Z", "batchId": 4, "sources": []}
    query.lastProgress = SimpleNamespace(**progress)
    found = watched(query, None, totals, Stored(SimpleNamespace(write=write)))
    found.stop()
    assert found.exception is None
    if not broken:
        kept = RunMetrics.of(json.loads(written[METRICS_FILE]))
        assert kept == found.metrics()
        assert (kept.batch, kept.phases, kept.at_ms) == (4, {"addBatch": 7.0}, 1_767_225_601_500)
        assert kept.components()["count"].windows == (FiredWindow(5, "x"),)


def test_how_a_run_ended_is_stored_beside_the_numbers_of_the_last_batch() -> None:
    earlier = RunMetrics(name="sums", at_ms=5, tasks=(TaskMetrics("sums", 0, executed=9),), batch=3, ended="")
    written = {METRICS_FILE: sealed(earlier.plain())}
    own = SimpleNamespace(write=written.__setitem__, read=written.__getitem__, exists=written.__contains__)
    found = watched(Query(), Raising(), checkpoint=Stored(own))
    with pytest.raises(SourceError):
        found.await_end()
    kept = RunMetrics.of(json.loads(written[METRICS_FILE]))
    assert (kept.batch, kept.tasks) == (3, earlier.tasks)
    assert kept.ended == found.metrics().ended == f"with SourceError: {found.exception}. In the sink of stream 'late'"


def test_how_a_run_ended_is_stored_on_a_full_disk_in_place_of_the_last_numbers() -> None:
    earlier = RunMetrics(name="sums", at_ms=5, tasks=(TaskMetrics("sums", 0, executed=9),), batch=3, ended="")
    stored = {METRICS_FILE: sealed(earlier.plain())}

    def write(name: str, content: bytes) -> None:
        if name in stored:
            raise CheckpointError("cannot be used: java.io.IOException: No space left on device; make room there")
        stored[name] = content

    own = SimpleNamespace(write=write, read=stored.__getitem__, exists=stored.__contains__, delete=stored.__delitem__)
    found = watched(Query(), Raising(), checkpoint=Stored(own))
    with pytest.raises(SourceError):
        found.await_end()
    kept = RunMetrics.of(json.loads(stored[METRICS_FILE]))
    assert (kept.batch, kept.tasks) == (3, earlier.tasks)
    assert kept.ended == f"with SourceError: {found.exception}. In the sink of stream 'late'"


def test_the_numbers_of_the_input_are_stored_before_a_drain_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, bytes] = {}
    query = Query()
    progress = {"durationMs": {"addBatch": 7}, "timestamp": "2026-01-01T00:00:01.500Z", "batchId": 4, "sources": []}
    query.lastProgress = SimpleNamespace(**progress)
    own = SimpleNamespace(write=written.__setitem__, exists=written.__contains__)
    found = watched(query, None, checkpoint=Stored(own))
    monkeypatch.setattr(running.control, "write_drain", mock.Mock(side_effect=SourceError("the disk is full")))
    with pytest.raises(SourceError):
        found._make_drain()
    found.stop()
    kept = RunMetrics.of(json.loads(written[METRICS_FILE]))
    assert (kept.batch, kept.phases) == (4, {"addBatch": 7.0})


def test_a_query_ends_with_its_error_also_while_its_checkpoint_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_NOTE_EVERY_S", 0.05)
    answer = threading.Event()
    own = SimpleNamespace(exists=lambda name: answer.wait(), write=lambda *_: None)
    found = watched(Query(), Raising(), checkpoint=Stored(own))
    with pytest.raises(SourceError):
        found.await_end(20)
    answer.set()


def test_timestamps_that_are_probably_seconds_are_logged_once_in_a_run(caplog: pytest.LogCaptureFixture) -> None:
    totals = TaskTotals("counts", {"count": "secs"})
    for batch, watermark in enumerate([None, 1_700_000_000_000, 1_700_000_000, 1_700_000_060]):
        assert not caplog.records or batch == 3
        totals.take({(batch, 0): (1_000, (TaskMetrics("count", 0, watermark_ms=watermark),))})
    (record,) = caplog.records
    assert record.getMessage().startswith("counts: bolt 'count': its watermark is 1700000000, which as milliseconds")
    assert record.getMessage().endswith("timestamp=lambda row: row['secs'] * 1000, say")


def progress(batch: int, second: int, **phases: int) -> SimpleNamespace:
    return SimpleNamespace(
        durationMs=phases, timestamp=f"2026-01-01T00:00:{second:02}.000Z", batchId=batch, sources=[], observedMetrics={}
    )


def test_metrics_of_a_query_that_waits_for_data_are_those_of_its_last_batch() -> None:
    query = Query()
    found = watched(query, None, TaskTotals("words"))
    found.stop()

    def seen(latest: SimpleNamespace, *recent: SimpleNamespace) -> tuple[int | None, dict[str, float], int]:
        query.lastProgress, query.recentProgress = latest, [*recent, latest]
        metrics = found.metrics()
        return metrics.batch, dict(metrics.phases), metrics.at_ms // 1_000 - 1_767_225_600

    assert seen(progress(0, 1, latestOffset=2)) == (None, {}, 1)
    sixth = progress(6, 2, addBatch=9, latestOffset=1)
    waiting = [progress(7, second, latestOffset=1) for second in (12, 22)]
    assert seen(waiting[0], sixth) == (6, {"addBatch": 9.0, "latestOffset": 1.0}, 12)
    assert seen(waiting[1]) == (6, {"addBatch": 9.0, "latestOffset": 1.0}, 22), "also when Spark has forgotten batch 6"
    assert seen(progress(9, 30, latestOffset=1), progress(8, 25, addBatch=5)) == (8, {"addBatch": 5.0}, 30)
    assert seen(progress(9, 31, addBatch=4)) == (9, {"addBatch": 4.0}, 31)


def test_the_connection_in_which_spark_calls_the_writer_is_closed_at_the_end_of_each_run(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(millis(10), timestamp="at", output="n long")
    def counted(window: Any) -> int:
        return len(window)

    given = feed("at long").add([{"at": 1}], [{"at": 25}])

    def left_by(name: str, drain: bool) -> int:
        """Return the number of ends of such connections after another query."""
        started = windowed(counted, given.read()).start(MemorySink(), str(tmp_path / name), drain=drain)
        assert started.await_end(180)
        return connections()

    def connections() -> int:
        gateway: Any = spark.sparkContext._gateway
        port = gateway._callback_server.port
        held = [each for each in psutil.net_connections("tcp") if each.pid is not None]  # by a process
        return sum(port in (*each.laddr[1:], *each.raddr[1:]) for each in held)

    before, after = left_by("first", drain=False), left_by("second", drain=True)  # what remains is of the session
    until = time.monotonic() + 20
    while after > before and time.monotonic() < until:
        time.sleep(0.2)
        after = connections()
    assert after <= before


WITHOUT_JVM = """
import os, signal, sys, time
from pyspark import SparkContext
from windowing import WindowingError, count, seconds, tumbling
from windowing.spark import MemorySink, session, windowed


@tumbling(count(2), output="n long")
def pairs(window):
    return [len(window.get())]


folder = sys.argv[1]
spark = session("killed", cores=1)
spark.createDataFrame([(1,), (2,)], "n long").write.json(f"{folder}/in")
rows = spark.readStream.schema("n long").json(f"{folder}/in")
ended = windowed(pairs, rows).start(MemorySink(), f"{folder}/ended")
ended.await_end()
running, stopped = (windowed(pairs, rows).start(MemorySink(), f"{folder}/{n}", trigger=seconds(1)) for n in range(2))
while not (running.progress and stopped.progress):
    time.sleep(0.05)
stream = windowed(pairs, rows)
os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
stopped.stop()
arguments = {("WindowedStream", "start"): (MemorySink(), f"{folder}/new"), ("WindowedQuery", "await_end"): (60,)}


def said(member):
    try:
        found = member()
    except WindowingError as error:
        return error.code
    except Exception as error:
        return f"raised {error!r}"
    if hasattr(found, "close"):
        found.close()
    return type(found).__name__


for what, each in {"ended": ended, "running": running, "stopped": stopped, "stream": stream}.items():
    kind = type(each)
    for name in sorted(name for name in dir(kind) if not name.startswith("_") and name not in ("bolt", "spark_query")):
        if isinstance(vars(kind).get(name), classmethod):
            continue
        given = arguments.get((kind.__name__, name), ())
        print(what, name, said(lambda: found(*given) if callable(found := getattr(each, name)) else found))
    for shown in (repr, kind.__getattribute__(each, "_repr_html_") if hasattr(kind, "_repr_html_") else repr):
        print(what, "shown", said(lambda: shown(each) if shown is repr else shown()))
print("stream item", said(lambda: stream["default"]))
print("anew windowed", said(lambda: windowed(pairs, rows)))
print("anew session", said(lambda: session("again")))
"""


@pytest.mark.spark
def test_after_the_jvm_was_killed_every_public_member_of_a_query_gives_its_last_value_or_an_error_that_says_so(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", WITHOUT_JVM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {(what, name): said for what, name, said in (line.split(" ", 2) for line in done.stdout.splitlines())}
    members = {"await_end", "exception", "id", "is_active", "metrics", "progress", "shown", "stop", "ui"}
    of_query = {
        "shown": "str",
        "id": "str",
        "is_active": "bool",
        "metrics": "RunMetrics",
        "progress": "list",
        "ui": "LivePage",
    }
    for query in ("ended", "running", "stopped"):
        assert {name for what, name in found if what == query} == members
        assert {name: found[query, name] for name in of_query} == of_query
        assert found[query, "stop"] == "NoneType"
    assert (found["ended", "await_end"], found["ended", "exception"]) == ("bool", "NoneType")
    for query in ("running", "stopped"):
        assert (found[query, "await_end"], found[query, "exception"]) == ("STOPPED", "QueryStoppedError")
    assert (found["stream", "start"], found["stream", "streams"]) == ("SESSION", "SESSION")
    assert (found["stream", "shown"], found["stream", "tasks"]) == ("str", "int")
    assert (found["stream", "item"], found["anew", "windowed"], found["anew", "session"]) == ("SESSION",) * 3
