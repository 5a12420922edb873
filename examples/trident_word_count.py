"""Trident word count: every word counts exactly once, though a batch fails and the run is ended and started again.

    sentences --> split --fields(word)--> counts (a state in SQLite, x2) <--query-- count_of (requests)

    python examples/trident_word_count.py [--state-path FILE]

Storm starter's TridentWordCount, written anew. Three batches are under way at a time; one of them fails on its first attempt.
The first run stops in the middle, the second goes on behind the last batch that was committed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from windowing import FailedException
from windowing.local import TridentCluster, VirtualClock
from windowing.stores import SqliteStore, map_state
from windowing.trident import Count, FixedBatchSpout, MapGet, TridentTopology

SENTENCES = [
    ("the cow jumped over the moon",),
    ("an apple a day keeps the doctor away",),
    ("four score and seven years ago",),
    ("snow white and the seven dwarfs",),
    ("i am at two with nature",),
    ("the cow jumped over the moon again",),
]


class Split:
    """Splits sentences; fails on the last one when it first comes."""

    stumbled = False

    def execute(self, row: Any) -> list[str]:
        if "again" in row.sentence and not Split.stumbled:
            Split.stumbled = True
            raise FailedException("not again")
        return list(row.sentence.split())


def topology(path: Path) -> TridentTopology:
    """Return the topology; its counts lie in a table `counts` of this file."""
    found = TridentTopology("trident_word_count").configure(max_spout_pending=3)
    words = found.new_stream("sentences", FixedBatchSpout("sentence string", 1, SENTENCES)).each(
        "sentence", Split, "word string"
    )
    state = map_state(SqliteStore(path), "counts")
    counts = words.group_by("word").persistent_aggregate(state, None, Count(), "n long").parallelism_hint(2)
    asked = found.new_drpc_stream("count_of").flat_map(lambda row: row.args.split(), output="word string")
    asked.partition_by("word").state_query(counts, "word", MapGet(), "n long").project("word", "n")
    return found


def main(path: Path) -> None:
    """Run twice, and compare with counting by hand."""
    with TridentCluster(topology(path), clock=VirtualClock(), state_path=path) as cluster:
        while cluster.result.batches < 2:
            cluster.step()
        print(f"first run: {cluster.result.batches} batches committed, then it ends")
    with TridentCluster(topology(path), clock=VirtualClock(), state_path=path) as cluster:
        result = cluster.run()
        print(f"second run: {result.batches} batches, failed attempts: {result.failures}")
        print(f"count_of('the cow rain') = {sorted(cluster.ask('count_of', 'the cow rain'), key=str)}")
        counts = {word: n for (word,), n in cluster.values("state1").items()}
    assert counts == Counter(word for (sentence,) in SENTENCES for word in sentence.split()), "each word counted once"
    for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]:
        print(f"{n:4}  {word}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state-path", type=Path, help="a new SQLite file (default: a temporary one)")
    chosen = parser.parse_args().state_path
    with tempfile.TemporaryDirectory() as folder:
        main(chosen or Path(folder) / "words.db")
