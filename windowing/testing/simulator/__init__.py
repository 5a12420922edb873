"""The simulator of Trident: whole topologies, run by the tasks of the local driver in virtual time, under seeded faults.

    seed --> Scenario --> World: one event heap, one random generator --> result: no problem, or the problem and the trace
                          |  TridentTopology --> TridentTasks: master, acker, coordinator, emitters, groups with states
                          |  faults: lost, delayed, repeated messages; tasks that die or stall at any step; damaged records; ...

    windowing simulate --seeds 100000            prints one line, or the first seed that fails
    windowing simulate --start 4711 --seeds 1    replays one seed: the same run

Laws: equal seeds give equal runs (`ScenarioResult.digest()`). Faults stop after some virtual time, and every batch must then
finish. The invariants are in `simulator/checks.py`. A failing seed is shrunk to a scenario with fewer kinds of faults, rows and
tasks.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import active_children
from typing import Any

from windowing.errors import printable
from windowing.testing.simulator.scenario import Scenario
from windowing.testing.simulator.world import World

_SHOWN_LINES = 40
_SHRINK_RUNS = 400
_TRIES = 8
_CHUNK = 250
_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class ScenarioResult:
    """The result of a scenario.

    problem: the violated invariant or error, None if there is none. events: number of scheduled events. faults: number of faults by
    kind. virtual_ms: duration in virtual time.
    """

    scenario: Scenario
    problem: str | None
    trace: list[tuple[Any, ...]] = field(repr=False)
    events: int
    faults: Counter[str]
    virtual_ms: int

    def digest(self) -> str:
        """Return a hash of the trace. Cost: O(trace)."""
        return hashlib.sha256("\n".join(map(repr, self.trace)).encode()).hexdigest()

    def report(self) -> str:
        """Return the problem, the scenario and the last lines of the trace as text."""
        left_out = max(0, len(self.trace) - _SHOWN_LINES)
        lines = [f"  {_line(entry)}" for entry in self.trace[left_out:]]
        return "\n".join([f"{self.problem}", f"  {self.scenario}", f"  ... {left_out} lines before", *lines])


def _line(entry: tuple[Any, ...]) -> str:
    """Return an entry of a trace as text: time, task, number of its life, event."""
    words = [word for each in entry for word in (each if type(each) is tuple else (each,))]
    return printable(" ".join(map(str, words)), 200)


def simulate(scenario: Scenario) -> ScenarioResult:
    """Run a scenario to its end, or to the first problem. Cost: some 40 ms.

    >>> run = simulate(Scenario.of(3))
    >>> run.problem, run.digest() == simulate(Scenario.of(3)).digest()
    (None, True)
    """
    world, problem = World(scenario), None
    try:
        world.run()
    except Exception as found:  # any error of a machine or a check is a finding
        problem = f"{type(found).__name__}: {found}" if str(found) else f"{found!r} {_location_of(found)}"
    return ScenarioResult(scenario, problem, world.trace, world.events, world.faults, world.now_ms)


def _location_of(found: BaseException) -> str:
    place = found.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f"at {place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place is not None else ""


def shrink(run: ScenarioResult) -> ScenarioResult:
    """Return a failing run of the simplest scenario that some hundred tries find."""
    tries = 0
    while True:
        for smaller in run.scenario.smaller():
            chances = [run.scenario.chance, *range(_TRIES)]
            runs = (simulate(replace(smaller, chance=chance)) for chance in chances)
            found = next((each for each in runs if each.problem is not None), None)
            tries += len(chances)
            if found is not None:
                run = found
                break
            if tries >= _SHRINK_RUNS:
                return run
        else:
            return run


@dataclass
class SeedsResult:
    """Totals over many seeds; `failed`: the seeds with a problem."""

    seeds: int = 0
    events: int = 0
    virtual_ms: int = 0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def __iadd__(self, other: SeedsResult) -> SeedsResult:
        self.seeds += other.seeds
        self.events += other.events
        self.virtual_ms += other.virtual_ms
        self.cpu_s += other.cpu_s
        self.faults += other.faults
        self.failed += other.failed
        return self

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        days, rate = self.virtual_ms / 86_400_000, self.seeds / max(self.cpu_s, 1e-9)
        return (
            f"{self.seeds} schedules, {len(self.failed)} failed; {self.events} events ({self.events / max(self.seeds, 1):.0f} a "
            f"schedule), {days:.1f} virtual days; {rate:.0f} schedules per CPU-second\nfaults: {faults or 'none'}"
        )


def run_seeds(seeds: range) -> SeedsResult:
    """Run the scenarios of these seeds in this process."""
    tally, began = SeedsResult(), time.process_time()
    for seed in seeds:
        run = simulate(Scenario.of(seed))
        tally.seeds += 1
        tally.events += run.events
        tally.virtual_ms += run.virtual_ms
        tally.faults += run.faults
        if run.problem is not None:
            tally.failed.append(seed)
    tally.cpu_s = time.process_time() - began
    return tally


def _tallies(start: int, seeds: int, processes: int) -> Iterator[SeedsResult]:
    chunks = [range(first, min(first + _CHUNK, start + seeds)) for first in range(start, start + seeds, _CHUNK)]
    if processes == 1:
        yield from map(run_seeds, chunks)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, initializer=_end_by_signals)
    try:
        # Python drops an exception of a signal that comes within a fork, and does not know a child whose start it interrupted.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            # Not `pool.map`: it cancels the rest, and Python before 3.13 prints a traceback for each that a broken pool then fails.
            tallies = deque(pool.submit(run_seeds, chunk) for chunk in chunks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while tallies:
            yield tallies.popleft().result()
    except BaseException:  # a failed seed closes this generator, Ctrl-C and SIGTERM raise in it
        for worker in set(active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown()


def _end_by_signals() -> None:
    """Let signals end a worker without a traceback; it has inherited the handlers and the mask of the process that made it."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def main(seeds: int, start: int = 0, processes: int = 1) -> int:
    """Run seeds; return 0 without a problem, else 1 after printing the first failing seed, shrunk."""
    total = SeedsResult()
    for tally in _tallies(start, seeds, processes):
        total += tally
        if total.failed:
            break
        if total.seeds % (20 * _CHUNK) == 0:
            print(f"{total.seeds} of {seeds} seeds", file=sys.stderr, flush=True)
    print(total)
    if not total.failed:
        return 0
    first = simulate(Scenario.of(total.failed[0]))
    print(f"seed {total.failed[0]}: {first.report()}\n\nshrunk to: {shrink(first).report()}")
    return 1
