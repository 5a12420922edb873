"""Stateful bolts in a cluster: checkpoints, hooks, rollback, restart; an acked tuple is in the committed state."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count as iteration

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowing import count, millis, seconds, tumbling
from windowing.errors import BoltError, FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster, run_topology
from windowing.stores.states import MemoryStateProvider
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout, Spout, StatefulBolt
from windowing.topology.decorators import bolt, spout
from windowing.topology.state import BufferedState


def counting(life=None, fails=()):
    """A bolt class that counts numbers in its state, and records its calls in `life`; those with a number in `fails` fail."""
    calls = iteration()

    @bolt(output="n long, times long")
    class Counting:
        def init_state(self, state):
            self.state = state
            told("init_state")

        def prepare(self, context):
            told("prepare")

        def execute(self, tuple):
            times = self.state.get(tuple["n"], 0) + 1
            self.state.put(tuple["n"], times)
            if next(calls) in fails:
                raise FailedException("not now")
            told("execute")
            return tuple["n"], times

        def pre_prepare(self, txid):
            told(f"pre_prepare {txid}")

        def pre_commit(self, txid):
            told(f"pre_commit {txid}")

        def pre_rollback(self):
            told("pre_rollback")

        def cleanup(self):
            told("cleanup")

    def told(what):
        if life is not None:
            life.append(what)

    return Counting


def topology_of(declared, source=None, tasks=1, **settings):
    builder = TopologyBuilder("stateful").configure(**settings)
    builder.set_spout("source", source or InputSpout("n long"))
    builder.set_bolt("count", declared, tasks).fields_grouping("source", "n")
    return builder.build()


def test_hooks_are_called_in_order_and_a_batch_ends_with_a_checkpoint():
    life = []
    result = run_topology(topology_of(counting(life)), {"source": [[(1,), (2,)]]}, clock=VirtualClock())
    first = ["init_state", "prepare", "execute", "execute", "pre_prepare 0", "pre_commit 0"]
    assert life == [*first, "pre_prepare 1", "pre_commit 1", "cleanup"]
    assert (result.acked, result.checkpoints) == (2, 2)


def test_a_tuple_is_acked_by_the_commit_of_its_checkpoint():
    @spout(output="n long")
    def numbers():
        yield from (1, 1, 2)

    clock = VirtualClock()
    topology = topology_of(counting(), numbers, state_checkpoint_interval=millis(500))
    with LocalCluster(topology, clock=clock) as cluster:
        cluster.run_for(millis(499))
        assert (cluster.result["count"], cluster.result.acked) == ([(1, 1), (1, 2), (2, 1)], 0)
        cluster.run_for(millis(2))
        assert cluster.result.acked == 3


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_restarted_topology_continues_from_its_last_checkpoint(kind, tmp_path):
    memory = MemoryStateProvider()

    def run(rows):
        where = {"states": memory} if kind == "memory" else {"state_path": tmp_path / "states.sqlite"}
        return run_topology(
            topology_of(counting(), state_provider=kind, tasks=2), {"source": [rows]}, clock=VirtualClock(), **where
        )

    assert sorted(run([(1,), (2,), (1,)])["count"]) == [(1, 1), (1, 2), (2, 1)]
    assert sorted(run([(1,), (2,)])["count"]) == [(1, 3), (2, 2)]


def test_uncommitted_changes_are_lost_in_a_crash_and_their_tuples_are_replayed():
    """The spout keeps unacked messages, as a queue does; the cluster dies with tuples in the state that no checkpoint holds."""
    queue = list(range(10))

    @spout(output="n long")
    class Queue(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = list(queue)

        def next_tuple(self):
            if self.left:
                n = self.left.pop(0)
                self.collector.emit(n % 3, message_id=n)

        def ack(self, message_id):
            queue.remove(message_id)

    states = MemoryStateProvider()
    topology = topology_of(counting(), Queue, max_spout_pending=4, state_checkpoint_interval=millis(100))
    with LocalCluster(topology, clock=VirtualClock(), states=states) as cluster:
        cluster.run_for(millis(150))  # four are acked, the next four are in the state
        assert (len(queue), len(cluster.result["count"])) == (6, 8)
    result = run_topology(topology, clock=VirtualClock(), states=states)
    assert queue == []
    last = dict(sorted(result["count"]))
    assert last == {0: 4, 1: 3, 2: 3}


def test_manual_acks_of_a_stateful_bolt_wait_for_the_commit():
    @bolt(output="n long")
    class Summing(StatefulBolt):
        seen = False

        def init_state(self, state):
            self.state = state

        def execute(self, tuple):
            if tuple["n"] == 13 and not self.seen:
                self.seen = True
                raise FailedException("unlucky")
            self.state.put("sum", self.state.get("sum", 0) + tuple["n"])
            self.collector.emit(self.state.get("sum"), anchors=tuple)
            self.collector.ack(tuple)

    result = run_topology(topology_of(Summing), {"source": [[(1,), (13,), (5,)]]}, clock=VirtualClock())
    assert (result["count"], result.acked, result.failures) == ([(1,), (6,), (19,)], 3, 1)


@pytest.mark.parametrize("kind", ["raises", "raises, acks by itself", "fails its tuple"])
def test_a_failed_call_gives_its_writes_back(kind):
    by_itself = kind != "raises"

    class Summing(StatefulBolt if by_itself else object):
        tries = 0

        def init_state(self, state):
            self.state = state

        def prepare(self, context, collector=None):
            self.collector = collector

        def execute(self, tuple):
            total = self.state.get("sum", 0) + tuple["n"]
            self.state.put("sum", total)
            self.state.delete("last")
            self.state.put("last", tuple["n"])
            self.tries += 1
            if tuple["n"] == 13 and self.tries < 5:
                if kind != "fails its tuple":
                    raise FailedException("unlucky")
                self.collector.fail(tuple)
            elif by_itself:
                self.collector.emit((total,), anchors=tuple)
                self.collector.ack(tuple)
            return None if by_itself else total

    declared = bolt(output="n long")(Summing)
    states = MemoryStateProvider()
    result = run_topology(topology_of(declared), {"source": [[(1,), (13,), (5,)]]}, clock=VirtualClock(), states=states)
    assert (result["count"], result.failures) == ([(1,), (6,), (19,)], 2)
    assert dict(states.state("count", 0).items()) == {"last": 13, "sum": 19}


def test_a_failed_call_that_has_acked_a_tuple_keeps_its_writes():
    """They are the writes of the acked tuples, which do not come again."""

    @bolt(output="n long")
    class Pairs(StatefulBolt):
        def init_state(self, state):
            self.state, self.held, self.failed = state, [], False

        def execute(self, tuple):
            self.held.append(tuple)
            if len(self.held) == 2:
                first, _ = self.held
                self.state.put("sum", self.state.get("sum", 0) + first["n"])
                self.collector.ack(first)
                self.held.pop(0)
                if not self.failed:
                    self.failed = True
                    self.held.clear()
                    raise FailedException("the second one is not ready")

    states = MemoryStateProvider()
    topology = topology_of(Pairs, message_timeout=seconds(5), max_attempts=2)
    result = run_topology(topology, {"source": [[(1,), (2,), (4,), (8,)]]}, clock=VirtualClock(), states=states)
    assert (result.acked, states.state("count", 0).get("sum")) == (3, 13)
    assert [letter.values for letter in result.dead_letters] == [(2,)]


def test_checkpoints_pass_through_stateless_bolts_and_joins():
    @bolt(output="n long")
    def plain(tuple):
        return tuple["n"] + 1

    builder = TopologyBuilder("diamond")
    builder.set_spout("source", InputSpout("n long"))
    builder.set_bolt("left", plain, 2).shuffle_grouping("source")
    builder.set_bolt("right", plain, 3).shuffle_grouping("source")
    builder.set_bolt("count", counting(), 2).fields_grouping("left", "n").fields_grouping("right", "n").fields_grouping(
        "source", "n"
    )
    result = run_topology(builder.build(), {"source": [[(1,), (2,)], [(1,)]]}, clock=VirtualClock())
    assert Counter(n for n, _ in result["count"]) == {1: 2, 2: 5, 3: 2}
    assert dict(sorted(result["count"])) == {1: 2, 2: 5, 3: 2}
    assert result.acked == 3


def test_an_error_in_a_hook_names_the_bolt():
    @bolt()
    class Breaking:
        def init_state(self, state):
            raise OSError("no disk")

        def execute(self, tuple):
            return None

    with pytest.raises(BoltError, match=r"bolt 'count' failed in init_state: OSError: no disk"):
        run_topology(topology_of(Breaking), {"source": [[(1,)]]}, clock=VirtualClock())


@settings(max_examples=settings().max_examples // 2)
@given(
    rows=st.lists(st.integers(0, 4), max_size=30),
    deaths=st.lists(st.integers(1, 25), max_size=4),
    tasks=st.integers(1, 3),
    seed=st.one_of(st.none(), st.integers(0, 1000)),
    fails=st.sets(st.integers(0, 60), max_size=20),
)
def test_after_any_crash_the_state_holds_each_acked_tuple_once(rows, deaths, tasks, seed, fails):
    """In the end the state is the fold of all tuples: each was acked once, by a checkpoint that holds it once."""
    queue = list(enumerate(rows))
    states = MemoryStateProvider()

    @spout(output="n long")
    class Queue(Spout):
        def open(self, context, collector):
            super().open(context, collector)
            self.left = list(queue)

        def next_tuple(self):
            if self.left:
                id, n = self.left.pop(0)
                self.collector.emit(n, message_id=id)

        def ack(self, message_id):
            queue[:] = [(id, n) for id, n in queue if id != message_id]

    counter = counting(fails=fails)

    @bolt(output="n long")
    def plain(tuple):
        return tuple["n"]

    def topology():
        builder = TopologyBuilder("dying").configure(state_checkpoint_interval=millis(100), max_spout_pending=5)
        builder.configure(max_attempts=30)
        builder.set_spout("source", Queue)
        builder.set_bolt("plain", plain, 2).shuffle_grouping("source")
        builder.set_bolt("count", counter, tasks).fields_grouping("plain", "n")
        return builder.build()

    clock = VirtualClock()
    for steps in deaths:
        cluster = LocalCluster(topology(), clock=clock, states=states, seed=seed)
        for step in range(steps):
            cluster.step()
            if step % 3 == 2:
                clock.advance(millis(40))
        states.close()  # the process dies and loses unprepared changes
    run_topology(topology(), clock=clock, states=states, seed=seed)
    kept = Counter()
    for task in range(tasks):
        kept.update(dict(states.state("count", task).items()))
    # A commit and its acks are some steps apart: committed tuples without an ack, at most the pending ones, were replayed.
    again = kept - Counter(rows)
    assert (Counter(rows) - kept, queue) == (Counter(), [])
    assert again.total() <= 5 * len(deaths)


@settings(max_examples=settings().max_examples // 4)
@given(seed=st.integers(0, 1000), rounds=st.lists(st.integers(1, 4), min_size=5, max_size=25))
def test_a_checkpoint_is_consistent_across_the_whole_topology(seed, rounds):
    """In any order of steps: the third bolt's checkpoint holds exactly the tuples that the first two have emitted by theirs."""

    @spout(output="n long")
    def numbers():
        yield from range(400)

    @bolt(output="n long")
    class Passing:
        def init_state(self, state):
            self.state = state

        def execute(self, tuple):
            self.state.put("passed", self.state.get("passed", 0) + 1)
            return tuple["n"]

    builder = TopologyBuilder("cut").configure(state_checkpoint_interval=millis(100), message_timeout=seconds(600))
    builder.set_spout("source", numbers)
    builder.set_bolt("one", Passing, 2).shuffle_grouping("source")
    builder.set_bolt("two", Passing, 3).shuffle_grouping("source")
    builder.set_bolt("taking", Passing).global_grouping("one").global_grouping("two")
    states, clock = MemoryStateProvider(), VirtualClock()
    cut = 0

    def passed(name, tasks):
        states_of = [states.state(name, task) for task in range(tasks)]
        return sum(
            BufferedState(state.store).get("passed", 0) for state in states_of if state.store.prepared_txid is None
        )

    with LocalCluster(builder.build(), clock=clock, seed=seed, states=states) as cluster:
        for many in rounds:
            for _ in range(many):
                cluster.step()
            clock.advance(millis(60))
            cluster.step()
            assert passed("one", 2) + passed("two", 3) == passed("taking", 1) >= cut
            cut = passed("taking", 1)


def test_a_cluster_with_a_file_is_for_the_thread_that_made_it(tmp_path):
    builder = TopologyBuilder("threads")
    builder.set_spout("source", InputSpout("n long"))
    builder.set_bolt("bolt", counting()).global_grouping("source")
    builder.set_bolt(
        "paged", tumbling(count(2), max_events_in_memory=100_000, name="paged")(lambda window: None)
    ).global_grouping("source")
    topology = builder.build()
    with ThreadPoolExecutor(max_workers=1) as one, ThreadPoolExecutor(max_workers=1) as other:
        cluster = one.submit(LocalCluster, topology, state_path=tmp_path / "states.db").result()
        one.submit(cluster.run_batch, {"source": [(1,)]}).result()
        with pytest.raises(BoltError, match=r"another thread than the one that made it; .* holds what it held before"):
            other.submit(cluster.run_batch, {"source": [(1,)]}).result()
    # Its files are closed, although it is still here and the other thread has ended it.
    with LocalCluster(topology, state_path=tmp_path / "states.db") as again:
        again.run_batch({"source": [(1,)]})
        assert again.result["bolt"] == [(1, 2)]
