"""Metrics of tasks on Spark, without a JVM: the numbers of LocalCluster, counted once even if a stage is evaluated again."""

from __future__ import annotations

import logging
import pickle
from dataclasses import fields
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.accumulators import Accumulator, _accumulatorRegistry

from tests.execution.chains import Chain
from windowing import InputSpout, TopologyBuilder, bolt, millis, seconds, tumbling
from windowing.errors import FailedException, ReportedFailedException
from windowing.execution.metrics import (
    _COUNTERS,
    METRICS,
    METRICS_FORMAT,
    FiredWindow,
    RunMetrics,
    SlowestInput,
    TaskMetrics,
    samples,
)
from windowing.local import LocalCluster, VirtualClock
from windowing.local.metrics import ClusterMetrics
from windowing.spark.exchange import TASK_AND_CLOCK, clock_of, rows_of
from windowing.spark.metrics import MetricsChannel, TaskTotals, _Totalled
from windowing.spark.operator import Stored, TaskResult
from windowing.spark.trident_stages import TridentSpoutStage, trident_turn
from windowing.topology.pictures import Arrow, Box
from windowing.trident import FixedBatchSpout, Sum, TridentTopology


@bolt(output="word string, at long")
def split(tuple):
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@bolt(output="word string, at long")
def upper(tuple):
    if tuple["word"] == "bad":
        raise ReportedFailedException("bad word")
    return (tuple["word"].upper(), tuple["at"])


@tumbling(millis(10), timestamp="at", late_stream="late", on_error="dead_letter", output="n long")
def tens(window):
    if any(row.word == "WORSE" for row in window):
        raise ValueError("worse")
    return len(window)


@tumbling(millis(10), timestamp="at", on_error="fail", output="n long")
def refuses(window):
    raise FailedException("no")


def topology():
    builder = TopologyBuilder("words").configure({"windowing.max.attempts": 2})
    builder.set_spout("sentences", InputSpout("sentence string, at long"))
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("upper", upper).fields_grouping("split", "word")
    builder.set_bolt("tens", tens).global_grouping("upper")
    return builder.build()


BATCHES = [[("to be", 1), ("or", 2)], [("not to be", 25)], [("late", 4), ("that is", 31)]]


class Totals:
    """A channel that delivers at once, and twice, as for a stage that is evaluated again."""

    def __init__(self):
        self.totals = TaskTotals("words")

    def send(self, batch, upstream, now_ms, found):
        said = pickle.loads(pickle.dumps({(batch, upstream): (now_ms, tuple(found))}))
        self.totals.take(said)
        self.totals.take(said)


def on_spark(batches):
    chain = Chain(topology())
    chain.channel = Totals()
    for number, batch in enumerate(batches):
        chain.run({"sentences": batch}, drain=number == len(batches) - 1)
    return chain.channel.totals.now(1000)


def in_one_process(batches):
    with LocalCluster(topology(), batches={"sentences": batches}, clock=VirtualClock(0)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        return metrics.now()


NAMES = {*_COUNTERS, "emitted", "late"} - {"acked", "execute_ms", "process_ms"}


def counted(run):
    return {name: {each: getattr(found, each) for each in NAMES} for name, found in run.components().items()}


def test_tasks_on_spark_have_the_counts_of_a_local_cluster():
    local, spark = in_one_process(BATCHES), on_spark(BATCHES)
    assert counted(spark) == counted(local)
    assert {name: each.acked for name, each in spark.components().items() if name != "sentences"} == {
        name: each.acked for name, each in local.components().items() if name != "sentences"
    }
    assert counted(spark)["tens"]["late"] == {"late": 1}
    assert counted(spark)["tens"]["windows_fired"] == 3
    assert counted(spark)["split"]["emitted"] == {"default": 9}


@pytest.mark.parametrize("run", [on_spark, in_one_process])
def test_every_counter_is_counted_in_both_runtimes(run):
    found = counted(run([[("bad", 1)], *BATCHES]))
    nonzero = {name for each in found.values() for name, count in each.items() if count}
    assert nonzero | {"skipped", "duplicates"} == NAMES, "let this topology count it"


def test_late_tuples_of_two_batches_are_each_counted_once():
    batches = [*BATCHES, [("late again", 5), ("on time", 45)], [("again", 6)]]
    assert counted(on_spark(batches)) == counted(in_one_process(batches))
    assert counted(on_spark(batches))["tens"]["late"] == {"late": 4}


def test_a_failed_window_counts_as_one_dead_letter_and_its_tuples_as_acked():
    batches = [[("to be", 1), ("worse", 12)], [("worse", 13), ("or", 25)], [("not", 40)]]
    local, spark = in_one_process(batches).components()["tens"], on_spark(batches).components()["tens"]
    for found in (local, spark):
        assert (found.dead_letters, found.failed, found.acked, found.windows_fired) == (1, 0, 6, 4)


@bolt(output="who string")
def buried(letter):
    return letter.component


def test_dead_letters_that_are_read_count_as_emitted_tuples_of_messages_and_of_windows():
    builder = TopologyBuilder("words").configure({"windowing.max.attempts": 2})
    builder.set_spout("words", InputSpout("word string, at long"))
    builder.set_bolt("upper", upper).shuffle_grouping("words")
    builder.set_bolt("tens", tens).global_grouping("upper")
    builder.set_bolt("buried", buried).shuffle_grouping("upper", "dead_letters").shuffle_grouping(
        "tens", "dead_letters"
    )
    rows = {"words": [("bad", 1), ("worse", 2), ("good", 3), ("bad", 4)]}
    chain = Chain(builder.build(), letters=False)
    chain.channel = Totals()
    chain.run(rows, drain=True)
    with LocalCluster(builder.build(), batches={"words": [rows["words"]]}, clock=VirtualClock(0)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        local = metrics.now().components()
    for found in (local, chain.channel.totals.now(0).components()):
        assert found["upper"].emitted == {"default": 2, "dead_letters": 2}
        assert found["tens"].emitted == {"dead_letters": 1}
        assert found["buried"].executed == 3


def test_tuples_of_a_failed_window_count_as_failed_and_not_as_acked():
    builder = TopologyBuilder("refused").configure({"windowing.max.attempts": 1})
    builder.set_spout("rows", InputSpout("at long"))
    builder.set_bolt("refuses", refuses).global_grouping("rows")
    chain = Chain(builder.build(), acks=True)
    chain.channel = Totals()
    chain.run({"rows": [(1,), (2,)]})
    chain.run({"rows": [(25,)]}, drain=True)
    found = chain.channel.totals.now(0).components()["refuses"]
    assert (found.executed, found.failed, found.acked) == (3, 3, 0)


def test_an_upstream_without_a_report_of_a_batch_adds_nothing():
    totals = TaskTotals("t")
    totals.take({(0, 0): (0, (TaskMetrics("b", 0, executed=5),)), (0, 1): (0, (TaskMetrics("b", 1, executed=2),))})
    totals.take({(1, 0): (0, (TaskMetrics("b", 0, executed=1),))})
    totals.take({(2, 0): (0, (TaskMetrics("b", 0, executed=1),))})
    assert totals.now(0).components()["b"].executed == 9


def test_both_runtimes_export_the_same_metrics_of_a_windowed_bolt():
    named = [
        {sample.metric.name for sample in samples(run) if sample.labels[1] == "tens"}
        for run in (in_one_process(BATCHES), on_spark(BATCHES))
    ]
    assert named[0] - {"queued"} == named[1] | {"queued"} - {"queued"}


def test_errors_and_dead_letters_reach_the_driver_with_their_text(caplog):
    with caplog.at_level(logging.WARNING, "windowing.spark"):
        run = on_spark([[("bad", 1), ("good", 2)]])
    upper = run.components()["upper"]
    assert (upper.executed, upper.failed, upper.dead_letters, upper.reported, upper.acked) == (2, 2, 1, 2, 1)
    assert any("bad word" in text for text in upper.errors)
    logged = [
        record.getMessage() for record in caplog.records if "batch 0: component 'upper', task 0" in record.getMessage()
    ]
    assert len(logged) == 4  # the two errors of the batch, which was sent twice
    assert "ReportedFailedException: [REPORTED] bad word" in logged[0]


def test_a_reevaluated_batch_counts_once_and_an_older_one_is_ignored():
    totals = TaskTotals("t")
    totals.take({(3, 0): (0, (TaskMetrics("b", 0, executed=5),))})
    totals.take({(3, 0): (0, (TaskMetrics("b", 0, executed=4),))})
    totals.take({(4, 0): (0, (TaskMetrics("b", 0, executed=1),))})
    totals.take({(3, 0): (0, (TaskMetrics("b", 0, executed=9),))})
    assert totals.now(0).components()["b"].executed == 5


def test_a_batch_in_which_no_tuple_of_a_bolt_has_a_usable_timestamp_is_logged_once_and_only_before_the_first_usable_one(
    caplog,
):
    def turn(task, late=0, watermark=None, pending=0):
        shown = (("invalid", "{'at': 'soon'}"),) * bool(late)
        return TaskMetrics(
            "sums", task, executed=2, late={"invalid": late}, pending=pending, watermark_ms=watermark, late_rows=shown
        )

    def logged(*batches):
        caplog.clear()
        totals = TaskTotals("t")
        for number, turns in enumerate(batches):
            totals.take({(number, task): (0, (found,)) for task, found in enumerate(turns)})
        totals.release()
        return caplog.messages

    told = (
        "t, batch 0: none of the 4 tuples of bolt 'sums' has a usable timestamp, one of them is {'at': 'soon'}; wanted whole "
        "milliseconds since 1970, or a datetime"
    )
    assert logged([turn(0, 2), turn(1, 2)]) == logged([turn(0, 2), turn(1, 2)], [turn(0, 2)]) == [told]
    assert logged([turn(0, 2), turn(1, 1)]) == logged([turn(0, 2, watermark=5)]) == []
    assert logged([turn(0, 2, pending=None)]) == [], "a bolt without windows"


@pytest.mark.parametrize(("timestamp", "field"), [("us", "'us'"), (len, "...")])
def test_a_batch_whose_tuples_are_all_in_the_future_is_logged_with_a_row_and_the_code_for_microseconds(
    caplog, timestamp, field
):
    totals = TaskTotals("t", {"sums": timestamp})
    rows = (("future", "{'us': 1700000000000000}"),)
    for task, late in ((0, 2), (1, 0)):
        found = TaskMetrics("sums", task, executed=late, late={"future": late}, pending=0, late_rows=rows[:late])
        totals.take({(0, task): (0, (found,))})
    totals.release()
    assert caplog.messages == [
        "t, batch 0: the timestamps of all 2 tuples of bolt 'sums' are further ahead of the clock than max_future, one of them is "
        "{'us': 1700000000000000}; wanted milliseconds since 1970: if these are microseconds, give timestamp=lambda row: "
        f"row[{field}] // 1000, say"
    ]


def test_a_task_of_spark_that_makes_several_turns_sends_the_numbers_of_all():
    totals, summing = TaskTotals("t"), _Totalled()
    sent = summing.zero(totals)
    for task in range(2):
        sent = summing.addInPlace(sent, {(0, task): (0, (TaskMetrics("b", task, executed=1),))})
    assert summing.addInPlace(totals, sent) is totals
    assert totals.now(0).components()["b"].executed == 2


def test_the_mean_process_latency_follows_littles_law():
    totals = TaskTotals("t")
    totals.take({(0, 0): (10_000, (TaskMetrics("w", 0, executed=4, pending=4),))})
    totals.take({(1, 0): (12_000, (TaskMetrics("w", 0, acked=4, pending=0),))})
    assert totals.now(0).components()["w"].process_latency_ms == 2000
    totals.take({(2, 0): (20_000, (TaskMetrics("w", 0, pending=0),))})
    assert totals.now(0).components()["w"].process_latency_ms == 2000


def test_tasks_and_their_execute_time_are_kept_separately():
    run = on_spark(BATCHES)
    assert [each.task for each in run.tasks if each.component == "tens"] == [0]
    assert all(each.execute_ms > 0 for each in run.tasks if each.executed)
    assert {sample.metric for sample in samples(run)} <= set(METRICS)


def test_batch_and_phases_are_those_of_sparks_progress():
    totals = TaskTotals("t")
    run = totals.now(5, 7, {"addBatch": 250.0})
    assert [(sample.metric.name, sample.labels, sample.value) for sample in samples(run)] == [
        ("batch", ("t",), 7),
        ("batch_phase_seconds", ("t", "addBatch"), 0.25),
    ]


def packed(shipped, number, tuples, batch):
    """Return the exchange rows of a batch of (n, at) for a task."""
    columns = [pa.array(column, pa.int64()) for column in zip(*tuples, strict=True)]
    clock = pa.repeat(pa.scalar(1_000 * batch, pa.int64()), len(tuples))
    given = pa.RecordBatch.from_arrays([*columns, clock], names=["c0", "c1", TASK_AND_CLOCK])
    spout = TridentSpoutStage(shipped, shipped.value.spouts[0].number, keep=False)
    wire = [row for sent in spout.pack(iter([given]), 0, batch) for row in rows_of([sent.to_pandas()])]
    return [row for row in wire if row.target == number]


def test_a_trident_group_with_windows_counts_tuples_windows_and_late_tuples():
    topology = TridentTopology("sums")
    rows = topology.new_stream("rows", FixedBatchSpout("n long, at long", 9, [(1, 1)]))
    windows = rows.tumbling_window(millis(10), "n", Sum(), "total long", timestamp="at")
    windows.late_stream().sink("late")
    windows.sink("fired")
    plan = topology.build().by_section()
    shipped, totals = SimpleNamespace(value=plan), TaskTotals("sums")
    number = plan.tasks_at(1)[0].number
    result, batches = TaskResult(), ([(1, 1), (2, 5), (3, 25)], [(4, 2)])
    for batch, tuples in enumerate(batches):
        own = packed(shipped, number, tuples, batch)
        result = trident_turn(shipped, number, own, Stored(result.metadata, result.puts.get), batch)
        totals.take({(batch, number): (0, tuple(result.done))})
    (found,) = totals.now(0).tasks
    assert found.component == plan.tasks[number].stage.id
    assert (found.executed, found.windows_fired, found.expired, found.pending) == (4, 1, 2, 1)
    assert found.late == {"late": 1}
    # A window, and a late tuple, to the group that sends them to their sinks.
    assert list(found.emitted.values()) == [2]
    assert (found.watermark_ms, found.slowest) == (25, SlowestInput("default", None, 25))
    assert found.watermark_lag_ms == result.done[0].watermark_lag_ms == clock_of(own) - 25
    sent = {row.source: row.value for row in result.output if row.kind == "metric"}
    assert (sent["watermark"], sent["now"]) == (25, clock_of(own)), "for query.progress"


def test_a_trident_window_without_a_timestamp_yet_has_no_watermark_and_names_its_input():
    topology = TridentTopology("sums")
    rows = topology.new_stream("rows", FixedBatchSpout("n long, at long", 9, [(1, 1)]))
    options = {"timestamp": "at", "on_invalid": "late"}
    rows.tumbling_window(millis(10), "n", Sum(), "total long", **options).sink("fired")
    shipped = SimpleNamespace(value=topology.build().by_section())
    number = shipped.value.tasks_at(1)[0].number
    result = trident_turn(shipped, number, packed(shipped, number, [(1, None)], 0), Stored(None), 0)
    (found,) = result.done
    assert (found.watermark_ms, found.watermark_lag_ms) == (None, None)
    assert str(found.slowest) == "stream default, which had no tuple yet"
    assert "watermark" not in {row.source for row in result.output if row.kind == "metric"}


def test_late_tuples_of_a_trident_group_are_counted_by_reason():
    topology = TridentTopology("sums")
    rows = topology.new_stream("rows", FixedBatchSpout("n long, at long", 9, [(1, 1)]))
    options = {"timestamp": "at", "max_future": seconds(100), "on_invalid": "late"}
    rows.tumbling_window(millis(10), "n", Sum(), "total long", **options).sink("fired")
    shipped, totals = SimpleNamespace(value=topology.build().by_section()), TaskTotals("sums")
    number, result = shipped.value.tasks_at(1)[0].number, TaskResult()
    for batch, tuples in enumerate(([(1, 1), (2, None), (3, 25)], [(4, 2), (5, 900_000_000), (6, 3), (7, 31)])):
        stored = Stored(result.metadata, result.puts.get)
        result = trident_turn(shipped, number, packed(shipped, number, tuples, batch), stored, batch)
        totals.take({(batch, number): (0, tuple(result.done))})
    (found,) = totals.now(0).tasks
    assert found.late == {"invalid": 1, "late": 2, "future": 1}
    assert (found.executed, found.windows_fired, found.pending) == (7, 2, 1)
    assert found.acked == 6, "two expired, and four were late"


def test_the_accumulator_of_an_ended_query_is_released_and_later_updates_cause_no_error():
    context = SimpleNamespace(accumulator=lambda value, param: Accumulator(10**9, value, param))
    channel = MetricsChannel(SimpleNamespace(sparkContext=context), "t")
    said = {(0, 1): (0, (TaskMetrics("c", 0, executed=2),))}
    try:
        _accumulatorRegistry[10**9] += said
        channel.totals.release()
        assert not isinstance(_accumulatorRegistry[10**9], Accumulator)
        _accumulatorRegistry[10**9] += said  # PySpark's own update with the metrics of a task
        channel.totals.release()
    finally:
        del _accumulatorRegistry[10**9]
    assert channel.totals.now(0).components()["c"].executed == 2
    channel.totals.release()
    assert 10**9 not in _accumulatorRegistry


def test_the_fields_of_stored_metrics_are_those_of_their_format():
    names = [" ".join(each.name for each in fields(kind)) for kind in (RunMetrics, TaskMetrics, Box, Arrow)]
    names += [" ".join(kind._fields) for kind in (SlowestInput, FiredWindow)]
    assert (METRICS_FORMAT, names) == (
        1,
        [
            "name at_ms tasks batch phases lag skipped ended",
            "component task emitted executed acked failed late windows_fired expired skipped duplicates reported dead_letters "
            "execute_ms process_ms pending queued watermark_ms watermark_lag_ms slowest errors windows late_rows",
            "name lines shape",
            "source target label dotted",
            "stream source newest_ms",
            "end_ms emitted",
        ],
    ), "with other fields raise METRICS_FORMAT, then write them here"
