"""Word count: sentences are split into words, and each word's count goes on being counted, over all tasks by its hash.

    sentences --shuffle--> split x2 --fields(word)--> count x2 (stateful) --global--> table

    python examples/word_count.py [--on spark]

Storm starter's classic, written anew: the counts live in the bolt's state, so they survive a restart on Spark.
"""

from __future__ import annotations

from classics import Batches, chosen_runtime, run

from windowing import InputSpout, KeyValueState, Topology, TopologyBuilder, Tuple, bolt

BATCHES: Batches = {
    "sentences": [
        [("the cow jumped over the moon",), ("an apple a day keeps the doctor away",)],
        [("four score and seven years ago",), ("snow white and the seven dwarfs",)],
        [("i am at two with nature",), ("the cow jumped over the moon",)],
    ]
}


@bolt(output="word string")
def split(row: Tuple) -> list[str]:
    return list(row["sentence"].split())


@bolt(output="word string, n long")
class Count:
    """Counts words, one after the other, in the state that the runtime keeps for each task."""

    def init_state(self, state: KeyValueState) -> None:
        self.state = state

    def execute(self, row: Tuple) -> tuple[str, int]:
        n = self.state.get(row["word"], 0) + 1
        self.state.put(row["word"], n)
        return row["word"], n


def topology() -> Topology:
    builder = TopologyBuilder("word_count")
    builder.set_spout("sentences", InputSpout("sentence string"))
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count, 2).fields_grouping("split", "word")
    return builder.build()


def main() -> None:
    on = chosen_runtime(__doc__.splitlines()[0])
    rows = run(topology(), BATCHES, on)["count"]
    counts: dict[str, int] = {}
    for word, n in rows:
        counts[word] = max(n, counts.get(word, 0))
    assert sum(counts.values()) == len(rows), "each word was counted once"
    print(f"{len(rows)} words, {len(counts)} of them different ({on})")
    for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:8]:
        print(f"{n:4}  {word}")


if __name__ == "__main__":
    main()
