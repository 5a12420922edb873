"""Sliding sum: the sum of the last 30 numbers at every 10th, then the average of each 3 sums.

    numbers --> sum (last 30, every 10) --> average (3 by 3) --> table

    python examples/sliding_sum.py [--on spark]

Storm starter's classic, written anew. With `aggregate=` no number is added up three times:
each ten are summed once, and three such sums make a window.
"""

from __future__ import annotations

from classics import Batches, chosen_runtime, run

from windowing import InputSpout, Topology, TopologyBuilder, TupleWindow, count, sliding, tumbling
from windowing import aggregate as agg

BATCHES: Batches = {
    "numbers": [[(at * 1000, (at * 7919) % 1000) for at in range(start, start + 60)] for start in range(0, 300, 60)]
}


@sliding(count(30), count(10), timestamp="at", aggregate=agg.sum("value"), output="at long, total long")
def sliding_sum(window: TupleWindow) -> tuple[int, int]:
    return window.end_timestamp, window.aggregate


@tumbling(count(3), timestamp="at", output="at long, average double")
def average(window: TupleWindow) -> tuple[int, float]:
    totals = [row["total"] for row in window]
    return window.end_timestamp, sum(totals) / len(totals)


def topology() -> Topology:
    builder = TopologyBuilder("sliding_sum")
    builder.set_spout("numbers", InputSpout("at long, value long"))
    builder.set_bolt("sum", sliding_sum).global_grouping("numbers")
    builder.set_bolt("average", average).global_grouping("sum")
    return builder.build()


def main() -> None:
    on = chosen_runtime(__doc__.splitlines()[0])
    rows = run(topology(), BATCHES, on)["average"]
    print(f"{len(rows)} averages of three sums ({on})")
    for at, value in sorted(rows):
        print(f"until {at // 1000:4} s  {value:10.1f}")


if __name__ == "__main__":
    main()
