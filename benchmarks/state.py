"""The suite `state`: commits of a Trident state in each store, with and without a cache, against a dict that adds.

A round is a new state and `BATCHES` batches of one size. Its figure is the median wall time of a commit, including the disk and the
server; the CPU time of this process is a note. PostgreSQL and Redis are measured if `make services` runs them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

from benchmarks.frame import Contender, Measured, Plan
from benchmarks.records import Missing
from windowing.stores import map_state, store_of
from windowing.trident import TransactionAttempt, ValueUpdater

BATCHES = 5
SIZES = (100, 10_000)
ADDRESSES = Path(__file__).parent.parent / ".services" / "addresses"


class Add(ValueUpdater[int]):
    """Adds one."""

    def update(self, stored: int | None) -> int:
        return (stored or 0) + 1


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield a comparison for each size of a batch."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        stores = {"memory": "memory:", "SQLite": f"{folder}/state.db", **servers()}
        for size in (max(1, int(each * scale)) for each in SIZES):
            contenders = [Contender("a dict, by hand", a_dict)]
            for name, address in stores.items():
                contenders.append(Contender(name, partial(a_state, address, 0)))
                contenders.append(Contender(f"{name}, cached", partial(a_state, address, 2 * size)))
            yield Plan(
                f"commit of {size:,} keys", "one added to each key's count, opaque, a batch after the other", contenders, int,
                size, unit="ms per commit", clock="wall time", missing=absent(stores),
            )  # fmt: skip


def servers() -> dict[str, str]:
    """Return the addresses of the running servers, by name."""
    if not ADDRESSES.exists():
        return {}
    found = dict(line.split("=", 1) for line in ADDRESSES.read_text(encoding="utf-8").splitlines())
    return {"PostgreSQL": found["WINDOWING_POSTGRES_URL"], "Redis": found["WINDOWING_REDIS_URL"]}


def absent(stores: dict[str, str]) -> list[Missing]:
    """Return the servers that do not run."""
    return [Missing(name, "does not run; make services") for name in ("PostgreSQL", "Redis") if name not in stores]


def a_dict(size: int) -> Measured:
    """Add in a dict: no txid, no store, no restart."""
    keys, counts = _keys(size), {}

    def batch(_txid: int) -> int:
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        return sum(counts[key] for key in keys)

    return timed(batch, size)


def a_state(address: str, cache: int, size: int) -> Measured:
    """Commit batches to an opaque state in a store."""
    keys, updaters = _keys(size), [Add()] * size
    with closing(map_state(store_of(address), f"bench_{uuid4().hex[:12]}", cache=cache).make_state(0, 1)) as state:

        def batch(txid: int) -> int:
            attempt = TransactionAttempt(txid, 0)
            state.begin_commit(attempt)
            total = sum(state.multi_update(keys, updaters))
            state.commit(attempt)
            return total

        return timed(batch, size)


def timed(batch: Callable[[int], int], size: int) -> Measured:
    """Return the median of the batches, and their sums."""
    walls, cpus, totals = [], [], []
    for txid in range(1, BATCHES + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        totals.append(batch(txid))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    return Measured(totals, 1e3 * wall, {"CPU ms": 1e3 * cpu, "commits/s": 1 / wall, "keys per CPU-second": size / cpu})


def _keys(size: int) -> list[tuple[str]]:
    return [(f"word-{n}",) for n in range(size)]
