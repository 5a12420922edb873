"""LocalCluster: tuples a second through a spout and a bolt, with and without acking, against the calls by hand."""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator

from windowing import Spout, Topology, TopologyBuilder, bolt, count, spout, tumbling
from windowing.runtime import LocalCluster, VirtualClock


@spout(output="number long")
class Numbers(Spout):
    """Emits 0, 1, 2, ... and takes note of the acks."""

    def __init__(self, rows: int = 0) -> None:
        self.rows, self.next, self.acked = rows, 0, 0

    def next_tuple(self) -> None:
        if self.next < self.rows:
            self.collector.emit((self.next,), message_id=self.next)
            self.next += 1

    def ack(self, message_id: int) -> None:
        self.acked += 1


@bolt(output="number long")
def double(tuple):
    return (2 * tuple["number"],)


@tumbling(count(1000), output="total long")
def total(window):
    return sum(tuple["number"] for tuple in window)


def by_hand(rows: int) -> int:
    """Return the sum of what the bolt emits, called in a loop with dicts."""
    return sum(double({"number": number})[0] for number in range(rows))


def topology(rows: int, ackers: int, last: bool) -> Topology:
    builder = TopologyBuilder("cluster")
    builder.configure({"topology.acker.executors": ackers, "topology.max.spout.pending": 10_000})
    builder.set_spout("numbers", Numbers(rows))
    builder.set_bolt("double", double).shuffle_grouping("numbers")
    if last:
        builder.set_bolt("total", total).global_grouping("double")
    return builder.build()


def in_cluster(ackers: int, window: bool) -> Callable[[int], int]:
    """Return the run of a topology, which gives the sum of what comes out of it."""

    def run(rows: int) -> int:
        with LocalCluster(topology(rows, ackers, window), clock=VirtualClock()) as cluster:
            result = cluster.run()
        assert result.acked == rows, f"{result.acked} of {rows} messages were acked"
        return sum(row[0] for row in result["total" if window else "double"])

    return run


CONTENDERS: dict[str, Callable[[int], int]] = {
    "by hand": by_hand,
    "spout -> bolt, no acker": in_cluster(0, False),
    "spout -> bolt, 1 acker": in_cluster(1, False),
    "spout -> bolt, 4 ackers": in_cluster(4, False),
    "spout -> bolt -> window": in_cluster(1, True),
}


def rounds(rows: int, times: int) -> Iterator[tuple[str, list[float]]]:
    """Yield each contender with its CPU seconds a round; they take turns, and the sums have to be equal."""
    figures: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    expected = by_hand(rows)
    for _ in range(times):
        for name, run in CONTENDERS.items():
            gc.collect()
            started = time.process_time()
            found = run(rows)
            figures[name].append(time.process_time() - started)
            assert found == expected, f"{name}: {found} instead of {expected}"
    yield from figures.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(
        f"CPython {platform.python_version()}, {platform.machine()}, {options.rows:,} tuples, {options.rounds} rounds"
    )
    base = 0.0
    for name, figures in rounds(options.rows, options.rounds):
        seconds = statistics.median(figures)
        base = base or seconds
        print(f"  {name:24} {options.rows / seconds:12,.0f} tuples/s of the spout  {seconds / base:6.0f} x by hand")


if __name__ == "__main__":
    main()
