"""Random topologies, failures, crashes and restarts in TridentCluster, with concurrent batches, equal one TridentRun."""

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
from tests.trident.test_trident_windows_model import EITHER, batches_of, row_of, topology_of
from windowing.acking.pending import RetryPolicy
from windowing.errors import FailedException
from windowing.local import VirtualClock
from windowing.local.trident_cluster import TridentCluster
from windowing.stores.sqlite import SqliteRecordStore, SqliteStore
from windowing.testing.replay import config_of
from windowing.testing.strategies import cases
from windowing.trident import builtins as b
from windowing.trident.coordinator import CoordinatorConfig
from windowing.trident.plan import TridentPlan
from windowing.trident.streams import TridentTopology
from windowing.trident.subtopology import TridentRun
from windowing.trident.transactional_state import MemoryRecordStore
from windowing.windows.manager import KeyedMachine, Machine

Sunk = dict[int, list[Row]]


class Crash(BaseException):
    """The death of the process."""


class FailureSchedule:
    """Lets a number of calls pass, then fails the batch or ends the process; then its next number counts."""

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


class CrashingRecordStore:
    """A RecordStore in front of another; the process may die before or after a write."""

    def __init__(self, inner: Any, fuse: FailureSchedule) -> None:
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


class Everything(CrashingRecordStore):
    """Keeps all that was ever written."""

    def __init__(self, fuse: FailureSchedule) -> None:
        super().__init__(MemoryRecordStore(), fuse)
        self.written: list[Any] = []

    def write(self, changes: Any, expected: Any) -> bool:
        self.written.append(sorted(changes.items()))
        return super().write(changes, expected)


BY_CHANCE = [0, 0, 0, 1, 0, 0, 0, 1]  # the positions of the 1s revealed which sender was faster
BURNS = st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4)


def patient(max_pending: int) -> CoordinatorConfig:
    return CoordinatorConfig(max_pending, 0, retry=RetryPolicy(None, first_ms=1, cap_ms=20))


def plan_of(steps: list[Any], tasks: int, fuse: Callable[..., bool]) -> TridentPlan:
    topology = TridentTopology("random")
    stream = topology.new_stream("in", Given()).parallelism_hint(tasks).filter(lambda row: fuse())
    several(stream, steps, topology, lambda: tasks).filter(lambda row: fuse()).sink("out").parallelism_hint(tasks)
    return topology.build()


def run_until_finished(make: Callable[[], TridentCluster], drain: bool = False) -> dict[str, Any]:
    """Run, and restart after each crash; return the values of the states in the end."""
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
def test_under_failures_crashes_and_concurrent_batches_sinks_and_states_equal_those_of_sequential_batches(
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
    plan = plan_of(steps, tasks, FailureSchedule(burns))
    sunk: Sunk = {}
    records = CrashingRecordStore(MemoryRecordStore(), FailureSchedule(deaths))

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

    states = run_until_finished(make)
    assert sunk == expected
    assert states == values_of(alone)


@settings(max_examples=settings().max_examples // 8)
@given(COMMITTING, MANY, st.integers(1, 4), st.none() | st.integers(0, 9), BURNS, BURNS)
def test_under_crashes_states_and_records_in_one_sqlite_file_equal_those_of_sequential_batches(
    steps: list[Any], batches: list[list[Row]], max_pending: int, seed: int | None, burns: Any, deaths: Any
) -> None:
    alone = TridentRun(plan_of(steps, 2, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    sunk, death = Sunk(), FailureSchedule(deaths)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = (SqliteStore(Path(folder) / f"{number}.db") for number in count())
        patch.setattr(test_trident_operations, "MemoryStore", lambda: next(files))
        plan = plan_of(steps, 2, FailureSchedule(burns))
        states = run_until_finished(
            lambda: TridentCluster(
                plan,
                batches={"in": batches},
                clock=VirtualClock(),
                seed=seed,
                coordination=patient(max_pending),
                records=CrashingRecordStore(SqliteRecordStore(Path(folder) / "0.db"), death),
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
def test_a_cluster_abandoned_after_any_round_is_continued_by_the_next_one(
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


@pytest.mark.filterwarnings("ignore::windowing.windows.config.SkippedTuplesWarning")
@settings(max_examples=settings().max_examples // 2)
@given(
    cases(max_steps=24, **{**EITHER, "drains": False, "idle": False}),
    st.booleans(),
    BURNS,
    BURNS,
    st.sampled_from([2, 1_000]),
)
def test_the_records_of_windows_are_those_of_a_comparison_of_all_keys_under_failures_and_restarts(
    case: dict[str, Any], drain: bool, burns: Any, deaths: Any, few: int
) -> None:
    batches = [list(map(row_of, tuples)) for _, tuples in batches_of(case)]

    def life() -> Any:
        records, sunk = Everything(FailureSchedule(deaths)), list[Any]()
        topology = topology_of(config_of(case), FailureSchedule(burns))
        run_until_finished(
            lambda: TridentCluster(
                topology,
                batches={"in": batches},
                clock=VirtualClock(),
                coordination=patient(1),
                records=records,
                sinks={name: (lambda *written: sunk.append(written)) for name in topology.build().sinks},
            ),
            drain,
        )
        return sunk, records.written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windowing.trident.windows._WHOLE_AFTER", few)
        found = life()
        patch.setattr(KeyedMachine, "mark", Machine.mark)
        patch.setattr(KeyedMachine, "changed", Machine.changed)
        assert found == life()


@pytest.mark.parametrize(
    ("step", "drain", "few"),
    [
        (("window",), True, 1),
        (("keyed",), True, 2),
        (("keyed",), False, 1_000),
        (("persist", b.Sum()), True, 1_000),
    ],
    ids=str,
)
def test_a_crash_before_or_after_any_write_of_the_records_changes_no_state_and_no_sink(
    step: Any, drain: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windowing.trident.windows._WHOLE_AFTER", few)
    batches = [[("a", 1), ("b", 2), ("a", 4)], [("b", 3), ("a", 5)], [("c", 9), ("a", 9), ("b", 9)], [("a", 12)]]
    alone = TridentRun(plan_of([step], 2, lambda: True))
    expected = {txid: sorted(alone.batch({"in": rows})["out"]) for txid, rows in enumerate(batches, 1)}
    if drain and step[0] != "persist":
        expected[5] = sorted(alone.batch({"in": []}, drain=True)["out"])
        assert expected[5]

    def crashes_at(number: int) -> bool:
        """Crash at the number-th opportunity; return whether there is one."""
        plan, sunk, fuse = plan_of([step], 2, lambda: True), Sunk(), FailureSchedule([(number, True)])
        options: dict[str, Any] = {
            "batches": {"in": batches},
            "records": CrashingRecordStore(MemoryRecordStore(), fuse),
        }
        options["sinks"] = {"out": lambda txid, rows: sunk.__setitem__(txid, sorted(rows))}
        states = run_until_finished(
            lambda: TridentCluster(plan, clock=VirtualClock(), coordination=patient(2), **options), drain
        )
        assert (sunk, states) == (expected, values_of(alone)), f"crash {number}"
        return not fuse.burns

    assert next(number for number in count() if not crashes_at(number)) > 30
