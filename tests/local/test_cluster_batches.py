"""LocalCluster handles batches as it would handle single tuples: each loop over a batch is compared with a slow model.

The model is a cluster that handles, sends, tracks and acks every tuple by itself (`one_by_one`); random topologies run in both,
and everything observable is equal: rows in their order, acks and fails of each spout with their time, failures, dead letters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windowing
from windowing import count, is_tick, millis, seconds, tumbling
from windowing.acking.acker import Anchors, anchored
from windowing.errors import FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.local.router import ACKS, Delivery, Router, StreamRoutes
from windowing.local.spouts import SpoutTask
from windowing.local.tasks import BoltTask
from windowing.schema.tuples import tuple_type
from windowing.testing.invariants import Watch
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, Spout
from windowing.topology.decorators import bolt, spout

TIMEOUT = seconds(5)
HERE = str(Path(windowing.__file__).parent)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Make every cluster created in this context handle tuples one at a time."""
    with pytest.MonkeyPatch.context() as patch:
        made, sent = StreamRoutes.__init__, SpoutTask._send

        def unbound(self: Any, router: Router, *arguments: Any) -> None:
            made(self, router, *arguments)
            kind = tuple_type(Delivery, self.origin.fields.names)

            def edge() -> int:
                return router.random.getrandbits(64) or 1

            def send(values: Any, anchors: Any = (), task: Any = None, tree: Any = None) -> list[int]:
                if self._output is not None:
                    self._output.append(values)
                ids = []
                for _, chooser, state, _, inboxes, first_id in self._routes:
                    for index in chooser(values, state):
                        edges = anchored(anchors, edge) if anchors else None
                        if tree is not None:
                            edges = Anchors({tree[0]: edge()})
                            tree[1] ^= edges.edges[tree[0]]
                        inboxes[index].append(kind(values, self.origin, edges))
                        ids.append(first_id + index)
                return ids

            self.send = send

        def tracked(self: Any, *arguments: Any) -> Any:
            ids = sent(self, *arguments)
            self._track()
            return ids

        def ask(self: Any, times: int) -> None:
            for _ in range(times):
                self.dry = False
                if self.pending.room <= 0:
                    return
                before = self.emissions
                if not self.source.over:
                    self.source.next_tuple()
                self._ack_at_once()
                if self.emissions == before:
                    self.dry = True
                    return

        def arrive(self: Any, arrived: Any) -> None:
            for message in arrived:
                anchors = () if message._anchors is None else (message._anchors,)
                try:
                    for row in self.caller.execute(message):
                        self.outbox[row.stream].send(row.values, anchors, row.task)
                except FailedException as problem:
                    self.failed((message,), problem)
                    continue
                if not self.acks_by_itself:
                    self.ack(message)

        def ack_all(self: Any, tuples: Any, component: str | None) -> None:
            for anchors in tuples:
                for root, xor in anchors.ack():
                    self.tell(root, (ACKS, [(root, xor)], component))

        def tell_all(self: Any, kind: int, pairs: Any, sender: Any) -> None:
            for pair in pairs:
                self.tell(pair[0], (kind, [pair], sender))

        patch.setattr(StreamRoutes, "__init__", unbound)
        patch.setattr(BoltTask, "arrive", arrive)
        patch.setattr(SpoutTask, "_send", tracked)
        patch.setattr(SpoutTask, "_ask", ask)
        patch.setattr(Router, "ack_all", ack_all)
        patch.setattr(Router, "tell_all", tell_all)
        yield


def source_of(rows: int, at_a_time: int, tracked: int, heard: list[Any], clock: VirtualClock) -> Any:
    """A spout that emits `at_a_time` rows per call, tracks all but each `tracked`-th one, and records acks and fails with times."""

    @spout(output="k long, n long")
    class Source(Spout):
        def open(self, context: Any, collector: Any) -> None:
            super().open(context, collector)
            self.next, self.me = context.task_index, context.task_index
            self.step = context.tasks

        def next_tuple(self) -> None:
            for _ in range(at_a_time):
                if self.next < rows:
                    id = None if self.next % tracked == 0 else self.next
                    ids = self.collector.emit((self.next % 3, self.next), message_id=id)
                    heard.append(("sent", self.next, list(ids)))
                    self.next += self.step

        def ack(self, message_id: Any) -> None:
            heard.append(("ack", message_id, clock.now_ms()))

        def give_up(self, message_id: Any) -> None:
            heard.append(("gave up", message_id, clock.now_ms()))

    return Source


def work_of(kind: str, every: int) -> Any:
    """A bolt; `every`: the numbers that it treats differently."""
    if kind == "one":
        return bolt(output="k long, n long")(lambda tuple: (tuple["k"], tuple["n"] + 1))
    if kind == "some":
        return bolt(output="k long, n long")(
            lambda tuple: [(tuple["k"], tuple["n"])] * (tuple["n"] % every) if tuple["n"] % 2 else None
        )
    if kind == "generator":

        @bolt(output="k long, n long")
        def generating(tuple: Any) -> Any:
            yield {"n": tuple["n"], "k": 1}
            if tuple["n"] % every == 0:
                raise FailedException("after a row")

        return generating
    if kind == "fails":

        @bolt(output="k long, n long")
        class Failing(BasicBolt):
            def prepare(self, context: Any) -> None:
                self.times = 0

            def execute(self, tuple: Any) -> Any:
                self.times += 1
                if self.times % (every + 1) == 0:
                    raise FailedException("now and then")
                return tuple["k"], tuple["n"]

        return Failing
    if kind == "collector":

        @bolt(output="k long, n long")
        def collecting(tuple: Any, collector: Any) -> None:
            collector.emit((tuple["k"], tuple["n"]))

        return collecting
    if kind == "window":
        return tumbling(count(every + 1), output="k long, n long", name="windows")(
            lambda window: (len(window), window.get()[0].n)
        )
    assert kind == "rich", kind

    @bolt(output="k long, n long")
    class Rich(Bolt):
        """Acks at ticks, loses some, so that they time out, and fails others."""

        def prepare(self, context: Any, collector: Any) -> None:
            self.held: list[Any] = []
            self.collector = collector

        def execute(self, tuple: Any) -> None:
            if not is_tick(tuple):
                self.held.append(tuple)
                self.collector.emit((tuple["k"], tuple["n"]), anchors=self.held[-2:])
                return
            for each in self.held:
                if each["n"] % (every + 2) == 0:
                    self.collector.fail(each)
                elif each["n"] % (every + 3):
                    self.collector.ack(each)
            self.held.clear()

    return Rich


KINDS = ["one", "some", "generator", "fails", "collector", "window", "rich"]
GROUPINGS = ["shuffle", "fields", "partial_key", "all", "global", "none", "local_or_shuffle", "custom"]
LAYERS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(1, 4),
        st.integers(1, 3),
        st.sampled_from(GROUPINGS),
        st.booleans(),  # whether it reads the spout as well
    ),
    min_size=1,
    max_size=3,
)


def group(declarer: Any, kind: str, before: str) -> Any:
    if kind in ("fields", "partial_key"):
        return getattr(declarer, f"{kind}_grouping")(before, "k")
    if kind == "custom":
        return declarer.custom_grouping(before, lambda values, tasks: range(values[1] % (tasks + 1)))
    return getattr(declarer, f"{kind}_grouping")(before)


def observed(
    layers: Any, source: Any, spouts: int, config: dict[str, Any], seed: int | None = None, all_shown: bool = True
) -> Any:
    """Run a chain of bolts, and return everything observable. all_shown: whether the input of a bolt is an output too."""
    clock, heard = VirtualClock(1_000), []
    if any(kind == "window" for kind, *_ in layers) and config["max_spout_pending"] in (1, 2, 7):
        # With less a window might never be full, and the builder refuses it.
        config = {**config, "max_spout_pending": 30}
    builder = TopologyBuilder("random").configure(**config)
    builder.set_spout("source", source_of(*source, heard, clock), spouts)
    before = "source"
    for index, (kind, every, tasks, grouping, also) in enumerate(layers):
        declarer = group(builder.set_bolt(f"bolt{index}", work_of(kind, every), tasks), grouping, before)
        if kind == "rich":
            declarer.configure(tick_tuple_freq=millis(40))
        if also and before != "source":
            group(declarer, grouping, "source")
        before = f"bolt{index}"
    names = ["source", *(f"bolt{index}" for index in range(len(layers)))]
    with LocalCluster(builder.build(), clock=clock, outputs=names if all_shown else names[-1:], seed=seed) as cluster:
        watch = Watch(cluster)
        for _ in range(6):
            cluster.step()
            if config["acker_executors"]:
                watch.check()
        heard.append(("pending", cluster.pending))
        result = cluster.run()
        if config["acker_executors"]:
            watch.check()
        letters = [(each.component, each.task, each.attempts, str(each.error)) for each in result.dead_letters]
        return result.outputs, heard, (result.acked, result.failures), letters, result.counts, clock.now_ms()


SOURCES = st.tuples(st.integers(0, 130), st.integers(1, 3), st.sampled_from([2, 5, 1000]))
CONFIGS = st.fixed_dictionaries(
    {
        "acker_executors": st.integers(0, 3),
        "max_spout_pending": st.sampled_from([None, 1, 2, 7, 150]),
        "max_attempts": st.integers(1, 3),
        "message_timeout": st.just(TIMEOUT),
        "retry_delay": st.just(millis(10)),
    }
)


@settings(max_examples=25, deadline=None)
@given(layers=LAYERS, source=SOURCES, spouts=st.integers(1, 2), config=CONFIGS, all_shown=st.booleans())
def test_a_batch_equals_its_tuples_handled_one_by_one(layers, source, spouts, config, all_shown):
    found = observed(layers, source, spouts, config, all_shown=all_shown)
    with one_by_one():
        assert found == observed(layers, source, spouts, config, all_shown=all_shown)


@settings(max_examples=10, deadline=None)
@given(layers=LAYERS, source=SOURCES, config=CONFIGS, seed=st.integers(0, 1000))
def test_with_a_seed_each_run_is_the_same_and_no_tree_ends_twice(layers, source, config, seed):
    assert observed(layers, source, 1, config, seed) == observed(layers, source, 1, config, seed)


def test_a_spout_emits_until_max_spout_pending_trees_are_in_flight():
    clock, heard = VirtualClock(), []
    builder = TopologyBuilder("limited").configure(max_spout_pending=7, message_timeout=TIMEOUT)
    builder.set_spout("source", source_of(100, 1, 1000, heard, clock))
    builder.set_bolt("work", work_of("one", 1)).shuffle_grouping("source")
    with LocalCluster(builder.build(), clock=clock) as cluster:
        cluster.step()
        # an untracked row does not count as pending
        assert [n for what, n, _ in heard if what == "sent"] == list(range(8))
        assert cluster.pending == 7
        result = cluster.run()
    assert (result.acked, cluster.pending) == (99, 0)


@pytest.mark.parametrize("ackers", [1, 3])
def test_a_batch_times_out_at_the_same_millisecond_as_its_single_tuples(ackers):
    clock, heard = VirtualClock(1_000), []
    builder = TopologyBuilder("silent").configure(
        acker_executors=ackers, message_timeout=TIMEOUT, max_attempts=1, tick_tuple_freq=seconds(1000)
    )
    builder.set_spout("source", source_of(50, 1, 1000, heard, clock))
    builder.set_bolt("work", work_of("rich", 1)).shuffle_grouping("source")
    with LocalCluster(builder.build(), clock=clock) as cluster:
        cluster.step()
        clock.set(1_000 + TIMEOUT.ms - 1)
        while cluster.step():
            pass
        assert (cluster.result.failures, cluster.pending) == (0, 49)
        clock.set(1_000 + TIMEOUT.ms)
        while cluster.step():
            pass
        assert (cluster.result.failures, cluster.pending) == (49, 0)
    assert [when for what, _, when in heard if what == "gave up"] == [1_000 + TIMEOUT.ms] * 49


def test_each_tuple_of_a_chain_is_acked_once_and_the_acker_ends_empty():
    clock, heard = VirtualClock(), []
    builder = TopologyBuilder("chain").configure(message_timeout=TIMEOUT, max_attempts=1)
    builder.set_spout("source", source_of(250, 1, 1000, heard, clock))
    builder.set_bolt("first", work_of("one", 1), 2).shuffle_grouping("source")
    builder.set_bolt("second", work_of("one", 1)).fields_grouping("first", "k")
    with LocalCluster(builder.build(), clock=clock) as cluster:
        result = cluster.run()
        assert [len(acker.acker) for acker in cluster.task_set.ackers] == [0]
    assert (result.acked, result.failures, clock.now_ms()) == (249, 0, 0)


@pytest.mark.parametrize(("ackers", "most"), [(0, 17.5), (1, 19.5)])
def test_a_tuple_through_a_bolt_takes_few_python_calls(ackers, most):
    """The measure is the calls of the library's functions per additional tuple, which does not depend on the machine."""

    def calls(rows: int) -> int:
        builder = TopologyBuilder("counted").configure(acker_executors=ackers, message_timeout=TIMEOUT)
        builder.set_spout("source", source_of(rows, 1, rows + 1, [], clock := VirtualClock()))
        builder.set_bolt("work", work_of("one", 1)).shuffle_grouping("source")
        count = 0

        def called(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call" and frame.f_code.co_filename.startswith(HERE)

        with LocalCluster(builder.build(), clock=clock) as cluster:
            cluster.step()
            sys.setprofile(called)
            try:
                cluster.run()
            finally:
                sys.setprofile(None)
        return count

    assert (calls(1_400) - calls(700)) / 700 <= most
