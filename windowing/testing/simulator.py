"""The simulator of Trident: whole topologies in the local driver's own tasks, in virtual time, under seeded faults.

    seed --> Scenario --> World: one heap, one source of chance --> result: nothing is wrong, or what, and the trace
                          |  TridentTopology --> TridentTasks: master, acker, coordinator, emitters, groups with states
                          |  lost, late, repeated messages; tasks that die or are held up at any step; damage; ...

    python -m windowing.testing.simulator --seeds 100000            one line, or the seeds that fail
    python -m windowing.testing.simulator --start 4711 --seeds 1    one seed again: the same run

Laws: equal seeds give equal runs (`ScenarioResult.digest()`). After some virtual time faults stop, and all must then be done. What
must hold is in `simulation/checks.py`; a seed that fails is shrunk to a scenario with fewer kinds of faults, rows and tasks.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from windowing.errors import printable
from windowing.testing.simulation.scenario import Fault, Scenario
from windowing.testing.simulation.world import World

__all__ = [
    "Fault",
    "Scenario",
    "ScenarioResult",
    "SeedsResult",
    "run_seeds",
    "shrink",
    "simulate",
]


_SHOWN_LINES = 40
_SHRINK_RUNS = 400
_TRIES = 8
_CHUNK = 250


@dataclass(frozen=True)
class ScenarioResult:
    """What came of a scenario. problem: what is wrong, None if nothing is. events: how many things happened, faults: of which
    kinds, how often. virtual_ms: how long it took in its own time."""

    scenario: Scenario
    problem: str | None
    trace: list[tuple[Any, ...]]
    events: int
    faults: Counter[str]
    virtual_ms: int

    def digest(self) -> str:
        """Return a hash of all that happened. Cost: O(trace)."""
        return hashlib.sha256("\n".join(map(repr, self.trace)).encode()).hexdigest()

    def report(self) -> str:
        """Say what is wrong, where, and what came before it."""
        left_out = max(0, len(self.trace) - _SHOWN_LINES)
        lines = [f"  {_line(entry)}" for entry in self.trace[left_out:]]
        return "\n".join([f"{self.problem}", f"  {self.scenario}", f"  ... {left_out} lines before", *lines])


def _line(entry: tuple[Any, ...]) -> str:
    """Return an entry of a trace as text: when, which task, which of its lives, what."""
    words = [word for each in entry for word in (each if type(each) is tuple else (each,))]
    return printable(" ".join(map(str, words)), 200)


def simulate(scenario: Scenario) -> ScenarioResult:
    """Run a scenario to its end, or to what is wrong. Cost: some 40 ms.

    >>> run = simulate(Scenario.of(3))
    >>> run.problem, run.digest() == simulate(Scenario.of(3)).digest()
    (None, True)
    """
    world, problem = World(scenario), None
    try:
        world.run()
    except Exception as found:  # whatever a machine or a check raises is what the simulator is for
        problem = f"{type(found).__name__}: {found}" if str(found) else f"{found!r} {_place_of(found)}"
    return ScenarioResult(scenario, problem, world.trace, world.events, world.faults, world.now_ms)


def _place_of(found: BaseException) -> str:
    place = found.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f"at {place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place is not None else ""


def shrink(run: ScenarioResult) -> ScenarioResult:
    """Return a run that fails too, of a scenario that is as simple as some hundred tries find."""
    tries = 0
    while True:
        for smaller in run.scenario.smaller():
            chances = [run.scenario.chance, *range(_TRIES)]
            found = next((each for each in map(simulate, _with(smaller, chances)) if each.problem is not None), None)
            tries += len(chances)
            if found is not None:
                run = found
                break
            if tries >= _SHRINK_RUNS:
                return run
        else:
            return run


def _with(scenario: Scenario, chances: Iterable[int]) -> Iterator[Scenario]:
    return (replace(scenario, chance=chance) for chance in chances)


@dataclass
class SeedsResult:
    """What many seeds came to; `failed` are those that found something."""

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
    """Run the scenarios of these seeds, in this process."""
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
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_seeds, chunks)


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; return 0 if nothing is wrong, else 1, with the first seed that failed, shrunk."""
    parser = argparse.ArgumentParser(prog="python -m windowing.testing.simulator", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1, help="how many processes share them")
    options = parser.parse_args(arguments)
    total = SeedsResult()
    for tally in _tallies(options.start, options.seeds, max(1, options.processes)):
        total += tally
        if total.failed:
            break
        if total.seeds % (20 * _CHUNK) == 0:
            print(f"{total.seeds} of {options.seeds} seeds", file=sys.stderr, flush=True)
    print(total)
    if not total.failed:
        return 0
    first = simulate(Scenario.of(total.failed[0]))
    print(f"seed {total.failed[0]}: {first.report()}\n\nshrunk to: {shrink(first).report()}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
