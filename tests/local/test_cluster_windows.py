"""Windows that outlive their cluster: recovered by message ids, or on disk; with states, acks, restarts and refusals."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowing import count, millis, seconds, sliding, tumbling, windowed_bolt
from windowing.acking.acker import Failed, Reason
from windowing.errors import BoltError, ConfigError, FailedException
from windowing.local import run_local, windowed
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.stores.states import MemoryStateProvider
from windowing.testing import Watch
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, InputSpout, Spout
from windowing.topology.decorators import bolt, spout
from windowing.topology.plan import TopologyError

ROWS = "id long, at long, n long"
IDS = "ids array<long>, fresh array<long>, end long"


class Source:
    """A queue that deletes acked messages: each cluster that reads it gets all the rest."""

    def __init__(self, rows):
        self.left = list(rows)
        queue = self

        @spout(output=ROWS)
        class Queue(Spout):
            def open(self, context, collector):
                super().open(context, collector)
                self.rows = list(queue.left)

            def next_tuple(self):
                if self.rows:
                    row = self.rows.pop(0)
                    self.collector.emit(row, message_id=row[0])

            def ack(self, message_id):
                queue.left[:] = [row for row in queue.left if row[0] != message_id]

        self.spout = Queue


def summing(length, slide, **options):
    """A stateful windowed bolt: the ids of its windows, and in its state how often each window fired."""

    @windowed_bolt(
        length=length, slide=slide, output="line string, times long, new long, old long", name="window", **options
    )
    class Summing:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            line = " ".join(str(row["id"]) for row in window.get())
            times = self.state.get(line, 0) + 1
            self.state.put(line, times)
            return line, times, len(window.get_new()), len(window.get_expired())

    return Summing


def plain(length, slide, **options):
    """The same without a state."""

    @windowed_bolt(length=length, slide=slide, output="line string, new long, old long", name="window", **options)
    def lines(window):
        return " ".join(str(row["id"]) for row in window.get()), len(window.get_new()), len(window.get_expired())

    return lines


def topology_of(source, declared, tasks=1, **settings):
    settings = {"state_checkpoint_interval": millis(100), "message_timeout": seconds(600)} | settings
    builder = TopologyBuilder("windows").configure(**settings)
    builder.set_spout("source", source)
    builder.set_bolt("window", declared, tasks).fields_grouping("source", "n")
    return builder.build()


def rows_of(many):
    return [(n, 10 * n, n % 2) for n in range(many)]


KINDS = {
    "by ids": lambda length, slide: summing(length, slide, message_id="id"),
    "on disk": lambda length, slide: plain(length, slide, max_events_in_memory=1_000),
    "on disk, with a state": lambda length, slide: summing(length, slide, max_events_in_memory=1_000),
    "on disk, with ids": lambda length, slide: plain(length, slide, max_events_in_memory=1_000, message_id="id"),
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    ("length", "slide"), [(count(4), count(2)), (seconds(1), millis(500)), (count(4), millis(300))]
)
def test_recovered_and_on_disk_windows_equal_those_in_memory(kind, length, slide):
    rows = [[row for row in rows_of(60) if row[0] // 20 == batch] for batch in range(3)]
    lines = {}
    for name, make in [("in memory", plain), (kind, KINDS[kind])]:
        declared = make(length, slide)
        result = run_topology(topology_of(InputSpout(ROWS), declared), {"source": rows}, clock=VirtualClock())
        assert (result.acked, result.errors, result.dead_letters) == (60, [], [])
        lines[name] = [(row[0], *row[-2:]) for row in result["window"]]
    assert lines[kind] == lines["in memory"] != []


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_restarted_cluster_continues_with_the_windows_of_its_last_checkpoint(kind, tasks, tmp_path):
    declared = KINDS[kind](count(6), count(2))
    whole = run_topology(topology_of(Source(rows_of(100)).spout, declared, tasks), clock=VirtualClock())["window"]
    source, clock, lines = Source(rows_of(100)), VirtualClock(), []
    topology = topology_of(source.spout, declared, tasks, state_provider="sqlite", max_spout_pending=20)
    for _ in range(3):
        with LocalCluster(topology, clock=clock, state_path=tmp_path / "states") as cluster:
            cluster.run_for(millis(101))
            lines += cluster.result["window"]
    assert 0 < len(source.left) < 100
    again = run_topology(topology, clock=clock, state_path=tmp_path / "states")
    assert (again.errors, again.dead_letters, source.left) == ([], [], [])
    assert {row[0] for row in (*lines, *again["window"])} == {row[0] for row in whole}
    counts = again.counts["window"]
    assert (counts["in"], counts["expired"], counts["pending"]) == (100, 100, 0)
    if "state" in kind or kind == "by ids":  # the state saw each window once, however often it was emitted
        assert {row[1] for row in (*lines, *again["window"])} == {1}


def test_a_tuple_is_acked_by_the_first_checkpoint_after_it_expired():
    clock = VirtualClock()
    topology = topology_of(Source(rows_of(5)).spout, summing(count(2), count(2), message_id="id"))
    with LocalCluster(topology, clock=clock) as cluster:
        cluster.run_for(millis(99))
        assert (len(cluster.result["window"]), cluster.result.acked) == (2, 0)
        cluster.run_for(millis(5))
        assert cluster.result.acked == 4


def test_a_tuple_on_disk_is_acked_by_the_checkpoint_that_holds_it():
    clock = VirtualClock()
    topology = topology_of(Source(rows_of(6)).spout, plain(count(100), count(100), max_events_in_memory=1_000))
    with LocalCluster(topology, clock=clock) as cluster:
        cluster.run_for(millis(99))
        assert cluster.result.acked == 0
        cluster.run_for(millis(5))
        assert (cluster.result.acked, cluster.result["window"]) == (6, [])


def test_the_output_of_a_window_on_disk_is_not_anchored():
    failed = []

    @bolt()
    def refusing(tuple):
        failed.append(tuple["line"])
        raise FailedException("no")

    builder = TopologyBuilder("unanchored").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", plain(count(2), count(2), max_events_in_memory=1_000)).global_grouping("source")
    builder.set_bolt("refusing", refusing).global_grouping("window")
    result = run_topology(builder.build(), {"source": [rows_of(4)]}, clock=VirtualClock())
    assert (failed, result.acked, result.failures) == (["0 1", "2 3"], 4, 0)


@pytest.mark.parametrize("kind", list(KINDS))
def test_late_tuples_are_emitted_anchored_and_acked(kind):
    stateful = kind in ("by ids", "on disk, with a state")
    ids = {} if kind in ("on disk", "on disk, with a state") else {"message_id": "id"}
    disk = {} if kind == "by ids" else {"max_events_in_memory": 1_000}
    declared = (summing if stateful else plain)(
        seconds(1), seconds(1), timestamp="at", late_stream="late", **ids, **disk
    )
    rows = [[(0, 1000, 0), (1, 2500, 0)], [(2, 10, 0), (3, 2600, 0), (4, 20, 0)]]
    builder = TopologyBuilder("late").configure(state_checkpoint_interval=millis(100), max_attempts=2)
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", declared).global_grouping("source")
    seen = []

    @bolt()
    def late(tuple):
        seen.append((tuple["id"], tuple["reason"]))
        if len(seen) == 1:
            raise FailedException("the first time")

    builder.set_bolt("late", late).global_grouping("window", stream="late")
    result = run_topology(builder.build(), {"source": rows}, clock=VirtualClock())
    # A tuple whose late row failed is replayed: with its id it is a duplicate, else it is late once more.
    again = [(2, "late")] if not ids else []
    assert seen == [(2, "late"), (4, "late"), *again]
    assert (result.acked, result.failures) == (5, 1)


def test_tuples_that_are_not_replayed_in_time_are_reported_and_given_up():
    states, clock = MemoryStateProvider(), VirtualClock()
    declared = summing(count(4), count(2), message_id="id", recovery_timeout=seconds(5))
    topology = topology_of(InputSpout(ROWS), declared)
    with LocalCluster(topology, clock=clock, states=states) as cluster:
        cluster.run_batch({"source": rows_of(6)[::2]})
    with LocalCluster(topology, clock=clock, states=states) as cluster:
        cluster.run_batch({"source": [(20, 200, 0), (22, 220, 0)]})  # the tuples of the window are not sent again
        assert (cluster.result["window"], cluster.result.errors) == ([], [])
        cluster.run_for(seconds(6))
        [error] = cluster.result.errors
        assert "waited 5000 ms" in str(error.error)
        assert "3 tuples" in str(error.error)
        # Assigned numbers stay assigned: the window at the fourth tuple holds what is left of it.
        assert [row[0] for row in cluster.result["window"]] == ["20"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_without_a_drain_leaves_windows_open_for_the_next_run(kind):
    states, clock = MemoryStateProvider(), VirtualClock()
    topology = topology_of(Source(rows_of(7)).spout, KINDS[kind](count(4), count(4)))
    lines = []
    for drain in (False, False, True):
        result = run_topology(topology, clock=clock, states=states, drain=drain)
        lines.append([row[0] for row in result["window"]])
        assert result.errors == []
    assert [*lines[0], *lines[1], *lines[2]] == ["0 1 2 3", "4 5 6"]
    assert lines[-1] == ["4 5 6"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_tuple_for_drained_windows_is_late_as_closed_and_reported(kind):
    states, clock = MemoryStateProvider(), VirtualClock()
    topology = topology_of(InputSpout(ROWS), KINDS[kind](count(4), count(4)))
    run_topology(topology, {"source": [rows_of(2)]}, clock=clock, states=states)
    result = run_topology(topology, {"source": [[(9, 90, 0)]]}, clock=clock, states=states)
    assert result.late == {("window", "closed"): 1}
    [error] = result.errors
    assert "begin with new states, or end a run that is to go on with run(drain=False)" in str(error.error)


def test_checkpoints_pass_through_windows_in_memory():
    @bolt(output="line string, times long")
    class Counting:
        def init_state(self, state):
            self.state = state

        def execute(self, tuple):
            times = self.state.get(tuple["line"], 0) + 1
            self.state.put(tuple["line"], times)
            return tuple["line"], times

    builder = TopologyBuilder("mixed").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", plain(count(2), count(2)), 2).fields_grouping("source", "n")
    builder.set_bolt("count", Counting).global_grouping("window")
    result = run_topology(builder.build(), {"source": [rows_of(4), rows_of(4)]}, clock=VirtualClock(), seed=3)
    assert sorted(result["count"]) == [("0 1", 1), ("0 1", 2), ("2 3", 1), ("2 3", 2)]
    assert (result.acked, result.counts["window"]["in"]) == (8, 8)


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_a_stateful_window_in_memory_without_message_ids_is_refused():
    with pytest.raises(
        ConfigError, match=r"bolt 'window' has a state beside its windows.*message_id=, or .*max_events"
    ):
        LocalCluster(topology_of(InputSpout(ROWS), summing(count(2), count(2))))


def test_a_message_id_that_is_no_whole_number_is_refused():
    declared = summing(count(2), count(2), message_id="id")
    builder = TopologyBuilder("text").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("source", InputSpout("id long"))
    builder.set_bolt("window", declared).global_grouping("source")
    with pytest.raises(
        ConfigError, match="bolt 'window', message_id='id': the message id is None, wanted a whole number"
    ):
        run_topology(builder.build(), {"source": [[(None,)]]}, clock=VirtualClock())


def test_a_window_on_disk_cannot_fail_its_tuples():
    @tumbling(count(2), max_events_in_memory=1_000, output="n long")
    def failing(window):
        raise FailedException("no")

    builder = TopologyBuilder("failing").configure(state_checkpoint_interval=millis(100))
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", failing).global_grouping("source")
    with pytest.raises(BoltError, match="bolt 'window' failed"):
        run_topology(builder.build(), {"source": [rows_of(2)]}, clock=VirtualClock())


@pytest.mark.parametrize("on_error", ["raise", "fail"])
def test_a_failed_window_with_message_ids_fails_each_tuple_once_and_is_reported_because_it_does_not_come_again(
    on_error,
):
    shown = []

    @sliding(count(2), count(1), message_id="id", on_error=on_error, output="last long")
    class Picky:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            shown.append([row["id"] for row in window])
            self.state.put("shown", shown[-1])
            if 1 in shown[-1]:
                raise FailedException("no")
            return shown[-1][-1]

    states = MemoryStateProvider()
    topology = topology_of(InputSpout(ROWS), Picky)
    with LocalCluster(
        topology, {"source": [[(n, 0, 0) for n in range(4)]]}, clock=VirtualClock(), states=states
    ) as cluster:
        watch = Watch(cluster)
        result = cluster.run()
        watch.finish(messages=4)
    assert shown == [[0], [0, 1], [1, 2], [2, 3]]
    assert (result["window"], result.acked, result.failures) == ([(0,), (3,)], 4, 3)
    assert result.duplicates == {"window": 3}
    assert [each.error.__cause__.args for each in result.errors] == [("no",)] * 2
    assert states.state("window", 0).get("shown") == [2, 3]


def test_losses_in_a_crash_are_found_when_the_topology_is_built():
    @bolt(output=ROWS)
    def copy(tuple):
        return tuple["id"], tuple["at"], tuple["n"]

    @windowed_bolt(length=count(2), slide=count(2), max_events_in_memory=1_000, output=ROWS)
    def disk(window):
        return [(row["id"], row["at"], row["n"]) for row in window]

    by_ids = summing(count(2), count(2), message_id="id")
    builder = TopologyBuilder("wrong").configure(acker_executors=0)
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("copy", copy, 2).shuffle_grouping("source")
    builder.set_bolt("disk", disk).global_grouping("source")
    builder.set_bolt("window", by_ids, 2).fields_grouping("copy", "n").partial_key_grouping("disk", "n")
    builder.set_bolt("named", summing(count(2), count(2), message_id="no")).global_grouping("source")
    with pytest.raises(TopologyError) as found:
        builder.build()
    for problem, wanted in zip(
        found.value.problems,
        [
            "bolt 'named' has message_id='no', a field that 'source' has not",
            "bolt 'window' knows tuples again by message_id='id', but bolt 'window' reads 'disk' by partialKey(n) grouping",
            "bolt 'window' knows tuples again by message_id='id', but bolt 'copy' reads 'source' by shuffle grouping with 2 tasks",
            "bolt 'window' waits after a restart for tuples that were not acked, but without an acker all are",
            "bolt 'named' waits after a restart",
            "bolt 'window' keeps in memory what comes from 'disk', whose window is on disk",
        ],
        strict=True,
    ):
        assert problem.startswith(wanted)


def test_message_timeout_must_cover_the_checkpoint_interval_but_not_a_window_on_disk():
    disk = plain(seconds(100), seconds(10), max_events_in_memory=1_000)
    settings = {"message_timeout": seconds(30), "max_spout_pending": 2}
    topology_of(InputSpout(ROWS), disk, **settings)
    topology_of(InputSpout(ROWS), plain(count(100), count(10), max_events_in_memory=1_000), **settings)
    with pytest.raises(TopologyError, match="bolt 'window' acks at a checkpoint, every 60000 ms"):
        topology_of(InputSpout(ROWS), disk, **settings, state_checkpoint_interval=seconds(60))
    by_ids = summing(seconds(20), seconds(10), message_id="id")
    parts = r"up to 31000 ms \(length 20000 \+ slide 10000 \+ checkpoint interval 1000\)"
    with pytest.raises(TopologyError, match=parts):
        topology_of(InputSpout(ROWS), by_ids, message_timeout=seconds(30), state_checkpoint_interval=seconds(1))


def test_recovering_tasks_have_the_watermark_of_a_run_without_a_restart():
    """In batches the tasks of a bolt share one watermark: a recovering task still sends and receives it."""
    seen = []

    @tumbling(seconds(10), timestamp="at", late_stream="late", message_id="id", output="ids array<long>", name="window")
    class Ids:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            seen.append([row["id"] for row in window])
            return (seen[-1],)

    builder = TopologyBuilder("one_watermark").configure(message_timeout=seconds(600))
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", Ids, 2).fields_grouping("source", "n")
    topology = builder.build()
    a, b = 0, 2
    with LocalCluster(topology, batches={"source": []}, clock=VirtualClock()) as probe:
        probe.run_batch({"source": [(1, 0, n) for n in (a, b)]})
        assert [task.executor.counts()["in"] for task in probe.task_set.windowed] == [1, 1], (
            "a and b are tasks of their own"
        )
    first = [(1, 1_000, a), (2, 2_000, b)]
    # a is late for the windows that b's tuple has ended in the batch before, and the other way round.
    second = [(3, 3_000, a), (4, 12_000, b)]
    third = [(5, 9_000, a), (6, 25_000, a), (7, 11_500, b)]
    fourth = [(8, 19_000, b), (9, 26_000, a)]

    def run(batches, states):
        """Run batches; return the windows that each batch fired, and its late tuples."""
        found = []
        with LocalCluster(topology, batches={"source": []}, clock=VirtualClock(), states=states) as cluster:
            for rows in batches:
                del seen[:]
                before = len(cluster.result["window.late"])
                cluster.run_batch({"source": rows})
                found.append((sorted(seen), sorted(row[0] for row in cluster.result["window.late"][before:])))
        return found

    whole = run([first, second, third, fourth], MemoryStateProvider())
    assert whole[1:] == [([[1, 3], [2]], []), ([[4]], [5, 7]), ([], [8])]
    for held in ([first[0]], [first[1]], []):
        states = MemoryStateProvider()
        assert run([first], states) == whole[:1]
        again = [row for row in first if row not in held]
        found = run([again + second, third + held, fourth], states)
        windows = sorted(window for fired, _ in found for window in fired)
        assert windows == sorted(window for fired, _ in whole for window in fired)
        assert sorted(id for _, late in found for id in late) == [5, 7, 8]
        recovering = {row[0] for row in held}
        assert found[0][0] == [window for window in whole[1][0] if not recovering & set(window)], (
            "the other task is in time"
        )


@st.composite
def restarted(draw):
    """Batches of rows by id, the batch before which the cluster is restarted, and the batch with which each old row is replayed."""
    stamps = draw(st.lists(st.lists(st.integers(0, 60), max_size=5), min_size=2, max_size=5))
    ids = iter(range(100))
    batches = [[(next(ids), 1_000 * at, draw(st.integers(0, 5))) for at in batch] for batch in stamps]
    cut = draw(st.integers(1, len(batches) - 1))
    old = [row for batch in batches[:cut] for row in batch]
    again = [(row, draw(st.integers(cut, len(batches) - 1)), draw(st.booleans())) for row in draw(st.permutations(old))]
    return batches, cut, again


@st.composite
def shared_watermarks(draw):
    """Options of a window over two streams, its number of tasks, and batches of (stream, key, time, source), a pause after each."""
    times = st.integers(0, 30_000)
    row = st.tuples(st.sampled_from("ab"), st.integers(0, 7), times, st.sampled_from(["p", "q", None]))
    length = draw(st.integers(1, 6))
    options = {
        "length": seconds(length),
        "slide": seconds(draw(st.integers(1, length))),
        "lag": millis(draw(st.sampled_from([0, 1_500]))),
        "idle_timeout": draw(st.sampled_from([None, seconds(5)])),
        "source": draw(st.sampled_from([None, "source"])),
    }
    batches = st.tuples(st.lists(row, max_size=12), st.sampled_from([0, 1_000, 7_000]))
    return options, draw(st.integers(1, 5)), draw(st.lists(batches, min_size=1, max_size=6))


class MergesPairs(LocalCluster):
    """The slow model of one watermark for all tasks of a bolt: each task merges all the others just before its turn."""

    def _turns(self):
        tasks = self.task_set.windowed
        for task in tasks:
            for other in tasks:
                if other is not task:
                    task.executor.generator.merge(other.executor.generator)
            task.turn()
        self._settle()


@settings(max_examples=settings().max_examples * 2)
@given(shared_watermarks())
def test_the_tasks_of_a_bolt_share_one_watermark_as_if_each_had_merged_all_others(case):
    options, tasks, batches = case

    @windowed_bolt(
        timestamp="at", late_stream="late", output="task long, times array<long>, end long", name="window", **options
    )
    class Times:
        def prepare(self, context):
            self.task = context.task_index

        def execute(self, window):
            return self.task, [row["at"] for row in window], window.end_timestamp

    builder = TopologyBuilder("shared")
    window = builder.set_bolt("window", Times, tasks)
    for stream in "ab":
        builder.set_spout(stream, InputSpout("key long, at long, source string"))
        window.fields_grouping(stream, "key")
    topology = builder.build()

    def run(kind):
        clock, found = VirtualClock(), []
        with kind(topology, clock=clock) as cluster:
            for rows, pause_ms in batches:
                cluster.run_batch({stream: [row[1:] for row in rows if row[0] == stream] for stream in "ab"})
                clock.set(clock.now_ms() + pause_ms)
                marks = [task.executor.generator for task in cluster.task_set.windowed]
                found.append([(each.watermark, each.slowest, each.snapshot()) for each in marks])
            result = cluster.run()
            return found, result["window"], result["window.late"], result.counts

    assert run(LocalCluster) == run(MergesPairs)


@settings(max_examples=settings().max_examples // 2)
@given(
    case=restarted(),
    length=st.sampled_from([seconds(10), count(3)]),
    slide=st.sampled_from([seconds(5), count(2)]),
    tasks=st.integers(1, 3),
)
def test_with_batches_a_restart_changes_no_window_in_any_order_of_replay(case, length, slide, tasks):
    batches, cut, again = case

    @windowed_bolt(
        length=length, slide=slide, timestamp="at", late_stream="late", message_id="id", output=IDS, name="window"
    )
    class Ids:
        def init_state(self, state):
            self.state = state

        def execute(self, window):
            return [row["id"] for row in window], [row["id"] for row in window.get_new()], window.end_timestamp

    builder = TopologyBuilder("restarted").configure(message_timeout=seconds(6000))
    builder.set_spout("source", InputSpout(ROWS))
    builder.set_bolt("window", Ids, tasks).fields_grouping("source", "n")
    topology, clock = builder.build(), VirtualClock()

    def run(batches, states, drain):
        with LocalCluster(topology, batches={"source": []}, clock=clock, states=states) as cluster:
            for rows in batches:
                cluster.run_batch({"source": rows})
            if drain:
                cluster.drain()
                cluster.checkpoint()
            assert cluster.result.errors == []
            return cluster.result["window"], [row[0] for row in cluster.result["window.late"]]

    whole, late = run(batches, MemoryStateProvider(), True)
    states = MemoryStateProvider()
    windows, before = run(batches[:cut], states, False)
    rest = []
    for number, batch in enumerate(batches[cut:], start=cut):
        mine = [(row, first) for row, with_batch, first in again if with_batch == number]
        rest.append([*(row for row, first in mine if first), *batch, *(row for row, first in mine if not first)])
    others, after = run(rest, states, True)
    assert sorted(windows + others) == sorted(whole)
    assert sorted(before + after) == sorted(late)


class Flaky(BasicBolt):
    """Fails some of its tuples, and emits the others."""

    def __init__(self, share, seed):
        self.share, self.chance = share, Random(seed)

    def execute(self, tuple):
        if self.chance.random() < self.share:
            raise FailedException("by chance")
        return tuple["n"]


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([None, 1, 2]),
    st.integers(1, 3),
    st.integers(0, 1000),
)
def test_each_message_of_windows_that_emit_several_rows_is_acked_after_all_of_them_or_given_up(
    length, slide, rows, share, order, ackers, seed
):
    def emit(window):
        return [(row["n"],) for row in window] * rows

    first = windowed_bolt(length=count(length), slide=count(min(length, slide)), output="n long", name="first")(
        lambda w: emit(w)
    )
    second = windowed_bolt(length=count(3), slide=count(2), output="n long", name="second")(lambda w: emit(w)[:2])
    flaky = bolt(output="n long")(type("Flaky", (Flaky,), {}))
    builder = TopologyBuilder("flaky").configure(max_attempts=3, acker_executors=ackers, retry_delay=millis(1))
    builder.set_spout("source", InputSpout("n long"), 2)
    builder.set_bolt("first", first, 2).shuffle_grouping("source")
    builder.set_bolt("flaky", flaky(share, seed), 2).fields_grouping("first", "n")
    builder.set_bolt("second", second).all_grouping("flaky")
    builder.set_bolt("last", flaky(share, seed + 1)).global_grouping("second")
    batches = {"source": [[(n,) for n in range(9)], [(n,) for n in range(5)]]}
    with LocalCluster(builder.build(), batches=batches, clock=VirtualClock(), seed=order) as cluster:
        watch = Watch(cluster)
        cluster.run()
        watch.finish(14)
    reasons = {message.reason for message in watch.heard.values() if isinstance(message, Failed)}
    assert Reason.TIMEOUT not in reasons, "a tree that is never complete fails by its timeout"
    assert share or cluster.result.acked == 14


def test_rows_that_no_bolt_reads_are_not_anchored_in_between(monkeypatch):
    monkeypatch.setattr(windowed, "anchored", lambda *_: pytest.fail("no tree needs another tuple"))
    twice = windowed_bolt(length=count(3), slide=count(3), output="n long", name="twice")(lambda w: [(1,), (2,)])
    result = run_topology(topology_of(InputSpout("n long"), twice), {"source": [[(n,) for n in range(6)]]})
    assert ([row for rows in result.outputs.values() for row in rows], result.acked) == ([(1,), (2,)] * 2, 6)


@pytest.mark.parametrize(
    "run", [run_local, lambda bolt, rows: run_topology(topology_of(InputSpout(ROWS), bolt), {"source": rows})]
)
def test_a_drain_of_storms_windows_is_refused_before_the_first_batch(run):
    fired = []

    @tumbling(count(2), semantics="storm", output="n long")
    def two(window):
        fired.append(len(window))

    with pytest.raises(ConfigError, match=r"cannot drain: .* write drain=False"):
        run(two, [rows_of(4)])
    assert fired == []


def test_late_tuples_without_a_reader_are_logged_at_once_then_once_a_minute_and_at_the_end(caplog, monkeypatch):
    @spout(output="at long")
    class Times(Spout):
        def open(self, context, collector):
            self.collector, self.left = collector, [1_000, 30_000, 2_000, None, 3_000, 60_000]

        def next_tuple(self):
            self.collector.sleep(seconds(2))
            if self.left:
                self.collector.emit((self.left.pop(0),), message_id=len(self.left))

    @tumbling(seconds(10), timestamp="at", output="n long")
    def kept_nowhere(window):
        return len(window)

    @tumbling(seconds(10), timestamp="at", late_stream="late", output="n long")
    def kept(window):
        return len(window)

    def told(bolt, **named):
        caplog.clear()
        builder = TopologyBuilder("late")
        builder.set_spout("times", Times)
        builder.set_bolt("bolt", bolt).global_grouping("times")
        result = run_topology(builder.build(), clock=VirtualClock(), **named)
        assert result.late == {("bolt", "late"): 2, ("bolt", "invalid"): 1}
        return [record.getMessage() for record in caplog.records]

    ending = (
        "late or unusable tuples went nowhere (result.late has them by component); late_stream= of a bolt, and late_stream() of a "
        "window of Trident, keep them"
    )
    assert told(kept) == []
    for declared, named in ((kept_nowhere, {}), (kept, {"outputs": ["bolt"]})):
        assert told(declared, **named) == [f"'late': 1 {ending}", f"'late': 2 {ending}"]
