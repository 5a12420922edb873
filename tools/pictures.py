"""Draws the pictures of docs/concepts/ out of real runs: python tools/pictures.py; tests/test_pictures.py says when one is old."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from windowing import count, seconds, sliding, tumbling
from windowing.errors import FailedException
from windowing.local import TridentCluster, VirtualClock, explain
from windowing.stores import MemoryStore, map_state
from windowing.trident import Count, FixedBatchSpout, TridentTopology

FOLDER = Path(__file__).parents[1] / "docs" / "concepts"
WORDS = [[("to", 1), ("be", 4), ("or", 8), ("not", 7)], [("to", 11), ("be", 13)], [("or", 9), ("that", 17)]]
BATCHES = [[{"word": word, "at": 1_000 * second} for word, second in batch] for batch in WORDS]


@sliding(seconds(10), seconds(5), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def ten_seconds_every_five(window):
    return len(window)


@tumbling(seconds(10), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def ten_seconds(window):
    return len(window)


@sliding(count(3), count(2), timestamp="at", late_stream="late", output="words long")
def three_every_two(window):
    return len(window)


@tumbling(seconds(5), timestamp="at", lag=seconds(2), late_stream="late", output="words long")
def five_seconds(window):
    return len(window)


@sliding(seconds(10), seconds(5), timestamp="at", lateness="window", late_stream="late", output="words long")
def late_by_window(window):
    return len(window)


@sliding(seconds(10), seconds(5), timestamp="at", output="words long")
def until_they_expire(window):
    return len(window)


def at(*batches: list[int]) -> list[list[dict[str, Any]]]:
    """Return tuples at these seconds, called a, b, c and so on."""
    names = iter("abcdefgh")
    return [[{"word": next(names), "at": 1_000 * second} for second in batch] for batch in batches]


PICTURES: dict[str, tuple[str, Any, list[list[dict[str, Any]]]]] = {
    "duration_windows.svg": ("windows.md", ten_seconds_every_five, BATCHES),
    "tumbling_windows.svg": ("windows.md", ten_seconds, BATCHES),
    "count_windows.svg": ("windows.md", three_every_two, BATCHES),
    "watermark.svg": ("watermarks.md", five_seconds, at([3, 9, 4], [8, 6, 12], [18])),
    "late.svg": ("late_tuples.md", late_by_window, at([3, 12], [8, 4], [21])),
    "expiry.svg": ("expiry_and_acks.md", until_they_expire, at([3, 7], [11], [16])),
}
"""The page that shows it, the bolt and its rows."""


# -- batches of Trident ----------------------------------------------------------------------------------------------------------


class FailsOnce:
    def __init__(self) -> None:
        self.failed = False

    def __call__(self, row: Any) -> bool:
        if row.word == "or" and not self.failed:
            self.failed = True
            raise FailedException("the first attempt at batch 2 fails")
        return True


Moment = tuple[int, dict[int, tuple[str, str]], int]
"""The time, what is under way, (attempt, status) by txid, and how many tuples the state has counted."""


def moments() -> list[Moment]:
    """Run four batches, the second of which fails once; return what is under way whenever that changes."""
    topology, counts = TridentTopology("counts"), map_state(MemoryStore(), "counts")
    spout = FixedBatchSpout("word string", 2, [(word,) for word in ["to", "be", "or", "not", "to", "be", "that", "is"]])
    words = topology.new_stream("words", spout).filter(FailsOnce())
    words.group_by("word").persistent_aggregate(counts, None, Count(), "n long")
    topology.configure({"topology.max.spout.pending": 3})
    found: list[Moment] = []
    with TridentCluster(topology, clock=VirtualClock()) as cluster:
        master = cluster.task_set.master
        perform = master._perform

        def performed(effects: Any) -> Any:
            asked = perform(effects)
            under_way = {each.txid: (str(each), status.value) for each, status in master.machine.under_way}
            with closing(counts.make_state(0, 1)) as state:
                moment = master.router.now_ms, under_way, sum(n for _, n in state.items())
            if (under_way or found) and (not found or found[-1][1:] != moment[1:]):
                found.append(moment)
            return asked

        master._perform = performed  # type: ignore[method-assign]
        cluster.run()
    return found


STEP, LANE, LEFT, TOP = 52, 34, 100, 30
FILLS = {"processing": "#dbeafe", "processed": "#93c5fd", "committing": "#1d4ed8"}


def batches_drawn() -> str:
    """Draw a lane for each batch: its attempts, from left to right."""
    found = moments()
    lanes = sorted({txid for _, under_way, _ in found for txid in under_way})
    width, bottom = LEFT + STEP * len(found) + 16, TOP + LANE * len(lanes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 74}" viewBox="0 0 {width} {bottom + 74}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>Four batches, of which the second fails once</title>",
        f'<rect width="{width}" height="{bottom + 74}" fill="#ffffff"/>',
    ]

    def text(x: float, y: float, said: object, fill: str = "#1f2937", anchor: str = "start") -> None:
        parts.append(f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}">{said}</text>')

    for lane, txid in enumerate(lanes):
        y = TOP + LANE * lane
        text(8, y + 18, f"batch {txid}")
        for at, (_, under_way, _) in enumerate(found):
            attempt, status = under_way.get(txid, ("", ""))
            before = found[at - 1][1].get(txid, ("", "")) if at else ("", "")
            x = LEFT + STEP * at
            if attempt:
                parts.append(f'<rect x="{x}" y="{y + 2}" width="{STEP}" height="24" fill="{FILLS[status]}"/>')
            if attempt and attempt != before[0]:
                text(x + 5, y + 18, attempt)
            if before[0] and attempt != before[0]:
                done = before[1] == "committing"
                text(x + 4, y + 19, "done" if done else "&#10007; failed", "#166534" if done else "#b91c1c")
    text(8, bottom + 18, "tuples counted")
    for at, (now, _, counted) in enumerate(found):
        text(LEFT + STEP * at + 5, bottom + 18, counted)
        if at and now != found[at - 1][0]:
            x = LEFT + STEP * at
            parts.append(f'<path d="M{x} {TOP - 6}V{bottom + 26}" stroke="#6b7280" stroke-dasharray="3 3"/>')
            text(x, TOP - 12, f"{(now - found[at - 1][0]) / 1000:g} s later", "#6b7280", "middle")
    for number, (status, fill) in enumerate(FILLS.items()):
        x = LEFT + 110 * number
        parts.append(f'<rect x="{x}" y="{bottom + 42}" width="18" height="14" fill="{fill}" stroke="#9ca3af"/>')
        text(x + 24, bottom + 54, status)
    return "\n".join([*parts, "</svg>"]) + "\n"


PAGES = {name: page for name, (page, _, _) in PICTURES.items()} | {"batches.svg": "transactions.md"}
"""The page that shows each picture."""


def drawn(name: str) -> str:
    if name == "batches.svg":
        return batches_drawn()
    _, bolt, rows = PICTURES[name]
    return explain(bolt, rows).svg()


def main() -> int:
    for name in PAGES:
        (FOLDER / name).write_text(drawn(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
