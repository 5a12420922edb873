"""The suite `acker`: bytes per root with 1,000,000 in flight, and messages per second, against a dict and an XOR by hand.

Roots in a seeded order, an init and one or four acks each; every effect is consumed. Bytes are measured in two ways: traced by
tracemalloc, ids and values included, after the run and at the peak while tables grow; and as growth of the resident set of a
separate process. The floor has no time, no order of arrival, no fail and no tasks.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.frame import Contender, Measured, Plan, timed
from windowing import Acked, Acker

ROOTS = 1_000_000
START_MS = 1_700_000_000_000
PER_MS = 50

Message = tuple[int, int, int]  # root, xor, now
Messages = tuple[list[Message], list[Message]]


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield bytes per root, then speed with one and with four acks per root."""
    roots = int(ROOTS * scale)
    yield Plan(
        "bytes a root", "open roots, ids and values counted",
        [
            Contender(f"exact, {PER_MS} roots a ms", partial(traced, None, PER_MS), compared=False),
            Contender("exact, 1 root a ms", partial(traced, None, 1), compared=False),
            Contender("rotation=3", partial(traced, 3, PER_MS), compared=False),
            Contender("resident set, exact", resident, compared=False),
        ],
        int, roots, unit="bytes per root", clock="tracemalloc; the resident set of a process",
    )  # fmt: skip
    for depth in (1, 4):
        yield Plan(
            f"init and {depth} ack{'s' * (depth > 1)}", "messages to the acker, every effect taken",
            [
                Contender("a dict and XOR, by hand", floor),
                Contender("exact", acker(None, None)),
                Contender("exact, seen=", acker(None, "count")),
                Contender("rotation=3", acker(3, None)),
            ],
            partial(workload, depth), roots // 10, unit="ns per message",
        )  # fmt: skip


def ids(roots: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (root, xor), seeded."""
    random = Random(seed)
    for _ in range(roots):
        yield random.getrandbits(64), random.getrandbits(64)


def traced(rotation: int | None, per_ms: int, roots: int) -> Measured:
    """Return the traced bytes per root with every root open."""
    gc.collect()
    tracemalloc.start()
    acker = Acker(rotation=rotation)
    for number, (root, xor) in enumerate(ids(roots, seed=1)):
        acker.init(root, xor, 3, START_MS + number // per_ms)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Measured(len(acker), held / roots, {"at the peak": peak / roots})


def resident(roots: int) -> Measured:
    """Return the growth of the resident set per root, in a new process that has no freed memory to reuse."""
    command = [sys.executable, "-m", "benchmarks.acker", str(roots)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Measured(roots, float(done.stdout))


def grown(roots: int) -> float:
    """Return the growth of this process's resident set per root."""
    before = _resident()
    acker = Acker()
    for number, (root, xor) in enumerate(ids(roots, seed=1)):
        acker.init(root, xor, 3, START_MS + number // PER_MS)
    found = _resident() - before
    assert len(acker) == roots
    return found / roots


def _resident() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def workload(depth: int, roots: int) -> Messages:
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


def floor(messages: Messages) -> Measured:
    """A dict of values and an XOR: no time, no states, no effects."""
    return _timed(messages, _floor)


def _floor(inits: list[Message], acks: list[Message]) -> int:
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


def acker(rotation: int | None, seen: str | None) -> Callable[[Messages], Measured]:
    """Return the loop over an acker; every effect is consumed."""

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

    return partial(_timed, run=run)


def _timed(messages: Messages, run: Callable[[list[Message], list[Message]], int]) -> Measured:
    inits, acks = messages
    return timed(lambda _: run(inits, acks), None, len(inits) + len(acks))


if __name__ == "__main__":
    print(grown(int(sys.argv[1])))
