"""The acker: bytes a root with 1,000,000 in flight, and messages a second, against a dict and an XOR by hand."""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from windowing.acking.acker import Acker
from windowing.acking.ledger import Acked

START_MS = 1_700_000_000_000
PER_MS = 50
LIMIT_BYTES = 250

Message = tuple[int, int, int]  # root, xor, now


def ids(roots: int, seed: int) -> Iterator[tuple[int, int]]:
    random = Random(seed)
    for _ in range(roots):
        yield random.getrandbits(64), random.getrandbits(64)


def bytes_a_root(roots: int, rotation: int | None, per_ms: int) -> tuple[float, float]:
    """Return (held, peak) traced bytes a root, ids and values included, every root open."""
    gc.collect()
    tracemalloc.start()
    acker = Acker(rotation=rotation)
    for number, (root, xor) in enumerate(ids(roots, seed=1)):
        acker.init(root, xor, 3, START_MS + number // per_ms)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(acker) == roots
    return held / roots, peak / roots


def resident_bytes_a_root(roots: int) -> float:
    """Return the growth of the resident set a root, without tracing."""
    before = _resident()
    acker = Acker()
    for number, (root, xor) in enumerate(ids(roots, seed=1)):
        acker.init(root, xor, 3, START_MS + number // PER_MS)
    grown = _resident() - before
    assert len(acker) == roots
    return grown / roots


def _resident() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def floor(inits: list[Message], acks: list[Message]) -> int:
    """A dict of values and an XOR: no time, no states, no effects."""
    values: dict[int, int] = {}
    done = 0
    for root, xor, _ in inits:
        values[root] = xor
    for root, xor, _ in acks:
        value = values[root] ^ xor
        if value:
            values[root] = value
        else:
            del values[root]
            done += 1
    return done


def acker(rotation: int | None, seen: str | None) -> Callable[[list[Message], list[Message]], int]:
    """Return the loop over an acker; every effect is taken."""

    def run(inits: list[Message], acks: list[Message]) -> int:
        machine = Acker(rotation=rotation)
        done = 0
        for root, xor, now in inits:
            for _ in machine.init(root, xor, 3, now):
                raise AssertionError("nothing is acked yet")
        for root, xor, now in acks:
            for effect in machine.ack(root, xor, now, seen):
                done += type(effect) is Acked
        assert len(machine) == 0
        return done

    return run


def workload(roots: int, depth: int) -> tuple[list[Message], list[Message]]:
    """Return inits, then `depth` acks for each root: a chain of bolts, roots in random order within a depth."""
    random = Random(2)
    inits, acks = [], []
    edges = dict(ids(roots, seed=2))
    for number, (root, edge) in enumerate(edges.items()):
        inits.append((root, edge, START_MS + number // PER_MS))
    for step in range(1, depth + 1):
        order = list(edges)
        random.shuffle(order)
        for root in order:
            edge, edges[root] = edges[root], 0 if step == depth else random.getrandbits(64)
            acks.append((root, edge ^ edges[root], START_MS + roots // PER_MS))
    return inits, acks


CONTENDERS: dict[str, Callable[[list[Message], list[Message]], int]] = {
    "floor: dict and XOR": floor,
    "Acker, exact": acker(None, None),
    "Acker, exact, seen=": acker(None, "count"),
    "Acker, rotation=3": acker(3, None),
}


def speed(roots: int, depth: int, rounds: int) -> None:
    inits, acks = workload(roots, depth)
    messages = len(inits) + len(acks)
    figures: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, run in CONTENDERS.items():
            gc.collect()
            started = time.process_time()
            done = run(inits, acks)
            figures[name].append((time.process_time() - started) / messages * 1e9)
            assert done == roots, f"{name} acked {done} of {roots} roots"
    base = statistics.median(figures["floor: dict and XOR"])
    print(f"\n{roots:,} roots, init and {depth} ack(s) each: {messages:,} messages a round, median of {rounds}")
    for name, nanoseconds in figures.items():
        median = statistics.median(nanoseconds)
        print(f"  {name:22} {median:7.0f} ns a message  {1e9 / median:12,.0f} messages/s  {median / base:5.1f} x floor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--roots", type=int, default=1_000_000, help="in flight for the bytes")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"CPython {platform.python_version()}, {platform.machine()}, {options.roots:,} roots in flight")
    resident = resident_bytes_a_root(options.roots)  # first, while no freed memory can be used again
    print(f"  exact, {PER_MS} roots a ms    resident {resident:5.0f} bytes a root")
    worst = 0.0
    for name, rotation, per_ms in [
        (f"exact, {PER_MS} roots a ms", None, PER_MS),
        ("exact, 1 root a ms", None, 1),
        ("rotation=3", 3, PER_MS),
    ]:
        held, peak = bytes_a_root(options.roots, rotation, per_ms)
        worst = max(worst, held)
        print(f"  {name:22} traced   {held:5.0f} bytes a root, {peak:5.0f} at the peak")
    for depth in (1, 4):
        speed(options.roots // 10 // depth, depth, options.rounds)
    if max(worst, resident) > LIMIT_BYTES:
        sys.exit(f"\nmore than {LIMIT_BYTES} bytes a root")


if __name__ == "__main__":
    main()
