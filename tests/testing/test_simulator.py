"""The simulator: its seeds; it is deterministic, finds planted bugs, reports them, and shrinks the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from windowing.testing import simulator
from windowing.testing.simulator import main, run_seeds, shrink, simulate
from windowing.testing.simulator.scenario import Fault, Scenario
from windowing.testing.simulator.world import World
from windowing.trident import maps
from windowing.trident.coordinator import OnFailure
from windowing.trident.kinds import SpoutKind, StateType


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.crash) for start in range(250, 2_000, 250))]
)
def test_these_seeds_find_no_bug(start: int) -> None:
    tally = run_seeds(range(start, start + 250))
    assert tally.failed == [], f"see windowing simulate --seeds 1 --start {tally.failed[0]}"
    assert tally.seeds == 250
    assert set(tally.faults) == {fault.name for fault in Fault}, "a kind of fault never happened"


@pytest.mark.parametrize("seed", [2880, 3018, 3922])
def test_an_emitter_that_writes_when_its_batch_is_done_is_no_bug(seed: int) -> None:
    assert simulate(Scenario.of(seed)).problem is None


def test_seeds_cover_topologies_and_kinds() -> None:
    scenarios = [Scenario.of(seed) for seed in range(500)]
    pairs = Counter((each.spout, each.state) for each in scenarios)
    assert pairs[SpoutKind.OPAQUE, StateType.OPAQUE] > 100
    assert pairs[SpoutKind.TRANSACTIONAL, StateType.TRANSACTIONAL] > 100
    assert pairs[SpoutKind.TRANSACTIONAL, StateType.OPAQUE] > 100
    assert pairs[SpoutKind.OPAQUE, StateType.TRANSACTIONAL] == 0, "this pair promises nothing"
    assert {each.max_pending for each in scenarios} == {1, 2, 3, 4}
    assert {each.states for each in scenarios} == {1, 2, 3}
    assert all(any(fault in each.faults for each in scenarios) for fault in Fault)
    assert all(any(fault not in each.faults for each in scenarios) for fault in Fault)


def test_equal_seeds_give_equal_runs() -> None:
    seeds = range(15)
    first = [simulate(Scenario.of(seed)).digest() for seed in seeds]
    assert [simulate(Scenario.of(seed)).digest() for seed in seeds] == first
    assert len(set(first)) == len(seeds)


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Nothing depends on the hashes of strings, or on the addresses of objects."""
    code = "from windowing.testing.simulator import *; print(*(simulate(Scenario.of(s)).digest() for s in range(10)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [simulate(Scenario.of(seed)).digest() for seed in range(10)]


def undo_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "undone", lambda left: {})


def test_a_bug_is_reported_with_its_seed_and_a_shrunk_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    undo_less(monkeypatch)
    assert main(60) == 1
    said = capsys.readouterr().out
    assert "1 failed" in said or "failed;" in said
    assert "\nseed " in said
    assert "I2: as of txid" in said
    assert "shrunk to: " in said


def test_a_shrunk_run_still_fails_with_fewer_faults_and_a_shorter_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    undo_less(monkeypatch)
    failed = (run for run in map(simulate, map(Scenario.of, range(40))) if run.problem is not None)
    first = max(failed, key=lambda run: len(run.trace))
    small = shrink(first)
    assert small.problem is not None
    assert simulate(small.scenario).problem == small.problem
    assert len(small.scenario.faults) <= min(2, len(first.scenario.faults))
    assert len(small.trace) < len(first.trace)


def test_the_command_runs_seeds_in_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulator, "_CHUNK", 10)
    assert main(25, start=7, processes=2) == 0
    assert capsys.readouterr().out.startswith("25 schedules, 0 failed; ")


def finished_worlds(**changes: object) -> Iterator[World]:
    """Yield worlds without faults after their runs."""
    for seed in range(30):
        world = World(replace(Scenario.of(seed), faults=frozenset[Fault](), **changes))
        world.run()
        yield world


def test_without_faults_each_batch_is_emitted_once_and_few_records_are_stored() -> None:
    for world in finished_worlds(max_pending=1, poison=0):
        batches = [entry[-1][0] for entry in world.trace if entry[-2] == "BatchMessage"]
        # Single tuples have no end: one more batch may be begun when the last is done.
        more = world.scenario.spout is SpoutKind.NON_TRANSACTIONAL
        assert 0 <= len(batches) - world.scenario.batches <= more
        assert batches == [(txid, 0) for txid in range(1, len(batches) + 1)]
        # The last batch of each name, at most two before it that its next write deletes, and the two records of the master.
        assert len(world.records.beneath.blobs) <= 3 * (world.scenario.partitions + 1) + 2


def test_batches_that_always_fail_become_dead_letters() -> None:
    dead_rows = []
    for world in finished_worlds(poison=5, attempts=2, on_failure=OnFailure.SKIP, max_rows=3, batches=5):
        letters = [row for rows in world.checks.dead.values() for row in rows]
        read = {row for row in letters if row.place % 5 == 4}
        assert not any(row.place % 5 == 4 for row in world.checks.committed_rows)
        assert not read & world.checks.committed_rows
        dead_rows += sorted(read)
    assert len(dead_rows) > 30


def test_a_signal_that_comes_while_the_workers_are_started_ends_the_simulation_and_the_workers() -> None:
    code = (
        "import multiprocessing, os, signal; multiprocessing.set_start_method('fork')\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from windowing.testing import simulator\n"
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "simulator.main(1_000_000, processes=2)"
    )
    given = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", code], **given) as process:
        try:
            problem = process.communicate(timeout=30)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert problem.endswith("KeyboardInterrupt\n"), problem
