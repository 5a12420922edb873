"""For any topology and any order of steps, each tree is acked or failed once, and no tuple is lost on the way.

Random topologies run step by step under a Watch, compared with a model that predicts the output.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from windowing import (
    Action,
    EvictionContext,
    EvictionPolicy,
    TriggerPolicy,
    count,
    millis,
    seconds,
    sliding,
    tumbling,
    windowed_bolt,
)
from windowing import aggregate as agg
from windowing.errors import BoltError, ConfigError, FailedException
from windowing.local.clock import VirtualClock
from windowing.local.cluster import LocalCluster
from windowing.schema.values import InvalidTimestampWarning
from windowing.testing.invariants import Watch, check_counts, check_ids, check_restarts
from windowing.testing.strategies import batches
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import BasicBolt, Bolt, InputSpout, Spout
from windowing.topology.decorators import bolt, spout

FATES = st.sampled_from(["pass", "double", "drop", "fail once", "fail always", "hold", "forget once"])


def make_bolt(fate: str):
    """A bolt that treats each number as `fate` says; "hold" keeps tuples until it has three."""
    if fate in ("hold", "forget once"):

        @bolt(output="n long")
        class Holding(Bolt):
            def prepare(self, context, collector):
                super().prepare(context, collector)
                self.held = []
                self.seen = set()

            def execute(self, tuple):
                if fate == "forget once":
                    if tuple["n"] in self.seen:
                        self.collector.emit(tuple["n"], anchors=tuple)
                        self.collector.ack(tuple)
                    self.seen.add(tuple["n"])
                    return
                self.held.append(tuple)
                if len(self.held) == 3:
                    self.collector.emit(sum(one["n"] for one in self.held), anchors=self.held)
                    for one in self.held:
                        self.collector.ack(one)
                    self.held = []

        return Holding

    @bolt(output="n long")
    class Basic(BasicBolt):
        def prepare(self, context):
            self.seen = Counter()

        def execute(self, tuple):
            n = tuple["n"]
            self.seen[n] += 1
            if fate == "fail always" or (fate == "fail once" and self.seen[n] == 1):
                raise FailedException(str(n))
            return {"pass": [n], "double": [n, n], "drop": [], "fail once": [n], "fail always": []}[fate]

    return Basic


@st.composite
def plans(draw):
    """Layers of bolts; each reads one or two of the layer before it, by a grouping."""
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        layers.append(draw(st.lists(FATES, min_size=1, max_size=2)))
    return {
        "layers": layers,
        "window": draw(st.sampled_from([None, (3, 3), (3, 1), (2, 3)])),
        "on_error": draw(st.sampled_from(["skip", "fail", "dead_letter"])),
        "groupings": draw(st.lists(st.sampled_from(["shuffle", "fields", "all", "global"]), min_size=12, max_size=12)),
        "tasks": draw(st.lists(st.integers(1, 3), min_size=8, max_size=8)),
        "ackers": draw(st.integers(1, 3)),
        "rotation": draw(st.sampled_from([None, 3])),
        "letters": draw(st.sampled_from([None, "pass", "fail once", "fail always"])),
        "messages": draw(st.integers(0, 12)),
        "seed": draw(st.one_of(st.none(), st.integers(0, 2**32))),
    }


def topology_of(plan):
    groupings, tasks = iter(plan["groupings"]), iter(plan["tasks"])
    builder = TopologyBuilder().configure(
        max_attempts=3, retry_delay=millis(20), message_timeout=seconds(1), acker_executors=plan["ackers"]
    )
    builder.configure(acker_rotation=plan["rotation"])
    builder.set_spout("source", InputSpout("n long"), next(tasks))
    before = ["source"]
    components = ["source"]
    for depth, layer in enumerate(plan["layers"]):
        ids = [f"bolt{depth}_{index}" for index in range(len(layer))]
        for index, (id, fate) in enumerate(zip(ids, layer, strict=True)):
            declarer = builder.set_bolt(id, make_bolt(fate), next(tasks))
            for component in before if index == 0 else before[:1]:
                read(declarer, next(groupings), component)
        before = ids
        components += ids
    if plan["window"] is not None:
        length, slide = plan["window"]

        @windowed_bolt(length=count(length), slide=count(slide), on_error=plan["on_error"], output="n long")
        def window_sum(window):
            total = sum(row["n"] for row in window)
            if total % 5 == 4:
                raise ValueError(str(total))
            return total

        builder.set_bolt("window", window_sum).global_grouping(before[0])
        components.append("window")
    if plan["letters"] is not None:
        declarer = builder.set_bolt("letters", make_reader(plan["letters"]))
        for id in components:
            declarer.global_grouping(id, "dead_letters")
    return builder.build()


def make_reader(fate):
    @bolt()
    class Reader(BasicBolt):
        def prepare(self, context):
            self.seen = Counter()

        def execute(self, letter):
            self.seen[letter.get_values()] += 1
            if fate == "fail always" or (fate == "fail once" and self.seen[letter.get_values()] == 1):
                raise FailedException("no room")

    return Reader


def read(declarer, grouping, component):
    if grouping == "fields":
        declarer.fields_grouping(component, "n")
    else:
        getattr(declarer, f"{grouping}_grouping")(component)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(deadline=None)
@given(plans())
def test_every_message_is_acked_or_a_dead_letter_and_no_tuple_is_left(plan):
    messages = plan["messages"]
    rows = [(n,) for n in range(messages)]
    with LocalCluster(
        topology_of(plan),
        batches={"source": [rows[: messages // 2], rows[messages // 2 :]]},
        clock=VirtualClock(),
        seed=plan["seed"],
    ) as cluster:
        watch = Watch(cluster)
        cluster.run_batch({"source": rows[: messages // 2]})
        watch.check()
        cluster.run_batch({"source": rows[messages // 2 :]})
        watch.check()
        cluster.drain()
        watch.check()
        for _ in range(10_000):
            if not cluster.pending:
                break
            cluster.run_for(millis(100))
            watch.check()
        watch.finish(messages)


class ClusterMachine(RuleBasedStateMachine):
    """A spout that the test feeds, bolts that can be made to fail, a window; the model is a set of due and received outcomes."""

    @initialize(seed=st.one_of(st.none(), st.integers(0, 1000)), ackers=st.integers(1, 2))
    def begin(self, seed, ackers):
        machine = self
        self.queue: list[int] = []
        self.emitted = 0
        self.acked: set[int] = set()
        self.given_up: set[int] = set()
        self.failing: set[int] = set()
        self.windows: list[list[int]] = []

        @spout(output="n long")
        class Queue(Spout):
            def next_tuple(self):
                if machine.queue:
                    n = machine.queue.pop(0)
                    self.collector.emit(n, message_id=n)

            def ack(self, message_id):
                assert message_id not in machine.acked | machine.given_up
                machine.acked.add(message_id)

            def fail(self, message_id):
                assert message_id not in machine.acked | machine.given_up
                machine.queue.append(message_id)

            def give_up(self, message_id):
                assert message_id not in machine.acked | machine.given_up
                machine.given_up.add(message_id)

        @bolt(output="n long")
        def failing(tuple):
            if tuple["n"] in machine.failing:
                raise FailedException(str(tuple["n"]))
            return tuple["n"]

        @windowed_bolt(length=count(4), slide=count(2), output="n long")
        def window(window):
            machine.windows.append([row["n"] for row in window])
            return len(window)

        builder = TopologyBuilder().configure(max_attempts=2, retry_delay=millis(50), message_timeout=seconds(2))
        builder.configure(acker_executors=ackers)
        builder.set_spout("source", Queue)
        builder.set_bolt("failing", failing, 2).fields_grouping("source", "n")
        builder.set_bolt("window", window).global_grouping("failing")
        self.cluster = LocalCluster(builder.build(), clock=VirtualClock(), seed=seed)
        self.watch = Watch(self.cluster)

    @rule(many=st.integers(1, 5))
    def feed(self, many):
        self.queue += range(self.emitted, self.emitted + many)
        self.emitted += many

    @rule(data=st.data())
    @precondition(lambda self: self.emitted)
    def let_fail(self, data):
        self.failing.add(data.draw(st.integers(0, self.emitted - 1)))

    @rule()
    def mend(self):
        self.failing.clear()

    @rule(rounds=st.integers(1, 4))
    def step(self, rounds):
        for _ in range(rounds):
            self.cluster.step()

    @rule(ms=st.integers(1, 1500))
    def pass_time(self, ms):
        self.cluster.run_for(millis(ms))

    @invariant()
    def nothing_is_wrong(self):
        if hasattr(self, "watch"):
            self.watch.check()
            # Only tuples that the last window no longer holds may have been acked: the last two of each window stay.
            for window in self.windows[-1:]:
                later = set(window[-2:]) - {n for earlier in self.windows[:-1] for n in earlier}
                assert not later & self.acked

    def teardown(self):
        if not hasattr(self, "watch"):
            return
        self.failing.clear()
        self.cluster.run()
        self.watch.finish(self.emitted)
        assert self.acked | self.given_up == set(range(self.emitted))
        assert set(range(self.emitted)) - self.given_up <= {n for window in self.windows for n in window}
        self.cluster.close()


ClusterMachine.TestCase.settings = settings(deadline=None, stateful_step_count=20)
test_a_cluster_driven_by_chance_keeps_its_promises = ClusterMachine.TestCase


def test_a_watch_of_a_cluster_that_has_acked_is_refused():
    builder = TopologyBuilder("late")
    builder.set_spout("in", InputSpout("n long"))
    builder.set_bolt("sink", bolt(output="n long")(lambda row: row.n)).shuffle_grouping("in")
    with LocalCluster(builder.build(), batches={"in": [[(1,)]]}, clock=VirtualClock()) as cluster:
        cluster.run()
        with pytest.raises(ConfigError, match="make it before the first step"):
            Watch(cluster)
    with pytest.raises(ConfigError, match=r"write Watch\(LocalCluster\(topology\)\)"):
        Watch(builder.build())


def test_the_checks_reject_wrong_counts_and_ids():
    good = {"in": 3, "shown": 2, "pending": 0, "late": 1, "skipped": 0, "expired": 2}
    check_counts(good, over=True)
    for wrong in ({"in": 4}, {"shown": 1}, {"shown": 3, "late": 1}, {"skipped": -1, "shown": 3}, {"expired": 3}):
        with pytest.raises(AssertionError):
            check_counts(good | wrong)
    with pytest.raises(AssertionError, match="never let go"):
        check_counts(good | {"expired": 1}, over=True)
    with pytest.raises(AssertionError, match=r"1 tuples are pending: .*; drain\(\) the run first"):
        check_counts(good | {"in": 4, "pending": 1}, over=True)
    with pytest.raises(ConfigError, match=r"write check_counts\(result\.counts\)"):
        check_counts([good])
    with pytest.raises(AssertionError, match=r"no fate: \['3'\]; with too many: {}"):
        check_ids([1, 2, 3], shown=[1, 2])
    with pytest.raises(AssertionError, match=r"too many: {1: \['shown', 'late'\]}"):
        check_ids([1, 2], shown=[1, 2], late=[1])


def test_the_counts_of_a_topology_are_refused_with_the_call_for_one_bolt():
    counts = {"in": 2, "shown": 2, "pending": 0, "late": 0, "skipped": 0}
    with pytest.raises(ConfigError, match=r"of 'count', 'rank'; write check_counts\(result\.counts\['count'\]\)"):
        check_counts({"count": counts, "rank": counts})
    with pytest.raises(ConfigError, match="without 'skipped'"):
        check_counts({name: count for name, count in counts.items() if name != "skipped"})


# -- restarts ----------------------------------------------------------------------------------------------------------------------


class LastThree(EvictionPolicy):
    """Keeps the last three tuples; `stored` is what it stores of their number."""

    stored = staticmethod(lambda live: live)

    def __init__(self):
        self.live = 0

    def track(self, event):
        self.live += not event.is_watermark

    def evict(self, event):
        if self.live <= 3:
            return Action.PROCESS
        self.live -= 1
        return Action.EXPIRE

    def get_state(self):
        return self.stored(self.live)

    def restore_state(self, state):
        self.live = state or 0


def last_three(stored):
    policy = type("LastThree", (LastThree,), {"stored": staticmethod(stored)})

    @windowed_bolt(slide=count(1), timestamp="at", late_stream="late", eviction=policy, output="ids array<long>")
    def last(window):
        return ([row.id for row in window],)

    return last


@windowed_bolt(count(2), timestamp="at", output="calls long")
class Counts:
    def __init__(self):
        self.calls = 0

    def execute(self, window):
        self.calls += 1
        return self.calls


@windowed_bolt(count(2), timestamp="at", output="n double")
def randomly(window):
    return random.random()


class EverySecondOfAll(TriggerPolicy):
    """A window at every second tuple of all runs: after two runs the count is even again."""

    seen = 0

    def track(self, event):
        if event.is_watermark:
            return None
        EverySecondOfAll.seen += 1
        return None if EverySecondOfAll.seen % 2 else [EvictionContext(event.timestamp)]


@windowed_bolt(length=seconds(9), trigger=EverySecondOfAll, timestamp="at", output="n long")
def by_shared(window):
    return len(window)


drawn = batches({"user": st.sampled_from("ab")}, number="id")


@given(drawn)
def test_a_bolt_that_stores_all_emits_the_same_after_each_restart(batches):
    check_counts(check_restarts(last_three(lambda live: live), batches).counts, over=True)


@pytest.mark.parametrize(
    ("bolt", "problem"),
    [
        (last_three(lambda live: None), "'last' loses something in a restart: without one it emits in .* on stream"),
        (last_three(lambda live: max(0, live - 1)), "'last' loses something in a restart"),
        (Counts, "a bolt keeps values in its state"),
        (randomly, "two runs of bolt 'randomly' on the same batches differ"),
        (by_shared, "two runs of bolt 'by_shared' on the same batches differ: in batch 0 "),
        (last_three(lambda live: object()), "bolt 'last' cannot be stored"),
    ],
)
def test_a_bolt_that_loses_something_in_a_restart_is_found_with_few_rows(bolt, problem):
    found = []

    @settings(database=None, deadline=None, phases=[Phase.generate, Phase.shrink])
    @given(drawn)
    def continues(batches):
        try:
            check_restarts(bolt, batches)
        except (AssertionError, BoltError):
            found.append(batches)
            raise

    with pytest.raises((AssertionError, BoltError), match=problem):
        continues()
    assert sum(map(len, found[-1])) <= 6


def test_what_is_no_list_of_batches_is_refused_before_it_is_read():
    bolt = last_three(lambda live: live)
    for wrong, said in (
        ([{"a": 1, "at": 1}], r"got \{'a': 1, 'at': 1\} in place of a batch; write \[\[row, row\]\]"),
        (
            pd.DataFrame({"a": [1]}),
            r"check_restarts takes a list of batches, .*got a DataFrame of pandas; frame.to_dict",
        ),
        ([[{"a": 1}], 7], "a list of batches, each a list of rows, got 7"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_restarts(bolt, wrong)


def test_an_aggregator_that_merges_in_place_is_named_as_what_may_lose_something():
    def extended(one, other):
        one.extend(other)
        return one

    joined = agg.fold(list, lambda acc, row: [*acc, row["at"]], extended)

    @sliding(seconds(3), seconds(1), timestamp="at", output="n long", aggregate=joined)
    def counted(window):
        return len(window.aggregate)

    batches = [[{"at": 1_000 * n}] for n in range(8)]
    with pytest.raises(AssertionError, match=r"init_state\), and merge\(\) of an aggregator changes neither argument"):
        check_restarts(counted, batches)


@pytest.mark.parametrize(
    "options", [{"key": "user"}, {"message_id": "id"}, {"on_error": "fail"}, {"columnar": "arrow"}]
)
@given(batches=drawn)
def test_built_in_windows_continue_after_a_restart(options, batches):
    @sliding(seconds(3), seconds(1), timestamp="at", lag=seconds(2), late_stream="late", output="n long", **options)
    def counted(window):
        if options.get("on_error") and len(window) % 3 == 0:
            raise ValueError("three")
        return len(window)

    check_counts(check_restarts(counted, batches).counts, over=True)


def test_windows_on_disk_are_not_restarted():
    @tumbling(seconds(1), timestamp="at", max_events_in_memory=1_000, output="n long")
    def counted(window):
        return len(window)

    with pytest.raises(ConfigError, match="leave out max_events_in_memory"):
        check_restarts(counted, [[{"at": 1}]])


def test_the_drawn_batches_have_ties_disorder_gaps_and_empty_batches():
    seen = Counter()

    @settings(max_examples=200, database=None, deadline=None)
    @given(drawn)
    def look(batches):
        rows = [row for batch in batches for row in batch]
        times = [row["at"] for row in rows]
        assert [row["id"] for row in rows] == [*range(1, len(rows) + 1)]
        seen["several batches"] += len(batches) > 1
        seen["empty batches"] += not all(batches)
        seen["ties"] += len({*times}) < len(times)
        seen["disorder"] += times != sorted(times)
        seen["gaps"] += any(after - before >= 30_000 for before, after in pairwise(times))
        seen["both keys"] += len({row["user"] for row in rows}) == 2

    look()
    assert min(seen.values()) >= 60, seen


@given(batches(timestamp="when", ordered=True, max_rows=12))
def test_ordered_batches_have_rising_timestamps(batches):
    times = [row["when"] for batch in batches for row in batch]
    assert times == sorted(times)
    assert len(times) <= 12


def test_batches_that_can_be_read_once_are_checked_as_lists_are():
    @tumbling(count(2), output="n long")
    def sizes(window):
        return len(window)

    rows = [{"v": 1}, {"v": 2}]
    once = iter([iter(rows), {"default": iter(rows)}])
    assert check_restarts(sizes, once)["default"] == [(2,), (2,)]
    with pytest.raises(ConfigError, match="every is a span of time, got 'x'"):
        check_restarts(sizes, [rows], every="x")


def test_a_nan_is_no_difference():
    @tumbling(count(2), output="mean double, all array<double>")
    def mean(window):
        values = [row["v"] for row in window]
        return sum(values) / len(values), values

    result = check_restarts(mean, [[{"v": float("nan")}, {"v": 1.0}], [{"v": 2.0}, {"v": 4.0}]])
    assert [repr(row) for row in result["default"]] == ["(nan, [nan, 1.0])", "(3.0, [2.0, 4.0])"]


def test_rows_without_the_timestamp_of_the_bolt_prove_nothing_and_are_refused():
    @tumbling(seconds(1), timestamp="ts", output="n long")
    def sizes(window):
        return len(window)

    with pytest.raises(
        ConfigError, match=r"timestamp='ts', and no row has such a field, .*batches\(..., timestamp='ts'\)"
    ):
        check_restarts(sizes, [[], [{"at": 1}], {"default": [{"at": 2}]}])
    with pytest.warns(InvalidTimestampWarning):
        assert check_restarts(sizes, [[{"ts": 1}], [{"at": 1}]]).counts["late"] == 1
    assert check_restarts(sizes, [[]]).counts["in"] == 0


def test_a_bolt_that_changes_what_is_in_its_rows_is_named():
    @tumbling(count(1), output="n long")
    def grows(window):
        for row in window:
            row.items[0].append("y")
        return 1

    with pytest.raises(
        AssertionError, match=r"bolt 'grows' changes what is in its rows: batch 1 was \[\{'items': \(\['x'\], 2\)"
    ):
        check_restarts(grows, [[], [{"items": (["x"], 2)}], [{"items": ([], np.arange(3))}]])


def test_rows_that_hold_arrays_are_compared_as_objects():
    @tumbling(count(1), output="n long")
    def size(window):
        return sum(len(row.items) for row in window)

    assert check_restarts(size, [[{"items": np.arange(3)}]])["default"] == [(3,)]
