"""windowed(): streaming DataFrames in, streams out, as one query; and the pitfalls of Spark that it avoids."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType

from windowing.errors import (
    CheckpointError,
    ConfigError,
    DefinitionChangedError,
    DrainedCheckpointError,
    QueryStoppedError,
)
from windowing.spark import FunctionSink, MemorySink, MetricsListener, ParquetSink, check, control, submit, windowed
from windowing.spark.control import DRAIN_FILE
from windowing.spark.sinks import OutputOwner
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import sliding, tumbling, windowed_bolt
from windowing.windows import aggregate as agg
from windowing.windows.measures import count, millis, seconds

LENGTH, SLIDE = 4000, 2000
LOCK = threading.Lock()


@sliding(
    seconds(4),
    seconds(2),
    timestamp="ts",
    lag=seconds(1),
    key="k",
    late_stream="late",
    output="k string, end long, n long, total double",
)
def summed(window: Any) -> Any:
    rows = window.get()
    return window.key, window.end_timestamp, len(rows), sum(row.v for row in rows)


@tumbling(count(3), timestamp="ts", output="ids string")
def threes(window: Any) -> Any:
    return ",".join(row.k for row in window.get())


@tumbling(count(3), timestamp="ts", late_stream="late", output="ids string")
def kept_threes(window: Any) -> Any:
    return ",".join(row.k for row in window.get())


@tumbling(seconds(1), output="n long")
def counted(window: Any) -> Any:
    return len(window)


def batches(number: int, size: int, seed: int = 7) -> list[list[dict[str, Any]]]:
    """Return rows with random doubles, for which another order of addition gives another sum, out of order within 4 s."""
    chance = random.Random(seed)
    rows = [
        {"k": f"k{chance.randrange(5)}", "ts": 50 * i - chance.randrange(4000), "v": chance.random()}
        for i in range(number * size)
    ]
    return [rows[i * size : (i + 1) * size] for i in range(number)]


def plain_windows(rows: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, float]]:
    """Compute the content of every window in the simplest way: the window of end e holds (e - LENGTH, e]."""
    held: dict[tuple[str, int], list[tuple[int, int, float]]] = defaultdict(list)
    for position, row in enumerate(rows):
        first = -(-row["ts"] // SLIDE) * SLIDE
        for end in range(first, row["ts"] + LENGTH, SLIDE):
            held[row["k"], end].append((row["ts"], position, row["v"]))
    return {place: (len(tuples), sum(v for *_, v in sorted(tuples))) for place, tuples in held.items()}


def late_rows(fed: list[list[dict[str, Any]]], lag: int) -> list[dict[str, Any]]:
    largest, watermark, late = None, None, []
    for rows in fed:
        late += [row for row in rows if watermark is not None and row["ts"] < watermark]
        largest = max([row["ts"] for row in rows] + ([] if largest is None else [largest]))
        watermark = largest - lag
    return late


def test_windows_late_rows_and_metrics_match_a_plain_computation(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    fed = batches(4, 100)
    seen: list[Any] = []
    listener = MetricsListener(seen.append)
    spark.streams.addListener(listener)
    try:
        done = run(summed, feed().add(*fed).read(), tasks=3, drain=True)
        _wait_for(lambda: len(seen) == 5)
    finally:
        spark.streams.removeListener(listener)
    late = late_rows(fed, 1000)
    rows = [row for rows in fed for row in rows]
    on_time = [row for row in rows if row not in late]
    assert late, "the test needs late rows"
    assert {(k, end): (n, total) for k, end, n, total in done.rows()} == plain_windows(on_time)
    assert sorted(done.rows("late")) == sorted((row["k"], row["ts"], row["v"], "late") for row in late)
    metrics = done.query.progress
    assert [m.tuples_in for m in metrics] == [100, 100, 100, 100, 0]
    assert sum(m.late for m in metrics) == len(late)
    assert sum(m.windows_fired for m in metrics) == len(done.rows())
    assert [m.tasks for m in metrics] == [3] * 5, "tasks without rows make their turns too"
    assert metrics[-1].pending == 0
    assert metrics[3].watermark_ms == max(row["ts"] for row in rows) - 1000
    clocks = [json.loads(_lines(tmp_path / f"checkpoint/offsets/{m.batch_id}")[1])["batchTimestampMs"] for m in metrics]
    assert [m.watermark_ms + m.lag_ms for m in metrics] == clocks, "the batch's clock is the one of the offset log"
    assert [m.batch_id for m in metrics] == [0, 1, 2, 3, 4]
    assert {m.batch_id: m for m in seen} == {m.batch_id: m for m in metrics}


def test_a_bolt_runs_once_per_batch_and_late_tuples_do_not_go_to_an_output_stream_named_late(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    trace = tmp_path / "calls"

    @tumbling(seconds(1), timestamp="ts", output={"default": "n long", "other": "n long", "late": "k string, ts long"})
    def traced(window: Any, collector: Any) -> None:
        with trace.open("a") as out:
            out.write(f"{window.end_timestamp}\n")
        collector.emit(len(window))
        collector.emit(-len(window), "other")
        collector.emit(("own", window.end_timestamp), "late")

    rows = [{"k": "a", "ts": 100 * i, "v": 0.0} for i in range(40)]
    done = run(traced, feed().add(rows[:20], [*rows[20:], rows[0]]).read())
    calls = trace.read_text().split()
    assert len(calls) == len(set(calls)) == len(done.rows()) == len(done.rows("other")) > 0
    assert sorted(done.rows("late")) == sorted(("own", int(end)) for end in calls)
    assert sum(batch.late for batch in done.query.progress) == 1


def test_a_drained_checkpoint_is_refused_and_an_interrupted_drain_is_completed_by_the_next_start(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    source = feed().add([{"k": name, "ts": i, "v": 0.0} for i, name in enumerate("abcd")])
    sink, drained = MemorySink(), tmp_path / "checkpoint/windowing/drained.json"
    done = run(threes, source.read(), sinks={"default": sink}, drain=True)
    assert done.rows() == [("a,b,c",), ("d",)]
    with pytest.raises(DrainedCheckpointError, match="new checkpoint"):
        run(threes, source.read())
    last = sink.batches.pop(1)
    for file in (tmp_path / "checkpoint/commits/1", tmp_path / "checkpoint/commits/.1.crc", drained):
        file.unlink()
    with pytest.raises(CheckpointError, match="drain=True"):
        windowed(threes, source.read()).start(sink, str(tmp_path / "checkpoint"), trigger=seconds(1))
    run(threes, source.read(), sinks={"default": sink})
    assert sink.batches[1] == last
    drained.unlink()  # as after a kill between the last commit and the drained mark
    assert run(threes, source.read(), drain=True).rows() == []
    with pytest.raises(DrainedCheckpointError):
        run(threes, source.read(), drain=True)


def test_a_query_stopped_from_outside_is_not_drained_and_the_next_start_reads_the_rest(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    source = feed().add(*[[{"k": name, "ts": i, "v": 0.0}] for i, name in enumerate("abcdef")])
    stopping: list[threading.Thread] = []

    def stop(rows: Any, batch_id: int) -> None:
        for query in spark.streams.active:
            stopping.append(threading.Thread(target=query.stop))
            stopping[-1].start()

    stream = windowed(threes, source.read())
    assert repr(stream) == "WindowedStream('threes' over default by 'global', streams: default)"
    query = stream.start(FunctionSink(stop), str(tmp_path / "checkpoint"), drain=True)
    with pytest.raises(QueryStoppedError, match="stopped from outside before it had read all its input"):
        query.await_end(180)
    assert repr(query) == f"WindowedQuery('threes', failed, checkpoint '{tmp_path}/checkpoint')"
    for thread in stopping:
        thread.join()
    assert not (tmp_path / "checkpoint/windowing/drained.json").exists()
    assert len(list((tmp_path / "checkpoint/commits").glob("[0-9]*"))) < 6
    assert run(threes, source.read()).rows()[-1:] == [("d,e,f",)]


def test_a_source_without_available_now_support_is_read_in_a_single_batch_after_a_pending_one(
    spark: SparkSession, run: Callable[..., Any], tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    source = rows.selectExpr("cast(value as string) k", "value ts", "0d v")
    assert run(threes, source).query.progress[-1].batch_id == 0
    time.sleep(1.1)  # rows come every second
    second = run(threes, source)
    assert (second.query.progress[-1].batch_id, second.rows() != []) == (1, True)
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):  # as after a kill
        file.unlink()
    time.sleep(1.1)
    third = run(threes, source, drain=True)
    made = [each.batch_id for each in third.query.progress]
    assert made == [1, 2, 3], "the batch begun before, what is there now, the drain"
    with pytest.raises(DrainedCheckpointError):
        run(threes, source)


def test_rows_that_arrive_after_the_drain_are_late_with_the_reason_closed(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = feed().add([{"k": "a", "ts": 0, "v": 0.0}])
    asked = control.write_drain

    def late(folder: Any) -> None:
        source.add(*[[{"k": name, "ts": i, "v": 0.0}] for i, name in enumerate("bcd", 1)])
        asked(folder)

    monkeypatch.setattr(control, "write_drain", late)
    done = run(kept_threes, source.read(), drain=True)
    assert done.rows() == [("a,b",)], "the batch that takes the drain has its rows in front of it"
    assert sorted((row.k, row.reason) for row in done.sinks["late"].rows) == [("c", "closed"), ("d", "closed")]
    assert (tmp_path / "checkpoint/windowing/drained.json").exists()


def test_a_drain_of_windows_that_cannot_drain_is_refused_before_anything_is_written(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(seconds(1), timestamp="ts", semantics="storm", output="n long")
    def counted(window: Any) -> tuple[int]:
        return (len(window),)

    source = feed().add([{"k": "a", "ts": ts, "v": 1.0} for ts in (500, 2500)])
    with pytest.raises(ConfigError, match=r'semantics="storm" cannot drain.*write drain=False'):
        run(counted, source.read(), drain=True)
    assert not (tmp_path / "checkpoint").exists()
    run(counted, source.read())


def test_a_drain_behind_the_windows_of_another_bolt_is_refused_because_it_would_lose_their_last_ones(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(seconds(1), timestamp="ts", output="n long, ts long")
    def counted(window: Any) -> tuple[int, int]:
        return len(window), window.end_timestamp

    @tumbling(seconds(2), timestamp="ts", output="n long")
    def added(window: Any) -> tuple[int]:
        return (sum(row.n for row in window),)

    rows = feed().add([{"k": "a", "ts": ts, "v": 1.0} for ts in (500, 2500, 6500)]).read()
    inner = windowed(counted, rows)["default"].where("n > 0")
    with pytest.raises(
        ConfigError, match=r"drain=True fires the last windows of 'added' .* both bolts to one topology"
    ):
        run(added, inner, drain=True)
    builder = TopologyBuilder("outer")
    builder.set_spout("in", InputSpout("n long, ts long"))
    builder.set_bolt("added", added).global_grouping("in")
    at = str(tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=r"of 'outer' .* give both bolts to one topology"):
        submit(builder.build(), spark, sources={"in": inner}, sinks={"added": MemorySink()}, checkpoint=at, drain=True)
    assert not (tmp_path / "checkpoint").exists()


def test_an_unread_drain_command_is_withdrawn_and_a_missing_control_folder_made_again_but_no_definition(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    def started(*names: str) -> list[tuple[Any, ...]]:
        rows = [{"k": name, "ts": source.count, "v": 0.0} for name in names]
        return run(threes, source.add(rows).read(), grouping="global").rows()

    source, folder = feed(), tmp_path / "checkpoint/windowing/control"
    assert started("a") == []
    (folder / DRAIN_FILE).write_text('{"kind":"drain"}\n')
    assert started("b", "c") == [("a,b,c",)]
    folder.rmdir()
    assert started("d", "e", "f") == [("d,e,f",)]
    assert folder.exists()
    shutil.rmtree(folder.parent)
    with pytest.raises(CheckpointError, match=r"no windowing/definition\.json"):
        started()


def test_a_replayed_batch_emits_the_same_rows_in_the_same_order(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    sinks = {"default": MemorySink(), "late": MemorySink()}
    source = feed().add(*batches(3, 200))
    run(summed, source.read(), sinks=sinks, tasks=2)
    first = {name: dict(sink.batches) for name, sink in sinks.items()}
    assert 2 in sinks["default"].batches
    states = [file.name for file in tmp_path.glob("checkpoint/state/0/*/*_*-*.changelog")]
    assert sorted({name[:2] for name in states}) == ["1_", "2_", "3_"], (
        "changelogs of format 2: a name no zombie can win"
    )
    for name in ("commits/2", "commits/.2.crc"):
        (tmp_path / "checkpoint" / name).unlink()
    again = {"default": MemorySink(), "late": MemorySink()}
    run(summed, source.read(), sinks=again, tasks=2)
    assert again["default"].batches == {2: first["default"][2]}
    assert again["late"].batches == {number: rows for number, rows in first["late"].items() if number == 2}


def test_a_replay_with_changed_partitioning_settings_is_refused_unless_order_by_is_given(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    source = feed().add([{"k": "a", "ts": 0, "v": 0.0}])
    run(threes, source.read(), checkpoint=str(tmp_path / "plain"))
    run(threes, source.read(), checkpoint=str(tmp_path / "ordered"), order_by="ts")
    for name in ("plain", "ordered"):
        for file in ("0", ".0.crc"):
            (tmp_path / name / "commits" / file).unlink()
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000000")
    try:
        with pytest.raises(CheckpointError, match=r"batch 0 .*maxPartitionBytes"):
            run(threes, source.read(), checkpoint=str(tmp_path / "plain"))
        with pytest.raises(CheckpointError, match="order_by was"):
            run(threes, source.read(), checkpoint=str(tmp_path / "ordered"))
        run(threes, source.read(), checkpoint=str(tmp_path / "ordered"), order_by="ts")
        # It is Spark's default, set explicitly: nothing has changed.
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))
        run(threes, source.read(), checkpoint=str(tmp_path / "plain"))
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_a_batch_is_repeated_only_with_the_packing_that_the_session_had_when_it_was_made(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    """Spark reads these settings of the session in each batch, so they may change while a query runs."""
    source, setting = feed().add([{"k": "a", "ts": 0, "v": 0.0}]), "spark.sql.files.maxPartitionBytes"
    commits = tmp_path / "checkpoint" / "commits"
    query = windowed(threes, source.read()).start(
        MemorySink(), str(tmp_path / "checkpoint"), trigger=timedelta(milliseconds=300)
    )
    try:
        _wait_for(lambda: (commits / "0").exists())
        spark.conf.set(setting, "1000000")
        source.add([{"k": "b", "ts": 1, "v": 0.0}])
        _wait_for(lambda: (commits / "1").exists())
        query.stop()
        for file in ("1", ".1.crc"):
            (commits / file).unlink()
        spark.conf.unset(setting)
        with pytest.raises(CheckpointError, match=rf"batch 1 .*{setting} was 1000000, now"):
            run(threes, source.read())
        spark.conf.set(setting, "1000000")
        run(threes, source.read())
    finally:
        spark.conf.unset(setting)
        query.stop()


def test_the_watermark_is_the_minimum_over_the_input_streams(feed: Callable[..., Any], run: Callable[..., Any]) -> None:
    fast = feed(name="fast").add([{"k": "a", "ts": ts, "v": 0.0} for ts in (1000, 9000)])
    slow = feed(name="slow").add([{"k": "a", "ts": 2500, "v": 1.0}])
    never_null = F.lit(1.0)  # the same column may be null in the other stream
    done = run(summed, {"slow": slow.read().withColumn("v", never_null), "fast": fast.read()})
    assert done.query.progress[-1].watermark_ms == 1500
    assert str(done.query.metrics().components()["summed"].slowest) == "stream slow"
    assert done.rows() == []
    slow.add([{"k": "a", "ts": 7000, "v": 1.0}])
    again = run(summed, {"fast": fast.read(), "slow": slow.read().withColumn("v", never_null)})
    assert again.query.progress[-1].watermark_ms == 6000
    assert [row[1:3] for row in again.rows()] == [(2000, 1), (4000, 2), (6000, 1)]


def test_input_streams_with_different_columns_are_refused(feed: Callable[..., Any]) -> None:
    one = feed(name="one").read()
    with pytest.raises(ConfigError, match=r"'v' is double in stream 'a' and bigint in stream 'b'"):
        windowed(summed, {"a": one, "b": one.selectExpr("k", "ts", "cast(v as long) v")})
    with pytest.raises(ConfigError, match=r"'v' is double in stream 'a' and missing in stream 'b'"):
        windowed(summed, {"a": one, "b": one.drop("v")})
    inside = (
        r"'v' is array<double> in streams 'a' and 'b', but what is inside it is never null in one of them; cast it to"
    )
    lists = [one.select("k", "ts", F.array(each).alias("v")) for each in (F.col("v"), F.lit(1.0))]
    with pytest.raises(ConfigError, match=inside):
        windowed(summed, dict(zip("ab", lists, strict=True)))
    windowed(
        summed,
        {name: each.withColumn("v", F.col("v").cast("array<double>")) for name, each in zip("ab", lists, strict=True)},
    )
    with pytest.raises(ConfigError, match="input stream 'b' has two columns of one name: k, ts, v, v; rename one"):
        windowed(summed, {"a": one, "b": one.select("k", "ts", "v", "v")})
    assert windowed(summed, {"a": one, "b": one.select("v", "ts", "k")}).tasks == 2


def test_processing_time_windows_fire_on_an_idle_stream_and_the_query_continues_with_another_trigger(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    source = feed().add([{"k": "a", "ts": 0, "v": 0.0}])
    sink = MemorySink()
    query = windowed(counted, source.read()).start(
        sink, str(tmp_path / "checkpoint"), trigger=timedelta(milliseconds=300)
    )
    _wait_for(lambda: sink.rows)
    query.stop()
    assert not query.is_active
    assert query.exception is None
    assert [tuple(row) for row in sink.rows] == [(1,)]
    source.add([{"k": "b", "ts": 0, "v": 0.0}])
    run(counted, source.read(), sinks={"default": sink}, drain=True)
    assert [tuple(row) for row in sink.rows] == [(1,), (1,)]


def test_an_idle_timeout_may_be_added_to_a_checkpoint_and_removed_from_it_also_over_a_half_done_batch(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    fast = feed(name="fast").add([{"k": "a", "ts": ts, "v": 0.0} for ts in (1000, 9000)])
    slow = feed(name="slow").add([{"k": "a", "ts": 2500, "v": 0.0}])

    def ends(drain: bool = False, sinks: Any = None, **options: Any) -> list[int]:
        @tumbling(seconds(1), timestamp="ts", output="ends long", **options)
        def closed(window: Any) -> Any:
            return window.end_timestamp

        inputs = {"fast": fast.read(), "slow": slow.read()}
        return [end for (end,) in run(closed, inputs, drain=drain, sinks=sinks).rows()]

    def full(rows: Any, batch: int) -> None:
        raise RuntimeError("the disk is full")

    assert ends() == [1000]
    fast.add([{"k": "a", "ts": 9500, "v": 0.0}])
    assert ends(idle_timeout=millis(1)) == [3000, 9000], "added"
    fast.add([{"k": "a", "ts": 20_000, "v": 0.0}])
    assert ends() == [], "removed"
    slow.add([{"k": "a", "ts": 10_500, "v": 0.0}])
    with pytest.raises(RuntimeError, match="the disk is full"):
        ends(sinks={"default": FunctionSink(full)})
    assert ends(idle_timeout=millis(1)) == [10_000], "added over a half-done batch, which is repeated"
    assert ends(drain=True) == [11_000, 20_000]


class OnceSink(MemorySink):
    """Keeps the rows of a batch that it has, as a table does."""

    def claim(self, spark: SparkSession, owner: OutputOwner) -> int:  # type: ignore[override]
        super().claim(spark, owner)
        return max(self.batches, default=-1)

    def write(self, rows: Any, batch_id: int) -> None:
        if batch_id not in self.batches:
            super().write(rows, batch_id)


@pytest.mark.parametrize("keeps", [True, False])
def test_another_lag_is_refused_only_while_a_sink_keeps_the_rows_of_a_half_done_batch(
    feed: Callable[..., Any], run: Callable[..., Any], keeps: bool
) -> None:
    """The sink would keep the windows of the first attempt, and the state would be that of the second: windows twice, or never."""
    source = feed().add([{"k": "a", "ts": ts, "v": 0.0} for ts in (1000, 9000)])
    sink, late = OnceSink() if keeps else MemorySink(), MemorySink()

    def ends(lag_s: int, late: Any = late, drain: bool = False) -> list[int]:
        @tumbling(seconds(1), timestamp="ts", late_stream="late", lag=seconds(lag_s), output="ends long")
        def closed(window: Any) -> Any:
            return window.end_timestamp

        return [end for (end,) in run(closed, source.read(), drain=drain, sinks={"default": sink, "late": late}).rows()]

    def full(rows: Any, batch: int) -> None:
        raise RuntimeError("the disk is full")

    assert ends(0) == [1000, 9000]
    source.add([{"k": "a", "ts": ts, "v": 0.0} for ts in (10_000, 500, 12_000)])
    with pytest.raises(RuntimeError, match="the disk is full"):
        ends(0, FunctionSink(full))
    if keeps:
        said = r"batch 1 .* in the sink of stream 'default' for good.* lag_ms was 0, now 5000; start once with the old value"
        for _ in range(2):  # the definition of the first attempt stays
            with pytest.raises(CheckpointError, match=said):
                ends(5)
        assert ends(0) == [1000, 9000, 10_000, 12_000]
    assert ends(5, drain=True) == [1000, 9000, 10_000, 12_000]


def test_a_stream_without_a_sink_is_refused_unless_discarded_and_tasks_default_to_the_checkpoint(
    feed: Callable[..., Any], run: Callable[..., Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A batch that no action evaluates would break the checkpoint; the case closest to it is a query with all streams discarded."""
    source = feed().add([{"k": "a", "ts": 9000, "v": 0.5}], [{"k": "a", "ts": 1, "v": 0.0}])
    with pytest.raises(ConfigError, match=r"stream 'default' of bolt 'summed' has no sink"):
        windowed(summed, source.read()).start({}, str(tmp_path / "checkpoint"))
    for bolt, has in ((summed, "default, late"), (counted, "default; late_stream= adds one for late rows")):
        with pytest.raises(ConfigError, match=f"no stream 'sums'; it has {has}$"):
            windowed(bolt, source.read()).start({"sums": MemorySink()}, str(tmp_path / "checkpoint"))
    with caplog.at_level(logging.WARNING, "windowing.spark"):
        run(summed, source.read(), sinks={}, discard="default", tasks=3)
    assert ["'summed': 1 late or unusable tuples" in record.getMessage() for record in caplog.records] == [True]
    source.add([{"k": "b", "ts": 15000, "v": 1.0}])
    again = run(summed, source.read())
    assert again.rows() == [("a", 10000, 1, 0.5), ("a", 12000, 1, 0.5)]
    assert again.query.progress[-1].tasks == 3
    with pytest.raises(DefinitionChangedError, match="tasks was 3, now 2"):
        run(summed, source.read(), tasks=2)


def test_a_bolt_without_output_runs_without_sinks(
    feed: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    @tumbling(count(2), timestamp="ts")
    def notes(window: Any) -> None:
        (tmp_path / f"window-{window.end_timestamp}").write_text(",".join(row.k for row in window))

    source = feed().add([{"k": name, "ts": ts, "v": 0.0} for ts, name in enumerate("abcd", 1)])
    with pytest.raises(ConfigError, match="no stream 'default'; it has none: it declares no output"):
        windowed(notes, source.read()).start(MemorySink(), str(tmp_path / "checkpoint"))
    done = run(notes, source.read(), sinks={})
    assert sum(batch.windows_fired for batch in done.query.progress) == 2
    assert {file.name: file.read_text() for file in tmp_path.glob("window-*")} == {"window-2": "a,b", "window-4": "c,d"}


def test_several_tasks_of_a_global_window_and_a_grouping_that_splits_a_key_are_refused(
    feed: Callable[..., Any],
) -> None:
    source = feed()
    with pytest.raises(ConfigError, match="tasks=2"):
        windowed(threes, source.read(), tasks=2)
    with pytest.raises(ConfigError, match="spread the rows of one key"):
        windowed(summed, source.read(), grouping="shuffle")
    with pytest.raises(ConfigError, match="group by"):
        windowed(summed, source.read(), grouping="v")
    for option in ("grouping", "order_by"):
        with pytest.raises(ConfigError, match=f"{option} names .*, as a text or a list of texts, got Column<'k'>"):
            windowed(summed, source.read(), **{option: F.col("k")})
    assert windowed(threes, source.read(), grouping="global").tasks == 1


def test_shuffle_grouping_gives_each_row_to_one_task(feed: Callable[..., Any], run: Callable[..., Any]) -> None:
    @tumbling(count(1), timestamp="ts", output="id string")
    def each(window: Any) -> Any:
        return window.get()[0].k

    source = feed().add([{"k": f"{i}", "ts": i, "v": 0.0} for i in range(60)])
    done = run(each, source.read(), grouping="shuffle", tasks=2)
    assert sorted(int(name) for (name,) in done.rows()) == list(range(60))
    assert done.query.progress[-1].tasks == 2


@pytest.mark.parametrize("option", ["timestamp", "key", "grouping", "order_by"])
def test_a_missing_input_column_is_refused_by_name(feed: Callable[..., Any], option: str) -> None:
    source = feed(name=option).read().withColumnRenamed({"timestamp": "ts", "key": "k"}.get(option, "v"), "renamed")
    options = {} if option in ("timestamp", "key") else {option: "v"}
    bolt = summed if option in ("timestamp", "key") else threes
    with pytest.raises(ConfigError, match=rf"{option} of bolt '{bolt.__name__}' names column"):
        windowed(bolt, source, **options)


def test_an_input_without_columns_is_refused(feed: Callable[..., Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"input stream 'default' has no columns, so its rows cannot be sent; select one at least$"
    ):
        windowed(threes, feed(name="bare").read().select())


def test_a_misspelt_column_or_grouping_is_refused_with_the_nearest(feed: Callable[..., Any]) -> None:
    source = feed(name="near").read()
    with pytest.raises(
        ConfigError, match=r"order_by of bolt 'threes' names column 'vv', the input has k, ts, v; did you mean 'v'\?$"
    ):
        windowed(threes, source, order_by="vv")
    with pytest.raises(
        ConfigError, match=r"grouping is \"global\", \"shuffle\" or columns, got 'shufle'; did you mean 'shuffle'\?$"
    ):
        windowed(summed, source, grouping="shufle")
    with pytest.raises(
        ConfigError, match=r"got a list: \[1\]; read one with spark.readStream, or try the bolt on rows with run_local"
    ):
        windowed(threes, [1])  # type: ignore[arg-type]


def test_a_missing_input_field_of_aggregate_is_refused_at_declaration(feed: Callable[..., Any]) -> None:
    for aggregate in (agg.sum("nosuch"), {"n": agg.count(), "worst": agg.max("nosuch")}):
        declared = tumbling(count(3), timestamp="ts", output="n long", name="sums", aggregate=aggregate)(lambda w: 1)
        with pytest.raises(
            ConfigError, match=r"aggregate of bolt 'sums' names column 'nosuch', the input has k, ts, v"
        ):
            windowed(declared, feed(name=f"in{id(aggregate)}").read())


def test_the_error_of_a_nested_timestamp_says_how_to_make_it_a_column(feed: Callable[..., Any]) -> None:
    declared = tumbling(count(3), timestamp="v.at", output="n long", name="sums")(lambda window: 1)
    with pytest.raises(
        ConfigError, match=r"has k, ts, v; write \.withColumn\('at', F\.col\('v\.at'\)\) in front, and name 'at'"
    ):
        windowed(declared, feed("k string, ts long, v struct<at: long>").read())


@pytest.mark.parametrize("kind", ["array<long>", "map<string,long>", "struct<a:long>"])
def test_a_nested_key_column_is_refused_at_declaration(feed: Callable[..., Any], kind: str) -> None:
    with pytest.raises(ConfigError, match=r"key of bolt 'summed' names column 'k', which is .*column of plain values"):
        windowed(summed, feed(f"k {kind}, ts long, v double").read())


@pytest.mark.parametrize(
    "kind",
    ["string", "binary", "boolean", "array<long>", "map<string,long>", "struct<a:long>"],
)
def test_a_timestamp_column_of_an_unsupported_type_is_refused_at_declaration(
    feed: Callable[..., Any], kind: str
) -> None:
    source = feed().read().selectExpr("k", f"cast(null as {kind}) ts", "v")
    with pytest.raises(
        ConfigError, match=r"timestamp of bolt 'summed' names column 'ts', which is .*F\.to_timestamp\('ts'\)"
    ):
        windowed(summed, source)


@pytest.mark.parametrize("kind", ["byte", "long", "float", "decimal(20,2)", "date", "timestamp", "timestamp_ntz"])
def test_a_timestamp_column_of_a_numeric_or_time_type_is_accepted(feed: Callable[..., Any], kind: str) -> None:
    assert windowed(summed, feed().read().selectExpr("k", f"cast(null as {kind}) ts", "v")).tasks == 2


def test_a_column_of_a_user_defined_type_is_refused_with_a_late_stream(
    feed: Callable[..., Any],
) -> None:
    for kind in (VectorUDT(), ArrayType(VectorUDT())):
        source = feed(name=f"in{type(kind).__name__}").read().withColumn("vector", F.lit(None).cast(kind))
        with pytest.raises(ConfigError, match=r"column 'vector' .*late stream of bolt 'kept_threes'.*vector_to_array"):
            windowed(kept_threes, source)
        assert windowed(threes, source).tasks == 1, "a bolt reads them as dicts"


def test_an_input_that_is_not_a_streaming_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"spark\.readStream"):
        windowed(summed, spark.range(3))
    with pytest.raises(ConfigError, match="empty mapping"):
        windowed(summed, {})


@pytest.mark.parametrize("trigger", ["once", 5, millis(0), timedelta(0)])
def test_an_invalid_trigger_is_refused(feed: Callable[..., Any], tmp_path: Path, trigger: Any) -> None:
    with pytest.raises(ConfigError, match="trigger is"):
        windowed(threes, feed().read()).start(MemorySink(), str(tmp_path / "checkpoint"), trigger=trigger)


def test_the_output_streams_are_dataframes_that_can_be_transformed(
    feed: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    source = feed().add([{"k": "a", "ts": ts, "v": 1.0} for ts in (1000, 9000)], [{"k": "b", "ts": 0, "v": 2.0}])
    streams = windowed(summed, source.read(), tasks=2).streams
    assert streams["default"].columns == ["k", "end", "n", "total"]
    assert streams["late"].columns == ["k", "ts", "v", "reason"]
    sums = streams["default"].where("end = 2000").selectExpr("upper(k) k", "n")
    started = sums.writeStream.option("checkpointLocation", str(tmp_path / "own")).trigger(availableNow=True)
    query = started.format("parquet").start(str(tmp_path / "out"))
    query.awaitTermination(120)
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [("A", 1)]


def test_names_with_quotes_blanks_and_brackets_are_supported(
    feed: Callable[..., Any], run: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    @tumbling(seconds(1), timestamp="t's [x]", late_stream="late", output="n long")
    def odd(window: Any) -> Any:
        return len(window)

    source = feed(name="in put's").add(
        [{"k": "a", "ts": ts, "v": 0.0} for ts in (1000, 9000)], [{"k": 'b"', "ts": 0, "v": 0.0}]
    )
    named = source.read().withColumnRenamed("ts", "t's [x]").withColumnRenamed("k", 'k`;" --')
    folder = tmp_path / "o'ut [1] {a,b}"
    sinks = {"default": ParquetSink(f"{folder}/sums"), "late": ParquetSink(f"{folder}/la te")}
    run(odd, named, checkpoint=f"{folder}/check point", sinks=sinks, drain=True)
    assert sorted(row["n"] for row in sinks["default"].read(spark).collect()) == [1, 1]
    assert [tuple(row)[:4] for row in sinks["late"].read(spark).collect()] == [('b"', 0, 0.0, "late")]


def test_a_bolt_and_its_timestamp_function_read_broadcasts_of_spark(
    spark: SparkSession, feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    units, factors = spark.sparkContext.broadcast(1000), spark.sparkContext.broadcast({"a": 2, "b": 3})

    def weighted(table: bytes) -> Any:
        @tumbling(seconds(10), timestamp=lambda row: row.ts * units.value, key="k", output="k string, n long")
        def weighted(window: Any) -> Any:
            return window.key, factors.value[window.key] * len(window) + table[0]

        check(spark, weighted)
        return weighted

    source = feed().add(
        [{"k": "a", "ts": 1, "v": 0.0}, {"k": "b", "ts": 2, "v": 0.0}], [{"k": "a", "ts": 12, "v": 0.0}]
    )
    assert run(weighted(bytes(10)), source.read(), tasks=2).rows() == [("a", 2), ("b", 3)]
    source.add([{"k": "b", "ts": 23, "v": 0.0}])
    large = weighted(bytes(1 << 20))  # code of this size is sent as a broadcast of its own
    assert run(large, source.read()).rows() == [("a", 2)]


def _lines(file: Path) -> list[str]:
    return file.read_text().split("\n")


def _wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"grouping": 5}, 'grouping names "global", "shuffle" or columns, as a text or a list of texts, got 5'),
        ({"order_by": 5}, "order_by names columns, as a text or a list of texts, got 5"),
        ({"order_by": [None]}, "order_by names columns"),
        ({"control": 5}, "control is a folder: text or a Path, got 5"),
        ({"discard": 5}, "discard names streams, as a text or a list of texts, got 5"),
        ({"query_name": 5}, "query_name is a text, got 5"),
        ({"checkpoint": None}, "checkpoint is a folder: text or a Path, got None"),
        (
            {"column": "make_dt_interval(1)"},
            "column 'x' of input stream 'default' is interval day to second, which does not travel",
        ),
        (
            {"column": "array(make_ym_interval(1))"},
            "column 'x' of input stream 'default' is array<interval year to month>",
        ),
        (
            {"column": "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')"},
            "which does not travel between Spark and Python; cast it to binary, or drop it: .withColumn('x', "
            "F.expr('st_asbinary(`x`)'))",
        ),
        (
            {"timestamp": lambda row: LOCK},
            "bolt 'count' closes over 'LOCK', which cannot be sent to Spark's workers: TypeError",
        ),
    ],
)
def test_options_of_wrong_types_are_refused_by_name(spark: SparkSession, tmp_path: Path, wrong: Any, said: str) -> None:
    timestamp, column = wrong.pop("timestamp", "value"), wrong.pop("column", "1")
    spark.conf.set("spark.sql.geospatial.enabled", "true")  # off by default in Spark 4.1, on in later versions
    rows = spark.readStream.format("rate").load().withColumn("x", F.expr(column))
    declared = windowed_bolt(seconds(1), seconds(1), timestamp=timestamp, output="n long", name="count")(
        lambda window: 1
    )
    given = {"checkpoint": str(tmp_path / "checkpoint")} | wrong
    start = {name: given.pop(name) for name in ("checkpoint", "discard", "query_name") if name in given}
    with pytest.raises(ConfigError, match=re.escape(said)):
        windowed(declared, rows, **given).start(MemorySink(), start.pop("checkpoint"), **start)


def test_a_second_query_of_one_name_is_refused_before_anything_is_written(
    spark: SparkSession, feed: Callable[..., Any], tmp_path: Path
) -> None:
    running = spark.readStream.format("rate").load().writeStream.queryName("counts").format("noop")
    running = running.option("checkpointLocation", str(tmp_path / "other")).start()
    try:
        with pytest.raises(ConfigError, match="query_name='counts' is the name of a query that runs in this session"):
            windowed(threes, feed().read()).start(
                ParquetSink(tmp_path / "out"), tmp_path / "checkpoint", query_name="counts"
            )
    finally:
        running.stop()
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "checkpoint").exists()


def test_a_stateful_bolt_keeps_its_state_in_the_checkpoint_and_repeated_rows_are_deduplicated(
    feed: Callable[..., Any], run: Callable[..., Any]
) -> None:
    @tumbling(count(2), timestamp="ts", message_id="ts", output="ids string, total long")
    class Totals:
        def init_state(self, state: Any) -> None:
            self.state = state

        def execute(self, window: Any) -> Any:
            ids = [row.ts for row in window]
            self.state.put("total", self.state.get("total", 0) + sum(ids))
            return ",".join(map(str, ids)), self.state.get("total")

    source = feed().add(*([{"k": "a", "ts": n, "v": 0.0} for n in batch] for batch in ((1, 2, 2), (2, 3, 4))))
    assert run(Totals, source.read()).rows() == [("1,2", 3), ("3,4", 10)]
    source.add([{"k": "a", "ts": n, "v": 0.0} for n in (4, 5, 6)])
    assert run(Totals, source.read()).rows() == [("5,6", 21)]
