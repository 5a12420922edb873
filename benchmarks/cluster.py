"""The suite `cluster`: a spout and a bolt in LocalCluster, with no acker, one and four, and followed by a count window.

The floor calls the bolt's function in a loop; the sums of the output are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.frame import Contender, Plan
from windowing import Spout, Topology, TopologyBuilder, bolt, count, spout, tumbling
from windowing.local import LocalCluster, VirtualClock


@spout(output="number long")
class Numbers(Spout):
    """Emits 0, 1, 2, ... and counts the acks."""

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
    """Return the sum of the bolt's output, called in a loop with dicts."""
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
    """Return a function that runs a topology and returns the sum of its output."""

    def run(rows: int) -> int:
        with LocalCluster(topology(rows, ackers, window), clock=VirtualClock()) as cluster:
            result = cluster.run()
        assert result.acked == rows, f"{result.acked} of {rows} messages were acked"
        return sum(row[0] for row in result["total" if window else "double"])

    return run


def plans(scale: float = 1.0) -> Iterator[Plan]:
    """Yield one comparison: the bolt's function in a loop, then in clusters."""
    runs: dict[str, Callable[[int], int]] = {
        "the bolt in a loop, by hand": by_hand,
        "spout -> bolt, no acker": in_cluster(0, False),
        "spout -> bolt, 1 acker": in_cluster(1, False),
        "spout -> bolt, 4 ackers": in_cluster(4, False),
        "spout -> bolt -> window": in_cluster(1, True),
    }
    contenders = [Contender(name, run) for name, run in runs.items()]
    yield Plan(
        "cluster",
        "tuples of the spout, through LocalCluster",
        contenders,
        int,
        int(50_000 * scale),
        unit="ns per tuple",
    )
