"""check_attempts finds steps of a Trident topology that count a batch again when it is tried again."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowing import Event, EvictionContext, TriggerPolicy, count, seconds
from windowing.errors import BoltError, ConfigError, SupersededError
from windowing.local.clock import VirtualClock
from windowing.local.trident_cluster import run_trident
from windowing.stores import MemoryStore, map_state, snapshot_state
from windowing.testing import check_attempts
from windowing.trident import Count, FixedBatchSpout, Guarantee, MapGet, StateSpec, StateType, TridentTopology
from windowing.trident.streams import Stream

WORDS = {"words": [[("to", [1]), ("be", [2])], [("to", [3])], [], [("or", [4]), ("to", [5])]]}


def topology_of(build: Callable[[Stream], Any]) -> Callable[[], TridentTopology]:
    def topology() -> TridentTopology:
        topology = TridentTopology("words")
        build(topology.new_stream("words", FixedBatchSpout("word string, ids array<long>", 1, [])))
        return topology

    return topology


# -- what users write -------------------------------------------------------------------------------------------------------------


class Numbered:
    def prepare(self, context: Any) -> None:
        self.n = 0

    def execute(self, row: Any, collector: Any) -> None:
        self.n += 1
        collector.emit((self.n,))


class Unseen:
    def prepare(self, context: Any) -> None:
        self.seen: set[str] = set()

    def keep(self, row: Any) -> bool:
        new = row.word not in self.seen
        self.seen.add(row.word)
        return new


class Running:
    """An aggregator that keeps its total."""

    def prepare(self, context: Any) -> None:
        self.total = 0

    def init(self, batch: Any, collector: Any) -> None:
        return None

    def aggregate(self, value: None, row: Any, collector: Any) -> None:
        self.total += 1

    def complete(self, value: None, collector: Any) -> None:
        collector.emit((self.total,))


class Listed:
    """A reducer that adds in place to a list that all batches share."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def init(self) -> list[int]:
        return self.ids

    def reduce(self, current: list[int], row: Any) -> list[int]:
        current += row.ids
        return current


class Totals:
    """An updater that keeps in itself what belongs into the state."""

    def prepare(self, context: Any) -> None:
        self.total = 0

    def update_state(self, state: Any, rows: Any, collector: Any) -> None:
        self.total += len(rows)
        state.multi_put([("all",)], [self.total])


class Added:
    """A state of the user's own whose commit adds, whichever attempt it is."""

    kind = StateType.OPAQUE

    def __init__(self) -> None:
        self.stored = self.added = 0

    def make_state(self, partition: int, partitions: int) -> Added:
        return self

    def begin_commit(self, attempt: Any) -> None:
        self.added = 0

    def commit(self, attempt: Any) -> None:
        self.stored += self.added

    def get(self, as_of: int | None = None) -> int:
        return self.stored


class Adds:
    def update_state(self, state: Any, rows: Any, collector: Any) -> None:
        state.added += len(rows)


def doubled(window: Any) -> Any:
    for row in window:
        row.ids[:] = [2 * each for each in row.ids]
    return sum(each for row in window for each in row.ids)


def doubles(stream: Stream) -> Any:
    return stream.window(count(2), count(1), None, doubled, "total long").sink("out")


PLANTED = {
    "a function numbers its rows": (
        lambda stream: stream.each(None, Numbered(), "n long").sink("out"),
        r"in batch 0 row 0 of sink 'out' is \('to', \[1\], 1\) without a failure, \('to', \[1\], 3\) with one; a function, ",
    ),
    "a filter remembers": (
        lambda stream: stream.filter(Unseen()).sink("out"),
        r"in batch 0 row 0 of sink 'out' is \('to', \[1\]\) without a failure, None with one",
    ),
    "an aggregator adds to its field": (
        lambda stream: stream.aggregate(None, Running(), "n long").sink("out"),
        r"in batch 0 row 0 of sink 'out' is \(2,\) without a failure, \(4,\) with one",
    ),
    "a reducer changes its initial value": (
        lambda stream: stream.aggregate(None, Listed(), "ids array<long>").sink("out"),
        r"in batch 0 row 0 of sink 'out' is \(\[1, 2\],\) without a failure, \(\[1, 2, 1, 2\],\) with one",
    ),
    "an updater keeps a total": (
        lambda stream: stream.partition_persist(
            map_state(MemoryStore(), "totals", kind=StateType.OPAQUE), None, Totals()
        ),
        r"in batch 0 key \('all',\) of state 'state1' is 2 without a failure, 4 with one",
    ),
    "a state adds each attempt": (
        lambda stream: stream.partition_persist(Added(), None, Adds()),
        r"in batch 0 state 'state1' is 2 without a failure, 4 with one",
    ),
    "a window changes its rows in place": (doubles, r"in batch \d row 0 of sink 'out' is"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_step_that_keeps_something_is_found_by_the_batch_and_what_differs_in_it(bug: str) -> None:
    build, problem = PLANTED[bug]
    with pytest.raises(AssertionError, match=problem) as caught:
        check_attempts(topology_of(build), WORDS)
    assert str(caught.value).startswith("topology 'words' has other results if each batch is tried again: ")


def test_runs_that_share_something_are_told_apart_from_a_batch_that_is_tried_again() -> None:
    shared = Numbered()
    shared.n = 0
    store = MemoryStore()

    def numbered(row: Any, collector: Any) -> None:
        shared.execute(row, collector)

    with pytest.raises(
        AssertionError, match=r"two runs of topology 'words' .*: in batch 0 row 0 of sink 'out' is .*, 1\), then "
    ):
        check_attempts(topology_of(lambda stream: stream.each(None, numbered, "n long").sink("out")), WORDS)
    counts = topology_of(
        lambda stream: stream.persistent_aggregate(snapshot_state(store, "n"), None, Count(), "n long")
    )
    with pytest.raises(SupersededError):
        check_attempts(counts, WORDS)
    with pytest.raises(
        ConfigError, match=r"check_attempts takes a function .*, got TridentTopology\('words'.*write def topology"
    ):
        check_attempts(counts(), WORDS)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"returns a TridentTopology, got None; end it with return topology"):
        check_attempts(lambda: None, WORDS)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("call", "attempt"), [(1, 0), (2, 0), (3, 1)])  # one in the first run, two in the other
def test_what_user_code_raises_is_raised_with_a_note_of_the_batch_and_the_attempt(call: int, attempt: int) -> None:
    calls: list[Any] = []

    def failing(row: Any, collector: Any) -> None:
        if row.word == "or":
            calls.append(row)
            if len(calls) == call:
                raise ValueError("no")

    with pytest.raises(BoltError, match="ValueError: no") as caught:
        check_attempts(topology_of(lambda stream: stream.each(None, failing, "n long").sink("out")), WORDS)
    assert caught.value.__notes__[-1] == f"In batch 3 of topology 'words', attempt {attempt}."


def test_what_user_code_raises_in_the_drain_is_raised_with_a_note_of_it() -> None:
    def failing(window: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(BoltError, match="ValueError: no") as caught:
        check_attempts(
            topology_of(lambda stream: stream.window(count(100), count(100), None, failing, "n long").sink("out")),
            WORDS,
        )
    assert caught.value.__notes__[-1] == "In the drain of topology 'words', attempt 0."


def test_the_result_has_the_late_tuples_of_windows() -> None:
    def late() -> TridentTopology:
        topology = TridentTopology("late")
        rows = topology.new_stream("rows", FixedBatchSpout("k string, at long", 1, [])).partition_by("k")
        rows.group_by("k").window(seconds(1), None, None, len, "n long", timestamp="at").sink("out")
        return topology

    given = {"rows": [[("a", 1_000), ("b", 9_000)], [("a", 500), ("b", 800)], [("a", 400)]]}
    result, wanted = check_attempts(late, given), run_trident(late(), given, clock=VirtualClock())
    assert result.late == wanted.late
    assert sum(result.late.values()) == 3


# -- and what they should ----------------------------------------------------------------------------------------------------------


class EveryThird(TriggerPolicy):
    """A window at every third tuple, with all the last ten seconds."""

    def __init__(self) -> None:
        self.seen = 0

    def track(self, event: Event) -> list[EvictionContext] | None:
        if event.is_watermark:
            return None
        self.seen += 1
        return None if self.seen % 3 else [EvictionContext(event.timestamp)]

    def get_state(self) -> int:
        return self.seen

    def restore_state(self, state: int) -> None:
        self.seen = state


def everything(kind: StateType) -> TridentTopology:
    """A topology with a state by key and one of a single value, a query, and windows over the clock and with a policy."""
    topology, store = TridentTopology("words"), MemoryStore()
    stream = topology.new_stream("words", FixedBatchSpout("word string, ids array<long>", 1, [])).partition_by("word")
    words, accept = stream.group_by("word"), Guarantee.AT_LEAST_ONCE
    counted = words.persistent_aggregate(
        StateSpec(map_state(store, "n", kind=kind), accept=accept), None, Count(), "n long"
    )
    counted.new_values_stream().sink("counts")
    stream.state_query(counted, "word", MapGet(), "before long").sink("before")
    number = stream.persistent_aggregate(
        StateSpec(snapshot_state(store, "all", kind=kind), accept=accept), None, Count(), "n long"
    )
    number.new_values_stream().sink("all")
    words.window(seconds(3), seconds(2), None, len, "n long").sink("windows")
    words.window(
        seconds(10), None, None, lambda window: sum(row.ids[0] for row in window), "n long", trigger=EveryThird
    ).sink("third")
    return topology


@pytest.mark.parametrize("kind", StateType)
@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), min_size=1, max_size=2)), max_size=4),
        max_size=5,
    )
)
def test_a_topology_whose_steps_keep_nothing_has_the_results_of_run_trident(
    kind: StateType, batches: list[Any]
) -> None:
    given = {"words": batches}
    result = check_attempts(lambda: everything(kind), given)
    assert result.batches == len(batches) + 1
    wanted = run_trident(everything(kind), given, clock=VirtualClock())
    assert result.states == wanted.states
    for sink in ("counts", "before", "all"):
        assert Tally(map(repr, result.sinks[sink])) == Tally(map(repr, wanted.sinks[sink]))
    assert sum(n for (n,) in result.sinks["windows"]) >= sum(map(len, batches))
