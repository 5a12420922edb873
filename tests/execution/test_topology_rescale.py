"""A topology stopped anywhere and rescaled to other numbers of tasks has the same output per key, and the same acks, as one not
stopped.
"""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.chains import Chain
from tests.execution.test_task_metrics import Totals
from windowing.acking.batches import BatchLedger, BatchRecord
from windowing.errors import ConfigError, FailedException
from windowing.execution.compatibility import of_topology
from windowing.execution.plan import ExecutionPlan, Section, plan_of_bolt
from windowing.spark import rescaling
from windowing.spark.acks import root_of
from windowing.spark.dealing import StoredPlan, TaskState, by_level, dealt, has_states
from windowing.spark.query import WindowedStream
from windowing.spark.state import StoredTask
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.topology.builder import TopologyBuilder
from windowing.topology.components import InputSpout
from windowing.topology.decorators import bolt, bolt_of, sliding, tumbling, windowed_bolt
from windowing.topology.plan import Topology
from windowing.trident.builtins import Sum
from windowing.trident.spouts import FixedBatchSpout
from windowing.trident.streams import TridentTopology
from windowing.windows import aggregate as agg
from windowing.windows.eviction import CountEvictionPolicy
from windowing.windows.measures import count, millis

WORDS = ["cow", "moon", "over", "the", "dish", "spoon", "ran"]
TASKS = st.fixed_dictionaries({"times": st.integers(1, 4), "panes": st.integers(1, 4), "counts": st.integers(1, 3)})
BATCHES = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 2), st.integers(0, 120)), max_size=12),
    min_size=2,
    max_size=6,
)


@bolt(output="word string, n int, at long")
def spread(tuple: Any) -> Any:
    return tuple.word, tuple.n, tuple.at


@bolt(output="word string, n int, at long, more int")
def spread_more(tuple: Any) -> Any:
    return tuple.word, tuple.n, tuple.at, 7


@sliding(
    millis(40), millis(20), timestamp="at", lag=millis(5), key=("n", "word"), late_stream="late",
    output="word string, end long, held string, new string, expired string",
)  # fmt: skip
def times(window: Any) -> Any:
    parts = (window.get(), window.get_new(), window.get_expired())
    return window.key[1], window.end_timestamp, *("+".join(f"{row.n}@{row.at}" for row in part) for part in parts)


@sliding(
    millis(40),
    millis(20),
    timestamp="at",
    key="word",
    aggregate={"n": agg.sum("n")},
    output="word string, end long, n long",
)
def panes(window: Any) -> Any:
    return window.key, window.end_timestamp, window.aggregate["n"]


@sliding(count(3), count(2), key="word", output="word string, ends string, tasks string")
def counts(window: Any) -> Any:
    ids = {row.source_task for row in window}
    return window.key, "+".join(str(row.end) for row in window), ",".join(map(str, sorted(ids)))


@tumbling(count(4), output="rows long")
def total(window: Any) -> Any:
    return len(window)


@bolt(output="word string, n long")
class Tally:
    """Counts each word in its own state."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> Any:
        found = self.state.get(tuple.word, 0) + 1
        self.state.put(tuple.word, found)
        return tuple.word, found


def topology(tasks: dict[str, int], tally: int = 2, spread: Any = spread) -> Topology:
    builder = TopologyBuilder("words").configure({"topology.enable.message.timeouts": False})
    builder.set_spout("words", InputSpout("word string, n int, at long"))
    builder.set_bolt("spread", spread).shuffle_grouping("words")
    for name, window in (("times", times), ("panes", panes)):
        builder.set_bolt(name, window, tasks[name]).fields_grouping("spread", "word")
    builder.set_bolt("tally", Tally, tally).fields_grouping("spread", "word")
    builder.set_bolt("counts", counts, tasks["counts"]).fields_grouping("times", "word")
    builder.set_bolt("total", total).global_grouping("times")
    return builder.build()


def stored(chain: Chain) -> StoredPlan:
    wiring = chain.wiring
    found = of_topology(chain.topology, wiring.plan, wiring.windows, 2)
    return StoredPlan.of(json.loads(json.dumps(found)))


def states(chain: Chain) -> dict[str, list[TaskState]]:
    found = defaultdict(list)
    for task in chain.wiring.plan.tasks:
        number = task.number
        found[task.component].append(
            TaskState(chain.metadata.get(number), dict(chain.chunks[number]), dict(chain.values[number]))
        )
    return dict(found)


class RescalableQuery:
    """A query and the ledger of its acks, which may be rescaled to other tasks between two batches."""

    def __init__(self, tasks: dict[str, int], acks: bool, topology: Any = topology) -> None:
        self.acks, self.before, self.topology = acks, 0, topology
        self.chain = Chain(topology(tasks), partitions=2, seed=7, acks=acks)
        self.ledger = BatchLedger()
        self.rows: dict[str, list[Any]] = defaultdict(list)
        self.open: list[tuple[int, ...]] = []
        self.told: list[tuple[int, Any]] = []

    def rescale(self, tasks: dict[str, int]) -> None:
        old = stored(self.chain)
        new = old.rescaled(tasks, lambda widest: widest)
        after = dealt(old, new, states(self.chain))
        self.before += self.chain.batch - 1
        self.chain = Chain(self.topology(tasks), 2, seed=11, acks=self.acks, batches_before=self.before)
        assert new.bolts == stored(self.chain).bolts, "so its definition is that of the topology with these tasks"
        assert len(after) == len(self.chain.turns)
        for number, state in enumerate(after):
            if state.metadata is not None:
                self.chain.metadata[number] = state.metadata
            self.chain.chunks[number].update(state.chunks)
            self.chain.values[number].update(state.values)
        self.chain.batch = 1  # 0 is the state before
        self.ledger = self.ledger.continued_ledger()

    def run(self, rows: list[Any], drain: bool = False) -> None:
        batch = self.chain.batch
        for name, found in self.chain.run({"words": rows}, drain).items():
            self.rows[name] += found
            if name == "counts":  # a tuple that has waited names a task of the new number
                ids = self.chain.wiring.task_ids["times"]
                assert all(int(id) in ids for *_, of_row in found for id in of_row.split(","))
        begun = {root_of(self.before + batch, 0): None} if rows and self.acks else {}
        self.ledger.apply(BatchRecord(batch, begun, self.chain.partials))
        self.ledger.check()
        self.open.append(self.ledger.open)
        self.told += [(len(self.open), each.root) for each in self.ledger.outcomes(batch)]
        self.ledger.notified(batch)


def by_word(rows: list[tuple[Any, ...]], width: int) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:width])
    return found


@settings(max_examples=10)
@pytest.mark.parametrize("acks", [False, True])
@given(batches=BATCHES, before=TASKS, after=st.lists(st.tuples(st.integers(0, 4), TASKS), min_size=1, max_size=2))
def test_a_topology_rescaled_anywhere_has_the_same_output_per_key_and_the_same_acks(
    acks: bool, batches: Any, before: Any, after: Any
) -> None:
    plain, cut = RescalableQuery(before, acks), RescalableQuery(before, acks)
    for number, rows in enumerate(batches):
        plain.run(rows)
        cut.run(rows)
        for at, tasks in after:
            if at == number:
                cut.rescale(tasks)
    plain.run([], drain=True)
    cut.run([], drain=True)
    # A word has two keys in `times`: the order in which they fire at one end is undefined, and so is their order in `counts`.
    for name, width in (("panes", 3), ("tally", 2), ("times.late", 9)):
        assert by_word(cut.rows[name], width) == by_word(plain.rows[name], width), name
    assert sorted(cut.rows["times"]) == sorted(plain.rows["times"])
    assert sorted(cut.rows["total"]) == sorted(plain.rows["total"])
    # Every root is open equally long, and reported once.
    assert cut.open == plain.open
    assert sorted(cut.told) == sorted(plain.told)
    assert not cut.ledger.open


def test_tuples_from_before_a_new_field_are_moved_together_with_those_that_have_it() -> None:
    one, two = ({"times": number, "panes": number, "counts": number} for number in (1, 2))
    plain, cut = RescalableQuery(two, acks=False), RescalableQuery(two, acks=False)
    for life in (plain, cut):
        life.run([(word, 0, 10) for word in WORDS])
        life.topology = partial(topology, spread=spread_more)
        life.chain = life.chain.restarted(life.topology(two))
        life.chain.batch = 1
        life.run([("over", 1, 12)])  # for the second task alone: the chunks of the first one lack the field
    cut.rescale(one)
    for life in (plain, cut):
        life.run([], drain=True)
    assert sorted(cut.rows["times"]) == sorted(plain.rows["times"])


def test_the_failed_tuples_of_windows_stay_failed_in_their_new_tasks() -> None:
    """They are not acked when they expire, which only the metrics tell."""

    @sliding(millis(40), millis(20), timestamp="at", key="word", output="n long")
    def picky(window: Any) -> Any:
        if any(row.n == 1 for row in window):
            raise FailedException("unlucky")

    def of_picky(tasks: dict[str, int]) -> Topology:
        builder = TopologyBuilder("picky").configure({"topology.enable.message.timeouts": False})
        builder.set_spout("words", InputSpout("word string, n int, at long"))
        builder.set_bolt("picky", picky, tasks["picky"]).fields_grouping("words", "word")
        return builder.build()

    life, of_each = RescalableQuery({"picky": 1}, acks=True, topology=of_picky), []
    for tasks, rows in (
        (1, [(word, n, at) for word in WORDS for n, at in ((1, 10), (0, 15), (0, 25))]),
        (3, []),
        (2, [("cow", 0, 50)]),
        (1, [("cow", 0, 200)]),
    ):
        life.rescale({"picky": tasks})
        life.chain.channel = Totals()
        life.run(rows)
        bolt = life.chain.channel.totals.now(0).components().get("picky")
        of_each.append(None if bolt is None else (bolt.failed, bolt.acked))
    assert of_each == [(14, 0), None, (7, 0), (0, 1)]
    assert not any(StoredTask.of(stored, "task").failed for stored in life.chain.metadata.values())


def test_bolts_whose_state_belongs_to_a_task_are_refused_by_name() -> None:
    tasks = {"times": 2, "panes": 2, "counts": 2}
    plan = stored(Chain(topology(tasks)))
    for changed, refused in (
        ({"tally": 3}, r"bolt 'tally' keeps a state of its own \(init_state\).* keep its number of tasks"),
        ({"total": 3}, r"bolt 'total' has no key=.* keep its number of tasks"),
        ({"time": 3}, r"tasks names 'time', which is no bolt behind an exchange; did you mean 'times'"),
        ({"spread": 3}, r"tasks names 'spread', which is no bolt behind an exchange.* may have any number"),
        ({"times": 0}, r"tasks is a number of at least 1, got 0"),
        (4, r"tasks is 4, but the checkpoint is that of a topology: say whose, tasks=\{'times': 4\}"),
    ):
        with pytest.raises(ConfigError, match=refused):
            plan.rescaled(changed, lambda widest: widest)
    same = plan.rescaled({"tally": 2, "total": 1}, lambda widest: widest)
    assert (same.bolts, same.partitions) == (plan.bolts, 6), "who keeps its number of tasks may keep anything"


@pytest.mark.filterwarnings("ignore:.* has windows for each")
def test_windows_whose_key_does_not_determine_their_task_are_refused() -> None:
    class Kept:
        def init_state(self, state: Any) -> None:
            pass

        def execute(self, window: Any) -> Any:
            return len(window)

    def plan(*groupings: tuple[str, tuple[str, ...]], made: Any = None, **options: Any) -> StoredPlan:
        options = {"length": count(2), "slide": count(2)} | options
        if "eviction" in options:
            del options["length"]
        window = windowed_bolt(output="n long", name="windows", **options)(made or (lambda window: len(window)))
        builder = TopologyBuilder("words")
        builder.set_spout("words", InputSpout("word string, n int"))
        builder.set_spout("others", InputSpout("word string, n int"))
        held = tumbling(count(2), key="word", output="word string, n long", name="held")(lambda window: (window.key, 1))
        builder.set_bolt("held", held, 2).fields_grouping("words", "word")
        setter = builder.set_bolt("windows", window, 2)
        for source, by in groupings:
            setter.fields_grouping(source, *by) if by else setter.shuffle_grouping(source)
        return stored(Chain(builder.build()))

    both = (("words", ("n",)), ("others", ("word",)))
    for found, refused in (
        (
            plan(("words", ("n",)), key="word"),
            r"bolt 'windows' groups words:default by n, which is not what its key= \(word\)",
        ),
        (
            plan(("words", ("word",)), key="word", eviction=partial(CountEvictionPolicy, 2)),
            r"bolt 'windows' has policies of its own \(trigger=, eviction=\), so its windows belong to a task",
        ),
        (plan(("words", ()), key="word"), r'bolt \'windows\' has grouping="shuffle", which does not follow its key='),
        (
            plan(*both, key=("word", "n")),
            r"bolt 'windows' groups others:default by word, which is not what its key= \(word, n\) tells the same",
        ),
    ):
        with pytest.raises(ConfigError, match=refused):
            found.rescaled({"windows": 3}, lambda widest: widest)
    identified = plan(("held", ("word",)), made=Kept, key="word", message_id="n")
    with pytest.raises(
        ConfigError, match=r"bolt 'windows' knows tuples again by message_id=.*, and 'held' above it would"
    ):
        identified.rescaled({"held": 3}, lambda widest: widest)


def test_edge_ids_after_a_rescale_differ_from_those_before() -> None:
    tasks = {"times": 1, "panes": 1, "counts": 1}
    life = RescalableQuery(tasks, acks=True)
    # Each batch is the first one of a query: without the state before, each would make the same edges.
    for number in range(6):
        life.run([("cow", 1, 20 * number + 1)])
        life.rescale(tasks)
    life.run([], drain=True)
    assert [root for _, root in life.told] == [root_of(number, 0) for number in range(6)]


@pytest.mark.parametrize("kind", ["string collate UTF8_LCASE", "struct<a:int>", "interval day to second"])
def test_a_key_type_that_only_spark_can_hash_is_refused_by_name_even_from_one_task(kind: str) -> None:
    """With one task every hash finds every key in its place."""
    definition = {"bolt": {"fixed": {"name": "sums", "key": ["k"]}}, "tasks": 1, "grouping": ["k"]}
    plan = StoredPlan.of({**definition, "inputs": {"default": [["k", kind, True]]}})
    with pytest.raises(ConfigError, match=rf"bolt 'sums' has .* column 'k' \({kind}\).* keep its number of tasks"):
        plan.rescaled(2, lambda widest: widest)


def test_a_timestamp_ntz_key_has_the_hash_of_spark() -> None:
    definition = {"bolt": {"fixed": {"name": "sums", "key": ["k"]}}, "tasks": 1, "grouping": ["k"]}
    (sums,) = StoredPlan.of({**definition, "inputs": {"default": [["k", "timestamp_ntz", True]]}}).bolts
    sums.require_dealt()
    keys = [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 3, 31, 2, 30), None]
    assert [sums.task_of(key, 1_000) for key in keys] == [10, 827, 42]  # pmod(xxhash64(key), 1000)


# -- The variables of an operator --------------------------------------------------------------------------------------------------


@sliding(millis(40), millis(20), timestamp="at", key="word", output="word string, n long")
class TalliedWindows(Tally):
    def execute(self, window: Any) -> Any:
        return window.key, len(window)


def below(*bolts: Any) -> Topology:
    """Return a topology of these bolts, each behind an exchange after the one before it."""
    builder = TopologyBuilder("words")
    builder.set_spout("source", InputSpout("word string, n long, at long"))
    source = "source"
    for number, target in enumerate(bolts):
        builder.set_bolt(f"bolt_{number}", target, 2).fields_grouping(source, "word")
        source = f"bolt_{number}"
    return builder.build()


@bolt(output="word string, n long, at long")
def grouped(tuple: Any) -> Any:
    return tuple.word, tuple.n, tuple.at


@bolt(output="word string, n long, at long")
class Kept(Tally):
    def execute(self, tuple: Any) -> Any:
        return (*super().execute(tuple), tuple.at)


@tumbling(count(2), key="word", output="word string, n long, at long")
def counted(window: Any) -> Any:
    return window.key, len(window), 0


@pytest.mark.parametrize(
    ("bolts", "wanted"),
    [
        ((grouped,), [False]),
        ((Kept,), [True]),
        ((counted,), [False]),
        ((TalliedWindows,), [True]),
        ((Kept, grouped, counted), [True, False, False]),
        ((counted, Kept, grouped), [False, True, False]),
        ((grouped, grouped, TalliedWindows), [False, False, True]),
    ],
)
def test_a_rescale_finds_the_depths_with_states_that_the_query_has(bolts: Any, wanted: list[bool]) -> None:
    chain = Chain(below(*bolts))
    assert states_by_depth(chain.wiring.plan) == states_by_level(stored(chain).bolts) == wanted
    if len(bolts) == 1 and bolts[0] in (counted, TalliedWindows):
        alone = bolt_of(bolts[0])
        query = SimpleNamespace(bolt=alone, grouping=("word",), order_by=(), _inputs={})
        found = json.loads(json.dumps(WindowedStream._definition(cast(Any, query), 3)))
        assert states_by_depth(plan_of_bolt(alone, 3)) == states_by_level(StoredPlan.of(found).bolts) == wanted


@pytest.mark.parametrize("windows", [0, 1, 2])
def test_a_rescale_finds_no_states_in_the_operators_of_a_trident_topology(windows: int) -> None:
    topology = TridentTopology("words")
    stream = topology.new_stream("source", FixedBatchSpout("word string, n long", 2, []))
    for _ in range(windows):
        stream = stream.group_by("word").window(count(2), count(2), "n", Sum(), "n long")
    stream.group_by("word").persistent_aggregate(map_state(MemoryStore(), "sums"), "n", Sum(), "n long")
    plan = topology.build().by_section()
    assert states_by_depth(plan) == states_by_level(rescaling._bolts_of(plan)) == [False] * windows


def states_by_depth(plan: ExecutionPlan) -> list[bool]:
    return [plan.has_states_at(depth) for depth in plan.depths(Section.STREAM)]


def states_by_level(bolts: Any) -> list[bool]:
    return list(map(has_states, by_level(bolts)))
