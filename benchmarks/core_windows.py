"""ns per event of the windowing core: count windows by `add` and by `add_batch`, against a hand-written loop."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache

from windowing import Activation, WindowConfig, WindowedBoltExecutor, count

BATCH = 10_000
TURN_EVERY = 1_000
ROUNDS = 5
START_MS = 1_700_000_000_000


def floor(length: int, slide: int, events: list[int]) -> int:
    """Keep the last `length` events in a deque, take a list of it at every `slide`-th."""
    window: deque[int] = deque(maxlen=length)
    checked = 0
    for number, event in enumerate(events, start=1):
        window.append(event)
        if number % slide == 0:
            taken = list(window)
            checked += len(taken) + taken[0] + taken[-1]
    return checked


def _checked(effects: Iterator[object]) -> int:
    checked = 0
    for effect in effects:
        if type(effect) is Activation:
            taken = effect.window.get()
            checked += len(taken) + taken[0] + taken[-1]
    return checked


@cache
def _stamps(events: int) -> list[int]:
    return [START_MS + event for event in range(events)]


def by_add(length: int, slide: int, events: list[int]) -> int:
    """One `add` per event, a turn every 1,000."""
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(length), slide=count(slide), timestamp="ts"))
    checked = 0
    stamps = _stamps(len(events))
    for number, event in enumerate(events, start=1):
        for _ in executor.add(event, stamps[event]):
            raise AssertionError("nothing is late here")
        if number % TURN_EVERY == 0:
            checked += _checked(executor.turn())
    return checked


def by_batch(length: int, slide: int, events: list[int]) -> int:
    """Batches of 10,000, a turn after each."""
    executor = WindowedBoltExecutor(WindowConfig.of(length=count(length), slide=count(slide), timestamp="ts"))
    stamps = _stamps(len(events))
    checked = 0
    for start in range(0, len(events), BATCH):
        for _ in executor.add_batch(events[start : start + BATCH], stamps[start : start + BATCH]):
            raise AssertionError("nothing is late here")
        checked += _checked(executor.turn())
    return checked


def main(events: int = 200_000) -> None:
    """Print a table."""
    print(
        f"CPython {platform.python_version()}, {events:,} events, median of {ROUNDS} rounds, ns per event (ratio to the floor)"
    )
    print(f"{'window':>14} {'floor':>8} {'add_batch':>16} {'add':>16}")
    contenders: dict[str, Callable[[int, int, list[int]], int]] = {"floor": floor, "add_batch": by_batch, "add": by_add}
    for length, slide in ((1_000, 1_000), (1_000, 100), (10_000, 100)):
        numbers = list(range(events))
        times: dict[str, list[float]] = {name: [] for name in contenders}
        values = set()
        for _ in range(ROUNDS):
            for name, contender in contenders.items():
                started = time.perf_counter()
                values.add(contender(length, slide, numbers))
                times[name].append((time.perf_counter() - started) / events * 1e9)
        assert len(values) == 1, f"contenders disagree: {values}"
        median = {name: statistics.median(each) for name, each in times.items()}
        cells = [f"{median[name]:8.0f} ({median[name] / median['floor']:4.1f}x)" for name in ("add_batch", "add")]
        print(f"{f'{length}/{slide}':>14} {median['floor']:>8.0f} {cells[0]:>16} {cells[1]:>16}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
