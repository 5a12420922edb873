"""Random topologies, failures, crashes and restarts in TridentCluster, several batches under way: what TridentRun gives, once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.trident import test_trident_operations
from tests.trident.test_trident_operations import (
    BATCHES,
    FIELDS,
    PARTED,
    PERSIST,
    WINDOW,
    Given,
    Row,
    assume_few,
    pipelines,
    several,
)
from tests.trident.test_trident_stream_protocol import COMMITTING, MANY
from windowing.acking.pending import RetryPolicy
from windowing.errors import FailedException
from windowing.local import VirtualClock
from windowing.local.trident_cluster import TridentCluster
from windowing.stores.factory import map_state
from windowing.stores.memory import MemoryStore
from windowing.stores.sqlite import SqliteRecordStore, SqliteStore
from windowing.trident import builtins as b
from windowing.trident.coordinator import CoordinatorConfig, Readiness
from windowing.trident.kinds import TransactionAttempt
from windowing.trident.plan import TridentPlan
from windowing.trident.spouts import (
    IOpaquePartitionedTridentSpout,
    IPartitionedTridentSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
)
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.trident.transactional_state import MemoryRecordStore

Sunk = dict[int, list[Row]]


class Crash(BaseException):
    """The process ends here."""


class Fuse:
    """Lets so many calls pass, then fails the batch, or ends the process; then the next of its numbers counts."""

    def __init__(self, burns: list[tuple[int, bool]]) -> None:
        self.burns = list(burns)
        self.calls = 0

    def __call__(self, *_: Any) -> bool:
        self.calls += 1
        if self.burns and self.calls > self.burns[0][0]:
            crashes = self.burns.pop(0)[1]
            self.calls = 0
            raise Crash if crashes else FailedException("burnt")
        return True


class Mortal:
    """A RecordStore in front of another; the process may end before or after it writes."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self.inner, self.fuse = inner, fuse
        self.read, self.paths = inner.read, inner.paths

    def write(self, changes: Any, expected: Any) -> bool:
        self.burn()
        written = self.inner.write(changes, expected)
        self.burn()
        return bool(written)

    def burn(self) -> None:
        try:
            self.fuse()
        except FailedException:
            raise Crash from None


BY_CHANCE = [0, 0, 0, 1, 0, 0, 0, 1]  # where the 1s went showed which sender was faster
BURNS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4)


def patient(max_pending: int) -> CoordinatorConfig:
    return CoordinatorConfig(max_pending, 0, retry=RetryPolicy(None, first_ms=1, cap_ms=20))


def plan_of(steps: list[Any], tasks: int, fuse: Callable[..., bool]) -> TridentPlan:
    topology = TridentTopology("random")
    stream = topology.new_stream("in", Given()).parallelism_hint(tasks).filter(lambda row: fuse())
    several(stream, steps, topology, lambda: tasks).filter(lambda row: fuse()).sink("out").parallelism_hint(tasks)
    return topology.build()


def survive(make: Callable[[], TridentCluster], drain: bool = False) -> dict[str, Any]:
    """Run, and start again after each crash; return what the states hold at the end."""
    while True:
        cluster = make()
        try:
            cluster.run(drain)
            return {id: cluster.values(id) for id in cluster.states}
        except Crash:
            continue


def values_of(run: TridentRun) -> dict[str, Any]:
    return {id: dict(item for part in parts for item in part.items()) for id, parts in run.states.items()}


@settings(deadline=None)
@example([("shuffle",), ("shuffle",), ("partition_aggregate", "max")], [[("a", n) for n in BY_CHANCE]], 3, 1, 0, [], [])
@given(
    COMMITTING | pipelines(PARTED),
    BATCHES | MANY,
    st.integers(1, 3),
    st.integers(1, 4),
    st.none() | st.integers(0, 9),
    BURNS,
    BURNS,
)
def test_whatever_fails_crashes_and_overlaps_sinks_and_states_are_those_of_one_batch_after_the_other(
    steps: list[Any],
    batches: list[list[Row]],
    tasks: int,
    max_pending: int,
    seed: int | None,
    burns: list[tuple[int, bool]],
    deaths: list[tuple[int, bool]],
) -> None:
    assume_few(steps, batches, tasks)
    alone = TridentRun(plan_of(steps, tasks, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    plan = plan_of(steps, tasks, Fuse(burns))
    sunk: Sunk = {}
    records = Mortal(MemoryRecordStore(), Fuse(deaths))

    def make() -> TridentCluster:
        return TridentCluster(
            plan,
            batches={"in": batches},
            clock=VirtualClock(),
            seed=seed,
            coordination=patient(max_pending),
            records=records,
            sinks={"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))},
        )

    states = survive(make)
    assert sunk == expected
    assert states == values_of(alone)


@settings(max_examples=settings().max_examples // 8)
@given(COMMITTING, MANY, st.integers(1, 4), st.none() | st.integers(0, 9), BURNS, BURNS)
def test_the_same_with_states_and_records_in_one_sqlite_file(
    steps: list[Any], batches: list[list[Row]], max_pending: int, seed: int | None, burns: Any, deaths: Any
) -> None:
    alone = TridentRun(plan_of(steps, 2, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    sunk, death = Sunk(), Fuse(deaths)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = (SqliteStore(Path(folder) / f"{number}.db") for number in count())
        patch.setattr(test_trident_operations, "MemoryStore", lambda: next(files))
        plan = plan_of(steps, 2, Fuse(burns))
        states = survive(
            lambda: TridentCluster(
                plan,
                batches={"in": batches},
                clock=VirtualClock(),
                seed=seed,
                coordination=patient(max_pending),
                records=Mortal(SqliteRecordStore(Path(folder) / "0.db"), death),
                sinks={"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))},
            )
        )
        assert (sunk, states) == (expected, values_of(alone))


@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(WINDOW | PERSIST, min_size=1, max_size=1),
    BATCHES,
    st.integers(1, 3),
    st.integers(0, 9),
    st.lists(st.integers(1, 25), max_size=4),
)
def test_a_cluster_that_is_abandoned_between_any_two_rounds_goes_on_in_the_next_one(
    steps: list[Any], batches: list[list[Row]], max_pending: int, seed: int, rounds: list[int]
) -> None:
    alone = TridentRun(plan_of(steps, 2, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    plan, records, sunk = plan_of(steps, 2, lambda: True), MemoryRecordStore(), Sunk()
    for number in [*rounds, None]:
        cluster = TridentCluster(
            plan,
            batches={"in": batches},
            clock=VirtualClock(),
            seed=seed,
            coordination=patient(max_pending),
            records=records,
            sinks={"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))},
        )
        if number is None:
            cluster.run(drain=False)
        else:
            assert [cluster.step() for _ in range(number)]
    assert sunk == expected
    assert {id: cluster.values(id) for id in cluster.states} == values_of(alone)


class Source(PartitionedCoordinator, PartitionedEmitter):
    """Partitions of numbered rows, with an end; how many a new batch holds, also when it is tried again, is chance."""

    output = FIELDS

    def __init__(self, sizes: dict[str, int], chance: Any) -> None:
        self.sizes, self.chance = sizes, chance
        self.read = dict.fromkeys(sizes, 0)

    def get_coordinator(self) -> Source:
        return self

    def get_emitter(self) -> Source:
        return self

    def get_partitions_for_batch(self) -> list[str]:
        return sorted(self.sizes)

    def is_ready(self, txid: int) -> Readiness:
        return Readiness.READY if txid <= 12 else Readiness.ENDED

    def emit_partition_batch_new(self, attempt: TransactionAttempt, collector: Any, partition: str, last: Any) -> Any:
        start = last[1] if last else 0
        most = self.sizes[partition] - start
        end = start + (most if attempt.txid == 12 else min(most, self.chance.randrange(4)))
        self.emit_partition_batch(attempt, collector, partition, [start, end])
        return [start, end]

    def emit_partition_batch(self, attempt: Any, collector: Any, partition: str, metadata: Any) -> None:
        for number in range(*metadata):
            collector.emit((f"{partition}{number}", 1))


class Transactional(Source, IPartitionedTridentSpout):
    pass


class Opaque(Source, IOpaquePartitionedTridentSpout):
    pass


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from([Transactional, Opaque]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.none() | st.integers(0, 9),
    BURNS,
    BURNS,
    st.randoms(use_true_random=False),
)
def test_each_row_of_a_partitioned_spout_counts_once_however_batches_are_cut_when_they_are_tried_again(
    kind: type[Any], tasks: int, max_pending: int, seed: int | None, burns: Any, deaths: Any, chance: Any
) -> None:
    sizes = {"x": 9, "y": 4, "z": 0}
    fuse, sunk = Fuse(burns), Sunk()
    topology = TridentTopology("rows")
    rows = topology.new_stream("in", kind(sizes, chance)).parallelism_hint(tasks).filter(lambda row: fuse())
    counts = rows.group_by("k").persistent_aggregate(map_state(MemoryStore(), "s"), "n", b.Sum(), "n long")
    counts.new_values_stream().filter(lambda row: fuse()).sink("out")
    plan, records = topology.build(), Mortal(MemoryRecordStore(), Fuse(deaths))
    states = survive(
        lambda: TridentCluster(
            plan,
            clock=VirtualClock(),
            seed=seed,
            coordination=patient(max_pending),
            records=records,
            sinks={"out": sunk.__setitem__},
        )
    )
    wanted = {(f"{partition}{number}",): 1 for partition, size in sizes.items() for number in range(size)}
    assert states == {"state1": wanted}
    assert sorted(row for rows in sunk.values() for row in rows) == sorted((*key, 1) for key in wanted)


@pytest.mark.parametrize(
    ("step", "drain"),
    [(("window",), True), (("keyed",), True), (("keyed",), False), (("persist", b.Sum()), True)],
    ids=str,
)
def test_a_crash_before_or_after_any_write_of_the_records_changes_nothing(step: Any, drain: bool) -> None:
    batches = [[("a", 1), ("b", 2), ("a", 4)], [("b", 3), ("a", 5)], [("c", 9), ("a", 9), ("b", 9)], [("a", 12)]]
    alone = TridentRun(plan_of([step], 2, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    if drain and step[0] != "persist":
        expected[5] = sorted(alone.batch({"in": []}, drain=True)["out"])
        assert expected[5]

    def crashes_at(number: int) -> bool:
        """Crash at the number-th chance; return whether there is one."""
        plan, sunk, fuse = plan_of([step], 2, lambda: True), Sunk(), Fuse([(number, True)])
        options: dict[str, Any] = {"batches": {"in": batches}, "records": Mortal(MemoryRecordStore(), fuse)}
        options["sinks"] = {"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))}
        states = survive(lambda: TridentCluster(plan, clock=VirtualClock(), coordination=patient(2), **options), drain)
        assert (sunk, states) == (expected, values_of(alone)), f"crash {number}"
        return not fuse.burns

    assert next(number for number in count() if not crashes_at(number)) > 30


@pytest.mark.parametrize("seed", range(6))
def test_records_and_states_in_one_sqlite_file_survive_crashes(tmp_path: Path, seed: int) -> None:
    batches = [[(key, number) for key in "abc"] for number in range(6)]
    fuse = Fuse([(5 + seed, False), (3 * seed, True), (11, False), (seed, True), (2, True)])

    def made() -> TridentPlan:
        topology = TridentTopology("two_persists")
        rows = topology.new_stream("in", Given()).parallelism_hint(2).filter(lambda row: fuse())
        store = SqliteStore(tmp_path / "all.db")
        sums = rows.group_by("k").persistent_aggregate(map_state(store, "sums"), "n", b.Sum(), "n long")
        sums.parallelism_hint(2).new_values_stream().filter(lambda row: fuse()).sink("out")
        rows.shuffle().persistent_aggregate(map_state(store, "counts"), None, b.Count(), "n long")
        return topology.build()

    def make() -> TridentCluster:
        records = Mortal(SqliteRecordStore(tmp_path / "all.db"), Fuse([(4 + 2 * seed, True)] if not deaths else []))
        deaths.append(1)
        return TridentCluster(
            made(),
            batches={"in": batches},
            clock=VirtualClock(),
            seed=seed,
            coordination=patient(3),
            records=records,
            sinks={"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))},
        )

    deaths: list[int] = []
    sunk: Sunk = {}
    states = survive(make)
    assert len(deaths) > 2, "it was started again"
    assert states == {"state1": dict.fromkeys([("a",), ("b",), ("c",)], 15), "state2": 18}
    assert sunk == {txid: [(key, sum(range(txid))) for key in "abc"] for txid in range(1, 7)}
