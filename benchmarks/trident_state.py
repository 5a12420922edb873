"""Commits of a Trident state: keys a second and time a commit in each store, against a dict that adds.

python benchmarks/trident_state.py                                memory, and a SQLite file in the working folder
python benchmarks/trident_state.py postgresql://... redis://...   these too (`make services`: see .services/addresses)
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from windowing.runtime.stores import map_state, store_of
from windowing.runtime.stores.remote import masked
from windowing.transactions.aggregators import ValueUpdater
from windowing.transactions.attempt import TransactionAttempt

ROUNDS = 7
SIZES = (100, 10_000)


class Add(ValueUpdater[int]):
    def update(self, stored: int | None) -> int:
        return (stored or 0) + 1


def timed(batch: Callable[[int], int]) -> tuple[float, float, int]:
    """Return the median of the rounds in wall and CPU seconds a batch, and the last sum."""
    walls, cpus, total = [], [], 0
    for txid in range(1, ROUNDS + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        total = batch(txid)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls), statistics.median(cpus), total


def a_dict(size: int) -> tuple[float, float, int]:
    keys, counts = [(f"word-{n}",) for n in range(size)], {}

    def batch(txid: int) -> int:
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        return sum(counts[key] for key in keys)

    return timed(batch)


def a_state(address: str, size: int, cache: int) -> tuple[float, float, int]:
    keys, updaters = [(f"word-{n}",) for n in range(size)], [Add()] * size
    with closing(map_state(store_of(address), f"bench_{uuid4().hex[:12]}", cache=cache).make_state(0, 1)) as state:

        def batch(txid: int) -> int:
            state.begin_commit(TransactionAttempt(txid, 0))
            total = sum(state.multi_update(keys, updaters))
            state.commit(TransactionAttempt(txid, 0))
            return total

        return timed(batch)


def main() -> None:
    print(f"{'store':46} {'keys':>7} {'ms a commit':>12} {'CPU ms':>8} {'keys a CPU second':>18}")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for size in SIZES:
            contenders = {"a dict": lambda size=size: a_dict(size)}
            for address in ("memory:", f"{folder}/state.db", *sys.argv[1:]):
                for cache in (0, 2 * size):
                    name = f"{masked(address).replace(folder, '')[:36]}{', cached' if cache else ''}"
                    contenders[name] = lambda a=address, size=size, c=cache: a_state(a, size, c)
            for name, run in contenders.items():
                wall, cpu, total = run()
                assert total == ROUNDS * size, "a batch was lost or counted twice"
                print(f"{name:46} {size:7,} {1e3 * wall:12.2f} {1e3 * cpu:8.2f} {size / cpu:18,.0f}")


if __name__ == "__main__":
    main()
