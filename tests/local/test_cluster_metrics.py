"""ClusterMetrics: the counts of each task; a cluster with metrics runs as one without."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from windowing import (
    Bolt,
    Duration,
    InputSpout,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    bolt,
    count,
    millis,
    sliding,
    spout,
    tumbling,
)
from windowing.errors import ConfigError, FailedException, ReportedFailedException
from windowing.execution.metrics import METRICS, samples
from windowing.local import LocalCluster, TridentCluster, VirtualClock
from windowing.local.metrics import ClusterMetrics, _Additions
from windowing.stores.states import MemoryStateProvider
from windowing.trident import Count, FixedBatchSpout, TridentTopology


@bolt(output="word string, at long")
def split(tuple):
    if tuple["sentence"] == "bad":
        raise ReportedFailedException("bad")
    return [(word, tuple["at"]) for word in tuple["sentence"].split()]


@tumbling(millis(10), timestamp="at", late_stream="late", output="n long")
def tens(window):
    return len(window)


@bolt(output="n long")
class Settles(Bolt):
    def prepare(self, context, collector):
        self.collector = collector

    def execute(self, tuple):
        self.collector.emit((tuple["n"],), anchors=tuple)
        self.collector.ack(tuple) if tuple["n"] != 2 else self.collector.fail(tuple)


def topology(**settings):
    builder = TopologyBuilder("words").configure({"windowing.max.attempts": 2, **settings})
    builder.set_spout("sentences", InputSpout("sentence string, at long"))
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("tens", tens).global_grouping("split")
    return builder.build()


def settled():
    builder = TopologyBuilder("numbers").configure({"windowing.max.attempts": 2})
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("ends", Settles).shuffle_grouping("numbers")
    return builder.build()


BATCHES = {"sentences": [[("to be", 1), ("or", 2)], [("not to be", 25)], [("late", 4), ("that is", 31)]]}


def watched(**settings):
    with LocalCluster(topology(**settings), batches=BATCHES, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        result = cluster.run()
        return result, metrics.now()


class AcksOdd:
    def execute(self, tuple):
        if tuple["n"] % 2:
            self.collector.ack(tuple)


@bolt
class Plain(AcksOdd, Bolt): ...


@bolt
class Stateful(AcksOdd, StatefulBolt):
    def init_state(self, state): ...


@pytest.mark.parametrize("odd", [Plain, Stateful])
def test_a_tuple_of_a_bolt_with_manual_acks_is_counted_as_acked_when_the_bolt_acks_it(odd):
    builder = TopologyBuilder("numbers")
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("odd", odd).shuffle_grouping("numbers")
    with LocalCluster(builder.build(), batches={"numbers": []}, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run_batch({"numbers": [(1,), (2,), (3,)]})
        found = metrics.now().components()["odd"]
    assert (found.executed, found.acked, found.failed) == (3, 2, 0)


@bolt
class FailsByItself(Bolt):
    def execute(self, tuple):
        if tuple["n"] == 2:
            self.collector.fail(tuple)
            raise FailedException("twice")
        self.collector.ack(tuple)


@bolt
def fails(tuple):
    if tuple["n"] == 2:
        raise FailedException("not this one")


@bolt(columnar="arrow")
def fails_whole(batch):
    if 2 in batch["n"].to_pylist():
        raise FailedException("not this batch")


@pytest.mark.parametrize("ackers", [0, 1])
@pytest.mark.parametrize("failing", [FailsByItself, fails, fails_whole])
def test_a_failed_tuple_is_counted_once_also_without_ackers(failing, ackers):
    builder = TopologyBuilder("numbers").configure(acker_executors=ackers, max_attempts=1)
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("fails", failing).shuffle_grouping("numbers")
    with LocalCluster(builder.build(), batches={"numbers": []}, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run_batch({"numbers": [(1,), (2,), (3,)]})
        found = metrics.now().components()["fails"]
    failed = 3 if failing is fails_whole and not ackers else 1  # without ackers one batch has all tuples
    assert (found.executed, found.acked, found.failed) == (3, 3 - failed, failed)


def test_each_task_counts_executed_emitted_and_acked_tuples():
    _, run = watched()
    assert [task.task for task in run.tasks if task.component == "split"] == [0, 1]
    found = run.components()
    assert found["sentences"].emitted == {"default": 5}
    assert (found["split"].executed, found["split"].acked, found["split"].failed) == (5, 5, 0)
    assert found["split"].emitted == {"default": 9}
    assert found["split"].execute_ms > 0
    assert found["split"].process_ms == found["split"].execute_ms


def test_failures_errors_and_dead_letters_are_counted_in_the_task_that_had_them():
    with LocalCluster(topology(), batches={"sentences": [[("bad", 3)]]}, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        result = cluster.run()
        found = metrics.now().components()
    assert (found["split"].executed, found["split"].failed, found["split"].acked) == (2, 2, 0)
    assert found["split"].reported == len(result.errors) == 2
    assert found["split"].dead_letters == len(result.dead_letters) == 1
    assert (found["sentences"].emitted, found["sentences"].failed) == ({"default": 2}, 2)


def test_errors_and_dead_letters_are_read_once_however_often_the_metrics_are_asked_for():
    class Read(list):
        items = 0

        def __iter__(self):
            raise AssertionError("all items are read")

        def __reversed__(self):
            for item in super().__reversed__():
                Read.items += 1
                yield item

    with LocalCluster(topology(), batches={"sentences": []}, clock=VirtualClock(1000)) as cluster:
        metrics, result = ClusterMetrics(cluster), cluster.result
        result.dead_letters = Read()
        for _ in range(3):
            cluster.run_batch({"sentences": [("bad", 3)] * 5})
            for _ in range(10):
                found = metrics.now().components()["split"]
        assert (found.dead_letters, found.reported) == (15, 30)
        assert Read.items == 15 + 29, "each once, and in all calls but the first the one that was last"
        for known, kept, new in ((15, 0, 1), (16, 0, 20), (36, 5, 2)):  # as a program does that runs for weeks
            del result.dead_letters[: len(result.dead_letters) - kept]
            assert metrics.now().components()["split"].dead_letters == known
            cluster.run_batch({"sentences": [("bad", 3)] * new})
            assert metrics.now().components()["split"].dead_letters == known + new


def test_windowed_bolts_count_fired_windows_late_and_expired_tuples():
    _, run = watched()
    tens = run.components()["tens"]
    assert tens.late == {"late": 1}
    assert tens.windows_fired == 3
    assert (tens.executed, tens.expired, tens.acked, tens.pending) == (9, 8, 9, 0)
    assert tens.emitted == {"default": 3, "late": 1}


def test_a_bolt_with_manual_acks_is_counted_tuple_by_tuple():
    with LocalCluster(settled(), batches={"numbers": [[1, 2, 3]]}, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        ends = metrics.now().components()["ends"]
    assert (ends.executed, ends.acked, ends.failed, ends.emitted) == (4, 2, 2, {"default": 4})


@tumbling(millis(10), timestamp="at", on_error="fail", output="n long")
def refuses(window):
    raise FailedException("no")


def test_tuples_of_a_failed_window_count_as_failed_and_not_as_acked():
    builder = TopologyBuilder("refused").configure({"windowing.max.attempts": 1})
    builder.set_spout("rows", InputSpout("at long"))
    builder.set_bolt("refuses", refuses).global_grouping("rows")
    with LocalCluster(builder.build(), batches={"rows": [[1, 2], [25]]}, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        result = cluster.run()
        found = metrics.now().components()["refuses"]
    assert (found.executed, found.failed, found.acked, result.acked) == (3, 3, 0, 0)


def test_a_spout_counts_acks_and_failures_as_the_result_does():
    result, run = watched()
    spout = run.components()["sentences"]
    assert (spout.acked, spout.failed) == (result.acked, result.failures)
    assert spout.pending == 0


def test_process_latency_lasts_from_arrival_to_ack():
    with LocalCluster(topology(), batches={}, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run_batch({"sentences": [("to be", 5)]})
        assert metrics.now().components()["tens"].pending == 2
        cluster.run_for(Duration(ms=500))
        cluster.run_batch({"sentences": [("or", 25)]})
        tens = metrics.now().components()["tens"]
        assert tens.acked == 2
        assert tens.process_latency_ms == pytest.approx(500, rel=0.05)
        assert tens.watermark_lag_ms == cluster.clock.now_ms() - tens.watermark_ms


def test_a_cluster_with_metrics_has_the_same_result_as_one_without():
    result, _ = watched()
    with LocalCluster(topology(), batches=BATCHES, clock=VirtualClock(1000)) as cluster:
        plain = cluster.run()
    assert plain.outputs == result.outputs
    assert (plain.acked, plain.failures, plain.late, plain.counts) == (
        result.acked,
        result.failures,
        result.late,
        result.counts,
    )


def test_without_ackers_emitted_messages_count_as_acked():
    _, run = watched(**{"topology.acker.executors": 0})
    assert run.components()["sentences"].acked == 5


def test_groups_of_a_trident_topology_count_rows():
    trident = TridentTopology("words")
    spout = FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)])
    trident.new_stream("words", spout).group_by("word").aggregate(None, Count(), "n long").sink("counts")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        run = metrics.now()
    assert run.batch == 2
    assert sum(sum(task.emitted.values()) for task in run.tasks if "counts" in task.emitted) == 3
    assert {sum(each.emitted.values()) for each in run.components().values()} == {3}
    assert {each.executed for each in run.components().values() if each.executed} == {3}
    assert all(each.acked == each.executed for each in run.tasks)


def test_rows_of_a_failed_attempt_of_a_trident_topology_are_failed_and_those_of_its_repetition_acked():
    failing = iter([True, True, False, False])

    def flaky(row):
        if next(failing, False):
            raise FailedException("again")
        return [(1,)]

    trident = TridentTopology("words").configure({"windowing.retry.delay.ms": 0})
    stream = trident.new_stream("words", FixedBatchSpout("word string", 2, [("to",), ("be",), ("to",)]))
    stream.shuffle().each(["word"], flaky, "n int").sink("out")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        (group,) = [task for task in metrics.now().tasks if task.executed]
    assert (group.executed, group.acked, group.failed) == (7, 3, 4)


def test_errors_that_the_user_removes_from_the_result_are_counted_once():
    additions, items = _Additions(), ["a" * 2, "b" * 2, "c" * 2]
    assert additions.of(items) == items
    items.pop()
    assert additions.of(items) == []
    items[:] = [items[1], "d" * 2]
    assert additions.of(items) == ["dd"]
    items.clear()
    assert additions.of(items) == []


PAIRS = [(1, 1, "a"), (2, 12, "b"), (3, 25, "a"), (4, 3, "b")]


def test_windows_of_a_trident_topology_are_counted_once_also_if_an_attempt_fails():
    failing = iter([False, True, False, False])

    def flaky(window):
        if next(failing):
            raise FailedException("again")
        return [(len(window),)]

    trident = TridentTopology("pairs").configure({"windowing.retry.delay.ms": 0})
    numbers = trident.new_stream("numbers", FixedBatchSpout("n long", 3, [(n,) for n in range(7)]))
    numbers.tumbling_window(count(2), None, flaky, "size long", timestamp="n").sink("pairs")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        result = cluster.run(drain=False)
        (windows,) = [task for task in metrics.now().tasks if task.windows_fired]
    assert result["pairs"] == [(2,)] * windows.windows_fired
    assert (windows.windows_fired, windows.expired, windows.pending) == (3, 6, 1)
    assert not list(failing)


def test_windows_of_a_trident_topology_have_a_watermark_and_name_the_input_that_holds_it_back():
    trident = TridentTopology("pairs")
    numbers = trident.new_stream("numbers", FixedBatchSpout("n long, at long, source string", 2, PAIRS))
    options = {"timestamp": "at", "source": "source"}
    numbers.tumbling_window(millis(10), "n", Count(), "pairs long", **options).sink("pairs")
    with TridentCluster(trident, clock=VirtualClock(100)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
    windows = next(each for each in metrics.now().tasks if each.slowest is not None)
    assert (windows.watermark_ms, windows.watermark_lag_ms) == (12, metrics.now().at_ms - 12)
    assert str(windows.slowest) == "stream default, source b"


def test_metrics_are_plain_data_whatever_kind_of_whole_number_the_clock_stands_at():
    clock = SimpleNamespace(now_ms=lambda: np.int64(100))
    with LocalCluster(topology(), {"sentences": [[("to be", 12)]]}, clock=clock) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
    assert json.loads(json.dumps(metrics.now().plain()))["at_ms"] == 100


def test_metrics_count_windows_of_a_trident_topology_from_when_they_are_made():
    trident = TridentTopology("pairs")
    numbers = trident.new_stream("numbers", FixedBatchSpout("n long", 2, [(n,) for n in range(5)]))
    numbers.tumbling_window(count(2), None, lambda window: [(len(window),)], "size long", timestamp="n").sink("pairs")
    with TridentCluster(trident, clock=VirtualClock()) as cluster:
        while not cluster.result.sinks.get("pairs"):
            cluster.step()
        metrics = ClusterMetrics(cluster)
        result = cluster.run(drain=False)
        windows = [task for task in metrics.now().tasks if task.pending is not None]
    assert result["pairs"] == [(2,), (2,)]
    assert [(each.windows_fired, each.expired, each.pending) for each in windows] == [(1, 2, 1)]


def test_every_sample_has_a_metric_of_the_table_and_its_labels():
    _, run = watched()
    found = list(samples(run))
    assert {sample.metric for sample in found} <= set(METRICS)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in found)
    assert {"emitted", "executed", "acked", "late", "windows_fired", "pending", "execute_seconds"} <= {
        sample.metric.name for sample in found
    }


def test_counters_never_fall_during_a_run():
    with LocalCluster(topology(), batches={}, clock=VirtualClock(1000)) as cluster:
        metrics, before = ClusterMetrics(cluster), {}
        for batch in BATCHES["sentences"]:
            cluster.run_batch({"sentences": batch})
            now = counters_of(metrics)
            assert all(now[key] >= value for key, value in before.items())
            before = now


def test_acked_does_not_fall_within_a_step_of_a_bolt_that_fails_tuples():
    found = []

    @bolt(output="n long")
    def odd(tuple):
        found.append(counters_of(metrics))
        if tuple["n"] % 2:
            raise FailedException("odd")

    builder = TopologyBuilder("odds").configure(max_attempts=1)
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("odd", odd).shuffle_grouping("numbers")
    batches = {"numbers": [[(n,) for n in range(10)], [(n,) for n in range(10)]]}
    with LocalCluster(builder.build(), batches=batches, clock=VirtualClock()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
    found.append(counters_of(metrics))
    acked = [next(value for key, value in each.items() if key[0] == "acked" and "odd" in key[1]) for each in found]
    assert acked == [0] * 10 + [5] * 10 + [10]


def test_late_tuples_do_not_fall_when_they_are_undone():
    @tumbling(millis(10), timestamp="at", message_id="id", watermark_interval=millis(1), output="n long")
    class Counted:
        def init_state(self, state):
            pass

        def execute(self, window):
            return len(window)

        def pre_prepare(self, txid):
            if refusals:
                raise FailedException(refusals.pop())

    builder = TopologyBuilder("undone").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("numbers", InputSpout("at long, id long"))
    builder.set_bolt("counted", Counted).global_grouping("numbers")
    refusals, found = [], []
    with LocalCluster(builder.build(), batches={}, clock=VirtualClock(), states=MemoryStateProvider()) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run_batch({"numbers": [(100, 1)]})
        refusals.append("refused")
        cluster.run_batch({"numbers": [(1, 2), (1, 3), (200, 4)]})
        found += [each.late for each in metrics.now().tasks if each.component == "counted"]
        assert not refusals
    assert found == [{"late": 2}]


def counters_of(metrics):
    return {(s.metric.name, s.labels): s.value for s in samples(metrics.now()) if s.metric.kind == "counter"}


@pytest.mark.parametrize("kept", [{}, {"max_events_in_memory": 1_000}])
def test_counters_do_not_fall_when_a_checkpoint_is_undone(kept):
    refusals = ["refused"] * 6

    @spout(output="id long, at long")
    class Source(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = [(n, n if n % 5 or n < 6 else 1) for n in range(1, 60)]

        def next_tuple(self):
            if self.left:
                self.collector.emit(self.left[0], message_id=self.left.pop(0)[0])

    @sliding(
        count(3), count(2), timestamp="at", watermark_interval=millis(10), message_id="id", output="n long", **kept
    )
    class Recent:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            return len(window)

        def pre_prepare(self, txid):
            if refusals:
                raise FailedException(refusals.pop())

    builder = TopologyBuilder("undone").configure(
        state_checkpoint_interval=millis(100), max_spout_pending=30, max_attempts=None, retry_delay=millis(20)
    )
    builder.set_spout("source", Source)
    builder.set_bolt("recent", Recent).global_grouping("source")
    with LocalCluster(builder.build(), clock=VirtualClock(), states=MemoryStateProvider()) as cluster:
        metrics, before = ClusterMetrics(cluster), {}
        for _ in range(150):
            cluster.run_for(millis(10))
            now = counters_of(metrics)
            assert [key for key, value in before.items() if now[key] < value] == []
            before = now
    assert (refusals, cluster.result.failures) == ([], 6 * 30)
    assert {key[0]: value for key, value in now.items() if "recent" in key[1]}["windows_fired"] == 27


def test_acked_does_not_fall_when_tuples_of_a_window_fail():
    @sliding(count(3), count(1), on_error="fail", output="n long")
    def refuses_nine(window):
        if any(row.n == 9 for row in window):
            raise FailedException("nine")
        return len(window)

    builder = TopologyBuilder("nine").configure(max_attempts=1)
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("windows", refuses_nine).global_grouping("numbers")
    with LocalCluster(builder.build(), batches={}, clock=VirtualClock(1000)) as cluster:
        metrics, before = ClusterMetrics(cluster), {}
        for n in (1, 2, 3, 4, 5, 9, 10, 11, 12, 13):
            cluster.run_batch({"numbers": [(n,)]})
            now = counters_of(metrics)
            assert [key for key, value in before.items() if now[key] < value] == []
            before = now
    (windows,) = [task for task in metrics.now().tasks if task.component == "windows"]
    assert windows.failed == 5


def test_metrics_of_something_else_than_a_cluster_are_refused():
    with pytest.raises(ConfigError, match="takes a LocalCluster or a TridentCluster, got"):
        ClusterMetrics(topology())


@pytest.mark.parametrize("on_disk", [False, True])
def test_repeated_tuples_are_counted_in_the_metrics_and_in_the_result_also_after_a_restart(on_disk, tmp_path):
    @tumbling(count(2), message_id="n", output="n long", **({"max_events_in_memory": 1_000} if on_disk else {}))
    class Pairs:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            return [(row.n,) for row in window.get()]

    builder = TopologyBuilder("repeating").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("numbers", InputSpout("n long"))
    builder.set_bolt("pairs", Pairs).global_grouping("numbers")
    topology, seen = builder.build(), []
    for rows in ([1, 2, 2, 1, 3], [3, 4, 4]):
        batches = {"numbers": [[(n,) for n in rows]]}
        states = {"clock": VirtualClock(), "state_path": tmp_path / "states.db"}
        with LocalCluster(topology, batches=batches, **states) as cluster:
            metrics = ClusterMetrics(cluster)
            result = cluster.run(drain=False)
            (pairs,) = [task for task in metrics.now().tasks if task.component == "pairs"]
            seen.append((result["pairs"], result.duplicates, pairs.duplicates))
    total = 4 if on_disk else 3  # in memory the 3 is sent again, to be put back in its place
    assert seen == [([(1,), (2,)], {"pairs": 2}, 2), ([(3,), (4,)], {"pairs": total}, total)]


def test_the_metrics_name_the_input_that_holds_the_watermark_back():
    builder = TopologyBuilder("two")
    for name in ("left", "right"):
        builder.set_spout(name, InputSpout("at long"))
    builder.set_bolt("both", tens, 2).shuffle_grouping("left").shuffle_grouping("right")
    with LocalCluster(builder.build(), batches={}, clock=VirtualClock(1000)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run_batch({"left": [(5,), (50,)]})
        both = metrics.now().components()["both"]
        assert str(both.slowest) == "stream right:default, which had no tuple yet"
        assert both.watermark_ms is None
        cluster.run_batch({"right": [(7,)]})
        cluster.run_for(Duration(ms=500))
        now = metrics.now()
        assert str(now.components()["both"].slowest) == "stream right:default"
        lags = {sample.labels[2:]: sample.value for sample in samples(now) if "slowest" in sample.metric.name}
        assert lags == {(task, "right:default", ""): (now.at_ms - 7) / 1000 for task in "01"}
